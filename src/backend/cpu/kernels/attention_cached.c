// Computes attention of a few new positions with a cache. With one position each key and value is read once, so memory
// decides the time; a row of scores is made whole, and nothing is packed.
#include "backend/cpu/kernels/attention.h"

typedef struct cached {
    heads h;
    int64_t size, row, first,
        group; // positions in the cache, elements of a row, the first new position, query heads a key head
} cached;

static cached cached_of(const mz_call *call) {
    cached c = {.h = heads_of(call)};
    c.size = mz_in(call, attention_cached, cache_k)->shape.dim[1];
    c.row = mz_in(call, attention_cached, cache_k)->shape.dim[2];
    c.h.kv_heads = c.row / c.h.width;
    c.group = c.h.heads / c.h.kv_heads;
    return c;
}

// Loads D elements of a head from a tensor in any float format.
static void load_one(const mz_tensor *t, int64_t at, int width, float factor, float *to) {
    const char *from = element_at(t, at);
    size_t size = t->dtype == MEZZO_F32 ? 4 : 2;
    FOR_LANES(d, lanes, width)
    vstore_lanes(to + d, load_lanes(from + (size_t)d * size, t->dtype, lanes) * factor, lanes);
}

static void store_cache(const mz_call *call, const cached *c, int64_t b, int64_t g) {
    const heads *h = &c->h;
    const mz_tensor *from[2] = {h->packed ? mz_in(call, attention_cached, q) : mz_in(call, attention_cached, k),
                                h->packed ? mz_in(call, attention_cached, q) : mz_in(call, attention_cached, v)};
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

static void add_row(float *out, float factor, const float *v, int width) {
    FOR_LANES(d, lanes, width)
    vstore(out + d, vfma(vset(factor), vload_lanes(v + d, lanes, 0), vload(out + d)));
}

static int64_t scores_row(const cached *c) { // the distance between two heads' scores
    return (int64_t)mz_align_up((size_t)c->size, 16);
}

static void cap_row(const heads *h, float *s, int64_t n) {
    for (int64_t at = 0; at < n; at += MZ_BLOCK) {
        int count = (int)min64(MZ_BLOCK, n - at);
        FOR_LANES(j, lanes, count)
        vstore_lanes(s + at + j, cap_scores(h, vload_lanes(s + at + j, lanes, 0)), lanes);
    }
}

// Turns scores into probabilities times their sum, which it returns.
static float exponentiate(float *s, int64_t n) {
    float max = s[0];
    for (int64_t j = 1; j < n; j++)
        max = s[j] > max || s[j] != s[j] ? s[j] : max; // NaN stays
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

#define AHEAD 4096 // bytes of a task's own heads that are prefetched (docs/dev/MATMUL.md)

// Prefetches the keys of a later position and, after the last one, the first positions' values.
static void ask_for(const float *keys, const float *values, int64_t row, int64_t n, int64_t position, int64_t floats) {
    const float *from = position < n ? keys + position * row : values + min64(position - n, n - 1) * row;
    for (int64_t i = 0; i < floats; i += 64 / (int64_t)sizeof *from)
        __builtin_prefetch(from + i);
}

// Computes one query position of `groups` neighbouring key heads. A position's keys of all heads are contiguous, so
// they are read together, and memory is requested in address order.
static void one_query(const mz_call *call, const cached *c, int64_t b, int64_t first, int64_t groups, int64_t t,
                      float *work) {
    const heads *h = &c->h;
    const int64_t end = c->first + t + 1, since = mz_attention_first(h->attrs, NULL, end - 1), n = end - since;
    const int64_t start = (b * c->size + since) * c->row, count = groups * c->group;
    const float *keys = (const float *)mz_in(call, attention_cached, cache_k)->data + start + first * h->width,
                *values = (const float *)mz_in(call, attention_cached, cache_v)->data + start + first * h->width;
    const int64_t own = groups * h->width, ahead = AHEAD / (own * (int64_t)sizeof *keys) + 1;
    float *q = work, *out = q + count * MAX_HEAD, *scores = out + count * MAX_HEAD;
    const int64_t from = first * c->group, long_row = scores_row(c);
    memset(out, 0, (size_t)(count * MAX_HEAD) * sizeof *out);
    if (end <= c->size) {
        for (int64_t i = 0; i < count; i++)
            load_one(mz_in(call, attention_cached, q), (b * h->length + t) * h->q_row + (from + i) * h->width, h->width,
                     h->scale, q + i * MAX_HEAD);
        for (int64_t j = 0; j < n; j++) {
            ask_for(keys, values, c->row, n, j + ahead, own);
            for (int64_t i = 0; i < count; i++)
                scores[i * long_row + j] =
                    dot_head(q + i * MAX_HEAD, keys + j * c->row + i / c->group * h->width, h->width);
        }
        for (int64_t i = 0; h->cap > 0 && i < count; i++)
            cap_row(h, scores + i * long_row, n);
        for (int64_t i = 0; i < count; i++)
            q[i * MAX_HEAD] = 1.0f / exponentiate(scores + i * long_row, n);
        for (int64_t j = 0; j < n; j++) {
            ask_for(keys, values, c->row, n, n + j + ahead, own);
            for (int64_t i = 0; i < count; i++)
                add_row(out + i * MAX_HEAD, scores[i * long_row + j], values + j * c->row + i / c->group * h->width,
                        h->width);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        const float factor = end <= c->size ? q[i * MAX_HEAD] : 0;
        store_head(out + i * MAX_HEAD, h, 1, &factor, mz_out(call, attention_cached, y),
                   (b * h->length + t) * h->y_row + (from + i) * h->width, h->y_row);
    }
}

// Returns the key heads of a task. Each of several positions reads the keys of all earlier ones, and those of one head
// stay in cache.
static int64_t groups_each(const mezzo_device *device, const cached *c) {
    const int64_t threads = device->threads < c->h.kv_heads ? device->threads : c->h.kv_heads;
    return c->h.length > 1 ? 1 : (c->h.kv_heads + threads - 1) / threads;
}

static size_t floats_each(const mezzo_device *device, const cached *c) {
    return (size_t)(groups_each(device, c) * c->group * (scores_row(c) + 2 * MAX_HEAD));
}

static size_t workspace(const mezzo_device *device, const mz_call *call) {
    cached c = cached_of(call);
    return sizeof(float) * floats_each(device, &c) * (size_t)device->threads;
}

// Runs the kernel. A task stores its heads' keys and values, and no other task reads them.
static mezzo_status run_attention_cached(mezzo_device *device, const mz_call *call) {
    cached c = cached_of(call);
    c.first = *(const int32_t *)mz_in(call, attention_cached, positions)->data;
    if (c.first < 0)
        return mz_fail(MEZZO_ERR_INVALID, "attention_cached: position %lld", (long long)c.first);
    const int64_t each = groups_each(device, &c), tasks = (c.h.kv_heads + each - 1) / each, units = c.h.batch * tasks;
    double work = (double)(c.h.batch * c.h.heads * c.h.length) * (double)(c.first + c.h.length) * c.h.width;
#pragma omp parallel num_threads(mz_cpu_threads(device, 0.2 * work))
    {
        float *mine = (float *)call->workspace + (size_t)mz_thread() * floats_each(device, &c);
#pragma omp for schedule(dynamic, 1)
        for (int64_t unit = 0; unit < units; unit++) {
            const int64_t b = unit / tasks, first = unit % tasks * each, groups = min64(each, c.h.kv_heads - first);
            for (int64_t g = first; g < first + groups; g++)
                store_cache(call, &c, b, g);
            for (int64_t t = 0; t < c.h.length; t++)
                one_query(call, &c, b, first, groups, t, mine);
        }
    }
    return MEZZO_OK;
}

static const char *refuses(const mezzo_device *device, const mz_call *call) {
    (void)device;
    const char *reason = refuse_attention(device, call);
    if (reason == NULL && call->numerics.compute != mz_in(call, attention_cached, q)->dtype)
        reason = "operands must be stored as they are multiplied";
    return reason;
}
MZ_CPU_KERNEL_NAMED(MZ_SYMBOL(attention_cached), attention_cached, "attention_cached_f32__" MZ_LEVEL_TEXT, "aaaffi",
                    "a", workspace, refuses)
