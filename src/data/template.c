// Runs the statements of a chat template.
#include "data/template_machine.h"

static leaving run(machine *m, const nodes *body, environment *e);

// --- variables ------------------------------------------------------------------------------------------------------
static const value *resolve(machine *m, const char *name, size_t n) {
    const value *is = mz_tpl_member_named(m, m->values, name, n);
    const callee *row = is == NULL ? mz_tpl_function(m, name, n) : NULL;
    if (row == NULL)
        return is;
    value *f = mz_tpl_new_value(m, FUNCTION);
    if (f != NULL)
        f->callee = row;
    return f;
}

static environment *enter(machine *m, const scope *s, environment *up) {
    environment *e = mz_tpl_room(m, sizeof *e + s->n * sizeof *e->slot);
    if (e == NULL)
        return NULL;
    e->up = up;
    for (size_t i = 0; i < s->n; i++) {
        const symbol *x = &s->at[i];
        if (!x->present || x->load == PARAM || x->load == UNSET)
            continue;
        if (x->load == RESOLVE) {
            e->slot[i] = resolve(m, x->name, x->length);
            continue;
        }
        const environment *outer = e;
        for (int k = x->up; k > 0; k--)
            outer = outer->up;
        e->slot[i] = outer->slot[x->slot];
    }
    return m->status == MEZZO_OK ? e : NULL;
}

static void set_special(const scope *s, environment *e, const char *name, const value *is) {
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].length == strlen(name) && memcmp(s->at[i].name, name, s->at[i].length) == 0)
            e->slot[i] = is;
}

static value *namespace_of(machine *m, const node *x, environment *e) {
    const value *space = mz_tpl_evaluate(m, x->a, e);
    if (space->kind != NAMESPACE)
        refuse(m, MEZZO_ERR_FORMAT, "a member is assigned to %s, which is no namespace", mz_tpl_kind_name(space));
    return m->status == MEZZO_OK ? (value *)(uintptr_t)space : NULL; // it lies in the arena
}

static void assign(machine *m, const node *x, const value *is, environment *e) {
    if (m->status != MEZZO_OK)
        return;
    if (x->kind == NAME) {
        for (int up = x->up; up > 0; up--)
            e = e->up;
        e->slot[x->slot] = is;
        return;
    }
    if (x->kind == ATTRIBUTE_OF) {
        value *space = namespace_of(m, x, e);
        if (space != NULL)
            mz_tpl_put(m, space, mz_tpl_string(m, x->name, NULL, x->length), is);
        return;
    }
    const value *items = mz_tpl_items(m, is);
    if (m->status == MEZZO_OK && items->n != (int64_t)x->kids.n)
        refuse(m, MEZZO_ERR_FORMAT, "%lld values for %zu names", (long long)items->n, x->kids.n);
    for (size_t i = 0; i < x->kids.n && m->status == MEZZO_OK; i++)
        assign(m, x->kids.at[i], items->at[i], e);
}

// --- output ---------------------------------------------------------------------------------------------------------
static void print(machine *m, const value *v) {
    const size_t before = m->out->text.len;
    mz_tpl_say_value(m, m->out, v);
    m->bytes += 2 * (m->out->text.len - before);
    if (m->bytes > m->most_bytes)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template takes more than %zu MiB of memory", m->most_bytes >> 20);
    if (m->out->text.status != MEZZO_OK || m->out->told.status != MEZZO_OK)
        m->status = MEZZO_ERR_MEMORY;
}

// Returns what `body` writes, as a string; NULL: break or continue left it, or an error.
static const value *capture(machine *m, const nodes *body, environment *e, leaving *how) {
    mz_marked_text said = {0}, *out = m->out;
    m->out = &said;
    *how = e != NULL ? run(m, body, e) : STAY;
    m->out = out;
    const value *v = mz_tpl_said(m, &said);
    return *how == STAY && m->status == MEZZO_OK ? v : NULL;
}

// --- loops ----------------------------------------------------------------------------------------------------------
static const value *next_item(machine *m, loop *l) {
    while (l->p < l->n && m->status == MEZZO_OK) {
        const value *item = l->at[l->p++];
        if (l->test == NULL)
            return item;
        assign(m, l->of->a, item, l->test);
        if (mz_tpl_is_true(mz_tpl_evaluate(m, l->of->c, l->test)) && m->status == MEZZO_OK)
            return item;
    }
    return NULL;
}

static const value *peek(machine *m, loop *l) {
    if (l->after == NULL)
        l->after = next_item(m, l);
    return l->after;
}

// Counts a loop's items; a condition is evaluated for all remaining items.
static int64_t loop_length(machine *m, loop *l) {
    if (l->length >= 0)
        return l->length;
    const value **at = mz_tpl_room(m, (size_t)(l->n - l->p) * sizeof *at), *item;
    int64_t n = 0;
    while (at != NULL && (item = next_item(m, l)) != NULL)
        at[n++] = item;
    l->at = at;
    l->n = n;
    l->p = 0;
    l->test = NULL;
    return l->length = n + l->index0 + 1 + (l->after != NULL);
}

static const value *cycle(machine *m, const value *self, const arguments *a, int how) {
    (void)how;
    for (size_t i = 0; i < a->n; i++)
        if (a->name[i] != NULL)
            refuse(m, MEZZO_ERR_FORMAT, "loop.cycle takes no names");
    if (a->n == 0)
        refuse(m, MEZZO_ERR_FORMAT, "loop.cycle of nothing");
    return m->status == MEZZO_OK ? a->at[(size_t)self->loop->index0 % a->n] : &mz_tpl_undefined;
}

static const value *changed(machine *m, const value *self, const arguments *a, int how) {
    (void)how;
    value *now = mz_tpl_list(m, TUPLE, a->n);
    for (size_t i = 0; now != NULL && i < a->n; i++) {
        now->at[i] = a->at[i];
        if (a->name[i] != NULL)
            refuse(m, MEZZO_ERR_FORMAT, "loop.changed takes no names");
    }
    const bool is = now != NULL && (self->loop->changed == NULL || !mz_tpl_equal(m, self->loop->changed, now));
    if (is)
        self->loop->changed = now;
    return mz_tpl_truth(is);
}

static const callee loop_methods[] = {BINDS("cycle", cycle, 0), BINDS("changed", changed, 0)};

static bool named(const char *name, size_t n, const char *is) {
    return strlen(is) == n && memcmp(name, is, n) == 0;
}

const value *mz_tpl_loop_member(machine *m, const value *v, const char *name, size_t n) {
    loop *l = v->loop;
    if (named(name, n, "index0"))
        return mz_tpl_integer(m, l->index0);
    if (named(name, n, "index"))
        return mz_tpl_integer(m, l->index0 + 1);
    if (named(name, n, "revindex0"))
        return mz_tpl_integer(m, loop_length(m, l) - l->index0 - 1);
    if (named(name, n, "revindex"))
        return mz_tpl_integer(m, loop_length(m, l) - l->index0);
    if (named(name, n, "length"))
        return mz_tpl_integer(m, loop_length(m, l));
    if (named(name, n, "first"))
        return mz_tpl_truth(l->index0 == 0);
    if (named(name, n, "last"))
        return mz_tpl_truth(peek(m, l) == NULL);
    if (named(name, n, "previtem"))
        return l->index0 > 0 ? l->before : &mz_tpl_undefined;
    if (named(name, n, "nextitem"))
        return peek(m, l);
    if (named(name, n, "depth"))
        return mz_tpl_integer(m, l->depth + 1);
    if (named(name, n, "depth0"))
        return mz_tpl_integer(m, l->depth);
    for (size_t i = 0; i < MZ_COUNT(loop_methods); i++)
        if (named(name, n, loop_methods[i].name)) {
            value *method = mz_tpl_new_value(m, METHOD);
            if (method == NULL)
                return NULL;
            method->callee = &loop_methods[i];
            method->self = v;
            return method;
        }
    if (n > 0 && name[0] == '_')
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the member %s of a loop is not supported", mz_quote_bytes(name, n).text);
    return NULL;
}

// Begins the span of a message of the conversation, and returns its index.
static size_t begin_span(machine *m, const value *item) {
    if (item->message == 0 || m->out != m->root_out)
        return SIZE_MAX;
    if (m->status == MEZZO_OK && MZ_RESERVE(m->spans->at, m->spans->cap, m->spans->n + 1) != MEZZO_OK)
        m->status = MEZZO_ERR_MEMORY;
    if (m->status != MEZZO_OK)
        return SIZE_MAX;
    m->spans->at[m->spans->n] = (mz_template_span){(size_t)item->message - 1, m->out->text.len, m->out->text.len};
    return m->spans->n++;
}

static leaving turn(machine *m, const node *x, const value *item, const value *self, environment *e) {
    environment *inside = enter(m, x->scope, e);
    if (inside == NULL)
        return LEAVE_LOOP;
    assign(m, x->a, item, inside);
    if (x->takes_loop)
        set_special(x->scope, inside, "loop", self);
    const size_t span = begin_span(m, item);
    const leaving how = run(m, &x->body, inside);
    if (span != SIZE_MAX)
        m->spans->at[span].to = m->out->text.len;
    return how;
}

static void run_loop(machine *m, const node *x, const value *over, environment *e, int64_t depth) {
    const value *items = mz_tpl_items(m, over), *item;
    value *self = mz_tpl_new_value(m, LOOP);
    loop *l = mz_tpl_room(m, sizeof *l);
    if (self == NULL || l == NULL)
        return;
    *l = (loop){.at = items->at, .n = items->n, .index0 = -1, .length = items->n, .depth = depth, .of = x, .scope = e};
    if (x->c != NULL) {
        l->length = -1;
        l->test = enter(m, x->test_scope, e);
    }
    self->loop = l;
    bool nothing = true;
    while (m->status == MEZZO_OK && (item = peek(m, l)) != NULL) {
        l->after = NULL;
        l->index0++;
        l->before = l->current;
        l->current = item;
        const leaving how = turn(m, x, item, self, e);
        nothing &= how != STAY; // as in Jinja: else also runs where each turn was cut short
        if (how == LEAVE_LOOP)
            break;
    }
    environment *other = m->status == MEZZO_OK && nothing && x->other.n > 0 ? enter(m, x->else_scope, e) : NULL;
    if (other != NULL)
        (void)run(m, &x->other, other);
}

const value *mz_tpl_loop_again(machine *m, const value *v, const value *items) {
    const loop *l = v->loop;
    mz_marked_text said = {0}, *out = m->out;
    if (!l->of->recursive)
        refuse(m, MEZZO_ERR_FORMAT, "a call of a loop that is not recursive");
    if (m->status != MEZZO_OK)
        return &mz_tpl_undefined;
    m->out = &said;
    run_loop(m, l->of, items, l->scope, l->depth + 1);
    m->out = out;
    return mz_tpl_said(m, &said);
}

static void run_for(machine *m, const node *x, environment *e) {
    mz_marked_text said = {0}, *out = m->out;
    const value *over = mz_tpl_evaluate(m, x->b, e);
    if (!x->recursive) {
        run_loop(m, x, over, e, 0);
        return;
    }
    m->out = &said;
    run_loop(m, x, over, e, 0);
    m->out = out;
    print(m, mz_tpl_said(m, &said));
}

// --- macros ---------------------------------------------------------------------------------------------------------
static const value *take_named(arguments *a, const char *name, size_t n) {
    for (size_t i = 0; i < a->n; i++)
        if (a->name[i] != NULL && a->length[i] == n && memcmp(a->name[i], name, n) == 0) {
            const value *is = a->at[i];
            a->at[i] = NULL;
            return is;
        }
    return NULL;
}

// Returns the remaining arguments: by name as a map, or by position as a tuple.
static const value *others(machine *m, const arguments *a, bool by_name, size_t from) {
    value *rest = by_name ? mz_tpl_map(m, MAP, a->n) : mz_tpl_list(m, TUPLE, a->n);
    size_t n = 0;
    for (size_t i = from; rest != NULL && i < a->n; i++) {
        if (a->at[i] == NULL || (a->name[i] != NULL) != by_name)
            continue;
        if (by_name)
            mz_tpl_put(m, rest, mz_tpl_string(m, a->name[i], NULL, a->length[i]), a->at[i]);
        else
            rest->at[n++] = a->at[i];
    }
    if (rest != NULL && !by_name)
        rest->n = (int64_t)n;
    return rest;
}

static void bind_arguments(machine *m, const node *x, environment *e, arguments *a) {
    const size_t n = x->kids.n;
    size_t placed = 0;
    while (placed < a->n && placed < n && a->name[placed] == NULL)
        placed++;
    for (size_t i = 0; i < n; i++)
        e->slot[x->kids.at[i]->slot] =
            i < placed ? a->at[i] : take_named(a, x->kids.at[i]->name, x->kids.at[i]->length);
    if (x->takes_caller) {
        const value *caller = take_named(a, "caller", 6);
        set_special(x->scope, e, "caller", caller != NULL ? caller : &mz_tpl_undefined);
    }
    const value *by_name = others(m, a, true, 0), *by_place = others(m, a, false, placed);
    if (by_name == NULL || by_place == NULL)
        return;
    if (x->takes_kwargs)
        set_special(x->scope, e, "kwargs", by_name);
    else if (by_name->n > 0)
        refuse(m, MEZZO_ERR_FORMAT, "the macro has no argument %s",
               mz_quote_bytes(by_name->key[0]->text, by_name->key[0]->length).text);
    if (x->takes_varargs)
        set_special(x->scope, e, "varargs", by_place);
    else if (by_place->n > 0)
        refuse(m, MEZZO_ERR_FORMAT, "the macro takes %zu arguments, not %zu", n, placed + (size_t)by_place->n);
    for (size_t i = 0; i < n && m->status == MEZZO_OK; i++) {
        const node *arg = x->kids.at[i];
        if (e->slot[arg->slot] == NULL)
            e->slot[arg->slot] = arg->a != NULL ? mz_tpl_evaluate(m, arg->a, e) : &mz_tpl_undefined;
    }
}

const value *mz_tpl_call_macro(machine *m, const value *macro, const arguments *given) {
    const node *x = macro->macro;
    environment *e = enter(m, x->scope, macro->scope);
    arguments a = *given;
    leaving how;
    a.at = mz_tpl_room(m, a.n * sizeof *a.at);
    if (e == NULL || a.at == NULL)
        return &mz_tpl_undefined;
    if (a.n > 0)
        memcpy(a.at, given->at, a.n * sizeof *a.at);
    bind_arguments(m, x, e, &a);
    const value *v = capture(m, &x->body, e, &how);
    return v != NULL ? v : &mz_tpl_undefined;
}

static const value *macro_of(machine *m, const node *x, environment *e) {
    value *macro = mz_tpl_new_value(m, MACRO);
    if (macro == NULL)
        return NULL;
    macro->macro = x;
    macro->scope = e;
    return macro;
}

static void run_call_block(machine *m, const node *x, environment *e) {
    node call = *x->a; // with the contents of the block
    call.is = macro_of(m, x, e);
    if (m->status == MEZZO_OK)
        print(m, mz_tpl_evaluate(m, &call, e));
}

// Renders what the template marks as the model's text.
static void run_generation(machine *m, const node *x, environment *e) {
    leaving how;
    const value *v = capture(m, &x->body, enter(m, x->scope, e), &how);
    if (v == NULL)
        return;
    char *marks = mz_tpl_room(m, v->length);
    for (size_t i = 0; marks != NULL && i < v->length; i++)
        marks[i] = (char)(v->told[i] | MZ_MARK_GENERATED);
    if (marks != NULL)
        print(m, mz_tpl_string(m, v->text, marks, v->length));
}

// --- statements -----------------------------------------------------------------------------------------------------
static const value *filter_block(machine *m, const node *x, environment *e, leaving *how) {
    environment *inside = enter(m, x->scope, e);
    const value *v = capture(m, &x->body, inside, how);
    if (v == NULL || x->b == NULL)
        return v;
    const value *before = m->input;
    m->input = v;
    v = mz_tpl_evaluate(m, x->b, inside);
    m->input = before;
    return v;
}

static leaving run_if(machine *m, const node *x, environment *e) {
    if (mz_tpl_is_true(mz_tpl_evaluate(m, x->a, e)))
        return run(m, &x->body, e);
    for (size_t i = 0; i < x->kids.n && m->status == MEZZO_OK; i++)
        if (mz_tpl_is_true(mz_tpl_evaluate(m, x->kids.at[i]->a, e)))
            return run(m, &x->kids.at[i]->body, e);
    return run(m, &x->other, e);
}

static void check_namespaces(machine *m, const node *target, environment *e) {
    if (target->kind == ATTRIBUTE_OF)
        (void)namespace_of(m, target, e);
    for (size_t i = 0; i < target->kids.n; i++)
        check_namespaces(m, target->kids.at[i], e);
}

static leaving run_with(machine *m, const node *x, environment *e) {
    environment *inside = enter(m, x->scope, e);
    for (size_t i = 0; inside != NULL && i < x->kids.n; i++)
        assign(m, x->kids.at[i]->a, mz_tpl_evaluate(m, x->kids.at[i]->b, e), inside);
    return inside != NULL ? run(m, &x->body, inside) : STAY;
}

static leaving statement(machine *m, const node *x, environment *e) {
    leaving how = STAY;
    const value *v;
    m->line = x->line;
    switch (x->kind) {
    case OUTPUT:
        for (size_t i = 0; i < x->kids.n && m->status == MEZZO_OK; i++)
            print(m, mz_tpl_evaluate(m, x->kids.at[i], e));
        break;
    case FOR:
        run_for(m, x, e);
        break;
    case IF:
        return run_if(m, x, e);
    case MACRO_DEF:
        e->slot[x->slot] = macro_of(m, x, e);
        break;
    case CALL_BLOCK:
        run_call_block(m, x, e);
        break;
    case FILTER_BLOCK:
        v = filter_block(m, x, e, &how);
        if (v != NULL && m->status == MEZZO_OK)
            print(m, v);
        return how;
    case WITH:
        return run_with(m, x, e);
    case SET:
        check_namespaces(m, x->a, e);
        assign(m, x->a, mz_tpl_evaluate(m, x->b, e), e);
        break;
    case SET_BLOCK:
        v = filter_block(m, x, e, &how);
        if (v != NULL)
            assign(m, x->a, v, e);
        return how;
    case GENERATION:
        run_generation(m, x, e);
        break;
    default:
        return x->kind == BREAK ? LEAVE_LOOP : NEXT_TURN;
    }
    return STAY;
}

static leaving run(machine *m, const nodes *body, environment *e) {
    leaving how = STAY;
    if (++m->depth > MOST_DEPTH)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template is too deep");
    for (size_t i = 0; i < body->n && how == STAY && m->status == MEZZO_OK; i++) {
        mz_tpl_spend(m, 0);
        how = statement(m, body->at[i], e);
    }
    m->depth--;
    return how;
}

// --- a rendering ----------------------------------------------------------------------------------------------------
void mz_marked_text_free(mz_marked_text *t) {
    mz_text_free(&t->text);
    mz_text_free(&t->told);
}

// Reads the source: every line end becomes \n, and the last one does not belong to the template.
static void read_source(machine *m, const char *source) {
    size_t n = strlen(source), to = 0, width;
    if (n > MOST_SOURCE) {
        m->status = mz_fail(MEZZO_ERR_FORMAT, "%s: a chat template of more than %d bytes", m->where, MOST_SOURCE);
        return;
    }
    m->source = mz_tpl_room(m, n);
    m->line = 1;
    for (size_t i = 0; m->source != NULL && i < n; i += width) {
        width = mz_utf8_decode(source + i, n - i, &(uint32_t){0});
        if (width == 0) {
            refuse(m, MEZZO_ERR_FORMAT, "the template is not UTF-8");
            return;
        }
        memcpy(m->source + to, source + i, width);
        if (source[i] == '\r') {
            m->source[to] = '\n';
            width += source[i + 1] == '\n';
        }
        m->line += m->source[to] == '\n';
        to += source[i] == '\r' ? 1 : width;
    }
    m->n = to;
    m->n -= to > 0 && m->source[to - 1] == '\n';
    m->line = 1;
}

static void read_values(machine *m, const json_t *values) {
    value *map = mz_tpl_map(m, MAP, json_object_size(values));
    const char *key;
    json_t *is;
    json_object_foreach((json_t *)(uintptr_t)values, key, is) {
        const bool messages = strcmp(key, "messages") == 0;
        const value *v = mz_tpl_from_json(m, is, messages, 0);
        for (int64_t i = 0; messages && v->kind == LIST && i < v->n; i++)
            if (v->at[i]->kind == MAP)
                ((value *)(uintptr_t)v->at[i])->message = (int)i + 1; // this function made the value
        if (map != NULL)
            mz_tpl_put(m, map, mz_tpl_word(m, key), v);
    }
    m->values = map;
}

static mezzo_status render(machine *m, const char *source, const json_t *values) {
    nodes body = {0};
    read_source(m, source);
    if (m->status == MEZZO_OK)
        read_values(m, values);
    if (m->status == MEZZO_OK && mz_tpl_lex(m))
        body = mz_tpl_parse(m);
    if (m->status == MEZZO_OK)
        mz_tpl_bind(m, &body);
    environment *e = m->status == MEZZO_OK ? enter(m, m->root, NULL) : NULL;
    if (e != NULL)
        (void)run(m, &body, e);
    return m->status;
}

mezzo_status mz_template_render_spans(const char *where, const char *source, const json_t *values, mz_marked_text *out,
                                      mz_template_spans *spans) {
    mz_template_spans own = {0};
    *out = (mz_marked_text){0};
    machine *m;
    MEZZO_TRY(MZ_NEW(m, 1));
    m->where = where;
    m->out = m->root_out = out;
    m->spans = spans != NULL ? spans : &own;
    m->most_work = MOST_WORK;
    m->most_bytes = MOST_BYTES;
    mezzo_status status = render(m, source, values);
    for (block *b = m->blocks, *next; b != NULL; b = next) {
        next = b->next;
        mz_free(b);
    }
    MZ_FREE(m->tokens, m, own.at);
    if (status != MEZZO_OK)
        mz_marked_text_free(out);
    return status;
}

mezzo_status mz_template_render(const char *where, const char *source, const json_t *values, mz_marked_text *out) {
    return mz_template_render_spans(where, source, values, out, NULL);
}
