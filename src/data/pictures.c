#include "data/pictures.h"

#include <stdlib.h>

#include "base/stop.h"
#include "data/many.h"
#include "data/npy.h"
#include "data/radio_map.h"
#include "io/json.h"
#include "io/png.h"

#define PHILOX_SCENES 0x2AD20000u // the `tensor` word for draws of the split
#define SPLIT_SEED    UINT64_C(0x7069637475726573)
enum { DESCRIPTION_BYTES = 1 << 16 };

void mz_pictures_close(mz_pictures *p) {
    MZ_FREE(p->picture, p->scene, p->example, p->order);
    *p = (mz_pictures){0};
}

// --- one file ------------------------------------------------------------------------------------
// Writes a description such as "u1 [3, 4]".
static const char *described(const mz_npy *npy, char out[160]) {
    int n = snprintf(out, 160, "%s [", mz_npy_type_name(npy->type));
    for (int i = 0; i < npy->rank; i++)
        n += snprintf(out + n, 160 - (size_t)n, "%s%lld", i > 0 ? ", " : "", (long long)npy->dim[i]);
    snprintf(out + n, 160 - (size_t)n, "]");
    return out;
}

// Converts an array to a picture of 8 bits: bytes stay, fractions of 1 are rounded.
static mezzo_status take_gray(const char *path, const mz_npy *npy, mz_picture *out) {
    const bool bytes = npy->type == MZ_NPY_U1, fractions = !mz_npy_is_integer(npy->type);
    const bool gray = npy->rank == 2 || (npy->rank == 3 && npy->dim[2] == 1);
    char shape[160];
    if (!gray || !(bytes || fractions) || npy->count < 1 || npy->dim[0] > MZ_PNG_SIDE || npy->dim[1] > MZ_PNG_SIDE)
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: the array is %s: an image must be u1, or f2, f4 or f8 from 0 to 1, [size, size]", path,
                       described(npy, shape));
    MEZZO_TRY(mz_picture_make(npy->dim[0], npy->dim[1], 1, out));
    for (int64_t i = 0; i < npy->count; i++) {
        const double value = mz_npy_number(npy, i);
        if (fractions && !(value >= 0 && value <= 1)) {
            mz_picture_free(out);
            return mz_fail(MEZZO_ERR_FORMAT, "%s: element %lld is %g: brightness is from 0 to 1", path, (long long)i,
                           value);
        }
        out->pixels[i] = (uint8_t)(bytes ? value : 255 * value + 0.5);
    }
    return MEZZO_OK;
}

static mezzo_status read_npy(const char *path, mz_picture *out) {
    mz_npy npy;
    MEZZO_TRY(mz_npy_open(path, &npy));
    const mezzo_status status = take_gray(path, &npy, out);
    return mz_npy_end(&npy, status);
}

// Reads FOLDER/NAME.png, or NAME.npy where there is no such PNG.
static mezzo_status read_either(const char *folder, const char *name, mz_path *path, mz_picture *out) {
    const mz_path npy = mz_path_of("%s/%s.npy", folder, name), png = mz_path_of("%s/%s.png", folder, name);
    const bool has_npy = mz_path_exists(npy.text);
    *path = has_npy ? npy : png;
    if (has_npy && mz_path_exists(png.text))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: a .png of that name exists too: remove one", npy.text);
    return has_npy ? read_npy(npy.text, out) : mz_png_read(png.text, out);
}

// Reads a square picture `size` pixels wide; 0: of any width.
static mezzo_status read_one(const char *folder, const char *name, int64_t size, mz_picture *out) {
    mz_path path;
    mezzo_status status = MEZZO_OK;
    MEZZO_TRY(read_either(folder, name, &path, out));
    if (out->width != out->height)
        status = mz_fail(MEZZO_ERR_FORMAT, "%s: %lld x %lld pixels: pictures must be square", path.text,
                         (long long)out->width, (long long)out->height);
    else if (size > 0 && out->width != size)
        status = mz_fail(MEZZO_ERR_FORMAT, "%s: %lld x %lld pixels: pictures must be of one size, here %lld x %lld",
                         path.text, (long long)out->width, (long long)out->height, (long long)size, (long long)size);
    if (status != MEZZO_OK)
        mz_picture_free(out);
    return status;
}

// --- a folder of files -----------------------------------------------------------------------------
// Holds what threads read once the examples are known.
typedef struct reading {
    mz_pictures *p;
    mz_path scenes, antennas, pictures; // folders; antennas: "" where there are no transmitters
} reading;

// Finds the scene of a map, whose name is the scene and a number: "12_3".
static void scene_name(const reading *r, int64_t i, char out[64]) {
    snprintf(out, 64, "%s", r->p->example[i].name);
    if (r->antennas.text[0] != '\0')
        out[strcspn(out, "_")] = '\0';
}

static mezzo_status read_into(const char *folder, const char *name, int64_t size, uint8_t *to) {
    mz_picture one;
    MEZZO_TRY(read_one(folder, name, size, &one));
    memcpy(to, one.pixels, (size_t)(size * size));
    mz_picture_free(&one);
    return MEZZO_OK;
}

// Finds the transmitter, which is the brightest pixel of its picture.
static mezzo_status find_transmitter(const char *folder, int64_t size, mz_example *example) {
    mz_picture one;
    MEZZO_TRY(read_one(folder, example->name, size, &one));
    int64_t best = 0;
    for (int64_t i = 1; i < size * size; i++)
        best = one.pixels[i] > one.pixels[best] ? i : best;
    const bool black = one.pixels[best] == 0;
    mz_picture_free(&one);
    example->x = best % size;
    example->y = best / size;
    return black ? mz_fail(MEZZO_ERR_FORMAT, "%s/%s.png: all black: no transmitter", folder, example->name) : MEZZO_OK;
}

static mezzo_status read_example(void *user, int64_t i) {
    const reading *r = user;
    mz_pictures *p = r->p;
    mz_example *e = &p->example[i];
    const size_t bytes = (size_t)(p->size * p->size);
    MEZZO_TRY(mz_stop_check(r->pictures.text));
    if (i == 0 || e->scene != e[-1].scene) {
        char name[64];
        scene_name(r, i, name);
        MEZZO_TRY(read_into(r->scenes.text, name, p->size, p->scene + (size_t)e->scene * bytes));
    }
    if (r->antennas.text[0] != '\0')
        MEZZO_TRY(find_transmitter(r->antennas.text, p->size, e));
    return read_into(r->pictures.text, e->name, p->size, p->picture + (size_t)i * bytes);
}

static mezzo_status read_all(reading *r) {
    mz_pictures *p = r->p;
    mz_picture one;
    char name[64];
    scene_name(r, 0, name);
    MEZZO_TRY(read_one(r->scenes.text, name, 0, &one));
    p->size = one.width;
    mz_picture_free(&one);
    p->picture = mz_alloc((size_t)p->n, (size_t)(p->size * p->size));
    p->scene = mz_alloc((size_t)p->scenes, (size_t)(p->size * p->size));
    if (p->picture == NULL || p->scene == NULL)
        return MEZZO_ERR_MEMORY;
    return mz_read_many(p->n, read_example, r);
}

static mezzo_status add_example(mz_pictures *p, const mz_example *example) {
    MEZZO_TRY(MZ_RESERVE(p->example, p->room_examples, p->n + 1));
    p->example[p->n++] = *example;
    return MEZZO_OK;
}

// --- RadioMapSeer --------------------------------------------------------------------------------
typedef struct numbered {
    int64_t map, transmitter;
} numbered;

static int by_number(const void *a, const void *b) {
    const numbered *x = a, *y = b;
    if (x->map != y->map)
        return x->map < y->map ? -1 : 1;
    return (x->transmitter > y->transmitter) - (x->transmitter < y->transmitter);
}

// Parses "12_3.png"; each number has at most nine digits.
static bool parse_name(const char *name, numbered *out) {
    int end = 0;
    long long map, transmitter;
    if (sscanf(name, "%9lld_%9lld.png%n", &map, &transmitter, &end) != 2 || end == 0 || name[end] != '\0')
        return false;
    *out = (numbered){map, transmitter};
    char again[64];
    snprintf(again, sizeof again, "%lld_%lld.png", map, transmitter);
    return strcmp(again, name) == 0;
}

static mezzo_status list_maps(const char *folder, numbered **out, size_t *count) {
    char **names = NULL;
    size_t n = 0;
    *count = 0;
    *out = NULL;
    MEZZO_TRY(mz_dir_list(folder, &names, &n));
    mezzo_status status = MEZZO_OK;
    *out = mz_alloc(n + 1, sizeof **out);
    if (*out == NULL)
        status = MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < n && status == MEZZO_OK; i++)
        *count += parse_name(names[i], &(*out)[*count]);
    mz_dir_list_free(names, n);
    if (status == MEZZO_OK && *count == 0)
        status = mz_fail(MEZZO_ERR_FORMAT, "%s: no {map}_{transmitter}.png in it", folder);
    if (status == MEZZO_OK)
        qsort(*out, *count, sizeof **out, by_number);
    return status;
}

static mezzo_status find_gain(const char *path, mz_path *out) {
    char **names;
    size_t n;
    const mz_path gain = mz_path_of("%s/gain", path);
    *out = mz_path_of("%s/DPM", gain.text);
    if (mz_path_is_dir(out->text))
        return MEZZO_OK;
    MEZZO_TRY(mz_dir_list(gain.text, &names, &n));
    if (n == 1)
        *out = mz_path_of("%s/%s", gain.text, names[0]);
    mz_dir_list_free(names, n);
    return n == 1 ? MEZZO_OK
                  : mz_fail(MEZZO_ERR_FORMAT, "%s: %zu kinds of maps, none of them DPM: keep one folder", gain.text, n);
}

// Reads the description in a folder of `mezzo data radio`; RadioMapSeer's values are the same, at one metre a pixel.
static mezzo_status read_description(mz_pictures *p, const char *path) {
    json_t *json = NULL;
    double extent = (double)p->size;
    p->loss_at_0 = mz_radio_loss(0);
    p->loss_at_255 = mz_radio_loss(255);
    const mz_path place = mz_path_of("%s/" MZ_RADIO_FILE, path);
    const char *file = place.text;
    mezzo_status status = MEZZO_OK;
    if (mz_path_exists(file)) {
        status = mz_json_load(file, DESCRIPTION_BYTES, &json);
        if (status == MEZZO_OK)
            status = mz_json_get_double(file, json, "extent_m", &extent);
        if (status == MEZZO_OK)
            status = mz_json_get_double(file, json, "loss_db_at_0", &p->loss_at_0);
        if (status == MEZZO_OK)
            status = mz_json_get_double(file, json, "loss_db_at_255", &p->loss_at_255);
        if (status == MEZZO_OK && !(extent > 0 && extent < 1e6 && p->loss_at_0 > p->loss_at_255))
            status =
                mz_fail(MEZZO_ERR_FORMAT, "%s: extent_m %g, loss_db_at_0 %g, loss_db_at_255 %g do not define a scale",
                        file, extent, p->loss_at_0, p->loss_at_255);
        json_decref(json);
    }
    p->cell = extent / (double)p->size;
    return status;
}

static mezzo_status add_maps(mz_pictures *p, const numbered *maps, size_t n) {
    for (size_t i = 0; i < n; i++) {
        p->scenes += i == 0 || maps[i].map != maps[i - 1].map;
        mz_example example = {.scene = p->scenes - 1};
        snprintf(example.name, sizeof example.name, "%lld_%lld", (long long)maps[i].map,
                 (long long)maps[i].transmitter);
        MEZZO_TRY(add_example(p, &example));
    }
    return MEZZO_OK;
}

static mezzo_status open_radio(const char *path, mz_pictures *p) {
    MZ_SCOPED(mz_free_at) numbered *maps = NULL;
    size_t n = 0;
    reading r = {.p = p,
                 .scenes = mz_path_of("%s/png/buildings_complete", path),
                 .antennas = mz_path_of("%s/png/antennas", path)};
    p->radio = true;
    p->channels = 1;
    p->condition_channels = 2;
    MEZZO_TRY(find_gain(path, &r.pictures));
    MEZZO_TRY(list_maps(r.pictures.text, &maps, &n));
    MEZZO_TRY(add_maps(p, maps, n));
    MEZZO_TRY(read_all(&r));
    return read_description(p, path);
}

// --- pairs, arrays -------------------------------------------------------------------------------
static mezzo_status add_pair(mz_pictures *p, const char *input, const char *file) {
    const size_t n = strlen(file);
    mz_example example = {.scene = p->scenes, .x = -1, .y = -1};
    if (n < 5 || (!mz_ends_with(file, ".png") && !mz_ends_with(file, ".npy")))
        return MEZZO_OK;
    if (n - 4 >= sizeof example.name)
        return mz_fail(MEZZO_ERR_FORMAT, "%s/%s: a name of more than %zu bytes", input, file, sizeof example.name - 1);
    memcpy(example.name, file, n - 4);
    p->scenes++;
    return add_example(p, &example);
}

static mezzo_status open_pairs(const char *path, mz_pictures *p) {
    mezzo_status status = MEZZO_OK;
    char **names = NULL;
    size_t n = 0;
    reading r = {.p = p, .scenes = mz_path_of("%s/input", path), .pictures = mz_path_of("%s/target", path)};
    p->channels = p->condition_channels = 1;
    MEZZO_TRY(mz_dir_list(r.scenes.text, &names, &n));
    for (size_t i = 0; i < n && status == MEZZO_OK; i++)
        status = add_pair(p, r.scenes.text, names[i]);
    mz_dir_list_free(names, n);
    MEZZO_TRY(status);
    if (p->n == 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: no *.png and no *.npy in it", r.scenes.text);
    return read_all(&r);
}

static mezzo_status take_array(const char *path, const mz_npy *npy, mz_pictures *p) {
    const bool fits = npy->type == MZ_NPY_U1 && (npy->rank == 3 || npy->rank == 4) && npy->count > 0 &&
                      npy->dim[1] == npy->dim[2] && npy->dim[1] <= MZ_PNG_SIDE;
    char shape[160];
    if (!fits)
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: the array is %s: images must be u1, [n, size, size] or [n, size, size, channels]", path,
                       described(npy, shape));
    p->n = p->scenes = npy->dim[0];
    p->size = npy->dim[1];
    p->channels = npy->rank == 4 ? npy->dim[3] : 1;
    p->picture = mz_alloc((size_t)npy->count, 1);
    p->example = mz_alloc((size_t)p->n, sizeof *p->example);
    if (p->picture == NULL || p->example == NULL)
        return MEZZO_ERR_MEMORY;
    memcpy(p->picture, npy->data, (size_t)npy->count);
    for (int64_t i = 0; i < p->n; i++) {
        p->example[i] = (mz_example){.scene = i, .x = -1, .y = -1};
        snprintf(p->example[i].name, sizeof p->example[i].name, "%lld", (long long)i);
    }
    return MEZZO_OK;
}

static mezzo_status open_array(const char *path, mz_pictures *p) {
    mz_npy npy;
    MEZZO_TRY(mz_npy_open(path, &npy));
    const mezzo_status status = take_array(path, &npy, p);
    return mz_npy_end(&npy, status);
}

// --- the split -----------------------------------------------------------------------------------
// Shuffles the scenes by Fisher and Yates, alike in every run. The first ones train, with all their examples.
static mezzo_status divide(mz_pictures *p, double split) {
    int64_t *shuffled = mz_alloc((size_t)p->scenes, sizeof *shuffled);
    bool *trains = mz_alloc((size_t)p->scenes, sizeof *trains);
    p->order = mz_alloc((size_t)p->n, sizeof *p->order);
    const bool all = shuffled != NULL && trains != NULL && p->order != NULL;
    p->scenes_train = split < 1 ? (int64_t)(split * (double)p->scenes) : p->scenes;
    if (all) {
        for (int64_t i = 0; i < p->scenes; i++)
            shuffled[i] = i;
        for (int64_t i = p->scenes - 1; i > 0; i--) {
            uint32_t words[4];
            mz_philox((mz_philox_key){SPLIT_SEED, 0, PHILOX_SCENES}, (uint64_t)i, words);
            const int64_t k = (int64_t)(((__uint128_t)(words[0] | (uint64_t)words[1] << 32) * (uint64_t)(i + 1)) >> 64);
            const int64_t kept = shuffled[i];
            shuffled[i] = shuffled[k];
            shuffled[k] = kept;
        }
        for (int64_t i = 0; i < p->scenes_train; i++)
            trains[shuffled[i]] = true;
        int64_t at = 0;
        for (int side = 1; side >= 0; side--) {
            for (int64_t i = 0; i < p->n; i++)
                if (trains[p->example[i].scene] == (side == 1))
                    p->order[at++] = i;
            p->n_train = side == 1 ? at : p->n_train;
        }
    }
    MZ_FREE(shuffled, trains);
    return all ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

static mezzo_status open_any(const char *path, mz_pictures *out) {
    const bool radio = mz_path_is_dir(mz_path_of("%s/png/buildings_complete", path).text),
               pairs = mz_path_is_dir(mz_path_of("%s/input", path).text);
    if (mz_ends_with(path, ".npy"))
        return open_array(path, out);
    if (radio || pairs)
        return radio ? open_radio(path, out) : open_pairs(path, out);
    if (!mz_path_exists(path))
        return mz_fail(MEZZO_ERR_INVALID, "%s: no such folder or file", path);
    return mz_fail(MEZZO_ERR_FORMAT,
                   "%s: no pictures: a folder with png/buildings_complete or with input and target, or a .npy file",
                   path);
}

mezzo_status mz_pictures_open(const char *path, double split, mz_pictures *out) {
    *out = (mz_pictures){0};
    mezzo_status status = open_any(path, out);
    if (status == MEZZO_OK)
        status = divide(out, split);
    if (status == MEZZO_OK && out->n_train == 0)
        status = mz_fail(MEZZO_ERR_INVALID,
                         "%s: scenes: %lld, of which a split of %g leaves none to train on; a split of 1 takes all",
                         path, (long long)out->scenes, split);
    if (status != MEZZO_OK)
        mz_pictures_close(out);
    return status;
}
