// Two devices in one process: steps that take turns, from two host threads neither of which opened them, have the bits
// of each device's steps alone. On GPUs that shows that every call reaches its own device; where there is one GPU it is
// opened twice, where there is none that part is skipped.
// Seen to fail with one static workspace for the products of every device.
#include <pthread.h>

#include "fixture.h"

enum { BATCH = 2, LENGTH = 16, VOCAB = 61, STEPS = 6, MICROS = 2, MOST = 1 << 16 };

typedef struct setting {
    const char *device;
    int threads;
    const char *model;
    mezzo_precision precision;
} setting;

// A training run. Asserts stay with the main thread: what fails in another one is kept here.
typedef struct run {
    setting of;
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
    mezzo_status status;
    char message[256];
    float losses[STEPS * MICROS];
    float weights[MOST];
} run;

static void begin(run *r, const setting *of) {
    mezzo_graph *g;
    mezzo_model_config c = fixture_model(of->model, 32, 64, VOCAB, LENGTH);
    if (strcmp(of->model, "gpt2") == 0)
        c.dropout = 0.1;
    memset(r, 0, sizeof *r);
    r->of = *of;
    must(mezzo_device_open(of->device, of->threads, &r->device));
    g = fixture_graph(&c, BATCH, LENGTH, false);
    must(mezzo_params_create(r->device, g, 7, &r->params));
    mezzo_program_options options = {.precision = of->precision, .loss_weight = 1.0f / MICROS};
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    mezzo_scaler_options scaling = mezzo_scaler_defaults();
    must(mezzo_program_create(g, r->params, &options, &r->program));
    must(mezzo_optimizer_create(r->params, &adamw, &r->optimizer));
    must(mezzo_scaler_create(r->device, &scaling, &r->scaler));
    mezzo_graph_free(g);
}

static mezzo_status micro(run *r, int k) {
    mezzo_status status = fixture_batch(r->program, BATCH * LENGTH, VOCAB, k);
    if (status == MEZZO_OK)
        status = mezzo_program_run(r->program, r->scaler, 3, (uint64_t)k);
    if (status == MEZZO_OK)
        status = mezzo_program_read(r->program, "loss", &r->losses[k], sizeof r->losses[k]);
    return status;
}

static mezzo_status update(run *r) {
    mezzo_status status = mezzo_scaler_unscale(r->scaler, r->optimizer);
    if (status == MEZZO_OK)
        status = mezzo_optimizer_clip(r->optimizer, 1);
    if (status == MEZZO_OK)
        status = mezzo_scaler_step(r->scaler, r->optimizer);
    if (status == MEZZO_OK)
        status = mezzo_scaler_update(r->scaler);
    if (status == MEZZO_OK)
        status = mezzo_optimizer_zero_grad(r->optimizer);
    return status;
}

static void step(run *r, int number) {
    for (int i = 0; i < MICROS && r->status == MEZZO_OK; i++)
        r->status = micro(r, number * MICROS + i);
    if (r->status == MEZZO_OK)
        r->status = update(r);
    if (r->status != MEZZO_OK && r->message[0] == '\0')
        strncpy(r->message, mezzo_error_message(), sizeof r->message - 1);
}

static void end(run *r) {
    if (r->status != MEZZO_OK)
        fail_msg("%s: %s", r->of.device, r->message);
    assert_true(mezzo_params_elements(r->params) <= MOST);
    float *next = r->weights;
    for (int i = 0; i < mezzo_params_count(r->params); i++) {
        const int64_t *shape = mezzo_params_shape(r->params, i);
        int64_t n = 1;
        for (int d = 0; d < mezzo_params_rank(r->params, i); d++)
            n *= shape[d];
        must(mezzo_params_read(r->params, i, next));
        next += n;
    }
    mezzo_scaler_free(r->scaler);
    mezzo_optimizer_free(r->optimizer);
    mezzo_program_free(r->program);
    mezzo_params_free(r->params);
    mezzo_device_close(r->device);
}

// Two threads, each with one of the runs at a time: they change runs at every step, after both are done.
typedef struct pair {
    run *runs[2];
    pthread_barrier_t turn;
} pair;
typedef struct worker {
    pair *of;
    int number;
} worker;

static void *work(void *user) {
    const worker *w = user;
    for (int k = 0; k < STEPS; k++) {
        step(w->of->runs[(w->number + k) % 2], k);
        pthread_barrier_wait(&w->of->turn);
    }
    return NULL;
}

static void together(run runs[2]) {
    pair both = {.runs = {&runs[0], &runs[1]}};
    worker workers[2] = {{&both, 0}, {&both, 1}};
    pthread_t threads[2];
    assert_int_equal(pthread_barrier_init(&both.turn, NULL, 2), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    pthread_barrier_destroy(&both.turn);
}

static void same_bits(const setting of[2]) {
    run *alone = calloc(2, sizeof *alone), *runs = calloc(2, sizeof *runs);
    assert_non_null(alone);
    assert_non_null(runs);
    for (int i = 0; i < 2; i++) {
        begin(&alone[i], &of[i]);
        for (int k = 0; k < STEPS; k++)
            step(&alone[i], k);
        end(&alone[i]);
    }
    begin(&runs[0], &of[0]);
    begin(&runs[1], &of[1]);
    together(runs);
    end(&runs[0]); // while the other is open
    end(&runs[1]);
    for (int i = 0; i < 2; i++) {
        assert_true(alone[i].losses[0] > 1 && alone[i].losses[MICROS] != alone[i].losses[0]); // it trains
        assert_memory_equal(alone[i].losses, runs[i].losses, sizeof runs[i].losses);
        assert_memory_equal(alone[i].weights, runs[i].weights, sizeof runs[i].weights);
    }
    free(alone);
    free(runs);
}

TEST(cpus) {
    // MEZZO_TEST_THREADS=1: for a thread sanitizer, which does not see how OpenMP's threads wait for each other.
    const char *threads = getenv("MEZZO_TEST_THREADS");
    int most = threads != NULL ? atoi(threads) : 2;
    const setting same[2] = {{"cpu", most, "gpt2", MEZZO_PRECISION_BF16}, {"cpu", most, "gpt2", MEZZO_PRECISION_BF16}};
    const setting apart[2] = {{"cpu", 1, "gpt2", MEZZO_PRECISION_FP16},
                              {"cpu", most, "glm4_moe", MEZZO_PRECISION_FP32}};
    const setting kinds[2] = {{"ref", 1, "gpt2", MEZZO_PRECISION_FP32}, {"cpu", most, "cs336", MEZZO_PRECISION_FP32}};
    same_bits(same);
    same_bits(apart);
    same_bits(kinds);
}

static bool there_is(const char *device) {
    mezzo_device *opened;
    if (mezzo_device_open(device, 0, &opened) != MEZZO_OK)
        return false;
    mezzo_device_close(opened);
    return true;
}

TEST(gpus) {
    const char *second = "cuda:1";
    if (!there_is("cuda:0")) {
        print_message("skipped: %s\n", mezzo_error_message());
        skip();
    }
    if (!there_is(second)) {
        print_message("one GPU only, opened twice: %s\n", mezzo_error_message());
        second = "cuda:0";
    }
    const setting same[2] = {{"cuda:0", 0, "gpt2", MEZZO_PRECISION_BF16}, {second, 0, "gpt2", MEZZO_PRECISION_BF16}};
    const setting apart[2] = {{"cuda:0", 0, "gpt2", MEZZO_PRECISION_FP32},
                              {second, 0, "glm4_moe", MEZZO_PRECISION_FP16}};
    const setting kinds[2] = {{second, 0, "cs336", MEZZO_PRECISION_BF16}, {"cpu", 2, "gpt2", MEZZO_PRECISION_BF16}};
    same_bits(same);
    same_bits(apart);
    same_bits(kinds);
}
