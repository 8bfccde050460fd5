// A training run as its caller sees it: what it refuses, how it ends when numbers go bad, and that what it leaves can
// be evaluated and sampled.
#include "tiny_run.h"

#include "models/keys.h"

static void fails(mezzo_status got, mezzo_status want, const char *says) {
    if (got != want || strstr(mezzo_error_message(), says) == NULL)
        fail_msg("%s \"%s\", expected %s with \"%s\"", mezzo_status_name(got), mezzo_error_message(),
                 mezzo_status_name(want), says);
}

static mezzo_status run(const char *const *args, tiny_log *log) {
    mezzo_train_result result;
    tiny_clean("loop");
    return tiny_run("loop", args, log, &result);
}

TEST(test_what_is_refused) {
    tiny_log log = {0};
    must(mz_file_write_atomic("empty.txt", "", 0));
    must(mz_file_write_atomic("short.txt", "to be", 5));
    fails(run((const char *const[]){"--data=nowhere.txt", NULL}, &log), MEZZO_ERR_INVALID, "nowhere.txt");
    fails(run((const char *const[]){"--data=empty.txt", NULL}, &log), MEZZO_ERR_FORMAT, "empty.txt");
    fails(run((const char *const[]){"--data=short.txt", NULL}, &log), MEZZO_ERR_INVALID, "short.txt");
    fails(run((const char *const[]){"--data=", NULL}, &log), MEZZO_ERR_INVALID, "data.path");
    fails(run((const char *const[]){"--heads=3", NULL}, &log), MEZZO_ERR_INVALID, "model.heads");
    fails(run((const char *const[]){"--model=toy", NULL}, &log), MEZZO_ERR_INVALID, "data.labels");
    fails(run((const char *const[]){"--model=gtp2", NULL}, &log), MEZZO_ERR_INVALID, "gpt2");
    fails(run((const char *const[]){"--vocab=7", NULL}, &log), MEZZO_ERR_INVALID, "7");
    fails(run((const char *const[]){"--min-lr=1", NULL}, &log), MEZZO_ERR_INVALID, "optimizer.min_lr");
    fails(run((const char *const[]){"--device=abacus", NULL}, &log), MEZZO_ERR_INVALID, "abacus");
    fails(run((const char *const[]){"--resume=nowhere", NULL}, &log), MEZZO_ERR_INVALID, "nowhere");
}

TEST(test_settings_are_checked_when_set) {
    mezzo_config *c;
    must(mezzo_config_create(&c));
    fails(mezzo_config_set(c, "optimizer.lr", "nan", "here"), MEZZO_ERR_INVALID, "optimizer.lr");
    fails(mezzo_config_set(c, "train.steps", "many", "here"), MEZZO_ERR_INVALID, "train.steps");
    fails(mezzo_config_set(c, "optimizer.rl", "1", "here"), MEZZO_ERR_INVALID, "optimizer.lr");
    fails(mezzo_config_set(c, "amp.precision", "bf61", "here"), MEZZO_ERR_INVALID, "bf16");
    must(mezzo_config_set(c, "lr", "3e-4", "here"));
    assert_string_equal(mezzo_config_get(c, "optimizer.lr"), "0.0003");
    assert_null(mezzo_config_get(c, "optimizer.rl"));
    must(mezzo_config_check(c));
    must(mezzo_config_set(c, "autocast.h.*.mlp*", "fp32", "here"));
    mezzo_program_options o;
    must(mezzo_config_program(c, &o));
    assert_int_equal(o.n_overrides, 1);
    assert_string_equal(o.overrides[0].pattern, "h.*.mlp*");
    assert_int_equal(o.overrides[0].precision, MEZZO_PRECISION_FP32);
    mezzo_config_free(c);
}

// A key goes to the models that take it and is refused by the others; a named size keeps its name until a key changes
// it.
TEST(test_keys_belong_to_models) {
    static const struct {
        const char *model, *key, *value, *says;
    } wrong[] = {{"gpt2", "model.experts", "4", "glm4_moe"},
                 {"gpt2", "model.qk_norm", "true", "glm4_moe"},
                 {"cs336", "model.dropout", "0.1", "gpt2 mlp"},
                 {"llama", "model.qk_norm", "true", "glm4_moe"},
                 {"toy", "model.d_model", "20", "gpt2 cs336 glm4_moe mlp"},
                 {"mlp", "model.vocab", "20", "gpt2 cs336 glm4_moe"}};
    mezzo_config *c;
    mezzo_model_config m;
    for (size_t i = 0; i < MZ_COUNT(wrong); i++) {
        must(mezzo_config_create(&c));
        must(mezzo_config_set(c, "model.name", wrong[i].model, "here"));
        must(mezzo_config_set(c, wrong[i].key, wrong[i].value, "here"));
        fails(mezzo_config_model(c, 0, &m), MEZZO_ERR_INVALID, wrong[i].key);
        fails(mezzo_config_model(c, 0, &m), MEZZO_ERR_INVALID, wrong[i].says);
        mezzo_config_free(c);
    }
    must(mezzo_config_create(&c));
    must(mezzo_config_set(c, "model.name", "llama2-70B", "here"));
    must(mezzo_config_set(c, "model.qk_norm", "true", "here"));
    must(mezzo_config_model(c, 32000, &m));
    assert_true(m.qk_norm && m.layers == 80);
    assert_string_equal(m.size, ""); // llama2-70B has no such norms
    must(mezzo_config_set(c, "model.qk_norm", "false", "here"));
    must(mezzo_config_model(c, 32000, &m));
    assert_string_equal(m.size, "llama2-70B");
    assert_string_equal(m.name, "glm4_moe");
    mezzo_config_free(c);
}

// What stands for the model's own must not be a value that some named size needs to be told.
TEST(test_named_sizes_can_be_told_apart_from_keys) {
    for (int i = 0; i < mezzo_model_count(); i++) {
        mezzo_model_config m;
        must(mezzo_model_defaults(mezzo_model_name(i), &m));
        for (size_t k = 0; k < mz_model_key_count; k++)
            if (mz_model_keys[k].type == MZ_KEY_BOOL && mz_model_takes(&mz_model_keys[k], m.name))
                assert_true(mz_model_key_get(&mz_model_keys[k], &m) == mz_model_key_own(&mz_model_keys[k]));
    }
}

// Every key has a help line and a row in docs/train.md, and its default is one that it takes.
TEST(test_every_key_is_described) {
    mezzo_config *c;
    must(mezzo_config_create(&c));
    assert_true(mezzo_config_count() > 50);
    char *docs = NULL, path[4096];
    size_t n;
    const char *source = getenv("MEZZO_SOURCE"); // set by ctest
    if (source != NULL) {
        snprintf(path, sizeof path, "%s/docs/train.md", source);
        must(mz_file_read(path, 1 << 20, &docs, &n));
    }
    for (int i = 0; i < mezzo_config_count(); i++) {
        mezzo_config_key key = mezzo_config_describe(i);
        assert_true(strlen(key.help) > 2 && key.help[strlen(key.help) - 1] != '.');
        snprintf(path, sizeof path, "| `%s` |", key.key);
        if (docs != NULL && strstr(docs, path) == NULL)
            fail_msg("docs/train.md has no row %s", path);
        if (strcmp(key.type, "map") != 0)
            must(mezzo_config_set(c, key.key, key.initial, "here"));
    }
    mz_free(docs);
    mezzo_config_free(c);
}

// FP16 whose scale may not fall: every step overflows, and the run ends saying where.
TEST(test_fp16_at_its_floor_gives_up) {
    tiny_log log = {0};
    const char *args[] = {"--precision=fp16", "--init-scale=1e20", "--amp.scaler.min_scale=1e20",
                          "--steps=50",       "--max-skips=3",     NULL};
    fails(run(args, &log), MEZZO_ERR_NUMERIC, "step 3: 3 steps in a row were not finite, loss scale 1e+20");
    assert_non_null(strstr(mezzo_error_message(), "(fp16)")); // the op's output that overflowed first
}

// FP16 that looks for its scale is no trouble, however many times it halves.
TEST(test_fp16_finds_its_scale) {
    tiny_log log = {0};
    mezzo_train_result result;
    const char *args[] = {"--precision=fp16", "--init-scale=1e9", "--steps=30", "--max-skips=9", NULL};
    tiny_clean("loop");
    must(tiny_run("loop", args, &log, &result));
    assert_true(result.skipped > 3);
    assert_int_equal(log.warnings, 0);
    assert_true(isfinite(result.loss));
}

// FP32 that blows up: warnings name step and op, and after max_skips the run ends.
TEST(test_fp32_blows_up) {
    tiny_log log = {0};
    const char *args[] = {"--optimizer=sgd", "--lr=1000",           "--warmup=0",    "--clip=0", "--momentum=1",
                          "--steps=60",      "--weight-decay=1000", "--max-skips=4", NULL};
    fails(run(args, &log), MEZZO_ERR_NUMERIC, "4 steps in a row were not finite, loss scale 1; the last: ");
    assert_int_equal(log.warnings, 5); // the four, and that the run is not healthy
    assert_non_null(strstr(mezzo_error_message(), "first in "));
    assert_non_null(strstr(log.warning, "(fp32)"));
}

static void collect(void *user, int index, const char *text, size_t bytes) {
    (void)index;
    mz_text_add(user, text, bytes);
}

TEST(test_what_is_left_evaluates_and_samples) {
    tiny_log log = {0};
    mezzo_train_result result;
    mezzo_eval_result eval, part;
    const char *args[] = {"--steps=20", "--eval-final", "--precision=bf16", NULL};
    tiny_clean("loop");
    must(tiny_run("loop", args, &log, &result));
    mezzo_eval_options e = {.path = "loop"};
    must(mezzo_run_eval(&e, NULL, &eval));
    assert_true(eval.loss == result.val_loss); // the same whole set, weights and precision: the same bits
    assert_int_equal(eval.step, 20);
    assert_true(eval.precision == MEZZO_PRECISION_BF16);
    e.data = TINY_TEXT, e.path = result.checkpoint;
    must(mezzo_run_eval(&e, NULL, &part));
    assert_true(part.tokens > eval.tokens);

    mz_text a = {0}, b = {0}, c = {0};
    mezzo_sample_options s = mezzo_sample_defaults();
    s.path = "loop", s.tokens = 40, s.top_k = 5;
    must(mezzo_run_sample(&s, NULL, collect, &a));
    must(mezzo_run_sample(&s, NULL, collect, &b));
    s.seed = 2;
    must(mezzo_run_sample(&s, NULL, collect, &c));
    assert_int_equal(a.len, 40);
    assert_int_equal(b.len, 40);
    assert_memory_equal(a.data, b.data, 40);
    assert_true(memcmp(a.data, c.data, 40) != 0);
    mz_text_free(&a);
    mz_text_free(&b);
    mz_text_free(&c);
    s.prompt = "\xC3\xBC"; // a character that the text does not have
    fails(mezzo_run_sample(&s, NULL, collect, &a), MEZZO_ERR_INVALID, "the prompt");
    s.prompt = NULL, s.temperature = (double)NAN;
    fails(mezzo_run_sample(&s, NULL, collect, &a), MEZZO_ERR_INVALID, "temperature");
}

// Weights that lie halfway between two BF16 numbers, as one in 65,536 does: a split master's copy is rounded away from
// zero, and that of an FP32 master to even. Of 196,608 weights, as they were drawn, some do.
TEST(test_weights_halfway_evaluate_as_they_were_trained) {
    static const char *const masters[] = {"--master=split", "--master=fp32"};
    double loss[2];
    for (int i = 0; i < 2; i++) {
        const char *args[] = {"--steps=1",    "--lr=1e-30",       "--layers=4", "--d-model=64",
                              "--eval-final", "--precision=bf16", masters[i],   NULL};
        tiny_log log = {0};
        mezzo_train_result result;
        mezzo_eval_result eval;
        tiny_clean("loop");
        must(tiny_run("loop", args, &log, &result));
        must(mezzo_run_eval(&(mezzo_eval_options){.path = "loop"}, NULL, &eval));
        assert_true(eval.loss == result.val_loss);
        loss[i] = eval.loss;
    }
    assert_true(loss[0] != loss[1]); // there are such weights
    tiny_clean("loop");
}

// Two halves of a batch, accumulated, are the batch: gradients agree up to their rounding.
TEST(test_accumulation_is_a_larger_batch) {
    tiny_log whole = {0}, halves = {0};
    must(run((const char *const[]){"--steps=1", "--batch-size=6", NULL}, &whole));
    must(run((const char *const[]){"--steps=1", "--batch-size=3", "--grad-accum=2", NULL}, &halves));
    assert_true(fabs(whole.loss[1] - halves.loss[1]) <= 8 * 0x1p-24 * whole.loss[1]);
}

TEST_GROUP(tiny_setup, NULL)
