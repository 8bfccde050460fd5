// Computes the update ops: gradient statistics, the step's decisions, optimizers, low copies and the loss scale. The
// arithmetic on parameters is FP32, in the same operations as PyTorch, with constants that are computed in FP64 and
// rounded once. It defines what a step is: FP64 would be another optimizer, not a more exact one.
#include <math.h>

#include "backend/ref/ref.h"
#include "backend/update.h"
#include "base/dynamic8.h"
#include "backend/inspect.h"

static const int64_t stats_chunk = 4096; // elements of one partial sum, fixed: see update.h

static const mz_segment *segments_of(const mz_tensor *t, int64_t *n) {
    *n = mz_shape_count(&t->shape) / (int64_t)sizeof(mz_segment);
    return t->data;
}

static float inverse_of(float scale) {
    return scale != 0 ? (float)(1 / (double)scale) : 1;
}

void mz_ref_grad_stats(const mz_call *call) {
    int64_t n_segments;
    const mz_segment *segments = segments_of(mz_in(call, grad_stats, segments), &n_segments);
    float scale = mz_present(mz_in(call, grad_stats, scale)) ? (float)mz_ref_get(mz_in(call, grad_stats, scale), 0) : 0;
    bool keeps = call->attrs.update != NULL && call->attrs.update->keeps_scale;
    float inverse = inverse_of(scale);
    float *grad = mz_out(call, grad_stats, grad)->data;
    mz_opt_state *state = mz_out(call, grad_stats, state)->data;
    double total = 0,
           *pieces = mz_present(mz_out(call, grad_stats, pieces)) ? mz_out(call, grad_stats, pieces)->data : NULL;
    bool finite = true;
    for (int64_t s = 0; s < n_segments; s++) {
        float *g = grad + (segments[s].offset - segments[s].grad_shift);
        const int64_t stop = segments[s].first + segments[s].count;
        for (int64_t start = segments[s].first; start < stop; start += stats_chunk) {
            int64_t end = start + stats_chunk < stop ? start + stats_chunk : stop;
            double partial = 0;
            for (int64_t i = start; i < end; i++) {
                float *at = g + mz_layout_index(&segments[s].layout, i), x = inverse != 1 ? *at * inverse : *at;
                if (!keeps)
                    *at = x;
                finite = finite && isfinite(x);
                partial += (double)x * (double)x;
            }
            total += partial;
            if (pieces != NULL)
                pieces[(segments[s].offset + start) / stats_chunk] = partial;
        }
    }
    state->scale = keeps ? scale : 0;
    if (pieces != NULL)
        return;
    state->norm = sqrt(total);
    if (!finite)
        state->found_inf = 1;
}

#define DECISION(name)                                                                                                 \
    void mz_ref_##name(const mz_call *call) {                                                                          \
        mz_##name(call);                                                                                               \
    }
DECISION(clip_control)
DECISION(norm_across_ranks)
DECISION(scales_update)
DECISION(step_control)
DECISION(scaler_update)
DECISION(track)

static void look_at(double x, float limit, mz_inspection *found) {
    found->inspected++;
    if (isnan(x)) {
        found->nans++;
        return;
    }
    if (isinf(x)) {
        found->infs++;
        return;
    }
    bool first = found->inspected - found->nans - found->infs == 1;
    found->low = first || x < (double)found->low ? (float)x : found->low;
    found->high = first || x > (double)found->high ? (float)x : found->high;
    found->zeros += x == 0;
    found->tiny += x != 0 && fabs(x) < 0x1p-14;
    found->large += limit > 0 && fabs(x) > (double)limit;
}

void mz_ref_inspect(const mz_call *call) {
    mz_inspection *found = mz_out(call, inspect, found)->data;
    mz_opt_state *state = mz_present(mz_out(call, inspect, state)) ? mz_out(call, inspect, state)->data : NULL;
    for (int i = 0; i < call->n_in; i++) {
        int64_t n = mz_shape_count(&call->in[i].shape), sample = call->attrs.sample;
        int64_t runs = (sample + 31) / 32, length = 32;
        if (sample == 0 || runs * 32 >= n)
            runs = 1, length = n;
        found[i] = (mz_inspection){0};
        for (int64_t r = 0; r < runs; r++) {
            int64_t start = runs == 1 && length == n ? 0 : mz_sample_start(r, n / runs, call->rng->step);
            for (int64_t k = start; k < start + length; k++)
                look_at(mz_ref_get(&call->in[i], k), call->attrs.limit, &found[i]);
        }
        found[i].low += 0.0f; // turns -0 into 0
        found[i].high += 0.0f;
        if (state != NULL && mz_inspection_bad(&found[i]))
            state->bad |= i == 0 ? call->attrs.bad_first : call->attrs.bad_rest;
    }
}

static void store_low_copy(const mz_tensor *low_copy, const mz_segment *segment, int64_t i, float master) {
    if (!mz_present(low_copy) || segment->low_copy_offset == MZ_NO_LOW_COPY)
        return;
    mz_tensor t = {.data = (char *)low_copy->data + segment->low_copy_offset,
                   .dtype = (mezzo_dtype)segment->low_copy_dtype};
    mz_ref_put(&t, i, (double)master);
}

// Holds a segment's masters in their format; update.h says how each is made.
typedef struct masters {
    const mz_segment *segment;
    float *fp32;
    uint16_t *high, *low; // not FP32: the low copy; split: the low halves
    mz_philox_key key;
} masters;

static masters masters_of(const mz_call *call, const mz_segment *segment, const mz_tensor *low_copy, int64_t step) {
    masters m = {.segment = segment,
                 .fp32 = (float *)mz_out(call, adamw, master)->data + (segment->offset - segment->master_shift)};
    if (segment->master == MEZZO_MASTER_FP32)
        return m;
    m.high = (uint16_t *)(void *)((char *)low_copy->data + segment->low_copy_offset);
    m.low = (uint16_t *)(void *)((char *)mz_out(call, adamw, master)->data + segment->low_offset);
    m.key = mz_master_key(call->attrs.update, step, segment);
    return m;
}

static float master_get(const masters *m, int64_t i) {
    if (m->segment->master == MEZZO_MASTER_FP32)
        return m->fp32[i];
    return m->segment->master == MEZZO_MASTER_SPLIT ? mz_master_join(m->high[i], m->low[i])
                                                    : mezzo_bf16_to_f32(m->high[i]);
}

// Stores element `e` of the parameter, at i.
static void master_put(const masters *m, const mz_tensor *low_copy, int64_t e, int64_t i, float x) {
    uint32_t words[4];
    if (m->segment->master == MEZZO_MASTER_FP32) {
        m->fp32[i] = x;
        store_low_copy(low_copy, m->segment, i, x);
    } else if (m->segment->master == MEZZO_MASTER_SPLIT) {
        mz_master_split(x, &m->high[i], &m->low[i]);
    } else {
        mz_philox(m->key, (uint64_t)e >> 2, words);
        m->high[i] = mezzo_f32_to_bf16_stochastic(x, words[e & 3]);
    }
}

// Updates the moving average of element i of the parameter, as update.h says.
static void average(const mz_call *call, int slot, const mz_segment *segment, int64_t i, float master) {
    const mz_opt_state *state = mz_in(call, adamw, state)->data;
    if (!mz_present(&call->out[slot]))
        return;
    float *ema = (float *)call->out[slot].data + (segment->state_offset + i);
    const float fresh = (float)mz_ema_fresh(call->attrs.update->rule.ema, state->step);
    *ema = state->step == 1 ? master : *ema + fresh * (master - *ema);
}

// Holds the moments of a call, m (with a sign) and v, and the block of 8-bit moments with the present element. All
// kinds have the same slots.
enum { M = MZ_OUT(adamw, m), LOW_COPY = MZ_OUT(adamw, low_copy), EMA = MZ_OUT(adamw, ema) };
typedef struct moments {
    const mz_call *call;
    int n;
    float block[MZ_KIND_MOMENTS][MZ_DYNAMIC8_BLOCK];
} moments;

static void *record_of(const mz_tensor *moment, const mz_segment *segment, int64_t e) {
    return mz_dynamic8_at(moment->data, segment->state_offset + e / MZ_DYNAMIC8_BLOCK * MZ_DYNAMIC8_BLOCK);
}

// Gets element `e` of the parameter, stored at k.
static void get_moments(moments *kept, const mz_segment *segment, int64_t e, int64_t k, float *values) {
    const mz_tensor *moment = &kept->call->out[M];
    for (int i = 0; i < kept->n; i++) {
        if (moment[i].dtype != MEZZO_U8) {
            values[i] = (float)mz_ref_get(&moment[i], k);
            continue;
        }
        if (e % MZ_DYNAMIC8_BLOCK == 0)
            mz_dynamic8_decode(i == 0, record_of(&moment[i], segment, e), MZ_DYNAMIC8_BLOCK, kept->block[i]);
        values[i] = kept->block[i][e % MZ_DYNAMIC8_BLOCK];
    }
}

static void put_moments(moments *kept, mz_philox_key key, const mz_segment *segment, int64_t e, int64_t k,
                        const float *values) {
    const mz_tensor *moment = &kept->call->out[M];
    const int64_t at = e % MZ_DYNAMIC8_BLOCK;
    const bool is_last = at + 1 == MZ_DYNAMIC8_BLOCK || e + 1 == segment->first + segment->count;
    uint32_t words[4];
    uint16_t low[MZ_KIND_MOMENTS];
    if (kept->n > 0 && moment[0].dtype == MEZZO_BF16) {
        mz_philox(key, mz_moments_block(e), words);
        mz_moments_round(values[0], values[1], words[e & 3], &low[0], &low[1]);
    }
    for (int i = 0; i < kept->n; i++) {
        kept->block[i][at] = values[i];
        if (moment[i].dtype == MEZZO_F32)
            ((float *)moment[i].data)[k] = values[i];
        else if (moment[i].dtype == MEZZO_BF16)
            ((uint16_t *)moment[i].data)[k] = low[i];
        else if (is_last)
            mz_dynamic8_encode(i == 0, kept->block[i], (int)at + 1, record_of(&moment[i], segment, e));
    }
}

// Holds the numbers of an element: its gradient, master and moments.
typedef struct element {
    float g, p, moment[MZ_KIND_MOMENTS];
} element;
typedef void formula(const void *constants, element *x);

// Does what all kinds share; constants[1] belong to parameters with weight decay.
static void update(const mz_call *call, formula *apply, const void *const constants[2], moments *kept) {
    const mz_opt_state *state = mz_in(call, adamw, state)->data;
    int64_t n_segments;
    const mz_segment *segments = segments_of(mz_in(call, adamw, segments), &n_segments);
    const mz_update_rule *rule = &call->attrs.update->rule;
    const float inverse = mz_update_inverse(state, rule), clip = mz_update_clip(state, rule);
    kept->call = call;
    while (kept->n < MZ_KIND_MOMENTS && mz_present(&call->out[M + kept->n]))
        kept->n++;
    for (int64_t s = 0; s < n_segments; s++) {
        const mz_segment *segment = &segments[s];
        const int64_t grad_at = segment->offset - segment->grad_shift;
        const mz_philox_key key = mz_master_key(call->attrs.update, state->step, segment);
        masters master = masters_of(call, segment, &call->out[LOW_COPY], state->step);
        for (int64_t e = segment->first; e < segment->first + segment->count; e++) {
            const int64_t i = mz_layout_index(&segment->layout, e), k = segment->state_offset + i;
            element x = {.g = (float)mz_ref_get(mz_in(call, adamw, grad), grad_at + i) * inverse * clip,
                         .p = master_get(&master, i)};
            get_moments(kept, segment, e, k, x.moment);
            apply(constants[segment->decay != 0], &x);
            put_moments(kept, key, segment, e, k, x.moment);
            average(call, EMA, segment, i, x.p);
            master_put(&master, &call->out[LOW_COPY], e, i, x.p);
        }
    }
}

#define NUMBER       float
#define C(name)      (k->name)
#define K(name)      (k->name)
#define ADD(a, b)    ((a) + (b))
#define SUB(a, b)    ((a) - (b))
#define MUL(a, b)    ((a) * (b))
#define DIV(a, b)    ((a) / (b))
#define FMA(a, b, c) ((a) * (b) + (c))
#define SQRT(a)      sqrtf(a)
#define SIGN(a)      ((float)(((a) > 0) - ((a) < 0)))
#define KIND(name, NAME, title, defaults, kinds_moments, kinds_constants, ...)                                         \
    static void apply_##name(const void *constants, element *x) {                                                      \
        const mz_##name##_constants *k = constants;                                                                    \
        float g = x->g, p = x->p, m = x->moment[0], v = x->moment[1];                                                  \
        __VA_ARGS__                                                                                                    \
        *x = (element){g, p, {m, v}};                                                                                  \
    }                                                                                                                  \
    void mz_ref_##name(const mz_call *call) {                                                                          \
        const mz_update_rule *rule = &call->attrs.update->rule;                                                        \
        const mz_opt_state *state = call->in[2].data;                                                                  \
        const mz_update_rates rates = mz_update_rates_of(state, rule);                                                 \
        const mz_##name##_constants without = mz_##name##_constants_of(rule, &rates, 0),                               \
                                    with = mz_##name##_constants_of(rule, &rates, rule->weight_decay);                 \
        moments kept = {0};                                                                                            \
        if (!state->skip)                                                                                              \
            update(call, apply_##name, (const void *const[]){&without, &with}, &kept);                                 \
    }
#include "mezzo/optimizers.def"

void mz_ref_refresh(const mz_call *call) {
    int64_t n_segments;
    const mz_segment *segments = segments_of(mz_in(call, refresh, segments), &n_segments);
    for (int64_t s = 0; s < n_segments; s++) {
        const float *master =
            (const float *)mz_in(call, refresh, master)->data + (segments[s].offset - segments[s].master_shift);
        const int64_t end = segments[s].first + segments[s].count;
        for (int64_t e = segments[s].first; segments[s].master == MEZZO_MASTER_FP32 && e < end; e++) {
            int64_t i = mz_layout_index(&segments[s].layout, e);
            store_low_copy(mz_out(call, refresh, low_copy), &segments[s], i, master[i]);
        }
    }
}

void mz_ref_histogram(const mz_call *call) {
    int32_t *counts = mz_out(call, histogram, counts)->data;
    for (int64_t i = 0, n = mz_shape_count(&mz_in(call, histogram, x)->shape); i < n; i++) {
        float x = fabsf((float)mz_ref_get(mz_in(call, histogram, x), i));
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        counts[mz_histogram_bucket(bits)]++;
    }
}

void mz_ref_checksum(const mz_call *call) {
    mz_checksum *sums = mz_out(call, checksum, sums)->data;
    for (int i = 0; i < call->n_in; i++) {
        const unsigned char *x = call->in[i].data;
        const int64_t n = mz_present(&call->in[i]) ? mz_shape_count(&call->in[i].shape) : 0;
        sums[i] = (mz_checksum){0};
        for (int64_t at = 0; at < n; at += 8) {
            uint64_t word = 0;
            for (int64_t k = at; k < at + 8 && k < n; k++)
                word |= (uint64_t)x[k] << 8 * (k - at);
            mz_checksum_add(&sums[i], word, (uint64_t)at / 8);
        }
    }
}
