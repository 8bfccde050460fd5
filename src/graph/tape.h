// Declares what one op's gradient rule sees of the walk backward over a graph (autodiff.c).
#ifndef MZ_TAPE_H
#define MZ_TAPE_H

#include "graph/graph.h"

typedef struct tape {
    mezzo_graph *g;
    int *grad;         // per forward value: the value id of its gradient, -1: none yet
    bool *needs;       // per forward value: it depends on a trained parameter
    const mz_node *at; // a copy of the forward node under differentiation, because the graph's nodes move
    int node;          // its index
    float weight;
} tape;

static inline mezzo_dtype dtype_of(const tape *t, int v) {
    return t->g->values[v].dtype;
}
static inline const mz_shape *shape_of(const tape *t, int v) {
    return &t->g->values[v].shape;
}
static inline bool is_param(const tape *t, int v) {
    mz_value_kind k = t->g->values[v].kind;
    return k == MZ_VALUE_PARAM || k == MZ_VALUE_LOW_COPY;
}
static inline bool needs(const tape *t, int slot) {
    return slot < t->at->n_in && t->at->in[slot] >= 0 && t->needs[t->at->in[slot]];
}

static inline void add_in(mz_node *n, int v) {
    n->in[n->n_in++] = v;
}
static inline void add_out(mz_node *n, int v) {
    n->out[n->n_out++] = v;
}

mezzo_status mz_tape_value(tape *t, mz_shape shape, mezzo_dtype dtype, int *out);
mezzo_status mz_tape_gradient(tape *t, int v, int *out); // makes an empty gradient of v, in its format
// Returns a backward node with the forward node's module and numerics.
mz_node mz_tape_node(const tape *t, mz_op op);
mz_node mz_tape_reads(const tape *t, mz_op op, int n, const int *in); // the same with n inputs
// Appends the node of dx of an op with one output; it reads dy and the inputs that the caller added.
mezzo_status mz_tape_dx(tape *t, mz_node n, int x);
// Directs outputs that may be parameter gradients: all are written to the parameters' gradients, or all to values that
// are delivered later.
mezzo_status mz_tape_gradients(tape *t, mz_node n, int first_out, const int *targets, int count);
// Adds `grad` to the gradient of v: to the parameter's, or to the value's sum.
mezzo_status mz_tape_deliver(tape *t, int v, int grad);

// Declares the rules of gradients.c.
mezzo_status mz_grad_sum(tape *t, int dy);
mezzo_status mz_grad_mean(tape *t, int dy);
mezzo_status mz_grad_expand(tape *t, int dy);
mezzo_status mz_grad_max(tape *t, int dy);
mezzo_status mz_grad_min(tape *t, int dy);
mezzo_status mz_grad_prod(tape *t, int dy);
mezzo_status mz_grad_max_pool(tape *t, int dy);
mezzo_status mz_grad_cumsum(tape *t, int dy);
mezzo_status mz_grad_gather(tape *t, int dy);
mezzo_status mz_grad_scatter_add(tape *t, int dy);
mezzo_status mz_grad_split(tape *t, int dy);
mezzo_status mz_grad_concat(tape *t, int dy);
mezzo_status mz_grad_permute(tape *t, int dy);
mezzo_status mz_grad_slice(tape *t, int dy);
mezzo_status mz_grad_pad(tape *t, int dy);

#endif
