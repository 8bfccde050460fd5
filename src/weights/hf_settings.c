// Keeps settings of a Hugging Face folder that a run does not use, such as token ids; an export gives them back.
#include "checkpoint/checkpoint.h"
#include "io/file.h"
#include "io/json.h"
#include "weights/hf.h"

#define MOST_BYTES ((size_t)16 << 20)

// Loads FOLDER/NAME as JSON; *out NULL where there is no such file.
static mezzo_status load(const char *folder, const char *name, json_t **out) {
    *out = NULL;
    const mz_path path = mz_path_of("%s/%s", folder, name);
    return mz_path_exists(path.text) ? mz_json_load(path.text, MOST_BYTES, out) : MEZZO_OK;
}

// Copies FROM/generation_config.json to TO byte for byte, where it exists.
static mezzo_status copy_generation(const char *from, const char *to) {
    return mz_file_copy(mz_path_of("%s/generation_config.json", from).text,
                        mz_path_of("%s/generation_config.json", to).text, MOST_BYTES);
}

mezzo_status mz_hf_settings_keep(const mz_hf_family *family, const char *folder, const char *run) {
    MZ_SCOPED(mz_json_free_at) json_t *config = NULL, *kept = mz_json_new();
    json_t *value;
    const char *key;
    if (kept == NULL)
        MEZZO_TRY(mz_fail(MEZZO_ERR_MEMORY, "no memory for %s", MZ_HF_SETTINGS));
    MEZZO_TRY(load(folder, "config.json", &config));
    json_object_foreach(config, key, value) {
        if (json_is_null(value) || !mz_hf_is_kept(family->model_type, key))
            continue;
        MEZZO_TRY(mz_json_refuse_marks(folder, key, value));
        MEZZO_TRY(mz_json_set(kept, key, json_incref(value)));
    }
    MEZZO_TRY(mz_hf_settings_save(kept, run));
    return copy_generation(folder, run);
}

mezzo_status mz_hf_settings_set(const char *run, json_t *config) {
    MZ_SCOPED(mz_json_free_at) json_t *ids = NULL;
    json_t *value;
    const char *key;
    MEZZO_TRY(load(run, MZ_HF_SETTINGS, &ids));
    json_object_foreach(ids, key, value) {
        MEZZO_TRY(mz_json_set(config, key, json_incref(value)));
    }
    return MEZZO_OK;
}

mezzo_status mz_hf_settings_give(const char *run, json_t *config, const char *folder) {
    MEZZO_TRY(mz_hf_settings_set(run, config));
    return copy_generation(run, folder);
}

mezzo_status mz_hf_settings_save(const json_t *settings, const char *run) {
    return json_object_size(settings) == 0 ? MEZZO_OK
                                           : mz_json_save(mz_path_of("%s/" MZ_HF_SETTINGS, run).text, settings);
}
