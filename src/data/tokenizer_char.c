// Implements the tokenizer whose tokens are Unicode characters, numbered in code point order among those of the text:
// sorted(set(text)) in Python.
#include "base/stop.h"
#include "data/tokenizer_json.h"
#include "io/json.h"
#include "io/utf8.h"

#define PAGE  256u // code points of a page
#define PAGES (MZ_CODE_POINTS / PAGE)

typedef struct char_tokenizer {
    mezzo_tokenizer base;
    int32_t *pages[PAGES]; // the token of code point c is pages[c / PAGE][c % PAGE], or -1; NULL: none on this page
    struct {
        char bytes[4];
        unsigned char width;
    } * chars; // [vocab]
} char_tokenizer;

static void char_destroy(mezzo_tokenizer *base) {
    char_tokenizer *tok = (char_tokenizer *)base;
    for (size_t i = 0; i < PAGES; i++)
        mz_free(tok->pages[i]);
    MZ_FREE(tok->chars, tok);
}

mezzo_status mz_char_set_add(mz_char_set *set, const char *where, const char *text, size_t n) {
    for (size_t i = 0; i < n;) {
        uint32_t code;
        size_t width = mz_utf8_decode(text + i, n - i, &code);
        if (width == 0)
            return mz_fail(MEZZO_ERR_FORMAT,
                           "%s: byte %zu (0x%02X) is not UTF-8; convert the file, or use --tokenizer byte", where, i,
                           (unsigned)(unsigned char)text[i]);
        set->seen[code / 64] |= UINT64_C(1) << code % 64;
        i += width;
        if (i % (1 << 20) < width)
            MEZZO_TRY(mz_stop_check(where));
    }
    return MEZZO_OK;
}

static mezzo_status add_char(char_tokenizer *tok, uint32_t code) {
    int32_t **page = &tok->pages[code / PAGE];
    if (!*page) {
        MEZZO_TRY(MZ_NEW(*page, PAGE));
        for (size_t i = 0; i < PAGE; i++)
            (*page)[i] = -1;
    }
    (*page)[code % PAGE] = tok->base.vocab;
    size_t width = mz_utf8_encode(code, tok->chars[tok->base.vocab].bytes);
    tok->chars[tok->base.vocab].width = (unsigned char)width;
    if (width > tok->base.max_bytes)
        tok->base.max_bytes = width;
    tok->base.vocab++;
    return MEZZO_OK;
}

mezzo_status mz_tokenizer_from_chars(const mz_char_set *set, mezzo_tokenizer **out) {
    *out = NULL;
    mezzo_status status = MEZZO_OK;
    size_t count = 0;
    for (size_t i = 0; i < MZ_COUNT(set->seen); i++)
        count += (size_t)__builtin_popcountll(set->seen[i]);
    if (count == 0)
        return mz_fail(MEZZO_ERR_INVALID, "a character tokenizer needs at least one character; the text is empty");
    char_tokenizer *tok;
    MEZZO_TRY(MZ_NEW(tok, 1));
    tok->base.kind = &mz_tokenizer_char;
    MEZZO_TRY_GOTO(status, MZ_NEW(tok->chars, count));
    for (uint32_t code = 0; code < MZ_CODE_POINTS; code++)
        if (set->seen[code / 64] >> code % 64 & 1)
            MEZZO_TRY_GOTO(status, add_char(tok, code));
    *out = &tok->base;
    return MEZZO_OK;
fail:
    char_destroy(&tok->base);
    return status;
}

mezzo_status mezzo_tokenizer_create_char(const char *text, size_t n, mezzo_tokenizer **out) {
    MZ_REQUIRE(out);
    *out = NULL;
    if (n > 0)
        MZ_REQUIRE(text);
    MZ_SCOPED(mz_free_at) mz_char_set *set = NULL;
    MEZZO_TRY(MZ_NEW(set, 1));
    MEZZO_TRY(mz_char_set_add(set, "text", text, n));
    return mz_tokenizer_from_chars(set, out);
}

static mezzo_status char_encode(const mezzo_tokenizer *base, const char *text, size_t n, uint64_t offset,
                                mz_place place, mz_token_list *out) {
    const char_tokenizer *tok = (const char_tokenizer *)base;
    (void)place;
    MEZZO_TRY(MZ_RESERVE(out->tokens, out->cap, out->n + n));
    for (size_t i = 0; i < n;) {
        uint32_t code;
        size_t width = mz_utf8_decode(text + i, n - i, &code);
        const int32_t *page = width ? tok->pages[code / PAGE] : NULL;
        int32_t token = page ? page[code % PAGE] : -1;
        if (token < 0) {
            unsigned long long at = (unsigned long long)(offset + i);
            if (width == 0)
                return mz_fail(MEZZO_ERR_FORMAT, "byte %llu (0x%02X) is not UTF-8", at,
                               (unsigned)(unsigned char)text[i]);
            return mz_fail(MEZZO_ERR_INVALID, "character U+%04X at byte %llu is not among the tokenizer's %d", code, at,
                           (int)tok->base.vocab);
        }
        out->tokens[out->n++] = token;
        i += width;
    }
    return MEZZO_OK;
}

static const char *char_bytes(const mezzo_tokenizer *base, int32_t token, size_t *n) {
    const char_tokenizer *tok = (const char_tokenizer *)base;
    *n = tok->chars[token].width;
    return tok->chars[token].bytes;
}

// Saves the tokenizer. U+0000 cannot be a key of JSON, so the library's vocabulary has a hole there, and "characters"
// has it.
static mezzo_status char_save(const mezzo_tokenizer *base, json_t *object) {
    const char_tokenizer *tok = (const char_tokenizer *)base;
    mz_text text = {0};
    json_t *vocab = json_object(), *own = mz_json_own(base);
    bool full = vocab == NULL;
    for (int32_t i = 0; i < tok->base.vocab && !full; i++) {
        char key[5] = "";
        memcpy(key, tok->chars[i].bytes, tok->chars[i].width);
        full = key[0] != '\0' && json_object_set_new(vocab, key, json_integer(i)) != 0;
        mz_text_add(&text, tok->chars[i].bytes, tok->chars[i].width);
    }
    full |= text.status != MEZZO_OK || json_object_set_new(own, "characters", json_stringn(text.data, text.len)) != 0;
    mz_text_free(&text);
    if (full) {
        json_decref(vocab);
        json_decref(own);
        return mz_fail(MEZZO_ERR_MEMORY, "out of memory while making a tokenizer's JSON");
    }
    json_t *frame = mz_json_frame(json_array(), NULL, json_pack("{s:s}", "type", "Fuse"));
    return mz_json_write(base, frame, vocab, json_array(), own, object);
}

// Collects the characters, which must be in strictly rising order: then each occurs once, and its index is its token.
static mezzo_status collect_chars(const char *where, const char *text, size_t n, int64_t vocab, mz_char_set *set) {
    int64_t count = 0, last = -1;
    for (size_t i = 0; i < n; count++) {
        uint32_t code;
        size_t width = mz_utf8_decode(text + i, n - i, &code);
        if (width == 0 || (int64_t)code <= last)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'characters': byte %zu: not in rising code point order", where,
                           i);
        last = code;
        set->seen[code / 64] |= UINT64_C(1) << code % 64;
        i += width;
        if (i % (1 << 20) < width)
            MEZZO_TRY(mz_stop_check(where));
    }
    if (count != vocab)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'vocab_size' is %lld, but 'characters' has %lld", where,
                       (long long)vocab, (long long)count);
    return MEZZO_OK;
}

static mezzo_status char_load(const char *where, const json_t *object, mezzo_tokenizer **out) {
    int64_t vocab = 0;
    MEZZO_TRY(mz_json_get_int(where, object, "vocab_size", 1, MZ_CODE_POINTS, &vocab));
    // U+0000 is an ordinary character here, so mz_json_get_string cannot read the key.
    const json_t *chars = json_object_get(object, "characters");
    if (!json_is_string(chars))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'characters': expected a string", where);
    MZ_SCOPED(mz_free_at) mz_char_set *set = NULL;
    MEZZO_TRY(MZ_NEW(set, 1));
    MEZZO_TRY(collect_chars(where, json_string_value(chars), json_string_length(chars), vocab, set));
    return mz_tokenizer_from_chars(set, out);
}

static bool char_same(const mezzo_tokenizer *a, const mezzo_tokenizer *b) {
    const char_tokenizer *x = (const char_tokenizer *)a, *y = (const char_tokenizer *)b;
    return a->kind == b->kind && a->vocab == b->vocab &&
           memcmp(x->chars, y->chars, (size_t)a->vocab * sizeof *x->chars) == 0;
}

const mz_tokenizer_kind mz_tokenizer_char = {"char",    char_destroy,     char_encode, char_bytes, char_save,
                                             char_load, mz_cut_character, char_same,   NULL};
