// Single bits that flip in what a run computes, in calls and in the parameters that an update has just written. With
// train.replay 1 each one that changes a gradient is noticed, and the run goes on to the very bits of one without
// flips; one that keeps coming back is named by its op. A run without flips is never suspected.
// MEZZO_FLIPS: how many flips [160]. MEZZO_CLEAN_STEPS: how many steps each run without flips has [4].
#include "tiny_run.h"
#include "tools/inject/inject.h"

enum { STEPS = 4, PRECISIONS = 6, ACCUMS = 2 };
static const char *const precisions[] = {"fp32", "bf16", "fp16", "fp8", "fp8-block", "fp8-dw16"};

typedef struct trial {
    int precision, accum;
    const char *policy;
    bool recomputes;
    char fault[160];
} trial;

static mezzo_status run(const char *out, const trial *t, int64_t every, int64_t steps, tiny_log *log) {
    char options[6][48];
    mezzo_train_result result;
    snprintf(options[0], sizeof options[0], "--steps=%lld", (long long)steps);
    snprintf(options[1], sizeof options[1], "--precision=%s", precisions[t->precision]);
    snprintf(options[2], sizeof options[2], "--grad-accum=%d", t->accum);
    snprintf(options[3], sizeof options[3], "--replay=%lld", (long long)every);
    snprintf(options[4], sizeof options[4], "--replay-policy=%s", t->policy);
    snprintf(options[5], sizeof options[5], "--replay-update=%s", every > 0 ? "true" : "false");
    const char *args[] = {options[0],
                          options[1],
                          options[2],
                          options[3],
                          options[4],
                          options[5],
                          "--guard=off",
                          "--layers=1",
                          "--dropout=0.1",
                          "--init-scale=1024",
                          t->recomputes ? "--recompute" : "--no-recompute",
                          NULL};
    tiny_clean(out);
    mz_inject_next(t->fault[0] != '\0' ? t->fault : NULL);
    *log = (tiny_log){0};
    return tiny_run(out, args, log, &result);
}

static bool same(const char *a, const char *b, int64_t step) {
    char x[256], y[256];
    snprintf(x, sizeof x, "%s/checkpoints/step-%08lld", a, (long long)step);
    snprintf(y, sizeof y, "%s/checkpoints/step-%08lld", b, (long long)step);
    return tiny_equal(x, y, "model.safetensors") && tiny_equal(x, y, "optimizer.safetensors");
}

static uint32_t draw(uint64_t seed, uint64_t k, uint32_t n) {
    uint32_t words[4];
    mz_philox((mz_philox_key){.seed = seed}, k, words);
    return words[0] % n;
}

static void choose(trial *t, uint64_t seed, const char *kind) {
    t->precision = (int)draw(seed, 0, PRECISIONS);
    t->accum = 1 + (int)draw(seed, 1, ACCUMS);
    snprintf(t->fault, sizeof t->fault, "%s@%u.%u:call/%u#%u", kind, 2 + draw(seed, 2, 2),
             1 + draw(seed, 3, (uint32_t)t->accum), draw(seed, 4, 1000), draw(seed, 5, 1000000));
}

static int64_t number_of(const char *variable, int64_t usual) {
    const char *n = getenv(variable);
    return n != NULL ? strtoll(n, NULL, 10) : usual;
}
static int64_t flips(void) {
    return number_of("MEZZO_FLIPS", 160);
}

// A flip in every step: as many steps as there are flips.
static void strike(const char *kind, uint64_t seed, int64_t steps, int64_t *changes) {
    trial t = {.policy = "continue",
               .precision = (int)seed % PRECISIONS,
               .accum = 1 + (int)(seed / PRECISIONS) % ACCUMS,
               .recomputes = (seed / (PRECISIONS * ACCUMS)) % 2 != 0};
    tiny_log log;
    must(run("clean", &t, 0, steps, &log));
    snprintf(t.fault, sizeof t.fault, "flip@0:%s#%llu", kind, (unsigned long long)seed);
    must(run("replayed", &t, 1, steps, &log));
    if (mz_inject_last()->missed > 0 || log.warnings < mz_inject_last()->changes)
        fail_msg("seed %llu in %s: %lld flips were not noticed", (unsigned long long)seed, precisions[t.precision],
                 (long long)mz_inject_last()->missed);
    if (!same("replayed", "clean", steps))
        fail_msg("seed %llu in %s: a flip is in the weights: %s", (unsigned long long)seed, precisions[t.precision],
                 log.warning);
    *changes += mz_inject_last()->changes;
}

TEST(test_flips_are_noticed_and_undone) {
    const int64_t runs = 2 * PRECISIONS * ACCUMS, steps = 1 + flips() / runs;
    int64_t changes = 0, updates = 0;
    for (int64_t seed = 0; seed < runs; seed++)
        strike("call/0", (uint64_t)seed, steps, &changes);
    for (int64_t seed = 0; seed < PRECISIONS; seed++)
        strike("update/any", (uint64_t)seed, steps, &updates);
    print_message("%lld flips in calls changed a gradient, %lld in updates the weights\n", (long long)changes,
                  (long long)updates);
    assert_true(changes > 0 && updates > 0);
}

TEST(test_a_fault_that_comes_back_is_named) {
    int64_t named = 0;
    bool several = false; // a fault in an early call changes the gradients of many parameters
    for (int64_t seed = 1; seed <= 1 + flips() / 10; seed++) {
        trial t = {.policy = "stop"};
        tiny_log log;
        char says[256];
        choose(&t, (uint64_t)seed, "flap");
        const mezzo_status status = run("stopped", &t, 1, STEPS, &log);
        if (status == MEZZO_OK) // nothing reads that bit
            continue;
        assert_int_equal(status, MEZZO_ERR_DEVICE);
        const mz_inject *hit = mz_inject_last();
        snprintf(says, sizeof says, "the first op that differs is %s of %s", hit->op,
                 hit->module[0] != '\0' ? hit->module : "the model");
        if (strstr(mezzo_error_message(), says) == NULL)
            fail_msg("seed %lld: %s: \"%s\" does not say \"%s\"", (long long)seed, t.fault, mezzo_error_message(),
                     says);
        named++;
        several = several || strstr(mezzo_error_message(), " others up to ") != NULL;
        assert_null(strstr(mezzo_error_message(), " others up to wte")); // the first of all is the last of none
        char path[64];
        snprintf(path, sizeof path, "stopped/checkpoints/step-%08lld", (long long)hit->step - 1);
        assert_true(mz_path_is_dir(path)); // of the steps before
    }
    print_message("%lld named\n", (long long)named);
    assert_true(named > 0 && several);
}

static const char *clean_run(int precision, int accum) {
    static char names[PRECISIONS][ACCUMS][32];
    char *name = names[precision][accum - 1];
    tiny_log log;
    if (name[0] != '\0')
        return name;
    const trial t = {.precision = precision, .accum = accum, .policy = "stop"};
    snprintf(name, sizeof names[0][0], "clean-%d-%d", precision, accum);
    must(run(name, &t, 0, STEPS, &log));
    return name;
}

TEST(test_a_run_without_flips_is_not_suspected) {
    const int64_t steps = number_of("MEZZO_CLEAN_STEPS", STEPS);
    int64_t checked = 0;
    for (int precision = 0; precision < PRECISIONS; precision++)
        for (int accum = 1; accum <= ACCUMS; accum++)
            for (int recomputes = 0; recomputes < 2; recomputes++) {
                const trial t = {
                    .precision = precision, .accum = accum, .policy = "stop", .recomputes = recomputes != 0};
                tiny_log log;
                must(run("replayed", &t, 1, steps, &log));
                assert_int_equal(log.warnings, 0);
                assert_true(steps != STEPS || same("replayed", clean_run(precision, accum), STEPS));
                checked += steps;
            }
    print_message("%lld steps, none suspected\n", (long long)checked);
}

// A flip in the update that comes back is named by the parameter, and the run stops before it.
TEST(test_an_update_that_goes_wrong_is_named) {
    trial t = {.accum = 1, .policy = "stop", .fault = "flap@3:update/h.0.mlp.c_fc.weight#4"};
    tiny_log log;
    must_fail(run("stopped", &t, 1, STEPS, &log), MEZZO_ERR_DEVICE,
              "of the same update: weights of h.0.mlp.c_fc.weight");
    assert_true(mz_path_is_dir("stopped/checkpoints/step-00000002"));
    t = (trial){.accum = 1, .policy = "stop"};
    must(run("before", &t, 0, 2, &log)); // what the checkpoint has is from before the update
    assert_true(same("stopped", "before", 2));
}

TEST(test_a_moment_that_goes_wrong_is_named) {
    const trial t = {.accum = 1, .policy = "stop", .fault = "flap@3:state/h.0.attn.c_proj.weight#0"};
    tiny_log log;
    must_fail(run("stopped", &t, 1, STEPS, &log), MEZZO_ERR_DEVICE,
              "of the same update: exp_avg_sq of h.0.attn.c_proj.weight");
}

TEST_GROUP(tiny_setup, NULL)
