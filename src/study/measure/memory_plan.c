#include "study/measure/memory_plan.h"

#include "base/precision.h"

static const struct {
    const char *name;
    bool sgd;
    double momentum;
} kinds[MZ_MEMORY_OPTIMIZERS] = {{"adamw", false, 0}, {"sgd", true, 0.9}, {"sgd-plain", true, 0}};

const char *mz_memory_optimizer(int index) {
    return kinds[index].name;
}

static mz_workload workload_of(const mz_memory_plan *a, mezzo_precision precision, int optimizer, mezzo_master master) {
    mz_workload w = a->w;
    w.precision = precision;
    w.master = master;
    w.sgd = kinds[optimizer].sgd;
    w.momentum = kinds[optimizer].momentum;
    return w;
}

// A row whose programs are the same: they do not depend on the optimizer. NULL: none is planned.
static const mz_footprint *planned_like(const mz_memory_plan *a, const mz_memory_row *row) {
    for (int i = 0; i < a->n_rows; i++)
        if (a->rows[i].precision == row->precision && a->rows[i].master == row->master)
            return &a->rows[i].f;
    return NULL;
}

static mezzo_status plan_row(mz_memory_plan *a, mezzo_precision precision, int optimizer, mezzo_master master,
                             mz_plans *plans, mz_memory_row *row) {
    mz_workload w = workload_of(a, precision, optimizer, master);
    *row = (mz_memory_row){.precision = precision, .optimizer = optimizer, .master = master, .largest = -1};
    MEZZO_TRY(mz_workload_footprint_like(a->device, &w, planned_like(a, row), &row->f));
    if (a->limit > 0) {
        MEZZO_TRY(mz_workload_largest_batch(a->device, &w, a->limit, plans, &row->largest));
        w.recompute = true;
        MEZZO_TRY(mz_workload_largest_batch(a->device, &w, a->limit, plans, &row->largest_again));
    }
    w = workload_of(a, precision, optimizer, master);
    if (a->measure)
        MEZZO_TRY(mz_workload_measure(a->device, &w, &row->measured));
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

static mezzo_status save_by(mz_memory_plan *a, const mz_workload *w, const char *name) {
    mz_memory_saving *s = &a->savings[a->n_savings];
    snprintf(s->name, sizeof s->name, "%s", name);
    MEZZO_TRY(mz_workload_footprint(a->device, w, &s->f));
    a->n_savings++;
    return MEZZO_OK;
}

// The same step with less memory.
mezzo_status mz_memory_plan_savings(mz_memory_plan *a) {
    for (int i = a->n_rows - 1; i >= 0; i--)
        if (mz_precision_is_low(a->rows[i].precision))
            a->base = i;
    const mz_memory_row *base = &a->rows[a->base];
    const mz_workload w = workload_of(a, base->precision, base->optimizer, base->master);
    mz_workload less = w;
    if (!w.recompute) {
        less.recompute = true;
        MEZZO_TRY(save_by(a, &less, "recompute"));
    }
    if (!w.recompute && !w.recompute_light) {
        less = w;
        less.recompute_light = true;
        MEZZO_TRY(save_by(a, &less, "recompute light"));
    }
    // Others have no embeddings, which a low residual stream begins with, and no logits in rows.
    if (w.residual != MEZZO_RESIDUAL_LOW && base->f.shadows > 0 && mezzo_model_task(&w.model) == MEZZO_TASK_LANGUAGE) {
        less = w;
        less.residual = MEZZO_RESIDUAL_LOW;
        MEZZO_TRY(save_by(a, &less, "residual low"));
        less.recompute_light = !w.recompute;
        less.logits_rows = 1024;
        MEZZO_TRY(save_by(a, &less, "light + residual, logits by 1,024"));
    }
    for (int64_t parts = 2; parts <= 8 && w.batch % parts == 0; parts *= 2) {
        char name[64];
        less = w;
        less.batch = w.batch / parts;
        less.grad_accum = w.grad_accum * parts;
        snprintf(name, sizeof name, "%lld micro batches of %lld", (long long)less.grad_accum, (long long)less.batch);
        MEZZO_TRY(save_by(a, &less, name));
    }
    if (w.batch > 1) {
        char name[64];
        less = w;
        less.batch = 1;
        less.grad_accum = w.grad_accum * w.batch;
        less.recompute = true;
        snprintf(name, sizeof name, "recompute, %lld micro batches of 1", (long long)less.grad_accum);
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
        mz_workload w = workload_of(a, a->rows[i].precision, a->rows[i].optimizer, a->rows[i].master);
        size_t bytes;
        w.batch = 1;
        w.recompute = true;
        MEZZO_TRY(mz_workload_run_memory(a->device, &w, &bytes));
        if (bytes < *least) {
            *least = bytes;
            *row = &a->rows[i];
        }
    }
    return MEZZO_OK;
}
