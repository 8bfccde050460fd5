#include "train/magnitudes.h"

#include <math.h>

#include "runtime/program.h"
#include "backend/inspect.h"
#include "base/scope.h"

static bool is_float(mezzo_dtype dtype) {
    return dtype == MEZZO_F32 || dtype == MEZZO_BF16 || dtype == MEZZO_F16;
}

static size_t table_bytes(void) {
    return MZ_HISTOGRAM_BUCKETS * sizeof(int32_t);
}

// --- creation -------------------------------------------------------------------------------------------------------
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

// Returns whether a value lies in the memory of a parameter's gradient.
static bool is_gradient(const mezzo_program *program, int value) {
    const mezzo_graph *g = program->c.graph;
    return g->values[mz_value_root(g, value)].kind == MZ_VALUE_GRAD;
}

// Returns whether the output holds scales, which are no numbers of the model.
static bool holds_scales(const mz_node *node, int slot) {
    return node->op == MZ_OP_quantize &&
           (slot == MZ_OUT(quantize, scales) || slot == MZ_OUT(quantize, columnwise_scales));
}

// Adds a call's float outputs. A parameter's gradient is a sum over micro batches, and counted when it is complete.
static mezzo_status add_call(mz_magnitudes *m, const mezzo_program *program, int index) {
    const mz_call *call = &program->c.calls[index];
    const mz_node *node = &program->c.graph->nodes[program->c.node[index]];
    const char *module = program->c.graph->modules[node->module];
    if (node->phase == MZ_RECOMPUTE || node->op == MZ_OP_copy) // these are the same numbers again
        return MEZZO_OK;
    bool named = mz_op_table[call->op].n_out > 1;
    for (int k = 0; k < call->n_out; k++) {
        const mz_tensor of_node = mz_program_tensor(program, node->out[k]), *t = &of_node;
        if (k == mz_act_out_slot(call->op)) // these are forward's numbers again
            continue;
        if (!mz_present(t) || !is_float(t->dtype) || mz_shape_count(&t->shape) < 2 ||
            is_gradient(program, node->out[k]) || holds_scales(node, k))
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

// --- rounded to 8 bits ---------------------------------------------------------------------------
// Makes a call of the activation alone, whose result `quantize` would round.
static mz_call activation_call(const mz_magnitudes *m, const mz_narrowed *of, const mz_call *quantize) {
    const bool gradient = quantize->n_in > 1 && mz_present(&quantize->in[1]);
    mz_call call = {.op = of->activation,
                    .attrs.tanh = quantize->attrs.act == MZ_ACT_GELU_TANH,
                    .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32},
                    .n_in = gradient ? 2 : 1,
                    .in = {quantize->in[0], gradient ? quantize->in[1] : mz_tensor_absent()},
                    .n_out = 1,
                    .out = {quantize->in[0]}};
    call.out[0].shape = mz_quantized_shape(quantize->attrs.act, &call.in[0].shape, gradient ? &call.in[1].shape : NULL);
    call.out[0].dtype = quantize->attrs.via;
    call.out[0].storage = (mz_storage){0};
    call.out[0].data = m->act;
    return call;
}

static mezzo_status add_narrowed(mz_magnitudes *m, const mezzo_program *program, int index) {
    const mz_call *call = &program->c.calls[index];
    const mz_scales *scales = &program->params->scales;
    const mz_node *node = &program->c.graph->nodes[program->c.node[index]];
    if (mz_graph_entry(program->c.graph, node) < 0 || !is_float(call->in[0].dtype))
        return MEZZO_OK;
    MEZZO_TRY(MZ_RESERVE(m->narrowed, m->cap_narrowed, m->n_narrowed + 1));
    mz_narrowed *of = &m->narrowed[m->n_narrowed];
    *of = (mz_narrowed){.call = index,
                        .entry = mz_scales_index(scales, call->out[MZ_OUT(quantize, scales)].data),
                        .activation = mz_act_op(call->attrs.act, call->n_in > 1 && mz_present(&call->in[1]))};
    of->name = mz_strdup(scales->names[of->entry]);
    if (of->name == NULL)
        return MEZZO_ERR_MEMORY;
    m->n_narrowed++;
    return MEZZO_OK;
}

static mezzo_status list_tensors(mz_magnitudes *m, const mezzo_program *program, const mezzo_params *params) {
    m->calls = (int)program->c.n_calls;
    MEZZO_TRY(MZ_NEW(m->first, (size_t)m->calls + 1));
    for (int i = 0; i < m->calls; i++) {
        m->first[i] = (int)m->n;
        MEZZO_TRY(add_call(m, program, i));
        MEZZO_TRY(add_narrowed(m, program, i));
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

// Chooses what to count of a tensor that is rounded to 8 bits, without addresses yet, and the memory that an
// activation's result needs.
static mezzo_status choose_narrowed(mz_magnitudes *m, const mezzo_program *program) {
    size_t room = 0;
    for (size_t i = 0; i < m->n_narrowed; i++) {
        mz_narrowed *of = &m->narrowed[i];
        const mz_call *quantize = &program->c.calls[of->call];
        mz_call act = activation_call(m, of, quantize);
        const bool applies = quantize->attrs.act != MZ_ACT_NONE;
        const mz_tensor *x = applies ? &act.out[0] : &quantize->in[0];
        if (applies)
            MEZZO_TRY(mz_prepare(m->device, &act, &of->prepared));
        if (applies && mz_tensor_bytes_stored(x) + of->prepared.workspace > room)
            room = mz_tensor_bytes_stored(x) + of->prepared.workspace;
        mz_call histogram = call_of(x, NULL);
        MEZZO_TRY(mz_prepare(m->device, &histogram, &of->histogram));
    }
    return room > 0 ? m->device->backend->alloc(m->device, room + 64, &m->act) : MEZZO_OK;
}

static mezzo_status choose(mz_magnitudes *m, const mezzo_program *program) {
    m->prepared = mz_alloc(m->n, sizeof *m->prepared);
    m->host = mz_alloc(m->n + m->n_narrowed, table_bytes());
    if (m->prepared == NULL || m->host == NULL)
        return MEZZO_ERR_MEMORY;
    if (m->n_narrowed > 0)
        MEZZO_TRY(choose_narrowed(m, program));
    for (size_t i = 0; i < m->n; i++) {
        mz_magnitudes_of *of = &m->list[i];
        mz_tensor x = {.dtype = of->dtype, .shape = {1, {of->elements}}};
        mz_call call = call_of(&x, NULL);
        MEZZO_TRY(mz_prepare(m->device, &call, &m->prepared[i]));
        of->counts = m->host + i * MZ_HISTOGRAM_BUCKETS;
    }
    return m->device->backend->alloc(m->device, (m->n + m->n_narrowed) * table_bytes(), (void **)&m->counts);
}

mezzo_status mz_magnitudes_create(const mezzo_program *program, mezzo_params *params, mz_magnitudes **out) {
    mezzo_status status;
    *out = NULL;
    mz_magnitudes *m;
    MEZZO_TRY(MZ_NEW(m, 1));
    m->device = params->device;
    MEZZO_TRY_GOTO(status, list_tensors(m, program, params));
    MEZZO_TRY_GOTO(status, choose(m, program));
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
    for (size_t i = 0; i < m->n_narrowed; i++) {
        mz_prepared_free(&m->narrowed[i].prepared);
        mz_prepared_free(&m->narrowed[i].histogram);
        mz_free(m->narrowed[i].name);
    }
    m->device->backend->release(m->device, m->act);
    MZ_FREE(m->narrowed, m->list, m->prepared, m->host, m->first, m);
}

// --- counting ------------------------------------------------------------------------------------
static mezzo_status count(mz_magnitudes *m, size_t i, const mz_tensor *x) {
    mz_call call = call_of(x, m->counts + i * table_bytes());
    return mz_run(m->device, &m->prepared[i], &call, NULL);
}

static mezzo_status count_narrowed(mz_magnitudes *m, mezzo_program *program, size_t i) {
    mz_narrowed *of = &m->narrowed[i];
    const mz_call *quantize = &program->c.calls[of->call];
    mz_tensor x = quantize->in[0];
    if (quantize->attrs.act != MZ_ACT_NONE) {
        mz_call act = activation_call(m, of, quantize);
        x = act.out[0];
        MEZZO_TRY(mz_run(m->device, &of->prepared, &act, (char *)m->act + mz_align_up(mz_tensor_bytes_stored(&x), 64)));
    }
    mz_call call = call_of(&x, m->counts + (m->n + i) * table_bytes());
    return mz_run(m->device, &of->histogram, &call, NULL);
}

static mezzo_status count_outputs(void *user, mezzo_program *program, size_t call) {
    mz_magnitudes *m = user;
    const mz_node *node = &program->c.graph->nodes[program->c.node[call]];
    for (int i = m->first[call]; i < m->first[call + 1]; i++) {
        mz_tensor x = mz_program_tensor(program, node->out[m->list[i].slot]);
        MEZZO_TRY(count(m, (size_t)i, &x));
    }
    for (size_t i = 0; i < m->n_narrowed; i++)
        if ((size_t)m->narrowed[i].call == call)
            MEZZO_TRY(count_narrowed(m, program, i));
    return m->hook != NULL ? m->hook(m->hook_user, program, call) : MEZZO_OK;
}

mezzo_status mz_magnitudes_begin(mz_magnitudes *m, mezzo_program *program) {
    MEZZO_TRY(m->device->backend->zero(m->device, m->counts, (m->n + m->n_narrowed) * table_bytes()));
    if (m->n_narrowed > 0)
        MEZZO_TRY(mz_scales_read(m->device, &program->params->scales));
    for (size_t i = 0; i < m->n_narrowed; i++)
        m->narrowed[i].found = program->params->scales.host[m->narrowed[i].entry];
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

// Counts the elements of a table with a finite magnitude other than 0 of at most 2^exponent.
static int64_t count_up_to(const int32_t *counts, int exponent) {
    int64_t sum = 0;
    for (int b = 1; b <= MZ_HISTOGRAM_BUCKETS - 3 && MZ_HISTOGRAM_EXPONENT(b) <= exponent; b++)
        sum += counts[b];
    return sum;
}

static int64_t count_nonzero(const int32_t *counts) {
    return count_up_to(counts, 128);
}

// Reads the tables. A number becomes 0 where it is at most half of the format's smallest, 2^-9 or 2^-16, times the
// scale; the scale is a power of two, so these are whole buckets.
mezzo_status mz_magnitudes_read(mz_magnitudes *m) {
    MEZZO_TRY(m->device->backend->read(m->device, m->host, m->counts, (m->n + m->n_narrowed) * table_bytes()));
    for (size_t i = 0; i < m->n_narrowed; i++) {
        mz_narrowed *of = &m->narrowed[i];
        const int32_t *counts = m->host + (m->n + i) * MZ_HISTOGRAM_BUCKETS;
        of->known = of->found.n > 0;
        of->nonzero = count_nonzero(counts);
        of->lost = count_up_to(counts, ilogbf(of->found.scale) - (of->found.dtype == (int32_t)MEZZO_F8E4M3 ? 10 : 17));
    }
    return MEZZO_OK;
}

// --- statistics ----------------------------------------------------------------------------------
// Writes all parameters' gradients together into metrics.jsonl as a text: "-31:2 -30:5 …", the counts by exponent.
// `mezzo report` draws it.
static mezzo_status log_gradients(const mz_magnitudes *m, mz_metrics *metrics, int64_t step) {
    MZ_SCOPED(mz_text_free) mz_text text = {0};
    for (int b = 1; b <= MZ_HISTOGRAM_BUCKETS - 3; b++) {
        int64_t sum = 0;
        for (size_t i = 0; i < m->n; i++)
            if (m->list[i].kind == MZ_OF_GRADIENT)
                sum += m->list[i].counts[b];
        if (sum > 0)
            mz_text_addf(&text, "%s%d:%lld", text.len > 0 ? " " : "", MZ_HISTOGRAM_EXPONENT(b), (long long)sum);
    }
    const mz_metric row = mz_metric_text("gradients/log2_counts", text.data != NULL ? text.data : "");
    MEZZO_TRY(text.status);
    return mz_metrics_write(metrics, step, &row, 1);
}

// Logs the share of numbers other than zero that 8 bits made zero, over all tensors and in the tensor that loses most.
static mezzo_status log_narrowed(const mz_magnitudes *m, mz_metrics *metrics, int64_t step) {
    int64_t nonzero = 0, lost = 0;
    double most = -1;
    const char *name = "";
    for (size_t i = 0; i < m->n_narrowed; i++) {
        const mz_narrowed *of = &m->narrowed[i];
        if (!of->known || of->nonzero == 0)
            continue;
        nonzero += of->nonzero;
        lost += of->lost;
        if ((double)of->lost / (double)of->nonzero > most) {
            most = (double)of->lost / (double)of->nonzero;
            name = of->name;
        }
    }
    if (nonzero == 0)
        return MEZZO_OK;
    const mz_metric row[] = {mz_metric_number("fp8/underflow_share", (double)lost / (double)nonzero),
                             mz_metric_number("fp8/most_underflow_share", most),
                             mz_metric_text("fp8/most_underflow", name)};
    return mz_metrics_write(metrics, step, row, MZ_COUNT(row));
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
    MEZZO_TRY(log_narrowed(m, metrics, step));
    return log_gradients(m, metrics, step);
}
