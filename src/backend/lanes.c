// The order between two lanes of calls, from the bytes that they read and write: memory is shared by values that live at different
// times, so that a later call must not write where an earlier one on the other lane still reads.
#include "backend/backend.h"

typedef struct bytes {
    const char *from, *to;
} bytes;

typedef struct traffic { // of one call; what it writes it may read too
    bytes reads[MZ_MAX_IN], writes[MZ_MAX_OUT];
    int n_reads, n_writes;
} traffic;

static int list_bytes(const mz_tensor *tensors, int n, bytes *out) {
    int count = 0;
    for (int k = 0; k < n; k++) {
        const mz_tensor *t = &tensors[k];
        if (!mz_present(t) || t->data == NULL)
            continue;
        size_t size = (size_t)mz_shape_count(&t->shape) * mezzo_dtype_size(t->dtype);
        out[count++] = (bytes){t->data, (const char *)t->data + size};
    }
    return count;
}

static bool meet(const bytes *a, int n, const bytes *b, int m) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < m; k++)
            if (a[i].from < b[k].to && b[k].from < a[i].to)
                return true;
    return false;
}

static bool depends(const traffic *later, const traffic *earlier) {
    return meet(later->reads, later->n_reads, earlier->writes, earlier->n_writes) ||
           meet(later->writes, later->n_writes, earlier->reads, earlier->n_reads) ||
           meet(later->writes, later->n_writes, earlier->writes, earlier->n_writes);
}

mezzo_status mz_lanes_order(const mz_call *calls, size_t n, mz_lanes *lanes) {
    traffic *t = mz_alloc(n + 1, sizeof *t);
    int waited[2] = {-1, -1}; // per lane: the newest call of the other that it has waited for
    if (t == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    lanes->join = -1;
    for (size_t i = 0; i < n; i++) {
        int lane = lanes->lane[i];
        t[i].n_reads = list_bytes(calls[i].in, calls[i].n_in, t[i].reads);
        t[i].n_writes = list_bytes(calls[i].out, calls[i].n_out, t[i].writes);
        lanes->wait[i] = -1;
        lanes->marked[i] = false;
        bool starts =
            lane == 1 && lanes->join < 0; // a lane's first call waits for something: that is how a capture takes it in
        for (int k = (int)i - 1; k > waited[lane]; k--)
            if (lanes->lane[k] != lane && (starts || depends(&t[i], &t[k]))) {
                lanes->wait[i] = waited[lane] = k;
                lanes->marked[k] = true;
                break;
            }
        if (lane == 1)
            lanes->join = (int)i;
        if (starts && lanes->wait[i] < 0) // nothing before it: it starts the program itself
            lanes->lane[i] = 0, lanes->join = -1;
    }
    if (lanes->join >= 0)
        lanes->marked[lanes->join] = true;
    mz_free(t);
    return MEZZO_OK;
}
