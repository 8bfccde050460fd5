#include "runtime/exchange.h"

#include "backend/collective.h"
#include "backend/slots.h"
#include "quant/entry.h"

enum { OPERANDS = 2, MOST_SENT = 2 + 2 * OPERANDS }; // a round sends results, offsets, a scale and rows per operand

typedef struct exchange {
    int ranks;
    int64_t experts;   // here; 0: a quantize
    mz_prepared inner; // the plan of a product with the experts here, or of the quantize
    int32_t *counts;   // on the host, [ranks][table]: all ranks' offsets; of a quantize, maxima
    bool reads;        // counts is this call's to free, and to read at each run
    // The workspace: bytes before each of these.
    size_t table;             // I32 [ranks][table]: the same on the device
    size_t offsets;           // I32 [table]: those of the rank whose rows this rank received
    size_t scales;            // F32 [OPERANDS]: that rank's scales
    size_t rows[OPERANDS];    // that rank's rows, at their own places; after one operand of rows, the results
    size_t packed[OPERANDS];  // columnwise operands: the rows that this rank sends,
    size_t arrived[OPERANDS]; // and those that it received
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

static int64_t table_of(const exchange *x) {
    return x->ranks * x->experts + 1;
}

// --- prepared ------------------------------------------------------------------------------------------------------
static void release(void *state) {
    exchange *x = state;
    mz_prepared_free(&x->inner);
    if (x->reads)
        mz_free(x->counts);
    mz_free(x);
}

static size_t take(size_t *bytes, size_t more) {
    const size_t at = mz_align_up(*bytes, 64);
    *bytes = at + more;
    return at;
}

static void lay_out(exchange *x, const mz_call *call, size_t *bytes) {
    const size_t rows = (size_t)call->in[0].shape.dim[0], table = (size_t)table_of(x) * sizeof(int32_t);
    *bytes = x->inner.workspace;
    x->table = take(bytes, x->reads ? (size_t)x->ranks * table : 0);
    x->offsets = take(bytes, table);
    x->scales = take(bytes, OPERANDS * sizeof(float));
    x->rows[0] = take(bytes, mz_tensor_bytes_stored(&call->in[0]));
    x->rows[1] = take(bytes, mz_tensor_bytes_stored(is_dw(call) ? &call->in[1] : &call->out[0]));
    for (int i = 0; i < operands_of(call); i++) {
        x->packed[i] = take(bytes, call->in[i].columnwise ? rows * row_bytes(&call->in[i]) : 0);
        x->arrived[i] = take(bytes, call->in[i].columnwise ? rows * row_bytes(&call->in[i]) : 0);
    }
}

static mezzo_status run_product(mezzo_device *device, const mz_call *call);
static mezzo_status run_quantize(mezzo_device *device, const mz_call *call);
static const mz_kernel product_kernel = {"exchange", NULL, run_product};
static const mz_kernel quantize_kernel = {"exchange", NULL, run_quantize};

// Prepares the product as a rank with all experts would, so that the same kernel serves both.
static mezzo_status prepare_product(mezzo_device *device, exchange *x, const mz_call *call) {
    mz_call all = *call;
    x->experts = (call->in[MZ_IN(grouped_linear, offsets)].shape.dim[0] - 1) / x->ranks;
    if (!is_dw(call))
        all.in[MZ_IN(grouped_linear, w)].shape.dim[0] = x->ranks * x->experts;
    return mz_prepare(device, &all, &x->inner);
}

static mezzo_status prepare(mezzo_device *device, exchange *x, const mz_call *call, const mz_prepared *counted,
                            mz_prepared *out) {
    const bool quantizes = call->op == MZ_OP_quantize;
    MEZZO_TRY(quantizes ? mz_prepare(device, call, &x->inner) : prepare_product(device, x, call));
    x->reads = counted == NULL;
    x->counts = x->reads ? mz_alloc((size_t)(x->ranks * table_of(x)), sizeof *x->counts)
                         : ((const exchange *)counted->state)->counts;
    if (x->counts == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    *out = (mz_prepared){.kernel = quantizes ? &quantize_kernel : &product_kernel, .state = x, .release = release};
    if (!quantizes) {
        lay_out(x, call, &out->workspace);
        return MEZZO_OK;
    }
    out->workspace = x->inner.workspace;
    x->table = take(&out->workspace, (size_t)x->ranks * sizeof *x->counts);
    return MEZZO_OK;
}

mezzo_status mz_exchange_prepare(mezzo_device *device, int ranks, const mz_call *call, const mz_prepared *counted,
                                 mz_prepared *out) {
    *out = (mz_prepared){0};
    exchange *x;
    MEZZO_TRY(MZ_NEW(x, 1));
    x->ranks = ranks;
    const mezzo_status status = prepare(device, x, call, counted, out);
    if (status != MEZZO_OK)
        release(x);
    return status;
}

// --- numbers of rows -----------------------------------------------------------------------------------------------
static void *at(const mz_call *call, size_t bytes) { // of the workspace
    return (char *)call->workspace + bytes;
}

static mezzo_status check_ranks(const mezzo_device *device, int ranks) {
    if (device->comm == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "%d ranks have the experts, and this process is none of them", ranks);
    return MEZZO_OK;
}

// All-gathers `n` numbers of the device to x->counts, [ranks][n]. It waits for the device.
static mezzo_status gather_counts(mezzo_device *device, const mz_call *call, const void *mine, int64_t n) {
    const exchange *x = call->state;
    const mz_collective all = {
        .kind = MZ_ALL_GATHER, .send = mine, .recv = at(call, x->table), .count = (size_t)n, .dtype = MEZZO_I32};
    MEZZO_TRY(device->comm->run(device->comm, device, &all));
    return device->backend->read(device, x->counts, all.recv, (size_t)(x->ranks * n) * sizeof *x->counts);
}

// Finds rank `from`'s rows for the experts of rank `to`: the first, and *count.
static int64_t rows_for(const exchange *x, int from, int to, int64_t *count) {
    const int32_t *offsets = x->counts + from * table_of(x) + to * x->experts;
    *count = offsets[x->experts] - offsets[0];
    return offsets[0];
}

// --- a product -----------------------------------------------------------------------------------------------------
// One round: this rank sends rows to rank `to` and receives rows of rank `from`; `here`: both are this rank. Received
// rows keep the places that they have on their own rank, because sums of 8-bit products depend on them.
typedef struct round_of {
    int to, from;
    bool here;
    int64_t first, sent;      // of this rank's rows
    int64_t before, received; // of rank from's: the first, and their number
} round_of;

static round_of find_round(const exchange *x, int rank, int step) {
    round_of r = {.to = (rank + step) % x->ranks, .from = (rank + x->ranks - step) % x->ranks, .here = step == 0};
    r.first = rows_for(x, rank, r.to, &r.sent);
    r.before = rows_for(x, r.from, rank, &r.received);
    return r;
}

static mz_collective transfer_of(const round_of *r, mezzo_dtype dtype, const void *send, int64_t sent, void *recv,
                                 int64_t received) {
    return (mz_collective){.kind = MZ_SEND_RECEIVE,
                           .send = send,
                           .recv = recv,
                           .count = (size_t)sent,
                           .dtype = dtype,
                           .root = r->to,
                           .from = r->from,
                           .received = (size_t)received};
}

// Describes the transfer of an operand's rows. Those of a columnwise operand are packed: [columns][rows] without gaps.
static mezzo_status pack_operand(mezzo_device *device, const mz_call *call, int i, const round_of *r,
                                 mz_collective *out) {
    const exchange *x = call->state;
    const mz_tensor *t = &call->in[i];
    const int64_t width = t->shape.dim[1];
    const char *rows = (const char *)t->data + (t->columnwise ? (size_t)r->first : (size_t)r->first * row_bytes(t));
    char *recv = (char *)at(call, x->rows[i]) + (size_t)r->before * row_bytes(t);
    if (t->columnwise) {
        MEZZO_TRY(device->backend->copy_rows(device, at(call, x->packed[i]), (size_t)r->sent, rows,
                                             (size_t)mz_columnwise_pitch(t->shape.dim[0]), (size_t)r->sent, width));
        rows = at(call, x->packed[i]);
        recv = at(call, x->arrived[i]);
    }
    *out = transfer_of(r, t->dtype, rows, r->sent * width, recv, r->received * width);
    return MEZZO_OK;
}

static mezzo_status unpack(mezzo_device *device, const mz_call *call, int i, const round_of *r) {
    const exchange *x = call->state;
    const mz_tensor *t = &call->in[i];
    if (!t->columnwise)
        return MEZZO_OK;
    return device->backend->copy_rows(device, (char *)at(call, x->rows[i]) + r->before,
                                      (size_t)mz_columnwise_pitch(t->shape.dim[0]), at(call, x->arrived[i]),
                                      (size_t)r->received, (size_t)r->received, t->shape.dim[1]);
}

static mz_collective results_of(const mz_call *call, const round_of *r) {
    const exchange *x = call->state;
    const mz_tensor *y = &call->out[0];
    const int64_t width = y->shape.dim[1];
    const round_of back = {.to = r->from, .from = r->to};
    return transfer_of(&back, y->dtype, (char *)at(call, x->rows[1]) + (size_t)r->before * row_bytes(y),
                       r->received * width, (char *)y->data + (size_t)r->first * row_bytes(y), r->sent * width);
}

// Exchanges the operands' rows of a round, their scales and offsets, and with them the results of the round before, if
// any.
static mezzo_status exchange_rows(mezzo_device *device, const mz_call *call, const round_of *r, const round_of *before,
                                  mz_call *product) {
    const exchange *x = call->state;
    const mz_tensor *offsets = &call->in[MZ_IN(grouped_linear, offsets)];
    mz_collective all[MOST_SENT];
    int n = 0;
    if (before != NULL)
        all[n++] = results_of(call, before);
    all[n++] = transfer_of(r, MEZZO_I32, offsets->data, table_of(x), at(call, x->offsets), table_of(x));
    product->in[MZ_IN(grouped_linear, offsets)].data = at(call, x->offsets);
    for (int i = 0; i < operands_of(call); i++) {
        product->in[i].data = at(call, x->rows[i]);
        MEZZO_TRY(pack_operand(device, call, i, r, &all[n++]));
        if (call->in[i].scale == NULL)
            continue;
        product->in[i].scale = (float *)at(call, x->scales) + i;
        all[n++] = transfer_of(r, MEZZO_F32, call->in[i].scale, 1, (float *)at(call, x->scales) + i, 1);
    }
    all[0].more = n - 1;
    MEZZO_TRY(device->comm->run(device->comm, device, all));
    for (int i = 0; i < operands_of(call); i++)
        MEZZO_TRY(unpack(device, call, i, r));
    return MEZZO_OK;
}

static mezzo_status run_round(mezzo_device *device, const mz_call *call, const round_of *r, const round_of *before) {
    const exchange *x = call->state;
    mz_call product = *call;
    mz_tensor *offsets = &product.in[MZ_IN(grouped_linear, offsets)];
    if (!r->here)
        MEZZO_TRY(exchange_rows(device, call, r, before, &product));
    offsets->data = (int32_t *)offsets->data + device->comm->rank * x->experts;
    offsets->shape.dim[0] = x->experts + 1;
    if (is_dw(call)) {
        product.out[0].shape.dim[0] = x->experts;
        product.out[0].data = (float *)call->out[0].data + r->from * mz_shape_count(&product.out[0].shape);
    } else if (!r->here) {
        product.out[0].data = at(call, x->rows[1]);
    }
    product.state = x->inner.state;
    return r->received > 0 || is_dw(call) ? x->inner.kernel->run(device, &product) : MEZZO_OK;
}

static mezzo_status run_product(mezzo_device *device, const mz_call *call) {
    const exchange *x = call->state;
    round_of last = {.here = true};
    MEZZO_TRY(check_ranks(device, x->ranks));
    if (x->reads)
        MEZZO_TRY(gather_counts(device, call, call->in[MZ_IN(grouped_linear, offsets)].data, table_of(x)));
    for (int step = 0; step < x->ranks; step++) {
        const round_of r = find_round(x, device->comm->rank, step);
        MEZZO_TRY(run_round(device, call, &r, last.here || is_dw(call) ? NULL : &last));
        last = r;
    }
    const mz_collective results = results_of(call, &last);
    return last.here || is_dw(call) ? MEZZO_OK : device->comm->run(device->comm, device, &results);
}

// --- a quantize of matrices ----------------------------------------------------------------------------------------
// A measured scale is that of the largest number of all ranks' experts.
static mezzo_status run_quantize(mezzo_device *device, const mz_call *call) {
    const exchange *x = call->state;
    mz_scale_entry *entry = call->out[MZ_OUT(quantize, scales)].data;
    const mz_tensor *y = mz_output(call, MZ_OUT(quantize, y));
    mz_call inner = *call;
    inner.state = x->inner.state;
    MEZZO_TRY(x->inner.kernel->run(device, &inner));
    if (!call->attrs.measure)
        return MEZZO_OK;
    MEZZO_TRY(check_ranks(device, x->ranks));
    MEZZO_TRY(gather_counts(device, call, &entry->amax, 1));
    int32_t most = 0; // bits of numbers that are not negative sort like the numbers
    for (int r = 0; r < x->ranks; r++)
        most = x->counts[r] > most ? x->counts[r] : most;
    float largest;
    memcpy(&largest, &most, sizeof largest);
    const float scale = mz_scale_for(largest, (y != NULL ? y : mz_output(call, MZ_OUT(quantize, columnwise)))->dtype);
    MEZZO_TRY(device->backend->write(device, &entry->scale, &scale, sizeof scale));
    inner.attrs.measure = false;
    return x->inner.kernel->run(device, &inner);
}
