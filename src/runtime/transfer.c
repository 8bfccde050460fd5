// Copies elements of a parameter between the host, where they are consecutive, and the device, where their layout
// places them.
#include "base/scope.h"
#include "runtime/params.h"

// Returns the bytes of the stored elements from the first to the last of `count`, with the padding between them.
static size_t span_of(const mz_layout *layout, int64_t first, int64_t count, size_t size, int64_t *from) {
    *from = mz_layout_index(layout, first);
    return (size_t)(mz_layout_index(layout, first + count - 1) + 1 - *from) * size;
}

mezzo_status mz_stored_read(mezzo_device *device, const mz_layout *layout, const void *at, size_t size, int64_t first,
                            int64_t count, void *out) {
    int64_t from;
    if (layout->width == 0 || count == 0)
        return device->backend->read(device, out, (const char *)at + (size_t)first * size, (size_t)count * size);
    size_t bytes = span_of(layout, first, count, size, &from);
    MZ_SCOPED(mz_free_at) char *span = NULL;
    MEZZO_TRY(MZ_NEW(span, bytes));
    MEZZO_TRY(device->backend->read(device, span, (const char *)at + (size_t)from * size, bytes));
    for (int64_t i = 0, n; i < count; i += n) {
        n = mz_layout_run(layout, first + i, count - i);
        memcpy((char *)out + (size_t)i * size, span + (size_t)(mz_layout_index(layout, first + i) - from) * size,
               (size_t)n * size);
    }
    return MEZZO_OK;
}

mezzo_status mz_stored_write(mezzo_device *device, const mz_layout *layout, void *at, size_t size, int64_t first,
                             int64_t count, const void *values) {
    int64_t from;
    if (layout->width == 0 || count == 0)
        return device->backend->write(device, (char *)at + (size_t)first * size, values, (size_t)count * size);
    size_t bytes = span_of(layout, first, count, size, &from);
    MZ_SCOPED(mz_free_at) char *span = mz_alloc(bytes, 1); // zeros, so that padding keeps its value
    if (span == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int64_t i = 0, n; i < count; i += n) {
        n = mz_layout_run(layout, first + i, count - i);
        memcpy(span + (size_t)(mz_layout_index(layout, first + i) - from) * size,
               (const char *)values + (size_t)i * size, (size_t)n * size);
    }
    return device->backend->write(device, (char *)at + (size_t)from * size, span, bytes);
}
