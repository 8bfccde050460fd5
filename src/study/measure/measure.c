#include "study/measure/measure.h"

#include <math.h>

#include "backend/backend.h"
#include "graph/graph.h"
#include "mezzo/step.h"
#include "study/analyse/stats.h"
#include "task/task.h"

struct mz_rig {
    mezzo_device *device; // borrowed
    mz_workload w;
    mezzo_graph *graph; // kept for the forward-only program
    mezzo_params *params;
    mezzo_program *train, *forward; // forward: made when it is first timed
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
    mezzo_step *step;
    mz_examples examples;
    uint64_t runs;
};

// --- what it is ----------------------------------------------------------------------------------------------------
static bool of_texts(const mz_workload *w) {
    return mezzo_model_task(&w->model) == MEZZO_TASK_LANGUAGE;
}

int64_t mz_workload_items(const mz_workload *w) {
    return w->batch * (w->grad_accum > 0 ? w->grad_accum : 1) * (of_texts(w) ? w->seq_len : 1);
}

const char *mz_workload_unit(const mz_workload *w) {
    return mz_task_kind_of(&w->model)->unit;
}

void mz_workload_describe(const mz_workload *w, char *out, size_t size) {
    const mezzo_model_config *m = &w->model;
    if (of_texts(w))
        snprintf(out, size, "%lld x %lld tokens", (long long)w->batch, (long long)w->seq_len);
    else if (mezzo_model_task(m) == MEZZO_TASK_IMAGES)
        snprintf(out, size, "%lld image%s of %lld x %lld x %lld", (long long)w->batch, w->batch == 1 ? "" : "s",
                 (long long)m->image_size, (long long)m->image_size, (long long)m->channels);
    else
        snprintf(out, size, "%lld example%s", (long long)w->batch, w->batch == 1 ? "" : "s");
}

// --- making --------------------------------------------------------------------------------------------------------
mezzo_program_options mz_workload_options(const mz_workload *w, bool forward_only) {
    return (mezzo_program_options){.precision = w->precision,
                                   .residual = w->residual,
                                   .overrides = w->overrides,
                                   .n_overrides = w->n_overrides,
                                   .logits_rows = w->logits_rows,
                                   .recompute = w->recompute && !forward_only,
                                   .recompute_light = w->recompute_light && !forward_only,
                                   .forward_only = forward_only,
                                   .loss_weight = 1.0F / (float)(w->grad_accum > 0 ? w->grad_accum : 1),
                                   .single_micro_batch = w->grad_accum <= 1 && !w->canonical && !forward_only};
}

// Uniform numbers of the same variance, of which a large parameter has a million: they take a fraction of the time of
// as many normal ones, and a step's time is the same.
static void quick_start(mezzo_graph *g) {
    g->repeats_init = true;
    for (size_t i = 0; i < g->n_params; i++)
        if (g->params[i].init.kind == MEZZO_INIT_NORMAL || g->params[i].init.kind == MEZZO_INIT_TRUNCATED)
            g->params[i].init = (mezzo_init){.kind = MEZZO_INIT_UNIFORM, .a = g->params[i].init.a * sqrtf(3.0F)};
}

mezzo_status mz_workload_graph(const mz_workload *w, mezzo_graph **out) {
    mezzo_status status;
    *out = NULL;
    MEZZO_TRY(mezzo_graph_create(out));
    MEZZO_TRY_GOTO(status, mezzo_graph_adapt(*out, &w->lora));
    MEZZO_TRY_GOTO(status, mezzo_model_build(*out, &w->model, w->batch, w->seq_len, false));
    if (w->freeze != NULL)
        MEZZO_TRY_GOTO(status, mezzo_graph_freeze(*out, w->freeze));
    MEZZO_TRY_GOTO(status, mezzo_graph_freeze_base(*out));
    return MEZZO_OK;
fail:
    mezzo_graph_free(*out);
    *out = NULL;
    return status;
}

static mezzo_status make_examples(mz_rig *rig) {
    mezzo_model_config model = rig->w.model;
    model.seq_len = rig->w.seq_len;
    return mz_examples_make(&model, rig->w.batch, rig->w.seed, &rig->examples);
}

static mezzo_status open_rig(mz_rig *rig) {
    const mezzo_program_options options = mz_workload_options(&rig->w, false);
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    mezzo_scaler_options s = mezzo_scaler_defaults();
    o.schedule.lr = 1e-4; // moves the weights, and leaves every number finite
    o.decay_min_rank = 2;
    if (rig->w.sgd)
        o.kind = MEZZO_SGD;
    o.momentum = rig->w.momentum;
    o.ema = rig->w.ema;
    o.moments = rig->w.sgd ? MEZZO_MOMENTS_FP32 : rig->w.moments;
    s.enabled = mezzo_precision_needs_loss_scale(rig->w.precision);
    MEZZO_TRY(make_examples(rig));
    MEZZO_TRY(mz_workload_graph(&rig->w, &rig->graph));
    quick_start(rig->graph);
    MEZZO_TRY(mezzo_params_create_as(rig->device, rig->graph, &options, rig->w.seed, rig->w.master, &rig->params));
    MEZZO_TRY(mezzo_program_create(rig->graph, rig->params, &options, &rig->train));
    MEZZO_TRY(mezzo_optimizer_create(rig->params, &o, &rig->optimizer));
    MEZZO_TRY(mezzo_scaler_create(rig->device, &s, &rig->scaler));
    const mezzo_step_options step = {.micro_batches = rig->w.grad_accum, .clip = 1.0};
    MEZZO_TRY(mezzo_step_create(rig->train, &rig->optimizer, 1, rig->scaler, &step, &rig->step));
    return mz_examples_write(&rig->examples, rig->train);
}

mezzo_status mz_rig_create(mezzo_device *device, const mz_workload *w, mz_rig **out) {
    *out = NULL;
    if (w->batch < 1 || w->seq_len < 1 || w->grad_accum < 1)
        return mz_fail(MEZZO_ERR_INVALID, "a step needs at least one sequence, one token and one micro batch");
    mz_rig *rig = mz_alloc(1, sizeof *rig);
    if (rig == NULL)
        return MEZZO_ERR_MEMORY;
    rig->device = device;
    rig->w = *w;
    mezzo_status status = open_rig(rig);
    if (status != MEZZO_OK) {
        mz_rig_free(rig);
        return mz_trace(status, __FILE__, __LINE__, __func__);
    }
    *out = rig;
    return MEZZO_OK;
}

void mz_rig_free(mz_rig *rig) {
    if (rig == NULL)
        return;
    mezzo_step_free(rig->step);
    mezzo_scaler_free(rig->scaler);
    mezzo_optimizer_free(rig->optimizer);
    mezzo_program_free(rig->forward);
    mezzo_program_free(rig->train);
    mezzo_params_free(rig->params);
    mezzo_graph_free(rig->graph);
    mz_examples_free(&rig->examples);
    mz_free(rig);
}

size_t mz_rig_memory(const mz_rig *rig) {
    mezzo_memory m;
    mezzo_program_memory(rig->train, &m);
    return m.masters + m.gradients + m.shadows + m.activations + m.workspace + m.inputs +
           mezzo_optimizer_memory(rig->optimizer);
}

mezzo_device *mz_rig_device(const mz_rig *rig) {
    return rig->device;
}

// --- running -------------------------------------------------------------------------------------------------------
static mezzo_status run_micro(mz_rig *rig) {
    if (rig->w.grad_accum <= 1)
        MEZZO_TRY(mezzo_params_zero_grad(rig->params));
    return mezzo_program_run(rig->train, rig->scaler, rig->w.seed, rig->runs++);
}

static mezzo_status run_step(mz_rig *rig) {
    for (int64_t i = 0; i < rig->w.grad_accum; i++)
        MEZZO_TRY(mezzo_step_micro(rig->step, rig->w.seed, rig->runs++));
    return mezzo_step_finish(rig->step);
}

static mezzo_status run_forward(mz_rig *rig) {
    if (rig->forward == NULL) {
        const mezzo_program_options options = mz_workload_options(&rig->w, true);
        MEZZO_TRY(mezzo_program_create(rig->graph, rig->params, &options, &rig->forward));
        MEZZO_TRY(mz_examples_write(&rig->examples, rig->forward));
    }
    return mezzo_program_run(rig->forward, NULL, rig->w.seed, rig->runs);
}

static mezzo_status run_once(mz_rig *rig, mz_timed what) {
    switch (what) {
    case MZ_TIMED_FORWARD:
        return run_forward(rig);
    case MZ_TIMED_MICRO:
        return run_micro(rig);
    case MZ_TIMED_STEP:
        return run_step(rig);
    }
    return MEZZO_OK;
}

static mezzo_status stopped(const mz_repeats *r) {
    if (r->stop != NULL && *r->stop)
        return mz_fail(MEZZO_ERR_INTERRUPTED, "stopped while measuring");
    return MEZZO_OK;
}

// `n` repeats one after the other with a mark between each; then all times. At most MZ_MARKS - 1.
static mezzo_status time_some(mz_rig *rig, mz_timed what, const mz_repeats *r, int n, double *seconds) {
    MEZZO_TRY(mezzo_device_mark(rig->device, 0));
    for (int i = 0; i < n; i++) {
        MEZZO_TRY(stopped(r));
        MEZZO_TRY(run_once(rig, what));
        MEZZO_TRY(mezzo_device_mark(rig->device, i + 1));
    }
    for (int i = 0; i < n; i++)
        MEZZO_TRY(mezzo_device_elapsed(rig->device, i, i + 1, &seconds[i]));
    return MEZZO_OK;
}

mezzo_status mz_rig_time(mz_rig *rig, mz_timed what, const mz_repeats *r, double *seconds, int *n) {
    *n = 0;
    if (r->iters < 1 || r->iters > MZ_REPEATS_MAX)
        return mz_fail(MEZZO_ERR_INVALID, "%d repeats: use 1 to %d", r->iters, MZ_REPEATS_MAX);
    for (int i = 0; i < r->warmup; i++) {
        MEZZO_TRY(stopped(r));
        MEZZO_TRY(run_once(rig, what));
    }
    // No wait here: it would run the update that the next step takes along, and that step would be another one.
    while (*n < r->iters) {
        int some = r->iters - *n;
        if (r->least > 0 && *n < r->least && r->least < r->iters)
            some = r->least - *n;
        if (some > MZ_MARKS - 1)
            some = MZ_MARKS - 1;
        MEZZO_TRY(time_some(rig, what, r, some, seconds + *n));
        *n += some;
        if (r->least > 1 && *n >= r->least &&
            mz_deviation(seconds, (size_t)*n) < r->enough * mz_mean(seconds, (size_t)*n))
            break;
    }
    if (what == MZ_TIMED_MICRO) // gradients of repeats must not add up
        MEZZO_TRY(mezzo_params_zero_grad(rig->params));
    return MEZZO_OK;
}

mezzo_status mz_rig_time_phases(mz_rig *rig, const mz_repeats *r, double *forward, double *micro) {
    enum { SOME = (MZ_MARKS - 1) / 2 };
    for (int done = -r->warmup, some; done < r->iters; done += some) {
        some = done < 0 ? -done : r->iters - done;
        some = some > SOME ? SOME : some;
        MEZZO_TRY(mezzo_device_sync(rig->device));
        MEZZO_TRY(mezzo_device_mark(rig->device, 0));
        for (int i = 0; i < some; i++) {
            MEZZO_TRY(stopped(r));
            MEZZO_TRY(run_forward(rig));
            MEZZO_TRY(mezzo_device_mark(rig->device, 2 * i + 1));
            MEZZO_TRY(run_micro(rig));
            MEZZO_TRY(mezzo_device_mark(rig->device, 2 * i + 2));
        }
        for (int i = 0; i < some && done >= 0; i++) {
            MEZZO_TRY(mezzo_device_elapsed(rig->device, 2 * i, 2 * i + 1, &forward[done + i]));
            MEZZO_TRY(mezzo_device_elapsed(rig->device, 2 * i + 1, 2 * i + 2, &micro[done + i]));
        }
    }
    return mezzo_params_zero_grad(rig->params);
}

mezzo_status mz_rig_step(mz_rig *rig) {
    return run_step(rig);
}

mezzo_status mz_rig_run_steps(mz_rig *rig, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        MEZZO_TRY(run_step(rig));
    return mezzo_device_sync(rig->device);
}

mezzo_status mz_rig_look(mz_rig *rig, mz_rig_state *out) {
    mezzo_step_info info;
    mezzo_scaler_state scaler;
    float loss;
    MEZZO_TRY(mezzo_program_read(rig->train, "loss", &loss, sizeof loss));
    MEZZO_TRY(mezzo_optimizer_info(rig->optimizer, &info));
    MEZZO_TRY(mezzo_scaler_get_state(rig->scaler, &scaler));
    *out = (mz_rig_state){.loss = (double)loss,
                          .loss_scale = mezzo_precision_needs_loss_scale(rig->w.precision) ? scaler.scale : 1,
                          .skipped = info.skipped,
                          .finite = isfinite((double)loss) && !info.found_inf};
    return MEZZO_OK;
}

// --- gradients -----------------------------------------------------------------------------------------------------
#define SAMPLE 65536 // numbers of a parameter

static size_t elements(const mezzo_params *params, int index) {
    size_t n = 1;
    for (int d = 0; d < mezzo_params_rank(params, index); d++)
        n *= (size_t)mezzo_params_shape(params, index)[d];
    return n;
}

static size_t stride_of(size_t n) {
    return (n + SAMPLE - 1) / SAMPLE;
}

// The sampled numbers of all parameters, and the elements of the largest.
static size_t sampled(const mezzo_params *params, size_t *largest) {
    size_t total = 0;
    for (int i = 0; i < mezzo_params_count(params); i++) {
        const size_t n = elements(params, i);
        if (mezzo_params_frozen(params, i))
            continue;
        total += (n + stride_of(n) - 1) / stride_of(n);
        *largest = n > *largest ? n : *largest;
    }
    return total;
}

static mezzo_status take_sample(const mezzo_params *params, double scale, float *all, mz_gradient *out) {
    for (int i = 0; i < mezzo_params_count(params); i++) {
        const size_t n = elements(params, i), stride = stride_of(n);
        if (mezzo_params_frozen(params, i))
            continue;
        MEZZO_TRY(mezzo_params_read_grad(params, i, all));
        for (size_t k = 0; k < n; k += stride) {
            out->values[out->n] = (float)((double)all[k] / scale);
            out->weights[out->n++] = (double)stride;
        }
    }
    return MEZZO_OK;
}

mezzo_status mz_rig_gradient(mz_rig *rig, mz_gradient *out) {
    mz_rig_state state;
    size_t largest = 1;
    const size_t n = sampled(rig->params, &largest);
    *out = (mz_gradient){.values = mz_alloc(n, sizeof *out->values), .weights = mz_alloc(n, sizeof *out->weights)};
    float *all = mz_alloc(largest, sizeof *all);
    mezzo_status status = out->values == NULL || out->weights == NULL || all == NULL ? MEZZO_ERR_MEMORY : MEZZO_OK;
    if (status == MEZZO_OK)
        status = run_micro(rig);
    if (status == MEZZO_OK)
        status = mz_rig_look(rig, &state);
    if (status == MEZZO_OK)
        status = take_sample(rig->params, state.loss_scale, all, out);
    mz_free(all);
    MEZZO_TRY(status);
    return mezzo_params_zero_grad(rig->params);
}

void mz_gradient_free(mz_gradient *gradient) {
    mz_free(gradient->values);
    mz_free(gradient->weights);
    *gradient = (mz_gradient){0};
}

double mz_gradient_error(const mz_gradient *gradient, const mz_gradient *reference) {
    double off = 0, size = 0;
    if (gradient->n != reference->n)
        return (double)INFINITY;
    for (size_t i = 0; i < gradient->n; i++) {
        const double g = (double)gradient->values[i], r = (double)reference->values[i];
        off += gradient->weights[i] * (g - r) * (g - r);
        size += gradient->weights[i] * r * r;
    }
    const double error = sqrt(off / size);
    return isfinite(error) ? error : off == 0 ? 0 : (double)INFINITY;
}
