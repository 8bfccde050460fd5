// Many random faults, none lost and none wrong: each is found at its step and micro batch and named by its own op, and
// the run is what its policy says to the bit; or it had no effect at all, to the bit (an infinity under a causal mask,
// a value that dropout drops). MEZZO_INJECTIONS says how many (40; the full test is 1000), their seeds are 1, 2, ….
#include "tiny_run.h"
#include "tools/inject/inject.h"

enum { STEPS = 7, POLICIES = 3, PRECISIONS = 3 };
static const char *const policies[] = {"skip", "rollback", "stop"};
static const char *const precisions[] = {"fp32", "bf16", "fp16"};

typedef struct trial {
    uint64_t seed;
    int policy, precision, accum, lag, step, micro;
    char fault[256];
} trial;

static uint32_t draw(trial *t, uint32_t n) {
    static _Thread_local uint64_t count;
    uint32_t words[4];
    mz_philox((mz_philox_key){.seed = t->seed}, count++, words);
    return words[0] % n;
}

static const char *const parameters[] = {"wte.weight",           "wpe.weight",          "h.0.ln_1.weight",
                                         "h.0.attn.c_attn.bias", "h.0.mlp.c_fc.weight", "ln_f.bias"};

static void choose(trial *t, uint64_t seed) {
    *t = (trial){.seed = seed};
    t->policy = (int)draw(t, POLICIES);
    t->precision = (int)draw(t, PRECISIONS);
    t->accum = 1 + (int)draw(t, 2);
    t->lag = (int)draw(t, 2);
    t->step = 3 + (int)draw(t, 4);
    t->micro = 1 + (int)draw(t, (uint32_t)t->accum);
    const char *kind = draw(t, 2) ? "nan" : "inf";
    char target[128];
    uint32_t where = draw(t, 8);
    if (where == 0)
        snprintf(target, sizeof target, "batch");
    else if (where == 1)
        snprintf(target, sizeof target, "loss");
    else if (where == 2)
        snprintf(target, sizeof target, "grad/%s", parameters[draw(t, MZ_COUNT(parameters))]);
    else
        snprintf(target, sizeof target, "call/%u", draw(t, 1000));
    snprintf(t->fault, sizeof t->fault, "%s@%d.%d:%s#%u", kind, t->step, t->micro, target, draw(t, 100000));
}

static mezzo_status run(const char *out, const trial *t, const char *policy, int64_t steps, const char *fault,
                        mezzo_train_result *result) {
    char options[6][48];
    tiny_log log = {0};
    snprintf(options[0], sizeof options[0], "--steps=%lld", (long long)steps);
    snprintf(options[1], sizeof options[1], "--precision=%s", precisions[t->precision]);
    snprintf(options[2], sizeof options[2], "--grad-accum=%d", t->accum);
    snprintf(options[3], sizeof options[3], "--guard=%s", policy);
    // With a hysteresis of 2 one overflow leaves the loss scale alone, so that FP16's runs compare to the bit too.
    const char *args[] = {options[0],      options[1],          options[2],
                          options[3],      "--init-scale=1024", "--checkpoint-every=2",
                          "--keep-last=0", "--log-every=50",    "--amp.scaler.hysteresis=2",
                          "--layers=1",    "--dropout=0.1",     NULL};
    tiny_clean(out);
    mz_inject_next(fault);
    mz_inject_lag(t->lag);
    mezzo_status status = tiny_run(out, args, &log, result);
    mz_inject_lag(-1);
    return status;
}

static bool same(const char *a, const char *b) {
    return tiny_equal(a, b, "model.safetensors") && tiny_equal(a, b, "optimizer.safetensors");
}

// The run that the trial must come to, made once: kind 0 untouched, 1 skip, 2 rollback, 3 stop. Its last checkpoint.
static const char *reference(const trial *t, int kind) {
    static char paths[4][PRECISIONS][2][STEPS + 1][128];
    char *path = paths[kind][t->precision][t->accum - 1][kind == 0 ? 0 : t->step];
    if (*path != '\0')
        return path;
    char out[64], drop[64];
    mezzo_train_result r;
    int from = (t->step - 1) / 2 * 2; // the newest checkpoint before the step
    snprintf(out, sizeof out, "ref-%d-%d-%d-%d", kind, t->precision, t->accum, kind == 0 ? 0 : t->step);
    if (kind == 1)
        snprintf(drop, sizeof drop, "drop@%d.1:batch", t->step);
    else
        snprintf(drop, sizeof drop, "halve@%d.%d:batch", from + 1, t->step - from);
    int64_t steps = kind == 1 ? STEPS - 1 : kind == 3 ? t->step - 1 : STEPS;
    must(run(out, t, "skip", steps, kind == 1 || kind == 2 ? drop : NULL, &r));
    snprintf(path, sizeof paths[0][0][0][0], "%.127s", r.checkpoint);
    return path;
}

static char *records(const char *out) {
    char path[4200], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/guard.jsonl", out);
    if (!mz_path_exists(path))
        return mz_strdup("");
    must(mz_file_read(path, 1 << 20, &text, &n));
    return text;
}

enum { LOST, WRONG, NOTHING, FOUND };

static int judge(const trial *t, char *why, size_t size) {
    mezzo_train_result r;
    const mz_inject *struck = mz_inject_last();
    mezzo_status status = run("run", t, policies[t->policy], STEPS, t->fault, &r);
    char *text = records("run"), want[256];
    int verdict = FOUND;
    snprintf(why, size, "%s, %s, %s, accumulation %d, lag %d: %s: %s%s", t->fault, precisions[t->precision],
             policies[t->policy], t->accum, t->lag, struck->op, text, status != MEZZO_OK ? mezzo_error_message() : "");
    bool answered = strstr(text, "backoff") != NULL || (status == MEZZO_OK && r.skipped == 1 && *text == '\0');
    if (!struck->met || (*text == '\0' && !answered)) {
        bool harmless = status == MEZZO_OK && same(r.checkpoint, reference(t, 0));
        verdict = harmless ? NOTHING : LOST;
    } else {
        int kind = answered ? 1 : t->policy + 1;
        // Its own step, micro batch and op, in the only record there is.
        snprintf(want, sizeof want, "{\"step\": %d, \"micro\": %d, ", t->step, t->micro);
        bool named = *text == '\0' || (strstr(text, want) == text && strchr(text, '\n')[1] == '\0');
        snprintf(want, sizeof want, "\"op\": \"%s\", \"module\": \"%s\"", struck->op, struck->module);
        if (*text != '\0' && struck->op[0] != '\0')
            named = named && strstr(text, want) != NULL;
        bool ended = status == (kind == 3 ? MEZZO_ERR_NUMERIC : MEZZO_OK);
        verdict = named && ended && same(r.checkpoint, reference(t, kind)) ? FOUND : WRONG;
    }
    mz_free(text);
    return verdict;
}

TEST(test_random_faults) {
    const char *asked = getenv("MEZZO_INJECTIONS");
    int64_t n = asked != NULL ? strtoll(asked, NULL, 10) : 40, counts[4] = {0};
    for (int64_t i = 1; i <= n; i++) {
        trial t;
        char why[2048];
        choose(&t, (uint64_t)i);
        int verdict = judge(&t, why, sizeof why);
        counts[verdict]++;
        if (verdict == LOST || verdict == WRONG)
            print_message("%lld %s: %s\n", (long long)i, verdict == LOST ? "lost" : "wrong", why);
    }
    print_message("%lld faults: %lld found, %lld without any effect, %lld lost, %lld wrong\n", (long long)n,
                  (long long)counts[FOUND], (long long)counts[NOTHING], (long long)counts[LOST],
                  (long long)counts[WRONG]);
    assert_int_equal(counts[LOST] + counts[WRONG], 0);
    assert_true(counts[FOUND] * 4 >= n * 3);
}

TEST_GROUP(tiny_setup, NULL)
