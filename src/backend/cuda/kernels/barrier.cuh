// Barriers in shared memory (PTX ISA, "mbarrier", from compute capability 9.0): threads that arrive, and bytes that a
// copy brings. A wait names the parity of the phase it is for: it distinguishes odd ones from even ones, no more.
#ifndef MZ_BARRIER_CUH
#define MZ_BARRIER_CUH

#include <stdint.h>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ void barrier_init(uint32_t at, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_inits_release() { // other threads and the copies see them after a barrier
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t at, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra through;\n"
                 "bra again;\n"
                 "through:\n}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}
__device__ __forceinline__ bool barrier_passed(uint32_t at, uint32_t parity) { // a wait would end at once
    uint32_t done;
    asm volatile("{\n.reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.b32 %0, 1, 0, done;\n}"
                 : "=r"(done)
                 : "r"(at), "r"(parity)
                 : "memory");
    return done != 0;
}
#endif

#endif
