// Holds what the architectures of Hugging Face folders share: the list of them, and settings of config.json.
#include <stdarg.h>
#include <stddef.h>

#include "io/json.h"
#include "io/quote.h"
#include "checkpoint/checkpoint.h"
#include "models/decoder.h"
#include "weights/hf.h"

static const mz_hf_family *const not_decoders[] = {&mz_hf_gpt2, &mz_hf_nanogpt, &mz_hf_autoencoder};

// Returns family i of all; NULL after the last.
static const mz_hf_family *family_at(size_t i) {
    return i < mz_hf_decoder_count                            ? &mz_hf_decoders[i]
           : i - mz_hf_decoder_count < MZ_COUNT(not_decoders) ? not_decoders[i - mz_hf_decoder_count]
                                                              : NULL;
}

const mz_hf_family *mz_hf_by_type(const char *model_type, const char **list) {
    static _Thread_local char known[512];
    const mz_hf_family *family, *before = NULL;
    size_t n = 0;
    for (size_t i = 0; (family = family_at(i)) != NULL; before = family, i++) {
        const char *between = i == 0 ? "" : family_at(i + 1) != NULL ? ", " : " or diffusers' ";
        if (strcmp(family->model_type, model_type) == 0)
            return family;
        if (before == NULL || strcmp(before->model_type, family->model_type) != 0)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", between, family->model_type);
    }
    *list = known;
    return NULL;
}

// Returns how a model type differs from all of Mezzo's families in every configuration; docs/models.md has the
// comparison.
const char *mz_hf_differs(const char *type) {
    static const struct {
        const char *type, *how;
    } others[] = {{"UNet2DConditionModel",
                   "its blocks attend to a sequence by transformers or see no condition, those of "
                   "radio_unet see a picture at every level"},
                  {"UNet2DModel", "it has no condition, radio_unet always has one"}};
    const size_t i = MZ_INDEX(others, MZ_COUNT(others), type, type);
    return i < MZ_COUNT(others) ? others[i].how : NULL;
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
// Reads a number that several keys may give; all that do must agree.
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

// The types of scaled positions, and to which of them a key belongs.
enum { LINEAR = 1 << MZ_ROPE_LINEAR, LLAMA3 = 1 << MZ_ROPE_LLAMA3, YARN = 1 << MZ_ROPE_YARN, LONG = 1 << MZ_ROPE_LONG };
static const char *const rope_types[] = {[MZ_ROPE_NONE] = "default",
                                         [MZ_ROPE_LINEAR] = "linear",
                                         [MZ_ROPE_LLAMA3] = "llama3",
                                         [MZ_ROPE_YARN] = "yarn",
                                         [MZ_ROPE_LONG] = "longrope"};
static const struct rope_key {
    const char *key;
    int types;
    size_t field;  // in mezzo_model_config; 0: not a number, or another function reads it
    double absent; // its value where it is missing; 0: it must be there
} rope_keys[] = {
    {"factor", LINEAR | LLAMA3 | YARN, offsetof(mezzo_model_config, rope_factor), 0},
    {"low_freq_factor", LLAMA3, offsetof(mezzo_model_config, rope_low), 0},
    {"high_freq_factor", LLAMA3, offsetof(mezzo_model_config, rope_high), 0},
    {"beta_slow", YARN, offsetof(mezzo_model_config, rope_low), 1},
    {"beta_fast", YARN, offsetof(mezzo_model_config, rope_high), 32},
    {"original_max_position_embeddings", LLAMA3 | YARN | LONG, 0, 0},
    {"attention_factor", YARN | LONG, 0, 0},
    {"truncate", YARN, 0, 0},
    {"factor", LONG, 0, 0},
    {"short_factor", LONG, 0, 0},
    {"long_factor", LONG, 0, 0},
};

static bool is_phi3(const mezzo_model_config *scaled) {
    return scaled != NULL && strcmp(scaled->name, "phi3") == 0;
}

// Returns the type of scaled positions. Phi3Config has longrope alone, with two older names.
static int64_t rope_type_of(const char *text, const mezzo_model_config *scaled) {
    if (text != NULL && is_phi3(scaled) && (strcmp(text, "su") == 0 || strcmp(text, "yarn") == 0))
        return MZ_ROPE_LONG;
    if (text != NULL && is_phi3(scaled) && strcmp(text, "default") != 0 && strcmp(text, "longrope") != 0)
        return 0;
    for (int64_t i = MZ_ROPE_NONE; text != NULL && i < (int64_t)MZ_COUNT(rope_types); i++)
        if (strcmp(rope_types[i], text) == 0)
            return i;
    return 0;
}

static bool is_rope_key(const char *key, int64_t type) {
    bool is = strcmp(key, "rope_theta") == 0 || strcmp(key, "partial_rotary_factor") == 0;
    for (size_t i = 0; i < MZ_COUNT(rope_keys); i++)
        is = is || ((rope_keys[i].types >> type & 1) != 0 && strcmp(rope_keys[i].key, key) == 0);
    return is;
}

// Checks the keys, and sets *type to a value of the key rope_scaling, which several keys may give.
static mezzo_status check_rope_keys(const char *where, const char *name, const json_t *rope,
                                    const mezzo_model_config *scaled, int64_t *type) {
    json_t *value;
    const char *key;
    if (!json_is_object(rope))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is not an object", where, name);
    json_object_foreach((json_t *)(uintptr_t)rope, key, value) {
        if (strcmp(key, "rope_type") != 0 && strcmp(key, "type") != 0)
            continue;
        const char *text = json_string_value(value);
        const int64_t one = rope_type_of(text, scaled);
        if (one == 0 || (one != MZ_ROPE_NONE && scaled == NULL) || (*type != 0 && *type != one))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' of '%s' is %s; only %s is supported", where, key, name,
                           text != NULL ? mz_quote(text).text : "not a text",
                           *type != 0        ? "one type in all places"
                           : is_phi3(scaled) ? "default or longrope"
                           : scaled != NULL  ? "default, linear, llama3, yarn or longrope"
                                             : "'default'");
        *type = one;
    }
    json_object_foreach((json_t *)(uintptr_t)rope, key, value) {
        const bool kind = strcmp(key, "rope_type") == 0 || strcmp(key, "type") == 0;
        if (!kind && !json_is_null(value) && !is_rope_key(key, *type != 0 ? *type : MZ_ROPE_NONE))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key %s of '%s' is not supported: it belongs to scaled positions",
                           where, mz_quote(key).text, name);
    }
    return MEZZO_OK;
}

// Reads the numbers of scaled positions. The original context is the model's own where no key gives it.
static mezzo_status read_scaling(const char *where, const json_t *config, const json_t *rope, int64_t type,
                                 mezzo_model_config *out) {
    static const char original[] = "original_max_position_embeddings";
    const json_t *truncate = json_object_get(rope, "truncate"), *factor = json_object_get(rope, "attention_factor");
    const json_t *longer = json_object_get(rope, "factor");
    out->rope_scaling = type;
    for (size_t i = 0; i < MZ_COUNT(rope_keys); i++) {
        const struct rope_key *key = &rope_keys[i];
        double *field = (double *)((char *)out + key->field);
        const json_t *value = json_object_get(rope, key->key);
        if ((key->types >> type & 1) == 0 || key->field == 0)
            continue;
        *field = key->absent;
        if (key->absent == 0 || (value != NULL && !json_is_null(value)))
            MEZZO_TRY(mz_json_get_double(where, rope, key->key, field));
    }
    if (((LLAMA3 | YARN | LONG) >> type & 1) != 0) { // Phi3Config has a key of its own, with a default
        const json_t *from = is_phi3(out) || json_object_get(config, original) != NULL ? config : rope;
        out->rope_original = is_phi3(out) ? 4096 : out->seq_len;
        if (json_object_get(from, original) != NULL)
            MEZZO_TRY(mz_json_get_int(where, from, original, 1, INT32_MAX, &out->rope_original));
    }
    if (type == MZ_ROPE_LONG) {
        MEZZO_TRY(mz_json_get_floats(where, rope, "short_factor", MEZZO_LIST, out->rope_short.at));
        MEZZO_TRY(mz_json_get_floats(where, rope, "long_factor", MEZZO_LIST, out->rope_long.at));
        out->rope_factor = (double)out->seq_len / (double)out->rope_original;
        if (longer != NULL && !json_is_null(longer))
            MEZZO_TRY(mz_json_get_double(where, rope, "factor", &out->rope_factor));
    }
    if (truncate != NULL && !json_is_true(truncate))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'truncate' is not true; only true is supported", where);
    out->rope_attention = 0;
    if (factor == NULL || json_is_null(factor))
        return MEZZO_OK;
    MEZZO_TRY(mz_json_get_double(where, rope, "attention_factor", &out->rope_attention));
    return out->rope_attention > 0 ? MEZZO_OK
                                   : mz_fail(MEZZO_ERR_FORMAT, "%s: key 'attention_factor' is %g; it must be above 0",
                                             where, out->rope_attention);
}

static bool same_scaling(const mezzo_model_config *a, const mezzo_model_config *b) {
    return a->rope_factor == b->rope_factor && a->rope_low == b->rope_low && a->rope_high == b->rope_high &&
           a->rope_original == b->rope_original && a->rope_attention == b->rope_attention &&
           memcmp(&a->rope_short, &b->rope_short, sizeof a->rope_short) == 0 &&
           memcmp(&a->rope_long, &b->rope_long, sizeof a->rope_long) == 0;
}

mezzo_status mz_hf_read_rope(const char *where, const json_t *config, double *theta, double *part,
                             mezzo_model_config *scaled) {
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    bool theta_said = false, part_said = false;
    double whole = 1, *share = part != NULL ? part : &whole;
    int64_t type = 0;
    if (scaled != NULL)
        scaled->rope_scaling = MZ_ROPE_NONE;
    MEZZO_TRY(read_rope_number(where, config, "rope_theta", &theta_said, theta));
    MEZZO_TRY(read_rope_number(where, config, "rotary_emb_base", &theta_said, theta)); // GPT-NeoX has this name
    MEZZO_TRY(read_rope_number(where, config, "partial_rotary_factor", &part_said, share));
    MEZZO_TRY(read_rope_number(where, config, "rotary_pct", &part_said, share));
    for (size_t i = 0; i < MZ_COUNT(names); i++) {
        const json_t *rope = json_object_get(config, names[i]);
        if (rope == NULL || json_is_null(rope))
            continue;
        const bool second = i > 0 && json_object_size(json_object_get(config, names[0])) > 0, theta_before = theta_said,
                   part_before = part_said;
        const mezzo_model_config before = second && scaled != NULL ? *scaled : (mezzo_model_config){0};
        MEZZO_TRY(check_rope_keys(where, names[i], rope, scaled, &type));
        MEZZO_TRY(read_rope_number(where, rope, "rope_theta", &theta_said, theta));
        MEZZO_TRY(read_rope_number(where, rope, "partial_rotary_factor", &part_said, share));
        if (type > MZ_ROPE_NONE)
            MEZZO_TRY(read_scaling(where, config, rope, type, scaled));
        if (second && (theta_before != theta_said || part_before != part_said ||
                       (type > MZ_ROPE_NONE && !same_scaling(&before, scaled))))
            return mz_fail(MEZZO_ERR_FORMAT,
                           "%s: keys 'rope_scaling' and 'rope_parameters' give different numbers, and transformers "
                           "reads the first alone: keep one",
                           where);
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

static mezzo_status set_rope(json_t *rope, const mezzo_model_config *m, double part) {
    const int64_t type = m->rope_scaling > MZ_ROPE_NONE ? m->rope_scaling : MZ_ROPE_NONE;
    MEZZO_TRY(mz_json_set(rope, "rope_type", json_string(rope_types[type])));
    MEZZO_TRY(mz_json_set(rope, "rope_theta", json_real(m->rope_theta)));
    if (part > 0)
        MEZZO_TRY(mz_json_set(rope, "partial_rotary_factor", json_real(part)));
    for (size_t i = 0; i < MZ_COUNT(rope_keys); i++)
        if ((rope_keys[i].types >> type & 1) != 0 && rope_keys[i].field != 0)
            MEZZO_TRY(mz_json_set(rope, rope_keys[i].key,
                                  json_real(*(const double *)((const char *)m + rope_keys[i].field))));
    if (((LLAMA3 | YARN | LONG) >> type & 1) != 0)
        MEZZO_TRY(mz_json_set(rope, "original_max_position_embeddings", json_integer(m->rope_original)));
    if (type == MZ_ROPE_LONG) {
        MEZZO_TRY(mz_json_set(rope, "short_factor", mz_json_floats(m->rope_short.at, MEZZO_LIST)));
        MEZZO_TRY(mz_json_set(rope, "long_factor", mz_json_floats(m->rope_long.at, MEZZO_LIST)));
        MEZZO_TRY(mz_json_set(rope, "factor", json_real(m->rope_factor > 0 ? m->rope_factor : 1)));
    }
    return ((YARN | LONG) >> type & 1) != 0 && m->rope_attention > 0
               ? mz_json_set(rope, "attention_factor", json_real(m->rope_attention))
               : MEZZO_OK;
}

// Converts the form of Phi3Config before transformers 5, which takes three keys alone; the factor then follows from the
// context lengths.
static json_t *older_rope(const mezzo_model_config *m, const json_t *rope) {
    static const char *const others[] = {"rope_type", "rope_theta", "partial_rotary_factor",
                                         "original_max_position_embeddings", "factor"};
    json_t *out = json_deep_copy(rope);
    if (!is_phi3(m) || m->rope_attention > 0 || m->rope_factor != (double)m->seq_len / (double)m->rope_original)
        return out;
    for (size_t i = 0; out != NULL && i < MZ_COUNT(others); i++)
        (void)json_object_del(out, others[i]);
    if (out != NULL)
        (void)json_object_set_new(out, "type", json_string(rope_types[MZ_ROPE_LONG]));
    return out;
}

mezzo_status mz_hf_write_rope(json_t *config, const mezzo_model_config *m, double part) {
    json_t *rope = json_object();
    mezzo_status status = rope != NULL ? set_rope(rope, m, part) : MEZZO_ERR_MEMORY;
    if (status != MEZZO_OK) {
        json_decref(rope);
        return status;
    }
    if (m->rope_scaling > MZ_ROPE_NONE) // transformers before version 5 read this key
        status = mz_json_set(config, "rope_scaling", older_rope(m, rope));
    if (status == MEZZO_OK && is_phi3(m)) // its class reads this one first
        status = mz_json_set(config, "original_max_position_embeddings",
                             json_integer(m->rope_scaling == MZ_ROPE_LONG ? m->rope_original : m->seq_len));
    mezzo_status other = mz_json_set(config, "rope_parameters", rope);
    MEZZO_TRY(status);
    MEZZO_TRY(other);
    MEZZO_TRY(mz_json_set(config, "rope_theta", json_real(m->rope_theta)));
    return part > 0 ? mz_json_set(config, "partial_rotary_factor", json_real(part)) : MEZZO_OK;
}
