// Compositions: a device that has the primitives alone trains every model as one with all kernels does.
// backend/test_compositions compares them op by op.
// Seen to fail with: weights of experts 1 % off; a rotation the other way; a parameter's gradient that replaces the
// sum; an op without a composition.
#include "fixture.h"

#include "backend/backend.h"
#include "graph/compose.h"
#include "session/session.h"
#include "task/task.h"

// --- every op is a primitive, or composed ----------------------------------------------------------------------------
TEST(test_every_op_has_a_composition) {
    // Written in place, or read only by kernels with scales: a device that lacks these does not generate, and has no
    // precision with scales. reshape never runs.
    static const mz_op others[] = {MZ_OP_attention_cached, MZ_OP_quantize, MZ_OP_reshape};
    int primitives = 0;
    for (int op = 0; op < MZ_OP_COUNT; op++) {
        const mz_op_info *info = &mz_op_table[op];
        bool known = info->kind == MZ_KIND_STATE || mz_op_is_primitive((mz_op)op) || info->compose != NULL ||
                     (info->is_gradient && mz_op_table[info->gradient_of].compose != NULL);
        primitives += mz_op_is_primitive((mz_op)op);
        for (size_t i = 0; i < MZ_COUNT(others); i++)
            known = known || others[i] == (mz_op)op;
        if (!known)
            fail_msg("%s has no composition, and is no primitive", info->name);
        if (info->kind == MZ_KIND_STATE && (info->compose != NULL || info->is_gradient))
            fail_msg("%s is of the update, which is not composed", info->name);
    }
    assert_int_equal(primitives, 32);
}

// --- devices that have the primitives alone --------------------------------------------------------------------------
static mz_backend partial[2];
static const mz_backend *whole[2];

static const mz_kernel *const *kernels_of(int which, const mezzo_device *device, mz_op op, size_t *n) {
    *n = 0;
    return mz_op_is_primitive(op) || mz_op_table[op].kind == MZ_KIND_STATE ? whole[which]->kernels(device, op, n)
                                                                           : NULL;
}
static const mz_kernel *const *ref_kernels(const mezzo_device *device, mz_op op, size_t *n) {
    return kernels_of(0, device, op, n);
}
static const mz_kernel *const *cpu_kernels(const mezzo_device *device, mz_op op, size_t *n) {
    return kernels_of(1, device, op, n);
}

static mezzo_device *open_partial(int which) {
    mezzo_device *device;
    must(mezzo_device_open(which == 0 ? "ref" : "cpu", 1, &device));
    whole[which] = device->backend;
    partial[which] = *device->backend;
    partial[which].kernels = which == 0 ? ref_kernels : cpu_kernels;
    device->backend = &partial[which];
    return device;
}

// --- models ----------------------------------------------------------------------------------------------------------
static void make_small(mezzo_model_config *c, const char *name) {
    const bool language = mezzo_model_task(c) == MEZZO_TASK_LANGUAGE && strcmp(name, "toy") != 0;
    if (language) {
        c->layers = 2, c->heads = 2, c->d_model = 16, c->d_ff = 24, c->vocab = 23, c->seq_len = 7;
        if (c->kv_heads > 1)
            c->kv_heads = 1;
        c->dropout = strcmp(name, "gpt2") == 0 ? 0.1 : 0;
        c->head_dim = c->head_dim > 0 ? 8 : 0;
    }
    if (c->experts > 0) {
        c->layers = 3, c->experts = 4, c->experts_per_token = 2, c->d_expert = 8;
    }
    if (strcmp(name, "mlp") == 0)
        c->layers = 2, c->d_model = 12, c->features = 9, c->classes = 5;
    if (strcmp(name, "cnn") == 0)
        c->image_size = 8, c->d_model = 8, c->groups = 4, c->classes = 5;
}

static mezzo_status fill_inputs(void *user, mezzo_program *program, uint64_t index) {
    const mz_session_options *o = user;
    mz_examples x;
    MEZZO_TRY(mz_examples_make(&o->model, &o->form, index, &x));
    const mezzo_status status = mz_examples_write(&x, program);
    mz_examples_free(&x);
    return status;
}

enum { STEPS = 3 };
typedef struct trained {
    double loss[STEPS];
    float *gradient; // of the first batch, one parameter after the other
    size_t n;
} trained;

static void read_gradients(mz_session *s, trained *out) {
    must(mezzo_params_zero_grad(s->params));
    must(fill_inputs(&s->options, s->train, 0));
    must(mezzo_program_run(s->train, NULL, 5, 1));
    for (int i = 0; i < mezzo_params_count(s->params); i++) {
        size_t n = 1;
        for (int d = 0; d < mezzo_params_rank(s->params, i); d++)
            n *= (size_t)mezzo_params_shape(s->params, i)[d];
        out->gradient = realloc(out->gradient, (out->n + n) * sizeof(float));
        must(mezzo_params_read_grad(s->params, i, out->gradient + out->n));
        out->n += n;
    }
    must(mezzo_params_zero_grad(s->params));
}

static void train(mezzo_device *device, const mz_session_options *options, trained *out) {
    mz_session s = {0};
    mezzo_step_report report;
    if (mz_session_open(device, options, MZ_SESSION_PARAMS | MZ_SESSION_TRAIN | MZ_SESSION_STEP, &s) != MEZZO_OK)
        fail_msg("%s: %s", options->model.maker->name, mezzo_error_message());
    read_gradients(&s, out);
    for (int i = 0; i < STEPS; i++) {
        must(mezzo_step_run(s.step, 5, (uint64_t)i, fill_inputs, &s.options));
        must(mezzo_step_read(s.step, true, &report));
        out->loss[i] = report.loss;
    }
    mz_session_close(&s);
}

// A loss in FP32 differs by roundings alone; in 16 bits a value beside a rounding's border falls to its other side.
static void compare(const char *name, mezzo_precision precision, double allowed, int which) {
    mezzo_model_config c;
    mz_session_options o;
    mezzo_device *all, *few = open_partial(which);
    trained want = {0}, got = {0};
    double off = 0, size = 0;
    must(mezzo_device_open("ref", 1, &all));
    must(mezzo_model_defaults(name, &c));
    make_small(&c, name);
    must(mz_session_usual(&c, 2, &o));
    o.seed = 11;
    mz_session_set_precision(&o, precision);
    train(all, &o, &want);
    train(few, &o, &got);
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(want.loss[i] - got.loss[i]) <= allowed * fabs(want.loss[i])))
            fail_msg("%s in %s, step %d: a loss of %.9g, composed %.9g", name, mezzo_precision_name(precision), i + 1,
                     want.loss[i], got.loss[i]);
    assert_int_equal(want.n, got.n);
    for (size_t i = 0; i < want.n; i++) {
        off += fabs((double)want.gradient[i] - (double)got.gradient[i]);
        size += fabs((double)want.gradient[i]);
    }
    if (!(off <= allowed * size))
        fail_msg("%s in %s: gradients differ by %g of their mean", name, mezzo_precision_name(precision), off / size);
    free(want.gradient);
    free(got.gradient);
    mezzo_device_close(all);
    mezzo_device_close(few);
}

static void compare_all(int which) {
    for (int i = 0; i < mezzo_model_count(); i++) {
        const char *name = mezzo_model_name(i);
        mezzo_model_config c;
        must(mezzo_model_defaults(name, &c));
        const bool images = strcmp(c.name, "kl_vae") == 0 || strcmp(c.name, "radio_unet") == 0;
        if (images ? strstr(name, "-tiny") != NULL : strcmp(name, c.name) == 0) // one size of each
            compare(name, MEZZO_PRECISION_FP32, 2e-5, which);
    }
}

TEST(test_ref_trains_every_model) {
    compare_all(0);
}

TEST(test_another_device_trains_every_model) {
    compare_all(1);
}

TEST(test_low_precision) {
    static const char *const models[] = {"gpt2", "llama", "glm4_moe", "cnn"};
    for (size_t i = 0; i < MZ_COUNT(models); i++) {
        compare(models[i], MEZZO_PRECISION_BF16, 5e-3, 0);
        compare(models[i], MEZZO_PRECISION_FP16, 1e-3, 0);
    }
}

// What has no composition is named.
TEST(test_what_is_not_composed_is_refused) {
    mezzo_model_config c;
    mz_session_options o;
    mz_session s = {0};
    mezzo_device *few = open_partial(0);
    must(mezzo_model_defaults("gpt2", &c));
    make_small(&c, "gpt2");
    c.d_model = 32;
    must(mz_session_usual(&c, 2, &o));
    mz_session_set_precision(&o, MEZZO_PRECISION_FP8);
    must_fail(mz_session_open(few, &o, MZ_SESSION_PARAMS | MZ_SESSION_TRAIN, &s), MEZZO_ERR_UNSUPPORTED,
              "no kernel for");
    mz_session_close(&s);
    mezzo_device_close(few);
}
