// Calls put off until a program takes them along, or until something needs what they do.
#include "backend/backend.h"

static void clear_call(mz_put_off *c) {
    mz_free(c->spans);
    *c = (mz_put_off){0};
}

void mz_later_clear(mz_later *later) {
    for (size_t i = 0; i < later->cap; i++)
        clear_call(&later->calls[i]);
    mz_free(later->calls);
    *later = (mz_later){0};
}

mezzo_status mz_later_run(mezzo_device *device, mz_later *later) {
    for (size_t i = 0; i < later->n; i++) {
        mz_put_off *c = &later->calls[i];
        c->call.attrs.update = &c->update;
        MEZZO_TRY(c->kernel->run(device, &c->call));
    }
    return MEZZO_OK;
}

mezzo_status mz_later_flush(mezzo_device *device) {
    mz_later *later = device->later;
    device->later = NULL;
    return later != NULL ? mz_later_run(device, later) : MEZZO_OK;
}

mezzo_status mz_later_touch(mezzo_device *device, const void *data, size_t bytes, bool writes) {
    const mz_later *later = device->later;
    const mz_span span = {data, (const char *)data + bytes};
    const mz_traffic touch = {.reads = &span, .writes = &span, .n_reads = !writes, .n_writes = writes};
    for (size_t i = 0; later != NULL && i < later->n; i++)
        if (mz_traffic_depends(&touch, &later->calls[i].traffic))
            return mz_later_flush(device);
    return MEZZO_OK;
}
