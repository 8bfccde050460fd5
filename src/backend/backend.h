// Declares the contract between programs and backends. A backend is one folder and one line in backend.c's registry;
// this file and graph/op.h contain all that it needs to know.
#ifndef MZ_BACKEND_H
#define MZ_BACKEND_H

#include <signal.h>

#include "base/base.h"
#include "graph/op.h"
#include "graph/post.h"
#include "mezzo/device.h"
#include "mezzo/program.h"

// Holds a run's random state on the device: dropout's Philox key is (seed, step, attrs.rng), its index the element.
typedef struct mz_rng_state {
    uint64_t seed, step; // the kernel folds step to 32 bits: (uint32_t)(step ^ step >> 32)
} mz_rng_state;

// One op with its tensors: what a kernel runs, and what it is asked about before (data pointers NULL then).
// Tensors are row-major, 64-byte aligned, contiguous but for the padding that their storage says
// (docs/dev/CORE.md, "Storage is not shape"), which holds zeros when a call begins and when it ends. Absent
// slots, and those from n_in and n_out on, have rank -1 and data NULL. Inputs and outputs never overlap, except that
// one output may be exactly the input that ops.def lets it replace (mz_op_reuses, mz_op_replaces).
typedef struct mz_call {
    mz_op op;
    mz_attrs attrs;
    mz_numerics numerics;
    int n_in, n_out;
    mz_tensor in[MZ_MAX_IN], out[MZ_MAX_OUT];
    void *workspace;         // at least the bytes that prepare() requested, 64-byte aligned; contents undefined
    void *state;             // the state that prepare() keeps
    const mz_rng_state *rng; // device pointer
} mz_call;
extern const mz_tensor mz_absent_slot; // rank -1, data NULL
static inline bool mz_present(const mz_tensor *t) {
    return t->shape.rank >= 0;
}

typedef struct mz_kernel mz_kernel;

// Holds a kernel that is prepared for a call: all that was chosen, computed or measured once, and that each run needs.
// It serves calls of the same op, attributes, numerics, formats and shapes, at any addresses. Kernels of update ops
// keep no state: their constants and the number of their tensors may change from run to run. Products of experts may
// run with fewer experts.
typedef struct mz_prepared {
    const mz_kernel *kernel;
    void *state;                  // the kernel's own, on the host; NULL: none
    void (*release)(void *state); // NULL: mz_free
    size_t workspace;             // bytes of device memory
} mz_prepared;

// A kernel returns this reason if it could not allocate its state: then no other kernel is tried, and mz_prepare fails
// with MEMORY.
extern const char mz_out_of_memory[];

struct mz_kernel {
    const char *name; // operation_types__isa_tile: "matmul_bf16_f32__amx_2x1"
    // Returns NULL if it can serve the call; *out, which is zeroed before, then describes it. Otherwise it returns the
    // reason: a static string, or one that lives as long as the device. Tensors may have no addresses yet, and are what
    // ops.def says of their slots (floats, indices, bytes; absent only if optional). It may run work on the device to
    // measure, and is never called within a capture.
    const char *(*prepare)(mezzo_device *device, const mz_call *call, mz_prepared *out);
    mezzo_status (*run)(mezzo_device *device, const mz_call *call); // enqueues on a device with a queue
};

// Returns NULL, or why a call's slots are not stored as the letters say, one for each slot: a any float (fp32, bf16,
// fp16), b bf16, f fp32, i i32, n any float or i32, u bytes, m fp32 or bytes (masters). The last letter applies to
// further slots; absent slots pass.
const char *mz_storages_refusal(const mz_call *call, const char *in, const char *out);
static inline bool mz_stores_float(const mz_tensor *t) {
    return t->dtype == MEZZO_F32 || t->dtype == MEZZO_BF16 || t->dtype == MEZZO_F16;
}

// Holds the sets of formats and scalings that a kernel takes, one bit for each.
typedef struct mz_takes {
    uint32_t dtypes, scalings;
    bool blocks;      // rounds its operands to blocks where attrs.blocks says so
    bool extras;      // serves post-ops that only kernels serve which say so (.offered in post.def)
    uint64_t refuses; // post-ops of its op that it does not serve (graph/post.h)
} mz_takes;
#define MZ_BIT(index) (UINT32_C(1) << (index))
#define MZ_DTYPES_USUAL                                                                                                \
    (MZ_BIT(MEZZO_F32) | MZ_BIT(MEZZO_BF16) | MZ_BIT(MEZZO_F16) | MZ_BIT(MEZZO_I64) | MZ_BIT(MEZZO_I32) |              \
     MZ_BIT(MEZZO_U16) | MZ_BIT(MEZZO_U8))
#define MZ_SCALINGS_NONE MZ_BIT(MZ_SCALING_NONE)

// Serves two or three consecutive calls, and gives the results of all, with the first call's workspace.
typedef struct mz_fused_kernel {
    const char *name;
    mezzo_status (*run)(mezzo_device *device, const mz_call *first, const mz_call *second); // NULL: it serves three
    mezzo_status (*run_three)(mezzo_device *device, const mz_call *first, const mz_call *second, const mz_call *third);
} mz_fused_kernel;

// Holds the measured peak rates of a device with all its units busy.
typedef struct mz_peaks {
    double flops[MEZZO_DTYPE_COUNT]; // per second, by compute dtype (F32, TF32, BF16, F16), products summed in FP32; 0:
                                     // not known
    double copy;                     // of a stream copy that no cache holds: bytes read plus bytes written, per second
} mz_peaks;

typedef struct mz_fetch { // a copy from the device to the host
    void *host;
    size_t bytes;
    void *event; // the backend's own object
} mz_fetch;

typedef struct mz_upload { // memory of the host from which the device copies
    void *host;
    size_t bytes;
} mz_upload;

// A captured graph has these streams: collectives have one for themselves, and deferred calls run on the last.
enum { MZ_STREAMS = 4, MZ_STREAM_COLLECTIVE = 2, MZ_STREAM_DEFERRED = MZ_STREAMS - 1 };

typedef struct mz_backend {
    const char *name;
    bool gpu;   // devices have memory of their own, and a machine may have several: NAME:0, NAME:1 …
    bool queue; // calls return before their work is done; what is enqueued can be captured (capture_begin)
    // Opens device `index`; the object starts with struct mezzo_device below. UNSUPPORTED gives the reason why it
    // cannot be opened.
    mezzo_status (*open)(int index, int threads, mezzo_device **out);
    void (*close)(mezzo_device *device);
    mezzo_status (*describe)(mezzo_device *device, mezzo_device_info *out);
    // Returns the kernels of an op, best first. The first that can be prepared runs.
    const mz_kernel *const *(*kernels)(const mezzo_device *device, mz_op op, size_t *n);
    // Optional: returns whether the op becomes its composition, although it has kernels, because none serves a first
    // result of this shape.
    bool (*composes)(mz_op op, const mz_shape *result);
    // Optional: returns the number formats, scales and slots that a kernel takes beyond the usual ones, MZ_DTYPES_USUAL
    // without scales. NULL: no kernel of the backend takes more. mz_prepare_kernel refuses all others before prepare is
    // called.
    mz_takes (*takes)(const mz_kernel *kernel);
    // Optional: returns the padded tensors that an op's kernels read and write in their storage's layout; NULL: none.
    mz_padded (*takes_padding)(mz_op op);
    // A step of a program of at most few_rows rows counts as short: its updates run beside the next forward, and
    // activations' results are kept, unless a product sums `many_summed` numbers or more (0: those are kept as well).
    // few_rows 0: no step is short.
    int64_t few_rows, many_summed;
    // Optional: returns the kernel that serves two consecutive calls, which are bound to memory, together; NULL: each
    // has its own. is_private: no other call reads the result that the first call makes for the second.
    const mz_fused_kernel *(*fuse_calls)(mezzo_device *device, const mz_call *first, const mz_call *second,
                                         bool is_private);
    // Optional: the same of three, where no call but the third reads the result that the second makes for it.
    const mz_fused_kernel *(*fuse_three)(mezzo_device *device, const mz_call *first, const mz_call *second,
                                         const mz_call *third);
    // Optional: returns, before calls are bound to memory, whether fuse_calls may take them, so that the first one's
    // operands must stay for the second. fuse_calls decides by the bound memory, and also takes other pairs whose
    // operands happen to stay.
    bool (*may_fuse)(const mz_call *first, const mz_call *second);
    // These manage memory. alloc zeroes it. Copies are ordered with the device's work; read waits for it.
    mezzo_status (*alloc)(mezzo_device *device, size_t bytes, void **out);
    void (*release)(mezzo_device *device, void *data);
    mezzo_status (*write)(mezzo_device *device, void *dst, const void *host, size_t bytes);
    mezzo_status (*read)(mezzo_device *device, void *host, const void *src, size_t bytes);
    mezzo_status (*zero)(mezzo_device *device, void *dst, size_t bytes);
    // Copies `rows` rows of `width` bytes on the device, which begin `dst_pitch` and `src_pitch` bytes apart.
    mezzo_status (*copy_rows)(mezzo_device *device, void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, int64_t rows);
    mezzo_status (*sync)(mezzo_device *device);
    // These read without waiting: fetch enqueues a copy into the object's host memory, `at` bytes from its start;
    // fetched waits for all copies enqueued so far. The object's owner closes it before the device. host.c has these
    // for devices without a queue.
    mezzo_status (*fetch_open)(mezzo_device *device, size_t bytes, mz_fetch **out); // host memory is zeroed
    mezzo_status (*fetch)(mezzo_device *device, mz_fetch *fetch, size_t at, const void *src, size_t bytes);
    mezzo_status (*fetched)(mezzo_device *device, mz_fetch *fetch, const void **host);
    void (*fetch_close)(mezzo_device *device, mz_fetch *fetch); // NULL is allowed
    // Optional: these write without a copy on the host. upload enqueues a copy of the first bytes of the object's
    // memory to `dst`, in order with the device's work, which it does not wait for; after upload_wait the host may
    // change that memory again. The object's owner closes it before the device. Writes of fewer than upload_least bytes
    // reach the device as early by `write`, which needs no wait.
    size_t upload_least;
    mezzo_status (*upload_open)(mezzo_device *device, size_t bytes, mz_upload **out); // host memory is zeroed
    mezzo_status (*upload)(mezzo_device *device, mz_upload *upload, void *dst, size_t bytes);
    mezzo_status (*upload_wait)(mezzo_device *device, mz_upload *upload);
    void (*upload_close)(mezzo_device *device, mz_upload *upload); // NULL is allowed
    // Optional (NULL on CPUs): all work enqueued between begin and end becomes one graph, which launch replays.
    mezzo_status (*capture_begin)(mezzo_device *device);
    mezzo_status (*capture_end)(mezzo_device *device, void **graph);
    mezzo_status (*capture_launch)(mezzo_device *device, void *graph);
    void (*capture_free)(mezzo_device *device, void *graph);
    // Optional, inside a capture: what follows goes to one of the graph's streams, 0 (where it starts) to MZ_STREAMS -
    // 1, in order in each. An event (0, 1, ...) is the stream's place now; other streams can wait for it. A stream
    // other than 0 starts with such a wait, and stream 0 ends with one for each. Collectives have the highest
    // priority, the last stream has the lowest. A device with streams calls mz_device_flush_deferred before it reads or
    // writes memory for the host, or releases it.
    mezzo_status (*capture_stream)(mezzo_device *device, int stream);
    mezzo_status (*capture_record)(mezzo_device *device, int event);
    mezzo_status (*capture_wait)(mezzo_device *device, int event);
    // Optional: measures the peaks, which may take a second. NULL: mz_device_peaks times a large product and a large
    // cast.
    mezzo_status (*peaks)(mezzo_device *device, mz_peaks *out);
    // Optional: puts marks 0 … MZ_MARKS-1 into the queue. NULL: the host's clock is right, because nothing is queued.
    mezzo_status (*mark)(mezzo_device *device, int mark);
    mezzo_status (*elapsed)(mezzo_device *device, int from, int to, double *seconds); // waits for both
    // Optional: names ranges of the host's calls for a profiler (Nsight).
    void (*range_push)(mezzo_device *device, const char *name);
    void (*range_pop)(mezzo_device *device);
    // Optional: exchanges data between devices of several processes; NULL: the group does it, on host memory.
    const struct mz_transport *transport;
    // Optional: reads sensors. *out comes filled with "not known"; known values are written.
    mezzo_status (*telemetry)(mezzo_device *device, mezzo_telemetry *out);
} mz_backend;

#define MZ_MARKS 64
struct mezzo_device {
    const mz_backend *backend;
    int threads;
    size_t allocated, peak; // bytes, where the backend counts them
    struct mz_comm *comm;   // its place in a group (collective.h), which owns this; NULL: the device is alone
    double marks[MZ_MARKS]; // seconds, where the backend has no marks of its own
    // Belongs to the runtime. touch: NULL, or a function to call before these bytes are read or written, so that
    // deferred calls which need or make them run first.
    mezzo_status (*flush_deferred)(mezzo_device *device, const void *data, size_t bytes, bool writes);
    mz_storage_policy storage;    // for parameters and programs that are made from now on
    struct mz_deferred *deferred; // lists of calls that wait to run, in order; NULL: none
    uint64_t deferred_id;         // of the newest list
    // Not zero: a program that runs call by call ends before the next call with INTERRUPTED. NULL: never. Borrowed.
    const volatile sig_atomic_t *stop;
    struct mz_tracer *tracer; // runtime/tracer.h; NULL: there is no listener
};

// host.c: for mz_backend, of devices that finish their work before a call returns, and whose memory is the host's.
mezzo_status mz_host_alloc(mezzo_device *device, size_t bytes, void **out);
void mz_host_release(mezzo_device *device, void *data);
mezzo_status mz_host_copy(mezzo_device *device, void *dst, const void *src, size_t bytes);
mezzo_status mz_host_sync(mezzo_device *device);
mezzo_status mz_host_copy_rows(mezzo_device *device, void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                               size_t width, int64_t rows);
mezzo_status mz_host_fetch_open(mezzo_device *device, size_t bytes, mz_fetch **out);
mezzo_status mz_host_fetch(mezzo_device *device, mz_fetch *fetch, size_t at, const void *src, size_t bytes);
mezzo_status mz_host_fetched(mezzo_device *device, mz_fetch *fetch, const void **host);
void mz_host_fetch_close(mezzo_device *device, mz_fetch *fetch);
// Returns INVALID where the object has no space for the bytes.
mezzo_status mz_fetch_check(const mz_fetch *fetch, size_t at, size_t bytes);

static inline mezzo_status mz_device_flush_deferred(mezzo_device *device, const void *data, size_t bytes, bool writes) {
    return device->flush_deferred != NULL ? device->flush_deferred(device, data, bytes, writes) : MEZZO_OK;
}

// Is called for every device that has been opened; if it fails, the device is closed again. Only tests set it
// (tools/inject); otherwise NULL.
extern mezzo_status (*mz_device_opened)(mezzo_device *device);

// Measures the device's peaks: by the backend's own measurement, or on a device with a queue by a product of 8192³ and
// a cast of 1 GiB, which need 2 GiB during the measurement. All 0 where neither exists.
mezzo_status mz_device_peaks(mezzo_device *device, mz_peaks *out);

// What takes_padding says of ops whose kernels read and write by mz_layout, on devices that have them: copy,
// inspections and the update are MZ_PADDED_ANY.
mz_padded mz_padded_of_layouts(mz_op op);

// Makes a call run over padding as if it were data: its tensors' shapes become those stored.
void mz_call_over_padding(mz_call *call);
// Prepares the first kernel of the backend's list that can serve the call; MEZZO_VERBOSE=dispatch logs the choice and
// each refusal. UNSUPPORTED lists the reasons. The caller owns *out and frees it before the device is closed.
mezzo_status mz_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out);
// Returns the first kernel of an op's list that serves the post-op; NULL: none does.
const mz_kernel *mz_post_kernel(const mezzo_device *device, mz_op op, mz_post post);
// Prepares one kernel and returns NULL, or returns its reason and leaves *out empty.
const char *mz_prepare_kernel(mezzo_device *device, const mz_kernel *kernel, const mz_call *call, mz_prepared *out);
void mz_prepared_free(mz_prepared *prepared); // leaves it empty; an empty one is allowed

#endif
