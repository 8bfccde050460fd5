// A profile shows what some steps of a run do, call by call, as a trace for Perfetto and Chrome, a table of what is
// worth improving, and a page. Docs: docs/profile.md.
#ifndef MZ_TRAIN_PROFILE_H
#define MZ_TRAIN_PROFILE_H

#include "base/base.h"
#include "backend/backend.h"

struct mz_training;

enum { MZ_PROFILE_WARMUP = 3 }; // steps before the first that is recorded: kernels are loaded, graphs captured

// One bar of the trace. Device bars are calls, host bars what the host does.
typedef struct mz_profile_event {
    const char *name, *kernel, *module, *phase; // borrowed: of the program, the kernels, or static; NULL on the host
    char *tensors;                              // "x [12, 64] bf16, w [64, 64] bf16 -> y [12, 64] bf16"; NULL
    bool host;
    int stream, depth;
    int64_t step;
    double start, seconds; // since the profile began
    double flops, bytes;
    double floor;    // seconds that the device's measured peaks allow; 0: not known
    bool arithmetic; // what the floor is made of: arithmetic, else memory
    mezzo_dtype compute;
} mz_profile_event;

typedef struct mz_profile mz_profile;

// Opens a profile where train.profile asks for one; else NULL. INVALID: the run is too short. Measures the device's
// peaks, a second.
mezzo_status mz_profile_open(struct mz_training *run);
void mz_profile_close(mz_profile *profile); // NULL is fine; the device has not been closed yet
// Returns whether the step is one of those that are recorded; the device then reports its calls.
mezzo_status mz_profile_step_begin(struct mz_training *run);
mezzo_status mz_profile_step_end(struct mz_training *run); // after the last one: writes the files, reports them
// A bar of the host's, around what a step does; nested as the calls are. Nothing where `profile` is NULL or at rest.
void mz_profile_push(mz_profile *profile, const char *name);
void mz_profile_pop(mz_profile *profile);

// --- output (profile_write.c) ---------------------------------------------------------------------------------------
typedef struct mz_profile_view {
    const mz_profile_event *events;
    size_t n;
    int64_t first_step, steps;
    double seconds; // of all steps, on the host's clock
    const char *model, *device, *precision;
    mz_peaks peaks;
    bool queue; // the device has one: a step that is not recorded runs as one graph
} mz_profile_view;
// FOLDER/trace.json, ops.csv and index.html; *table: the ten rows that take most above their floor, for people.
mezzo_status mz_profile_write(const mz_profile_view *view, const char *folder, mz_text *table);

#endif
