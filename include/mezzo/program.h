// Parameters, and programs: a graph after every pass, ready to run again and again.
// Ownership, threads and errors that a comment does not name: mezzo.h.
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

// Every parameter of the graph, initialised from `seed`. The caller owns *out; it borrows the device, the graph may be
// freed. Programs for other shapes or precisions share it: a graph's parameters are found by name and must have the
// same shape. Errors: INVALID (the graph's error, no parameters), MEMORY.
MEZZO_API mezzo_status mezzo_params_create(mezzo_device *device, const mezzo_graph *graph, uint64_t seed,
                                           mezzo_params **out);
// How the masters of parameters are kept that only matmuls of a BF16 program read (the others' are FP32 always, tied
// embeddings' too). SPLIT: as the BF16 weight and the FP32 number's other 16 bits: the same numbers as FP32 in 2 bytes
// less; a BF16 weight that lies exactly halfway is rounded away from zero instead of to even. STOCHASTIC: as the BF16
// weight alone, rounded up or down at random (by the seed, step, parameter and element), right on average: 4 bytes
// less. Reading and writing masters goes on in FP32.
typedef enum mezzo_master { MEZZO_MASTER_FP32, MEZZO_MASTER_SPLIT, MEZZO_MASTER_STOCHASTIC } mezzo_master;
MEZZO_API const char *mezzo_master_name(mezzo_master master); // "fp32", "split", "stochastic"
// Returns what `mezzo train` takes where nothing is said: SPLIT for BF16, FP32 for every other precision.
MEZZO_API mezzo_master mezzo_master_default(mezzo_precision precision);
MEZZO_API mezzo_master mezzo_params_master(const mezzo_params *params);
// mezzo_params_create with another storage of masters than FP32, for programs of these options. The autocast pass
// decides, overrides and regions included: a master is kept as asked where the program reads nothing but the
// parameter's BF16 copy, and in FP32 elsewhere. `options` is borrowed for the call; NULL only with MEZZO_MASTER_FP32.
// Other programs may share the parameters as long as they read no FP32 master that is not there (UNSUPPORTED then).
// Errors as those of mezzo_params_create and of the pass.
struct mezzo_program_options;
MEZZO_API mezzo_status mezzo_params_create_as(mezzo_device *device, const mezzo_graph *graph,
                                              const struct mezzo_program_options *options, uint64_t seed,
                                              mezzo_master master, mezzo_params **out);
MEZZO_API void mezzo_params_free(mezzo_params *params); // NULL is fine; after its programs and optimizers
// Parameters by index, 0 … count - 1, in the order of the graph.
MEZZO_API int mezzo_params_count(const mezzo_params *params);
MEZZO_API int64_t mezzo_params_elements(const mezzo_params *params); // of all parameters
MEZZO_API const char *mezzo_params_name(const mezzo_params *params, int index);
MEZZO_API int mezzo_params_rank(const mezzo_params *params, int index);
MEZZO_API const int64_t *mezzo_params_shape(const mezzo_params *params, int index); // owned by params
MEZZO_API int mezzo_params_find(const mezzo_params *params, const char *name);      // -1 when absent
// Host copies of one parameter's master or gradient, FP32, all its elements; they wait for the device. Writing a master
// also refreshes the low copies. Gradients are as backward left them: multiplied by the loss scale until unscaled.
// INVALID: no such index, or the gradient of a frozen parameter.
MEZZO_API mezzo_status mezzo_params_read(const mezzo_params *params, int index, float *out);
MEZZO_API mezzo_status mezzo_params_write(mezzo_params *params, int index, const float *values);
MEZZO_API mezzo_status mezzo_params_read_grad(const mezzo_params *params, int index, float *out);
MEZZO_API mezzo_status mezzo_params_write_grad(mezzo_params *params, int index, const float *values);
MEZZO_API mezzo_status mezzo_params_zero_grad(mezzo_params *params);

// --- programs ------------------------------------------------------------------------------------------------------
// Ops of modules whose path matches `pattern` ('*' any run of characters, '?' one) are decided by `precision`; the last
// matching override wins, and an override wins over a region.
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
    bool recompute;       // honour recompute segments
    bool recompute_light; // in them evaluate only activations and norms again, unless `recompute` asks for everything
    bool no_fuse;         // leave the fuse pass out (to compare)
    // Rows of logits that a large head computes at a time: 0 = all, or 8192 where the logits take more than 256 MiB; n
    // = at most n (rounded up to 32); -1 = all at once. Fewer rows take less memory and add a pass over the head's
    // gradient each.
    int64_t logits_rows;
    float loss_weight; // the loss's gradient is weight × scale; 0 means 1. 1/n for n accumulated micro batches
    // Gradients are zeroed before every run, so that a run writes them: activations then take the gradients' memory as
    // far as backward has not written these yet, and a run with gradients already there is INVALID.
    bool single_micro_batch;
    // The loss's gradient is also multiplied by the input "loss_share", FP32 [1], which is 1 until it is written. For
    // micro batches of which unlike numbers of targets count: n × its targets / the targets of all n.
    bool loss_share;
    // Linear layers' products, forward and backward, as if their operands were stored in such blocks along what is
    // summed over: emulated, to see what it does to a loss. NONE: as `precision` says. Where a region or an override to
    // another precision decides, nothing is emulated.
    mezzo_blocks emulate;
    // With emulate: gradients of activations are rounded up or down at random, with the probabilities that make the
    // mean right; and what a weight's gradient multiplies is turned first, each block by a Hadamard matrix with random
    // signs, which leaves the product as it is and makes large numbers rare. As NVFP4 is published for training.
    bool emulate_stochastic, emulate_hadamard;
} mezzo_program_options;

typedef struct mezzo_program mezzo_program;
typedef struct mezzo_scaler mezzo_scaler;

// Runs the passes and books all memory. The program borrows device and params; the graph may be freed. Zero options are
// FP32 training. Errors: INVALID (the graph's error; an override that matches nothing, or a module that only holds
// others; a parameter of another shape; no loss where backward is asked), UNSUPPORTED (no kernel: the message says why
// each refused), MEMORY (with what was asked and what each part takes).
MEZZO_API mezzo_status mezzo_program_create(const mezzo_graph *graph, mezzo_params *params,
                                            const mezzo_program_options *options, mezzo_program **out);
MEZZO_API void mezzo_program_free(mezzo_program *program); // NULL is fine

// Host → input (F32 or I32, as it was declared), host ← output. `bytes` must be the tensor's size; outputs are
// converted to FP32, or to FP64 where `bytes` is 8 an element (integers stay I32). Data is copied before write returns;
// an input keeps its value for later runs. read waits for the device. INVALID: no such name, another size (naming the
// shape); also, of an input that an embedding or a cross entropy reads, a row or class that there is none of, naming
// the element.
MEZZO_API mezzo_status mezzo_program_write(mezzo_program *program, const char *input, const void *data, size_t bytes);
MEZZO_API mezzo_status mezzo_program_read(mezzo_program *program, const char *output, void *data, size_t bytes);
// `shape` has room for MEZZO_MAX_RANK.
MEZZO_API mezzo_status mezzo_program_output_shape(const mezzo_program *program, const char *output, int *rank,
                                                  int64_t *shape);

// One micro step: forward, and backward adding into the parameters' gradients. `scaler` NULL means scale 1. Randomness
// is a pure function of (seed, step): the same pair gives the same dropout, on any thread count. Does not wait for a
// device that has a queue. Gradients add up until they are zeroed. INVALID: an input was never written, or the scaler
// is another device's.
MEZZO_API mezzo_status mezzo_program_run(mezzo_program *program, const mezzo_scaler *scaler, uint64_t seed,
                                         uint64_t step);

// The same, looking at every op's outputs: *found says whether a non-finite value appeared, and `where` (of `size`
// bytes) gets one line naming the first op, its module, phase, dtypes, the output's count of NaN and infinities and the
// inputs' ranges. Slow. Parameter gradients are left as a run leaves them.
MEZZO_API mezzo_status mezzo_program_check(mezzo_program *program, const mezzo_scaler *scaler, uint64_t seed,
                                           uint64_t step, bool *found, char *where, size_t size);

typedef struct mezzo_memory {           // bytes
    size_t masters, gradients, shadows; // of the parameters, shared by all programs
    size_t activations;                 // the plan's arena
    size_t activations_in_gradients;    // what activations take of the gradients' memory, with single_micro_batch
    size_t workspace;                   // kernels' scratch, inside one block beside the arena
    size_t inputs;
    size_t activations_unshared; // what the arena would be if nothing shared memory
} mezzo_memory;
MEZZO_API void mezzo_program_memory(const mezzo_program *program, mezzo_memory *out);
// The same before anything is allocated: runs the passes and the plan only. Errors as mezzo_program_create.
MEZZO_API mezzo_status mezzo_plan_memory(mezzo_device *device, const mezzo_graph *graph,
                                         const mezzo_program_options *options, mezzo_memory *out);

// --- explain -------------------------------------------------------------------------------------------------------
// One row an op, in order. Strings are borrowed from the call and valid during `visit` only.
typedef struct mezzo_explain_row {
    int index;
    const char *op, *module, *output;       // "linear", "h.0.attn.c_attn", the output value's name
    const char *phase;                      // "forward", "recompute", "backward"
    const char *inputs;                     // dtypes, comma-separated
    const char *shape;                      // "12x64x384"
    mezzo_dtype operand, gradient, storage; // products read; their gradient's products read; outputs are stored in
    mezzo_dtype compute, accumulate, reduce;
    const char *scale; // "-", or what one scale is for where operands and gradient have scales: "tensor", "row", …
    const char *rule;  // what decided
} mezzo_explain_row;
typedef void (*mezzo_explain_fn)(void *user, const mezzo_explain_row *row);
// Shows the graph after autocast (`after` = "autocast"), autodiff ("autodiff") or fuse ("fuse"), or as it runs
// ("chunk"). Needs no device. INVALID: the graph's error, options that no program takes, no such pass.
MEZZO_API mezzo_status mezzo_graph_explain(const mezzo_graph *graph, const mezzo_program_options *options,
                                           const char *after, mezzo_explain_fn visit, void *user);

// One row a parameter: how its master is kept where `master` is asked for, and the copy that products read.
typedef struct mezzo_explain_param {
    const char *name, *shape;
    mezzo_master master;
    mezzo_dtype copy; // of the low-precision copy; MEZZO_DTYPE_COUNT: it has none
    const char *rule; // why the master is kept so
} mezzo_explain_param;
typedef void (*mezzo_explain_param_fn)(void *user, const mezzo_explain_param *row);
MEZZO_API mezzo_status mezzo_graph_explain_params(const mezzo_graph *graph, const mezzo_program_options *options,
                                                  mezzo_master master, mezzo_explain_param_fn visit, void *user);

#ifdef __cplusplus
}
#endif
#endif
