#include "optim/update_copy.h"

#include <stdlib.h>

#include "optim/orthogonal.h"
#include "optim/scaler.h"
#include "runtime/deferred.h"

// --- what the update changes -------------------------------------------------------------------------------------
typedef struct mark { // where a parameter begins in a buffer
    size_t at;
    int param;
} mark;

static int by_place(const void *a, const void *b) {
    const mark *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

static mezzo_status add_part(mz_update_copy *c, const char *what, int param, const char *data, size_t bytes) {
    if (bytes == 0)
        return MEZZO_OK;
    MEZZO_TRY(MZ_RESERVE(c->parts, c->cap_parts, c->n_parts + 1));
    c->parts[c->n_parts++] = (mz_state_part){what, param, data, bytes};
    return MEZZO_OK;
}

// Adds a buffer in parts that cover all of it; each begins where a parameter does.
static mezzo_status add_buffer(mz_update_copy *c, const char *what, void *data, size_t bytes, mark *marks, size_t n) {
    if (data == NULL || bytes == 0)
        return MEZZO_OK;
    c->buffers[c->n_buffers++] = (mz_state_buffer){.data = data, .bytes = bytes};
    c->bytes += bytes;
    if (n > 0)
        qsort(marks, n, sizeof *marks, by_place);
    MEZZO_TRY(add_part(c, what, -1, data, n > 0 ? marks[0].at : bytes));
    for (size_t i = 0; i < n; i++)
        MEZZO_TRY(add_part(c, what, marks[i].param, (char *)data + marks[i].at,
                           (i + 1 < n ? marks[i + 1].at : bytes) - marks[i].at));
    return MEZZO_OK;
}

// Marks where FP32 masters begin or, with `low`, the low copies that are masters: those of parameters, or of this
// rank's shards of them.
static size_t mark_weights(const mz_update_copy *c, bool low, mark *marks) {
    const mezzo_params *p = c->params;
    const mezzo_optimizer *o = c->optimizer;
    size_t n = 0;
    for (size_t i = 0; i < p->n && !p->sharded; i++) {
        const mz_param *one = &p->list[i];
        if (low && one->low_copy_slot >= 0)
            marks[n++] = (mark){(size_t)one->low_copy_slot * sizeof(uint16_t), (int)i};
        else if (!low && one->master == MEZZO_MASTER_FP32)
            marks[n++] = (mark){(size_t)one->offset * sizeof(float), (int)i};
    }
    for (size_t i = 0; i < o->n_segments && p->sharded; i++) {
        const mz_segment *s = &o->segments[i];
        const int64_t first = mz_layout_index(&s->layout, s->first);
        const bool is_fp32 = s->master == MEZZO_MASTER_FP32;
        const int64_t at = low ? s->low_copy_offset + first * (int64_t)sizeof(uint16_t)
                               : (s->offset - s->master_shift + first) * (int64_t)sizeof(float);
        if (s->count > 0 && is_fp32 != low)
            marks[n++] = (mark){(size_t)at, o->index[o->owner[i]]};
    }
    return n;
}

static mezzo_status add_weights(mz_update_copy *c, mark *marks) {
    const mezzo_params *p = c->params;
    MEZZO_TRY(add_buffer(c, "weights", p->master, p->master_bytes, marks, mark_weights(c, false, marks)));
    for (int k = 0; k < p->n_low_copies && p->low_masters; k++) // other low copies are rounded from the masters again
        if (p->low_copies[k].dtype == MEZZO_BF16)
            MEZZO_TRY(add_buffer(c, "weights", p->low_copies[k].data, (size_t)p->low_copy_elements * sizeof(uint16_t),
                                 marks, mark_weights(c, true, marks)));
    return MEZZO_OK;
}

static mezzo_status add_moments(mz_update_copy *c, mark *marks) {
    const mezzo_optimizer *o = c->optimizer;
    for (int m = 0; m < o->n_moments; m++) {
        const char *what = "moment";
        size_t n = 0;
        for (int i = 0; i < o->n; i++) {
            const mz_segment *s = &o->segments[o->begin[i]];
            const char *name = mz_optimizer_moment_name(o, m, i);
            if (name == NULL || s->count == 0)
                continue;
            const int64_t first = s->state_offset + mz_layout_index(&s->layout, s->first);
            marks[n++] = (mark){mz_optimizer_moment_bytes(o, m, first), o->index[i]};
            what = name;
        }
        MEZZO_TRY(
            add_buffer(c, what, o->d_moments[m], mz_optimizer_moment_bytes(o, m, o->moment_elements[m]), marks, n));
    }
    return MEZZO_OK;
}

static mezzo_status list_state(mz_update_copy *c) {
    mezzo_params *p = c->params;
    mark *marks = mz_alloc(p->n + c->optimizer->n_segments + 1, sizeof *marks);
    mezzo_status status = marks != NULL ? add_weights(c, marks) : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK)
        status = add_moments(c, marks);
    mz_free(marks);
    MEZZO_TRY(status);
    const mz_tensor rows = mz_stacks_rows(c->optimizer);
    MEZZO_TRY(add_buffer(c, "row_exp_avg_sq", rows.data, (size_t)mz_shape_count(&rows.shape) * sizeof(float), NULL, 0));
    MEZZO_TRY(add_buffer(c, "optimizer state", c->optimizer->d_state, sizeof *c->optimizer->d_state, NULL, 0));
    if (c->scaler != NULL)
        MEZZO_TRY(add_buffer(c, "loss scale", c->scaler->head.block, sizeof *c->scaler->head.block, NULL, 0));
    if (c->ranks != NULL) {
        size_t bytes;
        const void *record = mz_ranks_step_record(c->ranks, &bytes);
        MEZZO_TRY(add_buffer(c, "the ranks' losses", (void *)(uintptr_t)record, bytes, NULL, 0));
    }
    return add_buffer(c, "FP8 scales", p->scales.entries, (size_t)p->scales.n * sizeof *p->scales.entries, NULL, 0);
}

size_t mz_update_copy_plan(const mezzo_params *p, size_t moments, int64_t record) {
    const size_t bytes =
        p->master_bytes + moments + sizeof(mz_opt_state) + sizeof(mz_scaler_block) + (size_t)record * sizeof(float);
    return bytes + (p->low_masters ? (size_t)p->low_copy_elements * mezzo_dtype_size(MEZZO_BF16) : 0);
}

// --- memory ------------------------------------------------------------------------------------------------------
mezzo_status mz_update_copy_create(mezzo_step *step, mezzo_optimizer *optimizer, mezzo_scaler *scaler, mz_ranks *ranks,
                                   mz_update_copy *c) {
    mezzo_device *d = optimizer->device;
    *c = (mz_update_copy){
        .step = step, .params = optimizer->params, .optimizer = optimizer, .scaler = scaler, .ranks = ranks};
    c->has_grad = mz_alloc(c->params->n + 1, sizeof *c->has_grad);
    if (c->has_grad == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    MEZZO_TRY(list_state(c));
    for (int i = 0; i < c->n_buffers; i++)
        MEZZO_TRY(d->backend->alloc(d, c->buffers[i].bytes, &c->buffers[i].copy));
    return MEZZO_OK;
}

void mz_update_copy_free(mz_update_copy *c) {
    for (int i = 0; i < c->n_buffers; i++)
        c->params->device->backend->release(c->params->device, c->buffers[i].copy);
    MZ_FREE(c->parts, c->has_grad);
    *c = (mz_update_copy){0};
}

// --- copying and restoring ------------------------------------------------------------------------------------------
// Copies bytes; every buffer is a whole number of 4 bytes.
static mezzo_status copy_bytes(mezzo_device *device, void *from, void *to, size_t bytes) {
    const int64_t n = (int64_t)(bytes / sizeof(float));
    mz_call call = {.op = MZ_OP_copy, .n_in = 1, .n_out = 1, .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32}};
    call.in[0] = mz_tensor_f32(from, n);
    call.out[0] = mz_tensor_f32(to, n);
    return mz_run_once(device, &call);
}

mezzo_status mz_update_copy_keep(mz_update_copy *c) {
    mezzo_device *d = c->params->device;
    MEZZO_TRY(mz_deferred_flush(d));
    for (int i = 0; i < c->n_buffers; i++)
        MEZZO_TRY(copy_bytes(d, c->buffers[i].data, c->buffers[i].copy, c->buffers[i].bytes));
    for (size_t i = 0; i < c->params->n; i++)
        c->has_grad[i] = c->params->list[i].has_grad;
    return MEZZO_OK;
}

mezzo_status mz_update_copy_restore(mz_update_copy *c) {
    mezzo_params *p = c->params;
    MEZZO_TRY(mz_deferred_flush(p->device));
    for (int i = 0; i < c->n_buffers; i++)
        MEZZO_TRY(copy_bytes(p->device, c->buffers[i].copy, c->buffers[i].data, c->buffers[i].bytes));
    for (size_t i = 0; i < p->n; i++)
        p->list[i].has_grad = c->has_grad[i];
    ++p->grad_version;
    p->grads_empty = p->grads_stale = false;
    mz_step_take_back(c->step);
    return MEZZO_OK;
}
