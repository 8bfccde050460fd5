// Stores numbers in 8 bits with a scale for each block, and finds the nearest code.
#include "base/dynamic8.h"

#include <math.h>
#include <pthread.h>

enum {
    DECADES = 7,
    ZERO = 127, // the code of 0 where there are signs
    OCTAVES = 24,
    STEPS = 64, // starting points of the search, by a quotient's exponent and 6 further bits
    PLACES = OCTAVES * STEPS + 1,
};

// Holds the magnitudes of the codes, from 0 to 1.
typedef struct ladder {
    int n;
    float value[256], above[256]; // above[i]: halfway from value[i] to the next; infinite after the last
    float code[256];              // the value of each code
    uint8_t start[PLACES];        // number of elements of `above` that are below every quotient of that place
} ladder;
static ladder ladders[2]; // without signs, with them
static pthread_once_t made = PTHREAD_ONCE_INIT;

static void make_ladder(ladder *l, bool signs) {
    l->n = 0;
    l->value[l->n++] = 0;
    double power = 1e6; // 10^(6 - i): the numbers below are whole, so that each value is rounded once
    for (int i = 0; i < DECADES; i++, power /= 10) {
        const int n = signs ? 1 << i : 2 << i;
        for (int k = 0; k < n; k++)
            l->value[l->n++] = (float)((double)(2 * n + 18 * k + 9) / (20 * (double)n * power));
    }
    l->value[l->n++] = 1;
    for (int i = 0; i + 1 < l->n; i++)
        l->above[i] = (float)(((double)l->value[i] + (double)l->value[i + 1]) / 2);
    l->above[l->n - 1] = INFINITY;
    for (int c = 0; c < 256; c++)
        l->code[c] = !signs ? l->value[c] : c >= ZERO ? l->value[c - ZERO] : -l->value[ZERO - c];
    for (int place = 0, p = 0; place < PLACES; place++) {
        const double least = place == 0 ? 0 : ldexp(1 + place % STEPS / (double)STEPS, place / STEPS - OCTAVES);
        while ((double)l->above[p] < least)
            p++;
        l->start[place] = (uint8_t)p;
    }
}

static void make_ladders(void) {
    make_ladder(&ladders[0], false);
    make_ladder(&ladders[1], true);
}

static const ladder *ladder_of(bool signs) {
    (void)pthread_once(&made, make_ladders);
    return &ladders[signs];
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

// Returns the index of the magnitude nearest to 0 <= r <= 1.
static int nearest(const ladder *l, float r) {
    const int place = (int)(bits_of(r) >> 17) - ((127 - OCTAVES) * STEPS);
    int p = l->start[place > 0 ? place : 0];
    while (l->above[p] < r)
        p++;
    return p;
}

// Returns a rank that grows with the magnitude, NaN above all; of x and -x the positive one ranks higher.
static uint32_t rank_of(float x) {
    return bits_of(x) << 1 | (bits_of(x) >> 31 ^ 1);
}

static float scale_of(const float *x, int n) {
    uint32_t amax = 1; // +0
    for (int i = 0; i < n; i++)
        amax = rank_of(x[i]) > amax ? rank_of(x[i]) : amax;
    const uint32_t bits = amax >> 1 | (~amax & 1) << 31;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return isnan(scale) ? NAN : scale == 0 ? 0 : scale;
}

void mz_dynamic8_encode(bool signs, const float *x, int n, void *record) {
    const ladder *l = ladder_of(signs);
    const float scale = scale_of(x, n);
    const uint8_t zero = signs ? ZERO : 0;
    uint8_t *codes = (uint8_t *)record + sizeof scale;
    memcpy(record, &scale, sizeof scale);
    memset(codes, zero, MZ_DYNAMIC8_BLOCK);
    for (int i = 0; i < n && scale != 0 && isfinite(scale); i++) {
        const float r = x[i] / scale;
        int p = r > 0 || signs ? nearest(l, fabsf(r)) : 0;
        codes[i] = (uint8_t)(r >= 0 || !signs ? zero + p : zero - (p < ZERO ? p : ZERO));
    }
}

float mz_dynamic8_value(bool signs, uint8_t code) {
    return ladder_of(signs)->code[code];
}

void mz_dynamic8_decode(bool signs, const void *record, int n, float *x) {
    const ladder *l = ladder_of(signs);
    const uint8_t *codes = (const uint8_t *)record + sizeof(float);
    float scale;
    memcpy(&scale, record, sizeof scale);
    for (int i = 0; i < n; i++)
        x[i] = l->code[codes[i]] * scale;
}
