#include "base/stop.h"

#include "base/base.h"

static _Thread_local mz_stop *stop;

mz_stop *mz_stop_enter(mz_stop *flag) {
    mz_stop *former = stop;
    stop = flag != NULL ? flag : stop;
    return former;
}

void mz_stop_leave(mz_stop *former) {
    stop = former;
}

mz_stop *mz_stop_flag(void) {
    return stop;
}

mezzo_status mz_stop_check(const char *what) {
    return stop != NULL && *stop != 0 ? mz_fail(MEZZO_ERR_INTERRUPTED, "%s: stopped", what) : MEZZO_OK;
}
