// Predicts what the followed step would cost in other precisions: from its operations, run again in each of them on the
// program's own machine; and from Mezzo's kernels at the same shapes.
#ifndef MZ_STUDY_COST_H
#define MZ_STUDY_COST_H

#include "backend/backend.h"
#include "study/audit/trace.h"

typedef struct mz_torch_cost {
    const char *format; // as in mz_torch_formats
    bool known;         // false: the trace has no times in this format, or times that vary too much
    bool now;           // the format of most of its products today
    double seconds;     // of a step
    double least, most; // what it may be instead, as far as the replays' runs differ
    double speedup;     // the step as it is, divided by it
} mz_torch_cost;

typedef struct mz_torch_costs {
    mz_torch_cost rows[MZ_TORCH_FORMATS];
    double step;       // seconds of the step that the others are compared with
    bool launch_bound; // the device waits for the program: faster operations do not shorten the step
    bool unsteady;     // a prediction's bounds are more than 15 % away from it
    bool with_hooks;   // no step came after the followed ones, so the step's time has the recorder in it
} mz_torch_costs;

void mz_torch_costs_predict(const mz_torch_trace *trace, mz_torch_costs *out);

// A step's products in Mezzo's kernels of `device`.
enum { MZ_TORCH_SHAPES = 6 };
typedef struct mz_torch_kernels {
    int n_shapes;
    double share;                          // of the FLOPs of a step's products that these shapes have
    double torch_seconds;                  // of these products in the program, a step; NaN: not timed
    double seconds[MEZZO_PRECISION_COUNT]; // in Mezzo's kernels; NaN: no kernel for all of them
} mz_torch_kernels;
// MEMORY, or what the device fails with.
mezzo_status mz_torch_kernels_time(mezzo_device *device, const mz_torch_trace *trace, mz_torch_kernels *out);

#endif
