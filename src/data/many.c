#include "data/many.h"

#include "base/stop.h"

mezzo_status mz_read_many(int64_t n, mezzo_status (*read)(void *user, int64_t i), void *user) {
    mezzo_status first = MEZZO_OK;
    int64_t at = n;
    char message[512] = ""; // messages belong to threads
    mz_stop *stop = mz_stop_flag();
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < n; i++) {
        bool go_on;
#pragma omp critical(mz_read_many)
        go_on = first == MEZZO_OK;
        if (!go_on)
            continue;
        mz_stop *former = mz_stop_enter(stop);
        const mezzo_status status = read(user, i);
        mz_stop_leave(former);
#pragma omp critical(mz_read_many)
        if (status != MEZZO_OK && i < at) {
            first = status;
            at = i;
            snprintf(message, sizeof message, "%s", mezzo_error_message());
        }
    }
    return first == MEZZO_OK ? MEZZO_OK : mz_fail(first, "%s", message);
}
