#include "io/json.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>

#include "io/file.h"
#include "io/number.h"
#include "io/quote.h"
#include "io/utf8.h"

// --- allocations of jansson ----------------------------------------------------------------------
static _Thread_local bool ran_out;

// Holds one run of jansson's parser, which reads past the end of a token whose buffer could not grow. So a failed
// allocation must not return to it: a jump leaves the parser, and this list of its allocations is freed.
typedef struct parse {
    jmp_buf out;
    void **blocks;
    size_t n, cap;
} parse;
static _Thread_local parse *parsing; // NULL: this thread parses nothing

static void note(void *block) {
    parse *p = parsing;
    if (block != NULL && p->n == p->cap) {
        void **grown = realloc(p->blocks, (2 * p->cap + 64) * sizeof *grown);
        p->cap = grown != NULL ? 2 * p->cap + 64 : p->cap;
        p->blocks = grown != NULL ? grown : p->blocks;
    }
    if (block != NULL && p->n < p->cap) {
        p->blocks[p->n++] = block;
        return;
    }
    free(block);
    ran_out = true;
    longjmp(p->out, 1);
}

// Allocates by plain malloc, so that values made before, or by another user of jansson in this process, are freed as
// usual.
static void *json_malloc(size_t n) {
    void *p = malloc(n > 0 ? n : 1);
    if (p == NULL)
        (void)mz_fail(MEZZO_ERR_MEMORY, "out of memory: could not allocate %zu bytes", n);
    if (parsing != NULL)
        note(p);
    ran_out |= p == NULL;
    return p;
}

static void json_free(void *block) {
    for (size_t i = parsing != NULL ? parsing->n : 0; i-- > 0;)
        if (parsing->blocks[i] == block) { // usually one of the last
            parsing->blocks[i] = parsing->blocks[--parsing->n];
            break;
        }
    free(block);
}

static void hook_jansson(void) {
    json_set_alloc_funcs(json_malloc, json_free);
}

static json_t *load(const char *text, size_t n, json_error_t *error) {
    parse p = {.n = 0};
    json_t *volatile value = NULL;
    parsing = &p;
    if (setjmp(p.out) == 0)
        value = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, error);
    parsing = NULL;
    for (size_t i = 0; value == NULL && i < p.n; i++)
        free(p.blocks[i]);
    free(p.blocks);
    return value;
}

void mz_json_begin(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, hook_jansson);
    ran_out = false;
}

bool mz_json_ran_out(void) {
    return ran_out;
}

json_t *mz_json_new(void) {
    mz_json_begin();
    return json_object();
}

// Rewrites the n characters of a real number in place as mz_number_format writes it; returns their number.
static size_t shorten(char *number, size_t n) {
    char digits[MZ_NUMBER_MAX];
    double value;
    snprintf(digits, sizeof digits, "%.*s", (int)n, number);
    if (!mz_number_parse(digits, &value))
        return n;
    const bool exponent = strchr(digits, 'e') != NULL;
    const size_t used = strlen(mz_number_format(value, digits));
    if (used > n || (!exponent && strchr(digits, 'e') != NULL)) // 100000.0 stays as it is
        return n;
    memcpy(number, digits, used);
    return used;
}

// Shortens real numbers: jansson writes 17 digits, which read back exactly but show 0.10000000000000001.
static void shorten_numbers(char *text) {
    char *to = text;
    bool in_string = false;
    for (const char *from = text; *from != '\0';) {
        const size_t n = in_string ? 0 : strspn(from, "+-.0123456789eE");
        const bool real = n > 0 && strchr("-0123456789", *from) != NULL &&
                          (memchr(from, '.', n) != NULL || memchr(from, 'e', n) != NULL);
        if (*from == '"')
            in_string = !in_string;
        const bool escape = in_string && *from == '\\';
        const size_t moved = n > 0 ? n : escape ? 2 : 1;
        memmove(to, from, moved);
        from += moved;
        to += real ? shorten(to, n) : moved;
    }
    *to = '\0';
}

mezzo_status mz_json_dump(const json_t *value, size_t flags, char **text) {
    *text = value != NULL && !ran_out ? json_dumps(value, flags | JSON_REAL_PRECISION(17)) : NULL;
    if (*text != NULL && !ran_out) {
        shorten_numbers(*text);
        return MEZZO_OK;
    }
    free(*text);
    *text = NULL;
    bool memory = value == NULL || ran_out;
    ran_out = false;
    return memory ? mz_fail(MEZZO_ERR_MEMORY, "out of memory while making JSON")
                  : mz_fail(MEZZO_ERR_INVALID, "a value cannot be written as JSON");
}

// --- parsing -------------------------------------------------------------------------------------
// Returns the depth of brackets outside strings; jansson recurses once a level, so the limit is checked before it
// starts.
static int nesting(const char *text, size_t n) {
    int depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > deepest)
                deepest = depth;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return deepest;
}

mezzo_status mz_json_parse(const char *where, const char *text, size_t n, int max_depth, json_t **out) {
    *out = NULL;
    if (nesting(text, n) > max_depth)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: JSON nested deeper than %d levels", where, max_depth);
    if (memchr(text, '\0', n) != NULL) // jansson ignores a NUL after a number
        return mz_fail(MEZZO_ERR_FORMAT, "%s: not valid JSON: it has a NUL byte in it", where);
    json_error_t error = {0};
    mz_text python = {0};
    mezzo_status status = mz_json_from_python(text, n, &python);
    mz_json_begin();
    json_t *value = NULL;
    if (status == MEZZO_OK)
        value = python.len > 0 ? load(python.data, python.len, &error) : load(text, n, &error);
    mz_text_free(&python);
    MEZZO_TRY(status);
    if (!value) {
        if (ran_out || json_error_code(&error) == json_error_out_of_memory)
            return mz_fail(MEZZO_ERR_MEMORY, "%s: out of memory while reading JSON", where);
        mz_quoted reason = mz_quote(error.text);
        return mz_fail(MEZZO_ERR_FORMAT, "%s: not valid JSON at line %d column %d: %s", where, error.line, error.column,
                       reason.text);
    }
    *out = value;
    return MEZZO_OK;
}

mezzo_status mz_json_load(const char *path, size_t max_bytes, json_t **out) {
    *out = NULL;
    MZ_SCOPED(mz_free_at) char *text = NULL;
    size_t n;
    MEZZO_TRY(mz_file_read_text(path, max_bytes, &text, &n));
    return mz_json_parse(path, text, n, MZ_JSON_DEPTH, out);
}

// Saves a text and what follows it as one file.
static mezzo_status save_text(const char *path, const char *text, size_t n, const char *tail, mz_written *written) {
    mz_file *file;
    MEZZO_TRY(mz_file_create(path, &file));
    mezzo_status status = mz_file_write(file, text, n);
    if (status == MEZZO_OK)
        status = mz_file_write(file, tail, strlen(tail));
    if (status != MEZZO_OK) {
        mz_file_discard(file);
        return status;
    }
    if (written != NULL)
        *written = mz_file_written(file);
    return mz_file_commit(file);
}

static mezzo_status dump_for(const char *path, const json_t *value, char **text) {
    return mz_context(mz_json_dump(value, JSON_INDENT(2), text), "cannot write %s", mz_quote(path).text);
}

mezzo_status mz_json_save(const char *path, const json_t *value) {
    char *text;
    MEZZO_TRY(dump_for(path, value, &text));
    mezzo_status status = save_text(path, text, strlen(text), "\n", NULL);
    free(text);
    return status;
}

mezzo_status mz_json_save_owned(json_t *value, const char *path) {
    const mezzo_status status = value != NULL ? mz_json_save(path, value)
                                              : mz_fail(MEZZO_ERR_MEMORY, "out of memory while %s was written", path);
    json_decref(value);
    return status;
}

// Says whether the checksum is a member of the root, or of the root's last member.
static const struct {
    const char *begin, *end;
} seals[] = {{",\n  \"crc32c\": \"", "\"\n}\n"}, {",\n    \"crc32c\": \"", "\"\n  }\n}\n"}};
enum { SEAL_DIGITS = 8, SEAL_ROOM = 48 };

static size_t make_seal(size_t kind, const char *text, size_t n, char seal[SEAL_ROOM]) {
    return (size_t)snprintf(seal, SEAL_ROOM, "%s%08x%s", seals[kind].begin, mz_crc32c(0, text, n), seals[kind].end);
}

static size_t seal_bytes(size_t kind) {
    return strlen(seals[kind].begin) + SEAL_DIGITS + strlen(seals[kind].end);
}

static mezzo_status save_sealed(const char *path, size_t kind, const json_t *value, mz_written *written) {
    char *text, seal[SEAL_ROOM];
    MEZZO_TRY(dump_for(path, value, &text));
    const size_t n = strlen(text) - strlen(kind == 0 ? "\n}" : "\n  }\n}");
    make_seal(kind, text, n, seal);
    mezzo_status status = save_text(path, text, n, seal, written);
    free(text);
    return status;
}

mezzo_status mz_json_save_sealed(const char *path, const json_t *value, mz_written *written) {
    return save_sealed(path, 0, value, written);
}

mezzo_status mz_json_save_sealed_within(const char *path, const json_t *value, mz_written *written) {
    return save_sealed(path, 1, value, written);
}

static mezzo_status check_seal(const char *path, const char *text, size_t n, bool *sealed) {
    char seal[SEAL_ROOM];
    *sealed = false;
    for (size_t kind = 0; kind < MZ_COUNT(seals) && !*sealed; kind++) {
        const size_t bytes = seal_bytes(kind), begin = strlen(seals[kind].begin);
        if (n <= bytes || strncmp(text + n - bytes, seals[kind].begin, begin) != 0)
            continue;
        const char *end = text + n - bytes;
        *sealed = true;
        make_seal(kind, text, n - bytes, seal);
        if (memcmp(end, seal, bytes) != 0)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: checksum %.8s, %.8s was written: the file is corrupted", path,
                           seal + begin, mz_quote_bytes(end + begin, SEAL_DIGITS).text + 1);
    }
    return MEZZO_OK;
}

mezzo_status mz_json_load_sealed(const char *path, size_t max_bytes, json_t **out, bool *sealed) {
    MZ_SCOPED(mz_free_at) char *text = NULL;
    size_t n;
    *out = NULL;
    *sealed = false;
    MEZZO_TRY(mz_file_read_text(path, max_bytes, &text, &n));
    MEZZO_TRY(check_seal(path, text, n, sealed));
    return mz_json_parse(path, text, n, MZ_JSON_DEPTH, out);
}

json_t *mz_json_text(const char *text) {
    return mz_json_bytes(text, strlen(text));
}

json_t *mz_json_bytes(const char *bytes, size_t n) {
    json_t *text = json_stringn(bytes, n); // NULL: it is not UTF-8, or memory ran out
    if (text != NULL)
        return text;
    mz_text clean = {0};
    mz_text_add(&clean, "", 0);
    for (size_t i = 0, width; i < n; i += width == 0 ? 1 : width) {
        uint32_t code;
        width = mz_utf8_decode(bytes + i, n - i, &code);
        mz_text_add(&clean, width == 0 ? "\xEF\xBF\xBD" : bytes + i, width == 0 ? 3 : width);
    }
    ran_out |= clean.status != MEZZO_OK;
    text = clean.status == MEZZO_OK ? json_stringn(clean.data, clean.len) : NULL;
    mz_text_free(&clean);
    return text;
}

void mz_json_add_text(mz_text *out, const char *text) {
    mz_text_add(out, "\"", 1);
    for (size_t i = 0, n = strlen(text); i < n;) {
        uint32_t code;
        size_t width = mz_utf8_decode(text + i, n - i, &code);
        if (width == 0)
            mz_text_add(out, "\xEF\xBF\xBD", 3);
        else if (code == '"' || code == '\\')
            mz_text_addf(out, "\\%c", (char)code);
        else if (code < 0x20 || code == 0x7F)
            mz_text_addf(out, "\\u%04x", (unsigned)code);
        else
            mz_text_add(out, text + i, width);
        i += width ? width : 1;
    }
    mz_text_add(out, "\"", 1);
}

#define MARK "\x01" // MZ_JSON_MARK as it is stored in memory

static const char *type_name(const json_t *value) {
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    const char *mark = json_string_value(json_object_get(value, MARK));
    return mark != NULL ? mark : value != NULL ? names[json_typeof(value)] : "nothing";
}

static mezzo_status wrong_type(const char *where, const char *key, const char *expected, const json_t *got) {
    return mz_fail(MEZZO_ERR_FORMAT, "%s: key %s: expected %s, got %s", where, mz_quote(key).text, expected,
                   type_name(got));
}

mezzo_status mz_json_get_int(const char *where, const json_t *object, const char *key, int64_t min, int64_t max,
                             int64_t *out) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        return wrong_type(where, key, "an integer", value);
    int64_t number = json_integer_value(value);
    if (number < min || number > max)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key %s: %lld is not in %lld … %lld", where, mz_quote(key).text,
                       (long long)number, (long long)min, (long long)max);
    *out = number;
    return MEZZO_OK;
}

mezzo_status mz_json_get_floats(const char *where, const json_t *object, const char *key, size_t most, float *out) {
    const json_t *list = json_object_get(object, key);
    const size_t n = json_array_size(list);
    if (!json_is_array(list))
        return wrong_type(where, key, "a list of numbers", list);
    for (size_t i = 0; i < most; i++)
        out[i] = i < n ? (float)json_number_value(json_array_get(list, i)) : 0;
    for (size_t i = 0; i < n; i++)
        if (n > most || !(out[i] > 0) || isinf(out[i]))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is not a list of up to %zu numbers above 0", where, key,
                           most);
    return MEZZO_OK;
}

json_t *mz_json_floats(const float *list, size_t most) {
    json_t *out = json_array();
    for (size_t i = 0; out != NULL && i < most && list[i] > 0; i++) {
        char text[MZ_FLOAT_TEXT];
        double shortest = 0;
        (void)mz_number_parse(mz_float_text(list[i], text), &shortest);
        (void)json_array_append_new(out, json_real(shortest));
    }
    return out;
}

mezzo_status mz_json_get_double(const char *where, const json_t *object, const char *key, double *out) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        return wrong_type(where, key, "a number", value);
    *out = json_number_value(value);
    return MEZZO_OK;
}

mezzo_status mz_json_get_bool(const char *where, const json_t *object, const char *key, bool *out) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_boolean(value))
        return wrong_type(where, key, "true or false", value);
    *out = json_is_true(value);
    return MEZZO_OK;
}

mezzo_status mz_json_get_string(const char *where, const json_t *object, const char *key, const char **out) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value))
        return wrong_type(where, key, "a string", value);
    if (strlen(json_string_value(value)) != json_string_length(value))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key %s: the string has a NUL in it", where, mz_quote(key).text);
    *out = json_string_value(value);
    return MEZZO_OK;
}

mezzo_status mz_json_refuse_marks(const char *where, const char *key, const json_t *value) {
    json_t *member, *whole = (json_t *)(uintptr_t)value;
    const char *name;
    size_t i;
    if (json_object_get(value, MARK) != NULL)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key %s: %s cannot be used", where, mz_quote(key).text, type_name(value));
    json_object_foreach(whole, name, member) MEZZO_TRY(mz_json_refuse_marks(where, name, member));
    json_array_foreach(whole, i, member) MEZZO_TRY(mz_json_refuse_marks(where, key, member));
    return MEZZO_OK;
}

mezzo_status mz_json_get_object(const char *where, const json_t *object, const char *key, json_t **out) {
    json_t *value = json_object_get(object, key);
    if (!json_is_object(value) || json_object_get(value, MARK) != NULL)
        return wrong_type(where, key, "an object", value);
    *out = value;
    return MEZZO_OK;
}

mezzo_status mz_json_get_array(const char *where, const json_t *object, const char *key, json_t **out) {
    json_t *value = json_object_get(object, key);
    if (!json_is_array(value))
        return wrong_type(where, key, "an array", value);
    *out = value;
    return MEZZO_OK;
}

json_t *mz_json_number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

json_t *mz_json_interval(double low, double high) {
    return json_pack("[o, o]", mz_json_number(low), mz_json_number(high));
}
