// A run's configuration, as one struct: what config.def lists, read and checked once.
#ifndef MZ_TRAIN_CONFIG_H
#define MZ_TRAIN_CONFIG_H

#include "io/config.h"
#include "mezzo/train.h"
#include "optim/ranks.h"
#include "task/task.h"

typedef struct mz_override_list mz_override_list;

struct mezzo_config {
    mz_config *values;
    mz_override_list *overrides; // made from the autocast map by mezzo_config_program
};

typedef struct mz_scaler_choice {
    bool automatic;
    mezzo_scaler_options options;
} mz_scaler_choice;

typedef struct mz_guard_config {
    enum { MZ_GUARD_OFF, MZ_GUARD_SKIP, MZ_GUARD_ROLLBACK, MZ_GUARD_STOP } policy;
    enum { MZ_SPIKE_OFF, MZ_SPIKE_WARN, MZ_SPIKE_ROLLBACK, MZ_SPIKE_STOP } spike;
    int64_t activations, sample, parameters_every, spike_window, max_rollbacks;
    double limit, spike_score;
} mz_guard_config;

// What the loop reads. Strings are borrowed from the configuration.
typedef struct mz_run_config {
    mz_task_options data;
    const char *out, *resume, *init, *device;
    int threads;
    int64_t steps, batch_size, global_batch, grad_accum, eval_every, eval_iters, sample_every, sample_tokens, log_every,
        histograms_every;
    int64_t checkpoint_every, keep_last, max_skips, profile;
    uint64_t seed;
    bool eval_final;
    mezzo_optimizer_options optimizer;
    mezzo_master master; // FP32 with master_auto: the precision decides, once it is resolved
    bool master_auto;
    double peak_tflops; // mz_peak_flops
    double clip;        // 0 = none
    mezzo_lora lora;    // rank 0: no adapters
    const char *freeze; // patterns of parameters that are not trained; "" = all are
    mz_scaler_choice scaler;
    mezzo_program_options program;
    mz_guard_config guard;
    mz_shard shard;
    bool canonical;    // sums of gradients
    bool bf16_wire;    // what they travel as
    double bucket_mib; // of gradients that are summed together
} mz_run_config;

// Sets every size and setting of the model, without its name, as keys.
mezzo_status mz_config_set_model(mezzo_config *config, const mezzo_model_config *model);
mezzo_status mz_run_config_read(const mezzo_config *config, mz_run_config *out);
// Once the number of ranks is known: grad_accum is a rank's micro batches a step. INVALID where global_batch and the
// others do not fit together.
mezzo_status mz_run_config_share(mz_run_config *config, int ranks);
// mezzo_config_model with all that data may decide of a model's sizes.
mezzo_status mz_config_model(const mezzo_config *config, const mz_data_sizes *sizes, mezzo_model_config *out);

#endif
