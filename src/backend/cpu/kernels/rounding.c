// Measures what formats make of a tensor's numbers. A tile is converted to FP32 once and then rounded to every format.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/inspect.h"
#include "backend/update.h"

enum {
    LONG = MZ_ROUNDING_LONG,
    SHORT = MZ_ROUNDING_SHORT,
    TILE = LONG * SHORT,
    SCALES = TILE / 16, // of a tile, at most
    LANES = 8,
    EACH = 32 // sums to which a row adds
};

typedef double vd __attribute__((vector_size(8 * LANES)));
typedef float vf8 __attribute__((vector_size(4 * LANES)));

typedef struct matrix {
    const mz_tensor *t;
    const uint16_t *low; // NULL, or the other halves of split masters
    mz_layout layout;
    int64_t rows, columns;
    mezzo_dtype via;
} matrix;

typedef struct tile {
    int64_t row, column;                                 // the tile's place in the matrix
    int high, wide;                                      // rows and columns of a whole tile
    int rows, columns;                                   // rows and columns inside the matrix
    float x[TILE], clean[TILE], q[TILE];                 // [high, wide], zeros outside the matrix
    float scale[SCALES], inverse[SCALES], limit[SCALES]; // of blocks, [rows of blocks, columns of blocks]
    int32_t amax[SCALES];
    vd squares[MZ_ROUNDING_SUMS / LANES], errors[MZ_ROUNDING_SUMS / LANES];
} tile;

// --- reading -------------------------------------------------------------------------------------------------------
static void read_row(const matrix *m, int64_t row, int64_t column, int n, float *to) {
    const size_t size = mezzo_dtype_size(m->t->dtype);
    for (int64_t at = row * m->columns + column, left = n; left > 0;) {
        const int64_t run = mz_layout_run(&m->layout, at, left);
        const int64_t place = mz_layout_index(&m->layout, at);
        const char *from = (const char *)m->t->data + (size_t)place * size;
        widen_block(from, m->t->dtype, to, (int)run);
        for (int64_t i = 0; m->low != NULL && i < run; i++)
            to[i] = mz_master_join(((const uint16_t *)(const void *)from)[i], m->low[place + i]);
        at += run, left -= run, to += run;
    }
    to -= n;
    if ((m->via == MEZZO_BF16 || m->via == MEZZO_F16) && m->via != m->t->dtype) {
        uint16_t narrow[LONG];
        narrow_block(to, narrow, m->via, n);
        widen_block(narrow, m->via, to, n);
    }
}

static void read_tile(const matrix *m, tile *t) {
    if (t->rows < t->high || t->columns < t->wide)
        memset(t->x, 0, sizeof t->x);
    for (int r = 0; r < t->rows; r++)
        read_row(m, t->row + r, t->column, t->columns, t->x + r * t->wide);
}

static int32_t amax_of(const float *x, int n) {
    int32_t amax = 0;
    for (int i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= MZ_FLOAT_MAGNITUDE;
        amax = bits > amax ? bits : amax;
    }
    return amax;
}

// Returns the amax of a square of LONG x LONG numbers: [rows of squares, columns of squares].
static int32_t square_amax(const matrix *m, int64_t index) {
    const int64_t across = (m->columns + LONG - 1) / LONG, row = index / across * LONG, column = index % across * LONG;
    const int n = (int)min64(LONG, m->columns - column);
    float x[LONG];
    int32_t amax = 0;
    for (int64_t r = row; r < min64(row + LONG, m->rows); r++) {
        read_row(m, r, column, n, x);
        const int32_t of_row = amax_of(x, n);
        amax = of_row > amax ? of_row : amax;
    }
    return amax;
}

// --- scales --------------------------------------------------------------------------------------------------------
// Finds the largest magnitudes of the tile's blocks. Returns their number.
static int block_amaxes(tile *t, int block, bool down) {
    if (!down) {
        const int each = t->wide / block;
        for (int b = 0; b < t->high * each; b++) {
            int32_t amax = 0;
            for (int i = 0; i < block; i += 16) {
                const int32_t some = amax_of(t->x + b * block + i, 16);
                amax = some > amax ? some : amax;
            }
            t->amax[b] = amax;
        }
        return t->high * each;
    }
    for (int b = 0; b < t->high / block; b++) {
        int32_t *amax = t->amax + b * SHORT;
        memset(amax, 0, SHORT * sizeof *amax);
        for (int r = b * block; r < (b + 1) * block; r++)
            for (int c = 0; c < SHORT; c++) {
                int32_t bits;
                memcpy(&bits, t->x + r * SHORT + c, sizeof bits);
                bits &= MZ_FLOAT_MAGNITUDE;
                amax[c] = bits > amax[c] ? bits : amax[c];
            }
    }
    return t->high / block * SHORT;
}

// Finds the scales. Returns whether a number of the tile is not finite.
static bool find_scales(tile *t, const mz_rounding_form *f, bool down, const int32_t *given, float tensor,
                        mz_rounding_sums *found) {
    const bool own = !f->tile && !f->whole;
    const int n = own ? block_amaxes(t, f->block, down) : TILE / f->block;
    const float largest = mz_bits_float(f->small.largest);
    int32_t most = 0;
    for (int b = 0; b < n && !own; b++)
        t->amax[b] = *given;
    for (int b = 0; b < n; b++) {
        const int code = mz_scale_code(f->rule, t->amax[b], f->small.largest, tensor);
        const float scale = mz_scale_of_code(f->rule, code, tensor);
        t->scale[b] = scale;
        t->inverse[b] = scale == 0 ? 0 : 1 / scale;
        t->limit[b] = largest * scale;
        found->scales[code] += own && mz_scale_counts(t->amax[b], scale);
        most = t->amax[b] > most ? t->amax[b] : most;
    }
    return most >= MZ_FLOAT_INFINITY;
}

// Returns the index of the scale of (row, column).
static inline int block_at(const tile *t, int block, bool down, int row, int column) {
    return down ? row / block * SHORT + column : row * (t->wide / block) + column / block;
}

// Copies the tile without numbers that are not finite or have no scale.
static void clean(tile *t, int block, bool down, mz_rounding_sums *found) {
    memcpy(t->clean, t->x, sizeof t->clean);
    for (int r = 0; r < t->rows; r++)
        for (int c = 0; c < t->columns; c++) {
            float *x = &t->clean[r * t->wide + c];
            if (isfinite(*x) && !isnan(t->scale[block_at(t, block, down, r, c)]))
                continue;
            found->not_finite++;
            *x = 0;
        }
    for (int b = 0; b < SCALES; b++)
        if (isnan(t->scale[b]))
            t->scale[b] = t->inverse[b] = t->limit[b] = 0;
}

// --- rounding ------------------------------------------------------------------------------------------------------
typedef struct counts {
    vi nonzero, underflow, saturated;
} counts;

// Rounds as base/small.h's mz_small_nearest does.
static inline vf nearest(vf x, const mz_small_form f) {
    const vi bits = (vi)x, magnitude = bits & iset(MZ_FLOAT_MAGNITUDE);
    const vf shift = vset(f.shift);
    const vi low = (vi)(((vf)magnitude + shift) - shift), even = magnitude >> f.drop & iset(1);
    vi rounded = (magnitude + iset((1 << (f.drop - 1)) - 1) + even) & iset(-(1 << f.drop));
    rounded = iselect(iless(magnitude, iset(f.least)), low, rounded);
    rounded = iselect(iless(rounded, iset(f.largest)), rounded, iset(f.largest));
    return (vf)(rounded | (bits ^ magnitude));
}

// Rounds a row of n numbers; `along`: this many neighbours share a scale; 0: each has its own.
static inline void round_row(const float *x, float *q, int n, const float *scale, const float *inverse,
                             const float *limit, int along, const mz_small_form f, counts *count) {
    for (int c = 0; c < n; c += VW) {
        const int b = along > 1 ? c / along : c;
        const vf v = vload(x + c), s = along > 1 ? vset(scale[b]) : vload(scale + b);
        const vf back = along > 1 ? vset(inverse[b]) : vload(inverse + b);
        const vf most = along > 1 ? vset(limit[b]) : vload(limit + b);
        const vf y = vproduct(nearest(vproduct(v * back), f) * s);
        const vi some = v != vset(0), magnitude = (vi)v & iset(MZ_FLOAT_MAGNITUDE);
        vstore(q + c, y);
        count->nonzero -= some;
        count->underflow -= some & (y == vset(0));
        count->saturated -= magnitude > (vi)most;
    }
}

// Adds x² to *sum.
static inline void add_squares(const float *x, vd *sum) {
    vf8 v;
    memcpy(&v, x, sizeof v);
    const vd wide = __builtin_convertvector(v, vd);
    *sum += wide * wide;
}

// Adds a row's squares, `octets` neighbouring groups of LANES in one sum each.
static inline void add_row(const float *x, const float *q, int octets, vd *squares, vd *errors) {
    float error[LONG];
    for (int i = 0; i < EACH * octets; i++)
        error[i] = q[i] - x[i];
    for (int s = 0; s < EACH / LANES; s++) {
        vd square = squares[s], off = errors[s];
        for (int k = 0; k < octets; k++) {
            add_squares(x + (s * octets + k) * LANES, &square);
            add_squares(error + (s * octets + k) * LANES, &off);
        }
        squares[s] = square;
        errors[s] = off;
    }
}

static inline void round_rows(tile *t, const float *x, const mz_rounding_form *f, const mz_small_form small, bool down,
                              counts *count) {
    for (int r = 0; r < t->rows; r++) {
        const int b = block_at(t, f->block, down, r, 0), sums = (down ? r / SHORT : r) * (EACH / LANES);
        const float *from = x + r * t->wide;
        float *to = t->q + r * t->wide;
        if (down) {
            round_row(from, to, SHORT, t->scale + b, t->inverse + b, t->limit + b, 1, small, count);
            add_row(from, to, 1, t->squares + sums, t->errors + sums);
        } else {
            round_row(from, to, LONG, t->scale + b, t->inverse + b, t->limit + b, f->block, small, count);
            add_row(from, to, LONG / EACH, t->squares + sums, t->errors + sums);
        }
    }
}

static int64_t add_lanes(vi x) {
    int64_t sum = 0;
    for (int i = 0; i < VW; i++)
        sum += x[i];
    return sum;
}

static double add_up(double *sums, int n) {
    for (int half = n / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            sums[i] += sums[i + half];
    return sums[0];
}

static double add_vectors(vd *sums, int n) {
    for (int half = n / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            sums[i] += sums[i + half];
    double last[LANES];
    memcpy(last, sums, sizeof last);
    return add_up(last, LANES);
}

// Rounds a tile. given: the largest magnitude of its tensor or square, where the format needs it.
static void round_tile(tile *t, const mz_rounding_form *f, bool down, const int32_t *given, float tensor,
                       mz_rounding_sums *found) {
    const int sums = (down ? LONG : MZ_ROUNDING_SUMS) / LANES;
    const float *x = t->x;
    counts count = {iset(0), iset(0), iset(0)};
    if (find_scales(t, f, down, given, tensor, found)) {
        clean(t, f->block, down, found);
        x = t->clean;
    }
    memset(t->squares, 0, (size_t)sums * sizeof *t->squares);
    memset(t->errors, 0, (size_t)sums * sizeof *t->errors);
    switch (f->small.drop) { // constants, for which the loops are compiled
    case 20:
        round_rows(t, x, f, (mz_small_form)MZ_SMALL_FORM_E4M3, down, &count);
        break;
    case 21:
        round_rows(t, x, f, (mz_small_form)MZ_SMALL_FORM_E5M2, down, &count);
        break;
    default:
        round_rows(t, x, f, (mz_small_form)MZ_SMALL_FORM_E2M1, down, &count);
        break;
    }
    found->nonzero += add_lanes(count.nonzero);
    found->underflow += add_lanes(count.underflow);
    found->saturated += add_lanes(count.saturated);
    found->squares = add_vectors(t->squares, sums);
    found->error = add_vectors(t->errors, sums);
}

// --- the whole tensor ----------------------------------------------------------------------------------------------
typedef struct plan {
    matrix m;
    int n, high, wide;
    bool down;
    mz_rounding_form form[MZ_ROUNDING_FORMATS];
    int64_t squares, tiles, across; // squares of LONG x LONG; tiles, and those of a row
    double *partial;                // [n, 2, tiles]
    int32_t *amax;                  // [squares]
} plan;

static size_t plan_of(const mz_call *call, plan *p) {
    const mz_rounding_attrs *a = call->attrs.rounding;
    const mz_shape *shape = &mz_in(call, rounding, x)->shape;
    *p = (plan){.m = {.t = mz_in(call, rounding, x),
                      .low = mz_in(call, rounding, low)->data,
                      .rows = mz_shape_rows(shape),
                      .columns = shape->dim[shape->rank - 1],
                      .via = a->via},
                .n = a->n,
                .down = a->columnwise,
                .high = a->columnwise ? LONG : SHORT,
                .wide = a->columnwise ? SHORT : LONG};
    mz_layout_of(shape, &mz_in(call, rounding, x)->storage, &p->m.layout);
    for (int f = 0; f < a->n; f++)
        p->form[f] = mz_rounding_form_of(&a->how[f]);
    p->across = (p->m.columns + p->wide - 1) / p->wide;
    p->tiles = (p->m.rows + p->high - 1) / p->high * p->across;
    p->squares = ((p->m.rows + LONG - 1) / LONG) * ((p->m.columns + LONG - 1) / LONG);
    const size_t partial = (size_t)(2 * p->n * p->tiles) * sizeof(double);
    p->partial = call->workspace;
    if (call->workspace != NULL) // during prepare there is no workspace yet
        p->amax = (int32_t *)(void *)((char *)call->workspace + partial);
    return partial + (size_t)p->squares * sizeof(int32_t);
}

// Finds the largest magnitudes, and the scales of formats with one scale for a tensor or a square.
static void look_ahead(const plan *p, int threads, mz_rounding_sums *found) {
    int32_t amax = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(max : amax)
    for (int64_t s = 0; s < p->squares; s++) {
        p->amax[s] = square_amax(&p->m, s);
        amax = p->amax[s] > amax ? p->amax[s] : amax;
    }
    for (int f = 0; f < p->n; f++) {
        const mz_rounding_form *form = &p->form[f];
        found[f].amax = mz_magnitude_of_one_nan(amax);
        for (int64_t s = 0; s < (form->tile ? p->squares : form->whole ? 1 : 0); s++) {
            const int32_t of = form->tile ? p->amax[s] : amax;
            found[f].scales[mz_scale_code(form->rule, of, form->small.largest, 1)] += mz_scale_counts(of, 1);
        }
    }
}

static void add_counts(const mz_rounding_sums *own, mz_rounding_sums *found) {
#pragma omp atomic
    found->nonzero += own->nonzero;
#pragma omp atomic
    found->not_finite += own->not_finite;
#pragma omp atomic
    found->underflow += own->underflow;
#pragma omp atomic
    found->saturated += own->saturated;
    for (int c = 0; c < MZ_SCALE_CODES; c++)
        if (own->scales[c] > 0) {
#pragma omp atomic
            found->scales[c] += own->scales[c];
        }
}

static void write_rounded(const mz_tensor *y, int64_t columns, const tile *t) {
    for (int r = 0; r < t->rows; r++)
        memcpy((float *)y->data + (t->row + r) * columns + t->column, t->q + r * t->wide,
               (size_t)t->columns * sizeof(float));
}

static void round_one(const plan *p, const mz_call *call, int64_t index, const mz_rounding_sums *found, tile *t,
                      mz_rounding_sums *own) {
    t->high = p->high, t->wide = p->wide;
    t->row = index / p->across * p->high, t->column = index % p->across * p->wide;
    t->rows = (int)min64(p->high, p->m.rows - t->row);
    t->columns = (int)min64(p->wide, p->m.columns - t->column);
    read_tile(&p->m, t);
    const int64_t square = t->row / LONG * ((p->m.columns + LONG - 1) / LONG) + t->column / LONG;
    for (int f = 0; f < p->n; f++) {
        const mz_rounding_form *form = &p->form[f];
        round_tile(t, form, p->down, form->tile ? &p->amax[square] : &found[f].amax,
                   form->rule == MZ_SCALE_NVFP4 ? mz_scale_of_tensor(found[f].amax) : 1, &own[f]);
        p->partial[2 * f * p->tiles + index] = own[f].squares;
        p->partial[(2 * f + 1) * p->tiles + index] = own[f].error;
        if (f == 0 && mz_present(mz_out(call, rounding, rounded)))
            write_rounded(mz_out(call, rounding, rounded), p->m.columns, t);
    }
}

static double add_tiles(const double *partial, int64_t n) {
    double lanes[MZ_ROUNDING_LANES] = {0};
    for (int64_t t = 0; t < n; t++)
        lanes[t % MZ_ROUNDING_LANES] += partial[t];
    return add_up(lanes, MZ_ROUNDING_LANES);
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    mz_rounding_sums *found = mz_out(call, rounding, found)->data;
    plan p;
    (void)plan_of(call, &p);
    const int threads = mz_cpu_threads(device, 3.0 * p.n * (double)(p.m.rows * p.m.columns));
    memset(found, 0, (size_t)p.n * sizeof *found);
    look_ahead(&p, threads, found);
#pragma omp parallel num_threads(threads)
    {
        tile t;
        mz_rounding_sums own[MZ_ROUNDING_FORMATS];
        memset(own, 0, sizeof own);
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < p.tiles; i++)
            round_one(&p, call, i, found, &t, own);
        for (int f = 0; f < p.n; f++)
            add_counts(&own[f], &found[f]);
    }
    for (int f = 0; f < p.n; f++) {
        found[f].squares = add_tiles(p.partial + 2 * f * p.tiles, p.tiles);
        found[f].error = add_tiles(p.partial + (2 * f + 1) * p.tiles, p.tiles);
    }
    return MEZZO_OK;
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device;
    plan p;
    if (mz_present(mz_out(call, rounding, rounded)) && mz_out(call, rounding, rounded)->dtype != MEZZO_F32)
        return "writes fp32";
    out->workspace = plan_of(call, &p);
    return mz_layout_refusal(mz_in(call, rounding, x));
}
const mz_kernel MZ_SYMBOL(rounding) = {"rounding__" MZ_LEVEL_TEXT, prepare, run};
