// Finds the sample of a batch that a bad value belongs to: it follows rows of inputs through the ops that keep them in
// order.
#include <math.h>
#include <stdlib.h>

#include "runtime/program.h"

// Holds the rows of a value, along its first dimension, that one sample has, and the row of the whole batch where they
// begin.
typedef struct by_samples {
    int64_t rows, first; // rows 0: the value has no order of samples
} by_samples;

static int64_t length(const mz_shape *s) {
    return s->rank > 0 ? s->dim[0] : 0;
}

static int64_t batch_of(const mezzo_graph *g) {
    for (size_t v = 0; v < g->n_values; ++v)
        if (g->values[v].kind == MZ_VALUE_INPUT && !g->values[v].state && g->values[v].shape.rank >= 2)
            return length(&g->values[v].shape);
    return 0;
}

// Finds the samples of a view: its rows begin where its bytes do.
static by_samples view_of(const mezzo_graph *g, const by_samples *of, int value) {
    const mz_value *v = &g->values[value];
    if (of[value].rows > 0 || v->alias < 0 || of[v->alias].rows == 0)
        return of[value];
    const mz_value *root = &g->values[v->alias];
    const int64_t rows = length(&root->shape), stored = mz_stored_count(&root->shape, &root->storage);
    if (v->shape.rank != root->shape.rank || rows == 0)
        return of[value];
    const int64_t bytes = stored / rows * (int64_t)mezzo_dtype_size(root->dtype);
    return (by_samples){of[v->alias].rows, of[v->alias].first + (bytes > 0 ? (int64_t)v->offset / bytes : 0)};
}

static bool rearranges(mz_op op) {
    return op == MZ_OP_dispatch || op == MZ_OP_expert_order || op == MZ_OP_grouped_linear ||
           op == MZ_OP_grouped_linear_dx || op == MZ_OP_sum || op == MZ_OP_mean;
}

// Returns whether an op gives rows another shape in the same order.
static bool regroups(mz_op op) {
    return op == MZ_OP_reshape || op == MZ_OP_embedding || op == MZ_OP_layernorm || op == MZ_OP_rmsnorm ||
           op == MZ_OP_route || op == MZ_OP_combine || op == MZ_OP_combine_dw;
}

static by_samples output_of(const mezzo_graph *g, const by_samples *of, const mz_node *n, int out, int64_t batch) {
    const mz_value *v = &g->values[n->out[out]];
    const int64_t rows = length(&v->shape);
    const bool columnwise = n->op == MZ_OP_quantize && out > 0;
    by_samples found = {0};
    if (rearranges(n->op) || columnwise || rows == 0)
        return found;
    for (int k = 0; k < n->n_in && found.rows == 0; ++k) {
        if (n->in[k] < 0)
            continue;
        const by_samples in = view_of(g, of, n->in[k]);
        const int64_t length_in = length(&g->values[n->in[k]].shape);
        if (in.rows == 0)
            continue;
        if (rows == length_in)
            found = in;
        else if (regroups(n->op) && in.first == 0 && length_in == in.rows * batch && rows % batch == 0)
            found = (by_samples){rows / batch, 0};
    }
    return found;
}

static mezzo_status follow_rows(const mezzo_graph *g, by_samples **out) {
    const int64_t batch = batch_of(g);
    by_samples *of = mz_alloc(g->n_values + 1, sizeof *of);
    *out = of;
    if (of == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t v = 0; v < g->n_values && batch > 0; ++v)
        if (g->values[v].kind == MZ_VALUE_INPUT && length(&g->values[v].shape) == batch)
            of[v].rows = 1;
    for (size_t i = 0; i < g->n_nodes && batch > 0; ++i)
        for (int k = 0; k < g->nodes[i].n_out; ++k) {
            const int v = g->nodes[i].out[k];
            if (v >= 0 && g->values[mz_value_root(g, v)].kind == MZ_VALUE_TEMP && of[v].rows == 0)
                of[v] = output_of(g, of, &g->nodes[i], k, batch);
        }
    return MEZZO_OK;
}

static bool is_bad(double x, float limit) {
    return !isfinite(x) || (limit > 0 && fabs(x) > (double)limit);
}

// Finds the first bad element of a tensor that lies on the host as it is stored; the element count: none.
static mezzo_status first_bad(const mz_tensor *t, const char *host, float limit, int64_t *out) {
    enum { BLOCK = 1024 };
    const int64_t n = mz_shape_count(&t->shape);
    const size_t width = mezzo_dtype_size(t->dtype);
    const bool in_order =
        !t->storage.padded && mz_tensor_index(t, n - 1) == n - 1 && mz_tensor_index(t, 1 % n) == 1 % n;
    double x[BLOCK];
    for (int64_t i = 0; i < n;) {
        const int64_t block = !in_order ? 1 : n - i < BLOCK ? n - i : BLOCK;
        MEZZO_TRY(mezzo_convert(host + (size_t)mz_tensor_index(t, i) * width, t->dtype, x, MEZZO_F64, (size_t)block));
        for (int64_t k = 0; k < block; ++k)
            if (is_bad(x[k], limit)) {
                *out = i + k;
                return MEZZO_OK;
            }
        i += block;
    }
    *out = n;
    return MEZZO_OK;
}

static mezzo_status find_sample(mezzo_program *p, int value, by_samples rows, float limit, int64_t *sample) {
    const mz_tensor t = mz_program_tensor(p, value);
    const size_t bytes = mz_tensor_bytes_stored(&t);
    const int64_t n = mz_shape_count(&t.shape);
    int64_t at = n;
    if (!mz_present(&t) || t.dtype >= MEZZO_I64 || n == 0)
        return MEZZO_OK;
    char *host;
    MEZZO_TRY(MZ_NEW(host, bytes + 1));
    mezzo_status status = p->device->backend->read(p->device, host, t.data, bytes);
    if (status == MEZZO_OK)
        status = first_bad(&t, host, limit, &at);
    mz_free(host);
    if (status == MEZZO_OK && at < n)
        *sample = (rows.first + at / (n / length(&t.shape))) / rows.rows;
    return status;
}

mezzo_status mz_program_sample(mezzo_program *p, size_t call, float limit, int64_t *sample) {
    const mezzo_graph *g = p->c.graph;
    const mz_node *n = &g->nodes[p->c.node[call]];
    by_samples *of;
    *sample = -1;
    mezzo_status status = follow_rows(g, &of);
    for (int k = 0; k < n->n_out + n->n_in && *sample < 0 && status == MEZZO_OK;
         ++k) { // inputs, where outputs have no bad number or no order
        const int v = k < n->n_out ? n->out[k] : n->in[k - n->n_out];
        const by_samples rows = v >= 0 ? view_of(g, of, v) : (by_samples){0};
        if (rows.rows > 0)
            status = find_sample(p, v, rows, k < n->n_out ? limit : 0, sample);
    }
    mz_free(of);
    return status;
}
