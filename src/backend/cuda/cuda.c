// Opens the cuda device and its memory. cudart is linked in and searches for the driver at its first call, so this file
// also runs on a machine without a driver, and reports that.
#include <stdlib.h>

#include "backend/cuda/cudnn.h"
#include "backend/cuda/matmul.h"
#include "base/precision.h"

// --- opening -------------------------------------------------------------------------------------------------------
static mezzo_status no_gpu(cudaError_t error) {
    (void)cudaGetLastError();
    if (error == cudaErrorInsufficientDriver || error == cudaErrorStubLibrary)
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "device cuda: no NVIDIA driver here, or one too old for CUDA %d.%d; use cpu",
                       CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (error == cudaErrorNoDevice)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "device cuda: no NVIDIA GPU here; use cpu");
    return mz_fail(MEZZO_ERR_UNSUPPORTED, "cuda: %s", cudaGetErrorString(error));
}

static mezzo_status read_properties(mz_cuda_device *cuda) {
    struct cudaDeviceProp p;
    MZ_CUDA_TRY(cudaGetDeviceProperties(&p, cuda->index));
    cuda->cc = p.major * 10 + p.minor;
    cuda->sms = p.multiProcessorCount;
    cuda->shared_optin = (int)p.sharedMemPerBlockOptin;
    cuda->l2 = p.l2CacheSize;
    cuda->memory = p.totalGlobalMem;
    snprintf(cuda->name, sizeof cuda->name, "%.79s", p.name);
    if (cuda->cc < 75)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "cuda:%d is a %s of compute capability %d.%d: at least 7.5 is needed",
                       cuda->index, cuda->name, cuda->cc / 10, cuda->cc % 10);
    return MEZZO_OK;
}

static mezzo_status check_code(const mz_cuda_device *cuda) {
    cudaError_t probed = mz_cu_probe(cuda->stream);
    if (probed == cudaErrorNoKernelImageForDevice || probed == cudaErrorUnsupportedPtxVersion) {
        (void)cudaGetLastError();
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "this build has no code for compute capability %d.%d: build with MEZZO_CUDA_ARCH=%d",
                       cuda->cc / 10, cuda->cc % 10, cuda->cc);
    }
    MZ_CUDA_TRY(probed);
    return MEZZO_OK;
}

static void cuda_close(mezzo_device *device) {
    mz_cuda_device *cuda = mz_cuda(device);
    if (cuda->stream != NULL)
        (void)cudaStreamSynchronize(cuda->stream);
    mz_gemm_close(cuda);
    mz_cudnn_close(cuda);
    mz_cuda_telemetry_close(cuda);
    mz_cuda_queue_close(cuda);
    mz_free(cuda->kernels);
    mz_free(cuda->sizes);
    mz_free(cuda);
}

// Reads MEZZO_CUDA_FP32, which says how FP32 is multiplied. parts (the default): on tensor cores where that pays, as
// three BF16 parts of each number (docs/dev/NUMERICS.md); fma: by FP32's own instructions everywhere.
static mezzo_status read_fp32(mz_cuda_device *cuda) {
    const char *how = getenv("MEZZO_CUDA_FP32");
    cuda->fp32_by_fma = how != NULL && strcmp(how, "fma") == 0;
    if (how != NULL && !cuda->fp32_by_fma && strcmp(how, "parts") != 0)
        return mz_fail(MEZZO_ERR_INVALID, "MEZZO_CUDA_FP32 is '%s': it must be parts or fma", how);
    return MEZZO_OK;
}

// Reads MEZZO_CUDA_PLANS, which says which of the libraries' plans with equal bits a product takes, by its time. Timing
// may choose any of them, so a run with `slowest`, or with `first`, which measures nothing, has the bits of one with
// `fastest`, the default.
static mezzo_status read_plans(mz_cuda_device *cuda) {
    const char *which = getenv("MEZZO_CUDA_PLANS");
    cuda->slowest = which != NULL && strcmp(which, "slowest") == 0;
    cuda->first_plans = which != NULL && strcmp(which, "first") == 0;
    if (which != NULL && !cuda->slowest && !cuda->first_plans && strcmp(which, "fastest") != 0)
        return mz_fail(MEZZO_ERR_INVALID, "MEZZO_CUDA_PLANS is '%s': it must be fastest, slowest or first", which);
    return MEZZO_OK;
}

// Reads MEZZO_CUDA_WIDE_HEADS, which says which kernels serve attention's backward for heads of more than 64 on compute
// capability 9.0: wgmma's (the default), or those of other devices, the library's and mma.
static mezzo_status read_wide_heads(mz_cuda_device *cuda) {
    const char *which = getenv("MEZZO_CUDA_WIDE_HEADS");
    cuda->wide_by_mma = which != NULL && strcmp(which, "mma") == 0;
    if (which != NULL && !cuda->wide_by_mma && strcmp(which, "wgmma") != 0)
        return mz_fail(MEZZO_ERR_INVALID, "MEZZO_CUDA_WIDE_HEADS is '%s': it must be mma or wgmma", which);
    return MEZZO_OK;
}

// Products read and write vectors of 8 elements and are much slower on other rows, and slower on rows that begin
// between lines of 128 bytes. Padding a long axis to whole lines or tiles costs little.
static const mz_storage_policy storage_policy = {
    .multiple = {[MZ_AXIS_VOCABULARY] = 8,
                 [MZ_AXIS_HEAD] = 8,
                 [MZ_AXIS_WIDTH] = 8,
                 [MZ_AXIS_EXPERT] = 8,
                 [MZ_AXIS_FEATURES] = 8},
    .up_to = {[MZ_AXIS_VOCABULARY] = 128, [MZ_AXIS_WIDTH] = 128, [MZ_AXIS_FEATURES] = 128},
    .eight = 16};

static mezzo_status cuda_open(int index, int threads, mezzo_device **out) {
    (void)threads;
    *out = NULL;
    mezzo_status status;
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        return no_gpu(error);
    if (index >= count)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "device cuda:%d: there %s %d; the first is cuda:0", index,
                       count == 1 ? "is" : "are", count);
    mz_cuda_device *cuda = mz_alloc(1, sizeof *cuda);
    if (cuda == NULL)
        return MEZZO_ERR_MEMORY;
    cuda->base.backend = &mz_backend_cuda;
    cuda->base.threads = 1;
    cuda->base.storage = storage_policy;
    cuda->index = index;
    error = mz_cuda_use(cuda);
    if (error != cudaSuccess) {
        status = no_gpu(error);
        goto fail;
    }
    MEZZO_TRY_GOTO(status, mz_cuda_list_kernels(cuda));
    MEZZO_TRY_GOTO(status, read_fp32(cuda));
    MEZZO_TRY_GOTO(status, read_plans(cuda));
    MEZZO_TRY_GOTO(status, read_wide_heads(cuda));
    MEZZO_TRY_GOTO(status, read_properties(cuda));
    MEZZO_TRY_GOTO(status, mz_cuda_queue_open(cuda));
    MEZZO_TRY_GOTO(status, check_code(cuda));
    if (mz_gemm_library(cuda) != NULL) {
        status = mz_fail(MEZZO_ERR_UNSUPPORTED, "%s", mz_gemm_library(cuda));
        goto fail;
    }
    if (cudaDeviceGetPCIBusId(cuda->bus_id, sizeof cuda->bus_id, index) == cudaSuccess)
        mz_cuda_telemetry_open(cuda, cuda->bus_id);
    else
        cuda->bus_id[0] = '\0';
    *out = &cuda->base;
    return MEZZO_OK;
fail:
    cuda_close(&cuda->base);
    return status;
}

static mezzo_status cuda_describe(mezzo_device *device, mezzo_device_info *out) {
    const mz_cuda_device *cuda = mz_cuda(device);
    char driver[80], product[32], serial[40];
    size_t total;
    *out = (mezzo_device_info){
        .backend = "cuda", .threads = 1, .memory_total = cuda->memory, .compute_capability = cuda->cc};
    snprintf(out->description, sizeof out->description, "%s (compute capability %d.%d, %d multiprocessors)", cuda->name,
             cuda->cc / 10, cuda->cc % 10, cuda->sms);
    mz_cuda_driver_text(cuda, driver, sizeof driver);
    mz_gemm_version(cuda, product, sizeof product);
    snprintf(out->versions, sizeof out->versions, "driver %s, CUDA %d.%d, cuBLASLt %s",
             driver[0] != '\0' ? driver : "unknown", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, product);
    mz_cuda_serial_text(cuda, serial, sizeof serial);
    if (cuda->bus_id[0] != '\0')
        snprintf(out->identity, sizeof out->identity, "PCI %s%s%s", cuda->bus_id, serial[0] != '\0' ? ", serial " : "",
                 serial);
    if (!cuda->capturing && cudaMemGetInfo(&out->memory_free, &total) != cudaSuccess)
        out->memory_free = 0;
    // Tensor cores multiply FP16 from 7.5 on, BF16 and TF32 from 8.0 on, at least twice as fast as FP32 on every such
    // card.
    for (int p = 0; p < MEZZO_PRECISION_AUTO; p++) {
        int least = mz_precision((mezzo_precision)p)->capability;
        out->native[p] = least >= 0 && cuda->cc >= least;
        out->faster[p] = out->native[p] && p != MEZZO_PRECISION_FP32;
    }
    return MEZZO_OK;
}

// --- memory --------------------------------------------------------------------------------------------------------
static mezzo_status cuda_alloc(mezzo_device *device, size_t bytes, void **out) {
    mz_cuda_device *cuda = mz_cuda(device);
    *out = NULL;
    MEZZO_TRY(MZ_RESERVE(cuda->sizes, cuda->cap_sizes, cuda->n_sizes + 1));
    bytes = mz_align_up(bytes > 0 ? bytes : 1, 512); // cudaMalloc rounds to this
    MZ_CUDA_TRY(mz_cuda_use(cuda));                  // on another device the error would remain unnoticed
    MZ_CUDA_TRY(cudaMalloc(out, bytes));
    cuda->sizes[cuda->n_sizes++] = (mz_cuda_size){*out, bytes};
    device->allocated += bytes;
    device->peak = device->allocated > device->peak ? device->allocated : device->peak;
    MZ_CUDA_TRY(cudaMemsetAsync(*out, 0, bytes, cuda->stream));
    return MEZZO_OK;
}

static void cuda_release(mezzo_device *device, void *data) {
    mz_cuda_device *cuda = mz_cuda(device);
    if (data == NULL)
        return;
    for (size_t i = 0; i < cuda->n_sizes; i++)
        if (cuda->sizes[i].data == data) {
            (void)mz_device_flush_deferred(device, data, cuda->sizes[i].bytes, true);
            device->allocated -= cuda->sizes[i].bytes;
            cuda->sizes[i] = cuda->sizes[--cuda->n_sizes];
            break;
        }
    (void)cudaFree(data); // waits for the work that may use it
    (void)cudaGetLastError();
}

// Writes to the device. The caller may reuse `host` at once; the copy is ordered with the device's work. A large piece
// reaches the device on the copy stream while earlier work runs, and a later copy moves it to its address in order; for
// a small one this second copy would cost more.
enum { AHEAD = 16 << 10 };
static mezzo_status write_piece(mz_cuda_device *cuda, void *dst, const void *host, size_t bytes) {
    mz_cuda_stage *s = &cuda->stages[cuda->next_stage];
    cuda->next_stage = (cuda->next_stage + 1) % MZ_CUDA_STAGES;
    MZ_CUDA_TRY(cudaEventSynchronize(s->consumed));
    mz_copy(s->host, host, bytes);
    if (bytes > AHEAD)
        return mz_cuda_stage_move(cuda, s, dst, bytes);
    MZ_CUDA_TRY(cudaMemcpyAsync(dst, s->host, bytes, cudaMemcpyHostToDevice, cuda->stream));
    MZ_CUDA_TRY(cudaEventRecord(s->consumed, cuda->stream));
    return MEZZO_OK;
}

static mezzo_status cuda_write(mezzo_device *device, void *dst, const void *host, size_t bytes) {
    MEZZO_TRY(mz_device_flush_deferred(device, dst, bytes, true));
    mz_cuda_device *cuda = mz_cuda(device);
    for (size_t at = 0; at < bytes; at += MZ_CUDA_STAGE) {
        size_t n = bytes - at < MZ_CUDA_STAGE ? bytes - at : MZ_CUDA_STAGE;
        MEZZO_TRY(write_piece(cuda, (char *)dst + at, (const char *)host + at, n));
    }
    return MEZZO_OK;
}

static mezzo_status cuda_read(mezzo_device *device, void *host, const void *src, size_t bytes) {
    mz_cuda_device *cuda = mz_cuda(device);
    if (bytes == 0)
        return MEZZO_OK;
    MEZZO_TRY(mz_device_flush_deferred(device, src, bytes, false));
    MZ_CUDA_TRY(cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, cuda->stream));
    MZ_CUDA_WAIT(device, cudaStreamSynchronize(cuda->stream));
    return MEZZO_OK;
}

static mezzo_status cuda_zero(mezzo_device *device, void *dst, size_t bytes) {
    MEZZO_TRY(mz_device_flush_deferred(device, dst, bytes, true));
    if (bytes > 0)
        MZ_CUDA_TRY(cudaMemsetAsync(dst, 0, bytes, mz_cuda(device)->stream));
    return MEZZO_OK;
}

static mezzo_status cuda_copy_rows(mezzo_device *device, void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                                   size_t width, int64_t rows) {
    mz_cuda_device *cuda = mz_cuda(device);
    if (width > 0 && rows > 0)
        MZ_CUDA_TRY(cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width, (size_t)rows, cudaMemcpyDeviceToDevice,
                                      cuda->stream));
    return MEZZO_OK;
}

static mezzo_status cuda_sync(mezzo_device *device) {
    MZ_CUDA_WAIT(device, cudaStreamSynchronize(mz_cuda(device)->stream));
    return MEZZO_OK;
}

static bool cuda_composes(mz_op op, const mz_shape *result) { // group_norm.cu reads channels 8 at a time
    const int64_t channels = result->dim[result->rank - 1];
    return (op == MZ_OP_group_norm || op == MZ_OP_group_norm_bwd) && (channels % 8 != 0 || channels > 2048);
}

static mz_padded cuda_takes_padding(mz_op op) {
    switch (op) {
    case MZ_OP_layernorm:
    case MZ_OP_layernorm_bwd:
    case MZ_OP_rmsnorm:
    case MZ_OP_rmsnorm_bwd:
    case MZ_OP_cross_entropy:
    case MZ_OP_cross_entropy_dx:
        return MZ_PADDED_ROWS;
    case MZ_OP_attention:
    case MZ_OP_attention_bwd:
        return MZ_PADDED_AXES;
    default:
        return mz_padded_of_layouts(op);
    }
}

const mz_backend mz_backend_cuda = {
    .name = "cuda",
    .gpu = true,
    .queue = true,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .kernels = mz_cuda_kernels,
    .composes = cuda_composes,
    .takes = mz_cuda_takes,
    .takes_padding = cuda_takes_padding,
    // docs/dev/EXPERIMENTS.md, "Products"
    .few_rows = 4096,
    .many_summed = 1536,
    .fuse_calls = mz_cuda_fuse_calls,
    .fuse_three = mz_cuda_fuse_three,
    .may_fuse = mz_cuda_may_fuse,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .write = cuda_write,
    .read = cuda_read,
    .zero = cuda_zero,
    .copy_rows = cuda_copy_rows,
    .sync = cuda_sync,
    .fetch_open = mz_cuda_fetch_open,
    .fetch = mz_cuda_fetch,
    .fetched = mz_cuda_fetched,
    .fetch_close = mz_cuda_fetch_close,
    .upload_least = MZ_CUDA_UPLOAD_LEAST,
    .upload_open = mz_cuda_upload_open,
    .upload = mz_cuda_upload,
    .upload_wait = mz_cuda_upload_wait,
    .upload_close = mz_cuda_upload_close,
    .capture_begin = mz_cuda_capture_begin,
    .capture_end = mz_cuda_capture_end,
    .capture_launch = mz_cuda_capture_launch,
    .capture_free = mz_cuda_capture_free,
    .capture_stream = mz_cuda_capture_stream,
    .capture_record = mz_cuda_capture_record,
    .capture_wait = mz_cuda_capture_wait,
    .mark = mz_cuda_mark,
    .elapsed = mz_cuda_elapsed,
    .transport = &mz_cuda_nccl,
    .range_push = mz_cuda_range_push,
    .range_pop = mz_cuda_range_pop,
    .telemetry = mz_cuda_telemetry_read,
};
