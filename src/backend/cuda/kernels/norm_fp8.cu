// Fuses norms with the rounding to 8 bits after them, forward and backward: a result goes from registers to its
// codes and is not read again. A block takes `lines` rows, whose codes wait in shared memory to be turned there, and
// each row is normalised as layernorm.cu does, by the same sums in the same order.
#include "host.cuh"
#include "pdl_launch.cuh"
#include "fp8_pack.cuh"
#include "norm.cuh"
#include "quantize.cuh"

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
    const uint2 fp8 = to_fp8(z, inverse, q.dtype == MEZZO_F8E4M3, amax);
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
    norm_fp8_kernel(norm_args a, mz_cu_quantize q, int lines) {
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
                store8(a.y, row * a.pitch + c, y);
            for_each<8>([&](int k) { y[k] = round_to(y[k], a.y.dtype); });
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
    norm_bwd_fp8_kernel(norm_bwd_args a, mz_cu_quantize q, int lines) {
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
static bool fits_registers(int64_t rows, int64_t width) {
    return rows > 0 && width > 0 && width % 16 == 0 && width <= WIDTH_MAX;
}

// Returns the lines of a block, fewer if there were not a block for each multiprocessor otherwise.
static int lines_of(int64_t rows, int sms) {
    return rows / LINES >= sms ? LINES : RUN;
}

// layernorm, and quantize of y, which has a dtype and may have no data: then it is not stored. q: x is not inspected,
// no act in front, no sums; the scale is known. Rows have no padding.
static void norm_fp8(const mz_cuda_device *cuda, const norm_args &a, const mz_cu_quantize &q) {
    const int lines = lines_of(a.rows, cuda->sms);
    const size_t bytes = q.columnwise != nullptr ? static_cast<size_t>(tile_bytes(lines, a.pitch)) : 0;
    for_row_holding<WARP, 1, WARP, 2, WARP, 3, WARP, 4>(a.pitch, [&]<int T, int V>() {
        launch_dependent(cuda->stream, norm_fp8_kernel<T, V>, blocks_of(a.rows, lines), fp8_threads<T>::block, bytes, a,
                         q, lines);
    });
}

// No more blocks than layernorm_bwd's parts, whose workspace they have.
template <int T> static int launch_bwd(const mz_cuda_device *cuda, const norm_bwd_args &a, const mz_cu_quantize &q) {
    constexpr int rows = fp8_bwd_threads<T>::rows;
    static_assert(rows > 1 && rows * 3 * 4 * T * 8 <= 40 << 10, "a block's sums are in what it has without a word");
    const int lines = lines_of(a.rows, cuda->sms);
    const int64_t groups = (a.rows + lines - 1) / lines;
    const int64_t limit = static_cast<int64_t>(cuda->sms) * fp8_bwd_threads<T>::resident;
    const int64_t most = groups < limit ? groups : limit;
    const int tile = q.columnwise != nullptr ? tile_bytes(lines, a.pitch) : 0, sums = rows * 3 * 4 * a.pitch;
    const int blocks = most < a.parts ? static_cast<int>(most) : a.parts;
    launch_dependent(cuda->stream, norm_bwd_fp8_kernel<T, 1>, static_cast<unsigned>(blocks), fp8_bwd_threads<T>::block,
                     static_cast<size_t>(sums > tile ? sums : tile), a, q, lines);
    return blocks;
}

// layernorm_bwd, and quantize of low, likewise. linear_dbias: column sums of low, of whichever of the two asks for
// them.
static void norm_bwd_fp8(const mz_cuda_device *cuda, const norm_bwd_args &a, const mz_cu_quantize &q) {
    int blocks = 0;
    for_row_holding<32, 1, 64, 1, 96, 1, 128, 1>(a.pitch, [&]<int T, int>() { blocks = launch_bwd<T>(cuda, a, q); });
    if (a.dweight != nullptr || a.dbias != nullptr || a.linear_dbias != nullptr)
        norm_columns(cuda->stream, a, blocks);
}

// --- which calls are fused -----------------------------------------------------------------------------------------
// A call is fused with the quantize of its result, so that no kernel reads the result again, and none writes it where
// no other call reads it.
static bool is_norm(mz_op op) {
    return op == MZ_OP_layernorm || op == MZ_OP_rmsnorm;
}

static bool is_norm_bwd(mz_op op) {
    return op == MZ_OP_layernorm_bwd || op == MZ_OP_rmsnorm_bwd;
}

static bool is_move(mz_op op) {
    return op == MZ_OP_dispatch || op == MZ_OP_cast;
}

// Returns what of the first call's may be rounded at once.
static const mz_tensor *result(const mz_call *first) {
    if (is_norm(first->op) || is_move(first->op))
        return mz_output(first, 0);
    return mz_output(first, first->op == MZ_OP_layernorm_bwd ? MZ_OUT(layernorm_bwd, low) : MZ_OUT(rmsnorm_bwd, low));
}

// quantize runs over padding as if it were data: its shapes are what is stored.
static bool same_storage(const mz_tensor *x, const mz_tensor *in) {
    const mz_shape stored = mz_stored_shape(&x->shape, &x->storage);
    return mz_shape_equal(&stored, &in->shape);
}

bool mz_cuda_only_rounds(const mz_call *quantize, const mz_tensor *x) {
    const mz_tensor *y = mz_output(quantize, MZ_OUT(quantize, y)),
                    *columnwise = mz_output(quantize, MZ_OUT(quantize, columnwise));
    const mz_tensor *any = y != NULL ? y : columnwise, *in = mz_in(quantize, quantize, x);
    return quantize->op == MZ_OP_quantize && any != NULL && any->scaling == MZ_SCALING_TENSOR &&
           mz_output(quantize, MZ_OUT(quantize, scales)) != NULL && quantize->attrs.act == MZ_ACT_NONE &&
           mz_output(quantize, MZ_OUT(quantize, act_out)) == NULL && x != NULL && x->dtype == in->dtype &&
           mz_cuda_float(x) && mz_storage_is_rows(&x->shape, &x->storage) && same_storage(x, in);
}

// The kernel that moves rows: they are FP32 or BF16 without padding, and become BF16.
static bool moves(const mz_call *move) {
    const mz_tensor *x = mz_in(move, cast, x), *y = mz_out(move, cast, y); // dispatch has these too
    return (x->dtype == MEZZO_F32 || x->dtype == MEZZO_BF16) && y->dtype == MEZZO_BF16 && !x->storage.padded &&
           x->scaling == MZ_SCALING_NONE;
}

// Before tensors have addresses.
static bool may_round_result(const mz_call *first, const mz_call *second) {
    const bool any = is_norm(first->op) || is_norm_bwd(first->op) || (is_move(first->op) && moves(first));
    if (!any || !mz_cuda_only_rounds(second, result(first)))
        return false;
    const mz_shape *shape = &mz_in(second, quantize, x)->shape;
    const int64_t width = shape->rank > 0 ? shape->dim[shape->rank - 1] : 1;
    const bool sums = mz_output(second, MZ_OUT(quantize, dbias)) != NULL;
    const bool own = first->op == MZ_OP_layernorm_bwd && mz_output(first, MZ_OUT(layernorm_bwd, linear_dbias)) != NULL;
    return (is_norm_bwd(first->op) ? !sums || !own : !sums) &&
           fits_registers(mz_shape_count(shape) / (width > 0 ? width : 1), width);
}

bool mz_cuda_may_fuse(const mz_call *first, const mz_call *second) {
    return first->op == MZ_OP_cross_entropy_dx ? mz_cuda_may_round_gradient(first, second)
                                               : may_round_result(first, second);
}

// --- the pieces ----------------------------------------------------------------------------------------------------
// A scale that is found in what the first call writes, and gradients of which one is added to and the other is not, are
// for the two of them in turn.
static bool in_turn(const mz_call *first, const mz_call *second) {
    const bool both = is_norm_bwd(first->op) && mz_output(second, MZ_OUT(quantize, dbias)) != NULL;
    return second->attrs.measure || (both && first->attrs.accumulate != second->attrs.accumulate);
}

static mezzo_status run_in_turn(mezzo_device *device, const mz_call *first, const mz_call *second) {
    const mz_kernel *kernel = first->op == MZ_OP_dispatch ? &mz_cuda_dispatch
                              : first->op == MZ_OP_cast   ? &mz_cuda_cast
                              : is_norm(first->op)        ? &mz_cuda_layernorm // rmsnorm's are the same
                                                          : &mz_cuda_layernorm_bwd;
    MEZZO_TRY(kernel->run(device, first));
    return mz_cuda_quantize.run(device, second);
}

template <bool is_private>
static mezzo_status run_fused(mezzo_device *device, const mz_call *first, const mz_call *second) {
    mz_cuda_device *cuda = mz_cuda(device);
    if (in_turn(first, second))
        return run_in_turn(device, first, second);
    mz_cu_quantize q = quantize_args_of(second);
    if (is_move(first->op)) {
        const bool orders = first->op == MZ_OP_dispatch;
        q.x = mz_cuda_array(mz_in(first, cast, x));
        q.moved = true;
        q.order = orders ? data_of<int32_t>(mz_in(first, dispatch, order)) : NULL;
        q.weights = orders ? data_of<float>(mz_in(first, dispatch, weights)) : NULL;
        q.top_k = first->attrs.top_k;
        MZ_CUDA_TRY(quantize_run(cuda->stream, q));
        return MEZZO_OK;
    }
    if (is_norm(first->op)) {
        norm_args norm = norm_args_of(first);
        norm.y.data = is_private ? NULL : norm.y.data;
        norm_fp8(cuda, norm, q);
        MZ_CUDA_TRY(cudaGetLastError());
        return MEZZO_OK;
    }
    const mz_tensor *sums = mz_output(second, MZ_OUT(quantize, dbias));
    norm_bwd_args norm = norm_bwd_args_of(device, first);
    norm.low.data = is_private ? NULL : norm.low.data;
    norm.linear_dbias = sums != NULL ? data_of<float>(sums) : norm.linear_dbias;
    norm_bwd_fp8(cuda, norm, q);
    MZ_CUDA_TRY(cudaGetLastError());
    return MEZZO_OK;
}

static const mz_fused_kernel after_norm[2] = {{"norm_quantize__cuda", run_fused<false>, nullptr},
                                              {"norm_fp8__cuda", run_fused<true>, nullptr}},
                             after_norm_bwd[2] = {{"norm_bwd_quantize__cuda", run_fused<false>, nullptr},
                                                  {"norm_bwd_fp8__cuda", run_fused<true>, nullptr}},
                             dispatch = {"dispatch_fp8__cuda", run_fused<true>, nullptr},
                             cast = {"cast_fp8__cuda", run_fused<true>, nullptr};

const mz_fused_kernel *mz_cuda_fuse_quantize(const mz_call *first, const mz_call *second, bool is_private) {
    if (!may_round_result(first, second) || result(first)->data != mz_in(second, quantize, x)->data ||
        mz_cuda_in_the_way(first, second))
        return NULL;
    if (is_move(first->op)) // which others need is not written
        return !is_private ? NULL : first->op == MZ_OP_cast ? &cast : &dispatch;
    return is_norm(first->op) ? &after_norm[is_private] : &after_norm_bwd[is_private];
}
