// Describes how a call's tensors are stored.
#ifndef MZ_CUDA_STORAGE_H
#define MZ_CUDA_STORAGE_H

#include "backend/cuda/cuda.h"

static inline const char *mz_cuda_storages(const mz_call *call, const char *in, const char *out) {
    return mz_storages_refusal(call, in, out);
}

// Returns the layout of elements, for kernels that read tensors with padding.
static inline mz_layout mz_cuda_layout(const mz_tensor *t) {
    mz_layout l;
    mz_layout_of(&t->shape, &t->storage, &l);
    return l;
}
static inline const char *mz_cuda_has_layout(const mz_tensor *t) {
    mz_layout l;
    return mz_layout_of(&t->shape, &t->storage, &l) ? NULL : "more than two axes with padding";
}

// Returns the width of the last dimension, which kernels keep in an int.
static inline int64_t mz_cuda_width(const mz_tensor *t) {
    return t->shape.rank > 0 ? t->shape.dim[t->shape.rank - 1] : 1;
}
static inline const char *mz_cuda_narrow(const mz_tensor *t) {
    return mz_cuda_width(t) < 1 << 30 ? NULL : "rows of 2^30 elements or more";
}
// Returns the elements from one row to the next: the width and the row's padding.
static inline int64_t mz_cuda_pitch(const mz_tensor *t) {
    return t->shape.rank > 0 ? mz_stored_dim(&t->shape, &t->storage, t->shape.rank - 1) : 1;
}

#endif
