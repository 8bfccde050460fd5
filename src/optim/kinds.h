// Declares the table of the kinds of optimizer (optimizers.def).
#ifndef MZ_OPTIM_KINDS_H
#define MZ_OPTIM_KINDS_H

#include "graph/op.h"
#include "mezzo/optimizer.h"

typedef struct mz_kind {
    const char *name, *title; // "adamw", "AdamW"
    mz_op op;
    const char *moment[MZ_KIND_MOMENTS];     // "exp_avg"; NULL after the last one
    int (*moments)(const mz_update_rule *r); // how many moments it keeps
    // The options that a kind reads; an option whose field is false does not belong to the kind.
    struct {
        bool beta1, beta2, eps, momentum, dampening, nesterov, orthogonal; // orthogonal: the kind is per matrix
    } reads;
} mz_kind;
extern const mz_kind mz_kinds[MEZZO_OPTIMIZER_KINDS];

// Writes "adamw|sgd|…", for usage texts and messages.
extern const char mz_kind_bars[];
#define MZ_KIND_NAMES (mz_kind_bars + 1)
int mz_kind_find(const char *name); // -1: there is no such kind

#endif
