// A training step runs micro batches and then a static list of calls.
#include "optim/step.h"

#include <math.h>

#include "runtime/program.h"

enum { SCALED, UNSCALED, LISTS }; // whether gradients stay scaled

struct mezzo_step {
    mezzo_program *program; // borrowed, as are all of these
    mezzo_device *device;
    mezzo_params *params;
    mezzo_optimizer **optimizers;
    int n_optimizers;
    mezzo_scaler *scaler;
    mz_ranks *ranks; // NULL: this process alone
    mz_tracker tracker;
    int rank, size;
    int asked; // MZ_ASKED_… of this rank
    int64_t micro_batches;
    double clip;
    uint64_t version;          // grows when clip changes
    mz_sequence *lists[LISTS]; // made when first needed
    uint64_t made[LISTS];      // the versions for which the lists were made; 0: not yet
    const void *loss;          // on the device
    mezzo_dtype loss_dtype;
    // Two alternating places for a step's results: a loss for each micro batch, the optimizers' states, the scaler's
    // block.
    mz_fetch *fetch[2];
    size_t states_at, scaler_at;
    int64_t micro; // micro batches of the present step that have run
    int64_t index; // number of finished steps
};

// --- creation -------------------------------------------------------------------------------------------------------
static mezzo_status check_owners(const mezzo_step *s) {
    for (int i = 0; i < s->n_optimizers; i++) {
        const mezzo_optimizer *a = s->optimizers[i];
        if (a->params != s->params)
            return mz_fail(MEZZO_ERR_INVALID, "step: optimizer %d owns other parameters than the program's", i);
        for (int k = 0; k < i; k++)
            for (int x = 0; x < a->n; x++)
                for (int y = 0; y < s->optimizers[k]->n; y++)
                    if (a->index[x] == s->optimizers[k]->index[y])
                        return mz_fail(MEZZO_ERR_INVALID, "step: %s belongs to optimizers %d and %d",
                                       mezzo_params_name(s->params, a->index[x]), k, i);
    }
    return MEZZO_OK;
}

static mezzo_status check_step_clip(double clip) {
    return clip == 0 ? MEZZO_OK : mz_check_clip(clip);
}

static mezzo_status check_list(mezzo_optimizer *const *optimizers, int n) {
    if (optimizers == NULL || n < 1 || n > MZ_SCALER_OPTIMIZERS)
        return mz_fail(MEZZO_ERR_INVALID, "step: %d optimizers: use 1 to %d", optimizers != NULL ? n : 0,
                       MZ_SCALER_OPTIMIZERS);
    for (int i = 0; i < n; i++)
        if (optimizers[i] == NULL)
            return mz_fail(MEZZO_ERR_INVALID, "step: optimizer %d is NULL", i);
    return MEZZO_OK;
}

static mezzo_status check(const mezzo_step *s) {
    if (s->program->options.forward_only)
        return mz_fail(MEZZO_ERR_INVALID, "step: the program is forward-only: it writes no gradients");
    if (s->scaler != NULL && s->scaler->device != s->device)
        return mz_fail(MEZZO_ERR_INVALID, "step: the scaler is on another device than the program");
    if (s->micro_batches < 1 || s->micro_batches > 1 << 20)
        return mz_fail(MEZZO_ERR_INVALID, "step: %lld micro batches: use 1 to %d", (long long)s->micro_batches,
                       1 << 20);
    MEZZO_TRY(check_step_clip(s->clip));
    return check_owners(s);
}

static mezzo_status find_loss(mezzo_step *s) {
    const mezzo_graph *g = s->program->c.graph;
    s->loss_dtype = g->values[g->loss].dtype;
    return mz_program_output_address(s->program, "loss", &s->loss);
}

static mezzo_status open_fetches(mezzo_step *s) {
    size_t losses = (size_t)s->micro_batches * mezzo_dtype_size(s->loss_dtype);
    if (s->ranks != NULL)
        (void)mz_ranks_step_record(s->ranks, &losses);
    s->states_at = mz_align_up(losses, 64);
    s->scaler_at = s->states_at + mz_align_up((size_t)s->n_optimizers * sizeof(mz_opt_state), 64);
    for (int i = 0; i < 2; i++)
        MEZZO_TRY(s->device->backend->fetch_open(s->device, s->scaler_at + sizeof(mz_scaler_block), &s->fetch[i]));
    return MEZZO_OK;
}

mezzo_status mezzo_step_create(mezzo_program *program, mezzo_optimizer *const *optimizers, int n_optimizers,
                               mezzo_scaler *scaler, const mezzo_step_options *options, mezzo_step **out) {
    MZ_REQUIRE(program, out);
    return mz_step_create(program, optimizers, n_optimizers, scaler, options, NULL, out);
}

mezzo_status mz_step_create(mezzo_program *program, mezzo_optimizer *const *optimizers, int n_optimizers,
                            mezzo_scaler *scaler, const mezzo_step_options *options, mz_ranks *ranks,
                            mezzo_step **out) {
    const mezzo_step_options none = {0};
    mezzo_status status;
    *out = NULL;
    MEZZO_TRY(check_list(optimizers, n_optimizers));
    options = options != NULL ? options : &none;
    mezzo_step *s = mz_alloc(1, sizeof *s);
    if (s == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    s->program = program;
    s->device = program->device;
    s->params = program->params;
    s->scaler = scaler;
    s->ranks = ranks;
    s->rank = ranks != NULL && s->device->comm != NULL ? s->device->comm->rank : 0;
    s->size = ranks != NULL && s->device->comm != NULL ? s->device->comm->size : 1;
    s->n_optimizers = n_optimizers;
    s->micro_batches = options->micro_batches == 0 ? 1 : options->micro_batches;
    s->clip = options->clip;
    const size_t n = (size_t)n_optimizers;
    s->optimizers = mz_alloc(n, sizeof(mezzo_optimizer *));
    if (s->optimizers == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    for (size_t i = 0; i < n; i++)
        s->optimizers[i] = optimizers[i];
    MEZZO_TRY_GOTO(status, check(s));
    for (int i = 0; i < LISTS; i++)
        MEZZO_TRY_GOTO(status, mz_sequence_create(s->device, &s->lists[i]));
    MEZZO_TRY_GOTO(status, find_loss(s));
    MEZZO_TRY_GOTO(status, open_fetches(s));
    MEZZO_TRY_GOTO(status, mz_tracker_open(program, s->size * s->micro_batches, &s->tracker));
    *out = s;
    return MEZZO_OK;
fail:
    mezzo_step_free(s);
    return status;
}

void mezzo_step_free(mezzo_step *s) {
    if (!mz_free_once(s, "step"))
        return;
    for (int i = 0; i < LISTS; i++)
        mz_sequence_free(s->lists[i]);
    for (int i = 0; i < 2; i++)
        s->device->backend->fetch_close(s->device, s->fetch[i]);
    mz_tracker_close(&s->tracker);
    MZ_FREE(s->optimizers, s);
}

mezzo_status mezzo_step_set_clip(mezzo_step *s, double clip) {
    MZ_REQUIRE(s);
    MEZZO_TRY(check_step_clip(clip));
    s->version += clip != s->clip;
    s->clip = clip;
    return MEZZO_OK;
}

// --- the list ------------------------------------------------------------------------------------------------------
// Returns a number that grows with everything that the list's calls and constants depend on.
static uint64_t version_of(const mezzo_step *s) {
    uint64_t sum = 1 + s->version + (s->scaler != NULL ? s->scaler->version : 0) + s->params->overlaps_update +
                   (uint64_t)s->params->scales.n;
    for (int i = 0; i < s->n_optimizers; i++)
        sum += s->optimizers[i]->version;
    return sum;
}

// Moves tracked parameters first, because the updates may be deferred.
static mezzo_status issue_tracked(mezzo_step *s, mz_sequence *list) {
    mz_tracker *t = &s->tracker;
    if (t->count > 0 && s->ranks != NULL)
        MEZZO_TRY(mz_ranks_issue_gather(s->ranks, list, t->rows, s->micro_batches * t->count, MEZZO_F32));
    return mz_tracker_issue(t, list, s->params->scattered ? s->size : 1, s->optimizers[0]->d_state);
}

static mezzo_status make_list(mezzo_step *s, mz_sequence *list, bool in_place) {
    const mezzo_optimizer *all[MZ_SCALER_OPTIMIZERS];
    bool scaling = s->scaler != NULL && s->scaler->update.enabled;
    float *scale = scaling ? &s->scaler->head.block->scale : NULL;
    MEZZO_TRY(mz_sequence_clear(list));
    MEZZO_TRY(issue_tracked(s, list));
    if (s->ranks != NULL)
        MEZZO_TRY(mz_ranks_issue_sum(s->ranks, list));
    for (int i = 0; i < s->n_optimizers; i++) {
        all[i] = s->optimizers[i];
        // The update follows at once, and gradients are zeroed after it: if it divides, no pass over the gradients is
        // needed.
        MEZZO_TRY(mz_optimizer_issue_stats(s->optimizers[i], list, scale, mz_can_defer(s->device) && !in_place));
    }
    if (s->ranks != NULL)
        MEZZO_TRY(mz_ranks_issue_norm(s->ranks, s->optimizers[0], list));
    for (int i = 0; i < s->n_optimizers && s->clip > 0; i++)
        MEZZO_TRY(mz_optimizer_issue_clip(s->optimizers[i], list, s->clip));
    for (int i = 0; i < s->n_optimizers; i++)
        MEZZO_TRY(mz_optimizer_begin_update(s->optimizers[i], list));
    if (s->ranks != NULL)
        MEZZO_TRY(mz_ranks_issue_early_gather(s->ranks, all, s->n_optimizers, list));
    for (int i = 0; i < s->n_optimizers; i++)
        MEZZO_TRY(mz_optimizer_end_update(s->optimizers[i], list));
    if (s->ranks != NULL)
        MEZZO_TRY(mz_ranks_issue_gather_params(s->ranks, list));
    if (s->scaler != NULL)
        return mz_scaler_issue_update(s->scaler, list, all, s->n_optimizers);
    for (int i = 0; i < s->n_optimizers; i++)
        MEZZO_TRY(mz_optimizer_issue_reset(s->optimizers[i], list));
    return MEZZO_OK;
}

static mezzo_status run_list(mezzo_step *s, bool in_place) {
    int which = in_place ? UNSCALED : SCALED;
    for (int i = 0; i < s->n_optimizers; i++)
        MEZZO_TRY(mz_optimizer_follow(s->optimizers[i]));
    uint64_t version = version_of(s);
    if (s->made[which] != version) {
        s->made[which] = 0;
        MEZZO_TRY(make_list(s, s->lists[which], in_place));
        s->made[which] = version;
    }
    return mz_sequence_run(s->lists[which]);
}

// --- running -------------------------------------------------------------------------------------------------------
static mz_fetch *fetch_of(const mezzo_step *s, int64_t index) {
    return s->fetch[index & 1];
}

mezzo_status mezzo_step_micro(mezzo_step *s, uint64_t seed, uint64_t index) {
    MZ_REQUIRE(s);
    if (s->micro == s->micro_batches)
        return mz_fail(MEZZO_ERR_INVALID, "step: all %lld micro batches have run: finish or drop the step",
                       (long long)s->micro_batches);
    size_t bytes = mezzo_dtype_size(s->loss_dtype);
    const bool last = s->micro + 1 == s->micro_batches;
    MEZZO_TRY(last ? mz_program_run_last(s->program, s->scaler, seed, index)
                   : mezzo_program_run(s->program, s->scaler, seed, index));
    if (s->ranks != NULL)
        MEZZO_TRY(mz_ranks_micro(s->ranks, s->micro, s->loss));
    else
        MEZZO_TRY(
            s->device->backend->fetch(s->device, fetch_of(s, s->index + 1), (size_t)s->micro * bytes, s->loss, bytes));
    MEZZO_TRY(mz_tracker_keep(&s->tracker, s->rank * s->micro_batches + s->micro));
    s->micro++;
    return MEZZO_OK;
}

static mezzo_status check_ready(const mezzo_step *s) {
    if (s->micro < s->micro_batches)
        return mz_fail(MEZZO_ERR_INVALID, "step: %lld of %lld micro batches have run", (long long)s->micro,
                       (long long)s->micro_batches);
    for (int i = 0; i < s->n_optimizers; i++) {
        if (s->optimizers[i]->pending != NULL)
            return mz_fail(MEZZO_ERR_INVALID,
                           "step: optimizer %d was unscaled or stepped by a scaler that has not "
                           "been updated since: the step does that itself",
                           i);
        if (!mz_optimizer_has_grads(s->optimizers[i]))
            return mz_fail(MEZZO_ERR_INVALID, "step: the program writes no gradient that optimizer %d owns", i);
    }
    return MEZZO_OK;
}

static mezzo_status fetch_values(mezzo_step *s) {
    const mz_backend *b = s->device->backend;
    mz_fetch *fetch = fetch_of(s, s->index);
    for (int i = 0; i < s->n_optimizers; i++)
        MEZZO_TRY(b->fetch(s->device, fetch, s->states_at + (size_t)i * sizeof(mz_opt_state), s->optimizers[i]->d_state,
                           sizeof(mz_opt_state)));
    if (s->ranks != NULL) {
        size_t bytes;
        const void *kept = mz_ranks_step_record(s->ranks, &bytes);
        MEZZO_TRY(b->fetch(s->device, fetch, 0, kept, bytes));
    }
    if (s->scaler != NULL)
        MEZZO_TRY(b->fetch(s->device, fetch, s->scaler_at, s->scaler->head.block, sizeof(mz_scaler_block)));
    return MEZZO_OK;
}

mezzo_status mz_step_finish(mezzo_step *s, bool in_place) {
    MEZZO_TRY(check_ready(s));
    if (s->ranks != NULL)
        MEZZO_TRY(mz_ranks_ask(s->ranks, s->asked));
    MEZZO_TRY(run_list(s, in_place));
    s->params->scales.steps++;
    for (int i = 0; i < s->n_optimizers; i++)
        s->optimizers[i]->touched = false;
    MEZZO_TRY(mezzo_params_zero_grad(s->params));
    s->micro = 0;
    s->index++;
    MEZZO_TRY(fetch_values(s));
    if (s->scaler != NULL)
        MEZZO_TRY(mz_scaler_check_floor(s->scaler));
    return MEZZO_OK;
}

void mz_step_take_back(mezzo_step *s) {
    s->params->scales.steps--;
    for (int i = 0; i < s->n_optimizers; i++)
        s->optimizers[i]->touched = true;
    s->micro = s->micro_batches;
    s->index--;
}

void mz_step_ask(mezzo_step *s, int asked) {
    s->asked = asked;
}

mezzo_status mezzo_step_finish(mezzo_step *s) {
    MZ_REQUIRE(s);
    return mz_step_finish(s, false);
}

mezzo_status mezzo_step_drop(mezzo_step *s) {
    MZ_REQUIRE(s);
    s->micro = 0;
    MEZZO_TRY(mz_scales_drop(s->device, &s->params->scales));
    for (int i = 0; i < s->n_optimizers; i++)
        if (s->optimizers[i]->touched && s->optimizers[i]->pending == NULL)
            MEZZO_TRY(mz_optimizer_reset(s->optimizers[i]));
    return mezzo_params_zero_grad(s->params);
}

mezzo_status mezzo_step_run(mezzo_step *s, uint64_t seed, uint64_t first, mezzo_fill_fn fill, void *user) {
    MZ_REQUIRE(s);
    if (fill == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "mezzo_step_run: fill is NULL");
    if (s->micro > 0)
        return mz_fail(MEZZO_ERR_INVALID, "step: %lld micro batches have run: finish or drop the step",
                       (long long)s->micro);
    mezzo_status status = MEZZO_OK;
    for (int64_t i = 0; i < s->micro_batches && status == MEZZO_OK; i++) {
        status = fill(user, s->program, first + (uint64_t)i);
        if (status == MEZZO_OK)
            status = mezzo_step_micro(s, seed, first + (uint64_t)i);
    }
    if (status != MEZZO_OK) {
        (void)mezzo_step_drop(s);
        return mz_trace(status, __FILE__, __LINE__, __func__);
    }
    return mezzo_step_finish(s);
}

// --- reading -------------------------------------------------------------------------------------------------------
// Adds losses in FP64, in the order of the micro batches.
static mezzo_status mean_loss(const mezzo_step *s, const void *host, const double *shares, double *out) {
    size_t bytes = mezzo_dtype_size(s->loss_dtype);
    double sum = 0;
    for (int64_t i = 0; i < s->micro_batches; i++) {
        double loss;
        MEZZO_TRY(mezzo_convert((const char *)host + (size_t)i * bytes, s->loss_dtype, &loss, MEZZO_F64, 1));
        sum += shares != NULL ? shares[i] * loss : loss;
    }
    *out = sum / (double)s->micro_batches;
    return MEZZO_OK;
}

mezzo_status mz_step_values_of(mezzo_step *s, int back, const double *shares, mz_step_values *out) {
    const void *host;
    *out = (mz_step_values){.loss = (double)NAN, .scaler.scale = 1};
    MEZZO_TRY(s->device->backend->fetched(s->device, fetch_of(s, s->index - back), &host));
    if (s->ranks != NULL)
        mz_ranks_read_step_record(s->ranks, host, shares, &out->loss, &out->asked);
    else
        MEZZO_TRY(mean_loss(s, host, shares, &out->loss));
    for (int i = s->n_optimizers; i-- > 0;) { // the values of the first optimizer are the last ones written
        memcpy(&out->state, (const char *)host + s->states_at + (size_t)i * sizeof out->state, sizeof out->state);
        out->found_inf = out->found_inf || out->state.last_found_inf;
    }
    if (s->scaler != NULL)
        memcpy(&out->scaler, (const char *)host + s->scaler_at, sizeof out->scaler);
    return MEZZO_OK;
}

mezzo_status mezzo_step_read(mezzo_step *s, bool wait, mezzo_step_report *out) {
    MZ_REQUIRE(s, out);
    int back = !wait && s->device->backend->queue ? 1 : 0;
    mz_step_values v;
    *out = (mezzo_step_report){.loss = (double)NAN, .scale = 1};
    if (s->index - back < 1)
        return MEZZO_OK;
    MEZZO_TRY(mz_step_values_of(s, back, NULL, &v));
    *out = (mezzo_step_report){.index = s->index - back,
                               .loss = v.loss,
                               .scale = (double)v.scaler.scale,
                               .found_inf = v.found_inf,
                               .info = mz_step_info_of(&v.state)};
    return MEZZO_OK;
}
