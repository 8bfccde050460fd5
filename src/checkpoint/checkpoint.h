// A checkpoint consists of state.json, tensors and an entry in the manifest, and is whole if all are.
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

#define MZ_CHECKPOINT_VERSION  2            // 2: state.json has a checksum of its own
#define MZ_CHECKPOINT_STAGED   ".writing"   // a save that has not finished; removed by the next one
#define MZ_CHECKPOINT_REPLACED ".replaced-" // and its name: the older checkpoint of a step that is being written again
#define MZ_CHECKPOINT_MAX_STEP INT64_C(999999999999999999) // 18 digits: what the name of its folder may have
#define MZ_STATE_MAX_BYTES     ((size_t)1 << 20)
#define MZ_MANIFEST_MAX_BYTES  ((size_t)16 << 20)
#define MZ_CHECKPOINT_FILES    3 // those of state.json: mz_checkpoint_files
extern const char *const mz_checkpoint_files[MZ_CHECKPOINT_FILES];

typedef struct mz_file_mark {
    bool present;
    uint64_t bytes;
    uint32_t crc; // CRC32C of the whole file
} mz_file_mark;

// state.json, read. The three objects of `checkpoint` are left alone.
typedef struct mz_checkpoint_state {
    mz_file_mark files[MZ_CHECKPOINT_FILES];
    bool has_optimizer, has_scaler;
    char optimizer_kind[16]; // "adamw": of what no group has
    char matrices_kind[16];  // "muon", or "none"; "": the file does not say
    mz_opt_state optimizer;
    mezzo_scaler_state scaler;
} mz_checkpoint_state;

// How a run computed the steps before a checkpoint: run.json beside its state.json.
#define MZ_CHECKPOINT_RUN "run.json"
typedef struct mz_checkpoint_run {
    char *configuration; // the resolved one as YAML; NULL: not known, and no run.json is written. Read: the caller's
    char device[200];    // its description
    char version[24];    // of Mezzo; read: the one that wrote it
    int ranks;
    mz_written metrics; // what metrics.jsonl is now; for the manifest, and not in run.json
} mz_checkpoint_run;

// How a checkpoint differs from the state that it should hold: the first tensor or number that is another. Losses of
// validations, and what says how data and model were read, are not compared.
typedef struct mz_checkpoint_difference {
    int different, compared;  // tensors, and numbers of state.json
    char file[24], name[200]; // "model.safetensors", "h.0.attn.c_attn.weight"; "state.json", "optimizer.lr"
    int64_t element;          // of the tensor; -1: of state.json
    char saved[40], here[40]; // the two values
} mz_checkpoint_difference;

// state.c
mezzo_status mz_state_save(const char *path, const mezzo_checkpoint *checkpoint,
                           const mz_file_mark files[MZ_CHECKPOINT_FILES], mz_written *written);
mezzo_status mz_state_load(const char *path, mezzo_checkpoint *checkpoint, mz_checkpoint_state *state);
// Reads the table of scales as state.json has it to the host, for mz_scales_write; an entry that it lacks has no
// history.
mezzo_status mz_state_load_scales(const char *path, mezzo_params *params);
// Adds to *out what of state.json is not what mz_state_save would write.
mezzo_status mz_state_compare(const char *path, const mezzo_checkpoint *checkpoint, mz_checkpoint_difference *out);
mezzo_status mz_run_save_facts(const char *path, const mz_checkpoint_run *run); // run.json, read back
mezzo_status mz_run_load_facts(const char *path, mz_checkpoint_run *out);       // a missing file: nothing is known
mezzo_status mz_json_set(json_t *object, const char *key, json_t *value);       // takes `value` over, NULL is MEMORY
// Reads a validation's number: under `sampled` where it is of random batches (*is_sampled), else under `whole`.
mezzo_status mz_json_get_number(const char *where, const json_t *object, const char *key, double *out); // null is NaN
mezzo_status mz_json_get_validation(const char *where, const json_t *object, const char *whole, const char *sampled,
                                    double *out, bool *is_sampled);

// manifest.c: FOLDER/manifest.json, in the order of writing.
typedef struct mz_manifest_entry {
    char name[48]; // the folder's
    int64_t step;
    double val_loss;
    bool val_sampled;
    uint64_t state_bytes; // of state.json, which holds the other files' sizes and checksums
    uint32_t state_crc;
    mz_written metrics; // what the run's metrics.jsonl was when this was saved; 0 bytes: not known
    bool kept;
} mz_manifest_entry;
typedef struct mz_manifest {
    mz_manifest_entry *entries;
    size_t count, cap;
} mz_manifest;
// Loads the checkpoints that manifest.json names; before them (as the oldest) stand folders that it does not name and
// that hold a readable state.json. A missing or unreadable manifest is an empty one. Free with mz_manifest_free also
// after errors.
mezzo_status mz_manifest_load(const char *folder, mz_manifest *out);
mezzo_status mz_manifest_save(const char *folder, const mz_manifest *manifest);
void mz_manifest_free(mz_manifest *manifest);
// Reads the metrics' place of the checkpoint of a step, or (step -1) of the newest that has it: *at is its step.
// Nothing where the manifest is not there or not readable, which mz_manifest_load reports.
mezzo_status mz_manifest_metrics(const char *folder, int64_t step, mz_written *out, int64_t *at);
int mz_manifest_best(const mz_manifest *manifest); // lowest val_loss of the newest one's kind; -1 when none
                                                   // has one

// These bits say which of a checkpoint's files are read, and so checked: bit i is mz_checkpoint_files[i].
enum {
    MZ_CHECKPOINT_WEIGHTS = 1,
    MZ_CHECKPOINT_MOMENTS = 2,
    MZ_CHECKPOINT_EMA = 4, // where there is one: the weights' moving average, a tensor for each of model.safetensors
    MZ_CHECKPOINT_WHOLE = 7
};

// checkpoint.c: as mezzo_checkpoint_save, with what its run knows.
mezzo_status mz_checkpoint_save(const char *folder, const mezzo_checkpoint *checkpoint, const mz_checkpoint_run *run,
                                int64_t keep_last, char *path, size_t size);
// Compares the checkpoint in `path`, whose files need not have the right checksums, bit for bit with what `checkpoint`
// would be saved as now.
mezzo_status mz_checkpoint_compare(const char *path, const mezzo_checkpoint *checkpoint, mz_checkpoint_difference *out);

// find.c: as mezzo_checkpoint_find, for some of the files; `strict`: a whole one with numbers that are not finite is
// FORMAT, not passed over.
mezzo_status mz_checkpoint_find(const char *folder, bool best, bool strict, int parts, char *path, size_t size);
// A run that goes on may drop the checkpoint that a reader has found, before it is read. Returns whether the reader of
// `path` failed because its folder is gone, and so has to find another; *tries, 0 at first, ends that.
enum { MZ_CHECKPOINT_TRIES = 100 };
bool mz_checkpoint_find_again(mezzo_status status, const char *path, int *tries);
// MEZZO_OK if these files are there with the size and checksum that state.json says.
mezzo_status mz_checkpoint_verify(const char *path, int parts, mezzo_checkpoint *checkpoint,
                                  mz_checkpoint_state *state);
mezzo_status mz_checkpoint_check_sound(const char *path, int parts, const mz_checkpoint_state *state); // finite
mezzo_status mz_checkpoint_open_tensors(const char *path, const char *file, mz_safetensors **out);
// Called by the owner of the folder, undoes or removes an interrupted replacement, and removes what an interrupted
// save left.
mezzo_status mz_checkpoint_recover(const char *folder);
bool mz_checkpoint_plain_name(const char *name); // "" or the name of a file in the run folder itself

// --- descriptions of models (description.c) --------------------------------------------------------------------------
mezzo_status mz_description_write(const mz_model *model, char out[MEZZO_DESCRIPTION]);
mezzo_status mz_description_of(const json_t *object, char out[MEZZO_DESCRIPTION]); // FORMAT: the text is too long
// Reads the model of the checkpoint in `folder`. FORMAT: it keeps no description, or a value has another type; INVALID:
// no such model.
mezzo_status mz_description_read(const char *folder, const char *description, mz_model *out);

// --- adapters (merge.c) --------------------------------------------------------------------------------------------
// A checkpoint of a run with adapters keeps them beside the weights they belong to, and alpha / rank in the file's
// metadata. Parameters without adapters are read with theirs added.
#define MZ_LORA_SCALE "lora_scale"
double mz_lora_scale(const mz_safetensors *weights); // 0: no adapters
// An adapter belongs to this tensor, or to one of its parts.
bool mz_lora_has(const mz_safetensors *weights, const char *name, const mz_parts *parts);
// W + scale · B·A in the rows of each part that has an adapter, owned by the caller (mz_free). FORMAT where they do not
// fit, MEMORY.
mezzo_status mz_lora_merge(const mz_safetensors *weights, const char *name, const mz_parts *parts, float **out);

#endif
