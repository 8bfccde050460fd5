// Cases of the ops on images: convolution, group norm, resampling, noise, times.
#include <math.h>

#include "cases.h"
#include "test.h"

// --- convolution ---------------------------------------------------------------------------------------------------
typedef struct convolution {
    int64_t b, h, w, c, n, r, s;
    int stride, before, after, groups;
} convolution;

static const convolution convolutions[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1},    {1, 3, 4, 2, 3, 3, 3, 1, 1, 1, 1},     {2, 5, 7, 3, 5, 3, 3, 1, 1, 1, 1},
    {1, 9, 6, 4, 6, 3, 3, 2, 1, 1, 1},    {1, 8, 8, 5, 4, 3, 3, 2, 0, 1, 1},     {2, 6, 5, 7, 9, 1, 1, 1, 0, 0, 1},
    {1, 6, 5, 8, 3, 1, 1, 2, 0, 0, 1},    {1, 11, 10, 1, 4, 7, 7, 1, 3, 3, 1},   {1, 8, 6, 3, 4, 4, 4, 2, 1, 1, 1},
    {2, 5, 4, 6, 9, 3, 2, 1, 1, 0, 3},    {1, 5, 5, 8, 8, 3, 3, 1, 1, 1, 8},     {1, 17, 3, 33, 35, 3, 3, 1, 1, 1, 1},
    {1, 4, 4, 130, 70, 3, 3, 1, 1, 1, 1}, {2, 12, 12, 16, 40, 3, 3, 1, 1, 1, 1}, {1, 2, 2, 3, 4, 5, 5, 3, 4, 4, 1},
    {3, 6, 6, 64, 32, 1, 1, 1, 0, 0, 2},  {1, 13, 11, 64, 64, 3, 3, 2, 1, 1, 1}, {2, 7, 9, 8, 24, 3, 3, 1, 1, 1, 1},
    {1, 21, 30, 6, 5, 3, 3, 1, 1, 1, 1}, // more pixels than a thread takes at a time
    {2, 6, 8, 3, 5, 2, 2, 2, 0, 0, 1},    {1, 8, 4, 8, 16, 4, 4, 4, 0, 0, 1},    {2, 7, 6, 8, 4, 2, 2, 2, 0, 0, 1},
};
static const convolution large_one = {2, 16, 16, 64, 72, 3, 3, 1, 1, 1, 1}; // that some kernels ask for
static const struct {
    mezzo_dtype storage, compute;
} arithmetics[] = {{MEZZO_F32, MEZZO_F32}, {MEZZO_F32, MEZZO_TF32}, {MEZZO_BF16, MEZZO_BF16}, {MEZZO_F16, MEZZO_F16}};
enum { FP32, TF32, BF16, FP16 };

static mz_shape image_of(const convolution *v) {
    return SHAPE(v->b, v->h, v->w, v->c);
}
static mz_shape weight_of(const convolution *v) {
    return SHAPE(v->n, v->r, v->s, v->c / v->groups);
}
static mz_shape result_of(const convolution *v) {
    const int64_t pads = v->before + v->after;
    return SHAPE(v->b, (v->h + pads - v->r) / v->stride + 1, (v->w + pads - v->s) / v->stride + 1, v->n);
}

static trial *conv_trial(mz_op op, const convolution *v, int arithmetic) {
    trial *t = trial_new(op);
    t->numerics.compute = arithmetics[arithmetic].compute;
    t->optional = arithmetic == TF32;
    t->attrs.stride = v->stride;
    t->attrs.pad_before = v->before;
    t->attrs.pad_after = v->after;
    t->attrs.groups = v->groups;
    t->attrs.via = arithmetics[arithmetic].storage;
    // A term may meet padding alone, and what TF32 may cut off hides a small mistake.
    t->skip_mutations = v->c * v->r * v->s > 16 || arithmetic == TF32 || v->stride > v->r;
    t->skip_terms = true;
    return t;
}

static void fill(trial *t, bool integers) {
    for (int i = 0; i < t->n_in; i++)
        if (mz_present(&t->in[i].t)) {
            if (integers)
                trial_integers(t, i, -1, 1);
            else
                trial_normal(t, i, 1);
        }
}

static void conv2d(const convolution *v, int arithmetic, bool bias, int spoiled) {
    const mezzo_dtype dtype = arithmetics[arithmetic].storage;
    trial *t = conv_trial(MZ_OP_conv2d, v, arithmetic);
    trial_input(t, 0, dtype, image_of(v));
    trial_input(t, 1, dtype, weight_of(v));
    if (bias)
        trial_input(t, 2, dtype, SHAPE(v->n));
    trial_output(t, 0, dtype, result_of(v));
    fill(t, false);
    if (spoiled >= 0)
        trial_spoil(t, spoiled);
    trial_finish(t);
}

void cases_conv2d(void) {
    for (size_t i = 0; i < MZ_COUNT(convolutions); i++)
        for (int a = 0; a < (int)MZ_COUNT(arithmetics); a++)
            conv2d(&convolutions[i], a, (i + (size_t)a) % 2 == 0, -1);
    conv2d(&convolutions[2], FP32, true, 0);
    // Small integers: every order of summing gives the same bits.
    for (int a = 0; a < (int)MZ_COUNT(arithmetics); a++) {
        const convolution *v = &convolutions[2];
        trial *t = conv_trial(MZ_OP_conv2d, v, a);
        trial_input(t, 0, arithmetics[a].storage, image_of(v));
        trial_input(t, 1, arithmetics[a].storage, weight_of(v));
        trial_output(t, 0, arithmetics[a].storage, result_of(v));
        fill(t, true);
        t->exact = true;
        trial_finish(t);
    }
}

void cases_conv2d_dx(void) {
    for (size_t i = 0; i < MZ_COUNT(convolutions); i++)
        for (int a = 0; a < (int)MZ_COUNT(arithmetics); a++) {
            const convolution *v = &convolutions[i];
            trial *t = conv_trial(MZ_OP_conv2d_dx, v, a);
            trial_input(t, 0, arithmetics[a].storage, result_of(v));
            trial_input(t, 1, arithmetics[a].storage, weight_of(v));
            trial_output(t, 0, arithmetics[a].storage, image_of(v));
            fill(t, false);
            if (i == 2 && a == FP32)
                trial_spoil(t, 0);
            trial_finish(t);
        }
}

static void conv2d_dw(const convolution *v, int arithmetic, bool bias, bool accumulate) {
    trial *t = conv_trial(MZ_OP_conv2d_dw, v, arithmetic);
    t->attrs.accumulate = accumulate;
    trial_input(t, 0, arithmetics[arithmetic].storage, result_of(v));
    trial_input(t, 1, arithmetics[arithmetic].storage, image_of(v));
    trial_output(t, 0, MEZZO_F32, weight_of(v));
    if (bias)
        trial_output(t, 1, MEZZO_F32, SHAPE(v->n));
    for (int i = 0; accumulate && i < (bias ? 2 : 1); i++)
        trial_preset(t, i, 1);
    fill(t, false);
    trial_finish(t);
}

void cases_conv2d_dw(void) {
    for (size_t i = 0; i < MZ_COUNT(convolutions); i++)
        for (int a = 0; a < (int)MZ_COUNT(arithmetics); a++) {
            conv2d_dw(&convolutions[i], a, i % 2 == 0, false);
            if (i % 3 == 0)
                conv2d_dw(&convolutions[i], a, i % 2 == 0, true);
        }
    conv2d_dw(&large_one, BF16, true, true);
    conv2d_dw(&large_one, FP16, false, false);
    const convolution tiles = {1, 9, 10, 40, 136, 3, 3, 2, 1, 1, 1};   // more than 128 each of rows and columns
    const convolution ranges = {4, 24, 24, 32, 40, 3, 3, 1, 1, 1, 1};  // pixels enough to be divided
    const convolution chunks = {3, 362, 362, 32, 1, 1, 2, 1, 0, 0, 1}; // images of 16 MiB in FP32
    trial *t = conv_trial(MZ_OP_conv2d_dw, &chunks, FP32);
    trial_input(t, 0, MEZZO_F32, result_of(&chunks));
    trial_input(t, 1, MEZZO_F32, image_of(&chunks));
    trial_output(t, 0, MEZZO_F32, weight_of(&chunks));
    fill(t, true); // a bound for so many terms would hide an image that is missing
    t->exact = true;
    trial_finish(t);
    for (int a = BF16; a <= FP16; a++) {
        conv2d_dw(&tiles, a, a == BF16, a == FP16);
        conv2d_dw(&ranges, a, a == FP16, a == BF16);
    }
}

// --- group norm ----------------------------------------------------------------------------------------------------
static const int64_t norm_shapes[][5] = {
    {1, 1, 1, 2, 1},    {2, 3, 5, 6, 3}, {1, 4, 4, 32, 8},    {3, 7, 3, 33, 11},  {2, 9, 8, 64, 32},
    {1, 5, 13, 130, 2}, {2, 2, 3, 7, 7}, {2, 21, 23, 80, 20}, {1, 3, 3, 1032, 3},
};

typedef struct norm_form {
    mezzo_dtype x, y;
    bool affine, film, silu;
} norm_form;
static const norm_form norm_forms[] = {
    {MEZZO_F32, MEZZO_F32, true, true, true},    {MEZZO_F32, MEZZO_F32, true, false, true},
    {MEZZO_F32, MEZZO_F32, false, false, false}, {MEZZO_BF16, MEZZO_BF16, true, true, true},
    {MEZZO_F16, MEZZO_F16, true, true, false},   {MEZZO_BF16, MEZZO_F32, true, false, false},
    {MEZZO_F32, MEZZO_BF16, false, true, true},
};

static void norm_inputs(trial *t, const int64_t s[5], const norm_form *f, int slot) {
    if (f->affine)
        for (int i = 0; i < 2; i++) {
            trial_input(t, slot + i, MEZZO_F32, SHAPE(s[3]));
            trial_normal(t, slot + i, 1);
        }
    if (f->film) {
        trial_input(t, slot + 2, f->x, SHAPE(s[0], 2 * s[3]));
        trial_normal(t, slot + 2, 0.5);
    }
    t->attrs.groups = (int)s[4];
    t->attrs.eps = 1e-5f;
    t->attrs.act = f->silu ? MZ_ACT_SILU : MZ_ACT_NONE;
    t->skip_terms = true;
    t->skip_mutations = s[1] * s[2] * s[3] / s[4] < 4;
}

static trial *group_norm_trial(const int64_t s[5], const norm_form *f, double offset) {
    trial *t = trial_new(MZ_OP_group_norm);
    t->optional = s[3] % 8 != 0; // a device may compose it
    trial_input(t, 0, f->x, SHAPE(s[0], s[1], s[2], s[3]));
    trial_normal(t, 0, 1);
    for (int64_t i = 0; i < trial_count(&t->in[0]); i++)
        t->in[0].value[i] += offset;
    trial_store(&t->in[0]);
    norm_inputs(t, s, f, 1);
    trial_output(t, 0, f->y, SHAPE(s[0], s[1], s[2], s[3]));
    for (int i = 1; i < 3; i++)
        trial_output(t, i, MEZZO_F32, SHAPE(s[0], s[4]));
    return t;
}

void cases_group_norm(void) {
    for (size_t s = 0; s < MZ_COUNT(norm_shapes); s++)
        for (size_t f = 0; f < MZ_COUNT(norm_forms); f++)
            trial_finish(group_norm_trial(norm_shapes[s], &norm_forms[f], 0.5));
    // Far from zero: a variance taken as a difference of squares would lose every digit.
    trial *t = group_norm_trial(norm_shapes[4], &norm_forms[2], 3000);
    t->skip_mutations = true;
    trial_finish(t);
    t = group_norm_trial(norm_shapes[1], &norm_forms[0], 0);
    trial_spoil(t, 0);
    t->skip_mutations = true;
    trial_finish(t);
}

static void group_norm_bwd(const int64_t s[5], const norm_form *f, bool accumulate) {
    trial *forward = group_norm_trial(s, &(norm_form){.x = f->x, .y = MEZZO_F32}, 0.5);
    trial *t = trial_new(MZ_OP_group_norm_bwd);
    t->optional = forward->optional;
    trial_reference(forward);
    t->attrs.accumulate = accumulate;
    trial_input(t, 0, f->y, SHAPE(s[0], s[1], s[2], s[3]));
    trial_normal(t, 0, 1);
    trial_input(t, 1, f->x, SHAPE(s[0], s[1], s[2], s[3]));
    memcpy(t->in[1].value, forward->in[0].value, (size_t)trial_count(&t->in[1]) * sizeof(double));
    trial_store(&t->in[1]);
    norm_inputs(t, s, f, 2);
    for (int i = 0; i < 2; i++) {
        trial_input(t, 5 + i, MEZZO_F32, SHAPE(s[0], s[4]));
        memcpy(t->in[5 + i].value, forward->out[1 + i].value, (size_t)(s[0] * s[4]) * sizeof(double));
        trial_store(&t->in[5 + i]);
    }
    trial_output(t, 0, f->x, SHAPE(s[0], s[1], s[2], s[3]));
    if (f->film)
        trial_output(t, 1, f->x, SHAPE(s[0], 2 * s[3]));
    for (int i = 2; f->affine && i < 4; i++) {
        trial_output(t, i, MEZZO_F32, SHAPE(s[3]));
        if (accumulate)
            trial_preset(t, i, 1);
    }
    trial_finish(t);
    trial_free(forward);
}

void cases_group_norm_bwd(void) {
    for (size_t s = 0; s < MZ_COUNT(norm_shapes); s++)
        for (size_t f = 0; f < MZ_COUNT(norm_forms); f++)
            group_norm_bwd(norm_shapes[s], &norm_forms[f], (s + f) % 2 == 0);
    const int64_t many_pixels[5] = {1, 24, 24, 1032, 3}; // that some kernels read in turns
    group_norm_bwd(many_pixels, &norm_forms[3], true);
}

// --- resampling ----------------------------------------------------------------------------------------------------
static void resampling(mz_op op, mz_shape small, int factor, mezzo_dtype dtype, float alpha) {
    mz_shape large = SHAPE(small.dim[0], small.dim[1] * factor, small.dim[2] * factor, small.dim[3]);
    trial *t = trial_new(op);
    t->attrs.factor = factor;
    t->attrs.alpha = alpha;
    trial_input(t, 0, dtype, op == MZ_OP_pool ? large : small);
    trial_output(t, 0, dtype, op == MZ_OP_pool ? small : large);
    trial_normal(t, 0, 1);
    trial_finish(t);
}

static void each_resampling(mz_op op) {
    for (int d = 0; d < FLOATS; d++) {
        resampling(op, SHAPE(1, 1, 1, 1), 2, floats[d], 1);
        resampling(op, SHAPE(2, 3, 5, 7), 2, floats[d], 1);
        resampling(op, SHAPE(1, 4, 3, 64), 2, floats[d], 0.25f);
        resampling(op, SHAPE(3, 2, 2, 5), 3, floats[d], 0.5f);
        resampling(op, SHAPE(1, 2, 3, 530), 1, floats[d], 2);
    }
}

void cases_upsample(void) {
    each_resampling(MZ_OP_upsample);
}

void cases_pool(void) {
    each_resampling(MZ_OP_pool);
}

static const struct windows {
    mz_shape shape;
    int axis, size, stride, step, before, after;
} windows[] = {{{1, {1}}, 0, 1, 1, 1, 0, 0},          {{4, {2, 7, 5, 8}}, 1, 3, 2, 1, 1, 1},
               {{4, {2, 7, 5, 8}}, 2, 3, 2, 1, 1, 1}, {{3, {3, 9, 13}}, 1, 2, 2, 1, 0, 0},
               {{2, {5, 17}}, 1, 4, 3, 2, 3, 2},      {{3, {2, 6, 530}}, 1, 5, 1, 1, 4, 4},
               {{3, {4, 3, 2}}, 0, 2, 5, 3, 3, 1}};

static trial *max_pool_trial(mz_op op, const struct windows *w) {
    trial *t = trial_new(op);
    t->attrs = (mz_attrs){.axis = w->axis,
                          .factor = w->size,
                          .stride = w->stride,
                          .step = w->step,
                          .pad_before = w->before,
                          .pad_after = w->after};
    return t;
}

static mz_shape pooled(const struct windows *w) {
    mz_shape y = w->shape;
    y.dim[w->axis] = (y.dim[w->axis] + w->before + w->after - (w->size - 1) * w->step - 1) / w->stride + 1;
    return y;
}

static void max_pool(const struct windows *w, mezzo_dtype dtype, bool spoiled) {
    trial *t = max_pool_trial(MZ_OP_max_pool, w);
    trial_input(t, 0, dtype, w->shape);
    trial_output(t, 0, dtype, pooled(w));
    trial_normal(t, 0, 1);
    if (spoiled)
        trial_spoil(t, 0);
    t->skip_terms = true;
    trial_finish(t);
}

void cases_max_pool(void) {
    for (size_t i = 0; i < MZ_COUNT(windows); i++)
        for (int d = 0; d < FLOATS; d++)
            max_pool(&windows[i], floats[d], false);
    max_pool(&windows[1], MEZZO_F32, true);
}

// x has few numbers, so that windows have equals, of which the first gets dy.
void cases_max_pool_dx(void) {
    for (size_t i = 0; i < MZ_COUNT(windows); i++)
        for (int d = 0; d < FLOATS; d++) {
            const struct windows *w = &windows[i];
            trial *of = max_pool_trial(MZ_OP_max_pool, w), *t = max_pool_trial(MZ_OP_max_pool_dx, w);
            trial_input(of, 0, floats[d], w->shape);
            trial_output(of, 0, floats[d], pooled(w));
            trial_integers(of, 0, 1, 3);
            trial_reference(of);
            trial_input(t, 0, floats[d], pooled(w));
            trial_input(t, 1, floats[d], w->shape);
            trial_input(t, 2, floats[d], pooled(w));
            trial_output(t, 0, floats[d], w->shape);
            trial_normal(t, 0, 1);
            memcpy(t->in[1].value, of->in[0].value, (size_t)trial_count(&t->in[1]) * sizeof(double));
            memcpy(t->in[2].value, of->out[0].value, (size_t)trial_count(&t->in[2]) * sizeof(double));
            trial_store(&t->in[1]);
            trial_store(&t->in[2]);
            t->skip_mutations = true; // equals hide a term
            trial_finish(t);
            trial_free(of);
        }
}

// --- noise and times -----------------------------------------------------------------------------------------------
void cases_normal(void) {
    static const mz_shape shapes[] = {{1, {1}}, {2, {3, 5}}, {4, {2, 7, 9, 3}}, {3, {2, 64, 64}}};
    for (size_t s = 0; s < MZ_COUNT(shapes); s++) {
        trial *t = trial_new(MZ_OP_normal);
        trial_input(t, 0, MEZZO_I32, SHAPE(shapes[s].dim[0], 2));
        trial_output(t, 0, MEZZO_F32, shapes[s]);
        trial_integers(t, 0, -1000000, 1000000);
        t->skip_mutations = true;
        trial_finish(t);
    }
}

void cases_time_embedding(void) {
    static const int64_t shapes[][2] = {{1, 2}, {3, 6}, {17, 64}, {5, 130}};
    for (size_t s = 0; s < MZ_COUNT(shapes); s++) {
        trial *t = trial_new(MZ_OP_time_embedding);
        t->attrs.alpha = s % 2 ? 1000 : 3;
        t->attrs.theta = 10000;
        trial_input(t, 0, MEZZO_F32, SHAPE(shapes[s][0]));
        trial_output(t, 0, MEZZO_F32, SHAPE(shapes[s][0], shapes[s][1]));
        for (int64_t i = 0; i < shapes[s][0]; i++)
            t->in[0].value[i] = (double)(i + 1) / (double)shapes[s][0];
        trial_store(&t->in[0]);
        t->skip_mutations = true;
        trial_finish(t);
    }
}
