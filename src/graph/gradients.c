// Builds the gradients of reductions and movements: each is itself a reduction or a movement.
#include "graph/tape.h"

static mezzo_status mz_grad_reduce(tape *t, int dy, float alpha) {
    mz_node n = mz_tape_reads(t, MZ_OP_expand, 1, &dy);
    n.attrs.alpha = alpha;
    return mz_tape_dx(t, n, t->at->in[0]);
}
mezzo_status mz_grad_sum(tape *t, int dy) {
    return mz_grad_reduce(t, dy, 1.0f);
}
mezzo_status mz_grad_mean(tape *t, int dy) {
    const mz_shape *x = shape_of(t, t->at->in[0]);
    int axis = t->at->attrs.axis;
    int64_t n = axis < 0 ? mz_shape_count(x) : x->dim[axis];
    return mz_grad_reduce(t, dy, (float)(1.0 / (double)n));
}

mezzo_status mz_grad_expand(tape *t, int dy) {
    mz_node n = mz_tape_reads(t, MZ_OP_sum, 1, &dy);
    return mz_tape_gradients(t, n, 0, &t->at->in[0], 1);
}

// Appends dx of a reduction, by a node that reads dy, x and y.
static mezzo_status mz_grad_reduced(tape *t, mz_op op, int dy) {
    mz_node n = mz_tape_reads(t, op, 3, (int[]){dy, t->at->in[0], t->at->out[0]});
    return mz_tape_dx(t, n, t->at->in[0]);
}
mezzo_status mz_grad_max(tape *t, int dy) {
    return mz_grad_reduced(t, MZ_OP_extremum_dx, dy);
}
mezzo_status mz_grad_min(tape *t, int dy) {
    return mz_grad_reduced(t, MZ_OP_extremum_dx, dy);
}
mezzo_status mz_grad_prod(tape *t, int dy) {
    return mz_grad_reduced(t, MZ_OP_prod_dx, dy);
}

mezzo_status mz_grad_max_pool(tape *t, int dy) {
    return mz_grad_reduced(t, MZ_OP_max_pool_dx, dy);
}

mezzo_status mz_grad_cumsum(tape *t, int dy) {
    mz_node n = mz_tape_reads(t, MZ_OP_cumsum, 1, &dy);
    n.attrs.reverse = !n.attrs.reverse;
    return mz_tape_dx(t, n, t->at->in[0]);
}

mezzo_status mz_grad_gather(tape *t, int dy) {
    mz_node n = mz_tape_reads(t, MZ_OP_scatter_add, 3, (int[]){-1, t->at->in[1], dy});
    return mz_tape_dx(t, n, t->at->in[0]);
}

mezzo_status mz_grad_scatter_add(tape *t, int dy) {
    if (needs(t, 2)) {
        mz_node n = mz_tape_reads(t, MZ_OP_gather, 2, (int[]){dy, t->at->in[1]});
        MEZZO_TRY(mz_tape_dx(t, n, t->at->in[2]));
    }
    return needs(t, 0) ? mz_tape_deliver(t, t->at->in[0], dy) : MEZZO_OK;
}

mezzo_status mz_grad_split(tape *t, int dy) {
    (void)dy;
    mz_node n = mz_tape_node(t, MZ_OP_concat);
    for (int i = 0; i < t->at->n_out; ++i) {
        int out = t->at->out[i], part = t->grad[out];
        if (part < 0) { // no op read this part: its gradient is zero, made as the finite loss scale times 0
            mz_node zero = mz_tape_reads(t, MZ_OP_expand, 1, &t->g->scale);
            zero.attrs.alpha = 0;
            zero.attrs.axis = -1;
            MEZZO_TRY(mz_tape_gradient(t, out, &part));
            add_out(&zero, part);
            MEZZO_TRY(mz_graph_node(t->g, zero, NULL));
        }
        add_in(&n, part);
    }
    return mz_tape_dx(t, n, t->at->in[0]);
}

// Finishes dx of an op that only moves elements: it has dy's format and the first input's shape.
static mezzo_status finish_moved(tape *t, mz_node n, int dy) {
    int dx, x = t->at->in[0];
    MEZZO_TRY(mz_tape_value(t, *shape_of(t, x), dtype_of(t, dy), &dx));
    add_out(&n, dx);
    MEZZO_TRY(mz_graph_node(t->g, n, NULL));
    return mz_tape_deliver(t, x, dx);
}

mezzo_status mz_grad_concat(tape *t, int dy) {
    mz_node n = mz_tape_reads(t, MZ_OP_split, 1, &dy);
    n.n_out = t->at->n_in;
    for (int i = 0; i < n.n_out; ++i)
        MEZZO_TRY(mz_tape_value(t, *shape_of(t, t->at->in[i]), dtype_of(t, dy), &n.out[i]));
    MEZZO_TRY(mz_graph_node(t->g, n, NULL));
    for (int i = 0; i < n.n_out; ++i)
        if (needs(t, i))
            MEZZO_TRY(mz_tape_deliver(t, t->at->in[i], n.out[i]));
    return MEZZO_OK;
}

mezzo_status mz_grad_permute(tape *t, int dy) {
    mz_node n = mz_tape_node(t, MZ_OP_permute);
    for (int i = 0; i < shape_of(t, dy)->rank; i++)
        n.attrs.permutation[t->at->attrs.permutation[i]] = i;
    add_in(&n, dy);
    return finish_moved(t, n, dy);
}

mezzo_status mz_grad_slice(tape *t, int dy) {
    mz_node n = mz_tape_reads(t, MZ_OP_pad, 1, &dy);
    n.attrs.alpha = 0;
    return finish_moved(t, n, dy);
}

// Slices dy, because the padding around x has no gradient.
mezzo_status mz_grad_pad(tape *t, int dy) {
    mz_node n = mz_tape_reads(t, MZ_OP_slice, 1, &dy);
    return finish_moved(t, n, dy);
}
