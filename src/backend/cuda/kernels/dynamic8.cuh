// Implements base/dynamic8.h on the device: moments in 8 bits with a scale for each block of 256. Codes and scales are
// bit for bit those of base/dynamic8.c: quotients and products are rounded as IEEE says, and the tables are the same
// numbers.
#ifndef MZ_CU_DYNAMIC8_CUH
#define MZ_CU_DYNAMIC8_CUH

#include "launch.h"

namespace dynamic8 {
enum { BLOCK = 256, RECORD = 260, ZERO = 127, OCTAVES = 24, STEPS = 64, PLACES = OCTAVES * STEPS + 1 };

// Magnitudes from 0 to 1, N of them: dynamic8.c's ladder.
template <int N> struct ladder {
    float value[N], above[N]; // above: halfway to the next
    uint8_t start[PLACES];
};

template <int N, int FIRST> constexpr ladder<N> make_ladder() { // FIRST: numbers of the first decade
    ladder<N> l = {};
    int at = 1;
    double power = 1e6;
    for (int i = 0; i < 7; i++, power /= 10) {
        int n = FIRST << i;
        for (int k = 0; k < n; k++)
            l.value[at++] =
                static_cast<float>(static_cast<double>(2 * n + 18 * k + 9) / (20 * static_cast<double>(n) * power));
    }
    l.value[at] = 1;
    for (int i = 0; i + 1 < N; i++)
        l.above[i] = static_cast<float>((static_cast<double>(l.value[i]) + static_cast<double>(l.value[i + 1])) / 2);
    l.above[N - 1] = 2; // above every quotient
    int p = 0;
    double octave = 1.0 / (1 << OCTAVES);
    for (int place = 0; place < PLACES; place++) {
        double least = place == 0 ? 0 : (1 + place % STEPS / static_cast<double>(STEPS)) * octave;
        while (static_cast<double>(l.above[p]) < least)
            p++;
        l.start[place] = static_cast<uint8_t>(p);
        octave = place % STEPS == STEPS - 1 ? octave * 2 : octave;
    }
    return l;
}

using with_signs = ladder<129>;
using without = ladder<256>;
__device__ constexpr with_signs signs_table = make_ladder<129, 1>();
__device__ constexpr without plain_table = make_ladder<256, 2>();

struct tables {
    with_signs m;
    without v;
};

// All threads of the block call it, and a barrier has to follow.
__device__ __forceinline__ void load(tables &t, int threads) {
    for (int i = threadIdx.x; i < static_cast<int>(sizeof t.m / 4); i += threads)
        reinterpret_cast<uint32_t *>(&t.m)[i] = reinterpret_cast<const uint32_t *>(&signs_table)[i];
    for (int i = threadIdx.x; i < static_cast<int>(sizeof t.v / 4); i += threads)
        reinterpret_cast<uint32_t *>(&t.v)[i] = reinterpret_cast<const uint32_t *>(&plain_table)[i];
}
static_assert(sizeof(with_signs) % 4 == 0 && sizeof(without) % 4 == 0, "copied as words");

__device__ __forceinline__ float decode(const with_signs &t, uint8_t code) {
    int p = static_cast<int>(code) - ZERO;
    return p < 0 ? -t.value[-p] : t.value[p];
}
__device__ __forceinline__ float decode(const without &t, uint8_t code) {
    return t.value[code];
}

template <typename L> __device__ __forceinline__ int nearest(const L &t, float r) {
    int place = static_cast<int>(__float_as_uint(r) >> 17) - (127 - OCTAVES) * STEPS;
    int p = t.start[place > 0 ? place : 0];
    while (t.above[p] < r)
        p++;
    return p;
}

__device__ __forceinline__ bool usable(float scale) {
    return scale != 0 && isfinite(scale);
}

__device__ __forceinline__ uint8_t encode(const with_signs &t, float x, float scale) {
    if (!usable(scale))
        return ZERO;
    float r = __fdiv_rn(x, scale);
    int p = nearest(t, fabsf(r));
    return static_cast<uint8_t>(r >= 0 ? ZERO + p : ZERO - (p < ZERO ? p : ZERO));
}
__device__ __forceinline__ uint8_t encode(const without &t, float x, float scale) {
    float r = usable(scale) ? __fdiv_rn(x, scale) : 0;
    return static_cast<uint8_t>(r > 0 ? nearest(t, r) : 0);
}

// Larger for larger magnitudes, NaN above all; of x and -x for the positive one. 1 is +0's.
__device__ __forceinline__ uint32_t rank_of(float x) {
    uint32_t bits = __float_as_uint(x);
    return bits << 1 | (bits >> 31 ^ 1);
}
__device__ __forceinline__ float number_of(uint32_t rank) {
    float scale = __uint_as_float(rank >> 1 | (~rank & 1) << 31);
    return isnan(scale) ? __uint_as_float(0x7FC00000u) : scale == 0 ? 0 : scale;
}
} // namespace dynamic8

#endif
