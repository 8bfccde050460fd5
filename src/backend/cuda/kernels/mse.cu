// Computes mean squared error and its gradient.
#include "host.cuh"
#include "rows.cuh"

// A block's partial sum, and then all of them in order: the grid depends on n alone, so results do too.
enum { MSE_BLOCK = 256, MSE_GRID = 1024 };

static int grid_of(int64_t n) {
    int64_t blocks = (n + MSE_BLOCK * 8 - 1) / (MSE_BLOCK * 8);
    return static_cast<int>(blocks < MSE_GRID ? blocks : MSE_GRID);
}

__global__ void __launch_bounds__(MSE_BLOCK) mse_kernel(mz_cu_array x, mz_cu_array target, float *partial, int64_t n) {
    __shared__ float shared[MSE_BLOCK / WARP];
    float sum = 0;
    for (int64_t i = thread_index<MSE_BLOCK>() * 8; i < n; i += static_cast<int64_t>(gridDim.x) * MSE_BLOCK * 8)
        for_vector(i, n, [&]<int N>(int64_t at) {
            float v[N], w[N];
            load<N>(x, at, v);
            load<N>(target, at, w);
            for_each<N>([&](int k) { sum += (v[k] - w[k]) * (v[k] - w[k]); });
        });
    sum = row_sum<MSE_BLOCK>(sum, shared);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(MSE_BLOCK) mse_mean_kernel(const float *partial, int parts, float *loss, float n) {
    __shared__ float shared[MSE_BLOCK / WARP];
    float sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < parts; i += MSE_BLOCK)
        sum += partial[i];
    sum = row_sum<MSE_BLOCK>(sum, shared);
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

static void launch_mse_dx(const mz_cuda_device *cuda, const mz_call *call) {
    const int64_t n = mz_shape_count(&mz_out(call, mse_dx, dx)->shape);
    const float *dloss = data_of<float>(mz_in(call, mse_dx, dloss));
    const mz_cu_array x = mz_cuda_array(mz_in(call, mse_dx, x)), target = mz_cuda_array(mz_in(call, mse_dx, target)),
                      dx = mz_cuda_array(mz_out(call, mse_dx, dx));
    const float twice_share = static_cast<float>(2 / static_cast<double>(n));
    launch_items(cuda, (n + 7) / 8, [=] __device__(int64_t vector) {
        const float factor = *dloss * twice_share;
        for_vector(vector * 8, n, [&]<int N>(int64_t i) {
            float v[N], w[N];
            load<N>(x, i, v);
            load<N>(target, i, w);
            for_each<N>([&](int k) { v[k] = factor * (v[k] - w[k]); });
            store<N>(dx, i, v);
        });
    });
}
MZ_CUDA_KERNEL(mse_dx, launch_mse_dx, storages<"fa", "a">)
