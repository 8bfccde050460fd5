// Packs BF16 into AMX tiles with AVX-512, where the generic packing (matmul_pack.c) is limited by one shuffle a cycle:
// loads put rows into quarters of a register, so that only shuffles within quarters remain.
#ifndef MZ_CPU_MATMUL_TILES_H
#define MZ_CPU_MATMUL_TILES_H

#include <immintrin.h>

#include "backend/cpu/kernels/matmul_vec.h"

// Loads quarters g = 0…3 of the register: 16 bytes at p + g·step.
ALWAYS_INLINE __m512i load_quarters(const char *p, size_t step) {
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const void *)p));
    x = _mm512_mask_broadcast_i32x4(x, 0x00F0, _mm_loadu_si128((const void *)(p + step)));
    x = _mm512_mask_broadcast_i32x4(x, 0x0F00, _mm_loadu_si128((const void *)(p + 2 * step)));
    return _mm512_mask_broadcast_i32x4(x, 0xF000, _mm_loadu_si128((const void *)(p + 3 * step)));
}

// Packs rows 0…15 of a right operand, contiguous along k, 32 of k: one tile [16 pairs of k][16 rows].
ALWAYS_INLINE void tile_b_along_k(const char *p, size_t row, uint32_t *tile) {
    for (int quarter = 0; quarter < 4; quarter++, p += 16) { // 4 pairs of k
        __m512i a = load_quarters(p, 4 * row), b = load_quarters(p + row, 4 * row);
        __m512i c = load_quarters(p + 2 * row, 4 * row), d = load_quarters(p + 3 * row, 4 * row);
        __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
        __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
        uint32_t *out = tile + quarter * 64;
        _mm512_storeu_si512(out, _mm512_unpacklo_epi64(ab_low, cd_low));
        _mm512_storeu_si512(out + 16, _mm512_unpackhi_epi64(ab_low, cd_low));
        _mm512_storeu_si512(out + 32, _mm512_unpacklo_epi64(ab_high, cd_high));
        _mm512_storeu_si512(out + 48, _mm512_unpackhi_epi64(ab_high, cd_high));
    }
}

// Packs 32 rows of k of a right operand, contiguous along i, 32 of i: two tiles [16 pairs of k][16 of i].
ALWAYS_INLINE void tile_b_along_i(const char *p, size_t k_row, uint32_t *tile) {
    const __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0),
                  second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    for (int pair = 0; pair < 16; pair++, p += 2 * k_row) {
        __m512i even = _mm512_loadu_si512(p), odd = _mm512_loadu_si512(p + k_row);
        __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
        _mm512_storeu_si512(tile + pair * 16, _mm512_permutex2var_epi64(low, first, high));
        _mm512_storeu_si512(tile + 256 + pair * 16, _mm512_permutex2var_epi64(low, second, high));
    }
}

// Packs 32 rows of k of a left operand, contiguous along i, `width` of i: rows [width of i][32 of k].
ALWAYS_INLINE void tile_a_along_i(const char *p, size_t k_row, int width, uint32_t *tile) {
    for (int eighth = 0; eighth < width / 8; eighth++, p += 16) { // 8 of i
        __m512i r[8], s[8];
        for (int u = 0; u < 8; u++)
            r[u] = load_quarters(p + (size_t)u * k_row, 8 * k_row); // k = 8g + u
        for (int u = 0; u < 8; u += 2) {
            s[u] = _mm512_unpacklo_epi16(r[u], r[u + 1]);
            s[u + 1] = _mm512_unpackhi_epi16(r[u], r[u + 1]);
        }
        for (int u = 0; u < 8; u += 4)
            for (int h = 0; h < 2; h++) { // pairs of k for i = 4h…4h+3
                r[u + 2 * h] = _mm512_unpacklo_epi32(s[u + h], s[u + 2 + h]);
                r[u + 2 * h + 1] = _mm512_unpackhi_epi32(s[u + h], s[u + 2 + h]);
            }
        for (int v = 0; v < 4; v++) { // i = 2v, 2v + 1
            _mm512_storeu_si512(tile + (eighth * 8 + 2 * v) * 16, _mm512_unpacklo_epi64(r[v], r[v + 4]));
            _mm512_storeu_si512(tile + (eighth * 8 + 2 * v + 1) * 16, _mm512_unpackhi_epi64(r[v], r[v + 4]));
        }
    }
}

// Packs the whole steps of 32 of k in a panel of `width` rows (32 in a right operand); returns how many of k they are.
// A left operand along k is copied.
ALWAYS_INLINE int64_t pack_whole_tiles(bool left, int width, uint32_t *dst, const char *base, bool k_contiguous,
                                       size_t i_bytes, size_t k_bytes, int64_t nk) {
    int64_t k = 0;
    for (; k + 32 <= nk; k += 32, dst += width * 16) {
        const char *p = base + (size_t)k * k_bytes;
        if (left && k_contiguous)
            for (int i = 0; i < width; i++)
                _mm512_storeu_si512(dst + i * 16, _mm512_loadu_si512(p + (size_t)i * i_bytes));
        else if (left)
            tile_a_along_i(p, k_bytes, width, dst);
        else if (k_contiguous) {
            tile_b_along_k(p, i_bytes, dst);
            tile_b_along_k(p + 16 * i_bytes, i_bytes, dst + 256);
        } else
            tile_b_along_i(p, k_bytes, dst);
    }
    return k;
}

#endif
