// Pieces and statements of a chat template.
#include <ctype.h>

#include "data/template_machine.h"

// --- statements ----------------------------------------------------------------------------------------------------
static bool alive(const machine *m) {
    return m->dead == 0 && m->status == MEZZO_OK;
}

// The word that a statement begins with, read.
static const char *begin(machine *m, size_t i, size_t *n) {
    m->p = m->pieces[i].from;
    m->end = m->pieces[i].to;
    return mz_tpl_take_name(m, n);
}

// Runs to the next statement that ends or divides the block, which m->at then stands at, unread.
static bool divides(const char *word, size_t n) {
    return (n > 3 && memcmp(word, "end", 3) == 0) || mz_tpl_named(word, n, "else") || mz_tpl_named(word, n, "elif");
}

static void need_end(machine *m, const char *word) {
    size_t n = 0;
    if (m->status != MEZZO_OK)
        return;
    if (m->at == m->n_pieces) {
        m->p = m->n;
        refuse(m, MEZZO_ERR_FORMAT, "{%% %s %%} is missing", word);
    } else {
        const char *is = begin(m, m->at, &n);
        if (!mz_tpl_named(is, n, word))
            refuse(m, MEZZO_ERR_FORMAT, "{%% %s %%} expected", word);
    }
    m->at++;
}

static void run_if(machine *m) {
    bool done = false, chosen = alive(m) && mz_tpl_is_true(mz_tpl_expression(m));
    if (m->dead == 0)
        mz_tpl_at_end(m);
    for (m->at++;;) {
        m->dead += !chosen;
        mz_tpl_run(m);
        m->dead -= !chosen;
        done |= chosen;
        size_t n = 0;
        const char *word = m->status == MEZZO_OK && m->at < m->n_pieces ? begin(m, m->at, &n) : "";
        if (mz_tpl_named(word, n, "elif")) {
            chosen = !done && alive(m) && mz_tpl_is_true(mz_tpl_expression(m));
        } else if (mz_tpl_named(word, n, "else")) {
            chosen = !done;
        } else {
            break;
        }
        m->at++;
    }
    need_end(m, "endif");
}

static const value *loop_of(machine *m, int64_t i, int64_t n) {
    const struct {
        const char *name;
        const value *is;
    } members[] = {{"index0", mz_tpl_number(m, i)}, {"index", mz_tpl_number(m, i + 1)},
                   {"first", mz_tpl_truth(i == 0)}, {"last", mz_tpl_truth(i == n - 1)},
                   {"length", mz_tpl_number(m, n)}, {"revindex0", mz_tpl_number(m, n - 1 - i)}};
    value *loop = mz_tpl_list(m, MAP, 0, MZ_COUNT(members));
    for (size_t k = 0; loop != NULL && k < MZ_COUNT(members); k++) {
        loop->key[loop->n] = mz_tpl_string(m, members[k].name, NULL, strlen(members[k].name));
        loop->at[loop->n++] = members[k].is;
    }
    return loop != NULL ? loop : &mz_tpl_undefined;
}

static void run_loop(machine *m, const char *name, size_t length, const value *over) {
    const size_t body = m->at + 1;
    const int frame = m->frame, n_vars = m->n_vars;
    const int64_t n = over->kind == LIST ? over->n : 0;
    for (int64_t i = 0; i < n && alive(m); i++) {
        m->frame = m->n_vars = n_vars;
        mz_tpl_assign(m, name, length, over->at[i]);
        mz_tpl_assign(m, "loop", 4, loop_of(m, i, n));
        m->at = body;
        mz_tpl_run(m);
        m->work++;
    }
    m->frame = frame;
    m->n_vars = n_vars;
    m->at = body;
    m->dead++;
    mz_tpl_run(m); // to its end
    m->dead--;
    need_end(m, "endfor");
}

static void run_for(machine *m) {
    size_t n = 0;
    const char *name = mz_tpl_take_name(m, &n);
    const value *over = &mz_tpl_undefined;
    if (m->dead == 0) {
        if (!mz_tpl_take_word(m, "in"))
            refuse(m, MEZZO_ERR_UNSUPPORTED, "a loop is {%% for NAME in LIST %%} here");
        over = mz_tpl_expression(m);
        if (m->status == MEZZO_OK && mz_tpl_peek(m) != '\0')
            refuse(m, MEZZO_ERR_UNSUPPORTED, "a loop is {%% for NAME in LIST %%} here");
        if (m->status == MEZZO_OK && over->kind != LIST)
            refuse(m, MEZZO_ERR_FORMAT, "a loop over a value that is not a list%s",
                   over->kind == UNDEFINED ? ": it is undefined" : "");
    }
    run_loop(m, name, n, over);
}

static void run_set(machine *m) {
    size_t n, k = 0;
    const char *name = mz_tpl_take_name(m, &n), *of = NULL;
    if (mz_tpl_take(m, "."))
        of = mz_tpl_take_name(m, &k);
    if (!mz_tpl_take(m, "=")) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "set is {%% set NAME = VALUE %%} here");
        return;
    }
    m->at++;
    if (m->dead > 0)
        return;
    const value *is = mz_tpl_expression(m);
    mz_tpl_at_end(m);
    if (of == NULL) {
        mz_tpl_assign(m, name, n, is);
        return;
    }
    value *space = (value *)(uintptr_t)mz_tpl_lookup(m, name, n); // in the arena, where it is a MAP
    if (space->kind != MAP) {
        refuse(m, MEZZO_ERR_FORMAT, "%s is not a namespace", mz_quote_bytes(name, n).text);
        return;
    }
    int64_t i = 0;
    while (i < space->n && !mz_tpl_is_text(space->key[i], of, k))
        i++;
    if (i >= (int64_t)space->space) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "%s has too many members", mz_quote_bytes(name, n).text);
        return;
    }
    space->key[i] = mz_tpl_string(m, of, NULL, k);
    space->at[i] = is;
    space->n += i == space->n;
}

static void run_macro(machine *m) {
    size_t n;
    const char *name = mz_tpl_take_name(m, &n);
    value *macro = m->dead == 0 ? mz_tpl_new_value(m, MACRO) : NULL;
    if (macro != NULL) {
        macro->n = (int64_t)m->at;
        mz_tpl_assign(m, name, n, macro);
    }
    m->at++;
    m->dead++;
    mz_tpl_run(m);
    m->dead--;
    need_end(m, "endmacro");
}

static void statement(machine *m) {
    size_t n;
    const char *word = begin(m, m->at, &n);
    if (mz_tpl_named(word, n, "if")) {
        run_if(m);
    } else if (mz_tpl_named(word, n, "for")) {
        run_for(m);
    } else if (mz_tpl_named(word, n, "set")) {
        run_set(m);
    } else if (mz_tpl_named(word, n, "macro")) {
        run_macro(m);
    } else if (mz_tpl_named(word, n, "generation")) { // marks what the model says; the loss finds it by itself
        m->at++;
        mz_tpl_run(m);
        need_end(m, "endgeneration");
    } else {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the statement %s is not supported", mz_quote_bytes(word, n).text);
    }
}

void mz_tpl_run(machine *m) {
    if (++m->depth > MOST_DEPTH)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template is too deep");
    while (m->status == MEZZO_OK && m->at < m->n_pieces) {
        const piece *x = &m->pieces[m->at];
        m->p = x->from;
        m->end = x->to;
        if (++m->work > MOST_WORK)
            refuse(m, MEZZO_ERR_UNSUPPORTED, "the template runs too long");
        if (x->kind == STATEMENT) {
            size_t n;
            const char *word = begin(m, m->at, &n);
            if (m->status != MEZZO_OK || divides(word, n))
                break;
            statement(m);
            continue;
        }
        m->at++;
        if (!alive(m))
            continue;
        if (x->kind == TEXT) {
            mz_tpl_print(m, mz_tpl_string(m, m->source + x->from, NULL, x->to - x->from));
        } else {
            const value *v = mz_tpl_expression(m);
            mz_tpl_at_end(m);
            mz_tpl_print(m, v);
        }
    }
    m->depth--;
}

// --- pieces --------------------------------------------------------------------------------------------------------
static void add_piece(machine *m, piece_kind what, size_t from, size_t to) {
    if (m->status != MEZZO_OK || (what == TEXT && from >= to))
        return;
    m->status = MZ_RESERVE(m->pieces, m->cap_pieces, m->n_pieces + 1);
    if (m->status == MEZZO_OK) {
        m->pieces[m->n_pieces].kind = what;
        m->pieces[m->n_pieces].from = from;
        m->pieces[m->n_pieces++].to = to;
    }
}

// The place of "%}", "}}" or "#}", outside of strings.
static size_t find_close(machine *m, size_t from, char c) {
    for (size_t i = from; i + 1 < m->n; i++) {
        char at = m->source[i];
        if (at == c && m->source[i + 1] == '}')
            return i;
        if (c != '#' && (at == '\'' || at == '"'))
            for (i++; i < m->n && m->source[i] != at; i++)
                i += m->source[i] == '\\';
    }
    m->p = from;
    refuse(m, MEZZO_ERR_FORMAT, "a tag without its end");
    return m->n;
}

// White space before a tag: all of it before "{%-"; the line's before a statement that begins it.
static size_t text_end(const machine *m, size_t from, size_t tag) {
    size_t to = tag, line = tag;
    const char sign = m->source[tag + 2];
    if (sign == '-') {
        while (to > from && isspace((unsigned char)m->source[to - 1]))
            to--;
        return to;
    }
    while (line > from && (m->source[line - 1] == ' ' || m->source[line - 1] == '\t'))
        line--;
    const bool begins = line == 0 || m->source[line - 1] == '\n';
    return sign != '+' && m->source[tag + 1] != '{' && begins ? line : tag;
}

static void cut(machine *m) {
    size_t from = 0;
    while (m->status == MEZZO_OK) {
        size_t tag = from;
        while (tag + 2 < m->n && (m->source[tag] != '{' || strchr("{%#", m->source[tag + 1]) == NULL))
            tag++;
        if (tag + 2 >= m->n)
            break;
        const char c = m->source[tag + 1];
        add_piece(m, TEXT, from, text_end(m, from, tag));
        size_t inside = tag + 2;
        inside += m->source[inside] == '-' || m->source[inside] == '+';
        size_t close = find_close(m, inside, c == '{' ? '}' : c);
        if (m->status != MEZZO_OK)
            break;
        const char sign = close > inside ? m->source[close - 1] : '\0';
        const bool signs = sign == '-' || sign == '+';
        if (c != '#')
            add_piece(m, c == '{' ? EXPRESSION : STATEMENT, inside, signs ? close - 1 : close);
        from = close + 2;
        if (sign == '-')
            while (from < m->n && isspace((unsigned char)m->source[from]))
                from++;
        else if (sign != '+' && c != '{' && from < m->n && m->source[from] == '\n')
            from++;
    }
    add_piece(m, TEXT, from, m->n);
}

void mz_marked_text_free(mz_marked_text *t) {
    mz_text_free(&t->text);
    mz_text_free(&t->told);
}

static mezzo_status render(machine *m, const json_t *values) {
    const char *key;
    json_t *is;
    json_object_foreach((json_t *)(uintptr_t)values, key, is)
        mz_tpl_assign(m, key, strlen(key), mz_tpl_from_json(m, is, strcmp(key, "messages") == 0, 0));
    cut(m);
    mz_tpl_run(m);
    if (m->status == MEZZO_OK && m->at < m->n_pieces)
        refuse(m, MEZZO_ERR_FORMAT, "an end statement without its beginning");
    return m->status;
}

mezzo_status mz_template_render(const char *where, const char *source, const json_t *values, mz_marked_text *out) {
    *out = (mz_marked_text){0};
    machine *m = mz_alloc(1, sizeof *m);
    if (m == NULL)
        return MEZZO_ERR_MEMORY;
    m->where = where;
    m->source = source;
    m->n = strlen(source);
    m->n -= m->n > 0 && source[m->n - 1] == '\n'; // Jinja's keep_trailing_newline is off
    m->out = out;
    mezzo_status status =
        m->n > MOST_SOURCE ? mz_fail(MEZZO_ERR_FORMAT, "%s: a chat template of more than %d bytes", where, MOST_SOURCE)
                           : render(m, values);
    for (block *b = m->blocks, *next; b != NULL; b = next) {
        next = b->next;
        mz_free(b);
    }
    mz_free(m->pieces);
    mz_free(m);
    if (status != MEZZO_OK)
        mz_marked_text_free(out);
    return status;
}
