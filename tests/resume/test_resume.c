// What a user relies on: the same run twice, a run that was broken off and resumed, recomputation and thread counts
// give the same bits, in every precision. Seen to fail with the data position left out of a resume.
#include "tiny_run.h"

static void broken_off(const char *precision, const char *extra, int64_t least_skipped_before);

TEST(test_the_same_run_twice) {
    const char *args[] = {"--steps=20", "--precision=bf16", "--dropout=0.1", "--grad-accum=2", NULL};
    tiny_runs_alike(args, args);
}

TEST(test_another_seed_is_another_run) {
    tiny_log a = {0}, b = {0};
    mezzo_train_result result;
    tiny_clean("a");
    tiny_clean("b");
    must(tiny_run("a", (const char *const[]){"--steps=3", NULL}, &a, &result));
    must(tiny_run("b", (const char *const[]){"--steps=3", "--seed=2", NULL}, &b, &result));
    assert_true(a.loss[3] != b.loss[3]);
}

TEST(test_recompute_changes_nothing) {
    const char *off[] = {"--steps=12", "--precision=bf16", "--dropout=0.1", NULL};
    const char *on[] = {"--steps=12", "--precision=bf16", "--dropout=0.1", "--recompute", NULL};
    const char *light[] = {"--steps=12", "--precision=bf16", "--dropout=0.1", "--recompute-light", NULL};
    tiny_runs_alike(off, on);
    // Light recomputation applies GELU to its stored 16-bit input; cuBLASLt's epilogue had applied it to the FP32 sum,
    // so that gradients differ by that rounding there (docs/dev/CUDA.md).
    if (strncmp(test_device(), "cuda", 4) != 0)
        tiny_runs_alike(off, light);
    // With more than 4,096 rows a kernel of compute capability 9.0 makes GELU's result again in backward, whatever is
    // repeated.
    const char *rows[] = {"--steps=3", "--precision=bf16", "--dropout=0.1", "--batch-size=257", "--seq-len=16", NULL,
                          NULL};
    const char *again[MZ_COUNT(rows)];
    memcpy(again, rows, sizeof rows);
    again[MZ_COUNT(rows) - 2] = "--recompute";
    tiny_runs_alike(rows, again);
    again[MZ_COUNT(rows) - 2] = "--recompute-light";
    tiny_runs_alike(rows, again);
}

static const char *further[2]; // options of broken_off's runs, after `extra`

// fp8 carries the table of scales from step to step; micro batches and repetitions do not move it.
TEST(test_narrow_operands_change_no_rule) {
    static const char *const ways[][3] = {
        {"--precision=fp8", NULL},
        {"--precision=fp8-dw16", NULL},
        {"--precision=fp8-block", NULL},
        {"--precision=bf16", "--emulate=nvfp4"},
        {"--emulate=mxfp4", "--emulate-rounding=stochastic", "--emulate-hadamard=true"}};
    for (size_t i = 0; i < MZ_COUNT(ways); i++) {
        const char *one[] = {"--steps=8", ways[i][0], "--dropout=0.1", "--grad-accum=4", ways[i][1], ways[i][2], NULL};
        const char *two[] = {"--steps=8",      ways[i][0],    "--dropout=0.1",
                             "--grad-accum=4", "--recompute", "--threads=2",
                             ways[i][1],       ways[i][2],    NULL};
        tiny_runs_alike(one, two);
    }
    further[0] = "--emulate-rounding=stochastic";
    further[1] = "--emulate-hadamard=true";
    broken_off("bf16", "--emulate=nvfp4", 0);
    further[0] = NULL;
    broken_off("fp8", NULL, 0);
    broken_off("fp8-dw16", NULL, 0);
    broken_off("fp8-block", NULL, 0);
}

TEST(test_threads_change_nothing) {
    for (int i = 0; i < 2; i++) {
        const char *precision = i == 0 ? "--precision=fp32" : "--precision=bf16";
        const char *one[] = {"--steps=12", precision, "--d-model=64", "--seq-len=32", "--threads=1", NULL};
        const char *two[] = {"--steps=12", precision, "--d-model=64", "--seq-len=32", "--threads=2", NULL};
        tiny_runs_alike(one, two);
    }
}

// 50 steps, and 25 steps, a break by the stop flag, 25 more.
static void broken_off(const char *precision, const char *extra, int64_t least_skipped_before) {
    tiny_log whole = {0}, first = {.stop_after = 25}, second = {0};
    mezzo_train_result result, half;
    char option[32], path[4096];
    snprintf(option, sizeof option, "--precision=%s", precision);
    const char *args[] = {"--steps=50", option,     "--dropout=0.1", "--checkpoint-every=10",
                          extra,        further[0], further[1],      NULL};
    const char *resume[] = {
        "--steps=50", option, "--dropout=0.1", "--checkpoint-every=10", "--resume=auto", extra, further[0],
        further[1],   NULL};
    tiny_clean("whole");
    tiny_clean("broken");
    must(tiny_run("whole", args, &whole, &result));
    snprintf(path, sizeof path, "%s", result.checkpoint);
    assert_int_equal(tiny_run("broken", args, &first, &half), MEZZO_ERR_INTERRUPTED);
    assert_int_equal(half.steps, 25);
    assert_true(half.skipped >= least_skipped_before);
    must(tiny_run("broken", resume, &second, &result));
    assert_int_equal(result.steps, 50);
    for (int s = 1; s <= 50; s++) {
        double loss = s <= 25 ? first.loss[s] : second.loss[s];
        if (whole.loss[s] != loss)
            fail_msg("%s, step %d: loss %.17g, broken off %.17g", precision, s, whole.loss[s], loss);
    }
    tiny_same(path, result.checkpoint);
}

TEST(test_resume_fp32) {
    broken_off("fp32", NULL, 0);
}

TEST(test_resume_bf16) {
    broken_off("bf16", NULL, 0);
}

TEST(test_split_and_stochastic_masters_resume) {
    broken_off("bf16", "--master=split", 0);
    broken_off("bf16", "--master=stochastic", 0);
}

TEST(test_short_moments_resume) {
    static const char *const kinds[] = {"--moments=bf16", "--moments=int8"};
    for (size_t k = 0; k < MZ_COUNT(kinds); k++) {
        broken_off("bf16", kinds[k], 0);
        const char *one[] = {"--steps=12", "--precision=bf16", kinds[k], "--dropout=0.1", "--threads=1", NULL};
        const char *two[] = {"--steps=12", "--precision=bf16", kinds[k], "--dropout=0.1", "--threads=2", NULL};
        tiny_runs_alike(one, two);
    }
}

// A scale of 2^24 overflows FP16 gradients at once: the first steps are skipped until it fits.
TEST(test_resume_fp16_after_skips) {
    broken_off("fp16", "--init-scale=16777216", 1);
}

// A checkpoint holds shapes: what was saved with axes padded goes on without, and the other way round. On ref, because
// elsewhere padded products may be added up in another order.
TEST(test_resume_across_a_change_of_padding) {
    const char *args[] = {"--device=ref",         "--steps=12", "--precision=bf16", "--d-model=15", "--heads=3",
                          "--checkpoint-every=6", NULL};
    const char *resume[] = {"--device=ref", "--steps=12",           "--precision=bf16", "--d-model=15",
                            "--heads=3",    "--checkpoint-every=6", "--resume=auto",    NULL};
    for (int padded_first = 0; padded_first < 2; padded_first++) {
        tiny_log whole = {0}, first = {.stop_after = 6}, second = {0};
        mezzo_train_result result, half;
        char path[4096];
        tiny_clean("whole");
        tiny_clean("broken");
        must(tiny_run("whole", args, &whole, &result));
        snprintf(path, sizeof path, "%s", result.checkpoint);
        if (padded_first)
            setenv("MEZZO_STORAGE", "8", 1);
        assert_int_equal(tiny_run("broken", args, &first, &half), MEZZO_ERR_INTERRUPTED);
        if (padded_first)
            unsetenv("MEZZO_STORAGE");
        else
            setenv("MEZZO_STORAGE", "head=8+3,width=10", 1);
        must(tiny_run("broken", resume, &second, &result));
        unsetenv("MEZZO_STORAGE");
        for (int s = 7; s <= 12; s++)
            assert_true(whole.loss[s] == second.loss[s]);
        tiny_same(path, result.checkpoint);
    }
}

TEST(test_sgd_resumes) {
    broken_off("fp32", "--optimizer=sgd", 0);
}

// The rows of a run that was broken off are those of one that was not: each step once, in order.
TEST(test_metrics_have_each_step_once) {
    char *data;
    size_t n;
    broken_off("fp32", NULL, 0);
    must(mz_file_read("broken/metrics.jsonl", 1 << 20, &data, &n));
    const char *at = data;
    for (int s = 1; s <= 50; s++) {
        char key[64];
        snprintf(key, sizeof key, "{\"step\": %d, \"train/loss\"", s);
        at = strstr(at, key);
        if (at == NULL)
            fail_msg("no row of step %d in its place", s);
        assert_null(strstr(at + 1, key));
    }
    mz_free(data);
}

TEST(test_a_used_folder_is_not_overwritten) {
    tiny_log log = {0};
    mezzo_train_result result;
    const char *args[] = {"--steps=2", NULL};
    tiny_clean("a");
    must(tiny_run("a", args, &log, &result));
    must_fail(tiny_run("a", args, &log, &result), MEZZO_ERR_INVALID, "--resume auto");
}

TEST(test_another_model_is_refused) {
    tiny_log log = {0};
    mezzo_train_result result;
    tiny_clean("a");
    must(tiny_run("a", (const char *const[]){"--steps=2", NULL}, &log, &result));
    const char *wider[] = {"--steps=4", "--d-model=32", "--resume=auto", NULL};
    must_fail(tiny_run("a", wider, &log, &result), MEZZO_ERR_INVALID, "model.d_model is 16, this run's is 32");
    const char *sgd[] = {"--steps=4", "--optimizer=sgd", "--resume=auto", NULL};
    must_fail(tiny_run("a", sgd, &log, &result), MEZZO_ERR_INVALID, "optimizer.kind");
}

// A run that begins with another folder's checkpoint has one of its own, also where it takes no step.
TEST(test_no_step_behind_another_folders_checkpoint) {
    tiny_log log = {0}, stopped = {.stop_at_start = true};
    mezzo_train_result first, result;
    char resume[4200];
    const char *begin[] = {"--steps=4", "--precision=fp16", "--init-scale=16777216", NULL};
    tiny_clean("a");
    tiny_clean("b");
    tiny_clean("c");
    must(tiny_run("a", begin, &log, &first));
    assert_true(first.skipped > 0);
    snprintf(resume, sizeof resume, "--resume=%s", first.checkpoint);

    must(tiny_run("b", (const char *const[]){"--steps=4", "--precision=fp16", resume, NULL}, &log, &result));
    assert_int_equal(result.steps, 4);
    assert_int_equal(result.skipped, first.skipped);
    assert_true(result.tokens_per_second == 0);
    assert_int_equal(strncmp(result.checkpoint, "b/", 2), 0);
    tiny_same(first.checkpoint, result.checkpoint);

    const char *longer[] = {"--steps=6", "--precision=fp16", resume, NULL};
    assert_int_equal(tiny_run("c", longer, &stopped, &result), MEZZO_ERR_INTERRUPTED);
    assert_int_equal(result.steps, 4);
    assert_int_equal(strncmp(result.checkpoint, "c/", 2), 0);
    tiny_same(first.checkpoint, result.checkpoint);
    must(tiny_run("c", (const char *const[]){"--steps=6", "--precision=fp16", "--resume=auto", NULL}, &log, &result));
    assert_true(isnan(log.loss[4]) && !isnan(log.loss[5]) && !isnan(log.loss[6]));
}

TEST_GROUP(tiny_setup, NULL)
