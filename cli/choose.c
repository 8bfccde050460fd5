// Chooses a precision by timing, for advise --measure and train --precision auto.
#include "cli.h"

static void tell(void *user, const mz_candidate *c) {
    const bool *quiet = user;
    if (*quiet)
        return;
    cli_progress_end();
    fprintf(stderr, "mezzo: timing a few steps in %s … ", mezzo_precision_name(c->precision));
    if (c->timed)
        fprintf(stderr, "%.4g ms/step\n", 1e3 * c->step_seconds);
    else
        fprintf(stderr, "%s\n", c->note);
}

mezzo_status cli_choose(const mezzo_auto_request *r, size_t memory, const mezzo_precision *precisions, int n_precisions,
                        bool quiet, mz_choice *out) {
    mz_choose_options o = mz_choose_defaults();
    MEZZO_TRY(mz_session_usual(r->model, r->batch, &o.session));
    o.session.step.micro_batches = r->grad_accum;
    o.session.program = *r->program;
    o.session.seed = r->seed;
    o.precisions = precisions;
    o.n_precisions = n_precisions;
    o.memory = memory;
    o.stop = r->stop;
    o.tell = tell;
    o.user = &quiet;
    return mz_choose(r->device, &o, out);
}
