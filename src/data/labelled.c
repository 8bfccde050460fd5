#include "data/labelled.h"

#include <math.h>
#include <stdlib.h>

#include "base/stop.h"
#include "data/many.h"
#include "io/csv.h"
#include "io/file.h"
#include "io/json.h"
#include "io/png.h"
#include "io/quote.h"

static void free_labelled(mz_labelled *data) {
    MZ_FREE(data->x, data->pixels, data->y, data->values);
    *data = (mz_labelled){0};
}

// --- classes -------------------------------------------------------------------------------------------------------
void mz_classes_free(mz_classes *classes) {
    for (size_t i = 0; i < classes->n; i++)
        mz_free(classes->names[i]);
    mz_free(classes->names);
    *classes = (mz_classes){0};
}

static mezzo_status add_class(mz_classes *classes, const char *name) {
    MEZZO_TRY(MZ_RESERVE(classes->names, classes->cap, classes->n + 1));
    classes->names[classes->n] = mz_strdup(name);
    return classes->names[classes->n++] != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

mezzo_status mz_classes_save(const mz_classes *classes, const char *path) {
    MZ_SCOPED(mz_json_free_at) json_t *object = mz_json_new();
    json_t *list = json_array();
    for (size_t i = 0; i < classes->n; i++)
        (void)json_array_append_new(list, json_string(classes->names[i]));
    (void)json_object_set_new(object, "classes", list);
    return mz_json_save(path, object);
}

mezzo_status mz_classes_load(const char *path, mz_classes *out) {
    json_t *object, *list, *name;
    size_t i;
    *out = (mz_classes){0};
    MEZZO_TRY(mz_json_load(path, (size_t)1 << 24, &object));
    mezzo_status status = mz_json_get_array(path, object, "classes", &list);
    if (status == MEZZO_OK)
        json_array_foreach(list, i, name) if (status == MEZZO_OK) status =
            json_is_string(name) ? add_class(out, json_string_value(name))
                                 : mz_fail(MEZZO_ERR_FORMAT, "%s: key 'classes': expected texts", path);
    json_decref(object);
    if (status != MEZZO_OK)
        mz_classes_free(out);
    return status;
}

static bool is_integer(const char *text) {
    const size_t sign = text[0] == '-', n = strlen(text + sign);
    return n > 0 && n < 18 && strspn(text + sign, "0123456789") == n;
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int by_number(const void *a, const void *b) {
    const long long x = atoll(*(char *const *)a), y = atoll(*(char *const *)b);
    return x != y ? (x > y) - (x < y) : by_bytes(a, b);
}

// Collects the names of all examples, each once.
static mezzo_status collect_classes(const char **labels, size_t n, mz_classes *out) {
    const char **sorted = mz_alloc(n + 1, sizeof *sorted);
    bool numbers = true;
    if (sorted == NULL)
        return MEZZO_ERR_MEMORY;
    if (n > 0)
        memcpy(sorted, labels, n * sizeof *sorted);
    for (size_t i = 0; i < n; i++)
        numbers = numbers && is_integer(labels[i]);
    qsort(sorted, n, sizeof *sorted, numbers ? by_number : by_bytes);
    mezzo_status status = MEZZO_OK;
    for (size_t i = 0; i < n && status == MEZZO_OK; i++)
        if (i == 0 || strcmp(sorted[i], sorted[i - 1]) != 0)
            status = add_class(out, sorted[i]);
    mz_free(sorted);
    return status;
}

static int32_t find_class(const mz_classes *classes, const char *name) {
    const size_t i = MZ_INDEX_WORD(classes->names, classes->n, name);
    return i < classes->n ? (int32_t)i : -1;
}

static mezzo_status refuse_class(const char *where, const char *name, const mz_classes *classes) {
    return mz_fail(MEZZO_ERR_INVALID, "%s: the class %s is none of the model's %zu, from %s to %s", where,
                   mz_quote(name).text, classes->n, classes->n > 0 ? mz_quote(classes->names[0]).text : "none",
                   classes->n > 0 ? mz_quote(classes->names[classes->n - 1]).text : "none");
}

// --- tables --------------------------------------------------------------------------------------------------------
static mezzo_status read_labels(const mz_csv *csv, int column, mz_classes *classes, mz_labelled *out) {
    const size_t n = mz_csv_rows(csv);
    MZ_SCOPED(mz_free_at) const char **labels = NULL;
    MEZZO_TRY(MZ_NEW(labels, n + 1));
    for (size_t i = 0; i < n; i++)
        labels[i] = mz_csv_cell(csv, i, (size_t)column);
    MEZZO_TRY(classes->n == 0 ? collect_classes(labels, n, classes) : MEZZO_OK);
    for (size_t i = 0, last = 0; i < n; i++) {
        char where[512];
        snprintf(where, sizeof where, "%.400s:%lld", mz_csv_where(csv), (long long)mz_csv_line(csv, i));
        const bool again = i > 0 && strcmp(labels[i], labels[last]) == 0;
        out->y[i] = again ? out->y[last] : find_class(classes, labels[i]);
        last = i;
        if (labels[i][0] == '\0')
            return mz_fail(MEZZO_ERR_FORMAT, "%s: column %s: no class", where,
                           mz_quote(mz_csv_name(csv, (size_t)column)).text);
        if (out->y[i] < 0)
            return refuse_class(where, labels[i], classes);
    }
    return MEZZO_OK;
}

static mezzo_status read_numbers(const mz_csv *csv, int label, mz_labelled *out) {
    for (int64_t i = 0; i < out->n; i++)
        for (int c = 0, k = 0; c <= (int)out->features; c++) {
            double value;
            if (c == label)
                continue;
            MEZZO_TRY(mz_stop_check(mz_csv_where(csv)));
            MEZZO_TRY(mz_csv_number(csv, (size_t)i, c, &value));
            if (!isfinite((float)value))
                return mz_fail(MEZZO_ERR_FORMAT, "%s:%lld: column %s: %g is not finite in fp32", mz_csv_where(csv),
                               (long long)mz_csv_line(csv, (size_t)i), mz_quote(mz_csv_name(csv, (size_t)c)).text,
                               value);
            out->x[i * out->features + k++] = (float)value;
        }
    return MEZZO_OK;
}

static mezzo_status read_values(const mz_csv *csv, int column, mz_labelled *out) {
    double value;
    if ((out->values = mz_alloc((size_t)out->n, sizeof *out->values)) == NULL)
        return MEZZO_ERR_MEMORY;
    for (int64_t i = 0; i < out->n; i++) {
        MEZZO_TRY(mz_csv_number(csv, (size_t)i, column, &value));
        out->values[i] = (float)value;
    }
    return MEZZO_OK;
}

static mezzo_status take_table(const mz_csv *csv, const char *label, bool numbers, mz_classes *classes,
                               mz_labelled *out) {
    int column;
    mezzo_status status = mz_csv_need(csv, label != NULL ? label : "label", &column);
    if (status != MEZZO_OK && label == NULL)
        status = mz_fail(status, "%s: name the one with the classes (--labels COLUMN)", mezzo_error_message());
    MEZZO_TRY(status);
    label = label != NULL ? label : "label";
    out->n = (int64_t)mz_csv_rows(csv);
    out->features = (int64_t)mz_csv_columns(csv) - 1;
    if (out->n == 0 || out->features == 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s: %lld rows and %lld columns beside %s: nothing to learn from",
                       mz_csv_where(csv), (long long)out->n, (long long)out->features, mz_quote(label).text);
    out->x = mz_alloc((size_t)(out->n * out->features), sizeof *out->x);
    if (out->x == NULL || (!numbers && (out->y = mz_alloc((size_t)out->n, sizeof *out->y)) == NULL))
        return MEZZO_ERR_MEMORY;
    MEZZO_TRY(numbers ? read_values(csv, column, out) : read_labels(csv, column, classes, out));
    return read_numbers(csv, column, out);
}

mezzo_status mz_labelled_read_table(const char *path, const char *label, bool numbers, mz_classes *classes,
                                    mz_labelled *out) {
    mz_csv *csv;
    *out = (mz_labelled){0};
    MEZZO_TRY(mz_csv_load(path, &csv));
    mezzo_status status = take_table(csv, label != NULL && label[0] != '\0' ? label : NULL, numbers, classes, out);
    mz_csv_free(csv);
    if (status != MEZZO_OK)
        free_labelled(out);
    return status;
}

// --- images --------------------------------------------------------------------------------------------------------
bool mz_labelled_has_shards(const char *path) {
    char **names;
    size_t n;
    bool any = false;
    if (mz_dir_list(path, &names, &n) != MEZZO_OK)
        return false;
    for (size_t i = 0; i < n; i++) {
        const char *dot = strrchr(names[i], '.');
        any = any || (dot != NULL && (strcmp(dot, ".bin") == 0 || strncmp(dot, ".json", 5) == 0));
    }
    mz_dir_list_free(names, n);
    return any;
}

typedef struct images {
    char **path; // [n]
    size_t n, cap, cap_y;
    int channels;
    mz_labelled *out;
} images;

static bool is_png(const char *name) {
    return name[0] != '.' && (mz_ends_with(name, ".png") || mz_ends_with(name, ".PNG"));
}

static mezzo_status list_class(const char *folder, int32_t class, images *list, mz_labelled *out) {
    char **names;
    size_t n;
    const size_t before = list->n;
    MEZZO_TRY(mz_dir_list(folder, &names, &n));
    mezzo_status status = MEZZO_OK;
    for (size_t i = 0; i < n && status == MEZZO_OK; i++) {
        if (!is_png(names[i]))
            continue;
        status = MZ_RESERVE(list->path, list->cap, list->n + 1);
        if (status == MEZZO_OK)
            status = MZ_RESERVE(out->y, list->cap_y, list->n + 1);
        if (status != MEZZO_OK)
            break;
        list->path[list->n] = mz_format("%s/%s", folder, names[i]);
        status = list->path[list->n] != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
        out->y[list->n] = class;
        list->n += status == MEZZO_OK;
    }
    mz_dir_list_free(names, n);
    if (status == MEZZO_OK && list->n == before)
        status = mz_fail(MEZZO_ERR_FORMAT, "%s: no *.png in this folder, whose name is a class", folder);
    return status;
}

static mezzo_status list_images(const char *path, mz_classes *classes, images *list, mz_labelled *out) {
    char **names;
    size_t n, folders = 0;
    MEZZO_TRY(mz_dir_list(path, &names, &n));
    mezzo_status status = MEZZO_OK;
    const bool known = classes->n > 0;
    for (size_t i = 0; i < n && status == MEZZO_OK; i++) {
        const mz_path folder = mz_path_of("%s/%s", path, names[i]);
        if (names[i][0] == '.' || !mz_path_is_dir(folder.text))
            continue;
        folders++;
        status = known ? MEZZO_OK : add_class(classes, names[i]);
        const int32_t class = find_class(classes, names[i]);
        if (status == MEZZO_OK)
            status = class >= 0 ? list_class(folder.text, class, list, out) : refuse_class(path, names[i], classes);
    }
    mz_dir_list_free(names, n);
    if (status == MEZZO_OK && folders == 0)
        status = mz_fail(MEZZO_ERR_FORMAT,
                         "%s: no folders in it: a classifier learns from a folder of PNG files for "
                         "each class, a .csv or .npy files",
                         path);
    out->n = (int64_t)list->n;
    return status;
}

static mezzo_status read_image(void *user, int64_t i) {
    const images *list = user;
    mz_labelled *out = list->out;
    mz_picture one;
    MEZZO_TRY(mz_stop_check(list->path[i]));
    MEZZO_TRY(mz_png_read_channels(list->path[i], list->channels, &one));
    const int64_t size = one.width * one.height * one.channels;
    mezzo_status status = MEZZO_OK;
    if (size != out->features || (out->side > 0 && one.width != out->side))
        status = mz_fail(MEZZO_ERR_FORMAT, "%s: %lld x %lld pixels, and %s has another size: all must have the same",
                         list->path[i], (long long)one.width, (long long)one.height, list->path[0]);
    else
        memcpy(out->pixels + i * out->features, one.pixels, (size_t)size);
    mz_picture_free(&one);
    return status;
}

static mezzo_status read_images(images *list, mz_labelled *out) {
    mz_picture first;
    list->channels = 1;
    for (size_t i = 0; i < list->n && list->channels == 1; i++) {
        MEZZO_TRY(mz_stop_check(list->path[i]));
        MEZZO_TRY(mz_png_channels(list->path[i], &list->channels));
    }
    MEZZO_TRY(mz_png_read_channels(list->path[0], list->channels, &first));
    out->features = first.width * first.height * first.channels;
    out->side = first.width == first.height ? first.width : 0;
    out->channels = first.channels;
    mz_picture_free(&first);
    out->pixels = mz_alloc((size_t)out->n, (size_t)out->features);
    if (out->pixels == NULL)
        return MEZZO_ERR_MEMORY;
    list->out = out;
    return mz_read_many(out->n, read_image, list);
}

mezzo_status mz_labelled_read_images(const char *path, mz_classes *classes, mz_labelled *out) {
    images list = {0};
    *out = (mz_labelled){0};
    mezzo_status status = list_images(path, classes, &list, out);
    if (status == MEZZO_OK)
        status = read_images(&list, out);
    for (size_t i = 0; i < list.n; i++)
        mz_free(list.path[i]);
    mz_free(list.path);
    if (status != MEZZO_OK)
        free_labelled(out);
    return status;
}
