#define _GNU_SOURCE
#include "io/metrics.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/json.h"
#include "io/number.h"
#include "io/quote.h"
#include "io/tfevents.h"

typedef struct last_text {
    char *name, *value;
} last_text;

struct mz_metrics {
    mz_file *file;
    char *path;
    mz_tfevents *events; // NULL: no TensorBoard
    mz_text line;        // reused, so that a record allocates memory only if it is longer than all before
    last_text *texts;
    size_t text_count, text_cap;
    mz_written written;
    mz_metrics_fn take; // set by mz_metrics_open_to, where no file is open
    void *take_user;
};

// --- continuing after an interruption -------------------------------------------------------------------------------
// Reads the record's step, or returns MEZZO_ERR_FORMAT.
static mezzo_status line_step(const char *where, const char *line, size_t n, int64_t *step) {
    MZ_SCOPED(mz_json_free_at) json_t *object = NULL;
    MEZZO_TRY(mz_json_parse(where, line, n, 4, &object));
    return json_is_object(object) ? mz_json_get_int(where, object, "step", 0, INT64_MAX, step)
                                  : mz_fail(MEZZO_ERR_FORMAT, "%s: not a record", where);
}

// Returns whether a line begins as records do, with a later step; such a line is dropped whatever follows.
static bool is_later(const char *line, size_t n, int64_t last) {
    static const char begin[] = "{\"step\": ";
    int64_t step = 0;
    size_t i = sizeof begin - 1;
    if (n <= i || memcmp(line, begin, i) != 0)
        return false;
    for (; i < n && line[i] >= '0' && line[i] <= '9' && step < INT64_MAX / 10 - 9; i++)
        step = 10 * step + line[i] - '0';
    return i < n && line[i] == ',' && step > last;
}

// Gives back pages that were read, so that a long file takes little memory.
static void forget(const char *data, size_t from, size_t to) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    from = mz_align_up(from, page);
    if (to > from)
        (void)madvise((void *)(uintptr_t)(data + from), to - from, MADV_DONTNEED);
}

// Finds where the records of steps up to `last` end. It searches from the end: steps only grow, so the first record
// found with such a step is the last to stay, and the earlier part of a long file is not read. Lines in between that
// are no records are dropped with the later ones.
static mezzo_status end_of_kept(const char *path, const char *data, size_t n, int64_t last, size_t *end, bool *torn) {
    *end = n;
    *torn = false;
    size_t seen = n;
    for (bool past_tail = false; *end > 0;) {
        if (seen - *end > (size_t)1 << 24) {
            forget(data, *end, seen);
            seen = *end;
        }
        const char *newline = *end > 1 ? memrchr(data, '\n', *end - 1) : NULL;
        size_t start = newline != NULL ? (size_t)(newline - data) + 1 : 0;
        bool whole = data[*end - 1] == '\n'; // else a crash truncated it, and its step is written again
        int64_t step = 0;
        if (past_tail && whole && is_later(data + start, *end - start, last)) {
            *end = start;
            continue;
        }
        mezzo_status status = whole ? line_step(path, data + start, *end - start - 1, &step) : MEZZO_ERR_FORMAT;
        if (status == MEZZO_ERR_MEMORY)
            return status;
        if (status == MEZZO_OK && step <= last)
            return MEZZO_OK;
        *torn |= status != MEZZO_OK && !past_tail;
        past_tail |= status == MEZZO_OK;
        *end = start;
    }
    return MEZZO_OK;
}

static mezzo_status cut_after(const char *path, int64_t last) {
    mz_map map;
    size_t end = 0;
    bool torn = false;
    if (!mz_path_exists(path))
        return MEZZO_OK;
    MEZZO_TRY(mz_map_open(path, &map));
    size_t size = map.size;
    mezzo_status status = end_of_kept(path, (const char *)map.data, size, last, &end, &torn);
    MEZZO_TRY(mz_map_end(&map, status));
    if (torn)
        mz_log("notice", "%s: a crash damaged its end; keeping the records up to step %lld", mz_quote(path).text,
               (long long)last);
    return end < size ? mz_file_cut(path, end) : MEZZO_OK;
}

// Computes the checksum of the first `bytes` of the file, or of all where it has fewer.
static mezzo_status checksum(const char *path, uint64_t bytes, mz_written *out) {
    mz_map map;
    *out = (mz_written){0};
    if (!mz_path_exists(path))
        return MEZZO_OK;
    MEZZO_TRY(mz_map_open(path, &map));
    const size_t end = bytes < map.size ? (size_t)bytes : map.size;
    for (size_t at = 0, next; at < end; at = next) {
        next = end - at > (size_t)1 << 22 ? at + ((size_t)1 << 22) : end;
        out->crc = mz_crc32c(out->crc, map.data + at, next - at);
        forget((const char *)map.data, at, next);
    }
    out->bytes = end;
    return mz_map_end(&map, MEZZO_OK);
}

mezzo_status mz_metrics_match(const char *folder, mz_written was, bool *same) {
    mz_written is;
    *same = true;
    if (was.bytes == 0)
        return MEZZO_OK;
    const mezzo_status status = checksum(mz_path_of("%s/metrics.jsonl", folder).text, was.bytes, &is);
    *same = status == MEZZO_OK && is.bytes == was.bytes && is.crc == was.crc;
    return status;
}

mezzo_status mz_metrics_check(const char *folder, mz_written was, int64_t at) {
    bool same;
    MEZZO_TRY(mz_metrics_match(folder, was, &same));
    if (!same)
        mz_log("warn",
               "%s: not what it was when the checkpoint of step %lld was saved: records are damaged, edited or missing",
               mz_quote(mz_path_of("%s/metrics.jsonl", folder).text).text, (long long)at);
    return MEZZO_OK;
}

static mezzo_status require_fresh(const char *path) {
    if (!mz_path_exists(path))
        return MEZZO_OK;
    mz_map map;
    MEZZO_TRY(mz_map_open(path, &map));
    size_t size = map.size;
    mz_map_close(&map);
    if (size > 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s holds another run's records; resume that run or choose another folder",
                       mz_quote(path).text);
    return MEZZO_OK;
}

mezzo_status mz_metrics_open(const char *folder, const char *file, int64_t resume_step, bool tensorboard,
                             mz_metrics **out) {
    *out = NULL;
    mezzo_status status = MEZZO_OK;
    mz_metrics *metrics = mz_alloc(1, sizeof *metrics);
    char *path = metrics != NULL ? mz_format("%s/%s", folder, file) : NULL;
    if (path == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    metrics->path = path;
    MEZZO_TRY_GOTO(status, resume_step < 0 ? require_fresh(path) : cut_after(path, resume_step));
    MEZZO_TRY_GOTO(status, mz_file_append_own(path, &metrics->file));
    MEZZO_TRY_GOTO(status, checksum(path, UINT64_MAX, &metrics->written));
    if (tensorboard)
        MEZZO_TRY_GOTO(status, mz_tfevents_open(folder, resume_step, &metrics->events));
    *out = metrics;
    return MEZZO_OK;
fail:
    mz_metrics_close(metrics);
    return status;
}

mezzo_status mz_metrics_open_to(mz_metrics_fn take, void *user, mz_metrics **out) {
    *out = mz_alloc(1, sizeof **out);
    if (*out == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    (*out)->take = take;
    (*out)->take_user = user;
    return MEZZO_OK;
}

void mz_metrics_close(mz_metrics *metrics) {
    if (!metrics)
        return;
    mz_file_discard(metrics->file); // nothing is staged, so this closes it
    mz_tfevents_close(metrics->events);
    mz_free(metrics->path);
    mz_text_free(&metrics->line);
    for (size_t i = 0; i < metrics->text_count; i++) {
        MZ_FREE(metrics->texts[i].name, metrics->texts[i].value);
    }
    MZ_FREE(metrics->texts, metrics);
}

// --- records -------------------------------------------------------------------------------------------------------
static void add_value(mz_text *line, const mz_metric *value) {
    char number[MZ_NUMBER_MAX];
    switch (value->kind) {
    case MZ_METRIC_NUMBER:
        if (isnan(value->number))
            mz_text_addf(line, "\"NaN\"");
        else if (isinf(value->number))
            mz_text_addf(line, "\"%sInfinity\"", value->number < 0 ? "-" : "");
        else
            mz_text_addf(line, "%s", mz_number_format(value->number, number));
        break;
    case MZ_METRIC_INT:
        mz_text_addf(line, "%lld", (long long)value->integer);
        break;
    case MZ_METRIC_BOOL:
        mz_text_addf(line, "%s", value->integer ? "true" : "false");
        break;
    case MZ_METRIC_TEXT:
        mz_json_add_text(line, value->text);
        break;
    }
}

// Finds out whether TensorBoard lacks this text, and remembers it.
static mezzo_status text_is_new(mz_metrics *metrics, const mz_metric *value, bool *is_new) {
    const size_t i = MZ_INDEX(metrics->texts, metrics->text_count, name, value->name);
    *is_new = i == metrics->text_count || strcmp(metrics->texts[i].value, value->text) != 0;
    if (!*is_new)
        return MEZZO_OK;
    char *copy = mz_strdup(value->text);
    if (!copy)
        return MEZZO_ERR_MEMORY;
    if (i < metrics->text_count) {
        mz_free(metrics->texts[i].value);
        metrics->texts[i].value = copy;
        return MEZZO_OK;
    }
    char *name = mz_strdup(value->name);
    if (!name || MZ_RESERVE(metrics->texts, metrics->text_cap, i + 1) != MEZZO_OK) {
        MZ_FREE(name, copy);
        return MEZZO_ERR_MEMORY;
    }
    metrics->texts[metrics->text_count++] = (last_text){name, copy};
    return MEZZO_OK;
}

static mezzo_status write_events(mz_metrics *metrics, int64_t step, const mz_metric *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (values[i].kind == MZ_METRIC_TEXT) {
            bool is_new = false;
            MEZZO_TRY(text_is_new(metrics, &values[i], &is_new));
            if (is_new)
                mz_tfevents_add_text(metrics->events, values[i].name, values[i].text);
        } else {
            double number = values[i].kind == MZ_METRIC_NUMBER ? values[i].number : (double)values[i].integer;
            mz_tfevents_add_scalar(metrics->events, values[i].name, number);
        }
    }
    return mz_tfevents_write(metrics->events, step);
}

// Writes further records to the file that is now at the path, where another program removed or moved the old one.
static mezzo_status follow_path(mz_metrics *metrics) {
    if (!mz_file_moved(metrics->file))
        return MEZZO_OK;
    const mz_path folder = mz_path_folder(metrics->path);
    if (!mz_folder_stays(folder.text))
        return mz_fail(MEZZO_ERR_IO,
                       "%s: the run folder was removed, renamed or replaced while the run was writing there",
                       mz_quote(folder.text).text);
    mz_file *file;
    MEZZO_TRY(mz_file_append_own(metrics->path, &file));
    mz_file_discard(metrics->file);
    metrics->file = file;
    mz_log(
        "warn",
        "%s was removed, renamed or replaced while the run was writing it: its records from here on go to a new file",
        mz_quote(metrics->path).text);
    return checksum(metrics->path, UINT64_MAX, &metrics->written);
}

mezzo_status mz_metrics_write(mz_metrics *metrics, int64_t step, const mz_metric *values, size_t count) {
    mz_text *line = &metrics->line;
    if (metrics->take != NULL)
        return metrics->take(metrics->take_user, step, values, count);
    line->len = 0;
    line->status = MEZZO_OK;
    mz_text_addf(line, "{\"step\": %lld", (long long)step);
    for (size_t i = 0; i < count; i++) {
        mz_text_add(line, ", ", 2);
        mz_json_add_text(line, values[i].name);
        mz_text_add(line, ": ", 2);
        add_value(line, &values[i]);
    }
    mz_text_add(line, "}\n", 2);
    MEZZO_TRY(line->status);
    MEZZO_TRY(follow_path(metrics));
    MEZZO_TRY(mz_file_write(metrics->file, line->data, line->len));
    metrics->written.crc = mz_crc32c(metrics->written.crc, line->data, line->len);
    metrics->written.bytes += line->len;
    return metrics->events ? write_events(metrics, step, values, count) : MEZZO_OK;
}

mezzo_status mz_metrics_add_counts(mz_metrics *metrics, const char *name, const double *edges, const double *counts,
                                   size_t n) {
    if (metrics->events)
        mz_tfevents_add_counts(metrics->events, name, edges, counts, n);
    return MEZZO_OK;
}

mezzo_status mz_metrics_write_counts(mz_metrics *metrics, int64_t step) {
    return metrics->events ? mz_tfevents_write(metrics->events, step) : MEZZO_OK;
}

mezzo_status mz_metrics_sync(mz_metrics *metrics) {
    MEZZO_TRY(mz_file_sync(metrics->file));
    return metrics->events ? mz_tfevents_sync(metrics->events) : MEZZO_OK;
}

mz_written mz_metrics_written(const mz_metrics *metrics) {
    return metrics->written;
}
