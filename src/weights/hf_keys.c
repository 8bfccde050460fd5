// Holds the table of hf_keys.def: the keys of other programs' configurations that Mezzo reads; it refuses all others.
#include <stddef.h>
#include <stdlib.h>

#include "io/json.h"
#include "io/number.h"
#include "io/quote.h"
#include "checkpoint/checkpoint.h"
#include "models/decoder.h"
#include "weights/hf.h"

#define READ(family, key, kind, field, absent)                                                                         \
    {#family, key, MZ_HF_READ, absent, MZ_HF_##kind, offsetof(mezzo_model_config, field)},
#define RULE(family, key, rule, values) {#family, key, MZ_HF_##rule, values, MZ_HF_NO_FIELD, 0},
static const mz_hf_key rows[] = {
#include "weights/hf_keys.def"
};

const mz_hf_key *mz_hf_keys(size_t *n) {
    *n = MZ_COUNT(rows);
    return rows;
}

static bool is_one_of(const char *family, const char *const *list, size_t n) {
    return MZ_INDEX_WORD(list, n, family) < n;
}

// Returns whether a row belongs to the family, or to keys that many of transformers' families share.
static bool belongs(const mz_hf_key *row, const char *family) {
    static const char *const others[] = {"nanogpt", "AutoencoderKL", "LoraConfig"};
    static const char *const apart[] = {"gpt2", "glm4_moe", "gpt_neox"}; // their classes have other keys
    if (strcmp(row->family, family) == 0)
        return true;
    if (is_one_of(family, others, MZ_COUNT(others)))
        return false;
    return strcmp(row->family, "transformers") == 0 ||
           (strcmp(row->family, "decoders") == 0 && !is_one_of(family, apart, MZ_COUNT(apart)));
}

// Finds the family's own row of a key or, without one, a shared row.
static const mz_hf_key *find(const char *family, const char *key) {
    const mz_hf_key *shared = NULL;
    for (size_t i = 0; i < MZ_COUNT(rows); i++)
        if (strcmp(rows[i].key, key) == 0 && strcmp(rows[i].family, family) == 0)
            return &rows[i];
        else if (strcmp(rows[i].key, key) == 0 && belongs(&rows[i], family))
            shared = &rows[i];
    return shared;
}

static bool same(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b) != 0;
}

// Reports "FILE: key 'k' is VALUE" and what follows.
static mezzo_status refuse(const char *where, const char *key, const json_t *value, const char *rest) {
    MEZZO_TRY(mz_json_refuse_marks(where, key, value));
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9)), shown[80];
    const int n = snprintf(shown, sizeof shown, "%s", text != NULL ? text : "?");
    free(text);
    mz_text_tame(shown);
    return mz_fail(MEZZO_ERR_FORMAT, "%s: key %s is %s%s; %s", where, mz_quote(key).text, shown,
                   n < (int)sizeof shown ? "" : "…", rest);
}

static mezzo_status check_only(const char *where, const mz_hf_key *row, const json_t *value) {
    json_t *list, *one;
    size_t i;
    bool found = false;
    MEZZO_TRY(mz_json_parse("hf_keys.def", row->values, strlen(row->values), 2, &list));
    json_array_foreach(list, i, one) found = found || same(one, value);
    json_decref(list);
    if (found)
        return MEZZO_OK;
    if (row->rule == MZ_HF_ONLY) {
        char rest[160];
        snprintf(rest, sizeof rest, "only %s is supported", row->values);
        return refuse(where, row->key, value, rest);
    }
    mz_log("notice", "%s: key '%s' is not used: training here does without it", where, row->key);
    return MEZZO_OK;
}

static mezzo_status check_key(const char *where, const char *family, const char *key, const json_t *value) {
    const mz_hf_key *row = find(family, key);
    if (row != NULL)
        return row->rule == MZ_HF_ONLY || row->rule == MZ_HF_TRAINING ? check_only(where, row, value) : MEZZO_OK;
    // PEFT writes every option that it has; one that is off counts as missing.
    const bool off = strcmp(family, "LoraConfig") == 0 && !json_is_number(value) && !json_is_true(value) &&
                     json_string_length(value) + json_array_size(value) + json_object_size(value) == 0;
    if (key[0] == '_' || json_is_null(value) || off)
        return MEZZO_OK;
    const char *names[MZ_COUNT(rows)], *near;
    size_t n = 0;
    for (size_t i = 0; i < MZ_COUNT(rows); i++)
        if (belongs(&rows[i], family))
            names[n++] = rows[i].key;
    near = mz_nearest(key, names, n);
    char rest[200];
    snprintf(rest, sizeof rest,
             "Mezzo does not know this key%s%s, which may change results: if it does not, remove it from the file",
             near != NULL ? ", did you mean " : "", near != NULL ? near : "");
    return refuse(where, key, value, rest);
}

static mezzo_status read_field(const char *where, const mz_hf_key *row, const json_t *from, mezzo_model_config *out) {
    void *field = (char *)out + row->field;
    const int64_t least = row->kind == MZ_HF_COUNT ? 0 : 1;
    if (row->kind == MZ_HF_TRUTH)
        return mz_json_get_bool(where, from, row->key, field);
    if (row->kind == MZ_HF_NUMBER_OR_NULL && json_is_null(json_object_get(from, row->key))) {
        *(double *)field = 0;
        return MEZZO_OK;
    }
    if (row->kind == MZ_HF_NUMBER || row->kind == MZ_HF_NUMBER_OR_NULL)
        return mz_json_get_double(where, from, row->key, field);
    if (row->kind == MZ_HF_TIED) {
        bool tied;
        MEZZO_TRY(mz_json_get_bool(where, from, row->key, &tied));
        *(int64_t *)field = tied ? MZ_HEAD_TIED : MZ_HEAD_OWN;
        return MEZZO_OK;
    }
    return mz_json_get_int(where, from, row->key, least, INT32_MAX, field);
}

static mezzo_status read_row(const char *where, const mz_hf_key *row, const json_t *config, mezzo_model_config *out) {
    const json_t *value = json_object_get(config, row->key);
    const bool missing = value == NULL || (row->kind == MZ_HF_SIZE_OR_NULL && json_is_null(value));
    if (!missing || row->values == NULL)
        return read_field(where, row, config, out);
    if (row->values[0] == '\0')
        return MEZZO_OK;
    void *field = (char *)out + row->field;
    if (row->kind == MZ_HF_TRUTH)
        *(bool *)field = strcmp(row->values, "true") == 0;
    else if (row->kind == MZ_HF_TIED)
        *(int64_t *)field = strcmp(row->values, "true") == 0 ? MZ_HEAD_TIED : MZ_HEAD_OWN;
    else if (row->kind == MZ_HF_NUMBER || row->kind == MZ_HF_NUMBER_OR_NULL)
        (void)mz_number_parse(row->values, field);
    else
        (void)mz_number_parse_int(row->values, field);
    return MEZZO_OK;
}

mezzo_status mz_hf_check_keys(const char *where, const char *family, const json_t *config) {
    json_t *value;
    const char *key;
    if (!json_is_object(config))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: it is not an object of keys and values", where);
    json_object_foreach((json_t *)(uintptr_t)config, key, value) MEZZO_TRY(check_key(where, family, key, value));
    return MEZZO_OK;
}

mezzo_status mz_hf_read_keys(const char *where, const char *family, const json_t *config, mezzo_model_config *out) {
    MEZZO_TRY(mz_hf_check_keys(where, family, config));
    for (size_t i = 0; i < MZ_COUNT(rows); i++)
        if (rows[i].kind != MZ_HF_NO_FIELD && find(family, rows[i].key) == &rows[i])
            MEZZO_TRY(read_row(where, &rows[i], config, out));
    return MEZZO_OK;
}

static json_t *field_value(const mz_hf_key *row, const mezzo_model_config *model) {
    const void *field = (const char *)model + row->field;
    if (row->kind == MZ_HF_TRUTH)
        return json_boolean(*(const bool *)field);
    if (row->kind == MZ_HF_NUMBER || row->kind == MZ_HF_NUMBER_OR_NULL)
        return row->kind == MZ_HF_NUMBER_OR_NULL && !(*(const double *)field > 0) ? json_null()
                                                                                  : json_real(*(const double *)field);
    if (row->kind == MZ_HF_TIED)
        return json_boolean(*(const int64_t *)field == MZ_HEAD_TIED);
    const int64_t size = *(const int64_t *)field;
    return row->kind == MZ_HF_SIZE_OR_NULL && size == 0 ? json_null() : json_integer((json_int_t)size);
}

// Reads the first value of an ONLY row, which writes 0 as 0.0; NULL: the row sets nothing.
static mezzo_status first_value(const mz_hf_key *row, json_t **out) {
    json_t *list;
    MEZZO_TRY(mz_json_parse("hf_keys.def", row->values, strlen(row->values), 2, &list));
    json_t *first = json_array_get(list, 0);
    *out = json_is_number(first) && json_number_value(first) == 0                  ? json_real(0)
           : json_is_number(first) || json_is_string(first) || json_is_true(first) ? json_incref(first)
                                                                                   : NULL;
    json_decref(list);
    return MEZZO_OK;
}

mezzo_status mz_hf_write_keys(const char *family, const mezzo_model_config *model, json_t *config) {
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        const mz_hf_key *row = &rows[i];
        const bool other = row->values != NULL && row->values[0] == '\0'; // a key's other name
        json_t *value = NULL;
        if (find(family, row->key) != row || strcmp(row->family, "transformers") == 0 || other)
            continue;
        if (row->rule == MZ_HF_ONLY)
            MEZZO_TRY(first_value(row, &value));
        else if (row->rule == MZ_HF_READ)
            value = field_value(row, model);
        if (value != NULL)
            MEZZO_TRY(mz_json_set(config, row->key, value));
    }
    return MEZZO_OK;
}

bool mz_hf_is_kept(const char *family, const char *key) {
    const mz_hf_key *row = find(family, key);
    return row != NULL && row->rule == MZ_HF_KEPT;
}
