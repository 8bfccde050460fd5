#include "study/measure/device_report.h"

#include <math.h>

#include "base/precision.h"
#include "study/analyse/stats.h"
#include "study/measure/measure.h"

// Bounds the loss's difference from FP32's, as a fraction of the decrease of FP32's loss, because a wrong kernel
// reduces the decrease. Rounding an operand to the format has a relative error of at most u; errors in both directions
// partly cancel, and 4 u allows for those that add up over layers and steps.
static double bound_of(mezzo_precision precision) {
    return 4 * mz_unit_roundoff(mz_precision(precision)->compute);
}

// Together these models run every op that a model has.
static const char *const models[] = {"gpt2", "cs336", "glm4_moe", "radio_unet-tiny", "kl_vae-tiny"};

const char *mz_selftest_model(int i) {
    return i >= 0 && i < (int)MZ_COUNT(models) ? models[i] : NULL;
}

static mezzo_status small_model(const char *name, mezzo_model_config *model) {
    MEZZO_TRY(mezzo_model_defaults(name, model));
    if (mezzo_model_task(model) != MEZZO_TASK_LANGUAGE)
        return MEZZO_OK;
    model->layers = 2;
    model->heads = 4;
    model->d_model = 128;
    model->vocab = 512;
    model->seq_len = 64;
    return MEZZO_OK;
}

static mezzo_status begin(mezzo_device *device, mezzo_precision asked, int64_t batch, mz_selftest *out, mz_rig **rig) {
    MEZZO_TRY(mezzo_precision_resolve(device, asked, &out->runs, out->reason, sizeof out->reason));
    mezzo_model_config model;
    mz_session_options o;
    MEZZO_TRY(small_model(out->model, &model));
    MEZZO_TRY(mz_session_usual(&model, batch, &o));
    mz_session_set_precision(&o, out->runs);
    o.seed = 1;
    return mz_rig_create(device, &o, rig);
}

static mezzo_status loss_after(mz_rig *rig, int64_t steps, double *loss) {
    mz_rig_state state;
    MEZZO_TRY(mz_rig_run_steps(rig, steps));
    MEZZO_TRY(mz_rig_look(rig, &state));
    *loss = state.loss;
    return MEZZO_OK;
}

static mezzo_status run_one(mezzo_device *device, mezzo_precision asked, const volatile sig_atomic_t *stop,
                            mz_selftest *out) {
    MZ_SCOPED(mz_rig_free_at) mz_rig *rig = NULL;
    MEZZO_TRY(begin(device, asked, 8, out, &rig));
    MEZZO_TRY(loss_after(rig, 1, &out->first));
    MEZZO_TRY(loss_after(rig, MZ_SELFTEST_STEPS - 1, &out->last));
    double seconds[5];
    int n = 0;
    const mz_repeats repeats = {.warmup = 2, .iters = (int)MZ_COUNT(seconds), .stop = stop};
    MEZZO_TRY(mz_rig_time(rig, MZ_TIMED_STEP, &repeats, seconds, &n));
    mz_sort(seconds, (size_t)n);
    out->milliseconds = n > 0 ? 1e3 * seconds[n / 2] : NAN;
    return MEZZO_OK;
}

static mezzo_status small_run(mezzo_device *device, mz_selftest *out) {
    MZ_SCOPED(mz_rig_free_at) mz_rig *rig = NULL;
    MEZZO_TRY(begin(device, MEZZO_PRECISION_FP32, 1, out, &rig));
    MEZZO_TRY(loss_after(rig, 1, &out->first));
    return loss_after(rig, MZ_SELFTEST_STEPS - 1, &out->last);
}

// Judges FP32 by the ref device, which computes in FP64 and is slow: one sequence instead of eight. The loss is one
// FP32 number, so the bound is what rounding such a number costs, 8 u of it.
static mezzo_status judge_fp32(mezzo_device *device, mz_selftest *fp32) {
    mezzo_device *ref;
    mz_selftest here = *fp32, exact = *fp32;
    MEZZO_TRY(small_run(device, &here));
    MEZZO_TRY(mezzo_device_open("ref", 1, &ref));
    mezzo_status status = small_run(ref, &exact);
    mezzo_device_close(ref);
    MEZZO_TRY(status);
    double learnt = fabs(exact.first - exact.last);
    fp32->off = fmax(fabs(here.first - exact.first), fabs(here.last - exact.last)) / learnt;
    fp32->bound = 8 * 0x1p-24 * exact.first / learnt;
    fp32->passed = fp32->off <= fp32->bound; // NaN gives false
    return MEZZO_OK;
}

mezzo_status mz_selftest_run(mezzo_device *device, const char *model, const mezzo_precision *asked, int n,
                             const volatile sig_atomic_t *stop, mz_selftest *out) {
    static const char what[] = "self-test";
    for (int i = 0; i <= n; i++) {
        mz_work(what, i, n + 2);
        out[i] = (mz_selftest){.model = model, .asked = i == 0 ? MEZZO_PRECISION_FP32 : asked[i - 1]};
        MEZZO_TRY(run_one(device, out[i].asked, stop, &out[i]));
    }
    mz_work(what, n + 1, n + 2);
    MEZZO_TRY(judge_fp32(device, &out[0]));
    mz_work(what, n + 2, n + 2);
    for (int i = 1; i <= n; i++) {
        mz_selftest *t = &out[i];
        t->off = fmax(fabs(t->first - out[0].first), fabs(t->last - out[0].last)) / fabs(out[0].first - out[0].last);
        t->bound = t->runs == MEZZO_PRECISION_FP32 ? out[0].bound : bound_of(t->runs);
        t->passed = t->off <= t->bound; // NaN gives false
    }
    return MEZZO_OK;
}
