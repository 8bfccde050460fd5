// An infinity that turns up on the device: that step is left out and training goes on as if it had not been, in graphs
// that are replayed, while the host reads nothing. Seen to fail with an optimizer that moves all the same, and with a
// read put into the loop.
#include "fixture.h"
#include "runtime/params.h"

enum { BATCH = 2, LENGTH = 16, VOCAB = 61, STEPS = 12 };

// --- the device, with its ways of waiting counted ------------------------------------------------------------------
static const mz_backend *real;
static mz_backend watched;
static int waits;

static mezzo_status watched_read(mezzo_device *device, void *host, const void *src, size_t bytes) {
    waits++;
    return real->read(device, host, src, bytes);
}
static mezzo_status watched_sync(mezzo_device *device) {
    waits++;
    return real->sync(device);
}
static mezzo_status watched_fetched(mezzo_device *device, mz_fetch *fetch, const void **host) {
    waits++;
    return real->fetched(device, fetch, host);
}

// --- training ------------------------------------------------------------------------------------------------------
typedef struct trainer {
    fixture f;
    float *values; // [elements]: any parameter fits
} trainer;

static void open_trainer(mezzo_precision precision, trainer *t) {
    mezzo_scaler_options scaling = mezzo_scaler_defaults();
    scaling.enabled = precision == MEZZO_PRECISION_FP16;
    scaling.init_scale = 1024;
    fixture_options options = {.model = fixture_model("gpt2", 32, 128, VOCAB, LENGTH),
                               .batch = BATCH,
                               .program = {.precision = precision, .loss_weight = 1},
                               .scaler = &scaling,
                               .step = &(mezzo_step_options){.clip = 1.0}};
    options.model.dropout = 0.1;
    *t = (trainer){0};
    must(mezzo_device_open(test_device(), 1, &t->f.device));
    real = t->f.device->backend;
    watched = *real;
    watched.read = watched_read, watched.sync = watched_sync, watched.fetched = watched_fetched;
    t->f.device->backend = &watched;
    fixture_open(&t->f, &options);
    t->values = calloc((size_t)mezzo_params_elements(t->f.params), sizeof *t->values);
    assert_non_null(t->values);
}

static void close_trainer(trainer *t) {
    free(t->values);
    t->f.device->backend = real;
    fixture_close(&t->f);
}

static void backward(trainer *t, int step) {
    must(fixture_batch(t->f.program, BATCH * LENGTH, VOCAB, step));
    must(mezzo_step_micro(t->f.step, 3, (uint64_t)step));
}

static bool overflows(int step) {
    return step == 4 || step == 8 || step == 9;
}

// `leaves_out`: the steps that would overflow make no update, and a scale is halved by hand. Else their gradients get
// an infinity.
static void train(trainer *t, bool scaled, bool leaves_out) {
    double scale = 1024;
    waits = 0;
    for (int step = 1; step <= STEPS; step++) {
        backward(t, step);
        if (overflows(step) && leaves_out) {
            scale /= 2;
            must(mezzo_step_drop(t->f.step));
            if (scaled)
                must(mezzo_scaler_set_scale(t->f.scaler, scale));
            continue;
        }
        if (overflows(step)) {
            int last = mezzo_params_count(t->f.params) - 1;
            memset(t->values, 0, (size_t)t->f.params->list[last].count * sizeof *t->values);
            t->values[t->f.params->list[last].count - 1] = -__builtin_inff();
            must(mezzo_params_write_grad(t->f.params, last, t->values));
        }
        must(mezzo_step_finish(t->f.step));
    }
}

static void an_infinity_leaves_its_step_out(mezzo_precision precision) {
    trainer a, b;
    mezzo_step_info info;
    mezzo_scaler_state scaler;
    bool scaled = precision == MEZZO_PRECISION_FP16;
    open_trainer(precision, &a);
    train(&a, scaled, false);
    assert_int_equal(waits, 0);
    must(mezzo_optimizer_info(a.f.optimizer, &info));
    must(mezzo_scaler_get_state(a.f.scaler, &scaler));
    assert_int_equal(info.step, STEPS - 3);
    assert_int_equal(info.skipped, 3);
    assert_false(info.found_inf);
    assert_true(scaler.scale == (scaled ? 128 : 1));
    float *trained = calloc((size_t)mezzo_params_elements(a.f.params), sizeof *trained), *at = trained;
    assert_non_null(trained);
    for (int p = 0; p < mezzo_params_count(a.f.params); at += a.f.params->list[p++].count)
        must(mezzo_params_read(a.f.params, p, at));
    close_trainer(&a);

    open_trainer(precision, &b);
    train(&b, scaled, true);
    at = trained;
    for (int p = 0; p < mezzo_params_count(b.f.params); at += b.f.params->list[p++].count) {
        must(mezzo_params_read(b.f.params, p, b.values));
        assert_memory_equal(b.values, at, (size_t)b.f.params->list[p].count * sizeof *at);
        for (int64_t i = 0; i < b.f.params->list[p].count; i++)
            assert_true(at[i] - at[i] == 0);
    }
    close_trainer(&b);
    free(trained);
}

TEST(in_fp16) {
    an_infinity_leaves_its_step_out(MEZZO_PRECISION_FP16);
}
TEST(in_bf16) {
    an_infinity_leaves_its_step_out(MEZZO_PRECISION_BF16);
}
TEST(in_fp32) {
    an_infinity_leaves_its_step_out(MEZZO_PRECISION_FP32);
}
