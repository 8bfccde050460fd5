// Runs pairs of training runs that differ in their precision only.
#include "study/measure/verify.h"

#include <math.h>

#include "io/file.h"
#include "train/trial.h"

#define TURN_MOST 20 // steps of a turn, at most

typedef struct side {
    mz_trial *trial;
    mz_trial_facts facts;
    mz_verify_run *out;
    double *losses; // [n_losses]: of the steps that had one
    size_t n_losses;
    int64_t timed;       // number of steps in out->seconds
    int64_t turn;        // steps in a turn
    size_t batch_bytes;  // of a micro batch's inputs
    unsigned char *kept; // [turn, batch_bytes]: inputs of the last micro batch of each step in a turn
} side;

typedef struct verifier {
    const mz_verify_options *o;
    mz_verify_result *r;
    mezzo_device *device; // shared by all runs, so that measurements for the choice of kernels happen once
    side sides[2];
    int64_t turn;
    double started;
    mz_verify_fn tell;
    void *user;
    mz_verify_progress progress;
    double validating; // seconds
    int validated;     // number of validated runs
} verifier;

// --- opening -------------------------------------------------------------------------------------
static mezzo_status set(const mz_verify_options *o, const char *key, const char *value) {
    return mezzo_config_set(o->config, key, value, "verify");
}

// Refuses an override that lowers a module, because it would be on both sides of the comparison with fp32.
static mezzo_status check_overrides(const mezzo_program_options *program) {
    for (int i = 0; i < program->n_overrides; i++)
        if (program->overrides[i].precision != MEZZO_PRECISION_FP32)
            return mz_fail(MEZZO_ERR_INVALID,
                           "autocast.%s is %s: verify supports only fp32 overrides, because the fp32 run uses them too",
                           program->overrides[i].pattern, mezzo_precision_name(program->overrides[i].precision));
    return MEZZO_OK;
}

static double now(const verifier *v) {
    return v->o->clock != NULL ? v->o->clock(v->o->clock_user) : mz_seconds();
}

// Sets the baseline as it is, or the requested precision with the blocks that it emulates.
static mezzo_status set_side(verifier *v, int which) {
    const bool candidate = which == 1;
    const mezzo_blocks emulate = candidate ? v->r->emulate : MEZZO_BLOCKS_NONE;
    MEZZO_TRY(set(v->o, "amp.precision", mezzo_precision_name(candidate ? v->r->asked : v->r->baseline)));
    MEZZO_TRY(set(v->o, "amp.emulate", mezzo_blocks_name(emulate)));
    MEZZO_TRY(set(v->o, "amp.emulate_rounding", candidate && v->r->emulate_stochastic ? "stochastic" : "nearest"));
    return set(v->o, "amp.emulate_hadamard", candidate && v->r->emulate_hadamard ? "true" : "false");
}

static int64_t turn_of(int64_t steps) {
    return steps / 10 < 1 ? 1 : steps / 10 < TURN_MOST ? steps / 10 : TURN_MOST;
}

static mezzo_status open_side(verifier *v, int which, mz_verify_run *out) {
    side *s = &v->sides[which];
    *s = (side){.out = out};
    MEZZO_TRY(set_side(v, which));
    MEZZO_TRY(mz_trial_open(v->device, v->o->config, v->o->stop, &s->trial));
    s->facts = mz_trial_describe(s->trial);
    if (v->r->baseline == MEZZO_PRECISION_FP32)
        MEZZO_TRY(check_overrides(&s->facts.program));
    if (!s->facts.validates)
        return mz_fail(MEZZO_ERR_INVALID, "there is no validation data: lower data.split, or give data.val");
    MEZZO_TRY(MZ_NEW(s->losses, (size_t)s->facts.steps));
    MEZZO_TRY(MZ_NEW(out->losses, (size_t)s->facts.steps));
    MEZZO_TRY(MZ_NEW(out->turns, (size_t)s->facts.steps));
    for (int64_t i = 0; i < s->facts.steps; i++)
        out->losses[i] = (double)NAN;
    const mz_examples *examples = mz_trial_examples(s->trial);
    for (int i = 0; i < examples->n; i++)
        s->batch_bytes += examples->input[i].bytes;
    s->turn = turn_of(s->facts.steps);
    s->kept = mz_alloc((size_t)s->turn, s->batch_bytes);
    if (s->kept == NULL)
        return MEZZO_ERR_MEMORY;
    out->activations = s->facts.activations;
    out->memory = s->facts.training_memory;
    out->loss_scale = 1;
    MEZZO_TRY(mz_weights_crc(mz_trial_params(s->trial), &out->weights_crc));
    return which == 1 && v->o->nudge != 0 ? mz_trial_scale_weights(s->trial, "*", 1 + v->o->nudge) : MEZZO_OK;
}

static void close_side(side *s) {
    mz_trial_close(s->trial);
    MZ_FREE(s->losses, s->kept);
    *s = (side){0};
}

// Describes what both sides share, from either of them.
static void describe(verifier *v) {
    mz_verify_result *r = v->r;
    const mz_trial_facts *t = &v->sides[1].facts;
    r->model = *t->model;
    r->unit = mz_task_kind_of(mezzo_model_task(t->model))->unit;
    r->precision = t->program.precision;
    r->residual = t->program.residual;
    r->batch = t->batch;
    r->grad_accum = t->grad_accum;
    r->steps = t->steps;
    r->params_m = (double)t->parameters * 1e-6;
    snprintf(r->device, sizeof r->device, "%s", t->device);
    snprintf(r->reason, sizeof r->reason, "%.390s", t->reason);
    snprintf(r->data, sizeof r->data, "%s", t->data);
    v->turn = turn_of(r->steps);
    r->warmup = r->steps > v->turn ? v->turn : 0; // the first turn: kernels are chosen, graphs captured, caches filled
}

// --- training ------------------------------------------------------------------------------------
static mezzo_status stopped(const verifier *v) {
    if (v->o->stop != NULL && *v->o->stop)
        return mz_fail(MEZZO_ERR_INTERRUPTED, "stopped at step %lld of seed %d of %d", (long long)v->progress.step,
                       v->progress.seed, v->progress.seeds);
    return MEZZO_OK;
}

// Copies the program's inputs until the turn is over; the last micro batch of a step is still in the trial's own
// buffers.
static void keep_data(side *s, int64_t i) {
    const mz_examples *examples = mz_trial_examples(s->trial);
    unsigned char *to = s->kept + (size_t)i * s->batch_bytes;
    for (int k = 0; k < examples->n; to += examples->input[k].bytes, k++)
        memcpy(to, examples->input[k].data, examples->input[k].bytes);
}

// Adds the checksums of every micro batch of the last n steps; those that were overwritten are drawn again by their
// numbers.
static mezzo_status add_data(side *s, int64_t n) {
    const mz_examples *examples = mz_trial_examples(s->trial);
    uint64_t accum = (uint64_t)s->facts.grad_accum, k = mz_trial_position(s->trial) - (uint64_t)n * accum;
    for (int64_t i = 0; i < n; i++, k++) {
        for (uint64_t micro = 0; micro + 1 < accum; micro++, k++) {
            MEZZO_TRY(mz_trial_draw(s->trial, k));
            for (int x = 0; x < examples->n; x++)
                s->out->data_crc = mz_crc32c(s->out->data_crc, examples->input[x].data, examples->input[x].bytes);
        }
        s->out->data_crc = mz_crc32c(s->out->data_crc, s->kept + (size_t)i * s->batch_bytes, s->batch_bytes);
    }
    return MEZZO_OK;
}

static mezzo_status add_scale(mz_verify_run *out, int64_t step, double scale) {
    MEZZO_TRY(MZ_RESERVE(out->changes, out->cap_changes, out->n_changes + 1));
    out->changes[out->n_changes++] = (mz_scale_change){step, scale};
    return MEZZO_OK;
}

static mezzo_status note(side *s, const mz_step_report *report) {
    mz_verify_run *out = s->out;
    if (report == NULL)
        return MEZZO_OK;
    s->losses[s->n_losses++] = report->loss;
    if (report->step >= 1 && report->step <= s->facts.steps && isfinite(report->loss))
        out->losses[report->step - 1] = report->loss;
    out->skipped = report->state.skipped;
    if (!s->facts.scaler->enabled)
        return MEZZO_OK;
    out->loss_scale = (double)report->scaler.scale;
    if (out->n_changes == 0)
        MEZZO_TRY(add_scale(out, 1, s->facts.scaler->init_scale));
    if (out->loss_scale != out->changes[out->n_changes - 1].scale)
        MEZZO_TRY(add_scale(out, report->step + 1, out->loss_scale));
    return MEZZO_OK;
}

// Takes a turn: consecutive steps as training runs them, timed from an idle device to an idle device.
static mezzo_status take_turn(verifier *v, side *s, int64_t to) {
    const mz_step_report *report;
    MEZZO_TRY(mezzo_device_sync(v->device));
    double start = now(v);
    int64_t from = mz_trial_steps(s->trial);
    for (int64_t i = 0; i < to - from; i++) {
        MEZZO_TRY(stopped(v));
        MEZZO_TRY(mz_trial_step(s->trial, false, &report));
        MEZZO_TRY(note(s, report));
        keep_data(s, i);
    }
    MEZZO_TRY(mezzo_device_sync(v->device));
    double seconds = now(v) - start;
    if (v->o->slowdown != 0 && s == &v->sides[1])
        seconds *= v->o->slowdown;
    if (from >= v->r->warmup) {
        s->out->turns[s->out->n_turns++] = seconds / (double)(to - from);
        s->out->seconds += seconds;
        s->timed += to - from;
    }
    MEZZO_TRY(mz_trial_settle(s->trial, &report));
    MEZZO_TRY(note(s, report));
    return add_data(s, to - from);
}

// Reports losses of the same step: in turns, when both runs have taken it.
static void show(verifier *v, int first, int last, double share) {
    mz_verify_progress *p = &v->progress;
    for (int which = first; which <= last; which++) {
        p->step = mz_trial_steps(v->sides[which].trial);
        p->loss[which] = mz_trial_last(v->sides[which].trial)->loss;
    }
    p->seconds = mz_seconds() - v->started;
    const double done = (double)(p->seed - 1) + share, training = (p->seconds - v->validating) / done; // of a pair
    const mz_trial_facts *t = &v->sides[last < 0 ? 1 : last].facts;
    double each = v->validated > 0 ? v->validating / v->validated : 0; // of a validation
    if (v->validated == 0) // as many batches forward, which takes a third of their training time
        each = training / (double)(2 * v->r->steps * t->grad_accum) / 3 * (double)t->val_batches;
    p->seconds_left = training * (p->seeds - done) + each * (2 * p->seeds - v->validated);
    if (v->tell != NULL)
        v->tell(v->user, p);
}

static mezzo_status train_in_turns(verifier *v) {
    int64_t steps = v->r->steps;
    for (int64_t step = 0, turn = 0; step < steps; step += v->turn, turn++) {
        int64_t to = step + v->turn < steps ? step + v->turn : steps;
        for (int i = 0; i < 2; i++) {
            int which = (int)((turn + i + (int64_t)v->progress.seed) % 2); // the first side alternates
            MEZZO_TRY(take_turn(v, &v->sides[which], to));
            show(v, 0, i == 0 ? -1 : 1, (double)(step + to + i * (to - step)) / 2 / (double)steps);
        }
    }
    return MEZZO_OK;
}

static mezzo_status train_alone(verifier *v, int which) {
    int64_t steps = v->r->steps;
    for (int64_t step = 0; step < steps; step += v->turn) {
        int64_t to = step + v->turn < steps ? step + v->turn : steps;
        MEZZO_TRY(take_turn(v, &v->sides[which], to));
        show(v, which, which, (1 - which + (double)to / (double)steps) / 2); // the candidate comes first
    }
    return MEZZO_OK;
}

// Computes loss and share of right answers, in the training precision.
static mezzo_status finish_side(verifier *v, side *s) {
    const size_t last = s->n_losses / 10 > 0 ? s->n_losses / 10 : 1;
    mz_evaluation score;
    double items = (double)s->facts.items * (double)v->r->grad_accum * (double)s->timed;
    s->out->tokens_per_second = items / s->out->seconds;
    s->out->train_loss = s->n_losses > 0 ? mz_mean(s->losses + (s->n_losses - last), last) : (double)NAN;
    const double start = mz_seconds();
    MEZZO_TRY(mz_context(mz_trial_validate(s->trial, v->o->stop, &score), "the %s run of seed %llu, validated",
                         mezzo_precision_name(s->facts.program.precision),
                         (unsigned long long)v->r->pairs[v->r->n].seed));
    v->validating += mz_seconds() - start;
    v->validated++;
    MEZZO_TRY(stopped(v));
    if (score.counted > 0) {
        s->out->val_loss = score.loss;
        s->out->accuracy = score.accuracy;
        v->r->by_loss = isnan(score.accuracy);
    }
    v->r->val_tokens = score.counted;
    return MEZZO_OK;
}

// --- pairs ---------------------------------------------------------------------------------------
static mezzo_status run_both(verifier *v, mz_verify_pair *pair) {
    MEZZO_TRY(open_side(v, 1, &pair->run[1])); // the candidate comes first, since it may make no sense
    describe(v);
    if (v->r->precision == v->r->baseline && v->r->emulate == MEZZO_BLOCKS_NONE && v->o->nudge == 0)
        return mz_fail(MEZZO_ERR_INVALID, "nothing to compare with %s: %s; name a precision (--precision bf16)",
                       mezzo_precision_name(v->r->baseline), v->r->reason);
    mezzo_status opened = open_side(v, 0, &pair->run[0]);
    v->r->in_turns = opened == MEZZO_OK;
    if (opened == MEZZO_OK) {
        MEZZO_TRY(train_in_turns(v));
        for (int i = 0; i < 2; i++)
            MEZZO_TRY(finish_side(v, &v->sides[i]));
        return MEZZO_OK;
    }
    if (opened != MEZZO_ERR_MEMORY)
        return opened;
    mz_log("notice", "both runs together do not fit into memory: running one after the other (%s)",
           mezzo_error_message());
    close_side(&v->sides[0]);
    MEZZO_TRY(train_alone(v, 1));
    MEZZO_TRY(finish_side(v, &v->sides[1]));
    close_side(&v->sides[1]);
    MEZZO_TRY(open_side(v, 0, &pair->run[0]));
    MEZZO_TRY(train_alone(v, 0));
    return finish_side(v, &v->sides[0]);
}

static mezzo_status run_pair(verifier *v, uint64_t seed) {
    mz_verify_pair *pair = &v->r->pairs[v->r->n];
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    *pair = (mz_verify_pair){.seed = seed};
    v->progress.loss[0] = v->progress.loss[1] = (double)NAN;
    v->progress.step = 0;
    MEZZO_TRY(set(v->o, "train.seed", text));
    mezzo_status status = run_both(v, pair);
    for (int i = 0; i < 2; i++)
        close_side(&v->sides[i]);
    MEZZO_TRY(status);
    pair->same_data = pair->run[0].data_crc == pair->run[1].data_crc;
    pair->same_weights = pair->run[0].weights_crc == pair->run[1].weights_crc;
    v->r->n++;
    return MEZZO_OK;
}

static void judge(const mz_verify_options *o, mz_verify_result *r) {
    double speedup[MZ_VERIFY_SEEDS], memory[MZ_VERIFY_SEEDS], accuracy[MZ_VERIFY_SEEDS], loss[MZ_VERIFY_SEEDS];
    r->same = true;
    for (size_t i = 0; i < r->n; i++) {
        const mz_verify_run *a = &r->pairs[i].run[0], *b = &r->pairs[i].run[1];
        speedup[i] = b->tokens_per_second / a->tokens_per_second;
        memory[i] = 100 * (1 - (double)b->memory / (double)a->memory);
        accuracy[i] = r->by_loss ? b->val_loss / a->val_loss - 1 : b->accuracy - a->accuracy;
        loss[i] = b->val_loss - a->val_loss;
        r->same = r->same && r->pairs[i].same_data && r->pairs[i].same_weights;
    }
    r->speedup = mz_measure_ratio(speedup, r->n, o->level);
    r->memory_percent = mz_measure_mean(memory, r->n, o->level);
    r->accuracy_difference = mz_measure_mean(accuracy, r->n, o->level);
    r->loss_difference = mz_measure_mean(loss, r->n, o->level);
    r->speed = mz_judge_least(&r->speedup, o->least_speedup);
    r->memory = mz_judge_least(&r->memory_percent, o->least_memory_percent);
    r->accuracy = mz_judge_within(&r->accuracy_difference, o->most_accuracy_difference);
}

// Restores the configuration for another call.
static mezzo_status restore(verifier *v, uint64_t first) {
    char seed[32];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)first);
    MEZZO_TRY(set(v->o, "train.seed", seed));
    return set_side(v, 1);
}

mezzo_status mz_verify(const mz_verify_options *o, mz_verify_fn tell, void *user, mz_verify_result *out) {
    mz_run_config c;
    *out = (mz_verify_result){0};
    if (o->seeds < 1 || o->seeds > MZ_VERIFY_SEEDS)
        return mz_fail(MEZZO_ERR_INVALID, "%d seeds: use 1 to %d", o->seeds, MZ_VERIFY_SEEDS);
    MEZZO_TRY(set(o, "train.sample_every", "-1"));
    MEZZO_TRY(set(o, "guard.policy", "off")); // a step that is not finite is skipped and counted, without a rollback
    MEZZO_TRY(mz_run_config_read(o->config, &c));
    out->asked = c.program.precision;
    out->emulate = c.program.emulate;
    out->emulate_stochastic = c.program.emulate_stochastic;
    out->emulate_hadamard = c.program.emulate_hadamard;
    out->baseline = o->matched ? o->baseline : MEZZO_PRECISION_FP32;
    uint64_t first = c.seed;
    verifier *v;
    MEZZO_TRY(MZ_NEW(v, 1));
    *v = (verifier){.o = o, .r = out, .started = mz_seconds(), .tell = tell, .user = user};
    v->progress.seeds = o->seeds;
    v->progress.steps = c.steps;
    mezzo_status status = mezzo_device_open(c.device, c.threads, &v->device);
    for (int i = 0; i < o->seeds && status == MEZZO_OK; i++) {
        v->progress.seed = i + 1;
        status = run_pair(v, first + (uint64_t)i);
        if (status != MEZZO_OK || !o->matched)
            continue;
        // Another pair takes as long as the earlier ones.
        const double spent = mz_seconds() - v->started;
        const bool last = i + 1 == o->seeds || (o->minutes > 0 && spent + spent / (i + 1) > 60 * o->minutes);
        status = mz_matched_judge(o, out, last, &out->matched);
        if (last || mz_matched_decided(&out->matched))
            break;
    }
    mezzo_device_close(v->device);
    if (status == MEZZO_OK)
        status = restore(v, first);
    mz_free(v);
    if (status == MEZZO_OK)
        judge(o, out);
    return status;
}

void mz_verify_free(mz_verify_result *r) {
    for (size_t i = 0; i < MZ_VERIFY_SEEDS; i++)
        for (int k = 0; k < 2; k++) {
            mz_free(r->pairs[i].run[k].changes);
            r->pairs[i].run[k].changes = NULL;
            mz_free(r->pairs[i].run[k].turns);
            r->pairs[i].run[k].turns = NULL;
            mz_free(r->pairs[i].run[k].losses);
            r->pairs[i].run[k].losses = NULL;
        }
}

// --- verdicts, from the seeds' numbers, beyond their noise ----------------------------------------------------------
const char *mz_verdict_word(mz_verdict v) {
    return v == MZ_VERDICT_MET ? "met" : v == MZ_VERDICT_FAILED ? "not met" : "undecided";
}

mz_measured mz_measure_mean(const double *x, size_t n, double level) {
    double mean = mz_mean(x, n);
    bool scatters = n > 1 && mz_deviation(x, n) > 1e-12 * fabs(mean); // equal numbers differ by rounding alone, which
                                                                      // is no scatter
    return (mz_measured){mean, scatters ? mz_mean_interval(x, n, level) : (mz_interval){mean, mean}};
}

mz_measured mz_measure_ratio(const double *x, size_t n, double level) {
    double logs[MZ_VERIFY_SEEDS] = {0};
    for (size_t i = 0; i < n; i++)
        logs[i] = log(x[i]);
    mz_measured m = mz_measure_mean(logs, n, level);
    return (mz_measured){exp(m.value), {exp(m.interval.low), exp(m.interval.high)}};
}

mz_verdict mz_judge_least(const mz_measured *m, double least) {
    if (m->interval.low >= least)
        return MZ_VERDICT_MET;
    return m->interval.high >= least ? MZ_VERDICT_OPEN : MZ_VERDICT_FAILED; // NaN fails
}

// Judges equivalence: the whole interval must lie within ±within.
mz_verdict mz_judge_within(const mz_measured *m, double within) {
    if (m->interval.low > -within && m->interval.high < within)
        return MZ_VERDICT_MET;
    return m->interval.low < within && m->interval.high > -within ? MZ_VERDICT_OPEN : MZ_VERDICT_FAILED;
}

bool mz_verify_passed(const mz_verify_result *r) {
    return r->same && r->speed == MZ_VERDICT_MET && r->memory == MZ_VERDICT_MET && r->accuracy == MZ_VERDICT_MET;
}
