// Reads and writes rules.json, which analyze writes and advise reads.
#include <math.h>

#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"
#include "study/analyse/rules.h"

#define FORMAT  "mezzo-rules"
#define VERSION 1

static const char *const kind_names[] = {
    [MZ_RULE_ALWAYS] = "always", [MZ_RULE_NEVER] = "never", [MZ_RULE_FROM] = "from", [MZ_RULE_BELOW] = "below"};

static json_t *rule_json(const mz_rules *rules, const mz_rule *r) {
    char text[160];
    return json_pack("{s:I, s:I, s:s, s:o, s:s, s:I, s:I, s:o, s:o, s:o}", "d_model", (json_int_t)r->d_model,
                     "least_width", (json_int_t)r->least_width, "candidate", kind_names[r->kind], "threshold_tokens",
                     r->kind == MZ_RULE_FROM || r->kind == MZ_RULE_BELOW ? json_real(r->threshold) : json_null(),
                     "text", mz_rule_text(rules, r, text, sizeof text), "pairs", (json_int_t)r->n, "right",
                     (json_int_t)r->right, "mean_log_regret", mz_json_number(r->log_regret), "least_tokens",
                     mz_json_number(r->least_tokens), "most_tokens", mz_json_number(r->most_tokens));
}

static json_t *rules_json(const mz_rules *rules, const mz_score *cv) {
    json_t *list = json_array(), *cells = json_array();
    for (int i = 0; i < rules->n; i++)
        json_array_append_new(list, rule_json(rules, &rules->rules[i]));
    for (size_t i = 0; i < rules->n_cells; i++) {
        const mz_rule_cell *c = &rules->cells[i];
        json_array_append_new(cells, json_pack("[I, I, I, I, o, o]", (json_int_t)c->d_model, (json_int_t)c->tokens,
                                               (json_int_t)c->n, (json_int_t)c->wins, mz_json_number(c->speedup),
                                               mz_json_number(c->mem_saving_pct)));
    }
    json_t *score = cv == NULL
                        ? json_null()
                        : json_pack("{s:I, s:o, s:o}", "pairs", (json_int_t)cv->n, "accuracy",
                                    mz_json_number(cv->accuracy), "mean_log_regret", mz_json_number(cv->log_regret));
    return json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:o, s:o, s:o}", "format", FORMAT, "version", VERSION, "name",
                     rules->name, "baseline", rules->baseline, "candidate", rules->candidate, "source", rules->source,
                     "rules", list, "cross_validated", score, "cells_width_tokens_pairs_wins", cells);
}

mezzo_status mz_rules_save(const mz_rules *rules, const mz_score *cross_validated, const char *path) {
    json_t *o = rules_json(rules, cross_validated);
    if (o == NULL)
        return mz_fail(MEZZO_ERR_MEMORY, "out of memory while writing the rules, or a name in them is not UTF-8");
    return mz_json_save_owned(o, path);
}

// --- reading -------------------------------------------------------------------------------------------------------
static mezzo_status read_text(const char *where, const json_t *o, const char *key, char *out, size_t size) {
    const char *text;
    MEZZO_TRY(mz_json_get_string(where, o, key, &text));
    if (*text == '\0' || strlen(text) >= size)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s': a text of 1 to %zu bytes is expected", where, key, size - 1);
    snprintf(out, size, "%s", text);
    return MEZZO_OK;
}

static mezzo_status read_rule(const char *where, const json_t *o, mz_rule *r) {
    const int64_t most = INT64_C(1) << 40;
    const char *kind;
    *r = (mz_rule){0};
    if (!json_is_object(o))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'rules': each rule is an object", where);
    MEZZO_TRY(mz_json_get_int(where, o, "least_width", 1, most, &r->least_width));
    MEZZO_TRY(mz_json_get_string(where, o, "candidate", &kind));
    const size_t k = MZ_INDEX_WORD(kind_names, MZ_COUNT(kind_names), kind);
    if (k == MZ_COUNT(kind_names))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'candidate': it is always, never, from or below", where);
    r->kind = (mz_rule_kind)k;
    if (r->kind == MZ_RULE_FROM || r->kind == MZ_RULE_BELOW) {
        MEZZO_TRY(mz_json_get_double(where, o, "threshold_tokens", &r->threshold));
        if (!(r->threshold > 0 && r->threshold < 1e15))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'threshold_tokens': it is %g, and must be above 0", where,
                           r->threshold);
    }
    // A rule written by hand may leave out the pairs from which it was found.
    if (json_object_get(o, "d_model") != NULL)
        MEZZO_TRY(mz_json_get_int(where, o, "d_model", 0, most, &r->d_model));
    if (json_object_get(o, "pairs") != NULL)
        MEZZO_TRY(mz_json_get_int(where, o, "pairs", 0, most, &r->n));
    if (json_object_get(o, "right") != NULL)
        MEZZO_TRY(mz_json_get_int(where, o, "right", 0, r->n, &r->right));
    if (r->n > 0) {
        MEZZO_TRY(mz_json_get_double(where, o, "least_tokens", &r->least_tokens));
        MEZZO_TRY(mz_json_get_double(where, o, "most_tokens", &r->most_tokens));
        MEZZO_TRY(mz_json_get_double(where, o, "mean_log_regret", &r->log_regret));
    }
    return MEZZO_OK;
}

static double number_or_nan(const json_t *value) {
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static mezzo_status read_cells(const char *where, const json_t *list, mz_rules *out) {
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        json_t *cell = json_array_get(list, i);
        int64_t v[4] = {0};
        bool good =
            json_array_size(cell) == 4 || json_array_size(cell) == 6; // a cell has medians; older files lack them
        for (size_t k = 0; k < 4 && good; k++) {
            v[k] = json_integer_value(json_array_get(cell, k)); // 0 where it is no integer
            good = v[k] >= (k == 3 ? 0 : 1) && v[k] < INT64_C(1) << 40;
        }
        if (!good || v[3] > v[2])
            return mz_fail(MEZZO_ERR_FORMAT,
                           "%s: key 'cells_width_tokens_pairs_wins': element %zu is not [width, tokens, pairs, wins, "
                           "median speedup, median memory saving]",
                           where, i);
        MEZZO_TRY(MZ_RESERVE(out->cells, out->cap_cells, out->n_cells + 1));
        out->cells[out->n_cells++] = (mz_rule_cell){.d_model = v[0],
                                                    .tokens = v[1],
                                                    .n = v[2],
                                                    .wins = v[3],
                                                    .speedup = number_or_nan(json_array_get(cell, 4)),
                                                    .mem_saving_pct = number_or_nan(json_array_get(cell, 5))};
    }
    return MEZZO_OK;
}

static mezzo_status read_rules(const char *where, const json_t *o, mz_rules *out) {
    json_t *list;
    int64_t version;
    char format[32];
    MEZZO_TRY(read_text(where, o, "format", format, sizeof format));
    if (strcmp(format, FORMAT) != 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'format': expected \"" FORMAT "\": mezzo analyze writes such a file",
                       where);
    MEZZO_TRY(mz_json_get_int(where, o, "version", VERSION, VERSION, &version));
    MEZZO_TRY(read_text(where, o, "name", out->name, sizeof out->name));
    MEZZO_TRY(read_text(where, o, "baseline", out->baseline, sizeof out->baseline));
    MEZZO_TRY(read_text(where, o, "candidate", out->candidate, sizeof out->candidate));
    MEZZO_TRY(read_text(where, o, "source", out->source, sizeof out->source));
    MEZZO_TRY(mz_json_get_array(where, o, "rules", &list));
    size_t n = json_array_size(list);
    if (n < 1 || n > MZ_RULES_MAX)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'rules': %zu of them; 1 to %d are expected", where, n, MZ_RULES_MAX);
    for (size_t i = 0; i < n; i++) {
        MEZZO_TRY(read_rule(where, json_array_get(list, i), &out->rules[i]));
        if (i > 0 && out->rules[i].least_width <= out->rules[i - 1].least_width)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'least_width': it must grow from rule to rule", where);
    }
    out->n = (int)n;
    if (json_object_get(o, "cells_width_tokens_pairs_wins") == NULL)
        return MEZZO_OK;
    MEZZO_TRY(mz_json_get_array(where, o, "cells_width_tokens_pairs_wins", &list));
    return read_cells(where, list, out);
}

// --- built in ------------------------------------------------------------------------------------------------------
// Files of data/rules/*.json, which scripts/rules.sh makes from bench/results.
extern const unsigned char mz_rules_h200_gpt2[], mz_rules_h100_glm4_moe[], mz_rules_amx_glm4_moe[];
extern const size_t mz_rules_h200_gpt2_size, mz_rules_h100_glm4_moe_size, mz_rules_amx_glm4_moe_size;

static const struct {
    const char *name;
    const unsigned char *bytes; // NULL: mz_rules_t4_glm4moe makes the rule
    const size_t *size;
} built_in[] = {{"t4-glm4moe", NULL, NULL},
                {"h200-gpt2", mz_rules_h200_gpt2, &mz_rules_h200_gpt2_size},
                {"h100-glm4_moe", mz_rules_h100_glm4_moe, &mz_rules_h100_glm4_moe_size},
                {"amx-glm4_moe", mz_rules_amx_glm4_moe, &mz_rules_amx_glm4_moe_size}};

const char *mz_rules_names(void) {
    return "t4-glm4moe, h200-gpt2, h100-glm4_moe, amx-glm4_moe";
}

const char *mz_rules_for(const char *device, bool amx, const char *model) {
    bool experts = model != NULL && strncmp(model, "glm4_moe", 8) == 0;
    if (strstr(device, "H100") != NULL || strstr(device, "H200") != NULL) // both have the same processor, with
                                                                          // different memory
        return experts ? "h100-glm4_moe" : "h200-gpt2";
    return amx ? "amx-glm4_moe" : NULL;
}

mezzo_status mz_rules_load(const char *path, mz_rules *out) {
    json_t *o = NULL;
    const size_t i = MZ_INDEX(built_in, MZ_COUNT(built_in), name, path);
    *out = (mz_rules){0};
    if (i == 0) {
        mz_rules_t4_glm4moe(out);
        return MEZZO_OK;
    }
    if (i == MZ_COUNT(built_in) && !mz_path_exists(path))
        return mz_fail(MEZZO_ERR_INVALID, "there is no file %s; built-in rules: %s", mz_quote(path).text,
                       mz_rules_names());
    if (i < MZ_COUNT(built_in))
        MEZZO_TRY(mz_json_parse(path, (const char *)built_in[i].bytes, *built_in[i].size, 16, &o));
    else
        MEZZO_TRY(mz_json_load(path, 1 << 24, &o));
    mezzo_status status = read_rules(path, o, out);
    json_decref(o);
    if (status != MEZZO_OK)
        mz_rules_free(out);
    return status;
}
