// Gathers moments, masters and their copies from the ranks' shards to the host, for checkpoints and other readers.
#include "base/dynamic8.h"
#include "optim/ranks_state.h"

// Widens n numbers of a moment to FP32 on the device.
static mezzo_status widen_moment(mz_ranks *r, const mezzo_optimizer *optimizer, int which, int64_t first, float *to,
                                 int64_t n) {
    const mz_tensor from = mz_optimizer_moment(optimizer, which, first, n);
    if (from.dtype == MEZZO_F32)
        return mz_ranks_issue_add(r, NULL, false, from.data, to, n);
    mz_call cast = {.op = MZ_OP_cast,
                    .attrs.via = MEZZO_F32,
                    .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32},
                    .n_in = 1,
                    .in = {from},
                    .n_out = 1,
                    .out = {mz_tensor_f32(to, n)}};
    return mz_run_once(r->device, &cast);
}

// Runs a collective at once, after all deferred calls.
static mezzo_status gather_now(mz_ranks *r, const void *send, void *recv, int64_t n, mezzo_dtype dtype) {
    const mz_collective what = {.kind = MZ_ALL_GATHER, .send = send, .recv = recv, .count = (size_t)n, .dtype = dtype};
    return r->device->comm->run(r->device->comm, r->device, &what);
}

// Copies a region of all ranks to the host, where it begins at `host`; NULL: this rank keeps nothing. `room` has n
// elements of each rank from the `first` of its shard, contiguous.
static mezzo_status keep_pieces(mz_ranks *r, const mz_region *g, int64_t first, int64_t n, const void *room,
                                size_t width, void *host) {
    for (int k = 0; k < r->size && host != NULL; k++)
        MEZZO_TRY(r->device->backend->read(r->device, (char *)host + (size_t)(k * g->shard + first) * width,
                                           (const char *)room + (size_t)(k * n) * width, (size_t)n * width));
    return MEZZO_OK;
}

static int64_t piece_of(const mz_ranks *r, const mz_region *g, int64_t first) {
    const int64_t left = g->shard - first, most = r->params->scattered ? mz_ranks_room(r->params) : g->shard;
    return left < most ? left : most;
}

// Gathers n 8-bit numbers of each rank from the `first` of its shard: the records go through `room`, the numbers to the
// host, where the region begins at `host`; NULL: this rank keeps nothing.
static mezzo_status gather_blocks(mz_ranks *r, const mezzo_optimizer *optimizer, int which, const mz_region *g,
                                  int64_t first, int64_t n, void *room, float *host) {
    const mz_tensor mine = mz_optimizer_moment(optimizer, which, g->place + first, n);
    const size_t bytes = mz_tensor_bytes_stored(&mine);
    MEZZO_TRY(gather_now(r, mine.data, room, (int64_t)bytes, MEZZO_U8));
    char *records = host != NULL ? mz_alloc(bytes, 1) : NULL;
    if (host != NULL && records == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mezzo_status status = MEZZO_OK;
    for (int k = 0; k < r->size && host != NULL && status == MEZZO_OK; k++) {
        status = r->device->backend->read(r->device, records, (char *)room + (size_t)k * bytes, bytes);
        for (int64_t i = 0; i < n && status == MEZZO_OK; i += MZ_DYNAMIC8_BLOCK)
            mz_dynamic8_decode(mz_moment_is_signed(which), mz_dynamic8_at(records, i), MZ_DYNAMIC8_BLOCK,
                               host + (k * g->shard + first + i));
    }
    mz_free(records);
    return status;
}

// Gathers a moment region by region, through the buffer of gradients or, where that has shards alone, through the
// memory of one region.
static mezzo_status gather_moment(mz_ranks *r, mezzo_optimizer *optimizer, int which, bool keep) {
    const mezzo_params *p = r->params;
    float *host = optimizer->whole[which];
    if (keep && host == NULL)
        host = optimizer->whole[which] = mz_alloc((size_t)p->elements, sizeof(float));
    if (keep && host == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int k = 0; k < p->n_regions; k++) {
        const mz_region *g = &p->regions[k];
        float *room = p->scattered ? r->whole : p->grad + g->from;
        for (int64_t first = 0, n; first < g->shard; first += n) {
            n = piece_of(r, g, first);
            if (mz_optimizer_moments(optimizer, which) == MEZZO_MOMENTS_INT8) {
                MEZZO_TRY(gather_blocks(r, optimizer, which, g, first, n, room, keep ? host + g->from : NULL));
                continue;
            }
            MEZZO_TRY(widen_moment(r, optimizer, which, g->place + first, room + r->rank * n, n));
            MEZZO_TRY(gather_now(r, room + r->rank * n, room, n, MEZZO_F32));
            MEZZO_TRY(keep_pieces(r, g, first, n, room, sizeof *room, keep ? host + g->from : NULL));
        }
    }
    return MEZZO_OK;
}

mezzo_status mz_ranks_gather_moments(mz_ranks *r, mezzo_optimizer *optimizer, bool keep) {
    const mezzo_params *p = r->params;
    if (mz_ranks_shard(r) < 0)
        return MEZZO_OK;
    MEZZO_TRY(mz_deferred_flush(r->device)); // collectives have the same order on all ranks
    for (int m = 0; m < optimizer->n_moments; m++)
        MEZZO_TRY(gather_moment(r, optimizer, m, keep));
    uint16_t *low = (uint16_t *)(void *)((char *)p->master + (size_t)p->fp32_elements * sizeof(float));
    for (int k = 0; k < p->n_regions && p->master_format == MEZZO_MASTER_SPLIT && !p->sharded; k++)
        if (p->regions[k].from >= p->fp32_elements)
            MEZZO_TRY(mz_ranks_issue_gather(r, NULL, low + (p->regions[k].from - p->fp32_elements), p->regions[k].shard,
                                            MEZZO_BF16));
    return mezzo_params_zero_grad(r->params);
}

// Gathers a region to the host, where it begins at `host`; NULL: this rank keeps nothing. `shard` is this rank's.
static mezzo_status gather_numbers(mz_ranks *r, const mz_region *g, const void *shard, mezzo_dtype dtype, void *host) {
    const size_t width = mezzo_dtype_size(dtype);
    for (int64_t first = 0, n; first < g->shard; first += n) {
        n = piece_of(r, g, first);
        MEZZO_TRY(gather_now(r, (const char *)shard + (size_t)first * width, r->whole, n, dtype));
        MEZZO_TRY(keep_pieces(r, g, first, n, r->whole, width, host));
    }
    return MEZZO_OK;
}

// Joins masters that are not FP32 from their gathered low copies and their low halves. low [longest region].
static mezzo_status join_masters(mz_ranks *r, const mz_region *g, uint16_t *low) {
    const mezzo_params *p = r->params;
    const uint16_t *mine = (const uint16_t *)(const void *)(p->master + p->fp32_shards) + (g->place - p->fp32_shards);
    const bool split = p->master_format == MEZZO_MASTER_SPLIT;
    if (split)
        MEZZO_TRY(gather_numbers(r, g, mine, MEZZO_BF16, low));
    for (int64_t i = 0, n = r->size * g->shard; i < n && p->whole != NULL; i++) {
        const uint16_t high = p->whole->low_copy[0][g->from - p->whole->from + i];
        p->whole->master[g->from + i] = split ? mz_master_join(high, low[i]) : mezzo_bf16_to_f32(high);
    }
    return MEZZO_OK;
}

static mezzo_status gather_region(mz_ranks *r, const mz_region *g, uint16_t *low) {
    const mezzo_params *p = r->params;
    const mz_whole *whole = p->whole;
    if (g->place < p->fp32_shards)
        MEZZO_TRY(
            gather_numbers(r, g, p->master + g->place, MEZZO_F32, whole != NULL ? whole->master + g->from : NULL));
    for (int i = 0; i < p->n_low_copies && g->place >= p->copied_from; i++)
        MEZZO_TRY(gather_numbers(r, g, (const uint16_t *)p->low_copies[i].data + (g->place - p->copied_from),
                                 MEZZO_BF16, whole != NULL ? whole->low_copy[i] + (g->from - whole->from) : NULL));
    return g->place >= p->fp32_shards ? join_masters(r, g, low) : MEZZO_OK;
}

mezzo_status mz_ranks_gather_weights(mz_ranks *r, bool keep) {
    mezzo_params *p = r->params;
    if (!p->sharded || p->whole != NULL)
        return MEZZO_OK;
    MEZZO_TRY(mz_deferred_flush(r->device)); // collectives have the same order on all ranks
    uint16_t *low = keep ? mz_alloc((size_t)(r->size * mz_ranks_longest_shard(p)), sizeof *low) : NULL;
    mezzo_status status = keep ? mz_params_open_whole(p) : MEZZO_OK;
    if (keep && low == NULL)
        status = mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int k = 0; k < p->n_regions && status == MEZZO_OK; k++)
        status = gather_region(r, &p->regions[k], low);
    mz_free(low);
    if (status != MEZZO_OK)
        mz_params_close_whole(p);
    return status;
}

void mz_ranks_release_weights(mz_ranks *r) {
    if (r != NULL)
        mz_params_close_whole(r->params);
}

void mz_ranks_release(mezzo_optimizer *optimizer) {
    for (int m = 0; m < MZ_MOMENTS; m++) {
        mz_free(optimizer->whole[m]);
        optimizer->whole[m] = NULL;
    }
}
