// The report writes what a run reports. It owns the metrics file, the rows that need state of their own (norms,
// experts), the verdict on health, the clock, the validated losses, and the result. It reads the engine and changes
// nothing in it.
#ifndef MZ_TRAIN_REPORT_H
#define MZ_TRAIN_REPORT_H

#include "io/metrics.h"
#include "mezzo/train.h"
#include "optim/ranks.h"
#include "task/task.h"
#include "train/health.h"
#include "train/rates.h"

struct mz_training;

// Measures how evenly a mixture of experts is used (experts.c); NULL for models without one.
typedef struct mz_expert_load mz_expert_load;
mezzo_status mz_expert_load_create(const mz_model *model, mz_expert_load **out);
void mz_expert_load_free(mz_expert_load *load);
// Writes a metrics row about the program's last run; rows: tokens of a micro batch × experts per token.
mezzo_status mz_expert_load_log(mz_expert_load *load, mezzo_program *program, int64_t rows, mz_metrics *metrics,
                                int64_t step);

// Computes norms of parameters and of parts of the model, and FP16's underflow, as a metrics row (gradients.c).
typedef struct mz_gradient_norms mz_gradient_norms;
// Makes the norms. ranks: those that summed the squares, where the gradients are sharded; NULL: all gradients lie here.
mezzo_status mz_gradient_norms_create(mezzo_optimizer *optimizer, mz_ranks *ranks, mz_gradient_norms **out);
void mz_gradient_norms_free(mezzo_device *device, mz_gradient_norms *norms);
// Logs the norms before gradients are written again, and waits for the device. *underflow: NaN where no FP16 value is
// sampled.
mezzo_status mz_gradient_norms_log(mz_gradient_norms *norms, mezzo_program *program, mezzo_device *device,
                                   mz_metrics *metrics, int64_t step, double *underflow);

// Finds 8-bit tensors with a scale whose largest number in a step exceeded the format's (saturation.c).
typedef struct mz_saturation mz_saturation;
mezzo_status mz_saturation_create(mz_saturation **out);
void mz_saturation_free(mz_saturation *saturation); // NULL is allowed
// Writes up to MZ_SATURATION_ROWS metrics after row[*n], about the steps since the last call; waits where there are
// such tensors. *share: of the last 200 steps or more, those in which the tensor *name was saturated, the largest such
// share; NaN before that. The name lives as long as `saturation`.
enum { MZ_SATURATION_ROWS = 4 };
mezzo_status mz_saturation_rows(mz_saturation *saturation, mezzo_device *device, mz_scales *scales, int64_t step,
                                mz_metric *row, size_t *n, double *share, const char **name);

// Kinds of work between steps and after the last one whose time is measured.
typedef enum mz_pause { MZ_PAUSE_VALIDATION, MZ_PAUSE_SAMPLE, MZ_PAUSE_CHECKPOINT, MZ_PAUSES } mz_pause;
typedef struct mz_pause_time {
    double seconds;
    int64_t count; // of a validation: its batches
} mz_pause_time;

// SAMPLE: train.eval_iters random batches. WHOLE: every target of the set once.
typedef enum mz_val_kind { MZ_VAL_SAMPLE, MZ_VAL_WHOLE, MZ_VAL_KINDS } mz_val_kind;
typedef struct mz_validation {
    mz_evaluation score; // loss NaN: none, or not finite
    int64_t step;        // -1: there was none
} mz_validation;

// Parts of a step's time on the host. The rest of the step enqueues the device's work or, without a queue, does it.
typedef enum mz_host_work {
    MZ_HOST_DRAW,  // draws batches and checks them
    MZ_HOST_WRITE, // writes them to the program
    MZ_HOST_READ,  // waits for the results of a step
    MZ_HOST_WORKS
} mz_host_work;

typedef struct mz_report {
    mz_metrics *metrics;     // NULL: no files are written
    mz_metrics *operands;    // counterfactual.jsonl; NULL: it is not written
    mz_expert_load *experts; // NULL where the model has no experts
    mz_gradient_norms *norms;
    mz_saturation *saturation;
    mz_health health;
    bool unhealthy;                  // as of the last verdict
    mz_validation val[MZ_VAL_KINDS]; // the last one of each kind; losses of two kinds are not comparable
    double best_val_loss;            // the lowest of the kind that mz_run_val_kind returns; NaN: none
    char no_number[1024];            // why the last validation has no loss; "": it has one
    double started, step_seconds;    // the clock at the start; seconds spent in steps
    double host[MZ_HOST_WORKS], reported_host[MZ_HOST_WORKS]; // seconds in all, and at the last report
    double data_before; // seconds for batches (mz_report_data_seconds) before the present step
    mz_pause_time pauses[MZ_PAUSES];
    double reported_seconds; // step_seconds at the last report
    int64_t reported_step;
    mz_rates rates;
    size_t memory; // bytes that the run takes
    mezzo_train_result result;
} mz_report;

// Returns the seconds in which batches were drawn and written, in all.
static inline double mz_report_data_seconds(const mz_report *report) {
    return report->host[MZ_HOST_DRAW] + report->host[MZ_HOST_WRITE];
}

mezzo_status mz_report_open(struct mz_training *run);                              // called once the engine is built
void mz_report_close(struct mz_training *run);                                     // a zeroed one is allowed
void mz_run_describe_model(const struct mz_training *run, char *out, size_t size); // "gpt2: …: 0.80 M parameters"
void mz_run_started(struct mz_training *run);
void mz_run_event(struct mz_training *run, mezzo_event event, const char *text);
// Counts `count` pauses of this kind, which began at `start` and are over.
void mz_run_paused(struct mz_training *run, mz_pause kind, int64_t count, double start);
mezzo_status mz_run_open_metrics(struct mz_training *run);
// Opens the files of records again, without records later than run->step.
mezzo_status mz_run_cut_metrics(struct mz_training *run);
mezzo_status mz_run_log_step(struct mz_training *run); // writes a metrics row and reports progress
mezzo_status mz_run_log_magnitudes(struct mz_training *run);
mezzo_status mz_run_log_counterfactual(struct mz_training *run);
mezzo_status mz_run_recall_health(struct mz_training *run); // from the rows that metrics.jsonl has
mz_val_kind mz_run_val_kind(const struct mz_training *run); // the kind of validations between steps, by which "best" is
                                                            // chosen
bool mz_run_validates_last(const struct mz_training *run, mz_val_kind kind); // whether it does so after the last step
mezzo_status mz_run_log_validation(struct mz_training *run, mz_val_kind kind);
void mz_run_result(struct mz_training *run); // fills report.result as far as values are known

#endif
