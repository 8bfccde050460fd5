// A profile shows what some steps of a run do, call by call, as a trace for Perfetto and Chrome, a table of what is
// worth improving, and a page. docs/profile.md describes it for users.
#ifndef MZ_TRAIN_PROFILE_H
#define MZ_TRAIN_PROFILE_H

#include "base/base.h"
#include "backend/backend.h"

struct mz_training;

enum { MZ_PROFILE_WARMUP = 3 }; // steps before the first recorded one, in which kernels are loaded and graphs captured

// Holds one bar of the trace. Bars of the device are calls; bars of the host are its work.
typedef struct mz_profile_event {
    const char *name, *kernel, *module, *phase; // borrowed: of the program, of kernels, or static; NULL on the host
    char *tensors;                              // "x [12, 64] bf16, w [64, 64] bf16 -> y [12, 64] bf16"; NULL
    bool host;
    int stream, depth;
    int64_t step;
    double start, seconds; // since the profile began
    double flops, bytes;
    double floor;    // the least seconds that the device's measured peaks allow; 0: not known
    bool arithmetic; // arithmetic, not memory, decides the floor
    mezzo_dtype compute;
} mz_profile_event;

typedef struct mz_profile mz_profile;

// Opens a profile where train.profile asks for one; else returns NULL. INVALID: the run is too short. It measures the
// device's peaks for about a second.
mezzo_status mz_profile_open(struct mz_training *run);
void mz_profile_close(mz_profile *profile); // NULL is allowed; called before the device is closed
// Begins a step; where it is recorded, the device then reports its calls.
mezzo_status mz_profile_step_begin(struct mz_training *run);
mezzo_status mz_profile_step_end(struct mz_training *run); // after the last recorded step it writes the files and
                                                           // reports them
// Begins a bar of the host around a part of a step; bars nest as the calls do. It does nothing where `profile` is NULL
// or idle.
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
    bool queue; // the device has a queue, so that a step that is not recorded runs as one graph
} mz_profile_view;
// Writes FOLDER/trace.json, ops.csv and index.html; *table: the ten rows furthest above their floor, as text.
mezzo_status mz_profile_write(const mz_profile_view *view, const char *folder, mz_text *table);

#endif
