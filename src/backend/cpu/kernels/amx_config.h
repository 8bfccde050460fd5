// Every AMX kernel has this tile configuration: palette 1, all eight tiles of 16 rows × 64 bytes.
#ifndef MZ_CPU_AMX_CONFIG_H
#define MZ_CPU_AMX_CONFIG_H

#include <immintrin.h>
#include <stdint.h>

// Static, not built on the stack: gcc's _tile_loadconfig declares that it reads 8 bytes, so gcc may drop the stores of
// the other 56, and the first tile instruction then traps (as with gcc 12 at -O3).
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} mz_amx_config __attribute__((aligned(64))) = {
    .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

#endif
