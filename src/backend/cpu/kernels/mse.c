// Computes mean squared error and its gradient.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"

// Runs of 4096 elements are summed in FP32 lanes, and the runs in FP64 in order, so the number of threads does not
// change a bit.
enum { MSE_RUN = 4096 };

static int64_t runs_of(const mz_call *call) {
    return (mz_shape_count(&mz_in(call, mse, x)->shape) + MSE_RUN - 1) / MSE_RUN;
}

static double squares_of_run(const mz_call *call, int64_t at, int64_t n) {
    float x_buffer[MZ_BLOCK], target_buffer[MZ_BLOCK];
    vf sum = {0};
    for (int64_t from = 0; from < n; from += MZ_BLOCK) {
        int count = (int)min64(MZ_BLOCK, n - from);
        const float *x = block_in(mz_in(call, mse, x), at + from, count, x_buffer);
        const float *target = block_in(mz_in(call, mse, target), at + from, count, target_buffer);
        FOR_LANES(i, lanes, count) {
            vf difference = vload_lanes(x + i, lanes, 0) - vload_lanes(target + i, lanes, 0);
            sum = vfma(difference, difference, sum);
        }
    }
    return (double)vsum(sum);
}

static size_t mse_workspace(const mezzo_device *device, const mz_call *call) {
    (void)device;
    return sizeof(double) * (size_t)runs_of(call);
}

static mezzo_status run_mse(mezzo_device *device, const mz_call *call) {
    const mz_tensor *loss = mz_out(call, mse, loss);
    int64_t n = mz_shape_count(&mz_in(call, mse, x)->shape), runs = runs_of(call);
    double *partial = call->workspace, sum = 0;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.3 * (double)n))
    for (int64_t i = 0; i < runs; i++)
        partial[i] = squares_of_run(call, i * MSE_RUN, min64(MSE_RUN, n - i * MSE_RUN));
    for (int64_t i = 0; i < runs; i++)
        sum += partial[i];
    float mean = (float)(sum / (double)n);
    narrow_block(&mean, loss->data, loss->dtype, 1);
    return MEZZO_OK;
}
MZ_CPU_KERNEL(mse, "a", "a", mse_workspace, NULL)

static mezzo_status run_mse_dx(mezzo_device *device, const mz_call *call) {
    const mz_tensor *dx = mz_out(call, mse_dx, dx), *dloss = mz_in(call, mse_dx, dloss);
    int64_t n = mz_shape_count(&dx->shape), blocks = (n + MZ_BLOCK - 1) / MZ_BLOCK;
    float factor;
    widen_block(dloss->data, dloss->dtype, &factor, 1);
    factor = (float)((double)factor * 2 / (double)n);
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.4 * (double)n))
    for (int64_t block = 0; block < blocks; block++) {
        float x_buffer[MZ_BLOCK], target_buffer[MZ_BLOCK], dx_buffer[MZ_BLOCK];
        int64_t at = block * MZ_BLOCK;
        int count = (int)min64(MZ_BLOCK, n - at);
        const float *x = block_in(mz_in(call, mse_dx, x), at, count, x_buffer);
        const float *target = block_in(mz_in(call, mse_dx, target), at, count, target_buffer);
        float *y = block_out(dx, at, dx_buffer);
        FOR_LANES(i, lanes, count)
        vstore_lanes(y + i, (vload_lanes(x + i, lanes, 0) - vload_lanes(target + i, lanes, 0)) * factor, lanes);
        block_done(dx, at, count, y);
    }
    return MEZZO_OK;
}
MZ_CPU_KERNEL(mse_dx, "a", "a", NULL, NULL)
