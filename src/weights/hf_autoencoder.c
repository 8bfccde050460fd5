// Maps diffusers' AutoencoderKL to kl_vae: the names are the same; a convolution's weight is [out, in, height, width]
// there.
#include "io/json.h"
#include "io/quote.h"
#include "weights/hf.h"

// --- config.json ---------------------------------------------------------------------------------------------------
// Checks a list with as many entries as there are levels, all of them `want`.
static mezzo_status check_blocks(const char *where, const json_t *config, const char *key, const char *want, size_t n) {
    const json_t *list = json_object_get(config, key);
    if (json_array_size(list) != n)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' must be a list of %zu, as block_out_channels is", where, key, n);
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name == NULL || strcmp(name, want) != 0)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is %s; only %s is supported", where, key,
                           mz_quote(name).text, want);
    }
    return MEZZO_OK;
}

// Reads widths: [128, 256, 512] is a width of 128 with the multipliers 124.
static mezzo_status read_widths(const char *where, const json_t *config, mezzo_model_config *out) {
    const json_t *list = json_object_get(config, "block_out_channels");
    const size_t n = json_array_size(list);
    const json_int_t first = json_integer_value(json_array_get(list, 0));
    out->multipliers = 0;
    for (size_t i = 0; i < n && i < 8; i++) {
        const json_int_t width = json_integer_value(json_array_get(list, i));
        if (first < 1 || width % first != 0 || width / first < 1 || width / first > 9)
            break;
        out->multipliers = out->multipliers * 10 + width / first;
        if (i + 1 == n) {
            out->d_model = first;
            return MEZZO_OK;
        }
    }
    return mz_fail(MEZZO_ERR_FORMAT,
                   "%s: key 'block_out_channels' must be a list of up to 8 widths, 1 to 9 times the first", where);
}

static mezzo_status read_config(const mz_hf_family *family, const char *where, const json_t *config,
                                mezzo_model_config *out) {
    (void)family;
    int64_t back = 3; // AutoencoderKL's default
    MEZZO_TRY(mezzo_model_defaults("kl_vae", out));
    MEZZO_TRY(mz_hf_read_keys(where, "AutoencoderKL", config, out));
    MEZZO_TRY(read_widths(where, config, out));
    if (json_object_get(config, "out_channels") != NULL)
        MEZZO_TRY(mz_json_get_int(where, config, "out_channels", 1, INT32_MAX, &back));
    if (out->channels != back)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'out_channels' is %lld; it must equal in_channels (%lld)", where,
                       (long long)back, (long long)out->channels);
    const size_t levels = json_array_size(json_object_get(config, "block_out_channels"));
    MEZZO_TRY(check_blocks(where, config, "down_block_types", "DownEncoderBlock2D", levels));
    return check_blocks(where, config, "up_block_types", "UpDecoderBlock2D", levels);
}

static mezzo_status write_config(const mz_hf_family *family, const mz_model *object, json_t *config) {
    const mezzo_model_config *m = &object->config;
    (void)family;
    char digits[24];
    json_t *widths = json_array(), *down = json_array(), *up = json_array();
    const int levels = snprintf(digits, sizeof digits, "%lld", (long long)m->multipliers);
    for (int i = 0; i < levels; i++) {
        json_array_append_new(widths, json_integer(m->d_model * (digits[i] - '0')));
        json_array_append_new(down, json_string("DownEncoderBlock2D"));
        json_array_append_new(up, json_string("UpDecoderBlock2D"));
    }
    const mz_hf_entry entries[] = {
        {"_class_name", json_string("AutoencoderKL")},
        {"act_fn", json_string("silu")},
        {"block_out_channels", widths},
        {"down_block_types", down},
        {"up_block_types", up},
        {"in_channels", json_integer(m->channels)},
        {"out_channels", json_integer(m->channels)},
        {"latent_channels", json_integer(m->latent_channels)},
        {"layers_per_block", json_integer(m->res_blocks)},
        {"norm_num_groups", json_integer(m->groups)},
        {"sample_size", json_integer(m->image_size)},
    };
    MEZZO_TRY(mz_hf_put(config, entries, MZ_COUNT(entries)));
    if (m->heads != 1)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "model.heads is %lld: AutoencoderKL's attention has one head",
                       (long long)m->heads);
    return MEZZO_OK;
}

// --- tensors -------------------------------------------------------------------------------------------------------
static mezzo_status map(const mz_hf_family *family, const mz_model *object, const char *name, const mz_shape *shape,
                        mz_hf_parts *out) {
    const mezzo_model_config *model = &object->config;
    (void)family, (void)model;
    const int64_t pixels = shape->rank == 4 ? shape->dim[1] * shape->dim[2] : 0;
    MEZZO_TRY(mz_hf_add_part(out, shape->dim[0] * (pixels > 0 ? pixels : 1), "%s", name));
    out->items[out->count - 1].pixels = pixels;
    return MEZZO_OK;
}

static bool is_buffer(const char *name) {
    (void)name;
    return false;
}

// Names as diffusers before 0.17 wrote them.
static const char *const renamed[][2] = {
    {".to_q.", ".query."}, {".to_k.", ".key."}, {".to_v.", ".value."}, {".to_out.0.", ".proj_attn."}, {NULL, NULL}};

const mz_hf_family mz_hf_autoencoder = {
    .model = "kl_vae",
    .model_type = "AutoencoderKL",
    .file = "diffusion_pytorch_model",
    .prefix = "",
    .read_config = read_config,
    .write_config = write_config,
    .map = map,
    .is_buffer = is_buffer,
    .embedding = "encoder.conv_in.weight",
    .renamed = renamed,
};
