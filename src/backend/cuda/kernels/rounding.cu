// Finds what formats make of a tensor's numbers, in backend/inspect.h's order of sums. A block brings a tile to shared
// memory once and rounds it to every format from there; a thread has 32 neighbours of a run. Three launches: largest
// magnitudes, tiles, and the sums of tiles.
#include "host.cuh"
#include "layout.cuh"
#include "vec.cuh"

extern "C" {
#include "backend/inspect.h"
}

// LONG numbers of SHORT runs; EACH numbers of a run are one thread's; a row of the tile takes PITCH floats, so that
// neither rows nor columns meet in one bank.
enum {
    LONG = 128,
    SHORT = 32,
    EACH = 32,
    THREADS = LONG * SHORT / EACH,
    GROUPS = LONG / EACH,
    OCTET = 8,
    CODES = MZ_SCALE_CODES,
    BLOCKS = 8, // a multiprocessor's
    LANES = 256
};

struct rounding {
    mz_cu_array x; // [rows, columns]
    mz_layout layout;
    int64_t rows, columns, tiles;
    int n, via;
    bool columnwise;
    mz_rounding_form form[MZ_ROUNDING_FORMATS];
    mz_rounding_sums *found; // [n]
    float *rounded;          // [rows, columns] or NULL
    double *partial;         // [n, 2, tiles]
    int32_t *amax;           // [squares]
};

__device__ __forceinline__ float number_at(const rounding &a, int64_t row, int64_t column) {
    return round_to(load1(a.x.data, a.x.dtype, layout_index(a.layout, row * a.columns + column)), a.via);
}

__device__ __forceinline__ void add_count(int64_t *to, int64_t n) {
    if (n > 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(to), static_cast<unsigned long long>(n));
}

__device__ __forceinline__ void count_scale(mz_rounding_sums *found, const mz_rounding_form &form, int32_t amax) {
    if (amax > 0 && amax < MZ_FLOAT_INFINITY)
        add_count(&found->scales[mz_scale_code(form.rule, amax, form.small.largest, 1)], 1);
}

// --- the largest magnitudes of the tensor and of squares of LONG x LONG numbers
// ---------------------------------------
__global__ void __launch_bounds__(LANES) squares_kernel(rounding a) {
    __shared__ int32_t most[LANES];
    const int64_t across = (a.columns + LONG - 1) / LONG;
    const int64_t row0 = blockIdx.x / across * LONG, column = blockIdx.x % across * LONG + threadIdx.x % LONG;
    int32_t amax = 0;
    for (int r = threadIdx.x / LONG; r < LONG; r += LANES / LONG)
        if (row0 + r < a.rows && column < a.columns)
            amax = max(amax, __float_as_int(number_at(a, row0 + r, column)) & MZ_FLOAT_MAGNITUDE);
    most[threadIdx.x] = amax;
    for (int half = LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < half)
            most[threadIdx.x] = max(most[threadIdx.x], most[threadIdx.x + half]);
    }
    if (threadIdx.x != 0)
        return;
    a.amax[blockIdx.x] = most[0];
    for (int f = 0; f < a.n; f++) {
        atomicMax(&a.found[f].amax, mz_magnitude_of_one_nan(most[0]));
        if (a.form[f].tile)
            count_scale(&a.found[f], a.form[f], most[0]);
    }
}

// --- tiles -----------------------------------------------------------------------------------------------------------
struct shared_tile {
    float x[LONG * SHORT + LONG];
    double sums[2][THREADS];
    int32_t amax[THREADS];
};

// Holds a block's counts of each format in all of its tiles.
struct shared_counts {
    int32_t scales[MZ_ROUNDING_FORMATS][CODES];
    int32_t counts[MZ_ROUNDING_FORMATS][4]; // numbers that are not 0, not finite, underflow, saturate
};

__device__ __forceinline__ float *place(shared_tile &t, bool down, int row, int column) {
    return &t.x[down ? row * (SHORT + 1) + column : row * (LONG + 1) + column];
}

struct tally {
    int nonzero, not_finite, underflow, saturated;
};

// Sums of a thread: of a run along a row OCTET, of one down a column one.
struct thread_sums {
    double squares[OCTET], errors[OCTET];
};

// `count` neighbours of a run, from number `first` of this thread's, that share a scale.
template <int COUNT>
__device__ __forceinline__ void
round_block(const rounding &a, const mz_rounding_form &form, bool down, const float v[EACH], int first, int32_t amax,
            bool own, float tensor, int inside, int32_t *scales, tally &count, thread_sums &sums, float *rounded) {
    const mz_scale_rule rule = form.rule;
    const mz_small_form small = form.small;
    const int code = mz_scale_code(rule, amax, small.largest, tensor);
    const float scale = mz_scale_of_code(rule, code, tensor), inverse = scale == 0 ? 0 : __fdiv_rn(1.0f, scale);
    const float limit = __fmul_rn(mz_bits_float(small.largest), scale);
    if (own && amax > 0 && amax < MZ_FLOAT_INFINITY && scale > 0)
        atomicAdd(&scales[code], 1);
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        const int i = first + k;
        float x = v[i], q = 0;
        if (!isfinite(x) || isnan(scale)) {
            count.not_finite += i < inside;
            x = 0;
        } else {
            q = __fmul_rn(mz_small_nearest(__fmul_rn(x, inverse), small), scale);
        }
        const double error = static_cast<double>(__fsub_rn(q, x)), wide = static_cast<double>(x);
        count.nonzero += x != 0;
        count.underflow += x != 0 && q == 0;
        count.saturated += fabsf(x) > limit;
        const int lane = down ? 0 : i % OCTET;
        sums.squares[lane] = __fma_rn(wide, wide, sums.squares[lane]); // the product is exact
        sums.errors[lane] = __fma_rn(error, error, sums.errors[lane]);
        if (rounded != nullptr && i < inside)
            rounded[i * (down ? a.columns : 1)] = q;
    }
}

// The second half of a warp's numbers added to the first until one is left, in lane 0.
__device__ __forceinline__ double halve(double sum) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        sum = __dadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, half));
    return sum;
}

// Sums of a run's threads to shared memory: halved over the rows of the tile, or one for each segment and column.
template <bool DOWN> __device__ __forceinline__ void write_sums(double *to, const double sums[OCTET]) {
    const int run = static_cast<int>(threadIdx.x) % SHORT, group = static_cast<int>(threadIdx.x) / SHORT;
    if (DOWN) {
        to[group * SHORT + run] = sums[0];
    } else {
#pragma unroll
        for (int k = 0; k < OCTET; k++) {
            const double sum = halve(sums[k]);
            if (run == 0)
                to[group * OCTET + k] = sum;
        }
    }
}

// The first warp calls it.
template <bool DOWN> __device__ __forceinline__ double tile_sum(const double *sums) {
    const int lane = static_cast<int>(threadIdx.x);
    double sum = sums[lane];
    if (DOWN)
        sum = __dadd_rn(__dadd_rn(sum, sums[2 * SHORT + lane]), __dadd_rn(sums[SHORT + lane], sums[3 * SHORT + lane]));
    return halve(sum);
}

__device__ __forceinline__ void add_to_block(int32_t *to, int n) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        n += __shfl_down_sync(0xFFFFFFFFu, n, half);
    if (threadIdx.x % 32 == 0 && n > 0)
        atomicAdd(to, n);
}

template <bool DOWN>
__device__ __forceinline__ void round_tile(const rounding &a, int64_t tile, shared_tile &t, shared_counts &block) {
    constexpr int wide = DOWN ? SHORT : LONG, high = DOWN ? LONG : SHORT;
    const int tid = static_cast<int>(threadIdx.x), run = tid % SHORT, group = tid / SHORT;
    const int64_t across = (a.columns + wide - 1) / wide;
    const int64_t row0 = tile / across * high, column0 = tile % across * wide;
    for (int i = tid; i < LONG * SHORT; i += THREADS) {
        const int row = i / wide, column = i % wide;
        *place(t, DOWN, row, column) =
            row0 + row < a.rows && column0 + column < a.columns ? number_at(a, row0 + row, column0 + column) : 0;
    }
    __syncthreads();
    float v[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        v[i] = DOWN ? *place(t, true, group * EACH + i, run) : *place(t, false, run, group * EACH + i);
    // This thread's first number in the matrix, and how many of its numbers are in it.
    const int64_t row = row0 + (DOWN ? group * EACH : run), column = column0 + (DOWN ? run : group * EACH);
    const int64_t left = DOWN ? a.rows - row : a.columns - column;
    const bool there = row < a.rows && column < a.columns;
    const int inside = there ? static_cast<int>(min(left, static_cast<int64_t>(EACH))) : 0;
    const int64_t square = row0 / LONG * ((a.columns + LONG - 1) / LONG) + column0 / LONG;
    int32_t half[2] = {0, 0}; // largest magnitudes of 16 numbers
#pragma unroll
    for (int i = 0; i < EACH; i++)
        half[i / 16] = max(half[i / 16], __float_as_int(v[i]) & MZ_FLOAT_MAGNITUDE);
    t.amax[tid] = max(half[0], half[1]);
    for (int f = 0; f < a.n; f++) {
        const mz_rounding_form &form = a.form[f];
        const mz_rounding_sums *found = a.found + f;
        int32_t *scales = block.scales[f], *counted = block.counts[f];
        float *rounded = f == 0 && a.rounded != nullptr ? a.rounded + row * a.columns + column : nullptr;
        thread_sums sums = {};
        tally count = {};
        __syncthreads();
        const bool given = form.whole || form.tile;
        if (form.block == 16) {
            const float tensor = mz_scale_of_tensor(found->amax);
            round_block<16>(a, form, DOWN, v, 0, half[0], true, tensor, inside, scales, count, sums, rounded);
            round_block<16>(a, form, DOWN, v, 16, half[1], true, tensor, inside, scales, count, sums, rounded);
        } else {
            int32_t amax = t.amax[tid];
            if (form.whole)
                amax = found->amax;
            else if (form.tile)
                amax = a.amax[square];
            else if (form.block == LONG)
                for (int g = 0; g < GROUPS; g++)
                    amax = max(amax, t.amax[g * SHORT + run]);
            // The first of the threads that share a scale counts it.
            const bool counts = !given && (form.block == EACH || group == 0);
            round_block<EACH>(a, form, DOWN, v, 0, amax, counts, 1, inside, scales, count, sums, rounded);
        }
        write_sums<DOWN>(t.sums[0], sums.squares);
        write_sums<DOWN>(t.sums[1], sums.errors);
        add_to_block(&counted[0], count.nonzero);
        add_to_block(&counted[1], count.not_finite);
        add_to_block(&counted[2], count.underflow);
        add_to_block(&counted[3], count.saturated);
        __syncthreads();
        if (tid < 32) {
            const double squares = tile_sum<DOWN>(t.sums[0]), errors = tile_sum<DOWN>(t.sums[1]);
            if (tid == 0) {
                a.partial[2 * f * a.tiles + tile] = squares;
                a.partial[(2 * f + 1) * a.tiles + tile] = errors;
            }
        }
        __syncthreads();
    }
}

// A block takes every gridDim-th tile, and adds its counts to those of the tensor once.
template <bool DOWN> __global__ void __launch_bounds__(THREADS) tiles_kernel(rounding a) {
    __shared__ shared_tile t;
    __shared__ shared_counts block;
    const int tid = static_cast<int>(threadIdx.x);
    for (int f = 0; f < a.n; f++) {
        for (int c = tid; c < CODES; c += THREADS)
            block.scales[f][c] = 0;
        if (tid < 4)
            block.counts[f][tid] = 0;
    }
    for (int64_t tile = blockIdx.x; tile < a.tiles; tile += gridDim.x)
        round_tile<DOWN>(a, tile, t, block);
    __syncthreads();
    for (int f = 0; f < a.n; f++) {
        for (int c = tid; c < CODES; c += THREADS)
            add_count(&a.found[f].scales[c], block.scales[f][c]);
        int64_t *const totals[] = {&a.found[f].nonzero, &a.found[f].not_finite, &a.found[f].underflow,
                                   &a.found[f].saturated};
        if (tid < 4)
            add_count(totals[tid], block.counts[f][tid]);
    }
}

// --- the sums of tiles: a block for each format
// ------------------------------------------------------------------------
__global__ void __launch_bounds__(LANES) finish_kernel(rounding a) {
    __shared__ double sums[2][LANES];
    const int f = static_cast<int>(blockIdx.x), tid = static_cast<int>(threadIdx.x);
    for (int s = 0; s < 2; s++) {
        double sum = 0;
        for (int64_t i = tid; i < a.tiles; i += LANES)
            sum = __dadd_rn(sum, a.partial[(2 * f + s) * a.tiles + i]);
        sums[s][tid] = sum;
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        for (int s = 0; s < 2 && tid < half; s++)
            sums[s][tid] = __dadd_rn(sums[s][tid], sums[s][tid + half]);
    }
    if (tid != 0)
        return;
    a.found[f].squares = sums[0][0];
    a.found[f].error = sums[1][0];
    if (a.form[f].whole)
        count_scale(&a.found[f], a.form[f], a.found[f].amax);
}

// --- host ------------------------------------------------------------------------------------------------------------
static int64_t pieces(int64_t n, int64_t each) {
    return (n + each - 1) / each;
}

// Returns the bytes of the workspace.
static size_t rounding_of(const mz_call *call, rounding *a) {
    const mz_rounding_attrs *formats = call->attrs.rounding;
    const mz_tensor *x = mz_in(call, rounding, x);
    a->x = mz_cuda_array(x);
    a->layout = mz_cuda_layout(x);
    a->rows = mz_shape_rows(&x->shape);
    a->columns = x->shape.dim[x->shape.rank - 1];
    a->tiles =
        pieces(a->rows, formats->columnwise ? LONG : SHORT) * pieces(a->columns, formats->columnwise ? SHORT : LONG);
    a->n = formats->n;
    a->via = static_cast<int>(formats->via);
    a->columnwise = formats->columnwise;
    for (int f = 0; f < a->n; f++)
        a->form[f] = mz_rounding_form_of(&formats->how[f]);
    a->found = data_of<mz_rounding_sums>(mz_out(call, rounding, found));
    a->rounded = data_of<float>(mz_out(call, rounding, rounded));
    const size_t partial = static_cast<size_t>(2 * a->n * a->tiles) * sizeof(double);
    a->partial = static_cast<double *>(call->workspace);
    a->amax = reinterpret_cast<int32_t *>(static_cast<char *>(call->workspace) + partial);
    return partial + static_cast<size_t>(pieces(a->rows, LONG) * pieces(a->columns, LONG)) * sizeof *a->amax;
}

static void launch_rounding(const mz_cuda_device *cuda, const mz_call *call) {
    rounding a;
    (void)rounding_of(call, &a);
    (void)cudaMemsetAsync(a.found, 0, static_cast<size_t>(a.n) * sizeof *a.found, cuda->stream);
    if (a.tiles == 0)
        return;
    squares_kernel<<<blocks_of(a.rows, LONG) * blocks_of(a.columns, LONG), LANES, 0, cuda->stream>>>(a);
    auto *kernel = a.columnwise ? tiles_kernel<true> : tiles_kernel<false>;
    const int64_t most = static_cast<int64_t>(cuda->sms) * BLOCKS;
    kernel<<<static_cast<unsigned>(a.tiles < most ? a.tiles : most), THREADS, 0, cuda->stream>>>(a);
    finish_kernel<<<static_cast<unsigned>(a.n), LANES, 0, cuda->stream>>>(a);
}

static const char *rounding_prepare(mezzo_device *, const mz_call *call, mz_prepared *out) {
    const char *reason = mz_cuda_storages(call, "a", "uf");
    rounding a;
    if (reason == NULL)
        reason = mz_cuda_has_layout(mz_in(call, rounding, x));
    if (reason == NULL)
        out->workspace = rounding_of(call, &a);
    return reason;
}
MZ_CUDA_KERNEL(rounding, launch_rounding, rounding_prepare)
