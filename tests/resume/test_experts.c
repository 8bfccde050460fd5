// A mixture of experts trained: the same bits twice, with any number of threads, with recomputation, and broken off and
// resumed; the precisions agree; its metrics say how evenly it is used. Seen to fail with the loads counted from a
// wrong layer.
#include "tiny_run.h"

#define TINY_MOE                                                                                                       \
    "--model=glm4_moe", "--layers=3", "--heads=2", "--d-model=16", "--experts=4", "--kv-heads=1", "--qk-norm"

TEST(test_the_same_bits) {
    static const char *const precisions[] = {"--precision=fp32", "--precision=bf16", "--precision=fp16",
                                             "--precision=fp8"};
    for (size_t i = 0; i < MZ_COUNT(precisions); i++) {
        const char *plain[] = {TINY_MOE, "--steps=12", precisions[i], "--seq-len=32", "--grad-accum=2", NULL};
        const char *again[] = {TINY_MOE,         "--steps=12",  precisions[i], "--seq-len=32",
                               "--grad-accum=2", "--recompute", "--threads=2", NULL};
        tiny_runs_alike(plain, again);
    }
}

// 40 steps, and 20, a break, 20 more.
static void breaks_off(const char *precision) {
    tiny_log whole = {0}, first = {.stop_after = 20}, second = {0};
    mezzo_train_result result, half;
    char path[4096];
    const char *args[] = {TINY_MOE, "--steps=40", precision, NULL},
               *resume[] = {TINY_MOE, "--steps=40", precision, "--resume=auto", NULL};
    tiny_clean("whole");
    tiny_clean("broken");
    must(tiny_run("whole", args, &whole, &result));
    snprintf(path, sizeof path, "%s", result.checkpoint);
    assert_int_equal(tiny_run("broken", args, &first, &half), MEZZO_ERR_INTERRUPTED);
    must(tiny_run("broken", resume, &second, &result));
    tiny_same(path, result.checkpoint);
    const char *other[] = {TINY_MOE, "--steps=41", precision, "--resume=auto", "--experts-per-token=1", NULL};
    must_fail(tiny_run("broken", other, &second, &result), MEZZO_ERR_INVALID,
              "model.experts_per_token is 2, this run's is 1");
}

TEST(test_resume) {
    breaks_off("--precision=fp32");
    breaks_off("--precision=fp8");
}

// The first loss is the same model's on the same batch: rounding moves it by some 10⁻⁵ (24 tokens of 0.02-sized
// logits). Later a half-precision activation decides a near choice of experts differently and the runs part as two
// seeds do, whose means of the last 20 losses lie up to 0.1 apart here. A precision that lost an expert or a gradient
// would stay near the start.
TEST(test_precisions_agree) {
    static const char *const precisions[] = {"--precision=fp32", "--precision=bf16", "--precision=fp16"};
    double first[3], last[3];
    for (size_t i = 0; i < MZ_COUNT(precisions); i++) {
        tiny_log log = {0};
        mezzo_train_result result;
        const char *args[] = {TINY_MOE, "--steps=60", "--lr=1e-2", "--schedule=constant", precisions[i], NULL};
        tiny_clean("a");
        must(tiny_run("a", args, &log, &result));
        first[i] = log.loss[1];
        last[i] = 0;
        for (int s = 41; s <= 60; s++)
            last[i] += log.loss[s] / 20;
        assert_true(first[i] > 3.3 && last[i] < 2);
        assert_true(result.skipped <= 2);
    }
    assert_true(fabs(first[1] - first[0]) < 1e-3 && fabs(first[2] - first[0]) < 1e-3);
    assert_true(fabs(last[1] - last[0]) < 0.2 && fabs(last[2] - last[0]) < 0.2);
}

static double number_after(const char *text, const char *key) {
    const char *at = strstr(text, key);
    if (at == NULL)
        fail_msg("no %s in the metrics", key);
    return strtod(at + strlen(key), NULL);
}

TEST(test_metrics) {
    tiny_log seen = {0};
    mezzo_train_result result;
    char *data;
    size_t n;
    const char *args[] = {TINY_MOE, "--steps=3", NULL};
    tiny_clean("a");
    must(tiny_run("a", args, &seen, &result));
    must(mz_file_read("a/metrics.jsonl", 1 << 20, &data, &n));
    assert_true(number_after(data, "\"experts/dropped_tokens\": ") == 0);
    double entropy = number_after(data, "\"experts/load_entropy\": "), sums[2] = {0}, least = 1, most = 0, sum = 0;
    for (int i = 0; i < 8; i++) { // the first block of the three is dense
        char key[64];
        snprintf(key, sizeof key, "\"experts/layers.%d/load.%d\": ", 1 + i / 4, i % 4);
        double share = number_after(data, key);
        least = fmin(least, share);
        most = fmax(most, share);
        sums[i / 4] += share;
        sum -= share > 0 ? share * log(share) / (2 * log(4)) : 0;
    }
    assert_true(fabs(sums[0] - 1) < 1e-12 && fabs(sums[1] - 1) < 1e-12); // of 48 rows: 3 × 8 tokens, 2 experts each
    assert_true(fabs(entropy - sum) < 1e-12 && entropy > 0 && entropy <= 1);
    assert_true(number_after(data, "\"experts/load_min\": ") == least);
    assert_true(number_after(data, "\"experts/load_max\": ") == most && most <= 0.5); // a token passes an expert once
    mz_free(data);
}

TEST_GROUP(tiny_setup, NULL)
