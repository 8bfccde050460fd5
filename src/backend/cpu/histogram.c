// Counts a tensor's elements by magnitude in one pass, with a table of counts for each thread; the tables are summed at
// the end.
#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/inspect.h"

enum { BLOCK = 4096 };

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_layout_refusal(mz_in(call, histogram, x));
}

static uint32_t magnitude(const mz_tensor *x, int64_t i) {
    uint32_t bits;
    if (x->dtype == MEZZO_F16) {
        float wide = mezzo_f16_to_f32(((const uint16_t *)x->data)[i]);
        memcpy(&bits, &wide, sizeof bits);
    } else {
        bits = x->dtype == MEZZO_F32 ? ((const uint32_t *)x->data)[i] : (uint32_t)((const uint16_t *)x->data)[i] << 16;
    }
    return bits & 0x7FFFFFFFu;
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = mz_in(call, histogram, x);
    int32_t *counts = mz_out(call, histogram, counts)->data;
    mz_layout layout;
    mz_layout_of(&x->shape, &x->storage, &layout);
    int64_t n = mz_shape_count(&x->shape), blocks = (n + BLOCK - 1) / BLOCK;
#pragma omp parallel num_threads(mz_cpu_threads(device, 2.0 * (double)n))
    {
        int32_t own[MZ_HISTOGRAM_BUCKETS] = {0};
#pragma omp for nowait
        for (int64_t b = 0; b < blocks; b++)
            for (int64_t i = b * BLOCK; i < n && i < (b + 1) * BLOCK; i++)
                own[mz_histogram_bucket(magnitude(x, mz_layout_index(&layout, i)))]++;
        // The order of integer sums does not matter. The critical region has no name, because its name would be
        // exported.
        for (int k = 0; k < MZ_HISTOGRAM_BUCKETS; k++)
#pragma omp atomic
            counts[k] += own[k];
    }
    return MEZZO_OK;
}
const mz_kernel mz_histogram__portable = {"histogram__portable", prepare, run};
