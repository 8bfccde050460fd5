// Maps the weights of Hugging Face folders: config.json, and which of their tensors make which of our parameters.
// Import and export read the same tables in the two directions.
#ifndef MZ_TRAIN_HF_H
#define MZ_TRAIN_HF_H

#include <jansson.h>

#include "graph/op.h"
#include "io/safetensors.h"
#include "mezzo/train.h"
#include "session/session.h"

// Says in which order a tensor has our rows; zeros: in ours.
typedef struct mz_hf_order {
    int64_t head;  // > 0: of every `head` rows the even ones come first, then the odd ones (rotary halves for our
                   // pairs)
    int64_t heads; // > 0: number of heads; q, k and v of each are together, where ours are all heads' q, then k, then v
    bool pairs;    // reverses `head`: theirs are pairs, ours are halves
    bool ours;     // of a block: its data are in our order, and the file's order is made from them
} mz_hf_order;

// A parameter is viewed as [rows, cols], cols its last dimension (1 for vectors), and consists of whole runs of rows,
// one a tensor.
typedef struct mz_hf_part {
    char name[160];        // of the tensor, without the family's prefix
    int64_t rows;          // of the parameter
    bool transposed;       // the tensor is [cols, rows]
    bool bare;             // its name has no prefix of the family
    bool fp32;             // written in FP32, whatever the format of the other weights
    int64_t pixels;        // > 0: of a convolution, height times width: the tensor is [out, in, height, width] and ours
                           // [out, height, width, in]
    mz_hf_order order;     // of its rows
    int64_t slice, slices; // slices > 0: the part is one slice of a tensor [slices, rows, cols]
    float plus;            // the tensor's values minus ours
} mz_hf_part;
typedef struct mz_hf_parts {
    mz_hf_part *items;
    size_t count, cap;
} mz_hf_parts;
// Appends a part, whose name follows printf's rules, to *parts; the caller sets its other members in
// parts->items[parts->count - 1].
mezzo_status mz_hf_add_part(mz_hf_parts *parts, int64_t rows, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

typedef struct mz_hf_family mz_hf_family;
// One architecture (hf_NAME.c). In a source, a parameter of three dimensions may also be one tensor of the same name
// and shape.
struct mz_hf_family {
    const char *model;      // Mezzo's name: "gpt2"
    const char *model_type; // in config.json; for diffusers its _class_name
    const char *file;       // of the weights, without ".safetensors"
    const char *prefix;     // of tensor names; read with and without, written with it
    // Makes the model from config.json. FORMAT names the key whose value Mezzo does not compute.
    mezzo_status (*read_config)(const mz_hf_family *family, const char *where, const json_t *config,
                                mezzo_model_config *out);
    mezzo_status (*write_config)(const mz_hf_family *family, const mz_model *model, json_t *config);
    // Lists the tensors that make the parameter `name`, in order of its rows.
    mezzo_status (*map)(const mz_hf_family *family, const mz_model *model, const char *name, const mz_shape *shape,
                        mz_hf_parts *out);
    bool biases_optional;                // a source without any ".bias" makes a model without biases
    bool (*is_buffer)(const char *name); // whether the tensor, named without the prefix, holds no weights and is
                                         // skipped
    const char *embedding;
    const char *positions;           // the tensor with a row for each position; NULL: none
    const char *head;                // of a decoder; a tied one may be saved, too, equal to `embedding`
    const char *const (*renamed)[2]; // parts of tensors' names and their older names; ends with NULLs
    const char *architecture;        // its name in transformers
    const char *const (*words)[2];   // parts of our names and their names there, in order; ends with NULLs
    double theta, rotary;            // of rotary positions where the file gives none; rotary 0: our family's
    int64_t window, window_from;     // where the file gives none
    bool thirds;                     // q, k and v of a head are together
    const char *later_mark; // a layer after the model's last is skipped if it has this tensor, because it predicts
                            // later tokens; NULL: never
};
extern const mz_hf_family mz_hf_gpt2, mz_hf_nanogpt, mz_hf_autoencoder, mz_hf_decoders[];
extern const size_t mz_hf_decoder_count;
// Finds a family by config.json's model_type or by our name; NULL: unknown. *list gets the known names for a message.
const mz_hf_family *mz_hf_by_type(const char *model_type, const char **list);
const char *mz_hf_differs(const char *type); // how an unknown type differs from ours in every configuration; or NULL
const mz_hf_family *mz_hf_by_model(const char *model);

// --- keys of a configuration (hf_keys.c) ----------------------------------------------------------------------------
typedef enum mz_hf_rule { MZ_HF_READ, MZ_HF_OWN, MZ_HF_ONLY, MZ_HF_KEPT, MZ_HF_TRAINING, MZ_HF_UNUSED } mz_hf_rule;
// The kinds of a key's value. A SIZE is at least 1, a COUNT may be 0; for SIZE_OR_NULL null is like a missing key.
typedef enum mz_hf_kind {
    MZ_HF_NO_FIELD,
    MZ_HF_SIZE,
    MZ_HF_SIZE_OR_NULL,
    MZ_HF_COUNT,
    MZ_HF_NUMBER,
    MZ_HF_NUMBER_OR_NULL, // null is 0
    MZ_HF_TRUTH,
    MZ_HF_TIED // a truth value: the model's key tie_head
} mz_hf_kind;
// Holds a row of hf_keys.def, which describes its members.
typedef struct mz_hf_key {
    const char *family, *key;
    mz_hf_rule rule;
    const char *values; // JSON, or NULL
    mz_hf_kind kind;
    size_t field; // of mezzo_model_config
} mz_hf_key;
const mz_hf_key *mz_hf_keys(size_t *n);
// Checks the keys of `config`. FORMAT names the first one that is unknown or has a value that Mezzo does not compute.
mezzo_status mz_hf_check_keys(const char *where, const char *family, const json_t *config);
// Checks likewise, and then reads the READ rows' values, or those that a missing key means, into *out.
mezzo_status mz_hf_read_keys(const char *where, const char *family, const json_t *config, mezzo_model_config *out);
// Sets the keys of READ rows to the values of `model`, whose zeros are resolved by now, and those of ONLY rows to their
// first value, where that is not null or false.
mezzo_status mz_hf_write_keys(const char *family, const mezzo_model_config *model, json_t *config);
bool mz_hf_is_kept(const char *family, const char *key);

// --- config.json (hf.c) --------------------------------------------------------------------------------------------
// Reads rotary positions: `rope_parameters` as transformers 5 writes, `rope_scaling` as 4 did, or keys of the
// configuration itself; it refuses two keys that disagree. `part` (may be NULL: only 1): partial_rotary_factor. Theta
// and part are left unchanged where no key gives them. `scaled` gets the kind of scaling and its numbers; NULL: only
// the plain one is allowed.
mezzo_status mz_hf_read_rope(const char *where, const json_t *config, double *theta, double *part,
                             mezzo_model_config *scaled);
// Writes the keys in both forms; it leaves out part 0.
mezzo_status mz_hf_write_rope(json_t *config, const mezzo_model_config *model, double part);
typedef struct mz_hf_entry {
    const char *key;
    json_t *value;
} mz_hf_entry;
mezzo_status mz_hf_put(json_t *config, const mz_hf_entry *entries, size_t n); // takes over every value, after errors,
                                                                              // too

// --- moving values (hf_copy.c) -------------------------------------------------------------------------------------
// Rows of a matrix [rows, cols] in memory as FP32, BF16, FP16 or Q8_0, perhaps transposed.
typedef struct mz_hf_block {
    const unsigned char *data; // NULL: zeros
    mezzo_dtype dtype;
    bool q8_0; // in blocks (io/gguf.h), not transposed; dtype is ignored
    int64_t rows;
    int64_t stride;  // elements from one row to the next; transposed: from one column to the next
    bool transposed; // data is [cols, rows]
    mz_hf_order order;
    float plus; // a number added to every value
} mz_hf_block;
// A tensor to be written, [sum of the blocks' rows, cols], whatever its dimensions.
typedef struct mz_hf_tensor {
    const char *name; // borrowed, for messages
    mz_hf_block *blocks;
    size_t n_blocks;
    int64_t cols;
    mezzo_dtype dtype; // FP32, BF16 or FP16
    bool q8_0;         // then dtype is FP32, and a call asks for whole blocks
} mz_hf_tensor;
// Fills an mz_safetensors_item; `user` is an mz_hf_tensor. FP32 to FP32 keeps bits, and so does a low format to FP32
// and back. NUMERIC: the message names the tensor where a value is NaN or infinite, or too large for the tensor's
// dtype.
mezzo_status mz_hf_fill(void *user, uint64_t offset, void *bytes, size_t n);

// Holds what is written as one safetensors file: names, shapes and tensors, all owned by the list.
typedef struct mz_hf_list {
    mz_safetensors_item *items;
    mz_hf_tensor *tensors;
    char **names;
    int64_t (*shapes)[MEZZO_MAX_RANK];
    size_t count, cap;
} mz_hf_list;
mezzo_status mz_hf_list_create(size_t cap, mz_hf_list *out);
void mz_hf_list_free(mz_hf_list *list); // a zeroed one is allowed
// Adds a tensor, and takes over `blocks`, after errors, too.
mezzo_status mz_hf_list_add(mz_hf_list *list, const char *name, const mz_shape *shape, mezzo_dtype dtype,
                            mz_hf_block *blocks, size_t n_blocks);

// --- settings of others (hf_settings.c) ----------------------------------------------------------------------------
// A run does not use these settings, and an export gives them back: config.json's KEPT keys, and generation_config.json
// unchanged.
#define MZ_HF_SETTINGS "huggingface.json" // the file with these keys in a run folder
// Keeps the settings of `folder` in the run folder `run`. IO, FORMAT.
mezzo_status mz_hf_settings_keep(const mz_hf_family *family, const char *folder, const char *run);
mezzo_status mz_hf_settings_save(const json_t *settings, const char *run); // does nothing where it is empty
// Adds the keys that the run folder `run` keeps to `config`. IO, FORMAT.
mezzo_status mz_hf_settings_set(const char *run, json_t *config);
// Adds them likewise, and writes `folder`/generation_config.json. IO, FORMAT.
mezzo_status mz_hf_settings_give(const char *run, json_t *config, const char *folder);

// --- adapters (adapter.c) ------------------------------------------------------------------------------------------
// Writes PEFT's two files from a checkpoint's weights, with the names that the model's layers have in transformers.
// INVALID where it has no adapters.
mezzo_status mz_adapter_write(const mz_safetensors *weights, const mz_hf_family *family, const mz_model *model,
                              const char *checkpoint, const char *folder, int64_t *tensors);

// --- folders (hf_folder.c) -----------------------------------------------------------------------------------------
// A folder that appears whole or not at all: it is made under another name beside `path`, and then renamed.
typedef struct mz_new_folder {
    char *path, *staged;
} mz_new_folder;
// Begins a folder. INVALID where `path` exists and is not an empty folder; the message names `key` ("--out") as what to
// change.
mezzo_status mz_new_folder_begin(const char *path, const char *key, mz_new_folder *out);
mezzo_status mz_new_folder_commit(mz_new_folder *folder);
void mz_new_folder_end(mz_new_folder *folder); // removes a folder that was not committed; keeps the error's message

#endif
