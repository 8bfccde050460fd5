// Declares collectives, which the processes of a job, each with its own device, run together. This is the contract
// between a device, the kernels that begin a collective, and the code that moves the bytes: a backend's own transport
// (`mz_transport`, NCCL), or, where a backend has none, the group's (src/dist, MPI on host memory).
#ifndef MZ_COLLECTIVE_H
#define MZ_COLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#include "mezzo/device.h"

typedef enum mz_collective_kind {
    MZ_ALL_REDUCE_SUM,     // recv[i] = Σ over ranks of send[i];           send, recv: count elements
    MZ_REDUCE_SCATTER_SUM, // recv[i] = Σ over ranks of send[rank·count+i]; send: size·count, recv: count
    MZ_ALL_GATHER,         // recv[r·count+i] = rank r's send[i];          send: count, recv: size·count
    MZ_ALL_TO_ALL,         // recv[r·count+i] = rank r's send[rank·count+i]; send, recv: size·count
    MZ_BROADCAST,          // recv[i] = root's send[i];                    send, recv: count; send is read on root alone
    MZ_SEND_RECEIVE,       // rank `root` receives send[0 … count-1]; recv[0 … received-1] come from rank `from`
    MZ_COLLECTIVE_COUNT
} mz_collective_kind;

// Every rank of the group runs the same collectives in the same order: kind, count, dtype and root are the same on all,
// but for send-receive, where a rank's count is what its `root` receives and 0 is a number.
// In place is allowed where the two buffers are as NCCL has them: all-reduce, broadcast: recv = send; reduce-scatter:
// recv = send + rank·count (the other pieces are undefined then); all-gather: send = recv + rank·count; all-to-all:
// and send-receive: never. Otherwise they do not overlap.
// Sums take F32 (and F64, I32, I64 where a transport has them; NCCL BF16 and F16 too); the others move any dtype.
typedef struct mz_collective {
    mz_collective_kind kind;
    const void *send; // device memory
    void *recv;
    size_t count; // elements, as above
    mezzo_dtype dtype;
    int root;        // of a broadcast; for a send-receive the rank that gets `send`
    int from;        // for a send-receive the rank that sends `recv`
    size_t received; // for a send-receive: elements of `recv`
    int more; // number of collectives that follow it in memory and run with it, concurrently where the transport can;
              // their `more` is ignored
} mz_collective;

// Holds a device's place in its group, for the device and its kernels: `device->comm`, NULL where it is alone. The
// group (dist/group.h) owns it.
typedef struct mz_comm mz_comm;
struct mz_comm {
    int rank, size;
    // Runs a collective. On a device with a queue it is enqueued on the current stream and may be captured; otherwise
    // it is done on return. IO: the job has failed; the message names the rank and its activity.
    mezzo_status (*run)(mz_comm *comm, mezzo_device *device, const mz_collective *what);
    // Returns OK or the job's failure. A device calls it after each wait for its queue, because an aborted collective
    // ends without an error.
    mezzo_status (*check)(mz_comm *comm);
};

// --- a backend's own way of moving bytes ---------------------------------------------------------------------------
enum { MZ_TRANSPORT_ID_BYTES = 128 };
typedef struct mz_transport {
    const char *name;     // "NCCL"
    int (*devices)(void); // number of devices that this process sees
    // Rank 0 makes an id, the group passes it to all ranks, and each opens with it; open returns when all have.
    mezzo_status (*make_id)(mezzo_device *device, unsigned char id[MZ_TRANSPORT_ID_BYTES]);
    mezzo_status (*open)(mezzo_device *device, const unsigned char id[MZ_TRANSPORT_ID_BYTES], int rank, int size,
                         void **out);
    mezzo_status (*run)(mezzo_device *device, void *link, const mz_collective *what);
    // Ends collectives that run or follow, and leaves their results undefined. It may be called by any thread at any
    // time after open.
    void (*abort)(void *link);
    void (*close)(mezzo_device *device, void *link); // waits for the device's queue unless aborted
    mezzo_status (*version)(mezzo_device *device, char *text, size_t size); // "NCCL 2.28.9"
} mz_transport;

// These describe GPUs: the name of the backend that "auto" tries, how many of its devices this process sees (0: none,
// or no such backend in this build), whether a device's name means a GPU, and whether it leaves the choice of GPU open.
const char *mz_gpu_name(void);
int mz_gpu_count(void);
bool mz_device_name_is_gpu(const char *name);  // "cuda", "cuda:1"
bool mz_device_name_is_open(const char *name); // "auto", "cuda"

const char *mz_collective_name(mz_collective_kind kind); // "all-reduce"
// Returns the number of elements of send, or of recv.
size_t mz_collective_send_count(const mz_collective *what, int size);
size_t mz_collective_recv_count(const mz_collective *what, int size);

#endif
