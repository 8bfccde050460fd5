// The classifier's task: rows of features, each with the number of its class. Inputs "x" F32 [B, features], or of
// images [B, side, side, channels], and "targets" I32 [B]. From a table, a folder of images for each class or two .npy
// files, or, where none is named, a set of its own: classes that are clusters of points, of which some lie among the
// others'.
#include <math.h>

#include "data/labelled.h"
#include "data/npy.h"
#include "io/file.h"
#include "task/task.h"
#include "io/quote.h"

// The set that comes with the task. Its seed is fixed: runs of different seeds learn the same thing.
enum { OWN_EXAMPLES = 4096, OWN_FEATURES = 5, OWN_CLASSES = 3, CLUSTERS = 2 };
#define OWN_SEED     UINT64_C(0x746F79)
#define OWN_SPREAD   1.5F        // deviation of the clusters' centres; that of a cluster's points is 1
#define PHILOX_ORDER 0xC1A50000u // the `tensor` words of this file's draws
#define PHILOX_SPLIT 0xC1A50010u
#define PHILOX_OWN   0xC1A50020u

#define CLASSES_FILE "classes.json"

typedef struct classifier {
    mz_task task;
    int64_t n, n_train; // examples; the first of `order` train, the others validate
    float *x;           // [n, features]; NULL: pixels instead
    uint8_t *pixels;    // [n, features]: 255 is 1
    int32_t *y;         // [n]
    mz_classes classes; // their names, of a table or folders
    int64_t *order;     // [n]: a shuffle, as files are often sorted by class
    char labels[512];   // where they came from, for errors
} classifier;

typedef struct range {
    int64_t first, n; // of classifier.order
    bool random;
    uint64_t seed;
    uint32_t stream;
} range;

static bool given(const char *text) {
    return text != NULL && text[0] != '\0';
}

static void close_task(mz_task *task) {
    classifier *c = (classifier *)task;
    mz_free(c->x);
    mz_free(c->pixels);
    mz_free(c->y);
    mz_free(c->order);
    mz_classes_free(&c->classes);
    mz_free(c);
}

// --- the set of its own --------------------------------------------------------------------------
static void own_normals(uint64_t index, uint32_t of, float out[8]) {
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t words[4];
        mz_philox((mz_philox_key){OWN_SEED, k, PHILOX_OWN + of}, index, words);
        mz_normal4(words, out + 4 * k);
    }
}

static mezzo_status make_own(classifier *c) {
    float centers[OWN_CLASSES * CLUSTERS][8], noise[8];
    c->n = OWN_EXAMPLES;
    c->task.sizes = (mz_model_sizes){.features = OWN_FEATURES, .classes = OWN_CLASSES};
    c->x = mz_alloc((size_t)c->n * OWN_FEATURES, sizeof *c->x);
    c->y = mz_alloc((size_t)c->n, sizeof *c->y);
    if (c->x == NULL || c->y == NULL)
        return MEZZO_ERR_MEMORY;
    for (uint64_t k = 0; k < MZ_COUNT(centers); k++)
        own_normals(k, 0, centers[k]);
    for (int64_t i = 0; i < c->n; i++) {
        int64_t cluster = i % (int64_t)MZ_COUNT(centers);
        own_normals((uint64_t)i, 1, noise);
        c->y[i] = (int32_t)(cluster % OWN_CLASSES);
        for (int k = 0; k < OWN_FEATURES; k++)
            c->x[i * OWN_FEATURES + k] = OWN_SPREAD * centers[cluster][k] + noise[k];
    }
    return MEZZO_OK;
}

// --- files ---------------------------------------------------------------------------------------
static mezzo_status read_features(const char *path, classifier *c) {
    mz_npy npy;
    mezzo_status status = MEZZO_OK;
    MEZZO_TRY(mz_npy_open(path, &npy));
    if (npy.rank < 2 || npy.rank > 4 || npy.count == 0) {
        status = mz_fail(MEZZO_ERR_INVALID,
                         "%s: %d dimensions and %lld elements: features are [examples, features], and of images "
                         "[examples, side, side] or [examples, side, side, channels]",
                         path, npy.rank, (long long)npy.count);
        goto fail;
    }
    c->n = npy.dim[0];
    c->task.sizes.features = npy.count / npy.dim[0];
    if (npy.rank > 2 && npy.dim[1] == npy.dim[2]) {
        c->task.sizes.image_size = npy.dim[1];
        c->task.sizes.channels = npy.rank == 4 ? npy.dim[3] : 1;
    }
    c->x = mz_alloc((size_t)npy.count, sizeof *c->x);
    if (c->x == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    const double factor = npy.type == MZ_NPY_U1 ? 1.0 / 255 : 1; // bytes are brightness
    for (int64_t i = 0; i < npy.count; i++) {
        c->x[i] = (float)(factor * mz_npy_number(&npy, i));
        if (isfinite(c->x[i]))
            continue;
        status = mz_fail(MEZZO_ERR_INVALID, "%s: row %lld, column %lld is %g: not finite in fp32", path,
                         (long long)(i / c->task.sizes.features), (long long)(i % c->task.sizes.features),
                         mz_npy_number(&npy, i));
        goto fail;
    }
fail:
    return mz_npy_end(&npy, status);
}

static mezzo_status read_labels(const char *path, classifier *c) {
    mz_npy npy;
    mezzo_status status = MEZZO_OK;
    MEZZO_TRY(mz_npy_open(path, &npy));
    if (!mz_npy_is_integer(npy.type))
        status = mz_fail(MEZZO_ERR_INVALID, "%s: labels are of type %s: classes are integers (u1, i4 or i8)", path,
                         mz_npy_type_name(npy.type));
    else if (npy.rank != 1 || npy.count != c->n)
        status = mz_fail(MEZZO_ERR_INVALID, "%s: %lld labels in %d dimensions, and there are %lld rows of features",
                         path, (long long)npy.count, npy.rank, (long long)c->n);
    if (status == MEZZO_OK)
        c->y = mz_alloc((size_t)c->n, sizeof *c->y);
    if (status == MEZZO_OK && c->y == NULL)
        status = MEZZO_ERR_MEMORY;
    for (int64_t i = 0; i < c->n && status == MEZZO_OK; i++) {
        int64_t label = mz_npy_integer(&npy, i);
        c->y[i] = (int32_t)label;
        if (label < 0 || label >= INT32_MAX)
            status = mz_fail(MEZZO_ERR_INVALID, "%s: label %lld in row %lld: classes count from 0", path,
                             (long long)label, (long long)i);
        else if (label >= c->task.sizes.classes)
            c->task.sizes.classes = label + 1;
    }
    return mz_npy_end(&npy, status);
}

// Classes have the numbers that the run gave them, where it kept their names.
static mezzo_status read_labelled(const mz_task_options *o, const char *path, bool is_table, classifier *c) {
    mz_labelled data;
    if (given(o->own))
        MEZZO_TRY(mz_classes_load(o->own, &c->classes));
    MEZZO_TRY(is_table ? mz_labelled_read_table(path, o->labels, &c->classes, &data)
                       : mz_labelled_read_images(path, &c->classes, &data));
    c->n = data.n;
    c->x = data.x;
    c->pixels = data.pixels;
    c->y = data.y;
    c->task.sizes = (mz_model_sizes){.features = data.features,
                                     .classes = (int64_t)c->classes.n,
                                     .image_size = data.side,
                                     .channels = data.side > 0 ? data.channels : 0};
    snprintf(c->labels, sizeof c->labels, "%s", path);
    if (c->classes.n == 1)
        return mz_fail(MEZZO_ERR_INVALID, "%s: every example is of the class %s: a classifier needs examples of two",
                       path, mz_quote(c->classes.names[0]).text);
    return MEZZO_OK;
}

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

// A shuffle by Fisher and Yates, the same for every run; then the split.
static mezzo_status split(classifier *c, double part) {
    c->order = mz_alloc((size_t)c->n, sizeof *c->order);
    if (c->order == NULL)
        return MEZZO_ERR_MEMORY;
    for (int64_t i = 0; i < c->n; i++)
        c->order[i] = i;
    for (int64_t i = c->n - 1; i > 0; i--) {
        uint32_t words[4];
        mz_philox((mz_philox_key){OWN_SEED, 0, PHILOX_SPLIT}, (uint64_t)i, words);
        int64_t k = (int64_t)(((__uint128_t)(words[0] | (uint64_t)words[1] << 32) * (uint64_t)(i + 1)) >> 64);
        int64_t kept = c->order[i];
        c->order[i] = c->order[k];
        c->order[k] = kept;
    }
    c->n_train = part > 0 && part < 1 ? (int64_t)(part * (double)c->n) : c->n;
    if (c->n_train == 0)
        return mz_fail(MEZZO_ERR_INVALID, "%lld examples, of which data.split %g leaves none to train on",
                       (long long)c->n, part);
    return MEZZO_OK;
}

static mezzo_status open_set(classifier *c, const mz_task_options *o) {
    const char *features = given(o->all) ? o->all : given(o->features) ? o->features : o->path;
    if (given(o->train) || given(o->validation))
        return mz_fail(MEZZO_ERR_INVALID,
                       "data.%s is set, and the model is a classifier: give data.features and "
                       "data.labels, which data.split divides",
                       given(o->train) ? "train" : "val");
    if (given(o->features) && given(o->path))
        return mz_fail(MEZZO_ERR_INVALID, "data.path and data.features are both set: give one");
    const bool is_table = given(features) && ends_with(features, ".csv"),
               is_folder = given(features) && mz_path_is_dir(features);
    if (is_folder && given(o->labels))
        return mz_fail(MEZZO_ERR_INVALID, "data.labels is set, but in %s each folder is a class: remove it", features);
    if (is_table || is_folder) {
        MEZZO_TRY(read_labelled(o, features, is_table, c));
        return split(c, given(o->all) ? 1 : o->split);
    }
    if (given(features) != given(o->labels))
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s without %s: a classifier needs both, as .npy files (--data FEATURES --labels LABELS), a "
                       ".csv table, a folder of images for each class, or nothing",
                       given(features) ? "features" : "data.labels", given(features) ? "data.labels" : "features");
    if (!given(features)) {
        MEZZO_TRY(make_own(c));
        return split(c, o->split);
    }
    snprintf(c->labels, sizeof c->labels, "%s", o->labels);
    MEZZO_TRY(read_features(features, c));
    MEZZO_TRY(read_labels(o->labels, c));
    return split(c, given(o->all) ? 1 : o->split);
}

static mezzo_status open_task(const mz_task_options *o, mz_task **out) {
    classifier *c = mz_alloc(1, sizeof *c);
    if (c == NULL)
        return MEZZO_ERR_MEMORY;
    c->task.kind = &mz_task_classifier;
    mezzo_status status = o->no_data ? MEZZO_OK : open_set(c, o);
    if (status == MEZZO_OK)
        *out = &c->task;
    else
        close_task(&c->task);
    return status;
}

static mezzo_status check_model(mz_task *task) {
    const classifier *c = (const classifier *)task;
    const mz_model_sizes *m = &task->wants, *sizes = &task->sizes;
    const char *name = task->model.maker->name;
    const bool images = m->image_size > 0;
    if (c->n > 0 && images && sizes->image_size == 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s: %s needs square images: a folder of PNG files for each class, or a .npy file [examples, "
                       "side, side] or [examples, side, side, channels]",
                       c->labels[0] != '\0' ? c->labels : "the set that comes with Mezzo", name);
    if (c->n > 0 && images && (sizes->image_size != m->image_size || sizes->channels != m->channels))
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s: images of %lld x %lld with %lld channels, but %s takes %lld x %lld with %lld", c->labels,
                       (long long)sizes->image_size, (long long)sizes->image_size, (long long)sizes->channels, name,
                       (long long)m->image_size, (long long)m->image_size, (long long)m->channels);
    if (c->n > 0 && !images && sizes->features != m->features)
        return mz_fail(MEZZO_ERR_INVALID,
                       "the data has %lld features, but %s takes %lld: use mlp, or remove model.features",
                       (long long)task->sizes.features, name, (long long)m->features);
    for (int64_t i = 0; i < c->n; i++)
        if (c->y[i] >= m->classes)
            return mz_fail(MEZZO_ERR_INVALID, "%s: label %d in row %lld: %s has classes 0 to %lld", c->labels, c->y[i],
                           (long long)i, name, (long long)m->classes - 1);
    return MEZZO_OK;
}

static void describe(const mz_task *task, char *out, size_t size) {
    const classifier *c = (const classifier *)task;
    const int64_t features = c->n > 0 ? task->sizes.features : task->wants.features;
    char model[200];
    mz_model_summary(&task->model, model, sizeof model);
    snprintf(out, size, "%lld features, %s, %lld examples of %lld to train on", (long long)features, model,
             (long long)c->n_train, (long long)c->n);
}

static bool has(const mz_task *task, mz_set set) {
    const classifier *c = (const classifier *)task;
    return set == MZ_SET_TRAIN ? c->n_train > 0 : c->n > c->n_train;
}

static mezzo_data_mark mark(const mz_task *task, mz_set set) {
    const classifier *c = (const classifier *)task;
    const int64_t first = set == MZ_SET_TRAIN ? 0 : c->n_train, end = set == MZ_SET_TRAIN ? c->n_train : c->n;
    const size_t features = (size_t)task->sizes.features;
    mezzo_data_mark mark = {0};
    for (int64_t i = first; i < end && c->labels[0] != '\0'; i++) { // its own set is no file that could change
        const int64_t k = c->order[i];
        const size_t width = features * (c->x != NULL ? sizeof *c->x : sizeof *c->pixels);
        const uint8_t *all = c->x != NULL ? (const uint8_t *)c->x : c->pixels;
        mark.bytes += width + sizeof *c->y;
        mark.crc32c = mz_crc32c(mark.crc32c, all + (size_t)k * width, width);
        mark.crc32c = mz_crc32c(mark.crc32c, c->y + k, sizeof *c->y);
    }
    return mark;
}

// --- batches -------------------------------------------------------------------------------------
static mezzo_status open_source(const mz_task *task, mz_set set, mz_order order, int64_t rows, uint64_t seed,
                                mz_source *source) {
    const classifier *c = (const classifier *)task;
    if (!has(task, set))
        return mz_fail(MEZZO_ERR_INVALID, "there are no %s examples: make data.split %s",
                       set == MZ_SET_TRAIN ? "training" : "validation", set == MZ_SET_TRAIN ? "larger" : "smaller");
    range *r = mz_alloc(1, sizeof *r);
    if (r == NULL)
        return MEZZO_ERR_MEMORY;
    *r = (range){.first = set == MZ_SET_TRAIN ? 0 : c->n_train,
                 .n = set == MZ_SET_TRAIN ? c->n_train : c->n - c->n_train,
                 .random = order == MZ_ORDER_RANDOM,
                 .seed = seed,
                 .stream = (uint32_t)set};
    source->state = r;
    source->batches = (uint64_t)((r->n + rows - 1) / rows);
    return MEZZO_OK;
}

static void close_source(mz_source *source) {
    mz_free(source->state);
}

// Which example row `index` of all batches in a row is; -1: none, past the end of a pass.
static int64_t example_of(const range *r, uint64_t index) {
    uint32_t words[4];
    if (!r->random)
        return index < (uint64_t)r->n ? (int64_t)index : -1;
    mz_philox((mz_philox_key){r->seed, r->stream, PHILOX_ORDER}, index, words);
    return (int64_t)(((__uint128_t)(words[0] | (uint64_t)words[1] << 32) * (uint64_t)r->n) >> 64);
}

static void fill_row(const classifier *c, int64_t example, int64_t width, float *out) {
    if (c->x != NULL)
        memcpy(out, c->x + example * width, (size_t)width * sizeof *out);
    for (int64_t i = 0; i < width && c->x == NULL; i++)
        out[i] = (float)c->pixels[example * width + i] * (1.0F / 255);
}

// Elements of one row of features, [features] or [side, side, channels].
static int64_t row_width(const mz_examples *examples) {
    const mz_input *x = mz_examples_input(examples, MZ_ROLE_FEATURES);
    return (int64_t)(x->bytes / sizeof(float)) / x->dim[0];
}

static mezzo_status draw(mz_source *source, uint64_t k) {
    const classifier *c = (const classifier *)source->task;
    const range *r = source->state;
    const int64_t rows = mz_examples_input(&source->examples, MZ_ROLE_FEATURES)->dim[0],
                  width = row_width(&source->examples);
    float *x = mz_examples_input(&source->examples, MZ_ROLE_FEATURES)->data;
    int32_t *y = mz_examples_input(&source->examples, MZ_ROLE_TARGETS)->data;
    if (!r->random)
        k %= source->batches;
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = example_of(r, k * (uint64_t)rows + (uint64_t)i);
        const int64_t from = at < 0 ? -1 : c->order[r->first + at];
        y[i] = from < 0 ? -1 : c->y[from];
        if (from < 0)
            memset(x + i * width, 0, (size_t)width * sizeof *x);
        else
            fill_row(c, from, width, x + i * width);
    }
    return MEZZO_OK;
}

static bool check(const mz_task *task, const mz_examples *examples, char *fault, size_t size) {
    const float *x = mz_examples_input(examples, MZ_ROLE_FEATURES)->data;
    const int32_t *y = mz_examples_input(examples, MZ_ROLE_TARGETS)->data;
    const int64_t width = row_width(examples);
    for (int64_t i = 0; i < examples->items * width; i++)
        if (!isfinite(x[i])) {
            snprintf(fault, size, "feature %g in row %lld, column %lld: it must be finite", (double)x[i],
                     (long long)(i / width), (long long)(i % width));
            return false;
        }
    for (int64_t i = 0; i < examples->items; i++)
        if (y[i] < -1 || y[i] >= task->wants.classes) {
            snprintf(fault, size, "target %d in row %lld: the model has classes 0 to %lld", y[i], (long long)i,
                     (long long)task->wants.classes - 1);
            return false;
        }
    return true;
}

static void blank(mz_examples *examples) {
    memset(mz_examples_input(examples, MZ_ROLE_FEATURES)->data, 0,
           mz_examples_input(examples, MZ_ROLE_FEATURES)->bytes);
    memset(mz_examples_input(examples, MZ_ROLE_TARGETS)->data, -1, mz_examples_input(examples, MZ_ROLE_TARGETS)->bytes);
}

static uint64_t weight(const mz_examples *examples) {
    const int32_t *targets = mz_examples_input(examples, MZ_ROLE_TARGETS)->data;
    uint64_t n = 0;
    for (int64_t i = 0; i < examples->items; i++)
        n += targets[i] >= 0;
    return n;
}

static void made_up(const mz_model_sizes *model, uint64_t seed, mz_examples *out) {
    float *x = mz_examples_input(out, MZ_ROLE_FEATURES)->data, normal[4];
    int32_t *y = mz_examples_input(out, MZ_ROLE_TARGETS)->data;
    uint32_t words[4];
    for (int64_t i = 0; i < out->items * row_width(out); i++) {
        mz_philox((mz_philox_key){seed, 0, PHILOX_OWN}, (uint64_t)i, words);
        mz_normal4(words, normal);
        x[i] = normal[0];
    }
    for (int64_t i = 0; i < out->items; i++) {
        mz_philox((mz_philox_key){seed, 1, PHILOX_OWN}, (uint64_t)i, words);
        y[i] = (int32_t)(((uint64_t)words[0] * (uint64_t)model->classes) >> 32);
    }
}

static const char *keeps(const mz_task *task) {
    return ((const classifier *)task)->classes.n > 0 ? CLASSES_FILE : "";
}

static mezzo_status save(const mz_task *task, const char *folder) {
    const classifier *c = (const classifier *)task;
    if (c->classes.n == 0)
        return MEZZO_OK;
    char *path = mz_format("%s/" CLASSES_FILE, folder);
    mezzo_status status = path != NULL ? mz_classes_save(&c->classes, path) : MEZZO_ERR_MEMORY;
    mz_free(path);
    return status;
}

static int metrics(const mz_evaluation *score, mz_task_metric out[MZ_TASK_METRICS]) {
    out[0] = (mz_task_metric){"accuracy", score->accuracy};
    return 1;
}

const mz_task_kind mz_task_classifier = {.name = "classifier",
                                         .unit = "examples",
                                         .scores = true,
                                         .open = open_task,
                                         .close = close_task,
                                         .has = has,
                                         .check_model = check_model,
                                         .describe = describe,
                                         .mark = mark,
                                         .open_source = open_source,
                                         .close_source = close_source,
                                         .draw = draw,
                                         .check = check,
                                         .blank = blank,
                                         .weight = weight,
                                         .made_up = made_up,
                                         .keeps = keeps,
                                         .save = save,
                                         .metrics = metrics};
