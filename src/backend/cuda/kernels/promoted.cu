// Computes products of FP32 matrices on Hopper's tensor cores (compute capability 9.0 only), as exact as FP32's own:
// each number is the sum of three BF16 ones (bf16_terms.cu), six products of parts make one of FP32, and the tensor
// cores, which cut their sums off, add up 64 terms at most: then FP32 registers take over ("promotion"), which round to
// nearest.
//
// A block is a thread that asks for tiles of the operands (TMA) and two warpgroups that make 64 of a tile's 128 rows
// each. All three parts of 64 terms of both operands are in shared memory at once, so that six products cost six tiles.
// Two blocks, a cluster, share each tile of b: either fetches half of it for both. Where tiles are too few for the card
// the sum is divided, and a second kernel adds the parts in order.
#include "host.cuh"
#include "tile_loop.cuh"
#include "vec.cuh"

namespace {
enum { TILE = 128, L = 64, HALF = TILE / 2, HALF_BYTES = HALF * L * 2, OPERAND = 2 * HALF_BYTES };
// A piece, 64 terms, has six slots: a2, b0, a1, b1, a0, b2, in the order of their first use.
enum { TERMS = 3, PRODUCTS = 6 };

// out [rows, cols] FP32 = Σ a·b over `inner` terms, + bias, + add. a and b are parts as mz_cu_fp32_split writes them, a
// those of a first operand and b of a second: a [3, rows, inner], or [3, inner, rows]; b [3, cols, inner], or [3,
// inner, cols]. rows or inner, whichever is contiguous, and cols are multiples of 8; a [inner, rows] goes with b
// [inner, cols].
struct mz_cu_promoted {
    const void *a, *b;
    bool a_by_rows, b_by_rows; // inner is contiguous
    const float *bias;         // [cols] or NULL
    const float *add;          // [rows, cols], may be out; or NULL
    float *out;
    float *partial; // [splits, rows, cols]; NULL with one
    int64_t rows, cols, inner;
    int splits; // of the sum
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Fetches piece k of 64 rows of an operand's part. BY_ROWS: the part is [rows, inner], else [inner, rows].
template <bool BY_ROWS>
__device__ __forceinline__ void fetch_term(uint32_t to, const CUtensorMap *map, int row, int k, int part,
                                           uint32_t barrier) {
    fetch_box_of_three(to, map, BY_ROWS ? k * L : row, BY_ROWS ? row : k * L, part, barrier);
}

// The warps of both blocks release a slot of b, which both blocks' threads write; those of one block a slot of a.
__device__ __forceinline__ void release(uint32_t empty, int slot, uint32_t rank) {
    const uint32_t lane = threadIdx.x & 31;
    if (slot % 2 == 0 ? lane == 0 : lane < CLUSTER)
        barrier_arrive_at(empty + slot * 8, slot % 2 == 0 ? rank : lane);
}

// Stores a thread's results: columns 8·j + 2·(lane % 4), + 1 of rows lane/4 ([0, 1]) and lane/4 + 8 ([2, 3]) of its
// warp's 16.
__device__ __forceinline__ void store(const mz_cu_promoted &g, int64_t row, int col, int split,
                                      const float (&total)[16][4]) {
    int lane = static_cast<int>(threadIdx.x) & 31;
    bool whole = g.splits == 1;
    float *out = whole ? g.out : g.partial + split * g.rows * g.cols;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t m = row + r * 8 + (lane >> 2);
        if (m >= g.rows)
            continue;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            int64_t c = col + j * 8 + (lane & 3) * 2, at = m * g.cols + c;
            if (c >= g.cols)
                continue;
            float2 x = make_float2(total[j][2 * r], total[j][2 * r + 1]);
            if (whole && g.bias != nullptr) {
                float2 bias = *reinterpret_cast<const float2 *>(g.bias + c);
                x = make_float2(x.x + bias.x, x.y + bias.y);
            }
            if (whole && g.add != nullptr) {
                float2 add = *reinterpret_cast<const float2 *>(g.add + at);
                x = make_float2(x.x + add.x, x.y + add.y);
            }
            *reinterpret_cast<float2 *>(out + at) = x;
        }
    }
}

#endif

template <bool A_BY_ROWS, bool B_BY_ROWS> struct promoted : tile_policy<2> {
    enum { SLOTS = 2 * TERMS, SLOT = OPERAND };
    using args = mz_cu_promoted;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using walk = dense_walk<args, TILE, TILE, L, 1, true>;
    static __device__ __forceinline__ int readers(int slot) {
        return slot % 2 == 0 ? WARPS : CLUSTER * WARPS;
    }

    struct loads {
        int rank, row, col;
        __device__ __forceinline__ loads(const mz_cu_promoted &, const tile_share &s, uint32_t block)
            : rank(static_cast<int>(block)) {
            row = static_cast<int>(s.down * (CLUSTER * TILE)) + rank * TILE;
            col = static_cast<int>(s.right) * TILE + rank * HALF;
        }
        __device__ __forceinline__ void fetch(const tile_maps &maps, int k, const auto &ring) const {
#pragma unroll
            for (int i = 0; i < 2 * TERMS; i++) {
                const uint32_t to = ring.slot(i), ready = ring.full(i);
                barrier_wait(ring.empty(i), ring.parity() ^ 1);
                barrier_expect(ready, OPERAND);
                if (i % 2 == 0) {
                    fetch_term<A_BY_ROWS>(to, maps.a, row, k, i / 2, ready);
                    fetch_term<A_BY_ROWS>(to + HALF_BYTES, maps.a, row + HALF, k, i / 2, ready);
                } else {
                    fetch_box_of_three_for_all(to + rank * HALF_BYTES, maps.b, B_BY_ROWS ? k * L : col,
                                               B_BY_ROWS ? col : k * L, i / 2, ready);
                }
            }
        }
    };

    struct sums {
        float total[16][4] = {};
        __device__ __forceinline__ sums(const mz_cu_promoted &, const tile_warp &, const tile_share &) {}
        __device__ __forceinline__ void multiply(const mz_cu_promoted &, const tile_warp &w, const tile_share &, int,
                                                 const auto &ring) {
            // The smallest products first, of which slots they are, which slots the one before has done with.
            constexpr int a_of[PRODUCTS] = {0, 2, 4, 2, 4, 4}, b_of[PRODUCTS] = {1, 3, 5, 1, 3, 1};
            constexpr int done[PRODUCTS] = {0, -1, 5, 2, 3, 4};
            const uint32_t place = ring.slot(), here = ring.empty();
            float d[16][4] = {};
#pragma unroll
            for (int i = 0; i < PRODUCTS; i++) {
                if (i < TERMS) {
                    barrier_wait(ring.full(a_of[i]), ring.parity());
                    barrier_wait(ring.full(b_of[i]), ring.parity());
                }
                uint64_t a = wgmma_operand(place + a_of[i] * OPERAND + w.group * HALF_BYTES, HALF_BYTES),
                         b = wgmma_operand(place + b_of[i] * OPERAND, HALF_BYTES);
                wgmma_begin();
#pragma unroll
                for (int l = 0; l < L; l += 16) // 16 of l are 32 bytes of a row, or 16 rows
                    wgmma_multiply<__nv_bfloat16, !A_BY_ROWS, !B_BY_ROWS>(
                        d, a + (A_BY_ROWS ? l * 2 >> 4 : l * 128 >> 4), b + (B_BY_ROWS ? l * 2 >> 4 : l * 128 >> 4));
                wgmma_commit();
                if (i > 0) {
                    wgmma_wait<1>();
                    if (done[i - 1] >= 0)
                        release(here, done[i - 1], w.rank);
                }
            }
            wgmma_wait<0>();
            release(here, 4, w.rank);
            release(here, 1, w.rank);
#pragma unroll
            for (int i = 0; i < 64; i++)
                total[i / 4][i % 4] += d[i / 4][i % 4];
        }
        __device__ __forceinline__ void finish(const mz_cu_promoted &g, const tile_warp &w, const tile_share &s,
                                               const auto &) const {
            store(g, static_cast<int64_t>(s.down) * (CLUSTER * TILE) + w.rank * TILE + w.group * HALF + w.index * 16,
                  static_cast<int>(s.right) * TILE, s.split, total);
        }
    };
#endif
};

enum { BLOCK = 256 };
__global__ void __launch_bounds__(BLOCK) add_splits_kernel(const mz_cu_promoted g) {
    wait_for_before();
    int64_t n = g.rows * g.cols / 4, i = static_cast<int64_t>(blockIdx.x) * BLOCK + threadIdx.x;
    if (i >= n)
        return;
    const float4 *partial = reinterpret_cast<const float4 *>(g.partial);
    float4 x = partial[i];
    for (int s = 1; s < g.splits; s++)
        x = add4(x, partial[s * n + i]);
    if (g.bias != nullptr)
        x = add4(x, *reinterpret_cast<const float4 *>(g.bias + i * 4 % g.cols));
    if (g.add != nullptr)
        x = add4(x, reinterpret_cast<const float4 *>(g.add)[i]);
    reinterpret_cast<float4 *>(g.out)[i] = x;
}

// --- launching -----------------------------------------------------------------------------------------------------
// Boxes of 64 × 64 of three matrices [rows, cols], consecutive.
bool describe(CUtensorMap *map, const void *data, bool by_rows, int64_t others, int64_t inner) {
    const int64_t cols = by_rows ? inner : others, rows = by_rows ? others : inner;
    return describe_boxes<3>(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, {cols, rows, TERMS},
                             {cols * 2, rows * cols * 2}, {L, HALF, 1});
}

template <bool A_BY_ROWS, bool B_BY_ROWS>
cudaError_t run(cudaStream_t stream, const mz_cu_promoted &g, int sms, bool prepare) {
    using policy = promoted<A_BY_ROWS, B_BY_ROWS>;
    if (prepare)
        return prepare_tiles<policy>();
    CUtensorMap a, b;
    if (!describe(&a, g.a, A_BY_ROWS, g.rows, g.inner) || !describe(&b, g.b, B_BY_ROWS, g.cols, g.inner))
        return cudaErrorNotSupported;
    const cudaError_t error =
        launch_tiles<policy>(stream, g, a, b, count_pairs<TILE, TILE>(g.rows, g.cols) * g.splits, sms);
    if (error != cudaSuccess || g.splits == 1)
        return error;
    return launch_dependent(stream, add_splits_kernel, static_cast<unsigned>((g.rows * g.cols / 4 + BLOCK - 1) / BLOCK),
                            BLOCK, 0, g);
}

cudaError_t run_promoted(const mz_cuda_device *cuda, const mz_cu_promoted &g, bool prepare) {
    return (!g.a_by_rows  ? run<false, false>
            : g.b_by_rows ? run<true, true>
                          : run<true, false>)(cuda->stream, g, cuda->sms, prepare);
}
} // namespace

// --- which calls of linear, linear_dx and linear_dw ------------------------------------------------------------------
// The omitted terms x1·y2 + x2·y1 + x2·y2 are at most 1.002·2⁻²⁴ of |x·y|, a rounding of FP32, which the ops' bounds
// have for each term of a sum (docs/dev/NUMERICS.md).
enum { LEAST = 64, ALIGN = 256, ROUND = 256, USES = 300 };
#define MOST                                                                                                           \
    (static_cast<int64_t>(1) << 30) // most bytes of the parts of the operand that has the rows; more rows are divided
#define WORTH (1 << 28)             // least multiplications: these take 10 µs without tensor cores

struct terms_plan {
    int64_t rows, turn; // all rows, and those of one part
    int64_t width[2];   // of the operands' rows
    size_t bytes[2];    // of the operands' parts
};

static int64_t rows_of(const mz_tensor *t, int64_t width) {
    return mz_shape_count(&t->shape) / width;
}

static const char *check(mezzo_device *device, const mz_call *call) {
    bool dw = call->op == MZ_OP_linear_dw, forward = call->op == MZ_OP_linear;
    const mz_cuda_device *cuda = mz_cuda(device);
    const char *reason = mz_cuda_storages(call, "f", "f");
    if (reason != NULL)
        return reason;
    if (call->numerics.compute != MEZZO_F32 || (forward && call->attrs.via != MEZZO_F32))
        return "computes in fp32";
    if (cuda->fp32_by_fma)
        return "MEZZO_CUDA_FP32 is fma";
    if (cuda->cc != 90)
        return "is for compute capability 9.0";
    for (int i = dw || forward ? 2 : 1; i < call->n_out; i++)
        if (mz_present(&call->out[i]))
            return "makes no sums beside the product";
    return NULL;
}

static const char *make_plan(mezzo_device *device, const mz_call *call, terms_plan *p) {
    bool dw = call->op == MZ_OP_linear_dw, forward = call->op == MZ_OP_linear;
    const char *reason = check(device, call);
    if (reason != NULL)
        return reason;
    const mz_shape *w = dw ? &call->out[0].shape : &call->in[1].shape; // [N, K]
    *p = {.width = {forward ? w->dim[1] : w->dim[0], w->dim[1]}};
    p->rows = rows_of(&call->in[0], p->width[0]);
    if (w->dim[0] % 8 != 0 || w->dim[1] % 8 != 0)
        return "rows are no multiples of 16 bytes";
    if (p->rows >= static_cast<int64_t>(1) << 30 || w->dim[0] >= 1 << 30 || w->dim[1] >= 1 << 30)
        return "rows of a matrix fit in 30 bits";
    // a·b multiplications of each of the sum's terms pay for splitting a + b numbers where a·b/(a + b) is a few hundred
    int64_t inner = dw ? p->rows : p->width[0], all = p->rows * w->dim[0] * w->dim[1];
    int64_t ends = p->rows + w->dim[0] + w->dim[1] - inner;
    if (inner < LEAST || all < WORTH || all / inner / ends < USES)
        return "too small for splitting operands to be worth it";
    int64_t widest = dw && p->width[1] > p->width[0] ? p->width[1] : p->width[0];
    int64_t most = MOST / (static_cast<int64_t>(sizeof(uint16_t)) * TERMS * widest) / ROUND * ROUND;
    p->turn = p->rows <= most ? p->rows : most > 0 ? most : ROUND;
    int64_t there[2] = {p->turn, dw ? p->turn : rows_of(&call->in[1], p->width[1])};
    for (int i = 0; i < 2; i++)
        p->bytes[i] = mz_align_up(static_cast<size_t>(there[i] * p->width[i]) * TERMS * sizeof(uint16_t), ALIGN);
    return NULL;
}

// Returns the address of element `from · width` of an operand or a result that may be absent.
static float *row_of(const mz_tensor *t, int64_t from, int64_t width) {
    return mz_present(t) && t->data != NULL ? static_cast<float *>(t->data) + from * width : NULL;
}

// Returns whether the product with the residual is the linear's result; else our own kernel makes the result from the
// product, which is in the result's memory, or in preact's where that is requested.
static bool whole(const mz_call *call) {
    return call->attrs.act == MZ_ACT_NONE && !mz_present(&call->out[1]);
}

// Describes the product of `rows` rows from `from` on, whose parts are in the workspace, with its sum divided.
static mz_cu_promoted product_of(const mz_cuda_device *cuda, const mz_call *call, const terms_plan *p, int64_t from,
                                 int64_t rows) {
    bool dw = call->op == MZ_OP_linear_dw, forward = call->op == MZ_OP_linear;
    const mz_tensor *to = forward && mz_present(&call->out[1]) ? &call->out[1] : &call->out[0];
    int64_t cols = forward ? call->in[1].shape.dim[0] : p->width[1];
    char *parts = static_cast<char *>(call->workspace);
    mz_cu_promoted g = {.a = parts, .b = parts + p->bytes[0], .a_by_rows = !dw, .b_by_rows = forward, .cols = cols};
    g.rows = dw ? p->width[0] : rows;
    g.inner = dw ? rows : p->width[0];
    g.out = row_of(to, dw ? 0 : from, cols);
    g.bias = forward ? row_of(&call->in[2], 0, 0) : NULL;
    if (dw)
        g.add = call->attrs.accumulate || from > 0 ? g.out : NULL;
    else if (forward && whole(call))
        g.add = row_of(&call->in[3], from, cols);
    g.splits = choose_splits(count_pairs<TILE, TILE>(g.rows, g.cols), (g.inner + L - 1) / L, g.rows * g.cols, cuda->sms,
                             {1700, 4000, 2500});
    g.partial = g.splits > 1 ? reinterpret_cast<float *>(parts + p->bytes[0] + p->bytes[1]) : NULL;
    return g;
}

static size_t partial_bytes(const mz_cu_promoted &g) {
    return g.splits > 1 ? static_cast<size_t>(g.splits * g.rows * g.cols) * sizeof(float) : 0;
}

static const char *terms_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    mz_cuda_device *cuda = mz_cuda(device);
    terms_plan made, *p;
    const char *reason = make_plan(device, call, &made);
    if (reason != NULL)
        return reason;
    out->state = p = static_cast<terms_plan *>(mz_alloc(1, sizeof *p));
    if (p == NULL)
        return mz_out_of_memory;
    *p = made;
    mz_cu_promoted turn = product_of(cuda, call, p, 0, p->turn);
    mz_cu_promoted last = product_of(cuda, call, p, p->turn, (p->rows - 1) % p->turn + 1);
    size_t bytes = partial_bytes(turn), rest = partial_bytes(last);
    bool sums = call->op == MZ_OP_linear_dw && mz_present(&call->out[1]);
    size_t sum = sums ? mz_cu_column_sums_bytes(p->rows, p->width[0]) : 0;
    bytes = rest > bytes ? rest : bytes;
    out->workspace = p->bytes[0] + p->bytes[1] + (sum > bytes ? sum : bytes);
    return refusal_of_90a(run_promoted(cuda, turn, true));
}

static mezzo_status split(mz_cuda_device *cuda, const terms_plan *p, const mz_tensor *t, int i, int64_t from,
                          int64_t rows, void *out) {
    mz_cu_bf16_terms parts = {.x = row_of(t, from, p->width[i]), .out = out, .n = rows * p->width[i], .second = i == 1};
    MZ_CUDA_TRY(mz_cu_fp32_split(cuda->stream, &parts));
    return MEZZO_OK;
}

// Runs the work after the product of some rows: the activation and additions, or its derivative.
static mezzo_status finish(mz_cuda_device *cuda, const mz_call *call, const mz_cu_promoted *g, int64_t from) {
    const mz_tensor *x = &call->out[0];
    float *out = row_of(x, from, g->cols);
    if (call->op == MZ_OP_linear && !whole(call)) {
        mz_cu_epilogue e = {.z = {g->out, MEZZO_F32},
                            .residual = {row_of(&call->in[3], from, g->cols), MEZZO_F32},
                            .y = {out, MEZZO_F32},
                            .rows = g->rows,
                            .cols = g->cols,
                            .act = static_cast<int>(call->attrs.act),
                            .via = MEZZO_F32};
        MZ_CUDA_TRY(mz_cu_linear_epilogue(cuda->stream, &e));
    }
    if (call->op == MZ_OP_linear_dx && mz_present(&call->in[2]))
        MZ_CUDA_TRY(mz_cu_act_dx(cuda->stream, out, {row_of(&call->in[2], from, g->cols), MEZZO_F32}, {out, MEZZO_F32},
                                 g->rows * g->cols, static_cast<int>(call->attrs.act)));
    return MEZZO_OK;
}

static mezzo_status terms_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    bool dw = call->op == MZ_OP_linear_dw;
    const terms_plan *p = static_cast<const terms_plan *>(call->state);
    char *parts[2] = {static_cast<char *>(call->workspace), static_cast<char *>(call->workspace) + p->bytes[0]},
         *rest = parts[1] + p->bytes[1];
    if (!dw)
        MEZZO_TRY(split(cuda, p, &call->in[1], 1, 0, rows_of(&call->in[1], p->width[1]), parts[1]));
    for (int64_t from = 0; from < p->rows; from += p->turn) {
        int64_t rows = p->rows - from < p->turn ? p->rows - from : p->turn;
        for (int i = 0; i <= (dw ? 1 : 0); i++)
            MEZZO_TRY(split(cuda, p, &call->in[i], i, from, rows, parts[i]));
        mz_cu_promoted g = product_of(cuda, call, p, from, rows);
        MZ_CUDA_TRY(run_promoted(cuda, g, false));
        MEZZO_TRY(finish(cuda, call, &g, from));
    }
    if (dw && mz_present(&call->out[1]))
        MZ_CUDA_TRY(mz_cu_column_sums(cuda->stream, mz_cuda_array(&call->in[0]), data_of<float>(&call->out[1]), p->rows,
                                      p->width[0], call->attrs.accumulate, reinterpret_cast<float *>(rest)));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_linear_bf16_terms = {"linear__cuda_bf16_terms", terms_prepare, terms_run};
const mz_kernel mz_cuda_linear_dx_bf16_terms = {"linear_dx__cuda_bf16_terms", terms_prepare, terms_run};
const mz_kernel mz_cuda_linear_dw_bf16_terms = {"linear_dw__cuda_bf16_terms", terms_prepare, terms_run};
