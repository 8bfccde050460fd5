// SGD on the toy model against torch.optim.SGD, 10 steps: plain, momentum with decay, Nesterov with decay.
//
// Bounds. A gradient is a sum over a path of 5 + 10 + 10 + 3 = 28 terms, walked three times (forward, and two products
// backward), so it is off by e = 3·28·u·G with G the largest gradient of the run; in FP64 on ref by the roundings of
// the FP32 masters and gradients, steps·u·G. Momentum repeats an error up to 1/(1-μ) times; ten steps of lr move a
// weight by at most lr·steps·e/(1-μ), and what that changes in later gradients is of the same order: a factor 2. Each
// step rounds weight and momentum once.
#include <math.h>
#include <stdlib.h>

#include "device.h"
#include "golden_model.h"

typedef struct outcome {
    double losses[16], largest_gradient;
} outcome;

static void train(golden_model *m, const json_t *run, bool nesterov, double decay_factor, size_t steps, outcome *out) {
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    o.kind = MEZZO_SGD;
    o.schedule = (mezzo_schedule){.kind = MEZZO_LR_CONSTANT, .lr = golden_number(run, "lr")};
    o.momentum = golden_number(run, "momentum");
    o.dampening = 0;
    o.nesterov = nesterov;
    o.weight_decay = golden_number(run, "weight_decay") * decay_factor;
    o.decay_min_rank = 0; // torch decays every parameter of a group
    mezzo_optimizer *optimizer = NULL;
    must(mezzo_optimizer_create(m->params, &o, &optimizer));
    *out = (outcome){0};
    for (size_t step = 0; step < steps; ++step) {
        must(mezzo_optimizer_zero_grad(optimizer));
        golden_toy_batch(m, step);
        must(mezzo_program_run(m->program, NULL, 1, step));
        for (int p = 0; p < mezzo_params_count(m->params); ++p) {
            float *grad = golden_param(m, p, true);
            for (size_t i = 0; i < golden_param_count(m, p); ++i)
                out->largest_gradient = fmax(out->largest_gradient, fabs((double)grad[i]));
            free(grad);
        }
        must(mezzo_optimizer_step(optimizer));
        out->losses[step] = golden_loss(m);
    }
    mezzo_optimizer_free(optimizer);
}

static double bound(const json_t *run, mezzo_precision precision, size_t steps, const outcome *got) {
    double gain = 1 / (1 - golden_number(run, "momentum")), n = (double)steps;
    double e = (precision == MEZZO_PRECISION_FP64 ? n : 3 * 28) * UNIT_F32 * got->largest_gradient;
    return 2 * golden_number(run, "lr") * n * gain * (e + 2 * UNIT_F32 * gain * got->largest_gradient) +
           n * UNIT_F32 * 2; // weights are below 2
}

static double worst_distance(const golden_model *m, const char *run) {
    double worst = 0;
    for (int p = 0; p < mezzo_params_count(m->params); ++p) {
        golden_values want = golden_get(m->file, "%s.%s", run, mezzo_params_name(m->params, p));
        float *got = golden_param(m, p, false);
        assert_true(golden_max(&want) < 2);
        worst = fmax(worst, golden_distance(got, &want));
        free(got);
        golden_free(&want);
    }
    return worst;
}

static void ten_steps(const char *device, mezzo_precision precision) {
    golden_model m;
    golden_toy_open(&m, device, precision);
    json_t *root = golden_json("toy_sgd.json"), *run;
    size_t r, steps = (size_t)golden_number(root, "steps");
    json_array_foreach(json_object_get(root, "runs"), r, run) {
        const char *name = json_string_value(json_object_get(run, "name"));
        outcome got;
        golden_model_restart(&m);
        train(&m, run, json_is_true(json_object_get(run, "nesterov")), 1, steps, &got);
        double allowed = bound(run, precision, steps, &got), distance = worst_distance(&m, name);
        if (!(distance <= allowed))
            fail_msg("%s, %s: weights are off by %.3g, allowed %.3g", device, name, distance, allowed);
        // A loss is off by its own rounding and by the gradient times what the 90 weights may be off by.
        for (size_t t = 0; t < steps; ++t) {
            double want = golden_real(json_array_get(json_object_get(run, "losses"), t));
            double loss_bound = 2 * 28 * UNIT_F32 * 4 + 90 * got.largest_gradient * allowed;
            if (!(fabs(got.losses[t] - want) <= loss_bound))
                fail_msg("%s, %s, step %zu: loss %.9g, want %.9g", device, name, t, got.losses[t], want);
        }
        // From the other side: the other kind of momentum, and 5% less decay.
        outcome wrong;
        if (golden_number(run, "momentum") > 0) {
            golden_model_restart(&m);
            train(&m, run, !json_is_true(json_object_get(run, "nesterov")), 1, steps, &wrong);
            assert_true(worst_distance(&m, name) > allowed);
            golden_model_restart(&m);
            train(&m, run, json_is_true(json_object_get(run, "nesterov")), 0.95, steps, &wrong);
            assert_true(worst_distance(&m, name) > allowed);
        }
    }
    assert_int_equal(r, 3);
    json_decref(root);
    golden_model_close(&m);
}

TEST(on_ref_in_fp64) {
    ten_steps("ref", MEZZO_PRECISION_FP64);
}
TEST(on_the_device_in_fp32) {
    ten_steps(test_device(), MEZZO_PRECISION_FP32);
}
