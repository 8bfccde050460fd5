// Cases of norms, softmax, the loss and sums.
#include <math.h>

#include "cases.h"
#include "test.h"

#define ROW(...) {__VA_ARGS__},
static const int64_t row_shapes[][2] = {MZ_ROW_SHAPES(ROW)};
// Rows that kernels hold in other ways: wider than a warp's registers, than a block's; more of them than a GPU has
// blocks. A single term is below the bound of so long a sum.
static const int64_t wide_shapes[][2] = {{3, 2056}, {2, 4104}, {3, 6149}, {2, 9000}, {3000, 24}};

// --- norms, softmax, loss ------------------------------------------------------------------------------------------
typedef struct norm_form {
    mezzo_dtype x, y, residual, sum;
    bool weight, bias, has_residual, statistics;
} norm_form;

static trial *layernorm_trial(const int64_t s[2], norm_form f) {
    trial *t = trial_new(MZ_OP_layernorm);
    t->attrs.eps = 1e-5f;
    trial_input(t, 0, f.x, SHAPE(s[0], s[1]));
    trial_normal(t, 0, 1);
    for (int64_t i = 0; i < trial_count(&t->in[0]); i++)
        t->in[0].value[i] += 0.5; // a mean that is not zero
    trial_store(&t->in[0]);
    if (f.weight) {
        trial_input(t, 1, MEZZO_F32, SHAPE(s[1]));
        trial_normal(t, 1, 1);
    }
    if (f.bias) {
        trial_input(t, 2, MEZZO_F32, SHAPE(s[1]));
        trial_normal(t, 2, 1);
    }
    if (f.has_residual) {
        trial_input(t, 3, f.residual, SHAPE(s[0], s[1]));
        trial_normal(t, 3, 1);
        trial_output(t, 3, f.sum, SHAPE(s[0], s[1]));
    }
    trial_output(t, 0, f.y, SHAPE(s[0], s[1]));
    if (f.statistics) {
        trial_output(t, 1, MEZZO_F32, SHAPE(s[0]));
        trial_output(t, 2, MEZZO_F32, SHAPE(s[0]));
    }
    t->skip_mutations = s[1] < 4; // a row of one is normalised to nothing
    return t;
}

static const norm_form norm_forms[] = {
    {MEZZO_F32, MEZZO_F32, 0, 0, true, true, false, true},
    {MEZZO_F32, MEZZO_F32, 0, 0, false, false, false, false},
    {MEZZO_F32, MEZZO_BF16, 0, 0, true, true, false, true},
    {MEZZO_F32, MEZZO_F16, 0, 0, true, false, false, true},
    {MEZZO_BF16, MEZZO_BF16, 0, 0, true, true, false, true},
    {MEZZO_F16, MEZZO_F16, 0, 0, true, true, false, true},
    {MEZZO_F16, MEZZO_F32, 0, 0, true, true, false, true},
    {MEZZO_F32, MEZZO_BF16, MEZZO_F32, MEZZO_F32, true, true, true, true},
    {MEZZO_F32, MEZZO_BF16, MEZZO_BF16, MEZZO_F32, true, true, true, true},
    {MEZZO_BF16, MEZZO_F16, MEZZO_F32, MEZZO_F32, true, true, true, true},
    {MEZZO_BF16, MEZZO_BF16, MEZZO_BF16, MEZZO_BF16, true, true, true, true},
    {MEZZO_F32, MEZZO_F32, MEZZO_F32, MEZZO_F32, true, false, true, false},
};

void cases_layernorm(void) {
    for (size_t s = 0; s < MZ_COUNT(row_shapes); s++)
        for (size_t f = 0; f < MZ_COUNT(norm_forms); f++)
            trial_finish(layernorm_trial(row_shapes[s], norm_forms[f]));
    for (size_t s = 0; s < MZ_COUNT(wide_shapes); s++)
        for (size_t f = 0; f < MZ_COUNT(norm_forms); f += 4) {
            trial *t = layernorm_trial(wide_shapes[s], norm_forms[f]);
            t->skip_mutations = true;
            trial_finish(t);
        }
    trial *t = layernorm_trial((const int64_t[]){5, 33}, norm_forms[0]);
    trial_spoil(t, 0);
    trial_finish(t);
    // Values far from zero: a variance taken as a difference of squares would lose every digit.
    t = layernorm_trial((const int64_t[]){5, 256}, norm_forms[0]);
    for (int64_t i = 0; i < trial_count(&t->in[0]); i++)
        t->in[0].value[i] += 3000;
    trial_store(&t->in[0]);
    t->skip_mutations = true;
    trial_finish(t);
}

// Statistics of x itself, as forward stores them.
static trial *layernorm_bwd_trial(const int64_t s[2], const mezzo_dtype dtypes[3], bool affine, bool accumulate,
                                  bool dres) {
    trial *forward = layernorm_trial(s, (norm_form){.x = dtypes[1], .y = MEZZO_F32, .statistics = true});
    trial *t = trial_new(MZ_OP_layernorm_bwd);
    trial_reference(forward);
    t->attrs.eps = forward->attrs.eps;
    t->attrs.accumulate = accumulate;
    trial_input(t, 0, dtypes[0], SHAPE(s[0], s[1]));
    trial_normal(t, 0, 1);
    trial_input(t, 1, dtypes[1], SHAPE(s[0], s[1]));
    memcpy(t->in[1].value, forward->in[0].value, (size_t)trial_count(&t->in[1]) * sizeof(double));
    trial_store(&t->in[1]);
    for (int i = 0; i < 2; i++) {
        trial_input(t, 3 + i, MEZZO_F32, SHAPE(s[0]));
        memcpy(t->in[3 + i].value, forward->out[1 + i].value, (size_t)s[0] * sizeof(double));
        trial_store(&t->in[3 + i]);
    }
    trial_output(t, 0, dtypes[2], SHAPE(s[0], s[1]));
    if (affine) {
        trial_input(t, 2, MEZZO_F32, SHAPE(s[1]));
        trial_normal(t, 2, 1);
        for (int i = 1; i < 3; i++) {
            trial_output(t, i, MEZZO_F32, SHAPE(s[1]));
            if (accumulate)
                trial_preset(t, i, 1);
        }
    }
    if (dres) {
        trial_input(t, 5, dtypes[2], SHAPE(s[0], s[1]));
        trial_normal(t, 5, 1);
    }
    if (dres && dtypes[2] == MEZZO_F32 && dtypes[0] != MEZZO_F32) // a wide dx that is wanted narrow too
        trial_output(t, 3, dtypes[0], SHAPE(s[0], s[1]));
    if (dres) { // and the bias's gradient that comes of it
        trial_output(t, 4, MEZZO_F32, SHAPE(s[1]));
        if (accumulate)
            trial_preset(t, 4, 1);
    }
    t->skip_mutations = s[1] < 4;
    t->skip_terms = s[1] > 16384; // one of so many is below their bound
    trial_free(forward);
    return t;
}

void cases_layernorm_bwd(void) {
    static const mezzo_dtype dtypes[][3] = {
        {MEZZO_F32, MEZZO_F32, MEZZO_F32},    {MEZZO_BF16, MEZZO_F32, MEZZO_F32}, {MEZZO_F16, MEZZO_F32, MEZZO_F32},
        {MEZZO_BF16, MEZZO_BF16, MEZZO_BF16}, {MEZZO_F16, MEZZO_F16, MEZZO_F16},  {MEZZO_BF16, MEZZO_F32, MEZZO_BF16},
    };
    for (size_t s = 0; s < MZ_COUNT(row_shapes); s++)
        for (size_t d = 0; d < MZ_COUNT(dtypes); d++) {
            trial_finish(layernorm_bwd_trial(row_shapes[s], dtypes[d], true, true, true));
            trial_finish(layernorm_bwd_trial(row_shapes[s], dtypes[d], true, false, false));
            trial_finish(layernorm_bwd_trial(row_shapes[s], dtypes[d], false, false, true));
        }
    for (size_t s = 0; s < MZ_COUNT(wide_shapes); s++)
        for (size_t d = 0; d < MZ_COUNT(dtypes); d += 3) {
            trial *t = layernorm_bwd_trial(wide_shapes[s], dtypes[d], true, d > 0, true);
            t->skip_mutations = true;
            trial_finish(t);
        }
    for (int slot = 0; slot < 2; slot++) { // dy, x
        trial *t = layernorm_bwd_trial((const int64_t[]){5, 33}, dtypes[0], true, true, true);
        trial_spoil(t, slot);
        trial_finish(t);
    }
}

void cases_softmax(void) {
    for (size_t s = 0; s < MZ_COUNT(row_shapes); s++)
        for (int x = 0; x < FLOATS; x++)
            for (int y = 0; y < FLOATS; y++) {
                trial *t = trial_new(MZ_OP_softmax);
                trial_input(t, 0, floats[x], SHAPE(row_shapes[s][0], row_shapes[s][1]));
                trial_output(t, 0, floats[y], SHAPE(row_shapes[s][0], row_shapes[s][1]));
                trial_normal(t, 0, 3);
                t->skip_mutations = row_shapes[s][1] == 1;
                trial_finish(t);
            }
    for (size_t s = 0; s < MZ_COUNT(wide_shapes); s++) {
        trial *t = trial_new(MZ_OP_softmax);
        trial_input(t, 0, MEZZO_BF16, SHAPE(wide_shapes[s][0], wide_shapes[s][1]));
        trial_output(t, 0, MEZZO_F32, SHAPE(wide_shapes[s][0], wide_shapes[s][1]));
        trial_normal(t, 0, 3);
        t->skip_mutations = true;
        trial_finish(t);
    }
    trial *t = trial_new(MZ_OP_softmax);
    trial_input(t, 0, MEZZO_F32, SHAPE(3, 17));
    trial_output(t, 0, MEZZO_F32, SHAPE(3, 17));
    trial_normal(t, 0, 2);
    trial_spoil(t, 0);
    trial_finish(t);
}

static void softmax_dx_case(const int64_t s[2], mezzo_dtype dtype, bool wide) {
    trial *t = trial_new(MZ_OP_softmax_dx);
    mz_shape shape = SHAPE(s[0], s[1]);
    trial_input(t, 0, dtype, shape);
    trial_input(t, 1, dtype, shape);
    trial_output(t, 0, dtype, shape);
    trial_normal(t, 0, 1);
    for (int64_t i = 0; i < trial_count(&t->in[1]); i++) // a probability: positive, each row sums to about 1
        t->in[1].value[i] = 2 * ((double)(i * 7919 % 101) + 1) / 101 / (double)s[1];
    trial_store(&t->in[1]);
    t->skip_mutations = wide;
    trial_finish(t);
}

void cases_softmax_dx(void) {
    for (size_t s = 0; s < MZ_COUNT(row_shapes); s++)
        for (int x = 0; x < FLOATS; x++)
            softmax_dx_case(row_shapes[s], floats[x], false);
    for (size_t s = 0; s < MZ_COUNT(wide_shapes); s++)
        softmax_dx_case(wide_shapes[s], MEZZO_BF16, true);
}

enum { IGNORED = -1 };

// `before` and `after`: targets of rows that are not in the call, only in the mean's count.
static trial *cross_entropy_block_trial(const int64_t s[2], int64_t before, int64_t after, mezzo_dtype dtype, int low,
                                        float cap) {
    trial *t = trial_new(MZ_OP_cross_entropy);
    t->attrs.score_cap = cap;
    t->attrs.ignore_index = IGNORED;
    t->attrs.first_row = before;
    trial_input(t, 0, dtype, SHAPE(s[0], s[1]));
    trial_input(t, 1, MEZZO_I32, SHAPE(before + s[0] + after));
    trial_output(t, 0, MEZZO_F32, SHAPE(1));
    trial_output(t, 1, MEZZO_F32, SHAPE(s[0]));
    trial_normal(t, 0, 3);
    trial_integers(t, 1, low, (int)s[1] - 1);
    t->skip_mutations = s[1] == 1;
    t->skip_terms = cap > 0; // one of so many alike
    return t;
}

// Vocabularies as large as real ones and not a multiple of anything; many rows.
static const int64_t loss_shapes[][2] = {{3, 50257}, {4, 50304}, {2, 2049}, {5000, 9}};

static trial *cross_entropy_trial(const int64_t s[2], mezzo_dtype dtype, int low) {
    return cross_entropy_block_trial(s, 0, 0, dtype, low, 0);
}

void cases_cross_entropy(void) {
    for (size_t s = 0; s < MZ_COUNT(row_shapes); s++)
        for (int d = 0; d < FLOATS; d++) {
            trial_finish(cross_entropy_trial(row_shapes[s], floats[d], 0));
            trial *t = cross_entropy_trial(row_shapes[s], floats[d], IGNORED);
            t->skip_mutations = true; // what is dropped may be in a row that is ignored
            trial_finish(t);
        }
    for (size_t s = 0; s < MZ_COUNT(loss_shapes); s++)
        for (int d = 0; d < FLOATS; d++) {
            trial *t = cross_entropy_trial(loss_shapes[s], floats[d], IGNORED);
            t->skip_mutations = true;
            trial_finish(t);
        }
    for (int d = 0; d < FLOATS; d++) { // a block of rows among others
        trial_finish(cross_entropy_block_trial((const int64_t[]){5, 33}, 3, 2, floats[d], 0, 0));
        trial *t = cross_entropy_block_trial((const int64_t[]){64, 100}, 64, 31, floats[d], IGNORED, 0);
        t->skip_mutations = true;
        trial_finish(t);
    }
    for (size_t s = 0; s < MZ_COUNT(loss_shapes); s++)
        for (int d = 0; d < FLOATS; d++)
            trial_finish(cross_entropy_block_trial(loss_shapes[s], 1, 2, floats[d], 0, 2.5f));
    trial *t = cross_entropy_trial((const int64_t[]){7, 16}, MEZZO_F32, 0);
    trial_spoil(t, 0);
    trial_finish(t);
    t = cross_entropy_trial((const int64_t[]){7, 16}, MEZZO_F32, IGNORED); // all ignored: 0
    for (int i = 0; i < 7; i++)
        t->in[1].value[i] = IGNORED;
    trial_store(&t->in[1]);
    t->skip_mutations = true;
    trial_finish(t);
    for (int bad = 0; bad < 2; bad++) { // a target beyond the classes: NaN
        t = cross_entropy_trial((const int64_t[]){7, 16}, MEZZO_F32, 0);
        t->in[1].value[3] = bad ? 16 : -7;
        trial_store(&t->in[1]);
        t->finite_only = true;
        trial_finish(t);
    }
}

static void cross_entropy_dx_block_case(const int64_t s[2], int64_t before, int64_t after, mezzo_dtype x,
                                        mezzo_dtype dx, int low, double odd_target, float cap) {
    trial *forward = cross_entropy_block_trial(s, before, after, x, low, cap), *t = trial_new(MZ_OP_cross_entropy_dx);
    trial_reference(forward);
    t->attrs = forward->attrs;
    trial_input(t, 0, MEZZO_F32, SHAPE(1));
    t->in[0].value[0] = 1024; // a loss scale
    trial_store(&t->in[0]);
    for (int i = 0; i < 3; i++) { // logits, targets, lse
        const trial_tensor *from = i < 2 ? &forward->in[i] : &forward->out[1];
        trial_input(t, 1 + i, from->t.dtype, from->t.shape);
        memcpy(t->in[1 + i].value, from->value, (size_t)trial_count(from) * sizeof(double));
        if (i == 1 && odd_target != 0)
            t->in[2].value[before] = odd_target;
        trial_store(&t->in[1 + i]);
    }
    t->finite_only = odd_target != 0;
    trial_output(t, 0, dx, SHAPE(s[0], s[1]));
    t->skip_mutations = s[1] == 1 || low < 0;
    trial_free(forward);
    trial_finish(t);
}

static void cross_entropy_dx_case(const int64_t s[2], mezzo_dtype x, mezzo_dtype dx, int low, double odd_target) {
    cross_entropy_dx_block_case(s, 0, 0, x, dx, low, odd_target, 0);
}

void cases_cross_entropy_dx(void) {
    for (int x = 0; x < FLOATS; x++) {
        cross_entropy_dx_block_case((const int64_t[]){5, 33}, 3, 2, floats[x], floats[x], 0, 0, 0);
        cross_entropy_dx_block_case((const int64_t[]){64, 100}, 64, 31, floats[x], floats[x], IGNORED, 0, 0);
    }
    for (size_t s = 0; s < MZ_COUNT(row_shapes); s++)
        for (int x = 0; x < FLOATS; x++) {
            cross_entropy_dx_case(row_shapes[s], floats[x], floats[x], 0, 0);
            cross_entropy_dx_case(row_shapes[s], floats[x], MEZZO_F32, IGNORED, 0);
            cross_entropy_dx_case(row_shapes[s], MEZZO_F32, floats[x], IGNORED, 0);
        }
    for (size_t s = 0; s < MZ_COUNT(loss_shapes); s++) {
        cross_entropy_dx_case(loss_shapes[s], MEZZO_BF16, MEZZO_BF16, IGNORED, 0);
        for (int x = 0; x < FLOATS; x++)
            cross_entropy_dx_block_case(loss_shapes[s], 1, 2, floats[x], floats[x], 0, 0, 2.5f);
        cross_entropy_dx_case(loss_shapes[s], MEZZO_F32, MEZZO_F16, IGNORED, 0);
    }
    cross_entropy_dx_case((const int64_t[]){7, 16}, MEZZO_F32, MEZZO_F32, 0, 16);
}

// --- sums ----------------------------------------------------------------------------------------------------------
typedef struct axis_case {
    mz_shape shape;
    int axis;
} axis_case;

static mz_shape without_axis(axis_case c) {
    if (c.axis < 0 || c.shape.rank == 1)
        return SHAPE(1);
    mz_shape out = {.rank = c.shape.rank - 1};
    for (int i = 0; i < out.rank; i++)
        out.dim[i] = c.shape.dim[i < c.axis ? i : i + 1];
    return out;
}

static const axis_case axis_cases[] = {
    {{1, {1}}, 0},        {{1, {77}}, -1},      {{2, {3, 5}}, 0},      {{2, {3, 5}}, 1},      {{3, {2, 33, 17}}, 1},
    {{3, {7, 1, 64}}, 1}, {{2, {40, 1030}}, 0}, {{2, {40, 1030}}, 1},  {{2, {40, 1030}}, -1}, {{4, {2, 3, 4, 5}}, 2},
    {{2, {3000, 24}}, 0}, {{2, {2, 20001}}, 1}, {{3, {3, 500, 8}}, 1},
};

static void sum_case(mz_op op, axis_case c, mezzo_dtype x, mezzo_dtype y, bool accumulate, bool nan) {
    trial *t = trial_new(op);
    t->attrs.axis = c.axis;
    t->attrs.accumulate = accumulate;
    trial_input(t, 0, x, c.shape);
    trial_output(t, 0, y, without_axis(c));
    trial_normal(t, 0, 1);
    for (int64_t i = 0; i < trial_count(&t->in[0]); i++)
        t->in[0].value[i] +=
            2; // so that Σ|x| is not much more than the sum, and a wrong scale is seen in long ones too
    trial_store(&t->in[0]);
    if (accumulate)
        trial_preset(t, 0, 1);
    if (nan)
        trial_spoil(t, 0);
    t->skip_terms = trial_count(&t->in[0]) / trial_count(&t->out[0]) > 2000;
    trial_finish(t);
}

void cases_quantize(void) { // its sums; codes and scales: unit/test_quantize.c
    for (int add = 0; add < 2; add++)
        for (int d = 0; d < FLOATS; d++)
            for (size_t s = 0; s < MZ_COUNT(row_shapes); s++) {
                const int64_t rows = row_shapes[s][0], columns = row_shapes[s][1];
                trial *t = trial_new(MZ_OP_quantize);
                t->attrs.accumulate = add;
                trial_input(t, 0, floats[d], SHAPE(rows, columns));
                trial_output(t, MZ_OUT(quantize, dbias), MEZZO_F32, SHAPE(columns));
                trial_normal(t, 0, 1);
                if (add)
                    trial_preset(t, MZ_OUT(quantize, dbias), 1);
                t->skip_mutations = rows > 16384; // a sum's bound is as large as a mutation then
                trial_finish(t);
            }
}

void cases_sum(void) {
    for (size_t c = 0; c < MZ_COUNT(axis_cases); c++)
        for (int d = 0; d < FLOATS; d++) {
            sum_case(MZ_OP_sum, axis_cases[c], floats[d], MEZZO_F32, false, false);
            sum_case(MZ_OP_sum, axis_cases[c], floats[d], MEZZO_F32, true, false);
        }
    sum_case(MZ_OP_sum, axis_cases[4], MEZZO_F32, MEZZO_F32, false, true);
}

void cases_mean(void) {
    for (size_t c = 0; c < MZ_COUNT(axis_cases); c++) {
        sum_case(MZ_OP_mean, axis_cases[c], MEZZO_F32, MEZZO_F32, false, false);
        if (axis_cases[c].axis >= 0 &&
            axis_cases[c].shape.dim[axis_cases[c].axis] < 50) { // else one term is below a rounding
            sum_case(MZ_OP_mean, axis_cases[c], MEZZO_BF16, MEZZO_BF16, false, false);
            sum_case(MZ_OP_mean, axis_cases[c], MEZZO_F16, MEZZO_F16, false, false);
        }
    }
    sum_case(MZ_OP_mean, axis_cases[4], MEZZO_F32, MEZZO_F32, false, true);
}

static void reduction(mz_op op, axis_case c, mezzo_dtype x, mezzo_dtype y, bool spoiled) {
    trial *t = trial_new(op);
    t->attrs.axis = c.axis;
    trial_input(t, 0, x, c.shape);
    trial_output(t, 0, op == MZ_OP_argmax ? MEZZO_I32 : y, without_axis(c));
    if (x == MEZZO_I32) {
        trial_integers(t, 0, -50, 50);
    } else {
        trial_normal(t, 0, op == MZ_OP_prod ? 0.3 : 1);
        for (int64_t i = 0; op == MZ_OP_prod && i < trial_count(&t->in[0]); i++)
            t->in[0].value[i] =
                1 + t->in[0].value[i] / sqrt((double)(trial_count(&t->in[0]) / trial_count(&t->out[0])));
        trial_store(&t->in[0]);
    }
    if (spoiled)
        trial_spoil(t, 0);
    const int64_t length = trial_count(&t->in[0]) / trial_count(&t->out[0]);
    t->skip_terms = op != MZ_OP_prod;
    t->skip_mutations = op == MZ_OP_argmax || (op == MZ_OP_prod && (length > 500 || y != MEZZO_F32));
    trial_finish(t);
}

static void each_reduction(mz_op op) {
    for (size_t c = 0; c < MZ_COUNT(axis_cases); c++)
        for (int d = 0; d < FLOATS; d++) {
            reduction(op, axis_cases[c], floats[d], floats[d], false);
            reduction(op, axis_cases[c], MEZZO_F32, floats[d], false);
        }
    reduction(op, axis_cases[4], MEZZO_F32, MEZZO_F32, true);
}

void cases_max(void) {
    each_reduction(MZ_OP_max);
}

void cases_min(void) {
    each_reduction(MZ_OP_min);
}

void cases_prod(void) {
    each_reduction(MZ_OP_prod);
}

void cases_argmax(void) {
    each_reduction(MZ_OP_argmax);
    for (size_t c = 0; c < MZ_COUNT(axis_cases); c++) // whole numbers have equals
        reduction(MZ_OP_argmax, axis_cases[c], MEZZO_I32, MEZZO_I32, false);
}

// dy, x and y of the same reduction, whose result the reference gives. zeros: so many in a column.
static void reduction_dx(mz_op op, axis_case c, mezzo_dtype dtype, int zeros) {
    trial *of = trial_new(op == MZ_OP_prod_dx ? MZ_OP_prod : MZ_OP_max), *t = trial_new(op);
    t->attrs.axis = of->attrs.axis = c.axis;
    trial_input(of, 0, dtype, c.shape);
    trial_output(of, 0, dtype, without_axis(c));
    trial_integers(of, 0, 1, 3);
    for (int64_t i = 0; op == MZ_OP_prod_dx && i < trial_count(&of->in[0]); i++)
        of->in[0].value[i] = i < zeros ? 0 : 1 + (of->in[0].value[i] - 2) * 0x1p-7;
    trial_store(&of->in[0]);
    trial_reference(of);
    trial_input(t, 0, dtype, without_axis(c));
    trial_input(t, 1, dtype, c.shape);
    trial_input(t, 2, dtype, without_axis(c));
    trial_output(t, 0, dtype, c.shape);
    trial_normal(t, 0, 1);
    memcpy(t->in[1].value, of->in[0].value, (size_t)trial_count(&t->in[1]) * sizeof(double));
    memcpy(t->in[2].value, of->out[0].value, (size_t)trial_count(&t->in[2]) * sizeof(double));
    trial_store(&t->in[1]);
    trial_store(&t->in[2]);
    t->skip_mutations = true; // a column's length hides one term, and y is rounded
    trial_finish(t);
    trial_free(of);
}

static void each_reduction_dx(mz_op op) {
    for (size_t c = 0; c < MZ_COUNT(axis_cases); c++)
        for (int d = 0; d < FLOATS; d++)
            for (int zeros = 0; zeros < (op == MZ_OP_prod_dx ? 3 : 1); zeros++)
                if (mz_shape_count(&axis_cases[c].shape) < 5000) // the reference multiplies a column for each element
                    reduction_dx(op, axis_cases[c], floats[d], zeros);
}

void cases_extremum_dx(void) {
    each_reduction_dx(MZ_OP_extremum_dx);
}

void cases_prod_dx(void) {
    each_reduction_dx(MZ_OP_prod_dx);
}

void cases_cumsum(void) {
    for (size_t c = 0; c < MZ_COUNT(axis_cases); c++)
        for (int form = 0; form < 4 && axis_cases[c].axis >= 0; form++)
            for (int d = 0; d < FLOATS; d++) {
                trial *t = trial_new(MZ_OP_cumsum);
                t->attrs = (mz_attrs){.axis = axis_cases[c].axis, .exclusive = form & 1, .reverse = form & 2};
                trial_input(t, 0, floats[d], axis_cases[c].shape);
                trial_output(t, 0, d == 0 ? MEZZO_F32 : floats[d], axis_cases[c].shape);
                trial_normal(t, 0, 1);
                t->skip_mutations = axis_cases[c].shape.dim[axis_cases[c].axis] < 2; // exclusive sums of one are 0
                trial_finish(t);
            }
}

static void gather_case(mz_op op, mz_shape x, int axis, mz_shape index, bool elementwise, bool absent,
                        mezzo_dtype dtype, bool beyond) {
    mz_shape y = index;
    if (!elementwise) {
        y.rank = 0;
        for (int i = 0; i < x.rank; i++)
            for (int k = 0; k < (i == axis ? index.rank : 1); k++)
                y.dim[y.rank++] = i == axis ? index.dim[k] : x.dim[i];
    }
    const int last = (int)x.dim[axis] - 1;
    trial *t = trial_new(op);
    t->attrs = (mz_attrs){.axis = axis, .elementwise = elementwise};
    if (!absent) {
        trial_input(t, 0, dtype, x);
        trial_normal(t, 0, 1);
    }
    trial_input(t, 1, MEZZO_I32, index);
    trial_integers(t, 1, beyond ? -last - 3 : -last - 1, beyond ? last + 2 : last);
    if (op == MZ_OP_scatter_add) {
        trial_input(t, 2, dtype, y);
        trial_normal(t, 2, 1);
    }
    trial_output(t, 0, dtype, op == MZ_OP_scatter_add ? x : y);
    t->finite_only = beyond && op == MZ_OP_gather;
    t->skip_mutations = beyond;
    t->skip_terms = op == MZ_OP_gather; // some that nothing asks for
    trial_finish(t);
}

static void each_gather(mz_op op) {
    for (int d = 0; d < FLOATS; d++)
        for (int beyond = 0; beyond < 2; beyond++)
            for (int absent = 0; absent < (op == MZ_OP_scatter_add ? 2 : 1); absent++) {
                gather_case(op, SHAPE(7), 0, SHAPE(5), false, absent, floats[d], beyond);
                gather_case(op, SHAPE(40, 33), 0, SHAPE(3, 7), false, absent, floats[d], beyond);
                gather_case(op, SHAPE(6, 33), 1, SHAPE(600), false, absent, floats[d], beyond);
                gather_case(op, SHAPE(2, 9, 130), 1, SHAPE(5, 1, 2), false, absent, floats[d], beyond);
                gather_case(op, SHAPE(6, 33), 1, SHAPE(6, 40), true, absent, floats[d], beyond);
                gather_case(op, SHAPE(3, 9, 70), 1, SHAPE(3, 4, 70), true, absent, floats[d], beyond);
            }
}

void cases_gather(void) {
    each_gather(MZ_OP_gather);
}

void cases_scatter_add(void) {
    each_gather(MZ_OP_scatter_add);
}

void cases_expand(void) {
    for (size_t c = 0; c < MZ_COUNT(axis_cases); c++)
        for (int d = 0; d < FLOATS; d++) {
            trial *t = trial_new(MZ_OP_expand);
            t->attrs.axis = axis_cases[c].axis;
            t->attrs.alpha = 1.0f / 3;
            trial_input(t, 0, floats[d], without_axis(axis_cases[c]));
            trial_output(t, 0, floats[d], axis_cases[c].shape);
            trial_normal(t, 0, 1);
            trial_finish(t);
        }
}
