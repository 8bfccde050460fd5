// Computes attention of new positions on top of a cache of keys and values, for generating text: one pass stores the
// new rows, a second one reads all of them. With one position each key and value is read once, so memory sets the time:
// a block is one query of one head, its threads share the keys out in groups of eight, each with a softmax of its own
// that is rescaled when a larger score comes, and the groups' results are put together in order.
#include "host.cuh"
#include "vec.cuh"

namespace {

constexpr int THREADS = 256, LANES = 8, GROUPS = THREADS / LANES,
              PIECE = 4 * LANES; // a group reads 32 elements at a time

struct cached_args {
    const void *q, *k, *v;                     // [B, T, …], rows q_row and kv_row apart
    float *cache_k, *cache_v;                  // [B, size, kv_heads·width]
    const int32_t *positions;                  // on the device; the first is where the new rows go
    void *y;                                   // [B, T, heads·width]
    int dtype, compute;                        // of q, k, v, y; and what q, k and v are rounded to
    int batch, length, heads, kv_heads, width; // width at most 256
    int64_t q_row, kv_row, size;
    float scale, cap; // cap of scores; 0: none
    int64_t window;   // 0: none
};

__device__ __forceinline__ float operand(const void *from, const cached_args &a, int64_t at) {
    return round_to(load1(from, a.dtype, at), a.compute);
}

__global__ void __launch_bounds__(THREADS) store_kernel(cached_args a) {
    int64_t row = static_cast<int64_t>(a.kv_heads) * a.width, n = static_cast<int64_t>(a.batch) * a.length * row;
    int64_t first = a.positions[0];
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += static_cast<int64_t>(gridDim.x) * THREADS) {
        int64_t column = i % row, bt = i / row, b = bt / a.length, to = first + bt % a.length;
        if (to < 0 || to >= a.size)
            continue;
        int64_t at = (b * a.size + to) * row + column;
        a.cache_k[at] = operand(a.k, a, bt * a.kv_row + column);
        a.cache_v[at] = operand(a.v, a, bt * a.kv_row + column);
    }
}

// Four elements of a row, 0 past its end.
__device__ __forceinline__ float4 four(const float *row, int d, int width) {
    if (width % 4 == 0)
        return d < width ? *reinterpret_cast<const float4 *>(row + d) : make_float4(0, 0, 0, 0);
    return make_float4(d < width ? row[d] : 0, d + 1 < width ? row[d + 1] : 0, d + 2 < width ? row[d + 2] : 0,
                       d + 3 < width ? row[d + 3] : 0);
}
__device__ __forceinline__ void add_product(float4 &o, float factor, float4 v) {
    o.x += factor * v.x;
    o.y += factor * v.y;
    o.z += factor * v.z;
    o.w += factor * v.w;
}
// exp(x - max), 0 where x is -infinity, as it is before the first key, whatever max is.
__device__ __forceinline__ float weight(float x, float max) {
    return x == -INFINITY ? 0.0f : expf(x - max);
}

// PIECES·32 elements or fewer in a head.
template <int PIECES> __global__ void __launch_bounds__(THREADS) query_kernel(cached_args a) {
    __shared__ float maxima[GROUPS], sums[GROUPS];
    __shared__ float4 results[GROUPS][PIECES * LANES];
    const int lane = static_cast<int>(threadIdx.x) % LANES, group = static_cast<int>(threadIdx.x) / LANES;
    const int64_t t = blockIdx.x % a.length, bh = blockIdx.x / a.length, b = bh / a.heads, h = bh % a.heads;
    const int64_t row = static_cast<int64_t>(a.kv_heads) * a.width, last = a.positions[0] + t;
    const int64_t start = b * a.size * row + h / (a.heads / a.kv_heads) * a.width;
    const int64_t y = ((b * a.length + t) * a.heads + h) * a.width;
    if (last < 0 || last >= a.size) { // the same for the whole block
        for (int d = static_cast<int>(threadIdx.x); d < a.width; d += THREADS)
            store1(a.y, a.dtype, y + d, 0);
        return;
    }
    float4 q[PIECES], o[PIECES];
    const int64_t from = (b * a.length + t) * a.q_row + h * a.width;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        int d = i * PIECE + lane * 4;
        q[i] = make_float4(
            d < a.width ? operand(a.q, a, from + d) : 0, d + 1 < a.width ? operand(a.q, a, from + d + 1) : 0,
            d + 2 < a.width ? operand(a.q, a, from + d + 2) : 0, d + 3 < a.width ? operand(a.q, a, from + d + 3) : 0);
        o[i] = make_float4(0, 0, 0, 0);
    }
    float max = -INFINITY, sum = 0;
    // All 32 threads of a warp make the same number of rounds, for the shuffles.
    for (int64_t base = a.window > 0 && last >= a.window ? last - a.window + 1 : 0; base <= last; base += GROUPS) {
        int64_t j = base + group, at = start + (j <= last ? j : last) * row;
        float4 v[PIECES];
        float x = 0;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            float4 k = four(a.cache_k + at, i * PIECE + lane * 4, a.width);
            v[i] = four(a.cache_v + at, i * PIECE + lane * 4, a.width);
            x += q[i].x * k.x + q[i].y * k.y + q[i].z * k.z + q[i].w * k.w;
        }
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2)
            x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
        if (j > last)
            continue;
        x *= a.scale;
        if (a.cap > 0)
            x = a.cap * tanhf(x / a.cap);
        float larger = fmaxf(max, x), keep = weight(max, larger), p = weight(x, larger); // a NaN goes into p and sum
        max = larger;
        sum = sum * keep + p;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            o[i] = make_float4(o[i].x * keep, o[i].y * keep, o[i].z * keep, o[i].w * keep);
            add_product(o[i], p, v[i]);
        }
    }
    if (lane == 0) {
        maxima[group] = max;
        sums[group] = sum;
    }
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        results[group][i * LANES + lane] = o[i];
    __syncthreads();
    float most = -INFINITY, total = 0;
    for (int g = 0; g < GROUPS; g++)
        most = fmaxf(most, maxima[g]);
    for (int g = 0; g < GROUPS; g++)
        total += weight(maxima[g], most) * sums[g];
    for (int d = static_cast<int>(threadIdx.x); d < a.width; d += THREADS) {
        float value = 0;
        for (int g = 0; g < GROUPS; g++)
            value += weight(maxima[g], most) * reinterpret_cast<const float *>(results[g])[d];
        store1(a.y, a.dtype, y + d, value / total);
    }
}

} // namespace

static const char *cached_prepare(mezzo_device *, const mz_call *call, mz_prepared *) {
    const mz_tensor *q = mz_in(call, attention_cached, q), *k = mz_in(call, attention_cached, k),
                    *v = mz_in(call, attention_cached, v), *y = mz_out(call, attention_cached, y);
    if (!mz_cuda_float(q))
        return "storage must be FP32, BF16 or FP16";
    if (y->dtype != q->dtype || (mz_present(k) && (k->dtype != q->dtype || v->dtype != q->dtype)))
        return "q, k, v and y must be stored alike";
    if (mz_in(call, attention_cached, cache_k)->dtype != MEZZO_F32 ||
        mz_in(call, attention_cached, cache_v)->dtype != MEZZO_F32)
        return "caches must be FP32";
    if (y->shape.dim[2] / call->attrs.heads > 256)
        return "the head size must be at most 256";
    if (q->shape.dim[0] * q->shape.dim[1] * call->attrs.heads > INT32_MAX)
        return "batch x heads x length is too large";
    return NULL;
}

static void launch_cached(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *q = mz_in(call, attention_cached, q), *k = mz_in(call, attention_cached, k),
                    *cache = mz_in(call, attention_cached, cache_k), *y = mz_out(call, attention_cached, y);
    const bool packed = !mz_present(k); // q, k and v are parts of one row
    const int64_t channels = y->shape.dim[2], row = cache->shape.dim[2];
    const char *after = static_cast<const char *>(q->data);
    const int64_t part = channels * static_cast<int64_t>(mezzo_dtype_size(q->dtype));
    const int width = static_cast<int>(channels / call->attrs.heads);
    const cached_args a = {.q = q->data,
                           .k = packed ? after + part : k->data,
                           .v = packed ? after + 2 * part : mz_in(call, attention_cached, v)->data,
                           .cache_k = data_of<float>(cache),
                           .cache_v = data_of<float>(mz_in(call, attention_cached, cache_v)),
                           .positions = data_of<int32_t>(mz_in(call, attention_cached, positions)),
                           .y = y->data,
                           .dtype = q->dtype,
                           .compute = call->numerics.compute,
                           .batch = static_cast<int>(q->shape.dim[0]),
                           .length = static_cast<int>(q->shape.dim[1]),
                           .heads = call->attrs.heads,
                           .kv_heads = static_cast<int>(row / width),
                           .width = width,
                           .q_row = packed ? 3 * channels : channels,
                           .kv_row = packed ? 3 * channels : row,
                           .size = cache->shape.dim[1],
                           .scale = static_cast<float>(mz_attention_scale(&call->attrs, width)),
                           .cap = call->attrs.score_cap,
                           .window = call->attrs.window};
    const int64_t n = static_cast<int64_t>(a.batch) * a.length * a.kv_heads * a.width;
    const int64_t queries = static_cast<int64_t>(a.batch) * a.heads * a.length;
    if (queries == 0)
        return;
    const unsigned blocks = blocks_of(n, THREADS);
    store_kernel<<<(blocks < 4096 ? blocks : 4096), THREADS, 0, cuda->stream>>>(a);
    const auto kernel = a.width <= 2 * PIECE   ? query_kernel<2>
                        : a.width <= 4 * PIECE ? query_kernel<4>
                                               : query_kernel<8>;
    kernel<<<static_cast<unsigned>(queries), THREADS, 0, cuda->stream>>>(a);
}
const mz_kernel mz_cuda_attention_cached = {"attention_cached_float", cached_prepare, enqueue<launch_cached>};
