// The table of scales: what a step puts into it, and what leaves no trace there.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "device.h"
#include "mezzo/model.h"
#include "mezzo/step.h"
#include "runtime/params.h"

static void ok(mezzo_status status) {
    if (status != MEZZO_OK)
        fail_msg("%s\n%s", mezzo_error_message(), mezzo_error_trace());
}

enum { BATCH = 2, LENGTH = 16, VOCAB = 48, MICRO = 2, MOST = 64 };

typedef struct run {
    mezzo_device *device;
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program, *forward;
    mezzo_optimizer *optimizer;
    mezzo_step *step;
    int n;
    mz_scale_entry table[MOST];
} run;

static void open_run(run *r) {
    mezzo_model_config c;
    *r = (run){0};
    ok(mezzo_model_defaults("gpt2", &c));
    c.layers = 2, c.heads = 2, c.d_model = 32, c.d_ff = 64, c.vocab = VOCAB, c.seq_len = LENGTH, c.dropout = 0;
    ok(mezzo_device_open(test_device(), 2, &r->device));
    ok(mezzo_graph_create(&r->graph));
    ok(mezzo_model_build(r->graph, &c, BATCH, LENGTH, false));
    mezzo_program_options options = {.precision = MEZZO_PRECISION_FP8, .loss_weight = 1.0f / MICRO};
    ok(mezzo_params_create_as(r->device, r->graph, &options, 7, MEZZO_MASTER_FP32, &r->params));
    const mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    ok(mezzo_program_create(r->graph, r->params, &options, &r->program));
    options.forward_only = true;
    ok(mezzo_program_create(r->graph, r->params, &options, &r->forward));
    ok(mezzo_optimizer_create(r->params, &adamw, &r->optimizer));
    ok(mezzo_step_create(r->program, &r->optimizer, 1, NULL, &(mezzo_step_options){.micro_batches = MICRO}, &r->step));
}

static void close_run(run *r) {
    mezzo_step_free(r->step);
    mezzo_optimizer_free(r->optimizer);
    mezzo_program_free(r->forward);
    mezzo_program_free(r->program);
    mezzo_params_free(r->params);
    mezzo_graph_free(r->graph);
    mezzo_device_close(r->device);
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

static void take_step(run *r, uint64_t index) {
    ok(mezzo_step_run(r->step, 3, index * MICRO, fill, NULL));
}

static void read_table(run *r) {
    r->n = r->params->scales.n;
    assert_in_range(r->n, 1, MOST);
    ok(mz_scales_read(r->device, &r->params->scales, r->table));
}

static int find(const run *r, const char *name) {
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->params->scales.names[i], name) == 0)
            return i;
    fail_msg("no entry is called %s", name);
    return -1;
}

// The least power of two that brings the largest of the last steps to at most the format's largest number.
static float scale_of(const mz_scale_entry *e) {
    float most = 0, scale = 0x1p-120F;
    for (int i = 0; i < MZ_SCALE_HISTORY && i < e->n; i++) {
        float magnitude;
        memcpy(&magnitude, &e->history[i], sizeof magnitude);
        most = fmaxf(most, magnitude);
    }
    while (most / scale > (e->dtype == MEZZO_F8E4M3 ? 448.0F : 57344.0F))
        scale *= 2;
    return scale;
}

// --- what a step does ----------------------------------------------------------------------------------------------
static void a_step_is_one_entry_of_each_history(void **state) {
    (void)state;
    run r;
    open_run(&r);
    for (int s = 0; s < MZ_SCALE_HISTORY + 3; s++) {
        take_step(&r, (uint64_t)s);
        read_table(&r);
        for (int i = 0; i < r.n; i++) {
            const mz_scale_entry *e = &r.table[i];
            if (e->n != s + 1 || e->most != 0 || e->scale != scale_of(e))
                fail_msg("%s behind step %d: %d steps, magnitude %#x, scale %g, not %g", r.params->scales.names[i],
                         s + 1, e->n, e->most, (double)e->scale, (double)scale_of(e));
        }
    }
    assert_true(r.params->scales.unknown == 0);
    assert_int_equal(r.table[find(&r, "h.1.mlp.c_fc.x")].dtype, MEZZO_F8E4M3);
    assert_int_equal(r.table[find(&r, "h.1.mlp.c_fc.w")].dtype, MEZZO_F8E4M3);
    assert_int_equal(r.table[find(&r, "h.1.mlp.c_fc.dy")].dtype, MEZZO_F8E5M2);
    close_run(&r);
}

// --- what leaves no trace ------------------------------------------------------------------------------------------
static void an_evaluation_leaves_the_table_alone(void **state) {
    (void)state;
    run r;
    open_run(&r);
    for (int s = 0; s < 3; s++)
        take_step(&r, (uint64_t)s);
    read_table(&r);
    run before = r;
    for (uint64_t i = 0; i < 3; i++) {
        ok(fill(NULL, r.forward, 100 + i));
        ok(mezzo_program_run(r.forward, NULL, 3, i));
    }
    read_table(&r);
    assert_int_equal(r.n, before.n);
    assert_memory_equal(r.table, before.table, (size_t)r.n * sizeof *r.table);
    close_run(&r);
}

static void a_skipped_step_leaves_no_trace(void **state) {
    (void)state;
    run r;
    mezzo_step_report report;
    open_run(&r);
    for (int s = 0; s < 3; s++)
        take_step(&r, (uint64_t)s);
    read_table(&r);
    run before = r;
    const int weight = mezzo_params_find(r.params, "h.0.mlp.c_fc.weight");
    assert_true(weight >= 0);
    float *good = calloc(64 * 32, sizeof *good), *bad = calloc(64 * 32, sizeof *bad);
    ok(mezzo_params_read(r.params, weight, good));
    memcpy(bad, good, 64 * 32 * sizeof *bad);
    bad[100] = NAN;
    ok(mezzo_params_write(r.params, weight, bad));
    take_step(&r, 3);
    ok(mezzo_step_read(r.step, true, &report));
    assert_true(report.found_inf);
    read_table(&r);
    assert_memory_equal(r.table, before.table, (size_t)r.n * sizeof *r.table);
    ok(mezzo_params_write(r.params, weight, good));
    take_step(&r, 3);
    read_table(&r);
    assert_int_equal(r.table[0].n, before.table[0].n + 1);
    free(good);
    free(bad);
    close_run(&r);
}

static void a_dropped_step_leaves_no_trace(void **state) {
    (void)state;
    run r;
    open_run(&r);
    take_step(&r, 0);
    read_table(&r);
    run before = r;
    ok(fill(NULL, r.program, 50));
    ok(mezzo_step_micro(r.step, 3, 50));
    ok(mezzo_step_drop(r.step));
    read_table(&r);
    assert_memory_equal(r.table, before.table, (size_t)r.n * sizeof *r.table);
    close_run(&r);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_one_entry_of_each_history),
        cmocka_unit_test(an_evaluation_leaves_the_table_alone),
        cmocka_unit_test(a_skipped_step_leaves_no_trace),
        cmocka_unit_test(a_dropped_step_leaves_no_trace),
    };
    if (!test_device_opens())
        return TEST_SKIPPED;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
