// One training step as an object: micro batches, then unscale, clip, optimizer step, scaler update and zeroed
// gradients. Its work is listed once, when it is made; a device that captures launches it as one graph. The single
// calls of optimizer.h do the same one by one.
//
// Ownership: the step borrows program, optimizers and scaler, which must outlive it. Threads and other errors: mezzo.h.
#ifndef MEZZO_STEP_H
#define MEZZO_STEP_H

#include "mezzo/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- frozen parameters ---------------------------------------------------------------------------------------------
// Freezes the parameters that match `patterns`, separated by commas: "wte,h.0.*" ('*' any run of characters, '?' one; a
// module's name means all of its parameters; "" matches none). Programs of this graph compute no gradient that only
// they need, and mezzo_params made from it keep no gradient, no moments and no update for them; their weights stay in
// checkpoints. Call it before mezzo_params_create, and on every training graph of these parameters. INVALID when a
// pattern matches nothing.
MEZZO_API mezzo_status mezzo_graph_freeze(mezzo_graph *graph, const char *patterns);
// Returns whether a parameter is frozen. Reading or writing its gradient is then INVALID.
MEZZO_API bool mezzo_params_frozen(const mezzo_params *params, int index);

// --- the step ------------------------------------------------------------------------------------------------------
typedef struct mezzo_step mezzo_step;

typedef struct mezzo_step_options {
    int64_t micro_batches; // micro batches of one step; 0 means 1. For a mean, the program's loss_weight should be
                           // 1/micro_batches
    double clip;           // largest L2 norm of each optimizer's gradients, unscaled; 0 = gradients are not clipped
} mezzo_step_options;

// Makes a step. `program` is a training program and reads the parameters that `optimizers` own; each parameter has at
// most one owner. scaler: NULL trains without loss scaling; non-finite gradients still skip the step. options: NULL =
// {0}. The caller owns *out and frees it before the objects that it borrows. Errors: INVALID (a forward-only program,
// parameters or a scaler of another device or program, no or too many optimizers, a parameter with two owners, a clip
// that is negative or not finite), MEMORY.
MEZZO_API mezzo_status mezzo_step_create(mezzo_program *program, mezzo_optimizer *const *optimizers, int n_optimizers,
                                         mezzo_scaler *scaler, const mezzo_step_options *options, mezzo_step **out);
MEZZO_API void mezzo_step_free(mezzo_step *step); // NULL is allowed

// Runs forward and backward of the next micro batch, from inputs that mezzo_program_write has written. (seed, index)
// decide dropout, as in mezzo_program_run. Does not wait for the device. INVALID when all micro batches of the step
// have run.
MEZZO_API mezzo_status mezzo_step_micro(mezzo_step *step, uint64_t seed, uint64_t index);
// Does everything after the micro batches: the step is taken, or skipped where a gradient is not finite, and gradients
// are zeroed. Does not wait. Errors: INVALID (micro batches are missing, mezzo_scaler_unscale was called on one of the
// optimizers), NUMERIC (mezzo_scaler_options.floor_patience, noticed one step late; the step was taken).
MEZZO_API mezzo_status mezzo_step_finish(mezzo_step *step);
// Runs a whole step: calls `fill` before each micro batch i, with index = first + i, to write the program's inputs,
// then finishes. An error of `fill` is returned; the step's earlier micro batches are dropped. Other errors as those of
// the two calls; INVALID also where micro batches of this step ran one by one before.
typedef mezzo_status (*mezzo_fill_fn)(void *user, mezzo_program *program, uint64_t index);
MEZZO_API mezzo_status mezzo_step_run(mezzo_step *step, uint64_t seed, uint64_t first, mezzo_fill_fn fill, void *user);
// Drops the micro batches of the present step and their gradients.
MEZZO_API mezzo_status mezzo_step_drop(mezzo_step *step);
// Sets options.clip from the next step on. INVALID: negative or not finite.
MEZZO_API mezzo_status mezzo_step_set_clip(mezzo_step *step, double clip);

typedef struct mezzo_step_report {
    int64_t index;        // number of the step of this object: 1 is the first; 0: none was finished
    double loss;          // mean of the program's loss over its micro batches
    double scale;         // the loss scale after it; 1 without a scaler
    bool found_inf;       // a gradient was not finite: that optimizer skipped the step
    mezzo_step_info info; // of the first optimizer
} mezzo_step_report;
// Reads the newest step that can be read without waiting: on a device with a queue the one before the last, elsewhere
// the last. With `wait` it reads the last. A report that was read before is given again.
MEZZO_API mezzo_status mezzo_step_read(mezzo_step *step, bool wait, mezzo_step_report *out);

#ifdef __cplusplus
}
#endif
#endif
