#include "train/rounding.h"

#include <math.h>

#include "backend/scales.h"
#include "graph/op.h"

enum { SPAN = MZ_SCALE_BLOCK, PARTS = 64 }; // numbers of a run that are rounded at a time; parts of the runs

// --- formats -----------------------------------------------------------------------------------------------------
static bool rounds_operands(const mz_precision_info *p) {
    return p != NULL && p->scaling != MZ_SCALING_NONE && p->dw == p->operand;
}

static mezzo_status refuse(const char *name) {
    mz_text names = {0};
    for (int b = MEZZO_BLOCKS_NONE + 1; b < MEZZO_BLOCKS_COUNT; b++)
        mz_text_addf(&names, "%s%s", names.len > 0 ? ", " : "", mezzo_blocks_name((mezzo_blocks)b));
    for (int p = 0; p < MEZZO_PRECISION_COUNT; p++)
        if (rounds_operands(mz_precision((mezzo_precision)p)))
            mz_text_addf(&names, ", %s", mezzo_precision_name((mezzo_precision)p));
    const mezzo_status status =
        names.status != MEZZO_OK
            ? names.status
            : mz_fail(MEZZO_ERR_INVALID, "\"%s\" is no format of scaled operands: use %s", name, names.data);
    mz_text_free(&names);
    return status;
}

mezzo_status mz_rounding_parse(const char *name, mz_rounding_format *out) {
    mezzo_precision precision;
    *out = (mz_rounding_format){0};
    for (int b = MEZZO_BLOCKS_NONE + 1; b < MEZZO_BLOCKS_COUNT; b++)
        if (strcmp(name, mezzo_blocks_name((mezzo_blocks)b)) == 0)
            out->blocks = (mezzo_blocks)b;
    if (out->blocks == MEZZO_BLOCKS_NONE) {
        if (mezzo_precision_parse(name, &precision) != MEZZO_OK || !rounds_operands(mz_precision(precision)))
            return refuse(name);
        out->precision = mz_precision(precision);
    }
    snprintf(out->name, sizeof out->name, "%s",
             out->precision != NULL ? out->precision->name : mezzo_blocks_name(out->blocks));
    return MEZZO_OK;
}

// --- scales ------------------------------------------------------------------------------------------------------
typedef struct work {
    const mz_rounding_how *how;
    const float *x;
    int64_t rows, columns, runs, length, along, across; // elements of a run are `along` apart, runs `across`
    float tensor;                                       // of the whole tensor: its scale, or the one NVFP4 multiplies
    float *tiles;                                       // [rows of tiles][columns of tiles]
    int64_t tile_columns;
    float *rounded;
    mz_rounding parts[PARTS];
} work;

static void count_scale(mz_rounding *r, float scale) {
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    const double log = log2((double)scale);
    r->scales++;
    r->log2_sum += log;
    r->log2_squares += log * log;
    r->counts[mz_histogram_bucket(bits)]++;
}

static void find_tiles(work *w) {
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t c = 0; c < w->columns; c++) {
            float *amax = &w->tiles[r / SPAN * w->tile_columns + c / SPAN];
            const float magnitude = fabsf(w->x[r * w->columns + c]);
            *amax = magnitude > *amax || isnan(magnitude) ? magnitude : *amax; // a NaN stays: nothing is greater
        }
    const int64_t n = (w->rows + SPAN - 1) / SPAN * w->tile_columns;
    for (int64_t i = 0; i < n; i++) {
        const bool holds = w->tiles[i] > 0 && isfinite(w->tiles[i]);
        w->tiles[i] = mz_scale_for((double)w->tiles[i], w->how->dtype);
        if (holds)
            count_scale(&w->parts[0], w->tiles[i]);
    }
}

static mezzo_status find_scales(work *w) {
    const bool blocks = w->how->blocks != MEZZO_BLOCKS_NONE, whole = w->how->scaling == MZ_SCALING_TENSOR;
    w->tensor = 1;
    if (blocks ? w->how->blocks != MEZZO_BLOCKS_NVFP4 : w->how->scaling == MZ_SCALING_BLOCK128)
        return MEZZO_OK; // each block finds its own
    const float amax = blocks || whole ? mz_blocks_amax(w->x, w->rows * w->columns) : 0;
    if (blocks) {
        w->tensor = mz_blocks_tensor_scale(w->how->blocks, amax);
        return MEZZO_OK;
    }
    if (whole) {
        w->tensor = mz_scale_for((double)amax, w->how->dtype);
        if (amax > 0 && isfinite(amax))
            count_scale(&w->parts[0], w->tensor);
        return MEZZO_OK;
    }
    w->tile_columns = (w->columns + SPAN - 1) / SPAN;
    w->tiles = mz_alloc((size_t)((w->rows + SPAN - 1) / SPAN * w->tile_columns) + 1, sizeof *w->tiles);
    if (w->tiles == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    find_tiles(w);
    return MEZZO_OK;
}

// --- rounding ----------------------------------------------------------------------------------------------------
// The scale of n numbers with one scale of their own, and the largest number of the format times it.
static float scale_of_block(const work *w, const float *x, int n, mz_rounding *r) {
    const mezzo_blocks b = w->how->blocks;
    const float amax = mz_blocks_amax(x, n);
    const float scale = b == MEZZO_BLOCKS_NONE
                            ? mz_scale_for((double)amax, w->how->dtype)
                            : mz_blocks_scale_value(b, mz_blocks_scale(b, amax, w->tensor)) * w->tensor;
    if (amax > 0 && isfinite(amax) && scale > 0)
        count_scale(r, scale);
    return scale;
}

static float round_number(mezzo_dtype dtype, float x, float scale) {
    if (!isfinite(x))
        return x;
    const float y = x / scale; // a power of two
    return (dtype == MEZZO_F8E4M3 ? mezzo_e4m3_to_f32(mezzo_f32_to_e4m3_saturating(y))
                                  : mezzo_e5m2_to_f32(mezzo_f32_to_e5m2_saturating(y))) *
           scale;
}

static void compare(mz_rounding *r, const float *x, const float *q, int n, double largest) {
    r->elements += n;
    for (int i = 0; i < n; i++) {
        if (!isfinite(q[i])) {
            r->not_finite++;
            continue;
        }
        const double is = (double)x[i], error = (double)q[i] - is;
        r->nonzero += x[i] != 0;
        r->underflow += x[i] != 0 && q[i] == 0;
        r->saturated += fabs(is) > largest;
        r->squares += is * is;
        r->error += error * error;
    }
}

// n numbers of a run, from `at` on.
static void round_span(const work *w, int64_t run, int64_t at, int n, mz_rounding *r) {
    const mz_rounding_how *how = w->how;
    const int64_t first = run * w->across + at * w->along;
    float x[SPAN], q[SPAN], scale = w->tensor;
    for (int i = 0; i < n; i++)
        q[i] = x[i] = w->x[first + i * w->along];
    if (how->blocks != MEZZO_BLOCKS_NONE || how->scaling == MZ_SCALING_BLOCK128)
        scale = scale_of_block(w, x, n, r);
    else if (how->scaling == MZ_SCALING_TILE128)
        scale = w->tiles[first / w->columns / SPAN * w->tile_columns + first % w->columns / SPAN];
    if (how->blocks != MEZZO_BLOCKS_NONE)
        mz_blocks_round(how->blocks, q, n, w->tensor);
    for (int i = 0; i < n && how->blocks == MEZZO_BLOCKS_NONE; i++)
        q[i] = round_number(how->dtype, x[i], scale);
    const double largest = how->blocks == MEZZO_BLOCKS_NONE    ? mz_dtype_largest(how->dtype)
                           : how->blocks == MEZZO_BLOCKS_MXFP8 ? mz_dtype_largest(MEZZO_F8E4M3)
                                                               : (double)mz_blocks_element(how->blocks, 7);
    compare(r, x, q, n, largest * (double)scale);
    for (int i = 0; i < n && w->rounded != NULL; i++)
        w->rounded[first + i * w->along] = q[i];
}

static void round_part(work *w, int part) {
    const int size = w->how->blocks != MEZZO_BLOCKS_NONE ? mz_blocks_size(w->how->blocks) : SPAN;
    for (int64_t run = w->runs * part / PARTS; run < w->runs * (part + 1) / PARTS; run++)
        for (int64_t at = 0; at < w->length; at += size)
            round_span(w, run, at, w->length - at < size ? (int)(w->length - at) : size, &w->parts[part]);
}

static void add(mz_rounding *sum, const mz_rounding *r) {
    sum->elements += r->elements;
    sum->nonzero += r->nonzero;
    sum->not_finite += r->not_finite;
    sum->underflow += r->underflow;
    sum->saturated += r->saturated;
    sum->squares += r->squares;
    sum->error += r->error;
    sum->scales += r->scales;
    sum->log2_sum += r->log2_sum;
    sum->log2_squares += r->log2_squares;
    for (int b = 0; b < MZ_HISTOGRAM_BUCKETS; b++)
        sum->counts[b] += r->counts[b];
}

mezzo_status mz_rounding_measure(const mz_rounding_how *how, const float *x, int64_t rows, int64_t columns, int threads,
                                 float *rounded, mz_rounding *out) {
    work *w = mz_alloc(1, sizeof *w);
    *out = (mz_rounding){0};
    if (w == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    w->how = how;
    w->x = x;
    w->rows = rows;
    w->columns = columns;
    w->runs = how->columnwise ? columns : rows;
    w->length = how->columnwise ? rows : columns;
    w->along = how->columnwise ? columns : 1;
    w->across = how->columnwise ? 1 : columns;
    w->rounded = rounded;
    const mezzo_status status = find_scales(w);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int part = 0; part < PARTS; part++)
        if (status == MEZZO_OK)
            round_part(w, part);
    for (int part = 0; part < PARTS; part++)
        add(out, &w->parts[part]);
    mz_free(w->tiles);
    mz_free(w);
    return status;
}
