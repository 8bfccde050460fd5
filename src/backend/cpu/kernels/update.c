// Makes the update's passes over parameters: gradient statistics, the optimizers, low copies. Each reads and writes
// every buffer once. Work is divided into chunks of 4096 elements of each segment, so that sums do not depend on the
// number of threads; a chunk's four buffers (64 KiB) stay in L2.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/update.h"
#include "base/dynamic8.h"

enum { CHUNK = 4096 };

typedef struct chunk {
    const mz_segment *segment;
    int64_t start; // first element of the parameter
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

// Runs fn on every chunk; one thread takes neighbouring chunks.
static void for_chunks(const mezzo_device *device, const mz_call *call, const mz_tensor *list, double cost,
                       chunk_fn *fn, const void *with) {
    int64_t n;
    const mz_segment *segments = segments_of(list, &n);
    int64_t total = count_chunks(segments, n);
#pragma omp parallel num_threads(mz_cpu_threads(device, cost *CHUNK *(double)total))
    {
        int64_t first = total * mz_thread() / mz_team(), last = total * (mz_thread() + 1) / mz_team();
        int64_t before = 0; // chunks of the segments before this one
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

// Returns Σ g² in FP64, in which no float's square overflows: the sum is finite exactly when every g is.
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

static float inverse_of(float scale) { // the reciprocal is computed in FP64, as in PyTorch
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
    bool keeps, pieces; // pieces: `partial` is ordered by place in the gradient buffer, not by number
    double *partial;
} stats_pass;

// Copies the elements of a chunk that has padding, consecutive and unscaled; also writes them in place unless the scale
// is kept.
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
        gather_chunk(pass, mz_out(call, grad_stats, grad)->data, c, unscaled);
        pass->partial[index] = sum_squares(unscaled, c.n);
        return;
    }
    float *g = (float *)mz_out(call, grad_stats, grad)->data + (grad_at(c.segment) + c.start);
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

static size_t grad_stats_workspace(const mezzo_device *device, const mz_call *call) {
    (void)device;
    size_t segments = (size_t)mz_shape_count(&mz_in(call, grad_stats, segments)->shape) / sizeof(mz_segment);
    return sizeof(double) * (segments + (size_t)mz_shape_count(&mz_out(call, grad_stats, grad)->shape) / CHUNK + 1);
}

static mezzo_status run_grad_stats(mezzo_device *device, const mz_call *call) {
    mz_opt_state *state = mz_out(call, grad_stats, state)->data;
    stats_pass pass = {.inverse = 1, .partial = call->workspace};
    float scale = mz_present(mz_in(call, grad_stats, scale)) ? *(const float *)mz_in(call, grad_stats, scale)->data : 0;
    pass.inverse = inverse_of(scale);
    pass.keeps = call->attrs.update != NULL && call->attrs.update->keeps_scale;
    state->scale = pass.keeps ? scale : 0;
    pass.pieces = mz_present(mz_out(call, grad_stats, pieces));
    if (pass.pieces)
        pass.partial = mz_out(call, grad_stats, pieces)->data;
    for_chunks(device, call, mz_in(call, grad_stats, segments), 0.3, stats_chunk, &pass);
    if (pass.pieces)
        return MEZZO_OK;
    int64_t n;
    const mz_segment *segments = segments_of(mz_in(call, grad_stats, segments), &n);
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

// A block of masters as FP32: in place, or in `buffer`, made from the stored halves.
typedef struct master_block {
    float *at;
    uint16_t *high, *low;
} master_block;

static master_block masters_in(const mz_call *call, const mz_tensor *low_copy, const mz_segment *s, int64_t at, int n,
                               float *buffer) {
    master_block b = {.at = (float *)mz_out(call, adamw, master)->data + (master_at(s) + at)};
    if (s->master == MEZZO_MASTER_FP32)
        return b;
    b.at = buffer;
    b.high = low_copy_at(low_copy, s, at);
    b.low =
        (uint16_t *)(void *)((char *)mz_out(call, adamw, master)->data + (s->low_offset + at * (int64_t)sizeof *b.low));
    for (int i = 0; i < n; i++)
        buffer[i] =
            s->master == MEZZO_MASTER_SPLIT ? mz_master_join(b.high[i], b.low[i]) : mezzo_bf16_to_f32(b.high[i]);
    return b;
}

// Stores n updated masters that are contiguous, the first of them the parameter's `element`, stored `at`; and rounds
// their low copy.
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

// Updates the moving average of n contiguous masters, `at` in the segment.
static void average_block(const mz_call *call, const mz_tensor *ema, const mz_segment *s, int64_t at, int n,
                          const float *master, int64_t step) {
    if (!mz_present(ema))
        return;
    float *average = (float *)ema->data + (s->state_offset + at);
    const vf fresh = vset((float)mz_ema_fresh(call->attrs.update->rule.ema, step));
    FOR_LANES(i, lanes, n) {
        vf p = vload_lanes(master + i, lanes, 0), e = vload_lanes(average + i, lanes, 0);
        vstore_lanes(average + i, step == 1 ? p : vfma(fresh, p - e, e), lanes);
    }
}

// All kinds have the same slots.
enum { M = MZ_OUT(adamw, m), LOW_COPY = MZ_OUT(adamw, low_copy), EMA = MZ_OUT(adamw, ema) };

// Updates n elements with the kind's constants; m and v are NULL where the kind has no such moment.
typedef void block_fn(const void *constants, float inverse, float clip, const float *grad, float *p, float *m, float *v,
                      int n);

typedef struct update_pass {
    int64_t step;
    float inverse, clip;
    block_fn *block;
    const void *constants[2]; // [1]: for parameters with weight decay
    int moments;
} update_pass;

// Holds a chunk's 8-bit moments as FP32. Chunks are whole blocks, but for a parameter's last.
typedef struct moment_chunk {
    float value[MZ_KIND_MOMENTS][CHUNK];
} moment_chunk;

static void decode_moments(const mz_call *call, const update_pass *pass, chunk c, moment_chunk *out) {
    for (int k = 0; k < pass->moments; k++)
        for (int i = 0; i < c.n; i += MZ_DYNAMIC8_BLOCK)
            mz_dynamic8_decode(k == 0, mz_dynamic8_at(call->out[M + k].data, c.segment->state_offset + c.start + i),
                               (int)min64(MZ_DYNAMIC8_BLOCK, c.n - i), out->value[k] + i);
}

static void encode_moments(const mz_call *call, const update_pass *pass, chunk c, const moment_chunk *from) {
    for (int k = 0; k < pass->moments; k++)
        for (int i = 0; i < c.n; i += MZ_DYNAMIC8_BLOCK)
            mz_dynamic8_encode(k == 0, from->value[k] + i, (int)min64(MZ_DYNAMIC8_BLOCK, c.n - i),
                               mz_dynamic8_at(call->out[M + k].data, c.segment->state_offset + c.start + i));
}

// Holds a block of the moments as FP32: in place, or in buffers, made from what is stored.
typedef struct moment_block {
    float *value[MZ_KIND_MOMENTS];
    uint16_t *low[MZ_KIND_MOMENTS]; // BF16: where they are stored
} moment_block;

// Returns n moments stored `at`; `from` counts from the chunk's first.
static moment_block moments_in(const mz_call *call, int moments, int64_t at, int from, int n, moment_chunk *decoded,
                               float *buffers) {
    moment_block b = {0};
    for (int k = 0; k < moments; k++) {
        const mz_tensor *t = &call->out[M + k];
        if (t->dtype == MEZZO_U8) {
            b.value[k] = decoded->value[k] + from;
        } else if (t->dtype == MEZZO_F32) {
            b.value[k] = (float *)t->data + at;
        } else {
            b.value[k] = buffers + k * MZ_BLOCK;
            b.low[k] = (uint16_t *)t->data + at;
            for (int i = 0; i < n; i++)
                b.value[k][i] = mezzo_bf16_to_f32(b.low[k][i]);
        }
    }
    return b;
}

static void moments_out(const mz_call *call, const mz_segment *s, int64_t element, int n, moment_block b,
                        int64_t step) {
    if (b.low[0] == NULL)
        return;
    const mz_philox_key key = mz_master_key(call->attrs.update, step, s);
    uint32_t words[4] = {0};
    uint16_t unused;
    for (int i = 0; i < n; i++) {
        if (i == 0 || (element + i) % 4 == 0)
            mz_philox(key, mz_moments_block(element + i), words);
        mz_moments_round(b.value[0][i], b.low[1] != NULL ? b.value[1][i] : 0, words[(element + i) % 4], b.low[0] + i,
                         b.low[1] != NULL ? b.low[1] + i : &unused);
    }
}

static void update_chunk(const mz_call *call, const void *with, int64_t index, chunk c) {
    (void)index;
    const update_pass *pass = with;
    const bool eight = pass->moments > 0 && call->out[M].dtype == MEZZO_U8;
    moment_chunk decoded;
    float buffer[MZ_BLOCK], moments[MZ_KIND_MOMENTS * MZ_BLOCK], wide[MZ_BLOCK];
    if (eight)
        decode_moments(call, pass, c, &decoded);
    for (int from = 0, n; from < c.n; from += n) {
        int64_t at = mz_layout_index(&c.segment->layout, c.start + from);
        n = (int)mz_layout_run(&c.segment->layout, c.start + from, c.n - from < MZ_BLOCK ? c.n - from : MZ_BLOCK);
        const float *grad = block_in(mz_in(call, adamw, grad), grad_at(c.segment) + at, n, wide);
        moment_block both = moments_in(call, pass->moments, c.segment->state_offset + at, from, n, &decoded, moments);
        master_block b = masters_in(call, &call->out[LOW_COPY], c.segment, at, n, buffer);
        pass->block(pass->constants[c.segment->decay != 0], pass->inverse, pass->clip, grad, b.at, both.value[0],
                    both.value[1], n);
        average_block(call, &call->out[EMA], c.segment, at, n, b.at, pass->step);
        masters_out(call, &call->out[LOW_COPY], c.segment, c.start + from, at, n, b, pass->step);
        moments_out(call, c.segment, c.start + from, n, both, pass->step);
    }
    if (eight)
        encode_moments(call, pass, c, &decoded);
}

static mezzo_status update_pass_run(mezzo_device *device, const mz_call *call, update_pass *pass) {
    const mz_opt_state *state = mz_in(call, adamw, state)->data;
    pass->step = state->step;
    pass->inverse = mz_update_inverse(state, &call->attrs.update->rule);
    pass->clip = mz_update_clip(state, &call->attrs.update->rule);
    while (pass->moments < MZ_KIND_MOMENTS && mz_present(&call->out[M + pass->moments]))
        pass->moments++;
    for_chunks(device, call, mz_in(call, adamw, segments), 0.5 + 0.5 * pass->moments, update_chunk, pass);
    return MEZZO_OK;
}

#define NUMBER       vf
#define C(name)      vset(k->name)
#define K(name)      (k->name)
#define ADD(a, b)    ((a) + (b))
#define SUB(a, b)    ((a) - (b))
#define MUL(a, b)    vproduct((a) * (b))
#define DIV(a, b)    ((a) / (b))
#define FMA(a, b, c) vfma(a, b, c)
#define SQRT(a)      vsqrt(a)
#define SIGN(a)      vsign(a)
#define KIND(name, NAME, title, defaults, kinds_moments, kinds_constants, ...)                                         \
    static void name##_block(const void *constants, float inverse, float clip, const float *grad, float *master,       \
                             float *ms, float *vs, int n) {                                                            \
        const mz_##name##_constants *k = constants;                                                                    \
        FOR_LANES(i, lanes, n) {                                                                                       \
            vf g = vload_lanes(grad + i, lanes, 0) * inverse * clip, p = vload_lanes(master + i, lanes, 0);            \
            vf m = ms != NULL ? vload_lanes(ms + i, lanes, 0) : (vf){0};                                               \
            vf v = vs != NULL ? vload_lanes(vs + i, lanes, 0) : (vf){0};                                               \
            __VA_ARGS__                                                                                                \
            if (ms != NULL)                                                                                            \
                vstore_lanes(ms + i, m, lanes);                                                                        \
            if (vs != NULL)                                                                                            \
                vstore_lanes(vs + i, v, lanes);                                                                        \
            vstore_lanes(master + i, p, lanes);                                                                        \
        }                                                                                                              \
    }                                                                                                                  \
    static mezzo_status run_##name(mezzo_device *device, const mz_call *call) {                                        \
        const mz_update_rule *rule = &call->attrs.update->rule;                                                        \
        const mz_opt_state *state = call->in[2].data;                                                                  \
        const mz_update_rates rates = mz_update_rates_of(state, rule);                                                 \
        const mz_##name##_constants without = mz_##name##_constants_of(rule, &rates, 0),                               \
                                    with = mz_##name##_constants_of(rule, &rates, rule->weight_decay);                 \
        update_pass pass = {.block = name##_block, .constants = {&without, &with}};                                    \
        return state->skip ? MEZZO_OK : update_pass_run(device, call, &pass);                                          \
    }
#include "mezzo/optimizers.def"
#undef KIND

static void refresh_chunk(const mz_call *call, const void *with, int64_t index, chunk c) {
    (void)with, (void)index;
    if (c.segment->master != MEZZO_MASTER_FP32)
        return;
    for (int from = 0, n; from < c.n; from += n) {
        int64_t at = mz_layout_index(&c.segment->layout, c.start + from);
        void *low_copy = low_copy_at(mz_out(call, refresh, low_copy), c.segment, at);
        n = (int)mz_layout_run(&c.segment->layout, c.start + from, c.n - from);
        if (low_copy != NULL)
            narrow_block((const float *)mz_in(call, refresh, master)->data + (master_at(c.segment) + at), low_copy,
                         (mezzo_dtype)c.segment->low_copy_dtype, n);
    }
}

static mezzo_status run_refresh(mezzo_device *device, const mz_call *call) {
    for_chunks(device, call, mz_in(call, refresh, segments), 0.3, refresh_chunk, NULL);
    return MEZZO_OK;
}

// Refuses other formats: masters are FP32, gradients FP32, BF16 or FP16, and a kind's moments are all FP32, all BF16 or
// all in 8 bits.
static const char *update_refuses(const mezzo_device *device, const mz_call *call) {
    (void)device;
    const bool is_kind = mz_op_is_kind(call->op), both = is_kind && mz_present(&call->out[M + 1]);
    for (int i = 0; i < call->n_in; i++)
        if (mz_present(&call->in[i]) && call->in[i].dtype != MEZZO_F32 && call->in[i].dtype != MEZZO_U8 &&
            !(is_kind && i == MZ_IN(adamw, grad) &&
              (call->in[i].dtype == MEZZO_BF16 || call->in[i].dtype == MEZZO_F16)))
            return "the update reads fp32 buffers and u8 blocks";
    for (int i = 0; i < call->n_out; i++) {
        const bool is_moment = is_kind && (i == M || i == M + 1);
        if (mz_present(&call->out[i]) && call->out[i].dtype != MEZZO_F32 && call->out[i].dtype != MEZZO_U8 &&
            !(is_moment && call->out[i].dtype == MEZZO_BF16))
            return "the update writes fp32 buffers and u8 blocks";
    }
    if (both && call->out[M].dtype != call->out[M + 1].dtype)
        return "its moments are not stored alike";
    return NULL;
}

MZ_CPU_KERNEL(grad_stats, NULL, NULL, grad_stats_workspace, update_refuses)
#define KIND(name, ...) MZ_CPU_KERNEL(name, NULL, NULL, NULL, update_refuses)
#include "mezzo/optimizers.def"
MZ_CPU_KERNEL(refresh, NULL, NULL, NULL, update_refuses)
