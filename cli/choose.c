// A precision by timing, as advise --measure and train --precision auto do it.
#include "choose.h"

#include "io/file.h"
#include "io/json.h"

// What is timed, and what came of it: seconds to minutes would otherwise pass in silence.
static void tell(void *user, const mz_candidate *c, bool done) {
    const bool *quiet = user;
    if (*quiet)
        return;
    if (!done)
        fprintf(stderr, "mezzo: timing a few steps in %s …", mezzo_precision_name(c->precision));
    else if (c->timed)
        fprintf(stderr, " %.4g ms/step\n", 1e3 * c->step_seconds);
    else
        fprintf(stderr, " %s\n", c->note);
}

mezzo_status cli_choose(const mezzo_auto_request *r, size_t memory, const mezzo_precision *precisions, int n_precisions,
                        bool quiet, mz_choice *out) {
    mz_choose_options o = mz_choose_defaults();
    o.workload = (mz_workload){.model = *r->model,
                               .batch = r->batch,
                               .seq_len = r->model->seq_len,
                               .grad_accum = r->grad_accum,
                               .residual = r->program->residual,
                               .recompute = r->program->recompute,
                               .recompute_light = r->program->recompute_light,
                               .logits_rows = r->program->logits_rows,
                               .overrides = r->program->overrides,
                               .n_overrides = r->program->n_overrides,
                               .seed = r->seed};
    o.precisions = precisions;
    o.n_precisions = n_precisions;
    o.memory = memory;
    o.stop = r->stop;
    o.tell = tell;
    o.user = &quiet;
    return mz_choose(r->device, &o, out);
}

json_t *cli_choice_json(const mz_choice *c) {
    json_t *o = json_object(), *list = json_array();
    json_object_set_new(o, "precision", json_string(mezzo_precision_name(c->precision)));
    json_object_set_new(o, "reason", cli_json_text(c->reason, strlen(c->reason)));
    json_object_set_new(o, "speedup_over_fp32", cli_json_number(c->speedup));
    for (int i = 0; i < c->n; i++) {
        const mz_candidate *k = &c->candidates[i];
        json_t *x = json_object();
        json_object_set_new(x, "precision", json_string(mezzo_precision_name(k->precision)));
        json_object_set_new(x, "step_ms", cli_json_number(1e3 * k->step_seconds));
        json_object_set_new(x, "tokens_per_second", cli_json_number(k->tokens_per_second));
        json_object_set_new(x, "memory_bytes", json_integer((json_int_t)k->memory));
        json_object_set_new(x, "loss", cli_json_number(k->loss));
        json_object_set_new(x, "passed", json_boolean(k->passed));
        json_object_set_new(x, "note", cli_json_text(k->note, strlen(k->note)));
        json_array_append_new(list, x);
    }
    json_object_set_new(o, "candidates", list);
    return o;
}

mezzo_status cli_choice_save(const mz_choice *c, const char *folder) {
    char *path = mz_format("%s/precision.json", folder);
    json_t *json = cli_choice_json(c);
    mezzo_status status = path != NULL && json != NULL ? mz_json_save(path, json) : MEZZO_ERR_MEMORY;
    json_decref(json);
    mz_free(path);
    return status;
}
