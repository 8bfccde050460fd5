// Maps the weights of Hugging Face folders: which of their tensors make which of our parameters, and config.json.
// Import and export read the same tables in the two directions.
#ifndef MZ_TRAIN_HF_H
#define MZ_TRAIN_HF_H

#include <jansson.h>

#include "graph/op.h"
#include "io/safetensors.h"
#include "mezzo/train.h"
#include "session/session.h"

// In which order a tensor has our rows; zeros: in ours.
typedef struct mz_hf_order {
    int64_t head;  // > 0: the even rows of every `head` rows first, then the odd ones (rotary halves for our pairs)
    int64_t heads; // > 0: q, k and v of each of so many heads together; ours are all heads' q, then k, then v
    bool pairs;    // `head` the other way round: theirs are pairs, ours halves
    bool ours;     // of a block: its data are in our order, and theirs is made
} mz_hf_order;

// A parameter is seen as [rows, cols], cols its last dimension (1 for vectors), and is made of whole runs of rows, one
// a tensor.
typedef struct mz_hf_part {
    char name[160];    // the tensor's, without the family's prefix
    int64_t rows;      // of the parameter
    bool transposed;   // the tensor is [cols, rows]
    bool bare;         // the family's prefix is not before its name
    bool fp32;         // written in FP32, whatever the other weights are
    int64_t pixels;    // > 0: of a convolution, height times width: the tensor is [out, in, height, width] of our [out,
                       // height, width, in]
    mz_hf_order order; // of its rows
    int64_t slice, slices; // slices > 0: of a tensor [slices, rows, cols]
    float plus;            // added to ours: the tensor has more
} mz_hf_part;
typedef struct mz_hf_parts {
    mz_hf_part *items;
    size_t count, cap;
} mz_hf_parts;
// Appends a part called by printf's rules to *parts; what it has beyond a name and rows is set in
// parts->items[parts->count - 1].
mezzo_status mz_hf_add_part(mz_hf_parts *parts, int64_t rows, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

typedef struct mz_hf_family mz_hf_family;
// One architecture (hf_NAME.c). A parameter of three dimensions may also be one tensor of the same name and shape in a
// source.
struct mz_hf_family {
    const char *model;      // of ours: "gpt2"
    const char *model_type; // of config.json; of diffusers its _class_name
    const char *file;       // of the weights, without ".safetensors"
    const char *prefix;     // of tensor names; read with and without, written with it
    // config.json → the model. FORMAT names the key whose value we do not compute.
    mezzo_status (*read_config)(const mz_hf_family *family, const char *where, const json_t *config,
                                mezzo_model_config *out);
    mezzo_status (*write_config)(const mz_hf_family *family, const mz_model *model, json_t *config);
    // The tensors that make the parameter `name`, in order of its rows.
    mezzo_status (*map)(const mz_hf_family *family, const mz_model *model, const char *name, const mz_shape *shape,
                        mz_hf_parts *out);
    bool biases_optional;                // a source without any ".bias" makes a model without biases
    bool (*is_buffer)(const char *name); // tensors that hold no weights and are skipped; the prefix is off
    const char *embedding;
    const char *positions;           // the tensor with a row for each position; NULL: none
    const char *head;                // of a decoder; of a tied one it may be there too, equal to `embedding`
    const char *const (*renamed)[2]; // parts of tensors' names and what they were called before; ends with NULLs
    const char *architecture;        // of transformers
    const char *const (*words)[2];   // parts of our names and what they are called there, in order; ends with NULLs
    double theta, rotary;            // of rotary positions where nothing is said; rotary 0: our family's
    bool thirds;                     // q, k and v of a head are together
    const char *later_mark; // a layer past the model's is skipped if it has this tensor, in which it predicts later
                            // tokens; NULL: never
};
extern const mz_hf_family mz_hf_gpt2, mz_hf_nanogpt, mz_hf_autoencoder, mz_hf_decoders[];
extern const size_t mz_hf_decoder_count;
// Finds a family by config.json's model_type or by our name; NULL: unknown. *list gets the known names for a message.
const mz_hf_family *mz_hf_by_type(const char *model_type, const char **list);
const char *mz_hf_differs(const char *type); // how what is not known differs from ours in every configuration; or NULL
const mz_hf_family *mz_hf_by_model(const char *model);

// --- keys of a configuration (hf_keys.c) ----------------------------------------------------------------------------
typedef enum mz_hf_rule { MZ_HF_READ, MZ_HF_OWN, MZ_HF_ONLY, MZ_HF_KEPT, MZ_HF_TRAINING, MZ_HF_UNUSED } mz_hf_rule;
// A SIZE is at least 1, a COUNT may be 0; null is for SIZE_OR_NULL what a missing key is.
typedef enum mz_hf_kind {
    MZ_HF_NO_FIELD,
    MZ_HF_SIZE,
    MZ_HF_SIZE_OR_NULL,
    MZ_HF_COUNT,
    MZ_HF_NUMBER,
    MZ_HF_NUMBER_OR_NULL, // null is 0
    MZ_HF_TRUTH,
    MZ_HF_TIED // a truth, of the model's key tie_head
} mz_hf_kind;
// A row of hf_keys.def, which says what they mean.
typedef struct mz_hf_key {
    const char *family, *key;
    mz_hf_rule rule;
    const char *values; // JSON, or NULL
    mz_hf_kind kind;
    size_t field; // of mezzo_model_config
} mz_hf_key;
const mz_hf_key *mz_hf_keys(size_t *n);
// FORMAT names the first key of `config` that is unknown or has a value that is not computed here.
mezzo_status mz_hf_check_keys(const char *where, const char *family, const json_t *config);
// Reads the same, then the READ rows' values, or those that a missing key means, into *out.
mezzo_status mz_hf_read_keys(const char *where, const char *family, const json_t *config, mezzo_model_config *out);
// Sets the keys of READ rows to the values of `model`, whose zeros are numbers by now, and those of ONLY rows to the
// first one, where that is not null or false.
mezzo_status mz_hf_write_keys(const char *family, const mezzo_model_config *model, json_t *config);
bool mz_hf_is_kept(const char *family, const char *key);

// --- config.json (hf.c) --------------------------------------------------------------------------------------------
// Rotary positions: `rope_parameters` as transformers 5 writes, `rope_scaling` as 4 did, or keys of the configuration
// itself; two places that say different things are refused. `part` (may be NULL: only 1): partial_rotary_factor. Both
// are left as they are where nothing is said. `scaled` gets the kind of scaling and its numbers; NULL: only the plain
// one.
mezzo_status mz_hf_read_rope(const char *where, const json_t *config, double *theta, double *part,
                             mezzo_model_config *scaled);
// Writes the keys in both forms; part 0 is left out.
mezzo_status mz_hf_write_rope(json_t *config, const mezzo_model_config *model, double part);
typedef struct mz_hf_entry {
    const char *key;
    json_t *value;
} mz_hf_entry;
mezzo_status mz_hf_put(json_t *config, const mz_hf_entry *entries, size_t n); // takes over every value, also on errors

// --- moving values (hf_copy.c) -------------------------------------------------------------------------------------
// Rows of a matrix [rows, cols] that lie somewhere as FP32, BF16, FP16 or Q8_0, perhaps transposed.
typedef struct mz_hf_block {
    const unsigned char *data; // NULL: zeros
    mezzo_dtype dtype;
    bool q8_0; // in blocks (io/gguf.h), not transposed; dtype does not count
    int64_t rows;
    int64_t stride;  // elements from one row to the next; transposed: from one column to the next
    bool transposed; // data is [cols, rows]
    mz_hf_order order;
    float plus; // added to every value
} mz_hf_block;
// A tensor to be written, [sum of the blocks' rows, cols], whatever its dimensions.
typedef struct mz_hf_tensor {
    const char *name; // borrowed, for messages
    mz_hf_block *blocks;
    size_t n_blocks;
    int64_t cols;
    mezzo_dtype dtype; // FP32, BF16 or FP16
    bool q8_0;         // then dtype is FP32, and whole blocks are asked for
} mz_hf_tensor;
// Fills an mz_safetensors_item; `user` is an mz_hf_tensor. FP32 to FP32 keeps bits, as does a low format to FP32 and
// back. NUMERIC: the message names the tensor where a value is NaN or infinite, or too large for the tensor's dtype.
mezzo_status mz_hf_fill(void *user, uint64_t offset, void *bytes, size_t n);

// Holds what is to be written as one safetensors file: names, shapes and tensors, all owned.
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

// --- settings of others (hf_settings.c) ----------------------------------------------------------------------------
// A run does not use them and an export gives them back: config.json's KEPT keys, and generation_config.json as it is.
#define MZ_HF_SETTINGS "huggingface.json" // these keys, in a run folder
// Keeps what `folder` has of them in the run folder `run`. IO, FORMAT.
mezzo_status mz_hf_settings_keep(const mz_hf_family *family, const char *folder, const char *run);
mezzo_status mz_hf_settings_save(const json_t *settings, const char *run); // nothing where it is empty
// Sets what the run folder `run` has of the keys in `config`. IO, FORMAT.
mezzo_status mz_hf_settings_set(const char *run, json_t *config);
// The same, and in `folder`/generation_config.json. IO, FORMAT.
mezzo_status mz_hf_settings_give(const char *run, json_t *config, const char *folder);

// --- adapters (adapter.c) ------------------------------------------------------------------------------------------
// PEFT's two files from a checkpoint's weights, with the names that the model's layers have in transformers. INVALID
// where it has no adapters.
mezzo_status mz_adapter_write(const mz_safetensors *weights, const mz_hf_family *family, const mz_model *model,
                              const char *checkpoint, const char *folder, int64_t *tensors);

// --- folders (hf_folder.c) -----------------------------------------------------------------------------------------
// A folder that appears whole or not at all: made under another name beside `path`, then renamed.
typedef struct mz_new_folder {
    char *path, *staged;
} mz_new_folder;
// INVALID where `path` exists and is not an empty folder; `key` ("--out") is what to change.
mezzo_status mz_new_folder_begin(const char *path, const char *key, mz_new_folder *out);
mezzo_status mz_new_folder_commit(mz_new_folder *folder);
void mz_new_folder_end(mz_new_folder *folder); // removes what was not committed; keeps the error's message

#endif
