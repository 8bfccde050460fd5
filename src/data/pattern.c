#include "data/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "io/quote.h"
#include "io/utf8.h"

struct mz_pattern {
    pcre2_code *code; // NULL: literal
    bool jit;
    char *literal;
    size_t n;
};

// Returns whether it is an error of memory, in matching or in compiling.
static bool ran_out(int error) {
    return error == PCRE2_ERROR_NOMEMORY || error == PCRE2_ERROR_HEAP_FAILED;
}

// --- Oniguruma's syntax as PCRE2's ---------------------------------------------------------------------------------
typedef struct translator {
    const char *where, *source;
    size_t n, at;
    mz_text out;
} translator;

static void put(translator *t, const char *text) {
    mz_text_add(&t->out, text, strlen(text));
}

static bool ahead(const translator *t, const char *text) {
    const size_t n = strlen(text);
    return t->n - t->at >= n && memcmp(t->source + t->at, text, n) == 0;
}

static mezzo_status refuse(const translator *t, const char *what) {
    return mz_fail(MEZZO_ERR_FORMAT, "%s: the pattern %s has %s at byte %zu, which is not supported", t->where,
                   mz_quote_bytes(t->source, t->n).text, what, t->at);
}

// Oniguruma's \w consists of what is alphabetic (letters, numbers that are letters, letters in circles and squares),
// marks, decimal digits and connectors.
#define WORD                                                                                                           \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{"    \
    "1F189}"
// Outside of a class, these fractions and powers of Latin 1 belong to it, too.
#define BARE WORD "\\xB2\\xB3\\xB9\\xBC-\\xBE"
typedef struct escape {
    char letter;
    const char *outside, *inside; // outside and inside a class; NULL: refused there
} escape;
static const escape escapes[] = {
    {'s', "[" MZ_WHITE "]", MZ_WHITE},
    {'S', "[^" MZ_WHITE "]", NULL},
    {'w', "[" BARE "]", WORD},
    {'W', "[^" BARE "]", NULL},
    {'d', "\\p{Nd}", "\\p{Nd}"},
    {'D', "\\P{Nd}", "\\P{Nd}"},
    {'h', "[0-9a-fA-F]", "0-9a-fA-F"},
    {'H', "[^0-9a-fA-F]", NULL},
    {'b', "(?:(?<=[" BARE "])(?![" BARE "])|(?<![" BARE "])(?=[" BARE "]))", "\\x08"},
    {'B', "(?:(?<=[" BARE "])(?=[" BARE "])|(?<![" BARE "])(?![" BARE "]))", NULL},
    {'A', "\\A", NULL},
    {'z', "\\z", NULL},
    {'Z', "(?=\\n?\\z)", NULL},
    {'r', "\\r", "\\r"},
    {'n', "\\n", "\\n"},
    {'t', "\\t", "\\t"},
    {'f', "\\f", "\\f"},
    {'v', "\\x0B", "\\x0B"},
    {'a', "\\a", "\\a"},
    {'e', "\\e", "\\e"},
};

static bool is_hex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// Translates \x{…}, \xHH and \uHHHH, whose first two characters are read.
static mezzo_status translate_code(translator *t, char letter) {
    uint64_t code = 0;
    size_t digits = 0;
    const bool braces = letter == 'x' && t->at < t->n && t->source[t->at] == '{';
    const size_t most = braces ? 8 : letter == 'u' ? 4 : 2;
    for (t->at += braces; t->at < t->n && is_hex(t->source[t->at]) && digits < most; t->at++, digits++) {
        const char c = t->source[t->at];
        code = code * 16 + (uint64_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    const bool closed = !braces || (t->at < t->n && t->source[t->at] == '}');
    t->at += braces && closed;
    if (digits == 0 || !closed || code > 0x10FFFF || (letter == 'u' && digits < 4) ||
        (letter == 'x' && !braces && code > 0x7F)) // it would be one byte of a character
        return refuse(t, "a code point that is none");
    mz_text_addf(&t->out, "\\x{%llx}", (unsigned long long)code);
    return MEZZO_OK;
}

// Finds whether PCRE2 has a script of this name, as \p{sc:NAME}. The bare name would also mean characters that the
// script shares with others, as the full stop of Han and Hiragana; before 10.40, which has no sc:, it does not.
static mezzo_status find_script(const char *where, const char *name, size_t n, bool *found) {
    char text[48];
    int error;
    PCRE2_SIZE at;
    *found = false;
    if (n > 32)
        return MEZZO_OK;
    const int length = snprintf(text, sizeof text, "\\p{sc:%.*s}", (int)n, name);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)text, (size_t)length, PCRE2_UTF, &error, &at, NULL);
    *found = code != NULL;
    pcre2_code_free(code);
    return *found || !ran_out(error) ? MEZZO_OK : mz_fail(MEZZO_ERR_MEMORY, "%s: no memory for a pattern", where);
}

// Translates \p{NAME}, \p{^NAME} and \P{NAME}.
static mezzo_status translate_property(translator *t, char letter) {
    const char *end = t->at < t->n && t->source[t->at] == '{' ? memchr(t->source + t->at, '}', t->n - t->at) : NULL;
    bool script;
    if (end == NULL)
        return refuse(t, "a property without braces");
    t->at++;
    const bool inverted = ahead(t, "^");
    t->at += inverted;
    const char *name = t->source + t->at;
    const size_t n = (size_t)(end - name);
    MEZZO_TRY(find_script(t->where, name, n, &script));
    mz_text_addf(&t->out, "\\%c{%s%s", letter, inverted ? "^" : "", script ? "sc:" : "");
    mz_text_add(&t->out, name, n + 1);
    t->at += n + 1;
    return MEZZO_OK;
}

static mezzo_status translate_escape(translator *t, bool in_class) {
    if (t->at + 1 >= t->n)
        return refuse(t, "a backslash at its end");
    const char c = t->source[t->at + 1];
    for (size_t i = 0; i < MZ_COUNT(escapes); i++) {
        const char *text = in_class ? escapes[i].inside : escapes[i].outside;
        if (escapes[i].letter != c)
            continue;
        if (text == NULL)
            return refuse(t, "an escape within a class");
        put(t, text);
        t->at += 2;
        return MEZZO_OK;
    }
    if (c == 'p' || c == 'P' || c == 'x' || c == 'u') {
        t->at += 2;
        return c == 'p' || c == 'P' ? translate_property(t, c) : translate_code(t, c);
    }
    if ((unsigned char)c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return refuse(t, "an escape");
    mz_text_addf(&t->out, "\\%c", c);
    t->at += 2;
    return MEZZO_OK;
}

// Returns whether a dash at the edge of a class within a class would become a range without the inner brackets.
static bool dash_at_bracket(const translator *t, size_t depth) {
    const char c = t->source[t->at], next = t->at + 1 < t->n ? t->source[t->at + 1] : '\0';
    return (c == '-' && (next == '[' || (next == ']' && depth > 1))) || ((c == '[' || c == ']') && next == '-');
}

// Translates a class. A class within it adds its characters, unless it is negated, so that its brackets can be left
// out.
static mezzo_status translate_class(translator *t) {
    size_t depth = 1;
    put(t, "[");
    t->at++;
    if (ahead(t, "^")) {
        put(t, "^");
        t->at++;
    }
    if (ahead(t, "]")) // a first bracket is a plain character
        return refuse(t, "an empty class");
    while (t->at < t->n && (depth > 1 || t->source[t->at] != ']')) {
        const char c = t->source[t->at];
        if (ahead(t, "[:") || ahead(t, "[^") || ahead(t, "[]") || ahead(t, "&&") || dash_at_bracket(t, depth))
            return refuse(t, "a class within a class");
        if (c == '\\')
            MEZZO_TRY(translate_escape(t, true));
        else if (c == '[' || c == ']')
            t->at++;
        else
            mz_text_add(&t->out, t->source + t->at++, 1);
        depth = c == '[' ? depth + 1 : c == ']' ? depth - 1 : depth;
    }
    if (t->at >= t->n)
        return refuse(t, "a class that does not end");
    put(t, "]");
    t->at++;
    return MEZZO_OK;
}

// Translates a group. (?:…), lookaround, atomic groups and (?i) mean the same in both; (?m) and others do not.
static mezzo_status translate_group(translator *t) {
    static const char *const same[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:", "(?i)"};
    for (size_t i = 0; i < MZ_COUNT(same); i++)
        if (ahead(t, same[i])) {
            put(t, same[i]);
            t->at += strlen(same[i]);
            return MEZZO_OK;
        }
    if (ahead(t, "(?") || ahead(t, "(*"))
        return refuse(t, "a group");
    put(t, "(");
    t->at++;
    return MEZZO_OK;
}

// Translates {n}, {n,} and {n,m}; a brace that counts nothing is a plain character.
static mezzo_status translate_count(translator *t) {
    size_t end = t->at + 1, commas = 0;
    while (end < t->n && ((t->source[end] >= '0' && t->source[end] <= '9') || t->source[end] == ','))
        commas += t->source[end++] == ',';
    if (end >= t->n || t->source[end] != '}' || commas > 1 || t->source[t->at + 1] == ',' || end == t->at + 1)
        return refuse(t, "a brace that is no count");
    mz_text_add(&t->out, t->source + t->at, end + 1 - t->at);
    t->at = end + 1;
    return ahead(t, "+") ? refuse(t, "a count of counts") : MEZZO_OK;
}

static mezzo_status translate(translator *t) {
    while (t->at < t->n) {
        switch (t->source[t->at]) {
        case '\\':
            MEZZO_TRY(translate_escape(t, false));
            break;
        case '[':
            MEZZO_TRY(translate_class(t));
            break;
        case '(':
            MEZZO_TRY(translate_group(t));
            break;
        case '{':
            MEZZO_TRY(translate_count(t));
            break;
        default:
            mz_text_add(&t->out, t->source + t->at++, 1);
        }
    }
    return t->out.status;
}

// --- compiling -----------------------------------------------------------------------------------------------------
static mezzo_status pcre_fail(const char *where, const char *source, size_t n, int error) {
    PCRE2_UCHAR text[128] = {0};
    pcre2_get_error_message(error, text, sizeof text);
    return mz_fail(ran_out(error) ? MEZZO_ERR_MEMORY : MEZZO_ERR_FORMAT, "%s: the pattern %s: PCRE2 says: %s", where,
                   mz_quote_bytes(source, n).text, (const char *)text);
}

// Compiles a pattern. Oniguruma's ^ and $ match at every line; the newline is \n, whatever PCRE2 was built with.
static mezzo_status compile(const char *where, const char *source, size_t n, bool lines, mz_pattern *out) {
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context == NULL)
        return mz_fail(MEZZO_ERR_MEMORY, "%s: no memory for a pattern", where);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | (lines ? PCRE2_MULTILINE : 0);
    out->code = pcre2_compile((PCRE2_SPTR)source, n, options, &error, &at, context);
    pcre2_compile_context_free(context);
    if (out->code == NULL)
        return pcre_fail(where, source, n, error);
    out->jit = pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE) == 0; // otherwise the interpreter matches
    return MEZZO_OK;
}

static mezzo_status create(const char *where, mz_pattern_syntax syntax, const char *source, size_t n, mz_pattern *out) {
    if (syntax == MZ_PATTERN_PCRE2)
        return compile(where, source, n, false, out);
    if (syntax == MZ_PATTERN_ONIGURUMA) {
        translator t = {.where = where, .source = source, .n = n};
        mezzo_status status = translate(&t);
        if (status == MEZZO_OK)
            status = compile(where, t.out.data, t.out.len, true, out);
        mz_text_free(&t.out);
        return status;
    }
    out->literal = mz_alloc(n, 1);
    if (out->literal == NULL)
        return MEZZO_ERR_MEMORY;
    memcpy(out->literal, source, n);
    out->n = n;
    return MEZZO_OK;
}

mezzo_status mz_pattern_create(const char *where, mz_pattern_syntax syntax, const char *source, size_t n,
                               mz_pattern **out) {
    *out = NULL;
    if (n == 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: a pattern is empty", where);
    mz_pattern *p;
    MEZZO_TRY(MZ_NEW(p, 1));
    mezzo_status status = create(where, syntax, source, n, p);
    if (status == MEZZO_OK)
        *out = p;
    else
        mz_pattern_free(p);
    return status;
}

void mz_pattern_free(mz_pattern *pattern) {
    if (pattern == NULL)
        return;
    pcre2_code_free(pattern->code);
    MZ_FREE(pattern->literal, pattern);
}

// --- matching ------------------------------------------------------------------------------------------------------
mezzo_status mz_match_room(void **out) {
    *out = pcre2_match_data_create(1, NULL);
    return *out != NULL ? MEZZO_OK : mz_fail(MEZZO_ERR_MEMORY, "out of memory while splitting a text into words");
}

void mz_match_room_free(void *room) {
    pcre2_match_data_free(room);
}

static bool find_literal(const mz_pattern *p, const char *text, size_t n, size_t at, size_t *from, size_t *to) {
    while (n - at >= p->n) {
        const char *first = memchr(text + at, p->literal[0], n - at - p->n + 1);
        if (first == NULL)
            return false;
        at = (size_t)(first - text);
        if (memcmp(first, p->literal, p->n) == 0) {
            *from = at;
            *to = at + p->n;
            return true;
        }
        at++;
    }
    return false;
}

static mezzo_status find(const mz_matches *m, bool *found, size_t *from, size_t *to) {
    const mz_pattern *p = m->pattern;
    if (p->code == NULL) {
        *found = find_literal(p, m->text, m->n, m->at, from, to);
        return MEZZO_OK;
    }
    int result = PCRE2_ERROR_JIT_STACKLIMIT;
    if (p->jit)
        result = pcre2_jit_match(p->code, (PCRE2_SPTR)m->text, m->n, m->at, 0, m->room, NULL);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT)
        result =
            pcre2_match(p->code, (PCRE2_SPTR)m->text, m->n, m->at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->room, NULL);
    *found = result >= 0;
    if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
        PCRE2_UCHAR text[128] = {0};
        pcre2_get_error_message(result, text, sizeof text);
        return mz_fail(ran_out(result) ? MEZZO_ERR_MEMORY : MEZZO_ERR_UNSUPPORTED,
                       "a pattern of the tokenizer cannot split this text: PCRE2 says: %s", (const char *)text);
    }
    if (*found) {
        const PCRE2_SIZE *place = pcre2_get_ovector_pointer(m->room);
        *from = place[0];
        *to = place[1];
    }
    return MEZZO_OK;
}

mezzo_status mz_matches_next(mz_matches *m, bool *found, size_t *from, size_t *to) {
    *found = false;
    while (m->at <= m->n) {
        MEZZO_TRY(find(m, found, from, to));
        if (!*found)
            return MEZZO_OK;
        if (*from != *to || *to != m->last) {
            m->at = m->last = *to;
            return MEZZO_OK;
        }
        uint32_t code;
        *found = false;
        m->at += m->at < m->n ? mz_utf8_decode(m->text + m->at, m->n - m->at, &code) : 1;
    }
    return MEZZO_OK;
}
