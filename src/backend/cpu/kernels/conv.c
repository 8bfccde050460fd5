// Computes direct convolution in FP32: see conv_direct.h.
#include "backend/cpu/conv_direct.h"
#include "backend/cpu/kernels/matmul_isa.h"

// A row's pointer is in a register: there are eight of them, or as many as the product's tile has rows.
#if VW == 16 || VEC_NEON
#define MR          8
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#elif VW == 8
#define MR          6
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)
#else
#define MR          4
#define EACH_ROW(X) X(0) X(1) X(2) X(3)
#endif

#if F32_NV == 2
#define DECLARE(i) vf c##i##0 = {0}, c##i##1 = {0};
#define STEP(i, x)                                                                                                     \
    {                                                                                                                  \
        const float number = x;                                                                                        \
        c##i##0 += number * b0;                                                                                        \
        c##i##1 += number * b1;                                                                                        \
    }
#define LOAD(b) const vf b0 = load_f32(b), b1 = load_f32((b) + VW);
#define ADD(i)                                                                                                         \
    c##i##0 += load_f32(c + i * ldc);                                                                                  \
    c##i##1 += load_f32(c + i * ldc + VW);
#define STORE(i)                                                                                                       \
    store_f32(c + i * ldc, c##i##0);                                                                                   \
    store_f32(c + i * ldc + VW, c##i##1);
#else
#define DECLARE(i) vf c##i##0 = {0}, c##i##1 = {0}, c##i##2 = {0};
#define STEP(i, x)                                                                                                     \
    {                                                                                                                  \
        const float number = x;                                                                                        \
        c##i##0 += number * b0;                                                                                        \
        c##i##1 += number * b1;                                                                                        \
        c##i##2 += number * b2;                                                                                        \
    }
#define LOAD(b) const vf b0 = load_f32(b), b1 = load_f32((b) + VW), b2 = load_f32((b) + 2 * VW);
#define ADD(i)                                                                                                         \
    c##i##0 += load_f32(c + i * ldc);                                                                                  \
    c##i##1 += load_f32(c + i * ldc + VW);                                                                             \
    c##i##2 += load_f32(c + i * ldc + 2 * VW);
#define STORE(i)                                                                                                       \
    store_f32(c + i * ldc, c##i##0);                                                                                   \
    store_f32(c + i * ldc + VW, c##i##1);                                                                              \
    store_f32(c + i * ldc + 2 * VW, c##i##2);
#endif

static void copy(void *to, const void *from, mezzo_dtype dtype, mezzo_dtype compute, int64_t n) {
    const size_t size = dtype == MEZZO_F32 ? sizeof(float) : sizeof(uint16_t);
    if (dtype == MEZZO_F32 && compute != MEZZO_BF16 && compute != MEZZO_F16) {
        memcpy(to, from, (size_t)n * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < n; i += VW) {
        const vf x = load_as_f32_part((const char *)from + (size_t)i * size, dtype, n - i);
        store_f32_part((float *)to + i, round_to(x, compute), n - i);
    }
}

#define NR   F32_NR
#define WORD float
#include "backend/cpu/kernels/conv_tile.h"

const mz_conv_kernels FOR_LEVEL(mz_conv_f32) = {
    .mr = MR, .nr = NR, .pair = 1, .unit = 1, .copy = copy, .rows = rows, .columns = columns};
