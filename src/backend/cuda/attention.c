// Runs attention by this backend's own kernels: tensor cores where the operands have 16 bits, FP32 arithmetic
// otherwise. attention_cudnn.c runs cuDNN's.
#include <math.h>

#include "backend/cuda/attention.h"
#include "backend/cuda/storage.h"

static char *offset(void *data, int64_t elements, mezzo_dtype dtype) {
    return data == NULL ? NULL : (char *)data + (size_t)elements * mezzo_dtype_size(dtype);
}

mz_cu_attention mz_cuda_attention_of(mezzo_device *device, const mz_call *call) {
    bool backward = call->op == MZ_OP_attention_bwd;
    const mz_tensor *q = &call->in[backward ? 1 : 0], *k = q + 1, *v = q + 2,
                    *y = backward ? &call->in[4] : &call->out[0];
    bool packed = !mz_present(k);
    int64_t channels = mz_cuda_pitch(y); // H·D, each head with its padding, which is 0 and adds 0
    mz_cu_attention a = {.q = q->data, .y = y->data, .rng = call->rng};
    a.dtype = (int)q->dtype;
    a.compute = (int)call->numerics.compute;
    a.cc = mz_cuda(device)->cc;
    a.sms = mz_cuda(device)->sms;
    a.batch = (int)q->shape.dim[0];
    a.length = (int)q->shape.dim[1];
    a.keys = packed ? a.length : (int)k->shape.dim[1];
    a.causal = call->attrs.causal;
    a.heads = call->attrs.heads;
    a.width = (int)(channels / a.heads);
    a.kv_heads = packed ? a.heads : (int)(mz_cuda_pitch(k) / a.width);
    a.q_row = packed ? 3 * channels : channels;
    a.kv_row = packed ? 3 * channels : mz_cuda_pitch(k);
    a.k = packed ? offset(q->data, channels, q->dtype) : k->data;
    a.v = packed ? offset(q->data, 2 * channels, q->dtype) : v->data;
    a.scale = (float)mz_attention_scale(&call->attrs, y->shape.dim[2] / a.heads);
    a.p = call->attrs.p;
    a.stream = call->attrs.rng;
    const mz_tensor *positions = &call->in[backward ? MZ_IN(attention_bwd, positions) : MZ_IN(attention, positions)];
    a.window = (int)call->attrs.window;
    a.cap = call->attrs.score_cap;
    a.positions = mz_present(positions) ? positions->data : NULL;
    a.limited = a.window > 0 || a.cap > 0 || mz_present(positions);
    if (!backward) {
        a.lse = mz_present(&call->out[1]) ? call->out[1].data : NULL;
        return a;
    }
    a.lse = call->in[5].data;
    a.dy = call->in[0].data;
    a.dq = call->out[0].data;
    a.dk = packed ? offset(call->out[0].data, channels, q->dtype) : call->out[1].data;
    a.dv = packed ? offset(call->out[0].data, 2 * channels, q->dtype) : call->out[2].data;
    a.delta = call->workspace; // [B, H, T]
    return a;
}

const char *mz_cuda_attention_refusal(const mz_call *call) {
    bool backward = call->op == MZ_OP_attention_bwd;
    const mz_tensor *q = &call->in[backward ? 1 : 0], *y = backward ? &call->in[4] : &call->out[0];
    const int positions = backward ? MZ_IN(attention_bwd, positions) : MZ_IN(attention, positions);
    for (int i = 0; i < positions; i++) // backward's lse is always FP32
        if (mz_present(&call->in[i]) && call->in[i].dtype != (backward && i == 5 ? MEZZO_F32 : q->dtype))
            return "q, k, v, y and dy must be stored alike";
    for (int i = 0; i < call->n_out; i++)
        if (mz_present(&call->out[i]) && call->out[i].dtype != (!backward && i == 1 ? MEZZO_F32 : q->dtype))
            return "outputs must be stored as q is";
    // Kernels count blocks and positions in 32 bits.
    const mz_tensor *k = q + 1;
    int64_t longest = mz_present(k) && k->shape.dim[1] > q->shape.dim[1] ? k->shape.dim[1] : q->shape.dim[1];
    if (q->shape.dim[0] * call->attrs.heads * (longest / 16 + 1) > INT32_MAX || y->shape.dim[2] > INT32_MAX / 4)
        return "batch x heads x length is too large";
    return NULL;
}

// --- kernels of one or two launches ----------------------------------------------------------------------------------
typedef const char *refusal_of(const mz_cuda_device *cuda, const mz_cu_attention *a);
typedef size_t bytes_of(const mz_cu_attention *a); // of the workspace
typedef cudaError_t launcher(cudaStream_t stream, const mz_cu_attention *a, bool prepare);

static const char *no_function(cudaError_t error) {
    if (error == cudaSuccess)
        return NULL;
    (void)cudaGetLastError();
    return error == cudaErrorNoKernelImageForDevice ? "this build has no code for compute capability 9.0a"
                                                    : "the GPU refuses the kernel's shared memory";
}

static size_t delta_bytes(const mz_cu_attention *a) { // Δ of each row
    return (size_t)a->batch * (size_t)a->heads * (size_t)a->length * sizeof(float);
}

// Hopper's kernels: log-sum-exp and Δ of each row, up to whole tiles of 64; FP32 sums of parts follow.
static size_t wgmma_row_bytes(const mz_cu_attention *a) {
    return (size_t)a->batch * (size_t)a->heads * mz_align_up((size_t)a->length, 64) * 2 * sizeof(float);
}

// Returns into how many parts the queries of a block are divided. A block of the first keys has the most queries: where
// few heads of keys serve many heads of queries, dividing them keeps all multiprocessors busy.
static int wgmma_parts(const mz_cu_attention *a) {
    const int group = a->heads / a->kv_heads;
    const int64_t blocks = (int64_t)a->batch * a->kv_heads * ((a->length + 127) / 128);
    int parts = 1;
    while (parts < group && blocks * parts * 5 < (int64_t)a->sms * 9)
        parts++;
    return parts;
}

static const char *prepare(mezzo_device *device, const mz_call *call, refusal_of *refuses, bytes_of *bytes,
                           launcher *first, launcher *second, mz_prepared *out) {
    const char *refusal = mz_cuda_attention_refusal(call);
    if (refusal != NULL)
        return refusal;
    mz_cu_attention a = mz_cuda_attention_of(device, call);
    refusal = refuses(mz_cuda(device), &a);
    if (refusal == NULL)
        refusal = no_function(first(NULL, &a, true));
    if (refusal == NULL && second != NULL)
        refusal = no_function(second(NULL, &a, true));
    out->workspace = bytes != NULL ? bytes(&a) : 0;
    return refusal;
}

static mezzo_status run(mezzo_device *device, const mz_call *call, launcher *first, launcher *second) {
    mz_cu_attention a = mz_cuda_attention_of(device, call);
    if (call->op == MZ_OP_attention_bwd) { // Hopper's read these
        a.parts = wgmma_parts(&a);
        a.sums = (float *)(void *)((char *)call->workspace + wgmma_row_bytes(&a));
    }
    MZ_CUDA_TRY(first(mz_cuda(device)->stream, &a, false));
    if (second != NULL)
        MZ_CUDA_TRY(second(mz_cuda(device)->stream, &a, false));
    return MEZZO_OK;
}

#define ATTENTION_KERNEL(symbol, name, refuses, bytes, first, second)                                                  \
    static const char *symbol##_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {                 \
        return prepare(device, call, refuses, bytes, first, second, out);                                              \
    }                                                                                                                  \
    static mezzo_status symbol##_run(mezzo_device *device, const mz_call *call) {                                      \
        return run(device, call, first, second);                                                                       \
    }                                                                                                                  \
    const mz_kernel mz_cuda_attention_##symbol = {name, symbol##_prepare, symbol##_run};

// --- tensor cores --------------------------------------------------------------------------------------------------
const char *mz_cuda_causal_refusal(const mz_cu_attention *a) {
    if (!a->causal)
        return "is causal";
    return a->keys != a->length ? "has as many keys as queries" : NULL;
}

const char *mz_cuda_limits_refusal(const mz_cu_attention *a) {
    return a->limited ? "has no window, no cap of scores and one document in a row" : NULL;
}

static const char *mma_refusal(const mz_cuda_device *cuda, const mz_cu_attention *a) {
    (void)cuda;
    if (a->dtype == MEZZO_F32 || a->dtype != a->compute)
        return "storage and compute must be BF16 or FP16, both the same";
    if (a->width % 8 != 0 || a->width > 128)
        return "the head size must be a multiple of 8 and at most 128";
    if (a->causal && mz_cuda_causal_refusal(a) != NULL)
        return mz_cuda_causal_refusal(a);
    if (!a->causal && a->limited)
        return mz_cuda_limits_refusal(a);
    if (a->cc < 75 || (a->cc < 80 && a->dtype == MEZZO_BF16))
        return a->cc < 75 ? "needs compute capability 7.5" : "BF16 needs compute capability 8.0";
    return NULL;
}

ATTENTION_KERNEL(mma, "attention_16bit__mma", mma_refusal, NULL, mz_cu_attention_mma, NULL)
ATTENTION_KERNEL(mma_bwd, "attention_bwd_16bit__mma", mma_refusal, delta_bytes, mz_cu_attention_mma_dq,
                 mz_cu_attention_mma_dkv)

// --- Hopper's warpgroup instructions -------------------------------------------------------------------------------
static size_t wgmma_bytes(const mz_cu_attention *a) {
    const size_t sums = (size_t)a->batch * (size_t)a->length * (size_t)a->kv_heads * (size_t)a->width;
    const int parts = wgmma_parts(a);
    return wgmma_row_bytes(a) + (parts > 1 ? 2 * (size_t)parts * sums * sizeof(float) : 0);
}

static const char *wgmma_refusal(const mz_cuda_device *cuda, const mz_cu_attention *a) {
    const char *refusal = mma_refusal(cuda, a);
    if (refusal == NULL && a->cc != 90)
        return "is for compute capability 9.0";
    if (refusal == NULL)
        refusal = mz_cuda_causal_refusal(a);
    if (refusal == NULL)
        refusal = mz_cuda_limits_refusal(a);
    return refusal == NULL && a->p > 0 ? "has no dropout" : refusal;
}

// Takes what these kernels are the fastest for: heads of 40 to 64 (docs/dev/ATTENTION.md). They multiply other heads as
// if they had 64 or 128 elements, which pays only for long sequences.
static const char *wgmma_slow(const mz_cuda_device *cuda, const mz_cu_attention *a) {
    const char *refusal = wgmma_refusal(cuda, a);
    if (refusal != NULL)
        return refusal;
    if (a->width > 64 && cuda->wide_by_mma)
        return "MEZZO_CUDA_WIDE_HEADS is mma";
    return (a->width <= 32 || a->width > 64) && a->length < 256
               ? "another kernel is faster for narrow or wide heads and few positions"
               : NULL;
}

ATTENTION_KERNEL(wgmma_bwd, "attention_bwd_16bit__wgmma", wgmma_slow, wgmma_bytes, mz_cu_attention_wgmma_dq,
                 mz_cu_attention_wgmma_dkv)
ATTENTION_KERNEL(wgmma_any_bwd, "attention_bwd_16bit__wgmma_any", wgmma_refusal, wgmma_bytes, mz_cu_attention_wgmma_dq,
                 mz_cu_attention_wgmma_dkv)

// --- FP32 storage on tensor cores ----------------------------------------------------------------------------------
static const char *tf32_refusal(const mz_cuda_device *cuda, const mz_cu_attention *a) {
    if (a->dtype != MEZZO_F32 || (a->compute != MEZZO_F32 && a->compute != MEZZO_TF32))
        return "storage must be FP32 and compute FP32 or TF32";
    if (mz_cuda_causal_refusal(a) != NULL)
        return mz_cuda_causal_refusal(a);
    if (a->compute == MEZZO_F32 && cuda->fp32_by_fma)
        return "MEZZO_CUDA_FP32 is fma";
    if (a->width % 4 != 0 || a->width > 128)
        return "the head size must be a multiple of 4 and at most 128";
    return a->cc < 80 ? "TF32 and BF16 parts need compute capability 8.0" : NULL;
}

ATTENTION_KERNEL(tf32, "attention_f32__mma", tf32_refusal, NULL, mz_cu_attention_tf32, NULL)
ATTENTION_KERNEL(tf32_bwd, "attention_bwd_f32__mma", tf32_refusal, delta_bytes, mz_cu_attention_tf32_bwd, NULL)

// --- FP32 arithmetic -----------------------------------------------------------------------------------------------
static const char *fma_refusal(const mz_cuda_device *cuda, const mz_cu_attention *a) {
    (void)cuda;
    if (a->compute != MEZZO_F32 && a->compute != MEZZO_TF32 && a->compute != a->dtype)
        return "compute must be FP32, TF32, or what storage is";
    if (a->width > 256 || (a->cc < 80 && a->width > 128))
        return a->cc < 80 ? "the head size must be at most 128 on compute capability 7.5"
                          : "the head size must be at most 256";
    return NULL;
}

ATTENTION_KERNEL(fma, "attention_float__fma", fma_refusal, NULL, mz_cu_attention_fma, NULL)
ATTENTION_KERNEL(fma_bwd, "attention_bwd_float__fma", fma_refusal, delta_bytes, mz_cu_attention_fma_bwd, NULL)
