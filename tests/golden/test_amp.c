// BF16 and FP16 on the small GPT-2: as far from float64 as torch's mixed precision, and no farther.
//
// Both round the same places to the same format (test_autocast.c), so the size of the error is a property of the
// format; its value is not. Measured is the root mean square of (mixed - float64) of the logits and of every gradient.
// Roundings of a tensor's elements are nearly independent where it has hundreds of elements, less so in a bias of 32
// that shares its upstream error: a tensor may be 2 times PyTorch's, all together 1.25 times. From below: BF16 has 8
// times FP16's rounding error and FP32 a thousandth of BF16's, so an error below a quarter of PyTorch's means that the
// format was not used where it should be.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "device.h"
#include "golden_model.h"

static double rms_distance(const float *got, const golden_values *want, double scale) {
    double sum = 0;
    for (size_t i = 0; i < want->count; ++i)
        sum += ((double)got[i] / scale - want->at[i]) * ((double)got[i] / scale - want->at[i]);
    return sqrt(sum / (double)want->count);
}

typedef struct totals { // of squared errors, each relative to its tensor's size
    double mezzo, torch;
    int tensors;
} totals;

static void compare(const char *where, const json_t *tensors, const char *name, double error, totals *sum) {
    const json_t *entry = json_object_get(tensors, name);
    assert_non_null(entry);
    double torch = golden_number(entry, "error"), size = golden_number(entry, "size");
    if (!(error <= 2 * torch && error >= torch / 4))
        fail_msg("%s, %s: off by %.3g rms, torch by %.3g (the tensor's size is %.3g)", where, name, error, torch, size);
    sum->mezzo += error * error / (size * size);
    sum->torch += torch * torch / (size * size);
    ++sum->tensors;
}

static void as_good_as_torch(const char *device, mezzo_precision precision) {
    const char *format = mezzo_precision_name(precision);
    char where[64];
    snprintf(where, sizeof where, "%s %s", device, format);
    golden_model m;
    golden_gpt2_open(&m, device, precision);
    json_t *root = golden_json("gpt2_amp.json"), *entry = json_object_get(root, format);
    const json_t *tensors = json_object_get(entry, "tensors");
    double scale = golden_number(entry, "scale");
    mezzo_scaler_options options = mezzo_scaler_defaults();
    options.init_scale = scale;
    mezzo_scaler *scaler = NULL;
    must(mezzo_scaler_create(m.device, &options, &scaler));
    golden_gpt2_batch(&m, 0);
    must(mezzo_program_run(m.program, scaler, 1, 0));

    totals sum = {0};
    static float logits[3 * 16 * 61];
    must(mezzo_program_read(m.program, "logits", logits, sizeof logits));
    golden_values want = golden_get(m.file, "logits");
    compare(where, tensors, "logits", rms_distance(logits, &want, 1), &sum);
    golden_free(&want);
    for (int p = 0; p < mezzo_params_count(m.params); ++p) {
        char name[128];
        snprintf(name, sizeof name, "grad.%s", mezzo_params_name(m.params, p));
        float *grad = golden_param(&m, p, true);
        want = golden_get(m.file, "%s", name);
        compare(where, tensors, name, rms_distance(grad, &want, scale), &sum);
        golden_free(&want);
        free(grad);
    }
    assert_int_equal(sum.tensors, json_object_size(tensors) - 1); // the loss is one number
    double ratio = sqrt(sum.mezzo / sum.torch);
    print_message("%s: %.3f of torch's error\n", where, ratio);
    if (!(ratio <= 1.25))
        fail_msg("%s: all tensors together are off by %.3f times what torch is", where, ratio);
    // The loss is a mean of 48 rows, each off by about what two logits are.
    json_t *small = golden_json("gpt2_small.json");
    assert_true(fabs(golden_loss(&m) - golden_number(small, "loss")) <=
                2 * golden_number(json_object_get(tensors, "logits"), "error"));
    json_decref(small);
    mezzo_scaler_free(scaler);
    json_decref(root);
    golden_model_close(&m);
}

TEST(bf16_on_ref) {
    as_good_as_torch("ref", MEZZO_PRECISION_BF16);
}
TEST(fp16_on_ref) {
    as_good_as_torch("ref", MEZZO_PRECISION_FP16);
}
TEST(bf16_on_the_device) {
    as_good_as_torch(test_device(), MEZZO_PRECISION_BF16);
}
TEST(fp16_on_the_device) {
    as_good_as_torch(test_device(), MEZZO_PRECISION_FP16);
}
