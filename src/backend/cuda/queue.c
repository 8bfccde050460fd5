// Holds the device's queue: its streams, the staging buffers of writes, uploads, captured graphs, marks.
#include "backend/cuda/cuda.h"

// Pinned memory, zeros, and an event of its copies.
static mezzo_status open_pinned(size_t bytes, void **host, cudaEvent_t *copied) {
    MZ_CUDA_TRY(cudaHostAlloc(host, bytes > 0 ? bytes : 1, cudaHostAllocDefault));
    memset(*host, 0, bytes);
    MZ_CUDA_TRY(cudaEventCreateWithFlags(copied, cudaEventDisableTiming));
    return MEZZO_OK;
}

static void close_pinned(void *host, cudaEvent_t copied) {
    if (copied != NULL) {
        (void)cudaEventSynchronize(copied); // a copy may be running
        (void)cudaEventDestroy(copied);
    }
    (void)cudaFreeHost(host);
    (void)cudaGetLastError();
}

static mezzo_status open_stage(mz_cuda_stage *s, size_t bytes) {
    MZ_CUDA_TRY(cudaHostAlloc(&s->host, bytes, cudaHostAllocDefault));
    MZ_CUDA_TRY(cudaMalloc(&s->device, bytes));
    MZ_CUDA_TRY(cudaEventCreateWithFlags(&s->copied, cudaEventDisableTiming));
    MZ_CUDA_TRY(cudaEventCreateWithFlags(&s->consumed, cudaEventDisableTiming));
    return MEZZO_OK;
}

// The device has reached every write of the stage.
static void close_stage(mz_cuda_stage *s) {
    (void)cudaFreeHost(s->host);
    (void)cudaFree(s->device);
    if (s->copied != NULL)
        (void)cudaEventDestroy(s->copied);
    if (s->consumed != NULL)
        (void)cudaEventDestroy(s->consumed);
    (void)cudaGetLastError();
}

mezzo_status mz_cuda_queue_open(mz_cuda_device *cuda) {
    int least, greatest; // the greatest is the smaller number
    MZ_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    const int usual = greatest + 1 < least ? greatest + 1 : greatest;
    for (int i = 0; i < MZ_STREAMS; i++)
        MZ_CUDA_TRY(cudaStreamCreateWithPriority(&cuda->streams[i], cudaStreamNonBlocking,
                                                 i == MZ_STREAM_DEFERRED     ? least
                                                 : i == MZ_STREAM_COLLECTIVE ? greatest
                                                                             : usual));
    cuda->stream = cuda->streams[0];
    MZ_CUDA_TRY(cudaStreamCreateWithFlags(&cuda->copies, cudaStreamNonBlocking));
    for (int i = 0; i < MZ_MARKS; i++)
        MZ_CUDA_TRY(cudaEventCreate(&cuda->marks[i]));
    for (int i = 0; i < MZ_CUDA_STAGES; i++)
        MEZZO_TRY(open_stage(&cuda->stages[i], MZ_CUDA_STAGE));
    return MEZZO_OK;
}

void mz_cuda_queue_close(mz_cuda_device *cuda) {
    for (int i = 0; i < MZ_CUDA_STAGES; i++)
        close_stage(&cuda->stages[i]);
    close_stage(&cuda->uploaded);
    for (int i = 0; i < MZ_MARKS; i++)
        if (cuda->marks[i] != NULL)
            (void)cudaEventDestroy(cuda->marks[i]);
    if (cuda->copies != NULL)
        (void)cudaStreamDestroy(cuda->copies);
    for (size_t i = 0; i < MZ_COUNT(cuda->streams); i++)
        if (cuda->streams[i] != NULL)
            (void)cudaStreamDestroy(cuda->streams[i]);
    for (size_t i = 0; i < cuda->n_events; i++)
        (void)cudaEventDestroy(cuda->events[i]);
    (void)cudaGetLastError();
    mz_free(cuda->events);
}

// --- uploads -------------------------------------------------------------------------------------------------------
typedef struct cuda_upload {
    mz_upload base;     // first: a mz_upload* of this backend is a cuda_upload*
    cudaEvent_t copied; // host memory is copied to the device
} cuda_upload;

void mz_cuda_upload_close(mezzo_device *device, mz_upload *upload) {
    if (upload == NULL)
        return;
    (void)mz_cuda(device);
    close_pinned(upload->host, ((cuda_upload *)(void *)upload)->copied);
    mz_free(upload);
}

// Makes the device's copy, which the uploads of all programs share, large enough.
static mezzo_status widen(mz_cuda_device *cuda, size_t bytes) {
    mz_cuda_stage *s = &cuda->uploaded;
    if (s->consumed == NULL)
        MZ_CUDA_TRY(cudaEventCreateWithFlags(&s->consumed, cudaEventDisableTiming));
    if (bytes <= cuda->uploaded_bytes)
        return MEZZO_OK;
    MZ_CUDA_TRY(cudaFree(s->device)); // waits for the work that may use it
    s->device = NULL;
    cuda->uploaded_bytes = 0;
    MZ_CUDA_TRY(cudaMalloc(&s->device, bytes));
    cuda->uploaded_bytes = bytes;
    return MEZZO_OK;
}

mezzo_status mz_cuda_upload_open(mezzo_device *device, size_t bytes, mz_upload **out) {
    *out = NULL;
    cuda_upload *u = mz_alloc(1, sizeof *u);
    if (u == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mezzo_status status = widen(mz_cuda(device), bytes);
    if (status == MEZZO_OK)
        status = open_pinned(u->base.bytes = bytes, &u->base.host, &u->copied);
    if (status != MEZZO_OK)
        mz_cuda_upload_close(device, &u->base);
    else
        *out = &u->base;
    return status;
}

// Moves the bytes of a stage to the device on the copy stream while earlier work runs, and on the device to their
// address in order with its work.
mezzo_status mz_cuda_stage_move(mz_cuda_device *cuda, const mz_cuda_stage *s, void *dst, size_t bytes) {
    MZ_CUDA_TRY(cudaMemcpyAsync(s->device, s->host, bytes, cudaMemcpyHostToDevice, cuda->copies));
    MZ_CUDA_TRY(cudaEventRecord(s->copied, cuda->copies));
    MZ_CUDA_TRY(cudaStreamWaitEvent(cuda->stream, s->copied, 0));
    MZ_CUDA_TRY(cudaMemcpyAsync(dst, s->device, bytes, cudaMemcpyDeviceToDevice, cuda->stream));
    MZ_CUDA_TRY(cudaEventRecord(s->consumed, cuda->stream));
    return MEZZO_OK;
}

mezzo_status mz_cuda_upload(mezzo_device *device, mz_upload *upload, void *dst, size_t bytes) {
    MEZZO_TRY(mz_device_flush_deferred(device, dst, bytes, true));
    mz_cuda_device *cuda = mz_cuda(device);
    mz_cuda_stage s = cuda->uploaded;
    s.host = upload->host;
    s.copied = ((cuda_upload *)(void *)upload)->copied;
    MZ_CUDA_TRY(cudaStreamWaitEvent(cuda->copies, s.consumed, 0)); // the upload before has left the device's copy
    return mz_cuda_stage_move(cuda, &s, dst, bytes);
}

mezzo_status mz_cuda_upload_wait(mezzo_device *device, mz_upload *upload) {
    (void)mz_cuda(device);
    MZ_CUDA_WAIT(device, cudaEventSynchronize(((cuda_upload *)(void *)upload)->copied));
    return MEZZO_OK;
}

// --- fetches -------------------------------------------------------------------------------------------------------
void mz_cuda_fetch_close(mezzo_device *device, mz_fetch *fetch) {
    if (fetch == NULL)
        return;
    (void)mz_cuda(device);
    close_pinned(fetch->host, (cudaEvent_t)fetch->event);
    mz_free(fetch);
}

mezzo_status mz_cuda_fetch_open(mezzo_device *device, size_t bytes, mz_fetch **out) {
    *out = NULL;
    mz_fetch *fetch = mz_alloc(1, sizeof *fetch);
    if (fetch == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    (void)mz_cuda(device); // its host memory and event belong to the current device
    cudaEvent_t copied = NULL;
    const mezzo_status status = open_pinned(fetch->bytes = bytes, &fetch->host, &copied);
    fetch->event = copied;
    if (status != MEZZO_OK)
        mz_cuda_fetch_close(device, fetch);
    else
        *out = fetch;
    return status;
}

mezzo_status mz_cuda_fetch(mezzo_device *device, mz_fetch *fetch, size_t at, const void *src, size_t bytes) {
    mz_cuda_device *cuda = mz_cuda(device);
    MEZZO_TRY(mz_fetch_check(fetch, at, bytes));
    MEZZO_TRY(mz_device_flush_deferred(device, src, bytes, false));
    MZ_CUDA_TRY(cudaMemcpyAsync((char *)fetch->host + at, src, bytes, cudaMemcpyDeviceToHost, cuda->stream));
    MZ_CUDA_TRY(cudaEventRecord((cudaEvent_t)fetch->event, cuda->stream));
    return MEZZO_OK;
}

mezzo_status mz_cuda_fetched(mezzo_device *device, mz_fetch *fetch, const void **host) {
    MZ_CUDA_WAIT(device, cudaEventSynchronize((cudaEvent_t)fetch->event));
    *host = fetch->host;
    return MEZZO_OK;
}

// --- graphs --------------------------------------------------------------------------------------------------------
mezzo_status mz_cuda_capture_begin(mezzo_device *device) {
    mz_cuda_device *cuda = mz_cuda(device);
    MZ_CUDA_TRY(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal));
    cuda->capturing = true;
    return MEZZO_OK;
}

mezzo_status mz_cuda_capture_end(mezzo_device *device, void **graph) {
    mz_cuda_device *cuda = mz_cuda(device);
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t exec = NULL;
    *graph = NULL;
    cuda->capturing = false;
    cuda->stream = cuda->streams[0];
    MZ_CUDA_TRY(cudaStreamEndCapture(cuda->stream, &recorded));
    cudaError_t error = cudaGraphInstantiate(&exec, recorded, cudaGraphInstantiateFlagUseNodePriority);
    (void)cudaGraphDestroy(recorded);
    MZ_CUDA_TRY(error);
    *graph = exec;
    MZ_CUDA_TRY(cudaGraphUpload(exec, cuda->stream));
    return MEZZO_OK;
}

mezzo_status mz_cuda_capture_launch(mezzo_device *device, void *graph) {
    MZ_CUDA_WAIT(device, cudaSuccess); // a failed job's graph holds collectives of a closed communicator
    MZ_CUDA_TRY(cudaGraphLaunch((cudaGraphExec_t)graph, mz_cuda(device)->stream));
    return MEZZO_OK;
}

void mz_cuda_capture_free(mezzo_device *device, void *graph) {
    if (graph == NULL)
        return;
    (void)cudaStreamSynchronize(mz_cuda(device)->stream);
    (void)cudaGraphExecDestroy((cudaGraphExec_t)graph);
    (void)cudaGetLastError();
}

mezzo_status mz_cuda_capture_stream(mezzo_device *device, int stream) {
    mz_cuda_device *cuda = mz_cuda(device);
    cuda->stream = cuda->streams[stream];
    return MEZZO_OK;
}

mezzo_status mz_cuda_capture_record(mezzo_device *device, int event) {
    mz_cuda_device *cuda = mz_cuda(device);
    MEZZO_TRY(MZ_RESERVE(cuda->events, cuda->cap_events, (size_t)event + 1));
    for (; cuda->n_events <= (size_t)event; cuda->n_events++)
        MZ_CUDA_TRY(cudaEventCreateWithFlags(&cuda->events[cuda->n_events], cudaEventDisableTiming));
    MZ_CUDA_TRY(cudaEventRecord(cuda->events[event], cuda->stream));
    return MEZZO_OK;
}

mezzo_status mz_cuda_capture_wait(mezzo_device *device, int event) {
    mz_cuda_device *cuda = mz_cuda(device);
    MZ_CUDA_TRY(cudaStreamWaitEvent(cuda->stream, cuda->events[event], 0));
    return MEZZO_OK;
}

// --- marks ---------------------------------------------------------------------------------------------------------
mezzo_status mz_cuda_mark(mezzo_device *device, int mark) {
    mz_cuda_device *cuda = mz_cuda(device);
    MZ_CUDA_TRY(cudaEventRecord(cuda->marks[mark], cuda->stream));
    return MEZZO_OK;
}

mezzo_status mz_cuda_elapsed(mezzo_device *device, int from, int to, double *seconds) {
    mz_cuda_device *cuda = mz_cuda(device);
    float milliseconds;
    MZ_CUDA_TRY(cudaEventSynchronize(cuda->marks[from]));
    MZ_CUDA_WAIT(device, cudaEventSynchronize(cuda->marks[to]));
    MZ_CUDA_TRY(cudaEventElapsedTime(&milliseconds, cuda->marks[from], cuda->marks[to]));
    *seconds = (double)milliseconds * 1e-3;
    return MEZZO_OK;
}
