// Holds the table of scales of tensors in 8 bits.
#include "quant/table.h"

void mz_scales_free(mezzo_device *device, mz_scales *s) {
    device->backend->release(device, s->entries);
    device->backend->release(device, s->tables);
    for (int i = 0; i < s->n; i++)
        mz_free(s->names[i]);
    MZ_FREE(s->names, s->host);
    mz_names_free(&s->index);
    mz_free(s->known);
    mz_prepared_free(&s->update);
    *s = (mz_scales){0};
}

static mezzo_status open_table(mezzo_device *device, mz_scales *s) {
    if (s->entries != NULL)
        return MEZZO_OK;
    // After an error a later call keeps the arrays that the first one allocated.
    s->names = s->names != NULL ? s->names : mz_alloc(MZ_SCALES_MAX, sizeof *s->names);
    s->known = s->known != NULL ? s->known : mz_alloc(MZ_SCALES_MAX, sizeof *s->known);
    s->host = s->host != NULL ? s->host : mz_alloc(MZ_SCALES_MAX, sizeof *s->host);
    if (s->names == NULL || s->known == NULL || s->host == NULL)
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

mz_tensor mz_scales_tensor(const mz_scales *s, int index) {
    return (mz_tensor){.data = &s->entries[index], .dtype = MEZZO_F32, .shape = {1, {MZ_SCALE_WORDS}}};
}

mezzo_status mz_scales_read(mezzo_device *device, mz_scales *s) {
    return s->n > 0 ? device->backend->read(device, s->host, s->entries, (size_t)s->n * sizeof *s->host) : MEZZO_OK;
}

static mezzo_status write_host(mezzo_device *device, const mz_scales *s) {
    return s->n > 0 ? device->backend->write(device, s->entries, s->host, (size_t)s->n * sizeof *s->host) : MEZZO_OK;
}

static void count_known(mz_scales *s) {
    s->unknown = 0;
    for (int i = 0; i < s->n; i++) {
        s->version += s->known[i] != (s->host[i].n > 0);
        s->known[i] = s->host[i].n > 0;
        s->unknown += !s->known[i];
    }
}

mezzo_status mz_scales_sync(mezzo_device *device, mz_scales *s) {
    if (s->unknown == 0 || s->last_synced >= s->steps || (s->steps & (s->steps - 1)) != 0)
        return MEZZO_OK;
    const mezzo_status status = mz_scales_read(device, s);
    if (status == MEZZO_OK)
        count_known(s);
    s->last_synced = s->steps;
    return status;
}

mezzo_status mz_scales_write(mezzo_device *device, mz_scales *s) {
    s->steps = 0;
    s->last_synced = -1;
    count_known(s);
    return write_host(device, s);
}

mezzo_status mz_scales_drop(mezzo_device *device, mz_scales *s) {
    MEZZO_TRY(mz_scales_read(device, s));
    for (int i = 0; i < s->n; i++)
        s->host[i].amax = 0;
    return write_host(device, s);
}
