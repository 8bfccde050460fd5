// Holds the table of scales of tensors in 8 bits.
#include "runtime/scales.h"

#include "runtime/params.h"

void mz_scales_free(mezzo_device *device, mz_scales *s) {
    device->backend->release(device, s->entries);
    device->backend->release(device, s->tables);
    for (int i = 0; i < s->n; i++)
        mz_free(s->names[i]);
    mz_free(s->names);
    mz_names_free(&s->index);
    mz_free(s->known);
    mz_prepared_free(&s->update);
    *s = (mz_scales){0};
}

static mezzo_status open_table(mezzo_device *device, mz_scales *s) {
    if (s->entries != NULL)
        return MEZZO_OK;
    s->names = mz_alloc(MZ_SCALES_MAX, sizeof *s->names);
    s->known = mz_alloc(MZ_SCALES_MAX, sizeof *s->known);
    if (s->names == NULL || s->known == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    s->last_synced = -1;
    return device->backend->alloc(device, MZ_SCALES_MAX * sizeof *s->entries, (void **)&s->entries);
}

static const char *entry_name(const void *list, int number) {
    return ((const mz_scales *)list)->names[number];
}

mezzo_status mz_scales_find(mezzo_device *device, mz_scales *s, const char *name, mezzo_dtype dtype, int *index) {
    const mz_scale_entry empty = {.scale = 1, .dtype = (int32_t)dtype};
    *index = mz_names_find(&s->index, name, entry_name, s);
    if (*index >= 0)
        return MEZZO_OK;
    MEZZO_TRY(open_table(device, s));
    if (s->n == MZ_SCALES_MAX)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "more than %d tensors with a scale: %s has no room in their table",
                       MZ_SCALES_MAX, name);
    char *kept = mz_strdup(name);
    if (kept == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mezzo_status status = device->backend->write(device, &s->entries[s->n], &empty, sizeof empty);
    if (status == MEZZO_OK)
        status = mz_names_add(&s->index, name, s->n);
    if (status != MEZZO_OK) {
        mz_free(kept);
        return status;
    }
    *index = s->n;
    s->names[s->n] = kept;
    s->known[s->n++] = false;
    s->unknown++;
    s->version++;
    return MEZZO_OK;
}

mezzo_status mz_scales_read(mezzo_device *device, const mz_scales *s, mz_scale_entry *out) {
    return s->n > 0 ? device->backend->read(device, out, s->entries, (size_t)s->n * sizeof *out) : MEZZO_OK;
}

static void count_known(mz_scales *s, const mz_scale_entry *entries) {
    s->unknown = 0;
    for (int i = 0; i < s->n; i++) {
        s->version += s->known[i] != (entries[i].n > 0);
        s->known[i] = entries[i].n > 0;
        s->unknown += !s->known[i];
    }
}

mezzo_status mz_scales_sync(mezzo_device *device, mz_scales *s) {
    if (s->unknown == 0 || s->last_synced >= s->steps || (s->steps & (s->steps - 1)) != 0)
        return MEZZO_OK;
    mz_scale_entry *entries = mz_alloc((size_t)s->n, sizeof *entries);
    if (entries == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mezzo_status status = mz_scales_read(device, s, entries);
    if (status == MEZZO_OK)
        count_known(s, entries);
    s->last_synced = s->steps;
    mz_free(entries);
    return status;
}

mezzo_status mz_scales_issue_update(mezzo_device *device, mz_scales *s, const mz_opt_state *state, mz_sequence *into) {
    if (s->n == 0)
        return MEZZO_OK;
    mz_call call = {.op = MZ_OP_scales_update,
                    .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32},
                    .n_in = 2,
                    .in = {mz_tensor_bytes((void *)(uintptr_t)state, sizeof *state), mz_tensor_absent()},
                    .n_out = 1,
                    .out = {mz_tensor_bytes(s->entries, (size_t)s->n * sizeof *s->entries)}};
    if (s->tables != NULL)
        call.in[1] = mz_tensor_bytes(s->tables, s->table_bytes);
    if (s->update.kernel == NULL)
        MEZZO_TRY(mz_prepare(device, &call, &s->update));
    s->steps += into == NULL; // the code that runs a list counts its steps
    return mz_issue(device, into, &s->update, &call, NULL, NULL);
}

mezzo_status mz_scales_replace(mezzo_device *device, mz_scales *s, const mz_scale_entry *all) {
    s->steps = 0;
    s->last_synced = -1;
    count_known(s, all);
    return s->n > 0 ? device->backend->write(device, s->entries, all, (size_t)s->n * sizeof *all) : MEZZO_OK;
}

mezzo_status mz_scales_drop(mezzo_device *device, mz_scales *s) {
    mz_scale_entry *entries = mz_alloc((size_t)s->n + 1, sizeof *entries);
    if (entries == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mezzo_status status = mz_scales_read(device, s, entries);
    for (int i = 0; i < s->n; i++)
        entries[i].amax = 0;
    if (status == MEZZO_OK && s->n > 0)
        status = device->backend->write(device, s->entries, entries, (size_t)s->n * sizeof *entries);
    mz_free(entries);
    return status;
}
