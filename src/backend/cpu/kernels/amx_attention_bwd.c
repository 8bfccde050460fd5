// Computes causal attention, backward, on AMX tiles. With p = exp(s - lse), m the dropout factors and Δ_i = dy_i·y_i:
//     dv_j = Σ_i p·m·dy_i,   dS_ij = p·(m·(dy_i·v_j) - Δ_i),   dq_i = Σ_j dS·k_j/√D,   dk_j = Σ_i dS·q_i/√D
// Everything is computed with keys in rows and queries in columns: pᵀ and dSᵀ, rounded to the operands' format, are
// then left operands of dv and dk without a transposition, lse and Δ are vectors instead of broadcast numbers, and only
// dSᵀ is stored a second time, in pairs, for dqᵀ = kᵀ·dSᵀ. A block is 128 keys by 128 queries; its scores are made and
// used 32 × 32 at a time, in 8 KiB. Blocks of 64 would load and store their sums twice as often.
//
// One task owns a batch element's kv head: its sums are in a fixed order, so the number of threads does not change a
// bit.
#include "backend/cpu/kernels/amx_attention.h"

enum { IN_DY, IN_Q, IN_K, IN_V, IN_Y, IN_LSE, IN_POSITIONS };
enum { BLOCK = 128, SQUARE = 32, P_ROW = BLOCK + 32 }; // P_ROW: see amx_attention.c

// Holds a thread's memory: all of one kv head's keys and one query head's queries.
typedef struct backward_block {
    uint16_t *keys, *values, *keys_transposed; // left operands: rows, rows, pack_transposed
    uint16_t *q_columns, *dy_columns;          // right operands of the scores and of dy·v
    uint16_t *q_pairs, *dy_pairs;              // right operands of dk and dv
    uint16_t *p, *ds, *ds_pairs;               // [BLOCK][P_ROW] twice, tiles [BLOCK/32][BLOCK/16]
    float *dk, *dv;                            // [length][depth]
    float *dq;                                 // transposed: tiles [length/16][depth][16]
    float *scores, *dots;                      // [SQUARE][SQUARE]: 32 keys by 32 queries
    float *lse, *delta;                        // [length]: lse·log₂e; both of the present head
    uint32_t *kept;                            // [BLOCK][BLOCK/32]: bit j%32 of word j/32 of a query: dropout keeps key
                                               // j
    size_t plane, p_plane, pairs_plane;        // elements from one BF16 term to the next
    int depth;
    int64_t length; // T, rounded up to whole squares
    float factors[64 + 2 * DROPOUT_RUN];
} backward_block;

// Lays out the thread's buffers from `memory` on (NULL: only counts) and returns their bytes.
static size_t backward_layout(backward_block *w, const heads *h, int parts, char *memory) {
    char *next = memory;
    w->depth = (int)mz_align_up((size_t)h->width, 32);
    w->length = (int64_t)mz_align_up((size_t)h->length, SQUARE);
    w->plane = (size_t)w->length * (size_t)w->depth;
    w->p_plane = BLOCK * P_ROW;
    w->pairs_plane = BLOCK * BLOCK;
    const size_t all = 2 * (size_t)parts * w->plane, sums = w->plane * sizeof(float);
    uint16_t **operands[] = {&w->keys,       &w->values,  &w->keys_transposed, &w->q_columns,
                             &w->dy_columns, &w->q_pairs, &w->dy_pairs};
    for (size_t i = 0; i < MZ_COUNT(operands); i++)
        *operands[i] = take_bytes(&next, all);
    w->p = take_bytes(&next, 2 * (size_t)parts * w->p_plane);
    w->ds = take_bytes(&next, 2 * (size_t)parts * w->p_plane);
    w->ds_pairs = take_bytes(&next, 2 * (size_t)parts * w->pairs_plane);
    w->dk = take_bytes(&next, sums);
    w->dv = take_bytes(&next, sums);
    w->dq = take_bytes(&next, sums);
    w->scores = take_bytes(&next, SQUARE * SQUARE * sizeof(float));
    w->dots = take_bytes(&next, SQUARE * SQUARE * sizeof(float));
    w->lse = take_bytes(&next, (size_t)w->length * sizeof(float));
    w->delta = take_bytes(&next, (size_t)w->length * sizeof(float));
    w->kept = take_bytes(&next, BLOCK * BLOCK / 8);
    return (size_t)(next - memory);
}

// --- operands ------------------------------------------------------------------------------------------------------
static void load_keys(backward_block *w, const mz_call *call, const heads *h, int parts, int64_t b, int64_t g) {
    const mz_tensor *k = &call->in[h->packed ? IN_Q : IN_K], *v = &call->in[h->packed ? IN_Q : IN_V];
    int64_t at = b * h->length * h->kv_row + g * h->width;
    head_rows keys = head_rows_of(k, h->k_start + at, h->kv_row, h->length, h->width);
    head_rows values = head_rows_of(v, h->v_start + at, h->kv_row, h->length, h->width);
    pack_rows(&keys, 0, w->length, w->depth, parts, w->keys, w->plane);
    pack_transposed(&keys, 0, w->length, w->depth, parts, w->keys_transposed, w->plane);
    pack_rows(&values, 0, w->length, w->depth, parts, w->values, w->plane);
    memset(w->dk, 0, w->plane * sizeof(float));
    memset(w->dv, 0, w->plane * sizeof(float));
}

static void load_queries(backward_block *w, const mz_call *call, const heads *h, int parts, int64_t b, int64_t head) {
    const mz_tensor *dy = &call->in[IN_DY], *y = &call->in[IN_Y];
    int64_t at = b * h->length * h->y_row + head * h->width;
    head_rows q =
        head_rows_of(&call->in[IN_Q], b * h->length * h->q_row + head * h->width, h->q_row, h->length, h->width);
    head_rows rows = head_rows_of(dy, at, h->y_row, h->length, h->width);
    pack_columns(&q, 0, w->length, w->depth, parts, w->q_columns, w->plane);
    pack_pairs(&q, 0, w->length, w->depth, parts, w->q_pairs, w->plane);
    pack_columns(&rows, 0, w->length, w->depth, parts, w->dy_columns, w->plane);
    pack_pairs(&rows, 0, w->length, w->depth, parts, w->dy_pairs, w->plane);
    const float *lse = (const float *)call->in[IN_LSE].data + (b * h->heads + head) * h->length;
    for (int64_t r = 0; r < w->length; r++) {
        // For positions past the end e^(0 - lse) is 0, and so is everything computed from it.
        w->lse[r] = r < h->length ? lse[r] * 0x1.715476p0f : 1e30f;
        w->delta[r] = 0;
        if (r >= h->length)
            continue;
        const char *a = element_at(dy, at + r * h->y_row), *c = element_at(y, at + r * h->y_row);
        size_t a_size = dy->dtype == MEZZO_F32 ? 4 : 2, c_size = y->dtype == MEZZO_F32 ? 4 : 2;
        vf dot = {0};
        FOR_LANES(d, lanes, h->width) {
            vf x = load_lanes(a + (size_t)d * a_size, dy->dtype, lanes);
            dot = vfma(x, load_lanes(c + (size_t)d * c_size, y->dtype, lanes), dot);
        }
        w->delta[r] = vsum(dot);
    }
    memset(w->dq, 0, w->plane * sizeof(float));
}

// --- one block -----------------------------------------------------------------------------------------------------
// Draws which keys of the block each query keeps; p > 0.
static void draw_block(backward_block *w, const heads *h, const dropout_stream *stream, int64_t row, int64_t i0,
                       int64_t j0) {
    for (int i = 0; i < BLOCK && i0 + i < h->length; i++)
        for (int j = 0; j < BLOCK && j0 + j <= i0 + i; j += 64) { // keys after a query's position are not read
            __mmask16 keep[4] = {0};
            uint64_t element = (uint64_t)((row + i0 + i) * h->length + j0 + j);
            if ((element & 3) == 0) {
                dropout_keep64(stream, element >> 2, keep);
            } else {
                const float *factors = dropout_factors(stream, element, 64, w->factors);
                for (int k = 0; k < 4; k++)
                    keep[k] = _mm512_cmp_ps_mask(_mm512_loadu_ps(factors + 16 * k), _mm512_setzero_ps(), _CMP_GT_OQ);
            }
            uint32_t *words = w->kept + i * (BLOCK / 32) + j / 32;
            words[0] = (uint32_t)keep[1] << 16 | keep[0];
            words[1] = (uint32_t)keep[3] << 16 | keep[2];
        }
}

// Computes sums[32 keys][32 queries] = rows·columns over the head's elements.
ALWAYS void square_products(const backward_block *w, const int parts, const uint16_t *rows, const uint16_t *columns,
                            int64_t j, int64_t i, float *sums) {
    const size_t row = 2 * (size_t)w->depth, tiles = AMX_BYTES * (size_t)(w->depth / 32);
    const amx_operand left = {(const char *)rows + (size_t)j * row, row, 64, 2 * w->plane};
    amx_operand right = {(const char *)columns + (size_t)(i / 16) * tiles, 64, AMX_BYTES, 2 * w->plane};
    for (int c = 0; c < SQUARE; c += 16, right.first += tiles)
        column_products(parts, left, AMX_ROWS * row, right, w->depth / 32, false, sums + c, SQUARE * sizeof(float));
}

// Stores two rows (keys) of 16 queries in two parts: in rows and, where asked, in pairs.
ALWAYS void store_rows_and_pairs(const int parts, __m512 a, __m512 b, uint16_t *rows, size_t rows_plane,
                                 uint16_t *pairs, size_t pairs_plane) {
    for (int part = 0; part < parts; part++) {
        __m512 x = parts == 2 && part == 0 ? cut_bf16(a) : a, y = parts == 2 && part == 0 ? cut_bf16(b) : b;
        __m512i both = narrow_two(x, y);
        uint16_t *at = rows + (size_t)part * rows_plane;
        _mm256_store_si256((__m256i *)(void *)at, _mm512_castsi512_si256(both));
        _mm256_store_si256((__m256i *)(void *)(at + P_ROW), _mm512_extracti64x4_epi64(both, 1));
        if (pairs != NULL)
            _mm512_store_si512(pairs + (size_t)part * pairs_plane, zip_halves(both));
        a = _mm512_sub_ps(a, x);
        b = _mm512_sub_ps(b, y);
    }
}

typedef struct softmax_scale {
    float unit, drop; // log₂e/√D; 1/(1-p)
    bool dropped;
} softmax_scale;

// Turns scores and dy·v of 32 keys from j and 32 queries from i (of the block at j0, i0) into p·m and dS. `above`:
// queries before a key get 0.
ALWAYS void softmax_square(backward_block *w, const int parts, softmax_scale k, const bool above, int64_t j0,
                           int64_t i0, int j, int i) {
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int c = 0; c < SQUARE; c += 16) {
        const __m512 lse = _mm512_load_ps(w->lse + i0 + i + c), delta = _mm512_load_ps(w->delta + i0 + i + c);
        // Collects the keys' bits of these 16 queries: query n's word in lane n.
        __m512i kept = _mm512_setzero_si512();
        if (k.dropped)
            kept = _mm512_i32gather_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(BLOCK / 32)),
                                          w->kept + (i + c) * (BLOCK / 32) + j / 32, 4);
        uint16_t *pairs = w->ds_pairs + (size_t)(j / 32 * (BLOCK / 16) + (i + c) / 16) * (AMX_BYTES / 2);
        const int64_t ahead = j0 + j - (i0 + i + c); // how far the first key is after the first query
        for (int r = 0; r < SQUARE; r += 2) {
            __m512 p[2], ds[2];
            for (int n = 0; n < 2; n++) {
                const float *s = w->scores + (r + n) * SQUARE + c, *dot = w->dots + (r + n) * SQUARE + c;
                __m512 x = _mm512_fmsub_ps(_mm512_load_ps(s), _mm512_set1_ps(k.unit), lse), g = _mm512_load_ps(dot);
                p[n] = exp2_lanes(x);
                __mmask16 seen = 0xFFFF;
                if (above) {
                    seen = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32((int)ahead + r + n));
                    p[n] = _mm512_maskz_mov_ps(seen, p[n]);
                    g = _mm512_maskz_mov_ps(seen, g);
                }
                if (k.dropped) {
                    __mmask16 stays = _mm512_test_epi32_mask(kept, _mm512_set1_epi32((int)(1u << (r + n))));
                    g = _mm512_maskz_mul_ps(stays, g, _mm512_set1_ps(k.drop));
                    ds[n] = _mm512_mul_ps(p[n], _mm512_sub_ps(g, delta));
                    p[n] = _mm512_maskz_mov_ps(stays, p[n]); // the factor 1/(1-p) is applied at the end of dv
                } else {
                    ds[n] = _mm512_mul_ps(p[n], _mm512_sub_ps(g, delta));
                }
            }
            size_t at = (size_t)(j + r) * P_ROW + (size_t)(i + c);
            store_rows_and_pairs(parts, p[0], p[1], w->p + at, w->p_plane, NULL, 0);
            store_rows_and_pairs(parts, ds[0], ds[1], w->ds + at, w->p_plane, pairs + 16 * r, w->pairs_plane);
        }
    }
}

// Adds sums[nj keys][depth] += left·pairs over the block's ni queries: dv from p and dy, dk from dS and q.
ALWAYS void add_keys(const backward_block *w, const int parts, const uint16_t *left, const uint16_t *pairs, int64_t j0,
                     int64_t i0, int nj, int ni, const bool diagonal, float *sums) {
    const size_t pair_row = 4 * (size_t)w->depth;
    for (int j = 0; j < nj; j += SQUARE) {
        const int from = diagonal ? j : 0;
        const amx_operand a = {(const char *)(left + (size_t)j * P_ROW + from), 2 * P_ROW, 64, 2 * w->p_plane};
        amx_operand b = {(const char *)pairs + (size_t)((i0 + from) / 2) * pair_row, pair_row, AMX_ROWS * pair_row,
                         2 * w->plane};
        for (int d = 0; d < w->depth; d += 16, b.first += 64)
            column_products(parts, a, 2 * AMX_ROWS * P_ROW, b, (ni - from) / 32, true,
                            sums + (size_t)(j0 + j) * (size_t)w->depth + d, (size_t)w->depth * sizeof(float));
    }
}

// Adds dqᵀ[depth][ni queries] += kᵀ·dSᵀ over the block's nj keys.
ALWAYS void add_queries(const backward_block *w, const int parts, int64_t j0, int64_t i0, int nj, int ni,
                        const bool diagonal) {
    const size_t tiles = AMX_BYTES * (size_t)(w->depth / 16);
    for (int i = 0; i < ni; i += 16) {
        const int keys = diagonal ? i / SQUARE * SQUARE + SQUARE : nj;
        const amx_operand b = {(const char *)w->ds_pairs + (size_t)(i / 16) * AMX_BYTES, 64, BLOCK / 16 * AMX_BYTES,
                               2 * w->pairs_plane};
        for (int d = 0; d < w->depth; d += 32) {
            const amx_operand a = {(const char *)w->keys_transposed + (size_t)(j0 / 32) * tiles + (size_t)d * 64, 64,
                                   tiles, 2 * w->plane};
            column_products(parts, a, AMX_BYTES, b, keys / 32, true,
                            w->dq + (size_t)(i0 + i) * (size_t)w->depth + (size_t)d * 16, 64);
        }
    }
}

ALWAYS void backward_pair(backward_block *w, const int parts, softmax_scale k, const bool diagonal, int64_t j0,
                          int64_t i0) {
    const int nj = (int)min64(BLOCK, w->length - j0), ni = (int)min64(BLOCK, w->length - i0);
    for (int j = 0; j < nj; j += SQUARE)
        for (int i = diagonal ? j : 0; i < ni; i += SQUARE) {
            AMX_FENCE();
            square_products(w, parts, w->keys, w->q_columns, j0 + j, i0 + i, w->scores);
            square_products(w, parts, w->values, w->dy_columns, j0 + j, i0 + i, w->dots);
            AMX_FENCE();
            if (diagonal && i == j)
                softmax_square(w, parts, k, true, j0, i0, j, i);
            else
                softmax_square(w, parts, k, false, j0, i0, j, i);
        }
    AMX_FENCE();
    add_keys(w, parts, w->p, w->dy_pairs, j0, i0, nj, ni, diagonal, w->dv);
    add_keys(w, parts, w->ds, w->q_pairs, j0, i0, nj, ni, diagonal, w->dk);
    add_queries(w, parts, j0, i0, nj, ni, diagonal);
    AMX_FENCE();
}

// --- results -------------------------------------------------------------------------------------------------------
static void store_keys(const float *from, int depth, const heads *h, float factor, const mz_tensor *t, int64_t at) {
    size_t size = t->dtype == MEZZO_F32 ? 4 : 2;
    char *to = element_at(t, at);
    for (int64_t r = 0; r < h->length; r++, to += (size_t)h->kv_row * size)
        FOR_LANES(d, lanes, h->width)
    store_lanes(to + (size_t)d * size, t->dtype, vload(from + r * depth + d) * factor, lanes);
}

// Stores dqᵀ in rows, times 1/√D.
static void store_queries(const backward_block *w, const heads *h, const mz_tensor *t, int64_t at) {
    size_t size = t->dtype == MEZZO_F32 ? 4 : 2;
    for (int64_t i = 0; i < h->length; i += 16)
        for (int d = 0; d < h->width; d += 16) {
            __m512i words[16];
            const float *from = w->dq + (size_t)i * (size_t)w->depth + (size_t)d * 16;
            for (int n = 0; n < 16; n++)
                words[n] = _mm512_load_si512(from + 16 * n);
            transpose_words(words);
            int lanes = h->width - d < 16 ? h->width - d : 16;
            for (int64_t r = 0; r < 16 && i + r < h->length; r++)
                store_lanes(element_at(t, at + (i + r) * h->q_row) + (size_t)d * size, t->dtype,
                            (vf)words[r] * h->scale, lanes);
        }
}

// Prefetches 64 rows of the next kv head's first query head; these rows are too far apart for the hardware's
// prefetchers.
static void prefetch_next(const mz_call *call, const heads *h, int64_t unit, int64_t j0) {
    if (unit + 1 >= h->batch * h->kv_heads)
        return;
    int64_t b = (unit + 1) / h->kv_heads, g = (unit + 1) % h->kv_heads, head = g * (h->heads / h->kv_heads);
    int64_t kv = b * h->length * h->kv_row + g * h->width, y = b * h->length * h->y_row + head * h->width;
    const mz_tensor *keys = &call->in[h->packed ? IN_Q : IN_K], *values = &call->in[h->packed ? IN_Q : IN_V];
    const head_rows all[] = {
        head_rows_of(&call->in[IN_Q], b * h->length * h->q_row + head * h->width, h->q_row, h->length, h->width),
        head_rows_of(keys, h->k_start + kv, h->kv_row, h->length, h->width),
        head_rows_of(values, h->v_start + kv, h->kv_row, h->length, h->width),
        head_rows_of(&call->in[IN_DY], y, h->y_row, h->length, h->width),
        head_rows_of(&call->in[IN_Y], y, h->y_row, h->length, h->width),
    };
    for (size_t i = 0; i < MZ_COUNT(all); i++)
        prefetch_rows(&all[i], j0, BLOCK);
}

ALWAYS void backward_head(backward_block *w, const int parts, const mz_call *call, const heads *h, int64_t b,
                          int64_t g) {
    const mz_tensor *dk = &call->out[h->packed ? 0 : 1], *dv = &call->out[h->packed ? 0 : 2];
    int64_t group = h->heads / h->kv_heads, at = b * h->length * h->kv_row + g * h->width;
    double left = 1 - (double)call->attrs.p;
    softmax_scale k = {.unit = (float)(1.4426950408889634 * mz_attention_scale(h->attrs, h->width)),
                       .drop = left > 0 ? (float)(1 / left) : 0.0f,
                       .dropped = call->attrs.p > 0};
    dropout_stream stream = {0};
    if (k.dropped)
        stream = dropout_begin(call);
    load_keys(w, call, h, parts, b, g);
    for (int64_t head = g * group; head < (g + 1) * group; head++) {
        int64_t row = (b * h->heads + head) * h->length;
        load_queries(w, call, h, parts, b, head);
        for (int64_t j0 = 0; j0 < w->length; j0 += BLOCK) {
            if (head == (g + 1) * group - 1)
                prefetch_next(call, h, b * h->kv_heads + g, j0);
            for (int64_t i0 = j0; i0 < w->length; i0 += BLOCK) {
                if (k.dropped)
                    draw_block(w, h, &stream, row, i0, j0);
                if (i0 == j0)
                    backward_pair(w, parts, k, true, j0, i0);
                else
                    backward_pair(w, parts, k, false, j0, i0);
            }
        }
        store_queries(w, h, mz_out(call, attention_bwd, dq), b * h->length * h->q_row + head * h->width);
    }
    store_keys(w->dk, w->depth, h, h->scale, dk, h->k_start + at);
    store_keys(w->dv, w->depth, h, k.dropped ? k.drop : 1.0f, dv, h->v_start + at);
}

static void head_bf16(backward_block *w, const mz_call *call, const heads *h, int64_t b, int64_t g) {
    backward_head(w, 1, call, h, b, g);
}
static void head_split(backward_block *w, const mz_call *call, const heads *h, int64_t b, int64_t g) {
    backward_head(w, 2, call, h, b, g);
}

static size_t attention_bwd_workspace(const mezzo_device *device, const mz_call *call) {
    heads h = heads_of(call);
    backward_block w;
    return backward_layout(&w, &h, parts_of(call), NULL) * (size_t)device->threads;
}

static mezzo_status run_attention_bwd(mezzo_device *device, const mz_call *call) {
    heads h = heads_of(call);
    const int parts = parts_of(call);
    int64_t units = h.batch * h.kv_heads;
    int together = units >= 8 * device->threads ? (int)(units / (4 * device->threads)) : 1;
    double pairs = 0.5 * (double)(h.batch * h.heads) * (double)h.length * (double)(h.length + BLOCK);
#pragma omp parallel num_threads(mz_cpu_threads(device, (0.4 + 0.008 * parts * h.width) * pairs))
    {
        backward_block w;
        size_t bytes = backward_layout(&w, &h, parts, NULL);
        backward_layout(&w, &h, parts, (char *)call->workspace + (size_t)mz_thread() * bytes);
        amx_begin();
#pragma omp for schedule(dynamic, together)
        for (int64_t unit = 0; unit < units; unit++)
            (parts == 1 ? head_bf16 : head_split)(&w, call, &h, unit / h.kv_heads, unit % h.kv_heads);
        amx_end();
    }
    return MEZZO_OK;
}

MZ_CPU_KERNEL_NAMED(mz_attention_bwd__amx, attention_bwd, "attention_bwd_bf16_f32__amx_128x128", "aaaaaf", "a",
                    attention_bwd_workspace, refuse_tiles)
