// Checks the storages of a call's slots, one letter for each slot: a any float (fp32, bf16, fp16), b bf16, f fp32, i
// i32, n any float or i32, u bytes, m fp32 or bytes (masters). The last letter applies to further slots; absent slots
// pass.
#ifndef MZ_CUDA_STORAGE_H
#define MZ_CUDA_STORAGE_H

#include "backend/cuda/cuda.h"

static inline bool mz_cuda_storage_is(char letter, const mz_tensor *t) {
    switch (letter) {
    case 'a':
        return mz_cuda_float(t);
    case 'b':
        return t->dtype == MEZZO_BF16;
    case 'f':
        return t->dtype == MEZZO_F32;
    case 'i':
        return t->dtype == MEZZO_I32;
    case 'n':
        return mz_cuda_float(t) || t->dtype == MEZZO_I32;
    case 'm':
        return t->dtype == MEZZO_F32 || t->dtype == MEZZO_U8;
    default:
        return t->dtype == MEZZO_U8;
    }
}

static inline bool mz_cuda_storages_are(const char *letters, const mz_tensor *tensors, int n) {
    for (int i = 0; i < n; i++) {
        if (mz_present(&tensors[i]) && !mz_cuda_storage_is(*letters, &tensors[i]))
            return false;
        if (letters[1] != '\0')
            letters++;
    }
    return true;
}

// Returns NULL, or the refusal.
static inline const char *mz_cuda_storages(const mz_call *call, const char *in, const char *out) {
    if (!mz_cuda_storages_are(in, call->in, call->n_in))
        return "an input has a storage that the kernel does not read";
    if (!mz_cuda_storages_are(out, call->out, call->n_out))
        return "an output has a storage that the kernel does not write";
    return NULL;
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
