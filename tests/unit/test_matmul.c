// The cpu backend's matrix product on every microkernel this machine can run: any size, orientation, storage format and epilogue
// gives the FP64 product of the rounded operands within the bound of FP32 summation, exactly where every sum is exact, and the
// same bits for every number of threads.
#include "unit/matmul_cases.h"

static const mz_matmul_path portable = {&mz_matmul_isa__portable.f32, &mz_matmul_isa__portable};
#if defined(__x86_64__)
static const mz_matmul_path avx2 = {&mz_matmul_isa__avx2.f32, &mz_matmul_isa__avx2};
static const mz_matmul_path avx512 = {&mz_matmul_isa__avx512.f32, &mz_matmul_isa__avx512};
static const mz_matmul_path bf16_dot = {&mz_microkernel_avx512bf16, &mz_matmul_isa__avx512};
#endif

static void check_f32_path(mz_matmul_path path) {
    check_sizes(path, MEZZO_F64, true);
    check_sizes(path, MEZZO_F64, false);
    check_formats(path, MEZZO_F64);
    for (size_t i = 0; i < MZ_COUNT(stored); i++)
        check_epilogues(path, stored[i]);
    check_batches(path, MEZZO_F32);
    check_column_sums(path);
}

static void test_portable(void **state) {
    (void)state;
    check_f32_path(portable);
}

#if defined(__x86_64__)
static void test_avx2(void **state) {
    (void)state;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        skip();
    check_f32_path(avx2);
}

static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static void test_avx512(void **state) {
    (void)state;
    if (!has_avx512())
        skip();
    check_f32_path(avx512);
}

static void test_bf16_dot(void **state) {
    (void)state;
    if (!has_avx512() || !__builtin_cpu_supports("avx512bf16"))
        skip();
    check_sizes(bf16_dot, MEZZO_BF16, true);
    check_sizes(bf16_dot, MEZZO_BF16, false);
    check_formats(bf16_dot, MEZZO_BF16);
    check_epilogues(bf16_dot, MEZZO_BF16);
    check_batches(bf16_dot, MEZZO_BF16);
}

// The fast BF16 epilogue's instruction takes subnormals for zero: results must keep them all the same.
static void test_bf16_dot_keeps_subnormals(void **state) {
    (void)state;
    if (!has_avx512() || !__builtin_cpu_supports("avx512bf16"))
        skip();
    enum { M = 14, N = 32 };
    uint16_t zeros[M + N] = {0}, y[M * N];
    float bias[N];
    for (int j = 0; j < N; j++)
        bias[j] = j == 5 ? 0x1p-130f : (float)j;
    mz_matmul_problem p = {.m = M, .n = N, .k = 1, .batches = 1};
    p.a = (mz_matmul_operand){zeros, MEZZO_BF16, MEZZO_BF16, 1, 1};
    p.b = (mz_matmul_operand){zeros, MEZZO_BF16, MEZZO_BF16, 1, 1};
    p.out = (mz_matmul_epilogue){.y = y, .y_dtype = MEZZO_BF16, .via = MEZZO_F32, .ld = N, .bias = bias};
    p.out.bias_dtype = MEZZO_F32;
    void *workspace = mz_alloc(mz_matmul_workspace(bf16_dot, &p, 1), 1);
    assert_non_null(workspace);
    mz_matmul_run(bf16_dot, &p, 1, workspace);
    mz_free(workspace);
    for (int i = 0; i < M * N; i++)
        assert_int_equal(y[i], mezzo_f32_to_bf16(bias[i % N]));
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_portable),
#if defined(__x86_64__)
        cmocka_unit_test(test_avx2),
        cmocka_unit_test(test_avx512),
        cmocka_unit_test(test_bf16_dot),
        cmocka_unit_test(test_bf16_dot_keeps_subnormals),
#endif
    };
    return cmocka_run_group_tests_name("matmul", tests, NULL, NULL);
}
