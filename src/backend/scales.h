// Declares the rounding of operands in blocks, which is equal in every backend.
#ifndef MZ_BACKEND_SCALES_H
#define MZ_BACKEND_SCALES_H

#include "backend/backend.h"
#include "base/blocks.h"

// Says how an operand of a product with attrs.blocks is rounded. Dropout uses small numbers of streams, so these are
// large.
enum { MZ_STREAM_DX = 0x20000000, MZ_STREAM_DW = 0x40000000 };
static inline mz_blocks_how mz_blocks_of(const mz_call *call, int slot) {
    const bool dw = call->op == MZ_OP_linear_dw, backward = dw || call->op == MZ_OP_linear_dx;
    mz_blocks_how how = {.format = call->attrs.blocks,
                         .hadamard = dw && call->attrs.hadamard,
                         .random = backward && slot == 0 && call->attrs.random_gradients};
    if (how.hadamard)
        how.signs = mz_blocks_signs(call->rng->seed);
    if (how.random)
        how.key = (mz_philox_key){.seed = call->rng->seed,
                                  .step = (uint32_t)(call->rng->step ^ call->rng->step >> 32),
                                  .tensor = call->attrs.rng | (dw ? MZ_STREAM_DW : MZ_STREAM_DX)};
    return how;
}

#endif
