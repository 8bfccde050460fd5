#include "runtime/exchange.h"

#include "backend/collective.h"
#include "quant/entry.h"

enum { OPERANDS = 2 }; // a record has the counts of a rank's experts, and the scales of two operands as bits

typedef struct exchange {
    int ranks;
    int64_t experts;   // here
    mz_call product;   // of one rank's rows with the experts here
    mz_prepared inner; // its plan
    // The workspace: bytes before each of these.
    size_t sent, received; // I32 [ranks][experts + OPERANDS]
    size_t offsets;        // I32 [experts + 1]: of the rows that came
    size_t rows[OPERANDS]; // that came; after one operand of rows, results
    size_t packed[OPERANDS];
} exchange;

static bool is_dw(const mz_call *call) {
    return call->op == MZ_OP_grouped_linear_dw;
}

static int operands_of(const mz_call *call) { // operands of rows
    return is_dw(call) ? 2 : 1;
}

static size_t row_bytes(const mz_tensor *t) {
    return (size_t)t->shape.dim[1] * mezzo_dtype_size(t->dtype);
}

// --- prepared ------------------------------------------------------------------------------------------------------
static void release(void *state) {
    exchange *x = state;
    mz_prepared_free(&x->inner);
    mz_free(x);
}

static size_t take(size_t *bytes, size_t more) {
    const size_t at = mz_align_up(*bytes, 64);
    *bytes = at + more;
    return at;
}

static void lay_out(exchange *x, const mz_call *call, size_t *bytes) {
    const size_t table = (size_t)x->ranks * (size_t)(x->experts + OPERANDS) * sizeof(int32_t);
    const size_t rows = (size_t)call->in[0].shape.dim[0];
    *bytes = x->inner.workspace;
    x->sent = take(bytes, table);
    x->received = take(bytes, table);
    x->offsets = take(bytes, (size_t)(x->experts + 1) * sizeof(int32_t));
    x->rows[0] = take(bytes, rows * row_bytes(&call->in[0]));
    x->rows[1] = take(bytes, rows * row_bytes(is_dw(call) ? &call->in[1] : &call->out[0]));
    for (int i = 0; i < operands_of(call); i++)
        x->packed[i] = take(bytes, call->in[i].columnwise ? rows * row_bytes(&call->in[i]) : 0);
}

// Returns the product of one rank's rows. Rows that came lie row by row.
static mz_call product_of(const mz_call *call, int ranks) {
    mz_call product = *call;
    mz_tensor *offsets = &product.in[MZ_IN(grouped_linear, offsets)];
    offsets->shape.dim[0] = (offsets->shape.dim[0] - 1) / ranks + 1;
    for (int i = 0; i < operands_of(call); i++)
        product.in[i].columnwise = false;
    if (is_dw(call))
        product.out[0].shape.dim[0] /= ranks;
    return product;
}

static mezzo_status run_product(mezzo_device *device, const mz_call *call);
static mezzo_status run_quantize(mezzo_device *device, const mz_call *call);
static const mz_kernel product_kernel = {"exchange", NULL, run_product};
static const mz_kernel quantize_kernel = {"exchange", NULL, run_quantize};

mezzo_status mz_exchange_prepare(mezzo_device *device, int ranks, const mz_call *call, mz_prepared *out) {
    const bool quantizes = call->op == MZ_OP_quantize;
    *out = (mz_prepared){0};
    if (device->backend->queue)
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "ranks.experts exchange runs on CPU ranks: on a GPU the host does not know the numbers of rows; "
                       "use ranks.experts gather");
    exchange *x = mz_alloc(1, sizeof *x);
    if (x == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    x->ranks = ranks;
    x->product = quantizes ? *call : product_of(call, ranks);
    mezzo_status status = mz_prepare(device, &x->product, &x->inner);
    if (status != MEZZO_OK) {
        mz_free(x);
        return status;
    }
    *out = (mz_prepared){.kernel = quantizes ? &quantize_kernel : &product_kernel, .state = x, .release = release};
    if (quantizes) {
        out->workspace = x->inner.workspace;
        x->received = take(&out->workspace, (size_t)ranks * sizeof(uint32_t));
        return MEZZO_OK;
    }
    x->experts = x->product.in[MZ_IN(grouped_linear, offsets)].shape.dim[0] - 1;
    lay_out(x, call, &out->workspace);
    return MEZZO_OK;
}

// --- a product -----------------------------------------------------------------------------------------------------
static mezzo_status check_ranks(const mezzo_device *device, int ranks) {
    if (device->comm == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "%d ranks have the experts, and this process is none of them", ranks);
    return MEZZO_OK;
}

static int32_t *table_at(const mz_call *call, size_t table, int rank) {
    const exchange *x = call->state;
    return (int32_t *)(void *)((char *)call->workspace + table) + rank * (x->experts + OPERANDS);
}

static const int32_t *offsets_of(const mz_call *call) {
    return call->in[MZ_IN(grouped_linear, offsets)].data;
}

// Finds this rank's rows for the experts of `rank`: the first, and *count.
static int64_t rows_for(const mz_call *call, int rank, int64_t *count) {
    const exchange *x = call->state;
    const int32_t *offsets = offsets_of(call);
    *count = offsets[(rank + 1) * x->experts] - offsets[rank * x->experts];
    return offsets[rank * x->experts];
}

// Sends every rank the number of rows for each of its experts, and their scales.
static mezzo_status exchange_counts(mezzo_device *device, const mz_call *call) {
    const exchange *x = call->state;
    const int32_t *offsets = offsets_of(call);
    for (int r = 0; r < x->ranks; r++) {
        int32_t *record = table_at(call, x->sent, r);
        for (int64_t e = 0; e < x->experts; e++)
            record[e] = offsets[r * x->experts + e + 1] - offsets[r * x->experts + e];
        for (int i = 0; i < OPERANDS; i++) {
            const float scale = call->in[i].scale != NULL ? *call->in[i].scale : 1;
            memcpy(&record[x->experts + i], &scale, sizeof scale);
        }
    }
    const mz_collective what = {.kind = MZ_ALL_TO_ALL,
                                .send = table_at(call, x->sent, 0),
                                .recv = table_at(call, x->received, 0),
                                .count = (size_t)(x->experts + OPERANDS),
                                .dtype = MEZZO_I32};
    return device->comm->run(device->comm, device, &what);
}

// Returns an operand's rows for a rank, row by row.
static const void *pack(const mz_call *call, int operand, int rank) {
    const exchange *x = call->state;
    const mz_tensor *t = &call->in[operand];
    const int64_t columns = t->shape.dim[1];
    int64_t count;
    const int64_t first = rows_for(call, rank, &count);
    if (!t->columnwise)
        return (const char *)t->data + (size_t)first * row_bytes(t);
    uint8_t *to = (uint8_t *)call->workspace + x->packed[operand];
    for (int64_t i = 0; i < count * columns; i++)
        to[i] = ((const uint8_t *)t->data)[mz_tensor_index(t, first * columns + i)];
    return to;
}

// One round: rows go to rank `to` and come from rank `from`; `here`: both are this rank.
typedef struct round_of {
    int to, from;
    bool here;
    int64_t first, sent, received; // rows
    const int32_t *record;         // of `from`
} round_of;

static mezzo_status send_rows(mezzo_device *device, const mz_tensor *like, const void *send, int64_t sent, int to,
                              void *recv, int64_t received, int from) {
    const size_t width = (size_t)like->shape.dim[1];
    const mz_collective what = {.kind = MZ_SEND_RECEIVE,
                                .send = send,
                                .recv = recv,
                                .count = (size_t)sent * width,
                                .dtype = like->dtype,
                                .root = to,
                                .from = from,
                                .received = (size_t)received * width};
    return device->comm->run(device->comm, device, &what);
}

static int32_t *offsets_from(const mz_call *call, const round_of *r) {
    const exchange *x = call->state;
    int32_t *offsets = (int32_t *)(void *)((char *)call->workspace + x->offsets);
    offsets[0] = 0;
    for (int64_t e = 0; e < x->experts; e++)
        offsets[e + 1] = offsets[e] + r->record[e];
    return offsets;
}

// Exchanges the operands' rows of a round.
static mezzo_status exchange_rows(mezzo_device *device, const mz_call *call, const round_of *r, mz_call *product) {
    const exchange *x = call->state;
    for (int i = 0; i < operands_of(call); i++) {
        const void *mine = pack(call, i, r->to);
        product->in[i].data = r->here ? (void *)(uintptr_t)mine : (char *)call->workspace + x->rows[i];
        product->in[i].shape.dim[0] = r->received;
        if (call->in[i].scale != NULL)
            product->in[i].scale = (const float *)(const void *)&r->record[x->experts + i];
        if (!r->here)
            MEZZO_TRY(send_rows(device, &call->in[i], mine, r->sent, r->to, product->in[i].data, r->received, r->from));
    }
    return MEZZO_OK;
}

static mezzo_status run_round(mezzo_device *device, const mz_call *call, const round_of *r) {
    const exchange *x = call->state;
    char *results = call->out[0].data;
    mz_call product = x->product;
    MEZZO_TRY(exchange_rows(device, call, r, &product));
    product.in[MZ_IN(grouped_linear, offsets)].data = offsets_from(call, r);
    if (is_dw(call)) {
        const size_t part = (size_t)mz_shape_count(&product.out[0].shape) * sizeof(float);
        product.out[0].data = results + (size_t)r->from * part;
    } else {
        results += (size_t)r->first * row_bytes(&call->out[0]);
        product.in[MZ_IN(grouped_linear, w)] = call->in[MZ_IN(grouped_linear, w)];
        product.out[0].data = r->here ? results : (char *)call->workspace + x->rows[1];
        product.out[0].shape.dim[0] = r->received;
    }
    product.workspace = call->workspace;
    product.state = x->inner.state;
    product.rng = call->rng;
    if (r->received > 0 || is_dw(call))
        MEZZO_TRY(x->inner.kernel->run(device, &product));
    return r->here || is_dw(call)
               ? MEZZO_OK
               : send_rows(device, &call->out[0], product.out[0].data, r->received, r->from, results, r->sent, r->to);
}

static mezzo_status run_product(mezzo_device *device, const mz_call *call) {
    const exchange *x = call->state;
    MEZZO_TRY(check_ranks(device, x->ranks));
    MEZZO_TRY(exchange_counts(device, call));
    const int rank = device->comm->rank;
    for (int step = 0; step < x->ranks; step++) {
        round_of r = {.to = (rank + step) % x->ranks, .from = (rank + x->ranks - step) % x->ranks, .here = step == 0};
        r.record = table_at(call, x->received, r.from);
        r.first = rows_for(call, r.to, &r.sent);
        for (int64_t e = 0; e < x->experts; e++)
            r.received += r.record[e];
        MEZZO_TRY(run_round(device, call, &r));
    }
    return MEZZO_OK;
}

// --- a quantize of matrices ----------------------------------------------------------------------------------------
// A measured scale is that of the largest number of all ranks' experts.
static mezzo_status run_quantize(mezzo_device *device, const mz_call *call) {
    const exchange *x = call->state;
    uint32_t *amax = (uint32_t *)(void *)((char *)call->workspace + x->received), most = 0;
    mz_call inner = *call;
    inner.state = x->inner.state;
    MEZZO_TRY(x->inner.kernel->run(device, &inner));
    if (!call->attrs.measure)
        return MEZZO_OK;
    MEZZO_TRY(check_ranks(device, x->ranks));
    mz_scale_entry *entry = call->out[MZ_OUT(quantize, scales)].data;
    const mz_collective what = {
        .kind = MZ_ALL_GATHER, .send = &entry->amax, .recv = amax, .count = 1, .dtype = MEZZO_I32};
    MEZZO_TRY(device->comm->run(device->comm, device, &what));
    for (int r = 0; r < x->ranks; r++)
        most = amax[r] > most ? amax[r] : most;
    float largest;
    memcpy(&largest, &most, sizeof largest);
    entry->scale = mz_scale_for(largest, (mezzo_dtype)entry->dtype);
    inner.attrs.measure = false;
    return x->inner.kernel->run(device, &inner);
}
