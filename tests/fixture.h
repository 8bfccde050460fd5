// What most tests of the library begin with: a small model, batches that any test can make again,
// and the objects of a run.
#ifndef TEST_FIXTURE_H
#define TEST_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "mezzo/model.h"
#include "mezzo/step.h"
#include "test.h"

// Two layers of two heads, without dropout; glm4_moe has three, and four experts.
static inline mezzo_model_config fixture_model(const char *name, int64_t d_model, int64_t d_ff, int64_t vocab,
                                               int64_t length) {
    mezzo_model_config c;
    must(mezzo_model_defaults(name, &c));
    c.layers = 2, c.heads = 2, c.d_model = d_model, c.d_ff = d_ff, c.vocab = vocab, c.seq_len = length, c.dropout = 0;
    if (strcmp(name, "glm4_moe") == 0)
        c.layers = 3, c.experts = 4, c.d_expert = 24;
    return c;
}

static inline mezzo_graph *fixture_graph(const mezzo_model_config *c, int64_t batch, int64_t length, bool keep_logits) {
    mezzo_graph *g;
    must(mezzo_graph_create(&g));
    must(mezzo_model_build(g, c, batch, length, keep_logits));
    return g;
}

// Batch k of n tokens.
static inline mezzo_status fixture_batch(mezzo_program *p, int n, int vocab, int k) {
    int32_t *tokens = malloc(2 * (size_t)n * sizeof *tokens), *targets = tokens + n;
    for (int i = 0; i < n; i++) {
        tokens[i] = (i * 7 + 3 * k) % vocab;
        targets[i] = (i * 5 + k) % vocab;
    }
    mezzo_status status = mezzo_program_write(p, "tokens", tokens, (size_t)n * sizeof *tokens);
    if (status == MEZZO_OK)
        status = mezzo_program_write(p, "targets", targets, (size_t)n * sizeof *targets);
    free(tokens);
    return status;
}

typedef struct fixture_options {
    const char *device; // NULL: test_device()
    int threads;        // 0: 1
    mezzo_model_config model;
    int64_t batch; // of model.seq_len tokens
    const char *freeze;
    mezzo_program_options program;
    mezzo_master master;
    const mezzo_optimizer_options *optimizer; // NULL: the defaults
    const mezzo_scaler_options *scaler;       // NULL: no scaler
    const mezzo_step_options *step;           // NULL: no step
} fixture_options;

typedef struct fixture {
    mezzo_device *device;
    mezzo_graph *graph;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
    mezzo_step *step;
} fixture;

// For a mezzo_step_fill: batch `index` of what the fixture was opened with.
static inline mezzo_status fixture_fill(void *options, mezzo_program *p, uint64_t index) {
    const fixture_options *o = options;
    return fixture_batch(p, (int)(o->batch * o->model.seq_len), (int)o->model.vocab, (int)index);
}

// On a device that is open already, or on o->device.
static inline void fixture_open(fixture *f, const fixture_options *o) {
    const mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    if (f->device == NULL)
        must(mezzo_device_open(o->device != NULL ? o->device : test_device(), o->threads > 0 ? o->threads : 1,
                               &f->device));
    f->graph = fixture_graph(&o->model, o->batch, o->model.seq_len, false);
    if (o->freeze != NULL)
        must(mezzo_graph_freeze(f->graph, o->freeze));
    must(mezzo_params_create_as(f->device, f->graph, &o->program, 7, o->master, &f->params));
    must(mezzo_program_create(f->graph, f->params, &o->program, &f->program));
    must(mezzo_optimizer_create(f->params, o->optimizer != NULL ? o->optimizer : &adamw, &f->optimizer));
    if (o->scaler != NULL)
        must(mezzo_scaler_create(f->device, o->scaler, &f->scaler));
    if (o->step != NULL)
        must(mezzo_step_create(f->program, &f->optimizer, 1, f->scaler, o->step, &f->step));
}

static inline void fixture_close(fixture *f) {
    mezzo_step_free(f->step);
    mezzo_scaler_free(f->scaler);
    mezzo_optimizer_free(f->optimizer);
    mezzo_program_free(f->program);
    mezzo_params_free(f->params);
    mezzo_graph_free(f->graph);
    mezzo_device_close(f->device);
    *f = (fixture){0};
}

#endif
