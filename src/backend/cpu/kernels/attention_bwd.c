// Computes attention, backward. With p = exp(s - lse), m the dropout factors and Δ_i = dy_i·y_i:
//     dv_j = Σ_i p·m·dy_i,   dS_ij = p·(m·(dy_i·v_j) - Δ_i),   dq_i = Σ_j dS·k_j/√D,   dk_j = Σ_i dS·q_i/√D
// One task owns a batch element's kv head: its dk and dv are summed over query heads and tiles in a fixed order, so the
// number of threads does not change a bit. Probabilities are computed again from lse, a 64×64 tile at a time. With a
// mask, y and lse are not kept: a row's maximum, sum and Δ = Σ_j p·m·(dy_i·v_j) are computed again first, over the same
// tiles.
#include "backend/cpu/kernels/attention.h"
#include "backend/cpu/kernels/kernels.h"

enum { IN_DY, IN_Q, IN_K, IN_V, IN_Y, IN_LSE, IN_POSITIONS }; // the first four of attention_masked_bwd, too

typedef struct backward_tiles {
    float *keys, *keys_t, *values_t; // of the kv head: [tiles][TILE][padded], and transposed [tiles][padded][TILE]
    float *dk, *dv;                  // [tiles][TILE][padded]
    float *q, *dy, *y, *dq;          // of the query tile [TILE][padded]; q is scaled by 1/√D
    float *p, *ds;                   // [TILE][TILE]
    float lse[TILE], delta[TILE];    // with a mask: the maximum in the place of lse
    float *sums, *deltas;            // with a mask: [TILE][VW], the lanes' partial sums of each row
    float inverse[TILE];             // and 1 over each row's sum
    float *dmask;                    // where the mask's gradient is wanted, else NULL
    float scales[TILE], ones[TILE];  // 1/√D and 1 for every row
    float factors[TILE + 2 * DROPOUT_RUN];
} backward_tiles;

static size_t backward_floats(const heads *h) {
    size_t tile = TILE * (size_t)h->padded;
    return tile * (5 * (size_t)h->key_tiles + 4) + 2 * TILE * TILE + 2 * TILE * VW + 256;
}

static void backward_begin(backward_tiles *w, const heads *h, float *memory) {
    size_t tile = TILE * (size_t)h->padded, all = tile * (size_t)h->key_tiles;
    w->keys = take(&memory, all);
    w->keys_t = take(&memory, all);
    w->values_t = take(&memory, all);
    w->dk = take(&memory, all);
    w->dv = take(&memory, all);
    w->q = take(&memory, tile);
    w->dy = take(&memory, tile);
    w->y = take(&memory, tile);
    w->dq = take(&memory, tile);
    w->p = take(&memory, TILE * TILE);
    w->ds = take(&memory, TILE * TILE);
    w->sums = take(&memory, TILE * VW);
    w->deltas = take(&memory, TILE * VW);
    w->dmask = NULL;
    for (int r = 0; r < TILE; r++) {
        w->scales[r] = h->scale;
        w->ones[r] = 1.0f;
    }
}

static void load_keys(backward_tiles *w, const mz_call *call, const heads *h, int64_t b, int64_t g) {
    const mz_tensor *k = &call->in[h->packed ? IN_Q : IN_K], *v = &call->in[h->packed ? IN_Q : IN_V];
    for (int64_t j = 0; j < h->key_tiles; j++) {
        int64_t at = (b * h->keys + j * TILE) * h->kv_row + g * h->width;
        size_t tile = (size_t)j * TILE * (size_t)h->padded;
        int rows = key_count(h, j);
        load_head(v, h->v_start + at, h->kv_row, rows, h, 1.0f, call->numerics.compute, w->keys + tile);
        transpose_head(w->keys + tile, h, w->values_t + tile);
        load_head(k, h->k_start + at, h->kv_row, rows, h, 1.0f, call->numerics.compute, w->keys + tile);
        transpose_head(w->keys + tile, h, w->keys_t + tile);
    }
    size_t all = (size_t)h->key_tiles * TILE * (size_t)h->padded;
    memset(w->dk, 0, all * sizeof *w->dk);
    memset(w->dv, 0, all * sizeof *w->dv);
}

static void load_queries(backward_tiles *w, const mz_call *call, const heads *h, int64_t b, int64_t head,
                         int64_t tile) {
    int64_t start = b * h->length + tile * TILE;
    int rows = tile_count(h, tile);
    load_head(&call->in[IN_Q], start * h->q_row + head * h->width, h->q_row, rows, h, h->scale, call->numerics.compute,
              w->q);
    memset(w->dq, 0, TILE * (size_t)h->padded * sizeof *w->dq);
    if (h->mask != NULL) {
        load_head(&call->in[IN_DY], start * h->y_row + head * h->width, h->y_row, rows, h, 1.0f, call->numerics.compute,
                  w->dy);
        return;
    }
    const float *lse = (const float *)call->in[IN_LSE].data + (b * h->heads + head) * h->length + tile * TILE;
    load_head(&call->in[IN_DY], start * h->y_row + head * h->width, h->y_row, rows, h, 1.0f, MEZZO_F32, w->dy);
    load_head(&call->in[IN_Y], start * h->y_row + head * h->width, h->y_row, rows, h, 1.0f, MEZZO_F32, w->y);
    for (int r = 0; r < rows; r++) {
        const float *dy = w->dy + (size_t)r * (size_t)h->padded, *y = w->y + (size_t)r * (size_t)h->padded;
        vf dot = {0};
        for (int d = 0; d < h->padded; d += VW)
            dot = vfma(vload(dy + d), vload(y + d), dot);
        w->delta[r] = vsum(dot);
        w->lse[r] = lse[r];
    }
    if (call->in[IN_DY].dtype == MEZZO_F32 &&
        call->numerics.compute != MEZZO_F32) // Δ uses dy unrounded, products do not
        for (size_t i = 0; i < (size_t)rows * (size_t)h->padded; i += VW)
            vstore(w->dy + i, rounded_to(call->numerics.compute, vload(w->dy + i)));
}

// Computes a row: p holds scores and ds holds dy·v before, p·m and dS afterwards. Keys outside hidden … valid - 1
// become 0, to the end of the last vector. `factors` NULL: no dropout. `mask`: it is added to scores; `dmask`: its
// gradient is added to this; NULL: none.
static void backward_row(backward_tiles *w, const heads *h, int r, int hidden, int valid, const float *factors,
                         const float *mask, float *dmask) {
    float *p = w->p + (size_t)r * TILE, *ds = w->ds + (size_t)r * TILE;
    FOR_LANES(j, lanes, valid) {
        vf s = h->cap > 0 ? cap_scores(h, vload(p + j)) : vload(p + j), dot = vload(ds + j), probability;
        if (mask != NULL)
            probability = vexp(s + vload_lanes(mask + j, lanes, 0) - w->lse[r]) * w->inverse[r];
        else
            probability = vexp(s - w->lse[r]);
        if (lanes < VW || j < hidden) {
            vmask inside = lanes_between(j, hidden, valid);
            probability = vselect(inside, probability, (vf){0});
            dot = vselect(inside, dot, (vf){0});
        }
        vf m = factors != NULL ? vload(factors + j) : vset(1.0f);
        vstore(p + j, probability * m);
        vf change = probability * (vproduct(m * dot) - w->delta[r]);
        if (dmask != NULL)
            vstore_lanes(dmask + j, vload_lanes(dmask + j, lanes, 0) + change, lanes);
        vstore(ds + j, h->cap > 0 ? change * cap_derivative(h, s) : change);
    }
}

// Adds a tile's scores to the running maximum, sum and Δ of a row. p holds scores and ds holds dy·v.
static void sum_row(backward_tiles *w, const heads *h, int r, int valid, const float *factors, const float *mask) {
    float *p = w->p + (size_t)r * TILE, *ds = w->ds + (size_t)r * TILE, *sums = w->sums + (size_t)r * VW,
          *deltas = w->deltas + (size_t)r * VW;
    vf most = vset(w->lse[r]);
    FOR_LANES(j, lanes, valid) {
        vf x = (h->cap > 0 ? cap_scores(h, vload(p + j)) : vload(p + j)) + vload_lanes(mask + j, lanes, 0);
        if (lanes < VW) {
            x = vselect(lanes_between(j, 0, valid), x, vset(-INFINITY));
            vstore(ds + j, vselect(lanes_between(j, 0, valid), vload(ds + j), (vf){0}));
        }
        most = vmax(most, x);
        vstore(p + j, x);
    }
    const float max = vmax_lanes(most);
    if (max == -INFINITY && all_hidden(p, valid)) { // as all before: there is nothing to add but the NaN of a bad v
        vf zeros = vload(deltas);
        for (int j = 0; j < valid; j += VW)
            zeros += 0.0f * vload(ds + j);
        vstore(deltas, zeros);
        return;
    }
    const vf correction = w->lse[r] > -INFINITY ? vexp(vset(w->lse[r]) - max) : (vf){0};
    vf sum = vload(sums) * correction, delta = vload(deltas) * correction;
    for (int j = 0; j < valid; j += VW) {
        const vf e = vexp(vload(p + j) - max), m = factors != NULL ? vload(factors + j) : vset(1.0f);
        sum += e;
        delta += e * vproduct(m * vload(ds + j));
    }
    vstore(sums, sum);
    vstore(deltas, delta);
    w->lse[r] = max;
}

static const float *factors_of(backward_tiles *w, const mz_call *call, const heads *h, const dropout_stream *stream,
                               int64_t row, int64_t j, int valid) {
    return call->attrs.p > 0
               ? dropout_factors(stream, (uint64_t)(row * h->keys + j * TILE), whole_vectors(valid), w->factors)
               : NULL;
}

static void sum_rows(backward_tiles *w, const mz_call *call, const heads *h, int64_t b, int64_t head, int64_t tile,
                     const dropout_stream *stream) {
    const int rows = tile_count(h, tile);
    memset(w->sums, 0, TILE * VW * sizeof *w->sums);
    memset(w->deltas, 0, TILE * VW * sizeof *w->deltas);
    for (int r = 0; r < TILE; r++)
        w->lse[r] = -INFINITY;
    for (int64_t j = 0; j < tiles_seen(h, tile); j++) {
        const size_t at = (size_t)j * TILE * (size_t)h->padded;
        const bool diagonal = h->causal && j == tile;
        tile_scores(w->q, w->keys_t + at, h, rows, diagonal, w->p);
        tile_scores(w->dy, w->values_t + at, h, rows, diagonal, w->ds);
        for (int r = 0; r < rows; r++) {
            const int valid = keys_seen(h, tile, j, r);
            const int64_t row = (b * h->heads + head) * h->length + tile * TILE + r;
            sum_row(w, h, r, valid, factors_of(w, call, h, stream, row, j, valid),
                    mask_row(h, b, head, tile * TILE + r, j));
        }
    }
    for (int r = 0; r < rows; r++) {
        w->inverse[r] = 1.0f / vsum(vload(w->sums + (size_t)r * VW));
        w->delta[r] = vsum(vload(w->deltas + (size_t)r * VW)) * w->inverse[r];
    }
}

static void backward_pair(backward_tiles *w, const mz_call *call, const heads *h, int64_t b, int64_t head, int64_t tile,
                          int64_t j, const dropout_stream *stream) {
    const int64_t row_number = (b * h->heads + head) * h->length + tile * TILE;
    size_t at = (size_t)j * TILE * (size_t)h->padded;
    bool diagonal = h->causal && j == tile;
    int rows = tile_count(h, tile), keys = key_count(h, j);
    tile_scores(w->q, w->keys_t + at, h, rows, diagonal, w->p);
    tile_scores(w->dy, w->values_t + at, h, rows, diagonal, w->ds);
    for (int r = 0; r < rows; r++) {
        int valid = keys_seen(h, tile, j, r);
        const int64_t i = tile * TILE + r;
        backward_row(w, h, r, keys_hidden(h, b, tile, j, r), valid,
                     factors_of(w, call, h, stream, row_number + r, j, valid), mask_row(h, b, head, i, j),
                     w->dmask != NULL ? w->dmask + mask_at(h, b, head, i) + j * TILE : NULL);
    }
    tile_gather(w->ds, w->keys + at, h, rows, keys, diagonal, w->dq);
    tile_scatter(w->p, w->dy, h, rows, keys, diagonal, w->dv + at);
    tile_scatter(w->ds, w->q, h, rows, keys, diagonal, w->dk + at);
}

static void backward_head(backward_tiles *w, const mz_call *call, const heads *h, int64_t b, int64_t g) {
    const mz_tensor *dq = &call->out[0], *dk = &call->out[h->packed ? 0 : 1], *dv = &call->out[h->packed ? 0 : 2];
    int64_t group = h->heads / h->kv_heads;
    dropout_stream stream = {0};
    if (call->attrs.p > 0)
        stream = dropout_begin(call);
    load_keys(w, call, h, b, g);
    for (int64_t head = g * group; head < (g + 1) * group; head++)
        for (int64_t tile = 0; tile < h->tiles; tile++) {
            int rows = tile_count(h, tile);
            load_queries(w, call, h, b, head, tile);
            if (h->mask != NULL)
                sum_rows(w, call, h, b, head, tile, &stream);
            for (int64_t j = first_tile(h, b, tile); j < tiles_seen(h, tile); j++)
                backward_pair(w, call, h, b, head, tile, j, &stream);
            if (mz_present(dq)) // dk has its factor 1/√D from q
                store_head(w->dq, h, rows, w->scales, dq, (b * h->length + tile * TILE) * h->q_row + head * h->width,
                           h->q_row);
        }
    for (int64_t j = 0; j < h->key_tiles; j++) {
        size_t from = (size_t)j * TILE * (size_t)h->padded;
        int64_t at = (b * h->keys + j * TILE) * h->kv_row + g * h->width;
        if (mz_present(dk))
            store_head(w->dk + from, h, key_count(h, j), w->ones, dk, h->k_start + at, h->kv_row);
        if (mz_present(dv))
            store_head(w->dv + from, h, key_count(h, j), w->ones, dv, h->v_start + at, h->kv_row);
    }
}

static size_t attention_bwd_workspace(const mezzo_device *device, const mz_call *call) {
    const heads h = heads_of(call);
    return sizeof(float) * backward_floats(&h) * (size_t)device->threads;
}

// A task has all batch rows or kv heads that add to the same numbers of the mask's gradient; dmask NULL: it has one.
static mezzo_status run_heads(mezzo_device *device, const mz_call *call, float *dmask) {
    const heads h = heads_of(call);
    const int64_t rows = dmask != NULL && h.mask_b == 0 ? h.batch : 1,
                  groups = dmask != NULL && h.mask_h == 0 ? h.kv_heads : 1, together = h.kv_heads / groups,
                  tasks = h.batch / rows * together;
    double multiplies = 2.5 * (double)(h.batch * h.heads) * (double)h.length *
                        (double)(h.causal ? h.length + TILE : 2 * h.keys) * h.width;
#pragma omp parallel num_threads(mz_cpu_threads(device, 0.03 * multiplies))
    {
        backward_tiles w;
        backward_begin(&w, &h, (float *)call->workspace + (size_t)mz_thread() * backward_floats(&h));
        w.dmask = dmask;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; task++)
            for (int64_t unit = 0; unit < rows * groups; unit++)
                backward_head(&w, call, &h, task / together * rows + unit / groups,
                              task % together * groups + unit % groups);
    }
    return MEZZO_OK;
}

static mezzo_status run_attention_bwd(mezzo_device *device, const mz_call *call) {
    return run_heads(device, call, NULL);
}
MZ_CPU_KERNEL_NAMED(MZ_SYMBOL(attention_bwd), attention_bwd, "attention_bwd_f32__" MZ_LEVEL_TEXT "_64x64", "aaaaafi",
                    "a", attention_bwd_workspace, refuse_attention)

static mezzo_status run_attention_masked_bwd(mezzo_device *device, const mz_call *call) {
    const mz_tensor *out = mz_out(call, attention_masked_bwd, dmask);
    float *dmask = mz_present(out) ? out->data : NULL;
    if (dmask != NULL)
        memset(dmask, 0, (size_t)mz_shape_count(&out->shape) * sizeof *dmask);
    return run_heads(device, call, dmask);
}
MZ_CPU_KERNEL_NAMED(MZ_SYMBOL(attention_masked_bwd), attention_masked_bwd,
                    "attention_masked_bwd_f32__" MZ_LEVEL_TEXT "_64x64", "aaaaf", "aaaf", attention_bwd_workspace,
                    refuse_attention)
