// Plans the memory of training for each precision and optimizer without allocating it.
#ifndef MZ_STUDY_MEMORY_PLAN_H
#define MZ_STUDY_MEMORY_PLAN_H

#include <jansson.h>

#include "study/measure/measure.h"

enum {
    MZ_MEMORY_OPTIMIZERS = MEZZO_OPTIMIZER_KINDS + 1, // the kinds, and SGD without momentum
    MZ_MEMORY_MASTERS = MEZZO_MASTER_STOCHASTIC + 1,
    MZ_MEMORY_ROWS = MZ_MEMORY_OPTIMIZERS * MEZZO_PRECISION_COUNT * MZ_MEMORY_MASTERS
};
const char *mz_memory_optimizer(int index); // "adamw", "sgd" (with momentum), …, "sgd-plain"

typedef struct mz_memory_row {
    mezzo_precision precision;
    int optimizer; // its index
    mezzo_master master;
    mz_footprint f;
    size_t measured;       // 0: it was not asked for
    int64_t largest;       // batch within the limit; -1: it was not asked for
    int64_t largest_again; // likewise with recompute
} mz_memory_row;

typedef struct mz_memory_saving { // one way to save memory, compared with the base
    char name[64];
    mz_footprint f;
} mz_memory_saving;

typedef struct mz_memory_plan {
    // Set by the caller. Of the session, precision, master and kind of optimizer are ignored.
    mezzo_device *device;
    mezzo_device_info info; // of the device
    const char *model;      // its name
    mz_session_options session;
    mezzo_precision precisions[MEZZO_PRECISION_COUNT]; // as the device resolves them
    int n_precisions, optimizers[MZ_MEMORY_OPTIMIZERS], n_optimizers, masters[MZ_MEMORY_MASTERS], n_masters;
    size_t limit; // 0: none
    bool measure; // runs two steps of each row and compares, which needs the memory
    // Filled by the functions below.
    mz_memory_row rows[MZ_MEMORY_ROWS]; // with masters other than FP32 where products read only BF16
    int n_rows;
    int base; // the row with which savings are compared: the first low precision with its first optimizer
    mz_memory_saving savings[10];
    int n_savings;
} mz_memory_plan;

// Plans the rows. Errors as mz_footprint_of and mz_session_measure.
mezzo_status mz_memory_plan_rows(mz_memory_plan *plan);
mezzo_status mz_memory_plan_savings(mz_memory_plan *plan); // called after the rows are planned
bool mz_memory_fits(const mz_memory_plan *plan);           // some row has a batch within the limit, or there is no
                                                           // limit
// Write the plan, or that nothing fits in its limit and what the smallest row needs.
void mz_memory_text(const mz_memory_plan *plan, int columns, mz_text *t);
mezzo_status mz_memory_none_text(const mz_memory_plan *plan, mz_text *t);
json_t *mz_memory_json(const mz_memory_plan *plan);
// Write what each of mz_schemes takes for so many parameters, without activations.
void mz_schemes_text(double params, int columns, mz_text *t);
json_t *mz_schemes_json(double params);

// Draws the memory of each row as stacked bars, with a line at the limit: FOLDER/NAME.gp, drawn as NAME.png and
// NAME.svg. Errors: UNSUPPORTED (no gnuplot), IO.
mezzo_status mz_memory_draw(const char *folder, const char *name, const mz_memory_plan *plan);

#endif
