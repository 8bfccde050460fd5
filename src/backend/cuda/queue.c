// Holds the device's queue: its streams, the staging buffers of writes, captured graphs, marks.
#include "backend/cuda/cuda.h"

static mezzo_status add_stages(mz_cuda_device *cuda, int most) {
    while (cuda->n_stages < most) {
        mz_cuda_stage *s = &cuda->stages[cuda->n_stages];
        if (s->host == NULL)
            MZ_CUDA_TRY(cudaHostAlloc(&s->host, cuda->stage_bytes, cudaHostAllocDefault));
        if (s->device == NULL)
            MZ_CUDA_TRY(cudaMalloc(&s->device, cuda->stage_bytes));
        if (s->copied == NULL)
            MZ_CUDA_TRY(cudaEventCreateWithFlags(&s->copied, cudaEventDisableTiming));
        if (s->consumed == NULL)
            MZ_CUDA_TRY(cudaEventCreateWithFlags(&s->consumed, cudaEventDisableTiming));
        cuda->n_stages++;
    }
    return MEZZO_OK;
}

// Frees the memory of all stages. The device has reached every write.
static void free_stages(mz_cuda_device *cuda) {
    for (int i = 0; i < MZ_CUDA_MOST_STAGES; i++) {
        mz_cuda_stage *s = &cuda->stages[i];
        (void)cudaFreeHost(s->host);
        (void)cudaFree(s->device);
        s->host = s->device = NULL;
    }
    cuda->n_stages = cuda->next_stage = 0;
}

// Makes enough stages for expected writes. A stage is free again once the device has reached its write, so one write
// must not reach its own first stage again: it would wait for all earlier work. Small writes come between.
mezzo_status mz_cuda_queue_expect(mezzo_device *device, size_t bytes) {
    mz_cuda_device *cuda = mz_cuda(device);
    size_t each = mz_align_up(bytes / MZ_CUDA_PIECES + 1, 64 << 10);
    each = each < MZ_CUDA_LARGEST_STAGE ? each : MZ_CUDA_LARGEST_STAGE;
    if (each > cuda->stage_bytes) {
        MZ_CUDA_TRY(cudaStreamSynchronize(cuda->copies));
        MZ_CUDA_TRY(cudaStreamSynchronize(cuda->stream));
        free_stages(cuda);
        cuda->stage_bytes = each;
    }
    const size_t pieces = (bytes + cuda->stage_bytes - 1) / cuda->stage_bytes;
    const mezzo_status status =
        add_stages(cuda, MZ_CUDA_STAGES + (int)(pieces < MZ_CUDA_PIECES ? pieces : MZ_CUDA_PIECES) - 1);
    if (status != MEZZO_OK && cuda->n_stages < MZ_CUDA_STAGES) { // the device stays usable
        free_stages(cuda);
        cuda->stage_bytes = MZ_CUDA_LEAST_STAGE;
        (void)add_stages(cuda, MZ_CUDA_STAGES);
    }
    return status;
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
    cuda->stage_bytes = MZ_CUDA_LEAST_STAGE;
    return add_stages(cuda, MZ_CUDA_STAGES);
}

void mz_cuda_queue_close(mz_cuda_device *cuda) {
    free_stages(cuda);
    for (int i = 0; i < MZ_CUDA_MOST_STAGES; i++) {
        mz_cuda_stage *s = &cuda->stages[i];
        if (s->copied != NULL)
            (void)cudaEventDestroy(s->copied);
        if (s->consumed != NULL)
            (void)cudaEventDestroy(s->consumed);
    }
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

// --- fetches -------------------------------------------------------------------------------------------------------
void mz_cuda_fetch_close(mezzo_device *device, mz_fetch *fetch) {
    if (fetch == NULL)
        return;
    (void)mz_cuda(device);
    if (fetch->event != NULL) {
        (void)cudaEventSynchronize((cudaEvent_t)fetch->event); // a copy may be running
        (void)cudaEventDestroy((cudaEvent_t)fetch->event);
    }
    if (fetch->host != NULL)
        (void)cudaFreeHost(fetch->host);
    (void)cudaGetLastError();
    mz_free(fetch);
}

static mezzo_status make_fetch(size_t bytes, mz_fetch *fetch) {
    cudaEvent_t event;
    MZ_CUDA_TRY(cudaHostAlloc(&fetch->host, bytes > 0 ? bytes : 1, cudaHostAllocDefault));
    memset(fetch->host, 0, bytes);
    MZ_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    fetch->event = event;
    fetch->bytes = bytes;
    return MEZZO_OK;
}

mezzo_status mz_cuda_fetch_open(mezzo_device *device, size_t bytes, mz_fetch **out) {
    *out = NULL;
    mz_fetch *fetch = mz_alloc(1, sizeof *fetch);
    if (fetch == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    (void)mz_cuda(device); // its host memory and event belong to the current device
    mezzo_status status = make_fetch(bytes, fetch);
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
