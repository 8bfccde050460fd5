#define _GNU_SOURCE
#include "study/measure/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "io/file.h"
#include "io/json.h"
#include "io/number.h"
#include "io/quote.h"
#include "study/analyse/stats.h"

#define HEADER                                                                                                         \
    "layers,d_model,bs,seqlen,prec,model,effective,rung,ga,final_bs,final_seqlen,recompute,params_m,tps,step_ms,cv,"   \
    "mem_gb,energy_j,avg_power_w,celsius,clock_mhz,loss,overflow,order,seconds,note,env,times"

typedef struct sweep {
    mezzo_device *device;
    const mz_sweep_options *o;
    char *env;
    int lock;      // prevents a second sweep from writing the file
    mz_file *file; // positioned at its end
    mz_shape_key *shapes;
    size_t n_shapes, *order;
    bool *done; // [shape × precision]
    mz_sweep_progress progress;
    mz_sweep_fn tell;
    void *user;
    double started;
} sweep;

// --- the ladder of a shape -----------------------------------------------------------------------------------------
static void add_rung(mz_rung *rungs, int *n, const char *name, mz_rung rung) {
    rungs[*n] = rung;
    snprintf(rungs[*n].name, sizeof rungs[*n].name, "%s", name);
    ++*n;
}

int mz_ladder(int64_t batch, int64_t seq_len, mz_rung rungs[MZ_RUNGS_MAX]) {
    int n = 0;
    mz_rung r = {.micro_batch = batch, .grad_accum = 1, .seq_len = seq_len};
    add_rung(rungs, &n, "base", r);
    r.recompute = true;
    add_rung(rungs, &n, "recompute", r);
    if (batch % 2 == 0) {
        r.micro_batch = batch / 2;
        r.grad_accum = 2;
        add_rung(rungs, &n, "ga2", r);
    }
    if (r.micro_batch > 1) { // halves the step's sequences, with as many micro batches as before
        r.micro_batch /= 2;
        add_rung(rungs, &n, "half_batch", r);
    }
    if (seq_len > 1) {
        r.seq_len = seq_len / 2;
        add_rung(rungs, &n, "half_seq", r);
    }
    return n;
}

// --- shapes --------------------------------------------------------------------------------------------------------
static mezzo_status image_model(const mz_sweep_options *o, int64_t blocks, int64_t d_model, int64_t pixels,
                                mezzo_model_config *out) {
    const int64_t side = llround(sqrt((double)pixels)), seen = out->condition_size / out->image_size;
    if (side * side != pixels)
        return mz_fail(MEZZO_ERR_INVALID, "%lld pixels are not a square image", (long long)pixels);
    if (o->vocab > 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s has no vocabulary", o->family);
    out->res_blocks = blocks;
    out->d_model = d_model;
    out->heads = o->heads > 0 ? o->heads : out->heads;
    out->image_size = side;
    out->condition_size = seen * side;
    return mezzo_model_check(out);
}

// Returns whether the heads divide the width and rotary pairs fit; key heads become the largest number that divides
// them.
static bool heads_fit(mezzo_model_config *m) {
    while (m->kv_heads > 1 && m->heads % m->kv_heads != 0)
        m->kv_heads--;
    return mezzo_model_check(m) == MEZZO_OK;
}

// Makes a shape's model. In a model of images `layers` are blocks of a level, and seq_len the pixels of a picture, a
// square number. INVALID: a model that has neither texts nor images.
static mezzo_status make_model(const mz_sweep_options *o, int64_t layers, int64_t d_model, int64_t seq_len,
                               mezzo_model_config *out) {
    MEZZO_TRY(mezzo_model_defaults(o->family, out));
    if (mezzo_model_task(out) == MEZZO_TASK_IMAGES)
        return image_model(o, layers, d_model, seq_len, out);
    if (mezzo_model_task(out) != MEZZO_TASK_LANGUAGE)
        return mz_fail(MEZZO_ERR_INVALID, "%s is neither a text nor an image model: sweep does not support it",
                       o->family);
    out->layers = layers;
    out->d_model = d_model;
    out->d_ff = out->d_expert = out->head_dim = 0; // the family's rule computes them from the width
    if (o->heads > 0 && d_model % o->heads != 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%lld heads do not divide the width %lld: leave them out, or choose other widths",
                       (long long)o->heads, (long long)d_model);
    if (o->heads > 0)
        out->heads = o->heads;
    if (o->vocab > 0)
        out->vocab = o->vocab;
    out->seq_len = seq_len;
    while (!heads_fit(out) && o->heads == 0 && out->heads > 1)
        out->heads--;
    return mezzo_model_check(out);
}

static mezzo_status list_shapes(sweep *s) {
    const mz_sweep_options *o = s->o;
    mezzo_model_config unused;
    size_t n = (size_t)o->layers.n * (size_t)o->d_model.n * (size_t)o->batch.n * (size_t)o->seq_len.n;
    if (n == 0 || o->n_precisions == 0)
        return mz_fail(MEZZO_ERR_INVALID, "the grid is empty: every axis needs a value");
    MEZZO_TRY(MZ_NEW(s->shapes, n));
    MEZZO_TRY(MZ_NEW(s->order, n));
    MEZZO_TRY(MZ_NEW(s->done, n * (size_t)o->n_precisions));
    for (int l = 0; l < o->layers.n; l++)
        for (int d = 0; d < o->d_model.n; d++)
            for (int b = 0; b < o->batch.n; b++)
                for (int t = 0; t < o->seq_len.n; t++) {
                    mz_shape_key k = {o->layers.values[l], o->d_model.values[d], o->batch.values[b],
                                      o->seq_len.values[t]};
                    MEZZO_TRY(make_model(o, k.layers, k.d_model, k.seqlen,
                                         &unused)); // every shape is checked before the first one is measured
                    s->shapes[s->n_shapes++] = k;
                }
    mz_shuffle(o->seed, 0x5EEE, n, s->order);
    s->progress.total = (int)n * o->n_precisions;
    return MEZZO_OK;
}

// --- the file ------------------------------------------------------------------------------------------------------
// Describes what the numbers depend on besides the columns; all rows of a table share it.
static mezzo_status make_env(sweep *s) {
    mezzo_device_info info;
    mz_text t = {0};
    MEZZO_TRY(mezzo_device_describe(s->device, &info));
    mz_text_addf(&t, "{\"device\": ");
    mz_json_add_text(&t, info.description);
    mz_text_addf(&t, ", \"mezzo\": \"" MEZZO_VERSION "\"");
    if (s->o->commit != NULL && s->o->commit[0] != '\0') {
        mz_text_addf(&t, ", \"commit\": ");
        mz_json_add_text(&t, s->o->commit);
    }
    if (s->o->heads > 0)
        mz_text_addf(&t, ", \"heads\": %lld", (long long)s->o->heads);
    if (s->o->vocab > 0)
        mz_text_addf(&t, ", \"vocab\": %lld", (long long)s->o->vocab);
    if (s->o->residual != MEZZO_RESIDUAL_WIDEST)
        mz_text_addf(&t, ", \"residual\": \"low\"");
    mz_text_addf(&t, "}");
    s->env = t.data;
    return t.status;
}

static mezzo_status lock_file(sweep *s) {
    s->lock = open(s->o->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (s->lock < 0)
        return mz_fail(MEZZO_ERR_IO, "cannot open %s: %s", mz_quote(s->o->path).text, strerror(errno));
    if (flock(s->lock, LOCK_EX | LOCK_NB) != 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s is being written by another sweep: give another --out",
                       mz_quote(s->o->path).text);
    return MEZZO_OK;
}

// Drops an incomplete last line: every line that was written ends with its only line end, so a kill left what follows
// the last one.
static mezzo_status drop_torn_line(sweep *s) {
    char *text;
    size_t size;
    MEZZO_TRY(mz_file_read(s->o->path, MZ_CSV_MAX_BYTES, &text, &size));
    size_t whole = size;
    while (whole > 0 && text[whole - 1] != '\n')
        whole--;
    mz_free(text);
    if (whole == size || ftruncate(s->lock, (off_t)whole) == 0)
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_IO, "cannot remove the incomplete last line of %s: %s", mz_quote(s->o->path).text,
                   strerror(errno));
}

static mezzo_status mark_done(sweep *s, const mz_csv *csv, size_t row) {
    const mz_sweep_options *o = s->o;
    mz_shape_key k;
    int64_t *const fields[] = {&k.layers, &k.d_model, &k.bs, &k.seqlen};
    for (int i = 0; i < 4; i++)
        MEZZO_TRY(mz_csv_integer(csv, row, i, 1, INT64_C(1) << 40, fields[i]));
    const char *prec = mz_csv_cell(csv, row, 4);
    const char *model = mz_csv_cell(csv, row, (size_t)mz_csv_find(csv, "model")),
               *env = mz_csv_cell(csv, row, (size_t)mz_csv_find(csv, "env"));
    if (strcmp(env, s->env) != 0 || strcmp(model, o->family) != 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s:%lld was measured with %s on %s; now it is %s on %s: give another --out",
                       mz_csv_where(csv), (long long)mz_csv_line(csv, row), model, env, o->family, s->env);
    for (size_t i = 0; i < s->n_shapes; i++)
        for (int p = 0; p < o->n_precisions; p++) {
            bool *done = &s->done[i * (size_t)o->n_precisions + (size_t)p];
            if (memcmp(&s->shapes[i], &k, sizeof k) != 0 || strcmp(mezzo_precision_name(o->precisions[p]), prec) != 0)
                continue;
            if (*done)
                return mz_fail(MEZZO_ERR_FORMAT, "%s:%lld: the same shape and precision twice", mz_csv_where(csv),
                               (long long)mz_csv_line(csv, row));
            *done = true;
            s->progress.earlier++;
        }
    return MEZZO_OK;
}

static mezzo_status read_earlier(sweep *s, const char *text, size_t size) {
    mz_csv *csv;
    mezzo_status status = MEZZO_OK;
    if (strncmp(text, HEADER "\n", sizeof HEADER) != 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s exists and is not a table of this sweep: give another --out",
                       mz_quote(s->o->path).text);
    MEZZO_TRY(mz_csv_parse(s->o->path, text, size, &csv));
    for (size_t i = 0; i < mz_csv_rows(csv) && status == MEZZO_OK; i++)
        status = mark_done(s, csv, i);
    mz_csv_free(csv);
    return status;
}

static mezzo_status open_file(sweep *s) {
    char *text;
    size_t size;
    MEZZO_TRY(lock_file(s));
    MEZZO_TRY(drop_torn_line(s));
    MEZZO_TRY(mz_file_read_text(s->o->path, MZ_CSV_MAX_BYTES, &text, &size));
    mezzo_status status = size > 0 ? read_earlier(s, text, size) : MEZZO_OK;
    mz_free(text);
    MEZZO_TRY(status);
    MEZZO_TRY(mz_file_append(s->o->path, &s->file));
    return size > 0 ? MEZZO_OK : mz_file_write(s->file, HEADER "\n", sizeof HEADER);
}

// --- one row -------------------------------------------------------------------------------------------------------
typedef struct row {
    mz_study_row base; // key, precision, rung, the shape that ran, tokens/s, memory, energy
    mezzo_precision effective;
    bool recompute;
    double params_m, step_ms, cv, celsius, clock_mhz, loss, loss_scale;
    int order; // how many rows of this file were measured before
    double times[MZ_REPEATS_MAX];
    int n_times;
    char note[400];
} row;

static void add_note(row *r, const char *note) {
    size_t used = strlen(r->note);
    snprintf(r->note + used, sizeof r->note - used, "%s%s", used > 0 ? "; " : "", note);
}

static mezzo_status sense(mezzo_device *device, row *r) {
    mezzo_telemetry t;
    MEZZO_TRY(mezzo_device_telemetry(device, &t));
    r->celsius = t.celsius;
    r->clock_mhz = t.clock_mhz;
    return MEZZO_OK;
}

static mezzo_status measure_rig(sweep *s, mz_rig *rig, row *r) {
    mz_rig_state state;
    mz_energy energy = {(double)NAN, (double)NAN};
    MEZZO_TRY(mz_rig_time(rig, MZ_TIMED_STEP, &s->o->repeats, r->times, &r->n_times));
    double mean = mz_mean(r->times, (size_t)r->n_times);
    MEZZO_TRY(sense(s->device, r)); // while the device is still warm
    if (s->o->energy_seconds > 0)
        MEZZO_TRY(mz_rig_energy(rig, s->o->energy_seconds, mean, &energy));
    MEZZO_TRY(mz_rig_look(rig, &state));
    r->step_ms = 1e3 * mean;
    r->cv = mz_deviation(r->times, (size_t)r->n_times) / mean;
    r->base.tps = (double)(r->base.final_bs * r->base.final_seqlen) / mean;
    r->base.mem_gb = (double)mz_rig_memory(rig) / (1 << 30);
    r->base.energy_j = energy.joules;
    r->base.power_w = energy.watts;
    r->loss = state.loss;
    r->loss_scale = state.loss_scale;
    if (!state.finite)
        add_note(r, "a loss or gradient was not finite");
    return MEZZO_OK;
}

// Tries a rung. MEZZO_ERR_MEMORY: the plan predicts it, or it failed. Any other error ends the sweep.
static mezzo_status try_rung(sweep *s, const mz_rung *rung, row *r) {
    mezzo_model_config model;
    mz_session_options o;
    size_t need, room = s->o->memory;
    MZ_SCOPED(mz_rig_free_at) mz_rig *rig = NULL;
    // The model is the requested one: half a sequence uses half of its positions.
    MEZZO_TRY(make_model(s->o, r->base.key.layers, r->base.key.d_model, r->base.key.seqlen, &model));
    MEZZO_TRY(mz_session_usual(&model, rung->micro_batch, &o));
    mz_session_set_precision(&o, r->effective);
    o.form.length = rung->seq_len;
    o.step.micro_batches = rung->grad_accum;
    o.program.residual = s->o->residual;
    o.program.recompute = rung->recompute;
    o.seed = s->o->seed;
    MEZZO_TRY(mz_session_bytes(s->device, &o, &need));
    if (room == 0)
        MEZZO_TRY(mz_memory_free(s->device, &room));
    if (room > 0 && need > room)
        return mz_fail(MEZZO_ERR_MEMORY, "%s needs %.1f MiB, %.1f MiB may be used", rung->name,
                       (double)need / (1 << 20), (double)room / (1 << 20));
    MEZZO_TRY(mz_rig_create(s->device, &o, &rig));
    memcpy(r->base.rung, rung->name, sizeof r->base.rung);
    r->base.ga = rung->grad_accum;
    r->base.final_bs = rung->micro_batch * rung->grad_accum;
    r->base.final_seqlen =
        mezzo_model_task(&model) == MEZZO_TASK_IMAGES ? r->base.key.seqlen : rung->seq_len; // the unit is pixels
    r->recompute = rung->recompute;
    return measure_rig(s, rig, r);
}

static mezzo_status measure(sweep *s, const mz_shape_key *key, mezzo_precision asked, row *r) {
    char reason[256];
    mz_rung rungs[MZ_RUNGS_MAX];
    mezzo_model_config model;
    int64_t params;
    const double nan = (double)NAN;
    *r = (row){.base = {.key = *key, .rung = "none", .tps = nan, .mem_gb = nan, .power_w = nan, .energy_j = nan},
               .step_ms = nan,
               .cv = nan,
               .celsius = nan,
               .clock_mhz = nan,
               .loss = nan,
               .loss_scale = nan,
               .order = s->progress.done};
    snprintf(r->base.prec, sizeof r->base.prec, "%s", mezzo_precision_name(asked));
    MEZZO_TRY(mezzo_precision_resolve(s->device, asked, &r->effective, reason, sizeof reason));
    if (strstr(reason, ", as asked") == NULL || strstr(reason, "; emulated") != NULL)
        add_note(r, reason);
    MEZZO_TRY(make_model(s->o, key->layers, key->d_model, key->seqlen, &model));
    mz_session_options one;
    MEZZO_TRY(mz_session_usual(&model, 1, &one));
    MEZZO_TRY(mz_session_elements(&one, &params));
    r->params_m = (double)params * 1e-6;
    const bool images = mezzo_model_task(&model) == MEZZO_TASK_IMAGES;
    int n = mz_ladder(key->bs, images ? 1 : key->seqlen, rungs); // half a picture would be another picture
    for (int i = 0; i < n; i++) {
        mezzo_status status = try_rung(s, &rungs[i], r);
        if (status == MEZZO_OK)
            return MEZZO_OK;
        if (status != MEZZO_ERR_MEMORY)
            return mz_trace(status, __FILE__, __LINE__, __func__);
        mz_log("notice", "layers %lld, d_model %lld, bs %lld, seqlen %lld, %s does not fit: %s", (long long)key->layers,
               (long long)key->d_model, (long long)key->bs, (long long)key->seqlen, r->base.prec,
               mezzo_error_message());
    }
    snprintf(r->base.rung, sizeof r->base.rung, "none");
    add_note(r, "fits on no rung");
    return MEZZO_OK;
}

// --- writing -------------------------------------------------------------------------------------------------------
static void add_times(mz_text *t, const row *r) {
    mz_text list = {0};
    char buf[MZ_NUMBER_MAX];
    mz_text_addf(&list, "[");
    for (int i = 0; i < r->n_times; i++)
        mz_text_addf(&list, "%s%s", i > 0 ? ", " : "", mz_number_format(r->times[i], buf));
    mz_text_addf(&list, "]");
    if (list.status == MEZZO_OK)
        mz_csv_next(t, list.data);
    else
        t->status = list.status;
    mz_text_free(&list);
}

static mezzo_status write_row(sweep *s, const row *r, double seconds) {
    const mz_study_row *b = &r->base;
    bool ran = strcmp(b->rung, "none") != 0;
    mz_text t = {0};
    mz_text_addf(&t, "%lld,%lld,%lld,%lld", (long long)b->key.layers, (long long)b->key.d_model, (long long)b->key.bs,
                 (long long)b->key.seqlen);
    mz_csv_next(&t, b->prec);
    mz_csv_next(&t, s->o->family);
    mz_csv_next(&t, mezzo_precision_name(r->effective));
    mz_csv_next(&t, b->rung);
    if (ran)
        mz_text_addf(&t, ",%lld,%lld,%lld,%s", (long long)b->ga, (long long)b->final_bs, (long long)b->final_seqlen,
                     r->recompute ? "True" : "False");
    else
        mz_text_addf(&t, ",,,,");
    const double numbers[] = {r->params_m, b->tps,     r->step_ms,   r->cv,   b->mem_gb,    b->energy_j,
                              b->power_w,  r->celsius, r->clock_mhz, r->loss, r->loss_scale};
    for (size_t i = 0; i < MZ_COUNT(numbers); i++)
        mz_csv_next_number(&t, numbers[i]);
    mz_text_addf(&t, ",%d,%.3f", r->order, seconds);
    mz_csv_next(&t, r->note);
    mz_csv_next(&t, s->env);
    add_times(&t, r);
    mz_text_add(&t, "\n", 1);
    mezzo_status status = t.status;
    if (status == MEZZO_OK)
        status = mz_file_write(s->file, t.data, t.len); // with one write, so that a kill leaves at most one incomplete
                                                        // line
    mz_text_free(&t);
    MEZZO_TRY(status);
    return mz_file_sync(s->file);
}

// --- the loop ------------------------------------------------------------------------------------------------------
static void tell(sweep *s, const row *r) {
    mz_sweep_progress *p = &s->progress;
    int mine = p->done - p->earlier;
    p->seconds = mz_seconds() - s->started;
    p->seconds_left = mine > 0 ? p->seconds / mine * (p->total - p->done) : (double)NAN;
    p->row = r != NULL ? &r->base : NULL;
    p->note = r != NULL ? r->note : "";
    p->step_ms = r != NULL ? r->step_ms : (double)NAN;
    if (s->tell != NULL)
        s->tell(s->user, p);
}

static mezzo_status run_shape(sweep *s, size_t shape, row *r) {
    size_t n = (size_t)s->o->n_precisions, order[MEZZO_PRECISION_COUNT];
    mz_shuffle(s->o->seed, 0x10000 + (uint32_t)shape, n, order);
    for (size_t i = 0; i < n; i++) {
        if (s->done[shape * n + order[i]])
            continue;
        if (s->o->repeats.stop != NULL && *s->o->repeats.stop)
            return mz_fail(MEZZO_ERR_INTERRUPTED, "stopped after %d of %d rows", s->progress.done, s->progress.total);
        double start = mz_seconds();
        MEZZO_TRY(measure(s, &s->shapes[shape], s->o->precisions[order[i]], r));
        MEZZO_TRY(write_row(s, r, mz_seconds() - start));
        s->progress.done++;
        tell(s, r);
    }
    return MEZZO_OK;
}

static mezzo_status run(sweep *s) {
    MEZZO_TRY(make_env(s));
    MEZZO_TRY(list_shapes(s));
    MEZZO_TRY(open_file(s));
    s->progress.done = s->progress.earlier;
    tell(s, NULL);
    MZ_SCOPED(mz_free_at) row *r = mz_alloc(1, sizeof *r);
    MEZZO_TRY(r != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY);
    for (size_t i = 0; i < s->n_shapes; i++)
        MEZZO_TRY(run_shape(s, s->order[i], r));
    return MEZZO_OK;
}

mezzo_status mz_sweep(mezzo_device *device, const mz_sweep_options *options, mz_sweep_fn tell_row, void *user) {
    sweep s = {.device = device, .o = options, .lock = -1, .tell = tell_row, .user = user, .started = mz_seconds()};
    mezzo_status status = run(&s);
    if (s.file != NULL && status == MEZZO_OK)
        status = mz_file_commit(s.file);
    else
        mz_file_discard(s.file);
    if (s.lock >= 0)
        close(s.lock);
    MZ_FREE(s.env, s.shapes, s.order, s.done);
    return status;
}
