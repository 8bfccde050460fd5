// Predicts the cost of the followed step in other precisions: from its operations, run again in each of them on the
// program's own machine, and from Mezzo's kernels at the same shapes.
#ifndef MZ_STUDY_COST_H
#define MZ_STUDY_COST_H

#include "backend/backend.h"
#include "io/json.h"
#include "study/audit/judge.h"

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

// --- the report of an audit (report.c)
// --------------------------------------------------------------------------------
typedef struct mz_audit_report {
    const mz_torch_trace *traces; // in order of the ranks
    int n;
    const mz_audit *audit;
    const mz_torch_costs *costs;     // of the first rank
    const mz_torch_kernels *kernels; // NULL: Mezzo's kernels were not timed
    const char *device;              // the device on which they were timed
} mz_audit_report;

void mz_audit_text(const mz_audit_report *r, int columns, mz_text *t); // tables have so many columns of a terminal
// Return NULL when out of memory. The sections are those of mz_json_page: single values are a table, each list is one.
json_t *mz_audit_json(const mz_audit_report *r);
json_t *mz_audit_sections(const mz_audit_report *r);

#endif
