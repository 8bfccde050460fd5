// Reads the card's sensors through NVML, which comes with the driver and is opened together with the device.
#include <dlfcn.h>
#include <stdlib.h>

#include "backend/cuda/cuda.h"

// These follow NVML's documentation (nvml.h is not part of every toolkit): an opaque handle, and 0 for success.
typedef struct nvml_device *nvml_handle;
typedef struct nvml_memory {
    unsigned long long total, free, used; // bytes
} nvml_memory;
enum { NVML_TEMPERATURE_GPU = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2 };

struct mz_cuda_telemetry {
    void *library;
    nvml_handle card;
    char driver[80], serial[40]; // serial "": a card without one
    int (*shutdown)(void);
    int (*power)(nvml_handle, unsigned *milliwatts);
    int (*energy)(nvml_handle, unsigned long long *millijoules); // since the driver was loaded; Volta and later
    int (*temperature)(nvml_handle, int sensor, unsigned *celsius);
    int (*clock)(nvml_handle, int domain, unsigned *mhz);
    int (*memory)(nvml_handle, nvml_memory *out);
};

static bool find(void *library, const char *name, void *function) { // function: the address of a function pointer
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

void mz_cuda_telemetry_open(mz_cuda_device *device, const char *bus_id) {
    int (*init)(void), (*by_bus)(const char *, nvml_handle *), (*version)(char *, unsigned);
    int (*serial)(nvml_handle, char *, unsigned);
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    struct mz_cuda_telemetry *t = library != NULL ? mz_alloc(1, sizeof *t) : NULL;
    if (t == NULL) {
        if (library != NULL)
            dlclose(library);
        return;
    }
    t->library = library;
    bool whole = find(library, "nvmlInit_v2", &init) && find(library, "nvmlShutdown", &t->shutdown) &&
                 find(library, "nvmlDeviceGetHandleByPciBusId_v2", &by_bus) &&
                 find(library, "nvmlSystemGetDriverVersion", &version) &&
                 find(library, "nvmlDeviceGetPowerUsage", &t->power) &&
                 find(library, "nvmlDeviceGetTotalEnergyConsumption", &t->energy) &&
                 find(library, "nvmlDeviceGetTemperature", &t->temperature) &&
                 find(library, "nvmlDeviceGetClockInfo", &t->clock) &&
                 find(library, "nvmlDeviceGetMemoryInfo", &t->memory) && init() == 0;
    if (whole && version(t->driver, sizeof t->driver) != 0)
        t->driver[0] = '\0';
    if (whole && by_bus(bus_id, &t->card) == 0) {
        if (!find(library, "nvmlDeviceGetSerial", &serial) || serial(t->card, t->serial, sizeof t->serial) != 0)
            t->serial[0] = '\0';
        device->telemetry = t;
        return;
    }
    if (whole)
        t->shutdown();
    dlclose(library);
    mz_free(t);
}

void mz_cuda_telemetry_close(mz_cuda_device *device) {
    struct mz_cuda_telemetry *t = device->telemetry;
    if (t == NULL)
        return;
    t->shutdown();
    dlclose(t->library);
    mz_free(t);
    device->telemetry = NULL;
}

mezzo_status mz_cuda_telemetry_read(mezzo_device *device, mezzo_telemetry *out) {
    const struct mz_cuda_telemetry *t = mz_cuda(device)->telemetry;
    unsigned value;
    unsigned long long total;
    nvml_memory memory;
    if (t == NULL)
        return MEZZO_OK;
    if (t->power(t->card, &value) == 0)
        out->watts = value * 1e-3;
    if (t->energy(t->card, &total) == 0)
        out->joules = (double)total * 1e-3;
    if (t->temperature(t->card, NVML_TEMPERATURE_GPU, &value) == 0)
        out->celsius = value;
    if (t->clock(t->card, NVML_CLOCK_SM, &value) == 0)
        out->clock_mhz = value;
    if (t->clock(t->card, NVML_CLOCK_MEM, &value) == 0)
        out->memory_clock_mhz = value;
    if (t->memory(t->card, &memory) == 0)
        out->memory_used = (size_t)memory.used;
    return MEZZO_OK;
}

void mz_cuda_serial_text(const mz_cuda_device *device, char *text, size_t size) {
    snprintf(text, size, "%s", device->telemetry != NULL ? device->telemetry->serial : "");
}

void mz_cuda_driver_text(const mz_cuda_device *device, char *text, size_t size) {
    snprintf(text, size, "%s", device->telemetry != NULL ? device->telemetry->driver : "");
}
