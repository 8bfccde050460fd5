// mezzo bench measures the speed of the machine. With --kernels it compares each kernel with the measured peaks.
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/precision.h"
#include "cli.h"
#include "study/measure/kernels.h"
#include "io/json.h"

// --- the file of --csv ---------------------------------------------------------------------------------------------
static FILE *csv;
static bool csv_incomplete;

int cli_csv_open(const char *mode, mz_text *head) {
    const char *path = cli_text("csv", NULL);
    if (path != NULL && (csv = fopen(path, mode)) == NULL)
        return cli_error(mz_fail(MEZZO_ERR_IO, "%s: %s", path, strerror(errno)));
    if (csv != NULL && (fseek(csv, 0, SEEK_END) != 0 || ftell(csv) <= 0))
        cli_csv_add(head);
    mz_text_free(head);
    return CLI_DONE;
}

void cli_csv_add(mz_text *rows) {
    if (csv != NULL)
        csv_incomplete = rows->status != MEZZO_OK || fwrite(rows->data, 1, rows->len, csv) != rows->len ||
                         fflush(csv) != 0 || csv_incomplete;
    mz_text_free(rows);
}

int cli_csv_close(int code) {
    if (csv == NULL || (fclose(csv) == 0 && !csv_incomplete) || code != CLI_DONE)
        return code;
    return cli_error(mz_fail(MEZZO_ERR_IO, "%s: it could not be written", cli_text("csv", "")));
}

const char *cli_commit(void) {
    const char *commit = getenv("MEZZO_COMMIT");
    return commit != NULL ? commit : "";
}

// --- options -------------------------------------------------------------------------------------------------------
#define MZ_BENCH_KERNEL_PRECISIONS "fp32, tf32, bf16, fp16, fp8 and fp8-dw16"

static int parse_precisions(mezzo_precision *list, int *n) {
    CLI_TRY(cli_precisions("precision", "fp32,bf16", list, MEZZO_PRECISION_COUNT, n));
    for (int i = 0; i < *n; i++)
        if (mz_scaling_in_blocks(mz_precision(list[i])->scaling))
            return cli_wrong("--precision %s: kernels are timed in " MZ_BENCH_KERNEL_PRECISIONS,
                             mezzo_precision_name(list[i]));
    return CLI_DONE;
}

static int unknown_op(const char *name) {
    const char *names[64];
    size_t n = 0;
    for (int i = 0; i < MZ_BENCH_OPS && n < MZ_COUNT(names); i++)
        names[n++] = mz_bench_ops[i].name;
    const char *nearest = mz_nearest(name, names, n);
    mz_text list = {0};
    for (size_t i = 0; i < n; i++)
        mz_text_addf(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    int code = nearest != NULL
                   ? cli_wrong("--op %s: did you mean \"%s\"?", name, nearest)
                   : cli_wrong("--op %s: use one of %s", name, list.status == MEZZO_OK ? list.data : names[0]);
    mz_text_free(&list);
    return code;
}

static int parse_cases(mz_bench_case **cases, int *n) {
    const char *name = cli_text("op", NULL), *shape = cli_text("shape", NULL);
    const mz_bench_op *op = name != NULL ? mz_bench_find(name) : NULL;
    int most = 1;
    if (name != NULL && op == NULL)
        return unknown_op(name);
    if (shape != NULL && op == NULL)
        return cli_wrong("--shape %s: name its op (--op)", shape);
    while (mz_bench_default(most) != NULL)
        most++;
    CLI_DO(MZ_NEW(*cases, most));
    if (shape != NULL) {
        **cases = (mz_bench_case){.op = op};
        *n = 1;
        mezzo_status status = mz_bench_shape(op, shape, (*cases)->dim);
        return status == MEZZO_OK ? CLI_DONE : cli_wrong("--shape: %s", mezzo_error_message());
    }
    for (int i = 0; i < most; i++) {
        const mz_bench_case *c = mz_bench_default(i);
        if ((op == NULL || c->op == op) && strcmp(c->model, cli_text("model", c->model)) == 0)
            (*cases)[(*n)++] = *c;
    }
    if (*n == 0 && op != NULL)
        return cli_wrong("--op %s is not in a model's table: give a --shape (%s)", name, op->dims);
    if (*n == 0)
        return cli_wrong("--model %s: shapes exist for gpt and gpt2-124M", cli_text("model", ""));
    return CLI_DONE;
}

static const cli_range ranges[] = {
    {MZ_FIELD(mz_bench_options, rounds), "rounds", 0, 101, 0},
};

// --- output --------------------------------------------------------------------------------------------------------
typedef struct told {
    mezzo_device_info device;
    mz_peaks peaks;
    mz_bench_context context;
    json_t *rows; // NULL: a table is printed
    int n;
} told;

// A row as it is printed.
typedef struct line {
    const char *op, *model, *unit;
    char shape[96];
    mz_bench_row is;
    double of_peak; // NaN: the peak is not known
} line;

static line line_of(const mz_bench_row *row) {
    line l = {.op = row->of->op->name,
              .model = row->of->model,
              .unit = mz_bench_unit(row),
              .is = *row,
              .of_peak = mz_bench_of_peak(row)};
    mz_bench_shape_text(row->of, l.shape, sizeof l.shape);
    return l;
}

static const mz_row_field fields[] = {
    {MZ_FIELD(line, op), "op"},
    {MZ_FIELD(line, shape), "shape"},
    {MZ_FIELD(line, model), "model"},
    {MZ_FIELD(line, is.precision), "precision"},
    {MZ_FIELD(line, is.kernel), "kernel"},
    {MZ_FIELD(line, is.rounds), "rounds"},
    {MZ_FIELD(line, is.median), "median_ms", .factor = 1e3},
    {MZ_FIELD(line, is.best), "best_ms", .factor = 1e3},
    {MZ_FIELD(line, is.rate), "rate", .factor = 1e-9},
    {MZ_FIELD(line, unit), "unit"},
    {MZ_FIELD(line, is.peak), "peak", .factor = 1e-9},
    {MZ_FIELD(line, of_peak), "of_peak"},
};

static void table_row(told *t, const line *l) {
    if (t->n++ == 0)
        printf("%-22s %-18s %-5s %-40s %10s %9s %-8s %6s\n", "op", "shape", "", "kernel", "median ms", "rate", "",
               "peak %");
    printf("%-22s %-18s %-5s %-40s %10.3f %9.1f %-8s %6.1f\n", l->op, l->shape, mezzo_precision_name(l->is.precision),
           l->is.kernel, 1e3 * l->is.median, 1e-9 * l->is.rate, l->unit, isnan(l->of_peak) ? 0 : 100 * l->of_peak);
    fflush(stdout);
}

static void tell_row(void *user, const mz_bench_row *row) {
    told *t = user;
    const line l = line_of(row);
    mz_text text = {0};
    mz_bench_kernel_line(&t->context, row, &text);
    cli_csv_add(&text);
    if (t->rows != NULL)
        json_array_append_new(t->rows, MZ_OBJECT(fields, &l));
    else
        table_row(t, &l);
}

static double peak_of(const told *t, mezzo_precision precision) {
    return 1e-9 * t->peaks.flops[mz_precision(precision)->compute];
}

static void tell_peaks(const told *t) {
    printf("%s\n", t->device.description);
    printf("peak GFLOP/s:");
    mezzo_precision all[MEZZO_PRECISION_COUNT];
    int n = mz_precision_common(all);
    for (int i = 0; i < n; i++)
        if (peak_of(t, all[i]) > 0)
            printf(" %s %.0f", mezzo_precision_name(all[i]), peak_of(t, all[i]));
    printf("; stream copy %.1f GB/s\n", 1e-9 * t->peaks.copy);
}

static int print_json(const told *t) {
    json_t *peaks = json_object();
    mezzo_precision all[MEZZO_PRECISION_COUNT];
    int n = mz_precision_common(all);
    for (int i = 0; i < n; i++)
        json_object_set_new(peaks, mezzo_precision_name(all[i]), mz_json_number(peak_of(t, all[i])));
    return cli_json_print(json_pack("{so si so so sO}", "device", mz_json_text(t->device.description), "threads",
                                    t->device.threads, "peak_gflops", peaks, "copy_gb_per_second",
                                    mz_json_number(1e-9 * t->peaks.copy), "kernels", t->rows));
}

static int measure(told *t, const mz_bench_options *options, mezzo_device *device) {
    CLI_DO(mezzo_device_describe(device, &t->device));
    CLI_DO(mz_device_peaks(device, &t->peaks));
    if (t->rows == NULL)
        tell_peaks(t);
    CLI_DO(mz_bench_kernels(device, options, &t->peaks, tell_row, t));
    return t->rows != NULL ? print_json(t) : CLI_DONE;
}

static int run_kernels(const char *command) {
    MZ_SCOPED(cli_close_device) mezzo_device *device = NULL;
    MZ_SCOPED(mz_free_at) mz_bench_case *cases = NULL;
    mezzo_precision precisions[MEZZO_PRECISION_COUNT];
    mz_bench_options o = {.precisions = precisions, .warm = cli_has("warm")};
    json_auto_t *rows = cli_has("json") ? json_array() : NULL;
    told t = {.context = {&t.device, cli_commit(), command, o.warm}, .rows = rows};
    mz_text head = {0};
    CLI_TRY(CLI_REFUSE("is for models, not for --kernels", "family", "context-length", "batch-size", "vocab", "loss",
                       "dim", "warmup", "iters", "precisions", "phases", "optimizer", "memory-gb", "no-mfu"));
    CLI_TRY(parse_precisions(precisions, &o.n_precisions));
    CLI_TRY(CLI_RANGES(ranges, &o));
    CLI_TRY(parse_cases(&cases, &o.n_cases));
    CLI_TRY(cli_open_device("auto", &device));
    mz_bench_kernel_line(&t.context, NULL, &head);
    CLI_TRY(cli_csv_open("a", &head));
    o.cases = cases;
    return cli_csv_close(measure(&t, &o, device));
}

// --- the subcommand ------------------------------------------------------------------------------------------------
int cli_bench(void) {
    const char *models = cli_has("models") ? "models" : cli_has("all-models") ? "all-models" : NULL;
    if (cli_has("kernels") && models != NULL)
        return cli_wrong("--kernels and --%s are two measurements: choose one", models);
    if (!cli_has("kernels") && models == NULL)
        return cli_wrong("choose what to measure: --models LIST, --all-models or --kernels");
    MZ_SCOPED(mz_free_at) char *typed = cli_command_line();
    const char *command = typed != NULL ? typed : "";
    return models != NULL ? cli_bench_models(command) : run_kernels(command);
}
