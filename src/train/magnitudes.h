// Counts the magnitudes of every parameter's gradient, every activation and every activation's gradient by power of
// two, on the device while a step runs.
#ifndef MZ_TRAIN_MAGNITUDES_H
#define MZ_TRAIN_MAGNITUDES_H

#include "runtime/program.h"
#include "io/metrics.h"

typedef enum mz_magnitude_kind {
    MZ_OF_GRADIENT,            // of a parameter: FP32, unscaled, before clipping
    MZ_OF_ACTIVATION,          // values that forward stores
    MZ_OF_ACTIVATION_GRADIENT, // values that backward stores, multiplied by the loss scale
    MZ_MAGNITUDE_KINDS
} mz_magnitude_kind;

typedef struct mz_magnitudes_of { // one counted tensor
    char *name;                   // "h.0.attn.c_attn.weight"; "h.0.mlp.c_fc linear"
    mz_magnitude_kind kind;
    mezzo_dtype dtype; // the storage format
    int64_t elements;
    int call, slot;        // in the program; for a gradient -1 and the parameter's index
    const int32_t *counts; // [MZ_HISTOGRAM_BUCKETS] on the host; valid after mz_magnitudes_read
} mz_magnitudes_of;

// Describes a tensor that an op of its own rounds to 8 bits with a scale. The numbers that it rounds are counted; they
// come after an activation that the op applies itself.
typedef struct mz_narrowed {
    char *name; // "h.3.mlp.c_fc.dy", the name of its entry in the table of scales
    int call;   // in the program
    int entry;
    mz_scale_entry found;  // the entry as the present step found it
    mz_op activation;      // the op whose result is rounded: gelu, gelu_dx, …
    mz_prepared prepared;  // of that op; empty: x itself is rounded
    mz_prepared histogram; // counts what is rounded
    int64_t nonzero, lost; // finite numbers other than 0, and how many of them became 0; valid after mz_magnitudes_read
    bool known;            // the scale was that of earlier steps; else the counts say nothing
} mz_narrowed;

typedef struct mz_magnitudes {
    mezzo_device *device; // borrowed
    mz_magnitudes_of *list;
    size_t n, cap;
    mz_prepared *prepared; // [n]
    mz_narrowed *narrowed;
    size_t n_narrowed, cap_narrowed;
    void *act;     // on the device: an activation's result
    char *counts;  // on the device: n + n_narrowed tables of int32
    int32_t *host; // the same on the host
    int *first;    // [calls + 1]: the first entry of the list for each call
    int calls;
    mz_program_hook hook; // the hook that its owner had set
    void *hook_user;
} mz_magnitudes;

// Counts every float tensor that `program` makes, and the gradients of `params`. It allocates all memory: n tables of
// 1.1 KB on the device, and space for the largest activation that is rounded to 8 bits.
mezzo_status mz_magnitudes_create(const mezzo_program *program, mezzo_params *params, mz_magnitudes **out);
void mz_magnitudes_free(mz_magnitudes *m); // NULL is allowed
// Clears the tables. Until the end, runs of the program count each tensor when it is made, in one pass over it.
mezzo_status mz_magnitudes_begin(mz_magnitudes *m, mezzo_program *program);
void mz_magnitudes_end(mz_magnitudes *m, mezzo_program *program);
// Counts the parameters' gradients where they lie; after the update they are still there, unscaled.
mezzo_status mz_magnitudes_gradients(mz_magnitudes *m, mezzo_params *params);
mezzo_status mz_magnitudes_read(mz_magnitudes *m); // waits for the device
// Writes to TensorBoard a histogram for each tensor, of log2 of the magnitudes, without zeros and numbers that are not
// finite.
mezzo_status mz_magnitudes_log(const mz_magnitudes *m, mz_metrics *metrics, int64_t step);

#endif
