// A step's move may run beside the next step's forward: parameters, moments and losses are the same bits as where every
// call waits for the one before it. Devices with one stream pass by doing the same twice (unit/test_capture has a
// device of the CPU's that keeps calls for later). Seen to fail on a GPU with the waits for a part left out of the
// graph.
#include "fixture.h"
#include "runtime/program.h"
#include "optim/step.h"

enum { BATCH = 4, LENGTH = 64, VOCAB = 300, STEPS = 9 };

typedef struct trial {
    const char *model;
    mezzo_precision precision;
    mezzo_master master;
    int micros;
    bool sgd, unclipped, looks; // looks: the host reads parameters and evaluates between steps
    mezzo_moments moments;
} trial;

static void micro(mezzo_program *p, mezzo_scaler *s, mezzo_step *step, int k) {
    must(fixture_batch(p, BATCH * LENGTH, VOCAB, k));
    if (step != NULL)
        must(mezzo_step_micro(step, 3, (uint64_t)k));
    else
        must(mezzo_program_run(p, s, 3, (uint64_t)k));
}

static mezzo_graph *build(const trial *t) {
    mezzo_model_config c = fixture_model(t->model, 128, 256, VOCAB, LENGTH);
    c.layers = 3, c.d_expert = 64;
    return fixture_graph(&c, BATCH, LENGTH, false);
}

static void update(const trial *t, mezzo_optimizer *o, mezzo_scaler *s) {
    must(mezzo_scaler_unscale(s, o));
    if (!t->unclipped)
        must(mezzo_optimizer_clip(o, 0.5));
    must(mezzo_scaler_step(s, o));
    must(mezzo_scaler_update(s));
    must(mezzo_optimizer_zero_grad(o));
}

typedef struct result {
    float *values; // losses, parameters, moments
    size_t n;
} result;

static void keep(result *r, const float *values, size_t n) {
    r->values = realloc(r->values, (r->n + n) * sizeof *values);
    assert_non_null(r->values);
    memcpy(r->values + r->n, values, n * sizeof *values);
    r->n += n;
}

static void keep_parameters(result *r, mezzo_params *params) {
    for (int i = 0; i < mezzo_params_count(params); i++) {
        float *values = calloc((size_t)params->list[i].count, sizeof *values);
        assert_non_null(values);
        must(mezzo_params_read(params, i, values));
        keep(r, values, (size_t)params->list[i].count);
        free(values);
    }
}

static void keep_moments(result *r, const mezzo_optimizer *o) {
    for (int which = 0; which < o->n_moments; which++) {
        const size_t bytes = mz_optimizer_moment_bytes(o, which, o->moment_elements[which]);
        float *values = calloc(bytes / sizeof *values, sizeof *values);
        assert_non_null(values);
        must(o->device->backend->read(o->device, values, o->d_moments[which], bytes));
        keep(r, values, bytes / sizeof *values);
        free(values);
    }
}

static void train(const trial *t, bool defers, result *r) {
    mezzo_device *device;
    mezzo_graph *g;
    mezzo_params *params;
    mezzo_program *p, *evaluation;
    mezzo_optimizer *o;
    mezzo_scaler *s;
    mezzo_step *object = NULL;
    float loss;
    must(mezzo_device_open(test_device(), 1, &device));
    g = build(t);
    mezzo_program_options options = {.precision = t->precision, .loss_weight = 1.0f / (float)t->micros};
    must(mezzo_params_create_as(device, g, &options, 7, t->master, &params));
    mezzo_optimizer_options moving = mezzo_optimizer_defaults();
    moving.moments = t->moments;
    if (t->sgd)
        moving.kind = MEZZO_SGD, moving.momentum = 0.9;
    mezzo_scaler_options scaling = mezzo_scaler_defaults();
    scaling.enabled = t->precision == MEZZO_PRECISION_FP16;
    scaling.init_scale = 0x1p24, scaling.growth_interval = 2; // some steps are skipped
    must(mezzo_program_create(g, params, &options, &p));
    options.forward_only = true;
    must(mezzo_program_create(g, params, &options, &evaluation));
    must(mezzo_optimizer_create(params, &moving, &o));
    must(mz_optimizer_set_bucket(o, 20000));
    must(mezzo_scaler_create(device, &scaling, &s));
    const mezzo_step_options each = {.micro_batches = t->micros, .clip = t->unclipped ? 0 : 0.5};
    if (defers)
        must(mezzo_step_create(p, &o, 1, s, &each, &object));
    mezzo_graph_free(g);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < t->micros; i++)
            micro(p, s, object, step * t->micros + i);
        must(mezzo_program_read(p, "loss", &loss, sizeof loss));
        keep(r, &loss, 1);
        if (defers)
            must(mezzo_step_finish(object));
        else
            update(t, o, s);
        if (defers && device->backend->capture_stream)
            assert_true(device->deferred != NULL && device->deferred->list.n > 3);
        if (t->looks && step % 4 == 1)
            keep_parameters(r, params);
        if (t->looks && step % 4 == 3) {
            micro(evaluation, NULL, NULL, step);
            must(mezzo_program_read(evaluation, "loss", &loss, sizeof loss));
            keep(r, &loss, 1);
        }
    }
    keep_parameters(r, params);
    keep_moments(r, o);
    mezzo_step_info info;
    must(mezzo_optimizer_info(o, &info));
    assert_true(scaling.enabled == (info.skipped > 0) && info.step > 2);
    mezzo_step_free(object);
    mezzo_scaler_free(s);
    mezzo_optimizer_free(o);
    mezzo_program_free(p);
    mezzo_program_free(evaluation);
    mezzo_params_free(params);
    mezzo_device_close(device);
}

static void same_bits(trial t) {
    result plain = {0}, deferred = {0};
    train(&t, false, &plain);
    train(&t, true, &deferred);
    assert_int_equal(plain.n, deferred.n);
    for (size_t i = 0; i < plain.n; i++)
        if (memcmp(&plain.values[i], &deferred.values[i], sizeof *plain.values) != 0)
            fail_msg("%s, %s, %d micro batches: number %zu of %zu is %.9g, and %.9g beside the next forward", t.model,
                     mezzo_precision_name(t.precision), t.micros, i, plain.n, (double)plain.values[i],
                     (double)deferred.values[i]);
    free(plain.values);
    free(deferred.values);
}

TEST(every_precision) {
    static const mezzo_precision all[] = {MEZZO_PRECISION_FP32, MEZZO_PRECISION_TF32, MEZZO_PRECISION_BF16,
                                          MEZZO_PRECISION_FP16};
    for (size_t i = 0; i < MZ_COUNT(all); i++)
        same_bits((trial){.model = "gpt2", .precision = all[i], .micros = 1});
}

TEST(accumulation) {
    same_bits((trial){.model = "gpt2", .precision = MEZZO_PRECISION_BF16, .micros = 3});
}

TEST(accumulation_and_skipped_steps) {
    same_bits((trial){.model = "gpt2", .precision = MEZZO_PRECISION_FP16, .micros = 3, .looks = true});
}

TEST(host_in_between) {
    same_bits((trial){.model = "gpt2", .precision = MEZZO_PRECISION_BF16, .micros = 1, .looks = true});
    same_bits((trial){.model = "gpt2", .precision = MEZZO_PRECISION_FP32, .micros = 1, .looks = true, .sgd = true});
}

TEST(other_masters) {
    for (mezzo_master master = MEZZO_MASTER_SPLIT; master <= MEZZO_MASTER_STOCHASTIC; master++)
        same_bits((trial){.model = "gpt2", .precision = MEZZO_PRECISION_BF16, .micros = 1, .master = master});
}

TEST(other_moments) {
    for (mezzo_moments moments = MEZZO_MOMENTS_BF16; moments <= MEZZO_MOMENTS_INT8; moments++)
        same_bits((trial){.model = "gpt2", .precision = MEZZO_PRECISION_BF16, .micros = 1, .moments = moments});
}

TEST(unclipped_sgd) {
    same_bits((trial){.model = "gpt2", .precision = MEZZO_PRECISION_BF16, .micros = 1, .sgd = true, .unclipped = true});
}

TEST(experts) {
    same_bits((trial){.model = "glm4_moe", .precision = MEZZO_PRECISION_BF16, .micros = 1});
    same_bits((trial){.model = "glm4_moe", .precision = MEZZO_PRECISION_FP16, .micros = 2});
}
