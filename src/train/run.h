// A training run from the inside: everything it opens, and the pieces that the loop puts in order.
#ifndef MZ_TRAIN_RUN_H
#define MZ_TRAIN_RUN_H

#include "io/metrics.h"
#include "mezzo/data.h"
#include "train/config.h"
#include "train/guard.h"
#include "train/health.h"
#include "train/inject.h"
#include "train/magnitudes.h"
#include "optim/optimizer.h"
#include "optim/scaler.h"

// Everything random has a seed of its own, drawn from the run's, so that no two purposes share a stream.
typedef enum mz_purpose { MZ_SEED_PARAMETERS = 1, MZ_SEED_DATA, MZ_SEED_DROPOUT, MZ_SEED_VALIDATION } mz_purpose;
uint64_t mz_seed(uint64_t seed, mz_purpose purpose);

// --- sampler.c: text from a model, one token at a time ------------------------------------------------------------------------
typedef struct mz_sampler {
    mezzo_params *params; // borrowed, as is the tokenizer
    mezzo_model_config model;
    mezzo_precision precision; // of the programs, with residual and overrides
    mezzo_residual residual;
    mezzo_override *overrides;
    int n_overrides;
    mezzo_program *one,
        *several; // with a cache: of one position, of `chunk`; NULL where there is no kernel for it, or chunk is 1
    mezzo_program *whole; // of the whole window; NULL until it is needed
    const mezzo_tokenizer *tokenizer;
    int64_t length, vocab, chunk;
    int64_t done;    // positions of the window that are in the cache; -1: the window has moved
    int32_t *window; // [length]
    float *logits;   // [chunk or length, vocab]
    double *weights; // [vocab]
    int32_t *order;  // [vocab]: for top-k and top-p
} mz_sampler;
typedef struct mz_draw {       // how a token is chosen
    double temperature, top_p; // top_p 0 and 1: all
    int top_k;
    uint64_t seed, index; // the index-th draw of this seed
} mz_draw;
mezzo_status mz_sampler_create(mezzo_params *params, const mezzo_model_config *model,
                               const mezzo_program_options *options, const mezzo_tokenizer *tokenizer,
                               mz_sampler **out);
void mz_sampler_free(mz_sampler *sampler);
size_t mz_sampler_memory(const mz_sampler *sampler);      // bytes of its programs
mezzo_status mz_sampler_open_window(mz_sampler *sampler); // makes `whole`, if it is not there
// Draws `n` tokens after the prompt and hands their text to `write`, piece by piece. Stops early, without an error, at *stop.
mezzo_status mz_sampler_run(mz_sampler *sampler, const char *prompt, int64_t n, mz_draw draw, int index,
                            const volatile sig_atomic_t *stop, mezzo_text_fn write, void *user);

// --- validate.c ---------------------------------------------------------------------------------------------------------------
// Mean loss over the targets of batches 0 … n-1 of `loader`, nats. *tokens (may be NULL): how many. NaN when stopped early.
mezzo_status mz_validate(mezzo_program *program, const mezzo_loader *loader, uint64_t n, int32_t *inputs,
                         int32_t *targets, size_t count, const volatile sig_atomic_t *stop, double *loss,
                         uint64_t *tokens);

// --- the run --------------------------------------------------------------------------------------------------------------------
// What one step did, read from the device when that costs no waiting.
typedef struct mz_step_report {
    int64_t step; // 1 is the first
    double loss;  // mean over its micro batches
    mz_opt_state state;
    mz_scaler_block scaler;
} mz_step_report;

#define MZ_LOSS_SLOTS 4 // fetch slots 4 … 7
typedef struct mz_readout {
    int lag;       // steps between running and reading: 0 where the device has no queue to wait for, else 1
    double sum[2]; // of losses, by parity of the step
    int64_t pending[MZ_LOSS_SLOTS]; // step whose loss is in the slot; 0 = none
    const void *loss;               // device address
    mz_step_report last;
} mz_readout;

// experts.c: how evenly a mixture of experts is used. *out NULL for models without one.
typedef struct mz_expert_load mz_expert_load;
mezzo_status mz_expert_load_create(const mezzo_model_config *model, mz_expert_load **out);
void mz_expert_load_free(mz_expert_load *load);
// A metrics row about the program's last run; rows: tokens of a micro batch × experts per token.
mezzo_status mz_expert_load_log(mz_expert_load *load, mezzo_program *program, int64_t rows, mz_metrics *metrics,
                                int64_t step);

// gradients.c: norms of parameters and of parts of the model, and FP16's underflow, as a metrics row.
typedef struct mz_gradient_norms mz_gradient_norms;
mezzo_status mz_gradient_norms_create(mezzo_optimizer *optimizer, mz_gradient_norms **out);
void mz_gradient_norms_free(mezzo_device *device, mz_gradient_norms *norms);
// Waits. Before gradients are written again. *underflow: NaN where nothing in FP16 is watched.
mezzo_status mz_gradient_norms_log(mz_gradient_norms *norms, mezzo_program *program, mezzo_device *device,
                                   mz_metrics *metrics, int64_t step, double *underflow);

typedef struct mz_training {
    const mezzo_config *source;
    mz_run_config config;
    mezzo_hooks hooks;
    mezzo_device *device;
    bool borrowed; // the device is the caller's
    mezzo_device_info info;
    char precision_reason[400];
    bool automatic; // amp.precision is auto
    mezzo_corpus *corpus;
    mezzo_model_config model;
    mezzo_params *params;
    mezzo_program *train, *eval;
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
    mezzo_loader *batches, *val_random, *val_all; // val_*: NULL without validation data
    mz_sampler *sampler;                          // NULL where there is no tokenizer or no sample is wanted
    int32_t *inputs, *targets;                    // [B, T]
    size_t count;                                 // B·T
    char *checkpoints, *tokenizer_file;           // paths
    mz_metrics *metrics;
    mz_expert_load *experts;   // NULL where the model has none
    mz_magnitudes *magnitudes; // NULL: no histograms asked for
    bool counting;             // the step under way is counted
    mz_gradient_norms *norms;
    mz_health health;
    bool unhealthy; // when it was last looked at
    mz_readout readout;
    mz_batch *update; // the calls of an optimizer step behind the micro batches
    mz_guard guard;
    mz_inject inject;               // for tests: empty
    bool bisecting;                 // nothing is written
    int64_t step, first_step;       // done; done before this call
    double val_loss, best_val_loss; // the last one and the lowest; NaN = none
    int64_t val_step;               // step of val_loss
    double started, step_seconds;   // clock; spent in steps
    double reported_seconds;        // step_seconds at the last report
    int64_t reported_step;
    size_t memory;
    mezzo_train_result result;
} mz_training;

// run.c
mezzo_status mz_run_open(const mezzo_config *config, const mezzo_hooks *hooks, mz_training *run);
// On a device that the caller opened and closes. Runs that take turns on one must have read every step before the other's turn.
mezzo_status mz_run_open_on(mezzo_device *device, const mezzo_config *config, const mezzo_hooks *hooks,
                            mz_training *run);
void mz_run_close(mz_training *run); // a zeroed or half-open one is fine
// step.c: one optimizer step. Allocates nothing and, on a device with a queue, waits for nothing.
mezzo_status mz_run_step(mz_training *run);
mezzo_status mz_run_read_step(mz_training *run, bool all,
                              bool *fresh);   // into readout.last: the newest, or with `all` the very last
void mz_run_forget_pending(mz_training *run); // losses that were not read
// guard.c: looks at readout.last, skips, rolls back; NUMERIC when there is no going on.
mezzo_status mz_run_guard(mz_training *run);
// resume.c: the folder, and where to start.
mezzo_status mz_run_start(mz_training *run);
mezzo_status mz_run_load(mz_training *run, const char *path); // a checkpoint into everything; where the run then is
mezzo_status mz_run_save(mz_training *run);
// A checkpoint's folder from what a user names: a run folder, its checkpoints/, or one checkpoint.
mezzo_status mz_run_folder(const char *checkpoint, char *out, size_t size); // RUN/checkpoints/step-… → RUN
mezzo_status mz_find_checkpoint(const char *path, bool best, char *out, size_t size);
// report.c
void mz_run_started(mz_training *run);
void mz_run_event(mz_training *run, mezzo_event event, const char *text);
mezzo_status mz_run_open_metrics(mz_training *run);
mezzo_status mz_run_log_step(mz_training *run); // a metrics row and a progress event
mezzo_status mz_run_log_magnitudes(mz_training *run);
mezzo_status mz_run_recall_health(mz_training *run); // from what metrics.jsonl holds
mezzo_status mz_run_log_validation(mz_training *run);
void mz_run_result(mz_training *run); // fills run->result as far as things are known

#endif
