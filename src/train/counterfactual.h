// Measures what other formats would do to the operands of a step's products. It reads the operands after each product
// has run, so that the step itself does not change.
#ifndef MZ_TRAIN_COUNTERFACTUAL_H
#define MZ_TRAIN_COUNTERFACTUAL_H

#include "io/metrics.h"
#include "runtime/program.h"
#include "train/rounding.h"

enum { MZ_COUNTERFACTUAL_FORMATS = 8 }; // the most formats of one measurement

typedef struct mz_counterfactual_item { // one operand in one format
    size_t call;                        // the program's call that reads the operand
    int slot;                           // the operand's input slot
    int format;
    int master; // a parameter whose FP32 master is rounded, or -1 to round the stored operand
    bool columnwise;
    mezzo_dtype via; // the format that its numbers are rounded to first
    mz_rounding_how how;
    mz_rounding found; // the statistics of the last measured step
} mz_counterfactual_item;

typedef struct mz_counterfactual_group { // neighbouring items that round the same numbers
    size_t first;                        // the first of its items
    mz_rounding_attrs formats;
    mz_prepared prepared;
} mz_counterfactual_group;

typedef struct mz_counterfactual {
    mezzo_device *device; // borrowed
    mz_rounding_format formats[MZ_COUNTERFACTUAL_FORMATS];
    int n_formats;
    mz_counterfactual_item *items; // in the order of the calls
    size_t n, cap;
    mz_counterfactual_group *groups;
    size_t n_groups, cap_groups, next;  // next: the group that the present step measures next
    void *scratch;                      // on the device: memory for the kernels
    mz_rounding_sums *sums, *on_device; // of each item
    mz_program_hook hook;               // the hook that the program had before
    void *hook_user;
} mz_counterfactual;

// Prepares to measure every operand of the linear products of `program`, experts' included, in the modules that
// `modules` names (mz_next_pattern); `formats`: names for mz_rounding_parse, separated by commas. It allocates all
// memory. INVALID: an unknown format, a pattern that names no product, and a program whose products have scaled
// operands.
mezzo_status mz_counterfactual_create(const mezzo_program *program, const char *formats, const char *modules,
                                      mz_counterfactual **out);
void mz_counterfactual_free(mz_counterfactual *c); // NULL is allowed
// Attaches the hook: until the end, a run of the program measures each item after its call.
void mz_counterfactual_begin(mz_counterfactual *c, mezzo_program *program);
void mz_counterfactual_end(mz_counterfactual *c, mezzo_program *program);
mezzo_status mz_counterfactual_read(mz_counterfactual *c, const mezzo_program *program); // waits for the device
// Waits for the device and reads the statistics; writes a record of each item to `operands` (NULL: none), and a summary
// of each format to `metrics`.
mezzo_status mz_counterfactual_log(mz_counterfactual *c, const mezzo_program *program, mz_metrics *operands,
                                   mz_metrics *metrics, int64_t step);

#endif
