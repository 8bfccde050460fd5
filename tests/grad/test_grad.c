// The gradient of every op against finite differences, in FP64 on the reference. One graph maker for each forward row
// of ops.def: an op without one does not compile.
//
// Masters are FP32, so a parameter is a multiple of 2^-8 below 2 and is moved by h = 2^-9 and h/2: every perturbed
// value is exact. With D(h) = (f(x+h) - f(x-h))/2h, Richardson's (4·D(h/2) - D(h))/3 is off by h⁴·f⁽⁵⁾/480 =
// 2^-36·f⁽⁵⁾/480.
#include <math.h>

#include "base/base.h"
#include "graph/op.h"
#include "mezzo/program.h"
#include "test.h"

enum { MAX_INPUTS = 4 };

typedef struct maker {
    mezzo_graph *g;
    struct {
        const char *name;
        mezzo_dtype dtype;
        int64_t count;
        int modulus; // integers 0 … modulus-1, every fifth -1 where `ignored`
        bool ignored;
    } inputs[MAX_INPUTS];
    int n_inputs;
} maker;

#define DIMS(...)                                                                                                      \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) {                                     \
        __VA_ARGS__                                                                                                    \
    }

static mezzo_value param(maker *m, const char *name, int rank, const int64_t *shape) {
    return mezzo_param(m->g, name, (mezzo_init){.kind = MEZZO_INIT_ZERO}, rank, shape);
}

// Integers of several rows.
static mezzo_value integer_rows(maker *m, const char *name, int modulus, int64_t rows, int64_t length) {
    m->inputs[m->n_inputs].name = name;
    m->inputs[m->n_inputs].dtype = MEZZO_I32;
    m->inputs[m->n_inputs].count = rows * length;
    m->inputs[m->n_inputs++].modulus = modulus;
    return mezzo_input(m->g, name, MEZZO_I32, 2, (int64_t[]){rows, length});
}

static mezzo_value integers(maker *m, const char *name, int modulus, bool ignored, int64_t count) {
    m->inputs[m->n_inputs].name = name;
    m->inputs[m->n_inputs].dtype = MEZZO_I32;
    m->inputs[m->n_inputs].count = count;
    m->inputs[m->n_inputs].modulus = modulus;
    m->inputs[m->n_inputs++].ignored = ignored;
    return mezzo_input(m->g, name, MEZZO_I32, 1, &count);
}

// loss = Σ y·c for fixed c, so that every element of y has a gradient of its own.
static void make_loss(maker *m, mezzo_value y) {
    int64_t shape[MEZZO_MAX_RANK], count = 1;
    int rank = mezzo_value_rank(m->g, y);
    for (int i = 0; i < rank; i++)
        count *= shape[i] = mezzo_value_dim(m->g, y, i);
    m->inputs[m->n_inputs].name = "c";
    m->inputs[m->n_inputs].dtype = MEZZO_F32;
    m->inputs[m->n_inputs++].count = count;
    mezzo_value c = mezzo_input(m->g, "c", MEZZO_F32, rank, shape);
    mezzo_graph_loss(m->g, mezzo_sum(m->g, mezzo_mul(m->g, y, c), -1));
}

// --- one graph maker an op: variants 0, 1, … until MEZZO_NONE ------------------------------------------------------
#define OP(name, ...)          static mezzo_value make_##name(maker *m, int variant);
#define OP_BACKWARD(name, ...) // has no gradient of its own
#define OP_STATE(name, ...)
#include "graph/ops.def"
#undef OP

static mezzo_value make_linear(maker *m, int variant) {
    mezzo_value x = param(m, "x", DIMS(3, 5)), w = param(m, "w", DIMS(4, 5));
    mezzo_value bias = variant > 0 ? param(m, "b", DIMS(4)) : MEZZO_NONE;
    mezzo_value y = mezzo_linear(m->g, x, w, bias);
    switch (variant) {
    case 0:
    case 1:
        return y;
    case 2: // as fused: activation, then the residual around the second layer
        y = mezzo_gelu(m->g, y, true);
        return mezzo_add(m->g, x, mezzo_linear(m->g, y, param(m, "w2", DIMS(5, 4)), MEZZO_NONE));
    case 3:
        return mezzo_linear(m->g, mezzo_silu(m->g, y), param(m, "w2", DIMS(2, 4)), param(m, "b2", DIMS(2)));
    case 4: // the same weight twice
        return mezzo_linear(m->g, mezzo_linear(m->g, y, param(m, "w2", DIMS(5, 4)), MEZZO_NONE), w, bias);
    default:
        return MEZZO_NONE;
    }
}

static mezzo_value make_matmul(maker *m, int variant) {
    bool ta = variant & 1, tb = variant & 2;
    if (variant >= 4)
        return MEZZO_NONE;
    mezzo_value a = ta ? param(m, "a", DIMS(2, 4, 3)) : param(m, "a", DIMS(2, 3, 4));
    mezzo_value b = tb ? param(m, "b", DIMS(2, 2, 4)) : param(m, "b", DIMS(2, 4, 2));
    return mezzo_matmul(m->g, a, b, ta, tb);
}

// Shapes alike, b and then a and then both repeating, a value with itself; results of ops repeat too, and not only
// parameters.
static mezzo_value make_binary(maker *m, int variant, mezzo_value (*op)(mezzo_graph *, mezzo_value, mezzo_value)) {
    static const struct {
        int rank_a, rank_b;
        int64_t a[MEZZO_MAX_RANK], b[MEZZO_MAX_RANK];
    } shapes[] = {
        {3, 3, {2, 3, 4}, {2, 3, 4}},
        {3, 2, {2, 3, 4}, {3, 4}},
        {3, 1, {2, 3, 4}, {4}},
        {1, 3, {4}, {2, 3, 4}},
        {3, 2, {2, 1, 4}, {3, 1}},
        {2, 2, {2, 1}, {1, 3}},
        {1, 2, {1}, {2, 3}},
        {3, 2, {1, 3, 2}, {3, 2}},
        {4, 4, {2, 1, 3, 1}, {1, 2, 3, 2}},
        {6, 6, {2, 1, 2, 1, 2, 1}, {1, 2, 2, 2, 1, 2}},
        {1, 2, {3}, {2, 3}},
    };
    int n = (int)MZ_COUNT(shapes);
    if (variant == 2 * n) {
        mezzo_value a = param(m, "a", DIMS(2, 3, 4));
        return op(m->g, a, op(m->g, a, a));
    }
    if (variant > 2 * n)
        return MEZZO_NONE;
    mezzo_value a = param(m, "a", shapes[variant % n].rank_a, shapes[variant % n].a);
    mezzo_value b = param(m, "b", shapes[variant % n].rank_b, shapes[variant % n].b);
    return variant < n ? op(m->g, a, b) : op(m->g, mezzo_scale(m->g, a, 0.5f), mezzo_scale(m->g, b, -1.5f));
}

// --- element.def: a row is its own graph maker ---------------------------------------------------------------------
// In POSITIVE domains an operand is an exponential. 0.90234375 lies between two start values' reach.
#define REAL(x)       (x)
#define POSITIVE(x)   mezzo_exp(m->g, mezzo_scale(m->g, x, 0.25f))
#define PLAIN(op, x)  op(m->g, x)
#define FACTOR(op, x) op(m->g, x, -0.3f)
#define RANGE(op, x)  op(m->g, x, -0.90234375f, 1.10234375f)
#define UNARY(name, told, saved, class, tolerance, padding, domain, ...)                                               \
    static mezzo_value make_##name(maker *m, int variant) {                                                            \
        return variant < 1 ? told(mezzo_##name, domain(param(m, "x", DIMS(5, 4)))) : MEZZO_NONE;                       \
    }
#define UNARY_OWN UNARY
// Has the gradient 0 between its steps, none of which 1/3 of a start value reaches; what it is added to has another.
#define UNARY_FLAT(name, told, ...)                                                                                    \
    static mezzo_value make_##name(maker *m, int variant) {                                                            \
        if (variant > 0)                                                                                               \
            return MEZZO_NONE;                                                                                         \
        mezzo_value y = told(mezzo_##name, mezzo_scale(m->g, param(m, "x", DIMS(5, 4)), 1.0f / 3));                    \
        return mezzo_add(m->g, y, param(m, "w", DIMS(5, 4)));                                                          \
    }
#define BINARY(name, class, tolerance, padding, domain, ...)                                                           \
    static mezzo_value name##_of(mezzo_graph *g, mezzo_value a, mezzo_value b) {                                       \
        maker to = {.g = g}, *m = &to;                                                                                 \
        (void)m;                                                                                                       \
        return mezzo_##name(g, domain(a), domain(b));                                                                  \
    }                                                                                                                  \
    static mezzo_value make_##name(maker *m, int variant) {                                                            \
        return make_binary(m, variant, name##_of);                                                                     \
    }
#define BINARY_OWN(name, ...) BINARY(name, , , , REAL)
// Conditions of inputs, which have no gradient, choose between parameters.
static mezzo_value make_choice(maker *m, int variant, mezzo_value (*compare)(mezzo_graph *, mezzo_value, mezzo_value)) {
    if (variant > 1)
        return MEZZO_NONE;
    mezzo_value one = integers(m, "one", 3, false, 4), two = integer_rows(m, "two", 2, 3, 4);
    mezzo_value a = mezzo_silu(m->g, param(m, "a", DIMS(2, 3, 4))), b = param(m, "b", DIMS(2, 1, 1));
    return mezzo_where(m->g, compare(m->g, one, two), variant ? b : a, variant ? a : b);
}
#define COMPARE(name, ...)                                                                                             \
    static mezzo_value make_##name(maker *m, int variant) {                                                            \
        return make_choice(m, variant, mezzo_##name);                                                                  \
    }
#define TERNARY(name, ...)                                                                                             \
    static mezzo_value make_##name(maker *m, int variant) {                                                            \
        return make_choice(m, variant, mezzo_less);                                                                    \
    }
#include "graph/element.def"

static mezzo_value make_gelu(maker *m, int variant) {
    return variant < 2 ? mezzo_gelu(m->g, param(m, "x", DIMS(5, 4)), variant) : MEZZO_NONE;
}

static mezzo_value make_layernorm(maker *m, int variant) {
    mezzo_value x = param(m, "x", DIMS(3, 6));
    mezzo_value weight = variant != 1 ? param(m, "w", DIMS(6)) : MEZZO_NONE;
    mezzo_value bias = variant != 1 && variant != 2 ? param(m, "b", DIMS(6)) : MEZZO_NONE;
    if (variant < 3)
        return mezzo_layernorm(m->g, x, weight, bias, 1e-3f);
    if (variant > 3)
        return MEZZO_NONE;
    // A residual sum before the norm and around it, as in a Transformer: fused in forward and in backward.
    mezzo_value s = mezzo_add(m->g, x, param(m, "r", DIMS(3, 6)));
    return mezzo_add(m->g, s, mezzo_layernorm(m->g, s, weight, bias, 1e-3f));
}

static mezzo_value make_rmsnorm(maker *m, int variant) {
    mezzo_value x = param(m, "x", DIMS(3, 6));
    mezzo_value weight = variant != 1 ? param(m, "w", DIMS(6)) : MEZZO_NONE;
    if (variant < 2)
        return mezzo_rmsnorm(m->g, x, weight, 1e-3f);
    if (variant == 3)
        return mezzo_rmsnorm_offset(m->g, x, weight, 1, 1e-3f);
    if (variant > 3)
        return MEZZO_NONE;
    mezzo_value s = mezzo_add(m->g, x, param(m, "r", DIMS(3, 6))); // as in layernorm's last variant
    return mezzo_add(m->g, s, mezzo_rmsnorm(m->g, s, weight, 1e-3f));
}

// Has no input to differentiate; what reads it has: some heads turned, some dimensions of each, at positions of their
// own.
static mezzo_value make_rope_table(maker *m, int variant) {
    static const mezzo_rope_scaling kinds[] = {{0},
                                               {MEZZO_ROPE_LINEAR, 2, 0, 0, 0, 0},
                                               {MEZZO_ROPE_LLAMA3, 8, 1, 4, 16, 0},
                                               {MEZZO_ROPE_YARN, 4, 1, 32, 16, 0}};
    if (variant >= (int)MZ_COUNT(kinds))
        return MEZZO_NONE;
    mezzo_value table =
        mezzo_rope_table_scaled(m->g, integers(m, "positions", 5, false, 4), 4, 2, 100, &kinds[variant]);
    return mezzo_rope(m->g, param(m, "x", DIMS(2, 4, 12)), table, 3, 2, false);
}

static mezzo_value make_rope(maker *m, int variant) {
    if (variant > 2)
        return MEZZO_NONE;
    if (variant == 2)
        mezzo_documents_begin(m->g, integer_rows(m, "positions", 2, 2, 3));
    mezzo_value table = mezzo_rope_table(m->g, MEZZO_NONE, 3, 4, 100);
    mezzo_value x = mezzo_silu(m->g, param(m, "x", DIMS(2, 3, 12)));
    return mezzo_rope(m->g, x, table, 2, 2, variant == 1);
}

static mezzo_value make_swiglu(maker *m, int variant) {
    mezzo_value x = variant < 3 ? param(m, "x", DIMS(3, 8)) : MEZZO_NONE;
    return variant == 0 ? mezzo_swiglu(m->g, x) : variant < 3 ? mezzo_geglu(m->g, x, variant == 2) : MEZZO_NONE;
}

// Logits far enough apart that no difference changes who is chosen; grouped, biased, or plain.
static mezzo_value make_route(maker *m, int variant) {
    static const mezzo_routing routings[] = {{2, 1, 1, true, 1, false}, {2, 1, 1, false, 2.5f, false},
                                             {3, 2, 1, true, 2, false}, {1, 1, 1, false, 1, false},
                                             {3, 1, 1, true, 1, true},  {2, 1, 1, false, 1.5f, true}};
    if (variant >= (int)MZ_COUNT(routings))
        return MEZZO_NONE;
    mezzo_value weights, experts, bias = variant == 2 ? param(m, "bias", DIMS(6)) : MEZZO_NONE;
    mezzo_route(m->g, param(m, "logits", DIMS(5, 6)), bias, &routings[variant], &weights, &experts);
    return weights;
}

static mezzo_value make_expert_order(maker *m, int variant) {
    mezzo_value order, place, offsets;
    if (variant > 0)
        return MEZZO_NONE;
    mezzo_expert_order(m->g, integers(m, "experts", 3, false, 10), 3, &order, &place, &offsets);
    return mezzo_dispatch(m->g, mezzo_silu(m->g, param(m, "x", DIMS(5, 3))), order, place, 2);
}

static mezzo_value make_dispatch(maker *m, int variant) {
    return make_expert_order(m, variant);
}

static mezzo_value make_combine(maker *m, int variant) {
    mezzo_value order, place, offsets;
    if (variant > 1)
        return MEZZO_NONE;
    mezzo_expert_order(m->g, integers(m, "experts", 3, false, 10), 3, &order, &place, &offsets);
    mezzo_value weights = variant == 0 ? param(m, "weights", DIMS(5, 2)) : MEZZO_NONE;
    return mezzo_combine(m->g, mezzo_silu(m->g, param(m, "x", DIMS(10, 3))), order, place, weights, 2);
}

static mezzo_value make_grouped_linear(maker *m, int variant) {
    mezzo_value order, place, offsets, weights, experts;
    if (variant > 1)
        return MEZZO_NONE;
    if (variant == 0) { // the fourth expert has no rows
        mezzo_expert_order(m->g, integers(m, "experts", 3, false, 10), 4, &order, &place, &offsets);
        return mezzo_grouped_linear(m->g, param(m, "x", DIMS(10, 3)), param(m, "w", DIMS(4, 5, 3)), offsets);
    }
    // A whole layer of experts.
    mezzo_value x = param(m, "x", DIMS(4, 3)), logits = mezzo_linear(m->g, x, param(m, "gate", DIMS(4, 3)), MEZZO_NONE);
    mezzo_route(m->g, logits, MEZZO_NONE, &(mezzo_routing){2, 1, 1, true, 1, false}, &weights, &experts);
    mezzo_expert_order(m->g, experts, 4, &order, &place, &offsets);
    mezzo_value h = mezzo_dispatch(m->g, x, order, place, 2);
    h = mezzo_swiglu(m->g, mezzo_grouped_linear(m->g, h, param(m, "up", DIMS(4, 4, 3)), offsets));
    h = mezzo_grouped_linear(m->g, h, param(m, "down", DIMS(4, 3, 2)), offsets);
    return mezzo_add(m->g, x, mezzo_combine(m->g, h, order, place, weights, 2));
}

static mezzo_value make_embedding(maker *m, int variant) {
    return variant < 1 ? mezzo_embedding(m->g, param(m, "table", DIMS(5, 3)), integers(m, "ids", 5, false, 9))
                       : MEZZO_NONE;
}

static mezzo_value make_attention(maker *m, int variant) {
    float dropout = variant & 1 ? 0.3f : 0;
    switch (variant / 2) {
    case 0:
        return mezzo_attention(m->g, param(m, "q", DIMS(2, 4, 4)), param(m, "k", DIMS(2, 4, 4)),
                               param(m, "v", DIMS(2, 4, 4)), 2, 2, dropout);
    case 1: // two query heads share a key head
        return mezzo_attention(m->g, param(m, "q", DIMS(1, 5, 8)), param(m, "k", DIMS(1, 5, 4)),
                               param(m, "v", DIMS(1, 5, 4)), 4, 2, dropout);
    case 2:
        return mezzo_attention_qkv(m->g, param(m, "qkv", DIMS(2, 4, 12)), 2, dropout);
    case 3: // every key, and more or fewer of them than queries
        return mezzo_attention_full(m->g, param(m, "q", DIMS(1, 5, 8)), param(m, "k", DIMS(1, 9, 4)),
                                    param(m, "v", DIMS(1, 9, 4)), 4, 2, dropout);
    case 4:
        return mezzo_attention_full(m->g, param(m, "q", DIMS(2, 4, 4)), param(m, "k", DIMS(2, 3, 4)),
                                    param(m, "v", DIMS(2, 3, 4)), 2, 2, dropout);
    case 5:
        return mezzo_attention_full(m->g, param(m, "qkv", DIMS(2, 3, 12)), MEZZO_NONE, MEZZO_NONE, 2, 2, dropout);
    case 6: // causal: the last keys are seen by nobody, or by every late query
        return mezzo_attention(m->g, param(m, "q", DIMS(1, 3, 4)), param(m, "k", DIMS(1, 5, 4)),
                               param(m, "v", DIMS(1, 5, 4)), 2, 2, dropout);
    case 7:
        return mezzo_attention(m->g, param(m, "q", DIMS(1, 5, 4)), param(m, "k", DIMS(1, 3, 4)),
                               param(m, "v", DIMS(1, 3, 4)), 2, 2, dropout);
    case 8: // a window, a cap, a scale; two documents in a row
        return mezzo_attention_of(m->g, param(m, "q", DIMS(1, 6, 8)), param(m, "k", DIMS(1, 6, 4)),
                                  param(m, "v", DIMS(1, 6, 4)),
                                  &(mezzo_attention_form){.heads = 4, .kv_heads = 2, .window = 3, .dropout = dropout});
    case 9:
        return mezzo_attention_of(
            m->g, param(m, "q", DIMS(1, 5, 4)), param(m, "k", DIMS(1, 5, 4)), param(m, "v", DIMS(1, 5, 4)),
            &(mezzo_attention_form){.heads = 2, .scale = 0.9f, .score_cap = 2, .dropout = dropout});
    case 10:
        mezzo_documents_begin(m->g, integer_rows(m, "positions", 3, 2, 6));
        return mezzo_attention_qkv(m->g, param(m, "qkv", DIMS(2, 6, 12)), 2, dropout);
    default:
        return MEZZO_NONE;
    }
}

// A mask of every head and query, of every key of a row, and one that is learned; shared heads, a cap, a causal mask.
static mezzo_value make_attention_masked(maker *m, int variant) {
    static const int64_t shapes[][4] = {{2, 1, 1, 5}, {1, 4, 3, 5}, {2, 1, 3, 5}};
    const mezzo_attention_form form = {.heads = 4,
                                       .kv_heads = 2,
                                       .full = variant % 4 != 3,
                                       .score_cap = variant % 2 ? 2.0f : 0,
                                       .dropout = variant % 3 == 2 ? 0.3f : 0};
    if (variant >= 6)
        return MEZZO_NONE;
    return mezzo_attention_masked(m->g, param(m, "q", DIMS(2, 3, 8)), param(m, "k", DIMS(2, 5, 4)),
                                  param(m, "v", DIMS(2, 5, 4)), param(m, "mask", 4, shapes[variant % 3]), &form);
}

// Nothing may be trained through a cache: a program with backward is refused.
static mezzo_value make_attention_cached(maker *m, int variant) {
    (void)variant;
    mezzo_cache_begin(m->g, 6);
    return mezzo_attention_qkv(m->g, param(m, "qkv", DIMS(1, 3, 12)), 2, 0);
}

static mezzo_value make_softmax(maker *m, int variant) {
    return variant < 1 ? mezzo_softmax(m->g, param(m, "x", DIMS(3, 5))) : MEZZO_NONE;
}

static mezzo_value make_cross_entropy(maker *m, int variant) {
    if (variant > 2)
        return MEZZO_NONE;
    mezzo_value logits = param(m, "logits", DIMS(6, 5));
    return mezzo_cross_entropy_capped(m->g, logits, integers(m, "targets", 5, variant == 1, 6), -1,
                                      variant == 2 ? 0.75f : 0);
}

static mezzo_value make_sum(maker *m, int variant) {
    return variant < 4 ? mezzo_sum(m->g, param(m, "x", DIMS(2, 3, 4)), variant - 1) : MEZZO_NONE;
}

static mezzo_value make_mean(maker *m, int variant) {
    return variant < 4 ? mezzo_mean(m->g, param(m, "x", DIMS(2, 3, 4)), variant - 1) : MEZZO_NONE;
}

static mezzo_value make_extremum(maker *m, int variant, mezzo_value (*op)(mezzo_graph *, mezzo_value, int)) {
    mezzo_value x = param(m, "x", DIMS(2, 3, 4));
    if (variant == 4) // equal ones: each has half of the gradient
        return op(m->g, mezzo_concat(m->g, (mezzo_value[]){x, x}, 2, 1), 1);
    return variant < 4 ? op(m->g, variant == 0 ? mezzo_silu(m->g, x) : x, variant - 1) : MEZZO_NONE;
}

static mezzo_value make_max(maker *m, int variant) {
    return make_extremum(m, variant, mezzo_max);
}

static mezzo_value make_min(maker *m, int variant) {
    return make_extremum(m, variant, mezzo_min);
}

static mezzo_value make_prod(maker *m, int variant) {
    mezzo_value x = param(m, "x", DIMS(2, 3, 4));
    if (variant == 4) // one zero, and two
        return mezzo_prod(m->g,
                          mezzo_mul(m->g, param(m, "row", DIMS(4, 3)),
                                    mezzo_cast(m->g, integers(m, "zeros", 2, false, 3), MEZZO_F32)),
                          0);
    return variant < 4 ? mezzo_prod(m->g, variant == 1 ? mezzo_silu(m->g, x) : mezzo_scale(m->g, x, 0.7f),
                                    variant == 0 ? 2 : variant - 1)
                       : MEZZO_NONE;
}

// Reductions over chosen axes, neighbours or not.
static mezzo_value make_argmax(maker *m, int variant) {
    static const struct {
        mezzo_reduction reduction;
        int n, axes[MEZZO_MAX_RANK];
    } forms[] = {{MEZZO_REDUCE_SUM, 2, {1, 2}}, {MEZZO_REDUCE_MEAN, 2, {0, -2}}, {MEZZO_REDUCE_MAX, 3, {0, 1, 3}},
                 {MEZZO_REDUCE_MIN, 0, {0}},    {MEZZO_REDUCE_PROD, 1, {-1}},    {MEZZO_REDUCE_SUM, 1, {0}}};
    mezzo_value x = param(m, "x", DIMS(2, 3, 2, 4));
    if (variant < (int)MZ_COUNT(forms))
        return mezzo_reduce(m->g, forms[variant].reduction, mezzo_silu(m->g, x), forms[variant].n,
                            forms[variant].n > 0 ? forms[variant].axes : NULL, variant % 2);
    // An index has no gradient; what it chooses has.
    return variant == (int)MZ_COUNT(forms)
               ? mezzo_gather(m->g, x, 3,
                              mezzo_reshape(m->g, mezzo_argmax(m->g, param(m, "k", DIMS(3, 4)), 0), DIMS(2, 2)), false)
               : MEZZO_NONE;
}

static mezzo_value make_cumsum(maker *m, int variant) {
    mezzo_value x = param(m, "x", DIMS(2, 5, 3));
    return variant < 6 ? mezzo_cumsum(m->g, x, variant % 3 - 1, variant > 2, variant % 2) : MEZZO_NONE;
}

static mezzo_value make_expand(maker *m, int variant) {
    switch (variant) {
    case 0:
        return mezzo_expand(m->g, param(m, "x", DIMS(2, 1, 3)), DIMS(4, 2, 2, 3));
    case 1:
        return mezzo_expand(m->g, mezzo_silu(m->g, param(m, "x", DIMS(1))), DIMS(2, 3));
    case 2:
        return mezzo_expand(m->g, param(m, "x", DIMS(1, 3, 1)), DIMS(2, 3, 4));
    case 3: // products of matrices whose leading dimensions repeat
        return mezzo_matmul(m->g, param(m, "a", DIMS(2, 1, 3, 2)), param(m, "b", DIMS(4, 2, 3)), false, false);
    case 4:
        return mezzo_matmul(m->g, param(m, "a", DIMS(2, 2, 3, 2)), param(m, "b", DIMS(4, 2)), false, true);
    case 5:
        return mezzo_matmul(m->g, param(m, "a", DIMS(2, 3)), param(m, "b", DIMS(3, 2, 4)), true, false);
    default:
        return MEZZO_NONE;
    }
}

static mezzo_value make_pad(maker *m, int variant) {
    mezzo_value x = param(m, "x", DIMS(2, 3, 2));
    return variant < 2 ? mezzo_pad(m->g, variant ? mezzo_silu(m->g, x) : x, (const int64_t[]){1, 0, 2},
                                   (const int64_t[]){0, 0, 1}, variant ? -2.5f : 0)
                       : MEZZO_NONE;
}

static mezzo_value make_gather(maker *m, int variant) {
    mezzo_value x = param(m, "x", DIMS(2, 4, 3));
    switch (variant) {
    case 0: // a row twice, another never
        return mezzo_gather(m->g, x, 1, integer_rows(m, "index", 3, 2, 3), false);
    case 1:
        return mezzo_gather(m->g, mezzo_silu(m->g, x), -1, integers(m, "index", 3, true, 6), false);
    case 2:
        return mezzo_gather(m->g, x, 1, mezzo_reshape(m->g, integers(m, "index", 4, false, 30), DIMS(2, 5, 3)), true);
    case 3:
        return mezzo_flip(m->g, x, 1);
    default:
        return MEZZO_NONE;
    }
}

static mezzo_value make_scatter_add(maker *m, int variant) {
    mezzo_value x = param(m, "x", DIMS(2, 4, 3));
    switch (variant) {
    case 0:
        return mezzo_scatter_add(m->g, x, 1, integers(m, "index", 4, true, 6), param(m, "src", DIMS(2, 6, 3)), false);
    case 1:
        return mezzo_scatter_add(m->g, mezzo_silu(m->g, x), 2,
                                 mezzo_reshape(m->g, integers(m, "index", 3, false, 16), DIMS(2, 4, 2)),
                                 mezzo_silu(m->g, param(m, "src", DIMS(2, 4, 2))), true);
    default:
        return MEZZO_NONE;
    }
}

static mezzo_value make_constant(maker *m, int variant) {
    return variant < 1 ? mezzo_mul(m->g, param(m, "x", DIMS(2, 3)), mezzo_constant(m->g, MEZZO_F32, 1.5f, DIMS(1)))
                       : MEZZO_NONE;
}

static mezzo_value make_dropout(maker *m, int variant) {
    return variant < 1 ? mezzo_dropout(m->g, param(m, "x", DIMS(6, 5)), 0.4f) : MEZZO_NONE;
}

// FP32 holds every perturbed value exactly, so that a cast's rounding is the identity here.
static mezzo_value make_cast(maker *m, int variant) {
    return variant < 1 ? mezzo_cast(m->g, mezzo_scale(m->g, param(m, "x", DIMS(3, 4)), 2), MEZZO_F32) : MEZZO_NONE;
}

static mezzo_value make_reshape(maker *m, int variant) {
    if (variant > 0)
        return MEZZO_NONE;
    mezzo_value x = mezzo_gelu(m->g, param(m, "x", DIMS(3, 4)), true);
    return mezzo_mul(m->g, mezzo_reshape(m->g, x, DIMS(2, -1)), param(m, "y", DIMS(2, 6)));
}

static mezzo_value make_split(maker *m, int variant) {
    if (variant > 2)
        return MEZZO_NONE;
    mezzo_value parts[3];
    mezzo_value x = mezzo_silu(m->g, param(m, "x", DIMS(3, 6, 3)));
    if (mezzo_split(m->g, x, variant, 3, parts) != MEZZO_OK)
        return MEZZO_NONE;
    return variant == 1 ? mezzo_mul(m->g, parts[0], parts[2]) // the middle part is read by nobody
                        : mezzo_mul(m->g, mezzo_add(m->g, parts[0], parts[1]), parts[2]);
}

static mezzo_value make_concat(maker *m, int variant) {
    if (variant > 1)
        return MEZZO_NONE;
    mezzo_value a = param(m, "a", DIMS(2, 3)), b = mezzo_gelu(m->g, param(m, "b", DIMS(2, 3)), true);
    return mezzo_concat(m->g, (mezzo_value[]){a, b, a}, 3, variant);
}

// Has no input to differentiate; what reads it has.
static mezzo_value make_permute(maker *m, int variant) {
    mezzo_value x = param(m, "x", DIMS(2, 3, 4)), six = param(m, "six", DIMS(2, 1, 3, 2, 1, 2));
    switch (variant) {
    case 0:
        return mezzo_permute(m->g, x, (const int[]){2, 0, 1});
    case 1:
        return mezzo_transpose(m->g, mezzo_silu(m->g, x), -1, 0);
    case 2:
        return mezzo_permute(m->g, six, (const int[]){3, -1, 0, 4, 2, 1});
    default:
        return MEZZO_NONE;
    }
}

static mezzo_value make_slice(maker *m, int variant) {
    mezzo_value x = param(m, "x", DIMS(3, 4, 2));
    switch (variant) {
    case 0:
        return mezzo_slice(m->g, x, 1, 1, 3);
    case 1:
        return mezzo_slice(m->g, mezzo_silu(m->g, x), -3, -2, 3);
    case 2: // two pieces that overlap: their gradients add up
        return mezzo_mul(m->g, mezzo_slice(m->g, x, 1, 0, 3), mezzo_slice(m->g, x, 1, 1, 4));
    case 3:
        return mezzo_slice(m->g, x, 2, 1, 2);
    default:
        return MEZZO_NONE;
    }
}

static mezzo_value make_mse(maker *m, int variant) {
    mezzo_value x = param(m, "x", DIMS(3, 4));
    switch (variant) {
    case 0:
        return mezzo_mse(m->g, x, param(m, "target", DIMS(3, 4)));
    case 1:
        return mezzo_mse(m->g, mezzo_silu(m->g, x), mezzo_scale(m->g, x, 0.5f));
    default:
        return MEZZO_NONE;
    }
}

static mezzo_value make_conv2d(maker *m, int variant) {
    static const struct {
        int64_t x[4], w[4];
        mezzo_convolution c;
    } forms[] = {
        {{1, 3, 4, 2}, {3, 3, 3, 2}, {1, 1, 1, 1}}, {{2, 5, 4, 3}, {2, 3, 3, 3}, {2, 0, 1, 1}},
        {{1, 3, 3, 4}, {6, 2, 2, 2}, {1, 1, 0, 2}}, {{2, 2, 3, 3}, {4, 1, 1, 3}, {1, 0, 0, 1}},
        {{1, 6, 5, 2}, {2, 4, 4, 2}, {3, 2, 1, 1}},
    };
    if (variant >= (int)MZ_COUNT(forms))
        return MEZZO_NONE;
    mezzo_value x = param(m, "x", 4, forms[variant].x), w = param(m, "w", 4, forms[variant].w);
    mezzo_value b = variant % 2 ? MEZZO_NONE : param(m, "b", 1, &forms[variant].w[0]);
    return mezzo_conv2d(m->g, variant == 1 ? mezzo_silu(m->g, x) : x, w, b, &forms[variant].c);
}

static mezzo_value make_group_norm(maker *m, int variant) {
    if (variant > 4)
        return MEZZO_NONE;
    mezzo_value x = param(m, "x", DIMS(2, 2, 3, 4));
    mezzo_value w = variant > 0 ? param(m, "w", DIMS(4)) : MEZZO_NONE;
    mezzo_value b = variant > 1 ? param(m, "b", DIMS(4)) : MEZZO_NONE;
    mezzo_value film = variant > 2 ? mezzo_scale(m->g, param(m, "film", DIMS(2, 8)), 0.5f) : MEZZO_NONE;
    return mezzo_group_norm(m->g, x, w, b, film, variant % 2 ? 2 : 1, 1e-3f, variant == 1 || variant == 4);
}

static mezzo_value make_upsample(maker *m, int variant) {
    return variant < 2 ? mezzo_upsample(m->g, param(m, "x", DIMS(2, 2, 3, 2)), 2 + variant) : MEZZO_NONE;
}

static mezzo_value make_pool(maker *m, int variant) {
    return variant < 2 ? mezzo_average_pool(m->g, param(m, "x", DIMS(1, 6, 6, 2)), 2 + variant) : MEZZO_NONE;
}

// What is added lets no two elements of a window be equal, or nearly so.
static mezzo_value make_max_pool(maker *m, int variant) {
    static const mezzo_windows forms[] = {{2, 2, 1, 0, 0}, {3, 2, 1, 1, 1}, {2, 3, 2, 1, 2}, {5, 1, 1, 0, 0}};
    if (variant >= (int)MZ_COUNT(forms))
        return MEZZO_NONE;
    const mezzo_value steps = mezzo_scale(m->g, mezzo_cast(m->g, mezzo_arange(m->g, 18), MEZZO_F32), 0.3F),
                      x = mezzo_add(m->g, param(m, "x", DIMS(2, 6, 3)), mezzo_reshape(m->g, steps, DIMS(6, 3)));
    return mezzo_max_pool(m->g, mezzo_sin(m->g, x), 1, &forms[variant]);
}

// Have no gradient; what they are multiplied by has.
static mezzo_value make_time_embedding(maker *m, int variant) {
    if (variant > 0)
        return MEZZO_NONE;
    m->inputs[m->n_inputs].name = "times";
    m->inputs[m->n_inputs].dtype = MEZZO_F32;
    m->inputs[m->n_inputs++].count = 3;
    mezzo_value times = mezzo_input(m->g, "times", MEZZO_F32, DIMS(3));
    return mezzo_mul(m->g, param(m, "x", DIMS(3, 4)), mezzo_time_embedding(m->g, times, 4, 3, 10));
}

static mezzo_value make_normal(maker *m, int variant) {
    if (variant > 0)
        return MEZZO_NONE;
    mezzo_value keys = mezzo_reshape(m->g, integers(m, "keys", 100, false, 4), DIMS(2, 2));
    return mezzo_mul(m->g, param(m, "x", DIMS(2, 3)), mezzo_normal(m->g, keys, DIMS(2, 3)));
}

static mezzo_value make_arange(maker *m, int variant) {
    return variant < 1 ? mezzo_embedding(m->g, param(m, "table", DIMS(6, 3)), mezzo_arange(m->g, 4)) : MEZZO_NONE;
}

// --- differences ---------------------------------------------------------------------------------------------------
typedef struct subject {
    mezzo_params *params;
    mezzo_program *program;
    float *values; // of the parameter under test
    int index;
} subject;

// Multiples of 2^-8 in (-1.5, 1.5), at least 2^-5 from 0, where ReLU has no derivative.
static float start_value(uint32_t seed, int64_t i) {
    uint32_t words[4];
    mz_philox((mz_philox_key){.seed = seed}, (uint64_t)i, words);
    float size = (float)(8 + words[0] % 376) / 256;
    return words[1] & 1 ? -size : size;
}

static double loss_at(subject *s, int64_t element, float value) {
    float kept = s->values[element];
    double loss;
    s->values[element] = value;
    assert_int_equal(mezzo_params_write(s->params, s->index, s->values), MEZZO_OK);
    assert_int_equal(mezzo_program_run(s->program, NULL, 17, 3), MEZZO_OK);
    assert_int_equal(mezzo_program_read(s->program, "loss", &loss, sizeof loss), MEZZO_OK);
    s->values[element] = kept;
    return loss;
}

static double difference(subject *s, int64_t element) {
    const float h = 0x1p-9f, x = s->values[element];
    double wide = (loss_at(s, element, x + h) - loss_at(s, element, x - h)) / (2 * (double)h);
    double narrow = (loss_at(s, element, x + h / 2) - loss_at(s, element, x - h / 2)) / (double)h;
    return (4 * narrow - wide) / 3;
}

// What the two may differ by. Relative to the gradient: it is stored in FP32, after one rounding for each use of the
// parameter (up to 3 here), and 1/n of a mean and the dropout factor are FP32 constants: 4 roundings. Absolute: the
// truncation 2^-36·f⁽⁵⁾/480, with f⁽⁵⁾ up to 500 for these functions; and FP64 rounding in f, some 100 operations'
// 2^-53·|f|, divided by h/2 = 2^-10 and weighted by 3: under 2^-35·|f|.
static double tolerance(double gradient, double loss) {
    return 4 * 0x1p-24 * fabs(gradient) + 0x1p-36 + 0x1p-35 * fabs(loss);
}

static void write_inputs(const maker *m, mezzo_program *program) {
    for (int k = 0; k < m->n_inputs; k++) {
        int64_t n = m->inputs[k].count;
        int32_t *whole = mz_alloc((size_t)n, sizeof *whole);
        float *real = mz_alloc((size_t)n, sizeof *real);
        assert_true(whole != NULL && real != NULL);
        for (int64_t i = 0; i < n; i++) {
            bool ignored = m->inputs[k].ignored && i % 5 == 1;
            whole[i] = ignored ? -1 : m->inputs[k].modulus > 0 ? (int32_t)(i * 7 % m->inputs[k].modulus) : 0;
            real[i] = start_value(999, i);
        }
        const void *data = m->inputs[k].dtype == MEZZO_I32 ? (const void *)whole : real;
        assert_int_equal(mezzo_program_write(program, m->inputs[k].name, data, (size_t)n * 4), MEZZO_OK);
        mz_free(whole);
        mz_free(real);
    }
}

static void fill_params(mezzo_params *params) {
    for (int p = 0; p < mezzo_params_count(params); p++) {
        float values[256];
        for (int64_t i = 0; i < 256; i++)
            values[i] = start_value((uint32_t)p + 1, i);
        assert_int_equal(mezzo_params_write(params, p, values), MEZZO_OK);
    }
}

// The gradients of one parameter against differences. Returns its largest gradient, and counts what the tolerance would
// not see if backward were off by a factor 1 + 2^-16.
static void check_param(subject *s, const char *what, int *strong, int *blind) {
    int64_t n = 1;
    for (int i = 0; i < mezzo_params_rank(s->params, s->index); i++)
        n *= mezzo_params_shape(s->params, s->index)[i];
    float values[256], gradients[256];
    assert_true(n <= 256);
    s->values = values;
    assert_int_equal(mezzo_params_read(s->params, s->index, values), MEZZO_OK);
    assert_int_equal(mezzo_params_zero_grad(s->params), MEZZO_OK);
    double loss = loss_at(s, 0, values[0]);
    assert_int_equal(mezzo_params_read_grad(s->params, s->index, gradients), MEZZO_OK);
    for (int64_t i = 0; i < n; i++) {
        double want = difference(s, i), got = (double)gradients[i], allowed = tolerance(want, loss);
        if (!(fabs(got - want) <= allowed))
            fail_msg("%s: d loss/d %s[%lld] is %.12g, differences give %.12g ± %.2g", what,
                     mezzo_params_name(s->params, s->index), (long long)i, got, want, allowed);
        if (fabs(want) > 1e-3) {
            ++*strong;
            *blind += fabs(got * (1 + 0x1p-16) - want) <= allowed;
        }
    }
    assert_int_equal(mezzo_params_write(s->params, s->index, values), MEZZO_OK);
}

static void check_graph(const maker *m, const char *what, bool no_fuse) {
    mezzo_device *device;
    mezzo_program_options options = {.precision = MEZZO_PRECISION_FP64, .no_fuse = no_fuse};
    subject s = {0};
    int strong = 0, blind = 0;
    assert_int_equal(mezzo_device_open("ref", 1, &device), MEZZO_OK);
    assert_int_equal(mezzo_params_create(device, m->g, 1, &s.params), MEZZO_OK);
    if (mezzo_program_create(m->g, s.params, &options, &s.program) != MEZZO_OK)
        fail_msg("%s: %s", what, mezzo_error_message());
    fill_params(s.params);
    write_inputs(m, s.program);
    for (s.index = 0; s.index < mezzo_params_count(s.params); s.index++)
        check_param(&s, what, &strong, &blind);
    if (strong == 0 || blind > 0)
        fail_msg("%s: %d of %d gradients off by a factor 1 + 2^-16 would pass", what, blind, strong);
    mezzo_program_free(s.program);
    mezzo_params_free(s.params);
    mezzo_device_close(device);
}

static void check_refusal(mezzo_value (*make)(maker *, int)) {
    maker m = {0};
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program *program;
    assert_int_equal(mezzo_graph_create(&m.g), MEZZO_OK);
    make_loss(&m, make(&m, 0));
    assert_int_equal(mezzo_device_open("ref", 1, &device), MEZZO_OK);
    assert_int_equal(mezzo_params_create(device, m.g, 1, &params), MEZZO_OK);
    must_fail(mezzo_program_create(m.g, params, &(mezzo_program_options){0}, &program), MEZZO_ERR_UNSUPPORTED,
              "forward only");
    mezzo_params_free(params);
    mezzo_device_close(device);
    mezzo_graph_free(m.g);
}

static void check_op(const char *name, mezzo_value (*make)(maker *, int)) {
    int variant = 0;
    if (make == make_attention_cached) {
        check_refusal(make);
        return;
    }
    for (;; variant++) {
        maker m = {0};
        char what[64];
        snprintf(what, sizeof what, "%s, variant %d", name, variant);
        assert_int_equal(mezzo_graph_create(&m.g), MEZZO_OK);
        mezzo_value y = make(&m, variant);
        if (mezzo_graph_status(m.g) != MEZZO_OK)
            fail_msg("%s: %s", what, mezzo_error_message());
        if (y.id >= 0) {
            make_loss(&m, y);
            check_graph(&m, what, false);
            check_graph(&m, what, true);
        }
        mezzo_graph_free(m.g);
        if (y.id < 0)
            break;
    }
    assert_true(variant > 0);
}

#define OP(name, ...)                                                                                                  \
    TEST(gradient_of_##name) {                                                                                         \
        check_op(#name, make_##name);                                                                                  \
    }
#include "graph/ops.def"
#undef OP
