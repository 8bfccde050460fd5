// Runs ops on one element at a time. One kernel an op; dtypes are inspected per 8 elements (vec.cuh), or per element
// where operands repeat or are integers.
#include "host.cuh"
#include "element.cuh"
#include "philox.cuh"
#include "vec.cuh"

// A thread moves UNROLL vectors of 8 elements, a block's width apart: enough bytes in flight at full occupancy.
enum { THREADS = 256, UNROLL = 2, THREAD_ELEMENTS = UNROLL * 8 };

static int64_t threads_of(int64_t elements) {
    return (elements + THREAD_ELEMENTS - 1) / THREAD_ELEMENTS;
}

static element_attrs attrs_of(const mz_call *call) {
    return {call->attrs.alpha, call->attrs.low, call->attrs.high};
}

// --- one input -----------------------------------------------------------------------------------------------------
template <class ELEMENT>
__global__ void __launch_bounds__(THREADS) map_kernel(mz_cu_array x, mz_cu_array y, int64_t n, element_attrs given) {
    int64_t first = (static_cast<int64_t>(blockIdx.x) * UNROLL * THREADS + threadIdx.x) * 8;
    raw8 raw[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (first + u * THREADS * 8 + 8 <= n)
            raw[u] = fetch8(x, first + u * THREADS * 8);
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t i = first + u * THREADS * 8;
        float v[8];
        if (i + 8 <= n) {
            widen8(raw[u], x.dtype, v);
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[k] = ELEMENT::of(v[k], 0, 0, given);
            store8(y, i, v);
        } else {
            for (; i < n; i++)
                store1(y, i, ELEMENT::of(load1(x, i), 0, 0, given));
        }
    }
}

template <class ELEMENT> void launch_map(const mz_cuda_device *cuda, const mz_call *call) {
    const int64_t n = mz_shape_count(&mz_out(call, gelu, y)->shape);
    launch_threads<THREADS>(cuda, map_kernel<ELEMENT>, threads_of(n), mz_cuda_array(mz_in(call, gelu, x)),
                            mz_cuda_array(mz_out(call, gelu, y)), n, attrs_of(call));
}

// --- dropout -------------------------------------------------------------------------------------------------------
// A dropped infinity is 0, not NaN: a choice and not a product.
__device__ __forceinline__ float dropped(float factor, float x) {
    return factor == 0 ? 0 : factor * x;
}

__global__ void __launch_bounds__(THREADS)
    dropout_kernel(mz_cu_array x, mz_cu_array y, int64_t n, float p, float kept, uint32_t tensor, const void *rng) {
    philox_key key = philox_key_of(rng, tensor);
    int64_t first = (static_cast<int64_t>(blockIdx.x) * UNROLL * THREADS + threadIdx.x) * 8;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t i = first + u * THREADS * 8;
        if (i >= n)
            return;
        float4 a = dropout_factors(key, static_cast<uint64_t>(i) >> 2, p, kept);
        float4 b = dropout_factors(key, (static_cast<uint64_t>(i) >> 2) + 1, p, kept);
        const float factor[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        float v[8];
        if (i + 8 <= n) {
            load8(x, i, v);
            for_each<8>([&](int k) { v[k] = dropped(factor[k], v[k]); });
            store8(y, i, v);
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (i + k < n)
                    store1(y, i + k, dropped(factor[k], load1(x, i + k)));
        }
    }
}

static void launch_dropout(const mz_cuda_device *cuda, const mz_call *call) {
    const float p = call->attrs.p;
    const int64_t n = mz_shape_count(&mz_out(call, dropout, y)->shape);
    if (p == 0) // factor 1 everywhere
        launch_map<element_CAST>(cuda, call);
    else
        launch_threads<THREADS>(cuda, dropout_kernel, threads_of(n), mz_cuda_array(mz_in(call, dropout, x)),
                                mz_cuda_array(mz_out(call, dropout, y)), n, p,
                                static_cast<float>(1 / (1 - static_cast<double>(p))), call->attrs.rng, call->rng);
}
MZ_CUDA_KERNEL(dropout, launch_dropout, storages<"a", "a">)

// --- two inputs ----------------------------------------------------------------------------------------------------
// How b's elements repeat: not at all, every nb elements with nb a multiple of 8, or however it comes.
enum { REPEAT_NONE, REPEAT_VECTORS, REPEAT_ANY };

template <class ELEMENT>
__global__ void __launch_bounds__(THREADS)
    zip_kernel(mz_cu_array a, mz_cu_array b, mz_cu_array y, int64_t n, int64_t nb, int repeat, element_attrs given) {
    int64_t first = (static_cast<int64_t>(blockIdx.x) * UNROLL * THREADS + threadIdx.x) * 8;
    raw8 raw_a[UNROLL], raw_b[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t i = first + u * THREADS * 8;
        if (i + 8 > n || repeat == REPEAT_ANY)
            continue;
        int64_t j = i;
        if (repeat == REPEAT_VECTORS) // n / 8 < 2^32: the launcher sees to it
            j = static_cast<int64_t>(static_cast<uint32_t>(i >> 3) % static_cast<uint32_t>(nb >> 3)) << 3;
        raw_a[u] = fetch8(a, i);
        raw_b[u] = fetch8(b, j);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t i = first + u * THREADS * 8;
        float v[8], w[8];
        if (i + 8 <= n && repeat != REPEAT_ANY) {
            widen8(raw_a[u], a.dtype, v);
            widen8(raw_b[u], b.dtype, w);
            for_each<8>([&](int k) { v[k] = ELEMENT::of(v[k], w[k], 0, given); });
            store8(y, i, v);
        } else {
            int64_t end = i + 8 < n ? i + 8 : n;
            for (; i < end; i++)
                store1(y, i, ELEMENT::of(load1(a, i), load1(b, nb == n ? i : i % nb), 0, given));
        }
    }
}

template <class ELEMENT>
void zip(const mz_cuda_device *cuda, const mz_tensor *a, const mz_tensor *b, const mz_tensor *y, element_attrs given) {
    const int64_t n = mz_shape_count(&y->shape), nb = mz_shape_count(&b->shape);
    const int repeat = nb == n ? REPEAT_NONE : nb % 8 == 0 && n >> 35 == 0 ? REPEAT_VECTORS : REPEAT_ANY;
    launch_threads<THREADS>(cuda, zip_kernel<ELEMENT>, threads_of(n), mz_cuda_array(a), mz_cuda_array(b),
                            mz_cuda_array(y), n, nb, repeat, given);
}
template <class ELEMENT> void launch_zip(const mz_cuda_device *cuda, const mz_call *call) {
    zip<ELEMENT>(cuda, mz_in(call, gelu_dx, dy), mz_in(call, gelu_dx, x), mz_out(call, gelu_dx, dx), attrs_of(call));
}

// Either operand may repeat: N elements, of which a repeated operand has one.
template <int N> __device__ __forceinline__ void load_repeated(mz_cu_array x, int64_t at, bool repeats, float v[N]) {
    if (N == 8 && !repeats) {
        load8(x, at, v);
        return;
    }
    float one = load1(x, at);
    for_each<N>([&](int k) { v[k] = one; });
}

static mz_broadcast loops_of(const mz_call *call) {
    const mz_shape *in[MZ_OPERANDS];
    for (int i = 0; i < call->n_in; i++)
        in[i] = &call->in[i].shape;
    return mz_broadcast_loops(in, call->n_in, &mz_out(call, cast, y)->shape);
}

// Vectors where the innermost loop is whole ones: its strides are 0 or 1, and all others then are multiples of 8.
template <class ELEMENT> void launch_binary(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_broadcast r = loops_of(call);
    const mz_cu_array a = mz_cuda_array(&call->in[0]), b = mz_cuda_array(&call->in[1]),
                      y = mz_cuda_array(&call->out[0]);
    if (mz_broadcast_whole(&r) > 0)
        return launch_zip<ELEMENT>(cuda, call);
    launch_vectors(cuda, mz_shape_count(&call->out[0].shape), r.dim[r.rank - 1], [=] __device__(auto lanes, int64_t i) {
        constexpr int N = lanes;
        int64_t rest = i, at_a = 0, at_b = 0;
        for (int d = r.rank - 1; d >= 0; d--) {
            int64_t next = rest / r.dim[d], k = rest - next * r.dim[d];
            at_a += k * r.step[0][d];
            at_b += k * r.step[1][d];
            rest = next;
        }
        float v[N], w[N];
        load_repeated<N>(a, at_a, r.step[0][r.rank - 1] == 0, v);
        load_repeated<N>(b, at_b, r.step[1][r.rank - 1] == 0, w);
        for_each<N>([&](int k) { v[k] = ELEMENT::of(v[k], w[k], 0, element_attrs{}); });
        store<N>(y, i, v);
    });
}

// --- any operands, integers among them: one element a thread -------------------------------------------------------
struct operands {
    mz_cu_array in[MZ_OPERANDS], y;
    mz_broadcast loops;
};

template <class ELEMENT, int N> void launch_operands(const mz_cuda_device *cuda, const mz_call *call) {
    operands o = {.y = mz_cuda_array(mz_out(call, cast, y)), .loops = loops_of(call)};
    for (int j = 0; j < N; j++)
        o.in[j] = mz_cuda_array(&call->in[j]);
    launch_items(cuda, mz_shape_count(&mz_out(call, cast, y)->shape), [=] __device__(int64_t i) {
        int64_t rest = i, at[MZ_OPERANDS] = {0, 0, 0};
        for (int d = o.loops.rank - 1; d >= 0; d--) {
            // The outermost index is what is left; 32 bits divide several times as fast.
            const int64_t next = d == 0            ? 0
                                 : rest >> 31 == 0 ? static_cast<uint32_t>(rest) / static_cast<uint32_t>(o.loops.dim[d])
                                                   : rest / o.loops.dim[d];
            const int64_t k = rest - next * o.loops.dim[d];
            for_each<N>([&](int j) { at[j] += k * o.loops.step[j][d]; });
            rest = next;
        }
        float v[MZ_OPERANDS] = {0, 0, 0};
        for_each<N>([&](int j) { v[j] = load_number(o.in[j], at[j]); });
        store_number(o.y, i, ELEMENT::of(v[0], v[1], v[2], element_attrs{}));
    });
}

// --- the ops of element.def, and a few more ------------------------------------------------------------------------
#define KERNEL(name, launch)  MZ_CUDA_KERNEL(name, launch<element_##name>, storages<"a", "a">)
#define OPERANDS(name, n_in)  MZ_CUDA_KERNEL(name, (launch_operands<element_##name, n_in>), storages<"n", "n">)
#define UNARY(name, ...)      KERNEL(name, launch_map) KERNEL(name##_dx, launch_zip)
#define UNARY_OWN(name, ...)  KERNEL(name, launch_map)
#define UNARY_FLAT(name, ...) KERNEL(name, launch_map)
#define BINARY(name, ...)     OPERANDS(name, 2) OPERANDS(name##_da, 3) OPERANDS(name##_db, 3)
#define BINARY_OWN(name, ...) KERNEL(name, launch_binary)
#define COMPARE(name, ...)    OPERANDS(name, 2)
#define TERNARY(name, ...)    OPERANDS(name, 3) OPERANDS(name##_da, 2) OPERANDS(name##_db, 2)
#include "graph/element.def"
#undef KERNEL
#undef OPERANDS

static void launch_gelu(const mz_cuda_device *cuda, const mz_call *call) {
    (call->attrs.tanh ? launch_map<element_GELU_TANH> : launch_map<element_GELU>)(cuda, call);
}
static void launch_gelu_dx(const mz_cuda_device *cuda, const mz_call *call) {
    (call->attrs.tanh ? launch_zip<element_GELU_TANH_DX> : launch_zip<element_GELU_DX>)(cuda, call);
}
static void launch_cast(const mz_cuda_device *cuda, const mz_call *call) {
    const bool integers = mz_in(call, cast, x)->dtype == MEZZO_I32;
    (integers ? launch_operands<element_CAST, 1> : launch_map<element_CAST>)(cuda, call);
}
static void launch_accumulate(const mz_cuda_device *cuda, const mz_call *call) { // grad += x, or grad = x
    const mz_tensor *grad = mz_out(call, accumulate, grad);
    if (call->attrs.accumulate)
        zip<element_add>(cuda, grad, mz_in(call, accumulate, x), grad, {});
    else
        launch_map<element_CAST>(cuda, call);
}
MZ_CUDA_KERNEL(gelu, launch_gelu, storages<"a", "a">)
MZ_CUDA_KERNEL(gelu_dx, launch_gelu_dx, storages<"a", "a">)
MZ_CUDA_KERNEL(cast, launch_cast, storages<"n", "a">)
MZ_CUDA_KERNEL(accumulate, launch_accumulate, storages<"a", "f">)
