#include "train/health.h"

#include <math.h>
#include <stdarg.h>

#include "base/sort.h"
#include "io/file.h"

// The rules' constants. docs/guard.md repeats them; tests/unit/test_health.c checks each at its limit.
static const double SKIPS_PER_THOUSAND = 10; // among the steps that the kept rows span, without the first 100 of a run
static const int64_t SEARCH_STEPS = 100;     // steps in which a new run's scale is searched for
static const double LEAST_SKIPS = 3;         // with a loss scale: one or two skips are how it finds its ceiling
static const double LEAST_SCALE = 16;        // a lower scale (2^4) protects few gradients
static const double COLLAPSE = 1.0 / 1024;   // of the largest scale so far
static const double MOST_UNDERFLOW = 0.05;   // of the gradients other than zero
static const double MOST_SATURATED = 0.1;    // of a tensor's last 200 steps or more
static const double JUMP_SCORE = 8;          // robust deviations
static const double JUMPS_PER_HUNDRED = 2;   // rows with such a jump, and at least three of them
static const int64_t FEW_REPORTS = 16,
                     MANY_REPORTS = 32;   // with fewer than the first there is no verdict; with as many as the second
                                          // noise is small
static const double CLEARLY_ABOVE = 0.02; // relative difference of losses, where reports are few
static const double RISE = 3;             // deviations of the older quarter by which the newest quarter lies above it

mezzo_status mz_health_begin(mz_health *h) {
    *h = (mz_health){.val_loss = (double)NAN,
                     .first_loss = (double)NAN,
                     .chance = (double)NAN,
                     .underflow = (double)NAN,
                     .saturated = (double)NAN,
                     .scale = 1};
    return mz_spikes_create(64, &h->spikes);
}

void mz_health_end(mz_health *h) {
    mz_spikes_free(&h->spikes);
}

void mz_health_add(mz_health *h, const mz_health_row *row) {
    if (row->has_val) {
        h->val_loss = row->val_loss;
        h->val_bad = !isfinite(row->val_loss);
    }
    if (isfinite(row->underflow)) // metrics.jsonl has it in a row of its own
        h->underflow = isnan(h->underflow) ? row->underflow : 0.9 * h->underflow + 0.1 * row->underflow;
    if (isfinite(row->chance) && row->chance > 0)
        h->chance = row->chance;
    if (!row->has_loss)
        return;
    h->warming = row->lr > h->lr && h->rows > 0;
    h->lr = row->lr;
    if (isnan(h->first_loss) && isfinite(row->loss))
        h->first_loss = row->loss;
    size_t at = (size_t)(h->rows % MZ_HEALTH_KEPT);
    if (h->rows == 0)
        h->first_step = row->step;
    h->step = row->step;
    h->losses[at] = row->loss;
    h->steps[at] = row->step;
    h->skipped[at] = isnan(row->skipped) ? 0 : row->skipped;
    h->rows++;
    if (isfinite(row->loss))
        h->jumps += mz_spikes_see(&h->spikes, row->loss, JUMP_SCORE) >= JUMP_SCORE;
    h->scaling = row->scaling;
    if (isfinite(row->scale)) {
        h->scale = row->scale;
        h->largest_scale = row->scale > h->largest_scale ? row->scale : h->largest_scale;
    }
    if (!isnan(row->saturated)) {
        h->saturated = row->saturated;
        memcpy(h->tensor, row->tensor, sizeof h->tensor);
    }
}

// --- the kept rows -------------------------------------------------------------------------------
static int64_t kept(const mz_health *h) {
    return h->rows < MZ_HEALTH_KEPT ? h->rows : MZ_HEALTH_KEPT;
}

static size_t back(const mz_health *h, int64_t i) { // returns the index of the i-th row from the newest, which is 0
    return (size_t)((h->rows - 1 - i) % MZ_HEALTH_KEPT);
}

// Returns the median of the finite losses of rows [from, to), counted from the newest, and their deviation from it.
static double median_of(const mz_health *h, int64_t from, int64_t to, double *deviation) {
    double values[MZ_HEALTH_KEPT];
    size_t n = 0;
    for (int64_t i = from; i < to; i++)
        if (isfinite(h->losses[back(h, i)]))
            values[n++] = h->losses[back(h, i)];
    *deviation = 0;
    if (n == 0)
        return (double)NAN;
    mz_sort(values, n);
    double middle = values[n / 2];
    for (size_t i = 0; i < n; i++)
        values[i] = fabs(values[i] - middle);
    mz_sort(values, n);
    *deviation = 1.4826 * values[n / 2];
    return middle;
}

// Returns skipped steps per thousand over the kept rows, from the end of the scale's search on, and *count, their
// number.
static double skips_per_thousand(const mz_health *h, double *count) {
    int64_t oldest = kept(h) - 1;
    while (oldest > 0 && h->steps[back(h, oldest)] < SEARCH_STEPS)
        oldest--;
    double steps = (double)(h->step - h->steps[back(h, oldest)]);
    double skipped = h->skipped[back(h, 0)] - h->skipped[back(h, oldest)];
    *count = skipped;
    return steps > 0 ? 1000 * skipped / steps : 0;
}

// --- rules ---------------------------------------------------------------------------------------
typedef struct verdict {
    char *line;
    size_t size;
    bool sick;
} verdict;

static void say(verdict *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(verdict *v, const char *fmt, ...) {
    size_t used = strlen(v->line);
    if (used >= v->size)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(v->line + used, v->size - used, fmt, args);
    va_end(args);
}

static void complain(verdict *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void complain(verdict *v, const char *fmt, ...) {
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    say(v, "%s%s", v->sick ? "; " : "not healthy: ", text);
    v->sick = true;
}

static void check_loss(const mz_health *h, verdict *v) {
    int64_t bad = 0, rows = kept(h), quarter = rows / 4;
    double spread, before_spread;
    for (int64_t i = 0; i < rows && i < 10; i++)
        bad += !isfinite(h->losses[back(h, i)]);
    if (bad >= 2 || (rows == 1 && bad == 1))
        complain(v, "the loss was not finite in %lld of the last %lld reports: find the op in guard.jsonl, lower --lr",
                 (long long)bad, (long long)(rows < 10 ? rows : 10));
    if (h->jumps >= 3 && 100 * (double)h->jumps >= JUMPS_PER_HUNDRED * (double)h->rows)
        complain(v, "the loss is erratic, %lld jumps in %lld reports: lower --lr, lengthen --warmup or lower --clip",
                 (long long)h->jumps, (long long)h->rows);
    if (quarter < 8)
        return;
    double now = median_of(h, 0, quarter, &spread), before = median_of(h, quarter, 2 * quarter, &before_spread);
    double least = 1e-3 * fabs(before);
    if (now > before + RISE * (before_spread > least ? before_spread : least))
        complain(v, "the loss is rising, from %.4g to %.4g: lower --lr", before, now);
}

// Checks whether the newest quarter of the reports shows that the model has learned (docs/guard.md).
static void check_learning(const mz_health *h, verdict *v) {
    double spread, all;
    const int64_t rows = kept(h);
    int64_t newest = rows < 4 ? 1 : rows / 4;
    double now = median_of(h, 0, newest, &spread);
    while (isnan(now) && newest < rows) // goes to the newest finite losses
        now = median_of(h, 0, ++newest, &spread);
    const double first = h->first_loss;
    if (h->val_bad)
        complain(v, "the last validation loss is not finite: guard.jsonl names the op");
    const bool taken = 2 * h->skipped[back(h, 0)] <= (double)h->step; // most of the steps changed the weights
    if (!isfinite(now) || !isfinite(first) || !taken || v->sick)
        return;
    (void)median_of(h, 0, rows, &all);
    const double noise = fmax(CLEARLY_ABOVE * fabs(first), h->rows < MANY_REPORTS ? all : 0);
    if (h->rows < FEW_REPORTS) {
        if (now > (1 + CLEARLY_ABOVE) * fmax(first, h->chance) && isfinite(h->chance))
            complain(v, "the loss is above where it began, from %.4g to %.4g: lower --lr", first, now);
    } else if (now > first + noise) {
        complain(v, "the loss is above where it began, from %.4g to %.4g: lower --lr", first, now);
    } else if (h->warming) {
        return;
    } else if (now >= h->chance) {
        complain(v, "a loss of %.4g is no better than guessing, which has %.4g: try another --lr, check the data", now,
                 h->chance);
    } else if (h->rows >= MANY_REPORTS && now >= first) {
        complain(v, "the loss has not fallen, from %.4g to %.4g: try another --lr, check the data", first, now);
    }
}

static void check_scale(const mz_health *h, verdict *v) {
    double count, skips = skips_per_thousand(h, &count);
    if (skips > SKIPS_PER_THOUSAND && h->scaling && count >= LEAST_SKIPS)
        complain(v,
                 "%.0f steps in a thousand are skipped: real overflow, keep the op that guard.jsonl names in fp32, "
                 "or use bf16",
                 skips);
    else if (skips > SKIPS_PER_THOUSAND && !h->scaling)
        complain(v, "%.0f steps in a thousand are skipped: lower --lr, and check the batches that guard.jsonl names",
                 skips);
    if (h->scaling && h->step >= SEARCH_STEPS && (h->scale < LEAST_SCALE || h->scale <= COLLAPSE * h->largest_scale))
        complain(v, "the loss scale has collapsed to %g from %g: lower --lr, or use bf16", h->scale, h->largest_scale);
    if (h->underflow > MOST_UNDERFLOW)
        complain(v,
                 "%.0f%% of the fp16 gradients underflow: a higher --init-scale, a shorter --growth-interval, or bf16",
                 100 * h->underflow);
}

// Checks saturation; the tensor "h.3.mlp.c_fc.dy" belongs to the module h.3.mlp.c_fc.
static void check_saturation(const mz_health *h, verdict *v) {
    const char *role = strrchr(h->tensor, '.');
    if (h->saturated > MOST_SATURATED)
        complain(v, "%s saturates in %.0f%% of the steps: use --autocast.%.*s bf16", h->tensor, 100 * h->saturated,
                 role != NULL ? (int)(role - h->tensor) : 0, h->tensor);
}

bool mz_health_verdict(const mz_health *h, char *line, size_t size) {
    verdict v = {line, size, false};
    double spread;
    line[0] = '\0';
    if (h->rows == 0) {
        say(&v, "no verdict: nothing has been reported yet");
        return true;
    }
    check_loss(h, &v);
    check_scale(h, &v);
    check_saturation(h, &v);
    check_learning(h, &v);
    if (v.sick)
        return false;
    int64_t rows = kept(h), quarter = rows < 8 ? rows : rows / 4;
    say(&v, "healthy: %lld steps, loss about %.4g", (long long)h->step, median_of(h, 0, quarter, &spread));
    if (isfinite(h->val_loss))
        say(&v, ", validation %.4g", h->val_loss);
    // Counts the steps after the oldest row; the row of the run's first step counts that step alone.
    const size_t oldest = back(h, rows - 1);
    const bool whole = h->steps[oldest] <= 1;
    double skips = h->skipped[back(h, 0)] - (whole ? 0 : h->skipped[oldest]), late;
    int64_t steps = h->step - (whole ? 0 : h->steps[oldest]);
    steps = steps > 0 ? steps : 1;
    say(&v, ", %.0f skip%s in the last %lld step%s", skips, skips == 1 ? "" : "s", (long long)steps,
        steps == 1 ? "" : "s");
    // Where most of them are in the first steps, the verdict leaves those out.
    if (h->scaling && 1000 * skips > SKIPS_PER_THOUSAND * (double)steps &&
        2 * skips_per_thousand(h, &late) * (double)steps < 1000 * skips)
        say(&v, " while the loss scale settled");
    if (h->scaling)
        say(&v, ", loss scale %g", h->scale);
    if (isfinite(h->underflow))
        say(&v, ", %.2g%% underflow", 100 * h->underflow);
    if (h->rows < FEW_REPORTS)
        say(&v, "; %lld report%s of the loss cannot tell whether it learns", (long long)h->rows,
            h->rows == 1 ? "" : "s");
    else if (h->warming)
        say(&v, "; the learning rate still rises");
    return true;
}

// --- a run's folder ------------------------------------------------------------------------------
static double number_of(const mz_record *record, const char *name) {
    return mz_metric_as_number(mz_record_find(record, name));
}

static const char *text_of(const mz_record *record, const char *name) { // returns "" where there is none
    const mz_metric *value = mz_record_find(record, name);
    return value != NULL && value->kind == MZ_METRIC_TEXT ? value->text : "";
}

// Returns whether runs in this precision use a loss scale.
static bool scales_loss(const char *name) {
    mezzo_precision known;
    return mezzo_precision_parse(name, &known) == MEZZO_OK && mezzo_precision_needs_loss_scale(known);
}

void mz_health_add_record(mz_health *h, const mz_record *record) {
    const mz_metric *loss = mz_record_find(record, "train/loss"), *whole = mz_record_find(record, "val/loss"),
                    *sample = mz_record_find(record, "val/sampled_loss");
    mz_health_row row = {.step = record->step,
                         .loss = mz_metric_as_number(loss),
                         .val_loss = mz_metric_as_number(sample != NULL ? sample : whole),
                         .has_val = sample != NULL || whole != NULL,
                         .lr = number_of(record, "train/lr"),
                         .chance = number_of(record, "run/chance_loss"),
                         .scale = number_of(record, "amp/loss_scale"),
                         .skipped = number_of(record, "amp/skipped_steps"),
                         .underflow = number_of(record, "amp/underflow_share"),
                         .saturated = number_of(record, "fp8/most_saturated_share"),
                         .has_loss = loss != NULL};
    row.scaling = !isnan(row.scale) && (row.scale != 1 || scales_loss(text_of(record, "amp/precision")));
    snprintf(row.tensor, sizeof row.tensor, "%s", text_of(record, "fp8/most_saturated"));
    mz_health_add(h, &row);
}

mezzo_status mz_health_read(mz_health *h, const char *folder) {
    mz_lines *lines = NULL;
    const char *line;
    size_t n;
    mz_record record = {0};
    const mz_path path = mz_path_of("%s/metrics.jsonl", folder);
    mezzo_status status = mz_path_exists(path.text) ? mz_lines_open(path.text, &lines) : MEZZO_OK;
    while (status == MEZZO_OK && lines != NULL && (status = mz_lines_next(lines, &line, &n)) == MEZZO_OK &&
           line != NULL) {
        status = mz_record_read(&record, line, n);
        if (status == MEZZO_OK)
            mz_health_add_record(h, &record);
        else if (status == MEZZO_ERR_FORMAT)
            status = MEZZO_OK;
    }
    mz_record_free(&record);
    mz_lines_close(lines);
    return status;
}
