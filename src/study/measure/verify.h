// Compares FP32 with a precision: trains the same run in both, from the same weights on the same batches.
#ifndef MZ_STUDY_VERIFY_H
#define MZ_STUDY_VERIFY_H

#include <jansson.h>
#include <signal.h>

#include "mezzo/train.h"
#include "study/analyse/stats.h"

#define MZ_VERIFY_SEEDS 32

typedef struct mz_verify_options {
    mezzo_config *config; // with model, data, steps, optimizer, scaler and device; amp.precision is the candidate,
                          // train.seed the first seed
    int seeds;            // 1 … MZ_VERIFY_SEEDS: train.seed, train.seed + 1, …
    double least_speedup, least_memory_percent, most_accuracy_difference;
    double level;                      // of the intervals, such as 0.95
    const volatile sig_atomic_t *stop; // may be NULL
    // Compares at equal quality (matched.c): the baseline is `baseline` instead of fp32; seeds are added until the
    // verdict is decided, at most `seeds` of them, or until `minutes` (0: no limit) have passed.
    bool matched;
    mezzo_precision baseline;
    double within; // a speedup within 1 ± this counts as none, such as 0.01
    double minutes;
    // For tests: a clock in seconds instead of the system's; a factor on the candidate's times (0: 1); a relative
    // change of the candidate's first weights, which affects training as another rounding would.
    double (*clock)(void *user);
    void *clock_user;
    double slowdown, nudge;
} mz_verify_options;

// --- measurements --------------------------------------------------------------------------------------------------
typedef struct mz_scale_change { // the loss scale from `step` on
    int64_t step;
    double scale;
} mz_scale_change;

typedef struct mz_verify_run { // one training run
    double seconds;            // of the timed steps
    double tokens_per_second;
    double train_loss, val_loss, accuracy; // train_loss: mean of the last tenth of the steps
    size_t memory,
        activations; // in bytes: the peak of training, and its arena, as planned, which is what is allocated
    int64_t skipped;
    double loss_scale;        // at the end; 1 without a scaler
    mz_scale_change *changes; // the first is the scale of step 1; empty without a scaler
    size_t n_changes, cap_changes;
    double *turns; // [n_turns]: seconds of a step, for each timed turn
    size_t n_turns;
    double *losses;                 // [steps]: the training loss of each; NaN where it was not read or is not finite
    uint32_t data_crc, weights_crc; // CRC32C of every micro batch's tokens and targets, in order; of the first weights
} mz_verify_run;

typedef struct mz_verify_pair {
    uint64_t seed;
    mz_verify_run run[2]; // the baseline (fp32), the candidate
    bool same_data, same_weights;
} mz_verify_pair;

// --- verdicts ------------------------------------------------------------------------------------------------------
typedef enum mz_verdict {
    MZ_VERDICT_MET,
    MZ_VERDICT_FAILED,
    MZ_VERDICT_OPEN, // the interval contains the threshold, because the seeds' differences scatter too much
} mz_verdict;
const char *mz_verdict_word(mz_verdict v); // "met", "not met", "undecided"

typedef struct mz_measured { // summarizes the seeds
    double value;            // geometric mean of ratios, mean of differences
    mz_interval interval;    // the t interval; the value twice where there is one seed or no scatter
} mz_measured;

// Judge a value: with one seed by itself, with more by the interval, which must lie on one side of the threshold.
mz_verdict mz_judge_least(const mz_measured *m, double least);   // whether value ≥ least
mz_verdict mz_judge_within(const mz_measured *m, double within); // whether |value| < within
mz_measured mz_measure_mean(const double *x, size_t n, double level);
mz_measured mz_measure_ratio(const double *x, size_t n, double level); // for positive numbers, computed from their
                                                                       // logarithms
json_t *mz_measured_json(const mz_measured *m, size_t n);              // for n seeds; one alone has no interval

// The result at equal quality. The baseline has the candidate's final training loss after `steps_ratio` of its steps,
// so that as many steps fewer would suffice. speedup = raw × steps_ratio.
typedef enum mz_matched_verdict {
    MZ_MATCHED_OPEN, // seeds or time are used up, and the interval contains 1
    MZ_MATCHED_FASTER,
    MZ_MATCHED_SLOWER,
    MZ_MATCHED_EQUAL, // the whole interval lies within 1 ± `within`
    MZ_MATCHED_FLAT,  // the baseline's loss no longer falls, so that no number of steps corresponds to a loss
} mz_matched_verdict;

typedef struct mz_matched {
    mz_measured raw, steps_ratio, speedup; // with intervals at look_level
    mz_measured loss_difference;           // of the training losses over the last third of the steps
    double slope;                          // of the baseline's loss there, by ln(step), mean over the seeds
    double look_level; // the level of this look; over all looks at the data together the level is the requested one
    mz_matched_verdict verdict;
    bool spent; // the seeds or minutes are used up
} mz_matched;

typedef struct mz_verify_result {
    mezzo_model_config model;
    char device[160], data[512];
    char reason[400]; // why this is the precision
    mezzo_precision asked, precision;
    mezzo_blocks emulate; // the blocks to which the precision's operands are rounded; its times then mean nothing
    bool emulate_stochastic, emulate_hadamard;
    mezzo_residual residual;
    int64_t batch, grad_accum, steps, warmup; // warmup: first steps, which are not timed
    double params_m;
    uint64_t val_tokens; // number of targets in the validation loss, in the model's unit
    const char *unit;    // "tokens"
    bool by_loss;  // the task has no right answers to count: accuracy_difference is that of the validation losses,
                   // divided by fp32's
    bool in_turns; // both runs were in memory and took turns; false: one followed the other
    mz_verify_pair pairs[MZ_VERIFY_SEEDS];
    size_t n;
    mz_measured speedup, memory_percent, accuracy_difference, loss_difference; // of the candidate compared with fp32
    mz_verdict speed, memory, accuracy;
    mz_matched matched; // filled where it was asked for
    mezzo_precision baseline;
    bool same; // data and first weights are the same in every pair
} mz_verify_result;
bool mz_verify_passed(const mz_verify_result *r);

typedef struct mz_verify_progress {
    int seed, seeds; // the present seed, and their number
    int64_t step, steps;
    double loss[2]; // of fp32 and the candidate, both after `step`; NaN before the first
    double seconds, seconds_left;
} mz_verify_progress;
typedef void (*mz_verify_fn)(void *user, const mz_verify_progress *progress);

// Trains `seeds` pairs of runs without writing files. The two runs of a pair take turns of a few steps, so that drift
// affects both alike; where both do not fit, one follows the other. Errors as mezzo_run_train, and INVALID: no
// validation data, a precision that becomes fp32, an override that puts a lower precision into the fp32 run. Free *out
// (of any outcome) with mz_verify_free.
mezzo_status mz_verify(const mz_verify_options *options, mz_verify_fn tell, void *user, mz_verify_result *out);
void mz_verify_free(mz_verify_result *r);

// --- at equal quality (matched.c) ----------------------------------------------------------------------------------
// Judges the existing pairs. A look at n of `seeds` pairs gets the share n²/Σ of 1 - level: by the union bound, all
// looks together are wrong at most that often. Looks begin with three pairs, or with the last.
mezzo_status mz_matched_judge(const mz_verify_options *o, const mz_verify_result *r, bool spent, mz_matched *out);
bool mz_matched_decided(const mz_matched *m);
const char *mz_matched_word(mz_matched_verdict verdict);                        // "faster", …
json_t *mz_matched_json(const mz_verify_options *o, const mz_verify_result *r); // NULL: out of memory
void mz_matched_text(const mz_verify_options *o, const mz_verify_result *r, mz_text *out);

// --- reports (verify_report.c) -------------------------------------------------------------------------------------
json_t *mz_verify_json(const mz_verify_options *o, const mz_verify_result *r); // NULL: out of memory
void mz_verify_text(const mz_verify_options *o, const mz_verify_result *r, mz_text *out);
void mz_verify_markdown(const mz_verify_options *o, const mz_verify_result *r, const char *command, mz_text *out);

// --- from small models to a larger one (transfer.c) ------------------------------------------------------------------
// Tests whether small models predict the gain of a larger one: a straight line in ln(parameters) goes through a few
// widths' speedups at equal quality, and the model itself is compared with it.
#define MZ_TRANSFER_WIDTHS 8
#define MZ_TRANSFER_LEAST  3 // with two points no interval can be computed

typedef struct mz_transfer_point {
    int64_t width;
    double params_m;
    mz_measured speedup; // at equal quality
} mz_transfer_point;

typedef struct mz_transfer {
    mz_transfer_point small[MZ_TRANSFER_WIDTHS];
    int n;
    double slope;          // of ln(speedup) by ln(parameters)
    mz_measured predicted; // for the model itself: the prediction interval of one more such point
    bool inside;           // whether the measured speedup lies in it
} mz_transfer;

// Runs the test. `options`: matched; its model is the predicted one. widths: n of them, with the model's other keys
// unchanged. *target is the model's own verification, which the caller frees with mz_verify_free. Errors as mz_verify;
// INVALID: too few or too many widths; NUMERIC: a width whose loss does not fall, so that there is no speedup at equal
// quality.
mezzo_status mz_transfer_find(const mz_verify_options *options, const int64_t *widths, int n, mz_verify_fn tell,
                              void *user, mz_transfer *out, mz_verify_result *target);
json_t *mz_transfer_json(const mz_transfer *t, const mz_verify_options *o, const mz_verify_result *target);
void mz_transfer_text(const mz_transfer *t, const mz_verify_options *o, const mz_verify_result *target, mz_text *out);

#endif
