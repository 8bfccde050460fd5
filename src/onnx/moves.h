// ONNX ops that move elements (moves.c), and layers (layers.c).
#ifndef MZ_ONNX_MOVES_H
#define MZ_ONNX_MOVES_H

#include "onnx/onnx.h"

mezzo_status mz_onnx_constant_node(mz_onnx_call *call, int which);
mezzo_status mz_onnx_constant_of_shape(mz_onnx_call *call, int which);
mezzo_status mz_onnx_range(mz_onnx_call *call, int which);
mezzo_status mz_onnx_shape(mz_onnx_call *call, int which);
mezzo_status mz_onnx_reshape(mz_onnx_call *call, int which);
mezzo_status mz_onnx_flatten(mz_onnx_call *call, int which);
mezzo_status mz_onnx_squeeze(mz_onnx_call *call, int unsqueeze);
mezzo_status mz_onnx_transpose(mz_onnx_call *call, int which);
mezzo_status mz_onnx_concat(mz_onnx_call *call, int which);
mezzo_status mz_onnx_split(mz_onnx_call *call, int which);
mezzo_status mz_onnx_slice(mz_onnx_call *call, int which);
mezzo_status mz_onnx_expand(mz_onnx_call *call, int which);
mezzo_status mz_onnx_gather(mz_onnx_call *call, int which);

mezzo_status mz_onnx_matmul(mz_onnx_call *call, int which);
mezzo_status mz_onnx_gemm(mz_onnx_call *call, int which);
mezzo_status mz_onnx_conv(mz_onnx_call *call, int which);
mezzo_status mz_onnx_pool(mz_onnx_call *call, int which);
mezzo_status mz_onnx_global_pool(mz_onnx_call *call, int which);
mezzo_status mz_onnx_layer_norm(mz_onnx_call *call, int rms);
mezzo_status mz_onnx_softmax(mz_onnx_call *call, int which);
mezzo_status mz_onnx_reduce(mz_onnx_call *call, int mean);

// An axis from the front; -1 where the value has none of that number.
int mz_onnx_axis(int64_t axis, int rank);

#endif
