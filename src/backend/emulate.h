// Declares products whose operands are first brought to a format that a device multiplies: 8-bit operands with scales,
// and operands that are rounded to blocks (attrs.blocks).
#ifndef MZ_BACKEND_EMULATE_H
#define MZ_BACKEND_EMULATE_H

#include "backend/backend.h"

#define MZ_SCALINGS_8BIT (MZ_BIT(MZ_SCALING_TENSOR) | MZ_BIT(MZ_SCALING_BLOCK128) | MZ_BIT(MZ_SCALING_TILE128))

static inline bool mz_is_8bit(const mz_tensor *t) {
    return t->dtype == MEZZO_F8E4M3 || t->dtype == MEZZO_F8E5M2;
}

// Returns the format that holds an operand exactly.
typedef mezzo_dtype mz_plain_dtype(const mz_call *call, int slot);
// Prepares the call on such operands, which are in the workspace, by the device's own kernel: state is its mz_prepared.
const char *mz_plain_prepare(mezzo_device *device, const mz_call *call, mz_plain_dtype *dtype, mz_prepared *out);
// Returns that call. MZ_PLAIN_BEFORE bytes in front of its workspace are free.
enum { MZ_PLAIN_BEFORE = 256 };
mz_call mz_plain_call(const mz_call *call, mz_plain_dtype *dtype);
mezzo_status mz_plain_run(mezzo_device *device, const mz_call *call, mz_call *part); // once the operands are written
// Returns NULL, or why no product of experts serves the call: rows are in 8 bits with one scale, or plain.
const char *mz_plain_refuses_grouped(const mz_call *call);
// Returns NULL, or why the quantize of an x in 8 bits does not move its codes into columns and nothing else.
const char *mz_transpose_refusal(const mz_call *call);

#endif
