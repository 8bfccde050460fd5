// Runs a mixture of experts around the experts' products: the choice of experts, rows there and back.
#include "route.cuh"
#include "rows.cuh"

// --- route ---------------------------------------------------------------------------------------------------------
enum { ROUTE_WARPS = 4 };

// Holds what a warp's token adds to its logits before they are scores: softmax(x) is exp(x - base)·inverse.
struct score_base {
    bool softmax;
    float base, inverse;
    __device__ __forceinline__ float operator()(float x) const {
        return softmax ? expf(x - base) * inverse : expert_score(x);
    }
};

__device__ __forceinline__ score_base base_of(mz_cu_array logits, int64_t start, int experts, bool softmax) {
    score_base s = {softmax, -INFINITY, 0};
    for (int e = threadIdx.x % WARP; softmax && e < experts; e += WARP)
        s.base = fmaxf(s.base, load1(logits, start + e));
    s.base = warp_max(s.base);
    for (int e = threadIdx.x % WARP; softmax && e < experts; e += WARP)
        s.inverse += expf(load1(logits, start + e) - s.base);
    s.inverse = 1 / warp_sum(s.inverse);
    return s;
}

// A warp a token. Shared memory of a warp: scores [E], keys of the choices [E], groups' scores [G].
__global__ void __launch_bounds__(ROUTE_WARPS *WARP) route_kernel(route_args a) {
    extern __shared__ float route_shared[];
    int lane = threadIdx.x % WARP, experts = a.experts;
    int64_t m = static_cast<int64_t>(blockIdx.x) * ROUTE_WARPS + threadIdx.x / WARP;
    if (m >= a.tokens)
        return;
    float *scores = route_shared + (threadIdx.x / WARP) * (2 * experts + a.groups), *group = scores + 2 * experts;
    uint32_t *keys = reinterpret_cast<uint32_t *>(scores + experts);
    const score_base score_of = base_of(a.logits, m * experts, experts, a.softmax);
    for (int e = lane; e < experts; e += WARP) {
        float score = score_of(load1(a.logits, m * experts + e));
        scores[e] = score;
        keys[e] = __float_as_uint(a.bias != nullptr ? score + a.bias[e] : score);
    }
    __syncwarp();
    int size = a.groups > 1 ? experts / a.groups : experts;
    for (int g = lane; a.groups > 1 && g < a.groups; g += WARP) { // a group is as good as its two best
        float best = -INFINITY, second = -INFINITY;
        for (int e = g * size; e < (g + 1) * size; e++) {
            float c = __uint_as_float(keys[e]);
            if (larger(c, best)) {
                second = best;
                best = c;
            } else if (larger(c, second)) {
                second = c;
            }
        }
        group[g] = best + second;
    }
    __syncwarp();
    for (int e = lane; e < experts; e += WARP) {
        float c = __uint_as_float(keys[e]);
        if (a.groups > 1) { // experts outside the best groups are not chosen
            int g = e / size, better = 0;
            for (int o = 0; o < a.groups; o++)
                better += larger(group[o], group[g]) || (o < g && !larger(group[g], group[o]));
            c = better < a.top_groups ? c : -INFINITY;
        }
        keys[e] = rank_key(c);
    }
    __syncwarp();
    float sum = 0;
    for (int j = 0; j < a.top_k; j++) { // the largest that is left, the first among equals
        uint32_t key = 0;
        int index = experts;
        for (int e = lane; e < experts; e += WARP)
            if (keys[e] > key) {
                key = keys[e];
                index = e;
            }
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) {
            uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, key, step);
            int other_index = __shfl_xor_sync(0xFFFFFFFFu, index, step);
            if (other > key || (other == key && other_index < index)) {
                key = other;
                index = other_index;
            }
        }
        sum += scores[index];
        __syncwarp();
        if (lane == 0) {
            a.indices[m * a.top_k + j] = index;
            a.weights[m * a.top_k + j] = scores[index];
            keys[index] = 0;
        }
        __syncwarp();
    }
    for (int j = lane; j < a.top_k; j += WARP) {
        float w = a.weights[m * a.top_k + j];
        a.weights[m * a.top_k + j] = (a.normalise ? w / (sum + 1e-20f) : w) * a.alpha;
    }
}

static void launch_route(const mz_cuda_device *cuda, const mz_call *call) {
    const route_args a = route_args_of(call);
    const size_t shared = static_cast<size_t>(ROUTE_WARPS) * (2 * static_cast<size_t>(a.experts) + a.groups) * 4;
    if (a.tokens > 0)
        route_kernel<<<blocks_of(a.tokens, ROUTE_WARPS), ROUTE_WARPS * WARP, shared, cuda->stream>>>(a);
}
MZ_CUDA_KERNEL(route, launch_route, storages<"af", "fi", few_experts_of_route>)

// w_j = α·s_j/S, S = Σ s + 1e-20: dx_j = α/S·(dw_j - Σ_i dw_i·s_i/S)·s_j·(1 - s_j); not normalised: α·dw_j·s_j·(1 -
// s_j). Of softmax: α/S·(dw_j - Σ_i dw_i·s_i/S)·s_j; not normalised, of every expert: α·(dw_e - Σ_i dw_i·s_i)·s_e, dw_e
// 0 of what was not chosen. A warp a token.
__global__ void __launch_bounds__(ROUTE_WARPS *WARP) route_dx_kernel(route_dx_args a) {
    int lane = threadIdx.x % WARP;
    int64_t m = static_cast<int64_t>(blockIdx.x) * ROUTE_WARPS + threadIdx.x / WARP;
    if (m >= a.tokens)
        return;
    const score_base score_of = base_of(a.logits, m * a.experts, a.experts, a.softmax);
    float sum = 1e-20f, mean = 0;
    for (int64_t i = m * a.top_k; i < (m + 1) * a.top_k; i++) {
        float s = score_of(load1(a.logits, m * a.experts + a.indices[i]));
        sum += s;
        mean = fmaf(a.dweights[i], s, mean);
    }
    const bool dense = a.softmax && !a.normalise;
    for (int e = lane; e < a.experts; e += WARP) {
        const int64_t at = m * a.experts + e;
        store1(a.dx, at, dense ? -a.alpha * mean * score_of(load1(a.logits, at)) : 0);
    }
    mean = dense ? mean : mean / sum;
    __syncwarp();
    for (int64_t i = m * a.top_k + lane; i < (m + 1) * a.top_k; i += WARP) {
        int64_t at = m * a.experts + a.indices[i];
        float s = score_of(load1(a.logits, at)), d = a.dweights[i];
        d = a.normalise ? (d - mean) / sum : dense ? d - mean : d;
        store1(a.dx, at, a.alpha * d * s * (a.softmax ? 1 : 1 - s));
    }
}

static void launch_route_dx(const mz_cuda_device *cuda, const mz_call *call) {
    const route_dx_args a = route_dx_args_of(call);
    if (a.tokens > 0)
        route_dx_kernel<<<blocks_of(a.tokens, ROUTE_WARPS), ROUTE_WARPS * WARP, 0, cuda->stream>>>(a);
}
MZ_CUDA_KERNEL(route_dx, launch_route_dx, storages<"fai", "a">)

// --- expert_order: a stable counting sort --------------------------------------------------------------------------
// As one pass of embedding.cu's sort, with experts for digits: each block's counts, then each block's rows to their
// places. Where there is one block, it counts for itself.
enum {
    ORDER_BLOCK = 256,
    ORDER_WARPS = ORDER_BLOCK / WARP,
    ORDER_ITEMS = 2048,
    ORDER_WARP_ITEMS = ORDER_ITEMS / ORDER_WARPS
};

__device__ __forceinline__ int expert_at(const int32_t *indices, int64_t i, int experts) {
    int e = indices[i];
    return e < 0 || e >= experts ? experts - 1 : e;
}

// Adds a warp's experts to shared counts, one addition an expert; -1 is none.
__device__ __forceinline__ void count_one(int *count, int e) {
    unsigned same = __match_any_sync(0xFFFFFFFFu, e);
    if (e >= 0 && __ffs(static_cast<int>(same)) - 1 == static_cast<int>(threadIdx.x % WARP))
        atomicAdd(&count[e], __popc(same));
}

__global__ void __launch_bounds__(ORDER_BLOCK)
    expert_count_kernel(const int32_t *indices, int64_t rows, int experts, int *counts) {
    extern __shared__ int count[];
    for (int e = threadIdx.x; e < experts; e += ORDER_BLOCK)
        count[e] = 0;
    __syncthreads();
    int64_t first = static_cast<int64_t>(blockIdx.x) * ORDER_ITEMS;
    int own[ORDER_ITEMS / ORDER_BLOCK]; // all loads under way at once
#pragma unroll
    for (int j = 0; j < ORDER_ITEMS / ORDER_BLOCK; j++) {
        int64_t i = first + j * ORDER_BLOCK + threadIdx.x;
        own[j] = i < rows ? expert_at(indices, i, experts) : -1;
    }
#pragma unroll
    for (int j = 0; j < ORDER_ITEMS / ORDER_BLOCK; j++)
        count_one(count, own[j]);
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += ORDER_BLOCK)
        counts[static_cast<int64_t>(blockIdx.x) * experts + e] = count[e];
}

// Shared: next [warps, E], base [E]
__global__ void __launch_bounds__(ORDER_BLOCK)
    expert_order_kernel(const int32_t *indices, int64_t rows, int experts, const int *counts, int32_t *order,
                        int32_t *place, int32_t *offsets) {
    extern __shared__ int order_shared[];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int *base = order_shared + ORDER_WARPS * experts, *next = order_shared + warp * experts;
    for (int e = lane; e < experts; e += WARP)
        next[e] = 0;
    __syncwarp();
    int64_t first = static_cast<int64_t>(blockIdx.x) * ORDER_ITEMS + warp * ORDER_WARP_ITEMS;
    int own[ORDER_WARP_ITEMS / WARP]; // all loads under way at once
#pragma unroll
    for (int j = 0; j < ORDER_WARP_ITEMS / WARP; j++) {
        int64_t i = first + j * WARP + lane;
        own[j] = i < rows ? expert_at(indices, i, experts) : -1;
    }
#pragma unroll
    for (int j = 0; j < ORDER_WARP_ITEMS / WARP; j++)
        count_one(next, own[j]);
    __syncthreads();
    // base[e]: all rows of expert e, for the scan; `before` of them are in earlier blocks.
    for (int e = threadIdx.x; e < experts; e += ORDER_BLOCK) {
        int total = 0, before = 0;
        if (gridDim.x == 1)
            for (int w = 0; w < ORDER_WARPS; w++)
                total += order_shared[w * experts + e];
        else
            for (unsigned b = 0; b < gridDim.x; b++) {
                int here = counts[static_cast<int64_t>(b) * experts + e];
                total += here;
                before += b < blockIdx.x ? here : 0;
            }
        base[e] = total;
        int at = before; // warps' counts become their starts within the expert
        for (int w = 0; w < ORDER_WARPS; w++) {
            int here = order_shared[w * experts + e];
            order_shared[w * experts + e] = at;
            at += here;
        }
    }
    __syncthreads();
    if (warp == 0) { // exclusive scan of base
        int carry = 0;
        for (int from = 0; from < experts; from += WARP) {
            int e = from + lane, own = e < experts ? base[e] : 0, scan = warp_scan(own);
            if (e < experts)
                base[e] = carry + scan - own;
            carry += __shfl_sync(0xFFFFFFFFu, scan, WARP - 1);
        }
    }
    __syncthreads();
    if (blockIdx.x == 0) {
        for (int e = threadIdx.x; e < experts; e += ORDER_BLOCK)
            offsets[e] = base[e];
        if (threadIdx.x == 0)
            offsets[experts] = static_cast<int>(rows);
    }
#pragma unroll
    for (int j = 0; j < ORDER_WARP_ITEMS / WARP; j++) {
        int64_t i = first + j * WARP + lane;
        int e = own[j];
        int at = take_place(next, e);
        if (e >= 0) {
            at += base[e];
            order[at] = static_cast<int>(i);
            place[i] = at;
        }
    }
}

static int64_t order_blocks(int64_t rows) {
    return (rows + ORDER_ITEMS - 1) / ORDER_ITEMS;
}

static const char *expert_order_prepare(mezzo_device *, const mz_call *call, mz_prepared *out) {
    const int64_t rows = mz_shape_count(&mz_in(call, expert_order, indices)->shape);
    const size_t experts = static_cast<size_t>(call->attrs.experts);
    const char *reason = mz_cuda_storages(call, "i", "i");
    out->workspace = rows > ORDER_ITEMS ? static_cast<size_t>(order_blocks(rows)) * experts * 4 : 0;
    return reason != NULL ? reason : few_experts(call->attrs.experts);
}
static void launch_expert_order(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *in = mz_in(call, expert_order, indices);
    const int32_t *indices = data_of<int32_t>(in);
    const int64_t rows = mz_shape_count(&in->shape);
    const int experts = call->attrs.experts;
    const unsigned blocks = static_cast<unsigned>(rows > 0 ? order_blocks(rows) : 1);
    const size_t row = static_cast<size_t>(experts) * 4;
    int *counts = static_cast<int *>(call->workspace);
    if (blocks > 1)
        expert_count_kernel<<<blocks, ORDER_BLOCK, row, cuda->stream>>>(indices, rows, experts, counts);
    expert_order_kernel<<<blocks, ORDER_BLOCK, row *(ORDER_WARPS + 1), cuda->stream>>>(
        indices, rows, experts, counts, data_of<int32_t>(mz_out(call, expert_order, order)),
        data_of<int32_t>(mz_out(call, expert_order, place)), data_of<int32_t>(mz_out(call, expert_order, offsets)));
}
MZ_CUDA_KERNEL(expert_order, launch_expert_order, expert_order_prepare)

// --- rows there and back -------------------------------------------------------------------------------------------
enum { MOVE_BLOCK = 256 };

struct move_args {
    mz_cu_array x, y;     // dispatch: [rows / top_k, width] → [rows, width]; combine: the other way
    const int32_t *index; // [rows]: dispatch's order, combine's place
    const float *weights; // [rows] by token and choice, or NULL
    mz_cu_array added[2]; // combine: what is added to its sums, in this order; data NULL: nothing
    int64_t rows;
    int width, top_k;
};

// combine has dispatch's inputs, and two more.
static move_args move_args_of(const mz_call *call, const mz_tensor *index) {
    return {.x = mz_cuda_array(mz_in(call, combine, x)),
            .y = mz_cuda_array(mz_out(call, combine, y)),
            .index = data_of<int32_t>(index),
            .weights = data_of<float>(mz_in(call, combine, weights)),
            .added = {mz_cuda_array(mz_in(call, combine, added)), mz_cuda_array(mz_in(call, combine, more))},
            .rows = mz_shape_count(&mz_in(call, combine, order)->shape), // M·k
            .width = static_cast<int>(mz_cuda_width(mz_out(call, combine, y))),
            .top_k = call->attrs.top_k};
}

// y[r] = (weights[order[r]] ·) x[order[r] / k]; a thread N columns of a row.
static void launch_dispatch(const mz_cuda_device *cuda, const mz_call *call) {
    const move_args a = move_args_of(call, mz_in(call, dispatch, order));
    launch_vectors(cuda, a.rows * a.width, a.width, [=] __device__(auto lanes, int64_t i) {
        constexpr int N = lanes;
        const int64_t r = i / a.width;
        const int c = static_cast<int>(i - r * a.width), source = a.index[r];
        float x[N], w = a.weights != nullptr ? a.weights[source] : 1;
        load<N>(a.x, static_cast<int64_t>(source / a.top_k) * a.width + c, x);
        for_each<N>([&](int k) { x[k] *= w; });
        store<N>(a.y, i, x);
    });
}

// y[m] = Σ_j (weights[m, j] ·) x[place[m·k + j]]
template <int N> __global__ void __launch_bounds__(MOVE_BLOCK) combine_kernel(move_args a) {
    const int64_t i = thread_index<MOVE_BLOCK>(), m = i / (a.width / N);
    if (m >= a.rows / a.top_k)
        return;
    const int c = static_cast<int>(i - m * (a.width / N)) * N;
    float sum[N] = {};
#pragma unroll 2
    for (int64_t j = m * a.top_k; j < (m + 1) * a.top_k; j++) {
        const int64_t from = static_cast<int64_t>(a.index[j]) * a.width + c;
        float x[N], w = a.weights != nullptr ? a.weights[j] : 1;
        load<N>(a.x, from, x);
        for_each<N>([&](int k) { sum[k] = fmaf(w, x[k], sum[k]); });
    }
#pragma unroll
    for (int slot = 0; slot < 2; slot++) {
        const mz_cu_array added = a.added[slot];
        float x[N];
        if (added.data == nullptr)
            continue;
        load<N>(added, m * a.width + c, x);
        for_each<N>([&](int k) { sum[k] += x[k]; });
    }
    store<N>(a.y, m * a.width + c, sum);
}
static void launch_combine(const mz_cuda_device *cuda, const mz_call *call) {
    const move_args a = move_args_of(call, mz_in(call, combine, place));
    const int64_t n = a.rows / a.top_k * a.width;
    if (a.width % 8 == 0)
        launch_threads<MOVE_BLOCK>(cuda, combine_kernel<8>, n / 8, a);
    else
        launch_threads<MOVE_BLOCK>(cuda, combine_kernel<1>, n, a);
}
MZ_CUDA_KERNEL(dispatch, launch_dispatch, storages<"aiifa", "a", narrow_output>)
MZ_CUDA_KERNEL(combine, launch_combine, storages<"aiifa", "a", narrow_output>)

// dweights[m, j] = dy[m]·x[place[m·k + j]], a warp each.
__global__ void __launch_bounds__(MOVE_BLOCK) combine_dw_kernel(mz_cu_array dy, mz_cu_array x, const int32_t *place,
                                                                float *dweights, int64_t rows, int width, int top_k) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * (MOVE_BLOCK / WARP) + threadIdx.x / WARP;
    if (i >= rows)
        return;
    int lane = threadIdx.x % WARP;
    int64_t a = i / top_k * width, b = static_cast<int64_t>(place[i]) * width;
    float sum = 0;
    if (width % 8 == 0) {
#pragma unroll 2
        for (int c = lane * 8; c < width; c += WARP * 8) {
            float v[8], w[8];
            load8(dy, a + c, v);
            load8(x, b + c, w);
            for_each<8>([&](int k) { sum = fmaf(v[k], w[k], sum); });
        }
    } else {
        for (int c = lane; c < width; c += WARP)
            sum = fmaf(load1(dy, a + c), load1(x, b + c), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0)
        dweights[i] = sum;
}

static const char *narrow_x(const mz_call *call) {
    return mz_cuda_narrow(mz_in(call, combine_dw, x));
}
static void launch_combine_dw(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *x = mz_in(call, combine_dw, x), *place = mz_in(call, combine_dw, place);
    const int64_t rows = mz_shape_count(&place->shape);
    if (rows > 0)
        combine_dw_kernel<<<blocks_of(rows, MOVE_BLOCK / WARP), MOVE_BLOCK, 0, cuda->stream>>>(
            mz_cuda_array(mz_in(call, combine_dw, dy)), mz_cuda_array(x), data_of<int32_t>(place),
            data_of<float>(mz_out(call, combine_dw, dweights)), rows,
            static_cast<int>(mz_shape_count(&x->shape) / rows), call->attrs.top_k);
}
MZ_CUDA_KERNEL(combine_dw, launch_combine_dw, storages<"aai", "f", narrow_x>)
