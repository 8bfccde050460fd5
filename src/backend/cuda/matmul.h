// Declares matrix products through cuBLASLt. The device keeps one plan for each shape, dtypes and epilogue, made when a
// program is planned. The library is opened at run time.
#ifndef MZ_CUDA_MATMUL_H
#define MZ_CUDA_MATMUL_H

#include <cublasLt.h>

#include "backend/cuda/cuda.h"

// Describes D = epilogue(alpha·op(A)·op(B) + beta·C) in cuBLASLt's terms: matrices are column-major, op(A) is [m, k],
// op(B) [k, n], D [m, n]. It is compared byte by byte, so zero it first.
typedef struct mz_gemm_key {
    int64_t m, n, k, batch;
    int64_t chosen_for;    // the batch for which the algorithm is proposed, so that parts of a batch have its bits
    int64_t lda, ldb, ldd; // C and an epilogue's aux matrix have D's layout
    int64_t stride_a, stride_b, stride_d;
    int32_t transpose_a, transpose_b;
    int32_t operand;  // mezzo_dtype of A and B
    int32_t other;    // B's, where it differs; 0: A's
    int32_t scaled;   // A and B each have a scale, in device memory
    int32_t fast;     // 8-bit products may be added in fewer bits than FP32 has
    int32_t result;   // of C and D
    int32_t tf32;     // FP32 operands, rounded to TF32
    int32_t epilogue; // cublasLtEpilogue_t
    int32_t bias;     // mezzo_dtype of the bias; -1 where there is none
    int32_t beta;     // 1: C is added
    int32_t apart;    // with beta: C is another matrix than D
    int32_t factors;  // with beta: a run gives alpha and beta; otherwise both are 1
} mz_gemm_key;

typedef struct mz_gemm {
    mz_gemm_key key;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    const char *refusal; // NULL: it can be run
    bool measured;
} mz_gemm;

typedef struct mz_gemm_data {
    const void *a, *b, *c; // c is read where the key has beta; NULL then: D itself
    void *d;
    const float *factors; // alpha and beta where the key has factors
    const void *bias;     // BGRADB writes its result there, too
    const float *scale_a, *scale_b;
    void *aux; // GELU's input: written by the forward epilogues, read by the backward ones
} mz_gemm_data;

// Returns the plan of a key, made on first use. A refusal stays with the plan. NULL: host memory ran out.
mz_gemm *mz_gemm_find(mz_cuda_device *cuda, const mz_gemm_key *key);
// Chooses the fastest of the algorithms that give the same bits as the library's first proposal, once for a plan. The
// measurement takes device memory; where there is not enough, the first proposal stays.
void mz_gemm_measure(mz_cuda_device *cuda, mz_gemm *gemm);
mezzo_status mz_gemm_run(mz_cuda_device *cuda, const mz_gemm *gemm, const mz_gemm_data *data, void *workspace);

// Returns the format in which the first two inputs of a product are multiplied; -1: no such arithmetic (matmul.c).
int mz_cuda_operand_dtype(const mz_cuda_device *cuda, const mz_call *call);

// Returns NULL where the library is open; otherwise the reason.
const char *mz_gemm_library(mz_cuda_device *cuda);
void mz_gemm_version(const mz_cuda_device *cuda, char *text, size_t size); // "13.0.2", "" without the library
void mz_gemm_close(mz_cuda_device *cuda);

#endif
