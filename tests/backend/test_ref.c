// The reference against numbers worked out by hand: everything else is measured from it.
#include <math.h>

#include "backend/update.h"
#include "test.h"
#include "trial.h"

static const double fp64 = 0x1p-50; // a few FP64 operations on numbers of about 1

static void set(trial *t, int slot, const double *values) {
    memcpy(t->in[slot].value, values, (size_t)trial_count(&t->in[slot]) * sizeof *values);
    trial_store(&t->in[slot]);
}

static void expect(trial *t, int slot, const double *values, double error) {
    trial_reference(t);
    for (int64_t i = 0; i < trial_count(&t->out[slot]); i++)
        if (!(fabs(t->out[slot].value[i] - values[i]) <= error))
            fail_msg("%s: output %d[%lld] is %.17g, should be %.17g", mz_op_table[t->op].name, slot, (long long)i,
                     t->out[slot].value[i], values[i]);
}

// x [2, 3] · wᵀ [2, 3] + bias, through ReLU, plus a residual.
TEST(linear_with_its_epilogue) {
    trial *t = trial_new(MZ_OP_linear);
    t->attrs.act = MZ_ACT_RELU;
    t->attrs.via = MEZZO_F32;
    trial_input(t, 0, MEZZO_F32, SHAPE(2, 3));
    trial_input(t, 1, MEZZO_F32, SHAPE(2, 3));
    trial_input(t, 2, MEZZO_F32, SHAPE(2));
    trial_input(t, 3, MEZZO_F32, SHAPE(2, 2));
    trial_output(t, 0, MEZZO_F32, SHAPE(2, 2));
    trial_output(t, 1, MEZZO_F32, SHAPE(2, 2));
    set(t, 0, (double[]){1, 2, 3, -1, 0, 4});
    set(t, 1, (double[]){1, 0, -1, 2, 1, 0.5});
    set(t, 2, (double[]){0.25, -6});
    set(t, 3, (double[]){10, 20, 30, 40});
    expect(t, 1, (double[]){-1.75, -0.5, -4.75, -6}, 0);
    expect(t, 0, (double[]){10, 20, 30, 40}, 0);
    t->in[2].value[1] = 1; // now the second column is positive
    trial_store(&t->in[2]);
    expect(t, 0, (double[]){10, 26.5, 30, 41}, 0);
    trial_free(t);
}

// It is the operands that are rounded, not the product: 2⁻¹² is lost in 1 + 2⁻¹² by all but FP32, and 1 + 2⁻⁸ is a tie
// between two BF16 values, which goes to the even one, 1.
TEST(operands_are_rounded_to_the_compute_dtype) {
    static const struct {
        mezzo_dtype compute;
        double a, b, product;
    } rows[] = {{MEZZO_F32, 3 * (1 + 0x1p-8), 1 + 0x1p-12, 3 * (1 + 0x1p-8) * (1 + 0x1p-12)},
                {MEZZO_TF32, 3 * (1 + 0x1p-8), 1 + 0x1p-12, 3 * (1 + 0x1p-8)},
                {MEZZO_F16, 3 * (1 + 0x1p-8), 1 + 0x1p-12, 3 * (1 + 0x1p-8)},
                {MEZZO_BF16, 3, 1 + 0x1p-8, 3}};
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        trial *t = trial_new(MZ_OP_matmul);
        t->numerics.compute = rows[i].compute;
        trial_input(t, 0, MEZZO_F32, SHAPE(1, 1));
        trial_input(t, 1, MEZZO_F32, SHAPE(1, 1));
        trial_output(t, 0, MEZZO_F32, SHAPE(1, 1));
        set(t, 0, &rows[i].a);
        set(t, 1, &rows[i].b);
        expect(t, 0, &rows[i].product, 0);
        trial_free(t);
    }
}

// Two positions, one head of width 1: the first sees itself only, the second weighs both by exp(q·k).
TEST(attention_is_causal) {
    trial *t = trial_new(MZ_OP_attention);
    t->attrs.causal = true;
    t->attrs.heads = 1;
    trial_input(t, 0, MEZZO_F32, SHAPE(1, 2, 3));
    trial_output(t, 0, MEZZO_F32, SHAPE(1, 2, 1));
    trial_output(t, 1, MEZZO_F32, SHAPE(1, 1, 2));
    set(t, 0, (double[]){5, 0.5, 7, 2, 1, -3}); // q k v, position by position
    double a = exp(2 * 0.5), b = exp(2 * 1.0);
    expect(t, 0, (double[]){7, (a * 7 + b * -3) / (a + b)}, 8 * fp64);
    expect(t, 1, (double[]){2.5, log(a + b)}, 8 * fp64);
    trial_free(t);
}

// The same numbers where every query sees both keys, and one query over two keys.
TEST(attention_sees_every_key) {
    trial *t = trial_new(MZ_OP_attention);
    t->attrs.heads = 1;
    trial_input(t, 0, MEZZO_F32, SHAPE(1, 2, 3));
    trial_output(t, 0, MEZZO_F32, SHAPE(1, 2, 1));
    set(t, 0, (double[]){5, 0.5, 7, 2, 1, -3});
    double a = exp(5 * 0.5), b = exp(5 * 1.0), c = exp(2 * 0.5), d = exp(2 * 1.0);
    expect(t, 0, (double[]){(a * 7 + b * -3) / (a + b), (c * 7 + d * -3) / (c + d)}, 8 * fp64);
    trial_free(t);
    t = trial_new(MZ_OP_attention);
    t->attrs.heads = 1;
    for (int i = 0; i < 3; i++)
        trial_input(t, i, MEZZO_F32, SHAPE(1, i == 0 ? 1 : 2, 1));
    trial_output(t, 0, MEZZO_F32, SHAPE(1, 1, 1));
    set(t, 0, (double[]){5});
    set(t, 1, (double[]){0.5, 1});
    set(t, 2, (double[]){7, -3});
    expect(t, 0, (double[]){(a * 7 + b * -3) / (a + b)}, 8 * fp64);
    t->attrs.causal = true; // the first query sees the first key
    expect(t, 0, (double[]){7}, 8 * fp64);
    trial_free(t);
}

TEST(cross_entropy_of_equal_logits_is_log_of_their_number) {
    trial *t = trial_new(MZ_OP_cross_entropy);
    t->attrs.ignore_index = -1;
    trial_input(t, 0, MEZZO_F32, SHAPE(3, 4));
    trial_input(t, 1, MEZZO_I32, SHAPE(3));
    trial_output(t, 0, MEZZO_F32, SHAPE(1));
    set(t, 0, (double[]){9, 9, 9, 9, 0, 0, 0, 0, 1, 2, 3, 4});
    set(t, 1, (double[]){0, 3, -1});
    expect(t, 0, (double[]){log(4)}, fp64); // the third row is ignored
    set(t, 1, (double[]){-1, -1, 3});
    expect(t, 0, (double[]){log(exp(-3) + exp(-2) + exp(-1) + 1)}, fp64);
    set(t, 1, (double[]){-1, -1, -1});
    expect(t, 0, (double[]){0}, 0);
    set(t, 1, (double[]){0, 4, 0});
    trial_reference(t);
    assert_true(isnan(t->out[0].value[0]));
    trial_free(t);
}

// Of n independent draws np ± 5·√(np(1-p)) are dropped, the rest are scaled so that the mean stays; the step and the
// stream matter.
TEST(dropout_keeps_the_mean_and_follows_its_key) {
    enum { N = 40000 };
    trial *t = trial_new(MZ_OP_dropout);
    t->attrs = (mz_attrs){.p = 0.25f, .rng = 9};
    trial_input(t, 0, MEZZO_F32, SHAPE(N));
    trial_output(t, 0, MEZZO_F32, SHAPE(N));
    for (int i = 0; i < N; i++)
        t->in[0].value[i] = 3;
    trial_store(&t->in[0]);
    trial_reference(t);
    int dropped = 0, same_step = 0, same_stream = 0;
    double first[N];
    memcpy(first, t->out[0].value, sizeof first);
    for (int i = 0; i < N; i++) {
        dropped += first[i] == 0;
        assert_true(first[i] == 0 || first[i] == 3 * (double)(float)(1 / 0.75));
    }
    assert_true(fabs(dropped - 0.25 * N) < 5 * sqrt(N * 0.25 * 0.75));
    t->rng.step++;
    trial_reference(t);
    for (int i = 0; i < N; i++)
        same_step += t->out[0].value[i] == first[i];
    t->rng.step--;
    t->attrs.rng++;
    trial_reference(t);
    for (int i = 0; i < N; i++)
        same_stream += t->out[0].value[i] == first[i];
    double agree = 0.25 * 0.25 + 0.75 * 0.75; // of two independent draws
    assert_true(fabs(same_step - agree * N) < 5 * sqrt(N * agree * (1 - agree)));
    assert_true(fabs(same_stream - agree * N) < 5 * sqrt(N * agree * (1 - agree)));
    trial_free(t);
}

// AdamW's first step moves every parameter by lr·g/(|g| + eps), whatever the gradient's size, after the decay p·(1 -
// lr·wd).
TEST(the_first_adamw_step_has_the_size_of_the_learning_rate) {
    static const mz_segment segment = {.count = 3, .low_copy_offset = MZ_NO_LOW_COPY, .decay = 1};
    static const mz_opt_state step = {.step = 1, .last_clip = 1, .lr = 0.125, .bias = {{0.1, 0.001}}};
    trial *t = trial_new(MZ_OP_adamw);
    t->update.rule = (mz_update_rule){.lr_factor = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-12, .weight_decay = 0.5};
    trial_input(t, 0, MEZZO_F32, SHAPE(3));
    trial_input(t, 1, MEZZO_U8, SHAPE(sizeof segment));
    trial_input(t, 2, MEZZO_U8, SHAPE(sizeof step));
    trial_bytes(t, 1, &segment, false);
    trial_bytes(t, 2, &step, false);
    set(t, 0, (double[]){1e-3, -4, 250});
    for (int i = 0; i < 3; i++) {
        trial_output(t, i, MEZZO_F32, SHAPE(3));
        for (int k = 0; k < 3; k++)
            t->out[i].value[k] = i == 0 ? 2 : 0;
        trial_store(&t->out[i]);
    }
    // 2·(1 - 0.0625) = 1.875. FP32: some ten roundings of numbers up to 2.
    expect(t, 0, (double[]){1.75, 2, 1.75}, 16 * 0x1p-24);
    trial_free(t);
}

// Growth interval 2: up after two good steps, half after a bad one, and the count starts again.
TEST(the_scale_grows_and_backs_off) {
    const struct {
        int found;
        float scale;
        int32_t tracker;
    } steps[] = {{0, 1024, 1}, {0, 2048, 0}, {0, 2048, 1}, {1, 1024, 0}, {1, 512, 0}, {0, 512, 1}, {0, 1024, 0}};
    mz_scaler_block block = {.scale = 1024};
    int64_t skipped = 0;
    for (size_t i = 0; i < MZ_COUNT(steps); i++) {
        mz_opt_state optimizer = {.found_inf = steps[i].found, .clip = 0.5};
        trial *t = trial_new(MZ_OP_scaler_update);
        t->update = (mz_update_attrs){.enabled = true, .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 2};
        trial_input(t, 0, MEZZO_U8, SHAPE(sizeof block));
        trial_bytes(t, 0, &block, false);
        trial_output(t, 0, MEZZO_U8, SHAPE(sizeof optimizer));
        trial_bytes(t, 0, &optimizer, true);
        trial_reference(t);
        memcpy(&block, t->in[0].after, sizeof block);
        skipped += steps[i].found;
        assert_true(block.scale == steps[i].scale);
        assert_int_equal(block.tracker, steps[i].tracker);
        assert_int_equal(block.skipped, skipped);
        trial_free(t);
    }
}
