// mezzo memory plans the memory of training in each precision, and allocates none.
#include <math.h>
#include <stdlib.h>

#include "base/names.h"
#include "cli.h"
#include "study/measure/memory_plan.h"
#include "dist/world.h"
#include "train/config.h"

typedef struct asked {
    mezzo_device_info info;
    const char *model;
    int ranks;
    mz_memory_plan plan;
} asked;

// --- options -------------------------------------------------------------------------------------------------------
// Parses an amount: "24GiB", "80 GB", "512MiB", "1e9" are bytes; "7B", "350M" are a count.
static int parse_amount(const char *option, bool bytes, double *out) {
    static const struct {
        const char *unit;
        double factor;
    } sizes[] = {{"", 1},      {"B", 1},        {"kB", 1e3},        {"MB", 1e6},           {"GB", 1e9},
                 {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}},
      counts[] = {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}};
    const char *text = cli_text(option, "");
    char *end;
    double x = strtod(text, &end);
    const bool number = end != text && strspn(text, "0123456789.") > 0 && strpbrk(text, "xX") == NULL;
    end += strspn(end, " ");
    for (size_t i = 0; number && i < (bytes ? MZ_COUNT(sizes) : MZ_COUNT(counts)); i++)
        if (strcmp(end, bytes ? sizes[i].unit : counts[i].unit) == 0) {
            *out = x * (bytes ? sizes[i].factor : counts[i].factor);
            if (*out >= 1 && *out < 1e18)
                return CLI_DONE;
        }
    return cli_wrong("--%s %s: write it as %s", option, text, bytes ? "24GiB or 24GB" : "7B or 350M");
}

// Parses an option's list of names as their indices; `name` returns that of an index below `most`.
static int parse_names(const char *option, const char *initial, const char *advice, const char *(*name)(int i),
                       int most, int *out, int *n) {
    cli_word words[CLI_WORDS];
    CLI_TRY(cli_words(option, initial, most, words, n));
    for (int i = 0; i < *n; i++) {
        for (out[i] = 0; out[i] < most && strcmp(name(out[i]), words[i]) != 0;)
            out[i]++;
        if (out[i] == most)
            return cli_wrong("--%s %s: use %s", option, words[i], advice);
    }
    return CLI_DONE;
}

static const char *master_name(int i) {
    return mezzo_master_name((mezzo_master)i);
}

static int parse_rows(asked *a) {
    CLI_TRY(parse_names("optimizer", "adamw,sgd,sgd-plain", "adamw, sgd (with momentum) and sgd-plain",
                        mz_memory_optimizer, MZ_MEMORY_OPTIMIZERS, a->plan.optimizers, &a->plan.n_optimizers));
    return parse_names("master", "fp32,split,stochastic", "fp32, split and stochastic", master_name, MZ_MEMORY_MASTERS,
                       a->plan.masters, &a->plan.n_masters);
}

// Parses the number of ranks; the default is that of the job to which this process belongs.
static int parse_ranks(asked *a) {
    mz_world world;
    double n = 1;
    if (mz_world_read(&world) == MEZZO_OK)
        n = world.size;
    CLI_TRY(cli_number("ranks", 1, 65536, n, &n));
    if (n > 1 && a->plan.measure)
        return cli_wrong("--measure runs one process: remove --ranks");
    a->ranks = (int)n;
    return CLI_DONE;
}

// Resolves precisions on the device, each result once.
static mezzo_status settle_precisions(mz_memory_plan *p) {
    mezzo_precision kept[MEZZO_PRECISION_COUNT];
    int n = 0;
    for (int i = 0; i < p->n_precisions; i++) {
        mezzo_precision effective;
        char reason[256];
        MEZZO_TRY(mezzo_precision_resolve(p->device, p->precisions[i], &effective, reason, sizeof reason));
        bool there = false;
        for (int k = 0; k < n; k++)
            there = there || kept[k] == effective;
        if (effective != p->precisions[i])
            fprintf(stderr, "%s\n", reason);
        if (!there)
            kept[n++] = effective;
    }
    memcpy(p->precisions, kept, sizeof kept);
    p->n_precisions = n;
    return MEZZO_OK;
}

static mezzo_status read_session(asked *a, const mezzo_config *config) {
    mz_run_config c;
    mz_session_options *o = &a->plan.session;
    const int ranks = a->ranks;
    MEZZO_TRY(mz_run_config_read(config, &c));
    MEZZO_TRY(mz_run_config_share(&c, ranks));
    MEZZO_TRY(mz_run_config_sketch(&c, o));
    a->model = c.model_name;
    o->form.outputs = false;
    o->quick_init = true;
    o->size = ranks;
    MEZZO_TRY(mezzo_device_open(c.device, c.threads, &a->plan.device));
    return mezzo_device_describe(a->plan.device, &a->info);
}

// --- output ---------------------------------------------------------------------------------------------------------
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

static line line_of(const asked *a, const mz_memory_row *r) {
    const mz_footprint *f = &r->f;
    const double total = (double)mz_footprint_total(f),
                 base = (double)mz_footprint_total(&a->plan.rows[a->plan.base].f);
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

static const char *recompute_text(const asked *a) {
    const mezzo_program_options *o = &a->plan.session.program;
    return o->recompute ? "recompute" : o->recompute_light ? "recompute light" : "";
}

static void print_plan(const asked *a) {
    char batch[96];
    const mz_memory_row *base = &a->plan.rows[a->plan.base];
    mz_session_describe(&a->plan.session, batch, sizeof batch);
    char rank[64] = "";
    if (a->ranks > 1)
        snprintf(rank, sizeof rank, ", one of %d ranks", a->ranks);
    const char *recompute = recompute_text(a);
    cli_tell("%s: %s parameters; a micro batch of %s; planned for %s%s%s%s", a->model,
             mz_count_text((double)base->f.parameters).text, batch, a->info.backend, rank,
             *recompute != '\0' ? ", with " : "", recompute);
    printf("\n");
    line lines[MZ_MEMORY_ROWS];
    for (int i = 0; i < a->plan.n_rows; i++)
        lines[i] = line_of(a, &a->plan.rows[i]);
    CLI_TABLE(row_fields, lines, (size_t)a->plan.n_rows);
    printf("\n");
    if (a->plan.limit > 0 || a->plan.measure) {
        CLI_TABLE(asked_fields, lines, (size_t)a->plan.n_rows);
        printf("\n");
    }
    cli_tell(
        "Autocast does not halve the weights: fp32 weights, gradients and moments stay, and every matrix that a "
        "product reads has an additional 2-byte copy. What shrinks is the activations. If no two values shared memory, "
        "%s's activations would take %s. mezzo train also keeps programs for evaluation (%s)%s%s%s.",
        mezzo_precision_name(base->precision), mib(base->f.unshared).text, mib(base->f.evaluation).text,
        base->f.sampling > 0 ? " and sampling (" : "", base->f.sampling > 0 ? mib(base->f.sampling).text : "",
        base->f.sampling > 0 ? ")" : "");
    if (base->f.replay > 0)
        cli_tell("--replay keeps %s beside them.", mib(base->f.replay).text);
}

// Prints that nothing fits, with the need of the smallest row for one sequence.
static mezzo_status print_none(const asked *a) {
    const mz_memory_row *row;
    size_t least;
    char batch[96];
    mz_session_options one = a->plan.session;
    one.form.batch = 1;
    mz_session_describe(&one, batch, sizeof batch);
    MEZZO_TRY(mz_memory_least(&a->plan, &row, &least));
    fprintf(stderr,
            "mezzo memory: nothing fits in %s: the smallest configuration is %s, %s, %s master weights, with "
            "recompute: %s for %s\n",
            mib(a->plan.limit).text, mezzo_precision_name(row->precision), mz_memory_optimizer(row->optimizer),
            mezzo_master_name(row->master), mib(least).text, batch);
    return MEZZO_OK;
}

static void print_savings(const asked *a) {
    const mz_memory_row *base = &a->plan.rows[a->plan.base];
    line lines[MZ_COUNT(a->plan.savings) + 1];
    lines[0] = line_of(a, base);
    lines[0].name = "as above";
    lines[0].saved = (double)NAN;
    for (int i = 0; i < a->plan.n_savings; i++) {
        mz_memory_row r = *base;
        r.f = a->plan.savings[i].f;
        lines[i + 1] = line_of(a, &r);
        lines[i + 1].name = a->plan.savings[i].name;
    }
    printf("\nthe same step in less memory: %s, %s\n\n", mezzo_precision_name(base->precision),
           mz_memory_optimizer(base->optimizer));
    CLI_TABLE(saving_fields, lines, (size_t)a->plan.n_savings + 1);
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

static void print_schemes(double params, const priced rows[MZ_SCHEMES]) {
    printf("%.4g parameters, without activations\n\n", params);
    CLI_TABLE(scheme_fields, rows, MZ_SCHEMES);
    printf("\n");
    for (size_t i = 0; i < MZ_SCHEMES; i++)
        cli_tell("%s: %s%s", rows[i].is.name, rows[i].is.real ? "" : "wrong: ", rows[i].is.remark);
    printf("\nActivations come on top and depend on the batch: name a model to plan them.\n");
}

// --- the plan as JSON ----------------------------------------------------------------------------------------------
static json_t *plan_json(const asked *a) {
    enum { OF_ROWS = 3 }; // fields that savings share with the base row
    json_t *rows = json_array(), *savings = json_array();
    for (int i = 0; i < a->plan.n_rows; i++) {
        const line l = line_of(a, &a->plan.rows[i]);
        json_array_append_new(rows, mz_fields_json(row_fields, MZ_COUNT(row_fields), &l, NULL, NULL));
    }
    for (int i = 0; i < a->plan.n_savings; i++) {
        const line l = line_of(a, &(mz_memory_row){.f = a->plan.savings[i].f, .largest = -1});
        json_t *o = mz_fields_json(row_fields + OF_ROWS, MZ_COUNT(row_fields) - OF_ROWS, &l, NULL, NULL);
        json_object_set_new(o, "name", json_string(a->plan.savings[i].name));
        json_array_append_new(savings, o);
    }
    return json_pack("{ss sI sI sI ss so so}", "model", a->model, "parameters",
                     (json_int_t)a->plan.rows[a->plan.base].f.parameters, "batch",
                     (json_int_t)a->plan.session.form.batch, "seq_len", (json_int_t)a->plan.session.form.length,
                     "device", a->info.description, "rows", rows, "savings", savings);
}

// --- the command ---------------------------------------------------------------------------------------------------
static mezzo_status draw(const char *folder, const char *name, const asked *a) {
    char title[192], batch[96];
    mz_session_describe(&a->plan.session, batch, sizeof batch);
    const char *recompute = recompute_text(a);
    snprintf(title, sizeof title, "%s, %s parameters, %s%s%s", a->model,
             mz_count_text((double)a->plan.rows[0].f.parameters).text, batch, *recompute != '\0' ? ", " : "",
             recompute);
    return mz_memory_draw(folder, name, title, &a->plan);
}

static int planned(asked *a) {
    CLI_DO(settle_precisions(&a->plan));
    CLI_DO(mz_memory_plan_rows(&a->plan));
    if (a->plan.n_rows == 0)
        return cli_wrong("--master %s: only bf16 supports it", cli_text("master", ""));
    CLI_DO(mz_memory_plan_savings(&a->plan));
    CLI_PLOT(draw, a);
    if (cli_has("json")) {
        CLI_TRY(cli_json_print(plan_json(a)));
    } else {
        print_plan(a);
        print_savings(a);
    }
    if (mz_memory_fits(&a->plan))
        return CLI_DONE;
    fflush(stdout);
    CLI_DO(print_none(a));
    return CLI_CHECK_FAILED;
}

static int by_formula(void) {
    double params;
    CLI_TRY(parse_amount("params", false, &params));
    for (int i = 0; i < cli_line.n_given; i++)
        if (cli_line.given[i].config ||
            mz_is_listed("limit measure plot optimizer precision master config ranks", cli_line.given[i].name))
            return cli_wrong("--params uses only the number of parameters: remove --%s", cli_line.given[i].typed);
    priced rows[MZ_SCHEMES];
    for (size_t i = 0; i < MZ_SCHEMES; i++)
        rows[i] = (priced){mz_schemes[i], mz_scheme_total(&mz_schemes[i]), mz_scheme_total(&mz_schemes[i]) * params};
    if (cli_has("json"))
        return cli_json_print(
            json_pack("{sf so}", "parameters", params, "schemes", MZ_LIST(scheme_fields, rows, MZ_SCHEMES)));
    print_schemes(params, rows);
    return CLI_DONE;
}

static void close_plan(asked *a) {
    mezzo_device_close(a->plan.device);
}

int cli_memory(void) {
    if (cli_has("params"))
        return by_formula();
    MZ_SCOPED(cli_free_config) mezzo_config *config = NULL;
    MZ_SCOPED(close_plan) asked a = {.plan = {.measure = cli_has("measure")}};
    double limit = 0;
    CLI_TRY(cli_precisions("precision", NULL, a.plan.precisions, MEZZO_PRECISION_COUNT, &a.plan.n_precisions));
    CLI_TRY(parse_rows(&a));
    if (cli_has("limit"))
        CLI_TRY(parse_amount("limit", true, &limit));
    CLI_TRY(parse_ranks(&a));
    CLI_TRY(cli_config(&config));
    a.plan.limit = (size_t)limit;
    CLI_DO(read_session(&a, config));
    return planned(&a);
}
