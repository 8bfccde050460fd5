// Matrix products checked against FP64 arithmetic on the rounded operands, for the tests of the driver and its
// microkernels.
#ifndef MATMUL_CASES_H
#define MATMUL_CASES_H

#include <math.h>
#include <stdlib.h>

#include "backend/cpu/matmul.h"
#include "test.h"

#define GUARD 64 // bytes after every buffer that must stay as they are
#define WARY  0x5A

typedef struct matmul_case {
    int64_t m, n, k, batches;
    int threads;                     // and one; 0: 3
    bool a_transposed, b_transposed; // A is stored [K, M]; B is stored [K, N]
    mezzo_dtype a, b, compute, y;
    bool accumulate;
    bool integers; // operands are small integers: every sum is exact, so is the result
    // epilogue
    bool bias, keep_preact, residual, act_gradient;
    mezzo_dtype via;
    mz_act act;
} matmul_case;

static void *guarded(size_t bytes) {
    unsigned char *p = mz_alloc(bytes + GUARD, 1);
    assert_non_null(p);
    memset(p, WARY, bytes + GUARD);
    return p;
}

static void release(void *buffer, size_t bytes) {
    const unsigned char *p = (const unsigned char *)buffer + bytes;
    for (int i = 0; i < GUARD; i++)
        assert_int_equal(p[i], WARY);
    mz_free(buffer);
}

// n values of `dtype`, uniform in [-1, 1) or integers from -4 to 4, and the same as doubles.
static void fill(void *data, double *values, mezzo_dtype dtype, int64_t n, bool integers, uint32_t stream) {
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t words[4];
        mz_philox((mz_philox_key){.seed = 7, .tensor = stream}, (uint64_t)i, words);
        for (int64_t j = i; j < n && j < i + 4; j++) {
            uint32_t w = words[j - i];
            float x = integers ? (float)(w % 9) - 4.0f : 2 * mz_uniform(w) - 1;
            assert_int_equal(mezzo_convert(&x, MEZZO_F32, (char *)data + (size_t)j * mezzo_dtype_size(dtype), dtype, 1),
                             MEZZO_OK);
            values[j] = mezzo_round_to(x, dtype);
        }
    }
}

typedef struct matrix {
    void *data;
    double *values;
    size_t bytes;
} matrix;

static matrix make_matrix(mezzo_dtype dtype, int64_t n, bool integers, uint32_t stream) {
    matrix t = {.bytes = (size_t)n * mezzo_dtype_size(dtype)};
    t.data = guarded(t.bytes);
    t.values = mz_alloc((size_t)n, sizeof(double));
    fill(t.data, t.values, dtype, n, integers, stream);
    return t;
}

static void round_values(matrix *t, int64_t n, mezzo_dtype dtype) {
    for (int64_t i = 0; i < n; i++)
        t->values[i] = mezzo_round_to(t->values[i], dtype);
}

static void free_matrix(matrix *t) {
    if (t->data != NULL)
        release(t->data, t->bytes);
    mz_free(t->values);
}

static double act_value(mz_act act, double x) {
    switch (act) {
    case MZ_ACT_RELU:
        return x > 0 ? x : 0;
    case MZ_ACT_GELU:
        return 0.5 * x * erfc(-x * sqrt(0.5));
    case MZ_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case MZ_ACT_SILU:
        return x / (1 + exp(-x));
    default:
        return x;
    }
}

static double act_derivative(mz_act act, double x) {
    switch (act) {
    case MZ_ACT_RELU:
        return x > 0;
    case MZ_ACT_GELU:
        return 0.5 * erfc(-x * sqrt(0.5)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    case MZ_ACT_GELU_TANH: {
        double c = sqrt(2 / M_PI), t = tanh(c * (x + 0.044715 * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
    }
    case MZ_ACT_SILU: {
        double s = 1 / (1 + exp(-x));
        return s * (1 + x * (1 - s));
    }
    default:
        return 1;
    }
}

// Half the distance between neighbours at 1, and at the bottom of the range: |round(x) - x| ≤ unit·|x| + floor.
static double unit(mezzo_dtype dtype) {
    return dtype == MEZZO_BF16 ? 0x1p-8 : dtype == MEZZO_F16 ? 0x1p-11 : 0x1p-24;
}
static double bottom(mezzo_dtype dtype) {
    return dtype == MEZZO_F16 ? 0x1p-25 : 0x1p-126;
}

#define ACT_ERROR 0x1p-21 // the activations' own error: 8 units of FP32

static double value_of(const void *data, mezzo_dtype dtype, int64_t i) {
    if (dtype == MEZZO_F32)
        return ((const float *)data)[i];
    uint16_t bits = ((const uint16_t *)data)[i];
    return dtype == MEZZO_BF16 ? mezzo_bf16_to_f32(bits) : mezzo_f16_to_f32(bits);
}

// One element: the exact sum, what the epilogue makes of it, and how far a result may be off.
//   k products summed in any order in FP32: |error| ≤ (k + 8)·2^-24·Σ|a·b|, the 8 for bias, residual and partial sums.
//   A rounding to `via` may then go the other way: one whole step of it. |act'| < 1.2 for every activation here,
//   |act''| < 1.6.
static void require(bool good, const matmul_case *c, double got, double want, double error) {
    if (!good)
        fail_msg("%lldx%lldx%lld%s%s a %s b %s compute %s y %s via %s act %d%s%s: got %.9g, want %.9g within %.3g",
                 (long long)c->m, (long long)c->n, (long long)c->k, c->a_transposed ? " at" : "",
                 c->b_transposed ? " bt" : "", mezzo_dtype_name(c->a), mezzo_dtype_name(c->b),
                 mezzo_dtype_name(c->compute), mezzo_dtype_name(c->y), mezzo_dtype_name(c->via), (int)c->act,
                 c->act_gradient ? " gradient" : "", c->accumulate ? " accumulate" : "", got, want, error);
}

// TF32 is computed from FP32 in two BF16 parts: 2^-17 of each operand is cut off, and the product of the lower parts,
// 2^-16. A GPU, which rounds operands to 11 bits, may be off by 2^-10.
static mezzo_dtype storage_of(mezzo_dtype compute) {
    return compute == MEZZO_TF32 ? MEZZO_F32 : compute;
}

static double dropped(mezzo_dtype compute) {
    return compute == MEZZO_TF32 ? 0x1p-15 : 0;
}

static void check_element(const matmul_case *c, double sum, double sum_abs, double bias, double residual,
                          double preact_in, double before, double y, double preact) {
    double error = ((double)c->k + 8) * 0x1p-24 * (sum_abs + fabs(bias) + fabs(before)), want = sum + bias + before;
    error += dropped(c->compute) * sum_abs;
    if (c->act_gradient) {
        double derivative = act_derivative(c->act, preact_in);
        want *= derivative;
        error = error * fabs(derivative) + fabs(sum) * ACT_ERROR * 4;
    } else {
        double z = mezzo_round_to(want, c->via);
        if (c->integers && c->act == MZ_ACT_NONE)
            error = 0;
        else if (c->via != MEZZO_F32)
            error += 2 * unit(c->via) * fabs(z) + 2 * bottom(c->via);
        if (c->keep_preact)
            require(fabs(preact - z) <= error + unit(c->y) * fabs(z) + bottom(c->y), c, preact, z, error);
        want = z;
        if (c->act != MZ_ACT_NONE) {
            want = act_value(c->act, z);
            error = 1.2 * error + ACT_ERROR * fabs(want) + ACT_ERROR * 0x1p-3;
            if (c->via != MEZZO_F32)
                error += 2 * unit(c->via) * fabs(want) + 2 * bottom(c->via);
            want = mezzo_round_to(want, c->via);
        }
        want += residual;
        error += c->residual && !c->integers ? 0x1p-24 * fabs(want) : 0;
    }
    if (error == 0)
        require(y == mezzo_round_to(want, c->y), c, y, want, 0);
    else
        require(fabs(y - want) <= error + unit(c->y) * (fabs(want) + error) + bottom(c->y), c, y, want, error);
}

// Runs the case on `path` with one thread and several: the result is right, and the same bits.
static void check_case(mz_matmul_path path, const matmul_case *c) {
    int64_t mk = c->m * c->k, nk = c->n * c->k, mn = c->m * c->n, batches = c->batches;
    matrix a = make_matrix(c->a, batches * mk, c->integers, 1), b = make_matrix(c->b, batches * nk, c->integers, 2);
    round_values(&a, batches * mk, storage_of(c->compute));
    round_values(&b, batches * nk, storage_of(c->compute));
    matrix bias = {0}, residual = {0}, preact_in = {0};
    matrix before = make_matrix(c->y, batches * mn, c->integers, 3);
    size_t bytes = before.bytes;
    void *y = guarded(bytes), *again = guarded(bytes), *preact = guarded(bytes);
    mz_matmul_problem p = {.m = c->m, .n = c->n, .k = c->k, .batches = batches, .accumulate = c->accumulate};
    p.a = (mz_matmul_operand){a.data, c->a, c->compute, c->a_transposed ? 1 : c->k, c->a_transposed ? c->m : 1, NULL};
    p.b = (mz_matmul_operand){b.data, c->b, c->compute, c->b_transposed ? 1 : c->k, c->b_transposed ? c->n : 1, NULL};
    p.a_step = mk;
    p.b_step = nk;
    p.y_step = mn;
    p.out = (mz_matmul_epilogue){.y_dtype = c->y, .via = c->via, .ld = c->n, .act = c->act};
    if (c->bias) {
        bias = make_matrix(c->y, c->n, c->integers, 4);
        p.out.bias = bias.data;
        p.out.bias_dtype = c->y;
    }
    if (c->residual) {
        residual = make_matrix(MEZZO_F32, mn, c->integers, 5);
        p.out.residual = residual.data;
        p.out.residual_dtype = MEZZO_F32;
    }
    p.out.preact_dtype = c->y;
    p.out.act_gradient = c->act_gradient;
    if (c->act_gradient) {
        preact_in = make_matrix(c->y, mn, c->integers, 6);
        p.out.preact = preact_in.data;
    } else if (c->keep_preact) {
        p.out.preact = preact;
    }
    const int several = c->threads > 0 ? c->threads : 3;
    for (int threads = 1; threads <= several; threads += several - 1) {
        size_t size = mz_matmul_workspace(path, &p, threads);
        void *workspace = guarded(size);
        p.out.y = threads == 1 ? y : again;
        if (c->accumulate)
            memcpy(p.out.y, before.data, bytes);
        mz_matmul_run(path, &p, threads, workspace);
        release(workspace, size);
        if (threads > 1)
            assert_memory_equal(y, again, bytes);
    }
    for (int64_t i = 0; i < batches * mn; i++) {
        int64_t batch = i / mn, row = i % mn / c->n, column = i % c->n;
        double sum = 0, sum_abs = 0;
        for (int64_t k = 0; k < c->k; k++) {
            double u = a.values[batch * mk + (c->a_transposed ? k * c->m + row : row * c->k + k)];
            double v = b.values[batch * nk + (c->b_transposed ? k * c->n + column : column * c->k + k)];
            sum += u * v;
            sum_abs += fabs(u * v);
        }
        check_element(c, sum, sum_abs, c->bias ? bias.values[column] : 0, c->residual ? residual.values[i] : 0,
                      c->act_gradient ? preact_in.values[i] : 0, c->accumulate ? before.values[i] : 0,
                      value_of(y, c->y, i), c->keep_preact ? value_of(preact, c->y, i) : 0);
    }
    release(y, bytes);
    release(again, bytes);
    release(preact, bytes);
    free_matrix(&a);
    free_matrix(&b);
    free_matrix(&before);
    free_matrix(&bias);
    free_matrix(&residual);
    free_matrix(&preact_in);
}

// --- what every path is put through --------------------------------------------------------------------------------
// Sizes at, below and above every tile; more than one block of k; more than one of m and n.
static const int64_t sizes[][3] = {
    {1, 1, 1},    {1, 33, 7},   {2, 12, 64},  {4, 12, 8},   {5, 7, 3},     {6, 16, 17},    {13, 31, 32},  {14, 32, 33},
    {15, 33, 31}, {16, 16, 16}, {28, 64, 48}, {29, 65, 50}, {31, 95, 65},  {32, 32, 32},   {33, 34, 100}, {64, 48, 128},
    {12, 40, 66}, {70, 5, 15},  {3, 100, 2},  {96, 96, 96}, {37, 19, 900}, {17, 35, 1700}, {470, 37, 5},  {5, 2100, 6},
};

static const mezzo_dtype stored[] = {MEZZO_F32, MEZZO_BF16, MEZZO_F16};

// All orientations of every size, the storage formats in turn.
// `only`: the compute format of a path that has one; F64: all of them.
static void check_sizes(mz_matmul_path path, mezzo_dtype only, bool integers) {
    unsigned turn = 0;
    for (size_t s = 0; s < MZ_COUNT(sizes); s++)
        for (int orientation = 0; orientation < 4; orientation++, turn++) {
            matmul_case c = {.m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2], .batches = 1, .integers = integers};
            c.a_transposed = orientation & 1;
            c.b_transposed = orientation >> 1;
            c.a = stored[turn % 3];
            c.b = stored[turn / 3 % 3];
            c.compute = only != MEZZO_F64 ? only : stored[turn / 9 % 3];
            c.y = stored[(turn + turn / 3) % 3];
            c.via = MEZZO_F32;
            c.accumulate = c.y == MEZZO_F32 && turn % 2 == 0;
            check_case(path, &c);
        }
}

// Every pair of storage formats and compute format, both orientations of each, at a size with edges on all sides.
static void check_formats(mz_matmul_path path, mezzo_dtype only) {
    for (int i = 0; i < 3 * 3 * 3 * 3 * 4; i++) {
        matmul_case c = {.m = 34, .n = 45, .k = 37, .batches = 1, .via = MEZZO_F32};
        c.a = stored[i % 3];
        c.b = stored[i / 3 % 3];
        c.y = stored[i / 9 % 3];
        c.compute = only == MEZZO_TF32 ? only : stored[i / 27 % 3];
        c.a_transposed = i / 81 % 2;
        c.b_transposed = i / 162;
        if (only == MEZZO_F64 || c.compute == only)
            check_case(path, &c);
    }
}

static void check_epilogues(mz_matmul_path path, mezzo_dtype compute) {
    static const mz_act acts[] = {MZ_ACT_NONE, MZ_ACT_RELU, MZ_ACT_GELU, MZ_ACT_GELU_TANH, MZ_ACT_SILU};
    for (size_t act = 0; act < MZ_COUNT(acts); act++)
        for (int i = 0; i < 72; i++) {
            matmul_case c = {.m = 17, .n = 51, .k = 23, .batches = 1, .act = acts[act], .compute = compute};
            c.a = c.b = storage_of(compute);
            c.bias = i & 1;
            c.keep_preact = i >> 1 & 1;
            c.residual = i >> 2 & 1;
            c.y = stored[i / 8 % 3];
            c.via = stored[i / 24];
            if (i % 5 == 0) { // partial sums
                c.m = 5;
                c.n = 9;
                c.k = 1600;
            }
            check_case(path, &c);
        }
    for (size_t act = 0; act < MZ_COUNT(acts); act++)
        for (int y = 0; y < 3; y++) {
            matmul_case c = {
                .m = 35, .n = 40, .k = y == 1 ? 1600 : 30, .batches = 1, .act = acts[act], .via = MEZZO_F32};
            c.compute = compute;
            c.a = c.b = storage_of(compute);
            c.y = stored[y];
            c.act_gradient = true;
            c.a_transposed = y & 1;
            check_case(path, &c);
        }
}

static void check_batches(mz_matmul_path path, mezzo_dtype compute) {
    for (int i = 0; i < 8; i++) {
        matmul_case c = {.m = 19, .n = 33, .k = i & 4 ? 70 : 900, .batches = i & 4 ? 6 : 2, .via = MEZZO_F32};
        c.compute = compute;
        c.a = c.b = c.y = i & 4 ? storage_of(compute) : MEZZO_F32;
        c.a_transposed = i & 1;
        c.b_transposed = i >> 1 & 1;
        check_case(path, &c);
    }
}

// Sizes at which threads share packed panels: of the left operand, the right one, both; several blocks of k, the last
// of them shorter, and panels that are not full. The first `count` of them.
#define SHARED_SIZES 5
static void check_shared(mz_matmul_path path, mezzo_dtype compute, int count) {
    static const int64_t shapes[SHARED_SIZES][4] = {
        {75, 290, 1100, 1}, {400, 70, 704, 1}, {150, 310, 401, 1}, {70, 90, 700, 3}, {310, 75, 330, 1}};
    for (int s = 0; s < count; s++)
        for (int orientation = 0; orientation < 4; orientation++) {
            matmul_case c = {.m = shapes[s][0], .n = shapes[s][1], .k = shapes[s][2], .batches = shapes[s][3]};
            c.a_transposed = orientation & 1;
            c.b_transposed = orientation >> 1;
            c.a = c.b = storage_of(compute);
            c.compute = compute;
            c.threads = 9;
            c.y = s % 2 == 0 ? storage_of(compute) : MEZZO_F32;
            c.via = MEZZO_F32;
            c.integers = c.y == MEZZO_F32;
            check_case(path, &c);
        }
}

static inline void check_column_sums(mz_matmul_path path) {
    static const int64_t shapes[][2] = {{1, 1}, {5, 17}, {300, 64}, {129, 200}, {1000, 33}};
    for (size_t s = 0; s < MZ_COUNT(shapes); s++)
        for (int d = 0; d < 3; d++)
            for (int add = 0; add < 2; add++) {
                int64_t rows = shapes[s][0], columns = shapes[s][1];
                matrix x = make_matrix(stored[d], rows * columns, false, 8);
                matrix before = make_matrix(MEZZO_F32, columns, false, 9);
                size_t bytes = (size_t)columns * sizeof(float);
                float *sums = guarded(bytes), *again = guarded(bytes);
                memcpy(sums, before.data, bytes);
                memcpy(again, before.data, bytes);
                mz_matmul_column_sums(path, x.data, stored[d], rows, columns, sums, add, 1);
                mz_matmul_column_sums(path, x.data, stored[d], rows, columns, again, add, 3);
                assert_memory_equal(sums, again, bytes);
                for (int64_t j = 0; j < columns; j++) {
                    double want = add ? before.values[j] : 0, size = fabs(want);
                    for (int64_t i = 0; i < rows; i++) {
                        want += x.values[i * columns + j];
                        size += fabs(x.values[i * columns + j]);
                    }
                    assert_true(fabs(sums[j] - want) <= ((double)rows + 2) * 0x1p-24 * size);
                }
                release(sums, bytes);
                release(again, bytes);
                free_matrix(&x);
                free_matrix(&before);
            }
}

// Pieces of k are added in order, every sum rounded once, and what stands in y last: the bits of a plain loop.
static inline void check_add_pieces(mz_matmul_path path) {
    static const int64_t lengths[] = {1, 3, 7, 16, 31, 64, 65, 127, 200};
    enum { STEP = 211, MOST = 5 };
    for (size_t s = 0; s < MZ_COUNT(lengths); s++)
        for (int64_t pieces = 2; pieces <= MOST; pieces++)
            for (int add = 0; add < 2; add++) {
                const int64_t n = lengths[s];
                const size_t bytes = (size_t)n * sizeof(float);
                matrix sums = make_matrix(MEZZO_F32, MOST * STEP, false, 10);
                matrix before = make_matrix(MEZZO_F32, n, false, 11);
                const float *from = (const float *)sums.data;
                float *y = guarded(bytes);
                memcpy(y, before.data, bytes);
                path.isa->add_pieces(from, STEP, pieces, y, n, add);
                for (int64_t j = 0; j < n; j++) {
                    float want = from[j];
                    for (int64_t piece = 1; piece < pieces; piece++)
                        want += from[piece * STEP + j];
                    if (add)
                        want = (float)before.values[j] + want;
                    assert_memory_equal(&y[j], &want, sizeof want);
                }
                release(y, bytes);
                free_matrix(&sums);
                free_matrix(&before);
            }
}

// A few rows by weights: within the bound of their sums, with as many bits from many threads as from one. Rows of the
// weight from one number to more than a tile of it may have.
static inline void check_rows(mz_matmul_path path, int64_t m, int64_t n, int64_t k, mezzo_dtype x_dtype,
                              mezzo_dtype dtype) {
    const size_t bytes = (size_t)(m * n) * sizeof(float);
    matrix x = make_matrix(x_dtype, m * k, false, 12), w = make_matrix(dtype, n * k, false, 13);
    float *y = guarded(bytes), *again = guarded(bytes);
    mz_matmul_problem p = {.m = m, .n = n, .k = k, .batches = 1};
    p.a = (mz_matmul_operand){.data = x.data, .dtype = x_dtype, .i_stride = k, .k_stride = 1};
    p.b = (mz_matmul_operand){.data = w.data, .dtype = dtype, .i_stride = k, .k_stride = 1};
    p.out = (mz_matmul_epilogue){.y = y, .y_dtype = MEZZO_F32, .ld = n, .via = MEZZO_F32};
    const size_t room = mz_matmul_rows_workspace(&p);
    void *workspace = guarded(room);
    mz_matmul_rows_run(path.isa, &p, 1, workspace);
    p.out.y = again;
    mz_matmul_rows_run(path.isa, &p, 5, workspace);
    assert_memory_equal(y, again, bytes);
    for (int64_t i = 0; i < m * n; i++) {
        const double *a = x.values + i / n * k, *b = w.values + i % n * k;
        double want = 0, size = 0;
        for (int64_t l = 0; l < k; l++) {
            want += a[l] * b[l];
            size += fabs(a[l] * b[l]);
        }
        assert_true(fabs(y[i] - want) <= ((double)k + 8) * 0x1p-24 * size);
    }
    release(workspace, room);
    release(y, bytes);
    release(again, bytes);
    free_matrix(&x);
    free_matrix(&w);
}

static inline void check_few_rows(mz_matmul_path path) {
    static const int64_t shapes[][2] = {{1, 1}, {3, 31}, {200, 77}, {61, 768}, {37, 3072}, {9, 13000}};
    for (size_t s = 0; s < MZ_COUNT(shapes); s++)
        for (int64_t m = 1; m <= MZ_MATMUL_ROWS; m++)
            for (int d = 0; d < 3; d++) {
                check_rows(path, m, shapes[s][0], shapes[s][1], stored[d], stored[d]);
                check_rows(path, m, shapes[s][0], shapes[s][1], MEZZO_F32, stored[d]);
            }
}

#endif
