// What the architectures of Hugging Face folders share: the list of them, and settings of config.json.
#include <stdarg.h>

#include "io/json.h"
#include "io/quote.h"
#include "checkpoint/checkpoint.h"
#include "weights/hf.h"

static const mz_hf_family *const not_decoders[] = {&mz_hf_gpt2, &mz_hf_nanogpt, &mz_hf_autoencoder};

// Number i of all; NULL: past the last.
static const mz_hf_family *family_at(size_t i) {
    return i < mz_hf_decoder_count                            ? &mz_hf_decoders[i]
           : i - mz_hf_decoder_count < MZ_COUNT(not_decoders) ? not_decoders[i - mz_hf_decoder_count]
                                                              : NULL;
}

const mz_hf_family *mz_hf_by_type(const char *model_type, const char **list) {
    static const char known[] = "gpt2, nanogpt, llama, mistral, qwen2, qwen3, smollm3, phi3, olmo2, gpt_neox, glm4_moe "
                                "or diffusers' AutoencoderKL";
    const mz_hf_family *family;
    *list = known;
    for (size_t i = 0; (family = family_at(i)) != NULL; i++)
        if (strcmp(family->model_type, model_type) == 0)
            return family;
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
    const mz_hf_family *family;
    for (size_t i = 0; (family = family_at(i)) != NULL; i++)
        if (strcmp(family->model, model) == 0)
            return family;
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
// `*out` of one place, which has to agree with what another place said.
static mezzo_status read_rope_number(const char *where, const json_t *from, const char *key, bool *said, double *out) {
    double value;
    if (json_object_get(from, key) == NULL)
        return MEZZO_OK;
    MEZZO_TRY(mz_json_get_double(where, from, key, &value));
    if (*said && value != *out)
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: key '%s' is %g in one place and %g in another, which versions of transformers read "
                       "differently: keep one",
                       where, key, *out, value);
    *said = true;
    *out = value;
    return MEZZO_OK;
}

static mezzo_status check_rope_keys(const char *where, const char *name, const json_t *rope) {
    static const char *const known[] = {"rope_theta", "partial_rotary_factor"};
    json_t *value;
    const char *key;
    if (!json_is_object(rope))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is not an object", where, name);
    json_object_foreach((json_t *)(uintptr_t)rope, key, value) {
        const bool type = strcmp(key, "rope_type") == 0 || strcmp(key, "type") == 0;
        const char *text = json_string_value(value);
        if (type && (text == NULL || strcmp(text, "default") != 0))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' of '%s' is %s; only 'default' is supported", where, key,
                           name, text != NULL ? mz_quote(text).text : "not a text");
        if (!type && strcmp(key, known[0]) != 0 && strcmp(key, known[1]) != 0 && !json_is_null(value))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key %s of '%s' is not supported: it belongs to scaled positions",
                           where, mz_quote(key).text, name);
    }
    return MEZZO_OK;
}

mezzo_status mz_hf_read_rope(const char *where, const json_t *config, double *theta, double *part) {
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    bool theta_said = false, part_said = false;
    double whole = 1, *share = part != NULL ? part : &whole;
    MEZZO_TRY(read_rope_number(where, config, "rope_theta", &theta_said, theta));
    MEZZO_TRY(read_rope_number(where, config, "rotary_emb_base", &theta_said, theta)); // GPT-NeoX's
    MEZZO_TRY(read_rope_number(where, config, "partial_rotary_factor", &part_said, share));
    MEZZO_TRY(read_rope_number(where, config, "rotary_pct", &part_said, share));
    for (size_t i = 0; i < MZ_COUNT(names); i++) {
        const json_t *rope = json_object_get(config, names[i]);
        if (rope == NULL || json_is_null(rope))
            continue;
        MEZZO_TRY(check_rope_keys(where, names[i], rope));
        MEZZO_TRY(read_rope_number(where, rope, "rope_theta", &theta_said, theta));
        MEZZO_TRY(read_rope_number(where, rope, "partial_rotary_factor", &part_said, share));
    }
    return whole == 1
               ? MEZZO_OK
               : mz_fail(MEZZO_ERR_FORMAT, "%s: key 'partial_rotary_factor' is %g; only 1 is supported", where, whole);
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
