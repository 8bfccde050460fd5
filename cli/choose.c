// Chooses a precision by timing, for advise --measure and train --precision auto.
#include "choose.h"

#include "io/file.h"
#include "io/json.h"

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

static const mz_row_field choice_fields[] = {
    {MZ_FIELD(mz_choice, precision), "precision"},
    {MZ_FIELD(mz_choice, reason), "reason"},
    {MZ_FIELD(mz_choice, speedup), "speedup_over_fp32"},
};

static const char *loss_text(const void *row, char *buf, size_t size) {
    const mz_candidate *c = row;
    snprintf(buf, size, c->timed ? "%.4f" : "-", c->loss);
    return buf;
}

static const mz_row_field candidate_fields[] = {
    {MZ_FIELD(mz_candidate, precision), "precision", "precision"},
    {MZ_FIELD(mz_candidate, step_seconds), "step_ms", "ms/step", "%.3f", .flags = MZ_DASH, .factor = 1e3},
    {MZ_FIELD(mz_candidate, tokens_per_second), "tokens_per_second", "*/s", "count", .flags = MZ_DASH},
    {MZ_FIELD(mz_candidate, memory), "memory_bytes", "memory", "mib", .legend = "of a training step. M: MiB, G: GiB"},
    {MZ_FIELD(mz_candidate, loss), "loss", "loss", .text = loss_text, .legend = "after the timed steps"},
    {MZ_FIELD(mz_candidate, gradient_error), "gradient_error"},
    {MZ_FIELD(mz_candidate, passed), "passed"},
    {MZ_FIELD(mz_candidate, note), "note", ""},
};

void cli_choice_table(const mz_choice *c, const char *unit) {
    CLI_PRINT(mz_fields_table, candidate_fields, MZ_COUNT(candidate_fields), c->candidates, sizeof c->candidates[0],
              (size_t)c->n, unit, cli_terminal_columns(stdout));
}

json_t *cli_choice_json(const mz_choice *c) {
    json_t *o = mz_fields_json(choice_fields, MZ_COUNT(choice_fields), c, NULL, NULL);
    json_object_set_new(o, "candidates", MZ_LIST(candidate_fields, c->candidates, (size_t)c->n));
    return o;
}

mezzo_status cli_choice_save(const mz_choice *c, const char *folder) {
    return mz_json_save_owned(cli_choice_json(c), mz_path_of("%s/precision.json", folder).text);
}
