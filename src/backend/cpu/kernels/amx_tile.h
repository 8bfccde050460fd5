// Declares the tile instructions of kernels. Palette 1 has 8 tiles of 16 rows × 64 bytes. TDPBF16PS takes subnormals as
// zero and rounds to nearest even for any MXCSR (Intel SDM).
//
// MZ_AMX_EMULATE replaces them by plain C with the same results, so that tests of the code around them run on any
// machine.
#ifndef MZ_CPU_AMX_TILE_H
#define MZ_CPU_AMX_TILE_H

#include "base/base.h"

enum { AMX_ROWS = 16, AMX_BYTES = 1024 }; // rows and bytes of a tile

#if defined(MZ_AMX_EMULATE)
static _Thread_local union amx_tile {
    float f[16][16];
    uint32_t w[16][16]; // two BF16 numbers each
} amx_tiles[8];
static _Thread_local bool amx_configured;

static inline void amx_load(int t, const void *p, size_t stride) {
    for (size_t r = 0; r < AMX_ROWS; r++)
        memcpy(amx_tiles[t].f[r], (const char *)p + r * stride, 64);
}
static inline void amx_store(int t, void *p, size_t stride) {
    for (size_t r = 0; r < AMX_ROWS; r++)
        memcpy((char *)p + r * stride, amx_tiles[t].f[r], 64);
}
static inline void amx_zero(int t) {
    memset(&amx_tiles[t], 0, sizeof amx_tiles[t]);
}
static inline float amx_float(uint32_t word) {
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}
// Computes a product: every lane adds the products of the even, and then of the odd elements (SDM, TDPBF16PS). A word
// holds an even element in its lower half and the odd one after it in its upper half.
static inline void amx_dot(int c, int a, int b) {
    const union amx_tile left = amx_tiles[a], right = amx_tiles[b];
    for (int m = 0; m < 16; m++) {
        float sum[16];
        memcpy(sum, amx_tiles[c].f[m], sizeof sum);
        for (int k = 0; k < 16; k++) {
            const float even = amx_float(left.w[m][k] << 16), odd = amx_float(left.w[m][k] & 0xFFFF0000U);
            for (int n = 0; n < 16; n++) {
                sum[n] += even * amx_float(right.w[k][n] << 16);
                sum[n] += odd * amx_float(right.w[k][n] & 0xFFFF0000U);
            }
        }
        memcpy(amx_tiles[c].f[m], sum, sizeof sum);
    }
}
static inline void amx_begin(void) {
    amx_configured = true;
}
static inline void amx_end(void) {
    amx_configured = false;
}
#else
#include "backend/cpu/kernels/amx_config.h"

// Macros, because an instruction's tile number must be a constant: it is part of the encoding.
#define amx_load(t, p, stride)  _tile_loadd(t, p, stride)
#define amx_store(t, p, stride) _tile_stored(t, p, stride)
#define amx_zero(t)             _tile_zero(t)
#define amx_dot(c, a, b)        _tile_dpbf16ps(c, a, b)

static inline void amx_begin(void) {
    _tile_loadconfig(&mz_amx_config);
}
// Releases the tiles, which would otherwise be saved and restored at every switch of the thread.
static inline void amx_end(void) {
    _tile_release();
}
#endif

// Makes stores before a tile instruction happen, because the tile intrinsics do not declare which memory they read.
#define AMX_FENCE() __asm__ volatile("" ::: "memory")

#endif
