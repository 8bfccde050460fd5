#include "study/page/run_log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "io/file.h"
#include "io/json.h"
#include "train/folder.h"

enum { LINE_BYTES_MAX = 1 << 22, JSON_DEPTH = 4 };

// --- keeping -------------------------------------------------------------------------------------------------------
static mezzo_status series_of(mz_run_log *log, const char *name, mz_series **out) {
    for (size_t i = 0; i < log->n_series; i++)
        if (strcmp(log->series[i].name, name) == 0) {
            *out = &log->series[i];
            return MEZZO_OK;
        }
    MEZZO_TRY(MZ_RESERVE(log->series, log->cap_series, log->n_series + 1));
    char *copy = mz_strdup(name);
    if (copy == NULL)
        return MEZZO_ERR_MEMORY;
    *out = &log->series[log->n_series++];
    **out = (mz_series){.name = copy};
    return MEZZO_OK;
}

static mezzo_status add_number(mz_run_log *log, int64_t step, const char *name, double value) {
    mz_series *s = NULL;
    MEZZO_TRY(series_of(log, name, &s));
    MEZZO_TRY(MZ_RESERVE(s->steps, s->cap_steps, s->n + 1));
    MEZZO_TRY(MZ_RESERVE(s->values, s->cap_values, s->n + 1));
    s->steps[s->n] = step;
    s->values[s->n++] = value;
    return MEZZO_OK;
}

static mezzo_status add_text(mz_run_log *log, int64_t step, const char *name, const char *text) {
    const char *before = mz_run_log_text(log, name);
    if (before != NULL && strcmp(before, text) == 0)
        return MEZZO_OK;
    MEZZO_TRY(MZ_RESERVE(log->texts, log->cap_texts, log->n_texts + 1));
    mz_run_text *t = &log->texts[log->n_texts];
    *t = (mz_run_text){.step = step, .name = mz_strdup(name), .text = mz_strdup(text)};
    log->n_texts++;
    return t->name != NULL && t->text != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

// --- reading -------------------------------------------------------------------------------------------------------
// JSON has no infinities: metrics.jsonl writes them as strings.
static bool not_finite(const char *text, double *value) {
    static const char *const names[] = {"NaN", "Infinity", "-Infinity"};
    const double values[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (size_t i = 0; i < MZ_COUNT(names); i++)
        if (strcmp(names[i], text) == 0) {
            *value = values[i];
            return true;
        }
    return false;
}

static mezzo_status add_record(mz_run_log *log, const char *where, const json_t *record) {
    int64_t step;
    MEZZO_TRY(mz_json_get_int(where, record, "step", 0, INT64_MAX, &step));
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)record, name, value) {
        double number;
        if (strcmp(name, "step") == 0)
            continue;
        if (json_is_number(value))
            MEZZO_TRY(add_number(log, step, name, json_number_value(value)));
        else if (json_is_boolean(value))
            MEZZO_TRY(add_number(log, step, name, json_is_true(value)));
        else if (json_is_string(value) && not_finite(json_string_value(value), &number))
            MEZZO_TRY(add_number(log, step, name, number));
        else if (json_is_string(value))
            MEZZO_TRY(add_text(log, step, name, json_string_value(value)));
    }
    log->last_step = step > log->last_step ? step : log->last_step;
    log->records++;
    return MEZZO_OK;
}

// Spoilt by a crash or an editor: passed over, and counted.
static void count_bad(mz_run_log *log, uint64_t n) {
    if (n > 0 && log->bad_lines == 0)
        log->first_bad = log->records + 1;
    log->bad_lines += (int64_t)n;
}

static void remember(mz_run_log *log, const char *line, size_t n) {
    log->n_tail = n < sizeof log->tail ? n : sizeof log->tail;
    memcpy(log->tail, line + n - log->n_tail, log->n_tail);
}

// Whether what was read does not end any more where it did: a rollback, or a run that was resumed, cut the file back,
// and what was written since may reach further.
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

static void start_anew(mz_run_log *log) {
    char *folder = log->folder;
    log->folder = NULL;
    mz_run_log_free(log);
    *log = (mz_run_log){.last_step = -1, .folder = folder};
}

static mezzo_status read_lines(mz_run_log *log, const char *path, mz_lines *lines) {
    mezzo_status status = MEZZO_OK;
    const char *line;
    size_t n;
    uint64_t passed = 0;
    while (status == MEZZO_OK && (status = mz_lines_next(lines, &line, &n)) == MEZZO_OK) {
        char where[512];
        json_t *record = NULL;
        if (mz_lines_passed(lines) > passed)
            log->n_tail = 0;
        count_bad(log, mz_lines_passed(lines) - passed);
        passed = mz_lines_passed(lines);
        if (line == NULL)
            break;
        remember(log, line, n);
        snprintf(where, sizeof where, "%.400s:%lld", path, (long long)(log->records + log->bad_lines + 1));
        status = n > LINE_BYTES_MAX ? mz_fail(MEZZO_ERR_FORMAT, "%s: a line of %zu bytes is not a record", where, n)
                                    : mz_json_parse(where, line, n, JSON_DEPTH, &record);
        if (status == MEZZO_OK)
            status = add_record(log, where, record);
        if (status == MEZZO_ERR_FORMAT) {
            count_bad(log, 1);
            status = MEZZO_OK;
        }
        json_decref(record);
    }
    log->offset = mz_lines_end(lines);
    return status;
}

mezzo_status mz_run_log_read(mz_run_log *log) {
    mz_lines *lines = NULL;
    char *path = mz_format("%s/metrics.jsonl", log->folder);
    if (path == NULL)
        return MEZZO_ERR_MEMORY;
    const bool there = mz_path_exists(path);
    mezzo_status status = there ? mz_lines_open(path, &lines) : MEZZO_OK;
    bool cut = !there && log->offset > 0;
    if (status == MEZZO_OK && lines != NULL)
        status = was_cut(log, lines, &cut);
    if (status == MEZZO_OK && cut)
        start_anew(log);
    if (status == MEZZO_OK && lines != NULL)
        status = mz_lines_from(lines, log->offset);
    if (status == MEZZO_OK && lines != NULL)
        status = read_lines(log, path, lines);
    mz_lines_close(lines);
    mz_free(path);
    return status;
}

mezzo_status mz_run_log_open(const char *folder, mz_run_log *out) {
    *out = (mz_run_log){.last_step = -1, .folder = mz_strdup(folder)};
    if (out->folder == NULL)
        return MEZZO_ERR_MEMORY;
    struct stat info;
    if (stat(folder, &info) != 0)
        return mz_fail(MEZZO_ERR_IO, "%s: %s", folder, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return mz_fail(MEZZO_ERR_INVALID, "%s: not a run folder of mezzo train: it has no metrics.jsonl", folder);
    MEZZO_TRY(mz_run_log_read(out));
    if (out->bad_lines > 0)
        mz_log("notice", "%s/metrics.jsonl:%lld: %s not valid: skipped", folder, (long long)out->first_bad,
               out->bad_lines == 1 ? "1 line is" : "this line and others are");
    return mz_run_folder_check(folder);
}

void mz_run_log_free(mz_run_log *log) {
    for (size_t i = 0; i < log->n_series; i++) {
        mz_free(log->series[i].name);
        mz_free(log->series[i].steps);
        mz_free(log->series[i].values);
    }
    for (size_t i = 0; i < log->n_texts; i++) {
        mz_free(log->texts[i].name);
        mz_free(log->texts[i].text);
    }
    mz_free(log->series);
    mz_free(log->texts);
    mz_free(log->folder);
    *log = (mz_run_log){0};
}

// --- asking --------------------------------------------------------------------------------------------------------
const mz_series *mz_run_log_find(const mz_run_log *log, const char *name) {
    for (size_t i = 0; i < log->n_series; i++)
        if (strcmp(log->series[i].name, name) == 0)
            return &log->series[i];
    return NULL;
}

const char *mz_run_log_text(const mz_run_log *log, const char *name) {
    for (size_t i = log->n_texts; i-- > 0;)
        if (strcmp(log->texts[i].name, name) == 0)
            return log->texts[i].text;
    return NULL;
}

double mz_series_last(const mz_series *series) {
    return series != NULL && series->n > 0 ? series->values[series->n - 1] : (double)NAN;
}

double mz_series_least(const mz_series *series) {
    double least = (double)NAN;
    for (size_t i = 0; series != NULL && i < series->n; i++)
        if (isfinite(series->values[i]) && !(series->values[i] >= least))
            least = series->values[i];
    return least;
}

double mz_series_end(const mz_series *series) {
    if (series == NULL)
        return (double)NAN;
    size_t take = series->n / 10 > 1 ? series->n / 10 : 1, found = 0;
    double sum = 0;
    for (size_t i = series->n; i-- > 0 && found < take;)
        if (isfinite(series->values[i])) {
            sum += series->values[i];
            found++;
        }
    return found > 0 ? sum / (double)found : (double)NAN;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

mezzo_status mz_series_middle(const mz_series *series, double *out) {
    size_t n = 0;
    *out = (double)NAN;
    if (series == NULL)
        return MEZZO_OK;
    double *finite = mz_alloc(series->n + 1, sizeof *finite);
    if (finite == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < series->n; i++)
        if (isfinite(series->values[i]))
            finite[n++] = series->values[i];
    if (n > 0) {
        qsort(finite, n, sizeof *finite, by_value);
        *out = n % 2 == 1 ? finite[n / 2] : (finite[n / 2 - 1] + finite[n / 2]) / 2;
    }
    mz_free(finite);
    return MEZZO_OK;
}

size_t mz_series_thin(const mz_series *series, size_t buckets, size_t *picks) {
    size_t n = series->n, count = 0;
    if (n <= 2 * buckets + 2) {
        for (size_t i = 0; i < n; i++)
            picks[i] = i;
        return n;
    }
    picks[count++] = 0;
    for (size_t b = 0; b < buckets; b++) {
        size_t from = 1 + b * (n - 2) / buckets, to = 1 + (b + 1) * (n - 2) / buckets, low = from, high = from;
        for (size_t i = from; i < to; i++) {
            double x = series->values[i];
            // What is not finite must be seen: it counts as both lower and higher than any number.
            if (!isfinite(x) || (isfinite(series->values[low]) && x < series->values[low]))
                low = i;
            if (!isfinite(x) || (isfinite(series->values[high]) && x > series->values[high]))
                high = i;
        }
        picks[count++] = low < high ? low : high;
        if (low != high)
            picks[count++] = low < high ? high : low;
    }
    picks[count++] = n - 1;
    return count;
}
