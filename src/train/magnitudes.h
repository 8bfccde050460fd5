// Counts the magnitudes of every parameter's gradient, every activation and every activation's gradient by power of
// two, on the device while a step runs.
#ifndef MZ_TRAIN_MAGNITUDES_H
#define MZ_TRAIN_MAGNITUDES_H

#include "runtime/program.h"
#include "io/metrics.h"

typedef enum mz_magnitude_kind {
    MZ_OF_GRADIENT,            // of a parameter: FP32, unscaled, before clipping
    MZ_OF_ACTIVATION,          // what forward stores
    MZ_OF_ACTIVATION_GRADIENT, // what backward stores, multiplied by the loss scale
    MZ_MAGNITUDE_KINDS
} mz_magnitude_kind;

typedef struct mz_magnitudes_of { // one tensor
    char *name;                   // "h.0.attn.c_attn.weight"; "h.0.mlp.c_fc linear"
    mz_magnitude_kind kind;
    mezzo_dtype dtype; // as it is stored
    int64_t elements;
    int call, slot;        // of the program; of a gradient: -1 and the parameter's index
    const int32_t *counts; // [MZ_HISTOGRAM_BUCKETS], host; valid after mz_magnitudes_read
} mz_magnitudes_of;

// A tensor that an op of its own rounds to 8 bits with a scale: what is counted are the numbers that it rounds, those
// after an activation that it applies itself.
typedef struct mz_narrowed {
    char *name; // "h.3.mlp.c_fc.dy", its entry's in the table of scales
    int call;   // of the program
    int entry;
    mz_scale_entry found;  // the entry as the step under way found it
    mz_op activation;      // whose result is rounded: gelu, gelu_dx, …
    mz_prepared prepared;  // of that op; empty: x itself is rounded
    mz_prepared histogram; // of what is rounded
    int64_t nonzero, lost; // finite numbers that are not 0, and those of them that became 0; after mz_magnitudes_read
    bool known;            // the scale was that of earlier steps; else nothing is said
} mz_narrowed;

typedef struct mz_magnitudes {
    mezzo_device *device; // borrowed
    mz_magnitudes_of *list;
    size_t n, cap;
    mz_prepared *prepared; // [n]
    mz_narrowed *narrowed;
    size_t n_narrowed, cap_narrowed;
    void *act;     // device: an activation's result
    char *counts;  // device: n + n_narrowed tables of int32
    int32_t *host; // the same, here
    int *first;    // [calls + 1]: the list's entries of a call
    int calls;
    mz_program_hook hook; // of the owner before
    void *hook_user;
} mz_magnitudes;

// Every float tensor that `program` makes, and the gradients of `params`. All memory is taken here: n tables of 1.1 KB
// on the device, and room for the largest activation that is rounded to 8 bits.
mezzo_status mz_magnitudes_create(const mezzo_program *program, mezzo_params *params, mz_magnitudes **out);
void mz_magnitudes_free(mz_magnitudes *m); // NULL is fine
// Clears the tables; until the end, runs of the program count each tensor when it is made: one pass over it.
mezzo_status mz_magnitudes_begin(mz_magnitudes *m, mezzo_program *program);
void mz_magnitudes_end(mz_magnitudes *m, mezzo_program *program);
// Counts the parameters' gradients as they are in memory: after the update they are still there, unscaled.
mezzo_status mz_magnitudes_gradients(mz_magnitudes *m, mezzo_params *params);
mezzo_status mz_magnitudes_read(mz_magnitudes *m); // waits for the device
// A histogram a tensor to TensorBoard, of log2 of the magnitudes; zeros and what is not finite are left out.
mezzo_status mz_magnitudes_log(const mz_magnitudes *m, mz_metrics *metrics, int64_t step);

#endif
