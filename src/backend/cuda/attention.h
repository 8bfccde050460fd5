// The two host sides of attention share this.
#ifndef MZ_CUDA_ATTENTION_H
#define MZ_CUDA_ATTENTION_H

#include "backend/cuda/cuda.h"

// attention's or attention_bwd's tensors as the launchers want them. Pointers are NULL at planning.
mz_cu_attention mz_cuda_attention_of(mezzo_device *device, const mz_call *call);
// NULL, or why no kernel of this backend takes the call: a mixture of storages.
const char *mz_cuda_attention_refusal(const mz_call *call);
// NULL, or why a kernel without windows, caps of scores and documents does not take it.
const char *mz_cuda_limits_refusal(const mz_cu_attention *a);
// NULL, or why a kernel for what language models do does not take it: not causal, or other keys than queries.
const char *mz_cuda_causal_refusal(const mz_cu_attention *a);

#endif
