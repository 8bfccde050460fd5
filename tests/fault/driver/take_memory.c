// Another process that takes a GPU's memory: all that is free, in pieces down to 2 MiB, again and again, so that what
// others give back is taken too, until SECONDS are over. Prints "taken MIB" at the end.   take_memory SECONDS
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
    CUdevice device;
    CUcontext context;
    size_t taken = 0;
    const time_t end = time(NULL) + (argc > 1 ? atol(argv[1]) : 1);
    if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
        cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return 1;
    for (; time(NULL) < end; usleep(10000))
        for (size_t piece = (size_t)1 << 36; piece >= (size_t)1 << 21; piece /= 2)
            for (CUdeviceptr p; cuMemAlloc(&p, piece) == CUDA_SUCCESS;) // given back when the process ends
                taken += piece;
    printf("taken %zu\n", taken >> 20);
    return 0;
}
