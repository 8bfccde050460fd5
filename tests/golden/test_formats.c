// FP8, FP4, E8M0 and blocks of them against ml_dtypes (tests/golden/make/formats.py), bit for bit.
// Seen to fail with: ties rounded up; 448 as the first to overflow; an infinity that stays one; MX's scale rounded
// instead of cut down; NVFP4's block scale without the tensor's; the random number of the element beside; a step of the
// fast transform left out.
#include <math.h>
#include <stdlib.h>

#include "base/blocks.h"
#include "golden.h"

static void same_code(const char *what, double x, unsigned got, unsigned want) {
    if (got != want)
        fail_msg("%s: %a gave code %#x, not %#x", what, x, got, want);
}

TEST(every_code_has_its_value) {
    static const struct {
        const char *name;
        size_t codes;
        float (*to_f32)(uint8_t);
    } rows[] = {{"e4m3", 256, mezzo_e4m3_to_f32},
                {"e5m2", 256, mezzo_e5m2_to_f32},
                {"e2m1", 16, mezzo_e2m1_to_f32},
                {"e8m0", 256, mezzo_e8m0_to_f32}};
    mz_safetensors *file = golden_tensors("formats.safetensors");
    for (size_t r = 0; r < MZ_COUNT(rows); r++) {
        golden_values want = golden_get(file, "%s.values", rows[r].name);
        assert_int_equal(want.count, rows[r].codes);
        for (size_t i = 0; i < want.count; i++) {
            double got = (double)rows[r].to_f32((uint8_t)i);
            if (isnan(got) ? !isnan(want.at[i]) : memcmp(&got, &want.at[i], sizeof got) != 0)
                fail_msg("%s: code %#zx is %a, not %a", rows[r].name, i, got, want.at[i]);
        }
        golden_free(&want);
    }
    mz_safetensors_close(file);
}

TEST(every_number_rounds_alike) {
    static const struct {
        const char *name, *codes;
        uint8_t (*from_f32)(float);
    } rows[] = {{"e4m3", "codes", mezzo_f32_to_e4m3}, {"e4m3", "saturated", mezzo_f32_to_e4m3_saturating},
                {"e5m2", "codes", mezzo_f32_to_e5m2}, {"e5m2", "saturated", mezzo_f32_to_e5m2_saturating},
                {"e2m1", "codes", mezzo_f32_to_e2m1}, {"e8m0", "codes", mezzo_f32_to_e8m0}};
    mz_safetensors *file = golden_tensors("formats.safetensors");
    for (size_t r = 0; r < MZ_COUNT(rows); r++) {
        golden_values x = golden_get(file, "%s.x", rows[r].name);
        golden_values want = golden_get(file, "%s.%s", rows[r].name, rows[r].codes);
        assert_true(x.count == want.count && x.count > 40);
        for (size_t i = 0; i < x.count; i++) {
            unsigned code = rows[r].from_f32((float)x.at[i]), expected = (unsigned)want.at[i];
            if (isnan(x.at[i])) // any code of NaN, of its sign
                code |= rows[r].from_f32 == mezzo_f32_to_e5m2 ? 3 : 0, expected |= code & 3;
            same_code(rows[r].name, x.at[i], code, expected);
        }
        golden_free(&x);
        golden_free(&want);
    }
    mz_safetensors_close(file);
}

static void check_blocks(const mz_safetensors *file, mezzo_blocks b, const char *numbers, float tensor) {
    const char *name = mezzo_blocks_name(b);
    golden_values x = golden_get(file, "%s", numbers), codes = golden_get(file, "%s.codes", name);
    golden_values scales = golden_get(file, "%s.scales", name);
    float *from = golden_floats(&x);
    int size = mz_blocks_table[b].size;
    assert_true(x.count == codes.count && x.count == scales.count * (size_t)size);
    for (size_t k = 0; k < scales.count; k++) {
        uint8_t got[MZ_BLOCK_MOST], scale;
        float *block = from + k * (size_t)size;
        mz_blocks_encode(b, block, size, tensor, got, &scale);
        same_code(name, (double)k, scale, (unsigned)scales.at[k]);
        for (int i = 0; i < size; i++)
            same_code(name, (double)block[i], got[i], (unsigned)codes.at[k * (size_t)size + (size_t)i]);
        mz_blocks_round(b, block, size, tensor);
        for (int i = 0; i < size; i++)
            assert_true(block[i] == mz_blocks_element(b, got[i]) * (mz_blocks_scale_value(b, scale) * tensor));
    }
    free(from);
    golden_free(&x);
    golden_free(&codes);
    golden_free(&scales);
}

TEST(blocks_are_the_definitions) {
    mz_safetensors *file = golden_tensors("formats.safetensors");
    golden_values near = golden_get(file, "nvfp4.x"), tensor = golden_get(file, "nvfp4.tensor");
    check_blocks(file, MEZZO_BLOCKS_MXFP8, "mx.x", 1);
    check_blocks(file, MEZZO_BLOCKS_MXFP4, "mx.x", 1);
    float scale = mz_blocks_tensor_scale(MEZZO_BLOCKS_NVFP4, (float)golden_max(&near));
    assert_true(scale == (float)tensor.at[0]);
    check_blocks(file, MEZZO_BLOCKS_NVFP4, "nvfp4.x", scale);
    golden_free(&near);
    golden_free(&tensor);
    mz_safetensors_close(file);
}

// Each number up or down by a random number that it shares with nobody; scales are those of rounding to nearest.
TEST(rounding_at_random_is_the_definition) {
    mz_safetensors *file = golden_tensors("formats.safetensors");
    golden_values tensor = golden_get(file, "nvfp4.tensor");
    for (mezzo_blocks b = MEZZO_BLOCKS_MXFP8; b < MEZZO_BLOCKS_COUNT; b++) {
        const mz_blocks_how how = {
            .format = b, .random = true, .key = {.seed = 12345678901234567, .tensor = 0x20000007, .step = 99}};
        const bool near = b == MEZZO_BLOCKS_NVFP4;
        golden_values x = golden_get(file, near ? "nvfp4.x" : "mx.x"),
                      want = golden_get(file, "%s.random", mezzo_blocks_name(b));
        float *got = golden_floats(&x);
        mz_blocks_round_run(&how, got, (int64_t)x.count, 1, near ? (float)tensor.at[0] : 1, 0);
        for (size_t i = 0; i < x.count; i++)
            if ((double)got[i] != want.at[i])
                fail_msg("%s: %a became %a, not %a", mezzo_blocks_name(b), x.at[i], (double)got[i], want.at[i]);
        free(got);
        golden_free(&x);
        golden_free(&want);
    }
    golden_free(&tensor);
    mz_safetensors_close(file);
}

// Sums of 16 and 32 numbers in FP32, beside float64: 5 roundings of partial sums and one of the root.
TEST(turning_is_the_hadamard_matrix) {
    mz_safetensors *file = golden_tensors("formats.safetensors");
    const uint32_t signs = mz_blocks_signs(12345678901234567);
    for (int near = 0; near < 2; near++) {
        const mezzo_blocks b = near ? MEZZO_BLOCKS_NVFP4 : MEZZO_BLOCKS_MXFP4;
        const size_t size = (size_t)mz_blocks_table[b].size;
        golden_values x = golden_get(file, near ? "nvfp4.x" : "mx.x"),
                      want = golden_get(file, near ? "nvfp4.turned" : "mx.turned");
        float *got = golden_floats(&x), *rest = golden_floats(&x);
        mz_blocks_turn_run(b, signs, got, (int64_t)x.count, 1);
        for (size_t i = 0; i < x.count; i++) {
            double terms = 0;
            for (size_t k = i / size * size; k < (i / size + 1) * size; k++)
                terms += fabs(x.at[k]) / sqrt((double)size);
            assert_true(fabs((double)got[i] - want.at[i]) <= 8 * UNIT_F32 * terms);
        }
        mz_blocks_turn_run(b, signs, rest, (int64_t)size - 1, 1); // less than a block stays
        for (size_t i = 0; i < size; i++)
            assert_true((double)rest[i] == x.at[i]);
        free(got);
        free(rest);
        golden_free(&x);
        golden_free(&want);
    }
    mz_safetensors_close(file);
}

// What is not finite makes its whole block NaN: no element format can hold it.
TEST(a_block_with_a_nan_is_nan) {
    for (mezzo_blocks b = MEZZO_BLOCKS_MXFP8; b < MEZZO_BLOCKS_COUNT; b++) {
        float x[MZ_BLOCK_MOST] = {1, NAN, 2, 3}, y[MZ_BLOCK_MOST] = {1, 2, -INFINITY};
        mz_blocks_round(b, x, mz_blocks_table[b].size, 1);
        mz_blocks_round(b, y, mz_blocks_table[b].size, 1);
        for (int i = 0; i < mz_blocks_table[b].size; i++)
            assert_true(isnan(x[i]) && isnan(y[i]));
    }
    assert_true(mz_blocks_tensor_scale(MEZZO_BLOCKS_NVFP4, INFINITY) == 1);
}
