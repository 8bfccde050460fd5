// Finds the processor's instruction sets: CPUID lists them, XGETBV lists the registers that the operating system saves,
// and AMX also needs a trial.
#include "backend/cpu/isa.h"

#include <pthread.h>

#include "backend/cpu/kernels/probe.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <setjmp.h>
#include <signal.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__)
#include <math.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#endif

static const char *const level_names[MZ_LEVEL_COUNT] = {"portable", "neon", "avx2", "avx512", "amx"};

const char *mz_level_name(mz_level level) {
    return level_names[level];
}

bool mz_level_exists(mz_level level) {
#if defined(__x86_64__)
    return level != MZ_LEVEL_NEON;
#elif defined(__aarch64__)
    return level <= MZ_LEVEL_NEON;
#else
    return level == MZ_LEVEL_PORTABLE;
#endif
}

#if defined(__x86_64__)

// --- CPUID ---------------------------------------------------------------------------------------------------------
typedef struct features {
    bool avx2, avx512, bf16_dot, amx;
} features;

static uint64_t kept_by_kernel(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static features ask_cpuid(void) {
    features f = {0};
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) // OSXSAVE: XGETBV exists
        return f;
    bool fma = c >> 12 & 1, avx = c >> 28 & 1, f16c = c >> 29 & 1;
    uint64_t kept = kept_by_kernel();
    bool ymm = (kept & 0x6) == 0x6, zmm = (kept & 0xE6) == 0xE6, tiles = (kept & 0x60000) == 0x60000;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return f;
    f.avx2 = avx && fma && f16c && (b >> 5 & 1) && ymm;
    bool foundation = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1); // F, DQ, BW, VL
    f.avx512 = f.avx2 && foundation && zmm;
    f.amx = f.avx512 && (d >> 22 & 1) && (d >> 24 & 1) && tiles; // AMX-BF16, AMX-TILE
    f.bf16_dot = f.avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
    return f;
}

// Shortens "Intel(R) Xeon(R) Platinum 8581C CPU @ 2.10GHz" to "Intel Xeon Platinum 8581C".
static void ask_brand(char *out, size_t size) {
    unsigned words[12] = {0};
    snprintf(out, size, "CPU");
    for (unsigned i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]))
            return;
    char text[sizeof words + 1] = {0};
    memcpy(text, words, sizeof words);
    static const char *const dropped[] = {"(R)", "(TM)", "(r)", "(tm)", " CPU", " Processor"};
    for (size_t i = 0; i < MZ_COUNT(dropped); i++)
        for (char *at; (at = strstr(text, dropped[i])) != NULL;)
            memmove(at, at + strlen(dropped[i]), strlen(at + strlen(dropped[i])) + 1);
    char *clock = strchr(text, '@');
    if (clock != NULL)
        *clock = '\0';
    size_t n = 0;
    for (const char *p = text; *p != '\0' && n + 1 < size; p++) // runs of spaces become one
        if (*p != ' ' || (n > 0 && out[n - 1] != ' '))
            out[n++] = *p;
    while (n > 0 && out[n - 1] == ' ')
        n--;
    out[n] = '\0';
    if (n == 0)
        snprintf(out, size, "CPU");
}

// --- probes --------------------------------------------------------------------------------------------------------
// Asks Linux for tile state: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
static bool ask_tile_permission(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
    return false;
#endif
}

static sigjmp_buf trial_over;

static void on_sigill(int signal_number) {
    (void)signal_number;
    siglongjmp(trial_over, 1);
}

// Computes a tile product under a handler for SIGILL, because some hypervisors lack instructions that CPUID lists.
static bool tiles_compute(void) {
    struct sigaction trial = {.sa_handler = on_sigill}, before;
    sigemptyset(&trial.sa_mask);
    if (sigaction(SIGILL, &trial, &before) != 0)
        return false;
    volatile bool exact = false;
    if (sigsetjmp(trial_over, 1) == 0)
        exact = mz_probe_amx_result();
    sigaction(SIGILL, &before, NULL);
    return exact;
}

// Measures rates, the best of many short trials in which the units take turns. The choice of kernels depends on them,
// and with it every bit of a run, so another process on the core must not change the result.
static void measure(mz_isa *isa, double (*fma)(int)) {
    for (int trial = 0; trial < 12; trial++) {
        double rate = fma(15000);
        isa->fma_rate = rate > isa->fma_rate ? rate : isa->fma_rate;
        rate = isa->bf16_dot ? mz_probe_bf16_dot(15000) : 0;
        isa->bf16_dot_rate = rate > isa->bf16_dot_rate ? rate : isa->bf16_dot_rate;
        rate = isa->level == MZ_LEVEL_AMX ? mz_probe_amx(2000) : 0;
        isa->amx_rate = rate > isa->amx_rate ? rate : isa->amx_rate;
    }
}

static void probe_machine(mz_isa *isa) {
    features f = ask_cpuid();
    bool amx = f.amx && ask_tile_permission() && tiles_compute();
    isa->level = amx ? MZ_LEVEL_AMX : f.avx512 ? MZ_LEVEL_AVX512 : f.avx2 ? MZ_LEVEL_AVX2 : MZ_LEVEL_PORTABLE;
    isa->bf16_dot = f.bf16_dot;
    ask_brand(isa->brand, sizeof isa->brand);
    double (*fma)(int) = f.avx512 ? mz_probe_fma__avx512 : f.avx2 ? mz_probe_fma__avx2 : mz_probe_fma__portable;
    measure(isa, fma);
}

#elif defined(__aarch64__)

// Asks the system for BF16; NEON is part of every 64-bit ARM, and later extensions are not.
static bool has_bf16(void) {
#if defined(__linux__) && defined(HWCAP2_BF16)
    return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#else
    return false;
#endif
}

static void probe_machine(mz_isa *isa) {
    isa->level = MZ_LEVEL_NEON;
    isa->bf16_dot = has_bf16();
    snprintf(isa->brand, sizeof isa->brand, "64-bit ARM");
    for (int trial = 0; trial < 12; trial++) { // it takes the best of many, as on x86-64
        isa->fma_rate = fmax(isa->fma_rate, mz_probe_fma__neon(15000));
        isa->bf16_dot_rate = isa->bf16_dot ? fmax(isa->bf16_dot_rate, mz_probe_bf16_dot(15000)) : 0;
    }
}

#else

static void probe_machine(mz_isa *isa) {
    isa->level = MZ_LEVEL_PORTABLE;
    snprintf(isa->brand, sizeof isa->brand, "CPU");
    isa->fma_rate = mz_probe_fma__portable(15000);
}

#endif

// --- once per process ----------------------------------------------------------------------------------------------
static mz_isa machine;

static void probe_once(void) {
    probe_machine(&machine);
    machine.found = machine.level;
    mz_log("dispatch", "cpu: %s; %s, one core: %.0f GFLOP/s fp32", machine.brand, mz_level_name(machine.level),
           2e-9 * machine.fma_rate);
    if (machine.bf16_dot)
        mz_log("dispatch", "cpu: bf16 dot product: %.0f GFLOP/s, %.2f × fp32: %s", 2e-9 * machine.bf16_dot_rate,
               machine.bf16_dot_rate / machine.fma_rate,
               mz_isa_worth_it(&machine, machine.bf16_dot_rate) ? "used"
                                                                : "not used, fp32 arithmetic on bf16 storage is");
    if (machine.level == MZ_LEVEL_AMX)
        mz_log("dispatch", "cpu: amx bf16: %.0f GFLOP/s, %.2f × fp32", 2e-9 * machine.amx_rate,
               machine.amx_rate / machine.fma_rate);
}

mezzo_status mz_isa_probe(const char *forced, mz_isa *out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static const char *const words[MZ_LEVEL_COUNT] = {"ref", "neon", "avx2", "avx512", "amx"};
    pthread_once(&once, probe_once);
    *out = machine;
    if (forced == NULL || forced[0] == '\0')
        return MEZZO_OK;
    const int level = (int)MZ_INDEX_WORD(words, MZ_LEVEL_COUNT, forced);
    if (level == MZ_LEVEL_COUNT)
        return mz_fail(MEZZO_ERR_INVALID, "MEZZO_ISA=%s: use amx, avx512, avx2 or ref; on ARM neon or ref", forced);
    if (level > (int)machine.found || !mz_level_exists((mz_level)level))
        return mz_fail(MEZZO_ERR_INVALID, "MEZZO_ISA=%s: this machine (%s) supports at most %s", forced, machine.brand,
                       words[machine.found]);
    out->level = (mz_level)level;
    if (out->level < MZ_LEVEL_AMX)
        out->amx_rate = 0;
    if (out->level < MZ_LEVEL_AVX512 && out->level != MZ_LEVEL_NEON) {
        out->bf16_dot = false;
        out->bf16_dot_rate = 0;
    }
    return MEZZO_OK;
}
