// Implements mezzo_run_eval, also for weights rounded as an export writes them.
#include "train/evaluate.h"

#include <math.h>

#include "graph/graph.h"
#include "checkpoint/checkpoint.h"
#include "weights/gguf.h"

// Rounds one part's values to what a file in the format gives back.
static mezzo_status round_part(const mz_gguf_format *f, const mz_hf_part *part, bool vector, int64_t cols,
                               float *values) {
    const size_t n = (size_t)(part->rows * cols);
    mezzo_dtype dtype;
    bool q8_0;
    mz_gguf_format_of(f, part, vector, cols, &dtype, &q8_0);
    for (size_t i = 0; part->plus != 0 && i < n; i++)
        values[i] = values[i] + part->plus - part->plus;
    for (size_t i = 0; q8_0 && i < n; i += MZ_Q8_0_VALUES) {
        unsigned char block[MZ_Q8_0_BYTES];
        if (!mz_q8_0_pack(values + i, block))
            return mz_fail(MEZZO_ERR_NUMERIC, "tensor %s: a value is too large for q8_0", part->name);
        for (int k = 0; k < MZ_Q8_0_VALUES; k++)
            values[i + (size_t)k] = mz_q8_0_value(block, k);
    }
    for (size_t i = 0; !q8_0 && dtype != MEZZO_F32 && i < n; i++)
        values[i] = dtype == MEZZO_BF16 ? mezzo_bf16_to_f32(mezzo_f32_to_bf16(values[i]))
                                        : mezzo_f16_to_f32(mezzo_f32_to_f16(values[i]));
    return mz_all_finite(values, n)
               ? MEZZO_OK
               : mz_fail(MEZZO_ERR_NUMERIC, "tensor %s: a value is too large for %s", part->name, f->name);
}

static mezzo_status round_param(const mz_gguf_format *f, const mz_hf_family *family, const mz_gguf_family *g,
                                const mz_model *model, const mz_param_spec *spec, float *values) {
    mz_hf_parts parts = {0};
    const int rank = spec->shape.rank;
    const int64_t cols = rank > 1 ? spec->shape.dim[rank - 1] : 1;
    mezzo_status status = family->map(family, model, spec->name, &spec->shape, &parts);
    if (status == MEZZO_OK)
        status = mz_gguf_rename(g, &model->config, &parts);
    for (size_t i = 0; i < parts.count && status == MEZZO_OK; values += parts.items[i++].rows * cols)
        status = round_part(f, &parts.items[i], rank == 1, cols, values);
    mz_free(parts.items);
    return status;
}

static mezzo_status round_params(void *user, const mz_model *model, mezzo_params *params) {
    const mz_gguf_format *f = user;
    const mz_hf_family *family = mz_hf_by_model(model->maker->name);
    const mz_gguf_family *g = mz_gguf_by_model(model->maker->name);
    mezzo_graph *graph = NULL;
    mezzo_status status = MEZZO_OK;
    if (family == NULL || g == NULL)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "eval as %s: llama.cpp has no architecture for %s", f->name,
                       mz_model_name(model));
    MEZZO_TRY(mz_model_graph(model, &graph));
    for (size_t i = 0; i < graph->n_params && status == MEZZO_OK; i++) {
        const mz_param_spec *spec = &graph->params[i];
        const int index = mezzo_params_find(params, spec->name);
        float *values = mz_alloc((size_t)mz_shape_count(&spec->shape), sizeof *values);
        status = values != NULL ? mezzo_params_read(params, index, values) : MEZZO_ERR_MEMORY;
        if (status == MEZZO_OK)
            status = round_param(f, family, g, model, spec, values);
        if (status == MEZZO_OK)
            status = mezzo_params_write(params, index, values);
        mz_free(values);
    }
    mezzo_graph_free(graph);
    return status;
}

mezzo_status mezzo_run_eval(const mezzo_eval_options *options, const mezzo_hooks *hooks, mezzo_eval_result *result) {
    MZ_REQUIRE(options, result);
    mz_gguf_format format;
    if (options->as == NULL)
        return mz_run_eval(options, hooks, NULL, NULL, result);
    *result = (mezzo_eval_result){.loss = (double)NAN, .loss_as = (double)NAN};
    MEZZO_TRY(mz_gguf_format_named(options->as, &format));
    mezzo_eval_options exact = *options;
    mezzo_eval_result rounded;
    exact.csv = NULL;
    MEZZO_TRY(mz_run_eval(&exact, hooks, NULL, NULL, result));
    MEZZO_TRY(mz_run_eval(options, hooks, round_params, &format, &rounded));
    result->loss_as = rounded.loss;
    snprintf(result->as, sizeof result->as, "%s", format.name);
    return MEZZO_OK;
}
