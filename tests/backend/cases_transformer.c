// Cases of what newer Transformers are made of: RMS norms, rotary positions, gated linear units.
#include <math.h>

#include "cases.h"
#include "test.h"

#define ROW(...) {__VA_ARGS__},
static const int64_t row_shapes[][2] = {MZ_ROW_SHAPES(ROW)};

// --- rmsnorm -------------------------------------------------------------------------------------------------------
typedef struct norm_form {
    mezzo_dtype x, y, residual, sum;
    bool weight, has_residual, statistics;
    float offset;
} norm_form;

static trial *rmsnorm_trial(const int64_t s[2], norm_form f) {
    trial *t = trial_new(MZ_OP_rmsnorm);
    t->attrs.eps = 1e-5f;
    t->attrs.offset = f.offset;
    trial_input(t, 0, f.x, SHAPE(s[0], s[1]));
    trial_normal(t, 0, 1);
    if (f.weight) {
        trial_input(t, 1, MEZZO_F32, SHAPE(s[1]));
        trial_normal(t, 1, 1);
    }
    if (f.has_residual) {
        trial_input(t, 2, f.residual, SHAPE(s[0], s[1]));
        trial_normal(t, 2, 1);
        trial_output(t, 2, f.sum, SHAPE(s[0], s[1]));
    }
    trial_output(t, 0, f.y, SHAPE(s[0], s[1]));
    if (f.statistics)
        trial_output(t, 1, MEZZO_F32, SHAPE(s[0]));
    t->skip_mutations = s[1] < 4; // a row of one is normalised to its sign
    return t;
}

static const norm_form norm_forms[] = {
    {MEZZO_F32, MEZZO_F32, 0, 0, true, false, true, 0},
    {MEZZO_F32, MEZZO_F32, 0, 0, false, false, false, 0},
    {MEZZO_F32, MEZZO_BF16, 0, 0, true, false, true, 0},
    {MEZZO_F32, MEZZO_F16, 0, 0, true, false, true, 0},
    {MEZZO_BF16, MEZZO_BF16, 0, 0, true, false, true, 0},
    {MEZZO_F16, MEZZO_F32, 0, 0, true, false, true, 0},
    {MEZZO_F32, MEZZO_BF16, MEZZO_F32, MEZZO_F32, true, true, true, 0},
    {MEZZO_F32, MEZZO_F16, MEZZO_BF16, MEZZO_F32, true, true, true, 0},
    {MEZZO_BF16, MEZZO_BF16, MEZZO_BF16, MEZZO_BF16, true, true, true, 0},
    {MEZZO_F32, MEZZO_F32, MEZZO_F32, MEZZO_F32, true, true, false, 0},
    {MEZZO_BF16, MEZZO_BF16, MEZZO_BF16, MEZZO_BF16, true, true, true, 1},
    {MEZZO_F32, MEZZO_F32, 0, 0, true, false, true, 1},
};

void cases_rmsnorm(void) {
    for (size_t s = 0; s < MZ_COUNT(row_shapes); s++)
        for (size_t f = 0; f < MZ_COUNT(norm_forms); f++)
            trial_finish(rmsnorm_trial(row_shapes[s], norm_forms[f]));
    trial *t = rmsnorm_trial((const int64_t[]){5, 33}, norm_forms[0]);
    trial_spoil(t, 0);
    trial_finish(t);
}

static trial *rmsnorm_bwd_trial(const int64_t s[2], const mezzo_dtype dtypes[3], bool weight, bool accumulate,
                                bool dres) {
    trial *forward = rmsnorm_trial(s, (norm_form){.x = dtypes[1], .y = MEZZO_F32, .statistics = true});
    trial *t = trial_new(MZ_OP_rmsnorm_bwd);
    trial_reference(forward);
    t->attrs.eps = forward->attrs.eps;
    t->attrs.accumulate = accumulate;
    t->attrs.offset = weight && !accumulate ? 1 : 0;
    trial_input(t, 0, dtypes[0], SHAPE(s[0], s[1]));
    trial_normal(t, 0, 1);
    trial_input(t, 1, dtypes[1], SHAPE(s[0], s[1]));
    memcpy(t->in[1].value, forward->in[0].value, (size_t)trial_count(&t->in[1]) * sizeof(double));
    trial_store(&t->in[1]);
    trial_input(t, 3, MEZZO_F32, SHAPE(s[0]));
    memcpy(t->in[3].value, forward->out[1].value, (size_t)s[0] * sizeof(double));
    trial_store(&t->in[3]);
    trial_output(t, 0, dtypes[2], SHAPE(s[0], s[1]));
    if (weight) {
        trial_input(t, 2, MEZZO_F32, SHAPE(s[1]));
        trial_normal(t, 2, 1);
        trial_output(t, 1, MEZZO_F32, SHAPE(s[1]));
        if (accumulate)
            trial_preset(t, 1, 1);
    }
    if (dres) {
        trial_input(t, 4, dtypes[2], SHAPE(s[0], s[1]));
        trial_normal(t, 4, 1);
    }
    if (dres && dtypes[2] == MEZZO_F32 && dtypes[0] != MEZZO_F32)
        trial_output(t, 2, dtypes[0], SHAPE(s[0], s[1]));
    t->skip_mutations = s[1] < 4;
    trial_free(forward);
    return t;
}

void cases_rmsnorm_bwd(void) {
    static const mezzo_dtype dtypes[][3] = {
        {MEZZO_F32, MEZZO_F32, MEZZO_F32},    {MEZZO_BF16, MEZZO_F32, MEZZO_F32}, {MEZZO_F16, MEZZO_F32, MEZZO_F32},
        {MEZZO_BF16, MEZZO_BF16, MEZZO_BF16}, {MEZZO_F16, MEZZO_F16, MEZZO_F16},  {MEZZO_BF16, MEZZO_F32, MEZZO_BF16},
    };
    for (size_t s = 0; s < MZ_COUNT(row_shapes); s++)
        for (size_t d = 0; d < MZ_COUNT(dtypes); d++) {
            trial_finish(rmsnorm_bwd_trial(row_shapes[s], dtypes[d], true, true, true));
            trial_finish(rmsnorm_bwd_trial(row_shapes[s], dtypes[d], true, false, false));
            trial_finish(rmsnorm_bwd_trial(row_shapes[s], dtypes[d], false, false, true));
        }
    for (int slot = 0; slot < 2; slot++) { // dy, x
        trial *t = rmsnorm_bwd_trial((const int64_t[]){5, 33}, dtypes[0], true, true, true);
        trial_spoil(t, slot);
        trial_finish(t);
    }
}

// --- rotary positions ----------------------------------------------------------------------------------------------
// B, T, heads, turned heads, width of a head, turned dimensions
static const int64_t rope_shapes[][6] = {
    {1, 1, 1, 1, 2, 2},     {1, 5, 2, 1, 6, 4},   {2, 7, 3, 2, 8, 8},     {1, 17, 6, 4, 16, 8}, {3, 33, 4, 4, 32, 32},
    {2, 20, 12, 8, 64, 64}, {1, 9, 3, 2, 40, 20}, {2, 65, 6, 4, 128, 64}, {2, 9, 3, 2, 24, 16},
};

void cases_rope_table(void) {
    for (size_t s = 0; s < MZ_COUNT(rope_shapes); s++)
        for (int given = 0; given < 2; given++) {
            trial *t = trial_new(MZ_OP_rope_table);
            t->attrs.theta = s % 2 ? 1e6f : 10000;
            if (s % 3 == 1)
                t->attrs.rope = (mz_rope_scaling){.divisor = 8, .offset = -0.3F, .slope = 1300, .amplitude = 1};
            if (s % 3 == 2)
                t->attrs.rope = (mz_rope_scaling){4, 1.3F, -0.25F, 1.14F, true};
            trial_output(t, 0, MEZZO_F32, SHAPE(rope_shapes[s][1], rope_shapes[s][5]));
            if (given) {
                trial_input(t, 0, MEZZO_I32, SHAPE(rope_shapes[s][1]));
                trial_integers(t, 0, 0, 4000);
            }
            trial_finish(t);
        }
}

// `each`: the table has rows of its own for every row of the batch.
static trial *rope_trial(const int64_t s[6], mezzo_dtype x, mezzo_dtype y, bool interleaved, bool inverse, bool each) {
    const int64_t rows = s[1] * (each ? s[0] : 1);
    trial *table = trial_new(MZ_OP_rope_table), *t = trial_new(MZ_OP_rope);
    table->attrs.theta = 100;
    trial_output(table, 0, MEZZO_F32, SHAPE(rows, s[5]));
    trial_reference(table);
    t->attrs.heads = (int)s[2];
    t->attrs.rotated = (int)s[3];
    t->attrs.interleaved = interleaved;
    t->attrs.inverse = inverse;
    trial_input(t, 0, x, SHAPE(s[0], s[1], s[2] * s[4]));
    trial_normal(t, 0, 1);
    trial_input(t, 1, MEZZO_F32, SHAPE(rows, s[5]));
    memcpy(t->in[1].value, table->out[0].value, (size_t)trial_count(&t->in[1]) * sizeof(double));
    trial_store(&t->in[1]);
    trial_output(t, 0, y, SHAPE(s[0], s[1], s[2] * s[4]));
    trial_free(table);
    return t;
}

void cases_rope(void) {
    static const mezzo_dtype dtypes[][2] = {{MEZZO_F32, MEZZO_F32},
                                            {MEZZO_BF16, MEZZO_BF16},
                                            {MEZZO_F16, MEZZO_F16},
                                            {MEZZO_F32, MEZZO_BF16},
                                            {MEZZO_BF16, MEZZO_F32}};
    for (size_t s = 0; s < MZ_COUNT(rope_shapes); s++)
        for (size_t d = 0; d < MZ_COUNT(dtypes); d++)
            for (int variant = 0; variant < 4; variant++)
                trial_finish(rope_trial(rope_shapes[s], dtypes[d][0], dtypes[d][1], variant & 1, variant & 2,
                                        d == 1 || variant == 3));
    trial *t = rope_trial(rope_shapes[2], MEZZO_F32, MEZZO_F32, false, false, false);
    trial_spoil(t, 0);
    trial_finish(t);
}

// --- gated linear units --------------------------------------------------------------------------------------------
static trial *swiglu_trial(mz_op op, mz_act act, const int64_t s[2], mezzo_dtype x, mezzo_dtype y) {
    trial *t = trial_new(op);
    t->attrs.act = act;
    mz_shape narrow = SHAPE(s[0], s[1]), wide = SHAPE(s[0], 2 * s[1]);
    bool forward = op == MZ_OP_swiglu;
    trial_input(t, 0, x, forward ? wide : narrow);
    if (!forward)
        trial_input(t, 1, x, wide);
    trial_output(t, 0, y, forward ? narrow : wide);
    for (int i = 0; i < t->n_in; i++)
        trial_normal(t, i, 2);
    return t;
}

static void each_swiglu(mz_op op) {
    static const mz_act acts[] = {MZ_ACT_NONE, MZ_ACT_GELU, MZ_ACT_GELU_TANH};
    for (size_t a = 0; a < MZ_COUNT(acts); a++) {
        for (size_t s = 0; s < MZ_COUNT(row_shapes); s++)
            for (int x = 0; x < FLOATS; x++) {
                trial_finish(swiglu_trial(op, acts[a], row_shapes[s], floats[x], floats[x]));
                trial_finish(swiglu_trial(op, acts[a], row_shapes[s], floats[x], MEZZO_F32));
            }
        trial *t = swiglu_trial(op, acts[a], (const int64_t[]){5, 33}, MEZZO_F32, MEZZO_F32);
        trial_spoil(t, 0);
        trial_finish(t);
    }
}

void cases_swiglu(void) {
    each_swiglu(MZ_OP_swiglu);
}

void cases_swiglu_dx(void) {
    each_swiglu(MZ_OP_swiglu_dx);
}
