// cs336 and glm4_moe at small shapes against PyTorch and transformers: logits, loss and the gradient of every
// parameter.
//
// FP32 and FP64. The bound is test_gpt2.c's: the terms of all sums on the longest path, times u, of the tensor's
// largest value. A layer of glm4_moe_full has, at most, a norm (32), q, k and v (32), a head's norm (12), scores and
// weights (12 + 12), o_proj (48), a norm (32), the router and its weights (32 + 20), two products (32 + 32) and the sum
// over experts (4): 300, three of them, and the last norm and the head (64): 964. cs336's two layers are shorter. In
// FP64 storage remains (2u), and the table of the rotary positions, whose entries are FP32 numbers that PyTorch's
// cosine may have rounded to the neighbour: u of q and k in every layer, 16u in all.
//
// BF16 and FP16, as test_amp.c: the root mean square of the error, against float64, is PyTorch's; a tensor's may be 2
// times that, all together 1.25 times. Of n independent errors on each side the logarithm of the ratio has a deviation
// of 1/√n (Fisher's z): a head's norm has 12 weights, and of the ratios of many such some pass 2 (on ref they scatter
// from 0.66 to 1.45, by 0.27 in the logarithm: 1/√12 is 0.29). So a small tensor's may be exp(4.75/√n) times, which one
// of a million is. The router is FP32 on both sides, and no token's choice is near (transformers_small.py).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "golden_model.h"

enum { FORWARD_TERMS = 964, GRADIENT_TERMS = 3 * FORWARD_TERMS, LOGITS = 2 * 12 * 61 };
static const char *const names[] = {"cs336_small", "glm4_moe_plain", "glm4_moe_full"};

static double bound(mezzo_precision precision, double terms, double size) {
    return precision == MEZZO_PRECISION_FP64 ? (terms * UNIT_F64 + 18 * UNIT_F32) * size : terms * UNIT_F32 * size;
}

static json_t *facts(const char *name) {
    char file[64];
    snprintf(file, sizeof file, "%s.json", name);
    return golden_json(file);
}

// A device that this machine has not is passed over.
static bool there_is(const char *device) {
    mezzo_device *d = NULL;
    bool found = mezzo_device_open(device, 1, &d) == MEZZO_OK;
    mezzo_device_close(d);
    return found;
}

static void check_gradient(golden_model *m, int index, mezzo_precision precision) {
    const char *name = mezzo_params_name(m->params, index);
    float *grad = golden_param(m, index, true);
    golden_values want = golden_get(m->file, "grad.%s", name);
    assert_int_equal(want.count, golden_param_count(m, index));
    double absolute = bound(precision, GRADIENT_TERMS, golden_max(&want));
    if (golden_without_gradient(name)) {
        for (size_t i = 0; i < want.count; ++i)
            assert_true(grad[i] == 0);
    } else {
        golden_close(name, grad, &want, absolute, 2 * UNIT_F32);
        golden_would_notice(name, &want, 0.001, absolute);
    }
    free(grad);
    golden_free(&want);
}

static void forward_and_backward(const char *device, const char *name, const mezzo_program_options *options) {
    mezzo_precision precision = options->precision;
    golden_model m;
    golden_transformer_open(&m, device, options, name);
    json_t *root = facts(name);
    golden_gpt2_batch(&m, 0);
    must(mezzo_program_run(m.program, NULL, 1, 0));

    static float logits[LOGITS];
    must(mezzo_program_read(m.program, "logits", logits, sizeof logits));
    golden_values want = golden_get(m.file, "logits");
    double size = golden_max(&want), absolute = bound(precision, FORWARD_TERMS, size);
    golden_close("logits", logits, &want, absolute, 2 * UNIT_F32);
    golden_would_notice("logits", &want, 0.001, absolute);
    golden_free(&want);

    // A mean of 23 differences of a log-sum-exp (61 terms) and a logit, each no larger than 2·size.
    double loss = golden_loss(&m), exact = golden_number(root, "loss");
    double allowed = bound(precision, FORWARD_TERMS + 61 + 23, 2 * size) + UNIT_F32 * exact;
    if (!(fabs(loss - exact) <= allowed))
        fail_msg("%s: loss %.9g, want %.9g, allowed %.3g", name, loss, exact, allowed);
    for (int i = 0; i < mezzo_params_count(m.params); ++i)
        check_gradient(&m, i, precision);
    json_decref(root);
    golden_model_close(&m);
}

static void each(const char *device, const mezzo_program_options *options) {
    for (size_t i = 0; i < MZ_COUNT(names); ++i)
        forward_and_backward(device, names[i], options);
}

TEST(on_ref) {
    each("ref", &(mezzo_program_options){.precision = MEZZO_PRECISION_FP64});
    each("ref", &(mezzo_program_options){.precision = MEZZO_PRECISION_FP32});
}
TEST(on_cpu) {
    each("cpu", &(mezzo_program_options){.precision = MEZZO_PRECISION_FP32});
}
TEST(on_cpu_with_recompute_and_without_fusion) {
    each("cpu", &(mezzo_program_options){.precision = MEZZO_PRECISION_FP32, .recompute = true});
    each("cpu", &(mezzo_program_options){.precision = MEZZO_PRECISION_FP32, .no_fuse = true});
}
TEST(on_cuda) {
    if (!there_is("cuda"))
        skip();
    each("cuda", &(mezzo_program_options){.precision = MEZZO_PRECISION_FP32});
}

// --- mixed precision -----------------------------------------------------------------------------------------------
static double most_of_torch(size_t n) {
    return fmax(2, exp(4.75 / sqrt((double)n)));
}

static void as_good_as_torch(const char *device, const char *model, mezzo_precision precision) {
    char where[96];
    snprintf(where, sizeof where, "%s on %s in %s", model, device, mezzo_precision_name(precision));
    golden_model m;
    golden_transformer_open(&m, device, &(mezzo_program_options){.precision = precision}, model);
    json_t *root = facts(model);
    golden_as_good_as_torch(&m, where, json_object_get(root, mezzo_precision_name(precision)),
                            golden_number(root, "loss"), most_of_torch);
    json_decref(root);
}

static void each_low(const char *device) {
    for (size_t i = 0; i < MZ_COUNT(names); ++i) {
        as_good_as_torch(device, names[i], MEZZO_PRECISION_BF16);
        as_good_as_torch(device, names[i], MEZZO_PRECISION_FP16);
    }
}

TEST(low_on_ref) {
    each_low("ref");
}
TEST(low_on_cpu) {
    each_low("cpu");
}
TEST(low_on_cuda) {
    if (!there_is("cuda"))
        skip();
    each_low("cuda");
}

// --- from the other side -------------------------------------------------------------------------------------------
// A gate 1% too strong, a shared expert or a correction bias left out put most gradients outside their bounds.
TEST(a_wrong_scale_or_a_dropped_term_would_be_noticed) {
    static const golden_wrong wrong[] = {{"layers.1.mlp.gate.weight", 1.01F},
                                         {"layers.1.mlp.shared_experts.down_proj.weight", 0},
                                         {"layers.1.mlp.gate.e_score_correction_bias", 0},
                                         {"layers.0.self_attn.qkv_proj.bias", 0},
                                         {"layers.0.self_attn.k_norm.weight", 1.01F}};
    golden_model m;
    golden_transformer_open(&m, "cpu", &(mezzo_program_options){.precision = MEZZO_PRECISION_FP32}, "glm4_moe_full");
    golden_would_fail(&m, wrong, MZ_COUNT(wrong), GRADIENT_TERMS * UNIT_F32);
}
