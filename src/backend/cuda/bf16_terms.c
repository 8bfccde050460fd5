// Runs linear, linear_dx and linear_dw in FP32 on tensor cores: each operand is split into three BF16 numbers, and our
// own kernel adds up their products with FP32's own rounding (kernels/promoted.cu). The omitted terms x1·y2 + x2·y1 +
// x2·y2 are at most 1.002·2⁻²⁴ of |x·y|, a rounding of FP32, which the ops' bounds include for each term of a sum
// (docs/dev/NUMERICS.md).
#include "backend/cuda/storage.h"

enum { LEAST = 64, ALIGN = 256, ROUND = 256, USES = 300, PARTS = 3 };
#define MOST  ((int64_t)1 << 30) // most bytes of the parts of the operand that has the rows; more rows are divided
#define WORTH (1 << 28)          // least multiplications: these take 10 µs without tensor cores

typedef struct plan {
    int64_t rows, turn; // all rows, and those of one part
    int64_t width[2];   // of the operands' rows
    size_t bytes[2];    // of the operands' parts
} plan;

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

static const char *make_plan(mezzo_device *device, const mz_call *call, plan *p) {
    bool dw = call->op == MZ_OP_linear_dw, forward = call->op == MZ_OP_linear;
    const char *reason = check(device, call);
    if (reason != NULL)
        return reason;
    const mz_shape *w = dw ? &call->out[0].shape : &call->in[1].shape; // [N, K]
    *p = (plan){.width = {forward ? w->dim[1] : w->dim[0], w->dim[1]}};
    p->rows = rows_of(&call->in[0], p->width[0]);
    if (w->dim[0] % 8 != 0 || w->dim[1] % 8 != 0)
        return "rows are no multiples of 16 bytes";
    if (p->rows >= (int64_t)1 << 30 || w->dim[0] >= 1 << 30 || w->dim[1] >= 1 << 30)
        return "rows of a matrix fit in 30 bits";
    // a·b multiplications of each of the sum's terms pay for splitting a + b numbers where a·b/(a + b) is a few hundred
    int64_t inner = dw ? p->rows : p->width[0], all = p->rows * w->dim[0] * w->dim[1];
    int64_t ends = p->rows + w->dim[0] + w->dim[1] - inner;
    if (inner < LEAST || all < WORTH || all / inner / ends < USES)
        return "too small for splitting operands to be worth it";
    int64_t widest = dw && p->width[1] > p->width[0] ? p->width[1] : p->width[0];
    int64_t most = MOST / ((int64_t)sizeof(uint16_t) * PARTS * widest) / ROUND * ROUND;
    p->turn = p->rows <= most ? p->rows : most > 0 ? most : ROUND;
    int64_t there[2] = {p->turn, dw ? p->turn : rows_of(&call->in[1], p->width[1])};
    for (int i = 0; i < 2; i++)
        p->bytes[i] = mz_align_up((size_t)(there[i] * p->width[i]) * PARTS * sizeof(uint16_t), ALIGN);
    return NULL;
}

// Returns the address of element `from · width` of an operand or a result that may be absent.
static float *row_of(const mz_tensor *t, int64_t from, int64_t width) {
    return mz_present(t) && t->data != NULL ? (float *)t->data + from * width : NULL;
}

// Returns whether the product with the residual is the linear's result; else our own kernel makes the result from the
// product, which is in the result's memory, or in preact's where that is requested.
static bool whole(const mz_call *call) {
    return call->attrs.act == MZ_ACT_NONE && !mz_present(&call->out[1]);
}

// Describes the product of `rows` rows from `from` on, whose parts are in the workspace, with its sum divided.
static mz_cu_promoted product_of(const mz_cuda_device *cuda, const mz_call *call, const plan *p, int64_t from,
                                 int64_t rows) {
    bool dw = call->op == MZ_OP_linear_dw, forward = call->op == MZ_OP_linear;
    const mz_tensor *to = forward && mz_present(&call->out[1]) ? &call->out[1] : &call->out[0];
    int64_t cols = forward ? call->in[1].shape.dim[0] : p->width[1];
    char *parts = call->workspace;
    mz_cu_promoted g = {.a = parts, .b = parts + p->bytes[0], .a_by_rows = !dw, .b_by_rows = forward, .cols = cols};
    g.rows = dw ? p->width[0] : rows;
    g.inner = dw ? rows : p->width[0];
    g.out = row_of(to, dw ? 0 : from, cols);
    g.bias = forward ? row_of(&call->in[2], 0, 0) : NULL;
    if (dw)
        g.add = call->attrs.accumulate || from > 0 ? g.out : NULL;
    else if (forward && whole(call))
        g.add = row_of(&call->in[3], from, cols);
    g.splits = mz_cu_promoted_splits(&g, cuda->sms);
    g.partial = g.splits > 1 ? (float *)(void *)(parts + p->bytes[0] + p->bytes[1]) : NULL;
    return g;
}

static size_t partial_bytes(const mz_cu_promoted *g) {
    return g->splits > 1 ? (size_t)(g->splits * g->rows * g->cols) * sizeof(float) : 0;
}

static const char *terms_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    mz_cuda_device *cuda = mz_cuda(device);
    plan made, *p;
    const char *reason = make_plan(device, call, &made);
    if (reason != NULL)
        return reason;
    out->state = p = mz_alloc(1, sizeof *p);
    if (p == NULL)
        return mz_out_of_memory;
    *p = made;
    mz_cu_promoted turn = product_of(cuda, call, p, 0, p->turn);
    mz_cu_promoted last = product_of(cuda, call, p, p->turn, (p->rows - 1) % p->turn + 1);
    size_t bytes = partial_bytes(&turn), rest = partial_bytes(&last);
    bool sums = call->op == MZ_OP_linear_dw && mz_present(&call->out[1]);
    size_t sum = sums ? mz_cu_column_sums_bytes(p->rows, p->width[0]) : 0;
    bytes = rest > bytes ? rest : bytes;
    out->workspace = p->bytes[0] + p->bytes[1] + (sum > bytes ? sum : bytes);
    bool ready = mz_cu_promoted_run(cuda->stream, &turn, cuda->sms, true) == cudaSuccess;
    (void)cudaGetLastError();
    return ready ? NULL : "this build has no code for compute capability 9.0a";
}

static mezzo_status split(mz_cuda_device *cuda, const plan *p, const mz_tensor *t, int i, int64_t from, int64_t rows,
                          void *out) {
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
                            .act = (int)call->attrs.act,
                            .via = MEZZO_F32};
        MZ_CUDA_TRY(mz_cu_linear_epilogue(cuda->stream, &e));
    }
    if (call->op == MZ_OP_linear_dx && mz_present(&call->in[2]))
        MZ_CUDA_TRY(mz_cu_act_dx(cuda->stream, out, (mz_cu_array){row_of(&call->in[2], from, g->cols), MEZZO_F32},
                                 (mz_cu_array){out, MEZZO_F32}, g->rows * g->cols, (int)call->attrs.act));
    return MEZZO_OK;
}

static mezzo_status terms_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    bool dw = call->op == MZ_OP_linear_dw;
    const plan *p = call->state;
    char *parts[2] = {call->workspace, (char *)call->workspace + p->bytes[0]}, *rest = parts[1] + p->bytes[1];
    if (!dw)
        MEZZO_TRY(split(cuda, p, &call->in[1], 1, 0, rows_of(&call->in[1], p->width[1]), parts[1]));
    for (int64_t from = 0; from < p->rows; from += p->turn) {
        int64_t rows = p->rows - from < p->turn ? p->rows - from : p->turn;
        for (int i = 0; i <= (dw ? 1 : 0); i++)
            MEZZO_TRY(split(cuda, p, &call->in[i], i, from, rows, parts[i]));
        mz_cu_promoted g = product_of(cuda, call, p, from, rows);
        MZ_CUDA_TRY(mz_cu_promoted_run(cuda->stream, &g, cuda->sms, false));
        MEZZO_TRY(finish(cuda, call, &g, from));
    }
    if (dw && mz_present(&call->out[1]))
        MZ_CUDA_TRY(mz_cu_column_sums(cuda->stream, mz_cuda_array(&call->in[0]), call->out[1].data, p->rows,
                                      p->width[0], call->attrs.accumulate, (float *)(void *)rest));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_linear_bf16_terms = {"linear__cuda_bf16_terms", terms_prepare, terms_run};
const mz_kernel mz_cuda_linear_dx_bf16_terms = {"linear_dx__cuda_bf16_terms", terms_prepare, terms_run};
const mz_kernel mz_cuda_linear_dw_bf16_terms = {"linear_dw__cuda_bf16_terms", terms_prepare, terms_run};
