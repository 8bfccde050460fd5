// Declares cuDNN's backend C API: the library, graphs of operations, and plans of one shape each, which the device
// keeps. The first use opens libcudnn.
#ifndef MZ_CUDA_CUDNN_H
#define MZ_CUDA_CUDNN_H

#include "backend/cuda/cuda.h"

#if __has_include(<cudnn_graph.h>)
#define MZ_CUDA_HAS_CUDNN 1
#include <cudnn_graph.h>

// --- the library ---------------------------------------------------------------------------------------------------
// Returns NULL and the device's *out if cuDNN is available. Otherwise it returns the reason; the text lives as long as
// the device.
const char *mz_cudnn_open(mz_cuda_device *cuda, struct mz_cudnn **out);
size_t mz_cudnn_version(const struct mz_cudnn *cudnn); // 91900

// --- a graph under construction ------------------------------------------------------------------------------------
// Holds a graph under construction. It keeps its first failure, and later calls do nothing, so that code that builds a
// graph need not check each.
typedef struct mz_cudnn_graph mz_cudnn_graph;
typedef cudnnBackendDescriptor_t mz_cudnn_tensor;
typedef struct mz_cudnn_extent { // sizes or strides
    int64_t n[4];
} mz_cudnn_extent;
enum { MZ_CUDNN_FIRST_VIRTUAL = 100 }; // ids of tensors that have memory are below

// Adds a tensor in memory, for whose id a run gives an address.
mz_cudnn_tensor mz_cudnn_stored(mz_cudnn_graph *g, int64_t id, cudnnDataType_t dtype, mz_cudnn_extent size,
                                mz_cudnn_extent stride);
// Adds a stored tensor that is aligned to 16 bytes in every format.
mz_cudnn_tensor mz_cudnn_aligned(mz_cudnn_graph *g, int64_t id, cudnnDataType_t dtype, mz_cudnn_extent size,
                                 mz_cudnn_extent stride);
// Returns a tensor inside the graph.
mz_cudnn_tensor mz_cudnn_virtual(mz_cudnn_graph *g, cudnnDataType_t dtype, mz_cudnn_extent size,
                                 mz_cudnn_extent stride);
mz_cudnn_tensor mz_cudnn_constant(mz_cudnn_graph *g, int64_t id); // an FP32 number whose address a run gives
mz_cudnn_extent mz_cudnn_dense(mz_cudnn_extent size);             // strides of a row-major tensor

void mz_cudnn_matmul(mz_cudnn_graph *g, mz_cudnn_tensor x, mz_cudnn_tensor y, mz_cudnn_tensor out); // sums in FP32
// Adds out = mode(x, y, chosen by t); absent operands are NULL. `axis` is for generated indices only; otherwise -1.
void mz_cudnn_pointwise(mz_cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t compute, mz_cudnn_tensor x,
                        mz_cudnn_tensor y, mz_cudnn_tensor t, int64_t axis, mz_cudnn_tensor out);
void mz_cudnn_reduce(mz_cudnn_graph *g, cudnnReduceTensorOp_t with, mz_cudnn_tensor x, mz_cudnn_tensor out);
void mz_cudnn_reshape(mz_cudnn_graph *g, mz_cudnn_tensor x, mz_cudnn_tensor out);

// Gives access to descriptors, for operations that have no function here.
cudnnBackendDescriptor_t mz_cudnn_create(mz_cudnn_graph *g, cudnnBackendDescriptorType_t type);
void mz_cudnn_set(mz_cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, int64_t count, const void *value);
void mz_cudnn_set_descriptor(mz_cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                             cudnnBackendDescriptor_t value);
void mz_cudnn_finalize(mz_cudnn_graph *g, cudnnBackendDescriptor_t d, const char *what);
void mz_cudnn_operation(mz_cudnn_graph *g, cudnnBackendDescriptor_t operation,
                        const char *what); // becomes the graph's next operation

// Says which deterministic engines may serve the graph.
typedef enum mz_cudnn_engines {
    MZ_CUDNN_ANY,  // the first that makes a plan
    MZ_CUDNN_SUMS, // engines that multiply the operands directly and add in FP32: no Winograd, no FFT; several, to be
                   // timed
    MZ_CUDNN_FMA   // as SUMS, with FP32's own instructions
} mz_cudnn_engines;
void mz_cudnn_take(mz_cudnn_graph *g, mz_cudnn_engines engines);

// --- plans ---------------------------------------------------------------------------------------------------------
typedef struct mz_cudnn_plan {
    const char *refusal; // NULL: it can be run
    size_t workspace;    // bytes
    cudnnBackendDescriptor_t descriptor;
} mz_cudnn_plan;

// Returns the plan of the graph that `build` makes of a key, from the device's plans, or a new one by the first engine
// in the heuristics' order that may serve it. Keys are compared byte by byte. NULL: out of memory.
typedef void mz_cudnn_build(mz_cudnn_graph *g, const void *key);
mz_cudnn_plan *mz_cudnn_find(struct mz_cudnn *cudnn, mz_cudnn_build *build, const void *key, size_t size);

enum { MZ_CUDNN_POINTERS = 16 };
typedef struct mz_cudnn_pointers { // the addresses of a run's tensors: device memory, and host memory for constants
    int64_t ids[MZ_CUDNN_POINTERS];
    void *data[MZ_CUDNN_POINTERS];
    int64_t n;
} mz_cudnn_pointers;
static inline void mz_cudnn_point(mz_cudnn_pointers *p, int64_t id, const void *data) {
    p->ids[p->n] = id;
    p->data[p->n++] = (void *)(uintptr_t)data;
}
// Chooses the fastest of the engines that give the same bits as the first one, once for a plan. The measurement takes
// device memory; where there is not enough, the first engine stays. `what` names the plan in logs; the last of the
// tensors is the result.
typedef struct mz_cudnn_memory {
    int64_t id, count;
    int dtype; // mezzo_dtype
} mz_cudnn_memory;
void mz_cudnn_measure(mz_cuda_device *cuda, mz_cudnn_plan *plan, const mz_cudnn_memory *tensors, int n,
                      const char *what);
mezzo_status mz_cudnn_run(mz_cuda_device *cuda, const mz_cudnn_plan *plan, const mz_cudnn_pointers *pointers,
                          void *workspace);
void mz_cudnn_close(mz_cuda_device *cuda);
#else
#define mz_cudnn_close(cuda) ((void)(cuda))
#endif

#endif
