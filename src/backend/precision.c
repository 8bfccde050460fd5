// What a requested precision becomes on a device.
//
//   requested  the device has its arithmetic   effective  otherwise   effective
//   fp32       (always)                        fp32
//   tf32       yes                             tf32       no          fp32: tf32 is an arithmetic format, nothing is stored in it
//   fp16       yes                             fp16       no          fp16: values are stored in it, arithmetic is fp32
//   bf16       yes                             bf16       no          fp16 where the device has that (Turing), with a loss scale;
//                                                                     else bf16: values are stored in it, arithmetic is fp32
//   fp64       ref only                        fp64       cpu, cuda   an error
//   auto       the first of bf16, fp16, tf32 that was measured faster than fp32; fp32 if none was
//
// Whatever is not what was asked for is in the reason, which every command that resolves a precision prints or writes down.
//
// auto prefers bf16 to fp16 where both are faster: its range is fp32's, so no loss scale has to be found. tf32 comes last: where
// a 16-bit format is faster too, it also halves the activations.
#include "backend/backend.h"

static mezzo_precision fastest(const mezzo_device_info *info) {
    static const mezzo_precision order[] = {MEZZO_PRECISION_BF16, MEZZO_PRECISION_FP16, MEZZO_PRECISION_TF32};
    for (size_t i = 0; i < MZ_COUNT(order); i++)
        if (info->faster[order[i]])
            return order[i];
    return MEZZO_PRECISION_FP32;
}

mezzo_status mezzo_precision_resolve(mezzo_device *device, mezzo_precision requested, mezzo_precision *effective,
                                     char *reason, size_t size) {
    mezzo_device_info info;
    MEZZO_TRY(mezzo_device_describe(device, &info));
    char unused[1];
    char *line = reason != NULL && size > 0 ? reason : unused;
    size_t room = reason != NULL && size > 0 ? size : sizeof unused;
    const char *name = mezzo_precision_name(requested);
    switch (requested) {
    case MEZZO_PRECISION_FP32:
        *effective = requested;
        snprintf(line, room, "fp32, as asked");
        return MEZZO_OK;
    case MEZZO_PRECISION_FP64:
        if (strcmp(info.backend, "ref") != 0)
            return mz_fail(MEZZO_ERR_UNSUPPORTED,
                           "fp64 is for the ref device only, and this is %s: open \"ref\", or use fp32", info.backend);
        *effective = requested;
        snprintf(line, room, "fp64, as asked");
        return MEZZO_OK;
    case MEZZO_PRECISION_TF32:
        *effective = info.native[requested] ? requested : MEZZO_PRECISION_FP32;
        snprintf(line, room,
                 info.native[requested] ? "tf32, as asked" : "tf32 was asked, but %s has no tf32 arithmetic: fp32",
                 info.backend);
        return MEZZO_OK;
    case MEZZO_PRECISION_BF16:
        if (!info.native[requested] && info.native[MEZZO_PRECISION_FP16]) {
            *effective = MEZZO_PRECISION_FP16;
            snprintf(line, room, "bf16 was asked, but %s has no bf16 arithmetic: fp16, which needs a loss scale",
                     info.backend);
            return MEZZO_OK;
        }
        // fall through
    case MEZZO_PRECISION_FP16:
        *effective = requested;
        if (!info.native[requested])
            snprintf(line, room, "%s storage with fp32 arithmetic: %s has no %s arithmetic", name, info.backend, name);
        else if (!info.faster[requested])
            snprintf(line, room, "%s, as asked; not measured faster than fp32 here", name);
        else
            snprintf(line, room, "%s, as asked", name);
        return MEZZO_OK;
    case MEZZO_PRECISION_AUTO:
        *effective = fastest(&info);
        snprintf(line, room,
                 *effective == MEZZO_PRECISION_FP32 ? "auto: %s, as no lower precision was measured faster here"
                                                    : "auto: %s, measured faster than fp32 here",
                 mezzo_precision_name(*effective));
        return MEZZO_OK;
    default:
        return mz_fail(MEZZO_ERR_INVALID, "precision %d does not exist: use fp32, tf32, bf16, fp16, fp64 or auto",
                       (int)requested);
    }
}
