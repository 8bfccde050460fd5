// Models from ONNX files as torch.onnx writes them, against PyTorch in float64: outputs, loss, every gradient; and the
// file that is written again has the bits of the one that was read.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "device.h"
#include "golden.h"
#include "graph/graph.h"
#include "io/file.h"
#include "mezzo/mezzo.h"
#include "onnx/place.h"
#include "runtime/program.h"

typedef struct model {
    mezzo_onnx *onnx;
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
    mz_safetensors *stored;
} model;

static char *path_of(const char *name, const char *end, char *out, size_t size) {
    char file[128];
    snprintf(file, sizeof file, "onnx_%s%s", name, end);
    golden_path(file, out, size);
    return out;
}

// The sizes of every input, as they are stored.
static int sizes_of(model *m, mezzo_onnx_dim *dims, char (*names)[64]) {
    int n = 0;
    for (int i = 0; i < mezzo_onnx_inputs(m->onnx); i++) {
        mezzo_onnx_port port;
        must(mezzo_onnx_input(m->onnx, i, &port));
        golden_values v = golden_get(m->stored, "input.%s", port.name);
        for (int axis = 0; axis < v.rank; axis++, n++) {
            snprintf(names[n], sizeof *names, "%s.%d", port.name, axis);
            dims[n] = (mezzo_onnx_dim){names[n], v.dim[axis]};
        }
        golden_free(&v);
    }
    return n;
}

static void write_inputs(model *m) {
    golden_values targets = golden_get(m->stored, "targets");
    int32_t *ids = golden_ints(&targets);
    must(mezzo_program_write(m->program, "targets", ids, targets.count * sizeof *ids));
    free(ids);
    golden_free(&targets);
    for (int i = 0; i < mezzo_onnx_inputs(m->onnx); i++) {
        mezzo_onnx_port port;
        must(mezzo_onnx_input(m->onnx, i, &port));
        golden_values v = golden_get(m->stored, "input.%s", port.name);
        void *data = port.dtype == MEZZO_I32 ? (void *)golden_ints(&v) : (void *)golden_floats(&v);
        must(mezzo_program_write(m->program, port.name, data, v.count * 4));
        free(data);
        golden_free(&v);
    }
}

// Opens a file for what m->stored holds.
static void open_file(const char *path, mezzo_device *device, mezzo_precision precision, model *m) {
    char names[24][64];
    mezzo_onnx_dim dims[24];
    must(mezzo_onnx_open(path, &m->onnx));
    must(mezzo_graph_create(&m->graph));
    mezzo_value logits;
    must(mezzo_onnx_build(m->onnx, m->graph, sizes_of(m, dims, names), dims, &logits));
    golden_values targets = golden_get(m->stored, "targets");
    mezzo_value t = mezzo_input(m->graph, "targets", MEZZO_I32, targets.rank, targets.dim);
    golden_free(&targets);
    must(mezzo_graph_output(m->graph, "logits", logits));
    must(mezzo_graph_loss(m->graph, mezzo_cross_entropy(m->graph, logits, t, -1)));
    must(mezzo_params_create(device, m->graph, 1, &m->params));
    must(mezzo_onnx_load(m->onnx, m->params));
    const mezzo_program_options options = {.precision = precision};
    must(mezzo_program_create(m->graph, m->params, &options, &m->program));
    write_inputs(m);
}

static void open_model(const char *name, mezzo_device *device, mezzo_precision precision, model *m) {
    char path[4096], file[128];
    snprintf(file, sizeof file, "onnx_%s.safetensors", name);
    *m = (model){.stored = golden_tensors(file)};
    open_file(path_of(name, ".onnx", path, sizeof path), device, precision, m);
}

// Goldens have the names of the file, which a weight that an exporter numbers does not keep.
static const char *name_in_file(const model *m, int i) {
    const char *parameter = mezzo_params_name(m->params, i), *tensor = mz_onnx_tensor_of(m->onnx, parameter);
    return tensor != NULL ? tensor : parameter;
}

static void close_model(model *m) {
    mezzo_program_free(m->program);
    mezzo_params_free(m->params);
    mezzo_graph_free(m->graph);
    mezzo_onnx_free(m->onnx);
    mz_safetensors_close(m->stored);
}

// Returns what a gradient's error is relative to: its largest number, which stands for the sums that are its numbers. A
// gradient of one number may cancel to any size, so it is measured by what PyTorch in FP64 finds as Σ |term|: a sum is
// off by at most the sum of its terms' errors, and each term is held to what the numbers of other gradients are.
static double size_of_terms(const model *m, const char *weight, const golden_values *want) {
    if (want->count > 1)
        return golden_max(want);
    golden_values terms = golden_get(m->stored, "magnitude.%s", weight);
    const double sum = terms.at[0];
    golden_free(&terms);
    return sum;
}

static void compare(const char *name, mezzo_device *device) {
    model m;
    open_model(name, device, MEZZO_PRECISION_FP32, &m);
    must(mezzo_program_run(m.program, NULL, 1, 0));
    golden_values want = golden_get(m.stored, "logits");
    float *got = malloc(want.count * sizeof *got), loss;
    must(mezzo_program_read(m.program, "logits", got, want.count * sizeof *got));
    golden_close(name, got, &want, 1e-5 * golden_max(&want), 0);
    free(got);
    golden_free(&want);
    want = golden_get(m.stored, "loss");
    must(mezzo_program_read(m.program, "loss", &loss, sizeof loss));
    golden_close("loss", &loss, &want, 0, 1e-5);
    golden_free(&want);
    // Sums that cancel (a key's bias changes no softmax) keep the rounding of their terms.
    double largest = 0;
    for (int i = 0; i < mezzo_params_count(m.params); i++) {
        char entry[256];
        snprintf(entry, sizeof entry, "gradient.%s", name_in_file(&m, i));
        if (mz_safetensors_find(m.stored, entry)) {
            want = golden_get(m.stored, "%s", entry);
            largest = fmax(largest, golden_max(&want));
            golden_free(&want);
        }
    }
    int compared = 0;
    for (int i = 0; i < mezzo_params_count(m.params); i++) {
        const char *weight = mezzo_params_name(m.params, i);
        char entry[256], what[512];
        snprintf(entry, sizeof entry, "gradient.%s", name_in_file(&m, i));
        if (mezzo_params_frozen(m.params, i))
            continue;
        want = golden_get(m.stored, "%s", entry);
        float *raw = malloc(want.count * sizeof *raw), *turned = malloc(want.count * sizeof *turned);
        must(mezzo_params_read_grad(m.params, i, raw));
        for (size_t k = 0; k < want.count; k++) { // in the file's layout
            const int64_t place = mz_onnx_place_of(m.onnx, weight, (int64_t)k);
            assert_true(place >= 0);
            turned[k] = raw[place];
        }
        snprintf(what, sizeof what, "%s: gradient of %s", name, weight);
        golden_close(what, turned, &want, fmax(2e-5 * size_of_terms(&m, weight, &want), 2e-7 * largest), 0);
        free(raw);
        free(turned);
        golden_free(&want);
        compared++;
    }
    assert_true(compared >= 6);
    close_model(&m);
}

static int count_nodes(const mezzo_graph *g, mz_op op) {
    int n = 0;
    for (size_t i = 0; i < g->n_nodes; i++)
        n += g->nodes[i].op == op;
    return n;
}

// How often each idiom is recognized, and how many attentions have a mask that is computed or learned.
static const struct {
    const char *name;
    int attention, masked, rope, layer_norm, rms_norm, group_norm, gelu, silu, linear;
} models[] = {
    {.name = "gpt2", .attention = 2, .gelu = 2},
    {.name = "llama", .attention = 2, .rope = 4, .rms_norm = 5, .silu = 2},
    {.name = "bert", .attention = 2, .masked = 2, .linear = 13},
    {.name = "vit", .linear = 12}, // its ops say it themselves: opset 23
    {.name = "resnet18"},
    {.name = "convnext", .layer_norm = 3, .gelu = 2, .linear = 4},
    {.name = "unet", .group_norm = 5, .silu = 5},
    {.name = "mixer", .linear = 8},
    {.name = "autoencoder"},
    {.name = "whisper", .attention = 2, .linear = 11},
    {.name = "t5", .attention = 6, .masked = 6, .rms_norm = 12, .gelu = 4},
    {.name = "tabular"},
};

static int setup(void **state) {
    mezzo_onnx *onnx = NULL;
    if (mezzo_onnx_open("missing.onnx", &onnx) == MEZZO_ERR_UNSUPPORTED) {
        fprintf(stderr, "skipped: %s\n", mezzo_error_message());
        exit(TEST_SKIPPED);
    }
    mezzo_device *device = NULL;
    if (!test_device_opens())
        exit(TEST_SKIPPED);
    must(mezzo_device_open(test_device(), 0, &device));
    *state = device;
    return 0;
}

static int teardown(void **state) {
    mezzo_device_close(*state);
    return 0;
}

TEST_WITH(same_numbers_as_torch, setup, teardown) {
    mezzo_device *device = *state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        compare(models[i].name, device);
}

TEST_WITH(ops_have_onnxruntimes_values, setup, teardown) {
    model m = {.stored = golden_tensors("onnx_forms.safetensors")};
    char path[4096];
    mezzo_value out;
    must(mezzo_onnx_open(path_of("forms", ".onnx", path, sizeof path), &m.onnx));
    must(mezzo_graph_create(&m.graph));
    must(mezzo_onnx_build(m.onnx, m.graph, 0, NULL, &out));
    must(mezzo_graph_output(m.graph, "logits", out));
    must(mezzo_params_create(*state, m.graph, 1, &m.params));
    must(mezzo_onnx_load(m.onnx, m.params));
    const mezzo_program_options options = {.forward_only = true};
    must(mezzo_program_create(m.graph, m.params, &options, &m.program));
    golden_values x = golden_get(m.stored, "input.x"), want = golden_get(m.stored, "logits");
    float *in = golden_floats(&x), *got = malloc(want.count * sizeof *got);
    must(mezzo_program_write(m.program, "x", in, x.count * sizeof *in));
    must(mezzo_program_run(m.program, NULL, 1, 0));
    must(mezzo_program_read(m.program, "logits", got, want.count * sizeof *got));
    golden_close("forms", got, &want, 2e-5, 2e-5); // onnxruntime's own are FP32
    free(in);
    free(got);
    golden_free(&x);
    golden_free(&want);
    close_model(&m);
}

static char told[512];
static int times_told;
static void listen(void *user, const char *topic, const char *message) {
    (void)user;
    if (strcmp(topic, "notice") != 0 || strstr(message, "not trained") == NULL)
        return;
    snprintf(told, sizeof told, "%s", message);
    times_told++;
}

// What is multiplied as a table is not trained, though it may be a weight: the first build says so, once.
TEST_WITH(tables_that_are_not_trained_are_named, setup, teardown) {
    char path[4096];
    mezzo_onnx_dim dims[24];
    char names[24][64];
    model m = {0};
    open_model("llama", *state, MEZZO_PRECISION_FP32, &m);
    close_model(&m);
    times_told = 0;
    mezzo_log_set(listen, NULL);
    open_model("llama", *state, MEZZO_PRECISION_FP32, &m);
    mezzo_graph *again;
    mezzo_value logits;
    must(mezzo_graph_create(&again));
    must(mezzo_onnx_build(m.onnx, again, sizes_of(&m, dims, names), dims, &logits));
    mezzo_graph_free(again);
    mezzo_log_set(NULL, NULL);
    assert_int_equal(times_told, 1);
    assert_non_null(strstr(told, path_of("llama", ".onnx", path, sizeof path)));
    assert_non_null(strstr(told, "unsqueeze_14"));
    close_model(&m);
}

TEST_WITH(idioms_are_recognized, setup, teardown) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        model m;
        open_model(models[i].name, *state, MEZZO_PRECISION_FP32, &m);
        assert_int_equal(mezzo_onnx_recognized(m.onnx, "attention"), models[i].attention);
        assert_int_equal(mezzo_onnx_recognized(m.onnx, "rope"), models[i].rope);
        assert_int_equal(mezzo_onnx_recognized(m.onnx, "layer_norm"), models[i].layer_norm);
        assert_int_equal(mezzo_onnx_recognized(m.onnx, "rms_norm"), models[i].rms_norm);
        assert_int_equal(mezzo_onnx_recognized(m.onnx, "group_norm"), models[i].group_norm);
        assert_int_equal(mezzo_onnx_recognized(m.onnx, "gelu"), models[i].gelu);
        assert_int_equal(mezzo_onnx_recognized(m.onnx, "silu"), models[i].silu);
        assert_int_equal(mezzo_onnx_recognized(m.onnx, "linear"), models[i].linear);
        assert_int_equal(mezzo_onnx_recognized(m.onnx, "nonsense"), 0);
        assert_int_equal(count_nodes(m.graph, MZ_OP_attention_masked), models[i].masked);
        assert_int_equal(count_nodes(m.graph, MZ_OP_softmax), 0); // no probabilities are kept for backward
        if (strcmp(test_device(), "cuda") != 0) {                 // whose programs compose it
            assert_int_equal(count_nodes(m.program->c.graph, MZ_OP_attention_masked), models[i].masked);
            assert_int_equal(count_nodes(m.program->c.graph, MZ_OP_attention_masked_bwd), models[i].masked);
        }
        close_model(&m);
    }
}

static void same_files(const char *a, const char *b) {
    mz_map one, other;
    must(mz_map_open(a, &one));
    must(mz_map_open(b, &other));
    assert_int_equal(one.size, other.size);
    assert_memory_equal(one.data, other.data, one.size);
    mz_map_close(&one);
    mz_map_close(&other);
}

TEST_WITH(batch_norms_have_running_statistics, setup, teardown) {
    model m, evaluation;
    open_model("resnet18", *state, MEZZO_PRECISION_FP32, &m);
    must(mezzo_program_run(m.program, NULL, 1, 0));
    must(mezzo_program_track(m.program));
    int compared = 0;
    for (int i = 0; i < mezzo_params_count(m.params); i++) {
        if (!strstr(mezzo_params_name(m.params, i), "running"))
            continue;
        golden_values want = golden_get(m.stored, "running.%s", mezzo_params_name(m.params, i));
        float *got = malloc(want.count * sizeof *got);
        assert_true(mezzo_params_frozen(m.params, i));
        must(mezzo_params_read(m.params, i, got));
        golden_close(mezzo_params_name(m.params, i), got, &want, 1e-5 * golden_max(&want), 0);
        free(got);
        golden_free(&want);
        compared++;
    }
    assert_int_equal(compared, 40);
    evaluation = m;
    const mezzo_program_options options = {.forward_only = true};
    must(mezzo_program_create(m.graph, m.params, &options, &evaluation.program));
    const mezzo_graph *g = evaluation.program->c.graph; // each norm is in its convolution's weight and bias
    int with_bias = 0;
    for (size_t i = 0; i < g->n_nodes; i++)
        with_bias += g->nodes[i].op == MZ_OP_conv2d && g->nodes[i].in[MZ_IN(conv2d, bias)] >= 0;
    assert_int_equal(with_bias, 20);
    assert_int_equal(count_nodes(g, MZ_OP_conv2d), 20);
    assert_int_equal(count_nodes(g, MZ_OP_group_norm), 0);
    write_inputs(&evaluation);
    must(mezzo_program_run(evaluation.program, NULL, 1, 0));
    golden_values want = golden_get(m.stored, "evaluated");
    float *got = malloc(want.count * sizeof *got);
    must(mezzo_program_read(evaluation.program, "logits", got, want.count * sizeof *got));
    golden_close("in evaluation", got, &want, 1e-5 * golden_max(&want), 0);
    free(got);
    golden_free(&want);
    mezzo_program_free(evaluation.program);
    // A file that is written for use evaluates in a program that trains, too; the open one stays for training.
    model written = {0};
    must(mezzo_onnx_save(m.onnx, m.params, false, "before.onnx"));
    must(mezzo_onnx_save(m.onnx, m.params, true, "for_use.onnx"));
    must(mezzo_onnx_save(m.onnx, m.params, false, "after.onnx"));
    same_files("before.onnx", "after.onnx");
    written.stored = m.stored;
    open_file("for_use.onnx", *state, MEZZO_PRECISION_FP32, &written);
    must(mezzo_program_run(written.program, NULL, 1, 0));
    want = golden_get(m.stored, "evaluated");
    got = malloc(want.count * sizeof *got);
    must(mezzo_program_read(written.program, "logits", got, want.count * sizeof *got));
    golden_close("for use", got, &want, 1e-5 * golden_max(&want), 0);
    free(got);
    golden_free(&want);
    m.stored = NULL;
    close_model(&written);
    close_model(&m);
}

// Evaluation multiplies weights by a norm's factor in FP32, so training in BF16 must keep their masters whole.
TEST_WITH(folded_norms_read_masters_of_runs_in_bf16, setup, teardown) {
    const mezzo_program_options training = {.precision = MEZZO_PRECISION_BF16},
                                evaluation = {.precision = MEZZO_PRECISION_BF16, .forward_only = true};
    mezzo_params *params;
    mezzo_program *program;
    model m;
    open_model("resnet18", *state, MEZZO_PRECISION_FP32, &m);
    must(mezzo_params_create_as(*state, m.graph, &training, 1, MEZZO_MASTER_SPLIT, &params));
    must(mezzo_program_create(m.graph, params, &evaluation, &program));
    mezzo_program_free(program);
    mezzo_params_free(params);
    close_model(&m);
}

TEST_WITH(a_hundred_steps_have_torchs_losses, setup, teardown) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        model m;
        mezzo_optimizer *optimizer;
        mezzo_step *step;
        const mezzo_optimizer_options adamw = mezzo_optimizer_defaults(); // torch.optim.AdamW's
        open_model(models[i].name, *state, MEZZO_PRECISION_FP32, &m);
        must(mezzo_optimizer_create(m.params, &adamw, &optimizer));
        must(mezzo_step_create(m.program, &optimizer, 1, NULL, NULL, &step));
        golden_values want = golden_get(m.stored, "adamw");
        float got[100];
        assert_int_equal(want.count, 100);
        for (uint64_t k = 0; k < 100; k++) {
            mezzo_step_report report;
            must(mezzo_step_micro(step, 1, k));
            must(mezzo_step_finish(step));
            must(mezzo_step_read(step, true, &report));
            got[k] = (float)report.loss;
        }
        golden_close(models[i].name, got, &want, 0, 1e-4);
        golden_free(&want);
        mezzo_step_free(step);
        mezzo_optimizer_free(optimizer);
        close_model(&m);
    }
}

typedef struct errors {
    double output, gradients; // relative, of all elements together
} errors;

static void add_error(const float *got, const golden_values *want, double scale, double *off, double *all) {
    for (size_t k = 0; k < want->count; k++) {
        *off += (got[k] / scale - want->at[k]) * (got[k] / scale - want->at[k]);
        *all += want->at[k] * want->at[k];
    }
}

static errors errors_in(const char *name, mezzo_device *device, mezzo_precision precision) {
    model m;
    errors e;
    mezzo_scaler *scaler;
    mezzo_scaler_options scaling = mezzo_scaler_defaults();
    double off = 0, all = 0, scale = precision == MEZZO_PRECISION_FP16 ? 1024 : 1;
    scaling.init_scale = scale;
    open_model(name, device, precision, &m);
    must(mezzo_scaler_create(device, &scaling, &scaler));
    must(mezzo_program_run(m.program, scaler, 1, 0));
    golden_values want = golden_get(m.stored, "logits");
    float *got = malloc(want.count * sizeof *got);
    must(mezzo_program_read(m.program, "logits", got, want.count * sizeof *got));
    add_error(got, &want, 1, &off, &all);
    e.output = sqrt(off / all);
    free(got);
    golden_free(&want);
    off = all = 0;
    for (int i = 0; i < mezzo_params_count(m.params); i++) {
        if (mezzo_params_frozen(m.params, i))
            continue;
        want = golden_get(m.stored, "gradient.%s", name_in_file(&m, i));
        float *raw = malloc(want.count * sizeof *raw);
        got = malloc(want.count * sizeof *got);
        must(mezzo_params_read_grad(m.params, i, raw));
        for (size_t k = 0; k < want.count; k++)
            got[k] = raw[mz_onnx_place_of(m.onnx, mezzo_params_name(m.params, i), (int64_t)k)];
        add_error(got, &want, scale, &off, &all);
        free(raw);
        free(got);
        golden_free(&want);
    }
    e.gradients = sqrt(off / all);
    mezzo_scaler_free(scaler);
    close_model(&m);
    return e;
}

TEST_WITH(low_formats_are_as_near_as_torchs, setup, teardown) {
    static const mezzo_precision precisions[] = {MEZZO_PRECISION_BF16, MEZZO_PRECISION_FP16};
    const double n = sizeof models / sizeof *models;
    double sum = 0;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int k = 0; k < 2; k++) {
            char file[128];
            snprintf(file, sizeof file, "onnx_%s.safetensors", models[i].name);
            mz_safetensors *stored = golden_tensors(file);
            golden_values torchs = golden_get(stored, "autocast.%s", k ? "float16" : "bfloat16");
            const errors e = errors_in(models[i].name, *state, precisions[k]);
            const double most = 2.1; // one draw of roundings of few numbers; all together say more
            printf("%s %s: output %.3g, torch %.3g; gradients %.3g, torch %.3g\n", models[i].name, k ? "fp16" : "bf16",
                   e.output, torchs.at[0], e.gradients, torchs.at[1]);
            assert_true(e.output <= most * torchs.at[0]);
            assert_true(e.gradients <= most * torchs.at[1]);
            sum += log(e.output / torchs.at[0]) + log(e.gradients / torchs.at[1]);
            golden_free(&torchs);
            mz_safetensors_close(stored);
        }
    printf("in the geometric mean %.3f of torch's\n", exp(sum / (4 * n)));
    assert_true(sum / (4 * n) < log(1.1));
}

TEST_WITH(the_file_comes_back, setup, teardown) {
    mezzo_device *device = *state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        model m, again;
        char path[128], names[24][64];
        mezzo_onnx_dim dims[24];
        open_model(models[i].name, device, MEZZO_PRECISION_FP32, &m);
        snprintf(path, sizeof path, "back_%s.onnx", models[i].name);
        must(mezzo_onnx_save(m.onnx, m.params, false, path));
        must(mezzo_onnx_open(path, &again.onnx));
        must(mezzo_graph_create(&again.graph));
        mezzo_value logits;
        must(mezzo_onnx_build(again.onnx, again.graph, sizes_of(&m, dims, names), dims, &logits));
        must(mezzo_params_create(device, again.graph, 1, &again.params));
        must(mezzo_onnx_load(again.onnx, again.params));
        assert_int_equal(mezzo_params_count(again.params), mezzo_params_count(m.params));
        for (int p = 0; p < mezzo_params_count(m.params); p++) {
            size_t n = 1;
            for (int k = 0; k < mezzo_params_rank(m.params, p); k++)
                n *= (size_t)mezzo_params_shape(m.params, p)[k];
            float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
            must(mezzo_params_read(m.params, p, a));
            must(mezzo_params_read(again.params, p, b));
            assert_memory_equal(a, b, n * sizeof *a);
            free(a);
            free(b);
        }
        mezzo_params_free(again.params);
        mezzo_graph_free(again.graph);
        mezzo_onnx_free(again.onnx);
        close_model(&m);
    }
}

TEST(refusals_say_what) {
    mezzo_onnx *onnx = NULL;
    assert_int_equal(mezzo_onnx_open("missing.onnx", &onnx), MEZZO_ERR_INVALID);
    assert_int_equal(mz_file_write_atomic("text.onnx", "no model at all", 15), MEZZO_OK);
    must_fail(mezzo_onnx_open("text.onnx", &onnx), MEZZO_ERR_FORMAT, "text.onnx");
    // opset 12: opset_import {version 12}, a graph with one node and one output
    const unsigned char old[] = {0x3a, 0x11, 0x0a, 0x0b, 0x0a, 0x01, 'x',  0x12, 0x01, 'y',  0x22, 0x03,
                                 'A',  'b',  's',  0x62, 0x02, 0x0a, 0x00, 0x42, 0x02, 0x10, 0x0c};
    assert_int_equal(mz_file_write_atomic("old.onnx", old, sizeof old), MEZZO_OK);
    must_fail(mezzo_onnx_open("old.onnx", &onnx), MEZZO_ERR_FORMAT, "opset is 12");
}
