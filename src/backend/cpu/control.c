// Holds the kernels that make the update's decisions (backend/control.c, backend/track.c).
#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/update.h"

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)call, (void)out;
    return NULL;
}

#define DECISION(name)                                                                                                 \
    static mezzo_status run_##name(mezzo_device *device, const mz_call *call) {                                        \
        (void)device;                                                                                                  \
        mz_##name(call);                                                                                               \
        return MEZZO_OK;                                                                                               \
    }                                                                                                                  \
    const mz_kernel mz_##name##__portable = {#name "__portable", prepare, run_##name};
DECISION(clip_control)
DECISION(norm_across_ranks)
DECISION(scales_update)
DECISION(step_control)
DECISION(scaler_update)
DECISION(track)
