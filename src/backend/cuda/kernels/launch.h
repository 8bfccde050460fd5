// The C files beside this folder call the device code through these launchers, which have plain types. A launcher
// enqueues on `stream`, allocates nothing, waits for nothing and returns what cudaGetLastError() says of its launches.
// dtypes are mezzo_dtype values as int. Strides and counts are in elements.
#ifndef MZ_CUDA_LAUNCH_H
#define MZ_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend.h"
#include "backend/inspect.h"
#include "backend/scales.h"
#include "backend/update.h"

// A tensor's storage in any of the float dtypes; data NULL where it is absent.
typedef struct mz_cu_array {
    void *data;
    int dtype;
} mz_cu_array;

// kernels.c: MEZZO_CUDA_WITHOUT, which is for finding what is at fault, has this name among its kernels and habits that
// are left out.
bool mz_cuda_without(const char *name);
#define MZ_CUDA_EARLY_LAUNCHES "early_launches" // pdl_launch.cuh's

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
// Adds c to the diagonal of each of these square matrices.
cudaError_t mz_cu_add_to_diagonal(cudaStream_t stream, float *x, int64_t matrices, int64_t side, float c);
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

// --- image.cu ------------------------------------------------------------------------------------------------------
// Convolution: x [b, h, w, c], weight [n, r, s, depth], y [b, p, q, n], depth = c/groups. Gradients stand where what
// they are of does; that of the weight is FP32.
typedef struct mz_cu_conv {
    mz_cu_array x, weight, bias, y;
    int64_t b, h, w, c, n, r, s, depth, p, q, stride, pad, groups;
} mz_cu_conv;
// x FP32, one group: each pixel's sum of taps [b, p, q, r, s, c]; both at multiples of 16 bytes. h and b: up to 65,535.
cudaError_t mz_cu_conv2d_gather(cudaStream_t stream, const mz_cu_conv *v, const float *taps);

// --- bf16_terms.cu: FP32 numbers as three BF16 ones ----------------------------------------------------------------
// x [n] → its parts in BF16, one array after the other: x2, x1, x0, or of a product's second operand x0, x1, x2.
typedef struct mz_cu_bf16_terms {
    const float *x;
    void *out;
    int64_t n; // a multiple of 4
    bool second;
} mz_cu_bf16_terms;
cudaError_t mz_cu_fp32_split(cudaStream_t stream, const mz_cu_bf16_terms *args);

#ifdef __cplusplus
}
#endif
#endif
