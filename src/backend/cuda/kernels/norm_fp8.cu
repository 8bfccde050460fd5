// Norms and the rounding to 8 bits after them in one piece, forward and backward: a result goes from registers to its
// codes and is not read again. A block takes `lines` rows, whose codes wait in shared memory to be turned there, and
// each row is normalised as layernorm.cu does, by the same sums in the same order.
#include "pdl_launch.cuh"
#include "fp8_pack.cuh"
#include "norm.cuh"
#include "norm_fp8.h"

// 16 bytes of a column are 16 rows; 32 rows are a whole sector of the memory. Wider rows stay with two kernels: with so
// few blocks of so many rows too few loads are on the way (docs/dev/EXPERIMENTS.md: times of 2,048 columns).
enum { RUN = 16, LINES = 32, WIDTH_MAX = 1024 };
static_assert(LINES * WIDTH_MAX + 64 <= 40 << 10, "a tile is in what a block has without a word, 48 KiB");

// Line l of the tile begins here: 16 rows after another lie 16 banks apart, so that two runs are read at once.
__device__ __forceinline__ int line_at(int line, int width) {
    return line * width + line / RUN * 64;
}

static int tile_bytes(int lines, int width) {
    return lines * width + (lines / RUN - 1) * 64;
}

__device__ __forceinline__ float inverse_of(const mz_cu_quantize &q) {
    return q.entry != nullptr ? 1 / q.entry[0] : 1; // exact
}

// A row's 8 numbers from column c on, as they are stored: their codes, to where they are read by rows and to the tile.
__device__ __forceinline__ void write_fp8(const mz_cu_quantize &q, int64_t row, int line, int c, const float z[8],
                                          float inverse, uint8_t *tile, uint32_t &amax) {
    const int width = static_cast<int>(q.cols);
    const uint2 fp8 = to_fp8(z, inverse, q.dtype == MZ_CU_F8E4M3, amax);
    if (q.y != nullptr)
        *reinterpret_cast<uint2 *>(static_cast<uint8_t *>(q.y) + row * width + c) = fp8;
    if (q.columnwise != nullptr)
        *reinterpret_cast<uint2 *>(tile + line_at(line, width) + c) = fp8;
}

// Rows row0 … row0 + lines - 1 of the tile, turned, by all of a block's threads; zeros after the last row.
template <int THREADS>
__device__ __forceinline__ void turn_lines(const mz_cu_quantize &q, int64_t row0, int lines, const uint8_t *tile) {
    const int width = static_cast<int>(q.cols), runs = lines / RUN;
    for (int job = static_cast<int>(threadIdx.x); job < runs * (width / 4); job += THREADS) {
        const int run = job % runs * RUN, quad = job / runs * 4;
        if (row0 + run < q.pitch)
            turn_run(tile + line_at(run, width) + quad, width,
                     static_cast<uint8_t *>(q.columnwise) + static_cast<int64_t>(quad) * q.pitch + row0 + run, q.pitch);
    }
}

// The zeros that a line of the tile has where there is no row, by the row's threads.
template <int T> __device__ __forceinline__ void clear_line(const mz_cu_quantize &q, int line, uint8_t *tile) {
    const int width = static_cast<int>(q.cols);
    for (int c = row_column<T>(0); q.columnwise != nullptr && c < width; c += T * 8)
        *reinterpret_cast<uint2 *>(tile + line_at(line, width) + c) = make_uint2(0, 0);
}

// --- forward -------------------------------------------------------------------------------------------------------
template <int T> struct fp8_threads {
    static constexpr int block = 256, rows = block / T; // at a time; divides RUN
};

template <int T, int V>
__global__ void __launch_bounds__(fp8_threads<T>::block, V <= 3 ? 3 : 2)
    norm_fp8_kernel(mz_cu_layernorm_args a, mz_cu_quantize q, int lines) {
    wait_for_before();
    constexpr int rows = fp8_threads<T>::rows;
    extern __shared__ __align__(16) uint8_t tile[];
    __shared__ float shared[2][2][fp8_threads<T>::block / WARP]; // two sets, used by turns: one barrier is enough
    const int64_t row0 = static_cast<int64_t>(blockIdx.x) * lines;
    const float inverse = inverse_of(q);
    uint32_t amax = 0;
    int turn = 0;
    for (int first = 0; first < lines && row0 + first < q.pitch; first += rows) { // alike for all of the block
        const int line = first + row_in_block<T>();
        const int64_t row = row0 + line;
        if (row >= a.rows) {
            clear_line<T>(q, line, tile);
            continue;
        }
        float s[V][8], rstd = norm_row<T, V>(a, row, shared[turn][0], shared[turn][1], s);
        turn ^= 1;
#pragma unroll
        for (int v = 0; v < V; v++) {
            float y[8];
            const int c = row_column<T>(v);
            if (c >= a.pitch)
                continue;
            norm_result<T>(a, v, s[v], rstd, y);
            if (a.y.data != nullptr)
                store8(a.y.data, a.y.dtype, row * a.pitch + c, y);
#pragma unroll
            for (int k = 0; k < 8; k++)
                y[k] = round_to(y[k], a.y.dtype);
            write_fp8(q, row, line, c, y, inverse, tile, amax);
        }
    }
    if (q.columnwise != nullptr) {
        __syncthreads();
        turn_lines<fp8_threads<T>::block>(q, row0, lines, tile);
    }
    if (q.amax != nullptr)
        record_amax<fp8_threads<T>::block>(q.amax, amax);
}

// --- backward ------------------------------------------------------------------------------------------------------
// Columns' sums are a block's rows in order and then the blocks in order: other rows to a block than layernorm_bwd has,
// so that their last bits are others; dx, the codes and the largest magnitude are the same.
template <int T> struct fp8_bwd_threads {
    static constexpr int rows = T == 96 ? 4 : 256 / T; // at a time; divides RUN
    static constexpr int block = T * rows, resident = 768 / block;
};

template <int T, int V>
__global__ void __launch_bounds__(fp8_bwd_threads<T>::block, fp8_bwd_threads<T>::resident)
    norm_bwd_fp8_kernel(mz_cu_layernorm_bwd_args a, mz_cu_quantize q, int lines) {
    wait_for_before();
    constexpr int rows = fp8_bwd_threads<T>::rows, block = fp8_bwd_threads<T>::block;
    extern __shared__ __align__(16) uint8_t tile[]; // and at last the columns' sums
    __shared__ float shared[rows][2][2][T / WARP];
    const float inverse = inverse_of(q);
    float sums[3][V][8] = {}; // dweight, dbias, linear_dbias
    uint32_t amax = 0;
    int turn = 0;
    for (int64_t row0 = static_cast<int64_t>(blockIdx.x) * lines; row0 < a.rows;
         row0 += static_cast<int64_t>(gridDim.x) * lines) {
        for (int first = 0; first < lines && row0 + first < q.pitch; first += rows) {
            const int line = first + row_in_block<T>();
            const int64_t row = row0 + line;
            if (row >= a.rows) {
                clear_line<T>(q, line, tile);
                continue;
            }
            float dx[V][8];
            norm_bwd_row<T, V, rows>(a, row, shared[row_in_block<T>()][turn], sums, dx);
            turn ^= 1;
#pragma unroll
            for (int v = 0; v < V; v++) {
                const int c = row_column<T>(v);
                if (c >= a.pitch)
                    continue;
                store8(a.dx.data, a.dx.dtype, row * a.pitch + c, dx[v]);
                if (a.low.data != nullptr)
                    store8(a.low.data, a.low.dtype, row * a.pitch + c, dx[v]);
                float z[8];
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    z[k] = round_to(dx[v][k], a.low.dtype);
                    sums[2][v][k] += z[k];
                }
                write_fp8(q, row, line, c, z, inverse, tile, amax);
            }
        }
        if (q.columnwise == nullptr)
            continue;
        __syncthreads();
        turn_lines<block>(q, row0, lines, tile);
        __syncthreads();
    }
    if (q.amax != nullptr)
        record_amax<block>(q.amax, amax);
    if (a.dweight != nullptr || a.dbias != nullptr || a.linear_dbias != nullptr)
        norm_bwd_sums<T, V, rows>(sums, a.linear_dbias != nullptr ? 3 : 2, a.pitch, reinterpret_cast<float4 *>(tile),
                                  a.partial + static_cast<int64_t>(blockIdx.x) * 3 * a.pitch);
}

// --- launches ------------------------------------------------------------------------------------------------------
extern "C" bool mz_cu_norm_fp8_fits(int64_t rows, int64_t width) {
    return rows > 0 && width > 0 && width % 16 == 0 && width <= WIDTH_MAX;
}

// Returns the lines of a block, fewer if there were not a block for each multiprocessor otherwise.
static int lines_of(int64_t rows, int sms) {
    return rows / LINES >= sms ? LINES : RUN;
}

extern "C" cudaError_t mz_cu_norm_fp8(cudaStream_t stream, const mz_cu_layernorm_args *a, const mz_cu_quantize *q,
                                      int sms) {
    const int lines = lines_of(a->rows, sms);
    const size_t bytes = q->columnwise != nullptr ? static_cast<size_t>(tile_bytes(lines, a->pitch)) : 0;
    const unsigned blocks = static_cast<unsigned>((a->rows + lines - 1) / lines);
#define LAUNCH(V)                                                                                                      \
    launch_dependent(stream, norm_fp8_kernel<WARP, V>, blocks, fp8_threads<WARP>::block, bytes, *a, *q, lines)
    return a->pitch <= 256 ? LAUNCH(1) : a->pitch <= 512 ? LAUNCH(2) : a->pitch <= 768 ? LAUNCH(3) : LAUNCH(4);
#undef LAUNCH
}

// No more blocks than layernorm_bwd's parts, whose workspace they have.
static int blocks_of(const mz_cu_layernorm_bwd_args *a, int lines, int resident, int sms) {
    const int64_t groups = (a->rows + lines - 1) / lines, limit = static_cast<int64_t>(sms) * resident;
    const int64_t blocks = groups < limit ? groups : limit;
    return blocks < a->parts ? static_cast<int>(blocks) : a->parts;
}

template <int T>
static cudaError_t launch_bwd(cudaStream_t stream, const mz_cu_layernorm_bwd_args *a, const mz_cu_quantize *q,
                              int lines, int sms, int *blocks) {
    constexpr int rows = fp8_bwd_threads<T>::rows;
    static_assert(rows > 1 && rows * 3 * 4 * T * 8 <= 40 << 10, "a block's sums are in what it has without a word");
    const int tile = q->columnwise != nullptr ? tile_bytes(lines, a->pitch) : 0, sums = rows * 3 * 4 * a->pitch;
    *blocks = blocks_of(a, lines, fp8_bwd_threads<T>::resident, sms);
    return launch_dependent(stream, norm_bwd_fp8_kernel<T, 1>, static_cast<unsigned>(*blocks),
                            fp8_bwd_threads<T>::block, static_cast<size_t>(sums > tile ? sums : tile), *a, *q, lines);
}

extern "C" cudaError_t mz_cu_norm_bwd_fp8(cudaStream_t stream, const mz_cu_layernorm_bwd_args *a,
                                          const mz_cu_quantize *q, int sms) {
    const int lines = lines_of(a->rows, sms);
    int blocks = 0;
    const cudaError_t error = a->pitch <= 256   ? launch_bwd<32>(stream, a, q, lines, sms, &blocks)
                              : a->pitch <= 512 ? launch_bwd<64>(stream, a, q, lines, sms, &blocks)
                              : a->pitch <= 768 ? launch_bwd<96>(stream, a, q, lines, sms, &blocks)
                                                : launch_bwd<128>(stream, a, q, lines, sms, &blocks);
    if (error != cudaSuccess || (a->dweight == nullptr && a->dbias == nullptr && a->linear_dbias == nullptr))
        return error;
    return mz_cu_norm_columns(stream, a, blocks);
}
