// Draws tokens. Threads read a row of logits in pieces of a fixed size. The result of a piece depends on nothing else,
// and pieces are combined in order, so that no bit depends on the number of threads.
#include "task/draw.h"

#include <float.h>
#include <math.h>

#define PHILOX_SAMPLE 0x5A3F1E00u // the `tensor` word for sampling draws
#define PIECE         1024        // in tokens
#define SEVERAL       8           // the least number of pieces for which several threads are used
#define BUCKET_BITS   12
// a logit that, divided by the temperature, is this far below the likeliest one has weight 0
#define LOWEST        -700.0

typedef struct piece {
    int32_t most, least; // the largest and the smallest key
    bool nan;
    double sum; // of weights
} piece;

struct mz_draw_room {
    int64_t vocab, pieces;
    int threads;
    double *weights; // [vocab]
    piece *of;       // [pieces]
    int32_t *rest;   // [vocab]: tokens among which a limit is searched
    double amount[1 << BUCKET_BITS];
};

mezzo_status mz_draw_room_create(int64_t vocab, int threads, mz_draw_room **out) {
    mz_draw_room *c = *out = mz_alloc(1, sizeof *c);
    if (c == NULL)
        return MEZZO_ERR_MEMORY;
    c->vocab = vocab;
    c->pieces = (vocab + PIECE - 1) / PIECE;
    c->threads = c->pieces >= SEVERAL ? threads : 1;
    c->weights = mz_alloc((size_t)vocab, sizeof *c->weights);
    c->of = mz_alloc((size_t)c->pieces, sizeof *c->of);
    c->rest = mz_alloc((size_t)vocab, sizeof *c->rest);
    if (c->weights != NULL && c->of != NULL && c->rest != NULL)
        return MEZZO_OK;
    mz_draw_room_free(c);
    *out = NULL;
    return MEZZO_ERR_MEMORY;
}

void mz_draw_room_free(mz_draw_room *c) {
    if (c == NULL)
        return;
    MZ_FREE(c->weights, c->of, c->rest, c);
}

// --- pieces --------------------------------------------------------------------------------------------------------
static inline int32_t bits_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

// Returns an integer that orders like the number; both zeros have the same one.
static inline int32_t key_of(float x) {
    const int32_t bits = bits_of(x + 0.0f);
    return bits ^ (int32_t)((uint32_t)(bits >> 31) >> 1);
}

static inline float of_key(int32_t key) {
    const int32_t bits = key ^ (int32_t)((uint32_t)(key >> 31) >> 1);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline int32_t max32(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static int64_t end_of(const mz_draw_room *c, int64_t p) {
    return (p + 1) * PIECE < c->vocab ? (p + 1) * PIECE : c->vocab;
}

static void look_at(const mz_draw_room *c, const float *logits, int64_t p) {
    const int64_t end = end_of(c, p);
    int32_t most = INT32_MIN, least = INT32_MAX, nan = 0;
#pragma omp simd reduction(max : most) reduction(min : least) reduction(| : nan)
    for (int64_t i = p * PIECE; i < end; i++) {
        const int32_t key = key_of(logits[i]);
        most = key > most ? key : most;
        least = key < least ? key : least;
        nan |= (bits_of(logits[i]) & INT32_MAX) > 0x7F800000;
    }
    c->of[p] = (piece){.most = most, .least = least, .nan = nan != 0};
}

// Returns e^x for -708 ≤ x ≤ 0 to 2 ulp, without a branch or a call, so that compilers vectorize it: e^x = 2^n·e^r, |r|
// ≤ ln 2/2, and the Taylor polynomial of degree 13, whose remainder is below 2^-57.
static inline double exp_below(double x) {
    const double shift = 0x1.8p52, n = x * 0x1.71547652b82fep0 + shift;
    const double r = x - (n - shift) * 0x1.62e42fee00000p-1 - (n - shift) * 0x1.a39ef35793c76p-33;
    uint64_t bits;
    memcpy(&bits, &n, sizeof bits);
    bits = (bits + 1023) << 52; // bits above n are shifted out
    double power, p = 1.0 / 6227020800;
    memcpy(&power, &bits, sizeof power);
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    return p * power;
}

static double sum_of(const double *weights, int64_t n) {
    enum { CHAINS = 8 };
    double sum[CHAINS] = {0}, all = 0;
    int64_t i = 0;
    for (; i + CHAINS <= n; i += CHAINS)
        for (int j = 0; j < CHAINS; j++)
            sum[j] += weights[i + j];
    for (; i < n; i++)
        sum[0] += weights[i];
    for (int j = 0; j < CHAINS; j++)
        all += sum[j];
    return all;
}

// Returns the least key of a number that is not below x: a lower one could have a weight below what exp_below computes.
static int32_t key_from(double x) {
    const float nearest = x > -FLT_MAX ? (float)x : -FLT_MAX;
    return key_of(nearest) + ((double)nearest < x);
}

// Computes weights relative to the likeliest token's for tokens whose keys are at least `least`; the others' are 0.
static void weigh(const mz_draw_room *c, const float *logits, double best, double temperature, int32_t least,
                  int64_t p) {
    const int64_t from = p * PIECE, n = end_of(c, p) - from;
    double *weights = c->weights + from;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        weights[i] = exp_below(((double)of_key(max32(key_of(logits[from + i]), least)) - best) / temperature);
    for (int64_t i = 0; least > c->of[p].least && i < n; i++)
        weights[i] = key_of(logits[from + i]) >= least ? weights[i] : 0;
    c->of[p].sum = sum_of(weights, n);
}

static double sum_pieces(const mz_draw_room *c) {
    double total = 0;
    for (int64_t p = 0; p < c->pieces; p++)
        total += c->of[p].sum;
    return total;
}

// --- limits --------------------------------------------------------------------------------------------------------
// Returns the greatest key such that the tokens with this key and greater ones sum to `goal`, by weight, or counted as
// one each. *short_of: what is missing without the tokens of this key. It counts by buckets of keys; the bucket that
// reaches the goal is divided again, until it is one key.
static int32_t limit_of(mz_draw_room *c, const float *logits, bool weighed, double goal, int32_t most, int32_t least,
                        double *short_of) {
    int64_t n = c->vocab, top = most, bottom = least; // of the keys that are left
    for (bool all = true; top > bottom; all = false) {
        int shift = 0;
        while ((top - bottom) >> shift >= 1 << BUCKET_BITS)
            shift++;
        const uint32_t from = (uint32_t)top, last = (uint32_t)(top - bottom) >> shift;
        memset(c->amount, 0, sizeof c->amount);
        for (int64_t i = 0; i < n; i++) {
            const int64_t token = all ? i : c->rest[i];
            c->amount[(from - (uint32_t)key_of(logits[token])) >> shift] += weighed ? c->weights[token] : 1;
        }
        uint32_t bucket = 0;
        for (; bucket < last && c->amount[bucket] < goal; bucket++)
            goal -= c->amount[bucket];
        int64_t kept = 0;
        for (int64_t i = 0; i < n; i++) {
            const int32_t token = all ? (int32_t)i : c->rest[i];
            c->rest[kept] = token;
            kept += (from - (uint32_t)key_of(logits[token])) >> shift == bucket;
        }
        n = kept;
        top -= (int64_t)bucket << shift;
        bottom = top - ((int64_t)1 << shift) + 1 > bottom ? top - ((int64_t)1 << shift) + 1 : bottom;
    }
    *short_of = goal;
    return (int32_t)top;
}

// Keeps a nucleus (Holtzman et al., 2020): the fewest likeliest tokens whose probabilities reach p stay, including the
// one that reaches it; of equal ones the lower tokens.
static void keep_nucleus(mz_draw_room *c, const float *logits, double goal, int32_t most, int32_t least) {
    double short_of;
    const int32_t limit = limit_of(c, logits, true, goal, most, least, &short_of);
    for (int64_t p = 0; p < c->pieces; p++) {
        for (int64_t i = p * PIECE; i < end_of(c, p); i++) {
            const int32_t key = key_of(logits[i]);
            const bool stays = key > limit || (key == limit && short_of > 0);
            if (key == limit)
                short_of -= c->weights[i];
            c->weights[i] = stays ? c->weights[i] : 0;
        }
        c->of[p].sum = sum_of(c->weights + p * PIECE, end_of(c, p) - p * PIECE);
    }
}

// --- choosing ------------------------------------------------------------------------------------------------------
static double uniform53(const mz_draw *draw) { // a number in [0, 1)
    uint32_t words[4];
    mz_philox((mz_philox_key){draw->seed, 0, PHILOX_SAMPLE}, draw->index, words);
    return (double)((uint64_t)words[0] << 21 | words[1] >> 11) * 0x1p-53;
}

// Returns the token at which the sum of weights exceeds `left`; the last one with a weight, should rounding leave some.
static int32_t token_at(const mz_draw_room *c, double left) {
    int64_t p = 0, last = 0;
    for (; p < c->pieces && left >= c->of[p].sum; p++) {
        last = c->of[p].sum > 0 ? p : last;
        left -= c->of[p].sum;
    }
    if (p < c->pieces)
        last = p;
    else
        left = INFINITY;
    int32_t token = 0;
    for (int64_t i = last * PIECE; i < end_of(c, last); i++) {
        if (c->weights[i] == 0)
            continue;
        token = (int32_t)i;
        left -= c->weights[i];
        if (left < 0)
            break;
    }
    return token;
}

mezzo_status mz_draw_token(mz_draw_room *c, const float *logits, const mz_draw *draw, int32_t *token) {
#pragma omp parallel for schedule(static) num_threads(c->threads) if (c->threads > 1)
    for (int64_t p = 0; p < c->pieces; p++)
        look_at(c, logits, p);
    int32_t most = INT32_MIN, lowest = INT32_MAX;
    int64_t best = 0;
    bool nan = false;
    for (int64_t p = 0; p < c->pieces; p++) {
        best = c->of[p].most > most ? p * PIECE : best;
        most = c->of[p].most > most ? c->of[p].most : most;
        lowest = c->of[p].least < lowest ? c->of[p].least : lowest;
        nan = nan || c->of[p].nan;
    }
    if (nan || !isfinite(of_key(most)))
        return mz_fail(MEZZO_ERR_NUMERIC, "sampling: the logits are not finite");
    while (key_of(logits[best]) != most)
        best++;
    *token = (int32_t)best;
    if (draw->temperature <= 0)
        return MEZZO_OK;
    const double top = (double)of_key(most);
    int32_t least = key_from(top + LOWEST * draw->temperature);
    double short_of;
    if (draw->top_k > 0 && draw->top_k < c->vocab)
        least = max32(least, limit_of(c, logits, false, draw->top_k, most, lowest, &short_of));
#pragma omp parallel for schedule(static) num_threads(c->threads) if (c->threads > 1)
    for (int64_t p = 0; p < c->pieces; p++)
        weigh(c, logits, top, draw->temperature, least, p);
    double total = sum_pieces(c);
    if (draw->top_p > 0 && draw->top_p < 1) {
        keep_nucleus(c, logits, draw->top_p * total, most, lowest);
        total = sum_pieces(c);
    }
    *token = token_at(c, uniform53(draw) * total);
    return MEZZO_OK;
}
