#include "base/scope.h"
#include "study/analyse/decide.h"
#include "study/analyse/rules.h"

#include <math.h>
#include <stdlib.h>

void mz_rules_free(mz_rules *rules) {
    mz_free(rules->cells);
    *rules = (mz_rules){0};
}

bool mz_rule_decides(const mz_rule *rule, double tokens) {
    switch (rule->kind) {
    case MZ_RULE_ALWAYS:
        return true;
    case MZ_RULE_NEVER:
        return false;
    case MZ_RULE_FROM:
        return tokens >= rule->threshold;
    case MZ_RULE_BELOW:
        return tokens < rule->threshold;
    }
    return false;
}

// Returns the rule for the band of widths that contains d_model.
static const mz_rule *find_rule(const mz_rules *rules, int64_t d_model) {
    const mz_rule *found = &rules->rules[0];
    for (int i = 1; i < rules->n && rules->rules[i].least_width <= d_model; i++)
        found = &rules->rules[i];
    return found;
}

const char *mz_rule_text(const mz_rules *rules, const mz_rule *rule, char *buf, size_t size) {
    const char *low = rules->candidate;
    switch (rule->kind) {
    case MZ_RULE_ALWAYS:
        snprintf(buf, size, "always %s", low);
        break;
    case MZ_RULE_NEVER:
        snprintf(buf, size, "always %s", rules->baseline);
        break;
    case MZ_RULE_FROM:
        snprintf(buf, size, "%s from %.0f tokens per step on, %s below", low, ceil(rule->threshold), rules->baseline);
        break;
    case MZ_RULE_BELOW:
        snprintf(buf, size, "%s below %.0f tokens per step, %s from there on", low, ceil(rule->threshold),
                 rules->baseline);
        break;
    }
    return buf;
}

void mz_rules_t4_glm4moe(mz_rules *out) {
    *out = (mz_rules){.name = "t4-glm4moe",
                      .baseline = "fp32",
                      .candidate = "amp",
                      .source = "published for GLM-4-MoE training steps on a Tesla T4: 600 tokens per step at width "
                                "512 and above, 1,000 below",
                      .n = 2};
    out->rules[0] = (mz_rule){.least_width = 1, .kind = MZ_RULE_FROM, .threshold = 1000};
    out->rules[1] = (mz_rule){.least_width = 512, .kind = MZ_RULE_FROM, .threshold = 600};
}

// --- judging -------------------------------------------------------------------------------------------------------
// Returns the cost of a choice: the log of the time lost compared with the better precision.
static double regret(bool candidate, double speedup) {
    double gain = log(speedup);
    return candidate ? fmax(0, -gain) : fmax(0, gain);
}

static bool right(bool candidate, double speedup) {
    return candidate ? speedup >= 1 : speedup <= 1;
}

mz_score mz_rules_score(const mz_rules *rules, const mz_pair *pairs, size_t n) {
    size_t good = 0;
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        bool candidate = mz_rule_decides(find_rule(rules, pairs[i].key.d_model), (double)pairs[i].tokens);
        good += right(candidate, pairs[i].speedup);
        sum += regret(candidate, pairs[i].speedup);
    }
    return (mz_score){.n = n,
                      .accuracy = n > 0 ? (double)good / (double)n : (double)NAN,
                      .log_regret = n > 0 ? sum / (double)n : (double)NAN};
}

// --- finding -------------------------------------------------------------------------------------------------------
static void judge(mz_rule *rule, const mz_pair *pairs, size_t n) {
    rule->n = (int64_t)n;
    rule->right = 0;
    rule->log_regret = 0;
    for (size_t i = 0; i < n; i++) {
        bool candidate = mz_rule_decides(rule, (double)pairs[i].tokens);
        rule->right += right(candidate, pairs[i].speedup);
        rule->log_regret += regret(candidate, pairs[i].speedup) / (double)n;
    }
}

// Fits the rule of one width's pairs, which ascend by tokens.
static mz_rule fit_width(const mz_pair *pairs, size_t n) {
    mz_rule best = {.kind = MZ_RULE_ALWAYS};
    judge(&best, pairs, n);
    static const mz_rule_kind kinds[] = {MZ_RULE_NEVER, MZ_RULE_FROM, MZ_RULE_BELOW};
    for (size_t k = 0; k < MZ_COUNT(kinds); k++)
        for (size_t i = kinds[k] == MZ_RULE_NEVER ? n - 1 : 1; i < n; i++) {
            if (kinds[k] != MZ_RULE_NEVER && pairs[i].tokens == pairs[i - 1].tokens)
                continue;
            mz_rule r = {.kind = kinds[k]};
            if (r.kind != MZ_RULE_NEVER)
                r.threshold = sqrt((double)pairs[i - 1].tokens * (double)pairs[i].tokens);
            judge(&r, pairs, n);
            if (r.log_regret < best.log_regret * (1 - 1e-12))
                best = r;
        }
    best.d_model = pairs[0].key.d_model;
    best.least_tokens = (double)pairs[0].tokens;
    best.most_tokens = (double)pairs[n - 1].tokens;
    return best;
}

// Returns the median of the finite numbers of x[0 … n), which are sorted; NaN without any.
static double median_of(double *x, size_t n) {
    size_t known = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(x[i]))
            x[known++] = x[i];
    if (known == 0)
        return (double)NAN;
    mz_sort(x, known);
    return mz_quantile(x, known, 0.5);
}

static mezzo_status add_cells(const mz_pair *pairs, size_t n, mz_rules *out) {
    MZ_SCOPED(mz_free_at) double *x = NULL;
    MEZZO_TRY(MZ_NEW(x, n));
    for (size_t from = 0, to; from < n; from = to) {
        mz_rule_cell cell = {.d_model = pairs[from].key.d_model, .tokens = pairs[from].tokens};
        for (to = from; to < n && pairs[to].tokens == cell.tokens; to++) {
            x[cell.n++] = pairs[to].speedup;
            cell.wins += pairs[to].speedup > 1;
        }
        cell.speedup = median_of(x, to - from);
        for (size_t i = from; i < to; i++)
            x[i - from] = pairs[i].mem_saving_pct;
        cell.mem_saving_pct = median_of(x, to - from);
        MEZZO_TRY(MZ_RESERVE(out->cells, out->cap_cells, out->n_cells + 1));
        out->cells[out->n_cells++] = cell;
    }
    return MEZZO_OK;
}

static mezzo_status fit_sorted(const mz_pair *pairs, size_t n, mz_rules *out) {
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from; to < n && pairs[to].key.d_model == pairs[from].key.d_model;)
            to++;
        if (out->n == MZ_RULES_MAX)
            return mz_fail(MEZZO_ERR_INVALID, "more than %d different widths", MZ_RULES_MAX);
        mz_rule *rule = &out->rules[out->n];
        *rule = fit_width(pairs + from, to - from);
        rule->least_width = 1;
        if (out->n > 0)
            rule->least_width = (int64_t)ceil(sqrt((double)rule[-1].d_model * (double)rule->d_model));
        out->n++;
        MEZZO_TRY(add_cells(pairs + from, to - from, out));
    }
    return MEZZO_OK;
}

mezzo_status mz_rules_fit(const mz_pair *pairs, size_t n, mz_rules *out) {
    *out = (mz_rules){.baseline = "fp32", .candidate = "amp"};
    if (n == 0)
        return mz_fail(MEZZO_ERR_INVALID, "no pair to find rules from");
    mz_pair *sorted;
    MEZZO_TRY(MZ_NEW(sorted, n));
    memcpy(sorted, pairs, n * sizeof *pairs);
    qsort(sorted, n, sizeof *sorted, mz_pairs_order);
    mezzo_status status = fit_sorted(sorted, n, out);
    mz_free(sorted);
    if (status != MEZZO_OK)
        mz_rules_free(out);
    return status;
}

void mz_rules_make_constant(mz_rules *rules, const mz_pair *pairs, size_t n) {
    mz_rule always = {.least_width = 1, .kind = MZ_RULE_ALWAYS}, never = {.least_width = 1, .kind = MZ_RULE_NEVER};
    judge(&always, pairs, n);
    judge(&never, pairs, n);
    rules->rules[0] = always.log_regret < never.log_regret ? always : never;
    rules->n = 1;
}

// --- cross-validation ----------------------------------------------------------------------------------------------
// Chooses the fold of each pair: shapes in a random order are dealt to the folds in turn. Pairs of one shape are
// neighbours (pairs.c sorts them).
static mezzo_status deal(const mz_pair *pairs, size_t n, int folds, uint64_t seed, int *fold) {
    size_t shapes = 0;
    for (size_t i = 0; i < n; i++)
        shapes += i == 0 || memcmp(&pairs[i].key, &pairs[i - 1].key, sizeof pairs[i].key) != 0;
    size_t *order;
    MEZZO_TRY(MZ_NEW(order, shapes));
    mz_shuffle(seed, 0xF01D, shapes, order);
    for (size_t i = 0, shape = 0; i < n; i++) {
        shape += i > 0 && memcmp(&pairs[i].key, &pairs[i - 1].key, sizeof pairs[i].key) != 0;
        fold[i] = (int)(order[shape] % (size_t)folds);
    }
    mz_free(order);
    return MEZZO_OK;
}

static mezzo_status score_fold(const mz_pair *pairs, size_t n, const int *fold, int which, mz_pair *sides[2],
                               mz_score *sum) {
    size_t count[2] = {0, 0};
    mz_rules rules;
    for (size_t i = 0; i < n; i++) {
        int side = fold[i] == which;
        sides[side][count[side]++] = pairs[i];
    }
    if (count[0] == 0 || count[1] == 0)
        return MEZZO_OK;
    MEZZO_TRY(mz_rules_fit(sides[0], count[0], &rules));
    mz_score s = mz_rules_score(&rules, sides[1], count[1]);
    mz_rules_free(&rules);
    sum->n += s.n;
    sum->accuracy += s.accuracy * (double)s.n;
    sum->log_regret += s.log_regret * (double)s.n;
    return MEZZO_OK;
}

mezzo_status mz_rules_cross_validate(const mz_pair *pairs, size_t n, int folds, uint64_t seed, mz_score *out) {
    mezzo_status status = MEZZO_OK;
    mz_pair *sides[2] = {mz_alloc(n, sizeof **sides), mz_alloc(n, sizeof **sides)};
    int *fold = mz_alloc(n, sizeof *fold);
    *out = (mz_score){0};
    if (sides[0] == NULL || sides[1] == NULL || fold == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    MEZZO_TRY_GOTO(status, deal(pairs, n, folds, seed, fold));
    for (int f = 0; f < folds; f++)
        MEZZO_TRY_GOTO(status, score_fold(pairs, n, fold, f, sides, out));
    out->accuracy = out->n > 0 ? out->accuracy / (double)out->n : (double)NAN;
    out->log_regret = out->n > 0 ? out->log_regret / (double)out->n : (double)NAN;
fail:
    MZ_FREE(sides[0], sides[1], fold);
    return status;
}

// --- applying ------------------------------------------------------------------------------------------------------
// Returns the measured cell that is nearest in width and, among equals, nearest in tokens (both as ratios); NULL
// without measurements.
static const mz_rule_cell *nearest_cell(const mz_rules *rules, int64_t d_model, int64_t tokens) {
    const mz_rule_cell *best = NULL;
    double least = INFINITY;
    for (size_t i = 0; i < rules->n_cells; i++) {
        const mz_rule_cell *c = &rules->cells[i];
        double width = fabs(log((double)c->d_model / (double)d_model));
        double distance = width * 1e6 + fabs(log((double)c->tokens / (double)tokens));
        if (distance < least) {
            least = distance;
            best = c;
        }
    }
    return best;
}

static void weigh(const mz_rule_cell *best, mz_advice *out) {
    out->confidence = out->interval.low = out->interval.high = (double)NAN;
    if (best == NULL)
        return;
    int64_t agreeing = out->candidate ? best->wins : best->n - best->wins;
    out->pairs = best->n;
    out->confidence = (double)agreeing / (double)best->n;
    out->interval = mz_wilson(agreeing, best->n, 1.959964);
}

static void warn_outside(const mz_rules *rules, int64_t d_model, const mz_rule_cell *near, mz_advice *out) {
    if (near == NULL)
        return;
    const mz_rule_cell *first = &rules->cells[0], *last = &rules->cells[rules->n_cells - 1];
    int64_t least = INT64_MAX, most = 0;
    for (const mz_rule_cell *c = first; c <= last; c++)
        if (c->d_model == near->d_model) {
            least = c->tokens < least ? c->tokens : least;
            most = c->tokens > most ? c->tokens : most;
        }
    if (d_model < first->d_model || d_model > last->d_model)
        snprintf(out->warning, sizeof out->warning, "extrapolating beyond the measured widths %lld to %lld",
                 (long long)first->d_model, (long long)last->d_model);
    else if (out->tokens < least || out->tokens > most)
        snprintf(out->warning, sizeof out->warning,
                 "extrapolating beyond the measured %lld to %lld tokens per step at width %lld", (long long)least,
                 (long long)most, (long long)near->d_model);
}

// Writes what the other precision costs on the nearest pairs, in mz_decide's words.
static void compare(const mz_rules *rules, const mz_rule_cell *near, mz_advice *out) {
    if (near == NULL)
        return;
    const mz_option both[] = {
        {.name = rules->baseline, .seconds = 1, .memory = 1, .note = ""},
        {.name = rules->candidate, .seconds = 1 / near->speedup, .memory = 1 - near->mem_saving_pct / 100, .note = ""}};
    char line[160];
    size_t used = strlen(out->reason);
    if (mz_option_text(&both[!out->candidate], &both[out->candidate], line, sizeof line))
        snprintf(out->reason + used, sizeof out->reason - used, "; %s (median of the %lld nearest pairs)", line,
                 (long long)near->n);
}

// Returns the name of a precision; a study's "amp" is torch.amp's default on a GPU.
static const char *usable(const char *name) {
    return strcmp(name, "amp") == 0 ? "fp16" : name;
}

mezzo_status mz_rules_advise(const mz_rules *rules, int64_t d_model, int64_t batch, int64_t seq_len, mz_advice *out) {
    char rule[160], band[96];
    if (d_model < 1 || batch < 1 || seq_len < 1)
        return mz_fail(MEZZO_ERR_INVALID, "d_model, batch size and sequence length must be at least 1");
    *out = (mz_advice){.tokens = batch * seq_len, .rule = find_rule(rules, d_model)};
    out->candidate = mz_rule_decides(out->rule, (double)out->tokens);
    snprintf(out->precision, sizeof out->precision, "%s", usable(out->candidate ? rules->candidate : rules->baseline));
    if (out->rule->d_model > 0)
        snprintf(band, sizeof band, "found at width %lld", (long long)out->rule->d_model);
    else if (out->rule->n > 0)
        snprintf(band, sizeof band, "for all widths");
    else if (out->rule > rules->rules)
        snprintf(band, sizeof band, "at width %lld and above", (long long)out->rule->least_width);
    else
        snprintf(band, sizeof band, "at widths below %lld",
                 (long long)(rules->n > 1 ? rules->rules[1].least_width : INT32_MAX));
    snprintf(out->reason, sizeof out->reason,
             "%s: the rule %s is %s, and the step has %lld x %lld = %lld tokens at width %lld", out->precision, band,
             mz_rule_text(rules, out->rule, rule, sizeof rule), (long long)batch, (long long)seq_len,
             (long long)out->tokens, (long long)d_model);
    const mz_rule_cell *near = nearest_cell(rules, d_model, out->tokens);
    compare(rules, near, out);
    weigh(near, out);
    warn_outside(rules, d_model, near, out);
    return MEZZO_OK;
}
