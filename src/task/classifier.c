// The classifier's task draws examples with labels. A built-in model has the inputs "x" F32 [B, features], or for
// images [B, side, side, channels], and "targets" I32 [B], the number of the class; a graph file has its own. Examples
// come from a table, a folder of images for each class, .npy files or an .npz archive or, where none is named, from a
// set of the task's own: classes that are clusters of points, which partly overlap.
#include <math.h>
#include <omp.h>

#include "data/arrays.h"
#include "data/labelled.h"
#include "io/file.h"
#include "task/range.h"
#include "io/quote.h"

// The task's own set. Its seed is fixed, so that runs of different seeds learn the same data.
enum { OWN_EXAMPLES = 4096, OWN_FEATURES = 5, OWN_CLASSES = 3, CLUSTERS = 2 };
#define OWN_SEED     UINT64_C(0x746F79)
#define OWN_SPREAD   1.5F        // deviation of the clusters' centres; a cluster's points have a deviation of 1
#define PHILOX_ORDER 0xC1A50000u // the `tensor` word for this file's draws
#define PHILOX_SPLIT 0xC1A50010u
#define PHILOX_OWN   0xC1A50020u

#define CLASSES_FILE "classes.json"
#define LABELS       "labels"

typedef struct classifier {
    mz_task task;
    int64_t n, n_train; // number of examples; the first n_train of `order` train, the others validate
    mz_arrays arrays;   // features and labels, each [n, …] as the model reads one example
    bool named;         // the arrays have the names of the model's inputs
    char label[128];    // name of the array with labels
    mz_classes classes; // the classes' names, from a table or folders
    int64_t *order;     // [n]: a random order, because files are often sorted by class
    char labels[512];   // the source of the labels, for errors
    bool planes;        // images have channels last, and the model reads them first
    bool drops;         // an incomplete batch is left out, because its rows have no weights
} classifier;

static void close_task(mz_task *task) {
    classifier *c = (classifier *)task;
    mz_arrays_free(&c->arrays);
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
    mz_array *array;
    c->n = OWN_EXAMPLES;
    c->task.sizes = (mz_model_sizes){.features = OWN_FEATURES, .classes = OWN_CLASSES};
    MEZZO_TRY(mz_arrays_add(&c->arrays, "x", MZ_ARRAY_F32, c->n, 1, (int64_t[]){OWN_FEATURES}, NULL, &array));
    float *const x = array->data;
    MEZZO_TRY(mz_arrays_add(&c->arrays, LABELS, MZ_ARRAY_I32, c->n, 0, NULL, NULL, &array));
    int32_t *const y = array->data;
    for (uint64_t k = 0; k < MZ_COUNT(centers); k++)
        own_normals(k, 0, centers[k]);
    for (int64_t i = 0; i < c->n; i++) {
        int64_t cluster = i % (int64_t)MZ_COUNT(centers);
        own_normals((uint64_t)i, 1, noise);
        y[i] = (int32_t)(cluster % OWN_CLASSES);
        for (int k = 0; k < OWN_FEATURES; k++)
            x[i * OWN_FEATURES + k] = OWN_SPREAD * centers[cluster][k] + noise[k];
    }
    return MEZZO_OK;
}

// --- files ---------------------------------------------------------------------------------------
static mezzo_status read_features(const char *path, classifier *c) {
    MEZZO_TRY(mz_arrays_add_npy(&c->arrays, "x", path));
    mz_array *x = &c->arrays.items[0];
    if (x->rank < 1)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s: one dimension and %lld elements: features are [examples, features], and of images "
                       "[examples, side, side] or [examples, side, side, channels]",
                       path, (long long)x->n);
    c->n = x->n;
    c->task.sizes.features = x->width;
    if ((x->rank == 2 || x->rank == 3) && x->dim[0] == x->dim[1]) {
        c->task.sizes.image_size = x->dim[0];
        c->task.sizes.channels = x->rank == 3 ? x->dim[2] : 1;
    }
    return MEZZO_OK;
}

// Counts the classes of a built-in model: labels go from 0 to the largest one.
static mezzo_status count_classes(const char *path, classifier *c) {
    const mz_array *y = mz_arrays_find(&c->arrays, LABELS);
    for (int64_t i = 0; i < c->n; i++) {
        const int64_t label = (int64_t)mz_array_number(y, i);
        if (label < 0)
            return mz_fail(MEZZO_ERR_INVALID, "%s: label %lld in row %lld: classes count from 0", path,
                           (long long)label, (long long)i);
        if (label >= c->task.sizes.classes)
            c->task.sizes.classes = label + 1;
    }
    return MEZZO_OK;
}

static mezzo_status read_labels(const char *path, bool any, classifier *c) {
    MEZZO_TRY(mz_arrays_add_npy(&c->arrays, LABELS, path));
    const mz_array *y = &c->arrays.items[1];
    if (!any && y->type == MZ_ARRAY_F32)
        return mz_fail(MEZZO_ERR_INVALID, "%s: labels are numbers with fractions: classes are integers (u1, i4 or i8)",
                       path);
    if (y->n != c->n || (!any && y->rank != 0))
        return mz_fail(MEZZO_ERR_INVALID, "%s: %lld labels in %d dimensions, and there are %lld rows of features", path,
                       (long long)(y->n * y->width), y->rank + 1, (long long)c->n);
    return any ? MEZZO_OK : count_classes(path, c);
}

// Reads examples with classes, which get the numbers that the run gave them, where it kept their names.
static mezzo_status read_labelled(const mz_task_options *o, const char *path, bool is_table, classifier *c) {
    mz_labelled data;
    mz_array *array;
    if (mz_given(o->own))
        MEZZO_TRY(mz_classes_load(o->own, &c->classes));
    MEZZO_TRY(is_table ? mz_labelled_read_table(path, o->labels, o->numbers, &c->classes, &data)
                       : mz_labelled_read_images(path, &c->classes, &data));
    const bool square = data.side > 0;
    const int64_t image[] = {data.side, data.side, data.channels};
    c->n = data.n;
    c->task.sizes = (mz_model_sizes){.features = data.features,
                                     .classes = (int64_t)c->classes.n,
                                     .image_size = data.side,
                                     .channels = square ? data.channels : 0};
    snprintf(c->labels, sizeof c->labels, "%s", path);
    mezzo_status status = mz_arrays_add(&c->arrays, LABELS, data.y != NULL ? MZ_ARRAY_I32 : MZ_ARRAY_F32, c->n, 0, NULL,
                                        data.y != NULL ? (void *)data.y : data.values, &array);
    void *const features = data.x != NULL ? (void *)data.x : data.pixels;
    if (status != MEZZO_OK)
        mz_free(features);
    MEZZO_TRY(status);
    MEZZO_TRY(mz_arrays_add(&c->arrays, "x", data.x != NULL ? MZ_ARRAY_F32 : MZ_ARRAY_U8, c->n, square ? 3 : 1,
                            square ? image : &data.features, features, &array));
    if (c->classes.n == 1)
        return mz_fail(MEZZO_ERR_INVALID, "%s: every example is of the class %s: a classifier needs examples of two",
                       path, mz_quote(c->classes.names[0]).text);
    return MEZZO_OK;
}

// Reads an archive, whose arrays have the names of inputs. There are as many examples as labels or, without labels, as
// the first array has.
static mezzo_status read_archive(const mz_task_options *o, const char *path, classifier *c) {
    c->named = true;
    snprintf(c->labels, sizeof c->labels, "%s", path);
    if (mz_given(o->labels))
        snprintf(c->label, sizeof c->label, "%s", o->labels);
    MEZZO_TRY(mz_arrays_read(path, &c->arrays));
    const mz_array *labels = mz_arrays_find(&c->arrays, c->label);
    c->n = labels != NULL ? labels->n : c->arrays.items[0].n;
    return labels != NULL || !mz_given(o->labels)
               ? MEZZO_OK
               : mz_fail(MEZZO_ERR_INVALID, "%s has no array '%s', which data.labels (--labels) names", path, c->label);
}

// Shuffles by Fisher and Yates, alike in every run, and then splits.
static mezzo_status split(classifier *c, double part) {
    MEZZO_TRY(MZ_NEW(c->order, c->n));
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
    const char *features = mz_given(o->all) ? o->all : mz_given(o->features) ? o->features : o->path;
    if (mz_given(o->train) || mz_given(o->validation))
        return mz_fail(MEZZO_ERR_INVALID,
                       "data.%s is set, and the model is a classifier: give data.features and "
                       "data.labels, which data.split divides",
                       mz_given(o->train) ? "train" : "val");
    if (mz_given(o->features) && mz_given(o->path))
        return mz_fail(MEZZO_ERR_INVALID, "data.path and data.features are both set: give one");
    const bool is_table = mz_given(features) && mz_ends_with(features, ".csv"),
               is_folder = mz_given(features) && mz_path_is_dir(features);
    if (is_folder && mz_given(o->labels))
        return mz_fail(MEZZO_ERR_INVALID, "data.labels is set, but in %s each folder is a class: remove it", features);
    if (mz_given(features) && mz_ends_with(features, ".npz")) {
        MEZZO_TRY(read_archive(o, features, c));
        return split(c, mz_given(o->all) ? 1 : o->split);
    }
    if (is_table || is_folder) {
        MEZZO_TRY(read_labelled(o, features, is_table, c));
        return split(c, mz_given(o->all) ? 1 : o->split);
    }
    if (mz_given(features) != mz_given(o->labels))
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s without %s: a classifier needs both, as .npy files (--data FEATURES --labels LABELS), a "
                       ".csv table, a folder of images for each class, an .npz archive, or nothing",
                       mz_given(features) ? "features" : "data.labels",
                       mz_given(features) ? "data.labels" : "features");
    if (!mz_given(features)) {
        MEZZO_TRY(make_own(c));
        return split(c, o->split);
    }
    snprintf(c->labels, sizeof c->labels, "%s", o->labels);
    MEZZO_TRY(read_features(features, c));
    MEZZO_TRY(read_labels(o->labels, o->any_labels, c));
    return split(c, mz_given(o->all) ? 1 : o->split);
}

static mezzo_status open_task(const mz_task_options *o, mz_task **out) {
    classifier *c;
    MEZZO_TRY(MZ_NEW(c, 1));
    c->task.kind = &mz_task_classifier;
    snprintf(c->label, sizeof c->label, LABELS);
    mezzo_status status = o->no_data ? MEZZO_OK : open_set(c, o);
    if (status == MEZZO_OK)
        *out = &c->task;
    else
        close_task(&c->task);
    return status;
}

// Returns the array that fills an input; NULL: there is none.
static const mz_array *array_of(const classifier *c, const mz_input *in) {
    if (in->role == MZ_ROLE_TARGETS && (!c->named || strcmp(in->name, LABELS) == 0))
        return mz_arrays_find(&c->arrays, c->label);
    if (in->role == MZ_ROLE_FEATURES && !c->named)
        return mz_arrays_find(&c->arrays, "x");
    return mz_arrays_find(&c->arrays, in->name);
}

static void name_shape(int rank, const int64_t *dim, char out[96]) {
    int n = snprintf(out, 96, rank == 0 ? "one number" : "[");
    for (int i = 0; i < rank && n < 80; i++)
        n += snprintf(out + n, 96 - (size_t)n, "%s%lld", i > 0 ? ", " : "", (long long)dim[i]);
    if (rank > 0)
        snprintf(out + n, 96 - (size_t)n, "]");
}

// Returns whether images [side, side, channels] fit an input [channels, side, side].
static bool fits_planes(const mz_array *a, const mz_input *in) {
    return a->rank == 3 && in->rank == 4 && in->dim[1] == a->dim[2] && in->dim[2] == a->dim[0] &&
           in->dim[3] == a->dim[1];
}

static mezzo_status check_array(classifier *c, const mz_input *in) {
    const mz_array *a = array_of(c, in);
    char ours[96], theirs[96], reader[160];
    int64_t width = 1;
    if (a == NULL && in->role == MZ_ROLE_WEIGHT) // all weights are equal
        return MEZZO_OK;
    if (a == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "%s has no array '%s', which the model %s", c->labels, in->name,
                       in->role == MZ_ROLE_FEATURES ? "reads" : "is compared with (--labels, --loss)");
    for (int i = 1; i < in->rank; i++)
        width *= in->dim[i];
    const bool same = a->rank == in->rank - 1 && memcmp(a->dim, in->dim + 1, (size_t)a->rank * sizeof *a->dim) == 0,
               planes = in->role == MZ_ROLE_FEATURES && !same && fits_planes(a, in);
    c->planes = c->planes || planes;
    name_shape(a->rank, a->dim, ours);
    name_shape(in->rank - 1, in->dim + 1, theirs);
    if (a->n != c->n)
        return mz_fail(MEZZO_ERR_INVALID, "%s: array '%s' has %lld examples, and the labels are %lld", c->labels,
                       a->name, (long long)a->n, (long long)c->n);
    snprintf(reader, sizeof reader,
             in->role == MZ_ROLE_FEATURES ? "the input '%.40s' of %.80s" : "%.0sthe loss of %.80s", in->name,
             mz_model_name(&c->task.model));
    if (a->width != width || (!same && !planes && a->rank > 1 && in->rank > 2))
        return mz_fail(MEZZO_ERR_INVALID, "%s: examples of '%s' are %s, and %s takes %s", c->labels, a->name, ours,
                       reader, theirs);
    if (in->dtype == MEZZO_I32 && a->type == MZ_ARRAY_F32)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s: array '%s' has floating-point numbers, and %s takes integers: save them as "
                       "int64",
                       c->labels, a->name, reader);
    return MEZZO_OK;
}

// Returns whether a target does not count: it is -1, or a graph file's ignore_index.
static bool is_ignored(const classifier *c, int64_t label) {
    return label == -1 || (c->task.model.file != NULL && label == c->task.model.config.ignore_index);
}

static mezzo_status check_classes(classifier *c, const mz_input *in) {
    const mz_array *a = array_of(c, in);
    const int64_t classes = in->classes > 0 ? in->classes : c->task.wants.classes;
    for (int64_t i = 0; in->role == MZ_ROLE_FEATURES && in->classes > 0 && i < a->n * a->width; i++) {
        const double id = mz_array_number(a, i);
        if (!(id >= 0 && id < (double)classes))
            return mz_fail(MEZZO_ERR_INVALID,
                           "%s: array '%s' has %.0f in row %lld: the table of '%s' has rows 0 to %lld", c->labels,
                           a->name, id, (long long)(i / a->width), mz_model_name(&c->task.model),
                           (long long)classes - 1);
    }
    if (in->role != MZ_ROLE_TARGETS || in->dtype != MEZZO_I32)
        return MEZZO_OK;
    for (int64_t i = 0; i < a->n * a->width; i++) {
        const int64_t label = (int64_t)mz_array_number(a, i);
        const bool ignored = c->task.model.file != NULL && is_ignored(c, label);
        c->task.masks = c->task.masks || ignored;
        if (!ignored && (label < 0 || label >= classes))
            return mz_fail(MEZZO_ERR_INVALID, "%s: label %lld in row %lld: %s has classes 0 to %lld", c->labels,
                           (long long)label, (long long)(i / a->width), mz_model_name(&c->task.model),
                           (long long)classes - 1);
    }
    return MEZZO_OK;
}

static mezzo_status check_inputs(classifier *c) {
    mz_input inputs[MZ_MODEL_INPUTS];
    const int n = mz_model_inputs(&c->task.model, &(mz_form){.batch = 1, .length = 1}, inputs);
    int features = 0, marks = 0;
    for (int i = 0; i < n; i++) {
        features += inputs[i].role == MZ_ROLE_FEATURES;
        marks += inputs[i].role != MZ_ROLE_FEATURES;
    }
    c->drops = marks == 0;
    if (c->n > 0 && !c->named && features > 1)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s has one array of features, and the model %d inputs: give an .npz with an "
                       "array for each",
                       c->labels, features);
    for (int i = 0; c->n > 0 && i < n; i++) {
        MEZZO_TRY(check_array(c, &inputs[i]));
        MEZZO_TRY(check_classes(c, &inputs[i]));
    }
    return MEZZO_OK;
}

static mezzo_status check_model(mz_task *task) {
    classifier *c = (classifier *)task;
    const mz_model_sizes *m = &task->wants, *sizes = &task->sizes;
    const char *name = mz_model_name(&task->model);
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
    if (c->n > 0 && m->features > 0 && !images && sizes->features != m->features)
        return mz_fail(MEZZO_ERR_INVALID,
                       "the data has %lld features, but %s takes %lld: use mlp, or remove model.features",
                       (long long)task->sizes.features, name, (long long)m->features);
    return check_inputs(c);
}

static mezzo_status bind_dims(const mz_task *task, mezzo_model_config *config) {
    const classifier *c = (const classifier *)task;
    for (size_t i = 0; i < c->arrays.count; i++) {
        const mz_array *a = &c->arrays.items[i];
        if (a->rank > 0 && (c->named || strcmp(a->name, "x") == 0))
            MEZZO_TRY(mz_graph_file_bind(config, c->named ? a->name : NULL, a->rank, a->dim));
    }
    return MEZZO_OK;
}

static void describe(const mz_task *task, char *out, size_t size) {
    const classifier *c = (const classifier *)task;
    const int64_t features = c->n > 0 ? task->sizes.features : task->wants.features;
    char model[200], first[40] = "";
    mz_model_summary(&task->model, model, sizeof model);
    if (features > 0)
        snprintf(first, sizeof first, "%lld features, ", (long long)features);
    snprintf(out, size, "%s%s, %lld examples of %lld to train on", first, model, (long long)c->n_train,
             (long long)c->n);
}

// Returns whether the i-th part is read first: marks take features before labels, also where labels were read first.
static bool reads_first(const classifier *c, size_t i) {
    return strcmp(c->arrays.items[i].name, c->label) != 0;
}

static bool has(const mz_task *task, mz_set set) {
    const classifier *c = (const classifier *)task;
    return set == MZ_SET_TRAIN ? c->n_train > 0 : c->n > c->n_train;
}

static mezzo_data_mark mark(const mz_task *task, mz_set set) {
    const classifier *c = (const classifier *)task;
    const int64_t first = set == MZ_SET_TRAIN ? 0 : c->n_train, end = set == MZ_SET_TRAIN ? c->n_train : c->n;
    mezzo_data_mark mark = {0};
    for (int64_t i = first; i < end && c->labels[0] != '\0'; i++) // the task's own set is no file that could change
        for (size_t k = 0; k < 2 * c->arrays.count; k++) {
            const mz_array *a = &c->arrays.items[k % c->arrays.count];
            const size_t width = (size_t)a->width * mz_array_size(a);
            if (reads_first(c, k % c->arrays.count) != (k < c->arrays.count) || a->n != c->n)
                continue;
            mark.bytes += width;
            mark.crc32c = mz_crc32c(mark.crc32c, (const uint8_t *)a->data + (size_t)c->order[i] * width, width);
        }
    return mark;
}

// --- batches -------------------------------------------------------------------------------------
static mezzo_status open_source(const mz_task *task, mz_set set, mz_order order, int64_t rows, uint64_t seed,
                                mz_source *source) {
    const classifier *c = (const classifier *)task;
    const mz_range range = {
        .n = c->n, .random = order == MZ_ORDER_RANDOM, .seed = seed, .stream = (uint32_t)set, .tensor = PHILOX_ORDER};
    MEZZO_TRY(mz_range_open(range, "examples", c->n_train, rows, source));
    const mz_range *r = source->state;
    if (c->drops)
        source->batches = (uint64_t)(r->n / rows);
    return source->batches > 0
               ? MEZZO_OK
               : mz_fail(MEZZO_ERR_INVALID,
                         "%lld %s examples fill no batch of %lld, and the model's own loss takes whole ones: make "
                         "train.batch_size smaller (--batch-size)",
                         (long long)r->n, set == MZ_SET_TRAIN ? "training" : "validation", (long long)rows);
}

// Converts bytes to brightness; their channels are last, and those of the input come first.
static void fill_bytes(const uint8_t *from, int64_t channels, int64_t pixels, float *to) {
    for (int64_t c = 0; c < channels; c++)
        for (int64_t i = 0; i < pixels; i++)
            to[c * pixels + i] = (float)from[i * channels + c] * (1.0F / 255);
}

// Writes one example of an array into a row of an input.
static void fill_row(const classifier *c, const mz_array *a, int64_t example, const mz_input *in, int64_t row) {
    const bool features = in->role == MZ_ROLE_FEATURES, planes = c->planes && features && fits_planes(a, in),
               marks = in->role == MZ_ROLE_TARGETS && in->dtype == MEZZO_I32;
    const int64_t width = a->width, channels = planes ? a->dim[2] : 1, pixels = width / channels;
    const bool same = in->dtype == (a->type == MZ_ARRAY_F32 ? MEZZO_F32 : MEZZO_I32) && a->type != MZ_ARRAY_U8;
    const size_t size = mz_array_size(a);
    const unsigned char *from = (const unsigned char *)a->data + (size_t)(example * width) * size;
    float *const x = (float *)in->data + row * width;
    int32_t *const y = (int32_t *)in->data + row * width;
    if (same && !planes && !marks)
        memcpy(x, from, (size_t)width * size);
    else if (a->type == MZ_ARRAY_U8 && features && in->dtype == MEZZO_F32)
        fill_bytes(from, channels, pixels, x);
    else
        for (int64_t i = 0; i < width; i++) {
            const double v = mz_array_number(a, example * width + (planes ? i % pixels * channels + i / pixels : i));
            if (in->dtype == MEZZO_F32)
                x[i] = (float)v;
            else
                y[i] = marks && is_ignored(c, (int64_t)v) ? -1 : (int32_t)v;
        }
}

// Makes a row that does not count.
static void fill_none(const mz_input *in, int64_t row) {
    const size_t bytes = in->bytes / (size_t)in->dim[0];
    memset((char *)in->data + (size_t)row * bytes, in->role == MZ_ROLE_TARGETS && in->dtype == MEZZO_I32 ? -1 : 0,
           bytes);
}

static size_t bytes_of(const mz_examples *examples) {
    size_t bytes = 0;
    for (int i = 0; i < examples->n; i++)
        bytes += examples->input[i].bytes;
    return bytes;
}

static int64_t count_of(const mz_input *in) {
    return (int64_t)(in->bytes / mezzo_dtype_size(in->dtype));
}

// Returns whether all of n numbers are finite: an exponent of ones becomes the highest bit of its sum with 1.
static bool are_finite(const float *x, int64_t n) {
    uint32_t sums = 0;
#pragma omp simd reduction(| : sums)
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        sums |= (bits & 0x7f800000U) + 0x00800000U;
    }
    return sums < 0x80000000U;
}

static int64_t classes_of(const mz_task *task, const mz_input *in) {
    return in->classes > 0 ? in->classes : task->wants.classes;
}

// Returns the first column of a row with a value that the model cannot take; -1: there is none.
static int64_t bad_column(const mz_task *task, const mz_input *in, int64_t row) {
    const int64_t width = count_of(in) / in->dim[0], classes = classes_of(task, in);
    const float *const x = (const float *)in->data + row * width;
    const int32_t *const y = (const int32_t *)in->data + row * width;
    if (in->dtype == MEZZO_F32 ? are_finite(x, width) : in->role != MZ_ROLE_TARGETS)
        return -1;
    for (int64_t i = 0; i < width; i++)
        if (in->dtype == MEZZO_F32 ? !isfinite(x[i]) : y[i] < -1 || y[i] >= classes)
            return i;
    return -1;
}

// Threads share the rows of a large batch, as many as mz_copy takes and for its reasons.
static mezzo_status draw(mz_source *source, uint64_t k) {
    enum { MOST_THREADS = 8, LARGE = 1 << 20 };
    const int most = omp_get_max_threads(), threads = most < MOST_THREADS ? most : MOST_THREADS;
    const classifier *c = (const classifier *)source->task;
    const mz_range *r = source->state;
    const mz_examples *examples = &source->examples;
    const int64_t rows = examples->input[0].dim[0];
    int bad = 0;
    if (!r->random)
        k %= source->batches;
#pragma omp parallel for schedule(dynamic) reduction(| : bad) num_threads(threads) if (bytes_of(examples) >= LARGE)
    for (int64_t i = 0; i < rows; i++) {
        const int64_t at = mz_range_place(r, k * (uint64_t)rows + (uint64_t)i);
        for (int n = 0; n < examples->n; n++) {
            const mz_input *in = &examples->input[n];
            const mz_array *a = array_of(c, in);
            if (at < 0 && in->role != MZ_ROLE_FEATURES)
                fill_none(in, i);
            else if (a != NULL)
                fill_row(c, a, c->order[r->first + (at < 0 ? 0 : at)], in, i);
            else
                ((float *)in->data)[i] = 1;
            bad |= bad_column(source->task, in, i) >= 0; // while the row is in the thread's cache
        }
    }
    source->sound = bad == 0;
    return MEZZO_OK;
}

static bool check(const mz_task *task, const mz_examples *examples, char *fault, size_t size) {
    for (int k = 0; k < examples->n; k++) {
        const mz_input *in = &examples->input[k];
        const int64_t width = count_of(in) / in->dim[0];
        for (int64_t row = 0; row < in->dim[0]; row++) {
            const int64_t column = bad_column(task, in, row), at = row * width + column;
            if (column < 0)
                continue;
            if (in->dtype == MEZZO_F32)
                snprintf(fault, size, "%s %g in row %lld, column %lld: it must be finite",
                         in->role == MZ_ROLE_FEATURES ? "feature" : in->name, (double)((const float *)in->data)[at],
                         (long long)row, (long long)column);
            else
                snprintf(fault, size, "target %d in row %lld: the model has classes 0 to %lld",
                         ((const int32_t *)in->data)[at], (long long)row, (long long)classes_of(task, in) - 1);
            return false;
        }
    }
    return true;
}

static void blank(mz_examples *examples) {
    for (int k = 0; k < examples->n; k++)
        for (int64_t row = 0; row < examples->input[k].dim[0]; row++)
            fill_none(&examples->input[k], row);
}

// Counts targets that are a class or, where targets are numbers, rows with a weight.
static uint64_t weight(const mz_examples *examples) {
    const mz_input *in = mz_examples_input(examples, MZ_ROLE_TARGETS);
    if (in != NULL && in->dtype == MEZZO_F32)
        in = mz_examples_input(examples, MZ_ROLE_WEIGHT);
    uint64_t n = in != NULL ? 0 : (uint64_t)examples->items;
    for (int64_t i = 0; in != NULL && i < count_of(in); i++)
        n += in->dtype == MEZZO_F32 ? ((const float *)in->data)[i] > 0 : ((const int32_t *)in->data)[i] >= 0;
    return n;
}

static void make_input(const mz_input *in, int64_t classes, uint64_t seed) {
    const uint32_t stream = in->role == MZ_ROLE_TARGETS;
    const int64_t below = in->role == MZ_ROLE_TARGETS ? classes : 2;
    float normal[4];
    uint32_t words[4];
    for (int64_t i = 0; i < count_of(in); i++) {
        mz_philox((mz_philox_key){seed, stream, PHILOX_OWN}, (uint64_t)i, words);
        mz_normal4(words, normal);
        if (in->dtype == MEZZO_I32)
            ((int32_t *)in->data)[i] = (int32_t)(((uint64_t)words[0] * (uint64_t)below) >> 32);
        else
            ((float *)in->data)[i] = in->role == MZ_ROLE_FEATURES ? normal[0]
                                     : in->role == MZ_ROLE_WEIGHT ? 1
                                                                  : (float)(words[0] >> 8) * 0x1p-24F;
    }
}

static void made_up(const mz_model_sizes *model, uint64_t seed, mz_examples *out) {
    for (int k = 0; k < out->n; k++)
        make_input(&out->input[k], out->input[k].classes > 0 ? out->input[k].classes : model->classes, seed);
}

static const char *keeps(const mz_task *task) {
    return ((const classifier *)task)->classes.n > 0 ? CLASSES_FILE : "";
}

static mezzo_status save(const mz_task *task, const char *folder) {
    const classifier *c = (const classifier *)task;
    if (c->classes.n == 0)
        return MEZZO_OK;
    return mz_classes_save(&c->classes, mz_path_of("%s/" CLASSES_FILE, folder).text);
}

static int metrics(const mz_evaluation *score, mz_task_metric out[MZ_TASK_METRICS]) {
    const mz_task_metric all[] = {{"accuracy", score->accuracy}, {"mae", score->mae}, {"r2", score->r2}};
    int n = 0;
    for (size_t i = 0; i < MZ_COUNT(all); i++)
        if (!isnan(all[i].value))
            out[n++] = all[i];
    return n;
}

const mz_task_kind mz_task_classifier = {.name = "classifier",
                                         .unit = "examples",
                                         .scores = true,
                                         .open = open_task,
                                         .close = close_task,
                                         .has = has,
                                         .bind = bind_dims,
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
                                         .keeps = keeps,
                                         .save = save,
                                         .metrics = metrics};
