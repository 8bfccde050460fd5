// Trains the same small model in several precisions on this machine, and measures the time to the same loss.
#include <math.h>
#include <unistd.h>

#include "study/lab/lab.h"

enum { BLOCK = 5 }; // steps of one precision's turn; other load on the machine then affects all precisions alike

typedef struct runner {
    mezzo_config *config; // of the trial
    mz_trial *trial;
    double *loss, *seconds; // [steps]: smoothed loss after each step, and time in steps so far
    double smooth, weight, spent;
} runner;

static mezzo_status open_runner(const mz_speed_options *o, mezzo_precision precision, const char *text, runner *r) {
    char layers[24], width[24], batch[24], threads[16];
    snprintf(layers, sizeof layers, "%lld", (long long)o->layers);
    snprintf(width, sizeof width, "%lld", (long long)o->d_model);
    snprintf(batch, sizeof batch, "%lld", (long long)o->batch);
    snprintf(threads, sizeof threads, "%d", o->threads);
    const char *const keys[][2] = {
        {"model.name", "gpt2"},       {"model.layers", layers},
        {"model.heads", "4"},         {"model.d_model", width},
        {"model.seq_len", "128"},     {"model.vocab", "256"},
        {"train.batch_size", batch},  {"data.tokenizer", "byte"},
        {"data.path", text},          {"optimizer.lr", "1e-3"},
        {"schedule.warmup", "5"},     {"schedule.kind", "constant"},
        {"train.sample_every", "-1"}, {"device.name", o->device != NULL ? o->device : "auto"},
        {"device.threads", threads},  {"amp.precision", mezzo_precision_name(precision)}};
    MEZZO_TRY(mezzo_config_create(&r->config));
    MEZZO_TRY(mz_lab_set(r->config, keys, MZ_COUNT(keys)));
    MEZZO_TRY(mz_trial_open(NULL, r->config, NULL, &r->trial));
    r->loss = mz_alloc((size_t)o->steps, sizeof *r->loss);
    r->seconds = mz_alloc((size_t)o->steps, sizeof *r->seconds);
    return r->loss == NULL || r->seconds == NULL ? MEZZO_ERR_MEMORY : MEZZO_OK;
}

// Adds the loss of a step to a mean with a time constant of ten steps, corrected for its start as Adam's moments are.
static void note(runner *r, const mz_step_report *report, int64_t steps) {
    if (report == NULL || report->step < 1 || report->step > steps)
        return;
    r->smooth = 0.9 * r->smooth + 0.1 * report->loss;
    r->weight = 0.9 * r->weight + 0.1;
    r->loss[report->step - 1] = r->smooth / r->weight;
}

static mezzo_status run_block(runner *r, int64_t steps) {
    for (int i = 0; i < BLOCK && mz_trial_steps(r->trial) < steps; i++) {
        const mz_step_report *report;
        bool last = mz_trial_steps(r->trial) + 1 == steps;
        double start = mz_seconds();
        MEZZO_TRY(mz_trial_step(r->trial, last || i == BLOCK - 1, &report));
        r->spent += mz_seconds() - start;
        r->seconds[mz_trial_steps(r->trial) - 1] = r->spent;
        note(r, report, steps);
    }
    return MEZZO_OK;
}

static mezzo_status race(const mz_speed_options *o, runner *runners, int n) {
    char *text = NULL;
    mezzo_status status = o->data == NULL ? mz_lab_text(&text) : MEZZO_OK;
    for (int i = 0; i < n && status == MEZZO_OK; i++)
        status = open_runner(o, o->precisions[i], o->data != NULL ? o->data : text, &runners[i]);
    if (text != NULL)
        unlink(text); // it has been read into memory
    mz_free(text);
    MEZZO_TRY(status);
    while (mz_trial_steps(runners[n - 1].trial) < o->steps)
        for (int i = 0; i < n; i++) {
            mz_work("training", n * mz_trial_steps(runners[n - 1].trial) + i * BLOCK, n * o->steps);
            MEZZO_TRY(run_block(&runners[i], o->steps));
            if (o->stop != NULL && *o->stop)
                return mz_fail(MEZZO_ERR_INTERRUPTED, "stopped after %lld of %lld steps",
                               (long long)mz_trial_steps(runners[i].trial), (long long)o->steps);
        }
    mz_work("training", n * o->steps, n * o->steps);
    return MEZZO_OK;
}

// Fills in steps whose loss was not read separately (on a device that is read late) with the loss before.
static void fill(runner *r, int64_t steps) {
    for (int64_t s = 1; s < steps; s++)
        if (r->loss[s] == 0)
            r->loss[s] = r->loss[s - 1];
}

static void finish(const mz_speed_options *o, const runner *r, mezzo_precision asked, double target,
                   mz_speed_row *row) {
    const mz_trial_facts t = mz_trial_describe(r->trial);
    int64_t half = o->steps / 2;
    *row = (mz_speed_row){.asked = asked,
                          .effective = t.program.precision,
                          .ms = 1e3 * (r->spent - r->seconds[half - 1]) / (double)(o->steps - half),
                          .final_loss = r->loss[o->steps - 1],
                          .seconds = (double)NAN,
                          .skipped = mz_trial_last(r->trial)->state.skipped,
                          .memory = t.memory};
    row->tokens_per_second = (double)t.items / row->ms * 1e3;
    snprintf(row->reason, sizeof row->reason, "%.*s", (int)sizeof row->reason - 1, t.reason);
    for (int64_t s = 0; s < o->steps; s++)
        if (r->loss[s] <= target && r->loss[s] > 0) {
            row->steps = s + 1;
            row->seconds = r->seconds[s];
            break;
        }
}

mezzo_status mz_speed_race(const mz_speed_options *o, mz_speed_row *rows, mz_speed_result *result) {
    runner runners[MZ_SPEED_MOST] = {0};
    *result = (mz_speed_result){.target = o->target};
    mezzo_status status = race(o, runners, o->n_precisions);
    for (int i = 0; i < o->n_precisions && status == MEZZO_OK; i++) {
        fill(&runners[i], o->steps);
        if (o->target <= 0) // the target is then a loss that all precisions reach
            result->target = fmax(result->target, runners[i].loss[o->steps - 1]);
    }
    for (int i = 0; i < o->n_precisions && status == MEZZO_OK; i++)
        finish(o, &runners[i], o->precisions[i], result->target, &rows[i]);
    for (int i = 0; i < o->n_precisions && status == MEZZO_OK; i++)
        rows[i].times = rows[0].seconds / rows[i].seconds;
    if (status == MEZZO_OK) {
        const mz_trial_facts first = mz_trial_describe(runners[0].trial);
        snprintf(result->device, sizeof result->device, "%s", first.device);
        result->parameters = first.parameters;
    }
    for (int i = 0; i < o->n_precisions; i++) {
        mz_trial_close(runners[i].trial);
        mezzo_config_free(runners[i].config);
        MZ_FREE(runners[i].loss, runners[i].seconds);
    }
    MEZZO_TRY(status);
    return MEZZO_OK;
}
