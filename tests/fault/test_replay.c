// Single bits that flip in what a run computes. With train.replay 1 each one that changes the weights is noticed, and
// the run goes on to the very bits of one without the flip; one that keeps coming back is named by its op. A run
// without flips is never suspected. One flip in five is in a parameter that the update has just written.
// MEZZO_FLIPS: how many flips [40]; their seeds are 1, 2, …; with it a row for each op is printed. MEZZO_CLEAN_STEPS:
// how many steps each run without flips has [4].
#include "tiny_run.h"
#include "train/inject.h"

enum { STEPS = 4, PRECISIONS = 4, ACCUMS = 2 };
static const char *const precisions[] = {"fp32", "bf16", "fp16", "fp8"};

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
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    bool equal = true;
    for (size_t i = 0; i < MZ_COUNT(files) && equal; i++) {
        char path[256], *x, *y;
        size_t n, m;
        snprintf(path, sizeof path, "%s/checkpoints/step-%08lld/%s", a, (long long)step, files[i]);
        must(mz_file_read(path, 1 << 24, &x, &n));
        snprintf(path, sizeof path, "%s/checkpoints/step-%08lld/%s", b, (long long)step, files[i]);
        must(mz_file_read(path, 1 << 24, &y, &m));
        equal = n == m && memcmp(x, y, n) == 0;
        mz_free(x);
        mz_free(y);
    }
    return equal;
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

static void choose_flip(trial *t, uint64_t seed) {
    static const char *const names[] = {"wte.weight", "h.0.ln_1.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_fc.bias",
                                        "ln_f.bias"};
    choose(t, seed, "flip");
    if (draw(seed, 6, 5) == 0)
        snprintf(t->fault, sizeof t->fault, "flip@%u:update/%s#%u", 2 + draw(seed, 2, 2),
                 names[draw(seed, 4, MZ_COUNT(names))], draw(seed, 5, 1000000));
}

static int64_t number_of(const char *variable, int64_t usual) {
    const char *n = getenv(variable);
    return n != NULL ? strtoll(n, NULL, 10) : usual;
}
static int64_t flips(void) {
    return number_of("MEZZO_FLIPS", 40);
}

// What became of the flips in the results of an op.
typedef struct count {
    char op[32];
    int64_t flips, harmful, noticed, undone, named;
} count;
static count counts[64];

static count *count_of(const char *op) {
    size_t i = 0;
    while (i + 1 < MZ_COUNT(counts) && counts[i].op[0] != '\0' && strcmp(counts[i].op, op) != 0)
        i++;
    snprintf(counts[i].op, sizeof counts[i].op, "%s", op);
    return &counts[i];
}

static void print_counts(const char *what) {
    for (size_t i = 0; i < MZ_COUNT(counts) && counts[i].op[0] != '\0' && getenv("MEZZO_FLIPS") != NULL; i++)
        printf("%s,%s,%lld,%lld,%lld,%lld,%lld\n", what, counts[i].op, (long long)counts[i].flips,
               (long long)counts[i].harmful, (long long)counts[i].noticed, (long long)counts[i].undone,
               (long long)counts[i].named);
    memset(counts, 0, sizeof counts);
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

static void test_a_flip_is_noticed_and_undone(void **state) {
    (void)state;
    int64_t harmful = 0, noticed = 0;
    for (int64_t seed = 1; seed <= flips(); seed++) {
        trial t = {.policy = "continue"};
        tiny_log log;
        choose_flip(&t, (uint64_t)seed);
        const char *clean = clean_run(t.precision, t.accum);
        const bool harms = run("harmed", &t, 0, STEPS, &log) != MEZZO_OK || !same("harmed", clean, STEPS);
        must(run("replayed", &t, 1, STEPS, &log));
        if (harms && log.warnings == 0)
            fail_msg("seed %lld: %s was not noticed", (long long)seed, t.fault);
        if (!same("replayed", clean, STEPS))
            fail_msg("seed %lld: %s is in the weights: %s", (long long)seed, t.fault, log.warning);
        harmful += harms;
        noticed += log.warnings > 0;
        const mz_inject *hit = mz_inject_last();
        count *c = count_of(hit->target == MZ_AT_UPDATE ? "update" : hit->op[0] != '\0' ? hit->op : "none");
        c->flips++;
        c->harmful += harms;
        c->noticed += log.warnings > 0;
        c->undone++; // asserted
    }
    print_counts("flip");
    print_message("%lld flips: %lld changed the weights, %lld were noticed\n", (long long)flips(), (long long)harmful,
                  (long long)noticed);
    assert_true(harmful > 0);
}

static void test_a_fault_that_comes_back_is_named(void **state) {
    (void)state;
    int64_t named = 0;
    for (int64_t seed = 1; seed <= flips(); seed++) {
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
        count *c = count_of(hit->op);
        c->flips++;
        c->noticed++;
        c->named++;
        char path[64];
        snprintf(path, sizeof path, "stopped/checkpoints/step-%08lld", (long long)hit->step - 1);
        assert_true(mz_path_is_dir(path)); // of the steps before
    }
    print_counts("flap");
    print_message("%lld named\n", (long long)named);
    assert_true(named > 0);
}

static void test_a_run_without_flips_is_not_suspected(void **state) {
    (void)state;
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
static void test_an_update_that_goes_wrong_is_named(void **state) {
    (void)state;
    trial t = {.accum = 1, .policy = "stop", .fault = "flap@3:update/h.0.mlp.c_fc.weight#4"};
    tiny_log log;
    assert_int_equal(run("stopped", &t, 1, STEPS, &log), MEZZO_ERR_DEVICE);
    assert_non_null(strstr(mezzo_error_message(), "of the same update: weights of h.0.mlp.c_fc.weight"));
    assert_true(mz_path_is_dir("stopped/checkpoints/step-00000002"));
    t = (trial){.accum = 1, .policy = "stop"};
    must(run("before", &t, 0, 2, &log)); // what the checkpoint has is from before the update
    assert_true(same("stopped", "before", 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_run_without_flips_is_not_suspected),
                                       cmocka_unit_test(test_an_update_that_goes_wrong_is_named),
                                       cmocka_unit_test(test_a_flip_is_noticed_and_undone),
                                       cmocka_unit_test(test_a_fault_that_comes_back_is_named)};
    tiny_text();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
