// Writes a model's description as JSON, which a checkpoint keeps.
#include <stdlib.h>

#include "checkpoint/checkpoint.h"
#include "io/json.h"

static mezzo_status put_fact(void *user, const mz_fact *fact) {
    if (fact->type == MZ_KEY_LIST && fact->list.at[0] == 0) // a missing key is 0, too
        return MEZZO_OK;
    return mz_json_set(user, fact->key,
                       fact->text != NULL          ? json_string(fact->text)
                       : fact->type == MZ_KEY_LIST ? mz_json_floats(fact->list.at, MEZZO_LIST)
                       : fact->type == MZ_KEY_INT  ? json_integer((json_int_t)fact->number)
                       : fact->type == MZ_KEY_BOOL ? json_boolean(fact->number != 0)
                                                   : mz_json_number(fact->number));
}

mezzo_status mz_description_write(const mz_model *model, char out[MEZZO_DESCRIPTION]) {
    MZ_SCOPED(mz_json_free_at) json_t *object = mz_json_new();
    if (object == NULL)
        return mz_fail(MEZZO_ERR_MEMORY, "no memory for a model's description");
    MEZZO_TRY(mz_model_describe(model, put_fact, object));
    return mz_description_of(object, out);
}

mezzo_status mz_description_of(const json_t *object, char out[MEZZO_DESCRIPTION]) {
    char *text;
    MEZZO_TRY(mz_json_dump(object, JSON_COMPACT, &text));
    const bool fits = strlen(text) < MEZZO_DESCRIPTION;
    if (fits)
        memcpy(out, text, strlen(text) + 1);
    free(text);
    return fits ? MEZZO_OK : mz_fail(MEZZO_ERR_FORMAT, "key 'model' is longer than %d bytes", MEZZO_DESCRIPTION - 1);
}

typedef struct reading {
    const char *where;
    const json_t *object;
} reading;

static mezzo_status find_fact(void *user, bool is_text, mz_fact *fact, bool *found) {
    const reading *r = user;
    int64_t integer = 0;
    bool truth = false;
    *found = json_object_get(r->object, fact->key) != NULL;
    if (!*found)
        return MEZZO_OK;
    if (is_text)
        return mz_json_get_string(r->where, r->object, fact->key, &fact->text);
    if (fact->type == MZ_KEY_LIST)
        return mz_json_get_floats(r->where, r->object, fact->key, MEZZO_LIST, fact->list.at);
    if (fact->type == MZ_KEY_FLOAT)
        return mz_json_get_number(r->where, r->object, fact->key, &fact->number);
    if (fact->type == MZ_KEY_INT)
        MEZZO_TRY(mz_json_get_int(r->where, r->object, fact->key, -(INT64_C(1) << 53), INT64_C(1) << 53, &integer));
    else
        MEZZO_TRY(mz_json_get_bool(r->where, r->object, fact->key, &truth));
    fact->number = (double)integer + (double)truth;
    return MEZZO_OK;
}

// Reads a description; `where` is its file.
static mezzo_status read_text(const char *where, const char *description, const char *folder, mz_model *out) {
    json_t *object = NULL;
    MEZZO_TRY(mz_json_parse(where, description, strlen(description), MZ_JSON_DEPTH, &object));
    mezzo_status status = mz_model_read(find_fact, &(reading){where, object}, folder, out);
    json_decref(object);
    return status == MEZZO_ERR_INVALID ? mz_context(status, "%s", where)
                                       : status; // messages of other errors name the file already
}

// Returns RUN of RUN/checkpoints/step-…, which the caller frees; of another path, the folder above the checkpoint.
static char *run_of(const char *folder) {
    size_t n = strlen(folder);
    for (int i = 0; i < 2; i++) {
        while (n > 0 && folder[n - 1] != '/')
            n--;
        if (n < 2)
            return mz_format("%s/../..", folder);
        n--;
    }
    return mz_format("%.*s", (int)n, folder);
}

mezzo_status mz_description_read(const char *folder, const char *description, mz_model *out) {
    char *where = mz_format("%s/state.json", folder), *run = run_of(folder);
    mezzo_status status =
        where == NULL || run == NULL ? MEZZO_ERR_MEMORY
        : description[0] != '\0'
            ? read_text(where, description, run, out)
            : mz_fail(MEZZO_ERR_FORMAT, "%s describes no model: a training run did not write it", where);
    MZ_FREE(where, run);
    return status;
}

// --- the public calls ----------------------------------------------------------------------------------------------
mezzo_status mezzo_model_describe(const mezzo_model_config *config, char *out, size_t size) {
    char text[MEZZO_DESCRIPTION];
    mz_model model;
    MZ_REQUIRE(config, out);
    MEZZO_TRY(mz_model_of(config, &model));
    MEZZO_TRY(mz_description_write(&model, text));
    if (strlen(text) >= size)
        return mz_fail(MEZZO_ERR_INVALID, "a description of %zu bytes does not fit into %zu: use MEZZO_DESCRIPTION",
                       strlen(text), size);
    memcpy(out, text, strlen(text) + 1);
    return MEZZO_OK;
}

mezzo_status mezzo_model_parse(const char *description, mezzo_model_config *out) {
    mz_model model;
    MZ_REQUIRE(description, out);
    MEZZO_TRY(read_text("the description", description, NULL, &model));
    *out = model.config;
    return MEZZO_OK;
}
