// Runs the ops between the products that make a matrix orthogonal: a matrix over its norm, and a polynomial of a
// matrix.
#include "vec.cuh"

enum { THREADS = 256, WARP = 32, CHUNK = MZ_CU_NORMALIZE_CHUNK };

// The sum over the block, in a fixed order; the first thread has it.
__device__ __forceinline__ double sum_of_block(double sum) {
    __shared__ double sums[THREADS / WARP];
#pragma unroll
    for (int step = WARP / 2; step > 0; step >>= 1)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < THREADS / WARP && threadIdx.x == 0; w++)
        sum += sums[w];
    return sum;
}

// partial[matrix · chunks + chunk] = Σ x² of the chunk.
__global__ void __launch_bounds__(THREADS) squares_kernel(const float *x, int64_t each, double *partial) {
    const int64_t first = static_cast<int64_t>(blockIdx.x) * CHUNK;
    const float *matrix = x + static_cast<int64_t>(blockIdx.y) * each;
    double sum = 0;
#pragma unroll
    for (int k = 0; k < CHUNK / THREADS; k++) {
        const int64_t i = first + k * THREADS + threadIdx.x;
        const double one = i < each ? matrix[i] : 0;
        sum += one * one;
    }
    sum = sum_of_block(sum);
    if (threadIdx.x == 0)
        partial[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = sum;
}

__global__ void __launch_bounds__(THREADS)
    normalize_kernel(const float *x, mz_cu_array y, int64_t each, float eps, float alpha, const double *partial) {
    __shared__ float factor;
    const double *mine = partial + static_cast<int64_t>(blockIdx.y) * gridDim.x;
    double sum = 0;
    for (unsigned c = threadIdx.x; c < gridDim.x; c += THREADS)
        sum += mine[c];
    sum = sum_of_block(sum);
    if (threadIdx.x == 0)
        factor = static_cast<float>(static_cast<double>(alpha) / fmax(sqrt(sum), static_cast<double>(eps)));
    __syncthreads();
    const int64_t first = static_cast<int64_t>(blockIdx.x) * CHUNK, before = static_cast<int64_t>(blockIdx.y) * each;
#pragma unroll
    for (int k = 0; k < CHUNK / THREADS; k++) {
        const int64_t i = first + k * THREADS + threadIdx.x;
        if (i < each)
            store1(y.data, y.dtype, before + i, x[before + i] * factor);
    }
}

extern "C" cudaError_t mz_cu_matrix_normalize(cudaStream_t stream, const float *x, mz_cu_array y, int64_t each,
                                              int matrices, float eps, float alpha, double *partial) {
    const dim3 grid(static_cast<unsigned>((each + CHUNK - 1) / CHUNK), static_cast<unsigned>(matrices));
    squares_kernel<<<grid, THREADS, 0, stream>>>(x, each, partial);
    normalize_kernel<<<grid, THREADS, 0, stream>>>(x, y, each, eps, alpha, partial);
    return cudaGetLastError();
}

// y = c₀·I + c₁·a + c₂·a2, N elements a thread; N = 8 where rows are whole vectors.
template <int N>
__global__ void __launch_bounds__(THREADS)
    polynomial_kernel(mz_cu_array a, mz_cu_array a2, mz_cu_array y, int64_t n, int64_t side, mz_cu_polynomial c) {
    const int64_t first = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * N;
    float x[N], x2[N];
    if (first >= n)
        return;
    if (N == 8) {
        widen8(fetch8(a.data, a.dtype, first), a.dtype, x);
        widen8(fetch8(a2.data, a2.dtype, first), a2.dtype, x2);
    } else {
        x[0] = load1(a.data, a.dtype, first);
        x2[0] = load1(a2.data, a2.dtype, first);
    }
    const int64_t row = first / side, column = first - row * side, diagonal = row % side;
#pragma unroll
    for (int k = 0; k < N; k++) {
        const float constant = column + k == diagonal ? c.at[0] : 0;
        x[k] = __fmaf_rn(c.at[2], x2[k], __fmaf_rn(c.at[1], x[k], constant));
    }
    if (N == 8)
        store8(y.data, y.dtype, first, x);
    else
        store1(y.data, y.dtype, first, x[0]);
}

extern "C" cudaError_t mz_cu_matrix_polynomial(cudaStream_t stream, mz_cu_array a, mz_cu_array a2, mz_cu_array y,
                                               int64_t n, int64_t side, mz_cu_polynomial coefficients) {
    const int each = side % 8 == 0 ? 8 : 1;
    const unsigned blocks = static_cast<unsigned>((n / each + THREADS - 1) / THREADS);
    if (each == 8)
        polynomial_kernel<8><<<blocks, THREADS, 0, stream>>>(a, a2, y, n, side, coefficients);
    else
        polynomial_kernel<1><<<blocks, THREADS, 0, stream>>>(a, a2, y, n, side, coefficients);
    return cudaGetLastError();
}
