#include "data/picture_score.h"

#include <math.h>
#include <stdlib.h>

#include "data/radio_map.h"
#include "io/csv.h"
#include "io/file.h"

enum { TILE = 160, GAP = 4, TILES = 4 };

// --- predictions ---------------------------------------------------------------------------------
void mz_picture_truth(const mz_pictures *p, int64_t example, float *out) {
    const int64_t n = p->size * p->size;
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)p->picture[example * n + i] / 255.0F;
}

// Predicts the mean of all training pictures, which a model should beat.
static mezzo_status predict_mean(const mz_pictures *p, float *out) {
    const int64_t n = p->size * p->size;
    uint64_t *sum;
    MEZZO_TRY(MZ_NEW(sum, n));
    for (int64_t k = 0; k < p->n_train; k++)
        for (int64_t i = 0; i < n; i++)
            sum[i] += p->picture[p->order[k] * n + i];
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)((double)sum[i] / (255.0 * (double)p->n_train));
    mz_free(sum);
    return MEZZO_OK;
}

float mz_free_space_brightness(const mz_pictures *p, int64_t dx, int64_t dy) {
    const double loss = mz_free_space_loss(p->cell * hypot((double)dx, (double)dy));
    return (float)fmin(fmax((p->loss_at_0 - loss) / (p->loss_at_0 - p->loss_at_255), 0), 1);
}

// Predicts the loss in free space from the transmitter's position, and 0 in buildings.
static void predict_free_space(const mz_pictures *p, int64_t example, float *out) {
    const mz_example *e = &p->example[example];
    const uint8_t *buildings = p->scene + e->scene * p->size * p->size;
    for (int64_t i = 0; i < p->size * p->size; i++)
        out[i] = buildings[i] != 0 ? 0 : mz_free_space_brightness(p, i % p->size - e->x, i / p->size - e->y);
}

static mezzo_status read_prediction(const mz_pictures *p, const char *path, float *out) {
    mz_picture picture;
    MEZZO_TRY(mz_png_read(path, &picture));
    const bool fits = picture.width == p->size && picture.height == p->size;
    for (int64_t i = 0; i < p->size * p->size && fits; i++)
        out[i] = (float)picture.pixels[i] / 255.0F;
    mezzo_status status = MEZZO_OK;
    if (!fits)
        status = mz_fail(MEZZO_ERR_FORMAT, "%s: %lld x %lld pixels, and the truth has %lld a side", path,
                         (long long)picture.width, (long long)picture.height, (long long)p->size);
    mz_picture_free(&picture);
    return status;
}

// --- the sheet -----------------------------------------------------------------------------------
static int64_t magnified(const mz_pictures *p) {
    return p->size >= TILE ? 1 : TILE / p->size;
}

mezzo_status mz_sheet_make(const mz_pictures *p, int64_t n, mz_picture *out) {
    const int64_t tile = p->size * magnified(p) + GAP;
    *out = (mz_picture){0};
    if (n < 1 || tile > (MZ_PNG_SIDE - GAP) / TILES || n > (MZ_PNG_SIDE - GAP) / tile)
        return mz_fail(MEZZO_ERR_INVALID, "a sheet of %lld rows of pictures of %lld pixels: at most %lld rows",
                       (long long)n, (long long)p->size, (long long)((MZ_PNG_SIDE - GAP) / tile));
    MEZZO_TRY(mz_picture_make(GAP + n * tile, GAP + TILES * tile, 3, out));
    memset(out->pixels, 48, (size_t)(out->height * out->width * 3));
    return MEZZO_OK;
}

static void put(mz_picture *sheet, const mz_pictures *p, int64_t row, int64_t column, int64_t pixel,
                const uint8_t rgb[3]) {
    const int64_t zoom = magnified(p), tile = p->size * zoom + GAP;
    const int64_t top = GAP + row * tile + pixel / p->size * zoom, left = GAP + column * tile + pixel % p->size * zoom;
    for (int64_t y = top; y < top + zoom; y++)
        for (int64_t x = left; x < left + zoom; x++)
            memcpy(sheet->pixels + (y * sheet->width + x) * 3, rgb, 3);
}

static uint8_t byte(double x) {
    return (uint8_t)(fmin(fmax(x, 0), 1) * 255 + 0.5);
}

void mz_sheet_add(const mz_pictures *p, int64_t row, int64_t example, const float *predicted, mz_picture *sheet) {
    const mz_example *e = &p->example[example];
    const int64_t n = p->size * p->size;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t truth = p->picture[example * n + i], guess = byte((double)predicted[i]);
        const uint8_t scene = (uint8_t)(p->scene != NULL ? p->scene[e->scene * n + i] * 3 / 4 : 0);
        const double error = fabs((double)predicted[i] - truth / 255.0);
        // The transmitter is one pixel, so it is drawn as a cross of five.
        const int64_t dx = e->x < 0 ? n : llabs(i % p->size - e->x), dy = llabs(i / p->size - e->y);
        const bool here = dx + dy <= (p->size >= 128 ? 2 : 1);
        const uint8_t from[3] = {here ? 255 : scene, here ? 40 : scene, here ? 40 : scene};
        const uint8_t differs[3] = {byte(error * 4), byte(error * 4 - 1), byte(error * 2 - 1)};
        put(sheet, p, row, 0, i, from);
        put(sheet, p, row, 1, i, (const uint8_t[3]){truth, truth, truth});
        put(sheet, p, row, 2, i, (const uint8_t[3]){guess, guess, guess});
        put(sheet, p, row, 3, i, differs);
    }
}

// --- a whole set ---------------------------------------------------------------------------------
typedef struct scoring {
    const mz_score_options *o;
    mz_pictures p;
    bool mean, free_space;
    float *predicted, *truth;
    mz_picture sheet;
    int64_t rows; // rows of the sheet that are filled
    mz_text csv;
    mz_image_total total;
} scoring;

static mezzo_status start(scoring *s) {
    const mz_score_options *o = s->o;
    MEZZO_TRY(mz_pictures_open(o->truth, o->split, &s->p));
    s->mean = strcmp(o->predicted, "mean") == 0;
    s->free_space = strcmp(o->predicted, "free-space") == 0;
    if (s->p.channels != 1)
        return mz_fail(MEZZO_ERR_INVALID, "%s: %lld channels: gray pictures are compared", o->truth,
                       (long long)s->p.channels);
    if (s->free_space && !s->p.radio)
        return mz_fail(MEZZO_ERR_INVALID, "%s: not radio maps, so there is no free-space prediction", o->truth);
    if (!s->mean && !s->free_space && !mz_path_is_dir(o->predicted))
        return mz_fail(MEZZO_ERR_INVALID, "%s: not a folder of predictions, nor \"mean\" or \"free-space\"",
                       o->predicted);
    const size_t n = (size_t)(s->p.size * s->p.size);
    MEZZO_TRY(MZ_NEW(s->predicted, n));
    MEZZO_TRY(MZ_NEW(s->truth, n));
    mz_text_addf(&s->csv, "name,nmse,rmse,psnr,ssim\n");
    MEZZO_TRY(s->csv.status);
    return s->mean ? predict_mean(&s->p, s->predicted) : MEZZO_OK;
}

// Predicts an example; *there: it has a prediction to compare.
static mezzo_status predict(scoring *s, int64_t k, bool *there) {
    const int64_t example = s->p.order[k];
    if (s->mean || s->free_space) {
        *there = k >= s->p.n_train || s->p.n_train == s->p.n;
        if (*there && s->free_space)
            predict_free_space(&s->p, example, s->predicted);
        return MEZZO_OK;
    }
    const mz_path path = mz_path_of("%s/%s.png", s->o->predicted, s->p.example[example].name);
    *there = mz_path_exists(path.text);
    return *there ? read_prediction(&s->p, path.text, s->predicted) : MEZZO_OK;
}

static mezzo_status score_one(scoring *s, int64_t k) {
    const int64_t example = s->p.order[k];
    mz_image_score one;
    bool there;
    MEZZO_TRY(predict(s, k, &there));
    if (!there)
        return MEZZO_OK;
    mz_picture_truth(&s->p, example, s->truth);
    MEZZO_TRY(mz_image_compare(s->predicted, s->truth, s->p.size, s->p.size, &one));
    mz_image_add(&s->total, &one);
    mz_csv_add(&s->csv, s->p.example[example].name);
    mz_text_addf(&s->csv, ",%.9g,%.9g,%.9g,%.9g\n", one.nmse, one.rmse, one.psnr, one.ssim);
    if (s->sheet.pixels != NULL && s->rows < s->o->rows)
        mz_sheet_add(&s->p, s->rows++, example, s->predicted, &s->sheet);
    return s->csv.status;
}

static mezzo_status score_all(scoring *s) {
    if (s->o->sheet != NULL)
        MEZZO_TRY(mz_sheet_make(&s->p, s->o->rows, &s->sheet));
    for (int64_t k = 0; k < s->p.n; k++)
        MEZZO_TRY(score_one(s, k));
    if (s->total.n == 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s: no prediction for any image of %s (expected names such as %s.png)",
                       s->o->predicted, s->o->truth, s->p.example[0].name);
    if (s->o->csv != NULL)
        MEZZO_TRY(mz_file_write_atomic(s->o->csv, s->csv.data, s->csv.len));
    if (s->o->sheet == NULL)
        return MEZZO_OK;
    s->sheet.height = GAP + s->rows * (s->p.size * magnified(&s->p) + GAP);
    return mz_png_write(s->o->sheet, &s->sheet);
}

mezzo_status mz_score_pictures(const mz_score_options *options, mz_image_total *out) {
    scoring s = {.o = options};
    mezzo_status status = start(&s);
    if (status == MEZZO_OK)
        status = score_all(&s);
    *out = s.total;
    mz_picture_free(&s.sheet);
    mz_text_free(&s.csv);
    MZ_FREE(s.predicted, s.truth);
    mz_pictures_close(&s.p);
    return status;
}
