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
