// Two runs that differ in their precision only, and what is concluded from them.
// Seen to fail with: the candidate's loader one batch ahead; parameters drawn from the precision's number; validation
// in fp32 for both; an interval that is not looked at; a normal quantile instead of Student's.
#include "io/json.h"
#include "study/measure/verify.h"
#include "tiny_run.h"
#include "train/run.h"

// Of so many tokens that kernels' workspace, which a processor's level decides, is a small part of a step's memory.
enum { BATCH = 16, LENGTH = 8 };

static mezzo_config *config_of(const char *const *args) {
    static const char *const tiny[] = {"--layers=2",      "--heads=2",      "--d-model=16",     "--seq-len=8",
                                       "--batch-size=16", "--device=cpu",   "--threads=1",      "--warmup=4",
                                       TINY_DATA,         "--eval-iters=0", "--precision=bf16", "--steps=30",
                                       "--grad-accum=2",  "--lr=0.01"};
    const char *rest[8];
    int n = 0, given = 0;
    mezzo_config *config;
    tiny_text();
    must(mezzo_config_create(&config));
    must(mezzo_config_args(config, (int)MZ_COUNT(tiny), tiny, rest, &n));
    while (args != NULL && args[given] != NULL)
        given++;
    must(mezzo_config_args(config, given, args, rest, &n));
    return config;
}

static mz_verify_options options_of(mezzo_config *config, int seeds) {
    return (mz_verify_options){.config = config,
                               .seeds = seeds,
                               .least_speedup = 0,
                               .least_memory_percent = 1,
                               .most_accuracy_difference = 0.5,
                               .level = 0.95};
}

static mz_measured about(double low, double value, double high) {
    return (mz_measured){value, {low, high}};
}

TEST(test_verdicts) {
    mz_measured m = about(1.4, 1.6, 1.8);
    assert_int_equal(mz_judge_least(&m, 1.39), MZ_VERDICT_MET);
    assert_int_equal(mz_judge_least(&m, 1.5), MZ_VERDICT_OPEN); // the value is above, the interval is not
    assert_int_equal(mz_judge_least(&m, 1.9), MZ_VERDICT_FAILED);
    m = about(1.5, 1.5, 1.5); // one seed: the value decides, and the threshold itself is enough
    assert_int_equal(mz_judge_least(&m, 1.5), MZ_VERDICT_MET);
    m = about(-0.004, 0.001, 0.006);
    assert_int_equal(mz_judge_within(&m, 0.01), MZ_VERDICT_MET);
    assert_int_equal(mz_judge_within(&m, 0.005), MZ_VERDICT_OPEN);
    m = about(-0.03, -0.02, -0.011);
    assert_int_equal(mz_judge_within(&m, 0.01), MZ_VERDICT_FAILED);
    m = about(-0.02, -0.02, -0.02);
    assert_int_equal(mz_judge_within(&m, 0.02), MZ_VERDICT_FAILED); // less than, not at
    m = about(NAN, NAN, NAN);
    assert_int_equal(mz_judge_least(&m, 0), MZ_VERDICT_FAILED);
    assert_int_equal(mz_judge_within(&m, 1), MZ_VERDICT_FAILED);
    // Ratios are averaged as logarithms: 2 and 1/2 are 1 in the mean.
    const double ratios[] = {2, 0.5}, equal[] = {3, 3, 3};
    m = mz_measure_ratio(ratios, 2, 0.95);
    assert_true(fabs(m.value - 1) < 1e-12 && m.interval.low < 0.01 && m.interval.high > 100);
    m = mz_measure_mean(equal, 3, 0.95);
    assert_true(m.interval.low == 3 && m.interval.high == 3);
}

// What the loader gives, asked of it directly.
static uint32_t drawn_crc(const mezzo_config *config, uint64_t seed, uint64_t batches) {
    enum { COUNT = BATCH * LENGTH };
    mezzo_corpus *corpus;
    mezzo_loader *loader;
    int32_t rows[2][COUNT];
    uint32_t crc = 0;
    const mezzo_corpus_options c = {.path = mezzo_config_get(config, "data.path")};
    must(mezzo_corpus_open(&c, &corpus));
    const mezzo_loader_options l = {.split = MEZZO_TRAIN,
                                    .order = MEZZO_LOADER_RANDOM,
                                    .batch = BATCH,
                                    .length = LENGTH,
                                    .seed = mezzo_seed(seed, MEZZO_SEED_DATA),
                                    .stream = (uint32_t)MEZZO_TRAIN};
    must(mezzo_loader_create(corpus, &l, &loader));
    for (uint64_t k = 0; k < batches; k++) {
        must(mezzo_loader_batch(loader, k, rows[0], rows[1]));
        crc = mz_crc32c(crc, rows, sizeof rows);
    }
    mezzo_loader_free(loader);
    mezzo_corpus_free(corpus);
    return crc;
}

TEST(test_same_batches) {
    mezzo_config *config = config_of(NULL);
    mz_verify_options o = options_of(config, 2);
    static mz_verify_result r;
    must(mz_verify(&o, NULL, NULL, &r));
    assert_int_equal(r.n, 2);
    assert_true(r.same && mz_verify_passed(&r));
    for (size_t i = 0; i < 2; i++) {
        const mz_verify_run *a = &r.pairs[i].run[0], *b = &r.pairs[i].run[1];
        assert_int_equal(r.pairs[i].seed, 1 + i);
        assert_int_equal(a->data_crc, b->data_crc);
        assert_int_equal(a->data_crc, drawn_crc(config, 1 + i, 60)); // 30 steps of 2
        assert_int_equal(a->weights_crc, b->weights_crc);
        assert_true(a->val_loss != b->val_loss); // they are two precisions
        assert_true(fabs(a->val_loss - b->val_loss) < 0.05);
        assert_true(a->accuracy > 0.05 && a->accuracy < 1);
        assert_true(b->activations < a->activations && b->memory < a->memory);
    }
    assert_int_not_equal(r.pairs[0].run[0].data_crc, r.pairs[1].run[0].data_crc);
    assert_int_not_equal(r.pairs[0].run[0].weights_crc, r.pairs[1].run[0].weights_crc);
    json_t *json = mz_verify_json(&o, &r);
    assert_non_null(json);
    assert_true(json_is_true(json_object_get(json_object_get(json, "requirements_met"), "all")));
    json_decref(json);
    mz_verify_free(&r);
    mezzo_config_free(config);
}

// The runs are those of mezzo train, bit for bit: same validation loss at the end, in both precisions.
TEST(test_is_training) {
    mezzo_config *config = config_of(NULL);
    mz_verify_options o = options_of(config, 1);
    static mz_verify_result r;
    static const char *const precisions[] = {"fp32", "bf16"};
    must(mz_verify(&o, NULL, NULL, &r));
    for (size_t i = 0; i < 2; i++) {
        mezzo_train_result trained;
        must(mezzo_config_set(config, "amp.precision", precisions[i], "test"));
        must(mezzo_config_set(config, "train.seed", "1", "test"));
        must(mezzo_config_set(config, "train.checkpoint_every", "-1", "test"));
        must(mezzo_config_set(config, "train.out", "verified", "test"));
        tiny_clean("verified");
        must(mezzo_run_train(config, NULL, &trained));
        assert_true(trained.val_loss == r.pairs[0].run[i].val_loss);
    }
    tiny_clean("verified");
    mz_verify_free(&r);
    mezzo_config_free(config);
}

TEST(test_scale) { // from 2^120 the scale must come down, and every step of that is skipped and told
    static const char *const args[] = {"--precision=fp16", "--init-scale=1329227995784915872903807060280344576",
                                       "--max-skips=0", "--steps=150", NULL};
    mezzo_config *config = config_of(args);
    mz_verify_options o = options_of(config, 1);
    static mz_verify_result r;
    must(mz_verify(&o, NULL, NULL, &r));
    const mz_verify_run *b = &r.pairs[0].run[1];
    assert_true(b->skipped > 50);
    assert_int_equal(b->n_changes, b->skipped + 1);
    assert_int_equal(b->changes[0].step, 1);
    for (size_t i = 1; i < b->n_changes; i++)
        assert_true(b->changes[i].scale == b->changes[i - 1].scale / 2 && b->changes[i].step > b->changes[i - 1].step);
    assert_true(b->loss_scale == b->changes[b->n_changes - 1].scale && b->loss_scale <= 1e9);
    assert_int_equal(r.pairs[0].run[0].skipped, 0);
    assert_true(r.pairs[0].run[0].n_changes == 0 && r.pairs[0].run[0].loss_scale == 1);
    mz_verify_free(&r);
    mezzo_config_free(config);
}

static void refused(const char *const *args, int seeds, const char *words) {
    mezzo_config *config = config_of(args);
    mz_verify_options o = options_of(config, seeds);
    static mz_verify_result r;
    must_fail(mz_verify(&o, NULL, NULL, &r), MEZZO_ERR_INVALID, words);
    mz_verify_free(&r);
    mezzo_config_free(config);
}

TEST(test_refuses) {
    static const char *const fp32[] = {"--precision=fp32", NULL};
    static const char *const lowered[] = {"--autocast.h.0*=bf16", NULL};
    refused(fp32, 1, "nothing to compare");
    refused(lowered, 1, "autocast.h.0*");
    refused(NULL, 0, "seeds");
}
