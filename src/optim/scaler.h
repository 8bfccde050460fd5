// Inside a grad scaler. The scale lives on the device; the host keeps only who was unscaled and stepped since the last update.
#ifndef MZ_TRAIN_SCALER_H
#define MZ_TRAIN_SCALER_H

#include "optim/optimizer.h"

// torch.amp.grad_scaler.OptState. READY is "not in the list".
typedef enum mz_scaler_stage { MZ_SCALER_READY, MZ_SCALER_UNSCALED, MZ_SCALER_STEPPED } mz_scaler_stage;

typedef struct mz_scaler_entry {
    mezzo_optimizer *optimizer;
    mz_scaler_stage stage;
    bool checked; // there were gradients to look at
} mz_scaler_entry;

#define MZ_SCALER_OPTIMIZERS MZ_MAX_OUT // one scaler_update takes them all

// Device memory. `owner` tells whose block a fetched copy is.
typedef struct mz_scaler_shared {
    mz_scaler_block block;
    const mezzo_scaler *owner;
} mz_scaler_shared;

struct mezzo_scaler {
    mz_scaler_head head;      // what programs know
    mz_scaler_shared *shared; // device; head.block is in it
    mezzo_device *device;     // borrowed
    mz_update_attrs update;
    mz_prepared prepared;
    mz_call call;
    mz_scaler_entry entries[MZ_SCALER_OPTIMIZERS];
    int n_entries;
    bool fetching; // a fetch of the block is on its way or there
};

void mz_scaler_forget(mezzo_scaler *scaler, mezzo_optimizer *optimizer); // before the optimizer is freed
mezzo_status mz_scaler_fetch(mezzo_scaler *scaler, int slot);            // enqueue a read of the scaler block

#endif
