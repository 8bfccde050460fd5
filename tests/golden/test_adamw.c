// 20 AdamW steps on the small GPT-2 against PyTorch: losses, gradient norms and final weights, with decay on matrices
// and embeddings only and the gradient clipped in about half of the steps.
//
// Bounds. AdamW divides a gradient by its running size r (stored per element, "rms.NAME"), so an error e of a gradient
// moves a weight by at most lr·min(2, 2·e/r) a step: numerator and denominator each carry e/r, and an update is about
// one at most. Where a gradient is zero in real arithmetic (the key third of c_attn.bias) this allows anything an
// update can do, as it must.
//   FP32: e = 3·704·u·(largest gradient of the tensor): test_gpt2.c's bound, doubled because gradients change on the
//   way. FP64 on ref: the weights are FP32 masters all the same. After t steps they carry t roundings, and the
//   gradients with them: e = steps·u·(largest gradient).
// The update itself is FP32, 16 roundings of a number of size lr, and each step rounds the weight once.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "device.h"
#include "golden_model.h"

typedef struct setting {
    double lr, beta1, beta2, eps, weight_decay, clip;
    size_t steps;
    int decay_min_rank;
} setting;

static setting read_setting(const json_t *root) {
    const json_t *a = json_object_get(root, "adamw");
    return (setting){.lr = golden_number(a, "lr"),
                     .beta1 = golden_number(a, "beta1"),
                     .beta2 = golden_number(a, "beta2"),
                     .eps = golden_number(a, "eps"),
                     .weight_decay = golden_number(a, "weight_decay"),
                     .clip = golden_number(a, "clip"),
                     .steps = (size_t)golden_number(a, "steps"),
                     .decay_min_rank = 2};
}

typedef struct step_result {
    double loss, norm;
} step_result;

static void train(golden_model *m, const setting *s, step_result *results) {
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    o.kind = MEZZO_ADAMW;
    o.schedule = (mezzo_schedule){.kind = MEZZO_LR_CONSTANT, .lr = s->lr};
    o.beta1 = s->beta1;
    o.beta2 = s->beta2;
    o.eps = s->eps;
    o.weight_decay = s->weight_decay;
    o.decay_min_rank = s->decay_min_rank;
    mezzo_optimizer *optimizer = NULL;
    must(mezzo_optimizer_create(m->params, &o, &optimizer));
    for (size_t step = 0; step < s->steps; ++step) {
        must(mezzo_optimizer_zero_grad(optimizer));
        golden_gpt2_batch(m, step);
        must(mezzo_program_run(m->program, NULL, 1, step));
        if (s->clip > 0)
            must(mezzo_optimizer_clip(optimizer, s->clip));
        must(mezzo_optimizer_step(optimizer));
        mezzo_step_info info;
        must(mezzo_optimizer_info(optimizer, &info));
        assert_false(info.found_inf);
        assert_int_equal(info.step, step + 1);
        results[step] = (step_result){.loss = golden_loss(m), .norm = info.grad_norm};
    }
    mezzo_optimizer_free(optimizer);
}

static double gradient_error(mezzo_precision precision, const setting *s, double largest) {
    double terms = precision == MEZZO_PRECISION_FP64 ? (double)s->steps : 2 * 3 * 704;
    return terms * UNIT_F32 * largest;
}

// The bound of every element of one parameter after all steps; free() it.
static double *weight_bounds(const golden_model *m, const char *name, mezzo_precision precision, const setting *s) {
    golden_values grad = golden_get(m->file, "grad.%s", name), rms = golden_get(m->file, "rms.%s", name);
    golden_values final = golden_get(m->file, "final.%s", name);
    double *bounds = calloc(final.count, sizeof *bounds);
    assert_non_null(bounds);
    double e = gradient_error(precision, s, golden_max(&grad)), steps = (double)s->steps;
    for (size_t i = 0; i < final.count; ++i)
        bounds[i] = steps * (s->lr * fmin(2, 2 * e / rms.at[i]) + s->lr * 16 * UNIT_F32 +
                             2 * UNIT_F32 * (fabs(final.at[i]) + steps * s->lr));
    golden_free(&grad);
    golden_free(&rms);
    golden_free(&final);
    return bounds;
}

// Elements of all final weights that are outside their bounds; the first is named in `where`. *drift is the 2-norm of
// the bounds.
static size_t count_outside(const golden_model *m, mezzo_precision precision, const setting *s, char *where,
                            size_t size, double *drift) {
    size_t outside = 0;
    double sum = 0;
    for (int p = 0; p < mezzo_params_count(m->params); ++p) {
        const char *name = mezzo_params_name(m->params, p);
        golden_values want = golden_get(m->file, "final.%s", name);
        double *bounds = weight_bounds(m, name, precision, s);
        float *got = golden_param(m, p, false);
        for (size_t i = 0; i < want.count; ++i) {
            sum += bounds[i] * bounds[i];
            if (fabs((double)got[i] - want.at[i]) <= bounds[i])
                continue;
            if (outside++ == 0)
                snprintf(where, size, "%s[%zu] is %.9g, want %.9g, allowed %.3g", name, i, (double)got[i], want.at[i],
                         bounds[i]);
        }
        free(got);
        free(bounds);
        golden_free(&want);
    }
    *drift = sqrt(sum);
    return outside;
}

static void twenty_steps(const char *device, mezzo_precision precision) {
    golden_model m;
    golden_gpt2_open(&m, device, precision);
    json_t *root = golden_json("gpt2_small.json");
    setting s = read_setting(root);
    step_result got[64];
    assert_true(s.steps <= MZ_COUNT(got));
    train(&m, &s, got);
    char where[256] = "";
    double drift;
    size_t outside = count_outside(&m, precision, &s, where, sizeof where, &drift);
    if (outside > 0)
        fail_msg("%s: %zu weights are off; %s", device, outside, where);
    // A loss moves by its gradient times what the weights may be off by then (Cauchy-Schwarz), beside its own rounding:
    // test_gpt2.c's path, on logits of about 10. The norm is smooth in the same way; its own rounding is 3·704·u.
    for (size_t t = 0; t < s.steps; ++t) {
        double loss = golden_real(json_array_get(json_object_get(root, "losses"), t));
        double norm = golden_real(json_array_get(json_object_get(root, "grad_norms"), t));
        double moved = norm * drift * (double)t / (double)s.steps;
        if (!(fabs(got[t].loss - loss) <= (704 + 61 + 48) * UNIT_F32 * 20 + moved))
            fail_msg("%s, step %zu: loss %.9g, want %.9g", device, t, got[t].loss, loss);
        if (!(fabs(got[t].norm - norm) <= 3 * 704 * UNIT_F32 * norm + moved))
            fail_msg("%s, step %zu: gradient norm %.9g, want %.9g", device, t, got[t].norm, norm);
    }
    json_decref(root);
    golden_model_close(&m);
}

TEST(on_ref_in_fp64) {
    twenty_steps("ref", MEZZO_PRECISION_FP64);
}
TEST(on_the_device_in_fp32) {
    twenty_steps(test_device(), MEZZO_PRECISION_FP32);
}

// Each of these is a mistake that an optimizer can make; each must put weights outside FP32's bounds.
TEST(a_wrong_update_would_be_noticed) {
    golden_model m;
    golden_gpt2_open(&m, test_device(), MEZZO_PRECISION_FP32);
    json_t *root = golden_json("gpt2_small.json");
    const setting right = read_setting(root);
    setting wrong[5] = {right, right, right, right, right};
    wrong[0].weight_decay *= 0.9;
    wrong[1].decay_min_rank = 0; // biases and norms decayed too
    wrong[2].clip = 0;
    wrong[3].beta2 = 0.94;
    wrong[4].lr *= 1.01;
    for (size_t w = 0; w < MZ_COUNT(wrong); ++w) {
        golden_model_restart(&m);
        step_result unused[64];
        char where[256];
        double drift;
        train(&m, &wrong[w], unused);
        if (count_outside(&m, MEZZO_PRECISION_FP32, &right, where, sizeof where, &drift) == 0)
            fail_msg("mistake %zu stays inside the bounds", w);
    }
    json_decref(root);
    golden_model_close(&m);
}
