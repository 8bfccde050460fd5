#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "golden_model.h"

static void open_model(golden_model *m, const char *device, const mezzo_program_options *options,
                       const mezzo_model_config *config, int64_t batch, int64_t seq_len, const char *file) {
    *m = (golden_model){0};
    must(mezzo_device_open(device, 2, &m->device));
    must(mezzo_graph_create(&m->graph));
    must(mezzo_model_build(m->graph, config, batch, seq_len, true));
    must(mezzo_params_create(m->device, m->graph, 1, &m->params));
    must(mezzo_program_create(m->graph, m->params, options, &m->program));
    m->file = golden_tensors(file);
    golden_model_restart(m);
}

void golden_gpt2_open(golden_model *m, const char *device, mezzo_precision precision) {
    golden_gpt2_open_with(m, device, &(mezzo_program_options){.precision = precision});
}

void golden_gpt2_open_with(golden_model *m, const char *device, const mezzo_program_options *options) {
    json_t *root = golden_json("gpt2_small.json"), *shape = json_object_get(root, "model");
    mezzo_model_config config;
    must(mezzo_model_defaults("gpt2", &config));
    config.layers = (int64_t)golden_number(shape, "layers");
    config.heads = (int64_t)golden_number(shape, "heads");
    config.d_model = (int64_t)golden_number(shape, "d_model");
    config.d_ff = 0;
    config.vocab = (int64_t)golden_number(shape, "vocab_size");
    config.seq_len = (int64_t)golden_number(shape, "seq_len");
    config.dropout = 0;
    config.bias = true;
    open_model(m, device, options, &config, (int64_t)golden_number(shape, "batch_size"), config.seq_len,
               "gpt2_small.safetensors");
    json_decref(root);
}

static void read_fields(const json_t *shape, mezzo_model_config *config) {
    const struct {
        const char *key;
        int64_t *field;
    } sizes[] = {{"layers", &config->layers},
                 {"heads", &config->heads},
                 {"d_model", &config->d_model},
                 {"d_ff", &config->d_ff},
                 {"vocab_size", &config->vocab},
                 {"seq_len", &config->seq_len},
                 {"kv_heads", &config->kv_heads},
                 {"head_dim", &config->head_dim},
                 {"dense_layers", &config->dense_layers},
                 {"experts", &config->experts},
                 {"experts_per_token", &config->experts_per_token},
                 {"shared_experts", &config->shared_experts},
                 {"d_expert", &config->d_expert},
                 {"expert_groups", &config->expert_groups},
                 {"expert_groups_used", &config->expert_groups_used}};
    for (size_t i = 0; i < MZ_COUNT(sizes); ++i)
        if (json_object_get(shape, sizes[i].key))
            *sizes[i].field = (int64_t)golden_number(shape, sizes[i].key);
    if (!json_object_get(shape, "experts"))
        return;
    config->routed_scale = golden_number(shape, "routed_scale");
    config->attention_bias = json_is_true(json_object_get(shape, "attention_bias"));
    config->qk_norm = json_is_true(json_object_get(shape, "qk_norm"));
    config->normalise_weights = json_is_true(json_object_get(shape, "normalise_weights"));
}

void golden_transformer_open(golden_model *m, const char *device, const mezzo_program_options *options,
                             const char *name) {
    char file[64];
    snprintf(file, sizeof file, "%s.json", name);
    json_t *root = golden_json(file), *shape = json_object_get(root, "model");
    mezzo_model_config config;
    must(mezzo_model_defaults(json_string_value(json_object_get(shape, "family")), &config));
    read_fields(shape, &config);
    snprintf(file, sizeof file, "%s.safetensors", name);
    open_model(m, device, options, &config, (int64_t)golden_number(shape, "batch_size"), config.seq_len, file);
    json_decref(root);
}

void golden_toy_open(golden_model *m, const char *device, mezzo_precision precision) {
    json_t *root = golden_json("toy_sgd.json");
    mezzo_model_config config;
    must(mezzo_model_defaults("toy", &config));
    open_model(m, device, &(mezzo_program_options){.precision = precision}, &config,
               (int64_t)golden_number(root, "batch_size"), 1, "toy_sgd.safetensors");
    json_decref(root);
}

void golden_model_close(golden_model *m) {
    mz_safetensors_close(m->file);
    mezzo_program_free(m->program);
    mezzo_params_free(m->params);
    mezzo_graph_free(m->graph);
    mezzo_device_close(m->device);
    *m = (golden_model){0};
}

void golden_model_restart(golden_model *m) {
    for (int i = 0; i < mezzo_params_count(m->params); ++i) {
        golden_values v = golden_get(m->file, "init.%s", mezzo_params_name(m->params, i));
        assert_int_equal(v.count, golden_param_count(m, i));
        float *values = golden_floats(&v);
        must(mezzo_params_write(m->params, i, values));
        free(values);
        golden_free(&v);
    }
    must(mezzo_params_zero_grad(m->params));
}

size_t golden_param_count(const golden_model *m, int index) {
    size_t n = 1;
    for (int i = 0; i < mezzo_params_rank(m->params, index); ++i)
        n *= (size_t)mezzo_params_shape(m->params, index)[i];
    return n;
}

float *golden_param(const golden_model *m, int index, bool gradient) {
    float *values = calloc(golden_param_count(m, index), sizeof *values);
    assert_non_null(values);
    must(gradient ? mezzo_params_read_grad(m->params, index, values) : mezzo_params_read(m->params, index, values));
    return values;
}

static void write_ids(golden_model *m, const char *tensor, const char *input, size_t step) {
    golden_values v = golden_get(m->file, "%s", tensor);
    size_t n = v.count / (size_t)v.dim[0];
    int32_t *ids = golden_ints(&v);
    must(mezzo_program_write(m->program, input, ids + step * n, n * sizeof *ids));
    free(ids);
    golden_free(&v);
}

void golden_gpt2_batch(golden_model *m, size_t step) {
    write_ids(m, "tokens", "tokens", step);
    write_ids(m, "targets", "targets", step);
}

void golden_toy_batch(golden_model *m, size_t step) {
    golden_values v = golden_get(m->file, "x"); // [steps, B, 5]
    size_t n = v.count / (size_t)v.dim[0];
    float *x = golden_floats(&v);
    must(mezzo_program_write(m->program, "x", x + step * n, n * sizeof *x));
    free(x);
    golden_free(&v);
    write_ids(m, "y", "targets", step);
}

double golden_loss(golden_model *m) {
    float loss = 0;
    must(mezzo_program_read(m->program, "loss", &loss, sizeof loss));
    return (double)loss;
}

bool golden_without_gradient(const char *param) {
    return strstr(param, "e_score_correction_bias") != NULL;
}

// --- mixed precision -----------------------------------------------------------------------------------------------
static double rms_distance(const float *got, const golden_values *want, double scale) {
    double sum = 0;
    for (size_t i = 0; i < want->count; ++i)
        sum += ((double)got[i] / scale - want->at[i]) * ((double)got[i] / scale - want->at[i]);
    return sqrt(sum / (double)want->count);
}

typedef struct totals { // of squared errors, each relative to its tensor's size
    double mezzo, torch;
    size_t tensors;
} totals;

static void compare(const char *where, const json_t *entry, const char *name, double error, double most, totals *sum) {
    const json_t *row = json_object_get(json_object_get(entry, "tensors"), name);
    assert_non_null(row);
    double torch = golden_number(row, "error"), size = golden_number(row, "size");
    if (!(error <= most * torch && error >= torch / fmax(4, most)))
        fail_msg("%s, %s: off by %.3g rms, torch by %.3g (the tensor's size is %.3g)", where, name, error, torch, size);
    sum->mezzo += error * error / (size * size);
    sum->torch += torch * torch / (size * size);
    sum->tensors++;
}

void golden_as_good_as_torch(golden_model *m, const char *where, const json_t *entry, double loss,
                             double (*most)(size_t n)) {
    double scale = golden_number(entry, "scale");
    mezzo_scaler_options options = mezzo_scaler_defaults();
    options.init_scale = scale;
    mezzo_scaler *scaler = NULL;
    must(mezzo_scaler_create(m->device, &options, &scaler));
    golden_gpt2_batch(m, 0);
    must(mezzo_program_run(m->program, scaler, 1, 0));

    totals sum = {0};
    golden_values want = golden_get(m->file, "logits");
    float *logits = calloc(want.count, sizeof *logits);
    must(mezzo_program_read(m->program, "logits", logits, want.count * sizeof *logits));
    compare(where, entry, "logits", rms_distance(logits, &want, 1), most(want.count), &sum);
    free(logits);
    golden_free(&want);
    for (int p = 0; p < mezzo_params_count(m->params); ++p) {
        char name[128];
        snprintf(name, sizeof name, "grad.%s", mezzo_params_name(m->params, p));
        if (golden_without_gradient(name))
            continue;
        float *grad = golden_param(m, p, true);
        want = golden_get(m->file, "%s", name);
        compare(where, entry, name, rms_distance(grad, &want, scale), most(want.count), &sum);
        golden_free(&want);
        free(grad);
    }
    const json_t *tensors = json_object_get(entry, "tensors"), *row = json_object_get(tensors, "logits");
    assert_int_equal(sum.tensors, json_object_size(tensors) - (json_object_get(tensors, "loss") != NULL));
    double ratio = sqrt(sum.mezzo / sum.torch);
    print_message("%s: %.3f of torch's error\n", where, ratio);
    if (!(ratio <= 1.25))
        fail_msg("%s: all tensors together are off by %.3f times what torch is", where, ratio);
    // The loss is a mean over rows, each off by about what two logits are.
    assert_true(fabs(golden_loss(m) - loss) <= 2 * golden_number(row, "error"));
    mezzo_scaler_free(scaler);
    golden_model_close(m);
}

// --- from the other side -------------------------------------------------------------------------------------------
static int count_outside(golden_model *m, double bound) {
    int outside = 0;
    must(mezzo_params_zero_grad(m->params));
    must(mezzo_program_run(m->program, NULL, 1, 0));
    for (int i = 0; i < mezzo_params_count(m->params); ++i) {
        float *grad = golden_param(m, i, true);
        golden_values want = golden_get(m->file, "grad.%s", mezzo_params_name(m->params, i));
        outside += golden_distance(grad, &want) > bound * golden_max(&want);
        free(grad);
        golden_free(&want);
    }
    return outside;
}

void golden_would_fail(golden_model *m, const golden_wrong *wrong, size_t n, double bound) {
    golden_gpt2_batch(m, 0);
    assert_int_equal(count_outside(m, bound), 0);
    for (size_t w = 0; w < n; ++w) {
        int index = mezzo_params_find(m->params, wrong[w].name);
        assert_true(index >= 0);
        float *values = golden_param(m, index, false);
        for (size_t i = 0; i < golden_param_count(m, index); ++i)
            values[i] *= wrong[w].factor;
        must(mezzo_params_write(m->params, index, values));
        free(values);
        assert_true(count_outside(m, bound) > mezzo_params_count(m->params) / 2);
        golden_model_restart(m);
    }
    golden_model_close(m);
}
