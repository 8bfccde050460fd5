// Optimizers, gradient clipping, learning-rate schedules and the grad scaler. The device takes every decision (skip or
// step, clip factor, next scale, learning rate) from values in its own memory; no call here waits for it unless its
// comment says so.
// Ownership, threads and errors that a comment does not name: mezzo.h.
#ifndef MEZZO_OPTIMIZER_H
#define MEZZO_OPTIMIZER_H

#include "mezzo/program.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mezzo_optimizer mezzo_optimizer;

// The learning rate of optimizer step t = 0, 1, … (steps that were skipped do not count):
//   t < warmup: lr·(t+1)/(warmup+1)   (nanoGPT's)
//   CONSTANT: lr.   t ≥ steps: min_lr.   else, with p = (t-warmup)/(steps-warmup):
//   LINEAR: lr + (min_lr-lr)·p   COSINE: min_lr + (lr-min_lr)·(1+cos πp)/2   POLYNOMIAL: (lr-min_lr)·(1-p)^power +
//   min_lr
typedef enum mezzo_lr { MEZZO_LR_CONSTANT, MEZZO_LR_LINEAR, MEZZO_LR_COSINE, MEZZO_LR_POLYNOMIAL } mezzo_lr;
typedef struct mezzo_schedule {
    mezzo_lr kind;
    double lr, min_lr, power;
    int64_t warmup, steps;
} mezzo_schedule;
// Returns the rate of step `step`, as the device computes it.
MEZZO_API double mezzo_schedule_lr(const mezzo_schedule *schedule, int64_t step);

// Lists MEZZO_ADAMW, MEZZO_SGD, …; optimizers.def has the formula of each.
typedef enum mezzo_optimizer_kind {
#define KIND(name, NAME, ...) MEZZO_##NAME,
#include "mezzo/optimizers.def"
#undef KIND
    MEZZO_OPTIMIZER_KINDS
} mezzo_optimizer_kind;
MEZZO_API const char *mezzo_optimizer_kind_name(mezzo_optimizer_kind kind); // "adamw"; static
// Says how a kind that works on whole matrices makes a direction orthogonal: X/‖X‖, then `steps` times X = aX + (bA +
// cA²)X, A = XXᵀ.
typedef enum mezzo_orthogonal_format {
    MEZZO_ORTHOGONAL_BF16, // format of the products' operands and results; sums are FP32
    MEZZO_ORTHOGONAL_FP16,
    MEZZO_ORTHOGONAL_TF32,
    MEZZO_ORTHOGONAL_FP32
} mezzo_orthogonal_format;
typedef enum mezzo_orthogonal_set { // the coefficients a, b, c
    MEZZO_ORTHOGONAL_QUINTIC,       // 3.4445, -4.7750, 2.0315 in each step (Jordan et al. 2024)
    MEZZO_ORTHOGONAL_POLAR_EXPRESS, // three others in each step (Amsel et al. 2025)
} mezzo_orthogonal_set;
typedef enum mezzo_orthogonal_scale { // factor of a matrix's update, as torch.optim.Muon's adjust_lr_fn
    MEZZO_SCALE_MATCH_RMS_ADAMW,      // 0.2·√max(rows, columns): updates as large as AdamW's
    MEZZO_SCALE_ORIGINAL,             // √max(1, rows/columns)
} mezzo_orthogonal_scale;
typedef struct mezzo_orthogonal {
    mezzo_orthogonal_format format;
    mezzo_orthogonal_set coefficients;
    mezzo_orthogonal_scale scale;
    int steps;  // 1 to 10
    bool whole; // a weight that has the rows of several layers is one matrix; false: one matrix for each layer
} mezzo_orthogonal;
#define MEZZO_ORTHOGONAL_USUAL                                                                                         \
    ((mezzo_orthogonal){MEZZO_ORTHOGONAL_BF16, MEZZO_ORTHOGONAL_QUINTIC, MEZZO_SCALE_MATCH_RMS_ADAMW, 5, false})
// Says how the kind's moments are stored. BF16 needs half the memory; stochastic rounding keeps the mean right (with
// rounding to nearest a second moment would stop changing, because a step changes it by less than half of its last
// digit). The random bits are a function of seed, step, parameter and element. INT8 needs a quarter; codes of 8 bits
// and an FP32 scale for each 256 elements of a parameter, rounded to nearest (block-wise dynamic quantization,
// docs/dev/NUMERICS.md).
typedef enum mezzo_moments { MEZZO_MOMENTS_FP32, MEZZO_MOMENTS_BF16, MEZZO_MOMENTS_INT8 } mezzo_moments;
MEZZO_API const char *mezzo_moments_name(mezzo_moments moments); // "fp32", "bf16", "int8"; static
#define MEZZO_MATRICES "@matrices"
typedef struct mezzo_optimizer_options {
    mezzo_optimizer_kind kind;
    mezzo_schedule schedule;    // kind CONSTANT with lr gives a fixed rate
    double beta1, beta2, eps;   // AdamW: of m and v as in torch.optim.AdamW (decoupled decay, bias correction)
    double momentum, dampening; // SGD: as in torch.optim.SGD
    bool nesterov;
    mezzo_orthogonal orthogonal; // used by Muon
    double weight_decay;         // for the parameters that match `decay`
    // The optimizer owns the parameters whose name, or the name of a module that contains them, matches one of the
    // patterns; NULL = all. MEZZO_MATRICES is the pattern of the matrices of blocks: parameters of two or three
    // dimensions with a number in their names, "h.0.mlp.c_fc.weight"; three dimensions mean stacked matrices.
    const char *const *patterns;
    int n_patterns;
    // Only parameters of this rank or more decay (2: matrices and embeddings, not biases and norms). 0 = all.
    int decay_min_rank;
    // The decay of a moving average of the parameters, FP32, updated in the same pass as they: ema += (1-d)·(p - ema),
    // where d = min(ema, t/(t+9)) at the t-th step taken, and the first step sets it to p. 0: no average.
    double ema;
    mezzo_moments moments;
    // Groups: of the parameters that the optimizer owns, those that match a group's patterns are updated by the group's
    // kind, betas, eps, momentum, dampening, nesterov, weight_decay and decay_min_rank, at lr_factor times the rate of
    // the schedule. The first group that matches takes a parameter; the optimizer's own options apply to all others.
    // The remaining fields of a group are ignored. Norm, clipping, skipped steps and the state's counters are common. 7
    // groups at most.
    double lr_factor; // of a group
    const struct mezzo_optimizer_options *groups;
    int n_groups;
} mezzo_optimizer_options;

// Returns the usual values: AdamW, lr 1e-3, betas 0.9/0.999, eps 1e-8, decay 0.01, decay_min_rank 0, all parameters,
// lr_factor 1; momentum 0.
MEZZO_API mezzo_optimizer_options mezzo_optimizer_defaults(void);
// Changes the kind: the options that it reads get the kind's usual values (optimizers.def, DEFAULT), all others stay.
MEZZO_API void mezzo_optimizer_set_kind(mezzo_optimizer_options *options, mezzo_optimizer_kind kind);
// Makes an optimizer. The caller owns *out; it borrows params. Errors: INVALID (no parameter matches a pattern, a rate
// that is NaN or negative, …), MEMORY.
MEZZO_API mezzo_status mezzo_optimizer_create(mezzo_params *params, const mezzo_optimizer_options *options,
                                              mezzo_optimizer **out);
MEZZO_API void mezzo_optimizer_free(mezzo_optimizer *optimizer); // NULL is allowed; free its steps first
// Multiplies the present gradients of this optimizer so that their global L2 norm is at most max_norm (factor
// max_norm/(norm + 1e-6), as torch.nn.utils.clip_grad_norm_; a norm that is not finite clips nothing). Gradients that
// later runs add are not clipped. Call it after mezzo_scaler_unscale; before, it clips scaled gradients, as torch does.
// It waits for the norm; a mezzo_step clips without waiting. INVALID: max_norm is not a finite number above 0, or no
// program has written gradients.
MEZZO_API mezzo_status mezzo_optimizer_clip(mezzo_optimizer *optimizer, double max_norm);
// Takes a step without a scaler. Non-finite gradients still skip the step. INVALID when no program has written
// gradients since they were zeroed.
MEZZO_API mezzo_status mezzo_optimizer_step(mezzo_optimizer *optimizer);
// Sets the gradients of this optimizer's parameters to 0.
MEZZO_API mezzo_status mezzo_optimizer_zero_grad(mezzo_optimizer *optimizer);
// Reads the moving average of parameter `index` of the params, FP32, in the layout of mezzo_params_read; before the
// first step it equals the parameter. Waits for the device. INVALID: no average is kept, the optimizer does not own the
// parameter, or it is sharded among ranks.
MEZZO_API mezzo_status mezzo_optimizer_average(mezzo_optimizer *optimizer, int index, float *out);
// Sets the schedule from the next step on. INVALID: as mezzo_optimizer_create.
MEZZO_API mezzo_status mezzo_optimizer_set_schedule(mezzo_optimizer *optimizer, const mezzo_schedule *schedule);

typedef struct mezzo_step_info {
    int64_t step;     // optimizer steps taken; skipped ones do not count
    int64_t skipped;  // steps skipped for non-finite gradients
    double grad_norm; // global L2 norm of the last step's gradients after unscaling, before clipping; non-finite if
                      // found_inf
    double clip;      // the factor that clipping applied
    double lr;        // the rate of the last step taken
    bool found_inf;   // the last step was skipped
} mezzo_step_info;
// Reads the state of the last step and waits for the device; mezzo_step_read does not wait.
MEZZO_API mezzo_status mezzo_optimizer_info(mezzo_optimizer *optimizer, mezzo_step_info *out);
MEZZO_API size_t mezzo_optimizer_memory(const mezzo_optimizer *optimizer); // bytes of state

// --- grad scaler ---------------------------------------------------------------------------------------------------
// Sets torch.amp.GradScaler's state machine, which has the same errors, and in addition: growth when the tracker is at
// or past the interval (torch: only at it), a finite cap, an optional floor, ceiling and hysteresis, and an error when
// the scale hits the floor repeatedly. With a scale below 1, a gradient that overflows during unscaling skips the step
// (torch takes that step, because it checks gradients before it unscales them).
typedef struct mezzo_scaler_options {
    bool enabled;            // false: scale 1 and never changed; the non-finite check stays
    double init_scale;       // 65536
    double growth_factor;    // 2
    double backoff_factor;   // 0.5
    int64_t growth_interval; // 2000
    double min_scale;        // 0 = none. The scale never falls below it
    double max_scale;        // 0 = none but FP32's largest power of two that stays finite
    int hysteresis;          // consecutive steps with non-finite gradients before the scale backs off; 0 or 1: at once
    int floor_patience;      // consecutive skips at the floor before mezzo_scaler_update's error; 0 = never
} mezzo_scaler_options;
MEZZO_API mezzo_scaler_options mezzo_scaler_defaults(void); // enabled, with the values above
// Makes a scaler. The caller owns *out; it borrows the device. INVALID: a scale, factor or interval out of range, which
// the message names.
MEZZO_API mezzo_status mezzo_scaler_create(mezzo_device *device, const mezzo_scaler_options *options,
                                           mezzo_scaler **out);
MEZZO_API void mezzo_scaler_free(mezzo_scaler *scaler); // NULL is allowed; free the steps that use it first

// Multiplies gradients by 1/scale, checks them for non-finite values and computes the norm, in one pass. Once per
// optimizer between updates: INVALID "unscale_() has already been called…" or "… after step()", as in torch.
MEZZO_API mezzo_status mezzo_scaler_unscale(mezzo_scaler *scaler, mezzo_optimizer *optimizer);
// Unscales if that was not done, then steps unless the check found a non-finite gradient. Once per optimizer between
// updates. INVALID when no program has written gradients since they were zeroed.
MEZZO_API mezzo_status mezzo_scaler_step(mezzo_scaler *scaler, mezzo_optimizer *optimizer);
// Computes the next scale from the found-inf of every optimizer unscaled since the last update (logical OR). INVALID
// when there was none. NUMERIC when the scale hit the floor floor_patience times in a row (noticed one update late).
MEZZO_API mezzo_status mezzo_scaler_update(mezzo_scaler *scaler);
// Sets the scale, as torch's update(new_scale). INVALID: not a positive number that FP32 represents. It does nothing
// where the scaler is not enabled.
MEZZO_API mezzo_status mezzo_scaler_set_scale(mezzo_scaler *scaler, double scale);

typedef struct mezzo_scaler_state { // the state that a checkpoint keeps
    double scale, growth_factor, backoff_factor;
    int64_t growth_interval, growth_tracker;
    int64_t hysteresis_tracker, floor_hits;
    int64_t skipped; // updates that saw a non-finite gradient
} mezzo_scaler_state;
MEZZO_API mezzo_status mezzo_scaler_get_state(mezzo_scaler *scaler, mezzo_scaler_state *out); // waits for the device
// Sets the state. INVALID: as mezzo_scaler_create, or a counter below 0.
MEZZO_API mezzo_status mezzo_scaler_set_state(mezzo_scaler *scaler, const mezzo_scaler_state *state);

#ifdef __cplusplus
}
#endif
#endif
