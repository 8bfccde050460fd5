// Splits a chat template into tokens by the rules of Jinja's lexer.
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "data/template_machine.h"

typedef struct lexer {
    machine *m;
    const char *s;
    size_t n, p;
    int line;
    bool line_starting;
} lexer;

static token *add(lexer *l, token_kind kind, const char *text, size_t length) {
    machine *m = l->m;
    if (m->status == MEZZO_OK && m->n_tokens + 1 >= m->cap_tokens)
        m->status = MZ_RESERVE(m->tokens, m->cap_tokens, m->n_tokens + 2);
    static _Thread_local token none;
    if (m->status != MEZZO_OK)
        return &none;
    token *t = &m->tokens[m->n_tokens++];
    *t = (token){.kind = kind, .line = l->line, .text = text, .length = length};
    return t;
}

static bool at(const lexer *l, size_t p, const char *what) {
    size_t n = strlen(what);
    return p <= l->n && l->n - p >= n && memcmp(l->s + p, what, n) == 0;
}

// Returns the width of the white space that begins at p; 0: none.
static size_t space_at(const lexer *l, size_t p) {
    uint32_t code;
    if (p >= l->n)
        return 0;
    size_t n = mz_utf8_decode(l->s + p, l->n - p, &code);
    return n > 0 && mz_tpl_is_space(code) ? n : 0;
}

static size_t after_space(const lexer *l, size_t p) {
    for (size_t n; (n = space_at(l, p)) > 0;)
        p += n;
    return p;
}

// Returns the end, without white space, of text that ends at `to`.
static size_t before_space(const lexer *l, size_t from, size_t to) {
    while (to > from) {
        size_t p = to - 1;
        while (p > from && ((unsigned char)l->s[p] & 0xC0) == 0x80)
            p--;
        if (space_at(l, p) != to - p)
            break;
        to = p;
    }
    return to;
}

static void advance(lexer *l, size_t to) {
    for (size_t i = l->p; i < to; i++)
        l->line += l->s[i] == '\n';
    l->line_starting = to > l->p ? l->s[to - 1] == '\n' : l->line_starting;
    l->p = to;
}

// Adds the text before a tag, trimmed as the tag's sign and lstrip_blocks say.
static void add_text(lexer *l, size_t to, char sign, bool prints) {
    const size_t from = l->p;
    size_t end = to;
    if (sign == '-') {
        end = before_space(l, from, to);
    } else if (sign != '+' && !prints) {
        size_t line = to;
        while (line > from && l->s[line - 1] != '\n')
            line--;
        if ((line > from || l->line_starting) && line < to && before_space(l, line, to) == line)
            end = line;
    }
    if (end > from)
        add(l, T_DATA, l->s + from, end - from);
    advance(l, to);
}

static char sign_at(const lexer *l, size_t p) {
    return p < l->n && (l->s[p] == '-' || l->s[p] == '+') ? l->s[p] : '\0';
}

// Returns the place after "+%}", "-%}" and its white space, or "%}" and a line end; 0: none of these is at p.
static size_t close_tag(const lexer *l, size_t p, const char *close) {
    if (at(l, p, close))
        return p + 2 + at(l, p + 2, "\n");
    const char sign = sign_at(l, p);
    if (sign == '\0' || !at(l, p + 1, close))
        return 0;
    return sign == '-' ? after_space(l, p + 3) : p + 3;
}

static void comment(lexer *l, size_t p) {
    for (; p < l->n; p++) {
        size_t end = close_tag(l, p, "#}");
        if (end > 0) {
            advance(l, end);
            return;
        }
    }
    l->m->line = l->line;
    refuse(l->m, MEZZO_ERR_FORMAT, "a comment without its end");
}

// Returns the place after {% raw %}; 0: another tag.
static size_t raw_begin(const lexer *l, size_t p) {
    p = after_space(l, p);
    if (!at(l, p, "raw"))
        return 0;
    p = after_space(l, p + 3);
    return at(l, p, "-%}") ? after_space(l, p + 3) : at(l, p, "%}") ? p + 2 : 0;
}

static void raw(lexer *l, size_t from) {
    advance(l, from);
    for (size_t p = from; p < l->n; p++) {
        if (!at(l, p, "{%"))
            continue;
        const char sign = sign_at(l, p + 2);
        size_t q = after_space(l, p + 2 + (sign != '\0'));
        if (!at(l, q, "endraw"))
            continue;
        size_t end = close_tag(l, after_space(l, q + 6), "%}");
        if (end > 0) {
            add_text(l, p, sign, false);
            advance(l, end);
            return;
        }
    }
    l->m->line = l->line;
    refuse(l->m, MEZZO_ERR_FORMAT, "{%% raw %%} without its end");
}

// --- inside of a tag ------------------------------------------------------------------------------------------------
static int octal(const char *s, size_t n, uint32_t *code) {
    int k = 0;
    for (*code = 0; k < 3 && (size_t)k < n && s[k] >= '0' && s[k] <= '7'; k++)
        *code = 8 * *code + (uint32_t)(s[k] - '0');
    return k;
}

// Reads one escape after its backslash, as Python's unicode-escape does, and returns its length; 0 with an error.
static size_t escape(machine *m, const char *s, size_t n, mz_text *out) {
    static const char plain[] = "n\nt\tr\r\\\\'\'\"\"a\ab\bf\fv\v";
    char bytes[4];
    uint32_t code = 0;
    for (size_t i = 0; i + 1 < sizeof plain; i += 2)
        if (s[0] == plain[i]) {
            mz_text_add(out, &plain[i + 1], 1);
            return 1;
        }
    if (s[0] == '\n')
        return 1;
    int k = octal(s, n, &code);
    const int digits = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    if (s[0] == 'N') {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the escape \\N in a string is not supported");
        return 1;
    }
    if (k == 0 && digits == 0) { // it is no escape, and both characters stay
        mz_text_add(out, "\\", 1);
        return 0;
    }
    for (int i = 1; digits > 0 && i <= digits; i++) {
        if ((size_t)i >= n || !isxdigit((unsigned char)s[i])) {
            refuse(m, MEZZO_ERR_FORMAT, "an escape \\%c without its %d digits", s[0], digits);
            return 1;
        }
        code = code << 4 | (uint32_t)(isdigit((unsigned char)s[i]) ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
    }
    if (code == 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the escape of U+%04X in a string is not supported", (unsigned)code);
    else
        mz_text_add(out, bytes, mz_utf8_encode(code, bytes));
    return digits > 0 ? (size_t)digits + 1 : (size_t)k;
}

static size_t string(lexer *l) {
    machine *m = l->m;
    const char quote = l->s[l->p];
    mz_marked_text text = {0};
    size_t p = l->p + 1;
    while (p < l->n && l->s[p] != quote)
        p += l->s[p] == '\\' ? 2 : 1;
    if (p >= l->n) {
        refuse(m, MEZZO_ERR_FORMAT, "a string without its end");
        return l->n;
    }
    for (size_t i = l->p + 1; i < p && m->status == MEZZO_OK;) {
        if (l->s[i] == '\\') {
            i += 1 + escape(m, l->s + i + 1, p - i - 1, &text.text);
        } else {
            mz_text_add(&text.text, l->s + i, 1);
            i++;
        }
    }
    if (text.text.status != MEZZO_OK)
        m->status = MEZZO_ERR_MEMORY;
    char *bytes = mz_tpl_room(m, text.text.len + 1);
    if (bytes != NULL && text.text.len > 0)
        memcpy(bytes, text.text.data, text.text.len);
    add(l, T_STRING, NULL, 0)->is = bytes != NULL ? mz_tpl_string(m, bytes, NULL, text.text.len) : NULL;
    mz_marked_text_free(&text);
    return p + 1;
}

// Reads digits with single underscores between them.
static size_t digits(const lexer *l, size_t p, const char *of) {
    const size_t from = p;
    while (p < l->n &&
           (strchr(of, tolower((unsigned char)l->s[p])) != NULL || (l->s[p] == '_' && p > from && l->s[p - 1] != '_')))
        p++;
    return p > from && l->s[p - 1] == '_' ? p - 1 : p;
}

static size_t real_end(const lexer *l) {
    static const char ten[] = "0123456789";
    if (l->p > 0 && l->s[l->p - 1] == '.')
        return 0;
    size_t p = digits(l, l->p, ten), whole = p, fraction = 0;
    if (p < l->n && l->s[p] == '.' && (fraction = digits(l, p + 1, ten)) > p + 1)
        p = fraction;
    if (p < l->n && (l->s[p] | 32) == 'e') {
        size_t q = p + 1 + (p + 1 < l->n && (l->s[p + 1] == '+' || l->s[p + 1] == '-')), end = digits(l, q, ten);
        p = end > q ? end : p;
    }
    return p > whole ? p : 0;
}

static size_t number(lexer *l) {
    machine *m = l->m;
    char text[512];
    const char c = l->s[l->p], x = l->p + 1 < l->n ? (char)tolower((unsigned char)l->s[l->p + 1]) : '\0';
    const int base = c != '0' ? 10 : x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 10;
    size_t end = real_end(l), n = 0;
    const bool real = end > 0;
    if (base != 10) {
        size_t from = l->p + 2 + (l->p + 2 < l->n && l->s[l->p + 2] == '_');
        end = digits(l, from, base == 16 ? "0123456789abcdef" : base == 8 ? "01234567" : "01");
        end = end == from ? l->p + 1 : end;
    } else if (!real) {
        end = digits(l, l->p, c == '0' ? "0" : "0123456789");
    }
    for (size_t i = l->p + (base != 10 && end > l->p + 1 ? 2 : 0); i < end && n + 1 < sizeof text; i++)
        if (l->s[i] != '_')
            text[n++] = l->s[i];
    text[n] = '\0';
    errno = 0;
    const long long is = real ? 0 : strtoll(text, NULL, base);
    if (n + 1 == sizeof text || errno == ERANGE)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "numbers beyond 64 bits are not supported");
    add(l, real ? T_REAL : T_INTEGER, NULL, 0)->is =
        real ? mz_tpl_real(m, mz_strtod(text, NULL)) : mz_tpl_integer(m, is);
    return end;
}

static token_kind sign(const lexer *l, size_t *n) {
    static const struct {
        char text[3];
        token_kind kind;
    } signs[] = {{"//", T_FLOORDIV}, {"**", T_POW},   {"==", T_EQ},      {"!=", T_NE},      {">=", T_GE},
                 {"<=", T_LE},       {"+", T_ADD},    {"-", T_SUB},      {"/", T_DIV},      {"*", T_MUL},
                 {"%", T_MOD},       {"~", T_TILDE},  {"[", T_LBRACKET}, {"]", T_RBRACKET}, {"(", T_LPAREN},
                 {")", T_RPAREN},    {"{", T_LBRACE}, {"}", T_RBRACE},   {">", T_GT},       {"<", T_LT},
                 {"=", T_ASSIGN},    {".", T_DOT},    {":", T_COLON},    {"|", T_PIPE},     {",", T_COMMA},
                 {";", T_SEMICOLON}};
    for (size_t i = 0; i < MZ_COUNT(signs); i++)
        if (at(l, l->p, signs[i].text)) {
            *n = strlen(signs[i].text);
            return signs[i].kind;
        }
    return T_END;
}

static bool is_letter(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

static bool balance(lexer *l, token_kind kind, token_kind *open, int *depth) {
    const bool opens = kind == T_LPAREN || kind == T_LBRACKET || kind == T_LBRACE;
    if (opens && *depth == MOST_NESTING) {
        refuse(l->m, MEZZO_ERR_UNSUPPORTED, "the template is nested too deep");
        return false;
    }
    if (opens)
        open[(*depth)++] = kind + 1;
    if (kind != T_RPAREN && kind != T_RBRACKET && kind != T_RBRACE)
        return true;
    if (*depth > 0 && open[*depth - 1] == kind)
        return --*depth >= 0;
    refuse(l->m, MEZZO_ERR_FORMAT, "unexpected '%c'", l->s[l->p]);
    return false;
}

static void tag(lexer *l, bool prints) {
    machine *m = l->m;
    token_kind open[MOST_NESTING];
    int depth = 0;
    while (m->status == MEZZO_OK) {
        m->line = l->line;
        size_t end = depth > 0            ? 0
                     : !prints            ? close_tag(l, l->p, "%}")
                     : at(l, l->p, "}}")  ? l->p + 2
                     : at(l, l->p, "-}}") ? after_space(l, l->p + 3)
                                          : 0;
        if (end > 0) {
            add(l, prints ? T_PRINT_END : T_TAG_END, NULL, 0);
            advance(l, end);
            return;
        }
        const char c = l->p < l->n ? l->s[l->p] : '\0';
        size_t space = space_at(l, l->p), n = 0;
        token_kind kind;
        if (space > 0) {
            end = l->p + space;
        } else if (c == '\'' || c == '"') {
            end = string(l);
        } else if (isdigit((unsigned char)c)) {
            end = number(l);
        } else if (is_letter(c)) {
            for (end = l->p; end < l->n && is_letter(l->s[end]);)
                end++;
            add(l, T_NAME, l->s + l->p, end - l->p);
        } else if ((kind = sign(l, &n)) != T_END) {
            end = l->p + n;
            if (balance(l, kind, open, &depth))
                add(l, kind, l->s + l->p, n);
        } else if (c == '\0') {
            refuse(m, MEZZO_ERR_FORMAT, "a tag without its end");
        } else {
            size_t width = mz_utf8_decode(l->s + l->p, l->n - l->p, &(uint32_t){0});
            refuse(m, MEZZO_ERR_FORMAT, "unexpected character %s", mz_quote_bytes(l->s + l->p, width).text);
        }
        if (m->status == MEZZO_OK)
            advance(l, end);
    }
}

bool mz_tpl_lex(machine *m) {
    lexer l = {.m = m, .s = m->source, .n = m->n, .line = 1, .line_starting = true};
    while (m->status == MEZZO_OK && l.p < l.n) {
        size_t p = l.p;
        while (p < l.n && (l.s[p] != '{' || p + 1 >= l.n || strchr("{%#", l.s[p + 1]) == NULL))
            p++;
        if (p >= l.n) {
            add(&l, T_DATA, l.s + l.p, l.n - l.p);
            break;
        }
        const char kind = l.s[p + 1], sign = sign_at(&l, p + 2);
        const size_t inside = p + 2 + (sign != '\0');
        add_text(&l, p, sign, kind == '{');
        m->line = l.line;
        size_t begin = kind == '%' ? raw_begin(&l, inside) : 0;
        if (begin > 0) {
            raw(&l, begin);
        } else if (kind == '#') {
            comment(&l, inside);
        } else {
            add(&l, kind == '{' ? T_PRINT : T_TAG, NULL, 0);
            advance(&l, inside);
            l.line_starting = false;
            tag(&l, kind == '{');
        }
    }
    add(&l, T_END, NULL, 0);
    return m->status == MEZZO_OK;
}
