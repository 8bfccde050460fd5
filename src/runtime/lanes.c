// The order between lanes of calls, from the bytes that they read and write: memory is shared by values that live at different times, so
// that a later call must not write where an earlier one on another lane still reads.
#include "backend/backend.h"

static int list_bytes(const mz_tensor *tensors, int n, mz_span *out) {
    int count = 0;
    for (int k = 0; k < n; k++) {
        const mz_tensor *t = &tensors[k];
        if (!mz_present(t) || t->data == NULL)
            continue;
        size_t size = (size_t)mz_shape_count(&t->shape) * mezzo_dtype_size(t->dtype);
        out[count++] = (mz_span){t->data, (const char *)t->data + size};
    }
    return count;
}

mz_traffic mz_traffic_of(const mz_call *call, mz_span spans[MZ_MAX_IN + MZ_MAX_OUT]) {
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

bool mz_traffic_depends(const mz_traffic *later, const mz_traffic *earlier) {
    return meet(later->reads, later->n_reads, earlier->writes, earlier->n_writes) ||
           meet(later->writes, later->n_writes, earlier->reads, earlier->n_reads) ||
           meet(later->writes, later->n_writes, earlier->writes, earlier->n_writes);
}

mezzo_status mz_lanes_alloc(size_t n, mz_lanes *lanes) {
    lanes->lane = mz_alloc(n + 1, sizeof *lanes->lane);
    lanes->wait = mz_alloc(n + 1, sizeof *lanes->wait);
    lanes->marked = mz_alloc(n + 1, sizeof *lanes->marked);
    if (lanes->lane && lanes->wait && lanes->marked)
        return MEZZO_OK;
    mz_lanes_free(lanes);
    return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
}

void mz_lanes_free(mz_lanes *lanes) {
    mz_free(lanes->lane);
    mz_free(lanes->wait);
    mz_free(lanes->marked);
    *lanes = (mz_lanes){0};
}

mezzo_status mz_lanes_order(const mz_traffic *traffic, size_t n, mz_lanes *lanes) {
    size_t waited[MZ_LANES][MZ_LANES] = {
        {0}}; // [lane][other]: how many calls, from the first, it need not look at any more
    for (int l = 0; l < MZ_LANES; l++)
        lanes->last[l] = -1;
    for (size_t i = 0; i < n; i++) {
        int lane = lanes->lane[i];
        bool looks[MZ_LANES]; // for the newest call of that lane that it must wait for
        lanes->marked[i] = false;
        for (int l = 0; l < MZ_LANES; l++) {
            lanes->wait[i][l] = -1;
            looks[l] = l != lane && lanes->last[l] >= 0;
        }
        for (size_t k = i; k-- > 0;) {
            int other = lanes->lane[k];
            if (!looks[other] || k < waited[lane][other] || !mz_traffic_depends(&traffic[i], &traffic[k]))
                continue;
            lanes->wait[i][other] = (int)k;
            lanes->marked[k] = true;
            waited[lane][other] = k + 1;
            looks[other] = false;
        }
        lanes->last[lane] = (int)i;
    }
    for (int l = 1; l < MZ_LANES; l++)
        if (lanes->last[l] >= 0)
            lanes->marked[lanes->last[l]] = true;
    return MEZZO_OK;
}
