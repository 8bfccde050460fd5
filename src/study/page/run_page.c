#include "study/page/run_page.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "io/file.h"
#include "io/json.h"
#include "mezzo/model.h"
#include "mezzo/train.h"
#include "train/health.h"

enum { BUCKETS = 1000, CONFIG_BYTES_MAX = 1 << 20, SHEETS = 12, SHEET_BYTES_MAX = 8 << 20 };

extern const unsigned char mz_page_html[], mz_page_css[], mz_page_js[];
extern const size_t mz_page_html_size, mz_page_css_size, mz_page_js_size;
#ifdef MEZZO_CHARTS
extern const unsigned char mz_page_chart[];
extern const size_t mz_page_chart_size;
#else // there was no charting library to build in
static const unsigned char mz_page_chart[1];
static const size_t mz_page_chart_size = 0;
#endif

// --- JSON ----------------------------------------------------------------------------------------------------------
static void add_key(mz_text *t, const char *key) {
    mz_json_add_text(t, key);
    mz_text_addf(t, ":");
}

static void add_number(mz_text *t, double x) {
    if (isnan(x))
        mz_text_addf(t, "null");
    else if (isinf(x))
        mz_text_addf(t, "\"%sinfinity\"", x < 0 ? "-" : "");
    else
        mz_text_addf(t, "%.9g", x);
}

static void add_member(mz_text *t, const char *key, double x) {
    add_key(t, key);
    add_number(t, x);
    mz_text_addf(t, ",");
}

static void add_words(mz_text *t, const char *key, const char *text) {
    add_key(t, key);
    if (text != NULL)
        mz_json_add_text(t, text);
    else
        mz_text_addf(t, "null");
    mz_text_addf(t, ",");
}

// --- a run ---------------------------------------------------------------------------------------------------------
static void add_points(mz_text *t, const mz_series *s, mz_point *points) {
    const size_t n = mz_series_thin(s, BUCKETS, points);
    mz_text_addf(t, "[[");
    for (size_t k = 0; k < n; k++)
        mz_text_addf(t, "%s%lld", k > 0 ? "," : "", (long long)points[k].step);
    mz_text_addf(t, "],[");
    for (size_t k = 0; k < n; k++) {
        mz_text_addf(t, "%s", k > 0 ? "," : "");
        if (isnan(points[k].value))
            mz_text_addf(t, "\"nan\"");
        else
            add_number(t, points[k].value);
    }
    mz_text_addf(t, "]]");
}

static void add_series(mz_text *t, const mz_run_log *log, mz_point *points) {
    mz_text_addf(t, "\"series\":{");
    for (size_t i = 0; i < log->n_series; i++) {
        mz_text_addf(t, "%s", i > 0 ? "," : "");
        add_key(t, log->series[i].name);
        add_points(t, &log->series[i], points);
    }
    mz_text_addf(t, "},");
}

// Where the count of skipped steps rose, and by how much.
static void add_skips(mz_text *t, const mz_run_log *log) {
    const mz_series *s = mz_run_log_find(log, "amp/skipped_steps");
    double before = 0;
    int n = 0;
    mz_text_addf(t, "\"skips\":[");
    for (size_t i = 0; s != NULL && i < s->n; i++) {
        const mz_stretch *at = &s->stretches[i];
        if (at->high > before)
            mz_text_addf(t, "%s[%lld,%.0f]", n++ > 0 ? "," : "", (long long)at->high_step, at->high - before);
        before = at->high;
    }
    mz_text_addf(t, "],");
}

static void add_base64(mz_text *t, const unsigned char *bytes, size_t n) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const uint32_t second = i + 1 < n ? bytes[i + 1] : 0, third = i + 2 < n ? bytes[i + 2] : 0;
        const uint32_t word = (uint32_t)bytes[i] << 16 | second << 8 | third;
        const char four[] = {letters[word >> 18], letters[word >> 12 & 63], i + 1 < n ? letters[word >> 6 & 63] : '=',
                             i + 2 < n ? letters[word & 63] : '='};
        mz_text_add(t, four, sizeof four);
    }
}

// The sheet's file, written into the page itself. One that is not there, or not in the run's folder, is left out.
static mezzo_status add_sheet(mz_text *t, const mz_run_log *log, const mz_run_text *sheet, int *n) {
    if (sheet->text[0] == '/' || strstr(sheet->text, "..") != NULL)
        return MEZZO_OK;
    char *path = mz_format("%s/%s", log->folder, sheet->text), *bytes = NULL;
    size_t size = 0;
    if (path == NULL)
        return MEZZO_ERR_MEMORY;
    if (mz_file_read(path, SHEET_BYTES_MAX, &bytes, &size) == MEZZO_OK) {
        mz_text_addf(t, "%s[%lld,\"data:image/png;base64,", (*n)++ > 0 ? "," : "", (long long)sheet->step);
        add_base64(t, (const unsigned char *)bytes, size);
        mz_text_addf(t, "\"]");
    }
    mz_free(bytes);
    mz_free(path);
    return MEZZO_OK;
}

// All sheets of pictures, or the first, the last and some between.
static mezzo_status add_pictures(mz_text *t, const mz_run_log *log) {
    const mz_run_texts *sheets = mz_run_log_texts(log, "sample/picture");
    const size_t all = sheets != NULL ? sheets->n : 0, shown = all < SHEETS ? all : SHEETS;
    int n = 0;
    mz_text_addf(t, "\"pictures\":[");
    for (size_t k = 0; k < shown; k++)
        MEZZO_TRY(add_sheet(t, log, &sheets->items[shown > 1 ? k * (all - 1) / (shown - 1) : 0], &n));
    mz_text_addf(t, "],");
    return MEZZO_OK;
}

static void add_samples(mz_text *t, const mz_run_log *log) {
    const mz_run_texts *texts = mz_run_log_texts(log, "sample/text");
    mz_text_addf(t, "\"samples\":[");
    for (size_t i = 0; texts != NULL && i < texts->n; i++) {
        mz_text_addf(t, "%s[%lld,", i > 0 ? "," : "", (long long)texts->items[i].step);
        mz_json_add_text(t, texts->items[i].text);
        mz_text_addf(t, "]");
    }
    mz_text_addf(t, "],");
}

// The texts "EXPONENT:COUNT EXPONENT:COUNT …" of the gradients' magnitudes, as one table over all exponents that occur.
static void add_histogram(mz_text *t, const mz_run_log *log) {
    long low = LONG_MAX, high = LONG_MIN;
    const mz_run_texts *texts = mz_run_log_texts(log, "gradients/log2_counts");
    for (int pass = 0; pass < 3; pass++) { // the range; the steps; the counts
        if (pass == 1 && low > high) {
            mz_text_addf(t, "\"histogram\":null,");
            return;
        }
        if (pass == 1)
            mz_text_addf(t, "\"histogram\":{\"steps\":[");
        for (size_t i = 0; texts != NULL && i < texts->n; i++) {
            long long counts[512] = {0};
            for (char *p = texts->items[i].text, *end; *p != '\0'; p = end + (*end != '\0')) {
                long exponent = strtol(p, &end, 10);
                if (end == p || *end != ':' || exponent < -200 || exponent > 200)
                    break;
                long long count = strtoll(end + 1, &end, 10);
                low = exponent < low ? exponent : low;
                high = exponent > high ? exponent : high;
                counts[exponent + 256] = count;
            }
            if (pass == 1)
                mz_text_addf(t, "%s%lld", i > 0 ? "," : "", (long long)texts->items[i].step);
            if (pass == 2)
                for (long e = low; e <= high; e++)
                    mz_text_addf(t, "%s%lld", e > low ? "," : i > 0 ? ",[" : "[", counts[e + 256]);
            if (pass == 2)
                mz_text_addf(t, "]");
        }
        if (pass == 1)
            mz_text_addf(t, "],\"counts\":[");
    }
    mz_text_addf(t, "],\"exponents\":[");
    for (long e = low; e <= high; e++)
        mz_text_addf(t, "%s%ld", e > low ? "," : "", e);
    mz_text_addf(t, "]},");
}

// --- the precision table: an op that stands in every block is one row with its count -------------------------------
typedef struct op_row {
    char op[32], module[64], storage[8], compute[8], accumulate[8], reduce[8], rule[160];
    int count;
} op_row;

typedef struct op_rows {
    op_row *rows;
    size_t n, cap;
    mezzo_status status;
} op_rows;

static void keep_op(void *user, const mezzo_explain_row *from) {
    op_rows *t = user;
    op_row row = {.count = 1};
    snprintf(row.op, sizeof row.op, "%s", from->op);
    mz_star_numbers(from->module != NULL ? from->module : "", row.module, sizeof row.module);
    snprintf(row.storage, sizeof row.storage, "%s", mezzo_dtype_name(from->storage));
    snprintf(row.compute, sizeof row.compute, "%s", mezzo_dtype_name(from->compute));
    snprintf(row.accumulate, sizeof row.accumulate, "%s", mezzo_dtype_name(from->accumulate));
    snprintf(row.reduce, sizeof row.reduce, "%s", mezzo_dtype_name(from->reduce));
    snprintf(row.rule, sizeof row.rule, "%s", from->rule != NULL ? from->rule : "");
    for (size_t i = 0; i < t->n; i++) {
        op_row *r = &t->rows[i];
        int count = r->count;
        r->count = 1;
        bool same = memcmp(r, &row, sizeof row) == 0; // both were zeroed before they were filled
        r->count = count + same;
        if (same)
            return;
    }
    if (t->status == MEZZO_OK)
        t->status = MZ_RESERVE(t->rows, t->cap, t->n + 1);
    if (t->status == MEZZO_OK)
        t->rows[t->n++] = row;
}

static mezzo_status explain(const mezzo_config *config, const char *precision, op_rows *rows) {
    mezzo_model_config model, initial;
    mezzo_program_options options;
    const char *name = mezzo_config_get(config, "model.name");
    if (name == NULL)
        return MEZZO_ERR_MEMORY;
    MEZZO_TRY(mezzo_model_defaults(name, &initial));
    MEZZO_TRY(mezzo_config_model(config, initial.vocab, &model));
    MEZZO_TRY(mezzo_config_program(config, &options));
    if (precision != NULL)
        MEZZO_TRY(mezzo_precision_parse(precision, &options.precision));
    mezzo_graph *graph;
    MEZZO_TRY(mezzo_graph_create(&graph));
    mezzo_status status = mezzo_model_build(graph, &model, 1, model.seq_len, true);
    if (status == MEZZO_OK)
        status = mezzo_graph_explain(graph, &options, "autocast", keep_op, rows);
    mezzo_graph_free(graph);
    return status != MEZZO_OK ? status : rows->status;
}

static void add_ops(mz_text *t, const op_rows *rows) {
    mz_text_addf(t, "\"explain\":[");
    for (size_t i = 0; i < rows->n; i++) {
        const op_row *r = &rows->rows[i];
        mz_text_addf(t, "%s{\"count\":%d,", i > 0 ? "," : "", r->count);
        add_words(t, "op", r->op);
        add_words(t, "module", r->module);
        add_words(t, "storage", r->storage);
        add_words(t, "compute", r->compute);
        add_words(t, "accumulate", r->accumulate);
        add_words(t, "reduce", r->reduce);
        add_key(t, "rule");
        mz_json_add_text(t, r->rule);
        mz_text_addf(t, "}");
    }
    mz_text_addf(t, "],");
}

// config.yaml and what follows from it. A folder without one, or with one of another version, is a run without a table.
static mezzo_status add_config(mz_text *t, const mz_run_log *log) {
    char *path = mz_format("%s/config.yaml", log->folder), *text = NULL;
    size_t size;
    if (path == NULL)
        return MEZZO_ERR_MEMORY;
    mezzo_config *config = NULL;
    op_rows rows = {0};
    struct stat info;
    mezzo_status status = MEZZO_OK;
    if (stat(path, &info) == 0) {
        status = mz_file_read(path, CONFIG_BYTES_MAX, &text, &size);
        if (status == MEZZO_OK)
            status = mezzo_config_create(&config);
        if (status == MEZZO_OK)
            status = mezzo_config_load(config, path);
        if (status == MEZZO_OK)
            status = explain(config, mz_run_log_text(log, "amp/precision"), &rows);
    }
    add_words(t, "config", text);
    add_ops(t, &rows);
    mz_free(rows.rows);
    mezzo_config_free(config);
    mz_free(text);
    mz_free(path);
    return status;
}

static mezzo_status add_run(mz_text *t, const mz_run_log *log) {
    const char *slash = strrchr(log->folder, '/');
    const mz_series *speed = mz_run_log_find(log, "perf/tokens_per_second");
    double middle;
    MEZZO_TRY(mz_series_middle(speed, &middle));
    mz_text_addf(t, "{");
    add_words(t, "name", slash != NULL && slash[1] != '\0' ? slash + 1 : log->folder);
    add_words(t, "precision", mz_run_log_text(log, "amp/precision"));
    add_words(t, "decision", mz_run_log_text(log, "run/precision"));
    add_words(t, "device", mz_run_log_text(log, "run/device"));
    add_words(t, "model", mz_run_log_text(log, "run/model"));
    add_member(t, "last_step", (double)log->last_step);
    add_member(t, "end_loss", mz_series_end(mz_run_log_find(log, "train/loss"), INT64_MAX));
    add_member(t, "best_val", mz_series_least(mz_run_log_find(log, "val/loss")));
    add_member(t, "tokens_per_second", middle);
    add_member(t, "memory", mz_series_last(mz_run_log_find(log, "perf/memory_bytes")));
    add_member(t, "skipped", mz_series_last(mz_run_log_find(log, "amp/skipped_steps")));
    add_skips(t, log);
    add_samples(t, log);
    MEZZO_TRY(add_pictures(t, log));
    MEZZO_TRY(add_config(t, log));
    mz_point *points = mz_alloc(2 * BUCKETS + 2, sizeof *points);
    if (points == NULL)
        return MEZZO_ERR_MEMORY;
    add_series(t, log, points);
    mz_free(points);
    char line[512];
    const bool healthy = mz_health_verdict(&log->health, line, sizeof line);
    add_histogram(t, log);
    mz_text_addf(t, "\"health\":{\"healthy\":%s,\"text\":", healthy ? "true" : "false");
    mz_json_add_text(t, line);
    mz_text_addf(t, "}}");
    return t->status;
}

// --- the page ------------------------------------------------------------------------------------------------------
static mezzo_status add_data(mz_text *t, const mz_run_log *logs, int n, const char *title) {
    mz_text json = {0};
    mz_text_addf(&json, "{");
    add_words(&json, "title", title);
    add_words(&json, "about", "mezzo " MEZZO_VERSION);
    mz_text_addf(&json, "\"runs\":[");
    mezzo_status status = MEZZO_OK;
    for (int i = 0; i < n && status == MEZZO_OK; i++) {
        if (i > 0)
            mz_text_addf(&json, ",");
        status = add_run(&json, &logs[i]);
    }
    mz_text_addf(&json, "]}");
    if (status == MEZZO_OK)
        status = json.status;
    // Inside a script element "</script" would end it; in JSON a '<' stands in strings only.
    for (size_t i = 0, from = 0; status == MEZZO_OK && i <= json.len; i++)
        if (i == json.len || json.data[i] == '<') {
            mz_text_add(t, json.data + from, i - from);
            if (i < json.len)
                mz_text_addf(t, "\\u003c");
            from = i + 1;
        }
    mz_text_free(&json);
    return status != MEZZO_OK ? status : t->status;
}

static void add_title(mz_text *t, const char *title) {
    for (const char *p = title; *p != '\0'; p++)
        if (*p == '<' || *p == '&')
            mz_text_addf(t, "&#%d;", *p);
        else
            mz_text_add(t, p, 1);
}

mezzo_status mz_run_page(const mz_run_log *logs, int n, const char *title, mz_text *html) {
    if (mz_page_chart_size == 0)
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "this build has no charting library: install libjs-chart.js and build again");
    const char *page = (const char *)mz_page_html, *end = page + mz_page_html_size;
    mezzo_status status = MEZZO_OK;
    while (page < end && status == MEZZO_OK) { // the template's @NAME@ stand where the parts go
        const char *at = memchr(page, '@', (size_t)(end - page));
        mz_text_add(html, page, (size_t)((at != NULL ? at : end) - page));
        if (at == NULL)
            break;
        const char *close = memchr(at + 1, '@', (size_t)(end - at - 1));
        size_t length = close != NULL ? (size_t)(close - at - 1) : 0;
        if (length == 3 && memcmp(at + 1, "CSS", length) == 0)
            mz_text_add(html, (const char *)mz_page_css, mz_page_css_size);
        else if (length == 2 && memcmp(at + 1, "JS", length) == 0)
            mz_text_add(html, (const char *)mz_page_js, mz_page_js_size);
        else if (length == 5 && memcmp(at + 1, "CHART", length) == 0)
            mz_text_add(html, (const char *)mz_page_chart, mz_page_chart_size);
        else if (length == 5 && memcmp(at + 1, "TITLE", length) == 0)
            add_title(html, title);
        else if (length == 4 && memcmp(at + 1, "DATA", length) == 0)
            status = add_data(html, logs, n, title);
        page = close != NULL ? close + 1 : end;
    }
    return status != MEZZO_OK ? status : html->status;
}
