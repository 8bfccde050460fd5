// Finds where the speedup of one width crosses 1, and how sure that is.
//
// ln(speedup) of pair j at point i: y_ij = m_i + b_ij + e_ij. The scatter b between shapes has one variance for the
// width, pooled over its points; the error e of the timings is known for each pair, from the repeats of its two rows. A
// draw takes the pooled variance s² as s²·f/χ²(f) of its f degrees of freedom, minus the part of the timings, and adds
// the timings' errors; with one pair a point these are the rows' standard errors times Student's t. m_i's draw is the
// point's median plus the median of such errors: generalized pivots (Weerahandi 1993), which for one pair a point give
// the Behrens–Fisher interval.
#include <math.h>

#include "study/analyse/analysis.h"

// --- random numbers ------------------------------------------------------------------------------------------------
typedef struct normals {
    mz_philox_key key;
    uint64_t index;
    float ready[4];
    int left;
} normals;

static double next_normal(normals *n) {
    if (n->left == 0) {
        uint32_t words[4];
        mz_philox(n->key, n->index++, words);
        mz_normal4(words, n->ready);
        n->left = 4;
    }
    return (double)n->ready[--n->left];
}

// Draws χ² divided by its degrees of freedom; from 256 on by Wilson & Hilferty's cube.
static double next_chi_square(normals *n, int freedom) {
    double sum = 0;
    if (freedom >= 256) {
        const double c = 2.0 / (9.0 * freedom), root = 1 - c + next_normal(n) * sqrt(c);
        return root * root * root;
    }
    for (int i = 0; i < freedom; i++) {
        const double z = next_normal(n);
        sum += z * z;
    }
    return sum / freedom;
}

// --- noise ---------------------------------------------------------------------------------------------------------
typedef struct scatter { // the scatter of one width
    const mz_pair *pairs;
    size_t *start;         // [points + 1]: the first pair of each point
    double pooled, timing; // variances within points: of the pairs, and the mean part of it that the timings make
    int freedom;           // of `pooled`; 0: there is one pair a point, or they are equal
} scatter;

static bool is_timed(const mz_pair *p) {
    return p->error > 0;
}

static void find_scatter(const mz_curve *c, scatter *s) {
    size_t timed = 0;
    for (size_t i = 0; i < c->n; i++) {
        const size_t from = s->start[i], to = s->start[i + 1];
        double mean = 0, squares = 0;
        for (size_t j = from; j < to; j++) {
            const double before = log(s->pairs[j].speedup) - mean;
            mean += before / (double)(j - from + 1);
            squares += before * (log(s->pairs[j].speedup) - mean);
            if (is_timed(&s->pairs[j])) {
                s->timing += s->pairs[j].error * s->pairs[j].error;
                timed++;
            }
        }
        s->pooled += squares;
        s->freedom += (int)(to - from) - 1;
    }
    if (s->pooled <= 1e-24) // differences by rounding do not count as scatter
        s->freedom = 0;
    if (s->freedom > 0)
        s->pooled /= s->freedom;
    if (timed > 0)
        s->timing /= (double)timed;
}

// Draws the error of a pair's timing. Standard errors of few repeats are themselves uncertain, which Student's t
// accounts for; where pairs scatter, the draw of their pooled variance does.
static double draw_timing(const scatter *s, const mz_pair *p, normals *n) {
    double sum = 0;
    if (s->freedom > 0)
        return p->error * next_normal(n);
    for (int k = 0; k < 2; k++)
        sum += p->errors[k] * next_normal(n) / sqrt(next_chi_square(n, p->repeats[k] - 1));
    return sum;
}

// Draws ln of each point's median. sample: memory for the pairs of a point.
static void draw_medians(const mz_curve *c, const scatter *s, normals *n, double *sample, double *medians) {
    double between = 0;
    if (s->freedom > 0)
        between = sqrt(fmax(0, s->pooled / next_chi_square(n, s->freedom) - s->timing));
    for (size_t i = 0; i < c->n; i++) {
        const size_t from = s->start[i], count = s->start[i + 1] - from;
        for (size_t j = 0; j < count; j++) {
            sample[j] = between > 0 ? between * next_normal(n) : 0;
            if (is_timed(&s->pairs[from + j]))
                sample[j] += draw_timing(s, &s->pairs[from + j], n);
        }
        mz_sort(sample, count);
        medians[i] = log(c->points[i].speedup.median) + mz_quantile(sample, count, 0.5);
    }
}

// --- crossings of a line -------------------------------------------------------------------------------------------
// Finds sign changes of ln(median) along the points first … last. A point at exactly 1 has no sign; a crossing over
// such points lies in their middle.
static int find_crossings(const mz_curve_point *points, const double *medians, size_t first, size_t last,
                          mz_crossing *out) {
    int found = 0;
    for (size_t before = first, i = first; i <= last && found < MZ_CROSSINGS_MAX; i++) {
        const double a = medians[before], b = medians[i];
        if (b == 0)
            continue;
        if (a == 0 || (a < 0) == (b < 0)) {
            before = i;
            continue;
        }
        double x0 = log((double)points[before].tokens), x1 = log((double)points[i].tokens);
        double x = x0 + (x1 - x0) * a / (a - b);
        if (i - before > 1)
            x = (log((double)points[before + 1].tokens) + log((double)points[i - 1].tokens)) / 2;
        out[found++] = (mz_crossing){.tokens = exp(x), .up = b > 0};
        before = i;
    }
    return found;
}

// Returns the crossing between two points on opposite sides of 1: the middle one where the line crosses several times.
// Where a draw puts the points elsewhere, the crossing lies at or beyond the point that changed sides.
static double crossing_between(const mz_curve_point *points, const double *medians, size_t first, size_t last,
                               bool up) {
    mz_crossing all[MZ_CROSSINGS_MAX];
    const int n = find_crossings(points, medians, first, last, all);
    if (n % 2 == 1 && all[n / 2].up == up)
        return all[n / 2].tokens;
    return (double)points[(medians[first] > 0) == up ? first : last].tokens;
}

// --- data of the points --------------------------------------------------------------------------------------------
// Returns -1 below 1 and 1 above; 0: not known, because the interval contains 1. Without noise the median decides.
static int side_of(const mz_curve_point *p) {
    if (isnan(p->interval.low))
        return (p->speedup.median > 1) - (p->speedup.median < 1);
    return (p->interval.low > 1) - (p->interval.high < 1);
}

static void quantiles(double *x, size_t n, double level, mz_interval *out) {
    mz_sort(x, n);
    out->low = mz_quantile(x, n, (1 - level) / 2);
    out->high = mz_quantile(x, n, (1 + level) / 2);
}

// Fills the points' intervals from drawn [draws, points]; NULL: the noise is not known.
static void fill_points(mz_curve *c, const double *drawn, size_t draws, double level, double *column) {
    for (size_t i = 0; i < c->n; i++) {
        mz_interval *interval = &c->points[i].interval;
        interval->low = interval->high = (double)NAN;
        if (drawn == NULL)
            continue;
        for (size_t d = 0; d < draws; d++)
            column[d] = drawn[d * c->n + i];
        quantiles(column, draws, level, interval);
        interval->low = exp(interval->low);
        interval->high = exp(interval->high);
    }
}

static void add_crossing(mz_curve *c, const double *medians, size_t first, size_t last, const double *drawn,
                         size_t draws, double level, double *column) {
    mz_crossing *x = &c->crossings[c->n_crossings++];
    x->up = side_of(&c->points[last]) > 0;
    x->tokens = crossing_between(c->points, medians, first, last, x->up);
    x->interval.low = x->interval.high = (double)NAN;
    if (drawn == NULL)
        return;
    for (size_t d = 0; d < draws; d++)
        column[d] = crossing_between(c->points, drawn + d * c->n, first, last, x->up);
    quantiles(column, draws, level, &x->interval);
}

// Finds crossings between points on opposite sides of 1, and counts those of the line that no such points support.
static void establish(mz_curve *c, const double *medians, const double *drawn, size_t draws, double level,
                      double *column) {
    mz_crossing line[MZ_CROSSINGS_MAX];
    const int n = find_crossings(c->points, medians, 0, c->n - 1, line);
    size_t last = SIZE_MAX;
    for (size_t i = 0; i < c->n; i++) {
        const int side = side_of(&c->points[i]);
        if (side == 0)
            continue;
        if (last != SIZE_MAX && side != side_of(&c->points[last]) && c->n_crossings < MZ_CROSSINGS_MAX)
            add_crossing(c, medians, last, i, drawn, draws, level, column);
        last = i;
    }
    for (int k = 0; k < n; k++) {
        bool carried = false;
        for (int m = 0; m < c->n_crossings; m++)
            carried = carried || c->crossings[m].tokens == line[k].tokens;
        if (carried)
            continue;
        if (c->n_open++ == 0)
            c->open_tokens = line[k].tokens;
    }
}

mezzo_status mz_curve_crossings(mz_curve *c, const mz_pair *pairs, size_t n, int draws, double level, uint64_t seed,
                                uint32_t stream) {
    mezzo_status status = MEZZO_OK;
    const size_t count = (size_t)draws;
    scatter s = {.pairs = pairs, .start = mz_alloc(c->n + 1, sizeof *s.start)};
    double *medians = mz_alloc(c->n, sizeof *medians), *sample = mz_alloc(n, sizeof *sample);
    double *column = mz_alloc(count, sizeof *column), *drawn = NULL;
    if (s.start == NULL || medians == NULL || sample == NULL || column == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    for (size_t i = 0; i < c->n; i++) {
        s.start[i + 1] = s.start[i] + c->points[i].speedup.n;
        medians[i] = log(c->points[i].speedup.median);
    }
    find_scatter(c, &s);
    c->noise = s.freedom > 0 ? MZ_NOISE_SHAPES : s.timing > 0 ? MZ_NOISE_TIMING : MZ_NOISE_UNKNOWN;
    if (c->noise != MZ_NOISE_UNKNOWN) {
        MEZZO_TRY_GOTO(status, MZ_NEW(drawn, count * c->n));
        for (size_t d = 0; d < count; d++) {
            normals random = {.key = {seed, (uint32_t)d, stream}};
            draw_medians(c, &s, &random, sample, drawn + d * c->n);
        }
    }
    fill_points(c, drawn, count, level, column);
    establish(c, medians, drawn, count, level, column);
fail:
    MZ_FREE(s.start, medians, sample, column, drawn);
    return status;
}
