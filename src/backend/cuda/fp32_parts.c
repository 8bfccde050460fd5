// linear, linear_dx and linear_dw in FP32 on tensor cores: each operand is split into three BF16 numbers, and the
// library multiplies these as one BF16 product of six times the depth (kernels/fp32_parts.cu), or, where operands are
// large beside a sum over rows, as three products of three, two and one times the depth, which read the same three
// parts. What is left out, x1·y2 + x2·y1 + x2·y2, is at most 1.002·2⁻²⁴ of |x·y|, a rounding of FP32, which the ops'
// bounds have for each term of a sum (docs/dev/NUMERICS.md).
#include "backend/cuda/storage.h"

extern const mz_kernel mz_cuda_linear, mz_cuda_linear_dx, mz_cuda_linear_dw;

enum { LEAST = 64, ALIGN = 256, ROUND = 256, USES = 300, PARTS = 3, PRODUCTS = 6 };
#define MOST   ((int64_t)1 << 30) // bytes of the parts of the operand that has the rows; more rows go in turns
#define WORTH  (1 << 28)          // multiplications: 10 µs without tensor cores
// Numbers of operands from which it saves more to write parts once, not twice, than two more launches and adding to the
// result take.
#define SHARED (3 << 20)

// Turns that differ in what their products do: the first may write where the others add, the last may have fewer rows.
enum { FIRST, MIDDLE, LAST, KINDS };

typedef struct plan {
    const mz_kernel *product;
    mz_prepared products_of[KINDS][PARTS];
    int64_t rows, turn; // in all, at once
    int products;       // that a turn takes: 1 or 3
    int64_t width[2];   // of the operands' rows
    size_t bytes[2];    // of the operands' parts
} plan;

static int64_t rows_of(const mz_tensor *t, int64_t width) {
    return mz_shape_count(&t->shape) / width;
}

static void matrix(mz_tensor *t, int64_t rows, int64_t cols) {
    t->shape = (mz_shape){.rank = 2, .dim = {rows, cols}};
}

// Which rows of an operand or result one turn has to do with: a view.
static mz_tensor some_rows(const mz_tensor *t, int64_t all, int64_t from, int64_t rows) {
    mz_tensor view = *t;
    if (!mz_present(t))
        return view;
    int64_t width = mz_shape_count(&t->shape) / all;
    matrix(&view, rows, width);
    if (t->data != NULL)
        view.data = (char *)t->data + (size_t)(from * width) * mezzo_dtype_size(t->dtype);
    return view;
}

// The call of `rows` rows from `from` on, of its products the one with that number; its operands are bound later.
static mz_call turn_of(const mz_call *call, const plan *p, int64_t from, int64_t rows, int product) {
    mz_call turn = *call;
    turn.numerics.compute = MEZZO_BF16;
    turn.in[0].dtype = turn.in[1].dtype = MEZZO_BF16;
    if (call->op == MZ_OP_linear_dw) { // sums over rows: all parts of dy and x one below the other
        int64_t depth = (p->products == 1 ? PRODUCTS : PARTS - product) * rows;
        matrix(&turn.in[0], depth, p->width[0]);
        matrix(&turn.in[1], depth, p->width[1]);
        turn.out[1].shape.rank = -1; // that comes from dy itself
        turn.attrs.accumulate = call->attrs.accumulate || from > 0 || product > 0;
        return turn;
    }
    matrix(&turn.in[0], rows, PRODUCTS * p->width[0]);
    if (call->op == MZ_OP_linear)
        matrix(&turn.in[1], call->in[1].shape.dim[0], PRODUCTS * p->width[1]);
    else
        matrix(&turn.in[1], PRODUCTS * call->in[1].shape.dim[0], p->width[1]);
    for (int i = call->op == MZ_OP_linear ? 3 : 2; i < call->n_in; i++) // residual; preact
        turn.in[i] = some_rows(&call->in[i], p->rows, from, rows);
    for (int i = 0; i < call->n_out; i++)
        turn.out[i] = some_rows(&call->out[i], p->rows, from, rows);
    return turn;
}

static const char *make_plan(mezzo_device *device, const mz_call *call, plan *p) {
    bool dw = call->op == MZ_OP_linear_dw, forward = call->op == MZ_OP_linear;
    const char *reason = mz_cuda_storages(call, "f", "f");
    if (reason != NULL)
        return reason;
    if (call->numerics.compute != MEZZO_F32)
        return "computes in fp32";
    if (mz_cuda(device)->fp32_by_fma)
        return "MEZZO_CUDA_FP32 is fma";
    for (int i = dw || forward ? 2 : 1; i < call->n_out; i++)
        if (mz_present(&call->out[i]))
            return "makes no sums beside the product";
    const mz_shape *w = dw ? &call->out[0].shape : &call->in[1].shape; // [N, K]
    *p = (plan){.product = forward ? &mz_cuda_linear : dw ? &mz_cuda_linear_dw : &mz_cuda_linear_dx};
    p->width[0] = forward ? w->dim[1] : w->dim[0];
    p->width[1] = w->dim[1];
    p->rows = rows_of(&call->in[0], p->width[0]);
    if (mz_cuda(device)->cc < 80)
        return "no bf16 arithmetic before compute capability 8.0";
    if (w->dim[0] % 8 != 0 || w->dim[1] % 8 != 0)
        return "rows are no multiples of 16 bytes";
    // a·b multiplications of each of the sum's terms pay for splitting a + b numbers where a·b/(a + b) is a few hundred
    int64_t inner = dw ? p->rows : p->width[0], all = p->rows * w->dim[0] * w->dim[1];
    int64_t ends = p->rows + w->dim[0] + w->dim[1] - inner;
    if (inner < LEAST || all < WORTH || all / inner / ends < USES)
        return "too small for splitting operands to be worth it";
    p->products = dw && p->rows * (w->dim[0] + w->dim[1]) >= SHARED ? PARTS : 1;
    int size = p->products == 1 ? PRODUCTS : PARTS; // parts of a number that are written
    int64_t widest = dw && p->width[1] > p->width[0] ? p->width[1] : p->width[0];
    int64_t most = MOST / ((int64_t)sizeof(uint16_t) * size * widest) / ROUND * ROUND;
    p->turn = p->rows <= most ? p->rows : most > 0 ? most : ROUND;
    int64_t there[2] = {p->turn, dw ? p->turn : rows_of(&call->in[1], p->width[1])};
    for (int i = 0; i < 2; i++)
        p->bytes[i] = mz_align_up((size_t)(there[i] * p->width[i]) * (size_t)size * sizeof(uint16_t), ALIGN);
    return NULL;
}

static int kind_of(const plan *p, int64_t from) {
    return from == 0 ? FIRST : p->rows - from < p->turn ? LAST : MIDDLE;
}

// Makes the products of the turn from a row on ready, if those of its kind are not; *bytes: the most that one takes.
static const char *prepare_turn(mezzo_device *device, const mz_call *call, plan *p, int64_t from, size_t *bytes) {
    mz_prepared *ready = p->products_of[kind_of(p, from)];
    int64_t left = p->rows - from, rows = left < p->turn ? left : p->turn;
    for (int i = 0; i < p->products && ready[i].kernel == NULL; i++) {
        mz_call turn = turn_of(call, p, from, rows, i);
        const char *reason = mz_prepare_kernel(device, p->product, &turn, &ready[i]);
        if (reason != NULL)
            return reason;
        *bytes = ready[i].workspace > *bytes ? ready[i].workspace : *bytes;
    }
    return NULL;
}

static void release_plan(void *state) {
    plan *p = state;
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < PARTS; i++)
            mz_prepared_free(&p->products_of[kind][i]);
    mz_free(p);
}

static const char *parts_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    plan made, *p;
    const char *reason = make_plan(device, call, &made);
    if (reason != NULL)
        return reason;
    out->state = p = mz_alloc(1, sizeof *p);
    out->release = release_plan;
    if (p == NULL)
        return mz_out_of_memory;
    *p = made;
    const int64_t turns[] = {0, p->turn, (p->rows - 1) / p->turn * p->turn};
    size_t bytes = 0;
    for (size_t t = 0; t < MZ_COUNT(turns) && reason == NULL; t++)
        if (turns[t] < p->rows)
            reason = prepare_turn(device, call, p, turns[t], &bytes);
    bool sums = call->op == MZ_OP_linear_dw && mz_present(&call->out[1]);
    size_t sum = sums ? mz_cu_column_sums_bytes(p->rows, p->width[0]) : 0;
    out->workspace = p->bytes[0] + p->bytes[1] + (sum > bytes ? sum : bytes);
    return reason;
}

static mezzo_status split(mz_cuda_device *cuda, const plan *p, const mz_tensor *t, int i, bool below, void *out) {
    mz_cu_fp32_parts parts = {.x = t->data,
                              .out = out,
                              .rows = rows_of(t, p->width[i]),
                              .cols = p->width[i],
                              .second = i == 1,
                              .below = below,
                              .sixfold = p->products == 1};
    MZ_CUDA_TRY(mz_cu_fp32_split(cuda->stream, &parts));
    return MEZZO_OK;
}

static mezzo_status parts_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    bool dw = call->op == MZ_OP_linear_dw;
    const plan *p = call->state;
    char *parts[2] = {call->workspace, (char *)call->workspace + p->bytes[0]}, *rest = parts[1] + p->bytes[1];
    if (!dw)
        MEZZO_TRY(split(cuda, p, &call->in[1], 1, call->op == MZ_OP_linear_dx, parts[1]));
    for (int64_t from = 0; from < p->rows; from += p->turn) {
        int64_t rows = p->rows - from < p->turn ? p->rows - from : p->turn;
        for (int i = 0; i <= (dw ? 1 : 0); i++) {
            mz_tensor some = some_rows(&call->in[i], p->rows, from, rows);
            MEZZO_TRY(split(cuda, p, &some, i, dw, parts[i]));
        }
        for (int product = 0; product < p->products; product++) { // x2 x1 x0 by y0 y1 y2; x1 x0 by y0 y1; x0 by y0
            mz_call turn = turn_of(call, p, from, rows, product);
            turn.in[0].data = parts[0] + (size_t)(product * rows * p->width[0]) * sizeof(uint16_t);
            turn.in[1].data = parts[1];
            turn.workspace = rest;
            turn.state = p->products_of[kind_of(p, from)][product].state;
            MEZZO_TRY(p->product->run(device, &turn));
        }
    }
    if (dw && mz_present(&call->out[1]))
        MZ_CUDA_TRY(mz_cu_column_sums(cuda->stream, mz_cuda_array(&call->in[0]), call->out[1].data, p->rows,
                                      p->width[0], call->attrs.accumulate, (float *)(void *)rest));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_linear_parts = {"linear__cuda_parts", parts_prepare, parts_run};
const mz_kernel mz_cuda_linear_dx_parts = {"linear_dx__cuda_parts", parts_prepare, parts_run};
const mz_kernel mz_cuda_linear_dw_parts = {"linear_dw__cuda_parts", parts_prepare, parts_run};
