// Finds the cause of a bad step, and writes the record of it: it replays the step, with the same data and the same
// randomness, on the parameters as they were before, and inspects every value.
#include <math.h>
#include <stdarg.h>

#include "io/file.h"
#include "io/json.h"
#include "train/run.h"
#include "backend/inspect.h"

static void add(mz_fault *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(mz_fault *f, const char *fmt, ...) {
    size_t used = strlen(f->text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->text + used, sizeof f->text - used, fmt, args);
    va_end(args);
}

static void begin(mz_fault *f, const char *kind, int64_t micro) {
    if (f->kind[0] == '\0')
        snprintf(f->kind, sizeof f->kind, "%s", kind);
    f->micro = micro;
    add(f, "step %lld", (long long)f->step);
    if (micro > 0)
        add(f, ", micro batch %lld", (long long)micro);
    add(f, ": ");
}

static void add_counts(mz_fault *f, const mz_inspection *v) {
    mz_inspection_describe(v, f->text, sizeof f->text);
}

// Reports the learning rate as a likely cause, unless no step has changed a weight yet.
static void tell_rate(const mz_training *run, mz_fault *f) {
    if (run->guard.before.lr > 0)
        add(f, "; a lower --lr (now %.4g) keeps weights and activations smaller", run->guard.before.lr);
}

// --- causes outside the program ------------------------------------------------------------------
static mezzo_status check_batches(mz_training *run, uint64_t data, mz_fault *f) {
    char wrong[sizeof run->guard.batch[0]];
    for (int64_t i = 0; i < run->config.grad_accum && f->text[0] == '\0'; i++) {
        MZ_INJECT_AT_DATA(run, f->step, i, data);
        MEZZO_TRY(mz_guard_draw(run, mz_run_batch(run, data, i), wrong, sizeof wrong));
        if (wrong[0] == '\0')
            continue;
        begin(f, "batch", i + 1);
        add(f, "the batch is bad: %s", wrong);
    }
    return MEZZO_OK;
}

static mezzo_status check_parameters(mz_training *run, mz_fault *f) {
    int index;
    mz_inspection values;
    MEZZO_TRY(mz_guard_bad_parameter(run, &index, &values));
    if (index < 0)
        return MEZZO_OK;
    f->parameter = true;
    begin(f, "parameters", 0);
    snprintf(f->module, sizeof f->module, "%s", mezzo_params_name(run->engine.session.params, index));
    add(f, "parameter %s (fp32) has ", mezzo_params_name(run->engine.session.params, index));
    add_counts(f, &values);
    tell_rate(run, f);
    return MEZZO_OK;
}

void mz_guard_describe_moment(mz_training *run, int which, int index, const mz_inspection *values, mz_fault *f) {
    const mezzo_optimizer *o = run->engine.session.optimizer;
    const char *name = o->params->list[o->index[index]].name;
    f->parameter = true; // the batch is not the cause: the next steps would fail, too
    begin(f, "moments", 0);
    snprintf(f->module, sizeof f->module, "%s", name);
    const char *stored = mezzo_moments_name(mz_optimizer_moments(o, which));
    snprintf(f->dtype, sizeof f->dtype, "%s", stored);
    add(f, "the optimizer's %s of %s (%s) has ", mz_optimizer_moment_name(o, which, index), name, stored);
    if (values->nans + values->infs > 0)
        add_counts(f, values);
    else
        add(f, "%lld values above %g, up to %.4g of %lld", (long long)values->large, (double)MZ_GUARD_MOMENT_LIMIT,
            fmax(-(double)values->low, (double)values->high), (long long)values->inspected);
    add(f, ": the gradients' norm was %.4g; lower --lr or set --clip", run->engine.readout.last.state.norm);
}

static mezzo_status check_moments(mz_training *run, mz_fault *f) {
    int which, index;
    mz_inspection values;
    MEZZO_TRY(mz_guard_bad_moment(run, &which, &index, &values));
    if (which >= 0)
        mz_guard_describe_moment(run, which, index, &values, f);
    return MEZZO_OK;
}

// --- causes in the program -----------------------------------------------------------------------
// Returns whether an override of its module alone leaves an op's format unchanged: the op's inputs decide it, or the
// readers of what an op in FP32 stores.
static bool is_from_others(const char *rule) {
    static const char *const others[] = {"follows its input", "widest of the inputs", "fp32:"};
    for (size_t i = 0; i < MZ_COUNT(others); i++)
        if (strncmp(rule, others[i], strlen(others[i])) == 0)
            return true;
    return false;
}

static void tell_rule(mz_fault *f, const mz_located *found) {
    const bool low = mz_located_low(found);
    if (low && is_from_others(found->rule))
        add(f, "; its format comes from the ops around it (rule: %s): check its inputs", found->rule);
    else if (low)
        add(f, "; --autocast.%s fp32 would keep it in fp32 (now by %s)", *found->module ? found->module : "*",
            found->rule);
    else
        add(f, "; it is already computed in fp32: check its inputs and the data");
}

// Describes the first bad value. first: the step's sample with which the micro batch begins.
static void describe(const mz_training *run, mz_fault *f, const mz_located *found, int64_t micro, int64_t first) {
    const char *kind = found->parameter                        ? "parameters"
                       : found->loss                           ? "loss"
                       : strcmp(found->phase, "backward") == 0 ? "gradients"
                                                               : "activation";
    f->parameter = found->parameter;
    begin(f, kind, micro);
    snprintf(f->op, sizeof f->op, "%s", found->op);
    snprintf(f->module, sizeof f->module, "%s", found->module);
    snprintf(f->phase, sizeof f->phase, "%s", found->phase);
    snprintf(f->dtype, sizeof f->dtype, "%s", mezzo_dtype_name(found->bad.dtype));
    f->sample = found->sample >= 0 ? first + found->sample + 1 : 0;
    mz_located_describe(found, f->sample, f->text, sizeof f->text);
    tell_rule(f, found);
    tell_rate(run, f);
}

// Checks the gradients: sums over micro batches may overflow where no op's own output did.
static mezzo_status check_gradients(mz_training *run, int64_t micro, mz_fault *f) {
    const mezzo_params *p = run->engine.session.params;
    for (int i = 0; i < (int)p->n && !p->scattered; i++) {
        mz_inspection values;
        if (p->list[i].frozen)
            continue;
        mz_tensor grad = mz_params_grad(p, i);
        MEZZO_TRY(mz_program_inspect(run->engine.session.train, &grad, 1, 0, &values));
        if (values.nans + values.infs == 0)
            continue;
        begin(f, "gradients", micro);
        snprintf(f->module, sizeof f->module, "%s", p->list[i].name);
        snprintf(f->dtype, sizeof f->dtype, "fp32");
        add(f, "the gradient of %s (fp32) has ", p->list[i].name);
        add_counts(f, &values);
        add(f, ", and every op's output was finite");
        tell_rate(run, f);
        return MEZZO_OK;
    }
    return MEZZO_OK;
}

static mezzo_status replay(mz_training *run, uint64_t data, mz_fault *f) {
    char wrong[sizeof run->guard.batch[0]];
    MEZZO_TRY(mezzo_optimizer_zero_grad(run->engine.session.optimizer));
    for (int64_t i = 0; i < run->config.grad_accum && f->text[0] == '\0'; i++) {
        mz_located found;
        const uint64_t batch = mz_run_batch(run, data, i);
        MZ_INJECT_AT_DATA(run, f->step, i, data);
        MEZZO_TRY(mz_guard_draw(run, batch, wrong, sizeof wrong));
        MEZZO_TRY(mz_examples_write(&run->data->examples, run->engine.session.train));
        MEZZO_TRY(mz_program_locate(run->engine.session.train, run->engine.session.scaler,
                                    mezzo_seed(run->config.seed, MEZZO_SEED_DROPOUT), batch,
                                    (float)run->config.guard_limit, &found));
        if (found.found) {
            describe(run, f, &found, i + 1, (int64_t)(batch - data) * run->config.batch_size);
            continue;
        }
        MZ_INJECT_GRADIENT(run);
        MEZZO_TRY(check_gradients(run, i + 1, f));
    }
    return mezzo_optimizer_zero_grad(run->engine.session.optimizer);
}

static void describe_unknown(const mz_training *run, mz_fault *f) {
    begin(f, f->kinds & MZ_BAD_LOSS ? "loss" : f->kinds & MZ_BAD_ACTIVATION ? "activation" : "gradients", 0);
    if (run->engine.session.params->exchanges) {
        add(f, "loss or gradients were not finite; ranks.experts gather would name the op");
        return;
    }
    add(f, "loss or gradients were not finite, and the replayed step's are: %s",
        run->engine.plan.scaler.enabled ? "the sum over the parameters overflowed, or the weights have changed since"
                                        : "the device computed a different result the second time; check its memory");
}

// Looks for the fault. *source: where the bad value lies identifies it, not the op that read it.
static mezzo_status look_for_fault(mz_training *run, uint64_t data, mz_fault *f, bool *source) {
    MEZZO_TRY(check_batches(run, data, f));
    if (f->text[0] == '\0')
        MEZZO_TRY(check_parameters(run, f));
    if (f->text[0] == '\0' && f->kinds & MZ_BAD_MOMENTS)
        MEZZO_TRY(check_moments(run, f));
    *source = f->text[0] != '\0';
    // One rank alone cannot exchange rows.
    return *source || run->engine.session.params->exchanges ? MEZZO_OK : replay(run, data, f);
}

// Every rank searches alone, so each needs whole parameters.
mezzo_status mz_guard_diagnose(mz_training *run, uint64_t data, mz_fault *f) {
    f->text[0] = '\0';
    MEZZO_TRY(mz_run_gather_weights(run, true));
    bool source = false;
    const mezzo_status status = look_for_fault(run, data, f, &source);
    mz_run_release_weights(run);
    MEZZO_TRY(status);
    const bool found = f->text[0] != '\0';
    if (!found)
        describe_unknown(run, f);
    return mz_run_share_fault(run, source ? MZ_KNOWS_SOURCE : found ? MZ_KNOWS_READER : MZ_KNOWS_NOTHING, f);
}

// --- the record ----------------------------------------------------------------------------------
static void add_member(mz_text *line, const char *key, const char *value) {
    mz_text_addf(line, ", \"%s\": ", key);
    mz_json_add_text(line, value);
}

mezzo_status mz_guard_record(mz_training *run, const mz_fault *f, const char *action) {
    mz_text line = {0};
    mz_file *file = NULL;
    if (run->report.metrics == NULL || !run->writes) // this run has no folder to write to
        return MEZZO_OK;
    const mz_path path = mz_path_of("%s/guard.jsonl", run->config.out);
    mz_text_addf(&line, "{\"step\": %lld, \"micro\": %lld", (long long)f->step, (long long)f->micro);
    add_member(&line, "kind", f->kind);
    add_member(&line, "action", action);
    add_member(&line, "op", f->op);
    add_member(&line, "module", f->module);
    add_member(&line, "phase", f->phase);
    add_member(&line, "dtype", f->dtype);
    mz_text_addf(&line, ", \"sample\": %lld", (long long)f->sample);
    add_member(&line, "text", f->text);
    mz_text_add(&line, "}\n", 2);
    mezzo_status status = line.status;
    if (status == MEZZO_OK)
        status = mz_file_append_own(path.text, &file);
    if (status == MEZZO_OK)
        status = mz_file_write(file, line.data, line.len);
    if (file != NULL)
        mz_file_discard(file); // opened for appending, so this closes it
    mz_text_free(&line);
    MEZZO_TRY(status);
    if (strcmp(action, "backoff") == 0) // the loss scale handles this: it is recorded, and needs no attention
        return MEZZO_OK;
    char text[sizeof f->text + 64];
    const char *said = strcmp(action, "skip") == 0       ? "; the step was skipped"
                       : strcmp(action, "rollback") == 0 ? "; going back to the newest checkpoint"
                                                         : "";
    snprintf(text, sizeof text, "%s%s", f->text, said);
    mz_run_event(run, MEZZO_EVENT_WARNING, text);
    return MEZZO_OK;
}
