// Trains a classifier on your own data, here two spirals, in batches of rows that the loop draws; it holds out the last
// part of the data.
//
//     cc classifier.c $(pkg-config --cflags --libs mezzo) -lm && ./a.out [fp32|bf16|fp16 [DEVICE]]
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "mezzo/mezzo.h"

enum { ROWS = 1024, HELD_OUT = 256, FEATURES = 2, CLASSES = 2, BATCH = 64, STEPS = 800 };

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != MEZZO_OK) {                                                                                      \
            fprintf(stderr, "classifier: %s\n", mezzo_error_message());                                                \
            exit(3);                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct data_set {
    float x[ROWS][FEATURES];
    int32_t label[ROWS];
    uint32_t seed;
} data_set;

static uint32_t draw(uint32_t *seed) { // Numerical Recipes' generator
    *seed = *seed * 1664525U + 1013904223U;
    return *seed >> 8;
}

static void make_spirals(data_set *d) {
    for (int i = 0; i < ROWS; i++) {
        float along = (float)draw(&d->seed) / (float)(1 << 24), turn = 6 * along;
        d->label[i] = (int32_t)(draw(&d->seed) >> 16 & 1);
        d->x[i][0] = along * cosf(turn + (float)d->label[i] * 3.14159265F);
        d->x[i][1] = along * sinf(turn + (float)d->label[i] * 3.14159265F);
    }
}

static mezzo_status write_rows(mezzo_program *program, const data_set *d, const int *rows) {
    float x[BATCH][FEATURES];
    int32_t targets[BATCH];
    for (int i = 0; i < BATCH; i++) {
        x[i][0] = d->x[rows[i]][0];
        x[i][1] = d->x[rows[i]][1];
        targets[i] = d->label[rows[i]];
    }
    mezzo_status status = mezzo_program_write(program, "x", x, sizeof x);
    return status == MEZZO_OK ? mezzo_program_write(program, "targets", targets, sizeof targets) : status;
}

static mezzo_status fill(void *user, mezzo_program *program, uint64_t index) {
    data_set *d = (data_set *)user;
    int rows[BATCH];
    (void)index;
    for (int i = 0; i < BATCH; i++)
        rows[i] = (int)(draw(&d->seed) % (ROWS - HELD_OUT));
    return write_rows(program, d, rows);
}

// The share of held-out rows whose class has the largest logit.
static double accuracy(mezzo_program *program, const data_set *d) {
    int right = 0, rows[BATCH];
    float logits[BATCH][CLASSES];
    for (int first = ROWS - HELD_OUT; first < ROWS; first += BATCH) {
        for (int i = 0; i < BATCH; i++)
            rows[i] = first + i;
        TRY(write_rows(program, d, rows));
        TRY(mezzo_program_run(program, NULL, 1, 0));
        TRY(mezzo_program_read(program, "logits", logits, sizeof logits));
        for (int i = 0; i < BATCH; i++)
            right += (logits[i][1] > logits[i][0]) == d->label[rows[i]];
    }
    return (double)right / HELD_OUT;
}

int main(int argc, char **argv) {
    static data_set data;
    static mezzo_program_options train, test;
    static mezzo_step_options each;
    mezzo_model_config model;
    mezzo_device *device;
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program, *evaluation;
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
    mezzo_step *step;
    make_spirals(&data);
    TRY(mezzo_precision_parse(argc > 1 ? argv[1] : "bf16", &train.precision));
    TRY(mezzo_device_open(argc > 2 ? argv[2] : "cpu", 1, &device));
    TRY(mezzo_model_defaults("mlp", &model));
    model.features = FEATURES, model.classes = CLASSES, model.layers = 2, model.d_model = 64;
    TRY(mezzo_graph_create(&graph));
    TRY(mezzo_model_build(graph, &model, BATCH, 1, true));
    TRY(mezzo_params_create(device, graph, 1, &params));
    test.precision = train.precision, test.forward_only = true;
    TRY(mezzo_program_create(graph, params, &train, &program));
    TRY(mezzo_program_create(graph, params, &test, &evaluation));
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    adamw.schedule.lr = 5e-3;
    mezzo_scaler_options scaling = mezzo_scaler_defaults();
    scaling.enabled = train.precision == MEZZO_PRECISION_FP16;
    each.clip = 1.0;
    TRY(mezzo_optimizer_create(params, &adamw, &optimizer));
    TRY(mezzo_scaler_create(device, &scaling, &scaler));
    TRY(mezzo_step_create(program, &optimizer, 1, scaler, &each, &step));
    for (uint64_t i = 0; i < STEPS; i++)
        TRY(mezzo_step_run(step, 1, i, fill, &data));
    mezzo_step_report last;
    TRY(mezzo_step_read(step, true, &last));
    double share = accuracy(evaluation, &data);
    printf("loss %.4f, %.1f %% of the rows held out\n", last.loss, 100 * share);
    mezzo_step_free(step), mezzo_scaler_free(scaler), mezzo_optimizer_free(optimizer);
    mezzo_program_free(evaluation), mezzo_program_free(program);
    mezzo_params_free(params), mezzo_graph_free(graph), mezzo_device_close(device);
    return share > 0.9 ? 0 : 1;
}
