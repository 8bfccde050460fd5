// Computes cross-entropy over rows of logits and its gradient. Logits are read in their own format, a block at a time,
// without an FP32 copy of a row.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"

static size_t cross_entropy_workspace(const mezzo_device *device, const mz_call *call) {
    (void)device;
    return sizeof(float) * (size_t)mz_shape_rows(&mz_in(call, cross_entropy, logits)->shape); // the loss of each row
}

// Counts all targets, including those of rows that are not in this call.
static int64_t counted_rows(const mz_call *call, const mz_tensor *targets) {
    const int32_t *target = targets->data;
    int64_t n = 0, rows = mz_shape_count(&targets->shape);
    for (int64_t r = 0; r < rows; r++)
        n += target[r] != call->attrs.ignore_index;
    return n;
}

// Four chains of maxima and of sums: one would wait for its own latency at every vector. NaN may be lost in the maxima,
// but not in the sums.
enum { CHAINS = 4, STRIDE = CHAINS * VW };

static inline vf block_max(const float *p, int n) {
    vf most[CHAINS];
    int whole = n / STRIDE * STRIDE;
    for (int c = 0; c < CHAINS; c++)
        most[c] = vset(-INFINITY);
    for (int i = 0; i < whole; i += STRIDE)
        for (int c = 0; c < CHAINS; c++)
            most[c] = vmax(most[c], vload(p + i + c * VW));
    FOR_LANES(i, lanes, n - whole)
    most[0] = vmax(most[0], vload_lanes(p + whole + i, lanes, -INFINITY));
    return vmax(vmax(most[0], most[1]), vmax(most[2], most[3]));
}

// Returns Σ e^(x - base); base is at least as large as any x.
static inline vf block_exp_sum(const float *p, int n, vf base) {
    vf sum[CHAINS] = {{0}};
    int whole = n / STRIDE * STRIDE;
    for (int i = 0; i < whole; i += STRIDE)
        for (int c = 0; c < CHAINS; c++)
            sum[c] += vexp_below(vload(p + i + c * VW) - base);
    FOR_LANES(i, lanes, n - whole)
    sum[0] += vexp_below(vload_lanes(p + whole + i, lanes, -INFINITY) - base);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Returns the logits, soft-capped in `buffer` where there is a cap.
static const float *cap_block(const float *p, int n, float cap, float *buffer) {
    if (!(cap > 0))
        return p;
    FOR_LANES(i, lanes, n)
    vstore_lanes(buffer + i, vtanh(vload_lanes(p + i, lanes, 0) / cap) * cap, lanes);
    return buffer;
}

// Returns log Σ eˣ of a row by blocks: each lane has its own running maximum and its sum relative to it (Milakov &
// Gimelshein 2018), so that a row is read once. -inf is a probability of 0; a row of nothing else gives -inf, which is
// the limit.
static float log_sum_exp(const mz_tensor *x, float cap, int64_t start, int64_t width) {
    float buffer[MZ_BLOCK];
    vf max = vset(-INFINITY), sum = {0};
    for (int64_t from = 0; from < width; from += MZ_BLOCK) {
        int n = (int)min64(MZ_BLOCK, width - from);
        const float *p = cap_block(block_in(x, start + from, n, buffer), n, cap, buffer);
        vf most = vmax(max, block_max(p, n));
        // A lane that has seen only -inf must not compute -inf - -inf.
        vf base = vselect(vless(vset(-INFINITY), most), most, (vf){0});
        sum = sum * vexp(max - base) + block_exp_sum(p, n, base);
        max = most;
    }
    float top = vmax_lanes(max);
    if (!(top > -INFINITY))
        return top + vsum(sum); // -inf, or NaN where one was read
    return top + logf(vsum(sum * vexp(max - top)));
}

static mezzo_status run_cross_entropy(mezzo_device *device, const mz_call *call) {
    const mz_tensor *logits = mz_in(call, cross_entropy, logits); // [… V]
    const int32_t *targets = (const int32_t *)mz_in(call, cross_entropy, targets)->data + call->attrs.first_row;
    int64_t width = last_dim(&logits->shape), rows = mz_shape_rows(&logits->shape);
    float *losses = call->workspace,
          *lse_out = mz_present(mz_out(call, cross_entropy, lse)) ? mz_out(call, cross_entropy, lse)->data : NULL;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.8 * (double)rows * (double)width))
    for (int64_t r = 0; r < rows; r++) {
        float lse = log_sum_exp(logits, call->attrs.score_cap, r * width, width), at_target;
        int32_t target = targets[r];
        if (lse_out != NULL)
            lse_out[r] = lse;
        losses[r] = 0;
        if (target == call->attrs.ignore_index)
            continue;
        // A target outside the vocabulary makes the loss NaN: kernels cannot report bad data, but the guard notices
        // NaN.
        losses[r] = NAN;
        if (target >= 0 && target < width) {
            widen_block(element_at(logits, r * width + target), logits->dtype, &at_target, 1);
            losses[r] = lse - *cap_block(&at_target, 1, call->attrs.score_cap, &at_target);
        }
    }
    double sum = 0;
    for (int64_t r = 0; r < rows; r++)
        sum += (double)losses[r];
    int64_t counted = counted_rows(call, mz_in(call, cross_entropy, targets));
    *(float *)mz_out(call, cross_entropy, loss)->data = counted > 0 ? (float)(sum / (double)counted) : 0.0f;
    return MEZZO_OK;
}

MZ_CPU_KERNEL(cross_entropy, "ai", "f", cross_entropy_workspace, NULL)

// Computes dx = dloss/n·(softmax(x) - onehot(target)), times 1 - (x/cap)² for capped logits; 0 where the target is
// ignored. dx may overwrite the logits.
static mezzo_status run_cross_entropy_dx(mezzo_device *device, const mz_call *call) {
    const mz_tensor *logits = mz_in(call, cross_entropy_dx, logits), *dx = mz_out(call, cross_entropy_dx, dx); // [… V]
    const int32_t *targets = (const int32_t *)mz_in(call, cross_entropy_dx, targets)->data + call->attrs.first_row;
    const float *lse = mz_in(call, cross_entropy_dx, lse)->data; // [rows]
    int64_t width = last_dim(&logits->shape), rows = mz_shape_rows(&logits->shape);
    int64_t counted = counted_rows(call, mz_in(call, cross_entropy_dx, targets));
    float factor = *(const float *)mz_in(call, cross_entropy_dx, dloss)->data / (float)(counted > 0 ? counted : 1);
    const float cap = call->attrs.score_cap;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.8 * (double)rows * (double)width))
    for (int64_t r = 0; r < rows; r++) {
        float x_buffer[MZ_BLOCK], y_buffer[MZ_BLOCK];
        int32_t target = targets[r];
        bool ignored = target == call->attrs.ignore_index, bad = target < 0 || target >= width;
        for (int64_t from = 0; from < width; from += MZ_BLOCK) {
            int n = (int)min64(MZ_BLOCK, width - from);
            int64_t at = r * width + from;
            const float *x = cap_block(block_in(logits, at, n, x_buffer), n, cap, x_buffer);
            float *y = block_out(dx, at, y_buffer);
            if (ignored || bad) {
                for (int i = 0; i < n; i++)
                    y[i] = ignored ? 0.0f : NAN;
            } else {
                int hit = target >= from && target < from + n ? (int)(target - from) : -1;
                float x_hit = hit >= 0 ? x[hit] : 0;
                FOR_LANES(i, lanes, n)
                vstore_lanes(y + i, vexp(vload_lanes(x + i, lanes, 0) - lse[r]) * factor, lanes);
                if (hit >= 0) // p - 1 by expm1, without cancellation where p is near 1
                    y[hit] = factor * expm1f(x_hit - lse[r]);
                FOR_LANES(i, lanes, cap > 0 ? n : 0) {
                    vf t = vload_lanes(x + i, lanes, 0) / cap;
                    vstore_lanes(y + i, vload_lanes(y + i, lanes, 0) * (1 - t * t), lanes);
                }
            }
            block_done(dx, at, n, y);
        }
    }
    return MEZZO_OK;
}

MZ_CPU_KERNEL(cross_entropy_dx, "faif", "a", NULL, NULL)
