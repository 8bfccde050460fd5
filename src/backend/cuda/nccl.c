// Connects GPUs of several processes through NCCL. The library is opened when the first group needs it; its header is
// used for types alone.
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "backend/collective.h"
#include "backend/cuda/cuda.h"

#if __has_include(<nccl.h>)
#include <dlfcn.h>
#include <nccl.h>

// --- the library ---------------------------------------------------------------------------------------------------
#define FUNCTIONS(X)                                                                                                   \
    X(GetVersion)                                                                                                      \
    X(GetUniqueId)                                                                                                     \
    X(GetErrorString)                                                                                                  \
    X(GetLastError)                                                                                                    \
    X(CommInitRank)                                                                                                    \
    X(CommDestroy)                                                                                                     \
    X(CommAbort)                                                                                                       \
    X(AllReduce)                                                                                                       \
    X(ReduceScatter)                                                                                                   \
    X(AllGather)                                                                                                       \
    X(Broadcast)                                                                                                       \
    X(Send)                                                                                                            \
    X(Recv)                                                                                                            \
    X(GroupStart)                                                                                                      \
    X(GroupEnd)

typedef struct functions {
#define MEMBER(name) __typeof__(&nccl##name) name;
    FUNCTIONS(MEMBER)
#undef MEMBER
} functions;

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static functions nccl;
static char missing[400]; // why the library is not available; "" = it is

// Disables NVLink's multicast, and fixes algorithms, so that the order of sums does not change with NCCL's estimate of
// speed: the same ranks give the same bits. Variables that the user has set stay.
static void set_defaults(void) {
    const char *interface = getenv("MEZZO_INTERFACE");
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_ALGO", "Ring", 0);
    if (interface != NULL && *interface != '\0')
        setenv("NCCL_SOCKET_IFNAME", interface, 0);
}

static void open_once(void) {
    set_defaults();
    void *library = mz_cuda_library("libnccl.so.2", missing, sizeof missing);
    if (library == NULL)
        return;
#define FIND(name)                                                                                                     \
    *(void **)(void *)&nccl.name = dlsym(library, "nccl" #name);                                                       \
    if (nccl.name == NULL)                                                                                             \
        snprintf(missing, sizeof missing, "libnccl.so.2 has no nccl" #name ": it is older than 2.7");
    FUNCTIONS(FIND)
#undef FIND
}

static mezzo_status need_nccl(void) {
    pthread_once(&opened, open_once);
    if (missing[0] != '\0')
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "GPUs of several processes need NCCL: %s", missing);
    return MEZZO_OK;
}

// Holds a communicator. A failed job aborts it from another thread, which waits for a running call, with a time limit.
typedef struct channel {
    ncclComm_t comm;
    int rank, size;
    pthread_mutex_t calling;
    atomic_bool aborted;
} channel;

static mezzo_status told(ncclResult_t result, const channel *c, const char *what) {
    if (result == ncclSuccess)
        return MEZZO_OK;
    const char *more = nccl.GetLastError(c != NULL ? c->comm : NULL);
    return mz_fail(MEZZO_ERR_DEVICE, "NCCL: %s: %s%s%s", what, nccl.GetErrorString(result),
                   more != NULL && *more != '\0' ? ": " : "", more != NULL ? more : "");
}

static mezzo_status make_id(mezzo_device *device, unsigned char id[MZ_TRANSPORT_ID_BYTES]) {
    ncclUniqueId unique;
    _Static_assert(sizeof unique <= MZ_TRANSPORT_ID_BYTES, "an id has room for NCCL's");
    (void)mz_cuda(device);
    MEZZO_TRY(need_nccl());
    MEZZO_TRY(told(nccl.GetUniqueId(&unique), NULL, "no id for the job"));
    memcpy(id, &unique, sizeof unique);
    return MEZZO_OK;
}

static mezzo_status open_channel(mezzo_device *device, const unsigned char id[MZ_TRANSPORT_ID_BYTES], int rank,
                                 int size, void **out) {
    ncclUniqueId unique;
    *out = NULL;
    memcpy(&unique, id, sizeof unique);
    MEZZO_TRY(need_nccl());
    channel *c = mz_alloc(1, sizeof *c);
    if (c == NULL)
        return MEZZO_ERR_MEMORY;
    c->rank = rank;
    c->size = size;
    pthread_mutex_init(&c->calling, NULL);
    (void)mz_cuda(device);
    mezzo_status status = told(nccl.CommInitRank(&c->comm, size, unique, rank), NULL, "the GPUs do not meet");
    if (status != MEZZO_OK) {
        pthread_mutex_destroy(&c->calling);
        mz_free(c);
        return status;
    }
    *out = c;
    return MEZZO_OK;
}

// --- collectives ---------------------------------------------------------------------------------------------------
static bool type_of(mezzo_dtype dtype, ncclDataType_t *type) {
    static const struct {
        mezzo_dtype dtype;
        ncclDataType_t type;
    } types[] = {{MEZZO_F32, ncclFloat32}, {MEZZO_F64, ncclFloat64},  {MEZZO_BF16, ncclBfloat16},
                 {MEZZO_F16, ncclFloat16}, {MEZZO_I64, ncclInt64},    {MEZZO_I32, ncclInt32},
                 {MEZZO_U8, ncclUint8},    {MEZZO_F8E4M3, ncclUint8}, {MEZZO_F8E5M2, ncclUint8},
                 {MEZZO_U16, ncclFloat16}}; // moved, never added
    for (size_t i = 0; i < MZ_COUNT(types); i++)
        if (types[i].dtype == dtype) {
            *type = types[i].type;
            return true;
        }
    return false;
}

static ncclResult_t all_to_all(const channel *c, const mz_collective *w, ncclDataType_t type, cudaStream_t stream) {
    const size_t piece = w->count * mezzo_dtype_size(w->dtype);
    ncclResult_t result = nccl.GroupStart();
    for (int r = 0; r < c->size && result == ncclSuccess; r++) {
        result = nccl.Send((const char *)w->send + (size_t)r * piece, w->count, type, r, c->comm, stream);
        if (result == ncclSuccess)
            result = nccl.Recv((char *)w->recv + (size_t)r * piece, w->count, type, r, c->comm, stream);
    }
    ncclResult_t ended = nccl.GroupEnd();
    return result == ncclSuccess ? ended : result;
}

// Sends and receives; both ranks of a pair omit an empty transfer.
static ncclResult_t send_receive(const channel *c, const mz_collective *w, ncclDataType_t type, cudaStream_t stream) {
    ncclResult_t result = nccl.GroupStart();
    if (result == ncclSuccess && w->count > 0)
        result = nccl.Send(w->send, w->count, type, w->root, c->comm, stream);
    if (result == ncclSuccess && w->received > 0)
        result = nccl.Recv(w->recv, w->received, type, w->from, c->comm, stream);
    ncclResult_t ended = nccl.GroupEnd();
    return result == ncclSuccess ? ended : result;
}

static ncclResult_t enqueue(const channel *c, const mz_collective *w, ncclDataType_t type, cudaStream_t stream) {
    switch (w->kind) {
    case MZ_ALL_REDUCE_SUM:
        return nccl.AllReduce(w->send, w->recv, w->count, type, ncclSum, c->comm, stream);
    case MZ_REDUCE_SCATTER_SUM:
        return nccl.ReduceScatter(w->send, w->recv, w->count, type, ncclSum, c->comm, stream);
    case MZ_ALL_GATHER:
        return nccl.AllGather(w->send, w->recv, w->count, type, c->comm, stream);
    case MZ_ALL_TO_ALL:
        return all_to_all(c, w, type, stream);
    case MZ_BROADCAST:
        return nccl.Broadcast(w->send, w->recv, w->count, type, w->root, c->comm, stream);
    case MZ_SEND_RECEIVE:
        return send_receive(c, w, type, stream);
    default:
        return ncclInvalidArgument;
    }
}

// Enqueues collectives that run together and may use the links of all ranks at the same time.
static ncclResult_t enqueue_all(const channel *c, const mz_collective *w, cudaStream_t stream) {
    ncclResult_t result = ncclSuccess, ended = ncclSuccess;
    if (w->more > 0)
        result = nccl.GroupStart();
    for (int i = 0; i <= w->more && result == ncclSuccess; i++) {
        ncclDataType_t type = ncclUint8;
        (void)type_of(w[i].dtype, &type);
        result = enqueue(c, &w[i], type, stream);
    }
    if (w->more > 0)
        ended = nccl.GroupEnd();
    return result == ncclSuccess ? ended : result;
}

static mezzo_status check(const mz_collective *what) {
    ncclDataType_t type;
    bool adds = what->kind == MZ_ALL_REDUCE_SUM || what->kind == MZ_REDUCE_SCATTER_SUM;
    if (!type_of(what->dtype, &type) ||
        (adds && mezzo_dtype_size(what->dtype) < 4 && what->dtype != MEZZO_BF16 && what->dtype != MEZZO_F16))
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "NCCL: %s of %s", mz_collective_name(what->kind),
                       mezzo_dtype_name(what->dtype));
    return MEZZO_OK;
}

static mezzo_status run(mezzo_device *device, void *link, const mz_collective *what) {
    channel *c = link;
    for (int i = 0; i <= what->more; i++)
        MEZZO_TRY(check(&what[i]));
    mz_cuda_device *cuda = mz_cuda(device);
    pthread_mutex_lock(&c->calling);
    bool aborted = atomic_load(&c->aborted);
    ncclResult_t result = aborted ? ncclSuccess : enqueue_all(c, what, cuda->stream);
    mezzo_status status = told(result, c, mz_collective_name(what->kind));
    pthread_mutex_unlock(&c->calling);
    return aborted ? mz_fail(MEZZO_ERR_DEVICE, "NCCL: the job has failed") : status;
}

static void abort_channel(void *link) {
    channel *c = link;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    bool locked = pthread_mutex_timedlock(&c->calling, &until) == 0; // false: a call waits for a lost rank
    if (!atomic_exchange(&c->aborted, true))
        (void)nccl.CommAbort(c->comm);
    if (locked)
        pthread_mutex_unlock(&c->calling);
}

static void close_channel(mezzo_device *device, void *link) {
    channel *c = link;
    if (c == NULL)
        return;
    mz_cuda_device *cuda = mz_cuda(device);
    if (!atomic_load(&c->aborted)) {
        (void)cudaStreamSynchronize(cuda->stream);
        (void)nccl.CommDestroy(c->comm);
    }
    (void)cudaGetLastError();
    pthread_mutex_destroy(&c->calling);
    mz_free(c);
}

static mezzo_status version(mezzo_device *device, char *text, size_t size) {
    int number = 0;
    (void)device;
    MEZZO_TRY(need_nccl());
    MEZZO_TRY(told(nccl.GetVersion(&number), NULL, "no version"));
    snprintf(text, size, "NCCL %d.%d.%d", number / 10000, number % 10000 / 100, number % 100);
    return MEZZO_OK;
}

#else
// --- built without NCCL's header -----------------------------------------------------------------------------------
static mezzo_status none(void) {
    return mz_fail(MEZZO_ERR_UNSUPPORTED, "GPUs of several processes need NCCL, whose header nccl.h was not there when "
                                          "mezzo was built: install NCCL and build again");
}

static mezzo_status make_id(mezzo_device *device, unsigned char id[MZ_TRANSPORT_ID_BYTES]) {
    (void)device, (void)id;
    return none();
}

static mezzo_status open_channel(mezzo_device *device, const unsigned char id[MZ_TRANSPORT_ID_BYTES], int rank,
                                 int size, void **out) {
    (void)device, (void)id, (void)rank, (void)size;
    *out = NULL;
    return none();
}
#endif

static int devices(void) {
    int count = 0;
    bool fine = cudaGetDeviceCount(&count) == cudaSuccess;
    (void)cudaGetLastError();
    return fine ? count : 0;
}

const mz_transport mz_cuda_nccl = {.name = "NCCL",
                                   .devices = devices,
                                   .make_id = make_id,
                                   .open = open_channel,
#if __has_include(<nccl.h>) // the others take an open channel
                                   .run = run,
                                   .abort = abort_channel,
                                   .close = close_channel,
                                   .version = version
#endif
};
