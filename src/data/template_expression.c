// What stands in a tag of a chat template, evaluated while it is read.
#include <ctype.h>
#include <stdlib.h>

#include "data/template_machine.h"

// --- words of an expression ----------------------------------------------------------------------------------------
static bool is_letter(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

static void blank(machine *m) {
    while (m->p < m->end && isspace((unsigned char)m->source[m->p]))
        m->p++;
}

char mz_tpl_peek(machine *m) {
    blank(m);
    return m->p < m->end ? m->source[m->p] : '\0';
}

static size_t name_length(machine *m) {
    blank(m);
    size_t n = 0;
    if (m->p < m->end && !isdigit((unsigned char)m->source[m->p]))
        while (m->p + n < m->end && is_letter(m->source[m->p + n]))
            n++;
    return n;
}

bool mz_tpl_take_word(machine *m, const char *word) {
    size_t n = name_length(m);
    if (n == 0 || n != strlen(word) || memcmp(m->source + m->p, word, n) != 0)
        return false;
    m->p += n;
    return true;
}

bool mz_tpl_take(machine *m, const char *sign) {
    size_t n = strlen(sign);
    blank(m);
    if (m->end - m->p < n || memcmp(m->source + m->p, sign, n) != 0)
        return false;
    m->p += n;
    return true;
}

void mz_tpl_unexpected(machine *m, const char *wanted) {
    blank(m);
    size_t n = m->end - m->p;
    refuse(m, MEZZO_ERR_FORMAT, "%s expected at %s", wanted, mz_quote_bytes(m->source + m->p, n < 24 ? n : 24).text);
}

void mz_tpl_need(machine *m, const char *sign) {
    if (m->status == MEZZO_OK && !mz_tpl_take(m, sign))
        mz_tpl_unexpected(m, sign);
}

const char *mz_tpl_take_name(machine *m, size_t *n) {
    *n = name_length(m);
    const char *name = m->source + m->p;
    if (*n == 0)
        mz_tpl_unexpected(m, "a name");
    m->p += *n;
    return name;
}

bool mz_tpl_named(const char *name, size_t n, const char *is) {
    return strlen(is) == n && memcmp(name, is, n) == 0;
}

// --- expressions ---------------------------------------------------------------------------------------------------
static const value *unary(machine *m);

static bool live(const machine *m) {
    return m->skip == 0 && m->status == MEZZO_OK;
}

static void read_arguments(machine *m, arguments *a) {
    *a = (arguments){0};
    while (m->status == MEZZO_OK && mz_tpl_peek(m) != ')') {
        if (a->n == MOST_ARGS) {
            refuse(m, MEZZO_ERR_UNSUPPORTED, "more than %d arguments", MOST_ARGS);
            return;
        }
        size_t back = m->p, n = name_length(m);
        if (n > 0) {
            m->p += n;
            if (mz_tpl_peek(m) == '=' && m->p + 1 < m->end && m->source[m->p + 1] != '=') {
                a->name[a->n] = m->source + back + strspn(m->source + back, " \t\r\n");
                a->length[a->n] = n;
                m->p++;
            } else {
                m->p = back;
            }
        }
        a->at[a->n++] = mz_tpl_expression(m);
        if (!mz_tpl_take(m, ","))
            break;
    }
    mz_tpl_need(m, ")");
}

static const value *escaped(machine *m, size_t from, size_t to) {
    char *text = mz_tpl_room(m, to - from + 1);
    size_t n = 0;
    for (size_t i = from; text != NULL && i < to; i++) {
        char c = m->source[i];
        if (c == '\\' && i + 1 < to) {
            static const char codes[] = "n\nt\tr\r\\\\'\'\"\"";
            const char *code = NULL;
            for (size_t k = 0; k + 1 < sizeof codes && code == NULL; k += 2)
                code = codes[k] == m->source[i + 1] ? &codes[k + 1] : NULL;
            if (code == NULL)
                refuse(m, MEZZO_ERR_UNSUPPORTED, "the escape \\%c in a string is not supported", m->source[i + 1]);
            else
                c = *code;
            i++;
        }
        text[n++] = c;
    }
    return text != NULL ? mz_tpl_string(m, text, NULL, n) : &mz_tpl_undefined;
}

static const value *literal(machine *m) {
    const value *v = NULL;
    while (mz_tpl_peek(m) == '\'' || mz_tpl_peek(m) == '"') { // strings beside each other are one
        char quote = m->source[m->p++];
        size_t from = m->p;
        while (m->p < m->end && m->source[m->p] != quote)
            m->p += m->source[m->p] == '\\' && m->p + 1 < m->end ? 2 : 1;
        if (m->p >= m->end) {
            refuse(m, MEZZO_ERR_FORMAT, "an unterminated string");
            return &mz_tpl_undefined;
        }
        const value *next = m->skip == 0 ? escaped(m, from, m->p) : &mz_tpl_undefined;
        m->p++;
        v = v != NULL && live(m) ? mz_tpl_joined(m, v, next) : next;
    }
    return v;
}

static const value *in_brackets(machine *m, char close) {
    const value *items[64];
    size_t n = 0;
    while (m->status == MEZZO_OK && mz_tpl_peek(m) != close) {
        if (n == MZ_COUNT(items)) {
            refuse(m, MEZZO_ERR_UNSUPPORTED, "a list of more than %zu elements", MZ_COUNT(items));
            break;
        }
        items[n++] = mz_tpl_expression(m);
        if (!mz_tpl_take(m, ","))
            break;
    }
    mz_tpl_need(m, close == ']' ? "]" : ")");
    value *v = mz_tpl_list(m, LIST, n, n);
    for (size_t i = 0; v != NULL && i < n; i++)
        v->at[i] = items[i];
    return v != NULL ? v : &mz_tpl_undefined;
}

static const value *in_parentheses(machine *m) {
    size_t back = m->p;
    m->skip++;
    if (mz_tpl_peek(m) != ')')
        mz_tpl_expression(m);
    m->skip--;
    bool tuple = mz_tpl_peek(m) != ')' || back == m->p;
    m->p = back;
    if (tuple)
        return in_brackets(m, ')');
    const value *v = mz_tpl_expression(m);
    mz_tpl_need(m, ")");
    return v;
}

static const value *call_macro(machine *m, const value *macro, const arguments *a) {
    const size_t p = m->p, end = m->end, at = m->at;
    const int frame = m->frame, n_vars = m->n_vars;
    mz_marked_text said = {0}, *out = m->out;
    const piece *head = &m->pieces[macro->n];
    m->frame = m->n_vars;
    m->p = head->from;
    m->end = head->to;
    m->out = &said;
    size_t n;
    mz_tpl_take_word(m, "macro");
    mz_tpl_take_name(m, &n);
    mz_tpl_need(m, "(");
    for (int i = 0; m->status == MEZZO_OK && mz_tpl_peek(m) != ')'; i++) {
        const char *name = mz_tpl_take_name(m, &n);
        const value *is = i < a->n && a->name[i] == NULL ? a->at[i] : &mz_tpl_undefined;
        for (int k = 0; k < a->n; k++)
            if (a->name[k] != NULL && a->length[k] == n && memcmp(a->name[k], name, n) == 0)
                is = a->at[k];
        if (mz_tpl_take(m, "=")) {
            const value *other = mz_tpl_expression(m);
            is = is->kind == UNDEFINED ? other : is;
        }
        mz_tpl_assign(m, name, n, is);
        if (!mz_tpl_take(m, ","))
            break;
    }
    m->at = (size_t)macro->n + 1;
    if (m->status == MEZZO_OK)
        mz_tpl_run(m);
    m->p = p, m->end = end, m->at = at, m->frame = frame, m->n_vars = n_vars, m->out = out;
    char *text = mz_tpl_room(m, said.text.len + 1), *told = mz_tpl_room(m, said.text.len + 1);
    const value *v = &mz_tpl_undefined;
    if (text != NULL && told != NULL) {
        if (said.text.len > 0) {
            memcpy(text, said.text.data, said.text.len);
            memcpy(told, said.told.data, said.text.len);
        }
        v = mz_tpl_string(m, text, told, said.text.len);
    }
    mz_marked_text_free(&said);
    return v;
}

static const value *call(machine *m, const char *name, size_t n) {
    arguments a;
    read_arguments(m, &a);
    if (!live(m))
        return &mz_tpl_undefined;
    const value *macro = mz_tpl_lookup(m, name, n);
    if (macro->kind == MACRO)
        return call_macro(m, macro, &a);
    if (mz_tpl_named(name, n, "raise_exception")) {
        refuse(m, MEZZO_ERR_INVALID, "the template refuses this conversation: %s",
               a.n > 0 && a.at[0]->kind == STRING ? mz_quote_bytes(a.at[0]->text, a.at[0]->length).text : "");
    } else if (mz_tpl_named(name, n, "namespace")) {
        value *v = mz_tpl_list(m, MAP, 0, 2 * MOST_ARGS);
        for (int i = 0; v != NULL && i < a.n; i++) {
            v->key[v->n] = mz_tpl_string(m, a.name[i] != NULL ? a.name[i] : "", NULL, a.length[i]);
            v->at[v->n++] = a.at[i];
        }
        return v != NULL ? v : &mz_tpl_undefined;
    } else {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the function %s is not supported", mz_quote_bytes(name, n).text);
    }
    return &mz_tpl_undefined;
}

static const value *primary(machine *m) {
    if (++m->work > MOST_WORK || m->depth > MOST_DEPTH)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template is too deep or runs too long");
    if (m->status != MEZZO_OK)
        return &mz_tpl_undefined;
    char c = mz_tpl_peek(m);
    if (c == '\'' || c == '"')
        return literal(m);
    if (isdigit((unsigned char)c)) {
        int64_t n = 0;
        for (; m->p < m->end && isdigit((unsigned char)m->source[m->p]); m->p++)
            n = n < INT64_C(1) << 40 ? 10 * n + m->source[m->p] - '0' : n;
        if (m->p < m->end && (m->source[m->p] == '.' || is_letter(m->source[m->p])))
            refuse(m, MEZZO_ERR_UNSUPPORTED, "a number that is not an integer");
        return mz_tpl_number(m, n);
    }
    if (mz_tpl_take(m, "("))
        return in_parentheses(m);
    if (mz_tpl_take(m, "["))
        return in_brackets(m, ']');
    if (c == '{') {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "a map in braces is not supported");
        return &mz_tpl_undefined;
    }
    size_t n;
    const char *name = mz_tpl_take_name(m, &n);
    static const struct {
        const char *name;
        const value *is;
    } constants[] = {{"true", &mz_tpl_yes}, {"True", &mz_tpl_yes},  {"false", &mz_tpl_no},
                     {"False", &mz_tpl_no}, {"none", &mz_tpl_none}, {"None", &mz_tpl_none}};
    for (size_t i = 0; i < MZ_COUNT(constants); i++)
        if (mz_tpl_named(name, n, constants[i].name))
            return constants[i].is;
    if (m->p < m->end && m->source[m->p] == '(') {
        m->p++;
        return call(m, name, n);
    }
    return live(m) ? mz_tpl_lookup(m, name, n) : &mz_tpl_undefined;
}

// --- methods, filters, tests ---------------------------------------------------------------------------------------
enum { LEFT = 1, RIGHT = 2 };
static const value *stripped(machine *m, const value *v, int sides, const value *set) {
    size_t from = 0, to = v->length;
    const char *white = " \t\n\r\f\v", *of = set != NULL ? set->text : white;
    size_t n = set != NULL ? set->length : strlen(white);
    while ((sides & LEFT) && from < to && memchr(of, v->text[from], n) != NULL)
        from++;
    mz_tpl_spend(m, from);
    while ((sides & RIGHT) && from < to && memchr(of, v->text[to - 1], n) != NULL)
        to--;
    mz_tpl_spend(m, v->length - to);
    return mz_tpl_part(m, v, from, to);
}

static const value *cased(machine *m, const value *v, bool upper) {
    char *text = mz_tpl_room(m, v->length + 1);
    for (size_t i = 0; text != NULL && i < v->length; i++) {
        char c = v->text[i];
        if ((unsigned char)c >= 0x80)
            refuse(m, MEZZO_ERR_UNSUPPORTED, "upper and lower case of letters that are not ASCII");
        text[i] = (char)(upper ? toupper((unsigned char)c) : tolower((unsigned char)c));
    }
    return text != NULL ? mz_tpl_string(m, text, v->told, v->length) : &mz_tpl_undefined;
}

static const value *split(machine *m, const value *v, const value *by) {
    size_t n = 1, from = 0, i = 0;
    for (int64_t at = 0; (at = mz_tpl_find(m, v, by, (size_t)at)) >= 0; at += (int64_t)by->length)
        n++;
    value *parts = mz_tpl_list(m, LIST, n, n);
    for (; parts != NULL && i < n; i++) {
        int64_t at = mz_tpl_find(m, v, by, from);
        parts->at[i] = mz_tpl_part(m, v, from, at >= 0 ? (size_t)at : v->length);
        from = (size_t)at + by->length;
    }
    return parts != NULL ? parts : &mz_tpl_undefined;
}

static const value *replaced(machine *m, const value *v, const value *what, const value *with) {
    const value *out = mz_tpl_string(m, "", NULL, 0);
    size_t from = 0;
    for (int64_t at; m->status == MEZZO_OK && (at = mz_tpl_find(m, v, what, from)) >= 0;
         from = (size_t)at + what->length) {
        out = mz_tpl_joined(m, out, mz_tpl_part(m, v, from, (size_t)at));
        out = m->status == MEZZO_OK ? mz_tpl_joined(m, out, with) : out;
    }
    return m->status == MEZZO_OK ? mz_tpl_joined(m, out, mz_tpl_part(m, v, from, v->length)) : &mz_tpl_undefined;
}

// What methods and filters have in common. NULL: not one of these.
static const value *of_string(machine *m, const value *v, const char *name, size_t n, const arguments *a) {
    const value *x = a->n > 0 ? a->at[0] : NULL, *y = a->n > 1 ? a->at[1] : NULL;
    if (v->kind != STRING || (x != NULL && x->kind != STRING) || (y != NULL && y->kind != STRING))
        return NULL;
    if (mz_tpl_named(name, n, "strip") || mz_tpl_named(name, n, "trim"))
        return stripped(m, v, LEFT | RIGHT, x);
    if (mz_tpl_named(name, n, "lstrip"))
        return stripped(m, v, LEFT, x);
    if (mz_tpl_named(name, n, "rstrip"))
        return stripped(m, v, RIGHT, x);
    if (mz_tpl_named(name, n, "upper") || mz_tpl_named(name, n, "lower"))
        return cased(m, v, *name == 'u');
    mz_tpl_spend(m, x != NULL ? x->length : 0); // compared at one end
    if (x != NULL && mz_tpl_named(name, n, "startswith"))
        return mz_tpl_truth(v->length >= x->length && memcmp(v->text, x->text, x->length) == 0);
    if (x != NULL && mz_tpl_named(name, n, "endswith"))
        return mz_tpl_truth(v->length >= x->length && memcmp(v->text + v->length - x->length, x->text, x->length) == 0);
    if (x != NULL && y == NULL && x->length > 0 && mz_tpl_named(name, n, "split"))
        return split(m, v, x);
    if (x != NULL && y != NULL && x->length > 0 && a->n == 2 && mz_tpl_named(name, n, "replace"))
        return replaced(m, v, x, y);
    return NULL;
}

static const value *method(machine *m, const value *v, const char *name, size_t n) {
    arguments a;
    read_arguments(m, &a);
    if (!live(m))
        return &mz_tpl_undefined;
    const value *done = of_string(m, v, name, n, &a);
    if (done == NULL && v->kind == MAP && mz_tpl_named(name, n, "get") && a.n > 0 && a.at[0]->kind == STRING) {
        done = mz_tpl_member(m, v, a.at[0]->text, a.at[0]->length);
        done = done != NULL ? done : a.n > 1 ? a.at[1] : &mz_tpl_none;
    }
    if (done == NULL)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the method %s is not supported, or not with this value and these arguments",
               mz_quote_bytes(name, n).text);
    return done != NULL ? done : &mz_tpl_undefined;
}

static const value *element(machine *m, const value *v, int64_t i) {
    const int64_t n = v->kind == STRING ? (int64_t)v->length : v->n;
    i = i < 0 ? i + n : i;
    if (i < 0 || i >= n)
        return &mz_tpl_undefined;
    return v->kind == STRING ? mz_tpl_part(m, v, (size_t)i, (size_t)i + 1) : v->at[i];
}

static const value *slice(machine *m, const value *v, const value *from, const value *to) {
    const int64_t n = v->kind == STRING ? (int64_t)v->length : v->n;
    int64_t a = from->kind == NUMBER ? from->n : 0, b = to->kind == NUMBER ? to->n : n;
    a = a < 0 ? a + n : a;
    b = b < 0 ? b + n : b;
    a = a < 0 ? 0 : a > n ? n : a;
    b = b < a ? a : b > n ? n : b;
    if (v->kind == STRING)
        return mz_tpl_part(m, v, (size_t)a, (size_t)b);
    value *some = mz_tpl_list(m, LIST, (size_t)(b - a), (size_t)(b - a));
    for (int64_t i = a; some != NULL && i < b; i++)
        some->at[i - a] = v->at[i];
    return some != NULL ? some : &mz_tpl_undefined;
}

static const value *subscript(machine *m, const value *v) {
    const value *from = &mz_tpl_none, *to = &mz_tpl_none;
    bool range = mz_tpl_take(m, ":");
    if (!range) {
        from = mz_tpl_expression(m);
        range = mz_tpl_take(m, ":");
    }
    if (range && mz_tpl_peek(m) != ']')
        to = mz_tpl_expression(m);
    mz_tpl_need(m, "]");
    if (!live(m))
        return &mz_tpl_undefined;
    if (v->kind == STRING || v->kind == LIST) {
        if (range && (from->kind == NONE || from->kind == NUMBER) && (to->kind == NONE || to->kind == NUMBER))
            return slice(m, v, from, to);
        if (!range && from->kind == NUMBER)
            return element(m, v, from->n);
    }
    if (v->kind == MAP && !range && from->kind == STRING) {
        const value *is = mz_tpl_member(m, v, from->text, from->length);
        return is != NULL ? is : &mz_tpl_undefined;
    }
    refuse(m, MEZZO_ERR_FORMAT, "what is in brackets does not fit the value before them%s",
           v->kind == UNDEFINED ? ", which is undefined" : "");
    return &mz_tpl_undefined;
}

static const value *attribute(machine *m, const value *v) {
    size_t n;
    const char *name = mz_tpl_take_name(m, &n);
    if (mz_tpl_take(m, "("))
        return method(m, v, name, n);
    if (!live(m))
        return &mz_tpl_undefined;
    if (v->kind == UNDEFINED)
        refuse(m, MEZZO_ERR_FORMAT, "%s of a value that is undefined", mz_quote_bytes(name, n).text);
    const value *is = mz_tpl_member(m, v, name, n);
    return is != NULL ? is : &mz_tpl_undefined;
}

static const value *filter(machine *m, const value *v) {
    size_t n;
    const char *name = mz_tpl_take_name(m, &n);
    arguments a = {0};
    if (mz_tpl_take(m, "("))
        read_arguments(m, &a);
    if (!live(m))
        return &mz_tpl_undefined;
    if (mz_tpl_named(name, n, "default") || mz_tpl_named(name, n, "d"))
        return v->kind == UNDEFINED || (a.n > 1 && mz_tpl_is_true(a.at[1]) && !mz_tpl_is_true(v))
                   ? (a.n > 0 ? a.at[0] : &mz_tpl_undefined)
                   : v;
    if ((mz_tpl_named(name, n, "length") || mz_tpl_named(name, n, "count")) && (v->kind == LIST || v->kind == MAP))
        return mz_tpl_number(m, v->n);
    if ((mz_tpl_named(name, n, "length") || mz_tpl_named(name, n, "count")) && v->kind == STRING) {
        int64_t letters = 0;
        mz_tpl_spend(m, v->length);
        for (size_t i = 0; i < v->length; i++)
            letters += ((unsigned char)v->text[i] & 0xC0) != 0x80;
        return mz_tpl_number(m, letters);
    }
    if (mz_tpl_named(name, n, "string"))
        return mz_tpl_printed(m, v);
    if ((mz_tpl_named(name, n, "first") || mz_tpl_named(name, n, "last")) && v->kind == LIST)
        return element(m, v, *name == 'f' ? 0 : -1);
    if (mz_tpl_named(name, n, "list") && v->kind == LIST)
        return v;
    const value *done = mz_tpl_named(name, n, "strip") ? NULL : of_string(m, v, name, n, &a);
    if (done == NULL)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the filter %s is not supported, or not for this value",
               mz_quote_bytes(name, n).text);
    return done != NULL ? done : &mz_tpl_undefined;
}

static const value *test(machine *m, const value *v) {
    bool not = mz_tpl_take_word(m, "not"), is = false;
    size_t n;
    const char *name = mz_tpl_take_name(m, &n);
    if (!live(m))
        return &mz_tpl_undefined;
    if (mz_tpl_named(name, n, "defined"))
        is = v->kind != UNDEFINED;
    else if (mz_tpl_named(name, n, "undefined"))
        is = v->kind == UNDEFINED;
    else if (mz_tpl_named(name, n, "none"))
        is = v->kind == NONE;
    else if (mz_tpl_named(name, n, "string"))
        is = v->kind == STRING;
    else if (mz_tpl_named(name, n, "mapping"))
        is = v->kind == MAP;
    else if (mz_tpl_named(name, n, "iterable") || mz_tpl_named(name, n, "sequence"))
        is = v->kind == STRING || v->kind == LIST || v->kind == MAP;
    else if (mz_tpl_named(name, n, "boolean"))
        is = v->kind == BOOLEAN;
    else if (mz_tpl_named(name, n, "number") || mz_tpl_named(name, n, "integer"))
        is = v->kind == NUMBER;
    else if (mz_tpl_named(name, n, "true"))
        is = v->kind == BOOLEAN && v->n;
    else if (mz_tpl_named(name, n, "false"))
        is = v->kind == BOOLEAN && !v->n;
    else
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the test %s is not supported", mz_quote_bytes(name, n).text);
    return mz_tpl_truth(is != not );
}

static const value *postfix(machine *m) {
    const value *v = primary(m);
    while (m->status == MEZZO_OK) {
        char c = mz_tpl_peek(m);
        if (c == '.') {
            m->p++;
            v = attribute(m, v);
        } else if (c == '[') {
            m->p++;
            v = subscript(m, v);
        } else if (c == '|') {
            m->p++;
            v = filter(m, v);
        } else if (mz_tpl_take_word(m, "is")) {
            v = test(m, v);
        } else {
            break;
        }
    }
    return v;
}

// --- operators, by precedence --------------------------------------------------------------------------------------
static const value *unary(machine *m) {
    if (mz_tpl_peek(m) != '-')
        return postfix(m);
    m->p++;
    if (++m->depth > MOST_DEPTH)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template is too deep");
    const value *v = m->status == MEZZO_OK ? unary(m) : &mz_tpl_undefined;
    m->depth--;
    if (!live(m))
        return &mz_tpl_undefined;
    if (v->kind != NUMBER)
        refuse(m, MEZZO_ERR_FORMAT, "- before a value that is not a number");
    return mz_tpl_number(m, -v->n);
}

static const value *arithmetic(machine *m, char sign, const value *a, const value *b) {
    if (!live(m))
        return &mz_tpl_undefined;
    if (sign == '+' && a->kind == STRING && b->kind == STRING)
        return mz_tpl_joined(m, a, b);
    const int64_t far = INT64_C(1) << 31;
    if (!mz_tpl_is_number(a) || !mz_tpl_is_number(b) || llabs(a->n) > far || llabs(b->n) > far) {
        refuse(m, MEZZO_ERR_FORMAT, "%c between values that do not fit it%s", sign,
               a->kind == UNDEFINED || b->kind == UNDEFINED ? ": one is undefined"
               : a->kind == NONE || b->kind == NONE         ? ": one is none"
                                                            : "");
        return &mz_tpl_undefined;
    }
    if (sign == '%') {
        if (b->n <= 0) {
            refuse(m, MEZZO_ERR_FORMAT, "%% by a number below 1");
            return &mz_tpl_undefined;
        }
        return mz_tpl_number(m, (a->n % b->n + b->n) % b->n);
    }
    return mz_tpl_number(m, sign == '+' ? a->n + b->n : sign == '-' ? a->n - b->n : a->n * b->n);
}

static const value *products(machine *m) {
    const value *v = unary(m);
    for (char c; (c = mz_tpl_peek(m)) == '*' || c == '%';) {
        m->p++;
        v = arithmetic(m, c, v, unary(m));
    }
    if (mz_tpl_peek(m) == '/')
        refuse(m, MEZZO_ERR_UNSUPPORTED, "division is not supported");
    return v;
}

static const value *tilde(machine *m) {
    const value *v = products(m);
    while (mz_tpl_take(m, "~")) {
        const value *next = products(m);
        if (live(m)) {
            v = mz_tpl_printed(m, v);
            next = mz_tpl_printed(m, next);
        }
        v = live(m) ? mz_tpl_joined(m, v, next) : &mz_tpl_undefined;
    }
    return v;
}

static const value *sums(machine *m) {
    const value *v = tilde(m);
    for (char c; (c = mz_tpl_peek(m)) == '+' || c == '-';) {
        m->p++;
        v = arithmetic(m, c, v, tilde(m));
    }
    return v;
}

static const value *contains(machine *m, const value *v, const value *in) {
    if (!live(m))
        return &mz_tpl_undefined;
    if (in->kind == STRING && v->kind == STRING)
        return mz_tpl_truth(mz_tpl_find(m, in, v, 0) >= 0);
    if (in->kind == MAP && v->kind == STRING)
        return mz_tpl_truth(mz_tpl_member(m, in, v->text, v->length) != NULL);
    for (int64_t i = 0; in->kind == LIST && i < in->n; i++)
        if (mz_tpl_equal(m, in->at[i], v))
            return &mz_tpl_yes;
    if (in->kind != LIST)
        refuse(m, MEZZO_ERR_FORMAT, "\"in\" a value that is not a container%s",
               in->kind == UNDEFINED ? ": it is undefined" : "");
    return &mz_tpl_no;
}

static const value *ordered(machine *m, const char *sign, const value *a, const value *b) {
    if (!live(m))
        return &mz_tpl_undefined;
    if (!mz_tpl_is_number(a) || !mz_tpl_is_number(b))
        refuse(m, MEZZO_ERR_FORMAT, "%s between values that are not numbers", sign);
    return mz_tpl_truth(sign[0] == '<' ? (sign[1] ? a->n <= b->n : a->n < b->n)
                                       : (sign[1] ? a->n >= b->n : a->n > b->n));
}

static const value *comparisons(machine *m) {
    static const char *const signs[] = {"<=", ">=", "<", ">"};
    const value *v = sums(m);
    const size_t back = m->p;
    if (mz_tpl_take(m, "=="))
        return mz_tpl_truth(mz_tpl_equal(m, v, sums(m)));
    if (mz_tpl_take(m, "!="))
        return mz_tpl_truth(!mz_tpl_equal(m, v, sums(m)));
    for (size_t i = 0; i < MZ_COUNT(signs); i++)
        if (mz_tpl_take(m, signs[i]))
            return ordered(m, signs[i], v, sums(m));
    if (mz_tpl_take_word(m, "in"))
        return contains(m, v, sums(m));
    if (mz_tpl_take_word(m, "not")) {
        if (mz_tpl_take_word(m, "in"))
            return mz_tpl_truth(!mz_tpl_is_true(contains(m, v, sums(m))));
        m->p = back;
    }
    return v;
}

static const value *negation(machine *m) {
    if (!mz_tpl_take_word(m, "not"))
        return comparisons(m);
    if (++m->depth > MOST_DEPTH)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template is too deep");
    const value *v = mz_tpl_truth(m->status == MEZZO_OK && !mz_tpl_is_true(negation(m)));
    m->depth--;
    return v;
}

static const value *conjunction(machine *m) {
    const value *v = negation(m);
    while (mz_tpl_take_word(m, "and")) {
        bool over = !mz_tpl_is_true(v);
        m->skip += over;
        const value *next = negation(m);
        m->skip -= over;
        v = over ? v : next;
    }
    return v;
}

static const value *disjunction(machine *m) {
    const value *v = conjunction(m);
    while (mz_tpl_take_word(m, "or")) {
        bool over = mz_tpl_is_true(v);
        m->skip += over;
        const value *next = conjunction(m);
        m->skip -= over;
        v = over ? v : next;
    }
    return v;
}

// A if B else C: B first.
static const value *condition(machine *m) {
    const size_t back = m->p;
    m->skip++;
    disjunction(m);
    m->skip--;
    if (m->status != MEZZO_OK || !mz_tpl_take_word(m, "if")) {
        m->p = back;
        return disjunction(m);
    }
    const bool is = mz_tpl_is_true(disjunction(m));
    const size_t behind = m->p;
    m->p = back;
    m->skip += !is;
    const value *v = disjunction(m);
    m->skip -= !is;
    m->p = behind;
    if (!mz_tpl_take_word(m, "else"))
        return is ? v : &mz_tpl_undefined;
    m->skip += is;
    const value *other = mz_tpl_expression(m);
    m->skip -= is;
    return is ? v : other;
}

const value *mz_tpl_expression(machine *m) {
    if (++m->depth > MOST_DEPTH)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the template is too deep");
    const value *v = m->status == MEZZO_OK ? condition(m) : &mz_tpl_undefined;
    m->depth--;
    return m->status == MEZZO_OK ? v : &mz_tpl_undefined;
}

void mz_tpl_at_end(machine *m) {
    if (m->status == MEZZO_OK && mz_tpl_peek(m) != '\0')
        mz_tpl_unexpected(m, "the end of the tag");
}
