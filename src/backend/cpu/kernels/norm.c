// Computes layer and RMS normalization and softmax over the last dimension, and their gradients, one row at a time;
// statistics are FP32 with VW partial sums, whose order depends on the width only.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"

// Returns the floats for a row, which is in FP32 between the passes over it: `width` floats a thread, from the
// workspace.
static size_t row_floats(int64_t width) {
    return mz_align_up((size_t)width, 16);
}

// Returns n elements of a row as FP32: in place, or converted into `buffer`.
static const float *row_in(const mz_tensor *t, int64_t row, int64_t width, float *buffer) {
    return block_in(t, row * width, (int)width, buffer);
}

// Four sums side by side, because a chain of additions would wait 4 cycles for each.
enum { CHAINS = 4, STRIDE = CHAINS * VW };

static inline float add_chains(const vf sum[CHAINS]) {
    return vsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static float row_sum(const float *x, int n) {
    vf sum[CHAINS] = {{0}};
    int whole = n / STRIDE * STRIDE;
    for (int i = 0; i < whole; i += STRIDE)
        for (int c = 0; c < CHAINS; c++)
            sum[c] += vload(x + i + c * VW);
    FOR_LANES(i, lanes, n - whole)
    sum[0] += vload_lanes(x + whole + i, lanes, 0);
    return add_chains(sum);
}

// Returns Σ (x - mean)².
static float row_squares(const float *x, int n, float mean) {
    vf sum[CHAINS] = {{0}};
    int whole = n / STRIDE * STRIDE;
    for (int i = 0; i < whole; i += STRIDE)
        for (int c = 0; c < CHAINS; c++) {
            vf centred = vload(x + i + c * VW) - mean;
            sum[c] = vfma(centred, centred, sum[c]);
        }
    FOR_LANES(i, lanes, n - whole) {
        vf centred = vload_lanes(x + whole + i, lanes, mean) - mean;
        sum[0] = vfma(centred, centred, sum[0]);
    }
    return add_chains(sum);
}

// --- layernorm -----------------------------------------------------------------------------------------------------
enum { LN_ROW_BUFFERS = 3 };

static size_t layernorm_workspace(const mezzo_device *device, const mz_call *call) {
    size_t width = row_floats(last_dim(&mz_out(call, layernorm, y)->shape));
    return sizeof(float) * width * (2 + (size_t)device->threads * LN_ROW_BUFFERS);
}

// Returns s = x + residual as `sum` stores it: backward reads that tensor, and must see the normalized numbers.
static const float *norm_input(const mz_call *call, int slot, int64_t row, int width, const float *x, float *s,
                               float *other) {
    if (!mz_present(&call->in[slot])) // the residual is absent
        return x;
    const float *residual = row_in(&call->in[slot], row, width, other);
    EACH_VECTOR(i, lanes, width,
                { vstore_lanes(s + i, vload_lanes(x + i, lanes, 0) + vload_lanes(residual + i, lanes, 0), lanes); });
    const mz_tensor *sum = &call->out[slot == 3 ? 3 : 2]; // the slot in layernorm and rmsnorm
    if (mz_present(sum)) {
        narrow_block(s, element_at(sum, row * width), sum->dtype, width);
        if (sum->dtype != MEZZO_F32)
            widen_block(element_at(sum, row * width), sum->dtype, s, width);
    }
    return s;
}

static mezzo_status run_layernorm(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = mz_in(call, layernorm, x), *y = mz_out(call, layernorm, y);
    int width = (int)last_dim(&y->shape);
    int64_t rows = mz_shape_rows(&y->shape);
    size_t stride = row_floats(width);
    float *workspace = call->workspace, *buffers = workspace + 2 * stride;
    // [C] each, FP32
    const float *weight =
        mz_present(mz_in(call, layernorm, weight)) ? row_in(mz_in(call, layernorm, weight), 0, width, workspace) : NULL;
    const float *bias = mz_present(mz_in(call, layernorm, bias))
                            ? row_in(mz_in(call, layernorm, bias), 0, width, workspace + stride)
                            : NULL;
    bool lone_sum = !mz_present(mz_in(call, layernorm, residual)) && mz_present(mz_out(call, layernorm, sum));
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.8 * (double)rows * width))
    for (int64_t row = 0; row < rows; row++) {
        float *mine = buffers + (size_t)mz_thread() * LN_ROW_BUFFERS * stride;
        const float *s = row_in(x, row, width, mine);
        if (lone_sum) { // there is nothing to add: `sum` is x in its own format
            narrow_block(s, element_at(mz_out(call, layernorm, sum), row * width), mz_out(call, layernorm, sum)->dtype,
                         width);
            widen_block(element_at(mz_out(call, layernorm, sum), row * width), mz_out(call, layernorm, sum)->dtype,
                        mine + stride, width);
            s = mine + stride;
        }
        s = norm_input(call, 3, row, width, s, mine + stride, mine + 2 * stride);
        float mean = row_sum(s, width) / (float)width;
        float rstd = 1.0f / sqrtf(row_squares(s, width, mean) / (float)width + call->attrs.eps);
        float *out = block_out(y, row * width, mine);
        EACH_VECTOR(i, lanes, width, {
            vf value = (vload_lanes(s + i, lanes, 0) - mean) * rstd;
            value = weight != NULL ? value * vload_lanes(weight + i, lanes, 0) : value;
            value = bias != NULL ? value + vload_lanes(bias + i, lanes, 0) : value;
            vstore_lanes(out + i, value, lanes);
        });
        block_done(y, row * width, width, out);
        if (mz_present(mz_out(call, layernorm, mean)))
            ((float *)mz_out(call, layernorm, mean)->data)[row] = mean;
        if (mz_present(mz_out(call, layernorm, rstd)))
            ((float *)mz_out(call, layernorm, rstd)->data)[row] = rstd;
    }
    return MEZZO_OK;
}

MZ_CPU_KERNEL(layernorm, "a", "affa", layernorm_workspace, NULL)

// --- layernorm_bwd -------------------------------------------------------------------------------------------------
// dweight, dbias and linear_dbias are sums over all rows: each of at most LN_CHUNKS runs of rows has partial sums of
// its own, which are added in order at the end. The runs depend on the shape only, so the number of threads does not
// change a bit.
enum { LN_CHUNKS = 64 };

static int64_t chunk_rows(int64_t rows) {
    int64_t per = (rows + LN_CHUNKS - 1) / LN_CHUNKS;
    return per < 8 ? 8 : per;
}

static size_t layernorm_bwd_workspace(const mezzo_device *device, const mz_call *call) {
    size_t width = row_floats(last_dim(&mz_out(call, layernorm_bwd, dx)->shape));
    int64_t rows = mz_shape_rows(&mz_out(call, layernorm_bwd, dx)->shape), per = chunk_rows(rows);
    size_t chunks = (size_t)((rows + per - 1) / per);
    return sizeof(float) * width * (1 + 3 * chunks + 4 * (size_t)device->threads);
}

// Computes, with x̂ = (x - mean)·rstd and g = dy·weight: dx = rstd·(g - mean(g) - x̂·mean(g·x̂)) + dres; it adds the
// row's dy·x̂, dy and dx to the partial sums [3, stride].
static void layernorm_bwd_row(const mz_call *call, int64_t row, int width, const float *weight, float *dweight,
                              float *mine, size_t stride) {
    float *dbias = dweight + stride, *linear_dbias = dbias + stride;
    const float *dy = row_in(mz_in(call, layernorm_bwd, dy), row, width, mine);
    const float *x = row_in(mz_in(call, layernorm_bwd, x), row, width, mine + stride);
    const float *dres = mz_present(mz_in(call, layernorm_bwd, dres))
                            ? row_in(mz_in(call, layernorm_bwd, dres), row, width, mine + 2 * stride)
                            : NULL;
    float mean = ((const float *)mz_in(call, layernorm_bwd, mean)->data)[row],
          rstd = ((const float *)mz_in(call, layernorm_bwd, rstd)->data)[row];
    vf g_sum[CHAINS] = {{0}}, gx_sum[CHAINS] = {{0}};
    int whole = width / STRIDE * STRIDE;
    for (int at = 0; at < whole; at += STRIDE)
        for (int c = 0; c < CHAINS; c++) {
            int i = at + c * VW;
            vf d = vload(dy + i), normal = (vload(x + i) - mean) * rstd;
            vf g = weight != NULL ? d * vload(weight + i) : d;
            g_sum[c] += g;
            gx_sum[c] = vfma(g, normal, gx_sum[c]);
            vstore(dweight + i, vfma(d, normal, vload(dweight + i)));
            vstore(dbias + i, vload(dbias + i) + d);
        }
    FOR_LANES(rest, lanes, width - whole) {
        int i = whole + rest;
        vf d = vload_lanes(dy + i, lanes, 0), normal = (vload_lanes(x + i, lanes, mean) - mean) * rstd;
        vf g = weight != NULL ? d * vload_lanes(weight + i, lanes, 0) : d;
        g_sum[0] += g;
        gx_sum[0] = vfma(g, normal, gx_sum[0]);
        vstore_lanes(dweight + i, vfma(d, normal, vload_lanes(dweight + i, lanes, 0)), lanes);
        vstore_lanes(dbias + i, vload_lanes(dbias + i, lanes, 0) + d, lanes);
    }
    float g_mean = add_chains(g_sum) / (float)width, gx_mean = add_chains(gx_sum) / (float)width;
    float *dx = block_out(mz_out(call, layernorm_bwd, dx), row * width, mine + 3 * stride);
    EACH_VECTOR(i, lanes, width, {
        vf d = vload_lanes(dy + i, lanes, 0), normal = (vload_lanes(x + i, lanes, 0) - mean) * rstd;
        vf g = weight != NULL ? d * vload_lanes(weight + i, lanes, 0) : d;
        vf value = (g - g_mean - normal * gx_mean) * rstd;
        value = dres != NULL ? value + vload_lanes(dres + i, lanes, 0) : value;
        vstore_lanes(dx + i, value, lanes);
    });
    block_done(mz_out(call, layernorm_bwd, dx), row * width, width, dx);
    if (mz_present(mz_out(call, layernorm_bwd, low)))
        block_done(mz_out(call, layernorm_bwd, low), row * width, width, dx);
    if (!mz_present(mz_out(call, layernorm_bwd, linear_dbias)))
        return;
    const float *stored = row_in(&call->out[mz_present(mz_out(call, layernorm_bwd, low)) ? 3 : 0], row, width, mine);
    FOR_LANES(i, lanes, width)
    vstore_lanes(linear_dbias + i, vload_lanes(linear_dbias + i, lanes, 0) + vload_lanes(stored + i, lanes, 0), lanes);
}

static void add_partials(const mz_call *call, int slot, const float *partials, int64_t chunks, size_t step, int width) {
    if (!mz_present(&call->out[slot]))
        return;
    float *out = call->out[slot].data; // [C]
    FOR_LANES(i, lanes, width) {
        vf sum = {0};
        for (int64_t c = 0; c < chunks; c++)
            sum += vload_lanes(partials + (size_t)c * step + i, lanes, 0);
        vstore_lanes(out + i, call->attrs.accumulate ? sum + vload_lanes(out + i, lanes, 0) : sum, lanes);
    }
}

static mezzo_status run_layernorm_bwd(mezzo_device *device, const mz_call *call) {
    int width = (int)last_dim(&mz_out(call, layernorm_bwd, dx)->shape);
    int64_t rows = mz_shape_rows(&mz_out(call, layernorm_bwd, dx)->shape), per = chunk_rows(rows),
            chunks = (rows + per - 1) / per;
    size_t stride = row_floats(width);
    float *workspace = call->workspace, *partials = workspace + stride,
          *buffers = partials + 3 * (size_t)chunks * stride;
    const float *weight = mz_present(mz_in(call, layernorm_bwd, weight))
                              ? row_in(mz_in(call, layernorm_bwd, weight), 0, width, workspace)
                              : NULL;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 1.2 * (double)rows * width))
    for (int64_t c = 0; c < chunks; c++) {
        float *dweight = partials + 3 * (size_t)c * stride;
        float *mine = buffers + (size_t)mz_thread() * 4 * stride;
        memset(dweight, 0, 3 * stride * sizeof *dweight);
        for (int64_t row = c * per; row < min64(rows, (c + 1) * per); row++)
            layernorm_bwd_row(call, row, width, weight, dweight, mine, stride);
    }
    add_partials(call, 1, partials, chunks, 3 * stride, width);
    add_partials(call, 2, partials + stride, chunks, 3 * stride, width);
    add_partials(call, 4, partials + 2 * stride, chunks, 3 * stride, width);
    return MEZZO_OK;
}

static const char *refuse_low(const mz_tensor *dx, const mz_tensor *low) {
    return mz_present(low) && (dx->dtype != MEZZO_F32 || low->dtype == MEZZO_F32)
               ? "low is the narrow copy of an fp32 dx"
               : NULL;
}

static const char *layernorm_bwd_refuses(const mezzo_device *device, const mz_call *call) {
    (void)device;
    return refuse_low(mz_out(call, layernorm_bwd, dx), mz_out(call, layernorm_bwd, low));
}
MZ_CPU_KERNEL(layernorm_bwd, "aaaffa", "affaf", layernorm_bwd_workspace, layernorm_bwd_refuses)

// --- rmsnorm -------------------------------------------------------------------------------------------------------
static size_t rmsnorm_workspace(const mezzo_device *device, const mz_call *call) {
    size_t width = row_floats(last_dim(&mz_out(call, rmsnorm, y)->shape));
    return sizeof(float) * width * (1 + (size_t)device->threads * LN_ROW_BUFFERS);
}

// Returns weight + offset [C]; NULL: there is none.
static const float *rmsnorm_weight(const mz_call *call, const mz_tensor *t, int width, float *buffer) {
    const float *weight = mz_present(t) ? row_in(t, 0, width, buffer) : NULL;
    if (weight == NULL || call->attrs.offset == 0)
        return weight;
    FOR_LANES(i, lanes, width)
    vstore_lanes(buffer + i, vload_lanes(weight + i, lanes, 0) + vset(call->attrs.offset), lanes);
    return buffer;
}

static mezzo_status run_rmsnorm(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = mz_in(call, rmsnorm, x), *y = mz_out(call, rmsnorm, y);
    int width = (int)last_dim(&y->shape);
    int64_t rows = mz_shape_rows(&y->shape);
    size_t stride = row_floats(width);
    float *workspace = call->workspace, *buffers = workspace + stride;
    const float *weight = rmsnorm_weight(call, mz_in(call, rmsnorm, weight), width, workspace);
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.6 * (double)rows * width))
    for (int64_t row = 0; row < rows; row++) {
        float *mine = buffers + (size_t)mz_thread() * LN_ROW_BUFFERS * stride;
        const float *s = row_in(x, row, width, mine);
        s = norm_input(call, 2, row, width, s, mine + stride, mine + 2 * stride);
        float rstd = 1.0f / sqrtf(row_squares(s, width, 0) / (float)width + call->attrs.eps);
        float *out = block_out(y, row * width, mine);
        FOR_LANES(i, lanes, width) {
            vf value = vload_lanes(s + i, lanes, 0) * rstd;
            vstore_lanes(out + i, weight != NULL ? value * vload_lanes(weight + i, lanes, 0) : value, lanes);
        }
        block_done(y, row * width, width, out);
        if (mz_present(mz_out(call, rmsnorm, rstd)))
            ((float *)mz_out(call, rmsnorm, rstd)->data)[row] = rstd;
    }
    return MEZZO_OK;
}

static const char *rmsnorm_refuses(const mezzo_device *device, const mz_call *call) {
    (void)device;
    const bool summed = mz_present(mz_out(call, rmsnorm, sum));
    return summed && !mz_present(mz_in(call, rmsnorm, residual)) ? "a sum needs a residual" : NULL;
}
MZ_CPU_KERNEL(rmsnorm, "a", "afa", rmsnorm_workspace, rmsnorm_refuses)

// Returns the workspace of partial sums of dweight by runs of rows, as in layernorm_bwd.
static size_t rmsnorm_bwd_workspace(const mezzo_device *device, const mz_call *call) {
    size_t width = row_floats(last_dim(&mz_out(call, rmsnorm_bwd, dx)->shape));
    int64_t rows = mz_shape_rows(&mz_out(call, rmsnorm_bwd, dx)->shape), per = chunk_rows(rows);
    size_t chunks = (size_t)((rows + per - 1) / per);
    return sizeof(float) * width * (1 + chunks + 4 * (size_t)device->threads);
}

// Computes, with x̂ = x·rstd and g = dy·weight: dx = rstd·(g - x̂·mean(g·x̂)) + dres; it adds the row's dy·x̂ to the
// partial sums.
static void rmsnorm_bwd_row(const mz_call *call, int64_t row, int width, const float *weight, float *dweight,
                            float *mine, size_t stride) {
    const float *dy = row_in(mz_in(call, rmsnorm_bwd, dy), row, width, mine);
    const float *x = row_in(mz_in(call, rmsnorm_bwd, x), row, width, mine + stride);
    const float *dres = mz_present(mz_in(call, rmsnorm_bwd, dres))
                            ? row_in(mz_in(call, rmsnorm_bwd, dres), row, width, mine + 2 * stride)
                            : NULL;
    float rstd = ((const float *)mz_in(call, rmsnorm_bwd, rstd)->data)[row];
    vf gx_sum = {0};
    FOR_LANES(i, lanes, width) {
        vf d = vload_lanes(dy + i, lanes, 0), normal = vload_lanes(x + i, lanes, 0) * rstd;
        gx_sum = vfma(weight != NULL ? d * vload_lanes(weight + i, lanes, 0) : d, normal, gx_sum);
        vstore_lanes(dweight + i, vfma(d, normal, vload_lanes(dweight + i, lanes, 0)), lanes);
    }
    float gx_mean = vsum(gx_sum) / (float)width;
    float *dx = block_out(mz_out(call, rmsnorm_bwd, dx), row * width, mine + 3 * stride);
    FOR_LANES(i, lanes, width) {
        vf d = vload_lanes(dy + i, lanes, 0), normal = vload_lanes(x + i, lanes, 0) * rstd;
        vf g = weight != NULL ? d * vload_lanes(weight + i, lanes, 0) : d;
        vf value = (g - normal * gx_mean) * rstd;
        value = dres != NULL ? value + vload_lanes(dres + i, lanes, 0) : value;
        vstore_lanes(dx + i, value, lanes);
    }
    block_done(mz_out(call, rmsnorm_bwd, dx), row * width, width, dx);
    if (mz_present(mz_out(call, rmsnorm_bwd, low)))
        block_done(mz_out(call, rmsnorm_bwd, low), row * width, width, dx);
}

static mezzo_status run_rmsnorm_bwd(mezzo_device *device, const mz_call *call) {
    int width = (int)last_dim(&mz_out(call, rmsnorm_bwd, dx)->shape);
    int64_t rows = mz_shape_rows(&mz_out(call, rmsnorm_bwd, dx)->shape), per = chunk_rows(rows),
            chunks = (rows + per - 1) / per;
    size_t stride = row_floats(width);
    float *workspace = call->workspace, *partials = workspace + stride, *buffers = partials + (size_t)chunks * stride;
    const float *weight = rmsnorm_weight(call, mz_in(call, rmsnorm_bwd, weight), width, workspace);
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 1.0 * (double)rows * width))
    for (int64_t c = 0; c < chunks; c++) {
        float *dweight = partials + (size_t)c * stride, *mine = buffers + (size_t)mz_thread() * 4 * stride;
        memset(dweight, 0, stride * sizeof *dweight);
        for (int64_t row = c * per; row < min64(rows, (c + 1) * per); row++)
            rmsnorm_bwd_row(call, row, width, weight, dweight, mine, stride);
    }
    add_partials(call, 1, partials, chunks, stride, width);
    return MEZZO_OK;
}

static const char *rmsnorm_bwd_refuses(const mezzo_device *device, const mz_call *call) {
    (void)device;
    return refuse_low(mz_out(call, rmsnorm_bwd, dx), mz_out(call, rmsnorm_bwd, low));
}
MZ_CPU_KERNEL(rmsnorm_bwd, "aaafa", "afa", rmsnorm_bwd_workspace, rmsnorm_bwd_refuses)

// --- softmax -------------------------------------------------------------------------------------------------------
static size_t softmax_workspace(const mezzo_device *device, const mz_call *call) {
    return sizeof(float) * row_floats(last_dim(&mz_out(call, softmax, y)->shape)) * 2 * (size_t)device->threads;
}

static mezzo_status run_softmax(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = mz_in(call, softmax, x), *y = mz_out(call, softmax, y);
    int width = (int)last_dim(&y->shape);
    int64_t rows = mz_shape_rows(&y->shape);
    size_t stride = row_floats(width);
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.8 * (double)rows * width))
    for (int64_t row = 0; row < rows; row++) {
        float *mine = (float *)call->workspace + (size_t)mz_thread() * 2 * stride;
        const float *in = row_in(x, row, width, mine);
        float *out = block_out(y, row * width, mine + stride);
        vf most = vset(-INFINITY), sum = {0};
        FOR_LANES(i, lanes, width)
        most = vmax(most, vload_lanes(in + i, lanes, -INFINITY));
        float max = vmax_lanes(most);
        FOR_LANES(i, lanes, width) {
            vf e = vexp(vload_lanes(in + i, lanes, -INFINITY) - max);
            sum += e;
            vstore_lanes(out + i, e, lanes);
        }
        float inverse = 1.0f / vsum(sum);
        FOR_LANES(i, lanes, width)
        vstore_lanes(out + i, vload_lanes(out + i, lanes, 0) * inverse, lanes);
        block_done(y, row * width, width, out);
    }
    return MEZZO_OK;
}
MZ_CPU_KERNEL(softmax, "a", "a", softmax_workspace, NULL)

// Computes dx = y·(dy - Σ dy·y).
static mezzo_status run_softmax_dx(mezzo_device *device, const mz_call *call) {
    const mz_tensor *dx = mz_out(call, softmax_dx, dx);
    int width = (int)last_dim(&dx->shape);
    int64_t rows = mz_shape_rows(&dx->shape);
    size_t stride = row_floats(width);
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.5 * (double)rows * width))
    for (int64_t row = 0; row < rows; row++) {
        float *mine = (float *)call->workspace + (size_t)mz_thread() * 2 * stride;
        const float *dy = row_in(mz_in(call, softmax_dx, dy), row, width, mine);
        const float *y = row_in(mz_in(call, softmax_dx, y), row, width, mine + stride);
        vf sum = {0};
        FOR_LANES(i, lanes, width)
        sum = vfma(vload_lanes(dy + i, lanes, 0), vload_lanes(y + i, lanes, 0), sum);
        float dot = vsum(sum), *out = block_out(dx, row * width, mine);
        FOR_LANES(i, lanes, width)
        vstore_lanes(out + i, vload_lanes(y + i, lanes, 0) * (vload_lanes(dy + i, lanes, 0) - dot), lanes);
        block_done(dx, row * width, width, out);
    }
    return MEZZO_OK;
}
MZ_CPU_KERNEL(softmax_dx, "a", "a", softmax_workspace, NULL)
