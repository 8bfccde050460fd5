// The memory of devices whose memory is the host's, and which have done all work when a call returns.
#include "backend/backend.h"

mezzo_status mz_fetch_check(const mz_fetch *fetch, size_t at, size_t bytes) {
    if (at > fetch->bytes || bytes > fetch->bytes - at)
        return mz_fail(MEZZO_ERR_INVALID, "fetch of %zu bytes at %zu: there is room for %zu", bytes, at, fetch->bytes);
    return MEZZO_OK;
}

mezzo_status mz_host_fetch_open(mezzo_device *device, size_t bytes, mz_fetch **out) {
    (void)device;
    *out = mz_alloc(1, sizeof **out + mz_align_up(bytes, 64) + 64);
    if (*out == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    **out = (mz_fetch){.host = (void *)mz_align_up((uintptr_t)(*out + 1), 64), .bytes = bytes};
    return MEZZO_OK;
}

mezzo_status mz_host_fetch(mezzo_device *device, mz_fetch *fetch, size_t at, const void *src, size_t bytes) {
    (void)device;
    MEZZO_TRY(mz_fetch_check(fetch, at, bytes));
    memcpy((char *)fetch->host + at, src, bytes);
    return MEZZO_OK;
}

mezzo_status mz_host_fetched(mezzo_device *device, mz_fetch *fetch, const void **host) {
    (void)device;
    *host = fetch->host;
    return MEZZO_OK;
}

void mz_host_fetch_close(mezzo_device *device, mz_fetch *fetch) {
    (void)device;
    mz_free(fetch);
}

mezzo_status mz_host_alloc(mezzo_device *device, size_t bytes, void **out) {
    (void)device;
    return mz_alloc_or_stop(bytes, out);
}

void mz_host_release(mezzo_device *device, void *data) {
    (void)device;
    mz_free(data);
}

mezzo_status mz_host_copy(mezzo_device *device, void *dst, const void *src, size_t bytes) {
    (void)device;
    memcpy(dst, src, bytes);
    return MEZZO_OK;
}

mezzo_status mz_host_copy_rows(mezzo_device *device, void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                               size_t width, int64_t rows) {
    (void)device;
    for (int64_t i = 0; i < rows; i++)
        memcpy((char *)dst + (size_t)i * dst_pitch, (const char *)src + (size_t)i * src_pitch, width);
    return MEZZO_OK;
}

mezzo_status mz_host_sync(mezzo_device *device) {
    (void)device;
    return MEZZO_OK;
}
