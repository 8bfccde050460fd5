// Holds the copy kernel, which stores the same elements with other padding.
#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/kernels.h"

enum { CHUNK = 1 << 15 };

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const mz_tensor *x = mz_in(call, copy, x), *y = mz_out(call, copy, y);
    const char *reason = x->dtype != y->dtype ? "copy does not convert" : mz_layout_refusal(x);
    return reason != NULL ? reason : mz_layout_refusal(y);
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = mz_in(call, copy, x), *y = mz_out(call, copy, y);
    mz_layout from, to;
    mz_layout_of(&x->shape, &x->storage, &from);
    mz_layout_of(&y->shape, &y->storage, &to);
    size_t size = mezzo_dtype_size(x->dtype);
    int64_t n = mz_shape_count(&x->shape), chunks = (n + CHUNK - 1) / CHUNK;
    if (y->storage.padded)
        memset(y->data, 0, mz_tensor_bytes_stored(y));
#pragma omp parallel for num_threads(mz_cpu_threads(device, 0.3 * (double)n))
    for (int64_t c = 0; c < chunks; c++) {
        int64_t end = n < (c + 1) * CHUNK ? n : (c + 1) * CHUNK;
        for (int64_t i = c * CHUNK, run; i < end; i += run) {
            run = mz_layout_run(&to, i, mz_layout_run(&from, i, end - i));
            memcpy((char *)y->data + (size_t)mz_layout_index(&to, i) * size,
                   (const char *)x->data + (size_t)mz_layout_index(&from, i) * size, (size_t)run * size);
        }
    }
    return MEZZO_OK;
}
const mz_kernel mz_copy__portable = {"copy__portable", prepare, run};
