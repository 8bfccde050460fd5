// Runs the update ops: the host side.
#include <stddef.h>

#include "backend/cuda/kernels/update_fp8.h"
#include "backend/cuda/storage.h"
#include "backend/update.h"
#include "mezzo/optimizer.h"
#include "backend/inspect.h"

#define SAME(ours, theirs, member)                                                                                     \
    _Static_assert(offsetof(ours, member) == offsetof(theirs, member) && sizeof(ours) == sizeof(theirs), #theirs)
SAME(mz_segment, mz_cu_segment, offset);
SAME(mz_segment, mz_cu_segment, grad_shift);
SAME(mz_segment, mz_cu_segment, master_shift);
_Static_assert(MZ_NO_LOW_COPY == MZ_CU_NO_LOW_COPY, "no low copy");
SAME(mz_segment, mz_cu_segment, first);
SAME(mz_segment, mz_cu_segment, count);
SAME(mz_segment, mz_cu_segment, state_offset);
SAME(mz_segment, mz_cu_segment, low_copy_offset);
SAME(mz_segment, mz_cu_segment, low_copy_dtype);
SAME(mz_segment, mz_cu_segment, decay);
SAME(mz_segment, mz_cu_segment, low_offset);
SAME(mz_segment, mz_cu_segment, master);
SAME(mz_segment, mz_cu_segment, key);
SAME(mz_segment, mz_cu_segment, layout);
SAME(mz_quantized_segment, mz_cu_quantized_segment, segment);
SAME(mz_quantized_segment, mz_cu_quantized_segment, rows);
SAME(mz_quantized_segment, mz_cu_quantized_segment, columns);
SAME(mz_quantized_segment, mz_cu_quantized_segment, rowwise);
SAME(mz_quantized_segment, mz_cu_quantized_segment, columnwise);
SAME(mz_quantized_segment, mz_cu_quantized_segment, entry);
SAME(mz_quantized_segment, mz_cu_quantized_segment, dtype);
_Static_assert(MZ_CU_ENTRY_WEIGHT_AMAX * sizeof(float) == offsetof(mz_scale_entry, weight_amax),
               "where an entry has kept");
SAME(mz_layout, mz_cu_layout, width);
SAME(mz_layout, mz_cu_layout, pitch);
SAME(mz_layout, mz_cu_layout, group);
SAME(mz_layout, mz_cu_layout, group_pitch);
SAME(mz_opt_state, mz_cu_opt_state, step);
SAME(mz_opt_state, mz_cu_opt_state, skipped);
SAME(mz_opt_state, mz_cu_opt_state, norm);
SAME(mz_opt_state, mz_cu_opt_state, clip);
SAME(mz_opt_state, mz_cu_opt_state, lr);
SAME(mz_opt_state, mz_cu_opt_state, bias);
SAME(mz_opt_state, mz_cu_opt_state, last_clip);
SAME(mz_opt_state, mz_cu_opt_state, found_inf);
SAME(mz_opt_state, mz_cu_opt_state, skip);
SAME(mz_opt_state, mz_cu_opt_state, last_found_inf);
SAME(mz_opt_state, mz_cu_opt_state, guard);
SAME(mz_opt_state, mz_cu_opt_state, bad);
SAME(mz_opt_state, mz_cu_opt_state, halted);
SAME(mz_opt_state, mz_cu_opt_state, scale);
SAME(mz_inspection, mz_cu_inspection, inspected);
SAME(mz_inspection, mz_cu_inspection, nans);
SAME(mz_inspection, mz_cu_inspection, infs);
SAME(mz_inspection, mz_cu_inspection, large);
SAME(mz_inspection, mz_cu_inspection, zeros);
SAME(mz_inspection, mz_cu_inspection, tiny);
SAME(mz_inspection, mz_cu_inspection, low);
SAME(mz_inspection, mz_cu_inspection, high);
SAME(mz_scaler_block, mz_cu_scaler_block, scale);
SAME(mz_scaler_block, mz_cu_scaler_block, tracker);
SAME(mz_scaler_block, mz_cu_scaler_block, hysteresis);
SAME(mz_scaler_block, mz_cu_scaler_block, floor_hits);
SAME(mz_scaler_block, mz_cu_scaler_block, skipped);
_Static_assert((int)MZ_CU_LR_CONSTANT == (int)MEZZO_LR_CONSTANT && (int)MZ_CU_LR_LINEAR == (int)MEZZO_LR_LINEAR &&
                   (int)MZ_CU_LR_COSINE == (int)MEZZO_LR_COSINE && (int)MZ_CU_LR_POLYNOMIAL == (int)MEZZO_LR_POLYNOMIAL,
               "launch.h's schedules are mezzo_schedule's");
_Static_assert((int)MZ_CU_MASTER_FP32 == (int)MEZZO_MASTER_FP32 && (int)MZ_CU_MASTER_SPLIT == (int)MEZZO_MASTER_SPLIT &&
                   (int)MZ_CU_MASTER_STOCHASTIC == (int)MEZZO_MASTER_STOCHASTIC,
               "launch.h's masters are mezzo_master's");
_Static_assert((int)MZ_CU_GUARD_ON == (int)MZ_GUARD_ON && (int)MZ_CU_GUARD_GRADIENTS == (int)MZ_GUARD_GRADIENTS &&
                   (int)MZ_CU_BAD_GRADIENTS == (int)MZ_BAD_GRADIENTS && (int)MZ_CU_INSPECTED >= (int)MZ_MAX_IN,
               "launch.h's guard is update.h's");
_Static_assert((int)MZ_CU_STATES >= (int)MZ_MAX_OUT, "room for every state");

static void *data_of(const mz_tensor *t) {
    return mz_present(t) ? t->data : NULL;
}

static int segments_in(const mz_tensor *t) {
    return (int)((size_t)mz_shape_count(&t->shape) / sizeof(mz_segment));
}

// --- grad_stats ----------------------------------------------------------------------------------------------------
static const char *grad_stats_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device;
    // The number of chunks, and their sums: at most one chunk more a segment than the buffer has whole ones.
    size_t chunks = (size_t)mz_shape_count(&call->out[0].shape) / 4096 + (size_t)segments_in(&call->in[0]);
    out->workspace = sizeof(double) * (chunks + 1);
    return mz_cuda_storages(call, "uf", "fuu");
}

static mezzo_status run_grad_stats(mezzo_device *device, const mz_call *call) {
    const mz_cuda_device *cuda = mz_cuda(device);
    const mz_tensor *segments = &call->in[0], *grad = &call->out[0];
    bool keeps = call->attrs.update != NULL && call->attrs.update->keeps_scale;
    MZ_CUDA_TRY(mz_cu_grad_stats(cuda->stream, segments->data, segments_in(segments), data_of(&call->in[1]), keeps,
                                 grad->data, mz_shape_count(&grad->shape), call->out[1].data, data_of(&call->out[2]),
                                 call->workspace, cuda->sms, segments->storage.padded));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_grad_stats = {"grad_stats__cuda", grad_stats_prepare, run_grad_stats};

static const char *norm_across_ranks_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "uu", "u");
}

static mezzo_status run_norm_across_ranks(mezzo_device *device, const mz_call *call) {
    const mz_tensor *pieces = &call->in[0], *states = &call->in[1];
    int ranks = mz_present(states) ? (int)((size_t)mz_shape_count(&states->shape) / sizeof(mz_opt_state)) : 0;
    MZ_CUDA_TRY(mz_cu_norm_across_ranks(mz_cuda(device)->stream, pieces->data,
                                        mz_shape_count(&pieces->shape) / (int64_t)sizeof(double), data_of(states),
                                        ranks, call->out[0].data));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_norm_across_ranks = {"norm_across_ranks__cuda", norm_across_ranks_prepare,
                                             run_norm_across_ranks};

// --- inspect -------------------------------------------------------------------------------------------------------
static const char *inspect_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const char *reason = mz_cuda_storages(call, "a", "u");
    for (int i = 0; reason == NULL && i < call->n_in; i++)
        reason = mz_cuda_has_layout(&call->in[i]);
    return reason;
}

static mezzo_status run_inspect(mezzo_device *device, const mz_call *call) {
    mz_cu_inspect_args args = {.n = call->n_in,
                               .bad_first = call->attrs.bad_first,
                               .bad_rest = call->attrs.bad_rest,
                               .sample = call->attrs.sample,
                               .limit = call->attrs.limit,
                               .rng = call->rng,
                               .found = call->out[0].data,
                               .state = data_of(&call->out[1])};
    for (int i = 0; i < call->n_in; i++) {
        args.x[i] = mz_cuda_array(&call->in[i]);
        args.layout[i] = mz_cuda_layout(&call->in[i]);
        args.count[i] = mz_shape_count(&call->in[i].shape);
    }
    MZ_CUDA_TRY(mz_cu_inspect(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_inspect = {"inspect__cuda", inspect_prepare, run_inspect};

// --- optimizers ----------------------------------------------------------------------------------------------------
// All kinds have the same slots.
enum {
    M = MZ_OUT(adamw, m),
    LOW_COPY = MZ_OUT(adamw, low_copy),
    EMA = MZ_OUT(adamw, ema),
    QUANTIZED = MZ_IN(adamw, quantized)
};

static const char *kind_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const mezzo_dtype moments = mz_present(&call->out[M]) ? call->out[M].dtype : MEZZO_F32;
    if (mz_present(&call->out[M + 1]) && moments != call->out[M + 1].dtype)
        return "its moments are not stored alike";
    // Moments of 8 bits are in blocks of a row of elements, quantized weights in tiles of a matrix.
    if (moments == MEZZO_U8 && call->n_in > MZ_IN(adamw, quantized) && mz_present(&call->in[MZ_IN(adamw, quantized)]))
        return "it does not write quantized weights beside moments of 8 bits";
    return mz_cuda_storages(call, "fuu", moments == MEZZO_BF16 ? "mbbuf" : moments == MEZZO_U8 ? "muuuf" : "mffuf");
}

typedef cudaError_t update_fn(cudaStream_t stream, const mz_cu_update_args *args);
typedef cudaError_t quantized_fn(cudaStream_t stream, const mz_cu_update_args *args, const mz_cu_quantized *fp8);

static mezzo_status run_kind(mezzo_device *device, const mz_call *call, update_fn *update, quantized_fn *write_fp8) {
    const mz_update_attrs *u = call->attrs.update;
    const cudaStream_t stream = mz_cuda(device)->stream;
    const mz_cu_update_args args = {.segments = call->in[1].data,
                                    .state = call->in[2].data,
                                    .grad = call->in[0].data,
                                    .master = call->out[0].data,
                                    .moment = {data_of(&call->out[M]), data_of(&call->out[M + 1])},
                                    .moment_bytes = (int)mezzo_dtype_size(call->out[M].dtype),
                                    .low_copy = data_of(&call->out[LOW_COPY]),
                                    .ema = data_of(&call->out[EMA]),
                                    .elements = u->elements > 0 ? u->elements : mz_shape_count(&call->in[0].shape),
                                    .overlaps = u->overlaps,
                                    .padded = call->in[1].storage.padded,
                                    .n = segments_in(&call->in[1]),
                                    .sms = mz_cuda(device)->sms,
                                    .rule = u->rule};
    const mz_tensor *quantized = call->n_in > QUANTIZED ? &call->in[QUANTIZED] : NULL;
    if (args.n > 0)
        MZ_CUDA_TRY(update(stream, &args));
    if (quantized == NULL || !mz_present(quantized))
        return MEZZO_OK;
    const mz_cu_quantized fp8 = {.quantized = quantized->data,
                                 .n = (int)((size_t)mz_shape_count(&quantized->shape) / sizeof(mz_quantized_segment)),
                                 .elements = mz_shape_count(&call->in[0].shape)};
    MZ_CUDA_TRY(write_fp8(stream, &args, &fp8));
    return MEZZO_OK;
}

#define KIND(name, ...)                                                                                                \
    static mezzo_status run_##name(mezzo_device *device, const mz_call *call) {                                        \
        return run_kind(device, call, mz_cu_##name, mz_cu_##name##_codes);                                             \
    }                                                                                                                  \
    const mz_kernel mz_cuda_##name = {#name "__cuda", kind_prepare, run_##name};
#include "mezzo/optimizers.def"
#undef KIND

static const char *refresh_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "mu", "u");
}

static mezzo_status run_refresh(mezzo_device *device, const mz_call *call) {
    const mz_cuda_device *cuda = mz_cuda(device);
    MZ_CUDA_TRY(mz_cu_refresh(cuda->stream, call->in[1].data, segments_in(&call->in[1]), call->in[0].data,
                              mz_shape_count(&call->out[0].shape) / 2, call->out[0].data, cuda->sms,
                              call->in[1].storage.padded));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_refresh = {"refresh__cuda", refresh_prepare, run_refresh};

static const char *histogram_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const char *reason = mz_cuda_storages(call, "a", "u");
    return reason != NULL ? reason : mz_cuda_has_layout(&call->in[0]);
}

static mezzo_status run_histogram(mezzo_device *device, const mz_call *call) {
    const mz_cuda_device *cuda = mz_cuda(device);
    MZ_CUDA_TRY(mz_cu_histogram(cuda->stream, mz_cuda_array(&call->in[0]), mz_cuda_layout(&call->in[0]),
                                mz_shape_count(&call->in[0].shape), call->out[0].data, cuda->sms));
    return MEZZO_OK;
}
_Static_assert((int)MZ_CU_HISTOGRAM_BUCKETS == (int)MZ_HISTOGRAM_BUCKETS, "launch.h's buckets are backend.h's");
const mz_kernel mz_cuda_histogram = {"histogram__cuda", histogram_prepare, run_histogram};

// --- control -------------------------------------------------------------------------------------------------------
static const char *control_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "u", "u");
}

static mezzo_status run_clip_control(mezzo_device *device, const mz_call *call) {
    MZ_CUDA_TRY(mz_cu_clip_control(mz_cuda(device)->stream, call->out[0].data, call->attrs.update->max_norm));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_clip_control = {"clip_control__cuda", control_prepare, run_clip_control};

static mezzo_status run_step_control(mezzo_device *device, const mz_call *call) {
    const mz_update_attrs *u = call->attrs.update;
    mz_cu_schedule schedule = {.kind = u->schedule,
                               .lr = u->lr,
                               .min_lr = u->min_lr,
                               .power = u->power,
                               .warmup = u->warmup,
                               .steps = u->steps};
    mz_cu_betas betas = {.groups = u->n_groups};
    memcpy(betas.beta, u->betas, sizeof betas.beta);
    MZ_CUDA_TRY(mz_cu_step_control(mz_cuda(device)->stream, call->out[0].data, &schedule, &betas));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_step_control = {"step_control__cuda", control_prepare, run_step_control};

static mezzo_status run_scaler_update(mezzo_device *device, const mz_call *call) {
    const mz_update_attrs *u = call->attrs.update;
    mz_cu_states states = {.n = call->n_out};
    for (int i = 0; i < call->n_out; i++)
        states.state[i] = call->out[i].data;
    mz_cu_scaler_constants constants = {.enabled = u->enabled,
                                        .growth_factor = u->growth_factor,
                                        .backoff_factor = u->backoff_factor,
                                        .min_scale = u->min_scale,
                                        .max_scale = u->max_scale,
                                        .growth_interval = u->growth_interval,
                                        .hysteresis = u->hysteresis};
    MZ_CUDA_TRY(mz_cu_scaler_update(mz_cuda(device)->stream, data_of(&call->in[0]), &states, &constants));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_scaler_update = {"scaler_update__cuda", control_prepare, run_scaler_update};
