// What a run says of itself beside numbers made by hand: model FLOPs, their share of the peak, energy a token.
// Seen to fail with: attention's scores counted twice in backward, a frozen matrix' gradient counted, the wrap left
// out, the last validation left out of the time that is left.
#include "tiny_run.h"

#include "train/run.h"

enum { LAYERS = 2, WIDTH = 16, LENGTH = 8, BATCH = 3, ACCUMULATED = 2 };

typedef struct seen {
    double mfu, tflops, step_ms, tokens_per_second, wait_ms, left;
    int n;
} seen;

static void watch(void *user, const mezzo_progress *p) {
    seen *s = user;
    if (p->event != MEZZO_EVENT_STEP || isnan(p->step_ms))
        return;
    *s = (seen){p->mfu, p->model_tflops, p->step_ms, p->tokens_per_second, p->wait_ms, p->seconds_left, s->n + 1};
    assert_true(isnan(p->joules_per_token) || p->joules_per_token > 0);
}

static mezzo_config *tiny_config(const char *more) {
    const char *const keys[][2] = {
        {"layers", "2"},     {"heads", "2"},        {"d-model", "16"},          {"seq-len", "8"},
        {"batch-size", "3"}, {"grad-accum", "2"},   {"threads", "1"},           {"data", TINY_TEXT},
        {"eval-every", "0"}, {"eval-iters", "1"},   {"eval-final", "false"},    {"sample-every", "-1"},
        {"log-every", "2"},  {"precision", "fp32"}, {"checkpoint-every", "-1"}, {"steps", "6"},
        {"out", "rates"},    {"freeze", more},      {"peak-tflops", "0.5"}};
    mezzo_config *config;
    must(mezzo_config_create(&config));
    for (size_t i = 0; i < MZ_COUNT(keys); i++)
        must(mezzo_config_set(config, keys[i][0], keys[i][1], "test"));
    must(mezzo_config_set(config, "device", test_device(), "test"));
    return config;
}

// A multiply-add is two. Forward: products with 12 d² weights a block and d·V at the head for every token; attention,
// two products of d for every pair of a query and a key that it sees. Backward: twice as much.
static double by_hand(int64_t vocab, bool frozen) {
    double tokens = BATCH * LENGTH, block = 12.0 * WIDTH * WIDTH, head = (double)WIDTH * (double)vocab;
    double pairs = LENGTH * (LENGTH + 1) / 2.0;
    double products = 2 * tokens * (LAYERS * block + head), attention = LAYERS * BATCH * 2 * 2 * pairs * WIDTH;
    double less = frozen ? 2 * tokens * 4.0 * WIDTH * WIDTH : 0; // one matrix' own gradient
    return ACCUMULATED * (3 * (products + attention) - less);
}

static void check(const char *freeze) {
    mezzo_config *config = tiny_config(freeze);
    mz_training run;
    seen s = {0};
    const mezzo_hooks hooks = {.progress = watch, .user = &s};
    mezzo_train_result result;
    must(mz_run_open(config, &hooks, &run));
    double flops = by_hand(run.engine.plan.model.config.vocab, freeze[0] != '\0');
    assert_true(run.report.rates.flops == flops);
    assert_true(run.report.rates.peak == 0.5e12);
    mz_run_close(&run);
    tiny_clean("rates");
    must(mezzo_run_train(config, &hooks, &result));
    assert_true(s.n >= 3);
    assert_true(fabs(s.mfu / (flops / (s.step_ms * 1e-3) / 0.5e12) - 1) < 1e-12);
    assert_true(fabs(s.tflops / (flops / (s.step_ms * 1e-3) * 1e-12) - 1) < 1e-12);
    assert_true(s.wait_ms > 0 || strcmp(test_device(), "cpu") != 0); // on a CPU a batch is drawn while nothing computes
    double tokens = 6.0 * BATCH * LENGTH * ACCUMULATED, seconds = tokens / result.tokens_per_second;
    assert_true(fabs(result.mfu / (6 * flops / seconds / 0.5e12) - 1) < 1e-9);
    assert_true(result.wait_share >= 0 && result.wait_share < 1);
    assert_true(s.left > 0); // after the last step its validation is still to come
    mezzo_config_free(config);
}

// Two rows of 8 tokens: documents of 3 and 5, and one of 8; 6 + 15 + 36 of 2 x 36 pairs.
TEST(test_documents) {
    int32_t at[] = {0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6, 7};
    const mz_input positions = {.rank = 2, .dim = {2, 8}, .bytes = sizeof at, .data = at};
    mz_rates rates = {.flops = 1000, .attention = 360};
    assert_true(mz_rates_flops(&rates) == 1000);
    mz_rates_count(&rates, &positions);
    assert_true(fabs(mz_rates_flops(&rates) - (640 + 360 * 57.0 / 72)) < 1e-9);
}

// Rows of records that fill them count less than the same rows of one document each.
TEST(test_packed_rows) {
    static const char record[] = "{\"prompt\": \"a\", \"completion\": \"b\"}\n"; // 3 tokens
    mz_text records = {0};
    for (int i = 0; i < 40; i++)
        mz_text_add(&records, record, sizeof record - 1);
    must(mz_file_write_atomic("records.jsonl", records.data, records.len));
    mz_text_free(&records);
    mezzo_config *config = tiny_config("");
    must(mezzo_config_set(config, "data", "records.jsonl", "test"));
    must(mezzo_config_set(config, "tokenizer", "byte", "test"));
    must(mezzo_config_set(config, "pack", "true", "test"));
    seen s = {0};
    const mezzo_hooks hooks = {.progress = watch, .user = &s};
    mezzo_train_result result;
    tiny_clean("rates");
    must(mezzo_run_train(config, &hooks, &result));
    const double flops = s.tflops * 1e12 * s.step_ms * 1e-3, whole = by_hand(256, false);
    const double attention = ACCUMULATED * 3.0 * LAYERS * BATCH * 4 * (LENGTH * (LENGTH + 1) / 2.0) * WIDTH;
    assert_true(flops < whole && flops > whole - attention);
    mezzo_config_free(config);
}

TEST(test_mfu) {
    check("");
}

// The last block's first MLP matrix is 4 d × d, and what comes before it is trained.
TEST(test_frozen_weights_cost_no_gradient) {
    check("h.1.mlp.c_fc.weight");
}

TEST(test_data_sheets) {
    mezzo_device *cpu;
    double peak;
    must(mezzo_device_open("cpu", 1, &cpu));
    must(mz_peak_flops(cpu, "NVIDIA H100 80GB HBM3 (compute capability 9.0, 132 multiprocessors)", MEZZO_BF16, 0,
                       &peak));
    assert_true(peak == 989.4e12);
    must(mz_peak_flops(cpu, "NVIDIA H100 PCIe (compute capability 9.0)", MEZZO_BF16, 0, &peak));
    assert_true(peak == 756e12);
    must(mz_peak_flops(cpu, "NVIDIA A100-SXM4-80GB (compute capability 8.0)", MEZZO_TF32, 0, &peak));
    assert_true(peak == 156e12);
    must(mz_peak_flops(cpu, "AMD EPYC (avx2), 2 threads", MEZZO_F32, 0, &peak));
    assert_true(peak == 0);
    must(mz_peak_flops(cpu, "anything", MEZZO_F32, 3, &peak));
    assert_true(peak == 3e12);
    must(mz_peak_flops(cpu, "anything", MEZZO_F32, -1, &peak));
    assert_true(isfinite(peak) && peak > 0); // measured, however slow the machine
    mezzo_device_close(cpu);
}

TEST(test_energy) {
    mz_energy_meter m = {.each = (double)NAN};
    mz_energy_add(&m, (double)NAN, 0, 1, 0);
    assert_false(m.open);
    mz_energy_add(&m, 100, 1000, 10, 0);      // the window opens
    mz_energy_add(&m, 120, 1000, 10.5, 1000); // too short for a counter that jumps
    assert_true(isnan(m.each));
    mz_energy_add(&m, 160, 1000, 11.5, 3000);
    assert_true(fabs(m.each - 60.0 / 3000) < 1e-15);
    mz_energy_begin(&m); // a validation
    mz_energy_add(&m, 900, 1000, 20, 3000);
    mz_energy_add(&m, 50, 1000, 22, 4000); // past the counter's end
    assert_true(fabs(m.each - 150.0 / 1000) < 1e-15);
    assert_true(fabs(m.sum_joules - 210) < 1e-12 && m.sum_items == 4000);
}

// Once, of a whole window, and of no window that computed for half of it.
TEST(test_cores) {
    mz_core_meter m = {0};
    for (int i = 0; i < 10; i++)
        assert_false(mz_cores_lost(&m, 1, 0.5)); // two whole windows
    assert_false(mz_cores_lost(&m, 4.5, 0.1));
    assert_true(mz_cores_lost(&m, 0.5, 0.4));
    assert_true(m.seconds == 5 && m.cpu == 0.5);
    assert_false(mz_cores_lost(&m, 100, 0));
}

TEST_GROUP(tiny_setup, NULL)
