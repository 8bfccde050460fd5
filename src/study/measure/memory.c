// Computes the memory and operations of a session from its graph, before anything is allocated.
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "graph/graph.h"
#include "runtime/program.h"
#include "study/measure/measure.h"
#include "task/sampler.h"

enum { SAMPLE_TOKENS = 200 }; // default of train.sample_tokens

// Adds the programs of samples, which training draws of language models alone.
static mezzo_status add_sampling(mezzo_device *device, const mz_session_options *o, mz_footprint *f) {
    return mz_model_purpose(&o->model) == MEZZO_TASK_LANGUAGE
               ? mz_sampler_sketch(device, o, SAMPLE_TOKENS, &f->sampling)
               : MEZZO_OK;
}

mezzo_status mz_footprint_of(mezzo_device *device, const mz_session_options *o, const mz_footprint *like,
                             mz_footprint *out) {
    if (like != NULL) {
        mz_optimizer_size optimizer;
        *out = *like;
        MEZZO_TRY(mz_session_sketch_optimizer(device, o, &optimizer));
        mz_footprint_set_optimizer(device, optimizer, out);
        return MEZZO_OK;
    }
    MEZZO_TRY(mz_session_sketch(device, o, NULL, out));
    return add_sampling(device, o, out);
}

size_t mz_footprint_total(const mz_footprint *f) {
    return f->weights + f->shadows + f->gradients + f->optimizer + f->activations + f->workspace + f->inputs +
           f->padding;
}

size_t mz_footprint_run(const mz_footprint *f) {
    return mz_footprint_total(f) + f->evaluation + f->sampling + f->replay;
}

mezzo_status mz_session_run_bytes(mezzo_device *device, const mz_session_options *o, size_t *bytes) {
    mz_footprint f;
    MEZZO_TRY(mz_footprint_of(device, o, NULL, &f));
    *bytes = mz_footprint_run(&f);
    return MEZZO_OK;
}

mezzo_status mz_session_bytes(mezzo_device *device, const mz_session_options *o, size_t *bytes) {
    mz_footprint f;
    MEZZO_TRY(mz_footprint_of(device, o, NULL, &f));
    *bytes = mz_footprint_total(&f);
    return MEZZO_OK;
}

// --- the largest batch that fits -----------------------------------------------------------------------------------
void mz_plans_free(mz_plans *plans) {
    mz_free(plans->list);
    *plans = (mz_plans){0};
}

// A search among batches, some of which are planned already, by this search or by one with another optimizer.
typedef struct search {
    mezzo_device *device;
    const mz_session_options *o;
    size_t limit;
    mz_plans *plans;
    mz_optimizer_size optimizer; // for this number of bytes of gradients
    size_t gradients;            // 0: not known yet
} search;

// Returns a plan whose programs without backward are the same: these depend neither on masters, where parameters are
// whole, nor on recompute. NULL: none.
static const mz_footprint *forward_at(const search *s, int64_t batch) {
    const bool sharded = s->o->size > 1 && s->o->shard == MZ_SHARD_PARAMETERS;
    for (size_t i = 0; i < s->plans->n && !sharded; i++)
        if (s->plans->list[i].batch == batch && s->plans->list[i].precision == s->o->program.precision)
            return &s->plans->list[i].f;
    return NULL;
}

static mezzo_status plan_at(const search *s, int64_t batch, mz_planned *out) {
    const mz_footprint *like = forward_at(s, batch);
    mz_session_options o = *s->o;
    o.form.batch = batch;
    *out = (mz_planned){o.program.precision, o.master, o.program.recompute, batch, {0}};
    MEZZO_TRY(mz_session_sketch(s->device, &o, like, &out->f));
    if (like == NULL)
        return add_sampling(s->device, &o, &out->f);
    out->f.sampling = like->sampling;
    return MEZZO_OK;
}

static bool is_of(const mz_planned *p, const mz_session_options *o, bool any_master) {
    return p->precision == o->program.precision && p->recompute == o->program.recompute &&
           (any_master || p->master == o->master);
}

// Returns mz_footprint_run of planned programs with this search's optimizer, whose bytes depend on the batch only where
// the parameters do.
static mezzo_status total_of(search *s, const mz_planned *p, size_t *bytes) {
    mz_footprint f = p->f;
    if (s->gradients == 0 || s->gradients != f.gradients) {
        mz_session_options o = *s->o;
        o.form.batch = p->batch;
        MEZZO_TRY(mz_session_sketch_optimizer(s->device, &o, &s->optimizer));
        s->gradients = f.gradients;
    }
    mz_footprint_set_optimizer(s->device, s->optimizer, &f);
    *bytes = mz_footprint_run(&f);
    return MEZZO_OK;
}

static mezzo_status total_at(search *s, int64_t batch, size_t *bytes) {
    for (size_t i = 0; i < s->plans->n; i++)
        if (s->plans->list[i].batch == batch && is_of(&s->plans->list[i], s->o, false))
            return total_of(s, &s->plans->list[i], bytes);
    MEZZO_TRY(MZ_RESERVE(s->plans->list, s->plans->cap, s->plans->n + 1));
    MEZZO_TRY(plan_at(s, batch, &s->plans->list[s->plans->n]));
    return total_of(s, &s->plans->list[s->plans->n++], bytes);
}

// Holds what is known of batches from `from` on: `fits`, the largest that fits (a smaller one may not, where blocks of
// rows come out badly), and `over`, the least above it that does not; NULL: none. `second` is the other point of a
// guess's line: `over`, or the largest that is a sixteenth below `fits`.
typedef struct known {
    const mz_planned *fits, *over, *second;
} known;

static mezzo_status look(search *s, int64_t from, int64_t most, bool any_master, known *k) {
    *k = (known){0};
    for (int pass = 0; pass < 3; pass++)
        for (size_t i = 0; i < s->plans->n; i++) {
            const mz_planned *p = &s->plans->list[i];
            size_t bytes;
            if (!is_of(p, s->o, any_master) || p->batch < from || p->batch > most)
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

// Guesses the memory of a batch as if each part of a footprint were a straight line through two plans. Blocks in whole
// huge pages make steps of the sum, so it is no straight line.
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

// Finds the largest batch from `fits` to `end` that fits by such a guess.
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

// Tries a few batches after one that does not fit, where plans take little time, until one fits; those in between are
// then not tried. The plans may move in memory, so an earlier `known` becomes invalid.
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

// Finds the largest batch from `from` to `most` that fits; `from` does. A guess says where to plan next; the ends of
// other masters' searches come first. Large batches take long to plan, so they are approached in steps. Where guesses
// miss repeatedly on one side, each goes twice as far as the one before.
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

// Finds the least batch whose activations' results the device recomputes; 0: that does not depend on the batch.
static mezzo_status least_remade(const mezzo_device *device, const mz_session_options *o, int64_t *batch) {
    mezzo_graph *g;
    *batch = 0;
    if (mz_post_kernel(device, MZ_OP_linear_dx, MZ_POST_linear_dx_act_out) == NULL || device->backend->few_rows == 0 ||
        o->program.recompute_light)
        return MEZZO_OK;
    MEZZO_TRY(mz_session_graph(o, &(mz_form){.batch = 1, .length = o->form.length}, &g));
    const int64_t rows = mz_program_rows(g);
    mezzo_graph_free(g);
    *batch = rows > 0 ? device->backend->few_rows / rows + 1 : 0;
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
    MEZZO_TRY(least_remade(s->device, s->o, &remade));
    if (*batch >= remade || remade > MOST)
        return MEZZO_OK;
    MEZZO_TRY(total_at(s, remade, &bytes)); // it may need less than batches just below it
    if (bytes <= s->limit)
        MEZZO_TRY(largest_from(s, remade, MOST, batch));
    return MEZZO_OK;
}

mezzo_status mz_largest_batch(mezzo_device *device, const mz_session_options *o, size_t limit, mz_plans *plans,
                              int64_t *batch) {
    mz_plans own = {0};
    search s = {.device = device, .o = o, .limit = limit, .plans = plans != NULL ? plans : &own};
    mezzo_status status = largest_batch(&s, batch);
    mz_plans_free(&own);
    return status;
}

// --- measured ------------------------------------------------------------------------------------------------------
// Returns the bytes in a line of a file of /proc; 0: there is no such line.
static size_t read_kilobytes(const char *file, const char *field) {
    FILE *f = fopen(file, "r");
    char line[256];
    size_t found = 0, length = strlen(field);
    while (f != NULL && found == 0 && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, field, length) == 0 && line[length] == ':')
            found = (size_t)strtoull(line + length + 1, NULL, 10) * 1024;
    if (f != NULL)
        fclose(f);
    return found;
}

static mezzo_status run_two_steps(mezzo_device *device, const mz_session_options *o) {
    mz_rig *rig;
    MEZZO_TRY(mz_rig_create(device, o, &rig));
    mezzo_status status = mz_rig_run_steps(rig, 2);
    mz_rig_free(rig);
    MEZZO_TRY(status);
    return MEZZO_OK;
}

mezzo_status mz_session_measure(mezzo_device *device, const mz_session_options *o, size_t *bytes) {
    mezzo_telemetry before, after;
    MEZZO_TRY(mezzo_device_telemetry(device, &before));
    mezzo_device_reset_peak(device);
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 1 << 16); // so that freed memory returns to the system, and allocated memory is counted
    malloc_trim(0);
#endif
    size_t resident = read_kilobytes("/proc/self/status", "VmRSS");
    FILE *f = fopen("/proc/self/clear_refs", "w"); // VmHWM then starts again from what is resident now
    bool counts = f != NULL && fputs("5", f) >= 0;
    counts = f != NULL && fclose(f) == 0 && counts;
    MEZZO_TRY(run_two_steps(device, o));
    MEZZO_TRY(mezzo_device_telemetry(device, &after));
    if (after.memory_peak > 0) { // the device itself counts
        *bytes = after.memory_peak - before.memory_allocated;
        return MEZZO_OK;
    }
    size_t peak = read_kilobytes("/proc/self/status", "VmHWM");
    if (!counts || resident == 0 || peak <= resident)
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "this system does not report a process's peak memory (/proc/self/clear_refs)");
    *bytes = peak - resident;
    return MEZZO_OK;
}

// Returns MemAvailable of /proc/meminfo, else free pages.
static size_t host_memory_free(void) {
    const size_t found = read_kilobytes("/proc/meminfo", "MemAvailable");
    long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return found > 0 ? found : pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
}

mezzo_status mz_memory_free(mezzo_device *device, size_t *bytes) {
    mezzo_device_info info;
    mezzo_telemetry t;
    MEZZO_TRY(mezzo_device_describe(device, &info));
    if (!device->backend->gpu) {
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

mezzo_status mz_session_flops(const mz_session_options *o, double *flops) {
    mezzo_graph *g;
    MEZZO_TRY(mz_session_graph(o, &o->form, &g));
    *flops = 0;
    for (size_t i = 0; i < g->n_nodes; i++)
        *flops += mz_node_flops(g, &g->nodes[i]);
    *flops *= 3.0 * (double)o->step.micro_batches;
    mezzo_graph_free(g);
    return MEZZO_OK;
}

mezzo_status mz_session_elements(const mz_session_options *o, int64_t *count) {
    mezzo_graph *g;
    MEZZO_TRY(mz_session_graph(o, &o->form, &g));
    *count = 0;
    for (size_t i = 0; i < g->n_params; i++)
        *count += mz_shape_count(&g->params[i].shape);
    mezzo_graph_free(g);
    return MEZZO_OK;
}

// --- bytes of a parameter, in usual ways of training and in published tables ----------------------------------------
const mz_scheme mz_schemes[MZ_SCHEMES] = {
    {"fp32, AdamW", 4, 0, 4, 8, true, "weights, gradients and two moments, all fp32"},
    {"autocast, AdamW", 4, 2, 4, 8, true,
     "as in Mezzo and torch.amp: the fp32 weights stay, and every matrix has an additional 2-byte copy"},
    {"bf16 autocast, split masters, AdamW", 2, 2, 4, 8, true,
     "--master split: stores the bf16 copy, which is the master's upper half, and the lower half; the same bits as "
     "fp32 masters"},
    {"bf16 autocast, stochastic rounding, AdamW", 2, 0, 4, 8, true,
     "--master stochastic: no master; each update is rounded stochastically, right on average"},
    {"autocast, SGD with momentum", 4, 2, 4, 4, true, "one moment"},
    {"autocast, plain SGD", 4, 2, 4, 0, true, "no moments"},
    {"low weights and gradients, fp32 master", 2, 4, 2, 8, true,
     "Megatron, DeepSpeed, Apex O2: 16 bytes, the same as fp32; gradients are summed in 2 bytes or copied to fp32"},
    {"everything bf16, AdamW", 2, 0, 2, 4, true,
     "no fp32 anywhere: updates below 1/256 of a weight are rounded away, unless rounding is stochastic"},
    {"published: \"half the memory\"", 2, 0, 2, 4, false,
     "fp32's table divided by two; right only if the moments are 2 bytes too and nothing is fp32"},
    {"published: \"2 + 2 + 8\"", 2, 0, 2, 8, false,
     "2-byte weights and gradients and fp32 moments, without the fp32 weights that the moments update"},
};

double mz_scheme_total(const mz_scheme *s) {
    return s->weights + s->copies + s->gradients + s->optimizer;
}
