// A checkpoint consists of state.json, tensors and an entry in the manifest, and is whole if all three are.
#ifndef MZ_TRAIN_CHECKPOINT_H
#define MZ_TRAIN_CHECKPOINT_H

#include <jansson.h>

#include "graph/graph.h"
#include "models/model.h"
#include "mezzo/train.h"
#include "optim/optimizer.h"
#include "optim/scaler.h"
#include "io/file.h"
#include "io/safetensors.h"

#define MZ_CHECKPOINT_VERSION  2          // version 2: state.json has a checksum of its own
#define MZ_CHECKPOINT_STAGED   ".writing" // a save that has not finished; the next one removes it
// followed by its name: the older checkpoint of a step that is written again
#define MZ_CHECKPOINT_REPLACED ".replaced-"
#define MZ_CHECKPOINT_MAX_STEP INT64_C(999999999999999999) // 18 digits, as many as its folder's name has
#define MZ_STATE_MAX_BYTES     ((size_t)1 << 20)
#define MZ_MANIFEST_MAX_BYTES  ((size_t)16 << 20)
#define MZ_CHECKPOINT_FILES    3 // number of files that state.json lists: mz_checkpoint_files
extern const char *const mz_checkpoint_files[MZ_CHECKPOINT_FILES];

typedef struct mz_file_mark {
    bool present;
    uint64_t bytes;
    uint32_t crc; // CRC32C of the whole file
} mz_file_mark;

// Holds state.json as it is read. The three objects of `checkpoint` are not changed.
typedef struct mz_checkpoint_state {
    mz_file_mark files[MZ_CHECKPOINT_FILES];
    bool has_optimizer, has_scaler;
    char optimizer_kind[16]; // "adamw": the kind of parameters in no group
    char matrices_kind[16];  // "muon", or "none"; "": the file has none
    mz_opt_state optimizer;
    mezzo_scaler_state scaler;
} mz_checkpoint_state;

// Records how a run computed the steps before a checkpoint: run.json beside its state.json.
#define MZ_CHECKPOINT_RUN "run.json"
typedef struct mz_checkpoint_run {
    char *configuration; // the resolved one as YAML, which the caller of a read frees; NULL: not known, and no run.json
                         // is written
    char device[200];    // the device's description
    char version[24];    // of the Mezzo that wrote it
    int ranks;
    mz_written metrics; // length and checksum of metrics.jsonl now; they go into the manifest, not into run.json
} mz_checkpoint_run;

// Describes how a checkpoint differs from the state that it should hold: the first tensor or number that differs.
// Validations' losses, and records of how data and model were read, are not compared.
typedef struct mz_checkpoint_difference {
    int different, compared;  // number of tensors, and of numbers in state.json
    char file[24], name[200]; // "model.safetensors", "h.0.attn.c_attn.weight"; "state.json", "optimizer.lr"
    int64_t element;          // in the tensor; -1: the difference is in state.json
    char saved[40], here[40]; // the two values
} mz_checkpoint_difference;

// state.c
mezzo_status mz_state_save(const char *path, const mezzo_checkpoint *checkpoint,
                           const mz_file_mark files[MZ_CHECKPOINT_FILES], mz_written *written);
mezzo_status mz_state_load(const char *path, mezzo_checkpoint *checkpoint, mz_checkpoint_state *state);
// Reads the table of scales in state.json to the host, for mz_scales_write; an entry that the file lacks has no
// history.
mezzo_status mz_state_load_scales(const char *path, mezzo_params *params);
// Adds to *out the differences between state.json and what mz_state_save would write.
mezzo_status mz_state_compare(const char *path, const mezzo_checkpoint *checkpoint, mz_checkpoint_difference *out);
mezzo_status mz_run_save_facts(const char *path, const mz_checkpoint_run *run); // writes run.json and reads it back
mezzo_status mz_run_load_facts(const char *path, mz_checkpoint_run *out);       // without a file nothing is known
mezzo_status mz_json_set(json_t *object, const char *key, json_t *value);       // takes over `value`; NULL is MEMORY
// Reads a validation's number: under `sampled` where it is of random batches (*is_sampled), else under `whole`.
mezzo_status mz_json_get_number(const char *where, const json_t *object, const char *key,
                                double *out); // reads null as NaN
mezzo_status mz_json_get_validation(const char *where, const json_t *object, const char *whole, const char *sampled,
                                    double *out, bool *is_sampled);

// An entry of FOLDER/manifest.json, in the order of writing (manifest.c).
typedef struct mz_manifest_entry {
    char name[48]; // of the folder
    int64_t step;
    double val_loss;
    bool val_sampled;
    uint64_t state_bytes; // of state.json, which holds the sizes and checksums of the other files
    uint32_t state_crc;
    mz_written metrics; // what metrics.jsonl was when this checkpoint was saved; 0 bytes: not known
    bool kept;
} mz_manifest_entry;
typedef struct mz_manifest {
    mz_manifest_entry *entries;
    size_t count, cap;
} mz_manifest;
// Loads the checkpoints that manifest.json names. Before them, as the oldest, come folders that it does not name and
// that hold a readable state.json. A missing or unreadable manifest counts as empty. Free with mz_manifest_free after
// errors, too.
mezzo_status mz_manifest_load(const char *folder, mz_manifest *out);
mezzo_status mz_manifest_save(const char *folder, const mz_manifest *manifest);
void mz_manifest_free(mz_manifest *manifest);
// Reads what metrics.jsonl was at the checkpoint of a step or, with step -1, at the newest one that has it; *at is its
// step. It reads nothing where the manifest is missing or unreadable, which mz_manifest_load reports.
mezzo_status mz_manifest_metrics(const char *folder, int64_t step, mz_written *out, int64_t *at);
int mz_manifest_best(const mz_manifest *manifest); // the lowest val_loss of the same kind as the newest one's; -1 when
                                                   // none has one

// Says which of a checkpoint's files are read, and so checked: bit i is mz_checkpoint_files[i].
enum {
    MZ_CHECKPOINT_WEIGHTS = 1,
    MZ_CHECKPOINT_MOMENTS = 2,
    MZ_CHECKPOINT_EMA = 4, // where it exists: the weights' moving average, a tensor for each of model.safetensors
    MZ_CHECKPOINT_WHOLE = 7
};

// Saves as mezzo_checkpoint_save does, with what its run knows (checkpoint.c).
mezzo_status mz_checkpoint_save(const char *folder, const mezzo_checkpoint *checkpoint, const mz_checkpoint_run *run,
                                int64_t keep_last, char *path, size_t size);
// Compares the checkpoint in `path` bit for bit with what `checkpoint` would be saved as now; its files may have wrong
// checksums.
mezzo_status mz_checkpoint_compare(const char *path, const mezzo_checkpoint *checkpoint, mz_checkpoint_difference *out);

// Finds a checkpoint as mezzo_checkpoint_find does, for some of the files (find.c). `strict`: a whole checkpoint with
// numbers that are not finite is FORMAT; else it is skipped.
mezzo_status mz_checkpoint_find(const char *folder, bool best, bool strict, int parts, char *path, size_t size);
// Returns whether the reader of `path` failed because a run that goes on dropped that folder after it was found, so
// that the reader must find another; *tries, 0 at first, limits that.
enum { MZ_CHECKPOINT_TRIES = 100 };
bool mz_checkpoint_find_again(mezzo_status status, const char *path, int *tries);
// Returns MEZZO_OK if these files have the size and checksum that state.json says.
mezzo_status mz_checkpoint_verify(const char *path, int parts, mezzo_checkpoint *checkpoint,
                                  mz_checkpoint_state *state);
mezzo_status mz_checkpoint_check_sound(const char *path, int parts,
                                       const mz_checkpoint_state *state); // whether all numbers are finite
mezzo_status mz_checkpoint_open_tensors(const char *path, const char *file, mz_safetensors **out);
// Is called by the owner of the folder: undoes or removes an interrupted replacement, and removes what an interrupted
// save left.
mezzo_status mz_checkpoint_recover(const char *folder);
bool mz_checkpoint_plain_name(const char *name); // whether it is "" or the name of a file directly in the run folder

// --- descriptions of models (description.c) --------------------------------------------------------------------------
mezzo_status mz_description_write(const mz_model *model, char out[MEZZO_DESCRIPTION]);
mezzo_status mz_description_of(const json_t *object, char out[MEZZO_DESCRIPTION]); // FORMAT: the text is too long
// Reads the model of the checkpoint in `folder`. FORMAT: it has no description, or a value has another type; INVALID:
// no such model.
mezzo_status mz_description_read(const char *folder, const char *description, mz_model *out);

// --- adapters (merge.c) --------------------------------------------------------------------------------------------
// A checkpoint of a run with adapters holds them beside their weights, with alpha / rank in the file's metadata.
// Parameters without adapters are read with these merged.
#define MZ_LORA_SCALE "lora_scale"
double mz_lora_scale(const mz_safetensors *weights); // 0: no adapters
// Returns whether an adapter belongs to this tensor, or to one of its parts.
bool mz_lora_has(const mz_safetensors *weights, const char *name, const mz_parts *parts);
// Computes W + scale · B·A in the rows of each part that has an adapter; the caller frees it with mz_free. FORMAT where
// they do not fit, MEMORY.
mezzo_status mz_lora_merge(const mz_safetensors *weights, const char *name, const mz_parts *parts, float **out);

#endif
