// The cpu device's kernels share this.
#ifndef MZ_CPU_H
#define MZ_CPU_H

#include "backend/slots.h"
#include "backend/cpu/isa.h"

typedef struct mz_cpu_device {
    struct mezzo_device base; // first: a mezzo_device* of this backend is a mz_cpu_device*
    mz_isa isa;
} mz_cpu_device;

static inline const mz_cpu_device *mz_cpu(const mezzo_device *device) {
    return (const mz_cpu_device *)(const void *)device;
}

// A parallel region of `work` units, each about a nanosecond of one core, uses all threads of the device, or 1 where a
// team would cost more than it saves. It uses no number between, because libgomp ends and starts threads then.
#define MZ_CPU_GRAIN 20000
static inline int mz_cpu_threads(const mezzo_device *device, double work) {
    return work < MZ_CPU_GRAIN ? 1 : device->threads;
}

// Products of BF16 that one of FP16, and one for TF32, are made of (kernels/matmul_split.c).
#define MZ_CPU_F16_PRODUCTS  4
#define MZ_CPU_TF32_PRODUCTS 3

// matmul.c: the kernels of linear, matmul, linear_dx and linear_dw, best first for this device.
const mz_kernel *const *mz_cpu_matmul_kernels(const mz_cpu_device *device, mz_op op, size_t *n);

// grouped.c: the same for grouped_linear and its gradients.
const mz_kernel *const *mz_cpu_grouped_kernels(mz_op op, size_t *n);

// emulate_fp8.c: linear layers' products that no unit here has: of 8-bit operands, and of operands rounded to blocks.
// After the usual kernels of linear, linear_dx and linear_dw.
extern const mz_kernel mz_cpu_linear_emulated, mz_cpu_linear_dx_emulated, mz_cpu_linear_dw_emulated;
// The experts' products of 8-bit operands, after those of grouped_linear and its gradients.
extern const mz_kernel mz_cpu_grouped_linear_emulated, mz_cpu_grouped_linear_dx_emulated,
    mz_cpu_grouped_linear_dw_emulated;
mz_takes mz_cpu_takes(const mz_kernel *kernel);

// peaks.c: loops of nothing but multiply-adds, and of nothing but loads and stores, on every thread of the device.
mezzo_status mz_cpu_peaks(mezzo_device *device, mz_peaks *out);

extern const mz_backend mz_backend_cpu;

#endif
