#include "io/safetensors.h"

#include <jansson.h>
#include <stdlib.h>

#include "base/stop.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"

// The reference implementation has this limit; real headers are far smaller.
#define MAX_HEADER ((size_t)100 * 1000 * 1000)
#define PIECE      ((size_t)4 << 20) // bytes that `fill` makes at a time

static const struct {
    mezzo_dtype dtype;
    const char *name;
} dtype_names[] = {
    {MEZZO_F64, "F64"},        {MEZZO_F32, "F32"},        {MEZZO_BF16, "BF16"}, {MEZZO_F16, "F16"},
    {MEZZO_F8E4M3, "F8_E4M3"}, {MEZZO_F8E5M2, "F8_E5M2"}, {MEZZO_I64, "I64"},   {MEZZO_I32, "I32"},
    {MEZZO_U16, "U16"},        {MEZZO_U8, "U8"},          {MEZZO_U8, "BOOL"}, // reading only: one byte an element, as
                                                                              // U8; U8 is the first of the two and so
                                                                              // the one that is written
};

static const char *dtype_to_text(mezzo_dtype dtype) {
    for (size_t i = 0; i < MZ_COUNT(dtype_names); i++)
        if (dtype_names[i].dtype == dtype)
            return dtype_names[i].name;
    return NULL;
}

static bool dtype_from_text(const char *text, mezzo_dtype *out) {
    const size_t i = MZ_INDEX(dtype_names, MZ_COUNT(dtype_names), name, text);
    if (i < MZ_COUNT(dtype_names))
        *out = dtype_names[i].dtype;
    return i < MZ_COUNT(dtype_names);
}

// Computes elements and bytes of a shape; returns false when they do not fit in a size_t.
static bool shape_size(const int64_t *shape, size_t rank, mezzo_dtype dtype, size_t *count, size_t *bytes) {
    size_t n = 1;
    bool empty = false;
    for (size_t i = 0; i < rank; i++) {
        if (shape[i] < 0)
            return false;
        // A zero must neither hide an overflow nor depend on the order of dimensions.
        if (shape[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(n, (size_t)shape[i], &n))
            return false;
    }
    *count = empty ? 0 : n;
    return !__builtin_mul_overflow(*count, mezzo_dtype_size(dtype), bytes);
}

static void shape_to_text(const int64_t *shape, size_t rank, char *text, size_t size) {
    size_t at = 0;
    text[at++] = '[';
    for (size_t i = 0; i < rank && at + 24 < size; i++) {
        int wrote = snprintf(text + at, size - at, "%s%lld", i ? ", " : "", (long long)shape[i]);
        at += (size_t)wrote;
    }
    text[at++] = ']';
    text[at] = '\0';
}
#define SHAPE_TEXT (MZ_SAFETENSORS_MAX_RANK * 24 + 8)

// --- writing -------------------------------------------------------------------------------------------------------
typedef struct plan_entry {
    const mz_safetensors_item *item;
    size_t bytes;
} plan_entry;

static int compare_plan(const void *a, const void *b) {
    const plan_entry *x = a, *y = b;
    size_t xs = mezzo_dtype_size(x->item->dtype), ys = mezzo_dtype_size(y->item->dtype);
    if (xs != ys)
        return xs > ys ? -1 : 1;
    return strcmp(x->item->name, y->item->name);
}

static int compare_plan_names(const void *a, const void *b) {
    return strcmp(((const plan_entry *)a)->item->name, ((const plan_entry *)b)->item->name);
}

// Checks the items and puts them in file order.
static mezzo_status plan_items(const char *path, const mz_safetensors_item *items, size_t count, plan_entry *plan) {
    for (size_t i = 0; i < count; i++) {
        const mz_safetensors_item *item = &items[i];
        plan[i].item = item;
        if (!item->name || strcmp(item->name, "__metadata__") == 0)
            return mz_fail(MEZZO_ERR_INVALID, "%s: a tensor cannot be named %s", path, mz_quote(item->name).text);
        if (!dtype_to_text(item->dtype))
            return mz_fail(MEZZO_ERR_INVALID, "%s: tensor %s: safetensors has no dtype for %s", path,
                           mz_quote(item->name).text, mezzo_dtype_name(item->dtype));
        size_t elements;
        if (item->rank > MZ_SAFETENSORS_MAX_RANK ||
            !shape_size(item->shape, item->rank, item->dtype, &elements, &plan[i].bytes))
            return mz_fail(MEZZO_ERR_INVALID, "%s: tensor %s: its shape is negative, too large or of rank over %d",
                           path, mz_quote(item->name).text, MZ_SAFETENSORS_MAX_RANK);
    }
    if (count > 1)
        qsort(plan, count, sizeof *plan, compare_plan_names);
    for (size_t i = 1; i < count; i++)
        if (strcmp(plan[i - 1].item->name, plan[i].item->name) == 0)
            return mz_fail(MEZZO_ERR_INVALID, "%s: tensor %s is given twice", path, mz_quote(plan[i].item->name).text);
    if (count > 1)
        qsort(plan, count, sizeof *plan, compare_plan);
    return MEZZO_OK;
}

// Adds a member to a JSON object; jansson takes over the value, and refuses text that is not UTF-8.
static bool put(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value) == 0;
}

static bool put_tensor(json_t *header, const plan_entry *entry, size_t offset) {
    const mz_safetensors_item *item = entry->item;
    json_t *shape = json_array();
    bool whole = shape != NULL;
    for (size_t d = 0; whole && d < item->rank; d++)
        whole = json_array_append_new(shape, json_integer(item->shape[d])) == 0;
    if (!whole) {
        json_decref(shape);
        return false;
    }
    json_t *tensor = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_to_text(item->dtype), "shape", shape,
                               "data_offsets", (json_int_t)offset, (json_int_t)(offset + entry->bytes));
    return put(header, item->name, tensor);
}

// Reports why a member of the header could not be added.
static mezzo_status header_failed(const char *path, const char *what, const char *name) {
    if (mz_json_ran_out())
        return mz_fail(MEZZO_ERR_MEMORY, "%s: out of memory while making the header", path);
    return mz_fail(MEZZO_ERR_INVALID, "%s: %s %s: not UTF-8", path, what, mz_quote(name).text);
}

static mezzo_status put_meta(const char *path, json_t *header, const mz_safetensors_meta *meta, size_t count) {
    json_t *object = json_object();
    if (!put(header, "__metadata__", object))
        return header_failed(path, "metadata", "");
    for (size_t i = 0; i < count; i++)
        if (!put(object, meta[i].key, json_string(meta[i].value)))
            return header_failed(path, "metadata", meta[i].key);
    return MEZZO_OK;
}

static mezzo_status make_header(const char *path, const plan_entry *plan, size_t count, const mz_safetensors_meta *meta,
                                size_t meta_count, char **out, size_t *size) {
    mezzo_status status = MEZZO_OK;
    char *text = NULL;
    json_t *header = mz_json_new();
    if (header != NULL && meta_count > 0)
        MEZZO_TRY_GOTO(status, put_meta(path, header, meta, meta_count));
    size_t offset = 0;
    for (size_t i = 0; i < count && header != NULL; i++) {
        if (!put_tensor(header, &plan[i], offset))
            MEZZO_TRY_GOTO(status, header_failed(path, "the name of tensor", plan[i].item->name));
        offset += plan[i].bytes;
    }
    MEZZO_TRY_GOTO(status, mz_context(mz_json_dump(header, JSON_COMPACT, &text), "%s", path));
    size_t n = strlen(text);
    if (n > MAX_HEADER) {
        status = mz_fail(MEZZO_ERR_INVALID, "%s: a header of %zu bytes; readers accept %zu", path, n, MAX_HEADER);
        goto fail;
    }
    *size = mz_align_up(n, 8);
    *out = mz_alloc(*size, 1);
    if (!*out) {
        status = MEZZO_ERR_MEMORY;
        goto fail;
    }
    memcpy(*out, text, n);
    memset(*out + n, ' ', *size - n);
fail:
    free(text);
    json_decref(header);
    return status;
}

static mezzo_status write_tensor(mz_file *file, const plan_entry *entry, void *piece) {
    const mz_safetensors_item *item = entry->item;
    if (entry->bytes > 0 && !item->data && !item->fill)
        return mz_fail(MEZZO_ERR_INVALID, "tensor %s has neither data nor a way to get it", mz_quote(item->name).text);
    for (size_t at = 0; at < entry->bytes; at += PIECE) {
        size_t n = entry->bytes - at < PIECE ? entry->bytes - at : PIECE;
        if (item->data == NULL)
            MEZZO_TRY(item->fill(item->user, at, piece, n));
        MEZZO_TRY(mz_file_write(file, item->data != NULL ? (const char *)item->data + at : piece, n));
        MEZZO_TRY(mz_stop_check(item->name));
    }
    return MEZZO_OK;
}

mezzo_status mz_safetensors_write(const char *path, const mz_safetensors_item *items, size_t count,
                                  const mz_safetensors_meta *meta, size_t meta_count, mz_written *written) {
    mezzo_status status = MEZZO_OK;
    char *header = NULL;
    void *piece = NULL;
    mz_file *file = NULL;
    size_t size = 0;
    bool need_piece = false;
    plan_entry *plan;
    MEZZO_TRY(MZ_NEW(plan, count + 1));
    MEZZO_TRY_GOTO(status, plan_items(path, items, count, plan));
    MEZZO_TRY_GOTO(status, make_header(path, plan, count, meta, meta_count, &header, &size));
    for (size_t i = 0; i < count; i++)
        need_piece |= !items[i].data;
    if (need_piece && !(piece = mz_alloc(PIECE, 1))) {
        status = MEZZO_ERR_MEMORY;
        goto fail;
    }

    MEZZO_TRY_GOTO(status, mz_file_create(path, &file));
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)size >> (8 * i));
    MEZZO_TRY_GOTO(status, mz_file_write(file, length, sizeof length));
    MEZZO_TRY_GOTO(status, mz_file_write(file, header, size));
    for (size_t i = 0; i < count; i++) {
        mz_work("writing tensors", (int64_t)i, (int64_t)count);
        MEZZO_TRY_GOTO(status, write_tensor(file, &plan[i], piece));
    }
    mz_work("writing tensors", (int64_t)count, (int64_t)count);
    if (written)
        *written = mz_file_written(file);
    status = mz_file_commit(file);
    file = NULL;
fail:
    mz_file_discard(file);
    MZ_FREE(header, piece, plan);
    return status;
}

// --- reading -------------------------------------------------------------------------------------------------------
struct mz_safetensors {
    char *where; // the path, or the caller's name for the bytes
    mz_map map;
    json_t *header;                  // it owns the names
    mz_safetensors_tensor *tensors;  // by offset
    const char **names;              // sorted; by_name[i] is the tensor with names[i]
    mz_safetensors_tensor **by_name; // sorted by name
    size_t count;
};

void mz_safetensors_close(mz_safetensors *file) {
    if (!file)
        return;
    mz_map_close(&file->map);
    json_decref(file->header);
    MZ_FREE(file->tensors, file->by_name, file->names, file->where, file);
}

// Finds the JSON header's bytes, inside the file.
static mezzo_status find_header(const mz_safetensors *file, const char **text, size_t *size) {
    if (file->map.size < 8)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: %zu bytes; not a safetensors file, which starts with 8 bytes of length",
                       file->where, file->map.size);
    uint64_t n = 0;
    for (int i = 0; i < 8; i++)
        n |= (uint64_t)file->map.data[i] << (8 * i);
    if (n > MAX_HEADER)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: a header of %llu bytes; at most %zu are allowed: not a safetensors file?",
                       file->where, (unsigned long long)n, MAX_HEADER);
    if (n > file->map.size - 8)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: a header of %llu bytes in a file of %zu: the file is cut off",
                       file->where, (unsigned long long)n, file->map.size);
    *text = (const char *)file->map.data + 8;
    *size = (size_t)n;
    if (n == 0 || **text != '{')
        return mz_fail(MEZZO_ERR_FORMAT, "%s: the header does not start with '{': not a safetensors file", file->where);
    return MEZZO_OK;
}

static mezzo_status check_meta(const mz_safetensors *file, json_t *meta) {
    if (!json_is_object(meta))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: __metadata__ is not an object", file->where);
    const char *key;
    json_t *value;
    json_object_foreach(meta, key, value) {
        if (!json_is_string(value))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: __metadata__ %s is not a string", file->where, mz_quote(key).text);
    }
    return MEZZO_OK;
}

static mezzo_status bad_tensor(const mz_safetensors *file, const char *name, const char *what) {
    return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s: %s", file->where, mz_quote(name).text, what);
}

static mezzo_status parse_tensor(const mz_safetensors *file, const char *name, const json_t *object, size_t data_start,
                                 mz_safetensors_tensor *tensor) {
    tensor->name = name;
    if (!json_is_object(object))
        return bad_tensor(file, name, "its entry is not an object");
    const json_t *type = json_object_get(object, "dtype");
    const char *dtype = json_string_value(type);
    if (!dtype || strlen(dtype) != json_string_length(type))
        return bad_tensor(file, name, "its dtype is missing, not a string, or has a NUL in it");
    if (!dtype_from_text(dtype, &tensor->dtype))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s: dtype %s is not one that Mezzo reads", file->where,
                       mz_quote(name).text, mz_quote(dtype).text);

    const json_t *shape = json_object_get(object, "shape");
    if (!json_is_array(shape))
        return bad_tensor(file, name, "its shape is missing or not an array");
    tensor->rank = json_array_size(shape);
    if (tensor->rank > MZ_SAFETENSORS_MAX_RANK)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s: rank %zu; at most %d is read", file->where,
                       mz_quote(name).text, tensor->rank, MZ_SAFETENSORS_MAX_RANK);
    for (size_t d = 0; d < tensor->rank; d++) {
        const json_t *size = json_array_get(shape, d);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return bad_tensor(file, name, "its shape has an entry that is not a non-negative integer");
        tensor->shape[d] = json_integer_value(size);
    }
    if (!shape_size(tensor->shape, tensor->rank, tensor->dtype, &tensor->count, &tensor->bytes))
        return bad_tensor(file, name, "its shape has more elements than memory can have");

    const json_t *offsets = json_object_get(object, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return bad_tensor(file, name, "data_offsets is missing or not two integers");
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);
    size_t available = file->map.size - data_start;
    if (begin < 0 || end < begin || (uint64_t)end > available)
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: tensor %s: data_offsets [%lld, %lld] do not lie in the file's %zu bytes "
                       "of data: it is cut off or damaged",
                       file->where, mz_quote(name).text, (long long)begin, (long long)end, available);
    if ((size_t)(end - begin) != tensor->bytes) {
        char text[SHAPE_TEXT];
        shape_to_text(tensor->shape, tensor->rank, text, sizeof text);
        return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s: data_offsets give %lld bytes, shape %s of %s needs %zu",
                       file->where, mz_quote(name).text, (long long)(end - begin), text, dtype, tensor->bytes);
    }
    tensor->data = file->map.data + data_start + (size_t)begin;
    return MEZZO_OK;
}

static int compare_data(const void *a, const void *b) {
    const mz_safetensors_tensor *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; // an empty tensor comes before its neighbour at the same
                                                           // offset
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(mz_safetensors_tensor *const *)a)->name, (*(mz_safetensors_tensor *const *)b)->name);
}

// Checks that every byte of data belongs to exactly one tensor.
static mezzo_status check_cover(const mz_safetensors *file, size_t data_start) {
    const unsigned char *expected = file->map.data + data_start;
    for (size_t i = 0; i < file->count; i++) {
        const mz_safetensors_tensor *tensor = &file->tensors[i];
        const unsigned char *data = tensor->data;
        if (data < expected)
            return bad_tensor(file, tensor->name, "its data overlaps another tensor's");
        if (data > expected)
            return bad_tensor(file, tensor->name, "there is a hole in the data before it");
        expected = data + tensor->bytes;
    }
    const unsigned char *end = file->map.data + file->map.size;
    if (expected != end)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: %zu bytes after the last tensor belong to none", file->where,
                       (size_t)(end - expected));
    return MEZZO_OK;
}

static mezzo_status make_room(mz_safetensors *file, size_t n) {
    file->tensors = mz_alloc(n + 1, sizeof *file->tensors);
    file->by_name = mz_alloc(n + 1, sizeof *file->by_name);
    file->names = mz_alloc(n + 1, sizeof *file->names);
    return file->tensors && file->by_name && file->names ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

static void sort_names(mz_safetensors *file) {
    for (size_t i = 0; i < file->count; i++)
        file->by_name[i] = &file->tensors[i];
    if (file->count > 1)
        qsort(file->by_name, file->count, sizeof(mz_safetensors_tensor *), compare_names);
    for (size_t i = 0; i < file->count; i++)
        file->names[i] = file->by_name[i]->name;
}

static mezzo_status parse(mz_safetensors *file) {
    const char *text = NULL;
    size_t size = 0;
    MEZZO_TRY(find_header(file, &text, &size));
    // Three levels: header; tensor or metadata; shape or offsets.
    MEZZO_TRY(mz_json_parse(mz_path_of("%s: header", file->where).text, text, size, 3, &file->header));

    size_t entries = json_object_size(file->header), data_start = 8 + size;
    MEZZO_TRY(make_room(file, entries));
    const char *name;
    json_t *value;
    json_object_foreach(file->header, name, value) {
        if (strcmp(name, "__metadata__") == 0) {
            MEZZO_TRY(check_meta(file, value));
            continue;
        }
        MEZZO_TRY(parse_tensor(file, name, value, data_start, &file->tensors[file->count]));
        file->count++;
    }
    if (file->count > 1)
        qsort(file->tensors, file->count, sizeof *file->tensors, compare_data);
    MEZZO_TRY(check_cover(file, data_start));
    sort_names(file);
    return MEZZO_OK;
}

// Opens a mapped file and takes over the map.
static mezzo_status open_bytes(const char *where, mz_map map, mz_safetensors **out) {
    mz_safetensors *file = mz_alloc(1, sizeof *file);
    if (!file) {
        mz_map_close(&map);
        return MEZZO_ERR_MEMORY;
    }
    file->map = map;
    file->where = mz_strdup(where);
    mezzo_status status = file->where ? parse(file) : MEZZO_ERR_MEMORY;
    if (status != MEZZO_ERR_MEMORY && mz_safetensors_check(file) != MEZZO_OK)
        status = MEZZO_ERR_IO;
    if (status != MEZZO_OK) {
        mz_safetensors_close(file);
        return mz_trace(status, __FILE__, __LINE__, __func__);
    }
    *out = file;
    return MEZZO_OK;
}

mezzo_status mz_safetensors_open(const char *path, mz_safetensors **out) {
    *out = NULL;
    mz_map map;
    MEZZO_TRY(mz_map_open(path, &map));
    return open_bytes(path, map, out);
}

mezzo_status mz_safetensors_parse(const char *where, const void *bytes, size_t n, mz_safetensors **out) {
    *out = NULL;
    return open_bytes(where, (mz_map){bytes, n}, out);
}

mezzo_status mz_safetensors_of(const char *where, const mz_safetensors_tensor *tensors, size_t n,
                               mz_safetensors **out) {
    mz_safetensors *file = mz_alloc(1, sizeof *file);
    *out = NULL;
    if (!file)
        return MEZZO_ERR_MEMORY;
    file->where = mz_strdup(where);
    mezzo_status status = file->where ? make_room(file, n) : MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < n && status == MEZZO_OK; i++)
        file->tensors[file->count++] = tensors[i];
    if (status == MEZZO_OK)
        sort_names(file);
    for (size_t i = 1; i < file->count && status == MEZZO_OK; i++)
        if (strcmp(file->names[i - 1], file->names[i]) == 0)
            status = bad_tensor(file, file->names[i], "it is there twice");
    if (status != MEZZO_OK) {
        mz_safetensors_close(file);
        return mz_trace(status, __FILE__, __LINE__, __func__);
    }
    *out = file;
    return MEZZO_OK;
}

mezzo_status mz_safetensors_check(const mz_safetensors *file) {
    return mz_map_check(file->map.data != NULL ? file->map.data : file->count > 0 ? file->tensors[0].data : NULL);
}

size_t mz_safetensors_count(const mz_safetensors *file) {
    return file->count;
}

const mz_safetensors_tensor *mz_safetensors_at(const mz_safetensors *file, size_t i) {
    return i < file->count ? &file->tensors[i] : NULL;
}

const mz_safetensors_tensor *mz_safetensors_find(const mz_safetensors *file, const char *name) {
    size_t low = 0, high = file->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, file->names[middle]);
        if (order == 0)
            return file->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

mezzo_status mz_safetensors_get(const mz_safetensors *file, const char *name, const mz_safetensors_tensor **out) {
    *out = mz_safetensors_find(file, name);
    if (*out)
        return MEZZO_OK;
    const char *near = mz_nearest(name, file->names, file->count);
    if (near)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: no tensor %s; the nearest is %s", file->where, mz_quote(name).text,
                       mz_quote(near).text);
    return mz_fail(MEZZO_ERR_FORMAT, "%s: no tensor %s among its %zu", file->where, mz_quote(name).text, file->count);
}

mezzo_status mz_safetensors_read(const mz_safetensors *file, const char *name, mezzo_dtype dtype, size_t rank,
                                 const int64_t *shape, void *values) {
    const mz_safetensors_tensor *tensor;
    MEZZO_TRY(mz_safetensors_get(file, name, &tensor));
    bool same = tensor->rank == rank && (rank == 0 || memcmp(tensor->shape, shape, rank * sizeof *shape) == 0);
    if (!same) {
        char have[SHAPE_TEXT], want[SHAPE_TEXT];
        shape_to_text(tensor->shape, tensor->rank, have, sizeof have);
        shape_to_text(shape, rank, want, sizeof want);
        return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s has shape %s; this model needs %s", file->where,
                       mz_quote(name).text, have, want);
    }
    if (tensor->count == 0)
        return MEZZO_OK;
    if (tensor->dtype == dtype) {
        memcpy(values, tensor->data, tensor->bytes);
        return mz_safetensors_check(file);
    }
    // mezzo_convert reads aligned elements, which files of other programs do not promise.
    if ((uintptr_t)tensor->data % mezzo_dtype_size(tensor->dtype) == 0) {
        MEZZO_TRY(mezzo_convert(tensor->data, tensor->dtype, values, dtype, tensor->count));
        return mz_safetensors_check(file);
    }
    void *aligned = mz_alloc(tensor->bytes, 1);
    if (!aligned)
        return MEZZO_ERR_MEMORY;
    memcpy(aligned, tensor->data, tensor->bytes);
    mezzo_status status = mezzo_convert(aligned, tensor->dtype, values, dtype, tensor->count);
    mz_free(aligned);
    return status == MEZZO_OK ? mz_safetensors_check(file) : status;
}

const char *mz_safetensors_meta_get(const mz_safetensors *file, const char *key) {
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}
