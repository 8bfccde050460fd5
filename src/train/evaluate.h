// Declares the evaluation of a run after a change to its weights.
#ifndef MZ_TRAIN_EVALUATE_H
#define MZ_TRAIN_EVALUATE_H

#include "mezzo/program.h"
#include "mezzo/train.h"
#include "models/model.h"

// Changes the parameters of a model, adapters merged, before the evaluation.
typedef mezzo_status mz_change_fn(void *user, const mz_model *model, mezzo_params *params);
// Evaluates as mezzo_run_eval does without `as`; `change` may be NULL.
mezzo_status mz_run_eval(const mezzo_eval_options *options, const mezzo_hooks *hooks, mz_change_fn *change, void *user,
                         mezzo_eval_result *result);

#endif
