// Finds the first bad value of a micro step: runs call by call and inspects every input and output. It is slow, for a
// step that is known to be bad.
#include <math.h>
#include <stdarg.h>

#include "runtime/program.h"
#include "backend/inspect.h"
#include "base/scope.h"

static bool is_float(const mz_tensor *t) {
    return mz_present(t) && t->dtype < MEZZO_I64;
}

static bool is_8bit(const mz_tensor *t) {
    return is_float(t) && mezzo_dtype_size(t->dtype) == 1;
}

// Counts NaN and infinities among 8-bit data, on the host. `inspect` has no kernels for 8 bits, whose range would need
// their scales.
static mezzo_status inspect_quantized(mezzo_program *p, const mz_tensor *t, mz_inspection *out) {
    const int64_t n = mz_shape_count(&t->shape);
    const size_t bytes = mz_tensor_bytes_stored(t);
    MZ_SCOPED(mz_free_at) char *host = NULL;
    MEZZO_TRY(MZ_NEW(host, bytes + 1));
    MEZZO_TRY(p->device->backend->read(p->device, host, t->data, bytes));
    for (int64_t i = 0; i < n; ++i) {
        float x = 0;
        MEZZO_TRY(mezzo_convert(host + (size_t)mz_tensor_index(t, i), t->dtype, &x, MEZZO_F32, 1));
        out->nans += isnan(x) != 0;
        out->infs += isinf(x) != 0;
    }
    out->inspected = n;
    return MEZZO_OK;
}

// Counts bad numbers of up to MZ_MAX_IN float tensors, and finds the ranges of those with more than 8 bits.
mezzo_status mz_program_inspect(mezzo_program *p, const mz_tensor *tensors, int n, float limit, mz_inspection *out) {
    if (p->inspection == NULL)
        MEZZO_TRY(p->device->backend->alloc(p->device, MZ_MAX_IN * sizeof *p->inspection, (void **)&p->inspection));
    mz_call call = {.op = MZ_OP_inspect, .n_out = 1, .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32}, .rng = p->rng};
    int at[MZ_MAX_IN];
    memset(out, 0, (size_t)n * sizeof *out);
    for (int i = 0; i < n; ++i)
        if (is_8bit(&tensors[i])) {
            MEZZO_TRY(inspect_quantized(p, &tensors[i], &out[i]));
        } else if (is_float(&tensors[i])) {
            at[call.n_in] = i;
            call.in[call.n_in++] = tensors[i];
        }
    if (call.n_in == 0)
        return MEZZO_OK;
    mz_inspection found[MZ_MAX_IN];
    size_t bytes = (size_t)call.n_in * sizeof *found;
    call.attrs.limit = limit;
    call.out[0] = mz_tensor_bytes(p->inspection, bytes);
    MEZZO_TRY(mz_run_once(p->device, &call));
    MEZZO_TRY(p->device->backend->read(p->device, found, p->inspection, bytes));
    for (int i = 0; i < call.n_in; ++i)
        out[at[i]] = found[i];
    return MEZZO_OK;
}

static void describe_op(const mezzo_program *p, size_t call, mz_located *out) {
    const mezzo_graph *g = p->c.graph;
    const mz_node *n = &g->nodes[p->c.node[call]];
    out->found = true;
    out->op = mz_op_table[n->op].name;
    out->module = g->modules[n->module];
    out->phase = mz_phase_name(n->phase);
    out->rule = n->rule != NULL ? n->rule : "";
    out->compute = n->numerics.compute;
}

static mz_located_tensor tensor_at(const mezzo_program *p, size_t call, bool output, int slot,
                                   const mz_inspection *values) {
    const mz_call *c = &p->c.calls[call];
    const mz_tensor *t = output ? &c->out[slot] : &c->in[slot];
    mz_located_tensor seen = {.dtype = t->dtype, .values = *values};
    snprintf(seen.slot, sizeof seen.slot, "%s", mz_op_slot(c->op, output, slot).name);
    return seen;
}

// --- infinities that a graph has as constants ------------------------------------------------------------------------
// Masks have them, and borders that a maximum ignores. An output may hold those of this input; other ops make
// infinities finite.
static bool passes_infinities(mz_op op, int slot) {
    switch (op) {
    case MZ_OP_expand:
    case MZ_OP_cast:
    case MZ_OP_copy:
    case MZ_OP_gather:
    case MZ_OP_embedding:
    case MZ_OP_where:
    case MZ_OP_add:
    case MZ_OP_sub:
    case MZ_OP_mul:
    case MZ_OP_scale:
    case MZ_OP_maximum:
    case MZ_OP_minimum:
    case MZ_OP_max:
    case MZ_OP_min:
        return true;
    default:
        return mz_op_table[op].moves || strcmp(mz_op_slot(op, false, slot).name, "residual") == 0;
    }
}

mezzo_status mz_program_infinite(const mezzo_program *p, bool **out) {
    const mezzo_graph *g = p->c.graph;
    bool *infinite = *out = mz_alloc(g->n_values + 1, sizeof **out);
    if (infinite == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < g->n_nodes; ++i) {
        const mz_node *n = &g->nodes[i];
        bool has = (n->op == MZ_OP_pad || n->op == MZ_OP_constant) && isinf(n->attrs.alpha);
        for (int k = 0; k < n->n_in && !has; ++k)
            has = n->in[k] >= 0 && infinite[mz_value_root(g, n->in[k])] && passes_infinities(n->op, k);
        for (int k = 0; k < n->n_out && has; ++k)
            if (n->out[k] >= 0)
                infinite[mz_value_root(g, n->out[k])] = true;
    }
    return MEZZO_OK;
}

// --- a micro step, call by call -------------------------------------------------------------------------------------
// Checks a parameter or input that an op reads and no op wrote; values that ops wrote were inspected then.
static void check_sources(const mezzo_program *p, size_t call, const mz_inspection *ins, mz_located *out) {
    const mezzo_graph *g = p->c.graph;
    const mz_node *n = &g->nodes[p->c.node[call]];
    for (int k = 0; k < n->n_in && !out->found; ++k) {
        if (n->in[k] < 0 || ins[k].nans + ins[k].infs == 0)
            continue;
        const mz_value *own = &g->values[n->in[k]], *root = &g->values[mz_value_root(g, n->in[k])];
        const bool gathered = own->kind == MZ_VALUE_PARAM || own->kind == MZ_VALUE_LOW_COPY;
        const mz_value *v = gathered ? own : root;
        if (v->kind == MZ_VALUE_TEMP)
            continue;
        describe_op(p, call, out);
        out->bad = tensor_at(p, call, false, k, &ins[k]);
        out->parameter = v->kind == MZ_VALUE_PARAM || v->kind == MZ_VALUE_LOW_COPY || v->kind == MZ_VALUE_QUANTIZED;
        out->source = out->parameter                ? g->params[v->param].name
                      : v->kind == MZ_VALUE_SCALE   ? "the loss scale"
                      : v->name != NULL && *v->name ? v->name
                                                    : "an input";
    }
}

static void keep_inputs(const mezzo_program *p, size_t call, const mz_inspection *ins, mz_located *out) {
    const mz_call *c = &p->c.calls[call];
    for (int k = 0; k < c->n_in; ++k)
        if (is_float(&c->in[k]) && !is_8bit(&c->in[k]))
            out->in[out->n_in++] = tensor_at(p, call, false, k, &ins[k]);
}

// Lists the tensors that a call reads or writes, without padding, which the call may treat as data.
static void inspected_tensors(const mezzo_program *p, size_t call, bool outputs, mz_tensor out[MZ_MAX_IN]) {
    const mz_node *n = &p->c.graph->nodes[p->c.node[call]];
    for (int k = 0; k < (outputs ? n->n_out : n->n_in); ++k)
        out[k] = mz_program_tensor(p, outputs ? n->out[k] : n->in[k]);
}

static mezzo_status locate_at(mezzo_program *p, size_t i, bool fresh, const bool *infinite, float limit,
                              mz_located *out) {
    mz_inspection ins[MZ_MAX_IN], outs[MZ_MAX_OUT];
    mz_tensor tensors[MZ_MAX_IN];
    mz_call *call = &p->c.calls[i];
    bool forward = p->c.graph->nodes[p->c.node[i]].phase == MZ_FORWARD;
    if (p->c.graph->nodes[p->c.node[i]].gathers > 0) // the readers of the region name the bad parameter
        return mz_program_run_call(p, i, fresh);
    inspected_tensors(p, i, false, tensors);
    MEZZO_TRY(mz_program_inspect(p, tensors, call->n_in, 0, ins));
    check_sources(p, i, ins, out);
    MEZZO_TRY(mz_program_run_call(p, i, fresh));
    inspected_tensors(p, i, true, tensors);
    MEZZO_TRY(mz_program_inspect(p, tensors, call->n_out, forward ? limit : 0, outs));
    for (int k = 0; k < call->n_out && !out->found; ++k) {
        int v = p->c.graph->nodes[p->c.node[i]].out[k];
        if (v >= 0 && infinite[mz_value_root(p->c.graph, v)])
            outs[k].infs = 0;
        if (!mz_inspection_bad(&outs[k]))
            continue;
        describe_op(p, i, out);
        out->bad = tensor_at(p, i, true, k, &outs[k]);
        out->loss = mz_value_root(p->c.graph, v) == mz_value_root(p->c.graph, p->c.graph->loss);
    }
    if (!out->found)
        return MEZZO_OK;
    keep_inputs(p, i, ins, out);
    return out->parameter ? MEZZO_OK : mz_program_sample(p, i, forward ? limit : 0, &out->sample);
}

// Starts a micro step. *fresh: gradients must be written, because other values use their memory. The caller frees
// *infinite.
static mezzo_status begin(mezzo_program *p, const mezzo_scaler *scaler, uint64_t seed, uint64_t step, bool *fresh,
                          bool **infinite) {
    MEZZO_TRY(mz_program_infinite(p, infinite));
    MEZZO_TRY(mz_program_fresh(p, fresh));
    *fresh = *fresh && (p->c.plan.gradients > 0 || p->params->scattered);
    MEZZO_TRY(mz_program_prepare(p, scaler, seed, step));
    if (p->options.forward_only)
        return MEZZO_OK;
    MEZZO_TRY(mz_params_settle(p->params));
    mz_program_wrote_gradients(p);
    return MEZZO_OK;
}

mezzo_status mz_program_locate(mezzo_program *p, const mezzo_scaler *scaler, uint64_t seed, uint64_t step, float limit,
                               mz_located *out) {
    *out = (mz_located){.sample = -1};
    MZ_SCOPED(mz_free_at) bool *infinite = NULL;
    bool fresh;
    MEZZO_TRY(begin(p, scaler, seed, step, &fresh, &infinite));
    for (size_t i = 0; i < p->c.n_calls && !out->found; ++i)
        MEZZO_TRY(locate_at(p, i, fresh, infinite, limit, out));
    return MEZZO_OK;
}

// --- descriptions ---------------------------------------------------------------------------------------------------
static void add(char *out, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void add(char *out, size_t size, const char *fmt, ...) {
    const size_t used = strlen(out);
    va_list args;
    va_start(args, fmt);
    vsnprintf(out + used, size - used, fmt, args);
    va_end(args);
}

void mz_inspection_describe(const mz_inspection *v, char *out, size_t size) {
    if (v->nans > 0)
        add(out, size, "%lld NaN", (long long)v->nans);
    if (v->infs > 0)
        add(out, size, "%s%lld infinities", v->nans > 0 ? " and " : "", (long long)v->infs);
    if (v->nans + v->infs == 0)
        add(out, size, "%lld values above guard.limit, up to %.4g", (long long)v->large,
            fmax(-(double)v->low, (double)v->high));
    add(out, size, " of %lld", (long long)v->inspected);
}

void mz_located_describe(const mz_located *f, int64_t sample, char *out, size_t size) {
    add(out, size, "first in %s of %s (%s)", f->op, *f->module ? f->module : "the model", f->phase);
    if (sample > 0)
        add(out, size, ", sample %lld", (long long)sample);
    if (f->source != NULL)
        add(out, size, ": %s itself, read as %s", f->source, f->bad.slot);
    else
        add(out, size, ": output %s", f->bad.slot);
    add(out, size, " (%s) has ", mezzo_dtype_name(f->bad.dtype));
    mz_inspection_describe(&f->bad.values, out, size);
    for (int k = 0; k < f->n_in; ++k) {
        const mz_inspection *in = &f->in[k].values;
        add(out, size, "%s%s (%s) in [%.4g, %.4g]%s", k == 0 ? "; inputs " : ", ", f->in[k].slot,
            mezzo_dtype_name(f->in[k].dtype), (double)in->low, (double)in->high,
            in->nans + in->infs > 0 ? " and non-finite" : "");
    }
}

bool mz_located_low(const mz_located *f) {
    const mezzo_dtype made = f->compute, stored = f->bad.dtype;
    return (made != MEZZO_F32 && made != MEZZO_F64) || (stored != MEZZO_F32 && stored != MEZZO_F64);
}

// --- results -------------------------------------------------------------------------------------------------------
mezzo_status mz_program_blame(mezzo_program *p, const char *what) {
    mz_located finding;
    char where[1024] = "";
    MEZZO_TRY(mz_program_locate(p, NULL, 0, 0, 0, &finding));
    if (!finding.found)
        return mz_fail(
            MEZZO_ERR_NUMERIC,
            "%s is not finite, and every op's output is when it is computed again: check the device's memory", what);
    mz_located_describe(&finding, finding.sample + 1, where, sizeof where);
    const char *way_out = finding.parameter ? "use a checkpoint from before it"
                          : mz_located_low(&finding)
                              ? "use --precision fp32 or bf16, which hold larger numbers"
                              : "it is already computed in fp32: check the data, or use an earlier checkpoint";
    return mz_fail(MEZZO_ERR_NUMERIC, "%s is not finite: %s; %s", what, where, way_out);
}

mezzo_status mz_program_read_finite(mezzo_program *p, const char *output, float *out, size_t count) {
    char what[80];
    MEZZO_TRY(mezzo_program_read(p, output, out, count * sizeof *out));
    if (mz_all_finite(out, count))
        return MEZZO_OK;
    snprintf(what, sizeof what, "the model's %s", output);
    return mz_program_blame(p, what);
}

mezzo_status mezzo_program_check(mezzo_program *p, const mezzo_scaler *scaler, uint64_t seed, uint64_t step,
                                 bool *found, char *where, size_t size) {
    MZ_REQUIRE(p, found);
    mz_located finding = {.sample = -1};
    size = where != NULL ? size : 0;
    if (size)
        where[0] = 0;
    MEZZO_TRY(mz_program_ready(p, scaler));
    bool fresh, *infinite = NULL;
    mezzo_status status = begin(p, scaler, seed, step, &fresh, &infinite);
    for (size_t i = 0; i < p->c.n_calls && status == MEZZO_OK; ++i)
        status = finding.found ? mz_program_run_call(p, i, fresh) : locate_at(p, i, fresh, infinite, 0, &finding);
    mz_free(infinite);
    MEZZO_TRY(status);
    *found = finding.found;
    if (finding.found && size)
        mz_located_describe(&finding, finding.sample + 1, where, size);
    return MEZZO_OK;
}
