// Resamples images by whole factors, draws noise, and embeds times.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"

#include <math.h>

// Visits a row of pixels of y at a time, and a run of channels at a time.
typedef struct resampling {
    int64_t rows, width, channels, from_width; // y's rows of all images and its width; x's width
    int factor;
} resampling;

static resampling resampling_of(const mz_call *call) {
    const mz_shape *x = &mz_in(call, upsample, x)->shape, *y = &mz_out(call, upsample, y)->shape;
    return (resampling){y->dim[0] * y->dim[1], y->dim[2], y->dim[3], x->dim[2], call->attrs.factor};
}

static mezzo_status run_upsample(mezzo_device *device, const mz_call *call) {
    const resampling v = resampling_of(call);
    const float alpha = call->attrs.alpha;
#pragma omp parallel for schedule(static)                                                                              \
    num_threads(mz_cpu_threads(device, 0.4 * (double)(v.rows * v.width * v.channels)))
    for (int64_t row = 0; row < v.rows; row++)
        for (int64_t column = 0; column < v.width; column++)
            for (int64_t c = 0; c < v.channels; c += MZ_BLOCK) {
                float x_buffer[MZ_BLOCK], y_buffer[MZ_BLOCK];
                const int n = (int)min64(MZ_BLOCK, v.channels - c);
                const int64_t from = (row / v.factor * v.from_width + column / v.factor) * v.channels + c;
                const int64_t at = (row * v.width + column) * v.channels + c;
                const float *x = block_in(mz_in(call, upsample, x), from, n, x_buffer);
                float *y = block_out(mz_out(call, upsample, y), at, y_buffer);
                EACH_VECTOR(i, lanes, n, { vstore_lanes(y + i, vload_lanes(x + i, lanes, 0) * alpha, lanes); });
                block_done(mz_out(call, upsample, y), at, n, y);
            }
    return MEZZO_OK;
}
MZ_CPU_KERNEL(upsample, "a", "a", NULL, NULL)

static mezzo_status run_pool(mezzo_device *device, const mz_call *call) {
    const resampling v = resampling_of(call);
    const double elements = (double)(v.rows * v.width * v.channels) * v.factor * v.factor;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.4 * elements))
    for (int64_t row = 0; row < v.rows; row++)
        for (int64_t column = 0; column < v.width; column++)
            for (int64_t c = 0; c < v.channels; c += MZ_BLOCK) {
                float x_buffer[MZ_BLOCK], y_buffer[MZ_BLOCK], sum[MZ_BLOCK];
                const int n = (int)min64(MZ_BLOCK, v.channels - c);
                const int64_t at = (row * v.width + column) * v.channels + c;
                memset(sum, 0, (size_t)n * sizeof *sum);
                for (int64_t k = 0; k < (int64_t)v.factor * v.factor; k++) {
                    const int64_t h = row * v.factor + k / v.factor, w = column * v.factor + k % v.factor;
                    const float *x =
                        block_in(mz_in(call, pool, x), (h * v.from_width + w) * v.channels + c, n, x_buffer);
                    EACH_VECTOR(i, lanes, n, {
                        vstore_lanes(sum + i, vload_lanes(sum + i, lanes, 0) + vload_lanes(x + i, lanes, 0), lanes);
                    });
                }
                float *y = block_out(mz_out(call, pool, y), at, y_buffer);
                EACH_VECTOR(i, lanes, n,
                            { vstore_lanes(y + i, vload_lanes(sum + i, lanes, 0) * call->attrs.alpha, lanes); });
                block_done(mz_out(call, pool, y), at, n, y);
            }
    return MEZZO_OK;
}
MZ_CPU_KERNEL(pool, "a", "a", NULL, NULL)

// --- the largest of windows along an axis --------------------------------------------------------------------------
typedef struct window_view {
    axis_view x;
    int64_t n, size, stride, step, before; // n: windows
} window_view;

static window_view windows_of(const mz_call *call, const mz_tensor *x, const mz_tensor *y) {
    const mz_attrs *a = &call->attrs;
    return (window_view){
        view_along(&x->shape, a->axis), y->shape.dim[a->axis], a->factor, a->stride, a->step, a->pad_before};
}

static mezzo_status run_max_pool(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = mz_in(call, max_pool, x), *y = mz_out(call, max_pool, y);
    const window_view v = windows_of(call, x, y);
    const int64_t rows = v.x.outer * v.n;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.4 * (double)(rows * v.x.inner * v.size)))
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = 0; c < v.x.inner; c += MZ_BLOCK) {
            float x_buffer[MZ_BLOCK], y_buffer[MZ_BLOCK], most[MZ_BLOCK];
            const int n = (int)min64(MZ_BLOCK, v.x.inner - c);
            for (int i = 0; i < n; i++)
                most[i] = -INFINITY;
            for (int64_t k = 0; k < v.size; k++) {
                const int64_t a = row % v.n * v.stride + k * v.step - v.before;
                if (a < 0 || a >= v.x.axis)
                    continue;
                const float *each = block_in(x, (row / v.n * v.x.axis + a) * v.x.inner + c, n, x_buffer);
                for (int i = 0; i < n; i++)
                    most[i] = most[i] == most[i] && !(each[i] <= most[i]) ? each[i] : most[i];
            }
            float *out = block_out(y, row * v.x.inner + c, y_buffer);
            memcpy(out, most, (size_t)n * sizeof *out);
            block_done(y, row * v.x.inner + c, n, out);
        }
    return MEZZO_OK;
}
MZ_CPU_KERNEL(max_pool, "a", "a", NULL, NULL)

// Adds dy of window o to sum where its element k is the first that is not smaller than y.
static void add_window(const mz_call *call, const window_view *v, int64_t outer, int64_t o, int64_t k, int64_t c, int n,
                       float *sum) {
    const mz_tensor *x = mz_in(call, max_pool_dx, x);
    float x_buffer[MZ_BLOCK], y_buffer[MZ_BLOCK], dy_buffer[MZ_BLOCK], given[MZ_BLOCK];
    const int64_t first = o * v->stride - v->before, at = (outer * v->n + o) * v->x.inner + c;
    const float *y = block_in(mz_in(call, max_pool_dx, y), at, n, y_buffer),
                *dy = block_in(mz_in(call, max_pool_dx, dy), at, n, dy_buffer);
    memcpy(given, dy, (size_t)n * sizeof *given);
    for (int64_t j = 0; j <= k; j++) {
        const int64_t a = first + j * v->step;
        if (a < 0 || a >= v->x.axis)
            continue;
        const float *each = block_in(x, (outer * v->x.axis + a) * v->x.inner + c, n, x_buffer);
        for (int i = 0; i < n; i++)
            given[i] = (each[i] < y[i]) == (j < k) ? given[i] : 0;
    }
    for (int i = 0; i < n; i++)
        sum[i] += given[i];
}

static mezzo_status run_max_pool_dx(mezzo_device *device, const mz_call *call) {
    const mz_tensor *dx = mz_out(call, max_pool_dx, dx);
    const window_view v = windows_of(call, dx, mz_in(call, max_pool_dx, dy));
    const int64_t rows = v.x.outer * v.x.axis;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.4 * (double)(rows * v.x.inner * v.size)))
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = 0; c < v.x.inner; c += MZ_BLOCK) {
            float buffer[MZ_BLOCK], sum[MZ_BLOCK] = {0};
            const int n = (int)min64(MZ_BLOCK, v.x.inner - c);
            for (int64_t k = 0; k < v.size; k++) {
                const int64_t from = row % v.x.axis + v.before - k * v.step;
                if (from >= 0 && from % v.stride == 0 && from / v.stride < v.n)
                    add_window(call, &v, row / v.x.axis, from / v.stride, k, c, n, sum);
            }
            float *out = block_out(dx, row * v.x.inner + c, buffer);
            memcpy(out, sum, (size_t)n * sizeof *out);
            block_done(dx, row * v.x.inner + c, n, out);
        }
    return MEZZO_OK;
}
MZ_CPU_KERNEL(max_pool_dx, "a", "a", NULL, NULL)

#if defined(MZ_ISA_PORTABLE)
// Draws by mz_philox and mz_normal4, whose logarithm and angle are FP64: every device draws the same numbers but for
// the last bit.
static mezzo_status run_normal(mezzo_device *device, const mz_call *call) {
    const mz_tensor *y = mz_out(call, normal, y);
    const int64_t images = y->shape.dim[0], row = mz_shape_count(&y->shape) / images, quads = (row + 3) / 4;
    const int32_t *keys = mz_in(call, normal, keys)->data;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 60.0 * (double)(images * quads)))
    for (int64_t i = 0; i < images * quads; i++) {
        const int64_t image = i / quads, quad = i % quads;
        uint32_t words[4];
        float numbers[4];
        mz_philox(mz_noise_key(keys[2 * image], keys[2 * image + 1]), (uint64_t)quad, words);
        mz_normal4(words, numbers);
        narrow_block(numbers, element_at(y, image * row + 4 * quad), y->dtype, (int)min64(4, row - 4 * quad));
    }
    return MEZZO_OK;
}

MZ_CPU_KERNEL(normal, "i", "a", NULL, NULL)

// Computes a few thousand numbers a step, with functions in FP64, so that a result is the nearest FP32 number.
static mezzo_status run_time_embedding(mezzo_device *device, const mz_call *call) {
    const mz_tensor *y = mz_out(call, time_embedding, y);
    const int64_t images = y->shape.dim[0], dims = y->shape.dim[1], half = dims / 2;
    (void)device;
    for (int64_t image = 0; image < images; image++) {
        float time;
        widen_block(element_at(mz_in(call, time_embedding, times), image), mz_in(call, time_embedding, times)->dtype,
                    &time, 1);
        for (int64_t i = 0; i < half; i++) {
            const double angle =
                (double)call->attrs.alpha * (double)time * pow((double)call->attrs.theta, -(double)i / (double)half);
            const float cosine = (float)cos(angle), sine = (float)sin(angle);
            narrow_block(&cosine, element_at(y, image * dims + i), y->dtype, 1);
            narrow_block(&sine, element_at(y, image * dims + half + i), y->dtype, 1);
        }
    }
    return MEZZO_OK;
}
MZ_CPU_KERNEL(time_embedding, "a", "a", NULL, NULL)
#endif
