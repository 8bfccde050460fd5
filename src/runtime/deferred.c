#include "runtime/deferred.h"

static void clear_call(mz_deferred_call *c) {
    mz_free(c->spans);
    *c = (mz_deferred_call){0};
}

void mz_deferred_clear(mz_deferred *list) {
    for (size_t i = 0; i < list->cap; i++)
        clear_call(&list->calls[i]);
    mz_free(list->calls);
    *list = (mz_deferred){0};
}

mezzo_status mz_deferred_run(mezzo_device *device, mz_deferred *list) {
    for (size_t i = 0; i < list->n; i++) {
        mz_deferred_call *c = &list->calls[i];
        c->call.attrs.update = &c->update;
        MEZZO_TRY(c->kernel->run(device, &c->call));
    }
    return MEZZO_OK;
}

mezzo_status mz_deferred_flush(mezzo_device *device) {
    mz_deferred *list = device->deferred;
    mz_deferred_set(device, NULL);
    return list != NULL ? mz_deferred_run(device, list) : MEZZO_OK;
}

static mezzo_status touch(mezzo_device *device, const void *data, size_t bytes, bool writes) {
    const mz_deferred *list = device->deferred;
    const mz_span span = {data, (const char *)data + bytes};
    const mz_traffic host = {.reads = &span, .writes = &span, .n_reads = !writes, .n_writes = writes};
    for (size_t i = 0; list != NULL && i < list->n; i++)
        if (mz_traffic_depends(&host, &list->calls[i].traffic))
            return mz_deferred_flush(device);
    return MEZZO_OK;
}

void mz_deferred_set(mezzo_device *device, mz_deferred *list) {
    device->deferred = list;
    device->touch = list != NULL ? touch : NULL;
}

mezzo_status mezzo_device_sync(mezzo_device *device) {
    MEZZO_TRY(mz_deferred_flush(device));
    MEZZO_TRY(device->backend->sync(device));
    return MEZZO_OK;
}
