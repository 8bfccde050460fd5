// Writes a profile: trace.json, ops.csv, index.html, and the ten ops that are most worth improving.
#include <math.h>
#include <stdlib.h>

#include "io/file.h"
#include "io/json.h"
#include "train/profile.h"

enum { WORTH = 10 };

// --- rows: calls of one op in one module of the blocks, with the same kernel and tensors ----------------------------
typedef struct row {
    const mz_profile_event *of;
    char module[128];
    int64_t calls;
    double seconds, floor, flops, bytes; // sums over all steps
} row;

typedef struct rows {
    row *list;
    size_t n, cap;
    double seconds; // sum over all calls
} rows;

static bool same(const row *r, const mz_profile_event *e, const char *module) {
    return strcmp(r->of->name, e->name) == 0 && strcmp(r->of->phase, e->phase) == 0 && strcmp(r->module, module) == 0 &&
           strcmp(r->of->kernel, e->kernel) == 0 && strcmp(r->of->tensors, e->tensors) == 0;
}

static double above_floor(const row *r) {
    return r->seconds > r->floor ? r->seconds - r->floor : 0;
}

static int most_above_floor(const void *a, const void *b) {
    double x = above_floor(a), y = above_floor(b);
    return (x < y) - (x > y);
}

static mezzo_status collect(const mz_profile_view *v, rows *out) {
    for (size_t i = 0; i < v->n; i++) {
        const mz_profile_event *e = &v->events[i];
        char module[sizeof out->list->module];
        size_t k = 0;
        if (e->host)
            continue;
        mz_star_numbers(e->module, module, sizeof module);
        while (k < out->n && !same(&out->list[k], e, module))
            k++;
        if (k == out->n) {
            MEZZO_TRY(MZ_RESERVE(out->list, out->cap, out->n + 1));
            out->list[out->n] = (row){.of = e};
            memcpy(out->list[out->n++].module, module, sizeof module);
        }
        row *r = &out->list[k];
        r->calls++;
        r->seconds += e->seconds;
        r->floor += e->floor;
        r->flops += e->flops;
        r->bytes += e->bytes;
        out->seconds += e->seconds;
    }
    if (out->n > 0)
        qsort(out->list, out->n, sizeof *out->list, most_above_floor);
    return MEZZO_OK;
}

static const char *bound(const mz_profile_event *e) {
    return e->floor <= 0 ? "-" : e->arithmetic ? "arithmetic" : "memory";
}

// --- trace.json: Chrome's trace event format, complete events ("ph": "X"), times in microseconds --------------------
enum { DEVICE = 1, HOST };

static void add_name(mz_text *t, const char *what, int process, int thread, const char *name) {
    mz_text_addf(t, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":0,\"args\":{\"name\":", what, process,
                 thread);
    mz_json_add_text(t, name);
    mz_text_addf(t, "}},\n");
}

static void add_text(mz_text *t, const char *key, const char *text) {
    mz_text_addf(t, ",\"%s\":", key);
    mz_json_add_text(t, text);
}

static void add_call(mz_text *t, const mz_profile_event *e) {
    mz_text_addf(t, ",\"args\":{\"step\":%lld", (long long)e->step);
    add_text(t, "module", e->module);
    add_text(t, "kernel", e->kernel);
    add_text(t, "tensors", e->tensors);
    mz_text_addf(t, ",\"bytes\":%.0f,\"flops\":%.0f", e->bytes, e->flops);
    if (e->flops > 0) {
        add_text(t, "compute", mezzo_dtype_name(e->compute));
        mz_text_addf(t, ",\"gflops_per_second\":%.1f", e->seconds > 0 ? 1e-9 * e->flops / e->seconds : 0);
    }
    mz_text_addf(t, ",\"gigabytes_per_second\":%.1f", e->seconds > 0 ? 1e-9 * e->bytes / e->seconds : 0);
    if (e->floor > 0)
        mz_text_addf(t, ",\"floor_us\":%.3f,\"share_of_peak\":%.4f,\"bound\":\"%s\"", 1e6 * e->floor,
                     e->seconds > 0 ? e->floor / e->seconds : 0, bound(e));
    mz_text_addf(t, "}");
}

static void add_event(mz_text *t, const mz_profile_event *e) {
    mz_text_addf(t, ",\n{\"ph\":\"X\",\"name\":");
    mz_json_add_text(t, e->name);
    mz_text_addf(t, ",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f", e->host ? "host" : e->phase,
                 e->host ? HOST : DEVICE, e->host ? 0 : e->stream, 1e6 * e->start, 1e6 * e->seconds);
    if (e->host)
        mz_text_addf(t, ",\"args\":{\"step\":%lld}", (long long)e->step);
    else
        add_call(t, e);
    mz_text_addf(t, "}");
}

static mezzo_status write_text(const char *folder, const char *name, mz_text *t) {
    return mz_text_save(t, mz_path_of("%s/%s", folder, name).text);
}

static mezzo_status write_trace(const mz_profile_view *v, const char *folder) {
    static const char *const lanes[MZ_STREAMS] = {"main", "side: weight gradients", "collectives",
                                                  "deferred: optimizer updates"};
    mz_text t = {0};
    bool used[MZ_STREAMS] = {true};
    mz_text_addf(&t, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"precision\":\"%s\",\"model\":", v->precision);
    mz_json_add_text(&t, v->model);
    add_text(&t, "device", v->device);
    mz_text_addf(&t, "},\n\"traceEvents\":[\n");
    for (size_t i = 0; i < v->n; i++)
        if (!v->events[i].host)
            used[v->events[i].stream] = true;
    add_name(&t, "process_name", DEVICE, 0, "device");
    for (int l = 0; l < MZ_STREAMS; l++)
        if (used[l])
            add_name(&t, "thread_name", DEVICE, l, lanes[l]);
    add_name(&t, "process_name", HOST, 0, "host");
    mz_text_addf(
        &t, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":0,\"ts\":0,\"args\":{\"name\":\"training\"}}",
        HOST);
    for (size_t i = 0; i < v->n; i++)
        add_event(&t, &v->events[i]);
    mz_text_addf(&t, "\n]}\n");
    return write_text(folder, "trace.json", &t);
}

// --- ops.csv -------------------------------------------------------------------------------------------------------
static mezzo_status write_csv(const mz_profile_view *v, const rows *r, const char *folder) {
    mz_text t = {0};
    double steps = (double)v->steps;
    mz_text_addf(&t, "op,module,phase,kernel,tensors,calls_per_step,ms_per_step,floor_ms_per_step,flops_per_step,"
                     "bytes_per_step,share_of_peak,bound\n");
    for (size_t i = 0; i < r->n; i++) {
        const row *x = &r->list[i];
        mz_text_addf(&t, "%s,%s,%s,%s,\"%s\",%g,%.6f,%.6f,%.0f,%.0f,%.4f,%s\n", x->of->name, x->module, x->of->phase,
                     x->of->kernel, x->of->tensors, (double)x->calls / steps, 1e3 * x->seconds / steps,
                     1e3 * x->floor / steps, x->flops / steps, x->bytes / steps,
                     x->seconds > 0 ? x->floor / x->seconds : 0, bound(x->of));
    }
    return write_text(folder, "ops.csv", &t);
}

// --- the table -----------------------------------------------------------------------------------------------------
static void add_table(const mz_profile_view *v, const rows *r, const char *folder, mz_text *t) {
    double steps = (double)v->steps;
    mz_text_addf(t, "profile of steps %lld to %lld: %.3f ms/step, %.3f ms of it in ops%s\n", (long long)v->first_step,
                 (long long)(v->first_step + v->steps - 1), 1e3 * v->seconds / steps, 1e3 * r->seconds / steps,
                 v->queue ? ", one after the other" : "");
    mz_text_addf(t, "%-20s %-24s %-9s %6s %9s %6s %9s %6s  %s\n", "op", "module", "phase", "calls", "ms", "share",
                 "floor ms", "peak", "bound by");
    for (size_t i = 0; i < r->n && i < WORTH; i++) {
        const row *x = &r->list[i];
        mz_text_addf(t, "%-20s %-24s %-9s %6g %9.3f %5.1f%% %9.3f ", x->of->name, x->module, x->of->phase,
                     (double)x->calls / steps, 1e3 * x->seconds / steps, 100 * x->seconds / r->seconds,
                     1e3 * x->floor / steps);
        if (x->floor > 0)
            mz_text_addf(t, "%5.0f%%  %s\n", 100 * x->floor / x->seconds, bound(x->of));
        else
            mz_text_addf(t, "%6s  -\n", "-");
    }
    mz_text_addf(t, "%s/trace.json opens in Perfetto and chrome://tracing, %s/index.html in any browser", folder,
                 folder);
}

// --- index.html ----------------------------------------------------------------------------------------------------
static void add_escaped(mz_text *t, const char *text) {
    for (const char *p = text; *p != '\0'; p++)
        if (strchr("<>&\"", *p) != NULL)
            mz_text_addf(t, "&#%d;", *p);
        else
            mz_text_add(t, p, 1);
}

static const struct {
    const char *phase, *colour;
} phases[] = {{"forward", "#0072b2"}, {"recompute", "#56b4e9"}, {"backward", "#d55e00"}, {"update", "#009e73"}};

static const char *colour_of(const char *phase) {
    const size_t i = MZ_INDEX(phases, MZ_COUNT(phases), phase, phase);
    return i < MZ_COUNT(phases) ? phases[i].colour : "#999999";
}

static void add_phases(mz_text *t, const mz_profile_view *v, const rows *r) {
    mz_text_addf(t, "<h2>Phases</h2>\n<table><tr><th></th><th>phase</th><th>ms/step</th><th>share</th></tr>\n");
    for (size_t p = 0; p < MZ_COUNT(phases); p++) {
        double seconds = 0;
        for (size_t i = 0; i < r->n; i++)
            seconds += strcmp(r->list[i].of->phase, phases[p].phase) == 0 ? r->list[i].seconds : 0;
        if (seconds > 0)
            mz_text_addf(t,
                         "<tr><td><span class=\"swatch\" style=\"background:%s\"></span></td><td>%s</td><td>%.3f</td>"
                         "<td>%.1f %%</td></tr>\n",
                         phases[p].colour, phases[p].phase, 1e3 * seconds / (double)v->steps,
                         100 * seconds / r->seconds);
    }
    mz_text_addf(t, "</table>\n");
}

// Draws the first step, with one bar for each call.
static void add_timeline(mz_text *t, const mz_profile_view *v) {
    enum { WIDTH = 1200, LANE = 26 };
    double from = INFINITY, to = 0;
    int lanes = 1;
    for (size_t i = 0; i < v->n; i++) {
        const mz_profile_event *e = &v->events[i];
        if (e->step != v->first_step || e->host)
            continue;
        from = e->start < from ? e->start : from;
        to = e->start + e->seconds > to ? e->start + e->seconds : to;
        lanes = e->stream >= lanes ? e->stream + 1 : lanes;
    }
    if (!(to > from))
        return;
    double scale = WIDTH / (to - from);
    mz_text_addf(
        t,
        "<h2>Step %lld</h2>\n<div class=\"wide\"><svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"timeline of "
        "one step\">\n",
        (long long)v->first_step, WIDTH, lanes * LANE + 22);
    for (size_t i = 0; i < v->n; i++) {
        const mz_profile_event *e = &v->events[i];
        double width = e->seconds * scale;
        if (e->step != v->first_step || e->host)
            continue;
        mz_text_addf(t, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"><title>%s ",
                     (e->start - from) * scale, e->stream * LANE, width > 0.2 ? width : 0.2, LANE - 4,
                     colour_of(e->phase), e->name);
        add_escaped(t, e->module);
        mz_text_addf(t, ": %.3f ms</title></rect>\n", 1e3 * e->seconds);
    }
    mz_text_addf(
        t, "<text x=\"0\" y=\"%d\">0</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.3f ms</text></svg></div>\n",
        lanes * LANE + 16, WIDTH, lanes * LANE + 16, 1e3 * (to - from));
}

static void add_rows(mz_text *t, const mz_profile_view *v, const rows *r) {
    double steps = (double)v->steps;
    mz_text_addf(
        t, "<h2>Ops worth improving</h2>\n<p class=\"hint\">By the time above the floor: what the device's measured "
           "arithmetic and memory rates allow. ops.csv has them all.</p>\n<div class=\"wide\"><table><tr><th>op</th>"
           "<th>module</th><th>phase</th><th>calls</th><th>ms a step</th><th>share</th><th>floor, ms</th><th>of peak"
           "</th><th>bound by</th><th>kernel</th><th>tensors</th></tr>\n");
    for (size_t i = 0; i < r->n && i < WORTH; i++) {
        const row *x = &r->list[i];
        mz_text_addf(t, "<tr><td>%s</td><td>", x->of->name);
        add_escaped(t, x->module);
        mz_text_addf(t, "</td><td>%s</td><td>%g</td><td>%.3f</td><td>%.1f %%</td>", x->of->phase,
                     (double)x->calls / steps, 1e3 * x->seconds / steps, 100 * x->seconds / r->seconds);
        if (x->floor > 0)
            mz_text_addf(t, "<td>%.3f</td><td>%.0f %%</td>", 1e3 * x->floor / steps, 100 * x->floor / x->seconds);
        else
            mz_text_addf(t, "<td>-</td><td>-</td>");
        mz_text_addf(t, "<td>%s</td><td>%s</td><td>", bound(x->of), x->of->kernel);
        add_escaped(t, x->of->tensors);
        mz_text_addf(t, "</td></tr>\n");
    }
    mz_text_addf(t, "</table></div>\n");
}

static mezzo_status write_page(const mz_profile_view *v, const rows *r, const char *folder) {
    mz_text t = {0};
    mz_text_addf(
        &t,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" "
        "content=\"default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'\"><meta "
        "name=\"viewport\" content=\"width=device-width\"><title>Profile</title><style>\n"
        ":root{--back:#fff;--fore:#1c1e21;--soft:#5c6470;--line:#d7dbe0}\n"
        "@media(prefers-color-scheme:dark){:root{--back:#15171a;--fore:#e7e9ec;--soft:#a3abb6;--line:#363b42}}\n"
        "body{margin:0 auto;padding:1rem;max-width:1400px;background:var(--back);color:var(--fore);font:16px/1.5 "
        "system-ui,sans-serif}h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:1.5rem 0 .5rem}p{margin:"
        ".25rem 0}.hint{color:var(--soft);font-size:.875rem}table{border-collapse:collapse;font-size:.875rem;"
        "font-variant-numeric:tabular-nums}th,td{text-align:left;padding:.3rem .9rem .3rem 0;border-bottom:1px "
        "solid var(--line);white-space:nowrap}.wide{overflow-x:auto}svg{width:100%%;min-width:700px}svg text{font:"
        "12px system-ui,sans-serif;fill:var(--soft)}.swatch{display:inline-block;width:.8em;height:.8em;"
        "border-radius:2px}\n</style></head><body>\n<h1>Profile</h1>\n<p>");
    add_escaped(&t, v->model);
    mz_text_addf(&t, "; %s</p>\n<p>", v->precision);
    add_escaped(&t, v->device);
    mz_text_addf(&t, "</p>\n<p>%lld steps from step %lld on: %.3f ms/step, %.3f ms of it in ops.</p>\n",
                 (long long)v->steps, (long long)v->first_step, 1e3 * v->seconds / (double)v->steps,
                 1e3 * r->seconds / (double)v->steps);
    if (v->queue)
        mz_text_addf(&t, "<p class=\"hint\">Here ops ran one after the other. Steps that are not profiled are one "
                         "captured graph, whose streams run concurrently.</p>\n");
    add_phases(&t, v, r);
    add_timeline(&t, v);
    add_rows(&t, v, r);
    mz_text_addf(&t, "</body></html>\n");
    return write_text(folder, "index.html", &t);
}

mezzo_status mz_profile_write(const mz_profile_view *v, const char *folder, mz_text *table) {
    rows r = {0};
    mezzo_status status = collect(v, &r);
    if (status == MEZZO_OK)
        status = mz_dir_create(folder);
    if (status == MEZZO_OK)
        status = write_trace(v, folder);
    if (status == MEZZO_OK)
        status = write_csv(v, &r, folder);
    if (status == MEZZO_OK)
        status = write_page(v, &r, folder);
    if (status == MEZZO_OK) {
        add_table(v, &r, folder, table);
        status = table->status;
    }
    mz_free(r.list);
    return status;
}
