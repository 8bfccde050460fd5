// A checkpoint's parts: state.json, the manifest, and what makes a folder whole.
#ifndef MZ_TRAIN_CHECKPOINT_H
#define MZ_TRAIN_CHECKPOINT_H

#include <jansson.h>

#include "mezzo/train.h"
#include "optim/optimizer.h"
#include "optim/scaler.h"

#define MZ_CHECKPOINT_VERSION 1
#define MZ_CHECKPOINT_STAGED  ".writing" // a save that has not finished; removed by the next one
#define MZ_STATE_MAX_BYTES    ((size_t)1 << 20)
#define MZ_MANIFEST_MAX_BYTES ((size_t)16 << 20)
#define MZ_CHECKPOINT_FILES   2 // model.safetensors, optimizer.safetensors: what state.json vouches for
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
    char optimizer_kind[16]; // "adamw", "sgd"
    mz_opt_state optimizer;
    mezzo_scaler_state scaler;
} mz_checkpoint_state;

// state.c
mezzo_status mz_state_save(const char *path, const mezzo_checkpoint *checkpoint,
                           const mz_file_mark files[MZ_CHECKPOINT_FILES]);
mezzo_status mz_state_load(const char *path, mezzo_checkpoint *checkpoint, mz_checkpoint_state *state);
mezzo_status mz_json_set(json_t *object, const char *key, json_t *value); // takes `value` over, NULL is MEMORY
json_t *mz_json_number(double value);                                     // null where it is not finite
mezzo_status mz_json_get_number(const char *where, const json_t *object, const char *key, double *out); // null is NaN

// manifest.c: FOLDER/manifest.json, in the order of writing.
typedef struct mz_manifest_entry {
    char name[48]; // the folder's
    int64_t step;
    double val_loss;
    uint64_t state_bytes; // of state.json, which holds the other files' sizes and checksums
    uint32_t state_crc;
    bool kept;
} mz_manifest_entry;
typedef struct mz_manifest {
    mz_manifest_entry *entries;
    size_t count, cap;
} mz_manifest;
// What manifest.json names; then, at the front (as the oldest), folders that it does not name and that hold a readable state.json.
// A missing or unreadable manifest is an empty one. Free with mz_manifest_free also after errors.
mezzo_status mz_manifest_load(const char *folder, mz_manifest *out);
mezzo_status mz_manifest_save(const char *folder, const mz_manifest *manifest);
void mz_manifest_free(mz_manifest *manifest);
int mz_manifest_best(const mz_manifest *manifest); // lowest val_loss; -1 when none has one

// checkpoint.c: as mezzo_checkpoint_find; `strict`: a whole one with numbers that are not finite is FORMAT, not passed over.
mezzo_status mz_checkpoint_find(const char *folder, bool best, bool strict, char *path, size_t size);
// MEZZO_OK if every file is there with the size and checksum that state.json says.
mezzo_status mz_checkpoint_verify(const char *path, mezzo_checkpoint *checkpoint, mz_checkpoint_state *state);

#endif
