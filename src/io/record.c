#include "io/record.h"

#include <math.h>

#include "io/json.h"
#include "io/number.h"
#include "io/quote.h"

enum { DEPTH = 4, NUMBER_BYTES = 64, MANY_KEYS = 1024 };

// --- keeping -------------------------------------------------------------------------------------------------------
// Reads a text that stands for a number which JSON does not have: "NaN", "Infinity" and "-Infinity".
static bool not_finite(const char *text, size_t n, double *value) {
    static const struct {
        const char *name;
        double value;
    } names[] = {{"NaN", (double)NAN}, {"Infinity", (double)INFINITY}, {"-Infinity", -(double)INFINITY}};
    for (size_t i = 0; i < MZ_COUNT(names); i++)
        if (strlen(names[i].name) == n && memcmp(names[i].name, text, n) == 0) {
            *value = names[i].value;
            return true;
        }
    return false;
}

static mezzo_status add_value(mz_record *r, mz_metric value) {
    if (strcmp(value.name, "step") == 0) {
        if (value.kind != MZ_METRIC_INT || value.integer < 0)
            return mz_fail(MEZZO_ERR_FORMAT, "key 'step': expected an integer from 0 on");
        r->step = value.integer;
        return MEZZO_OK;
    }
    MEZZO_TRY(MZ_RESERVE(r->values, r->cap, r->n + 1));
    r->values[r->n++] = value;
    return MEZZO_OK;
}

// --- lines as Mezzo writes them ------------------------------------------------------------------------------------
typedef struct scanner {
    const char *at, *end;
    char *free;       // in the record's bytes: where the next text goes
    uint64_t seen[4]; // one bit for each hash of the keys so far
} scanner;

static void skip_blanks(scanner *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r'))
        s->at++;
}

static bool take(scanner *s, char c) {
    skip_blanks(s);
    if (s->at == s->end || *s->at != c)
        return false;
    s->at++;
    return true;
}

// Returns a string of printable ASCII without escapes, copied with a NUL; NULL for any other.
static const char *scan_string(scanner *s, size_t *n) {
    if (!take(s, '"'))
        return NULL;
    char *to = s->free;
    const char *from = s->at;
    while (s->at < s->end && *s->at >= 0x20 && *s->at < 0x7F && *s->at != '"' && *s->at != '\\')
        *s->free++ = *s->at++;
    if (s->at == s->end || *s->at != '"')
        return NULL;
    *n = (size_t)(s->at++ - from);
    *s->free++ = '\0';
    return to;
}

static size_t scan_digits(const char *at, const char *end) {
    size_t n = 0;
    while (at + n < end && at[n] >= '0' && at[n] <= '9')
        n++;
    return n;
}

// Scans a number by RFC 8259, section 6: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
static bool scan_number(scanner *s, mz_metric *out) {
    const char *p = s->at;
    p += p < s->end && *p == '-';
    const size_t whole = scan_digits(p, s->end);
    if (whole == 0 || (whole > 1 && *p == '0'))
        return false;
    bool integer = true;
    p += whole;
    if (p < s->end && *p == '.') {
        const size_t digits = scan_digits(p + 1, s->end);
        if (digits == 0)
            return false;
        integer = false;
        p += 1 + digits;
    }
    if (p < s->end && (*p == 'e' || *p == 'E')) {
        const char *exponent = p + 1 + (p + 1 < s->end && (p[1] == '+' || p[1] == '-'));
        const size_t digits = scan_digits(exponent, s->end);
        if (digits == 0)
            return false;
        integer = false;
        p = exponent + digits;
    }
    const size_t n = (size_t)(p - s->at);
    char text[NUMBER_BYTES];
    if (n >= sizeof text)
        return false;
    memcpy(text, s->at, n);
    text[n] = '\0';
    s->at = p;
    out->kind = integer ? MZ_METRIC_INT : MZ_METRIC_NUMBER;
    if (integer)
        return mz_number_parse_int(text, &out->integer);
    return mz_number_parse(text, &out->number) && isfinite(out->number);
}

static bool scan_word(scanner *s, const char *word) {
    const size_t n = strlen(word);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0)
        return false;
    s->at += n;
    return true;
}

static bool scan_value(scanner *s, mz_metric *out) {
    skip_blanks(s);
    if (s->at == s->end)
        return false;
    if (*s->at == '"') {
        size_t n;
        out->text = scan_string(s, &n);
        out->kind = out->text != NULL && not_finite(out->text, n, &out->number) ? MZ_METRIC_NUMBER : MZ_METRIC_TEXT;
        return out->text != NULL;
    }
    out->kind = MZ_METRIC_BOOL;
    out->integer = *s->at == 't';
    if (*s->at == 't' || *s->at == 'f')
        return scan_word(s, out->integer ? "true" : "false");
    return scan_number(s, out);
}

// Returns whether the key has occurred before; all earlier keys are compared only where its hash has occurred.
static bool occurs_again(scanner *s, const mz_record *r, const char *name) {
    uint32_t hash = 2166136261u; // FNV-1a
    for (const char *p = name; *p != '\0'; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    uint64_t *word = &s->seen[hash >> 30], bit = (uint64_t)1 << (hash >> 24 & 63);
    if ((*word & bit) != 0 && mz_record_find(r, name) != NULL)
        return true;
    *word |= bit;
    return false;
}

// Scans a line. *done is false where only the JSON reader can read it.
static mezzo_status scan_line(mz_record *r, const char *line, size_t n, bool *done) {
    scanner s = {.at = line, .end = line + n, .free = r->bytes};
    *done = false;
    bool stepped = false;
    if (!take(&s, '{'))
        return MEZZO_OK;
    do {
        size_t length;
        mz_metric value = {.name = scan_string(&s, &length)};
        if (value.name == NULL || strlen(value.name) != length || !take(&s, ':') || !scan_value(&s, &value))
            return MEZZO_OK;
        const bool is_step = strcmp(value.name, "step") == 0;
        if ((is_step && stepped) || r->n == MANY_KEYS || occurs_again(&s, r, value.name))
            return MEZZO_OK; // with many keys, the JSON reader's table finds a repeated one faster
        stepped |= is_step;
        MEZZO_TRY(add_value(r, value));
    } while (take(&s, ','));
    *done = take(&s, '}');
    skip_blanks(&s);
    *done = *done && stepped && s.at == s.end;
    return MEZZO_OK;
}

// --- any other JSON ------------------------------------------------------------------------------------------------
static char *copy_text(char **free, const char *text) {
    const size_t n = strlen(text) + 1;
    char *to = memcpy(*free, text, n);
    *free += n;
    return to;
}

static mezzo_status add_members(mz_record *r, const json_t *object) {
    const char *name;
    json_t *json;
    char *free = r->bytes;
    json_object_foreach((json_t *)object, name, json) {
        mz_metric value = {.name = copy_text(&free, name)};
        if (json_is_integer(json)) {
            value.kind = MZ_METRIC_INT;
            value.integer = json_integer_value(json);
        } else if (json_is_real(json)) {
            value.kind = MZ_METRIC_NUMBER;
            value.number = json_real_value(json);
        } else if (json_is_boolean(json)) {
            value.kind = MZ_METRIC_BOOL;
            value.integer = json_is_true(json);
        } else if (json_is_string(json)) {
            value.text = copy_text(&free, json_string_value(json));
            value.kind = not_finite(value.text, strlen(value.text), &value.number) ? MZ_METRIC_NUMBER : MZ_METRIC_TEXT;
        } else if (strcmp(name, "step") != 0) {
            if (r->wrong[0] == '\0')
                snprintf(r->wrong, sizeof r->wrong, "%s", mz_quote(name).text);
            continue;
        }
        MEZZO_TRY(add_value(r, value));
    }
    return json_object_get(object, "step") != NULL ? MEZZO_OK
                                                   : mz_fail(MEZZO_ERR_FORMAT, "key 'step': expected an integer");
}

static mezzo_status parse_line(mz_record *r, const char *line, size_t n) {
    MZ_SCOPED(mz_json_free_at) json_t *object = NULL;
    MEZZO_TRY(mz_json_parse("not a record", line, n, DEPTH, &object));
    return json_is_object(object) ? add_members(r, object) : mz_fail(MEZZO_ERR_FORMAT, "not a JSON object");
}

static void begin(mz_record *r) {
    r->step = -1;
    r->n = 0;
    r->wrong[0] = '\0';
}

mezzo_status mz_record_read(mz_record *r, const char *line, size_t n) {
    bool done;
    begin(r);
    if (n > MZ_RECORD_BYTES_MAX)
        return mz_fail(MEZZO_ERR_FORMAT, "a line of %zu bytes is not a record", n);
    MEZZO_TRY(MZ_RESERVE(r->bytes, r->bytes_cap, n + 2)); // a member's quotes and colon take more bytes than its NULs
    MEZZO_TRY(scan_line(r, line, n, &done));
    if (done)
        return MEZZO_OK;
    begin(r);
    return parse_line(r, line, n);
}

void mz_record_free(mz_record *r) {
    MZ_FREE(r->values, r->bytes);
    *r = (mz_record){0};
}

const mz_metric *mz_record_find(const mz_record *r, const char *name) {
    return MZ_FIND(r->values, r->n, name, name);
}

double mz_metric_as_number(const mz_metric *value) {
    if (value == NULL || value->kind == MZ_METRIC_TEXT)
        return (double)NAN;
    return value->kind == MZ_METRIC_NUMBER ? value->number : (double)value->integer;
}
