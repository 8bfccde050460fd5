// Stores an optimizer's moments as FP32, BF16, or 8 bits with a scale for each block, and copies them to the host and
// back.
#include "base/dynamic8.h"
#include "base/scope.h"
#include "optim/optimizer.h"

const char *mezzo_moments_name(mezzo_moments moments) {
    static const char *const names[] = {"fp32", "bf16", "int8"};
    return (size_t)moments < MZ_COUNT(names) ? names[moments] : "unknown";
}

int64_t mz_moments_unit(mezzo_moments moments) {
    return moments == MEZZO_MOMENTS_INT8 ? MZ_DYNAMIC8_BLOCK : 16;
}

static size_t moment_bytes(mezzo_moments moments, int64_t elements) {
    if (moments == MEZZO_MOMENTS_INT8)
        return (size_t)mz_dynamic8_bytes(elements);
    return (size_t)elements * (moments == MEZZO_MOMENTS_BF16 ? sizeof(uint16_t) : sizeof(float));
}

mezzo_moments mz_optimizer_moments(const mezzo_optimizer *opt, int which) {
    return which == opt->ema ? MEZZO_MOMENTS_FP32 : opt->moments;
}

size_t mz_optimizer_moment_bytes(const mezzo_optimizer *opt, int which, int64_t elements) {
    return moment_bytes(mz_optimizer_moments(opt, which), elements);
}

static int64_t whole_blocks(int64_t elements) {
    return (int64_t)mz_align_up((size_t)elements, MZ_DYNAMIC8_BLOCK);
}

mz_tensor mz_optimizer_moment(const mezzo_optimizer *opt, int which, int64_t first, int64_t count) {
    const mezzo_moments stored = mz_optimizer_moments(opt, which);
    char *all = opt->d_moments[which]; // NULL in a sketch
    char *at = all != NULL ? all + moment_bytes(stored, first) : NULL;
    if (stored == MEZZO_MOMENTS_INT8)
        return mz_tensor_bytes(at, (size_t)mz_dynamic8_bytes(whole_blocks(count)));
    mz_tensor t = mz_tensor_f32(at, count);
    t.dtype = stored == MEZZO_MOMENTS_BF16 ? MEZZO_BF16 : MEZZO_F32;
    return t;
}

mz_tensor mz_optimizer_moment_view(const mezzo_optimizer *opt, int which, int64_t first, int64_t count) {
    mz_tensor t = mz_optimizer_moment(opt, which, first, count);
    if (mz_optimizer_moments(opt, which) != MEZZO_MOMENTS_INT8)
        return t;
    t.dtype = MEZZO_F32; // views the first four bytes of each record
    t.shape = (mz_shape){2, {whole_blocks(count) / MZ_DYNAMIC8_BLOCK, 1}};
    t.storage = (mz_storage){.padded = true, .inner = {[1] = 1}, .pitch = {[1] = MZ_DYNAMIC8_RECORD / sizeof(float)}};
    return t;
}

const char *mz_optimizer_moment_name(const mezzo_optimizer *opt, int which, int i) {
    const mz_group *group = &opt->groups[opt->group_of[i]];
    if (which == opt->ema)
        return "ema";
    return which < group->kind->moments(&group->update.rule) ? group->kind->moment[which] : NULL;
}

// Copies numbers of blocks to the host and back; when it writes, `first` is a multiple of a block.
static mezzo_status read_blocks(const mezzo_optimizer *opt, int which, const mz_segment *s, int64_t first,
                                int64_t count, float *out) {
    const int64_t from = first / MZ_DYNAMIC8_BLOCK * MZ_DYNAMIC8_BLOCK;
    const mz_tensor t = mz_optimizer_moment(opt, which, s->state_offset + from, first + count - from);
    const size_t bytes = mz_tensor_bytes_stored(&t);
    float block[MZ_DYNAMIC8_BLOCK];
    char *records = mz_alloc(bytes + 1, 1);
    if (records == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mezzo_status status = opt->device->backend->read(opt->device, records, t.data, bytes);
    for (int64_t k = first; k < first + count; k++) {
        if (k == first || k % MZ_DYNAMIC8_BLOCK == 0)
            mz_dynamic8_decode(mz_moment_is_signed(which),
                               mz_dynamic8_at(records, k / MZ_DYNAMIC8_BLOCK * MZ_DYNAMIC8_BLOCK - from),
                               MZ_DYNAMIC8_BLOCK, block);
        out[k - first] = block[k % MZ_DYNAMIC8_BLOCK];
    }
    mz_free(records);
    return status;
}

static mezzo_status write_blocks(mezzo_optimizer *opt, int which, const mz_segment *s, int64_t first, int64_t count,
                                 const void *values) {
    const mz_tensor t = mz_optimizer_moment(opt, which, s->state_offset + first, count);
    const size_t bytes = mz_tensor_bytes_stored(&t);
    float block[MZ_DYNAMIC8_BLOCK];
    MZ_SCOPED(mz_free_at) char *records = mz_alloc(bytes + 1, 1);
    if (records == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int64_t k = 0; k < count; k += MZ_DYNAMIC8_BLOCK) {
        const int64_t n = count - k < MZ_DYNAMIC8_BLOCK ? count - k : MZ_DYNAMIC8_BLOCK;
        memcpy(block, (const char *)values + (size_t)k * sizeof *block, (size_t)n * sizeof *block);
        mz_dynamic8_encode(mz_moment_is_signed(which), block, (int)n, mz_dynamic8_at(records, k));
    }
    return opt->device->backend->write(opt->device, t.data, records, bytes);
}

mezzo_status mz_optimizer_read_moment(const mezzo_optimizer *opt, int which, int i, int64_t first, int64_t count,
                                      float *out) {
    const mz_segment *s = &opt->segments[opt->begin[i]];
    if (opt->rank >= 0) { // moments of several ranks, which were gathered
        if (opt->whole[which] == NULL)
            return mz_fail(MEZZO_ERR_INVALID, "the optimizer's moments are spread over ranks");
        memcpy(out, opt->whole[which] + opt->params->list[opt->index[i]].offset + first, (size_t)count * sizeof *out);
        return MEZZO_OK;
    }
    const mezzo_moments stored = mz_optimizer_moments(opt, which);
    if (stored == MEZZO_MOMENTS_INT8)
        return read_blocks(opt, which, s, first, count, out);
    const size_t size = moment_bytes(stored, 1);
    // Shorter numbers are read into the end of `out` and widened from its beginning on, so that none is overwritten
    // before it is read.
    char *at = (char *)out + (size_t)count * (sizeof *out - size);
    MEZZO_TRY(mz_stored_read(opt->device, &s->layout, mz_optimizer_moment(opt, which, s->state_offset, 0).data, size,
                             first, count, at));
    for (int64_t k = 0; k < count && stored == MEZZO_MOMENTS_BF16; k++) {
        uint16_t bits;
        memcpy(&bits, at + 2 * k, sizeof bits);
        out[k] = mezzo_bf16_to_f32(bits);
    }
    return MEZZO_OK;
}

// Writes FP32 values of any alignment to a moment, rounded to nearest where the moment has fewer bits, so that values
// that were read return unchanged.
static mezzo_status write_piece(mezzo_optimizer *opt, int which, const mz_segment *s, int64_t first, int64_t count,
                                const void *values, bool stored) {
    const mezzo_moments kind = mz_optimizer_moments(opt, which);
    if (kind == MEZZO_MOMENTS_INT8)
        return write_blocks(opt, which, s, first, count, values);
    const size_t size = moment_bytes(kind, 1);
    char *base = mz_optimizer_moment(opt, which, s->state_offset, 0).data;
    MZ_SCOPED(mz_free_at) uint16_t *low = kind == MEZZO_MOMENTS_BF16 ? mz_alloc((size_t)count + 1, sizeof *low) : NULL;
    if (kind == MEZZO_MOMENTS_BF16 && low == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int64_t k = 0; k < count && low != NULL; k++) {
        float x;
        memcpy(&x, (const char *)values + (size_t)k * sizeof x, sizeof x);
        low[k] = mezzo_f32_to_bf16(x);
    }
    const void *from = low != NULL ? low : values;
    return stored ? mz_stored_write(opt->device, &s->layout, base, size, first, count, from)
                  : opt->device->backend->write(opt->device, base + (size_t)first * size, from, (size_t)count * size);
}

mezzo_status mz_optimizer_write_moment(mezzo_optimizer *opt, int which, int i, const void *values) {
    const mz_segment *s = &opt->segments[opt->begin[i]];
    for (size_t k = opt->begin[i]; opt->rank >= 0 && k < opt->begin[i + 1]; k++) {
        s = &opt->segments[k];
        if (s->count > 0)
            MEZZO_TRY(write_piece(opt, which, s, s->first, s->count,
                                  (const char *)values + (size_t)s->first * sizeof(float), false));
    }
    return opt->rank >= 0 ? MEZZO_OK : write_piece(opt, which, s, 0, s->count, values, true);
}

mezzo_status mezzo_optimizer_average(mezzo_optimizer *opt, int index, float *out) {
    MZ_REQUIRE(opt, out);
    mz_opt_state state;
    if (opt->ema < 0)
        return mz_fail(MEZZO_ERR_INVALID, "optimizer: no moving average is kept: set mezzo_optimizer_options.ema");
    MEZZO_TRY(mz_optimizer_read_state(opt, &state));
    for (int i = 0; i < opt->n; i++)
        if (opt->index[i] == index)
            return state.step == 0 ? mezzo_params_read(opt->params, index, out)
                                   : mz_optimizer_read_moment(opt, opt->ema, i, 0, opt->params->list[index].count, out);
    return mz_fail(MEZZO_ERR_INVALID, "optimizer: parameter %d is none of those it moves", index);
}
