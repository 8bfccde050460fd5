// Computes received power in a city by two kinds of path, whose powers add: straight on, through whatever walls stand
// there, and the best way around corners. In the manner of dominant path models; docs/images.md has the formulas and
// their sources.
//
// Losses multiply, so here they are factors of the amplitude: a path of 100 m with a factor of 10 is as one of 1 km in
// free space, and its loss is taken at the end.
//
// From a corner one sees what is nearer than the nearest wall in that direction: a table of distances by direction
// (a shadow map), which all transmitters of the city share.
#include <float.h>
#include <math.h>

#include "tools/radio/radio.h"

enum { BINS = 4096, BENDS = 4 }; // directions; the most corners of one path
#define OUTSIDE    0.3           // metres between a corner and its walls
#define SLACK      1.0           // metres by which a wall may be missed: less than a house is deep
#define SPEED      299792458.0
#define WAVELENGTH (SPEED / (MZ_RADIO_GHZ * 1e9))
#define INDOOR_DB  0.5 // per metre inside a building: 3GPP TR 38.901, table 7.4.3-2
#define LEAST_NU   (-0.78)
#define PARTY_DB   3.45 // a wall between two houses, from either: half of COST 231's heavy wall inside, 6.9 dB
#define FARTHEST   1e5  // metres in free space: MZ_RADIO_DB more than at 1 m, black
#define CORNER_DB  20.0 // most loss of a corner: ITU-R P.1411, 4.1.3.2, urban

typedef struct edge {
    mz_point a, b;
    double wall;
} edge;

typedef struct corner {
    mz_point at;           // outside of its walls
    mz_point before, next; // unit vectors along its two walls
} corner;

// Says how a corner is reached.
typedef struct way {
    bool there;
    int bends;     // corners before this one
    double factor; // of the earlier bends
    double length; // metres from the transmitter
    double last;   // metres from the previous corner, or the transmitter
    mz_point in;   // unit vector of its direction of arrival
    int turn;      // +1, -1: the side on which its shadow is
    mz_point face; // the wall at which the shadow ends
} way;

struct mz_field {
    const mz_city *city;
    int64_t size;
    double cell;
    const uint8_t *buildings;
    edge *edges;
    size_t n_edges;
    corner *corners;
    size_t n_corners, room;
    float **seen;         // for each corner, by direction: metres to the nearest wall; NULL: not computed yet
    mz_point dir[BINS];   // unit vectors
    way *ways, *ways_new; // [n_corners]
    float *direct,
        *bent;       // metres in free space with the same loss, [size, size]; -1: in the light
    uint32_t *first; // [BINS + 1]: where the edges of a direction begin in `crossed`
    uint32_t *crossed;
    size_t n_crossed;
};

// --- formulas ------------------------------------------------------------------------------------
double mz_knife_edge_loss(double nu) {
    if (nu <= LEAST_NU)
        return 0;
    const double x = nu - 0.1;
    return 6.9 + 20 * log10(sqrt(x * x + 1) + x);
}

// Returns ν of ITU-R P.526-15 (27) for a path that is bent by the angle whose cosine is given: by its chord, 2
// sin(angle / 2).
static double bend_nu(double cosine, double before, double after) {
    return sqrt(fmax(2 - 2 * cosine, 0) * 2 / (WAVELENGTH * (1 / before + 1 / after)));
}

// Returns 10^(loss / 20) of a knife edge.
static double edge_factor(double nu) {
    const double x = nu - 0.1;
    return nu <= LEAST_NU ? 1 : 2.2130947 * (sqrt(x * x + 1) + x); // the constant is 6.9 dB
}

// Returns that factor for a corner at the end of a street: reflections around it add to what its edge bends.
static double corner_factor(double nu) {
    const double edge_loss = edge_factor(nu);
    return 1 / sqrt(1 / (edge_loss * edge_loss) + pow(10, -CORNER_DB / 10));
}

// --- plane geometry ------------------------------------------------------------------------------
static mz_point minus(mz_point a, mz_point b) {
    return (mz_point){a.x - b.x, a.y - b.y};
}

static double cross(mz_point a, mz_point b) {
    return a.x * b.y - a.y * b.x;
}

static double dot(mz_point a, mz_point b) {
    return a.x * b.x + a.y * b.y;
}

static mz_point scaled(mz_point a, double by) {
    return (mz_point){a.x * by, a.y * by};
}

static mz_point unit(mz_point a) {
    return scaled(a, 1 / sqrt(dot(a, a) + DBL_MIN));
}

// Returns a number in [0, BINS) that grows with the angle, without trigonometry.
static double direction(mz_point v) {
    const double s = fabs(v.x) + fabs(v.y) + DBL_MIN, t = v.y / s;
    const double quarter = v.x >= 0 ? (v.y >= 0 ? t : 4 + t) : 2 - t;
    return quarter >= 4 ? 0 : quarter * (BINS / 4);
}

// --- lines of sight ------------------------------------------------------------------------------
// Finds distances from `from` to the nearest wall, by direction.
static void look_around(const mz_field *f, mz_point from, float *out) {
    for (int i = 0; i < BINS; i++)
        out[i] = FLT_MAX;
    for (size_t k = 0; k < f->n_edges; k++) {
        const mz_point a = minus(f->edges[k].a, from), b = minus(f->edges[k].b, from), e = minus(b, a);
        const double area = cross(a, e); // twice the area
        if (area >= 0)                   // seen from inside: its front hides it
            continue;
        const int begin = (int)ceil(direction(b) - 0.5), end = (int)floor(direction(a) - 0.5);
        const int n = end >= begin ? end - begin : end - begin + BINS;
        if (n > BINS / 2 + 1)
            continue; // no direction's centre is within it
        for (int i = 0; i <= n; i++) {
            const int bin = (begin + i) & (BINS - 1);
            const float t = (float)(area / cross(f->dir[bin], e));
            out[bin] = t > 0 && t < out[bin] ? t : out[bin];
        }
    }
}

static bool sees(const float *seen, mz_point v, double far) {
    return far < (double)seen[(int)direction(v)] + SLACK;
}

static mezzo_status corner_view(mz_field *f, size_t c) {
    if (f->seen[c] != NULL)
        return MEZZO_OK;
    f->seen[c] = mz_alloc(BINS, sizeof **f->seen);
    if (f->seen[c] == NULL)
        return MEZZO_ERR_MEMORY;
    look_around(f, f->corners[c].at, f->seen[c]);
    return MEZZO_OK;
}

// --- making a field ------------------------------------------------------------------------------
static bool in_building(const mz_field *f, mz_point p) {
    for (size_t b = 0; b < f->city->n; b++) {
        const mz_polygon *poly = &f->city->building[b];
        bool inside = true;
        for (int i = 0; i < poly->n && inside; i++)
            inside = cross(minus(poly->p[(i + 1) % poly->n], poly->p[i]), minus(p, poly->p[i])) > 0;
        if (inside)
            return true;
    }
    return false;
}

static mezzo_status add_corners(mz_field *f, const mz_polygon *p) {
    const double e = f->city->extent;
    for (int i = 0; i < p->n; i++) {
        const mz_point at = p->p[i];
        const mz_point next = unit(minus(p->p[(i + 1) % p->n], at)),
                       before = unit(minus(p->p[(i + p->n - 1) % p->n], at));
        const double angle = cross(next, before); // sine of the angle inside
        if (angle < 0.1)                          // the corner is almost straight
            continue;
        const mz_point out =
            scaled(minus((mz_point){0, 0}, (mz_point){next.x + before.x, next.y + before.y}), 1 / angle);
        const corner c = {{at.x + OUTSIDE * out.x, at.y + OUTSIDE * out.y}, before, next};
        if (c.at.x < 0 || c.at.y < 0 || c.at.x > e || c.at.y > e || in_building(f, c.at))
            continue;
        MEZZO_TRY(MZ_RESERVE(f->corners, f->room, f->n_corners + 1));
        f->corners[f->n_corners++] = c;
    }
    return MEZZO_OK;
}

static mezzo_status fill_field(mz_field *f) {
    size_t n = 0;
    for (size_t b = 0; b < f->city->n; b++)
        n += (size_t)f->city->building[b].n;
    MEZZO_TRY(MZ_NEW(f->edges, n + 1));
    for (size_t b = 0; b < f->city->n; b++) {
        const mz_polygon *p = &f->city->building[b];
        for (int i = 0; i < p->n; i++) {
            const mz_point a = p->p[i], c = p->p[(i + 1) % p->n], way_on = unit(minus(c, a));
            const mz_point outside = {(a.x + c.x) / 2 + OUTSIDE * way_on.y, (a.y + c.y) / 2 - OUTSIDE * way_on.x};
            f->edges[f->n_edges++] = (edge){a, c, in_building(f, outside) ? PARTY_DB : p->wall};
        }
        MEZZO_TRY(add_corners(f, p));
    }
    for (int i = 0; i < BINS; i++) {
        const int quarter = i / (BINS / 4);
        const double t = (i % (BINS / 4) + 0.5) / (BINS / 4.0);
        const mz_point v = quarter % 2 == 0 ? (mz_point){1 - t, t} : (mz_point){-t, 1 - t};
        f->dir[i] = unit(scaled(v, quarter < 2 ? 1 : -1));
    }
    f->seen = mz_alloc(f->n_corners + 1, sizeof *f->seen);
    f->ways = mz_alloc(f->n_corners + 1, sizeof *f->ways);
    f->ways_new = mz_alloc(f->n_corners + 1, sizeof *f->ways_new);
    f->first = mz_alloc(BINS + 2, sizeof *f->first);
    f->direct = mz_alloc((size_t)(f->size * f->size), sizeof *f->direct);
    f->bent = mz_alloc((size_t)(f->size * f->size), sizeof *f->bent);
    const bool all = f->seen && f->ways && f->ways_new && f->first && f->direct && f->bent;
    return all ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

mezzo_status mz_field_make(const mz_city *city, int64_t size, const uint8_t *buildings, mz_field **out) {
    *out = NULL;
    mz_field *f;
    MEZZO_TRY(MZ_NEW(f, 1));
    f->city = city;
    f->size = size;
    f->cell = city->extent / (double)size;
    f->buildings = buildings;
    const mezzo_status status = fill_field(f);
    if (status == MEZZO_OK)
        *out = f;
    else
        mz_field_free(f);
    return status;
}

void mz_field_free(mz_field *f) {
    if (f == NULL)
        return;
    for (size_t c = 0; c < f->n_corners && f->seen != NULL; c++)
        mz_free(f->seen[c]);
    void *const parts[] = {f->edges,  f->corners, f->seen,  f->ways,   f->ways_new,
                           f->direct, f->bent,    f->first, f->crossed};
    for (size_t i = 0; i < MZ_COUNT(parts); i++)
        mz_free(parts[i]);
    mz_free(f);
}

// --- straight on ---------------------------------------------------------------------------------
// Finds which edges each direction from `from` may meet, one direction more on either side. `crossed` NULL: only
// counts.
static void edges_by_direction(mz_field *f, mz_point from, uint32_t *count, uint32_t *crossed) {
    for (size_t k = 0; k < f->n_edges; k++) {
        mz_point a = minus(f->edges[k].a, from), b = minus(f->edges[k].b, from);
        if (cross(a, b) < 0) {
            const mz_point kept = a;
            a = b;
            b = kept;
        }
        const int begin = (int)direction(a) - 1, end = (int)direction(b) + 1;
        const int n = end >= begin ? end - begin : end - begin + BINS;
        for (int i = 0; i <= n && i < BINS; i++) {
            const int bin = (begin + i) & (BINS - 1);
            if (crossed != NULL)
                crossed[count[bin]] = (uint32_t)k;
            count[bin]++;
        }
    }
}

static mezzo_status list_edges(mz_field *f, mz_point from) {
    memset(f->first, 0, (BINS + 2) * sizeof *f->first);
    edges_by_direction(f, from, f->first + 2, NULL);
    for (int i = 2; i < BINS + 2; i++)
        f->first[i] += f->first[i - 1];
    MEZZO_TRY(MZ_RESERVE(f->crossed, f->n_crossed, f->first[BINS + 1] + 1));
    edges_by_direction(f, from, f->first + 1, f->crossed); // first[i + 1] ends where direction i + 1 begins
    return MEZZO_OK;
}

// Returns the loss of all walls between `from` and `from + v`; 0: no wall is between.
static double walls_between(const mz_field *f, mz_point from, mz_point v, double far) {
    const int bin = (int)direction(v);
    double loss = 0, inside = 0;
    for (uint32_t i = f->first[bin]; i < f->first[bin + 1]; i++) {
        const edge *e = &f->edges[f->crossed[i]];
        const mz_point a = minus(e->a, from), wall = minus(e->b, e->a);
        const double down = cross(v, wall);
        if (down == 0)
            continue;
        const double t = cross(a, wall) / down, u = cross(a, v) / down;
        if (t <= 0 || t >= 1 || u < 0 || u >= 1)
            continue;
        loss += e->wall;
        inside += down < 0 ? -t : t; // the length inside is from entry to exit
    }
    return loss + INDOOR_DB * fmax(inside, 0) * far;
}

static mezzo_status go_straight(mz_field *f, mz_point from) {
    MEZZO_TRY(list_edges(f, from));
    for (int64_t y = 0; y < f->size; y++)
        for (int64_t x = 0; x < f->size; x++) {
            const int64_t i = y * f->size + x;
            if (f->buildings[i] != 0)
                continue;
            const mz_point v = {((double)x + 0.5) * f->cell - from.x, ((double)y + 0.5) * f->cell - from.y};
            const double far = sqrt(dot(v, v));
            const double loss = walls_between(f, from, v, far);
            f->bent[i] = loss > 0 ? FLT_MAX : -1;
            f->direct[i] = (float)(fmax(far, 1) * (loss > 0 ? pow(10, loss / 20) : 1));
        }
    return MEZZO_OK;
}

// --- around corners ------------------------------------------------------------------------------
// Returns whether the corner casts a shadow for a path that arrives in direction `in`, and where.
static bool casts_shadow(const corner *c, way *w) {
    const double before = cross(w->in, c->before), next = cross(w->in, c->next);
    if ((before < -0.01 && next > 0.01) || (before > 0.01 && next < -0.01))
        return false; // the corner faces the path
    w->turn = before + next > 0 ? 1 : -1;
    // This is the wall that the path meets first when it bends.
    w->face = cross(c->before, c->next) * w->turn > 0 ? c->before : c->next;
    return cross(w->in, w->face) * w->turn > -0.02;
}

// Extends a path by one leg to corner c, and keeps it if it is the best one to there.
static void arrive(const mz_field *f, size_t c, way w, way *ways) {
    if (!ways[c].there || w.length * w.factor < ways[c].length * ways[c].factor)
        if (casts_shadow(&f->corners[c], &w))
            ways[c] = w;
}

static void first_corners(mz_field *f, mz_point from) {
    for (size_t c = 0; c < f->n_corners; c++) {
        const mz_point v = minus(f->corners[c].at, from);
        const double far = sqrt(dot(v, v));
        f->ways[c] = (way){0};
        if (far > 0.5 && walls_between(f, from, v, far) == 0)
            arrive(f, c, (way){.there = true, .factor = 1, .length = far, .last = far, .in = unit(v)}, f->ways);
    }
}

// Returns whether a path can continue to `v` from the corner: on the side of its shadow, where `lit` is false, and not
// into a wall.
static bool turns_to(const way *w, mz_point v, double far, bool lit) {
    const double c = cross(w->in, v) * w->turn, ahead = dot(w->in, v);
    return cross(v, w->face) * w->turn >= -0.02 * far && (c >= 0 || (lit && ahead > 0 && c > -0.12 * ahead));
}

static mezzo_status next_corners(mz_field *f, int bends) {
    memcpy(f->ways_new, f->ways, f->n_corners * sizeof *f->ways);
    for (size_t c = 0; c < f->n_corners; c++) {
        const way *w = &f->ways[c];
        if (!w->there || w->bends != bends || w->length * w->factor * 2 > FARTHEST)
            continue;
        MEZZO_TRY(corner_view(f, c));
        for (size_t k = 0; k < f->n_corners; k++) {
            const mz_point v = minus(f->corners[k].at, f->corners[c].at);
            const double far = sqrt(dot(v, v));
            if (k == c || far < 1 || !turns_to(w, v, far, false) || !sees(f->seen[c], v, far))
                continue;
            const double factor = w->factor * corner_factor(bend_nu(dot(w->in, v) / far, w->last, far));
            const way on = {true, bends + 1, factor, w->length + far, far, scaled(v, 1 / far), 0, {0, 0}};
            arrive(f, k, on, f->ways_new);
        }
    }
    way *kept = f->ways;
    f->ways = f->ways_new;
    f->ways_new = kept;
    return MEZZO_OK;
}

// Finds the columns of a row at height y (from the corner) that are left of the line through the corner in direction
// `v`.
static void left_of(mz_point v, double sign, double y, double *from, double *to) {
    // The condition is sign · (v.x · y - v.y · x) ≥ 0.
    const double a = -sign * v.y, b = sign * v.x * y;
    if (fabs(a) < 1e-9) {
        if (b < 0)
            *to = -INFINITY;
    } else if (a > 0) {
        *from = fmax(*from, -b / a);
    } else {
        *to = fmin(*to, -b / a);
    }
}

// Computes one pixel in a corner's shadow, or, for a corner that the transmitter sees, in the light beside it, where
// the edge already causes a loss.
static void bend_to(mz_field *f, const way *w, const float *seen, mz_point v, int64_t i) {
    const double far = sqrt(dot(v, v)), length = w->length + far;
    if ((length * w->factor > (double)f->bent[i] && w->bends > 0) || far < 0.05 || !sees(seen, v, far) ||
        !turns_to(w, v, far, w->bends == 0))
        return;
    const double nu = bend_nu(dot(w->in, v) / far, w->last, far);
    const bool shadow = cross(w->in, v) * w->turn >= 0;
    if (shadow && f->bent[i] >= 0)
        f->bent[i] = fminf(f->bent[i], (float)(length * w->factor * corner_factor(nu)));
    else // the path is nearly straight
        f->direct[i] = fmaxf(f->direct[i], (float)(length * edge_factor(shadow ? 0 : -nu)));
}

static void light_from(mz_field *f, size_t c) {
    const way *w = &f->ways[c];
    const mz_point at = f->corners[c].at;
    const double back = w->bends == 0 ? 0.12 : 0.001, co = cos(back), si = -w->turn * sin(back);
    const mz_point start = {w->in.x * co - w->in.y * si, w->in.x * si + w->in.y * co};
    const double out = -w->turn * -0.02; // the wall's direction, turned outwards a little
    const mz_point face = {w->face.x - w->face.y * out, w->face.y + w->face.x * out};
    for (int64_t row = 0; row < f->size; row++) {
        const double y = ((double)row + 0.5) * f->cell - at.y;
        double from = -INFINITY, to = INFINITY;
        left_of(start, w->turn, y, &from, &to);
        left_of(face, -w->turn, y, &from, &to);
        if (!(from <= to))
            continue;
        const double first = ceil(fmax((from + at.x) / f->cell - 0.5, 0));
        const double last = floor(fmin((to + at.x) / f->cell - 0.5, (double)f->size - 1));
        for (int64_t x = (int64_t)first; x <= (int64_t)last; x++) {
            const int64_t i = row * f->size + x;
            if (f->buildings[i] == 0)
                bend_to(f, w, f->seen[c], (mz_point){((double)x + 0.5) * f->cell - at.x, y}, i);
        }
    }
}

mezzo_status mz_field_map(mz_field *f, mz_point transmitter, uint8_t *out) {
    MEZZO_TRY(go_straight(f, transmitter));
    first_corners(f, transmitter);
    for (int bends = 0; bends + 1 < BENDS; bends++)
        MEZZO_TRY(next_corners(f, bends));
    for (int bends = 0; bends < BENDS; bends++) // strong corners first: they save the weak ones most of their pixels
        for (size_t c = 0; c < f->n_corners; c++)
            if (f->ways[c].there && f->ways[c].bends == bends && f->ways[c].length * f->ways[c].factor < FARTHEST) {
                MEZZO_TRY(corner_view(f, c));
                light_from(f, c);
            }
    for (int64_t i = 0; i < f->size * f->size; i++) {
        if (f->buildings[i] != 0) {
            out[i] = 0;
            continue;
        }
        const double direct = (double)f->direct[i], bent = (double)f->bent[i];
        const double power = 1 / (direct * direct) + (bent > 0 ? 1 / (bent * bent) : 0);
        out[i] = mz_radio_gray(mz_free_space_loss(1) - 10 * log10(power));
    }
    return MEZZO_OK;
}
