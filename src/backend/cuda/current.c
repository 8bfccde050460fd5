// Sets the thread's current device, and reports errors of the runtime.
#include "backend/collective.h"
#include "backend/cuda/cuda.h"

mezzo_status mz_cuda_error(cudaError_t error, const char *what) {
    (void)cudaGetLastError(); // clears the error, which the next launch would otherwise report
    if (error == cudaErrorMemoryAllocation)
        return mz_fail(MEZZO_ERR_MEMORY, "cuda: out of device memory (%s)", what);
    return mz_fail(MEZZO_ERR_DEVICE, "cuda: %s (%s)", cudaGetErrorString(error), what);
}

mezzo_status mz_cuda_waited(mezzo_device *device, cudaError_t error, const char *what) {
    mezzo_status status = device->comm != NULL ? device->comm->check(device->comm) : MEZZO_OK;
    if (status == MEZZO_OK && error != cudaSuccess)
        return mz_cuda_error(error, what);
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    return status;
}

cudaError_t mz_cuda_use(const mz_cuda_device *cuda) {
    static _Thread_local int used = -1; // the device of this thread's last call: a thread starts without a context
    int current;
    if (used == cuda->index && cudaGetDevice(&current) == cudaSuccess && current == used)
        return cudaSuccess;
    cudaError_t error = cudaSetDevice(cuda->index);
    used = error == cudaSuccess ? cuda->index : -1;
    return error;
}
