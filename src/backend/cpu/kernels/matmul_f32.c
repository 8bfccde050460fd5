// Holds the FP32 microkernel, and the level's table.
#include "backend/cpu/kernels/matmul_isa.h"

#if F32_MR == 14
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)
#elif F32_MR == 8
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#elif F32_MR == 6
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)
#else
#define EACH_ROW(X) X(0) X(1) X(2) X(3)
#endif

// In steps of k: how far ahead panels are prefetched, and the interval between prefetches of rows of C.
#define AHEAD     16
#define ROW_EVERY 8
#define LINE      64

// The rows are written out, without a loop, because the sums must stay in registers under every compiler.
static void multiply_f32(int64_t k, const void *a_panel, const void *b_panel, float *c, int64_t ldc, bool add) {
    const float *a = a_panel, *b = b_panel;
    // A's next panel follows this one, and may come from memory: the prefetch has the time of a row of tiles.
    const int64_t next = k * F32_MR;
#if F32_NV == 2
#define DECLARE(i) vf c##i##0 = {0}, c##i##1 = {0};
#define STEP(i)                                                                                                        \
    c##i##0 += a[i] * b0;                                                                                              \
    c##i##1 += a[i] * b1;
#define STORE(i)                                                                                                       \
    store_f32(c + i * ldc, c##i##0);                                                                                   \
    store_f32(c + i * ldc + VW, c##i##1);
#define ADD(i)                                                                                                         \
    c##i##0 += load_f32(c + i * ldc);                                                                                  \
    c##i##1 += load_f32(c + i * ldc + VW);
#else
#define DECLARE(i) vf c##i##0 = {0}, c##i##1 = {0}, c##i##2 = {0};
#define STEP(i)                                                                                                        \
    c##i##0 += a[i] * b0;                                                                                              \
    c##i##1 += a[i] * b1;                                                                                              \
    c##i##2 += a[i] * b2;
#define STORE(i)                                                                                                       \
    store_f32(c + i * ldc, c##i##0);                                                                                   \
    store_f32(c + i * ldc + VW, c##i##1);                                                                              \
    store_f32(c + i * ldc + 2 * VW, c##i##2);
#define ADD(i)                                                                                                         \
    c##i##0 += load_f32(c + i * ldc);                                                                                  \
    c##i##1 += load_f32(c + i * ldc + VW);                                                                             \
    c##i##2 += load_f32(c + i * ldc + 2 * VW);
#endif
    EACH_ROW(DECLARE)
    // A tile of C is rarely in cache. If all its lines were prefetched at once they would delay those of the panels; at
    // the start of a long panel they would be evicted again. So one row at a time is prefetched, in the last steps.
    const float *row = c, *const end = c + F32_MR * ldc;
    const int64_t last = ROW_EVERY * (F32_MR + 2);
    for (int64_t steps = k > last ? k - last : 0; k > 0; steps = k < ROW_EVERY ? k : ROW_EVERY) {
        k -= steps;
        for (; steps > 0; steps--, a += F32_MR, b += F32_NR) {
            for (int i = 0; i < F32_NR; i += LINE / (int)sizeof *b)
                __builtin_prefetch(b + AHEAD * F32_NR + i);
            __builtin_prefetch(a + AHEAD * F32_MR);
            __builtin_prefetch(a + next, 0, 2);
            vf b0 = load_f32(b), b1 = load_f32(b + VW);
#if F32_NV == 3
            vf b2 = load_f32(b + 2 * VW);
#endif
            EACH_ROW(STEP)
        }
        if (row != end) {
            __builtin_prefetch(row, 1);
            __builtin_prefetch(row + F32_NR - 1, 1);
            row += ldc;
        }
    }
    if (add) {
        EACH_ROW(ADD)
    }
    EACH_ROW(STORE)
}

const mz_matmul_isa FOR_LEVEL(mz_matmul_isa) = {
    .name = MZ_LEVEL_TEXT,
    .f32 = {.name = "f32_" MZ_TEXT(F32_MR) "x" MZ_TEXT(F32_NR),
            .mr = F32_MR,
            .nr = F32_NR,
            .k_unit = 1,
            .kc = 768,
            .depth = 768,
            .depth_across = 768,
            .in_y = true,
            .a_panel = MZ_PANEL_F32,
            .b_panel = MZ_PANEL_F32,
            .run = multiply_f32,
            .conv = &FOR_LEVEL(mz_conv_f32)},
    .pack = FOR_LEVEL(mz_matmul_pack),
    .epilogue = FOR_LEVEL(mz_matmul_epilogue),
    .rows = FOR_LEVEL(mz_matmul_rows),
    .add_pieces = FOR_LEVEL(mz_matmul_add_pieces),
    .column_sums = FOR_LEVEL(mz_matmul_column_sums),
};
