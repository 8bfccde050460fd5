// Keeps one metric of a run log in stretches, and computes its ends, its median and the line to draw.
#include <math.h>

#include "base/sort.h"
#include "study/page/run_log.h"

// --- stretches -----------------------------------------------------------------------------------------------------
// Adds extremes to a stretch. A number that is not finite must stay visible, so it counts as lower and higher than any
// number.
static void see(mz_stretch *s, int64_t low_step, double low, int64_t high_step, double high) {
    if (!isfinite(low) || (isfinite(s->low) && low < s->low)) {
        s->low = low;
        s->low_step = low_step;
    }
    if (!isfinite(high) || (isfinite(s->high) && high > s->high)) {
        s->high = high;
        s->high_step = high_step;
    }
}

static void join_pairs(mz_series *s) {
    for (size_t i = 0; i + 1 < s->n; i += 2) {
        mz_stretch joined = s->stretches[i];
        const mz_stretch *next = &s->stretches[i + 1];
        see(&joined, next->low_step, next->low, next->high_step, next->high);
        joined.sum += next->sum;
        joined.count += next->count;
        joined.finite += next->finite;
        s->stretches[i / 2] = joined;
    }
    s->n /= 2;
    s->each *= 2;
}

mezzo_status mz_series_add(mz_series *s, int64_t step, double value) {
    const bool finite = isfinite(value);
    s->each = s->each > 0 ? s->each : 1;
    if (s->n == 0 || s->stretches[s->n - 1].count == s->each) {
        if (s->n == MZ_STRETCHES_MAX)
            join_pairs(s);
        else
            MEZZO_TRY(MZ_RESERVE(s->stretches, s->cap, s->n + 1));
    }
    if (s->n > 0 && s->stretches[s->n - 1].count < s->each)
        see(&s->stretches[s->n - 1], step, value, step, value);
    else
        s->stretches[s->n++] = (mz_stretch){
            .step = step, .first = value, .low_step = step, .high_step = step, .low = value, .high = value};
    mz_stretch *last = &s->stretches[s->n - 1];
    last->sum += finite ? value : 0;
    last->count++;
    last->finite += finite;
    s->least = finite && (s->count == 0 || !(s->least <= value)) ? value : s->count == 0 ? (double)NAN : s->least;
    s->count++;
    s->last = value;
    s->last_step = step;
    return MEZZO_OK;
}

void mz_series_free(mz_series *s) {
    MZ_FREE(s->name, s->stretches);
    *s = (mz_series){0};
}

// --- queries --------------------------------------------------------------------------------------------------------
double mz_series_last(const mz_series *s) {
    return s != NULL && s->n > 0 ? s->last : (double)NAN;
}

double mz_series_least(const mz_series *s) {
    return s != NULL && s->n > 0 ? s->least : (double)NAN;
}

double mz_series_at(const mz_series *s, int64_t step) {
    if (s == NULL || s->n == 0)
        return (double)NAN;
    if (s->last_step == step)
        return s->last;
    for (size_t i = s->n; i-- > 0 && s->stretches[i].step >= step;)
        if (s->stretches[i].step == step)
            return s->stretches[i].first;
    return (double)NAN;
}

double mz_series_end(const mz_series *s, int64_t up_to) {
    size_t n = 0;
    int64_t count = 0, found = 0;
    double sum = 0;
    for (; s != NULL && n < s->n && s->stretches[n].step <= up_to; n++)
        count += s->stretches[n].count;
    const int64_t take = count / 10 > 1 ? count / 10 : 1;
    while (n > 0 && found < take) {
        n--;
        sum += s->stretches[n].sum;
        found += s->stretches[n].finite;
    }
    return found > 0 ? sum / (double)found : (double)NAN;
}

mezzo_status mz_series_middle(const mz_series *s, double *out) {
    size_t n = 0;
    *out = (double)NAN;
    if (s == NULL)
        return MEZZO_OK;
    double *finite;
    MEZZO_TRY(MZ_NEW(finite, s->n + 1));
    for (size_t i = 0; i < s->n; i++)
        if (isfinite(s->stretches[i].first))
            finite[n++] = s->stretches[i].first;
    if (n > 0)
        *out = mz_median(finite, n);
    mz_free(finite);
    return MEZZO_OK;
}

// --- two series ----------------------------------------------------------------------------------------------------
int64_t mz_series_last_common(const mz_series *a, const mz_series *b) {
    if (a == NULL || b == NULL || a->n == 0 || b->n == 0)
        return -1;
    const mz_series *shorter = a->last_step <= b->last_step ? a : b, *longer = shorter == a ? b : a;
    if (isfinite(shorter->last) && isfinite(mz_series_at(longer, shorter->last_step)))
        return shorter->last_step;
    for (size_t i = a->n, k = b->n; i > 0 && k > 0;) {
        const mz_stretch *x = &a->stretches[i - 1], *y = &b->stretches[k - 1];
        if (x->step == y->step && isfinite(x->first) && isfinite(y->first))
            return x->step;
        i -= x->step >= y->step;
        k -= x->step <= y->step;
    }
    return -1;
}

mezzo_status mz_series_subtract(const mz_series *a, const mz_series *b, mz_series *out) {
    for (size_t i = 0, k = 0; i < a->n && k < b->n;) {
        const mz_stretch *x = &a->stretches[i], *y = &b->stretches[k];
        if (x->step == y->step)
            MEZZO_TRY(mz_series_add(out, x->step, x->first - y->first));
        i += x->step <= y->step;
        k += y->step <= x->step;
    }
    return MEZZO_OK;
}

// --- drawing -------------------------------------------------------------------------------------------------------
static size_t put(mz_point *points, size_t n, int64_t step, double value) {
    if (n > 0 && points[n - 1].step == step)
        return n;
    points[n] = (mz_point){step, value};
    return n + 1;
}

size_t mz_series_thin(const mz_series *s, size_t buckets, mz_point *points) {
    size_t n = 0;
    if (s->each <= 1 && s->n <= 2 * buckets + 2) {
        for (; n < s->n; n++)
            points[n] = (mz_point){s->stretches[n].step, s->stretches[n].first};
        return n;
    }
    n = put(points, n, s->stretches[0].step, s->stretches[0].first);
    for (size_t b = 0; b < buckets; b++) {
        const size_t from = b * s->n / buckets, to = (b + 1) * s->n / buckets;
        if (from == to)
            continue;
        mz_stretch all = s->stretches[from];
        for (size_t i = from + 1; i < to; i++)
            see(&all, s->stretches[i].low_step, s->stretches[i].low, s->stretches[i].high_step, s->stretches[i].high);
        const bool low_first = all.low_step < all.high_step;
        n = put(points, n, low_first ? all.low_step : all.high_step, low_first ? all.low : all.high);
        if (all.low_step != all.high_step)
            n = put(points, n, low_first ? all.high_step : all.low_step, low_first ? all.high : all.low);
    }
    return put(points, n, s->last_step, s->last);
}
