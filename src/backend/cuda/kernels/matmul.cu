// Does what cuBLASLt's epilogues cannot: conversions of operands, epilogues of an op's own, sums of columns; and what
// the choice of its algorithms needs.
#include "activation.cuh"
#include "pdl_launch.cuh"
#include "vec.cuh"

namespace {
enum { BLOCK = 256 };

unsigned blocks_for(int64_t threads) {
    int64_t blocks = (threads + BLOCK - 1) / BLOCK;
    return static_cast<unsigned>(blocks < 1 ? 1 : blocks < (1 << 30) ? blocks : 1 << 30);
}

unsigned few_blocks_for(int64_t threads) { // for kernels that stride
    unsigned blocks = blocks_for(threads);
    return blocks < 4096 ? blocks : 4096;
}

// --- conversion ----------------------------------------------------------------------------------------------------
// A direction of Muon may begin at any element.
__global__ void __launch_bounds__(BLOCK) convert_kernel(mz_cu_array src, mz_cu_array dst, int64_t n) {
    const int64_t first = thread_index<BLOCK>() * 8;
    const auto convert = [&]<int N>(int64_t i) {
        float v[N];
        load<N>(src, i, v);
        store<N>(dst, i, v);
    };
    wait_for_before();
    if ((reinterpret_cast<uintptr_t>(src.data) | reinterpret_cast<uintptr_t>(dst.data)) % sizeof(uint4) == 0)
        for_vector(first, n, convert);
    else
        for (int64_t i = first; i < first + 8 && i < n; i++)
            convert.template operator()<1>(i);
}

// --- epilogues -----------------------------------------------------------------------------------------------------
__device__ __forceinline__ float finish(const mz_cu_epilogue &e, float z, float residual) {
    float a = e.act == ACT_NONE ? z : round_to(activate(z, e.act), e.via);
    return e.residual.data != nullptr ? a + residual : a;
}

// y = residual + round_via(act(round_via(z + bias))); preact = round_via(z + bias). [rows, cols]; cols a multiple of 8
// or one at a time.
__global__ void __launch_bounds__(BLOCK) epilogue_kernel(mz_cu_epilogue e) {
    const int64_t first = thread_index<BLOCK>() * 8, n = e.rows * e.cols;
    const auto finish_some = [&]<int N>(int64_t i) {
        float z[N], bias[N], residual[N] = {};
        load<N>(e.z, i, z);
        if (e.bias.data != nullptr) {
            load<N>(e.bias, i % e.cols, bias);
            for_each<N>([&](int k) { z[k] += bias[k]; });
        }
        if (e.residual.data != nullptr)
            load<N>(e.residual, i, residual);
        for_each<N>([&](int k) { z[k] = round_to(z[k], e.via); });
        if (e.preact.data != nullptr)
            store<N>(e.preact, i, z);
        for_each<N>([&](int k) { z[k] = finish(e, z[k], residual[k]); });
        store<N>(e.y, i, z);
    };
    if (e.cols % 8 != 0)
        for (int k = 0; k < 8 && first + k < n; k++)
            finish_some.template operator()<1>(first + k);
    else if (first < n)
        finish_some.template operator()<8>(first);
}

__global__ void __launch_bounds__(BLOCK)
    act_dx_kernel(const float *product, mz_cu_array preact, mz_cu_array dx, int64_t n, int act) {
    const bool derivative = preact.data != nullptr;
    for_vector(thread_index<BLOCK>() * 8, n, [&]<int N>(int64_t i) {
        float v[N], x[N] = {};
        load<N>({const_cast<float *>(product), MEZZO_F32}, i, v);
        if (derivative)
            load<N>(preact, i, x);
        for_each<N>([&](int k) { v[k] = derivative ? times_derivative(v[k], x[k], act) : v[k]; });
        store<N>(dx, i, v);
    });
}

// --- sums of columns -----------------------------------------------------------------------------------------------
// 32 groups of 8 columns by 8 rows a block; each of gridDim.y chunks of rows gives a partial sum, and these are added
// in order.
enum { GROUPS = 32, LANES = BLOCK / GROUPS, TARGET_BLOCKS = 1024, CHUNK_ROWS = 64 };

int64_t chunks_for(int64_t rows, int64_t cols) {
    int64_t across = (cols + GROUPS * 8 - 1) / (GROUPS * 8), chunks = TARGET_BLOCKS / across;
    int64_t most = (rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
    chunks = chunks > most ? most : chunks;
    return chunks < 1 ? 1 : chunks;
}

__global__ void __launch_bounds__(BLOCK)
    column_sums_kernel(mz_cu_array x, float *partial, int64_t rows, int64_t cols, int64_t chunk, bool accumulate) {
    __shared__ float shared[LANES][GROUPS * 8 + 1];
    int group = threadIdx.x % GROUPS, lane = threadIdx.x / GROUPS;
    int64_t col = (static_cast<int64_t>(blockIdx.x) * GROUPS + group) * 8;
    int64_t from = blockIdx.y * chunk, to = from + chunk < rows ? from + chunk : rows;
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (cols % 8 == 0) {
        if (col < cols) {
#pragma unroll 4
            for (int64_t r = from + lane; r < to; r += LANES) {
                float v[8];
                load8(x, r * cols + col, v);
                for_each<8>([&](int k) { sum[k] += v[k]; });
            }
        }
    } else {
        for (int64_t r = from + lane; r < to; r += LANES)
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (col + k < cols)
                    sum[k] += load1(x, r * cols + col + k);
    }
    for_each<8>([&](int k) { shared[lane][group * 8 + k] = sum[k]; });
    __syncthreads();
    int64_t at = static_cast<int64_t>(blockIdx.x) * GROUPS * 8 + threadIdx.x;
    if (at >= cols)
        return;
    float total = 0;
    for_each<LANES>([&](int l) { total += shared[l][threadIdx.x]; });
    float *out = partial + blockIdx.y * cols + at;
    *out = accumulate ? *out + total : total;
}

// 32 columns by 8 lanes of chunks a block: a lane adds its share of the chunks, and the lanes' sums are added in order.
enum { PARTIAL_COLS = 32, PARTIAL_LANES = BLOCK / PARTIAL_COLS };
__global__ void __launch_bounds__(BLOCK)
    add_partials_kernel(const float *partial, float *out, int64_t cols, int64_t chunks, bool accumulate) {
    wait_for_before();
    __shared__ float shared[PARTIAL_LANES][PARTIAL_COLS];
    int column = threadIdx.x % PARTIAL_COLS, lane = threadIdx.x / PARTIAL_COLS;
    int64_t i = static_cast<int64_t>(blockIdx.x) * PARTIAL_COLS + column;
    int64_t share = (chunks + PARTIAL_LANES - 1) / PARTIAL_LANES, from = lane * share;
    int64_t to = from + share < chunks ? from + share : chunks;
    float total = 0;
    if (i < cols) {
#pragma unroll 8
        for (int64_t c = from; c < to; c++)
            total += partial[c * cols + i];
    }
    shared[lane][column] = total;
    __syncthreads();
    if (lane > 0 || i >= cols)
        return;
#pragma unroll
    for (int l = 1; l < PARTIAL_LANES; l++)
        total += shared[l][column];
    out[i] = accumulate ? out[i] + total : total;
}

// --- for choosing algorithms ---------------------------------------------------------------------------------------
// ±LARGE, a quarter of them, or ±[1, 2)/LARGE. In a sum of products the squares of LARGE often cancel, and what is left
// has lost other bits in each order of the additions, which results of 16 bits show too.
static __device__ __forceinline__ float cancelling(uint32_t h) {
    const float LARGE = 1024;
    const float size = (h & 3) == 0 ? LARGE : (1 + static_cast<float>(h >> 9) * 1.1920929e-7f) / LARGE;
    return (h & 4) != 0 ? -size : size;
}

__global__ void __launch_bounds__(BLOCK) fill_kernel(mz_cu_array x, int64_t n, uint32_t seed, bool cancel) {
    int64_t step = static_cast<int64_t>(gridDim.x) * BLOCK;
    for (int64_t i = thread_index<BLOCK>(); i < n; i += step) {
        uint32_t h = static_cast<uint32_t>(i) * 2654435761u + seed; // any numbers in [-1, 1) with all their bits in use
        h = (h ^ (h >> 15)) * 2246822519u;
        h = (h ^ (h >> 13)) * 3266489917u;
        h ^= h >> 16;
        store1(x, i, cancel ? cancelling(h) : static_cast<float>(static_cast<int32_t>(h)) * 4.656612873e-10f);
    }
}

__global__ void __launch_bounds__(BLOCK) differs_kernel(const uint32_t *a, const uint32_t *b, int64_t n, int32_t *out) {
    int64_t step = static_cast<int64_t>(gridDim.x) * BLOCK;
    bool differs = false;
    for (int64_t i = thread_index<BLOCK>(); i < n; i += step)
        differs = differs || a[i] != b[i];
    if (differs)
        *out = 1;
}

__global__ void __launch_bounds__(BLOCK) diagonal_kernel(float *x, int64_t matrices, int64_t side, float c) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * BLOCK;
    for (int64_t i = thread_index<BLOCK>(); i < matrices * side; i += step)
        x[i * side + i % side] += c;
}
} // namespace

extern "C" cudaError_t mz_cu_add_to_diagonal(cudaStream_t stream, float *x, int64_t matrices, int64_t side, float c) {
    diagonal_kernel<<<blocks_for(matrices * side), BLOCK, 0, stream>>>(x, matrices, side, c);
    return cudaGetLastError();
}

extern "C" cudaError_t mz_cu_convert(cudaStream_t stream, mz_cu_array src, mz_cu_array dst, int64_t n) {
    return launch_dependent(stream, convert_kernel, blocks_for((n + 7) / 8), BLOCK, 0, src, dst, n);
}

extern "C" cudaError_t mz_cu_linear_epilogue(cudaStream_t stream, const mz_cu_epilogue *e) {
    epilogue_kernel<<<blocks_for((e->rows * e->cols + 7) / 8), BLOCK, 0, stream>>>(*e);
    return cudaGetLastError();
}

extern "C" cudaError_t mz_cu_act_dx(cudaStream_t stream, const void *product, mz_cu_array preact, mz_cu_array dx,
                                    int64_t n, int act) {
    act_dx_kernel<<<blocks_for((n + 7) / 8), BLOCK, 0, stream>>>(static_cast<const float *>(product), preact, dx, n,
                                                                 act);
    return cudaGetLastError();
}

extern "C" size_t mz_cu_column_sums_bytes(int64_t rows, int64_t cols) {
    int64_t chunks = chunks_for(rows, cols);
    return chunks > 1 ? static_cast<size_t>(chunks * cols) * sizeof(float) : 0;
}

extern "C" cudaError_t mz_cu_add_partials(cudaStream_t stream, const float *partial, float *out, int64_t cols,
                                          int64_t chunks, bool accumulate) {
    return launch_dependent(stream, add_partials_kernel,
                            static_cast<unsigned>((cols + PARTIAL_COLS - 1) / PARTIAL_COLS), BLOCK, 0, partial, out,
                            cols, chunks, accumulate);
}

extern "C" cudaError_t mz_cu_column_sums(cudaStream_t stream, mz_cu_array x, float *out, int64_t rows, int64_t cols,
                                         bool accumulate, float *partial) {
    int64_t chunks = chunks_for(rows, cols), chunk = (rows + chunks - 1) / chunks;
    dim3 grid(static_cast<unsigned>((cols + GROUPS * 8 - 1) / (GROUPS * 8)), static_cast<unsigned>(chunks));
    column_sums_kernel<<<grid, BLOCK, 0, stream>>>(x, chunks > 1 ? partial : out, rows, cols, chunk,
                                                   chunks == 1 && accumulate);
    return chunks > 1 ? mz_cu_add_partials(stream, partial, out, cols, chunks, accumulate) : cudaGetLastError();
}

extern "C" cudaError_t mz_cu_fill(cudaStream_t stream, mz_cu_array x, int64_t n, uint32_t seed, bool cancel) {
    fill_kernel<<<few_blocks_for(n), BLOCK, 0, stream>>>(x, n, seed, cancel);
    return cudaGetLastError();
}

extern "C" cudaError_t mz_cu_differs(cudaStream_t stream, const void *a, const void *b, size_t bytes, int32_t *out) {
    int64_t n = static_cast<int64_t>(bytes / 4);
    differs_kernel<<<few_blocks_for(n), BLOCK, 0, stream>>>(static_cast<const uint32_t *>(a),
                                                            static_cast<const uint32_t *>(b), n, out);
    return cudaGetLastError();
}
