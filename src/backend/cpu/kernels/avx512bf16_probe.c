// Measures the rate of AVX512-BF16's dot product on one core. Some processors run it at twice their FP32 rate, others
// at the same.
#include <immintrin.h>

#include "base/base.h"
#include "backend/cpu/kernels/probe.h"

double mz_probe_bf16_dot(int rounds) {
    __m512 sum[12];
    __m512bh a = (__m512bh)_mm512_set1_epi16(0x3F80), b = (__m512bh)_mm512_set1_epi16(0x3580); // 1, 2^-20
    for (int i = 0; i < 12; i++)
        sum[i] = _mm512_set1_ps((float)i);
    double start = mz_seconds();
    for (int r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], a, b);
    }
    for (int i = 1; i < 12; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    volatile float keep = _mm512_reduce_add_ps(sum[0]); // this makes the loop end before the clock is read
    (void)keep;
    return 12.0 * 32 * rounds / (mz_seconds() - start);
}
