// A tracer records what runs on a device, call by call, for profiles. A device without a tracer runs as if this file
// were not there.
#ifndef MZ_RUNTIME_TRACER_H
#define MZ_RUNTIME_TRACER_H

#include "backend/backend.h"

typedef struct mz_traced {
    const mz_call *call, *second; // second: served by the same kernel; NULL: none is
    const char *kernel;           // its name
    const char *module, *phase;   // "h.0.mlp.fc", "forward"; "optimizer", "update". They live as long as the program
    int stream;                   // the stream that it has in a captured step
    double flops;                 // of both, a multiply-add counting two; 0: not counted
} mz_traced;

// While device->tracer is set, nothing is captured: every call runs by itself, between begin and end.
typedef struct mz_tracer mz_tracer;
struct mz_tracer {
    mezzo_status (*begin)(mz_tracer *tracer, const mz_traced *what);
    mezzo_status (*end)(mz_tracer *tracer);
};

// A call outside of programs.
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

// Bytes that a call must bring from memory and back, each tensor once; of a table that rows are taken from, the rows.
double mz_traced_bytes(const mz_call *call);

#endif
