// The grad scaler as a loop of one's own meets it: order of calls, what an overflow does and does not move, state. The
// sequences of PyTorch's scaler, value for value, are in tests/golden.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "mezzo/optimizer.h"
#include "test.h"

typedef struct fixture {
    mezzo_device *device;
    mezzo_params *params; // a [3], b [2, 2]
    mezzo_optimizer *whole, *first, *second;
    mezzo_scaler *scaler;
} fixture;

static mezzo_optimizer_options plain_sgd(void) {
    mezzo_optimizer_options o = mezzo_optimizer_defaults();
    o.kind = MEZZO_SGD;
    o.schedule.lr = 1;
    o.weight_decay = 0;
    return o;
}

static int setup(void **state) {
    fixture *f = calloc(1, sizeof *f);
    mezzo_graph *g;
    assert_int_equal(mezzo_device_open("ref", 1, &f->device), MEZZO_OK);
    assert_int_equal(mezzo_graph_create(&g), MEZZO_OK);
    mezzo_init ones = {.kind = MEZZO_INIT_CONSTANT, .a = 1};
    mezzo_param(g, "a", ones, 1, (int64_t[]){3});
    mezzo_param(g, "b", ones, 2, (int64_t[]){2, 2});
    assert_int_equal(mezzo_params_create(f->device, g, 1, &f->params), MEZZO_OK);
    mezzo_graph_free(g);
    mezzo_optimizer_options o = plain_sgd();
    assert_int_equal(mezzo_optimizer_create(f->params, &o, &f->whole), MEZZO_OK);
    o.n_patterns = 1;
    o.patterns = (const char *const[]){"a"};
    assert_int_equal(mezzo_optimizer_create(f->params, &o, &f->first), MEZZO_OK);
    o.patterns = (const char *const[]){"b"};
    assert_int_equal(mezzo_optimizer_create(f->params, &o, &f->second), MEZZO_OK);
    mezzo_scaler_options s = mezzo_scaler_defaults();
    s.init_scale = 4;
    s.growth_interval = 2;
    assert_int_equal(mezzo_scaler_create(f->device, &s, &f->scaler), MEZZO_OK);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fixture *f = *state;
    mezzo_scaler_free(f->scaler);
    mezzo_optimizer_free(f->whole);
    mezzo_optimizer_free(f->first);
    mezzo_optimizer_free(f->second);
    mezzo_params_free(f->params);
    mezzo_device_close(f->device);
    free(f);
    return 0;
}

static void set_grads(fixture *f, float a, float b) {
    const float ga[3] = {a, a, a}, gb[4] = {b, b, b, b};
    assert_int_equal(mezzo_params_write_grad(f->params, 0, ga), MEZZO_OK);
    assert_int_equal(mezzo_params_write_grad(f->params, 1, gb), MEZZO_OK);
}

static double scale_of(fixture *f) {
    mezzo_scaler_state s;
    assert_int_equal(mezzo_scaler_get_state(f->scaler, &s), MEZZO_OK);
    return s.scale;
}

static float value_of(fixture *f, int index) {
    float v[4];
    assert_int_equal(mezzo_params_read(f->params, index, v), MEZZO_OK);
    return v[0];
}

static void fails(mezzo_status status, const char *message) {
    must_fail(status, MEZZO_ERR_INVALID, message);
}

TEST_WITH(test_a_good_step_divides_by_the_scale, setup, teardown) {
    fixture *f = *state;
    set_grads(f, 2, 8);
    assert_int_equal(mezzo_scaler_step(f->scaler, f->whole), MEZZO_OK);
    assert_int_equal(mezzo_scaler_update(f->scaler), MEZZO_OK);
    assert_true(value_of(f, 0) == 0.5f && value_of(f, 1) == -1.0f); // 1 - g/4
    mezzo_step_info info;
    assert_int_equal(mezzo_optimizer_info(f->whole, &info), MEZZO_OK);
    assert_int_equal(info.step, 1);
    assert_true(fabs(info.grad_norm - sqrt(3 * 0.25 + 4 * 4.0)) < 1e-12);
}

// Each misuse leaves the objects usable, with PyTorch's words.
TEST_WITH(test_misuse, setup, teardown) {
    fixture *f = *state;
    fails(mezzo_scaler_update(f->scaler), "No inf checks were recorded prior to update.");
    fails(mezzo_scaler_step(f->scaler, f->whole), "No inf checks were recorded for this optimizer");
    fails(mezzo_scaler_update(f->scaler), "No inf checks were recorded prior to update.");
    mezzo_scaler_free(f->scaler);
    mezzo_scaler_options s = mezzo_scaler_defaults();
    assert_int_equal(mezzo_scaler_create(f->device, &s, &f->scaler), MEZZO_OK);
    set_grads(f, 1, 1);
    assert_int_equal(mezzo_scaler_unscale(f->scaler, f->whole), MEZZO_OK);
    fails(mezzo_scaler_unscale(f->scaler, f->whole),
          "unscale_() has already been called on this optimizer since the last update().");
    assert_int_equal(mezzo_scaler_step(f->scaler, f->whole), MEZZO_OK);
    fails(mezzo_scaler_step(f->scaler, f->whole), "step() has already been called since the last update().");
    fails(mezzo_scaler_unscale(f->scaler, f->whole), "unscale_() is being called after step().");
    assert_int_equal(mezzo_scaler_update(f->scaler), MEZZO_OK);
    assert_int_equal(mezzo_optimizer_zero_grad(f->whole), MEZZO_OK);
    fails(mezzo_optimizer_step(f->whole), "no program has written gradients");
}

TEST_WITH(test_two_optimizers_one_overflows, setup, teardown) {
    fixture *f = *state;
    set_grads(f, 4, INFINITY);
    assert_int_equal(mezzo_scaler_step(f->scaler, f->first), MEZZO_OK);
    assert_int_equal(mezzo_scaler_step(f->scaler, f->second), MEZZO_OK);
    assert_int_equal(mezzo_scaler_update(f->scaler), MEZZO_OK);
    assert_true(value_of(f, 0) == 0.0f); // its own gradients were finite: it steps
    assert_true(value_of(f, 1) == 1.0f); // skipped
    assert_true(scale_of(f) == 2);       // the logical OR backs off
    mezzo_step_info info;
    assert_int_equal(mezzo_optimizer_info(f->second, &info), MEZZO_OK);
    assert_int_equal(info.step, 0);
    assert_int_equal(info.skipped, 1);
    assert_true(info.found_inf);
    // And the next one of the second goes through: found_inf does not stick.
    set_grads(f, 2, 2);
    assert_int_equal(mezzo_scaler_step(f->scaler, f->second), MEZZO_OK);
    assert_int_equal(mezzo_scaler_update(f->scaler), MEZZO_OK);
    assert_true(value_of(f, 1) == 0.0f);
}

TEST_WITH(test_clip_sees_unscaled_gradients_and_checks_once, setup, teardown) {
    fixture *f = *state;
    set_grads(f, 0, 8); // unscaled: b = 2 each, norm 4
    assert_int_equal(mezzo_scaler_unscale(f->scaler, f->whole), MEZZO_OK);
    assert_int_equal(mezzo_optimizer_clip(f->whole, 1.0), MEZZO_OK);
    assert_int_equal(mezzo_scaler_step(f->scaler, f->whole), MEZZO_OK);
    assert_int_equal(mezzo_scaler_update(f->scaler), MEZZO_OK);
    mezzo_step_info info;
    assert_int_equal(mezzo_optimizer_info(f->whole, &info), MEZZO_OK);
    assert_true(fabs(info.grad_norm - 4) < 1e-12);
    assert_true(fabs(info.clip - 1 / (4 + 1e-6)) < 1e-15);
    // 1 - 2·clip in FP32: one rounding of each of factor, product and difference.
    assert_true(fabs((double)value_of(f, 1) - (1 - 2 / (4 + 1e-6))) < 2e-7);
    // The factor is for one step only.
    set_grads(f, 0, 8);
    assert_int_equal(mezzo_scaler_step(f->scaler, f->whole), MEZZO_OK);
    assert_int_equal(mezzo_scaler_update(f->scaler), MEZZO_OK);
    assert_int_equal(mezzo_optimizer_info(f->whole, &info), MEZZO_OK);
    assert_true(info.clip == 1);
}

TEST_WITH(test_disabled_keeps_the_check, setup, teardown) {
    fixture *f = *state;
    mezzo_scaler *off;
    mezzo_scaler_options s = mezzo_scaler_defaults();
    s.enabled = false;
    assert_int_equal(mezzo_scaler_create(f->device, &s, &off), MEZZO_OK);
    set_grads(f, NAN, 1);
    assert_int_equal(mezzo_scaler_unscale(off, f->whole), MEZZO_OK);
    assert_int_equal(mezzo_scaler_step(off, f->whole), MEZZO_OK);
    assert_int_equal(mezzo_scaler_update(off), MEZZO_OK);
    assert_true(value_of(f, 1) == 1.0f);
    set_grads(f, 1, 1);
    assert_int_equal(mezzo_scaler_step(off, f->whole), MEZZO_OK);
    assert_int_equal(mezzo_scaler_update(off), MEZZO_OK);
    assert_true(value_of(f, 1) == 0.0f);
    mezzo_scaler_state got;
    assert_int_equal(mezzo_scaler_get_state(off, &got), MEZZO_OK);
    assert_true(got.scale == 1);
    assert_int_equal(got.skipped, 1);
    mezzo_scaler_free(off);
}

TEST_WITH(test_an_optimizer_may_go_before_its_scaler, setup, teardown) {
    fixture *f = *state;
    set_grads(f, 1, 1);
    assert_int_equal(mezzo_scaler_unscale(f->scaler, f->first), MEZZO_OK);
    mezzo_optimizer_free(f->first);
    f->first = NULL;
    fails(mezzo_scaler_update(f->scaler), "No inf checks were recorded prior to update.");
}

TEST_WITH(test_the_floor_is_an_error_after_patience, setup, teardown) {
    fixture *f = *state;
    mezzo_scaler *s;
    mezzo_scaler_options o = mezzo_scaler_defaults();
    o.init_scale = 2;
    o.min_scale = 1;
    o.floor_patience = 3;
    assert_int_equal(mezzo_scaler_create(f->device, &o, &s), MEZZO_OK);
    int updates = 0;
    mezzo_status status = MEZZO_OK;
    while (status == MEZZO_OK && updates < 20) {
        set_grads(f, INFINITY, 1);
        assert_int_equal(mezzo_scaler_step(s, f->whole), MEZZO_OK);
        status = mezzo_scaler_update(s);
        updates++;
    }
    assert_int_equal(status, MEZZO_ERR_NUMERIC);
    assert_int_equal(updates, 5); // 2 → 1, three hits, seen one update late
    assert_true(value_of(f, 0) == 1.0f);
    mezzo_scaler_free(s);
}

TEST_WITH(test_bad_options_are_refused, setup, teardown) {
    fixture *f = *state;
    mezzo_scaler *s;
    const struct {
        size_t offset;
        double value;
    } bad[] = {{offsetof(mezzo_scaler_options, init_scale), NAN},   {offsetof(mezzo_scaler_options, init_scale), 0},
               {offsetof(mezzo_scaler_options, init_scale), 1e39},  {offsetof(mezzo_scaler_options, growth_factor), 1},
               {offsetof(mezzo_scaler_options, backoff_factor), 1}, {offsetof(mezzo_scaler_options, min_scale), -1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mezzo_scaler_options o = mezzo_scaler_defaults();
        memcpy((char *)&o + bad[i].offset, &bad[i].value, sizeof bad[i].value);
        assert_int_equal(mezzo_scaler_create(f->device, &o, &s), MEZZO_ERR_INVALID);
        assert_null(s);
    }
}
