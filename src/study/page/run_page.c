#include "study/page/run_log.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"
#include "mezzo/model.h"
#include "mezzo/train.h"
#include "study/page/page_text.h"
#include "train/config.h"
#include "train/health.h"

enum { BUCKETS = 1000, CONFIG_BYTES_MAX = 1 << 20, SHEETS = 12, SHEET_BYTES_MAX = 8 << 20 };

extern const unsigned char mz_page_html[], mz_page_js[];
extern const size_t mz_page_html_size, mz_page_js_size;
extern const char mz_page_js_sha256[];
#ifdef MEZZO_CHARTS
extern const unsigned char mz_page_chart[];
extern const size_t mz_page_chart_size;
extern const char mz_page_chart_sha256[];
#else // the build found no charting library
static const unsigned char mz_page_chart[1];
static const size_t mz_page_chart_size = 0;
static const char mz_page_chart_sha256[65];
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

// Marks where the count of skipped steps rose, and by how much.
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

// Adds the sheet's file within the page itself; one that is missing, or outside the run's folder, is left out.
static void add_sheet(mz_text *t, const mz_run_log *log, const mz_run_text *sheet, int *n) {
    if (sheet->text[0] == '/' || strstr(sheet->text, "..") != NULL)
        return;
    char *bytes = NULL;
    size_t size = 0;
    const mz_path path = mz_path_of("%s/%s", log->folder, sheet->text);
    if (mz_file_read(path.text, SHEET_BYTES_MAX, &bytes, &size) == MEZZO_OK) {
        mz_text_addf(t, "%s[%lld,\"data:image/png;base64,", (*n)++ > 0 ? "," : "", (long long)sheet->step);
        mz_page_add_base64(t, (const unsigned char *)bytes, size);
        mz_text_addf(t, "\"]");
    }
    mz_free(bytes);
}

// Adds all sheets of pictures, or the first, the last and some between.
static void add_pictures(mz_text *t, const mz_run_log *log) {
    const mz_run_texts *sheets = mz_run_log_texts(log, "sample/picture");
    const size_t all = sheets != NULL ? sheets->n : 0, shown = all < SHEETS ? all : SHEETS;
    int n = 0;
    mz_text_addf(t, "\"pictures\":[");
    for (size_t k = 0; k < shown; k++)
        add_sheet(t, log, &sheets->items[shown > 1 ? k * (all - 1) / (shown - 1) : 0], &n);
    mz_text_addf(t, "],");
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

// Adds the texts "EXPONENT:COUNT EXPONENT:COUNT …" of the gradients' magnitudes as one table over all exponents that
// occur.
static void add_histogram(mz_text *t, const mz_run_log *log) {
    long low = LONG_MAX, high = LONG_MIN;
    const mz_run_texts *texts = mz_run_log_texts(log, "gradients/log2_counts");
    for (int pass = 0; pass < 3; pass++) { // first the range, then the steps, then the counts
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

// --- the precision table: an op that occurs in every block is one row with its count --------------------------------
typedef struct op_row {
    char op[32], module[64], storage[16], compute[16], accumulate[16], reduce[16], rule[160];
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
    mz_run_config c;
    mz_session_options o;
    mezzo_graph *graph;
    MEZZO_TRY(mz_run_config_read(config, &c));
    MEZZO_TRY(mz_run_config_sketch(&c, &o));
    o.form.batch = 1;
    if (precision != NULL)
        MEZZO_TRY(mezzo_precision_parse(precision, &o.program.precision));
    MEZZO_TRY(mz_session_graph(&o, &o.form, &graph));
    mezzo_status status = mezzo_graph_explain(graph, &o.program, "autocast", keep_op, rows);
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

// Adds the keys with which the head describes a run.
static void add_settings(mz_text *t, const mezzo_config *config) {
    static const char *const keys[] = {"data.path",      "data.train",       "data.val",         "data.features",
                                       "data.latents",   "data.tokenizer",   "model.seq_len",    "train.steps",
                                       "train.seed",     "train.batch_size", "train.grad_accum", "train.global_batch",
                                       "optimizer.kind", "optimizer.lr"};
    mz_text_addf(t, "\"settings\":{");
    for (size_t i = 0; config != NULL && i < MZ_COUNT(keys); i++) {
        const char *value = mezzo_config_get(config, keys[i]);
        mz_text_addf(t, "%s", i > 0 ? "," : "");
        add_key(t, keys[i]);
        mz_json_add_text(t, value != NULL ? value : "");
    }
    mz_text_addf(t, "},");
}

// Adds config.yaml and what follows from it. A folder without one gives no table; nor does a file that this version
// cannot read, which is reported.
static mezzo_status add_config(mz_text *t, const mz_run_log *log) {
    const mz_path place = mz_path_of("%s/config.yaml", log->folder);
    const char *path = place.text;
    char *text = NULL;
    size_t size;
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
    if (status != MEZZO_OK && status != MEZZO_ERR_MEMORY) {
        mz_log("notice", "%s: the page has no precision table: %s", mz_quote(path).text, mezzo_error_message());
        status = MEZZO_OK;
    }
    add_words(t, "config", text);
    add_settings(t, config);
    add_ops(t, &rows);
    mz_free(rows.rows);
    mezzo_config_free(config);
    mz_free(text);
    return status;
}

// --- the head ------------------------------------------------------------------------------------------------------
// Finds when the run first opened TensorBoard's file, whose name has it in seconds since 1970; 0: there is none.
static mezzo_status find_start(const char *folder, long long *start) {
    static const char prefix[] = "events.out.tfevents.";
    char **names;
    size_t n;
    *start = 0;
    MEZZO_TRY(mz_dir_list(folder, &names, &n));
    for (size_t i = 0; i < n; i++)
        if (strncmp(names[i], prefix, sizeof prefix - 1) == 0) {
            const long long at = strtoll(names[i] + sizeof prefix - 1, NULL, 10);
            *start = *start == 0 || (at > 0 && at < *start) ? at : *start;
        }
    mz_dir_list_free(names, n);
    return MEZZO_OK;
}

static mezzo_status add_dates(mz_text *t, const mz_run_log *log) {
    long long start;
    struct stat info;
    MEZZO_TRY(find_start(log->folder, &start));
    const bool there = stat(mz_path_of("%s/metrics.jsonl", log->folder).text, &info) == 0;
    mz_text_addf(t, "\"started\":%lld,\"written\":%lld,", start, there ? (long long)info.st_mtime : 0);
    return MEZZO_OK;
}

static const char *const validations[] = {"val/loss", "val/sampled_loss"};

static void add_losses(mz_text *t, const mz_run_log *log) {
    const mz_series *train = mz_run_log_find(log, "train/loss");
    add_member(t, "loss", mz_series_last(train));
    add_member(t, "end_loss", mz_series_end(train, INT64_MAX));
    mz_text_addf(t, "\"validations\":[");
    for (size_t i = 0, n = 0; i < MZ_COUNT(validations); i++) {
        const mz_series *val = mz_run_log_find(log, validations[i]);
        if (val == NULL)
            continue;
        mz_text_addf(t, "%s{\"step\":%lld,", n++ > 0 ? "," : "", (long long)val->last_step);
        add_words(t, "name", validations[i]);
        add_member(t, "last", mz_series_last(val));
        add_key(t, "least");
        add_number(t, mz_series_least(val));
        mz_text_addf(t, "}");
    }
    mz_text_addf(t, "],");
}

static mezzo_status add_speed(mz_text *t, const mz_run_log *log) {
    const char *unit = mz_run_log_unit(log);
    char rate[64], total[64];
    double middle;
    snprintf(rate, sizeof rate, "perf/%s_per_second", unit);
    snprintf(total, sizeof total, "train/%s", unit);
    MEZZO_TRY(mz_series_middle(mz_run_log_find(log, rate), &middle));
    const double items = mz_series_last(mz_run_log_find(log, total));
    add_words(t, "unit", unit);
    add_member(t, "speed", log->step_seconds > 0 ? items / log->step_seconds : (double)NAN);
    add_member(t, "middle_speed", middle);
    add_member(t, "seconds", log->step_seconds > 0 ? log->step_seconds : (double)NAN);
    return MEZZO_OK;
}

// --- differences from the first run: at the last step that both have, and at all such steps -------------------------
static mezzo_status add_difference(mz_text *t, const char *name, const mz_series *a, const mz_series *b, bool *any,
                                   mz_point *points) {
    mz_series difference = {0};
    mezzo_status status = a != NULL && b != NULL ? mz_series_subtract(a, b, &difference) : MEZZO_OK;
    if (status == MEZZO_OK && difference.n > 0) {
        mz_text_addf(t, "%s", *any ? "," : "");
        add_key(t, name);
        add_points(t, &difference, points);
        *any = true;
    }
    mz_series_free(&difference);
    return status;
}

static void add_meeting(mz_text *t, const char *name, int64_t step, double first, double own) {
    mz_text_addf(t, "{\"step\":%lld,", (long long)step);
    add_words(t, "name", name);
    add_member(t, "first", first);
    add_key(t, "own");
    add_number(t, own);
    mz_text_addf(t, "}");
}

static mezzo_status add_comparison(mz_text *t, const mz_run_log *first, const mz_run_log *log, mz_point *points) {
    const bool alike = strcmp(mz_run_log_unit(first), mz_run_log_unit(log)) == 0; // both losses count the same unit
    const mz_series *a = alike ? mz_run_log_find(first, "train/loss") : NULL, *b = mz_run_log_find(log, "train/loss");
    int64_t step = mz_series_last_common(a, b);
    bool any = step >= 0;
    mz_text_addf(t, "\"meetings\":[");
    if (any)
        add_meeting(t, "train/loss", step, mz_series_end(a, step), mz_series_end(b, step));
    for (size_t i = 0; i < MZ_COUNT(validations); i++) {
        const mz_series *x = alike ? mz_run_log_find(first, validations[i]) : NULL,
                        *y = mz_run_log_find(log, validations[i]);
        step = mz_series_last_common(x, y);
        if (step < 0)
            continue;
        mz_text_addf(t, "%s", any ? "," : "");
        add_meeting(t, validations[i], step, mz_series_at(x, step), mz_series_at(y, step));
        any = true;
    }
    mz_text_addf(t, "],\"differences\":{");
    any = false;
    MEZZO_TRY(add_difference(t, "train/loss", b, a, &any, points));
    for (size_t i = 0; i < MZ_COUNT(validations); i++)
        MEZZO_TRY(add_difference(t, validations[i], mz_run_log_find(log, validations[i]),
                                 alike ? mz_run_log_find(first, validations[i]) : NULL, &any, points));
    mz_text_addf(t, "},");
    return MEZZO_OK;
}

static mezzo_status add_run(mz_text *t, const mz_run_log *first, const mz_run_log *log, mz_point *points) {
    const char *slash = strrchr(log->folder, '/');
    char line[512];
    const bool healthy = mz_health_verdict(&log->health, line, sizeof line);
    mz_text_addf(t, "{");
    add_words(t, "name", slash != NULL && slash[1] != '\0' ? slash + 1 : log->folder);
    add_words(t, "precision", mz_run_log_text(log, "amp/precision"));
    add_words(t, "decision", mz_run_log_text(log, "run/precision"));
    add_words(t, "device", mz_run_log_text(log, "run/device"));
    add_words(t, "model", mz_run_log_text(log, "run/model"));
    add_member(t, "padding", mz_series_last(mz_run_log_find(log, "run/padding")));
    add_member(t, "padding_unpacked", mz_series_last(mz_run_log_find(log, "run/padding_unpacked")));
    add_member(t, "last_step", (double)log->last_step);
    add_member(t, "memory", mz_series_last(mz_run_log_find(log, "perf/memory_bytes")));
    add_member(t, "skipped", mz_series_last(mz_run_log_find(log, "amp/skipped_steps")));
    add_member(t, "bad", (double)log->bad);
    add_words(t, "first_bad", log->first_bad);
    MEZZO_TRY(add_dates(t, log));
    add_losses(t, log);
    MEZZO_TRY(add_speed(t, log));
    add_skips(t, log);
    add_samples(t, log);
    add_pictures(t, log);
    MEZZO_TRY(add_config(t, log));
    MEZZO_TRY(add_comparison(t, first, log, points));
    add_series(t, log, points);
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
    mz_point *points = mz_alloc(2 * BUCKETS + 2, sizeof *points);
    mezzo_status status = points != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    for (int i = 0; i < n && status == MEZZO_OK; i++) {
        mz_text_addf(&json, "%s", i > 0 ? "," : "");
        status = add_run(&json, &logs[0], &logs[i], points);
    }
    mz_free(points);
    mz_text_addf(&json, "]}");
    if (status == MEZZO_OK)
        status = json.status;
    // Within a script element "</script" would end it; in JSON a '<' occurs only in strings.
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

// Adds the policy: the browser may run and load nothing but the parts of which the page was made.
static void add_policy(mz_text *t) {
    mz_text_addf(t, "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; style-src ");
    mz_page_add_hash(t, mz_page_css_sha256);
    mz_text_addf(t, "; script-src ");
    mz_page_add_hash(t, mz_page_chart_sha256);
    mz_text_addf(t, " ");
    mz_page_add_hash(t, mz_page_js_sha256);
}

typedef struct page_source {
    const mz_run_log *logs;
    int n;
    const char *title;
} page_source;

// Writes the part for @NAME@ in the template.
static mezzo_status add_part(mz_text *t, const char *name, const page_source *from) {
    const struct {
        const char *name;
        const unsigned char *bytes;
        size_t size;
    } files[] = {{"CSS", mz_page_css, mz_page_css_size},
                 {"JS", mz_page_js, mz_page_js_size},
                 {"CHART", mz_page_chart, mz_page_chart_size}};
    for (size_t i = 0; i < MZ_COUNT(files); i++)
        if (strcmp(files[i].name, name) == 0)
            mz_text_add(t, (const char *)files[i].bytes, files[i].size);
    if (strcmp(name, "TITLE") == 0)
        mz_page_add_escaped(t, from->title);
    if (strcmp(name, "POLICY") == 0)
        add_policy(t);
    return strcmp(name, "DATA") == 0 ? add_data(t, from->logs, from->n, from->title) : t->status;
}

mezzo_status mz_run_page(const mz_run_log *logs, int n, const char *title, mz_text *html) {
    const page_source from = {logs, n, title};
    if (mz_page_chart_size == 0)
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "this build has no charting library: install libjs-chart.js and build again");
    const char *page = (const char *)mz_page_html, *end = page + mz_page_html_size;
    mezzo_status status = MEZZO_OK;
    while (page < end && status == MEZZO_OK) {
        const char *at = memchr(page, '@', (size_t)(end - page));
        mz_text_add(html, page, (size_t)((at != NULL ? at : end) - page));
        if (at == NULL)
            break;
        const char *close = memchr(at + 1, '@', (size_t)(end - at - 1));
        char name[16] = "";
        if (close != NULL)
            snprintf(name, sizeof name, "%.*s", (int)(close - at - 1), at + 1);
        status = add_part(html, name, &from);
        page = close != NULL ? close + 1 : end;
    }
    return status != MEZZO_OK ? status : html->status;
}
