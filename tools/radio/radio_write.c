// Writes the cities as a folder in RadioMapSeer's layout.
#include <inttypes.h>
#include <omp.h>

#include "tools/radio/radio.h"
#include "io/file.h"
#include "io/png.h"

enum { PNG_LEVEL = 4 }; // zlib's: half as fast as 1, and files a third smaller

static const char *const folders[] = {"png/buildings_complete", "png/antennas", "gain/DPM"};
enum { BUILDINGS, ANTENNAS, GAIN };

// Holds the first error, by number of the map: errors are kept for each thread, and this one is passed to the caller.
typedef struct trouble {
    mezzo_status status;
    int64_t map;
    char message[512];
} trouble;

typedef struct job {
    const mz_radio_options *o;
    const volatile sig_atomic_t *stop;
    trouble trouble;
    int64_t maps, built_up; // number of finished maps; number of pixels in buildings
} job;

// Writes a file without flushing it, because a folder without its last file is incomplete, and is made again.
static mezzo_status put(const job *j, int folder, const char *name, uint8_t *pixels) {
    const mz_picture picture = {j->o->size, j->o->size, 1, pixels};
    uint8_t *bytes;
    size_t n;
    mz_file *file = NULL;
    const mz_path path = mz_path_of("%s/%s/%s.png", j->o->out, folders[folder], name);
    mezzo_status status = mz_png_encode(&picture, PNG_LEVEL, &bytes, &n);
    if (status == MEZZO_OK)
        status = mz_file_create_new(path.text, &file);
    if (status == MEZZO_OK)
        status = mz_file_write(file, bytes, n);
    if (status == MEZZO_OK)
        status = mz_file_commit(file);
    else
        mz_file_discard(file);
    mz_free(bytes);
    return status;
}

static mezzo_status write_transmitter(const job *j, const mz_city *city, mz_field *field, int64_t map, int64_t which,
                                      const uint8_t *buildings, uint8_t *pixels) {
    const int64_t size = j->o->size;
    const mz_point at = mz_city_transmitter(city, j->o->seed, (uint64_t)map, (uint64_t)which, size, buildings);
    char name[64];
    snprintf(name, sizeof name, "%" PRId64 "_%" PRId64, map, which);
    MEZZO_TRY(mz_field_map(field, at, pixels));
    MEZZO_TRY(put(j, GAIN, name, pixels));
    memset(pixels, 0, (size_t)(size * size));
    const double cells = (double)size / city->extent;
    pixels[(int64_t)(at.y * cells) * size + (int64_t)(at.x * cells)] = 255;
    return put(j, ANTENNAS, name, pixels);
}

static mezzo_status write_map(job *j, int64_t map, int64_t *built_up) {
    const int64_t size = j->o->size, n = size * size;
    mezzo_status status = MEZZO_OK;
    mz_city city = {0};
    mz_field *field = NULL;
    char name[32];
    uint8_t *buildings = mz_alloc((size_t)n, 1), *pixels = mz_alloc((size_t)n, 1);
    if (buildings == NULL || pixels == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    MEZZO_TRY_GOTO(status, mz_city_make(j->o->seed, (uint64_t)map, j->o->extent, &city));
    mz_city_draw(&city, size, buildings);
    MEZZO_TRY_GOTO(status, mz_field_make(&city, size, buildings, &field));
    snprintf(name, sizeof name, "%" PRId64, map);
    MEZZO_TRY_GOTO(status, put(j, BUILDINGS, name, buildings));
    for (int64_t i = 0; i < n; i++)
        *built_up += buildings[i] != 0;
    for (int64_t which = 0; which < j->o->transmitters; which++)
        MEZZO_TRY_GOTO(status, write_transmitter(j, &city, field, map, which, buildings, pixels));
fail:
    mz_field_free(field);
    mz_city_free(&city);
    MZ_FREE(buildings, pixels);
    return status;
}

static void write_one(job *j, int64_t map) {
    int64_t built_up = 0;
    bool go_on;
#pragma omp critical(mz_radio_trouble)
    go_on = j->trouble.status == MEZZO_OK && (j->stop == NULL || *j->stop == 0);
    if (!go_on)
        return;
    const mezzo_status status = write_map(j, map, &built_up);
#pragma omp critical(mz_radio_trouble)
    {
        if (status == MEZZO_OK) {
            j->maps++;
            j->built_up += built_up;
        } else if (j->trouble.status == MEZZO_OK || map < j->trouble.map) {
            j->trouble = (trouble){.status = status, .map = map};
            snprintf(j->trouble.message, sizeof j->trouble.message, "%s", mezzo_error_message());
        }
    }
}

static mezzo_status write_maps(job *j) {
    const int threads = j->o->threads > 0 ? j->o->threads : omp_get_max_threads();
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t map = 0; map < j->o->maps; map++)
        write_one(j, map);
    if (j->trouble.status != MEZZO_OK)
        return mz_fail(j->trouble.status, "%s", j->trouble.message);
    if (j->maps < j->o->maps)
        return mz_fail(MEZZO_ERR_INTERRUPTED, "stopped after %lld of %lld maps: remove %s and begin again",
                       (long long)j->maps, (long long)j->o->maps, j->o->out);
    return MEZZO_OK;
}

static mezzo_status make_folders(const char *out) {
    char **names = NULL;
    size_t n = 0;
    if (mz_path_exists(out)) {
        MEZZO_TRY(mz_dir_list(out, &names, &n));
        mz_dir_list_free(names, n);
        if (n > 0)
            return mz_fail(MEZZO_ERR_INVALID, "%s is not empty: name a new folder", out);
    }
    for (size_t i = 0; i < MZ_COUNT(folders); i++)
        MEZZO_TRY(mz_dir_create(mz_path_of("%s/%s", out, folders[i]).text));
    return MEZZO_OK;
}

static mezzo_status write_description(const mz_radio_options *o) {
    mz_text text = {0};
    mz_text_addf(&text, "{\n  \"format\": \"mezzo-radio\",\n  \"version\": 1,\n  \"maps\": %lld,\n",
                 (long long)o->maps);
    mz_text_addf(&text, "  \"transmitters\": %lld,\n  \"size\": %lld,\n  \"extent_m\": %.17g,\n",
                 (long long)o->transmitters, (long long)o->size, o->extent);
    mz_text_addf(&text, "  \"seed\": %" PRIu64 ",\n  \"frequency_ghz\": %.17g,\n", o->seed, MZ_RADIO_GHZ);
    mz_text_addf(&text, "  \"loss_db_at_255\": %.17g,\n  \"loss_db_at_0\": %.17g\n}\n", mz_radio_loss(255),
                 mz_radio_loss(0));
    return mz_text_save(&text, mz_path_of("%s/" MZ_RADIO_FILE, o->out).text);
}

static mezzo_status check_options(const mz_radio_options *o) {
    if (o->maps < 1 || o->transmitters < 1 || o->size < 16 || o->size > 4096)
        return mz_fail(
            MEZZO_ERR_INVALID,
            "%lld maps, %lld transmitters, %lld pixels: at least 1 map and transmitter, and 16 to 4096 pixels a side",
            (long long)o->maps, (long long)o->transmitters, (long long)o->size);
    if (!(o->extent >= 64 && o->extent <= 4096))
        return mz_fail(MEZZO_ERR_INVALID,
                       "a city of %g m a side: the extent must be 64 to 4096 m (by itself it is one metre a pixel)",
                       o->extent);
    return MEZZO_OK;
}

mezzo_status mz_radio_write(const mz_radio_options *options, const volatile sig_atomic_t *stop, mz_radio_written *out) {
    const double start = mz_seconds();
    mz_radio_options o = *options;
    *out = (mz_radio_written){0};
    if (o.extent == 0)
        o.extent = (double)o.size;
    MEZZO_TRY(check_options(&o));
    MEZZO_TRY(make_folders(o.out));
    job j = {.o = &o, .stop = stop};
    MEZZO_TRY(write_maps(&j));
    MEZZO_TRY(write_description(&o));
    *out = (mz_radio_written){.maps = o.maps,
                              .pictures = o.maps * (1 + 2 * o.transmitters),
                              .seconds = mz_seconds() - start,
                              .built_up = (double)j.built_up / (double)(o.maps * o.size * o.size)};
    return MEZZO_OK;
}
