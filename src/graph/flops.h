// ops.def names these functions, which count an op's operations.
#ifndef MZ_FLOPS_H
#define MZ_FLOPS_H

#include "graph/op.h"

mz_flops_fn mz_flops_product, mz_flops_product_dx, mz_flops_product_dw, mz_flops_matmul;
mz_flops_fn mz_flops_attention, mz_flops_attention_bwd, mz_flops_attention_cached;
mz_flops_fn mz_flops_conv2d, mz_flops_conv2d_dx, mz_flops_conv2d_dw;

#endif
