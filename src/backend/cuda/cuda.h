// Declares what the host side of the cuda device's kernels shares.
#ifndef MZ_CUDA_H
#define MZ_CUDA_H

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/launch.h"
#include "backend/slots.h"

// Writes use a ring of stages of so many bytes. What is uploaded has memory of its own, because a write that reached
// its own first stage again would wait for all earlier work.
enum { MZ_CUDA_STAGES = 8, MZ_CUDA_STAGE = 512 << 10, MZ_CUDA_UPLOAD_LEAST = 2 * MZ_CUDA_STAGE };

// Holds a part of a write: pinned host memory, and its copy on the device, which the copy stream fills.
typedef struct mz_cuda_stage {
    void *host, *device;
    cudaEvent_t copied;   // host memory is copied to the device
    cudaEvent_t consumed; // the device's copy has reached its address
} mz_cuda_stage;

typedef struct mz_cuda_size { // of an allocation, to count bytes
    void *data;
    size_t bytes;
} mz_cuda_size;

typedef struct mz_cuda_device {
    struct mezzo_device base; // first: a mezzo_device* of this backend is a mz_cuda_device*
    int index;
    int cc; // compute capability × 10: 75, 80, 90
    int sms;
    int shared_optin; // most shared memory that a block may request, in bytes
    int l2;           // bytes
    size_t memory;    // bytes in all
    bool slowest;     // MEZZO_CUDA_PLANS=slowest: libraries' plans are the slowest of those with the same bits
    bool first_plans; // MEZZO_CUDA_PLANS=first: the first of those in the library's order
    bool wide_by_mma; // MEZZO_CUDA_WIDE_HEADS=mma: attention's backward is not by wgmma for heads of more than 64
    bool fp32_by_fma; // MEZZO_CUDA_FP32=fma: FP32 is never multiplied in parts on tensor cores
    char name[80];
    cudaStream_t stream;              // all work runs here, in order
    cudaStream_t copies;              // host → device ahead of the work that reads it
    cudaStream_t streams[MZ_STREAMS]; // `stream` is the first, or any of them during a capture
    cudaEvent_t *events;
    size_t n_events, cap_events;
    mz_cuda_stage stages[MZ_CUDA_STAGES];
    int next_stage;
    mz_cuda_stage uploaded; // the device's copy of what was uploaded last, of uploaded_bytes bytes
    size_t uploaded_bytes;
    cudaEvent_t marks[MZ_MARKS];
    bool capturing;
    mz_cuda_size *sizes;
    size_t n_sizes, cap_sizes;
    char bus_id[32];                     // "0000:1B:00.0"; "": not known
    struct mz_cuda_telemetry *telemetry; // telemetry.c; NULL where there is no NVML
    struct mz_cuda_matmul *matmul;       // gemm.c: cuBLASLt and its plans
    struct mz_cudnn *cudnn;              // cudnn.c: cuDNN and its plans; made on first use
    const mz_kernel **kernels;           // by op, best first
    size_t first_kernel[MZ_OP_COUNT + 1];
} mz_cuda_device;

// current.c: makes the device the calling thread's current one, if it is not. Launches, allocations, library handles
// and attributes of kernels refer to the current device, which other devices and other libraries of the thread change.
cudaError_t mz_cuda_use(const mz_cuda_device *cuda);
// Returns the device of a mezzo_device and makes it current: every entry point that calls CUDA begins with it. An error
// shows at the next call.
static inline mz_cuda_device *mz_cuda(mezzo_device *device) {
    mz_cuda_device *cuda = (mz_cuda_device *)(void *)device;
    (void)mz_cuda_use(cuda);
    return cuda;
}

// Returns a CUDA call's error as a status: out of memory is MEZZO_ERR_MEMORY, others are MEZZO_ERR_DEVICE.
mezzo_status mz_cuda_error(cudaError_t error, const char *what);
#define MZ_CUDA_TRY(expr)                                                                                              \
    do {                                                                                                               \
        cudaError_t mz_cuda_try_error = (expr);                                                                        \
        if (mz_cuda_try_error != cudaSuccess)                                                                          \
            return mz_trace(mz_cuda_error(mz_cuda_try_error, #expr), __FILE__, __LINE__, __func__);                    \
    } while (0)

// Handles the error of a wait for the queue. A job that has failed ends its collectives without an error, or with one
// that no call here caused: then the status is the job's.
mezzo_status mz_cuda_waited(mezzo_device *device, cudaError_t error, const char *what);
#define MZ_CUDA_WAIT(device, expr)                                                                                     \
    do {                                                                                                               \
        mezzo_status mz_cuda_wait_status = mz_cuda_waited((device), (expr), #expr);                                    \
        if (mz_cuda_wait_status != MEZZO_OK)                                                                           \
            return mz_trace(mz_cuda_wait_status, __FILE__, __LINE__, __func__);                                        \
    } while (0)

static inline mz_cu_array mz_cuda_array(const mz_tensor *t) {
    return (mz_cu_array){mz_present(t) ? t->data : NULL, (int)t->dtype};
}
static inline bool mz_cuda_float(const mz_tensor *t) { // a storage that kernels of this folder read and write
    return t->dtype == MEZZO_F32 || t->dtype == MEZZO_BF16 || t->dtype == MEZZO_F16;
}

// Adds `size` bytes to a workspace of *bytes; returns where they begin.
static inline size_t mz_cuda_place(size_t *bytes, size_t size) {
    size_t at = *bytes;
    *bytes += mz_align_up(size, 256);
    return at;
}
static inline bool mz_cuda_16bit(int dtype) { // BF16 or FP16
    return dtype == MEZZO_BF16 || dtype == MEZZO_F16;
}

// matmul.c: gets an operand's address: the tensor's, or that of `staged`, to which it is converted.
mezzo_status mz_cuda_operand(mz_cuda_device *cuda, const mz_tensor *t, bool convert, void *staged, int dtype,
                             const void **out);
static inline size_t mz_cuda_bytes_as(const mz_tensor *t, int dtype) {
    return (size_t)mz_shape_count(&t->shape) * mezzo_dtype_size((mezzo_dtype)dtype);
}
// matmul.c: for products whose kernel leaves post-ops to another one. z: the product of a linear layer [rows, cols];
// the caller removes what its product includes.
mz_cu_epilogue mz_cuda_linear_epilogue(const mz_call *call, mz_cu_array z, int64_t rows, int64_t cols);
// Finishes linear_dx: dx from the FP32 product (NULL: dx is stored already), and the sums of its columns.
mezzo_status mz_cuda_finish_dx(mz_cuda_device *cuda, const mz_call *call, const void *product, int64_t rows,
                               int64_t cols, void *workspace);

// rehearsal.c: chooses among a library's plans for the same work.
enum { MZ_REHEARSAL_PLANS = 24 };
typedef struct mz_rehearsal {
    mz_cuda_device *cuda;
    void *memory, *result, *first; // first: the result of the first plan
    const void *added;             // what the result holds before a run; NULL: zeros
    int32_t *differs;              // on the device
    size_t result_bytes;
    cudaEvent_t from, to;
    bool (*fill)(const struct mz_rehearsal *r, bool cancel); // the operands, as mz_cu_fill
    bool (*run)(const struct mz_rehearsal *r, int plan);
} mz_rehearsal;
typedef struct mz_rehearsal_times {
    float chosen, first, shortest; // milliseconds; shortest: of all plans
    int others;                    // plans that give other bits
} mz_rehearsal_times;
// Allocates `bytes` of device memory; false where there is not twice as much. Close it in any case.
bool mz_rehearsal_open(mz_rehearsal *r, size_t bytes);
void mz_rehearsal_close(mz_rehearsal *r);
// Returns the fastest of n plans with the bits of the first one that runs, so that timing changes no bits; -1: none
// runs.
int mz_rehearsal_fastest(const mz_rehearsal *r, int n, mz_rehearsal_times *times);

// library.c: opens NAME (a soname such as "libcublasLt.so.13") from MEZZO_CUDA_LIBRARIES (a list of folders separated
// by colons), the loader's own folders, CUDA_HOME, the toolkit this was built with, /usr/local/cuda. NULL: not found;
// *reason then says so in one line.
void *mz_cuda_library(const char *name, char *reason, size_t size);

// telemetry.c: NVML. open leaves device->telemetry NULL where NVML cannot be opened: telemetry is then not known.
void mz_cuda_telemetry_open(mz_cuda_device *device, const char *bus_id);
void mz_cuda_telemetry_close(mz_cuda_device *device);
mezzo_status mz_cuda_telemetry_read(mezzo_device *device, mezzo_telemetry *out);
void mz_cuda_driver_text(const mz_cuda_device *device, char *text, size_t size); // "580.159.04", "" unknown
void mz_cuda_serial_text(const mz_cuda_device *device, char *text, size_t size); // of the board; "" unknown

// queue.c: close takes an object of open, also after an error. mz_backend describes the others.
mezzo_status mz_cuda_queue_open(mz_cuda_device *cuda);
void mz_cuda_queue_close(mz_cuda_device *cuda);
mezzo_status mz_cuda_stage_move(mz_cuda_device *cuda, const mz_cuda_stage *stage, void *dst, size_t bytes);
mezzo_status mz_cuda_upload_open(mezzo_device *device, size_t bytes, mz_upload **out);
mezzo_status mz_cuda_upload(mezzo_device *device, mz_upload *upload, void *dst, size_t bytes);
mezzo_status mz_cuda_upload_wait(mezzo_device *device, mz_upload *upload);
void mz_cuda_upload_close(mezzo_device *device, mz_upload *upload);
mezzo_status mz_cuda_fetch_open(mezzo_device *device, size_t bytes, mz_fetch **out);
mezzo_status mz_cuda_fetch(mezzo_device *device, mz_fetch *fetch, size_t at, const void *src, size_t bytes);
mezzo_status mz_cuda_fetched(mezzo_device *device, mz_fetch *fetch, const void **host);
void mz_cuda_fetch_close(mezzo_device *device, mz_fetch *fetch);
mezzo_status mz_cuda_capture_begin(mezzo_device *device);
mezzo_status mz_cuda_capture_end(mezzo_device *device, void **graph);
mezzo_status mz_cuda_capture_launch(mezzo_device *device, void *graph);
void mz_cuda_capture_free(mezzo_device *device, void *graph);
mezzo_status mz_cuda_capture_stream(mezzo_device *device, int stream);
mezzo_status mz_cuda_capture_record(mezzo_device *device, int event);
mezzo_status mz_cuda_capture_wait(mezzo_device *device, int event);
mezzo_status mz_cuda_mark(mezzo_device *device, int mark);
mezzo_status mz_cuda_elapsed(mezzo_device *device, int from, int to, double *seconds);

// ranges.c: for mz_backend
void mz_cuda_range_push(mezzo_device *device, const char *name);
void mz_cuda_range_pop(mezzo_device *device);

// nccl.c
extern const struct mz_transport mz_cuda_nccl;

// kernels.c
#define KERNEL(op, name) extern const mz_kernel mz_cuda_##name;
#include "backend/cuda/kernels.def"
#undef KERNEL
mezzo_status mz_cuda_list_kernels(mz_cuda_device *cuda);
const mz_kernel *const *mz_cuda_kernels(const mezzo_device *device, mz_op op, size_t *n);
const mz_fused_kernel *mz_cuda_fuse_calls(mezzo_device *device, const mz_call *first, const mz_call *second,
                                          bool is_private);
// Returns whether the second call writes where the first one reads or writes.
bool mz_cuda_in_the_way(const mz_call *first, const mz_call *second);
bool mz_cuda_may_fuse(const mz_call *first, const mz_call *second);           // norm_fp8.cu
bool mz_cuda_may_round_gradient(const mz_call *first, const mz_call *second); // the same, of cross_entropy_dx (loss.cu)
// norm_fp8.cu. Returns whether the call only quantizes x, with one scale for the tensor.
bool mz_cuda_only_rounds(const mz_call *quantize, const mz_tensor *x);
// These kernels serve two calls: cross_entropy and its gradient (loss.cu); a router's logits and its choice of experts,
// and their gradients (small_n.cu); a norm and the rounding to 8 bits of its result (norm_fp8.cu); cross_entropy's
// gradient and its rounding (loss.cu), with cross_entropy itself three. NULL for other calls.
const mz_fused_kernel *mz_cuda_fuse_loss(mezzo_device *device, const mz_call *first, const mz_call *second);
const mz_fused_kernel *mz_cuda_fuse_router(const mz_call *first, const mz_call *second);
const mz_fused_kernel *mz_cuda_fuse_quantize(const mz_call *first, const mz_call *second, bool is_private);
const mz_fused_kernel *mz_cuda_fuse_gradient(const mz_call *first, const mz_call *second, bool is_private);
const mz_fused_kernel *mz_cuda_fuse_three(mezzo_device *device, const mz_call *first, const mz_call *second,
                                          const mz_call *third);

mz_takes mz_cuda_takes(const mz_kernel *kernel); // emulate_fp8.cu

extern const mz_backend mz_backend_cuda;

#endif
