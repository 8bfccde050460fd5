#include "study/measure/measure.h"

#include <math.h>

#include "study/analyse/stats.h"
#include "task/task.h"

struct mz_rig {
    mz_session session;
    mezzo_program *forward; // made when it is first timed
    mz_examples examples;
    uint64_t runs;
};

// --- descriptions
// -------------------------------------------------------------------------------------------------------
int64_t mz_session_items(const mz_session_options *o) {
    return o->form.batch * o->step.micro_batches * o->form.length;
}

void mz_session_describe(const mz_session_options *o, char *out, size_t size) {
    const mz_model_sizes m = mz_model_sizes_of(&o->model);
    const long long batch = (long long)o->form.batch;
    if (mz_model_purpose(&o->model) == MEZZO_TASK_LANGUAGE)
        snprintf(out, size, "%lld x %lld tokens", batch, (long long)o->form.length);
    else if (mz_model_purpose(&o->model) == MEZZO_TASK_IMAGES)
        snprintf(out, size, "%lld image%s of %lld x %lld x %lld", batch, batch == 1 ? "" : "s", (long long)m.image_size,
                 (long long)m.image_size, (long long)m.channels);
    else
        snprintf(out, size, "%lld example%s", batch, batch == 1 ? "" : "s");
}

// --- creation -------------------------------------------------------------------------------------------------------
static mezzo_status open_rig(mezzo_device *device, const mz_session_options *o, mz_rig *rig) {
    MEZZO_TRY(mz_examples_make(&o->model, &o->form, o->seed, &rig->examples));
    MEZZO_TRY(mz_session_open(device, o, MZ_SESSION_TRAIN | MZ_SESSION_STEP, &rig->session));
    return mz_examples_write(&rig->examples, rig->session.train);
}

mezzo_status mz_rig_create(mezzo_device *device, const mz_session_options *o, mz_rig **out) {
    *out = NULL;
    if (o->form.batch < 1 || o->form.length < 1 || o->step.micro_batches < 1)
        return mz_fail(MEZZO_ERR_INVALID, "a step needs at least one sequence, one token and one micro batch");
    mz_rig *rig;
    MEZZO_TRY(MZ_NEW(rig, 1));
    mezzo_status status = open_rig(device, o, rig);
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
    mezzo_program_free(rig->forward);
    mz_session_close(&rig->session);
    mz_examples_free(&rig->examples);
    mz_free(rig);
}

size_t mz_rig_memory(const mz_rig *rig) {
    return mz_session_memory(&rig->session);
}

mezzo_device *mz_rig_device(const mz_rig *rig) {
    return rig->session.device;
}

// --- running -------------------------------------------------------------------------------------------------------
static mezzo_status run_micro(mz_rig *rig) {
    if (rig->session.options.step.micro_batches <= 1)
        MEZZO_TRY(mezzo_params_zero_grad(rig->session.params));
    return mezzo_program_run(rig->session.train, rig->session.scaler, rig->session.options.seed, rig->runs++);
}

static mezzo_status run_step(mz_rig *rig) {
    for (int64_t i = 0; i < rig->session.options.step.micro_batches; i++)
        MEZZO_TRY(mezzo_step_micro(rig->session.step, rig->session.options.seed, rig->runs++));
    return mezzo_step_finish(rig->session.step);
}

static mezzo_status run_forward(mz_rig *rig) {
    if (rig->forward == NULL) {
        const mz_session_options *o = &rig->session.options;
        MEZZO_TRY(mz_model_program(&o->model, &o->form, rig->session.params, &o->program, &rig->forward));
        MEZZO_TRY(mz_examples_write(&rig->examples, rig->forward));
    }
    return mezzo_program_run(rig->forward, NULL, rig->session.options.seed, rig->runs);
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

// Times `n` repeats with a mark after each, and then reads all times; n is at most MZ_MARKS - 1.
static mezzo_status time_some(mz_rig *rig, mz_timed what, const mz_repeats *r, int n, double *seconds) {
    MEZZO_TRY(mezzo_device_mark(rig->session.device, 0));
    for (int i = 0; i < n; i++) {
        MEZZO_TRY(stopped(r));
        MEZZO_TRY(run_once(rig, what));
        MEZZO_TRY(mezzo_device_mark(rig->session.device, i + 1));
    }
    for (int i = 0; i < n; i++)
        MEZZO_TRY(mezzo_device_elapsed(rig->session.device, i, i + 1, &seconds[i]));
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
    // Waiting here would run the deferred update, which the next step contains, and that step would differ.
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
        MEZZO_TRY(mezzo_params_zero_grad(rig->session.params));
    return MEZZO_OK;
}

mezzo_status mz_rig_time_phases(mz_rig *rig, const mz_repeats *r, double *forward, double *micro) {
    enum { SOME = (MZ_MARKS - 1) / 2 };
    for (int done = -r->warmup, some; done < r->iters; done += some) {
        some = done < 0 ? -done : r->iters - done;
        some = some > SOME ? SOME : some;
        MEZZO_TRY(mezzo_device_sync(rig->session.device));
        MEZZO_TRY(mezzo_device_mark(rig->session.device, 0));
        for (int i = 0; i < some; i++) {
            MEZZO_TRY(stopped(r));
            MEZZO_TRY(run_forward(rig));
            MEZZO_TRY(mezzo_device_mark(rig->session.device, 2 * i + 1));
            MEZZO_TRY(run_micro(rig));
            MEZZO_TRY(mezzo_device_mark(rig->session.device, 2 * i + 2));
        }
        for (int i = 0; i < some && done >= 0; i++) {
            MEZZO_TRY(mezzo_device_elapsed(rig->session.device, 2 * i, 2 * i + 1, &forward[done + i]));
            MEZZO_TRY(mezzo_device_elapsed(rig->session.device, 2 * i + 1, 2 * i + 2, &micro[done + i]));
        }
    }
    return mezzo_params_zero_grad(rig->session.params);
}

mezzo_status mz_rig_step(mz_rig *rig) {
    return run_step(rig);
}

mezzo_status mz_rig_run_steps(mz_rig *rig, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        MEZZO_TRY(run_step(rig));
    return mezzo_device_sync(rig->session.device);
}

mezzo_status mz_rig_look(mz_rig *rig, mz_rig_state *out) {
    mezzo_step_info info;
    mezzo_scaler_state scaler;
    float loss;
    MEZZO_TRY(mezzo_program_read(rig->session.train, "loss", &loss, sizeof loss));
    MEZZO_TRY(mezzo_optimizer_info(rig->session.optimizer, &info));
    MEZZO_TRY(mezzo_scaler_get_state(rig->session.scaler, &scaler));
    *out = (mz_rig_state){.loss = (double)loss,
                          .loss_scale = rig->session.options.scaler.enabled ? scaler.scale : 1,
                          .skipped = info.skipped,
                          .finite = isfinite((double)loss) && !info.found_inf};
    return MEZZO_OK;
}

// --- gradients -----------------------------------------------------------------------------------------------------
#define SAMPLE 65536 // numbers of a parameter

static size_t stride_of(size_t n) {
    return (n + SAMPLE - 1) / SAMPLE;
}

// Returns the number of sampled numbers of all parameters, and the elements of the largest.
static size_t sampled(const mezzo_params *params, size_t *largest) {
    size_t total = 0;
    for (int i = 0; i < mezzo_params_count(params); i++) {
        const size_t n = (size_t)params->list[i].count;
        if (mezzo_params_frozen(params, i))
            continue;
        total += (n + stride_of(n) - 1) / stride_of(n);
        *largest = n > *largest ? n : *largest;
    }
    return total;
}

static mezzo_status take_sample(const mezzo_params *params, double scale, float *all, mz_gradient *out) {
    for (int i = 0; i < mezzo_params_count(params); i++) {
        const size_t n = (size_t)params->list[i].count, stride = stride_of(n);
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
    const size_t n = sampled(rig->session.params, &largest);
    *out = (mz_gradient){.values = mz_alloc(n, sizeof *out->values), .weights = mz_alloc(n, sizeof *out->weights)};
    float *all = mz_alloc(largest, sizeof *all);
    mezzo_status status = out->values == NULL || out->weights == NULL || all == NULL ? MEZZO_ERR_MEMORY : MEZZO_OK;
    if (status == MEZZO_OK)
        status = run_micro(rig);
    if (status == MEZZO_OK)
        status = mz_rig_look(rig, &state);
    if (status == MEZZO_OK)
        status = take_sample(rig->session.params, state.loss_scale, all, out);
    mz_free(all);
    MEZZO_TRY(status);
    return mezzo_params_zero_grad(rig->session.params);
}

void mz_gradient_free(mz_gradient *gradient) {
    MZ_FREE(gradient->values, gradient->weights);
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
