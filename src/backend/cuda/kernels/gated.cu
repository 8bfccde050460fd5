// Computes SwiGLU, GeGLU and rotary positions, ops whose elements come in pairs from two places of a row.
#include "host.cuh"
#include "activation.cuh"
#include "vec.cuh"

enum { THREADS = 256 };

// --- swiglu --------------------------------------------------------------------------------------------------------
// A thread takes N columns of a row. Rows of x are twice as long as those of what is gated.
template <int ACT> static void launch_gate(const mz_cuda_device *cuda, const mz_call *call) {
    const bool forward = call->op == MZ_OP_swiglu;
    const mz_tensor *one = forward ? mz_out(call, swiglu, y) : mz_in(call, swiglu_dx, dy); // of the gated width
    const mz_cu_array x = mz_cuda_array(forward ? mz_in(call, swiglu, x) : mz_in(call, swiglu_dx, x)),
                      dy = mz_cuda_array(one), to = mz_cuda_array(&call->out[0]);
    const int64_t n = mz_shape_count(&one->shape);
    const int width = static_cast<int>(mz_cuda_width(one));
    const auto value = [=] __device__(auto lanes, int64_t i) {
        constexpr int N = lanes;
        const int64_t gate_at = i + i / width * width;
        const auto g = fetch<N>(x, gate_at), u = fetch<N>(x, gate_at + width);
        float gate[N], up[N];
        widen(g, x.dtype, gate);
        widen(u, x.dtype, up);
        for_each<N>([&](int k) { gate[k] = activate(gate[k], ACT) * up[k]; });
        store<N>(to, i, gate);
    };
    const auto gradient = [=] __device__(auto lanes, int64_t i) {
        constexpr int N = lanes;
        const int64_t gate_at = i + i / width * width;
        const auto g = fetch<N>(x, gate_at), u = fetch<N>(x, gate_at + width), r = fetch<N>(dy, i);
        float gate[N], up[N], d[N];
        widen(g, x.dtype, gate);
        widen(u, x.dtype, up);
        widen(r, dy.dtype, d);
        for_each<N>([&](int k) {
            const float z = gate[k];
            gate[k] = times_derivative(d[k] * up[k], z, ACT);
            up[k] = d[k] * activate(z, ACT);
        });
        store<N>(to, gate_at, gate);
        store<N>(to, gate_at + width, up);
    };
    if (forward)
        launch_vectors(cuda, n, width, value);
    else
        launch_vectors(cuda, n, width, gradient);
}

static void launch_gated(const mz_cuda_device *cuda, const mz_call *call) {
    const int act = call->attrs.act;
    (act == ACT_GELU        ? launch_gate<ACT_GELU>
     : act == ACT_GELU_TANH ? launch_gate<ACT_GELU_TANH>
                            : launch_gate<ACT_SILU>)(cuda, call);
}
MZ_CUDA_KERNEL(swiglu, launch_gated, storages<"a", "a", narrow_input>)
MZ_CUDA_KERNEL(swiglu_dx, launch_gated, storages<"a", "a", narrow_input>)

// --- rope ----------------------------------------------------------------------------------------------------------
// Frequencies and angles are FP32 numbers (docs/dev/NUMERICS.md); their cosines and sines are taken in FP64, where the
// reduction of a large angle costs nothing. The table is made once a run.
static void launch_rope_table(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *out = mz_out(call, rope_table, table); // [T, R]
    const int dims = static_cast<int>(out->shape.dim[1]), half = dims / 2;
    const int32_t *positions = data_of<int32_t>(mz_in(call, rope_table, positions));
    float *table = data_of<float>(out);
    const float theta = call->attrs.theta;
    const mz_rope_scaling scaling = call->attrs.rope;
    launch_items(cuda, out->shape.dim[0] * half, [=] __device__(int64_t i) {
        int64_t t = i / half;
        int k = static_cast<int>(i - t * half);
        double exponent = static_cast<double>(__fdiv_rn(static_cast<float>(2 * k), static_cast<float>(dims)));
        float power = static_cast<float>(pow(static_cast<double>(theta), exponent));
        float position = static_cast<float>(positions != nullptr ? positions[t] : static_cast<int>(t));
        float frequency = __fdiv_rn(1.0f, power);
        double amplitude = 1, s, c;
        if (scaling.divisor > 0) {
            float x = scaling.by_index ? static_cast<float>(k) : frequency;
            float kept = fminf(fmaxf(__fadd_rn(scaling.offset, __fmul_rn(scaling.slope, x)), 0.0f), 1.0f);
            float slow = __fmul_rn(__fdiv_rn(frequency, scaling.divisor), __fsub_rn(1.0f, kept));
            frequency = __fadd_rn(__fmul_rn(frequency, kept), slow);
            amplitude = static_cast<double>(scaling.amplitude);
        }
        sincos(static_cast<double>(__fmul_rn(position, frequency)), &s, &c);
        table[t * dims + k] = static_cast<float>(amplitude * c);
        table[t * dims + half + k] = static_cast<float>(amplitude * s);
    });
}
MZ_CUDA_KERNEL(rope_table, launch_rope_table, storages<"i", "f", narrow_output>)

struct rope_args {
    mz_cu_array x, y;   // [rows, heads, width]; may be one storage of one dtype
    const float *table; // [length, dims]
    int64_t rows, length;
    int heads, rotated, width, dims;
    bool interleaved, inverse;
};
// Returns what there is to do for a turned head, and for a row, in vectors of 8 (two of them for what turns). In place
// nothing else moves.
static __host__ __device__ __forceinline__ int rope_items(const rope_args &a) {
    return a.dims / 16 + (a.x.data != a.y.data ? (a.width - a.dims) / 8 : 0);
}
static __host__ __device__ __forceinline__ int rope_vectors(const rope_args &a) {
    return a.rotated * rope_items(a) + (a.x.data != a.y.data ? (a.heads - a.rotated) * (a.width / 8) : 0);
}

// Heads of which everything is a multiple of 8: a thread turns two vectors, half of what is turned apart (pairs are the
// two's elements, or each one's neighbours), or copies 8 elements that are not turned.
__device__ __forceinline__ void turn_halves(float (&x)[2][8], const float (&c)[8], const float (&s)[8]) {
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float one = x[0][e], two = x[1][e];
        x[0][e] = fmaf(one, c[e], -(two * s[e]));
        x[1][e] = fmaf(two, c[e], one * s[e]);
    }
}
__device__ __forceinline__ void turn_neighbours(float (&x)[2][8], const float (&c)[8], const float (&s)[8]) {
#pragma unroll
    for (int e = 0; e < 8; e++) { // angles 0 to 3 are the first vector's
        float *pair = x[e / 4] + e % 4 * 2;
        const float one = pair[0], two = pair[1];
        pair[0] = fmaf(one, c[e], -(two * s[e]));
        pair[1] = fmaf(two, c[e], one * s[e]);
    }
}
__device__ __forceinline__ void load4(const float *from, float *to) {
    const float4 v = *reinterpret_cast<const float4 *>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
template <bool NEIGHBOURS> __global__ void __launch_bounds__(THREADS) rope_vectors_kernel(rope_args a) {
    int half = a.dims / 2 / 8, items = rope_items(a), all = rope_vectors(a); // a turned head's, a row's
    int64_t i = thread_index<THREADS>();
    int64_t row =
        i <= INT32_MAX ? static_cast<int64_t>(static_cast<uint32_t>(i) / static_cast<uint32_t>(all)) : i / all;
    if (row >= a.rows)
        return;
    int item = static_cast<int>(i - row * all), head = item / items, k = item - head * items;
    int64_t at;
    if (item < a.rotated * items && k < half) {
        const float *angles = a.table + row % a.length * a.dims;
        float c[8], s[8], x[2][8];
        at = (row * a.heads + head) * a.width + k * 8;
        const raw8 first = fetch8(a.x, at), second = fetch8(a.x, at + half * 8);
        // Angles of 8 pairs, or of 4 in the first half and of 4 in the second.
        const int low = NEIGHBOURS ? k * 4 : k * 8, high = low + (NEIGHBOURS ? half * 4 : 4);
        load4(angles + low, c);
        load4(angles + high, c + 4);
        load4(angles + half * 8 + low, s);
        load4(angles + half * 8 + high, s + 4);
        widen8(first, a.x.dtype, x[0]);
        widen8(second, a.x.dtype, x[1]);
        for_each<8>([&](int e) { s[e] = a.inverse ? -s[e] : s[e]; });
        NEIGHBOURS ? turn_neighbours(x, c, s) : turn_halves(x, c, s);
        store8(a.y, at, x[0]);
        store8(a.y, at + half * 8, x[1]);
        return;
    }
    if (item < a.rotated * items)
        at = (row * a.heads + head) * a.width + a.dims + (k - half) * 8;
    else
        at = (row * a.heads + a.rotated) * a.width + (item - a.rotated * items) * 8;
    float x[8];
    load8(a.x, at, x);
    store8(a.y, at, x);
}

// Anything else: a thread turns a pair, or copies an element.
static __host__ __device__ __forceinline__ int rope_singles(const rope_args &a) { // of a row
    const int half = a.dims / 2;
    return a.x.data != a.y.data ? a.heads * (a.width - half) : a.rotated * half;
}
__global__ void __launch_bounds__(THREADS) rope_kernel(rope_args a) {
    const int half = a.dims / 2, items = a.x.data != a.y.data ? a.width - half : half, all = rope_singles(a);
    int64_t i = thread_index<THREADS>(), row = i / all;
    if (row >= a.rows)
        return;
    const int item = static_cast<int>(i - row * all), head = item / items, k = item - head * items;
    const int64_t at = (row * a.heads + head) * a.width;
    bool columnwise = head < a.rotated;
    if (k >= half) {
        store1(a.y, at + half + k, load1(a.x, at + half + k));
        return;
    }
    const float *angles = a.table + row % a.length * a.dims;
    int64_t first = at + (a.interleaved ? 2 * k : k), second = first + (a.interleaved ? 1 : half);
    float c = columnwise ? angles[k] : 1, s = columnwise ? angles[half + k] : 0;
    float x1 = load1(a.x, first), x2 = load1(a.x, second);
    s = a.inverse ? -s : s;
    store1(a.y, first, columnwise ? fmaf(x1, c, -(x2 * s)) : x1);
    store1(a.y, second, columnwise ? fmaf(x2, c, x1 * s) : x2);
}

static void launch_rope(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *x = mz_in(call, rope, x), *table = mz_in(call, rope, table); // [B, T, W], [T, R] or [B·T, R]
    const rope_args a = {.x = mz_cuda_array(x),
                         .y = mz_cuda_array(mz_out(call, rope, y)),
                         .table = data_of<float>(table),
                         .rows = x->shape.dim[0] * x->shape.dim[1],
                         .length = table->shape.dim[0],
                         .heads = call->attrs.heads,
                         .rotated = call->attrs.rotated,
                         .width = static_cast<int>(x->shape.dim[2] / call->attrs.heads),
                         .dims = static_cast<int>(table->shape.dim[1]),
                         .interleaved = call->attrs.interleaved,
                         .inverse = call->attrs.inverse};
    if (a.dims % 16 == 0 && a.width % 8 == 0)
        launch_threads<THREADS>(cuda, a.interleaved ? rope_vectors_kernel<true> : rope_vectors_kernel<false>,
                                a.rows * rope_vectors(a), a);
    else
        launch_threads<THREADS>(cuda, rope_kernel, a.rows * rope_singles(a), a);
}
MZ_CUDA_KERNEL(rope, launch_rope, storages<"af", "a", narrow_input>)
