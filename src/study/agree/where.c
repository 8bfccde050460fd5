// Where configurations would run: this machine, or one that is assumed. And what the judgement is called.
#include <stdio.h>

#include "base/precision.h"
#include "mezzo/device.h"
#include "study/agree/agreement.h"

bool mz_where_assumed(const char *text, mz_where *where) {
    int major = 0, minor = 0, gpus = 1, used = 0;
    const bool counted = sscanf(text, "cc=%d.%d,gpus=%d%n", &major, &minor, &gpus, &used) == 3 && text[used] == '\0';
    if (!counted)
        gpus = 1;
    if (strcmp(text, "gpus=0") == 0)
        *where = (mz_where){0};
    else if ((counted || (sscanf(text, "cc=%d.%d%n", &major, &minor, &used) == 2 && text[used] == '\0')) && major > 0 &&
             minor >= 0 && minor < 10 && gpus >= 0)
        *where = (mz_where){.known = gpus > 0, .compute_capability = 10 * major + minor, .gpus = gpus};
    else
        return false;
    snprintf(where->name, sizeof where->name, "a GPU of compute capability %d.%d", major, minor);
    return true;
}

static bool has_arithmetic(const mezzo_device_info *info, mezzo_dtype dtype) {
    for (int p = 0; p < MEZZO_PRECISION_AUTO; p++)
        if (info->native[p] && mz_precision((mezzo_precision)p)->compute == dtype)
            return true;
    return false;
}

void mz_where_here(mz_where *where) {
    mezzo_device *device;
    mezzo_device_info info;
    *where = (mz_where){0};
    if (mezzo_device_open("cpu", 1, &device) == MEZZO_OK) {
        if (mezzo_device_describe(device, &info) == MEZZO_OK) {
            where->cpu_bf16 = has_arithmetic(&info, MEZZO_BF16);
            where->cpu_fp16 = has_arithmetic(&info, MEZZO_F16);
            where->cpu_tf32 = info.native[MEZZO_PRECISION_TF32];
        }
        mezzo_device_close(device);
    }
    for (; where->gpus < MZ_GPUS_MAX; where->gpus++) {
        char name[24];
        snprintf(name, sizeof name, "cuda:%d", where->gpus);
        if (mezzo_device_open(name, 0, &device) != MEZZO_OK)
            break;
        if (where->gpus == 0 && mezzo_device_describe(device, &info) == MEZZO_OK) {
            where->known = true;
            where->compute_capability = info.compute_capability;
            snprintf(where->name, sizeof where->name, "%.60s (compute capability %d.%d)", info.description,
                     info.compute_capability / 10, info.compute_capability % 10);
        }
        mezzo_device_close(device);
    }
}

// --- words ---------------------------------------------------------------------------------------
const char *mz_agreement_scaler(const mz_agreement *a) {
    if (a->runs == MZ_ASK_NOTHING || a->runs == MZ_ASK_AUTO)
        return "not known";
    if (a->runs != MZ_ASK_FP16)
        return "not needed";
    return a->scaler == MZ_SCALER_ON ? "yes" : a->scaler == MZ_SCALER_OFF ? "no" : "not known";
}

const char *mz_agreement_runs(const mz_agreement *a) {
    return a->runs == MZ_ASK_NOTHING ? "not known" : mz_ask_name(a->runs);
}

const char *mz_asked_text(const mz_asked *file) {
    return file->decides >= 0 ? mz_ask_name(file->votes[file->decides].ask) : "nothing";
}
