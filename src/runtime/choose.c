// The choose pass prepares the kernel of each node that runs, and finds the calls that write gradients for the first
// time.
#include "runtime/exchange.h"
#include "runtime/gather.h"
#include "runtime/passes.h"

// Fills the first `n` slots with these values and empties the others. Slots without a value are zeros here.
static void fill_slots(const mezzo_graph *g, const int *values, int n, mz_tensor *slots, int most) {
    const mz_tensor absent = mz_tensor_absent();
    for (int k = 0; k < n; ++k)
        slots[k] = mz_value_tensor(g, values[k]);
    for (int k = n; k < most; ++k) {
        slots[k].dtype = absent.dtype;
        slots[k].shape.rank = absent.shape.rank;
    }
}

static bool any_padded(const mz_call *call) {
    bool any = false;
    for (int k = 0; k < MZ_MAX_IN; ++k)
        any = any || call->in[k].storage.padded;
    for (int k = 0; k < MZ_MAX_OUT; ++k)
        any = any || call->out[k].storage.padded;
    return any;
}

// Describes a node as a call. Kernels that do not know padding get tensors as they are stored, which the storage pass
// made alike within a call.
void mz_call_of_node(const mezzo_device *device, const mezzo_graph *g, const mz_node *n, mz_call *call) {
    const mz_storage_options storage = mz_storage_options_of(device);
    memset(call, 0, sizeof *call);
    call->op = n->op;
    call->attrs = n->attrs;
    call->numerics = n->numerics;
    call->n_in = n->n_in;
    call->n_out = n->n_out;
    fill_slots(g, n->in, n->n_in, call->in, MZ_MAX_IN);
    fill_slots(g, n->out, n->n_out, call->out, MZ_MAX_OUT);
    if (any_padded(call) && !mz_takes_padding(&storage, call->op))
        mz_call_over_padding(call);
}

void mz_compiled_free(mz_compiled *c) {
    mezzo_graph_free(c->graph);
    mz_plan_free(&c->plan);
    for (size_t i = 0; i < c->n_calls; ++i) {
        mz_prepared_free(&c->prepared[i]);
        mz_prepared_free(&c->writing[i]);
    }
    MZ_FREE(c->calls, c->prepared, c->writing, c->node, c->use, c->stream);
    mz_stream_plan_free(&c->placed);
    memset(c, 0, sizeof *c);
}

// Prepares a call of a node that exchanges rows. The first of those that read the same offsets reads their numbers.
static mezzo_status prepare_exchange(mezzo_device *device, const mz_compiled *c, const mezzo_graph *g,
                                     const mz_node *node, const mz_call *call, mz_prepared *out) {
    const mz_prepared *counted = NULL;
    const int slot = MZ_IN(grouped_linear, offsets);
    for (size_t i = 0; i < c->n_calls && counted == NULL && node->op != MZ_OP_quantize; i++) {
        const mz_node *earlier = &g->nodes[c->node[i]];
        if (earlier->exchanges > 0 && earlier->op != MZ_OP_quantize && earlier->in[slot] == node->in[slot])
            counted = &c->prepared[i];
    }
    return mz_exchange_prepare(device, node->exchanges, call, counted, out);
}

// Prepares, with the same kernel, the call that writes gradients where `call` adds to them. *served: the kernel can.
static mezzo_status prepare_writing(mezzo_device *device, const mz_compiled *c, const mezzo_graph *g,
                                    const mz_node *node, const mz_prepared *adds, mz_call *call, mz_prepared *writes,
                                    bool *served) {
    const char *reason = NULL;
    mezzo_status status = MEZZO_OK;
    call->attrs.accumulate = false;
    if (node->exchanges > 0)
        status = prepare_exchange(device, c, g, node, call, writes);
    else
        reason = mz_prepare_kernel(device, adds->kernel, call, writes);
    call->attrs.accumulate = true;
    *served = reason == NULL;
    return reason == mz_out_of_memory ? mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__) : status;
}

// Prepares a call; one that adds to gradients is also prepared to write them. *workspace: the larger of the two.
static mezzo_status prepare_call(mezzo_device *device, mz_compiled *c, const mezzo_graph *g, const mz_node *node,
                                 mz_call *call, size_t *workspace) {
    mz_prepared *adds = &c->prepared[c->n_calls], *writes = &c->writing[c->n_calls];
    bool served;
    MEZZO_TRY(node->exchanges > 0 ? prepare_exchange(device, c, g, node, call, adds) : mz_prepare(device, call, adds));
    *workspace = adds->workspace;
    if (!call->attrs.accumulate)
        return MEZZO_OK;
    mezzo_status status = prepare_writing(device, c, g, node, adds, call, writes, &served);
    if (status != MEZZO_OK) {
        mz_prepared_free(adds);
        return status;
    }
    c->overwrites = c->overwrites && served;
    if (writes->workspace > *workspace)
        *workspace = writes->workspace;
    return MEZZO_OK;
}

static mezzo_status choose_kernels(mezzo_device *device, const mezzo_graph *g, mz_compiled *c) {
    c->overwrites = true;
    for (size_t i = 0; i < g->n_nodes; ++i) {
        size_t bytes = 0;
        if (g->nodes[i].op == MZ_OP_reshape)
            continue;
        mz_call *call = mz_compiled_call(c, c->n_calls);
        mz_call_of_node(device, g, &g->nodes[i], call);
        c->gathers = c->gathers || g->nodes[i].gathers > 0;
        c->exchanges = c->exchanges || g->nodes[i].exchanges > 0;
        mezzo_status status = g->nodes[i].gathers > 0 ? mz_gather_prepare(&c->prepared[c->n_calls])
                                                      : prepare_call(device, c, g, &g->nodes[i], call, &bytes);
        if (status != MEZZO_OK)
            return mz_context(status, "%s", g->modules[g->nodes[i].module]);
        bool second = c->stream && c->placed.stream[i] == 1;
        size_t *most = second ? &c->side_workspace : &c->workspace;
        *most = bytes > *most ? bytes : *most;
        if (second)
            c->stream[c->n_calls] = 1;
        c->node[c->n_calls++] = (int)i;
        if (c->n_calls > 1)
            mz_find_neighbour(device, c, c->n_calls - 2);
    }
    return MEZZO_OK;
}

// Makes dropout the identity, for evaluation: with p = 0 it keeps every value and multiplies by 1.
static void stop_dropout(mezzo_graph *g) {
    for (size_t i = 0; i < g->n_nodes; ++i)
        g->nodes[i].attrs.p = 0;
}

// Finds out whether the first run after zeroing may write gradients instead of adding to zeros. That holds where each
// call is the first writer of all gradients that it touches, or of none.
static mezzo_status find_first_writers(mz_compiled *c, bool forward_only) {
    bool *met;
    MEZZO_TRY(MZ_NEW(met, c->graph->n_params + 1));
    c->covers = !forward_only && c->overwrites;
    for (size_t i = 0; i < c->n_calls; ++i) {
        const mz_node *node = &c->graph->nodes[c->node[i]];
        int first = 0, again = 0;
        for (int k = 0; k < node->n_out; ++k) {
            int param = mz_gradient_of(c->graph, node->out[k]);
            c->covers = c->covers && param != -2;
            if (param < 0)
                continue;
            first += !met[param];
            again += met[param];
            met[param] = true;
        }
        c->use[i] = (unsigned char)((first + again > 0 ? MZ_USE_ADDS : 0) | (first > 0 ? MZ_USE_FIRST : 0));
        c->covers = c->covers && !(first > 0 && (again > 0 || !node->attrs.accumulate));
    }
    mz_free(met);
    return MEZZO_OK;
}

mezzo_status mz_pass_choose(mezzo_graph *g, const mz_target *target) {
    mz_compiled *c = target->compiled;
    const size_t n = g->n_nodes + 1;
    const bool streams = c->placed.stream != NULL;
    if (target->options->forward_only)
        stop_dropout(g);
    c->stream = streams ? mz_alloc(n, sizeof *c->stream) : NULL;
    c->calls = mz_alloc(c->sketch ? 2 : n, sizeof *c->calls);
    c->prepared = mz_alloc(n, sizeof *c->prepared);
    c->writing = mz_alloc(n, sizeof *c->writing);
    c->node = mz_alloc(n, sizeof *c->node);
    c->use = mz_alloc(n, sizeof *c->use);
    if (!c->calls || !c->prepared || !c->writing || !c->node || !c->use || (streams && !c->stream))
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    MEZZO_TRY(choose_kernels(target->device, g, c));
    return find_first_writers(c, target->options->forward_only);
}
