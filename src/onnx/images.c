// Converts ONNX ops of images, and of rows as images of height 1: [B, C, H, W] in the file, [B, H, W, C] in storage.
#include <float.h>
#include <math.h>

#include "onnx/convert.h"

// --- the order of channels -----------------------------------------------------------------------------------------
// Sets the stored order of a file's [B, C, …]: channels last.
static void channels_last(int rank, int *perm) {
    for (int i = 0; i < rank; i++)
        perm[i] = i == 0 ? 0 : i == 1 ? rank - 1 : i - 1;
}

// Gets input 0, of three or four dimensions, as [B, H, W, C].
static mezzo_status get_image(mz_onnx_call *call, mezzo_value *out) {
    mz_onnx_value *x = call->in[0];
    int perm[MEZZO_MAX_RANK];
    channels_last(x->rank, perm);
    MEZZO_TRY(mz_onnx_ordered(call, x, x->rank, perm, out));
    mezzo_graph *g = call->build->g;
    const int64_t dim[] = {x->dim[0], x->rank == 4 ? x->dim[2] : 1, x->dim[x->rank - 1], x->dim[1]};
    *out = mz_onnx_shaped(g, *out, 4, dim);
    return mezzo_graph_status(g);
}

static mezzo_status give_image(mz_onnx_call *call, mezzo_value y) {
    const int rank = call->in[0]->rank;
    mezzo_graph *g = call->build->g;
    int perm[MEZZO_MAX_RANK];
    channels_last(rank, perm);
    if (rank == 3)
        y = mz_onnx_shaped(g, y, 3,
                           (int64_t[]){mezzo_value_dim(g, y, 0), mezzo_value_dim(g, y, 2), mezzo_value_dim(g, y, 3)});
    return mz_onnx_give_as(call, 0, false, rank, y, perm);
}

// --- windows -------------------------------------------------------------------------------------------------------
// Holds windows by direction, height first. Rows have a window of one line.
typedef struct windows {
    int64_t size[2], stride[2], dilation[2], before[2], after[2];
} windows;

static mezzo_status read_list(mz_onnx_call *call, const char *name, int n, int64_t *out) {
    const MzPb__Attribute *a = mz_onnx_attribute(call->node, name);
    for (int i = 0; a && i < n; i++) {
        if (a->n_ints != (size_t)n || a->ints[i] < 0 || a->ints[i] > 1 << 20)
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "'%s' must have %d numbers from 0 to 2^20", name, n);
        out[i] = a->ints[i];
    }
    return MEZZO_OK;
}

// Reads windows. size: that of a window, from the weight or kernel_shape.
static mezzo_status read_windows(mz_onnx_call *call, const int64_t size[2], windows *w) {
    const int d = call->in[0]->rank - 2, from = 2 - d;
    const MzPb__Attribute *own = mz_onnx_attribute(call->node, "auto_pad");
    *w = (windows){.size = {1, 1}, .stride = {1, 1}, .dilation = {1, 1}};
    int64_t pads[4] = {0};
    int64_t kernel[2] = {size[0], size[1]};
    MEZZO_TRY(read_list(call, "kernel_shape", d, kernel + from));
    for (int i = from; i < 2; i++) {
        w->size[i] = size[i];
        if (kernel[i] != size[i])
            return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "'kernel_shape' is not its weight's");
    }
    MEZZO_TRY(read_list(call, "strides", d, w->stride + from));
    MEZZO_TRY(read_list(call, "dilations", d, w->dilation + from));
    MEZZO_TRY(read_list(call, "pads", 2 * d, pads));
    for (int i = from; i < 2; i++) {
        w->before[i] = pads[i - from];
        w->after[i] = pads[i - from + d];
        if (w->size[i] < 1 || w->size[i] > 1 << 20 || w->stride[i] < 1 || w->dilation[i] < 1)
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "a window, stride or dilation below 1");
    }
    const bool upper = own && mz_onnx_is(call->node, "auto_pad", "SAME_UPPER", false),
               lower = own && mz_onnx_is(call->node, "auto_pad", "SAME_LOWER", false);
    for (int i = from; i < 2 && (upper || lower); i++) {
        const int64_t n = call->in[0]->dim[2 + i - from], span = (w->size[i] - 1) * w->dilation[i] + 1,
                      out = (n + w->stride[i] - 1) / w->stride[i], all = (out - 1) * w->stride[i] + span - n;
        w->before[i] = all < 0 ? 0 : upper ? all / 2 : all - all / 2;
        w->after[i] = all < 0 ? 0 : all - w->before[i];
    }
    if (own && !upper && !lower && !mz_onnx_is(call->node, "auto_pad", "NOTSET", false) &&
        !mz_onnx_is(call->node, "auto_pad", "VALID", false))
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its 'auto_pad'");
    return MEZZO_OK;
}

static mezzo_status check_image(mz_onnx_call *call) {
    const int rank = call->in[0]->rank;
    if (call->in[0]->kind == MZ_ONNX_HOST || call->in[0]->integer)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its input is no computed numbers");
    if (rank == 3 || rank == 4)
        return MEZZO_OK;
    return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "%d dimensions of space; one and two work", rank - 2);
}

// --- convolutions --------------------------------------------------------------------------------------------------
// Inserts `by` - 1 zeros between neighbours along an axis.
static mezzo_value spread(mezzo_graph *g, mezzo_value v, int axis, int64_t by) {
    const int rank = mezzo_value_rank(g, v);
    const int64_t n = mezzo_value_dim(g, v, axis);
    int64_t dim[MEZZO_MAX_RANK], outer = 1, inner = 1;
    if (by == 1 || n == 1)
        return v;
    for (int i = 0; i < rank && i < MEZZO_MAX_RANK; i++) {
        dim[i] = i == axis ? n * by : mezzo_value_dim(g, v, i);
        outer *= i < axis ? dim[i] : 1;
        inner *= i > axis ? dim[i] : 1;
    }
    v = mz_onnx_shaped(g, v, 4, (int64_t[]){outer, n, 1, inner});
    v = mezzo_pad(g, v, (int64_t[]){0, 0, 0, 0}, (int64_t[]){0, 0, by - 1, 0}, 0);
    return mezzo_slice(g, mz_onnx_shaped(g, v, rank, dim), axis, 0, (n - 1) * by + 1);
}

// Convolves x [B, H, W, C] with weight [N, R, S, C / groups]. Separate nodes compute strides and paddings for which the
// op has no attribute; negative paddings crop.
static mezzo_value convolve(mezzo_graph *g, mezzo_value x, mezzo_value weight, mezzo_value bias, const windows *w,
                            int64_t groups) {
    int64_t before[4] = {0}, after[4] = {0};
    for (int i = 0; i < 2; i++)
        weight = spread(g, weight, 1 + i, w->dilation[i]);
    const int64_t rows = mezzo_value_dim(g, weight, 1), columns = mezzo_value_dim(g, weight, 2);
    const bool own = w->before[0] == w->before[1] && w->after[0] == w->after[1] && w->before[0] >= 0 &&
                     w->after[0] >= 0 && w->before[0] < rows && w->before[0] < columns && w->after[0] < rows &&
                     w->after[0] < columns;
    for (int i = 0; i < 2 && !own; i++) {
        const int64_t n = mezzo_value_dim(g, x, 1 + i);
        if (w->before[i] < 0 || w->after[i] < 0)
            x = mezzo_slice(g, x, 1 + i, w->before[i] < 0 ? -w->before[i] : 0, n + (w->after[i] < 0 ? w->after[i] : 0));
        before[1 + i] = w->before[i] > 0 ? w->before[i] : 0;
        after[1 + i] = w->after[i] > 0 ? w->after[i] : 0;
    }
    x = own ? x : mezzo_pad(g, x, before, after, 0);
    const bool lines = mezzo_value_dim(g, x, 1) == 1 && rows == 1; // their stride downwards has no effect
    const int64_t stride = lines ? w->stride[1] : w->stride[0];
    const bool even = lines || w->stride[0] == w->stride[1];
    const mezzo_convolution form = {even ? (int)stride : 1, own ? (int)w->before[0] : 0, own ? (int)w->after[0] : 0,
                                    (int)groups};
    mezzo_value y = mezzo_conv2d(g, x, weight, bias, &form);
    for (int i = 0; i < 2 && !even; i++) {
        const int64_t n = mezzo_value_dim(g, y, 1 + i);
        if (n > 0)
            y = mz_onnx_strided(g, y, 1 + i, 0, (n - 1) / w->stride[i] + 1, w->stride[i]);
    }
    return y;
}

// Gets the weight as [N, R, S, C / groups], and its window.
static mezzo_status get_weight(mz_onnx_call *call, mezzo_value *weight, int64_t size[2]) {
    mz_onnx_value *w = call->in[1];
    mezzo_graph *g = call->build->g;
    int perm[MEZZO_MAX_RANK];
    if (w->rank != call->in[0]->rank)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its weight has %d dimensions", w->rank);
    channels_last(w->rank, perm);
    MEZZO_TRY(mz_onnx_ordered(call, w, w->rank, perm, weight));
    size[0] = w->rank == 4 ? w->dim[2] : 1;
    size[1] = w->dim[w->rank - 1];
    *weight = mz_onnx_shaped(g, *weight, 4, (int64_t[]){w->dim[0], size[0], size[1], w->dim[1]});
    return mezzo_graph_status(g);
}

// Holds the parts of a convolution, for a batch normalization of it.
typedef struct mz_onnx_conv {
    mezzo_value x, weight, bias; // bias NONE: there is none
    windows w;
    int64_t groups;
} mz_onnx_conv_made;

static mezzo_status keep_conv(mz_onnx_call *call, const mz_onnx_conv_made *conv) {
    mz_onnx_conv_made *kept = mz_onnx_take(call->build, 1, sizeof *kept);
    if (!kept)
        return MEZZO_ERR_MEMORY;
    *kept = *conv;
    call->out[0]->conv = kept;
    return MEZZO_OK;
}

mezzo_status mz_onnx_conv(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    mezzo_value x, weight, bias = MEZZO_NONE;
    windows w;
    int64_t size[2];
    MEZZO_TRY(check_image(call));
    MEZZO_TRY(get_weight(call, &weight, size));
    MEZZO_TRY(read_windows(call, size, &w));
    const int64_t groups = mz_onnx_int_or(call->node, "group", 1);
    if (groups < 1 || groups > 1 << 20)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%lld groups", (long long)groups);
    MEZZO_TRY(get_image(call, &x));
    if (mz_onnx_has(call, 2))
        MEZZO_TRY(mz_onnx_get(call, 2, &bias));
    MEZZO_TRY(give_image(call, convolve(g, x, weight, bias, &w, groups)));
    return keep_conv(call, &(mz_onnx_conv_made){x, weight, bias, w, groups});
}

// Gets the weight [C, N / groups, R, S] of a transposed convolution as a convolution's [N, R, S, C / groups]; the
// window is not reversed yet.
static mezzo_status get_transposed_weight(mz_onnx_call *call, int64_t groups, mezzo_value *weight, int64_t size[2]) {
    mz_onnx_value *w = call->in[1];
    mezzo_graph *g = call->build->g;
    if (w->rank != call->in[0]->rank || groups < 1 || w->dim[0] % groups || w->dim[0] != call->in[0]->dim[1])
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its weight does not fit");
    const int64_t c = w->dim[0] / groups, n = w->dim[1];
    size[0] = w->rank == 4 ? w->dim[2] : 1;
    size[1] = w->dim[w->rank - 1];
    if (groups == 1) {
        MEZZO_TRY(mz_onnx_ordered(call, w, w->rank, w->rank == 4 ? (int[]){3, 0, 1, 2} : (int[]){2, 0, 1}, weight));
    } else {
        MEZZO_TRY(mz_onnx_get(call, 1, weight));
        *weight = mz_onnx_shaped(g, *weight, 5, (int64_t[]){groups, c, n, size[0], size[1]});
        *weight = mezzo_permute(g, *weight, (int[]){0, 2, 3, 4, 1});
    }
    *weight = mz_onnx_shaped(g, *weight, 4, (int64_t[]){groups * n, size[0], size[1], c});
    return mezzo_graph_status(g);
}

// Builds windows that do not overlap: each pixel times the whole weight, which is a linear layer.
static mezzo_value tile_pixels(mezzo_graph *g, mezzo_value x, mezzo_value weight) {
    const int64_t b = mezzo_value_dim(g, x, 0), h = mezzo_value_dim(g, x, 1), w = mezzo_value_dim(g, x, 2),
                  c = mezzo_value_dim(g, x, 3), n = mezzo_value_dim(g, weight, 0), r = mezzo_value_dim(g, weight, 1),
                  s = mezzo_value_dim(g, weight, 2);
    mezzo_value y = mezzo_linear(g, x, mz_onnx_shaped(g, weight, 2, (int64_t[]){n * r * s, c}), MEZZO_NONE);
    y = mezzo_permute(g, mz_onnx_shaped(g, y, 6, (int64_t[]){b, h, w, n, r, s}), (int[]){0, 1, 4, 2, 5, 3});
    return mz_onnx_shaped(g, y, 4, (int64_t[]){b, h * r, w * s, n});
}

// Builds the convolution of x, with zeros between its pixels, with the reversed weight.
mezzo_status mz_onnx_conv_transpose(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    const int64_t groups = mz_onnx_int_or(call->node, "group", 1);
    const int from = 4 - call->in[0]->rank;
    int64_t size[2], more[2] = {0};
    mezzo_value x, weight, bias = MEZZO_NONE, y;
    windows w;
    MEZZO_TRY(check_image(call));
    if (mz_onnx_attribute(call->node, "output_shape") ||
        (mz_onnx_attribute(call->node, "auto_pad") && !mz_onnx_is(call->node, "auto_pad", "NOTSET", true) &&
         !mz_onnx_is(call->node, "auto_pad", "VALID", true)))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "'output_shape' and 'auto_pad'");
    MEZZO_TRY(get_transposed_weight(call, groups, &weight, size));
    MEZZO_TRY(read_windows(call, size, &w));
    MEZZO_TRY(read_list(call, "output_padding", call->in[0]->rank - 2, more + from));
    MEZZO_TRY(get_image(call, &x));
    if (mz_onnx_has(call, 2))
        MEZZO_TRY(mz_onnx_get(call, 2, &bias));
    bool tiles = groups == 1;
    for (int i = 0; i < 2; i++)
        tiles = tiles && w.stride[i] == w.size[i] && w.dilation[i] == 1 && w.before[i] + w.after[i] + more[i] == 0;
    if (tiles) {
        y = tile_pixels(g, x, weight);
        return give_image(call, bias.id < 0 ? y : mezzo_add(g, y, bias));
    }
    for (int i = 0; i < 2; i++) {
        const int64_t span = (w.size[i] - 1) * w.dilation[i];
        x = spread(g, x, 1 + i, w.stride[i]);
        weight = w.size[i] > 1 ? mezzo_flip(g, weight, 1 + i) : weight;
        w.stride[i] = 1;
        w.before[i] = span - w.before[i];
        w.after[i] = span - w.after[i] + more[i];
    }
    return give_image(call, convolve(g, x, weight, bias, &w, groups));
}

// --- pooling -------------------------------------------------------------------------------------------------------
typedef struct pool {
    bool counts_pads;
    int64_t size, stride, dilation, before, after, out;
} pool;

// Returns how far the last window reaches past the end of an axis of n elements.
static int64_t past_end(const pool *p, int64_t n) {
    const int64_t reach = (p->out - 1) * p->stride + (p->size - 1) * p->dilation + 1 - p->before;
    return reach > n ? reach - n : 0;
}

// Averages along one axis: adjacent windows are one reduction, others a sum of shifted values.
static mezzo_status average_axis(mz_onnx_call *call, const pool *p, int axis, mezzo_value *v) {
    mezzo_graph *g = call->build->g;
    const int rank = mezzo_value_rank(g, *v);
    const int64_t n = mezzo_value_dim(g, *v, axis);
    int64_t dim[MEZZO_MAX_RANK], before[MEZZO_MAX_RANK] = {0}, after[MEZZO_MAX_RANK] = {0}, outer = 1, inner = 1;
    for (int i = 0; i < rank && i < MEZZO_MAX_RANK; i++) {
        dim[i] = i == axis ? p->out : mezzo_value_dim(g, *v, i);
        outer *= i < axis ? dim[i] : 1;
        inner *= i > axis ? dim[i] : 1;
    }
    if (p->size == p->stride && p->dilation == 1 && p->before == 0 && p->out * p->size == n) {
        *v = mezzo_mean(g, mz_onnx_shaped(g, *v, 4, (int64_t[]){outer, p->out, p->size, inner}), 2);
        *v = mz_onnx_shaped(g, *v, rank, dim);
        return mezzo_graph_status(g);
    }
    before[axis] = p->before;
    after[axis] = past_end(p, n);
    const mezzo_value x = mezzo_pad(g, *v, before, after, 0);
    for (int64_t k = 0; k < p->size; k++) {
        const mezzo_value shifted = mz_onnx_strided(g, x, axis, k * p->dilation, p->out, p->stride);
        *v = k == 0 ? shifted : mezzo_add(g, *v, shifted);
    }
    double *share = mz_onnx_take(call->build, (size_t)p->out, sizeof *share); // the share of each element of a window
    if (!share)
        return MEZZO_ERR_MEMORY;
    for (int64_t o = 0; o < p->out; o++) {
        int64_t count = 0;
        for (int64_t k = 0; k < p->size; k++) {
            const int64_t at = o * p->stride + k * p->dilation - p->before;
            count += p->counts_pads ? at < n + p->after : at >= 0 && at < n;
        }
        share[o] = 1.0 / (double)(count > 0 ? count : 1);
    }
    mezzo_value shares;
    int64_t shape[MEZZO_MAX_RANK] = {1, 1, 1, 1, 1, 1};
    shape[axis] = p->out;
    MEZZO_TRY(mz_onnx_constant(call, false, rank, shape, share, &shares));
    *v = mezzo_mul(g, *v, shares);
    return mezzo_graph_status(g);
}

mezzo_status mz_onnx_pool(mz_onnx_call *call) {
    mz_onnx_value *x = call->in[0];
    const int d = x->rank - 2;
    int64_t size[2] = {1, 1};
    windows w;
    mezzo_value v;
    MEZZO_TRY(check_image(call));
    if (call->n_out > 1 && call->node->output[1][0] != '\0')
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "indices as an output");
    MEZZO_TRY(read_list(call, "kernel_shape", d, size + 2 - d));
    MEZZO_TRY(read_windows(call, size, &w));
    MEZZO_TRY(mz_onnx_base(call, x, &v));
    const bool ceils = mz_onnx_int_or(call->node, "ceil_mode", 0) != 0;
    for (int i = 2 - d; i < 2; i++) {
        const int64_t n = x->dim[i - (2 - d) + 2], span = (w.size[i] - 1) * w.dilation[i] + 1,
                      room = n + w.before[i] + w.after[i] - span;
        int64_t out = room < 0 ? 0 : (room + (ceils ? w.stride[i] - 1 : 0)) / w.stride[i] + 1;
        if (ceils && (out - 1) * w.stride[i] >= n + w.before[i]) // the window would begin past the end
            out--;
        if (out < 1 || out > INT64_C(1) << 26 || w.before[i] >= span || w.after[i] >= span || w.size[i] > 4096)
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "windows that do not fit");
        const pool p = {mz_onnx_int_or(call->node, "count_include_pad", 0) != 0,
                        w.size[i],
                        w.stride[i],
                        w.dilation[i],
                        w.before[i],
                        w.after[i],
                        out};
        const int axis = x->perm[i - (2 - d) + 2];
        const mezzo_windows form = {(int)p.size, (int)p.stride, (int)p.dilation, (int)p.before, (int)past_end(&p, n)};
        if (call->op->which)
            v = mezzo_max_pool(call->build->g, v, axis, &form);
        else
            MEZZO_TRY(average_axis(call, &p, axis, &v));
    }
    return mz_onnx_give_as(call, 0, false, x->rank, v, x->perm);
}

mezzo_status mz_onnx_global_pool(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    mz_onnx_value *x = call->in[0];
    int axes[MEZZO_MAX_RANK];
    mezzo_value v;
    if (x->rank < 3 || x->kind != MZ_ONNX_VALUE)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%d dimensions", x->rank);
    MEZZO_TRY(mz_onnx_base(call, x, &v));
    for (int i = 2; i < x->rank; i++)
        axes[i - 2] = x->perm[i];
    v = mezzo_reduce(g, call->op->which ? MEZZO_REDUCE_MAX : MEZZO_REDUCE_MEAN, v, x->rank - 2, axes, true);
    return mz_onnx_give_as(call, 0, false, x->rank, v, x->perm);
}

// --- Resize --------------------------------------------------------------------------------------------------------
// Returns the position of element `out` of a resized axis in the old one.
static double place_in(mz_onnx_call *call, int64_t out, int64_t before, int64_t after, double scale) {
    const MzPb__Node *node = call->node;
    if (mz_onnx_is(node, "coordinate_transformation_mode", "align_corners", false))
        return after > 1 ? (double)out * (double)(before - 1) / (double)(after - 1) : 0;
    if (mz_onnx_is(node, "coordinate_transformation_mode", "asymmetric", false))
        return (double)out / scale;
    if (mz_onnx_is(node, "coordinate_transformation_mode", "pytorch_half_pixel", false) && after <= 1)
        return 0;
    return ((double)out + 0.5) / scale - 0.5;
}

static double nearest(const MzPb__Node *node, double x) {
    if (mz_onnx_is(node, "nearest_mode", "floor", false))
        return floor(x);
    if (mz_onnx_is(node, "nearest_mode", "ceil", false))
        return ceil(x);
    return mz_onnx_is(node, "nearest_mode", "round_prefer_ceil", false) ? floor(x + 0.5) : ceil(x - 0.5);
}

static double cubic(double x, double a) {
    x = fabs(x);
    return x <= 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

// Fills row `out` of the matrix [after, before] that resizes an axis.
static void weigh(mz_onnx_call *call, int64_t out, int64_t before, int64_t after, double scale, double *row) {
    const MzPb__Node *node = call->node;
    const double x = place_in(call, out, before, after, scale), first = floor(x), last = (double)(before - 1);
    if (mz_onnx_is(node, "mode", "linear", false) || mz_onnx_is(node, "mode", "cubic", false)) {
        const bool curved = mz_onnx_is(node, "mode", "cubic", false);
        const double a = mz_onnx_float_or(node, "cubic_coeff_a", -0.75);
        for (double at = first - curved; at <= first + 1 + curved; at++)
            row[(int64_t)fmin(fmax(at, 0), last)] += curved ? cubic(x - at, a) : 1 - fabs(x - at);
    } else {
        row[(int64_t)fmin(fmax(nearest(node, x), 0), last)] = 1;
    }
}

// Returns whether element i of the result is element i / factor of the axis.
static bool repeats(const double *matrix, int64_t before, int64_t after) {
    bool whole = after % before == 0;
    for (int64_t o = 0; o < after && whole; o++)
        whole = matrix[o * before + o / (after / before)] == 1;
    return whole;
}

static mezzo_status resize_axis(mz_onnx_call *call, int axis, int64_t after, double scale, mezzo_value *v) {
    mezzo_graph *g = call->build->g;
    const int rank = mezzo_value_rank(g, *v);
    const int64_t before = mezzo_value_dim(g, *v, axis);
    int64_t dim[MEZZO_MAX_RANK], outer = 1, inner = 1;
    for (int i = 0; i < rank && i < MEZZO_MAX_RANK; i++) {
        dim[i] = i == axis ? after : mezzo_value_dim(g, *v, i);
        outer *= i < axis ? dim[i] : 1;
        inner *= i > axis ? dim[i] : 1;
    }
    if (before < 1 || after > (INT64_C(1) << 26) / before)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "%lld elements become %lld", (long long)before, (long long)after);
    double *matrix = mz_onnx_take(call->build, (size_t)(after * before), sizeof *matrix);
    if (!matrix)
        return MEZZO_ERR_MEMORY;
    for (int64_t o = 0; o < after; o++)
        weigh(call, o, before, after, scale, matrix + o * before);
    if (repeats(matrix, before, after)) {
        *v = mezzo_expand(g, mz_onnx_shaped(g, *v, 4, (int64_t[]){outer, before, 1, inner}), 4,
                          (int64_t[]){outer, before, after / before, inner});
    } else {
        mezzo_value m;
        MEZZO_TRY(mz_onnx_constant(call, false, 2, (int64_t[]){after, before}, matrix, &m));
        *v = inner == 1 ? mezzo_linear(g, mz_onnx_shaped(g, *v, 2, (int64_t[]){outer, before}), m, MEZZO_NONE)
                        : mezzo_matmul(g, m, mz_onnx_shaped(g, *v, 3, (int64_t[]){outer, before, inner}), false, false);
    }
    *v = mz_onnx_shaped(g, *v, rank, dim);
    return mezzo_graph_status(g);
}

mezzo_status mz_onnx_resize(mz_onnx_call *call) {
    mz_onnx_value *x = call->in[0];
    const MzPb__Attribute *axes = mz_onnx_attribute(call->node, "axes");
    const bool old = strcmp(call->node->op_type, "Upsample") == 0;
    const int scales_at = old ? 1 : 2;
    int n = 0;
    int64_t sizes[MEZZO_MAX_RANK];
    const double *scales = NULL;
    mezzo_value v;
    if (x->kind != MZ_ONNX_VALUE || mz_onnx_int_or(call->node, "antialias", 0) ||
        mz_onnx_is(call->node, "coordinate_transformation_mode", "tf_crop_and_resize", false) ||
        mz_onnx_int_or(call->node, "exclude_outside", 0) ||
        !mz_onnx_is(call->node, "keep_aspect_ratio_policy", "stretch", true))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "antialiasing, crops and other policies");
    if (mz_onnx_has(call, 3) && mz_onnx_elements(call->in[3]->rank, call->in[3]->dim) > 0) {
        MEZZO_TRY(mz_onnx_ints(call, 3, MEZZO_MAX_RANK, &n, sizes));
    } else {
        MEZZO_TRY(mz_onnx_numbers(call, scales_at, &scales));
        n = (int)mz_onnx_elements(call->in[scales_at]->rank, call->in[scales_at]->dim);
    }
    if (n != (axes ? (int)axes->n_ints : x->rank))
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%d sizes or scales", n);
    MEZZO_TRY(mz_onnx_base(call, x, &v));
    for (int i = 0; i < n; i++) {
        const int axis = mz_onnx_axis(axes ? axes->ints[i] : i, x->rank);
        if (axis < 0)
            return mz_onnx_bad_axis(call, axes->ints[i]);
        const double scale = scales ? scales[i] : (double)sizes[i] / (double)x->dim[axis],
                     after = scales ? floor((double)x->dim[axis] * scale) : (double)sizes[i];
        if (!(after >= 1 && after < 1 << 26 && scale > 0))
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%g elements", after);
        if (scale != 1)
            MEZZO_TRY(resize_axis(call, x->perm[axis], (int64_t)after, scale, &v));
    }
    return mz_onnx_give_as(call, 0, false, x->rank, v, x->perm);
}

// --- norms of channels ---------------------------------------------------------------------------------------------
static mezzo_status check_channels(mz_onnx_call *call, int vectors) {
    const mz_onnx_value *x = call->in[0];
    if (x->kind == MZ_ONNX_HOST || x->rank < 2)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its input has no channels");
    for (int i = 1; i <= vectors; i++)
        if (call->in[i]->rank != 1 || call->in[i]->dim[0] != x->dim[1])
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its input %d has not a number for each of %lld channels", i,
                                (long long)x->dim[1]);
    return MEZZO_OK;
}

// Makes (x - mean) · weight / √(variance + eps) + bias with a batch's own numbers, which *norm has. x [… C].
static mezzo_value of_batch(mz_onnx_call *call, mezzo_value x, mezzo_value weight, mezzo_value bias, float eps,
                            mezzo_value *norm) {
    mezzo_graph *g = call->build->g;
    const int rank = mezzo_value_rank(g, x);
    const int64_t channels = mezzo_value_dim(g, x, rank - 1);
    int64_t rows = 1, dim[MEZZO_MAX_RANK];
    for (int i = 0; i < rank && i < MEZZO_MAX_RANK; i++) {
        dim[i] = mezzo_value_dim(g, x, i);
        rows *= i < rank - 1 ? dim[i] : 1;
    }
    x = mz_onnx_shaped(g, x, 4, (int64_t[]){1, rows, 1, channels}); // views x as one image with a group for each
                                                                    // channel
    x = mezzo_group_norm(g, x, weight, bias, MEZZO_NONE, (int)channels, eps, false);
    *norm = x;
    return mz_onnx_shaped(g, x, rank, dim);
}

// Lets running statistics follow the means and variances (without bias, as in PyTorch) of a norm of `rows` rows.
static mezzo_status track(mz_onnx_call *call, mezzo_value norm, int64_t rows, float eps) {
    mezzo_graph *g = call->build->g;
    const double momentum = mz_onnx_float_or(call->node, "momentum", 0.9);
    const mz_onnx_value *running[2];
    for (int i = 0; i < 2; i++) {
        running[i] = call->in[3 + i]->of ? call->in[3 + i]->of : call->in[3 + i];
        if (running[i]->kind != MZ_ONNX_WEIGHT || !running[i]->frozen)
            return MEZZO_OK;
    }
    mezzo_value mean, rstd;
    MEZZO_TRY(mezzo_group_norm_statistics(g, norm, &mean, &rstd));
    const mezzo_value biased = mezzo_sub(g, mezzo_reciprocal(g, mezzo_mul(g, rstd, rstd)),
                                         mezzo_constant(g, MEZZO_F32, eps, 1, (int64_t[]){1}));
    const mezzo_value variance = mezzo_scale(g, biased, (float)rows / (float)(rows > 1 ? rows - 1 : 1));
    MEZZO_TRY(mezzo_graph_track(g, running[0]->base, mean, momentum));
    return mezzo_graph_track(g, running[1]->base, variance, momentum);
}

// Makes v · factor + shift by channel. Where v is a convolution with no other reader, its weight takes the factor and
// its bias the rest, so that no pass over the image is left.
static mezzo_status scale_channels(mz_onnx_call *call, mezzo_value v, mezzo_value factor, mezzo_value shift,
                                   mezzo_value *out) {
    mezzo_graph *g = call->build->g;
    const mz_onnx_value *x = call->in[0];
    const mz_onnx_conv_made *conv = x->conv;
    if (!conv || x->rank != 4 || mz_onnx_readers(call->build->onnx, x->name) != 1) {
        *out = mezzo_add(g, mezzo_mul(g, v, factor), shift);
        return MEZZO_OK;
    }
    const mezzo_value weight =
        mezzo_mul(g, conv->weight, mz_onnx_shaped(g, factor, 4, (int64_t[]){x->dim[1], 1, 1, 1}));
    if (conv->bias.id >= 0)
        shift = mezzo_add(g, mezzo_mul(g, conv->bias, factor), shift);
    *out = convolve(g, conv->x, weight, shift, &conv->w, conv->groups);
    return mezzo_graph_status(g);
}

// Builds batch normalization. Where the file was exported for training and the program trains, it uses a batch's own
// statistics, which the running ones follow; elsewhere it uses these.
mezzo_status mz_onnx_batch_norm(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    mz_onnx_value *x = call->in[0];
    int perm[MEZZO_MAX_RANK];
    mezzo_value v, part[4];
    MEZZO_TRY(check_channels(call, 4));
    channels_last(x->rank, perm);
    MEZZO_TRY(mz_onnx_ordered(call, x, x->rank, perm, &v));
    for (int i = 0; i < 4; i++)
        MEZZO_TRY(mz_onnx_get(call, 1 + i, &part[i]));
    const double eps = mz_onnx_float_or(call->node, "epsilon", 1e-5);
    const mezzo_value factor = mezzo_mul(g, part[0], mezzo_rsqrt(g, mezzo_add(g, part[3], mz_onnx_scalar(call, eps))));
    mezzo_value y;
    MEZZO_TRY(scale_channels(call, v, factor, mezzo_sub(g, part[1], mezzo_mul(g, part[2], factor)), &y));
    if (mz_onnx_int_or(call->node, "training_mode", 0)) {
        mezzo_value norm;
        y = mezzo_by_mode(g, of_batch(call, v, part[0], part[1], (float)eps, &norm), y);
        const int64_t rows = mz_onnx_elements(x->rank, x->dim) / x->dim[1];
        MEZZO_TRY(track(call, norm, rows, (float)eps));
    }
    return mz_onnx_give_as(call, 0, false, x->rank, y, perm);
}

// Builds InstanceNormalization, with a group for each channel, and GroupNormalization, with weights of channels or,
// before opset 21, of groups.
mezzo_status mz_onnx_group_norm(mz_onnx_call *call) {
    const int instance = call->op->which;
    mezzo_graph *g = call->build->g;
    mz_onnx_value *x = call->in[0];
    int perm[MEZZO_MAX_RANK];
    mezzo_value v, part[2];
    const int64_t channels = x->rank > 1 ? x->dim[1] : 0,
                  groups = instance ? channels : mz_onnx_int_or(call->node, "num_groups", 0);
    if (groups < 1 || channels % groups)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%lld groups of %lld channels", (long long)groups,
                            (long long)channels);
    const bool by_group = !instance && call->in[1]->rank == 1 && call->in[1]->dim[0] == groups && groups != channels;
    if (!by_group)
        MEZZO_TRY(check_channels(call, 2));
    if (x->rank < 3 || x->kind == MZ_ONNX_HOST)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "%d dimensions", x->rank);
    channels_last(x->rank, perm);
    MEZZO_TRY(mz_onnx_ordered(call, x, x->rank, perm, &v));
    for (int i = 0; i < 2; i++) {
        MEZZO_TRY(mz_onnx_get(call, 1 + i, &part[i]));
        if (by_group)
            part[i] = mz_onnx_shaped(g,
                                     mezzo_expand(g, mz_onnx_shaped(g, part[i], 2, (int64_t[]){groups, 1}), 2,
                                                  (int64_t[]){groups, channels / groups}),
                                     1, &channels);
    }
    const float eps = (float)mz_onnx_float_or(call->node, "epsilon", 1e-5);
    v = mezzo_group_norm(g, v, part[0], part[1], MEZZO_NONE, (int)groups, eps, false);
    return mz_onnx_give_as(call, 0, false, x->rank, v, perm);
}
