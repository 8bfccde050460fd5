// Draws the examples of a task with separate examples from a range: those that train, or those that validate, in order
// or at random.
#ifndef MZ_TASK_RANGE_H
#define MZ_TASK_RANGE_H

#include "task/task.h"

typedef struct mz_range {
    int64_t first, n; // indices in the task's own order
    bool random;
    uint64_t seed;
    uint32_t stream, tensor; // of the numbers that are drawn, as in mz_philox_key
} mz_range;

// Opens a source. The first n_train of `n` examples train. The source gets batches of `rows` and owns the range.
// INVALID: the set has no example; `what` names them.
mezzo_status mz_range_open(mz_range range, const char *what, int64_t n_train, int64_t rows, mz_source *source);
void mz_range_close(mz_source *source);
// Returns the example at row `index` of all batches, counted from `first`; -1: none, after the end of a pass.
int64_t mz_range_place(const mz_range *range, uint64_t index);

#endif
