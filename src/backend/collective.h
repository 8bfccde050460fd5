// Collectives: what the processes of a job, each with a device of its own, do together. The contract between a device,
// the kernels that begin a collective, and the code that moves the bytes: a backend's own way (`mz_transport`, NCCL),
// or, where a backend has none, the group's (src/dist, MPI on host memory).
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
    int root;        // of a broadcast; of a send-receive: where `send` goes
    int from;        // of a send-receive: where `recv` comes from
    size_t received; // likewise: elements of `recv`
    int more; // so many that follow it in memory run with it, at once where the transport can; theirs is not read
} mz_collective;

// A device's place in its group, as the device and its kernels see it: `device->comm`, NULL where it is alone. The
// group (dist/group.h) owns it.
typedef struct mz_comm mz_comm;
struct mz_comm {
    int rank, size;
    // On a device with a queue the collective is enqueued on the current stream and may be captured; otherwise it is
    // done on return. IO: the job has failed, the message says which rank and what it was doing.
    mezzo_status (*run)(mz_comm *comm, mezzo_device *device, const mz_collective *what);
    // OK, or the job's failure. A device asks after each wait for its queue: an aborted collective ends without a word.
    mezzo_status (*check)(mz_comm *comm);
};

// --- a backend's own way of moving bytes ---------------------------------------------------------------------------
enum { MZ_TRANSPORT_ID_BYTES = 128 };
typedef struct mz_transport {
    const char *name;     // "NCCL"
    int (*devices)(void); // that this process sees
    // Rank 0 makes an id, the group brings it to all ranks, each opens with it; open returns when all have.
    mezzo_status (*make_id)(mezzo_device *device, unsigned char id[MZ_TRANSPORT_ID_BYTES]);
    mezzo_status (*open)(mezzo_device *device, const unsigned char id[MZ_TRANSPORT_ID_BYTES], int rank, int size,
                         void **out);
    mezzo_status (*run)(mezzo_device *device, void *link, const mz_collective *what);
    // From any thread, at any time after open: collectives under way and to come end, their results are undefined.
    void (*abort)(void *link);
    void (*close)(mezzo_device *device, void *link); // waits for the device's queue unless aborted
    mezzo_status (*version)(mezzo_device *device, char *text, size_t size); // "NCCL 2.28.9"
} mz_transport;

// GPUs by what they are: the name of the backend that "auto" tries, how many of its devices this process sees (0: none,
// or no such backend in this build), whether a device's name means a GPU, and whether it leaves open which.
const char *mz_gpu_name(void);
int mz_gpu_count(void);
bool mz_device_name_is_gpu(const char *name);  // "cuda", "cuda:1"
bool mz_device_name_is_open(const char *name); // "auto", "cuda"

const char *mz_collective_name(mz_collective_kind kind); // "all-reduce"
// How many elements send and recv hold.
size_t mz_collective_send_count(const mz_collective *what, int size);
size_t mz_collective_recv_count(const mz_collective *what, int size);

#endif
