// Computes group norm of images [B … C], with scales, shifts and SiLU, and its gradient. A thread has some groups of
// one image, 64 channels or more, and visits its pixels in storage order. Sums of 64 pixels are FP32, sums over all are
// FP64, in order, so the number of threads does not change a bit.
#include "backend/cpu/kernels/act.h"
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"

enum { LEAST_CHANNELS = 64, PIXELS = 64 };

typedef struct norm {
    int64_t images, pixels, channels;
    int groups, depth, together; // depth: channels of a group; together: groups that a thread takes at a time
    int64_t blocks;              // of an image
    size_t width;                // floats of a row of a block's channels
} norm;

static norm norm_of(const mz_call *call, const mz_shape *x) {
    norm v = {.images = x->dim[0], .channels = last_dim(x), .groups = call->attrs.groups};
    v.pixels = mz_shape_count(x) / v.images / v.channels;
    v.depth = (int)(v.channels / v.groups);
    v.together = v.depth < LEAST_CHANNELS ? LEAST_CHANNELS / v.depth : 1;
    v.together = v.together < v.groups ? v.together : v.groups;
    v.blocks = (v.groups + v.together - 1) / v.together;
    v.width = mz_align_up((size_t)(v.together * v.depth), 16);
    return v;
}

// The channels of a block, and rows of its own workspace.
typedef struct block {
    int64_t image, first; // first: its first channel
    int n, groups;        // channels, groups
    float *rows;
    size_t width;
} block;

static block block_at(const norm *v, int64_t item, float *rows) {
    const int64_t group = item % v->blocks * v->together;
    const int groups = (int)min64(v->together, v->groups - group);
    return (block){item / v->blocks, group * v->depth, groups * v->depth, groups, rows, v->width};
}

// Rows of a block's workspace: numbers for each channel, and space for rows of tensors.
enum { MEAN, RSTD, WEIGHT, BIAS, SCALE, SHIFT, SLOPE, FIRST, SECOND, PARTIAL, PARTIAL2, READ, READ2, WRITE, TOTAL };
enum { TOTALS = 4, ROWS = TOTAL + TOTALS }; // two rows of FP64

static float *row_of(const block *b, int which) {
    return b->rows + (size_t)which * b->width;
}
static double *total_of(const block *b, int which) {
    return (double *)(void *)row_of(b, TOTAL + 2 * which);
}

static void fill_row(const mz_tensor *t, int64_t at, int n, float absent, float *row) {
    if (mz_present(t))
        widen_block(element_at(t, at), t->dtype, row, n);
    for (int i = 0; i < n && !mz_present(t); i++)
        row[i] = absent;
}

// Reads weight, bias, scale + 1 and shift of the block's channels; `slot` is the weight's.
static void fill_factors(const mz_call *call, const norm *v, const block *b, int slot) {
    const mz_tensor *film = &call->in[slot + 2];
    const int64_t at = b->image * 2 * v->channels + b->first;
    fill_row(&call->in[slot], b->first, b->n, 1, row_of(b, WEIGHT));
    fill_row(&call->in[slot + 1], b->first, b->n, 0, row_of(b, BIAS));
    fill_row(film, at, b->n, 0, row_of(b, SCALE));
    fill_row(film, at + v->channels, b->n, 0, row_of(b, SHIFT));
    for (int i = 0; i < b->n; i++)
        row_of(b, SCALE)[i] += 1;
}

static void add_to_total(const block *b, int which, float *partial) {
    double *total = total_of(b, which);
    for (int i = 0; i < b->n; i++) {
        total[i] += (double)partial[i];
        partial[i] = 0;
    }
}

static void clear_totals(const block *b) {
    memset(row_of(b, PARTIAL), 0, 2 * b->width * sizeof(float));
    memset(total_of(b, 0), 0, TOTALS * b->width * sizeof(float));
}

static int64_t element_of(const norm *v, const block *b, int64_t pixel) {
    return (b->image * v->pixels + pixel) * v->channels + b->first;
}

// Sums x, or (x - mean)², by channels.
static void sum_channels(const mz_tensor *x, const norm *v, const block *b, bool squares) {
    float *partial = row_of(b, PARTIAL);
    const float *mean = row_of(b, MEAN);
    clear_totals(b);
    for (int64_t pixel = 0; pixel < v->pixels; pixel++) {
        const float *row = block_in(x, element_of(v, b, pixel), b->n, row_of(b, READ));
        if (squares)
            EACH_VECTOR(i, lanes, b->n, {
                const vf d = vload_lanes(row + i, lanes, 0) - vload_lanes(mean + i, lanes, 0);
                vstore_lanes(partial + i, vfma(d, d, vload_lanes(partial + i, lanes, 0)), lanes);
            });
        else
            EACH_VECTOR(i, lanes, b->n, {
                vstore_lanes(partial + i, vload_lanes(partial + i, lanes, 0) + vload_lanes(row + i, lanes, 0), lanes);
            });
        if (pixel % PIXELS == PIXELS - 1 || pixel == v->pixels - 1)
            add_to_total(b, 0, partial);
    }
}

// Writes to every channel of a group the mean of the group's totals, multiplied by `factors` where there are any.
static double group_mean(const norm *v, const block *b, int which, const float *factors, int group) {
    double sum = 0;
    for (int i = group * v->depth; i < (group + 1) * v->depth; i++)
        sum += total_of(b, which)[i] * (factors != NULL ? (double)factors[i] : 1);
    return sum / ((double)v->pixels * v->depth);
}

static void spread(const norm *v, float *row, int group, float value) {
    for (int i = group * v->depth; i < (group + 1) * v->depth; i++)
        row[i] = value;
}

static void statistics(const mz_call *call, const norm *v, const block *b) {
    const int64_t first = b->image * v->groups + b->first / v->depth;
    sum_channels(mz_in(call, group_norm, x), v, b, false);
    for (int g = 0; g < b->groups; g++)
        spread(v, row_of(b, MEAN), g, (float)group_mean(v, b, 0, NULL, g));
    sum_channels(mz_in(call, group_norm, x), v, b, true);
    for (int g = 0; g < b->groups; g++) {
        const double variance = group_mean(v, b, 0, NULL, g);
        spread(v, row_of(b, RSTD), g, (float)(1 / sqrt(variance + (double)call->attrs.eps)));
        if (mz_present(mz_out(call, group_norm, mean)))
            ((float *)mz_out(call, group_norm, mean)->data)[first + g] = row_of(b, MEAN)[g * v->depth];
        if (mz_present(mz_out(call, group_norm, rstd)))
            ((float *)mz_out(call, group_norm, rstd)->data)[first + g] = row_of(b, RSTD)[g * v->depth];
    }
}

static void normalise(const mz_call *call, const norm *v, const block *b) {
    const float *mean = row_of(b, MEAN), *rstd = row_of(b, RSTD), *weight = row_of(b, WEIGHT), *bias = row_of(b, BIAS);
    const float *scale = row_of(b, SCALE), *shift = row_of(b, SHIFT);
    float *factor = row_of(b, SLOPE), *constant = row_of(b, FIRST);
    const bool silu = call->attrs.act == MZ_ACT_SILU;
    for (int i = 0; i < b->n; i++) {
        factor[i] = rstd[i] * weight[i] * scale[i];
        constant[i] = bias[i] * scale[i] + shift[i];
    }
    for (int64_t pixel = 0; pixel < v->pixels; pixel++) {
        const int64_t at = element_of(v, b, pixel);
        const float *x = block_in(mz_in(call, group_norm, x), at, b->n, row_of(b, READ));
        float *y = block_out(mz_out(call, group_norm, y), at, row_of(b, WRITE));
        EACH_VECTOR(i, lanes, b->n, {
            const vf d = vload_lanes(x + i, lanes, 0) - vload_lanes(mean + i, lanes, 0);
            const vf z = vfma(d, vload_lanes(factor + i, lanes, 0), vload_lanes(constant + i, lanes, 0));
            vstore_lanes(y + i, silu ? vact(MZ_ACT_SILU, z) : z, lanes);
        });
        block_done(mz_out(call, group_norm, y), at, b->n, y);
    }
}

static mezzo_status run_group_norm(mezzo_device *device, const mz_call *call) {
    const norm v = norm_of(call, &mz_out(call, group_norm, y)->shape);
    const double cost =
        (call->attrs.act == MZ_ACT_SILU ? 1.4 : 0.9) * (double)mz_shape_count(&mz_out(call, group_norm, y)->shape);
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, cost))
    for (int64_t item = 0; item < v.images * v.blocks; item++) {
        const block b = block_at(&v, item, (float *)call->workspace + (size_t)mz_thread() * ROWS * v.width);
        statistics(call, &v, &b);
        fill_factors(call, &v, &b, 1);
        normalise(call, &v, &b);
    }
    return MEZZO_OK;
}

static size_t group_norm_workspace(const mezzo_device *device, const mz_call *call) {
    return sizeof(float) * (size_t)device->threads * ROWS * norm_of(call, &mz_out(call, group_norm, y)->shape).width;
}
MZ_CPU_KERNEL(group_norm, "a", "aff", group_norm_workspace, NULL)

// --- the gradient --------------------------------------------------------------------------------------------------
// Returns the sums of each channel of an image, which are kept: [2, B, C]. With x̂ = (x - mean)·rstd, z = (x̂·weight +
// bias)·scale + shift and dz = dy·act'(z), the gradient follows from Σ dz and Σ dz·x̂.
static float *sums_of(const mz_call *call, const norm *v, int which) {
    return (float *)call->workspace + (int64_t)which * v->images * v->channels;
}

// Returns dz of a pixel's channels, and x̂ in *normal.
static inline vf derivative_at(const block *b, const float *dy, const float *x, int i, int lanes, bool silu,
                               vf *normal) {
    const vf d = vload_lanes(x + i, lanes, 0) - vload_lanes(row_of(b, MEAN) + i, lanes, 0);
    *normal = d * vload_lanes(row_of(b, RSTD) + i, lanes, 0);
    const vf dz = vload_lanes(dy + i, lanes, 0);
    if (!silu)
        return dz;
    const vf n =
        vfma(*normal, vload_lanes(row_of(b, WEIGHT) + i, lanes, 0), vload_lanes(row_of(b, BIAS) + i, lanes, 0));
    const vf z = vfma(n, vload_lanes(row_of(b, SCALE) + i, lanes, 0), vload_lanes(row_of(b, SHIFT) + i, lanes, 0));
    return vact_dx(MZ_ACT_SILU, dz, z);
}

static void sum_derivatives(const mz_call *call, const norm *v, const block *b) {
    float *plain = row_of(b, PARTIAL), *normals = row_of(b, PARTIAL2);
    const bool silu = call->attrs.act == MZ_ACT_SILU;
    clear_totals(b);
    for (int64_t pixel = 0; pixel < v->pixels; pixel++) {
        const int64_t at = element_of(v, b, pixel);
        const float *dy = block_in(mz_in(call, group_norm_bwd, dy), at, b->n, row_of(b, READ));
        const float *x = block_in(mz_in(call, group_norm_bwd, x), at, b->n, row_of(b, READ2));
        EACH_VECTOR(i, lanes, b->n, {
            vf normal;
            const vf dz = derivative_at(b, dy, x, i, lanes, silu, &normal);
            vstore_lanes(plain + i, vload_lanes(plain + i, lanes, 0) + dz, lanes);
            vstore_lanes(normals + i, vfma(dz, normal, vload_lanes(normals + i, lanes, 0)), lanes);
        });
        if (pixel % PIXELS == PIXELS - 1 || pixel == v->pixels - 1) {
            add_to_total(b, 0, plain);
            add_to_total(b, 1, normals);
        }
    }
    const int64_t at = b->image * v->channels + b->first;
    for (int i = 0; i < b->n; i++) {
        sums_of(call, v, 0)[at + i] = (float)total_of(b, 0)[i];
        sums_of(call, v, 1)[at + i] = (float)total_of(b, 1)[i];
    }
}

static void write_dx(const mz_call *call, const norm *v, const block *b) {
    float *factor = row_of(b, SLOPE), *first = row_of(b, FIRST), *second = row_of(b, SECOND);
    const float *rstd = row_of(b, RSTD);
    const bool silu = call->attrs.act == MZ_ACT_SILU;
    for (int i = 0; i < b->n; i++)
        factor[i] = row_of(b, WEIGHT)[i] * row_of(b, SCALE)[i];
    for (int g = 0; g < b->groups; g++) {
        spread(v, first, g, (float)group_mean(v, b, 0, factor, g));
        spread(v, second, g, (float)group_mean(v, b, 1, factor, g));
    }
    for (int64_t pixel = 0; pixel < v->pixels; pixel++) {
        const int64_t at = element_of(v, b, pixel);
        const float *dy = block_in(mz_in(call, group_norm_bwd, dy), at, b->n, row_of(b, READ));
        const float *x = block_in(mz_in(call, group_norm_bwd, x), at, b->n, row_of(b, READ2));
        float *dx = block_out(mz_out(call, group_norm_bwd, dx), at, row_of(b, WRITE));
        EACH_VECTOR(i, lanes, b->n, {
            vf normal;
            const vf dz = derivative_at(b, dy, x, i, lanes, silu, &normal);
            vf value = dz * vload_lanes(factor + i, lanes, 0) - vload_lanes(first + i, lanes, 0);
            value = value - normal * vload_lanes(second + i, lanes, 0);
            vstore_lanes(dx + i, value * vload_lanes(rstd + i, lanes, 0), lanes);
        });
        block_done(mz_out(call, group_norm_bwd, dx), at, b->n, dx);
    }
}

// Sums over the images in order.
static void write_parameters(const mz_call *call, const norm *v) {
    const mz_tensor *film = mz_in(call, group_norm_bwd, film), *weight = mz_in(call, group_norm_bwd, weight),
                    *bias = mz_in(call, group_norm_bwd, bias), *dfilm = mz_out(call, group_norm_bwd, dfilm);
    float *const out[] = {
        mz_present(mz_out(call, group_norm_bwd, dweight)) ? mz_out(call, group_norm_bwd, dweight)->data : NULL,
        mz_present(mz_out(call, group_norm_bwd, dbias)) ? mz_out(call, group_norm_bwd, dbias)->data : NULL};
    for (int64_t c = 0; c < v->channels; c++) {
        double dweight = 0, dbias = 0;
        float w, constant;
        fill_row(weight, c, 1, 1, &w);
        fill_row(bias, c, 1, 0, &constant);
        for (int64_t image = 0; image < v->images; image++) {
            const double plain = (double)sums_of(call, v, 0)[image * v->channels + c];
            const double normals = (double)sums_of(call, v, 1)[image * v->channels + c];
            const int64_t at = image * 2 * v->channels + c;
            float scale;
            fill_row(film, at, 1, 0, &scale);
            dweight += (1 + (double)scale) * normals;
            dbias += (1 + (double)scale) * plain;
            if (!mz_present(dfilm))
                continue;
            const float derivatives[] = {(float)((double)w * normals + (double)constant * plain), (float)plain};
            narrow_block(&derivatives[0], element_at(dfilm, at), dfilm->dtype, 1);
            narrow_block(&derivatives[1], element_at(dfilm, at + v->channels), dfilm->dtype, 1);
        }
        const double sums[] = {dweight, dbias};
        for (int k = 0; k < 2; k++)
            if (out[k] != NULL)
                out[k][c] = (float)(sums[k] + (call->attrs.accumulate ? (double)out[k][c] : 0));
    }
}

static size_t kept_sums(const norm *v) {
    return mz_align_up((size_t)(2 * v->images * v->channels), 16);
}

static mezzo_status run_group_norm_bwd(mezzo_device *device, const mz_call *call) {
    const norm v = norm_of(call, &mz_out(call, group_norm_bwd, dx)->shape);
    const double cost =
        (call->attrs.act == MZ_ACT_SILU ? 2.4 : 1.4) * (double)mz_shape_count(&mz_out(call, group_norm_bwd, dx)->shape);
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, cost))
    for (int64_t item = 0; item < v.images * v.blocks; item++) {
        float *rows = (float *)call->workspace + kept_sums(&v) + (size_t)mz_thread() * ROWS * v.width;
        const block b = block_at(&v, item, rows);
        const int64_t first = b.image * v.groups + b.first / v.depth;
        for (int g = 0; g < b.groups; g++) {
            spread(&v, row_of(&b, MEAN), g, ((const float *)mz_in(call, group_norm_bwd, mean)->data)[first + g]);
            spread(&v, row_of(&b, RSTD), g, ((const float *)mz_in(call, group_norm_bwd, rstd)->data)[first + g]);
        }
        fill_factors(call, &v, &b, 2);
        sum_derivatives(call, &v, &b);
        write_dx(call, &v, &b);
    }
    write_parameters(call, &v);
    return MEZZO_OK;
}

static size_t group_norm_bwd_workspace(const mezzo_device *device, const mz_call *call) {
    const norm v = norm_of(call, &mz_out(call, group_norm_bwd, dx)->shape);
    return sizeof(float) * (kept_sums(&v) + (size_t)device->threads * ROWS * v.width);
}
MZ_CPU_KERNEL(group_norm_bwd, "aaaaaff", "aaff", group_norm_bwd_workspace, NULL)
