// The rate of FP32 multiply-adds on one core at this level: what BF16 arithmetic has to beat.
#include "backend/cpu/kernels/probe.h"
#include "backend/cpu/kernels/vec.h"

// 12 accumulators: two FMA pipes × a latency of 4 or 5 cycles need 8 to 10, and a 16-register machine still holds them.
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
    volatile float keep = vsum(sum[0]); // before the clock is read: the loop must be done by then
    (void)keep;
    return 12.0 * VW * rounds / (mz_seconds() - start);
}
