// Runs the ops between the products that make a matrix orthogonal (optim/orthogonal.c).
#include "backend/cuda/storage.h"

enum { CHUNK = MZ_CU_NORMALIZE_CHUNK };

static int64_t elements_of_matrix(const mz_shape *s) {
    return s->dim[s->rank - 2] * s->dim[s->rank - 1];
}

static const char *normalize_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device;
    const mz_shape *s = &call->in[0].shape;
    const int64_t each = elements_of_matrix(s), matrices = mz_shape_count(s) / each;
    if (matrices > 65535)
        return "takes at most 65,535 matrices";
    out->workspace = (size_t)(matrices * ((each + CHUNK - 1) / CHUNK)) * sizeof(double);
    return mz_cuda_storages(call, "f", "a");
}

static mezzo_status normalize_run(mezzo_device *device, const mz_call *call) {
    const mz_shape *s = &call->in[0].shape;
    const int64_t each = elements_of_matrix(s);
    MZ_CUDA_TRY(mz_cu_matrix_normalize(mz_cuda(device)->stream, call->in[0].data, mz_cuda_array(&call->out[0]), each,
                                       (int)(mz_shape_count(s) / each), call->attrs.eps, call->attrs.alpha,
                                       call->workspace));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_matrix_normalize = {"matrix_normalize__cuda", normalize_prepare, normalize_run};

static const char *polynomial_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "aa", "a");
}

static mezzo_status polynomial_run(mezzo_device *device, const mz_call *call) {
    const mz_shape *s = &call->out[0].shape;
    const float *c = call->attrs.coefficients;
    MZ_CUDA_TRY(mz_cu_matrix_polynomial(mz_cuda(device)->stream, mz_cuda_array(&call->in[0]),
                                        mz_cuda_array(&call->in[1]), mz_cuda_array(&call->out[0]), mz_shape_count(s),
                                        s->dim[s->rank - 1], (mz_cu_polynomial){{c[0], c[1], c[2]}}));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_matrix_polynomial = {"matrix_polynomial__cuda", polynomial_prepare, polynomial_run};
