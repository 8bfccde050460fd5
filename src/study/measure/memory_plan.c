#include "study/measure/memory_plan.h"

#include <math.h>

#include "base/precision.h"
#include "base/stop.h"
#include "io/fields.h"
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

// Finds the row that needs least memory for one sequence, with recompute, and how much.
static mezzo_status least(const mz_memory_plan *a, const mz_memory_row **row, size_t *fewest) {
    *fewest = SIZE_MAX;
    *row = NULL;
    for (int i = 0; i < a->n_rows; i++) {
        mezzo_optimizer_options matrices;
        mz_session_options o = session_of(a, a->rows[i].precision, a->rows[i].optimizer, a->rows[i].master, &matrices);
        size_t bytes;
        o.form.batch = 1;
        o.program.recompute = true;
        MEZZO_TRY(mz_session_run_bytes(a->device, &o, &bytes));
        if (bytes < *fewest) {
            *fewest = bytes;
            *row = &a->rows[i];
        }
    }
    return MEZZO_OK;
}

// --- the report ----------------------------------------------------------------------------------------------------
static mz_short mib(size_t bytes) {
    mz_short out;
    const double x = (double)bytes / 1048576;
    if (bytes > 0 && x < 0.05)
        snprintf(out.text, sizeof out.text, "%zu bytes", bytes);
    else
        snprintf(out.text, sizeof out.text, x < 1024 ? "%.1f MiB" : "%.2f GiB", x < 1024 ? x : x / 1024);
    return out;
}

// A row as it is printed: the parts of a step's memory.
typedef struct line {
    const char *name, *optimizer, *master; // name: of a saving
    mezzo_precision precision;
    mz_footprint f;
    size_t scratch, total, run;             // scratch: what one column shows
    double measured, error, largest, again; // NaN: not asked for
    double saved;                           // as a share of the base row's total
} line;

static line line_of(const mz_memory_plan *a, const mz_memory_row *r) {
    const mz_footprint *f = &r->f;
    const double total = (double)mz_footprint_total(f), base = (double)mz_footprint_total(&a->rows[a->base].f);
    const bool measured = r->measured > 0, limited = r->largest >= 0;
    return (line){.optimizer = mz_memory_optimizer(r->optimizer),
                  .master = mezzo_master_name(r->master),
                  .precision = r->precision,
                  .f = *f,
                  .scratch = f->workspace + f->inputs + f->padding,
                  .total = (size_t)total,
                  .run = mz_footprint_run(f),
                  .measured = measured ? (double)r->measured : (double)NAN,
                  .error = measured ? 100 * (total / (double)r->measured - 1) : (double)NAN,
                  .largest = limited ? (double)r->largest : (double)NAN,
                  .again = limited ? (double)r->largest_again : (double)NAN,
                  .saved = 100 * (1 - total / base)};
}

static const mz_row_field row_fields[] = {
    {MZ_FIELD(line, precision), "precision", "precision"},
    {MZ_FIELD(line, optimizer), "optimizer_kind", "optimizer"},
    {MZ_FIELD(line, master), "master", "master"},
    {MZ_FIELD(line, f.weights), "weights", "weights", "mib",
     .legend = "the masters: fp32, or what the copies do not hold of them"},
    {MZ_FIELD(line, f.shadows), "shadows", "copies", "mib", .legend = "low-precision weights, which products read"},
    {MZ_FIELD(line, f.gradients), "gradients", "grads", "mib", .legend = "gradients of the parameters"},
    {MZ_FIELD(line, f.optimizer), "optimizer", "state", "mib", .legend = "the optimizer's moments"},
    {MZ_FIELD(line, f.activations), "activations", "activ.", "mib",
     .legend = "activations that do not fit into the gradients' memory, which holds others until backward writes it"},
    {MZ_FIELD(line, f.workspace), "workspace"},
    {MZ_FIELD(line, f.inputs), "inputs"},
    {MZ_FIELD(line, f.padding), "padding"},
    {MZ_FIELD(line, scratch), NULL, "work", "mib",
     .legend = "kernels' scratch and inputs; on a CPU also the unused rest of huge pages"},
    {MZ_FIELD(line, total), "total", "total", "mib", .legend = "of a training step. M: MiB, G: GiB"},
    {MZ_FIELD(line, f.unshared), "activations_unshared"},
    {MZ_FIELD(line, f.evaluation), "evaluation"},
    {MZ_FIELD(line, f.sampling), "sampling"},
    {MZ_FIELD(line, f.replay), "replay"},
    {MZ_FIELD(line, run), "run"},
    {MZ_FIELD(line, measured), "measured", .flags = MZ_KNOWN | MZ_WHOLE},
    {MZ_FIELD(line, largest), "largest_batch", .flags = MZ_KNOWN | MZ_WHOLE},
    {MZ_FIELD(line, again), "largest_batch_recompute", .flags = MZ_KNOWN | MZ_WHOLE},
};

// The columns that --measure and --limit add to each row.
static const mz_row_field asked_fields[] = {
    {MZ_FIELD(line, precision), NULL, "precision"},
    {MZ_FIELD(line, optimizer), NULL, "optimizer"},
    {MZ_FIELD(line, master), NULL, "master"},
    {MZ_FIELD(line, total), NULL, "total", "mib"},
    {MZ_FIELD(line, measured), NULL, "measured", "mib", .flags = MZ_KNOWN, .legend = "peak of two steps that ran"},
    {MZ_FIELD(line, error), NULL, "error", "%+.2f %%", .flags = MZ_KNOWN, .legend = "of the plan's total"},
    {MZ_FIELD(line, largest), NULL, "largest batch", "%.0f", .flags = MZ_KNOWN,
     .legend = "as mezzo train runs it, with evaluation and sampling"},
    {MZ_FIELD(line, again), NULL, "with recompute", "%.0f", .flags = MZ_KNOWN},
};

static const char *saved_text(const void *row, char *buf, size_t size) {
    const line *l = row;
    buf[0] = '\0';
    if (!isnan(l->saved))
        snprintf(buf, size, "%.1f %%", l->saved);
    return buf;
}

static const mz_row_field saving_fields[] = {
    {MZ_FIELD(line, name), NULL, ""},
    {MZ_FIELD(line, f.activations), NULL, "activations", "mib"},
    {MZ_FIELD(line, total), NULL, "total", "mib"},
    {MZ_FIELD(line, saved), NULL, "saved", .text = saved_text},
};

static const char *recompute_text(const mz_memory_plan *a) {
    const mezzo_program_options *o = &a->session.program;
    return o->recompute ? "recompute" : o->recompute_light ? "recompute light" : "";
}

static void add_plan(const mz_memory_plan *a, int columns, mz_text *t) {
    char batch[96];
    const mz_memory_row *base = &a->rows[a->base];
    mz_session_describe(&a->session, batch, sizeof batch);
    char rank[64] = "";
    if (a->session.size > 1)
        snprintf(rank, sizeof rank, ", one of %d ranks", a->session.size);
    const char *recompute = recompute_text(a);
    mz_text_tell(t, "%s: %s parameters; a micro batch of %s; planned for %s%s%s%s", a->model,
                 mz_count_text((double)base->f.parameters).text, batch, a->info.backend, rank,
                 *recompute != '\0' ? ", with " : "", recompute);
    mz_text_addf(t, "\n");
    line lines[MZ_MEMORY_ROWS];
    for (int i = 0; i < a->n_rows; i++)
        lines[i] = line_of(a, &a->rows[i]);
    MZ_TABLE(row_fields, lines, (size_t)a->n_rows, columns, t);
    mz_text_addf(t, "\n");
    if (a->limit > 0 || a->measure) {
        MZ_TABLE(asked_fields, lines, (size_t)a->n_rows, columns, t);
        mz_text_addf(t, "\n");
    }
    mz_text_tell(
        t,
        "Autocast does not halve the weights: fp32 weights, gradients and moments stay, and every matrix that a "
        "product reads has an additional 2-byte copy. What shrinks is the activations. If no two values shared memory, "
        "%s's activations would take %s. mezzo train also keeps programs for evaluation (%s)%s%s%s.",
        mezzo_precision_name(base->precision), mib(base->f.unshared).text, mib(base->f.evaluation).text,
        base->f.sampling > 0 ? " and sampling (" : "", base->f.sampling > 0 ? mib(base->f.sampling).text : "",
        base->f.sampling > 0 ? ")" : "");
    if (base->f.replay > 0)
        mz_text_tell(t, "--replay keeps %s beside them.", mib(base->f.replay).text);
}

static void add_savings(const mz_memory_plan *a, int columns, mz_text *t) {
    const mz_memory_row *base = &a->rows[a->base];
    line lines[MZ_COUNT(a->savings) + 1];
    lines[0] = line_of(a, base);
    lines[0].name = "as above";
    lines[0].saved = (double)NAN;
    for (int i = 0; i < a->n_savings; i++) {
        mz_memory_row r = *base;
        r.f = a->savings[i].f;
        lines[i + 1] = line_of(a, &r);
        lines[i + 1].name = a->savings[i].name;
    }
    mz_text_addf(t, "\nthe same step in less memory: %s, %s\n\n", mezzo_precision_name(base->precision),
                 mz_memory_optimizer(base->optimizer));
    MZ_TABLE(saving_fields, lines, (size_t)a->n_savings + 1, columns, t);
}

void mz_memory_text(const mz_memory_plan *a, int columns, mz_text *t) {
    add_plan(a, columns, t);
    add_savings(a, columns, t);
}

mezzo_status mz_memory_none_text(const mz_memory_plan *a, mz_text *t) {
    const mz_memory_row *row;
    size_t bytes;
    char batch[96];
    mz_session_options one = a->session;
    one.form.batch = 1;
    mz_session_describe(&one, batch, sizeof batch);
    MEZZO_TRY(least(a, &row, &bytes));
    mz_text_addf(t,
                 "nothing fits in %s: the smallest configuration is %s, %s, %s master weights, with recompute: %s for "
                 "%s\n",
                 mib(a->limit).text, mezzo_precision_name(row->precision), mz_memory_optimizer(row->optimizer),
                 mezzo_master_name(row->master), mib(bytes).text, batch);
    return t->status;
}

// --- formulas ------------------------------------------------------------------------------------------------------
typedef struct priced {
    mz_scheme is;
    double sum, bytes; // per parameter; of all parameters
} priced;

static const mz_row_field scheme_fields[] = {
    {MZ_FIELD(priced, is.name), "scheme", "bytes/parameter"},
    {MZ_FIELD(priced, is.weights), "weights", "weights", "%g"},
    {MZ_FIELD(priced, is.copies), "copies", "copies", "%g"},
    {MZ_FIELD(priced, is.gradients), "gradients", "grads", "%g"},
    {MZ_FIELD(priced, is.optimizer), "moments", "state", "%g"},
    {MZ_FIELD(priced, sum), "bytes_a_parameter", "sum", "%g"},
    {MZ_FIELD(priced, bytes), "bytes"},
    {MZ_FIELD(priced, bytes), NULL, "GB", "%.1f", .factor = 1e-9},
    {MZ_FIELD(priced, is.real), "real"},
    {MZ_FIELD(priced, is.remark), "remark"},
};

static void price(double params, priced rows[MZ_SCHEMES]) {
    for (size_t i = 0; i < MZ_SCHEMES; i++)
        rows[i] = (priced){mz_schemes[i], mz_scheme_total(&mz_schemes[i]), mz_scheme_total(&mz_schemes[i]) * params};
}

void mz_schemes_text(double params, int columns, mz_text *t) {
    priced rows[MZ_SCHEMES];
    price(params, rows);
    mz_text_addf(t, "%.4g parameters, without activations\n\n", params);
    MZ_TABLE(scheme_fields, rows, MZ_SCHEMES, columns, t);
    mz_text_addf(t, "\n");
    for (size_t i = 0; i < MZ_SCHEMES; i++)
        mz_text_tell(t, "%s: %s%s", rows[i].is.name, rows[i].is.real ? "" : "wrong: ", rows[i].is.remark);
    mz_text_addf(t, "\nActivations come on top and depend on the batch: name a model to plan them.\n");
}

json_t *mz_schemes_json(double params) {
    priced rows[MZ_SCHEMES];
    price(params, rows);
    return json_pack("{sf so}", "parameters", params, "schemes", MZ_LIST(scheme_fields, rows, MZ_SCHEMES));
}

// --- the plan as JSON ----------------------------------------------------------------------------------------------
json_t *mz_memory_json(const mz_memory_plan *a) {
    enum { OF_ROWS = 3 }; // fields that savings share with the base row
    json_t *rows = json_array(), *savings = json_array();
    for (int i = 0; i < a->n_rows; i++) {
        const line l = line_of(a, &a->rows[i]);
        json_array_append_new(rows, mz_fields_json(row_fields, MZ_COUNT(row_fields), &l, NULL, NULL));
    }
    for (int i = 0; i < a->n_savings; i++) {
        const line l = line_of(a, &(mz_memory_row){.f = a->savings[i].f, .largest = -1});
        json_t *o = mz_fields_json(row_fields + OF_ROWS, MZ_COUNT(row_fields) - OF_ROWS, &l, NULL, NULL);
        json_object_set_new(o, "name", json_string(a->savings[i].name));
        json_array_append_new(savings, o);
    }
    return json_pack("{ss sI sI sI ss so so}", "model", a->model, "parameters",
                     (json_int_t)a->rows[a->base].f.parameters, "batch", (json_int_t)a->session.form.batch, "seq_len",
                     (json_int_t)a->session.form.length, "device", a->info.description, "rows", rows, "savings",
                     savings);
}

// --- the figure ----------------------------------------------------------------------------------------------------
mezzo_status mz_memory_draw(const char *folder, const char *name, const mz_memory_plan *plan) {
    static const char *const parts[] = {"weights",   "low-precision copies", "gradients",
                                        "optimizer", "activations",          "workspace"};
    static const char *const colours[] = {"#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#999999"};
    const double limit = (double)plan->limit;
    double most = limit;
    char title[192], batch[96];
    mz_text t = {0};
    const char *recompute = recompute_text(plan);
    mz_session_describe(&plan->session, batch, sizeof batch);
    snprintf(title, sizeof title, "%s, %s parameters, %s%s%s", plan->model,
             mz_count_text((double)plan->rows[0].f.parameters).text, batch, *recompute != '\0' ? ", " : "", recompute);
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
