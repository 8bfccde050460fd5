#include "study/measure/device_report.h"

#include <math.h>
#include <stdlib.h>
#include <sys/utsname.h>

#include "base/precision.h"
#include "io/file.h"
#include "mezzo/mezzo.h"
#include "study/page/page_text.h"
#include "io/json.h"

static void add_versions(json_t *report) {
    struct utsname system;
    json_object_set_new(report, "mezzo", json_string(mezzo_version()));
    if (uname(&system) == 0)
        json_object_set_new(
            report, "system",
            json_pack("{ss ss ss}", "name", system.sysname, "release", system.release, "machine", system.machine));
}

typedef struct reporting {
    json_t *kernels, *rates;
    int failed;
} reporting;

// --- models --------------------------------------------------------------------------------------------------------
static int precisions_of(const mezzo_device_info *info, mezzo_precision out[MEZZO_PRECISION_COUNT]) {
    int n = 0;
    for (int p = 0; p < MEZZO_PRECISION_COUNT; p++)
        if (p != MEZZO_PRECISION_FP32 && info->native[p])
            out[n++] = (mezzo_precision)p;
    return n;
}

static mezzo_status add_models(mezzo_device *device, const volatile sig_atomic_t *stop, json_t *report, int *failed) {
    mezzo_device_info info;
    mezzo_precision precisions[MEZZO_PRECISION_COUNT];
    mz_selftest tests[MEZZO_PRECISION_COUNT + 1];
    json_t *rows = json_array();
    MEZZO_TRY(mezzo_device_describe(device, &info));
    const int n = precisions_of(&info, precisions);
    mezzo_status status = MEZZO_OK;
    for (int i = 0; mz_selftest_model(i) != NULL && status == MEZZO_OK; i++) {
        status = mz_selftest_run(device, mz_selftest_model(i), precisions, n, stop, tests);
        for (int k = 0; k <= n && status == MEZZO_OK; k++) {
            const mz_selftest *t = &tests[k];
            *failed += !t->passed;
            json_array_append_new(
                rows, json_pack("{ss ss ss so so so so so sb}", "model", t->model, "precision",
                                mezzo_precision_name(t->asked), "runs_as", mezzo_precision_name(t->runs), "step_ms",
                                mz_json_number(t->milliseconds), "first_loss", mz_json_number(t->first), "last_loss",
                                mz_json_number(t->last), "difference", mz_json_number(t->off), "tolerance",
                                mz_json_number(t->bound), "passed", t->passed));
        }
    }
    json_object_set_new(report, "models", rows);
    return status;
}

// --- kernels -------------------------------------------------------------------------------------------------------
static void add_check(void *user, const mz_check *c) {
    reporting *r = user;
    r->failed += !c->passed;
    json_array_append_new(r->kernels, json_pack("{ss ss ss ss so so sb}", "op", c->op, "shape", c->shape, "precision",
                                                mezzo_precision_name(c->precision), "kernel", c->kernel, "error",
                                                mz_json_number(c->error), "tolerance", mz_json_number(c->tolerance),
                                                "passed", c->passed));
}

static void add_rate(void *user, const mz_bench_row *row) {
    reporting *r = user;
    char shape[96];
    json_array_append_new(r->rates,
                          json_pack("{ss ss ss ss so so ss so}", "op", row->of->op->name, "shape",
                                    mz_bench_shape_text(row->of, shape, sizeof shape), "precision",
                                    mezzo_precision_name(row->precision), "kernel", row->kernel, "median_ms",
                                    mz_json_number(1e3 * row->median), "rate", mz_json_number(1e-9 * row->rate), "unit",
                                    mz_bench_unit(row), "of_peak", mz_json_number(mz_bench_of_peak(row))));
}

static mezzo_status add_rates(mezzo_device *device, reporting *r) {
    static const mezzo_precision precisions[] = {MEZZO_PRECISION_FP32, MEZZO_PRECISION_TF32, MEZZO_PRECISION_BF16,
                                                 MEZZO_PRECISION_FP16};
    mz_peaks peaks;
    const char *model = device->backend->gpu ? "gpt2-124M" : "gpt"; // a model whose kernels take milliseconds on that
                                                                    // device
    MEZZO_TRY(mz_device_peaks(device, &peaks));
    for (int i = 0; mz_bench_default(i) != NULL; i++) {
        if (strcmp(mz_bench_default(i)->model, model) != 0)
            continue;
        const mz_bench_options one = {.cases = mz_bench_default(i),
                                      .n_cases = 1,
                                      .precisions = precisions,
                                      .n_precisions = (int)MZ_COUNT(precisions),
                                      .rounds = 5};
        mz_work("rates", i, 0);
        MEZZO_TRY(mz_bench_kernels(device, &one, &peaks, add_rate, r));
    }
    return MEZZO_OK;
}

mezzo_status mz_device_report(mezzo_device *device, const volatile sig_atomic_t *stop, json_t *report) {
    reporting r = {.kernels = json_array(), .rates = json_array()};
    add_versions(report);
    mezzo_status status = add_models(device, stop, report, &r.failed);
    if (status == MEZZO_OK)
        status = mz_check_kernels(device, stop, add_check, &r);
    if (status == MEZZO_OK)
        status = add_rates(device, &r);
    json_object_set_new(report, "kernels", r.kernels);
    json_object_set_new(report, "rates", r.rates);
    json_object_set_new(report, "failed", json_integer(r.failed));
    return status;
}

mezzo_status mz_device_report_write(const json_t *report, const char *path) {
    if (mz_ends_with(path, ".json"))
        return mz_json_save(path, report);
    mz_text html = {0};
    html.status = mz_json_page("mezzo doctor", report, &html);
    return mz_text_save(&html, path);
}
