// Declares what attention's forward and backward kernels on AMX tiles share: heads packed for tiles, and the functions
// of softmax.
//
// Operands are BF16, or pairs of BF16: an FP16 or TF32 number of 11 significant bits is exactly hi + lo, hi its upper 8
// bits, and a product of two such numbers exactly four BF16 products. `parts` is 1 or 2, a constant wherever it is
// inlined; the second part of a packed block lies one plane after the first.
//
// A left operand is stored in rows (16 rows of 32 k are a tile directly), a right operand in pairs of k: element (k, n)
// of [K, N] at [k/2][n][k%2].
#ifndef MZ_CPU_AMX_ATTENTION_H
#define MZ_CPU_AMX_ATTENTION_H

#include "backend/cpu/kernels/amx_tile.h"
#include "backend/cpu/kernels/attention.h"

#define ALWAYS static inline __attribute__((always_inline))

// Says where one head's elements are: row r at data + r·stride elements; rows from `rows` on and columns from h->width
// on are 0.
typedef struct head_rows {
    const char *data;
    size_t stride;
    mezzo_dtype dtype; // BF16, F16, or F32 (rounded to TF32 when it is loaded)
    int64_t rows;
    int width;
} head_rows;

static inline head_rows head_rows_of(const mz_tensor *t, int64_t at, int64_t stride, int64_t rows, int width) {
    return (head_rows){element_at(t, at), (size_t)stride, t->dtype, rows, width};
}

// --- functions -----------------------------------------------------------------------------------------------------
// Computes 2ˣ, within 2.7 u for x where the result is normal: 2ˣ = 2ⁿ·2ᶠ, f = x - round(x); a fit of degree 5 to 2ᶠ, 1
// at 0 (weighted least squares, iterated until the relative error is level). NaN stays NaN; x must not be -inf.
ALWAYS __m512 exp2_lanes(__m512 x) {
    __m512 f = _mm512_reduce_ps(x, 0); // x - round(x)
    __m512 n = _mm512_sub_ps(x, f);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0x1.5bba14p-10f), f, _mm512_set1_ps(0x1.3cea88p-7f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c6b752p-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebf9bcp-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e42ap-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

// Computes ln x for normal x > 0 (NaN stays NaN): x = 2ᵉ·(1 + t), t in [-1/4, 1/2); ln(1 + t) = t + t²·q(t), error of
// the fit 0.09 u.
static inline __m512 log_lanes(__m512 x) {
    __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
    __m512 e = _mm512_getexp_ps(_mm512_div_ps(x, m)), t = _mm512_sub_ps(m, _mm512_set1_ps(1.0f));
    __m512 q = _mm512_fmadd_ps(_mm512_set1_ps(0x1.a6874cp-5f), t, _mm512_set1_ps(-0x1.e7affcp-4f));
    q = _mm512_fmadd_ps(q, t, _mm512_set1_ps(0x1.3415bap-3f));
    q = _mm512_fmadd_ps(q, t, _mm512_set1_ps(-0x1.5976c8p-3f));
    q = _mm512_fmadd_ps(q, t, _mm512_set1_ps(0x1.991572p-3f));
    q = _mm512_fmadd_ps(q, t, _mm512_set1_ps(-0x1.ffcc4cp-3f));
    q = _mm512_fmadd_ps(q, t, _mm512_set1_ps(0x1.5555e4p-2f));
    q = _mm512_fmadd_ps(q, t, _mm512_set1_ps(-0x1.00002ap-1f));
    __m512 ln = _mm512_fmadd_ps(_mm512_mul_ps(t, t), q, t);
    return _mm512_fmadd_ps(e, _mm512_set1_ps(0x1.62e43p-1f), ln);
}

// --- parts ---------------------------------------------------------------------------------------------------------
// Truncates FP32 to BF16's 8 significant bits, the upper 16 bits of each lane.
ALWAYS __m512 cut_bf16(__m512 x) {
    return _mm512_and_ps(x, (__m512)_mm512_set1_epi32((int)0xFFFF0000u));
}
// Converts two vectors of FP32 to BF16, `low` in the lower half. Subnormals become 0, as in tile products.
ALWAYS __m512i narrow_two(__m512 low, __m512 high) {
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}
// Interleaves the halves a and b of a vector of 16-bit numbers: a0 b0 a1 b1 ….
ALWAYS __m512i zip_halves(__m512i x) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, x);
}

// Rounds FP32 to TF32's 11 significant bits, to nearest even; NaN stays NaN.
ALWAYS __m512 round_tf32(__m512 x) {
    __m512i bits = (__m512i)x, odd = _mm512_and_si512(_mm512_srli_epi32(bits, 13), _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0xFFF)));
    __m512 rounded = (__m512)_mm512_and_si512(sum, _mm512_set1_epi32((int)0xFFFFE000u));
    return _mm512_mask_mov_ps(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

// --- packing -------------------------------------------------------------------------------------------------------
// Returns 32 elements of a row from column d on; 0 beyond the head's width. `part` 0: the BF16 values, or their upper 8
// bits; 1: the remaining bits.
ALWAYS __m512i row_part(const head_rows *from, int64_t row, int d, const int part) {
    int left = from->width - d;
    if (row >= from->rows || left <= 0)
        return _mm512_setzero_si512();
    __mmask32 some = left >= 32 ? 0xFFFFFFFFu : (1u << left) - 1;
    size_t at = (size_t)row * from->stride + (size_t)d;
    if (from->dtype == MEZZO_BF16)
        return _mm512_maskz_loadu_epi16(some, from->data + 2 * at);
    __m512 low, high;
    if (from->dtype == MEZZO_F16) {
        __m512i x = _mm512_maskz_loadu_epi16(some, from->data + 2 * at);
        low = _mm512_cvtph_ps(_mm512_castsi512_si256(x));
        high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1));
    } else {
        low = _mm512_maskz_loadu_ps((__mmask16)some, from->data + 4 * at);
        high = _mm512_maskz_loadu_ps((__mmask16)(some >> 16), from->data + 4 * at + 64);
        low = round_tf32(low);
        high = round_tf32(high);
    }
    if (part == 1) { // exact, because at most 3 bits remain
        low = _mm512_sub_ps(low, cut_bf16(low));
        high = _mm512_sub_ps(high, cut_bf16(high));
    }
    // The number is in the upper 16 bits, exactly or truncated.
    __m512i a = _mm512_srli_epi32((__m512i)low, 16), b = _mm512_srli_epi32((__m512i)high, 16);
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(a)), _mm512_cvtepi32_epi16(b), 1);
}

// Transposes 16 × 16 words of 32 bits: to[i][j] = from[j][i].
static inline void transpose_words(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) { // within 128 bits: pairs of rows
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { // groups of four rows
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) { // quarters of the columns
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xDD);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xDD);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
    }
}

// Prefetches rows, which are a whole [H·D] apart, more than hardware prefetchers follow.
ALWAYS void prefetch_rows(const head_rows *from, int64_t row, int64_t n) {
    size_t size = from->dtype == MEZZO_F32 ? 4 : 2;
    for (int64_t r = row; r < row + n && r < from->rows; r++)
        for (size_t line = 0; line < (size_t)from->width * size; line += 64)
            __builtin_prefetch(from->data + (size_t)r * from->stride * size + line, 0, 2);
}

// Packs a left operand: [n][depth] from row `first` on, depth a multiple of 32.
static inline void pack_rows(const head_rows *from, int64_t first, int64_t n, int depth, int parts, uint16_t *to,
                             size_t plane) {
    prefetch_rows(from, first, n < 8 ? n : 8);
    for (int64_t r = 0; r < n; r++) {
        prefetch_rows(from, first + r + 8, 1);
        for (int d = 0; d < depth; d += 32)
            for (int part = 0; part < parts; part++)
                _mm512_store_si512(to + (size_t)part * plane + r * depth + d, row_part(from, first + r, d, part));
    }
}

// Packs a right operand whose k is the row: [n/2][depth][2], n even.
static inline void pack_pairs(const head_rows *from, int64_t first, int64_t n, int depth, int parts, uint16_t *to,
                              size_t plane) {
    for (int64_t r = 0; r < n; r += 2)
        for (int d = 0; d < depth; d += 32)
            for (int part = 0; part < parts; part++) {
                __m512i a = row_part(from, first + r, d, part), b = row_part(from, first + r + 1, d, part);
                __m512i low = _mm512_inserti64x4(a, _mm512_castsi512_si256(b), 1),
                        high = _mm512_shuffle_i64x2(a, b, 0xEE);
                uint16_t *at = to + (size_t)part * plane + r * depth + 2 * d;
                _mm512_store_si512(at, zip_halves(low));
                _mm512_store_si512(at + 32, zip_halves(high));
            }
}

// Packs a right operand whose column is the row, k along the head: tiles [n/16][depth/32] of 16 pairs × 16 rows, n a
// multiple of 16.
static inline void pack_columns(const head_rows *from, int64_t first, int64_t n, int depth, int parts, uint16_t *to,
                                size_t plane) {
    prefetch_rows(from, first, 16);
    for (int64_t r = 0; r < n; r += 16) {
        prefetch_rows(from, first + r + 16, 16);
        for (int d = 0; d < depth; d += 32)
            for (int part = 0; part < parts; part++) {
                __m512i words[16];
                for (int i = 0; i < 16; i++)
                    words[i] = row_part(from, first + r + i, d, part);
                transpose_words(words);
                uint16_t *tile = to + (size_t)part * plane + r * depth + 16 * d;
                for (int i = 0; i < 16; i++)
                    _mm512_store_si512(tile + 32 * i, words[i]);
            }
    }
}

// Packs a left operand whose k is the row: tiles [n/32][depth/16] of 16 of the head's elements × 32 rows, n a multiple
// of 32.
static inline void pack_transposed(const head_rows *from, int64_t first, int64_t n, int depth, int parts, uint16_t *to,
                                   size_t plane) {
    for (int64_t r = 0; r < n; r += 32)
        for (int d = 0; d < depth; d += 32)
            for (int part = 0; part < parts; part++) {
                __m512i low[16], high[16]; // pairs of rows, 16 elements each
                for (int i = 0; i < 16; i++) {
                    __m512i a = row_part(from, first + r + 2 * i, d, part),
                            b = row_part(from, first + r + 2 * i + 1, d, part);
                    low[i] = zip_halves(_mm512_inserti64x4(a, _mm512_castsi512_si256(b), 1));
                    high[i] = zip_halves(_mm512_shuffle_i64x2(a, b, 0xEE));
                }
                transpose_words(low);
                transpose_words(high);
                uint16_t *tile = to + (size_t)part * plane + r * depth + 32 * d;
                for (int i = 0; i < 16; i++) {
                    _mm512_store_si512(tile + 32 * i, low[i]);
                    _mm512_store_si512(tile + 512 + 32 * i, high[i]);
                }
            }
}

// --- products ------------------------------------------------------------------------------------------------------
// An operand of products: its first tile, of rows `row` bytes apart; the tile of the next 32 of k is `step` bytes
// further, and the second part `plane` bytes.
typedef struct amx_operand {
    const char *first;
    size_t row, step, plane;
} amx_operand;

// Computes 32 × 16 sums (+)= A·B over steps·32 of k, in rows of `row` bytes; A's lower 16 rows are `lower` bytes after
// the upper. `keep`: adds to the present sums.
//
// Only four tiles are in use, and A's is loaded again for every product. A core's two threads share its tile registers:
// while the other thread is busy, a kernel that uses all eight has none free for the next instruction, and each waits
// for the one before it.
ALWAYS void column_products(const int parts, amx_operand a, size_t lower, amx_operand b, int steps, bool keep,
                            float *sums, size_t row) {
    char *sums_below = (char *)sums + AMX_ROWS * row;
    if (keep) {
        amx_load(0, sums, row);
        amx_load(1, sums_below, row);
    } else {
        amx_zero(0);
        amx_zero(1);
    }
    for (int i = 0; i < steps; i++, a.first += a.step, b.first += b.step) {
        const char *below = a.first + lower;
        amx_load(3, b.first, b.row);
        amx_load(2, a.first, a.row);
        amx_dot(0, 2, 3);
        amx_load(2, below, a.row);
        amx_dot(1, 2, 3);
        if (parts == 1)
            continue;
        amx_load(2, a.first + a.plane, a.row);
        amx_dot(0, 2, 3);
        amx_load(2, below + a.plane, a.row);
        amx_dot(1, 2, 3);
        amx_load(3, b.first + b.plane, b.row);
        amx_dot(1, 2, 3);
        amx_load(2, a.first + a.plane, a.row);
        amx_dot(0, 2, 3);
        amx_load(2, below, a.row);
        amx_dot(1, 2, 3);
        amx_load(2, a.first, a.row);
        amx_dot(0, 2, 3);
    }
    amx_store(0, sums, row);
    amx_store(1, sums_below, row);
}

// --- which calls ---------------------------------------------------------------------------------------------------
// Returns the number of parts: 1 for BF16; 2 for FP16, and for FP32 under TF32; 0: these kernels do not serve the call.
static inline int parts_of(const mz_call *call) {
    const mz_tensor *q = slots_of(call).q;
    if (q->dtype == MEZZO_BF16 && call->numerics.compute == MEZZO_BF16)
        return 1;
    bool two = (q->dtype == MEZZO_F16 && call->numerics.compute == MEZZO_F16) ||
               (q->dtype == MEZZO_F32 && call->numerics.compute == MEZZO_TF32);
    return two ? 2 : 0;
}

// Refuses all but causal attention of one format, which tiles multiply.
static inline const char *refuse_tiles(const mezzo_device *device, const mz_call *call) {
    const attention_slots s = slots_of(call);
    const mz_tensor *all[] = {s.k, s.v, call->op == MZ_OP_attention_bwd ? mz_in(call, attention_bwd, dy) : s.q};
    const mz_isa *isa = &mz_cpu(device)->isa;
    const int parts = parts_of(call);
    const char *reason = refuse_attention(device, call);
    if (reason == NULL)
        reason = refuse_other_than_causal(call);
    if (reason == NULL && parts == 0)
        reason = "fp32 arithmetic: tiles have bf16 products, and fp16 and tf32 made of them";
    // Two parts need four products instead of one.
    if (reason == NULL && parts == 2 && isa->amx_rate > 0 && !mz_isa_worth_it(isa, isa->amx_rate / MZ_CPU_F16_PRODUCTS))
        reason = "fp32 arithmetic is faster here than products in two parts";
    for (size_t i = 0; reason == NULL && i < MZ_COUNT(all); i++)
        if (mz_present(all[i]) && all[i]->dtype != s.q->dtype)
            reason = "q, k, v and dy must be of one format";
    return reason;
}

static inline void *take_bytes(char **next, size_t bytes) {
    void *start = *next;
    *next = (char *)((uintptr_t)*next + mz_align_up(bytes, 64)); // from NULL on, only counted
    return start;
}

#endif
