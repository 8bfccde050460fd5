// Declares what the two host sides of attention share.
#ifndef MZ_CUDA_ATTENTION_H
#define MZ_CUDA_ATTENTION_H

#include "backend/cuda/cuda.h"

// Gets the tensors of attention or attention_bwd in the form that the launchers take. Pointers are NULL at planning.
mz_cu_attention mz_cuda_attention_of(mezzo_device *device, const mz_call *call);
// Returns NULL, or why no kernel of this backend takes the call: a mixture of storages.
const char *mz_cuda_attention_refusal(const mz_call *call);
// Returns NULL, or why a kernel without windows, caps of scores and documents does not take the call.
const char *mz_cuda_limits_refusal(const mz_cu_attention *a);
// Returns NULL, or why a kernel for language models does not take the call: it is not causal, or queries and keys
// differ in number.
const char *mz_cuda_causal_refusal(const mz_cu_attention *a);

#endif
