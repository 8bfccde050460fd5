// Declares convolution without patches. The product's rows are pixels of a padded copy of the image, read through
// pointers; in a weight's gradient the pixels are k, read in steps. Weights are packed like a product's right operand.
#ifndef MZ_CPU_CONV_DIRECT_H
#define MZ_CPU_CONV_DIRECT_H

#include "backend/backend.h"
#include "backend/cpu/matmul.h"

#define MZ_CONV_ROWS 32 // of a tile, at most

// A word is one FP32 number, or two BF16 numbers of consecutive k. All distances are in words.
typedef uint32_t mz_word __attribute__((may_alias));

struct mz_conv_kernels {
    int mr, nr; // rows and columns of a tile
    int pair;   // numbers of a word
    int unit;   // the numbers of a run of `rows` are a multiple of it
    // Words of the left operand's blocks in `columns`: MZ_PANEL_TILE_A, 32 of k a block. 0: it is stored like dy.
    int a_block;
    // Copies to[i] = from[i], rounded to `compute`: BF16 where a word has two numbers, else FP32.
    void (*copy)(void *to, const void *from, mezzo_dtype dtype, mezzo_dtype compute, int64_t n);
    // Makes to[i] = (first[i], second[i]) of BF16. NULL where a word is one number.
    void (*words)(mz_word *to, const uint16_t *first, const uint16_t *second, int64_t n);
    // Computes a whole tile c[i][j] = Σ over `runs` of Σ_k rows[i][offset[run] + k]·b[run·run_words + k][j].
    void (*rows)(int64_t runs, int64_t run_words, const mz_word *const *rows, const int64_t *offset, const void *b,
                 float *c, int64_t ldc);
    // Computes a whole tile c[i][j] (+)= Σ over `lines` of Σ_k a[line·a_line + k·a_step + i]·b[line·b_line + k·b_step +
    // j]. With blocks a_step is the distance between blocks.
    void (*columns)(int64_t lines, int64_t k, const mz_word *a, int64_t a_step, int64_t a_line, const mz_word *b,
                    int64_t b_step, int64_t b_line, float *c, bool add);
};

// Returns why the path has no direct convolution for the call; NULL: it has one. The next function returns its
// workspace in bytes. Neither makes the bias gradient.
const char *mz_conv_direct_refuses(mz_matmul_path path, const mz_call *call);
size_t mz_conv_direct_workspace(mz_matmul_path path, const mz_call *call, int threads);
void mz_conv_direct_run(mz_matmul_path path, const mz_call *call, int threads);

#endif
