// Lists the passes in their order, each with a sentence on what it decides, and runs them. A new pass is a row here.
#include "runtime/passes.h"

#include "runtime/gather.h"

// --- passes that ask the device or the parameters ------------------------------------------------------------------

mz_storage_options mz_storage_options_of(const mezzo_device *device) {
    return (mz_storage_options){device->storage, device->backend->takes_padding};
}

// Copies how existing parameters are stored.
static void find_stored(const mezzo_params *params, mezzo_graph *g) {
    for (size_t i = 0; params && i < g->n_params; ++i) {
        int index = mz_params_index(params, g, i);
        g->params[i].stored = index >= 0 && mz_shape_equal(&params->list[index].shape, &g->params[i].shape);
        if (g->params[i].stored)
            g->params[i].storage = params->list[index].storage;
    }
}

static bool has_kernel(const void *user, const mezzo_graph *g, const mz_node *node) {
    const mezzo_device *device = user;
    const mz_backend *backend = device->backend;
    size_t n = 0;
    backend->kernels(device, node->op, &n);
    return n > 0 && !(backend->composes != NULL && node->n_out > 0 && node->out[0] >= 0 &&
                      backend->composes(node->op, &g->values[node->out[0]].shape));
}

static mezzo_status pass_decompose(mezzo_graph *g, const mz_target *t) {
    return t->device != NULL ? mz_graph_decompose(g, has_kernel, t->device) : MEZZO_OK;
}

static bool takes_post(const void *user, mz_op op, mz_post post) {
    return mz_post_kernel(user, op, post) != NULL;
}

// Asks whether a kernel of the device serves act_out; all do where there is no device.
static mezzo_status may_recompute(void *user, const mezzo_graph *g, const mz_node *n, bool *out) {
    (void)g;
    *out = user == NULL || takes_post(user, n->op, mz_post_find(n->op, MZ_POST_ACT_OUT));
    return MEZZO_OK;
}

static mezzo_status pass_fuse(mezzo_graph *g, const mz_target *t) {
    if (t->options->no_fuse)
        return MEZZO_OK;
    MEZZO_TRY(mz_graph_fuse(g, t->device != NULL ? takes_post : NULL, t->device));
    return mz_graph_recompute_act(g, false, may_recompute, t->device);
}

static mezzo_status pass_keep(mezzo_graph *g, const mz_target *t) {
    find_stored(t->params, g);
    return mz_params_keep(t->params, g);
}

static mezzo_status pass_storage(mezzo_graph *g, const mz_target *t) {
    const mz_storage_options options = mz_storage_options_of(t->device);
    return mz_graph_store(g, &options);
}

int64_t mz_program_rows(const mezzo_graph *g) {
    int64_t most = 0;
    for (size_t i = 0; i < g->n_nodes; ++i) {
        const mz_node *n = &g->nodes[i];
        if (n->op != MZ_OP_linear && n->op != MZ_OP_linear_dw)
            continue;
        const int64_t rows = mz_shape_rows(&g->values[n->in[0]].shape);
        most = rows > most ? rows : most;
    }
    return most;
}

bool mz_keeps_activations(const mz_backend *b, const mezzo_graph *g) {
    int64_t most = 0;
    for (size_t i = 0; i < g->n_nodes; ++i) {
        const mz_node *n = &g->nodes[i];
        const mz_shape *dy = mz_act_out_slot(n->op) >= 0 ? &g->values[n->in[0]].shape : NULL;
        if (dy != NULL && n->attrs.act != MZ_ACT_NONE && dy->dim[dy->rank - 1] > most)
            most = dy->dim[dy->rank - 1];
    }
    return b->many_summed == 0 || most < b->many_summed;
}

// Returns whether backward recomputes activations' results. Light recomputation would repeat them in calls of their
// own.
static bool worth_remaking(const mezzo_device *device, const mezzo_program_options *options, const mezzo_graph *g) {
    const mz_backend *b = device->backend;
    return mz_post_kernel(device, MZ_OP_linear_dx, MZ_POST_linear_dx_act_out) != NULL &&
           (options->recompute_light || mz_program_rows(g) > b->few_rows || !mz_keeps_activations(b, g));
}

static mezzo_status can_recompute(void *user, const mezzo_graph *g, const mz_node *n, bool *out) {
    mezzo_device *device = user;
    const mz_kernel *kernel = mz_post_kernel(device, n->op, mz_post_find(n->op, MZ_POST_ACT_OUT));
    mz_prepared prepared;
    mz_call call;
    mz_call_of_node(device, g, n, &call);
    const char *reason = mz_prepare_kernel(device, kernel, &call, &prepared);
    mz_prepared_free(&prepared);
    if (reason == mz_out_of_memory)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mz_log(
        "dispatch", "%s: the activation's result is %s%s", g->modules[n->module],
        reason == NULL ? "made again in backward by " : "kept for backward: ", reason == NULL ? kernel->name : reason);
    *out = reason == NULL;
    return MEZZO_OK;
}

static mezzo_status pass_recompute_act(mezzo_graph *g, const mz_target *t) {
    return worth_remaking(t->device, t->options, g) ? mz_graph_recompute_act(g, true, can_recompute, t->device)
                                                    : MEZZO_OK;
}

static mezzo_status pass_gather(mezzo_graph *g, const mz_target *t) {
    return mz_params_gather(t->params, t->device->backend->capture_stream != NULL, !t->options->forward_only, g);
}

// Weights' gradients run on a second stream where one product is too small to fill the device: 30 GFLOP are 40 µs of a
// card that does 700 TFLOP/s.
#define SMALL_PRODUCT 3e10
static bool worth_streams(const mezzo_device *device, const mezzo_graph *g) {
    double operations = 0;
    int products = 0;
    for (size_t i = 0; i < g->n_nodes; ++i) {
        const mz_node *n = &g->nodes[i];
        if (n->op != MZ_OP_linear_dw)
            continue;
        const mz_shape *dy = &g->values[n->in[0]].shape, *x = &g->values[n->in[1]].shape;
        operations += 2.0 * (double)mz_shape_count(dy) * (double)x->dim[x->rank - 1];
        ++products;
    }
    return device->backend->capture_stream && products > 0 && operations / products < SMALL_PRODUCT;
}

static mezzo_status pass_streams(mezzo_graph *g, const mz_target *t) {
    return worth_streams(t->device, g) ? mz_graph_stream(g, &t->compiled->placed) : MEZZO_OK;
}

// Finds, for each parameter, whether another value may lie where its gradient's padding is. It must be zero after the
// first writer of the gradient: a call that runs over padding writes it, too, other kernels leave it as it is.
static bool *writes_padding(const mezzo_params *params, const mezzo_graph *g) {
    const mz_storage_options options = mz_storage_options_of(params->device);
    bool *found = mz_alloc(g->n_params + 1, sizeof *found), *met = mz_alloc(g->n_params + 1, sizeof *met);
    for (size_t i = 0; i < g->n_nodes && found != NULL && met != NULL; ++i)
        for (int k = 0; k < g->nodes[i].n_out && g->nodes[i].op != MZ_OP_reshape; ++k) {
            const int param = mz_gradient_of(g, g->nodes[i].out[k]);
            if (param >= 0 && !met[param])
                found[param] = mz_takes_padding(&options, g->nodes[i].op) == MZ_PADDED_NONE;
            if (param >= 0)
                met[param] = true;
        }
    if (met == NULL) {
        mz_free(found);
        found = NULL;
    }
    mz_free(met);
    return found;
}

// Finds the places of gradients that hold nothing before their first writer runs.
static mezzo_status find_room(const mezzo_params *params, const mezzo_graph *g, mz_gradient_room *room) {
    bool *padding = writes_padding(params, g);
    *room = (mz_gradient_room){.offset = mz_alloc(g->n_params + 1, sizeof *room->offset),
                               .bytes = (size_t)params->elements * sizeof(float)};
    if (padding == NULL || room->offset == NULL) {
        MZ_FREE(padding, room->offset);
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    }
    for (size_t i = 0; i < g->n_params; ++i) {
        int index = mz_params_index(params, g, i);
        const mz_param *p = index >= 0 ? &params->list[index] : NULL;
        bool apart = p == NULL || p->frozen || (p->storage.padded && !padding[i]) ||
                     !mz_shape_equal(&p->shape, &g->params[i].shape);
        room->offset[i] = apart ? SIZE_MAX : (size_t)p->offset * sizeof(float);
    }
    mz_free(padding);
    return MEZZO_OK;
}

static mezzo_status pass_plan(mezzo_graph *g, const mz_target *t) {
    mz_compiled *c = t->compiled;
    const mz_stream_plan *streams = c->placed.stream != NULL ? &c->placed : NULL;
    mz_gradient_room room;
    if (t->params->scattered && !t->options->forward_only)
        return mz_plan_scattered(t->device, t->params, t->options->single_micro_batch, streams, c);
    if (!t->options->single_micro_batch || !c->covers)
        return mz_graph_plan(g, streams, NULL, &c->plan);
    MEZZO_TRY(find_room(t->params, g, &room));
    mezzo_status status = mz_graph_plan(g, streams, &room, &c->plan);
    mz_free(room.offset);
    return status;
}

// --- the table -----------------------------------------------------------------------------------------------------

const mz_pass mz_pass_table[] = {
    {"autocast", mz_pass_autocast, false, "decides the dtype of every value and inserts casts"},
    {"autodiff", mz_pass_autodiff, false, "appends the gradient of what trained parameters reach"},
    {"recompute", mz_pass_recompute, false, "repeats forward ops in backward, where asked"},
    {"decompose", pass_decompose, false, "composes ops that the device has no kernel for of ops that it has"},
    {"fuse", pass_fuse, false, "makes casts, activations and sums post-ops of their neighbours"},
    {"chunk", mz_pass_chunk, false, "computes logits and loss a block of rows at a time"},
    {"transpose", mz_pass_transpose, false, "makes columnwise codes of a loss's gradient of its rowwise ones"},
    {"keep", pass_keep, true, "reads the copies that the update writes, and makes all others"},
    {"storage", pass_storage, true, "pads axes for the device, with copies where layouts meet"},
    {"recompute_act", pass_recompute_act, true, "recomputes activations in backward's matrix products"},
    {"gather", pass_gather, true, "gathers sharded parameters before their readers"},
    {"streams", pass_streams, true, "puts small weight gradients on the device's second stream"},
    {"choose", mz_pass_choose, true, "chooses and prepares the kernel of every op"},
    {"plan", pass_plan, true, "gives every value its place in memory"},
    {0},
};

const mz_pass *mz_pass_find(const char *name) {
    for (const mz_pass *p = mz_pass_table; p->name != NULL; ++p)
        if (!strcmp(name, p->name))
            return p;
    return NULL;
}

const char *mz_pass_names(char *buf, size_t size) {
    size_t n = 0;
    for (const mz_pass *p = mz_pass_table; p->name != NULL && n < size; ++p)
        n += (size_t)snprintf(buf + n, size - n, "%s%s", n ? ", " : "", p->name);
    return buf;
}

static mezzo_status check_target(const mezzo_graph *g, const mz_target *target, const char *until) {
    const mz_pass *last = mz_pass_find(until);
    char names[160];
    MEZZO_TRY(mezzo_graph_status(g));
    if (last == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "no pass '%s': %s", until, mz_pass_names(names, sizeof names));
    if (last->asks_device && (target->device == NULL || target->params == NULL || target->compiled == NULL))
        return mz_fail(MEZZO_ERR_INVALID,
                       "the pass %s asks a device and parameters, and none are given: transpose is the "
                       "last that does not",
                       until);
    if (g->n_scopes || g->n_regions || g->segment >= 0)
        return mz_fail(MEZZO_ERR_INVALID, "the graph has an open %s: end it before making a program",
                       g->n_scopes    ? "module"
                       : g->n_regions ? "autocast region"
                                      : "recompute segment");
    return MEZZO_OK;
}

mezzo_status mz_passes(const mezzo_graph *g, const mz_target *target, const char *until, mezzo_graph **out) {
    mezzo_status status = MEZZO_OK;
    *out = NULL;
    MEZZO_TRY(check_target(g, target, until));
    const mz_pass *last = mz_pass_find(until);
    MEZZO_TRY(mz_graph_copy(g, out));
    status = mz_graph_choose_mode(*out, target->options->forward_only);
    for (const mz_pass *p = mz_pass_table; p <= last && status == MEZZO_OK; ++p)
        status = p->run(*out, target);
    if (status != MEZZO_OK) {
        mezzo_graph_free(*out);
        *out = NULL;
    }
    return status;
}

// --- explain -------------------------------------------------------------------------------------------------------

mezzo_status mezzo_graph_explain(const mezzo_graph *graph, const mezzo_program_options *options, const char *after,
                                 mezzo_explain_fn visit, void *user) {
    MZ_REQUIRE(graph, options, after);
    if (visit == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "mezzo_graph_explain: visit is NULL");
    mezzo_graph *g = NULL;
    MEZZO_TRY(mz_passes(graph, &(mz_target){.options = options}, after, &g));
    mz_graph_explain(g, visit, user);
    mezzo_graph_free(g);
    return MEZZO_OK;
}

mezzo_status mezzo_graph_explain_params(const mezzo_graph *graph, const mezzo_program_options *options,
                                        mezzo_master master, mezzo_explain_param_fn visit, void *user) {
    MZ_REQUIRE(graph, options);
    if (visit == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "mezzo_graph_explain_params: visit is NULL");
    mezzo_graph *g = NULL;
    char shape[64];
    MEZZO_TRY(mz_passes(graph, &(mz_target){.options = options}, "autocast", &g));
    for (size_t i = 0; i < g->n_params; ++i) {
        const mz_param_spec *p = &g->params[i];
        mezzo_explain_param row = {.name = p->name,
                                   .shape = mz_shape_text(&p->shape, shape, sizeof shape),
                                   .copy = p->low_copy >= 0 ? g->values[p->low_copy].dtype : MEZZO_DTYPE_COUNT};
        row.master = mz_master_of(g, i, master, &row.rule);
        visit(user, &row);
    }
    mezzo_graph_free(g);
    return MEZZO_OK;
}
