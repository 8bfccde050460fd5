// Measures the limits of this machine's cores, for comparison with every kernel's timing.
#include "backend/cpu/cpu.h"

#include <omp.h>

#include "backend/cpu/kernels/probe.h"

enum { TRIALS = 5, FMA_ROUNDS = 400000, AMX_ROUNDS = 100000 };
static const size_t COPIED = (size_t)256 << 20; // bytes: more than a last-level cache keeps between two passes

typedef double rate_fn(int rounds); // returns multiply-adds a second of one core
typedef void copy_fn(void *dst, const void *src, size_t bytes);

static void plain_copy(void *dst, const void *src, size_t bytes) {
    memcpy(dst, src, bytes);
}

// Measures all threads at once, because they share clocks and power: FLOP/s.
static double arithmetic_peak(rate_fn *probe, int rounds, int threads) {
    double best = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        double sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
        sum += 2 * probe(rounds);
        best = sum > best ? sum : best;
    }
    return best;
}

static double copy_peak(copy_fn *copy, char *dst, const char *src, int threads) {
    double best = 0;
    for (int trial = 0; trial <= TRIALS; trial++) { // the first trial touches the pages
        double start = mz_seconds();
#pragma omp parallel num_threads(threads)
        {
            size_t lines = COPIED / 64, team = (size_t)omp_get_num_threads(), i = (size_t)omp_get_thread_num();
            size_t from = lines * i / team * 64, to = lines * (i + 1) / team * 64;
            copy(dst + from, src + from, to - from);
        }
        double rate = 2 * (double)COPIED / (mz_seconds() - start);
        best = trial > 0 && rate > best ? rate : best;
    }
    return best;
}

mezzo_status mz_cpu_peaks(mezzo_device *device, mz_peaks *out) {
    const mz_isa *isa = &mz_cpu(device)->isa;
    rate_fn *fma = mz_probe_fma__portable;
    copy_fn *stream = mz_probe_stream__portable;
    *out = (mz_peaks){0};
#if defined(__x86_64__)
    fma = isa->level >= MZ_LEVEL_AVX512 ? mz_probe_fma__avx512 : isa->level == MZ_LEVEL_AVX2 ? mz_probe_fma__avx2 : fma;
    stream = isa->level >= MZ_LEVEL_AVX512 ? mz_probe_stream__avx512
             : isa->level == MZ_LEVEL_AVX2 ? mz_probe_stream__avx2
                                           : stream;
#elif defined(__aarch64__)
    if (isa->level >= MZ_LEVEL_NEON) {
        fma = mz_probe_fma__neon;
        stream = mz_probe_stream__neon;
    }
#endif
    double low = 0, fp32 = arithmetic_peak(fma, FMA_ROUNDS, device->threads);
#if defined(__x86_64__)
    if (isa->level == MZ_LEVEL_AMX)
        low = arithmetic_peak(mz_probe_amx, AMX_ROUNDS, device->threads);
#endif
    out->flops[MEZZO_F32] = fp32;
    // TF32 and FP16 products consist of BF16 ones on the tiles, so their peak is that of the tiles, too.
    out->flops[MEZZO_BF16] = out->flops[MEZZO_F16] = out->flops[MEZZO_TF32] = low > fp32 ? low : fp32;
#if defined(__x86_64__) || defined(__aarch64__)
    if (isa->bf16_dot && isa->level < MZ_LEVEL_AMX) {
        double dot = arithmetic_peak(mz_probe_bf16_dot, FMA_ROUNDS, device->threads);
        out->flops[MEZZO_BF16] = dot > fp32 ? dot : fp32;
    }
#endif
    char *src = mz_alloc(1, COPIED), *dst = mz_alloc(1, COPIED);
    if (src != NULL && dst != NULL) {
        memset(src, 1, COPIED); // pages that were never written may all be one page of zeros
        double plain = copy_peak(plain_copy, dst, src, device->threads);
        double streamed = copy_peak(stream, dst, src, device->threads);
        out->copy = streamed > plain ? streamed : plain;
    }
    bool full = src == NULL || dst == NULL;
    MZ_FREE(src, dst);
    return full ? MEZZO_ERR_MEMORY : MEZZO_OK;
}
