// Checkpoints of one's own loop: what comes back, which are kept, what is said about the ones that are damaged or do
// not fit.
#include "tiny_run.h"

#include <fcntl.h>
#include <unistd.h>

#include "backend/backend.h"
#include "checkpoint/checkpoint.h"

typedef struct small_run {
    mezzo_device *device;
    mezzo_params *params; // w [3, 4], b [4]
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
} small_run;

static void make(small_run *f, int64_t rows, bool sgd) {
    mezzo_graph *g;
    must(mezzo_device_open("ref", 1, &f->device));
    must(mezzo_graph_create(&g));
    mezzo_init normal = {.kind = MEZZO_INIT_NORMAL, .a = 1};
    mezzo_param(g, "w", normal, 2, (int64_t[]){rows, 4});
    mezzo_param(g, "b", normal, 1, (int64_t[]){4});
    must(mezzo_params_create(f->device, g, 3, &f->params));
    mezzo_graph_free(g);
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    o.kind = sgd ? MEZZO_SGD : MEZZO_ADAMW;
    o.momentum = 0.9;
    must(mezzo_optimizer_create(f->params, &o, &f->optimizer));
    mezzo_scaler_options s = mezzo_scaler_defaults();
    s.init_scale = 8;
    must(mezzo_scaler_create(f->device, &s, &f->scaler));
}

static void discard(small_run *f) {
    mezzo_optimizer_free(f->optimizer);
    mezzo_scaler_free(f->scaler);
    mezzo_params_free(f->params);
    mezzo_device_close(f->device);
}

static int setup(void **state) {
    small_run *f = calloc(1, sizeof *f);
    make(f, 3, false);
    tiny_clean("kept");
    *state = f;
    return 0;
}

static int teardown(void **state) {
    discard(*state);
    free(*state);
    return 0;
}

static void one_step(small_run *f, float grad) {
    float w[12], b[4];
    for (int i = 0; i < 12; i++)
        w[i] = grad * (float)(i + 1);
    for (int i = 0; i < 4; i++)
        b[i] = -grad;
    must(mezzo_params_write_grad(f->params, 0, w));
    must(mezzo_params_write_grad(f->params, 1, b));
    must(mezzo_scaler_step(f->scaler, f->optimizer));
    must(mezzo_scaler_update(f->scaler));
    must(mezzo_optimizer_zero_grad(f->optimizer));
}

static mezzo_checkpoint of(small_run *f, int64_t step, double val_loss) {
    mezzo_model_config toy;
    must(mezzo_model_defaults("toy", &toy));
    snprintf(toy.size, sizeof toy.size, "toy-S"); // as a named size would have it
    mezzo_checkpoint c = {.params = f->params,
                          .optimizer = f->optimizer,
                          .scaler = f->scaler,
                          .step = step,
                          .seed = 42,
                          .batches = 17,
                          .val_loss = val_loss,
                          .best_val_loss = 0.1,
                          .precision = "fp16",
                          .tokenizer = "tokenizer.json"};
    must(mezzo_model_describe(&toy, c.model, sizeof c.model));
    return c;
}

static void save(small_run *f, int64_t step, double val_loss, int64_t keep) {
    mezzo_checkpoint c = of(f, step, val_loss);
    must(mezzo_checkpoint_save("kept", &c, keep, NULL, 0));
}

static int64_t newest(bool best) {
    char path[4096];
    mezzo_checkpoint c = {0};
    must(mezzo_checkpoint_find("kept", best, path, sizeof path));
    must(mezzo_checkpoint_describe(path, &c));
    return c.step;
}

static void damage(const char *path, bool truncate_it) {
    char *data;
    size_t n;
    must(mz_file_read(path, 1 << 20, &data, &n));
    data[n / 2] ^= 1;
    must(mz_file_write_atomic(path, data, truncate_it ? n - 5 : n));
    mz_free(data);
}

static void fails(mezzo_status got, mezzo_status want, const char *says, const char *and_says) {
    must_fail(got, want, says, and_says);
}

// Two steps, a checkpoint, one step; into fresh objects; the same step: the same bits.
TEST_WITH(test_everything_comes_back, setup, teardown) {
    small_run *f = *state, g = {0};
    char path[4096];
    float a[12], b[12];
    one_step(f, 1);
    one_step(f, INFINITY); // skipped: the scale is 4, a skip is counted
    mezzo_checkpoint c = of(f, 2, NAN), back;
    must(mezzo_checkpoint_save("kept", &c, 3, path, sizeof path));
    one_step(f, 3);
    must(mezzo_params_read(f->params, 0, a));

    make(&g, 3, false);
    back = (mezzo_checkpoint){.params = g.params, .optimizer = g.optimizer, .scaler = g.scaler};
    must(mezzo_checkpoint_load(path, &back));
    assert_int_equal(back.step, 2);
    assert_int_equal(back.seed, 42);
    assert_int_equal(back.batches, 17);
    assert_true(isnan(back.val_loss) && back.best_val_loss == 0.1);
    assert_string_equal(back.precision, "fp16");
    assert_string_equal(back.tokenizer, "tokenizer.json");
    assert_string_equal(back.model, c.model);
    assert_string_equal(back.model, "{\"name\":\"toy\",\"size\":\"toy-S\"}");
    mezzo_scaler_state s;
    must(mezzo_scaler_get_state(g.scaler, &s));
    assert_true(s.scale == 4 && s.skipped == 1);
    one_step(&g, 3);
    must(mezzo_params_read(g.params, 0, b));
    assert_memory_equal(a, b, sizeof a);
    mezzo_step_info info;
    must(mezzo_optimizer_info(g.optimizer, &info));
    assert_int_equal(info.step, 2);
    assert_int_equal(info.skipped, 1);
    discard(&g);
}

TEST_WITH(test_keeps_the_last_and_the_best, setup, teardown) {
    small_run *f = *state;
    const double losses[] = {3, 1, 2, NAN, 2.5};
    for (int i = 0; i < 5; i++)
        save(f, i + 1, losses[i], 2);
    assert_int_equal(newest(false), 5);
    assert_int_equal(newest(true), 2);
    const bool there[] = {false, true, false, true, true};
    for (int i = 0; i < 5; i++) {
        char path[64];
        snprintf(path, sizeof path, "kept/step-%08d", i + 1);
        assert_int_equal(mz_path_is_dir(path), there[i]);
    }
}

// Every checkpoint with its own name has all its files.
static void expect_all_whole(void) {
    mezzo_checkpoint c = {0};
    mz_checkpoint_state s;
    char **names, path[64];
    size_t n;
    must(mz_dir_list("kept", &names, &n));
    for (size_t i = 0; i < n; i++)
        if (strncmp(names[i], "step-", 5) == 0) {
            snprintf(path, sizeof path, "kept/%s", names[i]);
            must(mz_checkpoint_verify(path, MZ_CHECKPOINT_WHOLE, &c, &s));
        }
    mz_dir_list_free(names, n);
}

static bool watching; // what a reader sees before each file is removed
static int removals;

int unlink(const char *path) { // in the C library's place
    if (watching) {
        removals++;
        watching = false;
        expect_all_whole();
        watching = true;
    }
    return unlinkat(AT_FDCWD, path, 0);
}

// Seen to fail with: a dropped folder whose files are removed under its own name.
TEST_WITH(test_a_reader_never_sees_half_a_dropped_checkpoint, setup, teardown) {
    small_run *f = *state;
    save(f, 1, 3, 1);
    watching = true;
    save(f, 2, 2, 1);
    save(f, 2, 2, 1); // replaced
    watching = false;
    assert_true(removals >= 6);
    assert_false(mz_path_exists("kept/step-00000001"));
    assert_false(mz_path_exists("kept/" MZ_CHECKPOINT_STAGED));
}

TEST_WITH(test_a_lost_or_broken_manifest_loses_nothing, setup, teardown) {
    small_run *f = *state;
    save(f, 1, 3, 0);
    save(f, 2, 4, 0);
    must(mz_file_write_atomic("kept/manifest.json", "{\"format", 9));
    assert_int_equal(newest(false), 2);
    assert_int_equal(newest(true), 1);
    save(f, 3, 5, 0);
    assert_int_equal(newest(false), 3);
    assert_int_equal(newest(true), 1); // what the broken manifest named is known again
    assert_int_equal(remove("kept/manifest.json"), 0);
    assert_int_equal(newest(false), 3);
}

TEST_WITH(test_a_hostile_manifest_leads_nowhere, setup, teardown) {
    small_run *f = *state;
    const char text[] = "{\"format\": \"mezzo-manifest\", \"version\": 1, \"checkpoints\": [{\"name\": \"../../etc\", "
                        "\"step\": 9, \"val_loss\": 1, \"state_bytes\": 1, \"state_crc32c\": 1}]}";
    save(f, 1, 3, 0);
    must(mz_file_write_atomic("kept/manifest.json", text, sizeof text - 1));
    assert_int_equal(newest(false), 1);
}

TEST_WITH(test_damaged_files_are_named_and_passed_over, setup, teardown) {
    small_run *f = *state;
    const char *files[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
    for (int i = 0; i < 6; i++) {
        char path[128];
        mezzo_checkpoint c = {.params = f->params, .optimizer = f->optimizer};
        tiny_clean("kept");
        save(f, 1, 3, 0);
        save(f, 2, 4, 0);
        snprintf(path, sizeof path, "kept/step-00000002/%s", files[i / 2]);
        damage(path, i % 2 == 1);
        assert_int_equal(newest(false), 1);
        if (i / 2 == 2)
            continue; // may still be JSON with one bit changed: the manifest's checksum tells
        fails(mezzo_checkpoint_load("kept/step-00000002", &c), MEZZO_ERR_FORMAT, files[i / 2],
              i % 2 == 1 ? "truncated" : "corrupted");
    }
    assert_int_equal(remove("kept/step-00000001/model.safetensors"), 0);
    assert_int_equal(remove("kept/step-00000002/model.safetensors"), 0);
    char path[4096];
    fails(mezzo_checkpoint_find("kept", false, path, sizeof path), MEZZO_ERR_INVALID, "no whole checkpoint", "kept");
}

TEST_WITH(test_other_shapes_and_kinds_are_refused_whole, setup, teardown) {
    small_run *f = *state, wide = {0}, sgd = {0};
    float before[20], after[20];
    save(f, 1, 3, 0);
    make(&wide, 5, false);
    must(mezzo_params_read(wide.params, 0, before));
    mezzo_checkpoint c = {.params = wide.params, .step = -1};
    fails(mezzo_checkpoint_load("kept/step-00000001", &c), MEZZO_ERR_FORMAT,
          "model.safetensors: tensor 'w' is fp32 3x4", "fp32 5x4");
    must(mezzo_params_read(wide.params, 0, after));
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(c.step, -1);
    make(&sgd, 3, true);
    c = (mezzo_checkpoint){.params = sgd.params, .optimizer = sgd.optimizer};
    fails(mezzo_checkpoint_load("kept/step-00000001", &c), MEZZO_ERR_INVALID, "adamw", "sgd");
    discard(&wide);
    discard(&sgd);
}

// Losses of random batches and of the whole set do not compare: the best is one of the newest one's kind.
TEST_WITH(test_the_best_is_of_one_kind, setup, teardown) {
    small_run *f = *state;
    static const struct {
        double loss;
        bool sampled;
        const char *best;
    } saved[] = {{3, true, "step-00000001"},  {2.5, true, "step-00000002"},  {1, false, "step-00000003"},
                 {2, false, "step-00000003"}, {2.75, true, "step-00000002"}, {(double)NAN, false, "step-00000002"}};
    char path[4096];
    for (int i = 0; i < (int)MZ_COUNT(saved); i++) {
        mezzo_checkpoint c = of(f, i + 1, saved[i].loss), back = {0};
        c.val_sampled = saved[i].sampled;
        must(mezzo_checkpoint_save("kept", &c, 0, path, sizeof path));
        must(mezzo_checkpoint_describe(path, &back));
        assert_true(back.val_sampled == saved[i].sampled && back.best_val_loss == c.best_val_loss);
        must(mezzo_checkpoint_find("kept", true, path, sizeof path));
        assert_non_null(strstr(path, saved[i].best));
    }
}

TEST_WITH(test_the_same_step_is_replaced, setup, teardown) {
    small_run *f = *state;
    char path[4096];
    save(f, 7, 3, 0);
    one_step(f, 1);
    mezzo_checkpoint c = of(f, 7, 2), back = {0};
    must(mezzo_checkpoint_save("kept", &c, 0, path, sizeof path));
    must(mezzo_checkpoint_describe(path, &back));
    assert_true(back.val_loss == 2);
    char **names;
    size_t n;
    must(mz_dir_list("kept", &names, &n));
    assert_int_equal(n, 3); // .lock, manifest.json and the one
    mz_dir_list_free(names, n);
}

// What a load would refuse is not written: the message names tensor and element, the older checkpoint stays, nothing
// is left.
TEST_WITH(test_an_unsound_tensor_is_not_saved, setup, teardown) {
    small_run *f = *state;
    char path[4096];
    const float bad = INFINITY;
    save(f, 1, 3, 0);
    mezzo_checkpoint c = of(f, 2, 2);
    must(f->device->backend->write(f->device, mz_optimizer_moment(f->optimizer, 1, 3, 1).data, &bad, sizeof bad));
    fails(mezzo_checkpoint_save("kept", &c, 0, path, sizeof path), MEZZO_ERR_NUMERIC, "exp_avg_sq", "element 3 is inf");
    assert_int_equal(newest(false), 1);
    assert_false(mz_path_exists("kept/.writing"));
}

// Numbers under which nothing could be found or read again.
TEST_WITH(test_numbers_out_of_range_are_not_saved, setup, teardown) {
    small_run *f = *state;
    const int64_t steps[] = {-1, INT64_MIN, INT64_MAX, INT64_C(1000000000000000000)};
    for (size_t i = 0; i < MZ_COUNT(steps); i++) {
        mezzo_checkpoint c = of(f, steps[i], 2);
        fails(mezzo_checkpoint_save("kept", &c, 0, NULL, 0), MEZZO_ERR_INVALID, "step", "999999999999999999");
    }
    mezzo_checkpoint c = of(f, 1, 2);
    c.batches = UINT64_C(1) << 63;
    fails(mezzo_checkpoint_save("kept", &c, 0, NULL, 0), MEZZO_ERR_INVALID, "batches", "9223372036854775808");
    c.batches = 0;
    c.data.bytes = UINT64_C(1) << 63;
    fails(mezzo_checkpoint_save("kept", &c, 0, NULL, 0), MEZZO_ERR_INVALID, "data", "9223372036854775808");
    c.data.bytes = 0;
    c.validation.bytes = UINT64_MAX;
    fails(mezzo_checkpoint_save("kept", &c, 0, NULL, 0), MEZZO_ERR_INVALID, "data", "18446744073709551615");
    c.validation.bytes = 0;
    c = of(f, 1, 2);
    snprintf(c.tokenizer, sizeof c.tokenizer, "../x");
    fails(mezzo_checkpoint_save("kept", &c, 0, NULL, 0), MEZZO_ERR_INVALID, "tokenizer", "'../x'");
}

// Evaluating needs no moments: what is not read is not asked for.
TEST_WITH(test_weights_alone_are_enough_for_readers, setup, teardown) {
    small_run *f = *state;
    char path[4096];
    save(f, 1, 3, 0);
    save(f, 2, 4, 0);
    damage("kept/step-00000002/optimizer.safetensors", false);
    must(mz_checkpoint_find("kept", false, false, MZ_CHECKPOINT_WEIGHTS, path, sizeof path));
    assert_string_equal(path, "kept/step-00000002");
    mezzo_checkpoint weights = {.params = f->params}, all = {.params = f->params, .optimizer = f->optimizer};
    must(mezzo_checkpoint_load(path, &weights));
    fails(mezzo_checkpoint_load(path, &all), MEZZO_ERR_FORMAT, "optimizer.safetensors", "corrupted");
    assert_int_equal(newest(false), 1);
}

// Any byte of state.json that is changed is found, also where the checkpoint is named.
TEST_WITH(test_a_changed_state_is_refused, setup, teardown) {
    small_run *f = *state;
    char *text;
    size_t n;
    save(f, 1, 3, 0);
    must(mz_file_read("kept/step-00000001/state.json", 1 << 16, &text, &n));
    for (size_t i = 0; i < n * 8; i += 3) {
        mezzo_checkpoint c = {.params = f->params};
        text[i / 8] = (char)(text[i / 8] ^ 1 << i % 8);
        must(mz_file_write_atomic("kept/step-00000001/state.json", text, n));
        if (mezzo_checkpoint_load("kept/step-00000001", &c) == MEZZO_OK)
            fail_msg("bit %zu of state.json: not found", i);
        text[i / 8] = (char)(text[i / 8] ^ 1 << i % 8);
    }
    mz_free(text);
}
