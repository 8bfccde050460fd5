// A program is the graph after its passes, with memory allocated and a kernel chosen for every node. It runs many
// times.
#include "runtime/program.h"

#include "base/precision.h"
#include "runtime/gather.h"
#include "runtime/passes.h"

static mezzo_status check_options(const mezzo_program_options *o) {
    if (mz_precision(o->precision) == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "a program needs a precision: resolve auto with mezzo_precision_resolve");
    if (!(o->loss_weight >= 0) || o->loss_weight > 3.4e38f)
        return mz_fail(MEZZO_ERR_INVALID, "loss_weight is %g, must be finite and not negative", (double)o->loss_weight);
    return MEZZO_OK;
}

// Compiles a graph. params: the program's parameters, or their layout. A sketch only counts memory and keeps two calls,
// because the calls of a head in many blocks would take gigabytes.
static mezzo_status compile(mezzo_device *device, const mezzo_params *params, const mezzo_graph *graph,
                            const mezzo_program_options *options, bool sketch, mz_compiled *c) {
    *c = (mz_compiled){.sketch = sketch};
    MEZZO_TRY(check_options(options));
    mezzo_status status = mz_passes(graph, &(mz_target){options, device, params, c}, "plan", &c->graph);
    if (status != MEZZO_OK)
        mz_compiled_free(c);
    return status;
}

// Returns whether a program gains by an overlapped update. It does where it has few rows: the update moves the weights'
// bytes, and forward's work is weights times rows.
static bool worth_overlap(const mz_backend *b, const mz_compiled *c) {
    return c->stream != NULL && mz_program_rows(c->graph) <= b->few_rows;
}

// --- memory --------------------------------------------------------------------------------------------------------

static size_t first_workspace(const mz_compiled *c) { // stream 0 has the first workspace, stream 1 the next
    return c->stream ? mz_align_up(c->workspace, 256) : c->workspace;
}

static void plan_report(const mz_compiled *c, mezzo_memory *out) {
    *out = (mezzo_memory){.activations = c->plan.arena,
                          .activations_in_gradients = c->plan.borrowed,
                          .workspace = first_workspace(c) + c->side_workspace,
                          .inputs = c->plan.inputs + c->plan.state,
                          .activations_unshared = c->plan.unshared};
}

static void params_report(const mezzo_params *params, mezzo_memory *out) {
    out->masters = params->master_bytes;
    out->gradients = (size_t)params->grad_elements * sizeof(float);
    out->shadows = (size_t)params->n_low_copies * (size_t)params->low_copy_elements * 2 + params->quantized.bytes;
}

void mezzo_program_memory(const mezzo_program *program, mezzo_memory *out) {
    if (out != NULL)
        *out = (mezzo_memory){0};
    if (program == NULL || out == NULL)
        return;
    plan_report(&program->c, out);
    params_report(program->params, out);
}

// Returns the bytes of the low copies in each format in which the graph reads parameters.
static size_t low_copy_bytes(const mezzo_params *params, const mezzo_graph *g) {
    bool read[MEZZO_DTYPE_COUNT] = {false};
    size_t n = 0;
    for (size_t i = 0; i < g->n_values; ++i)
        if (g->values[i].kind == MZ_VALUE_LOW_COPY && !read[g->values[i].dtype]) {
            read[g->values[i].dtype] = true;
            n += (size_t)params->low_copy_elements * mezzo_dtype_size(g->values[i].dtype);
        }
    return n;
}

mezzo_status mz_plan_memory(mezzo_device *device, const mezzo_graph *graph, const mezzo_program_options *options,
                            mezzo_master master, const mz_cut *cut, mezzo_memory *out) {
    mz_compiled c;
    mezzo_params *params;
    MEZZO_TRY(mz_params_sketch(device, graph, options, master, cut, &params));
    mezzo_status status = compile(device, params, graph, options, true, &c);
    if (status == MEZZO_OK) {
        size_t quantized;
        status = mz_quantized_bytes(c.graph, &quantized);
        plan_report(&c, out);
        params_report(params, out);
        out->shadows = low_copy_bytes(params, c.graph) + quantized;
        mz_compiled_free(&c);
    }
    mezzo_params_free(params);
    return status;
}

mezzo_status mezzo_plan_memory(mezzo_device *device, const mezzo_graph *graph, const mezzo_program_options *options,
                               mezzo_memory *out) {
    MZ_REQUIRE(device, graph, options, out);
    return mz_plan_memory(device, graph, options, MEZZO_MASTER_FP32, NULL, out);
}

static size_t own_bytes(const mezzo_memory *m) { // returns the bytes that the program allocates
    return m->activations + m->workspace + m->inputs;
}

// Returns the bytes of activations' results that backward recomputes.
static size_t recomputed_bytes(const mz_compiled *c) {
    size_t bytes = 0;
    for (size_t i = 0; i < c->n_calls; ++i) {
        const int slot = mz_act_out_slot(c->calls[i].op);
        if (slot >= 0 && slot < c->calls[i].n_out && mz_present(&c->calls[i].out[slot]))
            bytes += mz_tensor_bytes_stored(&c->calls[i].out[slot]);
    }
    return bytes;
}

// Adds to the error what would fit: the program with recompute, if that was not asked for, or a smaller batch.
static void advise_smaller(const mezzo_program *p, const mezzo_graph *graph, const mezzo_program_options *options,
                           const mezzo_memory *m, size_t room, char *text, size_t size) {
    mz_compiled again;
    mezzo_program_options with = *options;
    int n = 0;
    with.recompute = true;
    if (!options->recompute && !options->forward_only &&
        compile(p->device, p->params, graph, &with, true, &again) == MEZZO_OK) {
        mezzo_memory less;
        plan_report(&again, &less);
        mz_compiled_free(&again);
        if (own_bytes(&less) < own_bytes(m))
            n = snprintf(text, size, "recompute reduces that to %.0f MiB%s; ", (double)own_bytes(&less) / (1 << 20),
                         own_bytes(&less) <= room ? ", which fits" : "");
    }
    // Activations and inputs grow with the batch, and the workspace does at most. A smaller batch may have few rows and
    // keep its activations' results.
    const double left = room > m->workspace ? (double)(room - m->workspace) : 0;
    double all = (double)m->activations + (double)m->inputs;
    if (!options->recompute_light && mz_keeps_activations(p->device->backend, p->c.graph) &&
        left * (double)mz_program_rows(p->c.graph) <= all * (double)p->device->backend->few_rows)
        all += (double)recomputed_bytes(&p->c);
    const double part = left / all;
    if (part >= 0.01)
        snprintf(text + n, size - (size_t)n, "about %.0f%% of this batch fits: accumulate gradients over smaller ones",
                 100 * part);
    else
        snprintf(text + n, size - (size_t)n, "not a hundredth of this batch fits: use a smaller model or device");
}

static mezzo_status too_large(const mezzo_program *p, const mezzo_graph *graph, const mezzo_program_options *options,
                              const mezzo_memory *m, const mezzo_device_info *info) {
    double mib = 1.0 / (1 << 20);
    char advice[256];
    size_t there = m->masters + m->gradients + m->shadows;
    size_t room = info->memory_free ? info->memory_free : info->memory_total > there ? info->memory_total - there : 0;
    advise_smaller(p, graph, options, m, room, advice, sizeof advice);
    return mz_fail(MEZZO_ERR_MEMORY,
                   "the program needs %.0f MiB for activations, %.0f workspace, %.0f inputs, in addition to %.0f MiB "
                   "of weights and gradients; the device has %.0f MiB free of %.0f. %s",
                   (double)m->activations * mib, (double)m->workspace * mib, (double)m->inputs * mib,
                   (double)there * mib, (double)room * mib, (double)info->memory_total * mib, advice);
}

static mezzo_status book(mezzo_program *p, const mezzo_graph *graph, const mezzo_program_options *options) {
    mezzo_device_info info;
    mezzo_memory m;
    const mz_backend *b = p->device->backend;
    MEZZO_TRY(b->describe(p->device, &info));
    mezzo_program_memory(p, &m);
    size_t there = info.memory_free ? 0 : m.masters + m.gradients; // the memory in use includes these already
    size_t limit = info.memory_free ? info.memory_free : info.memory_total;
    if (limit && own_bytes(&m) + there > limit)
        return too_large(p, graph, options, &m, &info);
    mezzo_status status = b->alloc(p->device, m.activations + 64, &p->arena);
    if (status == MEZZO_OK)
        status = b->alloc(p->device, m.workspace + 64, &p->workspace);
    if (status == MEZZO_OK)
        status = b->alloc(p->device, MZ_INPUTS_AT + p->c.plan.inputs, (void **)&p->inputs);
    if (status == MEZZO_OK && p->c.plan.state > 0)
        status = b->alloc(p->device, p->c.plan.state, (void **)&p->state);
    if (status == MEZZO_OK)
        status = b->alloc(p->device, sizeof *p->one, (void **)&p->one);
    if (status == MEZZO_ERR_MEMORY &&
        (limit == 0 || own_bytes(&m) + there > limit / 4)) // else other allocations exhaust the memory
        return too_large(p, graph, options, &m, &info);
    MEZZO_TRY(status);
    p->rng = (mz_rng_state *)(void *)p->inputs;
    const size_t inputs = MZ_INPUTS_AT + p->c.plan.inputs;
    if (b->upload_open != NULL && inputs >= b->upload_least)
        MEZZO_TRY(b->upload_open(p->device, inputs, &p->upload));
    p->host_inputs = p->upload != NULL ? p->upload->host : mz_alloc(inputs, 1);
    if (!p->host_inputs)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    const float one = 1.0f;
    return b->write(p->device, p->one, &one, sizeof one);
}

// Marks the values that nodes read.
static mezzo_status find_read(const mezzo_graph *g, bool **read) {
    *read = mz_alloc(g->n_values + 1, sizeof **read);
    if (*read == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < g->n_nodes; ++i)
        for (int k = 0; k < g->nodes[i].n_in; ++k)
            if (g->nodes[i].in[k] >= 0)
                (*read)[g->nodes[i].in[k]] = true;
    return MEZZO_OK;
}

static mezzo_status bind_param(mezzo_program *p, const mz_value *v, bool read, void **out) {
    const mz_param_spec *spec = &p->c.graph->params[v->param];
    int index = mezzo_params_find(p->params, spec->name);
    char a[64], b[64];
    if (index < 0)
        return mz_fail(MEZZO_ERR_INVALID, "the parameters have no %s, which the graph reads", spec->name);
    const mz_param *param = &p->params->list[index];
    if (!mz_shape_equal(&param->shape, &spec->shape))
        return mz_fail(MEZZO_ERR_INVALID, "parameter %s has shape %s, the graph says %s", spec->name,
                       mz_shape_text(&param->shape, a, sizeof a), mz_shape_text(&spec->shape, b, sizeof b));
    *out = NULL;
    if (v->kind == MZ_VALUE_PARAM && param->master != MEZZO_MASTER_FP32 && !read)
        return MEZZO_OK; // programs read its low copy
    if (v->kind == MZ_VALUE_PARAM && param->master != MEZZO_MASTER_FP32)
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "parameter %s has no fp32 master, which this program reads: use precision bf16 for it, or fp32 "
                       "masters",
                       spec->name);
    const bool own = v->shape.dim[0] != param->shape.dim[0]; // these are the exchanged experts of this rank's shard
    if (v->kind == MZ_VALUE_PARAM) {                         // sharded: the plan places the gathered regions
        const int64_t at = own ? param->place + param->first : param->offset;
        *out = param->region >= 0 && !own ? NULL : p->params->master + at;
    } else if (v->kind == MZ_VALUE_GRAD && param->frozen) {
        return mz_fail(
            MEZZO_ERR_INVALID,
            "parameter %s is frozen in its mezzo_params, and this graph trains it: freeze it in the graph too",
            spec->name);
    } else if (v->kind == MZ_VALUE_GRAD) { // scattered: the plan places the gradient
        *out = p->params->scattered ? NULL : p->params->grad + param->offset;
    } else {
        const mz_low_copy *low_copy;
        if (param->low_copy_slot < 0)
            return mz_fail(MEZZO_ERR_INVALID,
                           "parameter %s is read by a matmul here, but by none in the graph that its mezzo_params were "
                           "made from: make them from this graph",
                           spec->name);
        MEZZO_TRY(mz_params_low_copy(p->params, v->dtype, &low_copy));
        const int64_t at = own ? param->low_copy_place + param->first : param->low_copy_slot;
        if (param->region < 0 || own)
            *out = (char *)low_copy->data + at * (int64_t)mezzo_dtype_size(v->dtype);
    }
    return MEZZO_OK;
}

static mezzo_status bind_sources(mezzo_program *p, char *state, const bool *read) {
    const mezzo_graph *g = p->c.graph;
    char *input = p->inputs + MZ_INPUTS_AT;
    for (size_t i = 0; i < g->n_values; ++i) {
        const mz_value *v = &g->values[i];
        if (v->kind == MZ_VALUE_INPUT) {
            char **at = v->state ? &state : &input;
            p->address[i] = *at;
            *at += mz_align_up((size_t)mz_shape_count(&v->shape) * mezzo_dtype_size(v->dtype), 64);
        } else if (v->kind == MZ_VALUE_SCALE) {
            p->address[i] = p->one;
        } else if (v->kind == MZ_VALUE_ENTRY) {
            MEZZO_TRY(mz_program_bind_entry(p, (int)i));
        } else if (v->kind != MZ_VALUE_TEMP && v->kind != MZ_VALUE_QUANTIZED) {
            MEZZO_TRY(bind_param(p, v, read[i], &p->address[i]));
        }
        if (p->c.plan.offset[i] != SIZE_MAX) { // this includes scattered gradients
            size_t at = p->c.plan.offset[i], gradients = p->c.plan.gradients;
            p->address[i] = at < gradients ? (char *)p->params->grad + at : (char *)p->arena + (at - gradients);
        }
    }
    return mz_program_bind_quantized(p);
}

static mezzo_status bind_values(mezzo_program *p, char *state) {
    const mezzo_graph *g = p->c.graph;
    bool *read;
    MEZZO_TRY(MZ_NEW(p->address, g->n_values + 1));
    MEZZO_TRY(find_read(g, &read));
    mezzo_status status = bind_sources(p, state, read);
    mz_free(read);
    MEZZO_TRY(status);
    for (size_t i = 0; i < g->n_values; ++i) { // sets views of sources; a view comes after its source
        int root = (int)i;
        size_t offset = 0;
        for (; g->values[root].alias >= 0; root = g->values[root].alias)
            offset += g->values[root].offset;
        p->address[i] = p->address[root] ? (char *)p->address[root] + offset : NULL;
    }
    return MEZZO_OK;
}

// Sets the addresses of a value's data and scales; -1: leaves the tensor alone.
static void place_tensor(const mezzo_program *p, int value, mz_tensor *t) {
    if (value < 0)
        return;
    const mz_value *v = &p->c.graph->values[value];
    t->data = p->address[value];
    t->scale = v->scaling != MZ_SCALING_NONE ? p->address[v->scale] : NULL;
}

void mz_program_bind(mezzo_program *p) {
    for (size_t i = 0; i < p->c.n_calls; ++i) {
        mz_call *call = &p->c.calls[i];
        const mz_node *n = &p->c.graph->nodes[p->c.node[i]];
        for (int k = 0; k < n->n_in; ++k)
            place_tensor(p, n->in[k], &call->in[k]);
        for (int k = 0; k < n->n_out; ++k)
            place_tensor(p, n->out[k], &call->out[k]);
        bool beside = p->c.stream && p->c.stream[i] == 1;
        if (n->gathers > 0)
            mz_gather_bind(p->params, n->gathers - 1, call, &p->c.prepared[i]);
        call->workspace = (char *)p->workspace + (beside ? first_workspace(&p->c) : 0);
        call->state = p->c.prepared[i].state;
        call->rng = p->rng;
    }
}

mz_tensor mz_program_tensor(const mezzo_program *p, int value) {
    mz_tensor t = mz_value_tensor(p->c.graph, value);
    place_tensor(p, value, &t);
    return t;
}

int mz_value_root(const mezzo_graph *g, int value) {
    while (g->values[value].alias >= 0)
        value = g->values[value].alias;
    return value;
}

// Finds parameters without a gradient, such as a router's correction bias: a run that writes the others' gradients
// zeroes theirs.
static mezzo_status find_silent(mezzo_program *p) {
    const mezzo_graph *g = p->c.graph;
    const mezzo_params *params = p->params;
    MEZZO_TRY(MZ_NEW(p->silent, params->n + 1));
    for (size_t i = 0; i < params->n; ++i)
        p->silent[i] = !params->list[i].frozen;
    for (size_t i = 0; i < p->c.n_calls; ++i)
        for (int k = 0; k < g->nodes[p->c.node[i]].n_out; ++k) {
            int param = mz_gradient_of(g, g->nodes[p->c.node[i]].out[k]);
            if (param >= 0)
                p->silent[mezzo_params_find(params, g->params[param].name)] = false;
        }
    return MEZZO_OK;
}

mezzo_status mezzo_program_create(const mezzo_graph *graph, mezzo_params *params, const mezzo_program_options *options,
                                  mezzo_program **out) {
    MZ_REQUIRE(graph, params, options, out);
    *out = NULL;
    mezzo_status status;
    mezzo_program *p;
    MEZZO_TRY(MZ_NEW(p, 1));
    p->params = params;
    p->device = params->device;
    p->options = *options;
    p->options.overrides = NULL;
    MEZZO_TRY_GOTO(status, compile(p->device, params, graph, options, false, &p->c));
    MEZZO_TRY_GOTO(status, mz_input_rules(graph, p->c.graph->n_values, &p->rules));
    MEZZO_TRY_GOTO(status, book(p, graph, options));
    MEZZO_TRY_GOTO(status, bind_values(p, p->state));
    mz_program_bind(p);
    if (options->loss_share && !options->forward_only)
        MEZZO_TRY_GOTO(status, mezzo_program_write(p, "loss_share", &(float){1}, sizeof(float)));
    MEZZO_TRY_GOTO(status, find_silent(p));
    MEZZO_TRY_GOTO(status, mz_program_find_fused(p));
    params->overlaps_update = params->overlaps_update || worth_overlap(p->device->backend, &p->c);
    *out = p;
    return MEZZO_OK;
fail:
    mezzo_program_free(p);
    return status;
}

void mezzo_program_free(mezzo_program *p) {
    if (!mz_free_once(p, "program"))
        return;
    const mz_backend *b = p->device->backend;
    b->release(p->device, p->arena);
    b->release(p->device, p->workspace);
    b->release(p->device, p->inputs);
    b->release(p->device, p->state);
    b->release(p->device, p->one);
    for (size_t i = 0; i < MZ_COUNT(p->recordings); ++i)
        if (p->recordings[i].graph)
            b->capture_free(p->device, p->recordings[i].graph);
    mz_free(p->silent);
    mz_program_unmonitor(p);
    mz_call_list_free(&p->post_gradient);
    mz_free(p->post_gradient_after);
    b->release(p->device, p->inspection);
    mz_compiled_free(&p->c);
    if (p->upload == NULL)
        mz_free(p->host_inputs);
    else
        b->upload_close(p->device, p->upload);
    MZ_FREE(p->address, p->pairs, p->staging, p->rules, p);
}

// --- data in and out -----------------------------------------------------------------------------------------------

// Returns the value that is an input of this name; the number of values: there is none.
static size_t input_of(const mezzo_graph *g, const char *name) {
    size_t i = 0;
    while (i < g->n_values && (g->values[i].kind != MZ_VALUE_INPUT || strcmp(g->values[i].name, name) != 0))
        i++;
    return i;
}

static size_t value_bytes(const mz_value *v) {
    return (size_t)mz_shape_count(&v->shape) * mezzo_dtype_size(v->dtype);
}

static char *on_host(const mezzo_program *p, size_t value) {
    return p->host_inputs + ((char *)p->address[value] - p->inputs);
}

mezzo_status mz_program_open_inputs(mezzo_program *p) {
    if (p->upload == NULL || p->written) // no copy has begun since a write
        return MEZZO_OK;
    return p->device->backend->upload_wait(p->device, p->upload);
}

void *mz_program_host_input(const mezzo_program *p, const char *input, size_t bytes) {
    const mezzo_graph *g = p->c.graph;
    const size_t i = input_of(g, input);
    const bool there = i < g->n_values && !g->values[i].state && value_bytes(&g->values[i]) == bytes;
    return there ? on_host(p, i) : NULL;
}

mezzo_status mezzo_program_write(mezzo_program *p, const char *input, const void *data, size_t bytes) {
    MZ_REQUIRE(p, input, data);
    const mezzo_graph *g = p->c.graph;
    const size_t i = input_of(g, input);
    if (i == g->n_values)
        return mz_fail(MEZZO_ERR_INVALID, "the program has no input %s", input);
    const mz_value *v = &g->values[i];
    char shape[64];
    if (bytes != value_bytes(v))
        return mz_fail(MEZZO_ERR_INVALID, "input %s is %s of shape %s, %zu bytes; got %zu", input,
                       mezzo_dtype_name(v->dtype), mz_shape_text(&v->shape, shape, sizeof shape), value_bytes(v),
                       bytes);
    if (v->state)
        return p->device->backend->write(p->device, p->address[i], data, bytes);
    MEZZO_TRY(mz_input_take(&p->rules[i], input, data, bytes / sizeof(int32_t)));
    MEZZO_TRY(mz_program_open_inputs(p));
    if (data != on_host(p, i))
        mz_copy(on_host(p, i), data, bytes);
    p->written = true;
    return MEZZO_OK;
}

mezzo_status mz_program_share_state(mezzo_program *p, const mezzo_program *owner) {
    const mz_backend *b = p->device->backend;
    if (p->device != owner->device || p->c.plan.state != owner->c.plan.state)
        return mz_fail(MEZZO_ERR_INVALID, "programs with %zu and %zu bytes of state cannot share it", p->c.plan.state,
                       owner->c.plan.state);
    for (size_t i = 0; i < MZ_COUNT(p->recordings); ++i) {
        if (p->recordings[i].graph)
            b->capture_free(p->device, p->recordings[i].graph);
        p->recordings[i] = (mz_recording){0};
    }
    b->release(p->device, p->state);
    p->state = NULL;
    mz_free(p->address);
    p->address = NULL;
    MEZZO_TRY(bind_values(p, owner->state));
    mz_program_bind(p);
    return MEZZO_OK;
}

static mezzo_status find_output(const mezzo_program *p, const char *output, int *value) {
    const mezzo_graph *g = p->c.graph;
    for (size_t i = 0; i < g->n_outputs; ++i)
        if (!strcmp(g->outputs[i].name, output)) {
            *value = g->outputs[i].value;
            return MEZZO_OK;
        }
    return mz_fail(MEZZO_ERR_INVALID, "the program has no output %s: name it with mezzo_graph_output", output);
}

mezzo_status mz_program_output_address(const mezzo_program *p, const char *output, const void **out) {
    int v;
    MEZZO_TRY(find_output(p, output, &v));
    *out = p->address[v];
    return MEZZO_OK;
}

mezzo_status mezzo_program_output_shape(const mezzo_program *p, const char *output, int *rank, int64_t *shape) {
    MZ_REQUIRE(p, output, rank, shape);
    int v;
    MEZZO_TRY(find_output(p, output, &v));
    const mz_shape *s = &p->c.graph->values[v].shape;
    *rank = s->rank;
    memcpy(shape, s->dim, (size_t)s->rank * sizeof *shape);
    return MEZZO_OK;
}

static mezzo_status stage(mezzo_program *p, size_t bytes) {
    if (bytes <= p->staging_bytes)
        return MEZZO_OK;
    void *grown = mz_alloc(1, bytes);
    if (!grown)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mz_free(p->staging);
    p->staging = grown;
    p->staging_bytes = bytes;
    return MEZZO_OK;
}

mezzo_status mezzo_program_read(mezzo_program *p, const char *output, void *data, size_t bytes) {
    MZ_REQUIRE(p, output, data);
    int id;
    MEZZO_TRY(find_output(p, output, &id));
    const mz_value *v = &p->c.graph->values[id];
    size_t n = (size_t)mz_shape_count(&v->shape), stored = n * mezzo_dtype_size(v->dtype);
    bool integer = v->dtype == MEZZO_I32;
    mezzo_dtype want = integer ? MEZZO_I32 : bytes == n * sizeof(double) ? MEZZO_F64 : MEZZO_F32;
    char shape[64];
    if (bytes != n * mezzo_dtype_size(want))
        return mz_fail(MEZZO_ERR_INVALID, "output %s has shape %s, %zu bytes as %s; got room for %zu", output,
                       mz_shape_text(&v->shape, shape, sizeof shape), n * mezzo_dtype_size(want),
                       mezzo_dtype_name(want), bytes);
    if (v->dtype == want)
        return p->device->backend->read(p->device, data, p->address[id], stored);
    MEZZO_TRY(stage(p, stored));
    MEZZO_TRY(p->device->backend->read(p->device, p->staging, p->address[id], stored));
    return mezzo_convert(p->staging, v->dtype, data, want, n);
}
