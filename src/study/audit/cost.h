// Predicts the cost of the followed step in other precisions: from its operations, run again in each of them on the
// program's own machine, and from Mezzo's kernels at the same shapes.
#ifndef MZ_STUDY_COST_H
#define MZ_STUDY_COST_H

#include "backend/backend.h"
#include "study/audit/trace.h"

typedef struct mz_torch_cost {
    const char *format; // one of mz_torch_formats
    bool known;         // false: the trace has no times in this format, or they vary too much
    bool now;           // it is the format of most of its products today
    double seconds;     // of a step
    double least, most; // bounds by the differences between the replays' runs
    double speedup;     // the present step's time divided by it
} mz_torch_cost;

typedef struct mz_torch_costs {
    mz_torch_cost rows[MZ_TORCH_FORMATS];
    double step;       // seconds of the step with which the others are compared
    bool launch_bound; // the device waits for the program, so faster operations do not shorten the step
    bool unsteady;     // a prediction's bounds are more than 15 % away from it
    bool with_hooks;   // no step followed the recorded ones, so the step's time includes the recorder
} mz_torch_costs;

void mz_torch_costs_predict(const mz_torch_trace *trace, mz_torch_costs *out);

// Holds the times of a step's products in Mezzo's kernels on `device`.
enum { MZ_TORCH_SHAPES = 6 };
typedef struct mz_torch_kernels {
    int n_shapes;
    double share;                          // of a step's FLOPs in products: the share with these shapes
    double torch_seconds;                  // the time of these products in the program, for one step; NaN: not timed
    double seconds[MEZZO_PRECISION_COUNT]; // in Mezzo's kernels; NaN: some have no kernel
} mz_torch_kernels;
// Times the kernels. Errors: MEMORY, and those of the device.
mezzo_status mz_torch_kernels_time(mezzo_device *device, const mz_torch_trace *trace, mz_torch_kernels *out);

#endif
