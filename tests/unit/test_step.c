// The step object, frozen parameters, and threads: what a user's own loop relies on.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/base.h"
#include "mezzo/model.h"
#include "mezzo/step.h"

static void ok(mezzo_status status) {
    if (status != MEZZO_OK)
        fail_msg("%s\n%s", mezzo_error_message(), mezzo_error_trace());
}

enum { BATCH = 2, LENGTH = 8, VOCAB = 31, STEPS = 4, MICRO = 2, ROOM = 1 << 16 };

typedef struct run {
    mezzo_device *device;
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
    mezzo_step *step;
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
    mezzo_model_config c;
    *r = (run){.weights = mz_alloc(ROOM, sizeof(float))};
    assert_non_null(r->weights);
    ok(mezzo_model_defaults("gpt2", &c));
    c.layers = 2, c.heads = 2, c.d_model = 16, c.d_ff = 64, c.vocab = VOCAB, c.seq_len = LENGTH, c.dropout = 0.1;
    ok(mezzo_device_open(a->device, 1, &r->device));
    ok(mezzo_graph_create(&r->graph));
    ok(mezzo_model_build(r->graph, &c, BATCH, LENGTH, false));
    if (a->freeze != NULL)
        ok(mezzo_graph_freeze(r->graph, a->freeze));
    mezzo_program_options options = {
        .precision = a->precision, .loss_weight = 1.0f / MICRO, .logits_rows = a->logits_rows};
    ok(mezzo_params_create_as(r->device, r->graph, &options, 7, a->master, &r->params));
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    adamw.patterns = a->owned;
    adamw.n_patterns = a->n_owned;
    mezzo_scaler_options scaling = mezzo_scaler_defaults();
    scaling.enabled = a->precision == MEZZO_PRECISION_FP16;
    scaling.growth_interval = 2;
    ok(mezzo_program_create(r->graph, r->params, &options, &r->program));
    ok(mezzo_optimizer_create(r->params, &adamw, &r->optimizer));
    ok(mezzo_scaler_create(r->device, &scaling, &r->scaler));
    const mezzo_step_options each = {.micro_batches = MICRO, .clip = 0.05};
    ok(mezzo_step_create(r->program, &r->optimizer, 1, r->scaler, &each, &r->step));
    mezzo_program_memory(r->program, &r->memory);
}

static mezzo_status fill(void *user, mezzo_program *p, uint64_t index) {
    int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH];
    (void)user;
    for (int i = 0; i < BATCH * LENGTH; i++) {
        tokens[i] = (i * 7 + 3 * (int)index) % VOCAB;
        targets[i] = (i * 5 + (int)index) % VOCAB;
    }
    MEZZO_TRY(mezzo_program_write(p, "tokens", tokens, sizeof tokens));
    return mezzo_program_write(p, "targets", targets, sizeof targets);
}

static void read_weights(run *r) {
    int64_t shape[8] = {0};
    r->n = 0;
    for (int i = 0; i < mezzo_params_count(r->params); i++) {
        int64_t count = 1;
        for (int d = 0; d < mezzo_params_rank(r->params, i); d++)
            count *= shape[d] = mezzo_params_shape(r->params, i)[d];
        assert_true(r->n + (size_t)count <= ROOM);
        ok(mezzo_params_read(r->params, i, r->weights + r->n));
        r->n += (size_t)count;
    }
}

static mezzo_status take_steps(run *r, int from, int to) {
    for (int s = from; s < to; s++)
        MEZZO_TRY(mezzo_step_run(r->step, 3, (uint64_t)(s * MICRO), fill, NULL));
    return mezzo_step_read(r->step, true, &r->report);
}

static void close_run(run *r) {
    mezzo_step_free(r->step);
    mezzo_scaler_free(r->scaler);
    mezzo_optimizer_free(r->optimizer);
    mezzo_program_free(r->program);
    mezzo_params_free(r->params);
    mezzo_graph_free(r->graph);
    mezzo_device_close(r->device);
    mz_free(r->weights);
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
    ok(take_steps(&frozen, 0, STEPS));
    ok(take_steps(&dropped, 0, STEPS));
    read_weights(&frozen);
    read_weights(&dropped);
    read_weights(&start);
    assert_int_equal(frozen.n, dropped.n);
    assert_memory_equal(frozen.weights, dropped.weights, frozen.n * sizeof(float));
    assert_true(frozen.report.info.step == STEPS && frozen.report.info.grad_norm == dropped.report.info.grad_norm);
    assert_true(frozen.report.loss == dropped.report.loss && frozen.report.scale == dropped.report.scale);
    for (int i = 0; i < mezzo_params_count(frozen.params); i++) {
        const char *name = mezzo_params_name(frozen.params, i);
        int64_t count = 1;
        for (int d = 0; d < mezzo_params_rank(frozen.params, i); d++)
            count *= mezzo_params_shape(frozen.params, i)[d];
        size_t bytes = (size_t)count * sizeof(float);
        assert_int_equal(mezzo_params_frozen(frozen.params, i), is_frozen(name));
        assert_int_equal(memcmp(frozen.weights + at, start.weights + at, bytes) == 0, is_frozen(name));
        assert_int_equal(mezzo_params_read_grad(frozen.params, i, dropped.weights),
                         is_frozen(name) ? MEZZO_ERR_INVALID : MEZZO_OK);
        at += (size_t)count;
    }
    assert_true(frozen.memory.gradients < start.memory.gradients && frozen.memory.masters <= start.memory.masters + 64);
    assert_true(mezzo_optimizer_memory(frozen.optimizer) < mezzo_optimizer_memory(start.optimizer));
    mezzo_memory planned;
    const mezzo_program_options options = {.precision = precision, .loss_weight = 1.0f / MICRO};
    ok(mezzo_plan_memory(frozen.device, frozen.graph, &options, &planned));
    assert_int_equal(planned.gradients, frozen.memory.gradients);
    close_run(&frozen);
    close_run(&dropped);
    close_run(&start);
}

static void frozen_parameters_stay_and_the_others_do_not_notice(void **state) {
    (void)state;
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
static void frozen_masters_are_read_as_they_were_written(void **state) {
    (void)state;
    for (mezzo_master master = MEZZO_MASTER_SPLIT; master <= MEZZO_MASTER_STOCHASTIC; master++) {
        run r;
        float written[48 * 16], read[48 * 16];
        open_run(&(asked){.device = "cpu", .precision = MEZZO_PRECISION_BF16, .freeze = "h.0.*", .master = master}, &r);
        const int index = mezzo_params_find(r.params, "h.0.attn.c_attn.weight");
        for (int i = 0; i < 48 * 16; i++) {
            written[i] = 0.1f * sinf((float)i);
            if (master == MEZZO_MASTER_STOCHASTIC)
                written[i] = mezzo_bf16_to_f32(mezzo_f32_to_bf16(written[i]));
        }
        ok(mezzo_params_write(r.params, index, written));
        ok(take_steps(&r, 0, STEPS));
        ok(mezzo_params_read(r.params, index, read));
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
static void frozen_parameters_cost_no_backward(void **state) {
    (void)state;
    int all[2] = {0}, some[2] = {0};
    mezzo_program *program;
    run r, plain;
    const mezzo_program_options options = {.precision = MEZZO_PRECISION_BF16};
    open_run(&(asked){.device = "cpu", .freeze = "wte,wpe,h.0"}, &r);
    open_run(&(asked){.device = "cpu"}, &plain);
    ok(mezzo_graph_explain(r.graph, &options, "autodiff", count_row, some));
    ok(mezzo_graph_explain(plain.graph, &options, "autodiff", count_row, all));
    assert_true(some[0] * 5 < all[0] * 3 && some[1] == 0 && all[1] > 0);
    assert_int_equal(mezzo_graph_freeze(r.graph, "ln_f,nothing"), MEZZO_ERR_INVALID);
    assert_non_null(strstr(mezzo_error_message(), "\"nothing\""));
    assert_int_equal(mezzo_graph_freeze(r.graph, "wte,,h.0"), MEZZO_ERR_INVALID);
    // A graph that trains what these parameters keep frozen.
    assert_int_equal(mezzo_program_create(plain.graph, r.params, &options, &program), MEZZO_ERR_INVALID);
    assert_non_null(strstr(mezzo_error_message(), "frozen"));
    close_run(&r);
    close_run(&plain);
}

// --- the object ----------------------------------------------------------------------------------------------------
static mezzo_status fill_or_fail(void *user, mezzo_program *p, uint64_t index) {
    (void)user;
    return index == 1 ? MEZZO_ERR_FORMAT : fill(user, p, index);
}

static void wrong_calls_change_nothing(void **state) {
    (void)state;
    run r, plain;
    mezzo_step *step;
    const asked a = {.device = "cpu", .precision = MEZZO_PRECISION_FP16};
    open_run(&a, &r);
    open_run(&a, &plain);
    mezzo_optimizer *twice[] = {r.optimizer, r.optimizer}, *foreign[] = {plain.optimizer};
    assert_int_equal(mezzo_step_create(r.program, twice, 2, NULL, NULL, &step), MEZZO_ERR_INVALID);
    assert_null(step);
    assert_int_equal(mezzo_step_create(r.program, foreign, 1, NULL, NULL, &step), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_step_create(r.program, twice, 0, NULL, NULL, &step), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_step_create(r.program, twice, 1, plain.scaler, NULL, &step), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_step_set_clip(r.step, -1), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_step_finish(r.step), MEZZO_ERR_INVALID); // no micro batch has run
    ok(mezzo_step_read(r.step, true, &r.report));
    assert_true(r.report.index == 0 && isnan(r.report.loss));
    assert_int_equal(mezzo_step_run(r.step, 3, 0, fill_or_fail, NULL), MEZZO_ERR_FORMAT); // after one micro batch
    assert_int_equal(mezzo_scaler_step(r.scaler, r.optimizer), MEZZO_ERR_INVALID);        // gradients were dropped
    ok(fill(NULL, r.program, 0));
    ok(mezzo_step_micro(r.step, 3, 0));
    assert_int_equal(mezzo_step_run(r.step, 3, 0, fill, NULL), MEZZO_ERR_INVALID); // one is under way
    assert_int_equal(mezzo_step_finish(r.step), MEZZO_ERR_INVALID);                // one is missing
    ok(fill(NULL, r.program, 1));
    ok(mezzo_step_micro(r.step, 3, 1));
    assert_int_equal(mezzo_step_micro(r.step, 3, 2), MEZZO_ERR_INVALID); // one too many
    ok(mezzo_step_finish(r.step));
    ok(take_steps(&r, 1, STEPS));
    ok(take_steps(&plain, 0, STEPS));
    read_weights(&r);
    read_weights(&plain);
    assert_memory_equal(r.weights, plain.weights, r.n * sizeof(float));
    assert_true(r.report.index == STEPS && r.report.loss == plain.report.loss && r.report.scale > 65536);
    close_run(&r);
    close_run(&plain);
}

// A pair that was stepped too early works on: torch's would fail for ever.
static void a_premature_step_leaves_no_state(void **state) {
    (void)state;
    run r;
    open_run(&(asked){.device = "cpu", .precision = MEZZO_PRECISION_FP16}, &r);
    assert_int_equal(mezzo_scaler_step(r.scaler, r.optimizer), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_scaler_update(r.scaler), MEZZO_ERR_INVALID);
    ok(mezzo_scaler_unscale(r.scaler, r.optimizer)); // of nothing, as in torch
    assert_int_equal(mezzo_scaler_step(r.scaler, r.optimizer), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_scaler_unscale(r.scaler, r.optimizer), MEZZO_ERR_INVALID);
    ok(fill(NULL, r.program, 0));
    ok(mezzo_program_run(r.program, r.scaler, 3, 0));
    ok(mezzo_scaler_unscale(r.scaler, r.optimizer));
    assert_int_equal(mezzo_scaler_unscale(r.scaler, r.optimizer), MEZZO_ERR_INVALID); // now it was something
    ok(mezzo_scaler_step(r.scaler, r.optimizer));
    assert_int_equal(mezzo_scaler_step(r.scaler, r.optimizer), MEZZO_ERR_INVALID);
    ok(mezzo_scaler_update(r.scaler));
    ok(mezzo_optimizer_zero_grad(r.optimizer));
    ok(take_steps(&r, 0, 1));
    assert_true(r.report.info.step == 2 && r.report.info.skipped == 0);
    close_run(&r);
}

// An optimizer whose parameters have no gradients is refused, whatever others have: AdamW would decay its weights.
static void gradients_are_known_per_optimizer(void **state) {
    (void)state;
    static const char *const mine[] = {"wpe.weight"};
    mezzo_optimizer *other;
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    float gradient[LENGTH * 16] = {1};
    run r;
    adamw.patterns = mine;
    adamw.n_patterns = 1;
    open_run(&(asked){.device = "cpu", .precision = MEZZO_PRECISION_FP16, .owned = trained + 1, .n_owned = 2}, &r);
    ok(mezzo_optimizer_create(r.params, &adamw, &other));
    ok(mezzo_params_write_grad(r.params, mezzo_params_find(r.params, "wpe.weight"), gradient));
    assert_int_equal(mezzo_optimizer_step(r.optimizer), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_optimizer_clip(r.optimizer, 1), MEZZO_ERR_INVALID);
    assert_int_equal(mezzo_scaler_step(r.scaler, r.optimizer), MEZZO_ERR_INVALID);
    ok(mezzo_scaler_step(r.scaler, other));
    ok(mezzo_scaler_update(r.scaler));
    ok(mezzo_optimizer_zero_grad(other));
    assert_int_equal(mezzo_optimizer_step(other), MEZZO_ERR_INVALID);
    mezzo_optimizer_free(other);
    close_run(&r);
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

static void steps_from_other_threads_have_the_same_bits(void **state) {
    (void)state;
    const asked cpu = {.device = "cpu", .precision = MEZZO_PRECISION_BF16}, ref = {.device = "ref"};
    run alone, ref_alone, moved, first, second, third;
    open_run(&cpu, &alone);
    open_run(&ref, &ref_alone);
    ok(take_steps(&alone, 0, STEPS));
    ok(take_steps(&ref_alone, 0, STEPS));
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frozen_parameters_stay_and_the_others_do_not_notice),
        cmocka_unit_test(frozen_masters_are_read_as_they_were_written),
        cmocka_unit_test(frozen_parameters_cost_no_backward),
        cmocka_unit_test(wrong_calls_change_nothing),
        cmocka_unit_test(a_premature_step_leaves_no_state),
        cmocka_unit_test(gradients_are_known_per_optimizer),
        cmocka_unit_test(steps_from_other_threads_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
