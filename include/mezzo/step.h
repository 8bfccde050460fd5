// One training step as an object: micro batches, then unscale, clip, optimizer step, scaler update and zeroed
// gradients. What it runs is listed once, when it is made, and on a device that captures it is the launch of one graph.
// The single calls of optimizer.h do the same one by one.
//
// Ownership: the step borrows program, optimizers and scaler, which must outlive it. Threads and other errors: mezzo.h.
#ifndef MEZZO_STEP_H
#define MEZZO_STEP_H

#include "mezzo/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- frozen parameters ---------------------------------------------------------------------------------------------
// Freezes the parameters that `patterns` name, separated by commas: "wte,h.0.*" ('*' any run of characters, '?' one; a
// module's name stands for all of its parameters; "" names none). Programs of this graph compute no gradient that only
// they need, and mezzo_params made from it keep no gradient, no moments and no update for them; their weights stay in
// checkpoints. Call it before mezzo_params_create, and on every training graph of these parameters. INVALID when a
// pattern matches nothing.
MEZZO_API mezzo_status mezzo_graph_freeze(mezzo_graph *graph, const char *patterns);
// Reading or writing the gradient of such a parameter is INVALID.
MEZZO_API bool mezzo_params_frozen(const mezzo_params *params, int index);

// --- the step ------------------------------------------------------------------------------------------------------
typedef struct mezzo_step mezzo_step;

typedef struct mezzo_step_options {
    int64_t micro_batches; // of one step; 0 means 1. The program's loss_weight should be 1/micro_batches for a mean
    double clip;           // largest L2 norm of each optimizer's gradients, unscaled; 0 = gradients are not clipped
} mezzo_step_options;

// `program` is a training program and reads the parameters that all `optimizers` own parts of; each parameter has one
// owner at most. scaler: NULL trains without loss scaling; non-finite gradients skip the step all the same. options:
// NULL = {0}. The caller owns *out and frees it before what it borrows. Errors: INVALID (a forward-only program,
// parameters or a scaler of another device or program, no or too many optimizers, a parameter with two owners, a clip
// that is negative or not finite), MEMORY.
MEZZO_API mezzo_status mezzo_step_create(mezzo_program *program, mezzo_optimizer *const *optimizers, int n_optimizers,
                                         mezzo_scaler *scaler, const mezzo_step_options *options, mezzo_step **out);
MEZZO_API void mezzo_step_free(mezzo_step *step); // NULL is fine

// Forward and backward of the next micro batch, from inputs that mezzo_program_write has brought. (seed, index) decide
// dropout, as in mezzo_program_run. Does not wait for the device. INVALID when the step has its micro batches already.
MEZZO_API mezzo_status mezzo_step_micro(mezzo_step *step, uint64_t seed, uint64_t index);
// Everything after the micro batches: the step is taken, or skipped where a gradient is not finite, and gradients are
// zeroed. Does not wait. Errors: INVALID (micro batches are missing, mezzo_scaler_unscale was called on one of the
// optimizers), NUMERIC (mezzo_scaler_options.floor_patience, seen one step late; the step was taken).
MEZZO_API mezzo_status mezzo_step_finish(mezzo_step *step);
// Both: calls `fill` before each micro batch i, with index = first + i, to write the program's inputs, then finishes.
// An error of `fill` is returned; micro batches that ran before it are dropped. Other errors as those of the two calls;
// INVALID also where micro batches were run one by one before.
typedef mezzo_status (*mezzo_fill_fn)(void *user, mezzo_program *program, uint64_t index);
MEZZO_API mezzo_status mezzo_step_run(mezzo_step *step, uint64_t seed, uint64_t first, mezzo_fill_fn fill, void *user);
// Drops the micro batches of the step under way and their gradients.
MEZZO_API mezzo_status mezzo_step_drop(mezzo_step *step);
// As options.clip, from the next step on. INVALID: negative or not finite.
MEZZO_API mezzo_status mezzo_step_set_clip(mezzo_step *step, double clip);

typedef struct mezzo_step_report {
    int64_t index;        // which step of this object: 1 is the first; 0: none was finished
    double loss;          // mean over its micro batches of the program's loss
    double scale;         // the loss scale after it; 1 without a scaler
    bool found_inf;       // a gradient was not finite: that optimizer skipped the step
    mezzo_step_info info; // of the first optimizer
} mezzo_step_report;
// The newest step that can be read without waiting: on a device with a queue the one before the last, elsewhere the
// last. With `wait` the last. A report that was read before is given again.
MEZZO_API mezzo_status mezzo_step_read(mezzo_step *step, bool wait, mezzo_step_report *out);

#ifdef __cplusplus
}
#endif
#endif
