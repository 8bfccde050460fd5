// The table of scales: an entry for each tensor that programs on the same parameters quantize, found by its name.
//
// An entry without a history is no scale to go by: a program then measures the tensor in each run (current scaling).
// Once it has one, its scale is that of earlier steps (delayed scaling), and the tensor is read once. Which is which is
// a constant of a program's calls, so the host has to know: it looks at the table after steps 1, 2, 4, 8 … until every
// entry has a history.
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
    int n, unknown;      // entries; those that are not known
    uint64_t version;    // grows whenever `known` changes
    int64_t steps;       // whose ends were issued
    int64_t last_synced; // steps when the host last looked; -1: never
    // All ranks' tables, rank by rank, where there are others: mz_ranks gathers them in front of the update.
    void *tables; // device
    size_t table_bytes;
    mz_prepared update;
} mz_scales;

enum { MZ_SCALES_MAX = 8192 }; // entries: a table never moves

void mz_scales_free(mezzo_device *device, mz_scales *scales);
// The entry of this name, made where there is none.
mezzo_status mz_scales_find(mezzo_device *device, mz_scales *scales, const char *name, mezzo_dtype dtype, int *index);
// Looks at the table where that is due.
mezzo_status mz_scales_sync(mezzo_device *device, mz_scales *scales);
// A step's end, after step_control of the state that says whether the step moved anything. NULL: at once.
mezzo_status mz_scales_issue_update(mezzo_device *device, mz_scales *scales, const mz_opt_state *state,
                                    mz_sequence *into);
// For checkpoints: all entries, in the order of their names, to the host; and from there, which needs no memory.
mezzo_status mz_scales_read(mezzo_device *device, const mz_scales *scales, mz_scale_entry *out);
mezzo_status mz_scales_replace(mezzo_device *device, mz_scales *scales, const mz_scale_entry *all);
mezzo_status mz_scales_drop(mezzo_device *device, mz_scales *scales); // what was recorded since a step's end

#endif
