#include "study/measure/bench.h"

#include <inttypes.h>
#include <math.h>

#include "study/analyse/stats.h"

static const mz_bench_size sizes[] = {{"small", 768, 3072, 12, 12},
                                      {"medium", 1024, 4096, 24, 16},
                                      {"large", 1280, 5120, 36, 20},
                                      {"xl", 1600, 6400, 48, 25},
                                      {"2.7B", 2560, 10240, 32, 32}};
#define SIZES_VOCAB 10000

const mz_bench_size *mz_bench_size_at(int index) {
    return index >= 0 && index < (int)MZ_COUNT(sizes) ? &sizes[index] : NULL;
}

mezzo_status mz_bench_model(const char *family, const char *size, int64_t vocab, int64_t context,
                            mezzo_model_config *out) {
    const char *names[MZ_COUNT(sizes)];
    const mz_bench_size *found = NULL;
    for (size_t i = 0; i < MZ_COUNT(sizes); i++) {
        names[i] = sizes[i].name;
        if (strcmp(sizes[i].name, size) == 0)
            found = &sizes[i];
    }
    mz_bench_size written = {.name = size};
    char more;
    if (found == NULL && sscanf(size, "%" SCNd64 "x%" SCNd64 "x%" SCNd64 "x%" SCNd64 "%c", &written.d_model,
                                &written.d_ff, &written.layers, &written.heads, &more) == 4)
        found = &written;
    if (found == NULL && strspn(size, "0123456789x") == strlen(size))
        return mz_fail(MEZZO_ERR_INVALID,
                       "\"%s\" is no size: write width, hidden width, layers and heads, such as 768x3072x12x12", size);
    if (found == NULL) {
        const char *nearest = mz_nearest(size, names, MZ_COUNT(names));
        if (mezzo_model_defaults(size, out) != MEZZO_OK && nearest != NULL)
            return mz_fail(MEZZO_ERR_INVALID, "there is no model size \"%s\"; did you mean \"%s\"?", size, nearest);
        MEZZO_TRY(mezzo_model_defaults(size, out));
    } else {
        MEZZO_TRY(mezzo_model_defaults(family, out));
        out->d_model = found->d_model;
        out->d_ff = found->d_ff;
        out->layers = found->layers;
        out->heads = found->heads;
        out->vocab = SIZES_VOCAB;
    }
    if (mezzo_model_task(out) == MEZZO_TASK_LANGUAGE) {
        out->vocab = vocab > 0 ? vocab : out->vocab;
        out->seq_len = context;
    }
    return mezzo_model_check(out);
}

// --- one size in one precision -------------------------------------------------------------------------------------
static mz_bench_time of(const double *seconds, int n) {
    return (mz_bench_time){1e3 * mz_mean(seconds, (size_t)n), 1e3 * mz_deviation(seconds, (size_t)n)};
}

static mz_bench_time not_timed(void) {
    return (mz_bench_time){(double)NAN, (double)NAN};
}

static mezzo_status time_passes(mz_rig *rig, const mz_bench_plan *plan, mz_bench_cell *cell) {
    double forward[MZ_REPEATS_MAX], micro[MZ_REPEATS_MAX];
    int n = plan->repeats.iters;
    if (!plan->backward) {
        MEZZO_TRY(mz_rig_time(rig, MZ_TIMED_FORWARD, &plan->repeats, forward, &n));
        cell->forward = of(forward, n);
        return MEZZO_OK;
    }
    MEZZO_TRY(mz_rig_time_phases(rig, &plan->repeats, forward, micro));
    cell->forward = of(forward, n);
    cell->total = of(micro, n).mean;
    for (int i = 0; i < n; i++)
        micro[i] -= forward[i];
    cell->backward = of(micro, n);
    return MEZZO_OK;
}

static mezzo_status time_phases(mz_rig *rig, const mz_bench_plan *plan, mz_bench_cell *cell) {
    if (plan->forward || plan->backward)
        MEZZO_TRY(time_passes(rig, plan, cell));
    if (plan->step) {
        double seconds[MZ_REPEATS_MAX];
        mz_rig_state state;
        int n;
        MEZZO_TRY(mz_rig_time(rig, MZ_TIMED_STEP, &plan->repeats, seconds, &n));
        cell->step = of(seconds, n);
        MEZZO_TRY(mz_rig_look(rig, &state));
        cell->finite = state.finite;
    }
    return MEZZO_OK;
}

static void add_note(mz_bench_cell *cell, const char *note) {
    size_t used = strlen(cell->note);
    snprintf(cell->note + used, sizeof cell->note - used, "%s%s", used > 0 ? "; " : "", note);
}

static void rates(const mz_session_options *o, const mz_bench_plan *plan, mz_bench_cell *cell) {
    double flops, ms = plan->step ? cell->step.mean : cell->total;
    cell->tokens_per_second = (double)mz_session_items(o) / (ms * 1e-3);
    double peak = plan->peaks != NULL ? plan->peaks[o->program.precision] : 0;
    if (peak > 0 && mz_session_flops(o, &flops) == MEZZO_OK)
        cell->mfu = flops / (ms * 1e-3) / peak;
}

// Asks the plan first, so that a size that cannot fit is not tried.
static mezzo_status fits(mezzo_device *device, const mz_session_options *o, const mz_bench_plan *plan,
                         mz_bench_cell *cell, bool *yes) {
    size_t need, room = plan->memory;
    char line[160];
    MEZZO_TRY(mz_session_bytes(device, o, &need));
    cell->memory_mb = (double)need / (1 << 20);
    if (room == 0)
        MEZZO_TRY(mz_memory_free(device, &room));
    *yes = room == 0 || need <= room;
    if (!*yes) {
        snprintf(line, sizeof line, "does not fit: %.0f MiB are needed, %.0f MiB are free", (double)need / (1 << 20),
                 (double)room / (1 << 20));
        add_note(cell, line);
    }
    return MEZZO_OK;
}

static mezzo_status measure(mezzo_device *device, const mz_session_options *o, const mz_bench_plan *plan,
                            mz_bench_cell *cell) {
    mz_rig *rig = NULL;
    bool yes = false;
    MEZZO_TRY(fits(device, o, plan, cell, &yes));
    if (!yes)
        return MEZZO_OK;
    MEZZO_TRY(mz_rig_create(device, o, &rig));
    mezzo_status status = time_phases(rig, plan, cell);
    mz_rig_free(rig);
    MEZZO_TRY(status);
    cell->measured = true;
    rates(o, plan, cell);
    if (plan->step && !cell->finite)
        add_note(cell, "a loss or gradient was not finite");
    return MEZZO_OK;
}

static mezzo_status run_cell(mezzo_device *device, const mezzo_model_config *model, mezzo_precision asked,
                             const mz_bench_plan *plan, mz_bench_cell *cell) {
    char reason[256];
    mezzo_precision precision;
    mz_session_options o;
    mezzo_optimizer_options matrices;
    *cell = (mz_bench_cell){.forward = not_timed(),
                            .backward = not_timed(),
                            .step = not_timed(),
                            .total = (double)NAN,
                            .tokens_per_second = (double)NAN,
                            .mfu = (double)NAN,
                            .memory_mb = (double)NAN,
                            .finite = true};
    MEZZO_TRY(mezzo_precision_resolve(device, asked, &precision, reason, sizeof reason));
    MEZZO_TRY(mz_session_usual(model, plan->batch, &o));
    mz_session_set_precision(&o, precision);
    mz_session_set_optimizer(&o, plan->optimizer, &matrices);
    o.seed = plan->seed;
    cell->effective = precision;
    if (strstr(reason, ", as asked") == NULL || strchr(reason, ';') != NULL) // the reason has more than the name
        add_note(cell, reason);
    mezzo_status status = measure(device, &o, plan, cell);
    if (status == MEZZO_ERR_MEMORY || status == MEZZO_ERR_UNSUPPORTED) {
        cell->forward = cell->backward = cell->step = not_timed();
        cell->total = (double)NAN;
        add_note(cell, mezzo_error_message());
        status = MEZZO_OK;
    }
    return status;
}

mezzo_status mz_bench_run(mezzo_device *device, const char *size, const mezzo_model_config *model,
                          const mz_bench_plan *plan, mz_bench_result *out) {
    int64_t params;
    *out = (mz_bench_result){.model = *model};
    snprintf(out->size, sizeof out->size, "%s", size);
    mz_session_options o;
    MEZZO_TRY(mz_session_usual(model, plan->batch, &o));
    MEZZO_TRY(mz_session_elements(&o, &params));
    out->params_m = (double)params * 1e-6;
    for (int i = 0; i < plan->n_precisions; i++) {
        mz_bench_cell *cell = &out->cells[i];
        if (plan->tell != NULL)
            plan->tell(plan->user, size, plan->precisions[i]);
        MEZZO_TRY(run_cell(device, model, plan->precisions[i], plan, cell));
        if (!cell->measured)
            mz_log("notice", "%s in %s not measured: %s", size, mezzo_precision_name(plan->precisions[i]), cell->note);
    }
    return MEZZO_OK;
}
