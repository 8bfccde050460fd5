// Computes metrics of gradients: the norm of each parameter's, their mean and maximum, the norms of parts of the model,
// and the share of FP16 values of backward that underflow. It runs when a row is written, on gradients that still lie
// where the step left them, with the loss scale in the optimizer's state.
#include <math.h>

#include "optim/optimizer.h"
#include "runtime/program.h"
#include "train/report.h"

enum { MOST_GROUPS = 256, SUMMARIES = 4 };

struct mz_gradient_norms {
    mz_opt_state *d_states; // on the device [n]: grad_stats writes a norm into each
    mz_opt_state *states;   // the same on the host
    mz_prepared prepared;
    mz_call *calls; // [n]
    mz_update_attrs update;
    void *scratch;
    mz_sequence *sequence;            // runs the calls
    const mezzo_optimizer *optimizer; // set with ranks; both are borrowed
    mz_ranks *ranks;
    double *norms; // [n]
    int n, n_groups;
    int *group;     // [n]
    double *sums;   // [n_groups]
    mz_metric *row; // summaries, then parts
    char **names;   // of parts
};

// Returns the length of a parameter's part of the model: up to the first number in its name, else its first word.
// "h.0.attn.c_attn.weight" belongs to "h.0", "wte.weight" to "wte".
static size_t part_of(const char *name) {
    size_t first = strcspn(name, ".");
    for (size_t at = 0; name[at] != '\0';) {
        size_t n = strcspn(name + at, ".");
        if (n > 0 && strspn(name + at, "0123456789") == n)
            return at + n;
        at += n + (name[at + n] == '.');
    }
    return first;
}

static mezzo_status make_groups(mz_gradient_norms *g, const mezzo_optimizer *opt) {
    for (int i = 0; i < g->n; i++) {
        const char *name = opt->params->list[opt->index[i]].name;
        char full[256];
        snprintf(full, sizeof full, "gradients/norm/%.*s", (int)part_of(name), name);
        const int k = (int)MZ_INDEX_WORD(g->names, g->n_groups, full);
        g->group[i] = k < MOST_GROUPS ? k : -1;
        if (k < g->n_groups || k == MOST_GROUPS)
            continue;
        g->names[k] = mz_strdup(full);
        if (g->names[k] == NULL)
            return MEZZO_ERR_MEMORY;
        g->n_groups++;
    }
    return MEZZO_OK;
}

// Makes a grad_stats call for each parameter: the optimizer's own call with one segment and a state of its own.
static mezzo_status make_calls(mz_gradient_norms *g, const mezzo_optimizer *opt) {
    const mz_backend *b = opt->device->backend;
    g->update.keeps_scale = true;
    for (int i = 0; i < g->n; i++) {
        mz_call *call = &g->calls[i];
        *call = opt->stats.call;
        call->attrs.update = &g->update;
        call->in[1] = mz_tensor_f32(&opt->d_state->scale, 1); // after a step they are still multiplied by it
        call->numerics = (mz_numerics){MEZZO_F32, MEZZO_F32, MEZZO_F64};
        call->in[0] = mz_tensor_segments(opt->params, (mz_segment *)opt->d_segments + i, 1);
        call->out[1] = mz_tensor_bytes(g->d_states + i, sizeof *g->d_states);
    }
    MEZZO_TRY(mz_prepare(opt->device, &g->calls[0], &g->prepared));
    if (g->prepared.workspace > 0)
        MEZZO_TRY(b->alloc(opt->device, g->prepared.workspace, &g->scratch));
    MEZZO_TRY(mz_sequence_create(opt->device, &g->sequence));
    for (int i = 0; i < g->n; i++)
        MEZZO_TRY(mz_issue(opt->device, g->sequence, &g->prepared, &g->calls[i], g->scratch, NULL));
    return MEZZO_OK;
}

mezzo_status mz_gradient_norms_create(mezzo_optimizer *opt, mz_ranks *ranks, mz_gradient_norms **out) {
    mezzo_status status = MEZZO_OK;
    *out = NULL;
    mz_gradient_norms *g;
    MEZZO_TRY(MZ_NEW(g, 1));
    size_t n = (size_t)opt->n;
    g->n = opt->n;
    g->optimizer = opt;
    g->ranks = ranks;
    g->norms = mz_alloc(n, sizeof *g->norms);
    g->states = mz_alloc(n, sizeof *g->states);
    g->calls = mz_alloc(n, sizeof *g->calls);
    g->group = mz_alloc(n, sizeof *g->group);
    g->names = mz_alloc(MOST_GROUPS, sizeof *g->names);
    g->sums = mz_alloc(MOST_GROUPS, sizeof *g->sums);
    g->row = mz_alloc(MOST_GROUPS + SUMMARIES, sizeof *g->row);
    if (!g->states || !g->calls || !g->group || !g->names || !g->sums || !g->row || !g->norms)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    MEZZO_TRY_GOTO(status, opt->device->backend->alloc(opt->device, n * sizeof *g->d_states, (void **)&g->d_states));
    MEZZO_TRY_GOTO(status, make_groups(g, opt));
    if (ranks == NULL)
        MEZZO_TRY_GOTO(status, make_calls(g, opt));
    *out = g;
    return MEZZO_OK;
fail:
    mz_gradient_norms_free(opt->device, g);
    return status;
}

void mz_gradient_norms_free(mezzo_device *device, mz_gradient_norms *g) {
    if (g == NULL)
        return;
    device->backend->release(device, g->d_states);
    device->backend->release(device, g->scratch);
    mz_sequence_free(g->sequence);
    mz_prepared_free(&g->prepared);
    for (int i = 0; i < g->n_groups; i++)
        mz_free(g->names[i]);
    MZ_FREE(g->norms, g->states, g->calls, g->group, g->names, g->sums, g->row, g);
}

static mezzo_status take_norms(mz_gradient_norms *g, mezzo_device *device) {
    if (g->ranks != NULL)
        return mz_ranks_norms(g->ranks, g->optimizer, g->norms);
    MEZZO_TRY(mz_sequence_run(g->sequence));
    MEZZO_TRY(device->backend->read(device, g->states, g->d_states, (size_t)g->n * sizeof *g->states));
    for (int i = 0; i < g->n; i++)
        g->norms[i] = g->states[i].norm;
    return MEZZO_OK;
}

// Returns the share of FP16's subnormal numbers, which have lost bits, among backward's values other than zero. NaN: no
// FP16 value is sampled.
static double underflow_share(const mezzo_program *p) {
    int64_t tiny = 0, all = 0;
    for (size_t i = 0; i < p->n_monitored; i++) {
        const mz_monitored *w = &p->monitored[i];
        if (w->dtype != MEZZO_F16 || strcmp(w->phase, "backward") != 0)
            continue;
        tiny += w->values.tiny;
        all += w->values.inspected - w->values.zeros - w->values.nans - w->values.infs;
    }
    return all > 0 ? (double)tiny / (double)all : (double)NAN;
}

static double largest_activation(const mezzo_program *p) {
    double largest = (double)NAN;
    for (size_t i = 0; i < p->n_monitored; i++) {
        const mz_monitored *w = &p->monitored[i];
        if (!w->loss && strcmp(w->phase, "forward") == 0)
            largest = fmax(largest, fmax(-(double)w->values.low, (double)w->values.high));
    }
    return largest;
}

mezzo_status mz_gradient_norms_log(mz_gradient_norms *g, mezzo_program *program, mezzo_device *device,
                                   mz_metrics *metrics, int64_t step, double *underflow) {
    double sum = 0, most = 0;
    size_t n = 0;
    MEZZO_TRY(take_norms(g, device));
    memset(g->sums, 0, (size_t)g->n_groups * sizeof *g->sums);
    for (int i = 0; i < g->n; i++) {
        double norm = g->norms[i];
        sum += norm;
        most = norm > most || isnan(norm) ? norm : most;
        if (g->group[i] >= 0)
            g->sums[g->group[i]] += norm * norm;
    }
    g->row[n++] = mz_metric_number("gradients/mean_norm", sum / g->n);
    g->row[n++] = mz_metric_number("gradients/max_norm", most);
    MEZZO_TRY(mz_program_read_monitored(program));
    *underflow = underflow_share(program);
    if (!isnan(*underflow))
        g->row[n++] = mz_metric_number("amp/underflow_share", *underflow);
    if (!isnan(largest_activation(program)))
        g->row[n++] = mz_metric_number("guard/largest_activation", largest_activation(program));
    for (int k = 0; k < g->n_groups; k++)
        g->row[n++] = mz_metric_number(g->names[k], sqrt(g->sums[k]));
    return mz_metrics_write(metrics, step, g->row, n);
}
