// Reads and writes the safetensors format (github.com/huggingface/safetensors): 8 bytes little-endian header length, a
// JSON header {"name": {"dtype": …, "shape": […], "data_offsets": [begin, end]}, "__metadata__": {text: text}}, then
// the data.
#ifndef MZ_IO_SAFETENSORS_H
#define MZ_IO_SAFETENSORS_H

#include "base/base.h"
#include "io/file.h"

#define MZ_SAFETENSORS_MAX_RANK 8

// --- writing -------------------------------------------------------------------------------------------------------
// One tensor to write. Bytes come from `data` or, where that is NULL, from `fill`, piece by piece and in order, so that
// a tensor on a device needs no whole copy in host memory.
typedef struct mz_safetensors_item {
    const char *name;
    mezzo_dtype dtype; // any storage dtype but TF32
    size_t rank;       // 0 (one element) to MZ_SAFETENSORS_MAX_RANK
    const int64_t *shape;
    const void *data;
    mezzo_status (*fill)(void *user, uint64_t offset, void *bytes,
                         size_t n); // bytes [offset, offset + n) of the tensor
    void *user;
} mz_safetensors_item;

typedef struct mz_safetensors_meta {
    const char *key, *value; // UTF-8
} mz_safetensors_meta;

// Writes `path` atomically. In the file, tensors are ordered as the reference implementation orders them (widest dtype
// first, then by name), so that every tensor starts at a multiple of its element size; the header is padded with spaces
// to a multiple of 8. Errors: MEZZO_ERR_INVALID (bad name, shape or dtype, the same name twice, a header over 100 MB),
// MEZZO_ERR_IO, MEZZO_ERR_MEMORY, whatever `fill` returns.
// crc, if not NULL, is given the CRC32C of the whole file.
mezzo_status mz_safetensors_write(const char *path, const mz_safetensors_item *items, size_t count,
                                  const mz_safetensors_meta *meta, size_t meta_count, mz_written *written);

// --- reading -------------------------------------------------------------------------------------------------------
typedef struct mz_safetensors mz_safetensors;
typedef struct mz_safetensors_tensor {
    const char *name;
    mezzo_dtype dtype;
    size_t rank;
    int64_t shape[MZ_SAFETENSORS_MAX_RANK];
    size_t count; // elements
    size_t bytes;
    bool q8_0;        // of a GGUF file, in blocks (io/gguf.h); dtype does not count
    const void *data; // in the mapped file: read-only, valid until close; may be unaligned in files of others
} mz_safetensors_tensor;

// Maps the file and checks the whole header before anything is believed: MEZZO_ERR_FORMAT names file and tensor for a
// header that is too large, cut off, not JSON or nested, a name given twice, an unknown dtype, a bad shape, a size that
// does not match shape and dtype, offsets out of bounds, overlapping or with holes. MEZZO_ERR_IO: cannot be read.
mezzo_status mz_safetensors_open(const char *path, mz_safetensors **out);
void mz_safetensors_close(mz_safetensors *file); // NULL is fine
// As mz_map_check, after tensors' data were read in place.
mezzo_status mz_safetensors_check(const mz_safetensors *file);

size_t mz_safetensors_count(const mz_safetensors *file);
const mz_safetensors_tensor *mz_safetensors_at(const mz_safetensors *file, size_t i); // in the order of the data
const mz_safetensors_tensor *mz_safetensors_find(const mz_safetensors *file, const char *name); // NULL: not there
// As find, but a missing name is MEZZO_ERR_FORMAT naming the file and the nearest name it has.
mezzo_status mz_safetensors_get(const mz_safetensors *file, const char *name, const mz_safetensors_tensor **out);
// Finds `name` and converts it to `dtype` into `values` (rank and shape must match exactly, else MEZZO_ERR_FORMAT names
// both shapes). The same dtype copies bits; otherwise as mezzo_convert.
mezzo_status mz_safetensors_read(const mz_safetensors *file, const char *name, mezzo_dtype dtype, size_t rank,
                                 const int64_t *shape, void *values);
const char *mz_safetensors_meta_get(const mz_safetensors *file, const char *key); // NULL: not there
// The same checks on bytes in memory, which must outlive the result; `where` names them in errors.
mezzo_status mz_safetensors_parse(const char *where, const void *bytes, size_t n, mz_safetensors **out);
// The same table of tensors that another container has: n of them, which are borrowed and come in any order, their data
// checked. FORMAT: a name is there twice.
mezzo_status mz_safetensors_of(const char *where, const mz_safetensors_tensor *tensors, size_t n, mz_safetensors **out);

#endif
