// Cases of ops on one element at a time, of tables, and of pieces of tensors.
#include <math.h>

#include "cases.h"
#include "test.h"

#define ROW(...) {__VA_ARGS__},
static const int64_t embedding_shapes[][3] = {MZ_EMBEDDING_SHAPES(ROW)};
#define ITEM(n) n,
static const int64_t flat_shapes[] = {MZ_FLAT_SHAPES(ITEM)};

// --- one element at a time -----------------------------------------------------------------------------------------
static void unary(mz_op op, mz_shape shape, mezzo_dtype x, mezzo_dtype y, mz_attrs attrs, bool nan) {
    trial *t = trial_new(op);
    t->attrs = attrs;
    trial_input(t, 0, x, shape);
    trial_output(t, 0, y, shape);
    trial_normal(t, 0, 2);
    if (nan)
        trial_spoil(t, 0);
    t->skip_mutations = mz_shape_count(&shape) < 16; // a single element may be one that ReLU or dropout drops
    trial_finish(t);
}

static void each_unary(mz_op op, mz_attrs attrs) {
    for (size_t s = 0; s < MZ_COUNT(flat_shapes); s++)
        for (int x = 0; x < FLOATS; x++)
            for (int y = 0; y < FLOATS; y++)
                if (x == y || floats[x] == MEZZO_F32 || floats[y] == MEZZO_F32)
                    unary(op, SHAPE(flat_shapes[s]), floats[x], floats[y], attrs, false);
    if (op != MZ_OP_dropout) // which may drop them
        unary(op, SHAPE(3, 17), MEZZO_F32, MEZZO_F32, attrs, true);
}

// Where an approximation may go wrong: beyond where tanh and erf saturate, around zero, and subnormal.
static void activation_range(mz_op op, mz_attrs attrs, bool positive, double most) {
    static const double edges[] = {0,  -0.0, 0x1p-140, -0x1p-140, 1e-20, -1e-20, 1e-4, -1e-4, 0.5,  -0.5,
                                   4,  -4,   5.5,      -5.5,      9,     -9,     15,   -15,   30,   -30,
                                   87, -87,  88.5,     -88.5,     -103,  104,    1000, -1000, 1e30, -1e30};
    trial *t = trial_new(op);
    t->attrs = attrs;
    trial_input(t, 0, MEZZO_F32, SHAPE(4096 + MZ_COUNT(edges)));
    trial_output(t, 0, MEZZO_F32, SHAPE(4096 + MZ_COUNT(edges)));
    for (int i = 0; i < 4096; i++)
        t->in[0].value[i] = (i - 2048) * 0x1p-7; // -16 … 16
    memcpy(t->in[0].value + 4096, edges, sizeof edges);
    for (int64_t i = 0; i < trial_count(&t->in[0]); i++) {
        const double x = fmax(-most, fmin(most, t->in[0].value[i]));
        t->in[0].value[i] = positive ? fabs(x) + 0x1p-126 : x;
    }
    trial_store(&t->in[0]);
    t->skip_mutations = true;
    trial_finish(t);
}

void cases_gelu(void) {
    for (int form = 0; form < 2; form++) {
        each_unary(MZ_OP_gelu, (mz_attrs){.tanh = form});
        activation_range(MZ_OP_gelu, (mz_attrs){.tanh = form}, false, INFINITY);
    }
}

void cases_dropout(void) {
    each_unary(MZ_OP_dropout, (mz_attrs){.p = 0.4f, .rng = 3});
    each_unary(MZ_OP_dropout, (mz_attrs){.p = 0.0f, .rng = 3});
    trial *t = trial_new(MZ_OP_dropout);
    t->attrs = (mz_attrs){.p = 1.0f, .rng = 3};
    trial_input(t, 0, MEZZO_F32, SHAPE(100));
    trial_output(t, 0, MEZZO_F32, SHAPE(100));
    trial_normal(t, 0, 1);
    t->skip_mutations = true;
    trial_finish(t);
}

void cases_cast(void) {
    each_unary(MZ_OP_cast, (mz_attrs){0});
    static const double edges[] = {65504,        65519.996,   65520,          -65520,    3.4e38,   0x1p-24,
                                   0x1.8p-24,    0x1p-25,     0x1.000002p-25, 0x1p-133,  0x1p-134, 1 + 0x1p-8,
                                   1 + 0x1.8p-7, 1 + 0x1p-11, INFINITY,       -INFINITY, NAN};
    for (int d = 0; d < FLOATS; d++) {
        trial *t = trial_new(MZ_OP_cast);
        trial_input(t, 0, MEZZO_F32, SHAPE(MZ_COUNT(edges)));
        trial_output(t, 0, floats[d], SHAPE(MZ_COUNT(edges)));
        memcpy(t->in[0].value, edges, sizeof edges);
        trial_store(&t->in[0]);
        t->exact = t->skip_mutations = true;
        trial_finish(t);
    }
    for (int d = 0; d < FLOATS; d++) { // conditions and indices become numbers
        trial *t = trial_new(MZ_OP_cast);
        trial_input(t, 0, MEZZO_I32, SHAPE(1031));
        trial_output(t, 0, floats[d], SHAPE(1031));
        trial_integers(t, 0, -1000, 1000);
        trial_finish(t);
    }
}

// dtypes of a, b and y that autocast and fuse make.
static const mezzo_dtype binary_dtypes[][3] = {
    {MEZZO_F32, MEZZO_F32, MEZZO_F32},  {MEZZO_BF16, MEZZO_BF16, MEZZO_BF16}, {MEZZO_F16, MEZZO_F16, MEZZO_F16},
    {MEZZO_F32, MEZZO_BF16, MEZZO_F32}, {MEZZO_BF16, MEZZO_F32, MEZZO_F32},   {MEZZO_F16, MEZZO_F32, MEZZO_F32},
    {MEZZO_F32, MEZZO_F32, MEZZO_BF16}, {MEZZO_F32, MEZZO_F32, MEZZO_F16},    {MEZZO_BF16, MEZZO_BF16, MEZZO_F32},
};

// Cases of an element.def op of any number of operands. positive: their contents are.
typedef struct element {
    mz_op op;
    mz_attrs attrs;
    bool positive;
} element;

static void fill(trial *t, int slot, bool positive) {
    trial_tensor *x = &t->in[slot];
    if (x->t.dtype == MEZZO_I32) {
        trial_integers(t, slot, -1, 2);
        return;
    }
    trial_normal(t, slot, 1.5);
    for (int64_t i = 0; positive && i < trial_count(x); i++)
        x->value[i] = fabs(x->value[i]) + 0.125;
    trial_store(x);
}

// n shapes, and n + 1 formats, the result's last; integers where the op asks for them. spoiled: an input with a NaN.
static void element_case(const element *e, int n, const mz_shape *shapes, const mezzo_dtype *dtypes, int spoiled) {
    trial *t = trial_new(e->op);
    mz_shape y = shapes[0];
    t->attrs = e->attrs;
    for (int i = 0; i < n; i++) {
        const mz_shape so_far = y;
        const bool integers = mz_op_slot(e->op, false, i).is & MZ_SLOT_INTEGER;
        assert_true(mz_shape_broadcast(&so_far, &shapes[i], &y));
        trial_input(t, i, integers ? MEZZO_I32 : dtypes[i], shapes[i]);
        fill(t, i, e->positive && !(n == 3 && i == 0));
    }
    const bool whole = mz_op_slot(e->op, true, 0).is & MZ_SLOT_INTEGER;
    trial_output(t, 0, whole ? MEZZO_I32 : dtypes[n], y);
    // A choice leaves operands out, and a gradient need not read each; a single element may be the one.
    const bool choice = n > 1 && mz_op_table[e->op].tolerance == MZ_TOL_EXACT;
    t->skip_terms = n == 3 || choice;
    t->skip_mutations = whole || mz_shape_count(&y) < 16 || (choice && mz_shape_count(&shapes[1]) < 16);
    if (spoiled >= 0 && !whole && t->in[spoiled].t.dtype != MEZZO_I32)
        trial_spoil(t, spoiled);
    trial_finish(t);
}

static void elements_alike(const element *e, int n) {
    for (size_t d = 0; d < MZ_COUNT(binary_dtypes); d++) {
        mezzo_dtype dtypes[4] = {binary_dtypes[d][0], binary_dtypes[d][1], binary_dtypes[d][1], binary_dtypes[d][2]};
        dtypes[n] = binary_dtypes[d][2];
        for (size_t s = 0; s < MZ_COUNT(flat_shapes); s++) {
            const mz_shape shape = SHAPE(flat_shapes[s]);
            element_case(e, n, (const mz_shape[]){shape, shape, shape}, dtypes, -1);
        }
    }
}

// Any operand repeats, at any place; a third one is as the first, or repeats along the last dimension.
static void elements_repeating(const element *e, int n) {
    static const struct {
        mz_shape a, b;
    } pairs[] = {
        {{3, {6, 5, 33}}, {1, {33}}},
        {{3, {6, 5, 33}}, {2, {5, 33}}},
        {{4, {2, 3, 4, 1}}, {1, {1}}},
        {{2, {70, 1030}}, {1, {1030}}},
        {{1, {4}}, {3, {2, 3, 4}}},
        {{3, {2, 1, 4}}, {2, {3, 1}}},
        {{1, {1}}, {1, {33}}},
        {{3, {6, 5, 1}}, {3, {6, 1, 33}}},
        {{2, {5, 1}}, {2, {5, 16}}},
        {{2, {5, 1030}}, {2, {5, 1}}},
        {{3, {40, 1, 64}}, {3, {1, 30, 64}}},
        {{6, {2, 1, 3, 1, 2, 16}}, {6, {1, 2, 3, 2, 1, 16}}},
        {{6, {2, 1, 3, 1, 2, 1}}, {6, {1, 2, 3, 2, 1, 3}}},
        {{2, {7, 9}}, {1, {9}}},
        {{2, {7, 1}}, {2, {1, 9}}},
    };
    for (size_t d = 0; d < MZ_COUNT(binary_dtypes); d++)
        for (size_t p = 0; p < MZ_COUNT(pairs); p++)
            for (int third = 0; third < n - 1; third++) {
                mezzo_dtype dtypes[4] = {binary_dtypes[d][0], binary_dtypes[d][1], binary_dtypes[d][0]};
                mz_shape shapes[3] = {pairs[p].a, pairs[p].b, third ? pairs[p].b : pairs[p].a};
                if (third)
                    shapes[2].dim[shapes[2].rank - 1] = 1;
                dtypes[n] = binary_dtypes[d][2];
                element_case(e, n, shapes, dtypes, p + 2 >= MZ_COUNT(pairs) ? 1 : -1);
            }
}

#define REAL     false
#define POSITIVE true
static const mz_attrs PLAIN = {.alpha = 0}, FACTOR = {.alpha = 0.3f}, RANGE = {.low = -1.5f, .high = 0.75f};
#define CASES(name, told, domain, ...)                                                                                 \
    void cases_##name(void) {                                                                                          \
        const element e = {MZ_OP_##name, told, domain};                                                                \
        __VA_ARGS__                                                                                                    \
    }
#define CASES_UNARY(name, told, domain)                                                                                \
    CASES(name, told, domain, elements_alike(&e, 1); element_range(&e);                                                \
          element_case(&e, 1, &SHAPE(3, 17), (const mezzo_dtype[]){MEZZO_F32, MEZZO_F32}, 0);)
#define UNARY(name, told, saved, class, tolerance, padding, domain, ...)                                               \
    CASES_UNARY(name, told, domain)                                                                                    \
    CASES(name##_dx, told, domain, elements_alike(&e, 2);)
#define UNARY_OWN(name, told, saved, class, tolerance, padding, domain, ...) CASES_UNARY(name, told, domain)
#define UNARY_FLAT(name, told, ...)                                          CASES_UNARY(name, told, REAL)
// clang-format off
#define CASES_BINARY(name, domain) CASES(name, PLAIN, domain, elements_alike(&e, 2); elements_repeating(&e, 2);)
// clang-format on
#define BINARY(name, class, tolerance, padding, domain, ...)                                                           \
    CASES_BINARY(name, domain)                                                                                         \
    CASES(name##_da, PLAIN, domain, elements_alike(&e, 3); elements_repeating(&e, 3);)                                 \
    CASES(name##_db, PLAIN, domain, elements_alike(&e, 3); elements_repeating(&e, 3);)
#define BINARY_OWN(name, ...) CASES_BINARY(name, REAL)
#define COMPARE(name, ...)                                                                                             \
    CASES(name, PLAIN, REAL, elements_alike(&e, 2); elements_repeating(&e, 2); compared_integers(&e);)
#define TERNARY(name, ...)                                                                                             \
    CASES(name, PLAIN, REAL, elements_alike(&e, 3); elements_repeating(&e, 3);)                                        \
    CASES_BINARY(name##_da, REAL)                                                                                      \
    CASES_BINARY(name##_db, REAL)

static void element_range(const element *e) { // up to where no result overflows
    activation_range(e->op, e->attrs, e->positive, 88);
}

static void compared_integers(const element *e) {
    const mezzo_dtype dtypes[] = {MEZZO_I32, MEZZO_I32, MEZZO_I32}, mixed[] = {MEZZO_I32, MEZZO_F32, MEZZO_I32};
    element_case(e, 2, (const mz_shape[]){SHAPE(5, 33), SHAPE(33)}, dtypes, -1);
    element_case(e, 2, (const mz_shape[]){SHAPE(7, 1), SHAPE(1, 16)}, mixed, -1);
}
#include "graph/element.def"

// dy, x and dx of activation gradients.
static void activation_dx(mz_op op, mz_attrs attrs, mz_shape shape, const mezzo_dtype dtypes[3]) {
    trial *t = trial_new(op);
    t->attrs = attrs;
    trial_input(t, 0, dtypes[0], shape);
    trial_input(t, 1, dtypes[1], shape);
    trial_output(t, 0, dtypes[2], shape);
    trial_normal(t, 0, 1);
    trial_normal(t, 1, 2);
    t->skip_mutations = mz_shape_count(&shape) < 16;
    trial_finish(t);
}

static void each_activation_dx(mz_op op, mz_attrs attrs) {
    for (size_t d = 0; d < MZ_COUNT(binary_dtypes); d++)
        for (size_t s = 0; s < MZ_COUNT(flat_shapes); s++)
            activation_dx(op, attrs, SHAPE(flat_shapes[s]), binary_dtypes[d]);
}

void cases_gelu_dx(void) {
    each_activation_dx(MZ_OP_gelu_dx, (mz_attrs){.tanh = true});
    each_activation_dx(MZ_OP_gelu_dx, (mz_attrs){.tanh = false});
}

void cases_copy(void) { // with padding: unit/test_storage.c
    for (int d = 0; d < FLOATS; d++)
        for (size_t s = 0; s < MZ_COUNT(flat_shapes); s++) {
            trial *t = trial_new(MZ_OP_copy);
            trial_input(t, 0, floats[d], SHAPE(flat_shapes[s]));
            trial_output(t, 0, floats[d], SHAPE(flat_shapes[s]));
            trial_normal(t, 0, 1);
            t->exact = true;
            trial_finish(t);
        }
}

void cases_accumulate(void) {
    for (int add = 0; add < 2; add++)
        for (int d = 0; d < FLOATS; d++)
            for (size_t s = 0; s < MZ_COUNT(flat_shapes); s++) {
                trial *t = trial_new(MZ_OP_accumulate);
                t->attrs.accumulate = add;
                trial_input(t, 0, floats[d], SHAPE(flat_shapes[s]));
                trial_output(t, 0, MEZZO_F32, SHAPE(flat_shapes[s]));
                trial_normal(t, 0, 1);
                if (add)
                    trial_preset(t, 0, 1);
                trial_finish(t);
            }
}

// --- tables and pieces ---------------------------------------------------------------------------------------------
static void embedding_case(const int64_t s[3], mezzo_dtype table, mezzo_dtype y, bool beyond) {
    trial *t = trial_new(MZ_OP_embedding);
    trial_input(t, 0, table, SHAPE(s[1], s[2]));
    trial_input(t, 1, MEZZO_I32, SHAPE(s[0]));
    trial_output(t, 0, y, SHAPE(s[0], s[2]));
    trial_normal(t, 0, 1);
    trial_integers(t, 1, beyond ? -1 : 0, (int)s[1] - (beyond ? 0 : 1));
    t->finite_only = beyond;
    t->skip_mutations = s[0] < s[1]; // a row that no token uses
    trial_finish(t);
}

void cases_embedding(void) {
    for (size_t s = 0; s < MZ_COUNT(embedding_shapes); s++) {
        for (int d = 0; d < FLOATS; d++) {
            embedding_case(embedding_shapes[s], floats[d], floats[d], false);
            embedding_case(embedding_shapes[s], MEZZO_F32, floats[d], false);
        }
        embedding_case(embedding_shapes[s], MEZZO_F32, MEZZO_F32, true);
    }
}

void cases_embedding_bwd(void) {
    for (size_t s = 0; s < MZ_COUNT(embedding_shapes); s++)
        for (int d = 0; d < FLOATS; d++)
            for (int variant = 0; variant < 4; variant++) {
                const int64_t *shape = embedding_shapes[s];
                bool beyond = variant & 2; // ids outside the table are left out
                trial *t = trial_new(MZ_OP_embedding_bwd);
                t->attrs.accumulate = variant & 1;
                trial_input(t, 0, floats[d], SHAPE(shape[0], shape[2]));
                trial_input(t, 1, MEZZO_I32, SHAPE(shape[0]));
                trial_output(t, 0, MEZZO_F32, SHAPE(shape[1], shape[2]));
                trial_normal(t, 0, 1);
                trial_integers(t, 1, beyond ? -1 : 0, (int)shape[1] - (beyond ? 0 : 1));
                if (variant & 1)
                    trial_preset(t, 0, 1);
                // A sum of thousands has a bound as large as a mutation.
                t->skip_mutations = beyond || shape[0] / shape[1] > 4096;
                trial_finish(t);
            }
}

void cases_reshape(void) {
    // Never runs: its output shares its input's memory.
}

void cases_split(void) {
    for (int d = 0; d < FLOATS; d++)
        for (int axis = 0; axis < 3; axis++)
            for (int parts = 1; parts <= 6; parts += parts == 1 ? 1 : 2) {
                mz_shape part = SHAPE(3, 5, 7), whole = part;
                whole.dim[axis] *= parts;
                trial *t = trial_new(MZ_OP_split);
                t->attrs.axis = axis;
                trial_input(t, 0, floats[d], whole);
                for (int i = 0; i < parts; i++)
                    trial_output(t, i, floats[d], part);
                trial_normal(t, 0, 1);
                t->exact = true;
                trial_finish(t);
            }
}

void cases_concat(void) {
    for (int d = 0; d < FLOATS; d++)
        for (int axis = 0; axis < 3; axis++)
            for (int parts = 1; parts <= 5; parts += 2) {
                mz_shape whole = SHAPE(3, 5, 7);
                whole.dim[axis] = 0;
                trial *t = trial_new(MZ_OP_concat);
                t->attrs.axis = axis;
                for (int i = 0; i < parts; i++) { // parts of different sizes
                    mz_shape part = SHAPE(3, 5, 7);
                    part.dim[axis] = 1 + i * 2;
                    whole.dim[axis] += part.dim[axis];
                    trial_input(t, i, floats[d], part);
                    trial_normal(t, i, 1);
                }
                trial_output(t, 0, floats[d], whole);
                t->exact = true;
                trial_finish(t);
            }
    trial *t = trial_new(MZ_OP_concat); // integers: where experts' rows begin
    for (int i = 0; i < 3; i++) {
        trial_input(t, i, MEZZO_I32, SHAPE(9));
        trial_integers(t, i, 0, 1 << 30);
    }
    trial_output(t, 0, MEZZO_I32, SHAPE(27));
    trial_finish(t);
}

void cases_arange(void) {
    for (size_t s = 0; s < MZ_COUNT(flat_shapes); s++) {
        trial *t = trial_new(MZ_OP_arange);
        t->attrs = (mz_attrs){.begin = s % 2 ? 1000 : 0, .step = s % 2 ? -3 : 1};
        trial_output(t, 0, MEZZO_I32, SHAPE(flat_shapes[s]));
        trial_finish(t);
    }
}

void cases_constant(void) {
    static const mezzo_dtype dtypes[] = {MEZZO_F32, MEZZO_BF16, MEZZO_F16, MEZZO_I32};
    for (size_t s = 0; s < MZ_COUNT(flat_shapes); s++)
        for (size_t d = 0; d < MZ_COUNT(dtypes); d++) {
            trial *t = trial_new(MZ_OP_constant);
            t->attrs.alpha = -3;
            trial_output(t, 0, dtypes[d], SHAPE(flat_shapes[s]));
            trial_finish(t);
        }
}

// --- pieces and orders ---------------------------------------------------------------------------------------------
static void moved(mz_op op, mz_attrs attrs, mz_shape x, mz_shape y, mezzo_dtype dtype) {
    trial *t = trial_new(op);
    t->attrs = attrs;
    trial_input(t, 0, dtype, x);
    trial_output(t, 0, dtype, y);
    if (dtype == MEZZO_I32)
        trial_integers(t, 0, -9, 9);
    else
        trial_normal(t, 0, 1);
    t->exact = true;
    t->skip_mutations = dtype == MEZZO_I32;
    t->skip_terms = op == MZ_OP_slice; // most are left out
    trial_finish(t);
}

static void permutation(mz_shape x, const int *axes, mezzo_dtype dtype) {
    mz_attrs attrs = {0};
    mz_shape y = x;
    for (int i = 0; i < x.rank; i++) {
        attrs.permutation[i] = axes[i];
        y.dim[i] = x.dim[axes[i]];
    }
    moved(MZ_OP_permute, attrs, x, y, dtype);
}

void cases_permute(void) {
    static const mezzo_dtype dtypes[] = {MEZZO_F32, MEZZO_BF16, MEZZO_F16, MEZZO_I32};
    for (size_t d = 0; d < MZ_COUNT(dtypes); d++) {
        permutation(SHAPE(1), (const int[]){0}, dtypes[d]);
        permutation(SHAPE(5, 7), (const int[]){1, 0}, dtypes[d]);
        permutation(SHAPE(70, 130), (const int[]){1, 0}, dtypes[d]);
        permutation(SHAPE(2, 17, 4, 16), (const int[]){0, 2, 1, 3}, dtypes[d]); // heads before positions
        permutation(SHAPE(3, 8, 5000), (const int[]){1, 0, 2}, dtypes[d]);
        permutation(SHAPE(3, 5, 33), (const int[]){2, 0, 1}, dtypes[d]);
        permutation(SHAPE(2, 1, 3, 4, 1, 5), (const int[]){3, 5, 0, 4, 2, 1}, dtypes[d]);
    }
}

static void piece(mz_op op, mz_shape whole, int axis, int64_t begin, int64_t end, mezzo_dtype dtype, float value) {
    mz_shape part = whole;
    part.dim[axis] = end - begin;
    mz_attrs attrs = {.axis = axis, .begin = begin, .end = end, .alpha = value};
    moved(op, attrs, op == MZ_OP_slice ? whole : part, op == MZ_OP_slice ? part : whole, dtype);
}

static void each_piece(mz_op op, float value) {
    static const mezzo_dtype dtypes[] = {MEZZO_F32, MEZZO_BF16, MEZZO_F16, MEZZO_I32};
    for (size_t d = 0; d < MZ_COUNT(dtypes); d++) {
        piece(op, SHAPE(7), 0, 2, 5, dtypes[d], value);
        piece(op, SHAPE(2, 9), 1, 2, 5, dtypes[d], value);
        piece(op, SHAPE(7, 33), 0, 6, 7, dtypes[d], value);
        piece(op, SHAPE(7, 33), 1, 0, 32, dtypes[d], value);
        piece(op, SHAPE(4, 9, 16), 1, 3, 9, dtypes[d], value);
        piece(op, SHAPE(2, 3, 2, 5, 2, 3), 3, 1, 4, dtypes[d], value);
        piece(op, SHAPE(3, 10000), 1, 1, 9001, dtypes[d], value);
    }
}

void cases_slice(void) {
    each_piece(MZ_OP_slice, 0);
}

void cases_pad(void) {
    each_piece(MZ_OP_pad, 0);
    each_piece(MZ_OP_pad, -3);
}

// --- mean squared error --------------------------------------------------------------------------------------------
static void mse(int64_t n, mezzo_dtype x, mezzo_dtype target, bool nan) {
    trial *t = trial_new(MZ_OP_mse);
    trial_input(t, 0, x, SHAPE(n));
    trial_input(t, 1, target, SHAPE(n));
    trial_output(t, 0, MEZZO_F32, SHAPE(1));
    trial_normal(t, 0, 1);
    trial_normal(t, 1, 1);
    if (nan)
        trial_spoil(t, 1);
    t->skip_terms = n > 1000;
    trial_finish(t);
}

void cases_mse(void) {
    for (size_t s = 0; s < MZ_COUNT(flat_shapes); s++) {
        mse(flat_shapes[s], MEZZO_F32, MEZZO_F32, false);
        mse(flat_shapes[s], MEZZO_BF16, MEZZO_F32, false);
        mse(flat_shapes[s], MEZZO_F16, MEZZO_F16, false);
    }
    mse(33, MEZZO_F32, MEZZO_F32, true);
}

void cases_mse_dx(void) {
    for (size_t d = 0; d < MZ_COUNT(binary_dtypes); d++)
        for (size_t s = 0; s < MZ_COUNT(flat_shapes); s++) {
            trial *t = trial_new(MZ_OP_mse_dx);
            trial_input(t, 0, MEZZO_F32, SHAPE(1));
            trial_input(t, 1, binary_dtypes[d][0], SHAPE(flat_shapes[s]));
            trial_input(t, 2, binary_dtypes[d][1], SHAPE(flat_shapes[s]));
            trial_output(t, 0, binary_dtypes[d][2], SHAPE(flat_shapes[s]));
            trial_normal(t, 0, 65536); // a scaled loss
            trial_normal(t, 1, 1);
            trial_normal(t, 2, 1);
            trial_finish(t);
        }
}
