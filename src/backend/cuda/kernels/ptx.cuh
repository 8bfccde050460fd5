// CUDA C++ has no name for these instructions. Compute capability 7.5 has neither asynchronous copies nor a 16-deep
// matrix instruction: the same results come from a plain copy and from two 8-deep ones.
#ifndef MZ_PTX_CUH
#define MZ_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// An instruction that runs where operand N is not 0, without a branch.
#define MZ_PTX_IF(N, instruction) "{\n.reg .pred now;\nsetp.ne.b32 now, %" #N ", 0;\n@now " instruction "\n}"

// One store, which the compiler makes two where it takes registers that are no pair.
__device__ __forceinline__ void store_shared(uint32_t to, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}

// Copies 16 bytes from global to shared memory, or 16 bytes of zeros.
__device__ __forceinline__ void copy_async_16(void *to, const void *from, bool inside) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(inside ? 16 : 0)
                 : "memory");
#else
    *static_cast<uint4 *>(to) = inside ? *static_cast<const uint4 *>(from) : make_uint4(0, 0, 0, 0);
#endif
}
__device__ __forceinline__ void copy_async_4(void *to, const void *from, bool inside) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(inside ? 4 : 0)
                 : "memory");
#else
    *static_cast<uint32_t *>(to) = inside ? *static_cast<const uint32_t *>(from) : 0;
#endif
}
__device__ __forceinline__ void copies_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING> __device__ __forceinline__ void copies_wait() { // until at most PENDING groups are under way
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Four 8 × 8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void *row) {
    load_matrices(r, shared_address(row));
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The way back, to shared memory, from compute capability 9.0 on; transposed: lane l % 8 names a column of matrix l
// / 8.
__device__ __forceinline__ void store_matrices(uint32_t row, const uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
#endif
}
__device__ __forceinline__ void store_matrices_transposed(uint32_t column, const uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(column), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
#endif
}
// The transpose of an 8 × 8 matrix of 16-bit elements, of which lane l has row l / 4, columns 2·(l % 4) and the next.
__device__ __forceinline__ uint32_t transposed(uint32_t matrix) {
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(matrix));
    return r;
}

// c [16, 8] += a [16, 16] · b [16, 8], FP32 sums.
template <typename T>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                        uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
template <>
__device__ __forceinline__ void multiply<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

// Rounds to TF32's 11 significant bits; ties to even from compute capability 9.0 on, before that away from 0.
__device__ __forceinline__ uint32_t to_tf32(float x) {
    uint32_t r = 0;
#if __CUDA_ARCH__ >= 900
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
#elif __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
#endif
    return r;
}
// c [16, 8] += a [16, 8] · b [8, 8] of TF32, FP32 sums. Of a: rows g, g + 8 at column t, then at t + 4; of b: rows t, t
// + 4 at column g.
__device__ __forceinline__ void multiply_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Packs two floats, rounded to nearest even, `low` in the low half.
template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high);
template <> __device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float low, float high) {
    uint32_t r = 0;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#endif
    return r;
}
template <> __device__ __forceinline__ uint32_t pack<__half>(float low, float high) {
    __half2 h = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&h);
}

// The next of the three BF16 numbers that FP32 numbers are sums of (docs/dev/NUMERICS.md), of two at a time, `a` in the
// low half; what it leaves of them. FIRST: numbers that would be rounded to infinity are cut off, an infinity too: the
// next part then is one.
template <bool FIRST> __device__ __forceinline__ uint32_t take_part(float &a, float &b) {
    uint32_t r = 0;
#if __CUDA_ARCH__ >= 800
    if (FIRST)
        asm("cvt.rn.satfinite.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
#endif
    a -= __uint_as_float(r << 16);
    b -= __uint_as_float(r & 0xFFFF0000u);
    return r;
}

// FP32 numbers as operands, 16 of l at once, of which a thread has four in each of its rows: two operands of 8 for TF32
// numbers, or of the three parts one each. ROWS: 2 of an A operand (g, g + 8), 1 of a B operand.
template <bool PARTS, int ROWS> struct fp32_operand {
    uint32_t part[PARTS ? 3 : 2][2 * ROWS];
    __device__ __forceinline__ void set(int row, float x0, float x1, float x2, float x3) {
        if constexpr (PARTS) {
            part[0][row] = take_part<true>(x0, x1);
            part[0][row + ROWS] = take_part<true>(x2, x3);
#pragma unroll
            for (int k = 1; k < 3; k++) {
                part[k][row] = take_part<false>(x0, x1);
                part[k][row + ROWS] = take_part<false>(x2, x3);
            }
        } else {
            part[0][row] = to_tf32(x0);
            part[0][row + ROWS] = to_tf32(x1);
            part[1][row] = to_tf32(x2);
            part[1][row + ROWS] = to_tf32(x3);
        }
    }
};

// c [16, 8] += a [16, 16] · b [16, 8]; of parts the six large products, the smallest first, which the tensor cores add
// up to a sum of 16 terms; FP32 registers, which round where tensor cores cut off, add it to the rest.
template <bool PARTS>
__device__ __forceinline__ void multiply_fp32(float (&c)[4], const fp32_operand<PARTS, 2> &a,
                                              const fp32_operand<PARTS, 1> &b) {
    if constexpr (PARTS) {
        constexpr int first[] = {2, 1, 0, 1, 0, 0}, second[] = {0, 1, 2, 0, 1, 0};
        float sum[4] = {};
#pragma unroll
        for (int i = 0; i < 6; i++)
            multiply<__nv_bfloat16>(sum, a.part[first[i]], b.part[second[i]][0], b.part[second[i]][1]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[i] += sum[i];
    } else {
        multiply_tf32(c, a.part[0], b.part[0][0], b.part[0][1]);
        multiply_tf32(c, a.part[1], b.part[1][0], b.part[1][1]);
    }
}

// 2^x, off by less than 2^-22 of the result (PTX ISA, ex2.approx.ftz.f32): within the eight roundings that NUMERICS.md
// gives exp.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
