// Attention of a few new positions on top of a cache. With one position each key and value is read once: memory sets
// the time, so a row of scores is made whole, and nothing is packed.
#include "backend/cpu/kernels/attention.h"

typedef struct cached {
    heads h;
    int64_t size, row, first,
        group; // positions in the cache, elements of a row, the first new position, query heads a key head
} cached;

static cached cached_of(const mz_call *call) {
    cached c = {.h = heads_of(call, &call->in[0], &call->in[1], &call->out[0])};
    c.size = call->in[3].shape.dim[1];
    c.row = call->in[3].shape.dim[2];
    c.h.kv_heads = c.row / c.h.width;
    c.group = c.h.heads / c.h.kv_heads;
    return c;
}

// D elements of a head from a tensor in any float format.
static void load_one(const mz_tensor *t, int64_t at, int width, float factor, float *to) {
    const char *from = element_at(t, at);
    size_t size = t->dtype == MEZZO_F32 ? 4 : 2;
    FOR_LANES(d, lanes, width)
    vstore_lanes(to + d, load_lanes(from + (size_t)d * size, t->dtype, lanes) * factor, lanes);
}

static void store_cache(const mz_call *call, const cached *c, int64_t b, int64_t g) {
    const heads *h = &c->h;
    const mz_tensor *from[2] = {h->packed ? &call->in[0] : &call->in[1], h->packed ? &call->in[0] : &call->in[2]};
    const int64_t start[2] = {h->k_start, h->v_start};
    for (int i = 0; i < 2; i++)
        for (int64_t t = 0; t < h->length && c->first + t < c->size; t++)
            load_one(from[i], (b * h->length + t) * h->kv_row + start[i] + g * h->width, h->width, 1,
                     (float *)call->in[3 + i].data + (b * c->size + c->first + t) * c->row + g * h->width);
}

static float dot_head(const float *q, const float *k, int width) {
    vf sum = vset(0);
    FOR_LANES(d, lanes, width)
    sum = vfma(vload_lanes(q + d, lanes, 0), vload_lanes(k + d, lanes, 0), sum);
    return vsum(sum);
}

// Scores become probabilities times their sum, which is returned.
static float exponentiate(float *s, int64_t n) {
    float max = s[0];
    for (int64_t j = 1; j < n; j++)
        max = s[j] > max || s[j] != s[j] ? s[j] : max; // a NaN stays
    vf sum = vset(0);
    for (int64_t at = 0; at < n; at += MZ_BLOCK) {
        int count = (int)min64(MZ_BLOCK, n - at);
        FOR_LANES(j, lanes, count) {
            vf p = vexp(vload_lanes(s + at + j, lanes, -INFINITY) - max);
            sum += p;
            vstore_lanes(s + at + j, p, lanes);
        }
    }
    return vsum(sum);
}

static void one_query(const mz_call *call, const cached *c, int64_t b, int64_t head, int64_t t, float *s, float *q,
                      float *out) {
    const heads *h = &c->h;
    int64_t n = c->first + t + 1, start = b * c->size * c->row + head / c->group * h->width;
    const float *k = (const float *)call->in[3].data + start, *v = (const float *)call->in[4].data + start;
    memset(out, 0, (size_t)h->padded * sizeof *out);
    float factor = 0;
    if (n <= c->size) {
        load_one(&call->in[0], (b * h->length + t) * h->q_row + head * h->width, h->width, h->scale, q);
        for (int64_t j = 0; j < n; j++)
            s[j] = dot_head(q, k + j * c->row, h->width);
        factor = 1.0f / exponentiate(s, n);
        for (int64_t j = 0; j < n; j++)
            FOR_LANES(d, lanes, h->width)
        vstore(out + d, vfma(vset(s[j]), vload_lanes(v + j * c->row + d, lanes, 0), vload(out + d)));
    }
    store_head(out, h, 1, &factor, &call->out[0], (b * h->length + t) * h->y_row + head * h->width, h->y_row);
}

static size_t floats_each(const cached *c) {
    return mz_align_up((size_t)c->size, 16) + 2 * MAX_HEAD;
}

static size_t workspace(const mezzo_device *device, const mz_call *call) {
    cached c = cached_of(call);
    return sizeof(float) * floats_each(&c) * (size_t)device->threads;
}

// A task is one key head of one sequence: it stores that head's keys and values, and nobody else reads them.
static mezzo_status run(mezzo_device *device, const mz_call *call) {
    cached c = cached_of(call);
    c.first = *(const int32_t *)call->in[5].data;
    if (c.first < 0)
        return mz_fail(MEZZO_ERR_INVALID, "attention_cached: position %lld", (long long)c.first);
    int64_t units = c.h.batch * c.h.kv_heads;
    double work = (double)(c.h.batch * c.h.heads * c.h.length) * (double)(c.first + c.h.length) * c.h.width;
#pragma omp parallel num_threads(mz_cpu_threads(device, 0.2 * work))
    {
        float *s = (float *)call->workspace + (size_t)mz_thread() * floats_each(&c);
        float *q = s + mz_align_up((size_t)c.size, 16), *out = q + MAX_HEAD;
#pragma omp for schedule(dynamic, 1)
        for (int64_t unit = 0; unit < units; unit++) {
            int64_t b = unit / c.h.kv_heads, g = unit % c.h.kv_heads;
            store_cache(call, &c, b, g);
            for (int64_t head = g * c.group; head < (g + 1) * c.group; head++)
                for (int64_t t = 0; t < c.h.length; t++)
                    one_query(call, &c, b, head, t, s, q, out);
        }
    }
    return MEZZO_OK;
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    out->workspace = workspace(device, call);
    const char *reason = refuse_attention(call, &call->in[0], &call->out[0]);
    if (reason == NULL && (call->in[3].dtype != MEZZO_F32 || call->in[4].dtype != MEZZO_F32))
        reason = "caches must be fp32";
    if (reason == NULL && call->numerics.compute != call->in[0].dtype)
        reason = "operands must be stored as they are multiplied";
    return reason != NULL ? reason : refuse_formats(call, 1u << 5);
}
const mz_kernel MZ_SYMBOL(attention_cached) = {"attention_cached_f32__" MZ_LEVEL_TEXT, prepare, run};
