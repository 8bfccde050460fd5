// Values that live at different times share memory, so a call on one stream must not write bytes that an earlier call
// on another stream still reads.
#include "runtime/streams.h"

static int list_bytes(const mz_tensor *tensors, int n, mz_span *out) {
    int count = 0;
    for (int k = 0; k < n; k++) {
        const mz_tensor *t = &tensors[k];
        if (!mz_present(t) || t->data == NULL)
            continue;
        size_t size = mz_tensor_bytes_stored(t);
        out[count++] = (mz_span){t->data, (const char *)t->data + size};
        if (t->scale != NULL)
            out[count++] = (mz_span){(const char *)t->scale, (const char *)(t->scale + mz_scale_count(t))};
    }
    return count;
}

mz_traffic mz_traffic_of(const mz_call *call, mz_span spans[MZ_SPANS]) {
    mz_traffic t = {.reads = spans, .n_reads = list_bytes(call->in, call->n_in, spans)};
    t.writes = spans + t.n_reads;
    t.n_writes = list_bytes(call->out, call->n_out, spans + t.n_reads);
    return t;
}

static bool meet(const mz_span *a, int n, const mz_span *b, int m) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < m; k++)
            if (a[i].from < b[k].to && b[k].from < a[i].to)
                return true;
    return false;
}

bool mz_traffic_depends(const mz_traffic *second, const mz_traffic *first) {
    return meet(second->reads, second->n_reads, first->writes, first->n_writes) ||
           meet(second->writes, second->n_writes, first->reads, first->n_reads) ||
           meet(second->writes, second->n_writes, first->writes, first->n_writes);
}

mezzo_status mz_stream_order_alloc(size_t n, mz_stream_order *order) {
    order->stream = mz_alloc(n + 1, sizeof *order->stream);
    order->wait = mz_alloc(n + 1, sizeof *order->wait);
    order->recorded = mz_alloc(n + 1, sizeof *order->recorded);
    if (order->stream && order->wait && order->recorded)
        return MEZZO_OK;
    mz_stream_order_free(order);
    return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
}

void mz_stream_order_free(mz_stream_order *order) {
    MZ_FREE(order->stream, order->wait, order->recorded);
    *order = (mz_stream_order){0};
}

mezzo_status mz_stream_order_find(const mz_traffic *traffic, size_t n, mz_stream_order *order) {
    size_t waited[MZ_STREAMS][MZ_STREAMS] = {
        {0}}; // [stream][other]: how many calls of the other stream, from the first, it has waited for
    for (int l = 0; l < MZ_STREAMS; l++)
        order->last[l] = -1;
    for (size_t i = 0; i < n; i++) {
        int stream = order->stream[i];
        bool open[MZ_STREAMS]; // it may still have to wait for a call of that stream
        order->recorded[i] = false;
        for (int l = 0; l < MZ_STREAMS; l++) {
            order->wait[i][l] = -1;
            open[l] = l != stream && order->last[l] >= 0;
        }
        for (size_t k = i; k-- > 0;) {
            int other = order->stream[k];
            if (!open[other] || k < waited[stream][other] || !mz_traffic_depends(&traffic[i], &traffic[k]))
                continue;
            order->wait[i][other] = (int)k;
            order->recorded[k] = true;
            waited[stream][other] = k + 1;
            open[other] = false;
        }
        order->last[stream] = (int)i;
    }
    for (int l = 1; l < MZ_STREAMS; l++)
        if (order->last[l] >= 0)
            order->recorded[order->last[l]] = true;
    return MEZZO_OK;
}

// --- capturing -----------------------------------------------------------------------------------------------------
mezzo_status mz_stream_order_fork(mezzo_device *device, const mz_stream_order *order, int beginning) {
    const mz_backend *b = device->backend;
    MEZZO_TRY(b->capture_stream(device, 0));
    MEZZO_TRY(b->capture_record(device, beginning));
    for (int l = 1; l < MZ_STREAMS; l++) {
        if (order->last[l] < 0)
            continue;
        MEZZO_TRY(b->capture_stream(device, l));
        MEZZO_TRY(b->capture_wait(device, beginning));
    }
    return MEZZO_OK;
}

mezzo_status mz_stream_order_wait(mezzo_device *device, const mz_stream_order *order, size_t i) {
    for (int l = 0; l < MZ_STREAMS; l++)
        if (order->wait[i][l] >= 0)
            MEZZO_TRY(device->backend->capture_wait(device, order->wait[i][l]));
    return MEZZO_OK;
}

mezzo_status mz_stream_order_begin(mezzo_device *device, const mz_stream_order *order, size_t i) {
    MEZZO_TRY(device->backend->capture_stream(device, order->stream[i]));
    return mz_stream_order_wait(device, order, i);
}

mezzo_status mz_stream_order_end(mezzo_device *device, const mz_stream_order *order, size_t i) {
    return order->recorded[i] ? device->backend->capture_record(device, (int)i) : MEZZO_OK;
}

mezzo_status mz_stream_order_join(mezzo_device *device, const mz_stream_order *order) {
    MEZZO_TRY(device->backend->capture_stream(device, 0));
    for (int l = 1; l < MZ_STREAMS; l++)
        if (order->last[l] >= 0)
            MEZZO_TRY(device->backend->capture_wait(device, order->last[l]));
    return MEZZO_OK;
}
