// Finds what formats make of a tensor's numbers, in backend/inspect.h's order of sums. A thread has 32 neighbours of a
// run in registers and rounds them to every format from there. Three launches: largest magnitudes, tiles, and the sums
// of tiles.
#include "host.cuh"
#include "layout.cuh"
#include "rows.cuh"

extern "C" {
#include "backend/inspect.h"
}

// LONG numbers of SHORT runs; EACH numbers of a run are one thread's.
enum {
    LONG = MZ_ROUNDING_LONG,
    SHORT = MZ_ROUNDING_SHORT,
    EACH = 32,
    THREADS = LONG * SHORT / EACH,
    WARPS = THREADS / 32,
    GROUPS = LONG / EACH,
    OCTET = 8,
    FORMATS = MZ_ROUNDING_FORMATS,
    CODES = MZ_SCALE_CODES,
    BLOCKS = 5, // a multiprocessor's
    LANES = MZ_ROUNDING_LANES
};

struct rounding {
    mz_cu_array x;       // [rows, columns]
    const uint16_t *low; // NULL, or the other halves of split masters, stored as x is
    mz_layout layout;
    int64_t pitch; // from a row to the next; 0: only the layout says where rows are
    bool eights;   // eight neighbours, from a multiple of eight on, are 16 or 32 aligned bytes
    int64_t rows, columns, tiles;
    int n, via; // via: F32 where nothing is rounded first
    bool columnwise;
    mz_rounding_form form[FORMATS];
    mz_rounding_sums *found; // [n]
    float *rounded;          // [rows, columns] or NULL
    double *partial;         // [n, 2, tiles]
    int32_t *amax;           // [squares]
};

// --- reading ---------------------------------------------------------------------------------------------------------
// update.h's mz_master_join.
__device__ __forceinline__ float join(float high, uint16_t low) {
    return __int_as_float(__float_as_int(high) + static_cast<int16_t>(low));
}

template <int N> __device__ __forceinline__ void narrow(const rounding &a, float v[N]) {
    if (a.via == MEZZO_F32)
        return;
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = round_to(v[i], a.via);
}

__device__ __forceinline__ float number_at(const rounding &a, int64_t row, int64_t column) {
    const int64_t i = a.pitch > 0 ? row * a.pitch + column : layout_index(a.layout, row * a.columns + column);
    float x = load1(a.x.data, a.x.dtype, i);
    if (a.low != nullptr)
        x = join(x, a.low[i]);
    narrow<1>(a, &x);
    return x;
}

// N neighbours of a row. All loads are under way before the first number is widened.
template <int N> __device__ __forceinline__ void read_eights(const rounding &a, int64_t first, float v[N]) {
    raw8 raw[N / OCTET];
#pragma unroll
    for (int k = 0; k < N / OCTET; k++)
        raw[k] = fetch8(a.x.data, a.x.dtype, first + k * OCTET);
#pragma unroll
    for (int k = 0; k < N / OCTET; k++)
        widen8(raw[k], a.x.dtype, v + k * OCTET);
    if (a.low == nullptr)
        return;
#pragma unroll
    for (int k = 0; k < N / OCTET; k++)
        raw[k].lo = *reinterpret_cast<const uint4 *>(a.low + first + k * OCTET);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint4 &four = raw[i / OCTET].lo;
        const uint32_t two = i % 8 < 2 ? four.x : i % 8 < 4 ? four.y : i % 8 < 6 ? four.z : four.w;
        v[i] = join(v[i], static_cast<uint16_t>(i % 2 == 0 ? two : two >> 16));
    }
}

// EACH numbers, `step` elements from one to the next, of which the first `inside` exist.
__device__ __forceinline__ void read_apart(const rounding &a, int64_t first, int64_t step, int inside, float v[EACH]) {
    uint16_t raw[EACH];
    if (a.x.dtype == MEZZO_F32) {
        const float *from = static_cast<const float *>(a.x.data) + first;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            v[i] = i < inside ? from[i * step] : 0;
        return;
    }
    const uint16_t *from = static_cast<const uint16_t *>(a.x.data) + first;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        raw[i] = i < inside ? from[i * step] : 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        v[i] = widen2(raw[i], a.x.dtype).x;
    if (a.low == nullptr)
        return;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        raw[i] = i < inside ? a.low[first + i * step] : 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        v[i] = join(v[i], raw[i]);
}

// A thread's numbers from (row, column) on, of which `inside` are in the matrix; zeros for the rest.
template <bool DOWN>
__device__ __forceinline__ void read(const rounding &a, int64_t row, int64_t column, int inside, float v[EACH]) {
    const int64_t first = row * a.pitch + column;
    if (a.pitch == 0) {
        for (int i = 0; i < EACH; i++)
            v[i] = i < inside ? number_at(a, row + (DOWN ? i : 0), column + (DOWN ? 0 : i)) : 0;
        return;
    }
    if (!DOWN && a.eights && inside == EACH)
        read_eights<EACH>(a, first, v);
    else
        read_apart(a, first, DOWN ? a.pitch : 1, inside, v);
    narrow<EACH>(a, v);
}

// --- the largest magnitudes of the tensor and of squares of LONG x LONG numbers --------------------------------------
__device__ __forceinline__ void add_count(int64_t *to, int64_t n) {
    if (n > 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(to), static_cast<unsigned long long>(n));
}

__device__ __forceinline__ void count_scale(mz_rounding_sums *found, const mz_rounding_form &form, int32_t amax) {
    if (amax > 0 && amax < MZ_FLOAT_INFINITY)
        add_count(&found->scales[mz_scale_code(form.rule, amax, form.small.largest, 1)], 1);
}

__device__ __forceinline__ int32_t larger_magnitude(int32_t amax, float x) {
    return max(amax, __float_as_int(x) & MZ_FLOAT_MAGNITUDE);
}

__global__ void __launch_bounds__(LANES) squares_kernel(rounding a) {
    const int tid = static_cast<int>(threadIdx.x);
    const int64_t across = (a.columns + LONG - 1) / LONG;
    const int64_t row0 = blockIdx.x / across * LONG, column0 = blockIdx.x % across * LONG;
    int32_t amax = 0;
    if (a.eights && row0 + LONG <= a.rows && column0 + LONG <= a.columns) {
        constexpr int threads = LONG / OCTET; // of a row
        const int64_t first = (row0 + tid / threads) * a.pitch + column0 + tid % threads * OCTET;
#pragma unroll
        for (int k = 0; k < LONG * threads / LANES; k++) {
            float v[OCTET];
            read_eights<OCTET>(a, first + k * (LANES / threads) * a.pitch, v);
            narrow<OCTET>(a, v);
#pragma unroll
            for (int i = 0; i < OCTET; i++)
                amax = larger_magnitude(amax, v[i]);
        }
    } else {
        const int64_t column = column0 + tid % LONG;
        for (int r = tid / LONG; r < LONG; r += LANES / LONG)
            if (row0 + r < a.rows && column < a.columns)
                amax = larger_magnitude(amax, number_at(a, row0 + r, column));
    }
    amax = block_merge<LANES>(amax, [](int32_t &most, int32_t other) { most = max(most, other); });
    if (tid != 0)
        return;
    a.amax[blockIdx.x] = amax;
    for (int f = 0; f < a.n; f++) {
        atomicMax(&a.found[f].amax, mz_magnitude_of_one_nan(amax));
        if (a.form[f].tile)
            count_scale(&a.found[f], a.form[f], amax);
    }
}

// --- tiles -----------------------------------------------------------------------------------------------------------
// Counts are those of all of the block's tiles; of numbers that are not 0 and not finite, that underflow and saturate.
struct shared_tile {
    double sums[2][FORMATS][THREADS]; // squares and errors
    int32_t scales[FORMATS][CODES], counts[FORMATS][4];
    int32_t amax[THREADS];
};

struct scale_of_block {
    float scale, inverse, limit;
};

// `own`: this thread counts the scale.
__device__ __forceinline__ scale_of_block scale_for(const mz_rounding_form &form, int32_t amax, float tensor, bool own,
                                                    int32_t *scales) {
    const int code = mz_scale_code(form.rule, amax, form.small.largest, tensor);
    const float scale = mz_scale_of_code(form.rule, code, tensor);
    if (own && amax > 0 && amax < MZ_FLOAT_INFINITY && scale > 0)
        atomicAdd(&scales[code], 1);
    return {scale, scale == 0 ? 0 : __fdiv_rn(1.0f, scale), __fmul_rn(mz_bits_float(form.small.largest), scale)};
}

// mz_small_nearest of a magnitude. Adding a power of two whose last bit is that of x in the format rounds x there.
__device__ __forceinline__ float nearest(float x, const mz_small_form f) {
    x = fminf(x, mz_bits_float(f.largest));
    const int32_t exponent = max(__float_as_int(x), f.least) & MZ_FLOAT_INFINITY;
    const float shift = __int_as_float(exponent + (f.drop << 23));
    return __fsub_rn(__fadd_rn(x, shift), shift);
}

// Sums and counts of a thread in a format. Of a run along a row it has OCTET sums, of one down a column one. Sums of
// squares, and numbers that are not 0, are the same in each format where all numbers of the tensor are finite.
struct thread_sums {
    double squares[OCTET], errors[OCTET];
    int nonzero, not_finite, underflow, saturated;
};

// COUNT neighbours of a run, from number FIRST of this thread's, that share a scale.
template <int FIRST, int COUNT, bool DOWN, bool FINITE>
__device__ __forceinline__ void round_block(const rounding &a, const mz_small_form small, scale_of_block s,
                                            const float v[EACH], int inside, thread_sums &sums, float *rounded) {
    const bool none = !FINITE && isnan(s.scale);
    if (none)
        s = {0, 0, 0};
#pragma unroll
    for (int i = FIRST; i < FIRST + COUNT; i++) {
        float x = v[i];
        if (!FINITE && (none || !isfinite(x))) {
            sums.not_finite += i < inside;
            x = 0;
        }
        const float q = __fmul_rn(nearest(__fmul_rn(fabsf(x), s.inverse), small), s.scale);
        const double error = static_cast<double>(__fsub_rn(q, fabsf(x)));
        const int lane = DOWN ? 0 : i % OCTET;
        sums.errors[lane] = __fma_rn(error, error, sums.errors[lane]); // the product is exact
        sums.underflow += q == 0;
        sums.saturated += fabsf(x) > s.limit;
        if (!FINITE) {
            const double wide = static_cast<double>(x);
            sums.squares[lane] = __fma_rn(wide, wide, sums.squares[lane]);
            sums.nonzero += x != 0;
        }
        if (rounded != nullptr && i < inside)
            rounded[i * (DOWN ? a.columns : 1)] = copysignf(q, x);
    }
}

// Half of the warp's numbers added to the other half until one is left, in lane 0.
__device__ __forceinline__ double halve(double sum) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        sum = __dadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, half));
    return sum;
}

// Each of OCTET sums halved over the warp; sum l arrives in lane 4·l. Two lanes that add to each other share the sums:
// each goes on with half of them.
__device__ __forceinline__ double halve_octet(double sums[OCTET], int lane) {
#pragma unroll
    for (int half = 16, n = OCTET / 2; n > 0; half /= 2, n /= 2) {
        const bool upper = lane & half;
#pragma unroll
        for (int k = 0; k < n; k++) {
            const double sent = upper ? sums[k] : sums[k + n], kept = upper ? sums[k + n] : sums[k];
            sums[k] = __dadd_rn(kept, __shfl_xor_sync(0xFFFFFFFFu, sent, half));
        }
    }
    const double sum = __dadd_rn(sums[0], __shfl_xor_sync(0xFFFFFFFFu, sums[0], 2));
    return __dadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, 1));
}

// A warp's sums to shared memory: halved over the rows of the tile, or one for each segment and column.
template <bool DOWN> __device__ __forceinline__ void write_sums(double *to, double sums[OCTET]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, group = static_cast<int>(threadIdx.x) / 32;
    if (DOWN) {
        to[group * SHORT + lane] = sums[0];
        return;
    }
    const double sum = halve_octet(sums, lane);
    if (lane % 4 == 0)
        to[group * OCTET + lane / 4] = sum;
}

// A warp's sum of what write_sums wrote.
template <bool DOWN> __device__ __forceinline__ double tile_sum(const double *sums) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    double sum = sums[lane];
    if (DOWN)
        sum = __dadd_rn(__dadd_rn(sum, sums[2 * SHORT + lane]), __dadd_rn(sums[SHORT + lane], sums[3 * SHORT + lane]));
    return halve(sum);
}

// Two counts of a thread, at most EACH each, to the block's.
__device__ __forceinline__ void add_to_block(int32_t to[2], int first, int second) {
    int both = first | second << 16;
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        both += __shfl_down_sync(0xFFFFFFFFu, both, half);
    if (threadIdx.x % 32 != 0 || both == 0)
        return;
    atomicAdd(&to[0], both & 0xFFFF);
    atomicAdd(&to[1], both >> 16);
}

// This thread's numbers: a run's, from (row, column) on, of which `inside` are in the matrix.
struct thread_run {
    float v[EACH];
    int32_t half[2]; // the largest magnitudes of 16 numbers
    int64_t row, column;
    int inside;
};

template <bool DOWN, bool FINITE>
__device__ __forceinline__ void round_to_format(const rounding &a, const thread_run &r, int f, int zeros,
                                                shared_tile &t) {
    const mz_rounding_form &form = a.form[f];
    const int tid = static_cast<int>(threadIdx.x), run = tid % SHORT, group = tid / SHORT;
    float *rounded = f == 0 && a.rounded != nullptr ? a.rounded + r.row * a.columns + r.column : nullptr;
    thread_sums sums = {};
    if (form.block == 16) {
        const float tensor = mz_scale_of_tensor(a.found[f].amax);
        const scale_of_block first = scale_for(form, r.half[0], tensor, true, t.scales[f]);
        const scale_of_block second = scale_for(form, r.half[1], tensor, true, t.scales[f]);
        round_block<0, 16, DOWN, FINITE>(a, form.small, first, r.v, r.inside, sums, rounded);
        round_block<16, 16, DOWN, FINITE>(a, form.small, second, r.v, r.inside, sums, rounded);
    } else {
        int32_t amax = t.amax[tid];
        if (form.whole)
            amax = a.found[f].amax;
        else if (form.tile)
            amax = a.amax[r.row / LONG * ((a.columns + LONG - 1) / LONG) + r.column / LONG];
        else if (form.block == LONG)
            for (int g = 0; g < GROUPS; g++)
                amax = max(amax, t.amax[g * SHORT + run]);
        // The first of the threads that share a scale counts it.
        const bool own = !form.whole && !form.tile && (form.block == EACH || group == 0);
        round_block<0, EACH, DOWN, FINITE>(a, form.small, scale_for(form, amax, 1, own, t.scales[f]), r.v, r.inside,
                                           sums, rounded);
    }
    write_sums<DOWN>(t.sums[1][f], sums.errors);
    if (!FINITE) {
        write_sums<DOWN>(t.sums[0][f], sums.squares);
        add_to_block(&t.counts[f][0], sums.nonzero, sums.not_finite);
        zeros = EACH - sums.nonzero;
    }
    add_to_block(&t.counts[f][2], sums.underflow - zeros, sums.saturated);
}

template <bool DOWN, bool FINITE>
__device__ __forceinline__ void round_to_formats(const rounding &a, const thread_run &r, shared_tile &t) {
    int zeros = 0;
    if (FINITE) {
        double squares[OCTET] = {};
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const double wide = static_cast<double>(r.v[i]);
            squares[DOWN ? 0 : i % OCTET] = __fma_rn(wide, wide, squares[DOWN ? 0 : i % OCTET]);
            zeros += r.v[i] == 0;
        }
        write_sums<DOWN>(t.sums[0][0], squares);
        add_to_block(&t.counts[0][0], EACH - zeros, 0);
    }
    for (int f = 0; f < a.n; f++)
        round_to_format<DOWN, FINITE>(a, r, f, zeros, t);
}

template <bool DOWN>
__device__ __forceinline__ void round_tile(const rounding &a, int64_t tile, bool finite, shared_tile &t) {
    constexpr int wide = DOWN ? SHORT : LONG, high = DOWN ? LONG : SHORT;
    const int tid = static_cast<int>(threadIdx.x), run = tid % SHORT, group = tid / SHORT;
    const int64_t across = (a.columns + wide - 1) / wide;
    thread_run r = {};
    r.row = tile / across * high + (DOWN ? group * EACH : run);
    r.column = tile % across * wide + (DOWN ? run : group * EACH);
    if (r.row < a.rows && r.column < a.columns)
        r.inside = static_cast<int>(min(DOWN ? a.rows - r.row : a.columns - r.column, static_cast<int64_t>(EACH)));
    read<DOWN>(a, r.row, r.column, r.inside, r.v);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        r.half[i / 16] = larger_magnitude(r.half[i / 16], r.v[i]);
    t.amax[tid] = max(r.half[0], r.half[1]);
    __syncthreads();
    if (finite)
        round_to_formats<DOWN, true>(a, r, t);
    else
        round_to_formats<DOWN, false>(a, r, t);
    __syncthreads();
    for (int i = tid / 32; i < 2 * a.n; i += WARPS) {
        const int f = i / 2;
        const double sum = tile_sum<DOWN>(t.sums[i % 2][finite && i % 2 == 0 ? 0 : f]);
        if (tid % 32 == 0)
            a.partial[i * a.tiles + tile] = sum;
    }
}

// A block takes every gridDim-th tile, and adds its counts to those of the tensor once.
template <bool DOWN> __global__ void __launch_bounds__(THREADS, BLOCKS) tiles_kernel(rounding a) {
    __shared__ shared_tile t;
    const int tid = static_cast<int>(threadIdx.x);
    const bool finite = a.found[0].amax < MZ_FLOAT_INFINITY;
    for (int f = 0; f < a.n; f++) {
        for (int c = tid; c < CODES; c += THREADS)
            t.scales[f][c] = 0;
        if (tid < 4)
            t.counts[f][tid] = 0;
    }
    for (int64_t tile = blockIdx.x; tile < a.tiles; tile += gridDim.x)
        round_tile<DOWN>(a, tile, finite, t);
    __syncthreads();
    for (int f = 0; f < a.n; f++) {
        for (int c = tid; c < CODES; c += THREADS)
            add_count(&a.found[f].scales[c], t.scales[f][c]);
        int64_t *const totals[] = {&a.found[f].nonzero, &a.found[f].not_finite, &a.found[f].underflow,
                                   &a.found[f].saturated};
        if (tid < 4)
            add_count(totals[tid], t.counts[finite && tid == 0 ? 0 : f][tid]);
    }
}

// --- the sums of tiles: a block for each format ----------------------------------------------------------------------
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
    a->low = data_of<uint16_t>(mz_in(call, rounding, low));
    a->layout = mz_cuda_layout(x);
    a->rows = mz_shape_rows(&x->shape);
    a->columns = x->shape.dim[x->shape.rank - 1];
    a->pitch = a->layout.width == 0                                    ? a->columns
               : a->layout.width == a->columns && a->layout.group <= 1 ? a->layout.pitch
                                                                       : 0;
    a->eights = a->pitch > 0 && a->pitch % OCTET == 0 &&
                (reinterpret_cast<uintptr_t>(a->x.data) | reinterpret_cast<uintptr_t>(a->low)) % 16 == 0;
    a->tiles =
        pieces(a->rows, formats->columnwise ? LONG : SHORT) * pieces(a->columns, formats->columnwise ? SHORT : LONG);
    a->n = formats->n;
    const bool narrows =
        (formats->via == MEZZO_BF16 || formats->via == MEZZO_F16) && (formats->via != x->dtype || a->low != nullptr);
    a->via = narrows ? static_cast<int>(formats->via) : MEZZO_F32;
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
    const char *reason = mz_cuda_storages(call, "au", "uf");
    rounding a;
    if (reason == NULL)
        reason = mz_cuda_has_layout(mz_in(call, rounding, x));
    if (reason == NULL)
        out->workspace = rounding_of(call, &a);
    return reason;
}
MZ_CUDA_KERNEL(rounding, launch_rounding, rounding_prepare)
