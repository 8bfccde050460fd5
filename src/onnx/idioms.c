// Recognizes idioms: matches the patterns of idioms.def with the nodes that make a value.
#include "onnx/idioms.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "onnx/convert.h"

// Makes output 0 of the node where the pattern ends. In the draft it checks the pattern's further conditions, and
// removes values that are not needed from the match. *done false: the node is converted by itself.
typedef mezzo_status emit_fn(mz_onnx_call *call, mz_onnx_match *match, bool *done);
static emit_fn gelu, silu, swiglu, linear, layer_norm, rms_norm, group_norm, rope, attention;

struct mz_onnx_idiom {
    const char *name, *pattern;
    emit_fn *emit;
};
static const struct mz_onnx_idiom idioms[] = {
#define RULE(...)
#define IDIOM(name, pattern, emit) {#name, pattern, emit},
#include "onnx/idioms.def"
};
static const struct {
    const char *name, *pattern;
} rules[] = {
#define RULE(name, pattern) {#name, pattern},
#define IDIOM(...)
#include "onnx/idioms.def"
};

size_t mz_onnx_idiom_count(void) {
    return MZ_COUNT(idioms);
}

int mezzo_onnx_recognized(const mezzo_onnx *onnx, const char *idiom) {
    int n = 0;
    for (size_t i = 0; onnx && idiom && i < MZ_COUNT(idioms); i++)
        n += strcmp(idioms[i].name, idiom) == 0 ? onnx->recognized[i] : 0;
    return n;
}

// --- matching ------------------------------------------------------------------------------------------------------
typedef struct matcher {
    mz_onnx_call *call;
    mz_onnx_match match;
    int steps; // steps that are left, so that matching ends for every file
} matcher;
static bool match_term(matcher *m, const char *p, mz_onnx_value *v);

static const MzPb__Node *producer(const matcher *m, const mz_onnx_value *v) {
    return v->producer < 0 ? NULL : m->call->build->onnx->model->graph->node[v->producer];
}

static mz_onnx_value *input_of(const matcher *m, const MzPb__Node *node, size_t i) {
    return i < node->n_input && node->input[i][0] != '\0' ? mz_onnx_find(m->call->build->onnx, node->input[i]) : NULL;
}

// Returns the value that enters a chain of nodes which return their input.
static mz_onnx_value *see_through(const matcher *m, mz_onnx_value *v) {
    const MzPb__Node *node;
    for (int steps = 0; steps < 64 && (node = producer(m, v)) != NULL; steps++) {
        mz_onnx_value *x = input_of(m, node, 0);
        const bool gives_it = strcmp(node->op_type, "Identity") == 0 || strcmp(node->op_type, "Cast") == 0 ||
                              strcmp(node->op_type, "Dropout") == 0;
        if (!gives_it || !x || x->kind != MZ_ONNX_VALUE || x->base.id != v->base.id || x->negated != v->negated)
            break;
        v = x;
    }
    return v;
}

static const char *skip_term(const char *p) {
    int depth = 0;
    for (; *p != '\0' && (depth > 0 || (*p != ',' && *p != ')')); p++)
        depth += (*p == '(') - (*p == ')');
    return p;
}

// Checks attributes that a pattern does not mention: they must have their usual values.
static bool usual_form(const matcher *m, const MzPb__Node *node) {
    const mz_onnx_value *x = input_of(m, node, 0);
    const mz_onnx_value *axes = input_of(m, node, 1);
    if (!x)
        return false;
    if (strcmp(node->op_type, "Softmax") == 0)
        return mz_onnx_axis(mz_onnx_int_or(node, "axis", -1), x->rank) == x->rank - 1;
    if (strcmp(node->op_type, "ReduceMean") == 0) {
        const MzPb__Attribute *own = mz_onnx_attribute(node, "axes");
        double axis = own && own->n_ints == 1 ? (double)own->ints[0] : -2;
        if (!own && !(axes && mz_onnx_one_number(axes, &axis)))
            return false;
        return mz_onnx_axis(mz_onnx_integer(axis), x->rank) == x->rank - 1 && mz_onnx_int_or(node, "keepdims", 1);
    }
    if (strcmp(node->op_type, "Transpose") == 0) {
        const MzPb__Attribute *perm = mz_onnx_attribute(node, "perm");
        bool swaps = perm && perm->n_ints == (size_t)x->rank && x->rank >= 2;
        for (int i = 0; swaps && i < x->rank; i++)
            swaps = perm->ints[i] == (i == x->rank - 1 ? i - 1 : i == x->rank - 2 ? i + 1 : i);
        return swaps;
    }
    return true;
}

static bool match_inputs(matcher *m, const char *p, const MzPb__Node *node, bool swapped) {
    const mz_onnx_match before = m->match;
    for (size_t i = 0; *p != ')' && *p != '\0'; i++) {
        mz_onnx_value *x = input_of(m, node, swapped ? 1 - i : i);
        if (!x || !match_term(m, p, x)) {
            m->match = before;
            return false;
        }
        p = skip_term(p);
        p += *p == ',';
    }
    return true;
}

static bool match_node(matcher *m, const char *p, const MzPb__Node *node) {
    const size_t n = strcspn(p, "(");
    if (!node || strlen(node->op_type) != n || memcmp(node->op_type, p, n) != 0 || !usual_form(m, node))
        return false;
    const bool either = strcmp(node->op_type, "Add") == 0 || strcmp(node->op_type, "Mul") == 0;
    return match_inputs(m, p + n + 1, node, false) || (either && match_inputs(m, p + n + 1, node, true));
}

static bool match_rule(matcher *m, const char *p, mz_onnx_value *v) {
    const size_t n = strcspn(p, ",)");
    const mz_onnx_match before = m->match;
    for (size_t i = 0; i < MZ_COUNT(rules); i++) {
        if (strlen(rules[i].name) != n || memcmp(rules[i].name, p, n) != 0)
            continue;
        if (match_term(m, rules[i].pattern, v))
            return true;
        m->match = before;
    }
    return false;
}

static bool match_term(matcher *m, const char *p, mz_onnx_value *v) {
    double number;
    if (m->steps-- <= 0)
        return false;
    if (islower((unsigned char)*p)) {
        mz_onnx_value **bound = &m->match.value[*p - 'a'];
        if (*bound && *bound != v && see_through(m, *bound) != see_through(m, v))
            return false;
        if (p[1] == '=' && !match_term(m, p + 2, v))
            return false;
        *bound = *bound ? *bound : v;
        return true;
    }
    if (*p == '@')
        return match_rule(m, p + 1, v);
    if (*p == '$') {
        if (!mz_onnx_one_number(v, &number))
            return false;
        m->match.number[p[1] - 'a'] = number;
        m->match.known[p[1] - 'a'] = true;
        return true;
    }
    if (isdigit((unsigned char)*p)) {
        const double want = mz_strtod(p, NULL);
        return mz_onnx_one_number(v, &number) && fabs(number - want) <= 1e-5 * fabs(want);
    }
    return match_node(m, p, producer(m, see_through(m, v)));
}

mezzo_status mz_onnx_recognize(mz_onnx_call *call, int node, bool *done) {
    mz_onnx_build *build = call->build;
    *done = false;
    if (!build->draft) {
        mz_onnx_match *found = build->matches[node];
        if (!found)
            return MEZZO_OK;
        build->onnx->recognized[found->idiom - idioms]++;
        return found->idiom->emit(call, found, done);
    }
    for (int i = 0; i < call->n_out && call->out[i]; i++)
        if (i > 0)
            return MEZZO_OK;
    for (size_t i = 0; i < MZ_COUNT(idioms) && !*done; i++) {
        matcher m = {.call = call, .match.idiom = &idioms[i], .steps = 4096};
        if (mz_onnx_known(call) || !match_node(&m, idioms[i].pattern, call->node))
            continue;
        MEZZO_TRY(idioms[i].emit(call, &m.match, done));
        if (!*done)
            continue;
        mz_onnx_match *kept = mz_onnx_take(build, 1, sizeof *kept);
        if (!kept)
            return MEZZO_ERR_MEMORY;
        *kept = m.match;
        build->matches[node] = kept;
    }
    return MEZZO_OK;
}

// --- replacements --------------------------------------------------------------------------------------------------
static mz_onnx_value *value_of(const mz_onnx_match *m, char letter) {
    return m->value[letter - 'a'];
}

static double number_of(const mz_onnx_match *m, char letter, double otherwise) {
    return m->known[letter - 'a'] ? m->number[letter - 'a'] : otherwise;
}

static void forget(mz_onnx_match *m, const char *letters) {
    for (; *letters != '\0'; letters++)
        m->value[*letters - 'a'] = NULL;
}

static const MzPb__Node *producer_of(const mz_onnx_call *call, const mz_onnx_value *v) {
    return v && v->producer >= 0 ? call->build->onnx->model->graph->node[v->producer] : NULL;
}

// Makes one element-wise op of x, in the order in which x is stored.
static mezzo_status one_value(mz_onnx_call *call, mz_onnx_value *x, mezzo_value *v) {
    return mz_onnx_base(call, x, v);
}

static mezzo_status gelu(mz_onnx_call *call, mz_onnx_match *m, bool *done) {
    mz_onnx_value *x = value_of(m, 'x');
    mezzo_value v;
    if (x->kind != MZ_ONNX_VALUE || x->integer)
        return MEZZO_OK;
    if (value_of(m, 't'))
        m->known['t' - 'a'] = true;
    forget(m, "t");
    MEZZO_TRY(one_value(call, x, &v));
    *done = true;
    return mz_onnx_give_as(call, 0, false, x->rank, mezzo_gelu(call->build->g, v, m->known['t' - 'a']), x->perm);
}

static mezzo_status silu(mz_onnx_call *call, mz_onnx_match *m, bool *done) {
    mz_onnx_value *x = value_of(m, 'x');
    mezzo_value v;
    if (x->kind != MZ_ONNX_VALUE || x->integer)
        return MEZZO_OK;
    MEZZO_TRY(one_value(call, x, &v));
    *done = true;
    return mz_onnx_give_as(call, 0, false, x->rank, mezzo_silu(call->build->g, v), x->perm);
}

// Makes silu(gate) · up of the halves of one value. Halves of different values become two element-wise ops.
static mezzo_status swiglu(mz_onnx_call *call, mz_onnx_match *m, bool *done) {
    mezzo_value v;
    if (call->build->draft) {
        const mz_onnx_value *g = value_of(m, 'g'), *u = value_of(m, 'u');
        const MzPb__Node *split = producer_of(call, g);
        if (g->kind != MZ_ONNX_VALUE || u->kind != MZ_ONNX_VALUE || !split || g->producer != u->producer ||
            strcmp(split->op_type, "Split") != 0 || split->n_output != 2 || strcmp(split->output[0], g->name) != 0 ||
            strcmp(split->output[1], u->name) != 0 || g->rank < 1 || g->dim[g->rank - 1] != u->dim[g->rank - 1])
            return MEZZO_OK;
        mz_onnx_value *x = mz_onnx_find(call->build->onnx, split->input[0]);
        if (x->rank != g->rank || x->dim[x->rank - 1] != 2 * g->dim[g->rank - 1])
            return MEZZO_OK;
        forget(m, "gu");
        m->value['x' - 'a'] = x;
    }
    mz_onnx_value *x = value_of(m, 'x');
    MEZZO_TRY(mz_onnx_value_of(call, x, &v));
    *done = true;
    return mz_onnx_give(call, 0, false, x->rank, mezzo_swiglu(call->build->g, v));
}

// Returns whether a weight or a table has one number for each element of x's last dimension.
static bool one_row(const mz_onnx_value *w, const mz_onnx_value *x) {
    return w && w->kind != MZ_ONNX_ABSENT && !w->integer && w->rank >= 1 && w->rank <= x->rank && x->rank > 0 &&
           w->dim[w->rank - 1] == x->dim[x->rank - 1] && mz_onnx_elements(w->rank, w->dim) == x->dim[x->rank - 1];
}

static mezzo_status row_of(mz_onnx_call *call, mz_onnx_value *w, mezzo_value *out) {
    *out = MEZZO_NONE;
    if (!w)
        return MEZZO_OK;
    MEZZO_TRY(mz_onnx_value_of(call, w, out));
    if (w->rank > 1)
        *out = mz_onnx_shaped(call->build->g, *out, 1, &w->dim[w->rank - 1]);
    return MEZZO_OK;
}

// Makes a product with a weight, and the bias of its rows.
static mezzo_status linear(mz_onnx_call *call, mz_onnx_match *m, bool *done) {
    mz_onnx_value *x = value_of(m, 'x'), *w = value_of(m, 'w'), *b = value_of(m, 'b');
    mezzo_value bias;
    if (call->build->draft && (x->kind != MZ_ONNX_VALUE || x->integer || x->rank < 2 || w->kind != MZ_ONNX_WEIGHT ||
                               w->rank != 2 || b->kind != MZ_ONNX_WEIGHT || !one_row(b, value_of(m, 'p'))))
        return MEZZO_OK;
    forget(m, "p");
    MEZZO_TRY(row_of(call, b, &bias));
    *done = true;
    return mz_onnx_linear(call, x, w, bias);
}

static mezzo_status layer_norm(mz_onnx_call *call, mz_onnx_match *m, bool *done) {
    mz_onnx_value *x = value_of(m, 'x'), *w = value_of(m, 'w'), *b = value_of(m, 'b');
    mezzo_value v, weight, bias;
    if (x->kind != MZ_ONNX_VALUE || (w && !one_row(w, x)) || (b && !one_row(b, x)))
        return MEZZO_OK;
    MEZZO_TRY(mz_onnx_value_of(call, x, &v));
    MEZZO_TRY(row_of(call, w, &weight));
    MEZZO_TRY(row_of(call, b, &bias));
    *done = true;
    return mz_onnx_give(call, 0, false, x->rank,
                        mezzo_layernorm(call->build->g, v, weight, bias, (float)number_of(m, 'e', 0)));
}

static mezzo_status rms_norm(mz_onnx_call *call, mz_onnx_match *m, bool *done) {
    mz_onnx_value *x = value_of(m, 'x'), *w = value_of(m, 'o') ? value_of(m, 'o') : value_of(m, 'w');
    mezzo_value v, weight;
    if (x->kind != MZ_ONNX_VALUE || (w && !one_row(w, x)))
        return MEZZO_OK;
    MEZZO_TRY(mz_onnx_value_of(call, x, &v));
    MEZZO_TRY(row_of(call, w, &weight));
    *done = true;
    v = mezzo_rmsnorm_offset(call->build->g, v, weight, value_of(m, 'o') ? 1 : 0, (float)number_of(m, 'e', 0));
    return mz_onnx_give(call, 0, false, x->rank, v);
}

static bool all_equal(const mz_onnx_call *call, const mz_onnx_value *v, double number) {
    const int64_t n = mz_onnx_elements(v->rank, v->dim);
    if ((v->kind != MZ_ONNX_HOST && v->kind != MZ_ONNX_WEIGHT) || n > 1 << 20)
        return false;
    double *numbers = mz_alloc((size_t)n, sizeof *numbers);
    bool same = numbers != NULL;
    if (same && v->kind == MZ_ONNX_HOST)
        memcpy(numbers, v->numbers, (size_t)n * sizeof *numbers);
    else
        same = same && mz_onnx_floats(call->build->onnx, v->tensor, numbers) == MEZZO_OK;
    for (int64_t i = 0; i < n && same; i++)
        same = numbers[i] == number;
    mz_free(numbers);
    return same;
}

// Makes a norm of groups of channels as images of as many channels, without weights, and then a weight for each
// channel.
static mezzo_status group_norm(mz_onnx_call *call, mz_onnx_match *m, bool *done) {
    mz_onnx_value *x = value_of(m, 'x'), *w = value_of(m, 'w'), *b = value_of(m, 'b');
    mezzo_value v, weight, bias;
    int perm[MEZZO_MAX_RANK];
    if (call->build->draft) {
        const mz_onnx_value *o = value_of(m, 'o'), *z = value_of(m, 'z'), *i = value_of(m, 'i');
        if (x->kind != MZ_ONNX_VALUE || x->rank < 3 || i->rank < 2 || i->dim[0] != x->dim[0] ||
            !all_equal(call, o, 1) || !all_equal(call, z, 0) || x->dim[1] % i->dim[1] != 0 ||
            mz_onnx_elements(w->rank, w->dim) != x->dim[1] || mz_onnx_elements(b->rank, b->dim) != x->dim[1] ||
            w->rank < x->rank - 1 || w->dim[w->rank - x->rank + 1] != x->dim[1] || b->rank != w->rank ||
            b->dim[w->rank - x->rank + 1] != x->dim[1] || call->out[0]->kind != MZ_ONNX_ABSENT)
            return MEZZO_OK;
        m->number['g' - 'a'] = (double)i->dim[1];
        m->number['e' - 'a'] = mz_onnx_float_or(producer_of(call, i), "epsilon", 1e-5);
        forget(m, "ozi");
    }
    for (int i = 0; i < x->rank; i++)
        perm[i] = i == 0 ? 0 : i == 1 ? x->rank - 1 : i - 1;
    MEZZO_TRY(mz_onnx_ordered(call, x, x->rank, perm, &v));
    MEZZO_TRY(mz_onnx_value_of(call, w, &weight));
    MEZZO_TRY(mz_onnx_value_of(call, b, &bias));
    mezzo_graph *g = call->build->g;
    weight = mz_onnx_shaped(g, weight, 1, &x->dim[1]);
    bias = mz_onnx_shaped(g, bias, 1, &x->dim[1]);
    v = mezzo_group_norm(g, v, weight, bias, MEZZO_NONE, (int)m->number['g' - 'a'], (float)m->number['e' - 'a'], false);
    *done = true;
    return mz_onnx_give_as(call, 0, false, x->rank, v, perm);
}

// Returns whether a node's output is half 0 or 1 of x's last dimension.
static bool is_half(mz_onnx_call *call, const mz_onnx_value *part, const mz_onnx_value *x, int half) {
    const MzPb__Node *node = producer_of(call, part);
    if (x->rank < 1 || part->rank != x->rank || 2 * part->dim[x->rank - 1] != x->dim[x->rank - 1])
        return false;
    if (strcmp(node->op_type, "Split") == 0)
        return node->n_output == 2 && strcmp(node->output[half], part->name) == 0;
    double first = -1;
    const mz_onnx_value *begin = node->n_input > 1 ? mz_onnx_find(call->build->onnx, node->input[1]) : NULL;
    return mz_onnx_one_number(begin, &first) && first == (half ? (double)part->dim[x->rank - 1] : 0);
}

static mezzo_status rope(mz_onnx_call *call, mz_onnx_match *m, bool *done) {
    mz_onnx_value *x = value_of(m, 'x');
    const mz_onnx_value *c = value_of(m, 'c'), *s = value_of(m, 's');
    if (call->build->draft &&
        (x->kind != MZ_ONNX_VALUE || x->rank != 4 || c->kind != MZ_ONNX_HOST || s->kind != MZ_ONNX_HOST ||
         !is_half(call, value_of(m, 'f'), x, 1) || !is_half(call, value_of(m, 'h'), x, 0)))
        return MEZZO_OK;
    forget(m, "fh");
    return mz_onnx_rope(call, x, c, s, done);
}

// Returns whether repeated heads share keys: [B, Hkv, S, D] viewed as [B, Hkv, 1, S, D], which then is [B, H, S, D].
static bool shares_heads(const mz_onnx_value *shared, const mz_onnx_value *longer, const mz_onnx_value *q,
                         int64_t positions, int64_t width) {
    return shared->rank == 4 && longer->rank == 5 && longer->dim[2] == 1 && longer->dim[1] == shared->dim[1] &&
           longer->dim[3] == shared->dim[2] && shared->dim[0] == q->dim[0] && shared->dim[2] == positions &&
           shared->dim[3] == width && shared->dim[1] > 0 && q->dim[1] % shared->dim[1] == 0;
}

static bool same_dims(const mz_onnx_value *v, int64_t b, int64_t h, int64_t t, int64_t d) {
    return v->rank == 4 && v->dim[0] == b && v->dim[1] == h && v->dim[2] == t && v->dim[3] == d;
}

// Checks, in the draft, the shapes in the match, and which of two forms keys and values have.
static bool check_attention(mz_onnx_match *m) {
    const mz_onnx_value *q = value_of(m, 'q'), *keys = value_of(m, 'o'), *values = value_of(m, 'z'),
                        *r = value_of(m, 'r'), *h = value_of(m, 'h'), *k = value_of(m, 'k'), *w = value_of(m, 'w');
    if (q->kind != MZ_ONNX_VALUE || keys->kind != MZ_ONNX_VALUE || values->kind != MZ_ONNX_VALUE || q->rank != 4)
        return false;
    const int64_t b = q->dim[0], heads = q->dim[1], d = q->dim[3], s = keys->dim[3];
    if (!same_dims(keys, b, heads, d, s) || values->rank != 4 || !same_dims(values, b, heads, s, values->dim[3]))
        return false;
    if ((h || k) && (!r || r->dim[r->rank - 1] != d || r->dim[r->rank - 2] != s))
        return false;
    if (h && !shares_heads(h, value_of(m, 'p'), q, s, d))
        return false;
    if (k && !same_dims(k, b, heads, s, d))
        return false;
    if (w && !shares_heads(w, value_of(m, 'y'), q, s, values->dim[3]))
        return false;
    return (h != NULL) == (w != NULL) && (!h || h->dim[1] == w->dim[1]);
}

static mezzo_status attention(mz_onnx_call *call, mz_onnx_match *m, bool *done) {
    mz_onnx_value *mask = value_of(m, 'm'), *c = value_of(m, 'c');
    if (call->build->draft) {
        if (!check_attention(m) || (c && !(number_of(m, 'x', 0) <= -1e4)))
            return MEZZO_OK;
        m->known['n' - 'a'] = value_of(m, 'n') != NULL;
        forget(m, "orpyzn");
    }
    mz_onnx_value *turned = value_of(m, 't'), *shared = value_of(m, 'h'), *plain = value_of(m, 'k');
    const double scale = number_of(m, 'a', 1) * number_of(m, 'b', 1) * number_of(m, 's', 1) / number_of(m, 'i', 1) /
                         number_of(m, 'j', 1) / number_of(m, 'd', 1);
    return mz_onnx_attend(call,
                          &(mz_onnx_attention){.q = value_of(m, 'q'),
                                               .k = turned   ? turned
                                                    : shared ? shared
                                                             : plain,
                                               .v = value_of(m, 'v') ? value_of(m, 'v') : value_of(m, 'w'),
                                               .k_turned = turned != NULL,
                                               .scale = scale,
                                               .mask = c ? c : mask,
                                               .guarded = m->known['n' - 'a']},
                          done);
}
