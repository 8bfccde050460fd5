// Measures the rate of FP32 multiply-adds on one core at this level, which BF16 arithmetic has to exceed, and a copy
// that only memory limits.
#include "backend/cpu/kernels/probe.h"
#include "backend/cpu/kernels/vec.h"

// It has 12 accumulators: two FMA pipes × a latency of 4 or 5 cycles need 8 to 10, and a machine with 16 registers can
// hold them.
double MZ_SYMBOL(probe_fma)(int rounds) {
    vf sum[12], a = vset(0x1.fffffep-1f), b = vset(0x1p-20f);
    for (int i = 0; i < 12; i++)
        sum[i] = vset((float)i);
    double start = mz_seconds();
    for (int r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            sum[i] = vfma(sum[i], a, b);
    }
    for (int i = 1; i < 12; i++)
        sum[0] += sum[i];
    volatile float keep = vsum(sum[0]); // this makes the loop end before the clock is read
    (void)keep;
    return 12.0 * VW * rounds / (mz_seconds() - start);
}

void MZ_SYMBOL(probe_stream)(void *dst, const void *src, size_t bytes) {
#if VEC_512
    for (size_t i = 0; i < bytes; i += 64)
        _mm512_stream_si512((__m512i *)(void *)((char *)dst + i), _mm512_load_si512((const char *)src + i));
    _mm_sfence();
#elif VEC_256
    for (size_t i = 0; i < bytes; i += 32)
        _mm256_stream_si256((__m256i *)(void *)((char *)dst + i),
                            _mm256_load_si256((const __m256i *)(const void *)((const char *)src + i)));
    _mm_sfence();
#else
    memcpy(dst, src, bytes);
#endif
}
