// What a workload takes and costs, known from its graph before anything is allocated.
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "graph/graph.h"
#include "io/file.h"
#include "study/measure.h"

#define MOMENTS 2 // AdamW's, FP32, of every parameter

static mezzo_status build(const mz_workload *w, mezzo_graph **out) {
    mezzo_status status;
    *out = NULL;
    MEZZO_TRY(mezzo_graph_create(out));
    status = mezzo_model_build(*out, &w->model, w->batch, w->seq_len, false);
    if (status != MEZZO_OK) {
        mezzo_graph_free(*out);
        *out = NULL;
    }
    return status;
}

mezzo_status mz_workload_memory(mezzo_device *device, const mz_workload *w, size_t *bytes) {
    const mezzo_program_options options = {
        .precision = w->precision, .residual = w->residual, .recompute = w->recompute, .loss_weight = 1.0F};
    mezzo_graph *graph;
    mezzo_memory m = {0};
    MEZZO_TRY(build(w, &graph));
    mezzo_status status = mezzo_plan_memory(device, graph, &options, &m);
    mezzo_graph_free(graph);
    MEZZO_TRY(status);
    *bytes = m.masters * (1 + MOMENTS) + m.gradients + m.shadows + m.activations + m.workspace + m.inputs;
    return MEZZO_OK;
}

// MemAvailable of /proc/meminfo, else free pages.
static size_t host_memory_free(void) {
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    size_t found = 0;
    while (f != NULL && found == 0 && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "MemAvailable:", 13) == 0)
            found = (size_t)strtoull(line + 13, NULL, 10) * 1024;
    if (f != NULL)
        fclose(f);
    long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return found > 0 ? found : pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
}

mezzo_status mz_memory_free(mezzo_device *device, size_t *bytes) {
    mezzo_device_info info;
    mezzo_telemetry t;
    MEZZO_TRY(mezzo_device_describe(device, &info));
    if (strcmp(info.backend, "cuda") != 0) {
        *bytes = host_memory_free();
        return MEZZO_OK;
    }
    MEZZO_TRY(mezzo_device_telemetry(device, &t));
    size_t used = t.memory_used > t.memory_allocated ? t.memory_used : t.memory_allocated;
    *bytes = info.memory_total > used ? info.memory_total - used : 0;
    return MEZZO_OK;
}

// Multiply-adds count two. Attention is causal: half of the T × T products.
static double node_flops(const mezzo_graph *g, const mz_node *n) {
    const mz_shape *a = n->in[0] >= 0 ? &g->values[n->in[0]].shape : NULL;
    const mz_shape *y = &g->values[n->out[0]].shape;
    switch (n->op) {
    case MZ_OP_linear:
    case MZ_OP_grouped_linear: // every row meets one expert's matrix
        return 2.0 * (double)mz_shape_count(y) * (double)a->dim[a->rank - 1];
    case MZ_OP_matmul:
        return 2.0 * (double)mz_shape_count(y) * (double)a->dim[a->rank - (n->attrs.transpose_a ? 2 : 1)];
    case MZ_OP_attention: // q·kᵀ and p·v
        return 2.0 * (double)mz_shape_count(y) * (double)(y->dim[1] + 1);
    default:
        return 0;
    }
}

mezzo_status mz_workload_flops(const mz_workload *w, double *flops) {
    mezzo_graph *g;
    MEZZO_TRY(build(w, &g));
    *flops = 0;
    for (size_t i = 0; i < g->n_nodes; i++)
        *flops += node_flops(g, &g->nodes[i]);
    *flops *= 3.0 * (double)w->grad_accum;
    mezzo_graph_free(g);
    return MEZZO_OK;
}

mezzo_status mz_workload_params(const mz_workload *w, int64_t *count) {
    mezzo_graph *g;
    MEZZO_TRY(build(w, &g));
    *count = 0;
    for (size_t i = 0; i < g->n_params; i++)
        *count += mz_shape_count(&g->params[i].shape);
    mezzo_graph_free(g);
    return MEZZO_OK;
}
