// Makes a random city: streets, wide ones first, divide a square into blocks; blocks become houses in the style of
// their district: closed fronts around a yard, detached houses, rows, halls, or a park. All polygons are convex, and
// one operation makes them: cutting by a line.
#include <math.h>

#include "tools/radio/radio.h"

#define PHILOX_CITY        0x2AD10000u // the `tensor` words of this file's draws
#define PHILOX_TRANSMITTER 0x2AD10001u

enum { STYLES = 5, MIN_AREA = 25 };
typedef enum style { CLOSED, DETACHED, ROWS, HALL, PARK } style;

typedef struct maker {
    mz_city *city;
    mz_philox_key key;
    uint64_t drawn;
    double dense; // density: 0 suburb, 1 centre
} maker;

// Draws a number, uniform in [a, b).
static double draw(maker *m, double a, double b) {
    uint32_t words[4];
    mz_philox(m->key, m->drawn++, words);
    return a + (b - a) * (double)mz_uniform(words[0]);
}

// --- polygons ------------------------------------------------------------------------------------
typedef struct line {
    mz_point at, way; // the left side of `way` is kept
} line;

static double side(const line *l, mz_point p) {
    return l->way.x * (p.y - l->at.y) - l->way.y * (p.x - l->at.x);
}

static mz_polygon cut(const mz_polygon *from, line l) {
    mz_polygon out = {.wall = from->wall};
    for (int i = 0; i < from->n && out.n < MZ_POLYGON - 1; i++) {
        const mz_point a = from->p[i], b = from->p[(i + 1) % from->n];
        const double sa = side(&l, a), sb = side(&l, b);
        if (sa >= 0)
            out.p[out.n++] = a;
        if ((sa < 0) != (sb < 0)) {
            const double t = sa / (sa - sb);
            out.p[out.n++] = (mz_point){a.x + t * (b.x - a.x), a.y + t * (b.y - a.y)};
        }
    }
    if (out.n < 3)
        out.n = 0;
    return out;
}

static double area(const mz_polygon *p) {
    double sum = 0;
    for (int i = 0; i < p->n; i++) {
        const mz_point a = p->p[i], b = p->p[(i + 1) % p->n];
        sum += a.x * b.y - a.y * b.x;
    }
    return sum / 2;
}

static mz_point middle(const mz_polygon *p) {
    mz_point sum = {0};
    for (int i = 0; i < p->n; i++) {
        sum.x += p->p[i].x / p->n;
        sum.y += p->p[i].y / p->n;
    }
    return sum;
}

static mz_point unit(mz_point from, mz_point to) {
    const double dx = to.x - from.x, dy = to.y - from.y, d = sqrt(dx * dx + dy * dy);
    return d > 0 ? (mz_point){dx / d, dy / d} : (mz_point){1, 0};
}

// Returns the line along edge i, moved inside by the distance `by`.
static line along(const mz_polygon *p, int i, double by) {
    const mz_point a = p->p[i], w = unit(a, p->p[(i + 1) % p->n]);
    return (line){{a.x - w.y * by, a.y + w.x * by}, w};
}

static line turned(line l) {
    return (line){l.at, {-l.way.x, -l.way.y}};
}

static mz_polygon inset(const mz_polygon *p, double by) {
    mz_polygon out = *p;
    for (int i = 0; i < p->n && out.n > 0; i++)
        out = cut(&out, along(p, i, by));
    return out;
}

static int longest_edge(const mz_polygon *p) {
    int best = 0;
    double most = -1;
    for (int i = 0; i < p->n; i++) {
        const mz_point a = p->p[i], b = p->p[(i + 1) % p->n];
        const double d = hypot(b.x - a.x, b.y - a.y);
        if (d > most) {
            most = d;
            best = i;
        }
    }
    return best;
}

// Finds the extent of the polygon from `at` along `way`: from *least to *most.
static void reach(const mz_polygon *p, mz_point at, mz_point way, double *least, double *most) {
    *least = INFINITY;
    *most = -INFINITY;
    for (int i = 0; i < p->n; i++) {
        const double t = (p->p[i].x - at.x) * way.x + (p->p[i].y - at.y) * way.y;
        *least = fmin(*least, t);
        *most = fmax(*most, t);
    }
}

// --- buildings -----------------------------------------------------------------------------------
static mezzo_status build(maker *m, mz_polygon p) {
    const double e = m->city->extent, over = 4;
    const line window[4] = {{{-over, -over}, {1, 0}},
                            {{e + over, -over}, {0, 1}},
                            {{e + over, e + over}, {-1, 0}},
                            {{-over, e + over}, {0, -1}}};
    for (int i = 0; i < 4 && p.n > 0; i++)
        p = cut(&p, window[i]);
    if (p.n == 0 || area(&p) < MIN_AREA)
        return MEZZO_OK;
    MEZZO_TRY(MZ_RESERVE(m->city->building, m->city->room, m->city->n + 1));
    m->city->building[m->city->n++] = p;
    return MEZZO_OK;
}

// Returns the loss of a new building's walls: ITU-R P.2109-1's median at 5.9 GHz, for traditional (16.1 dB) or
// thermally efficient (30.9 dB) buildings.
static double walls(maker *m) {
    return draw(m, 0, 1) < 0.75 ? 16.1 : 30.9;
}

// Cuts `p` across edge i's direction into pieces of about `length`, of which some stay empty.
static mezzo_status terrace(maker *m, const mz_polygon *p, int i, double length, double empty, double setback) {
    if (p->n == 0)
        return MEZZO_OK;
    const mz_point at = p->p[i], way = unit(at, p->p[(i + 1) % p->n]), across = {-way.y, way.x};
    double least, most;
    reach(p, at, way, &least, &most);
    for (double t = least; t < most - 1;) {
        double next = t + length * draw(m, 0.7, 1.4);
        if (most - next < 0.5 * length)
            next = most;
        mz_polygon lot = cut(p, (line){{at.x + t * way.x, at.y + t * way.y}, {-across.x, -across.y}});
        lot = cut(&lot, (line){{at.x + next * way.x, at.y + next * way.y}, across});
        if (setback > 0 && lot.n > 0) // fronts that do not form one line
            lot = cut(&lot, along(p, i, draw(m, 0, setback)));
        lot.wall = walls(m);
        if (draw(m, 0, 1) >= empty && lot.n > 0)
            MEZZO_TRY(build(m, lot));
        t = next;
    }
    return MEZZO_OK;
}

// Builds fronts along every street, with a yard behind them.
static mezzo_status closed_block(maker *m, const mz_polygon *block) {
    const double depth = draw(m, 9, 13), length = draw(m, 13, 24), empty = draw(m, 0.03, 0.2);
    for (int i = 0; i < block->n; i++) {
        mz_polygon strip = cut(block, turned(along(block, i, depth)));
        for (int j = 0; j < i && strip.n > 0; j++)
            strip = cut(&strip, along(block, j, depth));
        if (strip.n == 0)
            continue;
        int front = longest_edge(&strip);
        MEZZO_TRY(terrace(m, &strip, front, length, empty, 0));
    }
    const mz_polygon yard = inset(block, depth + 7);
    if (yard.n > 0 && area(&yard) > 250 && draw(m, 0, 1) < 0.6) {
        mz_polygon house = inset(&yard, draw(m, 1, 4));
        house.wall = walls(m);
        MEZZO_TRY(build(m, house));
    }
    return MEZZO_OK;
}

// Halves a lot repeatedly, and builds a house on each.
static mezzo_status detached(maker *m, const mz_polygon *lot, double size, double garden) {
    const double a = area(lot);
    if (a < MIN_AREA)
        return MEZZO_OK;
    const int edge = longest_edge(lot);
    if (a > size) {
        const mz_point way = unit(lot->p[edge], lot->p[(edge + 1) % lot->n]), c = middle(lot);
        const double shift = draw(m, -0.12, 0.12) * sqrt(a);
        const line l = {{c.x + shift * way.x, c.y + shift * way.y}, {-way.y, way.x}};
        const mz_polygon left = cut(lot, l), right = cut(lot, turned(l));
        MEZZO_TRY(left.n > 0 ? detached(m, &left, size, garden) : MEZZO_OK);
        return right.n > 0 ? detached(m, &right, size, garden) : MEZZO_OK;
    }
    if (draw(m, 0, 1) < 0.12)
        return MEZZO_OK;
    mz_polygon house = inset(lot, garden * draw(m, 0.7, 1.2));
    house.wall = walls(m);
    if (house.n == 0)
        return MEZZO_OK;
    if (draw(m, 0, 1) > 0.4 || house.n != 4)
        return build(m, house);
    // This makes an L: two halves, one of them less deep.
    const int e = longest_edge(&house);
    const mz_point way = unit(house.p[e], house.p[(e + 1) % house.n]), c = middle(&house);
    const line l = {c, {-way.y, way.x}};
    mz_polygon half = cut(&house, l), wing = cut(&house, turned(l));
    wing = wing.n > 0 ? cut(&wing, (line){c, way}) : wing;
    MEZZO_TRY(half.n > 0 ? build(m, half) : MEZZO_OK);
    return wing.n > 0 ? build(m, wing) : MEZZO_OK;
}

// Builds parallel slabs.
static mezzo_status rows(maker *m, const mz_polygon *block) {
    const int e = longest_edge(block);
    const double depth = draw(m, 10, 13), gap = draw(m, 13, 20), length = draw(m, 24, 45);
    const mz_polygon ground = inset(block, 2);
    if (ground.n == 0)
        return MEZZO_OK;
    const mz_point at = ground.p[0], way = unit(block->p[e], block->p[(e + 1) % block->n]), up = {-way.y, way.x};
    double least, most;
    reach(&ground, at, up, &least, &most);
    for (double t = least; t + depth * 0.7 < most; t += depth + gap) {
        mz_polygon slab = cut(&ground, (line){{at.x + t * up.x, at.y + t * up.y}, way});
        slab = cut(&slab, turned((line){{at.x + (t + depth) * up.x, at.y + (t + depth) * up.y}, way}));
        if (slab.n > 0)
            MEZZO_TRY(terrace(m, &slab, longest_edge(&slab), length, 0.18, 0));
    }
    return MEZZO_OK;
}

static mezzo_status hall(maker *m, const mz_polygon *block) {
    mz_polygon house = inset(block, draw(m, 2, 6));
    house.wall = walls(m);
    if (house.n == 0)
        return MEZZO_OK;
    if (draw(m, 0, 1) < 0.5)
        return build(m, house);
    return terrace(m, &house, longest_edge(&house), draw(m, 22, 40), 0.25, 9);
}

static mezzo_status fill_block(maker *m, const mz_polygon *block, style kind) {
    // A district has its style, with exceptions.
    if (draw(m, 0, 1) < 0.22)
        kind = (style)(int)draw(m, 0, STYLES);
    switch (kind) {
    case CLOSED:
        return closed_block(m, block);
    case DETACHED:
        return detached(m, block, draw(m, 230, 420), draw(m, 2.2, 4));
    case ROWS:
        return rows(m, block);
    case HALL:
        return hall(m, block);
    default:
        return MEZZO_OK; // the block stays a park
    }
}

// --- streets -------------------------------------------------------------------------------------
static style choose_style(maker *m) {
    const double x = draw(m, 0, 1);
    if (x < 0.2 + 0.4 * m->dense)
        return CLOSED;
    return x < 0.75 ? DETACHED : x < 0.9 ? ROWS : HALL;
}

static mezzo_status streets(maker *m, const mz_polygon *ground, int depth, style kind) {
    const int e = longest_edge(ground);
    const mz_point way = unit(ground->p[e], ground->p[(e + 1) % ground->n]), c = middle(ground);
    double least, most;
    reach(ground, c, way, &least, &most);
    if (depth == 2)
        kind = choose_style(m);
    if (depth > 2 && (area(ground) < draw(m, 1700, 5200) || most - least < 34))
        return fill_block(m, ground, kind);
    const double shift = draw(m, -0.16, 0.16) * (most - least);
    const double bend = depth == 0 ? draw(m, -0.35, 0.35) : depth < 3 ? draw(m, -0.16, 0.16) : draw(m, -0.05, 0.05);
    const double width = depth == 0 ? draw(m, 18, 28) : depth < 3 ? draw(m, 12, 18) : draw(m, 7.5, 12);
    const mz_point up = {-way.y * cos(bend) - way.x * sin(bend), way.x * cos(bend) - way.y * sin(bend)};
    const mz_point at = {c.x + shift * way.x, c.y + shift * way.y};
    const mz_point right = {up.y, -up.x};
    const double half = width / 2;
    const mz_polygon a = cut(ground, (line){{at.x - half * right.x, at.y - half * right.y}, up});
    const mz_polygon b = cut(ground, turned((line){{at.x + half * right.x, at.y + half * right.y}, up}));
    MEZZO_TRY(a.n > 0 ? streets(m, &a, depth + 1, kind) : MEZZO_OK);
    return b.n > 0 ? streets(m, &b, depth + 1, kind) : MEZZO_OK;
}

// Builds an avenue across everything: buildings in its way are cut.
static mezzo_status avenue(maker *m) {
    const double e = m->city->extent, angle = draw(m, 0, 6.2831853), half = draw(m, 8, 14);
    const mz_point c = {draw(m, 0.25, 0.75) * e, draw(m, 0.25, 0.75) * e}, way = {cos(angle), sin(angle)};
    const line left = {{c.x - half * way.y, c.y + half * way.x}, way};
    const line right = turned((line){{c.x + half * way.y, c.y - half * way.x}, way});
    const size_t n = m->city->n;
    for (size_t i = 0; i < n; i++) {
        const mz_polygon a = cut(&m->city->building[i], left), b = cut(&m->city->building[i], right);
        m->city->building[i] = a;
        if (b.n > 0)
            MEZZO_TRY(build(m, b));
    }
    return MEZZO_OK;
}

// Builds a square, which has no building within it.
static void plaza(maker *m) {
    const double e = m->city->extent, radius = draw(m, 16, 32);
    const mz_point c = {draw(m, 0.2, 0.8) * e, draw(m, 0.2, 0.8) * e};
    for (size_t i = 0; i < m->city->n; i++) {
        const mz_point at = middle(&m->city->building[i]);
        if (hypot(at.x - c.x, at.y - c.y) < radius)
            m->city->building[i].n = 0;
    }
}

static void keep_buildings(mz_city *city) {
    size_t kept = 0;
    for (size_t i = 0; i < city->n; i++)
        if (city->building[i].n > 0 && area(&city->building[i]) >= MIN_AREA)
            city->building[kept++] = city->building[i];
    city->n = kept;
}

mezzo_status mz_city_make(uint64_t seed, uint64_t map, double extent, mz_city *out) {
    *out = (mz_city){.extent = extent};
    maker m = {.city = out, .key = {seed, (uint32_t)map, PHILOX_CITY}};
    m.drawn = map >> 32 << 32; // maps beyond 2^32 draw other elements
    m.dense = draw(&m, 0, 1);
    const double angle = draw(&m, 0, 1.5707963), far = fmax(extent, 160) * 0.95;
    mz_polygon ground = {.n = 4};
    for (int i = 0; i < 4; i++) {
        const double a = angle + 1.5707963 * i;
        ground.p[i] = (mz_point){extent / 2 + far * cos(a), extent / 2 + far * sin(a)};
    }
    mezzo_status status = streets(&m, &ground, 0, CLOSED);
    if (status == MEZZO_OK && draw(&m, 0, 1) < 0.35)
        status = avenue(&m);
    if (draw(&m, 0, 1) < 0.3)
        plaza(&m);
    keep_buildings(out);
    if (status != MEZZO_OK)
        mz_city_free(out);
    return status;
}

void mz_city_free(mz_city *city) {
    mz_free(city->building);
    *city = (mz_city){0};
}

// --- pictures ------------------------------------------------------------------------------------
void mz_city_draw(const mz_city *city, int64_t size, uint8_t *out) {
    const double cell = city->extent / (double)size;
    memset(out, 0, (size_t)(size * size));
    for (size_t b = 0; b < city->n; b++) {
        const mz_polygon *p = &city->building[b];
        for (int64_t y = 0; y < size; y++) {
            // The row's line is inside in an interval, as the polygon is convex.
            const double at = ((double)y + 0.5) * cell;
            double from = INFINITY, to = -INFINITY;
            for (int i = 0; i < p->n; i++) {
                const mz_point a = p->p[i], c = p->p[(i + 1) % p->n];
                if ((a.y <= at) == (c.y <= at))
                    continue;
                const double x = a.x + (at - a.y) / (c.y - a.y) * (c.x - a.x);
                from = fmin(from, x);
                to = fmax(to, x);
            }
            if (!(from < to))
                continue;
            const int64_t first = (int64_t)ceil(fmax(from / cell - 0.5, 0));
            const int64_t last = (int64_t)floor(fmin(to / cell - 0.5, (double)size - 1));
            for (int64_t x = first; x <= last; x++)
                out[y * size + x] = 255;
        }
    }
}

mz_point mz_city_transmitter(const mz_city *city, uint64_t seed, uint64_t map, uint64_t which, int64_t size,
                             const uint8_t *buildings) {
    const double cell = city->extent / (double)size;
    const int64_t margin = size / 16;
    int64_t x = size / 2, y = size / 2;
    for (uint64_t i = 0; i < 1000; i++) { // a city is mostly street: a few are enough
        uint32_t words[4];
        mz_philox((mz_philox_key){seed, (uint32_t)map, PHILOX_TRANSMITTER}, (map >> 32 << 32) + which * 1000 + i,
                  words);
        x = margin + (int64_t)(((uint64_t)words[0] * (uint64_t)(size - 2 * margin)) >> 32);
        y = margin + (int64_t)(((uint64_t)words[1] * (uint64_t)(size - 2 * margin)) >> 32);
        if (buildings[y * size + x] == 0)
            break;
    }
    return (mz_point){((double)x + 0.5) * cell, ((double)y + 0.5) * cell};
}
