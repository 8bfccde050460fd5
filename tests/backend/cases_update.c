// Cases of the update: gradients' statistics, the step's decisions, optimizers, low copies and the loss scale.
#include <math.h>

#include "backend/update.h"
#include "base/dynamic8.h"
#include "cases.h"
#include "backend/inspect.h"
#include "optim/kinds.h"
#include "test.h"

// Five parameters; the optimizer under test owns all but the third. Offsets are multiples of 16, the moments lie in
// another order, low copies are BF16, FP16 or none; the fourth one's gradient lies where the third one's would.
enum { FLAT = 16 + 4144 + 48 + 32 + 70016, STATES = 293 * 256, LOW_COPY_BYTES = 2 * FLAT };
static const mz_segment segments[] = {
    {0, 0, 0, 0, 5, 70016 + 4144, 0, MEZZO_BF16, 0, 0, MEZZO_MASTER_FP32, 3, {0}},
    {16, 0, 0, 0, 4129, 70016, 64, MEZZO_F16, 1, 0, MEZZO_MASTER_FP32, 3, {0}},
    {16 + 4144 + 48, 48, 32, 0, 17, 70016 + 4144 + 16, MZ_NO_LOW_COPY, MEZZO_BF16, 1, 0, MEZZO_MASTER_FP32, 3, {0}},
    {16 + 4144 + 48 + 32, 0, 0, 0, 70001, 0, 8448, MEZZO_BF16, 1, 0, MEZZO_MASTER_FP32, 3, {0}},
};

static void segments_input(trial *t, int slot) {
    trial_input(t, slot, MEZZO_U8, SHAPE(sizeof segments));
    trial_bytes(t, slot, segments, false);
}

static void state_tensor(trial *t, int slot, bool output, const mz_opt_state *state) {
    if (output)
        trial_output(t, slot, MEZZO_U8, SHAPE(sizeof *state));
    else
        trial_input(t, slot, MEZZO_U8, SHAPE(sizeof *state));
    trial_bytes(t, slot, state, output);
}

// Equal, or a few roundings apart: the order of operations is prescribed, contraction into fused operations is not.
static bool near(double got, double want) {
    return got == want || (isnan(got) && isnan(want)) || fabs(got - want) <= 8 * 0x1p-53 * fabs(want);
}

static const char *compare_state(const trial *t, int slot, unsigned char *const *got, const unsigned char *want) {
    (void)t;
    mz_opt_state a, b;
    memcpy(&a, got[slot], sizeof a);
    memcpy(&b, want, sizeof b);
    if (a.step != b.step || a.skipped != b.skipped)
        return "step or skipped differs";
    if (a.found_inf != b.found_inf || a.skip != b.skip || a.last_found_inf != b.last_found_inf)
        return "found_inf or skip differs";
    if (a.guard != b.guard || a.bad != b.bad || a.halted != b.halted)
        return "bad or halted differs";
    if (a.scale != b.scale)
        return "scale differs";
    // All terms are positive: n of them in any order within a chunk, then the chunks, are off by at most (n + chunks)
    // roundings.
    bool both_spoiled = !isfinite(a.norm) && !isfinite(b.norm); // infinity or NaN, by the order they were met in
    if (!both_spoiled && fabs(a.norm - b.norm) > (4096 + FLAT / 4096) * 0x1p-53 * b.norm)
        return "norm differs";
    if (!near(a.clip, b.clip) || !near(a.last_clip, b.last_clip))
        return "clip differs";
    if (!near(a.lr, b.lr) || !near(a.bias[0][0], b.bias[0][0]) || !near(a.bias[0][1], b.bias[0][1]) ||
        !near(a.bias[2][1], b.bias[2][1]))
        return "lr or a bias correction differs";
    return NULL;
}

static void stats_case(double scale, double spoiled, int64_t at, bool keeps) {
    trial *t = trial_new(MZ_OP_grad_stats);
    mz_opt_state state = {.step = 4, .clip = 1, .norm = -1, .scale = 5};
    t->update.keeps_scale = keeps;
    segments_input(t, 0);
    if (scale != 0) {
        trial_input(t, 1, MEZZO_F32, SHAPE(1));
        t->in[1].value[0] = scale;
        trial_store(&t->in[1]);
    }
    trial_output(t, 0, MEZZO_F32, SHAPE(FLAT));
    trial_preset(t, 0, 1);
    if (spoiled != 0) {
        t->out[0].value[at] = spoiled;
        trial_store(&t->out[0]);
    }
    state_tensor(t, 1, true, &state);
    t->exact = true; // one FP32 product, or none
    t->compare_bytes = compare_state;
    trial_finish(t);
}

void cases_grad_stats(void) {
    static const struct {
        double scale; // 0: no scale tensor
        double spoiled;
        int64_t at; // flat index of the spoiled gradient
    } rows[] = {{0, 0, 0},
                {1, 0, 0},
                {1024, 0, 0},
                {3, 0, 0},
                {65536, INFINITY, 20},
                {0, NAN, 70016 + 9},
                {2, -INFINITY, 4},
                {0x1p-140, 0, 0},
                {8, NAN, 16 + 4144 + 48 + 7}}; // a gradient that this optimizer does not own: not seen, not touched
    for (size_t i = 0; i < 2 * MZ_COUNT(rows); i++) {
        bool keeps = i >= MZ_COUNT(rows);
        stats_case(rows[i % MZ_COUNT(rows)].scale, rows[i % MZ_COUNT(rows)].spoiled, rows[i % MZ_COUNT(rows)].at,
                   keeps);
    }
}

static void bytes_input(trial *t, int slot, const void *bytes, size_t n) {
    trial_input(t, slot, MEZZO_U8, SHAPE((int64_t)n));
    trial_bytes(t, slot, bytes, false);
}

// Sums of squares by place, with and without other ranks' states: a bad bit of any is everybody's.
static void norm_across_ranks_case(int ranks, double spoiled) {
    enum { PIECES = 5000, MOST_RANKS = 3 };
    trial *t = trial_new(MZ_OP_norm_across_ranks);
    static double pieces[PIECES];
    mz_opt_state state = {.step = 4, .clip = 1, .bad = MZ_BAD_LOSS}, states[MOST_RANKS] = {{0}};
    for (int i = 0; i < PIECES; i++)
        pieces[i] = i % 7 == 0 ? 0 : 1 + (double)(i % 13) / 3;
    if (spoiled != 0)
        pieces[77] = spoiled;
    for (int r = 0; r < ranks; r++)
        states[r] = (mz_opt_state){.bad = r == 1 ? MZ_BAD_BATCH : 0, .clip = 1};
    bytes_input(t, 0, pieces, sizeof pieces);
    if (ranks > 0)
        bytes_input(t, 1, states, (size_t)ranks * sizeof *states);
    state_tensor(t, 0, true, &state);
    t->compare_bytes = compare_state;
    trial_finish(t);
}

void cases_norm_across_ranks(void) {
    norm_across_ranks_case(0, 0);
    norm_across_ranks_case(2, 0);
    norm_across_ranks_case(3, INFINITY);
    norm_across_ranks_case(3, NAN);
}

static void state_case(mz_op op, const mz_update_attrs *update, const mz_opt_state *state) {
    trial *t = trial_new(op);
    t->update = *update;
    state_tensor(t, 0, true, state);
    t->compare_bytes = compare_state;
    trial_finish(t);
}

void cases_clip_control(void) {
    const mz_update_attrs update = {.max_norm = 1.5};
    const double norms[] = {0, 0.3, 1.5, 1.6, 1e30, INFINITY, NAN};
    for (size_t i = 0; i < MZ_COUNT(norms); i++) {
        state_case(MZ_OP_clip_control, &update, &(mz_opt_state){.norm = norms[i], .clip = 1});
        state_case(MZ_OP_clip_control, &update, &(mz_opt_state){.norm = norms[i], .clip = 0.25});
    }
}

void cases_step_control(void) {
    for (int schedule = 0; schedule < 4; schedule++)
        for (int64_t step = 0; step < 40; step += 3)
            for (int found = 0; found < 2; found++) {
                const mz_update_attrs update = {.n_groups = 3,
                                                .betas = {{0.9, 0.999}, {0.5, 0}, {0.95, 0.99}},
                                                .schedule = schedule,
                                                .lr = 3e-4,
                                                .min_lr = 1e-5,
                                                .power = 1.5,
                                                .warmup = 5,
                                                .steps = 30};
                state_case(
                    MZ_OP_step_control, &update,
                    &(mz_opt_state){.step = step, .skipped = 2, .norm = 3, .clip = 0.5, .lr = 1, .found_inf = found});
            }
    // The guard: off, on, with gradients; nothing bad, something bad, halted since a step before.
    const mz_update_attrs update = {.n_groups = 1, .betas = {{0.9, 0.999}}, .lr = 3e-4};
    for (int guard = 0; guard < 4; guard++)
        for (int bad = 0; bad < 2; bad++)
            for (int halted = 0; halted < 2; halted++)
                for (int found = 0; found < 2; found++)
                    state_case(MZ_OP_step_control, &update,
                               &(mz_opt_state){.step = 5,
                                               .clip = 0.5,
                                               .found_inf = found,
                                               .guard = guard,
                                               .bad = bad * (MZ_BAD_LOSS | MZ_BAD_ACTIVATION),
                                               .halted = halted * MZ_BAD_BATCH});
}

// Counts and ranges are the reference's exactly, of every format, of all values and of samples, whatever spoils them.
static void inspect_case(mezzo_dtype dtype, int64_t sample, float limit, bool spoilt, bool with_state) {
    static const int64_t counts[] = {1, 31, 33, 4096, 70001};
    trial *t = trial_new(MZ_OP_inspect);
    t->attrs.sample = sample;
    t->attrs.limit = limit;
    t->attrs.bad_first = MZ_BAD_LOSS;
    t->attrs.bad_rest = MZ_BAD_ACTIVATION;
    for (int i = 0; i < (int)MZ_COUNT(counts); i++) {
        trial_input(t, i, dtype, SHAPE(counts[i]));
        trial_normal(t, i, i == 2 ? 3e-5 : 2);
        int64_t n = counts[i];
        double *x = t->in[i].value;
        if (n > 40) // the first and last of a value, zeros of both signs
            x[0] = 0, x[1] = -0.0, x[n - 1] = 0x1p-14, x[n - 2] = 0x1p-15;
        if (spoilt && i > 2)
            x[n / 2] = NAN, x[n / 3] = -INFINITY, x[n / 4] = INFINITY;
        if (spoilt && i == 0)
            x[0] = NAN;
        trial_store(&t->in[i]);
    }
    mz_inspection empty[MZ_COUNT(counts)] = {{0}};
    trial_output(t, 0, MEZZO_U8, SHAPE(sizeof empty));
    trial_bytes(t, 0, empty, true);
    if (with_state)
        state_tensor(t, 1, true, &(mz_opt_state){.step = 1, .bad = MZ_BAD_BATCH});
    trial_finish(t);
}

void cases_inspect(void) {
    for (int f = 0; f < FLOATS; f++)
        for (int spoilt = 0; spoilt < 2; spoilt++) {
            inspect_case(floats[f], 0, 0, spoilt, true);
            inspect_case(floats[f], 0, 3, spoilt, false);
            inspect_case(floats[f], 1024, 0, spoilt, true);
            inspect_case(floats[f], 40, 6, spoilt, true);
        }
}

// A low copy must be the rounding of the master beside it, whatever the last bit of that master is; all other bytes
// stay.
static const char *compare_low_copy(const trial *t, int slot, unsigned char *const *got, const unsigned char *want) {
    if (!mz_present(&t->out[slot].t) || t->out[slot].bytes != LOW_COPY_BYTES)
        return compare_state(t, slot, got, want);
    unsigned char *expected = mz_alloc(LOW_COPY_BYTES, 1);
    assert_non_null(expected);
    memcpy(expected, t->out[slot].stored, LOW_COPY_BYTES);
    const unsigned char *master = t->op == MZ_OP_refresh ? t->in[0].stored : got[0];
    bool moves = t->op == MZ_OP_refresh || !((const mz_opt_state *)(const void *)t->in[2].stored)->skip;
    for (size_t s = 0; s < MZ_COUNT(segments); s++)
        if (moves && segments[s].low_copy_offset != MZ_NO_LOW_COPY)
            assert_int_equal(mezzo_convert(master + segments[s].offset * 4, MEZZO_F32,
                                           expected + segments[s].low_copy_offset,
                                           (mezzo_dtype)segments[s].low_copy_dtype, (size_t)segments[s].count),
                             MEZZO_OK);
    bool same = memcmp(expected, got[slot], LOW_COPY_BYTES) == 0;
    mz_free(expected);
    return same ? NULL : "a shadow is not its master rounded, or bytes outside the shadows were written";
}

static void low_copy_output(trial *t, int slot) {
    trial_output(t, slot, MEZZO_U8, SHAPE(LOW_COPY_BYTES));
    t->out[slot].stored = mz_alloc(LOW_COPY_BYTES, 1);
    assert_non_null(t->out[slot].stored);
    memset(t->out[slot].stored, 0x5A, LOW_COPY_BYTES);
    t->compare_bytes = compare_low_copy;
}

static const mz_opt_state steps[] = {
    {.step = 1, .clip = 0.75, .last_clip = 1, .lr = 1e-2, .bias = {{1 - 0.9, 1 - 0.999}}},
    {.step = 7, .clip = 1, .last_clip = 0.37, .lr = 1e-3, .bias = {{1 - 0.4782969, 1 - 0.993020965034979}}},
    {.step = 7, .last_clip = 0.37, .lr = 1e-3, .bias = {{1 - 0.4782969, 1 - 0.993020965034979}}, .scale = 0.75f},
    {.step = 7, .clip = 1, .lr = 1e-3, .bias = {{0.5, 0.1}}, .skip = 1, .found_inf = 1},
};

static void ema_output(trial *t, int slot) {
    trial_output(t, slot, MEZZO_F32, SHAPE(STATES));
    trial_preset(t, slot, 0.3);
}

// All kinds have the same slots.
enum { M = MZ_OUT(adamw, m), LOW_COPY = MZ_OUT(adamw, low_copy), EMA = MZ_OUT(adamw, ema) };

static const mz_kind *kind_of(mz_op op) {
    int kind = 0;
    while (mz_kinds[kind].op != op)
        kind++;
    return &mz_kinds[kind];
}

static void optimizer_case(mz_op op, const mz_update_rule *rule, const mz_opt_state *state, bool low_copy,
                           mezzo_dtype grad) {
    trial *t = trial_new(op);
    t->update.rule = *rule;
    trial_input(t, 0, grad, SHAPE(FLAT));
    trial_normal(t, 0, 0.3);
    segments_input(t, 1);
    state_tensor(t, 2, false, state);
    trial_output(t, 0, MEZZO_F32, SHAPE(FLAT));
    trial_preset(t, 0, 0.3);
    for (int i = 0; i < kind_of(op)->moments(rule); i++) {
        trial_output(t, M + i, MEZZO_F32, SHAPE(STATES));
        trial_preset(t, M + i, 0.1);
        for (int64_t k = 0; i == 1 && k < STATES; k++) // v is positive
            t->out[M + i].value[k] = fabs(t->out[M + i].value[k]) + 1e-3;
        trial_store(&t->out[M + i]);
    }
    if (low_copy)
        low_copy_output(t, LOW_COPY);
    if (rule->ema > 0)
        ema_output(t, EMA);
    t->exact = state->skip; // nothing is updated
    trial_finish(t);
}

// --- masters kept in other ways ------------------------------------------------------------------------------------
// One segment of each kind, at sizes of which none is a multiple of anything; then the two larger ones change places.
// Master buffer: 16 FP32 numbers, then low halves.
enum { LOW_AT = 64, MASTER_BYTES = LOW_AT + 2 * 70016 };
static const mz_segment mixed[2][3] = {
    {{0, 0, 0, 0, 5, 70016 + 4144, 0, MEZZO_BF16, 0, 0, MEZZO_MASTER_FP32, 3, {0}},
     {16, 0, 0, 0, 4129, 70016, 64, MEZZO_BF16, 1, LOW_AT, MEZZO_MASTER_SPLIT, 0x9E3779B9, {0}},
     {16 + 4144 + 48 + 32, 0, 0, 0, 70001, 0, 8448, MEZZO_BF16, 1, 0, MEZZO_MASTER_STOCHASTIC, 0x12345678, {0}}},
    {{0, 0, 0, 0, 5, 70016 + 4144, 0, MEZZO_BF16, 0, 0, MEZZO_MASTER_FP32, 3, {0}},
     {16, 0, 0, 0, 4129, 70016, 64, MEZZO_BF16, 1, 0, MEZZO_MASTER_STOCHASTIC, 0x12345678, {0}},
     {16 + 4144 + 48 + 32, 0, 0, 0, 70001, 0, 8448, MEZZO_BF16, 1, LOW_AT, MEZZO_MASTER_SPLIT, 0x9E3779B9, {0}}},
};

static float read_master(const mz_segment *s, const unsigned char *master, const unsigned char *low_copy, int64_t i) {
    uint16_t high, low;
    float x;
    if (s->master == MEZZO_MASTER_FP32) {
        memcpy(&x, master + (s->offset + i) * 4, sizeof x);
        return x;
    }
    memcpy(&high, low_copy + s->low_copy_offset + 2 * i, sizeof high);
    if (s->master == MEZZO_MASTER_STOCHASTIC)
        return mezzo_bf16_to_f32(high);
    memcpy(&low, master + s->low_offset + 2 * i, sizeof low);
    return mz_master_join(high, low);
}

// A moment before the step.
static double moment_was(const trial *t, int slot, int64_t at) {
    const unsigned char *stored = t->out[slot].stored;
    if (t->out[slot].t.dtype == MEZZO_U8) {
        float block[MZ_DYNAMIC8_BLOCK];
        const int64_t from = at / MZ_DYNAMIC8_BLOCK * MZ_DYNAMIC8_BLOCK;
        mz_dynamic8_decode(slot == M, stored + mz_dynamic8_bytes(from), MZ_DYNAMIC8_BLOCK, block);
        return (double)block[at - from];
    }
    if (t->out[slot].t.dtype == MEZZO_BF16)
        return (double)mezzo_bf16_to_f32(((const uint16_t *)(const void *)stored)[at]);
    return (double)((const float *)(const void *)stored)[at];
}

// What a step makes of an element, in FP64: the kinds' formulas (optimizers.def), whose own proof is golden/.
typedef struct moved_element {
    double p, m, v;
} moved_element;

#define NUMBER          double
#define C(name)         ((double)k.name)
#define K(name)         (k.name)
#define ADD(a, b)       ((a) + (b))
#define SUB(a, b)       ((a) - (b))
#define MUL(a, b)       ((a) * (b))
#define DIV(a, b)       ((a) / (b))
#define FMA(a, b, c)    ((a) * (b) + (c))
#define SQRT(a)         sqrt(a)
#define SIGN(a)         ((double)(((a) > 0) - ((a) < 0)))
#define KIND(name, ...) KIND_OF(name, __VA_ARGS__)
#define KIND_OF(name, NAME, title, defaults, moments, constants, ...)                                                  \
    static void move_##name(const mz_update_rule *rule, const mz_update_rates *rates, double decay, double g,          \
                            moved_element *x) {                                                                        \
        const mz_##name##_constants k = mz_##name##_constants_of(rule, rates, decay);                                  \
        double p = x->p, m = x->m, v = x->v;                                                                           \
        __VA_ARGS__                                                                                                    \
        *x = (moved_element){p, m, v};                                                                                 \
    }
#include "mezzo/optimizers.def"
#undef KIND

static moved_element moved(const trial *t, const mz_opt_state *state, const mz_segment *s, int64_t i, double p) {
    const mz_update_rule *rule = &t->update.rule;
    const mz_update_rates rates = mz_update_rates_of(state, rule);
    const double inverse = state->scale != 0 ? 1 / (double)state->scale : 1, decay = s->decay ? rule->weight_decay : 0;
    const double g = t->in[0].value[s->offset + i] * inverse * (double)(float)state->last_clip;
    const int64_t at = s->state_offset + i;
    moved_element x = {p, mz_present(&t->out[M].t) ? moment_was(t, M, at) : 0,
                       mz_present(&t->out[M + 1].t) ? moment_was(t, M + 1, at) : 0};
    switch (t->op) {
#define KIND(name, ...)                                                                                                \
    case MZ_OP_##name:                                                                                                 \
        move_##name(rule, &rates, decay, g, &x);                                                                       \
        break;
#include "mezzo/optimizers.def"
#undef KIND
    default:
        break;
    }
    return x;
}

// Whether `is` may be what a number within `error` of `want` is rounded to: rounding by a given number is monotone.
static bool rounded_by(uint32_t random, double want, double error, float is) {
    float low = mezzo_bf16_to_f32(mezzo_f32_to_bf16_stochastic((float)(want - error), random));
    float high = mezzo_bf16_to_f32(mezzo_f32_to_bf16_stochastic((float)(want + error), random));
    bool ordered = low <= high;
    return is >= (ordered ? low : high) && is <= (ordered ? high : low);
}

static const char *judge_master(const trial *t, const mz_opt_state *state, const mz_segment *s, int64_t i, float was,
                                float is) {
    double want = moved(t, state, s, i, (double)was).p,
           error = 8 * 0x1p-24 * (fabs(want) + 1); // NUMERICS.md, the update
    if (s->master != MEZZO_MASTER_STOCHASTIC)
        return fabs((double)is - want) <= error ? NULL : "a master is not what the step makes of it";
    mz_philox_key key = mz_master_key(&t->update, state->step, s);
    uint32_t words[4];
    mz_philox(key, (uint64_t)i / 4, words);
    return rounded_by(words[i % 4], want, error, is) ? NULL : "a weight is not rounded as its random number says";
}

static double halfway(bool signs, int a, int b) {
    if (a < 0 || b > 255)
        return a < 0 ? -INFINITY : INFINITY;
    return ((double)mz_dynamic8_value(signs, (uint8_t)a) + (double)mz_dynamic8_value(signs, (uint8_t)b)) / 2;
}

// Whether a number within `error` of `want` may have this code: the scale is a number of the block, and off as it is.
static bool may_be(bool signs, const unsigned char *record, int64_t i, double want, double error) {
    float scale;
    memcpy(&scale, record, sizeof scale);
    const int code = record[4 + i];
    const double turn = scale < 0 ? -1 : 1, size = fabs((double)scale);
    const double slack = 2 * error + 0x1p-22 * size; // of want, of the scale, and the quotient's rounding
    return turn * want + slack >= size * halfway(signs, code - 1, code) &&
           turn * want - slack <= size * halfway(signs, code, code + 1);
}

// The moments of element i, where they are BF16 or 8 bits.
static const char *judge_moments(const trial *t, const mz_opt_state *state, const mz_segment *s, int64_t i, float was,
                                 unsigned char *const *got) {
    const int64_t at = s->state_offset + i;
    const moved_element x = moved(t, state, s, i, (double)was);
    uint32_t words[4];
    mz_philox(mz_master_key(&t->update, state->step, s), mz_moments_block(i), words);
    for (int k = 0; k < MZ_KIND_MOMENTS && mz_present(&t->out[M + k].t); k++) {
        const double want = k == 0 ? x.m : x.v, error = 8 * 0x1p-24 * (fabs(want) + 1);
        if (t->out[M].t.dtype == MEZZO_U8) {
            const int64_t inside = at % MZ_DYNAMIC8_BLOCK, from = mz_dynamic8_bytes(at - inside);
            if (!may_be(k == 0, got[M + k] + from, inside, want, error))
                return "a moment's code is not the nearest";
            continue;
        }
        const float is = mezzo_bf16_to_f32(((const uint16_t *)(const void *)got[M + k])[at]);
        if (!rounded_by(words[i % 4] << 16 * k, want, error, is))
            return "a moment is not rounded as its random number says";
    }
    return NULL;
}

static const char *compare_mixed(const trial *t, int slot, unsigned char *const *got, const unsigned char *want) {
    mz_opt_state state;
    memcpy(&state, t->in[2].stored, sizeof state);
    if (state.skip)
        return memcmp(got[slot], want, t->out[slot].bytes) == 0 ? NULL : "a skipped step moved something";
    // With decays of 0 the moments are the gradient and its square, rounded once: the same bits everywhere.
    if (t->op == MZ_OP_adamw && t->update.rule.beta1 == 0 && t->out[slot].t.dtype == MEZZO_U8 && slot != LOW_COPY &&
        slot != 0)
        return memcmp(got[slot], want, t->out[slot].bytes) == 0 ? NULL : "moments of 8 bits are not the reference's";
    if (slot != LOW_COPY)
        return NULL; // looked at together with the low copy
    const mz_segment *list = (const mz_segment *)(const void *)t->in[1].stored;
    for (size_t k = 0; k < 3; k++)
        for (int64_t i = 0; i < list[k].count; i++) {
            float was = read_master(&list[k], t->out[0].stored, t->out[LOW_COPY].stored, i);
            float is = read_master(&list[k], got[0], got[LOW_COPY], i);
            uint16_t rounded;
            memcpy(&rounded, got[LOW_COPY] + list[k].low_copy_offset + 2 * i, sizeof rounded);
            const char *wrong = judge_master(t, &state, &list[k], i, was, is);
            if (wrong != NULL)
                return wrong;
            if (mz_present(&t->out[M].t) && t->out[M].t.dtype != MEZZO_F32)
                wrong = judge_moments(t, &state, &list[k], i, was, got);
            if (wrong != NULL)
                return wrong;
            if (list[k].master == MEZZO_MASTER_FP32 && rounded != mezzo_f32_to_bf16(is))
                return "a shadow is not its master rounded";
        }
    return NULL;
}

static void mixed_output(trial *t, int slot, size_t bytes, uint32_t seed) {
    unsigned char *start = mz_alloc(bytes, 1);
    assert_non_null(start);
    for (size_t i = 0; i + 4 <= bytes; i += 4) { // BF16 and FP32 numbers between 2^-3 and 2^2, of both signs
        uint32_t words[4];
        mz_philox((mz_philox_key){.seed = seed}, i, words);
        uint32_t pair = (words[0] & 0x80FF80FFu) | ((words[1] & 0x01800180u) + 0x3E803E80u);
        memcpy(start + i, &pair, sizeof pair);
    }
    trial_output(t, slot, MEZZO_U8, SHAPE((int64_t)bytes));
    trial_bytes(t, slot, start, true);
    mz_free(start);
}

// Moments of 8 bits: each segment's begin at a multiple of a block.
static void eight_bits(trial *t, int slot) {
    float block[MZ_DYNAMIC8_BLOCK];
    const size_t bytes = (size_t)mz_dynamic8_bytes(STATES);
    unsigned char *records = mz_alloc(bytes, 1);
    assert_non_null(records);
    for (int64_t at = 0; at < STATES; at += MZ_DYNAMIC8_BLOCK) {
        for (int i = 0; i < MZ_DYNAMIC8_BLOCK; i++) {
            const float x = (float)sin(0.37 * (double)(at + i)) * ldexpf(0.3F, -(int)((at + 7 * i) % 15));
            block[i] = slot == M ? x : fabsf(x) + 1e-3F;
        }
        mz_dynamic8_encode(slot == M, block, MZ_DYNAMIC8_BLOCK, records + mz_dynamic8_bytes(at));
    }
    trial_output(t, slot, MEZZO_U8, SHAPE((int64_t)bytes));
    trial_bytes(t, slot, records, true);
    mz_free(records);
}

static void mixed_case(mz_op op, const mz_update_rule *rule, const mz_opt_state *state, int table, mezzo_dtype stored) {
    trial *t = trial_new(op);
    const int moments = kind_of(op)->moments(rule);
    t->update.rule = *rule;
    t->update.rule.seed = 11;
    trial_input(t, 0, MEZZO_F32, SHAPE(FLAT));
    trial_normal(t, 0, 0.3);
    mz_segment list[3];
    static const int64_t aligned[] = {70144 + 4352, 70144, 0};
    memcpy(list, mixed[table], sizeof list);
    for (int k = 0; k < 3 && stored == MEZZO_U8; k++)
        list[k].state_offset = aligned[k];
    trial_input(t, 1, MEZZO_U8, SHAPE(sizeof list));
    trial_bytes(t, 1, list, false);
    state_tensor(t, 2, false, state);
    mixed_output(t, 0, MASTER_BYTES, 1);
    for (int slot = 1; slot <= moments; slot++) {
        if (stored == MEZZO_U8) {
            eight_bits(t, slot);
            continue;
        }
        trial_output(t, slot, stored, SHAPE(STATES));
        trial_preset(t, slot, 0.1);
        for (int64_t k = 0; slot == 2 && k < STATES; k++)
            t->out[slot].value[k] = fabs(t->out[slot].value[k]) + 1e-3;
        trial_store(&t->out[slot]);
    }
    mixed_output(t, LOW_COPY, LOW_COPY_BYTES, 2);
    if (rule->ema > 0)
        ema_output(t, EMA);
    t->compare_bytes = compare_mixed;
    t->exact = state->skip;
    t->skip_mutations = true;
    trial_finish(t);
}

static void cases_kind(mz_op op, const mz_update_rule *rule) {
    static const mezzo_dtype stored[] = {MEZZO_F32, MEZZO_BF16, MEZZO_U8};
    for (size_t s = 0; s < MZ_COUNT(steps); s++) {
        optimizer_case(op, rule, &steps[s], true, MEZZO_F32);
        optimizer_case(op, rule, &steps[s], false, MEZZO_F32);
        for (int table = 0; table < 2; table++)
            for (size_t k = 0; k < MZ_COUNT(stored); k++)
                mixed_case(op, rule, &steps[s], table, stored[k]);
        mz_update_rule averages = *rule;
        averages.ema = 0.25; // at step 7 the warm-up is past it
        optimizer_case(op, &averages, &steps[s], s % 2 == 0, MEZZO_F32);
        averages.ema = 0.999;
        mixed_case(op, &averages, &steps[s], 0, stored[s % MZ_COUNT(stored)]);
    }
}

static const mz_update_rule usual = {
    .lr_factor = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .momentum = 0.9};

static void cases_of(mz_op op) {
    cases_kind(op, &usual);
    const mz_update_rule forgets = {.lr_factor = 0.5, .eps = 1e-8, .weight_decay = 0.1, .group = 2};
    for (size_t s = 0; s < MZ_COUNT(steps); s++) {
        mz_opt_state state = steps[s];
        state.bias[2][0] = state.bias[2][1] = 1;
        mixed_case(op, &forgets, &state, 0, MEZZO_U8);
    }
    mz_update_rule applies = usual; // the second pass of a kind that is per matrix
    applies.update_scale = 0.25;
    for (size_t s = 0; s < MZ_COUNT(steps) && kind_of(op)->reads.orthogonal; s++)
        for (int f = 0; f < FLOATS; f++) // of the directions
            optimizer_case(op, &applies, &steps[s], f % 2 == 0, floats[f]);
    for (int variant = 0; variant < 8 && kind_of(op)->reads.momentum; variant++) {
        const mz_update_rule rule = {.lr_factor = 1,
                                     .momentum = variant & 1 ? 0.9 : 0,
                                     .dampening = variant & 2 ? 0.25 : 0,
                                     .nesterov = variant == 5,
                                     .weight_decay = variant & 4 ? 0.01 : 0};
        for (size_t s = 0; s < MZ_COUNT(steps); s++)
            optimizer_case(op, &rule, &steps[s], variant & 2, MEZZO_F32);
    }
}

#define KIND(name, ...)                                                                                                \
    void cases_##name(void) {                                                                                          \
        cases_of(MZ_OP_##name);                                                                                        \
    }
#include "mezzo/optimizers.def"
#undef KIND

// Matrices of one chunk, of several and of parts of one; one of zeros.
static const int64_t stacked[][3] = {{1, 1, 1}, {3, 5, 7}, {2, 64, 160}, {4, 130, 65}, {1, 40, 1000}};

void cases_matrix_normalize(void) {
    for (size_t s = 0; s < MZ_COUNT(stacked); s++)
        for (int f = 0; f < FLOATS; f++)
            for (int zero = 0; zero < 2; zero++) {
                const int64_t *d = stacked[s];
                trial *t = trial_new(MZ_OP_matrix_normalize);
                t->attrs.eps = 1e-7f;
                t->attrs.alpha = 0.75;
                trial_input(t, 0, MEZZO_F32, SHAPE(d[0], d[1], d[2]));
                trial_normal(t, 0, 3);
                for (int64_t i = 0; i < d[1] * d[2] && zero; i++)
                    t->in[0].value[i] = 0;
                trial_store(&t->in[0]);
                trial_output(t, 0, floats[f], SHAPE(d[0], d[1], d[2]));
                t->skip_terms = true;
                trial_finish(t);
            }
}

// With an average from before, and the first one; a skipped step writes nothing.
static void matrix_scale_rows_case(const int64_t *d, bool is_first, bool skips) {
    trial *t = trial_new(MZ_OP_matrix_scale_rows);
    t->attrs.eps = 1e-8f;
    t->attrs.alpha = 7;
    t->attrs.coefficients[0] = 0.95f;
    t->attrs.coefficients[1] = (float)d[2];
    trial_input(t, 0, MEZZO_F32, SHAPE(d[0], d[1], d[2]));
    trial_normal(t, 0, 0.1);
    state_tensor(t, 1, false, &(mz_opt_state){.step = 5, .clip = 1, .skip = skips});
    trial_output(t, 0, MEZZO_F32, SHAPE(d[0], d[1], d[2]));
    trial_output(t, 1, MEZZO_F32, SHAPE(d[0], d[1], 1));
    trial_preset(t, 0, 0.5);
    trial_store(&t->out[0]);
    trial_preset(t, 1, is_first ? 0 : 0.02);
    for (int64_t i = 0; i < trial_count(&t->out[1]); i++)
        t->out[1].value[i] = fabs(t->out[1].value[i]);
    trial_store(&t->out[1]);
    t->skip_terms = true;
    trial_finish(t);
}

void cases_matrix_scale_rows(void) {
    for (size_t s = 0; s < MZ_COUNT(stacked); s++)
        for (int first = 0; first < 2; first++)
            for (int skips = 0; skips < 2; skips++)
                matrix_scale_rows_case(stacked[s], first, skips);
}

void cases_refresh(void) {
    trial *t = trial_new(MZ_OP_refresh);
    trial_input(t, 0, MEZZO_F32, SHAPE(FLAT));
    trial_normal(t, 0, 1);
    segments_input(t, 1);
    low_copy_output(t, 0);
    trial_finish(t);
}

static bool scaler_halted;
static void scaler_case(const mz_update_attrs *update, const mz_scaler_block *block, int found_first,
                        int found_second) {
    trial *t = trial_new(MZ_OP_scaler_update);
    t->update = *update;
    if (block != NULL) {
        trial_input(t, 0, MEZZO_U8, SHAPE(sizeof *block));
        trial_bytes(t, 0, block, false);
    } else {
        t->n_in = 1;
    }
    state_tensor(t, 0, true, &(mz_opt_state){.step = 3, .clip = 0.5, .found_inf = found_first});
    state_tensor(
        t, 1, true,
        &(mz_opt_state){.step = 8, .clip = 0.1, .found_inf = found_second, .halted = scaler_halted ? MZ_BAD_LOSS : 0});
    t->compare_bytes = compare_state;
    trial_finish(t);
}

void cases_scaler_update(void) {
    const mz_update_attrs plain = {.enabled = true, .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 3};
    mz_update_attrs bounded = plain, patient = plain, off = plain;
    bounded.min_scale = 4;
    bounded.max_scale = 1024;
    patient.hysteresis = 3;
    off.enabled = false;
    const mz_update_attrs *updates[] = {&plain, &bounded, &patient, &off};
    const mz_scaler_block blocks[] = {
        {.scale = 256, .tracker = 0},   {.scale = 256, .tracker = 2},
        {.scale = 1024, .tracker = 2},  {.scale = 4, .tracker = 1, .floor_hits = 5},
        {.scale = 5, .tracker = 1},     {.scale = 0x1p127f, .tracker = 2},
        {.scale = 64, .tracker = 9},    {.scale = 64, .hysteresis = 1},
        {.scale = 64, .hysteresis = 2}, {.scale = 64, .tracker = INT32_MAX, .skipped = INT64_C(1) << 40},
    };
    for (size_t u = 0; u < MZ_COUNT(updates); u++)
        for (size_t b = 0; b < MZ_COUNT(blocks); b++)
            for (int found = 0; found < 4; found++)
                scaler_case(updates[u], &blocks[b], found & 1, found >> 1);
    scaler_halted = true; // a halted step leaves the block alone
    for (size_t u = 0; u < MZ_COUNT(updates); u++)
        scaler_case(updates[u], &blocks[1], 1, 0);
    scaler_halted = false;
    scaler_case(&plain, NULL, 1, 0);
}

// Histories of all lengths, magnitudes around powers of two and 1.75 times those, 0 and infinity; of one rank and of
// three.
static void scales_case(int ranks, bool skip) {
    enum { N = 200 };
    static mz_scale_entry entries[N], tables[3 * N];
    static const float magnitudes[] = {0, 1, 1.75F, 1.7500001F, 448, 449, 3e-5F, 57344, 1e-38F, 3e38F, INFINITY};
    trial *t = trial_new(MZ_OP_scales_update);
    for (int i = 0; i < 3 * N; i++) {
        mz_scale_entry *e = &tables[i];
        *e = (mz_scale_entry){.scale = 1, .dtype = i % 2 == 0 ? MEZZO_F8E4M3 : MEZZO_F8E5M2, .n = i % 11};
        memcpy(&e->amax, &magnitudes[i % (int)MZ_COUNT(magnitudes)], sizeof e->amax);
        for (int k = 0; k < MZ_SCALE_HISTORY && k < e->n; k++)
            memcpy(&e->history[k], &magnitudes[(i / 11 + k) % ((int)MZ_COUNT(magnitudes) - 1)], sizeof e->history[k]);
        if (i % 5 == 0) // of codes that stay
            memcpy(&e->weight_amax, &magnitudes[(i / 5) % (int)MZ_COUNT(magnitudes)], sizeof e->weight_amax);
        if (i < N)
            entries[i] = *e;
    }
    state_tensor(t, 0, false, &(mz_opt_state){.step = 3, .clip = 1, .skip = skip});
    if (ranks > 1) {
        trial_input(t, 1, MEZZO_U8, SHAPE(ranks * (int64_t)sizeof entries));
        trial_bytes(t, 1, tables, false);
    }
    trial_output(t, 0, MEZZO_U8, SHAPE(sizeof entries));
    trial_bytes(t, 0, entries, true);
    trial_finish(t);
}

void cases_scales_update(void) {
    scales_case(1, false);
    scales_case(3, false);
    scales_case(1, true);
}

// Numbers of several batches, of which one is not finite; elements that two of the numbers move, and others that none
// does.
static void track_case(int64_t count, int ranks, bool spoiled, int halted) {
    enum { MOST = 3000, BATCHES = 6 };
    static mz_tracked entries[MOST];
    trial *t = trial_new(MZ_OP_track);
    for (int64_t i = 0; i < count; i++) {
        const bool again = count > 20 && i >= count - 7;
        entries[i] = (mz_tracked){again ? -1 : 2 * i, -1, i % 3 == 0 ? 0.9 : (double)0.99F};
        if (again)
            entries[i - 10].next = i;
    }
    trial_input(t, 0, MEZZO_F32, SHAPE(BATCHES, count));
    trial_normal(t, 0, 3);
    if (spoiled) {
        t->in[0].value[2 * count + count / 2] = INFINITY;
        t->in[0].value[5 * count - 1] = NAN;
        trial_store(&t->in[0]);
    }
    bytes_input(t, 1, entries, (size_t)count * sizeof *entries);
    if (halted >= 0)
        state_tensor(t, 2, false, &(mz_opt_state){.step = 3, .clip = 1, .skip = 1, .halted = halted});
    trial_output(t, 0, MEZZO_F32, SHAPE(2 * count));
    trial_preset(t, 0, 2);
    t->attrs.groups = ranks;
    t->exact = t->skip_mutations = true;
    trial_finish(t);
}

void cases_track(void) {
    track_case(3000, 1, false, -1);
    track_case(1025, 2, true, 0);
    track_case(3, 3, true, 0);
    track_case(40, 1, true, MZ_BAD_LOSS);
}
