// The table of scales has an entry for each tensor that programs on the same parameters quantize, found by its name.
//
// A program measures, in each run, a tensor whose entry has no history (current scaling). With a history, the scale
// comes from earlier steps (delayed scaling), and the tensor is read once. Which of them applies is a constant of a
// program's calls, so the host reads the table after steps 1, 2, 4, 8 … until every entry has a history.
#ifndef MZ_QUANT_TABLE_H
#define MZ_QUANT_TABLE_H

#include "backend/backend.h"
#include "base/names.h"
#include "quant/entry.h"

typedef struct mz_scales {
    mz_scale_entry *entries; // on the device; NULL: none yet
    mz_scale_entry *host;    // as mz_scales_read last read them
    char **names;
    mz_names index;
    bool *known;         // the entry has a history
    int n, unknown;      // number of entries, and of those without a history
    uint64_t version;    // grows whenever `known` changes
    int64_t steps;       // number of steps whose end was issued
    int64_t last_synced; // `steps` at the host's last sync; -1: never
    // With several ranks: the tables of all ranks, rank by rank, which mz_ranks gathers before the update.
    void *tables; // on the device
    size_t table_bytes;
    mz_prepared update; // scales_update, which ends a step (mz_optimizer_issue_scales)
} mz_scales;

enum { MZ_SCALES_MAX = 8192 }; // the most entries; the table is allocated once and never moves

void mz_scales_free(mezzo_device *device, mz_scales *scales);
// Finds the entry of this name, or makes it.
mezzo_status mz_scales_find(mezzo_device *device, mz_scales *scales, const char *name, mezzo_dtype dtype, int *index);
// Returns the number of the entry at this address of the device.
static inline int mz_scales_index(const mz_scales *scales, const void *entry) {
    return (int)((const mz_scale_entry *)entry - scales->entries);
}
// Returns the entry as a tensor that calls read and write.
mz_tensor mz_scales_tensor(const mz_scales *scales, int index);
// Reads the table from the device where a sync is due.
mezzo_status mz_scales_sync(mezzo_device *device, mz_scales *scales);
// Reads all entries to `host`, in the order of their names, or writes them to the device. Writing allocates no memory.
mezzo_status mz_scales_read(mezzo_device *device, mz_scales *scales);
mezzo_status mz_scales_write(mezzo_device *device, mz_scales *scales);
mezzo_status mz_scales_drop(mezzo_device *device, mz_scales *scales); // drops amax values that were recorded after a
                                                                      // step's end

#endif
