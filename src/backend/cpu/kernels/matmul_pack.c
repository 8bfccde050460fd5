// Packs operands of any storage and either orientation into a microkernel's panels (matmul.h).
//
// It works in 32-bit words: a float, or a pair of BF16 of consecutive k. A panel's block of VW × VW words is read along
// the source's unit stride and, where the panel needs the other direction along its lanes, transposed in registers.
#include "backend/cpu/kernels/matmul_isa.h"

#if defined(MZ_ISA_AVX512)
#include "backend/cpu/kernels/matmul_tiles.h"
#endif

// Returns the place of word (i, w) in a panel; w counts words of k.
ALWAYS_INLINE int64_t word_offset(mz_panel format, int width, int64_t i, int64_t w) {
    if (format == MZ_PANEL_TILE_A)
        return (w / 16 * width + i) * 16 + w % 16;
    if (format == MZ_PANEL_TILE_B)
        return ((w / 16 * (width / 16) + i / 16) * 16 + w % 16) * 16 + i % 16;
    return w * width + i;
}

ALWAYS_INLINE vu interleave(vu even, vu odd) { // joins BF16 in the upper halves to pairs
    return (even >> 16) | odd;
}

// Loads VW words from the first n of consecutive elements along k, or along i where nothing is paired.
ALWAYS_INLINE vu load_words(const char *p, mezzo_dtype dtype, bool pairs, mezzo_dtype round, int64_t n) {
    const size_t size = dtype == MEZZO_F32 ? sizeof(float) : sizeof(uint16_t);
    if (!pairs)
        return (vu)round_to(n >= VW ? load_as_f32(p, dtype) : load_as_f32_part(p, dtype, n), round);
    vu words;
    if (dtype == MEZZO_BF16 && n >= 2 * VW) {
        memcpy(&words, p, sizeof words);
        return words;
    }
    vh halves[2];
    for (int h = 0; h < 2; h++, p += VW * size, n -= VW) {
        if (dtype == MEZZO_BF16)
            halves[h] = load_u16_part(p, n);
        else
            halves[h] = to_bf16(n >= VW ? load_as_f32(p, dtype) : load_as_f32_part(p, dtype, n));
    }
    memcpy(&words, halves, sizeof words);
    return words;
}

// How far ahead an FP32 panel's source is prefetched: more rows at once than a core follows by itself, or a few lines
// of each of many rows.
#define AHEAD_ALONG  128 // bytes of a row
#define AHEAD_ACROSS 4   // rows

// Packs one panel with both loops; every argument after `src` that is not a position is a constant of the instance.
ALWAYS_INLINE void pack_panel(uint32_t *dst, const mz_matmul_operand *src, mz_panel format, int width,
                              mezzo_dtype dtype, mezzo_dtype round, bool k_contiguous, int64_t i0, int ni, int64_t k0,
                              int64_t nk, int64_t k_padded) {
    const bool pairs = format != MZ_PANEL_F32, lanes_along_k = format == MZ_PANEL_TILE_A;
    const int per = pairs ? 2 : 1;
    const int64_t words = k_padded / per;
    const size_t size = dtype == MEZZO_F32 ? sizeof(float) : sizeof(uint16_t);
    const char *base = (const char *)src->data + (size_t)(i0 * src->i_stride + k0 * src->k_stride) * size;
    const size_t i_bytes = (size_t)src->i_stride * size, k_bytes = (size_t)src->k_stride * size;
    int64_t whole = 0;
#if defined(MZ_ISA_AVX512)
    if (format != MZ_PANEL_F32 && format != MZ_PANEL_PAIRS && dtype == MEZZO_BF16 && ni == width)
        whole = pack_whole_tiles(lanes_along_k, width, dst, base, k_contiguous, i_bytes, k_bytes, nk);
#endif
    for (int64_t w0 = whole / 2; w0 < words; w0 += VW)
        for (int i = 0; i < width; i += VW) {
            int64_t rows = ni - i, left = nk - w0 * per; // remaining elements of i and k
            const char *p = base + (size_t)i * i_bytes + (size_t)(w0 * per) * k_bytes;
            vu r[VW];
            for (int t = 0; t < VW; t++) {
                if (k_contiguous) {
                    const char *q = p + (size_t)t * i_bytes;
                    if (!pairs && t < rows)
                        __builtin_prefetch(q + AHEAD_ALONG);
                    r[t] = t < rows ? load_words(q, dtype, pairs, round, left) : (vu){0};
                } else {
                    const char *q = p + (size_t)(t * per) * k_bytes;
                    if (!pairs)
                        __builtin_prefetch(q + AHEAD_ACROSS * k_bytes);
                    r[t] = t * per < left ? load_words(q, dtype, false, round, rows) : (vu){0};
                    if (pairs) {
                        vu odd = {0};
                        if (t * 2 + 1 < left)
                            odd = load_words(q + k_bytes, dtype, false, round, rows);
                        r[t] = interleave(r[t], odd);
                    }
                }
            }
            if (k_contiguous != lanes_along_k)
                transpose(r);
            // A store past the last row is in the panel's slack; past an earlier one, the next row's store overwrites
            // it.
            for (int t = 0; t < VW; t++)
                if (lanes_along_k)
                    store_u32(dst + word_offset(format, width, i + t, w0), r[t]);
                else if (w0 + t < words)
                    store_u32(dst + word_offset(format, width, i, w0 + t), r[t]);
        }
}

#define PANEL(name, format, width, dtype, round, k_contiguous)                                                         \
    static void name(void *dst, const mz_matmul_operand *src, int64_t i0, int ni, int64_t k0, int64_t nk,              \
                     int64_t k_padded) {                                                                               \
        pack_panel(dst, src, format, width, dtype, round, k_contiguous, i0, ni, k0, nk, k_padded);                     \
    }

// Storage and rounding: F32 and F16 mean that nothing is rounded where the values already have that format.
#define PANELS(prefix, format, width)                                                                                  \
    PANEL(prefix##_f32_i, format, width, MEZZO_F32, MEZZO_F32, false)                                                  \
    PANEL(prefix##_f32_k, format, width, MEZZO_F32, MEZZO_F32, true)                                                   \
    PANEL(prefix##_f32_bf16_i, format, width, MEZZO_F32, MEZZO_BF16, false)                                            \
    PANEL(prefix##_f32_bf16_k, format, width, MEZZO_F32, MEZZO_BF16, true)                                             \
    PANEL(prefix##_f32_f16_i, format, width, MEZZO_F32, MEZZO_F16, false)                                              \
    PANEL(prefix##_f32_f16_k, format, width, MEZZO_F32, MEZZO_F16, true)                                               \
    PANEL(prefix##_bf16_i, format, width, MEZZO_BF16, MEZZO_F32, false)                                                \
    PANEL(prefix##_bf16_k, format, width, MEZZO_BF16, MEZZO_F32, true)                                                 \
    PANEL(prefix##_bf16_f16_i, format, width, MEZZO_BF16, MEZZO_F16, false)                                            \
    PANEL(prefix##_bf16_f16_k, format, width, MEZZO_BF16, MEZZO_F16, true)                                             \
    PANEL(prefix##_f16_i, format, width, MEZZO_F16, MEZZO_F32, false)                                                  \
    PANEL(prefix##_f16_k, format, width, MEZZO_F16, MEZZO_F32, true)                                                   \
    PANEL(prefix##_f16_bf16_i, format, width, MEZZO_F16, MEZZO_BF16, false)                                            \
    PANEL(prefix##_f16_bf16_k, format, width, MEZZO_F16, MEZZO_BF16, true)

// Pairs are BF16 for any compute format: a path with such panels serves BF16 alone.
#define PAIR_PANELS(prefix, format, width)                                                                             \
    PANEL(prefix##_f32_i, format, width, MEZZO_F32, MEZZO_BF16, false)                                                 \
    PANEL(prefix##_f32_k, format, width, MEZZO_F32, MEZZO_BF16, true)                                                  \
    PANEL(prefix##_bf16_i, format, width, MEZZO_BF16, MEZZO_F32, false)                                                \
    PANEL(prefix##_bf16_k, format, width, MEZZO_BF16, MEZZO_F32, true)                                                 \
    PANEL(prefix##_f16_i, format, width, MEZZO_F16, MEZZO_BF16, false)                                                 \
    PANEL(prefix##_f16_k, format, width, MEZZO_F16, MEZZO_BF16, true)

PANELS(a, MZ_PANEL_F32, F32_MR)
PANELS(b, MZ_PANEL_F32, F32_NR)
PAIR_PANELS(tile_a, MZ_PANEL_TILE_A, 32)
PAIR_PANELS(tile_b, MZ_PANEL_TILE_B, 32)
#if defined(MZ_ISA_AVX512)
PAIR_PANELS(pairs_a, MZ_PANEL_PAIRS, 14)
PAIR_PANELS(pairs_b, MZ_PANEL_PAIRS, 32)
#elif VEC_NEON
PAIR_PANELS(pairs_a, MZ_PANEL_PAIRS, 8)
PAIR_PANELS(pairs_b, MZ_PANEL_PAIRS, 12)
#endif

typedef void (*pack_fn)(void *dst, const mz_matmul_operand *src, int64_t i0, int ni, int64_t k0, int64_t nk,
                        int64_t k_padded);

enum { STORED_F32, STORED_BF16, STORED_F16 }; // also the indices of the formats to which values are rounded

#define TABLE(prefix)                                                                                                  \
    {                                                                                                                  \
        {{prefix##_f32_i, prefix##_f32_k},                                                                             \
         {prefix##_f32_bf16_i, prefix##_f32_bf16_k},                                                                   \
         {prefix##_f32_f16_i, prefix##_f32_f16_k}},                                                                    \
            {{prefix##_bf16_i, prefix##_bf16_k},                                                                       \
             {prefix##_bf16_i, prefix##_bf16_k},                                                                       \
             {prefix##_bf16_f16_i, prefix##_bf16_f16_k}},                                                              \
            {{prefix##_f16_i, prefix##_f16_k},                                                                         \
             {prefix##_f16_bf16_i, prefix##_f16_bf16_k},                                                               \
             {prefix##_f16_i, prefix##_f16_k}},                                                                        \
    }
#define PAIR_TABLE(prefix)                                                                                             \
    {                                                                                                                  \
        {prefix##_f32_i, prefix##_f32_k}, {prefix##_bf16_i, prefix##_bf16_k}, {                                        \
            prefix##_f16_i, prefix##_f16_k                                                                             \
        }                                                                                                              \
    }

static const pack_fn f32_panels[2][3][3][2] = {TABLE(a), TABLE(b)};
static const pack_fn tile_a_panels[3][2] = PAIR_TABLE(tile_a), tile_b_panels[3][2] = PAIR_TABLE(tile_b);
#if defined(MZ_ISA_AVX512) || VEC_NEON
static const pack_fn pair_panels[2][3][2] = {PAIR_TABLE(pairs_a), PAIR_TABLE(pairs_b)};
#endif

static int format_index(mezzo_dtype dtype) {
    return dtype == MEZZO_BF16 ? STORED_BF16 : dtype == MEZZO_F16 ? STORED_F16 : STORED_F32;
}

void FOR_LEVEL(mz_matmul_pack)(mz_panel format, int width, void *dst, const mz_matmul_operand *src, int64_t i0, int ni,
                               int64_t k0, int64_t nk, int64_t k_padded) {
    int stored = format_index(src->dtype), round = format_index(src->compute), along_k = src->k_stride == 1;
    pack_fn pack = NULL;
    switch (format) {
    case MZ_PANEL_F32:
        pack = f32_panels[width == F32_NR][stored][round][along_k];
        break;
    case MZ_PANEL_TILE_A:
        pack = tile_a_panels[stored][along_k];
        break;
    case MZ_PANEL_TILE_B:
        pack = tile_b_panels[stored][along_k];
        break;
    case MZ_PANEL_SPLIT_A:
    case MZ_PANEL_SPLIT_B:
        FOR_LEVEL(mz_matmul_pack_split)(format, dst, src, i0, ni, k0, nk, k_padded);
        return;
    case MZ_PANEL_PAIRS:
#if defined(MZ_ISA_AVX512) || VEC_NEON
        pack = pair_panels[width == (VEC_NEON ? 12 : 32)][stored][along_k];
#endif
        break;
    }
    if (pack != NULL)
        pack(dst, src, i0, ni, k0, nk, k_padded);
}
