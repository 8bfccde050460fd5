// Computes sums and means along an axis of [outer, axis, inner], and their gradient.
#include "host.cuh"
#include "rows.cuh"

// A sum's axis is cut into parts, so that few long sums fill the card too; the parts' sums are summed by the same
// kernels.
struct sum_args {
    mz_cu_array x, y; // [outer, axis, inner] → [outer, parts, inner]
    int64_t outer, axis, inner;
    int parts;
    bool accumulate;
    float divisor;
};

__device__ __forceinline__ float finish(const sum_args &a, float sum, int64_t at) {
    sum = a.divisor == 1 ? sum : sum / a.divisor;
    return a.accumulate ? load1(a.y, at) + sum : sum;
}

static __host__ __device__ int64_t part_length(const sum_args &a) {
    return (a.axis + a.parts - 1) / a.parts;
}

// --- inner > 1: a thread a column, or 8 of them --------------------------------------------------------------------
enum { SUM_BLOCK = 128 };

template <int N> __global__ void __launch_bounds__(SUM_BLOCK) sum_columns_kernel(sum_args a) {
    int64_t i = thread_index<SUM_BLOCK>() * N;
    int64_t part = blockIdx.y, outer = blockIdx.z;
    if (i >= a.inner)
        return;
    int64_t length = part_length(a), from = part * length, to = from + length < a.axis ? from + length : a.axis;
    int64_t base = outer * a.axis * a.inner + i, at = (outer * a.parts + part) * a.inner + i;
    float sum[N] = {};
#pragma unroll 4
    for (int64_t r = from; r < to; r++) {
        float x[N];
        load<N>(a.x, base + r * a.inner, x);
        for_each<N>([&](int k) { sum[k] += x[k]; });
    }
    for_each<N>([&](int k) { store1(a.y, at + k, finish(a, sum[k], at + k)); });
}

// --- inner = 1: a warp or a block a row ----------------------------------------------------------------------------
template <int T> __global__ void __launch_bounds__(row_threads<T>::block) sum_rows_kernel(sum_args a) {
    __shared__ float shared[T / WARP];
    int64_t row = static_cast<int64_t>(blockIdx.x) * row_threads<T>::rows + row_in_block<T>(); // outer · parts
    if (row >= a.outer * a.parts)
        return;
    int64_t length = part_length(a), outer = row / a.parts, from = (row - outer * a.parts) * length;
    int64_t to = from + length < a.axis ? from + length : a.axis, end = outer * a.axis + to;
    int64_t start = outer * a.axis + from < end ? outer * a.axis + from : end;
    int64_t head = (start + 7) / 8 * 8 < end ? (start + 7) / 8 * 8 : end,
            tail = end / 8 * 8 > head ? end / 8 * 8 : head;
    float sum = 0;
#pragma unroll 4
    for (int64_t i = head + row_lane<T>() * 8; i < tail; i += T * 8) {
        float x[8];
        load8(a.x, i, x);
        sum += ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
    }
    for (int64_t i = start + row_lane<T>(); i < head; i += T)
        sum += load1(a.x, i);
    for (int64_t i = tail + row_lane<T>(); i < end; i += T)
        sum += load1(a.x, i);
    sum = row_sum<T>(sum, shared);
    if (row_lane<T>() == 0)
        store1(a.y, row, finish(a, sum, row));
}

static void sum_once(cudaStream_t stream, const sum_args &a) {
    if (a.inner == 1) {
        int64_t rows = a.outer * a.parts;
        if (part_length(a) <= 1024)
            sum_rows_kernel<WARP><<<blocks_of(rows, WARPS_A_BLOCK), row_threads<WARP>::block, 0, stream>>>(a);
        else
            sum_rows_kernel<ROW_BLOCK><<<static_cast<unsigned>(rows), ROW_BLOCK, 0, stream>>>(a);
        return;
    }
    bool vectors = a.inner % 8 == 0;
    int64_t columns = vectors ? a.inner / 8 : a.inner;
    // grid.z is at most 65,535: more outer indices than that are a loop of launches.
    for (int64_t first = 0; first < a.outer; first += 65535) {
        sum_args b = a;
        int64_t here = a.outer - first < 65535 ? a.outer - first : 65535;
        b.x.data = static_cast<char *>(a.x.data) + first * a.axis * a.inner * (a.x.dtype == MEZZO_F32 ? 4 : 2);
        b.y.data = static_cast<char *>(a.y.data) + first * a.parts * a.inner * (a.y.dtype == MEZZO_F32 ? 4 : 2);
        dim3 grid(blocks_of(columns, SUM_BLOCK), static_cast<unsigned>(a.parts), static_cast<unsigned>(here));
        (vectors ? sum_columns_kernel<8> : sum_columns_kernel<1>)<<<grid, SUM_BLOCK, 0, stream>>>(b);
    }
}

// The parts' sums of columns: SHARES threads a column, each a strided share in order, then the shares in order.
enum { COLUMNS = 32, SHARES = 32 };
__global__ void __launch_bounds__(COLUMNS *SHARES) sum_parts_kernel(sum_args a) {
    const int64_t i = thread_index<COLUMNS>(), outer = i / a.inner;
    const bool inside = i < a.outer * a.inner;
    const float *x = static_cast<const float *>(a.x.data) + outer * a.axis * a.inner + (i - outer * a.inner);
    const float sum = sum_shares<COLUMNS, SHARES, 4>(inside, a.axis, [&](int64_t p) { return x[p * a.inner]; });
    if (threadIdx.y != 0 || !inside)
        return;
    store1(a.y, i, finish(a, sum, i));
}

// Enough parts to give every multiprocessor some 1,024 threads, none shorter than what makes a second pass worth its
// launch.
static int parts_of(const axis_view &v, int sms) {
    int64_t threads = v.outer * (v.inner == 1 ? ROW_BLOCK : v.inner % 8 == 0 ? v.inner / 8 : v.inner);
    int64_t wanted = static_cast<int64_t>(sms) * 1024 / (threads > 0 ? threads : 1);
    int64_t most = v.axis / (v.inner == 1 ? 8192 : 64), parts = wanted < most ? wanted : most;
    return parts < 1 ? 1 : parts > 4096 ? 4096 : static_cast<int>(parts);
}

static const char *sum_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const axis_view v(&mz_in(call, sum, x)->shape, call->attrs.axis);
    const int parts = parts_of(v, mz_cuda(device)->sms);
    out->workspace = parts > 1 ? static_cast<size_t>(v.outer * v.inner) * parts * sizeof(float) : 0;
    return mz_cuda_storages(call, "a", "a");
}

static void launch_sum(const mz_cuda_device *cuda, const mz_call *call) {
    const axis_view v(&mz_in(call, sum, x)->shape, call->attrs.axis);
    const bool mean = call->op == MZ_OP_mean;
    if (v.outer * v.inner == 0)
        return;
    sum_args a = {.x = mz_cuda_array(mz_in(call, sum, x)),
                  .y = mz_cuda_array(mz_out(call, sum, y)),
                  .outer = v.outer,
                  .axis = v.axis,
                  .inner = v.inner,
                  .parts = 1,
                  .accumulate = !mean && call->attrs.accumulate,
                  .divisor = mean ? static_cast<float>(v.axis) : 1};
    const int parts = parts_of(v, cuda->sms);
    if (parts > 1) {
        sum_args first = a;
        first.y = {call->workspace, MEZZO_F32};
        first.parts = parts;
        first.accumulate = false;
        first.divisor = 1;
        sum_once(cuda->stream, first);
        a.x = first.y;
        a.axis = parts;
        if (a.inner > 1) {
            sum_parts_kernel<<<blocks_of(a.outer * a.inner, COLUMNS), dim3(COLUMNS, SHARES), 0, cuda->stream>>>(a);
            return;
        }
    }
    sum_once(cuda->stream, a);
}
MZ_CUDA_KERNEL(sum, launch_sum, sum_prepare)
MZ_CUDA_KERNEL(mean, launch_sum, sum_prepare)

// --- expand: dx = alpha · dy repeated along the axis ---------------------------------------------------------------
static void launch_expand(const mz_cuda_device *cuda, const mz_call *call) {
    const axis_view v(&mz_out(call, expand, y)->shape, call->attrs.axis);
    const mz_cu_array dy = mz_cuda_array(mz_in(call, expand, x)), dx = mz_cuda_array(mz_out(call, expand, y));
    const int64_t n = v.outer * v.axis * v.inner;
    const float alpha = call->attrs.alpha;
    launch_items(cuda, (n + 7) / 8, [=] __device__(int64_t vector) {
        const int64_t i = vector * 8;
        float x[8];
        if (v.inner % 8 == 0) // a vector lies inside a repeat
            load8(dy, i / v.inner / v.axis * v.inner + i % v.inner, x);
        else
            for_each<8>([&](int k) {
                const int64_t j = i + k < n ? i + k : n - 1;
                x[k] = load1(dy, j / v.inner / v.axis * v.inner + j % v.inner);
            });
        for_each<8>([&](int k) { x[k] *= alpha; });
        if (i + 8 <= n)
            store8(dx, i, x);
        else
            for_each<8>([&](int k) {
                if (i + k < n)
                    store1(dx, i + k, x[k]);
            });
    });
}
MZ_CUDA_KERNEL(expand, launch_expand, storages<"a", "a">)
