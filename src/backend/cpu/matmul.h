// Declares the matrix product of the cpu backend: one driver (packing, blocking, threads, epilogue) with exchangeable
// microkernels, after BLIS (Van Zee & van de Geijn, ACM TOMS 2015). docs/dev/MATMUL.md has the loop nest and the
// reasons for the block sizes.
//
//   matmul.c            the driver: blocks, loops, threads, workspace
//   matmul_ops.c        the ops linear, matmul, linear_dx and linear_dw as products, and the list of kernels
//   kernels/matmul_*.c  what depends on the instruction set: packing, FP32 microkernel, epilogue, column sums
//   kernels/avx512bf16_matmul.c, kernels/amx_matmul.c, kernels/neonbf16_matmul.c   the BF16 microkernels
#ifndef MZ_CPU_MATMUL_H
#define MZ_CPU_MATMUL_H

#include "graph/op.h"

static inline int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// --- operands ------------------------------------------------------------------------------------------------------
// The columns of a copy of an operand that lies in an image: packing copies a few rows and MZ_GATHER_DEPTH of k at a
// time.
#define MZ_GATHER_WIDTH 32
#define MZ_GATHER_DEPTH 64
typedef struct mz_matmul_gather mz_matmul_gather; // backend/cpu/conv.c
typedef struct mz_conv_kernels mz_conv_kernels;   // backend/cpu/conv_direct.h
// Copies `ni` rows from i0 and `nk` of k from k0, elements of `size` bytes, to dst: [ni][MZ_GATHER_DEPTH] where the
// operand's k_stride is 1, else [nk][MZ_GATHER_WIDTH].
void mz_gather_copy(const mz_matmul_gather *gather, const void *data, size_t size, void *dst, int64_t i0, int ni,
                    int64_t k0, int64_t nk);

// One operand, as packing reads it: element (i, k), i = row of the left or column of the right operand, is at
// data[i·i_stride + k·k_stride], or where `gather` finds it. One of the strides is 1. Values are rounded to `compute`
// when they are packed.
typedef struct mz_matmul_operand {
    const void *data;
    mezzo_dtype dtype;
    mezzo_dtype compute; // F32, BF16 or F16; TF32 is computed by splitting FP32, which loses less than rounding would
    int64_t i_stride, k_stride;     // in elements
    const mz_matmul_gather *gather; // NULL: the strides give the place
} mz_matmul_operand;

// Says how a microkernel needs a panel of W consecutive i and all k of a block. A pair is two BF16 of consecutive k in
// 32 bits.
typedef enum mz_panel {
    MZ_PANEL_F32,    // float [k][W]
    MZ_PANEL_PAIRS,  // pair  [k/2][W]
    MZ_PANEL_TILE_A, // pair  [k/32][W][16]: AMX tiles of 16 rows × 64 bytes of a left operand
    MZ_PANEL_TILE_B, // pair  [k/32][W/16][16][16]: AMX tiles of 16 pairs of rows × 16 columns of a right operand
    // Tiles of values that BF16 does not hold, as two BF16 terms whose sum they are; part 0 is the larger. W = 32.
    MZ_PANEL_SPLIT_A, // pair  [k/32][part][W][16]
    MZ_PANEL_SPLIT_B, // pair  [k/32][part][W/16][16][16]
} mz_panel;
// A panel has space for one vector more than its elements, because the last row's store may run past it.
#define MZ_PANEL_SLACK 64

// --- epilogue ------------------------------------------------------------------------------------------------------
// Describes the post-ops of a tile of sums on its way to memory:
//     z = round_via(sum + bias); preact = z; a = act ? round_via(act(z)) : z; y = a + residual      (linear)
//     y = factors[0]·sum + factors[1]·residual                                                      (matmul)
//     y = sum · act'(preact)                                                                        (linear_dx)
// All matrices are row-major with `ld` elements a row.
typedef struct mz_matmul_epilogue {
    void *y;
    mezzo_dtype y_dtype, via; // via: F32 means no rounding
    int64_t ld;
    const void *bias; // [columns] or NULL
    mezzo_dtype bias_dtype;
    void *preact; // written by linear, read by linear_dx; or NULL
    mezzo_dtype preact_dtype;
    mz_act act;
    bool act_gradient;    // as in linear_dx
    const void *residual; // or NULL
    mezzo_dtype residual_dtype;
    const float *factors; // of the sum, the residual and the identity, as in matmul; or NULL
    bool add;             // y += sum, where y is F32 and there is no other post-op
} mz_matmul_epilogue;

// --- microkernels --------------------------------------------------------------------------------------------------
// Computes a full mr × nr tile: c = (add ? c : 0) + Σ_k a·b, summed in FP32 in the order of k.
typedef struct mz_microkernel {
    const char *name;
    int mr, nr; // rows and columns of a tile
    int k_unit; // k is padded with zeros to a multiple of this
    int kc;     // k of one call, at most, so that A's panel stays in L1
    int depth,
        depth_across; // k packed at a time: all of it where A is contiguous along it and it is at most `depth`, else
                      // depth_across
    int piece;        // k of a product of its own where neither operand lies along k; 0: all of it
    bool in_y;        // sums of several calls collect in y where y is F32; else in tiles of their own
    mz_panel a_panel, b_panel;                                                             // the formats of the
                                                                                           // operands
    void (*run)(int64_t k, const void *a, const void *b, float *c, int64_t ldc, bool add); // k is padded already
    // Computes the same without packing A, which has rows of BF16 `a_row` bytes apart: k is a multiple of k_unit. NULL:
    // A is packed.
    void (*run_rows)(int64_t k, const void *a, size_t a_row, const void *b, float *c, int64_t ldc, bool add);
    void (*begin)(void), (*end)(void); // called before and after a thread's tiles; may be NULL
    // Runs the epilogue of rows that are nr wide, where the microkernel has a faster one; returns false where it does
    // not serve them, whatever it wrote. May be NULL.
    bool (*finish)(const mz_matmul_epilogue *e, const float *tile, int64_t ld_tile, int64_t row, int64_t column,
                   int rows);
    // Packs as mz_matmul_isa's function does; NULL: that one is used.
    void (*pack)(mz_panel format, int width, void *dst, const mz_matmul_operand *src, int64_t i0, int ni, int64_t k0,
                 int64_t nk, int64_t k_padded);
    const mz_conv_kernels *conv; // of the same arithmetic, whose weights have b_panel's format; NULL: none
} mz_microkernel;

// --- instruction sets ----------------------------------------------------------------------------------------------
typedef struct mz_matmul_isa {
    const char *name;
    mz_microkernel f32;
    // Packs ni ≤ width rows from i0 and nk values of k from k0; the panel is padded with zeros to width and k_padded.
    void (*pack)(mz_panel format, int width, void *dst, const mz_matmul_operand *src, int64_t i0, int ni, int64_t k0,
                 int64_t nk, int64_t k_padded);
    // Takes rows × columns sums at (row, column) of y from a tile with `ld_tile` floats a row; the tile may lie in y.
    void (*epilogue)(const mz_matmul_epilogue *e, const float *tile, int64_t ld_tile, int64_t row, int64_t column,
                     int rows, int columns);
    // Computes tile[i][j] = Σ_k x[i][k]·w[j][k] for m rows of x [m, k] and `columns` rows of w [columns, k], without
    // packing. With BF16 weights a row of x has the numbers at even places first, then the others.
    void (*rows)(const float *x, int64_t m, int64_t k, const void *w, mezzo_dtype dtype, int columns, float *tile,
                 int64_t ld);
    // Adds pieces in order: y[j] (+)= Σ_piece sums[piece · step + j] for n of j.
    void (*add_pieces)(const float *sums, int64_t step, int64_t pieces, float *y, int64_t n, bool add);
    // Sums columns: sums[j] (+)= Σ_row x[row][j] for columns [first, first + count) of x [rows, ld].
    void (*column_sums)(const void *x, mezzo_dtype dtype, int64_t rows, int64_t ld, int64_t first, int64_t count,
                        float *sums, bool add);
} mz_matmul_isa;

extern const mz_matmul_isa mz_matmul_isa__portable;
#if defined(__x86_64__)
extern const mz_matmul_isa mz_matmul_isa__avx2, mz_matmul_isa__avx512;
extern const mz_microkernel mz_microkernel_avx512bf16, mz_microkernel_amx;
extern const mz_conv_kernels mz_conv_avx512bf16, mz_conv_amx;
extern const mz_microkernel mz_microkernel_amx_f16, mz_microkernel_amx_tf32; // by two BF16 terms
// Implements mz_microkernel.finish for tiles of `rows` rows and 32 columns: what training stores in BF16 and FP16
// (avx512bf16_epilogue.c).
bool mz_matmul_finish_32(const mz_matmul_epilogue *e, const float *tile, int64_t ld_tile, int64_t row, int64_t column,
                         int rows);
#elif defined(__aarch64__)
extern const mz_matmul_isa mz_matmul_isa__neon;
extern const mz_microkernel mz_microkernel_neonbf16;
#endif

// --- driver --------------------------------------------------------------------------------------------------------
// Describes y[b] (+)= epilogue(A[b]·B[b]ᵀ) for `batches` products of m × n × k, each operand indexed (i, k).
typedef struct mz_matmul_problem {
    int64_t m, n, k, batches;
    mz_matmul_operand a, b;
    int64_t a_step, b_step, y_step; // elements from one batch to the next
    mz_matmul_epilogue out;
    bool accumulate; // y += …, where y is F32 and there is no epilogue
} mz_matmul_problem;

// The parts of a product: a microkernel and the instruction set whose packing and epilogue serve it.
typedef struct mz_matmul_path {
    const mz_microkernel *kernel;
    const mz_matmul_isa *isa;
} mz_matmul_path;

// Multiplies a few rows of A by B as it is stored: B is contiguous along k, and neither has to be rounded. There is one
// batch and no accumulation.
#define MZ_MATMUL_ROWS 4 // the most rows
size_t mz_matmul_rows_workspace(const mz_matmul_problem *problem);
void mz_matmul_rows_run(const mz_matmul_isa *isa, const mz_matmul_problem *problem, int threads, void *workspace);

size_t mz_matmul_workspace(mz_matmul_path path, const mz_matmul_problem *problem, int threads); // workspace in bytes
// Runs the product. Results have the same bits for every number of threads. `workspace` is 64-byte aligned.
void mz_matmul_run(mz_matmul_path path, const mz_matmul_problem *problem, int threads, void *workspace);
// Packs the nj rows of a right operand from j0 on and all of its k, a multiple of k_unit, into one panel.
void mz_matmul_pack_b(mz_matmul_path path, void *panel, const mz_matmul_operand *b, int64_t j0, int nj, int64_t k);
void mz_matmul_column_sums(mz_matmul_path path, const void *x, mezzo_dtype dtype, int64_t rows, int64_t columns,
                           float *sums, bool add, int threads);

#endif
