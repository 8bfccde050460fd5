// mezzo memory plans the memory of training in each precision, and allocates none.
#include <stdlib.h>

#include "base/names.h"
#include "cli.h"
#include "study/measure/memory_plan.h"
#include "dist/world.h"
#include "train/config.h"

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

static int parse_rows(mz_memory_plan *a) {
    CLI_TRY(parse_names("optimizer", "adamw,sgd,sgd-plain", "adamw, sgd (with momentum) and sgd-plain",
                        mz_memory_optimizer, MZ_MEMORY_OPTIMIZERS, a->optimizers, &a->n_optimizers));
    return parse_names("master", "fp32,split,stochastic", "fp32, split and stochastic", master_name, MZ_MEMORY_MASTERS,
                       a->masters, &a->n_masters);
}

// Parses the number of ranks; the default is that of the job to which this process belongs.
static int parse_ranks(bool measured, int *ranks) {
    mz_world world;
    double n = 1;
    if (mz_world_read(&world) == MEZZO_OK)
        n = world.size;
    CLI_TRY(cli_number("ranks", 1, 65536, n, &n));
    if (n > 1 && measured)
        return cli_wrong("--measure runs one process: remove --ranks");
    *ranks = (int)n;
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

static mezzo_status read_session(mz_memory_plan *a, const mezzo_config *config, int ranks) {
    mz_run_config c;
    mz_session_options *o = &a->session;
    MEZZO_TRY(mz_run_config_read(config, &c));
    MEZZO_TRY(mz_run_config_share(&c, ranks));
    MEZZO_TRY(mz_run_config_sketch(&c, o));
    a->model = c.model_name;
    o->form.outputs = false;
    o->quick_init = true;
    o->size = ranks;
    MEZZO_TRY(mezzo_device_open(c.device, c.threads, &a->device));
    return mezzo_device_describe(a->device, &a->info);
}

// --- the command ---------------------------------------------------------------------------------------------------
static int planned(mz_memory_plan *a) {
    CLI_DO(settle_precisions(a));
    CLI_DO(mz_memory_plan_rows(a));
    if (a->n_rows == 0)
        return cli_wrong("--master %s: only bf16 supports it", cli_text("master", ""));
    CLI_DO(mz_memory_plan_savings(a));
    CLI_PLOT(mz_memory_draw, a);
    CLI_TRY(CLI_SHOW(mz_memory_json(a), mz_memory_text, a, cli_terminal_columns(stdout)));
    if (mz_memory_fits(a))
        return CLI_DONE;
    MZ_SCOPED(mz_text_free) mz_text none = {0};
    CLI_DO(mz_memory_none_text(a, &none));
    fflush(stdout);
    fprintf(stderr, "mezzo memory: %s", none.data);
    return CLI_CHECK_FAILED;
}

static int by_formula(void) {
    double params;
    CLI_TRY(parse_amount("params", false, &params));
    for (int i = 0; i < cli_line.n_given; i++)
        if (cli_line.given[i].config ||
            mz_is_listed("limit measure plot optimizer precision master config ranks", cli_line.given[i].name))
            return cli_wrong("--params uses only the number of parameters: remove --%s", cli_line.given[i].typed);
    return CLI_SHOW(mz_schemes_json(params), mz_schemes_text, params, cli_terminal_columns(stdout));
}

static void close_plan(mz_memory_plan *a) {
    mezzo_device_close(a->device);
}

int cli_memory(void) {
    if (cli_has("params"))
        return by_formula();
    MZ_SCOPED(cli_free_config) mezzo_config *config = NULL;
    MZ_SCOPED(close_plan) mz_memory_plan a = {.measure = cli_has("measure")};
    double limit = 0;
    int ranks = 1;
    CLI_TRY(cli_precisions("precision", NULL, a.precisions, MEZZO_PRECISION_COUNT, &a.n_precisions));
    CLI_TRY(parse_rows(&a));
    if (cli_has("limit"))
        CLI_TRY(parse_amount("limit", true, &limit));
    CLI_TRY(parse_ranks(a.measure, &ranks));
    CLI_TRY(cli_config(&config));
    a.limit = (size_t)limit;
    CLI_DO(read_session(&a, config, ranks));
    return planned(&a);
}
