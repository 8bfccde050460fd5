// Clusters of two blocks and the tensor memory accelerator (TMA), from compute capability 9.0: what the products that
// are fed by it share. PTX ISA: "cp.async.bulk.tensor", "mapa", "barrier.cluster"; CUDA driver API: tensor maps.
#ifndef MZ_CLUSTER_CUH
#define MZ_CLUSTER_CUH

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "launch.h"

enum { CLUSTER = 2 };

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define IN_CLUSTERS
#else
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ void barrier_arrive_at(uint32_t at, uint32_t block) { // of the cluster
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(at),
                 "r"(block)
                 : "memory");
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t block_of_cluster() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Fetches a box of a matrix, x its first column, into this block's memory, or into that of both blocks.
__device__ __forceinline__ void fetch_box(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            to),
        "l"(map), "r"(x), "r"(y), "r"(barrier)
        : "memory");
}
__device__ __forceinline__ void fetch_box_for_all(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(static_cast<uint16_t>((1 << CLUSTER) - 1))
                 : "memory");
}
// Copies consecutive `bytes`, a multiple of 16 at an address that is a multiple of 16, into this block's memory.
__device__ __forceinline__ void fetch_run(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
// fetch_box of matrix z of three.
__device__ __forceinline__ void fetch_box_of_three(uint32_t to, const CUtensorMap *map, int x, int y, int z,
                                                   uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
                 "%4}], [%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void fetch_box_of_three_for_all(uint32_t to, const CUtensorMap *map, int x, int y, int z,
                                                           uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(static_cast<uint16_t>((1 << CLUSTER) - 1))
                 : "memory");
}
// Stores a box of matrix z of three; what lies outside of the tensor is left out. Other threads' writes to the box come
// before it after async_fence() of theirs and a barrier. The thread that asks waits, too: until the boxes it committed
// have been read, or until they are stored.
__device__ __forceinline__ void store_box_of_three(uint32_t from, const CUtensorMap *map, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map), "r"(x),
                 "r"(y), "r"(z), "r"(from)
                 : "memory");
}
__device__ __forceinline__ void stores_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void stores_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void stores_wait() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
#endif

// The driver's cuTensorMapEncodeTiled; NULL: it has none.
typedef CUresult (*tensor_map_encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                      const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                      CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static inline tensor_map_encode find_tensor_map_encode() {
    static tensor_map_encode found; // threads may look for it at the same time: all find the same
    tensor_map_encode encode = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (encode != nullptr)
        return encode;
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result) !=
            cudaSuccess ||
        result != cudaDriverEntryPointSuccess)
        return nullptr;
    encode = reinterpret_cast<tensor_map_encode>(entry);
    __atomic_store_n(&found, encode, __ATOMIC_RELAXED);
    return encode;
}

inline CUtensorMapDataType box_type(int dtype) { // of BF16 or FP16
    return dtype == MEZZO_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

// Describes boxes of a tensor for TMA; what lies outside of the tensor reads as zeros. sizes: of the tensor, in
// elements, the contiguous dimension first; pitch: bytes from one to the next in each other dimension; box: elements.
template <int RANK>
inline bool describe_boxes(CUtensorMap *map, CUtensorMapDataType type, const void *data, const int64_t (&sizes)[RANK],
                           const int64_t (&pitch)[RANK - 1], const int (&box)[RANK]) {
    const tensor_map_encode encode = find_tensor_map_encode();
    cuuint64_t size[RANK], pitches[RANK];
    cuuint32_t boxes[RANK], steps[RANK];
    for (int i = 0; i < RANK; i++) {
        size[i] = static_cast<cuuint64_t>(sizes[i]);
        pitches[i] = i + 1 < RANK ? static_cast<cuuint64_t>(pitch[i]) : 0;
        boxes[i] = static_cast<cuuint32_t>(box[i]);
        steps[i] = 1;
    }
    return encode != nullptr &&
           encode(map, type, RANK, const_cast<void *>(data), size, pitches, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

#endif
