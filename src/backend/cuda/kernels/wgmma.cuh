// Wraps warpgroup matrix instructions: operands in shared memory, results in the registers of four warps. On other
// devices than those of compute capability 9.0, for which kernels with them are compiled but not launched, they do
// nothing.
#ifndef MZ_WGMMA_CUH
#define MZ_WGMMA_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#include <type_traits>

enum { WARPGROUP = 128 }; // threads

// Returns which warpgroup a thread is in: the same in all lanes, as the compiler cannot know by itself, and without
// that what follows from it would not be kept in uniform registers; each matrix instruction would wait for its
// descriptor's way there.
__device__ __forceinline__ int group_of(int thread) {
    return __shfl_sync(0xffffffffu, thread / WARPGROUP, 0);
}

// Returns the description of an operand for an instruction (PTX ISA, "matrix descriptor"), in units of 16 bytes: where
// it begins, from one 64 columns to the next (where the summed dimension is not contiguous), from one eight rows of 128
// bytes to the next, and that the 16-byte pieces of row i of eight change places by exclusive or with i ("128-byte
// swizzle").
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t address, uint32_t next_columns) {
    return static_cast<uint64_t>((address & 0x3FFFFu) >> 4) | static_cast<uint64_t>(next_columns >> 4) << 16 |
           static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

__device__ __forceinline__ void wgmma_begin() { // the registers are ready
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_commit() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// The registers d[i] …, and their numbers in an instruction.
#define MZ_R4(C, i) C(d[i][0]), C(d[i][1]), C(d[i][2]), C(d[i][3])
#define MZ_R32(C, i)                                                                                                   \
    MZ_R4(C, i), MZ_R4(C, i + 1), MZ_R4(C, i + 2), MZ_R4(C, i + 3), MZ_R4(C, i + 4), MZ_R4(C, i + 5), MZ_R4(C, i + 6), \
        MZ_R4(C, i + 7)
#define MZ_N32                                                                                                         \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MZ_N64                                                                                                         \
    MZ_N32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                        \
           "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// d [64, 128] += a [64, 16]·b [16, 128]; transposed: the summed dimension is not the contiguous one.
#define MZ_WGMMA(TYPES)                                                                                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPES " {" MZ_N64 "}, %64, %65, 1, 1, 1, %66, %67;"    \
                 : MZ_R32("+f", 0), MZ_R32("+f", 8)                                                                    \
                 : "l"(a), "l"(b), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED))
template <typename T, int A_TRANSPOSED, int B_TRANSPOSED>
__device__ __forceinline__ void wgmma_multiply(float (&d)[16][4], uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        MZ_WGMMA("bf16.bf16");
    else
        MZ_WGMMA("f16.f16");
#endif
}

// d [64, 128] = a [64, 32]·b [32, 128] of E4M3, a's E5M2 where WIDE says so, added to d where ADD does. The summed
// dimension is contiguous in both: these formats have no other layout.
#define MZ_WGMMA_8BIT(TYPES)                                                                                           \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.f32." TYPES " {" MZ_N64 "}, %64, %65, %66, 1, 1;"            \
                 : MZ_R32("+f", 0), MZ_R32("+f", 8)                                                                    \
                 : "l"(a), "l"(b), "n"(ADD))
template <int ADD, bool WIDE = false>
__device__ __forceinline__ void wgmma_multiply_e4m3(float (&d)[16][4], uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (WIDE)
        MZ_WGMMA_8BIT("e5m2.e4m3");
    else
        MZ_WGMMA_8BIT("e4m3.e4m3");
#endif
}

// Asks for d = 64 rows of a times 128 columns of b, 128 terms of them.
template <bool WIDE = false> __device__ __forceinline__ void wgmma_ask_e4m3(float (&d)[16][4], uint64_t a, uint64_t b) {
    wgmma_begin();
    wgmma_multiply_e4m3<0, WIDE>(d, a, b);
#pragma unroll
    for (int l = 32; l < 128; l += 32)
        wgmma_multiply_e4m3<1, WIDE>(d, a + (l >> 4), b + (l >> 4));
    wgmma_commit();
}

// After a wait: what reads d stays after it.
__device__ __forceinline__ void wgmma_settle(float (&d)[16][4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("" : MZ_R32("+f", 0), MZ_R32("+f", 8)::"memory");
#endif
}

// What this thread has read or written in shared memory comes before what the matrix unit reads and copies write there.
// An arrival at a barrier is no such order: it may pass loads that are still under way.
__device__ __forceinline__ void async_fence() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
template <int PENDING> __device__ __forceinline__ void wgmma_wait() { // until at most PENDING groups are under way
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#endif
}

#endif
