// A tracer records what runs on a device, call by call, for profiles. A device without a tracer runs as if this file
// were not there.
#ifndef MZ_RUNTIME_TRACER_H
#define MZ_RUNTIME_TRACER_H

#include "backend/backend.h"

typedef struct mz_traced {
    const mz_call *call, *second, *third; // those after the first are run by the same kernel; NULL: none
    const char *kernel;                   // the kernel's name
    const char *module, *phase; // "h.0.mlp.fc", "forward"; "optimizer", "update". Both live as long as the program
    int stream;                 // the stream on which it runs in a captured step
    double flops;               // operations of the first two calls, a multiply-add counting two; 0: not counted
} mz_traced;

// While device->tracer is set, the device captures nothing: each call runs by itself, between begin and end.
typedef struct mz_tracer mz_tracer;
struct mz_tracer {
    mezzo_status (*begin)(mz_tracer *tracer, const mz_traced *what);
    mezzo_status (*end)(mz_tracer *tracer);
};

// Runs a call outside of programs, and traces it.
static inline mezzo_status mz_traced_run(mezzo_device *device, const mz_kernel *kernel, const mz_call *call,
                                         const char *module, const char *phase, int stream) {
    mz_tracer *t = device->tracer;
    if (t == NULL)
        return kernel->run(device, call);
    const mz_traced what = {.call = call, .kernel = kernel->name, .module = module, .phase = phase, .stream = stream};
    MEZZO_TRY(t->begin(t, &what));
    mezzo_status ran = kernel->run(device, call);
    mezzo_status ended = t->end(t);
    return ran != MEZZO_OK ? ran : ended;
}

// Returns the bytes that a call must move from and to memory, each tensor once; of a table that rows are read from,
// those rows.
double mz_traced_bytes(const mz_call *call);

#endif
