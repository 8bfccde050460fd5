// Gathers rows of a table, and sums the gradient of the table: every used row's sum of gradients, in the order of
// positions, without float atomics.
#include "host.cuh"
#include "rows.cuh"

// Loads eight columns from c on; columns at `width` and past it are 0.
__device__ __forceinline__ void load_columns(mz_cu_array a, int64_t start, int c, int width, float x[8]) {
    if (width % 8 == 0 && c < width) {
        load8(a, start + c, x);
        return;
    }
    for_each<8>([&](int k) { x[k] = c + k < width ? load1(a, start + c + k) : 0; });
}

// --- forward -------------------------------------------------------------------------------------------------------
// A thread a vector of 8 columns; `vectors` of them a row. An id outside the table gives a row of NaN.
static void launch_embedding(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *in = mz_in(call, embedding, table), *tokens = mz_in(call, embedding, ids); // [V, C], [N]
    const mz_cu_array table = mz_cuda_array(in), y = mz_cuda_array(mz_out(call, embedding, y));
    const int32_t *ids = data_of<int32_t>(tokens);
    const int64_t rows = in->shape.dim[0];
    const int width = static_cast<int>(in->shape.dim[1]), vectors = (width + 7) / 8;
    launch_items(cuda, mz_shape_count(&tokens->shape) * vectors, [=] __device__(int64_t i) {
        const int64_t token = i / vectors;
        const int c = static_cast<int>(i - token * vectors) * 8, id = ids[token];
        float x[8] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
        if (id >= 0 && id < rows)
            load_columns(table, static_cast<int64_t>(id) * width, c, width, x);
        store_columns(y, token * width, c, width, x);
    });
}
MZ_CUDA_KERNEL(embedding, launch_embedding, storages<"ai", "a", narrow_input>)

// --- backward, few positions ---------------------------------------------------------------------------------------
struct embedding_bwd_args {
    mz_cu_array dy;     // [n, width]
    const int32_t *ids; // [n]
    float *dtable;      // [rows, width]
    void *workspace;    // embedding_bwd_workspace() bytes, 64-byte aligned
    int64_t n, rows;
    int width;
    bool accumulate;
};

// A warp takes one position and 256 columns. Where the position is its id's first it adds up all of the id's; else it
// has nothing to do. Every warp reads all ids, so this is for few.
enum { FEW = 1024, FEW_WARPS = 4 };

__global__ void __launch_bounds__(FEW_WARPS *WARP) embedding_bwd_few_kernel(embedding_bwd_args a) {
    int lane = threadIdx.x % WARP, c = (blockIdx.y * FEW_WARPS + threadIdx.x / WARP) * WARP * 8 + lane * 8;
    int n = static_cast<int>(a.n), first = blockIdx.x, id = a.ids[first];
    if (id < 0 || id >= a.rows || c - lane * 8 >= a.width)
        return;
    float sum[8] = {};
    for (int from = 0; from < n; from += WARP) {
        bool same = from + lane < n && a.ids[from + lane] == id;
        unsigned matches = __ballot_sync(0xFFFFFFFFu, same);
        while (matches != 0) {
            int at = from + __ffs(static_cast<int>(matches)) - 1;
            matches &= matches - 1;
            if (at < first)
                return;
            float x[8];
            load_columns(a.dy, static_cast<int64_t>(at) * a.width, c, a.width, x);
            for_each<8>([&](int k) { sum[k] += x[k]; });
        }
    }
    mz_cu_array out = {a.dtable, MEZZO_F32};
    int64_t row = static_cast<int64_t>(id) * a.width;
    if (a.accumulate) {
        float x[8];
        load_columns(out, row, c, a.width, x);
        for_each<8>([&](int k) { sum[k] += x[k]; });
    }
    store_columns(out, row, c, a.width, sum);
}

// --- backward, many positions --------------------------------------------------------------------------------------
// 1. (id, position) pairs are sorted by id, stably, 8 bits a pass (least significant first): histogram, then scatter.
// 2. Runs of one id are cut at multiples of 64. A warp takes one stretch and 256 columns: a run that is one stretch is
// written at once;
//    else its first stretch's sum goes to `tail` of its piece of 64 pairs, the others' to `head` of theirs.
// 3. Runs over several pieces: tail + the heads that follow, in order.
// Which terms are added together depends on the ids only.
enum { SORT_BLOCK = 256, SORT_ITEMS = 1024, SORT_WARPS = SORT_BLOCK / WARP, WARP_ITEMS = SORT_ITEMS / SORT_WARPS };
enum { ROUNDS = WARP_ITEMS / WARP, PIECE = 64, PIECE_WARPS = 4, AHEAD = 8 };

static __host__ __device__ int64_t pieces_of(int64_t n) {
    return (n + PIECE - 1) / PIECE;
}
static int64_t sort_blocks(int64_t n) {
    return (n + SORT_ITEMS - 1) / SORT_ITEMS;
}

// Ids outside the table sort last, as `rows`.
__device__ __forceinline__ int sort_key(const int32_t *keys, int64_t i, int64_t rows) {
    int key = keys[i];
    return key < 0 || key > rows ? static_cast<int>(rows) : key;
}

__global__ void __launch_bounds__(SORT_BLOCK)
    histogram_kernel(const int32_t *keys, int64_t n, int64_t rows, int shift, int *histogram) {
    __shared__ int count[SORT_BLOCK];
    count[threadIdx.x] = 0;
    __syncthreads();
    int64_t first = static_cast<int64_t>(blockIdx.x) * SORT_ITEMS;
#pragma unroll
    for (int k = 0; k < SORT_ITEMS / SORT_BLOCK; k++) {
        int64_t i = first + k * SORT_BLOCK + threadIdx.x;
        if (i < n)
            atomicAdd(&count[sort_key(keys, i, rows) >> shift & 255], 1);
    }
    __syncthreads();
    histogram[blockIdx.x * SORT_BLOCK + threadIdx.x] = count[threadIdx.x];
}

// positions NULL: the first pass, where an item's position is its index.
__global__ void __launch_bounds__(SORT_BLOCK)
    scatter_kernel(const int32_t *keys, const int32_t *positions, int64_t n, int64_t rows, int shift,
                   const int *histogram, int32_t *keys_out, int32_t *positions_out) {
    __shared__ int next[SORT_WARPS][SORT_BLOCK], warp_total[SORT_WARPS];
    int digit = threadIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int64_t first = static_cast<int64_t>(blockIdx.x) * SORT_ITEMS + warp * WARP_ITEMS;
    int key[ROUNDS], position[ROUNDS];
#pragma unroll
    for (int k = 0; k < ROUNDS; k++) {
        int64_t i = first + k * WARP + lane;
        key[k] = i < n ? sort_key(keys, i, rows) : 0;
        position[k] = i < n && positions != nullptr ? positions[i] : static_cast<int>(i);
    }
    for (int w = 0; w < SORT_WARPS; w++)
        next[w][digit] = 0;
    int total = 0, before = 0; // of this thread's digit: all blocks, the blocks before this one
#pragma unroll 8
    for (unsigned b = 0; b < gridDim.x; b++) {
        int here = histogram[b * SORT_BLOCK + digit];
        total += here;
        before += b < blockIdx.x ? here : 0;
    }
    int scan = warp_scan(total); // over the digits
    if (lane == WARP - 1)
        warp_total[warp] = scan;
    __syncthreads();
    for (int w = 0; w < warp; w++)
        scan += warp_total[w];
        // The warps' counts of this block's items.
#pragma unroll
    for (int k = 0; k < ROUNDS; k++)
        if (first + k * WARP + lane < n)
            atomicAdd(&next[warp][key[k] >> shift & 255], 1);
    __syncthreads();
    int at = scan - total + before;
    for (int w = 0; w < SORT_WARPS; w++) {
        int here = next[w][digit];
        next[w][digit] = at;
        at += here;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ROUNDS; k++) {
        int d = first + k * WARP + lane < n ? key[k] >> shift & 255 : -1;
        int place = take_place(next[warp], d);
        if (d >= 0) {
            keys_out[place] = key[k];
            positions_out[place] = position[k];
        }
    }
}

struct piece_args : embedding_bwd_args {
    const int32_t *keys, *positions; // sorted
    float *head, *tail;              // [pieces, width]
};

// dtable's row `id` (+)= sum
__device__ __forceinline__ void write_row(const piece_args &a, int id, int c, const float old[8], float sum[8]) {
    mz_cu_array out = {a.dtable, MEZZO_F32};
    if (a.accumulate)
        for_each<8>([&](int k) { sum[k] += old[k]; });
    store_columns(out, static_cast<int64_t>(id) * a.width, c, a.width, sum);
}

__device__ __forceinline__ void read_row(const piece_args &a, int id, int c, float old[8]) {
    mz_cu_array out = {a.dtable, MEZZO_F32};
    if (a.accumulate)
        load_columns(out, static_cast<int64_t>(id) * a.width, c, a.width, old);
}

// A warp for each sorted fuse_calls and 256 columns; those whose pair begins no stretch have nothing to do.
__global__ void __launch_bounds__(PIECE_WARPS *WARP) stretch_kernel(piece_args a) {
    int lane = threadIdx.x % WARP, c = (blockIdx.y * WARP + lane) * 8;
    int64_t first = static_cast<int64_t>(blockIdx.x) * PIECE_WARPS + threadIdx.x / WARP;
    if (first >= a.n)
        return;
    int64_t piece = first / PIECE, end = (piece + 1) * PIECE < a.n ? (piece + 1) * PIECE : a.n;
    int id = a.keys[first];
    bool follows = first > 0 && a.keys[first - 1] == id; // the run began before
    if (id >= a.rows || (follows && first % PIECE != 0))
        return;
    uint64_t same = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int64_t i = first + h * WARP + lane;
        same |= static_cast<uint64_t>(__ballot_sync(0xFFFFFFFFu, i < end && a.keys[i] == id)) << (h * WARP);
    }
    int count = ~same == 0 ? PIECE : __ffsll(static_cast<long long>(~same)) - 1;
    bool goes_on = first + count == end && end < a.n && a.keys[end] == id;
    float sum[8] = {}, old[8] = {};
    if (!follows && !goes_on)
        read_row(a, id, c, old); // on its way while the run is added up
    for (int from = 0; from < count; from += AHEAD) {
        float x[AHEAD][8];
#pragma unroll
        for (int e = 0; e < AHEAD; e++)
            if (from + e < count)
                load_columns(a.dy, static_cast<int64_t>(a.positions[first + from + e]) * a.width, c, a.width, x[e]);
#pragma unroll
        for (int e = 0; e < AHEAD; e++)
            if (from + e < count)
                for_each<8>([&](int k) { sum[k] += x[e][k]; });
    }
    mz_cu_array part = {follows ? a.head : a.tail, MEZZO_F32};
    if (follows || goes_on)
        store_columns(part, piece * a.width, c, a.width, sum);
    else
        write_row(a, id, c, old, sum);
}

// A warp for each piece and 256 columns; those whose last run does not begin in the piece and go on have nothing to do.
__global__ void __launch_bounds__(PIECE_WARPS *WARP) join_kernel(piece_args a) {
    int lane = threadIdx.x % WARP, c = (blockIdx.y * WARP + lane) * 8;
    int64_t piece = static_cast<int64_t>(blockIdx.x) * PIECE_WARPS + threadIdx.x / WARP, pieces = pieces_of(a.n);
    if (piece + 1 >= pieces)
        return;
    int64_t low = piece * PIECE;
    int id = a.keys[low + PIECE - 1];
    bool goes_on = a.keys[low + PIECE] == id, follows = low > 0 && a.keys[low] == id && a.keys[low - 1] == id;
    if (!goes_on || follows || id >= a.rows)
        return;
    mz_cu_array head = {a.head, MEZZO_F32}, tail = {a.tail, MEZZO_F32};
    float sum[8], old[8] = {};
    load_columns(tail, piece * a.width, c, a.width, sum);
    read_row(a, id, c, old);
    for (int64_t from = piece + 1; from < pieces; from += WARP) { // the pieces that begin with this run, 32 at a time
        bool same = from + lane < pieces && a.keys[(from + lane) * PIECE] == id;
        unsigned others = ~__ballot_sync(0xFFFFFFFFu, same);
        int count = others == 0 ? WARP : __ffs(static_cast<int>(others)) - 1;
#pragma unroll 8
        for (int p = 0; p < count; p++) {
            float x[8];
            load_columns(head, (from + p) * a.width, c, a.width, x);
            for_each<8>([&](int k) { sum[k] += x[k]; });
        }
        if (count < WARP)
            break;
    }
    write_row(a, id, c, old, sum);
}

static size_t aligned(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static size_t embedding_bwd_workspace(int64_t n, int width) {
    if (n <= FEW)
        return 0;
    return 4 * aligned(static_cast<size_t>(n) * 4) + aligned(static_cast<size_t>(sort_blocks(n)) * SORT_BLOCK * 4) +
           2 * aligned(static_cast<size_t>(pieces_of(n)) * static_cast<size_t>(width) * 4);
}

static void sum_sorted(cudaStream_t stream, const embedding_bwd_args &args, const int32_t *keys,
                       const int32_t *positions, char *workspace) {
    size_t part = aligned(static_cast<size_t>(pieces_of(args.n)) * static_cast<size_t>(args.width) * 4);
    const piece_args a = {args, keys, positions, reinterpret_cast<float *>(workspace),
                          reinterpret_cast<float *>(workspace + part)};
    unsigned slices = blocks_of(a.width, WARP * 8);
    dim3 stretches(blocks_of(a.n, PIECE_WARPS), slices);
    dim3 pieces(blocks_of(pieces_of(a.n), PIECE_WARPS), slices);
    stretch_kernel<<<stretches, PIECE_WARPS * WARP, 0, stream>>>(a);
    join_kernel<<<pieces, PIECE_WARPS * WARP, 0, stream>>>(a);
}

static void launch_embedding_bwd(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *ids = mz_in(call, embedding_bwd, ids), *dtable = mz_out(call, embedding_bwd, dtable);
    const embedding_bwd_args a = {.dy = mz_cuda_array(mz_in(call, embedding_bwd, dy)),
                                  .ids = data_of<int32_t>(ids),
                                  .dtable = data_of<float>(dtable),
                                  .workspace = call->workspace,
                                  .n = mz_shape_count(&ids->shape),
                                  .rows = dtable->shape.dim[0],
                                  .width = static_cast<int>(dtable->shape.dim[1]),
                                  .accumulate = call->attrs.accumulate};
    const cudaStream_t stream = cuda->stream;
    if (!a.accumulate)
        cudaMemsetAsync(a.dtable, 0, static_cast<size_t>(a.rows) * static_cast<size_t>(a.width) * sizeof(float),
                        stream);
    if (a.n == 0)
        return;
    if (a.n <= FEW) {
        dim3 grid(static_cast<unsigned>(a.n), blocks_of(a.width, WARP * 8 * FEW_WARPS));
        embedding_bwd_few_kernel<<<grid, FEW_WARPS * WARP, 0, stream>>>(a);
        return;
    }
    char *workspace = static_cast<char *>(a.workspace);
    size_t column = aligned(static_cast<size_t>(a.n) * 4);
    int32_t *pairs[2][2]; // [which][keys, positions]
    for (int i = 0; i < 4; i++, workspace += column)
        pairs[i / 2][i % 2] = reinterpret_cast<int32_t *>(workspace);
    int *histogram = reinterpret_cast<int *>(workspace);
    unsigned blocks = static_cast<unsigned>(sort_blocks(a.n));
    workspace += aligned(static_cast<size_t>(blocks) * SORT_BLOCK * 4);
    const int32_t *keys = a.ids, *positions = nullptr;
    int which = 0;
    for (int shift = 0; shift == 0 || a.rows >> shift != 0; shift += 8, which ^= 1) {
        histogram_kernel<<<blocks, SORT_BLOCK, 0, stream>>>(keys, a.n, a.rows, shift, histogram);
        scatter_kernel<<<blocks, SORT_BLOCK, 0, stream>>>(keys, positions, a.n, a.rows, shift, histogram,
                                                          pairs[which][0], pairs[which][1]);
        keys = pairs[which][0];
        positions = pairs[which][1];
    }
    sum_sorted(stream, a, keys, positions, workspace);
}

static const char *embedding_bwd_prepare(mezzo_device *, const mz_call *call, mz_prepared *out) {
    const char *reason = mz_cuda_storages(call, "ai", "f");
    if (reason != NULL)
        return reason;
    const int64_t n = mz_shape_count(&mz_in(call, embedding_bwd, ids)->shape);
    const mz_tensor *dtable = mz_out(call, embedding_bwd, dtable);
    if (n >= 1 << 30 || dtable->shape.dim[0] >= 1 << 30)
        return "2^30 positions or rows, or more";
    out->workspace = embedding_bwd_workspace(n, static_cast<int>(dtable->shape.dim[1]));
    return mz_cuda_narrow(dtable);
}
MZ_CUDA_KERNEL(embedding_bwd, launch_embedding_bwd, embedding_bwd_prepare)
