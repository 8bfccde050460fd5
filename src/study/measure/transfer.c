#include "study/measure/verify.h"

#include <math.h>
#include <stdlib.h>

#include "train/config.h"

// Measures one width, or the model itself.
static mezzo_status measure(const mz_verify_options *o, int64_t width, mz_verify_fn tell, void *user,
                            mz_verify_result *r, mz_transfer_point *out) {
    MEZZO_TRY(mz_config_set_int(o->config, "model.d_model", width, "verify"));
    MEZZO_TRY(mz_verify(o, tell, user, r));
    *out = (mz_transfer_point){.width = width, .params_m = r->params_m, .speedup = r->matched.speedup};
    if (isfinite(out->speedup.value))
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_NUMERIC,
                   "width %lld: its loss no longer falls over the last third of the steps: there is no speedup at "
                   "equal quality; use another number of steps or learning rate",
                   (long long)width);
}

static mezzo_status predict(const mz_verify_options *o, double params_m, mz_transfer *t) {
    double x[MZ_TRANSFER_WIDTHS], y[MZ_TRANSFER_WIDTHS], value;
    mz_interval interval;
    for (int i = 0; i < t->n; i++) {
        x[i] = log(t->small[i].params_m);
        y[i] = log(t->small[i].speedup.value);
    }
    MEZZO_TRY(mz_line_predict(x, y, (size_t)t->n, log(params_m), o->level, &t->slope, &value, &interval));
    t->predicted = (mz_measured){exp(value), {exp(interval.low), exp(interval.high)}};
    return MEZZO_OK;
}

mezzo_status mz_transfer_find(const mz_verify_options *o, const int64_t *widths, int n, mz_verify_fn tell, void *user,
                              mz_transfer *out, mz_verify_result *target) {
    const char *width = mezzo_config_get(o->config, "model.d_model");
    *out = (mz_transfer){0};
    *target = (mz_verify_result){0};
    if (n < MZ_TRANSFER_LEAST || n > MZ_TRANSFER_WIDTHS)
        return mz_fail(MEZZO_ERR_INVALID, "%d widths: a prediction with an interval takes %d to %d", n,
                       MZ_TRANSFER_LEAST, MZ_TRANSFER_WIDTHS);
    const int64_t own = width != NULL ? strtoll(width, NULL, 10) : 0;
    if (own == 0)
        return mz_fail(MEZZO_ERR_INVALID, "model.d_model is not set: name the width to predict (--d-model)");
    for (int i = 0; i < n; i++) {
        mezzo_status status = measure(o, widths[i], tell, user, target, &out->small[i]);
        mz_verify_free(target);
        MEZZO_TRY(status);
        out->n++;
    }
    mz_transfer_point point;
    MEZZO_TRY(measure(o, own, tell, user, target, &point));
    MEZZO_TRY(predict(o, target->params_m, out));
    out->inside =
        out->predicted.interval.low <= point.speedup.value && point.speedup.value <= out->predicted.interval.high;
    return MEZZO_OK;
}

json_t *mz_transfer_json(const mz_transfer *t, const mz_verify_options *o, const mz_verify_result *target) {
    json_t *small = json_array();
    for (int i = 0; i < t->n; i++)
        json_array_append_new(small, json_pack("{s:I, s:f, s:o}", "d_model", (json_int_t)t->small[i].width, "params_m",
                                               t->small[i].params_m, "speedup_at_equal_quality",
                                               mz_measured_json(&t->small[i].speedup, target->n)));
    return json_pack("{s:o, s:f, s:o, s:b, s:o}", "small", small, "slope_by_ln_parameters", t->slope, "predicted",
                     mz_measured_json(&t->predicted, target->n), "inside", (int)t->inside, "measured",
                     mz_matched_json(o, target));
}

void mz_transfer_text(const mz_transfer *t, const mz_verify_options *o, const mz_verify_result *target, mz_text *out) {
    mz_text_addf(out, "%8s %12s   speedup at equal quality\n", "width", "parameters");
    for (int i = 0; i < t->n; i++) {
        const mz_measured *m = &t->small[i].speedup;
        mz_text_addf(out, "%8lld %10.2f M   %.3f (%.3f to %.3f)\n", (long long)t->small[i].width, t->small[i].params_m,
                     m->value, m->interval.low, m->interval.high);
    }
    mz_text_addf(out, "\nthe line through them predicts %.3f (%.3f to %.3f, %g %%) for %.2f M parameters\n",
                 t->predicted.value, t->predicted.interval.low, t->predicted.interval.high, 100 * o->level,
                 target->params_m);
    mz_text_addf(out, "measured: %.3f, %s that interval\n\n", target->matched.speedup.value,
                 t->inside ? "inside of" : "outside of");
    mz_matched_text(o, target, out);
}
