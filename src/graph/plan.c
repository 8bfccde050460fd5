// The plan pass decides when each value lives and where in the one arena. Values whose lives overlap get disjoint
// bytes. Each is placed at the lowest free offset, in the best of three orders: by size (as in Pisarchyk & Lee 2020,
// arXiv:2001.03288), by length of life, by birth. The gradient buffer can be the beginning of the arena: a gradient's
// place is fixed and its life begins with the node that writes it, so activations that backward frees lie where
// gradients will.
#include "graph/graph.h"
#include "graph/place.h"

#include <limits.h>
#include <stdlib.h>

#define ALIGNMENT 64
#define SLACK     16 // nodes: about a layer's backward

typedef mz_life life;

static int root_of(const mezzo_graph *g, const int *shared, int v) {
    for (;;) {
        if (shared[v] >= 0)
            v = shared[v];
        else if (g->values[v].alias >= 0)
            v = g->values[v].alias;
        else
            return v;
    }
}

// Returns bytes from the root's start; offsets of nested views add up. In-place sharing starts at byte 0 of a whole
// value.
static size_t view_offset(const mezzo_graph *g, const int *shared, int v) {
    size_t offset = 0;
    for (; shared[v] >= 0 || g->values[v].alias >= 0; v = shared[v] >= 0 ? shared[v] : g->values[v].alias)
        offset += shared[v] >= 0 ? 0 : g->values[v].offset;
    return offset;
}

static size_t bytes_of(const mz_value *v) {
    const mz_tensor t = mz_value_stored(v);
    return mz_align_up(mz_tensor_bytes_stored(&t), ALIGNMENT);
}

static bool reads(const mezzo_graph *g, const int *shared, const mz_node *n, int root, int except) {
    for (int k = 0; k < n->n_in; ++k)
        if (k != except && n->in[k] >= 0 && root_of(g, shared, n->in[k]) == root)
            return true;
    return false;
}

// Returns whether node i gives up the root's bytes to its output `out`: no later node reads the root. Where it may be
// part of a call with later nodes, up to n->until, these alone read its output, so that call does not write it.
static bool gives_way(const mezzo_graph *g, const int *last, const int *shared, size_t i, int root, int out) {
    const int until = g->nodes[i].until;
    if (until <= (int)i)
        return last[root] == (int)i;
    bool read = last[root] != until || last[out] != until;
    for (int k = (int)i + 1; k <= until && !read; ++k)
        read = reads(g, shared, &g->nodes[k], root, -1);
    return !read;
}

// Lets an output take its input's bytes where the op can work in place and no later node reads the input.
static void share_in_place(const mezzo_graph *g, int *last, int *shared) {
    for (size_t i = 0; i < g->n_nodes; ++i) {
        const mz_node *n = &g->nodes[i];
        int slot = mz_op_reuses(n->op), taker = mz_op_replaces(n->op);
        if (slot < 0 || slot >= n->n_in || n->in[slot] < 0 || taker >= n->n_out || n->out[taker] < 0)
            continue;
        const mz_value *out = &g->values[n->out[taker]];
        int root = root_of(g, shared, n->in[slot]);
        const mz_value *in = &g->values[root];
        if (out->kind != MZ_VALUE_TEMP || in->kind != MZ_VALUE_TEMP ||
            !gives_way(g, last, shared, i, root, n->out[taker]) ||
            mz_shape_count(&in->shape) != mz_shape_count(&out->shape) || bytes_of(in) != bytes_of(out) ||
            !mz_storage_equal(&in->storage, &out->storage) || out->dtype != g->values[n->in[slot]].dtype ||
            reads(g, shared, n, root, slot))
            continue;
        shared[n->out[taker]] = root;
        last[root] = last[n->out[taker]];
    }
}

static void extend(int *last, int until) {
    *last = until > *last ? until : *last;
}

// Finds the last node that reads each root; n_nodes for outputs. In-place sharing extends a root's life. A root that
// the second stream reads lives SLACK nodes longer, because that node may run late. A root of a call that may fuse with
// a later one lives until that one.
static void last_reads(const mezzo_graph *g, const mz_stream_plan *streams, const int *shared, int *last) {
    for (size_t v = 0; v < g->n_values; ++v)
        last[v] = -1;
    for (size_t i = 0; i < g->n_nodes; ++i)
        for (int pass = 0; pass < 2; ++pass) {
            const mz_node *n = &g->nodes[i];
            int count = pass ? n->n_out : n->n_in;
            const int *list = pass ? n->out : n->in;
            int until = (int)i + (streams && !pass && streams->stream[i] == 1 ? SLACK : 0);
            until = until > n->until ? until : n->until;
            until = until < (int)g->n_nodes ? until : (int)g->n_nodes - 1;
            for (int k = 0; k < count; ++k) {
                if (list[k] < 0)
                    continue;
                extend(&last[root_of(g, shared, list[k])], until);
                if (g->values[list[k]].scaling != MZ_SCALING_NONE)
                    extend(&last[root_of(g, shared, g->values[list[k]].scale)], until);
            }
        }
    for (size_t v = 0; v < g->n_values; ++v)
        if (g->values[v].keep)
            last[root_of(g, shared, (int)v)] = (int)g->n_nodes;
}

// Finds the first node that writes part of each root, or after which the second stream could write it; INT_MAX: none.
static void first_writes(const mezzo_graph *g, const mz_stream_plan *streams, const int *shared, int *first) {
    for (size_t v = 0; v < g->n_values; ++v)
        first[v] = INT_MAX;
    for (size_t i = g->n_nodes; i-- > 0;)
        for (int k = 0; k < g->nodes[i].n_out; ++k) {
            int *at = g->nodes[i].out[k] >= 0 ? &first[root_of(g, shared, g->nodes[i].out[k])] : NULL;
            int since = streams ? streams->since[i] : (int)i;
            if (at && since < *at)
                *at = since;
        }
}

static int larger_first(const void *a, const void *b) {
    const life *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->value - y->value;
}

static int longest_first(const void *a, const void *b) {
    const life *x = a, *y = b;
    int lives[] = {x->last - x->first, y->last - y->first};
    return lives[0] != lives[1] ? lives[1] - lives[0] : larger_first(a, b);
}

static int earliest_first(const void *a, const void *b) {
    const life *x = a, *y = b;
    return x->first != y->first ? x->first - y->first : larger_first(a, b);
}

static int lower_first(const void *a, const void *b) {
    const life *x = *(life *const *)a, *y = *(life *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->value - y->value;
}

// --- the gradient buffer ---------------------------------------------------------------------------------------------
static void occupy(life *lives, size_t *n, int value, size_t from, size_t to, int first, int last) {
    lives[(*n)++] = (life){value, to - from, first, last, from};
}

// Adds the lives of the gradient buffer: gradients from their first write on, and always the bytes between and after
// them. `lives` has memory for two entries a parameter and one more.
static void occupy_gradients(const mezzo_graph *g, const mz_gradient_room *room, const int *first, life *lives,
                             size_t *n, life **sorted) {
    const int end = (int)g->n_nodes;
    size_t from = 0, count = 0;
    for (size_t v = 0; v < g->n_values; ++v) {
        const mz_value *x = &g->values[v];
        if (x->kind != MZ_VALUE_GRAD || x->alias >= 0 || room->offset[x->param] == SIZE_MAX || first[v] == INT_MAX)
            continue;
        size_t at = room->offset[x->param];
        occupy(lives, n, (int)v, at, at + (size_t)mz_stored_count(&x->shape, &x->storage) * sizeof(float), first[v],
               end);
    }
    for (; count < *n; ++count)
        sorted[count] = &lives[count];
    qsort(sorted, count, sizeof *sorted, lower_first);
    for (size_t i = 0; i < count; ++i) {
        if (sorted[i]->offset > from)
            occupy(lives, n, -1, from, sorted[i]->offset, 0, end);
        from = sorted[i]->offset + sorted[i]->bytes;
    }
    if (room->bytes > from)
        occupy(lives, n, -1, from, room->bytes, 0, end);
    occupy(lives, n, -1, room->bytes, room->bytes, 0, end); // no value crosses the buffer's end
}

// Adds the lives of the shards of scattered gradients' sums.
static void occupy_parts(const mezzo_graph *g, const mz_gradient_room *room, life *lives, size_t *n) {
    const int end = (int)g->n_nodes;
    for (int k = 0; k < room->n_parts; ++k)
        occupy(lives, n, -1, room->part[k].from, room->part[k].to, room->part[k].first, end);
    occupy(lives, n, -1, room->bytes, room->bytes, 0, end); // no value crosses the buffer's end
}

// Extends the lives of scattered gradients, which lie among the other values.
static void keep_gradients(const mezzo_graph *g, const mz_gradient_room *room, int *last) {
    const int end = (int)g->n_nodes - 1;
    for (size_t v = 0; v < g->n_values; ++v) {
        const mz_value *x = &g->values[v];
        if (x->kind != MZ_VALUE_GRAD || x->alias >= 0)
            continue;
        const int until = room->until[x->param] + (room->late ? SLACK : 0);
        extend(&last[v], until < end ? until : end);
    }
}

static bool is_placed(const mz_value *v, bool scattered) {
    return v->kind == MZ_VALUE_TEMP || (scattered && v->kind == MZ_VALUE_GRAD);
}

// --- the pass --------------------------------------------------------------------------------------------------------
typedef struct scratch {
    int *shared, *first, *last; // per value
    life *lives, **sorted;
    mz_places places;
    size_t given;        // number of lives at fixed offsets
    bool scattered;      // the plan places gradients, too
    const size_t *least; // the smallest arena of the orders so far
} scratch;

static bool open_scratch(const mezzo_graph *g, int parts, mz_plan *plan, scratch *s) {
    const size_t lives = g->n_values + 2 * g->n_params + (size_t)parts + 2;
    *s = (scratch){
        .shared = mz_alloc(g->n_values + 1, sizeof *s->shared),
        .first = mz_alloc(g->n_values + 1, sizeof *s->first),
        .last = mz_alloc(g->n_values + 1, sizeof *s->last),
        .lives = mz_alloc(lives, sizeof *s->lives),
        .sorted = mz_alloc(lives, sizeof(life *)),
    };
    plan->offset = mz_alloc(g->n_values + 1, sizeof *plan->offset);
    return mz_places_open(&s->places, lives, g->n_nodes + 1) == MEZZO_OK && s->shared && s->first && s->last &&
           s->lives && s->sorted && plan->offset;
}

static void close_scratch(scratch *s) {
    MZ_FREE(s->shared, s->first, s->last, s->lives, s->sorted);
    mz_places_close(&s->places);
}

static void find_lives(const mezzo_graph *g, const mz_stream_plan *streams, scratch *s) {
    for (size_t v = 0; v < g->n_values; ++v)
        s->shared[v] = -1;
    last_reads(g, streams, s->shared, s->last);
    share_in_place(g, s->last, s->shared);
    last_reads(g, streams, s->shared, s->last);
    first_writes(g, streams, s->shared, s->first);
}

static size_t life_bytes(const scratch *s, const mz_value *x) {
    const size_t bytes = bytes_of(x), least = s->least && x->kind == MZ_VALUE_GRAD ? s->least[x->param] : 0;
    return bytes > least ? bytes : least;
}

static size_t collect_lives(const mezzo_graph *g, scratch *s, mz_plan *plan) {
    size_t n = s->given;
    for (size_t v = 0; v < g->n_values; ++v) {
        const mz_value *x = &g->values[v];
        plan->offset[v] = SIZE_MAX;
        if (x->kind == MZ_VALUE_INPUT)
            *(x->state ? &plan->state : &plan->inputs) += bytes_of(x);
        if (!is_placed(x, s->scattered) || s->first[v] == INT_MAX || s->last[v] < 0)
            continue;
        if (root_of(g, s->shared, (int)v) == (int)v)
            s->lives[n++] = (life){(int)v, life_bytes(s, x), s->first[v], s->last[v], 0};
        if (x->alias < 0)
            plan->unshared += bytes_of(x);
    }
    return n;
}

static mezzo_status place_in_order(scratch *s, size_t n, int (*order)(const void *, const void *), mz_plan *plan) {
    plan->arena = plan->borrowed = 0;
    qsort(s->lives + s->given, n - s->given, sizeof *s->lives, order);
    mz_places_clear(&s->places);
    for (size_t i = 0; i < s->given; ++i)
        MEZZO_TRY(mz_places_take(&s->places, &s->lives[i]));
    for (size_t i = s->given; i < n; ++i) {
        life *x = &s->lives[i];
        x->offset = mz_places_lowest(&s->places, x);
        MEZZO_TRY(mz_places_take(&s->places, x));
        plan->offset[x->value] = x->offset;
        size_t end = x->offset + x->bytes;
        size_t *most = end > plan->gradients ? &plan->arena : &plan->borrowed;
        end -= end > plan->gradients ? plan->gradients : 0;
        *most = end > *most ? end : *most;
    }
    return MEZZO_OK;
}

static mezzo_status place_values(const mezzo_graph *g, scratch *s, mz_plan *plan) {
    static int (*const orders[])(const void *, const void *) = {larger_first, longest_first, earliest_first};
    const size_t n = collect_lives(g, s, plan);
    size_t best = 0, least = SIZE_MAX;
    for (size_t i = 0; i < MZ_COUNT(orders); ++i) {
        MEZZO_TRY(place_in_order(s, n, orders[i], plan));
        best = plan->arena < least ? i : best;
        least = plan->arena < least ? plan->arena : least;
    }
    if (best != MZ_COUNT(orders) - 1)
        MEZZO_TRY(place_in_order(s, n, orders[best], plan));
    for (size_t v = 0; v < g->n_values; ++v) {
        int root = root_of(g, s->shared, (int)v);
        if (is_placed(&g->values[v], s->scattered) && is_placed(&g->values[root], s->scattered) &&
            plan->offset[root] != SIZE_MAX)
            plan->offset[v] = plan->offset[root] + view_offset(g, s->shared, (int)v);
    }
    return MEZZO_OK;
}

mezzo_status mz_graph_plan(const mezzo_graph *g, const mz_stream_plan *streams, const mz_gradient_room *room,
                           mz_plan *plan) {
    scratch s;
    memset(plan, 0, sizeof *plan);
    if (!open_scratch(g, room != NULL ? room->n_parts : 0, plan, &s)) {
        close_scratch(&s);
        mz_plan_free(plan);
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    }
    find_lives(g, streams, &s);
    s.scattered = room != NULL && room->until != NULL;
    s.least = s.scattered ? room->least : NULL;
    if (s.scattered)
        keep_gradients(g, room, s.last);
    if (s.scattered && room->part != NULL)
        occupy_parts(g, room, s.lives, &s.given);
    if (room != NULL && room->offset != NULL)
        occupy_gradients(g, room, s.first, s.lives, &s.given, s.sorted);
    plan->gradients = s.given > 0 ? room->bytes : 0;
    mezzo_status status = place_values(g, &s, plan);
    plan->looks = s.places.looks;
    close_scratch(&s);
    if (status != MEZZO_OK)
        mz_plan_free(plan);
    return status;
}

void mz_plan_free(mz_plan *plan) {
    mz_free(plan->offset);
    memset(plan, 0, sizeof *plan);
}
