// MPI and PMIx ask hwloc for the machine's devices, and hwloc's parts load other libraries. One of them, LLVM in some
// drivers of OpenCL, takes signals for itself and loses those that arrive at the same time.
#ifndef MZ_DIST_MPI_HANDLERS_H
#define MZ_DIST_MPI_HANDLERS_H

#include <signal.h>

enum { MZ_SIGNALS = 32 }; // above are those that can be queued, which no library here takes

typedef struct mz_handlers {
    struct sigaction of[MZ_SIGNALS];
} mz_handlers;

static inline mz_handlers mz_handlers_now(void) {
    mz_handlers h = {0}; // SIG_DFL
    for (int number = 1; number < MZ_SIGNALS; number++)
        sigaction(number, NULL, &h.of[number]);
    return h;
}

// Gives the signals that the process handled or ignored then back to it; the others stay with the libraries.
static inline void mz_handlers_restore(const mz_handlers *then) {
    for (int number = 1; number < MZ_SIGNALS; number++)
        if ((then->of[number].sa_flags & SA_SIGINFO) != 0 || then->of[number].sa_handler != SIG_DFL)
            sigaction(number, &then->of[number], NULL);
}

#endif
