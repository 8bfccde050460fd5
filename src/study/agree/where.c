// Describes where configurations would run: on this machine, or on one that is assumed. It also has the words for the
// judgement.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

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

// --- GPUs: NVML, which comes with the driver, knows them without starting one --------------------
typedef struct nvml {
    int (*init)(void), (*shutdown)(void), (*count)(unsigned *), (*handle)(unsigned, void **);
    int (*name)(void *, char *, unsigned), (*capability)(void *, int *, int *);
} nvml;

static bool find_all(void *library, nvml *n) {
    static const char *const names[] = {"nvmlInit_v2",           "nvmlShutdown",
                                        "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
                                        "nvmlDeviceGetName",     "nvmlDeviceGetCudaComputeCapability"};
    void *const slots[] = {&n->init, &n->shutdown, &n->count, &n->handle, &n->name, &n->capability};
    for (size_t i = 0; i < MZ_COUNT(names); i++) {
        void *symbol = dlsym(library, names[i]);
        memcpy(slots[i], &symbol, sizeof symbol);
        if (symbol == NULL)
            return false;
    }
    return true;
}

// Counts those of `count` GPUs that CUDA_VISIBLE_DEVICES leaves; *first is the index of the first one, 0 where it has a
// name.
static int visible(int count, unsigned *first) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int n = 0;
    *first = 0;
    if (list == NULL)
        return count;
    while (*list != '\0' && n < count) {
        char *end;
        const long index = strtol(list, &end, 10);
        if (end != list && (index < 0 || index >= count)) // later entries are not visible either
            break;
        if (n++ == 0 && end != list)
            *first = (unsigned)index;
        list += strcspn(list, ",");
        list += *list == ',';
    }
    return n;
}

static void look_at_gpus(mz_where *where) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), *card;
    nvml n;
    unsigned count = 0, first = 0;
    char name[96] = "";
    int major, minor;
    if (library == NULL)
        return;
    if (find_all(library, &n) && n.init() == 0) {
        if (n.count(&count) == 0)
            where->gpus = visible(count < MZ_GPUS_MAX ? (int)count : MZ_GPUS_MAX, &first);
        if (where->gpus > 0 && n.handle(first, &card) == 0 && n.name(card, name, sizeof name) == 0 &&
            n.capability(card, &major, &minor) == 0) {
            where->known = true;
            where->compute_capability = 10 * major + minor;
            snprintf(where->name, sizeof where->name, "%.60s (compute capability %d.%d)", name, major, minor);
        }
        n.shutdown();
    }
    dlclose(library);
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
    look_at_gpus(where);
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
