// Declares what the cpu device's kernels share.
#ifndef MZ_CPU_H
#define MZ_CPU_H

#include "backend/slots.h"
#include "backend/cpu/isa.h"

typedef struct mz_cpu_device {
    struct mezzo_device base; // must be first: a mezzo_device* of this backend is a mz_cpu_device*
    mz_isa isa;
} mz_cpu_device;

static inline const mz_cpu_device *mz_cpu(const mezzo_device *device) {
    return (const mz_cpu_device *)(const void *)device;
}

// A parallel region of `work` units, each about a nanosecond of one core, uses all threads of the device, or 1 where a
// team would cost more than it saves. It uses no number between, because libgomp would then end and start threads.
#define MZ_CPU_GRAIN 20000
static inline int mz_cpu_threads(const mezzo_device *device, double work) {
    return work < MZ_CPU_GRAIN ? 1 : device->threads;
}

// What a kernel needs of a call (kernels/block.h).
typedef struct mz_cpu_needs {
    const char *in, *out; // letters of mz_storages_refusal; then it has no FP64 arithmetic. NULL: `refuses` checks them
    size_t (*workspace)(const mezzo_device *device, const mz_call *call);    // NULL: none
    const char *(*refuses)(const mezzo_device *device, const mz_call *call); // NULL: nothing else
} mz_cpu_needs;
// Prepares such a kernel.
const char *mz_cpu_prepare(const mezzo_device *device, const mz_call *call, const mz_cpu_needs *needs,
                           mz_prepared *out);

// The number of BF16 products that make up one product in FP16 or in TF32 (kernels/matmul_split.c).
#define MZ_CPU_F16_PRODUCTS  4
#define MZ_CPU_TF32_PRODUCTS 3

// Returns the kernels of linear, matmul, linear_dx and linear_dw, the best for this device first (matmul.c).
const mz_kernel *const *mz_cpu_matmul_kernels(const mz_cpu_device *device, mz_op op, size_t *n);

// Returns those of grouped_linear and its gradients (grouped.c).
const mz_kernel *const *mz_cpu_grouped_kernels(mz_op op, size_t *n);

// Kernels of linear layers for formats that no CPU multiplies (emulate_fp8.c): 8-bit operands, and operands rounded to
// blocks. They come after the usual kernels of linear, linear_dx and linear_dw.
extern const mz_kernel mz_cpu_linear_emulated, mz_cpu_linear_dx_emulated, mz_cpu_linear_dw_emulated;
// Kernels of the experts' products for 8-bit operands, after those of grouped_linear and its gradients.
extern const mz_kernel mz_cpu_grouped_linear_emulated, mz_cpu_grouped_linear_dx_emulated,
    mz_cpu_grouped_linear_dw_emulated;
mz_takes mz_cpu_takes(const mz_kernel *kernel);

// Measures peaks (peaks.c): loops of multiply-adds alone, and of loads and stores alone, on every thread of the device.
mezzo_status mz_cpu_peaks(mezzo_device *device, mz_peaks *out);

extern const mz_backend mz_backend_cpu;

#endif
