// Lays out masters, gradients, moments and low copies in flat buffers, and divides these into regions with one shard a
// rank.
#include "runtime/params_layout.h"

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

static bool has_low_master(const mz_param *p) {
    return p->master != MEZZO_MASTER_FP32;
}

// --- one process -----------------------------------------------------------------------------------------------------
// Places frozen masters after all others, where no gradient lies; FP32 ones come first among them.
static void lay_out_frozen(mezzo_params *params) {
    if (params->n_trained == params->n)
        return;
    params->master_bytes = mz_align_up(params->master_bytes, MZ_SEGMENT * sizeof(float));
    params->frozen_at = (int64_t)(params->master_bytes / sizeof(float));
    for (size_t i = 0; i < params->n; ++i) {
        mz_param *p = &params->list[i];
        if (!p->frozen || has_low_master(p))
            continue;
        p->offset = params->frozen_at + params->frozen_fp32;
        params->frozen_fp32 += round_up(p->stored, MZ_SEGMENT);
    }
    params->master_bytes += (size_t)params->frozen_fp32 * sizeof(float);
    for (size_t i = 0; i < params->n; ++i) {
        mz_param *p = &params->list[i];
        if (!p->frozen || p->master != MEZZO_MASTER_SPLIT)
            continue;
        p->low_offset = (int64_t)params->master_bytes;
        params->master_bytes += (size_t)round_up(p->stored, MZ_SEGMENT) * sizeof(uint16_t);
    }
}

// Places FP32 masters like their gradients; the low halves of the others come after them.
static void lay_out_whole(mezzo_params *params) {
    for (int pass = 0; pass < 2; ++pass) {
        for (size_t i = 0; i < params->n; ++i) {
            mz_param *p = &params->list[i];
            if (p->frozen || has_low_master(p) != (pass == 1))
                continue;
            p->offset = params->elements;
            params->elements += round_up(p->stored, MZ_SEGMENT);
            if (!has_low_master(p)) {
                params->master_bytes += (size_t)round_up(p->stored, MZ_SEGMENT) * sizeof(float);
            } else if (p->master == MEZZO_MASTER_SPLIT) {
                p->low_offset = (int64_t)params->master_bytes;
                params->master_bytes += (size_t)round_up(p->stored, MZ_SEGMENT) * sizeof(uint16_t);
            }
        }
        if (pass == 0)
            params->fp32_elements = params->elements;
    }
}

// --- ranks ---------------------------------------------------------------------------------------------------------
// Returns the unit of a region's length in elements: shards are whole norm blocks, and the length is the same for 1, 2,
// 4 and 8 ranks.
static int64_t region_unit(const mezzo_params *params) {
    int64_t eights = 8;
    while (eights % params->ranks != 0)
        eights += 8;
    return eights * MZ_NORM_BLOCK;
}

static void close_region(mezzo_params *params, int64_t from) {
    const int64_t ranks = params->ranks;
    params->elements = from + round_up(params->elements - from, region_unit(params));
    if (params->elements > from)
        params->regions[params->n_regions++] = (mz_region){.from = from, .shard = (params->elements - from) / ranks};
}

// Divides regions into pieces of at most this many elements; parameters keep their places.
static mezzo_status cut_regions(mezzo_params *params, int64_t elements) {
    const int64_t ranks = params->ranks, unit = region_unit(params);
    const int64_t most = elements > unit ? elements / unit * unit : unit;
    size_t cap = 0, n = 0;
    mz_region *cut = NULL;
    for (int k = 0; k < params->n_regions; ++k) {
        const mz_region *whole = &params->regions[k];
        const int64_t end = whole->from + ranks * whole->shard;
        for (int64_t from = whole->from; from < end; from += most) {
            mezzo_status status = MZ_RESERVE(cut, cap, n + 1);
            if (status != MEZZO_OK) {
                mz_free(cut);
                return status;
            }
            cut[n++] = (mz_region){.from = from, .shard = (end - from < most ? end - from : most) / ranks};
        }
    }
    mz_free(params->regions);
    params->regions = cut;
    params->n_regions = (int)n;
    return MEZZO_OK;
}

// Places frozen parameters' low copies after all others, whole on every rank.
static void lay_out_frozen_low_copies(mezzo_params *params, int64_t from) {
    for (size_t i = 0; i < params->n; ++i) {
        mz_param *p = &params->list[i];
        if (p->low_copy_slot < 0 || !p->frozen)
            continue;
        p->low_copy_slot = from;
        from += round_up(p->stored, MZ_LOW_COPY_SEGMENT);
    }
    params->low_copy_elements = from;
}

// Gives a parameter's gradients, FP32 masters, low halves and low copies parallel places, so that their shards match.
// There are two regions: FP32 masters, and others.
static void lay_out_cut(mezzo_params *params) {
    for (int pass = 0; pass < 2; ++pass) {
        const int64_t from = params->elements;
        for (size_t i = 0; i < params->n; ++i) {
            mz_param *p = &params->list[i];
            if (p->frozen || has_low_master(p) != (pass == 1))
                continue;
            p->offset = params->elements;
            p->low_offset = from * (int64_t)sizeof(float) + (p->offset - from) * (int64_t)sizeof(uint16_t);
            if (p->low_copy_slot >= 0)
                p->low_copy_slot = p->offset;
            params->elements += round_up(p->stored, MZ_NORM_BLOCK);
        }
        close_region(params, from);
        if (pass == 0)
            params->fp32_elements = params->elements;
    }
    params->master_bytes = (size_t)params->fp32_elements * sizeof(float);
    if (params->master_format == MEZZO_MASTER_SPLIT)
        params->master_bytes += (size_t)(params->elements - params->fp32_elements) * sizeof(uint16_t);
    lay_out_frozen_low_copies(params, params->elements);
}

// --- ranks that have parameters in shards ---------------------------------------------------------------------------
// A region has one kind of parameters: FP32 masters without low copies, FP32 masters with low copies, or others.
enum { KINDS = 3 };
static int kind_of(const mz_param *p) {
    return has_low_master(p) ? 2 : p->low_copy_slot >= 0 ? 1 : 0;
}

// Makes a region of one parameter of experts, which ends where the parameter does.
static mezzo_status add_exchanged(mezzo_params *params, mz_param *p) {
    const int64_t ranks = params->ranks, shard = p->stored / ranks;
    if (p->shape.dim[0] % ranks != 0)
        return mz_fail(
            MEZZO_ERR_INVALID,
            "ranks.experts is exchange, but %d ranks do not divide the %lld experts of %s: use another number "
            "of ranks, or ranks.experts gather",
            params->ranks, (long long)p->shape.dim[0], p->name);
    if (p->storage.padded || shard % MZ_NORM_BLOCK != 0)
        return mz_fail(
            MEZZO_ERR_INVALID,
            "ranks.experts is exchange, but a rank's %lld numbers of %s are not a multiple of %d: change the "
            "number of ranks or the experts' width, or use ranks.experts gather",
            (long long)shard, p->name, MZ_NORM_BLOCK);
    p->offset = params->elements;
    params->regions[params->n_regions++] = (mz_region){.from = p->offset, .shard = shard};
    params->elements += p->stored;
    return MEZZO_OK;
}

// Fills regions with whole parameters of one kind: as many as `most` elements hold, at least one.
static mezzo_status add_regions(mezzo_params *params, int kind, int64_t most, size_t *cap) {
    int64_t from = params->elements;
    if (most > 0 && most < region_unit(params)) // a smaller region would be rounded up to the unit
        most = region_unit(params);
    for (size_t i = 0; i < params->n; ++i) {
        mz_param *p = &params->list[i];
        if (p->frozen || kind_of(p) != kind)
            continue;
        const bool exchanged = params->exchanges && p->experts;
        MEZZO_TRY(MZ_RESERVE(params->regions, *cap, (size_t)params->n_regions + 3));
        if (exchanged || (most > 0 && params->elements + p->stored - from > most)) {
            close_region(params, from);
            from = params->elements;
        }
        if (exchanged) {
            MEZZO_TRY(add_exchanged(params, p));
            from = params->elements;
            continue;
        }
        p->offset = params->elements;
        params->elements += round_up(p->stored, MZ_NORM_BLOCK);
    }
    if (params->elements > from)
        close_region(params, from);
    return MEZZO_OK;
}

// Numbers the norm's blocks by the parameters' places without shards, so that sums over blocks are the same.
static void count_norm_blocks(mezzo_params *params) {
    for (int pass = 0; pass < 2; ++pass) {
        for (size_t i = 0; i < params->n; ++i) {
            mz_param *p = &params->list[i];
            if (p->frozen || has_low_master(p) != (pass == 1))
                continue;
            p->counted = params->counted;
            params->counted += round_up(p->stored, MZ_NORM_BLOCK);
        }
        params->counted = round_up(params->counted, region_unit(params));
    }
}

static mezzo_status lay_out_shards(mezzo_params *params, int64_t region) {
    int64_t ends[KINDS]; // where shards end
    size_t cap = 0;
    for (int kind = 0; kind < KINDS; ++kind) {
        MEZZO_TRY(add_regions(params, kind, region, &cap));
        ends[kind] = mz_params_shard_elements(params);
        if (kind == 1)
            params->fp32_elements = params->elements;
    }
    count_norm_blocks(params);
    params->copied_from = ends[0];
    params->fp32_shards = ends[1];
    params->master_bytes = (size_t)ends[1] * sizeof(float);
    if (params->master_format == MEZZO_MASTER_SPLIT)
        params->master_bytes += (size_t)(ends[2] - ends[1]) * sizeof(uint16_t);
    lay_out_frozen_low_copies(params, ends[2] - ends[0]);
    return MEZZO_OK;
}

// Finds this process's elements. A parameter lies in one region, so one number says where its elements would be in a
// buffer of shards.
static void find_own(mezzo_params *params, mz_param *p) {
    for (int k = 0; k < params->n_regions; ++k)
        if (mz_region_has(params, &params->regions[k], p)) {
            p->region = k;
            mz_params_shard(params, (int)(p - params->list), params->rank, k, &p->first, &p->own, &p->place);
        }
    p->low_offset =
        params->fp32_shards * (int64_t)sizeof(float) + (p->place - params->fp32_shards) * (int64_t)sizeof(uint16_t);
    p->low_copy_place = p->low_copy_slot >= 0 ? p->place - params->copied_from : 0;
}

static void settle_places(mezzo_params *params) {
    params->counted = params->sharded ? params->counted : params->elements;
    params->fp32_shards = params->sharded ? params->fp32_shards : params->fp32_elements;
    for (size_t i = 0; i < params->n; ++i) {
        mz_param *p = &params->list[i];
        p->place = p->offset;
        p->own = p->count;
        p->low_copy_place = p->low_copy_slot;
        p->region = -1;
        if (!params->sharded || p->frozen)
            p->counted = p->offset;
        else
            find_own(params, p);
    }
}

// --- queries of the layout -----------------------------------------------------------------------------------------
void mz_params_shard(const mezzo_params *params, int index, int rank, int region, int64_t *first, int64_t *count,
                     int64_t *place) {
    const mz_param *p = &params->list[index];
    const mz_region *r = &params->regions[region];
    const int64_t from = r->from + rank * r->shard - p->offset, to = from + r->shard;
    const int64_t begin = from > 0 ? from : 0, end = to < p->count ? to : p->count;
    *first = begin;
    *count = end > begin ? end - begin : 0;
    *place = r->place - from;
}

bool mz_region_has(const mezzo_params *params, const mz_region *region, const mz_param *p) {
    return p->offset < region->from + params->ranks * region->shard && p->offset + p->count > region->from;
}

bool mz_region_exchanged(const mezzo_params *params, int region) {
    const int alone = params->exchanges ? mz_region_only_param(params, region) : -1;
    return alone >= 0 && params->list[alone].experts;
}

int mz_region_only_param(const mezzo_params *params, int region) {
    int alone = -1, n = 0;
    for (size_t i = 0; i < params->n && params->sharded; ++i)
        if (params->list[i].region == region) {
            alone = (int)i;
            ++n;
        }
    return n == 1 ? alone : -1;
}

int64_t mz_params_shard_elements(const mezzo_params *params) {
    int64_t n = 0;
    for (int k = 0; k < params->n_regions; ++k)
        n += params->regions[k].shard;
    return n;
}

static mezzo_status lay_out_ranks(mezzo_params *params, int64_t region) {
    int64_t place = 0;
    if (params->sharded)
        MEZZO_TRY(lay_out_shards(params, region));
    else {
        MEZZO_TRY(MZ_NEW(params->regions, 2));
        lay_out_cut(params);
        if (region > 0)
            MEZZO_TRY(cut_regions(params, region));
    }
    for (int k = 0; k < params->n_regions; ++k) {
        params->regions[k].place = place;
        place += params->regions[k].shard;
    }
    return MEZZO_OK;
}

mezzo_status mz_params_lay_out(mezzo_params *params, int64_t region) {
    bool experts = false;
    for (size_t i = 0; i < params->n; ++i) {
        params->low_masters = params->low_masters || has_low_master(&params->list[i]);
        experts = experts || (params->list[i].experts && !params->list[i].frozen);
    }
    if (params->exchanges && !experts)
        return mz_fail(MEZZO_ERR_INVALID,
                       "ranks.experts is exchange, but no experts are trained here: use ranks.experts gather");
    if (params->ranks > 0)
        MEZZO_TRY(lay_out_ranks(params, region));
    else
        lay_out_whole(params);
    lay_out_frozen(params);
    settle_places(params);
    params->grad_elements = params->scattered ? mz_params_shard_elements(params) : params->elements;
    return MEZZO_OK;
}
