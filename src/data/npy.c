#include "data/npy.h"

#include <stdlib.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error ".npy files are little-endian and mapped as they are"
#endif

#define MAGIC "\x93NUMPY"
enum { MAGIC_BYTES = 6, HEADER_MOST = 1 << 16 };

static const struct {
    const char *descr;
    mezzo_dtype dtype;
} types[] = {[MZ_NPY_F2] = {"<f2", MEZZO_F16}, [MZ_NPY_F4] = {"<f4", MEZZO_F32}, [MZ_NPY_F8] = {"<f8", MEZZO_F64},
             [MZ_NPY_U1] = {"|u1", MEZZO_U8},  [MZ_NPY_B1] = {"|b1", MEZZO_U8},  [MZ_NPY_U2] = {"<u2", MEZZO_U16},
             [MZ_NPY_I4] = {"<i4", MEZZO_I32}, [MZ_NPY_I8] = {"<i8", MEZZO_I64}};

static size_t width_of(mz_npy_type type) {
    return mezzo_dtype_size(types[type].dtype);
}

const char *mz_npy_type_name(mz_npy_type type) {
    return types[type].descr + 1;
}

bool mz_npy_is_integer(mz_npy_type type) {
    return type > MZ_NPY_F8;
}

// --- the header: a Python dictionary of three keys -----------------------------------------------
typedef struct reader {
    const char *path, *at, *end;
} reader;

static mezzo_status bad_header(const reader *r, const char *what) {
    int n = r->end - r->at > 40 ? 40 : (int)(r->end - r->at);
    return mz_fail(MEZZO_ERR_FORMAT, "%s: the header has %.*s where %s should be", r->path, n > 0 ? n : 3,
                   n > 0 ? r->at : "end", what);
}

static void skip_space(reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t'))
        r->at++;
}

static bool take(reader *r, char c) {
    skip_space(r);
    if (r->at == r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

static mezzo_status take_string(reader *r, char *out, size_t size) {
    size_t n = 0;
    skip_space(r);
    char quote = r->at < r->end ? *r->at : '\0';
    if (quote != '\'' && quote != '"')
        return bad_header(r, "a quoted word");
    r->at++;
    while (r->at + n < r->end && r->at[n] != quote)
        n++;
    if (r->at + n == r->end || n >= size)
        return bad_header(r, "a short quoted word");
    memcpy(out, r->at, n);
    out[n] = '\0';
    r->at += n + 1;
    return MEZZO_OK;
}

static mezzo_status take_order(reader *r) {
    skip_space(r);
    if (r->end - r->at >= 5 && memcmp(r->at, "False", 5) == 0) {
        r->at += 5;
        return MEZZO_OK;
    }
    if (r->end - r->at >= 4 && memcmp(r->at, "True", 4) == 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: the array is in Fortran order: save numpy.ascontiguousarray(array)",
                       r->path);
    return bad_header(r, "True or False");
}

static mezzo_status take_shape(reader *r, mz_npy *out) {
    if (!take(r, '('))
        return bad_header(r, "a shape");
    out->rank = 0;
    while (!take(r, ')')) {
        int64_t value = 0;
        if (out->rank == MZ_NPY_RANK)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: more than %d dimensions", r->path, (int)MZ_NPY_RANK);
        skip_space(r);
        if (r->at == r->end || *r->at < '0' || *r->at > '9')
            return bad_header(r, "a dimension");
        for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) {
            if (value > INT64_MAX / 16)
                return bad_header(r, "a dimension below 2^60");
            value = 10 * value + (*r->at - '0');
        }
        out->dim[out->rank++] = value;
        if (!take(r, ',') && (r->at == r->end || *r->at != ')'))
            return bad_header(r, "a comma");
    }
    return MEZZO_OK;
}

static mezzo_status take_type(reader *r, mz_npy *out) {
    char descr[16];
    MEZZO_TRY(take_string(r, descr, sizeof descr));
    out->type = (mz_npy_type)MZ_INDEX(types, MZ_COUNT(types), descr, descr);
    if ((size_t)out->type < MZ_COUNT(types))
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_FORMAT,
                   "%s: the type is '%s'; only little-endian f2, f4, f8, u1, b1, u2, i4 and i8 are supported", r->path,
                   descr);
}

static mezzo_status take_header(reader *r, mz_npy *out) {
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    bool seen[MZ_COUNT(keys)] = {false};
    char key[32];
    if (!take(r, '{'))
        return bad_header(r, "a dictionary");
    while (!take(r, '}')) {
        MEZZO_TRY(take_string(r, key, sizeof key));
        const size_t k = MZ_INDEX_WORD(keys, MZ_COUNT(keys), key);
        if (k == MZ_COUNT(keys) || seen[k])
            return mz_fail(MEZZO_ERR_FORMAT, "%s: the header's key '%s' is unknown or occurs twice", r->path, key);
        seen[k] = true;
        if (!take(r, ':'))
            return bad_header(r, "a colon");
        MEZZO_TRY(k == 0 ? take_type(r, out) : k == 1 ? take_order(r) : take_shape(r, out));
        if (!take(r, ',') && (r->at == r->end || *r->at != '}'))
            return bad_header(r, "a comma");
    }
    for (size_t k = 0; k < MZ_COUNT(keys); k++)
        if (!seen[k])
            return mz_fail(MEZZO_ERR_FORMAT, "%s: the header has no key '%s'", r->path, keys[k]);
    skip_space(r);
    return r->at == r->end ? MEZZO_OK : bad_header(r, "nothing but blanks after the dictionary");
}

// --- the file ------------------------------------------------------------------------------------
// Finds the header's text, by its version.
static mezzo_status find_header(const char *path, const unsigned char *d, size_t size, size_t *begin, size_t *bytes) {
    if (size < MAGIC_BYTES + 4 || memcmp(d, MAGIC, MAGIC_BYTES) != 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: not a NumPy .npy file (numpy.save writes one)", path);
    int version = d[MAGIC_BYTES];
    if (version != 1 && version != 2)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: .npy version %d.%d; only 1.0 and 2.0 are supported", path, version,
                       d[MAGIC_BYTES + 1]);
    *begin = MAGIC_BYTES + (version == 1 ? 4 : 6);
    if (size < *begin)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: the file is cut off in its header", path);
    *bytes = (size_t)d[8] | (size_t)d[9] << 8;
    if (version == 2)
        *bytes |= (size_t)d[10] << 16 | (size_t)d[11] << 24;
    if (*bytes > HEADER_MOST || size - *begin < *bytes)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: the header should have %zu bytes, more than the file has", path, *bytes);
    return MEZZO_OK;
}

static mezzo_status check_size(const char *path, const unsigned char *data, size_t there, mz_npy *out) {
    size_t width = width_of(out->type);
    out->count = 1;
    for (int d = 0; d < out->rank; d++)
        if (__builtin_mul_overflow(out->count, out->dim[d], &out->count))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: the shape has more elements than a file can hold", path);
    if ((uint64_t)out->count > SIZE_MAX / width || (size_t)out->count * width != there)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: %zu bytes of data, and %lld elements of %s take %zu", path, there,
                       (long long)out->count, types[out->type].descr + 1, (size_t)out->count * width);
    out->data = data;
    return MEZZO_OK;
}

mezzo_status mz_npy_parse(const char *where, const void *bytes, size_t n, mz_npy *out) {
    const unsigned char *data = bytes;
    size_t begin = 0, header = 0;
    MEZZO_TRY(find_header(where, data, n, &begin, &header));
    reader r = {.path = where, .at = (const char *)data + begin, .end = (const char *)data + begin + header};
    MEZZO_TRY(take_header(&r, out));
    return check_size(where, data + begin + header, n - begin - header, out);
}

mezzo_status mz_npy_open(const char *path, mz_npy *out) {
    *out = (mz_npy){0};
    MEZZO_TRY(mz_map_open(path, &out->map));
    mezzo_status status = mz_npy_parse(path, out->map.data, out->map.size, out);
    return status == MEZZO_OK ? status : mz_npy_end(out, status);
}

mezzo_status mz_npy_end(mz_npy *npy, mezzo_status status) {
    status = mz_map_end(&npy->map, status);
    *npy = (mz_npy){0};
    return status;
}

int64_t mz_npy_integer(const mz_npy *npy, int64_t i) {
    return mz_load_integer(npy->data + (size_t)i * width_of(npy->type), types[npy->type].dtype);
}

double mz_npy_number(const mz_npy *npy, int64_t i) {
    if (mz_npy_is_integer(npy->type))
        return (double)mz_npy_integer(npy, i);
    return mz_load_float(npy->data + (size_t)i * width_of(npy->type), types[npy->type].dtype);
}
