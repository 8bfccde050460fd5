// mezzo advise recommends a precision for a shape, from rules or by timing it here.
#include <math.h>
#include <stdlib.h>

#include "backend/cpu/isa.h"
#include "cli.h"
#include "study/analyse/rules.h"
#include "train/config.h"

typedef struct advised { // the chosen rules and their result
    mz_advice is;
    const char *rules, *source;
} advised;

static const mz_row_field fields[] = {
    {MZ_FIELD(advised, is.precision), "precision"},
    {MZ_FIELD(advised, is.tokens), "tokens_per_step"},
    {MZ_FIELD(advised, is.reason), "reason"},
    {MZ_FIELD(advised, rules), "rules"},
    {MZ_FIELD(advised, source), "source"},
    {MZ_FIELD(advised, is.confidence), "confidence"},
    {MZ_FIELD(advised, is.interval.low), "confidence_low"},
    {MZ_FIELD(advised, is.interval.high), "confidence_high"},
    {MZ_FIELD(advised, is.pairs), "pairs"},
    {MZ_FIELD(advised, is.warning), "warning", .flags = MZ_NULL},
};

static void print_named(const char *precision, const char *reason) {
    printf("%s\nreason      ", precision);
    cli_wrap(reason, 12, 12, MZ_TEXT_COLUMNS);
}

static void print_text(const mz_rules *rules, const mz_advice *a) {
    print_named(a->precision, a->reason);
    if (isnan(a->confidence))
        printf("confidence  not known: the rules %s carry no measurements\n            (%s)\n", rules->name,
               rules->source);
    else
        printf("confidence  faster in %.0f of the %lld nearest pairs (95 %% CI %.0f to %.0f %%; rules %s)\n",
               a->confidence * (double)a->pairs, (long long)a->pairs, 100 * a->interval.low, 100 * a->interval.high,
               rules->name);
    if (a->warning[0] != '\0')
        printf("warning     %s\n", a->warning);
}

// The options of the shape, which are both options of the rules and keys.
static const struct {
    const char *option, *key;
} sizes[] = {{"d-model", "model.d_model"}, {"batch-size", "train.batch_size"}, {"seq-len", "model.seq_len"}};

mezzo_status cli_advise_shape(mezzo_config *config) {
    for (size_t i = 0; i < MZ_COUNT(sizes); i++)
        if (cli_has(sizes[i].option))
            MEZZO_TRY(mezzo_config_set(config, sizes[i].key, cli_text(sizes[i].option, ""), sizes[i].option));
    return MEZZO_OK;
}

// Advises by rules. `model` NULL: none was named; else sizes that are not given are its own.
static int from_rules(const char *path, const mezzo_model_config *model) {
    const int64_t own[] = {model != NULL ? model->d_model : 0, 0, model != NULL ? model->seq_len : 0};
    int64_t shape[3];
    for (size_t i = 0; i < MZ_COUNT(sizes); i++) {
        CLI_TRY(cli_integer(sizes[i].option, 1, INT64_C(1) << 31, own[i], &shape[i]));
        if (shape[i] == 0)
            return cli_wrong("--%s is missing: name %s of a step", sizes[i].option,
                             model != NULL ? "the batch size" : "the width, batch size and sequence length");
    }
    MZ_SCOPED(mz_rules_free) mz_rules rules = {0};
    mz_advice advice;
    CLI_DO(mz_rules_load(path, &rules));
    CLI_DO(mz_rules_advise(&rules, shape[0], shape[1], shape[2], &advice));
    if (cli_has("json"))
        return cli_json_print(MZ_OBJECT(fields, (&(advised){advice, rules.name, rules.source})));
    print_text(&rules, &advice);
    return CLI_DONE;
}

// --- by timing -----------------------------------------------------------------------------------------------------
static void print_choice(const mz_choice *c, const char *unit) {
    print_named(mezzo_precision_name(c->precision), c->reason);
    printf("\n");
    CLI_PRINT(mz_choice_table, c, unit, cli_terminal_columns(stdout));
    int timed = 0;
    for (int i = 0; i < c->n; i++)
        timed += c->candidates[i].timed;
    if (timed == 0)
        CLI_TELL("\nNothing was timed, only memory was planned. --precisions fp32,bf16 times what it names, emulated "
                 "or not.");
}

typedef struct timing {
    double memory; // in GiB; 0: the free memory
    mezzo_precision list[MEZZO_PRECISION_COUNT];
    int n; // 0: the precisions for which the device has arithmetic
    mz_choice choice;
    const char *unit; // the unit of the speeds
} timing;

static mezzo_status time_here(mezzo_config *config, timing *t) {
    mezzo_model_config model;
    mz_run_config c;
    MZ_SCOPED(cli_close_device) mezzo_device *device = NULL;
    MEZZO_TRY(cli_advise_shape(config));
    MEZZO_TRY(mezzo_config_model(config, 0, &model));
    t->unit = mz_task_kind_of(mezzo_model_task(&model))->unit;
    MEZZO_TRY(mz_run_config_read(config, &c));
    MEZZO_TRY(mezzo_device_open(c.device, c.threads, &device));
    const mezzo_auto_request request = {.device = device,
                                        .model = &model,
                                        .program = &c.program,
                                        .batch = c.batch_size,
                                        .grad_accum = c.grad_accum,
                                        .seed = c.seed,
                                        .stop = cli_interrupts(NULL)};
    const size_t memory = (size_t)(t->memory * (double)(1 << 30));
    return cli_choose(&request, memory, t->n > 0 ? t->list : NULL, t->n, false, &t->choice);
}

static int by_timing(void) {
    MZ_SCOPED(cli_free_config) mezzo_config *config = NULL;
    timing t = {.unit = ""};
    CLI_TRY(cli_number("memory-gb", 0, 1e6, 0, &t.memory));
    if (cli_has("precisions"))
        CLI_TRY(cli_precisions("precisions", "", t.list, (int)MZ_COUNT(t.list), &t.n));
    CLI_TRY(cli_config(&config));
    CLI_DO(time_here(config, &t));
    if (cli_has("json"))
        return cli_json_print(mz_choice_json(&t.choice));
    print_choice(&t.choice, t.unit);
    return CLI_DONE;
}

// Returns the built-in rules that were measured on a device like this one.
static const char *rules_here(void) {
    MZ_SCOPED(cli_close_device) mezzo_device *device = NULL;
    mezzo_device_info info;
    mz_isa isa;
    if (mezzo_device_open("auto", 1, &device) != MEZZO_OK || mezzo_device_describe(device, &info) != MEZZO_OK)
        return NULL;
    bool amx = strcmp(info.backend, "cpu") == 0 && mz_isa_probe(getenv("MEZZO_ISA"), &isa) == MEZZO_OK &&
               isa.level >= MZ_LEVEL_AMX;
    return mz_rules_for(info.description, amx, cli_given_key("model.name"));
}

int cli_advise(void) {
    const char *rules = cli_text("rules", NULL);
    bool measure = cli_has("measure");
    for (int i = 0; i < cli_line.n_given; i++)
        if (cli_line.given[i].config && strncmp(cli_line.given[i].name, "data.", 5) == 0)
            return measure || rules != NULL ? cli_wrong("give --data, --measure or --rules, only one of them")
                   : cli_has("per-op")      ? cli_advise_per_op()
                                            : cli_advise_data();
    CLI_TRY(CLI_REFUSE("is for training: name the data with --data FILE", "per-op", "steps", "minutes", "gap", "runs",
                       "out"));
    if (measure && rules != NULL)
        return cli_wrong("give --measure or --rules, not both");
    if (measure)
        return by_timing();
    mezzo_model_config model;
    const char *name = cli_given_key("model.name");
    if (name != NULL && mezzo_model_defaults(name, &model) != MEZZO_OK)
        return cli_error(MEZZO_ERR_INVALID);
    if (name != NULL && mezzo_model_task(&model) != MEZZO_TASK_LANGUAGE)
        return cli_wrong("rules cover text models, and %s is a model of %s: use --measure --model %s", name,
                         mz_task_kind_of(mezzo_model_task(&model))->unit, name);
    if (rules == NULL)
        rules = rules_here();
    if (rules == NULL)
        return cli_wrong("there are no rules for this device: choose --rules FILE or --rules NAME, or --measure "
                         "--model NAME; built-in rules: %s",
                         mz_rules_names());
    return from_rules(rules, name != NULL ? &model : NULL);
}
