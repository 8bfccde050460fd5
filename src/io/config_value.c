#include "io/config_value.h"

#include <math.h>
#include <stdlib.h>

#include "base/names.h"
#include "base/scope.h"
#include "io/number.h"
#include "io/quote.h"
#include "io/utf8.h"

static bool has_bounds(const mz_config_row *row) {
    return row->min != 0 || row->max != 0;
}

// Writes a bound in a short form: integers without ".0".
static const char *bound_text(double bound, char out[MZ_NUMBER_MAX]) {
    if (bound == floor(bound) && fabs(bound) <= 9007199254740992.0) { // up to 2^53 a double holds every integer
        snprintf(out, MZ_NUMBER_MAX, "%lld", (long long)bound);
        return out;
    }
    return mz_number_format(bound, out);
}

static void add_range(mz_text *out, const mz_config_row *row) {
    char low[MZ_NUMBER_MAX], high[MZ_NUMBER_MAX];
    // A message leaves out the limits of int64 itself.
    bool integer = row->type == MZ_CONFIG_INT;
    bool open_low = isinf(row->min) || (integer && row->min <= -9e18);
    bool open_high = isinf(row->max) || (integer && row->max >= 9e18);
    bound_text(row->min, low);
    bound_text(row->max, high);
    if (!has_bounds(row) || (open_low && open_high))
        return;
    if (open_high)
        mz_text_addf(out, ", %s or more", low);
    else if (open_low)
        mz_text_addf(out, ", %s or less", high);
    else
        mz_text_addf(out, " from %s to %s", low, high);
}

static void add_names(mz_text *out, const char *names) {
    for (const char *at = names; *at;) {
        size_t n = strcspn(at, "|");
        mz_text_addf(out, "%s%.*s", at == names ? "" : ", ", (int)n, at);
        at += n + (at[n] == '|');
    }
}

char *mz_config_expected(const mz_config_row *row) {
    mz_text out = {0};
    switch (row->type) {
    case MZ_CONFIG_INT:
        mz_text_addf(&out, "an integer");
        add_range(&out, row);
        if (row->names != NULL) {
            mz_text_addf(&out, ", or one of ");
            add_names(&out, row->names);
        }
        break;
    case MZ_CONFIG_FLOAT:
        mz_text_addf(&out, "a number");
        add_range(&out, row);
        break;
    case MZ_CONFIG_BOOL:
        mz_text_addf(&out, "true or false");
        break;
    case MZ_CONFIG_STRING:
        mz_text_addf(&out, "a text");
        break;
    case MZ_CONFIG_ENUM:
        mz_text_addf(&out, "one of ");
        add_names(&out, row->names);
        break;
    case MZ_CONFIG_LIST:
        mz_text_addf(&out, "up to %g numbers above 0, divided by commas", row->max);
        break;
    case MZ_CONFIG_MAP:
        mz_text_addf(&out, "pattern=name,…%s", row->names ? " with names of " : "");
        if (row->names)
            add_names(&out, row->names);
        break;
    }
    if (out.status != MEZZO_OK) {
        mz_text_free(&out);
        return NULL;
    }
    return out.data;
}

static mezzo_status wrong(const mz_config_row *row, const char *where, const char *text) {
    MZ_SCOPED(mz_free_at) char *expected = mz_config_expected(row);
    if (!expected)
        return MEZZO_ERR_MEMORY;
    return mz_fail(MEZZO_ERR_INVALID, "%s: %s: expected %s, got %s", where, row->path, expected, mz_quote(text).text);
}

// Replaces any word for a precision by its name, in a row of precisions.
static mezzo_status precision_name(const mz_config_row *row, const char *where, const char *text, const char **name) {
    mezzo_precision precision;
    mezzo_status status = mezzo_precision_parse(text, &precision);
    if (status != MEZZO_OK)
        return mz_context(status, "%s: %s", where, row->path);
    *name = mezzo_precision_name(precision);
    return MEZZO_OK;
}

// --- pairs ---------------------------------------------------------------------------------------------------------
void mz_config_pairs_free(mz_config_pairs *pairs) {
    for (size_t i = 0; i < pairs->count; i++) {
        MZ_FREE(pairs->items[i].key, pairs->items[i].value);
    }
    mz_free(pairs->items);
    *pairs = (mz_config_pairs){0};
}

mezzo_status mz_config_pairs_add(mz_config_pairs *pairs, const char *key, size_t key_size, const char *value) {
    MEZZO_TRY(MZ_RESERVE(pairs->items, pairs->cap, pairs->count + 1));
    char *key_copy = mz_alloc(key_size + 1, 1), *value_copy = mz_strdup(value);
    if (!key_copy || !value_copy) {
        MZ_FREE(key_copy, value_copy);
        return MEZZO_ERR_MEMORY;
    }
    memcpy(key_copy, key, key_size);
    pairs->items[pairs->count++] = (mz_config_pair){key_copy, value_copy};
    return MEZZO_OK;
}

// Parses "pattern=name,pattern=name"; the last '=' of a part divides it.
static mezzo_status parse_pairs(const mz_config_row *row, const char *where, const char *text, mz_config_pairs *pairs) {
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, ",");
        char *part;
        MEZZO_TRY(MZ_NEW(part, n + 1));
        memcpy(part, at, n);
        char *equals = strrchr(part, '=');
        mezzo_status status = equals && equals != part
                                  ? mz_config_pairs_add(pairs, part, (size_t)(equals - part), equals + 1)
                                  : wrong(row, where, text);
        mz_free(part);
        MEZZO_TRY(status);
        at += n + (at[n] == ',');
    }
    return MEZZO_OK;
}

static mezzo_status check_pairs(const mz_config_row *row, const char *where, mz_config_pairs *pairs) {
    for (size_t i = 0; i < pairs->count; i++) {
        mz_config_pair *pair = &pairs->items[i];
        if (MZ_INDEX(pairs->items, i, key, pair->key) < i)
            return mz_fail(MEZZO_ERR_INVALID, "%s: %s: pattern %s is given twice", where, row->path,
                           mz_quote(pair->key).text);
        if (row->flags & MZ_CONFIG_PRECISION) {
            const char *name = NULL;
            MEZZO_TRY(precision_name(row, where, pair->value, &name));
            char *copy = mz_strdup(name);
            if (!copy)
                return MEZZO_ERR_MEMORY;
            mz_free(pair->value);
            pair->value = copy;
        }
        if (row->names && !mz_is_listed(row->names, pair->value)) {
            mz_text names = {0};
            add_names(&names, row->names);
            mezzo_status status =
                names.status == MEZZO_OK
                    ? mz_fail(MEZZO_ERR_INVALID, "%s: %s: %s: expected one of %s, got %s", where, row->path,
                              mz_quote(pair->key).text, names.data, mz_quote(pair->value).text)
                    : names.status;
            mz_text_free(&names);
            return status;
        }
    }
    return MEZZO_OK;
}

// --- one value -----------------------------------------------------------------------------------------------------
void mz_config_entry_free(mz_config_entry *entry) {
    MZ_FREE(entry->where, entry->text, entry->shown);
    mz_config_pairs_free(&entry->pairs);
}

static mezzo_status check_range(const mz_config_row *row, const char *where, double value, const char *text) {
    if (!has_bounds(row) || (value >= row->min && value <= row->max) || isnan(value))
        return MEZZO_OK;
    return wrong(row, where, text);
}

// Parses "1,2,4,4" as 1244 in a row of digits. Returns false for other text.
static bool parse_digits(const mz_config_row *row, const char *text, int64_t *out) {
    int64_t digits = 0;
    size_t n = strlen(text);
    if ((row->flags & MZ_CONFIG_DIGITS) == 0 || n % 2 == 0 || n > 16)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (i % 2 == 0 ? text[i] < '0' || text[i] > '9' : text[i] != ',')
            return false;
        digits = i % 2 == 0 ? 10 * digits + (text[i] - '0') : digits;
    }
    *out = digits;
    return true;
}

// Parses "1,1.5": up to `most` numbers above 0 that FP32 holds.
static bool parse_list(const char *text, size_t most, float *out, size_t *n) {
    char one[MZ_NUMBER_MAX];
    double number;
    *n = 0;
    for (const char *at = text; *at != '\0'; at += *at == ',') {
        at += strspn(at, " ");
        const size_t size = strcspn(at, ",");
        if (*n == most || size >= sizeof one)
            return false;
        snprintf(one, sizeof one, "%.*s", (int)size, at);
        if (!mz_number_parse(one, &number) || !((float)number > 0) || isinf((float)number))
            return false;
        if (out != NULL)
            out[*n] = (float)number;
        ++*n;
        at += size;
    }
    return *n == 0 || text[strlen(text) - 1] != ',';
}

static bool has_text(const mz_config_row *row) {
    return row->type == MZ_CONFIG_STRING || row->type == MZ_CONFIG_ENUM || row->type == MZ_CONFIG_LIST;
}

// Fills the number fields of `value`; the caller copies the text.
static mezzo_status parse_value(const mz_config_row *row, const char *text, const char *where, mz_config_entry *value) {
    switch (row->type) {
    case MZ_CONFIG_INT:
        value->i = row->names != NULL ? mz_word_index(row->names, text, strlen(text)) : -1;
        if (value->i < 0 && !parse_digits(row, text, &value->i) && !mz_number_parse_int(text, &value->i))
            return wrong(row, where, text);
        value->f = (double)value->i;
        return check_range(row, where, value->f, text);
    case MZ_CONFIG_FLOAT:
        if (!mz_number_parse(text, &value->f))
            return wrong(row, where, text);
        if (!isfinite(value->f) && !(row->flags & MZ_CONFIG_NON_FINITE))
            return mz_fail(MEZZO_ERR_INVALID, "%s: %s: expected a finite number, got %s", where, row->path,
                           mz_quote(text).text);
        return check_range(row, where, value->f, text);
    case MZ_CONFIG_BOOL:
        value->i = strcmp(text, "true") == 0;
        return value->i || strcmp(text, "false") == 0 ? MEZZO_OK : wrong(row, where, text);
    case MZ_CONFIG_ENUM:
        value->i = mz_word_index(row->names, text, strlen(text));
        return value->i >= 0 ? MEZZO_OK : wrong(row, where, text);
    case MZ_CONFIG_LIST: {
        size_t n;
        return parse_list(text, (size_t)row->max, NULL, &n) ? MEZZO_OK : wrong(row, where, text);
    }
    case MZ_CONFIG_STRING: { // the resolved configuration is YAML, which is UTF-8
        uint32_t code;
        size_t width;
        for (size_t i = 0, n = strlen(text); i < n; i += width)
            if ((width = mz_utf8_decode(text + i, n - i, &code)) == 0)
                return mz_fail(MEZZO_ERR_INVALID, "%s: %s: %s is not UTF-8", where, row->path, mz_quote(text).text);
        return MEZZO_OK;
    }
    default:
        MEZZO_TRY(parse_pairs(row, where, text, &value->pairs));
        return check_pairs(row, where, &value->pairs);
    }
}

// Replaces the entry by the new value, or drops the value where a stronger origin has set the key. It frees the dropped
// one.
static void keep_stronger(mz_config_entry *entry, mz_config_entry *value) {
    if (entry->where && value->origin < entry->origin) {
        mz_config_entry_free(value);
        return;
    }
    value->row = entry->row;
    value->mark = entry->mark;
    mz_config_entry_free(entry);
    *entry = *value;
}

mezzo_status mz_config_set_text(mz_config_entry *entry, const char *text, mz_config_origin_kind kind,
                                const char *where) {
    mz_config_entry value = {.origin = kind};
    mezzo_status status = MEZZO_OK;
    if (entry->row->type == MZ_CONFIG_ENUM && (entry->row->flags & MZ_CONFIG_PRECISION))
        MEZZO_TRY(precision_name(entry->row, where, text, &text));
    MEZZO_TRY_GOTO(status, parse_value(entry->row, text, where, &value));
    value.where = mz_strdup(where);
    if (has_text(entry->row))
        value.text = mz_strdup(text);
    if (!value.where || (!value.text && has_text(entry->row))) {
        status = MEZZO_ERR_MEMORY;
        goto fail;
    }
    keep_stronger(entry, &value);
    return MEZZO_OK;
fail:
    mz_config_entry_free(&value);
    return status;
}

mezzo_status mz_config_set_pairs(mz_config_entry *entry, mz_config_pairs *pairs, mz_config_origin_kind kind,
                                 const char *where) {
    MEZZO_TRY(check_pairs(entry->row, where, pairs));
    mz_config_entry value = {.origin = kind, .where = mz_strdup(where), .pairs = *pairs};
    if (!value.where)
        return MEZZO_ERR_MEMORY;
    *pairs = (mz_config_pairs){0};
    keep_stronger(entry, &value);
    return MEZZO_OK;
}

mezzo_status mz_config_set_pair(mz_config_entry *entry, const char *key, size_t key_size, const char *value,
                                mz_config_origin_kind kind, const char *where) {
    mz_config_pairs pairs = {0};
    mezzo_status status = MEZZO_OK;
    bool replaced = false;
    for (size_t i = 0; i < entry->pairs.count; i++) {
        const mz_config_pair *pair = &entry->pairs.items[i];
        bool same = strlen(pair->key) == key_size && memcmp(pair->key, key, key_size) == 0;
        replaced |= same;
        MEZZO_TRY_GOTO(status, mz_config_pairs_add(&pairs, pair->key, strlen(pair->key), same ? value : pair->value));
    }
    if (!replaced)
        MEZZO_TRY_GOTO(status, mz_config_pairs_add(&pairs, key, key_size, value));
    MEZZO_TRY_GOTO(status, mz_config_set_pairs(entry, &pairs, kind, where));
    return MEZZO_OK;
fail:
    mz_config_pairs_free(&pairs);
    return status;
}

// --- getting -------------------------------------------------------------------------------------------------------
static mezzo_status get(const mz_config *cfg, const char *path, unsigned types, mz_config_entry **out) {
    mz_config_entry *entry = mz_config_find(cfg, path);
    if (!entry)
        return mz_fail(MEZZO_ERR_INVALID, "the configuration table has no %s", path);
    if (!(types >> entry->row->type & 1))
        return mz_fail(MEZZO_ERR_INVALID, "the configuration's %s does not have the requested type", path);
    *out = entry;
    return MEZZO_OK;
}

mezzo_status mz_config_get_int(const mz_config *cfg, const char *path, int64_t *out) {
    mz_config_entry *entry = NULL;
    MEZZO_TRY(get(cfg, path, 1u << MZ_CONFIG_INT, &entry));
    *out = entry->i;
    return MEZZO_OK;
}

mezzo_status mz_config_get_float(const mz_config *cfg, const char *path, double *out) {
    mz_config_entry *entry = NULL;
    MEZZO_TRY(get(cfg, path, 1u << MZ_CONFIG_FLOAT | 1u << MZ_CONFIG_INT, &entry));
    *out = entry->f;
    return MEZZO_OK;
}

mezzo_status mz_config_get_bool(const mz_config *cfg, const char *path, bool *out) {
    mz_config_entry *entry = NULL;
    MEZZO_TRY(get(cfg, path, 1u << MZ_CONFIG_BOOL, &entry));
    *out = entry->i != 0;
    return MEZZO_OK;
}

mezzo_status mz_config_get_string(const mz_config *cfg, const char *path, const char **out) {
    mz_config_entry *entry = NULL;
    MEZZO_TRY(get(cfg, path, 1u << MZ_CONFIG_STRING | 1u << MZ_CONFIG_ENUM, &entry));
    *out = entry->text;
    return MEZZO_OK;
}

mezzo_status mz_config_get_list(const mz_config *cfg, const char *path, float *out, size_t *n) {
    mz_config_entry *entry = NULL;
    MEZZO_TRY(get(cfg, path, 1u << MZ_CONFIG_LIST, &entry));
    (void)parse_list(entry->text, (size_t)entry->row->max, out, n); // it was checked when it was set
    return MEZZO_OK;
}

mezzo_status mz_config_get_enum(const mz_config *cfg, const char *path, int *index) {
    mz_config_entry *entry = NULL;
    MEZZO_TRY(get(cfg, path, 1u << MZ_CONFIG_ENUM, &entry));
    *index = (int)entry->i;
    return MEZZO_OK;
}

mezzo_status mz_config_map_get(const mz_config *cfg, const char *path, size_t i, const char **key, const char **value) {
    mz_config_entry *entry = NULL;
    MEZZO_TRY(get(cfg, path, 1u << MZ_CONFIG_MAP, &entry));
    bool there = i < entry->pairs.count;
    *key = there ? entry->pairs.items[i].key : NULL;
    *value = there ? entry->pairs.items[i].value : NULL;
    return MEZZO_OK;
}

const char *mz_config_origin(const mz_config *cfg, const char *path) {
    const mz_config_entry *entry = mz_config_find(cfg, path);
    return entry ? entry->where : NULL;
}
