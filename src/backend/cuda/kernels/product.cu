// Products with an epilogue that the library does slowly, on Hopper's tensor cores (compute capability 9.0 only): the
// MLP's second (bias, FP32 residual), and its gradient (GELU's derivative, column sums for the first one's bias, and
// GELU's result for the weights of the second).
//
// A block is a thread that asks for tiles of the operands (TMA) and two warpgroups that take turns at tiles of 128 ×
// 128 results: while one finishes a tile, which is memory's work, the other multiplies. Two blocks, a cluster, share
// each tile of w: either fetches half of it for both.
#include <type_traits>

#include "host.cuh"
#include "tile_loop.cuh"
#include "vec.cuh"

namespace {
enum { TILE = 128, L = 64, STAGES = 5, OPERAND = TILE * L * 2, STAGE = 2 * OPERAND, STAGING = TILE * TILE * 2 };

// a [rows, inner]; w [cols, inner], with DACT and RECOMPUTE [inner, cols]; inner and cols multiples of 8, everything
// 16-byte aligned. RECOMPUTE: DACT, and act_out.
enum { RESIDUAL, DACT, RECOMPUTE };
struct product {
    int epilogue;
    int dtype; // of a and w; of preact and out with DACT
    const void *a, *w;
    mz_cu_array bias;      // RESIDUAL: [cols] or NULL
    const float *residual; // RESIDUAL: out [rows, cols] FP32 = a·wᵀ + bias + residual
    const void *preact;    // DACT: out = round(a·w·gelu'(preact))
    void *out;
    float *partial; // DACT: [parts_of(rows), cols], to be added up to the sums of out's columns; or NULL
    int64_t rows;
    int cols, inner;
    void *act_out; // RECOMPUTE: [rows, cols] = round(gelu(preact)), which may be preact itself
};

constexpr __host__ __device__ bool by_rows(int epilogue) { // w [cols, inner]
    return epilogue == RESIDUAL;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// --- epilogues -----------------------------------------------------------------------------------------------------
// A warp has 2 × 16 rows of 128 columns, FP32: thread l columns 8·j + 2·(l % 4), + 1 of rows l/4 (d[h][j][0, 1]) and
// l/4 + 8 ([2, 3]). They go through its staging, 16 rows at a time, and come back as rows of which thread l has columns
// 4·l … 4·l + 3: what it reads and writes elsewhere are whole lines, the sums of columns are its own, and the loop over
// rows is short code. Staged 16-byte pieces of row i change places by exclusive or with 2·i.
enum { AT_ONCE = 8 }; // rows of which inputs are under way
struct place {
    int64_t row; // of the warp's first
    int col;     // of this thread's first
    bool inside; // its columns exist
    float *staging;
    int lane;
};

__device__ __forceinline__ int row_of(int i) { // the i-th of a warp's 32, counted from its first
    return i / 16 * 64 + i % 16;
}

__device__ __forceinline__ void stage(const place &p, const float (&d)[16][4]) {
    __syncwarp(); // what was staged before has been read
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = r * 8 + (p.lane >> 2);
        float *to = p.staging + row * TILE + (p.lane & 1) * 2;
#pragma unroll
        for (int j = 0; j < 16; j++)
            store_shared(shared_address(to + (((j * 2 + (p.lane >> 1 & 1)) ^ (row & 7) * 2) << 2)), d[j][2 * r],
                         d[j][2 * r + 1]);
    }
    __syncwarp();
}

__device__ __forceinline__ float4 staged(const place &p, int row) {
    return *reinterpret_cast<const float4 *>(p.staging + row * TILE + ((p.lane ^ (row & 7) * 2) << 2));
}

template <typename T> __device__ __forceinline__ float4 widen4(uint2 x) {
    constexpr int dtype = std::is_same<T, __nv_bfloat16>::value ? MEZZO_BF16 : MEZZO_F16;
    float2 low = widen2(x.x, dtype), high = widen2(x.y, dtype);
    return make_float4(low.x, low.y, high.x, high.y);
}
template <typename T> __device__ __forceinline__ uint2 narrow4(float4 x) {
    return make_uint2(pack<T>(x.x, x.y), pack<T>(x.z, x.w));
}

// Loads if a condition holds, without a branch: what can be computed meanwhile does not wait for it.
__device__ __forceinline__ void load_if(bool condition, uint2 &to, const char *from) {
    asm volatile(MZ_PTX_IF(2, "ld.global.v2.u32 {%0, %1}, [%3];")
                 : "+r"(to.x), "+r"(to.y)
                 : "r"(static_cast<int>(condition)), "l"(from));
}
__device__ __forceinline__ void load_if(bool condition, float4 &to, const char *from) {
    asm volatile(MZ_PTX_IF(4, "ld.global.v4.f32 {%0, %1, %2, %3}, [%5];")
                 : "+f"(to.x), "+f"(to.y), "+f"(to.z), "+f"(to.w)
                 : "r"(static_cast<int>(condition)), "l"(from));
}
__device__ __forceinline__ void store_if(bool condition, char *to, uint2 x) {
    asm volatile(MZ_PTX_IF(0, "st.global.v2.u32 [%1], {%2, %3};")::"r"(static_cast<int>(condition)), "l"(to), "r"(x.x),
                 "r"(x.y)
                 : "memory");
}
__device__ __forceinline__ void store_if(bool condition, char *to, float4 x) {
    asm volatile(MZ_PTX_IF(0, "st.global.v4.f32 [%1], {%2, %3, %4, %5};")::"r"(static_cast<int>(condition)), "l"(to),
                 "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
}

// This thread's columns (four, a V) of rows from the warp's i-th on, which lie one `pitch` bytes after the other, and
// of which `exist` are there.
template <typename V> struct rows_at {
    char *first;
    uint32_t pitch;
    int exist;
    __device__ __forceinline__ rows_at(const product &g, const place &p, const void *data, int i) {
        const int64_t row = p.row + row_of(i);
        pitch = static_cast<uint32_t>(g.cols) * static_cast<uint32_t>(sizeof(V) / 4);
        first = static_cast<char *>(const_cast<void *>(data)) + row * pitch + p.col * static_cast<int>(sizeof(V) / 4);
        exist = p.inside ? static_cast<int>(g.rows - row) : 0;
    }
    __device__ __forceinline__ char *at(int k) const { return first + static_cast<uint64_t>(pitch) * k; }
    __device__ __forceinline__ void store(int k, V x) const { store_if(k < exist, at(k), x); }
};

template <typename V> struct rows_ahead {
    V v[AT_ONCE];
    // After the warp's last row nothing is asked for; for a row that does not exist the last one is read.
    __device__ __forceinline__ void load(const product &g, const place &p, const void *from, int i) {
        const rows_at<V> rows(g, p, from, i);
        const bool any = i < 32 && rows.exist > 0;
        const int last = rows.exist - 1;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            v[k] = V();
            load_if(any, v[k], rows.at(min(k, last)));
        }
    }
};

__device__ __forceinline__ float4 bias_of(const product &g, const place &p) {
    if (g.bias.data == nullptr || !p.inside)
        return make_float4(0, 0, 0, 0);
    if (g.bias.dtype == MEZZO_F32)
        return *reinterpret_cast<const float4 *>(static_cast<const float *>(g.bias.data) + p.col);
    uint2 b = *reinterpret_cast<const uint2 *>(static_cast<const uint16_t *>(g.bias.data) + p.col);
    float2 low = widen2(b.x, g.bias.dtype), high = widen2(b.y, g.bias.dtype);
    return make_float4(low.x, low.y, high.x, high.y);
}

// A warpgroup finishes a tile alone, a warp on each scheduler: nothing but other numbers of its own hides how long an
// instruction takes. So rows that do not exist are computed too, and only their stores are left out: rows with branches
// between them would wait for one another.
//
// activation.cuh's functions and bounds without branches, but for the approximate reciprocal: it is off by 2^-23, one
// 2^-24 more than the rounded one, of which a 16-bit result shows nothing. Of infinity it is 0.
__device__ __forceinline__ float derivative_fast(float x, float &act_out) {
    const float k = 1.59576912160573071f, e = -1.44269504f * k;
    float s, c = fminf(fmaxf(x, -16.0f), 16.0f);
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + exp2_fast(x * fmaf(x * x, e * 0.044715f, e))));
    act_out = x * s;
    return fmaf(c * fmaf(c * c, k * 0.134145f, k), s * (1.0f - s), s);
}

// out = d + bias + residual, FP32
__device__ __forceinline__ void finish_residual(const product &g, const place &p, const float (&d)[2][16][4],
                                                rows_ahead<float4> &ahead) {
    float4 bias = bias_of(g, p);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        stage(p, d[h]);
#pragma unroll 1
        for (int first = 0; first < 16; first += AT_ONCE) {
            const rows_at<float4> out(g, p, g.out, h * 16 + first);
            rows_ahead<float4> now = ahead;
            ahead.load(g, p, g.residual, h * 16 + first + AT_ONCE);
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                out.store(k, add4(add4(staged(p, first + k), bias), now.v[k]));
        }
    }
}

// Sums of what a warpgroup has stored over its 128 rows: a thread's, then the four warps in order.
__device__ __forceinline__ void store_sums(const product &g, const place &p, int group, float4 sums) {
    __syncwarp();
    reinterpret_cast<float4 *>(p.staging)[p.lane] = sums;
    warpgroup_sync(group);
    int thread = static_cast<int>(threadIdx.x) % WARPGROUP, warp = thread / 32;
    const float *all = p.staging - warp * (STAGING / 16); // a warp's staging is a quarter, of floats
    float total = 0;
#pragma unroll
    for (int w = 0; w < 4; w++)
        total += all[w * (STAGING / 16) + thread];
    int64_t row = p.row - warp * 16; // of the tile; a cluster's second may lie after all rows
    int col = p.col - p.lane * 4 + thread;
    if (row < g.rows && col < g.cols)
        g.partial[row / TILE * g.cols + col] = total;
    warpgroup_sync(group);
}

// out = round(d·gelu'(preact)); the columns' sums of it to partial. Of a row that does not exist d is 0. REMAKES: also
// act_out = round(gelu(preact)), which may take preact's place: the thread that stores a number has read it before, and
// it alone does.
template <typename T, bool REMAKES>
__device__ __forceinline__ void finish_derivative(const product &g, const place &p, int group,
                                                  const float (&d)[2][16][4], rows_ahead<uint2> &ahead) {
    float4 sums = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        stage(p, d[h]);
#pragma unroll 1
        for (int first = 0; first < 16; first += AT_ONCE) {
            const rows_at<uint2> out(g, p, g.out, h * 16 + first), act_out(g, p, g.act_out, h * 16 + first);
            rows_ahead<uint2> now = ahead;
            ahead.load(g, p, g.preact, h * 16 + first + AT_ONCE);
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                float4 x = widen4<T>(now.v[k]), y = staged(p, first + k);
                float4 a;
                uint2 low = narrow4<T>(make_float4(y.x * derivative_fast(x.x, a.x), y.y * derivative_fast(x.y, a.y),
                                                   y.z * derivative_fast(x.z, a.z), y.w * derivative_fast(x.w, a.w)));
                out.store(k, low);
                if constexpr (REMAKES)
                    act_out.store(k, narrow4<T>(a));
                sums = add4(sums, widen4<T>(low));
            }
        }
    }
    if (g.partial != nullptr)
        store_sums(g, p, group, sums);
}

#endif

template <typename T, int EPILOGUE> struct product_policy : tile_policy<STAGES> {
    enum { SLOT = STAGE, BESIDE = GROUPS * STAGING };
    enum : bool { BY_TURNS = true, W_BY_ROWS = by_rows(EPILOGUE) };
    using args = product;
    using stage = stage_by_turns<STAGES>;
    using fetch_stage = stage;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using walk = dense_walk<product, TILE, TILE, L, 1, false>;
    // The warps of the warpgroups, one of each block, that use a stage.
    static __device__ __forceinline__ int readers(int) {
        return CLUSTER * WARPS / GROUPS;
    }

    struct loads {
        uint32_t rank;
        int row, col;
        __device__ __forceinline__ loads(const product &, const tile_share &s, uint32_t block) : rank(block) {
            row = static_cast<int>(s.down * CLUSTER + rank) * TILE;
            col = static_cast<int>(s.right) * TILE + static_cast<int>(rank) * (TILE / CLUSTER);
        }
        __device__ __forceinline__ void fetch(const tile_maps &maps, int k, const auto &ring) const {
            const uint32_t to = ring.slot(), half = to + OPERAND + rank * (OPERAND / CLUSTER);
            barrier_wait(ring.empty(), ring.parity() ^ 1);
            barrier_expect(ring.full(), STAGE);
            fetch_box(to, maps.a, k * L, row, ring.full());
            fetch_box_for_all(half, maps.b, W_BY_ROWS ? k * L : col, W_BY_ROWS ? col : k * L, ring.full());
        }
    };

    struct sums {
        using ahead = rows_ahead<typename std::conditional<EPILOGUE == RESIDUAL, float4, uint2>::type>;
        place p;
        ahead inputs;
        float d[2][16][4];
        uint32_t before = 0; // the stage that products under way read
        __device__ __forceinline__ sums(const product &g, const tile_warp &w, const tile_share &s) {
            p = {(s.down * CLUSTER + w.rank) * TILE + w.index * 16, static_cast<int>(s.right) * TILE + w.lane * 4};
            p.inside = p.col < g.cols;
            p.lane = w.lane;
            p.staging = reinterpret_cast<float *>(w.memory.shared + STAGES * STAGE + w.group * STAGING +
                                                  w.index * (STAGING / 4));
            if constexpr (EPILOGUE == RESIDUAL)
                inputs.load(g, p, g.residual, 0);
            else
                inputs.load(g, p, g.preact, 0);
#pragma unroll
            for (int i = 0; i < 128; i++)
                d[i / 64][i / 4 % 16][i % 4] = 0;
        }
        __device__ __forceinline__ void multiply(const product &, const tile_warp &w, const tile_share &, int k,
                                                 const auto &ring) {
            barrier_wait(ring.full(), ring.parity());
            const uint64_t a = wgmma_operand(ring.slot(), L * 128), b = wgmma_operand(ring.slot() + OPERAND, L * 128);
            wgmma_begin();
#pragma unroll
            for (int l = 0; l < L; l += 16) {
                const uint64_t at = b + (W_BY_ROWS ? l * 2 >> 4 : l * 128 >> 4);
                wgmma_multiply<T, 0, !W_BY_ROWS>(d[0], a + (l * 2 >> 4), at);
                wgmma_multiply<T, 0, !W_BY_ROWS>(d[1], a + ((64 * 128 + l * 2) >> 4), at);
            }
            wgmma_commit();
            if (k > 0) {
                wgmma_wait<1>();
                if (w.lane < CLUSTER)
                    barrier_arrive_at(ring.m.empty + before * 8, w.lane);
            }
            before = ring.stage();
        }
        __device__ __forceinline__ void finish(const product &g, const tile_warp &w, const tile_share &,
                                               const auto &ring) {
            wgmma_wait<0>();
            if (w.lane < CLUSTER)
                barrier_arrive_at(ring.m.empty + before * 8, w.lane);
            if constexpr (EPILOGUE == RESIDUAL)
                finish_residual(g, p, d, inputs);
            else
                finish_derivative<T, EPILOGUE == RECOMPUTE>(g, p, w.group, d, inputs);
        }
    };
#endif
};

// --- launching -----------------------------------------------------------------------------------------------------
// Describes boxes of `box` rows of 64 elements of a matrix [rows, cols].
bool describe(CUtensorMap *map, int dtype, const void *data, int64_t rows, int64_t cols, int box) {
    return describe_boxes<2>(map, box_type(dtype), data, {cols, rows}, {cols * 2}, {L, box});
}

template <typename T, int EPILOGUE> cudaError_t run(cudaStream_t stream, const product &g, int sms, bool prepare) {
    using policy = product_policy<T, EPILOGUE>;
    if (prepare)
        return prepare_tiles<policy>();
    CUtensorMap a, w;
    const bool rows = by_rows(EPILOGUE);
    if (!describe(&a, g.dtype, g.a, g.rows, g.inner, TILE) ||
        !describe(&w, g.dtype, g.w, rows ? g.cols : g.inner, rows ? g.inner : g.cols, L))
        return cudaErrorNotSupported;
    return launch_tiles<policy>(stream, g, a, w, count_pairs<TILE, TILE>(g.rows, g.cols), sms);
}

template <typename T> cudaError_t of(cudaStream_t stream, const product &g, int sms, bool prepare) {
    return (g.epilogue == RECOMPUTE  ? run<T, RECOMPUTE>
            : g.epilogue == RESIDUAL ? run<T, RESIDUAL>
                                     : run<T, DACT>)(stream, g, sms, prepare);
}

cudaError_t run_product(const mz_cuda_device *cuda, const product &g, bool prepare) {
    return (g.dtype == MEZZO_BF16 ? of<__nv_bfloat16> : of<__half>)(cuda->stream, g, cuda->sms, prepare);
}
} // namespace

// --- which calls of linear and linear_dx ---------------------------------------------------------------------------
enum { LEAST_ROWS = 256 };

static const char *set_product(const mz_cuda_device *cuda, const mz_call *call, product *g) {
    const bool forward = call->op == MZ_OP_linear;
    const mz_tensor *a = &call->in[0], *w = mz_in(call, linear, w), *out = &call->out[0]; // linear_dx's w too
    const int64_t cols = w->shape.dim[forward ? 0 : 1], inner = w->shape.dim[forward ? 1 : 0];
    if (cuda->cc != 90)
        return "is for compute capability 9.0";
    if ((a->dtype != MEZZO_BF16 && a->dtype != MEZZO_F16) || w->dtype != a->dtype)
        return "multiplies bf16 by bf16 and fp16 by fp16";
    if (cols % 8 != 0 || inner % 8 != 0 || cols >= 1 << 24 || inner >= 1 << 24)
        return "rows must be multiples of 16 bytes";
    *g = {.dtype = a->dtype,
          .a = a->data,
          .w = w->data,
          .out = out->data,
          .rows = mz_shape_count(&out->shape) / cols,
          .cols = static_cast<int>(cols),
          .inner = static_cast<int>(inner)};
    if (g->rows < LEAST_ROWS)
        return "few rows are done sooner by the library";
    return g->rows >= static_cast<int64_t>(1) << 30 ? "rows of a matrix fit in 30 bits" : NULL;
}

// --- linear: bias, FP32 residual -----------------------------------------------------------------------------------
// The residual is worth it where the product is long: a short one is the memory's work in any kernel.
enum { LEAST_INNER = 2048 };

static const char *linear_args(const mz_cuda_device *cuda, const mz_call *call, product *g) {
    const mz_tensor *bias = mz_in(call, linear, bias), *residual = mz_in(call, linear, residual);
    const char *reason = set_product(cuda, call, g);
    if (reason != NULL)
        return reason;
    if (mz_present(bias) && !mz_cuda_float(bias))
        return "a bias is fp32, bf16 or fp16";
    g->bias = mz_cuda_array(bias);
    if (call->attrs.act != MZ_ACT_NONE || mz_present(mz_out(call, linear, preact)) || !mz_present(residual) ||
        residual->dtype != MEZZO_F32 || mz_out(call, linear, y)->dtype != MEZZO_F32 || g->inner < LEAST_INNER)
        return "is for an fp32 residual and long sums";
    g->epilogue = RESIDUAL;
    g->residual = data_of<float>(residual);
    return NULL;
}

// --- linear_dx: GELU's derivative and its result, the sums of dx's columns -----------------------------------------
static int64_t parts_of(int64_t rows) {
    return (rows + TILE - 1) / TILE;
}

static const char *linear_dx_args(const mz_cuda_device *cuda, const mz_call *call, product *g) {
    const mz_tensor *preact = mz_in(call, linear_dx, preact), *dbias = mz_out(call, linear_dx, dbias),
                    *act_out = mz_out(call, linear_dx, act_out);
    const char *reason = set_product(cuda, call, g);
    if (reason != NULL)
        return reason;
    const mezzo_dtype low = mz_in(call, linear_dx, dy)->dtype;
    if (mz_out(call, linear_dx, dx)->dtype != low || (mz_present(dbias) && dbias->dtype != MEZZO_F32))
        return "writes 16-bit storage, and fp32 sums";
    if (call->attrs.act != MZ_ACT_GELU_TANH || !mz_present(preact) || preact->dtype != low)
        return "is for GELU's derivative between 16-bit storages";
    if (mz_present(act_out) && act_out->dtype != low)
        return "writes GELU's result as its input is stored";
    g->partial = mz_present(dbias) ? static_cast<float *>(call->workspace) : nullptr;
    g->epilogue = mz_present(act_out) ? RECOMPUTE : DACT;
    g->preact = preact->data;
    g->act_out = act_out->data;
    return NULL;
}

static const char *product_args(const mz_cuda_device *cuda, const mz_call *call, product *g) {
    return (call->op == MZ_OP_linear ? linear_args : linear_dx_args)(cuda, call, g);
}

static const char *product_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    product g;
    const char *reason = product_args(mz_cuda(device), call, &g);
    if (reason != NULL)
        return reason;
    if (call->op == MZ_OP_linear_dx && mz_present(mz_out(call, linear_dx, dbias)))
        out->workspace = static_cast<size_t>(parts_of(g.rows) * g.cols) * sizeof(float);
    return refusal_of_90a(run_product(mz_cuda(device), g, true));
}

static mezzo_status product_run(mezzo_device *device, const mz_call *call) {
    const mz_cuda_device *cuda = mz_cuda(device);
    product g;
    (void)product_args(cuda, call, &g);
    MZ_CUDA_TRY(run_product(cuda, g, false));
    if (g.partial != NULL)
        MZ_CUDA_TRY(mz_cu_add_partials(cuda->stream, g.partial, data_of<float>(mz_out(call, linear_dx, dbias)), g.cols,
                                       parts_of(g.rows), call->attrs.accumulate));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_linear_product = {"linear__cuda_product", product_prepare, product_run};
const mz_kernel mz_cuda_linear_dx_product = {"linear_dx__cuda_product", product_prepare, product_run};
