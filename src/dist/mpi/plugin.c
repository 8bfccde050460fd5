// This is the only object that is compiled against MPI. Collectives are started and then tested repeatedly, so that a
// rank that waits for a dead one can learn of it.
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "dist/link.h"
#include "dist/mpi/handlers.h"

static int tell(int error, char why[MZ_LINK_TEXT]) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (error == MPI_SUCCESS)
        return 0;
    MPI_Error_string(error, text, &length);
    snprintf(why, MZ_LINK_TEXT, "%.200s", text);
    return 1;
}

static int link_open(int *rank, int *size, char version[MZ_LINK_TEXT], char why[MZ_LINK_TEXT]) {
    int there = 0, ended = 0, got;
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    why[0] = '\0';
    MPI_Initialized(&there);
    MPI_Finalized(&ended);
    if (ended) {
        snprintf(why, MZ_LINK_TEXT, "MPI was left already: a process joins one job");
        return 1;
    }
    const mz_handlers ours = mz_handlers_now();
    const int bad = !there && tell(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &got), why);
    mz_handlers_restore(&ours);
    if (bad)
        return 1;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, size);
    MPI_Get_library_version(text, &got);
    text[strcspn(text, ",\n")] = '\0';
    snprintf(version, MZ_LINK_TEXT, "%.200s", text);
    return 0;
}

static int link_bytes(int root, void *data, size_t bytes, char why[MZ_LINK_TEXT]) {
    return tell(MPI_Bcast(data, (int)bytes, MPI_BYTE, root, MPI_COMM_WORLD), why);
}

// Returns the type of a collective's numbers: sums need their own; moves use one of the same width, which keeps counts
// small.
static MPI_Datatype type_of(mezzo_dtype dtype, int sums, size_t *width) {
    switch (dtype) {
    case MEZZO_F32:
        *width = 4;
        return MPI_FLOAT;
    case MEZZO_F64:
        *width = 8;
        return MPI_DOUBLE;
    case MEZZO_I64:
        *width = 8;
        return MPI_INT64_T;
    case MEZZO_I32:
        *width = 4;
        return MPI_INT32_T;
    case MEZZO_BF16:
    case MEZZO_F16:
    case MEZZO_U16:
        *width = 2;
        return sums ? MPI_DATATYPE_NULL : MPI_UINT16_T;
    case MEZZO_F8E4M3:
    case MEZZO_F8E5M2:
    case MEZZO_U8:
        *width = 1;
        return sums ? MPI_DATATYPE_NULL : MPI_BYTE;
    default:
        *width = 0;
        return MPI_DATATYPE_NULL;
    }
}

static int in_place_scatter(const mz_collective *w, int rank, size_t piece) {
    return w->kind == MZ_REDUCE_SCATTER_SUM && (const char *)w->recv == (const char *)w->send + piece * (size_t)rank;
}

// Starts a collective as one request or, for a send-receive, as two.
static int begin(const mz_collective *w, int rank, size_t piece, MPI_Datatype type, MPI_Request request[2]) {
    const int n = (int)w->count;
    const size_t at = piece * (size_t)rank;
    switch (w->kind) {
    case MZ_ALL_REDUCE_SUM:
        return MPI_Iallreduce(w->send == w->recv ? MPI_IN_PLACE : w->send, w->recv, n, type, MPI_SUM, MPI_COMM_WORLD,
                              request);
    case MZ_REDUCE_SCATTER_SUM:
        if (in_place_scatter(w, rank, piece)) // MPI leaves the result in the first piece
            return MPI_Ireduce_scatter_block(MPI_IN_PLACE, (char *)w->recv - at, n, type, MPI_SUM, MPI_COMM_WORLD,
                                             request);
        return MPI_Ireduce_scatter_block(w->send, w->recv, n, type, MPI_SUM, MPI_COMM_WORLD, request);
    case MZ_ALL_GATHER:
        return MPI_Iallgather((const char *)w->send == (const char *)w->recv + at ? MPI_IN_PLACE : w->send, n, type,
                              w->recv, n, type, MPI_COMM_WORLD, request);
    case MZ_ALL_TO_ALL:
        return MPI_Ialltoall(w->send, n, type, w->recv, n, type, MPI_COMM_WORLD, request);
    case MZ_BROADCAST:
        if (rank == w->root && w->recv != w->send)
            memcpy(w->recv, w->send, piece);
        return MPI_Ibcast(w->recv, n, type, w->root, MPI_COMM_WORLD, request);
    case MZ_SEND_RECEIVE: { // both ranks of a pair omit an empty transfer
        int error = MPI_SUCCESS;
        if (w->received > 0)
            error = MPI_Irecv(w->recv, (int)w->received, type, w->from, 0, MPI_COMM_WORLD, request);
        if (error == MPI_SUCCESS && n > 0)
            error = MPI_Isend(w->send, n, type, w->root, 0, MPI_COMM_WORLD, request + 1);
        return error;
    }
    default:
        return MPI_ERR_OP;
    }
}

static int link_run(const mz_collective *what, int rank, int (*failed)(void *user), void *user,
                    char why[MZ_LINK_TEXT]) {
    const int sums = what->kind == MZ_ALL_REDUCE_SUM || what->kind == MZ_REDUCE_SCATTER_SUM;
    size_t width;
    MPI_Datatype type = type_of(what->dtype, sums, &width);
    MPI_Request request[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    int done = 0;
    why[0] = '\0';
    const int many = what->count > INT_MAX || what->received > INT_MAX;
    if (type == MPI_DATATYPE_NULL || many) {
        snprintf(why, MZ_LINK_TEXT, "MPI %s %s", sums ? "does not add" : "does not move",
                 many ? "more than 2^31 - 1 elements at once" : "numbers of this format");
        return 1;
    }
    const size_t piece = what->count * width;
    if (tell(begin(what, rank, piece, type, request), why))
        return 1;
    while (!done) {
        if (tell(MPI_Testall(2, request, &done, MPI_STATUSES_IGNORE), why) || failed(user))
            return 1;
        if (!done)
            sched_yield(); // ranks may share a core
    }
    if (in_place_scatter(what, rank, piece) && rank > 0)
        memcpy(what->recv, (char *)what->recv - piece * (size_t)rank, piece);
    return 0;
}

static void link_close(void) {
    MPI_Finalize();
}

__attribute__((visibility("default"))) const mz_link mz_link_mpi = {
    .abi = MZ_LINK_ABI, .open = link_open, .bytes = link_bytes, .run = link_run, .close = link_close};
