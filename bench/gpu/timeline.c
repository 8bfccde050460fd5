// Records when each kernel, copy and fill of a process ran on its GPU, also those inside of CUDA graphs, in
// TIMELINE.RANK.csv: TIMELINE and RANK come from the environment. bench/gpu/timeline.py reads it. The driver loads it
// into any process that has its path in CUDA_INJECTION64_PATH:
//   cc -O2 -shared -fPIC -I CUDA/include -o libtimeline.so bench/gpu/timeline.c -L CUDA/lib64 -lcupti
//   -Wl,-rpath,CUDA/lib64
#include <cupti.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 kernel;
typedef CUpti_ActivityMemcpy6 copy;
#else
typedef CUpti_ActivityKernel9 kernel;
typedef CUpti_ActivityMemcpy5 copy;
#endif
typedef CUpti_ActivityMemset4 fill;

enum { BYTES = 1 << 18, FLUSH_MS = 500 };
static FILE *file;

static void CUPTIAPI give(uint8_t **buffer, size_t *size, size_t *most) {
    *buffer = aligned_alloc(8, BYTES);
    *size = *buffer != NULL ? BYTES : 0;
    *most = 0;
}

static void write_row(const char *name, uint32_t stream, uint64_t start, uint64_t end) {
    fprintf(file, "%s,%" PRIu32 ",%" PRIu64 ",%" PRIu64 "\n", name, stream, start, end);
}

static void CUPTIAPI take(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)size;
    while (file != NULL && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        const kernel *k = (const void *)record;
        const copy *c = (const void *)record;
        const fill *f = (const void *)record;
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || record->kind == CUPTI_ACTIVITY_KIND_KERNEL)
            write_row(k->name, k->streamId, k->start, k->end);
        else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY)
            write_row("copy", c->streamId, c->start, c->end);
        else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET)
            write_row("fill", f->streamId, f->start, f->end);
    }
    free(buffer);
}

static void finish(void) {
    (void)cuptiActivityFlushAll(1);
    if (file != NULL)
        fclose(file);
    file = NULL;
}

int InitializeInjection(void);
int InitializeInjection(void) {
    const char *path = getenv("TIMELINE"), *rank = getenv("RANK");
    char name[4200];
    snprintf(name, sizeof name, "%s.%s.csv", path != NULL ? path : "timeline", rank != NULL ? rank : "none");
    file = rank != NULL ? fopen(name, "w") : NULL;
    if (file == NULL) // this process is no rank
        return 0;
    fprintf(file, "name,stream,start_ns,end_ns\n");
    atexit(finish);
    return cuptiActivityRegisterCallbacks(give, take) == CUPTI_SUCCESS &&
           cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == CUPTI_SUCCESS &&
           cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY) == CUPTI_SUCCESS &&
           cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET) == CUPTI_SUCCESS &&
           cuptiActivityFlushPeriod(FLUSH_MS) == CUPTI_SUCCESS;
}
