// Weights of Hugging Face folders: which of their tensors make which of our parameters, and config.json. Import and export read the same
// tables in the two directions.
#ifndef MZ_TRAIN_HF_H
#define MZ_TRAIN_HF_H

#include <jansson.h>

#include "graph/op.h"
#include "io/safetensors.h"
#include "mezzo/train.h"

// A parameter is seen as [rows, cols], cols its last dimension (1 for vectors), and is made of whole runs of rows, one a tensor.
typedef struct mz_hf_part {
    char name[160];  // the tensor's, without the family's prefix
    int64_t rows;    // of the parameter
    bool transposed; // the tensor is [cols, rows]
} mz_hf_part;
typedef struct mz_hf_parts {
    mz_hf_part *items;
    size_t count, cap;
} mz_hf_parts;
// Appends a part called by printf's rules.
mezzo_status mz_hf_add_part(mz_hf_parts *parts, int64_t rows, bool transposed, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

// One architecture (hf_NAME.c).
typedef struct mz_hf_family {
    const char *model;      // of ours: "gpt2"
    const char *model_type; // of config.json
    const char *prefix;     // of tensor names; read with and without, written with it
    // config.json → the model. FORMAT names the key whose value we do not compute.
    mezzo_status (*read_config)(const char *where, const json_t *config, mezzo_model_config *out);
    mezzo_status (*write_config)(const mezzo_model_config *model, json_t *config);
    // The tensors that make the parameter `name`, in order of its rows.
    mezzo_status (*map)(const mezzo_model_config *model, const char *name, const mz_shape *shape, mz_hf_parts *out);
    bool (*is_buffer)(const char *name); // tensors that hold no weights and are passed over; the prefix is off
    const char *head, *embedding;        // `head` may be there too, equal to `embedding`; NULL: no tied head
} mz_hf_family;
extern const mz_hf_family mz_hf_gpt2;
// By model_type of config.json or by our name; NULL: not known. *list gets the known names for a message.
const mz_hf_family *mz_hf_by_type(const char *model_type, const char **list);
const mz_hf_family *mz_hf_by_model(const char *model);

// --- moving values (hf_copy.c) ----------------------------------------------------------------------------------------------------
// Rows of a matrix [rows, cols] that lie somewhere as FP32, BF16 or FP16, perhaps transposed.
typedef struct mz_hf_block {
    const unsigned char *data; // NULL: zeros
    mezzo_dtype dtype;
    int64_t rows;
    int64_t stride;  // elements from one row to the next; transposed: from one column to the next
    bool transposed; // data is [cols, rows]
} mz_hf_block;
// A tensor to be written, [sum of the blocks' rows, cols].
typedef struct mz_hf_tensor {
    mz_hf_block *blocks;
    size_t n_blocks;
    int64_t cols;
    mezzo_dtype dtype; // FP32, BF16 or FP16
} mz_hf_tensor;
// A mz_safetensors_item's fill; `user` is a mz_hf_tensor. FP32 to FP32 keeps bits, as does a low format to FP32 and back.
mezzo_status mz_hf_fill(void *user, uint64_t offset, void *bytes, size_t n);

// What is to be written as one safetensors file: names, shapes and tensors, all owned.
typedef struct mz_hf_list {
    mz_safetensors_item *items;
    mz_hf_tensor *tensors;
    char **names;
    int64_t (*shapes)[MEZZO_MAX_RANK];
    size_t count, cap;
} mz_hf_list;
mezzo_status mz_hf_list_create(size_t cap, mz_hf_list *out);
void mz_hf_list_free(mz_hf_list *list); // a zeroed one is fine
// `blocks` is taken over, also on errors.
mezzo_status mz_hf_list_add(mz_hf_list *list, const char *name, const mz_shape *shape, mezzo_dtype dtype,
                            mz_hf_block *blocks, size_t n_blocks);

// --- folders (hf_folder.c) -------------------------------------------------------------------------------------------------------
// A folder that appears whole or not at all: made under another name beside `path`, then renamed.
typedef struct mz_new_folder {
    char *path, *staged;
} mz_new_folder;
// INVALID where `path` exists and is not an empty folder; `key` ("--out") is what to change.
mezzo_status mz_new_folder_begin(const char *path, const char *key, mz_new_folder *out);
mezzo_status mz_new_folder_commit(mz_new_folder *folder);
void mz_new_folder_end(mz_new_folder *folder); // removes what was not committed; keeps the error's message

#endif
