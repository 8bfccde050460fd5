// Computes attention, forward, with and without a mask: tiles of 64 queries against tiles of 64 keys with the online
// softmax (Milakov & Gimelshein 2018; Dao et al. 2022, "FlashAttention"). Storage may be 16-bit; arithmetic is FP32,
// probabilities included. No T×T tensor exists.
#include "backend/cpu/kernels/attention.h"
#include "backend/cpu/kernels/kernels.h"

// Holds a thread's memory: one head's keys (transposed, tile by tile) and values in FP32, and the present tiles.
typedef struct forward_tiles {
    float *keys, *values; // [tiles][padded][TILE], [tiles][TILE][padded]
    float *q, *scores, *out;
    float *sums;                    // [TILE][VW]: the lanes' partial sums of each row
    float max[TILE], inverse[TILE]; // by row
    float factors[TILE + 2 * DROPOUT_RUN];
    int64_t unit, packed; // the head of these keys and values, and the number of packed tiles
} forward_tiles;

static size_t forward_floats(const heads *h) {
    size_t tile = TILE * (size_t)h->padded;
    return tile * (2 * (size_t)h->key_tiles + 2) + TILE * TILE + TILE * VW + 64;
}

static void forward_begin(forward_tiles *w, const heads *h, float *memory) {
    size_t tile = TILE * (size_t)h->padded;
    w->keys = take(&memory, tile * (size_t)h->key_tiles);
    w->values = take(&memory, tile * (size_t)h->key_tiles);
    w->q = take(&memory, tile);
    w->out = take(&memory, tile);
    w->scores = take(&memory, TILE * TILE);
    w->sums = take(&memory, TILE * VW);
    w->unit = -1;
    w->packed = 0;
}

// Packs keys and values of batch b and kv head g, up to `tiles` tiles; tiles that an earlier query tile packed stay.
static void pack_keys(forward_tiles *w, const mz_call *call, const heads *h, int64_t b, int64_t g, int64_t tiles) {
    const mz_tensor *k = h->packed ? mz_in(call, attention, q) : mz_in(call, attention, k),
                    *v = h->packed ? mz_in(call, attention, q) : mz_in(call, attention, v);
    if (w->unit != b * h->kv_heads + g)
        w->packed = 0;
    w->unit = b * h->kv_heads + g;
    for (; w->packed < tiles; w->packed++) {
        int64_t at = (b * h->keys + w->packed * TILE) * h->kv_row + g * h->width;
        size_t tile = (size_t)w->packed * TILE * (size_t)h->padded;
        int rows = key_count(h, w->packed);
        // The values' memory holds the keys' rows first, from which they are transposed.
        load_head(k, h->k_start + at, h->kv_row, rows, h, 1.0f, call->numerics.compute, w->values + tile);
        transpose_head(w->values + tile, h, w->keys + tile);
        load_head(v, h->v_start + at, h->kv_row, rows, h, 1.0f, call->numerics.compute, w->values + tile);
    }
}

// Turns a row of scores into probabilities relative to the running maximum, and rescales earlier results to a new
// maximum. The keys hidden … valid - 1 count; others, to the end of the last vector, become 0. `mask`: it is added to
// scores; NULL: none.
static void softmax_row(forward_tiles *w, const heads *h, int r, int hidden, int valid, const float *mask) {
    float *s = w->scores + (size_t)r * TILE, *sums = w->sums + (size_t)r * VW,
          *out = w->out + (size_t)r * (size_t)h->padded;
    vf most = vset(w->max[r]);
    if (hidden >= valid) {
        memset(s, 0, (size_t)whole_vectors(valid) * sizeof *s);
        return;
    }
    FOR_LANES(j, lanes, valid) {
        vf x = vload(s + j);
        if (h->cap > 0)
            x = cap_scores(h, x);
        if (mask != NULL)
            x += vload_lanes(mask + j, lanes, 0);
        if (lanes < VW || j < hidden)
            x = vselect(lanes_between(j, hidden, valid), x, vset(-INFINITY));
        most = vmax(most, x);
        vstore(s + j, x);
    }
    float max = vmax_lanes(most);
    vf sum = vload(sums);
    if (max == -INFINITY && all_hidden(s, valid)) { // as all before: there is nothing to add
        memset(s, 0, (size_t)whole_vectors(valid) * sizeof *s);
        return;
    }
    if (max != w->max[r] && w->max[r] > -INFINITY) { // the first tile has nothing to rescale
        vf correction = vexp(vset(w->max[r]) - max);
        sum *= correction;
        for (int d = 0; d < h->padded; d += VW)
            vstore(out + d, vload(out + d) * correction);
    }
    w->max[r] = max;
    for (int j = 0; j < valid; j += VW) {
        vf p = vexp(vload(s + j) - max);
        sum += p;
        vstore(s + j, p);
    }
    vstore(sums, sum);
}

static void drop_row(forward_tiles *w, const dropout_stream *stream, uint64_t element, int r, int valid) {
    float *s = w->scores + (size_t)r * TILE;
    const float *factors = dropout_factors(stream, element, whole_vectors(valid), w->factors);
    for (int j = 0; j < valid; j += VW)
        vstore(s + j, vload(s + j) * vload(factors + j));
}

static void forward_tile(forward_tiles *w, const mz_call *call, const heads *h, int64_t b, int64_t head, int64_t tile) {
    int64_t g = head / (h->heads / h->kv_heads), start = tile * TILE;
    int rows = tile_count(h, tile);
    bool dropped = call->attrs.p > 0;
    dropout_stream stream = {0};
    if (dropped)
        stream = dropout_begin(call);
    pack_keys(w, call, h, b, g, tiles_seen(h, tile));
    load_head(mz_in(call, attention, q), (b * h->length + start) * h->q_row + head * h->width, h->q_row, rows, h,
              h->scale, call->numerics.compute, w->q);
    memset(w->out, 0, TILE * (size_t)h->padded * sizeof *w->out);
    memset(w->sums, 0, TILE * VW * sizeof *w->sums);
    for (int r = 0; r < TILE; r++)
        w->max[r] = -INFINITY;
    for (int64_t j = first_tile(h, b, tile); j < tiles_seen(h, tile); j++) {
        size_t at = (size_t)j * TILE * (size_t)h->padded;
        bool diagonal = h->causal && j == tile;
        tile_scores(w->q, w->keys + at, h, rows, diagonal, w->scores);
        for (int r = 0; r < rows; r++) {
            int valid = keys_seen(h, tile, j, r);
            softmax_row(w, h, r, keys_hidden(h, b, tile, j, r), valid, mask_row(h, b, head, start + r, j));
            if (dropped) { // dropout changes the probabilities, not their normalization
                int64_t row = (b * h->heads + head) * h->length + start + r;
                drop_row(w, &stream, (uint64_t)(row * h->keys + j * TILE), r, valid);
            }
        }
        tile_gather(w->scores, w->values + at, h, rows, key_count(h, j), diagonal, w->out);
    }
    float *lse = h->mask == NULL && mz_present(mz_out(call, attention, lse))
                     ? (float *)mz_out(call, attention, lse)->data + (b * h->heads + head) * h->length + start
                     : NULL;
    for (int r = 0; r < rows; r++) {
        float sum = vsum(vload(w->sums + (size_t)r * VW));
        w->inverse[r] = 1.0f / sum;
        if (lse != NULL)
            lse[r] = w->max[r] + logf(sum);
    }
    store_head(w->out, h, rows, w->inverse, mz_out(call, attention, y),
               (b * h->length + start) * h->y_row + head * h->width, h->y_row);
}

static size_t attention_workspace(const mezzo_device *device, const mz_call *call) {
    const heads h = heads_of(call);
    return sizeof(float) * forward_floats(&h) * (size_t)device->threads;
}

// Runs the kernel. A task is one tile of queries of one head; a thread takes all of a head's tiles together, so that
// keys and values are packed once, unless there are too few heads for all threads.
static mezzo_status run_attention(mezzo_device *device, const mz_call *call) {
    const heads h = heads_of(call);
    int64_t units = h.batch * h.heads;
    int together = units >= 4 * device->threads ? (int)h.tiles : 1;
    double multiplies = (double)units * (double)h.length * (double)(h.causal ? h.length + TILE : 2 * h.keys) *
                        h.width; // two products over half of the square
#pragma omp parallel num_threads(mz_cpu_threads(device, 0.03 * multiplies))
    {
        forward_tiles w;
        forward_begin(&w, &h, (float *)call->workspace + (size_t)mz_thread() * forward_floats(&h));
#pragma omp for schedule(dynamic, together)
        for (int64_t task = 0; task < units * h.tiles; task++)
            forward_tile(&w, call, &h, task / h.tiles / h.heads, task / h.tiles % h.heads, task % h.tiles);
    }
    return MEZZO_OK;
}
MZ_CPU_KERNEL_NAMED(MZ_SYMBOL(attention), attention, "attention_f32__" MZ_LEVEL_TEXT "_64x64", "aaai", "af",
                    attention_workspace, refuse_attention)

// The slots of q, k, v and y are those of attention.
static mezzo_status run_attention_masked(mezzo_device *device, const mz_call *call) {
    return run_attention(device, call);
}
MZ_CPU_KERNEL_NAMED(MZ_SYMBOL(attention_masked), attention_masked, "attention_masked_f32__" MZ_LEVEL_TEXT "_64x64",
                    "aaaf", "a", attention_workspace, refuse_attention)
