// Pairs of training runs that differ in their precision only.
#include "study/measure/verify.h"

#include <math.h>

#include "io/file.h"
#include "train/run.h"

#define LOGITS_MOST ((size_t)1 << 26) // numbers: of one validation batch
#define TURN_MOST   20                // steps

typedef struct side {
    mz_training train;
    mz_verify_run *out;
    double *losses; // [steps]: of each step
    int64_t timed;  // steps in out->seconds
    int64_t turn;   // steps in a turn
    int32_t *kept;  // [turn + 1, 2, B·T]: tokens and targets of a turn's last micro batches, and room for one more
} side;

typedef struct verifier {
    const mz_verify_options *o;
    mz_verify_result *r;
    mezzo_device *device; // of every run: what it measures to choose kernels, it measures once
    side sides[2];
    int64_t turn;
    double started;
    mz_verify_fn tell;
    void *user;
    mz_verify_progress progress;
} verifier;

// --- opening ------------------------------------------------------------------------------------------------------------------
static mezzo_status set(const mz_verify_options *o, const char *key, const char *value) {
    return mezzo_config_set(o->config, key, value, "verify");
}

// fp32 everywhere is what the other side is compared with: an override that lowers a module would be in both.
static mezzo_status check_overrides(const mz_run_config *c) {
    for (int i = 0; i < c->program.n_overrides; i++)
        if (c->program.overrides[i].precision != MEZZO_PRECISION_FP32)
            return mz_fail(MEZZO_ERR_INVALID,
                           "autocast.%s is %s: only fp32 is possible here, as the fp32 run has the same overrides",
                           c->program.overrides[i].pattern, mezzo_precision_name(c->program.overrides[i].precision));
    return MEZZO_OK;
}

static mezzo_status weights_crc(const mezzo_params *params, uint32_t *crc) {
    mezzo_status status = MEZZO_OK;
    *crc = 0;
    for (int i = 0; i < mezzo_params_count(params) && status == MEZZO_OK; i++) {
        const int64_t *shape = mezzo_params_shape(params, i);
        size_t n = 1;
        for (int d = 0; d < mezzo_params_rank(params, i); d++)
            n *= (size_t)shape[d];
        float *values = mz_alloc(n, sizeof *values);
        if (values == NULL)
            return MEZZO_ERR_MEMORY;
        status = mezzo_params_read(params, i, values);
        *crc = mz_crc32c(*crc, values, n * sizeof *values);
        mz_free(values);
    }
    return status;
}

static void take_memory(side *s) {
    mezzo_memory m;
    mezzo_program_memory(s->train.engine.train, &m);
    s->out->activations = m.activations;
    s->out->memory = m.masters + m.gradients + m.shadows + m.activations + m.workspace + m.inputs +
                     mezzo_optimizer_memory(s->train.engine.optimizer);
}

static int64_t turn_of(int64_t steps) {
    return steps / 10 < 1 ? 1 : steps / 10 < TURN_MOST ? steps / 10 : TURN_MOST;
}

static mezzo_status open_side(verifier *v, int which, mz_verify_run *out) {
    side *s = &v->sides[which];
    const mezzo_hooks hooks = {.stop = v->o->stop};
    *s = (side){.out = out};
    MEZZO_TRY(set(v->o, "amp.precision", mezzo_precision_name(which == 0 ? MEZZO_PRECISION_FP32 : v->r->asked)));
    MEZZO_TRY(mz_run_open_on(v->device, v->o->config, &hooks, &s->train));
    MEZZO_TRY(check_overrides(&s->train.config));
    if (s->train.val_all == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "there is no validation data: give data.path a text, or data.val");
    s->losses = mz_alloc((size_t)s->train.config.steps, sizeof *s->losses);
    if (s->losses == NULL)
        return MEZZO_ERR_MEMORY;
    for (int64_t i = 0; i < s->train.config.steps; i++)
        s->losses[i] = (double)NAN;
    s->turn = turn_of(s->train.config.steps);
    s->kept = mz_alloc((size_t)(s->turn + 1) * 2, s->train.count * sizeof *s->kept);
    if (s->kept == NULL)
        return MEZZO_ERR_MEMORY;
    take_memory(s);
    out->loss_scale = 1;
    return weights_crc(s->train.engine.params, &out->weights_crc);
}

static void close_side(side *s) {
    mz_run_close(&s->train);
    mz_free(s->losses);
    mz_free(s->kept);
    *s = (side){0};
}

// What both sides share, told from either.
static void describe(verifier *v) {
    mz_verify_result *r = v->r;
    const mz_training *t = &v->sides[1].train;
    r->model = t->engine.model;
    r->precision = t->engine.program.precision;
    r->residual = t->engine.program.residual;
    r->batch = t->config.batch_size;
    r->grad_accum = t->config.grad_accum;
    r->steps = t->config.steps;
    r->params_m = (double)mezzo_params_elements(t->engine.params) * 1e-6;
    snprintf(r->device, sizeof r->device, "%s", t->engine.info.description);
    snprintf(r->reason, sizeof r->reason, "%.390s", t->engine.precision_reason);
    snprintf(r->data, sizeof r->data, "%s",
             t->config.data_path[0] != '\0' ? t->config.data_path : t->config.data_train);
    v->turn = turn_of(r->steps);
    r->warmup = r->steps > v->turn ? v->turn : 0; // the first turn: kernels are chosen, graphs captured, caches filled
}

// --- training -----------------------------------------------------------------------------------------------------------------
static mezzo_status stopped(const verifier *v) {
    if (v->o->stop != NULL && *v->o->stop)
        return mz_fail(MEZZO_ERR_INTERRUPTED, "stopped at step %lld of seed %d of %d", (long long)v->progress.step,
                       v->progress.seed, v->progress.seeds);
    return MEZZO_OK;
}

// What the program was given, kept until the turn is over: the last micro batch of a step is still in the run's own buffers.
static void keep_data(side *s, int64_t i) {
    const mz_training *t = &s->train;
    int32_t *to = s->kept + (size_t)i * 2 * t->count;
    memcpy(to, t->inputs, t->count * sizeof *to);
    memcpy(to + t->count, t->targets, t->count * sizeof *to);
}

// Every micro batch of the last n steps; those that were overwritten are drawn again by their numbers.
static mezzo_status add_data(side *s, int64_t n) {
    const mz_training *t = &s->train;
    size_t bytes = 2 * t->count * sizeof *s->kept;
    uint64_t accum = (uint64_t)t->config.grad_accum, k = mezzo_loader_position(t->batches) - (uint64_t)n * accum;
    int32_t *drawn = s->kept + (size_t)s->turn * 2 * t->count;
    for (int64_t i = 0; i < n; i++, k++) {
        for (uint64_t micro = 0; micro + 1 < accum; micro++, k++) {
            MEZZO_TRY(mezzo_loader_batch(t->batches, k, drawn, drawn + t->count));
            s->out->data_crc = mz_crc32c(s->out->data_crc, drawn, bytes);
        }
        s->out->data_crc = mz_crc32c(s->out->data_crc, s->kept + (size_t)i * 2 * t->count, bytes);
    }
    return MEZZO_OK;
}

static mezzo_status note(side *s) {
    const mz_step_report *last = &s->train.engine.readout.last;
    mz_verify_run *out = s->out;
    s->losses[last->step - 1] = last->loss;
    out->skipped = last->state.skipped;
    if (s->train.engine.scaling.enabled) {
        double scale = (double)last->scaler.scale;
        if (out->n_changes == 0) {
            MEZZO_TRY(MZ_RESERVE(out->changes, out->cap_changes, 1));
            out->changes[out->n_changes++] = (mz_scale_change){1, s->train.engine.scaling.init_scale};
        }
        if (scale != out->changes[out->n_changes - 1].scale) {
            MEZZO_TRY(MZ_RESERVE(out->changes, out->cap_changes, out->n_changes + 1));
            out->changes[out->n_changes++] = (mz_scale_change){last->step + 1, scale};
        }
        out->loss_scale = scale;
    }
    return MEZZO_OK;
}

// A turn: steps one after the other as training runs them, timed from an idle device to an idle device.
static mezzo_status take_turn(verifier *v, side *s, int64_t to) {
    mz_training *t = &s->train;
    bool fresh;
    MEZZO_TRY(mezzo_device_sync(t->engine.device));
    double start = mz_seconds();
    int64_t from = t->step;
    for (int64_t i = 0; i < to - from; i++) {
        MEZZO_TRY(stopped(v));
        MEZZO_TRY(mz_run_step(t));
        MEZZO_TRY(mz_run_read_step(t, false, &fresh));
        if (fresh)
            MEZZO_TRY(note(s));
        keep_data(s, i);
    }
    MEZZO_TRY(mezzo_device_sync(t->engine.device));
    double seconds = mz_seconds() - start;
    if (from >= v->r->warmup) {
        s->out->seconds += seconds;
        s->timed += to - from;
    }
    MEZZO_TRY(mz_run_read_step(t, true, &fresh));
    if (fresh)
        MEZZO_TRY(note(s));
    return add_data(s, to - from);
}

static void show(verifier *v, const side *s, int which, double share) {
    mz_verify_progress *p = &v->progress;
    p->step = s->train.step;
    p->loss[which] = s->train.engine.readout.last.loss;
    p->seconds = mz_seconds() - v->started;
    double done = ((double)(p->seed - 1) + share) / (double)p->seeds;
    p->seconds_left = done > 0 ? p->seconds * (1 - done) / done : (double)NAN;
    if (v->tell != NULL)
        v->tell(v->user, p);
}

static mezzo_status train_in_turns(verifier *v) {
    int64_t steps = v->r->steps;
    for (int64_t step = 0, turn = 0; step < steps; step += v->turn, turn++) {
        int64_t to = step + v->turn < steps ? step + v->turn : steps;
        for (int i = 0; i < 2; i++) {
            int which = (int)((turn + i + (int64_t)v->progress.seed) % 2); // who is first alternates
            MEZZO_TRY(take_turn(v, &v->sides[which], to));
            show(v, &v->sides[which], which, ((double)(to - (i == 0 ? v->turn / 2 : 0))) / (double)steps);
        }
    }
    return MEZZO_OK;
}

static mezzo_status train_alone(verifier *v, int which) {
    int64_t steps = v->r->steps;
    for (int64_t step = 0; step < steps; step += v->turn) {
        int64_t to = step + v->turn < steps ? step + v->turn : steps;
        MEZZO_TRY(take_turn(v, &v->sides[which], to));
        show(v, &v->sides[which], which, (which + (double)to / (double)steps) / 2);
    }
    return MEZZO_OK;
}

// --- validating ---------------------------------------------------------------------------------------------------------------
typedef struct validation {
    mezzo_loader *loader;
    mezzo_graph *graph;
    mezzo_program *program;
    int32_t *inputs, *targets; // [rows, T]
    float *logits;             // [rows, T, V]
    size_t count;              // rows·T
    uint64_t batches, right, counted;
    double loss; // sum over targets
} validation;

static mezzo_status open_validation(const mz_training *t, validation *x) {
    size_t of_one = (size_t)(t->engine.model.seq_len * t->engine.model.vocab);
    int64_t rows = t->config.batch_size;
    while (rows > 1 && (size_t)rows * of_one > LOGITS_MOST)
        rows = (rows + 1) / 2;
    size_t count = (size_t)(rows * t->engine.model.seq_len);
    const mezzo_loader_options l = {.split = MEZZO_VALIDATION,
                                    .order = t->config.eval_iters > 0 ? MEZZO_LOADER_RANDOM : MEZZO_LOADER_SEQUENTIAL,
                                    .batch = rows,
                                    .length = t->engine.model.seq_len,
                                    .vocab = (int32_t)t->engine.model.vocab,
                                    .seed = mz_seed(t->config.seed, MZ_SEED_VALIDATION),
                                    .stream = (uint32_t)MEZZO_VALIDATION};
    mezzo_program_options options = t->engine.program;
    options.forward_only = true;
    options.recompute = false;
    x->inputs = mz_alloc(count, sizeof *x->inputs);
    x->targets = mz_alloc(count, sizeof *x->targets);
    x->logits = mz_alloc((size_t)rows * of_one, sizeof *x->logits);
    if (x->inputs == NULL || x->targets == NULL || x->logits == NULL)
        return MEZZO_ERR_MEMORY;
    MEZZO_TRY(mezzo_loader_create(t->corpus, &l, &x->loader));
    MEZZO_TRY(mezzo_graph_create(&x->graph));
    MEZZO_TRY(mezzo_model_build(x->graph, &t->engine.model, rows, t->engine.model.seq_len, true));
    MEZZO_TRY(mezzo_program_create(x->graph, t->engine.params, &options, &x->program));
    x->count = count;
    x->batches = mezzo_loader_batches(x->loader);
    if (t->config.eval_iters > 0) // as many tokens as training's own validation sees
        x->batches = (uint64_t)((t->config.eval_iters * t->config.batch_size + rows - 1) / rows);
    return MEZZO_OK;
}

static mezzo_status validate_batch(const mz_training *t, validation *x, uint64_t k) {
    size_t bytes = x->count * sizeof *x->inputs, vocab = (size_t)t->engine.model.vocab;
    float mean;
    uint64_t valid = 0;
    MEZZO_TRY(mezzo_loader_batch(x->loader, k, x->inputs, x->targets));
    MEZZO_TRY(mezzo_program_write(x->program, "tokens", x->inputs, bytes));
    MEZZO_TRY(mezzo_program_write(x->program, "targets", x->targets, bytes));
    MEZZO_TRY(mezzo_program_run(x->program, NULL, 0, 0));
    MEZZO_TRY(mezzo_program_read(x->program, "logits", x->logits, x->count * vocab * sizeof *x->logits));
    MEZZO_TRY(mezzo_program_read(x->program, "loss", &mean, sizeof mean));
    for (size_t i = 0; i < x->count; i++) {
        const float *row = x->logits + i * vocab; // [V]
        size_t best = 0;
        if (x->targets[i] < 0) // a window's empty end
            continue;
        for (size_t c = 1; c < vocab; c++)
            best = row[c] > row[best] ? c : best;
        x->right += best == (size_t)x->targets[i];
        valid++;
    }
    x->loss += (double)mean * (double)valid;
    x->counted += valid;
    return MEZZO_OK;
}

// Loss and share of right next tokens, in the precision that was trained in.
static mezzo_status validate(verifier *v, side *s) {
    validation x = {0};
    mezzo_status status = open_validation(&s->train, &x);
    for (uint64_t k = 0; k < x.batches && status == MEZZO_OK; k++) {
        status = stopped(v);
        if (status == MEZZO_OK)
            status = validate_batch(&s->train, &x, k);
    }
    if (status == MEZZO_OK && x.counted > 0) {
        s->out->val_loss = x.loss / (double)x.counted;
        s->out->accuracy = (double)x.right / (double)x.counted;
    }
    v->r->val_tokens = x.counted;
    mezzo_program_free(x.program);
    mezzo_graph_free(x.graph);
    mezzo_loader_free(x.loader);
    mz_free(x.inputs);
    mz_free(x.targets);
    mz_free(x.logits);
    return status;
}

static mezzo_status finish_side(verifier *v, side *s) {
    int64_t steps = v->r->steps, last = steps / 10 > 0 ? steps / 10 : 1;
    double tokens = (double)s->train.count * (double)v->r->grad_accum * (double)s->timed;
    s->out->tokens_per_second = tokens / s->out->seconds;
    s->out->train_loss = mz_mean(s->losses + (steps - last), (size_t)last);
    return validate(v, s);
}

// --- pairs ----------------------------------------------------------------------------------------------------------------------
static mezzo_status run_both(verifier *v, mz_verify_pair *pair) {
    MEZZO_TRY(open_side(v, 1, &pair->run[1])); // the candidate first: it is the one that may make no sense
    describe(v);
    if (v->r->precision == MEZZO_PRECISION_FP32)
        return mz_fail(MEZZO_ERR_INVALID, "nothing to compare fp32 with: %s. Name a precision (--precision bf16)",
                       v->r->reason);
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
    mz_log("notice", "both runs at a time do not fit: one after the other (%s)", mezzo_error_message());
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
        accuracy[i] = b->accuracy - a->accuracy;
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

mezzo_status mz_verify(const mz_verify_options *o, mz_verify_fn tell, void *user, mz_verify_result *out) {
    mz_run_config c;
    *out = (mz_verify_result){0};
    if (o->seeds < 1 || o->seeds > MZ_VERIFY_SEEDS)
        return mz_fail(MEZZO_ERR_INVALID, "%d seeds: 1 to %d are possible", o->seeds, MZ_VERIFY_SEEDS);
    MEZZO_TRY(set(o, "train.sample_every", "-1"));
    MEZZO_TRY(set(o, "guard.policy", "off")); // a step that is not finite is skipped and counted; nothing goes back
    MEZZO_TRY(mz_run_config_read(o->config, &c));
    out->asked = c.program.precision;
    uint64_t first = c.seed;
    verifier *v = mz_alloc(1, sizeof *v);
    if (v == NULL)
        return MEZZO_ERR_MEMORY;
    *v = (verifier){.o = o, .r = out, .started = mz_seconds(), .tell = tell, .user = user};
    v->progress.seeds = o->seeds;
    v->progress.steps = c.steps;
    mezzo_status status = mezzo_device_open(c.device, c.threads, &v->device);
    for (int i = 0; i < o->seeds && status == MEZZO_OK; i++) {
        v->progress.seed = i + 1;
        status = run_pair(v, first + (uint64_t)i);
    }
    mezzo_device_close(v->device);
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
        }
}
