// precisions.def decides what a requested precision becomes on a device: the precision itself where the device has its
// arithmetic; otherwise the row's `instead` where it has that one's; otherwise values are stored in the format and
// computed in FP32, or it is refused. docs/study.md has the table. The reason says whatever is not as asked.
//
// auto prefers bf16 to fp16 where both are faster: its range is fp32's, so no loss scale has to be found. tf32 is
// last: where a 16-bit format is faster too, it also halves the activations.
#include "base/precision.h"

#include "backend/backend.h"

static mezzo_precision fastest(const mezzo_device_info *info) {
    mezzo_precision order[MEZZO_PRECISION_COUNT];
    int n = mz_precision_automatic(order);
    for (int i = 0; i < n; i++)
        if (info->faster[order[i]])
            return order[i];
    return MEZZO_PRECISION_FP32;
}

// Reports a device that has the arithmetic; it adds "not faster" where the precision saves only memory.
static void as_asked(const mezzo_device_info *info, mezzo_precision p, char *line, size_t room) {
    bool slow = mz_precision_is_low(p) && !info->faster[p], scaled = mz_precision(p)->scaling != MZ_SCALING_NONE;
    snprintf(line, room, "%s, as asked%s", mezzo_precision_name(p),
             slow && scaled ? "; emulated: this device does not support it natively"
             : slow         ? "; not faster than fp32 here"
                            : "");
}

static mezzo_status without(const mezzo_device_info *info, mezzo_precision asked, mezzo_precision *effective,
                            char *line, size_t room) {
    const mz_precision_info *p = mz_precision(asked);
    *effective = asked;
    if (p->instead != asked && info->native[p->instead]) {
        *effective = p->instead;
        bool scale = mezzo_precision_needs_loss_scale(p->instead) && !p->loss_scale;
        snprintf(line, room, "%s is not supported on this %s; using %s%s", p->name, info->backend,
                 mezzo_precision_name(p->instead), scale ? ", which needs a loss scale" : "");
        return MEZZO_OK;
    }
    if (p->without == MZ_WITHOUT_REFUSE)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "%s is not available on %s: %s", p->name, info->backend, p->why);
    snprintf(line, room, "%s storage with fp32 arithmetic: %s has no %s arithmetic", p->name, info->backend, p->name);
    return MEZZO_OK;
}

mezzo_status mezzo_precision_resolve(mezzo_device *device, mezzo_precision requested, mezzo_precision *effective,
                                     char *reason, size_t size) {
    MZ_REQUIRE(device, effective);
    mezzo_device_info info;
    MEZZO_TRY(mezzo_device_describe(device, &info));
    char unused[1];
    char *line = reason != NULL && size > 0 ? reason : unused;
    size_t room = reason != NULL && size > 0 ? size : sizeof unused;
    if (requested == MEZZO_PRECISION_AUTO) {
        *effective = fastest(&info);
        mezzo_precision order[MEZZO_PRECISION_COUNT];
        bool lower = false;
        for (int i = 0, n = mz_precision_automatic(order); i < n; i++)
            lower = lower || info.native[order[i]];
        snprintf(line, room,
                 *effective != MEZZO_PRECISION_FP32 ? "auto: %s, measured faster than fp32 here"
                 : lower                            ? "auto: %s, because no lower precision is faster here"
                                                    : "auto: %s, because this device has no 16-bit arithmetic",
                 mezzo_precision_name(*effective));
        return MEZZO_OK;
    }
    if (mz_precision(requested) == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "precision %d does not exist: use %s or auto", (int)requested,
                       mz_precision_list());
    if (!info.native[requested])
        return without(&info, requested, effective, line, room);
    *effective = requested;
    as_asked(&info, requested, line, room);
    return MEZZO_OK;
}
