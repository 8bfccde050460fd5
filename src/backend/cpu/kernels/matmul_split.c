// Packing of values that have more bits than BF16 as two BF16 parts, x = high + low, for products on BF16 tiles.
//
//   FP16   11 significant bits. high = the first 8 (x cut off), low = the other 3: the sum is x exactly, at any
//   exponent, because FP16's
//          smallest number, 2^-24, is far above the smallest normal BF16, 2^-126, below which the tile products see
//          zero.
//   TF32   high = BF16(x), low = BF16(x - high), x - high being exact: |x - high - low| ≤ 2^-9·|x - high| ≤ 2^-17·|x|,
//   to be
//          compared with the 2^-11·|x| of rounding to TF32. Exact where x has 16 bits or fewer.
//
// A non-finite x is high, and low = 0: inf - inf must not be made here. A finite x that would round up to infinity
// (from 2^128·(1 - 2^-9) on) is cut off instead, and so is low, so that their sum is no infinity either.
#include "backend/cpu/kernels/matmul_isa.h"

#if defined(MZ_ISA_AVX512)
#include "backend/cpu/kernels/matmul_tiles.h"
#endif

#define EXPONENT 0x7F800000u

typedef struct parts {
    vf high, low; // both are BF16 values
} parts;

ALWAYS_INLINE vu choose(vu mask, vu yes, vu no) {
    return (mask & yes) | (~mask & no);
}

ALWAYS_INLINE parts split(vf x, bool f16) {
    vu u = (vu)x, finite = (vu)((u & EXPONENT) != EXPONENT);
    vu cut = u & 0xFFFF0000u;
    parts p;
    if (f16) { // a NaN of FP16 keeps its quiet bit and stays NaN
        p.high = (vf)cut;
        p.low = (vf)((vu)(x - p.high) & finite);
        return p;
    }
    vu nearest = round_bf16(x);
    vu overflow = finite & (vu)((nearest & EXPONENT) == EXPONENT);
    p.high = (vf)choose(overflow, cut, nearest);
    vu rest = (vu)(x - p.high);
    p.low = (vf)(choose(overflow, rest & 0xFFFF0000u, round_bf16((vf)rest)) & finite);
    return p;
}

// Loads the first n of VW consecutive elements.
ALWAYS_INLINE parts load_parts(const char *p, mezzo_dtype dtype, mezzo_dtype round, int64_t n) {
    vf x = n >= VW ? load_as_f32(p, dtype) : load_as_f32_part(p, dtype, n);
    return split(round_to(x, round), dtype == MEZZO_F16 || round == MEZZO_F16);
}

ALWAYS_INLINE vh upper_half(vf x) { // the 16 bits of a BF16 value
    return __builtin_convertvector((vu)x >> 16, vh);
}

// Joins VW values of 16 bits and the next VW to pairs in registers, because a load would wait for two narrower stores.
typedef uint16_t vpairs __attribute__((vector_size(4 * VW)));
ALWAYS_INLINE vu join(vh first, vh second) {
#if VW == 16
#define AND_NEXT 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    return (vu)(vpairs)__builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                                               AND_NEXT);
#elif VW == 8
    return (vu)(vpairs)__builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    return (vu)(vpairs)__builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7);
#endif
}

ALWAYS_INLINE int64_t word_of(bool left, int width, int part, int64_t i, int64_t w) {
    if (left)
        return ((w / 16 * 2 + part) * width + i) * 16 + w % 16;
    return (((w / 16 * 2 + part) * (width / 16) + i / 16) * 16 + w % 16) * 16 + i % 16;
}

#if defined(MZ_ISA_AVX512BF16)
// Splits 32 values of a row: vcvtne2ps2bf16 rounds to the nearest BF16, so high + low has FP16's 11 bits, too: the rest
// has 3 bits and a sign. Returns false, and does nothing, where a value is not finite or would round to infinity.
ALWAYS_INLINE bool split_row(const char *p, mezzo_dtype dtype, uint32_t *high, uint32_t *low) {
    const size_t size = dtype == MEZZO_F32 ? sizeof(float) : sizeof(uint16_t);
    const __m512i exponent = _mm512_set1_epi32(0x7FFFFFFF), rounds_up = _mm512_set1_epi32(0x7F7F7FFF);
    __m512 x = (__m512)load_as_f32(p, dtype), y = (__m512)load_as_f32(p + VW * size, dtype);
    __mmask16 past = _mm512_cmpgt_epi32_mask(_mm512_and_si512((__m512i)x, exponent), rounds_up) |
                     _mm512_cmpgt_epi32_mask(_mm512_and_si512((__m512i)y, exponent), rounds_up);
    if (__builtin_expect(past != 0, 0))
        return false;
    __m512i h = (__m512i)_mm512_cvtne2ps_pbh(y, x);
    __m512i hx = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(h)), 16);
    __m512i hy = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(h, 1)), 16);
    _mm512_storeu_si512(high, h);
    _mm512_storeu_si512(low, (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(y, (__m512)hy), _mm512_sub_ps(x, (__m512)hx)));
    return true;
}
#endif

#if defined(MZ_ISA_AVX512)
// Packs the whole steps of 32 of k in a panel of 32 rows; returns how many of k they are. The parts are made row by row
// in storage order, and then packed into tiles like any BF16.
ALWAYS_INLINE int64_t pack_whole_steps(uint32_t *dst, const char *base, bool left, mezzo_dtype dtype, mezzo_dtype round,
                                       bool k_contiguous, size_t i_bytes, size_t k_bytes, int64_t nk) {
    const size_t size = dtype == MEZZO_F32 ? sizeof(float) : sizeof(uint16_t);
    const size_t row = k_contiguous ? i_bytes : k_bytes;
    uint32_t of[2][32][16] __attribute__((aligned(64)));
    int64_t k = 0;
    for (; k + 32 <= nk; k += 32, dst += 1024) {
        const char *p = base + (size_t)k * k_bytes;
        for (size_t r = 0; r < 32; r++) {
#if defined(MZ_ISA_AVX512BF16)
            if (round == MEZZO_F32 && dtype != MEZZO_BF16 && split_row(p + r * row, dtype, of[0][r], of[1][r]))
                continue;
#endif
            parts x = load_parts(p + r * row, dtype, round, VW),
                  y = load_parts(p + r * row + VW * size, dtype, round, VW);
            store_u32(of[0][r], join(upper_half(x.high), upper_half(y.high)));
            store_u32(of[1][r], join(upper_half(x.low), upper_half(y.low)));
        }
        for (int part = 0; part < 2; part++)
            pack_whole_tiles(left, 32, dst + part * 512, (const char *)of[part], k_contiguous, k_contiguous ? 64 : 2,
                             k_contiguous ? 2 : 64, 32);
    }
    return k;
}
#endif

// Packs like pack_panel in matmul_pack.c, with two blocks of words at once.
ALWAYS_INLINE void pack_panel(uint32_t *dst, const mz_matmul_operand *src, bool left, mezzo_dtype dtype,
                              mezzo_dtype round, bool k_contiguous, int64_t i0, int ni, int64_t k0, int64_t nk,
                              int64_t k_padded) {
    enum { WIDTH = 32 };
    const size_t size = dtype == MEZZO_F32 ? sizeof(float) : sizeof(uint16_t);
    const char *base = (const char *)src->data + (size_t)(i0 * src->i_stride + k0 * src->k_stride) * size;
    const size_t i_bytes = (size_t)src->i_stride * size, k_bytes = (size_t)src->k_stride * size;
    int64_t whole = 0;
#if defined(MZ_ISA_AVX512)
    if (ni == WIDTH)
        whole = pack_whole_steps(dst, base, left, dtype, round, k_contiguous, i_bytes, k_bytes, nk);
#endif
    for (int64_t w0 = whole / 2; w0 < k_padded / 2; w0 += VW)
        for (int i = 0; i < WIDTH; i += VW) {
            int64_t rows = ni - i, left_k = nk - w0 * 2;
            const char *p = base + (size_t)i * i_bytes + (size_t)(w0 * 2) * k_bytes;
            vu high[VW], low[VW];
            for (int t = 0; t < VW; t++) {
                parts even = {{0}, {0}}, odd = {{0}, {0}};
                if (k_contiguous) { // even: the first VW along k; odd: the next
                    const char *q = p + (size_t)t * i_bytes;
                    if (t < rows) {
                        even = load_parts(q, dtype, round, left_k);
                        odd = load_parts(q + VW * size, dtype, round, left_k - VW);
                    }
                    high[t] = join(upper_half(even.high), upper_half(odd.high));
                    low[t] = join(upper_half(even.low), upper_half(odd.low));
                } else {
                    const char *q = p + (size_t)(t * 2) * k_bytes;
                    if (t * 2 < left_k)
                        even = load_parts(q, dtype, round, rows);
                    if (t * 2 + 1 < left_k)
                        odd = load_parts(q + k_bytes, dtype, round, rows);
                    high[t] = ((vu)even.high >> 16) | (vu)odd.high;
                    low[t] = ((vu)even.low >> 16) | (vu)odd.low;
                }
            }
            if (k_contiguous != left) {
                transpose(high);
                transpose(low);
            }
            for (int t = 0; t < VW; t++) {
                int64_t row = left ? i + t : i, word = left ? w0 : w0 + t;
                store_u32(dst + word_of(left, WIDTH, 0, row, word), high[t]);
                store_u32(dst + word_of(left, WIDTH, 1, row, word), low[t]);
            }
        }
}

#define PANEL(name, left, dtype, round, k_contiguous)                                                                  \
    static void name(void *dst, const mz_matmul_operand *src, int64_t i0, int ni, int64_t k0, int64_t nk,              \
                     int64_t k_padded) {                                                                               \
        pack_panel(dst, src, left, dtype, round, k_contiguous, i0, ni, k0, nk, k_padded);                              \
    }

// F32 as `round` means that nothing is rounded. Storage in BF16 or FP16 needs no rounding to the wider of the two
// formats.
#define PANELS(prefix, left)                                                                                           \
    PANEL(prefix##_f32_i, left, MEZZO_F32, MEZZO_F32, false)                                                           \
    PANEL(prefix##_f32_k, left, MEZZO_F32, MEZZO_F32, true)                                                            \
    PANEL(prefix##_f32_f16_i, left, MEZZO_F32, MEZZO_F16, false)                                                       \
    PANEL(prefix##_f32_f16_k, left, MEZZO_F32, MEZZO_F16, true)                                                        \
    PANEL(prefix##_bf16_i, left, MEZZO_BF16, MEZZO_F32, false)                                                         \
    PANEL(prefix##_bf16_k, left, MEZZO_BF16, MEZZO_F32, true)                                                          \
    PANEL(prefix##_bf16_f16_i, left, MEZZO_BF16, MEZZO_F16, false)                                                     \
    PANEL(prefix##_bf16_f16_k, left, MEZZO_BF16, MEZZO_F16, true)                                                      \
    PANEL(prefix##_f16_i, left, MEZZO_F16, MEZZO_F32, false)                                                           \
    PANEL(prefix##_f16_k, left, MEZZO_F16, MEZZO_F32, true)

PANELS(a, true)
PANELS(b, false)

typedef void (*pack_fn)(void *dst, const mz_matmul_operand *src, int64_t i0, int ni, int64_t k0, int64_t nk,
                        int64_t k_padded);

// [stored][to FP16][along k]
#define TABLE(prefix)                                                                                                  \
    {                                                                                                                  \
        {{prefix##_f32_i, prefix##_f32_k}, {prefix##_f32_f16_i, prefix##_f32_f16_k}},                                  \
            {{prefix##_bf16_i, prefix##_bf16_k}, {prefix##_bf16_f16_i, prefix##_bf16_f16_k}},                          \
            {{prefix##_f16_i, prefix##_f16_k}, {prefix##_f16_i, prefix##_f16_k}},                                      \
    }
static const pack_fn panels[2][3][2][2] = {TABLE(a), TABLE(b)};

void FOR_LEVEL(mz_matmul_pack_split)(mz_panel format, void *dst, const mz_matmul_operand *src, int64_t i0, int ni,
                                     int64_t k0, int64_t nk, int64_t k_padded) {
    int stored = src->dtype == MEZZO_BF16 ? 1 : src->dtype == MEZZO_F16 ? 2 : 0;
    panels[format == MZ_PANEL_SPLIT_B][stored][src->compute == MEZZO_F16][src->k_stride == 1](dst, src, i0, ni, k0, nk,
                                                                                              k_padded);
}
