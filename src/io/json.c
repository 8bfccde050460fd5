#include "io/json.h"

#include <stdlib.h>

#include "io/file.h"
#include "io/quote.h"
#include "io/utf8.h"

// Nesting of brackets outside strings; jansson recurses once a level, so the bound holds before it starts.
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
    json_error_t error;
    json_t *value = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!value) {
        if (json_error_code(&error) == json_error_out_of_memory)
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
    char *text;
    size_t n;
    MEZZO_TRY(mz_file_read(path, max_bytes, &text, &n));
    mezzo_status status = mz_json_parse(path, text, n, MZ_JSON_DEPTH, out);
    mz_free(text);
    return status;
}

mezzo_status mz_json_save(const char *path, const json_t *value) {
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    if (!text)
        return mz_fail(MEZZO_ERR_MEMORY, "cannot write %s: out of memory while making JSON", mz_quote(path).text);
    size_t n = strlen(text);
    mezzo_status status = MEZZO_OK;
    mz_file *file = NULL;
    MEZZO_TRY_GOTO(status, mz_file_create(path, &file));
    MEZZO_TRY_GOTO(status, mz_file_write(file, text, n));
    MEZZO_TRY_GOTO(status, mz_file_write(file, "\n", 1));
    free(text);
    return mz_file_commit(file);
fail:
    mz_file_discard(file);
    free(text);
    return status;
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

static const char *type_name(const json_t *value) {
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    return value ? names[json_typeof(value)] : "nothing";
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

mezzo_status mz_json_get_object(const char *where, const json_t *object, const char *key, json_t **out) {
    json_t *value = json_object_get(object, key);
    if (!json_is_object(value))
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
