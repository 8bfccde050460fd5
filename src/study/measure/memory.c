// What a workload takes and costs, known from its graph before anything is allocated.
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "runtime/program.h"
#include "graph/graph.h"
#include "mezzo/step.h"
#include "study/measure/measure.h"

// Programs that draw text (src/task/sampler.c): of one position and of several, which share the cache; without kernels
// for a cache, or where a sample is longer than the context, of the whole window.
enum { SAMPLE_TOKENS = 200, PREFILL = 64 }; // train.sample_tokens' default; positions read at once

static mz_cut cut_of(const mz_workload *w) {
    return w->ranks > 0 ? mz_ranks_cut(w->shard, w->canonical, 0, w->ranks, w->bucket) : (mz_cut){0};
}

// A program without backward; of parameters in parts it gathers what it reads.
static mezzo_status plan_forward(mezzo_device *device, const mezzo_graph *g, const mz_workload *w,
                                 const mezzo_program_options *options, mezzo_memory *out) {
    const mz_cut cut = cut_of(w);
    return cut.sharded ? mz_plan_memory(device, g, options, w->master, &cut, out)
                       : mezzo_plan_memory(device, g, options, out);
}

static mezzo_status plan_sampler(mezzo_device *device, const mz_workload *w, int64_t tokens, bool cached,
                                 mezzo_memory *out) {
    mezzo_program_options options = mz_workload_options(w, true);
    mezzo_graph *g = NULL;
    options.logits_rows = 0;
    *out = (mezzo_memory){0};
    MEZZO_TRY(mezzo_graph_create(&g));
    mezzo_status status = mezzo_graph_adapt(g, &w->lora);
    if (status == MEZZO_OK)
        status = cached ? mezzo_model_build_cached(g, &w->model, 1, tokens)
                        : mezzo_model_build(g, &w->model, 1, tokens, true);
    if (status == MEZZO_OK)
        status = plan_forward(device, g, w, &options, out);
    mezzo_graph_free(g);
    return status;
}

static mezzo_status sampling_bytes(mezzo_device *device, const mz_workload *w, size_t *bytes) {
    mezzo_memory one, several = {0}, whole = {0};
    *bytes = 0;
    if (mezzo_model_task(&w->model) != MEZZO_TASK_LANGUAGE) // training draws no samples of them
        return MEZZO_OK;
    int64_t length = w->model.seq_len;
    mezzo_status status = plan_sampler(device, w, 1, true, &one);
    bool cached = status != MEZZO_ERR_UNSUPPORTED;
    if (cached)
        MEZZO_TRY(status);
    if (cached && length > 1)
        MEZZO_TRY(plan_sampler(device, w, length < PREFILL ? length : PREFILL, true, &several));
    if (!cached || length < SAMPLE_TOKENS)
        MEZZO_TRY(plan_sampler(device, w, length, false, &whole));
    *bytes = (cached ? one.activations + one.workspace + one.inputs : 0) + several.activations + several.workspace +
             whole.activations + whole.workspace + whole.inputs;
    return MEZZO_OK;
}

static size_t padding_in(size_t bytes) {
    return mz_alloc_bytes(bytes) - bytes;
}

static mezzo_moments moments_of(const mz_workload *w) {
    return w->sgd ? MEZZO_MOMENTS_FP32 : w->moments;
}

// Of the moments, of so many elements each, and of the moving average; *padding: what is left empty behind them.
static size_t moment_bytes(const mz_workload *w, size_t elements, size_t *padding) {
    const size_t n = !w->sgd ? 2 : w->momentum != 0 ? 1 : 0, full = elements * sizeof(float);
    const size_t each = mz_moments_bytes(moments_of(w), (int64_t)elements);
    *padding = n * padding_in(each) + (w->ema > 0 ? padding_in(full) : 0);
    return n * each + (w->ema > 0 ? full : 0);
}

// Elements of a moment where no ranks share them.
static size_t whole_moments(const mezzo_params *params, const mz_workload *w) {
    size_t elements = 0;
    for (size_t i = 0; i < params->n; i++)
        if (!params->list[i].frozen)
            elements += mz_align_up((size_t)params->list[i].stored, (size_t)mz_moments_unit(moments_of(w)));
    return elements;
}

static mezzo_status count_moments(mezzo_device *device, const mezzo_graph *g, const mz_workload *w, size_t *moments) {
    const mezzo_program_options options = mz_workload_options(w, false);
    mezzo_params *params;
    MEZZO_TRY(mz_params_sketch(device, g, &options, w->master, NULL, &params));
    *moments = whole_moments(params, w);
    mezzo_params_free(params);
    return MEZZO_OK;
}

// What of the moments and the segments is one rank's (the first's), and what ranks take for themselves.
static mezzo_status share_of_rank(mezzo_device *device, const mezzo_graph *g, const mz_workload *w, size_t *moments,
                                  size_t *segments, size_t *more) {
    const mezzo_program_options options = mz_workload_options(w, false);
    const mz_cut cut = cut_of(w);
    const mz_ranks_options ranks = {w->shard, w->canonical, w->bf16_wire, w->grad_accum};
    mezzo_params *params;
    MEZZO_TRY(mz_params_sketch(device, g, &options, w->master, &cut, &params));
    *more = mz_ranks_plan(params, w->ranks, &ranks);
    *moments = whole_moments(params, w);
    if (w->shard != MZ_SHARD_NONE) {
        *moments = (size_t)mz_params_part_elements(params);
        *segments = mz_params_parts(params, 0);
    }
    mezzo_params_free(params);
    return MEZZO_OK;
}

// Of the optimizer: moments, its state block, segments, and what the norm's partial sums take (mezzo_optimizer_memory).
static mezzo_status optimizer_bytes(mezzo_device *device, const mezzo_graph *g, const mz_workload *w, size_t elements,
                                    size_t *bytes, size_t *padding) {
    mz_call stats = {.op = MZ_OP_grad_stats, .n_in = 2, .n_out = 2};
    mz_prepared prepared;
    stats.numerics = (mz_numerics){MEZZO_F32, MEZZO_F32, MEZZO_F64};
    size_t trained = 0;
    for (size_t i = 0; i < g->n_params; i++)
        trained += !g->params[i].frozen;
    stats.in[1] = mz_tensor_f32(NULL, 1);
    stats.out[0] = mz_tensor_f32(NULL, (int64_t)elements);
    stats.out[1] = mz_tensor_bytes(NULL, sizeof(mz_opt_state));
    size_t more = 0, moments = 0, segments = trained;
    if (w->ranks > 0)
        MEZZO_TRY(share_of_rank(device, g, w, &moments, &segments, &more));
    else
        MEZZO_TRY(count_moments(device, g, w, &moments));
    stats.in[0] = mz_tensor_bytes(NULL, segments * sizeof(mz_segment));
    MEZZO_TRY(mz_prepare(device, &stats, &prepared));
    *bytes = moment_bytes(w, moments, padding) + sizeof(mz_opt_state) + segments * sizeof(mz_segment) +
             prepared.workspace + more;
    mz_prepared_free(&prepared);
    return MEZZO_OK;
}

// Of the blocks that a step's memory lies in, besides the optimizer's.
static size_t padding_of(const mz_footprint *f) {
    const size_t blocks[] = {f->weights,          f->gradients,      f->shadows > 0 ? f->shadows + 64 : 0,
                             f->activations + 64, f->workspace + 64, f->inputs + 64};
    size_t padding = 0;
    for (size_t i = 0; i < MZ_COUNT(blocks); i++)
        padding += blocks[i] > 0 ? padding_in(blocks[i]) : 0;
    return padding;
}

static size_t host_padding(const mezzo_device *device, const mz_footprint *f, size_t optimizer) {
    return strcmp(device->backend->name, "cuda") != 0 ? padding_of(f) + optimizer : 0;
}

// `like`: a footprint whose programs without backward are the same; NULL: they are planned.
static mezzo_status plan_programs(mezzo_device *device, const mezzo_graph *g, const mz_workload *w,
                                  const mz_footprint *like, mz_footprint *out) {
    mezzo_program_options options = mz_workload_options(w, false);
    mezzo_memory m = {0}, forward = {0};
    const mz_cut cut = cut_of(w);
    MEZZO_TRY(mz_plan_memory(device, g, &options, w->master, &cut, &m));
    options = mz_workload_options(w, true);
    if (like == NULL)
        MEZZO_TRY(plan_forward(device, g, w, &options, &forward));
    *out = (mz_footprint){.weights = m.masters,
                          .shadows = m.shadows,
                          .gradients = m.gradients,
                          .activations = m.activations,
                          .workspace = m.workspace,
                          .inputs = m.inputs,
                          .unshared = m.activations_unshared,
                          .evaluation = like != NULL ? like->evaluation
                                                     : forward.activations + forward.workspace + forward.inputs};
    if (like != NULL)
        out->sampling = like->sampling;
    else
        MEZZO_TRY(sampling_bytes(device, w, &out->sampling));
    for (size_t i = 0; i < g->n_params; i++)
        out->parameters += mz_shape_count(&g->params[i].shape);
    return MEZZO_OK;
}

static mezzo_status plan(mezzo_device *device, const mezzo_graph *g, const mz_workload *w, const mz_footprint *like,
                         mz_footprint *out) {
    size_t padding;
    if (like != NULL)
        *out = *like;
    else
        MEZZO_TRY(plan_programs(device, g, w, NULL, out));
    MEZZO_TRY(optimizer_bytes(device, g, w, out->gradients / sizeof(float), &out->optimizer, &padding));
    out->padding = host_padding(device, out, padding);
    return MEZZO_OK;
}

mezzo_status mz_workload_footprint_like(mezzo_device *device, const mz_workload *w, const mz_footprint *like,
                                        mz_footprint *out) {
    mezzo_graph *graph;
    MEZZO_TRY(mz_workload_graph(w, &graph));
    mezzo_status status = plan(device, graph, w, like, out);
    mezzo_graph_free(graph);
    MEZZO_TRY(status);
    return MEZZO_OK;
}

mezzo_status mz_workload_footprint(mezzo_device *device, const mz_workload *w, mz_footprint *out) {
    return mz_workload_footprint_like(device, w, NULL, out);
}

size_t mz_footprint_total(const mz_footprint *f) {
    return f->weights + f->shadows + f->gradients + f->optimizer + f->activations + f->workspace + f->inputs +
           f->padding;
}

size_t mz_footprint_run(const mz_footprint *f) {
    return mz_footprint_total(f) + f->evaluation + f->sampling;
}

mezzo_status mz_workload_run_memory(mezzo_device *device, const mz_workload *w, size_t *bytes) {
    mz_footprint f;
    MEZZO_TRY(mz_workload_footprint(device, w, &f));
    *bytes = mz_footprint_run(&f);
    return MEZZO_OK;
}

mezzo_status mz_workload_memory(mezzo_device *device, const mz_workload *w, size_t *bytes) {
    mz_footprint f;
    MEZZO_TRY(mz_workload_footprint(device, w, &f));
    *bytes = mz_footprint_total(&f);
    return MEZZO_OK;
}

// --- the largest batch that fits ---------------------------------------------------------------------------------
void mz_plans_free(mz_plans *plans) {
    mz_free(plans->list);
    *plans = (mz_plans){0};
}

// A search among batches, of which some are planned already, by this search or by one with another optimizer.
typedef struct search {
    mezzo_device *device;
    const mz_workload *w;
    size_t limit;
    mz_plans *plans;
    size_t optimizer, padding,
        gradients; // the optimizer's bytes and padding, for so many bytes of gradients; 0: not yet
} search;

// A plan whose programs without backward are the same: they know neither masters, where parameters are whole, nor
// recompute. NULL: none.
static const mz_footprint *forward_at(const search *s, int64_t batch) {
    for (size_t i = 0; i < s->plans->n && !cut_of(s->w).sharded; i++)
        if (s->plans->list[i].batch == batch && s->plans->list[i].precision == s->w->precision)
            return &s->plans->list[i].f;
    return NULL;
}

static mezzo_status plan_at(const search *s, int64_t batch, mz_planned *out) {
    mz_workload w = *s->w;
    mezzo_graph *g;
    w.batch = batch;
    *out = (mz_planned){w.precision, w.master, w.recompute, batch, {0}};
    MEZZO_TRY(mz_workload_graph(&w, &g));
    mezzo_status status = plan_programs(s->device, g, &w, forward_at(s, batch), &out->f);
    mezzo_graph_free(g);
    return status;
}

static bool is_of(const mz_planned *p, const mz_workload *w, bool any_master) {
    return p->precision == w->precision && p->recompute == w->recompute && (any_master || p->master == w->master);
}

// As mz_footprint_run says of programs that are planned, with this search's optimizer: its bytes do not depend on the
// batch, where the parameters do not.
static mezzo_status total_of(search *s, const mz_planned *p, size_t *bytes) {
    mz_footprint f = p->f;
    if (s->gradients == 0 || s->gradients != f.gradients) {
        mz_workload w = *s->w;
        mezzo_graph *g;
        w.batch = p->batch;
        MEZZO_TRY(mz_workload_graph(&w, &g));
        mezzo_status status =
            optimizer_bytes(s->device, g, &w, f.gradients / sizeof(float), &s->optimizer, &s->padding);
        mezzo_graph_free(g);
        MEZZO_TRY(status);
        s->gradients = f.gradients;
    }
    f.optimizer = s->optimizer;
    f.padding = host_padding(s->device, &f, s->padding);
    *bytes = mz_footprint_run(&f);
    return MEZZO_OK;
}

static mezzo_status total_at(search *s, int64_t batch, size_t *bytes) {
    for (size_t i = 0; i < s->plans->n; i++)
        if (s->plans->list[i].batch == batch && is_of(&s->plans->list[i], s->w, false))
            return total_of(s, &s->plans->list[i], bytes);
    MEZZO_TRY(MZ_RESERVE(s->plans->list, s->plans->cap, s->plans->n + 1));
    MEZZO_TRY(plan_at(s, batch, &s->plans->list[s->plans->n]));
    return total_of(s, &s->plans->list[s->plans->n++], bytes);
}

// What is known of batches from `from` on: `fits`, the largest that fits (a smaller one may not, where blocks of rows
// come out badly), and `over`, the least above it; NULL: none. And `second`, for the line of a guess: `over`, or the
// largest that is a sixteenth below `fits`.
typedef struct known {
    const mz_planned *fits, *over, *second;
} known;

static mezzo_status look(search *s, int64_t from, int64_t most, bool any_master, known *k) {
    *k = (known){0};
    for (int pass = 0; pass < 3; pass++)
        for (size_t i = 0; i < s->plans->n; i++) {
            const mz_planned *p = &s->plans->list[i];
            size_t bytes;
            if (!is_of(p, s->w, any_master) || p->batch < from || p->batch > most)
                continue;
            MEZZO_TRY(total_of(s, p, &bytes));
            if (pass == 0 && bytes <= s->limit && (k->fits == NULL || p->batch > k->fits->batch))
                k->fits = p;
            if (pass == 1 && p->batch > k->fits->batch && (k->over == NULL || p->batch < k->over->batch))
                k->over = p;
            if (pass == 2 && p->batch < k->fits->batch - k->fits->batch / 16 &&
                (k->second == NULL || p->batch > k->second->batch))
                k->second = p;
        }
    if (k->over != NULL)
        k->second = k->over;
    return MEZZO_OK;
}

static size_t on_line(size_t a, size_t b, double at) {
    const double bytes = (double)a + at * ((double)b - (double)a);
    return bytes > 0 ? (size_t)bytes : 0;
}

// What a batch would take if each part of a footprint were a straight line through two plans. Blocks in whole huge
// pages make steps of the sum, so that it is none.
static mezzo_status guess(search *s, const known *k, int64_t batch, size_t *bytes) {
    const mz_footprint *f = &k->fits->f, *g = &k->second->f;
    const double at = (double)(batch - k->fits->batch) / (double)(k->second->batch - k->fits->batch);
    mz_planned p = *k->fits;
    p.f.activations = on_line(f->activations, g->activations, at);
    p.f.workspace = on_line(f->workspace, g->workspace, at);
    p.f.inputs = on_line(f->inputs, g->inputs, at);
    p.f.evaluation = on_line(f->evaluation, g->evaluation, at);
    return total_of(s, &p, bytes);
}

// The largest batch from `fits` to `end` that fits by such a guess.
static mezzo_status guess_largest(search *s, const known *k, int64_t end, int64_t *batch) {
    int64_t fits = k->fits->batch, over = end + 1;
    while (k->second != NULL && over - fits > 1) {
        const int64_t middle = fits + (over - fits) / 2;
        size_t bytes;
        MEZZO_TRY(guess(s, k, middle, &bytes));
        *(bytes <= s->limit ? &fits : &over) = middle;
    }
    *batch = fits;
    return MEZZO_OK;
}

// Past a batch that does not fit there may be some that do: looks a little further, where plans take no time, until one
// does. Those in between are then not looked at. The plans may move: a `known` from before is not valid afterwards.
static mezzo_status try_further(search *s, int64_t batch, int64_t most, bool *found) {
    enum { QUICK = 1 << 16, PARTS = 64 };
    *found = false;
    for (int64_t i = 1; i <= 4 && !*found; i++) {
        const int64_t next = batch + 1 + i * batch / PARTS;
        size_t bytes;
        if (batch > QUICK || next > most)
            return MEZZO_OK;
        MEZZO_TRY(total_at(s, next, &bytes));
        *found = bytes <= s->limit;
    }
    return MEZZO_OK;
}

// The largest batch from `from` to `most` that fits; `from` does. A guess says where to look, a plan there says whether
// it is so; where other masters' searches ended comes first. Large batches take long to plan: the way there is by
// steps. Where guesses miss on one side again and again, each goes twice as far as the one before.
static mezzo_status largest_from(search *s, int64_t from, int64_t most, int64_t *batch) {
    enum { STEP = 8, FURTHER = 20 };
    int hits = 0, misses = 0;
    for (;;) {
        known k, others;
        int64_t next = 0;
        size_t bytes;
        MEZZO_TRY(look(s, from, most, false, &k));
        MEZZO_TRY(look(s, from, most, true, &others));
        *batch = k.fits->batch;
        const int64_t over = k.over != NULL ? k.over->batch : most + 1,
                      step = *batch > most / STEP ? most : *batch * STEP;
        if (over - *batch <= 1) {
            bool further;
            MEZZO_TRY(try_further(s, *batch, most, &further));
            if (!further)
                return MEZZO_OK;
            continue;
        }
        MEZZO_TRY(guess_largest(s, &k, over <= step ? over - 1 : step, &next));
        const int64_t up = *batch + (INT64_C(1) << (hits < FURTHER ? hits : FURTHER)),
                      down = over - (INT64_C(1) << (misses < FURTHER ? misses : FURTHER));
        next = next > down ? down : next;
        next = next < up ? up : next;
        if (others.over != NULL && others.fits->batch > *batch && others.fits->batch < over)
            next = others.fits->batch;
        else if (others.over != NULL && others.over->batch < over && others.over->batch > *batch)
            next = others.over->batch;
        next = next < over ? next : over - 1;
        MEZZO_TRY(total_at(s, next, &bytes));
        hits = bytes <= s->limit ? hits + 1 : 0;
        misses = bytes <= s->limit ? 0 : misses + 1;
    }
}

// The least batch whose activations' results the device makes again; 0: that is not a matter of the batch.
static mezzo_status least_remade(const mezzo_device *device, const mz_workload *w, int64_t *batch) {
    mz_workload one = *w;
    mezzo_graph *g;
    *batch = 0;
    if (device->backend->remakes == NULL || device->backend->remakes_above == 0 || w->recompute_light)
        return MEZZO_OK;
    one.batch = 1;
    MEZZO_TRY(mz_workload_graph(&one, &g));
    const int64_t rows = mz_program_rows(g);
    mezzo_graph_free(g);
    *batch = rows > 0 ? device->backend->remakes_above / rows + 1 : 0;
    return MEZZO_OK;
}

static mezzo_status largest_batch(search *s, int64_t *batch) {
    enum { MOST = 1 << 20 };
    size_t bytes;
    int64_t remade;
    *batch = 0;
    MEZZO_TRY(total_at(s, 1, &bytes));
    if (bytes > s->limit)
        return MEZZO_OK;
    MEZZO_TRY(largest_from(s, 1, MOST, batch));
    MEZZO_TRY(least_remade(s->device, s->w, &remade));
    if (*batch >= remade || remade > MOST)
        return MEZZO_OK;
    MEZZO_TRY(total_at(s, remade, &bytes)); // may need less than those just below it
    if (bytes <= s->limit)
        MEZZO_TRY(largest_from(s, remade, MOST, batch));
    return MEZZO_OK;
}

mezzo_status mz_workload_largest_batch(mezzo_device *device, const mz_workload *w, size_t limit, mz_plans *plans,
                                       int64_t *batch) {
    mz_plans own = {0};
    search s = {.device = device, .w = w, .limit = limit, .plans = plans != NULL ? plans : &own};
    mezzo_status status = largest_batch(&s, batch);
    mz_plans_free(&own);
    return status;
}

// --- measured ------------------------------------------------------------------------------------------------------
// A line of /proc/self/status, bytes; 0: not there.
static size_t process_memory(const char *field) {
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    size_t found = 0, length = strlen(field);
    while (f != NULL && found == 0 && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, field, length) == 0 && line[length] == ':')
            found = (size_t)strtoull(line + length + 1, NULL, 10) * 1024;
    if (f != NULL)
        fclose(f);
    return found;
}

// Starts VmHWM again from what is resident now.
static bool reset_process_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    bool done = f != NULL && fputs("5", f) >= 0;
    return f != NULL && fclose(f) == 0 && done;
}

static mezzo_status run_two_steps(mezzo_device *device, const mz_workload *w) {
    mz_rig *rig;
    MEZZO_TRY(mz_rig_create(device, w, &rig));
    mezzo_status status = mz_rig_run_steps(rig, 2);
    mz_rig_free(rig);
    MEZZO_TRY(status);
    return MEZZO_OK;
}

mezzo_status mz_workload_measure(mezzo_device *device, const mz_workload *w, size_t *bytes) {
    mezzo_telemetry before, after;
    MEZZO_TRY(mezzo_device_telemetry(device, &before));
    mezzo_device_reset_peak(device);
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 1 << 16); // what is freed goes back to the system, and what is taken is counted
    malloc_trim(0);
#endif
    size_t resident = process_memory("VmRSS");
    bool counts = reset_process_peak();
    MEZZO_TRY(run_two_steps(device, w));
    MEZZO_TRY(mezzo_device_telemetry(device, &after));
    if (after.memory_peak > 0) { // the device counts
        *bytes = after.memory_peak - before.memory_allocated;
        return MEZZO_OK;
    }
    size_t peak = process_memory("VmHWM");
    if (!counts || resident == 0 || peak <= resident)
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "this system does not report a process's peak memory (/proc/self/clear_refs)");
    *bytes = peak - resident;
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
    *bytes = info.memory_free;
    if (info.memory_free > 0)
        return MEZZO_OK;
    MEZZO_TRY(mezzo_device_telemetry(device, &t));
    size_t used = t.memory_used > t.memory_allocated ? t.memory_used : t.memory_allocated;
    *bytes = info.memory_total > used ? info.memory_total - used : 0;
    return MEZZO_OK;
}

mezzo_status mz_workload_flops(const mz_workload *w, double *flops) {
    mezzo_graph *g;
    MEZZO_TRY(mz_workload_graph(w, &g));
    *flops = 0;
    for (size_t i = 0; i < g->n_nodes; i++)
        *flops += mz_node_flops(g, &g->nodes[i]);
    *flops *= 3.0 * (double)w->grad_accum;
    mezzo_graph_free(g);
    return MEZZO_OK;
}

mezzo_status mz_workload_params(const mz_workload *w, int64_t *count) {
    mezzo_graph *g;
    MEZZO_TRY(mz_workload_graph(w, &g));
    *count = 0;
    for (size_t i = 0; i < g->n_params; i++)
        *count += mz_shape_count(&g->params[i].shape);
    mezzo_graph_free(g);
    return MEZZO_OK;
}
