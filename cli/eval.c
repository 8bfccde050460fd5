// mezzo eval: loss and perplexity of what a run left.
#include <math.h>

#include "cli.h"

static void print_text(const mezzo_eval_result *r) {
    char buf[32];
    printf("loss        %.6f\n", r->loss);
    printf("perplexity  %.4f\n", r->perplexity);
    printf("tokens      %s\n", cli_thousands((double)r->tokens, buf, sizeof buf));
    printf("speed       %s tokens/s\n", cli_thousands(r->tokens_per_second, buf, sizeof buf));
    printf("precision   %s\n", mezzo_precision_name(r->precision));
    printf("checkpoint  %s (step %lld)\n", r->checkpoint, (long long)r->step);
}

static int print_json(const cli_args *args, const mezzo_eval_result *r) {
    json_t *o = json_object();
    json_object_set_new(o, "loss", cli_json_number(r->loss));
    json_object_set_new(o, "perplexity", cli_json_number(r->perplexity));
    json_object_set_new(o, "tokens", json_integer(r->tokens));
    json_object_set_new(o, "tokens_per_second", cli_json_number(r->tokens_per_second));
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
    {"data", "FILE", "text or token shards, all of it [the run's validation data]"},
    {"iters", "N", "random batches; 0 = every token once [0]"},
    {"batch-size", "N", "sequences at a time [the run's]"},
    {"precision", "NAME", "{precisions} or auto [the run's]"},
    {"device", "NAME", "cpu, cuda, cuda:N, ref or auto [the run's]"},
    {"threads", "N", "CPU threads; 0 = every core [0]"},
    {"json", NULL, "the result as JSON"},
    {0},
};

const cli_command cli_eval = {
    .name = "eval",
    .summary = "loss and perplexity of a run or a checkpoint",
    .usage = "RUN [--best] [--data FILE] [--iters N] [--precision NAME]",
    .details = "RUN is a run folder, or one checkpoint in its checkpoints/. The loss is the mean over tokens of -log "
               "p, in nats.",
    .options = options_table,
    .max_operands = 1,
    .run = run,
};
