// A composition is a graph of simpler ops that computes an op, written with the builder's functions. The decompose pass
// puts it in the place of an op that the device has no kernel for. Its numbers are FP32, or FP64 in that precision.
#ifndef MZ_COMPOSE_H
#define MZ_COMPOSE_H

#include "graph/graph.h"

typedef struct mz_composition {
    mezzo_graph *g;
    mz_op op; // whose slots and attributes these are
    const mz_attrs *attrs;
    bool wide;                     // FP64
    int n_out;                     // outputs that are asked for
    mezzo_value in[MZ_MAX_IN];     // NONE: absent
    mezzo_value known[MZ_MAX_OUT]; // of a forward op composed for its gradient: results that forward kept; NONE: not
    mz_shape shape[MZ_MAX_OUT];    // of the outputs, where they are asked for
    mezzo_value out[MZ_MAX_OUT];   // the composition's results; NONE: it does not give this one
    uint32_t read;                 // input slots that it has read, a bit each
} mz_composition;

// Composes c->op from its inputs. A slot that the composition does not know is left unread, or not written.
typedef void mz_compose_fn(mz_composition *c);

// Two operands of a formula, or a number as an operand: [1].
mezzo_value mz_compose_number(mz_composition *c, double number);
// The composition of a row of element.def: its formula, read as text.
mz_compose_fn mz_compose_element;
mz_compose_fn mz_compose_linear, mz_compose_gelu, mz_compose_layernorm, mz_compose_rmsnorm, mz_compose_embedding,
    mz_compose_attention, mz_compose_attention_masked, mz_compose_softmax, mz_compose_conv2d, mz_compose_group_norm,
    mz_compose_upsample, mz_compose_pool, mz_compose_rope_table, mz_compose_rope, mz_compose_swiglu, mz_compose_route,
    mz_compose_dispatch, mz_compose_combine, mz_compose_grouped_linear, mz_compose_cross_entropy, mz_compose_mse,
    mz_compose_mean, mz_compose_min, mz_compose_prod, mz_compose_cumsum, mz_compose_expand, mz_compose_pad,
    mz_compose_split, mz_compose_time_embedding, mz_compose_softmax_dx, mz_compose_extremum_dx, mz_compose_prod_dx;

// The nodes of `node`, of one op, in a graph whose inputs are the node's, by slot; *out is NULL where the op has no
// composition, or not with these slots. The caller frees it.
typedef struct mz_composed {
    mezzo_graph *graph;
    int in[MZ_MAX_IN], out[MZ_MAX_OUT]; // value ids in it, -1: absent
} mz_composed;
mezzo_status mz_compose(const mezzo_graph *g, const mz_node *node, mz_composed *out);

// autodiff.c: appends the gradients of Σ y·dy by the n values `wanted`. gradient[i]: a value's id; -1: y does not
// depend on it.
mezzo_status mz_graph_pull_back(mezzo_graph *g, int y, int dy, int n, const int *wanted, int *gradient);

#endif
