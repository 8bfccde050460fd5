// An optimizer lists the calls of a step, and knows when a number on the device is out of date. The backend has the
// arithmetic.
#include "optim/optimizer.h"

#include <math.h>
#include <stdlib.h>

#include "optim/orthogonal.h"
#include "optim/scaler.h"

// --- creation ------------------------------------------------------------------------------------------------------
static void set_schedule(mz_update_attrs *update, const mezzo_schedule *s) {
    update->schedule = (int)s->kind;
    update->lr = s->lr;
    update->min_lr = s->min_lr;
    update->power = s->power;
    update->warmup = s->warmup;
    update->steps = s->steps;
}

static bool matches(const char *pattern, const char *name, int rank) {
    return strcmp(pattern, MEZZO_MATRICES) == 0 ? mz_is_block_matrix(name, rank) : mz_names_parameter(pattern, name);
}

static bool owns(const mezzo_optimizer_options *o, const char *name, int rank) {
    if (o->patterns == NULL)
        return true;
    for (int i = 0; i < o->n_patterns; i++)
        if (matches(o->patterns[i], name, rank))
            return true;
    return false;
}

int mz_optimizer_group_for(const mezzo_optimizer_options *o, const char *name, int rank) {
    int g = 0;
    while (g < o->n_groups && !owns(&o->groups[g], name, rank))
        g++;
    return g;
}

static mezzo_status check_patterns(const mezzo_params *params, const mezzo_optimizer_options *o, const char *whose) {
    for (int p = 0; o->patterns != NULL && p < o->n_patterns; p++) {
        bool found = false;
        for (int i = 0; i < mezzo_params_count(params) && !found; i++)
            found = matches(o->patterns[p], params->list[i].name, params->list[i].shape.rank);
        if (!found)
            return strcmp(o->patterns[p], MEZZO_MATRICES) == 0
                       ? mz_fail(MEZZO_ERR_INVALID,
                                 "%s: no parameter is a matrix of a block, which has a number in its name: choose "
                                 "matrices by names (--optimizer.groups PATTERN=muon)",
                                 whose)
                       : mz_fail(MEZZO_ERR_INVALID, "%s: no parameter's name matches \"%s\"", whose, o->patterns[p]);
    }
    return MEZZO_OK;
}

static mezzo_status choose_members(mezzo_optimizer *opt, const mezzo_optimizer_options *o) {
    int count = mezzo_params_count(opt->params);
    MEZZO_TRY(check_patterns(opt->params, o, "optimizer"));
    for (int g = 0; g < o->n_groups; g++)
        MEZZO_TRY(check_patterns(opt->params, &o->groups[g], "optimizer groups"));
    MEZZO_TRY(MZ_NEW(opt->index, (size_t)count + 1));
    MEZZO_TRY(MZ_NEW(opt->group_of, (size_t)count + 1));
    MEZZO_TRY(MZ_NEW(opt->begin, (size_t)count + 1));
    for (int i = 0; i < count; i++) {
        const mz_param *p = &opt->params->list[i];
        if (p->frozen || !owns(o, p->name, p->shape.rank))
            continue;
        opt->group_of[opt->n] = mz_optimizer_group_for(o, p->name, p->shape.rank);
        opt->index[opt->n++] = i;
    }
    if (opt->n == 0)
        return mz_fail(
            MEZZO_ERR_INVALID,
            "optimizer: no parameter to own that is not frozen: give it patterns that match, or none for all");
    return MEZZO_OK;
}

// Fills the groups' rules; the last one is the optimizer's own.
static void fill_groups(mezzo_optimizer *opt, const mezzo_optimizer_options *o) {
    opt->n_groups = opt->update.n_groups = o->n_groups + 1;
    for (int g = 0; g < opt->n_groups; g++) {
        const bool is_rest = g == o->n_groups;
        const mezzo_optimizer_options *from = is_rest ? o : &o->groups[g];
        opt->groups[g] = (mz_group){.kind = &mz_kinds[from->kind],
                                    .decay_min_rank = from->decay_min_rank,
                                    .orthogonal = from->orthogonal,
                                    .update.rule = {.lr_factor = is_rest ? 1 : from->lr_factor,
                                                    .weight_decay = from->weight_decay,
                                                    .beta1 = from->beta1,
                                                    .beta2 = from->beta2,
                                                    .eps = from->eps,
                                                    .momentum = from->momentum,
                                                    .dampening = from->dampening,
                                                    .nesterov = from->nesterov,
                                                    .ema = o->ema,
                                                    .seed = opt->params->seed,
                                                    .group = g}};
        opt->update.betas[g][0] = from->beta1;
        opt->update.betas[g][1] = from->beta2;
    }
}

static int moments_of(const mezzo_optimizer *opt, int i) {
    const mz_group *group = &opt->groups[opt->group_of[i]];
    return group->kind->moments(&group->update.rule);
}

// Counts moments and finds where each parameter's begin. Parameters that keep the most moments come first, so that a
// buffer of moments has no space for parameters without them.
static void place_moments(mezzo_optimizer *opt, const mezzo_optimizer_options *o, int64_t *place) {
    int most = 0;
    int64_t at = 0;
    for (int i = 0; i < opt->n; i++)
        most = moments_of(opt, i) > most ? moments_of(opt, i) : most;
    if (o != NULL) {
        opt->ema = o->ema > 0 ? most : -1;
        opt->n_moments = most + (o->ema > 0);
    }
    for (int moments = most; moments >= 0; moments--) {
        for (int i = 0; i < opt->n; i++) {
            if (moments_of(opt, i) != moments)
                continue;
            place[i] = at;
            at += (int64_t)mz_align_up((size_t)opt->params->list[opt->index[i]].stored,
                                       (size_t)mz_moments_unit(opt->moments));
        }
        if (moments > 0)
            opt->moment_elements[moments - 1] = at;
    }
    if (opt->ema >= 0)
        opt->moment_elements[opt->ema] = at;
    for (int m = 0; m < opt->n_moments && opt->rank >= 0; m++)
        opt->moment_elements[m] = mz_params_shard_elements(opt->params);
}

static mezzo_status add_segment(mezzo_optimizer *opt, const mz_segment *segment) {
    MEZZO_TRY(MZ_RESERVE(opt->segments, opt->cap_segments, opt->n_segments + 1));
    opt->segments[opt->n_segments++] = *segment;
    return MEZZO_OK;
}

// Adds this rank's shards of a parameter, region by region, or an empty one where it has none.
static mezzo_status add_parts(mezzo_optimizer *opt, int i, const mz_segment *whole) {
    mz_segment part = *whole;
    const size_t before = opt->n_segments;
    for (int k = 0; k < opt->params->n_regions; k++) {
        mz_params_shard(opt->params, opt->index[i], opt->rank, k, &part.first, &part.count, &part.state_offset);
        if (opt->params->scattered) // gradients have the places of moments
            part.grad_shift = part.offset - part.state_offset;
        if (opt->params->sharded) // masters have them, too
            part.master_shift = part.offset - part.state_offset;
        if (part.count > 0)
            MEZZO_TRY(add_segment(opt, &part));
    }
    part = *whole;
    part.count = part.state_offset = 0;
    return opt->n_segments > before ? MEZZO_OK : add_segment(opt, &part);
}

// Returns where a rank's segment begins in a buffer that has the rank's shards alone, one after another; -1: it is
// empty.
static int64_t place_of(const mz_segment *s) {
    return s->count > 0 ? s->state_offset + s->first : -1;
}

static int by_place(const void *a, const void *b) {
    const int64_t x = place_of(a), y = place_of(b);
    return (x > y) - (x < y);
}

// Places segments group by group; ranks exchange the first ones as soon as they are updated.
static mezzo_status place_segments(mezzo_optimizer *opt) {
    int n = 0;
    MZ_FREE(opt->placed, opt->owner);
    opt->placed = mz_alloc(opt->n_segments + 1, sizeof *opt->placed);
    opt->owner = mz_alloc(opt->n_segments + 1, sizeof *opt->owner);
    if (opt->placed == NULL || opt->owner == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int g = 0; g < opt->n_groups; g++) {
        opt->groups[g].first = n;
        for (int i = 0; i < opt->n; i++)
            for (size_t k = opt->begin[i]; opt->group_of[i] == g && k < opt->begin[i + 1]; k++) {
                opt->owner[n] = i;
                opt->placed[n++] = opt->segments[k];
            }
        opt->groups[g].n = n - opt->groups[g].first;
        if (opt->rank >= 0)
            qsort(opt->placed + opt->groups[g].first, (size_t)opt->groups[g].n, sizeof *opt->placed, by_place);
    }
    return MEZZO_OK;
}

// Fills the segments. Offsets are the parameters' own; moments follow one another, without the parameters of other
// optimizers.
static mezzo_status fill_segments(mezzo_optimizer *opt, const mezzo_optimizer_options *o) {
    int64_t *places = mz_alloc((size_t)opt->n + 1, sizeof *places);
    mezzo_status status = MEZZO_OK;
    if (places == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    opt->n_segments = 0;
    const mz_low_copy *low_copy = opt->params->n_low_copies > 0 ? &opt->params->low_copies[0] : NULL;
    int64_t width = low_copy != NULL ? (int64_t)mezzo_dtype_size(low_copy->dtype) : 0;
    place_moments(opt, o, places);
    for (int i = 0; i < opt->n && status == MEZZO_OK; i++) {
        const mz_param *p = &opt->params->list[opt->index[i]];
        bool shadowed = low_copy != NULL && p->low_copy_slot >= 0;
        const mz_segment whole = {.offset = p->counted,
                                  .count = p->count,
                                  .state_offset = places[i],
                                  .low_copy_offset = shadowed ? p->low_copy_place * width : MZ_NO_LOW_COPY,
                                  .low_copy_dtype = shadowed ? (int32_t)low_copy->dtype : 0,
                                  .decay = p->shape.rank >= opt->groups[opt->group_of[i]].decay_min_rank,
                                  .layout = p->layout,
                                  .key = p->key,
                                  .low_offset = p->low_offset,
                                  .master = (int32_t)p->master};
        opt->begin[i] = opt->n_segments;
        status = opt->rank >= 0 ? add_parts(opt, i, &whole) : add_segment(opt, &whole);
    }
    mz_free(places);
    MEZZO_TRY(status);
    opt->begin[opt->n] = opt->n_segments;
    opt->n_low_copies = opt->params->n_low_copies;
    MEZZO_TRY(mz_stacks_lay_out(opt));
    return place_segments(opt);
}

static mezzo_status write_segments(mezzo_optimizer *opt) {
    return opt->device->backend->write(opt->device, opt->d_segments, opt->placed,
                                       opt->n_segments * sizeof *opt->placed);
}

static mezzo_status alloc_state(mezzo_optimizer *opt) {
    const mz_backend *b = opt->device->backend;
    MEZZO_TRY(b->alloc(opt->device, opt->n_segments * sizeof *opt->segments, &opt->d_segments));
    void *state = NULL;
    MEZZO_TRY(b->alloc(opt->device, sizeof *opt->d_state, &state));
    opt->d_state = state;
    for (int i = 0; i < opt->n_moments; i++)
        MEZZO_TRY(
            b->alloc(opt->device, mz_optimizer_moment_bytes(opt, i, opt->moment_elements[i]), &opt->d_moments[i]));
    mz_opt_state initial = {.clip = 1, .last_clip = 1};
    MEZZO_TRY(b->write(opt->device, opt->d_state, &initial, sizeof initial));
    return MEZZO_OK;
}

static mezzo_status choose(mezzo_optimizer *opt, mz_update_op *op, mz_op which, size_t *scratch) {
    op->call.op = which;
    op->call.attrs.update = &opt->update;
    op->call.numerics = (mz_numerics){MEZZO_F32, MEZZO_F32, MEZZO_F64};
    mz_prepared_free(&op->prepared); // it was prepared for other tensors
    MEZZO_TRY(mz_prepare(opt->device, &op->call, &op->prepared));
    *scratch = op->prepared.workspace > *scratch ? op->prepared.workspace : *scratch;
    return MEZZO_OK;
}

static mz_tensor moment_tensor(const mezzo_optimizer *opt, int which) {
    return mz_optimizer_moment(opt, which, 0, opt->moment_elements[which]);
}

// Fills the slots of an update as ops.def names them; all kinds have the same ones.
static void fill_update(mezzo_optimizer *opt, mz_group *group, mz_tensor grad, mz_tensor master, mz_tensor state) {
    const int moments = group->kind->moments(&group->update.rule);
    mz_call *call = &group->whole.call;
    *call = (mz_call){.n_in = 3, .in = {grad, mz_tensor_absent(), state}, .n_out = MZ_OUT(adamw, ema) + 1};
    mz_segment *segments =
        opt->d_segments != NULL ? (mz_segment *)opt->d_segments + group->first : NULL; // NULL in a sketch
    call->in[MZ_IN(adamw, segments)] = mz_tensor_segments(opt->params, segments, (size_t)group->n);
    call->in[MZ_IN(adamw, quantized)] = mz_tensor_absent(); // kernels that write quantized data ask for this slot
    for (int i = 0; i < call->n_out; i++)
        call->out[i] = mz_tensor_absent();
    call->out[MZ_OUT(adamw, master)] = master;
    for (int i = 0; i < moments && group->n > 0; i++)
        call->out[MZ_OUT(adamw, m) + i] = moment_tensor(opt, i);
    call->out[MZ_OUT(adamw, low_copy)] = mz_tensor_low_copy(opt->params, 0);
    if (opt->ema >= 0)
        call->out[MZ_OUT(adamw, ema)] = moment_tensor(opt, opt->ema);
}

static void fill_calls(mezzo_optimizer *opt) {
    const mezzo_params *p = opt->params;
    mz_tensor segments = mz_tensor_segments(p, opt->d_segments, opt->n_segments);
    mz_tensor state = mz_tensor_bytes(opt->d_state, sizeof *opt->d_state);
    mz_tensor grad = mz_tensor_f32(p->grad, p->grad_elements);
    mz_tensor master = p->fp32_elements == p->elements ? mz_tensor_f32(p->master, p->fp32_shards)
                                                       : mz_tensor_bytes(p->master, p->master_bytes);
    opt->stats.call =
        (mz_call){.n_in = 2, .in = {segments, mz_tensor_absent()}, .n_out = 3, .out = {grad, state, opt->norm_blocks}};
    opt->unscale.call = opt->stats.call;
    opt->unscale.call.in[1] = mz_tensor_f32(NULL, 1); // the scaler's scale, which each call sets
    opt->clip.call = (mz_call){.n_out = 1, .out = {state}};
    opt->control.call = (mz_call){.n_out = 1, .out = {state}};
    for (int g = 0; g < opt->n_groups; g++)
        fill_update(opt, &opt->groups[g], grad, master, state);
    if (p->n_low_copies > 1)
        opt->refresh.call =
            (mz_call){.n_in = 2,
                      .in = {master, mz_tensor_segments(p, p->low_copies[1].segments, p->low_copies[1].n_segments)},
                      .n_out = 1,
                      .out = {mz_tensor_low_copy(p, 1)}};
    opt->reset.call = (mz_call){.n_in = 1, .in = {mz_tensor_absent()}, .n_out = 1, .out = {state}};
}

static mezzo_status choose_kernels(mezzo_optimizer *opt) {
    size_t scratch = 0;
    fill_calls(opt);
    MEZZO_TRY(choose(opt, &opt->stats, MZ_OP_grad_stats, &scratch));
    MEZZO_TRY(choose(opt, &opt->unscale, MZ_OP_grad_stats, &scratch));
    MEZZO_TRY(choose(opt, &opt->clip, MZ_OP_clip_control, &scratch));
    MEZZO_TRY(choose(opt, &opt->control, MZ_OP_step_control, &scratch));
    for (int g = 0; g < opt->n_groups; g++)
        if (opt->groups[g].n > 0 && !opt->groups[g].kind->reads.orthogonal)
            MEZZO_TRY(choose(opt, &opt->groups[g].whole, opt->groups[g].kind->op, &scratch));
    MEZZO_TRY(mz_stacks_prepare(opt, &scratch));
    if (opt->n_low_copies > 1)
        MEZZO_TRY(choose(opt, &opt->refresh, MZ_OP_refresh, &scratch));
    MEZZO_TRY(mz_optimizer_prepare_quantize(opt, &scratch));
    MEZZO_TRY(choose(opt, &opt->reset, MZ_OP_scaler_update, &scratch));
    if (scratch > opt->scratch_bytes) {
        const mz_backend *b = opt->device->backend;
        if (opt->scratch != NULL)
            b->release(opt->device, opt->scratch);
        opt->scratch = NULL;
        opt->scratch_bytes = 0;
        MEZZO_TRY(b->alloc(opt->device, scratch, &opt->scratch));
        opt->scratch_bytes = scratch;
    }
    return MEZZO_OK;
}

mezzo_status mz_optimizer_follow(mezzo_optimizer *opt) {
    if (opt->n_low_copies == opt->params->n_low_copies && opt->quantized_version == opt->params->quantized.version)
        return MEZZO_OK;
    opt->version++;
    MEZZO_TRY(fill_segments(opt, NULL));
    MEZZO_TRY(choose_kernels(opt));
    MEZZO_TRY(mz_optimizer_make_buckets(opt));
    return write_segments(opt);
}

mezzo_status mezzo_optimizer_create(mezzo_params *params, const mezzo_optimizer_options *options,
                                    mezzo_optimizer **out) {
    MZ_REQUIRE(params, options, out);
    return mz_optimizer_create(params, options, -1, mz_tensor_absent(), out);
}

// Makes all but the memory on the device: `params` may be a sketch. The caller frees *out after an error, too.
static mezzo_status lay_out(mezzo_params *params, const mezzo_optimizer_options *options, int rank,
                            mz_tensor norm_blocks, mezzo_optimizer **out) {
    *out = NULL;
    MEZZO_TRY(mz_check_optimizer(options));
    mezzo_optimizer *opt = *out = mz_alloc(1, sizeof *opt);
    if (opt == NULL)
        return MEZZO_ERR_MEMORY;
    opt->params = params;
    opt->rank = rank;
    opt->norm_blocks = norm_blocks;
    opt->device = params->device;
    opt->moments = options->moments;
    opt->clipped = opt->clipped_since = opt->last_clipped = 1;
    fill_groups(opt, options);
    set_schedule(&opt->update, &options->schedule);
    MEZZO_TRY(choose_members(opt, options));
    return fill_segments(opt, options);
}

mezzo_status mz_optimizer_sketch(mezzo_params *params, const mezzo_optimizer_options *options, int rank,
                                 mz_optimizer_size *out) {
    mezzo_optimizer *opt;
    *out = (mz_optimizer_size){0};
    mezzo_status status = lay_out(params, options, rank, mz_tensor_absent(), &opt);
    if (status == MEZZO_OK) {
        fill_calls(opt);
        status = choose(opt, &opt->stats, MZ_OP_grad_stats, &opt->scratch_bytes); // grad_stats needs the largest
                                                                                  // workspace of all ops but products
        if (status == MEZZO_OK)
            status = mz_stacks_prepare(opt, &opt->scratch_bytes);
        out->bytes = mezzo_optimizer_memory(opt);
        for (int i = 0; i < opt->n_moments; i++) {
            const size_t moment = mz_optimizer_moment_bytes(opt, i, opt->moment_elements[i]);
            out->padding += mz_alloc_bytes(moment) - moment;
            out->moments += moment;
        }
        const mz_tensor rows = mz_stacks_rows(opt);
        out->moments += (size_t)mz_shape_count(&rows.shape) * sizeof(float);
    }
    mezzo_optimizer_free(opt);
    return status;
}

mezzo_status mz_optimizer_create(mezzo_params *params, const mezzo_optimizer_options *options, int rank,
                                 mz_tensor norm_blocks, mezzo_optimizer **out) {
    mezzo_optimizer *opt;
    *out = NULL;
    mezzo_status status;
    MEZZO_TRY_GOTO(status, lay_out(params, options, rank, norm_blocks, &opt));
    MEZZO_TRY_GOTO(status, alloc_state(opt));
    MEZZO_TRY_GOTO(status, choose_kernels(opt));
    MEZZO_TRY_GOTO(status, mz_optimizer_make_buckets(opt));
    MEZZO_TRY_GOTO(status, write_segments(opt));
    *out = opt;
    return MEZZO_OK;
fail:
    mezzo_optimizer_free(opt);
    return status;
}

void mezzo_optimizer_free(mezzo_optimizer *opt) {
    if (!mz_free_once(opt, "optimizer"))
        return;
    if (opt->pending != NULL)
        mz_scaler_forget(opt->pending, opt);
    const mz_backend *b = opt->device->backend;
    void *buffers[] = {opt->d_segments, opt->d_state, opt->scratch};
    for (size_t i = 0; i < MZ_COUNT(buffers); i++)
        if (buffers[i] != NULL)
            b->release(opt->device, buffers[i]);
    for (int m = 0; m < MZ_MOMENTS; m++)
        if (opt->d_moments[m] != NULL)
            b->release(opt->device, opt->d_moments[m]);
    mz_update_op *ops[] = {&opt->stats, &opt->unscale, &opt->clip, &opt->control, &opt->refresh, &opt->reset};
    for (int g = 0; g < opt->n_groups; g++)
        mz_prepared_free(&opt->groups[g].whole.prepared);
    for (size_t i = 0; i < MZ_COUNT(ops); i++)
        mz_prepared_free(&ops[i]->prepared);
    for (int m = 0; m < MZ_MOMENTS; m++)
        mz_free(opt->whole[m]);
    mz_optimizer_free_quantize(opt);
    mz_stacks_free(opt);
    MZ_FREE(opt->index, opt->segments, opt->placed, opt->owner, opt->group_of, opt->begin, opt->buckets, opt->spans,
            opt);
}

// --- a step --------------------------------------------------------------------------------------------------------
static mezzo_status issue(mezzo_optimizer *opt, mz_sequence *into, mz_update_op *op, const mz_traffic *traffic) {
    op->call.attrs.update = &opt->update;
    return mz_issue(opt->device, into, &op->prepared, &op->call, opt->scratch, traffic);
}

bool mz_optimizer_has_grads(const mezzo_optimizer *opt) {
    const mezzo_params *p = opt->params;
    for (int i = 0; i < opt->n && !p->grads_empty; i++)
        if (p->list[opt->index[i]].has_grad)
            return true;
    return false;
}

static bool is_fresh(const mezzo_optimizer *opt) { // whether the stats belong to the present gradients
    return opt->stats_version == opt->params->grad_version && mz_optimizer_has_grads(opt);
}

mezzo_status mz_optimizer_issue_stats(mezzo_optimizer *opt, mz_sequence *into, float *scale, bool keeps) {
    opt->unscale.call.in[1].data = scale;
    opt->update.keeps_scale = scale != NULL && keeps;
    mezzo_status status = issue(opt, into, scale != NULL ? &opt->unscale : &opt->stats, NULL);
    opt->update.keeps_scale = false;
    return status;
}

mezzo_status mz_optimizer_issue_clip(mezzo_optimizer *opt, mz_sequence *into, double max_norm) {
    opt->update.max_norm = max_norm;
    return issue(opt, into, &opt->clip, NULL);
}

// Defers the update, and the refresh of the second format after it. The next forward overlaps them where that is worth
// it, or waits for them; so does what ranks exchange.
static mezzo_status defer_update(mezzo_optimizer *opt, mz_sequence *into) {
    const int stream = opt->params->overlaps_update ? MZ_STREAM_DEFERRED : 0;
    for (size_t i = 0; i < opt->n_buckets; i++) {
        mz_update_bucket *bucket = &opt->buckets[i];
        int64_t elements = bucket->update.elements;
        bool overlaps = bucket->update.overlaps;
        // The schedule's numbers belong to step_control. They are left out, so that a change of them does not make
        // another call.
        memset(&bucket->update, 0, sizeof bucket->update); // lists are compared byte by byte
        bucket->update.rule = bucket->group->update.rule;
        bucket->update.elements = elements;
        bucket->update.overlaps = overlaps;
        bucket->call.attrs.update = &bucket->update;
        MEZZO_TRY(mz_sequence_defer(into, stream, &bucket->group->whole.prepared, &bucket->call, &bucket->traffic));
        MEZZO_TRY(mz_optimizer_defer_quantize(opt, bucket->first, bucket->n, into));
    }
    for (int g = 0; g < opt->n_groups; g++)
        if (opt->groups[g].kind->reads.orthogonal)
            MEZZO_TRY(mz_optimizer_defer_quantize(opt, opt->groups[g].first, opt->groups[g].n, into));
    if (opt->n_low_copies > 1) {
        opt->refresh.call.attrs.update = NULL;
        MEZZO_TRY(mz_sequence_defer(into, stream, &opt->refresh.prepared, &opt->refresh.call, NULL));
    }
    return MEZZO_OK;
}

static mezzo_status issue_group(mezzo_optimizer *opt, mz_sequence *into, mz_group *group) {
    mz_update_op *op = group->n_quantized > 0 ? &group->update_quantized : &group->whole;
    op->call.attrs.update = &group->update;
    return mz_issue(opt->device, into, &op->prepared, &op->call, opt->scratch, NULL);
}

static mezzo_status issue_groups(mezzo_optimizer *opt, mz_sequence *into) {
    for (int g = 0; g < opt->n_groups; g++)
        if (opt->groups[g].n > 0 && !opt->groups[g].kind->reads.orthogonal)
            MEZZO_TRY(issue_group(opt, into, &opt->groups[g]));
    return MEZZO_OK;
}

static bool is_early(const mezzo_optimizer *opt) {
    return opt->rank >= 0 && opt->stacks->n > 0;
}

bool mz_optimizer_updates_early(const mezzo_optimizer *opt, int i) {
    return is_early(opt) && !opt->groups[opt->group_of[i]].kind->reads.orthogonal;
}

mezzo_status mz_optimizer_begin_update(mezzo_optimizer *opt, mz_sequence *into) {
    MEZZO_TRY(issue(opt, into, &opt->control, NULL));
    if (mz_optimizer_owns_first(opt))
        MEZZO_TRY(mz_optimizer_issue_scales(opt, into));
    MEZZO_TRY(mz_stacks_begin(opt, into, &opt->stacks_begun));
    return is_early(opt) ? issue_groups(opt, into) : MEZZO_OK;
}

mezzo_status mz_optimizer_end_update(mezzo_optimizer *opt, mz_sequence *into) {
    MEZZO_TRY(mz_stacks_issue(opt, into, opt->stacks_begun));
    // Ranks exchange the results of one bucket while the next one is updated.
    const bool worth = opt->params->overlaps_update || opt->rank >= 0;
    if (into != NULL && opt->n_buckets > 0 && worth && !is_early(opt) && mz_can_defer(opt->device))
        return defer_update(opt, into);
    if (!is_early(opt))
        MEZZO_TRY(issue_groups(opt, into));
    if (opt->n_low_copies > 1)
        MEZZO_TRY(issue(opt, into, &opt->refresh, NULL));
    return mz_optimizer_issue_quantize(opt, into);
}

mezzo_status mz_optimizer_issue_reset(mezzo_optimizer *opt, mz_sequence *into) {
    const mezzo_optimizer *one = opt;
    mz_span spans[2];
    mz_traffic traffic = mz_optimizer_reset_traffic(&one, 1, spans);
    return issue(opt, into, &opt->reset, &traffic);
}

// --- single calls --------------------------------------------------------------------------------------------------
mezzo_status mz_optimizer_stats(mezzo_optimizer *opt, float *scale) {
    MEZZO_TRY(mz_optimizer_issue_stats(opt, NULL, scale, false));
    opt->touched = true;
    if (!is_fresh(opt)) // the stats are those of other gradients
        opt->clipped = 1;
    opt->clipped_since = 1;
    opt->stats_version = opt->params->grad_version;
    return MEZZO_OK;
}

mezzo_status mz_optimizer_reset(mezzo_optimizer *opt) {
    MEZZO_TRY(mz_optimizer_issue_reset(opt, NULL));
    opt->touched = false;
    return MEZZO_OK;
}

// Computes stats again where those that exist belong to gradients that are gone.
static mezzo_status renew_stats(mezzo_optimizer *opt) {
    if (is_fresh(opt))
        return MEZZO_OK;
    if (opt->touched && opt->pending == NULL)
        MEZZO_TRY(mz_optimizer_reset(opt));
    return mz_optimizer_stats(opt, NULL);
}

static mezzo_status scale_gradients(mezzo_optimizer *opt, double factor) {
    const mezzo_params *p = opt->params;
    const bool all = (size_t)opt->n == p->n_trained; // one call zeroes them all
    for (int i = 0; i < (all ? 1 : opt->n); i++) {
        const mz_param *one = &p->list[opt->index[i]];
        const mz_tensor grad =
            all ? mz_tensor_f32(p->grad, p->grad_elements) : mz_tensor_f32(p->grad + one->offset, one->stored);
        mz_call call = {.op = MZ_OP_scale,
                        .attrs = {.alpha = (float)factor},
                        .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32},
                        .n_in = 1,
                        .in = {grad},
                        .n_out = 1,
                        .out = {grad}};
        MEZZO_TRY(mz_run_once(opt->device, &call));
    }
    return MEZZO_OK;
}

mezzo_status mezzo_optimizer_clip(mezzo_optimizer *opt, double max_norm) {
    MZ_REQUIRE(opt);
    MEZZO_TRY(mz_check_clip(max_norm));
    if (!mz_optimizer_has_grads(opt))
        return mz_fail(MEZZO_ERR_INVALID, "clip: no program has written gradients since they were zeroed");
    mz_opt_state state;
    MEZZO_TRY(renew_stats(opt));
    MEZZO_TRY(mz_optimizer_read_state(opt, &state));
    const double factor = max_norm / (state.norm * opt->clipped_since + 1e-6);
    if (!isfinite(state.norm) || factor >= 1)
        return MEZZO_OK;
    MEZZO_TRY(scale_gradients(opt, factor));
    opt->clipped *= factor;
    opt->clipped_since *= factor;
    return MEZZO_OK;
}

mezzo_status mezzo_optimizer_step(mezzo_optimizer *opt) {
    MZ_REQUIRE(opt);
    if (!mz_optimizer_has_grads(opt))
        return mz_fail(MEZZO_ERR_INVALID, "optimizer step: no program has written gradients since they were zeroed");
    MEZZO_TRY(mz_optimizer_follow(opt));
    MEZZO_TRY(renew_stats(opt));
    MEZZO_TRY(mz_optimizer_begin_update(opt, NULL));
    MEZZO_TRY(mz_optimizer_end_update(opt, NULL));
    opt->last_clipped = opt->clipped;
    if (opt->pending == NULL) // otherwise the scaler's update must still read found_inf
        MEZZO_TRY(mz_optimizer_reset(opt));
    return MEZZO_OK;
}

mezzo_status mezzo_optimizer_zero_grad(mezzo_optimizer *opt) {
    MZ_REQUIRE(opt);
    mezzo_params *p = opt->params;
    if ((size_t)opt->n == p->n_trained) {
        MEZZO_TRY(mezzo_params_zero_grad(p));
    } else {
        for (int i = 0; i < opt->n; i++) {
            MEZZO_TRY(opt->device->backend->zero(opt->device, p->grad + p->list[opt->index[i]].offset,
                                                 (size_t)p->list[opt->index[i]].stored * sizeof *p->grad));
            p->list[opt->index[i]].has_grad = false;
        }
    }
    if (opt->touched && opt->pending == NULL) // the clip factor belongs to gradients that are gone
        MEZZO_TRY(mz_optimizer_reset(opt));
    return MEZZO_OK;
}

mezzo_status mezzo_optimizer_set_schedule(mezzo_optimizer *opt, const mezzo_schedule *schedule) {
    MZ_REQUIRE(opt, schedule);
    MEZZO_TRY(mz_check_schedule(schedule));
    set_schedule(&opt->update, schedule);
    opt->version++;
    return MEZZO_OK;
}

double mezzo_schedule_lr(const mezzo_schedule *schedule, int64_t step) {
    if (schedule == NULL)
        return (double)NAN;
    mz_update_attrs update = {0};
    set_schedule(&update, schedule);
    return mz_schedule_lr(&update, step);
}

// --- queries -------------------------------------------------------------------------------------------------------
mezzo_step_info mz_step_info_of(const mz_opt_state *s) {
    return (mezzo_step_info){.step = s->step,
                             .skipped = s->skipped,
                             .grad_norm = s->norm,
                             .clip = s->last_clip,
                             .lr = s->lr,
                             .found_inf = s->last_found_inf != 0};
}

mezzo_status mezzo_optimizer_info(mezzo_optimizer *opt, mezzo_step_info *out) {
    MZ_REQUIRE(opt, out);
    mz_opt_state s;
    MEZZO_TRY(mz_optimizer_read_state(opt, &s));
    *out = mz_step_info_of(&s);
    out->clip *= opt->last_clipped;
    return MEZZO_OK;
}

size_t mezzo_optimizer_memory(const mezzo_optimizer *opt) {
    if (opt == NULL)
        return 0;
    size_t moments = 0;
    for (int i = 0; i < opt->n_moments; i++)
        moments += mz_optimizer_moment_bytes(opt, i, opt->moment_elements[i]);
    return moments + mz_stacks_bytes(opt) + sizeof *opt->d_state + opt->n_segments * sizeof *opt->segments +
           opt->scratch_bytes;
}

mezzo_status mz_optimizer_read_state(const mezzo_optimizer *opt, mz_opt_state *out) {
    return opt->device->backend->read(opt->device, out, opt->d_state, sizeof *out);
}

mezzo_status mz_optimizer_write_state(mezzo_optimizer *opt, const mz_opt_state *state) {
    opt->touched = true;
    return opt->device->backend->write(opt->device, opt->d_state, state, sizeof *state);
}
