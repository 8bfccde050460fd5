// mezzo bench --models times forward, backward and step of model sizes in several precisions.
#include <math.h>
#include <stdlib.h>

#include "base/precision.h"
#include "cli.h"
#include "task/task.h"
#include "optim/kinds.h"
#include "study/measure/bench.h"
#include "study/measure/kernels.h"
#include "io/file.h"
#include "io/json.h"

enum { SIZES_MOST = 32 };

typedef struct models {
    mz_bench_plan plan;
    const char *sizes[SIZES_MOST];
    int n_sizes;
    char speed[32]; // "tokens/s"; "items/s" where the models have different units
    char *words;    // memory of the names in `sizes`
    mz_bench_result rows[SIZES_MOST];
    int n_rows;
    const char *command;
    double peaks[MEZZO_PRECISION_COUNT];
    mezzo_device_info device;
} models;

// --- options -------------------------------------------------------------------------------------------------------
static int parse_sizes(models *m) {
    const char *list = cli_text("models", NULL);
    if (cli_has("all-models"))
        for (int i = 0; mz_bench_size_at(i) != NULL; i++)
            m->sizes[m->n_sizes++] = mz_bench_size_at(i)->name;
    if (list == NULL)
        return CLI_DONE;
    m->words = mz_strdup(list);
    if (m->words == NULL)
        return cli_error(MEZZO_ERR_MEMORY);
    char *rest;
    for (char *word = strtok_r(m->words, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        if (m->n_sizes == SIZES_MOST)
            return cli_wrong("--models: more than %d of them", SIZES_MOST);
        m->sizes[m->n_sizes++] = word;
    }
    return m->n_sizes > 0 ? CLI_DONE : cli_wrong("--models: name at least one");
}

int cli_precisions(const char *option, const char *initial, mezzo_precision *out, int most, int *n) {
    cli_word words[CLI_WORDS];
    if (cli_text(option, initial) == NULL) {
        *n = mz_precision_common(out);
        return CLI_DONE;
    }
    CLI_TRY(cli_words(option, initial, most, words, n));
    for (int i = 0; i < *n; i++) {
        if (mezzo_precision_parse(words[i], &out[i]) != MEZZO_OK)
            return cli_wrong("--%s: %s", option, mezzo_error_message());
        // This excludes auto, and FP64, which serves as the reference of tests.
        if (mz_precision(out[i]) == NULL || mz_precision(out[i])->wide != MEZZO_F32)
            return cli_wrong("--%s %s: only training precisions can be compared", option, words[i]);
        for (int k = 0; k < i; k++) // under another name
            if (out[k] == out[i])
                return cli_wrong("--%s: %s occurs twice", option, words[i]);
    }
    return CLI_DONE;
}

static int parse_phases(models *m) {
    cli_word words[3];
    int n;
    CLI_TRY(cli_words("phases", "forward,backward,step", MZ_COUNT(words), words, &n));
    for (int i = 0; i < n; i++) {
        const bool forward = strcmp(words[i], "forward") == 0, backward = strcmp(words[i], "backward") == 0;
        if (!forward && !backward && strcmp(words[i], "step") != 0)
            return cli_wrong("--phases %s: use forward, backward and step", words[i]);
        *(forward ? &m->plan.forward : backward ? &m->plan.backward : &m->plan.step) = true;
    }
    return CLI_DONE;
}

static const cli_range ranges[] = {
    {MZ_FIELD(mz_bench_plan, context), "context-length", 1, 1 << 20, 512},
    {MZ_FIELD(mz_bench_plan, batch), "batch-size", 1, 1 << 20, 4},
    {MZ_FIELD(mz_bench_plan, repeats.warmup), "warmup", 0, 10000, 5},
    {MZ_FIELD(mz_bench_plan, repeats.iters), "iters", 1, MZ_REPEATS_MAX, 10},
    {MZ_FIELD(mz_bench_plan, memory), "memory-gb", 0, 1e6, 0, 0x1p30},
};

// Reports the size that is measured now, since it takes minutes and its rows are printed once it is done.
static void tell(void *user, const char *size, mezzo_precision precision) {
    const models *m = user;
    fprintf(stderr, "mezzo: size %d of %d, %s: timing %s\n", m->n_rows + 1, m->n_sizes, mz_show(size).text,
            mezzo_precision_name(precision));
}

static int parse(models *m) {
    mz_bench_plan *p = &m->plan;
    CLI_TRY(CLI_REFUSE("is for --kernels", "op", "shape", "model", "precision", "rounds", "warm"));
    CLI_TRY(parse_sizes(m));
    CLI_TRY(cli_precisions("precisions", NULL, p->precisions, MZ_BENCH_PRECISIONS, &p->n_precisions));
    CLI_TRY(parse_phases(m));
    CLI_TRY(CLI_RANGES(ranges, p));
    const char *optimizer = cli_text("optimizer", mz_kinds[MEZZO_ADAMW].name);
    const int kind = mz_kind_find(optimizer);
    if (kind < 0)
        return cli_wrong("--optimizer %s: use one of %s", mz_show(optimizer).text, MZ_KIND_NAMES);
    p->optimizer = (mezzo_optimizer_kind)kind;
    p->repeats.stop = cli_interrupts(NULL);
    p->seed = 1;
    p->tell = tell;
    p->user = m;
    p->peaks = m->peaks;
    return CLI_DONE;
}

// --- output --------------------------------------------------------------------------------------------------------
static mz_short shown(double x) {
    mz_short out;
    snprintf(out.text, sizeof out.text, isnan(x) ? "-" : "%.2f", x);
    return out;
}

static void print_row(const models *m, const mz_bench_result *r) {
    if (m->n_rows == 1)
        printf("%-10s %9s %-5s %12s %12s %12s %10s %8s %9s %6s  %s\n", "size", "params M", "", "forward ms",
               "backward ms", "step ms", m->speed, "speedup", "memory MB", "MFU %", "");
    for (int i = 0; i < m->plan.n_precisions; i++) {
        const mz_bench_cell *c = &r->cells[i], *base = &r->cells[0];
        double speedup = m->plan.step ? base->step.mean / c->step.mean : base->total / c->total;
        printf("%-10s %9.1f %-5s %12s %12s %12s %10s %8s %9.0f %6s  %s\n", i == 0 ? r->size : "", r->params_m,
               mezzo_precision_name(m->plan.precisions[i]), shown(c->forward.mean).text, shown(c->backward.mean).text,
               shown(c->step.mean).text, mz_count_text(c->tokens_per_second).text, shown(speedup).text, c->memory_mb,
               shown(100 * c->mfu).text, c->note);
    }
    fflush(stdout);
}

static json_t *time_json(const mz_bench_time *t) {
    return json_pack("{so so}", "ms", mz_json_number(t->mean), "std", mz_json_number(t->deviation));
}

static const mz_row_field cell_fields[] = {
    {MZ_FIELD(mz_bench_cell, tokens_per_second), "tokens_per_second"},
    {MZ_FIELD(mz_bench_cell, mfu), "mfu"},
    {MZ_FIELD(mz_bench_cell, memory_mb), "memory_mb"},
    {MZ_FIELD(mz_bench_cell, note), "note"},
};

static json_t *row_json(const mz_bench_plan *plan, const mz_bench_result *r) {
    json_t *cells = json_object();
    for (int i = 0; i < plan->n_precisions; i++) {
        const mz_bench_cell *c = &r->cells[i], *base = &r->cells[0];
        json_t *x =
            json_pack("{ss so so so so so so}", "effective", mezzo_precision_name(c->effective), "forward",
                      time_json(&c->forward), "backward", time_json(&c->backward), "step", time_json(&c->step),
                      "total_ms", mz_json_number(c->total), "total_speedup", mz_json_number(base->total / c->total),
                      "step_speedup", mz_json_number(base->step.mean / c->step.mean));
        mz_fields_json(cell_fields, MZ_COUNT(cell_fields), c, NULL, x);
        json_object_set_new(cells, mezzo_precision_name(plan->precisions[i]), x);
    }
    return json_pack("{so so so}", "model_size", mz_json_text(r->size), "num_params_M", mz_json_number(r->params_m),
                     "precisions", cells);
}

static int print_json(const models *m) {
    json_t *rows = json_array();
    for (int i = 0; i < m->n_rows; i++)
        json_array_append_new(rows, row_json(&m->plan, &m->rows[i]));
    return cli_json_print(json_pack("{so sI sI ss so}", "device", mz_json_text(m->device.description), "context_length",
                                    (json_int_t)m->plan.context, "batch_size", (json_int_t)m->plan.batch, "optimizer",
                                    mz_kinds[m->plan.optimizer].name, "models", rows));
}

// Draws the chart beside the CSV, under its name.
static void draw(const models *m) {
    const char *path = cli_text("csv", NULL);
    if (path == NULL)
        return;
    const char *slash = strrchr(path, '/'), *file = slash != NULL ? slash + 1 : path, *dot = strrchr(file, '.');
    char name[128];
    snprintf(name, sizeof name, "%.*s", dot != NULL && dot != file ? (int)(dot - file) : (int)strlen(file), file);
    if (mz_bench_chart(&m->plan, m->rows, (size_t)m->n_rows, mz_path_folder(path).text, name) != MEZZO_OK)
        fprintf(stderr, "mezzo bench: no chart: %s\n", mezzo_error_message());
}

// --- measuring -----------------------------------------------------------------------------------------------------
static void name_speed(models *m, const mezzo_model_config *configs) {
    const char *unit = mz_task_kind_of(mezzo_model_task(&configs[0]))->unit;
    for (int i = 1; i < m->n_sizes; i++)
        if (strcmp(mz_task_kind_of(mezzo_model_task(&configs[i]))->unit, unit) != 0)
            unit = "items";
    snprintf(m->speed, sizeof m->speed, "%s/s", unit);
}

// Reads the model of a size; every size is checked before the first is timed.
static int read_size(const models *m, int i, const char *family, int64_t vocab, mezzo_model_config *out) {
    static const char *const of_texts[] = {"context-length", "vocab"};
    CLI_DO(mz_bench_model(family, m->sizes[i], vocab, m->plan.context, out));
    if (out->graph[0] != '\0') {
        snprintf(out->loss, sizeof out->loss, "%s", cli_text("loss", ""));
        snprintf(out->dims, sizeof out->dims, "%s", cli_text("dim", ""));
    }
    for (size_t k = 0; k < MZ_COUNT(of_texts); k++)
        if (cli_has(of_texts[k]) && mezzo_model_task(out) != MEZZO_TASK_LANGUAGE)
            return cli_wrong("--%s is for text models, and %s is a model of %s", of_texts[k], m->sizes[i],
                             mz_task_kind_of(mezzo_model_task(out))->unit);
    return CLI_DONE;
}

static int measure(models *m, mezzo_device *device) {
    mezzo_model_config unused, configs[SIZES_MOST];
    mz_peaks peaks = {0};
    const char *family = cli_text("family", mezzo_model_defaults("cs336", &unused) == MEZZO_OK ? "cs336" : "gpt2");
    int64_t vocab;
    CLI_TRY(cli_integer("vocab", 1, INT32_MAX, 0, &vocab));
    for (int i = 0; i < m->n_sizes; i++)
        CLI_TRY(read_size(m, i, family, vocab, &configs[i]));
    name_speed(m, configs);
    CLI_DO(mezzo_device_describe(device, &m->device));
    for (int i = 0; i < m->plan.n_precisions; i++) { // every precision is checked, too
        mezzo_precision unused_precision;
        CLI_DO(mezzo_precision_resolve(device, m->plan.precisions[i], &unused_precision, NULL, 0));
    }
    if (!cli_has("no-mfu"))
        CLI_DO(mz_device_peaks(device, &peaks));
    for (int p = 0; p < MEZZO_PRECISION_AUTO; p++)
        m->peaks[p] = peaks.flops[mz_precision((mezzo_precision)p)->compute];
    mz_text text = {0};
    mz_bench_header(&m->plan, &text);
    CLI_TRY(cli_csv_open("w", &text));
    for (int i = 0; i < m->n_sizes; i++) {
        mz_bench_result *r = &m->rows[m->n_rows];
        CLI_DO(mz_bench_run(device, m->sizes[i], &configs[i], &m->plan, r));
        m->n_rows++;
        if (!cli_has("json"))
            print_row(m, r);
        mz_bench_line(&m->plan, r, m->device.description, cli_commit(), m->command, &text);
        cli_csv_add(&text);
    }
    return cli_has("json") ? print_json(m) : CLI_DONE;
}

static void free_models(models **m) {
    if (*m != NULL)
        mz_free((*m)->words);
    mz_free(*m);
}

int cli_bench_models(const char *command) {
    MZ_SCOPED(cli_close_device) mezzo_device *device = NULL;
    MZ_SCOPED(free_models) models *m = NULL;
    CLI_DO(MZ_NEW(m, 1));
    m->command = command;
    CLI_TRY(parse(m));
    CLI_TRY(cli_open_device("auto", &device));
    const int code = cli_csv_close(measure(m, device));
    if (m->n_rows > 0)
        draw(m);
    return code;
}
