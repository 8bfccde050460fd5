// Computes mean squared error and its gradient.
#include "host.cuh"
#include "rows.cuh"

// A block's partial sum, and then all of them in order: the grid depends on n alone, so results do too.
enum { MSE_BLOCK = 256, MSE_GRID = 1024 };

static int grid_of(int64_t n) {
    int64_t blocks = (n + MSE_BLOCK * 8 - 1) / (MSE_BLOCK * 8);
    return static_cast<int>(blocks < MSE_GRID ? blocks : MSE_GRID);
}

static __device__ float block_sum(float x, float *shared) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < MSE_BLOCK / 32; i++)
        x += shared[i];
    return x;
}

__global__ void __launch_bounds__(MSE_BLOCK) mse_kernel(mz_cu_array x, mz_cu_array target, float *partial, int64_t n) {
    __shared__ float shared[MSE_BLOCK / 32];
    float sum = 0;
    for (int64_t i = (static_cast<int64_t>(blockIdx.x) * MSE_BLOCK + threadIdx.x) * 8; i < n;
         i += static_cast<int64_t>(gridDim.x) * MSE_BLOCK * 8) {
        if (i + 8 <= n) {
            float v[8], w[8];
            load8(x, i, v);
            load8(target, i, w);
            for_each<8>([&](int k) { sum += (v[k] - w[k]) * (v[k] - w[k]); });
        } else {
            for (int64_t k = i; k < n; k++) {
                float d = load1(x, k) - load1(target, k);
                sum += d * d;
            }
        }
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(MSE_BLOCK) mse_mean_kernel(const float *partial, int parts, float *loss, float n) {
    __shared__ float shared[MSE_BLOCK / 32];
    float sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < parts; i += MSE_BLOCK)
        sum += partial[i];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0)
        *loss = sum / n;
}

static const char *mse_prepare(mezzo_device *, const mz_call *call, mz_prepared *out) {
    out->workspace = static_cast<size_t>(grid_of(mz_shape_count(&mz_in(call, mse, x)->shape))) * sizeof(float);
    return mz_cuda_storages(call, "a", "f");
}
static void launch_mse(const mz_cuda_device *cuda, const mz_call *call) {
    const int64_t n = mz_shape_count(&mz_in(call, mse, x)->shape);
    const int grid = grid_of(n);
    float *partial = static_cast<float *>(call->workspace), *loss = data_of<float>(mz_out(call, mse, loss));
    mse_kernel<<<grid, MSE_BLOCK, 0, cuda->stream>>>(mz_cuda_array(mz_in(call, mse, x)),
                                                     mz_cuda_array(mz_in(call, mse, target)), partial, n);
    mse_mean_kernel<<<1, MSE_BLOCK, 0, cuda->stream>>>(partial, grid, loss, static_cast<float>(n));
}
MZ_CUDA_KERNEL(mse, launch_mse, mse_prepare)

__global__ void __launch_bounds__(MSE_BLOCK)
    mse_dx_kernel(const float *dloss, mz_cu_array x, mz_cu_array target, mz_cu_array dx, int64_t n, float twice_share) {
    float factor = *dloss * twice_share;
    int64_t i = (static_cast<int64_t>(blockIdx.x) * MSE_BLOCK + threadIdx.x) * 8;
    if (i + 8 <= n) {
        float v[8], w[8];
        load8(x, i, v);
        load8(target, i, w);
        for_each<8>([&](int k) { v[k] = factor * (v[k] - w[k]); });
        store8(dx, i, v);
    } else {
        for (; i < n; i++)
            store1(dx, i, factor * (load1(x, i) - load1(target, i)));
    }
}

static void launch_mse_dx(const mz_cuda_device *cuda, const mz_call *call) {
    const int64_t n = mz_shape_count(&mz_out(call, mse_dx, dx)->shape);
    if (n > 0)
        mse_dx_kernel<<<blocks_of(n, MSE_BLOCK * 8), MSE_BLOCK, 0, cuda->stream>>>(
            data_of<float>(mz_in(call, mse_dx, dloss)), mz_cuda_array(mz_in(call, mse_dx, x)),
            mz_cuda_array(mz_in(call, mse_dx, target)), mz_cuda_array(mz_out(call, mse_dx, dx)), n,
            static_cast<float>(2 / static_cast<double>(n)));
}
MZ_CUDA_KERNEL(mse_dx, launch_mse_dx, storages<"fa", "a">)
