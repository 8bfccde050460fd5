// BF16 and FP16 on the small GPT-2: as far from float64 as torch's mixed precision, and no farther.
//
// Both round the same places to the same format (test_autocast.c), so the size of the error is a property of the
// format; its value is not. Measured is the root mean square of (mixed - float64) of the logits and of every gradient.
// Roundings of a tensor's elements are nearly independent where it has hundreds of elements, less so in a bias of 32
// that shares its upstream error: a tensor may be 2 times PyTorch's, all together 1.25 times. From below: BF16 has 8
// times FP16's rounding error and FP32 a thousandth of BF16's, so an error below a quarter of PyTorch's means that the
// format was not used where it should be.
#include <stdio.h>

#include "device.h"
#include "golden_model.h"

static double twice(size_t n) {
    (void)n;
    return 2;
}

static void as_good_as_torch(const char *device, mezzo_precision precision) {
    const char *format = mezzo_precision_name(precision);
    char where[64];
    snprintf(where, sizeof where, "%s %s", device, format);
    golden_model m;
    golden_gpt2_open(&m, device, precision);
    json_t *root = golden_json("gpt2_amp.json"), *small = golden_json("gpt2_small.json");
    golden_as_good_as_torch(&m, where, json_object_get(root, format), golden_number(small, "loss"), twice);
    json_decref(small);
    json_decref(root);
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
