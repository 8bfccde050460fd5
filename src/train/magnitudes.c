#include "train/magnitudes.h"

#include "runtime/program.h"

static bool is_float(mezzo_dtype dtype) {
    return dtype == MEZZO_F32 || dtype == MEZZO_BF16 || dtype == MEZZO_F16;
}

static size_t table_bytes(void) {
    return MZ_HISTOGRAM_BUCKETS * sizeof(int32_t);
}

// --- making --------------------------------------------------------------------------------------
static mezzo_status add(mz_magnitudes *m, mz_magnitudes_of of) {
    if (of.name == NULL)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = MZ_RESERVE(m->list, m->cap, m->n + 1);
    if (status != MEZZO_OK) {
        mz_free(of.name);
        return status;
    }
    m->list[m->n++] = of;
    return MEZZO_OK;
}

// In a parameter's gradient's memory.
static bool is_gradient(const mezzo_program *program, int value) {
    const mezzo_graph *g = program->c.graph;
    return g->values[mz_value_root(g, value)].kind == MZ_VALUE_GRAD;
}

// A call's float outputs. A parameter's gradient is a sum over micro batches, and counted when it is whole.
static mezzo_status add_call(mz_magnitudes *m, const mezzo_program *program, int index) {
    const mz_call *call = &program->c.calls[index];
    const mz_node *node = &program->c.graph->nodes[program->c.node[index]];
    const char *module = program->c.graph->modules[node->module];
    if (node->phase == MZ_RECOMPUTE || node->op == MZ_OP_copy) // the same numbers again
        return MEZZO_OK;
    bool named = mz_op_table[call->op].n_out > 1;
    for (int k = 0; k < call->n_out; k++) {
        const mz_tensor of_node = mz_program_tensor(program, node->out[k]), *t = &of_node;
        if (!mz_present(t) || !is_float(t->dtype) || mz_shape_count(&t->shape) < 2 ||
            is_gradient(program, node->out[k]))
            continue;
        mz_magnitudes_of of = {.name = mz_format("%s%s%s%s%s", module, *module != '\0' ? " " : "",
                                                 mz_op_table[call->op].name, named ? "." : "",
                                                 named ? mz_op_slot(call->op, true, k).name : ""),
                               .kind = node->phase == MZ_BACKWARD ? MZ_OF_ACTIVATION_GRADIENT : MZ_OF_ACTIVATION,
                               .dtype = t->dtype,
                               .elements = mz_shape_count(&t->shape),
                               .call = index,
                               .slot = k};
        MEZZO_TRY(add(m, of));
    }
    return MEZZO_OK;
}

static mezzo_status list_tensors(mz_magnitudes *m, const mezzo_program *program, const mezzo_params *params) {
    m->calls = (int)program->c.n_calls;
    m->first = mz_alloc((size_t)m->calls + 1, sizeof *m->first);
    if (m->first == NULL)
        return MEZZO_ERR_MEMORY;
    for (int i = 0; i < m->calls; i++) {
        m->first[i] = (int)m->n;
        MEZZO_TRY(add_call(m, program, i));
    }
    m->first[m->calls] = (int)m->n;
    for (size_t i = 0; i < params->n; i++) {
        if (params->list[i].frozen)
            continue;
        mz_magnitudes_of of = {.name = mz_strdup(params->list[i].name),
                               .kind = MZ_OF_GRADIENT,
                               .dtype = MEZZO_F32,
                               .elements = params->list[i].count,
                               .call = -1,
                               .slot = (int)i};
        MEZZO_TRY(add(m, of));
    }
    return MEZZO_OK;
}

static mz_call call_of(const mz_tensor *x, void *table) {
    return (mz_call){.op = MZ_OP_histogram,
                     .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32},
                     .n_in = 1,
                     .in = {*x},
                     .n_out = 1,
                     .out = {mz_tensor_bytes(table, table_bytes())}};
}

static mezzo_status choose(mz_magnitudes *m) {
    m->prepared = mz_alloc(m->n, sizeof *m->prepared);
    m->host = mz_alloc(m->n, table_bytes());
    if (m->prepared == NULL || m->host == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < m->n; i++) {
        mz_magnitudes_of *of = &m->list[i];
        mz_tensor x = {.dtype = of->dtype, .shape = {1, {of->elements}}};
        mz_call call = call_of(&x, NULL);
        MEZZO_TRY(mz_prepare(m->device, &call, &m->prepared[i]));
        of->counts = m->host + i * MZ_HISTOGRAM_BUCKETS;
    }
    return m->device->backend->alloc(m->device, m->n * table_bytes(), (void **)&m->counts);
}

mezzo_status mz_magnitudes_create(const mezzo_program *program, mezzo_params *params, mz_magnitudes **out) {
    mezzo_status status;
    *out = NULL;
    mz_magnitudes *m = mz_alloc(1, sizeof *m);
    if (m == NULL)
        return MEZZO_ERR_MEMORY;
    m->device = params->device;
    MEZZO_TRY_GOTO(status, list_tensors(m, program, params));
    MEZZO_TRY_GOTO(status, choose(m));
    *out = m;
    return MEZZO_OK;
fail:
    mz_magnitudes_free(m);
    return status;
}

void mz_magnitudes_free(mz_magnitudes *m) {
    if (m == NULL)
        return;
    if (m->counts != NULL)
        m->device->backend->release(m->device, m->counts);
    for (size_t i = 0; i < m->n; i++) {
        if (m->prepared != NULL)
            mz_prepared_free(&m->prepared[i]);
        mz_free(m->list[i].name);
    }
    mz_free(m->list);
    mz_free(m->prepared);
    mz_free(m->host);
    mz_free(m->first);
    mz_free(m);
}

// --- counting ------------------------------------------------------------------------------------
static mezzo_status count(mz_magnitudes *m, size_t i, const mz_tensor *x) {
    mz_call call = call_of(x, m->counts + i * table_bytes());
    return mz_run(m->device, &m->prepared[i], &call, NULL);
}

static mezzo_status count_outputs(void *user, mezzo_program *program, size_t call) {
    mz_magnitudes *m = user;
    const mz_node *node = &program->c.graph->nodes[program->c.node[call]];
    for (int i = m->first[call]; i < m->first[call + 1]; i++) {
        mz_tensor x = mz_program_tensor(program, node->out[m->list[i].slot]);
        MEZZO_TRY(count(m, (size_t)i, &x));
    }
    return m->hook != NULL ? m->hook(m->hook_user, program, call) : MEZZO_OK;
}

mezzo_status mz_magnitudes_begin(mz_magnitudes *m, mezzo_program *program) {
    MEZZO_TRY(m->device->backend->zero(m->device, m->counts, m->n * table_bytes()));
    m->hook = program->hook;
    m->hook_user = program->hook_user;
    program->hook = count_outputs;
    program->hook_user = m;
    return MEZZO_OK;
}

void mz_magnitudes_end(mz_magnitudes *m, mezzo_program *program) {
    program->hook = m->hook;
    program->hook_user = m->hook_user;
}

mezzo_status mz_magnitudes_gradients(mz_magnitudes *m, mezzo_params *params) {
    for (size_t i = (size_t)m->first[m->calls]; i < m->n; i++) {
        mz_tensor grad = mz_params_grad(params, m->list[i].slot);
        MEZZO_TRY(count(m, i, &grad));
    }
    return MEZZO_OK;
}

mezzo_status mz_magnitudes_read(mz_magnitudes *m) {
    return m->device->backend->read(m->device, m->host, m->counts, m->n * table_bytes());
}

// --- what they say -------------------------------------------------------------------------------
int64_t mz_magnitudes_up_to(const int32_t *counts, int exponent) {
    int64_t sum = 0;
    for (int b = 1; b <= MZ_HISTOGRAM_BUCKETS - 3 && MZ_HISTOGRAM_EXPONENT(b) <= exponent; b++)
        sum += counts[b];
    return sum;
}

int64_t mz_magnitudes_nonzero(const int32_t *counts) {
    return mz_magnitudes_up_to(counts, 128);
}

// Of all parameters' gradients together, into metrics.jsonl as a text: "-31:2 -30:5 …", the counts by exponent. mezzo
// report draws it.
static mezzo_status log_gradients(const mz_magnitudes *m, mz_metrics *metrics, int64_t step) {
    mz_text text = {0};
    for (int b = 1; b <= MZ_HISTOGRAM_BUCKETS - 3; b++) {
        int64_t sum = 0;
        for (size_t i = 0; i < m->n; i++)
            if (m->list[i].kind == MZ_OF_GRADIENT)
                sum += m->list[i].counts[b];
        if (sum > 0)
            mz_text_addf(&text, "%s%d:%lld", text.len > 0 ? " " : "", MZ_HISTOGRAM_EXPONENT(b), (long long)sum);
    }
    const mz_metric row = mz_metric_text("gradients/log2_counts", text.data != NULL ? text.data : "");
    mezzo_status status = text.status;
    if (status == MEZZO_OK)
        status = mz_metrics_write(metrics, step, &row, 1);
    mz_text_free(&text);
    return status;
}

mezzo_status mz_magnitudes_log(const mz_magnitudes *m, mz_metrics *metrics, int64_t step) {
    static const char *const groups[MZ_MAGNITUDE_KINDS] = {"gradients_log2", "activations_log2",
                                                           "activation_gradients_log2"};
    double edges[MZ_HISTOGRAM_BUCKETS], counts[MZ_HISTOGRAM_BUCKETS];
    for (size_t i = 0; i < m->n; i++) {
        size_t n = 0;
        for (int b = 1; b <= MZ_HISTOGRAM_BUCKETS - 3; b++) {
            edges[n] = MZ_HISTOGRAM_EXPONENT(b);
            counts[n++] = m->list[i].counts[b];
        }
        char *tag = mz_format("%s/%s", groups[m->list[i].kind], m->list[i].name);
        if (tag == NULL)
            return MEZZO_ERR_MEMORY;
        mezzo_status status = mz_metrics_add_counts(metrics, tag, edges, counts, n);
        mz_free(tag);
        MEZZO_TRY(status);
    }
    MEZZO_TRY(mz_metrics_write_counts(metrics, step));
    return log_gradients(m, metrics, step);
}
