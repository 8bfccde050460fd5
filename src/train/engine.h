// The engine has everything that computes. It owns the device (unless borrowed), the values that the configuration left
// open and this machine decided, the session, and what the newest step did. It knows neither data nor files.
#ifndef MZ_TRAIN_ENGINE_H
#define MZ_TRAIN_ENGINE_H

#include "dist/group.h"
#include "train/config.h"
#include "train/counterfactual.h"
#include "train/magnitudes.h"

// Holds what one step did, read from the device when that costs no waiting.
typedef struct mz_step_report {
    int64_t step; // 1 is the first
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
    bool borrowed; // the device is the caller's
    mezzo_device_info info;
    // The assembled plan, resolved: never "auto". The configuration keeps what was asked.
    mz_session_options plan;
    char precision_reason[600];
    mz_session session;
    mz_group *group;                   // the ranks that train together; NULL: this process alone
    int rank, size;                    // 0 of 1 alone
    mz_readout readout;                // of the newest step that was read
    mz_magnitudes *magnitudes;         // NULL: no histograms asked for
    bool counting;                     // the step under way is counted
    mz_counterfactual *counterfactual; // NULL: no formats asked for
    bool comparing;                    // it measures the step under way
} mz_engine;

// On `device`, which the caller keeps, or, where it is NULL, on the one that the configuration names. Describes it and
// resolves the precision as far as the device decides.
mezzo_status mz_engine_open_device(mz_engine *engine, mezzo_device *device, const mz_run_config *config);
// The same, as one of the ranks that the environment names (dist/world.h), on this rank's device.
mezzo_status mz_engine_join(mz_engine *engine, const mz_run_config *config);
// The session of engine->plan, whose model and precision are final by now; it keeps the model's outputs where asked.
// Scaling is resolved here: "auto" is on where a module computes in fp16.
mezzo_status mz_engine_build(mz_engine *engine, const mz_run_config *config, bool outputs);
// Computes the CRC32C of all parameters in their order, as FP32.
mezzo_status mz_weights_crc(const mezzo_params *params, uint32_t *crc);
void mz_engine_close(mz_engine *engine); // a zeroed or half-open one is fine

#endif
