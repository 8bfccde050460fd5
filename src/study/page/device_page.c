#include "study/page/page_text.h"

// The page's head, a format that takes the title twice; a per cent sign of the style is therefore doubled.
static const char head[] = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>%s</title>\n"
                           "<meta name=\"viewport\" content=\"width=device-width\">\n"
                           "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; base-uri "
                           "'none'; form-action 'none'; style-src 'unsafe-inline'\">\n"
                           "<style>:root{color-scheme:light dark}body{font:15px/1.5 "
                           "system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 "
                           "1rem}div{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
                           "th,td{text-align:left;padding:.2rem .8rem .2rem 0;border-bottom:1px solid "
                           "#8884;vertical-align:top}tr.wrong{background:#d332}pre{white-space:pre-wrap;overflow-wrap:"
                           "anywhere}</style></head><body>\n"
                           "<h1>%s</h1>\n";

static void add_words(mz_text *t, const char *key) { // turns "step_ms" into "step ms"
    for (const char *p = key; *p != '\0'; p++)
        if (*p == '_')
            mz_text_add(t, " ", 1);
        else
            mz_page_add_escaped(t, (const char[]){*p, '\0'});
}

// Adds "1.5 (1.4 to 1.6)" for an object with a value and its interval, and a dash where they are not known.
static bool add_measured(mz_text *t, const json_t *object) {
    static const char *const keys[] = {"value", "low", "high"};
    double x[3];
    int known = 0;
    for (int i = 0; i < 3; i++) {
        const json_t *member = json_object_get(object, keys[i]);
        if (!json_is_number(member) && !json_is_null(member))
            return false;
        known += json_is_number(member);
        x[i] = json_number_value(member);
    }
    if (known == 3)
        mz_text_addf(t, "%.4g (%.4g to %.4g)", x[0], x[1], x[2]);
    else
        mz_text_addf(t, "–");
    return true;
}

static void add_value(mz_text *t, const json_t *value) {
    const char *key;
    json_t *member;
    switch (json_typeof(value)) {
    case JSON_STRING:
        mz_page_add_escaped(t, json_string_value(value));
        break;
    case JSON_INTEGER:
        mz_text_addf(t, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        mz_text_addf(t, "%.6g", json_real_value(value));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        mz_text_addf(t, "%s", json_is_true(value) ? "yes" : "no");
        break;
    case JSON_OBJECT:
        if (add_measured(t, value))
            break;
        json_object_foreach((json_t *)value, key, member) {
            add_words(t, key);
            mz_text_addf(t, ": ");
            add_value(t, member);
            mz_text_addf(t, "<br>");
        }
        break;
    default:
        mz_text_addf(t, "–");
    }
}

static void add_pairs(mz_text *t, const json_t *object) {
    const char *key;
    json_t *value;
    mz_text_addf(t, "<div><table>\n");
    json_object_foreach((json_t *)object, key, value) {
        mz_text_addf(t, "<tr><th>");
        add_words(t, key);
        mz_text_addf(t, "</th><td>");
        add_value(t, value);
        mz_text_addf(t, "</td></tr>\n");
    }
    mz_text_addf(t, "</table></div>\n");
}

static void add_rows(mz_text *t, const json_t *rows) {
    const char *key;
    json_t *value;
    mz_text_addf(t, "<div><table>\n<tr>");
    json_object_foreach(json_array_get(rows, 0), key, value) {
        mz_text_addf(t, "<th>");
        add_words(t, key);
        mz_text_addf(t, "</th>");
    }
    mz_text_addf(t, "</tr>\n");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        mz_text_addf(t, json_is_false(json_object_get(row, "passed")) ? "<tr class=\"wrong\">" : "<tr>");
        json_object_foreach(row, key, value) {
            mz_text_addf(t, "<td>");
            add_value(t, value);
            mz_text_addf(t, "</td>");
        }
        mz_text_addf(t, "</tr>\n");
    }
    mz_text_addf(t, "</table></div>\n");
}

mezzo_status mz_json_page(const char *title, const json_t *report, mz_text *html) {
    const char *key;
    json_t *section;
    char *json = NULL;
    MEZZO_TRY(mz_json_dump(report, JSON_INDENT(1), &json));
    mz_text_addf(html, head, title, title);
    json_object_foreach((json_t *)report, key, section) {
        mz_text_addf(html, "<h2>");
        add_words(html, key);
        mz_text_addf(html, "</h2>\n");
        if (json_is_object(section)) {
            add_pairs(html, section);
        } else if (json_is_array(section)) {
            add_rows(html, section);
        } else {
            mz_text_addf(html, "<p>");
            add_value(html, section);
            mz_text_addf(html, "</p>\n");
        }
    }
    mz_text_addf(html, "<details><summary>The same as JSON</summary><pre>");
    mz_page_add_escaped(html, json);
    mz_text_addf(html, "</pre></details>\n</body></html>\n");
    free(json);
    return html->status;
}
