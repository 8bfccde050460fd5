// Evaluates the expressions of a chat template.
#include "data/template_machine.h"

static const value *variable(const node *x, const environment *e) {
    for (int up = x->up; up > 0; up--)
        e = e->up;
    const value *v = e->slot[x->slot];
    return v != NULL ? v : &mz_tpl_undefined;
}

// --- calls ----------------------------------------------------------------------------------------------------------
static void add_argument(machine *m, arguments *a, const value *is, const char *name, size_t n) {
    if (a->n == a->space) {
        const size_t space = 2 * a->space + 4;
        arguments more = {mz_tpl_room(m, space * sizeof *a->at), mz_tpl_room(m, space * sizeof *a->name),
                          mz_tpl_room(m, space * sizeof *a->length), a->n, space};
        if (more.at == NULL || more.name == NULL || more.length == NULL)
            return;
        if (a->n > 0) {
            memcpy(more.at, a->at, a->n * sizeof *a->at);
            memcpy(more.name, a->name, a->n * sizeof *a->name);
            memcpy(more.length, a->length, a->n * sizeof *a->length);
        }
        *a = more;
    }
    a->at[a->n] = is;
    a->name[a->n] = name;
    a->length[a->n++] = n;
}

// Adds the arguments of *list or **map.
static void add_several(machine *m, arguments *a, const value *v, bool named) {
    if (!named) {
        const value *items = mz_tpl_items(m, v);
        for (int64_t i = 0; i < items->n && m->status == MEZZO_OK; i++)
            add_argument(m, a, items->at[i], NULL, 0);
        return;
    }
    if (v->kind != MAP)
        refuse(m, MEZZO_ERR_FORMAT, "** of %s", mz_tpl_kind_name(v));
    for (int64_t i = 0; v->kind == MAP && i < v->n && m->status == MEZZO_OK; i++) {
        const value *key = v->key[i];
        if (key->kind != STRING)
            refuse(m, MEZZO_ERR_FORMAT, "** of a map with %s as a key", mz_tpl_kind_name(key));
        for (size_t k = 0; k < a->n; k++)
            if (a->name[k] != NULL && mz_tpl_is_text(key, a->name[k], a->length[k]))
                refuse(m, MEZZO_ERR_FORMAT, "an argument is given twice");
        add_argument(m, a, v->at[i], key->text, key->length);
    }
}

static void evaluate_arguments(machine *m, const node *x, environment *e, arguments *a) {
    *a = (arguments){0};
    for (size_t i = 0; i < x->kids.n && m->status == MEZZO_OK; i++) {
        const node *arg = x->kids.at[i];
        const value *is = mz_tpl_evaluate(m, arg->a, e);
        if (arg->star || arg->stars)
            add_several(m, a, is, arg->stars);
        else
            add_argument(m, a, is, arg->name, arg->length);
    }
}

const value *mz_tpl_call(machine *m, const value *f, const arguments *a) {
    if (m->status != MEZZO_OK)
        return &mz_tpl_undefined;
    if (f->kind == MACRO)
        return mz_tpl_call_macro(m, f, a);
    if (f->kind == METHOD || f->kind == FUNCTION)
        return mz_tpl_call_row(m, f->kind == METHOD ? "method" : "function", f->callee, f->self, a);
    if (f->kind == LOOP && a->n == 1 && a->name[0] == NULL)
        return mz_tpl_loop_again(m, f, a->at[0]);
    refuse(m, MEZZO_ERR_FORMAT, "a call of %s", mz_tpl_kind_name(f));
    return &mz_tpl_undefined;
}

static const value *call(machine *m, const node *x, environment *e) {
    arguments a;
    const value *f = mz_tpl_evaluate(m, x->a, e);
    evaluate_arguments(m, x, e, &a);
    if (x->is != NULL) // these belong to a call block
        add_argument(m, &a, x->is, "caller", 6);
    m->line = x->line;
    return mz_tpl_call(m, f, &a);
}

static const value *filtered(machine *m, const node *x, environment *e) {
    arguments a;
    const value *v = x->a != NULL ? mz_tpl_evaluate(m, x->a, e) : m->input;
    evaluate_arguments(m, x, e, &a);
    m->line = x->line;
    return mz_tpl_call_row(m, "filter", x->callee, v, &a);
}

static const value *tested(machine *m, const node *x, environment *e) {
    arguments a;
    const value *v = mz_tpl_evaluate(m, x->a, e);
    evaluate_arguments(m, x, e, &a);
    m->line = x->line;
    return mz_tpl_truth(mz_tpl_is_true(mz_tpl_call_row(m, "test", x->callee, v, &a)) != (x->op != 0));
}

// --- operators ------------------------------------------------------------------------------------------------------
static bool holds(machine *m, int op, const value *a, const value *b) {
    switch (op) {
    case T_EQ:
        return mz_tpl_equal(m, a, b);
    case T_NE:
        return !mz_tpl_equal(m, a, b);
    case T_LT:
        return mz_tpl_compare(m, a, b) < 0;
    case T_LE:
        return mz_tpl_compare(m, a, b) <= 0;
    case T_GT:
        return mz_tpl_compare(m, a, b) > 0;
    case T_GE:
        return mz_tpl_compare(m, a, b) >= 0;
    case T_IN:
        return mz_tpl_contains(m, b, a);
    default:
        return !mz_tpl_contains(m, b, a);
    }
}

// Evaluates a < b < c: each operand once, up to the first comparison that is false.
static const value *compared(machine *m, const node *x, environment *e) {
    const value *left = mz_tpl_evaluate(m, x->a, e);
    for (size_t i = 0; i < x->kids.n && m->status == MEZZO_OK; i++) {
        const value *right = mz_tpl_evaluate(m, x->kids.at[i]->a, e);
        m->line = x->line;
        if (m->status != MEZZO_OK || !holds(m, x->kids.at[i]->op, left, right))
            return &mz_tpl_no;
        left = right;
    }
    return &mz_tpl_yes;
}

static const value *concatenated(machine *m, const node *x, environment *e) {
    const value *all = NULL;
    for (size_t i = 0; i < x->kids.n && m->status == MEZZO_OK; i++) {
        const value *part = mz_tpl_printed(m, mz_tpl_evaluate(m, x->kids.at[i], e));
        all = all != NULL ? mz_tpl_joined(m, all, part) : part;
    }
    return all;
}

static const value *junction(machine *m, const node *x, environment *e) {
    const value *v = &mz_tpl_undefined;
    for (size_t i = 0; i < x->kids.n && m->status == MEZZO_OK; i++) {
        v = mz_tpl_evaluate(m, x->kids.at[i], e);
        if (mz_tpl_is_true(v) == (x->kind == OR))
            break;
    }
    return v;
}

static const value *negative(machine *m, const node *x, environment *e) {
    const value *v = mz_tpl_evaluate(m, x->a, e);
    if (!mz_tpl_is_number(v)) {
        refuse(m, MEZZO_ERR_FORMAT, "a sign before %s", mz_tpl_kind_name(v));
        return &mz_tpl_undefined;
    }
    if (v->kind == REAL)
        return mz_tpl_real(m, x->op == T_SUB ? -v->real : v->real);
    return mz_tpl_arithmetic(m, x->op == T_SUB ? T_SUB : T_ADD, mz_tpl_integer(m, 0), v);
}

static const value *collected(machine *m, const node *x, environment *e) {
    value *list = mz_tpl_list(m, x->kind == LIST_OF ? LIST : TUPLE, x->kids.n);
    for (size_t i = 0; list != NULL && i < x->kids.n && m->status == MEZZO_OK; i++)
        list->at[i] = mz_tpl_evaluate(m, x->kids.at[i], e);
    return list;
}

static const value *mapped(machine *m, const node *x, environment *e) {
    value *map = mz_tpl_map(m, MAP, x->kids.n / 2);
    for (size_t i = 0; map != NULL && i + 1 < x->kids.n && m->status == MEZZO_OK; i += 2) {
        const value *key = mz_tpl_evaluate(m, x->kids.at[i], e), *is = mz_tpl_evaluate(m, x->kids.at[i + 1], e);
        (void)mz_tpl_member(m, map, key); // it refuses a value that cannot be a key
        mz_tpl_put(m, map, key, is);
    }
    return map;
}

static const value *sliced(machine *m, const value *of, const node *x, environment *e) {
    const node *bounds[3] = {x->a, x->b, x->c};
    const value *at[3];
    for (int i = 0; i < 3; i++)
        at[i] = bounds[i] != NULL ? mz_tpl_evaluate(m, bounds[i], e) : &mz_tpl_none;
    return m->status == MEZZO_OK ? mz_tpl_slice(m, of, at[0], at[1], at[2]) : NULL;
}

static const value *subscript(machine *m, const node *x, environment *e) {
    const value *of = mz_tpl_evaluate(m, x->a, e);
    if (x->b->kind == SLICE)
        return sliced(m, of, x->b, e);
    const value *key = mz_tpl_evaluate(m, x->b, e);
    m->line = x->line;
    return mz_tpl_getitem(m, of, key);
}

static const value *choice(machine *m, const node *x, environment *e) {
    const bool is = mz_tpl_is_true(mz_tpl_evaluate(m, x->a, e));
    const node *chosen = is ? x->b : x->c;
    return chosen != NULL ? mz_tpl_evaluate(m, chosen, e) : &mz_tpl_undefined;
}

static const value *evaluate(machine *m, const node *x, environment *e) {
    const value *a, *b;
    switch (x->kind) {
    case CONSTANT:
        return x->is;
    case NAME:
        return variable(x, e);
    case TUPLE_OF:
    case LIST_OF:
        return collected(m, x, e);
    case MAP_OF:
        return mapped(m, x, e);
    case CONDITION:
        return choice(m, x, e);
    case OR:
    case AND:
        return junction(m, x, e);
    case NOT:
        return mz_tpl_truth(!mz_tpl_is_true(mz_tpl_evaluate(m, x->a, e)));
    case COMPARE:
        return compared(m, x, e);
    case ARITHMETIC:
        a = mz_tpl_evaluate(m, x->a, e);
        b = mz_tpl_evaluate(m, x->b, e);
        m->line = x->line;
        return mz_tpl_arithmetic(m, (token_kind)x->op, a, b);
    case CONCAT:
        return concatenated(m, x, e);
    case NEGATE:
        return negative(m, x, e);
    case CALL:
        return call(m, x, e);
    case FILTER:
        return filtered(m, x, e);
    case TEST:
        return tested(m, x, e);
    case GETATTR:
        a = mz_tpl_evaluate(m, x->a, e);
        m->line = x->line;
        return m->status == MEZZO_OK ? mz_tpl_getattr(m, a, x->name, x->length) : NULL;
    case GETITEM:
        return subscript(m, x, e);
    default:
        return NULL;
    }
}

const value *mz_tpl_evaluate(machine *m, const node *x, environment *e) {
    if (m->status != MEZZO_OK)
        return &mz_tpl_undefined;
    m->line = x->line;
    mz_tpl_spend(m, 0);
    if (++m->depth > MOST_DEPTH)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template is too deep");
    const value *v = m->status == MEZZO_OK ? evaluate(m, x, e) : NULL;
    m->depth--;
    return v != NULL && m->status == MEZZO_OK ? v : &mz_tpl_undefined;
}
