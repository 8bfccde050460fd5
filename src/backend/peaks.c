// Measures a device's peaks, where its backend has no measurement of its own: it times a large product and a large cast
// on the device's clock.
#include "backend/backend.h"
#include "base/sort.h"

enum { SIZE = 8192, QUEUED = 8, MOST = 16 * QUEUED };
static const double LEAST_SECONDS = 0.25; // the clocks of the device are stable after this time

static mezzo_status fill(mezzo_device *device, const mz_tensor *t) {
    static const size_t piece = (size_t)1 << 20; // elements
    size_t n = (size_t)mz_shape_count(&t->shape), bytes = mezzo_dtype_size(t->dtype);
    float *numbers = mz_alloc(piece, sizeof *numbers);
    char *stored = mz_alloc(piece, bytes);
    mezzo_status status = numbers != NULL && stored != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    for (size_t at = 0; at < n && status == MEZZO_OK; at += piece) { // zeros would need less power, and run faster
        size_t now = n - at < piece ? n - at : piece;
        uint32_t x = (uint32_t)at + 1;
        for (size_t i = 0; i < now; i++) {
            x = x * 1664525u + 1013904223u;
            numbers[i] = (float)(x >> 8) * 0x1p-23f - 1;
        }
        status = mezzo_convert(numbers, MEZZO_F32, stored, t->dtype, now);
        if (status == MEZZO_OK)
            status = device->backend->write(device, (char *)t->data + at * bytes, stored, now * bytes);
    }
    MZ_FREE(numbers, stored);
    return status;
}

// Returns the median time of calls that follow each other without waiting, as in a step.
static mezzo_status time_runs(mezzo_device *device, const mz_prepared *prepared, const mz_call *call, double *median) {
    double seconds[MOST], spent = 0;
    int n = 0;
    for (int turn = 0; n < MOST && (turn < 2 || spent < LEAST_SECONDS); turn++) {
        for (int i = 0; i <= QUEUED; i++) {
            MEZZO_TRY(mezzo_device_mark(device, i));
            if (i < QUEUED)
                MEZZO_TRY(prepared->kernel->run(device, call));
        }
        for (int i = 0; i < QUEUED && turn > 0; i++, n++) {
            MEZZO_TRY(mezzo_device_elapsed(device, i, i + 1, &seconds[n]));
            spent += seconds[n];
        }
    }
    mz_sort(seconds, (size_t)n);
    *median = seconds[n / 2];
    return MEZZO_OK;
}

static mezzo_status give_memory(mezzo_device *device, mz_call *call, size_t workspace, mz_rng_state **rng) {
    const mz_backend *b = device->backend;
    for (int i = 0; i < call->n_in; i++)
        if (mz_present(&call->in[i])) {
            MEZZO_TRY(b->alloc(device, mz_tensor_bytes_stored(&call->in[i]), &call->in[i].data));
            MEZZO_TRY(fill(device, &call->in[i]));
        }
    MEZZO_TRY(b->alloc(device, mz_tensor_bytes_stored(&call->out[0]), &call->out[0].data));
    MEZZO_TRY(b->alloc(device, workspace + 64, &call->workspace));
    MEZZO_TRY(b->alloc(device, sizeof **rng, (void **)rng));
    call->rng = *rng;
    return MEZZO_OK;
}

static mezzo_status time_call(mezzo_device *device, mz_call *call, double *seconds) {
    const mz_backend *b = device->backend;
    mz_prepared prepared;
    mz_rng_state *rng = NULL;
    mezzo_status status;
    for (int i = call->n_in; i < MZ_MAX_IN; i++)
        call->in[i].shape.rank = -1;
    for (int i = call->n_out; i < MZ_MAX_OUT; i++)
        call->out[i].shape.rank = -1;
    MEZZO_TRY(mz_prepare(device, call, &prepared));
    call->state = prepared.state;
    MEZZO_TRY_GOTO(status, give_memory(device, call, prepared.workspace, &rng));
    MEZZO_TRY_GOTO(status, time_runs(device, &prepared, call, seconds));
fail:
    for (int i = 0; i < call->n_in; i++)
        b->release(device, call->in[i].data);
    b->release(device, call->out[0].data);
    b->release(device, call->workspace);
    b->release(device, rng);
    mz_prepared_free(&prepared);
    return status;
}

static mz_tensor matrix(mezzo_dtype dtype, int64_t rows, int64_t columns) {
    return (mz_tensor){.dtype = dtype, .shape = {.rank = 2, .dim = {rows, columns}}};
}

// Times a product. A format that no kernel serves has no peak; without enough memory the peak is not known.
static mezzo_status time_product(mezzo_device *device, mezzo_precision precision, double *flops) {
    const mz_precision_info *p = mz_precision(precision);
    mz_call call = {.op = MZ_OP_linear,
                    .n_in = 2,
                    .n_out = 1,
                    .in = {matrix(p->operand, SIZE, SIZE), matrix(p->operand, SIZE, SIZE)},
                    .out = {matrix(p->output, SIZE, SIZE)},
                    .numerics = {p->compute, MEZZO_F32, MEZZO_F32}};
    double seconds;
    call.attrs.via = p->output;
    mezzo_status status = time_call(device, &call, &seconds);
    if (status == MEZZO_OK)
        *flops = 2.0 * SIZE * SIZE * SIZE / seconds;
    return status == MEZZO_ERR_UNSUPPORTED || status == MEZZO_ERR_MEMORY ? MEZZO_OK : status;
}

static mezzo_status time_copy(mezzo_device *device, double *rate) {
    mz_call call = {.op = MZ_OP_cast,
                    .n_in = 1,
                    .n_out = 1,
                    .in = {matrix(MEZZO_F32, 2 * SIZE, 2 * SIZE)},
                    .out = {matrix(MEZZO_F32, 2 * SIZE, 2 * SIZE)},
                    .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32}};
    double seconds;
    mezzo_status status = time_call(device, &call, &seconds);
    if (status == MEZZO_OK)
        *rate = 2.0 * (double)mz_tensor_bytes_stored(&call.out[0]) / seconds;
    return status == MEZZO_ERR_UNSUPPORTED || status == MEZZO_ERR_MEMORY ? MEZZO_OK : status;
}

mezzo_status mz_device_peaks(mezzo_device *device, mz_peaks *out) {
    mezzo_precision precisions[MEZZO_PRECISION_COUNT];
    *out = (mz_peaks){0};
    if (device->backend->peaks != NULL)
        return device->backend->peaks(device, out);
    if (!device->backend->queue)
        return MEZZO_OK;
    int n = mz_precision_common(precisions);
    for (int i = 0; i < n; i++)
        MEZZO_TRY(time_product(device, precisions[i], &out->flops[mz_precision(precisions[i])->compute]));
    return time_copy(device, &out->copy);
}
