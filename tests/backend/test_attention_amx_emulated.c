// The attention kernels for AMX on any machine with AVX-512 and its BF16 conversions: the tile instructions are
// emulated in C, everything around them (packing, blocks, softmax, dropout) is what runs beside the real ones.

#include "cases.h"
#include "test.h"

#if defined(MZ_AMX_EMULATE)
#define attention_prepare   forward_prepare
#define attention_workspace forward_workspace
#define mz_attention__amx   emulated_attention
#include "backend/cpu/kernels/amx_attention.c"

extern const mz_kernel mz_attention_bwd__emulated; // attention_bwd_amx_emulated.c: names of the two files clash

static void attention(void **state) {
    (void)state;
    static const mz_kernel *const kernels[] = {&emulated_attention};
    devices_open_with(kernels, 1);
    cases_attention();
    assert_true(trial_runs(MZ_OP_attention) > 50);
    devices_close();
}

static void attention_bwd(void **state) {
    (void)state;
    static const mz_kernel *const kernels[] = {&mz_attention_bwd__emulated};
    devices_open_with(kernels, 1);
    cases_attention_bwd();
    assert_true(trial_runs(MZ_OP_attention_bwd) > 50);
    devices_close();
}

// Returns whether the cpu device takes the real ones here: test_kernels then runs them in these very cases.
static bool has_tiles(void) {
    mezzo_device *cpu;
    size_t n;
    must(mezzo_device_open("cpu", 1, &cpu));
    const bool tiles = strstr(cpu->backend->kernels(cpu, MZ_OP_attention, &n)[0]->name, "amx") != NULL;
    mezzo_device_close(cpu);
    return tiles;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(attention), cmocka_unit_test(attention_bwd)};
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return 77;
    if (has_tiles()) {
        print_message("this processor has tiles: test_kernels runs the kernels themselves\n");
        return 77;
    }
    return cmocka_run_group_tests_name("attention_amx_emulated", tests, NULL, NULL);
}
#else
int main(void) {
    return 77;
}
#endif
