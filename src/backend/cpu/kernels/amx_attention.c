// Computes causal attention, forward, on AMX tiles: 32 queries against up to 256 keys at a time with the online softmax
// (Milakov & Gimelshein 2018; Dao et al. 2022, "FlashAttention"). Scores are FP32, probabilities are rounded to the
// operands' format before they meet the values, and are not divided by their sum until the end. Nothing of size T×T is
// held.
#include "backend/cpu/kernels/amx_attention.h"

// A block has 256 keys, so that a row's maximum, its sum and the rescaling of its results are computed once in 16
// vectors. Rows of the blocks are one line longer than a power of two, so that a tile's 16 rows do not share a few sets
// of the L1 cache.
enum { QUERIES = 32, KEYS = 256, SCORE_ROW = KEYS + 16, P_ROW = KEYS + 32 };

// Holds a thread's memory.
typedef struct forward_block {
    uint16_t *keys, *values;           // of one head: pack_columns, pack_pairs; both of `length` positions
    uint16_t *q, *p;                   // [QUERIES][depth], [QUERIES][P_ROW]
    float *scores, *out;               // [QUERIES][SCORE_ROW], [QUERIES][depth]
    size_t kv_plane, q_plane, p_plane; // elements from one BF16 term to the next
    float max[QUERIES], sum[QUERIES];  // by row; max·log₂e/√D
    int depth;                         // D, rounded up to a multiple of 32
    int64_t length;                    // T, rounded up to a multiple of 32
    int64_t unit, packed;              // the head of these keys and values, and how many positions are packed
    float factors[KEYS + 2 * DROPOUT_RUN];
} forward_block;

static size_t forward_bytes(const heads *h, int parts) {
    size_t depth = mz_align_up((size_t)h->width, 32), length = mz_align_up((size_t)h->length, 32);
    size_t low = 2 * length * depth + QUERIES * (depth + P_ROW); // in 16-bit elements
    return (size_t)parts * low * 2 + QUERIES * (SCORE_ROW + depth) * sizeof(float) + 64;
}

static void forward_begin(forward_block *w, const heads *h, int parts, char *memory) {
    w->depth = (int)mz_align_up((size_t)h->width, 32);
    w->length = (int64_t)mz_align_up((size_t)h->length, 32);
    w->kv_plane = (size_t)w->length * (size_t)w->depth;
    w->q_plane = QUERIES * (size_t)w->depth;
    w->p_plane = QUERIES * P_ROW;
    w->keys = take_bytes(&memory, 2 * (size_t)parts * w->kv_plane);
    w->values = take_bytes(&memory, 2 * (size_t)parts * w->kv_plane);
    w->q = take_bytes(&memory, 2 * (size_t)parts * w->q_plane);
    w->p = take_bytes(&memory, 2 * (size_t)parts * w->p_plane);
    w->scores = take_bytes(&memory, QUERIES * SCORE_ROW * sizeof(float));
    w->out = take_bytes(&memory, QUERIES * (size_t)w->depth * sizeof(float));
    w->unit = -1;
    w->packed = 0;
}

// Packs keys and values of batch b and kv head g up to position `end`; tiles that an earlier query block packed stay.
static void pack_to(forward_block *w, const mz_call *call, const heads *h, int parts, int64_t b, int64_t g,
                    int64_t end) {
    const mz_tensor *k = &call->in[h->packed ? 0 : 1], *v = &call->in[h->packed ? 0 : 2];
    if (w->unit != b * h->kv_heads + g)
        w->packed = 0;
    w->unit = b * h->kv_heads + g;
    if (w->packed >= end)
        return;
    int64_t at = b * h->length * h->kv_row + g * h->width, n = end - w->packed;
    head_rows keys = head_rows_of(k, h->k_start + at, h->kv_row, h->length, h->width);
    head_rows values = head_rows_of(v, h->v_start + at, h->kv_row, h->length, h->width);
    size_t done = (size_t)w->packed * (size_t)w->depth;
    pack_columns(&keys, w->packed, n, w->depth, parts, w->keys + done, w->kv_plane);
    pack_pairs(&values, w->packed, n, w->depth, parts, w->values + done, w->kv_plane);
    w->packed = end;
}

// Computes scores[32][n] = q·keysᵀ for keys from j0 on, n a multiple of 32.
ALWAYS void score_block(forward_block *w, const int parts, int64_t j0, int n) {
    const size_t q_row = 2 * (size_t)w->depth, tiles = AMX_BYTES * (size_t)(w->depth / 32); // bytes of 16 keys
    const amx_operand q = {(const char *)w->q, q_row, 64, 2 * w->q_plane};
    amx_operand keys = {(const char *)w->keys + (size_t)(j0 / 16) * tiles, 64, AMX_BYTES, 2 * w->kv_plane};
    for (int j = 0; j < n; j += 16, keys.first += tiles)
        column_products(parts, q, AMX_ROWS * q_row, keys, w->depth / 32, false, w->scores + j,
                        SCORE_ROW * sizeof(float));
}

// Computes out[32][depth] (+)= p·values.
ALWAYS void gather_block(forward_block *w, const int parts, int64_t j0, int n) {
    const size_t v_row = 4 * (size_t)w->depth;
    const amx_operand p = {(const char *)w->p, 2 * P_ROW, 64, 2 * w->p_plane};
    amx_operand values = {(const char *)w->values + (size_t)(j0 / 2) * v_row, v_row, AMX_ROWS * v_row, 2 * w->kv_plane};
    for (int d = 0; d < w->depth; d += 16, values.first += 64)
        column_products(parts, p, 2 * AMX_ROWS * P_ROW, values, n / 32, j0 > 0, w->out + d,
                        (size_t)w->depth * sizeof(float));
}

// Stores which of a row's elements from `element` on dropout keeps, 16 in a mask.
static void keep_row(forward_block *w, const dropout_stream *stream, uint64_t element, int n, __mmask16 *keep) {
    if ((element & 3) == 0) {
        for (int j = 0; j < n; j += 64)
            dropout_keep64(stream, (element + (uint64_t)j) >> 2, keep + j / 16);
        return;
    }
    const float *factors = dropout_factors(stream, element, n, w->factors);
    for (int j = 0; j < n; j += 16) // at p = 1 the factor is 0 for all elements
        keep[j / 16] = _mm512_cmp_ps_mask(_mm512_loadu_ps(factors + j), _mm512_setzero_ps(), _CMP_GT_OQ);
}

ALWAYS void store_p(forward_block *w, const int parts, uint16_t *to, __m512 low, __m512 high) {
    if (parts == 1) {
        _mm512_store_si512(to, narrow_two(low, high));
        return;
    }
    __m512 a = cut_bf16(low), b = cut_bf16(high);
    _mm512_store_si512(to, narrow_two(a, b));
    _mm512_store_si512(to + w->p_plane, narrow_two(_mm512_sub_ps(low, a), _mm512_sub_ps(high, b)));
}

// Rescales a row's results when its running maximum becomes `max`.
static void rescale_row(forward_block *w, int r, float before, float max) {
    __m512 factor = exp2_lanes(_mm512_set1_ps(before - max));
    float *out = w->out + (size_t)r * (size_t)w->depth;
    w->sum[r] *= _mm512_cvtss_f32(factor);
    for (int d = 0; d < w->depth; d += 16)
        _mm512_store_ps(out + d, _mm512_mul_ps(_mm512_load_ps(out + d), factor));
}

// Turns one row's scores of n keys into probabilities relative to its running maximum. In the last 32 keys of a
// diagonal block row r sees only the first r + 1, and its p is 0 from there on. Dropout changes the probabilities, not
// their sum. No branch depends on the row, because a mispredicted one costs as much as three vectors.
ALWAYS void softmax_row(forward_block *w, const int parts, const bool dropped, float unit, bool first, bool diagonal,
                        int r, int n, const __mmask16 *keep) {
    const float *s = w->scores + (size_t)r * SCORE_ROW;
    uint16_t *p = w->p + (size_t)r * P_ROW;
    const uint32_t seen = (uint32_t)((2ull << r) - 1);
    const __mmask16 low = (__mmask16)seen, high = (__mmask16)(seen >> 16);
    const int full = diagonal ? n - 32 : n;
    __m512 most[2] = {_mm512_set1_ps(-INFINITY), _mm512_set1_ps(-INFINITY)};
    for (int j = 0; j < full; j += 32) {
        most[0] = _mm512_max_ps(most[0], _mm512_load_ps(s + j));
        most[1] = _mm512_max_ps(most[1], _mm512_load_ps(s + j + 16));
    }
    if (diagonal) {
        most[0] = _mm512_mask_max_ps(most[0], low, most[0], _mm512_load_ps(s + full));
        most[1] = _mm512_mask_max_ps(most[1], high, most[1], _mm512_load_ps(s + full + 16));
    }
    float max = _mm512_reduce_max_ps(_mm512_max_ps(most[0], most[1])) * unit, before = w->max[r];
    if (!first) {
        max = max > before ? max : before;
        if (max != before)
            rescale_row(w, r, before, max);
    }
    const __m512 scale = _mm512_set1_ps(unit), top = _mm512_set1_ps(max);
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int j = 0; j < n; j += 32) {
        __m512 x[2];
        for (int i = 0; i < 2; i++) {
            x[i] = exp2_lanes(_mm512_fmsub_ps(_mm512_load_ps(s + j + 16 * i), scale, top));
            if (j == full)
                x[i] = _mm512_maskz_mov_ps(i == 0 ? low : high, x[i]);
            sum[i] = _mm512_add_ps(sum[i], x[i]);
            if (dropped)
                x[i] = _mm512_maskz_mov_ps(keep[j / 16 + i], x[i]);
        }
        store_p(w, parts, p + j, x[0], x[1]);
    }
    w->max[r] = max;
    w->sum[r] = (first ? 0 : w->sum[r]) + _mm512_reduce_add_ps(_mm512_add_ps(sum[0], sum[1]));
}

static void finish_queries(forward_block *w, const mz_call *call, const heads *h, int64_t b, int64_t head, int64_t q0,
                           int rows) {
    float inverse[QUERIES], lse[QUERIES];
    double drop = 1 - (double)call->attrs.p;
    float factor = drop > 0 ? (float)(1 / drop) : 0.0f;
    for (int r = 0; r < QUERIES; r += 16) {
        __m512 sum = _mm512_loadu_ps(w->sum + r);
        _mm512_storeu_ps(inverse + r, _mm512_div_ps(_mm512_set1_ps(factor), sum));
        // max is in units of log₂.
        __m512 top = _mm512_mul_ps(_mm512_loadu_ps(w->max + r), _mm512_set1_ps(0x1.62e43p-1f));
        _mm512_storeu_ps(lse + r, _mm512_add_ps(log_lanes(sum), top));
    }
    if (mz_present(mz_out(call, attention, lse)))
        memcpy((float *)mz_out(call, attention, lse)->data + (b * h->heads + head) * h->length + q0, lse,
               (size_t)rows * sizeof *lse);
    const mz_tensor *y = mz_out(call, attention, y);
    char *to = element_at(y, (b * h->length + q0) * h->y_row + head * h->width);
    size_t size = y->dtype == MEZZO_F32 ? 4 : 2;
    for (int r = 0; r < rows; r++, to += (size_t)h->y_row * size)
        FOR_LANES(d, lanes, h->width) {
            vf x = vload(w->out + (size_t)r * (size_t)w->depth + d) * inverse[r];
            store_lanes(to + (size_t)d * size, y->dtype, x, lanes);
        }
}

// Prefetches 32 rows that the next head will read; these rows are too far apart for the hardware's prefetchers.
static void prefetch_next(const mz_call *call, const heads *h, int64_t unit, int64_t q0) {
    if (unit + 1 >= h->batch * h->heads)
        return;
    int64_t b = (unit + 1) / h->heads, head = (unit + 1) % h->heads, g = head / (h->heads / h->kv_heads);
    int64_t kv = b * h->length * h->kv_row + g * h->width;
    head_rows q = head_rows_of(mz_in(call, attention, q), b * h->length * h->q_row + head * h->width, h->q_row,
                               h->length, h->width);
    head_rows k = head_rows_of(&call->in[h->packed ? 0 : 1], h->k_start + kv, h->kv_row, h->length, h->width);
    head_rows v = head_rows_of(&call->in[h->packed ? 0 : 2], h->v_start + kv, h->kv_row, h->length, h->width);
    prefetch_rows(&q, q0, QUERIES);
    prefetch_rows(&k, q0, QUERIES);
    prefetch_rows(&v, q0, QUERIES);
}

ALWAYS void forward_queries(forward_block *w, const int parts, const mz_call *call, const heads *h, int64_t b,
                            int64_t head, int64_t q0) {
    int rows = (int)min64(QUERIES, h->length - q0);
    dropout_stream stream = {0};
    const dropout_stream *dropped = call->attrs.p > 0 ? &stream : NULL;
    if (dropped != NULL)
        stream = dropout_begin(call);
    const float unit = (float)(1.4426950408889634 * mz_attention_scale(h->attrs, h->width)); // log₂e/√D
    pack_to(w, call, h, parts, b, head / (h->heads / h->kv_heads), q0 + QUERIES);
    head_rows q = head_rows_of(mz_in(call, attention, q), b * h->length * h->q_row + head * h->width, h->q_row,
                               h->length, h->width);
    pack_rows(&q, q0, QUERIES, w->depth, parts, w->q, w->q_plane);
    prefetch_next(call, h, b * h->heads + head, q0);
    for (int64_t j0 = 0; j0 < q0 + QUERIES; j0 += KEYS) {
        int n = (int)min64(KEYS, q0 + QUERIES - j0); // positions after the last query are not read
        AMX_FENCE();
        score_block(w, parts, j0, n);
        AMX_FENCE();
        bool diagonal = j0 + n == q0 + QUERIES;
        for (int r = 0; r < QUERIES; r++) {
            if (dropped == NULL) {
                softmax_row(w, parts, false, unit, j0 == 0, diagonal, r, n, NULL);
            } else {
                __mmask16 keep[KEYS / 16 + 4];
                int64_t row = (b * h->heads + head) * h->length + q0 + r;
                keep_row(w, dropped, (uint64_t)(row * h->length + j0), n, keep);
                softmax_row(w, parts, true, unit, j0 == 0, diagonal, r, n, keep);
            }
        }
        AMX_FENCE();
        gather_block(w, parts, j0, n);
        AMX_FENCE();
    }
    finish_queries(w, call, h, b, head, q0, rows);
}

static void queries_bf16(forward_block *w, const mz_call *call, const heads *h, int64_t b, int64_t head, int64_t q0) {
    forward_queries(w, 1, call, h, b, head, q0);
}
static void queries_split(forward_block *w, const mz_call *call, const heads *h, int64_t b, int64_t head, int64_t q0) {
    forward_queries(w, 2, call, h, b, head, q0);
}

static size_t attention_workspace(const mezzo_device *device, const mz_call *call) {
    heads h = heads_of(call);
    return forward_bytes(&h, parts_of(call)) * (size_t)device->threads;
}

// Runs the kernel. A task is 32 queries of one head; a thread takes all tasks of some heads together, so that keys and
// values are packed once and the next head's can be prefetched in time, unless there are too few heads for all threads.
static mezzo_status run_attention(mezzo_device *device, const mz_call *call) {
    heads h = heads_of(call);
    const int parts = parts_of(call);
    int64_t units = h.batch * h.heads, blocks = (h.length + QUERIES - 1) / QUERIES,
            heads_each = units / (4 * device->threads);
    int together = heads_each > 0 ? (int)(heads_each * blocks) : 1;
    double pairs = 0.5 * (double)units * (double)h.length * (double)(h.length + QUERIES);
#pragma omp parallel num_threads(mz_cpu_threads(device, (0.2 + 0.003 * parts * h.width) * pairs))
    {
        forward_block w;
        forward_begin(&w, &h, parts, (char *)call->workspace + (size_t)mz_thread() * forward_bytes(&h, parts));
        amx_begin();
#pragma omp for schedule(dynamic, together)
        for (int64_t task = 0; task < units * blocks; task++) {
            int64_t unit = task / blocks, q0 = task % blocks * QUERIES;
            (parts == 1 ? queries_bf16 : queries_split)(&w, call, &h, unit / h.heads, unit % h.heads, q0);
        }
        amx_end();
    }
    return MEZZO_OK;
}

MZ_CPU_KERNEL_NAMED(mz_attention__amx, attention, "attention_bf16_f32__amx_32x256", "a", "af", attention_workspace,
                    refuse_tiles)
