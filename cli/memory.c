// mezzo memory: what training takes, precision beside precision, planned and not allocated.
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/precision.h"
#include "cli.h"
#include "study/measure/measure.h"
#include "study/measure/memory_figure.h"

enum { OPTIMIZERS = 3, PRECISIONS = MEZZO_PRECISION_COUNT, MASTERS = 3, ROWS_MOST = OPTIMIZERS * PRECISIONS * MASTERS };

static const struct {
    const char *name;
    bool sgd;
    double momentum;
} optimizers[OPTIMIZERS] = {{"adamw", false, 0}, {"sgd", true, 0.9}, {"sgd-plain", true, 0}};

typedef struct memory_row {
    mezzo_precision precision;
    int optimizer; // index
    mezzo_master master;
    mz_footprint f;
    size_t measured;       // 0: not asked for
    int64_t largest;       // batch within the limit; -1: not asked for
    int64_t largest_again; // the same with recompute
} memory_row;

typedef struct saving { // one way to save, against the base
    char name[64];
    mz_footprint f;
} saving;

typedef struct asked {
    const cli_args *args;
    mezzo_device *device;
    mezzo_device_info info;
    const char *model;
    mz_workload w;
    mezzo_precision precisions[PRECISIONS];
    int n_precisions, chosen[OPTIMIZERS], n_optimizers;
    mezzo_master masters[MASTERS];
    int n_masters;
    size_t limit; // 0: none
    bool measure;
    memory_row rows[ROWS_MOST];
    int n_rows;
    int base; // the row that savings are told of
    saving savings[10];
    int n_savings;
} asked;

// --- what is asked -------------------------------------------------------------------------------------------------
// "24GiB", "80 GB", "512MiB", "1e9": bytes. "7B", "350M": a count.
static int parse_amount(const cli_args *args, const char *option, bool bytes, double *out) {
    static const struct {
        const char *unit;
        double factor;
    } sizes[] = {{"", 1},      {"B", 1},        {"kB", 1e3},        {"MB", 1e6},           {"GB", 1e9},
                 {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}},
      counts[] = {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}};
    const char *text = cli_text(args, option, "");
    char *end;
    double x = strtod(text, &end);
    bool number = end != text;
    end += strspn(end, " ");
    for (size_t i = 0; number && i < (bytes ? MZ_COUNT(sizes) : MZ_COUNT(counts)); i++)
        if (strcmp(end, bytes ? sizes[i].unit : counts[i].unit) == 0) {
            *out = x * (bytes ? sizes[i].factor : counts[i].factor);
            if (*out >= 1 && *out < 1e18)
                return CLI_DONE;
        }
    return cli_wrong(args->command, "--%s %s: write it as %s", option, text, bytes ? "24GiB or 24GB" : "7B or 350M");
}

static int parse_optimizers(asked *a) {
    const char *list = cli_text(a->args, "optimizer", "adamw,sgd,sgd-plain");
    for (const char *p = list; *p != '\0';) {
        size_t n = strcspn(p, ",");
        int found = -1;
        for (int i = 0; i < OPTIMIZERS; i++)
            if (strlen(optimizers[i].name) == n && strncmp(optimizers[i].name, p, n) == 0)
                found = i;
        for (int i = 0; i < a->n_optimizers; i++)
            if (a->chosen[i] == found)
                found = -1;
        if (found < 0)
            return cli_wrong(a->args->command,
                             "--optimizer %s: name adamw, sgd (with momentum) and sgd-plain, each once", list);
        a->chosen[a->n_optimizers++] = found;
        p += n + (p[n] == ',');
    }
    return a->n_optimizers > 0 ? CLI_DONE : cli_wrong(a->args->command, "--optimizer: name one at least");
}

static int parse_masters(asked *a) {
    const char *list = cli_text(a->args, "master", "fp32,split,stochastic");
    for (const char *p = list; *p != '\0';) {
        size_t n = strcspn(p, ",");
        int found = -1;
        for (int i = 0; i < MASTERS; i++) {
            const char *name = mezzo_master_name((mezzo_master)i);
            if (strlen(name) == n && strncmp(name, p, n) == 0)
                found = i;
        }
        for (int i = 0; i < a->n_masters; i++)
            if ((int)a->masters[i] == found)
                found = -1;
        if (found < 0)
            return cli_wrong(a->args->command, "--master %s: name fp32, split and stochastic, each once", list);
        a->masters[a->n_masters++] = (mezzo_master)found;
        p += n + (p[n] == ',');
    }
    return a->n_masters > 0 ? CLI_DONE : cli_wrong(a->args->command, "--master: name one at least");
}

static mezzo_status read_workload(asked *a, const mezzo_config *config) {
    mezzo_model_config initial;
    mezzo_program_options options;
    a->model = cli_key(config, "model.name");
    MEZZO_TRY(mezzo_model_defaults(a->model, &initial));
    MEZZO_TRY(mezzo_config_model(config, initial.vocab, &a->w.model));
    MEZZO_TRY(mezzo_config_program(config, &options));
    a->w.batch = strtoll(cli_key(config, "train.batch_size"), NULL, 10);
    a->w.freeze = cli_key(config, "train.freeze");
    a->w.seq_len = a->w.model.seq_len;
    a->w.grad_accum = 1;
    a->w.residual = options.residual;
    a->w.recompute = options.recompute;
    a->w.recompute_light = options.recompute_light;
    a->w.logits_rows = options.logits_rows;
    a->w.seed = 1;
    int threads = (int)strtol(cli_key(config, "device.threads"), NULL, 10);
    MEZZO_TRY(mezzo_device_open(cli_key(config, "device.name"), threads, &a->device));
    return mezzo_device_describe(a->device, &a->info);
}

// --- planning ------------------------------------------------------------------------------------------------------
static mz_workload workload_of(const asked *a, mezzo_precision precision, int optimizer, mezzo_master master) {
    mz_workload w = a->w;
    w.precision = precision;
    w.master = master;
    w.sgd = optimizers[optimizer].sgd;
    w.momentum = optimizers[optimizer].momentum;
    return w;
}

static mezzo_status plan_row(asked *a, mezzo_precision precision, int optimizer, mezzo_master master, memory_row *row) {
    mz_workload w = workload_of(a, precision, optimizer, master);
    *row = (memory_row){.precision = precision, .optimizer = optimizer, .master = master, .largest = -1};
    MEZZO_TRY(mz_workload_footprint(a->device, &w, &row->f));
    if (a->limit > 0) {
        MEZZO_TRY(mz_workload_largest_batch(a->device, &w, a->limit, &row->largest));
        w.recompute = true;
        MEZZO_TRY(mz_workload_largest_batch(a->device, &w, a->limit, &row->largest_again));
    }
    w = workload_of(a, precision, optimizer, master);
    if (a->measure)
        MEZZO_TRY(mz_workload_measure(a->device, &w, &row->measured));
    return MEZZO_OK;
}

// Precisions that the device turns into another one are that one, once.
static mezzo_status plan_rows(asked *a) {
    for (int p = 0; p < a->n_precisions; p++) {
        mezzo_precision effective;
        char reason[256];
        MEZZO_TRY(mezzo_precision_resolve(a->device, a->precisions[p], &effective, reason, sizeof reason));
        bool there = false;
        for (int k = 0; k < a->n_precisions; k++)
            there = there || (a->precisions[k] == effective && k != p);
        if (effective != a->precisions[p])
            fprintf(stderr, "%s: %s\n", mezzo_precision_name(a->precisions[p]), reason);
        for (int i = 0; i < a->n_optimizers * a->n_masters && !there; i++) {
            mezzo_master master = a->masters[i % a->n_masters];
            if (master != MEZZO_MASTER_FP32 && mz_precision(effective)->operand != MEZZO_BF16)
                continue;
            MEZZO_TRY(plan_row(a, effective, a->chosen[i / a->n_masters], master, &a->rows[a->n_rows]));
            a->n_rows++;
        }
    }
    return MEZZO_OK;
}

static mezzo_status save_by(asked *a, const mz_workload *w, const char *name) {
    saving *s = &a->savings[a->n_savings];
    snprintf(s->name, sizeof s->name, "%s", name);
    MEZZO_TRY(mz_workload_footprint(a->device, w, &s->f));
    a->n_savings++;
    return MEZZO_OK;
}

// Of the first low precision and its first optimizer: the same step with less memory.
static mezzo_status plan_savings(asked *a) {
    for (int i = a->n_rows - 1; i >= 0; i--)
        if (mz_precision_is_low(a->rows[i].precision))
            a->base = i;
    const memory_row *base = &a->rows[a->base];
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
    if (w.residual != MEZZO_RESIDUAL_LOW && base->f.shadows > 0) {
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
        snprintf(name, sizeof name, "%lld micro batches of %lld", (long long)parts, (long long)less.batch);
        MEZZO_TRY(save_by(a, &less, name));
    }
    if (w.batch > 1) {
        char name[64];
        less = w;
        less.batch = 1;
        less.recompute = true;
        snprintf(name, sizeof name, "recompute, %lld micro batches of 1", (long long)w.batch);
        MEZZO_TRY(save_by(a, &less, name));
    }
    return MEZZO_OK;
}

// --- telling -------------------------------------------------------------------------------------------------------
static const char *mib(size_t bytes, char *buffer, size_t size) {
    double x = (double)bytes / 1048576;
    snprintf(buffer, size, x < 1024 ? "%.1f MiB" : "%.2f GiB", x < 1024 ? x : x / 1024);
    return buffer;
}

// A row as it is told: what a step takes, part by part.
typedef struct line {
    const char *name, *optimizer, *master; // name: of a saving
    mezzo_precision precision;
    mz_footprint f;
    size_t scratch, total, run;             // scratch: what one column holds
    double measured, error, largest, again; // NaN: not asked for
    double saved;                           // of the base row's total
} line;

static line line_of(const asked *a, const memory_row *r) {
    const mz_footprint *f = &r->f;
    const double total = (double)mz_footprint_total(f), base = (double)mz_footprint_total(&a->rows[a->base].f);
    const bool measured = r->measured > 0, limited = r->largest >= 0;
    return (line){.optimizer = optimizers[r->optimizer].name,
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

static const cli_field row_fields[] = {
    {CLI_FIELD(line, precision), "precision", "precision", "%s", -9},
    {CLI_FIELD(line, optimizer), "optimizer_kind", "optimizer", "%s", -10},
    {CLI_FIELD(line, master), "master", "master", "%s", -10},
    {CLI_FIELD(line, f.weights), "weights", "weights", "mib", 12},
    {CLI_FIELD(line, f.shadows), "shadows", "copies", "mib", 12},
    {CLI_FIELD(line, f.gradients), "gradients", "gradients", "mib", 12},
    {CLI_FIELD(line, f.optimizer), "optimizer", "optimizer", "mib", 12},
    {CLI_FIELD(line, f.activations), "activations", "activations", "mib", 12},
    {CLI_FIELD(line, f.workspace), "workspace"},
    {CLI_FIELD(line, f.inputs), "inputs"},
    {CLI_FIELD(line, f.padding), "padding"},
    {CLI_FIELD(line, scratch), NULL, "workspace", "mib", 12},
    {CLI_FIELD(line, total), "total", "total", "mib", 12},
    {CLI_FIELD(line, f.unshared), "activations_unshared"},
    {CLI_FIELD(line, f.evaluation), "evaluation"},
    {CLI_FIELD(line, f.sampling), "sampling"},
    {CLI_FIELD(line, run), "run"},
    {CLI_FIELD(line, measured), "measured", "measured", "mib", 12, CLI_KNOWN | CLI_WHOLE},
    {CLI_FIELD(line, error), NULL, "error", "%+.2f %%", 8, CLI_KNOWN},
    {CLI_FIELD(line, largest), "largest_batch", "batch fits", "%.0f", 10, CLI_KNOWN | CLI_WHOLE},
    {CLI_FIELD(line, again), "largest_batch_recompute", "recompute", "%.0f", 10, CLI_KNOWN | CLI_WHOLE},
};
static const char *saved_text(const void *row, char *buf, size_t size) {
    const line *l = row;
    snprintf(buf, size, isnan(l->saved) ? "" : "%.1f %%", l->saved);
    return buf;
}

static const cli_field saving_fields[] = {
    {CLI_FIELD(line, name), NULL, "", "%s", -34},
    {CLI_FIELD(line, f.activations), NULL, "activations", "mib", 14},
    {CLI_FIELD(line, total), NULL, "total", "mib", 14},
    {CLI_FIELD(line, saved), NULL, "saved", .width = 8, .text = saved_text},
};

static void print_plan(const asked *a) {
    char text[32], unshared[32], sampling[32];
    const memory_row *base = &a->rows[a->base];
    printf("%s: %s parameters; a micro batch of %lld x %lld tokens; planned for %s%s\n\n", a->model,
           cli_thousands((double)base->f.parameters, text, sizeof text), (long long)a->w.batch, (long long)a->w.seq_len,
           a->info.backend,
           a->w.recompute         ? ", with recompute"
           : a->w.recompute_light ? ", with recompute light"
                                  : "");
    line lines[ROWS_MOST];
    for (int i = 0; i < a->n_rows; i++)
        lines[i] = line_of(a, &a->rows[i]);
    CLI_TABLE(row_fields, lines, (size_t)a->n_rows);
    printf("\nAutocast does not halve the weights: fp32 weights, gradients and moments stay, and every matrix that\n"
           "a product reads has a 2-byte low-precision copy beside it. What shrinks is the activations. If no two\n"
           "values shared memory, %s's activations would take %s. `mezzo train` also keeps programs for\n"
           "evaluation (%s) and sampling (%s)%s.\n",
           mezzo_precision_name(base->precision), mib(base->f.unshared, unshared, sizeof unshared),
           mib(base->f.evaluation, text, sizeof text), mib(base->f.sampling, sampling, sizeof sampling),
           a->limit > 0 ? "; a batch that fits includes them" : "");
}

// Nothing fits: what the least row needs for one sequence.
static mezzo_status print_none(const asked *a) {
    size_t least = SIZE_MAX;
    const memory_row *row = NULL;
    char need[32], limit[32];
    for (int i = 0; i < a->n_rows; i++) {
        mz_workload w = workload_of(a, a->rows[i].precision, a->rows[i].optimizer, a->rows[i].master);
        size_t bytes;
        w.batch = 1;
        w.recompute = true;
        MEZZO_TRY(mz_workload_run_memory(a->device, &w, &bytes));
        if (bytes < least) {
            least = bytes;
            row = &a->rows[i];
        }
    }
    fprintf(stderr,
            "mezzo memory: nothing fits in %s: the least is %s, %s, %s master weights, with recompute: %s for one "
            "sequence of %lld tokens\n",
            mib(a->limit, limit, sizeof limit), mezzo_precision_name(row->precision), optimizers[row->optimizer].name,
            mezzo_master_name(row->master), mib(least, need, sizeof need), (long long)a->w.seq_len);
    return MEZZO_OK;
}

static bool any_fits(const asked *a) {
    for (int i = 0; i < a->n_rows; i++)
        if (a->rows[i].largest > 0 || a->rows[i].largest_again > 0)
            return true;
    return a->limit == 0;
}

static void print_savings(const asked *a) {
    const memory_row *base = &a->rows[a->base];
    line lines[MZ_COUNT(a->savings) + 1];
    lines[0] = line_of(a, base);
    lines[0].name = "as above";
    lines[0].saved = (double)NAN;
    for (int i = 0; i < a->n_savings; i++) {
        memory_row r = *base;
        r.f = a->savings[i].f;
        lines[i + 1] = line_of(a, &r);
        lines[i + 1].name = a->savings[i].name;
    }
    printf("\nthe same step in less memory: %s, %s\n\n", mezzo_precision_name(base->precision),
           optimizers[base->optimizer].name);
    CLI_TABLE(saving_fields, lines, (size_t)a->n_savings + 1);
}

static void print_schemes(double params) {
    printf("%-48s %7s %7s %7s %7s %7s %10s\n", "bytes a parameter", "weights", "copies", "grads", "moments", "sum",
           "GB");
    for (int i = 0; i < mz_scheme_count(); i++) {
        const mz_scheme *s = mz_scheme_at(i);
        printf("%-48s %7g %7g %7g %7g %7g %10.1f\n    %s%s\n", s->name, s->weights, s->copies, s->gradients,
               s->optimizer, mz_scheme_total(s), mz_scheme_total(s) * params * 1e-9,
               s->real ? "" : "not so: ", s->remark);
    }
}

static json_t *plan_json(const asked *a) {
    enum { OF_ROWS = 3 }; // fields that savings share with the base row
    json_t *rows = json_array(), *savings = json_array();
    for (int i = 0; i < a->n_rows; i++) {
        const line l = line_of(a, &a->rows[i]);
        json_array_append_new(rows, cli_fields_json(row_fields, MZ_COUNT(row_fields), &l, NULL, NULL));
    }
    for (int i = 0; i < a->n_savings; i++) {
        const line l = line_of(a, &(memory_row){.f = a->savings[i].f, .largest = -1});
        json_t *o = cli_fields_json(row_fields + OF_ROWS, MZ_COUNT(row_fields) - OF_ROWS, &l, NULL, NULL);
        json_object_set_new(o, "name", json_string(a->savings[i].name));
        json_array_append_new(savings, o);
    }
    return json_pack("{ss sI sI sI ss so so}", "model", a->model, "parameters",
                     (json_int_t)a->rows[a->base].f.parameters, "batch", (json_int_t)a->w.batch, "seq_len",
                     (json_int_t)a->w.seq_len, "device", a->info.description, "rows", rows, "savings", savings);
}

static json_t *schemes_json(double params) {
    json_t *list = json_array();
    for (int i = 0; i < mz_scheme_count(); i++) {
        const mz_scheme *s = mz_scheme_at(i);
        json_array_append_new(list, json_pack("{ss sf sf sf sf sf sf sb ss}", "scheme", s->name, "weights", s->weights,
                                              "copies", s->copies, "gradients", s->gradients, "moments", s->optimizer,
                                              "bytes_a_parameter", mz_scheme_total(s), "bytes",
                                              mz_scheme_total(s) * params, "real", (int)s->real, "remark", s->remark));
    }
    return list;
}

// --- the command ---------------------------------------------------------------------------------------------------
static mezzo_status draw(const asked *a, const cli_plot *plot) {
    mz_memory_bar bars[ROWS_MOST];
    char title[160], text[32];
    for (int i = 0; i < a->n_rows; i++) {
        snprintf(bars[i].name, sizeof bars[i].name, "%s %s%s%s", mezzo_precision_name(a->rows[i].precision),
                 optimizers[a->rows[i].optimizer].name, a->rows[i].master != MEZZO_MASTER_FP32 ? " " : "",
                 a->rows[i].master != MEZZO_MASTER_FP32 ? mezzo_master_name(a->rows[i].master) : "");
        bars[i].footprint = a->rows[i].f;
    }
    snprintf(title, sizeof title, "%s, %s parameters, %lld x %lld tokens%s", a->model,
             cli_thousands((double)a->rows[0].f.parameters, text, sizeof text), (long long)a->w.batch,
             (long long)a->w.seq_len,
             a->w.recompute         ? ", recompute"
             : a->w.recompute_light ? ", recompute light"
                                    : "");
    return mz_memory_draw(plot->folder, plot->name, title, bars, a->n_rows, a->limit);
}

static int planned(asked *a) {
    cli_plot plot;
    int code;
    mezzo_status status = plan_rows(a);
    if (status == MEZZO_OK && a->n_rows == 0)
        return cli_wrong(a->args->command, "--master %s: only bf16 keeps its masters so",
                         cli_text(a->args, "master", ""));
    if (status == MEZZO_OK)
        status = plan_savings(a);
    if (status != MEZZO_OK)
        return cli_error(a->args->command, status);
    if (cli_plot_asked(a->args, &plot, &code))
        code = cli_plotted(a->args, draw(a, &plot), &plot);
    if (code != CLI_DONE)
        return code;
    if (cli_has(a->args, "json")) {
        code = cli_json_print(a->args->command, plan_json(a));
    } else {
        print_plan(a);
        print_savings(a);
    }
    if (code != CLI_DONE || any_fits(a))
        return code;
    fflush(stdout);
    status = print_none(a);
    return status == MEZZO_OK ? CLI_CHECK_FAILED : cli_error(a->args->command, status);
}

static int by_formula(const cli_args *args) {
    static const char *const others[] = {"limit", "measure", "plot", "optimizer", "precision", "master", "config"};
    double params;
    int code = parse_amount(args, "params", false, &params);
    if (code != CLI_DONE)
        return code;
    for (int i = 0; i < args->n_given; i++)
        for (size_t k = 0; k < MZ_COUNT(others); k++)
            if (args->given[i].config || strcmp(args->given[i].name, others[k]) == 0)
                return cli_wrong(args->command,
                                 "--params is a formula of the number of parameters alone: leave --%s out",
                                 args->given[i].typed);
    if (cli_has(args, "json"))
        return cli_json_print(args->command,
                              json_pack("{sf so}", "parameters", params, "schemes", schemes_json(params)));
    printf("%.4g parameters, without activations\n\n", params);
    print_schemes(params);
    printf("\nActivations come on top and depend on the batch: name a model to have them planned.\n");
    return CLI_DONE;
}

static int run(const cli_args *args) {
    if (cli_has(args, "params"))
        return by_formula(args);
    asked a = {.args = args, .measure = cli_has(args, "measure")};
    mezzo_config *config;
    double limit = 0;
    int code = cli_precisions(args, "precision", NULL, a.precisions, PRECISIONS, &a.n_precisions);
    if (code == CLI_DONE)
        code = parse_optimizers(&a);
    if (code == CLI_DONE)
        code = parse_masters(&a);
    if (code == CLI_DONE && cli_has(args, "limit"))
        code = parse_amount(args, "limit", true, &limit);
    if (code == CLI_DONE)
        code = cli_config(args, &config);
    if (code != CLI_DONE)
        return code;
    a.limit = (size_t)limit;
    mezzo_status status = read_workload(&a, config);
    code = status == MEZZO_OK ? planned(&a) : cli_error(args->command, status);
    mezzo_device_close(a.device);
    mezzo_config_free(config);
    return code;
}

static const cli_option options_table[] = {
    {"config", "FILE", "a YAML file of keys; options on the command line win over it"},
    {"precision", "LIST", "which precisions [{precisions}]"},
    {"optimizer", "LIST", "adamw, sgd (with momentum), sgd-plain [all]"},
    {"master", "LIST", "how bf16 keeps its masters: fp32, split, stochastic [all]"},
    {"params", "N", "only the formulas, for a model of N parameters: 7B, 350M"},
    {"limit", "SIZE", "also the largest batch that fits, as 24GiB, without and with recompute; 1 if none does"},
    {"measure", NULL, "also run two steps of each row and compare the peak: needs the memory"},
    {"json", NULL, "the result as JSON"},
    {"plot", "FILE", "stacked bars, FILE.svg or FILE.png (both are drawn, and the gnuplot script kept beside them)"},
    {0},
};
static const char *const keys[] = {"model.",          "amp.residual", "amp.recompute",    "amp.recompute_light",
                                   "amp.logits_rows", "device.",      "train.batch_size", NULL};

const cli_command cli_memory = {
    .name = "memory",
    .summary = "what training takes in every precision, before running",
    .usage = "--model NAME [--batch-size N] [--limit 24GiB] [--KEY VALUE …], or --params 7B",
    .details =
        "The training step's plan, run dry: nothing of the model's size is allocated, unless --measure asks for it.\n"
        "weights: master weights, FP32 or what is kept beside the copies; copies: the low-precision weights that "
        "products read; optimizer: moments and state;\n"
        "workspace: kernels' scratch, inputs, and on a CPU what is left empty of huge pages. A batch that fits does so "
        "as `mezzo train` runs it, with evaluation and sampling.",
    .options = options_table,
    .config = keys,
    .run = run,
};
