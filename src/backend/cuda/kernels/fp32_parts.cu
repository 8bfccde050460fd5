// FP32 numbers as the sum of three BF16 ones, for products on tensor cores (docs/dev/NUMERICS.md): x = x0 + x1 + x2. A
// product's operands become six times as deep, so that one product of BF16 numbers adds up x2·y0 + x1·y1 + x0·y2 +
// x1·y0 + x0·y1 + x0·y0, the smallest first. The first three blocks are all the parts: where a product may begin within
// a row (or behind a row) of its operands, three products of them are the same six.
#include "ptx.cuh"
#include "vec.cuh"

namespace {
enum { BLOCK = 256, PRODUCTS = 6 };

// A thread four columns of a row: x [rows, cols] → [rows, COUNT·cols], the parts beside each other, or [COUNT, rows,
// cols], one below the other.
template <int COUNT> __global__ void __launch_bounds__(BLOCK) fp32_parts_kernel(const mz_cu_fp32_parts g) {
    constexpr int first[PRODUCTS] = {2, 1, 0, 1, 0, 0}, second[PRODUCTS] = {0, 1, 2, 0, 1, 0};
    int64_t i = static_cast<int64_t>(blockIdx.x) * BLOCK + threadIdx.x, across = g.cols / 4, row = i / across;
    if (row >= g.rows)
        return;
    int64_t column = i - row * across, next = g.below ? g.rows * across : across;
    int64_t at = g.below ? i : row * COUNT * across + column;
    float4 x = reinterpret_cast<const float4 *>(g.x)[i];
    uint2 part[3];
    part[0] = make_uint2(take_part<true>(x.x, x.y), take_part<true>(x.z, x.w));
#pragma unroll
    for (int k = 1; k < 3; k++)
        part[k] = make_uint2(take_part<false>(x.x, x.y), take_part<false>(x.z, x.w));
    uint2 *to = static_cast<uint2 *>(g.out);
#pragma unroll
    for (int k = 0; k < COUNT; k++)
        to[at + k * next] = part[g.second ? second[k] : first[k]];
}
} // namespace

extern "C" cudaError_t mz_cu_fp32_split(cudaStream_t stream, const mz_cu_fp32_parts *args) {
    int64_t n = args->rows * (args->cols / 4);
    if (n == 0)
        return cudaSuccess;
    unsigned blocks = static_cast<unsigned>((n + BLOCK - 1) / BLOCK);
    if (args->sixfold)
        fp32_parts_kernel<PRODUCTS><<<blocks, BLOCK, 0, stream>>>(*args);
    else
        fp32_parts_kernel<3><<<blocks, BLOCK, 0, stream>>>(*args);
    return cudaGetLastError();
}
