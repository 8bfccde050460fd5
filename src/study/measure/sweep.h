// Measures the grid layers × d_model × batch × sequence × precision of a model family, shape by shape, with one row for
// each.
#ifndef MZ_STUDY_SWEEP_H
#define MZ_STUDY_SWEEP_H

#include "study/measure/measure.h"
#include "study/analyse/pairs.h"

// --- the out-of-memory ladder (sweep.c) ----------------------------------------------------------------------------
// A rung of the ladder base → recompute → ga2 (two micro batches of half the size) → half_batch → half_seq. A rung
// keeps the changes of the rungs before it; one that the shape does not allow (an odd batch has no ga2) is left out.
typedef struct mz_rung {
    char name[MZ_STUDY_NAME];
    bool recompute;
    int64_t micro_batch, grad_accum, seq_len; // a step is micro_batch × grad_accum sequences
} mz_rung;
#define MZ_RUNGS_MAX 5
int mz_ladder(int64_t batch, int64_t seq_len, mz_rung rungs[MZ_RUNGS_MAX]); // returns the number of rungs

// --- the sweep -----------------------------------------------------------------------------------------------------
#define MZ_SWEEP_AXIS 32
typedef struct mz_sweep_axis {
    int64_t values[MZ_SWEEP_AXIS];
    int n;
} mz_sweep_axis;

typedef struct mz_sweep_options {
    const char *family;
    mz_sweep_axis layers, d_model, batch, seq_len;
    mezzo_precision precisions[MEZZO_PRECISION_COUNT];
    int n_precisions;
    int64_t heads,
        vocab; // 0: the family's own; heads that do not divide a width become the largest smaller number that does
    mezzo_residual residual;
    mz_repeats repeats;
    double energy_seconds; // duration of steps between two readings of the energy counter; 0: energy is not measured
    size_t memory;         // bytes that may be used; 0: the free memory
    uint64_t seed;         // for the order, the parameters and the tokens
    const char *path;      // full_data.csv, which is continued where it exists
    const char *commit;    // written into env; NULL or "": left out
} mz_sweep_options;

typedef struct mz_sweep_progress {
    int done, total;              // rows, those of earlier calls included
    int earlier;                  // rows that existed already
    double seconds, seconds_left; // left: NaN before the first row of this call
    const mz_study_row *row;      // the newest row; NULL at the start
    const char *note;             // "" where there is none
    double step_ms;               // of the row; NaN: no rung fitted
} mz_sweep_progress;
typedef void (*mz_sweep_fn)(void *user, const mz_sweep_progress *progress);

// Measures shapes in an order drawn from the seed, so that drift does not look like an effect; the precisions of one
// shape follow each other, in a drawn order, too. Each measurement appends a line and flushes it to the disk. A file of
// an earlier call is continued: rows that exist are not measured again, and an incomplete line is dropped. Errors:
// INVALID (a shape that the model refuses, a file of another device, version or family, one that another sweep writes),
// FORMAT (a file of another kind), IO, INTERRUPTED.
mezzo_status mz_sweep(mezzo_device *device, const mz_sweep_options *options, mz_sweep_fn tell, void *user);

#endif
