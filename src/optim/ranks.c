#include "optim/ranks.h"

#include <math.h>
#include <stdlib.h>

#include "optim/ranks_state.h"

// Sums and gathers regions of gradients, parameters, moments and copies, and exchanges a step's records.
enum { COLLECTIVES_A_REGION = 6, COLLECTIVES_A_STEP = 10 };

// --- calls ---------------------------------------------------------------------------------------------------------
static mezzo_status run_collective(mezzo_device *device, const mz_call *call) {
    return device->comm->run(device->comm, device, call->state);
}
const mz_kernel mz_collective_kernel = {"collective", NULL, run_collective};

static mezzo_status issue_with(mz_ranks *r, mz_sequence *into, const mz_prepared *prepared, mz_call *call,
                               const mz_traffic *traffic) {
    if (r->defers)
        return mz_sequence_defer(into, MZ_STREAM_COLLECTIVE, prepared, call, traffic);
    if (r->beside)
        return mz_sequence_add_on(into, MZ_STREAM_COLLECTIVE, prepared, call, traffic);
    return mz_issue(r->device, into, prepared, call, NULL, traffic);
}

static mezzo_status issue(mz_ranks *r, mz_sequence *into, const mz_prepared *prepared, mz_call *call) {
    if (r->program != NULL)
        return mz_program_add_after(r->program, r->after, prepared, call);
    return issue_with(r, into, prepared, call, NULL);
}

static mezzo_status issue_collective(mz_ranks *r, mz_sequence *into, const mz_collective *what) {
    const size_t width = mezzo_dtype_size(what->dtype);
    size_t at = 0;
    while (at < r->n_collectives && (r->collectives[at].kind != what->kind || r->collectives[at].send != what->send ||
                                     r->collectives[at].recv != what->recv || r->collectives[at].count != what->count))
        at++;
    if (at == r->most_collectives)
        return mz_fail(MEZZO_ERR_INVALID, "more than %zu collectives in a step", r->most_collectives);
    r->collectives[at] = *what;
    r->n_collectives += at == r->n_collectives;
    // The op's name is for logs; the kernel decides what runs.
    mz_call call = {.op = MZ_OP_copy, .n_in = 1, .n_out = 1};
    const size_t sent = mz_collective_send_count(what, r->size), received = mz_collective_recv_count(what, r->size);
    call.in[0] = mz_tensor_bytes((void *)(uintptr_t)what->send, sent * width);
    call.out[0] = mz_tensor_bytes(what->recv, received * width);
    const mz_prepared prepared = {.kernel = &mz_collective_kernel, .state = &r->collectives[at]};
    return issue(r, into, &prepared, &call);
}

static mz_call move_call(mz_op op, bool adds, const void *from, mezzo_dtype from_dtype, void *to, mezzo_dtype to_dtype,
                         int64_t n) {
    mz_call call = {.op = op,
                    .attrs.accumulate = adds,
                    .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32},
                    .n_in = 1,
                    .in = {mz_tensor_f32((void *)(uintptr_t)from, n)},
                    .n_out = 1,
                    .out = {mz_tensor_f32(to, n)}};
    call.in[0].dtype = from_dtype;
    call.out[0].dtype = to_dtype;
    return call;
}

static mezzo_status find_adder(mz_ranks *r, int64_t n, mezzo_dtype from, const mz_adder **out) {
    mz_call call = move_call(MZ_OP_accumulate, true, NULL, from, NULL, MEZZO_F32, n);
    const mz_call narrow = move_call(MZ_OP_cast, false, NULL, MEZZO_F32, NULL, from, n);
    for (size_t i = 0; i < r->n_adders; i++)
        if (r->adders[i].n == n && r->adders[i].from == from) {
            *out = &r->adders[i];
            return MEZZO_OK;
        }
    MEZZO_TRY(MZ_RESERVE(r->adders, r->cap_adders, r->n_adders + 1));
    mz_adder *a = &r->adders[r->n_adders];
    *a = (mz_adder){.n = n, .from = from};
    MEZZO_TRY(mz_prepare(r->device, &call, &a->adds));
    call.attrs.accumulate = false;
    MEZZO_TRY(mz_prepare(r->device, &call, &a->copies));
    if (from != MEZZO_F32)
        MEZZO_TRY(mz_prepare(r->device, &narrow, &a->narrows));
    r->n_adders++;
    *out = a;
    return MEZZO_OK;
}

// Issues to = from, or to += from, of n numbers.
mezzo_status mz_ranks_issue_add(mz_ranks *r, mz_sequence *into, bool adds, float *from, float *to, int64_t n) {
    const mz_adder *a;
    MEZZO_TRY(find_adder(r, n, MEZZO_F32, &a));
    mz_call call = move_call(MZ_OP_accumulate, adds, from, MEZZO_F32, to, MEZZO_F32, n);
    return issue(r, into, adds ? &a->adds : &a->copies, &call);
}

// All-gathers the shards of a region, `width` bytes an element.
mezzo_status mz_ranks_issue_gather(mz_ranks *r, mz_sequence *into, void *base, int64_t shard, mezzo_dtype dtype) {
    const mz_collective what = {.kind = MZ_ALL_GATHER,
                                .send = (char *)base + (size_t)(r->rank * shard) * mezzo_dtype_size(dtype),
                                .recv = base,
                                .count = (size_t)shard,
                                .dtype = dtype};
    return r->size == 1 ? MEZZO_OK : issue_collective(r, into, &what);
}

// --- creation -------------------------------------------------------------------------------------------------------
static bool is_power_of_two(int64_t n) {
    return n > 0 && (n & (n - 1)) == 0;
}

int64_t mz_ranks_longest_shard(const mezzo_params *p) {
    int64_t most = 0;
    for (int k = 0; k < p->n_regions; k++)
        most = p->regions[k].shard > most ? p->regions[k].shard : most;
    return most;
}

// Returns the length of the longest shard that ranks sum.
static int64_t longest_summed(const mezzo_params *p) {
    int64_t most = 0;
    for (int k = 0; k < p->n_regions; k++)
        if (p->regions[k].shard > most && !mz_region_exchanged(p, k))
            most = p->regions[k].shard;
    return most;
}

int64_t mz_ranks_room(const mezzo_params *p) {
    enum { LEAST = 1 << 16 };
    const int64_t longest = mz_ranks_longest_shard(p);
    int64_t most = longest < LEAST ? longest : LEAST;
    for (int k = 0; k < p->n_regions; k++)
        if (p->regions[k].shard > most && mz_region_only_param(p, k) < 0)
            most = p->regions[k].shard;
    return most;
}

size_t mz_ranks_plan(const mezzo_params *p, int size, const mz_ranks_options *o) {
    const size_t norm_blocks = (size_t)(p->counted / MZ_NORM_BLOCK) * sizeof(double), ranks = (size_t)size;
    const size_t region = ranks * (size_t)longest_summed(p);
    size_t n = norm_blocks + ranks * (size_t)(o->micro + 1) * sizeof(float);
    if (size > 1)
        n += ranks * sizeof(mz_opt_state) + (o->shard != MZ_SHARD_NONE ? norm_blocks : 0);
    for (int64_t sums = o->micro; o->canonical && sums > 1; sums /= 2)
        n += (size_t)p->grad_elements * sizeof(float);
    if (p->scattered)
        n += ranks * (size_t)mz_ranks_room(p) * sizeof(float);
    if (o->bf16_wire && size > 1)
        n += 2 * region * sizeof(uint16_t);
    return n + (o->canonical && size > 1 ? region * sizeof(float) : 0);
}

static mezzo_status take(mz_ranks *r, size_t bytes, void *out) {
    r->bytes += bytes;
    return r->device->backend->alloc(r->device, bytes, out);
}

static mezzo_status take_canonical(mz_ranks *r) {
    const mezzo_params *p = r->params;
    const int64_t leaves = r->size * r->micro;
    const int64_t most = longest_summed(p);
    if (!is_power_of_two(leaves) || !is_power_of_two(r->size))
        return mz_fail(MEZZO_ERR_INVALID,
                       "canonical sums need a power of two of micro batches per step, on as many ranks or a half, a "
                       "quarter …: %lld on %d %s not",
                       (long long)leaves, r->size, r->size == 1 ? "rank is" : "ranks are");
    for (int64_t n = r->micro; n > 1; n /= 2)
        MEZZO_TRY(take(r, (size_t)p->grad_elements * sizeof(float), &r->sums[r->levels++]));
    return r->size > 1 ? take(r, (size_t)(r->size * most) * sizeof(float), &r->parts) : MEZZO_OK;
}

static size_t piece_bytes(const mz_ranks *r) {
    return (size_t)(r->params->counted / MZ_NORM_BLOCK) * sizeof(double);
}

static mz_tensor all_norm_blocks(const mz_ranks *r) {
    return mz_tensor_bytes(r->all_norm_blocks, piece_bytes(r));
}

static mezzo_status prepare_calls(mz_ranks *r) {
    mz_call norm_across_ranks = {.op = MZ_OP_norm_across_ranks,
                                 .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F64},
                                 .n_in = 2,
                                 .in = {all_norm_blocks(r), mz_tensor_absent()},
                                 .n_out = 1,
                                 .out = {mz_tensor_bytes(NULL, sizeof(mz_opt_state))}};
    if (r->states != NULL)
        norm_across_ranks.in[1] = mz_tensor_bytes(r->states, (size_t)r->size * sizeof *r->states);
    MEZZO_TRY(mz_prepare(r->device, &norm_across_ranks, &r->norm_across_ranks));
    const mz_adder *one;
    return find_adder(r, 1, MEZZO_F32, &one);
}

static mezzo_status take_wire(mz_ranks *r) {
    const size_t bytes = (size_t)(r->size * longest_summed(r->params)) * sizeof *r->wire[0];
    if (r->canonical)
        return mz_fail(MEZZO_ERR_INVALID,
                       "canonical sums need unrounded gradients: remove --reduce-wire bf16 or --reduce canonical");
    for (int i = 0; i < 2 && r->size > 1; i++)
        MEZZO_TRY(take(r, bytes, &r->wire[i]));
    return MEZZO_OK;
}

mezzo_status mz_ranks_create(mezzo_params *params, const mz_ranks_options *options, mz_ranks **out) {
    const int64_t micro = options->micro;
    mezzo_status status = MEZZO_OK;
    *out = NULL;
    mz_ranks *r = mz_alloc(1, sizeof *r);
    if (r == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    const mz_comm *comm = params->device->comm;
    *r = (mz_ranks){.params = params,
                    .device = params->device,
                    .shard = options->shard,
                    .canonical = options->canonical,
                    .bf16_wire = options->bf16_wire,
                    .rank = comm != NULL ? comm->rank : 0,
                    .size = comm != NULL ? comm->size : 1,
                    .micro = micro};
    r->most_collectives = (size_t)params->n_regions * COLLECTIVES_A_REGION + COLLECTIVES_A_STEP;
    r->collectives = mz_alloc(r->most_collectives, sizeof *r->collectives);
    if (r->collectives == NULL)
        MEZZO_TRY_GOTO(status, mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__));
    MEZZO_TRY_GOTO(status, take(r, piece_bytes(r), &r->norm_blocks));
    r->all_norm_blocks = r->norm_blocks;
    if (mz_ranks_shard(r) >= 0)
        MEZZO_TRY_GOTO(status, take(r, piece_bytes(r), &r->all_norm_blocks));
    MEZZO_TRY_GOTO(status, take(r, (size_t)r->size * (size_t)(micro + 1) * sizeof(float), &r->step_record));
    if (r->size > 1)
        MEZZO_TRY_GOTO(status, take(r, (size_t)r->size * sizeof *r->states, &r->states));
    if (params->scattered)
        MEZZO_TRY_GOTO(status, take(r, (size_t)(r->size * mz_ranks_room(params)) * sizeof(float), &r->whole));
    if (r->bf16_wire)
        MEZZO_TRY_GOTO(status, take_wire(r));
    if (r->canonical)
        MEZZO_TRY_GOTO(status, take_canonical(r));
    MEZZO_TRY_GOTO(status, prepare_calls(r));
    *out = r;
    return MEZZO_OK;
fail:
    mz_ranks_free(r);
    return status;
}

void mz_ranks_free(mz_ranks *r) {
    if (r == NULL)
        return;
    const mz_backend *b = r->device->backend;
    void *buffers[] = {r->norm_blocks, r->all_norm_blocks != r->norm_blocks ? r->all_norm_blocks : NULL,
                       r->states,      r->step_record,
                       r->parts,       r->whole,
                       r->wire[0],     r->wire[1]};
    for (size_t i = 0; i < MZ_COUNT(buffers); i++)
        b->release(r->device, buffers[i]);
    for (int i = 0; i < r->levels; i++)
        b->release(r->device, r->sums[i]);
    for (size_t i = 0; i < r->n_adders; i++) {
        mz_prepared_free(&r->adders[i].adds);
        mz_prepared_free(&r->adders[i].copies);
        mz_prepared_free(&r->adders[i].narrows);
    }
    mz_free(r->adders);
    mz_prepared_free(&r->norm_across_ranks);
    for (int i = 0; i < (int)MZ_COUNT(r->refresh); i++)
        mz_prepared_free(&r->refresh[i]);
    MZ_FREE(r->collectives, r);
}

int mz_ranks_shard(const mz_ranks *r) {
    return r->shard != MZ_SHARD_NONE && r->size > 1 ? r->rank : -1;
}
mz_tensor mz_ranks_norm_blocks(const mz_ranks *r) {
    return mz_tensor_bytes(r->norm_blocks, piece_bytes(r));
}
size_t mz_ranks_memory(const mz_ranks *r) {
    return r->bytes;
}

mezzo_status mz_ranks_norms(mz_ranks *r, const mezzo_optimizer *optimizer, double *norms) {
    const size_t n = (size_t)(r->params->counted / MZ_NORM_BLOCK);
    double *norm_blocks = mz_alloc(n + 1, sizeof *norm_blocks);
    if (norm_blocks == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mezzo_status status = r->device->backend->read(r->device, norm_blocks, r->all_norm_blocks, n * sizeof *norm_blocks);
    for (int i = 0; i < optimizer->n; i++) {
        const mz_param *p = &r->params->list[optimizer->index[i]];
        double sum = 0;
        for (int64_t k = p->counted / MZ_NORM_BLOCK; k * MZ_NORM_BLOCK < p->counted + p->count; k++)
            sum += norm_blocks[k];
        norms[i] = sqrt(sum);
    }
    mz_free(norm_blocks);
    return status;
}

// --- micro batches -------------------------------------------------------------------------------------------------
// Adds sums of 1, 2, 4 … micro batches to their neighbours, as a binary counter carries.
static mezzo_status carry(mz_ranks *r, int64_t i) {
    float *grad = r->params->grad;
    const int64_t n = r->params->grad_elements;
    int level = 0;
    for (; i >> level & 1; level++)
        MEZZO_TRY(mz_ranks_issue_add(r, NULL, true, r->sums[level], grad, n));
    if (i + 1 == r->micro)
        return MEZZO_OK;
    MEZZO_TRY(mz_ranks_issue_add(r, NULL, false, grad, r->sums[level], n));
    return mezzo_params_zero_grad(r->params); // the next micro batch writes its gradient anew
}

mezzo_status mz_ranks_micro(mz_ranks *r, int64_t i, const void *loss) {
    float *mine = r->step_record + r->rank * (r->micro + 1);
    MEZZO_TRY(mz_ranks_issue_add(r, NULL, false, (float *)(uintptr_t)loss, mine + i, 1));
    return r->canonical ? carry(r, i) : MEZZO_OK;
}

mezzo_status mz_ranks_ask(mz_ranks *r, int asked) {
    const int32_t mine = asked;
    return r->device->backend->write(r->device, r->step_record + r->rank * (r->micro + 1) + r->micro, &mine,
                                     sizeof mine);
}

// --- a step --------------------------------------------------------------------------------------------------------
// Adds all ranks' contributions to this rank's shard, in pairs of neighbours. The function writes the result to `sum`,
// or adds it.
static mezzo_status issue_pairs(mz_ranks *r, mz_sequence *into, float *parts, int64_t shard, bool adds, float *sum) {
    for (int step = 1; step < r->size; step *= 2)
        for (int i = 0; i + step < r->size; i += 2 * step)
            MEZZO_TRY(mz_ranks_issue_add(r, into, true, parts + (i + step) * shard, parts + i * shard, shard));
    return mz_ranks_issue_add(r, into, adds, parts, sum, shard);
}

static mezzo_status issue_tree(mz_ranks *r, mz_sequence *into, float *region, int64_t shard, float *sum) {
    const mz_collective exchange = {
        .kind = MZ_ALL_TO_ALL, .send = region, .recv = r->parts, .count = (size_t)shard, .dtype = MEZZO_F32};
    MEZZO_TRY(issue_collective(r, into, &exchange));
    return issue_pairs(r, into, r->parts, shard, false, sum);
}

// Adds contributions in the order of ranks, from BF16 numbers, this rank's own included. The function writes the result
// to `sum`, or adds it.
static mezzo_status issue_wire(mz_ranks *r, mz_sequence *into, const float *region, int64_t shard, bool adds,
                               float *sum) {
    const mz_adder *a;
    const mz_collective exchange = {
        .kind = MZ_ALL_TO_ALL, .send = r->wire[0], .recv = r->wire[1], .count = (size_t)shard, .dtype = MEZZO_BF16};
    MEZZO_TRY(find_adder(r, shard, MEZZO_BF16, &a));
    const mz_prepared narrows = a->narrows, copies = a->copies, sums = a->adds;
    for (int k = 0; k < r->size; k++) {
        mz_call call =
            move_call(MZ_OP_cast, false, region + k * shard, MEZZO_F32, r->wire[0] + k * shard, MEZZO_BF16, shard);
        MEZZO_TRY(issue(r, into, &narrows, &call));
    }
    MEZZO_TRY(issue_collective(r, into, &exchange));
    for (int k = 0; k < r->size; k++) {
        const bool add = adds || k > 0;
        mz_call call = move_call(MZ_OP_accumulate, add, r->wire[1] + k * shard, MEZZO_BF16, sum, MEZZO_F32, shard);
        MEZZO_TRY(issue(r, into, add ? &sums : &copies, &call));
    }
    return MEZZO_OK;
}

static mezzo_status run_zero(mezzo_device *device, const mz_call *call) {
    return device->backend->zero(device, call->out[0].data, (size_t)mz_shape_count(&call->out[0].shape));
}
static const mz_kernel zero_kernel = {"zero", NULL, run_zero};

static mezzo_status issue_zero(mz_ranks *r, float *at, int64_t n) {
    const mz_prepared prepared = {.kernel = &zero_kernel};
    mz_call call = {.op = MZ_OP_copy, .n_out = 1, .out = {mz_tensor_bytes(at, (size_t)n * sizeof *at)}};
    return issue(r, NULL, &prepared, &call);
}

// Copies a region's part of a scattered gradient: n numbers from the parameter's element `first` to `at` of the region.
typedef struct overlap {
    int64_t first, n, at;
} overlap;

static overlap overlap_of(const mz_ranks *r, const mz_region *region, const mz_param *p) {
    const int64_t from = region->from, to = from + r->size * region->shard, end = p->offset + p->count;
    const int64_t begin = p->offset > from ? p->offset : from;
    return (overlap){begin - p->offset, (end < to ? end : to) - begin, begin - from};
}

// Finds or makes a region's contiguous gradients. No kernel reads the bytes between parameters.
static mezzo_status issue_gathering(mz_ranks *r, int k, float **out) {
    const mezzo_params *p = r->params;
    const mz_region *region = &p->regions[k];
    *out = r->whole;
    for (size_t i = 0; i < p->n; i++) {
        const mz_param *one = &p->list[i];
        if (one->frozen || !mz_region_has(p, region, one))
            continue;
        const overlap o = overlap_of(r, region, one);
        float *gradient = mz_program_gradient(r->program, (int)i);
        if (gradient != NULL && (o.n == r->size * region->shard || mz_region_only_param(p, k) >= 0)) {
            *out = gradient + o.first;
            return MEZZO_OK;
        }
        if (gradient != NULL)
            MEZZO_TRY(mz_ranks_issue_add(r, NULL, false, gradient + o.first, r->whole + o.at, o.n));
        else
            MEZZO_TRY(issue_zero(r, r->whole + o.at, o.n));
    }
    return MEZZO_OK;
}

// Sums scattered gradients into this rank's shards. With several micro batches the sum is added to the shard, except
// under canonical sums, which add by themselves.
static mezzo_status issue_scattered(mz_ranks *r, int k) {
    const mz_region *region = &r->params->regions[k];
    float *from, *sum = r->params->grad + region->place;
    const int alone = mz_region_only_param(r->params, k);
    if (alone >= 0 && mz_program_gradient(r->program, alone) == NULL) // all ranks have zeros
        return r->micro > 1 && !r->canonical ? MEZZO_OK : issue_zero(r, sum, region->shard);
    MEZZO_TRY(issue_gathering(r, k, &from));
    if (mz_region_exchanged(r->params, k)) // the program computed all ranks' contributions on this rank
        return issue_pairs(r, NULL, from, region->shard, r->micro > 1 && !r->canonical, sum);
    if (r->canonical)
        return issue_tree(r, NULL, from, region->shard, sum);
    if (r->bf16_wire)
        return issue_wire(r, NULL, from, region->shard, r->micro > 1, sum);
    float *mine = r->micro > 1 ? from + r->rank * region->shard : sum;
    const mz_collective scatter = {
        .kind = MZ_REDUCE_SCATTER_SUM, .send = from, .recv = mine, .count = (size_t)region->shard, .dtype = MEZZO_F32};
    MEZZO_TRY(issue_collective(r, NULL, &scatter));
    return r->micro > 1 ? mz_ranks_issue_add(r, NULL, true, mine, sum, region->shard) : MEZZO_OK;
}

static mezzo_status issue_region(mz_ranks *r, mz_sequence *into, int k) {
    float *region = r->params->grad + r->params->regions[k].from;
    const int64_t shard = r->params->regions[k].shard;
    const mz_collective scatter = {.kind = MZ_REDUCE_SCATTER_SUM,
                                   .send = region,
                                   .recv = region + r->rank * shard,
                                   .count = (size_t)shard,
                                   .dtype = MEZZO_F32};
    if (r->params->scattered)
        return issue_scattered(r, k);
    float *sum = region + r->rank * shard;
    MEZZO_TRY(r->canonical   ? issue_tree(r, into, region, shard, sum)
              : r->bf16_wire ? issue_wire(r, into, region, shard, false, sum)
                             : issue_collective(r, into, &scatter));
    // Every sharding uses the same sums: an all-reduce would add in another order.
    return r->shard == MZ_SHARD_NONE ? mz_ranks_issue_gather(r, into, region, shard, MEZZO_F32) : MEZZO_OK;
}

mezzo_status mz_ranks_issue_sum(mz_ranks *r, mz_sequence *into) {
    for (int k = 0; k < r->params->n_regions && r->size > 1 && !r->overlaps; k++)
        MEZZO_TRY(issue_region(r, into, k));
    return MEZZO_OK;
}

// Holds a region and the program's call after which its gradients are finished.
typedef struct finished {
    size_t after;
    int region;
} finished;

static int sooner_first(const void *a, const void *b) {
    const finished *x = a, *y = b;
    if (x->after != y->after)
        return x->after < y->after ? -1 : 1;
    return y->region - x->region; // equal calls are in the order of backward
}

static mezzo_status add_sums(mz_ranks *r, mezzo_program *program, finished *order) {
    const mezzo_params *p = r->params;
    mezzo_status status = MEZZO_OK;
    for (int k = 0; k < p->n_regions; k++) {
        const float *from = p->grad + p->regions[k].from;
        order[k].region = k;
        if (p->scattered)
            MEZZO_TRY(mz_program_region_writer(program, k, &order[k].after));
        else
            order[k].after = mz_program_last_writer(program, from, from + r->size * p->regions[k].shard);
    }
    qsort(order, (size_t)p->n_regions, sizeof *order, sooner_first);
    r->program = program;
    for (int k = 0; k < p->n_regions && status == MEZZO_OK; k++) {
        r->after = order[k].after;
        status = issue_region(r, NULL, order[k].region);
    }
    r->program = NULL;
    return status;
}

mezzo_status mz_ranks_overlap(mz_ranks *r, mezzo_program *program) {
    const mz_ranks_options o = {r->shard, r->canonical, r->bf16_wire, r->micro};
    if (r->size == 1 || mz_ranks_add_late(&o))
        return MEZZO_OK;
    finished *order = mz_alloc((size_t)r->params->n_regions, sizeof *order);
    if (order == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mezzo_status status = add_sums(r, program, order);
    mz_free(order);
    r->overlaps = status == MEZZO_OK;
    return status;
}

// Gathers all ranks' tables of scales for scales_update.
static mezzo_status gather_scales(mz_ranks *r, mz_sequence *into) {
    mz_scales *s = &r->params->scales;
    const size_t bytes = (size_t)s->n * sizeof *s->entries;
    if (s->n == 0)
        return MEZZO_OK;
    if (s->table_bytes != (size_t)r->size * bytes) {
        r->device->backend->release(r->device, s->tables);
        s->tables = NULL;
        s->table_bytes = (size_t)r->size * bytes;
        MEZZO_TRY(r->device->backend->alloc(r->device, s->table_bytes, &s->tables));
    }
    const mz_collective tables = {
        .kind = MZ_ALL_GATHER, .send = s->entries, .recv = s->tables, .count = bytes, .dtype = MEZZO_U8};
    return issue_collective(r, into, &tables);
}

mezzo_status mz_ranks_issue_norm(mz_ranks *r, mezzo_optimizer *optimizer, mz_sequence *into) {
    if (mz_ranks_shard(r) >= 0) { // other ranks' entries are 0 here, so the sum is exact
        const mz_collective norm_blocks = {.kind = MZ_ALL_REDUCE_SUM,
                                           .send = r->norm_blocks,
                                           .recv = r->all_norm_blocks,
                                           .count = (size_t)(r->params->counted / MZ_NORM_BLOCK),
                                           .dtype = MEZZO_F64};
        MEZZO_TRY(issue_collective(r, into, &norm_blocks));
    }
    if (r->size > 1) {
        const mz_collective states = {.kind = MZ_ALL_GATHER,
                                      .send = optimizer->d_state,
                                      .recv = r->states,
                                      .count = sizeof *r->states,
                                      .dtype = MEZZO_U8};
        MEZZO_TRY(issue_collective(r, into, &states));
        MEZZO_TRY(mz_ranks_issue_gather(r, into, r->step_record, r->micro + 1, MEZZO_F32));
        MEZZO_TRY(gather_scales(r, into));
    }
    mz_call norm_across_ranks = {.op = MZ_OP_norm_across_ranks,
                                 .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F64},
                                 .n_in = 2,
                                 .in = {all_norm_blocks(r), mz_tensor_absent()},
                                 .n_out = 1,
                                 .out = {mz_tensor_bytes(optimizer->d_state, sizeof *optimizer->d_state)}};
    if (r->states != NULL)
        norm_across_ranks.in[1] = mz_tensor_bytes(r->states, (size_t)r->size * sizeof *r->states);
    return mz_issue(r->device, into, &r->norm_across_ranks, &norm_across_ranks, NULL, NULL);
}

// --- the all-gather of updated parameters --------------------------------------------------------------------------
static mz_span span_of(const void *from, size_t bytes) {
    return (mz_span){from, (const char *)from + bytes};
}

static bool is_refreshed(const mz_param *p) { // whether its low copy is rounded from an FP32 master
    return p->master == MEZZO_MASTER_FP32 && !p->frozen && p->low_copy_slot >= 0;
}

// Rounds the low copies of trained parameters [first, end) with FP32 masters again. `segment`: the first one's. The
// call waits for these masters alone, and readers of other low copies do not wait for it.
static mezzo_status issue_refresh(mz_ranks *r, mz_sequence *into, int low_copy, size_t first, size_t end, int segment) {
    const mezzo_params *p = r->params;
    mz_call call = mz_params_refresh_call(p, low_copy);
    mz_segment *segments = (mz_segment *)call.in[1].data + segment;
    mz_traffic traffic = {0};
    int n = 0;
    mz_span *spans = mz_alloc(2 * (end - first) + 1, sizeof *spans), *writes = spans;
    if (spans == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = first; i < end; i++) {
        n += p->list[i].low_copy_slot >= 0;
        if (is_refreshed(&p->list[i]))
            *writes++ = span_of(p->master + p->list[i].offset, (size_t)p->list[i].stored * sizeof(float));
    }
    traffic.n_reads = (int)(writes - spans) + 1;
    *writes++ = span_of(segments, (size_t)n * sizeof *segments);
    for (size_t i = first; i < end; i++)
        if (is_refreshed(&p->list[i]))
            writes[traffic.n_writes++] = span_of((uint16_t *)p->low_copies[low_copy].data + p->list[i].low_copy_slot,
                                                 (size_t)p->list[i].stored * sizeof(uint16_t));
    traffic.reads = spans;
    traffic.writes = writes;
    mezzo_status status = MEZZO_OK;
    if (r->refresh[low_copy].kernel == NULL)
        status = mz_prepare(r->device, &call, &r->refresh[low_copy]);
    call.in[1] = mz_tensor_segments(p, segments, (size_t)n);
    if (status == MEZZO_OK)
        status = issue_with(r, into, &r->refresh[low_copy], &call, &traffic);
    mz_free(spans);
    return status;
}

// Rounds low copies of FP32 masters that end in elements [from, to) of the masters.
static mezzo_status refresh_region(mz_ranks *r, mz_sequence *into, int low_copy, int64_t from, int64_t to) {
    const mezzo_params *p = r->params;
    size_t first = 0, end = 0;
    int segment = 0, at = 0;
    for (size_t i = 0; i < p->n; i++) {
        const mz_param *one = &p->list[i];
        const bool here = is_refreshed(one) && one->offset + one->stored > from && one->offset + one->stored <= to;
        const bool between = one->frozen && one->master == MEZZO_MASTER_FP32 && one->low_copy_slot >= 0;
        if (end > first && between) { // the call would write that one, too
            MEZZO_TRY(issue_refresh(r, into, low_copy, first, end, segment));
            first = end = 0;
        }
        if (here && end == first) {
            first = i;
            segment = at;
        }
        end = here ? i + 1 : end;
        at += one->low_copy_slot >= 0;
    }
    return end > first ? issue_refresh(r, into, low_copy, first, end, segment) : MEZZO_OK;
}

// Gathers regions [first, end): FP32 masters, whose low copies it rounds, and the other weights directly. With masters
// of several formats, a program reads an FP32 master with a low copy first (a tied embedding), and the next readers of
// weights do not wait for its low copy.
static mezzo_status spread(mz_ranks *r, mz_sequence *into, int first, int end) {
    const mezzo_params *p = r->params;
    const bool last = p->master_format != MEZZO_MASTER_FP32;
    for (int k = first; k < end; k++) {
        const mz_region *g = &p->regions[k];
        if (g->from >= p->fp32_elements) {
            MEZZO_TRY(
                mz_ranks_issue_gather(r, into, (uint16_t *)p->low_copies[0].data + g->from, g->shard, MEZZO_BF16));
            continue;
        }
        MEZZO_TRY(mz_ranks_issue_gather(r, into, p->master + g->from, g->shard, MEZZO_F32));
        for (int i = 0; i < p->n_low_copies && !last; i++)
            MEZZO_TRY(refresh_region(r, into, i, g->from, g->from + r->size * g->shard));
    }
    int fp32_regions = 0;
    while (fp32_regions < p->n_regions && p->regions[fp32_regions].from < p->fp32_elements)
        fp32_regions++;
    for (int i = 0; i < p->n_low_copies && last && first < fp32_regions && end >= fp32_regions; i++)
        MEZZO_TRY(refresh_region(r, into, i, 0, p->fp32_elements));
    return MEZZO_OK;
}

// Returns whether an optimizer updates some parameter of the region after begin_update.
static bool waits_for(const mezzo_params *p, int region, const mezzo_optimizer *optimizer) {
    bool waits = false;
    for (int i = 0; i < optimizer->n && !waits; i++)
        waits = mz_region_has(p, &p->regions[region], &p->list[optimizer->index[i]]) &&
                !mz_optimizer_updates_early(optimizer, i);
    return waits;
}

mezzo_status mz_ranks_issue_early_gather(mz_ranks *r, const mezzo_optimizer *const *optimizers, int n,
                                         mz_sequence *into) {
    const mezzo_params *p = r->params;
    r->gathered = 0;
    if (mz_ranks_shard(r) < 0 || p->sharded)
        return MEZZO_OK;
    for (bool waits = false; !waits && r->gathered < p->n_regions; r->gathered += !waits)
        for (int i = 0; i < n; i++)
            waits = waits || waits_for(p, r->gathered, optimizers[i]);
    r->beside = true;
    mezzo_status status = spread(r, into, 0, r->gathered);
    r->beside = false;
    return status;
}

mezzo_status mz_ranks_issue_gather_params(mz_ranks *r, mz_sequence *into) {
    if (mz_ranks_shard(r) < 0 || r->params->sharded) // programs gather the parameters that they read
        return MEZZO_OK;
    r->defers = into != NULL && mz_can_defer(r->device);
    mezzo_status status = spread(r, into, r->gathered, r->params->n_regions);
    r->defers = false;
    return status;
}

// --- reading -------------------------------------------------------------------------------------------------------
const void *mz_ranks_step_record(const mz_ranks *r, size_t *bytes) {
    *bytes = (size_t)r->size * (size_t)(r->micro + 1) * sizeof *r->step_record;
    return r->step_record;
}

void mz_ranks_read_step_record(const mz_ranks *r, const void *host, const double *shares, double *loss, int *asked) {
    const bool dealt = r->shard >= MZ_SHARD_GRADIENTS;
    const size_t row = (size_t)(r->micro + 1) * sizeof(float);
    double sum = 0;
    *asked = 0;
    for (int64_t at = 0; at < r->size * r->micro; at++) {
        const int64_t rank = dealt ? at % r->size : at / r->micro, i = dealt ? at / r->size : at % r->micro;
        float one;
        memcpy(&one, (const char *)host + (size_t)rank * row + (size_t)i * sizeof one, sizeof one);
        sum += shares != NULL ? shares[at] * (double)one : (double)one;
    }
    for (int k = 0; k < r->size; k++) {
        int32_t one;
        memcpy(&one, (const char *)host + (size_t)(k + 1) * row - sizeof one, sizeof one);
        *asked |= one;
    }
    *loss = sum / (double)(r->size * r->micro);
}
