// Writes and reads state.json, which has everything of a checkpoint that is not a tensor, and sizes and checksums of
// the files with tensors.
#include <math.h>

#include "io/json.h"
#include "mezzo/version.h"
#include "io/quote.h"
#include "checkpoint/checkpoint.h"

const char *const mz_checkpoint_files[MZ_CHECKPOINT_FILES] = {"model.safetensors", "optimizer.safetensors",
                                                              "ema.safetensors"};

#define FORMAT "mezzo-checkpoint"

// --- JSON with NaN -------------------------------------------------------------------------------------------------
mezzo_status mz_json_set(json_t *object, const char *key, json_t *value) {
    if (value == NULL || json_object_set_new(object, key, value) != 0)
        return mz_fail(MEZZO_ERR_MEMORY, "no memory for the checkpoint's \"%s\"", key);
    return MEZZO_OK;
}

mezzo_status mz_json_get_number(const char *where, const json_t *object, const char *key, double *out) {
    if (json_is_null(json_object_get(object, key))) {
        *out = (double)NAN;
        return MEZZO_OK;
    }
    return mz_json_get_double(where, object, key, out);
}

mezzo_status mz_json_get_validation(const char *where, const json_t *object, const char *whole, const char *sampled,
                                    double *out, bool *is_sampled) {
    *is_sampled = json_object_get(object, sampled) != NULL;
    return mz_json_get_number(where, object, *is_sampled ? sampled : whole, out);
}

static mezzo_status new_object(json_t *parent, const char *key, json_t **out) {
    *out = json_object();
    return mz_json_set(parent, key, *out);
}

static mezzo_status copy_text(const char *where, const json_t *object, const char *key, char *out, size_t size) {
    const char *text = "";
    MEZZO_TRY(mz_json_get_string(where, object, key, &text));
    if (strlen(text) >= size)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is longer than %zu bytes", where, key, size - 1);
    memcpy(out, text, strlen(text) + 1);
    return MEZZO_OK;
}

bool mz_checkpoint_plain_name(const char *name) {
    return strchr(name, '/') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

// --- parts ---------------------------------------------------------------------------------------------------------
// A field of state.json. One list serves both directions, so that nothing is written that is not read.
typedef struct field {
    const char *key;
    enum { INTEGER, INTEGER32, NUMBER } type;
    size_t offset;
} field;
#define FIELD(type, kind, name)                                                                                        \
    { #name, kind, offsetof(type, name) }

static const field optimizer_fields[] = {FIELD(mz_opt_state, INTEGER, step),
                                         FIELD(mz_opt_state, INTEGER, skipped),
                                         FIELD(mz_opt_state, NUMBER, norm),
                                         FIELD(mz_opt_state, NUMBER, clip),
                                         FIELD(mz_opt_state, NUMBER, lr),
                                         {"bias1", NUMBER, offsetof(mz_opt_state, bias[0][0])},
                                         {"bias2", NUMBER, offsetof(mz_opt_state, bias[0][1])},
                                         FIELD(mz_opt_state, NUMBER, last_clip),
                                         FIELD(mz_opt_state, INTEGER32, found_inf),
                                         FIELD(mz_opt_state, INTEGER32, last_found_inf)};
static const field scaler_fields[] = {
    FIELD(mezzo_scaler_state, NUMBER, scale),           FIELD(mezzo_scaler_state, NUMBER, growth_factor),
    FIELD(mezzo_scaler_state, NUMBER, backoff_factor),  FIELD(mezzo_scaler_state, INTEGER, growth_interval),
    FIELD(mezzo_scaler_state, INTEGER, growth_tracker), FIELD(mezzo_scaler_state, INTEGER, hysteresis_tracker),
    FIELD(mezzo_scaler_state, INTEGER, floor_hits),     FIELD(mezzo_scaler_state, INTEGER, skipped)};

static mezzo_status put_fields(json_t *object, const field *fields, size_t n, const void *from) {
    for (size_t i = 0; i < n; i++) {
        const void *at = (const char *)from + fields[i].offset;
        int64_t integer = 0;
        int32_t integer32 = 0;
        double number = 0;
        if (fields[i].type == NUMBER)
            memcpy(&number, at, sizeof number);
        else if (fields[i].type == INTEGER)
            memcpy(&integer, at, sizeof integer);
        else
            memcpy(&integer32, at, sizeof integer32);
        json_t *value = fields[i].type == NUMBER ? mz_json_number(number) : json_integer(integer + integer32);
        MEZZO_TRY(mz_json_set(object, fields[i].key, value));
    }
    return MEZZO_OK;
}

static mezzo_status get_fields(const char *where, const json_t *object, const field *fields, size_t n, void *to) {
    for (size_t i = 0; i < n; i++) {
        void *at = (char *)to + fields[i].offset;
        double number = 0;
        int64_t integer = 0, most = fields[i].type == INTEGER32 ? INT32_MAX : INT64_MAX;
        if (fields[i].type == NUMBER) {
            MEZZO_TRY(mz_json_get_number(where, object, fields[i].key, &number));
            memcpy(at, &number, sizeof number);
            continue;
        }
        MEZZO_TRY(mz_json_get_int(where, object, fields[i].key, 0, most, &integer));
        int32_t integer32 = (int32_t)integer;
        if (fields[i].type == INTEGER)
            memcpy(at, &integer, sizeof integer);
        else
            memcpy(at, &integer32, sizeof integer32);
    }
    return MEZZO_OK;
}

// --- writing -------------------------------------------------------------------------------------------------------
// Writes the model. `model` is the description, which the root takes over; NULL: there is none.
static mezzo_status put_model(json_t *root, const mezzo_checkpoint *c, json_t *model) {
    char graph[24];
    if (model == NULL)
        return MEZZO_OK;
    MEZZO_TRY(mz_json_set(root, "model", model));
    snprintf(graph, sizeof graph, "%016llx", (unsigned long long)c->graph);
    return c->graph != 0 ? mz_json_set(model, "graph", json_string(graph)) : MEZZO_OK;
}

static mezzo_status put_mark(json_t *root, const char *key, mezzo_data_mark mark) {
    json_t *object;
    if (mark.bytes == 0)
        return MEZZO_OK;
    MEZZO_TRY(new_object(root, key, &object));
    MEZZO_TRY(mz_json_set(object, "bytes", json_integer((json_int_t)mark.bytes)));
    return mz_json_set(object, "crc32c", json_integer((json_int_t)mark.crc32c));
}

static mezzo_status put_optimizer(json_t *root, const mezzo_optimizer *optimizer) {
    json_t *object;
    mz_opt_state state;
    if (optimizer == NULL)
        return MEZZO_OK;
    MEZZO_TRY(mz_optimizer_read_state(optimizer, &state));
    MEZZO_TRY(new_object(root, "optimizer", &object));
    MEZZO_TRY(mz_json_set(object, "kind", json_string(mz_optimizer_rest(optimizer)->kind->name)));
    MEZZO_TRY(mz_json_set(object, "matrices", json_string(mz_optimizer_matrices(optimizer))));
    return put_fields(object, optimizer_fields, MZ_COUNT(optimizer_fields), &state);
}

static mezzo_status put_scaler(json_t *root, mezzo_scaler *scaler) {
    json_t *object;
    mezzo_scaler_state state;
    if (scaler == NULL)
        return MEZZO_OK;
    MEZZO_TRY(mezzo_scaler_get_state(scaler, &state));
    MEZZO_TRY(new_object(root, "scaler", &object));
    return put_fields(object, scaler_fields, MZ_COUNT(scaler_fields), &state);
}

// Writes each tensor's format, steps, scale, history as bits, and counters.
enum { COUNTERS = 3 }; // saturated, in_a_row, changes
static mezzo_status put_scales(json_t *root, mezzo_params *params) {
    const int n = params != NULL ? params->scales.n : 0;
    json_t *object;
    if (n == 0)
        return MEZZO_OK;
    MEZZO_TRY(mz_scales_read(params->device, &params->scales));
    MEZZO_TRY(new_object(root, "scales", &object));
    for (int i = 0; i < n; i++) {
        const mz_scale_entry *e = &params->scales.host[i];
        json_t *list = json_array();
        MEZZO_TRY(mz_json_set(object, params->scales.names[i], list));
        json_array_append_new(list, json_string(mezzo_dtype_name((mezzo_dtype)e->dtype)));
        json_array_append_new(list, json_integer(e->n));
        json_array_append_new(list, json_real((double)e->scale));
        for (int k = 0; k < MZ_SCALE_HISTORY; k++)
            json_array_append_new(list, json_integer((json_int_t)e->history[k]));
        json_array_append_new(list, json_integer(e->saturated));
        json_array_append_new(list, json_integer(e->in_a_row));
        json_array_append_new(list, json_integer(e->changes));
        if (json_array_size(list) != 3 + MZ_SCALE_HISTORY + COUNTERS)
            return mz_fail(MEZZO_ERR_MEMORY, "no memory for the checkpoint's scales");
    }
    return MEZZO_OK;
}

static mezzo_status put_files(json_t *root, const mz_file_mark files[MZ_CHECKPOINT_FILES]) {
    json_t *list, *object;
    MEZZO_TRY(new_object(root, "files", &list));
    for (int i = 0; i < MZ_CHECKPOINT_FILES; i++) {
        if (!files[i].present)
            continue;
        MEZZO_TRY(new_object(list, mz_checkpoint_files[i], &object));
        MEZZO_TRY(mz_json_set(object, "bytes", json_integer((json_int_t)files[i].bytes)));
        MEZZO_TRY(mz_json_set(object, "crc32c", json_integer((json_int_t)files[i].crc)));
    }
    return MEZZO_OK;
}

static mezzo_status put_all(json_t *root, const mezzo_checkpoint *c, json_t *model,
                            const mz_file_mark files[MZ_CHECKPOINT_FILES]) {
    MEZZO_TRY(mz_json_set(root, "format", json_string(FORMAT)));
    MEZZO_TRY(mz_json_set(root, "version", json_integer(MZ_CHECKPOINT_VERSION)));
    MEZZO_TRY(mz_json_set(root, "step", json_integer(c->step)));
    MEZZO_TRY(mz_json_set(root, "seed", json_integer((json_int_t)c->seed)));
    MEZZO_TRY(mz_json_set(root, "batches", json_integer((json_int_t)c->batches)));
    MEZZO_TRY(mz_json_set(root, "packed", json_boolean(c->packed)));
    MEZZO_TRY(mz_json_set(root, c->val_sampled ? "sampled_val_loss" : "val_loss", mz_json_number(c->val_loss)));
    MEZZO_TRY(mz_json_set(root, c->val_sampled ? "best_sampled_val_loss" : "best_val_loss",
                          mz_json_number(c->best_val_loss)));
    MEZZO_TRY(mz_json_set(root, "precision", json_string(c->precision)));
    MEZZO_TRY(mz_json_set(root, "master", json_string(c->master)));
    MEZZO_TRY(mz_json_set(root, "moments", json_string(c->moments)));
    MEZZO_TRY(mz_json_set(root, "tokenizer", json_string(c->tokenizer)));
    MEZZO_TRY(put_mark(root, "data", c->data));
    MEZZO_TRY(put_mark(root, "validation", c->validation));
    MEZZO_TRY(put_model(root, c, model));
    MEZZO_TRY(put_optimizer(root, c->optimizer));
    MEZZO_TRY(put_scaler(root, c->scaler));
    MEZZO_TRY(put_scales(root, c->params));
    return put_files(root, files);
}

mezzo_status mz_state_save(const char *path, const mezzo_checkpoint *checkpoint,
                           const mz_file_mark files[MZ_CHECKPOINT_FILES], mz_written *written) {
    const char *description = checkpoint->model;
    MZ_SCOPED(mz_json_free_at) json_t *model = NULL;
    if (description[0] != '\0')
        MEZZO_TRY(mz_json_parse("the model's description", description, strlen(description), MZ_JSON_DEPTH, &model));
    MZ_SCOPED(mz_json_free_at) json_t *root = mz_json_new();
    MEZZO_TRY(root != NULL ? put_all(root, checkpoint, json_incref(model), files)
                           : mz_fail(MEZZO_ERR_MEMORY, "no memory for %s", path));
    return mz_json_save_sealed(path, root, written);
}

// --- reading -------------------------------------------------------------------------------------------------------
static mezzo_status check_format(const char *where, const json_t *root, bool sealed) {
    const char *format = "";
    int64_t version = 0;
    MEZZO_TRY(mz_json_get_string(where, root, "format", &format));
    if (strcmp(format, FORMAT) != 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: not a checkpoint of mezzo (format %s)", where, mz_quote(format).text);
    MEZZO_TRY(mz_json_get_int(where, root, "version", 1, INT32_MAX, &version));
    if (version > MZ_CHECKPOINT_VERSION)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: format version %lld is newer than this mezzo's, %d: use a newer mezzo",
                       where, (long long)version, MZ_CHECKPOINT_VERSION);
    if (version >= 2 && !sealed)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: its checksum is missing: the file was changed; use another checkpoint",
                       where);
    return MEZZO_OK;
}

static mezzo_status get_files(const char *where, const json_t *root, mz_checkpoint_state *state) {
    json_t *list, *object;
    MEZZO_TRY(mz_json_get_object(where, root, "files", &list));
    for (int i = 0; i < MZ_CHECKPOINT_FILES; i++) {
        int64_t bytes = 0, crc = 0;
        if (json_object_get(list, mz_checkpoint_files[i]) == NULL)
            continue;
        MEZZO_TRY(mz_json_get_object(where, list, mz_checkpoint_files[i], &object));
        MEZZO_TRY(mz_json_get_int(where, object, "bytes", 0, INT64_MAX, &bytes));
        MEZZO_TRY(mz_json_get_int(where, object, "crc32c", 0, UINT32_MAX, &crc));
        state->files[i] = (mz_file_mark){true, (uint64_t)bytes, (uint32_t)crc};
    }
    return MEZZO_OK;
}

// Reads a mark of the data, which checkpoints of older versions, and of models without data, lack.
static mezzo_status get_mark(const char *where, const json_t *root, const char *key, mezzo_data_mark *out) {
    int64_t bytes = 0, crc = 0;
    json_t *object;
    *out = (mezzo_data_mark){0};
    if (json_object_get(root, key) == NULL)
        return MEZZO_OK;
    MEZZO_TRY(mz_json_get_object(where, root, key, &object));
    MEZZO_TRY(mz_json_get_int(where, object, "bytes", 1, INT64_MAX, &bytes));
    MEZZO_TRY(mz_json_get_int(where, object, "crc32c", 0, UINT32_MAX, &crc));
    *out = (mezzo_data_mark){(uint64_t)bytes, (uint32_t)crc};
    return MEZZO_OK;
}

// Reads the model's description as text; the model's maker reads it where the model is built.
static mezzo_status get_model(const char *where, const json_t *root, mezzo_checkpoint *c) {
    json_t *object;
    char graph[24] = "", *end = graph;
    c->model[0] = '\0';
    c->graph = 0;
    if (json_object_get(root, "model") == NULL)
        return MEZZO_OK;
    MEZZO_TRY(mz_json_get_object(where, root, "model", &object));
    if (json_object_get(object, "graph") != NULL) { // older checkpoints have none
        MEZZO_TRY(copy_text(where, object, "graph", graph, sizeof graph));
        c->graph = strtoull(graph, &end, 16);
        if (*end != '\0' || strlen(graph) != 16)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'graph' is %s, not 16 hexadecimal digits", where,
                           mz_quote(graph).text);
        json_object_del(object, "graph");
    }
    return mz_context(mz_description_of(object, c->model), "%s: ", where);
}

static mezzo_status get_all(const char *where, const json_t *root, bool sealed, mezzo_checkpoint *c,
                            mz_checkpoint_state *state) {
    int64_t seed = 0, batches = 0;
    json_t *object;
    MEZZO_TRY(check_format(where, root, sealed));
    MEZZO_TRY(mz_json_get_int(where, root, "step", 0, MZ_CHECKPOINT_MAX_STEP, &c->step));
    MEZZO_TRY(mz_json_get_int(where, root, "seed", INT64_MIN, INT64_MAX, &seed));
    MEZZO_TRY(mz_json_get_int(where, root, "batches", 0, INT64_MAX, &batches));
    c->seed = (uint64_t)seed;
    c->batches = (uint64_t)batches;
    c->packed = false;
    if (json_object_get(root, "packed") != NULL) // older checkpoints have none
        MEZZO_TRY(mz_json_get_bool(where, root, "packed", &c->packed));
    MEZZO_TRY(mz_json_get_validation(where, root, "val_loss", "sampled_val_loss", &c->val_loss, &c->val_sampled));
    MEZZO_TRY(
        mz_json_get_number(where, root, c->val_sampled ? "best_sampled_val_loss" : "best_val_loss", &c->best_val_loss));
    MEZZO_TRY(copy_text(where, root, "precision", c->precision, sizeof c->precision));
    if (json_object_get(root, "master") != NULL)
        MEZZO_TRY(copy_text(where, root, "master", c->master, sizeof c->master));
    if (json_object_get(root, "moments") != NULL)
        MEZZO_TRY(copy_text(where, root, "moments", c->moments, sizeof c->moments));
    MEZZO_TRY(copy_text(where, root, "tokenizer", c->tokenizer, sizeof c->tokenizer));
    if (!mz_checkpoint_plain_name(c->tokenizer))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'tokenizer' is %s, not a file name in the run folder", where,
                       mz_quote(c->tokenizer).text);
    MEZZO_TRY(get_mark(where, root, "data", &c->data));
    MEZZO_TRY(get_mark(where, root, "validation", &c->validation));
    MEZZO_TRY(get_model(where, root, c));
    MEZZO_TRY(get_files(where, root, state));
    c->has_ema = state->files[2].present;
    if (json_object_get(root, "optimizer") != NULL) {
        state->has_optimizer = true;
        MEZZO_TRY(mz_json_get_object(where, root, "optimizer", &object));
        MEZZO_TRY(copy_text(where, object, "kind", state->optimizer_kind, sizeof state->optimizer_kind));
        if (json_object_get(object, "matrices") != NULL)
            MEZZO_TRY(copy_text(where, object, "matrices", state->matrices_kind, sizeof state->matrices_kind));
        MEZZO_TRY(get_fields(where, object, optimizer_fields, MZ_COUNT(optimizer_fields), &state->optimizer));
    }
    if (json_object_get(root, "scaler") != NULL) {
        state->has_scaler = true;
        MEZZO_TRY(mz_json_get_object(where, root, "scaler", &object));
        MEZZO_TRY(get_fields(where, object, scaler_fields, MZ_COUNT(scaler_fields), &state->scaler));
    }
    return MEZZO_OK;
}

mezzo_status mz_state_load(const char *path, mezzo_checkpoint *checkpoint, mz_checkpoint_state *state) {
    json_t *root;
    mezzo_checkpoint read = *checkpoint; // a copy, so that an error leaves the caller's unchanged
    *state = (mz_checkpoint_state){0};
    bool sealed;
    MEZZO_TRY(mz_json_load_sealed(path, MZ_STATE_MAX_BYTES, &root, &sealed));
    mezzo_status status = get_all(path, root, sealed, &read, state);
    json_decref(root);
    if (status == MEZZO_OK)
        *checkpoint = read;
    return status;
}

// Reads counters, which older checkpoints lack; they decide nothing.
static bool get_counters(const json_t *list, mz_scale_entry *e) {
    int32_t *const counters[COUNTERS] = {&e->saturated, &e->in_a_row, &e->changes};
    bool good = true;
    for (size_t k = 0; k < COUNTERS && json_array_size(list) > 3 + MZ_SCALE_HISTORY; k++) {
        const json_t *n = json_array_get(list, 3 + MZ_SCALE_HISTORY + k);
        good = good && json_is_integer(n) && json_integer_value(n) >= 0 && json_integer_value(n) <= INT32_MAX;
        *counters[k] = good ? (int32_t)json_integer_value(n) : 0;
    }
    return good;
}

static mezzo_status get_entry(const char *where, const char *name, const json_t *list, mz_scale_entry *e) {
    const json_t *n = json_array_get(list, 1), *scale = json_array_get(list, 2);
    const char *format = json_string_value(json_array_get(list, 0));
    const mezzo_dtype formats[] = {MEZZO_F8E4M3, MEZZO_F8E5M2};
    const size_t length = json_array_size(list);
    bool good = (length == 3 + MZ_SCALE_HISTORY || length == 3 + MZ_SCALE_HISTORY + COUNTERS) && format != NULL &&
                json_is_integer(n) && json_integer_value(n) >= 0 && json_integer_value(n) <= INT32_MAX &&
                json_is_real(scale) && json_real_value(scale) >= 0x1p-126 && json_real_value(scale) <= 0x1p127;
    *e = (mz_scale_entry){.dtype = -1};
    for (size_t i = 0; i < MZ_COUNT(formats) && good; i++)
        if (strcmp(format, mezzo_dtype_name(formats[i])) == 0)
            e->dtype = (int32_t)formats[i];
    for (int k = 0; k < MZ_SCALE_HISTORY && good; k++) {
        const json_t *bits = json_array_get(list, 3 + (size_t)k);
        good = json_is_integer(bits) && json_integer_value(bits) >= 0 && json_integer_value(bits) < 0x7F800000;
        e->history[k] = good ? (uint32_t)json_integer_value(bits) : 0;
    }
    if (!good || e->dtype < 0 || !get_counters(list, e))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: scales: %s is no scale with its history", where, mz_quote(name).text);
    e->n = (int32_t)json_integer_value(n);
    e->scale = (float)json_real_value(scale);
    return MEZZO_OK;
}

// Reads every entry of the file, or only checks it and adds its row to the table.
static mezzo_status get_scales(const char *path, json_t *object, mezzo_params *params, bool read) {
    const char *name;
    json_t *list;
    json_object_foreach(object, name, list) {
        mz_scale_entry entry;
        int index;
        MEZZO_TRY(get_entry(path, name, list, &entry));
        MEZZO_TRY(mz_scales_find(params->device, &params->scales, name, (mezzo_dtype)entry.dtype, &index));
        if (read)
            params->scales.host[index] = entry;
    }
    return MEZZO_OK;
}

mezzo_status mz_state_load_scales(const char *path, mezzo_params *params) {
    MZ_SCOPED(mz_json_free_at) json_t *root = NULL;
    json_t *object;
    bool sealed;
    MEZZO_TRY(mz_json_load_sealed(path, MZ_STATE_MAX_BYTES, &root, &sealed));
    object = json_object_get(root, "scales");
    MEZZO_TRY(get_scales(path, object, params, false));
    MEZZO_TRY(mz_scales_read(params->device, &params->scales));
    for (int i = 0; i < params->scales.n; i++)
        params->scales.host[i] = (mz_scale_entry){.scale = 1, .dtype = params->scales.host[i].dtype};
    return get_scales(path, object, params, true);
}

// --- comparing -----------------------------------------------------------------------------------------------------
static bool same_value(const json_t *a, const json_t *b) {
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b) : json_equal(a, b);
}

static void print_value(const json_t *value, char out[40]) {
    char *text = value != NULL ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)) : NULL;
    snprintf(out, 40, "%.39s", text != NULL ? text : "nothing");
    free(text);
}

static void compare_values(const json_t *saved, const json_t *here, const char *name, mz_checkpoint_difference *d) {
    const char *key;
    json_t *value;
    size_t i;
    char member[sizeof d->name];
    if (json_is_object(here) && json_is_object(saved)) {
        json_object_foreach((json_t *)(uintptr_t)here, key, value) {
            snprintf(member, sizeof member, "%.90s%s%.100s", name, *name != '\0' ? "." : "", key);
            compare_values(json_object_get(saved, key), value, member, d);
        }
        return;
    }
    if (json_is_array(here) && json_array_size(here) == json_array_size(saved)) {
        json_array_foreach(here, i, value) {
            snprintf(member, sizeof member, "%.160s[%zu]", name, i);
            compare_values(json_array_get(saved, i), value, member, d);
        }
        return;
    }
    d->compared++;
    if (same_value(saved, here) || d->different++ > 0)
        return;
    snprintf(d->file, sizeof d->file, "state.json");
    snprintf(d->name, sizeof d->name, "%s", name);
    d->element = -1;
    print_value(saved, d->saved);
    print_value(here, d->here);
}

mezzo_status mz_state_compare(const char *path, const mezzo_checkpoint *c, mz_checkpoint_difference *out) {
    static const char *const apart[] = {
        "format",    "version", "val_loss",   "best_val_loss", "sampled_val_loss", "best_sampled_val_loss", "master",
        "tokenizer", "data",    "validation", "files"};
    const mz_file_mark none[MZ_CHECKPOINT_FILES] = {{0}};
    json_t *saved, *here = mz_json_new();
    bool sealed;
    if (here == NULL)
        return mz_fail(MEZZO_ERR_MEMORY, "no memory to compare %s", path);
    mezzo_status status = put_all(here, c, NULL, none);
    if (status == MEZZO_OK)
        status = mz_json_load_sealed(path, MZ_STATE_MAX_BYTES, &saved, &sealed);
    if (status != MEZZO_OK) {
        json_decref(here);
        return status;
    }
    for (size_t i = 0; i < MZ_COUNT(apart); i++)
        json_object_del(here, apart[i]);
    compare_values(saved, here, "", out);
    json_decref(saved);
    json_decref(here);
    return MEZZO_OK;
}

// --- run.json ------------------------------------------------------------------------------------------------------
mezzo_status mz_run_save_facts(const char *path, const mz_checkpoint_run *run) {
    mz_written written;
    MZ_SCOPED(mz_json_free_at) json_t *root = mz_json_new();
    if (root == NULL)
        return mz_fail(MEZZO_ERR_MEMORY, "no memory for %s", path);
    MEZZO_TRY(mz_json_set(root, "version", json_string(mezzo_version())));
    MEZZO_TRY(mz_json_set(root, "device", json_string(run->device)));
    MEZZO_TRY(mz_json_set(root, "ranks", json_integer(run->ranks)));
    MEZZO_TRY(mz_json_set(root, "configuration", json_string(run->configuration)));
    MEZZO_TRY(mz_json_save_sealed(path, root, &written));
    return mz_file_read_back(path, written);
}

mezzo_status mz_run_load_facts(const char *path, mz_checkpoint_run *out) {
    MZ_SCOPED(mz_json_free_at) json_t *root = NULL;
    bool sealed;
    int64_t ranks = 0;
    const char *text = "";
    *out = (mz_checkpoint_run){0};
    if (!mz_path_exists(path))
        return MEZZO_OK;
    MEZZO_TRY(mz_json_load_sealed(path, MZ_STATE_MAX_BYTES, &root, &sealed));
    if (!sealed)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: its checksum is missing", path);
    MEZZO_TRY(copy_text(path, root, "version", out->version, sizeof out->version));
    MEZZO_TRY(copy_text(path, root, "device", out->device, sizeof out->device));
    MEZZO_TRY(mz_json_get_int(path, root, "ranks", 1, INT32_MAX, &ranks));
    MEZZO_TRY(mz_json_get_string(path, root, "configuration", &text));
    out->ranks = (int)ranks;
    out->configuration = mz_strdup(text);
    return out->configuration != NULL ? MEZZO_OK : mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
}
