// Computes direct convolution on AMX tiles (conv_direct.h). A tile load takes rows of any distance, so that sixteen
// pixels of a line are a tile without a copy, and so are sixteen pairs of pixels of a weight's gradient. Rows without a
// constant distance (a tile that continues in the next line), or at the end, are copied first.
//
// Four tiles of eight are in use; amx_matmul.c explains why.
#include "backend/cpu/conv_direct.h"
#include "backend/cpu/kernels/amx_tile.h"

#define MR      32
#define NR      32
#define TILE    16 // rows of a tile, and words of a row
#define BLOCK_A (2 * TILE * TILE)

#if defined(MZ_AMX_EMULATE)
static void copy(void *to, const void *from, mezzo_dtype dtype, mezzo_dtype compute, int64_t n) {
    (void)compute;
    (void)mezzo_convert(from, dtype, to, MEZZO_BF16, (size_t)n);
}
static void words(mz_word *to, const uint16_t *first, const uint16_t *second, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] = first[i] | (uint32_t)second[i] << 16;
}
#else
static void copy(void *to, const void *from, mezzo_dtype dtype, mezzo_dtype compute, int64_t n) {
    mz_conv_avx512bf16.copy(to, from, dtype, compute, n);
}
static void words(mz_word *to, const uint16_t *first, const uint16_t *second, int64_t n) {
    mz_conv_avx512bf16.words(to, first, second, n);
}
#endif

// Describes sixteen rows of the left operand.
typedef struct group {
    const mz_word *const *row;
    int64_t step; // words from row to row
    bool even;    // all rows have this distance
} group;

static group group_of(const mz_word *const *row) {
    group g = {row, row[1] - row[0], true};
    for (int i = 2; i < TILE; i++)
        g.even &= row[i] - row[i - 1] == g.step;
    return g;
}

static inline __attribute__((always_inline)) void load_group(const group *g, int64_t at, mz_word *buffer) {
    if (g->even) {
        amx_load(2, g->row[0] + at, (size_t)g->step * sizeof(mz_word));
        return;
    }
    for (int i = 0; i < TILE; i++)
        memcpy(buffer + (ptrdiff_t)i * TILE, g->row[i] + at, TILE * sizeof(mz_word));
    AMX_FENCE();
    amx_load(2, buffer, 64);
}

static void rows(int64_t runs, int64_t run_words, const mz_word *const *row, const int64_t *offset, const void *panel,
                 float *c, int64_t ldc) {
    mz_word buffer[TILE * TILE] __attribute__((aligned(64)));
    const group upper = group_of(row), lower = group_of(row + TILE);
    const size_t c_row = (size_t)ldc * sizeof(float);
    for (int half = 0; half < 2; half++, c += TILE) {
        const char *b = (const char *)panel + half * AMX_BYTES;
        amx_zero(0);
        amx_zero(1);
        for (int64_t run = 0; run < runs; run++)
            for (int64_t k = 0; k < run_words; k += TILE, b += 2 * AMX_BYTES) {
                amx_load(3, b, 64);
                load_group(&upper, offset[run] + k, buffer);
                amx_dot(0, 2, 3);
                load_group(&lower, offset[run] + k, buffer);
                amx_dot(1, 2, 3);
            }
        amx_store(0, c, c_row);
        amx_store(1, c + TILE * ldc, c_row);
    }
    AMX_FENCE();
}

// Computes columns. `a`: blocks of 16 words of k, [MR][16] each, `a_step` apart.
static void columns(int64_t lines, int64_t k, const mz_word *a, int64_t a_step, int64_t a_line, const mz_word *b,
                    int64_t b_step, int64_t b_line, float *c, bool add) {
    mz_word last[TILE * TILE] __attribute__((aligned(64))) = {0}; // the pairs of a line that fill no tile, and zeros
    const size_t c_row = NR * sizeof(float);
    for (int half = 0; half < 2; half++, c += TILE, b += TILE) {
        if (add) {
            amx_load(0, c, c_row);
            amx_load(1, c + TILE * NR, c_row);
        } else {
            amx_zero(0);
            amx_zero(1);
        }
        for (int64_t line = 0; line < lines; line++) {
            const mz_word *from_a = a + line * a_line, *from_b = b + line * b_line;
            for (int64_t left = k; left > 0; left -= TILE, from_a += a_step, from_b += TILE * b_step) {
                if (left >= TILE) {
                    amx_load(3, from_b, (size_t)b_step * sizeof(mz_word));
                } else {
                    for (int64_t i = 0; i < left; i++)
                        memcpy(last + i * TILE, from_b + i * b_step, TILE * sizeof(mz_word));
                    AMX_FENCE();
                    amx_load(3, last, 64);
                }
                amx_load(2, from_a, 64);
                amx_dot(0, 2, 3);
                amx_load(2, from_a + TILE * TILE, 64);
                amx_dot(1, 2, 3);
            }
        }
        amx_store(0, c, c_row);
        amx_store(1, c + TILE * NR, c_row);
    }
    AMX_FENCE();
}

const mz_conv_kernels mz_conv_amx = {.mr = MR,
                                     .nr = NR,
                                     .pair = 2,
                                     .unit = 2 * TILE,
                                     .a_block = BLOCK_A,
                                     .copy = copy,
                                     .words = words,
                                     .rows = rows,
                                     .columns = columns};
