// Trains a small GPT in its own training loop: data, gradient accumulation, a loss scale, checkpoints. Run it again
// with the same folder to continue. It derives seeds as `mezzo train` does, so the losses are the same bit for bit
// (tests/cli/own_loop.sh).
//
//     cc gpt.c $(pkg-config --cflags --libs mezzo) -lm && ./a.out [FILE [FOLDER [fp32|bf16|fp16 [DEVICE]]]]
#include <stdio.h>
#include <stdlib.h>

#include "mezzo/mezzo.h"

enum { BATCH = 4, LENGTH = 32, MICRO = 2, STEPS = 20, SEED = 1, SAVE_EVERY = 10 };

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != MEZZO_OK) {                                                                                      \
            fprintf(stderr, "gpt: %s\n", mezzo_error_message());                                                       \
            exit(3);                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct batch { // of one micro batch, on the host
    mezzo_loader *loader;
    int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH];
} batch;

static mezzo_status fill(void *user, mezzo_program *program, uint64_t index) {
    batch *b = (batch *)user;
    mezzo_status status = mezzo_loader_batch(b->loader, index, b->tokens, b->targets);
    if (status == MEZZO_OK)
        status = mezzo_program_write(program, "tokens", b->tokens, sizeof b->tokens);
    if (status == MEZZO_OK)
        status = mezzo_program_write(program, "targets", b->targets, sizeof b->targets);
    return status;
}

static const char *own_text(void) {
    FILE *f = fopen("gpt_example.txt", "w");
    for (int i = 0; f != NULL && i < 4000; i++)
        fprintf(f, "%d plus %d is %d.\n", i % 10, i / 10 % 10, i % 10 + i / 10 % 10);
    if (f == NULL || fclose(f) != 0)
        exit(3);
    return "gpt_example.txt";
}

int main(int argc, char **argv) {
    static mezzo_corpus_options text;
    mezzo_corpus *corpus;
    mezzo_model_config model;
    mezzo_precision precision;
    mezzo_device *device;
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
    mezzo_step *step;
    static batch data;
    const char *folder = argc > 2 ? argv[2] : NULL;

    text.path = argc > 1 ? argv[1] : own_text();
    TRY(mezzo_precision_parse(argc > 3 ? argv[3] : "bf16", &precision));
    TRY(mezzo_device_open(argc > 4 ? argv[4] : "cpu", 0, &device));
    TRY(mezzo_corpus_open(&text, &corpus));
    TRY(mezzo_model_defaults("gpt2", &model));
    model.layers = 2, model.heads = 2, model.d_model = 64, model.seq_len = LENGTH, model.dropout = 0;
    model.bias = true;
    model.vocab = mezzo_tokenizer_vocab(mezzo_corpus_tokenizer(corpus));

    static mezzo_loader_options batches;
    batches.split = MEZZO_TRAIN, batches.order = MEZZO_LOADER_RANDOM, batches.batch = BATCH, batches.length = LENGTH;
    batches.vocab = (int32_t)model.vocab, batches.seed = mezzo_seed(SEED, MEZZO_SEED_DATA);
    TRY(mezzo_loader_create(corpus, &batches, &data.loader));

    static mezzo_program_options options;
    options.precision = precision, options.loss_weight = 1.0F / MICRO;
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    adamw.schedule.lr = 1e-3, adamw.weight_decay = 0.1, adamw.decay_min_rank = 2;
    mezzo_scaler_options scaling = mezzo_scaler_defaults();
    scaling.enabled = precision == MEZZO_PRECISION_FP16;
    static mezzo_step_options each;
    each.micro_batches = MICRO, each.clip = 1.0;
    TRY(mezzo_graph_create(&graph));
    TRY(mezzo_model_build(graph, &model, BATCH, LENGTH, false));
    TRY(mezzo_params_create_as(device, graph, &options, mezzo_seed(SEED, MEZZO_SEED_PARAMETERS),
                               mezzo_master_default(precision), &params)); // mezzo train's default
    TRY(mezzo_program_create(graph, params, &options, &program));
    TRY(mezzo_optimizer_create(params, &adamw, &optimizer));
    TRY(mezzo_scaler_create(device, &scaling, &scaler));
    TRY(mezzo_step_create(program, &optimizer, 1, scaler, &each, &step));

    static mezzo_checkpoint state;
    state.params = params, state.optimizer = optimizer, state.scaler = scaler, state.seed = SEED;
    char path[4096];
    if (folder != NULL && mezzo_checkpoint_find(folder, false, path, sizeof path) == MEZZO_OK)
        TRY(mezzo_checkpoint_load(path, &state)); // state.step and state.batches: where to continue
    while (state.step < STEPS) {
        mezzo_step_report report;
        TRY(mezzo_step_run(step, mezzo_seed(SEED, MEZZO_SEED_DROPOUT), state.batches, fill, &data));
        state.batches += MICRO;
        state.step++;
        TRY(mezzo_step_read(step, true, &report)); // waits; without `true` it reads the step before and does not
        printf("step %lld loss %.17g norm %.4g\n", (long long)state.step, report.loss, report.info.grad_norm);
        if (folder != NULL && state.step % SAVE_EVERY == 0)
            TRY(mezzo_checkpoint_save(folder, &state, 2, NULL, 0));
    }
    mezzo_step_free(step);
    mezzo_scaler_free(scaler);
    mezzo_optimizer_free(optimizer);
    mezzo_program_free(program);
    mezzo_params_free(params);
    mezzo_graph_free(graph);
    mezzo_loader_free(data.loader);
    mezzo_corpus_free(corpus);
    mezzo_device_close(device);
    return 0;
}
