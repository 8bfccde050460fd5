// One op on one set of tensors, run on the reference and on every kernel of every other device of this machine.
#ifndef MZ_TRIAL_H
#define MZ_TRIAL_H

#include "runtime/calls.h"

#define SHAPE(...)                                                                                                     \
    (mz_shape) {                                                                                                       \
        .rank = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .dim = { __VA_ARGS__ }                      \
    }

typedef struct trial_tensor {
    mz_tensor t; // data stays NULL: each device has its own copy
    size_t bytes;
    unsigned char *stored; // inputs: what kernels read. Outputs: what is there before (preset), NULL for poison
    double *value;         // inputs and presets of float tensors, as stored; outputs: the reference's result
    unsigned char *after;  // inputs that the op writes (a scaler's block): what they hold afterwards; else NULL
    double *bound;         // outputs: what a right kernel may differ by before its result is rounded to storage
} trial_tensor;

typedef struct trial {
    mz_op op;
    mz_attrs attrs;
    mz_numerics numerics;
    mz_update_attrs update;
    int n_in, n_out;
    trial_tensor in[MZ_MAX_IN], out[MZ_MAX_OUT];
    mz_rng_state rng;
    uint32_t seed;       // of the next fill
    bool exact;          // results must be the reference's, bit for bit (integers that every format holds)
    bool finite_only;    // compare only where the reference is finite, and that the rest is not (a NaN was put in)
    bool skip_terms;     // so many terms that one is below the bound of their sum: only the scale is mutated
    bool skip_mutations; // the trial has nothing to drop (one term) or is not about accuracy
    bool optional;       // a device may have no kernel for it
    bool odd_threads;    // a third run has 5 threads
    bool one_operand;    // input 1 is input 0, in the same memory
    // Outputs that are not floats (state blocks, low copies): says what is wrong, or NULL. Missing: bytes must be
    // equal. `got` has the bytes of every output, `want` the reference's of this one.
    const char *(*compare_bytes)(const struct trial *t, int slot, unsigned char *const *got, const unsigned char *want);
} trial;

// --- making (trial.c) ----------------------------------------------------------------------------------------------
trial *trial_new(mz_op op); // numerics F32, all slots absent
void trial_free(trial *t);
int64_t trial_count(const trial_tensor *t); // elements
void trial_input(trial *t, int slot, mezzo_dtype dtype, mz_shape shape);
void trial_output(trial *t, int slot, mezzo_dtype dtype, mz_shape shape);
void trial_store(trial_tensor *t);                          // value → stored, rounded; value becomes what was stored
void trial_normal(trial *t, int slot, double deviation);    // fills an input
void trial_integers(trial *t, int slot, int low, int high); // an input or I32 ids, uniform in [low, high]
void trial_bytes(trial *t, int slot, const void *bytes, bool output); // U8 tensors
// Numbers of which kernels that multiply FP32 in parts of fewer bits lose the most: 1 + 2^-8 - 2^-17 (three BF16 parts
// as large as they get) or, of `kind` 1, 1 + 2^-11 - 2^-23 (two TF32 parts), times a power of two; all positive, so
// that what is lost adds up.
void trial_parts(trial *t, int slot, int kind, double scale);
void trial_largest(trial *t, int slot); // every fifth element of a filled input: FP32's largest number, with its sign
// A NaN in the middle of an input and, where there is room, an infinity at its end: what depends on them must not come
// out finite.
void trial_spoil(trial *t, int slot);
void trial_preset(trial *t, int slot, double deviation); // an output that is read too: a gradient to add to, a moment

// --- running (compare.c) -------------------------------------------------------------------------------------------
// Asserts, for every kernel of every device: result within bound, nothing written outside, inputs untouched, the same
// bits with 1, 2 and, for trials that want it, 5 threads, and in place. Then the mutations: a result with a wrong scale
// and one with an input term dropped must be seen.
void trial_check(trial *t);
// trial_check passes over trials with a larger tensor; 0, at first: none.
extern int64_t trial_limit;
void trial_finish(trial *t); // check and free
// Runs the reference: every output's `value` is its result. For what backward reads of forward.
void trial_reference(trial *t);
void devices_open(void);
// Only these kernels, on a cpu device, whatever it would list: code that this machine's devices do not choose.
void devices_open_with(const mz_kernel *const *kernels, size_t n);
void devices_close(void);
void devices_report(void);
bool devices_have(const char *name); // as reports call it: "cuda"
bool devices_serve(mz_op op);        // one of them has a kernel; else the op is composed
// How many runs each op got, and the kernels that ran: a table that misses an op fails.
int64_t trial_runs(mz_op op);

// --- bounds (bounds.c) ---------------------------------------------------------------------------------------------
// Fills every output's bound from the inputs and the reference's results, by the derivations of docs/dev/NUMERICS.md.
void trial_bounds(trial *t);
double unit_roundoff(mezzo_dtype dtype); // 2^-24 for F32, 2^-8 … half the distance from 1 to the next value

#endif
