// Checks the rules about the order of events: scaler, clipping, schedule, accumulation, optimizer, ranks.
#include <math.h>

#include "study/audit/judge.h"

// Holds what happened between one optimizer step and the next.
typedef struct state {
    bool scaled;    // a scaler multiplied the loss
    bool unscaled;  // since the last backward
    bool norm_read; // the program itself computed a norm of gradients
    bool synced;    // ranks exchanged gradients in this step
    bool last_sync; // DistributedDataParallel would exchange in the next backward
    int sync_at, backwards, first_at, backward_at;
    bool same_place, rewritten;
    double scale, factor, least_weight, most_weight;
    bool mean;
    bool zeroed_between;
} state;

static state start_step(const state *before) {
    return (state){.scale = before->scale,
                   .last_sync = before->last_sync,
                   .sync_at = before->sync_at,
                   .first_at = -1,
                   .backward_at = -1,
                   .same_place = true,
                   .factor = NAN,
                   .least_weight = INFINITY,
                   .most_weight = 0};
}

// --- accumulation --------------------------------------------------------------------------------------------------
static void judge_accumulation(mz_judge *j, const state *s, int most) {
    if (s->backwards < 2 || !s->same_place || s->backwards < most)
        return;
    if (s->zeroed_between) {
        mz_judge_add(j, MZ_FINDING_ACCUMULATION, s->backward_at, "clear the gradients once a step, after it",
                     "%d backward passes a step, and gradients are cleared between them: only the last one counts",
                     s->backwards);
        return;
    }
    if (!s->mean || isnan(s->factor) || s->rewritten)
        return;
    const double sum = s->factor * s->backwards;
    char change[200];
    snprintf(change, sizeof change, "divide the loss of each micro batch by %d, once", s->backwards);
    if (fabs(sum - 1) > 1e-3)
        mz_judge_add(j, MZ_FINDING_ACCUMULATION, s->backward_at, change,
                     "%d backward passes a step, each of a mean loss times %.4g: the gradient is %.4g times the mean's",
                     s->backwards, s->factor, sum);
    else if (s->most_weight > 1.02 * s->least_weight)
        mz_judge_add(j, MZ_FINDING_UNEVEN, s->backward_at, NULL,
                     "%d micro batches a step, whose means count %.0f to %.0f elements, have the same weight",
                     s->backwards, s->least_weight, s->most_weight);
}

static void add_backward(state *s, const mz_torch_event *e) {
    s->same_place = s->backwards == 0 || (s->same_place && s->first_at == e->at);
    s->first_at = s->backwards == 0 ? e->at : s->first_at;
    s->mean = e->mean && (s->backwards == 0 || s->mean);
    s->factor = s->backwards == 0 || fabs(s->factor - e->factor) <= 1e-6 * fabs(e->factor) ? e->factor : NAN;
    if (!isnan(e->weight)) {
        s->least_weight = fmin(s->least_weight, e->weight);
        s->most_weight = fmax(s->most_weight, e->weight);
    }
    s->backward_at = e->at;
    s->backwards++;
    s->unscaled = false;
    s->synced = s->synced || s->last_sync;
}

static int most_backwards(const mz_torch_trace *t) {
    int most = 0, n = 0;
    for (size_t i = 0; i < t->n_events; i++) {
        n += t->events[i].kind == MZ_EVENT_BACKWARD;
        if (t->events[i].kind == MZ_EVENT_OPTIMIZER_STEP ||
            (t->events[i].kind == MZ_EVENT_SCALER_STEP && t->events[i].flag)) {
            most = n > most ? n : most;
            n = 0;
        }
    }
    return most;
}

// --- gradients between backward and the step -----------------------------------------------------------------------
static bool replaces(const char *op) {
    return strcmp(op, "nan_to_num") == 0 || strcmp(op, "where") == 0 || strcmp(op, "masked_fill") == 0;
}

static void judge_clip(mz_judge *j, const state *s, const mz_torch_event *e) {
    if (!s->scaled || s->unscaled || s->backwards == 0)
        return;
    if (!isnan(e->norm))
        mz_judge_add(j, MZ_FINDING_CLIP_FIRST, e->at, NULL,
                     "the norm %.4g is %.4g times the loss scale %.0f; the limit is %.4g", e->norm, e->norm / s->scale,
                     s->scale, e->limit);
    else
        mz_judge_add(j, MZ_FINDING_CLIP_FIRST, e->at, NULL,
                     "the gradients are still multiplied by the loss scale %.0f; the limit is %.4g", s->scale,
                     e->limit);
}

static void judge_write(mz_judge *j, state *s, const mz_torch_event *e) {
    if (strcmp(e->op, "norm") == 0) {
        s->norm_read = true;
        return;
    }
    s->rewritten = true;
    if (s->backwards == 0)
        return;
    if (replaces(e->op))
        mz_judge_add(j, MZ_FINDING_NAN_ZEROED, e->at, NULL, "%s on gradients, %lld times%s", e->op, (long long)e->count,
                     s->scaled ? "; the scaler does not see what it replaced" : "");
    else if (s->scaled && !s->unscaled && (strcmp(e->op, "clamp") == 0 || (s->norm_read && strcmp(e->op, "mul") == 0)))
        mz_judge_add(j, MZ_FINDING_CLIP_FIRST, e->at, NULL,
                     "%s on gradients that are still multiplied by the loss scale %.0f", e->op, s->scale);
    else if (s->scaled && !s->unscaled && strcmp(e->op, "mul") != 0 && strcmp(e->op, "div") != 0)
        mz_judge_add(j, MZ_FINDING_REWRITTEN, e->at, NULL, "%s on gradients, %lld times, at a loss scale of %.0f",
                     e->op, (long long)e->count, s->scale);
}

// --- the steps -----------------------------------------------------------------------------------------------------
// Judges updates. A second step() without update() fails in PyTorch, so a forgotten update() leaves one step in the
// trace.
static void judge_updates(mz_judge *j) {
    const mz_torch_trace *t = j->trace;
    int64_t steps = 0, updates = 0, scalers = 0;
    int at = -1;
    bool begun_again = false;
    for (size_t i = 0; i < t->n_events; i++) {
        const mz_torch_event *e = &t->events[i];
        begun_again = begun_again || (steps > 0 && e->kind == MZ_EVENT_BACKWARD);
        steps += e->kind == MZ_EVENT_SCALER_STEP && e->enabled;
        at = e->kind == MZ_EVENT_SCALER_STEP ? e->at : at;
        updates += e->kind == MZ_EVENT_SCALER_UPDATE;
        scalers = e->kind == MZ_EVENT_SCALE && e->enabled ? e->scalers : scalers;
    }
    if (updates == 0 && begun_again)
        mz_judge_add(j, MZ_FINDING_SCALER_IDLE, at, NULL, "%lld calls of scaler.step(), none of scaler.update()",
                     (long long)steps);
    else if (scalers > 1 && scalers >= t->steps && t->n_optimizers < (size_t)scalers)
        mz_judge_add(j, MZ_FINDING_SCALER_IDLE, at, "make one GradScaler, before the loop over steps",
                     "%lld scalers in %d steps: each begins with its first scale", (long long)scalers, t->steps);
}

static void judge_missing_scaler(mz_judge *j) {
    const mz_torch_trace *t = j->trace;
    int64_t fp16 = 0, scales = 0;
    double most_factor = 0;
    int at = -1;
    for (size_t i = 0; i < t->n_events; i++) {
        const mz_torch_event *e = &t->events[i];
        scales += e->kind == MZ_EVENT_SCALE && e->enabled;
        at = e->kind == MZ_EVENT_BACKWARD ? e->at : at;
        most_factor = e->kind == MZ_EVENT_BACKWARD && e->factor > most_factor ? e->factor : most_factor;
    }
    for (size_t i = 0; i < t->n_ops; i++) {
        const mz_torch_op *op = &t->ops[i];
        fp16 += op->phase == MZ_TORCH_BACKWARD && mz_torch_is_product(op) && op->output == MEZZO_F16 ? op->count : 0;
    }
    if (fp16 > 0 && scales == 0 && at >= 0 && most_factor <= 1) // a factor above 1 is a constant loss scale
        mz_judge_add(j, MZ_FINDING_NO_SCALER, at, NULL,
                     "%lld products of backward in fp16 in %d steps, and no loss was scaled", (long long)fp16,
                     t->steps);
}

static void judge_order(mz_judge *j) {
    const mz_torch_trace *t = j->trace;
    state s = start_step(&(state){.scale = 1, .sync_at = -1});
    bool skipped = false, over = false;
    const int most = most_backwards(t);
    for (size_t i = 0; i < t->n_events; i++) {
        const mz_torch_event *e = &t->events[i];
        if (over && (e->kind == MZ_EVENT_BACKWARD || e->kind == MZ_EVENT_SCALE)) {
            s = start_step(&s);
            over = skipped = false;
        }
        switch (e->kind) {
        case MZ_EVENT_SCALE:
            s.scaled = s.scaled || e->enabled;
            s.scale = e->enabled && !isnan(e->scale) ? e->scale : s.scale;
            break;
        case MZ_EVENT_BACKWARD:
            add_backward(&s, e);
            break;
        case MZ_EVENT_UNSCALE:
            s.unscaled = true;
            break;
        case MZ_EVENT_CLIP:
            judge_clip(j, &s, e);
            break;
        case MZ_EVENT_WRITE:
            judge_write(j, &s, e);
            break;
        case MZ_EVENT_ZERO_GRAD:
            s.zeroed_between = s.zeroed_between || (!over && s.backwards > 0 && s.backwards < most);
            break;
        case MZ_EVENT_SCALER_STEP:
            skipped = skipped || (e->enabled && e->flag);
            if (e->flag && !over)
                judge_accumulation(j, &s, most);
            over = true;
            break;
        case MZ_EVENT_OPTIMIZER_STEP:
            if (s.scaled && !s.unscaled && !e->scaled_by_step && s.backwards > 0)
                mz_judge_add(j, MZ_FINDING_STEP_SCALED, e->at, NULL,
                             "the loss scale is %.0f, and the gradients' norm at the step is %.4g", s.scale, e->norm);
            if (!over)
                judge_accumulation(j, &s, most);
            over = true;
            break;
        case MZ_EVENT_SCHEDULE:
            if (skipped && over)
                mz_judge_add(j, MZ_FINDING_SCHEDULE, e->at, NULL,
                             "step %d was skipped because gradients overflowed at a loss scale of %.0f, and the "
                             "schedule advanced",
                             e->step, s.scale);
            break;
        case MZ_EVENT_PARALLEL:
            s.last_sync = e->flag;
            break;
        default:
            break;
        }
    }
}

// --- state of the optimizer ----------------------------------------------------------------------------------------
// Returns whether the tensors are FP32 masters, or low halves of parameters, which optimizers keep under keys with
// these words.
static bool is_master(const mz_torch_tensors *s) {
    static const char *const words[] = {"master", "fp32", "param", "compens", "kahan", "residual", "shift"};
    for (size_t i = 0; i < MZ_COUNT(words); i++)
        if (strstr(s->key, words[i]) != NULL)
            return true;
    return false;
}

static void judge_optimizer(mz_judge *j, int optimizer) {
    const mz_torch_trace *t = j->trace;
    bool masters = false;
    for (size_t i = 0; i < t->n_tensors; i++)
        masters = masters || (t->tensors[i].optimizer == optimizer && is_master(&t->tensors[i]));
    for (size_t i = 0; i < t->n_tensors; i++) {
        const mz_torch_tensors *s = &t->tensors[i];
        if (s->optimizer != optimizer || !mz_torch_is_low(s->dtype) || masters)
            continue;
        if (*s->key == '\0') {
            char lost[120] = "";
            if (t->compared > 0)
                snprintf(lost, sizeof lost, "; %.1f %% of the weights with a gradient did not change in a step",
                         100.0 * (double)t->unchanged / (double)t->compared);
            mz_judge_add(j, MZ_FINDING_LOW_PARAMETERS, t->optimizer_at[optimizer], NULL,
                         "%lld tensors with %lld weights in %s, and no masters%s", (long long)s->count,
                         (long long)s->numel, mz_torch_dtype_name(s->dtype), lost);
        } else if (!mz_torch_is_low(s->of)) {
            mz_judge_add(j, MZ_FINDING_LOW_MOMENTS, t->optimizer_at[optimizer], NULL,
                         "'%.40s' of %lld tensors with %lld numbers in %s", s->key, (long long)s->count,
                         (long long)s->numel, mz_torch_dtype_name(s->dtype));
        }
    }
}

void mz_judge_events(mz_judge *j) {
    judge_updates(j);
    judge_missing_scaler(j);
    judge_order(j);
    for (size_t i = 0; i < j->trace->n_optimizers; i++)
        judge_optimizer(j, (int)i);
}

// --- ranks ---------------------------------------------------------------------------------------------------------
static const mz_torch_event *nth_step(const mz_torch_trace *t, int n) {
    for (size_t i = 0; i < t->n_events; i++)
        if (t->events[i].kind == MZ_EVENT_OPTIMIZER_STEP && t->events[i].optimizer <= 0 && n-- == 0)
            return &t->events[i];
    return NULL;
}

typedef struct exchange {
    bool reduces, paused;
    int at;
} exchange;

// Finds what ranks exchange before the first step; a loss that is averaged for a log comes after it. Where ranks
// exchange data then and nothing is paused, different gradients may belong to different parts of a model.
static exchange find_exchange(const mz_torch_trace *t) {
    exchange x = {.at = -1};
    bool stepped = false;
    for (size_t i = 0; i < t->n_events; i++) {
        const mz_torch_event *e = &t->events[i];
        stepped = stepped || e->kind == MZ_EVENT_OPTIMIZER_STEP;
        x.reduces =
            x.reduces || (!stepped && (e->kind == MZ_EVENT_REDUCE || (e->kind == MZ_EVENT_PARALLEL && e->flag)));
        if (e->kind == MZ_EVENT_PARALLEL && !e->flag) {
            x.paused = true;
            x.at = e->at;
        }
    }
    return x;
}

void mz_judge_ranks(mz_judge *j) {
    j->trace = &j->traces[0];
    const mz_torch_event *first = nth_step(j->trace, 0);
    const exchange x = find_exchange(j->trace);
    if (j->trace->world < 2 || first == NULL || first->flag) // sharded: each rank has gradients of its own
        return;
    const mz_torch_trace *other = NULL;
    for (int i = 1; i < j->n && other == NULL; i++)
        other = j->traces[i].rank != j->trace->rank && j->traces[i].world == j->trace->world ? &j->traces[i] : NULL;
    if (other == NULL) {
        if (!x.reduces)
            mz_judge_add(j, MZ_FINDING_NOT_REDUCED, first->at, NULL,
                         "%d ranks, and none of the followed steps exchanged gradients", j->trace->world);
        return;
    }
    if (x.reduces && !x.paused)
        return;
    for (int n = 0; nth_step(j->trace, n) != NULL && nth_step(other, n) != NULL; n++) {
        const double a = nth_step(j->trace, n)->norm, b = nth_step(other, n)->norm;
        if (!(fabs(a - b) > 1e-4 * fmax(fabs(a), fabs(b))))
            continue;
        mz_judge_add(j, MZ_FINDING_NOT_REDUCED, x.paused && x.at >= 0 ? x.at : first->at,
                     x.paused ? "leave no_sync() before the last backward pass of a step" : NULL,
                     "step %d: the gradients' norm is %.6g on rank %d and %.6g on rank %d%s", n, a, j->trace->rank, b,
                     other->rank, x.paused ? ", and no_sync() was open" : "; nothing was exchanged");
        return;
    }
}
