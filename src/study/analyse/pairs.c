#include "study/analyse/pairs.h"

#include <math.h>
#include <stdlib.h>

#include "base/precision.h"
#include "base/scope.h"
#include "io/file.h"
#include "io/number.h"
#include "io/quote.h"
#include "study/analyse/stats.h"

#define MOST    (INT64_C(1) << 31)
#define SPEEDUP "speedup_amp_over_fp32"

const char *mz_key_text(const mz_shape_key *key, const char *variant, char *buf, size_t size) {
    snprintf(buf, size, "layers %lld, d_model %lld, bs %lld, seqlen %lld%s%s", (long long)key->layers,
             (long long)key->d_model, (long long)key->bs, (long long)key->seqlen, *variant != '\0' ? ", " : "",
             variant);
    return buf;
}

double mz_row_cv(const mz_study_row *row) {
    return row->error * sqrt((double)row->repeats);
}

void mz_study_free(mz_study *s) {
    MZ_FREE(s->where, s->rows, s->pairs, s->unequal, s->alone, s->failed);
    *s = (mz_study){0};
}

// --- cells ---------------------------------------------------------------------------------------------------------
static mezzo_status above_zero(const mz_csv *csv, size_t row, int column, double value) {
    if (value > 0 && isfinite(value))
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_FORMAT, "%s:%lld: column %s: it must be above 0 and finite, and is %s", mz_csv_where(csv),
                   (long long)mz_csv_line(csv, row), mz_quote(mz_csv_name(csv, (size_t)column)).text,
                   mz_quote(mz_csv_cell(csv, row, (size_t)column)).text);
}

static mezzo_status positive(const mz_csv *csv, size_t row, int column, double *out) {
    MEZZO_TRY(mz_csv_number(csv, row, column, out));
    return above_zero(csv, row, column, *out);
}

// Reads a positive number; an absent or empty cell is NaN, and so is "nan", which other tools write.
static mezzo_status optional_positive(const mz_csv *csv, size_t row, int column, double *out) {
    MEZZO_TRY(mz_csv_optional(csv, row, column, out));
    return isnan(*out) ? MEZZO_OK : above_zero(csv, row, column, *out);
}

// Reads a name of at most MZ_STUDY_NAME - 1 bytes.
static mezzo_status name(const mz_csv *csv, size_t row, int column, char *out) {
    const char *cell = mz_csv_cell(csv, row, (size_t)column);
    if (*cell == '\0' || strlen(cell) >= MZ_STUDY_NAME)
        return mz_fail(MEZZO_ERR_FORMAT, "%s:%lld: column %s: expected a short name, got %s", mz_csv_where(csv),
                       (long long)mz_csv_line(csv, row), mz_quote(mz_csv_name(csv, (size_t)column)).text,
                       mz_quote(cell).text);
    snprintf(out, MZ_STUDY_NAME, "%s", cell);
    return MEZZO_OK;
}

// Reads the rung of the out-of-memory ladder; an empty cell (the shape ran as asked) is "base".
static mezzo_status rung(const mz_csv *csv, size_t row, int column, char *out) {
    if (column >= 0 && mz_csv_cell(csv, row, (size_t)column)[0] != '\0')
        return name(csv, row, column, out);
    snprintf(out, MZ_STUDY_NAME, "base");
    return MEZZO_OK;
}

// Reads "[0.1, 0.2]": the mean in seconds, and its relative standard error s/√n; NaN where the column or numbers are
// missing.
static mezzo_status mean_time(const mz_csv *csv, size_t row, int column, double *out, mz_study_row *r) {
    *out = (double)NAN;
    if (column < 0 ||
        mz_csv_cell(csv, row, (size_t)column)[strspn(mz_csv_cell(csv, row, (size_t)column), "[] ")] == '\0')
        return MEZZO_OK;
    const char *c = mz_csv_cell(csv, row, (size_t)column);
    double mean = 0, squares = 0; // Welford (1962): sums of squared distances from the running mean
    int n = 0;
    for (c += strspn(c, "[ "); *c != '\0' && *c != ']'; n++) {
        char word[64];
        size_t length = strcspn(c, ",] ;");
        double seconds;
        if (length == 0 || length >= sizeof word)
            break;
        memcpy(word, c, length);
        word[length] = '\0';
        if (!mz_number_parse(word, &seconds))
            return mz_fail(MEZZO_ERR_FORMAT, "%s:%lld: column 'times': expected numbers, got %s", mz_csv_where(csv),
                           (long long)mz_csv_line(csv, row), mz_quote(word).text);
        MEZZO_TRY(above_zero(csv, row, column, seconds));
        const double before = seconds - mean;
        mean += before / (n + 1);
        squares += before * (seconds - mean);
        c += length;
        c += strspn(c, ",; ");
    }
    if (n == 0 || strcmp(c + strspn(c, "] "), "") != 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s:%lld: column 'times': expected \"[seconds, …]\", got %s",
                       mz_csv_where(csv), (long long)mz_csv_line(csv, row),
                       mz_quote(mz_csv_cell(csv, row, (size_t)column)).text);
    *out = mean;
    r->repeats = n;
    if (n > 1)
        r->error = sqrt(squares / (n - 1) / n) / mean;
    return MEZZO_OK;
}

static mezzo_status read_key(const mz_csv *csv, size_t row, const int columns[4], mz_shape_key *out) {
    MEZZO_TRY(mz_csv_integer(csv, row, columns[0], 1, MOST, &out->layers));
    MEZZO_TRY(mz_csv_integer(csv, row, columns[1], 1, MOST, &out->d_model));
    MEZZO_TRY(mz_csv_integer(csv, row, columns[2], 1, MOST, &out->bs));
    return mz_csv_integer(csv, row, columns[3], 1, MOST, &out->seqlen);
}

static const char *const key_names[4] = {"layers", "d_model", "bs", "seqlen"};
static mezzo_status find_key(const mz_csv *csv, int columns[4]) {
    for (int i = 0; i < 4; i++)
        MEZZO_TRY(mz_csv_need(csv, key_names[i], &columns[i]));
    return MEZZO_OK;
}

// Reads further columns that belong to a key where they exist.
static void read_variant(const mz_csv *csv, size_t row, char *out, size_t size) {
    static const char *const names[] = {"model", "compile", "static"};
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < MZ_COUNT(names); i++) {
        int column = mz_csv_find(csv, names[i]);
        if (column < 0 || used >= size)
            continue;
        int n = snprintf(out + used, size - used, "%s%s=%.24s", used > 0 ? " " : "", names[i],
                         mz_csv_cell(csv, row, (size_t)column));
        used += n > 0 ? (size_t)n : 0;
    }
    int column = mz_csv_find(csv, "variant"); // only Mezzo's own pairs file has it
    if (column >= 0)
        snprintf(out, size, "%.90s", mz_csv_cell(csv, row, (size_t)column));
}

// --- rows ----------------------------------------------------------------------------------------------------------
typedef struct row_columns {
    int key[4], prec, tps, mem, energy, power, times, rung, ga, final_bs, final_seqlen;
} row_columns;

static mezzo_status find_row_columns(const mz_csv *csv, row_columns *c) {
    MEZZO_TRY(find_key(csv, c->key));
    MEZZO_TRY(mz_csv_need(csv, "prec", &c->prec));
    MEZZO_TRY(mz_csv_need(csv, "tps", &c->tps));
    c->mem = mz_csv_find(csv, "mem_gb");
    c->energy = mz_csv_find(csv, "energy_j");
    c->power = mz_csv_find(csv, "avg_power_w");
    c->times = mz_csv_find(csv, "times");
    c->rung = mz_csv_find(csv, "rung") >= 0 ? mz_csv_find(csv, "rung") : mz_csv_find(csv, "adj");
    c->ga = mz_csv_find(csv, "ga");
    c->final_bs = mz_csv_find(csv, "final_bs");
    c->final_seqlen = mz_csv_find(csv, "final_seqlen");
    return MEZZO_OK;
}

static mezzo_status read_ran(const mz_csv *csv, size_t row, const row_columns *c, mz_study_row *r) {
    if (c->ga >= 0)
        MEZZO_TRY(mz_csv_integer(csv, row, c->ga, 1, MOST, &r->ga));
    if (c->final_bs >= 0)
        MEZZO_TRY(mz_csv_integer(csv, row, c->final_bs, 1, MOST, &r->final_bs));
    if (c->final_seqlen >= 0)
        MEZZO_TRY(mz_csv_integer(csv, row, c->final_seqlen, 1, MOST, &r->final_seqlen));
    MEZZO_TRY(positive(csv, row, c->tps, &r->tps));
    MEZZO_TRY(optional_positive(csv, row, c->mem, &r->mem_gb));
    MEZZO_TRY(optional_positive(csv, row, c->energy, &r->energy_j));
    return optional_positive(csv, row, c->power, &r->power_w);
}

static mezzo_status read_row(const mz_csv *csv, size_t row, const row_columns *c, mz_study *s) {
    double mean;
    MEZZO_TRY(MZ_RESERVE(s->rows, s->cap_rows, s->n_rows + 1));
    mz_study_row *r = &s->rows[s->n_rows];
    *r = (mz_study_row){.ga = 1,
                        .tps = (double)NAN,
                        .mem_gb = (double)NAN,
                        .energy_j = (double)NAN,
                        .power_w = (double)NAN,
                        .error = (double)NAN,
                        .line = mz_csv_line(csv, row)};
    MEZZO_TRY(read_key(csv, row, c->key, &r->key));
    MEZZO_TRY(name(csv, row, c->prec, r->prec));
    read_variant(csv, row, r->variant, sizeof r->variant);
    r->final_bs = r->key.bs;
    r->final_seqlen = r->key.seqlen;
    MEZZO_TRY(rung(csv, row, c->rung, r->rung));
    if (strcmp(r->rung, "none") != 0) {
        MEZZO_TRY(read_ran(csv, row, c, r));
        MEZZO_TRY(mean_time(csv, row, c->times, &mean, r));
        if (!isnan(mean))
            s->inconsistent += fabs(r->tps * mean / (double)(r->final_bs * r->final_seqlen) - 1) > 0.01;
    }
    s->n_rows++;
    return MEZZO_OK;
}

static int compare_keys(const mz_shape_key *a, const mz_shape_key *b) {
    const int64_t d[4] = {a->layers - b->layers, a->d_model - b->d_model, a->bs - b->bs, a->seqlen - b->seqlen};
    for (int i = 0; i < 4; i++)
        if (d[i] != 0)
            return d[i] < 0 ? -1 : 1;
    return 0;
}

static int compare_shape(const mz_study_row *a, const mz_study_row *b) {
    int d = compare_keys(&a->key, &b->key);
    return d != 0 ? d : strcmp(a->variant, b->variant);
}

static int compare_rows(const void *x, const void *y) {
    const mz_study_row *a = x, *b = y;
    int d = compare_shape(a, b);
    if (d == 0)
        d = strcmp(a->prec, b->prec);
    return d != 0 ? d : (a->line > b->line) - (a->line < b->line);
}

static mezzo_status twice(const mz_study *s, const mz_shape_key *key, const char *variant, const char *prec,
                          int64_t first, int64_t second) {
    char text[256];
    return mz_fail(MEZZO_ERR_FORMAT, "%s:%lld: the same key twice: %s%s%s is in line %lld too", s->where,
                   (long long)second, mz_key_text(key, variant, text, sizeof text), *prec != '\0' ? ", " : "", prec,
                   (long long)first);
}

static mezzo_status sort_rows(mz_study *s) {
    if (s->n_rows > 1)
        qsort(s->rows, s->n_rows, sizeof *s->rows, compare_rows);
    for (size_t i = 1; i < s->n_rows; i++) {
        const mz_study_row *a = &s->rows[i - 1], *b = &s->rows[i];
        if (compare_shape(a, b) == 0 && strcmp(a->prec, b->prec) == 0)
            return twice(s, &b->key, b->variant, b->prec, a->line, b->line);
    }
    return MEZZO_OK;
}

// --- energies ------------------------------------------------------------------------------------------------------
// Checks energies. A step's energy is its mean power times its time. A file's energy_j may have another meaning (such
// as power over a sampling window of its own); the median quotient decides, and energies are then computed from power
// and time.
static mezzo_status check_energy(mz_study *s) {
    double *ratio = mz_alloc(s->n_rows + 1, sizeof *ratio);
    size_t n = 0;
    if (ratio == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < s->n_rows; i++) {
        const mz_study_row *r = &s->rows[i];
        double seconds = (double)(r->final_bs * r->final_seqlen) / r->tps;
        if (!isnan(r->energy_j) && !isnan(r->power_w) && !isnan(r->tps))
            ratio[n++] = r->energy_j / (r->power_w * seconds);
    }
    if (n > 0) {
        mz_sort(ratio, n);
        s->energy_ratio = mz_quantile(ratio, n, 0.5);
        s->energy_remade = fabs(s->energy_ratio - 1) > 0.1;
    }
    for (size_t i = 0; i < s->n_rows && s->energy_remade; i++) {
        mz_study_row *r = &s->rows[i];
        r->energy_j = r->power_w * (double)(r->final_bs * r->final_seqlen) / r->tps; // NaN where either is not known
    }
    mz_free(ratio);
    return MEZZO_OK;
}

// --- pairing -------------------------------------------------------------------------------------------------------
static bool has_precision(const mz_study *s, const char *prec) {
    return MZ_FIND(s->rows, s->n_rows, prec, prec) != NULL;
}

// Returns whether a name is in "a, b, c".
static bool is_listed(const char *list, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = list; *at != '\0';) {
        const size_t part = strcspn(at, ",");
        if (part == length && strncmp(at, name, part) == 0)
            return true;
        at += part + strspn(at + part, ", ");
    }
    return false;
}

// Returns amp, as others' studies have it, or the precision that auto prefers, or an 8-bit format; NULL: the study has
// none of them.
static const char *usual_candidate(const mz_study *s) {
    mezzo_precision usual[2 * MEZZO_PRECISION_COUNT];
    int n = mz_precision_automatic(usual);
    if (has_precision(s, "amp"))
        return "amp";
    for (int p = 0; p < MEZZO_PRECISION_COUNT; p++)
        if (mz_precision((mezzo_precision)p) != NULL && mz_precision((mezzo_precision)p)->scaling != MZ_SCALING_NONE)
            usual[n++] = (mezzo_precision)p;
    for (int i = 0; i < n; i++)
        if (has_precision(s, mezzo_precision_name(usual[i])))
            return mezzo_precision_name(usual[i]);
    return NULL;
}

static mezzo_status choose_precisions(mz_study *s, const char *baseline, const char *candidate) {
    if (candidate == NULL)
        candidate = usual_candidate(s);
    if (baseline == NULL)
        baseline = "fp32";
    if (candidate == NULL)
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: no row has the precision amp, bf16, fp16, tf32 or fp8 in column 'prec': there is nothing "
                       "to compare %s with",
                       s->where, mz_quote(baseline).text);
    if (strcmp(baseline, candidate) == 0)
        return mz_fail(MEZZO_ERR_INVALID, "baseline and candidate are both %s", mz_quote(baseline).text);
    const char *both[] = {baseline, candidate};
    for (int i = 0; i < 2; i++)
        if (strlen(both[i]) >= MZ_STUDY_NAME || !has_precision(s, both[i]))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: no row has the precision %s in column 'prec'", s->where,
                           mz_quote(both[i]).text);
    snprintf(s->baseline, sizeof s->baseline, "%s", baseline);
    snprintf(s->candidate, sizeof s->candidate, "%s", candidate);
    for (size_t i = 0; i < s->n_rows; i++) {
        const char *p = s->rows[i].prec;
        size_t used = strlen(s->others);
        if (strcmp(p, baseline) != 0 && strcmp(p, candidate) != 0 && !is_listed(s->others, p))
            snprintf(s->others + used, sizeof s->others - used, "%s%s", used > 0 ? ", " : "", p);
    }
    return MEZZO_OK;
}

static double saving(double candidate, double baseline) {
    return 100 * (1 - candidate / baseline); // NaN where either is NaN
}

static mezzo_status add_pair(mz_study *s, const mz_study_row *base, const mz_study_row *low) {
    mz_pair p = {.key = base->key,
                 .speedup = low->tps / base->tps,
                 .error = hypot(low->error, base->error),
                 .errors = {base->error, low->error},
                 .repeats = {base->repeats, low->repeats},
                 .mem_saving_pct = saving(low->mem_gb, base->mem_gb),
                 .energy_gain_pct = saving(low->energy_j, base->energy_j),
                 .tps_fp32 = base->tps,
                 .tps_amp = low->tps,
                 .tokens = low->final_bs * low->final_seqlen,
                 .ga_amp = low->ga,
                 .ga_fp32 = base->ga};
    snprintf(p.variant, sizeof p.variant, "%s", base->variant);
    snprintf(p.adj_amp, sizeof p.adj_amp, "%s", low->rung);
    snprintf(p.adj_fp32, sizeof p.adj_fp32, "%s", base->rung);
    bool equal = strcmp(base->rung, low->rung) == 0 && base->ga == low->ga && base->final_bs == low->final_bs &&
                 base->final_seqlen == low->final_seqlen;
    if (equal) {
        MEZZO_TRY(MZ_RESERVE(s->pairs, s->cap_pairs, s->n_pairs + 1));
        s->pairs[s->n_pairs++] = p;
    } else {
        MEZZO_TRY(MZ_RESERVE(s->unequal, s->cap_unequal, s->n_unequal + 1));
        s->unequal[s->n_unequal++] = p;
    }
    return MEZZO_OK;
}

int mz_pairs_order(const void *x, const void *y) {
    const mz_pair *a = x, *b = y;
    if (a->key.d_model != b->key.d_model)
        return a->key.d_model < b->key.d_model ? -1 : 1;
    return (a->tokens > b->tokens) - (a->tokens < b->tokens);
}

static mezzo_status list_row(size_t **list, size_t *n, size_t *cap, size_t row) {
    MEZZO_TRY(MZ_RESERVE(*list, *cap, *n + 1));
    (*list)[(*n)++] = row;
    return MEZZO_OK;
}

// Pairs the rows of one shape, which are neighbours because rows are sorted.
static mezzo_status pair_shape(mz_study *s, size_t from, size_t to) {
    size_t both[2] = {SIZE_MAX, SIZE_MAX};
    for (size_t i = from; i < to; i++) {
        const mz_study_row *r = &s->rows[i];
        int which = strcmp(r->prec, s->baseline) == 0 ? 0 : strcmp(r->prec, s->candidate) == 0 ? 1 : -1;
        if (which < 0)
            continue;
        if (isnan(r->tps))
            MEZZO_TRY(list_row(&s->failed, &s->n_failed, &s->cap_failed, i));
        else
            both[which] = i;
    }
    if (both[0] != SIZE_MAX && both[1] != SIZE_MAX)
        return add_pair(s, &s->rows[both[0]], &s->rows[both[1]]);
    for (int k = 0; k < 2; k++)
        if (both[k] != SIZE_MAX)
            MEZZO_TRY(list_row(&s->alone, &s->n_alone, &s->cap_alone, both[k]));
    return MEZZO_OK;
}

// Looks for noise in the sorted rows of the two precisions.
static void find_noisy(mz_study *s) {
    for (size_t i = 0; i < s->n_rows; i++) {
        const mz_study_row *r = &s->rows[i];
        const bool ours = strcmp(r->prec, s->baseline) == 0 || strcmp(r->prec, s->candidate) == 0;
        if (!ours || !(mz_row_cv(r) > MZ_STUDY_NOISY))
            continue;
        if (s->noisy == 0 || mz_row_cv(r) > mz_row_cv(&s->rows[s->noisiest]))
            s->noisiest = i;
        s->noisy++;
    }
}

static mezzo_status load_rows(const mz_csv *csv, const char *baseline, const char *candidate, mz_study *s) {
    row_columns columns;
    MEZZO_TRY(find_row_columns(csv, &columns));
    for (size_t i = 0; i < mz_csv_rows(csv); i++)
        MEZZO_TRY(read_row(csv, i, &columns, s));
    MEZZO_TRY(sort_rows(s));
    MEZZO_TRY(choose_precisions(s, baseline, candidate));
    find_noisy(s);
    MEZZO_TRY(check_energy(s));
    for (size_t from = 0, to; from < s->n_rows; from = to) {
        for (to = from + 1; to < s->n_rows && compare_shape(&s->rows[from], &s->rows[to]) == 0;)
            to++;
        MEZZO_TRY(pair_shape(s, from, to));
    }
    return MEZZO_OK;
}

// --- a pairs file --------------------------------------------------------------------------------------------------
static mezzo_status integer_or(const mz_csv *csv, size_t row, const char *column, int64_t initial, int64_t *out) {
    int c = mz_csv_find(csv, column);
    *out = initial;
    return c >= 0 && mz_csv_cell(csv, row, (size_t)c)[0] != '\0' ? mz_csv_integer(csv, row, c, 1, INT64_C(1) << 53, out)
                                                                 : MEZZO_OK;
}

static mezzo_status read_pair(const mz_csv *csv, size_t row, const int key[4], int speedup, mz_pair *p) {
    *p = (mz_pair){.error = (double)NAN, .errors = {(double)NAN, (double)NAN}};
    MEZZO_TRY(read_key(csv, row, key, &p->key));
    read_variant(csv, row, p->variant, sizeof p->variant);
    MEZZO_TRY(positive(csv, row, speedup, &p->speedup));
    MEZZO_TRY(mz_csv_optional(csv, row, mz_csv_find(csv, "mem_saving_pct"), &p->mem_saving_pct));
    MEZZO_TRY(mz_csv_optional(csv, row, mz_csv_find(csv, "energy_gain_pct"), &p->energy_gain_pct));
    MEZZO_TRY(optional_positive(csv, row, mz_csv_find(csv, "tps_fp32"), &p->tps_fp32));
    MEZZO_TRY(optional_positive(csv, row, mz_csv_find(csv, "tps_amp"), &p->tps_amp));
    MEZZO_TRY(integer_or(csv, row, "tokens_per_step", p->key.bs * p->key.seqlen, &p->tokens));
    MEZZO_TRY(rung(csv, row, mz_csv_find(csv, "adj_amp"), p->adj_amp));
    MEZZO_TRY(rung(csv, row, mz_csv_find(csv, "adj_fp32"), p->adj_fp32));
    MEZZO_TRY(integer_or(csv, row, "ga_amp", 1, &p->ga_amp));
    return integer_or(csv, row, "ga_fp32", 1, &p->ga_fp32);
}

typedef struct lined_pair {
    mz_pair pair;
    int64_t line;
} lined_pair;

static int compare_lined(const void *x, const void *y) {
    const lined_pair *a = x, *b = y;
    int d = compare_keys(&a->pair.key, &b->pair.key);
    if (d == 0)
        d = strcmp(a->pair.variant, b->pair.variant);
    return d != 0 ? d : (a->line > b->line) - (a->line < b->line);
}

static mezzo_status keep_pairs(mz_study *s, const lined_pair *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const mz_pair *p = &list[i].pair;
        if (i > 0 && compare_keys(&p->key, &list[i - 1].pair.key) == 0 &&
            strcmp(p->variant, list[i - 1].pair.variant) == 0)
            return twice(s, &p->key, p->variant, "", list[i - 1].line, list[i].line);
        if (strcmp(p->adj_amp, p->adj_fp32) == 0 && p->ga_amp == p->ga_fp32) {
            MEZZO_TRY(MZ_RESERVE(s->pairs, s->cap_pairs, s->n_pairs + 1));
            s->pairs[s->n_pairs++] = *p;
        } else {
            MEZZO_TRY(MZ_RESERVE(s->unequal, s->cap_unequal, s->n_unequal + 1));
            s->unequal[s->n_unequal++] = *p;
        }
    }
    return MEZZO_OK;
}

static mezzo_status load_pairs(const mz_csv *csv, mz_study *s) {
    int key[4], speedup;
    size_t n = mz_csv_rows(csv);
    MEZZO_TRY(find_key(csv, key));
    MEZZO_TRY(mz_csv_need(csv, SPEEDUP, &speedup));
    snprintf(s->baseline, sizeof s->baseline, "fp32");
    snprintf(s->candidate, sizeof s->candidate, "amp");
    MZ_SCOPED(mz_free_at) lined_pair *list = NULL;
    MEZZO_TRY(MZ_NEW(list, n + 1));
    for (size_t i = 0; i < n; i++) {
        MEZZO_TRY(read_pair(csv, i, key, speedup, &list[i].pair));
        list[i].line = mz_csv_line(csv, i);
    }
    if (n > 1)
        qsort(list, n, sizeof *list, compare_lined);
    return keep_pairs(s, list, n);
}

// --- loading and saving --------------------------------------------------------------------------------------------
static mezzo_status no_pairs(const mz_study *s) {
    char text[256];
    if (s->n_alone > 0) {
        const mz_study_row *r = &s->rows[s->alone[0]];
        return mz_fail(MEZZO_ERR_FORMAT, "%s: no two rows make a pair: %zu rows have no partner, the first is %s, %s",
                       s->where, s->n_alone, mz_key_text(&r->key, r->variant, text, sizeof text), r->prec);
    }
    if (s->n_unequal > 0)
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: all %zu pairs ran on unequal rungs or shapes: there is nothing to compare", s->where,
                       s->n_unequal);
    return mz_fail(MEZZO_ERR_FORMAT, "%s: no row has a step that ran", s->where);
}

// Names every column that a table lacks in one message, with the option that maps columns.
static mezzo_status check_columns(const mz_csv *csv, bool pairs) {
    const char *const needed[] = {"layers", "d_model", "bs", "seqlen", pairs ? SPEEDUP : "prec", "tps"};
    mz_text missing = {0}, map = {0}, there = {0};
    mezzo_status status = MEZZO_OK;
    int n = 0;
    for (size_t i = 0; i < MZ_COUNT(needed) - pairs; i++)
        if (mz_csv_find(csv, needed[i]) < 0) {
            mz_text_addf(&missing, "%s'%s'", n > 0 ? ", " : "", needed[i]);
            mz_text_addf(&map, "%sTHEIRS=%s", n > 0 ? "," : "", needed[i]);
            n++;
        }
    mz_csv_names(csv, &there);
    if (n > 0 && missing.status == MEZZO_OK && map.status == MEZZO_OK && there.status == MEZZO_OK)
        status = mz_fail(
            MEZZO_ERR_FORMAT,
            "%s: a table of %s needs the column%s %s; there %s %s. Map columns of other names with --columns %s",
            mz_csv_where(csv), pairs ? "pairs" : "measured steps", n > 1 ? "s" : "", missing.data,
            mz_csv_columns(csv) == 1 ? "is" : "are", there.data, map.data);
    else if (n > 0)
        status = MEZZO_ERR_MEMORY;
    mz_text_free(&missing);
    mz_text_free(&map);
    mz_text_free(&there);
    return status;
}

mezzo_status mz_study_load(const char *path, const char *columns, const char *baseline, const char *candidate,
                           mz_study *out) {
    mezzo_status status = MEZZO_OK;
    mz_csv *csv = NULL;
    *out = (mz_study){0};
    MEZZO_TRY_GOTO(status, mz_csv_load(path, &csv));
    out->where = mz_strdup(path);
    if (out->where == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    if (mz_csv_rows(csv) == 0)
        MEZZO_TRY_GOTO(status, mz_fail(MEZZO_ERR_FORMAT, "%s: there is a header and no row", path));
    if (columns != NULL)
        MEZZO_TRY_GOTO(status, mz_csv_rename(csv, columns));
    bool pairs = mz_csv_find(csv, SPEEDUP) >= 0 && mz_csv_find(csv, "prec") < 0;
    MEZZO_TRY_GOTO(status, check_columns(csv, pairs));
    if (pairs)
        MEZZO_TRY_GOTO(status, load_pairs(csv, out));
    else
        MEZZO_TRY_GOTO(status, load_rows(csv, baseline, candidate, out));
    if (out->n_pairs == 0)
        MEZZO_TRY_GOTO(status, no_pairs(out));
    mz_csv_free(csv);
    return MEZZO_OK;
fail:
    mz_csv_free(csv);
    mz_study_free(out);
    return status;
}

mezzo_status mz_pairs_save(const mz_study *s, const char *path) {
    mz_text t = {0};
    bool variants = false;
    for (size_t i = 0; i < s->n_pairs; i++)
        variants = variants || strcmp(s->pairs[i].variant, s->pairs[0].variant) != 0; // a variant that all pairs share
                                                                                      // is left out
    mz_text_addf(&t,
                 "layers,d_model,bs,seqlen,speedup_amp_over_fp32,mem_saving_pct,energy_gain_pct,tps_fp32,tps_amp,"
                 "tokens_per_step,adj_amp,adj_fp32,ga_amp,ga_fp32%s\n",
                 variants ? ",variant" : "");
    for (size_t i = 0; i < s->n_pairs; i++) {
        const mz_pair *p = &s->pairs[i];
        mz_text_addf(&t, "%lld,%lld,%lld,%lld", (long long)p->key.layers, (long long)p->key.d_model,
                     (long long)p->key.bs, (long long)p->key.seqlen);
        const double numbers[] = {p->speedup, p->mem_saving_pct, p->energy_gain_pct, p->tps_fp32, p->tps_amp};
        for (size_t k = 0; k < MZ_COUNT(numbers); k++)
            mz_csv_next_number(&t, numbers[k]);
        mz_text_addf(&t, ",%lld", (long long)p->tokens);
        mz_csv_next(&t, p->adj_amp);
        mz_csv_next(&t, p->adj_fp32);
        mz_text_addf(&t, ",%lld,%lld", (long long)p->ga_amp, (long long)p->ga_fp32);
        if (variants)
            mz_csv_next(&t, p->variant);
        mz_text_add(&t, "\n", 1);
    }
    return mz_text_save(&t, path);
}
