// GPT-2 at a small shape against PyTorch: logits, loss and the gradient of every parameter.
//
// Bounds. To first order the relative error of a result is the sum over the longest path of (terms of a sum)·u; norms
// bring every branch back to size one, so that errors add and do not grow. Forward that path is, per layer, ln_1 (32
// terms), c_attn (32), scores and weights (16 + 16), c_proj (32), ln_2 (32), c_fc (32), mlp.c_proj (128); then ln_f
// (32) and the head (32): 2·320 + 64 = 704. Backward walks it again with two products for each of forward's, so a
// gradient has at most 3·704. Both are relative to the largest value of the tensor. PyTorch's own FP32 run
// (gpt2_small.json) is 30 to 300 times closer than that.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "device.h"
#include "golden_model.h"

enum { FORWARD_TERMS = 704, GRADIENT_TERMS = 3 * FORWARD_TERMS, LOGITS = 3 * 16 * 61 };

// In FP64 on ref what remains is storage: logits, gradients and stored values are FP32 numbers (one rounding each), and
// the gradient of the tied table is a sum of two contributions in FP32.
static double unit(mezzo_precision precision) {
    return precision == MEZZO_PRECISION_FP64 ? UNIT_F64 : UNIT_F32;
}
static double gradient_bound(mezzo_precision precision, double size) {
    return GRADIENT_TERMS * unit(precision) * size + (precision == MEZZO_PRECISION_FP64 ? 2 * UNIT_F32 * size : 0);
}

static void forward_and_backward(const char *device, const mezzo_program_options *options) {
    mezzo_precision precision = options->precision;
    golden_model m;
    golden_gpt2_open_with(&m, device, options);
    json_t *root = golden_json("gpt2_small.json");
    golden_gpt2_batch(&m, 0);
    must(mezzo_program_run(m.program, NULL, 1, 0));

    static float logits[LOGITS];
    must(mezzo_program_read(m.program, "logits", logits, sizeof logits));
    golden_values want = golden_get(m.file, "logits");
    double size = golden_max(&want), absolute = FORWARD_TERMS * unit(precision) * size;
    golden_close("logits", logits, &want, absolute, 2 * UNIT_F32);
    golden_would_notice("logits", &want, 0.001, absolute);
    golden_free(&want);

    // The loss is a mean of 48 differences of a log-sum-exp (61 terms) and a logit, each no larger than 2·size.
    double loss = golden_loss(&m), exact = golden_number(root, "loss");
    double allowed = (FORWARD_TERMS + 61 + 48) * unit(precision) * 2 * size + UNIT_F32 * exact;
    if (!(fabs(loss - exact) <= allowed))
        fail_msg("loss %.9g, want %.9g, allowed %.3g", loss, exact, allowed);

    for (int i = 0; i < mezzo_params_count(m.params); ++i) {
        const char *name = mezzo_params_name(m.params, i);
        float *grad = golden_param(&m, i, true);
        want = golden_get(m.file, "grad.%s", name);
        assert_int_equal(want.count, golden_param_count(&m, i));
        absolute = gradient_bound(precision, golden_max(&want));
        golden_close(name, grad, &want, absolute, 2 * UNIT_F32);
        golden_would_notice(name, &want, 0.001, absolute);
        free(grad);
        golden_free(&want);
    }
    json_decref(root);
    golden_model_close(&m);
}

TEST(on_ref_in_fp64) {
    forward_and_backward("ref", &(mezzo_program_options){.precision = MEZZO_PRECISION_FP64});
}
TEST(on_ref_in_fp32) {
    forward_and_backward("ref", &(mezzo_program_options){.precision = MEZZO_PRECISION_FP32});
}
TEST(on_the_device_in_fp32) {
    forward_and_backward(test_device(), &(mezzo_program_options){.precision = MEZZO_PRECISION_FP32});
}

TEST(on_the_device_with_recompute_and_without_fusion) {
    forward_and_backward(test_device(), &(mezzo_program_options){.precision = MEZZO_PRECISION_FP32, .recompute = true});
    forward_and_backward(test_device(), &(mezzo_program_options){.precision = MEZZO_PRECISION_FP32, .no_fuse = true});
}

// The bounds from the other side: one branch 1% too strong, and one bias left out, put nearly every tensor outside.
TEST(a_wrong_scale_or_a_dropped_term_would_be_noticed) {
    static const golden_wrong wrong[] = {
        {"h.0.mlp.c_proj.weight", 1.01F}, {"h.0.ln_2.bias", 0}, {"h.0.attn.c_proj.bias", 0}};
    golden_model m;
    golden_gpt2_open(&m, test_device(), MEZZO_PRECISION_FP32);
    golden_would_fail(&m, wrong, MZ_COUNT(wrong), GRADIENT_TERMS * UNIT_F32);
}
