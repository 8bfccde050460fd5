// A CUDA driver whose N-th call of a kind fails: what tests/cli/cuda_faults.sh puts before the real one. cudart,
// cuBLASLt and cuDNN find it as libcuda.so.1, ask it for their entry points, and get these for the functions below; the
// rest is the real driver's, which this library needs by the name libcuda_real.so.
//
//   MEZZO_DRIVER_FAULT=KIND:N[:lost]   KIND alloc, launch, copy, sync or graph; N from 1. The call is not made, and
//                                      returns an error: out of memory for alloc, else "launch failed". With `lost`
//                                      every call of any kind from there on fails.
//   MEZZO_DRIVER_COUNT=FILE            at the end, "KIND CALLS" a line
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALLOC, LAUNCH, COPY, SYNC, GRAPH, KINDS };
static const char *const kinds[KINDS] = {"alloc", "launch", "copy", "sync", "graph"};
static long calls[KINDS], fails_at;
static int fails = -1, lost, gone;

__attribute__((constructor)) static void begin(void) {
    const char *fault = getenv("MEZZO_DRIVER_FAULT");
    for (int k = 0; fault != NULL && k < KINDS; k++)
        if (strncmp(fault, kinds[k], strlen(kinds[k])) == 0)
            fails = k, fails_at = atol(fault + strlen(kinds[k]) + 1), lost = strstr(fault, ":lost") != NULL;
}
__attribute__((destructor)) static void end(void) {
    const char *path = getenv("MEZZO_DRIVER_COUNT");
    FILE *file = path != NULL ? fopen(path, "w") : NULL;
    for (int k = 0; file != NULL && k < KINDS; k++)
        fprintf(file, "%s %ld\n", kinds[k], calls[k]);
    if (file != NULL)
        fclose(file);
}

static CUresult verdict(int kind) {
    long n = __atomic_add_fetch(&calls[kind], 1, __ATOMIC_RELAXED);
    if (kind == fails && n == fails_at)
        __atomic_store_n(&gone, lost, __ATOMIC_RELAXED);
    else if (!__atomic_load_n(&gone, __ATOMIC_RELAXED))
        return CUDA_SUCCESS;
    return kind == ALLOC && !lost ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_LAUNCH_FAILED;
}

// WRAP(name, kind, (parameters), (arguments)): a function of the driver, the real one behind it.
#define WRAP(name, kind, parameters, arguments)                                                                        \
    static CUresult(*real_##name) parameters;                                                                          \
    static CUresult fake_##name parameters {                                                                           \
        CUresult result = verdict(kind);                                                                               \
        return result != CUDA_SUCCESS ? result : real_##name arguments;                                                \
    }
#define FUNCTIONS(WRAP)                                                                                                \
    WRAP(cuMemAlloc, ALLOC, (CUdeviceptr * p, size_t n), (p, n))                                                       \
    WRAP(cuMemHostAlloc, ALLOC, (void **p, size_t n, unsigned f), (p, n, f))                                           \
    WRAP(cuLaunchKernel, LAUNCH,                                                                                       \
         (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
          CUstream s, void **p, void **e),                                                                             \
         (f, gx, gy, gz, bx, by, bz, shared, s, p, e))                                                                 \
    WRAP(cuLaunchKernelEx, LAUNCH, (const CUlaunchConfig *c, CUfunction f, void **p, void **e), (c, f, p, e))          \
    WRAP(cuMemcpyHtoDAsync, COPY, (CUdeviceptr to, const void *from, size_t n, CUstream s), (to, from, n, s))          \
    WRAP(cuMemcpyDtoHAsync, COPY, (void *to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))                \
    WRAP(cuMemcpyDtoDAsync, COPY, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))          \
    WRAP(cuMemcpyAsync, COPY, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s))              \
    WRAP(cuMemsetD8Async, COPY, (CUdeviceptr to, unsigned char c, size_t n, CUstream s), (to, c, n, s))                \
    WRAP(cuMemsetD32Async, COPY, (CUdeviceptr to, unsigned c, size_t n, CUstream s), (to, c, n, s))                    \
    WRAP(cuStreamSynchronize, SYNC, (CUstream s), (s))                                                                 \
    WRAP(cuEventSynchronize, SYNC, (CUevent e), (e))                                                                   \
    WRAP(cuEventRecord, SYNC, (CUevent e, CUstream s), (e, s))                                                         \
    WRAP(cuGraphLaunch, GRAPH, (CUgraphExec g, CUstream s), (g, s))                                                    \
    WRAP(cuStreamBeginCapture, GRAPH, (CUstream s, CUstreamCaptureMode m), (s, m))                                     \
    WRAP(cuStreamEndCapture, GRAPH, (CUstream s, CUgraph * g), (s, g))                                                 \
    WRAP(cuGraphInstantiateWithParams, GRAPH, (CUgraphExec * e, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS * p),         \
         (e, g, p))
#undef cuMemAlloc
#undef cuMemcpyHtoDAsync
#undef cuMemcpyDtoHAsync
#undef cuMemcpyDtoDAsync
#undef cuStreamBeginCapture
FUNCTIONS(WRAP)

typedef CUresult (*find_function)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
static find_function real_find(void) { // the next library's function of this name
    static find_function found;
    if (found == NULL) {
        void *library = dlopen("libcuda_real.so", RTLD_NOW | RTLD_LOCAL);
        void *address = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;
        memcpy(&found, &address, sizeof found);
    }
    return found;
}

#undef cuGetProcAddress
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    CUresult result = real_find()(symbol, pfn, version, flags, status);
    if (result != CUDA_SUCCESS || pfn == NULL || *pfn == NULL)
        return result;
    if (strcmp(symbol, "cuGetProcAddress") == 0) {
        *pfn = (void *)cuGetProcAddress_v2;
        return result;
    }
#define TAKE(name, kind, parameters, arguments)                                                                        \
    if (strcmp(symbol, #name) == 0) {                                                                                  \
        memcpy(&real_##name, pfn, sizeof *pfn);                                                                        \
        *pfn = (void *)fake_##name;                                                                                    \
    }
    FUNCTIONS(TAKE)
    return result;
}
