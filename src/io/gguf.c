#include "io/gguf.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "base/scope.h"
#include "base/stop.h"
#include "io/quote.h"

enum { MAX_COUNT = 1 << 24, MAX_RANK = 4, ALIGNMENT = 32 };
#define PIECE ((size_t)1 << 20) // bytes that `fill` makes at a time; for Q8_0 this many blocks of 34 bytes

// --- Q8_0 ----------------------------------------------------------------------------------------------------------
bool mz_q8_0_pack(const float *values, unsigned char *out) {
    float most = 0;
    for (int i = 0; i < MZ_Q8_0_VALUES; i++)
        most = fabsf(values[i]) > most ? fabsf(values[i]) : most;
    const float scale = most / 127, inverse = scale > FLT_MIN ? 1 / scale : 0;
    const uint16_t half = mezzo_f32_to_f16(scale);
    memcpy(out, &half, sizeof half);
    for (int i = 0; i < MZ_Q8_0_VALUES; i++)
        out[2 + i] = (unsigned char)(signed char)roundf(values[i] * inverse);
    return isfinite(mezzo_f16_to_f32(half)) != 0;
}

float mz_q8_0_value(const unsigned char *data, int64_t i) {
    const unsigned char *block = data + i / MZ_Q8_0_VALUES * MZ_Q8_0_BYTES;
    uint16_t half;
    memcpy(&half, block, sizeof half);
    return mezzo_f16_to_f32(half) * (float)(signed char)block[2 + i % MZ_Q8_0_VALUES];
}

// --- reading -------------------------------------------------------------------------------------------------------
struct mz_gguf {
    char *where;
    mz_map map;
    uint32_t version;
    char **names; // of values, and then of tensors
    size_t n_names;
    mz_gguf_value *values;
    const char **keys; // sorted; by_key[i] is the value with keys[i]
    const mz_gguf_value **by_key;
    size_t n_values;
    mz_safetensors_tensor *tensors;
    uint64_t *offsets; // of each tensor, until its data are found
    size_t n_tensors;
    mz_safetensors *table;
};

// A position in the file; every read is checked against the file's size.
typedef struct cursor {
    const mz_gguf *file;
    size_t at;
} cursor;

static mezzo_status cut_off(const mz_gguf *file, const char *what) {
    return mz_fail(MEZZO_ERR_FORMAT, "%s: %zu bytes end within %s: the file is cut off or damaged", file->where,
                   file->map.size, what);
}

static mezzo_status take(cursor *c, size_t n, const char *what, const unsigned char **out) {
    if (n > c->file->map.size - c->at)
        return cut_off(c->file, what);
    *out = c->file->map.data + c->at;
    c->at += n;
    return MEZZO_OK;
}

static uint64_t little(const unsigned char *at, size_t n) {
    uint64_t x = 0;
    for (size_t i = 0; i < n; i++)
        x |= (uint64_t)at[i] << (8 * i);
    return x;
}

static mezzo_status take_number(cursor *c, size_t n, const char *what, uint64_t *out) {
    const unsigned char *at = NULL;
    MEZZO_TRY(take(c, n, what, &at));
    *out = little(at, n);
    return MEZZO_OK;
}

// Reads a length and that many bytes.
static mezzo_status take_text(cursor *c, const char *what, const unsigned char **text, uint64_t *n) {
    MEZZO_TRY(take_number(c, 8, what, n));
    if (*n > c->file->map.size)
        return cut_off(c->file, what);
    return take(c, (size_t)*n, what, text);
}

// Reads a name and copies it to a text of its own.
static mezzo_status take_name(mz_gguf *file, cursor *c, const char *what, const char **out) {
    const unsigned char *text;
    uint64_t n;
    MEZZO_TRY(take_text(c, what, &text, &n));
    if (n == 0 || n > 65535 || memchr(text, '\0', (size_t)n) != NULL)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: %s of %llu bytes is empty, too long or no text", file->where, what,
                       (unsigned long long)n);
    char *copy;
    MEZZO_TRY(MZ_NEW(copy, (size_t)n + 1));
    memcpy(copy, text, (size_t)n);
    file->names[file->n_names++] = copy;
    *out = copy;
    return MEZZO_OK;
}

static size_t type_size(uint64_t type) { // returns 0 for a type that is no number
    static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < MZ_COUNT(sizes) ? sizes[type] : 0;
}

static mezzo_status bad_value(const mz_gguf *file, const char *key, const char *what) {
    return mz_fail(MEZZO_ERR_FORMAT, "%s: key %s: %s", file->where, mz_quote(key).text, what);
}

static mezzo_status take_list(mz_gguf *file, cursor *c, mz_gguf_value *v) {
    uint64_t of, n, bytes;
    MEZZO_TRY(take_number(c, 4, v->key, &of));
    MEZZO_TRY(take_number(c, 8, v->key, &n));
    if (of != MZ_GGUF_TEXT && type_size(of) == 0)
        return bad_value(file, v->key, of == MZ_GGUF_LIST ? "a list of lists" : "a list of an unknown type");
    if (n > MAX_COUNT)
        return bad_value(file, v->key, "a list that is too long");
    v->of = (mz_gguf_type)of;
    v->n = n;
    v->at = file->map.data + c->at;
    if (of != MZ_GGUF_TEXT) {
        const unsigned char *unused;
        return take(c, (size_t)n * type_size(of), v->key, &unused);
    }
    for (uint64_t i = 0; i < n; i++) {
        const unsigned char *text;
        MEZZO_TRY(take_text(c, v->key, &text, &bytes));
    }
    return MEZZO_OK;
}

static mezzo_status take_value(mz_gguf *file, cursor *c, mz_gguf_value *v) {
    uint64_t type;
    MEZZO_TRY(take_name(file, c, "a key", &v->key));
    MEZZO_TRY(take_number(c, 4, v->key, &type));
    v->type = (mz_gguf_type)type;
    if (type == MZ_GGUF_LIST)
        return take_list(file, c, v);
    if (type == MZ_GGUF_TEXT)
        return take_text(c, v->key, &v->at, &v->n);
    if (type_size(type) == 0)
        return bad_value(file, v->key, "a value of an unknown type");
    return take(c, type_size(type), v->key, &v->at);
}

// --- tensors -------------------------------------------------------------------------------------------------------
static mezzo_status bad_tensor(const mz_gguf *file, const char *name, const char *what) {
    return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s: %s", file->where, mz_quote(name).text, what);
}

static const struct tensor_type {
    uint32_t number;
    const char *name;
    mezzo_dtype dtype;
    bool q8_0;
} types[] = {{0, "F32", MEZZO_F32, false},
             {1, "F16", MEZZO_F16, false},
             {30, "BF16", MEZZO_BF16, false},
             {8, "Q8_0", MEZZO_U8, true}};

static mezzo_status refuse_type(const mz_gguf *file, const char *name, uint64_t type) {
    static const char *const others[] = {
        [2] = "Q4_0",    [3] = "Q4_1",     [6] = "Q5_0",   [7] = "Q5_1",    [9] = "Q8_1",   [10] = "Q2_K",
        [11] = "Q3_K",   [12] = "Q4_K",    [13] = "Q5_K",  [14] = "Q6_K",   [15] = "Q8_K",  [16] = "IQ2_XXS",
        [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S", [22] = "IQ2_S",
        [23] = "IQ4_XS", [24] = "I8",      [25] = "I16",   [26] = "I32",    [27] = "I64",   [28] = "F64",
        [29] = "IQ1_M",  [34] = "TQ1_0",   [35] = "TQ2_0", [39] = "MXFP4"};
    char number[40];
    snprintf(number, sizeof number, "type %llu", (unsigned long long)type);
    const char *known = type < MZ_COUNT(others) ? others[type] : NULL;
    return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s is %s; only F32, F16, BF16 and Q8_0 are read", file->where,
                   mz_quote(name).text, known != NULL ? known : number);
}

static mezzo_status take_shape(mz_gguf *file, cursor *c, mz_safetensors_tensor *t) {
    uint64_t rank, size, count = 1;
    MEZZO_TRY(take_number(c, 4, t->name, &rank));
    if (rank < 1 || rank > MAX_RANK)
        return bad_tensor(file, t->name, "its rank is not 1 to 4");
    t->rank = (size_t)rank;
    for (size_t i = t->rank; i-- > 0;) {
        MEZZO_TRY(take_number(c, 8, t->name, &size));
        if (size < 1 || size > INT64_MAX || __builtin_mul_overflow(count, size, &count) || count > INT64_MAX / 8)
            return bad_tensor(file, t->name, "a size is 0, or it has more elements than memory can have");
        t->shape[i] = (int64_t)size;
    }
    t->count = (size_t)count;
    return MEZZO_OK;
}

static mezzo_status take_tensor(mz_gguf *file, cursor *c, mz_safetensors_tensor *t, uint64_t *offset) {
    uint64_t type;
    MEZZO_TRY(take_name(file, c, "a tensor's name", &t->name));
    MEZZO_TRY(take_shape(file, c, t));
    MEZZO_TRY(take_number(c, 4, t->name, &type));
    MEZZO_TRY(take_number(c, 8, t->name, offset));
    for (size_t i = 0; i < MZ_COUNT(types); i++) {
        if (types[i].number != type)
            continue;
        t->dtype = types[i].dtype;
        t->q8_0 = types[i].q8_0;
        if (t->q8_0 && t->shape[t->rank - 1] % MZ_Q8_0_VALUES != 0)
            return bad_tensor(file, t->name, "rows that blocks of Q8_0 do not divide");
        t->bytes = t->q8_0 ? t->count / MZ_Q8_0_VALUES * MZ_Q8_0_BYTES : t->count * mezzo_dtype_size(t->dtype);
        return MEZZO_OK;
    }
    return refuse_type(file, t->name, type);
}

typedef struct extent { // where one tensor's data lie
    uint64_t offset;
    mz_safetensors_tensor *tensor;
} extent;

static int compare_extents(const void *a, const void *b) {
    const extent *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

// Checks that data follow each other, each at the next multiple of the alignment.
static mezzo_status place(const mz_gguf *file, const extent *items, size_t begin, uint64_t align) {
    uint64_t expected = 0;
    const uint64_t room = file->map.size > begin ? file->map.size - begin : 0;
    for (size_t i = 0; i < file->n_tensors; i++) {
        mz_safetensors_tensor *t = items[i].tensor;
        if (items[i].offset != expected)
            return bad_tensor(file, t->name,
                              items[i].offset % align != 0 ? "its data are not aligned"
                              : items[i].offset < expected ? "its data overlap another tensor's"
                                                           : "there is a hole in the data before it");
        if (items[i].offset > room || t->bytes > room - items[i].offset)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: tensor %s: its data end after the file's %zu bytes: it is cut off",
                           file->where, mz_quote(t->name).text, file->map.size);
        t->data = file->map.data + begin + items[i].offset;
        expected = (items[i].offset + t->bytes + align - 1) / align * align;
    }
    return room <= expected ? MEZZO_OK
                            : mz_fail(MEZZO_ERR_FORMAT, "%s: %llu bytes after the last tensor belong to none",
                                      file->where, (unsigned long long)(room - expected));
}

static mezzo_status find_data(mz_gguf *file, size_t at) {
    int64_t align = ALIGNMENT;
    if (mz_gguf_find(file, "general.alignment") != NULL)
        MEZZO_TRY(mz_gguf_get_int(file, "general.alignment", 1, 1 << 20, &align));
    if ((align & (align - 1)) != 0)
        return bad_value(file, "general.alignment", "it is not a power of two");
    MZ_SCOPED(mz_free_at) extent *items = NULL;
    MEZZO_TRY(MZ_NEW(items, file->n_tensors + 1));
    for (size_t i = 0; i < file->n_tensors; i++)
        items[i] = (extent){file->offsets[i], &file->tensors[i]};
    if (file->n_tensors > 1)
        qsort(items, file->n_tensors, sizeof *items, compare_extents);
    return place(file, items, mz_align_up(at, (size_t)align), (uint64_t)align);
}

// --- the file ------------------------------------------------------------------------------------------------------
static int compare_keys(const void *a, const void *b) {
    return strcmp((*(const mz_gguf_value *const *)a)->key, (*(const mz_gguf_value *const *)b)->key);
}

static mezzo_status index_values(mz_gguf *file) {
    for (size_t i = 0; i < file->n_values; i++)
        file->by_key[i] = &file->values[i];
    if (file->n_values > 1)
        qsort(file->by_key, file->n_values, sizeof *file->by_key, compare_keys);
    for (size_t i = 0; i < file->n_values; i++) {
        file->keys[i] = file->by_key[i]->key;
        if (i > 0 && strcmp(file->keys[i - 1], file->keys[i]) == 0)
            return bad_value(file, file->keys[i], "it is there twice");
    }
    return MEZZO_OK;
}

bool mz_is_gguf(const void *bytes, size_t n) {
    return n >= 4 && memcmp(bytes, "GGUF", 4) == 0;
}

static mezzo_status take_header(mz_gguf *file, cursor *c) {
    uint64_t version, tensors, values;
    if (!mz_is_gguf(file->map.data, file->map.size))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: not a GGUF file, which begins with GGUF", file->where);
    c->at = 4;
    MEZZO_TRY(take_number(c, 4, "the header", &version));
    if (version != 2 && version != 3)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: GGUF of version %llu%s; only 2 and 3, little-endian, are read",
                       file->where, (unsigned long long)version,
                       version != 0 && (version & 0xFFFF) == 0 ? ", or of the other byte order" : "");
    MEZZO_TRY(take_number(c, 8, "the header", &tensors));
    MEZZO_TRY(take_number(c, 8, "the header", &values));
    // A value takes at least 13 bytes and a tensor 33, so larger counts than the file allows would only waste memory.
    if (tensors > file->map.size / 33 || values > file->map.size / 13)
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: %llu tensors and %llu values in %zu bytes: the file is cut off or damaged", file->where,
                       (unsigned long long)tensors, (unsigned long long)values, file->map.size);
    file->n_tensors = (size_t)tensors;
    file->n_values = (size_t)values;
    file->names = mz_alloc(file->n_tensors + file->n_values + 1, sizeof *file->names);
    file->values = mz_alloc(file->n_values + 1, sizeof *file->values);
    file->keys = mz_alloc(file->n_values + 1, sizeof *file->keys);
    file->by_key = mz_alloc(file->n_values + 1, sizeof *file->by_key);
    file->tensors = mz_alloc(file->n_tensors + 1, sizeof *file->tensors);
    file->offsets = mz_alloc(file->n_tensors + 1, sizeof *file->offsets);
    return file->names && file->values && file->keys && file->by_key && file->tensors && file->offsets
               ? MEZZO_OK
               : MEZZO_ERR_MEMORY;
}

static mezzo_status parse(mz_gguf *file) {
    cursor c = {.file = file};
    MEZZO_TRY(take_header(file, &c));
    for (size_t i = 0; i < file->n_values; i++)
        MEZZO_TRY(take_value(file, &c, &file->values[i]));
    MEZZO_TRY(index_values(file));
    for (size_t i = 0; i < file->n_tensors; i++)
        MEZZO_TRY(take_tensor(file, &c, &file->tensors[i], &file->offsets[i]));
    MEZZO_TRY(find_data(file, c.at));
    return mz_safetensors_of(file->where, file->tensors, file->n_tensors, &file->table);
}

void mz_gguf_close(mz_gguf *file) {
    if (file == NULL)
        return;
    mz_safetensors_close(file->table);
    mz_map_close(&file->map);
    for (size_t i = 0; i < file->n_names; i++)
        mz_free(file->names[i]);
    MZ_FREE(file->names, file->values, file->keys, file->by_key, file->tensors, file->offsets, file->where, file);
}

// Opens a mapped file and takes over the map.
static mezzo_status open_bytes(const char *where, mz_map map, mz_gguf **out) {
    mz_gguf *file = mz_alloc(1, sizeof *file);
    if (file == NULL) {
        mz_map_close(&map);
        return MEZZO_ERR_MEMORY;
    }
    file->map = map;
    file->where = mz_strdup(where);
    mezzo_status status = file->where != NULL ? parse(file) : MEZZO_ERR_MEMORY;
    if (status != MEZZO_OK) {
        mz_gguf_close(file);
        return mz_trace(status, __FILE__, __LINE__, __func__);
    }
    *out = file;
    return MEZZO_OK;
}

mezzo_status mz_gguf_open(const char *path, mz_gguf **out) {
    mz_map map;
    *out = NULL;
    MEZZO_TRY(mz_map_open(path, &map));
    return open_bytes(path, map, out);
}

mezzo_status mz_gguf_parse(const char *where, const void *bytes, size_t n, mz_gguf **out) {
    *out = NULL;
    return open_bytes(where, (mz_map){bytes, n}, out);
}

mz_safetensors *mz_gguf_tensors(const mz_gguf *file) {
    return file->table;
}

// --- values --------------------------------------------------------------------------------------------------------
size_t mz_gguf_count(const mz_gguf *file) {
    return file->n_values;
}

const mz_gguf_value *mz_gguf_at(const mz_gguf *file, size_t i) {
    return i < file->n_values ? &file->values[i] : NULL;
}

const mz_gguf_value *mz_gguf_find(const mz_gguf *file, const char *key) {
    const mz_gguf_value wanted = {.key = key}, *at = &wanted;
    const mz_gguf_value **found =
        file->n_values > 0 ? bsearch(&at, file->by_key, file->n_values, sizeof *file->by_key, compare_keys) : NULL;
    return found != NULL ? *found : NULL;
}

static mezzo_status get(const mz_gguf *file, const char *key, const mz_gguf_value **out) {
    *out = mz_gguf_find(file, key);
    if (*out != NULL)
        return MEZZO_OK;
    const char *near = mz_nearest(key, file->keys, file->n_values);
    return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is missing%s%s", file->where, key,
                   near != NULL ? "; the nearest is " : "", near != NULL ? mz_quote(near).text : "");
}

static bool whole_number(const mz_gguf_value *v, int64_t *out) {
    const size_t n = type_size(v->type);
    if (v->type == MZ_GGUF_F32 || v->type == MZ_GGUF_F64 || v->type == MZ_GGUF_BOOL || n == 0)
        return false;
    const uint64_t bits = little(v->at, n);
    const bool negative =
        (v->type == MZ_GGUF_I8 || v->type == MZ_GGUF_I16 || v->type == MZ_GGUF_I32) && (bits >> (8 * n - 1) & 1) != 0;
    *out = (int64_t)(negative ? bits | ~UINT64_C(0) << (8 * n) : bits);
    return v->type != MZ_GGUF_U64 || bits <= INT64_MAX;
}

mezzo_status mz_gguf_get_int(const mz_gguf *file, const char *key, int64_t min, int64_t max, int64_t *out) {
    const mz_gguf_value *v;
    MEZZO_TRY(get(file, key, &v));
    if (whole_number(v, out) && *out >= min && *out <= max)
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s': expected an integer from %lld to %lld", file->where, key,
                   (long long)min, (long long)max);
}

static double shortest(float x) {
    char text[40];
    for (int digits = 6; digits < 10; digits++) {
        mz_snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if ((float)mz_strtod(text, NULL) == x)
            break;
    }
    return mz_strtod(text, NULL);
}

mezzo_status mz_gguf_get_double(const mz_gguf *file, const char *key, double *out) {
    const mz_gguf_value *v;
    int64_t whole = 0;
    MEZZO_TRY(get(file, key, &v));
    *out = (double)NAN;
    if (v->type == MZ_GGUF_F32) {
        float x;
        memcpy(&x, v->at, sizeof x);
        *out = isfinite(x) ? shortest(x) : (double)NAN;
    } else if (v->type == MZ_GGUF_F64) {
        memcpy(out, v->at, sizeof *out);
    } else if (whole_number(v, &whole)) {
        *out = (double)whole;
    }
    return isfinite(*out) ? MEZZO_OK : mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s': expected a number", file->where, key);
}

mezzo_status mz_gguf_get_bool(const mz_gguf *file, const char *key, bool *out) {
    const mz_gguf_value *v;
    MEZZO_TRY(get(file, key, &v));
    if (v->type != MZ_GGUF_BOOL || v->at[0] > 1)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s': expected true or false", file->where, key);
    *out = v->at[0] != 0;
    return MEZZO_OK;
}

mezzo_status mz_gguf_get_text(const mz_gguf *file, const char *key, const char **text, size_t *n) {
    const mz_gguf_value *v;
    MEZZO_TRY(get(file, key, &v));
    if (v->type != MZ_GGUF_TEXT)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s': expected a text", file->where, key);
    *text = (const char *)v->at;
    *n = (size_t)v->n;
    return MEZZO_OK;
}

mezzo_status mz_gguf_get_list(const mz_gguf *file, const char *key, mz_gguf_type of, const mz_gguf_value **out) {
    const char *what = of == MZ_GGUF_TEXT ? "texts" : of == MZ_GGUF_F32 ? "FP32 numbers" : "32-bit integers";
    MEZZO_TRY(get(file, key, out));
    const bool whole = of == MZ_GGUF_I32 && (*out)->of == MZ_GGUF_U32;
    return (*out)->type == MZ_GGUF_LIST && ((*out)->of == of || whole)
               ? MEZZO_OK
               : mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s': expected a list of %s", file->where, key, what);
}

void mz_gguf_next_text(const mz_gguf_value *list, size_t *at, const char **text, size_t *n) {
    const unsigned char *p = list->at + *at;
    *n = (size_t)little(p, 8);
    *text = (const char *)p + 8;
    *at += 8 + *n;
}

int32_t mz_gguf_int_at(const mz_gguf_value *list, uint64_t i) {
    return (int32_t)little(list->at + 4 * i, 4);
}

float mz_gguf_float_at(const mz_gguf_value *list, uint64_t i) {
    float x;
    memcpy(&x, list->at + 4 * i, sizeof x);
    return x;
}

// --- writing -------------------------------------------------------------------------------------------------------
static void add_number(mz_text *out, uint64_t value, size_t n) {
    char bytes[8];
    for (size_t i = 0; i < n; i++)
        bytes[i] = (char)(value >> (8 * i));
    mz_text_add(out, bytes, n);
}

static void add_text(mz_text *out, const char *text, size_t n) {
    add_number(out, n, 8);
    mz_text_add(out, text, n);
}

static void add_key(mz_gguf_meta *meta, const char *key, mz_gguf_type type) {
    add_text(&meta->bytes, key, strlen(key));
    add_number(&meta->bytes, type, 4);
    meta->n++;
}

void mz_gguf_put_int(mz_gguf_meta *meta, const char *key, uint32_t value) {
    add_key(meta, key, MZ_GGUF_U32);
    add_number(&meta->bytes, value, 4);
}

void mz_gguf_put_float(mz_gguf_meta *meta, const char *key, float value) {
    add_key(meta, key, MZ_GGUF_F32);
    mz_gguf_add_float(meta, value);
}

void mz_gguf_put_bool(mz_gguf_meta *meta, const char *key, bool value) {
    add_key(meta, key, MZ_GGUF_BOOL);
    add_number(&meta->bytes, value, 1);
}

void mz_gguf_put_text(mz_gguf_meta *meta, const char *key, const char *text, size_t n) {
    add_key(meta, key, MZ_GGUF_TEXT);
    add_text(&meta->bytes, text, n);
}

void mz_gguf_put_list(mz_gguf_meta *meta, const char *key, mz_gguf_type of, uint64_t n) {
    add_key(meta, key, MZ_GGUF_LIST);
    add_number(&meta->bytes, of, 4);
    add_number(&meta->bytes, n, 8);
}

void mz_gguf_add_text(mz_gguf_meta *meta, const char *text, size_t n) {
    add_text(&meta->bytes, text, n);
}

void mz_gguf_add_int(mz_gguf_meta *meta, int32_t value) {
    add_number(&meta->bytes, (uint32_t)value, 4);
}

void mz_gguf_add_float(mz_gguf_meta *meta, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_number(&meta->bytes, bits, 4);
}

static const struct tensor_type *type_of(const mz_gguf_item *item) {
    for (size_t i = 0; i < MZ_COUNT(types); i++)
        if (item->q8_0 ? types[i].q8_0 : !types[i].q8_0 && types[i].dtype == item->item.dtype)
            return &types[i];
    return NULL;
}

static mezzo_status bytes_of(const char *path, const mz_gguf_item *item, uint64_t *out) {
    const mz_safetensors_item *t = &item->item;
    if (type_of(item) == NULL || t->rank < 1 || t->rank > MAX_RANK ||
        (item->q8_0 && t->shape[t->rank - 1] % MZ_Q8_0_VALUES != 0))
        return mz_fail(MEZZO_ERR_INVALID, "%s: tensor %s: GGUF has no such tensor", path, mz_quote(t->name).text);
    uint64_t count = 1;
    for (size_t i = 0; i < t->rank; i++)
        count *= (uint64_t)t->shape[i];
    *out = item->q8_0 ? count / MZ_Q8_0_VALUES * MZ_Q8_0_BYTES : count * mezzo_dtype_size(t->dtype);
    return MEZZO_OK;
}

// Makes the header, the values and the list of tensors, padded to the data's alignment.
static mezzo_status make_head(const char *path, const mz_gguf_meta *meta, const mz_gguf_item *items, size_t count,
                              mz_text *out) {
    static const char zeros[ALIGNMENT];
    uint64_t offset = 0, bytes;
    mz_text_add(out, "GGUF", 4);
    add_number(out, 3, 4);
    add_number(out, count, 8);
    add_number(out, meta->n, 8);
    mz_text_add(out, meta->bytes.data, meta->bytes.len);
    for (size_t i = 0; i < count; i++) {
        const mz_safetensors_item *t = &items[i].item;
        MEZZO_TRY(bytes_of(path, &items[i], &bytes));
        add_text(out, t->name, strlen(t->name));
        add_number(out, t->rank, 4);
        for (size_t d = t->rank; d-- > 0;)
            add_number(out, (uint64_t)t->shape[d], 8);
        add_number(out, type_of(&items[i])->number, 4);
        add_number(out, offset, 8);
        offset += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    mz_text_add(out, zeros, mz_align_up(out->len, ALIGNMENT) - out->len);
    return out->status;
}

static mezzo_status write_tensor(const char *path, mz_file *file, const mz_gguf_item *item, void *piece) {
    static const char zeros[ALIGNMENT];
    uint64_t bytes;
    const uint64_t most = PIECE * (item->q8_0 ? MZ_Q8_0_BYTES : 4);
    MEZZO_TRY(bytes_of(path, item, &bytes));
    for (uint64_t at = 0; at < bytes; at += most) {
        const size_t n = (size_t)(bytes - at < most ? bytes - at : most);
        MEZZO_TRY(item->item.fill(item->item.user, at, piece, n));
        MEZZO_TRY(mz_file_write(file, piece, n));
        MEZZO_TRY(mz_stop_check(item->item.name));
    }
    return mz_file_write(file, zeros, (ALIGNMENT - bytes % ALIGNMENT) % ALIGNMENT);
}

mezzo_status mz_gguf_write(const char *path, const mz_gguf_meta *meta, const mz_gguf_item *items, size_t count) {
    mezzo_status status = meta->bytes.status;
    mz_text head = {0};
    mz_file *file = NULL;
    void *piece = mz_alloc(PIECE, MZ_Q8_0_BYTES);
    if (piece == NULL)
        status = MEZZO_ERR_MEMORY;
    MEZZO_TRY_GOTO(status, status);
    MEZZO_TRY_GOTO(status, make_head(path, meta, items, count, &head));
    MEZZO_TRY_GOTO(status, mz_file_create(path, &file));
    MEZZO_TRY_GOTO(status, mz_file_write(file, head.data, head.len));
    for (size_t i = 0; i < count; i++) {
        mz_work("writing tensors", (int64_t)i, (int64_t)count);
        MEZZO_TRY_GOTO(status, write_tensor(path, file, &items[i], piece));
    }
    mz_work("writing tensors", (int64_t)count, (int64_t)count);
    status = mz_file_commit(file);
    file = NULL;
fail:
    mz_file_discard(file);
    mz_text_free(&head);
    mz_free(piece);
    return status;
}
