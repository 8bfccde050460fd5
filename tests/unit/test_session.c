// The session: what a sketch counts is what opening takes; a model's inputs, description and hash; and a checkpoint
// that keeps the hash, or was written before there was one.
//
// To see it fail: moments counted for frozen parameters, canonical sums of one process left out of the sketch, a hash
// without shapes, an input whose role is another's,
// a sampler's cache counted twice.
#include "tiny_run.h"

#include "checkpoint/checkpoint.h"
#include "graph/graph.h"
#include "nn/layers.h"
#include "session/session.h"
#include "task/sampler.h"
#include "task/task.h"

static mz_session_options small(const char *name) {
    mz_session_options o;
    mezzo_model_config config;
    must(mezzo_model_defaults(name, &config));
    if (strcmp(name, "gpt2") == 0) {
        config.layers = config.heads = 2;
        config.d_model = 32;
        config.vocab = 96;
        config.seq_len = 16;
    }
    must(mz_session_usual(&config, 2, &o));
    return o;
}

static void check_sketch(mezzo_device *device, const mz_session_options *o) {
    mz_session s;
    mz_footprint f;
    must(mz_session_sketch(device, o, NULL, &f));
    must(mz_session_open(device, o, MZ_SESSION_TRAIN | MZ_SESSION_STEP, &s));
    assert_int_equal(f.weights + f.shadows + f.gradients + f.optimizer + f.activations + f.workspace + f.inputs,
                     mz_session_memory(&s));
    mz_session_close(&s);
}

TEST(sketches_are_what_is_opened) {
    mezzo_device *device;
    must(mezzo_device_open(test_device(), 1, &device));
    mz_session_options o = small("gpt2"), other = o;
    check_sketch(device, &o);
    other.freeze = "wte,h.0.*";
    other.optimizer.ema = 0.9;
    check_sketch(device, &other);
    other = o;
    other.canonical = true;
    other.step.micro_batches = 4;
    check_sketch(device, &other);
    other = o;
    other.optimizer.kind = MEZZO_SGD;
    other.optimizer.momentum = 0.9;
    mz_session_set_precision(&other, MEZZO_PRECISION_BF16);
    check_sketch(device, &other);
    mezzo_device_close(device);
}

// The two programs of a sampler have one cache between them.
TEST(samples_share_a_cache) {
    const mz_session_options o = small("gpt2");
    mezzo_device *device;
    mz_session s;
    size_t sketched, bytes = 0;
    must(mezzo_device_open(test_device(), 1, &device));
    must(mz_session_open(device, &o, MZ_SESSION_PARAMS, &s));
    for (int64_t tokens = 1; tokens <= 16; tokens += 15) {
        const mz_form form = {.batch = 1, .length = tokens, .part = MZ_PART_CACHED, .outputs = true};
        mezzo_program *program;
        mezzo_memory m;
        must(mz_model_program(&o.model, &form, s.params, &o.program, &program));
        mezzo_program_memory(program, &m);
        bytes += m.activations + m.workspace + (tokens == 1 ? m.inputs : 0);
        mezzo_program_free(program);
    }
    must(mz_sampler_sketch(device, &o, 16, &sketched));
    assert_int_equal(sketched, bytes);
    mz_session_close(&s);
    mezzo_device_close(device);
}

TEST(inputs_have_roles) {
    for (int i = 0; i < mezzo_model_count(); i++) {
        mezzo_model_config config;
        mz_model model;
        mz_input inputs[MZ_MODEL_INPUTS];
        must(mezzo_model_defaults(mezzo_model_name(i), &config));
        must(mz_model_of(&config, &model));
        const int n = mz_model_inputs(&model, &(mz_form){.batch = 3, .length = 1}, inputs);
        for (int k = 0; k < n; k++) {
            assert_int_equal(inputs[k].dim[0], 3);
            for (int other = 0; other < k; other++)
                assert_true(inputs[k].role != inputs[other].role);
        }
        assert_true(n >= 2);
    }
}

static mezzo_status count_facts(void *user, const mz_fact *fact) {
    int *n = user;
    if (*n == 0 && (strcmp(fact->key, "name") != 0 || strcmp(fact->text, "gpt2") != 0))
        return mz_fail(MEZZO_ERR_INVALID, "the first fact is %s", fact->key);
    ++*n;
    return MEZZO_OK;
}

TEST(models_are_told_apart) {
    const mz_session_options o = small("gpt2");
    mz_model other = o.model;
    uint64_t a, b;
    int n = 0;
    must(mz_model_describe(&o.model, count_facts, &n));
    assert_true(n > 6);
    must(mz_model_hash(&o.model, &a));
    must(mz_model_hash(&other, &b));
    assert_true(a == b && a != 0);
    other.config.d_ff = 64;
    must(mz_model_hash(&other, &b));
    assert_true(a != b);
    must(mz_model_continues(&o.model, &other, "there", "train.out")); // shapes tell
    other.config.heads = 1;
    must_fail(mz_model_continues(&o.model, &other, "there", "train.out"), MEZZO_ERR_INVALID, "model.heads");
    must(mz_model_hash(&other, &b));
    assert_true(a != b);
}

TEST(checkpoints_keep_the_hash) {
    const uint64_t hashes[] = {0, UINT64_C(0x0123456789ABCDEF)}; // 0: as before there was one
    for (size_t i = 0; i < MZ_COUNT(hashes); i++) {
        mezzo_checkpoint c = {.graph = hashes[i], .precision = "fp32"}, read = {0};
        mz_checkpoint_state parts;
        mz_file_mark files[MZ_CHECKPOINT_FILES] = {{true, 1, 2}};
        mz_written written;
        mz_model model;
        const mz_session_options o = small("gpt2");
        must(mz_description_write(&o.model, c.model));
        must(mz_state_save("state.json", &c, files, &written));
        must(mz_state_load("state.json", &read, &parts));
        assert_true(read.graph == hashes[i]);
        assert_string_equal(read.model, c.model);
        must(mz_description_read(".", read.model, &model));
        assert_memory_equal(&model, &o.model, sizeof model);
    }
}

// --- a maker that is no built-in family
// -------------------------------------------------------------------------------- y = x W over `features`, which its
// description has beside a text: what a graph read from a file would need.
static int affine_inputs(const mz_model *model, const mz_form *form, mz_input out[MZ_MODEL_INPUTS]) {
    (void)model;
    out[0] = MZ_INPUT("x", MZ_ROLE_FEATURES, MEZZO_F32, 2, form->batch, 3);
    out[1] = MZ_INPUT("targets", MZ_ROLE_TARGETS, MEZZO_I32, 1, form->batch);
    return 2;
}

static mezzo_status affine_build(const mz_model *model, const mz_form *form, const mezzo_value *inputs,
                                 mezzo_graph *g) {
    (void)model, (void)form;
    const mezzo_value x =
        mz_layer_linear(g, "fc", inputs[0], 2, (mezzo_init){.kind = MEZZO_INIT_UNIFORM, .a = 0.5F}, false);
    return mz_layer_loss(g, x, inputs[1], 0, false);
}

static void affine_sizes(const mz_model *model, mz_model_sizes *out) {
    (void)model;
    *out = (mz_model_sizes){.length = 1, .features = 3, .classes = 2};
}

static void affine_summary(const mz_model *model, char *out, size_t size) {
    (void)model;
    snprintf(out, size, "a product of 3 x 2");
}

static mezzo_status affine_describe(const mz_model *model, mz_fact_fn put, void *user) {
    MEZZO_TRY(put(user, &(mz_fact){.key = "file", .text = model->config.size, .same = true}));
    return put(user, &(mz_fact){.key = "opset", .type = MZ_KEY_INT, .number = 17, .same = true});
}

static const mz_maker affine = {.name = "affine",
                                .purpose = MEZZO_TASK_CLASSIFIER,
                                .inputs = affine_inputs,
                                .build = affine_build,
                                .sizes = affine_sizes,
                                .summary = affine_summary,
                                .describe = affine_describe};

TEST(another_maker_needs_no_other_code) {
    mz_model model = {.maker = &affine, .config = {.size = "net.onnx"}}, other = model;
    mezzo_checkpoint c = {.precision = "fp32"};
    mz_session_options o = small("mlp");
    mz_session session;
    mz_examples x;
    static union { // with room for what a kind of task adds
        mz_task task;
        char room[1 << 16];
    } own = {.task = {.kind = &mz_task_classifier}};
    mz_task *const task = &own.task;
    char text[100];
    mezzo_device *device;
    must(mezzo_device_open(test_device(), 1, &device));
    must(mz_description_write(&model, c.model));
    assert_string_equal(c.model, "{\"name\":\"affine\",\"file\":\"net.onnx\",\"opset\":17}");
    must(mz_model_continues(&model, &model, "there", "train.out"));
    snprintf(other.config.size, sizeof other.config.size, "other.onnx");
    must_fail(mz_model_continues(&model, &other, "there", "train.out"), MEZZO_ERR_INVALID,
              "model.file is other.onnx, this run's is net.onnx");
    assert_int_equal(mz_description_read("there", c.model, &other), MEZZO_ERR_INVALID); // no list has it
    assert_non_null(strstr(mezzo_error_message(), "there/state.json: there is no model \"affine\""));

    o.model = model;
    o.form = (mz_form){.batch = 4, .length = 1};
    must(mz_session_open(device, &o, MZ_SESSION_TRAIN | MZ_SESSION_STEP, &session));
    must(mz_task_set_model(task, &model));
    must(mz_examples_make(&model, &o.form, 1, &x));
    assert_int_equal(task->wants.classes, 2);
    must(mz_examples_write(&x, session.train));
    must(mezzo_program_run(session.train, NULL, 0, 0));
    mz_model_summary(&model, text, sizeof text);
    assert_string_equal(text, "a product of 3 x 2");
    mz_examples_free(&x);
    mz_session_close(&session);
    mezzo_device_close(device);
}
