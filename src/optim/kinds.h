// The kinds of optimizer are a table (optimizers.def).
#ifndef MZ_OPTIM_KINDS_H
#define MZ_OPTIM_KINDS_H

#include "graph/op.h"
#include "mezzo/optimizer.h"

typedef struct mz_kind {
    const char *name, *title; // "adamw", "AdamW"
    mz_op op;
    const char *moment[MZ_KIND_MOMENTS];     // "exp_avg"; NULL past the last
    int (*moments)(const mz_update_rule *r); // how many of them are kept
    // A kind reads these options: those whose field is false are none of the kind's.
    struct {
        bool beta1, beta2, eps, momentum, dampening, nesterov, orthogonal; // orthogonal: it is per matrix
    } reads;
} mz_kind;
extern const mz_kind mz_kinds[MEZZO_OPTIMIZER_KINDS];

// "adamw|sgd|…", as constants and for messages.
extern const char mz_kind_bars[];
#define MZ_KIND_NAMES (mz_kind_bars + 1)
int mz_kind_find(const char *name); // -1: there is none

#endif
