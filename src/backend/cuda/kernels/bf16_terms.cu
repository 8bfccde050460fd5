// Splits FP32 numbers into three BF16 terms, for products on tensor cores (docs/dev/NUMERICS.md): x = x0 + x1 + x2.
#include "ptx.cuh"
#include "vec.cuh"

namespace {
enum { BLOCK = 256, PARTS = 3 };

// A thread four numbers.
__global__ void __launch_bounds__(BLOCK) bf16_terms_kernel(const mz_cu_bf16_terms g) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * BLOCK + threadIdx.x, n = g.n / 4;
    if (i >= n)
        return;
    float4 x = reinterpret_cast<const float4 *>(g.x)[i];
    uint2 part[PARTS];
    part[0] = make_uint2(take_part<true>(x.x, x.y), take_part<true>(x.z, x.w));
#pragma unroll
    for (int k = 1; k < PARTS; k++)
        part[k] = make_uint2(take_part<false>(x.x, x.y), take_part<false>(x.z, x.w));
    uint2 *to = static_cast<uint2 *>(g.out);
#pragma unroll
    for (int k = 0; k < PARTS; k++)
        to[k * n + i] = part[g.second ? k : PARTS - 1 - k];
}
} // namespace

extern "C" cudaError_t mz_cu_fp32_split(cudaStream_t stream, const mz_cu_bf16_terms *args) {
    if (args->n == 0)
        return cudaSuccess;
    unsigned blocks = static_cast<unsigned>((args->n / 4 + BLOCK - 1) / BLOCK);
    bf16_terms_kernel<<<blocks, BLOCK, 0, stream>>>(*args);
    return cudaGetLastError();
}
