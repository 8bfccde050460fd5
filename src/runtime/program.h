// Code that runs a program, samples its values or locates its first bad one sees it from the inside.
#ifndef MZ_PROGRAM_H
#define MZ_PROGRAM_H

#include "runtime/params.h"
#include "graph/graph.h"
#include "backend/inspect.h"

// A call adds to some parameter gradients, and may be the first in the program to write them.
enum { MZ_USE_ADDS = 1, MZ_USE_FIRST = 2 };

typedef struct mz_compiled {
    mezzo_graph *graph;
    mz_plan plan;
    bool sketch;           // for its memory alone
    mz_call *calls;        // one a node that runs; of a sketch the last two: mz_compiled_call
    mz_prepared *prepared; // per call: its kernel, ready
    mz_prepared *writing;  // per call that adds to gradients: the same, ready to write them; kernel NULL: it cannot
    int *node;             // per call: its node
    unsigned char *use;    // per call: how it uses parameter gradients
    bool overwrites;       // every kernel that adds to gradients can also write them
    bool covers;           // calls write each gradient whole, so the first run can overwrite
    bool gathers;          // some calls gather parameters from shards
    size_t n_calls;
    size_t workspace;      // bytes: the largest of all kernels on stream 0
    size_t side_workspace; // bytes: the largest of all kernels on stream 1
    mz_stream_plan placed; // by node: its stream; empty: one stream
    signed char *stream;   // per call: the stream it runs on, 0 or 1; NULL: one stream
} mz_compiled;
void mz_compiled_free(mz_compiled *c);

static inline mz_call *mz_compiled_call(const mz_compiled *c, size_t i) {
    return &c->calls[c->sketch ? i % 2 : i];
}

// A run captured as a device's graph. Runs of kind ADDS add to gradients; WRITES is the first run after they were
// zeroed; DEFERRED is the same with deferred calls on another stream. Each exists with and without `post_gradient`.
enum { MZ_RUN_ADDS, MZ_RUN_WRITES, MZ_RUN_DEFERRED, MZ_RUN_KINDS };
typedef struct mz_recording {
    void *graph;
    void *scale;                          // the address its calls read
    uint64_t deferred[MZ_DEFERRED_LISTS]; // mz_deferred.id of the lists in it; 0: none
    bool seen;                            // it has run once, which loaded its kernels, so it can be captured
} mz_recording;

// A monitor samples values while the program runs: an `inspect` after one of its calls.
typedef struct mz_monitor {
    size_t after;
    mz_call call;
    mz_prepared prepared;
} mz_monitor;

typedef struct mz_monitored { // one sampled tensor
    const char *op, *module, *phase;
    mezzo_dtype dtype;
    bool loss;
    mz_inspection values; // of the last run
} mz_monitored;

typedef struct mz_input_rule { // inputs.c
    const char *op;            // reads the input's integers as indices of rows or classes; NULL: none
    int64_t below;             // the number of rows or classes
    bool ignores;              // `ignored` is allowed too
    int32_t ignored;
    bool written;
} mz_input_rule;

#define MZ_INPUTS_AT 64 // bytes: inputs lie after the random state

// A program with a hook runs call by call and calls the hook after each. Tests use it to put faults in.
typedef mezzo_status (*mz_program_hook)(void *user, mezzo_program *program, size_t call);

struct mezzo_program {
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program_options options; // without the overrides
    mz_compiled c;
    void *arena, *workspace;
    char *inputs;                  // device: the random state, then every input; one copy brings both
    char *host_inputs;             // the next run copies them to the device
    bool written;                  // inputs have changed since the last run
    mz_input_rule *rules;          // by value
    bool ready;                    // every input was written
    char *state;                   // device: inputs that runs write; NULL: another program owns them
    mz_rng_state *rng;             // device: the beginning of `inputs`
    float *one;                    // device: the scale of a run without a scaler
    void **address;                // per value
    const mz_fused_kernel **pairs; // per call: the kernel that runs it and the next; NULL: none
    bool *silent;                  // per parameter: no call writes its gradient, so the first run zeroes it
    mz_recording recordings[2 * MZ_RUN_KINDS];
    mz_call_list post_gradient;  // calls that wait for gradients, in the order in which gradients are finished
    size_t *post_gradient_after; // per call of `post_gradient`: it follows this call of the program
    bool finishing;              // the run under way is a step's last: `post_gradient` runs
    void *staging;               // host: for outputs that need converting; grown on first use
    size_t staging_bytes;
    mz_monitor *monitors; // in order of `after`
    size_t n_monitors;
    mz_monitored *monitored;   // host, one for each tensor of each monitor
    mz_inspection *inspected;  // device, likewise
    mz_inspection *inspection; // device [MZ_MAX_IN]: mz_program_locate's
    size_t n_monitored;
    uint64_t scales_version; // the calls' attributes belong to this version of the table
    mz_program_hook hook;    // NULL: none
    void *hook_user;
    bool hook_keeps_pairs; // the hook sees both calls of a pair after their one kernel; else they run apart
};

// program.c
void mz_program_bind(mezzo_program *program);                         // calls get the addresses of their values
mz_tensor mz_program_tensor(const mezzo_program *program, int value); // as it is stored; -1: absent
// quantized.c
mezzo_status mz_program_bind_entry(mezzo_program *program, int value); // gives a value of kind ENTRY its address
// Gives addresses, and memory where they have none, to values of kind QUANTIZED, whose entries have addresses.
mezzo_status mz_program_bind_quantized(mezzo_program *program);
// Before a run: makes each quantize measure where its entry has no history, and to record where the program trains.
mezzo_status mz_program_follow_scales(mezzo_program *program);
// run.c
// *fresh: a run that begins now writes gradients instead of adding to them. INVALID: it must write, but gradients
// exist.
mezzo_status mz_program_fresh(const mezzo_program *program, bool *fresh);
mezzo_status mz_program_run_call(mezzo_program *program, size_t call, bool fresh); // runs one call and the hook
void mz_program_wrote_gradients(mezzo_program *program); // a caller of mz_program_run_call says that gradients exist
mezzo_status mz_program_prepare(mezzo_program *program, const mezzo_scaler *scaler, uint64_t seed, uint64_t step);
// fused_calls.c
// Of neighbours that one kernel may run, the second's results must not lie in the first's memory.
void mz_find_neighbour(const mezzo_device *device, mz_compiled *c, size_t i); // of calls i and i + 1
mezzo_status mz_program_find_fused(mezzo_program *program);                   // chooses the kernels
// scattered.c
// The parameter whose whole gradient a value is; -1: none, -2: the value is a slice of a gradient.
int mz_gradient_of(const mezzo_graph *graph, int value);
// Plans a program with scattered gradients; lends: the memory of shards is free before their sums.
mezzo_status mz_plan_scattered(const mezzo_device *device, const mezzo_params *params, bool lends,
                               const mz_stream_plan *streams, mz_compiled *c);
// passes.c
// The largest number of rows of a linear layer, to compare with mz_backend.few_rows.
int64_t mz_program_rows(const mezzo_graph *g);
// A program of few rows keeps an activation's result where the product that would recompute it sums few numbers.
bool mz_keeps_activations(const mz_backend *b, const mezzo_graph *g);
// choose.c
void mz_call_of_node(const mezzo_device *device, const mezzo_graph *g, const mz_node *n, mz_call *call);
// program.c
// mezzo_plan_memory for any format of masters and for cut parameters; cut NULL: not cut.
mezzo_status mz_plan_memory(mezzo_device *device, const mezzo_graph *graph, const mezzo_program_options *options,
                            mezzo_master master, const mz_cut *cut, mezzo_memory *out);
// inputs.c: makes the rules of a graph's inputs, indexed by value [n]; checks and marks an input that is written; and
// refuses (INVALID) to run with an input that was never written or a scaler of another device.
mezzo_status mz_input_rules(const mezzo_graph *graph, size_t n, mz_input_rule **out);
mezzo_status mz_input_take(mz_input_rule *rule, const char *name, const void *data, size_t n);
mezzo_status mz_program_ready(mezzo_program *program, const mezzo_scaler *scaler);
int mz_value_root(const mezzo_graph *g, int value); // the value whose memory holds this one

// Adds a call to the last run of a step, on MZ_STREAM_COLLECTIVE where the device captures. It runs after call `after`,
// the last writer of its bytes of the gradient buffer (mz_program_last_writer). Callers add in order of `after`.
mezzo_status mz_program_add_after(mezzo_program *program, size_t after, const mz_prepared *prepared,
                                  const mz_call *call);
// With scattered gradients `post_gradient` follows every run. mz_program_gradient: a parameter's whole gradient, NULL
// where no call writes it. mz_program_region_writer: the last call that writes into a region.
float *mz_program_gradient(const mezzo_program *program, int index);
mezzo_status mz_program_region_writer(const mezzo_program *program, int region, size_t *after);
size_t mz_program_last_writer(const mezzo_program *program, const void *from, const void *to);
// mezzo_program_run for the last run of a step.
mezzo_status mz_program_run_last(mezzo_program *program, const mezzo_scaler *scaler, uint64_t seed, uint64_t step);

// --- monitor.c: samples values without waiting ---------------------------------------------------------------------
typedef struct mz_monitor_options {
    mz_opt_state *state; // device; its `bad` gets MZ_BAD_LOSS and MZ_BAD_ACTIVATION
    int activations;     // number of sampled forward values that backward still needs, at most MZ_MAX_IN - 1
    int64_t sample;      // number of elements of each; 0 = all
    float limit;         // magnitudes above it are bad; 0 = none
    int gradients;       // number of sampled FP16 values of backward, for their underflow only
} mz_monitor_options;
mezzo_status mz_program_monitor(mezzo_program *program, const mz_monitor_options *options);
mezzo_status mz_program_read_monitored(mezzo_program *program); // fills monitored[].values; waits
void mz_program_unmonitor(mezzo_program *program);

// --- locate.c: the first bad value; checks everything, and waits ---------------------------------------------------
typedef struct mz_located_tensor { // one tensor of an op
    char slot[16];
    mezzo_dtype dtype;
    mz_inspection values;
} mz_located_tensor;
typedef struct mz_located {
    bool found;
    // The name of a parameter or input that was bad before any op wrote it. NULL: an op's output is bad.
    const char *source;
    const char *op, *module, *phase, *rule; // the op that made it or read it first; rule: the reason for its dtypes
    bool loss;                              // it is the loss
    bool parameter;                         // the source is a parameter
    int64_t sample;                         // the batch's sample with the first bad number, from 0; -1: unknown
    mezzo_dtype compute;
    mz_located_tensor bad; // the output, or the source as the op reads it
    mz_located_tensor in[MZ_MAX_IN];
    int n_in;
} mz_located;
// Counts and ranges of n <= MZ_MAX_IN tensors of the device; those that are absent or hold integers count nothing, and
// 8 bits have no range.
mezzo_status mz_program_inspect(mezzo_program *program, const mz_tensor *tensors, int n, float limit,
                                mz_inspection *out);
// samples.c: the sample that has the first bad number of a call's outputs or, where these have none or are in no order
// of samples, inputs; -1: not known. limit: as below.
mezzo_status mz_program_sample(mezzo_program *program, size_t call, float limit, int64_t *sample);
// One micro step, call by call, up to the first call with a bad value: NaN, infinite, or in forward above `limit` where
// that is not 0. Parameter gradients are left as far as it came.
mezzo_status mz_program_locate(mezzo_program *program, const mezzo_scaler *scaler, uint64_t seed, uint64_t step,
                               float limit, mz_located *out);
// Appended to `out` of `size` bytes: "3 NaN of 64"; "first in linear of h.0.mlp (forward), sample 2: output y (fp16)
// has 3 NaN of 64; inputs …". sample: from 1; 0: not known.
void mz_inspection_describe(const mz_inspection *values, char *out, size_t size);
void mz_located_describe(const mz_located *located, int64_t sample, char *out, size_t size);
bool mz_located_low(const mz_located *located); // computed or stored in fewer bits than FP32

// A forward program's numbers become a result only here: fails with NUMERIC where a number is not finite. The program
// then runs again on the inputs that it has, and the error names the first op with a bad value and a way out.
// read_finite: an FP32 output of `count` numbers. blame: for a caller that found one; `what`: "the loss".
mezzo_status mz_program_read_finite(mezzo_program *program, const char *output, float *out, size_t count);
mezzo_status mz_program_blame(mezzo_program *program, const char *what);

#endif
