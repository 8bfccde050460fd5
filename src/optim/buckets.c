// Divides the update of a group's parameters into buckets, each a call of its own, on a device with several streams.
#include "optim/optimizer.h"

// A bucket of 2 M parameters, about 70 MB of traffic, is worth a launch.
#define BUCKET_ELEMENTS ((int64_t)1 << 21)
enum { STATE_SPANS = 4, SEGMENT_WRITES = 2 + MZ_MOMENTS, SPANS_EACH = STATE_SPANS + 1 + 1 + SEGMENT_WRITES };

// Adds bytes to the spans; bytes next to the last span extend it.
static void add_span(mz_span *spans, int *n, const void *from, size_t bytes) {
    const char *at = from;
    if (bytes == 0)
        return;
    if (*n > 0 && spans[*n - 1].to == at)
        spans[*n - 1].to = at + bytes;
    else
        spans[(*n)++] = (mz_span){at, at + bytes};
}

// Returns the elements that a segment has to itself, with padding: a whole parameter's, or those of a rank's shard,
// after which the next segment begins at a whole piece.
static size_t held_by(const mezzo_optimizer *opt, int segment, size_t unit) {
    const int64_t n =
        opt->rank >= 0 ? opt->placed[segment].count : opt->params->list[opt->index[opt->owner[segment]]].stored;
    return mz_align_up((size_t)n, unit);
}

// Finds the bytes that the update of segments [first, first + n) reads and writes; a segment's padding belongs to it.
static void find_traffic(const mezzo_optimizer *opt, int moments, int first, int n, mz_span *spans, mz_traffic *out) {
    const mezzo_params *p = opt->params;
    const mz_opt_state *state = opt->d_state;
    mz_span *reads = spans, *writes = spans + (size_t)n + STATE_SPANS + 1;
    *out = (mz_traffic){.reads = reads, .writes = writes};
    // The update reads from the state what step_control and grad_stats leave there, and nothing that scaler_update,
    // inspect or the host writes after them.
    add_span(reads, &out->n_reads, &state->step, sizeof state->step);
    add_span(reads, &out->n_reads, &state->lr, offsetof(mz_opt_state, found_inf) - offsetof(mz_opt_state, lr));
    add_span(reads, &out->n_reads, &state->skip, sizeof state->skip);
    add_span(reads, &out->n_reads, &state->scale, sizeof state->scale);
    add_span(reads, &out->n_reads, (const mz_segment *)opt->d_segments + first, (size_t)n * sizeof(mz_segment));
    for (int i = first; i < first + n; i++) {
        const mz_segment *s = &opt->placed[i];
        add_span(reads, &out->n_reads, p->grad + (s->offset - s->grad_shift + s->first),
                 held_by(opt, i, 16) * sizeof(float));
    }
    for (int i = first; i < first + n; i++) {
        const mz_segment *s = &opt->placed[i];
        if (s->master == MEZZO_MASTER_FP32)
            add_span(writes, &out->n_writes, p->master + (s->offset - s->master_shift + s->first),
                     held_by(opt, i, 16) * sizeof(float));
        else if (s->master == MEZZO_MASTER_SPLIT)
            add_span(writes, &out->n_writes,
                     (const char *)p->master + s->low_offset + s->first * (int64_t)sizeof(uint16_t),
                     held_by(opt, i, 16) * sizeof(uint16_t));
    }
    for (int m = 0; m < opt->n_moments; m++)
        for (int i = first; i < first + n; i++) {
            const mz_segment *s = &opt->placed[i];
            if (m != opt->ema && m >= moments)
                continue;
            const size_t held = held_by(opt, i, (size_t)mz_moments_unit(opt->moments));
            add_span(writes, &out->n_writes, mz_optimizer_moment(opt, m, s->state_offset + s->first, 0).data,
                     mz_optimizer_moment_bytes(opt, m, (int64_t)held));
        }
    for (int i = first; i < first + n; i++) {
        const mz_segment *s = &opt->placed[i];
        if (s->low_copy_offset != MZ_NO_LOW_COPY)
            add_span(writes, &out->n_writes,
                     (const char *)p->low_copies[0].data + s->low_copy_offset + s->first * (int64_t)sizeof(uint16_t),
                     held_by(opt, i, 32) * sizeof(uint16_t));
    }
}

static void make_bucket(mezzo_optimizer *opt, mz_group *group, int first, int n, int64_t elements) {
    mz_update_bucket *bucket = &opt->buckets[opt->n_buckets++];
    bucket->call = group->whole.call;
    bucket->group = group;
    bucket->first = first;
    bucket->n = n;
    bucket->call.in[1] = mz_tensor_segments(opt->params, (mz_segment *)opt->d_segments + first, (size_t)n);
    bucket->update = (mz_update_attrs){.elements = elements, .overlaps = first > 0}; // nothing overlaps the first
                                                                                     // bucket
    find_traffic(opt, group->kind->moments(&group->update.rule), first, n, opt->spans + (size_t)first * SPANS_EACH,
                 &bucket->traffic);
}

// Returns whether a bucket with this many elements ends before segment i. With ranks, FP32 masters do not wait for
// other ones, because ranks exchange them first.
static bool ends_before(const mezzo_optimizer *opt, int i, int64_t elements) {
    const bool others = opt->rank >= 0 && opt->placed[i].master != opt->placed[i - 1].master;
    return elements >= opt->bucket_elements || (others && elements > 0);
}

// Divides a group. Its parameters are in the order in which forward reads them, as far as the model was built in that
// order.
static void cut_group(mezzo_optimizer *opt, mz_group *group) {
    int first = group->first;
    int64_t elements = 0;
    for (int i = first, end = first + group->n; i < end; i++) {
        elements += opt->placed[i].count;
        if (i + 1 < end && !ends_before(opt, i + 1, elements))
            continue;
        make_bucket(opt, group, first, i + 1 - first, elements);
        first = i + 1;
        elements = 0;
    }
}

mezzo_status mz_optimizer_make_buckets(mezzo_optimizer *opt) {
    const size_t n = opt->n_segments;
    if (opt->device->backend->capture_stream == NULL || (opt->params->ranks > 0 && opt->rank < 0))
        return MEZZO_OK;
    if (opt->buckets == NULL)
        opt->buckets = mz_alloc(n, sizeof *opt->buckets);
    if (opt->spans == NULL)
        opt->spans = mz_alloc(n * SPANS_EACH, sizeof *opt->spans);
    if (opt->buckets == NULL || opt->spans == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    if (opt->bucket_elements == 0)
        opt->bucket_elements = BUCKET_ELEMENTS;
    opt->n_buckets = 0;
    for (int g = 0; g < opt->n_groups; g++)
        if (!opt->groups[g].kind->reads.orthogonal)
            cut_group(opt, &opt->groups[g]);
    return MEZZO_OK;
}

mezzo_status mz_optimizer_set_bucket(mezzo_optimizer *opt, int64_t elements) {
    opt->bucket_elements = elements;
    opt->version++;
    return mz_optimizer_make_buckets(opt);
}

mz_traffic mz_optimizer_reset_traffic(const mezzo_optimizer *const *optimizers, int n, mz_span *spans) {
    mz_traffic traffic = {.reads = spans, .writes = spans};
    for (int i = 0; i < n; i++) {
        const mz_opt_state *state = optimizers[i]->d_state;
        add_span(spans, &traffic.n_writes, &state->clip, sizeof state->clip);
        add_span(spans, &traffic.n_writes, &state->found_inf, sizeof state->found_inf);
    }
    return traffic;
}
