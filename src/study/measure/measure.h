// Makes a training step of a model at a shape and a precision, to be timed; bench, sweep and advise --measure share it.
#ifndef MZ_STUDY_MEASURE_H
#define MZ_STUDY_MEASURE_H

#include <signal.h>

#include "session/session.h"

// The functions below time and plan a model's session (mz_session_usual) from its options.
int64_t mz_session_items(const mz_session_options *o); // of a step, in the unit that its task counts: tokens, images,
                                                       // examples
// Describes a micro batch: "8 x 128 tokens", "8 images of 64 x 64 x 1", "8 examples".
void mz_session_describe(const mz_session_options *o, char *out, size_t size);

// --- before anything is allocated (memory.c) -----------------------------------------------------------------------
// Computes a session's sketch with the programs of samples. `like`: NULL, or a footprint that differs in its optimizer
// alone, so that programs are not planned again.
mezzo_status mz_footprint_of(mezzo_device *device, const mz_session_options *o, const mz_footprint *like,
                             mz_footprint *out);
size_t mz_footprint_total(const mz_footprint *f);
size_t mz_footprint_run(const mz_footprint *f); // with evaluation and sampling, as `mezzo train` runs
// Holds planned programs, for searches among sessions that differ in precision, masters, recompute and optimizer alone.
typedef struct mz_planned {
    mezzo_precision precision;
    mezzo_master master;
    bool recompute;
    int64_t batch;
    mz_footprint f; // without an optimizer
} mz_planned;
typedef struct mz_plans {
    mz_planned *list;
    size_t n, cap;
} mz_plans;
void mz_plans_free(mz_plans *plans); // a zeroed one is allowed
// Finds by planning the largest batch of one micro batch for which mz_footprint_run is at most `limit`; 0: not even one
// row fits. o->form.batch is ignored. `plans` (NULL: none) is searched first and gets new plans.
mezzo_status mz_largest_batch(mezzo_device *device, const mz_session_options *o, size_t limit, mz_plans *plans,
                              int64_t *batch);
mezzo_status mz_session_bytes(mezzo_device *device, const mz_session_options *o,
                              size_t *bytes); // by mz_footprint_total
mezzo_status mz_session_run_bytes(mezzo_device *device, const mz_session_options *o,
                                  size_t *bytes); // by mz_footprint_run
// Reads the free memory of the device: its memory minus what any process uses; on a CPU the system's available memory.
// 0: not known.
mezzo_status mz_memory_free(mezzo_device *device, size_t *bytes);
// Counts floating-point operations of the products and attention of a step, forward and backward (3 × forward), without
// recomputation.
mezzo_status mz_session_flops(const mz_session_options *o, double *flops);
mezzo_status mz_session_elements(const mz_session_options *o, int64_t *count); // of all parameters

// --- running -------------------------------------------------------------------------------------------------------
typedef struct mz_rig mz_rig;
// Creates a session up to its step, with made-up examples on the device. The caller owns *out. MEMORY, UNSUPPORTED and
// INVALID as mz_session_open.
mezzo_status mz_rig_create(mezzo_device *device, const mz_session_options *o, mz_rig **out);
void mz_rig_free(mz_rig *rig); // NULL is allowed
MZ_FREE_AT(mz_rig_free_at, mz_rig, mz_rig_free)
size_t mz_rig_memory(const mz_rig *rig); // bytes on the device
// Measures the peak of making the rig and running two steps: on a GPU what was allocated on the device, on a CPU how
// much the process's resident memory grew (the kernel's count). UNSUPPORTED where the system does not report it.
mezzo_status mz_session_measure(mezzo_device *device, const mz_session_options *o, size_t *bytes);
mezzo_device *mz_rig_device(const mz_rig *rig);

typedef enum mz_timed {
    MZ_TIMED_FORWARD, // a forward-only program of the micro batch
    MZ_TIMED_MICRO,   // forward and backward of one micro batch
    MZ_TIMED_STEP,    // the whole optimizer step: every micro batch, unscale, clip, update, scaler, zeroed gradients
} mz_timed;

typedef struct mz_repeats {
    int warmup, iters;                 // iters is at most MZ_REPEATS_MAX
    int least;                         // from this number on it may stop early; 0: never
    double enough;                     // it stops early when the coefficient of variation is below this
    const volatile sig_atomic_t *stop; // may be NULL; INTERRUPTED between repeats where it is set
} mz_repeats;
#define MZ_REPEATS_MAX 1024
// Times each repeat in seconds, by the device's own clock where it has one. Repeats follow each other without waiting,
// as in training; the host reads times at `least` and at the end.
mezzo_status mz_rig_time(mz_rig *rig, mz_timed what, const mz_repeats *repeats, double *seconds, int *n);

// Times forward and micro in turn, so that drift affects both alike: forward[i] and micro[i] are neighbours in time. It
// never stops early.
mezzo_status mz_rig_time_phases(mz_rig *rig, const mz_repeats *repeats, double *forward, double *micro);

typedef struct mz_rig_state {
    double loss;       // of the last micro batch
    double loss_scale; // 1 without a scaler
    int64_t skipped;   // steps that gradients which are not finite made it skip
    bool finite;       // the loss is finite, and the last step was taken
} mz_rig_state;
mezzo_status mz_rig_look(mz_rig *rig, mz_rig_state *out); // waits for the device

// Holds gradients of one micro batch, unscaled: of each parameter at most 65,536 numbers at equal distances.
typedef struct mz_gradient {
    float *values;   // one parameter after another
    double *weights; // how many numbers of its parameter each represents
    size_t n;
} mz_gradient;
// Runs a micro batch before any step, and leaves gradients zero. The caller frees *out, after errors, too.
mezzo_status mz_rig_gradient(mz_rig *rig, mz_gradient *out);
void mz_gradient_free(mz_gradient *gradient);
// Returns |g - reference| / |reference| in the 2-norm; infinite where a number is not finite or the two belong to
// different models.
double mz_gradient_error(const mz_gradient *gradient, const mz_gradient *reference);

// --- schemes (memory.c): bytes a parameter, by formula -------------------------------------------------------------
// Says how a training recipe stores a model of which only the number of parameters is known.
typedef struct mz_scheme {
    const char *name;
    double weights, copies, gradients,
        optimizer; // bytes a parameter; copies: FP32 masters of low weights, or the reverse
    bool real;     // false: a table that is often published, and not what such training stores
    const char *remark;
} mz_scheme;
enum { MZ_SCHEMES = 10 };
extern const mz_scheme mz_schemes[MZ_SCHEMES];
double mz_scheme_total(const mz_scheme *scheme);

// --- energy (energy.c) ---------------------------------------------------------------------------------------------
typedef struct mz_energy {
    double joules; // of one step; NaN: no counter can be read
    double watts;  // mean; NaN
} mz_energy;
// A counter of joules, a function that runs steps, and a clock.
typedef struct mz_meter {
    mezzo_status (*read)(void *user, double *joules);
    mezzo_status (*step)(void *user); // queues one step; may return before the step ends
    double (*clock)(void *user);      // in seconds
    void *user;
} mz_meter;
// Runs steps of `step_seconds` until the counter has jumped, and jumped again `seconds` later. range: where it starts
// again. The result is NaN where it does not change.
mezzo_status mz_meter_energy(const mz_meter *m, double seconds, double step_seconds, double range, mz_energy *out);
// Measures energy with the device's counter, or RAPL's on a CPU; for a device with only a power sensor it is power ×
// `step_seconds`.
mezzo_status mz_rig_energy(mz_rig *rig, double seconds, double step_seconds, mz_energy *out);
mezzo_status mz_rig_step(mz_rig *rig);                 // without waiting
mezzo_status mz_rig_run_steps(mz_rig *rig, int64_t n); // runs them and waits

#endif
