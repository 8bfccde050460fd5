// Updates of parameters whose 8-bit data are kept: the codes of what a master becomes, and the same turned, in the
// pass that moves it. A block takes tiles of ROWS x COLS of a matrix, a thread 4 numbers of either half of a row at a
// time: a warp's loads and stores are whole sectors. Codes wait in shared memory to be turned, as in quantize.cu. The
// bits are those of the kind's op and quantize after it.
#include "fp8_pack.cuh"
#include "update.cuh"

enum { ROWS = 64, COLS = 128, HALF = COLS / 2, PARTS = HALF / 4, AT_ONCE = THREADS / PARTS, PITCH = COLS + 8 };
static_assert(ROWS % AT_ONCE == 0 && ROWS / 16 * (COLS / 4) <= THREADS, "a thread turns 16 rows of 4 columns at most");

__host__ __device__ __forceinline__ int tiles_of(int64_t rows, int64_t columns) {
    return static_cast<int>((rows + ROWS - 1) / ROWS * ((columns + COLS - 1) / COLS));
}

// update_kernel has these tensors too.
template <typename M> struct moved {
    const float *grad;
    float *master;
    M *m, *v;
    float *ema;
};

// Four elements and, where `both`, those HALF columns on, or 0; all loads are under way before anything is stored.
template <typename KIND, int N, bool AVERAGES, typename M>
__device__ __forceinline__ void update_eight(const typename KIND::constants &k, const step_numbers &numbers,
                                             const moved<M> &p, const philox_key &key, int64_t element, bool both,
                                             float result[8]) {
    nothing_shared together;
    four<NO_GAPS> f[2];
    float4 xg[2], xp[2], xm[2], xv[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        f[h].at[0] = element + HALF * h;
        f[h].whole = h == 0 || both;
        f[h].left = f[h].whole ? 4 : 0;
        xg[h] = load4_once(p.grad, f[h]);
        xp[h] = load4(p.master, f[h]);
        xm[h] = xv[h] = make_float4(0, 0, 0, 0);
        load_moments<N>(p.m, p.v, together, f[h][0], f[h], xm[h], xv[h]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (!f[h].whole) {
            result[4 * h] = result[4 * h + 1] = result[4 * h + 2] = result[4 * h + 3] = 0;
            continue;
        }
        update_four<KIND>(k, numbers, xg[h], xp[h], xm[h], xv[h]);
        store_moments<N>(p.m, p.v, together, 0, key, f[h][0], f[h], xm[h], xv[h]);
        if (AVERAGES)
            average_four(p.ema, numbers.fresh, numbers.step == 1, f[h], xp[h]);
        store_four(p.master, f[h], xp[h]);
        result[4 * h] = xp[h].x;
        result[4 * h + 1] = xp[h].y;
        result[4 * h + 2] = xp[h].z;
        result[4 * h + 3] = xp[h].w;
    }
}

template <typename KIND, int N, bool AVERAGES, typename M>
__global__ void __launch_bounds__(THREADS)
    quantized_kernel(const mz_quantized_segment *quantized, int n, const mz_opt_state *state, mz_update_rule rule,
                     moved<M> all) {
    __shared__ typename KIND::constants constants[2];
    __shared__ step_numbers shared;
    __shared__ __align__(16) uint8_t tile[ROWS * PITCH];
    if (state->skip)
        return;
    prepare_step<KIND>(state, rule, constants, &shared);
    const step_numbers numbers = shared;
    const int tid = static_cast<int>(threadIdx.x), part = tid % PARTS, line0 = tid / PARTS;
    for_parts(
        n, [&](int i) { return tiles_of(quantized[i].rows, quantized[i].columns); },
        [&](int i, int index, int64_t) {
            const mz_quantized_segment &c = quantized[i];
            const mz_segment &s = c.segment;
            const int64_t rows = c.rows, columns = c.columns;
            const int across = static_cast<int>((columns + COLS - 1) / COLS);
            const int64_t row0 = static_cast<int64_t>(index / across) * ROWS;
            const int64_t col0 = static_cast<int64_t>(index % across) * COLS, col = col0 + part * 4;
            const moved<M> p = {all.grad + (s.offset - s.grad_shift), all.master + (s.offset - s.master_shift),
                                N > 0 ? all.m + s.state_offset : nullptr, N > 1 ? all.v + s.state_offset : nullptr,
                                AVERAGES ? all.ema + s.state_offset : nullptr};
            const philox_key key = key_of(s, rule.seed, numbers.step);
            const typename KIND::constants k = constants[s.decay != 0];
            const float inverse = 1 / c.entry->scale; // exact
            const bool e4m3 = c.dtype == MEZZO_F8E4M3;
            uint8_t *rowwise = static_cast<uint8_t *>(c.rowwise), *columnwise = static_cast<uint8_t *>(c.columnwise);
            uint32_t amax = 0;
#pragma unroll 1
            for (int line = line0; line < ROWS; line += AT_ONCE) {
                if (row0 + line >= rows || col >= columns)
                    continue;
                const int64_t element = (row0 + line) * columns + col;
                float x[8];
                const bool both = col + HALF < columns;
                update_eight<KIND, N, AVERAGES>(k, numbers, p, key, element, both, x);
                const uint2 eights = to_fp8(x, inverse, e4m3, amax);
                if (rowwise != nullptr) {
                    *reinterpret_cast<uint32_t *>(rowwise + element) = eights.x;
                    if (both)
                        *reinterpret_cast<uint32_t *>(rowwise + element + HALF) = eights.y;
                }
                *reinterpret_cast<uint32_t *>(tile + line * PITCH + part * 4) = eights.x;
                *reinterpret_cast<uint32_t *>(tile + line * PITCH + HALF + part * 4) = eights.y;
            }
            __syncthreads();
            const int run = tid % 4 * 16, quad = tid / 4 * 4;
            if (columnwise != nullptr && quad < COLS && row0 + run < rows && col0 + quad < columns)
                turn_run(tile + run * PITCH + quad, PITCH, columnwise + (col0 + quad) * rows + row0 + run, rows);
            record_amax<THREADS>(&c.entry->weight_amax, amax);
            __syncthreads(); // of the largest too: the next tile's are written where these were read
        });
}

template <typename KIND, int N, typename M>
static void launch_quantized(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *quantized = mz_in(call, adamw, quantized), *grad = mz_in(call, adamw, grad);
    const moved<M> all = {data_of<float>(grad), data_of<float>(mz_out(call, adamw, master)),
                          data_of<M>(mz_out(call, adamw, m)), data_of<M>(mz_out(call, adamw, v)),
                          data_of<float>(mz_out(call, adamw, ema))};
    const auto kernel = all.ema != nullptr ? quantized_kernel<KIND, N, true, M> : quantized_kernel<KIND, N, false, M>;
    const int n = count_in<mz_quantized_segment>(quantized);
    const int64_t tiles = mz_shape_count(&grad->shape) / (ROWS * COLS) + n;
    kernel<<<resident_blocks(reinterpret_cast<const void *>(kernel), tiles, cuda->sms), THREADS, 0, cuda->stream>>>(
        data_of<mz_quantized_segment>(quantized), n, data_of<mz_opt_state>(mz_in(call, adamw, state)),
        call->attrs.update->rule, all);
}

template <typename KIND> static void launch_kind(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *m = mz_out(call, adamw, m);
    if (count_in<mz_quantized_segment>(mz_in(call, adamw, quantized)) == 0)
        return;
    if (!mz_present(m))
        launch_quantized<KIND, 0, float>(cuda, call);
    else if (m->dtype == MEZZO_BF16)
        launch_quantized<KIND, KIND::MOMENTS, uint16_t>(cuda, call);
    else
        launch_quantized<KIND, KIND::MOMENTS, float>(cuda, call);
}

#define KIND(name, ...)                                                                                                \
    void launch_##name##_fp8(const mz_cuda_device *cuda, const mz_call *call) {                                        \
        launch_kind<name##_kind>(cuda, call);                                                                          \
    }
#include "mezzo/optimizers.def"
#undef KIND
