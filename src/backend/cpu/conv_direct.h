// Declares convolution without patches. The product's rows are pixels of a padded copy of the image, read through
// pointers; for a weight's gradient the pixels are k, read in steps. Weights are packed as the product's right operand
// is.
#ifndef MZ_CPU_CONV_DIRECT_H
#define MZ_CPU_CONV_DIRECT_H

#include "backend/backend.h"
#include "backend/cpu/matmul.h"

#define MZ_CONV_ROWS 32 // of a tile, at most

// One FP32 number, or two BF16 of consecutive k. All distances are words.
typedef uint32_t mz_word __attribute__((may_alias));

struct mz_conv_kernels {
    int mr, nr; // tile
    int pair;   // numbers of a word
    int unit;   // numbers of a run of `rows` are a multiple of it
    // Words of the left operand's blocks in `columns`: MZ_PANEL_TILE_A, 32 of k a block. 0: it lies as dy does.
    int a_block;
    // to[i] = from[i], rounded to `compute`: BF16 where a word has two, else FP32.
    void (*copy)(void *to, const void *from, mezzo_dtype dtype, mezzo_dtype compute, int64_t n);
    // to[i] = (first[i], second[i]) of BF16. NULL where a word is one number.
    void (*words)(mz_word *to, const uint16_t *first, const uint16_t *second, int64_t n);
    // c[i][j] = Σ over `runs` of Σ_k rows[i][offset[run] + k]·b[run·run_words + k][j], a whole tile.
    void (*rows)(int64_t runs, int64_t run_words, const mz_word *const *rows, const int64_t *offset, const void *b,
                 float *c, int64_t ldc);
    // c[i][j] (+)= Σ over `lines` of Σ_k a[line·a_line + k·a_step + i]·b[line·b_line + k·b_step + j], a whole tile.
    // With blocks a_step is from block to block.
    void (*columns)(int64_t lines, int64_t k, const mz_word *a, int64_t a_step, int64_t a_line, const mz_word *b,
                    int64_t b_step, int64_t b_line, float *c, bool add);
};

// Why the path has no direct convolution for the call; NULL: it has. Workspace in bytes. The bias gradient is not made.
const char *mz_conv_direct_refuses(mz_matmul_path path, const mz_call *call);
size_t mz_conv_direct_workspace(mz_matmul_path path, const mz_call *call, int threads);
void mz_conv_direct_run(mz_matmul_path path, const mz_call *call, int threads);

#endif
