// Describes collectives without running them.
#include "backend/collective.h"

const char *mz_collective_name(mz_collective_kind kind) {
    static const char *const names[MZ_COLLECTIVE_COUNT] = {
        [MZ_ALL_REDUCE_SUM] = "all-reduce", [MZ_REDUCE_SCATTER_SUM] = "reduce-scatter",
        [MZ_ALL_GATHER] = "all-gather",     [MZ_ALL_TO_ALL] = "all-to-all",
        [MZ_BROADCAST] = "broadcast",       [MZ_SEND_RECEIVE] = "send-receive",
    };
    return kind >= 0 && kind < MZ_COLLECTIVE_COUNT ? names[kind] : "unknown collective";
}

size_t mz_collective_send_count(const mz_collective *what, int size) {
    bool pieces = what->kind == MZ_REDUCE_SCATTER_SUM || what->kind == MZ_ALL_TO_ALL;
    return pieces ? what->count * (size_t)size : what->count;
}

size_t mz_collective_recv_count(const mz_collective *what, int size) {
    bool pieces = what->kind == MZ_ALL_GATHER || what->kind == MZ_ALL_TO_ALL;
    if (what->kind == MZ_SEND_RECEIVE)
        return what->received;
    return pieces ? what->count * (size_t)size : what->count;
}
