// Names ranges for Nsight. NVTX is a header that finds the profiler in the process, and does nothing without one.
#include "backend/cuda/cuda.h"

#include <nvtx3/nvToolsExt.h>

void mz_cuda_range_push(mezzo_device *device, const char *name) {
    (void)device;
    (void)nvtxRangePushA(name);
}

void mz_cuda_range_pop(mezzo_device *device) {
    (void)device;
    (void)nvtxRangePop();
}
