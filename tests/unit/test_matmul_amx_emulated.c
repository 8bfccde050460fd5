// The AMX microkernel's logic on any machine: its six tile instructions are emulated in C, everything around them (tile packing,
// blocking, epilogue) is what runs on the real ones. The instructions themselves are tested by bench/amx_check.sh where they exist.
#define MZ_AMX_EMULATE
#include "backend/cpu/kernels/amx_matmul.c"

#include "unit/matmul_cases.h"

static const mz_matmul_path path = {&mz_microkernel_amx, &mz_matmul_isa__portable};

static void test_sizes(void **state) {
    (void)state;
    check_sizes(path, true, true);
    check_sizes(path, true, false);
}

static void test_formats(void **state) {
    (void)state;
    check_formats(path, true);
}

static void test_epilogues(void **state) {
    (void)state;
    check_epilogues(path, MEZZO_BF16);
    check_batches(path, MEZZO_BF16);
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
    check_sizes(fast, true, true);
    check_formats(fast, true);
#else
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_epilogues),
        cmocka_unit_test(test_tiles_are_released),
        cmocka_unit_test(test_avx512_packs_the_same),
    };
    return cmocka_run_group_tests_name("matmul_amx_emulated", tests, NULL, NULL);
}
