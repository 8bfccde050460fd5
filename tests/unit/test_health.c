// Jumps of the loss and the verdict on a run, each rule at its edge. Seen to fail with the NaN kept in the window, and
// with a mean and standard deviation in place of median and MAD.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "test.h"
#include "train/health.h"

static float noise(uint64_t i) { // N(0, 1), seeded
    uint32_t words[4];
    float z[4];
    mz_philox((mz_philox_key){.seed = 7}, i / 4, words);
    mz_normal4(words, z);
    return z[i % 4];
}

static double loss_at(int64_t step) { // falls, with noise of 0.02
    return 2 + 2 * exp(-(double)step / 200) + 0.02 * (double)noise((uint64_t)step);
}

TEST(test_a_jump_is_seen_and_noise_is_not) {
    mz_spikes s;
    assert_int_equal(mz_spikes_create(64, &s), MEZZO_OK);
    for (int64_t step = 0; step < 5000; step++)
        assert_true(mz_spikes_see(&s, loss_at(step), 8) < 8);
    assert_true(mz_spikes_see(&s, 2 + 0.02 * 12, 8) >= 8);
    assert_true(mz_spikes_see(&s, loss_at(5001), 8) < 8);
    mz_spikes_free(&s);
}

// NaN and infinity score as jumps, and leave the window as it was: what follows is scored as if they had not been.
TEST(test_nan_does_not_blind) {
    mz_spikes a, b;
    assert_int_equal(mz_spikes_create(64, &a), MEZZO_OK);
    assert_int_equal(mz_spikes_create(64, &b), MEZZO_OK);
    for (int64_t step = 0; step < 100; step++) {
        assert_true(mz_spikes_see(&a, loss_at(step), 8) == mz_spikes_see(&b, loss_at(step), 8));
        assert_true(isinf(mz_spikes_see(&b, step % 2 ? (double)NAN : (double)INFINITY, 8)));
    }
    double jump = mz_spikes_see(&b, 9, 8);
    assert_true(jump >= 8 && jump == mz_spikes_see(&a, 9, 8));
    // A third of the window far away: a standard deviation would hide the next jump after them.
    mz_spikes_forget(&a);
    for (int i = 0; i < 64; i++)
        mz_spikes_see(&a, i % 3 == 0 ? 50 + i : 2 + 0.02 * (double)noise((uint64_t)i), 1e9);
    assert_true(mz_spikes_see(&a, 3, 8) >= 8);
    mz_spikes_free(&a);
    mz_spikes_free(&b);
}

// A level that stays is no jump for ever.
TEST(test_a_new_level_is_learnt) {
    mz_spikes s;
    int jumps = 0;
    assert_int_equal(mz_spikes_create(32, &s), MEZZO_OK);
    for (int64_t step = 0; step < 100; step++)
        mz_spikes_see(&s, 2 + 0.02 * (double)noise((uint64_t)step), 8);
    for (int64_t step = 100; step < 200; step++)
        jumps += mz_spikes_see(&s, 4 + 0.02 * (double)noise((uint64_t)step), 8) >= 8;
    assert_int_equal(jumps, 16); // half of the window
    mz_spikes_free(&s);
}

// --- verdicts ------------------------------------------------------------------------------------------------------
typedef double value_fn(int64_t step);
static double none(int64_t step) {
    (void)step;
    return 0;
}
static double one(int64_t step) {
    (void)step;
    return 1;
}

static bool verdict_after(int64_t steps, value_fn *loss, value_fn *scale, value_fn *skipped, double underflow,
                          bool scaling, char line[512]) {
    mz_health h;
    assert_int_equal(mz_health_begin(&h), MEZZO_OK);
    for (int64_t step = 10; step <= steps; step += 10)
        mz_health_add(&h, &(mz_health_row){.step = step,
                                           .loss = loss(step),
                                           .val_loss = (double)NAN,
                                           .scale = scale(step),
                                           .skipped = skipped(step),
                                           .underflow = underflow,
                                           .has_loss = true,
                                           .scaling = scaling});
    bool healthy = mz_health_verdict(&h, line, 512);
    mz_health_end(&h);
    assert_true(strncmp(line, healthy ? "healthy: " : "not healthy: ", healthy ? 9 : 13) == 0);
    assert_null(strchr(line, '\n'));
    return healthy;
}

static bool verdict(value_fn *loss, value_fn *scale, value_fn *skipped, double underflow, bool scaling,
                    char line[512]) {
    return verdict_after(2000, loss, scale, skipped, underflow, scaling, line);
}

// `n` reports of losses that go from `first` to `last` in a straight line, with a ripple.
// lr: of the last report, where that of the others is 1.
static bool learned_at(double lr, int64_t n, double first, double last, double ripple, double chance, char line[512]) {
    mz_health h;
    assert_int_equal(mz_health_begin(&h), MEZZO_OK);
    mz_health_add(&h, &(mz_health_row){.chance = chance});
    for (int64_t i = 0; i < n; i++)
        mz_health_add(&h, &(mz_health_row){.step = 10 * i + 1,
                                           .loss = first + (last - first) * (double)i / (double)(n > 1 ? n - 1 : 1) +
                                                   ripple * (i % 2 ? 1 : -1) * (i > 0),
                                           .scale = 1,
                                           .lr = i + 1 < n ? 1 : lr,
                                           .has_loss = true});
    const bool healthy = mz_health_verdict(&h, line, 512);
    mz_health_end(&h);
    return healthy;
}

static bool learned(int64_t n, double first, double last, double ripple, double chance, char line[512]) {
    return learned_at(1, n, first, last, ripple, chance, line);
}

TEST(test_a_run_that_learns_nothing_is_not_healthy) {
    char line[512];
    const double chance = 4.174;
    assert_true(learned(64, 4.2, 2.5, 0.02, chance, line));
    assert_null(strstr(line, "cannot tell"));
    assert_false(learned(64, 4.3, 4.2, 0.02, chance, line)); // fell, and is where a uniform guess is
    assert_non_null(strstr(line, "no better than guessing"));
    assert_true(learned(64, 4.3, 4.2, 0.02, (double)NAN, line));  // where that is not known it fell
    assert_true(learned_at(2, 64, 4.3, 4.2, 0.02, chance, line)); // the warm-up is not over
    assert_non_null(strstr(line, "the learning rate still rises"));
    assert_false(learned(64, 2.0, 2.0, 0.02, chance, line));
    assert_non_null(strstr(line, "has not fallen"));
    assert_false(learned(64, 2.0, 3.0, 0.02, chance, line));
    assert_non_null(strstr(line, "lower --lr"));
    assert_true(learned(16, 2.0, 2.02, 0.1, chance, line)); // few reports: within their noise
    assert_false(learned(16, 2.0, 3.5, 0.01, chance, line));
    assert_true(learned(3, 4.20, 4.19, 0, chance, line)); // three tell nothing, and the line says so
    assert_non_null(strstr(line, "3 reports of the loss cannot tell whether it learns"));
    assert_false(learned(3, 4.2, 12, 0, chance, line)); // but this
    assert_non_null(strstr(line, "above where it began"));
    assert_true(learned(3, 0.2, 0.25, 0, chance, line)); // a fine-tuned model's batches differ
}

TEST(test_a_validation_that_is_no_number_is_not_healthy) {
    mz_health h;
    char line[512];
    assert_int_equal(mz_health_begin(&h), MEZZO_OK);
    mz_health_add(&h, &(mz_health_row){.step = 1, .loss = 2, .scale = 1, .has_loss = true});
    mz_health_add(&h, &(mz_health_row){.step = 1, .val_loss = (double)NAN, .has_val = true});
    assert_false(mz_health_verdict(&h, line, sizeof line));
    assert_non_null(strstr(line, "validation"));
    mz_health_add(&h, &(mz_health_row){.step = 2, .val_loss = 1.5, .has_val = true});
    assert_true(mz_health_verdict(&h, line, sizeof line));
    mz_health_end(&h);
}

static double nan_at_the_end(int64_t step) {
    return step > 1980 ? (double)NAN : loss_at(step);
}
static double one_nan(int64_t step) {
    return step == 1990 ? (double)NAN : loss_at(step);
}
static double rising(int64_t step) {
    return loss_at(step) + (step > 1500 ? (double)(step - 1500) / 500 : 0);
}
static double erratic(int64_t step) {
    return loss_at(step) + (step % 200 == 100 ? 3 : 0);
}
static double big_scale(int64_t step) {
    (void)step;
    return 65536;
}
static double collapsed(int64_t step) {
    return step < 1500 ? 65536 : 8;
}
static double fallen(int64_t step) {
    return step < 1500 ? 1 << 24 : 1 << 14;
}
static double ten_in_a_thousand(int64_t step) {
    return floor((double)(step - 100) / 100);
}
static double twelve_in_a_thousand(int64_t step) {
    return floor(1.2 * (double)(step - 100) / 100);
}
static double at_the_start(int64_t step) { // the scale's search
    return step < 100 ? (double)step / 10 : 10;
}

TEST(test_verdicts) {
    static const struct {
        value_fn *loss, *scale, *skipped;
        double underflow;
        bool scaling;
        const char *says; // NULL: healthy
    } rows[] = {
        {loss_at, one, none, NAN, false, NULL},
        {one_nan, one, none, NAN, false, NULL},
        {nan_at_the_end, one, none, NAN, false, "not finite in 2 of the last 10"},
        {rising, one, none, NAN, false, "rising"},
        {erratic, one, none, NAN, false, "erratic"},
        {loss_at, big_scale, at_the_start, 0.04, true, NULL},
        {loss_at, big_scale, none, 0.06, true, "6% of the fp16 gradients underflow"},
        {loss_at, collapsed, none, 0, true, "collapsed to 8"},
        {loss_at, fallen, none, 0, true, "collapsed to 16384"},
        {loss_at, big_scale, ten_in_a_thousand, 0, true, NULL},
        {loss_at, big_scale, twelve_in_a_thousand, 0, true, "12 steps in a thousand are skipped: real overflow"},
        {loss_at, one, twelve_in_a_thousand, NAN, false, "12 steps in a thousand are skipped: lower --lr"},
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        char line[512];
        bool healthy = verdict(rows[i].loss, rows[i].scale, rows[i].skipped, rows[i].underflow, rows[i].scaling, line);
        if (healthy != (rows[i].says == NULL) || (rows[i].says != NULL && strstr(line, rows[i].says) == NULL))
            fail_msg("row %zu: %s", i, line);
    }
}

// A tensor that saturates: named, with what to do; told by a run and by its file alike.
TEST(test_a_saturated_tensor_is_named) {
    static const char text[] =
        "{\"step\": 300, \"train/loss\": 2.5, \"amp/loss_scale\": 1, \"fp8/most_saturated_share\": %g, "
        "\"fp8/most_saturated\": \"h.3.mlp.c_fc.dy\"}\n";
    for (int much = 0; much < 2; much++) {
        char line[2][512];
        bool healthy[2];
        mz_health h;
        mz_health_row r = {.step = 300,
                           .loss = 2.5,
                           .val_loss = (double)NAN,
                           .underflow = (double)NAN,
                           .scale = 1,
                           .saturated = much ? 0.11 : 0.1,
                           .has_loss = true};
        snprintf(r.tensor, sizeof r.tensor, "h.3.mlp.c_fc.dy");
        assert_int_equal(mz_health_begin(&h), MEZZO_OK);
        mz_health_add(&h, &r);
        healthy[0] = mz_health_verdict(&h, line[0], sizeof line[0]);
        mz_health_end(&h);
        FILE *f = fopen("metrics.jsonl", "w");
        assert_non_null(f);
        fprintf(f, text, r.saturated);
        fclose(f);
        assert_int_equal(mz_health_begin(&h), MEZZO_OK);
        assert_int_equal(mz_health_read(&h, "."), MEZZO_OK);
        healthy[1] = mz_health_verdict(&h, line[1], sizeof line[1]);
        mz_health_end(&h);
        assert_string_equal(line[0], line[1]);
        assert_true(healthy[0] == !much && healthy[1] == !much);
        assert_true(!much || strstr(line[0], "not healthy: h.3.mlp.c_fc.dy saturates in 11% of the steps: use "
                                             "--autocast.h.3.mlp.c_fc bf16") != NULL);
        remove("metrics.jsonl");
    }
}

// metrics.jsonl has the underflow in a row of its own; a run told it to its verdict with the loss.
TEST(test_underflow_is_read_back) {
    char line[512];
    mz_health h;
    FILE *f = fopen("metrics.jsonl", "w");
    assert_non_null(f);
    fputs("{\"step\": 300, \"train/loss\": 2.5, \"amp/loss_scale\": 1024}\n"
          "{\"step\": 300, \"amp/underflow_share\": 0.06}\n{\"step\": 300, \"val/loss\": 2.5}\n",
          f);
    fclose(f);
    assert_int_equal(mz_health_begin(&h), MEZZO_OK);
    assert_int_equal(mz_health_read(&h, "."), MEZZO_OK);
    assert_false(mz_health_verdict(&h, line, sizeof line));
    assert_non_null(strstr(line, "6% of the fp16 gradients underflow"));
    mz_health_end(&h);
    remove("metrics.jsonl");
}

// A short run whose scale still looks for its place is healthy, and the line says what its skips were.
TEST(test_skips_of_the_search_are_told) {
    char line[512];
    assert_true(verdict_after(60, loss_at, big_scale, at_the_start, 0, true, line));
    assert_non_null(strstr(line, "5 skips in the last 50 steps while the loss scale settled"));
    assert_true(verdict_after(2000, loss_at, big_scale, ten_in_a_thousand, 0, true, line));
    assert_null(strstr(line, "settled"));
}

// Of a short run one skip or two are more than ten in a thousand, and a loss scale's ordinary way.
static double one_late(int64_t step) {
    return step >= 120;
}
static double three_late(int64_t step) {
    return step >= 120 ? 3 : 0;
}

TEST(test_one_skip_is_no_illness_of_a_scale) {
    char line[512];
    assert_true(verdict_after(150, loss_at, big_scale, one_late, 0, true, line));
    assert_non_null(strstr(line, ", 1 skip in the last 140 steps"));
    assert_false(verdict_after(150, loss_at, big_scale, three_late, 0, true, line));
    assert_non_null(strstr(line, "60 steps in a thousand are skipped"));
    assert_false(verdict_after(150, loss_at, one, one_late, NAN, false, line)); // without one something is wrong
}

// All skips of a run whose first row is its first step count, that step's too.
TEST(test_the_first_steps_skip_counts) {
    char line[512];
    mz_health h;
    assert_int_equal(mz_health_begin(&h), MEZZO_OK);
    for (int64_t step = 1; step <= 20; step++)
        mz_health_add(&h, &(mz_health_row){.step = step,
                                           .loss = 4,
                                           .val_loss = (double)NAN,
                                           .scale = 65536,
                                           .skipped = step < 20 ? (double)step : 19,
                                           .has_loss = true,
                                           .scaling = true});
    assert_true(mz_health_verdict(&h, line, sizeof line));
    assert_non_null(strstr(line, "19 skips in the last 20 steps"));
    mz_health_end(&h);
}
