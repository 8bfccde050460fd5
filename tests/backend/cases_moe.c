// Cases of mixtures of experts.
#include <math.h>

#include "cases.h"
#include "test.h"

// tokens, experts of each, experts, width, inner width; with the last ones some experts have no rows
static const int64_t shapes[][5] = {{1, 1, 1, 3, 5},
                                    {5, 2, 4, 7, 9},
                                    {33, 2, 8, 16, 24},
                                    {64, 3, 8, 65, 50},
                                    {130, 2, 5, 33, 130},
                                    {3, 2, 16, 64, 32},
                                    {9, 1, 40, 20, 17},
                                    {200, 4, 8, 48, 64},
                                    // so many experts that large tiles are many too; sums longer than a pipeline
                                    {150, 2, 140, 264, 16},
                                    {150, 2, 140, 16, 264}};

static void copy_output(trial *t, int slot, const trial *from, int output) {
    const trial_tensor *out = &from->out[output];
    trial_input(t, slot, out->t.dtype, out->t.shape);
    memcpy(t->in[slot].value, out->value, (size_t)trial_count(out) * sizeof(double));
    trial_store(&t->in[slot]);
}

// --- routing -------------------------------------------------------------------------------------------------------
// Logits on a grid: two scores differ by more than any rounding, so that everybody chooses the same experts.
static void fill_logits(trial *t, int slot, int64_t tokens, int64_t experts) {
    for (int64_t m = 0; m < tokens; m++)
        for (int64_t e = 0; e < experts; e++)
            t->in[slot].value[m * experts + e] =
                0.0625 * (double)((e * 13 + m * 7) % 53 - 26) + 0.001 * (double)e; // 13 and 53 have no common divisor
    trial_store(&t->in[slot]);
}

static trial *route_trial(const int64_t s[5], const mz_attrs *attrs, bool bias) {
    trial *t = trial_new(MZ_OP_route);
    t->attrs = *attrs;
    t->attrs.top_k = (int)s[1];
    trial_input(t, 0, MEZZO_F32, SHAPE(s[0], s[2]));
    fill_logits(t, 0, s[0], s[2]);
    if (bias) {
        trial_input(t, 1, MEZZO_F32, SHAPE(s[2]));
        for (int64_t e = 0; e < s[2]; e++)
            t->in[1].value[e] = 0.37 * (double)(e % 3) - 1.2; // what is chosen by may be negative
        trial_store(&t->in[1]);
    }
    trial_output(t, 0, MEZZO_F32, SHAPE(s[0], s[1]));
    trial_output(t, 1, MEZZO_I32, SHAPE(s[0], s[1]));
    // A bias that decides nothing, a lone weight of 1, a logit that a softmax's sum hardly has.
    t->skip_terms = bias || s[1] == 1 || s[0] < 5 || attrs->softmax;
    return t;
}

static const mz_attrs routings[] = {{.groups = 1, .top_groups = 1, .normalise = true, .alpha = 1},
                                    {.groups = 1, .top_groups = 1, .alpha = 2.5f},
                                    {.groups = 1, .top_groups = 1, .normalise = true, .softmax = true, .alpha = 1},
                                    {.groups = 1, .top_groups = 1, .softmax = true, .alpha = 1.5f},
                                    {.groups = 4, .top_groups = 2, .normalise = true, .alpha = 1.5f},
                                    {.groups = 2, .top_groups = 1, .normalise = true, .alpha = 1}};

static bool can_group(const int64_t s[5], const mz_attrs *a) {
    int64_t size = s[2] / a->groups;
    return a->groups == 1 || (s[2] % a->groups == 0 && size >= 2 && s[1] <= size * a->top_groups);
}

void cases_route(void) {
    for (size_t s = 0; s < MZ_COUNT(shapes); s++)
        for (size_t r = 0; r < MZ_COUNT(routings); r++)
            for (int bias = 0; bias < 2 && can_group(shapes[s], &routings[r]); bias++)
                trial_finish(route_trial(shapes[s], &routings[r], bias));
    for (size_t r = 0; r < MZ_COUNT(routings); r++) { // of equals the first: three values, in no order
        trial *t = route_trial(shapes[7], &routings[r], false);
        for (int64_t i = 0; i < shapes[7][0] * shapes[7][2]; i++)
            t->in[0].value[i] = (double)(i * i % 7 % 3);
        trial_store(&t->in[0]);
        t->skip_terms = true; // an expert more or less is as good as another
        trial_finish(t);
    }
    for (size_t r = 0; r < MZ_COUNT(routings); r++) { // a NaN is chosen, and seen
        trial *t = route_trial(shapes[2], &routings[r], false);
        t->in[0].value[3 * shapes[2][2] + 5] = NAN;
        trial_store(&t->in[0]);
        t->finite_only = true;
        trial_finish(t);
    }
}

void cases_route_dx(void) {
    for (size_t s = 0; s < MZ_COUNT(shapes); s++)
        for (int r = 0; r < 4; r++) {
            trial *forward = route_trial(shapes[s], &routings[r], false), *t = trial_new(MZ_OP_route_dx);
            trial_reference(forward);
            t->attrs = forward->attrs;
            trial_input(t, 0, MEZZO_F32, SHAPE(shapes[s][0], shapes[s][1]));
            trial_normal(t, 0, 1);
            trial_input(t, 1, MEZZO_F32, SHAPE(shapes[s][0], shapes[s][2]));
            fill_logits(t, 1, shapes[s][0], shapes[s][2]);
            copy_output(t, 2, forward, 1);
            trial_output(t, 0, MEZZO_F32, SHAPE(shapes[s][0], shapes[s][2]));
            // One expert whose weight is 1 whatever its logit: the gradient is 0, and nothing is left to leave out.
            t->skip_mutations =
                shapes[s][1] == 1 && (routings[r].normalise || (routings[r].softmax && shapes[s][2] == 1));
            t->skip_terms = true; // the largest logits may be nobody's choice
            trial_free(forward);
            trial_finish(t);
        }
}

// --- order ---------------------------------------------------------------------------------------------------------
static trial *order_trial(const int64_t s[5], int low, int high) {
    trial *t = trial_new(MZ_OP_expert_order);
    int64_t rows = s[0] * s[1];
    t->attrs.experts = (int)s[2];
    trial_input(t, 0, MEZZO_I32, SHAPE(s[0], s[1]));
    trial_integers(t, 0, low, high);
    trial_output(t, 0, MEZZO_I32, SHAPE(rows));
    trial_output(t, 1, MEZZO_I32, SHAPE(rows));
    trial_output(t, 2, MEZZO_I32, SHAPE(s[2] + 1));
    t->skip_mutations = true; // integers, compared exactly
    return t;
}

void cases_expert_order(void) {
    for (size_t s = 0; s < MZ_COUNT(shapes); s++) {
        trial_finish(order_trial(shapes[s], 0, (int)shapes[s][2] - 1));
        trial_finish(order_trial(shapes[s], 0, 0));
        trial_finish(order_trial(shapes[s], -3, (int)shapes[s][2] + 3)); // no such expert: the last one
    }
    trial_finish(order_trial((const int64_t[]){2000, 4, 64, 1, 1}, 0, 63));
}

// --- there and back ------------------------------------------------------------------------------------------------
static trial *rearrange_trial(mz_op op, const int64_t s[5], mezzo_dtype x, mezzo_dtype y, bool weights) {
    trial *order = order_trial(s, 0, (int)s[2] - 1), *t = trial_new(op);
    trial_reference(order);
    int64_t rows = s[0] * s[1];
    bool spread = op == MZ_OP_dispatch;
    t->attrs.top_k = (int)s[1];
    trial_input(t, 0, x, SHAPE(spread ? s[0] : rows, s[3]));
    trial_normal(t, 0, 1);
    copy_output(t, 1, order, 0);
    copy_output(t, 2, order, 1);
    if (weights) {
        trial_input(t, 3, MEZZO_F32, SHAPE(s[0], s[1]));
        trial_normal(t, 3, 1);
    }
    trial_output(t, 0, y, SHAPE(spread ? rows : s[0], s[3]));
    trial_free(order);
    return t;
}

static void each_rearrangement(mz_op op) {
    for (size_t s = 0; s < MZ_COUNT(shapes); s++)
        for (int x = 0; x < FLOATS; x++)
            for (int variant = 0; variant < 4; variant++)
                trial_finish(
                    rearrange_trial(op, shapes[s], floats[x], variant & 1 ? MEZZO_F32 : floats[x], variant & 2));
    trial_finish(rearrange_trial(op, shapes[2], MEZZO_F32, MEZZO_BF16, true));
    trial *t = rearrange_trial(op, (const int64_t[]){20, 2, 4, 1030, 1}, MEZZO_F32, MEZZO_F32, true);
    trial_spoil(t, 0);
    trial_finish(t);
}

void cases_dispatch(void) {
    each_rearrangement(MZ_OP_dispatch);
}

// The gradients that meet after a router: the experts', the shared experts' in the low format, the router's in FP32.
static void combine_more(const int64_t s[5], mezzo_dtype x, bool weights, bool both) {
    trial *t = rearrange_trial(MZ_OP_combine, s, x, MEZZO_F32, weights);
    trial_input(t, 4, x, SHAPE(s[0], s[3]));
    trial_normal(t, 4, 2);
    if (both) {
        trial_input(t, 5, MEZZO_F32, SHAPE(s[0], s[3]));
        trial_normal(t, 5, 3);
    }
    trial_finish(t);
}

void cases_combine(void) {
    each_rearrangement(MZ_OP_combine);
    for (size_t s = 0; s < MZ_COUNT(shapes); s++)
        for (int x = 0; x < FLOATS; x++)
            for (int variant = 0; variant < 4; variant++)
                combine_more(shapes[s], floats[x], variant & 1, variant & 2);
}

void cases_combine_dw(void) {
    for (size_t s = 0; s < MZ_COUNT(shapes); s++)
        for (int x = 0; x < FLOATS; x++) {
            trial *order = order_trial(shapes[s], 0, (int)shapes[s][2] - 1), *t = trial_new(MZ_OP_combine_dw);
            trial_reference(order);
            t->attrs.top_k = (int)shapes[s][1];
            trial_input(t, 0, x == 2 ? MEZZO_F32 : floats[x], SHAPE(shapes[s][0], shapes[s][3]));
            trial_input(t, 1, floats[x], SHAPE(shapes[s][0] * shapes[s][1], shapes[s][3]));
            trial_normal(t, 0, 1);
            trial_normal(t, 1, 1);
            copy_output(t, 2, order, 1);
            trial_output(t, 0, MEZZO_F32, SHAPE(shapes[s][0], shapes[s][1]));
            trial_free(order);
            trial_finish(t);
        }
}

// --- the experts' products -----------------------------------------------------------------------------------------
// Takes `order`.
static trial *ordered_trial(mz_op op, trial *order, const int64_t s[5], mezzo_dtype storage, mezzo_dtype compute,
                            bool integers, bool accumulate) {
    trial *t = trial_new(op);
    int64_t rows = s[0] * s[1], n_in = s[3], n_out = s[4];
    bool dw = op == MZ_OP_grouped_linear_dw, dx = op == MZ_OP_grouped_linear_dx;
    trial_reference(order);
    t->numerics.compute = compute;
    t->optional = compute == MEZZO_TF32;
    t->attrs.via = MEZZO_F32;
    t->attrs.accumulate = accumulate;
    trial_input(t, 0, storage, SHAPE(rows, dw || dx ? n_out : n_in));
    trial_input(t, 1, storage, dw ? SHAPE(rows, n_in) : SHAPE(s[2], n_out, n_in));
    for (int i = 0; i < 2; i++) {
        if (integers)
            trial_integers(t, i, -3, 3);
        else
            trial_normal(t, i, 1);
    }
    copy_output(t, 2, order, 2);
    trial_output(t, 0, dw ? MEZZO_F32 : storage, dw ? SHAPE(s[2], n_out, n_in) : SHAPE(rows, dx ? n_in : n_out));
    t->exact = integers;
    t->skip_terms = integers || (s[2] > rows && !dw); // the largest elements may be of an expert without rows
    if (accumulate) {
        trial_preset(t, 0, 2);
        for (int64_t i = 0; integers && i < trial_count(&t->out[0]); i++)
            t->out[0].value[i] = round(t->out[0].value[i]);
        trial_store(&t->out[0]);
    }
    trial_free(order);
    return t;
}

static trial *grouped_trial(mz_op op, const int64_t s[5], mezzo_dtype storage, mezzo_dtype compute, bool integers,
                            bool accumulate) {
    return ordered_trial(op, order_trial(s, 0, (int)s[2] - 1), s, storage, compute, integers, accumulate);
}

// Two thirds of the rows are one expert's, another has none: its sums in dw are as long as several pipelines, and of
// different lengths where several blocks share them.
static trial *busy_trial(mz_op op, mezzo_dtype storage, bool integers, bool accumulate) {
    bool dw = op == MZ_OP_grouped_linear_dw;
    const int64_t s[5] = {dw ? 500 : 900, 1, 8, dw ? 136 : 264, 384};
    trial *order = order_trial(s, 0, 0);
    for (int64_t i = 0; i < s[0]; i++)
        order->in[0].value[i] = i % 3 != 0 ? 2 : (double)(i / 3 % 7);
    trial_store(&order->in[0]);
    return ordered_trial(op, order, s, storage, storage, integers, accumulate);
}

// About one row an expert and sums of 16 terms: what is lost by multiplying FP32 in parts is seen.
static trial *parts_trial(mz_op op, int kind) {
    trial *t = grouped_trial(op, (const int64_t[]){9, 1, 8, 16, 16}, MEZZO_F32, MEZZO_F32, false, false);
    for (int i = 0; i < 2; i++)
        trial_parts(t, i, kind, 1);
    t->skip_mutations = true;
    return t;
}

// One expert has more rows than are multiplied at a time.
static trial *crowded_trial(mz_op op, bool accumulate) {
    const int64_t s[5] = {9001, 1, 3, 16, 16};
    trial *order = order_trial(s, 0, 0);
    for (int64_t i = 0; i < s[0]; i++)
        order->in[0].value[i] = i % 16 == 0 ? 0 : 2;
    trial_store(&order->in[0]);
    return ordered_trial(op, order, s, MEZZO_F32, MEZZO_F32, true, accumulate);
}

// The first rows and the last are no expert's: those of a rank with a part of the experts.
static trial *part_trial(mz_op op, mezzo_dtype storage, bool accumulate) {
    trial *t = grouped_trial(op, shapes[7], storage, storage, true, accumulate);
    trial_tensor *offsets = &t->in[2];
    const double rows = (double)t->in[0].t.shape.dim[0];
    for (int64_t i = 0; i < trial_count(offsets); i++)
        offsets->value[i] = fmin(fmax(offsets->value[i], 37), rows - 5);
    trial_store(offsets);
    return t;
}

static void each_grouped(mz_op op) {
    static const mezzo_dtype arithmetics[][2] = {{MEZZO_F32, MEZZO_F32},
                                                 {MEZZO_F32, MEZZO_TF32},
                                                 {MEZZO_BF16, MEZZO_BF16},
                                                 {MEZZO_F16, MEZZO_F16},
                                                 {MEZZO_BF16, MEZZO_F32}};
    for (size_t s = 0; s < MZ_COUNT(shapes); s++)
        for (size_t a = 0; a < MZ_COUNT(arithmetics); a++)
            for (int variant = 0; variant < (op == MZ_OP_grouped_linear_dw ? 4 : 2); variant++)
                trial_finish(
                    grouped_trial(op, shapes[s], arithmetics[a][0], arithmetics[a][1], variant & 1, variant & 2));
    for (int variant = 0; variant < (op == MZ_OP_grouped_linear_dw ? 4 : 2); variant++)
        trial_finish(busy_trial(op, variant & 1 ? MEZZO_BF16 : MEZZO_F16, variant & 1, variant & 2));
    trial_finish(busy_trial(op, MEZZO_F32, false, false));
    for (int variant = 0; variant < (op == MZ_OP_grouped_linear_dw ? 2 : 1); variant++)
        trial_finish(crowded_trial(op, variant));
    for (int variant = 0; op == MZ_OP_grouped_linear_dw && variant < 4; variant++)
        trial_finish(part_trial(op, variant & 1 ? MEZZO_BF16 : MEZZO_F32, variant & 2));
    for (int kind = 0; kind < 2; kind++)
        trial_finish(parts_trial(op, kind));
    trial *t = grouped_trial(op, shapes[2], MEZZO_F32, MEZZO_F32, false, false);
    trial_normal(t, 1, 0x1p-20);
    trial_largest(t, 0);
    t->skip_mutations = true;
    trial_finish(t);
    t = grouped_trial(op, shapes[2], MEZZO_F32, MEZZO_F32, false, false);
    trial_spoil(t, 0);
    trial_finish(t);
}

void cases_grouped_linear(void) {
    each_grouped(MZ_OP_grouped_linear);
}

void cases_grouped_linear_dx(void) {
    each_grouped(MZ_OP_grouped_linear_dx);
}

void cases_grouped_linear_dw(void) {
    each_grouped(MZ_OP_grouped_linear_dw);
}
