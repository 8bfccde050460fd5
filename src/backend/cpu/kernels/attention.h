// Declares what the attention kernels share: where heads are in their tensors, and tiles of them in FP32.
#ifndef MZ_CPU_ATTENTION_H
#define MZ_CPU_ATTENTION_H

#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/dropout.h"
#include "backend/cpu/kernels/tile.h"

// TILE is the number of queries and of keys of a tile. Its 64 × 64 scores are 16 KiB, half of an L1 cache of 32 KiB.
enum { TILE = 64, MAX_HEAD = 256 };

typedef struct heads {
    int64_t batch, length, heads, kv_heads; // B, Tq, H, Hkv
    int64_t keys, key_tiles;                // Tk, and its tiles
    int width, padded;                      // D, and D rounded up to whole vectors and groups of four
    int64_t q_row, kv_row, y_row;           // elements from one position to the next
    int64_t k_start, v_start;               // in packed [B, T, 3·H·D]: where k and v begin in a row
    int64_t tiles;                          // number of tiles of queries
    float scale;                            // factor of q·kᵀ
    float cap;                              // of scores, 0: there is none
    const mz_attrs *attrs;
    const int32_t *positions;       // [B, T], NULL: a row is one document
    const float *mask;              // [1 or B, 1 or H, 1 or Tq, Tk], added to scores; NULL: none
    int64_t mask_b, mask_h, mask_q; // elements of the mask from one batch row, head and query to the next
    bool packed, causal;
} heads;

// The tensors of attention, with a mask or not, or of its gradient, which a mask leaves no y.
typedef struct attention_slots {
    const mz_tensor *q, *k, *v, *y, *positions, *mask; // q: or the packed one; y: or dy
} attention_slots;
#define QKV(op) .q = mz_in(call, op, q), .k = mz_in(call, op, k), .v = mz_in(call, op, v)
static inline attention_slots slots_of(const mz_call *call) {
    switch (call->op) {
    case MZ_OP_attention:
        return (attention_slots){QKV(attention), .y = mz_out(call, attention, y),
                                 .positions = mz_in(call, attention, positions)};
    case MZ_OP_attention_bwd:
        return (attention_slots){QKV(attention_bwd), .y = mz_in(call, attention_bwd, y),
                                 .positions = mz_in(call, attention_bwd, positions)};
    case MZ_OP_attention_masked:
        return (attention_slots){QKV(attention_masked), .y = mz_out(call, attention_masked, y),
                                 .mask = mz_in(call, attention_masked, mask)};
    case MZ_OP_attention_masked_bwd:
        return (attention_slots){QKV(attention_masked_bwd), .y = mz_in(call, attention_masked_bwd, dy),
                                 .mask = mz_in(call, attention_masked_bwd, mask)};
    default:
        return (attention_slots){QKV(attention_cached), .y = mz_out(call, attention_cached, y)};
    }
}

static inline heads heads_of(const mz_call *call) {
    const attention_slots s = slots_of(call);
    const mz_tensor *q = s.q, *k = s.k, *y = s.y, *positions = s.positions;
    heads h = {.batch = y->shape.dim[0], .length = y->shape.dim[1], .heads = call->attrs.heads};
    h.y_row = y->shape.dim[2]; // H·D
    h.width = (int)(h.y_row / h.heads);
    h.padded = (int)mz_align_up((size_t)h.width, VW);
    h.packed = !mz_present(k);
    h.q_row = q->shape.dim[2];
    h.kv_row = h.packed ? h.q_row : k->shape.dim[2];
    h.kv_heads = h.packed ? h.heads : h.kv_row / h.width;
    h.k_start = h.packed ? h.y_row : 0;
    h.v_start = h.packed ? 2 * h.y_row : 0;
    h.tiles = (h.length + TILE - 1) / TILE;
    h.keys = h.packed ? h.length : k->shape.dim[1];
    h.key_tiles = (h.keys + TILE - 1) / TILE;
    h.causal = call->attrs.causal;
    h.scale = (float)mz_attention_scale(&call->attrs, h.width);
    h.cap = call->attrs.score_cap;
    h.attrs = &call->attrs;
    h.positions = positions != NULL && mz_present(positions) ? positions->data : NULL;
    if (s.mask != NULL) {
        const int64_t *dim = s.mask->shape.dim;
        h.mask = s.mask->data;
        h.mask_q = dim[2] > 1 ? dim[3] : 0;
        h.mask_h = dim[1] > 1 ? dim[2] * dim[3] : 0;
        h.mask_b = dim[0] > 1 ? dim[1] * dim[2] * dim[3] : 0;
    }
    return h;
}

static inline int64_t mask_at(const heads *h, int64_t b, int64_t head, int64_t i) {
    return b * h->mask_b + head * h->mask_h + i * h->mask_q;
}
// Returns the mask of query i for the keys of tile j; NULL: none.
static inline const float *mask_row(const heads *h, int64_t b, int64_t head, int64_t i, int64_t j) {
    return h->mask != NULL ? h->mask + mask_at(h, b, head, i) + j * TILE : NULL;
}

// Returns the first key that query i of row b sees.
static inline int64_t first_key(const heads *h, int64_t b, int64_t i) {
    return h->causal ? mz_attention_first(h->attrs, h->positions != NULL ? h->positions + b * h->length : NULL, i) : 0;
}

// Returns the end of the tiles whose keys a tile of queries sees, first_tile … tiles_seen - 1.
static inline int64_t tiles_seen(const heads *h, int64_t tile) {
    return h->causal ? min64(tile + 1, h->key_tiles) : h->key_tiles;
}
static inline int64_t first_tile(const heads *h, int64_t b, int64_t tile) {
    return first_key(h, b, tile * TILE) / TILE;
}
// Returns how many keys at the beginning of tile j query r of a tile does not see: up to TILE.
static inline int keys_hidden(const heads *h, int64_t b, int64_t tile, int64_t j, int r) {
    const int64_t first = first_key(h, b, tile * TILE + r) - j * TILE;
    return first < 0 ? 0 : (int)min64(first, TILE);
}
// Returns how many keys of tile j, from its first, query r of a tile sees.
static inline int keys_seen(const heads *h, int64_t tile, int64_t j, int r) {
    int there = (int)min64(TILE, h->keys - j * TILE);
    return h->causal && j == tile && r + 1 < there ? r + 1 : there;
}

// Refuses calls other than the usual attention of language models.
static inline const char *refuse_other_than_causal(const mz_call *call) {
    const attention_slots s = slots_of(call);
    if (call->attrs.window > 0 || call->attrs.score_cap > 0)
        return "has no window and no cap of scores";
    if (mz_present(s.positions))
        return "has one document in a row";
    if (!call->attrs.causal)
        return "is causal";
    return mz_present(s.k) && s.k->shape.dim[1] != s.q->shape.dim[1] ? "has as many keys as queries" : NULL;
}

static inline const char *refuse_attention(const mezzo_device *device, const mz_call *call) {
    (void)device;
    const attention_slots s = slots_of(call);
    if (s.y->shape.rank != 3 || s.q->shape.rank != 3 || call->attrs.heads < 1)
        return "attention is over [B, T, H·D]";
    if (s.y->shape.dim[2] / call->attrs.heads > MAX_HEAD)
        return "heads are wider than 256: divide the width among more heads (model.heads)";
    return NULL;
}

// Loads a vector of elements as FP32; lanes past `lanes` are 0.
static inline vf load_lanes(const void *at, mezzo_dtype dtype, int lanes) {
    if (dtype == MEZZO_F32)
        return vload_lanes(at, lanes, 0);
    vh x = hload_lanes(at, lanes);
    return dtype == MEZZO_BF16 ? from_bf16(x) : from_f16(x);
}

// Loads rows, which are a whole [H·D] apart, more than hardware prefetchers follow: it prefetches the eighth row after
// the present one.
static inline __attribute__((always_inline)) void load_rows(const char *from, size_t stride, const mezzo_dtype dtype,
                                                            int rows, const heads *h, float factor, float *to) {
    const size_t size = dtype == MEZZO_F32 ? 4 : 2;
    for (int r = 0; r < rows; r++, from += stride * size) {
        for (size_t line = 0; line < (size_t)h->width * size; line += 64)
            __builtin_prefetch(from + 8 * stride * size + line);
        FOR_LANES(d, lanes, h->width) {
            vstore(to, load_lanes(from + (size_t)d * size, dtype, lanes) * factor);
            to += VW;
        }
    }
}

// Rounds FP32 to the compute format of products.
static inline vf rounded_to(mezzo_dtype compute, vf x) {
    if (compute == MEZZO_BF16)
        return from_bf16(to_bf16(x));
    if (compute == MEZZO_F16)
        return from_f16(to_f16(x));
    vi bits = (vi)x, up = (vi)((vu)bits + 0xFFFu + (((vu)bits >> 13) & 1u)) & iset((int32_t)0xFFFFE000u);
    return vselect(vless_equal(vabs(x), vset(INFINITY)), (vf)up, x); // TF32; NaN stays NaN
}

// Loads one head's D elements of `rows` positions from `at` on (then every `stride` elements) into FP32 rows of
// `padded`, times `factor`; zeros beyond D, and in rows up to TILE. Operands are rounded to `compute` where the tensor
// has more bits.
static inline void load_head(const mz_tensor *t, int64_t at, int64_t stride, int rows, const heads *h, float factor,
                             mezzo_dtype compute, float *to) {
    const char *from = element_at(t, at);
    size_t count = (size_t)rows * (size_t)h->padded;
    bool rounded = t->dtype == MEZZO_F32 && compute != MEZZO_F32;
    float first = rounded ? 1.0f : factor;
    if (t->dtype == MEZZO_F32)
        load_rows(from, (size_t)stride, MEZZO_F32, rows, h, first, to);
    else if (t->dtype == MEZZO_BF16)
        load_rows(from, (size_t)stride, MEZZO_BF16, rows, h, first, to);
    else
        load_rows(from, (size_t)stride, MEZZO_F16, rows, h, first, to);
    for (size_t i = 0; rounded && i < count; i += VW) {
        vstore(to + i, rounded_to(compute, vload(to + i)) * factor);
    }
    memset(to + count, 0, ((size_t)TILE * (size_t)h->padded - count) * sizeof *to);
}

// Transposes [TILE][padded] to [padded][TILE].
static inline void transpose_head(const float *from, const heads *h, float *to) {
    for (int d = 0; d < h->padded; d += 4)
        for (int r = 0; r < TILE; r += 4)
            transpose_four(from + (size_t)r * (size_t)h->padded + d, (size_t)h->padded, to + (size_t)d * TILE + r,
                           TILE);
}

static inline void store_lanes(void *at, mezzo_dtype dtype, vf x, int lanes) {
    if (dtype == MEZZO_F32)
        vstore_lanes(at, x, lanes);
    else
        hstore_lanes(at, dtype == MEZZO_BF16 ? to_bf16(x) : to_f16(x), lanes);
}

static inline __attribute__((always_inline)) void store_rows(const float *from, const heads *h, int rows,
                                                             const float *factors, char *to, size_t stride,
                                                             const mezzo_dtype dtype) {
    const size_t size = dtype == MEZZO_F32 ? 4 : 2;
    for (int r = 0; r < rows; r++, to += stride * size) {
        FOR_LANES(d, lanes, h->width) {
            store_lanes(to + (size_t)d * size, dtype, vload(from) * factors[r], lanes);
            from += VW;
        }
    }
}

// Stores one head's rows into a tensor, each times its factor.
static inline void store_head(const float *from, const heads *h, int rows, const float *factors, const mz_tensor *t,
                              int64_t at, int64_t stride) {
    char *to = element_at(t, at);
    if (t->dtype == MEZZO_F32)
        store_rows(from, h, rows, factors, to, (size_t)stride, MEZZO_F32);
    else if (t->dtype == MEZZO_BF16)
        store_rows(from, h, rows, factors, to, (size_t)stride, MEZZO_BF16);
    else
        store_rows(from, h, rows, factors, to, (size_t)stride, MEZZO_F16);
}

// Returns a vector's scores with the cap, and the derivative of the cap there.
static inline vf cap_scores(const heads *h, vf s) {
    return vtanh(s / h->cap) * h->cap;
}
static inline vf cap_derivative(const heads *h, vf capped) {
    const vf t = capped / h->cap;
    return 1.0f - t * t;
}
// Returns whether a mask hides all keys of a row of scores. NaN is not hidden.
static inline bool all_hidden(const float *scores, int valid) {
    int j = 0;
    while (j < valid && scores[j] == -INFINITY)
        j++;
    return j == valid;
}
// Returns which lanes of a vector that begins at key j have keys hidden … valid - 1.
static inline vmask lanes_between(int j, int hidden, int valid) {
    const vi key = lane_numbers() + j;
    return iless(key, iset(valid)) & ~iless(key, iset(hidden));
}

// Rounds up to whole vectors. C[rows][n] += A·B are tile products with causal bounds: row i of a diagonal tile has
// nothing beyond column i. Rows go in fours; masked elements inside the last vector are zero (or their reader masks
// them).
static inline int whole_vectors(int n) {
    return (int)mz_align_up((size_t)n, VW);
}

// Computes scores of `rows` queries and a tile of keys: s[r][0…) = q[r]·keys, s in rows of TILE.
static inline void tile_scores(const float *q, const float *keys, const heads *h, int rows, bool diagonal, float *s) {
    for (int r = 0; r < rows; r += TILE_ROWS) {
        int n = diagonal ? whole_vectors(r + TILE_ROWS) : TILE;
        for (int i = 0; i < TILE_ROWS; i++)
            memset(s + (size_t)(r + i) * TILE, 0, (size_t)n * sizeof *s);
        tile_operand a = {q + (size_t)r * (size_t)h->padded, (size_t)h->padded, 1};
        tile_rows(a, keys, TILE, s + (size_t)r * TILE, TILE, n, h->width);
    }
}

// Adds out[r] += Σ_j p[r][j]·values[j]: what queries receive from a tile of positions. Beyond the last vector with keys
// p has scores of none, NaN where a query has an infinity: they take no part.
static inline void tile_gather(const float *p, const float *values, const heads *h, int rows, int keys, bool diagonal,
                               float *out) {
    const int all = whole_vectors(keys);
    for (int r = 0; r < rows; r += TILE_ROWS) {
        tile_operand a = {p + (size_t)r * TILE, TILE, 1};
        tile_rows(a, values, (size_t)h->padded, out + (size_t)r * (size_t)h->padded, (size_t)h->padded, h->padded,
                  diagonal && r + TILE_ROWS < all ? r + TILE_ROWS : all);
    }
}

// Adds out[j] += Σ_r p[r][j]·values[r]: what a tile of positions receives from queries.
static inline void tile_scatter(const float *p, const float *values, const heads *h, int rows, int keys, bool diagonal,
                                float *out) {
    for (int j = 0; j < keys; j += TILE_ROWS) {
        int first = diagonal ? j : 0;
        tile_operand a = {p + (size_t)first * TILE + j, 1, TILE};
        tile_rows(a, values + (size_t)first * (size_t)h->padded, (size_t)h->padded, out + (size_t)j * (size_t)h->padded,
                  (size_t)h->padded, h->padded, rows - first);
    }
}

// Takes floats from the workspace, in whole cache lines.
static inline float *take(float **next, size_t n) {
    float *start = *next;
    *next += mz_align_up(n, 16);
    return start;
}
static inline int tile_count(const heads *h, int64_t tile) {
    return (int)min64(TILE, h->length - tile * TILE);
}
static inline int key_count(const heads *h, int64_t tile) {
    return (int)min64(TILE, h->keys - tile * TILE);
}

#endif
