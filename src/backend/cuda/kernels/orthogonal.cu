// Runs the ops before and after the products that make a matrix orthogonal: a matrix over its norm, and rows over the
// root of an average of their squares.
#include "rows.cuh"

enum { THREADS = 256, CHUNK = 4096 };

// The sum over the block, in a fixed order; the first thread has it.
__device__ __forceinline__ double sum_of_block(double sum) {
    __shared__ double sums[THREADS / WARP];
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < THREADS / WARP && threadIdx.x == 0; w++)
        sum += sums[w];
    return sum;
}

// Elements of one chunk of a matrix, zeros after its end: vector v of a thread is elements (v·THREADS + thread)·N … + N
// - 1. N = 8 where matrices begin at vectors, else 1.
template <int N> struct chunk {
    static constexpr int VECTORS = CHUNK / THREADS / N;
    int64_t first, end; // the thread's first element, and the matrix's end

    __device__ __forceinline__ chunk(int64_t matrix, int64_t number, int64_t each)
        : first(matrix * each + number * CHUNK + static_cast<int64_t>(threadIdx.x) * N), end((matrix + 1) * each) {}
    // f(i, v) for each vector v inside the matrix, at element i.
    template <class F> __device__ __forceinline__ void for_vectors(F f) const {
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            if (first + v * THREADS * N < end)
                f(first + v * THREADS * N, v);
    }
};

// partial[matrix · chunks + chunk] = Σ x² of the chunk.
template <int N>
__global__ void __launch_bounds__(THREADS) squares_kernel(const float *x, int64_t each, double *partial) {
    const chunk<N> mine(blockIdx.y, blockIdx.x, each);
    float values[mine.VECTORS][N] = {};
    double sum = 0;
    mine.for_vectors([&](int64_t i, int v) { load<N>({const_cast<float *>(x), MEZZO_F32}, i, values[v]); });
    for_each<mine.VECTORS, N>(
        [&](int v, int k) { sum += static_cast<double>(values[v][k]) * static_cast<double>(values[v][k]); });
    sum = sum_of_block(sum);
    if (threadIdx.x == 0)
        partial[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = sum;
}

// The last chunk comes first: of what squares_kernel has read, the end may still be in L2.
template <int N>
__global__ void __launch_bounds__(THREADS)
    normalize_kernel(const float *x, mz_cu_array y, int64_t each, float eps, float alpha, const double *partial) {
    __shared__ float factor;
    const int64_t matrix = gridDim.y - 1 - blockIdx.y;
    const chunk<N> mine(matrix, gridDim.x - 1 - blockIdx.x, each);
    float values[mine.VECTORS][N];
    double sum = 0;
    mine.for_vectors([&](int64_t i, int v) { load<N>({const_cast<float *>(x), MEZZO_F32}, i, values[v]); });
    for (unsigned c = threadIdx.x; c < gridDim.x; c += THREADS)
        sum += partial[matrix * gridDim.x + c];
    sum = sum_of_block(sum);
    if (threadIdx.x == 0)
        factor = static_cast<float>(static_cast<double>(alpha) / fmax(sqrt(sum), static_cast<double>(eps)));
    __syncthreads();
    mine.for_vectors([&](int64_t i, int v) {
        for_each<N>([&](int k) { values[v][k] *= factor; });
        store<N>(y, i, values[v]);
    });
}

static int64_t elements_of_matrix(const mz_shape *s) {
    return s->dim[s->rank - 2] * s->dim[s->rank - 1];
}
static const char *normalize_prepare(mezzo_device *, const mz_call *call, mz_prepared *out) {
    const mz_shape *s = &mz_in(call, matrix_normalize, x)->shape;
    const int64_t each = elements_of_matrix(s), matrices = mz_shape_count(s) / each;
    if (matrices > 65535)
        return "takes at most 65,535 matrices";
    out->workspace = static_cast<size_t>(matrices * blocks_of(each, CHUNK)) * sizeof(double);
    return mz_cuda_storages(call, "f", "a");
}
static void launch_normalize(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *in = mz_in(call, matrix_normalize, x);
    const int64_t each = elements_of_matrix(&in->shape);
    const dim3 grid(blocks_of(each, CHUNK), static_cast<unsigned>(mz_shape_count(&in->shape) / each));
    const float *x = data_of<float>(in);
    double *partial = static_cast<double *>(call->workspace);
    const bool whole = each % 8 == 0 && reinterpret_cast<uintptr_t>(x) % sizeof(uint4) == 0;
    const auto squares = whole ? squares_kernel<8> : squares_kernel<1>;
    const auto normalize = whole ? normalize_kernel<8> : normalize_kernel<1>;
    squares<<<grid, THREADS, 0, cuda->stream>>>(x, each, partial);
    normalize<<<grid, THREADS, 0, cuda->stream>>>(x, mz_cuda_array(mz_out(call, matrix_normalize, y)), each,
                                                  call->attrs.eps, call->attrs.alpha, partial);
}
MZ_CUDA_KERNEL(matrix_normalize, launch_normalize, normalize_prepare)

// --- matrix_scale_rows -----------------------------------------------------------------------------------------------
struct scaled_rows {
    const float *x;
    const mz_opt_state *state;
    float *y, *v;
    double *sums; // [matrices, rows]
    int64_t width;
    int rows; // of a matrix
    float beta, columns, eps, alpha;
};

// A block a row: sums[row] = Σ x².
__global__ void __launch_bounds__(THREADS) row_squares_kernel(scaled_rows a) {
    const float *x = a.x + static_cast<int64_t>(blockIdx.x) * a.width;
    double sum = 0;
    if (a.state->skip)
        return;
    for (int64_t i = threadIdx.x; i < a.width; i += THREADS)
        sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    sum = sum_of_block(sum);
    if (threadIdx.x == 0)
        a.sums[blockIdx.x] = sum;
}

// A block a matrix: the new v of its rows, and in place of their sums the factor of each row.
__global__ void __launch_bounds__(THREADS) row_factors_kernel(scaled_rows a) {
    __shared__ double factor;
    float *v = a.v + static_cast<int64_t>(blockIdx.x) * a.rows;
    double *sums = a.sums + static_cast<int64_t>(blockIdx.x) * a.rows, all = 0;
    const double beta = a.beta, columns = a.columns;
    if (a.state->skip)
        return;
    for (int row = static_cast<int>(threadIdx.x); row < a.rows; row += THREADS) {
        v[row] = static_cast<float>(beta * static_cast<double>(v[row]) + (1 - beta) * sums[row] / columns);
        const double root = sqrt(static_cast<double>(v[row])) + static_cast<double>(a.eps);
        all += sums[row] / (root * root);
        sums[row] = 1 / root;
    }
    all = sum_of_block(all);
    if (threadIdx.x == 0)
        factor = all > 0 ? static_cast<double>(a.alpha) / sqrt(all) : 0;
    __syncthreads();
    for (int row = static_cast<int>(threadIdx.x); row < a.rows; row += THREADS)
        sums[row] *= factor;
}

__global__ void __launch_bounds__(THREADS) scale_rows_kernel(scaled_rows a) {
    const int64_t before = static_cast<int64_t>(blockIdx.x) * a.width;
    if (a.state->skip)
        return;
    const float factor = static_cast<float>(a.sums[blockIdx.x]);
    for (int64_t i = threadIdx.x; i < a.width; i += THREADS)
        a.y[before + i] = a.x[before + i] * factor;
}

static const char *scale_rows_prepare(mezzo_device *, const mz_call *call, mz_prepared *out) {
    const int64_t rows = mz_shape_rows(&mz_in(call, matrix_scale_rows, x)->shape);
    if (rows > INT32_MAX)
        return "takes at most 2,147,483,647 rows";
    out->workspace = static_cast<size_t>(rows) * sizeof(double);
    return mz_cuda_storages(call, "fu", "ff");
}
static void launch_scale_rows(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_shape *s = &mz_in(call, matrix_scale_rows, x)->shape;
    const unsigned all = static_cast<unsigned>(mz_shape_rows(s)), rows = static_cast<unsigned>(s->dim[s->rank - 2]);
    const float *c = call->attrs.coefficients;
    const scaled_rows a = {data_of<float>(mz_in(call, matrix_scale_rows, x)),
                           data_of<mz_opt_state>(mz_in(call, matrix_scale_rows, state)),
                           data_of<float>(mz_out(call, matrix_scale_rows, y)),
                           data_of<float>(mz_out(call, matrix_scale_rows, v)),
                           static_cast<double *>(call->workspace),
                           s->dim[s->rank - 1],
                           static_cast<int>(rows),
                           c[0],
                           c[1],
                           call->attrs.eps,
                           call->attrs.alpha};
    row_squares_kernel<<<all, THREADS, 0, cuda->stream>>>(a);
    row_factors_kernel<<<all / rows, THREADS, 0, cuda->stream>>>(a);
    scale_rows_kernel<<<all, THREADS, 0, cuda->stream>>>(a);
}
MZ_CUDA_KERNEL(matrix_scale_rows, launch_scale_rows, scale_rows_prepare)
