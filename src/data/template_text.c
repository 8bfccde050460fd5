// Implements the strings of a chat template: sequences of code points, each byte with its marks, and the texts that
// str(), repr() and JSON write.
#define _GNU_SOURCE // for memmem
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "base/decimal.h"
#include "data/template_machine.h"

// --- strings --------------------------------------------------------------------------------------------------------
static const char *no_marks(machine *m, size_t n) {
    static const char zeros[4096];
    return n <= sizeof zeros ? zeros : mz_tpl_room(m, n);
}

static bool is_ascii(const char *text, size_t n) {
    unsigned char all = 0;
    for (size_t i = 0; i < n; i++)
        all |= (unsigned char)text[i];
    return all < 0x80;
}

const value *mz_tpl_string(machine *m, const char *text, const char *told, size_t n) {
    value *v = mz_tpl_new_value(m, STRING);
    if (v == NULL)
        return &mz_tpl_undefined;
    v->text = text;
    v->length = n;
    v->ascii = is_ascii(text, n);
    v->told = told != NULL ? told : no_marks(m, n);
    return v->told != NULL ? v : &mz_tpl_undefined;
}

const value *mz_tpl_word(machine *m, const char *text) {
    return mz_tpl_string(m, text, NULL, strlen(text));
}

const value *mz_tpl_part(machine *m, const value *v, size_t from, size_t to) {
    return mz_tpl_string(m, v->text + from, v->told + from, to - from);
}

uint32_t mz_tpl_code(const value *v, size_t at, size_t *n) {
    uint32_t code = 0;
    *n = at < v->length ? mz_utf8_decode(v->text + at, v->length - at, &code) : 0;
    *n = *n > 0 ? *n : 1;
    return code;
}

size_t mz_tpl_characters(machine *m, const value *v) {
    if (v->ascii)
        return v->length;
    size_t n = 0;
    mz_tpl_spend(m, v->length);
    for (size_t i = 0; i < v->length; i++)
        n += ((unsigned char)v->text[i] & 0xC0) != 0x80;
    return n;
}

size_t mz_tpl_byte_of(machine *m, const value *v, size_t character) {
    if (v->ascii)
        return character < v->length ? character : v->length;
    size_t p = 0;
    for (size_t n; character > 0 && p < v->length; character--, p += n)
        (void)mz_tpl_code(v, p, &n);
    mz_tpl_spend(m, p);
    return p;
}

bool mz_tpl_is_text(const value *v, const char *text, size_t n) {
    return v->kind == STRING && v->length == n && (n == 0 || memcmp(v->text, text, n) == 0);
}

bool mz_tpl_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

int64_t mz_tpl_find(machine *m, const value *in, const value *what, size_t from) {
    if (from > in->length)
        return -1;
    if (what->length == 0)
        return (int64_t)from;
    const char *at = memmem(in->text + from, in->length - from, what->text, what->length);
    mz_tpl_spend(m, (at != NULL ? (size_t)(at - in->text) : in->length) - from + what->length);
    return at != NULL ? at - in->text : -1;
}

// Joins two strings. A text that grows by joins is not copied each time: the last one has twice the memory, and the
// next is appended in place.
const value *mz_tpl_joined(machine *m, const value *a, const value *b) {
    if (m->status != MEZZO_OK || a->kind != STRING || b->kind != STRING)
        return &mz_tpl_undefined;
    if (a->length == 0 || b->length == 0)
        return a->length == 0 ? b : a;
    const size_t n = a->length + b->length;
    const bool last = m->tail.text != NULL && a->text + a->length == m->tail.text + m->tail.used &&
                      a->told + a->length == m->tail.told + m->tail.used && b->length <= m->tail.cap - m->tail.used;
    char *text = (char *)(uintptr_t)a->text, *told = (char *)(uintptr_t)a->told;
    if (!last) {
        const size_t cap = n < 64 ? n : 2 * n;
        text = mz_tpl_room(m, cap);
        told = mz_tpl_room(m, cap);
        if (text == NULL || told == NULL)
            return &mz_tpl_undefined;
        memcpy(text, a->text, a->length);
        memcpy(told, a->told, a->length);
        m->tail.text = text;
        m->tail.told = told;
        m->tail.used = a->length;
        m->tail.cap = cap;
    }
    memcpy(text + a->length, b->text, b->length);
    memcpy(told + a->length, b->told, b->length);
    m->tail.used += b->length;
    value *v = mz_tpl_new_value(m, STRING);
    if (v == NULL)
        return &mz_tpl_undefined;
    v->text = text;
    v->told = told;
    v->length = n;
    v->ascii = a->ascii && b->ascii;
    return v;
}

// --- slices ---------------------------------------------------------------------------------------------------------
static bool bound(machine *m, const value *v, int64_t n, int64_t low, int64_t high, int64_t other, int64_t *out) {
    *out = other;
    if (v->kind == NONE)
        return true;
    if (v->kind != INTEGER && v->kind != BOOLEAN) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "a slice's bound is %s", mz_tpl_kind_name(v));
        return false;
    }
    int64_t i = v->n < 0 ? v->n + n : v->n;
    *out = i < low ? low : i > high ? high : i;
    return true;
}

const value *mz_tpl_slice(machine *m, const value *v, const value *from, const value *to, const value *step) {
    if (v->kind != STRING && !mz_tpl_is_sequence(v)) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "a slice of %s is not supported", mz_tpl_kind_name(v));
        return &mz_tpl_undefined;
    }
    const int64_t n = v->kind == STRING ? (int64_t)mz_tpl_characters(m, v) : v->n;
    int64_t by, a, b;
    if (!bound(m, step, 0, INT64_MIN, INT64_MAX, 1, &by))
        return &mz_tpl_undefined;
    by = step->kind == NONE ? 1 : step->n;
    if (by == 0) {
        refuse(m, MEZZO_ERR_FORMAT, "a slice's step is 0");
        return &mz_tpl_undefined;
    }
    const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? n : n - 1;
    if (!bound(m, from, n, low, high, by > 0 ? 0 : n - 1, &a) || !bound(m, to, n, low, high, by > 0 ? n : -1, &b))
        return &mz_tpl_undefined;
    const uint64_t width = by > 0 ? (b > a ? (uint64_t)(b - a) : 0) : (a > b ? (uint64_t)(a - b) : 0);
    const uint64_t stride = by > 0 ? (uint64_t)by : 0 - (uint64_t)by;
    const size_t count = (size_t)(width > 0 ? (width - 1) / stride + 1 : 0);
    mz_tpl_spend(m, count);
    if (v->kind == STRING && by == 1) {
        const size_t begin = mz_tpl_byte_of(m, v, (size_t)a);
        return count == 0 ? mz_tpl_word(m, "") : mz_tpl_part(m, v, begin, mz_tpl_byte_of(m, v, (size_t)b));
    }
    if (v->kind == STRING && by == -1) { // reverses the characters
        mz_marked_text out = {0};
        for (size_t p = mz_tpl_byte_of(m, v, (size_t)(a + 1)), end = mz_tpl_byte_of(m, v, (size_t)(b + 1)), q;
             count > 0 && p > end; p = q) {
            for (q = p - 1; q > end && ((unsigned char)v->text[q] & 0xC0) == 0x80;)
                q--;
            mz_tpl_say(&out, v->text + q, v->told + q, p - q);
        }
        return mz_tpl_said(m, &out);
    }
    const value *items = mz_tpl_items(m, v);
    value *list = mz_tpl_list(m, v->kind == STRING ? LIST : v->kind, count);
    for (size_t i = 0; list != NULL && i < count && m->status == MEZZO_OK; i++)
        list->at[i] = items->at[a + (int64_t)i * by];
    if (list == NULL || m->status != MEZZO_OK)
        return &mz_tpl_undefined;
    return v->kind == STRING ? mz_tpl_join(m, mz_tpl_word(m, ""), list, false) : list;
}

// --- output ---------------------------------------------------------------------------------------------------------
void mz_tpl_say(mz_marked_text *out, const char *text, const char *told, size_t n) {
    static const char zeros[64];
    if (n == 0)
        return;
    mz_text_add(&out->text, text, n);
    if (told != NULL)
        mz_text_add(&out->told, told, n);
    for (size_t i = 0; told == NULL && i < n; i += sizeof zeros)
        mz_text_add(&out->told, zeros, n - i < sizeof zeros ? n - i : sizeof zeros);
}

static void say(mz_marked_text *out, const char *text) {
    mz_tpl_say(out, text, NULL, strlen(text));
}

// Appends a text with the marks of one byte.
static void say_marked(mz_marked_text *out, const char *text, char mark) {
    for (size_t i = 0; text[i] != '\0'; i++)
        mz_tpl_say(out, &text[i], &mark, 1);
}

const value *mz_tpl_said(machine *m, mz_marked_text *out) {
    const size_t n = out->text.len;
    if (m->status == MEZZO_OK && (out->text.status != MEZZO_OK || out->told.status != MEZZO_OK))
        m->status = MEZZO_ERR_MEMORY;
    char *text = mz_tpl_room(m, n), *told = mz_tpl_room(m, n);
    const value *v = &mz_tpl_undefined;
    if (text != NULL && told != NULL) {
        if (n > 0) {
            memcpy(text, out->text.data, n);
            memcpy(told, out->told.data, n);
        }
        v = mz_tpl_string(m, text, told, n);
    }
    mz_marked_text_free(out);
    *out = (mz_marked_text){0};
    return v;
}

// Writes the shortest digits that read back as the same number, in Python's notation.
static void real_text(double x, char out[40], const char *infinity, const char *nan) {
    char digits[40], *e;
    if (isnan(x) || isinf(x)) {
        snprintf(out, 40, "%s%s", isinf(x) && x < 0 ? "-" : "", isnan(x) ? nan : infinity);
        return;
    }
    int p = 0;
    do {
        mz_snprintf(digits, sizeof digits, "%.*e", p, x);
    } while (mz_strtod(digits, NULL) != x && ++p < 17);
    e = strchr(digits, 'e');
    const int exponent = atoi(e + 1);
    if (exponent >= -4 && exponent < 16)
        mz_snprintf(out, 40, "%.*f", p > exponent ? p - exponent : 1, x);
    else
        snprintf(out, 40, "%.*se%c%02d", (int)(e - digits), digits, exponent < 0 ? '-' : '+', abs(exponent));
}

// Says of a code point beyond ASCII whether repr() writes it unchanged: 1; escapes it: 0; not known here: -1.
static int is_printable(uint32_t c) {
    static const struct {
        uint32_t from, to;
        int is;
    } ranges[] = {{0x80, 0xA0, 0},       {0xAD, 0xAD, 0},       {0xA1, 0x36F, 1},      {0x391, 0x3A1, 1},
                  {0x3A3, 0x52F, 1},     {0x5D0, 0x5EA, 1},     {0x621, 0x64A, 1},     {0x904, 0x939, 1},
                  {0xE01, 0xE3A, 1},     {0x1680, 0x1680, 0},   {0x1E00, 0x1EFF, 1},   {0x2000, 0x200F, 0},
                  {0x2010, 0x2027, 1},   {0x2028, 0x202F, 0},   {0x2030, 0x205E, 1},   {0x205F, 0x206F, 0},
                  {0x20A0, 0x20BF, 1},   {0x2100, 0x218B, 1},   {0x2190, 0x2426, 1},   {0x2500, 0x2B73, 1},
                  {0x3000, 0x3000, 0},   {0x3001, 0x303F, 1},   {0x3041, 0x3096, 1},   {0x3099, 0x30FF, 1},
                  {0x3105, 0x312F, 1},   {0x3131, 0x318E, 1},   {0x4E00, 0x9FFC, 1},   {0xAC00, 0xD7A3, 1},
                  {0xE000, 0xF8FF, 0},   {0xFEFF, 0xFEFF, 0},   {0xFF01, 0xFFBE, 1},   {0x1F300, 0x1F64F, 1},
                  {0x1F680, 0x1F6D7, 1}, {0x1F90C, 0x1F9FF, 1}, {0xF0000, 0x10FFFF, 0}};
    for (size_t i = 0; i < MZ_COUNT(ranges); i++)
        if (c >= ranges[i].from && c <= ranges[i].to)
            return ranges[i].is;
    return -1;
}

// How lists and maps are written: as Python's repr() does, or as JSON.
typedef struct style {
    bool json, ascii, sorted, lines;
    const value *indent, *comma, *colon; // strings
} style;

// Appends a string in quotes.
static void say_string(machine *m, mz_marked_text *out, const value *v, const style *s) {
    static const char escapes[] = "\\\\\nn\rr\tt\ff\bb"; // repr() knows the first four
    const bool single = memchr(v->text, '\'', v->length) != NULL, twice = memchr(v->text, '"', v->length) != NULL;
    const char quote[2] = {s->json || (single && !twice) ? '"' : '\'', '\0'};
    char escape[16];
    say(out, quote);
    for (size_t p = 0, n; p < v->length && m->status == MEZZO_OK; p += n) {
        const uint32_t c = mz_tpl_code(v, p, &n);
        const int printable = s->json    ? c >= 0x20 && (c < 0x7F || !s->ascii)
                              : c < 0x80 ? c >= 0x20 && c < 0x7F
                                         : is_printable(c);
        char letter = c == (uint32_t)quote[0] ? quote[0] : '\0';
        for (size_t i = 0; i < (s->json ? 12 : 8); i += 2)
            letter = c == (uint32_t)escapes[i] ? escapes[i + 1] : letter;
        if (printable < 0)
            refuse(m, MEZZO_ERR_UNSUPPORTED, "printing U+%04X inside of a list or map is not supported", (unsigned)c);
        if (letter != '\0')
            snprintf(escape, sizeof escape, "\\%c", letter);
        else if (printable != 0)
            escape[0] = '\0';
        else if (s->json && c > 0xFFFF)
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", (unsigned)(0xD7C0 + (c >> 10)),
                     (unsigned)(0xDC00 + (c & 0x3FF)));
        else
            snprintf(escape, sizeof escape,
                     c > 0xFFFF            ? "\\U%08x"
                     : s->json || c > 0xFF ? "\\u%04x"
                                           : "\\x%02x",
                     (unsigned)c);
        if (escape[0] != '\0')
            say_marked(out, escape, v->told[p]);
        else
            mz_tpl_say(out, v->text + p, v->told + p, n);
    }
    say(out, quote);
}

// Returns the order of a map's keys: as inserted, or sorted.
static const int64_t *key_order(machine *m, const value *map, bool sorted) {
    int64_t *order = mz_tpl_room(m, (size_t)map->n * sizeof *order);
    for (int64_t i = 0; order != NULL && i < map->n; i++) {
        int64_t k = i;
        for (; sorted && k > 0 && mz_tpl_compare(m, map->key[order[k - 1]], map->key[i]) > 0; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
    return order;
}

static void say_line(mz_marked_text *out, const style *s, int depth) {
    if (!s->lines)
        return;
    say(out, "\n");
    for (int i = 0; i < depth; i++)
        mz_tpl_say(out, s->indent->text, s->indent->told, s->indent->length);
}

static void say_nested(machine *m, mz_marked_text *out, const value *v, const style *s, int depth);

static void say_items(machine *m, mz_marked_text *out, const value *v, const style *s, int depth) {
    const bool map = v->kind == MAP, tuple = v->kind == TUPLE && !s->json;
    const int64_t *order = map ? key_order(m, v, s->sorted) : NULL;
    say(out, map ? "{" : tuple ? "(" : "[");
    for (int64_t i = 0; i < v->n && m->status == MEZZO_OK; i++) {
        if (i > 0)
            mz_tpl_say(out, s->comma->text, s->comma->told, s->comma->length);
        say_line(out, s, depth + 1);
        if (map) {
            const value *key = v->key[order[i]];
            const char *quote = s->json && key->kind != STRING ? "\"" : "";
            if (s->json && key->kind != STRING && key->kind != NONE && !mz_tpl_is_number(key))
                refuse(m, MEZZO_ERR_FORMAT, "tojson of a map with %s as a key", mz_tpl_kind_name(key));
            say(out, quote);
            say_nested(m, out, key, s, depth + 1);
            say(out, quote);
            mz_tpl_say(out, s->colon->text, s->colon->told, s->colon->length);
        }
        say_nested(m, out, v->at[map ? order[i] : i], s, depth + 1);
    }
    if (v->n > 0)
        say_line(out, s, depth);
    say(out, map ? "}" : !tuple ? "]" : v->n == 1 ? ",)" : ")");
}

static void say_nested(machine *m, mz_marked_text *out, const value *v, const style *s, int depth) {
    char text[40];
    mz_tpl_spend(m, v->kind == STRING ? v->length : 8);
    if (depth > MOST_NESTING)
        refuse(m, MEZZO_ERR_UNSUPPORTED, "%s lists that are too deep", s->json ? "tojson of" : "the template prints");
    if (m->status != MEZZO_OK)
        return;
    switch (v->kind) {
    case STRING:
        say_string(m, out, v, s);
        return;
    case NONE:
        say(out, s->json ? "null" : "None");
        return;
    case BOOLEAN:
        say(out, s->json ? (v->n != 0 ? "true" : "false") : v->n != 0 ? "True" : "False");
        return;
    case INTEGER:
        snprintf(text, sizeof text, "%lld", (long long)v->n);
        say(out, text);
        return;
    case REAL:
        real_text(v->real, text, s->json ? "Infinity" : "inf", s->json ? "NaN" : "nan");
        say(out, text);
        return;
    case LIST:
    case TUPLE:
    case MAP:
        say_items(m, out, v, s, depth);
        return;
    default:
        if (s->json)
            refuse(m, MEZZO_ERR_FORMAT, "tojson of %s", mz_tpl_kind_name(v));
        else if (v->kind == UNDEFINED)
            say(out, "Undefined");
        else
            refuse(m, MEZZO_ERR_UNSUPPORTED, "printing %s is not supported", mz_tpl_kind_name(v));
    }
}

void mz_tpl_say_value(machine *m, mz_marked_text *out, const value *v) {
    static const value comma = {.kind = STRING, .text = ", ", .told = "\0", .length = 2},
                       colon = {.kind = STRING, .text = ": ", .told = "\0", .length = 2};
    if (v->kind == STRING && m->status == MEZZO_OK)
        mz_tpl_say(out, v->text, v->told, v->length);
    else if (v->kind != STRING && v->kind != UNDEFINED)
        say_nested(m, out, v, &(style){.comma = &comma, .colon = &colon}, 0);
}

const value *mz_tpl_printed(machine *m, const value *v) {
    if (v->kind == STRING)
        return v;
    mz_marked_text out = {0};
    mz_tpl_say_value(m, &out, v);
    return mz_tpl_said(m, &out);
}

const value *mz_tpl_to_json(machine *m, const value *v, const value **a) {
    const value *indent = a[1] != NULL ? a[1] : &mz_tpl_none, *separators = a[2] != NULL ? a[2] : &mz_tpl_none;
    style s = {.json = true,
               .ascii = a[0] != NULL && mz_tpl_is_true(a[0]),
               .sorted = a[3] != NULL && mz_tpl_is_true(a[3]),
               .lines = indent->kind != NONE,
               .indent = mz_tpl_word(m, ""),
               .colon = mz_tpl_word(m, ": ")};
    s.comma = mz_tpl_word(m, s.lines ? "," : ", ");
    if (indent->kind == STRING)
        s.indent = indent;
    else if (s.lines)
        s.indent = mz_tpl_arithmetic(m, T_MUL, mz_tpl_word(m, " "), indent);
    if (separators->kind != NONE) {
        if ((separators->kind != LIST && separators->kind != TUPLE) || separators->n != 2 ||
            separators->at[0]->kind != STRING || separators->at[1]->kind != STRING) {
            refuse(m, MEZZO_ERR_FORMAT, "tojson's separators are not two strings");
            return &mz_tpl_undefined;
        }
        s.comma = separators->at[0];
        s.colon = separators->at[1];
    }
    mz_marked_text out = {0};
    say_nested(m, &out, v, &s, 0);
    return mz_tpl_said(m, &out);
}

const value *mz_tpl_time(machine *m, const value *format) {
    const char *fixed = getenv("SOURCE_DATE_EPOCH");
    const time_t now = fixed != NULL ? (time_t)strtoll(fixed, NULL, 10) : time(NULL);
    struct tm tm;
    char text[1024];
    if (format->kind != STRING || format->length == 0 || format->length > 256 ||
        memchr(format->text, '\0', format->length) != NULL ||
        (fixed != NULL ? gmtime_r(&now, &tm) : localtime_r(&now, &tm)) == NULL) {
        refuse(m, MEZZO_ERR_UNSUPPORTED, "strftime_now with this format is not supported");
        return &mz_tpl_undefined;
    }
    char copy[260];
    snprintf(copy, sizeof copy, "%.*s", (int)format->length, format->text);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    const size_t n = strftime(text, sizeof text, copy, &tm);
#pragma GCC diagnostic pop
    char *bytes = mz_tpl_room(m, n);
    if (bytes == NULL)
        return &mz_tpl_undefined;
    memcpy(bytes, text, n);
    return mz_tpl_string(m, bytes, NULL, n);
}
