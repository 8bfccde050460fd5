// Declares the facts of a precision that a row of precisions.def holds.
#ifndef MZ_PRECISION_H
#define MZ_PRECISION_H

#include "base/base.h"

// Says which values share a scale: a stored value times its scale is the actual value.
typedef enum mz_scaling {
#define SCALING(id, ...) MZ_SCALING_##id,
#include "base/scalings.def"
#undef SCALING
    MZ_SCALING_COUNT
} mz_scaling;
typedef struct mz_scaling_info { // scalings.def describes the fields
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

typedef struct mz_precision_info { // precisions.def describes the fields
    const char *name, *aliases;
    mezzo_dtype operand, gradient, dw, output, compute, wide;
    mz_scaling scaling;
    bool loss_scale;
    int automatic, capability;
    mz_without without;
    mezzo_precision instead;
    const char *why, *text;
} mz_precision_info;

// Returns the facts of a precision; NULL for auto and for other values.
const mz_precision_info *mz_precision(mezzo_precision precision);
// Returns whether every device runs it, with or without its arithmetic: these precisions are compared where none is
// named.
bool mz_precision_is_everywhere(mezzo_precision precision);
// Returns whether operands of products take less than 4 bytes.
bool mz_precision_is_low(mezzo_precision precision);
// Lists those that every device runs, from the widest to the narrowest. Returns their number.
int mz_precision_common(mezzo_precision out[MEZZO_PRECISION_COUNT]);
// Lists those that auto may take, the most preferred first. Returns their number.
int mz_precision_automatic(mezzo_precision out[MEZZO_PRECISION_COUNT]);
// Returns "fp32, tf32, …", all names, for messages.
const char *mz_precision_list(void);

// These constants are "fp32|tf32|…|auto", and the same names without auto.
extern const char mz_precision_bars_auto[], mz_precision_bars[];
#define MZ_PRECISION_NAMES_AUTO (mz_precision_bars_auto + 1)
#define MZ_PRECISION_NAMES      (mz_precision_bars + 1)

#endif
