// Decides which variable a name of a chat template means. Jinja decides that at compile time: a scope (the template, a
// loop's body, a macro …) owns each name that it assigns anywhere; a name that it does not own belongs to an outer
// scope or, if none owns it, to the values that the template was given.
#include "data/template_machine.h"

static void visit(machine *m, scope *s, const node *x);
static void bind_target(machine *m, scope *s, node *x);

static bool mentions(const node *x, const char *name, bool assigned) {
    if (x == NULL)
        return false;
    if (x->kind == NAME && (x->op == 1) == assigned && x->length == strlen(name) &&
        memcmp(x->name, name, x->length) == 0)
        return true;
    return mentions(x->a, name, assigned) || mentions(x->b, name, assigned) || mentions(x->c, name, assigned) ||
           mz_tpl_mentions(&x->kids, name, assigned) || mz_tpl_mentions(&x->body, name, assigned) ||
           mz_tpl_mentions(&x->other, name, assigned);
}

bool mz_tpl_mentions(const nodes *list, const char *name, bool assigned) {
    for (size_t i = 0; i < list->n; i++)
        if (mentions(list->at[i], name, assigned))
            return true;
    return false;
}

static symbol *find_symbol(const scope *s, const char *name, size_t n) {
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].length == n && memcmp(s->at[i].name, name, n) == 0)
            return &s->at[i];
    return NULL;
}

static const symbol *present(const scope *s, const char *name, size_t n) {
    const symbol *x = find_symbol(s, name, n);
    return x != NULL && x->present ? x : NULL;
}

// Finds a variable in a scope or the ones around it: *up is the number of scopes outward, *slot its slot there.
static bool find_variable(const scope *s, const char *name, size_t n, int *up, int *slot) {
    for (*up = 0; s != NULL; s = s->parent, ++*up) {
        const symbol *x = present(s, name, n);
        if (x != NULL) {
            *slot = (int)(x - s->at);
            return true;
        }
    }
    return false;
}

static symbol *define(machine *m, scope *s, const char *name, size_t n, load_kind load) {
    static _Thread_local symbol none;
    symbol *x = find_symbol(s, name, n);
    if (x == NULL) {
        mz_tpl_spend(m, s->n * sizeof *x);
        if (!MZ_TPL_GROW(m, s->at, s->n, s->cap))
            return &none;
        x = &s->at[s->n++];
        *x = (symbol){.name = name, .length = n};
    }
    x->present = true;
    x->load = load;
    if (load == ALIAS) {
        (void)find_variable(s->parent, name, n, &x->up, &x->slot);
        x->up++;
    }
    return x;
}

static void declare(machine *m, scope *s, const char *name, size_t n) {
    define(m, s, name, n, PARAM)->stored = true;
}

static void store(machine *m, scope *s, const char *name, size_t n) {
    int up, slot;
    if (present(s, name, n) == NULL)
        define(m, s, name, n, s->parent != NULL && find_variable(s->parent, name, n, &up, &slot) ? ALIAS : UNSET);
    symbol *x = find_symbol(s, name, n);
    if (x != NULL)
        x->stored = true;
}

// --- ownership ------------------------------------------------------------------------------------------------------
static void visit_all(machine *m, scope *s, const nodes *list) {
    for (size_t i = 0; i < list->n && m->status == MEZZO_OK; i++)
        visit(m, s, list->at[i]);
}

static void declare_target(machine *m, scope *s, const node *x) {
    if (x->kind == NAME)
        declare(m, s, x->name, x->length);
    for (size_t i = 0; i < x->kids.n; i++)
        declare_target(m, s, x->kids.at[i]);
}

typedef struct branch { // the symbols after a branch
    symbol *at;
    size_t n;
} branch;

static branch copy_symbols(machine *m, const scope *s) {
    branch b = {mz_tpl_room(m, (s->n + 1) * sizeof *b.at), s->n};
    mz_tpl_spend(m, s->n * sizeof *b.at);
    if (b.at != NULL && s->n > 0)
        memcpy(b.at, s->at, s->n * sizeof *b.at);
    return b;
}

// Restores the symbols from before a branch; names that another branch added are absent.
static void restore(scope *s, const branch *before) {
    for (size_t i = 0; i < s->n; i++) {
        if (i < before->n)
            s->at[i] = before->at[i];
        else
            s->at[i].present = s->at[i].stored = false;
    }
}

static branch visit_branch(machine *m, scope *s, const branch *before, const nodes *list) {
    visit_all(m, s, list);
    branch after = copy_symbols(m, s);
    restore(s, before);
    return after;
}

// Joins branches: a name that only some of them assign keeps its outer value in the others.
static void join_branches(scope *s, const branch *branches, size_t n) {
    for (size_t i = 0; i < s->n; i++) {
        symbol *x = &s->at[i];
        const bool stored = x->stored;
        bool assigned = false;
        for (size_t k = 0; k < n; k++) {
            const symbol *y = i < branches[k].n ? &branches[k].at[i] : NULL;
            if (y == NULL || !y->present)
                continue;
            const bool was = x->stored;
            *x = *y;
            x->stored |= was;
            assigned |= y->stored;
        }
        if (!assigned || stored)
            continue;
        int up, slot;
        const bool outside = s->parent != NULL && find_variable(s->parent, x->name, x->length, &up, &slot);
        x->load = outside ? ALIAS : RESOLVE;
        x->up = outside ? up + 1 : 0;
        x->slot = outside ? slot : 0;
    }
}

static void visit_if(machine *m, scope *s, const node *x) {
    visit(m, s, x->a);
    const branch before = copy_symbols(m, s);
    branch branches[3];
    branches[0] = visit_branch(m, s, &before, &x->body);
    branches[1] = visit_branch(m, s, &before, &x->kids);
    branches[2] = visit_branch(m, s, &before, &x->other);
    if (m->status == MEZZO_OK)
        join_branches(s, branches, 3);
}

// Visits the names of x that this scope looks up; inner scopes are visited when they are bound.
static void visit(machine *m, scope *s, const node *x) {
    int up, slot;
    if (x == NULL || m->status != MEZZO_OK)
        return;
    switch (x->kind) {
    case NAME:
        if (x->op == 1)
            store(m, s, x->name, x->length);
        else if (!find_variable(s, x->name, x->length, &up, &slot))
            define(m, s, x->name, x->length, RESOLVE);
        return;
    case IF:
        visit_if(m, s, x);
        return;
    case MACRO_DEF:
        store(m, s, x->name, x->length);
        return;
    case SET:
        visit(m, s, x->b);
        visit(m, s, x->a);
        return;
    case SET_BLOCK:
    case CALL_BLOCK:
        visit(m, s, x->a);
        return;
    case FOR:
    case FILTER_BLOCK:
        visit(m, s, x->b);
        return;
    case WITH:
        for (size_t i = 0; i < x->kids.n; i++)
            visit(m, s, x->kids.at[i]->b);
        return;
    case GENERATION:
        return;
    case CONDITION: // visits nodes in the order of evaluation
        visit(m, s, x->a);
        visit(m, s, x->b);
        visit(m, s, x->c);
        return;
    default:
        visit(m, s, x->a);
        visit(m, s, x->b);
        visit(m, s, x->c);
        visit_all(m, s, &x->kids);
    }
}

// --- names get their variables --------------------------------------------------------------------------------------
static scope *inner(machine *m, scope *parent) {
    static _Thread_local scope none;
    scope *s = mz_tpl_room(m, sizeof *s);
    if (s == NULL)
        return &none;
    s->parent = parent;
    return s;
}

static void bind_all(machine *m, scope *s, const nodes *list) {
    for (size_t i = 0; i < list->n && m->status == MEZZO_OK; i++)
        bind_target(m, s, list->at[i]);
}

static void bind_for(machine *m, scope *s, node *x) {
    x->scope = inner(m, s);
    x->test_scope = inner(m, s);
    x->else_scope = inner(m, s);
    declare_target(m, x->scope, x->a); // first, so that its variables have the same slots where the condition is
                                       // evaluated
    if (x->takes_loop)
        declare(m, x->scope, "loop", 4);
    visit_all(m, x->scope, &x->body);
    visit_all(m, x->else_scope, &x->other);
    declare_target(m, x->test_scope, x->a);
    visit(m, x->test_scope, x->c);
    bind_target(m, s, x->b);
    bind_target(m, x->test_scope, x->c);
    bind_target(m, x->scope, x->a);
    bind_all(m, x->scope, &x->body);
    bind_all(m, x->else_scope, &x->other);
}

static void bind_macro(machine *m, scope *s, node *x) {
    x->scope = inner(m, s);
    for (size_t i = 0; i < x->kids.n; i++)
        declare(m, x->scope, x->kids.at[i]->name, x->kids.at[i]->length);
    for (size_t i = 0; i < x->kids.n; i++)
        visit(m, x->scope, x->kids.at[i]->a);
    visit_all(m, x->scope, &x->body);
    static const char *const special[] = {"caller", "kwargs", "varargs"};
    const bool takes[] = {x->takes_caller, x->takes_kwargs, x->takes_varargs};
    for (size_t i = 0; i < MZ_COUNT(special); i++)
        if (takes[i])
            declare(m, x->scope, special[i], strlen(special[i]));
    bind_all(m, x->scope, &x->kids);
    for (size_t i = 0; i < x->kids.n; i++)
        bind_target(m, x->scope, x->kids.at[i]->a);
    bind_all(m, x->scope, &x->body);
}

static void bind_name(machine *m, const scope *s, node *x) {
    m->line = x->line;
    if (!find_variable(s, x->name, x->length, &x->up, &x->slot))
        refuse(m, MEZZO_ERR_FORMAT, "the name %s stands where Jinja cannot look it up",
               mz_quote_bytes(x->name, x->length).text);
}

static void bind_target(machine *m, scope *s, node *x) {
    if (x == NULL || m->status != MEZZO_OK)
        return;
    switch (x->kind) {
    case NAME:
        bind_name(m, s, x);
        return;
    case FOR:
        bind_for(m, s, x);
        return;
    case MACRO_DEF:
        bind_macro(m, s, x);
        bind_name(m, s, x);
        return;
    case CALL_BLOCK:
        bind_macro(m, s, x);
        bind_target(m, s, x->a);
        return;
    case GENERATION:
        bind_macro(m, s, x);
        return;
    case SET_BLOCK:
        x->scope = inner(m, s);
        visit_all(m, x->scope, &x->body);
        bind_all(m, x->scope, &x->body);
        bind_target(m, x->scope, x->b);
        bind_target(m, s, x->a);
        return;
    case FILTER_BLOCK:
        x->scope = inner(m, s);
        visit_all(m, x->scope, &x->body);
        visit(m, x->scope, x->b);
        bind_all(m, x->scope, &x->body);
        bind_target(m, x->scope, x->b);
        return;
    case WITH:
        x->scope = inner(m, s);
        for (size_t i = 0; i < x->kids.n; i++)
            declare_target(m, x->scope, x->kids.at[i]->a);
        visit_all(m, x->scope, &x->body);
        for (size_t i = 0; i < x->kids.n; i++) {
            bind_target(m, x->scope, x->kids.at[i]->a);
            bind_target(m, s, x->kids.at[i]->b);
        }
        bind_all(m, x->scope, &x->body);
        return;
    default:
        bind_target(m, s, x->a);
        bind_target(m, s, x->b);
        bind_target(m, s, x->c);
        bind_all(m, s, &x->kids);
        bind_all(m, s, &x->body);
        bind_all(m, s, &x->other);
    }
}

void mz_tpl_bind(machine *m, nodes *body) {
    m->root = inner(m, NULL);
    visit_all(m, m->root, body);
    bind_all(m, m->root, body);
}
