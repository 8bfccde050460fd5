// mezzo advise: a precision for a shape, from rules.
#include <math.h>

#include "cli.h"
#include "study/rules.h"

static int print_json(const cli_args *args, const mz_rules *rules, const mz_advice *a) {
    json_t *o = json_object();
    json_object_set_new(o, "precision", json_string(a->precision));
    json_object_set_new(o, "tokens_per_step", json_integer(a->tokens));
    json_object_set_new(o, "reason", cli_json_text(a->reason, strlen(a->reason)));
    json_object_set_new(o, "rules", cli_json_text(rules->name, strlen(rules->name)));
    json_object_set_new(o, "source", cli_json_text(rules->source, strlen(rules->source)));
    json_object_set_new(o, "confidence", cli_json_number(a->confidence));
    json_object_set_new(o, "confidence_low", cli_json_number(a->interval.low));
    json_object_set_new(o, "confidence_high", cli_json_number(a->interval.high));
    json_object_set_new(o, "pairs", json_integer(a->pairs));
    json_object_set_new(o, "warning", a->warning[0] != '\0' ? json_string(a->warning) : json_null());
    return cli_json_print(args->command, o);
}

static void print_text(const mz_rules *rules, const mz_advice *a) {
    printf("%s\n", a->precision);
    printf("reason      %s\n", a->reason);
    if (isnan(a->confidence))
        printf("confidence  not known: the rules %s carry no measurements (%s)\n", rules->name, rules->source);
    else
        printf("confidence  the faster one on %.0f %% of the %lld pairs measured nearest (95 %% interval %.0f to %.0f "
               "%%)\n",
               100 * a->confidence, (long long)a->pairs, 100 * a->interval.low, 100 * a->interval.high);
    if (a->warning[0] != '\0')
        printf("careful     %s\n", a->warning);
}

static int from_rules(const cli_args *args, const char *path) {
    static const char *const names[] = {"d-model", "batch-size", "seq-len"};
    int64_t shape[3];
    for (size_t i = 0; i < MZ_COUNT(names); i++) {
        int code = cli_integer(args, names[i], 1, INT64_C(1) << 31, 0, &shape[i]);
        if (code != CLI_DONE)
            return code;
        if (shape[i] == 0)
            return cli_wrong(args->command, "--%s is missing: the shape of a step is its width, batch and sequence",
                             names[i]);
    }
    mz_rules rules;
    mz_advice advice;
    mezzo_status status = mz_rules_load(path, &rules);
    if (status != MEZZO_OK)
        return cli_error(args->command, status);
    int code = CLI_DONE;
    status = mz_rules_advise(&rules, shape[0], shape[1], shape[2], &advice);
    if (status != MEZZO_OK)
        code = cli_error(args->command, status);
    else if (cli_has(args, "json"))
        code = print_json(args, &rules, &advice);
    else
        print_text(&rules, &advice);
    mz_rules_free(&rules);
    return code;
}

static int run(const cli_args *args) {
    const char *rules = cli_text(args, "rules", NULL);
    if (rules == NULL)
        return cli_wrong(args->command,
                         "say by what: --rules FILE (rules.json of mezzo analyze) or --rules t4-glm4moe");
    return from_rules(args, rules);
}

static const cli_option options_table[] = {
    {"rules", "FILE", "rules.json of mezzo analyze, or t4-glm4moe, which is built in"},
    {"d-model", "N", "rules: the model's width"},
    {"batch-size", "N", "rules: sequences in a step"},
    {"seq-len", "N", "rules: tokens in a sequence"},
    {"json", NULL, "the result as JSON"},
    {0},
};

const cli_command cli_advise = {
    .name = "advise",
    .summary = "a precision for a shape, by rules that were measured",
    .usage = "--rules FILE|t4-glm4moe --d-model N --batch-size N --seq-len N",
    .details = "",
    .options = options_table,
    .run = run,
};
