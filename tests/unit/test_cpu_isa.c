// Instruction-set levels: what the probe reports is consistent, MEZZO_ISA lowers it and never raises it, and every
// level has a kernel for every op that is not composed.
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "test.h"

static const char *const words[MZ_LEVEL_COUNT] = {"ref", "neon", "avx2", "avx512", "amx"};

TEST(probe_is_consistent) {
    mz_isa isa, again;
    assert_int_equal(mz_isa_probe(NULL, &isa), MEZZO_OK);
    assert_int_equal(mz_isa_probe("", &again), MEZZO_OK);
    assert_memory_equal(&isa, &again, sizeof isa); // measured once: two devices of a process make the same choices
    assert_int_equal(isa.level, isa.found);
    assert_true(isa.fma_rate > 0);
    assert_true((isa.bf16_dot_rate > 0) == isa.bf16_dot);
    assert_true((isa.amx_rate > 0) == (isa.level == MZ_LEVEL_AMX));
    assert_true(!isa.bf16_dot || isa.level >= MZ_LEVEL_AVX512 || isa.level == MZ_LEVEL_NEON);
    assert_true(isa.brand[0] != '\0');
}

TEST(forcing_lowers_and_never_raises) {
    mz_isa best, isa;
    assert_int_equal(mz_isa_probe(NULL, &best), MEZZO_OK);
    for (int level = 0; level < MZ_LEVEL_COUNT; level++) {
        if (level > (int)best.found || !mz_level_exists((mz_level)level)) {
            must_fail(mz_isa_probe(words[level], &isa), MEZZO_ERR_INVALID, words[level]);
            assert_non_null(strstr(mezzo_error_message(), words[best.found])); // what the machine has
            continue;
        }
        assert_int_equal(mz_isa_probe(words[level], &isa), MEZZO_OK);
        assert_int_equal(isa.level, level);
        assert_int_equal(isa.found, best.found);
        assert_true(isa.amx_rate <= 0 || level == MZ_LEVEL_AMX);
        assert_true(!isa.bf16_dot || level >= MZ_LEVEL_AVX512 || level == MZ_LEVEL_NEON);
    }
    must_fail(mz_isa_probe("sse9", &isa), MEZZO_ERR_INVALID, "amx, avx512, avx2 or ref");
}

TEST(a_bad_level_fails_the_device) {
    mezzo_device *device;
    setenv("MEZZO_ISA", "fastest", 1);
    assert_int_equal(mezzo_device_open("cpu", 1, &device), MEZZO_ERR_INVALID);
    assert_null(device);
    unsetenv("MEZZO_ISA");
}

static volatile sig_atomic_t own_handler_ran;
static void own_handler(int signal_number) {
    (void)signal_number;
    own_handler_ran = 1;
}

// The trial of AMX tiles borrows SIGILL and must give it back. (Run first: the probe runs once per process.)
TEST(probe_gives_sigill_back) {
    struct sigaction mine = {.sa_handler = own_handler}, now;
    sigaction(SIGILL, &mine, NULL);
    mz_isa isa;
    assert_int_equal(mz_isa_probe(NULL, &isa), MEZZO_OK);
    sigaction(SIGILL, NULL, &now);
    assert_ptr_equal(now.sa_handler, own_handler);
    raise(SIGILL);
    assert_int_equal(own_handler_ran, 1);
    signal(SIGILL, SIG_DFL);
}

static bool ends_with_level(const char *name, const char *level) {
    const char *at = strstr(name, "__");
    return at != NULL && strncmp(at + 2, level, strlen(level)) == 0;
}

// Products list all their kernels and refuse by prepare(), with the reason.
static bool refuses_by_itself(mz_op op) {
    return op == MZ_OP_linear || op == MZ_OP_matmul || op == MZ_OP_linear_dx || op == MZ_OP_linear_dw ||
           op == MZ_OP_grouped_linear || op == MZ_OP_grouped_linear_dx || op == MZ_OP_grouped_linear_dw ||
           op == MZ_OP_conv2d || op == MZ_OP_conv2d_dx || op == MZ_OP_conv2d_dw;
}

TEST(every_level_serves_every_op) {
    mz_isa best;
    assert_int_equal(mz_isa_probe(NULL, &best), MEZZO_OK);
    for (int level = 0; level <= (int)best.found; level++) {
        mezzo_device *device;
        if (!mz_level_exists((mz_level)level))
            continue;
        setenv("MEZZO_ISA", words[level], 1);
        assert_int_equal(mezzo_device_open("cpu", 1, &device), MEZZO_OK);
        for (int op = 0; op < MZ_OP_COUNT; op++) {
            size_t n;
            const mz_kernel *const *kernels = device->backend->kernels(device, (mz_op)op, &n);
            assert_true(n > 0);
            for (int above = level + 1; above < MZ_LEVEL_COUNT; above++)
                for (size_t i = 0; i < n && !refuses_by_itself((mz_op)op); i++)
                    assert_false(ends_with_level(kernels[i]->name, mz_level_name((mz_level)above)));
            assert_true(ends_with_level(kernels[n - 1]->name, "portable")); // the list ends where any machine is served
        }
        mezzo_device_close(device);
    }
    unsetenv("MEZZO_ISA");
}

TEST(device_describes_itself) {
    mezzo_device *device;
    mezzo_device_info info;
    assert_int_equal(mezzo_device_open("cpu", 3, &device), MEZZO_OK);
    assert_int_equal(mezzo_device_describe(device, &info), MEZZO_OK);
    assert_string_equal(info.backend, "cpu");
    assert_int_equal(info.threads, 3);
    assert_non_null(strstr(info.description, "3 threads"));
    assert_true(info.memory_total > 0);
    assert_true(info.native[MEZZO_PRECISION_FP32]);
    assert_false(info.native[MEZZO_PRECISION_FP64]);
    mezzo_device_close(device);
    // With nothing above AVX2 there is no BF16 arithmetic to be faster.
    mz_isa best;
    assert_int_equal(mz_isa_probe(NULL, &best), MEZZO_OK);
    setenv("MEZZO_ISA", "ref", 1);
    assert_int_equal(mezzo_device_open("cpu", 1, &device), MEZZO_OK);
    assert_int_equal(mezzo_device_describe(device, &info), MEZZO_OK);
    assert_false(info.native[MEZZO_PRECISION_BF16]);
    assert_false(info.faster[MEZZO_PRECISION_BF16]);
    assert_non_null(strstr(info.description, "portable"));
    mezzo_device_close(device);
    unsetenv("MEZZO_ISA");
}

static int clear_environment(void **state) {
    (void)state;
    return unsetenv("MEZZO_ISA");
}

TEST_GROUP(clear_environment, NULL)
