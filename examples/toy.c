// Trains a small classifier in its own training loop: a graph with an autocast region, an optimizer, a grad scaler and
// the step that combines them. Compiles as C11 and C++17.
//
//     cc toy.c $(pkg-config --cflags --libs mezzo) -lm && ./a.out [fp32|bf16|fp16] [device]
#include <stdio.h>

#include "mezzo/mezzo.h"

enum { BATCH = 32, INPUTS = 5, HIDDEN = 10, CLASSES = 3, STEPS = 300 };

// Stops at the first error with the library's message.
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != MEZZO_OK) {                                                                                      \
            fprintf(stderr, "toy: %s\n", mezzo_error_message());                                                       \
            return 3;                                                                                                  \
        }                                                                                                              \
    } while (0)

// x [B, 5] → fc1 → relu → layer norm → fc2 → logits [B, 3] → loss. The region sets a precision; masters stay FP32,
// and the norm and the loss always compute in FP32.
static mezzo_status build(mezzo_graph *g, mezzo_precision precision) {
    const mezzo_init small = {MEZZO_INIT_NORMAL, 0.3F}, one = {MEZZO_INIT_CONSTANT, 1};
    const int64_t rows[] = {BATCH, INPUTS}, first[] = {HIDDEN, INPUTS}, second[] = {CLASSES, HIDDEN};
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 2, rows);
    mezzo_value targets = mezzo_input(g, "targets", MEZZO_I32, 1, rows); // rank 1: [B]
    mezzo_value w1 = mezzo_param(g, "fc1.weight", small, 2, first);
    mezzo_value norm = mezzo_param(g, "norm.weight", one, 1, first);
    mezzo_value w2 = mezzo_param(g, "fc2.weight", small, 2, second);

    mezzo_autocast_begin(g, precision);
    mezzo_value h = mezzo_relu(g, mezzo_linear(g, x, w1, MEZZO_NONE)); // [B, 10]
    h = mezzo_layernorm(g, h, norm, MEZZO_NONE, 1e-5F);                // [B, 10]
    mezzo_value logits = mezzo_linear(g, h, w2, MEZZO_NONE);           // [B, 3]
    mezzo_autocast_end(g);

    mezzo_graph_output(g, "logits", logits);
    mezzo_graph_loss(g, mezzo_cross_entropy(g, logits, targets, -1));
    return mezzo_graph_status(g);
}

// Points in five dimensions; the class is the largest of the first three coordinates. The step asks for each micro
// batch by its number.
static mezzo_status fill(void *user, mezzo_program *program, uint64_t index) {
    unsigned *seed = (unsigned *)user;
    float x[BATCH][INPUTS];
    int32_t targets[BATCH];
    (void)index; // points are drawn in order
    for (int i = 0; i < BATCH; i++) {
        for (int k = 0; k < INPUTS; k++) {
            *seed = *seed * 1664525U + 1013904223U; // Numerical Recipes' generator
            x[i][k] = (float)(*seed >> 8) / (float)(1 << 23) - 1;
        }
        targets[i] = x[i][0] > x[i][1] ? (x[i][0] > x[i][2] ? 0 : 2) : (x[i][1] > x[i][2] ? 1 : 2);
    }
    mezzo_status status = mezzo_program_write(program, "x", x, sizeof x);
    return status == MEZZO_OK ? mezzo_program_write(program, "targets", targets, sizeof targets) : status;
}

static int train(mezzo_device *device, mezzo_precision precision, double *first, double *last) {
    static mezzo_program_options outside; // of the region: FP32
    static mezzo_step_options each;
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    mezzo_scaler_options scaling = mezzo_scaler_defaults();
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
    mezzo_step *step;
    adamw.schedule.lr = 1e-2;
    scaling.enabled = mezzo_precision_needs_loss_scale(precision);
    each.clip = 1.0;

    TRY(mezzo_graph_create(&graph));
    TRY(build(graph, precision));
    TRY(mezzo_params_create(device, graph, 1, &params));
    TRY(mezzo_program_create(graph, params, &outside, &program));
    TRY(mezzo_optimizer_create(params, &adamw, &optimizer));
    TRY(mezzo_scaler_create(device, &scaling, &scaler));
    TRY(mezzo_step_create(program, &optimizer, 1, scaler, &each, &step));

    unsigned seed = 1;
    for (unsigned i = 0; i < STEPS; i++) {
        mezzo_step_report report;
        TRY(mezzo_step_run(step, 1, i, fill, &seed)); // skipped where a gradient is not finite
        TRY(mezzo_step_read(step, true, &report));
        if (i == 0)
            *first = report.loss;
        *last = report.loss;
        if (i % 50 == 0)
            printf("step %3u  loss %.4f\n", i, report.loss);
    }
    mezzo_step_free(step);
    mezzo_scaler_free(scaler);
    mezzo_optimizer_free(optimizer);
    mezzo_program_free(program);
    mezzo_params_free(params);
    mezzo_graph_free(graph);
    return 0;
}

int main(int argc, char **argv) {
    mezzo_device *device;
    mezzo_precision precision;
    double first = 0, last = 0;
    TRY(mezzo_precision_parse(argc > 1 ? argv[1] : "fp16", &precision));
    TRY(mezzo_device_open(argc > 2 ? argv[2] : "cpu", 1, &device));
    int code = train(device, precision, &first, &last);
    mezzo_device_close(device);
    if (code == 0)
        printf("loss %.4f -> %.4f\n", first, last);
    return code != 0 ? code : last < first / 2 ? 0 : 1;
}
