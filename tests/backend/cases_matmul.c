// Cases of matrix products and attention.
#include <math.h>
#include <stdlib.h>

#include "products.h"
#include "test.h"

#define ROW(...) {__VA_ARGS__},
static const int64_t matmul_shapes[][3] = {MZ_MATMUL_SHAPES(ROW)};
static const int64_t batched_shapes[][4] = {MZ_BATCHED_SHAPES(ROW)};
static const int64_t attention_shapes[][5] = {MZ_ATTENTION_SHAPES(ROW)};

// --- products ------------------------------------------------------------------------------------------------------
// GPT-2's vocabulary in each dimension.
static const int64_t vocabulary_shapes[][3] = {{50257, 7, 15}, {17, 50257, 7}, {15, 17, 50257}};

trial *product(mz_op op, arithmetic a) {
    trial *t = trial_new(op);
    t->numerics.compute = a.compute;
    t->optional = a.compute == MEZZO_TF32;
    return t;
}

// So large that the cuda backend takes tensor cores for FP32. The reference takes its time for it, so only where that
// backend is.
static const int64_t large_shape[3] = {640, 1024, 640};
// The shortest sums of such products (SHORT terms), the sharpest bounds: one of the products of parts left out is
// outside them.
enum { SHORT = 64, LONG = 16384 };

// Few rows of a matrix, many of x, as a router's products have: a device may have kernels of their own for them.
static const int64_t router_shapes[][3] = {{77, 8, 132}, {531, 5, 64}, {9, 16, 260}, {1, 3, 516}};

// Small integers: every product and sum is an integer that FP32 holds, so any order of summing gives the same bits.
void fill_operands(trial *t, int64_t inner, fill how) {
    for (int i = 0; i < t->n_in; i++) {
        if (!mz_present(&t->in[i].t))
            continue;
        if (how == FILL_INTEGERS)
            trial_integers(t, i, inner > 256 ? -1 : -3, inner > 256 ? 1 : 3); // sums below 256: BF16 has them all
        else if (how == FILL_PARTS)
            trial_parts(t, i, 0, 1);
        else
            trial_normal(t, i, 1);
    }
    t->exact = t->skip_terms = how == FILL_INTEGERS;          // a term may be multiplied by 0
    t->skip_terms = t->skip_terms || inner >= large_shape[2]; // the reference would be made once more for each
    // A single element may be 0, or mostly residual; and what TF32 may cut off, which all has one sign, hides a small
    // mistake in a long sum.
    t->skip_mutations = trial_count(&t->out[0]) < 4 || (t->numerics.compute == MEZZO_TF32 && inner > 16);
    if (how == FILL_LARGEST) {
        trial_normal(t, 1, 0x1p-20);
        trial_largest(t, 0);
    }
    t->skip_mutations = t->skip_mutations || how == FILL_PARTS || how == FILL_LARGEST;
    t->skip_mutations =
        t->skip_mutations || (inner > LONG && !t->exact); // a sum's bound is as large as a mutation then
    if (how == FILL_NAN)
        trial_spoil(t, 0);
    // A product in parts is NaN where the whole one is an infinity (∞·0), and an activation takes -∞, not NaN, to 0:
    // there only NaN is tried.
    bool in_parts = t->numerics.compute == MEZZO_TF32 || t->numerics.compute == MEZZO_F16;
    if (how == FILL_NAN && in_parts && t->attrs.act != MZ_ACT_NONE && trial_count(&t->in[0]) > 4) {
        t->in[0].value[trial_count(&t->in[0]) - 1] = t->in[0].value[0];
        trial_store(&t->in[0]);
    }
}

typedef struct epilogue {
    bool bias, preact, residual, wide; // wide: y is FP32 whatever x is
    mz_act act;
} epilogue;

// More tiles than a GPU makes in three turns; rows and columns that a tile has more of.
static const int64_t turns_shape[3] = {264, 17960, 24};

static void linear_case(const int64_t s[3], arithmetic a, epilogue e, fill how) {
    trial *t = product(MZ_OP_linear, a);
    t->attrs.act = e.act;
    t->attrs.via = a.storage;
    trial_input(t, 0, a.storage, SHAPE(s[0], s[2]));
    trial_input(t, 1, a.storage, SHAPE(s[1], s[2]));
    if (e.bias)
        trial_input(t, 2, a.storage, SHAPE(s[1]));
    if (e.residual)
        trial_input(t, 3, e.wide ? MEZZO_F32 : a.storage, SHAPE(s[0], s[1]));
    trial_output(t, 0, e.wide ? MEZZO_F32 : a.storage, SHAPE(s[0], s[1]));
    if (e.preact)
        trial_output(t, 1, a.storage, SHAPE(s[0], s[1]));
    fill_operands(t, s[2], how);
    trial_finish(t);
}

void cases_linear(void) {
    static const epilogue epilogues[] = {
        {.bias = false},
        {.bias = true, .act = MZ_ACT_GELU_TANH, .preact = true},
        {.bias = true, .act = MZ_ACT_GELU_TANH},
        {.bias = true, .residual = true, .wide = true},
        {.bias = true, .residual = true},
        {.act = MZ_ACT_RELU, .wide = true},
        {.bias = true, .act = MZ_ACT_GELU},
        {.act = MZ_ACT_SILU, .preact = true, .residual = true, .wide = true},
    };
    for (size_t s = 0; s < MZ_COUNT(matmul_shapes); s++)
        for (size_t a = 0; a < MZ_COUNT(arithmetics); a++) {
            for (size_t e = 0; e < MZ_COUNT(epilogues); e++)
                linear_case(matmul_shapes[s], arithmetics[a], epilogues[e], FILL_NORMAL);
            linear_case(matmul_shapes[s], arithmetics[a], (epilogue){.bias = true}, FILL_INTEGERS);
            linear_case(matmul_shapes[s], arithmetics[a], (epilogue){.residual = true, .wide = true}, FILL_INTEGERS);
        }
    for (size_t a = 0; a < MZ_COUNT(arithmetics); a++)
        for (size_t e = 0; e < MZ_COUNT(epilogues); e++)
            linear_case((const int64_t[]){17, 31, 33}, arithmetics[a], epilogues[e], FILL_NAN);
    for (size_t s = 0; s < MZ_COUNT(router_shapes); s++) {
        linear_case(router_shapes[s], arithmetics[0], (epilogue){.bias = false}, FILL_NORMAL);
        linear_case(router_shapes[s], arithmetics[0], (epilogue){.bias = false}, FILL_INTEGERS);
    }
    if (devices_have("cuda")) {
        linear_case(large_shape, arithmetics[0], (epilogue){.bias = true, .residual = true}, FILL_NORMAL);
        linear_case(large_shape, arithmetics[0], (epilogue){.bias = true, .act = MZ_ACT_GELU_TANH, .preact = true},
                    FILL_NORMAL);
        linear_case(large_shape, arithmetics[0], (epilogue){.residual = true}, FILL_INTEGERS);
        linear_case(large_shape, arithmetics[0], (epilogue){.bias = false}, FILL_LARGEST);
        linear_case((const int64_t[]){2048, 2048, SHORT}, arithmetics[0], (epilogue){.bias = false}, FILL_PARTS);
        for (size_t a = 0; a < MZ_COUNT(arithmetics); a++)
            if (arithmetics[a].storage == arithmetics[a].compute)
                linear_case(turns_shape, arithmetics[a], epilogues[1], FILL_NORMAL);
    }
    for (size_t s = 0; s < MZ_COUNT(vocabulary_shapes); s++)
        for (size_t a = 0; a < MZ_COUNT(arithmetics); a++) {
            linear_case(vocabulary_shapes[s], arithmetics[a], epilogues[1], FILL_NORMAL);
            linear_case(vocabulary_shapes[s], arithmetics[a], epilogues[3], FILL_INTEGERS);
        }
    // A long k is taken in parts: several tiles of rows wait for the last one before bias and residual are added. BF16
    // holds the integers up to 256, which these sums pass: there they are rounded, once or twice.
    for (size_t a = 0; a < MZ_COUNT(arithmetics); a++)
        linear_case((const int64_t[]){70, 40, 1600}, arithmetics[a], (epilogue){.bias = true, .residual = true},
                    arithmetics[a].storage == MEZZO_BF16 ? FILL_NORMAL : FILL_INTEGERS);
    // Several tiles of rows and columns, the last ones partial: what a kernel that is fussy about alignment takes too.
    for (size_t a = 0; a < MZ_COUNT(arithmetics); a++) {
        linear_case((const int64_t[]){264, 136, 72}, arithmetics[a], epilogues[1], FILL_NORMAL);
        linear_case((const int64_t[]){136, 72, 72}, arithmetics[a], epilogues[2], FILL_NORMAL);
        linear_case((const int64_t[]){264, 72, 2056}, arithmetics[a], epilogues[3], FILL_NORMAL);
        linear_case((const int64_t[]){264, 72, 2048}, arithmetics[a], epilogues[3], FILL_INTEGERS);
    }
}

typedef enum sums { SUMS_NONE, SUMS_WRITTEN, SUMS_ADDED } sums;

// remakes: the activation's result too, which not every device does.
static void linear_dx_of(const int64_t s[3], arithmetic a, mz_act act, mezzo_dtype dx, sums with, bool recomputes,
                         fill how) {
    trial *t = product(MZ_OP_linear_dx, a);
    t->optional = t->optional || recomputes;
    t->attrs.act = act;
    t->attrs.accumulate = with == SUMS_ADDED;
    trial_input(t, 0, a.storage, SHAPE(s[0], s[1]));
    trial_input(t, 1, a.storage, SHAPE(s[1], s[2]));
    if (act != MZ_ACT_NONE)
        trial_input(t, 2, a.storage, SHAPE(s[0], s[2]));
    trial_output(t, 0, dx, SHAPE(s[0], s[2]));
    if (with != SUMS_NONE)
        trial_output(t, 1, MEZZO_F32, SHAPE(s[2]));
    if (with == SUMS_ADDED)
        trial_preset(t, 1, 1);
    if (recomputes)
        trial_output(t, MZ_OUT(linear_dx, act_out), a.storage, SHAPE(s[0], s[2]));
    fill_operands(t, s[1], how);
    t->skip_mutations = t->skip_mutations || (with != SUMS_NONE && a.compute == MEZZO_TF32) || // as above: in all rows
                        (with != SUMS_NONE && s[0] > LONG);
    trial_finish(t);
}

static void linear_dx_case(const int64_t s[3], arithmetic a, mz_act act, mezzo_dtype dx, sums with, fill how) {
    linear_dx_of(s, a, act, dx, with, false, how);
}

void cases_linear_dx(void) {
    for (size_t s = 0; s < MZ_COUNT(matmul_shapes); s++)
        for (size_t a = 0; a < MZ_COUNT(arithmetics); a++) {
            mezzo_dtype storage = arithmetics[a].storage;
            linear_dx_case(matmul_shapes[s], arithmetics[a], MZ_ACT_NONE, storage, SUMS_NONE, FILL_NORMAL);
            linear_dx_case(matmul_shapes[s], arithmetics[a], MZ_ACT_NONE, MEZZO_F32, SUMS_NONE, FILL_NORMAL);
            for (int act = MZ_ACT_RELU; act <= MZ_ACT_SILU; act++)
                for (int k = SUMS_NONE; k <= SUMS_ADDED; k++)
                    linear_dx_case(matmul_shapes[s], arithmetics[a], (mz_act)act, storage, (sums)k, FILL_NORMAL);
            linear_dx_case(matmul_shapes[s], arithmetics[a], MZ_ACT_NONE, storage, SUMS_NONE, FILL_INTEGERS);
            linear_dx_case(matmul_shapes[s], arithmetics[a], MZ_ACT_RELU, storage, SUMS_NONE, FILL_INTEGERS);
            linear_dx_case(matmul_shapes[s], arithmetics[a], MZ_ACT_RELU, MEZZO_F32, SUMS_WRITTEN, FILL_INTEGERS);
        }
    for (size_t a = 0; a < MZ_COUNT(arithmetics); a++)
        linear_dx_case((const int64_t[]){17, 31, 33}, arithmetics[a], MZ_ACT_NONE, arithmetics[a].storage, SUMS_NONE,
                       FILL_NAN);
    for (size_t a = 0; a < MZ_COUNT(arithmetics); a++)
        for (int k = SUMS_NONE; k <= SUMS_ADDED; k++) {
            mezzo_dtype storage = arithmetics[a].storage;
            linear_dx_case((const int64_t[]){264, 72, 136}, arithmetics[a], MZ_ACT_GELU_TANH, storage, (sums)k,
                           FILL_NORMAL);
        }
    for (size_t s = 0; s < MZ_COUNT(vocabulary_shapes); s++)
        for (size_t a = 0; a < MZ_COUNT(arithmetics); a++) {
            linear_dx_case(vocabulary_shapes[s], arithmetics[a], MZ_ACT_GELU_TANH, arithmetics[a].storage, SUMS_ADDED,
                           FILL_NORMAL);
            linear_dx_case(vocabulary_shapes[s], arithmetics[a], MZ_ACT_NONE, MEZZO_F32, SUMS_NONE, FILL_INTEGERS);
        }
    // More tiles than a GPU has multiprocessors: some make two.
    linear_dx_case((const int64_t[]){264, 72, 4488}, arithmetics[2], MZ_ACT_GELU_TANH, MEZZO_BF16, SUMS_WRITTEN,
                   FILL_NORMAL);
    for (size_t s = 0; s < MZ_COUNT(router_shapes); s++) {
        linear_dx_case(router_shapes[s], arithmetics[0], MZ_ACT_NONE, MEZZO_F32, SUMS_NONE, FILL_NORMAL);
        linear_dx_case(router_shapes[s], arithmetics[0], MZ_ACT_NONE, MEZZO_F32, SUMS_NONE, FILL_INTEGERS);
    }
    if (devices_have("cuda")) {
        linear_dx_case(large_shape, arithmetics[0], MZ_ACT_NONE, MEZZO_F32, SUMS_NONE, FILL_NORMAL);
        linear_dx_case(large_shape, arithmetics[0], MZ_ACT_RELU, MEZZO_F32, SUMS_NONE, FILL_INTEGERS);
        linear_dx_case((const int64_t[]){2048, SHORT, 2048}, arithmetics[0], MZ_ACT_NONE, MEZZO_F32, SUMS_NONE,
                       FILL_PARTS);
        for (size_t a = 0; a < MZ_COUNT(arithmetics); a++)
            if (arithmetics[a].storage == arithmetics[a].compute)
                linear_dx_case((const int64_t[]){turns_shape[0], turns_shape[2], turns_shape[1]}, arithmetics[a],
                               MZ_ACT_GELU_TANH, arithmetics[a].storage, SUMS_ADDED, FILL_NORMAL);
    }
}

// GELU's result beside its derivative. Rows and columns that end inside of a tile, fewer than one has, and more tiles
// than a GPU makes in three turns; each also in GELU's input, where a plan puts it (compare.c).
void cases_recomputed(void) {
    static const int64_t shapes[][3] = {{264, 72, 136}, {257, 8, 8}, {511, 72, 1000}, {300, 200, 520}};
    if (!devices_have("cuda"))
        return;
    for (size_t s = 0; s < MZ_COUNT(shapes); s++)
        for (size_t a = 0; a < MZ_COUNT(arithmetics); a++)
            if (arithmetics[a].storage == arithmetics[a].compute && mezzo_dtype_size(arithmetics[a].storage) == 2)
                for (int k = SUMS_NONE; k <= SUMS_ADDED; k++)
                    linear_dx_of(shapes[s], arithmetics[a], MZ_ACT_GELU_TANH, arithmetics[a].storage, (sums)k, true,
                                 FILL_NORMAL);
    linear_dx_of((const int64_t[]){turns_shape[0], turns_shape[2], turns_shape[1]}, arithmetics[2], MZ_ACT_GELU_TANH,
                 MEZZO_BF16, SUMS_WRITTEN, true, FILL_NORMAL);
    linear_dx_of((const int64_t[]){264, 72, 136}, arithmetics[2], MZ_ACT_GELU_TANH, MEZZO_BF16, SUMS_NONE, true,
                 FILL_NAN);
}

static void linear_dw_case(const int64_t s[3], arithmetic a, bool db, bool accumulate, fill how) {
    trial *t = product(MZ_OP_linear_dw, a);
    t->attrs.accumulate = accumulate;
    trial_input(t, 0, a.storage, SHAPE(s[0], s[1]));
    trial_input(t, 1, a.storage, SHAPE(s[0], s[2]));
    trial_output(t, 0, MEZZO_F32, SHAPE(s[1], s[2]));
    if (db)
        trial_output(t, 1, MEZZO_F32, SHAPE(s[1]));
    fill_operands(t, s[0], how);
    for (int i = 0; accumulate && i < t->n_out; i++) {
        trial_preset(t, i, 2);
        for (int64_t k = 0; how == FILL_INTEGERS && k < trial_count(&t->out[i]); k++)
            t->out[i].value[k] = round(t->out[i].value[k]);
        trial_store(&t->out[i]);
    }
    trial_finish(t);
}

void cases_linear_dw(void) {
    for (size_t s = 0; s < MZ_COUNT(matmul_shapes); s++)
        for (size_t a = 0; a < MZ_COUNT(arithmetics); a++)
            for (int variant = 0; variant < 4; variant++) {
                linear_dw_case(matmul_shapes[s], arithmetics[a], variant & 1, variant & 2, FILL_NORMAL);
                linear_dw_case(matmul_shapes[s], arithmetics[a], variant & 1, variant & 2, FILL_INTEGERS);
            }
    for (size_t s = 0; s < MZ_COUNT(vocabulary_shapes); s++)
        for (size_t a = 0; a < MZ_COUNT(arithmetics); a++)
            linear_dw_case(vocabulary_shapes[s], arithmetics[a], true, true, s == 0 ? FILL_INTEGERS : FILL_NORMAL);
    for (size_t a = 0; a < MZ_COUNT(arithmetics); a++)
        linear_dw_case((const int64_t[]){17, 31, 33}, arithmetics[a], true, true, FILL_NAN);
    for (size_t s = 0; s < MZ_COUNT(router_shapes); s++)
        for (int variant = 0; variant < 4; variant++)
            linear_dw_case(router_shapes[s], arithmetics[0], false, variant & 1,
                           variant & 2 ? FILL_NORMAL : FILL_INTEGERS);
    for (int variant = 0; variant < 2 && devices_have("cuda"); variant++)
        linear_dw_case(large_shape, arithmetics[0], true, variant == 1, variant == 0 ? FILL_NORMAL : FILL_INTEGERS);
    if (devices_have("cuda")) {
        linear_dw_case((const int64_t[]){SHORT, 2048, 2048}, arithmetics[0], false, false, FILL_PARTS);
        linear_dw_case((const int64_t[]){2640, 608, 608}, arithmetics[0], true, true,
                       FILL_NORMAL); // three products share parts
    }
}

static void matmul_case(const int64_t s[4], arithmetic a, bool ta, bool tb, bool adds, mezzo_dtype y, fill how) {
    trial *t = product(MZ_OP_matmul, a);
    t->attrs.transpose_a = ta;
    t->attrs.transpose_b = tb;
    trial_input(t, 0, a.storage, ta ? SHAPE(s[0], s[3], s[1]) : SHAPE(s[0], s[1], s[3]));
    trial_input(t, 1, a.storage, tb ? SHAPE(s[0], s[2], s[3]) : SHAPE(s[0], s[3], s[2]));
    if (adds) {
        trial_input(t, 2, a.storage, SHAPE(s[0], s[1], s[2]));
        t->attrs.coefficients[0] = how == FILL_INTEGERS ? 2 : 2.0315f;
        t->attrs.coefficients[1] = how == FILL_INTEGERS ? -3 : -4.775f;
    }
    trial_output(t, 0, y, SHAPE(s[0], s[1], s[2]));
    fill_operands(t, s[3], how);
    trial_finish(t);
}

void cases_matmul(void) {
    cases_symmetric();
    for (size_t s = 0; s < MZ_COUNT(batched_shapes); s++)
        for (size_t a = 0; a < MZ_COUNT(arithmetics); a++)
            for (int variant = 0; variant < 8; variant++) {
                mezzo_dtype y = variant & 4 ? MEZZO_F32 : arithmetics[a].storage;
                for (int adds = 0; adds < 2; adds++) {
                    matmul_case(batched_shapes[s], arithmetics[a], variant & 1, variant & 2, adds, y, FILL_NORMAL);
                    matmul_case(batched_shapes[s], arithmetics[a], variant & 1, variant & 2, adds, y, FILL_INTEGERS);
                }
            }
    matmul_case((const int64_t[]){2, 9, 17, 20}, arithmetics[0], false, false, false, MEZZO_F32, FILL_NAN);
}

// --- attention -----------------------------------------------------------------------------------------------------
// `keys`: positions of k and v.
static trial *attention_over(const int64_t s[5], int64_t keys, bool causal, arithmetic a, bool packed, float dropout) {
    trial *t = product(MZ_OP_attention, a);
    t->attrs.causal = causal;
    t->attrs.heads = (int)s[2];
    t->attrs.kv_heads = (int)s[3];
    t->attrs.p = dropout;
    t->attrs.rng = 5;
    int64_t channels = s[2] * s[4], kv = s[3] * s[4];
    trial_input(t, 0, a.storage, SHAPE(s[0], s[1], packed ? 3 * channels : channels));
    for (int i = 1; i < 3 && !packed; i++)
        trial_input(t, i, a.storage, SHAPE(s[0], keys, kv));
    trial_output(t, 0, a.storage, SHAPE(s[0], s[1], channels));
    trial_output(t, 1, MEZZO_F32, SHAPE(s[0], s[2], s[1]));
    for (int i = 0; i < t->n_in; i++)
        trial_normal(t, i, 1.5);
    t->skip_mutations = keys == 1 || (causal && s[1] == 1); // with one key q and k do not matter
    t->skip_terms = causal && keys > s[1];                  // most keys may be seen by nobody
    return t;
}

// Documents of lengths that grow and fall, some of one token, in every row others; the last tokens are each its own.
static void fill_documents(trial *t, int slot, int64_t rows, int64_t length) {
    static const int lengths[] = {5, 1, 1, 64, 3, 30, 65, 2, 128, 17, 9, 40};
    trial_input(t, slot, MEZZO_I32, SHAPE(rows, length));
    double *positions = t->in[slot].value;
    for (int64_t b = 0, next = 0; b < rows; b++)
        for (int64_t i = 0, left = 0, at = 0; i < length; i++, left--, at++) {
            if (left <= 0 || i >= length - 3) {
                left = lengths[next++ % (int64_t)MZ_COUNT(lengths)];
                at = 0;
            }
            positions[b * length + i] = (double)at;
        }
    trial_store(&t->in[slot]);
}

// What a decoder's attention may have besides: a window, a cap of scores, a scale, several documents in a row.
typedef struct variety {
    int64_t window;
    float cap, scale;
    bool documents;
} variety;
static const variety varieties[] = {{1, 0, 0, false},    {4, 0, 0, false},   {64, 0, 0, false},    {65, 0, 0.3f, false},
                                    {1000, 0, 0, false}, {0, 2, 0, false},   {0, 30, 0.2f, false}, {0, 0, 0, true},
                                    {7, 0, 0, true},     {50, 1.5f, 0, true}};

static trial *attention_various(const int64_t s[5], arithmetic a, bool packed, float dropout, const variety *v) {
    trial *t = attention_over(s, s[1], true, a, packed, dropout);
    t->attrs.window = v->window;
    t->attrs.score_cap = v->cap;
    t->attrs.alpha = v->scale;
    if (v->documents)
        fill_documents(t, 3, s[0], s[1]);
    t->skip_mutations = t->skip_mutations || v->window == 1 || (v->documents && s[1] < 16);
    t->skip_terms = true; // a key may be seen by few, and a capped score hardly moves
    return t;
}

static void each_variety(void (*run)(trial *forward, arithmetic a)) {
    static const int64_t shapes[][5] = {{2, 5, 3, 3, 8},    {2, 33, 4, 2, 20},  {1, 65, 2, 1, 32}, {2, 150, 2, 2, 64},
                                        {1, 300, 2, 1, 40}, {2, 66, 2, 2, 128}, {1, 140, 8, 2, 48}};
    for (size_t s = 0; s < MZ_COUNT(shapes); s++)
        for (size_t a = 0; a < OWN_ARITHMETICS; a++)
            for (size_t v = 0; v < MZ_COUNT(varieties); v++) {
                const bool packed = shapes[s][2] == shapes[s][3] && v % 2 != 0;
                run(attention_various(shapes[s], arithmetics[a], packed, v % 3 == 0 ? 0.3f : 0, &varieties[v]),
                    arithmetics[a]);
            }
}

static trial *attention_trial(const int64_t s[5], arithmetic a, bool packed, float dropout) {
    return attention_over(s, s[1], true, a, packed, dropout);
}

static void attention_case(const int64_t s[5], arithmetic a, bool packed, float dropout) {
    trial_finish(attention_trial(s, a, packed, dropout));
    trial *t = attention_trial(s, a, packed, dropout);
    t->out[1].t.shape.rank = -1; // evaluation needs no log-sum-exp
    t->n_out = 1;
    trial_finish(t);
}

// Takes `forward`.
static trial *attention_bwd_of(trial *forward, arithmetic a) {
    trial *t = product(MZ_OP_attention_bwd, a);
    trial_reference(forward);
    t->attrs = forward->attrs;
    t->skip_mutations = forward->skip_mutations;
    t->skip_terms = forward->skip_terms;
    trial_input(t, 0, a.storage, forward->out[0].t.shape);
    trial_normal(t, 0, 1);
    for (int i = 0; i < forward->n_in && i < 3; i++) {
        if (!mz_present(&forward->in[i].t))
            continue;
        trial_input(t, 1 + i, a.storage, forward->in[i].t.shape);
        memcpy(t->in[1 + i].value, forward->in[i].value, (size_t)trial_count(&forward->in[i]) * sizeof(double));
        trial_store(&t->in[1 + i]);
        trial_output(t, i, a.storage, forward->in[i].t.shape);
    }
    for (int i = 0; i < 2; i++) { // y and lse
        trial_input(t, 4 + i, forward->out[i].t.dtype, forward->out[i].t.shape);
        memcpy(t->in[4 + i].value, forward->out[i].value, (size_t)trial_count(&forward->out[i]) * sizeof(double));
        trial_store(&t->in[4 + i]);
    }
    if (mz_present(&forward->in[3].t)) {
        trial_input(t, 6, MEZZO_I32, forward->in[3].t.shape);
        memcpy(t->in[6].value, forward->in[3].value, (size_t)trial_count(&forward->in[3]) * sizeof(double));
        trial_store(&t->in[6]);
    }
    trial_free(forward);
    return t;
}

static trial *attention_bwd_trial(const int64_t s[5], arithmetic a, bool packed, float dropout) {
    return attention_bwd_of(attention_trial(s, a, packed, dropout), a);
}

static void attention_bwd_case(const int64_t s[5], arithmetic a, bool packed, float dropout) {
    trial_finish(attention_bwd_trial(s, a, packed, dropout));
}

// The reference takes a third of a second: terms are left out of the smaller ones alone.
static void attention_bwd_many(const int64_t s[5], arithmetic a, bool packed) {
    trial *t = attention_bwd_trial(s, a, packed, 0);
    t->skip_terms = true;
    trial_finish(t);
}

static void each_attention(void (*run)(const int64_t s[5], arithmetic a, bool packed, float dropout)) {
    for (size_t s = 0; s < MZ_COUNT(attention_shapes); s++)
        for (size_t a = 0; a < OWN_ARITHMETICS; a++) {
            run(attention_shapes[s], arithmetics[a], false, 0);
            run(attention_shapes[s], arithmetics[a], false, 0.3f);
            if (attention_shapes[s][2] == attention_shapes[s][3]) {
                run(attention_shapes[s], arithmetics[a], true, 0);
                run(attention_shapes[s], arithmetics[a], true, 0.3f);
            }
        }
}

// Other keys than queries, causal (top left) and not; not causal over the same, packed too.
static void other_keys(void (*run)(trial *forward, arithmetic a)) {
    static const int64_t over[][6] = {{2, 5, 9, 3, 3, 8},      {1, 9, 5, 2, 1, 16},    {2, 1, 33, 2, 2, 4},
                                      {1, 130, 70, 2, 1, 32},  {1, 70, 200, 2, 2, 40}, {1, 64, 128, 1, 1, 64},
                                      {2, 66, 66, 4, 2, 20},   {1, 3, 65, 2, 2, 130},  {2, 45, 100, 2, 1, 72},
                                      {1, 40, 150, 2, 1, 128}, {176, 2, 3, 6, 6, 40}};
    for (size_t i = 0; i < MZ_COUNT(over); i++)
        for (size_t a = 0; a < OWN_ARITHMETICS; a++)
            for (int form = 0; form < 4; form++) {
                const int64_t *o = over[i], s[5] = {o[0], o[1], o[3], o[4], o[5]};
                run(attention_over(s, o[2], form & 1, arithmetics[a], false, form & 2 ? 0.3f : 0), arithmetics[a]);
            }
    for (size_t a = 0; a < OWN_ARITHMETICS; a++)
        run(attention_over((const int64_t[]){2, 37, 2, 2, 24}, 37, false, arithmetics[a], true, 0.3f), arithmetics[a]);
}

static void forward_of(trial *forward, arithmetic a) {
    (void)a;
    trial_finish(forward);
}

static void backward_of(trial *forward, arithmetic a) {
    trial_finish(attention_bwd_of(forward, a));
}

// Few positions and short sums, of numbers that parts of them lose most of.
static const int64_t parts_shape[5] = {2, 3, 2, 2, 8};
static const double parts_scale =
    0.125; // scores well below 1: what is lost in y is seen beside what they may be off by

static trial *attention_parts(int kind) {
    trial *t = attention_trial(parts_shape, arithmetics[0], false, 0);
    for (int i = 0; i < 3; i++)
        trial_parts(t, i, kind, i < 2 ? parts_scale : 1);
    t->skip_mutations = true;
    return t;
}

void cases_attention(void) {
    other_keys(forward_of);
    each_variety(forward_of);
    each_attention(attention_case);
    for (int kind = 0; kind < 2; kind++)
        trial_finish(attention_parts(kind));
    trial *t = attention_trial((const int64_t[]){1, 17, 2, 2, 16}, arithmetics[0], true, 0);
    trial_spoil(t, 0);
    trial_finish(t);
    // Scores beyond FP32: a cap takes infinities to itself, and keys that fill up a tile do not make them NaN.
    for (int causal = 0; causal < 2; causal++) {
        t = attention_over((const int64_t[]){1, 5, 2, 2, 16}, 17, causal, arithmetics[0], false, 0);
        t->attrs.score_cap = 3;
        t->attrs.alpha = 16;
        t->in[0].value[3 * 32 + 1] = 1e38;
        trial_store(&t->in[0]);
        t->skip_mutations = t->skip_terms = true;
        trial_finish(t);
    }
}

// `first` rows are in the cache; `size` may be less than first + T: then the last queries have no row.
static trial *attention_cached_trial(const int64_t s[5], mezzo_dtype dtype, bool packed, int32_t first, int64_t size) {
    trial *t = trial_new(MZ_OP_attention_cached);
    t->numerics.compute = dtype;
    t->attrs.heads = (int)s[2];
    t->attrs.kv_heads = (int)s[3];
    int64_t channels = s[2] * s[4], kv = s[3] * s[4];
    trial_input(t, 0, dtype, SHAPE(s[0], s[1], packed ? 3 * channels : channels));
    for (int i = 1; i < 3 && !packed; i++)
        trial_input(t, i, dtype, SHAPE(s[0], s[1], kv));
    for (int i = 3; i < 5; i++)
        trial_input(t, i, MEZZO_F32, SHAPE(s[0], size, kv));
    trial_output(t, 0, dtype, SHAPE(s[0], s[1], channels));
    for (int i = 0; i < 5; i++)
        if (i == 0 || i > 2 || !packed)
            trial_normal(t, i, 1.5);
    trial_input(t, 5, MEZZO_I32, SHAPE(s[1]));
    trial_integers(t, 5, first, first); // only the first of them counts
    t->skip_mutations = first + s[1] < 3 || size < first + s[1];
    // Elsewhere the largest elements of the cache may be rows that are written over, or that nobody reads yet; and in a
    // low format, or among very many, one new key is little.
    t->skip_terms = dtype != MEZZO_F32 || s[1] > 1 || size > first + 1 || first < 16 || first > 100;
    return t;
}

void cases_attention_cached(void) {
    for (size_t s = 0; s < MZ_COUNT(attention_shapes); s++)
        for (int d = 0; d < FLOATS; d++) {
            const int64_t *shape = attention_shapes[s], one[5] = {shape[0], 1, shape[2], shape[3], shape[4]};
            int32_t before = (int32_t)shape[1];
            for (int packed = 0; packed <= (shape[2] == shape[3]); packed++) {
                trial_finish(attention_cached_trial(one, floats[d], packed, before, before + 1));
                trial_finish(attention_cached_trial(one, floats[d], packed, before, 2 * before + 3));
                trial_finish(attention_cached_trial(shape, floats[d], packed, 0, before + 5));
                trial_finish(attention_cached_trial(shape, floats[d], packed, 3, before + 1));
            }
        }
    for (int d = 0; d < FLOATS; d++)
        for (size_t v = 0; v < MZ_COUNT(varieties); v++)
            for (int several = 0; several < 2 && !varieties[v].documents; several++) {
                trial *t =
                    attention_cached_trial((const int64_t[]){2, several ? 9 : 1, 4, 2, 24}, floats[d], false, 70, 80);
                t->attrs.window = varieties[v].window;
                t->attrs.score_cap = varieties[v].cap;
                t->attrs.alpha = varieties[v].scale;
                t->skip_terms = true;
                t->skip_mutations = varieties[v].window == 1;
                trial_finish(t);
            }
    trial *t = attention_cached_trial((const int64_t[]){1, 3, 2, 2, 16}, MEZZO_F32, true, 5, 20);
    trial_spoil(t, 0);
    trial_finish(t);
}

void cases_attention_bwd(void) {
    other_keys(backward_of);
    each_variety(backward_of);
    each_attention(attention_bwd_case);
    for (size_t a = 0; a < OWN_ARITHMETICS && devices_have("cuda"); a++) // more tiles than a block's first few turns do
        if (arithmetics[a].storage != MEZZO_F32) {
            attention_bwd_many((const int64_t[]){9, 150, 40, 40, 8}, arithmetics[a], true);
            attention_bwd_many((const int64_t[]){2, 150, 160, 80, 8}, arithmetics[a], false);
            attention_bwd_many((const int64_t[]){8, 70, 60, 30, 72}, arithmetics[a], false);
            attention_bwd_many((const int64_t[]){1, 700, 6, 2, 104}, arithmetics[a], false);
        }
    for (int kind = 0; kind < 2; kind++) {
        trial *t = attention_bwd_of(attention_parts(kind), arithmetics[0]);
        trial_parts(t, 0, kind, 1);
        trial_finish(t);
    }
    for (int slot = 0; slot < 2; slot++) { // dy, q
        trial *t = attention_bwd_trial((const int64_t[]){1, 17, 2, 2, 16}, arithmetics[0], true, 0);
        trial_spoil(t, slot);
        trial_finish(t);
    }
}

// --- attention with a mask -----------------------------------------------------------------------------------------
// Masks of a row's keys, of every query, and of every head; some keys are hidden by a large number, and where there are
// many the first 70 of the last numbers by infinity: a kernel's first tile has none to see. Without kernels of its own
// a device has nothing to compare: test_compositions runs these.
static trial *attention_masked_trial(int which, arithmetic a, int64_t queries, int64_t keys, float dropout) {
    const int64_t batch = 2, n = 4, kv = 2, width = 8,
                  dims[][4] = {{batch, 1, 1, keys}, {1, n, queries, keys}, {batch, 1, queries, keys}, {1, 1, 1, keys}};
    trial *t = product(MZ_OP_attention_masked, a);
    t->optional = true;
    t->attrs.heads = (int)n;
    t->attrs.kv_heads = (int)kv;
    t->attrs.p = dropout;
    t->attrs.rng = 5;
    t->attrs.causal = which == 2;
    t->attrs.score_cap = which == 1 ? 3 : 0;
    trial_input(t, 0, a.storage, SHAPE(batch, queries, n * width));
    for (int i = 1; i < 3; i++)
        trial_input(t, i, a.storage, SHAPE(batch, keys, kv * width));
    trial_input(t, 3, MEZZO_F32, SHAPE(dims[which][0], dims[which][1], dims[which][2], dims[which][3]));
    trial_output(t, 0, a.storage, SHAPE(batch, queries, n * width));
    for (int i = 0; i < 4; i++)
        trial_normal(t, i, 1);
    for (int64_t i = 0; i < trial_count(&t->in[3]); i++)
        if (i % 5 == 3)
            t->in[3].value[i] = -1e9;
    for (int64_t i = 0; i < 70 && keys > 70 && which != 2; i++) // causal ones have rows that see no others
        t->in[3].value[trial_count(&t->in[3]) - keys + i] = -INFINITY;
    trial_store(&t->in[3]);
    t->skip_terms = true; // of keys that nobody sees
    t->odd_threads = true;
    return t;
}

static void each_mask(void (*run)(trial *forward, arithmetic a)) {
    for (size_t a = 0; a < OWN_ARITHMETICS; a++)
        for (int which = 0; which < 4; which++)
            for (int dropped = 0; dropped < 2; dropped++) {
                if (arithmetics[a].compute == MEZZO_TF32)
                    continue;
                run(attention_masked_trial(which, arithmetics[a], 70, 131, dropped ? 0.3f : 0), arithmetics[a]);
                run(attention_masked_trial(which, arithmetics[a], 7, 9, dropped ? 0.3f : 0), arithmetics[a]);
                run(attention_masked_trial(which, arithmetics[a], 5, 5, dropped ? 0.3f : 0), arithmetics[a]);
            }
}

// One number of q, k or v is NaN or infinite, at a position that all queries see (11), that -1e9 hides (7), or that
// infinity hides (5). Then rows of which the mask hides every key, by -1e9 or by infinity.
static void each_spoiled(void (*run)(trial *forward, arithmetic a)) {
    static const int places[] = {11, 7, 5};
    static const double bad[] = {NAN, INFINITY, -INFINITY}, hidden[] = {0, -1e9, -INFINITY};
    const int64_t queries = 70, keys = 131;
    for (int which = 0; which < 4; which++)
        for (size_t p = 0; p < MZ_COUNT(places); p++) {
            for (size_t i = 0; i < 3 * MZ_COUNT(bad); i++) {
                trial *t = attention_masked_trial(which, arithmetics[0], queries, keys, 0);
                for (int64_t at = places[p]; at < trial_count(&t->in[3]); at += keys)
                    t->in[3].value[at] = hidden[p];
                trial_store(&t->in[3]);
                t->in[i % 3].value[places[p] * t->in[i % 3].t.shape.dim[2] + 1] = bad[i / 3];
                trial_store(&t->in[i % 3]);
                t->finite_only = true;
                run(t, arithmetics[0]);
            }
            trial *t = attention_masked_trial(which, arithmetics[0], queries, keys, 0);
            for (int64_t j = 0; j < keys; j++)
                t->in[3].value[trial_count(&t->in[3]) - keys + j] = hidden[p];
            trial_store(&t->in[3]);
            t->finite_only = p == 2;
            t->skip_mutations = p == 1; // beside -1e9 a score has no bits
            run(t, arithmetics[0]);
        }
}

void cases_attention_masked(void) {
    each_mask(forward_of);
    each_spoiled(forward_of);
}

static void masked_backward_of(trial *forward, arithmetic a) {
    trial *t = product(MZ_OP_attention_masked_bwd, a);
    t->attrs = forward->attrs;
    t->optional = t->skip_terms = t->odd_threads = true;
    t->finite_only = forward->finite_only;
    t->skip_mutations = forward->skip_mutations;
    trial_input(t, 0, a.storage, forward->out[0].t.shape);
    trial_normal(t, 0, 1);
    for (int i = 0; i < 4; i++) {
        trial_input(t, 1 + i, forward->in[i].t.dtype, forward->in[i].t.shape);
        memcpy(t->in[1 + i].value, forward->in[i].value, (size_t)trial_count(&forward->in[i]) * sizeof(double));
        trial_store(&t->in[1 + i]);
        trial_output(t, i, forward->in[i].t.dtype, forward->in[i].t.shape);
    }
    trial_free(forward);
    trial_finish(t);
}

void cases_attention_masked_bwd(void) {
    each_mask(masked_backward_of);
    each_spoiled(masked_backward_of);
}
