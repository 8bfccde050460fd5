#include "study/measure/memory_plan.h"

#include <math.h>

#include "base/precision.h"
#include "base/stop.h"
#include "study/analyse/figures.h"

const char *mz_memory_optimizer(int index) {
    return index < MEZZO_OPTIMIZER_KINDS ? mezzo_optimizer_kind_name((mezzo_optimizer_kind)index) : "sgd-plain";
}

// Returns the options of a row. `matrices`: memory for the group of a kind that is per matrix, to which the session
// points.
static mz_session_options session_of(const mz_memory_plan *a, mezzo_precision precision, int optimizer,
                                     mezzo_master master, mezzo_optimizer_options *matrices) {
    mz_session_options o = a->session;
    const bool is_plain = optimizer == MEZZO_OPTIMIZER_KINDS;
    mz_session_set_precision(&o, precision);
    o.master = master;
    mz_session_set_optimizer(&o, is_plain ? MEZZO_SGD : (mezzo_optimizer_kind)optimizer, matrices);
    o.optimizer.momentum = is_plain ? 0 : o.optimizer.momentum;
    return o;
}

// Returns a row with the same programs, which do not depend on the optimizer. NULL: none is planned.
static const mz_footprint *planned_like(const mz_memory_plan *a, const mz_memory_row *row) {
    for (int i = 0; i < a->n_rows; i++)
        if (a->rows[i].precision == row->precision && a->rows[i].master == row->master)
            return &a->rows[i].f;
    return NULL;
}

static mezzo_status plan_row(mz_memory_plan *a, mezzo_precision precision, int optimizer, mezzo_master master,
                             mz_plans *plans, mz_memory_row *row) {
    mezzo_optimizer_options matrices;
    mz_session_options o = session_of(a, precision, optimizer, master, &matrices);
    *row = (mz_memory_row){.precision = precision, .optimizer = optimizer, .master = master, .largest = -1};
    MEZZO_TRY(mz_footprint_of(a->device, &o, planned_like(a, row), &row->f));
    if (a->limit > 0) {
        MEZZO_TRY(mz_largest_batch(a->device, &o, a->limit, plans, &row->largest));
        o.program.recompute = true;
        MEZZO_TRY(mz_largest_batch(a->device, &o, a->limit, plans, &row->largest_again));
    }
    o = session_of(a, precision, optimizer, master, &matrices);
    if (a->measure)
        MEZZO_TRY(mz_session_measure(a->device, &o, &row->measured));
    return MEZZO_OK;
}

static bool serves(mezzo_precision precision, mezzo_master master) {
    return master == MEZZO_MASTER_FP32 || mz_precision(precision)->operand == MEZZO_BF16;
}

static int rows_of(const mz_memory_plan *a) {
    int rows = 0;
    for (int p = 0; p < a->n_precisions; p++)
        for (int m = 0; m < a->n_masters; m++)
            rows += serves(a->precisions[p], (mezzo_master)a->masters[m]) ? a->n_optimizers : 0;
    return rows;
}

static mezzo_status plan_rows(mz_memory_plan *a, mezzo_precision precision, mz_plans *plans) {
    for (int i = 0; i < a->n_optimizers * a->n_masters; i++) {
        const mezzo_master master = (mezzo_master)a->masters[i % a->n_masters];
        if (!serves(precision, master))
            continue;
        mz_work("planning", a->n_rows, rows_of(a));
        MEZZO_TRY(mz_stop_check("planning"));
        MEZZO_TRY(plan_row(a, precision, a->optimizers[i / a->n_masters], master, plans, &a->rows[a->n_rows]));
        a->n_rows++;
    }
    return MEZZO_OK;
}

mezzo_status mz_memory_plan_rows(mz_memory_plan *a) {
    mezzo_status status = MEZZO_OK;
    for (int p = 0; p < a->n_precisions && status == MEZZO_OK; p++) {
        mz_plans plans = {0};
        status = plan_rows(a, a->precisions[p], &plans);
        mz_plans_free(&plans);
    }
    mz_work("planning", a->n_rows, a->n_rows);
    return status;
}

static mezzo_status save_by(mz_memory_plan *a, const mz_session_options *o, const char *name) {
    mz_memory_saving *s = &a->savings[a->n_savings];
    snprintf(s->name, sizeof s->name, "%s", name);
    MEZZO_TRY(mz_footprint_of(a->device, o, NULL, &s->f));
    a->n_savings++;
    return MEZZO_OK;
}

// Plans the same step with less memory.
mezzo_status mz_memory_plan_savings(mz_memory_plan *a) {
    for (int i = a->n_rows - 1; i >= 0; i--)
        if (mz_precision_is_low(a->rows[i].precision))
            a->base = i;
    const mz_memory_row *base = &a->rows[a->base];
    mezzo_optimizer_options matrices;
    const mz_session_options o = session_of(a, base->precision, base->optimizer, base->master, &matrices);
    mz_session_options less = o;
    if (!o.program.recompute) {
        less.program.recompute = true;
        MEZZO_TRY(save_by(a, &less, "recompute"));
    }
    if (!o.program.recompute && !o.program.recompute_light) {
        less = o;
        less.program.recompute_light = true;
        MEZZO_TRY(save_by(a, &less, "recompute light"));
    }
    // Other models have no embeddings, with which a low residual stream begins, and no logits in rows.
    if (o.program.residual != MEZZO_RESIDUAL_LOW && base->f.shadows > 0 &&
        mz_model_purpose(&o.model) == MEZZO_TASK_LANGUAGE) {
        less = o;
        less.program.residual = MEZZO_RESIDUAL_LOW;
        MEZZO_TRY(save_by(a, &less, "residual low"));
        less.program.recompute_light = !o.program.recompute;
        less.program.logits_rows = 1024;
        MEZZO_TRY(save_by(a, &less, "light + residual, logits by 1,024"));
    }
    for (int64_t parts = 2; parts <= 8 && o.form.batch % parts == 0; parts *= 2) {
        char name[64];
        less = o;
        less.form.batch = o.form.batch / parts;
        less.step.micro_batches = o.step.micro_batches * parts;
        snprintf(name, sizeof name, "%lld micro batches of %lld", (long long)less.step.micro_batches,
                 (long long)less.form.batch);
        MEZZO_TRY(save_by(a, &less, name));
    }
    if (o.form.batch > 1) {
        char name[64];
        less = o;
        less.form.batch = 1;
        less.step.micro_batches = o.step.micro_batches * o.form.batch;
        less.program.recompute = true;
        snprintf(name, sizeof name, "recompute, %lld micro batches of 1", (long long)less.step.micro_batches);
        MEZZO_TRY(save_by(a, &less, name));
    }
    return MEZZO_OK;
}

bool mz_memory_fits(const mz_memory_plan *a) {
    for (int i = 0; i < a->n_rows; i++)
        if (a->rows[i].largest > 0 || a->rows[i].largest_again > 0)
            return true;
    return a->limit == 0;
}

mezzo_status mz_memory_least(const mz_memory_plan *a, const mz_memory_row **row, size_t *least) {
    *least = SIZE_MAX;
    *row = NULL;
    for (int i = 0; i < a->n_rows; i++) {
        mezzo_optimizer_options matrices;
        mz_session_options o = session_of(a, a->rows[i].precision, a->rows[i].optimizer, a->rows[i].master, &matrices);
        size_t bytes;
        o.form.batch = 1;
        o.program.recompute = true;
        MEZZO_TRY(mz_session_run_bytes(a->device, &o, &bytes));
        if (bytes < *least) {
            *least = bytes;
            *row = &a->rows[i];
        }
    }
    return MEZZO_OK;
}

mezzo_status mz_memory_draw(const char *folder, const char *name, const char *title, const mz_memory_plan *plan) {
    static const char *const parts[] = {"weights",   "low-precision copies", "gradients",
                                        "optimizer", "activations",          "workspace"};
    static const char *const colours[] = {"#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#999999"};
    const double limit = (double)plan->limit;
    double most = limit;
    mz_text t = {0};
    for (int i = 0; i < plan->n_rows; i++)
        most = fmax(most, (double)mz_footprint_total(&plan->rows[i].f));
    bool gib = most >= 2.0 * (1 << 30);
    double unit = gib ? 1.0 / (1 << 30) : 1.0 / (1 << 20);
    mz_text_addf(&t, "$bars << EOD\n");
    for (int i = 0; i < plan->n_rows; i++) {
        const mz_memory_row *r = &plan->rows[i];
        const mz_footprint *f = &r->f;
        const bool whole = r->master == MEZZO_MASTER_FP32;
        mz_text_addf(&t, "\"%s %s%s%s\" %.6g %.6g %.6g %.6g %.6g %.6g\n", mezzo_precision_name(r->precision),
                     mz_memory_optimizer(r->optimizer), whole ? "" : " ", whole ? "" : mezzo_master_name(r->master),
                     (double)f->weights * unit, (double)f->shadows * unit, (double)f->gradients * unit,
                     (double)f->optimizer * unit, (double)f->activations * unit,
                     (double)(f->workspace + f->inputs + f->padding) * unit);
    }
    mz_text_addf(&t,
                 "EOD\nset title '%s' noenhanced\nset ylabel '%s'\nset style data histograms\n"
                 "set style histogram rowstacked\nset style fill solid 0.95 border lc rgb 'white'\nset boxwidth 0.72\n"
                 "set grid ytics ls 91\nset key outside right center noenhanced invert\nset yrange [0:%.6g]\n"
                 "set xtics rotate by -35 noenhanced\n",
                 title, gib ? "GiB" : "MiB", most * unit * 1.08);
    if (limit > 0)
        mz_text_addf(&t,
                     "set arrow from graph 0, first %.6g to graph 1, first %.6g nohead ls 90 front\n"
                     "set label '%.4g %s' at graph 0.01, first %.6g offset 0,0.6 front\n",
                     limit * unit, limit * unit, limit * unit, gib ? "GiB" : "MiB", limit * unit);
    mz_text_addf(&t, "draw = \"plot ");
    for (size_t i = 0; i < MZ_COUNT(parts); i++)
        mz_text_addf(&t, "%s$bars using %zu%s lc rgb '%s' title '%s'", i > 0 ? ", " : "", i + 2,
                     i == 0 ? ":xtic(1)" : "", colours[i], parts[i]);
    mz_text_addf(&t, "\"\n");
    return mz_figure_make(folder, name, &t, 960, 540);
}
