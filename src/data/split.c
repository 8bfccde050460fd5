#include "data/split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "io/utf8.h"

// The pattern of GPT-2's encoder.py, with possessive runs, which change no match:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// \s is spelled out as Unicode's White_Space: PCRE2's own takes U+180E too, which is none since Unicode 6.3. \p{L} and
// \p{N} are those of PCRE2's Unicode version.
#define WHITE "\\x09-\\x0D\\x20\\x85\\xA0\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
static const char pattern[] =
    " ?\\p{L}++|'(?:[sdmt]|ll|ve|re)| ?\\p{N}++| ?[^" WHITE "\\p{L}\\p{N}]++|[" WHITE "]+(?![^" WHITE "])|[" WHITE "]";

struct mz_splitter {
    pcre2_code *code;
    bool jit;
};

static mezzo_status pcre_fail(const char *doing, int error) {
    PCRE2_UCHAR text[128] = {0};
    pcre2_get_error_message(error, text, sizeof text);
    return mz_fail(error == PCRE2_ERROR_NOMEMORY ? MEZZO_ERR_MEMORY : MEZZO_ERR_UNSUPPORTED, "%s: PCRE2 says: %s",
                   doing, (const char *)text);
}

mezzo_status mz_splitter_create(mz_splitter **out) {
    int error = 0;
    PCRE2_SIZE where = 0;
    *out = NULL;
    mz_splitter *s = mz_alloc(1, sizeof *s);
    if (!s)
        return MEZZO_ERR_MEMORY;
    s->code = pcre2_compile((PCRE2_SPTR)pattern, sizeof pattern - 1, PCRE2_UTF | PCRE2_UCP, &error, &where, NULL);
    if (!s->code) {
        mz_free(s);
        return pcre_fail("compiling GPT-2's split pattern", error);
    }
    s->jit = pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE) == 0; // else the interpreter does it
    *out = s;
    return MEZZO_OK;
}

void mz_splitter_free(mz_splitter *splitter) {
    if (!splitter)
        return;
    pcre2_code_free(splitter->code);
    mz_free(splitter);
}

mezzo_status mz_split_begin(const mz_splitter *splitter, const char *text, size_t n, mz_split *out) {
    *out = (mz_split){.splitter = splitter, .text = text, .n = n};
    out->match = pcre2_match_data_create(1, NULL);
    return out->match ? MEZZO_OK : mz_fail(MEZZO_ERR_MEMORY, "out of memory while splitting a text into words");
}

void mz_split_end(mz_split *split) {
    pcre2_match_data_free(split->match);
    split->match = NULL;
}

// The end of the UTF-8 that starts at `at`.
static size_t valid_until(const char *text, size_t at, size_t n) {
    while (at < n) {
        uint64_t eight;
        if (n - at >= 8 && (memcpy(&eight, text + at, 8), (eight & UINT64_C(0x8080808080808080)) == 0)) {
            at += 8;
            continue;
        }
        uint32_t code;
        size_t width = mz_utf8_decode(text + at, n - at, &code);
        if (width == 0)
            break;
        at += width;
    }
    return at;
}

static size_t invalid_until(const char *text, size_t at, size_t n) {
    uint32_t code;
    while (at < n && mz_utf8_decode(text + at, n - at, &code) == 0)
        at++;
    return at;
}

mezzo_status mz_split_next(mz_split *split, const char **word, size_t *n) {
    *word = split->text + split->at;
    *n = 0;
    if (split->at == split->n)
        return MEZZO_OK;
    if (split->at >= split->valid_end) {
        split->valid_end = valid_until(split->text, split->at, split->n);
        if (split->valid_end == split->at) {
            split->at = invalid_until(split->text, split->at, split->n);
            *n = (size_t)(split->text + split->at - *word);
            return MEZZO_OK;
        }
    }
    // The subject ends where the UTF-8 does and has been checked; nothing in the pattern looks back.
    size_t left = split->valid_end - split->at;
    const uint32_t options = PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK;
    pcre2_match_data *match = split->match;
    int found = split->splitter->jit
                    ? pcre2_jit_match(split->splitter->code, (PCRE2_SPTR)*word, left, 0, 0, match, NULL)
                    : pcre2_match(split->splitter->code, (PCRE2_SPTR)*word, left, 0, options, match, NULL);
    if (found < 0)
        return pcre_fail("splitting a text into words", found);
    *n = pcre2_get_ovector_pointer(match)[1];
    split->at += *n;
    return MEZZO_OK;
}

static bool is_white(unsigned char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

// No word has white space behind anything else in it, and no lookahead reaches past the first character that is not
// white.
size_t mz_split_cut(const char *text, size_t from, size_t to) {
    for (size_t i = to; i > from + 1; i--) {
        unsigned char before = (unsigned char)text[i - 2];
        if (is_white((unsigned char)text[i - 1]) && before < 0x80 && !is_white(before))
            return i - 1;
    }
    return to;
}
