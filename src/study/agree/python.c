// Reads configurations in Python: assignments of literals and of dict(...) at the top level, as in nanoGPT and
// MMEngine. They become YAML with the same line numbers. Other Python (calls, arithmetic, imports) is ignored.
#include <ctype.h>

#include "study/agree/agreement.h"

enum { DEPTH = 32 };

typedef struct scan {
    const char *at, *end;
    mz_text yaml; // of one value, on one line
    int lines;    // line ends within the value
    char close[DEPTH];
    int depth;
} scan;

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '.';
}

// Reads a string as YAML's single-quoted one. Returns false at an escape, which no setting of precision needs, or
// without an end.
static bool read_string(scan *s) {
    char quote = *s->at++;
    mz_text_add(&s->yaml, "'", 1);
    for (; s->at < s->end && *s->at != quote; s->at++) {
        if (*s->at == '\\' || *s->at == '\n')
            return false;
        mz_text_add(&s->yaml, s->at, 1);
        if (*s->at == '\'')
            mz_text_add(&s->yaml, "'", 1);
    }
    mz_text_add(&s->yaml, "'", 1);
    return s->at < s->end && s->at++ != NULL;
}

static bool open_bracket(scan *s, char yaml_open, char yaml_close) {
    if (s->depth == DEPTH)
        return false;
    s->close[s->depth++] = yaml_close;
    mz_text_add(&s->yaml, &yaml_open, 1);
    s->at++;
    return true;
}

// Reads a word: True, False, None, a number, `dict` before its parenthesis, or a keyword inside dict(...).
static bool read_word(scan *s) {
    const char *from = s->at;
    while (s->at < s->end && is_word(*s->at))
        s->at++;
    size_t n = (size_t)(s->at - from);
    if (n == 4 && memcmp(from, "dict", 4) == 0 && s->at < s->end && *s->at == '(')
        return open_bracket(s, '{', '}');
    if (s->at < s->end && *s->at == '(')
        return false; // it is a call
    if (n == 4 && memcmp(from, "None", 4) == 0)
        mz_text_add(&s->yaml, "null", 4);
    else
        mz_text_add(&s->yaml, from, n);
    return true;
}

static bool read_mark(scan *s) {
    switch (*s->at) {
    case '(':
    case '[':
        return open_bracket(s, '[', ']');
    case '{':
        return open_bracket(s, '{', '}');
    case ')':
    case ']':
    case '}':
        if (s->depth == 0)
            return false;
        mz_text_add(&s->yaml, &s->close[--s->depth], 1);
        s->at++;
        return true;
    case '=':
    case ':':
        mz_text_add(&s->yaml, ": ", 2);
        s->at++;
        return s->depth > 0;
    case ',':
        mz_text_add(&s->yaml, ", ", 2);
        s->at++;
        return s->depth > 0;
    case '-':
        mz_text_add(&s->yaml, "-", 1);
        s->at++;
        return true;
    default:
        return false;
    }
}

// Reads the value after `name =`, to the end of its last line. Returns false for more than literals.
static bool read_value(scan *s) {
    while (s->at < s->end && (*s->at != '\n' || s->depth > 0)) {
        bool known = true;
        if (*s->at == '#') {
            while (s->at < s->end && *s->at != '\n')
                s->at++;
        } else if (*s->at == '\n') {
            s->lines++;
            s->at++;
        } else if (isspace((unsigned char)*s->at)) {
            s->at++;
        } else if (*s->at == '\'' || *s->at == '"') {
            known = read_string(s);
        } else {
            known = is_word(*s->at) ? read_word(s) : read_mark(s);
        }
        if (!known)
            return false;
    }
    return s->depth == 0 && s->yaml.len > 0;
}

static size_t name_length(const char *line, const char *end) {
    size_t n = 0;
    while (line + n < end && (isalnum((unsigned char)line[n]) || line[n] == '_'))
        n++;
    return n;
}

mezzo_status mz_python_to_yaml(const char *text, size_t size, mz_text *out) {
    const char *at = text, *end = text + size;
    mz_text_add(out, "", 0);
    while (at < end) {
        size_t n = name_length(at, end);
        const char *equals = at + n;
        while (equals < end && *equals == ' ')
            equals++;
        scan s = {.at = equals + 1, .end = end};
        bool assigns = n > 0 && equals + 1 < end && *equals == '=' && equals[1] != '=';
        if (assigns && read_value(&s)) {
            mz_text_addf(out, "%.*s: %s", (int)n, at, s.yaml.data);
            at = s.at;
        } else {
            s.lines = 0;
            while (at < end && *at != '\n')
                at++;
        }
        mezzo_status status = s.yaml.status;
        mz_text_free(&s.yaml);
        MEZZO_TRY(status);
        for (int i = 0; i < s.lines; i++)
            mz_text_add(out, "\n", 1);
        if (at < end) {
            mz_text_add(out, "\n", 1);
            at++;
        }
    }
    return out->status;
}
