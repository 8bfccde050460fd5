// Declares every kernel of kernels.def at every level that this target has.
#ifndef MZ_CPU_KERNELS_H
#define MZ_CPU_KERNELS_H

#include "backend/slots.h"

#if defined(__x86_64__)
#define KERNEL(op, name) extern const mz_kernel mz_##name##__portable, mz_##name##__avx2, mz_##name##__avx512;
#define KERNEL_AMX(op, name)                                                                                           \
    KERNEL(op, name)                                                                                                   \
    extern const mz_kernel mz_##name##__amx;
#elif defined(__aarch64__)
#define KERNEL(op, name) extern const mz_kernel mz_##name##__portable, mz_##name##__neon;
#define KERNEL_AMX       KERNEL
#else
#define KERNEL(op, name) extern const mz_kernel mz_##name##__portable;
#define KERNEL_AMX       KERNEL
#endif
#define KERNEL_ONCE(op, name) extern const mz_kernel mz_##name##__portable;
#include "backend/cpu/kernels.def"
#undef KERNEL
#undef KERNEL_AMX
#undef KERNEL_ONCE

#endif
