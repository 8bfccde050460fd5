#include "train/rounding.h"

#include <math.h>

#include "backend/scales.h"
#include "graph/op.h"

// Numbers of a run that are rounded at a time, runs whose numbers are brought together, parts of all runs, sums that
// are made side by side, and codes of scales.
enum { SPAN = MZ_SCALE_BLOCK, TOGETHER = 16, PARTS = 64, LANES = 8, CODES = 256 };

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
typedef struct part { // of the runs
    int64_t elements, nonzero, not_finite, underflow, saturated;
    double squares[LANES], error[LANES];
    int64_t scales[CODES]; // how often a scale occurred
} part;

typedef struct work {
    const mz_rounding_how *how;
    const float *x;
    int64_t rows, columns, runs, length, along, across; // elements of a run are `along` apart, runs `across`
    int block;                                          // numbers of a run with one scale, at most SPAN
    mz_small format;
    float tensor;   // of the whole tensor: its scale, or the one NVFP4 multiplies
    uint8_t *tiles; // codes of scales: [rows of tiles][columns of tiles], or the tensor's
    int64_t tile_columns;
    bool not_finite; // some tile holds such a number
    float *rounded;
    part parts[PARTS];
} work;

static bool finds_own(const mz_rounding_how *how) { // each block its scale
    return how->blocks != MEZZO_BLOCKS_NONE || how->scaling == MZ_SCALING_BLOCK128;
}

// The code of a power of two, as E8M0 has it.
static uint8_t code_for(float amax, mezzo_dtype dtype) {
    return (uint8_t)(ilogbf(mz_scale_for((double)amax, dtype)) + 127);
}

static float scale_value(const work *w, uint8_t code) {
    return w->how->blocks == MEZZO_BLOCKS_NONE ? mezzo_e8m0_to_f32(code)
                                               : mz_blocks_scale_value(w->how->blocks, code) * w->tensor;
}

static mezzo_status find_tiles(work *w, int64_t side) {
    const int64_t down = (w->rows + side - 1) / side, across = (w->columns + side - 1) / side;
    w->tile_columns = across;
    w->tiles = mz_alloc((size_t)(down * across) + 1, sizeof *w->tiles);
    if (w->tiles == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int64_t t = 0; t < down * across; t++) {
        const int64_t row = t / across * side, column = t % across * side;
        const int64_t width = w->columns - column < side ? w->columns - column : side;
        float amax = 0;
        for (int64_t r = row; r < w->rows && r < row + side && !isnan(amax); r++) {
            const float of_row = mz_blocks_amax(w->x + r * w->columns + column, width);
            amax = of_row > amax || isnan(of_row) ? of_row : amax;
        }
        w->tiles[t] = code_for(amax, w->how->dtype);
        w->parts[0].scales[w->tiles[t]] += amax > 0 && isfinite(amax);
        w->not_finite = w->not_finite || !isfinite(amax);
    }
    return MEZZO_OK;
}

static mezzo_status find_scales(work *w) {
    w->tensor = 1;
    if (w->how->blocks == MEZZO_BLOCKS_NVFP4)
        w->tensor = mz_blocks_tensor_scale(w->how->blocks, mz_blocks_amax(w->x, w->rows * w->columns));
    if (finds_own(w->how))
        return MEZZO_OK;
    return find_tiles(w, w->how->scaling == MZ_SCALING_TILE128 ? SPAN : w->rows > w->columns ? w->rows : w->columns);
}

// --- rounding ----------------------------------------------------------------------------------------------------
static void count_numbers(part *p, const float *x, const float *q, int n, float largest) {
    int32_t nonzero[LANES] = {0}, underflow[LANES] = {0}, saturated[LANES] = {0};
    for (int at = 0; at < n; at += LANES) {
        for (int i = 0; i < LANES; i++) {
            const double is = (double)x[at + i], error = (double)q[at + i] - is;
            p->squares[i] += is * is;
            p->error[i] += error * error;
        }
        for (int i = 0; i < LANES; i++) {
            const int32_t some = x[at + i] != 0;
            nonzero[i] += some;
            underflow[i] += some & (q[at + i] == 0);
            saturated[i] += fabsf(x[at + i]) > largest;
        }
    }
    for (int i = 0; i < LANES; i++) {
        p->nonzero += nonzero[i];
        p->underflow += underflow[i];
        p->saturated += saturated[i];
    }
}

// Numbers that stay what they are, not finite, or whose scale is NaN; they become zeros, which add nothing.
static void drop_not_finite(part *p, float *x, int n, bool all) {
    for (int i = 0; i < n; i++)
        if (all || !isfinite(x[i])) {
            p->not_finite++;
            x[i] = 0;
        }
}

static uint8_t code_of(const work *w, part *p, float amax, int64_t first) {
    if (!finds_own(w->how)) {
        const int64_t side = w->how->scaling == MZ_SCALING_TILE128 ? SPAN : INT64_MAX;
        return w->tiles[first / w->columns / side * w->tile_columns + first % w->columns / side];
    }
    const uint8_t code = w->how->blocks == MEZZO_BLOCKS_NONE ? code_for(amax, w->how->dtype)
                                                             : mz_blocks_scale(w->how->blocks, amax, w->tensor);
    p->scales[code] += amax > 0 && isfinite(amax) && scale_value(w, code) > 0;
    return code;
}

// n numbers of a run, which have one scale; x has zeros after them up to a multiple of LANES.
static void round_block(const work *w, part *p, float *x, int n, int64_t first) {
    float q[SPAN];
    const int whole = (n + LANES - 1) / LANES * LANES;
    const float amax = finds_own(w->how) ? mz_blocks_amax(x, n) : 0;
    float scale = scale_value(w, code_of(w, p, amax, first));
    p->elements += n;
    if (!isfinite(amax) || w->not_finite) {
        drop_not_finite(p, x, n, isnan(scale));
        scale = isnan(scale) ? 1 : scale;
    }
    memcpy(q, x, (size_t)whole * sizeof *q);
    mz_small_round(w->format, q, whole, scale == 0 ? 0 : 1 / scale, scale);
    count_numbers(p, x, q, whole, mz_small_largest(w->format) * scale);
    for (int i = 0; i < n && w->rounded != NULL; i++)
        w->rounded[first + i * w->along] = q[i];
}

// TOGETHER runs from `run` on, or what is left of them.
static void round_runs(const work *w, part *p, int64_t run) {
    float x[TOGETHER][SPAN];
    const int m = w->runs - run < TOGETHER ? (int)(w->runs - run) : TOGETHER;
    for (int64_t at = 0; at < w->length; at += w->block) {
        const int n = w->length - at < w->block ? (int)(w->length - at) : w->block;
        const float *from = w->x + run * w->across + at * w->along;
        if (n % LANES != 0)
            memset(x, 0, sizeof x);
        if (w->along == 1)
            for (int r = 0; r < m; r++)
                memcpy(x[r], from + r * w->across, (size_t)n * sizeof **x);
        else
            for (int i = 0; i < n; i++)
                for (int r = 0; r < m; r++)
                    x[r][i] = from[i * w->along + r];
        for (int r = 0; r < m; r++)
            round_block(w, p, x[r], n, (run + r) * w->across + at * w->along);
    }
}

static void round_part(work *w, int index) {
    const int64_t groups = (w->runs + TOGETHER - 1) / TOGETHER;
    for (int64_t g = groups * index / PARTS; g < groups * (index + 1) / PARTS; g++)
        round_runs(w, &w->parts[index], g * TOGETHER);
}

// --- sums --------------------------------------------------------------------------------------------------------
static void add_scales(const work *w, uint8_t code, int64_t n, mz_rounding *out) {
    const float scale = scale_value(w, code);
    const double log = log2((double)scale);
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    out->scales += n;
    out->log2_sum += (double)n * log;
    out->log2_squares += (double)n * log * log;
    out->counts[mz_histogram_bucket(bits)] += n;
}

static void add_parts(const work *w, mz_rounding *out) {
    int64_t scales[CODES] = {0};
    for (int k = 0; k < PARTS; k++) {
        const part *p = &w->parts[k];
        out->elements += p->elements;
        out->nonzero += p->nonzero;
        out->not_finite += p->not_finite;
        out->underflow += p->underflow;
        out->saturated += p->saturated;
        for (int i = 0; i < LANES; i++) {
            out->squares += p->squares[i];
            out->error += p->error[i];
        }
        for (int c = 0; c < CODES; c++)
            scales[c] += p->scales[c];
    }
    for (int c = 0; c < CODES; c++)
        if (scales[c] > 0)
            add_scales(w, (uint8_t)c, scales[c], out);
}

static mz_small format_of(const mz_rounding_how *how) {
    if (how->blocks != MEZZO_BLOCKS_NONE)
        return mz_blocks_small(how->blocks);
    return how->dtype == MEZZO_F8E4M3 ? MZ_SMALL_E4M3 : MZ_SMALL_E5M2;
}

mezzo_status mz_rounding_measure(const mz_rounding_how *how, const float *x, int64_t rows, int64_t columns, int threads,
                                 float *rounded, mz_rounding *out) {
    const bool down = how->columnwise;
    work *w = mz_alloc(1, sizeof *w);
    *out = (mz_rounding){0};
    if (w == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    *w = (work){.how = how,
                .x = x,
                .rows = rows,
                .columns = columns,
                .runs = down ? columns : rows,
                .length = down ? rows : columns,
                .along = down ? columns : 1,
                .across = down ? 1 : columns,
                .block = how->blocks != MEZZO_BLOCKS_NONE ? mz_blocks_size(how->blocks) : SPAN,
                .format = format_of(how),
                .rounded = rounded};
    const mezzo_status status = find_scales(w);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int k = 0; k < PARTS; k++)
        if (status == MEZZO_OK)
            round_part(w, k);
    add_parts(w, out);
    mz_free(w->tiles);
    mz_free(w);
    return status;
}
