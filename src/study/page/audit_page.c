#include "study/page/audit_page.h"

#include <math.h>

#include "study/page/page_text.h"

static void add_fact(mz_text *t, const char *name, const char *value) {
    mz_text_addf(t, "<div><dt>%s</dt><dd class=\"value\">", name);
    mz_page_add_escaped(t, value);
    mz_text_addf(t, "</dd></div>");
}

static void add_head(mz_text *t, const mz_audit_report *r) {
    const mz_torch_trace *first = &r->traces[0];
    char text[700];
    mz_text_addf(t, "<section aria-label=\"Summary\"><dl class=\"facts\">");
    snprintf(text, sizeof text, "%d steps, %d of %d ranks", first->steps, r->n, first->world);
    add_fact(t, "followed", text);
    snprintf(text, sizeof text, "%.100s on %.100s, %.200s", first->torch, first->device, first->device_name);
    add_fact(t, "torch", text);
    snprintf(text, sizeof text, "%.3g ms%s", 1e3 * r->costs->step,
             r->costs->with_hooks ? ", with the recorder in it" : "");
    add_fact(t, "step", text);
    snprintf(text, sizeof text, "%.3g ms", 1e3 * first->followed_seconds);
    add_fact(t, "step while it was followed", text);
    add_fact(t, "autocast asks for", mz_torch_dtype_name(r->audit->asked));
    snprintf(text, sizeof text, "%.0f %%", 100 * r->audit->low_share);
    add_fact(t, "of the forward FLOPs in 16 bits", text);
    mz_text_addf(t, "</dl></section>\n");
}

static void add_findings(mz_text *t, const mz_audit_report *r) {
    mz_text_addf(t, "<section><h2>Findings</h2>\n");
    if (r->audit->n_findings == 0)
        mz_text_addf(t, "<p>No conflict.</p>\n");
    for (size_t i = 0; i < r->audit->n_findings; i++) {
        const mz_audit_finding *f = &r->audit->findings[i];
        const mz_rule *rule = mz_rule_of(f->rule);
        mz_text_addf(t, "<h3>%s%s: ", rule->conflict ? "" : "note, ", rule->name);
        mz_page_add_escaped(t, f->file[0] != '\0' ? f->file : "the program");
        if (f->file[0] != '\0')
            mz_text_addf(t, ":%d", f->line);
        mz_text_addf(t, f->ranks > 1 ? " (%d ranks)</h3>\n<p>" : "</h3>\n<p>", f->ranks);
        mz_page_add_escaped(t, rule->what);
        if (f->inner[0] != '\0') {
            mz_text_addf(t, ".</p>\n<p><small>inside</small>");
            mz_page_add_escaped(t, f->inner);
        }
        mz_text_addf(t, ".</p>\n<p><small>seen</small>");
        mz_page_add_escaped(t, f->numbers);
        mz_text_addf(t, "</p>\n<p><small>why</small>");
        mz_page_add_escaped(t, rule->why);
        if (f->change[0] != '\0') {
            mz_text_addf(t, "</p>\n<p><small>change</small>");
            mz_page_add_escaped(t, f->change);
        }
        mz_text_addf(t, "</p>\n");
    }
    mz_text_addf(t, "</section>\n");
}

static void add_costs(mz_text *t, const mz_audit_report *r) {
    mz_text_addf(
        t, "<section><h2>What this step would cost</h2>\n<div class=\"wide\"><table><thead><tr><th>precision</th><th "
           "class=\"number\">ms/step</th><th class=\"number\">at least</th><th class=\"number\">at most</th><th "
           "class=\"number\">times as fast</th></tr></thead><tbody>\n");
    for (int f = 0; f < MZ_TORCH_FORMATS; f++) {
        const mz_torch_cost *c = &r->costs->rows[f];
        if (c->known)
            mz_text_addf(t,
                         "<tr><td>%s%s</td><td class=\"number\">%.3g</td><td class=\"number\">%.3g</td><td "
                         "class=\"number\">%.3g</td><td class=\"number\">%.2f</td></tr>\n",
                         c->format, c->now ? ", as it is" : ", predicted", 1e3 * c->seconds, 1e3 * c->least,
                         1e3 * c->most, c->speedup);
    }
    mz_text_addf(t, "</tbody></table></div>\n");
    if (r->costs->launch_bound)
        mz_text_addf(
            t, "<p class=\"note\">The GPU waits for the program: faster operations do not shorten this step.</p>\n");
    mz_text_addf(t, "</section>\n");
}

static void add_kernels(mz_text *t, const mz_audit_report *r) {
    const mz_torch_kernels *k = r->kernels;
    if (k == NULL || k->n_shapes == 0)
        return;
    mz_text_addf(
        t, "<section><h2>Its products in Mezzo's kernels</h2>\n<p class=\"note\">%d shapes, %.0f %% of the FLOPs, on ",
        k->n_shapes, 100 * k->share);
    mz_page_add_escaped(t, r->device);
    mz_text_addf(t, "</p>\n<div class=\"wide\"><table><thead><tr><th>precision</th><th "
                    "class=\"number\">ms/step</th></tr></thead><tbody>\n");
    if (!isnan(k->torch_seconds))
        mz_text_addf(t, "<tr><td>the program</td><td class=\"number\">%.3g</td></tr>\n", 1e3 * k->torch_seconds);
    for (int p = 0; p < MEZZO_PRECISION_COUNT; p++)
        if (k->seconds[p] > 0)
            mz_text_addf(t, "<tr><td>%s</td><td class=\"number\">%.3g</td></tr>\n",
                         mezzo_precision_name((mezzo_precision)p), 1e3 * k->seconds[p]);
    mz_text_addf(t, "</tbody></table></div></section>\n");
}

mezzo_status mz_audit_page(const mz_audit_report *r, mz_text *t) {
    mz_text_addf(t, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
                    "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; base-uri 'none'; form-action "
                    "'none'; style-src ");
    mz_page_add_hash(t, mz_page_css_sha256);
    mz_text_addf(t,
                 "\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta "
                 "name=\"color-scheme\" content=\"light dark\">\n<title>Audit of a PyTorch program</title>\n<style>");
    mz_text_add(t, (const char *)mz_page_css, mz_page_css_size);
    mz_text_addf(
        t, "</style>\n</head>\n<body>\n<header><h1>Audit of a PyTorch program: %d conflict%s</h1></header>\n<main>\n",
        r->audit->n_conflicts, r->audit->n_conflicts == 1 ? "" : "s");
    add_head(t, r);
    add_findings(t, r);
    add_costs(t, r);
    add_kernels(t, r);
    mz_text_addf(t, "</main>\n</body>\n</html>\n");
    return t->status;
}
