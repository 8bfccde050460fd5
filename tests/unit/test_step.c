// The step object, frozen parameters, and threads: what a user's own loop relies on.

#include <math.h>
#include <pthread.h>

#include "fixture.h"
#include "base/base.h"

enum { BATCH = 2, LENGTH = 8, VOCAB = 31, STEPS = 4, MICRO = 2, ROOM = 1 << 16 };

typedef struct run {
    fixture f;
    fixture_options options;
    mezzo_memory memory;
    mezzo_step_report report;
    float *weights; // [ROOM], every parameter in its order
    size_t n;
} run;

typedef struct asked {
    const char *device;
    mezzo_precision precision;
    const char *freeze;       // in the graph
    const char *const *owned; // the optimizer's patterns; NULL: all
    int n_owned;
    int64_t logits_rows;
    mezzo_master master;
} asked;

static void open_run(const asked *a, run *r) {
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    mezzo_scaler_options scaling = mezzo_scaler_defaults();
    adamw.patterns = a->owned;
    adamw.n_patterns = a->n_owned;
    scaling.enabled = a->precision == MEZZO_PRECISION_FP16;
    scaling.growth_interval = 2;
    *r = (run){
        .weights = calloc(ROOM, sizeof(float)),
        .options = {.device = a->device,
                    .model = fixture_model("gpt2", 16, 64, VOCAB, LENGTH),
                    .batch = BATCH,
                    .freeze = a->freeze,
                    .program = {.precision = a->precision, .loss_weight = 1.0f / MICRO, .logits_rows = a->logits_rows},
                    .master = a->master,
                    .optimizer = &adamw,
                    .scaler = &scaling,
                    .step = &(mezzo_step_options){.micro_batches = MICRO, .clip = 0.05}}};
    assert_non_null(r->weights);
    r->options.model.dropout = 0.1;
    fixture_open(&r->f, &r->options);
    mezzo_program_memory(r->f.program, &r->memory);
}

static void read_weights(run *r) {
    int64_t shape[8] = {0};
    r->n = 0;
    for (int i = 0; i < mezzo_params_count(r->f.params); i++) {
        int64_t count = 1;
        for (int d = 0; d < mezzo_params_rank(r->f.params, i); d++)
            count *= shape[d] = mezzo_params_shape(r->f.params, i)[d];
        assert_true(r->n + (size_t)count <= ROOM);
        must(mezzo_params_read(r->f.params, i, r->weights + r->n));
        r->n += (size_t)count;
    }
}

static mezzo_status take_steps(run *r, int from, int to) {
    for (int s = from; s < to; s++)
        MEZZO_TRY(mezzo_step_run(r->f.step, 3, (uint64_t)(s * MICRO), fixture_fill, &r->options));
    return mezzo_step_read(r->f.step, true, &r->report);
}

static void close_run(run *r) {
    fixture_close(&r->f);
    free(r->weights);
}

// --- frozen parameters ---------------------------------------------------------------------------------------------
static const char *const trained[] = {"wpe.weight", "h.1.*", "ln_f.*"};
static const mezzo_precision precisions[] = {MEZZO_PRECISION_FP32, MEZZO_PRECISION_BF16, MEZZO_PRECISION_FP16};

static bool is_frozen(const char *name) {
    return strcmp(name, "wte.weight") == 0 || strncmp(name, "h.0.", 4) == 0;
}

static void same_but_frozen(const char *device, mezzo_precision precision, mezzo_master master, int64_t logits_rows) {
    run frozen, dropped, start;
    size_t at = 0;
    asked a = {.device = device, .precision = precision, .logits_rows = logits_rows, .master = master};
    open_run(&a, &start);
    a.freeze = "wte,h.0.*";
    open_run(&a, &frozen);
    a.freeze = NULL, a.owned = trained, a.n_owned = 3;
    open_run(&a, &dropped);
    must(take_steps(&frozen, 0, STEPS));
    must(take_steps(&dropped, 0, STEPS));
    read_weights(&frozen);
    read_weights(&dropped);
    read_weights(&start);
    assert_int_equal(frozen.n, dropped.n);
    assert_memory_equal(frozen.weights, dropped.weights, frozen.n * sizeof(float));
    assert_true(frozen.report.info.step == STEPS && frozen.report.info.grad_norm == dropped.report.info.grad_norm);
    assert_true(frozen.report.loss == dropped.report.loss && frozen.report.scale == dropped.report.scale);
    for (int i = 0; i < mezzo_params_count(frozen.f.params); i++) {
        const char *name = mezzo_params_name(frozen.f.params, i);
        int64_t count = 1;
        for (int d = 0; d < mezzo_params_rank(frozen.f.params, i); d++)
            count *= mezzo_params_shape(frozen.f.params, i)[d];
        size_t bytes = (size_t)count * sizeof(float);
        assert_int_equal(mezzo_params_frozen(frozen.f.params, i), is_frozen(name));
        assert_int_equal(memcmp(frozen.weights + at, start.weights + at, bytes) == 0, is_frozen(name));
        assert_int_equal(mezzo_params_read_grad(frozen.f.params, i, dropped.weights),
                         is_frozen(name) ? MEZZO_ERR_INVALID : MEZZO_OK);
        at += (size_t)count;
    }
    assert_true(frozen.memory.gradients < start.memory.gradients && frozen.memory.masters <= start.memory.masters + 64);
    assert_true(mezzo_optimizer_memory(frozen.f.optimizer) < mezzo_optimizer_memory(start.f.optimizer));
    mezzo_memory planned;
    const mezzo_program_options options = {.precision = precision, .loss_weight = 1.0f / MICRO};
    must(mezzo_plan_memory(frozen.f.device, frozen.f.graph, &options, &planned));
    assert_int_equal(planned.gradients, frozen.memory.gradients);
    close_run(&frozen);
    close_run(&dropped);
    close_run(&start);
}

TEST(frozen_parameters_stay_and_the_others_do_not_notice) {
    for (size_t i = 0; i < MZ_COUNT(precisions); i++) {
        same_but_frozen("cpu", precisions[i], MEZZO_MASTER_FP32, 0);
        same_but_frozen("cpu", precisions[i], MEZZO_MASTER_FP32, 4); // the head in blocks
        same_but_frozen("ref", precisions[i], MEZZO_MASTER_FP32, 0);
    }
    for (mezzo_master master = MEZZO_MASTER_SPLIT; master <= MEZZO_MASTER_STOCHASTIC; master++) {
        same_but_frozen("cpu", MEZZO_PRECISION_BF16, master, 0);
        same_but_frozen("ref", MEZZO_PRECISION_BF16, master, 0);
    }
}

// Written and read again, and once more after steps: nothing of a frozen master is lost, whatever halves it is kept in.
TEST(frozen_masters_are_read_as_they_were_written) {
    for (mezzo_master master = MEZZO_MASTER_SPLIT; master <= MEZZO_MASTER_STOCHASTIC; master++) {
        run r;
        float written[48 * 16], read[48 * 16];
        open_run(&(asked){.device = "cpu", .precision = MEZZO_PRECISION_BF16, .freeze = "h.0.*", .master = master}, &r);
        const int index = mezzo_params_find(r.f.params, "h.0.attn.c_attn.weight");
        for (int i = 0; i < 48 * 16; i++) {
            written[i] = 0.1f * sinf((float)i);
            if (master == MEZZO_MASTER_STOCHASTIC)
                written[i] = mezzo_bf16_to_f32(mezzo_f32_to_bf16(written[i]));
        }
        must(mezzo_params_write(r.f.params, index, written));
        must(take_steps(&r, 0, STEPS));
        must(mezzo_params_read(r.f.params, index, read));
        assert_memory_equal(written, read, sizeof read);
        close_run(&r);
    }
}

static void count_row(void *user, const mezzo_explain_row *row) {
    int *counts = user;
    counts[0] += strcmp(row->phase, "backward") == 0;
    counts[1] += strcmp(row->op, "embedding_bwd") == 0;
}

// Nothing before the first trained parameter is differentiated.
TEST(frozen_parameters_cost_no_backward) {
    int all[2] = {0}, some[2] = {0};
    mezzo_program *program;
    run r, plain;
    const mezzo_program_options options = {.precision = MEZZO_PRECISION_BF16};
    open_run(&(asked){.device = "cpu", .freeze = "wte,wpe,h.0"}, &r);
    open_run(&(asked){.device = "cpu"}, &plain);
    must(mezzo_graph_explain(r.f.graph, &options, "autodiff", count_row, some));
    must(mezzo_graph_explain(plain.f.graph, &options, "autodiff", count_row, all));
    assert_true(some[0] * 5 < all[0] * 3 && some[1] == 0 && all[1] > 0);
    must_fail(mezzo_graph_freeze(r.f.graph, "ln_f,nothing"), MEZZO_ERR_INVALID, "\"nothing\"");
    assert_int_equal(mezzo_graph_freeze(r.f.graph, "wte,,h.0"), MEZZO_ERR_INVALID);
    // A graph that trains what these parameters keep frozen.
    must_fail(mezzo_program_create(plain.f.graph, r.f.params, &options, &program), MEZZO_ERR_INVALID, "frozen");
    close_run(&r);
    close_run(&plain);
}

// --- the object ----------------------------------------------------------------------------------------------------
static mezzo_status fill_or_fail(void *user, mezzo_program *p, uint64_t index) {
    return index == 1 ? MEZZO_ERR_FORMAT : fixture_fill(user, p, index);
}

TEST(wrong_calls_change_nothing) {
    run r, plain;
    mezzo_step *step;
    const asked a = {.device = "cpu", .precision = MEZZO_PRECISION_FP16};
    open_run(&a, &r);
    open_run(&a, &plain);
    mezzo_optimizer *twice[] = {r.f.optimizer, r.f.optimizer}, *foreign[] = {plain.f.optimizer};
    assert_int_equal(mezzo_step_create(r.f.program, twice, 2, NULL, NULL, &step), MEZZO_ERR_INVALID);
    assert_null(step);
    assert_int_equal(mezzo_step_create(r.f.program, foreign, 1, NULL, NULL, &step), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_step_create(r.f.program, twice, 0, NULL, NULL, &step), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_step_create(r.f.program, twice, 1, plain.f.scaler, NULL, &step), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_step_set_clip(r.f.step, -1), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_step_finish(r.f.step), MEZZO_ERR_INVALID); // no micro batch has run
    must(mezzo_step_read(r.f.step, true, &r.report));
    assert_true(r.report.index == 0 && isnan(r.report.loss));
    assert_int_equal(mezzo_step_run(r.f.step, 3, 0, fill_or_fail, &r.options),
                     MEZZO_ERR_FORMAT);                                                // after one micro batch
    assert_int_equal(mezzo_scaler_step(r.f.scaler, r.f.optimizer), MEZZO_ERR_INVALID); // gradients were dropped
    must(fixture_fill(&r.options, r.f.program, 0));
    must(mezzo_step_micro(r.f.step, 3, 0));
    assert_int_equal(mezzo_step_run(r.f.step, 3, 0, fixture_fill, &r.options), MEZZO_ERR_INVALID); // one is under way
    assert_int_equal(mezzo_step_finish(r.f.step), MEZZO_ERR_INVALID);                              // one is missing
    must(fixture_fill(&r.options, r.f.program, 1));
    must(mezzo_step_micro(r.f.step, 3, 1));
    assert_int_equal(mezzo_step_micro(r.f.step, 3, 2), MEZZO_ERR_INVALID); // one too many
    must(mezzo_step_finish(r.f.step));
    must(take_steps(&r, 1, STEPS));
    must(take_steps(&plain, 0, STEPS));
    read_weights(&r);
    read_weights(&plain);
    assert_memory_equal(r.weights, plain.weights, r.n * sizeof(float));
    assert_true(r.report.index == STEPS && r.report.loss == plain.report.loss && r.report.scale > 65536);
    close_run(&r);
    close_run(&plain);
}

// A pair that was stepped too early works on: torch's would fail for ever.
TEST(a_premature_step_leaves_no_state) {
    run r;
    open_run(&(asked){.device = "cpu", .precision = MEZZO_PRECISION_FP16}, &r);
    assert_int_equal(mezzo_scaler_step(r.f.scaler, r.f.optimizer), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_scaler_update(r.f.scaler), MEZZO_ERR_INVALID);
    must(mezzo_scaler_unscale(r.f.scaler, r.f.optimizer)); // of nothing, as in torch
    assert_int_equal(mezzo_scaler_step(r.f.scaler, r.f.optimizer), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_scaler_unscale(r.f.scaler, r.f.optimizer), MEZZO_ERR_INVALID);
    must(fixture_fill(&r.options, r.f.program, 0));
    must(mezzo_program_run(r.f.program, r.f.scaler, 3, 0));
    must(mezzo_scaler_unscale(r.f.scaler, r.f.optimizer));
    assert_int_equal(mezzo_scaler_unscale(r.f.scaler, r.f.optimizer), MEZZO_ERR_INVALID); // now it was something
    must(mezzo_scaler_step(r.f.scaler, r.f.optimizer));
    assert_int_equal(mezzo_scaler_step(r.f.scaler, r.f.optimizer), MEZZO_ERR_INVALID);
    must(mezzo_scaler_update(r.f.scaler));
    must(mezzo_optimizer_zero_grad(r.f.optimizer));
    must(take_steps(&r, 0, 1));
    assert_true(r.report.info.step == 2 && r.report.info.skipped == 0);
    close_run(&r);
}

// An optimizer whose parameters have no gradients is refused, whatever others have: AdamW would decay its weights.
TEST(gradients_are_known_per_optimizer) {
    static const char *const mine[] = {"wpe.weight"};
    mezzo_optimizer *other;
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    float gradient[LENGTH * 16] = {1};
    run r;
    adamw.patterns = mine;
    adamw.n_patterns = 1;
    open_run(&(asked){.device = "cpu", .precision = MEZZO_PRECISION_FP16, .owned = trained + 1, .n_owned = 2}, &r);
    must(mezzo_optimizer_create(r.f.params, &adamw, &other));
    must(mezzo_params_write_grad(r.f.params, mezzo_params_find(r.f.params, "wpe.weight"), gradient));
    assert_int_equal(mezzo_optimizer_step(r.f.optimizer), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_optimizer_clip(r.f.optimizer, 1), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_scaler_step(r.f.scaler, r.f.optimizer), MEZZO_ERR_INVALID);
    must(mezzo_scaler_step(r.f.scaler, other));
    must(mezzo_scaler_update(r.f.scaler));
    must(mezzo_optimizer_zero_grad(other));
    assert_int_equal(mezzo_optimizer_step(other), MEZZO_ERR_INVALID);
    mezzo_optimizer_free(other);
    close_run(&r);
}

// --- tracked parameters --------------------------------------------------------------------------------------------
enum { WIDTH = 4 };

static mezzo_value tracked_param(mezzo_graph *g, const char *name) {
    const mezzo_value v = mezzo_param(g, name, (mezzo_init){.kind = MEZZO_INIT_UNIFORM, .a = 1}, 1, &(int64_t){WIDTH});
    must(mezzo_graph_freeze(g, name));
    return v;
}

// "both" follows x and then y = w·x in every micro batch, "one" follows y alone.
static void build_tracked(mezzo_graph *g) {
    const int64_t width = WIDTH;
    const mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 1, &width),
                      w = mezzo_param(g, "w", (mezzo_init){.kind = MEZZO_INIT_UNIFORM, .a = 1}, 1, &width),
                      y = mezzo_mul(g, x, w), both = tracked_param(g, "both"), one = tracked_param(g, "one");
    must(mezzo_graph_loss(g, mezzo_mean(g, y, -1)));
    must(mezzo_graph_track(g, both, x, 0.9));
    must(mezzo_graph_track(g, one, y, 0.5));
    must(mezzo_graph_track(g, both, y, 0.75));
    assert_int_equal(mezzo_graph_track(g, w, x, 0.9), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_graph_track(g, one, y, 1.5), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_graph_track(g, one, mezzo_mean(g, y, -1), 0.5), MEZZO_ERR_INVALID);
    must(mezzo_graph_status(g));
}

static float moved(double momentum, float x, float number) {
    return (float)(momentum * (double)x + (1 - momentum) * (double)number);
}

static void fill_tracked(float *x, int batch, bool spoiled) {
    for (int i = 0; i < WIDTH; i++)
        x[i] = 0.3f * (float)(i + 1) + (float)batch;
    if (spoiled)
        x[1] = INFINITY;
}

static void follow(float *both, float *one, const float *w, const float *x) {
    for (int i = 0; i < WIDTH; i++) {
        both[i] = moved(0.75, moved(0.9, both[i], x[i]), w[i] * x[i]);
        one[i] = moved(0.5, one[i], w[i] * x[i]);
    }
}

static void same_param(mezzo_params *params, const char *name, const float *want) {
    float got[WIDTH];
    must(mezzo_params_read(params, mezzo_params_find(params, name), got));
    assert_memory_equal(got, want, sizeof got);
}

// A micro batch that is not finite moves nothing, the others of its step do, and so does a skipped step.
TEST(frozen_parameters_follow_values) {
    mezzo_device *device;
    mezzo_graph *g;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_optimizer *optimizer;
    mezzo_step *step;
    mezzo_step_report report;
    const mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    float x[WIDTH], w[WIDTH], both[WIDTH], one[WIDTH];
    must(mezzo_device_open(test_device(), 1, &device));
    must(mezzo_graph_create(&g));
    build_tracked(g);
    must(mezzo_params_create(device, g, 1, &params));
    must(mezzo_program_create(g, params, &(mezzo_program_options){.loss_weight = 1.0f / MICRO}, &program));
    must(mezzo_optimizer_create(params, &adamw, &optimizer));
    must(mezzo_step_create(program, &optimizer, 1, NULL, &(mezzo_step_options){.micro_batches = MICRO}, &step));
    must(mezzo_params_read(params, mezzo_params_find(params, "both"), both));
    must(mezzo_params_read(params, mezzo_params_find(params, "one"), one));
    for (int batch = 0; batch < STEPS * MICRO; batch++) {
        const bool spoiled = batch == 3;
        if (batch % MICRO == 0)
            must(mezzo_params_read(params, mezzo_params_find(params, "w"), w));
        fill_tracked(x, batch, spoiled);
        must(mezzo_program_write(program, "x", x, sizeof x));
        must(mezzo_step_micro(step, 1, (uint64_t)batch));
        if (!spoiled)
            follow(both, one, w, x);
        if (batch % MICRO < MICRO - 1)
            continue;
        must(mezzo_step_finish(step));
        same_param(params, "both", both);
        same_param(params, "one", one);
    }
    must(mezzo_step_read(step, true, &report));
    assert_int_equal(report.info.skipped, 1);
    must(mezzo_program_track(program)); // by the last run once more
    follow(both, one, w, x);
    same_param(params, "both", both);
    same_param(params, "one", one);
    mezzo_step_free(step);
    mezzo_optimizer_free(optimizer);
    mezzo_program_free(program);
    mezzo_params_free(params);
    mezzo_graph_free(g);
    mezzo_device_close(device);
}

// --- threads -------------------------------------------------------------------------------------------------------
typedef struct job {
    run *r;
    int from, to;
    mezzo_status status;
    char message[256];
} job;

static void *work(void *user) {
    job *j = user;
    j->status = take_steps(j->r, j->from, j->to);
    snprintf(j->message, sizeof j->message, "%s", j->status != MEZZO_OK ? mezzo_error_message() : "");
    return NULL;
}

static void run_in_threads(job *jobs, int n) {
    pthread_t threads[4];
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &jobs[i]), 0);
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < n; i++)
        if (jobs[i].status != MEZZO_OK)
            fail_msg("thread %d: %s", i, jobs[i].message);
}

static void same_weights(run *a, run *b) {
    read_weights(a);
    read_weights(b);
    assert_memory_equal(a->weights, b->weights, a->n * sizeof(float));
    assert_true(a->report.loss == b->report.loss);
}

TEST(steps_from_other_threads_have_the_same_bits) {
    const asked cpu = {.device = "cpu", .precision = MEZZO_PRECISION_BF16}, ref = {.device = "ref"};
    run alone, ref_alone, moved, first, second, third;
    open_run(&cpu, &alone);
    open_run(&ref, &ref_alone);
    must(take_steps(&alone, 0, STEPS));
    must(take_steps(&ref_alone, 0, STEPS));
    open_run(&cpu, &moved); // opened here, stepped by one thread after another
    for (int s = 0; s < STEPS; s++)
        run_in_threads(&(job){.r = &moved, .from = s, .to = s + 1}, 1);
    same_weights(&moved, &alone);
    open_run(&cpu, &first); // three devices at once
    open_run(&cpu, &second);
    open_run(&ref, &third);
    run_in_threads((job[]){{.r = &first, .to = STEPS}, {.r = &second, .to = STEPS}, {.r = &third, .to = STEPS}}, 3);
    same_weights(&first, &alone);
    same_weights(&second, &alone);
    same_weights(&third, &ref_alone);
    run *all[] = {&alone, &ref_alone, &moved, &first, &second, &third};
    for (size_t i = 0; i < MZ_COUNT(all); i++)
        close_run(all[i]);
}
