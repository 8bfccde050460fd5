// Converts JSON as Python's json module writes it to what jansson reads. A value without such a form (NaN, an infinity,
// text with half of a surrogate pair) becomes an object that no reader takes for a value of its own.
#include <math.h>

#include "io/json.h"
#include "io/number.h"

typedef struct rewriter {
    const char *at, *end;
    const char *copied; // `out` has everything before it, once it has anything
    mz_text *out;
} rewriter;

static void replace(rewriter *r, const char *from, const char *to, const char *with) {
    mz_text_add(r->out, r->copied, (size_t)(from - r->copied));
    mz_text_add(r->out, with, strlen(with));
    r->copied = to;
}

static void replace_by_mark(rewriter *r, const char *from, const char *what) {
    char mark[96];
    snprintf(mark, sizeof mark, "{\"" MZ_JSON_MARK "\": \"%s\"}", what);
    replace(r, from, r->at, mark);
}

// Returns the code unit of "\uXXXX" at `at`, or 0.
static unsigned unit_at(const char *at, const char *end) {
    unsigned unit = 0;
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u')
        return 0;
    for (int i = 2; i < 6; i++) {
        const char c = at[i];
        const unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                               : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                               : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A' + 10)
                                                      : 16;
        if (digit == 16)
            return 0;
        unit = unit << 4 | digit;
    }
    return unit;
}

// Returns how many bytes inside a string belong together at `at`; *half: they are a surrogate without its other half.
static size_t step(const char *at, const char *end, bool *half) {
    const unsigned unit = unit_at(at, end), next = unit != 0 ? unit_at(at + 6, end) : 0;
    const bool pair = unit >= 0xD800 && unit < 0xDC00 && next >= 0xDC00 && next < 0xE000;
    *half = unit >= 0xD800 && unit < 0xE000 && !pair;
    if (unit != 0)
        return pair ? 12 : 6;
    return *at == '\\' && end - at > 1 ? 2 : 1;
}

// Rewrites a string. A key keeps its place and gets U+FFFD, because no key of Mezzo has such text; a value is marked.
static void rewrite_string(rewriter *r) {
    const char *const begin = r->at++;
    bool any = false, half = false;
    while (r->at < r->end && *r->at != '"') {
        r->at += step(r->at, r->end, &half);
        any |= half;
    }
    if (r->at >= r->end)
        return; // it is never closed, which the parser reports
    const char *after = ++r->at, *const close = after - 1;
    while (after < r->end && strchr(" \t\r\n", *after) != NULL && *after != '\0')
        after++;
    if (any && (after == r->end || *after != ':'))
        replace_by_mark(r, begin, "text with half of a surrogate pair");
    else if (any)
        for (const char *p = begin + 1; p < close;) {
            const size_t n = step(p, close, &half);
            if (half)
                replace(r, p, p + n, "\\ufffd");
            p += n;
        }
}

// Returns whether a number of this text may be beyond a double's range: long, or with an exponent of three digits or
// more.
static bool may_overflow(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (text[i] == 'e' || text[i] == 'E')
            return n - i > 3;
    return n > 300;
}

static bool fits_64_bits(const char *digits, size_t n, bool negative) {
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++)
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(digits[i] - '0'), &value))
            return false;
    return value <= (uint64_t)INT64_MAX + negative;
}

// Rewrites an integer beyond 64 bits as the number that Python's float() makes of it; marks one beyond a double's
// range.
static mezzo_status rewrite_number(rewriter *r) {
    const char *const begin = r->at, *digits = begin + (*begin == '-');
    const size_t n = (size_t)(r->end - digits);
    size_t whole = 0, all = 0;
    while (whole < n && digits[whole] >= '0' && digits[whole] <= '9')
        whole++;
    for (all = whole; all < n && strchr("+-.eE0123456789", digits[all]) != NULL && digits[all] != '\0';)
        all++;
    r->at = digits + all;
    if (all == whole ? fits_64_bits(digits, whole, digits > begin) : !may_overflow(digits, all))
        return MEZZO_OK;
    char *copy = mz_format("%.*s", (int)(r->at - begin), begin);
    double value = 0;
    if (copy == NULL)
        return MEZZO_ERR_MEMORY;
    const bool number = mz_number_parse(copy, &value);
    mz_free(copy);
    if (number && isinf(value))
        replace_by_mark(r, begin,
                        all == whole ? "an integer beyond a double's range"
                        : value > 0  ? "Infinity"
                                     : "-Infinity");
    else if (number && all == whole)
        replace(r, r->at, r->at, "e0");
    return MEZZO_OK;
}

static bool rewrite_word(rewriter *r) {
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < MZ_COUNT(words); i++) {
        const size_t n = strlen(words[i]);
        if ((size_t)(r->end - r->at) >= n && memcmp(r->at, words[i], n) == 0) {
            const char *const begin = r->at;
            r->at += n;
            replace_by_mark(r, begin, words[i]);
            return true;
        }
    }
    return false;
}

mezzo_status mz_json_from_python(const char *text, size_t n, mz_text *out) {
    rewriter r = {text, text + n, text, out};
    while (r.at < r.end) {
        if (*r.at == '"')
            rewrite_string(&r);
        else if ((*r.at == 'N' || *r.at == 'I' || *r.at == '-') && rewrite_word(&r))
            continue;
        else if (*r.at == '-' || (*r.at >= '0' && *r.at <= '9'))
            MEZZO_TRY(rewrite_number(&r));
        else
            r.at++;
    }
    if (r.copied > text)
        mz_text_add(out, r.copied, (size_t)(r.end - r.copied));
    return out->status;
}
