// Fuses a call with the quantize of its result, so that no kernel reads the result again, and none writes it where no
// other call reads it.
#include "backend/cuda/fuse_quantize.h"

#include "backend/cuda/kernels/norm_fp8.h"

static const mz_tensor *output(const mz_call *call, int slot) {
    return slot < call->n_out && mz_present(&call->out[slot]) ? &call->out[slot] : NULL;
}

static bool is_norm(mz_op op) {
    return op == MZ_OP_layernorm || op == MZ_OP_rmsnorm;
}

static bool is_norm_bwd(mz_op op) {
    return op == MZ_OP_layernorm_bwd || op == MZ_OP_rmsnorm_bwd;
}

static bool is_move(mz_op op) {
    return op == MZ_OP_dispatch || op == MZ_OP_cast;
}

// Returns what of the first call's may be rounded at once.
static const mz_tensor *result(const mz_call *first) {
    if (is_norm(first->op) || is_move(first->op))
        return output(first, 0);
    return output(first, first->op == MZ_OP_layernorm_bwd ? MZ_OUT(layernorm_bwd, low) : MZ_OUT(rmsnorm_bwd, low));
}

// quantize runs over padding as if it were data: its shapes are what is stored.
static bool same_storage(const mz_tensor *x, const mz_tensor *in) {
    const mz_shape stored = mz_stored_shape(&x->shape, &x->storage);
    return mz_shape_equal(&stored, &in->shape);
}

// A quantize of this and nothing in front, with a scale for the tensor.
static bool rounds(const mz_call *quantize, const mz_tensor *x) {
    const mz_tensor *y = output(quantize, MZ_OUT(quantize, y)),
                    *columnwise = output(quantize, MZ_OUT(quantize, columnwise));
    const mz_tensor *any = y != NULL ? y : columnwise, *in = &quantize->in[0];
    return quantize->op == MZ_OP_quantize && any != NULL && any->scaling == MZ_SCALING_TENSOR &&
           output(quantize, MZ_OUT(quantize, entry)) != NULL && quantize->attrs.act == MZ_ACT_NONE &&
           output(quantize, MZ_OUT(quantize, act_out)) == NULL && x != NULL && x->dtype == in->dtype &&
           mz_cuda_float(x) && mz_storage_is_rows(&x->shape, &x->storage) && same_storage(x, in);
}

// The kernel that moves rows: they are FP32 or BF16 without padding, and become BF16.
static bool moves(const mz_call *move) {
    const mz_tensor *x = &move->in[0], *y = &move->out[0];
    return (x->dtype == MEZZO_F32 || x->dtype == MEZZO_BF16) && y->dtype == MEZZO_BF16 && !x->storage.padded &&
           x->scaling == MZ_SCALING_NONE;
}

// Before tensors have addresses.
bool mz_cuda_may_fuse(const mz_call *first, const mz_call *second) {
    const bool any = is_norm(first->op) || is_norm_bwd(first->op) || (is_move(first->op) && moves(first));
    if (!any || !rounds(second, result(first)))
        return false;
    const mz_shape *shape = &second->in[0].shape;
    const int64_t width = shape->rank > 0 ? shape->dim[shape->rank - 1] : 1;
    const bool sums = output(second, MZ_OUT(quantize, dbias)) != NULL;
    const bool own = first->op == MZ_OP_layernorm_bwd && output(first, MZ_OUT(layernorm_bwd, linear_dbias)) != NULL;
    return (is_norm_bwd(first->op) ? !sums || !own : !sums) &&
           mz_cu_norm_fp8_fits(mz_shape_count(shape) / (width > 0 ? width : 1), width);
}

static bool share_bytes(const mz_tensor *a, const mz_tensor *b) {
    const char *p = a->data, *q = b->data;
    return mz_present(a) && mz_present(b) && p < q + mz_tensor_bytes_stored(b) && q < p + mz_tensor_bytes_stored(a);
}

// Returns whether the second call writes where the first one reads or writes.
static bool in_the_way(const mz_call *first, const mz_call *second) {
    for (int k = 0; k < second->n_out; k++) {
        for (int i = 0; i < first->n_in; i++)
            if (share_bytes(&first->in[i], &second->out[k]))
                return true;
        for (int i = 0; i < first->n_out; i++)
            if (share_bytes(&first->out[i], &second->out[k]))
                return true;
    }
    return false;
}

// --- the pieces ----------------------------------------------------------------------------------------------------
// A scale that is found in what the first call writes, and gradients of which one is added to and the other is not, are
// for the two of them in turn.
static bool in_turn(const mz_call *first, const mz_call *second) {
    const bool both = is_norm_bwd(first->op) && output(second, MZ_OUT(quantize, dbias)) != NULL;
    return second->attrs.measure || (both && first->attrs.accumulate != second->attrs.accumulate);
}

static mezzo_status run_in_turn(mezzo_device *device, const mz_call *first, const mz_call *second) {
    const mz_kernel *kernel = first->op == MZ_OP_dispatch ? &mz_cuda_dispatch
                              : first->op == MZ_OP_cast   ? &mz_cuda_cast
                              : is_norm(first->op)        ? &mz_cuda_layernorm // rmsnorm's are the same
                                                          : &mz_cuda_layernorm_bwd;
    MEZZO_TRY(kernel->run(device, first));
    return mz_cuda_quantize.run(device, second);
}

static mezzo_status run_piece(mezzo_device *device, const mz_call *first, const mz_call *second, bool is_private) {
    mz_cuda_device *cuda = mz_cuda(device);
    if (in_turn(first, second))
        return run_in_turn(device, first, second);
    mz_cu_quantize q = mz_cuda_quantize_args(second);
    if (is_move(first->op)) {
        q.x = mz_cuda_array(&first->in[0]);
        q.moved = true;
        q.order = first->op == MZ_OP_dispatch ? first->in[MZ_IN(dispatch, order)].data : NULL;
        q.weights = first->op == MZ_OP_dispatch && mz_present(&first->in[MZ_IN(dispatch, weights)])
                        ? first->in[MZ_IN(dispatch, weights)].data
                        : NULL;
        q.top_k = first->attrs.top_k;
        MZ_CUDA_TRY(mz_cu_quantize_run(cuda->stream, &q));
        return MEZZO_OK;
    }
    if (is_norm(first->op)) {
        mz_cu_layernorm_args norm = mz_cuda_norm_args(first);
        norm.y.data = is_private ? NULL : norm.y.data;
        MZ_CUDA_TRY(mz_cu_norm_fp8(cuda->stream, &norm, &q, cuda->sms));
        return MEZZO_OK;
    }
    const mz_tensor *sums = output(second, MZ_OUT(quantize, dbias));
    mz_cu_layernorm_bwd_args norm = mz_cuda_norm_bwd_args(device, first);
    norm.low.data = is_private ? NULL : norm.low.data;
    norm.linear_dbias = sums != NULL ? sums->data : norm.linear_dbias;
    MZ_CUDA_TRY(mz_cu_norm_bwd_fp8(cuda->stream, &norm, &q, cuda->sms));
    return MEZZO_OK;
}

static mezzo_status run_fused(mezzo_device *device, const mz_call *first, const mz_call *second) {
    return run_piece(device, first, second, true);
}

static mezzo_status run_beside(mezzo_device *device, const mz_call *first, const mz_call *second) {
    return run_piece(device, first, second, false);
}

static const mz_fused_kernel norm[2] = {{"norm_quantize__cuda", run_beside}, {"norm_fp8__cuda", run_fused}},
                             norm_bwd[2] = {{"norm_bwd_quantize__cuda", run_beside}, {"norm_bwd_fp8__cuda", run_fused}},
                             dispatch = {"dispatch_fp8__cuda", run_fused}, cast = {"cast_fp8__cuda", run_fused};

const mz_fused_kernel *mz_cuda_fuse_quantize(const mz_call *first, const mz_call *second, bool is_private) {
    if (!mz_cuda_may_fuse(first, second) || result(first)->data != second->in[0].data || in_the_way(first, second))
        return NULL;
    if (is_move(first->op)) // which others need is not written
        return !is_private ? NULL : first->op == MZ_OP_cast ? &cast : &dispatch;
    return is_norm(first->op) ? &norm[is_private] : &norm_bwd[is_private];
}
