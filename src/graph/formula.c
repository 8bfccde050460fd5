// Composes the ops of element.def: it reads each formula as text, and the formula's words become nodes.
#include <ctype.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "graph/compose.h"

// In FP64, a number that FP32 does not hold becomes the sum of two that it does.
mezzo_value mz_compose_number(mz_composition *c, double number) {
    const int64_t one = 1;
    const float high = (float)number;
    const mezzo_value v = mezzo_constant(c->g, MEZZO_F32, high, 1, &one);
    if (!c->wide || !isfinite(number) || (double)high == number)
        return v;
    return mezzo_add(c->g, v, mezzo_constant(c->g, MEZZO_F32, (float)(number - (double)high), 1, &one));
}

// --- words ---------------------------------------------------------------------------------------------------------
// A mask is an I32 value whose elements are 1 or 0.
typedef mezzo_value word_fn(mz_composition *c, const mezzo_value *v);

static mezzo_value negative(mz_composition *c, mezzo_value x) {
    return mezzo_mul(c->g, mz_compose_number(c, -1), x);
}
static mezzo_value word_num(mz_composition *c, const mezzo_value *v) {
    return (void)c, v[0];
}
static mezzo_value word_less(mz_composition *c, const mezzo_value *v) {
    return mezzo_less(c->g, v[0], v[1]);
}
static mezzo_value word_equal(mz_composition *c, const mezzo_value *v) {
    return mezzo_equal(c->g, v[0], v[1]);
}
static mezzo_value word_choose(mz_composition *c, const mezzo_value *v) {
    return mezzo_where(c->g, v[0], v[1], v[2]);
}
static mezzo_value both(mz_composition *c, mezzo_value a, mezzo_value b) {
    const mezzo_value one = mz_compose_number(c, 1), zero = mz_compose_number(c, 0);
    return mezzo_less(c->g, zero, mezzo_where(c->g, a, mezzo_where(c->g, b, one, zero), zero));
}
static mezzo_value either(mz_composition *c, mezzo_value a, mezzo_value b) {
    const mezzo_value one = mz_compose_number(c, 1), zero = mz_compose_number(c, 0);
    return mezzo_less(c->g, zero, mezzo_where(c->g, a, one, mezzo_where(c->g, b, one, zero)));
}
static mezzo_value word_less_equal(mz_composition *c, const mezzo_value *v) {
    return either(c, word_less(c, v), word_equal(c, v));
}
static mezzo_value word_fused(mz_composition *c, const mezzo_value *v) {
    return mezzo_add(c->g, mezzo_mul(c->g, v[0], v[1]), v[2]);
}
static mezzo_value word_magnitude(mz_composition *c, const mezzo_value *v) {
    return mezzo_where(c->g, mezzo_less(c->g, v[0], mz_compose_number(c, 0)), negative(c, v[0]), v[0]);
}
// Defines a word that is an op of the graph.
#define SAME(word, op)                                                                                                 \
    static mezzo_value word_##word(mz_composition *c, const mezzo_value *v) {                                          \
        return mezzo_##op(c->g, v[0]);                                                                                 \
    }
SAME(root, sqrt)
SAME(logarithm, log)
SAME(exponential, exp)
SAME(hyperbolic, tanh)
SAME(error_function, erf)
SAME(sine, sin)
SAME(cosine, cos)
SAME(down, floor)
static mezzo_value word_up(mz_composition *c, const mezzo_value *v) {
    return negative(c, mezzo_floor(c->g, negative(c, v[0])));
}
// Rounds by f = ⌊x⌋: takes the nearer of f and f + 1, or the even one. x - f is exact unless x is tiny, and there it
// stays on the same side of a half.
static mezzo_value word_nearest(mz_composition *c, const mezzo_value *v) {
    mezzo_graph *g = c->g;
    const mezzo_value half = mz_compose_number(c, 0.5), f = mezzo_floor(g, v[0]);
    const mezzo_value rest = mezzo_add(g, v[0], negative(c, f)), next = mezzo_add(g, f, mz_compose_number(c, 1));
    const mezzo_value halved = mezzo_mul(g, f, half), is_even = mezzo_equal(g, halved, mezzo_floor(g, halved));
    const mezzo_value tie = mezzo_where(g, is_even, f, next);
    const mezzo_value chosen =
        mezzo_where(g, mezzo_less(g, rest, half), f, mezzo_where(g, mezzo_equal(g, rest, half), tie, next));
    return mezzo_where(g, mezzo_equal(g, f, v[0]), v[0], chosen); // so infinities stay
}
// log(1 + x) = log(u)·x/(u - 1), u = 1 + x rounded (Kahan): the error of u is in both.
static mezzo_value word_logarithm_1p(mz_composition *c, const mezzo_value *v) {
    mezzo_graph *g = c->g;
    const mezzo_value u = mezzo_add(g, v[0], mz_compose_number(c, 1)), d = mezzo_add(g, u, mz_compose_number(c, -1));
    const mezzo_value y = mezzo_mul(g, mezzo_log(g, u), mezzo_div(g, v[0], d));
    const mezzo_value large = mezzo_where(g, mezzo_equal(g, u, v[0]), mezzo_log(g, u), y);
    return mezzo_where(g, mezzo_equal(g, d, mz_compose_number(c, 0)), v[0], large);
}
static mezzo_value word_logistic(mz_composition *c, const mezzo_value *v) {
    const mezzo_value one = mz_compose_number(c, 1);
    return mezzo_div(c->g, one, mezzo_add(c->g, one, mezzo_exp(c->g, negative(c, v[0]))));
}
static mezzo_value word_power(mz_composition *c, const mezzo_value *v) {
    return mezzo_pow(c->g, v[0], v[1]);
}
static mezzo_value word_silu(mz_composition *c, const mezzo_value *v) {
    return mezzo_mul(c->g, v[0], word_logistic(c, v));
}
static mezzo_value word_silu_dx(mz_composition *c, const mezzo_value *v) {
    mezzo_graph *g = c->g;
    const mezzo_value one = mz_compose_number(c, 1), s = word_logistic(c, &v[1]);
    const mezzo_value rest = mezzo_mul(g, v[1], mezzo_add(g, one, negative(c, s)));
    return mezzo_mul(g, v[0], mezzo_mul(g, s, mezzo_add(g, one, rest)));
}

#define WORD(name, n)                                                                                                  \
    { #name, n, word_##name }
static const struct {
    const char *name;
    int n;
    word_fn *fn;
} words[] = {
    WORD(num, 1),          WORD(less, 2),        WORD(less_equal, 2), WORD(equal, 2),    WORD(choose, 3),
    WORD(fused, 3),        WORD(magnitude, 1),   WORD(root, 1),       WORD(power, 2),    WORD(logarithm, 1),
    WORD(logarithm_1p, 1), WORD(exponential, 1), WORD(hyperbolic, 1), WORD(logistic, 1), WORD(error_function, 1),
    WORD(sine, 1),         WORD(cosine, 1),      WORD(down, 1),       WORD(up, 1),       WORD(nearest, 1),
    WORD(silu, 1),         WORD(silu_dx, 2)};

// --- the rows' texts -----------------------------------------------------------------------------------------------
typedef struct formula {
    const char *operand[MZ_OPERANDS]; // operands' names; NULL: there are fewer
    const char *text;
} formula;
static const formula formulas[MZ_OP_COUNT] = {
#define KERNEL1(name, a, text)       [MZ_OP_##name] = {{#a}, #text},
#define KERNEL2(name, a, b, text)    [MZ_OP_##name] = {{#a, #b}, #text},
#define KERNEL3(name, a, b, c, text) [MZ_OP_##name] = {{#a, #b, #c}, #text},
#include "graph/element.def"
};

// --- reading -------------------------------------------------------------------------------------------------------
// Parses sum: product {(+|-) product}; product: factor {(*|/) factor}; and: sum {& sum}; or: and {| and}.
typedef struct reader {
    mz_composition *c;
    const formula *row;
    const char *at;
} reader;

static mezzo_value read_or(reader *r);

static bool takes(reader *r, char sign) {
    while (*r->at == ' ')
        r->at++;
    if (*r->at != sign)
        return false;
    r->at++;
    return true;
}

static mezzo_value read_named(reader *r, const char *name, size_t length) {
    const mz_attrs *attrs = r->c->attrs;
    const struct {
        const char *name;
        float value;
    } constants[] = {{"alpha", attrs->alpha}, {"low", attrs->low}, {"high", attrs->high}};
    mezzo_value v[MZ_OPERANDS] = {MEZZO_NONE, MEZZO_NONE, MEZZO_NONE};
    for (size_t i = 0; i < MZ_OPERANDS; i++)
        if (r->row->operand[i] != NULL && strlen(r->row->operand[i]) == length &&
            memcmp(r->row->operand[i], name, length) == 0)
            return r->c->in[i];
    for (size_t i = 0; i < MZ_COUNT(constants); i++)
        if (strlen(constants[i].name) == length && memcmp(constants[i].name, name, length) == 0)
            return mz_compose_number(r->c, (double)constants[i].value);
    for (size_t i = 0; i < MZ_COUNT(words); i++) {
        if (strlen(words[i].name) != length || memcmp(words[i].name, name, length) != 0 || !takes(r, '('))
            continue;
        for (int k = 0; k < words[i].n; k++) {
            v[k] = read_or(r);
            takes(r, k + 1 < words[i].n ? ',' : ')');
        }
        return words[i].fn(r->c, v);
    }
    return MEZZO_NONE;
}

static mezzo_value read_factor(reader *r) {
    if (takes(r, '(')) {
        const mezzo_value v = read_or(r);
        takes(r, ')');
        return v;
    }
    if (takes(r, '-')) {
        const mezzo_value v = read_factor(r);
        return negative(r->c, v);
    }
    if (isdigit((unsigned char)*r->at)) {
        char *end;
        const double number = mz_strtod(r->at, &end);
        r->at = end;
        return mz_compose_number(r->c, number);
    }
    const char *name = r->at;
    while (isalnum((unsigned char)*r->at) || *r->at == '_')
        r->at++;
    return read_named(r, name, (size_t)(r->at - name));
}

static mezzo_value read_product(reader *r) {
    mezzo_value v = read_factor(r);
    for (;;)
        if (takes(r, '*'))
            v = mezzo_mul(r->c->g, v, read_factor(r));
        else if (takes(r, '/'))
            v = mezzo_div(r->c->g, v, read_factor(r));
        else
            return v;
}

static mezzo_value read_sum(reader *r) {
    mezzo_value v = read_product(r);
    for (;;)
        if (takes(r, '+'))
            v = mezzo_add(r->c->g, v, read_product(r));
        else if (takes(r, '-'))
            v = mezzo_add(r->c->g, v, negative(r->c, read_product(r)));
        else
            return v;
}

static mezzo_value read_and(reader *r) {
    mezzo_value v = read_sum(r);
    while (takes(r, '&'))
        v = both(r->c, v, read_sum(r));
    return v;
}

static mezzo_value read_or(reader *r) {
    mezzo_value v = read_and(r);
    while (takes(r, '|'))
        v = either(r->c, v, read_and(r));
    return v;
}

// Comparisons give I32 where the formula chooses numbers. A gradient need not read every operand, or have its shape.
void mz_compose_element(mz_composition *c) {
    reader r = {.c = c, .row = &formulas[c->op], .at = formulas[c->op].text};
    mezzo_value y = read_or(&r);
    if (mz_op_slot(c->op, true, 0).is & MZ_SLOT_INTEGER)
        y = mezzo_less(c->g, mz_compose_number(c, 0), y);
    if (*r.at != '\0')
        return;
    if (mezzo_graph_status(c->g) == MEZZO_OK && !mz_shape_equal(&c->g->values[y.id].shape, &c->shape[0]))
        y = mezzo_expand(c->g, y, c->shape[0].rank, c->shape[0].dim);
    c->read = UINT32_MAX;
    c->out[0] = y;
}
