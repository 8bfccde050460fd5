// A composition is a graph of simpler ops that computes one op, written with the builder's functions. The decompose
// pass puts it in the place of an op that the device has no kernel for. Its numbers are FP32, or FP64 where the
// precision is.
#ifndef MZ_COMPOSE_H
#define MZ_COMPOSE_H

#include "graph/graph.h"

typedef struct mz_composition {
    mezzo_graph *g;
    mz_op op; // the op that is composed; slots and attributes are its own
    const mz_attrs *attrs;
    bool wide;                     // its numbers are FP64
    int n_out;                     // number of requested outputs
    mezzo_value in[MZ_MAX_IN];     // by input slot; MEZZO_NONE: absent
    mezzo_value known[MZ_MAX_OUT]; // results that forward kept, where a forward op is composed for its gradient;
                                   // MEZZO_NONE: not kept
    mz_shape shape[MZ_MAX_OUT];    // of the outputs asked for
    mezzo_value out[MZ_MAX_OUT];   // the composition's results; MEZZO_NONE: it does not compute this one
    uint32_t read;                 // one bit for each input slot that the composition has read
} mz_composition;

// Composes c->op from its inputs. It leaves unread, or does not write, a slot that it does not know.
typedef void mz_compose_fn(mz_composition *c);

// Returns a number as an operand of a formula: a constant [1].
mezzo_value mz_compose_number(mz_composition *c, double number);
// Composes an op of element.def: it reads the row's formula as text.
mz_compose_fn mz_compose_element;
mz_compose_fn mz_compose_linear, mz_compose_gelu, mz_compose_layernorm, mz_compose_rmsnorm, mz_compose_embedding,
    mz_compose_attention, mz_compose_attention_masked, mz_compose_softmax, mz_compose_conv2d, mz_compose_group_norm,
    mz_compose_upsample, mz_compose_pool, mz_compose_max_pool, mz_compose_rope_table, mz_compose_rope,
    mz_compose_swiglu, mz_compose_route, mz_compose_dispatch, mz_compose_combine, mz_compose_grouped_linear,
    mz_compose_cross_entropy, mz_compose_mse, mz_compose_mean, mz_compose_min, mz_compose_prod, mz_compose_cumsum,
    mz_compose_expand, mz_compose_pad, mz_compose_split, mz_compose_time_embedding, mz_compose_softmax_dx,
    mz_compose_extremum_dx, mz_compose_prod_dx;

// Builds the composition of `node` as a graph whose inputs are the node's, by slot. *out is NULL where there is no
// composition of the op with these slots. The caller frees it.
typedef struct mz_composed {
    mezzo_graph *graph;
    int in[MZ_MAX_IN], out[MZ_MAX_OUT]; // value ids in the composition, -1: absent
} mz_composed;
mezzo_status mz_compose(const mezzo_graph *g, const mz_node *node, mz_composed *out);

// Appends the gradients of Σ y·dy by the n values `wanted` (autodiff.c). gradient[i] is a value's id; -1: y does not
// depend on it.
mezzo_status mz_graph_pull_back(mezzo_graph *g, int y, int dy, int n, const int *wanted, int *gradient);

#endif
