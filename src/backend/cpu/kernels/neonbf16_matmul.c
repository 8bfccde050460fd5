// Computes the BF16 microkernel by ARM's bfdot: each lane adds the two products of a pair to its FP32 sum. bfdot takes
// subnormals as zero and rounds each sum to odd (Arm ARM, BFDOT): within 1 ulp, which the bound of FP32 summation
// allows for two roundings.
#include "backend/cpu/matmul.h"

#include <arm_neon.h>

#define MR 8
#define NR 12

#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define DECLARE(i)  float32x4_t c##i##0 = vdupq_n_f32(0), c##i##1 = c##i##0, c##i##2 = c##i##0;
#define STEP(i)                                                                                                        \
    {                                                                                                                  \
        const bfloat16x8_t pair = vreinterpretq_bf16_u32(vdupq_n_u32(a[i]));                                           \
        c##i##0 = vbfdotq_f32(c##i##0, pair, b0);                                                                      \
        c##i##1 = vbfdotq_f32(c##i##1, pair, b1);                                                                      \
        c##i##2 = vbfdotq_f32(c##i##2, pair, b2);                                                                      \
    }
#define ADD(i)                                                                                                         \
    c##i##0 = vaddq_f32(c##i##0, vld1q_f32(c + i * ldc));                                                              \
    c##i##1 = vaddq_f32(c##i##1, vld1q_f32(c + i * ldc + 4));                                                          \
    c##i##2 = vaddq_f32(c##i##2, vld1q_f32(c + i * ldc + 8));
#define STORE(i)                                                                                                       \
    vst1q_f32(c + i * ldc, c##i##0);                                                                                   \
    vst1q_f32(c + i * ldc + 4, c##i##1);                                                                               \
    vst1q_f32(c + i * ldc + 8, c##i##2);

static void multiply_bf16(int64_t k, const void *a_panel, const void *b_panel, float *c, int64_t ldc, bool add) {
    const uint32_t *a = a_panel, *b = b_panel; // pairs
    EACH_ROW(DECLARE)
    for (; k > 0; k -= 2, a += MR, b += NR) {
        const bfloat16x8_t b0 = vreinterpretq_bf16_u32(vld1q_u32(b)), b1 = vreinterpretq_bf16_u32(vld1q_u32(b + 4)),
                           b2 = vreinterpretq_bf16_u32(vld1q_u32(b + 8));
        EACH_ROW(STEP)
    }
    if (add) {
        EACH_ROW(ADD)
    }
    EACH_ROW(STORE)
}

const mz_microkernel mz_microkernel_neonbf16 = {.name = "bf16_dot_8x12",
                                                .mr = MR,
                                                .nr = NR,
                                                .k_unit = 2,
                                                .kc = 768,
                                                .depth = 768,
                                                .depth_across = 768,
                                                .in_y = true,
                                                .a_panel = MZ_PANEL_PAIRS,
                                                .b_panel = MZ_PANEL_PAIRS,
                                                .run = multiply_bf16};
