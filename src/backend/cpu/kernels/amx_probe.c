// Finds whether AMX tiles compute, and how fast. The geometry of palette 1, 8 tiles of 16 rows × 64 bytes, is assumed,
// because under some hypervisors CPUID's leaf 0x1D reads zero on cores whose tiles work.
#include "backend/cpu/kernels/amx_config.h"
#include "base/base.h"
#include "backend/cpu/kernels/probe.h"

// Declares to the compiler that memory is read, which the tile intrinsics do not.
#define MEMORY_IS_READ() __asm__ volatile("" ::: "memory")

// a[i][k] = (i + k) mod 8 - 3, b[k][j] = (k + 2j) mod 8 - 4 as BF16; b in pairs of k, as the instruction reads it. All
// sums are exact.
static int a_value(int i, int k) {
    return (i + k) % 8 - 3;
}
static int b_value(int k, int j) {
    return (k + 2 * j) % 8 - 4;
}

bool mz_probe_amx_result(void) {
    uint16_t a[16][32], b[16][32];
    float c[16][16];
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 32; k++) {
            a[i][k] = mezzo_f32_to_bf16((float)a_value(i, k));
            b[i][k] = mezzo_f32_to_bf16((float)b_value(2 * i + k % 2, k / 2));
        }
    MEMORY_IS_READ();
    _tile_loadconfig(&mz_amx_config);
    _tile_zero(0);
    _tile_loadd(1, a, 64);
    _tile_loadd(2, b, 64);
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, c, 64);
    _tile_release();
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            int sum = 0;
            for (int k = 0; k < 32; k++)
                sum += a_value(i, k) * b_value(k, j);
            if (c[i][j] != (float)sum)
                return false;
        }
    return true;
}

// Measures products on one tile of sums. Consecutive products on it are not slower than on four, and with few tiles in
// use the core's other hardware thread does not slow them down (amx_matmul.c).
double mz_probe_amx(int rounds) {
    enum { PRODUCTS = 4 }; // of a round
    static const uint16_t zeros[16][32];
    _tile_loadconfig(&mz_amx_config);
    _tile_zero(0);
    _tile_loadd(1, zeros, 64);
    _tile_loadd(2, zeros, 64);
    double start = mz_seconds();
    for (int r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 1, 2);
        _tile_dpbf16ps(0, 1, 2);
        _tile_dpbf16ps(0, 1, 2);
        _tile_dpbf16ps(0, 1, 2);
    }
    float c[16][16];
    _tile_stored(0, c, 64); // it waits for the last product
    double seconds = mz_seconds() - start;
    _tile_release();
    return (double)PRODUCTS * 16 * 16 * 32 * rounds / seconds;
}
