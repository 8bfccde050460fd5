// Holds the tests and functions of a chat template. Jinja has no others: an unknown name is an error.
#include "data/template_machine.h"

// --- tests ----------------------------------------------------------------------------------------------------------
#define KIND_TEST(name, condition)                                                                                     \
    static const value *is_##name(machine *m, const value *v, const value **a) {                                       \
        (void)m;                                                                                                       \
        (void)a;                                                                                                       \
        return mz_tpl_truth(condition);                                                                                \
    }
KIND_TEST(defined, v->kind != UNDEFINED)
KIND_TEST(undefined, v->kind == UNDEFINED)
KIND_TEST(none, v->kind == NONE)
KIND_TEST(boolean, v->kind == BOOLEAN)
KIND_TEST(false, v->kind == BOOLEAN && v->n == 0)
KIND_TEST(true, v->kind == BOOLEAN && v->n != 0)
KIND_TEST(integer, v->kind == INTEGER)
KIND_TEST(float, v->kind == REAL)
KIND_TEST(string, v->kind == STRING)
KIND_TEST(mapping, v->kind == MAP)
KIND_TEST(number, mz_tpl_is_number(v))
KIND_TEST(sequence, v->kind == UNDEFINED || v->kind == STRING || v->kind == MAP || mz_tpl_is_sequence(v))
KIND_TEST(iterable, v->kind == UNDEFINED || v->kind == STRING || v->kind == MAP || v->kind == VIEW ||
                        v->kind == ITERATOR || v->kind == LOOP || mz_tpl_is_sequence(v))
KIND_TEST(callable,
          v->kind == UNDEFINED || v->kind == MACRO || v->kind == FUNCTION || v->kind == METHOD || v->kind == LOOP)
KIND_TEST(filter, v->kind == STRING && mz_tpl_filter(m, v->text, v->length) != NULL)
KIND_TEST(test, v->kind == STRING && mz_tpl_test(m, v->text, v->length) != NULL)

static const value *remainder_is(machine *m, const value *v, const value *by, int64_t is) {
    if (v->kind == REAL || by->kind == REAL)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "remainders of numbers with a point are not supported");
    return mz_tpl_truth(mz_tpl_arithmetic(m, T_MOD, v, by)->n == is);
}
static const value *is_parity(machine *m, const value *v, const value **a, int remainder) {
    (void)a;
    return remainder_is(m, v, mz_tpl_integer(m, 2), remainder);
}
static const value *is_divisible(machine *m, const value *v, const value **a) {
    return remainder_is(m, v, a[0], 0);
}

static const value *is_equal(machine *m, const value *v, const value **a, int wanted) {
    return mz_tpl_truth(mz_tpl_equal(m, v, a[0]) == wanted);
}

enum { LESS = 1, SAME = 2, MORE = 4 };
static const value *is_ordered(machine *m, const value *v, const value **a, int orders) {
    const int order = mz_tpl_compare(m, v, a[0]);
    return mz_tpl_truth((orders & (order < 0 ? LESS : order > 0 ? MORE : SAME)) != 0);
}
static const value *is_in(machine *m, const value *v, const value **a) {
    return mz_tpl_truth(mz_tpl_contains(m, a[0], v));
}

static const value *is_same(machine *m, const value *v, const value **a) {
    const value *w = a[0];
    if (v->kind == w->kind && v->kind != NONE && v->kind != BOOLEAN && v->kind != MAP && v->kind != LIST)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "sameas of %s is not supported", mz_tpl_kind_name(v));
    return mz_tpl_truth(v->kind == w->kind && (v == w || v->kind == NONE || (v->kind == BOOLEAN && v->n == w->n)));
}

enum { IS_UPPER, IS_LOWER };
static const value *is_cased(machine *m, const value *v, const value **a, int which) {
    static const char *const methods[] = {"isupper", "islower"};
    const value *s = mz_tpl_printed(m, v);
    (void)a;
    const value *f = s->kind == STRING ? mz_tpl_getattr(m, s, methods[which], 7) : &mz_tpl_undefined;
    return f->kind == METHOD ? mz_tpl_call_row(m, "method", f->callee, s, &(arguments){0}) : NULL;
}
static const callee tests[] = {RUNS_AS("odd", "", 0, is_parity, 1),
                               RUNS_AS("even", "", 0, is_parity, 0),
                               RUNS("divisibleby", "num", 1, is_divisible),
                               RUNS("defined", "", 0, is_defined),
                               RUNS("undefined", "", 0, is_undefined),
                               RUNS("filter", "", 0, is_filter),
                               RUNS("test", "", 0, is_test),
                               RUNS("none", "", 0, is_none),
                               RUNS("boolean", "", 0, is_boolean),
                               RUNS("false", "", 0, is_false),
                               RUNS("true", "", 0, is_true),
                               RUNS("integer", "", 0, is_integer),
                               RUNS("float", "", 0, is_float),
                               RUNS_AS("lower", "", 0, is_cased, IS_LOWER),
                               RUNS_AS("upper", "", 0, is_cased, IS_UPPER),
                               RUNS("string", "", 0, is_string),
                               RUNS("mapping", "", 0, is_mapping),
                               RUNS("number", "", 0, is_number),
                               RUNS("sequence", "", 0, is_sequence),
                               RUNS("iterable", "", 0, is_iterable),
                               RUNS("callable", "", 0, is_callable),
                               RUNS("sameas", "other", 1, is_same),
                               NOT_SUPPORTED("escaped"),
                               RUNS("in", "seq", 1, is_in),
                               RUNS_AS("eq equalto ==", "/b", 1, is_equal, true),
                               RUNS_AS("ne !=", "/b", 1, is_equal, false),
                               RUNS_AS("gt greaterthan >", "/b", 1, is_ordered, MORE),
                               RUNS_AS("ge >=", "/b", 1, is_ordered, SAME | MORE),
                               RUNS_AS("lt lessthan <", "/b", 1, is_ordered, LESS),
                               RUNS_AS("le <=", "/b", 1, is_ordered, LESS | SAME),
                               {0}};

// --- functions ------------------------------------------------------------------------------------------------------
static const value *range(machine *m, const value *v, const value **a) {
    int64_t from = 0, to = mz_tpl_int(m, a[0], 0), by = mz_tpl_int(m, a[2], 1);
    (void)v;
    if (a[1] != NULL) {
        from = to;
        to = mz_tpl_int(m, a[1], 0);
    }
    if (by == 0)
        refuse(m, MEZZO_ERR_FORMAT, "a range's step is 0");
    if (m->status != MEZZO_OK)
        return NULL;
    const int64_t far = INT64_C(1) << 60;
    if (from < -far || from > far || to < -far || to > far || by < -far || by > far) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "a range of such numbers is not supported");
        return NULL;
    }
    const int64_t n = by > 0 ? (to - from + by - 1) / by : (from - to - by - 1) / -by;
    if (n > MOST_RANGE) {
        refuse(m, MEZZO_ERR_FORMAT, "a range of more than %d numbers", MOST_RANGE);
        return NULL;
    }
    value *list = mz_tpl_list(m, RANGE, n > 0 && (by > 0 ? from < to : from > to) ? (size_t)n : 0);
    for (int64_t i = 0; list != NULL && i < list->n && m->status == MEZZO_OK; i++)
        list->at[i] = mz_tpl_integer(m, from + i * by);
    return list;
}

static const value *make_map(machine *m, const value *self, const arguments *a, int kind) {
    (void)self;
    value *v = mz_tpl_map(m, (value_kind)kind, a->n);
    for (size_t i = 0; v != NULL && i < a->n && m->status == MEZZO_OK; i++) {
        const value *from = a->at[i];
        if (a->name[i] != NULL) {
            mz_tpl_put(m, v, mz_tpl_string(m, a->name[i], NULL, a->length[i]), from);
        } else if (i > 0 || from->kind != MAP) {
            refuse(m, i > 0 ? MEZZO_ERR_FORMAT : MEZZO_ERR_UNSUPPORTED, "a map of %s is not supported",
                   mz_tpl_kind_name(from));
        } else {
            for (int64_t k = 0; k < from->n; k++)
                mz_tpl_put(m, v, from->key[k], from->at[k]);
        }
    }
    return v;
}

static const value *raise_exception(machine *m, const value *v, const value **a) {
    (void)v;
    refuse(m, MEZZO_ERR_INVALID, "the template refuses this conversation: %s",
           a[0]->kind == STRING ? mz_quote_bytes(a[0]->text, a[0]->length).text : mz_tpl_kind_name(a[0]));
    return NULL;
}

static const value *strftime_now(machine *m, const value *v, const value **a) {
    (void)v;
    return mz_tpl_time(m, a[0]);
}

static const callee functions[] = {RUNS("range", "/start stop step", 1, range),
                                   BINDS("dict", make_map, MAP),
                                   BINDS("namespace", make_map, NAMESPACE),
                                   RUNS("raise_exception", "message", 1, raise_exception),
                                   RUNS("strftime_now", "format", 1, strftime_now),
                                   NOT_SUPPORTED("lipsum cycler joiner"),
                                   {0}};

const callee *mz_tpl_test(machine *m, const char *name, size_t n) {
    return mz_tpl_row(m, tests, name, n);
}
const callee *mz_tpl_function(machine *m, const char *name, size_t n) {
    return mz_tpl_row(m, functions, name, n);
}
