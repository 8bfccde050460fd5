// mezzo eval: loss, and perplexity or accuracy, of what a run left.
#include <math.h>

#include "cli.h"

static void print_text(const mezzo_eval_result *r) {
    char buf[32];
    printf("loss        %.6f\n", r->loss);
    if (!isnan(r->accuracy))
        printf("accuracy    %.4f\n", r->accuracy);
    else
        printf("perplexity  %.4f\n", r->perplexity);
    printf("%-11s %s\n", r->unit, cli_thousands((double)r->tokens, buf, sizeof buf));
    printf("speed       %s %s/s\n", cli_thousands(r->tokens_per_second, buf, sizeof buf), r->unit);
    printf("precision   %s\n", mezzo_precision_name(r->precision));
    printf("checkpoint  %s (step %lld)\n", r->checkpoint, (long long)r->step);
}

static int print_json(const cli_args *args, const mezzo_eval_result *r) {
    char rate[32];
    json_t *o = json_object();
    json_object_set_new(o, "loss", cli_json_number(r->loss));
    bool accuracy = !isnan(r->accuracy);
    json_object_set_new(o, accuracy ? "accuracy" : "perplexity",
                        cli_json_number(accuracy ? r->accuracy : r->perplexity));
    snprintf(rate, sizeof rate, "%s_per_second", r->unit);
    json_object_set_new(o, r->unit, json_integer(r->tokens));
    json_object_set_new(o, rate, cli_json_number(r->tokens_per_second));
    json_object_set_new(o, "precision", json_string(mezzo_precision_name(r->precision)));
    json_object_set_new(o, "step", json_integer(r->step));
    json_object_set_new(o, "checkpoint", cli_json_text(r->checkpoint, strlen(r->checkpoint)));
    return cli_json_print(args->command, o);
}

static int run(const cli_args *args) {
    if (args->n_operands == 0)
        return cli_wrong(args->command, "a run folder or a checkpoint is missing: usage is mezzo eval %s",
                         args->command->usage);
    mezzo_eval_options options = {
        .path = args->operands[0],
        .best = cli_has(args, "best"),
        .data = cli_text(args, "data", NULL),
        .labels = cli_text(args, "labels", NULL),
        .device = cli_text(args, "device", NULL),
        .precision = cli_text(args, "precision", NULL),
    };
    int64_t threads;
    int code = cli_integer(args, "threads", 0, 4096, 0, &threads);
    if (code == CLI_DONE)
        code = cli_integer(args, "batch-size", 1, 1 << 24, 0, &options.batch_size);
    if (code == CLI_DONE)
        code = cli_integer(args, "iters", 0, INT32_MAX, 0, &options.iters);
    if (code != CLI_DONE)
        return code;
    options.threads = (int)threads;
    mezzo_eval_result result = {.loss = NAN, .perplexity = NAN};
    mezzo_status status = mezzo_run_eval(&options, NULL, &result);
    if (status != MEZZO_OK)
        return cli_error(args->command, status);
    if (cli_has(args, "json"))
        return print_json(args, &result);
    print_text(&result);
    return CLI_DONE;
}

static const cli_option options_table[] = {
    {"best", NULL, "the checkpoint with the lowest validation loss, not the newest"},
    {"data", "FILE", "text or token shards, or a classifier's .npy, all of it [the run's validation data]"},
    {"labels", "FILE", "of a classifier: the .npy of the classes of --data"},
    {"iters", "N", "random batches; 0 = every token once [0]"},
    {"batch-size", "N", "sequences or examples at a time [the run's]"},
    {"precision", "NAME", "{precisions} or auto [the run's]"},
    {"device", "NAME", "cpu, cuda, cuda:N, ref or auto [the run's]"},
    {"threads", "N", "CPU threads; 0 = every core [0]"},
    {"json", NULL, "the result as JSON"},
    {0},
};

const cli_command cli_eval = {
    .name = "eval",
    .summary = "loss and perplexity, or accuracy, of a run or a checkpoint",
    .usage = "RUN [--best] [--data FILE [--labels FILE]] [--iters N] [--precision NAME]",
    .details = "RUN is a run folder, or one checkpoint in its checkpoints/. The loss is the mean over tokens (or "
               "examples) of -log p, in nats.",
    .options = options_table,
    .max_operands = 1,
    .run = run,
};
