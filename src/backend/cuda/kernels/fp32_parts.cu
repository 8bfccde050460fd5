// FP32 numbers as the sum of two TF32 ones, for products on tensor cores: x = high + low, |low| ≤ 2⁻¹¹·|x|. A product's operands become three
// times as deep, so that one product of TF32 numbers adds up low·high + high·low + high·high.
#include "ptx.cuh"
#include "vec.cuh"

namespace {
enum { BLOCK = 256 };

__device__ __forceinline__ float4 high_of(float4 x) {
    return make_float4(__uint_as_float(to_tf32(x.x)), __uint_as_float(to_tf32(x.y)), __uint_as_float(to_tf32(x.z)),
                       __uint_as_float(to_tf32(x.w)));
}

// A thread four columns of a row: x [rows, cols] → [rows, 3·cols], the parts beside each other, or [3, rows, cols], one below the other.
__global__ void __launch_bounds__(BLOCK) fp32_parts_kernel(const mz_cu_fp32_parts g) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * BLOCK + threadIdx.x, across = g.cols / 4, row = i / across;
    if (row >= g.rows)
        return;
    int64_t column = i - row * across, next = g.below ? g.rows * across : across;
    int64_t at = g.below ? i : row * 3 * across + column;
    float4 x = reinterpret_cast<const float4 *>(g.x)[i], high = high_of(x);
    float4 low = high_of(make_float4(x.x - high.x, x.y - high.y, x.z - high.z, x.w - high.w));
    float4 *to = reinterpret_cast<float4 *>(g.out);
    to[at] = g.second ? high : low;
    to[at + next] = g.second ? low : high;
    to[at + 2 * next] = high;
}
} // namespace

extern "C" cudaError_t mz_cu_fp32_split(cudaStream_t stream, const mz_cu_fp32_parts *args) {
    int64_t n = args->rows * (args->cols / 4);
    if (n == 0)
        return cudaSuccess;
    fp32_parts_kernel<<<static_cast<unsigned>((n + BLOCK - 1) / BLOCK), BLOCK, 0, stream>>>(*args);
    return cudaGetLastError();
}
