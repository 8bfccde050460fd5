// The engine has everything that computes. It owns the device (unless borrowed), the values that the configuration left
// to this machine, the session, and the results of the newest step. It knows neither data nor files.
#ifndef MZ_TRAIN_ENGINE_H
#define MZ_TRAIN_ENGINE_H

#include "dist/group.h"
#include "train/config.h"
#include "train/counterfactual.h"
#include "train/magnitudes.h"

// Holds what one step did, read from the device once that needs no waiting.
typedef struct mz_step_report {
    int64_t step; // counts from 1
    double loss;  // mean over its micro batches
    mz_opt_state state;
    mz_scaler_block scaler;
    int asked; // MZ_ASKED_… of all ranks
} mz_step_report;

typedef struct mz_readout {
    int lag; // steps between running and reading: 0 where the device has no queue to wait for, else 1
    mz_step_report last;
} mz_readout;

typedef struct mz_engine {
    mezzo_device *device;
    bool borrowed; // the caller owns the device
    mezzo_device_info info;
    // The assembled plan, resolved: never "auto". The configuration keeps what the user asked for.
    mz_session_options plan;
    char precision_reason[600];
    mz_session session;
    mz_group *group;                   // the ranks that train together; NULL: this process alone
    int rank, size;                    // 0 of 1 in a process without ranks
    mz_readout readout;                // of the newest step that was read
    mz_magnitudes *magnitudes;         // NULL: no histograms are asked for
    bool counting;                     // the present step is counted
    mz_counterfactual *counterfactual; // NULL: no formats are asked for
    bool comparing;                    // it measures the present step
} mz_engine;

// Opens the device that the configuration names, or borrows `device` where that is not NULL. Describes it and resolves
// the precision as far as the device decides it.
mezzo_status mz_engine_open_device(mz_engine *engine, mezzo_device *device, const mz_run_config *config);
// Opens this rank's device as one of the ranks that the environment describes (dist/world.h).
mezzo_status mz_engine_join(mz_engine *engine, const mz_run_config *config);
// Opens the session of engine->plan, whose model and precision are final by now; it keeps the model's outputs where
// asked. Scaling is resolved here: "auto" is on where a module computes in fp16.
mezzo_status mz_engine_build(mz_engine *engine, const mz_run_config *config, bool outputs);
// Computes the CRC32C of all parameters in their order, as FP32.
mezzo_status mz_weights_crc(const mezzo_params *params, uint32_t *crc);
void mz_engine_close(mz_engine *engine); // a zeroed or half-open one is allowed

#endif
