// Holds the filters of a chat template. Jinja has no others: an unknown name is an error.
#include <ctype.h>
#include <math.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "data/template_machine.h"

// --- letters --------------------------------------------------------------------------------------------------------
// Returns the other case of a code point beyond ASCII: for letters of Latin, Greek and Cyrillic that have exactly one;
// the same code point for scripts without cases; 0 where it is not known here.
static uint32_t other_case(uint32_t c, bool upper) {
    static const struct {
        uint32_t from, to, pairs; // pairs 1: even is upper, odd is lower; 2: odd is upper; 0: no case; else lower -
                                  // upper
    } ranges[] = {
        {0x80, 0xB4, 0},     {0xB6, 0xBF, 0},      {0xC0, 0xD6, 32},    {0xD7, 0xD7, 0},     {0xD8, 0xDE, 32},
        {0xF7, 0xF7, 0},     {0x100, 0x12F, 1},    {0x132, 0x137, 1},   {0x139, 0x148, 2},   {0x14A, 0x177, 1},
        {0x179, 0x17E, 2},   {0x300, 0x344, 0},    {0x346, 0x36F, 0},   {0x386, 0x386, 38},  {0x388, 0x38A, 37},
        {0x38C, 0x38C, 64},  {0x38E, 0x38F, 63},   {0x391, 0x3A1, 32},  {0x3A4, 0x3AB, 32},  {0x400, 0x40F, 80},
        {0x410, 0x42F, 32},  {0x460, 0x481, 1},    {0x48A, 0x4BF, 1},   {0x4D0, 0x52F, 1},   {0x5D0, 0x5EA, 0},
        {0x600, 0x6FF, 0},   {0x900, 0xE7F, 0},    {0x1E00, 0x1E95, 1}, {0x1EA0, 0x1EFF, 1}, {0x2000, 0x20CF, 0},
        {0x2190, 0x245F, 0}, {0x2500, 0x2BFF, 0},  {0x3000, 0x9FFF, 0}, {0xAC00, 0xD7A3, 0}, {0xFE00, 0xFE0F, 0},
        {0xFF00, 0xFF20, 0}, {0x1F300, 0x1FAFF, 0}};
    for (size_t i = 0; i < MZ_COUNT(ranges); i++) {
        const uint32_t shift = ranges[i].pairs, from = ranges[i].from, to = ranges[i].to;
        if (shift >= 32 && c >= from + shift && c <= to + shift)
            return upper ? c - shift : c;
        if (c < from || c > to)
            continue;
        if (shift == 0)
            return c;
        if (shift >= 32)
            return upper ? c : c + shift;
        const bool is_upper = c % 2 == (shift == 2);
        return is_upper == upper ? c : upper ? c - 1 : c + 1;
    }
    if (c == 0xFF)
        return upper ? 0x178 : c;
    if (c == 0x3C2 || c == 0x3C3) // small sigmas: the word decides which of them a capital one becomes
        return upper ? 0x3A3 : c;
    return (c == 0x3A3 && upper) || (c == 0xDF && !upper) ? c : 0;
}

// Returns whether it is a small raised or lowered letter without a capital one.
static bool is_small_mark(uint32_t c) {
    return c == 0xAA || c == 0xBA || c == 0x2071 || c == 0x207F || (c >= 0x2090 && c <= 0x209C);
}

static uint32_t in_case(machine *m, uint32_t c, bool upper) {
    if (c < 0x80) // not toupper: a Turkish program's has no capital i
        return c - (upper && c >= 'a' && c <= 'z' ? 0x20 : 0) + (!upper && c >= 'A' && c <= 'Z' ? 0x20 : 0);
    const uint32_t is = other_case(c, upper);
    if (is == 0)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "the other case of U+%04X is not supported", (unsigned)c);
    return is;
}

const value *mz_tpl_cased(machine *m, const value *v, int how) {
    mz_marked_text out = {0};
    bool cased = false, begins = true;
    mz_tpl_spend(m, v->length);
    for (size_t p = 0, n; p < v->length && m->status == MEZZO_OK; p += n) {
        const uint32_t c = mz_tpl_code(v, p, &n);
        bool upper = how == CASE_UPPER || (how == CASE_CAPITALIZE && p == 0) || (how == CASE_TITLE && !cased) ||
                     (how == CASE_JINJA_TITLE && begins);
        if (how == CASE_SWAP)
            upper = in_case(m, c, true) != c;
        char bytes[4], marks[4];
        const size_t k = mz_utf8_encode(in_case(m, c, upper), bytes);
        memset(marks, v->told[p], sizeof marks);
        mz_tpl_say(&out, bytes, marks, k);
        cased = how == CASE_TITLE && (is_small_mark(c) || in_case(m, c, true) != c || in_case(m, c, false) != c);
        begins = mz_tpl_is_space(c) || (c < 0x80 && c > 0 && strchr("-({[<", (int)c) != NULL);
    }
    return mz_tpl_said(m, &out);
}

// --- of strings -----------------------------------------------------------------------------------------------------
static const value *cased(machine *m, const value *v, const value **a, int how) {
    (void)a;
    return mz_tpl_cased(m, mz_tpl_printed(m, v), how);
}

static const value *trim(machine *m, const value *v, const value **a) {
    v = mz_tpl_printed(m, v);
    return m->status == MEZZO_OK ? mz_tpl_strip(m, v, a[0], true, true) : NULL;
}

static const value *replace(machine *m, const value *v, const value **a) {
    const value *s = mz_tpl_printed(m, v), *old = mz_tpl_printed(m, a[0]), *with = mz_tpl_printed(m, a[1]);
    const int64_t count = a[2] != NULL && a[2]->kind != NONE ? mz_tpl_int(m, a[2], -1) : -1;
    return m->status == MEZZO_OK ? mz_tpl_replace(m, s, old, with, count) : NULL;
}

static const value *string(machine *m, const value *v, const value **a) {
    (void)a;
    return mz_tpl_printed(m, v);
}

static const value *indent(machine *m, const value *v, const value **a) {
    const value *by = a[0] != NULL ? a[0] : mz_tpl_integer(m, 4);
    const bool first = a[1] != NULL && mz_tpl_is_true(a[1]), blank = a[2] != NULL && mz_tpl_is_true(a[2]);
    if (by->kind != STRING)
        by = mz_tpl_arithmetic(m, T_MUL, mz_tpl_word(m, " "), by);
    if (v->kind != STRING)
        refuse(m, MEZZO_ERR_FORMAT, "indent of %s", mz_tpl_kind_name(v));
    const value *whole = mz_tpl_joined(m, v, mz_tpl_word(m, "\n"));
    const value *lines = m->status == MEZZO_OK ? mz_tpl_split_lines(m, whole, false) : NULL;
    mz_marked_text out = {0};
    for (int64_t i = 0; lines != NULL && m->status == MEZZO_OK && i < lines->n; i++) {
        if (i > 0)
            mz_tpl_say(&out, "\n", NULL, 1);
        if (i == 0 ? first : blank || lines->at[i]->length > 0)
            mz_tpl_say(&out, by->text, by->told, by->length);
        mz_tpl_say(&out, lines->at[i]->text, lines->at[i]->told, lines->at[i]->length);
        mz_tpl_spend(m, by->length);
    }
    return mz_tpl_said(m, &out);
}

static const value *word_count(machine *m, const value *v, const value **a) {
    int64_t n = 0;
    (void)a;
    v = mz_tpl_printed(m, v);
    if (v->kind != STRING || !v->ascii) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "wordcount of text that is not ASCII is not supported");
        return NULL;
    }
    bool word = false;
    for (size_t i = 0; i < v->length; i++) {
        const bool letter = isalnum((unsigned char)v->text[i]) || v->text[i] == '_';
        n += letter && !word;
        word = letter;
    }
    return mz_tpl_integer(m, n);
}

// --- of numbers -----------------------------------------------------------------------------------------------------
// Parses as Python's float() reads a string; returns false where it does not.
static bool read_real(machine *m, const value *v, double *out) {
    const value *s = mz_tpl_strip(m, v, NULL, true, true);
    char text[128], *end;
    if (s == NULL || s->kind != STRING || s->length == 0)
        return false;
    if (!s->ascii || s->length >= sizeof text || memchr(s->text, '_', s->length) != NULL)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "a number in this form is not supported");
    if (m->status != MEZZO_OK)
        return false;
    snprintf(text, sizeof text, "%.*s", (int)s->length, s->text);
    if (strpbrk(text, "xXpP(") != NULL) // C accepts these, Python does not
        return false;
    *out = mz_strtod(text, &end);
    return end != text && *end == '\0' && strlen(text) == s->length;
}

static bool read_integer(machine *m, const value *v, int64_t *out) {
    const value *s = mz_tpl_strip(m, v, NULL, true, true);
    size_t i = s != NULL && s->kind == STRING && s->length > 0 && (s->text[0] == '-' || s->text[0] == '+');
    if (s == NULL || s->kind != STRING || i >= s->length)
        return false;
    if (!s->ascii || memchr(s->text, '_', s->length) != NULL)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "a number in this form is not supported");
    const bool negative = s->text[0] == '-';
    int64_t n = 0;
    for (; i < s->length; i++) {
        if (!isdigit((unsigned char)s->text[i]))
            return false;
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_sub_overflow(n, s->text[i] - '0', &n))
            refuse(m, MEZZO_ERR_UNSUPPORTED, "numbers beyond 64 bits are not supported");
    }
    if (!negative && n == INT64_MIN)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "numbers beyond 64 bits are not supported");
    *out = negative ? n : n == INT64_MIN ? 0 : -n;
    return true;
}

static const value *whole_part(machine *m, double x) {
    if (fabs(x) < 9e18)
        return mz_tpl_integer(m, (int64_t)x);
    refuse(m, MEZZO_ERR_UNSUPPORTED, "numbers beyond 64 bits are not supported");
    return NULL;
}

static const value *to_int(machine *m, const value *v, const value **a) {
    int64_t n;
    double x = 0;
    if (a[1] != NULL && mz_tpl_int(m, a[1], 10) != 10)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "int in another base is not supported");
    if (v->kind == UNDEFINED)
        refuse(m, MEZZO_ERR_FORMAT, "int of an undefined value");
    if (v->kind == INTEGER || v->kind == BOOLEAN)
        return mz_tpl_integer(m, v->n);
    if (v->kind == REAL)
        return whole_part(m, v->real);
    if (v->kind == STRING && read_integer(m, v, &n))
        return mz_tpl_integer(m, n);
    if (v->kind == STRING && read_real(m, v, &x) && isfinite(x))
        return whole_part(m, x);
    return a[0] != NULL ? a[0] : mz_tpl_integer(m, 0);
}

static const value *to_float(machine *m, const value *v, const value **a) {
    double x = 0;
    if (v->kind == UNDEFINED)
        refuse(m, MEZZO_ERR_FORMAT, "float of an undefined value");
    if (mz_tpl_is_number(v))
        return mz_tpl_real(m, v->kind == REAL ? v->real : (double)v->n);
    if (v->kind == STRING && read_real(m, v, &x))
        return mz_tpl_real(m, x);
    return a[0] != NULL ? a[0] : mz_tpl_real(m, 0);
}

static const value *absolute(machine *m, const value *v, const value **a) {
    (void)a;
    if (!mz_tpl_is_number(v))
        refuse(m, MEZZO_ERR_FORMAT, "abs of %s", mz_tpl_kind_name(v));
    if (v->kind == REAL)
        return mz_tpl_real(m, fabs(v->real));
    return v->n < 0 ? mz_tpl_arithmetic(m, T_SUB, mz_tpl_integer(m, 0), v) : mz_tpl_integer(m, v->n);
}

static const value *rounded(machine *m, const value *v, const value **a) {
    const int64_t digits = mz_tpl_int(m, a[0], 0);
    const bool common = a[1] == NULL || mz_tpl_is_text(a[1], "common", 6);
    const bool up = a[1] != NULL && mz_tpl_is_text(a[1], "ceil", 4),
               down = a[1] != NULL && mz_tpl_is_text(a[1], "floor", 5);
    char text[400];
    if (!mz_tpl_is_number(v) || (!common && !up && !down))
        refuse(m, MEZZO_ERR_FORMAT, "round of %s, or by no known method", mz_tpl_kind_name(v));
    if (digits < 0 || digits > 15 || (v->kind == REAL && !(fabs(v->real) < 1e15)))
        refuse(m, MEZZO_ERR_UNSUPPORTED, "round to so many digits is not supported");
    if (m->status != MEZZO_OK)
        return NULL;
    if (common && v->kind != REAL)
        return mz_tpl_integer(m, v->n);
    const double x = v->kind == REAL ? v->real : (double)v->n, scale = pow(10, (double)digits);
    if (!common)
        return mz_tpl_real(m, (up ? ceil(x * scale) : floor(x * scale)) / scale);
    mz_snprintf(text, sizeof text, "%.*f", (int)digits, x); // printf rounds correctly, half to even, as Python does
    return mz_tpl_real(m, mz_strtod(text, NULL));
}

// --- of lists -------------------------------------------------------------------------------------------------------
static const value *length(machine *m, const value *v, const value **a) {
    (void)a;
    if (v->kind == STRING)
        return mz_tpl_integer(m, (int64_t)mz_tpl_characters(m, v));
    if (mz_tpl_is_sequence(v) || v->kind == MAP || v->kind == VIEW || v->kind == UNDEFINED)
        return mz_tpl_integer(m, v->kind == UNDEFINED ? 0 : v->n);
    refuse(m, v->kind == LOOP ? MEZZO_ERR_UNSUPPORTED : MEZZO_ERR_FORMAT, "the length of %s", mz_tpl_kind_name(v));
    return NULL;
}

static const value *first(machine *m, const value *v, const value **a) {
    const value *items = mz_tpl_items(m, v);
    (void)a;
    return items->n > 0 ? items->at[0] : &mz_tpl_undefined;
}

static const value *last(machine *m, const value *v, const value **a) {
    (void)a;
    if (v->kind == ITERATOR)
        refuse(m, MEZZO_ERR_FORMAT, "the last of an iterator");
    const value *items = mz_tpl_items(m, v);
    return items->n > 0 ? items->at[items->n - 1] : &mz_tpl_undefined;
}

static value *copy_of(machine *m, const value *items, value_kind kind) {
    value *list = mz_tpl_list(m, kind, (size_t)items->n);
    if (list != NULL && items->n > 0)
        memcpy(list->at, items->at, (size_t)items->n * sizeof *list->at);
    return list;
}

static const value *to_list(machine *m, const value *v, const value **a) {
    (void)a;
    return copy_of(m, mz_tpl_items(m, v), LIST);
}

static const value *reverse(machine *m, const value *v, const value **a) {
    (void)a;
    if (v->kind == STRING)
        return mz_tpl_slice(m, v, &mz_tpl_none, &mz_tpl_none, mz_tpl_integer(m, -1));
    const value *items = mz_tpl_items(m, v);
    value *list = mz_tpl_list(m, v->kind == ITERATOR ? LIST : ITERATOR, (size_t)items->n);
    for (int64_t i = 0; list != NULL && i < items->n; i++)
        list->at[i] = items->at[items->n - 1 - i];
    return list;
}

static const value *join(machine *m, const value *v, const value **a) {
    const value *items = mz_tpl_items(m, v), *by = a[0] != NULL ? mz_tpl_printed(m, a[0]) : mz_tpl_word(m, "");
    if (a[1] != NULL && a[1]->kind != NONE) {
        value *list = copy_of(m, items, LIST);
        for (int64_t i = 0; list != NULL && i < list->n && m->status == MEZZO_OK; i++)
            list->at[i] = mz_tpl_attribute(m, list->at[i], a[1], NULL);
        items = list;
    }
    return items != NULL && by->kind == STRING ? mz_tpl_join(m, by, items, true) : NULL;
}

static const value *items_of(machine *m, const value *v, const value **a) {
    (void)a;
    if (v->kind != MAP && v->kind != UNDEFINED)
        refuse(m, MEZZO_ERR_FORMAT, "items of %s", mz_tpl_kind_name(v));
    return mz_tpl_pairs(m, v, ITERATOR);
}

static const value *folded(machine *m, const value *v, bool exactly) {
    return v->kind == STRING && !exactly ? mz_tpl_cased(m, v, CASE_LOWER) : v;
}

// Sorts, stably; keys[i] is the key of items->at[i].
static const value *sorted(machine *m, const value *items, const value **keys, bool down) {
    const size_t n = (size_t)items->n;
    value *list = copy_of(m, items, LIST);
    const value **other = mz_tpl_room(m, n * sizeof *other), **other_keys = mz_tpl_room(m, n * sizeof *other_keys);
    if (list == NULL || other == NULL || other_keys == NULL)
        return NULL;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t begin = 0; begin < n; begin += 2 * width) {
            const size_t middle = begin + width < n ? begin + width : n,
                         end = begin + 2 * width < n ? begin + 2 * width : n;
            for (size_t i = begin, k = middle, to = begin; to < end && m->status == MEZZO_OK; to++) {
                bool left = k >= end;
                if (!left && i < middle) {
                    const int order = mz_tpl_compare(m, keys[i], keys[k]);
                    left = down ? order >= 0 : order <= 0;
                }
                const size_t from = left ? i++ : k++;
                other[to] = list->at[from];
                other_keys[to] = keys[from];
            }
        }
        if (m->status != MEZZO_OK)
            return NULL;
        memcpy(list->at, other, n * sizeof *other);
        memcpy(keys, other_keys, n * sizeof *other_keys);
    }
    return list;
}

// Returns for 'a,b.c' the list of the attributes that they name.
static const value *attributes(machine *m, const value *v, const value *paths, bool exactly) {
    size_t n = 1;
    for (size_t i = 0; paths != NULL && paths->kind == STRING && i < paths->length; i++)
        n += paths->text[i] == ',';
    value *key = mz_tpl_list(m, LIST, n);
    for (size_t i = 0, from = 0, to; key != NULL && i < n && m->status == MEZZO_OK; i++, from = to + 1) {
        const value *path = paths != NULL ? paths : &mz_tpl_none;
        for (to = from; path->kind == STRING && to < path->length && path->text[to] != ',';)
            to++;
        key->at[i] = mz_tpl_attribute(m, v, path->kind == STRING ? mz_tpl_part(m, path, from, to) : path, NULL);
        key->at[i] = folded(m, key->at[i], exactly);
    }
    return key != NULL ? key : &mz_tpl_undefined;
}

static const value *sort(machine *m, const value *v, const value **a) {
    const bool down = a[0] != NULL && mz_tpl_is_true(a[0]), exactly = a[1] != NULL && mz_tpl_is_true(a[1]);
    const value *items = mz_tpl_items(m, v), **keys = mz_tpl_room(m, (size_t)items->n * sizeof *keys);
    for (int64_t i = 0; keys != NULL && i < items->n && m->status == MEZZO_OK; i++)
        keys[i] = attributes(m, items->at[i], a[2], exactly);
    return m->status == MEZZO_OK ? sorted(m, items, keys, down) : NULL;
}

static const value *dict_sort(machine *m, const value *v, const value **a) {
    const bool exactly = a[0] != NULL && mz_tpl_is_true(a[0]), down = a[2] != NULL && mz_tpl_is_true(a[2]);
    const bool by_value = a[1] != NULL && mz_tpl_is_text(a[1], "value", 5);
    if (v->kind != MAP || (a[1] != NULL && !by_value && !mz_tpl_is_text(a[1], "key", 3)))
        refuse(m, MEZZO_ERR_FORMAT, "dictsort of %s, or by neither key nor value", mz_tpl_kind_name(v));
    const value *pairs = m->status == MEZZO_OK ? items_of(m, v, NULL) : NULL;
    const value **keys = pairs != NULL ? mz_tpl_room(m, (size_t)pairs->n * sizeof *keys) : NULL;
    for (int64_t i = 0; keys != NULL && i < pairs->n && m->status == MEZZO_OK; i++)
        keys[i] = folded(m, pairs->at[i]->at[by_value], exactly);
    return keys != NULL && m->status == MEZZO_OK ? sorted(m, pairs, keys, down) : NULL;
}

static const value *unique(machine *m, const value *v, const value **a) {
    const bool exactly = a[0] != NULL && mz_tpl_is_true(a[0]);
    const value *items = mz_tpl_items(m, v);
    value *list = mz_tpl_list(m, ITERATOR, (size_t)items->n), *seen = mz_tpl_map(m, MAP, (size_t)items->n);
    if (list == NULL || seen == NULL)
        return NULL;
    list->n = 0;
    for (int64_t i = 0; i < items->n && m->status == MEZZO_OK; i++) {
        const value *key = a[1] != NULL ? mz_tpl_attribute(m, items->at[i], a[1], NULL) : items->at[i];
        key = folded(m, key, exactly);
        if (mz_tpl_member(m, seen, key) != NULL || m->status != MEZZO_OK)
            continue;
        mz_tpl_put(m, seen, key, &mz_tpl_none);
        list->at[list->n++] = items->at[i];
    }
    return list;
}

static const value *extreme(machine *m, const value *v, const value **a, int sign) {
    const bool exactly = a[0] != NULL && mz_tpl_is_true(a[0]);
    const value *items = mz_tpl_items(m, v), *best = &mz_tpl_undefined, *best_key = NULL;
    for (int64_t i = 0; i < items->n && m->status == MEZZO_OK; i++) {
        const value *key = a[1] != NULL ? mz_tpl_attribute(m, items->at[i], a[1], NULL) : items->at[i];
        key = folded(m, key, exactly);
        if (best_key != NULL && mz_tpl_compare(m, key, best_key) * sign <= 0)
            continue;
        best = items->at[i];
        best_key = key;
    }
    return best;
}

static const value *sum(machine *m, const value *v, const value **a) {
    const value *items = mz_tpl_items(m, v), *all = a[1] != NULL ? a[1] : mz_tpl_integer(m, 0);
    if (all->kind == STRING)
        refuse(m, MEZZO_ERR_FORMAT, "the sum of strings");
    for (int64_t i = 0; i < items->n && m->status == MEZZO_OK; i++)
        all = mz_tpl_arithmetic(m, T_ADD, all,
                                a[0] != NULL ? mz_tpl_attribute(m, items->at[i], a[0], NULL) : items->at[i]);
    return all;
}

static const value *batch(machine *m, const value *v, const value **a) {
    const value *items = mz_tpl_items(m, v);
    const int64_t each = mz_tpl_int(m, a[0], 1);
    const bool fill = a[1] != NULL && a[1]->kind != NONE;
    if (each < 1 || each > MOST_RANGE) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "batches of this size are not supported");
        return NULL;
    }
    value *list = mz_tpl_list(m, ITERATOR, (size_t)((items->n + each - 1) / each));
    for (int64_t i = 0; list != NULL && i < list->n && m->status == MEZZO_OK; i++) {
        const int64_t left = items->n - i * each;
        value *some = mz_tpl_list(m, LIST, (size_t)(left < each && !fill ? left : each));
        for (int64_t k = 0; some != NULL && k < some->n; k++)
            some->at[k] = k < left ? items->at[i * each + k] : a[1];
        list->at[i] = some;
    }
    return list;
}

// --- with the names of other filters and tests -----------------------------------------------------------------------
static arguments rest(const arguments *a, size_t from) {
    return (arguments){a->at + from, a->name + from, a->length + from, a->n - from, 0};
}

static bool by_place(const arguments *a, size_t i) {
    return i < a->n && a->name[i] == NULL;
}

static const callee *row_named(machine *m, const value *name, bool filter) {
    const callee *row = name->kind != STRING ? NULL
                        : filter             ? mz_tpl_filter(m, name->text, name->length)
                                             : mz_tpl_test(m, name->text, name->length);
    if (row == NULL)
        refuse(m, MEZZO_ERR_FORMAT, "there is no %s of this name", filter ? "filter" : "test");
    return row;
}

static const value *map(machine *m, const value *v, const arguments *a, int how) {
    (void)how;
    const value *attribute = NULL, *other = NULL;
    value *list = mz_tpl_list(m, ITERATOR, 0);
    if (list == NULL || !mz_tpl_is_true(v))
        return list;
    for (size_t i = 0; i < a->n && !by_place(a, 0); i++) {
        const bool names = a->length[i] == 9 && memcmp(a->name[i], "attribute", 9) == 0;
        const bool defaults = a->length[i] == 7 && memcmp(a->name[i], "default", 7) == 0;
        attribute = names ? a->at[i] : attribute;
        other = defaults ? a->at[i] : other;
        if (!names && !defaults)
            refuse(m, MEZZO_ERR_FORMAT, "map has no argument %s", mz_quote_bytes(a->name[i], a->length[i]).text);
    }
    if (attribute == NULL && !by_place(a, 0))
        refuse(m, MEZZO_ERR_FORMAT, "map without a filter's name");
    const value *items = mz_tpl_items(m, v);
    const callee *row = attribute == NULL && m->status == MEZZO_OK ? row_named(m, a->at[0], true) : NULL;
    if (m->status != MEZZO_OK || (list = mz_tpl_list(m, ITERATOR, (size_t)items->n)) == NULL)
        return NULL;
    const arguments others = row != NULL ? rest(a, 1) : *a;
    for (int64_t i = 0; i < items->n && m->status == MEZZO_OK; i++)
        list->at[i] = row != NULL ? mz_tpl_call_row(m, "filter", row, items->at[i], &others)
                                  : mz_tpl_attribute(m, items->at[i], attribute, other);
    return list;
}

// Values of a row's `how`: the elements that pass stay, and an attribute is tested.
enum { SELECT = 1, BY_ATTRIBUTE = 2 };
static const value *select_by(machine *m, const value *v, const arguments *a, int how) {
    const bool wanted = (how & SELECT) != 0, attribute = (how & BY_ATTRIBUTE) != 0;
    value *list = mz_tpl_list(m, ITERATOR, 0);
    if (list == NULL || !mz_tpl_is_true(v))
        return list;
    const size_t name = attribute;
    if (attribute && !by_place(a, 0))
        refuse(m, MEZZO_ERR_FORMAT, "selectattr and rejectattr need an attribute's name");
    const value *items = mz_tpl_items(m, v);
    const callee *row = m->status == MEZZO_OK && by_place(a, name) ? row_named(m, a->at[name], false) : NULL;
    if (m->status != MEZZO_OK || (list = mz_tpl_list(m, ITERATOR, (size_t)items->n)) == NULL)
        return NULL;
    list->n = 0;
    const arguments others = row != NULL ? rest(a, name + 1) : *a;
    for (int64_t i = 0; i < items->n && m->status == MEZZO_OK; i++) {
        const value *is = attribute ? mz_tpl_attribute(m, items->at[i], a->at[0], NULL) : items->at[i];
        is = row != NULL ? mz_tpl_call_row(m, "test", row, is, &others) : is;
        if (mz_tpl_is_true(is) == wanted)
            list->at[list->n++] = items->at[i];
    }
    return list;
}

static const value *or_default(machine *m, const value *v, const value **a) {
    const bool boolean = a[1] != NULL && mz_tpl_is_true(a[1]);
    const value *other = a[0] != NULL ? a[0] : mz_tpl_word(m, "");
    return v->kind == UNDEFINED || (boolean && !mz_tpl_is_true(v)) ? other : v;
}

static const callee filters[] = {
    RUNS("abs", "", 0, absolute),
    RUNS("batch", "linecount fill_with", 1, batch),
    RUNS_AS("capitalize", "", 0, cased, CASE_CAPITALIZE),
    RUNS("d default", "default_value boolean", 0, or_default),
    RUNS("dictsort", "case_sensitive by reverse", 0, dict_sort),
    RUNS("first", "", 0, first),
    RUNS("float", "default", 0, to_float),
    RUNS("indent", "width first blank", 0, indent),
    RUNS("int", "default base", 0, to_int),
    RUNS("items", "", 0, items_of),
    RUNS("join", "d attribute", 0, join),
    RUNS("last", "", 0, last),
    RUNS("count length", "", 0, length),
    RUNS("list", "", 0, to_list),
    RUNS_AS("lower", "", 0, cased, CASE_LOWER),
    BINDS("map", map, 0),
    RUNS_AS("max", "case_sensitive attribute", 0, extreme, 1),
    RUNS_AS("min", "case_sensitive attribute", 0, extreme, -1),
    BINDS("reject", select_by, 0),
    BINDS("rejectattr", select_by, BY_ATTRIBUTE),
    RUNS("replace", "old new count", 2, replace),
    RUNS("reverse", "", 0, reverse),
    RUNS("round", "precision method", 0, rounded),
    BINDS("select", select_by, SELECT),
    BINDS("selectattr", select_by, SELECT | BY_ATTRIBUTE),
    RUNS("sort", "reverse case_sensitive attribute", 0, sort),
    RUNS("string", "", 0, string),
    RUNS("sum", "attribute start", 0, sum),
    RUNS_AS("title", "", 0, cased, CASE_JINJA_TITLE),
    RUNS("tojson", "ensure_ascii indent separators sort_keys", 0, mz_tpl_to_json),
    RUNS("trim", "chars", 0, trim),
    RUNS("unique", "case_sensitive attribute", 0, unique),
    RUNS_AS("upper", "", 0, cased, CASE_UPPER),
    RUNS("wordcount", "", 0, word_count),
    NOT_SUPPORTED("attr center e escape filesizeformat forceescape format groupby pprint random safe slice striptags "
                  "truncate urlencode urlize wordwrap xmlattr"),
    {0}};

const callee *mz_tpl_filter(machine *m, const char *name, size_t n) {
    return mz_tpl_row(m, filters, name, n);
}
