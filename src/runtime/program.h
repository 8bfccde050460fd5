// Declares a program's members, for code that runs it, samples its values or locates its first bad value.
#ifndef MZ_PROGRAM_H
#define MZ_PROGRAM_H

#include "runtime/params.h"
#include "graph/graph.h"
#include "backend/inspect.h"

// Says that a call adds to some parameter gradients, and that it may be the first in the program to write them.
enum { MZ_USE_ADDS = 1, MZ_USE_FIRST = 2 };

typedef struct mz_compiled {
    mezzo_graph *graph;
    mz_plan plan;
    bool sketch;           // made to count its memory alone
    mz_call *calls;        // one for each node that runs; a sketch has the last two: mz_compiled_call
    mz_prepared *prepared; // per call: its prepared kernel
    mz_prepared *writing;  // per call that adds to gradients: the same kernel, prepared to write them; kernel NULL: it
                           // cannot
    int *node;             // per call: its node
    unsigned char *use;    // per call: how it uses parameter gradients
    bool overwrites;       // every kernel that adds to gradients can also write them
    bool covers;           // calls write each gradient whole, so that the first run can overwrite
    bool gathers;          // some calls gather parameters from shards
    bool exchanges;        // some exchange rows of experts with other ranks
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

// A run that was captured as a device's graph. Runs of kind ADDS add to gradients; WRITES is the first run after
// gradients were zeroed; DEFERRED is the same with deferred calls on another stream. Each exists with and without
// `post_gradient`.
enum { MZ_RUN_ADDS, MZ_RUN_WRITES, MZ_RUN_DEFERRED, MZ_RUN_KINDS };
typedef struct mz_recording {
    void *graph;
    void *scale;                          // the address of the loss scale that its calls read
    uint64_t deferred[MZ_DEFERRED_LISTS]; // mz_deferred.id of the lists that it contains; 0: none
    bool seen;                            // it has run once, which loaded its kernels, so that it can be captured
} mz_recording;

// Samples values while the program runs: an `inspect` after one of its calls.
typedef struct mz_monitor {
    size_t after;
    mz_call call;
    mz_prepared prepared;
} mz_monitor;

typedef struct mz_monitored { // one sampled tensor
    const char *op, *module, *phase;
    mezzo_dtype dtype;
    bool loss;
    mz_inspection values; // counts and range in the last run
} mz_monitored;

typedef struct mz_input_rule { // what an input may hold (inputs.c)
    const char *op;            // the op that reads the input's integers as indices of rows or classes; NULL: none
    int64_t below;             // the number of rows or classes
    bool ignores;              // `ignored` is allowed, too
    int32_t ignored;
    bool written;
} mz_input_rule;

#define MZ_INPUTS_AT 64 // bytes: inputs lie after the random state

// Is called after each call of a program, which then runs call by call. Tests inject faults with it.
typedef mezzo_status (*mz_program_hook)(void *user, mezzo_program *program, size_t call);

struct mezzo_program {
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program_options options; // without the overrides
    mz_compiled c;
    void *arena, *workspace;
    char *inputs;                  // on the device: the random state, then every input; one copy transfers both
    char *host_inputs;             // the next run copies them to the device
    mz_upload *upload;             // owns host_inputs; NULL: the program does
    bool written;                  // inputs have changed since the last run
    mz_input_rule *rules;          // per value
    bool ready;                    // every input was written
    char *state;                   // on the device: inputs that runs write; NULL: another program owns them
    mz_rng_state *rng;             // on the device: the beginning of `inputs`
    float *one;                    // on the device: the scale of a run without a scaler
    void **address;                // per value: its device address
    const mz_fused_kernel **pairs; // per call: the kernel that runs it and the next, or two; NULL: none
    bool *silent;                  // per parameter: no call writes its gradient, so the first run zeroes it
    mz_recording recordings[2 * MZ_RUN_KINDS];
    mz_call_list post_gradient;  // calls that wait for gradients, in the order in which gradients are finished
    size_t *post_gradient_after; // per call of `post_gradient`: the call of the program that it follows
    bool finishing;              // the present run is a step's last one, in which `post_gradient` runs
    void *staging;               // on the host: for outputs that need converting; it grows when used
    size_t staging_bytes;
    mz_monitor *monitors; // in order of `after`
    size_t n_monitors;
    mz_monitored *monitored;   // on the host, one for each tensor of each monitor
    mz_inspection *inspected;  // on the device, one for each tensor of each monitor
    mz_inspection *inspection; // on the device [MZ_MAX_IN]: for mz_program_locate
    size_t n_monitored;
    uint64_t scales_version; // the version of the table that the calls' attributes belong to
    mz_program_hook hook;    // NULL: none
    void *hook_user;
    bool hook_keeps_pairs; // the hook sees both calls of a pair after their one kernel; else they run separately
};

// program.c
void mz_program_bind(mezzo_program *program);                         // gives calls the addresses of their values
mz_tensor mz_program_tensor(const mezzo_program *program, int value); // the tensor as it is stored; -1: absent
// quantized.c
mezzo_status mz_program_bind_entry(mezzo_program *program, int value); // gives a value of kind ENTRY its address
// Gives addresses, and memory where they have none, to values of kind QUANTIZED, whose entries have addresses.
mezzo_status mz_program_bind_quantized(mezzo_program *program);
// Makes, before a run, each quantize measure where its entry has no history, and record where the program trains.
mezzo_status mz_program_follow_scales(mezzo_program *program);
// Finds, for run.c, whether a run that begins now writes gradients instead of adding to them. INVALID: it must write,
// but gradients exist.
mezzo_status mz_program_fresh(const mezzo_program *program, bool *fresh);
mezzo_status mz_program_run_call(mezzo_program *program, size_t call, bool fresh); // runs one call, and the hook
void mz_program_wrote_gradients(mezzo_program *program); // called after mz_program_run_call: gradients exist now
// Waits until the host may change the memory of inputs.
mezzo_status mz_program_open_inputs(mezzo_program *program);
// Returns the host's memory of an input, which the caller may fill after mz_program_open_inputs and before it passes it
// to mezzo_program_write; NULL: there is no such input of so many bytes.
void *mz_program_host_input(const mezzo_program *program, const char *input, size_t bytes);
mezzo_status mz_program_prepare(mezzo_program *program, const mezzo_scaler *scaler, uint64_t seed, uint64_t step);
// Declares fused_calls.c. Of neighbours that one kernel may run, the second's results must not lie in the first's
// memory.
void mz_find_neighbour(const mezzo_device *device, mz_compiled *c, size_t i); // plans for calls i and i + 1
size_t mz_program_last_fused(const mezzo_program *program, size_t i); // the last call that i's kernel runs; i: it alone
mezzo_status mz_program_find_fused(mezzo_program *program);           // chooses the kernels of pairs
// Returns the parameter whose whole gradient a value is (scattered.c); -1: none, -2: the value is a slice of a
// gradient.
int mz_gradient_of(const mezzo_graph *graph, int value);
// Plans a program with scattered gradients. lends: other values may use the memory of shards before gradients are
// summed.
mezzo_status mz_plan_scattered(const mezzo_device *device, const mezzo_params *params, bool lends,
                               const mz_stream_plan *streams, mz_compiled *c);
// Returns the largest number of rows of a linear layer, to compare with mz_backend.few_rows (passes.c).
int64_t mz_program_rows(const mezzo_graph *g);
// Returns whether a program of few rows keeps activations' results, where the product that would recompute them sums
// few numbers.
bool mz_keeps_activations(const mz_backend *b, const mezzo_graph *g);
// choose.c
void mz_call_of_node(const mezzo_device *device, const mezzo_graph *g, const mz_node *n, mz_call *call);
// Plans memory as mezzo_plan_memory does, for any format of masters and for divided parameters (program.c); cut NULL:
// not divided.
mezzo_status mz_plan_memory(mezzo_device *device, const mezzo_graph *graph, const mezzo_program_options *options,
                            mezzo_master master, const mz_cut *cut, mezzo_memory *out);
// Declares inputs.c: makes the rules of a graph's inputs, by value [n]; checks and marks an input that is written; and
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
// Runs a program as mezzo_program_run does, for the last run of a step.
mezzo_status mz_program_run_last(mezzo_program *program, const mezzo_scaler *scaler, uint64_t seed, uint64_t step);

// --- track.c moves the parameters of mezzo_graph_track ---------------------------------------------------------------
typedef struct mz_tracker {
    mezzo_device *device;   // borrowed
    int64_t count, batches; // numbers of a batch, 0: there is nothing to move; batches of a step, those of all ranks
    float *rows;            // on the device: [batches][count]
    mz_tracked *entries;    // on the device: [count]
    mz_call keep, move;
    mz_prepared keeps, moves;
} mz_tracker;
size_t mz_tracker_plan(const mezzo_graph *graph, int64_t batches); // bytes on the device
// UNSUPPORTED: a parameter is also stored in fewer bits.
mezzo_status mz_tracker_open(const mezzo_program *program, int64_t batches, mz_tracker *out);
void mz_tracker_close(mz_tracker *tracker);
mezzo_status mz_tracker_keep(mz_tracker *tracker, int64_t row); // copies the values of the program's last run
// Adds the call that moves parameters by all rows; into NULL: runs it now. ranks, state: as the op `track` says; state
// NULL: absent.
mezzo_status mz_tracker_issue(mz_tracker *tracker, mz_sequence *into, int ranks, mz_opt_state *state);

// --- monitor.c samples values without waiting -----------------------------------------------------------------------
typedef struct mz_monitor_options {
    mz_opt_state *state; // on the device; its `bad` gets MZ_BAD_LOSS and MZ_BAD_ACTIVATION
    int activations;     // number of sampled forward values that backward still needs, at most MZ_MAX_IN - 1
    int64_t sample;      // number of elements of each; 0 = all
    float limit;         // magnitudes above it are bad; 0 = none
    int gradients;       // number of sampled FP16 values of backward, whose underflow alone counts
} mz_monitor_options;
mezzo_status mz_program_monitor(mezzo_program *program, const mz_monitor_options *options);
mezzo_status mz_program_read_monitored(mezzo_program *program); // fills monitored[].values, and waits for the device
void mz_program_unmonitor(mezzo_program *program);

// --- locate.c finds the first bad value: it checks every value and waits --------------------------------------------
typedef struct mz_located_tensor { // one tensor of an op
    char slot[16];
    mezzo_dtype dtype;
    mz_inspection values;
} mz_located_tensor;
typedef struct mz_located {
    bool found;
    // The parameter or input that was bad before any op wrote it. NULL: an op's output is bad.
    const char *source;
    const char *op, *module, *phase, *rule; // the op that wrote it or first read it; rule: the reason for its dtypes
    bool loss;                              // the bad value is the loss
    bool parameter;                         // the source is a parameter
    int64_t sample;                         // the first sample of the batch with a bad number, from 0; -1: unknown
    mezzo_dtype compute;
    mz_located_tensor bad; // the output, or the source as the op reads it
    mz_located_tensor in[MZ_MAX_IN];
    int n_in;
} mz_located;
// Counts bad numbers and finds ranges of n <= MZ_MAX_IN tensors of the device. Absent tensors and integers count as
// nothing, and 8 bits have no range.
mezzo_status mz_program_inspect(mezzo_program *program, const mz_tensor *tensors, int n, float limit,
                                mz_inspection *out);
// Marks, by root value, what holds infinities because the graph has them as constants; the caller frees *out.
mezzo_status mz_program_infinite(const mezzo_program *program, bool **out);
// Finds the sample that has the first bad number of a call's outputs or, where these have none or are in no order of
// samples, of its inputs (samples.c); -1: not known. limit: as below.
mezzo_status mz_program_sample(mezzo_program *program, size_t call, float limit, int64_t *sample);
// Runs one micro step, call by call, up to the first call with a bad value: NaN, infinite, or in forward above `limit`
// where that is not 0. Parameter gradients stay as that call left them.
mezzo_status mz_program_locate(mezzo_program *program, const mezzo_scaler *scaler, uint64_t seed, uint64_t step,
                               float limit, mz_located *out);
// Appends to `out` of `size` bytes: "3 NaN of 64"; "first in linear of h.0.mlp (forward), sample 2: output y (fp16) has
// 3 NaN of 64; inputs …". sample: from 1; 0: not known.
void mz_inspection_describe(const mz_inspection *values, char *out, size_t size);
void mz_located_describe(const mz_located *located, int64_t sample, char *out, size_t size);
bool mz_located_low(const mz_located *located); // it was computed or stored in fewer bits than FP32

// Reads results of a forward program, and fails with NUMERIC where a number is not finite. The program then runs again
// on its present inputs, and the error names the first op with a bad value and a remedy. read_finite: an FP32 output of
// `count` numbers. blame: for a caller that found a bad number itself; `what`: "the loss".
mezzo_status mz_program_read_finite(mezzo_program *program, const char *output, float *out, size_t count);
mezzo_status mz_program_blame(mezzo_program *program, const char *what);

#endif
