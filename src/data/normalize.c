#include "data/normalize.h"

#ifdef MEZZO_UTF8PROC
#include <utf8proc.h>
#endif

#include "io/utf8.h"

// Each replacement may lengthen the result of the one before; this limits their growth.
enum { MOST_GROWTH = 256, LEAST_MOST = 1 << 16 };

static void free_normal(mz_normal *normal) {
    mz_pattern_free(normal->pattern);
    mz_free(normal->text);
    mz_charsmap_free(normal->map);
}

void mz_normals_free(mz_normals *normals) {
    for (size_t i = 0; i < normals->n; i++)
        free_normal(&normals->items[i]);
    normals->n = 0;
}

void mz_normal_room_free(mz_normal_room *room) {
    mz_match_room_free(room->match);
    mz_text_free(&room->text[0]);
    mz_text_free(&room->text[1]);
    mz_free(room->codes);
    *room = (mz_normal_room){0};
}

mezzo_status mz_normals_add(const char *where, mz_normals *normals, mz_normal normal) {
    mezzo_status status = MEZZO_OK;
#ifndef MEZZO_UTF8PROC
    if (normal.kind <= MZ_NORMAL_LOWERCASE)
        status =
            mz_fail(MEZZO_ERR_UNSUPPORTED,
                    "%s: its normalizer needs utf8proc, which this build has not: build Mezzo with libutf8proc", where);
#endif
    if (status == MEZZO_OK && normals->n == MZ_MAX_STEPS)
        status = mz_fail(MEZZO_ERR_FORMAT, "%s: more than %d normalizers", where, MZ_MAX_STEPS);
    if (status == MEZZO_OK)
        normals->items[normals->n++] = normal;
    else
        free_normal(&normal);
    return status;
}

// --- normalization forms -------------------------------------------------------------------------------------------
#ifdef MEZZO_UTF8PROC
static void add_code(mz_text *out, uint32_t code) {
    char bytes[4];
    mz_text_add(out, bytes, mz_utf8_encode(code, bytes));
}

// Returns a mark's class. Marks after a character are sorted by class, by counting, which keeps the time proportional
// to their number.
static unsigned class_of(int32_t code) {
    return (unsigned)utf8proc_get_property(code)->combining_class & 0xFF;
}

static mezzo_status order_run(int32_t *codes, size_t n) {
    size_t counts[257] = {0};
    int32_t *sorted;
    MEZZO_TRY(MZ_NEW(sorted, n));
    for (size_t i = 0; i < n; i++)
        counts[class_of(codes[i]) + 1]++;
    for (int c = 0; c < 256; c++)
        counts[c + 1] += counts[c];
    for (size_t i = 0; i < n; i++)
        sorted[counts[class_of(codes[i])]++] = codes[i];
    memcpy(codes, sorted, n * sizeof *codes);
    mz_free(sorted);
    return MEZZO_OK;
}

static mezzo_status order_marks(int32_t *codes, size_t n) {
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && class_of(codes[end]) != 0;)
            end++;
        if (end - i > 1)
            MEZZO_TRY(order_run(codes + i, end - i));
        end += end == i;
    }
    return MEZZO_OK;
}

// Normalizes a stretch that is independent of its surroundings: it begins with an ASCII character or the text, and
// ASCII follows it.
static mezzo_status normalize_stretch(mz_normal_kind kind, mz_normal_room *room, const char *text, size_t n,
                                      mz_text *out) {
    const bool compose = kind == MZ_NORMAL_NFC || kind == MZ_NORMAL_NFKC;
    const bool compatible = kind == MZ_NORMAL_NFKC || kind == MZ_NORMAL_NFKD;
    const utf8proc_option_t options = UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                      (compatible ? UTF8PROC_COMPAT : (utf8proc_option_t)0);
    size_t made = 0;
    int boundary = 0;
    for (size_t at = 0; at < n;) {
        enum { LONGEST = 32 }; // for one character, U+FDFA, that becomes 18
        uint32_t code = 0;
        at += mz_utf8_decode(text + at, n - at, &code);
        MEZZO_TRY(MZ_RESERVE(room->codes, room->cap_codes, made + LONGEST));
        const utf8proc_ssize_t more =
            utf8proc_decompose_char((int32_t)code, room->codes + made, LONGEST, options, &boundary);
        if (more < 0 || more > LONGEST)
            return mz_fail(MEZZO_ERR_UNSUPPORTED, "U+%04X cannot be normalized: %s", (unsigned)code,
                           utf8proc_errmsg(more));
        made += (size_t)more;
    }
    MEZZO_TRY(order_marks(room->codes, made));
    const utf8proc_ssize_t left = utf8proc_normalize_utf32(room->codes, (utf8proc_ssize_t)made, options);
    for (utf8proc_ssize_t i = 0; i < left; i++)
        add_code(out, (uint32_t)room->codes[i]);
    return MEZZO_OK;
}

static mezzo_status normalize_form(mz_normal_kind kind, mz_normal_room *room, const char *text, size_t n,
                                   mz_text *out) {
    for (size_t at = 0; at < n;) {
        size_t end = at;
        while (end < n && (unsigned char)text[end] < 0x80)
            end++;
        const size_t plain = end == n ? n : end > at ? end - 1 : at; // the last character may compose with what follows
        mz_text_add(out, text + at, plain - at);
        at = plain;
        while (end < n && (unsigned char)text[end] >= 0x80)
            end++;
        if (end > at)
            MEZZO_TRY(normalize_stretch(kind, room, text + at, end - at, out));
        at = end;
    }
    return MEZZO_OK;
}

// Lowers each character as Rust's char::to_lowercase does; one character becomes two.
static mezzo_status lower(const char *text, size_t n, mz_text *out) {
    for (size_t at = 0; at < n;) {
        uint32_t code = 0;
        at += mz_utf8_decode(text + at, n - at, &code);
        if (code == 0x130)
            mz_text_add(out, "i\xCC\x87", 3);
        else
            add_code(out, (uint32_t)utf8proc_tolower((int32_t)code));
    }
    return MEZZO_OK;
}

static mezzo_status use_tables(const mz_normal *x, mz_normal_room *room, const char *text, size_t n, mz_text *out) {
    return x->kind == MZ_NORMAL_LOWERCASE ? lower(text, n, out) : normalize_form(x->kind, room, text, n, out);
}
#else
static mezzo_status use_tables(const mz_normal *x, mz_normal_room *room, const char *text, size_t n, mz_text *out) {
    (void)x, (void)room; // unused: mz_normals_add accepts none of these
    mz_text_add(out, text, n);
    return MEZZO_OK;
}
#endif

// --- the others ----------------------------------------------------------------------------------------------------
static mezzo_status fail_growth(void) {
    return mz_fail(MEZZO_ERR_UNSUPPORTED, "the tokenizer's replacements make a text more than %d times as long",
                   MOST_GROWTH);
}

static mezzo_status replace(const mz_normal *x, mz_normal_room *room, const char *text, size_t n, mz_text *out) {
    if (room->match == NULL)
        MEZZO_TRY(mz_match_room(&room->match));
    mz_matches m = mz_matches_of(x->pattern, room->match, text, n);
    size_t done = 0;
    for (;;) {
        bool found;
        size_t from = 0, to = 0;
        MEZZO_TRY(mz_matches_next(&m, &found, &from, &to));
        if (!found)
            break;
        mz_text_add(out, text + done, from - done);
        mz_text_add(out, x->text, x->n);
        done = to;
        if (out->len > room->most)
            return fail_growth();
    }
    mz_text_add(out, text + done, n - done);
    return MEZZO_OK;
}

static mezzo_status use_rules(const mz_normal *x, const mz_normal_room *room, const char *text, size_t n,
                              mz_text *out) {
    for (size_t at = 0, width; at < n; at += width) {
        const char *becomes;
        uint32_t code;
        width = mz_charsmap_find(x->map, text + at, n - at, &becomes);
        if (width > 0) {
            mz_text_add(out, becomes, strlen(becomes));
        } else {
            width = mz_utf8_decode(text + at, n - at, &code);
            width += width == 0; // a rule may end within a character
            mz_text_add(out, text + at, width);
        }
        if (out->len > room->most)
            return fail_growth();
    }
    return MEZZO_OK;
}

static bool is_white(uint32_t code) {
    return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

size_t mz_white_until(const char *text, size_t n) {
    size_t at = 0;
    for (uint32_t code; at < n;) {
        const size_t width = mz_utf8_decode(text + at, n - at, &code);
        if (width == 0 || !is_white(code))
            break;
        at += width;
    }
    return at;
}

size_t mz_white_from(const char *text, size_t n) {
    while (n > 0) {
        size_t at = n - 1;
        uint32_t code;
        while (at > 0 && n - at < 4 && ((unsigned char)text[at] & 0xC0) == 0x80)
            at--;
        if (mz_utf8_decode(text + at, n - at, &code) == 0 || !is_white(code))
            break;
        n = at;
    }
    return n;
}

static mezzo_status apply(const mz_normal *x, mz_normal_room *room, const char *text, size_t n, mz_place place,
                          mz_text *out) {
    size_t from = 0;
    switch (x->kind) {
    case MZ_NORMAL_REPLACE:
        if (!x->left || place != MZ_PLACE_CONTINUES)
            return replace(x, room, text, n, out);
        mz_text_add(out, text, n);
        return MEZZO_OK;
    case MZ_NORMAL_RULES:
        return use_rules(x, room, text, n, out);
    case MZ_NORMAL_PREPEND:
        if (n > 0 && place != MZ_PLACE_CONTINUES)
            mz_text_add(out, x->text, x->n);
        mz_text_add(out, text, n);
        return MEZZO_OK;
    case MZ_NORMAL_STRIP:
        from = x->left ? mz_white_until(text, n) : 0;
        n = x->right ? from + mz_white_from(text + from, n - from) : n;
        mz_text_add(out, text + from, n - from);
        return MEZZO_OK;
    default:
        return use_tables(x, room, text, n, out);
    }
}

mezzo_status mz_normalize(const mz_normals *normals, mz_normal_room *room, const char *text, size_t n, mz_place place,
                          const char **out, size_t *out_n) {
    *out = text;
    *out_n = n;
    room->most = n * MOST_GROWTH + LEAST_MOST;
    for (size_t i = 0; i < normals->n; i++) {
        mz_text *to = &room->text[i % 2];
        to->len = 0;
        MEZZO_TRY(apply(&normals->items[i], room, *out, *out_n, place, to));
        MEZZO_TRY(to->status);
        *out = to->len > 0 ? to->data : "";
        *out_n = to->len;
    }
    return MEZZO_OK;
}
