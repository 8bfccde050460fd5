// Reports a run: progress to the caller, rows to metrics.jsonl and TensorBoard, and the result.
#include <math.h>

#include "base/precision.h"
#include "train/run.h"

enum { MOST_METRICS = 24 + MZ_SATURATION_ROWS };

static size_t sampler_memory(const mz_training *run) {
    mezzo_memory m = {0};
    if (run->decoder != NULL)
        mezzo_program_memory(run->decoder, &m);
    if (run->samples && !run->task->kind->pictures)
        return run->task->kind->sampler_memory(run->task);
    return m.activations + m.workspace + m.inputs;
}

mezzo_status mz_report_open(mz_training *run) {
    mz_report *r = &run->report;
    r->memory = mz_session_memory(&run->engine.session) + sampler_memory(run) + mz_replay_memory(run);
    r->rates = (mz_rates){.energy.each = (double)NAN};
    r->rates.flops = mz_model_flops(run->engine.session.train, &r->rates.attention) * (double)run->config.grad_accum;
    r->rates.attention *= (double)run->config.grad_accum;
    MEZZO_TRY(mz_peak_flops(run->engine.device, run->engine.info.description,
                            mz_precision(run->engine.plan.program.precision)->compute, run->config.peak_tflops,
                            &r->rates.peak));
    MEZZO_TRY(mz_expert_load_create(&run->engine.plan.model, &r->experts));
    MEZZO_TRY(mz_saturation_create(&r->saturation));
    return mz_gradient_norms_create(run->engine.session.optimizer, run->engine.session.ranks, &r->norms);
}

static void close_metrics(mz_report *r) {
    mz_metrics_close(r->metrics);
    mz_metrics_close(r->operands);
    r->metrics = r->operands = NULL;
}

void mz_report_close(mz_training *run) {
    mz_report *r = &run->report;
    close_metrics(r);
    mz_health_end(&r->health);
    mz_gradient_norms_free(run->engine.device, r->norms);
    mz_expert_load_free(r->experts);
    mz_saturation_free(r->saturation);
}

void mz_run_paused(mz_training *run, mz_pause kind, int64_t count, double start) {
    run->report.pauses[kind].seconds += mz_seconds() - start;
    run->report.pauses[kind].count += count;
}

// Counts the pauses that come each `every` steps before the last step, which has its own.
static double due_until(const mz_training *run, int64_t every) {
    const int64_t steps = run->config.steps;
    return every > 0 && run->step < steps ? (double)((steps - 1) / every - run->step / every) : 0;
}

// Returns the seconds of one pause; `guess` until one has been measured.
static double pause_seconds(const mz_training *run, mz_pause kind, double guess) {
    const mz_pause_time *p = &run->report.pauses[kind];
    return p->count > 0 ? p->seconds / (double)p->count : guess;
}

mz_val_kind mz_run_val_kind(const mz_training *run) {
    return run->config.eval_iters > 0 ? MZ_VAL_SAMPLE : MZ_VAL_WHOLE;
}

// Returns whether the run validates after its last step: the last checkpoint competes for the best one with a loss of
// the same kind.
bool mz_run_validates_last(const mz_training *run, mz_val_kind kind) {
    const bool whole = run->config.eval_final || mz_run_val_kind(run) == MZ_VAL_WHOLE;
    if (kind == MZ_VAL_WHOLE)
        return whole;
    return mz_run_val_kind(run) == MZ_VAL_SAMPLE && (run->config.eval_every > 0 || !whole);
}

static double validation_batches(const mz_training *run) {
    const mz_run_config *c = &run->config;
    if (run->val_random == NULL)
        return 0;
    const double some = (double)c->eval_iters, all = (double)run->val_all->batches;
    const bool whole = mz_run_validates_last(run, MZ_VAL_WHOLE), sample = mz_run_validates_last(run, MZ_VAL_SAMPLE);
    return due_until(run, c->eval_every) * (c->eval_iters > 0 ? some : all) + (whole ? all : 0) + (sample ? some : 0);
}

static double seconds_left(const mz_training *run) {
    const mz_run_config *c = &run->config;
    const int64_t done = run->step - run->first_step;
    if (done <= 0)
        return (double)NAN;
    const double step = run->report.step_seconds / (double)done;
    const double forward = step / 3 / (double)c->grad_accum; // two of a step's three products belong to backward
    double left = step * (double)(c->steps - run->step);
    left += validation_batches(run) * pause_seconds(run, MZ_PAUSE_VALIDATION, forward);
    if (run->samples)
        left += (due_until(run, c->sample_every) + 1) * pause_seconds(run, MZ_PAUSE_SAMPLE, 0);
    if (c->checkpoint_every >= 0)
        left += (due_until(run, c->checkpoint_every) + 1) * pause_seconds(run, MZ_PAUSE_CHECKPOINT, 0);
    return left;
}

static double step_seconds(const mz_training *run) { // of one step since the last report; NaN when there was none
    int64_t n = run->step - run->report.reported_step;
    return n > 0 ? (run->report.step_seconds - run->report.reported_seconds) / (double)n : (double)NAN;
}

static double items_a_step(const mz_training *run) { // tokens or examples: the task's unit
    return (double)run->data->examples.items * (double)mz_run_batches(run);
}

static double mfu_of(const mz_rates *rates, double seconds) { // of a step
    return rates->peak > 0 ? mz_rates_flops(rates) / seconds / rates->peak : (double)NAN;
}

static double waits(const mz_training *run) { // of one step since the last report
    int64_t n = run->step - run->report.reported_step;
    return n > 0 ? (run->report.rates.waits - run->report.rates.reported_waits) / (double)n : (double)NAN;
}

static double host_ms(const mz_training *run, mz_host_work work) { // of one step since the last report
    const int64_t n = run->step - run->report.reported_step;
    return n > 0 ? 1e3 * (run->report.host[work] - run->report.reported_host[work]) / (double)n : (double)NAN;
}

static double newest_validation(const mz_training *run) {
    const mz_validation *sample = &run->report.val[MZ_VAL_SAMPLE], *whole = &run->report.val[MZ_VAL_WHOLE];
    return whole->step >= sample->step ? whole->score.loss : sample->score.loss;
}

static mezzo_progress progress_of(const mz_training *run, mezzo_event event, const char *text) {
    const mz_step_report *last = &run->engine.readout.last;
    double each = step_seconds(run);
    return (mezzo_progress){.event = event,
                            .step = run->step,
                            .steps = run->config.steps,
                            .loss = last->loss,
                            .val_loss = newest_validation(run),
                            .lr = last->state.lr,
                            .grad_norm = last->state.norm,
                            .loss_scale = last->step > 0 ? (double)last->scaler.scale : 1,
                            .skipped = last->state.skipped,
                            .tokens_per_second = items_a_step(run) / each,
                            .unit = run->task->kind->unit,
                            .step_ms = each * 1e3,
                            .mfu = mfu_of(&run->report.rates, each),
                            .model_tflops = mz_rates_flops(&run->report.rates) / each * 1e-12,
                            .joules_per_token = run->report.rates.energy.each,
                            .wait_ms = waits(run) * 1e3,
                            .memory_bytes = run->report.memory,
                            .seconds = mz_seconds() - run->report.started,
                            .seconds_left = seconds_left(run),
                            .precision = mezzo_precision_name(run->engine.plan.program.precision),
                            .text = text};
}

void mz_run_event(mz_training *run, mezzo_event event, const char *text) {
    if (run->hooks.progress == NULL)
        return;
    mezzo_progress progress = progress_of(run, event, text);
    run->hooks.progress(run->hooks.user, &progress);
}

void mz_run_describe_model(const mz_training *run, char *out, size_t size) {
    char sizes[200];
    run->task->kind->describe(run->task, sizes, sizeof sizes);
    snprintf(out, size, "%s: %s: %.2f M parameters", mz_model_name(&run->engine.plan.model), sizes,
             (double)mezzo_params_elements(run->engine.session.params) * 1e-6);
}

void mz_run_started(mz_training *run) {
    char line[1024], model[256];
    mz_run_describe_model(run, model, sizeof model);
    snprintf(line, sizeof line, "%s; %s; %s", model, run->engine.info.description, run->engine.precision_reason);
    mz_run_event(run, MEZZO_EVENT_START, line);
}

// Compares with what the checkpoint records from which the run resumes.
static mezzo_status check_metrics(const mz_training *run) {
    const char *from = run->report.result.checkpoint;
    const size_t n = strlen(run->checkpoints);
    mz_written was;
    int64_t at = 0;
    if (strncmp(from, run->checkpoints, n) != 0 || from[n] != '/') // the checkpoint belongs to another run
        return MEZZO_OK;
    MEZZO_TRY(mz_manifest_metrics(run->checkpoints, run->step, &was, &at));
    return mz_metrics_check(run->config.out, was, at);
}

// Returns the loss of a guess that gives every class the same probability; NaN for a model without classes.
static double chance_loss(const mz_training *run) {
    const int64_t classes = run->task->wants.classes;
    return classes > 1 ? log((double)classes) : (double)NAN;
}

// Opens the files of records, without those later than `from`; from -1: the files must have no records yet.
static mezzo_status open_metrics(mz_training *run, int64_t from) {
    MEZZO_TRY(mz_metrics_open(run->config.out, "metrics.jsonl", from, true, &run->report.metrics));
    if (run->engine.counterfactual == NULL)
        return MEZZO_OK;
    return mz_metrics_open(run->config.out, "counterfactual.jsonl", from, false, &run->report.operands);
}

mezzo_status mz_run_cut_metrics(mz_training *run) {
    close_metrics(&run->report);
    MEZZO_TRY(check_metrics(run));
    return open_metrics(run, run->step);
}

mezzo_status mz_run_open_metrics(mz_training *run) {
    bool resuming = run->config.resume[0] != '\0';
    if (resuming)
        MEZZO_TRY(check_metrics(run));
    MEZZO_TRY(open_metrics(run, resuming ? run->step : -1));
    MEZZO_TRY(mz_run_recall_health(run));
    if (run->step > 0)
        return MEZZO_OK; // the file has it already
    char model[256];
    mz_run_describe_model(run, model, sizeof model);
    mz_metric row[6] = {mz_metric_text("run/model", model), mz_metric_text("run/device", run->engine.info.description),
                        mz_metric_text("run/precision", run->engine.precision_reason)};
    size_t n = 3;
    if (!isnan(chance_loss(run)))
        row[n++] = mz_metric_number("run/chance_loss", chance_loss(run));
    if (!isnan(run->task->padding)) {
        row[n++] = mz_metric_number("run/padding", run->task->padding);
        row[n++] = mz_metric_number("run/padding_unpacked", run->task->padding_alone);
    }
    return mz_metrics_write(run->report.metrics, 0, row, n);
}

mezzo_status mz_run_recall_health(mz_training *run) {
    mz_health_end(&run->report.health);
    MEZZO_TRY(mz_health_begin(&run->report.health));
    run->report.health.chance = chance_loss(run);
    return mz_health_read(&run->report.health, run->config.out);
}

static void look_at_health(mz_training *run, const mezzo_progress *p, double underflow, double saturated,
                           const char *tensor) {
    char line[512];
    mz_health_row row = {.step = run->step,
                         .loss = p->loss,
                         .val_loss = (double)NAN,
                         .lr = p->lr,
                         .chance = (double)NAN,
                         .scale = p->loss_scale,
                         .skipped = (double)p->skipped,
                         .underflow = underflow,
                         .saturated = saturated,
                         .has_loss = true,
                         .scaling = run->engine.session.scaler->update.enabled};
    snprintf(row.tensor, sizeof row.tensor, "%s", tensor);
    mz_health_add(&run->report.health, &row);
    bool healthy = mz_health_verdict(&run->report.health, line, sizeof line);
    if (!healthy && !run->report.unhealthy) // it prints once, when the run becomes unhealthy
        mz_run_event(run, MEZZO_EVENT_WARNING, line);
    run->report.unhealthy = !healthy;
}

mezzo_status mz_run_log_step(mz_training *run) {
    if (!mz_run_leads(run)) {
        run->report.reported_step = run->step;
        run->report.reported_seconds = run->report.step_seconds;
        return MEZZO_OK;
    }
    MEZZO_TRY(mz_lock_renew(&run->lock, run->config.out));
    double range, joules = mz_read_joules(run->engine.device, &range);
    mz_energy_add(&run->report.rates.energy, joules, range, mz_seconds(),
                  (double)run->data->examples.items * (double)run->config.grad_accum * (double)run->step);
    const mezzo_progress p = progress_of(run, MEZZO_EVENT_STEP, "");
    char total[48], rate[48], joules_each[48];
    snprintf(total, sizeof total, "train/%s", p.unit);
    snprintf(rate, sizeof rate, "perf/%s_per_second", p.unit);
    snprintf(joules_each, sizeof joules_each, "perf/joules_per_%.*s", (int)(strlen(p.unit) - 1), p.unit);
    const mz_step_report *last = &run->engine.readout.last;
    mz_metric row[MOST_METRICS] = {
        mz_metric_number("train/loss", p.loss),
        mz_metric_number("train/lr", p.lr),
        mz_metric_int(total, (int64_t)(items_a_step(run) * (double)run->step)),
        mz_metric_number("gradients/total_norm", p.grad_norm),
        mz_metric_number("gradients/clip_factor", last->state.last_clip),
        mz_metric_bool("amp/enabled", run->engine.plan.program.precision != MEZZO_PRECISION_FP32),
        mz_metric_text("amp/precision", p.precision),
        mz_metric_number("amp/loss_scale", p.loss_scale),
        mz_metric_int("amp/growth_tracker", last->scaler.tracker),
        mz_metric_int("amp/skipped_steps", p.skipped),
        mz_metric_int("guard/bad_steps", run->guard.bad_steps),
        mz_metric_int("guard/rollbacks", run->guard.rollbacks),
        mz_metric_number(rate, p.tokens_per_second),
        mz_metric_number("perf/step_ms", p.step_ms),
        mz_metric_number("perf/wait_ms", p.wait_ms),
        mz_metric_number("perf/draw_ms", host_ms(run, MZ_HOST_DRAW)),
        mz_metric_number("perf/write_ms", host_ms(run, MZ_HOST_WRITE)),
        mz_metric_number("perf/read_ms", host_ms(run, MZ_HOST_READ)),
        mz_metric_number("perf/model_tflops", p.model_tflops),
        mz_metric_int("perf/memory_bytes", (int64_t)p.memory_bytes),
    };
    size_t n = 0;
    while (row[n].name != NULL)
        n++;
    if (!isnan(p.mfu))
        row[n++] = mz_metric_number("perf/mfu", p.mfu);
    if (!isnan(p.joules_per_token))
        row[n++] = mz_metric_number(joules_each, p.joules_per_token);
    double underflow = (double)NAN, saturated;
    const char *tensor;
    MEZZO_TRY(mz_saturation_rows(run->report.saturation, run->engine.device, &run->engine.session.params->scales,
                                 run->step, row, &n, &saturated, &tensor));
    mz_run_event(run, MEZZO_EVENT_STEP, "");
    run->report.reported_step = run->step;
    run->report.reported_seconds = run->report.step_seconds;
    run->report.rates.reported_waits = run->report.rates.waits;
    memcpy(run->report.reported_host, run->report.host, sizeof run->report.host);
    MEZZO_TRY(mz_metrics_write(run->report.metrics, run->step, row, n));
    if (run->guard.last_bad != run->step)
        MEZZO_TRY(mz_gradient_norms_log(run->report.norms, run->engine.session.train, run->engine.device,
                                        run->report.metrics, run->step, &underflow));
    look_at_health(run, &p, underflow, saturated, tensor);
    if (run->report.experts == NULL)
        return MEZZO_OK;
    int64_t rows = run->data->examples.items * run->engine.plan.model.config.experts_per_token;
    return mz_expert_load_log(run->report.experts, run->engine.session.train, rows, run->report.metrics, run->step);
}

mezzo_status mz_run_log_magnitudes(mz_training *run) {
    if (!mz_run_leads(run))
        return MEZZO_OK;
    MEZZO_TRY(mz_magnitudes_read(run->engine.magnitudes));
    return mz_magnitudes_log(run->engine.magnitudes, run->report.metrics, run->step);
}

mezzo_status mz_run_log_counterfactual(mz_training *run) {
    return mz_counterfactual_log(run->engine.counterfactual, run->engine.session.train, run->report.operands,
                                 run->report.metrics, run->step);
}

mezzo_status mz_run_log_validation(mz_training *run, mz_val_kind kind) {
    static const char *const names[MZ_VAL_KINDS][5] = {
        [MZ_VAL_SAMPLE] = {"val/sampled_loss", "val/best_sampled_loss", "val/sampled_accuracy", "val/sampled_mae",
                           "val/sampled_r2"},
        [MZ_VAL_WHOLE] = {"val/loss", "val/best_loss", "val/accuracy", "val/mae", "val/r2"}};
    const mz_evaluation *score = &run->report.val[kind].score;
    mz_health_add(&run->report.health, &(mz_health_row){.step = run->step,
                                                        .has_val = true,
                                                        .val_loss = score->loss,
                                                        .chance = (double)NAN,
                                                        .underflow = (double)NAN});
    mz_metric row[5] = {mz_metric_number(names[kind][0], score->loss)};
    size_t n = 1;
    const double scores[] = {score->accuracy, score->mae, score->r2};
    for (size_t i = 0; i < MZ_COUNT(scores); i++)
        if (!isnan(scores[i]))
            row[n++] = mz_metric_number(names[kind][i + 2], scores[i]);
    if (kind == mz_run_val_kind(run) && isfinite(run->report.best_val_loss))
        row[n++] = mz_metric_number(names[kind][1], run->report.best_val_loss);
    return mz_metrics_write(run->report.metrics, run->step, row, n);
}

void mz_run_result(mz_training *run) {
    mezzo_train_result *r = &run->report.result;
    int64_t done = run->step - run->first_step;
    r->steps = run->step;
    r->skipped = run->engine.readout.last.state.skipped;
    r->loss = run->engine.readout.last.loss;
    const mz_evaluation *whole = &run->report.val[MZ_VAL_WHOLE].score, *sample = &run->report.val[MZ_VAL_SAMPLE].score;
    r->val_loss = whole->loss;
    r->sampled_val_loss = sample->loss;
    const mz_evaluation *last = isnan(whole->loss) ? sample : whole;
    r->val_accuracy = last->accuracy;
    r->val_mae = last->mae;
    r->val_r2 = last->r2;
    r->best_val_loss = run->report.best_val_loss;
    r->val_bits_per_byte = (double)NAN;
    r->perplexity_per = run->task != NULL && run->task->kind->target != NULL ? run->task->kind->target(run->task) : "";
    mz_task_metric derived[MZ_TASK_METRICS];
    for (int i = run->task != NULL ? run->task->kind->metrics(whole, derived) : 0; i-- > 0;)
        if (strcmp(derived[i].name, "bits_per_byte") == 0)
            r->val_bits_per_byte = derived[i].value;
    r->seconds = mz_seconds() - run->report.started;
    r->tokens_per_second =
        run->report.step_seconds > 0 ? items_a_step(run) * (double)done / run->report.step_seconds : 0;
    r->unit = run->task != NULL ? run->task->kind->unit : "tokens";
    r->mfu = done > 0 ? mfu_of(&run->report.rates, run->report.step_seconds / (double)done) : (double)NAN;
    const mz_energy_meter *energy = &run->report.rates.energy;
    r->joules_per_token = energy->sum_items > 0 ? energy->sum_joules / energy->sum_items : (double)NAN;
    r->wait_share = run->report.step_seconds > 0 ? run->report.rates.waits / run->report.step_seconds : 0;
    r->memory_bytes = run->report.memory;
    r->rank = run->engine.rank;
    r->ranks = run->engine.size;
    r->precision = run->engine.plan.program.precision;
    r->healthy = mz_health_verdict(&run->report.health, r->health, sizeof r->health);
    snprintf(r->device, sizeof r->device, "%s", run->engine.info.description);
}
