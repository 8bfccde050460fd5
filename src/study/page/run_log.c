#include "study/page/run_log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/precision.h"
#include "io/file.h"
#include "io/quote.h"
#include "train/folder.h"

static const uint64_t TOLD_EVERY = 8 << 20; // progress is reported after this many bytes

// --- keeping -------------------------------------------------------------------------------------------------------
// Finds a series. The search starts after the last name found, because records repeat their keys in one order.
static mz_series *find_next(mz_run_log *log, const char *name) {
    for (size_t k = 0; k < log->n_series; k++) {
        const size_t i = log->next + k < log->n_series ? log->next + k : log->next + k - log->n_series;
        if (strcmp(log->series[i].name, name) == 0) {
            log->next = i + 1 < log->n_series ? i + 1 : 0;
            return &log->series[i];
        }
    }
    return NULL;
}

static mezzo_status add_series(mz_run_log *log, const char *name, mz_series **out) {
    MEZZO_TRY(MZ_RESERVE(log->series, log->cap_series, log->n_series + 1));
    char *copy = mz_strdup(name);
    if (copy == NULL)
        return MEZZO_ERR_MEMORY;
    *out = &log->series[log->n_series++];
    **out = (mz_series){.name = copy};
    return MEZZO_OK;
}

static mezzo_status texts_of(mz_run_log *log, const char *name, mz_run_texts **out) {
    *out = (mz_run_texts *)(uintptr_t)mz_run_log_texts(log, name);
    if (*out != NULL)
        return MEZZO_OK;
    MEZZO_TRY(MZ_RESERVE(log->texts, log->cap_texts, log->n_texts + 1));
    char *copy = mz_strdup(name);
    if (copy == NULL)
        return MEZZO_ERR_MEMORY;
    *out = &log->texts[log->n_texts++];
    **out = (mz_run_texts){.name = copy, .each = 1};
    return MEZZO_OK;
}

// Drops every second text, beginning with the second.
static void halve_texts(mz_run_texts *t) {
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++)
        if (i % 2 == 0)
            t->items[kept++] = t->items[i];
        else
            mz_free(t->items[i].text);
    t->n = kept;
    t->each *= 2;
}

static mezzo_status add_text(mz_run_texts *t, int64_t step, const char *text) {
    if (t->n > 0 && strcmp(t->items[t->n - 1].text, text) == 0)
        return MEZZO_OK;
    const bool passing = t->count > 0 && (t->count - 1) % t->each != 0; // the last one was kept only because it was the
                                                                        // last
    if (!passing && t->n == MZ_TEXTS_MAX)
        halve_texts(t);
    MEZZO_TRY(MZ_RESERVE(t->items, t->cap, t->n + 1));
    char *copy = mz_strdup(text);
    if (copy == NULL)
        return MEZZO_ERR_MEMORY;
    if (passing)
        mz_free(t->items[--t->n].text);
    t->items[t->n++] = (mz_run_text){.step = step, .text = copy};
    t->count++;
    return MEZZO_OK;
}

// --- values that cannot be -----------------------------------------------------------------------------------------
static void note_bad(mz_run_log *log, int64_t n, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void note_bad(mz_run_log *log, int64_t n, const char *fmt, ...) {
    if (n > 0 && log->bad == 0) {
        const int used = snprintf(log->first_bad, sizeof log->first_bad, "metrics.jsonl:%lld: ", (long long)log->lines);
        va_list args;
        va_start(args, fmt);
        vsnprintf(log->first_bad + used, sizeof log->first_bad - (size_t)used, fmt, args);
        va_end(args);
        mz_text_tame(log->first_bad);
    }
    log->bad += n;
}

// Adds a value; the first value of a key decides whether it has numbers or texts.
static mezzo_status add_value(mz_run_log *log, int64_t step, const mz_metric *value) {
    const bool is_text = value->kind == MZ_METRIC_TEXT, is_precision = strcmp(value->name, "amp/precision") == 0;
    mz_series *series = find_next(log, value->name);
    const char *key = value->name;
    mezzo_precision known;
    if (is_text ? series != NULL : is_precision || mz_run_log_texts(log, key) != NULL)
        note_bad(log, 1, "key %s: expected a %s", mz_quote(key).text, is_text ? "number" : "text");
    else if (is_precision && mezzo_precision_parse(value->text, &known) != MEZZO_OK)
        note_bad(log, 1, "key %s: %s", mz_quote(key).text, mezzo_error_message());
    else if (series == NULL && log->n_series + log->n_texts >= MZ_SERIES_MAX)
        note_bad(log, 1, "key %s: more than %d keys", mz_quote(key).text, MZ_SERIES_MAX);
    else if (is_text) {
        mz_run_texts *texts;
        MEZZO_TRY(texts_of(log, key, &texts));
        return add_text(texts, step, value->text);
    } else {
        if (series == NULL)
            MEZZO_TRY(add_series(log, key, &series));
        return mz_series_add(series, step, mz_metric_as_number(value));
    }
    return MEZZO_OK;
}

static mezzo_status add_record(mz_run_log *log, const mz_record *record) {
    for (size_t i = 0; i < record->n; i++)
        MEZZO_TRY(add_value(log, record->step, &record->values[i]));
    if (record->wrong[0] != '\0')
        note_bad(log, 1, "key %s: expected a number, a truth value or a text", record->wrong);
    const double ms = mz_metric_as_number(mz_record_find(record, "perf/step_ms"));
    if (isfinite(ms) && record->step > log->timed_step) {
        log->step_seconds += 1e-3 * ms * (double)(record->step - log->timed_step);
        log->timed_step = record->step;
    }
    mz_health_add_record(&log->health, record);
    log->last_step = record->step > log->last_step ? record->step : log->last_step;
    log->records++;
    return MEZZO_OK;
}

// --- reading -------------------------------------------------------------------------------------------------------
// Finds out whether the file no longer has what was read at its place: a rollback or a resumed run truncated it, and
// what was written since may be longer.
static mezzo_status was_cut(const mz_run_log *log, const mz_lines *lines, bool *cut) {
    char now[sizeof log->tail + 1];
    const size_t n = log->n_tail + 1;
    size_t got = 0;
    *cut = false;
    if (log->offset == 0)
        return MEZZO_OK;
    MEZZO_TRY(mz_lines_peek(lines, log->offset - n, now, n, &got));
    *cut = got != n || memcmp(now, log->tail, log->n_tail) != 0 || now[log->n_tail] != '\n';
    return MEZZO_OK;
}

static mezzo_status start_anew(mz_run_log *log) {
    char *folder = log->folder;
    log->folder = NULL;
    mz_run_log_free(log);
    *log = (mz_run_log){.last_step = -1, .folder = folder};
    return mz_health_begin(&log->health);
}

static mezzo_status read_line(mz_run_log *log, mz_record *record, const char *line, size_t n) {
    log->lines++;
    log->n_tail = n < sizeof log->tail ? n : sizeof log->tail;
    memcpy(log->tail, line + n - log->n_tail, log->n_tail);
    mezzo_status status = mz_record_read(record, line, n);
    if (status == MEZZO_OK)
        return add_record(log, record);
    if (status == MEZZO_ERR_FORMAT) { // a crash or an editor damaged it
        note_bad(log, 1, "%s", mezzo_error_message());
        return MEZZO_OK;
    }
    return status;
}

static void tell_progress(uint64_t done, uint64_t size) {
    mz_work("MB of metrics.jsonl", (int64_t)(done / 1000000), (int64_t)(size / 1000000));
}

static mezzo_status read_lines(mz_run_log *log, mz_lines *lines, const volatile sig_atomic_t *stop, uint64_t size) {
    mezzo_status status = MEZZO_OK;
    mz_record record = {0};
    const char *line;
    size_t n;
    uint64_t passed = 0, told = log->offset;
    const bool is_long = size > told + TOLD_EVERY;
    if (is_long)
        tell_progress(told, size);
    while (status == MEZZO_OK && (status = mz_lines_next(lines, &line, &n)) == MEZZO_OK) {
        const uint64_t more = mz_lines_passed(lines) - passed;
        if (more > 0) {
            log->n_tail = 0;
            log->lines += (int64_t)more;
            note_bad(log, (int64_t)more, "a line of 16 MiB or more is not a record");
        }
        passed += more;
        if (line == NULL)
            break;
        status = read_line(log, &record, line, n);
        if (!is_long || mz_lines_end(lines) - told < TOLD_EVERY)
            continue;
        told = mz_lines_end(lines);
        if (told < size)
            tell_progress(told, size);
        if (status == MEZZO_OK && stop != NULL && *stop != 0)
            status = mz_fail(MEZZO_ERR_INTERRUPTED, "reading %s/metrics.jsonl was stopped", log->folder);
    }
    if (is_long)
        tell_progress(size, size);
    log->offset = mz_lines_end(lines);
    mz_record_free(&record);
    return status;
}

// Opens the records; *lines NULL: there are none yet.
static mezzo_status open_lines(const char *folder, mz_lines **lines, uint64_t *size) {
    const mz_path path = mz_path_of("%s/metrics.jsonl", folder);
    struct stat info = {0};
    *lines = NULL;
    const bool there = stat(path.text, &info) == 0 || errno == EACCES; // opening it then reports the reason
    *size = (uint64_t)info.st_size;
    return there ? mz_lines_open(path.text, lines) : MEZZO_OK;
}

mezzo_status mz_run_log_read(mz_run_log *log, const volatile sig_atomic_t *stop) {
    mz_lines *lines;
    uint64_t size;
    mezzo_status status = open_lines(log->folder, &lines, &size);
    bool cut = lines == NULL && log->offset > 0;
    if (status == MEZZO_OK && lines != NULL)
        status = was_cut(log, lines, &cut);
    if (status == MEZZO_OK && cut)
        status = start_anew(log);
    if (status == MEZZO_OK && lines != NULL)
        status = mz_lines_from(lines, log->offset);
    if (status == MEZZO_OK && lines != NULL)
        status = read_lines(log, lines, stop, size);
    mz_lines_close(lines);
    return status;
}

static mezzo_status open_folder(const char *folder, mz_run_log *out) {
    *out = (mz_run_log){.last_step = -1, .folder = mz_strdup(folder)};
    if (out->folder == NULL)
        return MEZZO_ERR_MEMORY;
    MEZZO_TRY(mz_health_begin(&out->health));
    struct stat info;
    if (stat(folder, &info) != 0)
        return mz_fail(errno == ENOENT || errno == ENOTDIR ? MEZZO_ERR_INVALID : MEZZO_ERR_IO, "%s: %s", folder,
                       strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return mz_fail(MEZZO_ERR_INVALID, "%s: not a run folder of mezzo train: it has no metrics.jsonl", folder);
    return MEZZO_OK;
}

mezzo_status mz_run_log_open(const char *folder, const volatile sig_atomic_t *stop, mz_run_log *out) {
    MEZZO_TRY(open_folder(folder, out));
    MEZZO_TRY(mz_run_log_read(out, stop));
    if (out->bad == 1)
        mz_log("notice", "%s/%s: left out", folder, out->first_bad);
    else if (out->bad > 1)
        mz_log("notice", "%s/%s: left out, as are %lld more lines or values", folder, out->first_bad,
               (long long)out->bad - 1);
    return mz_run_folder_check(folder);
}

mezzo_status mz_run_log_open_tail(const char *folder, uint64_t bytes, mz_run_log *out) {
    MEZZO_TRY(open_folder(folder, out));
    mz_lines *lines;
    const char *line;
    size_t n;
    uint64_t size;
    mezzo_status status = open_lines(folder, &lines, &size);
    if (status == MEZZO_OK && lines != NULL && size > bytes) {
        status = mz_lines_from(lines, size - bytes);
        if (status == MEZZO_OK) // skips the rest of a line
            status = mz_lines_next(lines, &line, &n);
    }
    if (status == MEZZO_OK && lines != NULL)
        status = read_lines(out, lines, NULL, size);
    mz_lines_close(lines);
    return status;
}

void mz_run_log_free(mz_run_log *log) {
    for (size_t i = 0; i < log->n_series; i++)
        mz_series_free(&log->series[i]);
    for (size_t i = 0; i < log->n_texts; i++) {
        for (size_t k = 0; k < log->texts[i].n; k++)
            mz_free(log->texts[i].items[k].text);
        MZ_FREE(log->texts[i].items, log->texts[i].name);
    }
    MZ_FREE(log->series, log->texts, log->folder);
    mz_health_end(&log->health);
    *log = (mz_run_log){0};
}

// --- queries --------------------------------------------------------------------------------------------------------
const mz_series *mz_run_log_find(const mz_run_log *log, const char *name) {
    return MZ_FIND(log->series, log->n_series, name, name);
}

const char *mz_run_log_unit(const mz_run_log *log) {
    static const char *const units[] = {"examples", "images"};
    char name[64];
    for (size_t i = 0; i < MZ_COUNT(units); i++) {
        snprintf(name, sizeof name, "perf/%s_per_second", units[i]);
        if (mz_run_log_find(log, name) != NULL)
            return units[i];
    }
    return "tokens";
}

const mz_run_texts *mz_run_log_texts(const mz_run_log *log, const char *name) {
    return MZ_FIND(log->texts, log->n_texts, name, name);
}

const char *mz_run_log_text(const mz_run_log *log, const char *name) {
    const mz_run_texts *t = mz_run_log_texts(log, name);
    return t != NULL && t->n > 0 ? t->items[t->n - 1].text : NULL;
}
