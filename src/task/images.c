// Draws pictures and the conditions from which they are predicted. Brightness b becomes b/127.5 - 1. A radio map's
// condition is two pictures: the buildings, and the transmitter's position, shown by the free-space loss from there.
#include "task/images.h"

#include <math.h>
#include <stdlib.h>

#include "base/scope.h"
#include "data/picture_score.h"
#include "io/file.h"
#include "nn/diffusion.h"
#include "runtime/program.h"
#include "task/range.h"

#define PHILOX_ORDER   0x1A6E0000u // the `tensor` word for this file's draws
#define PHILOX_TIME    0x1A6E0001u
#define PHILOX_START   0x1A6E0002u
#define PHILOX_MADE_UP 0x1A6E0003u

typedef struct images {
    mz_task task;
    mz_pictures p;
    float *distance; // [size, size], for radio maps: brightness by free-space loss, at this distance in pixels
    float *latent;   // [n, side, side, channels], scaled: latents that replace pictures; NULL: pictures are learned
    double scale;
} images;

static bool is_autoencoder(const mz_model_sizes *model) {
    return model->objective == 0;
}

static void close_task(mz_task *task) {
    images *t = (images *)task;
    mz_pictures_close(&t->p);
    MZ_FREE(t->distance, t->latent, t);
}

// --- data ----------------------------------------------------------------------------------------
static mezzo_status open_pictures(images *t, const mz_task_options *o) {
    const char *path = mz_given(o->all) ? o->all : o->path;
    if (mz_given(o->train) || mz_given(o->validation) || mz_given(o->features) || mz_given(o->labels))
        return mz_fail(MEZZO_ERR_INVALID, "this is an image model: give only data.path, which data.split divides");
    if (!mz_given(path))
        return mz_fail(MEZZO_ERR_INVALID,
                       "data.path is missing: give --data FOLDER of images (mezzo data radio generates one)");
    MEZZO_TRY(mz_pictures_open(path, mz_given(o->all) ? 1 : o->split, &t->p));
    t->task.sizes = (mz_model_sizes){.image_size = t->p.size,
                                     .channels = t->p.channels,
                                     .condition_channels = t->p.condition_channels,
                                     .condition_size = t->p.condition_channels > 0 ? t->p.size : 0};
    if (!t->p.radio)
        return MEZZO_OK;
    MEZZO_TRY(MZ_NEW(t->distance, (size_t)(t->p.size * t->p.size)));
    for (int64_t i = 0; i < t->p.size * t->p.size; i++)
        t->distance[i] = mz_free_space_brightness(&t->p, i % t->p.size, i / t->p.size);
    return MEZZO_OK;
}

static mezzo_status open_task(const mz_task_options *o, mz_task **out) {
    images *t;
    MEZZO_TRY(MZ_NEW(t, 1));
    t->task.kind = &mz_task_images;
    mezzo_status status = o->no_data ? MEZZO_OK : open_pictures(t, o);
    if (status == MEZZO_OK)
        *out = &t->task;
    else
        close_task(&t->task);
    return status;
}

static mezzo_status check_model(mz_task *task) {
    const images *t = (const images *)task;
    const mz_model_sizes *m = &task->wants, *is = &task->sizes;
    const char *name = task->model.maker->name;
    if (t->p.n == 0)
        return MEZZO_OK;
    if (m->image_size != is->image_size || m->channels != is->channels)
        return mz_fail(MEZZO_ERR_INVALID, "the %s are %lld x %lld x %lld, and %s takes %lld x %lld x %lld",
                       t->latent != NULL ? "latents" : "pictures", (long long)is->image_size, (long long)is->image_size,
                       (long long)is->channels, name, (long long)m->image_size, (long long)m->image_size,
                       (long long)m->channels);
    if (is_autoencoder(m))
        return MEZZO_OK;
    if (t->p.condition_channels == 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s predicts images from other images, but the data has none to predict from",
                       name);
    if (m->condition_channels != t->p.condition_channels || (m->condition_size != 0 && m->condition_size != t->p.size))
        return mz_fail(MEZZO_ERR_INVALID, "the condition is %lld x %lld x %lld, and %s takes %lld x %lld x %lld",
                       (long long)t->p.size, (long long)t->p.size, (long long)t->p.condition_channels, name,
                       (long long)m->condition_size, (long long)m->condition_size, (long long)m->condition_channels);
    return MEZZO_OK;
}

static void describe(const mz_task *task, char *out, size_t size) {
    const images *t = (const images *)task;
    const mz_pictures *p = &t->p;
    char latents[64] = "", model[64];
    mz_model_summary(&task->model, model, sizeof model);
    if (t->latent != NULL)
        snprintf(latents, sizeof latents, " as latents of %lld x %lld x %lld", (long long)task->sizes.image_size,
                 (long long)task->sizes.image_size, (long long)task->sizes.channels);
    snprintf(out, size, "%lld x %lld pixels%s, %s, %lld training images of %lld scenes, %lld validation images of %lld",
             (long long)p->size, (long long)p->size, latents, model, (long long)p->n_train, (long long)p->scenes_train,
             (long long)(p->n - p->n_train), (long long)(p->scenes - p->scenes_train));
}

static bool has(const mz_task *task, mz_set set) {
    const images *t = (const images *)task;
    return set == MZ_SET_TRAIN ? t->p.n_train > 0 : t->p.n > t->p.n_train;
}

// Marks pictures, also where their latents are learned; those have a checksum of their own in the run folder.
static mezzo_data_mark mark(const mz_task *task, mz_set set) {
    const mz_pictures *p = &((const images *)task)->p;
    const int64_t first = set == MZ_SET_TRAIN ? 0 : p->n_train, end = set == MZ_SET_TRAIN ? p->n_train : p->n;
    const size_t pixels = (size_t)(p->size * p->size), each = pixels * (size_t)p->channels;
    mezzo_data_mark mark = {0};
    for (int64_t i = first; i < end; i++) {
        const mz_example *e = &p->example[p->order[i]];
        mark.bytes += each;
        mark.crc32c = mz_crc32c(mark.crc32c, p->picture + (size_t)p->order[i] * each, each);
        if (p->scene == NULL)
            continue;
        mark.bytes += pixels;
        mark.crc32c = mz_crc32c(mark.crc32c, p->scene + (size_t)e->scene * pixels, pixels);
        mark.crc32c = mz_crc32c(mark.crc32c, (const int64_t[]){e->x, e->y}, 2 * sizeof e->x);
    }
    return mark;
}

// --- batches -------------------------------------------------------------------------------------
static mezzo_status open_source(const mz_task *task, mz_set set, mz_order order, int64_t rows, uint64_t seed,
                                mz_source *source) {
    const images *t = (const images *)task;
    const mz_range range = {
        .n = t->p.n, .random = order == MZ_ORDER_RANDOM, .seed = seed, .stream = (uint32_t)set, .tensor = PHILOX_ORDER};
    return mz_range_open(range, "images", t->p.n_train, rows, source);
}

// A table of the brightness of every byte, because a picture has more pixels than there are bytes.
typedef struct brightness {
    float of[256];
} brightness;

static brightness scaled(void) {
    brightness b;
    for (int byte = 0; byte < 256; byte++)
        b.of[byte] = (float)byte / 127.5F - 1.0F;
    return b;
}

static void put_picture(const mz_pictures *p, int64_t example, float *out) {
    const brightness b = scaled();
    const int64_t n = p->size * p->size * p->channels;
    for (int64_t i = 0; i < n; i++)
        out[i] = b.of[p->picture[example * n + i]];
}

// Returns the number of values that are learned: of a picture, or of its latent.
static int64_t numbers(const images *t) {
    return t->task.sizes.image_size * t->task.sizes.image_size * t->task.sizes.channels;
}

static void put_learned(const images *t, int64_t example, float *out) {
    if (t->latent == NULL)
        put_picture(&t->p, example, out);
    else
        memcpy(out, t->latent + example * numbers(t), (size_t)numbers(t) * sizeof *out);
}

// Writes the free-space brightness of a line, seen from column x, into every second number: `far` has it by the
// distance in columns.
static void put_distance(const float *far, int64_t size, int64_t x, float *out) {
    for (int64_t i = 0; i < x; i++)
        out[2 * i] = 2 * far[x - i] - 1;
    for (int64_t i = x; i < size; i++)
        out[2 * i] = 2 * far[i - x] - 1;
}

// Writes [size, size, condition_channels], the largest part of a batch.
static void put_condition(const images *t, int64_t example, float *out) {
    const mz_pictures *p = &t->p;
    const mz_example *e = &p->example[example];
    const uint8_t *scene = p->scene + e->scene * p->size * p->size;
    const brightness b = scaled();
    for (int64_t y = 0; y < p->size; y++, scene += p->size, out += p->size * p->condition_channels) {
        if (!p->radio) {
            for (int64_t i = 0; i < p->size; i++)
                out[i] = b.of[scene[i]];
            continue;
        }
        for (int64_t i = 0; i < p->size; i++)
            out[2 * i] = b.of[scene[i]];
        put_distance(t->distance + llabs(y - e->y) * p->size, p->size, e->x, out + 1);
    }
}

// Draws time and noise of row `index`, and its part of the loss. They are the same in every ordered pass, so that
// losses are comparable.
static void put_draws(const mz_range *r, uint64_t index, const mz_model_sizes *m, float weight, int64_t i,
                      mz_examples *out) {
    uint32_t words[4];
    const bool vae = is_autoencoder(m);
    mz_philox((mz_philox_key){r->random ? r->seed : 0, r->stream, PHILOX_TIME}, index, words);
    int32_t *noise = (int32_t *)mz_examples_input(out, MZ_ROLE_NOISE)->data + 2 * i;
    noise[0] = (int32_t)words[2];
    noise[1] = (int32_t)words[3];
    if (vae) {
        ((float *)mz_examples_input(out, MZ_ROLE_WEIGHT)->data)[i] = weight;
        return;
    }
    const double time = mz_diffusion_time(m->objective, words);
    ((float *)mz_examples_input(out, MZ_ROLE_TIME)->data)[i] = (float)time;
    mz_diffusion_row(m->objective, time, (double)weight,
                     (float *)mz_examples_input(out, MZ_ROLE_SCHEDULE)->data + 4 * i);
}

static mezzo_status draw(mz_source *source, uint64_t k) {
    const images *t = (const images *)source->task;
    const mz_model_sizes *m = &source->task->wants;
    const mz_range *r = source->state;
    mz_examples *x = &source->examples;
    const int64_t rows = x->items, n = t->p.size * t->p.size; // n: numbers of a condition's picture
    int64_t counted = 0;
    if (!r->random)
        k %= source->batches;
    for (int64_t i = 0; i < rows; i++)
        counted += mz_range_place(r, k * (uint64_t)rows + (uint64_t)i) >= 0;
    for (int64_t i = 0; i < rows; i++) {
        const uint64_t index = k * (uint64_t)rows + (uint64_t)i;
        const int64_t place = mz_range_place(r, index), from = t->p.order[r->first + (place < 0 ? 0 : place)];
        put_learned(t, from, (float *)mz_examples_input(x, MZ_ROLE_IMAGE)->data + i * numbers(t));
        if (!is_autoencoder(m))
            put_condition(t, from,
                          (float *)mz_examples_input(x, MZ_ROLE_CONDITION)->data + i * n * t->p.condition_channels);
        put_draws(r, index, m, place < 0 ? 0 : (float)rows / (float)counted, i, x);
    }
    return MEZZO_OK;
}

static const float *weights(const mz_examples *x, int64_t *stride) {
    const mz_input *weight = mz_examples_input(x, MZ_ROLE_WEIGHT), *schedule = mz_examples_input(x, MZ_ROLE_SCHEDULE);
    *stride = weight != NULL ? 1 : 4;
    return weight != NULL ? weight->data : (const float *)schedule->data + 2;
}

static uint64_t weight(const mz_examples *examples) {
    int64_t stride;
    uint64_t counted = 0;
    const float *w = weights(examples, &stride);
    for (int64_t i = 0; i < examples->items; i++)
        counted += w[i * stride] > 0;
    return counted;
}

static bool check(const mz_task *task, const mz_examples *examples, char *fault, size_t size) {
    (void)task;
    for (int k = 0; k < examples->n; k++) {
        const mz_input *in = &examples->input[k];
        const float *x = in->data;
        if (in->dtype != MEZZO_F32 || mz_all_finite(x, in->bytes / sizeof *x))
            continue;
        size_t i = 0;
        while (isfinite(x[i]))
            i++;
        snprintf(fault, size, "input %s has %g at %zu: it must be finite", in->name, (double)x[i], i);
        return false;
    }
    return true;
}

static void blank(mz_examples *examples) {
    for (int k = 0; k < examples->n; k++)
        memset(examples->input[k].data, 0, examples->input[k].bytes);
}

static void made_up(const mz_model_sizes *m, uint64_t seed, mz_examples *out) {
    const mz_range r = {.seed = seed, .random = true};
    uint32_t words[4];
    float normal[4];
    for (int k = 0; k < out->n; k++) {
        float *x = out->input[k].data;
        for (size_t i = 0; out->input[k].rank == 4 && i < out->input[k].bytes / sizeof *x; i++) {
            mz_philox((mz_philox_key){seed, (uint32_t)k, PHILOX_MADE_UP}, i, words);
            mz_normal4(words, normal);
            x[i] = normal[0];
        }
    }
    for (int64_t i = 0; i < out->items; i++)
        put_draws(&r, (uint64_t)i, m, 1, i, out);
}

static int metrics(const mz_evaluation *score, mz_task_metric out[MZ_TASK_METRICS]) {
    (void)score;
    (void)out;
    return 0;
}

const mz_task_kind mz_task_images = {.name = "model of images",
                                     .unit = "images",
                                     .open = open_task,
                                     .close = close_task,
                                     .has = has,
                                     .check_model = check_model,
                                     .describe = describe,
                                     .mark = mark,
                                     .open_source = open_source,
                                     .close_source = mz_range_close,
                                     .draw = draw,
                                     .check = check,
                                     .blank = blank,
                                     .weight = weight,
                                     .made_up = made_up,
                                     .metrics = metrics,
                                     .pictures = true};

// --- latents -------------------------------------------------------------------------------------
mz_image_facts mz_images_describe(const mz_task *task) {
    const mz_pictures *p = &((const images *)task)->p;
    const size_t bytes = (size_t)(p->n * p->size * p->size * p->channels);
    return (mz_image_facts){p->n, p->size, p->channels, mz_crc32c(0, p->picture, bytes)};
}

void mz_images_get(const mz_task *task, int64_t i, float *out) {
    put_picture(&((const images *)task)->p, i, out);
}

mezzo_status mz_images_take_latents(mz_task *task, float *latents, int64_t side, int64_t channels, double *scale) {
    images *t = (images *)task;
    const int64_t each = side * side * channels;
    double squares = 0;
    t->latent = latents;
    for (int64_t i = 0; i < t->p.n_train; i++)
        for (int64_t k = 0; k < each; k++) {
            const double z = (double)latents[t->p.order[i] * each + k];
            squares += z * z;
        }
    if (*scale == 0)
        *scale = sqrt((double)(t->p.n_train * each) / squares);
    if (!(isfinite(*scale) && *scale > 0))
        return mz_fail(MEZZO_ERR_NUMERIC,
                       "the latents of the images are all 0 or not finite: their autoencoder has learned nothing");
    for (int64_t i = 0; i < t->p.n * each; i++)
        latents[i] = (float)((double)latents[i] * *scale);
    t->scale = *scale;
    task->sizes.image_size = side;
    task->sizes.channels = channels;
    return MEZZO_OK;
}

// --- predicting ----------------------------------------------------------------------------------
typedef struct predicting {
    const images *t;
    mezzo_program *program;
    const mz_predict *request;
    const volatile sig_atomic_t *stop;
    int64_t batch, n, pixels; // n: numbers of a picture, or of its latent; pixels: those of the picture
    mz_examples x;
    float *prediction, *fresh, *truth;
    float *decoded; // [batch, pixels]: pictures decoded from latents
    mz_diffusion_sampler sampler;
    mz_picture sheet;
    mz_image_total total;
} predicting;

// Draws the noise of a row, different for each picture and step.
static void row_noise(const predicting *p, int64_t example, int step, float *out) {
    uint32_t words[4];
    mz_philox((mz_philox_key){p->request->seed, (uint32_t)step, PHILOX_START}, (uint64_t)example, words);
    mz_diffusion_noise((int32_t[2]){(int32_t)words[0], (int32_t)words[1]}, p->n, out);
}

static mezzo_status run_program(predicting *p) {
    MEZZO_TRY(mz_examples_write(&p->x, p->program));
    MEZZO_TRY(mezzo_program_run(p->program, NULL, 0, 0));
    const int64_t heads = is_autoencoder(&p->t->task.wants) ? 1 : mz_diffusion_heads(p->sampler.objective);
    return mz_program_read_finite(p->program, "prediction", p->prediction, (size_t)(p->batch * p->n * heads));
}

static mezzo_status run_step(predicting *p, const int64_t *examples, int step) {
    const mz_model_sizes *is = &p->t->task.sizes;
    const int64_t heads = mz_diffusion_heads(p->sampler.objective);
    float *time = mz_examples_input(&p->x, MZ_ROLE_TIME)->data,
          *schedule = mz_examples_input(&p->x, MZ_ROLE_SCHEDULE)->data,
          *x = mz_examples_input(&p->x, MZ_ROLE_IMAGE)->data;
    memset(schedule, 0, mz_examples_input(&p->x, MZ_ROLE_SCHEDULE)->bytes);
    for (int64_t i = 0; i < p->batch; i++) {
        time[i] = (float)mz_sampler_time(&p->sampler, step);
        schedule[4 * i] = 1;
    }
    MEZZO_TRY(run_program(p));
    for (int64_t i = 0; i < p->batch; i++) {
        if (mz_sampler_draws(&p->sampler, step))
            row_noise(p, examples[i], step + 1, p->fresh);
        mz_sampler_step(&p->sampler, step, x + i * p->n, p->prediction + i * p->n * heads, p->fresh,
                        is->image_size * is->image_size, is->channels);
    }
    return MEZZO_OK;
}

// Decodes pictures from the batch's latents, which the input "image" has.
static mezzo_status decode(predicting *p) {
    const float *x = mz_examples_input(&p->x, MZ_ROLE_IMAGE)->data;
    for (int64_t i = 0; i < p->batch * p->n; i++)
        p->prediction[i] = (float)((double)x[i] / p->t->scale);
    mezzo_program *decoder = p->request->decoder;
    MEZZO_TRY(mezzo_program_write(decoder, "latent", p->prediction, mz_examples_input(&p->x, MZ_ROLE_IMAGE)->bytes));
    MEZZO_TRY(mezzo_program_run(decoder, NULL, 0, 0));
    return mz_program_read_finite(decoder, "prediction", p->decoded, (size_t)(p->batch * p->pixels));
}

// Predicts pictures of these examples, into the input "image", in [-1, 1]; or their latents, and the pictures into
// `decoded`.
static mezzo_status predict_batch(predicting *p, const int64_t *examples) {
    float *x = mz_examples_input(&p->x, MZ_ROLE_IMAGE)->data;
    const bool vae = is_autoencoder(&p->t->task.wants);
    for (int64_t i = 0; i < p->batch; i++)
        if (vae)
            put_picture(&p->t->p, examples[i], x + i * p->n);
        else {
            row_noise(p, examples[i], 0, x + i * p->n);
            put_condition(p->t, examples[i],
                          (float *)mz_examples_input(&p->x, MZ_ROLE_CONDITION)->data +
                              i * p->t->p.size * p->t->p.size * p->t->p.condition_channels);
        }
    if (vae) {
        MEZZO_TRY(run_program(p));
        memcpy(x, p->prediction, mz_examples_input(&p->x, MZ_ROLE_IMAGE)->bytes);
    }
    for (int step = 0; !vae && step < p->sampler.steps; step++) {
        if (p->stop != NULL && *p->stop)
            return mz_fail(MEZZO_ERR_INTERRUPTED, "stopped before all images were predicted");
        MEZZO_TRY(run_step(p, examples, step));
    }
    return p->decoded != NULL ? decode(p) : MEZZO_OK;
}

static bool has_sheet(const mz_predict *request) {
    return request->out != NULL || request->sheet != NULL;
}

static mezzo_status keep_one(predicting *p, int64_t example, float *x) {
    const mz_pictures *all = &p->t->p;
    mz_image_score score;
    MZ_SCOPED(mz_picture_free) mz_picture picture = {0};
    for (int64_t i = 0; i < p->pixels; i++)
        x[i] = fminf(fmaxf((x[i] + 1) / 2, 0), 1);
    mz_picture_truth(all, example, p->truth);
    MEZZO_TRY(mz_image_compare(x, p->truth, all->size, all->size, &score));
    if (has_sheet(p->request) && p->total.n < p->request->rows)
        mz_sheet_add(all, p->total.n, example, x, &p->sheet);
    mz_image_add(&p->total, &score);
    if (p->request->out == NULL)
        return MEZZO_OK;
    MEZZO_TRY(mz_picture_make(all->size, all->size, 1, &picture));
    for (int64_t i = 0; i < p->pixels; i++)
        picture.pixels[i] = (uint8_t)(x[i] * 255 + 0.5F);
    const mz_path path = mz_path_of("%s/%s.png", p->request->out, all->example[example].name);
    return mz_png_write(path.text, &picture);
}

static mezzo_status predict_all(predicting *p, int64_t first, int64_t count) {
    int64_t examples[1024];
    float *predicted = p->decoded != NULL ? p->decoded : (float *)mz_examples_input(&p->x, MZ_ROLE_IMAGE)->data;
    for (int64_t at = 0; at < count; at += p->batch) {
        mz_work("images", at, count);
        for (int64_t i = 0; i < p->batch; i++) // the last batch is filled up with copies of its last example
            examples[i] = p->t->p.order[first + (at + i < count ? at + i : count - 1)];
        MEZZO_TRY(predict_batch(p, examples));
        for (int64_t i = 0; i < p->batch && at + i < count; i++)
            MEZZO_TRY(keep_one(p, examples[i], predicted + i * p->pixels));
    }
    mz_work("images", count, count);
    return MEZZO_OK;
}

static mezzo_status start_predicting(predicting *p, int64_t rows) {
    const mz_model_sizes *m = &p->t->task.wants;
    const int objective = is_autoencoder(m) ? (int)MZ_OBJECTIVE_REGRESSION : m->objective;
    const bool own = objective == MZ_OBJECTIVE_DECOUPLED || objective == MZ_OBJECTIVE_REGRESSION;
    if (p->t->p.channels != 1)
        return mz_fail(MEZZO_ERR_INVALID, "images of %lld channels: only gray ones can be scored and written",
                       (long long)p->t->p.channels);
    MEZZO_TRY(mz_sampler_begin(&p->sampler, own ? MZ_SAMPLER_OWN : MZ_SAMPLER_DDIM, objective, p->request->steps,
                               p->request->eta, p->t->latent == NULL));
    if (p->request->out != NULL)
        MEZZO_TRY(mz_dir_create(p->request->out));
    MEZZO_TRY(mz_examples_make(&p->t->task.model, &(mz_form){.batch = p->batch, .length = 1}, p->request->seed, &p->x));
    p->prediction = mz_alloc((size_t)(p->batch * p->n * 2), sizeof *p->prediction);
    p->fresh = mz_alloc((size_t)p->n, sizeof *p->fresh);
    p->truth = mz_alloc((size_t)p->pixels, sizeof *p->truth);
    if (p->t->latent != NULL)
        p->decoded = mz_alloc((size_t)(p->batch * p->pixels), sizeof *p->decoded);
    if (p->prediction == NULL || p->fresh == NULL || p->truth == NULL || (p->t->latent != NULL && p->decoded == NULL))
        return MEZZO_ERR_MEMORY;
    return has_sheet(p->request) ? mz_sheet_make(&p->t->p, rows, &p->sheet) : MEZZO_OK;
}

static mezzo_status write_sheet(const predicting *p) {
    if (!has_sheet(p->request))
        return MEZZO_OK;
    if (p->request->sheet != NULL)
        return mz_png_write(p->request->sheet, &p->sheet);
    return mz_png_write(mz_path_of("%s/sheet.png", p->request->out).text, &p->sheet);
}

mezzo_status mz_images_predict(const mz_task *task, mezzo_program *program, int64_t batch, const mz_predict *request,
                               const volatile sig_atomic_t *stop, mz_predicted *out) {
    const images *t = (const images *)task;
    const double start = mz_seconds();
    const int64_t first = t->p.n_train < t->p.n ? t->p.n_train : 0, there = t->p.n - first;
    const int64_t count = request->count > 0 && request->count < there ? request->count : there;
    mz_predict r = *request;
    r.rows = r.rows < count ? r.rows : count;
    predicting p = {.t = t, .program = program, .request = &r, .stop = stop, .batch = batch, .n = numbers(t)};
    p.pixels = t->p.size * t->p.size;
    mezzo_status status = batch <= 1024
                              ? start_predicting(&p, r.rows)
                              : mz_fail(MEZZO_ERR_INVALID, "a batch of %lld images: at most 1024", (long long)batch);
    if (status == MEZZO_OK)
        status = predict_all(&p, first, count);
    if (status == MEZZO_OK)
        status = write_sheet(&p);
    const mz_image_score mean = mz_image_mean(&p.total);
    *out = (mz_predicted){p.total.n, mean.nmse, mean.rmse, mean.ssim, mean.psnr, mz_seconds() - start};
    mz_picture_free(&p.sheet);
    mz_examples_free(&p.x);
    MZ_FREE(p.prediction, p.fresh, p.truth, p.decoded);
    return status;
}
