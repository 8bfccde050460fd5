// The update's passes over parameters: gradient statistics, the optimizers, low copies. Each reads and writes every
// buffer once. Work is cut into chunks of 4096 elements of each segment, so that sums do not depend on the number of
// threads; a chunk's four buffers (64 KiB) stay in L2.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/update.h"
#include "base/dynamic8.h"

enum { CHUNK = 4096 };

typedef struct chunk {
    const mz_segment *segment;
    int64_t start; // element of the parameter
    int n;
} chunk;

static const mz_segment *segments_of(const mz_tensor *t, int64_t *n) {
    *n = mz_shape_count(&t->shape) / (int64_t)sizeof(mz_segment);
    return t->data;
}

static int64_t chunks_in(const mz_segment *s) {
    return (s->count + CHUNK - 1) / CHUNK;
}

static int64_t count_chunks(const mz_segment *segments, int64_t n) {
    int64_t total = 0;
    for (int64_t s = 0; s < n; s++)
        total += chunks_in(&segments[s]);
    return total;
}

typedef void chunk_fn(const mz_call *call, const void *with, int64_t index, chunk c);

// Runs fn on every chunk; neighbouring chunks go to one thread.
static void for_chunks(const mezzo_device *device, const mz_call *call, const mz_tensor *list, double cost,
                       chunk_fn *fn, const void *with) {
    int64_t n;
    const mz_segment *segments = segments_of(list, &n);
    int64_t total = count_chunks(segments, n);
#pragma omp parallel num_threads(mz_cpu_threads(device, cost *CHUNK *(double)total))
    {
        int64_t first = total * mz_thread() / mz_team(), last = total * (mz_thread() + 1) / mz_team();
        int64_t before = 0; // chunks of the segments that were passed
        for (int64_t s = 0; s < n && before < last; s++) {
            int64_t here = chunks_in(&segments[s]);
            for (int64_t i = first > before ? first - before : 0; i < min64(here, last - before); i++) {
                chunk c = {&segments[s], segments[s].first + i * CHUNK,
                           (int)min64(CHUNK, segments[s].count - i * CHUNK)};
                fn(call, with, before + i, c);
            }
            before += here;
        }
    }
}

// --- grad_stats ----------------------------------------------------------------------------------------------------
typedef float half_lanes __attribute__((vector_size(2 * VW)));
typedef double vd __attribute__((vector_size(4 * VW))); // VW/2 lanes

static inline vd widen_half(const float *p) {
#if VEC_512
    return (vd)_mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif VEC_256
    return (vd)_mm256_cvtps_pd(_mm_loadu_ps(p));
#else
    half_lanes part;
    memcpy(&part, p, sizeof part);
    return __builtin_convertvector(part, vd);
#endif
}

// Σ g² in FP64, in which no float's square overflows: the sum is finite exactly when every g is.
static double sum_squares(const float *g, int n) {
    vd sum[4] = {{0}};
    int i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) {
        prefetch_reads((const char *)(g + i), 8 * VW);
        for (int k = 0; k < 4; k++) {
            vd wide = widen_half(g + i + k * (VW / 2));
            sum[k] += wide * wide;
        }
    }
    vd all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    double total = 0;
    for (int lane = 0; lane < VW / 2; lane++)
        total += all[lane];
    for (; i < n; i++)
        total += (double)g[i] * (double)g[i];
    return total;
}

static float inverse_of(float scale) { // torch takes the reciprocal in FP64
    return scale != 0 ? (float)(1 / (double)scale) : 1;
}

static int64_t grad_at(const mz_segment *s) {
    return s->offset - s->grad_shift;
}
static int64_t master_at(const mz_segment *s) {
    return s->offset - s->master_shift;
}

typedef struct stats_pass {
    float inverse;      // 1/scale
    bool keeps, pieces; // pieces: partial is by place in the gradient buffer, not by number
    double *partial;
} stats_pass;

// The elements of a chunk that has padding, consecutive, unscaled; in place too unless the scale is kept.
static void gather_chunk(const stats_pass *pass, float *grad, chunk c, float *out) {
    for (int from = 0, n; from < c.n; from += n) {
        n = (int)mz_layout_run(&c.segment->layout, c.start + from, c.n - from);
        float *g = grad + (grad_at(c.segment) + mz_layout_index(&c.segment->layout, c.start + from));
        FOR_LANES(i, lanes, n) {
            vf x = vload_lanes(g + i, lanes, 0) * pass->inverse;
            vstore_lanes(out + from + i, x, lanes);
            if (!pass->keeps)
                vstore_lanes(g + i, x, lanes);
        }
    }
}

static void stats_chunk(const mz_call *call, const void *with, int64_t index, chunk c) {
    const stats_pass *pass = with;
    float unscaled[CHUNK];
    index = pass->pieces ? (c.segment->offset + c.start) / CHUNK : index;
    if (c.segment->layout.width != 0) {
        gather_chunk(pass, call->out[0].data, c, unscaled);
        pass->partial[index] = sum_squares(unscaled, c.n);
        return;
    }
    float *g = (float *)call->out[0].data + (grad_at(c.segment) + c.start);
    if (pass->inverse != 1.0f && pass->keeps) {
        FOR_LANES(i, lanes, c.n)
        vstore_lanes(unscaled + i, vload_lanes(g + i, lanes, 0) * pass->inverse, lanes);
        g = unscaled;
    } else if (pass->inverse != 1.0f) {
        FOR_LANES(i, lanes, c.n)
        vstore_lanes(g + i, vload_lanes(g + i, lanes, 0) * pass->inverse, lanes);
    }
    pass->partial[index] = sum_squares(g, c.n);
}

static size_t grad_stats_workspace(const mz_call *call) {
    size_t segments = (size_t)mz_shape_count(&call->in[0].shape) / sizeof(mz_segment);
    return sizeof(double) * (segments + (size_t)mz_shape_count(&call->out[0].shape) / CHUNK + 1);
}

static mezzo_status run_grad_stats(mezzo_device *device, const mz_call *call) {
    mz_opt_state *state = call->out[1].data;
    stats_pass pass = {.inverse = 1, .partial = call->workspace};
    float scale = mz_present(&call->in[1]) ? *(const float *)call->in[1].data : 0;
    pass.inverse = inverse_of(scale);
    pass.keeps = call->attrs.update != NULL && call->attrs.update->keeps_scale;
    state->scale = pass.keeps ? scale : 0;
    pass.pieces = mz_present(&call->out[2]);
    if (pass.pieces)
        pass.partial = call->out[2].data;
    for_chunks(device, call, &call->in[0], 0.3, stats_chunk, &pass);
    if (pass.pieces)
        return MEZZO_OK;
    int64_t n;
    const mz_segment *segments = segments_of(&call->in[0], &n);
    double total = 0;
    for (int64_t i = 0, chunks = count_chunks(segments, n); i < chunks; i++)
        total += pass.partial[i];
    state->norm = sqrt(total);
    if (!isfinite(total))
        state->found_inf = 1;
    return MEZZO_OK;
}

// --- optimizers ----------------------------------------------------------------------------------------------------
static void *low_copy_at(const mz_tensor *low_copy, const mz_segment *s, int64_t element) {
    if (!mz_present(low_copy) || s->low_copy_offset == MZ_NO_LOW_COPY)
        return NULL;
    return (char *)low_copy->data + (s->low_copy_offset + element * (s->low_copy_dtype == MEZZO_F32 ? 4 : 2));
}

// A block of masters as FP32: where they are, or in `buffer`, made from the halves that they are stored as.
typedef struct master_block {
    float *at;
    uint16_t *high, *low;
} master_block;

static master_block masters_in(const mz_call *call, const mz_tensor *low_copy, const mz_segment *s, int64_t at, int n,
                               float *buffer) {
    master_block b = {.at = (float *)call->out[0].data + (master_at(s) + at)};
    if (s->master == MEZZO_MASTER_FP32)
        return b;
    b.at = buffer;
    b.high = low_copy_at(low_copy, s, at);
    b.low = (uint16_t *)(void *)((char *)call->out[0].data + (s->low_offset + at * (int64_t)sizeof *b.low));
    for (int i = 0; i < n; i++)
        buffer[i] =
            s->master == MEZZO_MASTER_SPLIT ? mz_master_join(b.high[i], b.low[i]) : mezzo_bf16_to_f32(b.high[i]);
    return b;
}

// Stores what became of n masters that lie next to each other, the first of them the parameter's `element`, stored
// `at`; and rounds their low copy.
static void masters_out(const mz_call *call, const mz_tensor *low_copy, const mz_segment *s, int64_t element,
                        int64_t at, int n, master_block b, int64_t step) {
    if (s->master == MEZZO_MASTER_FP32) {
        void *low = low_copy_at(low_copy, s, at);
        if (low != NULL)
            narrow_block(b.at, low, (mezzo_dtype)s->low_copy_dtype, n);
        return;
    }
    mz_philox_key key = mz_master_key(call->attrs.update, step, s);
    uint32_t words[4] = {0};
    for (int i = 0; i < n; i++) {
        if (s->master == MEZZO_MASTER_SPLIT) {
            mz_master_split(b.at[i], &b.high[i], &b.low[i]);
            continue;
        }
        if (i == 0 || (element + i) % 4 == 0)
            mz_philox(key, (uint64_t)(element + i) >> 2, words);
        b.high[i] = mezzo_f32_to_bf16_stochastic(b.at[i], words[(element + i) % 4]);
    }
}

// The moving average of n masters that lie next to each other, `at` in the segment.
static void average_block(const mz_call *call, const mz_tensor *ema, const mz_segment *s, int64_t at, int n,
                          const float *master, int64_t step) {
    if (!mz_present(ema))
        return;
    float *average = (float *)ema->data + (s->state_offset + at);
    const vf fresh = vset((float)mz_ema_fresh(call->attrs.update->ema, step));
    FOR_LANES(i, lanes, n) {
        vf p = vload_lanes(master + i, lanes, 0), e = vload_lanes(average + i, lanes, 0);
        vstore_lanes(average + i, step == 1 ? p : vfma(fresh, p - e, e), lanes);
    }
}

typedef struct adamw_pass {
    int64_t step;
    float inverse, clip, eps, fresh1, beta2, fresh2, step_size, root_bias2, kept;
} adamw_pass;

// Moments in 8 bits: a chunk's as FP32, and back. Chunks are whole blocks, but a parameter's last.
typedef struct moment_chunk {
    float value[2][CHUNK];
} moment_chunk;

static void decode_moments(const mz_call *call, chunk c, moment_chunk *out) {
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < c.n; i += MZ_DYNAMIC8_BLOCK)
            mz_dynamic8_decode(k == 0, mz_dynamic8_at(call->out[1 + k].data, c.segment->state_offset + c.start + i),
                               (int)min64(MZ_DYNAMIC8_BLOCK, c.n - i), out->value[k] + i);
}

static void encode_moments(const mz_call *call, chunk c, const moment_chunk *from) {
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < c.n; i += MZ_DYNAMIC8_BLOCK)
            mz_dynamic8_encode(k == 0, from->value[k] + i, (int)min64(MZ_DYNAMIC8_BLOCK, c.n - i),
                               mz_dynamic8_at(call->out[1 + k].data, c.segment->state_offset + c.start + i));
}

// A block of the two moments as FP32: where they are, or in buffers, made from what is stored.
typedef struct moment_block {
    float *m, *v;
    uint16_t *low[2]; // BF16: where they are stored
} moment_block;

// n moments stored `at`, `from` the chunk's first.
static moment_block moments_in(const mz_call *call, int64_t at, int from, int n, moment_chunk *decoded,
                               float *buffers) {
    moment_block b = {0};
    if (call->out[1].dtype == MEZZO_U8) {
        b.m = decoded->value[0] + from;
        b.v = decoded->value[1] + from;
        return b;
    }
    if (call->out[1].dtype == MEZZO_F32) {
        b.m = (float *)call->out[1].data + at;
        b.v = (float *)call->out[2].data + at;
        return b;
    }
    b.m = buffers, b.v = buffers + MZ_BLOCK;
    for (int k = 0; k < 2; k++) {
        b.low[k] = (uint16_t *)call->out[1 + k].data + at;
        for (int i = 0; i < n; i++)
            buffers[k * MZ_BLOCK + i] = mezzo_bf16_to_f32(b.low[k][i]);
    }
    return b;
}

static void moments_out(const mz_call *call, const mz_segment *s, int64_t element, int n, moment_block b,
                        int64_t step) {
    if (b.low[0] == NULL)
        return;
    const mz_philox_key key = mz_master_key(call->attrs.update, step, s);
    uint32_t words[4] = {0};
    for (int i = 0; i < n; i++) {
        if (i == 0 || (element + i) % 4 == 0)
            mz_philox(key, mz_moments_block(element + i), words);
        mz_moments_round(b.m[i], b.v[i], words[(element + i) % 4], b.low[0] + i, b.low[1] + i);
    }
}

// torch.optim.AdamW: p ·= 1 - lr·wd; m.lerp(g, 1-β₁); v = v·β₂ + (1-β₂)·g·g; p -= lr/bias1 · m/(√v/√bias2 + eps).
static void adamw_chunk(const mz_call *call, const void *with, int64_t index, chunk c) {
    (void)index;
    const adamw_pass *k = with;
    const bool eight = call->out[1].dtype == MEZZO_U8;
    moment_chunk decoded;
    float buffer[MZ_BLOCK], moments[2 * MZ_BLOCK];
    if (eight)
        decode_moments(call, c, &decoded);
    float kept = c.segment->decay ? k->kept : 1.0f;
    for (int from = 0, n; from < c.n; from += n) {
        int64_t at = mz_layout_index(&c.segment->layout, c.start + from);
        n = (int)mz_layout_run(&c.segment->layout, c.start + from, c.n - from < MZ_BLOCK ? c.n - from : MZ_BLOCK);
        const float *grad = (const float *)call->in[0].data + (grad_at(c.segment) + at);
        moment_block both = moments_in(call, c.segment->state_offset + at, from, n, &decoded, moments);
        float *m = both.m, *v = both.v;
        master_block b = masters_in(call, &call->out[3], c.segment, at, n, buffer);
        float *master = b.at;
        FOR_LANES(i, lanes, n) {
            vf g = vload_lanes(grad + i, lanes, 0) * k->inverse * k->clip, p = vload_lanes(master + i, lanes, 0) * kept;
            vf m1 = vload_lanes(m + i, lanes, 0), v1 = vload_lanes(v + i, lanes, 0) * k->beta2;
            m1 = vfma(vset(k->fresh1), g - m1, m1);
            v1 = vfma(g * k->fresh2, g, v1);
            p -= m1 * k->step_size / (vsqrt(v1) / k->root_bias2 + k->eps);
            vstore_lanes(m + i, m1, lanes);
            vstore_lanes(v + i, v1, lanes);
            vstore_lanes(master + i, p, lanes);
        }
        average_block(call, &call->out[MZ_OUT(adamw, ema)], c.segment, at, n, master, k->step);
        masters_out(call, &call->out[3], c.segment, c.start + from, at, n, b, k->step);
        moments_out(call, c.segment, c.start + from, n, both, k->step);
    }
    if (eight)
        encode_moments(call, c, &decoded);
}

static mezzo_status run_adamw(mezzo_device *device, const mz_call *call) {
    const mz_update_attrs *u = call->attrs.update;
    const mz_opt_state *state = call->in[2].data;
    if (state->skip)
        return MEZZO_OK;
    // Constants are computed in FP64 and rounded once, as torch does.
    adamw_pass pass = {.step = state->step,
                       .inverse = inverse_of(state->scale),
                       .clip = (float)state->last_clip,
                       .eps = (float)u->eps,
                       .fresh1 = (float)(1 - u->beta1),
                       .beta2 = (float)u->beta2,
                       .fresh2 = (float)(1 - u->beta2),
                       .step_size = (float)(state->lr / state->bias1),
                       .root_bias2 = (float)sqrt(state->bias2),
                       .kept = (float)(1 - state->lr * u->weight_decay)};
    for_chunks(device, call, &call->in[1], 1.5, adamw_chunk, &pass);
    return MEZZO_OK;
}

typedef struct sgd_pass {
    int64_t step;
    float inverse, clip, lr, decay, momentum, fresh;
    bool nesterov, has_momentum, first;
} sgd_pass;

// torch.optim.SGD: g += wd·p; b = μ·b + (1-dampening)·g (the first step: b = g); g = nesterov ? g + μ·b : b; p -= lr·g.
static void sgd_chunk(const mz_call *call, const void *with, int64_t index, chunk c) {
    (void)index;
    const sgd_pass *k = with;
    float buffer[MZ_BLOCK];
    float decay = c.segment->decay ? k->decay : 0.0f;
    for (int from = 0, n; from < c.n; from += n) {
        int64_t at = mz_layout_index(&c.segment->layout, c.start + from);
        n = (int)mz_layout_run(&c.segment->layout, c.start + from, c.n - from < MZ_BLOCK ? c.n - from : MZ_BLOCK);
        const float *grad = (const float *)call->in[0].data + (grad_at(c.segment) + at);
        float *momentum = k->has_momentum ? (float *)call->out[1].data + (c.segment->state_offset + at) : NULL;
        master_block b = masters_in(call, &call->out[2], c.segment, at, n, buffer);
        float *master = b.at;
        FOR_LANES(i, lanes, n) {
            vf g = vload_lanes(grad + i, lanes, 0) * k->inverse * k->clip, p = vload_lanes(master + i, lanes, 0);
            if (decay != 0)
                g = vfma(vset(decay), p, g);
            if (momentum != NULL) {
                vf moved = k->first ? g : vfma(vset(k->momentum), vload_lanes(momentum + i, lanes, 0), g * k->fresh);
                vstore_lanes(momentum + i, moved, lanes);
                g = k->nesterov ? vfma(vset(k->momentum), moved, g) : moved;
            }
            vstore_lanes(master + i, vfma(vset(-k->lr), g, p), lanes);
        }
        average_block(call, &call->out[MZ_OUT(sgd, ema)], c.segment, at, n, master, k->step);
        masters_out(call, &call->out[2], c.segment, c.start + from, at, n, b, k->step);
    }
}

static mezzo_status run_sgd(mezzo_device *device, const mz_call *call) {
    const mz_update_attrs *u = call->attrs.update;
    const mz_opt_state *state = call->in[2].data;
    if (state->skip)
        return MEZZO_OK;
    sgd_pass pass = {.step = state->step,
                     .inverse = inverse_of(state->scale),
                     .clip = (float)state->last_clip,
                     .lr = (float)state->lr,
                     .decay = (float)u->weight_decay,
                     .momentum = (float)u->momentum,
                     .fresh = (float)(1 - u->dampening),
                     .nesterov = u->nesterov,
                     .has_momentum = mz_present(&call->out[1]) && u->momentum != 0,
                     .first = state->step == 1};
    for_chunks(device, call, &call->in[1], 0.8, sgd_chunk, &pass);
    return MEZZO_OK;
}

static void refresh_chunk(const mz_call *call, const void *with, int64_t index, chunk c) {
    (void)with, (void)index;
    if (c.segment->master != MEZZO_MASTER_FP32)
        return;
    for (int from = 0, n; from < c.n; from += n) {
        int64_t at = mz_layout_index(&c.segment->layout, c.start + from);
        void *low_copy = low_copy_at(&call->out[0], c.segment, at);
        n = (int)mz_layout_run(&c.segment->layout, c.start + from, c.n - from);
        if (low_copy != NULL)
            narrow_block((const float *)call->in[0].data + (master_at(c.segment) + at), low_copy,
                         (mezzo_dtype)c.segment->low_copy_dtype, n);
    }
}

static mezzo_status run_refresh(mezzo_device *device, const mz_call *call) {
    for_chunks(device, call, &call->in[1], 0.3, refresh_chunk, NULL);
    return MEZZO_OK;
}

static bool is_moment(const mz_call *call, int slot) {
    return call->op == MZ_OP_adamw && (slot == MZ_OUT(adamw, m) || slot == MZ_OUT(adamw, v));
}

// Masters and gradients are FP32 by contract, and AdamW's moments both FP32, both BF16 or both 8 bits.
static const char *update_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    bool halves = call->op == MZ_OP_adamw && call->out[MZ_OUT(adamw, m)].dtype == MEZZO_BF16 &&
                  call->out[MZ_OUT(adamw, v)].dtype == MEZZO_BF16;
    for (int i = 0; i < call->n_in; i++)
        if (mz_present(&call->in[i]) && call->in[i].dtype != MEZZO_F32 && call->in[i].dtype != MEZZO_U8)
            return "the update reads fp32 buffers and u8 blocks";
    for (int i = 0; i < call->n_out; i++)
        if (mz_present(&call->out[i]) && call->out[i].dtype != MEZZO_F32 && call->out[i].dtype != MEZZO_U8 &&
            !(halves && is_moment(call, i)))
            return "the update writes fp32 buffers and u8 blocks";
    if (call->op == MZ_OP_adamw && call->out[MZ_OUT(adamw, m)].dtype != call->out[MZ_OUT(adamw, v)].dtype)
        return "its moments are not stored alike";
    return NULL;
}

static const char *grad_stats_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    out->workspace = grad_stats_workspace(call);
    return update_prepare(device, call, out);
}
const mz_kernel MZ_SYMBOL(grad_stats) = {"grad_stats__" MZ_LEVEL_TEXT, grad_stats_prepare, run_grad_stats};
const mz_kernel MZ_SYMBOL(adamw) = {"adamw__" MZ_LEVEL_TEXT, update_prepare, run_adamw};
const mz_kernel MZ_SYMBOL(sgd) = {"sgd__" MZ_LEVEL_TEXT, update_prepare, run_sgd};
const mz_kernel MZ_SYMBOL(refresh) = {"refresh__" MZ_LEVEL_TEXT, update_prepare, run_refresh};
