// Products of formats that this GPU or cuBLASLt does not multiply: of 8-bit
// operands of any shape, and of operands that are rounded to blocks (attrs.blocks). Their operands are brought to a
// format that holds them exactly, BF16 and FP32, and that one's kernel runs (as cpu/emulate_fp8.c does).
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/emulate_fp8.h"
#include "backend/scales.h"

enum { ALIGN = 256 };

// --- products ------------------------------------------------------------------------------------------------------
static bool is_8bit(const mz_tensor *t) {
    return t->dtype == MEZZO_F8E4M3 || t->dtype == MEZZO_F8E5M2;
}

enum { SCALINGS = MZ_BIT(MZ_SCALING_TENSOR) | MZ_BIT(MZ_SCALING_BLOCK128) | MZ_BIT(MZ_SCALING_TILE128), SHIFT = 7 };
_Static_assert(1 << SHIFT == MZ_SCALE_BLOCK, "a shift finds the block");

// mz_scale_index for kernels.
static mz_cu_scales scales_of(const mz_tensor *t) {
    const int64_t cols = t->shape.dim[t->shape.rank - 1], rows = mz_shape_rows(&t->shape);
    mz_cu_scales s = {.data = t->scale};
    if (t->scaling == MZ_SCALING_TILE128)
        s = (mz_cu_scales){t->scale, mz_scale_pitch(cols) >> SHIFT, 1, SHIFT, SHIFT};
    else if (t->scaling == MZ_SCALING_BLOCK128)
        s = t->columnwise ? (mz_cu_scales){t->scale, mz_scale_pitch(cols), 1, SHIFT, 0}
                          : (mz_cu_scales){t->scale, 1, mz_scale_pitch(rows), 0, SHIFT};
    return s;
}

// Returns what holds an operand exactly. An element of MX has at most 4 significant bits and its scale is a power of
// two; an element of NVFP4 has an FP32 scale, and turning leaves FP32 numbers, which are rounded in place.
static mezzo_dtype plain_dtype(const mz_call *call, int slot) {
    if (is_8bit(&call->in[slot]))
        return MEZZO_BF16;
    const bool turns = call->op == MZ_OP_linear_dw && call->attrs.hadamard;
    return call->attrs.blocks == MEZZO_BLOCKS_NVFP4 || turns ? MEZZO_F32 : MEZZO_BF16;
}

static size_t plain_bytes(const mz_call *call, int slot) {
    return mz_align_up((size_t)mz_shape_count(&call->in[slot].shape) * mezzo_dtype_size(plain_dtype(call, slot)),
                       ALIGN);
}

// The call on operands as they become, which lie in the workspace.
static mz_call plain_call(const mz_call *call) {
    mz_call part = *call;
    char *at = call->workspace;
    for (int i = 0; i < 2; i++) {
        mz_tensor *t = &part.in[i];
        t->dtype = plain_dtype(call, i);
        t->scaling = MZ_SCALING_NONE;
        t->scale = NULL;
        t->columnwise = false;
        t->data = at;
        at = at != NULL ? at + plain_bytes(call, i) : NULL;
    }
    part.numerics.compute = part.in[0].dtype;
    part.attrs.blocks = MEZZO_BLOCKS_NONE;
    part.workspace = at != NULL ? at + ALIGN : NULL; // after the largest magnitude
    part.state = NULL;
    return part;
}

static void release(void *state) {
    mz_prepared_free(state);
    mz_free(state);
}

// Returns whether the device has units and this build kernels for 8-bit operands scaled so.
static bool multiplies(const mz_cuda_device *cuda, const mz_call *call) {
    const bool grouped =
        call->op == MZ_OP_grouped_linear || call->op == MZ_OP_grouped_linear_dx || call->op == MZ_OP_grouped_linear_dw;
    return call->in[0].scaling == MZ_SCALING_TENSOR && !grouped ? cuda->cc >= 89 : cuda->cc == 90;
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    bool emulated_operands = is_8bit(&call->in[0]) && is_8bit(&call->in[1]);
    if (!emulated_operands && call->attrs.blocks == MEZZO_BLOCKS_NONE)
        return "serves 8-bit operands, and operands rounded to blocks";
    for (int i = 0; i < 2; i++)
        if (emulated_operands ? (SCALINGS & MZ_BIT(call->in[i].scaling)) == 0 : !mz_cuda_float(&call->in[i]))
            return "8-bit operands have scales, others are fp32, bf16 or fp16";
    if (emulated_operands && multiplies(mz_cuda(device), call))
        return "this device multiplies 8 bits: the storage pass and autocast see to rows that its kernels take";
    mz_prepared *inner = mz_alloc(1, sizeof *inner);
    if (inner == NULL)
        return mz_out_of_memory;
    mz_call part = plain_call(call);
    part.in[0].data = part.in[1].data = part.workspace = NULL;
    mezzo_status status = mz_prepare(device, &part, inner);
    out->state = inner;
    out->release = release;
    out->workspace = plain_bytes(call, 0) + plain_bytes(call, 1) + ALIGN + inner->workspace;
    if (status == MEZZO_ERR_MEMORY)
        return mz_out_of_memory;
    return status == MEZZO_OK ? NULL : "no kernel takes the operands as bf16 or fp32";
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    const mz_prepared *inner = call->state;
    mz_call part = plain_call(call);
    uint32_t *amax = (uint32_t *)(void *)((char *)part.workspace - ALIGN);
    mz_cu_at_random random[2] = {{0}, {0}};
    if (call->op != MZ_OP_linear && call->attrs.random_gradients)
        random[0] = (mz_cu_at_random){
            .rng = call->rng,
            .stream = call->attrs.rng | (uint32_t)(call->op == MZ_OP_linear_dw ? MZ_STREAM_DW : MZ_STREAM_DX),
            .first = call->attrs.first_row * call->in[0].shape.dim[call->in[0].shape.rank - 1]};
    for (int i = 0; i < 2; i++) {
        const mz_tensor *from = &call->in[i];
        const int64_t n = mz_shape_count(&from->shape), cols = from->shape.dim[from->shape.rank - 1];
        const bool down = call->op == MZ_OP_linear_dw || (call->op == MZ_OP_linear_dx && i == 1);
        if (is_8bit(from)) {
            MZ_CUDA_TRY(mz_cu_widen(cuda->stream, mz_cuda_array(from), scales_of(from), part.in[i].data, n / cols, cols,
                                    from->columnwise));
            continue;
        }
        mz_cu_array x = mz_cuda_array(from);
        int via = (int)call->numerics.compute;
        if (call->op == MZ_OP_linear_dw && call->attrs.hadamard) {
            MZ_CUDA_TRY(
                mz_cu_turn(cuda->stream, x, part.in[i].data, n / cols, cols, (int)call->attrs.blocks, via, call->rng));
            x = (mz_cu_array){part.in[i].data, MEZZO_F32};
            via = (int)MEZZO_F32;
        }
        MZ_CUDA_TRY(mz_cu_amax(cuda->stream, x, n, amax));
        const int blocks = (int)call->attrs.blocks;
        if (part.in[i].dtype == MEZZO_BF16)
            MZ_CUDA_TRY(mz_cu_blocks_bf16(cuda->stream, x, part.in[i].data, n / cols, cols, down, blocks, via, amax,
                                          &random[i]));
        else
            MZ_CUDA_TRY(
                mz_cu_blocks(cuda->stream, x, part.in[i].data, n / cols, cols, down, blocks, via, amax, &random[i]));
    }
    part.state = inner->state;
    return inner->kernel->run(device, &part);
}

const mz_kernel mz_cuda_linear_emulated = {"linear_emulated__cuda", prepare, run};
const mz_kernel mz_cuda_linear_dx_emulated = {"linear_dx_emulated__cuda", prepare, run};
const mz_kernel mz_cuda_linear_dw_emulated = {"linear_dw_emulated__cuda", prepare, run};

// The experts' rows are 8 bits with a scale for all of them, or plain.
static const char *prepare_grouped(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    if (call->attrs.blocks != MEZZO_BLOCKS_NONE || call->in[0].scaling != MZ_SCALING_TENSOR ||
        call->in[1].scaling != MZ_SCALING_TENSOR)
        return "serves 8-bit operands that have one scale each";
    return prepare(device, call, out);
}

const mz_kernel mz_cuda_grouped_linear_emulated = {"grouped_linear_emulated__cuda", prepare_grouped, run};
const mz_kernel mz_cuda_grouped_linear_dx_emulated = {"grouped_linear_dx_emulated__cuda", prepare_grouped, run};
const mz_kernel mz_cuda_grouped_linear_dw_emulated = {"grouped_linear_dw_emulated__cuda", prepare_grouped, run};

mz_takes mz_cuda_takes(const mz_kernel *kernel) {
    extern const mz_kernel mz_cuda_quantize, mz_cuda_linear_fp8, mz_cuda_linear_dx_fp8, mz_cuda_linear_dw_fp8;
    extern const mz_kernel mz_cuda_linear_block, mz_cuda_linear_dx_block, mz_cuda_linear_dw_block;
    extern const mz_kernel mz_cuda_linear_dx_product;
#define KIND(name, ...) extern const mz_kernel mz_cuda_##name;
#include "mezzo/optimizers.def"
#undef KIND
    extern const mz_kernel mz_cuda_grouped_linear_fp8, mz_cuda_grouped_linear_dx_fp8, mz_cuda_grouped_linear_dw_fp8;
    const mz_kernel *const eight[] = {&mz_cuda_linear_emulated,
                                      &mz_cuda_linear_dx_emulated,
                                      &mz_cuda_linear_dw_emulated,
                                      &mz_cuda_linear_fp8,
                                      &mz_cuda_linear_dx_fp8,
                                      &mz_cuda_linear_dw_fp8,
                                      &mz_cuda_linear_block,
                                      &mz_cuda_linear_dx_block,
                                      &mz_cuda_linear_dw_block,
                                      &mz_cuda_grouped_linear_emulated,
                                      &mz_cuda_grouped_linear_dx_emulated,
                                      &mz_cuda_grouped_linear_dw_emulated,
                                      &mz_cuda_grouped_linear_fp8,
                                      &mz_cuda_grouped_linear_dx_fp8,
                                      &mz_cuda_grouped_linear_dw_fp8,
                                      &mz_cuda_quantize};
    for (size_t i = 0; i < MZ_COUNT(eight); i++)
        if (kernel == eight[i])
            return (mz_takes){MZ_DTYPES_USUAL | MZ_BIT(MEZZO_F8E4M3) | MZ_BIT(MEZZO_F8E5M2),
                              MZ_SCALINGS_NONE | SCALINGS, .blocks = i < 3};
#define KIND(name, ...) || kernel == &mz_cuda_##name
    const bool extras = kernel == &mz_cuda_linear_dx_product
#include "mezzo/optimizers.def"
#undef KIND
        ;
    return (mz_takes){MZ_DTYPES_USUAL, MZ_SCALINGS_NONE, .extras = extras};
}
