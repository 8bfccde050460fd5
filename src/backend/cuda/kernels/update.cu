// Makes the update's passes over parameters (gradient statistics, the optimizers, low copies) and computes the scalars
// that decide a step. Formulas, order of operations and rounding: docs/dev/NUMERICS.md, "The update". The arithmetic of
// the optimizers is written with explicit roundings, so that every way of storing a master moves it by the same bits.
#include "update.cuh"

// --- chunks of segments --------------------------------------------------------------------------------------------
// Work is cut into chunks of 4096 elements of each segment. Blocks stay for the whole pass.
enum { CHUNK = 4096, VECTORS = CHUNK / (4 * THREADS) };
// Beside other kernels a block makes one chunk of 1024 and goes: products take a multiprocessor's registers whole, so
// that they start when the blocks there have ended, and those of a lower priority that have not begun stand back.
enum { BRIEF = 1024 };

struct chunk {
    mz_segment segment;
    int64_t start; // element of the parameter
    int n;         // elements
};

// body(chunk, its number) for every chunk that is this block's; returns how many chunks there are.
template <int C = CHUNK, typename F>
__device__ __forceinline__ int64_t for_chunks(const mz_segment *segments, int n, F body) {
    return for_parts(
        n, [&](int s) { return static_cast<int>((segments[s].count + C - 1) / C); },
        [&](int s, int part, int64_t number) {
            chunk c;
            c.segment = segments[s];
            int64_t into = static_cast<int64_t>(part) * C, left = c.segment.count - into;
            c.start = c.segment.first + into;
            c.n = left < C ? static_cast<int>(left) : C;
            body(c, number);
        });
}

// Returns the element of a chunk at which this thread's vector v of four elements begins.
__device__ __forceinline__ int vector_at(int v) {
    return (v * THREADS + static_cast<int>(threadIdx.x)) * 4;
}

static unsigned resident(const void *kernel, int64_t elements, int n_segments, int sms) {
    return resident_blocks(kernel, elements / CHUNK + n_segments, sms);
}

// --- grad_stats ----------------------------------------------------------------------------------------------------
// partial[0] as int64 = chunks; partial[1 + c] = Σ g² of chunk c, FP64: finite exactly when every g is, as no float's
// square overflows.
template <bool PADDED>
__global__ void __launch_bounds__(THREADS)
    grad_stats_kernel(const mz_segment *segments, int n, const float *scale, bool keeps, float *grad,
                      mz_opt_state *state, double *pieces, double *partial) {
    __shared__ double sums[2][THREADS / WARP];
    __shared__ float shared_inverse;
    if (threadIdx.x == 0)
        shared_inverse = scale != nullptr ? inverse_of(*scale) : 1;
    __syncthreads();
    float inverse = shared_inverse;
    int turn = 0;
    int64_t chunks = for_chunks(segments, n, [&](const chunk &c, int64_t index) {
        float *g = grad + (c.segment.offset - c.segment.grad_shift);
        double sum = 0;
        with_gaps<PADDED>(c.segment, [&](auto tag) {
            constexpr gaps G = decltype(tag)::value;
            float4 x[VECTORS];
#pragma unroll
            for (int v = 0; v < VECTORS; v++)
                x[v] = load4(g, four_at<G>(c.segment, c.start + vector_at(v), c.n - vector_at(v)));
#pragma unroll
            for (int v = 0; v < VECTORS; v++) {
                if (inverse != 1) {
                    x[v] = make_float4(__fmul_rn(x[v].x, inverse), __fmul_rn(x[v].y, inverse),
                                       __fmul_rn(x[v].z, inverse), __fmul_rn(x[v].w, inverse));
                    if (!keeps)
                        store_four(g, four_at<G>(c.segment, c.start + vector_at(v), c.n - vector_at(v)), x[v]);
                }
                double a = x[v].x, b = x[v].y, e = x[v].z, f = x[v].w;
                sum += (a * a + b * b) + (e * e + f * f);
            }
        });
        sum = warp_sum(sum);
        if (threadIdx.x % WARP == 0)
            sums[turn][threadIdx.x / WARP] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            sum = 0;
#pragma unroll
            for (int w = 0; w < THREADS / WARP; w++)
                sum += sums[turn][w];
            *(pieces != nullptr ? pieces + (c.segment.offset + c.start) / CHUNK : partial + 1 + index) = sum;
        }
        turn ^= 1; // the next chunk's sums go elsewhere: one barrier a chunk is enough
    });
    if (blockIdx.x != 0 || threadIdx.x != 0)
        return;
    if (pieces != nullptr)
        state->scale = keeps && scale != nullptr ? *scale : 0;
    else
        *reinterpret_cast<int64_t *>(partial) = chunks;
}

// Thread t adds chunks t, t + 1024, … in order; then the threads' sums in a fixed tree: the same on every card. The
// first thread's is the sum of all.
enum { NORM_BLOCK = 1024 };
__device__ __forceinline__ double sum_of(const double *x, int64_t n) {
    __shared__ double sums[NORM_BLOCK / WARP];
    double sum = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += NORM_BLOCK)
        sum += x[i];
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x >= WARP)
        return 0;
    return warp_sum(sums[threadIdx.x]);
}

__global__ void __launch_bounds__(NORM_BLOCK)
    norm_kernel(const double *partial, const float *scale, mz_opt_state *state) {
    double sum = sum_of(partial + 1, *reinterpret_cast<const int64_t *>(partial));
    if (threadIdx.x != 0)
        return;
    state->norm = sqrt(sum);
    state->scale = scale != nullptr ? *scale : 0;
    if (!isfinite(sum))
        state->found_inf = 1;
}

__global__ void __launch_bounds__(NORM_BLOCK)
    norm_across_ranks_kernel(const double *pieces, int64_t n, const mz_opt_state *states, int ranks,
                             mz_opt_state *state) {
    double sum = sum_of(pieces, n);
    if (threadIdx.x != 0)
        return;
    state->norm = sqrt(sum);
    if (!isfinite(sum))
        state->found_inf = 1;
    for (int r = 0; r < ranks; r++)
        state->bad |= states[r].bad;
}

static void launch_norm_across_ranks(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *pieces = mz_in(call, norm_across_ranks, pieces), *states = mz_in(call, norm_across_ranks, states);
    norm_across_ranks_kernel<<<1, NORM_BLOCK, 0, cuda->stream>>>(
        data_of<double>(pieces), count_in<double>(pieces), data_of<mz_opt_state>(states),
        count_in<mz_opt_state>(states), data_of<mz_opt_state>(mz_out(call, norm_across_ranks, state)));
}
MZ_CUDA_KERNEL(norm_across_ranks, launch_norm_across_ranks, storages<"uu", "u">)

static const char *grad_stats_prepare(mezzo_device *, const mz_call *call, mz_prepared *out) {
    // The number of chunks, and their sums: at most one chunk more a segment than the buffer has whole ones.
    const int64_t chunks = mz_shape_count(&mz_out(call, grad_stats, grad)->shape) / CHUNK +
                           count_in<mz_segment>(mz_in(call, grad_stats, segments));
    out->workspace = sizeof(double) * static_cast<size_t>(chunks + 1);
    return mz_cuda_storages(call, "uf", "fuu");
}
static void launch_grad_stats(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *segments = mz_in(call, grad_stats, segments), *grad = mz_out(call, grad_stats, grad);
    const bool keeps = call->attrs.update != NULL && call->attrs.update->keeps_scale;
    const float *scale = data_of<float>(mz_in(call, grad_stats, scale));
    double *pieces = data_of<double>(mz_out(call, grad_stats, pieces)),
           *partial = static_cast<double *>(call->workspace);
    mz_opt_state *state = data_of<mz_opt_state>(mz_out(call, grad_stats, state));
    const int n = count_in<mz_segment>(segments);
    const auto kernel = segments->storage.padded ? grad_stats_kernel<true> : grad_stats_kernel<false>;
    const unsigned blocks =
        resident(reinterpret_cast<const void *>(kernel), mz_shape_count(&grad->shape), n, cuda->sms);
    kernel<<<blocks, THREADS, 0, cuda->stream>>>(data_of<mz_segment>(segments), n, scale, keeps, data_of<float>(grad),
                                                 state, pieces, partial);
    if (pieces == nullptr)
        norm_kernel<<<1, NORM_BLOCK, 0, cuda->stream>>>(partial, keeps ? scale : nullptr, state);
}
MZ_CUDA_KERNEL(grad_stats, launch_grad_stats, grad_stats_prepare)

// --- optimizers ----------------------------------------------------------------------------------------------------
template <typename KIND, int N, int C, bool PADDED, bool AVERAGES, typename M>
__global__ void __launch_bounds__(THREADS)
    update_kernel(const mz_segment *segments, int n, const mz_opt_state *state, mz_update_rule rule, mz_cu_array grad,
                  float *master, M *m, M *v, void *low_copy, float *ema) {
    __shared__ typename KIND::constants constants[2];
    __shared__ step_numbers shared;
    __shared__ typename shared_for<M>::type together;
    if (state->skip)
        return;
    together.prepare();
    int turn = 0;
    prepare_step<KIND>(state, rule, constants, &shared);
    const step_numbers numbers = shared;
    for_chunks<C>(segments, n, [&](const chunk &c, int64_t) {
        const int64_t first = c.segment.offset - c.segment.grad_shift;
        master_place p = place_of(c.segment, master, low_copy, rule.seed, numbers.step);
        M *m1 = N > 0 ? moments_at(m, c.segment.state_offset) : nullptr,
          *v1 = N > 1 ? moments_at(v, c.segment.state_offset) : nullptr;
        const philox_key key = key_of(c.segment, rule.seed, numbers.step);
        const typename KIND::constants k = constants[c.segment.decay != 0];
        with_gaps<PADDED>(c.segment, [&](auto tag) {
            constexpr gaps G = decltype(tag)::value;
#pragma unroll 2
            for (int i = 0; i < C / (4 * THREADS); i++) {
                int64_t element = c.start + vector_at(i);
                four<G> f = four_at<G>(c.segment, element, c.n - vector_at(i));
                float4 xg = load_gradients<KIND>(grad, first, f), xp = make_float4(0, 0, 0, 0), xm = xp, xv = xp;
                if (!KIND::PER_MATRIX || rule.update_scale != 0) // the first of two passes reads no directions
                    xp = load_masters(c.segment, p, f);
                load_moments<N>(m1, v1, together, element, f, xm, xv);
                update_four<KIND>(k, numbers, xg, xp, xm, xv);
                store_moments<N>(m1, v1, together, turn++, key, element, f, xm, xv);
                if (AVERAGES)
                    average_four(ema + c.segment.state_offset, numbers.fresh, numbers.step == 1, f, xp);
                store_masters(c.segment, p, low_copy, element, f, xp);
            }
        });
    });
}

template <typename KIND, int N, bool AVERAGES, typename M> auto kernel_of(bool padded, bool overlaps) {
    if (padded)
        return overlaps ? update_kernel<KIND, N, BRIEF, true, AVERAGES, M>
                        : update_kernel<KIND, N, CHUNK, true, AVERAGES, M>;
    return overlaps ? update_kernel<KIND, N, BRIEF, false, AVERAGES, M>
                    : update_kernel<KIND, N, CHUNK, false, AVERAGES, M>;
}

template <typename KIND, int N, typename M> void launch_update(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_update_attrs *u = call->attrs.update;
    const mz_tensor *segments = mz_in(call, adamw, segments), *grad = mz_in(call, adamw, grad);
    float *ema = data_of<float>(mz_out(call, adamw, ema));
    const int n = count_in<mz_segment>(segments);
    const int64_t elements = u->elements > 0 ? u->elements : mz_shape_count(&grad->shape);
    const auto kernel = ema != nullptr ? kernel_of<KIND, N, true, M>(segments->storage.padded, u->overlaps)
                                       : kernel_of<KIND, N, false, M>(segments->storage.padded, u->overlaps);
    unsigned blocks = resident(reinterpret_cast<const void *>(kernel), elements, n, cuda->sms);
    if (u->overlaps)
        blocks = static_cast<unsigned>(elements / BRIEF + n);
    kernel<<<blocks, THREADS, 0, cuda->stream>>>(
        data_of<mz_segment>(segments), n, data_of<mz_opt_state>(mz_in(call, adamw, state)), u->rule,
        mz_cuda_array(grad), data_of<float>(mz_out(call, adamw, master)), data_of<M>(mz_out(call, adamw, m)),
        data_of<M>(mz_out(call, adamw, v)), mz_out(call, adamw, low_copy)->data, ema);
}

// A kind may keep no moments although it can.
template <typename KIND> void launch_segments(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *m = mz_out(call, adamw, m);
    if (count_in<mz_segment>(mz_in(call, adamw, segments)) == 0)
        return;
    if (!mz_present(m))
        launch_update<KIND, 0, float>(cuda, call);
    else if (m->dtype == MEZZO_U8)
        launch_update<KIND, KIND::MOMENTS, uint8_t>(cuda, call);
    else if (m->dtype == MEZZO_BF16)
        launch_update<KIND, KIND::MOMENTS, uint16_t>(cuda, call);
    else
        launch_update<KIND, KIND::MOMENTS, float>(cuda, call);
}

template <typename KIND> const char *kind_prepare(mezzo_device *, const mz_call *call, mz_prepared *) {
    const mz_tensor *m = mz_out(call, adamw, m), *v = mz_out(call, adamw, v);
    const mezzo_dtype moments = mz_present(m) ? m->dtype : MEZZO_F32;
    if (mz_present(v) && moments != v->dtype)
        return "its moments are not stored alike";
    // Moments of 8 bits are in blocks of a row of elements, quantized weights in tiles of a matrix.
    if (moments == MEZZO_U8 && mz_present(mz_in(call, adamw, quantized)))
        return "it does not write quantized weights beside moments of 8 bits";
    return mz_cuda_storages(call, KIND::PER_MATRIX ? "auu" : "fuu",
                            moments == MEZZO_BF16 ? "mbbuf"
                            : moments == MEZZO_U8 ? "muuuf"
                                                  : "mffuf");
}

#define KIND(name, ...)                                                                                                \
    static void launch_##name(const mz_cuda_device *cuda, const mz_call *call) {                                       \
        launch_segments<name##_kind>(cuda, call);                                                                      \
        launch_##name##_fp8(cuda, call);                                                                               \
    }                                                                                                                  \
    MZ_CUDA_KERNEL(name, launch_##name, kind_prepare<name##_kind>)
#include "mezzo/optimizers.def"
#undef KIND

// A thread for each number; every block looks whether the whole batch is finite. FP64 without contraction, as on a CPU.
enum { TRACK_BLOCK = 1024 };

__global__ void __launch_bounds__(TRACK_BLOCK)
    track_kernel(const float *batches, int64_t n, int64_t count, int ranks, const mz_tracked *entries,
                 const mz_opt_state *state, float *master) {
    if (state != nullptr && state->halted)
        return;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * TRACK_BLOCK + threadIdx.x;
    const int64_t place = first < count ? entries[first].place : -1;
    float x = place >= 0 ? master[place] : 0;
    for (int64_t b = 0; b < n; b++) {
        const float *batch = batches + (b % ranks * (n / ranks) + b / ranks) * count;
        bool bad = false;
        for (int64_t i = threadIdx.x; i < count; i += TRACK_BLOCK)
            bad = bad || !isfinite(batch[i]);
        if (__syncthreads_or(bad))
            continue;
        for (int64_t k = place >= 0 ? first : -1; k >= 0; k = entries[k].next) {
            const double momentum = entries[k].momentum;
            x = static_cast<float>(__dadd_rn(__dmul_rn(momentum, static_cast<double>(x)),
                                             __dmul_rn(1 - momentum, static_cast<double>(batch[k]))));
        }
    }
    if (place >= 0)
        master[place] = x;
}

static void launch_track(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *batches = mz_in(call, track, batches);
    const int64_t count = batches->shape.dim[1];
    launch_threads<TRACK_BLOCK>(cuda, track_kernel, count, data_of<const float>(batches), batches->shape.dim[0], count,
                                call->attrs.groups, data_of<const mz_tracked>(mz_in(call, track, entries)),
                                data_of<const mz_opt_state>(mz_in(call, track, state)),
                                data_of<float>(mz_out(call, track, master)));
}
MZ_CUDA_KERNEL(track, launch_track, storages<"fuu", "f">)

template <bool PADDED>
__global__ void __launch_bounds__(THREADS)
    refresh_kernel(const mz_segment *segments, int n, const float *master, void *low_copy) {
    for_chunks(segments, n, [&](const chunk &c, int64_t) {
        const float *p = master + (c.segment.offset - c.segment.master_shift);
        if (c.segment.master != MEZZO_MASTER_FP32) // the low copy is a part of the master
            return;
        with_gaps<PADDED>(c.segment, [&](auto tag) {
            constexpr gaps G = decltype(tag)::value;
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                four<G> f = four_at<G>(c.segment, c.start + vector_at(i), c.n - vector_at(i));
                store_low_copy4(low_copy, c.segment, f, load4(p, f));
            }
        });
    });
}

static void launch_refresh(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *segments = mz_in(call, refresh, segments), *low_copy = mz_out(call, refresh, low_copy);
    const auto kernel = segments->storage.padded ? refresh_kernel<true> : refresh_kernel<false>;
    const int n = count_in<mz_segment>(segments);
    const int64_t elements = mz_shape_count(&low_copy->shape) / 2;
    kernel<<<resident(reinterpret_cast<const void *>(kernel), elements, n, cuda->sms), THREADS, 0, cuda->stream>>>(
        data_of<mz_segment>(segments), n, data_of<float>(mz_in(call, refresh, master)), low_copy->data);
}
MZ_CUDA_KERNEL(refresh, launch_refresh, storages<"mu", "u">)
