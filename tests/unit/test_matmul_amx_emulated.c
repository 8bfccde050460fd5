// The AMX microkernel's logic on any machine: its six tile instructions are emulated in C, everything around them (tile packing,
// blocking, epilogue) is what runs on the real ones. The instructions themselves are tested by bench/amx_check.sh where they exist.
#define MZ_AMX_EMULATE
#include "backend/cpu/kernels/amx_matmul.c"

#include <float.h>

#include "unit/matmul_cases.h"

static const mz_matmul_path path = {&mz_microkernel_amx, &mz_matmul_isa__portable};

static void test_sizes(void **state) {
    (void)state;
    check_sizes(path, MEZZO_BF16, true);
    check_sizes(path, MEZZO_BF16, false);
}

static void test_formats(void **state) {
    (void)state;
    check_formats(path, MEZZO_BF16);
}

static void test_epilogues(void **state) {
    (void)state;
    check_epilogues(path, MEZZO_BF16);
    check_batches(path, MEZZO_BF16);
}

// Products of values in two parts: FP16's exactly as those of its values, TF32's within the bound of what is cut off.
static void check_split(const mz_microkernel *kernel, const mz_matmul_isa *isa, mezzo_dtype compute) {
    const mz_matmul_path split = {kernel, isa};
    check_sizes(split, compute, true);
    check_sizes(split, compute, false);
    check_formats(split, compute);
    check_epilogues(split, compute);
    check_batches(split, compute);
}

static void test_split(void **state) {
    (void)state;
    check_split(&mz_microkernel_amx_f16, &mz_matmul_isa__portable, MEZZO_F16);
    check_split(&mz_microkernel_amx_tf32, &mz_matmul_isa__portable, MEZZO_TF32);
}

// The ends of the range. FP16's subnormals are normal BF16s and multiply exactly; what is not finite stays so and stays in its row;
// FP32's largest number, which BF16 would round to infinity, stays finite.
static void multiply_2x2x2(const mz_microkernel *kernel, mezzo_dtype dtype, const float a[4], const float b[4],
                           float y[4]) {
    const mz_matmul_path split = {kernel, &mz_matmul_isa__portable};
    float left[4], right[4];
    assert_int_equal(mezzo_convert(a, MEZZO_F32, left, dtype, 4), MEZZO_OK);
    assert_int_equal(mezzo_convert(b, MEZZO_F32, right, dtype, 4), MEZZO_OK);
    mz_matmul_problem p = {.m = 2, .n = 2, .k = 2, .batches = 1};
    p.a = (mz_matmul_operand){left, dtype, dtype == MEZZO_F32 ? MEZZO_TF32 : dtype, 2, 1};
    p.b = (mz_matmul_operand){right, dtype, dtype == MEZZO_F32 ? MEZZO_TF32 : dtype, 2, 1};
    p.out = (mz_matmul_epilogue){.y = y, .y_dtype = MEZZO_F32, .via = MEZZO_F32, .ld = 2};
    void *workspace = mz_alloc(mz_matmul_workspace(split, &p, 1), 1);
    assert_non_null(workspace);
    mz_matmul_run(split, &p, 1, workspace);
    mz_free(workspace);
}

static void test_split_at_the_ends(void **state) {
    (void)state;
    float y[4];
    const float tiny[4] = {0x1p-24f, 0x3p-24f, -0x3FFp-24f, 65504}, ones[4] = {1, 2, 0x1.004p0f, -1};
    multiply_2x2x2(&mz_microkernel_amx_f16, MEZZO_F16, tiny, ones, y);
    assert_true(y[0] == 0x7p-24f && y[1] == 0x1.004p-24f - 0x3p-24f);
    assert_true(y[2] == -0x3FFp-24f + 131008.0f);
    const float ends[4] = {INFINITY, 1, 1, NAN};
    for (int f16 = 0; f16 < 2; f16++) {
        const mz_microkernel *kernel = f16 ? &mz_microkernel_amx_f16 : &mz_microkernel_amx_tf32;
        mezzo_dtype dtype = f16 ? MEZZO_F16 : MEZZO_F32;
        multiply_2x2x2(kernel, dtype, ends, ones, y);
        assert_true(!isfinite(y[0]) && !isfinite(y[1]) && isnan(y[2]) && isnan(y[3]));
        const float one_row[4] = {-INFINITY, 1, 1, 3};
        multiply_2x2x2(kernel, dtype, one_row, ones, y);
        assert_true(!isfinite(y[0]) && !isfinite(y[1]) && y[2] == 7);
    }
    const float largest[4] = {FLT_MAX, 0, -FLT_MAX, 0}, halves[4] = {1, 0, 0.5f, 0};
    multiply_2x2x2(&mz_microkernel_amx_tf32, MEZZO_F32, largest, halves, y);
    assert_true(fabsf(y[0] / FLT_MAX - 1) < 0x1p-15f && fabsf(y[1] / FLT_MAX - 0.5f) < 0x1p-15f);
    assert_true(y[2] == -y[0] && y[3] == -y[1]);
}

// A thread that leaves tiles configured would have them saved and restored at every switch.
static void test_tiles_are_released(void **state) {
    (void)state;
    matmul_case c = {.m = 40, .n = 40, .k = 40, .batches = 1, .via = MEZZO_F32};
    c.a = c.b = c.compute = MEZZO_BF16;
    c.y = MEZZO_F32;
    check_case(path, &c);
    assert_false(amx_configured);
}

// The instruction set that packs for the real instructions packs the same tiles.
static void test_avx512_packs_the_same(void **state) {
    (void)state;
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        skip();
    const mz_matmul_path fast = {&mz_microkernel_amx, &mz_matmul_isa__avx512};
    check_sizes(fast, MEZZO_BF16, true);
    check_formats(fast, MEZZO_BF16);
    check_split(&mz_microkernel_amx_f16, &mz_matmul_isa__avx512, MEZZO_F16);
    check_split(&mz_microkernel_amx_tf32, &mz_matmul_isa__avx512, MEZZO_TF32);
#else
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_epilogues),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_at_the_ends),
        cmocka_unit_test(test_tiles_are_released),
        cmocka_unit_test(test_avx512_packs_the_same),
    };
    return cmocka_run_group_tests_name("matmul_amx_emulated", tests, NULL, NULL);
}
