// Applies the vector functions of vec.h and act.h to arrays, so that tests can check their accuracy at every level.
#include "backend/cpu/kernels/functions.h"

#include "backend/cpu/kernels/act.h"
#include "backend/cpu/kernels/block.h"

static vf apply(mz_vec_function f, vf x) {
    vf cdf, pdf;
    switch (f) {
    case MZ_VEC_EXP:
        return vexp(x);
    case MZ_VEC_TANH:
        return vtanh(x);
    case MZ_VEC_SIGMOID:
        return vsigmoid(x);
    case MZ_VEC_NORMAL_CDF:
        vnormal(x, &cdf, &pdf);
        return cdf;
    default:
        vnormal(x, &cdf, &pdf);
        return pdf;
    }
}

void MZ_SYMBOL(vec_apply)(mz_vec_function f, const float *x, float *y, int n) {
    FOR_LANES(i, lanes, n)
    vstore_lanes(y + i, apply(f, vload_lanes(x + i, lanes, 0)), lanes);
}

void MZ_SYMBOL(vec_convert)(const void *src, mezzo_dtype from, void *dst, mezzo_dtype to, int n) {
    if (from == MEZZO_F32)
        narrow_block(src, dst, to, n);
    else
        widen_block(src, from, dst, n);
}
