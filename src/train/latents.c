#include "train/latents.h"

#include "train/engine.h"

#include <stdlib.h>

#include "base/stop.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "runtime/program.h"
#include "train/folder.h"

#define LATENTS_FILE "latents.json"
enum { ENCODE_BATCH = 8, JSON_BYTES = 1 << 16 };

// --- the autoencoder -----------------------------------------------------------------------------
static mezzo_status load(mz_vae *vae, mezzo_checkpoint *checkpoint) {
    const mz_session_options o = {.model = vae->model,
                                  .form = {.batch = 1, .length = 1, .outputs = true},
                                  .quick_init = true, // the checkpoint replaces every value
                                  .step = {.micro_batches = 1},
                                  .size = 1};
    MEZZO_TRY(mz_session_open(vae->device, &o, MZ_SESSION_PARAMS, &vae->session));
    checkpoint->params = vae->session.params;
    checkpoint->ema = checkpoint->has_ema;
    MEZZO_TRY(mezzo_checkpoint_load(vae->path, checkpoint));
    return mz_weights_crc(vae->session.params, &vae->crc);
}

// Finds the recorded step's folder in a run that was trained further; "" where it is gone.
static mezzo_status find_kept(const char *run, const mz_latents *kept, char *out, size_t size) {
    out[0] = '\0';
    if (!kept->given || kept->step < 0)
        return MEZZO_OK;
    const mz_path path = mz_path_of("%s/checkpoints/step-%08lld", run, (long long)kept->step);
    if (mz_path_is_dir(path.text) && strlen(path.text) < size)
        snprintf(out, size, "%s", path.text);
    return MEZZO_OK;
}

static mezzo_status open_vae(const char *run, const mz_latents *kept, mz_vae *vae) {
    mezzo_checkpoint checkpoint = {0};
    MEZZO_TRY(find_kept(run, kept, vae->path, sizeof vae->path));
    if (vae->path[0] == '\0')
        MEZZO_TRY(
            mz_find_checkpoint(run, false, MZ_CHECKPOINT_WEIGHTS | MZ_CHECKPOINT_EMA, vae->path, sizeof vae->path));
    MEZZO_TRY(mezzo_checkpoint_describe(vae->path, &checkpoint));
    vae->step = checkpoint.step;
    MEZZO_TRY(mz_description_read(vae->path, checkpoint.model, &vae->model));
    if (!vae->model.maker->has_parts)
        return mz_fail(MEZZO_ERR_INVALID, "%s: a run of %s: latents are those of kl_vae", run, vae->model.maker->name);
    return load(vae, &checkpoint);
}

mezzo_status mz_vae_open(mezzo_device *device, const char *run, const mz_latents *kept, mz_vae *out) {
    *out = (mz_vae){.device = device};
    int tries = 0;
    mezzo_status status = open_vae(run, kept, out);
    while (mz_checkpoint_find_again(status, out->path, &tries)) {
        mz_vae_close(out);
        out->device = device;
        status = open_vae(run, kept, out);
    }
    if (status != MEZZO_OK)
        mz_vae_close(out);
    return mz_context(status, "data.latents");
}

void mz_vae_close(mz_vae *vae) {
    mz_session_close(&vae->session);
    *vae = (mz_vae){0};
}

mezzo_status mz_vae_program(const mz_vae *vae, mz_model_part part, int64_t batch, mezzo_program **out) {
    mezzo_device_info info;
    MEZZO_TRY(mezzo_device_describe(vae->device, &info));
    const mezzo_program_options options = {.precision = info.faster[MEZZO_PRECISION_TF32] ? MEZZO_PRECISION_TF32
                                                                                          : MEZZO_PRECISION_FP32};
    const mz_form form = {.batch = batch, .length = 1, .part = part};
    return mz_model_program(&vae->model, &form, vae->session.params, &options, out);
}

// --- making latents ------------------------------------------------------------------------------
typedef struct making {
    const mz_vae *vae;
    const mz_task *task;
    mz_image_facts pictures;
    int64_t shape[4]; // [n, side, side, channels]
    size_t each;      // numbers of one picture's latents
    float *values;
} making;

static mezzo_status encode(making *m, mezzo_program *program, float *images, float *latents) {
    const size_t pixels = (size_t)(m->pictures.size * m->pictures.size * m->pictures.channels);
    for (int64_t at = 0; at < m->pictures.n; at += ENCODE_BATCH) {
        const int64_t left = m->pictures.n - at, n = left < ENCODE_BATCH ? left : ENCODE_BATCH;
        for (int64_t i = 0; i < ENCODE_BATCH; i++) // the last batch is filled up with copies of its last picture
            mz_images_get(m->task, at + (i < n ? i : n - 1), images + (size_t)i * pixels);
        MEZZO_TRY(mezzo_program_write(program, "image", images, ENCODE_BATCH * pixels * sizeof *images));
        MEZZO_TRY(mz_stop_check("latents"));
        MEZZO_TRY(mezzo_program_run(program, NULL, 0, 0));
        MEZZO_TRY(mz_program_read_finite(program, "latent", latents, ENCODE_BATCH * m->each));
        memcpy(m->values + (size_t)at * m->each, latents, (size_t)n * m->each * sizeof *latents);
    }
    return MEZZO_OK;
}

static mezzo_status make(making *m) {
    mezzo_program *program = NULL;
    const size_t pixels = (size_t)(m->pictures.size * m->pictures.size * m->pictures.channels);
    float *images = mz_alloc(ENCODE_BATCH * pixels, sizeof *images);
    float *latents = mz_alloc(ENCODE_BATCH * m->each, sizeof *latents);
    mezzo_status status = images != NULL && latents != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK)
        status = mz_vae_program(m->vae, MZ_PART_ENCODER, ENCODE_BATCH, &program);
    if (status == MEZZO_OK)
        status = encode(m, program, images, latents);
    mezzo_program_free(program);
    MZ_FREE(images, latents);
    return status;
}

// --- the file ------------------------------------------------------------------------------------
static char *cache_path(const char *data, uint32_t crc) {
    return mz_format(mz_path_is_dir(data) ? "%s/latents-%08x.safetensors" : "%s.latents-%08x.safetensors", data, crc);
}

static void hex(uint32_t crc, char out[16]) {
    snprintf(out, 16, "%08x", crc);
}

static uint32_t crc_of(const making *m) {
    return mz_crc32c(0, m->values, (size_t)m->shape[0] * m->each * sizeof *m->values);
}

static bool says(const mz_safetensors *file, const char *key, uint32_t crc) {
    char wanted[16];
    const char *is = mz_safetensors_meta_get(file, key);
    hex(crc, wanted);
    return is != NULL && strcmp(is, wanted) == 0;
}

// Reads the cached file. INVALID, FORMAT: it is not the expected one, for the reason that the error names.
static mezzo_status read_cache(making *m, const char *path) {
    mz_safetensors *file;
    MEZZO_TRY(mz_safetensors_open(path, &file));
    mezzo_status status = MEZZO_OK;
    if (!says(file, "pictures_crc32c", m->pictures.crc))
        status = mz_fail(MEZZO_ERR_INVALID, "%s: of other pictures", path);
    if (status == MEZZO_OK)
        status = mz_safetensors_read(file, "latent", MEZZO_F32, 4, m->shape, m->values);
    if (status == MEZZO_OK && !says(file, "latent_crc32c", crc_of(m)))
        status = mz_fail(MEZZO_ERR_FORMAT, "%s: the checksum is another", path);
    mz_safetensors_close(file);
    return status;
}

static mezzo_status write_cache(const making *m, const char *path) {
    char pictures[16], latent[16];
    hex(m->pictures.crc, pictures);
    hex(crc_of(m), latent);
    const mz_safetensors_item item = {
        .name = "latent", .dtype = MEZZO_F32, .rank = 4, .shape = m->shape, .data = m->values};
    const mz_safetensors_meta meta[] = {{"pictures_crc32c", pictures}, {"latent_crc32c", latent}};
    return mz_safetensors_write(path, &item, 1, meta, MZ_COUNT(meta), NULL);
}

static mezzo_status fill(making *m, const char *path) {
    if (mz_path_exists(path)) {
        if (read_cache(m, path) == MEZZO_OK)
            return MEZZO_OK;
        mz_log("notice", "computing latents again (%s)", mezzo_error_message());
    }
    MEZZO_TRY(make(m));
    if (write_cache(m, path) != MEZZO_OK)
        mz_log("notice", "cannot keep latents for the next run (%s)", mezzo_error_message());
    return MEZZO_OK;
}

static mezzo_status plan(const mz_vae *vae, const mz_task *task, making *m) {
    const mezzo_model_config *c = &vae->model.config;
    *m = (making){.vae = vae, .task = task, .pictures = mz_images_describe(task)};
    if (c->image_size != m->pictures.size || c->channels != m->pictures.channels)
        return mz_fail(MEZZO_ERR_INVALID,
                       "data.latents: %s takes pictures of %lld x %lld x %lld, and the data has %lld x %lld x %lld",
                       vae->path, (long long)c->image_size, (long long)c->image_size, (long long)c->channels,
                       (long long)m->pictures.size, (long long)m->pictures.size, (long long)m->pictures.channels);
    int64_t side = c->image_size;
    for (int64_t levels = c->multipliers; levels >= 10; levels /= 10) // one digit a level; each level has half the side
                                                                      // of the one before
        side /= 2;
    const int64_t shape[] = {m->pictures.n, side, side, c->latent_channels};
    memcpy(m->shape, shape, sizeof shape);
    m->each = (size_t)(side * side * c->latent_channels);
    m->values = mz_alloc((size_t)m->pictures.n * m->each, sizeof *m->values);
    return m->values != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

mezzo_status mz_latents_give(const mz_vae *vae, const char *data, mz_task *task, mz_latents *latents) {
    making m;
    if (latents->given && latents->vae != vae->crc) {
        char step[32] = "";
        if (latents->step >= 0)
            snprintf(step, sizeof step, " of step %lld", (long long)latents->step);
        return mz_fail(MEZZO_ERR_INVALID,
                       "data.latents: this run learned latents of weights%s with CRC32C %08x, and those of %s have "
                       "%08x: only the autoencoder that it began with decodes them",
                       step, latents->vae, vae->path, vae->crc);
    }
    MEZZO_TRY(plan(vae, task, &m));
    char *path = cache_path(data, vae->crc);
    mezzo_status status = path != NULL ? fill(&m, path) : MEZZO_ERR_MEMORY;
    mz_free(path);
    if (status != MEZZO_OK) {
        mz_free(m.values);
        return status;
    }
    double scale = latents->given ? latents->scale : 0;
    MEZZO_TRY(mz_images_take_latents(task, m.values, m.shape[1], m.shape[3], &scale));
    *latents = (mz_latents){true, vae->crc, latents->given ? latents->step : vae->step, scale};
    return MEZZO_OK;
}

// --- the copy of a run ---------------------------------------------------------------------------
mezzo_status mz_latents_save(const char *folder, const mz_latents *latents) {
    if (!latents->given)
        return MEZZO_OK;
    char crc[16];
    hex(latents->vae, crc);
    json_t *json = json_pack("{s:s, s:f}", "vae_crc32c", crc, "scale", latents->scale);
    if (json != NULL && latents->step >= 0)
        json_object_set_new(json, "vae_step", json_integer(latents->step));
    return mz_json_save_owned(json, mz_path_of("%s/" LATENTS_FILE, folder).text);
}

static mezzo_status read_kept(const char *path, mz_latents *latents) {
    json_t *json;
    char *end = NULL;
    MEZZO_TRY(mz_json_load(path, JSON_BYTES, &json));
    const char *crc = json_string_value(json_object_get(json, "vae_crc32c"));
    const json_t *step = json_object_get(json, "vae_step"); // older runs have none
    latents->vae = crc != NULL ? (uint32_t)strtoul(crc, &end, 16) : 0;
    latents->step = json_is_integer(step) && json_integer_value(step) >= 0 ? json_integer_value(step) : -1;
    mezzo_status status = mz_json_get_double(path, json, "scale", &latents->scale);
    if (status == MEZZO_OK && (crc == NULL || strlen(crc) != 8 || *end != '\0' || !(latents->scale > 0)))
        status = mz_fail(MEZZO_ERR_FORMAT, "%s: vae_crc32c has eight hexadecimal digits, and scale is above 0", path);
    latents->given = status == MEZZO_OK;
    json_decref(json);
    return status;
}

mezzo_status mz_latents_load(const char *folder, mz_latents *latents) {
    *latents = (mz_latents){0};
    const mz_path path = mz_path_of("%s/" LATENTS_FILE, folder);
    return mz_path_exists(path.text) ? read_kept(path.text, latents) : MEZZO_OK;
}
