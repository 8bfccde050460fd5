#include "data/arrays.h"

#include <math.h>

#include "base/scope.h"
#include "io/zip.h"

void mz_arrays_free(mz_arrays *arrays) {
    for (size_t i = 0; i < arrays->count; i++) {
        MZ_FREE(arrays->items[i].name, arrays->items[i].data);
    }
    mz_free(arrays->items);
    *arrays = (mz_arrays){0};
}

const mz_array *mz_arrays_find(const mz_arrays *arrays, const char *name) {
    return MZ_FIND(arrays->items, arrays->count, name, name);
}

size_t mz_array_size(const mz_array *array) {
    return array->type == MZ_ARRAY_U8 ? 1 : 4;
}

double mz_array_number(const mz_array *array, int64_t i) {
    return array->type == MZ_ARRAY_F32   ? (double)((const float *)array->data)[i]
           : array->type == MZ_ARRAY_I32 ? (double)((const int32_t *)array->data)[i]
                                         : (double)((const uint8_t *)array->data)[i];
}

mezzo_status mz_arrays_add(mz_arrays *arrays, const char *name, mz_array_type type, int64_t n, int rank,
                           const int64_t *dim, void *data, mz_array **out) {
    mz_array a = {.type = type, .rank = rank, .n = n, .width = 1, .data = data};
    mezzo_status status = MZ_RESERVE(arrays->items, arrays->cap, arrays->count + 1);
    for (int i = 0; i < rank; i++) {
        a.dim[i] = dim[i];
        a.width *= dim[i];
    }
    if (status == MEZZO_OK && a.data == NULL) {
        const size_t count = (size_t)(n * a.width);
        a.data = mz_alloc(count > 0 ? count : 1, mz_array_size(&a));
    }
    a.name = status == MEZZO_OK ? mz_format("%s", name) : NULL;
    if (a.data == NULL || a.name == NULL) {
        MZ_FREE(a.data, a.name);
        return MEZZO_ERR_MEMORY;
    }
    arrays->items[arrays->count] = a;
    *out = &arrays->items[arrays->count++];
    return MEZZO_OK;
}

static mezzo_status take_number(const char *where, const mz_npy *npy, int64_t i, mz_array *a) {
    const int64_t row = a->width > 0 ? i / a->width : 0, column = a->width > 0 ? i % a->width : 0;
    if (a->type == MZ_ARRAY_F32) {
        const float value = (float)mz_npy_number(npy, i);
        ((float *)a->data)[i] = value;
        return isfinite(value) ? MEZZO_OK
                               : mz_fail(MEZZO_ERR_INVALID, "%s: row %lld, column %lld is %g: not finite in fp32",
                                         where, (long long)row, (long long)column, mz_npy_number(npy, i));
    }
    const int64_t value = mz_npy_integer(npy, i);
    if (a->type == MZ_ARRAY_U8)
        ((uint8_t *)a->data)[i] = (uint8_t)value;
    else
        ((int32_t *)a->data)[i] = (int32_t)value;
    return value >= INT32_MIN && value <= INT32_MAX
               ? MEZZO_OK
               : mz_fail(MEZZO_ERR_INVALID, "%s: row %lld, column %lld is %lld: it does not fit into 32 bits", where,
                         (long long)row, (long long)column, (long long)value);
}

static mezzo_status add(mz_arrays *arrays, const char *where, const char *name, const mz_npy *npy) {
    mz_array *a;
    const mz_array_type type = npy->type == MZ_NPY_U1         ? MZ_ARRAY_U8
                               : mz_npy_is_integer(npy->type) ? MZ_ARRAY_I32
                                                              : MZ_ARRAY_F32;
    if (npy->rank < 1 || npy->count == 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s is %s: arrays of examples are [examples, …]", where,
                       npy->rank < 1 ? "one number" : "empty");
    MEZZO_TRY(mz_arrays_add(arrays, name, type, npy->dim[0], npy->rank - 1, npy->dim + 1, NULL, &a));
    for (int64_t i = 0; i < npy->count; i++)
        MEZZO_TRY(take_number(where, npy, i, a));
    return MEZZO_OK;
}

mezzo_status mz_arrays_add_npy(mz_arrays *arrays, const char *name, const char *path) {
    mz_npy npy;
    MEZZO_TRY(mz_npy_open(path, &npy));
    return mz_npy_end(&npy, add(arrays, path, name, &npy));
}

// --- archives ------------------------------------------------------------------------------------------------------
static mezzo_status read_entry(const char *path, const mz_zip *zip, size_t index, mz_arrays *out) {
    const mz_zip_entry *e = &zip->entries[index];
    const size_t n = strlen(e->name), end = strlen(".npy");
    const unsigned char *bytes;
    MZ_SCOPED(mz_free_at) void *owned = NULL;
    mz_npy npy = {0};
    if (n <= end || strcmp(e->name + n - end, ".npy") != 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: entry '%s' is no array", path, e->name);
    const mz_path name = mz_path_of("%.*s", (int)(n - end), e->name),
                  where = mz_path_of("%s: array '%s'", path, name.text);
    if (mz_arrays_find(out, name.text) != NULL)
        return mz_fail(MEZZO_ERR_FORMAT, "%s is there twice", where.text);
    MEZZO_TRY(mz_zip_read(zip, path, index, &bytes, &owned));
    MEZZO_TRY(mz_npy_parse(where.text, bytes, (size_t)e->size, &npy));
    return add(out, where.text, name.text, &npy);
}

static mezzo_status read_entries(const char *where, const mz_zip *zip, mz_arrays *out) {
    for (size_t i = 0; i < zip->count; i++)
        MEZZO_TRY(read_entry(where, zip, i, out));
    return zip->count > 0 ? MEZZO_OK : mz_fail(MEZZO_ERR_FORMAT, "%s: the archive is empty", where);
}

mezzo_status mz_arrays_read(const char *path, mz_arrays *out) {
    mz_zip zip;
    *out = (mz_arrays){0};
    MEZZO_TRY(mz_zip_open(path, &zip));
    return mz_zip_end(&zip, read_entries(path, &zip, out));
}
