// Writes mezzo bench's rows as CSV and makes the chart of its models.
#include <math.h>

#include "base/precision.h"
#include "io/csv.h"
#include "study/measure/bench.h"
#include "study/measure/kernels.h"
#include "study/analyse/figures.h"

// Returns the precision of the speedup columns without a prefix: the first with 16 bits, else the last; -1 when there
// is only one.
static int find_candidate(const mz_bench_plan *plan) {
    for (int i = 1; i < plan->n_precisions; i++)
        if (mz_precision_is_low(plan->precisions[i]))
            return i;
    return plan->n_precisions - 1 > 0 ? plan->n_precisions - 1 : -1;
}

// Returns the speedup; NaN where either time is NaN.
static double speedup_of(const mz_bench_time *baseline, const mz_bench_time *candidate) {
    return baseline->mean / candidate->mean;
}

void mz_bench_header(const mz_bench_plan *plan, mz_text *t) {
    mz_text_addf(t, "model_size,num_params_M,context_length,batch_size");
    for (int i = 0; i < plan->n_precisions; i++) {
        const char *p = mezzo_precision_name(plan->precisions[i]);
        mz_text_addf(t, ",%s_forward_ms,%s_forward_std,%s_backward_ms,%s_backward_std,%s_total_ms", p, p, p, p, p);
    }
    mz_text_addf(t, ",forward_speedup,backward_speedup,total_speedup,speedup_precision");
    for (int i = 0; i < plan->n_precisions; i++) {
        const char *p = mezzo_precision_name(plan->precisions[i]);
        if (i > 0)
            mz_text_addf(t, ",%s_total_speedup,%s_step_speedup", p, p);
        mz_text_addf(t, ",%s_step_ms,%s_step_std,%s_tokens_per_s,%s_mfu,%s_memory_mb,%s_effective,%s_note", p, p, p, p,
                     p, p, p);
    }
    mz_text_addf(t, ",family,layers,heads,d_model,d_ff,vocab,warmup,iters,device,commit,command\n");
}

static void add_number(mz_text *t, double x, int digits) {
    if (isnan(x))
        mz_text_addf(t, ",NaN");
    else
        mz_text_addf(t, ",%.*f", digits, x);
}

static void add_times(mz_text *t, const mz_bench_cell *c) {
    const double values[] = {c->forward.mean, c->forward.deviation, c->backward.mean, c->backward.deviation, c->total};
    for (size_t i = 0; i < MZ_COUNT(values); i++)
        add_number(t, values[i], 4);
}

static void add_more(mz_text *t, const mz_bench_cell *base, const mz_bench_cell *c) {
    if (c != base) {
        add_number(t, base->total / c->total, 4);
        add_number(t, speedup_of(&base->step, &c->step), 4);
    }
    add_number(t, c->step.mean, 4);
    add_number(t, c->step.deviation, 4);
    add_number(t, c->tokens_per_second, 1);
    if (isnan(c->mfu)) // no peak is known
        mz_text_add(t, ",", 1);
    else
        add_number(t, c->mfu, 4);
    add_number(t, c->memory_mb, 1);
    mz_csv_next(t, mezzo_precision_name(c->effective));
    mz_csv_next(t, c->note);
}

void mz_bench_line(const mz_bench_plan *plan, const mz_bench_result *r, const char *device, const char *commit,
                   const char *command, mz_text *t) {
    const mz_bench_cell *base = &r->cells[0];
    const mezzo_model_config *m = &r->model;
    int k = find_candidate(plan);
    mz_csv_add(t, r->size);
    mz_text_addf(t, ",%.2f,%lld,%lld", r->params_m, (long long)r->model.seq_len, (long long)plan->batch);
    for (int i = 0; i < plan->n_precisions; i++)
        add_times(t, &r->cells[i]);
    add_number(t, k < 0 ? (double)NAN : speedup_of(&base->forward, &r->cells[k].forward), 4);
    add_number(t, k < 0 ? (double)NAN : speedup_of(&base->backward, &r->cells[k].backward), 4);
    add_number(t, k < 0 ? (double)NAN : base->total / r->cells[k].total, 4);
    mz_csv_next(t, k < 0 ? "" : mezzo_precision_name(plan->precisions[k]));
    for (int i = 0; i < plan->n_precisions; i++)
        add_more(t, base, &r->cells[i]);
    mz_csv_next(t, m->name);
    mz_text_addf(t, ",%lld,%lld,%lld,%lld,%lld,%d,%d", (long long)m->layers, (long long)m->heads, (long long)m->d_model,
                 (long long)(m->d_ff > 0 ? m->d_ff : 4 * m->d_model), (long long)m->vocab, plan->repeats.warmup,
                 plan->repeats.iters);
    mz_csv_next(t, device);
    mz_csv_next(t, commit);
    mz_csv_next(t, command);
    mz_text_add(t, "\n", 1);
}

// --- chart ---------------------------------------------------------------------------------------------------------
mezzo_status mz_bench_chart(const mz_bench_plan *plan, const mz_bench_result *rows, size_t n, const char *folder,
                            const char *name) {
    mz_text t = {0};
    if (plan->n_precisions < 2 || n == 0)
        return MEZZO_OK;
    bool step = plan->step;
    mz_text_addf(&t, "$rows << EOD\n");
    for (size_t i = 0; i < n; i++) {
        const mz_bench_cell *base = &rows[i].cells[0];
        mz_text_addf(&t, "\"%s\"", rows[i].size); // with single quotes they would be drawn
        for (int p = 1; p < plan->n_precisions; p++) {
            const mz_bench_cell *c = &rows[i].cells[p];
            double x = step ? base->step.mean / c->step.mean : base->total / c->total;
            if (isnan(x))
                mz_text_addf(&t, " NaN");
            else
                mz_text_addf(&t, " %.4g", x);
        }
        mz_text_addf(&t, "\n");
    }
    mz_text_addf(
        &t,
        "EOD\nset style data histograms\nset style histogram clustered gap 1\nset style fill solid 0.85 noborder\n"
        "set title 'Speedup over %s of %s: context %lld, batch %lld'\nset ylabel 'speedup'\nset yrange [0:1.2<*]\n"
        "set grid ytics ls 91\nset key outside top center horizontal\nset xlabel 'model size'\nset offsets 0,0,0.2,0\n"
        "draw = \"plot ",
        mezzo_precision_name(plan->precisions[0]), step ? "a training step" : "forward and backward",
        (long long)plan->context, (long long)plan->batch);
    for (int p = 1; p < plan->n_precisions; p++)
        mz_text_addf(&t, "$rows using %d:xtic(1) ls %d title '%s', ", p + 1, p,
                     mezzo_precision_name(plan->precisions[p]));
    for (int p = 1; p < plan->n_precisions; p++)
        mz_text_addf(&t, "$rows using ($0+%.4f):%d:(sprintf('%%.2f',$%d)) with labels offset 0,0.6 font ',9' notitle, ",
                     (p - 1 - (plan->n_precisions - 2) / 2.0) / plan->n_precisions, p + 1, p + 1);
    mz_text_addf(&t, "1 with lines ls 90 title 'equally fast'\"\n");
    return mz_figure_make(folder, name, &t, 900, 480);
}

// --- kernels ---------------------------------------------------------------------------------------------------------
const char *mz_bench_unit(const mz_bench_row *row) {
    return mz_bench_op_scored(row->of->op) ? "GFLOP/s" : "GB/s";
}

double mz_bench_of_peak(const mz_bench_row *row) {
    return row->peak > 0 ? row->rate / row->peak : (double)NAN;
}

void mz_bench_kernel_line(const mz_bench_context *c, const mz_bench_row *row, mz_text *out) {
    char shape[96];
    if (row == NULL) {
        mz_text_addf(out, "device,commit,model,op,shape,precision,kernel,threads,rounds,tensors,median_ms,best_ms,rate,"
                          "unit,peak,of_peak,command\n");
        return;
    }
    mz_text_addf(out, "\"%s\",%s,%s,%s,%s,%s,%s,%d,%d,%s,%.6f,%.6f,%.2f,%s,%.2f,%.4f,\"%s\"\n", c->device->description,
                 c->commit, row->of->model != NULL ? row->of->model : "", row->of->op->name,
                 mz_bench_shape_text(row->of, shape, sizeof shape), mezzo_precision_name(row->precision), row->kernel,
                 c->device->threads, row->rounds, c->warm ? "warm" : "cold", 1e3 * row->median, 1e3 * row->best,
                 1e-9 * row->rate, mz_bench_unit(row), 1e-9 * row->peak, row->peak > 0 ? mz_bench_of_peak(row) : 0,
                 c->command);
}
