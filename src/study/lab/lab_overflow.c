// Shows where a softmax leaves the range of its format, and how the loss scale falls and rises again.
#include <math.h>

#include "mezzo/step.h"
#include "study/lab/lab.h"

mz_softmax_row mz_softmax_of(mezzo_dtype dtype, double x) {
    mz_softmax_row out = {.format = dtype, .x = mezzo_round_to(x, dtype)};
    double e = mezzo_round_to(exp(out.x), dtype), small = mezzo_round_to(exp(-out.x), dtype);
    out.naive = mezzo_round_to(e / mezzo_round_to(e + 1, dtype), dtype);
    out.shifted = mezzo_round_to(1 / mezzo_round_to(1 + small, dtype), dtype);
    out.exact = 1 / (1 + exp(-out.x));
    return out;
}

// Holds the program of loss = Σ (x·w)·c with x = 1: the product's gradient, stored in fp16, is loss scale × c.
typedef struct experiment {
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
    mezzo_step *step;
} experiment;

static void experiment_close(experiment *e) {
    mezzo_step_free(e->step);
    mezzo_scaler_free(e->scaler);
    mezzo_optimizer_free(e->optimizer);
    mezzo_program_free(e->program);
    mezzo_params_free(e->params);
    mezzo_graph_free(e->graph);
}

static mezzo_status experiment_open(mezzo_device *device, double lr, double initial, int64_t interval, experiment *e) {
    const int64_t shape[] = {1, 1};
    mezzo_program_options options = {0};
    mezzo_optimizer_options sgd = mezzo_optimizer_defaults();
    mezzo_scaler_options scaling = mezzo_scaler_defaults();
    mezzo_status status;
    *e = (experiment){0};
    sgd.kind = MEZZO_SGD;
    sgd.weight_decay = 0;
    sgd.momentum = 0;
    sgd.schedule.lr = lr;
    scaling.enabled = true;
    scaling.init_scale = initial;
    scaling.growth_interval = interval;
    MEZZO_TRY_GOTO(status, mezzo_precision_parse("fp16", &options.precision));
    MEZZO_TRY_GOTO(status, mezzo_graph_create(&e->graph));
    mezzo_value x = mezzo_input(e->graph, "x", MEZZO_F32, 2, shape);                               // [1, 1]
    mezzo_value c = mezzo_input(e->graph, "c", MEZZO_F32, 2, shape);                               // [1, 1]
    mezzo_value w = mezzo_param(e->graph, "w", (mezzo_init){MEZZO_INIT_CONSTANT, 0.5F}, 2, shape); // [1, 1]
    mezzo_value product = mezzo_linear(e->graph, x, w, MEZZO_NONE);                                // [1, 1]
    MEZZO_TRY_GOTO(status, mezzo_graph_loss(e->graph, mezzo_sum(e->graph, mezzo_mul(e->graph, product, c), -1))); // [1]
    MEZZO_TRY_GOTO(status, mezzo_params_create(device, e->graph, 1, &e->params));
    MEZZO_TRY_GOTO(status, mezzo_program_create(e->graph, e->params, &options, &e->program));
    MEZZO_TRY_GOTO(status, mezzo_optimizer_create(e->params, &sgd, &e->optimizer));
    MEZZO_TRY_GOTO(status, mezzo_scaler_create(device, &scaling, &e->scaler));
    MEZZO_TRY_GOTO(status, mezzo_step_create(e->program, &e->optimizer, 1, e->scaler, NULL, &e->step));
    return MEZZO_OK;
fail:
    experiment_close(e);
    return status;
}

static mezzo_status experiment_step(experiment *e, double gradient, uint64_t step, mz_scale_step *row) {
    const float one = 1, c = (float)gradient;
    mezzo_scaler_state state;
    mezzo_step_report report;
    MEZZO_TRY(mezzo_scaler_get_state(e->scaler, &state));
    MEZZO_TRY(mezzo_program_write(e->program, "x", &one, sizeof one));
    MEZZO_TRY(mezzo_program_write(e->program, "c", &c, sizeof c));
    MEZZO_TRY(mezzo_step_micro(e->step, 1, step));
    MEZZO_TRY(mezzo_step_finish(e->step));
    MEZZO_TRY(mezzo_step_read(e->step, true, &report));
    *row = (mz_scale_step){gradient, state.scale, report.found_inf};
    return MEZZO_OK;
}

mezzo_status mz_scale_path(mezzo_device *device, double spike, int64_t spiked, double initial, int64_t interval,
                           mz_scale_step *rows, int64_t steps) {
    experiment e;
    MEZZO_TRY(experiment_open(device, 0, initial, interval, &e));
    mezzo_status status = MEZZO_OK;
    for (int64_t i = 0; i < steps && status == MEZZO_OK; i++)
        status = experiment_step(&e, i < spiked ? spike : 1, (uint64_t)i, &rows[i]);
    experiment_close(&e);
    MEZZO_TRY(status);
    return MEZZO_OK;
}

// --- clipping ------------------------------------------------------------------------------------------------------
// Takes a step by single calls, because a step object has only one order.
static mezzo_status clip_step(experiment *e, double gradient, double max_norm, bool unscale_first, mz_clip_order *out) {
    const float one = 1, c = (float)gradient;
    float before, after;
    mezzo_step_info info;
    mz_opt_state state;
    MEZZO_TRY(mezzo_params_read(e->params, 0, &before));
    MEZZO_TRY(mezzo_program_write(e->program, "x", &one, sizeof one));
    MEZZO_TRY(mezzo_program_write(e->program, "c", &c, sizeof c));
    MEZZO_TRY(mezzo_program_run(e->program, e->scaler, 1, 0));
    if (unscale_first)
        MEZZO_TRY(mezzo_scaler_unscale(e->scaler, e->optimizer));
    MEZZO_TRY(mezzo_optimizer_clip(e->optimizer, max_norm));
    MEZZO_TRY(mz_optimizer_read_state(e->optimizer, &state));
    MEZZO_TRY(mezzo_scaler_step(e->scaler, e->optimizer));
    MEZZO_TRY(mezzo_scaler_update(e->scaler));
    MEZZO_TRY(mezzo_optimizer_info(e->optimizer, &info));
    MEZZO_TRY(mezzo_params_read(e->params, 0, &after));
    *out = (mz_clip_order){unscale_first ? "unscale, clip, step" : "clip, unscale, step", state.norm, info.clip,
                           fabs((double)before - (double)after)};
    return MEZZO_OK;
}

mezzo_status mz_clip_in_order(mezzo_device *device, double gradient, double max_norm, double scale, bool unscale_first,
                              mz_clip_order *out) {
    experiment e;
    MEZZO_TRY(experiment_open(device, 1, scale, 2000, &e));
    mezzo_status status = clip_step(&e, gradient, max_norm, unscale_first, out);
    experiment_close(&e);
    MEZZO_TRY(status);
    return MEZZO_OK;
}
