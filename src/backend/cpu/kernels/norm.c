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

// --- layernorm and rmsnorm -----------------------------------------------------------------------------------------
enum { LN_ROW_BUFFERS = 3 };

// The tensors of layernorm, or of rmsnorm, whose mean counts as 0.
typedef struct norm {
    const mz_tensor *x, *weight, *bias, *residual, *y, *mean, *rstd, *sum;
    bool centred;
} norm;
#define NORM(op)                                                                                                       \
    .x = mz_in(call, op, x), .weight = mz_in(call, op, weight), .residual = mz_in(call, op, residual),                 \
    .y = mz_out(call, op, y), .rstd = mz_out(call, op, rstd), .sum = mz_out(call, op, sum)

static size_t norm_workspace(const mezzo_device *device, const mz_call *call) {
    size_t width = row_floats(last_dim(&mz_out(call, layernorm, y)->shape)); // rmsnorm's too
    return sizeof(float) * width * (2 + (size_t)device->threads * LN_ROW_BUFFERS);
}

// Returns weight + offset [C]; NULL: there is none.
static const float *weight_of(const mz_call *call, const mz_tensor *t, int width, float *buffer) {
    const float *weight = mz_present(t) ? row_in(t, 0, width, buffer) : NULL;
    if (weight == NULL || call->attrs.offset == 0)
        return weight;
    FOR_LANES(i, lanes, width)
    vstore_lanes(buffer + i, vload_lanes(weight + i, lanes, 0) + vset(call->attrs.offset), lanes);
    return buffer;
}

// Returns s = x + residual as `sum` stores it: backward reads that tensor, and must see the normalized numbers.
static const float *norm_input(const norm *n, int64_t row, int width, float *mine, size_t stride) {
    const float *x = row_in(n->x, row, width, mine);
    float *s = mine + stride;
    if (mz_present(n->residual)) {
        const float *residual = row_in(n->residual, row, width, mine + 2 * stride);
        EACH_VECTOR(i, lanes, width, {
            vstore_lanes(s + i, vload_lanes(x + i, lanes, 0) + vload_lanes(residual + i, lanes, 0), lanes);
        });
        x = s;
    }
    if (!mz_present(n->sum))
        return x;
    narrow_block(x, element_at(n->sum, row * width), n->sum->dtype, width);
    if (n->sum->dtype == MEZZO_F32)
        return x;
    widen_block(element_at(n->sum, row * width), n->sum->dtype, s, width);
    return s;
}

static mezzo_status normalize(mezzo_device *device, const mz_call *call, const norm *n) {
    int width = (int)last_dim(&n->y->shape);
    int64_t rows = mz_shape_rows(&n->y->shape);
    size_t stride = row_floats(width);
    float *workspace = call->workspace, *buffers = workspace + 2 * stride;
    // [C] each, FP32
    const float *weight = weight_of(call, n->weight, width, workspace),
                *bias = mz_present(n->bias) ? row_in(n->bias, 0, width, workspace + stride) : NULL;
    const double cost = n->centred ? 0.8 : 0.6;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, cost *(double)rows *width))
    for (int64_t row = 0; row < rows; row++) {
        float *mine = buffers + (size_t)mz_thread() * LN_ROW_BUFFERS * stride;
        const float *s = norm_input(n, row, width, mine, stride);
        float mean = n->centred ? row_sum(s, width) / (float)width : 0;
        float rstd = 1.0f / sqrtf(row_squares(s, width, mean) / (float)width + call->attrs.eps);
        float *out = block_out(n->y, row * width, mine);
        EACH_VECTOR(i, lanes, width, {
            vf value = (vload_lanes(s + i, lanes, 0) - mean) * rstd;
            value = weight != NULL ? value * vload_lanes(weight + i, lanes, 0) : value;
            value = bias != NULL ? value + vload_lanes(bias + i, lanes, 0) : value;
            vstore_lanes(out + i, value, lanes);
        });
        block_done(n->y, row * width, width, out);
        if (mz_present(n->mean))
            ((float *)n->mean->data)[row] = mean;
        if (mz_present(n->rstd))
            ((float *)n->rstd->data)[row] = rstd;
    }
    return MEZZO_OK;
}

static mezzo_status run_layernorm(mezzo_device *device, const mz_call *call) {
    const norm n = {NORM(layernorm), .bias = mz_in(call, layernorm, bias), .mean = mz_out(call, layernorm, mean),
                    .centred = true};
    return normalize(device, call, &n);
}
MZ_CPU_KERNEL(layernorm, "a", "affa", norm_workspace, NULL)

static mezzo_status run_rmsnorm(mezzo_device *device, const mz_call *call) {
    const norm n = {NORM(rmsnorm), .bias = &mz_absent_slot, .mean = &mz_absent_slot};
    return normalize(device, call, &n);
}
MZ_CPU_KERNEL(rmsnorm, "a", "afa", norm_workspace, NULL)

// --- their gradients -----------------------------------------------------------------------------------------------
// dweight, dbias and linear_dbias are sums over all rows: each of at most LN_CHUNKS runs of rows has partial sums of
// its own, which are added in order at the end. The runs depend on the shape only, so the number of threads does not
// change a bit.
enum { LN_CHUNKS = 64, SUMS = 3 };

typedef struct norm_bwd {
    const mz_tensor *dy, *x, *weight, *mean, *rstd, *dres, *dx, *dweight, *dbias, *low, *linear_dbias;
    const float *weights; // [C]; NULL: there are none
    int width;
    size_t stride;
} norm_bwd;
#define NORM_BWD(op)                                                                                                   \
    .dy = mz_in(call, op, dy), .x = mz_in(call, op, x), .weight = mz_in(call, op, weight),                             \
    .rstd = mz_in(call, op, rstd), .dres = mz_in(call, op, dres), .dx = mz_out(call, op, dx),                          \
    .dweight = mz_out(call, op, dweight), .low = mz_out(call, op, low)

static int64_t chunk_rows(int64_t rows) {
    int64_t per = (rows + LN_CHUNKS - 1) / LN_CHUNKS;
    return per < 8 ? 8 : per;
}

static size_t norm_bwd_workspace(const mezzo_device *device, const mz_call *call) {
    const mz_shape *dx = &mz_out(call, layernorm_bwd, dx)->shape; // rmsnorm_bwd's too
    int64_t rows = mz_shape_rows(dx), per = chunk_rows(rows);
    size_t chunks = (size_t)((rows + per - 1) / per);
    return sizeof(float) * row_floats(last_dim(dx)) * (1 + SUMS * chunks + 4 * (size_t)device->threads);
}

// Computes, with x̂ = (x - mean)·rstd and g = dy·weight: dx = rstd·(g - mean(g) - x̂·mean(g·x̂)) + dres; it adds the
// row's dy·x̂, dy and dx to the partial sums [3, stride]. rmsnorm's means count as 0, and its sums have one chain.
static inline __attribute__((always_inline)) void norm_bwd_row(const norm_bwd *n, const bool centred, int64_t row,
                                                               float *dweight, float *mine) {
    const int width = n->width, whole = centred ? width / STRIDE * STRIDE : 0;
    float *dbias = dweight + n->stride, *linear_dbias = dbias + n->stride;
    const float *dy = row_in(n->dy, row, width, mine), *x = row_in(n->x, row, width, mine + n->stride),
                *dres = mz_present(n->dres) ? row_in(n->dres, row, width, mine + 2 * n->stride) : NULL,
                *weight = n->weights;
    float mean = centred ? ((const float *)n->mean->data)[row] : 0, rstd = ((const float *)n->rstd->data)[row];
    vf g_sum[CHAINS] = {{0}}, gx_sum[CHAINS] = {{0}};
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
        if (centred)
            vstore_lanes(dbias + i, vload_lanes(dbias + i, lanes, 0) + d, lanes);
    }
    float g_mean = centred ? add_chains(g_sum) / (float)width : 0, gx_mean = add_chains(gx_sum) / (float)width;
    float *dx = block_out(n->dx, row * width, mine + 3 * n->stride);
    EACH_VECTOR(i, lanes, width, {
        vf d = vload_lanes(dy + i, lanes, 0), normal = (vload_lanes(x + i, lanes, 0) - mean) * rstd;
        vf g = weight != NULL ? d * vload_lanes(weight + i, lanes, 0) : d;
        vf value = (g - g_mean - normal * gx_mean) * rstd;
        value = dres != NULL ? value + vload_lanes(dres + i, lanes, 0) : value;
        vstore_lanes(dx + i, value, lanes);
    });
    block_done(n->dx, row * width, width, dx);
    if (mz_present(n->low))
        block_done(n->low, row * width, width, dx);
    if (!mz_present(n->linear_dbias))
        return;
    const float *stored = row_in(mz_present(n->low) ? n->low : n->dx, row, width, mine);
    FOR_LANES(i, lanes, width)
    vstore_lanes(linear_dbias + i, vload_lanes(linear_dbias + i, lanes, 0) + vload_lanes(stored + i, lanes, 0), lanes);
}

static void add_partials(const mz_call *call, const mz_tensor *t, const float *partials, int64_t chunks, size_t step,
                         int width) {
    if (!mz_present(t))
        return;
    float *out = t->data; // [C]
    FOR_LANES(i, lanes, width) {
        vf sum = {0};
        for (int64_t c = 0; c < chunks; c++)
            sum += vload_lanes(partials + (size_t)c * step + i, lanes, 0);
        vstore_lanes(out + i, call->attrs.accumulate ? sum + vload_lanes(out + i, lanes, 0) : sum, lanes);
    }
}

static mezzo_status differentiate(mezzo_device *device, const mz_call *call, norm_bwd n) {
    const bool centred = mz_present(n.mean);
    const int64_t rows = mz_shape_rows(&n.dx->shape), per = chunk_rows(rows), chunks = (rows + per - 1) / per;
    n.width = (int)last_dim(&n.dx->shape);
    n.stride = row_floats(n.width);
    const size_t step = SUMS * n.stride;
    float *partials = (float *)call->workspace + n.stride, *buffers = partials + (size_t)chunks * step;
    n.weights = weight_of(call, n.weight, n.width, call->workspace);
    const double cost = centred ? 1.2 : 1.0;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, cost *(double)rows *n.width))
    for (int64_t c = 0; c < chunks; c++) {
        float *sums = partials + (size_t)c * step, *mine = buffers + (size_t)mz_thread() * 4 * n.stride;
        memset(sums, 0, (centred ? step : n.stride) * sizeof *sums);
        for (int64_t row = c * per; row < min64(rows, (c + 1) * per); row++)
            if (centred)
                norm_bwd_row(&n, true, row, sums, mine);
            else
                norm_bwd_row(&n, false, row, sums, mine);
    }
    add_partials(call, n.dweight, partials, chunks, step, n.width);
    add_partials(call, n.dbias, partials + n.stride, chunks, step, n.width);
    add_partials(call, n.linear_dbias, partials + 2 * n.stride, chunks, step, n.width);
    return MEZZO_OK;
}

static const char *refuse_low(const mz_tensor *dx, const mz_tensor *low) {
    return mz_present(low) && (dx->dtype != MEZZO_F32 || low->dtype == MEZZO_F32)
               ? "low is the narrow copy of an fp32 dx"
               : NULL;
}

static mezzo_status run_layernorm_bwd(mezzo_device *device, const mz_call *call) {
    return differentiate(device, call,
                         (norm_bwd){NORM_BWD(layernorm_bwd), .mean = mz_in(call, layernorm_bwd, mean),
                                    .dbias = mz_out(call, layernorm_bwd, dbias),
                                    .linear_dbias = mz_out(call, layernorm_bwd, linear_dbias)});
}
static const char *layernorm_bwd_refuses(const mezzo_device *device, const mz_call *call) {
    (void)device;
    return refuse_low(mz_out(call, layernorm_bwd, dx), mz_out(call, layernorm_bwd, low));
}
MZ_CPU_KERNEL(layernorm_bwd, "aaaffa", "affaf", norm_bwd_workspace, layernorm_bwd_refuses)

static mezzo_status run_rmsnorm_bwd(mezzo_device *device, const mz_call *call) {
    return differentiate(device, call,
                         (norm_bwd){NORM_BWD(rmsnorm_bwd), .mean = &mz_absent_slot, .dbias = &mz_absent_slot,
                                    .linear_dbias = &mz_absent_slot});
}
static const char *rmsnorm_bwd_refuses(const mezzo_device *device, const mz_call *call) {
    (void)device;
    return refuse_low(mz_out(call, rmsnorm_bwd, dx), mz_out(call, rmsnorm_bwd, low));
}
MZ_CPU_KERNEL(rmsnorm_bwd, "aaafa", "afa", norm_bwd_workspace, rmsnorm_bwd_refuses)

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
