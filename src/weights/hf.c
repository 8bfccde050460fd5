// What the architectures of Hugging Face folders share: the list of them, and settings of config.json.
#include <stdarg.h>

#include "io/json.h"
#include "io/quote.h"
#include "checkpoint/checkpoint.h"
#include "weights/hf.h"

static const mz_hf_family *const families[] = {&mz_hf_gpt2, &mz_hf_nanogpt, &mz_hf_glm4_moe, &mz_hf_llama,
                                               &mz_hf_autoencoder};

const mz_hf_family *mz_hf_by_type(const char *model_type, const char **list) {
    *list = "gpt2, nanogpt, glm4_moe, llama or diffusers' AutoencoderKL";
    for (size_t i = 0; i < MZ_COUNT(families); i++)
        if (strcmp(families[i]->model_type, model_type) == 0)
            return families[i];
    return NULL;
}

// What is asked for and is another model than any of ours, in every configuration: docs/models.md has the comparison.
const char *mz_hf_differs(const char *type) {
    static const struct {
        const char *type, *how;
    } others[] = {{"UNet2DConditionModel",
                   "its blocks attend to a sequence by transformers or see no condition, those of "
                   "radio_unet see a picture at every level"},
                  {"UNet2DModel", "it has no condition, radio_unet always has one"}};
    for (size_t i = 0; i < MZ_COUNT(others); i++)
        if (strcmp(others[i].type, type) == 0)
            return others[i].how;
    return NULL;
}

const mz_hf_family *mz_hf_by_model(const char *model) {
    for (size_t i = 0; i < MZ_COUNT(families); i++)
        if (strcmp(families[i]->model, model) == 0)
            return families[i];
    return NULL;
}

mezzo_status mz_hf_add_part(mz_hf_parts *parts, int64_t rows, const char *fmt, ...) {
    MEZZO_TRY(MZ_RESERVE(parts->items, parts->cap, parts->count + 1));
    mz_hf_part *part = &parts->items[parts->count++];
    *part = (mz_hf_part){.rows = rows};
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(part->name, sizeof part->name, fmt, args);
    va_end(args);
    return n >= 0 && (size_t)n < sizeof part->name ? MEZZO_OK
                                                   : mz_fail(MEZZO_ERR_INVALID, "%.100s…: a name too long", part->name);
}

// --- config.json ---------------------------------------------------------------------------------------------------
static const json_t *setting(const json_t *config, const char *key) {
    const json_t *value = json_object_get(config, key);
    return json_is_null(value) ? NULL : value;
}

mezzo_status mz_hf_expect_bool(const char *where, const json_t *config, const char *key, bool want) {
    const json_t *value = setting(config, key);
    if (value == NULL || (json_is_boolean(value) && json_is_true(value) == want))
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is not %s, which is all that is computed here", where, key,
                   want ? "true" : "false");
}

mezzo_status mz_hf_expect_text(const char *where, const json_t *config, const char *key, const char *want) {
    const json_t *value = setting(config, key);
    if (value == NULL || (json_is_string(value) && strcmp(json_string_value(value), want) == 0))
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is %s; %s is computed here", where, key,
                   json_is_string(value) ? mz_quote(json_string_value(value)).text : "not a text", want);
}

mezzo_status mz_hf_get_int(const char *where, const json_t *config, const char *key, int64_t *out) {
    return setting(config, key) == NULL ? MEZZO_OK : mz_json_get_int(where, config, key, 0, INT32_MAX, out);
}

mezzo_status mz_hf_get_double(const char *where, const json_t *config, const char *key, double *out) {
    return setting(config, key) == NULL ? MEZZO_OK : mz_json_get_double(where, config, key, out);
}

mezzo_status mz_hf_get_bool(const char *where, const json_t *config, const char *key, bool *out) {
    return setting(config, key) == NULL ? MEZZO_OK : mz_json_get_bool(where, config, key, out);
}

mezzo_status mz_hf_read_rope(const char *where, const json_t *config, double *theta, double *part) {
    const json_t *rope = setting(config, "rope_parameters"), *scaling = setting(config, "rope_scaling");
    const json_t *from[] = {config, rope};
    if (scaling != NULL)
        MEZZO_TRY(
            mz_hf_expect_text(where, scaling, setting(scaling, "type") != NULL ? "type" : "rope_type", "default"));
    if (rope != NULL)
        MEZZO_TRY(mz_hf_expect_text(where, rope, "rope_type", "default"));
    for (size_t i = 0; i < MZ_COUNT(from); i++) {
        MEZZO_TRY(mz_hf_get_double(where, from[i], "rope_theta", theta));
        if (part != NULL)
            MEZZO_TRY(mz_hf_get_double(where, from[i], "partial_rotary_factor", part));
    }
    return MEZZO_OK;
}

mezzo_status mz_hf_put(json_t *config, const mz_hf_entry *entries, size_t n) {
    mezzo_status status = MEZZO_OK;
    for (size_t i = 0; i < n; i++) {
        mezzo_status one = mz_json_set(config, entries[i].key, entries[i].value);
        status = status == MEZZO_OK ? one : status;
    }
    return status;
}

mezzo_status mz_hf_write_rope(json_t *config, double theta, double part) {
    json_t *rope = json_object();
    mezzo_status status = mz_hf_put(
        rope, (const mz_hf_entry[]){{"rope_type", json_string("default")}, {"rope_theta", json_real(theta)}}, 2);
    if (status == MEZZO_OK && part > 0)
        status = mz_json_set(rope, "partial_rotary_factor", json_real(part));
    if (status != MEZZO_OK) {
        json_decref(rope);
        return status;
    }
    MEZZO_TRY(mz_json_set(config, "rope_parameters", rope));
    MEZZO_TRY(mz_json_set(config, "rope_theta", json_real(theta)));
    return part > 0 ? mz_json_set(config, "partial_rotary_factor", json_real(part)) : MEZZO_OK;
}
