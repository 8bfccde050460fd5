// Every allocation, write, flush and rename fails in turn. What is relied on: an error with a message, nothing leaked
// (the sanitizers look), and the older checkpoint as it was.
#include "tiny_run.h"

typedef struct objects {
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
} objects;

static void objects_free(objects *o) {
    mezzo_program_free(o->program);
    mezzo_optimizer_free(o->optimizer);
    mezzo_scaler_free(o->scaler);
    mezzo_params_free(o->params);
    mezzo_device_close(o->device);
    *o = (objects){0};
}

static mezzo_status create(objects *o) {
    mezzo_graph *g = NULL;
    mezzo_model_config model;
    const mezzo_program_options options = {.precision = MEZZO_PRECISION_BF16};
    const mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    const mezzo_scaler_options scaler = mezzo_scaler_defaults();
    mezzo_status status = mezzo_model_defaults("toy", &model);
    if (status == MEZZO_OK)
        status = mezzo_graph_create(&g);
    if (status == MEZZO_OK)
        status = mezzo_model_build(g, &model, 4, 1, true);
    if (status == MEZZO_OK)
        status = mezzo_params_create(o->device, g, 1, &o->params);
    if (status == MEZZO_OK)
        status = mezzo_program_create(g, o->params, &options, &o->program);
    if (status == MEZZO_OK)
        status = mezzo_optimizer_create(o->params, &adamw, &o->optimizer);
    if (status == MEZZO_OK)
        status = mezzo_scaler_create(o->device, &scaler, &o->scaler);
    mezzo_graph_free(g);
    return status;
}

static void open_objects(objects *o) {
    *o = (objects){0};
    must(mezzo_device_open("ref", 1, &o->device));
    must(create(o));
}

static mezzo_checkpoint checkpoint_of(const objects *o, int64_t step) {
    return (mezzo_checkpoint){.params = o->params,
                              .optimizer = o->optimizer,
                              .scaler = o->scaler,
                              .step = step,
                              .seed = 7,
                              .batches = 11,
                              .val_loss = 2,
                              .best_val_loss = 1,
                              .precision = "bf16"};
}

static void mark(objects *o, float value) {
    float v[64];
    for (int i = 0; i < 64; i++)
        v[i] = value;
    must(mezzo_params_write(o->params, 0, v));
}

static float marked(objects *o) {
    float v[64];
    must(mezzo_params_read(o->params, 0, v));
    return v[0];
}

TEST(test_every_allocation_of_creation) {
    objects o = {0};
    must(mezzo_device_open("ref", 1, &o.device));
    int64_t n = 0;
    for (;; n++) {
        objects made = {.device = o.device};
        mz_alloc_fail_after(n);
        mezzo_status status = create(&made);
        mz_alloc_fail_after(-1);
        made.device = NULL;
        objects_free(&made);
        if (status == MEZZO_OK)
            break;
        if (status != MEZZO_ERR_MEMORY)
            fail_msg("allocation %lld: %s: %s", (long long)n, mezzo_status_name(status), mezzo_error_message());
        assert_true(mezzo_error_message()[0] != '\0');
    }
    print_message("%lld allocations\n", (long long)n);
    assert_true(n > 20);
    mezzo_device_close(o.device);
}

typedef void (*arm_fn)(int64_t n); // the n-th from now fails; negative: none
static void arm_alloc(int64_t n) {
    mz_alloc_fail_after(n);
}
static void arm_open(int64_t n) {
    mz_io_fail_after(MZ_IO_OPEN, n);
}
static void arm_write(int64_t n) {
    mz_io_fail_after(MZ_IO_WRITE, n);
}
static void arm_fsync(int64_t n) {
    mz_io_fail_after(MZ_IO_FSYNC, n);
}
static void arm_rename(int64_t n) {
    mz_io_fail_after(MZ_IO_RENAME, n);
}

// Step 1 is whole. A save of `step` fails at each call in turn; after each failure step 1, or the newer one if it is
// whole, loads.
static void saves(arm_fn arm, int64_t step, const char *what) {
    objects o;
    char path[4096];
    tiny_clean("faulty");
    open_objects(&o);
    mark(&o, 1);
    mezzo_checkpoint one = checkpoint_of(&o, 1), next = checkpoint_of(&o, step);
    must(mezzo_checkpoint_save("faulty", &one, 0, NULL, 0));
    int64_t n = 0;
    for (;; n++) {
        mark(&o, 2);
        arm(n);
        mezzo_status status = mezzo_checkpoint_save("faulty", &next, 0, path, sizeof path);
        arm(-1);
        if (status != MEZZO_OK && status != MEZZO_ERR_IO && status != MEZZO_ERR_MEMORY)
            fail_msg("%s %lld: %s: %s", what, (long long)n, mezzo_status_name(status), mezzo_error_message());
        mezzo_checkpoint found = checkpoint_of(&o, 0);
        mark(&o, 3);
        must(mezzo_checkpoint_find("faulty", false, path, sizeof path));
        must(mezzo_checkpoint_load(path, &found));
        bool old = found.step == 1 && marked(&o) == 1, fresh = found.step == step && marked(&o) == 2;
        if (!old && !fresh)
            fail_msg("%s %lld: step %lld with %g in it", what, (long long)n, (long long)found.step, (double)marked(&o));
        if (status == MEZZO_OK) {
            assert_true(fresh);
            break;
        }
    }
    print_message("%s: %lld calls in a save\n", what, (long long)n);
    assert_true(n > 2);
    objects_free(&o);
}

TEST(test_every_call_of_a_save) {
    saves(arm_alloc, 2, "allocation");
    saves(arm_open, 2, "open");
    saves(arm_write, 2, "write");
    saves(arm_fsync, 2, "fsync");
    saves(arm_rename, 2, "rename");
}

// The same step again: the one that is replaced stays until the new one is whole.
TEST(test_every_call_of_a_replacement) {
    saves(arm_alloc, 1, "allocation");
    saves(arm_write, 1, "write");
    saves(arm_fsync, 1, "fsync");
    saves(arm_rename, 1, "rename");
}

// A load that fails changes nothing.
TEST(test_every_allocation_of_a_load) {
    objects o;
    char path[4096];
    tiny_clean("faulty");
    open_objects(&o);
    mark(&o, 1);
    mezzo_checkpoint c = checkpoint_of(&o, 1);
    must(mezzo_checkpoint_save("faulty", &c, 0, path, sizeof path));
    mark(&o, 5);
    for (int64_t n = 0;; n++) {
        mezzo_checkpoint read = checkpoint_of(&o, -1);
        mz_alloc_fail_after(n);
        mezzo_status status = mezzo_checkpoint_load(path, &read);
        mz_alloc_fail_after(-1);
        if (status == MEZZO_OK) {
            assert_true(marked(&o) == 1);
            assert_int_equal(read.step, 1);
            break;
        }
        assert_int_equal(status, MEZZO_ERR_MEMORY);
        assert_true(marked(&o) == 5);
        assert_int_equal(read.step, -1);
    }
    objects_free(&o);
}

// A whole run, every so many allocations: an error or, once the run needs fewer, success.
TEST(test_allocations_of_a_run) {
    tiny_log log = {0};
    mezzo_train_result result;
    const char *args[] = {"--steps=2", "--layers=1", "--eval-every=1", "--sample-every=0", "--sample-tokens=3", NULL};
    enum { SETTINGS = 64 }; // allocations of the words above and tiny_run's
    mezzo_config *config;
    tiny_clean("faulty");
    uint64_t before = mz_alloc_count();
    must(mezzo_config_create(&config));
    int64_t configuration = (int64_t)(mz_alloc_count() - before) + SETTINGS;
    mezzo_config_free(config);
    before = mz_alloc_count();
    must(tiny_run("faulty", args, &log, &result));
    int64_t total = (int64_t)(mz_alloc_count() - before), stride = total / 60 + 1;
    for (int64_t n = 0; n < total; n += stride) {
        tiny_clean("faulty");
        mz_alloc_fail_after(n + configuration); // whose creation must succeed here
        mezzo_status status = tiny_run("faulty", args, &log, &result);
        mz_alloc_fail_after(-1);
        if (status != MEZZO_OK && status != MEZZO_ERR_MEMORY)
            fail_msg("allocation %lld: %s: %s", (long long)n, mezzo_status_name(status), mezzo_error_message());
    }
}

// A checkpoint names a step, so the records up to it are flushed before it: some failing fsync is that of
// metrics.jsonl.
TEST(test_records_are_flushed_before_a_checkpoint) {
    tiny_log log = {0};
    mezzo_train_result result;
    const char *args[] = {"--steps=2", "--layers=1", "--checkpoint-every=2", NULL};
    for (int64_t n = 0;; n++) {
        tiny_clean("flushed");
        mz_io_fail_after(MZ_IO_FSYNC, n);
        mezzo_status status = tiny_run("flushed", args, &log, &result);
        mz_io_fail_after(MZ_IO_FSYNC, -1);
        if (status == MEZZO_OK)
            fail_msg("none of %lld flushes is of metrics.jsonl", (long long)n);
        assert_int_equal(status, MEZZO_ERR_IO);
        if (strstr(mezzo_error_message(), "metrics.jsonl") != NULL)
            break;
    }
    assert_false(mz_path_exists("flushed/checkpoints/step-00000002"));
}

TEST_GROUP(tiny_setup, NULL)
