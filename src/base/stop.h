// A caller requests a thread's stop by a flag, as mezzo_hooks.stop. Long work before and beside training (reading,
// tokenizing, planning, writing of exports) reads the thread's flag and ends with INTERRUPTED. During a run's steps and
// checkpoints the thread has no flag, because the run reads its own between steps.
#ifndef MZ_BASE_STOP_H
#define MZ_BASE_STOP_H

#include <signal.h>

#include "mezzo/status.h"

typedef const volatile sig_atomic_t mz_stop;
mz_stop *mz_stop_enter(mz_stop *flag);        // returns the flag before, for mz_stop_leave; NULL keeps the present one
void mz_stop_leave(mz_stop *former);          // restores that flag; NULL: none
mz_stop *mz_stop_flag(void);                  // to pass to threads that this one starts
mezzo_status mz_stop_check(const char *what); // INTERRUPTED, with the message "WHAT: stopped", if the flag is set

#endif
