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
                         size_t n); // makes bytes [offset, offset + n) of the tensor
    void *user;
} mz_safetensors_item;

typedef struct mz_safetensors_meta {
    const char *key, *value; // UTF-8
} mz_safetensors_meta;

// Writes `path` atomically. In the file, tensors are ordered as the reference implementation orders them (widest dtype
// first, then by name), so that every tensor starts at a multiple of its element size; the header is padded with spaces
// to a multiple of 8. Errors: MEZZO_ERR_INVALID (bad name, shape or dtype, a repeated name, a header over 100 MB),
// MEZZO_ERR_IO, MEZZO_ERR_MEMORY, whatever `fill` returns.
// crc, if not NULL, gets the CRC32C of the whole file.
mezzo_status mz_safetensors_write(const char *path, const mz_safetensors_item *items, size_t count,
                                  const mz_safetensors_meta *meta, size_t meta_count, mz_written *written);

// --- reading -------------------------------------------------------------------------------------------------------
typedef struct mz_safetensors mz_safetensors;
typedef struct mz_safetensors_tensor {
    const char *name;
    mezzo_dtype dtype;
    size_t rank;
    int64_t shape[MZ_SAFETENSORS_MAX_RANK];
    size_t count; // number of elements
    size_t bytes;
    bool q8_0;        // it comes from a GGUF file, in blocks (io/gguf.h), and dtype is ignored
    const void *data; // in the mapped file: read-only, valid until close; files of other programs may leave it
                      // unaligned
} mz_safetensors_tensor;

// Maps the file and checks the whole header before any of it is used. MEZZO_ERR_FORMAT names file and tensor for a
// header that is too large, truncated, not JSON or too deep, a repeated name, an unknown dtype, a bad shape, a size
// that does not match shape and dtype, offsets out of bounds, overlapping or with holes. MEZZO_ERR_IO: it cannot be
// read.
mezzo_status mz_safetensors_open(const char *path, mz_safetensors **out);
void mz_safetensors_close(mz_safetensors *file); // NULL is allowed
// Checks as mz_map_check does, after tensors' data were read in place.
mezzo_status mz_safetensors_check(const mz_safetensors *file);

size_t mz_safetensors_count(const mz_safetensors *file);
const mz_safetensors_tensor *mz_safetensors_at(const mz_safetensors *file, size_t i); // in the order of the data
const mz_safetensors_tensor *mz_safetensors_find(const mz_safetensors *file,
                                                 const char *name); // NULL: there is none of this name
// Finds a tensor as mz_safetensors_find does, but a missing name is MEZZO_ERR_FORMAT with the file and the nearest
// name.
mezzo_status mz_safetensors_get(const mz_safetensors *file, const char *name, const mz_safetensors_tensor **out);
// Finds `name` and converts it to `dtype` into `values`. Rank and shape must match exactly, else MEZZO_ERR_FORMAT names
// both shapes. The same dtype copies bits; otherwise it converts as mezzo_convert does.
mezzo_status mz_safetensors_read(const mz_safetensors *file, const char *name, mezzo_dtype dtype, size_t rank,
                                 const int64_t *shape, void *values);
const char *mz_safetensors_meta_get(const mz_safetensors *file, const char *key); // NULL: there is none with this key
// Makes the same checks on bytes in memory, which must outlive the result; `where` names them in errors.
mezzo_status mz_safetensors_parse(const char *where, const void *bytes, size_t n, mz_safetensors **out);
// Makes the same table of the tensors of another container: n of them, borrowed, in any order, with checked data.
// FORMAT: a repeated name.
mezzo_status mz_safetensors_of(const char *where, const mz_safetensors_tensor *tensors, size_t n, mz_safetensors **out);

#endif
