// Values of a chat template. All live in one arena.
#define _GNU_SOURCE // memmem
#include "data/template_machine.h"

const value mz_tpl_undefined = {.kind = UNDEFINED}, mz_tpl_none = {.kind = NONE},
            mz_tpl_yes = {.kind = BOOLEAN, .n = 1}, mz_tpl_no = {.kind = BOOLEAN};

int mz_tpl_line_of(const machine *m) {
    size_t to = m->p < m->n ? m->p : m->n;
    int line = 1;
    for (size_t i = 0; i < to; i++)
        line += m->source[i] == '\n';
    return line;
}

void *mz_tpl_room(machine *m, size_t bytes) {
    if (m->status != MEZZO_OK)
        return NULL;
    m->bytes += bytes + sizeof(block);
    if (m->bytes > MOST_BYTES) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template writes more than %zu MiB of text", MOST_BYTES >> 20);
        return NULL;
    }
    block *b = mz_alloc(1, sizeof *b + bytes);
    if (b == NULL) {
        m->status = MEZZO_ERR_MEMORY;
        return NULL;
    }
    b->next = m->blocks;
    m->blocks = b;
    return b + 1;
}

value *mz_tpl_new_value(machine *m, type kind) {
    value *v = mz_tpl_room(m, sizeof *v);
    if (v != NULL)
        v->kind = kind;
    return v;
}

const value *mz_tpl_truth(bool is) {
    return is ? &mz_tpl_yes : &mz_tpl_no;
}

const value *mz_tpl_number(machine *m, int64_t n) {
    value *v = mz_tpl_new_value(m, NUMBER);
    if (v == NULL)
        return &mz_tpl_undefined;
    v->n = n;
    return v;
}

// told NULL: the template's own.
const value *mz_tpl_string(machine *m, const char *text, const char *told, size_t n) {
    value *v = mz_tpl_new_value(m, STRING);
    if (v == NULL)
        return &mz_tpl_undefined;
    v->text = text;
    v->length = n;
    v->told = told != NULL ? told : mz_tpl_room(m, n + 1);
    return v->told != NULL ? v : &mz_tpl_undefined;
}

const value *mz_tpl_part(machine *m, const value *v, size_t from, size_t to) {
    return mz_tpl_string(m, v->text + from, v->told + from, to - from);
}

value *mz_tpl_list(machine *m, type kind, size_t n, size_t space) {
    value *v = mz_tpl_new_value(m, kind);
    if (v == NULL)
        return NULL;
    v->n = (int64_t)n;
    v->space = space;
    v->at = mz_tpl_room(m, (space + 1) * sizeof *v->at);
    v->key = kind == MAP ? mz_tpl_room(m, (space + 1) * sizeof *v->key) : NULL;
    return v->at == NULL || (kind == MAP && v->key == NULL) ? NULL : v;
}

const value *mz_tpl_from_json(machine *m, const json_t *j, bool told, int depth) {
    if (depth > MOST_DEPTH || j == NULL || json_is_null(j))
        return &mz_tpl_none;
    if (json_is_boolean(j))
        return mz_tpl_truth(json_is_true(j));
    if (json_is_integer(j))
        return mz_tpl_number(m, json_integer_value(j));
    if (json_is_string(j)) {
        size_t n = json_string_length(j);
        char *marks = mz_tpl_room(m, n + 1);
        if (marks != NULL)
            memset(marks, told, n);
        return marks != NULL ? mz_tpl_string(m, json_string_value(j), marks, n) : &mz_tpl_undefined;
    }
    if (json_is_array(j)) {
        size_t n = json_array_size(j);
        value *v = mz_tpl_list(m, LIST, n, n);
        for (size_t i = 0; v != NULL && i < n; i++)
            v->at[i] = mz_tpl_from_json(m, json_array_get(j, i), told, depth + 1);
        return v != NULL ? v : &mz_tpl_undefined;
    }
    if (!json_is_object(j))
        return &mz_tpl_none;
    value *v = mz_tpl_list(m, MAP, 0, json_object_size(j));
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)(uintptr_t)j, key, member) {
        if (v == NULL)
            break;
        v->key[v->n] = mz_tpl_string(m, key, NULL, strlen(key));
        v->at[v->n++] =
            mz_tpl_from_json(m, member, (told || strcmp(key, "messages") == 0) && strcmp(key, "role") != 0, depth + 1);
    }
    return v != NULL ? v : &mz_tpl_undefined;
}

void mz_tpl_spend(machine *m, size_t bytes) {
    m->work += 1 + (int64_t)(bytes / BYTES_A_WORK);
    if (m->work > MOST_WORK)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template runs too long");
}

bool mz_tpl_is_text(const value *v, const char *text, size_t n) {
    return v->kind == STRING && v->length == n && memcmp(v->text, text, n) == 0;
}

const value *mz_tpl_member(machine *m, const value *v, const char *name, size_t n) {
    if (v->kind == MAP)
        mz_tpl_spend(m, (size_t)v->n * sizeof(value));
    for (int64_t i = 0; v->kind == MAP && i < v->n; i++)
        if (mz_tpl_is_text(v->key[i], name, n))
            return v->at[i];
    return NULL;
}

bool mz_tpl_is_true(const value *v) {
    switch (v->kind) {
    case UNDEFINED:
    case NONE:
        return false;
    case STRING:
        return v->length > 0;
    case MACRO:
        return true;
    default:
        return v->n != 0;
    }
}

bool mz_tpl_is_number(const value *v) {
    return v->kind == NUMBER || v->kind == BOOLEAN;
}

static bool equal(machine *m, const value *a, const value *b, int depth) {
    if (mz_tpl_is_number(a) && mz_tpl_is_number(b))
        return a->n == b->n;
    if (a == b || a->kind != b->kind)
        return a == b;
    if (a->kind == STRING) {
        mz_tpl_spend(m, a->length == b->length ? a->length : 0);
        return mz_tpl_is_text(a, b->text, b->length);
    }
    if (a->kind == LIST && a->n == b->n) {
        mz_tpl_spend(m, 0);
        if (depth > MOST_DEPTH)
            refuse(m, MEZZO_ERR_UNSUPPORTED, "the template compares lists that are too deep");
        for (int64_t i = 0; i < a->n; i++)
            if (m->status != MEZZO_OK || !equal(m, a->at[i], b->at[i], depth + 1))
                return false;
        return true;
    }
    return a->kind == UNDEFINED || a->kind == NONE;
}

bool mz_tpl_equal(machine *m, const value *a, const value *b) {
    return equal(m, a, b, 0);
}

// Where `what` begins in `in`, from `from` on; -1.
int64_t mz_tpl_find(machine *m, const value *in, const value *what, size_t from) {
    if (from > in->length)
        return -1;
    const char *at = memmem(in->text + from, in->length - from, what->text, what->length);
    mz_tpl_spend(m, (at != NULL ? (size_t)(at - in->text) : in->length) - from + what->length);
    return at != NULL ? at - in->text : -1;
}

const value *mz_tpl_joined(machine *m, const value *a, const value *b) {
    char *text = mz_tpl_room(m, a->length + b->length + 1), *told = mz_tpl_room(m, a->length + b->length + 1);
    if (text == NULL || told == NULL)
        return &mz_tpl_undefined;
    memcpy(text, a->text, a->length);
    memcpy(text + a->length, b->text, b->length);
    memcpy(told, a->told, a->length);
    memcpy(told + a->length, b->told, b->length);
    return mz_tpl_string(m, text, told, a->length + b->length);
}

// What {{ }} prints of a value.
const value *mz_tpl_printed(machine *m, const value *v) {
    static const char *const truths[] = {"False", "True"};
    switch (v->kind) {
    case STRING:
        return v;
    case UNDEFINED:
        return mz_tpl_string(m, "", NULL, 0);
    case NONE:
        return mz_tpl_string(m, "None", NULL, 4);
    case BOOLEAN:
        return mz_tpl_string(m, truths[v->n != 0], NULL, strlen(truths[v->n != 0]));
    case NUMBER: {
        char *text = mz_tpl_room(m, 24);
        if (text == NULL)
            return &mz_tpl_undefined;
        snprintf(text, 24, "%lld", (long long)v->n);
        return mz_tpl_string(m, text, NULL, strlen(text));
    }
    default:
        refuse(m, MEZZO_ERR_UNSUPPORTED, "printing a list or a map is not supported");
        return &mz_tpl_undefined;
    }
}

void mz_tpl_print(machine *m, const value *v) {
    v = mz_tpl_printed(m, v);
    if (m->status != MEZZO_OK || v->kind != STRING)
        return;
    mz_text_add(&m->out->text, v->text, v->length);
    mz_text_add(&m->out->told, v->told, v->length);
    m->bytes += 2 * v->length;
    if (m->bytes > MOST_BYTES)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template writes more than %zu MiB of text", MOST_BYTES >> 20);
    if (m->out->text.status != MEZZO_OK || m->out->told.status != MEZZO_OK)
        m->status = MEZZO_ERR_MEMORY;
}

// --- variables -----------------------------------------------------------------------------------------------------
const value *mz_tpl_lookup(const machine *m, const char *name, size_t n) {
    for (int i = m->n_vars; i-- > 0;) {
        const variable *v = &m->vars[i];
        if (v->length == n && memcmp(v->name, name, n) == 0)
            return v->is;
    }
    return &mz_tpl_undefined;
}

void mz_tpl_assign(machine *m, const char *name, size_t n, const value *is) {
    int i = m->frame;
    while (i < m->n_vars && (m->vars[i].length != n || memcmp(m->vars[i].name, name, n) != 0))
        i++;
    if (i == MOST_VARS) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template has more than %d variables", MOST_VARS);
        return;
    }
    m->vars[i] = (variable){name, n, is};
    if (i == m->n_vars)
        m->n_vars++;
}
