// Measures the rate of ARM's BF16 dot product on one core: as many instructions as for FP32's multiply-add, with twice
// the products.
#include <arm_neon.h>

#include "base/base.h"
#include "backend/cpu/kernels/probe.h"

double mz_probe_bf16_dot(int rounds) {
    float32x4_t sum[12];
    // They are no constants, because gcc 12 would load 1.0 by an instruction of FEAT_FP16, which its assembler then
    // refuses.
    volatile const uint16_t one = 0x3F80, small = 0x3580; // 2^-20
    const bfloat16x8_t a = vreinterpretq_bf16_u16(vdupq_n_u16(one)), b = vreinterpretq_bf16_u16(vdupq_n_u16(small));
    for (int i = 0; i < 12; i++)
        sum[i] = vdupq_n_f32((float)i);
    double start = mz_seconds();
    for (int r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            sum[i] = vbfdotq_f32(sum[i], a, b);
    }
    for (int i = 1; i < 12; i++)
        sum[0] = vaddq_f32(sum[0], sum[i]);
    volatile float keep = vaddvq_f32(sum[0]); // this makes the loop end before the clock is read
    (void)keep;
    return 12.0 * 8 * rounds / (mz_seconds() - start);
}
