#include "train/audit.h"

#include <math.h>
#include <stdlib.h>

#include "base/precision.h"
#include "io/quote.h"
#include "mezzo/version.h"
#include "train/audit_records.h"
#include "train/run.h"

typedef struct end { // the checkpoint at an end of an interval
    const mz_manifest_entry *entry;
    char path[4096];
    bool damaged;
    mezzo_checkpoint state; // as its state.json describes it
    mz_checkpoint_run run;  // its run.json
} end;

typedef struct audit {
    const mz_run_audit_options *o;
    mz_run_audit *r;
    char *checkpoints; // their folder
    mz_manifest manifest;
    end *ends; // [n_ends], in order of steps
    size_t n_ends;
    mezzo_config *config;
    mz_training run;
    bool is_open;
    char *opened; // text of the configuration that is open
    mz_records records;
    mz_run_interval *v; // the present interval
    const end *from, *to;
    uint64_t step_batches; // micro batches of a step, of all ranks
    mz_rollback rollbacks[MZ_ROLLBACKS];
    int n_rollbacks;
    mz_checkpoint_difference tensors;
} audit;

static const char *word_of(mz_audit_verdict verdict) {
    static const char *const words[] = {"confirmed", "differs", "within_bounds", "not_possible"};
    return words[verdict];
}

// --- findings ----------------------------------------------------------------------------------------------------
static mz_run_finding *add_finding(audit *a, const char *kind, const char *place, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static mz_run_finding *add_finding(audit *a, const char *kind, const char *place, const char *fmt, ...) {
    static _Thread_local mz_run_finding beyond;
    mz_run_audit *r = a->r;
    mz_run_finding *f = r->n_findings < MZ_AUDIT_FINDINGS ? &r->findings[r->n_findings++] : &beyond;
    *f = (mz_run_finding){.from = -1, .to = -1, .step = -1, .missing = strcmp(kind, "missing") == 0};
    if (a->v != NULL) {
        f->from = a->v->from;
        f->to = a->v->to;
    }
    snprintf(f->kind, sizeof f->kind, "%s", kind);
    snprintf(f->place, sizeof f->place, "%.239s", place);
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, args);
    va_end(args);
    return f;
}

// Returns whether the error is the audit's own, which is no finding.
static bool is_ours(mezzo_status status) {
    return status == MEZZO_ERR_MEMORY || status == MEZZO_ERR_INTERRUPTED || status == MEZZO_ERR_DEVICE;
}

// --- which intervals ---------------------------------------------------------------------------------------------
static mezzo_status look_at_end(audit *a, const mz_manifest_entry *entry, end *e) {
    mz_checkpoint_state state;
    uint32_t crc = 0;
    uint64_t bytes = 0;
    *e = (end){.entry = entry};
    snprintf(e->path, sizeof e->path, "%.3000s/%s", a->checkpoints, entry->name);
    const mz_path file = mz_path_of("%s/state.json", e->path);
    mezzo_status status = mz_file_crc32c(file.text, &crc, &bytes);
    if (status == MEZZO_OK && (crc != entry->state_crc || bytes != entry->state_bytes))
        status = mz_fail(MEZZO_ERR_FORMAT, "%s: not the file that manifest.json names", file.text);
    if (status == MEZZO_OK)
        status = mz_checkpoint_verify(e->path, MZ_CHECKPOINT_WHOLE, &e->state, &state);
    if (status == MEZZO_OK)
        status = mz_run_load_facts(mz_path_of("%s/" MZ_CHECKPOINT_RUN, e->path).text, &e->run);
    e->damaged = status != MEZZO_OK;
    if (is_ours(status))
        return status;
    if (e->damaged)
        add_finding(a, "file", entry->name, "%s", mezzo_error_message());
    return MEZZO_OK;
}

// Lists the checkpoints in the order of writing. A checkpoint that was written after one with a later step means that
// the run went back, so the later step's belongs to no part of the run.
static mezzo_status list_ends(audit *a) {
    const mz_manifest *m = &a->manifest;
    MEZZO_TRY(MZ_NEW(a->ends, m->count + 1));
    for (size_t i = 0; i < m->count; i++) {
        if (!mz_path_is_dir(mz_path_of("%s/%s", a->checkpoints, m->entries[i].name).text)) {
            add_finding(a, "missing", m->entries[i].name, "%s: the checkpoint is missing; manifest.json names it",
                        m->entries[i].name);
            continue;
        }
        while (a->n_ends > 0 && a->ends[a->n_ends - 1].entry->step >= m->entries[i].step)
            mz_free(a->ends[--a->n_ends].run.configuration);
        MEZZO_TRY(look_at_end(a, &m->entries[i], &a->ends[a->n_ends++]));
    }
    a->r->checkpoints = (int)a->n_ends;
    if (a->n_ends < 2)
        add_finding(a, "missing", "checkpoints",
                    "an interval needs two checkpoints, and there %s %zu: --checkpoint-every and --keep-last keep more",
                    a->n_ends == 1 ? "is" : "are", a->n_ends);
    return MEZZO_OK;
}

static mezzo_status check_metrics(audit *a) {
    bool same = true;
    for (size_t i = a->manifest.count; i-- > 0;) {
        if (a->manifest.entries[i].metrics.bytes == 0)
            continue;
        MEZZO_TRY(mz_metrics_match(a->o->run, a->manifest.entries[i].metrics, &same));
        if (!same)
            add_finding(a, "file", "metrics.jsonl",
                        "metrics.jsonl is not what it was when %s was saved: records are damaged, edited or missing",
                        a->manifest.entries[i].name);
        return MEZZO_OK;
    }
    return MEZZO_OK;
}

// --- the configuration -------------------------------------------------------------------------------------------
static bool follows_place(const char *key) { // the key names the folder, or does not change results
    static const char *const keys[] = {"train.out", "train.resume", "train.init", "train.profile", "device.threads"};
    return MZ_INDEX_WORD(keys, MZ_COUNT(keys), key) < MZ_COUNT(keys);
}

static mezzo_status parse_config(const char *where, const char *text, mezzo_config **out) {
    MEZZO_TRY(mezzo_config_create(out));
    return mz_config_parse_yaml((*out)->values, where, text, strlen(text));
}

// Compares config.yaml with the configuration that the newest checkpoint records.
static mezzo_status compare_keys(audit *a, const mezzo_config *file, const end *newest) {
    mezzo_config *kept = NULL;
    mezzo_status status = parse_config(newest->path, newest->run.configuration, &kept);
    for (int i = 0; i < mezzo_config_count() && status == MEZZO_OK; i++) {
        const char *key = mezzo_config_describe(i).key;
        const char *now = mezzo_config_get(file, key), *then = mezzo_config_get(kept, key);
        if (now == NULL || then == NULL)
            status = mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
        else if (strcmp(now, then) != 0 && !follows_place(key)) {
            mz_run_finding *f = add_finding(a, "key", key,
                                            "config.yaml has %s: %.200s; %s was computed with %.200s: the file was "
                                            "changed, or the run went on with it and saved nothing",
                                            key, now, newest->entry->name, then);
            snprintf(f->saved, sizeof f->saved, "%.47s", now);
            snprintf(f->here, sizeof f->here, "%.47s", then);
        }
    }
    mezzo_config_free(kept);
    return status;
}

// Reads the configuration with which the interval was computed; *text is NULL where no readable file has it.
static mezzo_status read_config(audit *a, const end *to, char **text) {
    size_t n;
    *text = NULL;
    char *path = mz_format("%s/config.yaml", a->o->run);
    mezzo_config *file = NULL;
    mezzo_status status = path != NULL ? mezzo_config_create(&file) : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK)
        status = mezzo_config_load(file, path);
    const bool is_read = status == MEZZO_OK;
    const end *newest = &a->ends[a->n_ends - 1];
    if (!is_read && !is_ours(status) && a->v == a->r->intervals)
        add_finding(a, "file", "config.yaml", "%s", mezzo_error_message());
    if (!is_ours(status))
        status = MEZZO_OK;
    if (status == MEZZO_OK && is_read && newest->run.configuration != NULL && a->v == a->r->intervals)
        status = compare_keys(a, file, newest);
    if (status == MEZZO_OK && to->run.configuration != NULL)
        *text = mz_strdup(to->run.configuration);
    else if (status == MEZZO_OK && is_read)
        status = mz_file_read_text(path, MZ_STATE_MAX_BYTES, text, &n);
    mezzo_config_free(file);
    mz_free(path);
    return status;
}

// Counts micro batches of a step, of all ranks.
static uint64_t count_step_batches(const audit *a, const mz_run_config *c) {
    const uint64_t drawn = a->to->state.batches - a->from->state.batches;
    if (c->global_batch > 0)
        return (uint64_t)(c->global_batch / c->batch_size);
    if (a->to->run.ranks > 0)
        return (uint64_t)(c->grad_accum * a->to->run.ranks);
    return drawn / (uint64_t)(a->v->to - a->v->from); // older checkpoints do not record it
}

// Changes the configuration so that it takes the same steps on any number of ranks that divides them, and does nothing
// besides the steps.
static mezzo_status adjust(audit *a, mezzo_config *config) {
    mz_run_config c;
    char batch[32], steps[32];
    MEZZO_TRY(mz_run_config_read(config, &c));
    a->step_batches = count_step_batches(a, &c);
    snprintf(batch, sizeof batch, "%lld", (long long)(a->step_batches * (uint64_t)c.batch_size));
    snprintf(steps, sizeof steps, "%lld", (long long)c.steps); // replaces the file's epochs
    const char *const keys[][2] = {{"train.out", a->o->run},
                                   {"train.resume", ""},
                                   {"train.grad_accum", "1"},
                                   {"train.global_batch", batch},
                                   {"train.steps", steps},
                                   {"train.replay", "0"},
                                   {"train.replay_update", "false"},
                                   {"train.histograms_every", "0"},
                                   {"guard.spike", "off"}};
    for (size_t i = 0; i < MZ_COUNT(keys); i++)
        MEZZO_TRY(mezzo_config_set(config, keys[i][0], keys[i][1], "--audit"));
    MEZZO_TRY(mz_config_find_graph(config));
    if (a->o->device != NULL)
        MEZZO_TRY(mezzo_config_set(config, "device.name", a->o->device, "--device"));
    snprintf(batch, sizeof batch, "%d", a->o->threads);
    return a->o->threads > 0 ? mezzo_config_set(config, "device.threads", batch, "--threads") : MEZZO_OK;
}

static void close_run(audit *a) {
    if (a->is_open)
        mz_run_close(&a->run);
    a->is_open = false;
    mezzo_config_free(a->config);
    a->config = NULL;
    mz_free(a->opened);
    a->opened = NULL;
}

static mezzo_status open_run(audit *a, char *text) {
    const mezzo_hooks hooks = {.stop = a->o->stop};
    mz_training *run = &a->run;
    if (a->is_open && strcmp(a->opened, text) == 0) {
        mz_free(text);
        return MEZZO_OK;
    }
    if (a->is_open && run->engine.size > 1) { // a process can join only one job
        mz_free(text);
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "the run changed its configuration after step %lld, and %d ranks open one "
                       "configuration: audit these intervals with one process",
                       (long long)a->v->from, run->engine.size);
    }
    close_run(a);
    a->opened = text;
    MEZZO_TRY(parse_config(a->to->path, text, &a->config));
    MEZZO_TRY(adjust(a, a->config));
    const mezzo_status status = mz_run_join(a->config, &hooks, run);
    a->is_open = status == MEZZO_OK;
    if (status != MEZZO_OK)
        mz_run_close(run);
    MEZZO_TRY(status);
    run->engine.readout.lag = 0;
    run->config.checkpoint_every = -1; // a rollback must come from guard.jsonl, or it is a difference
    if (run->guard.policy == MZ_GUARD_ROLLBACK)
        run->guard.policy = MZ_GUARD_STOP;
    MEZZO_TRY(mz_health_begin(&run->report.health));
    for (int set = 0; set < 2 && mz_run_leads(run); set++)
        run->marks[set] = mz_task_mark(run->task, (mz_set)set);
    if (mz_run_leads(run))
        MEZZO_TRY(mz_metrics_open_to(mz_records_compare, &a->records, &run->report.metrics));
    snprintf(a->r->device, sizeof a->r->device, "%.190s", run->engine.info.description);
    a->r->rank = run->engine.rank;
    a->r->ranks = run->engine.size;
    return MEZZO_OK;
}

// --- before an interval ------------------------------------------------------------------------------------------
static bool same_mark(mezzo_data_mark a, mezzo_data_mark b) {
    return a.bytes == 0 || b.bytes == 0 || (a.bytes == b.bytes && a.crc32c == b.crc32c);
}

static bool has_data(audit *a) {
    const mz_task_options *d = &a->run.config.data;
    const char *name = d->train[0] != '\0' ? d->train : d->path[0] != '\0' ? d->path : d->features;
    const mezzo_data_mark now = a->run.marks[MZ_SET_TRAIN], then = a->to->state.data;
    a->records.skips_validation = !same_mark(a->run.marks[MZ_SET_VALIDATION], a->to->state.validation) ||
                                  !same_mark(a->from->state.validation, a->to->state.validation);
    if (same_mark(now, then) && same_mark(a->from->state.data, then))
        return true;
    mz_run_finding *f = add_finding(
        a, "data", name,
        same_mark(now, then)
            ? "%s: the run went from other data to this within the interval, which cannot be computed again: %llu "
              "bytes "
              "with checksum %08x before, %llu bytes with %08x after"
            : "%s: the training data is missing: %llu bytes with checksum %08x are there, the run read %llu bytes with "
              "%08x",
        mz_quote(name).text, (unsigned long long)(same_mark(now, then) ? a->from->state.data : now).bytes,
        (same_mark(now, then) ? a->from->state.data : now).crc32c, (unsigned long long)then.bytes, then.crc32c);
    f->missing = true;
    return false;
}

// Returns whether the checkpoint's configuration agrees in the keys that state.json also holds.
static bool agrees_with_keys(audit *a) {
    const mz_training *run = &a->run;
    const mezzo_checkpoint *c = &a->to->state;
    const char *precision = mezzo_precision_name(run->engine.plan.program.precision);
    char seed[32], theirs[32];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)run->config.seed);
    snprintf(theirs, sizeof theirs, "%llu", (unsigned long long)c->seed);
    const struct {
        const char *key, *saved, *here;
    } rows[] = {{"train.seed", theirs, seed},
                {"amp.precision", c->precision[0] != '\0' ? c->precision : precision, precision},
                {"data.pack", c->packed ? "true" : "false", run->config.data.pack ? "true" : "false"}};
    for (size_t i = 0; i < MZ_COUNT(rows); i++)
        if (strcmp(rows[i].saved, rows[i].here) != 0) {
            mz_run_finding *f = add_finding(a, "key", rows[i].key, "%s is %s in the configuration, and %s in %s",
                                            rows[i].key, rows[i].here, rows[i].saved, a->to->entry->name);
            snprintf(f->saved, sizeof f->saved, "%s", rows[i].saved);
            snprintf(f->here, sizeof f->here, "%s", rows[i].here);
            return false;
        }
    return true;
}

// Compares devices, but not their number of threads, which changes no bit.
static bool same_device(const char *a, const char *b) {
    const char *end_a = strrchr(a, ','), *end_b = strrchr(b, ',');
    const size_t n = end_a != NULL && strstr(end_a, "thread") != NULL ? (size_t)(end_a - a) : strlen(a);
    const size_t m = end_b != NULL && strstr(end_b, "thread") != NULL ? (size_t)(end_b - b) : strlen(b);
    return n == m && memcmp(a, b, n) == 0;
}

// Returns whether the checkpoint was written on this machine; older versions do not record that.
static bool same_machine(const audit *a) {
    const mz_checkpoint_run *ends[] = {&a->from->run, &a->to->run};
    for (int i = 0; i < 2; i++)
        if (ends[i]->device[0] != '\0' && (!same_device(ends[i]->device, a->run.engine.info.description) ||
                                           strcmp(ends[i]->version, mezzo_version()) != 0))
            return false;
    return true;
}

static bool is_exact(const audit *a) {
    const mz_checkpoint_run *to = &a->to->run;
    const mz_engine *e = &a->run.engine;
    const bool device = same_machine(a);
    const bool order = a->run.config.canonical || a->step_batches == 1;
    return device && (order || to->ranks == 0 || to->ranks == e->size);
}

// --- rollbacks ---------------------------------------------------------------------------------------------------
// Finds the rollbacks of an interval. A rollback skips data, so the batches that the later checkpoint has drawn beyond
// its steps show whether there were any.
static mezzo_status find_rollbacks(audit *a) {
    int64_t every = 0;
    const uint64_t due = (uint64_t)(a->v->to - a->v->from) * a->step_batches,
                   drawn = a->to->state.batches - a->from->state.batches;
    a->n_rollbacks = 0;
    if (a->step_batches == 0 || drawn <= due || (drawn - due) % a->step_batches != 0)
        return MEZZO_OK;
    MEZZO_TRY(mz_config_get_int(a->config->values, "train.checkpoint_every", &every));
    return mz_rollbacks_find(a->o->run, a->v->from, every, (int64_t)((drawn - due) / a->step_batches), a->rollbacks,
                             &a->n_rollbacks);
}

static mezzo_status go_back(audit *a) {
    mz_training *run = &a->run;
    for (int i = 0; i < a->n_rollbacks; i++)
        for (int k = 0; a->rollbacks[i].to == run->step && k < a->rollbacks[i].times; k++)
            MEZZO_TRY(mz_guard_go_on(run, run->data->position +
                                              (k == 0 ? (uint64_t)a->rollbacks[i].steps * a->step_batches : 0)));
    return MEZZO_OK;
}

// --- an interval -------------------------------------------------------------------------------------------------
// Holds the records of one step; all ranks take part in it.
typedef struct wanted {
    int32_t step, validation[MZ_VAL_KINDS], sample;
} wanted;

static mezzo_status take_records(audit *a, int64_t step, wanted *out) {
    mz_training *run = &a->run;
    *out = (wanted){0};
    mezzo_status status = MEZZO_OK;
    if (mz_run_leads(run)) {
        status = mz_records_take(&a->records, step);
        out->step = mz_records_have(&a->records, "train/loss");
        out->validation[MZ_VAL_SAMPLE] =
            !a->records.skips_validation && mz_records_have(&a->records, "val/sampled_loss");
        out->validation[MZ_VAL_WHOLE] = !a->records.skips_validation && mz_records_have(&a->records, "val/loss");
        out->sample = mz_records_have(&a->records, "sample/text");
    }
    MEZZO_TRY(mz_run_follow(run, "the records", status));
    return mz_run_follow_text(run, "what is recorded", (char *)out, sizeof *out);
}

// Reports a step that the run logs and that has no record.
static void check_is_recorded(audit *a, const wanted *w) {
    const mz_training *run = &a->run;
    const bool due = run->step % run->config.log_every == 0 || run->step == run->config.steps;
    if (w->step || !due || run->empty[run->step & 1] || a->records.lines == NULL || !mz_run_leads(run) ||
        a->records.first.step > 0)
        return;
    a->records.differing++;
    a->records.first.step = run->step;
    snprintf(a->records.first.name, sizeof a->records.first.name, "train/loss");
    snprintf(a->records.first.saved, sizeof a->records.first.saved, "nothing");
    snprintf(a->records.first.here, sizeof a->records.first.here, "%.9g", run->engine.readout.last.loss);
}

static mezzo_status compute_step(audit *a, const wanted *w) {
    mz_training *run = &a->run;
    bool fresh;
    MEZZO_TRY(mz_run_step(run));
    MEZZO_TRY(mz_run_read_step(run, true, &fresh));
    if (fresh)
        MEZZO_TRY(mz_run_guard(run));
    if (w->step && !run->empty[run->step & 1])
        MEZZO_TRY(mz_run_log_step(run));
    for (int kind = 0; kind < MZ_VAL_KINDS; kind++)
        if (w->validation[kind])
            MEZZO_TRY(mz_run_validate(run, (mz_val_kind)kind));
    return w->sample ? mz_run_sample(run) : MEZZO_OK;
}

static mezzo_status compute_steps(audit *a) {
    mz_training *run = &a->run;
    wanted w;
    while (run->step < a->v->to) {
        const int64_t step = run->step + 1;
        if (run->hooks.stop != NULL && *run->hooks.stop)
            return mz_fail(MEZZO_ERR_INTERRUPTED, "stopped at step %lld", (long long)run->step);
        mz_work("steps", run->step - a->v->from, a->v->to - a->v->from);
        MEZZO_TRY(go_back(a));
        MEZZO_TRY(take_records(a, step, &w));
        const mezzo_status status = compute_step(a, &w);
        if (status == MEZZO_ERR_NUMERIC) { // the guard ends the run here
            mz_run_finding *f =
                add_finding(a, "step", "guard.jsonl", "step %lld: %.700s; the run has gone on without such a finding",
                            (long long)step, mezzo_error_message());
            f->step = step;
            return MEZZO_OK;
        }
        MEZZO_TRY(status);
        check_is_recorded(a, &w);
        mz_records_finish(&a->records);
        if (a->records.differing == 0)
            a->v->confirmed = step;
    }
    mz_work("steps", 1, 1);
    return go_back(a);
}

static mezzo_status compare_end(mz_training *run, void *user) {
    audit *a = user;
    mezzo_checkpoint c;
    MEZZO_TRY(mz_run_describe_state(run, &c));
    const mezzo_status status = mz_checkpoint_compare(a->to->path, &c, &a->tensors);
    if (status == MEZZO_OK || is_ours(status))
        return status;
    if (!a->to->damaged)
        add_finding(a, "file", a->to->entry->name, "%s", mezzo_error_message());
    a->tensors.different++;
    return MEZZO_OK;
}

static mezzo_status begin(audit *a) {
    mz_training *run = &a->run;
    mezzo_step_info before;
    MEZZO_TRY(mz_run_load(run, a->from->path));
    run->first_step = run->step;
    run->empty[0] = run->empty[1] = false;
    run->engine.readout.last = (mz_step_report){.step = run->step, .loss = (double)NAN};
    MEZZO_TRY(mezzo_optimizer_info(run->engine.session.optimizer, &before));
    run->engine.readout.last.state.skipped = before.skipped;
    run->guard.in_a_row = run->guard.floor_in_a_row = run->guard.last_bad = 0;
    MEZZO_TRY(mezzo_optimizer_zero_grad(run->engine.session.optimizer));
    return mz_guard_arm(run);
}

// --- the report of an interval -----------------------------------------------------------------------------------
static const char *kind_of(const mz_checkpoint_difference *d) {
    static const char *const kinds[] = {"weight", "moment", "average"};
    const size_t i = MZ_INDEX_WORD(mz_checkpoint_files, MZ_CHECKPOINT_FILES, d->file);
    return i < MZ_CHECKPOINT_FILES ? kinds[i] : "state";
}

static void report_record(audit *a) {
    const mz_records *r = &a->records;
    if (r->differing == 0)
        return;
    mz_run_finding *f = add_finding(
        a, "record", r->first.name,
        "step %lld: metrics.jsonl has %s %s, computed again it is %s; %lld of %lld values differ between %s and %s%s",
        (long long)r->first.step, r->first.name, r->first.saved, r->first.here, (long long)r->differing,
        (long long)r->compared, a->from->entry->name, a->to->entry->name,
        a->tensors.different == 0 ? ", and the later checkpoint is confirmed: the records were changed"
        : r->first.step == r->first_recorded
            ? ": the data, the earlier checkpoint or the configuration is not the run's"
            : "");
    f->step = r->first.step;
    snprintf(f->saved, sizeof f->saved, "%s", r->first.saved);
    snprintf(f->here, sizeof f->here, "%s", r->first.here);
}

static void report_tensor(audit *a) {
    const mz_checkpoint_difference *d = &a->tensors;
    if (d->different == 0 || d->file[0] == '\0')
        return;
    char place[240], element[48] = "";
    snprintf(place, sizeof place, "%s: %s", d->file, d->name);
    if (d->element >= 0)
        snprintf(element, sizeof element, " element %lld", (long long)d->element);
    mz_run_finding *f = add_finding(
        a, kind_of(d), place, "%s: %s: %s%s is %s, computed again it is %s; %d of %d tensors and numbers differ",
        a->to->entry->name, d->file, d->name, element, d->saved, d->here, d->different, d->compared);
    f->step = a->v->to;
    snprintf(f->saved, sizeof f->saved, "%s", d->saved);
    snprintf(f->here, sizeof f->here, "%s", d->here);
}

static void report_other(audit *a) {
    const mz_checkpoint_run *to = &a->to->run;
    const mz_engine *e = &a->run.engine;
    if (!same_machine(a))
        add_finding(
            a, "missing", "the device",
            "steps %lld to %lld: Mezzo %.20s on %.190s computed them; Mezzo %.20s on %.190s computes other bits: "
            "%lld values differ",
            (long long)a->v->from + 1, (long long)a->v->to, to->version, to->device, mezzo_version(),
            e->info.description, (long long)a->v->differing);
    else
        add_finding(a, "missing", "ranks",
                    "steps %lld to %lld: %d ranks added their gradients in the transport's order (--reduce fast), "
                    "which %d cannot compute again: mezzo launch -n %d -- audit",
                    (long long)a->v->from + 1, (long long)a->v->to, to->ranks, e->size, to->ranks);
}

// Bounds losses on another device, which rounds differently. The bound is found on this device alone: weights that are
// changed by the products' unit roundoff, up or down at random, change each loss by an amount of the same origin. It is
// a multiple of the largest change up to the step, plus what FP32 rounds off a loss.
enum { PERTURBED = 2, BOUND_FACTOR = 8 };

// Measures the changes of losses: changes[k] is the largest of the k-th recorded loss.
static mezzo_status measure_changes(audit *a, double *changes) {
    mz_training *run = &a->run;
    const mz_records *r = &a->records;
    const double by = mz_unit_roundoff(mz_precision(run->engine.plan.program.precision)->operand);
    for (uint64_t pass = 1; pass <= PERTURBED; pass++) {
        const wanted none = {0};
        MEZZO_TRY(begin(a));
        MEZZO_TRY(mz_params_perturb(run->engine.session.params, by, pass));
        for (int k = 0; run->step < a->v->to && k < r->n_losses;) {
            MEZZO_TRY(go_back(a));
            MEZZO_TRY(compute_step(a, &none));
            if (run->step != r->losses[k].step)
                continue;
            const double change = fabs(run->engine.readout.last.loss - r->losses[k].here);
            changes[k] = isnan(change) ? changes[k] : fmax(changes[k], change);
            k++;
        }
    }
    return MEZZO_OK;
}

static void compare_losses(audit *a, const double *changes) {
    mz_run_interval *v = a->v;
    const mz_records *r = &a->records;
    double change = 0, nearest = -1;
    for (int k = 0; k < r->n_losses; k++) {
        const mz_recorded_loss *l = &r->losses[k];
        change = fmax(change, changes[k]);
        const double bound = BOUND_FACTOR * (change + 0x1p-24 * fabs(l->here));
        const double by = isnan(l->saved) && isnan(l->here) ? 0 : fabs(l->saved - l->here);
        const bool beyond = !(by <= bound);
        v->losses++;
        if (beyond && v->verdict != MZ_AUDIT_DIFFERS) {
            mz_run_finding *f = add_finding(a, "record", "train/loss",
                                            "step %lld: metrics.jsonl has train/loss %.9g, computed again it is %.9g, "
                                            "which another device's rounding "
                                            "does not explain: they may differ by %.3g",
                                            (long long)l->step, l->saved, l->here, bound);
            f->step = l->step;
            v->verdict = MZ_AUDIT_DIFFERS;
            nearest = INFINITY;
            v->difference = by;
            v->bound = bound;
        } else if (by / bound > nearest) {
            nearest = by / bound;
            v->difference = by;
            v->bound = bound;
        }
    }
}

static mezzo_status compare_with_bounds(audit *a) {
    double *changes = mz_alloc((size_t)a->records.n_losses + 1, sizeof *changes);
    mezzo_status status = changes != NULL ? measure_changes(a, changes) : MEZZO_ERR_MEMORY;
    a->v->verdict = MZ_AUDIT_IN_BOUNDS;
    if (status == MEZZO_OK)
        compare_losses(a, changes);
    mz_free(changes);
    return status;
}

static mezzo_status judge(audit *a, int findings) {
    mz_run_interval *v = a->v;
    const mz_records *r = &a->records;
    v->values = r->compared;
    v->records = r->steps;
    v->tensors = a->tensors.compared;
    v->differing = r->differing + a->tensors.different;
    if (r->wrong_line > 0)
        add_finding(a, "record", "metrics.jsonl", "metrics.jsonl: line %lld is no record", (long long)r->wrong_line);
    if (v->differing > 0 && !v->exact) {
        report_other(a);
        v->verdict = MZ_AUDIT_NOT_POSSIBLE;
        return a->run.engine.size == 1 && a->records.n_losses > 0 ? compare_with_bounds(a) : MEZZO_OK;
    }
    report_record(a);
    report_tensor(a);
    v->verdict = a->r->n_findings > findings || v->differing > 0 ? MZ_AUDIT_DIFFERS : MZ_AUDIT_CONFIRMED;
    return MEZZO_OK;
}

// --- an interval, from its end's configuration to its verdict ----------------------------------------------------
static mezzo_status prepare(audit *a, bool *possible) {
    char *text;
    *possible = false;
    if (a->from->damaged)
        return MEZZO_OK;
    MEZZO_TRY(read_config(a, a->to, &text));
    if (text == NULL) {
        add_finding(a, "missing", "config.yaml", "%s: nothing says with which configuration it was computed",
                    a->to->entry->name);
        return MEZZO_OK;
    }
    mezzo_status status = open_run(a, text);
    if (status != MEZZO_OK && !is_ours(status))
        add_finding(a, "missing", "the run", "the run cannot be opened here: %s", mezzo_error_message());
    if (status != MEZZO_OK)
        return is_ours(status) ? status : MEZZO_OK;
    bool unlike = mz_run_leads(&a->run) && (!has_data(a) || !agrees_with_keys(a));
    MEZZO_TRY(mz_run_any(&a->run, "the data", unlike, &unlike));
    if (unlike)
        return MEZZO_OK;
    status = begin(a);
    if (status != MEZZO_OK && !is_ours(status)) {
        add_finding(a, "file", a->from->entry->name, "%s", mezzo_error_message());
        return MEZZO_OK;
    }
    MEZZO_TRY(status);
    *possible = true;
    return find_rollbacks(a);
}

static mezzo_status check_interval(audit *a) {
    bool possible;
    const int findings = a->r->n_findings;
    a->v->verdict = MZ_AUDIT_NOT_POSSIBLE;
    a->v->confirmed = a->v->from;
    a->tensors = (mz_checkpoint_difference){0};
    MEZZO_TRY(mz_records_open(a->o->run, a->v->from, &a->records));
    MEZZO_TRY(prepare(a, &possible));
    if (!possible)
        return MEZZO_OK;
    a->v->exact = is_exact(a);
    a->records.whole = a->v->exact && a->to->run.version[0] != '\0';
    a->records.skips_samples = a->from->run.ranks != a->run.engine.size || a->to->run.ranks != a->run.engine.size;
    MEZZO_TRY(compute_steps(a));
    if (a->run.step == a->v->to)
        MEZZO_TRY(mz_run_use_state(&a->run, compare_end, a));
    return judge(a, findings);
}

// Chooses intervals at even distances, the newest among them.
static mezzo_status choose_intervals(audit *a) {
    const int pairs = a->n_ends > 1 ? (int)a->n_ends - 1 : 0;
    const int n = a->o->intervals == 0 || a->o->intervals > pairs ? pairs : (int)a->o->intervals;
    MEZZO_TRY(MZ_NEW(a->r->intervals, (size_t)n + 1));
    for (int i = 0; i < n; i++) {
        const int at = pairs - 1 - (n - 1 - i) * pairs / n;
        a->r->intervals[i] = (mz_run_interval){.from = a->ends[at].entry->step, .to = a->ends[at + 1].entry->step};
    }
    a->r->n_intervals = n;
    return MEZZO_OK;
}

static mezzo_status check_intervals(audit *a) {
    mz_run_audit *r = a->r;
    for (int i = 0; i < r->n_intervals; i++) {
        a->v = &r->intervals[i];
        for (size_t k = 0; k + 1 < a->n_ends; k++)
            if (a->ends[k].entry->step == a->v->from) {
                a->from = &a->ends[k];
                a->to = &a->ends[k + 1];
            }
        const mezzo_status status = check_interval(a);
        mz_records_close(&a->records);
        a->v->word = word_of(a->v->verdict);
        a->v = NULL;
        MEZZO_TRY(status);
    }
    return MEZZO_OK;
}

static void sum_up(mz_run_audit *r) {
    bool differs = false, missing = r->n_intervals == 0, bounds = false;
    for (int i = 0; i < r->n_findings; i++) {
        differs = differs || !r->findings[i].missing;
        missing = missing || r->findings[i].missing;
    }
    for (int i = 0; i < r->n_intervals; i++) {
        differs = differs || r->intervals[i].verdict == MZ_AUDIT_DIFFERS;
        missing = missing || r->intervals[i].verdict == MZ_AUDIT_NOT_POSSIBLE;
        bounds = bounds || r->intervals[i].verdict == MZ_AUDIT_IN_BOUNDS;
    }
    r->verdict = differs   ? MZ_AUDIT_DIFFERS
                 : bounds  ? MZ_AUDIT_IN_BOUNDS
                 : missing ? MZ_AUDIT_NOT_POSSIBLE
                           : MZ_AUDIT_CONFIRMED;
}

static mezzo_status run_audit(audit *a) {
    a->checkpoints = mz_format("%s/checkpoints", a->o->run);
    if (a->checkpoints == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    if (!mz_path_is_dir(a->o->run))
        return mz_fail(MEZZO_ERR_INVALID, "%s: no such folder: name a run folder", mz_quote(a->o->run).text);
    if (mz_path_is_dir(a->checkpoints))
        MEZZO_TRY(mz_manifest_load(a->checkpoints, &a->manifest));
    MEZZO_TRY(list_ends(a));
    MEZZO_TRY(check_metrics(a));
    if (a->n_ends > 0) {
        const mz_checkpoint_run *newest = &a->ends[a->n_ends - 1].run;
        snprintf(a->r->run_device, sizeof a->r->run_device, "%s", newest->device);
        a->r->run_ranks = newest->ranks;
    }
    MEZZO_TRY(choose_intervals(a));
    MEZZO_TRY(check_intervals(a));
    sum_up(a->r);
    return a->is_open ? mz_run_follow_text(&a->run, "the verdict", (char *)&a->r->verdict, sizeof a->r->verdict)
                      : MEZZO_OK;
}

mezzo_status mz_run_audit_find(const mz_run_audit_options *options, mz_run_audit *out) {
    *out = (mz_run_audit){.verdict = MZ_AUDIT_NOT_POSSIBLE, .ranks = 1};
    audit *a;
    MEZZO_TRY(MZ_NEW(a, 1));
    a->o = options;
    a->r = out;
    const mezzo_status status = run_audit(a);
    out->word = word_of(out->verdict);
    if (status != MEZZO_OK && a->is_open && a->run.engine.group != NULL)
        mz_group_abort(a->run.engine.group, NULL);
    mz_records_close(&a->records);
    close_run(a);
    for (size_t i = 0; i < a->n_ends; i++)
        mz_free(a->ends[i].run.configuration);
    mz_free(a->ends);
    mz_manifest_free(&a->manifest);
    MZ_FREE(a->checkpoints, a);
    return status;
}

void mz_run_audit_free(mz_run_audit *r) {
    mz_free(r->intervals);
    r->intervals = NULL;
}
