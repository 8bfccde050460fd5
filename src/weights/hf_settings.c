// Token ids and generation settings of a Hugging Face folder: a run keeps them, an export gives them back.
#include "checkpoint/checkpoint.h"
#include "io/file.h"
#include "io/json.h"
#include "weights/hf.h"

#define MOST_BYTES ((size_t)16 << 20)

static const char *const token_ids[] = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"};

// FOLDER/NAME as JSON; *out NULL where there is no such file.
static mezzo_status load(const char *folder, const char *name, json_t **out) {
    *out = NULL;
    char *path = mz_format("%s/%s", folder, name);
    if (path == NULL)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = mz_path_exists(path) ? mz_json_load(path, MOST_BYTES, out) : MEZZO_OK;
    mz_free(path);
    return status;
}

// FROM/generation_config.json to TO, byte for byte, where there is one.
static mezzo_status copy_generation(const char *from, const char *to) {
    char *bytes = NULL, *source = mz_format("%s/generation_config.json", from);
    char *target = mz_format("%s/generation_config.json", to);
    size_t n;
    mezzo_status status = source != NULL && target != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK && mz_path_exists(source)) {
        status = mz_file_read(source, MOST_BYTES, &bytes, &n);
        if (status == MEZZO_OK)
            status = mz_file_write_atomic(target, bytes, n);
    }
    mz_free(bytes);
    mz_free(source);
    mz_free(target);
    return status;
}

mezzo_status mz_hf_settings_keep(const char *folder, const char *run) {
    mezzo_status status = MEZZO_OK;
    json_t *config = NULL, *ids = mz_json_new();
    char *path = mz_format("%s/" MZ_HF_SETTINGS, run);
    if (ids == NULL || path == NULL)
        MEZZO_TRY_GOTO(status, mz_fail(MEZZO_ERR_MEMORY, "no memory for %s", MZ_HF_SETTINGS));
    MEZZO_TRY_GOTO(status, load(folder, "config.json", &config));
    for (size_t i = 0; i < MZ_COUNT(token_ids); i++) {
        json_t *id = json_object_get(config, token_ids[i]);
        MEZZO_TRY_GOTO(status, mz_json_refuse_marks(folder, token_ids[i], id));
        if (id != NULL && !json_is_null(id))
            MEZZO_TRY_GOTO(status, mz_json_set(ids, token_ids[i], json_incref(id)));
    }
    if (json_object_size(ids) > 0)
        MEZZO_TRY_GOTO(status, mz_json_save(path, ids));
    status = copy_generation(folder, run);
fail:
    mz_free(path);
    json_decref(config);
    json_decref(ids);
    return status;
}

mezzo_status mz_hf_settings_give(const char *run, json_t *config, const char *folder) {
    json_t *ids, *value;
    const char *key;
    MEZZO_TRY(load(run, MZ_HF_SETTINGS, &ids));
    mezzo_status status = MEZZO_OK;
    json_object_foreach(ids, key, value) {
        MEZZO_TRY_GOTO(status, mz_json_set(config, key, json_incref(value)));
    }
    status = copy_generation(run, folder);
fail:
    json_decref(ids);
    return status;
}
