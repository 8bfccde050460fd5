// Finds which dimensions of values are one axis, and how each axis is stored. Ops join axes as their row of ops.def
// says: a model's residual stream is one axis from the embedding to the head, with its norms' weights and its products'
// sides.
#include <stdlib.h>

#include "graph/graph.h"

// Axes shorter than this have no padding, because most of their storage would be padding.
#define LEAST_EXTENT 4

// A class of (value, dimension) pairs in a union-find structure; the class's root holds what is known of the axis.
typedef struct axis_class {
    int parent;
    int64_t inner;       // the run of elements that is padded: the greatest that divides every member's extent
    int64_t runs;        // of 8-bit operands: the greatest number of runs that divides each member's extent; 0: no
                         // member is one
    uint8_t kinds;       // bits of the mz_axis kinds that ops asked for
    bool fixed;          // it has no padding: a dimension of rows, or one whose padding some op cannot skip
    bool given;          // its layout is that of a stored parameter
    int32_t given_inner; // inner and pitch of that parameter; pitch 0: without padding
    int32_t given_pitch;
} axis_class;

typedef struct axes {
    const mezzo_graph *g;
    axis_class *at; // [n_values * MEZZO_MAX_RANK]
} axes;

static int axis_of(int v, int d) {
    return v * MEZZO_MAX_RANK + d;
}

static int64_t extent_of(const axes *a, int axis) {
    return a->g->values[axis / MEZZO_MAX_RANK].shape.dim[axis % MEZZO_MAX_RANK];
}

static int find(const axes *a, int x) {
    while (a->at[x].parent != x)
        x = a->at[x].parent = a->at[a->at[x].parent].parent;
    return x;
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void unite(axes *a, int x, int y) {
    axis_class *to = &a->at[find(a, x)], *from = &a->at[find(a, y)];
    if (to == from)
        return;
    from->parent = to->parent;
    to->inner = common_divisor(to->inner, from->inner);
    to->kinds |= from->kinds;
    to->fixed = to->fixed || from->fixed;
    if (from->given && !to->given) {
        to->given = true;
        to->given_inner = from->given_inner;
        to->given_pitch = from->given_pitch;
    }
}

static void fix(axes *a, int axis) {
    a->at[find(a, axis)].fixed = true;
}

// --- the column of ops.def -----------------------------------------------------------------------------------------
static int kind_of(char letter) {
    switch (letter) {
    case 'v':
        return 1 << MZ_AXIS_VOCABULARY;
    case 'h':
        return 1 << MZ_AXIS_HEAD;
    case 'c':
        return 1 << MZ_AXIS_WIDTH;
    case 'e':
    case 'f':
        return 1 << MZ_AXIS_EXPERT;
    case 'k':
    case 'n':
        return 1 << MZ_AXIS_FEATURES;
    default:
        return 0;
    }
}

typedef struct spec {
    int bound[26]; // per letter: the first axis with this letter; -1
    int like[MEZZO_MAX_RANK],
        like_rank; // of values marked '=': the first, aligned at the last dimension, that broadcasts along the axis
} spec;

// '=' joins dimensions from the right. A value that broadcasts along an axis would write into its padding.
static void apply_like(axes *a, spec *s, int v) {
    int rank = a->g->values[v].shape.rank, most = rank > s->like_rank ? rank : s->like_rank;
    for (int k = 0; k < most; k++) {
        int *bound = &s->like[k], axis = k < rank ? axis_of(v, rank - 1 - k) : -1;
        bool known = k < s->like_rank;
        if (axis >= 0 && known && extent_of(a, axis) == extent_of(a, *bound)) {
            unite(a, *bound, axis);
            continue;
        }
        if (known)
            fix(a, *bound);
        if (axis >= 0 && s->like_rank > 0)
            fix(a, axis);
        if (axis >= 0 && (!known || extent_of(a, *bound) == 1))
            *bound = axis;
    }
    s->like_rank = most;
}

static void apply_token(axes *a, spec *s, int v, const char *token, int length) {
    int rank = a->g->values[v].shape.rank, leading = token[0] == '*', letters = length - leading;
    if (token[0] == '-')
        return;
    if (token[0] == '=') {
        apply_like(a, s, v);
        return;
    }
    for (int d = 0; leading && d < rank - letters; d++)
        fix(a, axis_of(v, d));
    for (int k = 0; k < letters && letters <= rank; k++) {
        char letter = token[leading + k];
        int axis = axis_of(v, rank - letters + k);
        if (letter == '.') {
            fix(a, axis);
            continue;
        }
        int *bound = &s->bound[letter - 'a'];
        a->at[find(a, axis)].kinds |= (uint8_t)kind_of(letter);
        if (*bound >= 0)
            unite(a, *bound, axis);
        else
            *bound = axis;
    }
}

static void apply_spec(axes *a, const mz_node *n, const char *text) {
    spec s = {.like_rank = 0};
    for (int i = 0; i < 26; i++)
        s.bound[i] = -1;
    bool outputs = false;
    int slot = 0;
    for (const char *at = text; *at != '\0'; at += strspn(at, " ")) {
        int length = (int)strcspn(at, " ");
        if (*at == '>') {
            outputs = true;
            slot = 0;
        } else {
            int v = outputs ? slot < n->n_out ? n->out[slot] : -1 : slot < n->n_in ? n->in[slot] : -1;
            if (v >= 0)
                apply_token(a, &s, v, at, length);
            slot++;
        }
        at += length;
    }
}

// --- ops whose axes depend on attributes ---------------------------------------------------------------------------
// Joins x's axes with y's where both hold the same elements in the same order: of the last dimensions, the smallest
// groups of equal size share their innermost run.
static void match(axes *a, const int *x, int nx, const int *y, int ny) {
    for (int i = nx - 1, k = ny - 1; i >= 0 && k >= 0; i--, k--) {
        int64_t px = extent_of(a, x[i]), py = extent_of(a, y[k]);
        int last_x = x[i], last_y = y[k];
        while (px != py) {
            if ((px < py ? i : k) == 0)
                return;
            if (px < py)
                px *= extent_of(a, x[--i]);
            else
                py *= extent_of(a, y[--k]);
        }
        unite(a, last_x, last_y);
    }
}

static int list_axes(const axes *a, int v, int except, int *out) {
    int n = 0;
    for (int d = 0; d < a->g->values[v].shape.rank; d++)
        if (d != except)
            out[n++] = axis_of(v, d);
    return n;
}

// Joins values with the same elements in the same order; `except` is an axis of `whole` that the other lacks, -1: none.
static void join_view(axes *a, int whole, int except, int view) {
    int x[MEZZO_MAX_RANK], y[MEZZO_MAX_RANK];
    int nx = list_axes(a, whole, except, x), ny = list_axes(a, view, -1, y);
    match(a, x, nx, y, ny);
}

static void join_reduced(axes *a, const mz_node *n, int whole, int reduced) {
    if (n->attrs.axis >= 0)
        join_view(a, whole, n->attrs.axis, reduced);
}

static void join_parts(axes *a, int whole, const int *parts, int n) {
    for (int i = 0; i < n; i++)
        for (int d = 0; parts[i] >= 0 && d < a->g->values[whole].shape.rank; d++)
            unite(a, axis_of(whole, d), axis_of(parts[i], d));
}

static int out_of(const mz_node *n, int slot) {
    return slot < n->n_out ? n->out[slot] : -1;
}

static void join_matmul(axes *a, const mz_node *n) {
    int x = n->in[0], y = n->in[1], z = n->out[0], r = a->g->values[z].shape.rank;
    int ta = n->attrs.transpose_a, tb = n->attrs.transpose_b;
    for (int d = 0; d < r - 2; d++) {
        fix(a, axis_of(x, d));
        fix(a, axis_of(y, d));
        fix(a, axis_of(z, d));
    }
    unite(a, axis_of(x, r - 2 + ta), axis_of(z, r - 2));
    unite(a, axis_of(x, r - 1 - ta), axis_of(y, r - 2 + tb));
    unite(a, axis_of(y, r - 1 - tb), axis_of(z, r - 1));
}

static void join_permuted(axes *a, const mz_node *n) {
    for (int d = 0; d < a->g->values[n->out[0]].shape.rank; d++)
        unite(a, axis_of(n->in[0], n->attrs.permutation[d]), axis_of(n->out[0], d));
}

// Joins a value with its quantized data in every dimension; the last dimension of SwiGLU's two halves is one axis of
// two runs.
static void join_quantize(axes *a, const mz_node *n) {
    const int x = n->in[0], last = a->g->values[x].shape.rank - 1;
    const int alike[] = {n->n_in > 1 ? n->in[1] : -1, out_of(n, MZ_OUT(quantize, y)),
                         out_of(n, MZ_OUT(quantize, columnwise)), out_of(n, MZ_OUT(quantize, act_out))};
    const int sums = out_of(n, MZ_OUT(quantize, dbias));
    a->at[find(a, axis_of(x, last))].kinds |= 1 << MZ_AXIS_FEATURES;
    for (size_t k = 0; k < MZ_COUNT(alike); k++)
        for (int d = 0; alike[k] >= 0 && d <= last; d++)
            unite(a, axis_of(x, d), axis_of(alike[k], d));
    if (sums >= 0)
        unite(a, axis_of(x, last), axis_of(sums, 0));
}

// Fixes the sliced axis without padding, because a slice may begin anywhere in it.
static void join_slice(axes *a, const mz_node *n) {
    for (int d = 0; d < a->g->values[n->out[0]].shape.rank; d++) {
        if (d != n->attrs.axis) {
            unite(a, axis_of(n->in[0], d), axis_of(n->out[0], d));
            continue;
        }
        fix(a, axis_of(n->in[0], d));
        fix(a, axis_of(n->out[0], d));
    }
}

// Divides the last dimension of v into `heads` runs, one a head.
static void cut_heads(axes *a, int v, int64_t heads) {
    const mz_shape *s = &a->g->values[v].shape;
    axis_class *c = &a->at[find(a, axis_of(v, s->rank - 1))];
    if (heads > 0 && s->dim[s->rank - 1] % heads == 0)
        c->inner = common_divisor(c->inner, s->dim[s->rank - 1] / heads);
}

static void join_node(axes *a, const mz_node *n) {
    bool packed = n->n_in < 2 || n->in[1] < 0; // attention with q, k and v in one tensor
    if (mz_op_table[n->op].axes != NULL)
        apply_spec(a, n, mz_op_table[n->op].axes);
    switch (n->op) {
    case MZ_OP_matmul:
        join_matmul(a, n);
        break;
    case MZ_OP_permute:
        join_permuted(a, n);
        break;
    case MZ_OP_quantize:
        join_quantize(a, n);
        break;
    case MZ_OP_slice:
    case MZ_OP_pad:
        join_slice(a, n);
        break;
    case MZ_OP_reshape:
        join_view(a, n->in[0], -1, n->out[0]);
        break;
    case MZ_OP_sum:
    case MZ_OP_mean:
        join_reduced(a, n, n->in[0], n->out[0]);
        break;
    case MZ_OP_expand:
        join_reduced(a, n, n->out[0], n->in[0]);
        break;
    case MZ_OP_split:
        join_parts(a, n->in[0], n->out, n->n_out);
        break;
    case MZ_OP_concat:
        join_parts(a, n->out[0], n->in, n->n_in);
        break;
    case MZ_OP_attention:
    case MZ_OP_attention_bwd:
    case MZ_OP_attention_cached:
        cut_heads(a, n->in[0], (int64_t)n->attrs.heads * (packed ? 3 : 1));
        break;
    case MZ_OP_rope:
        cut_heads(a, n->in[0], n->attrs.heads);
        break;
    default:
        break;
    }
}

// --- values --------------------------------------------------------------------------------------------------------
// Returns whether v is a block of rows of another value. The other aliases are results of reshapes; a pass may have
// removed the node that wrote one.
static bool is_rows(const mezzo_graph *g, const mz_value *v) {
    if (v->alias < 0 || v->producer < 0)
        return v->alias >= 0;
    const mz_node *maker = (size_t)v->producer < g->n_nodes ? &g->nodes[v->producer] : NULL;
    for (int k = 0; maker != NULL && k < maker->n_out; k++)
        if (maker->out[k] == (int)(v - g->values))
            return maker->op != MZ_OP_reshape;
    return false;
}

static void start(axes *a, const mz_storage_policy *policy) {
    const mezzo_graph *g = a->g;
    for (size_t v = 0; v < g->n_values; v++)
        for (int d = 0; d < MEZZO_MAX_RANK; d++) {
            int axis = axis_of((int)v, d);
            a->at[axis] = (axis_class){.parent = axis,
                                       .inner = d < g->values[v].shape.rank ? extent_of(a, axis) : 1,
                                       .fixed = g->values[v].scaling != MZ_SCALING_NONE && policy->eight == 0};
        }
}

static void give(axes *a, int v, const mz_storage *stored) {
    for (int d = 0; d < a->g->values[v].shape.rank; d++) {
        axis_class *c = &a->at[axis_of(v, d)];
        c->given = true;
        c->given_inner = stored->padded && stored->pitch[d] ? stored->inner[d] : 0;
        c->given_pitch = stored->padded ? stored->pitch[d] : 0;
    }
}

// Joins a parameter's value, copies and gradient, and a block of rows with the whole value.
static void join_values(axes *a) {
    const mezzo_graph *g = a->g;
    for (size_t i = 0; i < g->n_values; i++) {
        const mz_value *v = &g->values[i];
        if (v->kind == MZ_VALUE_PARAM || v->kind == MZ_VALUE_LOW_COPY || v->kind == MZ_VALUE_QUANTIZED ||
            v->kind == MZ_VALUE_GRAD) {
            int master = g->params[v->param].value;
            for (int d = 0; d < v->shape.rank; d++)
                unite(a, axis_of(master, d), axis_of((int)i, d));
        } else if (is_rows(g, v)) {
            int of = v->alias, rank = g->values[of].shape.rank;
            for (int d = 0; d + 1 < rank; d++)
                fix(a, axis_of(of, d));
            for (int d = 0; d + 1 < v->shape.rank; d++)
                fix(a, axis_of((int)i, d));
            unite(a, axis_of(of, rank - 1), axis_of((int)i, v->shape.rank - 1));
        }
    }
    for (size_t i = 0; i < g->n_nodes; i++) // blocks take rows without padding
        for (int k = 0; k < 2 && mz_op_is_product(g->nodes[i].op) && g->nodes[i].attrs.blocks != MEZZO_BLOCKS_NONE; k++)
            for (int d = 0; d < g->values[g->nodes[i].in[k]].shape.rank; d++)
                fix(a, axis_of(g->nodes[i].in[k], d));
}

// Marks each side of an 8-bit operand, because one of its products sums over it; counts runs once the axes have theirs.
static void count_runs(axes *a) {
    for (size_t v = 0; v < a->g->n_values; v++)
        for (int d = 0; a->g->values[v].scaling != MZ_SCALING_NONE && d < a->g->values[v].shape.rank; d++) {
            axis_class *c = &a->at[find(a, axis_of((int)v, d))];
            c->runs = common_divisor(c->runs, extent_of(a, axis_of((int)v, d)) / c->inner);
        }
}

static bool takes_eight(const mz_storage_policy *policy, const axis_class *c, int64_t pitch) {
    return c->runs == 0 || policy->eight == 0 || pitch * c->runs % policy->eight == 0;
}

// Returns the stored extent of a run: the policy's, raised to a multiple of 16 where 8-bit products read the axis, or
// to the greatest power of two up to 128, a tile's line, that adds at most 1/32.
static int64_t pitch_of(const mz_storage_policy *policy, const axis_class *c) {
    int64_t pitch = mz_policy_extent(policy, (mz_axis)__builtin_ctz(c->kinds), c->inner);
    if (takes_eight(policy, c, pitch))
        return pitch;
    for (int64_t line = 128; line > policy->eight; line /= 2) {
        const int64_t lines = (pitch + line - 1) / line * line;
        if ((lines - c->inner) * 32 <= c->inner)
            return lines;
    }
    while (!takes_eight(policy, c, pitch))
        pitch++;
    return pitch;
}

static void store_axis(const axes *a, const mz_storage_policy *policy, int axis, int d, mz_storage *out) {
    const axis_class *c = &a->at[find(a, axis)];
    int64_t pitch = 0;
    if (c->fixed || c->inner > INT32_MAX / 2)
        return;
    if (c->given && (c->given_pitch == 0 || c->given_inner == c->inner) &&
        takes_eight(policy, c, c->given_pitch > 0 ? c->given_pitch : c->inner))
        pitch = c->given_pitch;
    else if (c->kinds != 0 && (c->inner >= LEAST_EXTENT || c->runs == 1))
        pitch = pitch_of(policy, c);
    if (pitch <= c->inner)
        return;
    out->padded = true;
    out->inner[d] = (int32_t)c->inner;
    out->pitch[d] = (int32_t)pitch;
}

mezzo_status mz_graph_storage(const mezzo_graph *g, const mz_storage_policy *policy, mz_storage *out) {
    axes a = {.g = g, .at = mz_alloc((g->n_values + 1) * MEZZO_MAX_RANK, sizeof *a.at)};
    if (a.at == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    start(&a, policy);
    for (size_t i = 0; i < g->n_params; i++)
        if (g->params[i].stored)
            give(&a, g->params[i].value, &g->params[i].storage);
    join_values(&a);
    for (size_t i = 0; i < g->n_nodes; i++)
        join_node(&a, &g->nodes[i]);
    count_runs(&a);
    for (size_t v = 0; v < g->n_values; v++) {
        out[v] = (mz_storage){0};
        for (int d = 0; d < g->values[v].shape.rank; d++)
            store_axis(&a, policy, axis_of((int)v, d), d, &out[v]);
    }
    mz_free(a.at);
    return MEZZO_OK;
}

// Uses the classes before autocast: 8-bit operands add values but no joins.
mezzo_status mz_graph_rows_of_16(const mezzo_graph *g, bool *out) {
    const mz_storage_policy any = {.eight = 16};
    axes a = {.g = g, .at = mz_alloc((g->n_values + 1) * MEZZO_MAX_RANK, sizeof *a.at)};
    if (a.at == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    start(&a, &any);
    join_values(&a);
    for (size_t i = 0; i < g->n_nodes; i++)
        join_node(&a, &g->nodes[i]);
    for (size_t v = 0; v < g->n_values; v++) {
        const int rank = g->values[v].shape.rank, last = axis_of((int)v, rank > 0 ? rank - 1 : 0);
        const axis_class *c = &a.at[find(&a, last)];
        const int64_t extent = rank > 0 ? extent_of(&a, last) : 1;
        out[v] = extent % 16 == 0 || (!c->fixed && c->kinds != 0 && (c->inner == extent || c->inner >= LEAST_EXTENT));
    }
    mz_free(a.at);
    return MEZZO_OK;
}

bool mz_value_is_rows(const mezzo_graph *g, int value) {
    return is_rows(g, &g->values[value]);
}
