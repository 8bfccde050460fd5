// The C files beside this folder call the device code through these launchers, which have plain types. A launcher
// enqueues on `stream`, allocates nothing, waits for nothing and returns what cudaGetLastError() says of its launches.
// dtypes are mezzo_dtype values as int: 1 fp32, 3 bf16, 4 fp16, 5 and 6 fp8 (checked in cuda.c and quantize.c). Strides
// and counts are in elements.
#ifndef MZ_CUDA_LAUNCH_H
#define MZ_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graph/kinds.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MZ_CU_F32 = 1,
    MZ_CU_TF32 = 2,
    MZ_CU_BF16 = 3,
    MZ_CU_F16 = 4,
    MZ_CU_F8E4M3 = 5,
    MZ_CU_F8E5M2 = 6,
    MZ_CU_I32 = 8
};

// A tensor's storage in any of the float dtypes; data NULL where it is absent.
typedef struct mz_cu_array {
    void *data;
    int dtype;
} mz_cu_array;
typedef struct mz_cu_layout { // graph/storage.h's mz_layout (checked in update.c)
    int64_t width, pitch, group, group_pitch;
} mz_cu_layout;

// --- device.cu: does nothing; cudaErrorNoKernelImageForDevice where this build has no code for the GPU.
cudaError_t mz_cu_probe(cudaStream_t stream);

// --- attention_*.cu ------------------------------------------------------------------------------------------------
// Attention, forward and backward: one description for all its kernels. Row b·T + t of q begins q_row elements after
// the row before it, of k and v kv_row: a packed [B, T, 3·H·D] is three pointers into one tensor. y and dy are [B, T,
// H·D]; dq, dk, dv lie as q, k, v do.
typedef struct mz_cu_attention {
    const void *q, *k, *v;
    void *y;
    float *lse;     // [B, H, T] natural log-sum-exp of the scaled scores; forward: may be NULL
    const void *dy; // backward
    void *dq, *dk, *dv;
    float *delta;                                    // [B, H, T] workspace of backward: dy·y
    const void *rng;                                 // mz_rng_state on the device; read where p > 0
    int dtype, compute;                              // of storage, and what operands are rounded to: mezzo_dtype values
    int cc, sms;                                     // compute capability × 10, multiprocessors
    int batch, length, keys, heads, kv_heads, width; // length: of queries
    bool causal;
    long long q_row, kv_row;
    float scale;              // 1/√width
    float p;                  // dropout
    uint32_t stream;          // attrs.rng
    bool limited;             // one of the next three is there, or will be
    int window;               // 0: none
    float cap;                // of scores; 0: none
    const int32_t *positions; // [B, T], NULL: a row is one document
    int parts;                // wgmma's dk and dv: the heads that share keys, in this many parts; 1: no sums of parts
    float *sums;              // [2, parts, B, T, kv_heads·width] of dk and dv, where there are several parts
} mz_cu_attention;
// Tensor-core kernels: width a multiple of 8 up to 128, BF16 (from 8.0) or FP16 (from 7.5) storage and compute.
// prepare: launches nothing; once for every dtype and width before the first launch, outside of any capture.
cudaError_t mz_cu_attention_mma(cudaStream_t stream, const mz_cu_attention *a, bool prepare);
cudaError_t mz_cu_attention_mma_dq(cudaStream_t stream, const mz_cu_attention *a, bool prepare);  // delta, dq
cudaError_t mz_cu_attention_mma_dkv(cudaStream_t stream, const mz_cu_attention *a, bool prepare); // dk, dv; reads delta
// The same for compute capability 9.0; delta is [B, H, T padded to a multiple of 64] × (lse in base 2, Δ).
cudaError_t mz_cu_attention_wgmma_dq(cudaStream_t stream, const mz_cu_attention *a, bool prepare);
cudaError_t mz_cu_attention_wgmma_dkv(cudaStream_t stream, const mz_cu_attention *a, bool prepare);
// All others are causal, with as many keys as queries.
// FP32 arithmetic: any width up to 256 (128 on 7.5), any float storage; compute FP32, TF32, or what storage is.
cudaError_t mz_cu_attention_fma(cudaStream_t stream, const mz_cu_attention *a, bool prepare);
cudaError_t mz_cu_attention_fma_bwd(cudaStream_t stream, const mz_cu_attention *a, bool prepare);
// FP32 storage on tensor cores, from 8.0: width a multiple of 4 up to 128; compute TF32, or FP32 in three TF32
// products.
cudaError_t mz_cu_attention_tf32(cudaStream_t stream, const mz_cu_attention *a, bool prepare);
cudaError_t mz_cu_attention_tf32_bwd(cudaStream_t stream, const mz_cu_attention *a, bool prepare);

// --- attention_cached.cu -------------------------------------------------------------------------------------------
typedef struct mz_cu_cached {
    const void *q, *k, *v;                     // [B, T, …], rows q_row and kv_row apart
    float *cache_k, *cache_v;                  // [B, size, kv_heads·width]
    const int32_t *positions;                  // on the device; the first is where the new rows go
    void *y;                                   // [B, T, heads·width]
    int dtype, compute;                        // of q, k, v, y; and what q, k and v are rounded to
    int batch, length, heads, kv_heads, width; // width at most 256
    int64_t q_row, kv_row, size;
    float scale, cap; // cap of scores; 0: none
    int64_t window;   // 0: none
} mz_cu_cached;
cudaError_t mz_cu_attention_cached(cudaStream_t stream, const mz_cu_cached *a);

// --- matmul.cu: what cuBLASLt's epilogues cannot do ----------------------------------------------------------------
// y = residual + round_via(act(round_via(z + bias))), preact = round_via(z + bias); all [rows, cols] but bias [cols].
// Only z and y must be there. act is a mz_act.
typedef struct mz_cu_epilogue {
    mz_cu_array z, bias, residual, preact, y;
    int64_t rows, cols;
    int act, via;
} mz_cu_epilogue;
cudaError_t mz_cu_linear_epilogue(cudaStream_t stream, const mz_cu_epilogue *e);
// dx = round(product · act'(preact)), product FP32; preact may be absent.
cudaError_t mz_cu_act_dx(cudaStream_t stream, const void *product, mz_cu_array preact, mz_cu_array dx, int64_t n,
                         int act);
cudaError_t mz_cu_convert(cudaStream_t stream, mz_cu_array src, mz_cu_array dst, int64_t n);
// out [cols] = the columns' sums of x [rows, cols], added to what is there with `accumulate`; `partial`: scratch of
// ..._bytes().
size_t mz_cu_column_sums_bytes(int64_t rows, int64_t cols);
cudaError_t mz_cu_column_sums(cudaStream_t stream, mz_cu_array x, float *out, int64_t rows, int64_t cols,
                              bool accumulate, float *partial);
// out [cols] (+)= the sums of partial [chunks, cols].
cudaError_t mz_cu_add_partials(cudaStream_t stream, const float *partial, float *out, int64_t cols, int64_t chunks,
                               bool accumulate);
// For choosing algorithms: n numbers in [-1, 1), or with `cancel` numbers whose products' sum shows its order in any
// format of the result; *out = 1 where any 4 bytes differ.
cudaError_t mz_cu_fill(cudaStream_t stream, mz_cu_array x, int64_t n, uint32_t seed, bool cancel);
cudaError_t mz_cu_differs(cudaStream_t stream, const void *a, const void *b, size_t bytes, int32_t *out);

// --- elementwise.cu ------------------------------------------------------------------------------------------------
// Eight bits. most: the bits of the largest magnitude, a NaN's above all. widen: exact, to BF16; x lies as [cols, rows]
// where it is turned.
typedef struct mz_cu_scales { // that of (row, col) is data[(row >> row_shift)·row_step + (col >> col_shift)·col_step]
    const float *data;
    int64_t row_step, col_step;
    int row_shift, col_shift;
} mz_cu_scales;
cudaError_t mz_cu_amax(cudaStream_t stream, mz_cu_array x, int64_t n, uint32_t *amax);
cudaError_t mz_cu_widen(cudaStream_t stream, mz_cu_array x, mz_cu_scales scales, void *y, int64_t rows, int64_t cols,
                        bool columnwise);
// x [rows, cols], rounded to BF16 first where `via` says so, then to blocks (mezzo_blocks) along the columns, or down
// the rows, → FP32, at random where random.rng is not NULL. `amax` as above, of x. x may be y.
typedef struct mz_cu_at_random {
    const void *rng; // mz_rng_state
    uint32_t stream;
    int64_t first; // which element of the operand x[0] is
} mz_cu_at_random;
cudaError_t mz_cu_blocks(cudaStream_t stream, mz_cu_array x, float *y, int64_t rows, int64_t cols, int down, int blocks,
                         int via, const uint32_t *amax, const mz_cu_at_random *random);
// base/blocks.h's mz_blocks_turn_run along each column of x, rounded as `via` says, → FP32; signs by rng's seed.
cudaError_t mz_cu_turn(cudaStream_t stream, mz_cu_array x, float *y, int64_t rows, int64_t cols, int blocks, int via,
                       const void *rng);
// The ops of element.def, and a few more: MZ_CU_<op>.
enum {
#define KERNEL1(name, ...) MZ_CU_##name,
#define KERNEL2            KERNEL1
#define KERNEL3            KERNEL1
#include "graph/element.def"
    MZ_CU_GELU,
    MZ_CU_GELU_TANH,
    MZ_CU_GELU_DX,
    MZ_CU_GELU_TANH_DX,
    MZ_CU_CAST
};
typedef struct mz_cu_told { // attributes
    float alpha, low, high;
} mz_cu_told;
// y[i] = map(x[i]); x and y may be one storage of one dtype.
cudaError_t mz_cu_map(cudaStream_t stream, int map, mz_cu_array x, mz_cu_array y, int64_t n, mz_cu_told told);
// y[i] = zip(a[i], b[i mod nb]); gradients: a = dy, b = x. a and y may be one storage of one dtype.
cudaError_t mz_cu_zip(cudaStream_t stream, int zip, mz_cu_array a, mz_cu_array b, mz_cu_array y, int64_t n, int64_t nb,
                      mz_cu_told told);
// Operands that may repeat: loops with strides in elements (mz_broadcast), 0 for what repeats.
enum { MZ_CU_RANK = 6, MZ_CU_OPERANDS = 3 };
typedef struct mz_cu_broadcast {
    int rank;
    int64_t dim[MZ_CU_RANK], step[MZ_CU_OPERANDS][MZ_CU_RANK];
} mz_cu_broadcast;
cudaError_t mz_cu_zip_broadcast(cudaStream_t stream, int zip, mz_cu_array a, mz_cu_array b, mz_cu_array y,
                                const mz_cu_broadcast *repeats); // of BINARY_OWN
// One to three operands, and integers in any place; all but what the two above serve.
cudaError_t mz_cu_operands(cudaStream_t stream, int op, const mz_cu_array *in, mz_cu_array y,
                           const mz_cu_broadcast *repeats);
// rng: the run's mz_rng_state; tensor: attrs.rng.
cudaError_t mz_cu_dropout(cudaStream_t stream, mz_cu_array x, mz_cu_array y, int64_t n, float p, uint32_t tensor,
                          const void *rng);

// --- gated.cu: swiglu and rope -------------------------------------------------------------------------------------
// x [rows, 2·width], the gate first → y [rows, width]; dy [rows, width] → dx [rows, 2·width].
cudaError_t mz_cu_swiglu(cudaStream_t stream, mz_cu_array x, mz_cu_array y, int64_t rows, int width);
cudaError_t mz_cu_swiglu_dx(cudaStream_t stream, mz_cu_array dy, mz_cu_array x, mz_cu_array dx, int64_t rows,
                            int width);
// table [length, dims]; positions [length] or NULL: 0 … length-1.
typedef struct mz_cu_rope_scaling { // mz_rope_scaling
    float divisor, offset, slope, amplitude;
    bool by_index;
} mz_cu_rope_scaling;
cudaError_t mz_cu_rope_table(cudaStream_t stream, const int32_t *positions, float *table, int64_t length, int dims,
                             float theta, mz_cu_rope_scaling scaling);
typedef struct mz_cu_rope_args {
    mz_cu_array x, y;   // [rows, heads, width]; may be one storage of one dtype
    const float *table; // [length, dims]
    int64_t rows, length;
    int heads, rotated, width, dims;
    bool interleaved, inverse;
} mz_cu_rope_args;
cudaError_t mz_cu_rope(cudaStream_t stream, const mz_cu_rope_args *args);

// --- layernorm.cu: layer norm and RMS norm -------------------------------------------------------------------------
typedef struct mz_cu_layernorm_args {
    // [rows, width], a row `pitch` elements after the one before, padding 0; residual and sum may be absent
    mz_cu_array x, residual, y, sum;
    const float *weight, *bias; // [width] or NULL
    float *mean, *rstd;         // [rows] or NULL
    float eps, offset;          // offset: added to weight
    bool centred;               // false: RMS norm
    int width, pitch;
    int64_t rows;
} mz_cu_layernorm_args;
cudaError_t mz_cu_layernorm(cudaStream_t stream, const mz_cu_layernorm_args *args);

typedef struct mz_cu_layernorm_bwd_args {
    mz_cu_array dy, x, dres, dx; // [rows, width] with `pitch`, padding 0; dres may be absent; dx may be dy
    mz_cu_array low;             // [rows, width], dx rounded once more; may be absent
    const float *weight;         // [width] or NULL
    float offset;                // added to weight
    const float *mean, *rstd;    // [rows]; mean NULL: RMS norm
    float *dweight, *dbias;      // [width] or NULL
    float *linear_dbias;         // [width] or NULL: column sums of low, or of dx without it
    float *partial;              // [parts, 3, pitch], workspace; not touched where these three are NULL
    int parts;                   // mz_cu_layernorm_bwd_parts
    int width, pitch;
    int64_t rows;
    bool accumulate;
} mz_cu_layernorm_bwd_args;
int mz_cu_layernorm_bwd_parts(int64_t rows, int pitch, int sms);
cudaError_t mz_cu_layernorm_bwd(cudaStream_t stream, const mz_cu_layernorm_bwd_args *args);

// --- softmax.cu ----------------------------------------------------------------------------------------------------
cudaError_t mz_cu_softmax(cudaStream_t stream, mz_cu_array x, mz_cu_array y, int64_t rows, int width);
// dx may be dy.
cudaError_t mz_cu_softmax_dx(cudaStream_t stream, mz_cu_array dy, mz_cu_array y, mz_cu_array dx, int64_t rows,
                             int width);

// --- product.cu ----------------------------------------------------------------------------------------------------
// BF16 and FP16 products with their epilogues, compute capability 9.0. a [rows, inner]; w [cols, inner], with DACT
// [inner, cols]; inner and cols multiples of 8, everything 16-byte aligned.
enum { MZ_CU_PRODUCT_RESIDUAL, MZ_CU_PRODUCT_DACT };
typedef struct mz_cu_product {
    int epilogue;
    int dtype; // of a and w; of preact and out with DACT
    const void *a, *w;
    mz_cu_array bias;      // RESIDUAL: [cols] or NULL
    const float *residual; // RESIDUAL: out [rows, cols] FP32 = a·wᵀ + bias + residual
    const void *preact;    // DACT: out = round(a·w·gelu'(preact))
    void *out;
    float *partial; // DACT: [mz_cu_product_parts(rows), cols], to be added up to the sums of out's columns; or NULL
    int64_t rows;
    int cols, inner;
} mz_cu_product;
int64_t mz_cu_product_parts(int64_t rows);
// prepare: asks for the shared memory that it needs, once; nothing is launched.
cudaError_t mz_cu_product_run(cudaStream_t stream, const mz_cu_product *args, int sms, bool prepare);

enum { MZ_CU_LOSS_WARP_WIDTH = 2048 }; // up to here a row of logits is a warp's, above a block's
// --- loss.cu -------------------------------------------------------------------------------------------------------
typedef struct mz_cu_cross_entropy_args {
    mz_cu_array logits;     // [rows, width], a row `pitch` elements after the one before
    const int32_t *targets; // [all]; the rows' are those from first_row on
    float *loss, *lse;      // [1]: the rows' share of the mean over all targets; [rows] or NULL
    float *terms;           // [rows], workspace
    int ignore_index, width, pitch;
    float cap; // logits are cap·tanh(x/cap); 0: they stay
    int64_t rows, all, first_row;
} mz_cu_cross_entropy_args;
cudaError_t mz_cu_cross_entropy(cudaStream_t stream, const mz_cu_cross_entropy_args *args);

typedef struct mz_cu_cross_entropy_dx_args {
    mz_cu_array logits, dx; // [rows, width], both with `pitch`; dx may be logits; its padding becomes 0
    const float *dloss;     // [1]
    const int32_t *targets; // [all]; the rows' are those from first_row on
    const float *lse;       // [rows]
    float *factor;          // [1], workspace
    int ignore_index, width, pitch;
    float cap;
    int64_t rows, all, first_row;
} mz_cu_cross_entropy_dx_args;
cudaError_t mz_cu_cross_entropy_dx(cudaStream_t stream, const mz_cu_cross_entropy_dx_args *args);

// Both in one pass: a row stays in shared memory between its two halves. Where mz_cu_cross_entropy_both_bytes(…) is at
// most what a block may have, and pitches are vectors of 8. The gradient's lse is the loss's.
size_t mz_cu_cross_entropy_both_bytes(int pitch, int dtype);
cudaError_t mz_cu_cross_entropy_both(cudaStream_t stream, const mz_cu_cross_entropy_args *loss,
                                     const mz_cu_cross_entropy_dx_args *gradient);

// --- embedding.cu --------------------------------------------------------------------------------------------------
// table [rows, width], ids [n], y [n, width].
cudaError_t mz_cu_embedding(cudaStream_t stream, mz_cu_array table, const int32_t *ids, mz_cu_array y, int64_t n,
                            int64_t rows, int width);

typedef struct mz_cu_embedding_bwd_args {
    mz_cu_array dy;     // [n, width]
    const int32_t *ids; // [n]
    float *dtable;      // [rows, width]
    void *workspace;    // mz_cu_embedding_bwd_workspace bytes, 64-byte aligned
    int64_t n, rows;
    int width;
    bool accumulate;
} mz_cu_embedding_bwd_args;
size_t mz_cu_embedding_bwd_workspace(int64_t n, int width);
cudaError_t mz_cu_embedding_bwd(cudaStream_t stream, const mz_cu_embedding_bwd_args *args);

// --- reduce.cu -----------------------------------------------------------------------------------------------------
typedef struct mz_cu_sum_args {
    mz_cu_array x, y; // [outer, axis, inner] → [outer, inner]
    int64_t outer, axis, inner;
    int parts;      // mz_cu_sum_parts
    float *partial; // [outer, parts, inner], workspace; not touched where parts is 1
    bool accumulate;
    float divisor; // of the sum: 1, or the axis for means
} mz_cu_sum_args;
int mz_cu_sum_parts(int64_t outer, int64_t axis, int64_t inner, int sms);
cudaError_t mz_cu_sum(cudaStream_t stream, const mz_cu_sum_args *args);
// dy [outer, inner] → dx [outer, axis, inner], times alpha.
cudaError_t mz_cu_expand(cudaStream_t stream, mz_cu_array dy, mz_cu_array dx, int64_t outer, int64_t axis,
                         int64_t inner, float alpha);

// --- columns.cu ----------------------------------------------------------------------------------------------------
enum {
    MZ_CU_MAX,
    MZ_CU_MIN,
    MZ_CU_ARGMAX,
    MZ_CU_EXTREMUM_DX,
    MZ_CU_PROD,
    MZ_CU_PROD_DX,
    MZ_CU_CUMSUM,
    MZ_CU_GATHER,
    MZ_CU_SCATTER_ADD
};
typedef struct mz_cu_columns { // the op's inputs in order; x, or y of scatter_add, is [outer, axis, inner]
    mz_cu_array in[3], out;
    int64_t outer, axis, inner;
    bool reverse, exclusive; // cumsum
    const int32_t *index;    // gather, scatter_add: [n], or elementwise [outer, n, inner]
    int64_t n;
    bool elementwise;
    float *sum; // scatter_add: of out's size, or out itself
} mz_cu_columns;
cudaError_t mz_cu_columns_run(cudaStream_t stream, int op, const mz_cu_columns *args);
cudaError_t mz_cu_fill_with(cudaStream_t stream, mz_cu_array y, int64_t n, float value); // any float, or I32

// --- shape.cu ------------------------------------------------------------------------------------------------------
enum { MZ_CU_PARTS = 16 };
typedef struct mz_cu_parts { // sizes in bytes: part i is width[i] of every `stride` of the whole, from offset[i]
    void *whole, *part[MZ_CU_PARTS];
    int64_t outer, stride, width[MZ_CU_PARTS], offset[MZ_CU_PARTS];
    int n;
} mz_cu_parts;
cudaError_t mz_cu_copy_parts(cudaStream_t stream, const mz_cu_parts *parts, bool join);
// y's loops in order, with their strides in x; units of `size` bytes (1 2 4 8 16).
typedef struct mz_cu_permuted {
    int rank, size;
    int64_t dim[MZ_CU_RANK], stride[MZ_CU_RANK];
} mz_cu_permuted;
cudaError_t mz_cu_permute(cudaStream_t stream, const void *x, void *y, const mz_cu_permuted *p);
// y's `stored` elements of `size` bytes (1, 2, 4 or 8) from x's n: elements where `to` has them, zeros between.
cudaError_t mz_cu_copy(cudaStream_t stream, const void *x, mz_cu_layout from, void *y, mz_cu_layout to, int64_t n,
                       int64_t stored, size_t size);
cudaError_t mz_cu_arange(cudaStream_t stream, int32_t *y, int64_t n, int64_t begin, int64_t step);

// --- image.cu ------------------------------------------------------------------------------------------------------
// Convolution: x [b, h, w, c], weight [n, r, s, depth], y [b, p, q, n], depth = c/groups. conv2d writes y, conv2d_dx
// reads y as dy and writes x as dx, conv2d_dw reads both and writes weight as dw, FP32.
typedef struct mz_cu_conv {
    mz_cu_array x, weight, bias, y;
    int64_t b, h, w, c, n, r, s, depth, p, q, stride, pad, groups;
} mz_cu_conv;
cudaError_t mz_cu_conv2d(cudaStream_t stream, const mz_cu_conv *v);
cudaError_t mz_cu_conv2d_dx(cudaStream_t stream, const mz_cu_conv *v);
cudaError_t mz_cu_conv2d_dw(cudaStream_t stream, const mz_cu_conv *v, bool accumulate);
// x FP32, one group: each pixel's sum of taps [b, p, q, r, s, c]; both at multiples of 16 bytes. h and b: up to 65,535.
cudaError_t mz_cu_conv2d_gather(cudaStream_t stream, const mz_cu_conv *v, const float *taps);
// x [b, pixels, c] in groups of depth = c/groups; weight and bias [c], film [b, 2·c], mean and rstd [b, groups].
// Backward: y is dy; sums: scratch of 2·b·c floats; dweight, dbias may be NULL.
typedef struct mz_cu_group_norm {
    mz_cu_array x, weight, bias, film, y;
    float *mean, *rstd;
    int64_t b, pixels, c, groups, depth;
    float eps;
    bool silu;
} mz_cu_group_norm;
cudaError_t mz_cu_group_norm_forward(cudaStream_t stream, const mz_cu_group_norm *v);
cudaError_t mz_cu_group_norm_backward(cudaStream_t stream, const mz_cu_group_norm *v, mz_cu_array dx, mz_cu_array dfilm,
                                      float *dweight, float *dbias, bool accumulate, float *sums);
// y [rows, width, channels], the rows of all images; x is `from_width` wide.
typedef struct mz_cu_resampling {
    int64_t rows, width, channels, from_width;
    int factor;
    float alpha;
} mz_cu_resampling;
cudaError_t mz_cu_resample(cudaStream_t stream, mz_cu_array x, mz_cu_array y, const mz_cu_resampling *v, bool larger);
// y [rows, row]; `tensor`: mz_noise_key's.
cudaError_t mz_cu_normal(cudaStream_t stream, const int32_t *keys, mz_cu_array y, int64_t rows, int64_t row,
                         uint32_t tensor);
cudaError_t mz_cu_time_embedding(cudaStream_t stream, mz_cu_array times, mz_cu_array y, int64_t n, int64_t dims,
                                 float factor, float longest); // y [n / dims, dims]

// --- mse.cu --------------------------------------------------------------------------------------------------------
// loss = mean (x - target)²; `partial`: scratch of ..._bytes(). dx = dloss · 2/n · (x - target).
size_t mz_cu_mse_bytes(int64_t n);
cudaError_t mz_cu_mse(cudaStream_t stream, mz_cu_array x, mz_cu_array target, float *loss, int64_t n, float *partial);
cudaError_t mz_cu_mse_dx(cudaStream_t stream, const float *dloss, mz_cu_array x, mz_cu_array target, mz_cu_array dx,
                         int64_t n);

// --- update.cu, control.cu -----------------------------------------------------------------------------------------
// update.h's mz_segment, mz_opt_state and mz_scaler_block, member for member (checked in update.c).
typedef struct mz_cu_segment {
    int64_t offset, grad_shift, master_shift, first, count, state_offset, low_copy_offset;
    int32_t low_copy_dtype, decay;
    int64_t low_offset;
    int32_t master;
    uint32_t key;
    mz_cu_layout layout;
} mz_cu_segment;
#define MZ_CU_NO_LOW_COPY INT64_MIN                                      // MZ_NO_LOW_COPY
enum { MZ_CU_MASTER_FP32, MZ_CU_MASTER_SPLIT, MZ_CU_MASTER_STOCHASTIC }; // mezzo_master's
typedef struct mz_cu_opt_state {
    int64_t step, skipped;
    double norm, clip, lr, bias[MZ_GROUPS][2], last_clip;
    int32_t found_inf, skip, last_found_inf, guard, bad, halted;
    float scale;
} mz_cu_opt_state;
typedef struct mz_cu_scaler_block {
    float scale;
    int32_t tracker, hysteresis, floor_hits;
    int64_t skipped;
} mz_cu_scaler_block;

// grad: `elements` of the flat buffer; state: mz_opt_state; partial: elements/4096 + n + 1 doubles of workspace.
// pieces: elements/4096 doubles, or NULL: norm and found_inf are written.
cudaError_t mz_cu_grad_stats(cudaStream_t stream, const void *segments, int n, const float *scale, bool keeps,
                             float *grad, int64_t elements, void *state, double *pieces, double *partial, int sms,
                             bool padded);
// pieces [n]; states: mz_opt_state [ranks], NULL where ranks is 0
cudaError_t mz_cu_norm_across_ranks(cudaStream_t stream, const double *pieces, int64_t n, const void *states, int ranks,
                                    void *state);

typedef struct mz_cu_update_args {
    const void *segments, *state; // mz_segment[n], mz_opt_state
    const float *grad;
    float *master;
    void *moment[MZ_KIND_MOMENTS]; // NULL: the kind keeps none
    int moment_bytes;              // of an element: 4 FP32, 2 BF16, 1 records of base/dynamic8.h
    void *low_copy;                // or NULL
    float *ema;                    // or NULL
    int64_t elements;              // of the segments
    int n, sms;
    bool overlaps; // leaves room for other streams
    bool padded;   // some segment's layout has padding
    mz_update_rule rule;
} mz_cu_update_args;
#define KIND(name, ...) cudaError_t mz_cu_##name(cudaStream_t stream, const mz_cu_update_args *args);
#include "mezzo/optimizers.def"
#undef KIND
cudaError_t mz_cu_refresh(cudaStream_t stream, const void *segments, int n, const float *master, int64_t elements,
                          void *low_copy, int sms, bool padded);

// orthogonal.cu. `matrices` of `each` elements; partial: for each chunk of a matrix an FP64. side: of a square matrix.
enum { MZ_CU_NORMALIZE_CHUNK = 4096 };
typedef struct mz_cu_polynomial {
    float at[3];
} mz_cu_polynomial;
cudaError_t mz_cu_matrix_normalize(cudaStream_t stream, const float *x, mz_cu_array y, int64_t each, int matrices,
                                   float eps, float alpha, double *partial);
cudaError_t mz_cu_matrix_polynomial(cudaStream_t stream, mz_cu_array a, mz_cu_array a2, mz_cu_array y, int64_t n,
                                    int64_t side, mz_cu_polynomial coefficients);

// histogram.cu: adds to counts, int32 [MZ_CU_HISTOGRAM_BUCKETS], backend.h's MZ_HISTOGRAM_BUCKETS.
enum { MZ_CU_HISTOGRAM_BUCKETS = 281 };
cudaError_t mz_cu_histogram(cudaStream_t stream, mz_cu_array x, mz_cu_layout layout, int64_t n, void *counts, int sms);

cudaError_t mz_cu_clip_control(cudaStream_t stream, void *state, double max_norm);
enum {
    MZ_CU_LR_CONSTANT,
    MZ_CU_LR_LINEAR,
    MZ_CU_LR_COSINE,
    MZ_CU_LR_POLYNOMIAL
}; // mezzo_schedule's (checked in update.c)
typedef struct mz_cu_schedule {
    int kind;
    double lr, min_lr, power;
    int64_t warmup, steps;
} mz_cu_schedule;
typedef struct mz_cu_betas {
    double beta[MZ_GROUPS][2];
    int groups;
} mz_cu_betas;
cudaError_t mz_cu_step_control(cudaStream_t stream, void *state, const mz_cu_schedule *schedule,
                               const mz_cu_betas *betas);

enum { MZ_CU_STATES = 16 };
typedef struct mz_cu_states {
    void *state[MZ_CU_STATES]; // mz_opt_state
    int n;
} mz_cu_states;
typedef struct mz_cu_scaler_constants {
    bool enabled;
    double growth_factor, backoff_factor, min_scale, max_scale;
    int64_t growth_interval;
    int hysteresis;
} mz_cu_scaler_constants;
cudaError_t mz_cu_scaler_update(cudaStream_t stream, void *block, const mz_cu_states *states,
                                const mz_cu_scaler_constants *constants);

// --- inspect.cu ----------------------------------------------------------------------------------------------------
enum { MZ_CU_INSPECTED = 16, MZ_CU_GUARD_ON = 1, MZ_CU_GUARD_GRADIENTS = 2, MZ_CU_BAD_GRADIENTS = 8 }; // backend.h's
typedef struct mz_cu_inspection {
    int64_t inspected, nans, infs, large, zeros, tiny;
    float low, high;
} mz_cu_inspection; // mz_inspection
typedef struct mz_cu_inspect_args {
    mz_cu_array x[MZ_CU_INSPECTED];
    mz_cu_layout layout[MZ_CU_INSPECTED];
    int64_t count[MZ_CU_INSPECTED];
    int n, bad_first, bad_rest;
    int64_t sample; // 0 = all
    float limit;
    const void *rng; // mz_rng_state
    mz_cu_inspection *found;
    void *state; // mz_opt_state, or NULL
} mz_cu_inspect_args;
cudaError_t mz_cu_inspect(cudaStream_t stream, const mz_cu_inspect_args *args);

// --- experts.cu ----------------------------------------------------------------------------------------------------
typedef struct mz_cu_route_args {
    mz_cu_array logits; // [tokens, experts]
    const float *bias;  // [experts] or NULL
    float *weights;     // [tokens, top_k]
    int32_t *indices;   // [tokens, top_k]
    int64_t tokens;
    int experts, top_k, groups, top_groups; // experts at most 1024; groups at least 1
    bool normalise, softmax;
    float alpha;
} mz_cu_route_args;
cudaError_t mz_cu_route(cudaStream_t stream, const mz_cu_route_args *args);
typedef struct mz_cu_route_dx_args {
    const float *dweights;  // [tokens, top_k]
    mz_cu_array logits, dx; // [tokens, experts]
    const int32_t *indices; // [tokens, top_k]
    int64_t tokens;
    int experts, top_k;
    bool normalise, softmax;
    float alpha;
} mz_cu_route_dx_args;
cudaError_t mz_cu_route_dx(cudaStream_t stream, const mz_cu_route_dx_args *args);

// indices, order, place [rows]; offsets [experts + 1]; experts at most 1024.
size_t mz_cu_expert_order_workspace(int64_t rows, int experts);
cudaError_t mz_cu_expert_order(cudaStream_t stream, const int32_t *indices, int64_t rows, int experts, int32_t *order,
                               int32_t *place, int32_t *offsets, void *workspace);

typedef struct mz_cu_move_args {
    mz_cu_array x, y;     // dispatch: [rows / top_k, width] → [rows, width]; combine: the other way
    const int32_t *index; // [rows]: dispatch's order, combine's place
    const float *weights; // [rows] by token and choice, or NULL
    mz_cu_array added[2]; // combine: what is added to its sums, in this order; data NULL: nothing
    int64_t rows;
    int width, top_k;
} mz_cu_move_args;
cudaError_t mz_cu_dispatch(cudaStream_t stream, const mz_cu_move_args *args);
cudaError_t mz_cu_combine(cudaStream_t stream, const mz_cu_move_args *args);
// dy [rows / top_k, width], x [rows, width], place and dweights [rows].
cudaError_t mz_cu_combine_dw(cudaStream_t stream, mz_cu_array dy, mz_cu_array x, const int32_t *place, float *dweights,
                             int64_t rows, int width, int top_k);

// --- small_n.cu: products with a matrix of few rows, FP32
// -------------------------------------------------------------
typedef struct mz_cu_small_n {
    const float *x, *w, *dy;      // [rows, k], [n, k], [rows, n]
    float *y, *dx, *dw, *partial; // partial: workspace of dw
    int64_t rows;
    int n, k; // n at most 16, k a multiple of 4
    bool accumulate;
} mz_cu_small_n;
cudaError_t mz_cu_small_n_y(cudaStream_t stream, const mz_cu_small_n *args);
// The same, and the route of its result, of one group: args->n is the experts' count.
cudaError_t mz_cu_small_n_y_route(cudaStream_t stream, const mz_cu_small_n *args, const mz_cu_route_args *route);
cudaError_t mz_cu_small_n_dx(cudaStream_t stream, const mz_cu_small_n *args);
// route's dx, of FP32 logits, and the thin dx of that; k at least 128.
cudaError_t mz_cu_route_dx_small_n(cudaStream_t stream, const mz_cu_route_dx_args *route, const mz_cu_small_n *args);
size_t mz_cu_small_n_dw_workspace(int64_t rows, int n, int k, int sms);
cudaError_t mz_cu_small_n_dw(cudaStream_t stream, const mz_cu_small_n *args, int sms);

// --- bf16_terms.cu: FP32 numbers as three BF16 ones ----------------------------------------------------------------
// x [n] → its parts in BF16, one array after the other: x2, x1, x0, or of a product's second operand x0, x1, x2.
typedef struct mz_cu_bf16_terms {
    const float *x;
    void *out;
    int64_t n; // a multiple of 4
    bool second;
} mz_cu_bf16_terms;
cudaError_t mz_cu_fp32_split(cudaStream_t stream, const mz_cu_bf16_terms *args);

// --- promoted.cu: FP32 products by parts, sums promoted to FP32 registers (compute capability 9.0) -----------------
// out [rows, cols] FP32 = Σ a·b over `inner` terms, + bias, + add. a and b are parts as mz_cu_fp32_split writes them, a
// those of a first operand and b of a second: a [3, rows, inner], or [3, inner, rows]; b [3, cols, inner], or [3,
// inner, cols]. rows or inner, whichever is contiguous, and cols are multiples of 8; a [inner, rows] goes with b
// [inner, cols].
typedef struct mz_cu_promoted {
    const void *a, *b;
    bool a_by_rows, b_by_rows; // inner is contiguous
    const float *bias;         // [cols] or NULL
    const float *add;          // [rows, cols], may be out; or NULL
    float *out;
    float *partial; // [splits, rows, cols]; NULL with one
    int64_t rows, cols, inner;
    int splits; // of the sum: mz_cu_promoted_splits()
} mz_cu_promoted;
int mz_cu_promoted_splits(const mz_cu_promoted *args, int sms); // 1: not divided
// prepare: asks for the shared memory that it needs, once; nothing is launched.
cudaError_t mz_cu_promoted_run(cudaStream_t stream, const mz_cu_promoted *args, int sms, bool prepare);

// --- grouped_*.cu: the experts' products ---------------------------------------------------------------------------
// x [rows, k], w [experts, n, k], y [rows, n]; rows offsets[e] … offsets[e + 1] - 1 are expert e's.
enum { MZ_CU_GROUPED_Y, MZ_CU_GROUPED_DX, MZ_CU_GROUPED_DW };
typedef struct mz_cu_grouped {
    int op;
    mz_cu_array a, b, out; // y: x, w, y; dx: dy, w, dx; dw: dy, x, dw
    const int32_t *offsets;
    int64_t rows;
    int experts, n, k;
    int compute;     // what operands are rounded to
    bool accumulate; // dw: add to what is there
    bool parts;      // wgmma: a and b are three BF16 arrays consecutively, as mz_cu_fp32_split writes them
    bool vectors;    // set by the launcher
    int tile;        // 0: chosen by the launcher; 64 or 128
    int sms, shared_optin;
} mz_cu_grouped;
// Tensor cores: BF16 (from 8.0) or FP16 operands of one storage, n and k multiples of 8; FP32 as TF32 (from 8.0),
// multiples of 4; stored as the operands are or as FP32. prepare: launches nothing; once before the first launch,
// outside of any capture.
cudaError_t mz_cu_grouped_low(cudaStream_t stream, const mz_cu_grouped *args, bool prepare);
cudaError_t mz_cu_grouped_tf32(cudaStream_t stream, const mz_cu_grouped *args, bool prepare);
// As mz_cu_grouped_low, by the instructions of compute capability 9.0 alone; worth it where tiles of 128 × 128 are
// many.
cudaError_t mz_cu_grouped_wgmma(cudaStream_t stream, const mz_cu_grouped *args, bool prepare);
int64_t mz_cu_grouped_tiles(const mz_cu_grouped *args, int tile);              // at most so many
cudaError_t mz_cu_grouped_fma(cudaStream_t stream, const mz_cu_grouped *args); // any float storages and sizes

#ifdef __cplusplus
}
#endif
#endif
