// The table of scales has an entry for each tensor that programs on the same parameters quantize, found by its name.
//
// A program measures a tensor whose entry has no history in each run (current scaling). With a history, the scale comes
// from earlier steps (delayed scaling), and the tensor is read once. Which of them applies is a constant of a program's
// calls, so the host reads the table after steps 1, 2, 4, 8 … until every entry has a history.
#ifndef MZ_SCALES_H
#define MZ_SCALES_H

#include "backend/update.h"
#include "base/names.h"
#include "runtime/calls.h"

typedef struct mz_scales {
    mz_scale_entry *entries; // device; NULL: none yet
    char **names;
    mz_names index;
    bool *known;         // the entry has a history
    int n, unknown;      // number of entries, and of those without a history
    uint64_t version;    // grows whenever `known` changes
    int64_t steps;       // number of steps whose end was issued
    int64_t last_synced; // `steps` at the host's last sync; -1: never
    // With several ranks: the tables of all, rank by rank, which mz_ranks gathers before the update.
    void *tables; // device
    size_t table_bytes;
    mz_prepared update;
} mz_scales;

enum { MZ_SCALES_MAX = 8192 }; // entries; the table is allocated once and never moves

void mz_scales_free(mezzo_device *device, mz_scales *scales);
// Finds the entry of this name, or makes it.
mezzo_status mz_scales_find(mezzo_device *device, mz_scales *scales, const char *name, mezzo_dtype dtype, int *index);
// Reads the table from the device where a sync is due.
mezzo_status mz_scales_sync(mezzo_device *device, mz_scales *scales);
// Ends a step for the table, after step_control wrote `state`. into NULL: runs at once.
mezzo_status mz_scales_issue_update(mezzo_device *device, mz_scales *scales, const mz_opt_state *state,
                                    mz_sequence *into);
// For checkpoints: reads all entries in the order of their names, and writes them; writing allocates nothing.
mezzo_status mz_scales_read(mezzo_device *device, const mz_scales *scales, mz_scale_entry *out);
mezzo_status mz_scales_replace(mezzo_device *device, mz_scales *scales, const mz_scale_entry *all);
mezzo_status mz_scales_drop(mezzo_device *device, mz_scales *scales); // drops what was recorded after a step's end

#endif
