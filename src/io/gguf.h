// Reads and writes GGUF (specified in the ggml project), the container of llama.cpp, versions 2 and 3, little-endian:
// "GGUF", u32 version, u64 tensors, u64 values; each value's key, u32 type and bytes; each tensor's name, u32 rank, u64
// sizes (the last dimension first), u32 type, u64 offset; then the data, every tensor at a multiple of
// general.alignment.
#ifndef MZ_IO_GGUF_H
#define MZ_IO_GGUF_H

#include "io/safetensors.h"

typedef enum mz_gguf_type {
    MZ_GGUF_U8,
    MZ_GGUF_I8,
    MZ_GGUF_U16,
    MZ_GGUF_I16,
    MZ_GGUF_U32,
    MZ_GGUF_I32,
    MZ_GGUF_F32,
    MZ_GGUF_BOOL,
    MZ_GGUF_TEXT, // u64 length, then the bytes
    MZ_GGUF_LIST, // u32 type of the elements, u64 number of elements, then the elements
    MZ_GGUF_U64,
    MZ_GGUF_I64,
    MZ_GGUF_F64,
} mz_gguf_type;

// Q8_0 stores 32 neighbours of a row in 34 bytes: the scale as FP16, then a signed byte for each.
enum { MZ_Q8_0_VALUES = 32, MZ_Q8_0_BYTES = 34 };
// Packs 32 finite values: scale = max |x| / 127, rounded half away from zero. Returns false where the scale exceeds
// FP16.
bool mz_q8_0_pack(const float *values, unsigned char *out);
float mz_q8_0_value(const unsigned char *data, int64_t i); // the i-th value in a row of blocks

// --- reading -------------------------------------------------------------------------------------------------------
typedef struct mz_gguf_value {
    const char *key;
    mz_gguf_type type, of;   // of: the type of a LIST's elements, which are no lists
    uint64_t n;              // bytes of a TEXT, elements of a LIST
    const unsigned char *at; // where the text, the elements or the number begin; not aligned
} mz_gguf_value;

typedef struct mz_gguf mz_gguf;
// Maps the file and checks it completely before any of it is used. MEZZO_ERR_FORMAT names the file, and the key or
// tensor: not GGUF, another version or byte order, truncated, a count or length beyond the file, a repeated key or
// name, a list of lists, a bad shape, a type other than F32, F16, BF16 and Q8_0, data that are not aligned, overlap or
// leave a hole. MEZZO_ERR_IO: it cannot be read.
mezzo_status mz_gguf_open(const char *path, mz_gguf **out);
// Makes the same checks on bytes in memory, which must outlive the result; `where` names them in errors.
mezzo_status mz_gguf_parse(const char *where, const void *bytes, size_t n, mz_gguf **out);
void mz_gguf_close(mz_gguf *file); // NULL is allowed
bool mz_is_gguf(const void *bytes, size_t n);

size_t mz_gguf_count(const mz_gguf *file); // number of values
const mz_gguf_value *mz_gguf_at(const mz_gguf *file, size_t i);
const mz_gguf_value *mz_gguf_find(const mz_gguf *file, const char *key); // NULL: there is none with this key
// Get a value. MEZZO_ERR_FORMAT where the key is missing, has another type or is out of range. An integer may have any
// integer type, a double any type of numbers; an FP32 number becomes the shortest decimal that rounds to it.
mezzo_status mz_gguf_get_int(const mz_gguf *file, const char *key, int64_t min, int64_t max, int64_t *out);
mezzo_status mz_gguf_get_double(const mz_gguf *file, const char *key, double *out);
mezzo_status mz_gguf_get_bool(const mz_gguf *file, const char *key, bool *out);
mezzo_status mz_gguf_get_text(const mz_gguf *file, const char *key, const char **text, size_t *n);
mezzo_status mz_gguf_get_list(const mz_gguf *file, const char *key, mz_gguf_type of, const mz_gguf_value **out);
// Finds the next element of a list of texts, at most n times; *at begins as 0.
void mz_gguf_next_text(const mz_gguf_value *list, size_t *at, const char **text, size_t *n);
int32_t mz_gguf_int_at(const mz_gguf_value *list, uint64_t i); // of a list of I32 or U32
float mz_gguf_float_at(const mz_gguf_value *list, uint64_t i); // of a list of F32

// Returns the tensors as a table, with dimensions in safetensors' order; valid until close.
mz_safetensors *mz_gguf_tensors(const mz_gguf *file);

// --- writing -------------------------------------------------------------------------------------------------------
// Values as the file will have them; zeroed, then filled in any order, freed by mz_text_free(&meta.bytes).
typedef struct mz_gguf_meta {
    mz_text bytes;
    uint64_t n;
} mz_gguf_meta;
void mz_gguf_put_int(mz_gguf_meta *meta, const char *key, uint32_t value);
void mz_gguf_put_float(mz_gguf_meta *meta, const char *key, float value);
void mz_gguf_put_bool(mz_gguf_meta *meta, const char *key, bool value);
void mz_gguf_put_text(mz_gguf_meta *meta, const char *key, const char *text, size_t n);
// Begins a list, whose n elements the caller adds.
void mz_gguf_put_list(mz_gguf_meta *meta, const char *key, mz_gguf_type of, uint64_t n);
void mz_gguf_add_text(mz_gguf_meta *meta, const char *text, size_t n);
void mz_gguf_add_int(mz_gguf_meta *meta, int32_t value);
void mz_gguf_add_float(mz_gguf_meta *meta, float value);

// One tensor: `item` has no data; its fill makes the bytes, whole blocks for Q8_0.
typedef struct mz_gguf_item {
    mz_safetensors_item item;
    bool q8_0; // the format is Q8_0, and item's dtype is ignored
} mz_gguf_item;
// Writes `path` as mz_file_create does, version 3, tensors in the order of the items. INVALID: a dtype other than F32,
// F16, BF16, a last dimension that Q8_0 does not divide.
mezzo_status mz_gguf_write(const char *path, const mz_gguf_meta *meta, const mz_gguf_item *items, size_t count);

#endif
