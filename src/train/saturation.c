// Reports 8-bit tensors whose numbers exceed the format: the counts in the table of scales, as metrics and for the
// verdict on health.
#include <math.h>

#include "train/report.h"

// By chance a step in 20 is saturated in some tensors, and a window of fewer steps would name them.
enum { WINDOW = 200 };

struct mz_saturation {
    int32_t *start;             // each tensor's saturated steps at the window's beginning
    int n;                      // number of tensors
    int64_t saturated, changes; // sums over all tensors, as of the last row
    int64_t step, window;       // the step of the last row, and that of the window's beginning
    char name[160];             // the tensor with most saturated steps in the last complete window
    double share;               // its share of saturated steps; NaN: no window is complete yet
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
    MZ_FREE(s->start, s);
}

// Starts counting for tensors that are new in the table.
static mezzo_status add_new(mz_saturation *s, const mz_scales *scales) {
    size_t cap = (size_t)s->n;
    MEZZO_TRY(MZ_RESERVE(s->start, cap, (size_t)scales->n));
    for (; s->n < scales->n; s->n++) {
        s->start[s->n] = scales->host[s->n].saturated;
        s->saturated += scales->host[s->n].saturated;
        s->changes += scales->host[s->n].changes;
    }
    return MEZZO_OK;
}

static void begin_window(mz_saturation *s, const mz_scales *scales, int64_t step) {
    for (int i = 0; i < s->n; i++)
        s->start[i] = scales->host[i].saturated;
    s->window = step;
}

static void end_window(mz_saturation *s, const mz_scales *scales, int64_t step) {
    int most = -1;
    double steps = (double)(step - s->window);
    s->share = 0;
    for (int i = 0; i < s->n; i++) {
        const double share = (double)(scales->host[i].saturated - s->start[i]) / steps;
        if (share > s->share) {
            s->share = share;
            most = i;
        }
    }
    snprintf(s->name, sizeof s->name, "%s", most >= 0 ? scales->names[most] : "");
    begin_window(s, scales, step);
}

mezzo_status mz_saturation_rows(mz_saturation *s, mezzo_device *device, mz_scales *scales, int64_t step, mz_metric *row,
                                size_t *n, double *share, const char **name) {
    const int64_t steps = step - s->step;
    int64_t saturated = 0, changes = 0, known = 0;
    *share = s->share;
    *name = s->name;
    if (scales->n == 0 || steps == 0)
        return MEZZO_OK;
    const bool first = s->n == 0;
    MEZZO_TRY(mz_scales_read(device, scales));
    MEZZO_TRY(add_new(s, scales));
    for (int i = 0; i < s->n; i++) {
        saturated += scales->host[i].saturated;
        changes += scales->host[i].changes;
        known += scales->host[i].n > 0;
    }
    const int64_t more = saturated - s->saturated, more_changes = changes - s->changes;
    s->saturated = saturated;
    s->changes = changes;
    s->step = step;
    if (steps < 0 || first) { // after a rollback, or for the first row, counting starts here
        begin_window(s, scales, step);
        return MEZZO_OK;
    }
    if (step - s->window >= WINDOW)
        end_window(s, scales, step);
    row[(*n)++] =
        mz_metric_number("fp8/saturated_share", known > 0 ? (double)more / ((double)known * (double)steps) : 0);
    row[(*n)++] = mz_metric_int("fp8/scale_changes", more_changes);
    if (!isnan(s->share)) {
        row[(*n)++] = mz_metric_number("fp8/most_saturated_share", s->share);
        row[(*n)++] = mz_metric_text("fp8/most_saturated", s->name);
    }
    *share = s->share;
    return MEZZO_OK;
}
