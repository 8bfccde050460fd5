// bench/gradients: loss and gradients of one batch, for bench/peers/torch_gradients.py to compare with PyTorch's.
//   bench_gradients IN.safetensors OUT.safetensors DEVICE PRECISION
// IN holds every parameter, `tokens` and `targets` [B, T] I32, and as metadata `model` and the sizes that differ from
// that name's: layers, heads, d_model, vocab, seq_len. OUT gets `loss` [1] and grad.NAME of every parameter, FP32,
// unscaled; FP16 runs with a loss scale of 2^16. PRECISION may be a format that is emulated over bf16, mxfp8, mxfp4 or
// nvfp4; ":sr" after it rounds gradients at random, and ":rht" turns what weights' gradients multiply.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "io/safetensors.h"
#include "mezzo/model.h"
#include "mezzo/optimizer.h"
#include "mezzo/program.h"

typedef struct job {
    mz_safetensors *in;
    mezzo_device *device;
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_scaler *scaler;
    double scale;
} job;

static void read_size(const job *j, const char *key, int64_t *field) {
    const char *text = mz_safetensors_meta_get(j->in, key);
    if (text != NULL)
        *field = atoll(text);
}

static mezzo_status open_model(job *j, const mezzo_program_options *options, const mz_safetensors_tensor *tokens) {
    mezzo_model_config model;
    const char *name = mz_safetensors_meta_get(j->in, "model");
    MEZZO_TRY(mezzo_model_defaults(name != NULL ? name : "gpt2-124M", &model));
    read_size(j, "layers", &model.layers);
    read_size(j, "heads", &model.heads);
    read_size(j, "d_model", &model.d_model);
    read_size(j, "vocab", &model.vocab);
    read_size(j, "seq_len", &model.seq_len);
    model.d_ff = 0, model.dropout = 0, model.bias = true;
    MEZZO_TRY(mezzo_graph_create(&j->graph));
    MEZZO_TRY(mezzo_model_build(j->graph, &model, tokens->shape[0], tokens->shape[1], false));
    MEZZO_TRY(mezzo_params_create(j->device, j->graph, 1, &j->params));
    MEZZO_TRY(mezzo_program_create(j->graph, j->params, options, &j->program));
    mezzo_scaler_options scaling = mezzo_scaler_defaults();
    scaling.enabled = mezzo_precision_needs_loss_scale(options->precision);
    j->scale = scaling.enabled ? scaling.init_scale : 1;
    MEZZO_TRY(mezzo_scaler_create(j->device, &scaling, &j->scaler));
    return MEZZO_OK;
}

static size_t elements(const mezzo_params *params, int index) {
    size_t n = 1;
    for (int d = 0; d < mezzo_params_rank(params, index); d++)
        n *= (size_t)mezzo_params_shape(params, index)[d];
    return n;
}

static mezzo_status load(job *j, const mz_safetensors_tensor *tokens, const mz_safetensors_tensor *targets) {
    for (int i = 0; i < mezzo_params_count(j->params); i++) {
        float *values = mz_alloc(elements(j->params, i), sizeof *values);
        if (values == NULL)
            return mz_fail(MEZZO_ERR_MEMORY, "no memory for %s", mezzo_params_name(j->params, i));
        mezzo_status status =
            mz_safetensors_read(j->in, mezzo_params_name(j->params, i), MEZZO_F32,
                                (size_t)mezzo_params_rank(j->params, i), mezzo_params_shape(j->params, i), values);
        if (status == MEZZO_OK)
            status = mezzo_params_write(j->params, i, values);
        mz_free(values);
        MEZZO_TRY(status);
    }
    MEZZO_TRY(mezzo_program_write(j->program, "tokens", tokens->data, tokens->bytes));
    MEZZO_TRY(mezzo_program_write(j->program, "targets", targets->data, targets->bytes));
    return MEZZO_OK;
}

// All gradients in one allocation each, written as one file.
static mezzo_status save(job *j, const char *path, const char *precision) {
    int n = mezzo_params_count(j->params);
    mz_safetensors_item *items = mz_alloc((size_t)n + 1, sizeof *items);
    char(*names)[160] = mz_alloc((size_t)n, sizeof *names);
    float loss, **values = mz_alloc((size_t)n, sizeof *values);
    mezzo_device_info info;
    mezzo_status status = items == NULL || names == NULL || values == NULL ? MEZZO_ERR_MEMORY : MEZZO_OK;
    for (int i = 0; i < n && status == MEZZO_OK; i++) {
        size_t count = elements(j->params, i);
        snprintf(names[i], sizeof names[i], "grad.%s", mezzo_params_name(j->params, i));
        values[i] = mz_alloc(count, sizeof **values);
        if (values[i] == NULL) {
            status = MEZZO_ERR_MEMORY;
            break;
        }
        status = mezzo_params_read_grad(j->params, i, values[i]);
        for (size_t k = 0; k < count; k++)
            values[i][k] = (float)((double)values[i][k] / j->scale);
        items[i] = (mz_safetensors_item){.name = names[i],
                                         .dtype = MEZZO_F32,
                                         .rank = (size_t)mezzo_params_rank(j->params, i),
                                         .shape = mezzo_params_shape(j->params, i),
                                         .data = values[i]};
    }
    if (status == MEZZO_OK)
        status = mezzo_program_read(j->program, "loss", &loss, sizeof loss);
    if (status == MEZZO_OK)
        status = mezzo_device_describe(j->device, &info);
    if (status == MEZZO_OK) {
        items[n] = (mz_safetensors_item){.name = "loss", .dtype = MEZZO_F32, .data = &loss};
        const mz_safetensors_meta meta[] = {{"device", info.description}, {"precision", precision}};
        status = mz_safetensors_write(path, items, (size_t)n + 1, meta, MZ_COUNT(meta), NULL);
    }
    for (int i = 0; i < n && values != NULL; i++)
        mz_free(values[i]);
    mz_free(values);
    mz_free(names);
    mz_free(items);
    return status;
}

static mezzo_status read_format(const char *format, mezzo_program_options *out) {
    for (mezzo_blocks b = MEZZO_BLOCKS_MXFP8; b < MEZZO_BLOCKS_COUNT; b++) {
        const size_t n = strlen(mezzo_blocks_name(b));
        if (strncmp(format, mezzo_blocks_name(b), n) != 0 || (format[n] != '\0' && format[n] != ':'))
            continue;
        *out = (mezzo_program_options){.precision = MEZZO_PRECISION_BF16,
                                       .emulate = b,
                                       .emulate_stochastic = strstr(format, ":sr") != NULL,
                                       .emulate_hadamard = strstr(format, ":rht") != NULL};
        return MEZZO_OK;
    }
    return mezzo_precision_parse(format, &out->precision);
}

static mezzo_status run(job *j, const char *out, const char *device, const char *format) {
    const mz_safetensors_tensor *tokens, *targets;
    mezzo_program_options options = {0};
    MEZZO_TRY(read_format(format, &options));
    MEZZO_TRY(mz_safetensors_get(j->in, "tokens", &tokens));
    MEZZO_TRY(mz_safetensors_get(j->in, "targets", &targets));
    if (tokens->rank != 2 || tokens->dtype != MEZZO_I32 || targets->bytes != tokens->bytes)
        return mz_fail(MEZZO_ERR_FORMAT, "tokens and targets must be [B, T] of I32");
    MEZZO_TRY(mezzo_device_open(device, 0, &j->device));
    MEZZO_TRY(open_model(j, &options, tokens));
    MEZZO_TRY(load(j, tokens, targets));
    MEZZO_TRY(mezzo_params_zero_grad(j->params));
    MEZZO_TRY(mezzo_program_run(j->program, j->scaler, 1, 0));
    MEZZO_TRY(save(j, out, format));
    return MEZZO_OK;
}

int main(int argc, char **argv) {
    job j = {0};
    if (argc != 5) {
        fprintf(stderr, "usage: bench_gradients IN.safetensors OUT.safetensors DEVICE PRECISION\n");
        return 2;
    }
    mezzo_status status = mz_safetensors_open(argv[1], &j.in);
    if (status == MEZZO_OK)
        status = run(&j, argv[2], argv[3], argv[4]);
    if (status != MEZZO_OK)
        fprintf(stderr, "bench_gradients: %s\n", mezzo_error_message());
    mezzo_scaler_free(j.scaler);
    mezzo_program_free(j.program);
    mezzo_params_free(j.params);
    mezzo_graph_free(j.graph);
    mezzo_device_close(j.device);
    mz_safetensors_close(j.in);
    return status == MEZZO_OK ? 0 : 3;
}
