// The chunk pass computes, uses and drops a large head's logits a block of rows at a time, so that [rows, V] never
// exists.
//
//     linear → cross_entropy … cross_entropy_dx → linear_dx, linear_dw
//
// becomes, for each block of rows: its linear, its share of the loss, and at once its gradient, since the loss's
// gradient is known before forward begins (loss scale × weight). A block reads rows of x and writes rows of dx in
// place, through views; linear_dw adds block after block. The work is the same. The price is one more pass over dw a
// block (8·V·K bytes); the gain is the memory of all blocks but one. As in Liger Kernel's fused linear cross-entropy
// (Hsu et al. 2024, arXiv:2410.10989).
#include "graph/graph.h"

// The pass divides heads with more logits than this and more rows than one block. Blocks of fewer than 8,192 rows would
// cost too many passes over dw (8·V·K bytes beside 6·rows·V·K operations).
#define LARGE_BYTES   ((size_t)256 << 20)
#define DEFAULT_ROWS  8192
#define MAX_BLOCKS    1024 // for 8 million rows; planning compares every block with all others
#define ROW_ALIGNMENT 32   // rows of 2 bytes or more then start at a multiple of 64 bytes

// The nodes of one head, by index; -1 = absent.
typedef struct head {
    int linear, loss, gradient, dx, dw;
    int rounds_x, rounds_dy; // the quantize of x and of dy with one scale a tensor, where a gradient's products read it
    int logits, dloss;       // values
} head;

typedef struct pass {
    mezzo_graph *g;
    mz_node *old; // the nodes before the pass
    size_t n_old;
    int *producer; // per value: its node among `old`, because the graph's own nodes change
    bool *moved;   // per old node: emitted already, or replaced by blocks
} pass;

// --- finding a head ------------------------------------------------------------------------------------------------
// Finds the node of op_a that reads v in slot_a and that of op_b in slot_b, -1 where absent. Returns false where
// another node reads v.
static bool only_readers(const mezzo_graph *g, int v, mz_op op_a, int slot_a, mz_op op_b, int slot_b, int *a, int *b) {
    *a = *b = -1;
    for (size_t i = 0; i < g->n_nodes; ++i)
        for (int k = 0; k < g->nodes[i].n_in; ++k) {
            if (g->nodes[i].in[k] != v)
                continue;
            if (g->nodes[i].op == op_a && k == slot_a && *a < 0)
                *a = (int)i;
            else if (g->nodes[i].op == op_b && k == slot_b && *b < 0)
                *b = (int)i;
            else
                return false;
        }
    return true;
}

// Returns whether v can be computed before forward begins: it comes from the loss scale, at most one input, casts and
// scalings.
static bool known_early(const mezzo_graph *g, int v) {
    const mz_value *x = &g->values[v];
    if (x->kind == MZ_VALUE_SCALE || x->kind == MZ_VALUE_INPUT)
        return true;
    if (x->kind != MZ_VALUE_TEMP || x->producer < 0)
        return false;
    const mz_node *n = &g->nodes[x->producer];
    if (n->op == MZ_OP_mul)
        return known_early(g, n->in[0]) && known_early(g, n->in[1]);
    return (n->op == MZ_OP_scale || n->op == MZ_OP_cast) && known_early(g, n->in[0]);
}

// Returns whether the node is a quantize with one scale a tensor whose rowwise and columnwise data have one reader
// each, where they exist.
static bool rounds(const mezzo_graph *g, int index, mz_op y_op, int y_slot, mz_op columnwise_op, int columnwise_slot,
                   int *y, int *columnwise) {
    const mz_node *n = &g->nodes[index];
    const int layouts[] = {MZ_OUT(quantize, y), MZ_OUT(quantize, columnwise)}, sums = MZ_OUT(quantize, dbias);
    int none;
    *y = *columnwise = -1;
    if (n->attrs.act != MZ_ACT_NONE || mz_graph_entry(g, n) < 0 || (mz_node_out(n, sums) >= 0 && !n->attrs.accumulate))
        return false;
    for (int k = 0; k < 2; k++)
        if (mz_node_out(n, layouts[k]) >= 0 &&
            (g->values[n->out[layouts[k]]].keep ||
             !only_readers(g, n->out[layouts[k]], k == 0 ? y_op : columnwise_op, k == 0 ? y_slot : columnwise_slot,
                           MZ_OP_COUNT, 0, k == 0 ? y : columnwise, &none)))
            return false;
    return true;
}

static bool find_gradient(const mezzo_graph *g, head *h) {
    const mz_node *linear = &g->nodes[h->linear], *gradient = &g->nodes[h->gradient];
    int dlogits = gradient->out[0], none, reader;
    h->dloss = gradient->in[0];
    if (!known_early(g, h->dloss) || g->values[dlogits].keep)
        return false;
    if (only_readers(g, dlogits, MZ_OP_quantize, 0, MZ_OP_COUNT, 0, &h->rounds_dy, &none) && h->rounds_dy >= 0) {
        const int x = g->values[linear->in[0]].producer;
        if (!rounds(g, h->rounds_dy, MZ_OP_linear_dx, 0, MZ_OP_linear_dw, 0, &h->dx, &h->dw) || x < 0 ||
            !rounds(g, x, MZ_OP_linear, 0, MZ_OP_linear_dw, MZ_IN(linear_dw, x), &reader, &none) ||
            reader != h->linear || none != h->dw || g->values[g->nodes[x].in[0]].kind != MZ_VALUE_TEMP)
            return false;
        h->rounds_x = x;
    } else if (!only_readers(g, dlogits, MZ_OP_linear_dx, 0, MZ_OP_linear_dw, 0, &h->dx, &h->dw)) {
        return false;
    }
    // Operands of a gradient's products may be columnwise data of the product's operands.
    if (h->dx >= 0 && (mz_node_in(&g->nodes[h->dx], MZ_IN(linear_dx, preact)) >= 0 ||
                       mz_graph_before_rounding(g, g->nodes[h->dx].in[MZ_IN(linear_dx, w)]) !=
                           mz_graph_before_rounding(g, linear->in[MZ_IN(linear, w)])))
        return false;
    return h->dw < 0 ||
           (g->nodes[h->dw].attrs.accumulate && mz_graph_before_rounding(g, g->nodes[h->dw].in[MZ_IN(linear_dw, x)]) ==
                                                    mz_graph_before_rounding(g, linear->in[0]));
}

static bool find_head(const mezzo_graph *g, int index, head *h) {
    const mz_node *linear = &g->nodes[index];
    *h = (head){.linear = index, .gradient = -1, .dx = -1, .dw = -1, .rounds_x = -1, .rounds_dy = -1, .dloss = -1};
    if (linear->op != MZ_OP_linear || linear->phase != MZ_FORWARD || linear->attrs.act != MZ_ACT_NONE ||
        mz_node_in(linear, MZ_IN(linear, residual)) >= 0 || mz_node_out(linear, MZ_OUT(linear, preact)) >= 0)
        return false;
    h->logits = linear->out[0];
    const mz_value *x = &g->values[linear->in[0]];
    if (g->values[h->logits].keep || x->kind != MZ_VALUE_TEMP || mz_scaling_in_blocks(x->scaling) ||
        !only_readers(g, h->logits, MZ_OP_cross_entropy, MZ_IN(cross_entropy, logits), MZ_OP_cross_entropy_dx,
                      MZ_IN(cross_entropy_dx, logits), &h->loss, &h->gradient) ||
        h->loss < 0)
        return false;
    const mz_node *loss = &g->nodes[h->loss];
    int slot = MZ_OUT(cross_entropy, lse), lse = mz_node_out(loss, slot), reader, none;
    if (lse >= 0 &&
        (g->values[lse].keep ||
         !only_readers(g, lse, MZ_OP_cross_entropy_dx, MZ_IN(cross_entropy_dx, lse), MZ_OP_COUNT, 0, &reader, &none) ||
         reader != h->gradient))
        return false;
    return h->gradient < 0 || find_gradient(g, h);
}

// Returns the rows of a block; 0: the pass leaves the head whole.
static int64_t block_rows(const mezzo_graph *g, const head *h, int64_t wanted) {
    const mz_value *logits = &g->values[h->logits];
    int64_t rows = mz_shape_rows(&logits->shape);
    size_t bytes = (size_t)mz_shape_count(&logits->shape) * mezzo_dtype_size(logits->dtype);
    if (wanted < 0 || (wanted == 0 && bytes <= LARGE_BYTES))
        return 0;
    int64_t limit = wanted > 0 ? wanted : DEFAULT_ROWS, blocks = (rows + limit - 1) / limit;
    blocks = blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS;
    int64_t even = (int64_t)mz_align_up((size_t)((rows + blocks - 1) / blocks), ROW_ALIGNMENT);
    return even < rows ? even : 0;
}

// --- making the blocks ---------------------------------------------------------------------------------------------
static mezzo_status emit(pass *p, const mz_node *n) {
    return mz_graph_node(p->g, *n, NULL);
}

static mezzo_status new_value(pass *p, mezzo_dtype dtype, mz_shape shape, int *out) {
    mz_value v = {.kind = MZ_VALUE_TEMP, .dtype = dtype, .shape = shape, .producer = -1, .param = -1, .alias = -1};
    return mz_graph_value(p->g, v, out);
}

// Makes a view of rows first … first + rows - 1 of v, with its scale.
static mezzo_status rows_of(pass *p, int v, int64_t first, int64_t rows, int *out) {
    const mz_value of = p->g->values[v];
    int64_t width = of.shape.dim[of.shape.rank - 1];
    mz_value view = {.kind = MZ_VALUE_TEMP,
                     .dtype = of.dtype,
                     .scaling = of.scaling,
                     .scale = of.scale,
                     .shape = {2, {rows, width}},
                     .producer = -1,
                     .param = -1,
                     .alias = v,
                     .offset = (size_t)(first * width) * mezzo_dtype_size(of.dtype)};
    return mz_graph_value(p->g, view, out);
}

// Emits the quantize of a block of rows. Its data in both layouts have memory of their own, because a block's
// columnwise data are no view of the whole. An unknown scale is measured for each block.
static mezzo_status emit_rounding(pass *p, int index, int x, int64_t rows, mz_node *out) {
    *out = p->old[index];
    out->in[0] = x;
    for (int k = MZ_OUT(quantize, y); k <= MZ_OUT(quantize, columnwise); k++) {
        if (mz_node_out(out, k) < 0)
            continue;
        mz_value quantized = p->g->values[out->out[k]];
        quantized.shape = (mz_shape){2, {rows, quantized.shape.dim[quantized.shape.rank - 1]}};
        quantized.name = NULL;
        MEZZO_TRY(mz_graph_value(p->g, quantized, &out->out[k]));
    }
    return emit(p, out);
}

// Adds forward and gradient of rows first … first + rows - 1; *loss is their share of the loss.
static mezzo_status emit_block(pass *p, const head *h, int64_t first, int64_t rows, int *loss) {
    mz_node linear = p->old[h->linear], entropy = p->old[h->loss];
    const mz_value logits = p->g->values[h->logits];
    mz_shape shape = {2, {rows, logits.shape.dim[logits.shape.rank - 1]}};
    mz_node of_x = {.op = MZ_OP_COUNT}, of_dy = of_x;
    int x;
    MEZZO_TRY(rows_of(p, h->rounds_x >= 0 ? p->old[h->rounds_x].in[0] : linear.in[0], first, rows, &x));
    if (h->rounds_x >= 0)
        MEZZO_TRY(emit_rounding(p, h->rounds_x, x, rows, &of_x));
    linear.in[0] = h->rounds_x >= 0 ? of_x.out[MZ_OUT(quantize, y)] : x;
    MEZZO_TRY(new_value(p, logits.dtype, shape, &linear.out[0]));
    MEZZO_TRY(emit(p, &linear));
    entropy.in[0] = linear.out[0];
    entropy.attrs.first_row = first;
    MEZZO_TRY(new_value(p, MEZZO_F32, (mz_shape){1, {1}}, &entropy.out[0]));
    *loss = entropy.out[0];
    if (mz_node_out(&entropy, MZ_OUT(cross_entropy, lse)) >= 0)
        MEZZO_TRY(new_value(p, MEZZO_F32, (mz_shape){1, {rows}}, &entropy.out[MZ_OUT(cross_entropy, lse)]));
    MEZZO_TRY(emit(p, &entropy));
    if (h->gradient < 0)
        return MEZZO_OK;
    mz_node gradient = p->old[h->gradient];
    mezzo_dtype dtype = p->g->values[gradient.out[0]].dtype;
    gradient.in[MZ_IN(cross_entropy_dx, logits)] = linear.out[0];
    gradient.in[MZ_IN(cross_entropy_dx, lse)] = entropy.out[MZ_OUT(cross_entropy, lse)];
    gradient.attrs.first_row = first;
    MEZZO_TRY(new_value(p, dtype, shape, &gradient.out[0]));
    MEZZO_TRY(emit(p, &gradient));
    if (h->rounds_dy >= 0)
        MEZZO_TRY(emit_rounding(p, h->rounds_dy, gradient.out[0], rows, &of_dy));
    if (h->dw >= 0) {
        mz_node dw = p->old[h->dw];
        dw.in[0] = h->rounds_dy >= 0 ? of_dy.out[MZ_OUT(quantize, columnwise)] : gradient.out[0];
        dw.in[MZ_IN(linear_dw, x)] = h->rounds_x >= 0 ? of_x.out[MZ_OUT(quantize, columnwise)] : x;
        dw.attrs.first_row = dw.attrs.random_gradients ? first : 0;
        MEZZO_TRY(emit(p, &dw));
    }
    if (h->dx >= 0) {
        mz_node dx = p->old[h->dx];
        dx.in[0] = h->rounds_dy >= 0 ? of_dy.out[MZ_OUT(quantize, y)] : gradient.out[0];
        dx.attrs.first_row = dx.attrs.random_gradients ? first : 0;
        MEZZO_TRY(rows_of(p, dx.out[0], first, rows, &dx.out[0]));
        MEZZO_TRY(emit(p, &dx));
    }
    return MEZZO_OK;
}

// Appends sum ← sum + part; the last sum is the head's loss.
static mezzo_status emit_sum(pass *p, const head *h, int part, bool last, int *sum) {
    mz_node add = p->old[h->loss];
    add.op = MZ_OP_add;
    add.attrs = (mz_attrs){0};
    add.rule = "sum of the blocks' shares, fp32";
    add.n_in = 2;
    add.n_out = 1;
    add.in[0] = *sum;
    add.in[1] = part;
    add.out[1] = -1;
    *sum = p->old[h->loss].out[0];
    if (!last)
        MEZZO_TRY(new_value(p, MEZZO_F32, (mz_shape){1, {1}}, sum));
    add.out[0] = *sum;
    return emit(p, &add);
}

// Moves the nodes that make dloss before the first block.
static mezzo_status emit_early(pass *p, int v) {
    int maker = p->producer[v];
    if (maker < 0 || p->moved[maker])
        return MEZZO_OK;
    for (int k = 0; k < p->old[maker].n_in; k++)
        MEZZO_TRY(emit_early(p, p->old[maker].in[k]));
    p->moved[maker] = true;
    return emit(p, &p->old[maker]);
}

static mezzo_status emit_head(pass *p, const head *h, int64_t block) {
    int64_t rows = mz_shape_rows(&p->g->values[h->logits].shape);
    int sum = -1;
    if (h->dloss >= 0)
        MEZZO_TRY(emit_early(p, h->dloss));
    for (int64_t first = 0; first < rows; first += block) {
        bool last = first + block >= rows;
        int part = -1;
        MEZZO_TRY(emit_block(p, h, first, last ? rows - first : block, &part));
        if (first == 0)
            sum = part;
        else
            MEZZO_TRY(emit_sum(p, h, part, last, &sum));
    }
    const int replaced[] = {h->linear, h->loss, h->gradient, h->dx, h->dw, h->rounds_dy};
    for (size_t i = 0; i < MZ_COUNT(replaced); ++i)
        if (replaced[i] >= 0)
            p->moved[replaced[i]] = true;
    return MEZZO_OK;
}

static mezzo_status emit_all(pass *p, const head *heads, const int64_t *blocks, size_t n_heads) {
    for (size_t k = 0; k < n_heads; ++k)
        if (blocks[k] > 0 && heads[k].rounds_x >= 0)
            p->moved[heads[k].rounds_x] = true;
    for (size_t i = 0; i < p->n_old; ++i) {
        for (size_t k = 0; k < n_heads; ++k) {
            if (heads[k].linear != (int)i)
                continue;
            if (blocks[k] > 0)
                MEZZO_TRY(emit_head(p, &heads[k], blocks[k]));
            else // a whole head's loss and gradient become neighbours, which a device may fuse
                MEZZO_TRY(emit_early(p, heads[k].dloss));
        }
        if (!p->moved[i])
            MEZZO_TRY(emit(p, &p->old[i]));
    }
    return MEZZO_OK;
}

mezzo_status mz_pass_chunk(mezzo_graph *g, const mz_target *target) {
    enum { MAX_HEADS = 8 };
    head heads[MAX_HEADS];
    int64_t blocks[MAX_HEADS];
    size_t n_heads = 0;
    if (target->options->no_fuse)
        return MEZZO_OK;
    bool *logits = mz_alloc(g->n_values + 1, sizeof *logits); // values that a cross entropy reads
    if (logits == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < g->n_nodes; ++i)
        if (g->nodes[i].op == MZ_OP_cross_entropy)
            logits[g->nodes[i].in[MZ_IN(cross_entropy, logits)]] = true;
    for (size_t i = 0; i < g->n_nodes && n_heads < MAX_HEADS; ++i)
        if (g->nodes[i].op == MZ_OP_linear && logits[g->nodes[i].out[0]] && find_head(g, (int)i, &heads[n_heads])) {
            blocks[n_heads] = block_rows(g, &heads[n_heads], target->options->logits_rows);
            n_heads += blocks[n_heads] > 0 || heads[n_heads].dloss >= 0;
        }
    mz_free(logits);
    if (n_heads == 0)
        return MEZZO_OK;
    mezzo_status status = MEZZO_ERR_MEMORY;
    pass p = {.g = g, .old = g->nodes, .n_old = g->n_nodes};
    p.moved = mz_alloc(g->n_nodes, sizeof *p.moved);
    p.producer = mz_alloc(g->n_values, sizeof *p.producer);
    if (p.moved && p.producer) {
        for (size_t v = 0; v < g->n_values; ++v)
            p.producer[v] = g->values[v].producer;
        g->nodes = NULL;
        g->n_nodes = g->cap_nodes = 0;
        status = emit_all(&p, heads, blocks, n_heads);
        mz_free(p.old);
    }
    MZ_FREE(p.moved, p.producer);
    return status == MEZZO_OK ? MEZZO_OK : mz_trace(status, __FILE__, __LINE__, __func__);
}
