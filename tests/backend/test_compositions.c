// Every composition against the reference, in the manner of test_kernels: the same cases, the same bounds.
// Seen to fail with: a mask or a window of attention off by one key; GELU's constant 0.1 % off; equal numbers of an
// extremum that all get the whole gradient; ignored targets that are counted; padding of one side left out.

#include "cases.h"
#include "graph/compose.h"
#include "runtime/calls.h"
#include "runtime/program.h"
#include "test.h"

typedef struct composed {
    mezzo_graph *g;
    mz_prepared *prepared;              // per node
    size_t *at;                         // per value: where it lies in the workspace
    size_t bytes;                       // of all values, then the kernels' own workspace
    int in[MZ_MAX_IN], out[MZ_MAX_OUT]; // the call's slots as values
} composed;

static bool is_primitive(const void *user, const mezzo_graph *g, const mz_node *node) {
    (void)user, (void)g;
    return mz_op_is_primitive(node->op);
}

static void composed_free(void *state) {
    composed *c = state;
    for (size_t i = 0; c->prepared != NULL && c->g != NULL && i < c->g->n_nodes; i++)
        mz_prepared_free(&c->prepared[i]);
    mezzo_graph_free(c->g);
    mz_free(c->prepared);
    mz_free(c->at);
    mz_free(c);
}

static mezzo_status add_slot(composed *c, const mz_tensor *t, mz_value_kind kind, int *id) {
    const mz_value v = {.kind = kind, .dtype = t->dtype, .shape = t->shape, .producer = -1, .param = -1, .alias = -1};
    *id = -1;
    return mz_present(t) ? mz_graph_value(c->g, v, id) : MEZZO_OK;
}

static mezzo_status build(composed *c, const mz_call *call) {
    mz_node n = {.op = call->op, .attrs = call->attrs, .numerics = call->numerics, .n_in = call->n_in};
    n.n_out = call->n_out;
    MEZZO_TRY(mezzo_graph_create(&c->g));
    for (int i = 0; i < call->n_in; i++)
        MEZZO_TRY(add_slot(c, &call->in[i], MZ_VALUE_INPUT, &c->in[i]));
    for (int i = 0; i < call->n_out; i++) {
        const bool adds = call->attrs.accumulate && (mz_op_slot(call->op, true, i).is & MZ_SLOT_GRADIENT);
        MEZZO_TRY(add_slot(c, &call->out[i], adds ? MZ_VALUE_GRAD : MZ_VALUE_TEMP, &c->out[i]));
    }
    for (int i = 0; i < MZ_MAX_IN; i++) {
        n.in[i] = i < call->n_in ? c->in[i] : -1;
        n.out[i] = i < call->n_out ? c->out[i] : -1;
    }
    MEZZO_TRY(mz_graph_node(c->g, n, NULL));
    return mz_graph_decompose(c->g, is_primitive, NULL);
}

static mezzo_status place(composed *c, mezzo_device *device) {
    size_t workspace = 0;
    c->at = mz_alloc(c->g->n_values + 1, sizeof *c->at);
    c->prepared = mz_alloc(c->g->n_nodes + 1, sizeof *c->prepared);
    if (c->at == NULL || c->prepared == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < c->g->n_values; i++) {
        c->at[i] = c->bytes;
        c->bytes += mz_align_up((size_t)mz_shape_count(&c->g->values[i].shape) * 8 + 64, 64);
    }
    for (size_t i = 0; i < c->g->n_nodes; i++) {
        mz_call call;
        if (c->g->nodes[i].op == MZ_OP_reshape)
            continue;
        mz_call_of_node(device, c->g, &c->g->nodes[i], &call);
        MEZZO_TRY(mz_prepare(device, &call, &c->prepared[i]));
        workspace = c->prepared[i].workspace > workspace ? c->prepared[i].workspace : workspace;
    }
    c->bytes += workspace + 64;
    return MEZZO_OK;
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    composed *c = mz_alloc(1, sizeof *c);
    const char *reason = NULL;
    bool padded = false;
    if (c == NULL)
        return mz_out_of_memory;
    for (int i = 0; i < MZ_MAX_IN; i++)
        padded = padded || call->in[i].storage.padded || call->out[i].storage.padded;
    if (padded)
        reason = "the composition's own tensors have no padding";
    else if (call->numerics.compute == MEZZO_TF32 && (call->op == MZ_OP_attention || call->op == MZ_OP_attention_bwd))
        reason = "the cpu's products of TF32 are more exact than asked, which attention's bounds do not allow for";
    else if (build(c, call) != MEZZO_OK)
        fail_msg("%s: its composition cannot be built: %s", mz_op_table[call->op].name, mezzo_error_message());
    for (size_t i = 0; reason == NULL && i < c->g->n_nodes; i++)
        if (!mz_op_is_primitive(c->g->nodes[i].op) && c->g->nodes[i].op != MZ_OP_reshape)
            reason = "it has no composition";
    if (reason == NULL && place(c, device) != MEZZO_OK)
        reason = mezzo_error_message();
    if (reason != NULL) {
        composed_free(c);
        return reason;
    }
    *out = (mz_prepared){.state = c, .release = composed_free, .workspace = c->bytes};
    return NULL;
}

static char *data_of(const composed *c, const mz_call *call, int value) {
    while (c->g->values[value].alias >= 0)
        value = c->g->values[value].alias;
    for (int i = 0; i < call->n_in; i++)
        if (c->in[i] == value)
            return call->in[i].data;
    return (char *)call->workspace + c->at[value];
}

static size_t bytes_of(const mz_tensor *t) {
    return (size_t)mz_shape_count(&t->shape) * mezzo_dtype_size(t->dtype);
}

// Results are copied at the end, since one of them may lie where an input does.
static mezzo_status run(mezzo_device *device, const mz_call *call) {
    const composed *c = call->state;
    for (int i = 0; i < call->n_out; i++)
        if (mz_present(&call->out[i]))
            memcpy((char *)call->workspace + c->at[c->out[i]], call->out[i].data, bytes_of(&call->out[i]));
    for (size_t i = 0; i < c->g->n_nodes; i++) {
        mz_call one;
        const mz_node *n = &c->g->nodes[i];
        if (n->op == MZ_OP_reshape)
            continue;
        mz_call_of_node(device, c->g, n, &one);
        one.rng = call->rng;
        for (int k = 0; k < n->n_in; k++)
            one.in[k].data = n->in[k] >= 0 ? data_of(c, call, n->in[k]) : NULL;
        for (int k = 0; k < n->n_out; k++)
            one.out[k].data = n->out[k] >= 0 ? data_of(c, call, n->out[k]) : NULL;
        char *scratch = (char *)call->workspace + c->bytes - c->prepared[i].workspace;
        MEZZO_TRY(mz_run(device, &c->prepared[i], &one, scratch - (uintptr_t)scratch % 64));
    }
    for (int i = 0; i < call->n_out; i++) // a view of an input among them
        if (mz_present(&call->out[i]))
            memmove((char *)call->workspace + c->at[c->out[i]], data_of(c, call, c->out[i]), bytes_of(&call->out[i]));
    for (int i = 0; i < call->n_out; i++)
        if (mz_present(&call->out[i]))
            memcpy(call->out[i].data, (char *)call->workspace + c->at[c->out[i]], bytes_of(&call->out[i]));
    return MEZZO_OK;
}

static const mz_kernel composition_kernel = {"composition", prepare, run};

static const mz_kernel *const kernels[] = {&composition_kernel};

static int open_devices(void **state) {
    (void)state;
    devices_open_with(kernels, 1);
    trial_limit = 8192; // what is wrong of a composition is so for small tensors too
    return 0;
}

static int close_devices(void **state) {
    (void)state;
    devices_report();
    devices_close();
    return 0;
}

// The others are primitives, or what unit/test_decompose lists.
static bool is_composed(mz_op op) {
    return (mz_op_table[op].compose != NULL || mz_op_table[op].is_gradient) && !mz_op_is_primitive(op);
}

#define OP(name, ...)                                                                                                  \
    TEST(composition_of_##name) {                                                                                      \
        if (!is_composed(MZ_OP_##name))                                                                                \
            skip();                                                                                                    \
        cases_##name();                                                                                                \
        assert_true(trial_runs(MZ_OP_##name) > 0);                                                                     \
    }
#define OP_BACKWARD OP
#define OP_STATE(...)
#include "graph/ops.def"
#undef OP
#undef OP_BACKWARD
#undef OP_STATE

TEST_GROUP(open_devices, close_devices)
