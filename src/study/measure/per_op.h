// Finds where a precision loses quality: the smallest set of modules that must stay in fp32 so that short runs lose no
// more than a given gap.
#ifndef MZ_STUDY_PER_OP_H
#define MZ_STUDY_PER_OP_H

#include <jansson.h>

#include "mezzo/train.h"
#include "train/trial.h"

typedef struct mz_per_op_options {
    mezzo_config *config;      // with model, data, optimizer and device; train.steps is the length of a run
    mezzo_precision precision; // the tested one
    double gap;                // in nats: how far the training loss may be above fp32's, as a mean over the last third
                               // of the steps
    int runs;                  // the most runs, fp32's among them
    const volatile sig_atomic_t *stop;                                 // may be NULL
    void (*tell)(void *user, int run, int runs, int kept, double gap); // called after each run; may be NULL
    mezzo_status (*prepare)(void *user, mz_trial *trial);              // for tests: called before the first step; may
                                                                       // be NULL
    void *user;
} mz_per_op_options;

typedef struct mz_per_op {
    char (*modules)[128]; // modules that may be kept: parts of a model's blocks ("h.3.mlp"), its embeddings, its head
    bool *kept;           // for each: whether it is in the smallest set found
    int n, n_kept;
    int runs;
    double loss, whole_gap, kept_gap; // fp32's loss; the gap with nothing kept, and with the set; infinite: not finite
    bool harmless;                    // nothing has to be kept
    bool closes;                      // the set's gap is at most the allowed one
    bool minimal; // without any one of its modules the gap is too large; false: the runs were used up before that was
                  // known
} mz_per_op;

// Searches by delta debugging (Zeller & Hildebrandt 2002) over the modules: about 2·log2(n) runs where one module is
// the cause. Errors as mz_trial_open; NUMERIC where fp32 itself is not finite; INVALID: runs < 2. The caller frees *out
// with mz_per_op_free after any outcome.
mezzo_status mz_per_op_find(const mz_per_op_options *options, mz_per_op *out);
void mz_per_op_free(mz_per_op *p);
json_t *mz_per_op_json(const mz_per_op_options *o, const mz_per_op *p); // NULL: out of memory
void mz_per_op_text(const mz_per_op_options *o, const mz_per_op *p, mz_text *out);

#endif
