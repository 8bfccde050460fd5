// A row of precisions.def has these facts of a precision.
#ifndef MZ_PRECISION_H
#define MZ_PRECISION_H

#include "base/base.h"

// Says what one scale is for: a stored value times its scale is the number meant.
typedef enum mz_scaling {
#define SCALING(id, ...) MZ_SCALING_##id,
#include "base/scalings.def"
#undef SCALING
    MZ_SCALING_COUNT
} mz_scaling;
typedef struct mz_scaling_info { // scalings.def says what each field is
    const char *name;
    int rows, columns;
    bool history;
    mz_scaling weight;
} mz_scaling_info;
extern const mz_scaling_info mz_scalings[MZ_SCALING_COUNT];
static inline bool mz_scaling_in_blocks(mz_scaling scaling) {
    return mz_scalings[scaling].columns > 0;
}

typedef enum mz_without { MZ_WITHOUT_STORE, MZ_WITHOUT_REFUSE } mz_without;

typedef struct mz_precision_info { // precisions.def says what each field is
    const char *name, *aliases;
    mezzo_dtype operand, gradient, dw, output, compute, wide;
    mz_scaling scaling;
    bool loss_scale;
    int automatic, capability;
    mz_without without;
    mezzo_precision instead;
    const char *why, *text;
} mz_precision_info;

// NULL for auto and for what is no precision.
const mz_precision_info *mz_precision(mezzo_precision precision);
// Every device runs it, with its arithmetic or without: these are compared where no precision is named.
bool mz_precision_is_everywhere(mezzo_precision precision);
// Products store less than 4 bytes a value.
bool mz_precision_is_low(mezzo_precision precision);
// Those, from the widest to the narrowest. Returns how many.
int mz_precision_common(mezzo_precision out[MEZZO_PRECISION_COUNT]);
// Those that auto may take, the most wanted first. Returns how many.
int mz_precision_automatic(mezzo_precision out[MEZZO_PRECISION_COUNT]);
// "fp32, tf32, …": all of them, for messages.
const char *mz_precision_list(void);

// "fp32|tf32|…|auto" and the same without auto, as constants.
extern const char mz_precision_bars_auto[], mz_precision_bars[];
#define MZ_PRECISION_NAMES_AUTO (mz_precision_bars_auto + 1)
#define MZ_PRECISION_NAMES      (mz_precision_bars + 1)

#endif
