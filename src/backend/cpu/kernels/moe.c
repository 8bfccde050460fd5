// Runs a mixture of experts except for the experts' products: the choice of experts, dispatch and combine.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"

#include <math.h>

#if defined(MZ_ISA_PORTABLE) // these are a few numbers a token
// Compares numbers where NaN is the largest, as in torch.topk: it is chosen, so that it reaches the output.
static bool larger(float a, float b) {
    return a > b || (isnan(a) && !isnan(b));
}

static float sigmoid(float x) {
    return x < 0 ? expf(x) / (1 + expf(x)) : 1 / (1 + expf(-x)); // no exponential overflows; NaN stays NaN
}

// --- route ---------------------------------------------------------------------------------------------------------
// The base of a token's scores: softmax(x) is exp(x - base)/sum.
typedef struct score_base {
    bool softmax;
    float base, sum;
} score_base;

static score_base base_of(const mz_call *call, const float *logits, int64_t experts) {
    score_base b = {.softmax = call->attrs.softmax, .base = -INFINITY};
    for (int64_t e = 0; b.softmax && e < experts; e++)
        b.base = fmaxf(b.base, logits[e]);
    for (int64_t e = 0; b.softmax && e < experts; e++)
        b.sum += expf(logits[e] - b.base);
    return b;
}

static float score_of(const score_base *b, float x) {
    return b->softmax ? expf(x - b->base) / b->sum : sigmoid(x);
}

// Orders indices by value; equal values are in the order of their places.
static bool before(const float *value, int32_t a, int32_t b) {
    return larger(value[a], value[b]) || (a < b && !larger(value[b], value[a]));
}

static void sink(const float *value, int32_t *heap, int64_t n, int64_t at) {
    const int32_t item = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(value, heap[child + 1], heap[child]))
            child++;
        if (!before(value, heap[child], item))
            break;
        heap[at] = heap[child];
    }
    heap[at] = item;
}

// Sorts places 0 … n - 1 of the values so that the k largest, the largest first, are heap[n - 1], heap[n - 2], …; the
// others come before. O(n + k·log n): 65,536 experts have up to 32,768 groups, and a token up to 65,536 experts.
static void largest_last(const float *value, int32_t *heap, int64_t n, int64_t k) {
    for (int64_t i = 0; i < n; i++)
        heap[i] = (int32_t)i;
    for (int64_t i = n / 2; i-- > 0;)
        sink(value, heap, n, i);
    for (int64_t end = n - 1; end >= n - k; end--) {
        const int32_t first = heap[0];
        heap[0] = heap[end];
        heap[end] = first;
        sink(value, heap, end, 0);
    }
}

// Keeps the scores of the best groups and sets the others' to -∞. The sum of a group's two best scores ranks it.
static void mask_groups(float *choice, float *group, int32_t *heap, int64_t experts, int groups, int top_groups) {
    int64_t size = experts / groups;
    for (int g = 0; g < groups; g++) {
        float best = -INFINITY, second = -INFINITY;
        for (int64_t e = g * size; e < (g + 1) * size; e++) {
            if (larger(choice[e], best)) {
                second = best;
                best = choice[e];
            } else if (larger(choice[e], second)) {
                second = choice[e];
            }
        }
        group[g] = best + second;
    }
    largest_last(group, heap, groups, top_groups);
    for (int i = 0; i < groups - top_groups; i++)
        for (int64_t e = heap[i] * size; e < (heap[i] + 1) * size; e++)
            choice[e] = -INFINITY;
}

// Returns the workspace: each thread has scores, choices and groups of E floats each, and E places.
static size_t route_workspace(const mezzo_device *device, const mz_call *call) {
    return (3 * sizeof(float) + sizeof(int32_t)) * (size_t)last_dim(&mz_in(call, route, logits)->shape) *
           (size_t)device->threads;
}

static void route_token(const mz_call *call, int64_t m, int64_t experts, void *workspace) {
    float *scores = workspace, *choice = scores + experts, *group = choice + experts;
    int32_t *heap = (int32_t *)(group + experts);
    float *weights = (float *)mz_out(call, route, weights)->data + m * call->attrs.top_k;
    const float *logits = (const float *)mz_in(call, route, logits)->data + m * experts;
    const float *bias = mz_present(mz_in(call, route, bias)) ? mz_in(call, route, bias)->data : NULL;
    int32_t *indices = (int32_t *)mz_out(call, route, indices)->data + m * call->attrs.top_k;
    const score_base base = base_of(call, logits, experts);
    float sum = 0;
    for (int64_t e = 0; e < experts; e++) {
        scores[e] = score_of(&base, logits[e]);
        choice[e] = bias != NULL ? scores[e] + bias[e] : scores[e];
    }
    if (call->attrs.groups > 1)
        mask_groups(choice, group, heap, experts, call->attrs.groups, call->attrs.top_groups);
    largest_last(choice, heap, experts, call->attrs.top_k);
    for (int j = 0; j < call->attrs.top_k; j++) {
        indices[j] = heap[experts - 1 - j];
        sum += weights[j] = scores[indices[j]];
    }
    for (int j = 0; j < call->attrs.top_k; j++)
        weights[j] = (call->attrs.normalise ? weights[j] / (sum + 1e-20f) : weights[j]) * call->attrs.alpha;
}

static mezzo_status run_route(mezzo_device *device, const mz_call *call) {
    int64_t tokens = mz_out(call, route, weights)->shape.dim[0], experts = last_dim(&mz_in(call, route, logits)->shape);
    double cost = 10.0 * (double)(tokens * (experts + 2 * call->attrs.top_k));
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, cost))
    for (int64_t m = 0; m < tokens; m++)
        route_token(call, m, experts,
                    (char *)call->workspace + (3 * sizeof(float) + sizeof(int32_t)) * (size_t)(experts * mz_thread()));
    return MEZZO_OK;
}

MZ_CPU_KERNEL(route, "f", "fi", route_workspace, NULL)

// Computes, with w_j = α·s_j/S, S = Σ s + 1e-20: dx_j = α/S·(dw_j - Σ_i dw_i·s_i/S)·s_j·(1 - s_j). Softmax has no
// factor 1 - s_j; not normalized, for every expert: α·(dw_e - Σ_i dw_i·s_i)·s_e, with dw_e 0 where it was not chosen.
static mezzo_status run_route_dx(mezzo_device *device, const mz_call *call) {
    const float *dweights = mz_in(call, route_dx, dweights)->data,
                *logits = mz_in(call, route_dx, logits)->data;     // [M, k], [M, E]
    const int32_t *indices = mz_in(call, route_dx, indices)->data; // [M, k]
    float *dx = mz_out(call, route_dx, dx)->data;
    const bool softmax = call->attrs.softmax, normalise = call->attrs.normalise, dense = softmax && !normalise;
    int64_t k = call->attrs.top_k, tokens = mz_shape_count(&mz_in(call, route_dx, dweights)->shape) / k;
    int64_t experts = last_dim(&mz_in(call, route_dx, logits)->shape);
#pragma omp parallel for schedule(static)                                                                              \
    num_threads(mz_cpu_threads(device, 10.0 * (double)(tokens * (experts + 2 * k))))
    for (int64_t m = 0; m < tokens; m++) {
        float sum = 1e-20f, mean = 0, *out = dx + m * experts;
        const score_base base = base_of(call, logits + m * experts, experts);
        for (int64_t i = m * k; i < (m + 1) * k; i++) {
            float s = score_of(&base, logits[m * experts + indices[i]]);
            sum += s;
            mean += dweights[i] * s;
        }
        sum = normalise ? sum : 1;
        mean /= sum;
        for (int64_t e = 0; e < experts; e++)
            out[e] = dense ? -call->attrs.alpha * mean * score_of(&base, logits[m * experts + e]) : 0;
        for (int64_t i = m * k; i < (m + 1) * k; i++) {
            float s = score_of(&base, logits[m * experts + indices[i]]);
            float d = normalise || softmax ? (dweights[i] - mean) / sum : dweights[i];
            out[indices[i]] = call->attrs.alpha * d * s * (softmax ? 1 : 1 - s);
        }
    }
    return MEZZO_OK;
}

MZ_CPU_KERNEL(route_dx, "ffi", "f", NULL, NULL)

// --- expert_order: a counting sort ---------------------------------------------------------------------------------
static int64_t expert_at(const int32_t *indices, int64_t i, int64_t experts) {
    int32_t e = indices[i];
    return e < 0 || e >= experts ? experts - 1 : e;
}

static size_t expert_order_workspace(const mezzo_device *device, const mz_call *call) {
    (void)device;
    return sizeof(int32_t) * (size_t)call->attrs.experts;
}

static mezzo_status run_expert_order(mezzo_device *device, const mz_call *call) {
    (void)device;
    const int32_t *indices = mz_in(call, expert_order, indices)->data;
    int32_t *order = mz_out(call, expert_order, order)->data, *place = mz_out(call, expert_order, place)->data,
            *offsets = mz_out(call, expert_order, offsets)->data;
    int32_t *next = call->workspace; // the next row of each expert
    int64_t experts = call->attrs.experts, rows = mz_shape_count(&mz_in(call, expert_order, indices)->shape);
    memset(offsets, 0, sizeof *offsets * (size_t)(experts + 1));
    for (int64_t i = 0; i < rows; i++)
        offsets[expert_at(indices, i, experts) + 1]++;
    for (int64_t e = 0; e < experts; e++) {
        next[e] = offsets[e];
        offsets[e + 1] += offsets[e];
    }
    for (int64_t i = 0; i < rows; i++) {
        int32_t r = next[expert_at(indices, i, experts)]++;
        order[r] = (int32_t)i;
        place[i] = r;
    }
    return MEZZO_OK;
}

MZ_CPU_KERNEL(expert_order, "i", "i", expert_order_workspace, NULL)
#endif

// --- dispatch, combine ---------------------------------------------------------------------------------------------

static mezzo_status run_dispatch(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = mz_in(call, dispatch, x), *y = mz_out(call, dispatch, y); // [M, C], [R, C]
    const int32_t *order = mz_in(call, dispatch, order)->data;
    const float *weights = mz_present(mz_in(call, dispatch, weights)) ? mz_in(call, dispatch, weights)->data : NULL;
    int64_t rows = mz_shape_count(&mz_in(call, dispatch, order)->shape), width = last_dim(&y->shape),
            k = call->attrs.top_k;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.3 * (double)(rows * width)))
    for (int64_t r = 0; r < rows; r++) {
        float in_buffer[MZ_BLOCK], out_buffer[MZ_BLOCK];
        int64_t from = order[r] / k * width;
        if (weights == NULL) {
            copy_elements(x, from, y, r * width, width);
            continue;
        }
        for (int64_t at = 0; at < width; at += MZ_BLOCK) {
            int n = (int)min64(MZ_BLOCK, width - at);
            const float *in = block_in(x, from + at, n, in_buffer);
            float *out = block_out(y, r * width + at, out_buffer);
            FOR_LANES(i, lanes, n)
            vstore_lanes(out + i, vload_lanes(in + i, lanes, 0) * weights[order[r]], lanes);
            block_done(y, r * width + at, n, out);
        }
    }
    return MEZZO_OK;
}
MZ_CPU_KERNEL(dispatch, "aiif", "a", NULL, NULL)

static mezzo_status run_combine(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = mz_in(call, combine, x), *y = mz_out(call, combine, y); // [R, C], [M, C]
    const int32_t *place = mz_in(call, combine, place)->data;
    const float *weights = mz_present(mz_in(call, combine, weights)) ? mz_in(call, combine, weights)->data : NULL;
    int64_t k = call->attrs.top_k, tokens = mz_shape_count(&mz_in(call, combine, place)->shape) / k,
            width = last_dim(&y->shape);
    int64_t parts = (width + MZ_BLOCK - 1) / MZ_BLOCK;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.3 * (double)(tokens * k * width)))
    for (int64_t task = 0; task < tokens * parts; task++) {
        float in_buffer[MZ_BLOCK], sum[MZ_BLOCK];
        int64_t m = task / parts, at = task % parts * MZ_BLOCK;
        int n = (int)min64(MZ_BLOCK, width - at);
        for (int64_t j = 0; j < k; j++) {
            const float *in = block_in(x, place[m * k + j] * width + at, n, in_buffer);
            vf w = vset(weights != NULL ? weights[m * k + j] : 1.0f);
            FOR_LANES(i, lanes, n) {
                vf term = vload_lanes(in + i, lanes, 0) * w;
                vstore_lanes(sum + i, j == 0 ? term : vload_lanes(sum + i, lanes, 0) + term, lanes);
            }
        }
        for (int slot = 4; slot < 6; slot++) {
            if (!mz_present(&call->in[slot]))
                continue;
            const float *in = block_in(&call->in[slot], m * width + at, n, in_buffer);
            FOR_LANES(i, lanes, n)
            vstore_lanes(sum + i, vload_lanes(sum + i, lanes, 0) + vload_lanes(in + i, lanes, 0), lanes);
        }
        narrow_block(sum, element_at(y, m * width + at), y->dtype, n);
    }
    return MEZZO_OK;
}
MZ_CPU_KERNEL(combine, "aiifa", "a", NULL, NULL)

static mezzo_status run_combine_dw(mezzo_device *device, const mz_call *call) {
    const mz_tensor *dy = mz_in(call, combine_dw, dy), *x = mz_in(call, combine_dw, x); // [M, C], [R, C]
    const int32_t *place = mz_in(call, combine_dw, place)->data;
    float *dweights = mz_out(call, combine_dw, dweights)->data; // [M, k]
    int64_t k = call->attrs.top_k, rows = mz_shape_count(&mz_in(call, combine_dw, place)->shape),
            width = last_dim(&x->shape);
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.3 * (double)(rows * width)))
    for (int64_t i = 0; i < rows; i++) {
        float dy_buffer[MZ_BLOCK], x_buffer[MZ_BLOCK];
        vf sum = {0};
        for (int64_t at = 0; at < width; at += MZ_BLOCK) {
            int n = (int)min64(MZ_BLOCK, width - at);
            const float *a = block_in(dy, i / k * width + at, n, dy_buffer);
            const float *b = block_in(x, place[i] * width + at, n, x_buffer);
            FOR_LANES(c, lanes, n)
            sum = vfma(vload_lanes(a + c, lanes, 0), vload_lanes(b + c, lanes, 0), sum);
        }
        dweights[i] = vsum(sum);
    }
    return MEZZO_OK;
}

MZ_CPU_KERNEL(combine_dw, "aai", "f", NULL, NULL)
