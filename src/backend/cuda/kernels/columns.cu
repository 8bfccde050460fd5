// Runs ops that go down the columns of [outer, axis, inner]. A column is a thread's, or a warp's where its elements are
// contiguous (inner 1).
#include "host.cuh"
#include "vec.cuh"

enum { THREADS = 256 };
constexpr unsigned ALL = 0xFFFFFFFFu;

struct column_args { // the op's inputs in order; x, or y of scatter_add, is [outer, axis, inner]
    mz_cu_array in[3], out;
    int64_t outer, axis, inner;
    bool reverse, exclusive; // cumsum
    const int32_t *index;    // gather, scatter_add: [n], or elementwise [outer, n, inner]
    int64_t n;
    bool elementwise;
    float *sum; // scatter_add: of out's size, or out itself
};

// A lane's column, how many lanes it has, and where its element `a` is.
template <int LANES> struct place {
    int64_t column, first, inner;
    int lane;
    __device__ place(const column_args &c)
        : column(thread_index<THREADS>() / LANES), inner(c.inner), lane(threadIdx.x % LANES) {
        first = column / inner * c.axis * inner + column % inner;
    }
    __device__ int64_t at(int64_t a) const { return first + a * inner; }
};

template <int LANES> __device__ __forceinline__ float sum_of(float v) {
    for (int other = LANES / 2; other > 0; other /= 2)
        v += __shfl_xor_sync(ALL, v, other);
    return v;
}
template <int LANES> __device__ __forceinline__ float product_of(float v) {
    for (int other = LANES / 2; other > 0; other /= 2)
        v *= __shfl_xor_sync(ALL, v, other);
    return v;
}

// Returns whether (a, i) goes before (b, k): NaN first, then the larger, then the smaller index.
__device__ __forceinline__ bool before(float a, int64_t i, float b, int64_t k) {
    if ((a != a) != (b != b))
        return a != a;
    return a > b || ((a == b || a != a) && i < k);
}

template <int LANES> __global__ void __launch_bounds__(THREADS) extremum_kernel(column_args c, float sign, bool index) {
    const place<LANES> p(c);
    if (p.column >= c.outer * c.inner)
        return;
    float best = 0;
    int64_t of = INT64_MAX;
    for (int64_t a = p.lane; a < c.axis; a += LANES) {
        const float v = sign * load_number(c.in[0], p.at(a));
        if (of == INT64_MAX || before(v, a, best, of)) {
            best = v;
            of = a;
        }
    }
    for (int other = LANES / 2; other > 0; other /= 2) {
        const float v = __shfl_xor_sync(ALL, best, other);
        const int64_t a = __shfl_xor_sync(ALL, static_cast<long long>(of), other);
        if (a != INT64_MAX && (of == INT64_MAX || before(v, a, best, of))) {
            best = v;
            of = a;
        }
    }
    if (p.lane == 0)
        store_number(c.out, p.column, index ? static_cast<float>(of) : sign * best);
    if (p.lane == 0 && index) // exact beyond 2^24
        static_cast<int32_t *>(c.out.data)[p.column] = static_cast<int32_t>(of);
}

template <int LANES> __global__ void __launch_bounds__(THREADS) extremum_dx_kernel(column_args c) {
    const place<LANES> p(c);
    if (p.column >= c.outer * c.inner)
        return;
    const float dy = load_number(c.in[0], p.column), y = load_number(c.in[2], p.column);
    float equals = 0;
    for (int64_t a = p.lane; a < c.axis; a += LANES)
        equals += load_number(c.in[1], p.at(a)) == y ? 1.0f : 0.0f;
    equals = sum_of<LANES>(equals);
    for (int64_t a = p.lane; a < c.axis; a += LANES)
        store_number(c.out, p.at(a), load_number(c.in[1], p.at(a)) == y ? dy / equals : 0.0f);
}

// prod, and with `derivative` its gradient.
template <int LANES> __global__ void __launch_bounds__(THREADS) prod_kernel(column_args c, bool derivative) {
    const place<LANES> p(c);
    if (p.column >= c.outer * c.inner)
        return;
    const mz_cu_array x = derivative ? c.in[1] : c.in[0];
    float product = 1, zeros = 0;
    for (int64_t a = p.lane; a < c.axis; a += LANES) {
        const float v = load_number(x, p.at(a));
        product *= v == 0.0f ? 1.0f : v;
        zeros += v == 0.0f ? 1.0f : 0.0f;
    }
    product = product_of<LANES>(product);
    zeros = sum_of<LANES>(zeros);
    if (!derivative && p.lane == 0)
        store_number(c.out, p.column, zeros > 0.0f ? product * 0.0f : product);
    if (!derivative)
        return;
    const float dy = load_number(c.in[0], p.column);
    for (int64_t a = p.lane; a < c.axis; a += LANES) {
        const float v = load_number(x, p.at(a));
        const bool only = zeros == (v == 0.0f ? 1.0f : 0.0f); // no other element is 0
        store_number(c.out, p.at(a), only ? dy * (product / (v == 0.0f ? 1.0f : v)) : dy * 0.0f);
    }
}

template <int LANES> __global__ void __launch_bounds__(THREADS) cumsum_kernel(column_args c) {
    const place<LANES> p(c);
    if (p.column >= c.outer * c.inner)
        return;
    float carry = 0;
    for (int64_t start = 0; start < c.axis; start += LANES) {
        const int64_t order = start + p.lane, a = c.reverse ? c.axis - 1 - order : order;
        const float x = order < c.axis ? load_number(c.in[0], p.at(a)) : 0.0f;
        float sum = x;
        for (int from = 1; from < LANES; from *= 2) {
            const float other = __shfl_up_sync(ALL, sum, from);
            sum += p.lane >= from ? other : 0.0f;
        }
        float without = 0;
        if (LANES > 1)
            without = __shfl_up_sync(ALL, sum, 1);
        without = p.lane > 0 ? without : 0.0f;
        if (order < c.axis)
            store_number(c.out, p.at(a), carry + (c.exclusive ? without : sum));
        carry += LANES > 1 ? __shfl_sync(ALL, sum, LANES - 1) : sum;
    }
}

// --- gathered and added --------------------------------------------------------------------------------------------
__device__ __forceinline__ int64_t indexed(const column_args &c, int64_t o, int64_t j, int64_t i) {
    int64_t at = c.index[c.elementwise ? (o * c.n + j) * c.inner + i : j];
    at += at < 0 ? c.axis : 0;
    return at < 0 || at >= c.axis ? -1 : (o * c.axis + at) * c.inner + i;
}

static void launch_gather(const mz_cuda_device *cuda, const column_args &c) {
    launch_items(cuda, c.outer * c.n * c.inner, [=] __device__(int64_t k) {
        const int64_t at = indexed(c, k / c.inner / c.n, k / c.inner % c.n, k % c.inner);
        store_number(c.out, k, at >= 0 ? load_number(c.in[0], at) : __int_as_float(0x7FC00000));
    });
}

static void launch_scatter_add(const mz_cuda_device *cuda, const column_args &c) {
    launch_items(cuda, c.outer * c.inner, [=] __device__(int64_t column) {
        const int64_t o = column / c.inner, i = column % c.inner, first = o * c.axis * c.inner + i;
        for (int64_t a = 0; a < c.axis; a++)
            c.sum[first + a * c.inner] = c.in[0].data != nullptr ? load_number(c.in[0], first + a * c.inner) : 0.0f;
        for (int64_t j = 0; j < c.n; j++) {
            const int64_t at = indexed(c, o, j, i);
            if (at >= 0)
                c.sum[at] += load_number(c.in[2], (o * c.n + j) * c.inner + i);
        }
        for (int64_t a = 0; a < c.axis && c.out.dtype != MEZZO_F32; a++)
            store_number(c.out, first + a * c.inner, c.sum[first + a * c.inner]);
    });
}

static void launch_columns(const mz_cuda_device *cuda, const mz_call *call) {
    const bool reads_x = call->op == MZ_OP_extremum_dx || call->op == MZ_OP_prod_dx,
               adds = call->op == MZ_OP_scatter_add;
    const axis_view view(adds ? &call->out[0].shape : &call->in[reads_x].shape, call->attrs.axis);
    column_args c = {.out = mz_cuda_array(&call->out[0]),
                     .outer = view.outer,
                     .axis = view.axis,
                     .inner = view.inner,
                     .reverse = call->attrs.reverse,
                     .exclusive = call->attrs.exclusive};
    for (int i = 0; i < call->n_in; i++)
        c.in[i] = mz_cuda_array(&call->in[i]);
    if (adds || call->op == MZ_OP_gather) {
        const mz_shape *index = &mz_in(call, gather, index)->shape;
        c.index = data_of<int32_t>(mz_in(call, gather, index));
        c.elementwise = call->attrs.elementwise;
        c.n = c.elementwise ? index->dim[call->attrs.axis] : mz_shape_count(index);
        c.sum = static_cast<float *>(c.out.dtype == MEZZO_F32 ? c.out.data : call->workspace);
    }
    const int64_t count = c.outer * c.inner;
    const bool warps = c.inner == 1;
    const auto for_lanes = [&](auto of_warp, auto of_thread, auto... args) {
        launch_threads<THREADS>(cuda, warps ? of_warp : of_thread, warps ? count * 32 : count, c, args...);
    };
    if (count == 0)
        return;
    switch (call->op) {
    case MZ_OP_max:
        return for_lanes(extremum_kernel<32>, extremum_kernel<1>, 1.0f, false);
    case MZ_OP_min:
        return for_lanes(extremum_kernel<32>, extremum_kernel<1>, -1.0f, false);
    case MZ_OP_argmax:
        return for_lanes(extremum_kernel<32>, extremum_kernel<1>, 1.0f, true);
    case MZ_OP_extremum_dx:
        return for_lanes(extremum_dx_kernel<32>, extremum_dx_kernel<1>);
    case MZ_OP_prod:
        return for_lanes(prod_kernel<32>, prod_kernel<1>, false);
    case MZ_OP_prod_dx:
        return for_lanes(prod_kernel<32>, prod_kernel<1>, true);
    case MZ_OP_cumsum:
        return for_lanes(cumsum_kernel<32>, cumsum_kernel<1>);
    case MZ_OP_gather:
        return launch_gather(cuda, c);
    default:
        return launch_scatter_add(cuda, c);
    }
}

static const char *indexed_prepare(mezzo_device *, const mz_call *call, mz_prepared *out) {
    const mz_tensor *y = mz_out(call, gather, y);
    if (call->op == MZ_OP_scatter_add && y->dtype != MEZZO_F32)
        out->workspace = static_cast<size_t>(mz_shape_count(&y->shape)) * sizeof(float);
    return mz_cuda_storages(call, "aia", "a");
}

MZ_CUDA_KERNEL(max, launch_columns, storages<"a", "a">)
MZ_CUDA_KERNEL(min, launch_columns, storages<"a", "a">)
MZ_CUDA_KERNEL(argmax, launch_columns, storages<"n", "i">)
MZ_CUDA_KERNEL(extremum_dx, launch_columns, storages<"a", "a">)
MZ_CUDA_KERNEL(prod, launch_columns, storages<"a", "a">)
MZ_CUDA_KERNEL(prod_dx, launch_columns, storages<"a", "a">)
MZ_CUDA_KERNEL(cumsum, launch_columns, storages<"a", "a">)
MZ_CUDA_KERNEL(gather, launch_columns, indexed_prepare)
MZ_CUDA_KERNEL(scatter_add, launch_columns, indexed_prepare)
