// What a step did, read one step late as on a GPU: the same reports, one step behind, and the last one when everything
// is asked for. Broken on purpose to see it fail: one fetch slot for every step's state, the loss summed under the
// wrong step.
#include "tiny_run.h"
#include "train/run.h"

static mezzo_config *config_of(const char *grad_accum) {
    static const char *const settings[][2] = {{"model.layers", "2"},           {"model.heads", "2"},
                                              {"model.d_model", "16"},         {"model.seq_len", "8"},
                                              {"train.batch_size", "3"},       {"run.device", "cpu"},
                                              {"data.path", TINY_TEXT},        {"train.out", "readout"},
                                              {"amp.precision", "fp16"},       {"train.sample_every", "-1"},
                                              {"train.checkpoint_every", "-1"}};
    mezzo_config *c;
    must(mezzo_config_create(&c));
    for (size_t i = 0; i < MZ_COUNT(settings); i++) {
        const char *key = settings[i][0];
        if (mezzo_config_get(c, key) == NULL)
            key = strchr(key, '.') + 1;
        must(mezzo_config_set(c, key, settings[i][1], "here"));
    }
    must(mezzo_config_set(c, "grad_accum", grad_accum, "here"));
    return c;
}

enum { STEPS = 9 };

// Reports of steps 1 … STEPS as they come in; [0] unused. The scale starts so high that the first steps overflow and
// are skipped.
static void reports(const char *grad_accum, int lag, mz_step_report out[STEPS + 1]) {
    mezzo_config *c = config_of(grad_accum);
    mz_training run;
    must(mezzo_config_set(c, "init_scale", "1e7", "here"));
    must(mz_run_open(c, NULL, &run));
    run.engine.readout.lag = lag;
    for (int step = 1; step <= STEPS; step++) {
        bool fresh, all = step == STEPS;
        must(mz_run_step(&run));
        must(mz_run_read_step(&run, all, &fresh));
        int64_t expected = all ? step : step - lag;
        assert_int_equal(fresh, expected >= 1);
        if (!fresh)
            continue;
        assert_int_equal(run.engine.readout.last.step, expected);
        out[expected] = run.engine.readout.last;
    }
    mz_run_close(&run);
    mezzo_config_free(c);
}

TEST(late_reports_are_the_same) {
    tiny_text();
    for (int i = 0; i < 2; i++) {
        const char *grad_accum = i == 0 ? "1" : "6"; // more micro batches than there are slots for losses
        mz_step_report now[STEPS + 1] = {0}, late[STEPS + 1] = {0};
        reports(grad_accum, 0, now);
        reports(grad_accum, 1, late);
        int skipped = 0;
        for (int step = 1; step <= STEPS; step++) {
            if (step == STEPS - 1) // asked for everything, the loop is given the very last step only
                continue;
            assert_true(now[step].loss == late[step].loss);
            assert_true(now[step].scaler.scale == late[step].scaler.scale);
            assert_int_equal(now[step].state.step, late[step].state.step);
            assert_int_equal(now[step].state.last_found_inf, late[step].state.last_found_inf);
            assert_true(now[step].state.norm == late[step].state.norm || now[step].state.last_found_inf);
            skipped += now[step].state.last_found_inf;
        }
        assert_true(skipped > 0 && skipped < STEPS - 1);
    }
}

static int draws;
static const mz_task_kind *real;
static mezzo_status counted_draw(mz_source *source, uint64_t k) {
    draws++;
    return real->draw(source, k);
}

// Where batches differ in their targets, a step draws all of them to find their shares, and then its own but for the
// one that is still there.
static int draws_of_a_step(const char *grad_accum) {
    mezzo_config *c = config_of(grad_accum);
    mz_training run;
    mz_text t = {0};
    for (int i = 0; i < 40; i++)
        mz_text_addf(&t, "{\"prompt\": \"%d\", \"completion\": \"%d\"}\n", i, 3 * i * i);
    must(mz_file_write_atomic("pairs.jsonl", t.data, t.len));
    mz_text_free(&t);
    must(mezzo_config_set(c, "data.path", "pairs.jsonl", "here"));
    must(mezzo_config_set(c, "data.tokenizer", "byte", "here"));
    must(mz_run_open(c, NULL, &run));
    real = run.task->kind;
    mz_task_kind counting = *real;
    counting.draw = counted_draw;
    run.task->kind = &counting;
    for (int step = 1; step <= 3; step++) {
        draws = 0;
        must(mz_run_step(&run));
    }
    run.task->kind = real;
    mz_run_close(&run);
    mezzo_config_free(c);
    return draws;
}

TEST(a_batch_that_is_there_is_not_drawn_again) {
    assert_int_equal(draws_of_a_step("1"), 1);
    assert_int_equal(draws_of_a_step("3"), 5);
}
