// Declares a grad scaler's members. The scale is on the device; the host keeps only which optimizers were unscaled and
// stepped since the last update.
#ifndef MZ_TRAIN_SCALER_H
#define MZ_TRAIN_SCALER_H

#include "optim/optimizer.h"

// Stages as in torch.amp.grad_scaler.OptState; READY means "not in the list".
typedef enum mz_scaler_stage { MZ_SCALER_READY, MZ_SCALER_UNSCALED, MZ_SCALER_STEPPED } mz_scaler_stage;

typedef struct mz_scaler_entry {
    mezzo_optimizer *optimizer;
    mz_scaler_stage stage;
    bool checked; // there were gradients to inspect
} mz_scaler_entry;

#define MZ_SCALER_OPTIMIZERS MZ_MAX_OUT // one scaler_update takes them all

struct mezzo_scaler {
    mz_scaler_head head;  // the part that programs know
    mezzo_device *device; // borrowed
    mz_update_attrs update;
    uint64_t version; // grows when a constant of the update changes
    mz_prepared prepared;
    mz_call call;
    mz_scaler_entry entries[MZ_SCALER_OPTIMIZERS];
    int n_entries;
    mz_fetch *floor; // the block after the last update, where floor_patience is set
    bool fetching;   // a copy of the block has been started
};

void mz_scaler_forget(mezzo_scaler *scaler, mezzo_optimizer *optimizer); // called before the optimizer is freed
// Adds scaler_update for these optimizers to `into`, or runs it at once where that is NULL.
mezzo_status mz_scaler_issue_update(mezzo_scaler *scaler, mz_sequence *into, const mezzo_optimizer *const *optimizers,
                                    int n);
// Fails with NUMERIC where the scale stayed at its floor too often before the last update. Called after an update was
// issued.
mezzo_status mz_scaler_check_floor(mezzo_scaler *scaler);

#endif
