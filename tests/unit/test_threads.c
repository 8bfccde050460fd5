// Threads that share nothing but the library: each opens its device, builds, trains, saves and loads a checkpoint,
// reads a configuration and a tokenizer that all share, makes errors of its own; again and again, at once. Every one
// gets the numbers of a thread alone and its own error messages. Built with -DMEZZO_SANITIZE=thread, ThreadSanitizer
// looks on: devices have one thread each, so that OpenMP, which it does not know, starts none.
#include "tiny_run.h"

#include <pthread.h>

#include "mezzo/mezzo.h"

enum { THREADS = 4, ROUNDS = 3, STEPS = 4, BATCH = 2, LENGTH = 8, VOCAB = 16 };

typedef struct work {
    int number;
    const char *device;
    mezzo_tokenizer *shared;
    float losses[ROUNDS * STEPS];
    char wrong[512]; // "": nothing
} work;

#define TRY(w, call)                                                                                                   \
    do {                                                                                                               \
        if ((call) != MEZZO_OK) {                                                                                      \
            snprintf((w)->wrong, sizeof(w)->wrong, "%s: %s", #call, mezzo_error_message());                            \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

static void ids_of(int step, int32_t *ids, int times) {
    for (int i = 0; i < BATCH * LENGTH; i++)
        ids[i] = (i * times + 3 * step) % VOCAB;
}

static void train(work *w, int round, mezzo_device *device, mezzo_graph *graph) {
    const mezzo_program_options options = {.precision = round % 2 == 0 ? MEZZO_PRECISION_FP32 : MEZZO_PRECISION_BF16};
    const mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    mezzo_params *params;
    mezzo_program *program;
    mezzo_optimizer *optimizer;
    mezzo_step *step;
    int32_t ids[BATCH * LENGTH];
    char folder[64], path[256];
    TRY(w, mezzo_params_create(device, graph, 7, &params));
    TRY(w, mezzo_program_create(graph, params, &options, &program));
    TRY(w, mezzo_optimizer_create(params, &adamw, &optimizer));
    TRY(w, mezzo_step_create(program, &optimizer, 1, NULL, NULL, &step));
    for (int s = 0; s < STEPS; s++) {
        ids_of(s, ids, 7);
        TRY(w, mezzo_program_write(program, "tokens", ids, sizeof ids));
        ids_of(s, ids, 5);
        TRY(w, mezzo_program_write(program, "targets", ids, sizeof ids));
        TRY(w, mezzo_step_micro(step, 1, (uint64_t)s));
        TRY(w, mezzo_step_finish(step));
        TRY(w, mezzo_program_read(program, "loss", &w->losses[round * STEPS + s], sizeof(float)));
    }
    mezzo_checkpoint c = {.params = params, .optimizer = optimizer, .step = round + 1};
    snprintf(folder, sizeof folder, "kept.%d", w->number);
    TRY(w, mezzo_checkpoint_save(folder, &c, 1, path, sizeof path));
    TRY(w, mezzo_checkpoint_load(path, &c));
    mezzo_step_free(step);
    mezzo_optimizer_free(optimizer);
    mezzo_program_free(program);
    mezzo_params_free(params);
}

static void read_files(work *w) {
    mezzo_config *config;
    int32_t tokens[64];
    char path[64], expected[64];
    size_t n;
    TRY(w, mezzo_config_create(&config));
    snprintf(path, sizeof path, "config.%d.yaml", w->number);
    TRY(w, mezzo_config_set(config, "seed", "17", "test"));
    TRY(w, mezzo_config_save(config, path));
    TRY(w, mezzo_config_load(config, path));
    snprintf(expected, sizeof expected, "key.of.%d", w->number);
    mezzo_status status = mezzo_config_set(config, expected, "1", "test");
    if (status != MEZZO_ERR_INVALID || strstr(mezzo_error_message(), expected) == NULL)
        snprintf(w->wrong, sizeof w->wrong, "another thread's error: %.300s", mezzo_error_message());
    mezzo_config_free(config);
    TRY(w, mezzo_tokenizer_encode(w->shared, "words that tokens are made of", 29, tokens, &n));
}

static void *run(void *user) {
    work *w = user;
    mezzo_device *device;
    mezzo_graph *graph;
    mezzo_model_config model;
    for (int round = 0; round < ROUNDS && w->wrong[0] == '\0'; round++) {
        if (mezzo_device_open(w->device, 1, &device) != MEZZO_OK || mezzo_graph_create(&graph) != MEZZO_OK ||
            mezzo_model_defaults("gpt2", &model) != MEZZO_OK) {
            snprintf(w->wrong, sizeof w->wrong, "%s", mezzo_error_message());
            break;
        }
        model.layers = 1, model.heads = 2, model.d_model = 16, model.d_ff = 32, model.vocab = VOCAB;
        model.seq_len = LENGTH;
        if (mezzo_model_build(graph, &model, BATCH, LENGTH, false) != MEZZO_OK)
            snprintf(w->wrong, sizeof w->wrong, "%s", mezzo_error_message());
        else
            train(w, round, device, graph);
        if (w->wrong[0] == '\0')
            read_files(w);
        mezzo_graph_free(graph);
        mezzo_device_close(device);
    }
    return NULL;
}

TEST(test_threads_share_nothing) {
    static work alone[2], works[THREADS];
    pthread_t threads[THREADS];
    mezzo_tokenizer *shared;
    must(mezzo_tokenizer_create_gpt2(&shared));
    for (int i = 0; i < 2; i++) {
        alone[i] = (work){.number = 100 + i, .device = i == 0 ? "cpu" : "ref", .shared = shared};
        run(&alone[i]);
        assert_string_equal(alone[i].wrong, "");
    }
    for (int i = 0; i < THREADS; i++) {
        works[i] = (work){.number = i, .device = alone[i % 2].device, .shared = shared};
        assert_int_equal(pthread_create(&threads[i], NULL, run, &works[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_string_equal(works[i].wrong, "");
        assert_memory_equal(works[i].losses, alone[i % 2].losses, sizeof works[i].losses);
    }
    mezzo_tokenizer_free(shared);
}
