// Reports tensors in 8 bits whose numbers are beyond the format: the counts of the table of scales, as metrics and for
// the verdict on health.
#include <math.h>

#include "train/report.h"

// A step in 20 is saturated by accident in few tensors: a window of fewer steps would name them.
enum { WINDOW = 200 };

struct mz_saturation {
    mz_scale_entry *entries, *before, *start; // now, at the last row, at the window's beginning
    int n;                                    // of `before` and `start`
    int64_t step, window;                     // when those were
    char name[160];                           // of the last whole window the tensor with most saturated steps
    double share;                             // of its steps; NaN: there was no window yet
};

mezzo_status mz_saturation_create(mz_saturation **out) {
    *out = mz_alloc(1, sizeof **out);
    if (*out == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    (*out)->share = (double)NAN;
    return MEZZO_OK;
}

void mz_saturation_free(mz_saturation *s) {
    if (s == NULL)
        return;
    mz_free(s->entries);
    mz_free(s->before);
    mz_free(s->start);
    mz_free(s);
}

// The table has grown: what is new has been counted from here on.
static mezzo_status make_room(mz_saturation *s, int n) {
    mz_scale_entry **const tables[] = {&s->entries, &s->before, &s->start};
    for (size_t k = 0; k < MZ_COUNT(tables); k++) {
        mz_scale_entry *larger = mz_alloc((size_t)n, sizeof *larger);
        if (larger == NULL)
            return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
        if (s->n > 0)
            memcpy(larger, *tables[k], (size_t)s->n * sizeof *larger);
        mz_free(*tables[k]);
        *tables[k] = larger;
    }
    return MEZZO_OK;
}

static void end_window(mz_saturation *s, const mz_scales *scales, int64_t step) {
    int most = -1;
    double steps = (double)(step - s->window);
    s->share = 0;
    for (int i = 0; i < s->n; i++) {
        const double share = (double)(s->entries[i].saturated - s->start[i].saturated) / steps;
        if (share > s->share) {
            s->share = share;
            most = i;
        }
    }
    snprintf(s->name, sizeof s->name, "%s", most >= 0 ? scales->names[most] : "");
    memcpy(s->start, s->entries, (size_t)s->n * sizeof *s->start);
    s->window = step;
}

mezzo_status mz_saturation_rows(mz_saturation *s, mezzo_device *device, const mz_scales *scales, int64_t step,
                                mz_metric *row, size_t *n, double *share, const char **name) {
    const int64_t steps = step - s->step;
    int64_t saturated = 0, changes = 0, known = 0;
    *share = s->share;
    *name = s->name;
    if (scales->n == 0 || steps == 0)
        return MEZZO_OK;
    const int had = s->n;
    if (scales->n > had)
        MEZZO_TRY(make_room(s, scales->n));
    MEZZO_TRY(mz_scales_read(device, scales, s->entries));
    for (int i = had; i < scales->n; i++)
        s->before[i] = s->start[i] = s->entries[i];
    s->n = scales->n;
    if (steps < 0 || had == 0) { // gone back, or the first row: counted from here on
        memcpy(s->before, s->entries, (size_t)s->n * sizeof *s->before);
        memcpy(s->start, s->entries, (size_t)s->n * sizeof *s->start);
        s->window = s->step = step;
        return MEZZO_OK;
    }
    for (int i = 0; i < s->n; i++) {
        saturated += s->entries[i].saturated - s->before[i].saturated;
        changes += s->entries[i].changes - s->before[i].changes;
        known += s->entries[i].n > 0;
    }
    if (step - s->window >= WINDOW)
        end_window(s, scales, step);
    memcpy(s->before, s->entries, (size_t)s->n * sizeof *s->before);
    s->step = step;
    row[(*n)++] =
        mz_metric_number("fp8/saturated_share", known > 0 ? (double)saturated / ((double)known * (double)steps) : 0);
    row[(*n)++] = mz_metric_int("fp8/scale_changes", changes);
    if (!isnan(s->share)) {
        row[(*n)++] = mz_metric_number("fp8/most_saturated_share", s->share);
        row[(*n)++] = mz_metric_text("fp8/most_saturated", s->name);
    }
    *share = s->share;
    return MEZZO_OK;
}
