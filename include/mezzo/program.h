// Parameters, and programs: a program is a graph after all passes, ready to run repeatedly. Ownership, threads and
// errors that a comment does not name: mezzo.h.
#ifndef MEZZO_PROGRAM_H
#define MEZZO_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "mezzo/device.h"
#include "mezzo/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- parameters ----------------------------------------------------------------------------------------------------
// FP32 masters, their FP32 gradients and the low-precision copies that programs read, on one device.
typedef struct mezzo_params mezzo_params;

// Makes every parameter of the graph, initialized from `seed`. The caller owns *out; it borrows the device, the graph
// may be freed. Programs for other shapes or precisions share it: a graph's parameters are found by name and must have
// the same shape. Errors: INVALID (the graph's error, no parameters), MEMORY.
MEZZO_API mezzo_status mezzo_params_create(mezzo_device *device, const mezzo_graph *graph, uint64_t seed,
                                           mezzo_params **out);
// Says how the masters of parameters are stored that only matmuls of a BF16 program read (others are always FP32, tied
// embeddings included). SPLIT: as the BF16 weight and the FP32 number's other 16 bits: the same numbers as FP32 in 2
// bytes less; a BF16 weight that is exactly halfway is rounded away from zero instead of to even. STOCHASTIC: as the
// BF16 weight alone, rounded stochastically (by the seed, step, parameter and element), right on average: 4 bytes less.
// Masters are still read and written as FP32.
typedef enum mezzo_master { MEZZO_MASTER_FP32, MEZZO_MASTER_SPLIT, MEZZO_MASTER_STOCHASTIC } mezzo_master;
MEZZO_API const char *mezzo_master_name(mezzo_master master); // "fp32", "split", "stochastic"
// Returns the default of `mezzo train`: SPLIT for BF16, FP32 for every other precision.
MEZZO_API mezzo_master mezzo_master_default(mezzo_precision precision);
MEZZO_API mezzo_master mezzo_params_master(const mezzo_params *params);
// Makes parameters as mezzo_params_create does, with another storage of masters than FP32, for programs of these
// options. The autocast pass decides, overrides and regions included: a master is stored as requested where the program
// reads nothing but the parameter's BF16 copy, and in FP32 elsewhere. `options` is borrowed for the call; NULL only
// with MEZZO_MASTER_FP32. Other programs may share the parameters as long as they read no FP32 master that does not
// exist (otherwise UNSUPPORTED). Errors as those of mezzo_params_create and of the pass.
struct mezzo_program_options;
MEZZO_API mezzo_status mezzo_params_create_as(mezzo_device *device, const mezzo_graph *graph,
                                              const struct mezzo_program_options *options, uint64_t seed,
                                              mezzo_master master, mezzo_params **out);
MEZZO_API void mezzo_params_free(mezzo_params *params); // NULL is allowed; free its programs and optimizers first
// Parameters have indices 0 … count - 1, in the order of the graph.
MEZZO_API int mezzo_params_count(const mezzo_params *params);
MEZZO_API int64_t mezzo_params_elements(const mezzo_params *params); // of all parameters
MEZZO_API const char *mezzo_params_name(const mezzo_params *params, int index);
MEZZO_API int mezzo_params_rank(const mezzo_params *params, int index);
MEZZO_API const int64_t *mezzo_params_shape(const mezzo_params *params, int index); // owned by params
MEZZO_API int mezzo_params_find(const mezzo_params *params, const char *name);      // -1 when absent
// Copy one parameter's master or gradient, FP32, all its elements, between host and device; they wait for the device.
// Writing a master also refreshes the low copies. Gradients are as backward wrote them: multiplied by the loss scale
// until unscaled. INVALID: no such index, or the gradient of a frozen parameter.
MEZZO_API mezzo_status mezzo_params_read(const mezzo_params *params, int index, float *out);
MEZZO_API mezzo_status mezzo_params_write(mezzo_params *params, int index, const float *values);
MEZZO_API mezzo_status mezzo_params_read_grad(const mezzo_params *params, int index, float *out);
MEZZO_API mezzo_status mezzo_params_write_grad(mezzo_params *params, int index, const float *values);
MEZZO_API mezzo_status mezzo_params_zero_grad(mezzo_params *params);

// --- programs ------------------------------------------------------------------------------------------------------
// Sets `precision` for ops of modules whose path matches `pattern` ('*' any run of characters, '?' one); the last
// matching override applies, and an override precedes a region.
typedef struct mezzo_override {
    const char *pattern;
    mezzo_precision precision;
} mezzo_override;

typedef enum mezzo_residual { MEZZO_RESIDUAL_WIDEST, MEZZO_RESIDUAL_LOW } mezzo_residual;

typedef struct mezzo_program_options {
    mezzo_precision precision; // FP32, TF32, BF16, FP16 or FP8 (FP64 on ref)
    mezzo_residual residual;   // WIDEST (as torch.amp) or LOW (embeddings leave the low format, so sums stay in it)
    const mezzo_override *overrides; // borrowed for the call
    int n_overrides;
    bool forward_only;    // no backward; dropout is the identity
    bool recompute;       // follow recompute segments
    bool recompute_light; // evaluate again only activations and norms of the segments, unless `recompute` is set, too
    bool no_fuse;         // omit the fuse pass (to compare)
    // Rows of logits that a large head computes at a time: 0 = all, or 8192 where the logits take more than 256 MiB; n
    // = at most n (rounded up to 32); -1 = all at once. Fewer rows need less memory, but each part adds a pass over the
    // head's gradient.
    int64_t logits_rows;
    float loss_weight; // the loss's gradient is weight × scale; 0 means 1. With n accumulated micro batches it is 1/n
    // Gradients are zeroed before every run, so that a run writes them: activations then use the gradients' memory as
    // long as backward has not written it, and a run with gradients from an earlier run is INVALID.
    bool single_micro_batch;
    // The loss's gradient is also multiplied by the input "loss_share", FP32 [1], which is 1 until it is written. It
    // serves micro batches with different numbers of targets that count: n × its targets / the targets of all n.
    bool loss_share;
    // Linear layers' products, forward and backward, run as if their operands were stored in such blocks along the
    // summed dimension, which shows the effect on a loss. NONE: as `precision` says. Where a region or an override to
    // another precision decides, nothing is emulated.
    mezzo_blocks emulate;
    // With emulate: gradients of activations are rounded stochastically; and both operands of a weight's gradient are
    // first multiplied, block by block, by a Hadamard matrix with random signs, which leaves the product unchanged and
    // makes large numbers rare, as in the published training with NVFP4.
    bool emulate_stochastic, emulate_hadamard;
} mezzo_program_options;

typedef struct mezzo_program mezzo_program;
typedef struct mezzo_scaler mezzo_scaler;

// Runs the passes and allocates all memory. The program borrows device and params; the graph may be freed. Zero options
// mean FP32 training. Errors: INVALID (the graph's error; an override that matches nothing, or a module that only
// contains others; a parameter of another shape; no loss although backward is requested), UNSUPPORTED (no kernel: the
// message says why each refused), MEMORY (with the requested bytes and those of each part).
MEZZO_API mezzo_status mezzo_program_create(const mezzo_graph *graph, mezzo_params *params,
                                            const mezzo_program_options *options, mezzo_program **out);
MEZZO_API void mezzo_program_free(mezzo_program *program); // NULL is allowed

// Copy host data to an input (F32 or I32, as it was declared), or an output to the host. `bytes` must be the tensor's
// size; outputs are converted to FP32, or to FP64 where `bytes` is 8 for each element (integers stay I32). Data is
// copied before write returns; an input keeps its value for later runs. read waits for the device. INVALID: no such
// name, another size (naming the shape); also, for an input that an embedding or a cross entropy reads, a row or class
// that does not exist, naming the element.
MEZZO_API mezzo_status mezzo_program_write(mezzo_program *program, const char *input, const void *data, size_t bytes);
MEZZO_API mezzo_status mezzo_program_read(mezzo_program *program, const char *output, void *data, size_t bytes);
// Gets the shape of an output; `shape` has MEZZO_MAX_RANK elements.
MEZZO_API mezzo_status mezzo_program_output_shape(const mezzo_program *program, const char *output, int *rank,
                                                  int64_t *shape);

// Runs one micro step: forward, and backward, which adds to the parameters' gradients. `scaler` NULL means scale 1.
// Randomness is a pure function of (seed, step): equal pairs give the same dropout, on any number of threads. Does not
// wait for a device that has a queue. Gradients add up until they are zeroed. INVALID: an input was never written, or
// the scaler is another device's.
MEZZO_API mezzo_status mezzo_program_run(mezzo_program *program, const mezzo_scaler *scaler, uint64_t seed,
                                         uint64_t step);

// Moves the parameters of mezzo_graph_track by the program's last run, for loops without mezzo_step. It waits for the
// device, and does nothing where the graph has none.
MEZZO_API mezzo_status mezzo_program_track(mezzo_program *program);

// Runs one micro step and inspects every op's outputs: *found says whether a non-finite value appeared, and `where` (of
// `size` bytes) gets one line naming the first op, its module, phase, dtypes, the output's count of NaN and infinities
// and the inputs' ranges. Slow. Parameter gradients are as after mezzo_program_run.
MEZZO_API mezzo_status mezzo_program_check(mezzo_program *program, const mezzo_scaler *scaler, uint64_t seed,
                                           uint64_t step, bool *found, char *where, size_t size);

typedef struct mezzo_memory {           // bytes
    size_t masters, gradients, shadows; // of the parameters, shared by all programs
    size_t activations;                 // the plan's arena
    size_t activations_in_gradients;    // bytes of activations within the gradients' memory, with single_micro_batch
    size_t workspace;                   // kernels' workspace, one block beside the arena
    size_t inputs;
    size_t activations_unshared; // the arena's size if no two values shared memory
} mezzo_memory;
MEZZO_API void mezzo_program_memory(const mezzo_program *program, mezzo_memory *out);
// Plans a program's memory without allocating it: runs the passes and the plan only. Errors as mezzo_program_create.
MEZZO_API mezzo_status mezzo_plan_memory(mezzo_device *device, const mezzo_graph *graph,
                                         const mezzo_program_options *options, mezzo_memory *out);

// --- explain -------------------------------------------------------------------------------------------------------
// Describes one op; rows come in order. Strings are valid during `visit` only.
typedef struct mezzo_explain_row {
    int index;
    const char *op, *module, *output;       // "linear", "h.0.attn.c_attn", the output value's name
    const char *phase;                      // "forward", "recompute", "backward"
    const char *inputs;                     // dtypes, comma-separated
    const char *shape;                      // "12x64x384"
    mezzo_dtype operand, gradient, storage; // formats of the operands of its product, of those of its gradient's
                                            // products, and of its stored outputs
    mezzo_dtype compute, accumulate, reduce;
    const char *scale; // "-", or the part that one scale covers where operands and gradient have scales: "tensor",
                       // "row", …
    const char *rule;  // what decided the formats
} mezzo_explain_row;
typedef void (*mezzo_explain_fn)(void *user, const mezzo_explain_row *row);
// Shows the graph after autocast (`after` = "autocast"), autodiff ("autodiff") or fuse ("fuse"), or in its final form
// ("chunk"). Needs no device. INVALID: the graph's error, options that no program takes, no such pass.
MEZZO_API mezzo_status mezzo_graph_explain(const mezzo_graph *graph, const mezzo_program_options *options,
                                           const char *after, mezzo_explain_fn visit, void *user);

// Describes one parameter: how its master is stored if `master` is requested, and the copy that products read.
typedef struct mezzo_explain_param {
    const char *name, *shape;
    mezzo_master master;
    mezzo_dtype copy; // format of the low-precision copy; MEZZO_DTYPE_COUNT: it has none
    const char *rule; // the reason for the master's storage
} mezzo_explain_param;
typedef void (*mezzo_explain_param_fn)(void *user, const mezzo_explain_param *row);
MEZZO_API mezzo_status mezzo_graph_explain_params(const mezzo_graph *graph, const mezzo_program_options *options,
                                                  mezzo_master master, mezzo_explain_param_fn visit, void *user);

#ifdef __cplusplus
}
#endif
#endif
