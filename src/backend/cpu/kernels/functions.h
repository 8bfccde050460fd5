// Declares the vector functions over arrays, one set for each level.
#ifndef MZ_CPU_FUNCTIONS_H
#define MZ_CPU_FUNCTIONS_H

#include "mezzo/dtype.h"

typedef enum mz_vec_function {
    MZ_VEC_EXP,
    MZ_VEC_TANH,
    MZ_VEC_SIGMOID,
    MZ_VEC_NORMAL_CDF,
    MZ_VEC_NORMAL_PDF
} mz_vec_function;
typedef void mz_vec_apply_fn(mz_vec_function f, const float *x, float *y, int n);
// Converts where one format is FP32 and the other BF16 or FP16.
typedef void mz_vec_convert_fn(const void *src, mezzo_dtype from, void *dst, mezzo_dtype to, int n);

mz_vec_apply_fn mz_vec_apply__portable;
mz_vec_convert_fn mz_vec_convert__portable;
#if defined(__x86_64__)
mz_vec_apply_fn mz_vec_apply__avx2, mz_vec_apply__avx512;
mz_vec_convert_fn mz_vec_convert__avx2, mz_vec_convert__avx512;
#elif defined(__aarch64__)
mz_vec_apply_fn mz_vec_apply__neon;
mz_vec_convert_fn mz_vec_convert__neon;
#endif

#endif
