// Runs linear, matmul, linear_dx and linear_dw, and conv2d and its gradients, as products of the driver, and lists a
// device's kernels.
#include "backend/cpu/conv.h"
#include "backend/cpu/conv_direct.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/matmul.h"

// --- from a call to a product --------------------------------------------------------------------------------------
// Describes the elements (i, k) of a row-major matrix with `columns` columns: i counts rows, or, transposed, columns.
static mz_matmul_operand operand(const mz_tensor *t, mezzo_dtype compute, int64_t columns, bool transposed) {
    return (mz_matmul_operand){.data = t->data,
                               .dtype = t->dtype,
                               .compute = compute,
                               .i_stride = transposed ? 1 : columns,
                               .k_stride = transposed ? columns : 1};
}

// Returns a tensor's address, or a placeholder while memory is planned, when no tensor has an address and the workspace
// depends on which are present.
static void *address_of(const mz_tensor *t) {
    static char later;
    return t->data != NULL ? t->data : &later;
}

static mz_matmul_problem linear_problem(const mz_call *call) {
    const mz_tensor *x = mz_in(call, linear, x), *w = mz_in(call, linear, w), *y = mz_out(call, linear, y);
    int64_t n = w->shape.dim[0], k = w->shape.dim[1];
    mz_matmul_problem p = {.m = mz_shape_rows(&y->shape), .n = n, .k = k, .batches = 1};
    p.a = operand(x, call->numerics.compute, k, false); // [M, K]
    p.b = operand(w, call->numerics.compute, k, false); // [N, K]
    p.out = (mz_matmul_epilogue){
        .y = y->data, .y_dtype = y->dtype, .via = call->attrs.via, .ld = n, .act = call->attrs.act};
    if (mz_present(mz_in(call, linear, bias))) {
        p.out.bias = address_of(mz_in(call, linear, bias)); // [N]
        p.out.bias_dtype = mz_in(call, linear, bias)->dtype;
    }
    if (mz_present(mz_in(call, linear, residual))) {
        p.out.residual = address_of(mz_in(call, linear, residual)); // [M, N]
        p.out.residual_dtype = mz_in(call, linear, residual)->dtype;
    }
    if (mz_present(mz_out(call, linear, preact))) {
        p.out.preact = address_of(mz_out(call, linear, preact)); // [M, N]
        p.out.preact_dtype = mz_out(call, linear, preact)->dtype;
    }
    return p;
}

static mz_matmul_problem linear_dx_problem(const mz_call *call) {
    const mz_tensor *dy = mz_in(call, linear_dx, dy), *w = mz_in(call, linear_dx, w), *dx = mz_out(call, linear_dx, dx);
    int64_t k = w->shape.dim[0], n = w->shape.dim[1]; // w [K, N]: dx's columns are w's
    mz_matmul_problem p = {.m = mz_shape_rows(&dx->shape), .n = n, .k = k, .batches = 1};
    p.a = operand(dy, call->numerics.compute, k, false); // [M, K]
    p.b = operand(w, call->numerics.compute, n, true);   // [K, N]
    p.out = (mz_matmul_epilogue){.y = dx->data, .y_dtype = dx->dtype, .via = MEZZO_F32, .ld = n, .act_gradient = true};
    if (mz_present(mz_in(call, linear_dx, preact))) {
        p.out.act = call->attrs.act;
        p.out.preact = address_of(mz_in(call, linear_dx, preact)); // [M, N]
        p.out.preact_dtype = mz_in(call, linear_dx, preact)->dtype;
    }
    return p;
}

static mz_matmul_problem linear_dw_problem(const mz_call *call) {
    const mz_tensor *dy = mz_in(call, linear_dw, dy), *x = mz_in(call, linear_dw, x), *dw = mz_out(call, linear_dw, dw);
    int64_t m = dw->shape.dim[0], n = dw->shape.dim[1];
    mz_matmul_problem p = {.m = m, .n = n, .k = mz_shape_rows(&x->shape), .batches = 1};
    p.a = operand(dy, call->numerics.compute, m, true); // [K, M]
    p.b = operand(x, call->numerics.compute, n, true);  // [K, N]
    p.out = (mz_matmul_epilogue){.y = dw->data, .y_dtype = dw->dtype, .via = MEZZO_F32, .ld = n};
    p.accumulate = call->attrs.accumulate;
    return p;
}

static mz_matmul_problem matmul_problem(const mz_call *call) {
    const mz_tensor *a = mz_in(call, matmul, a), *b = mz_in(call, matmul, b), *y = mz_out(call, matmul, y);
    bool ta = call->attrs.transpose_a, tb = call->attrs.transpose_b;
    int rank = y->shape.rank;
    int64_t m = y->shape.dim[rank - 2], n = y->shape.dim[rank - 1], k = a->shape.dim[rank - (ta ? 2 : 1)];
    mz_matmul_problem p = {.m = m, .n = n, .k = k, .batches = mz_shape_rows(&y->shape) / m};
    p.a = operand(a, call->numerics.compute, ta ? m : k, ta);
    p.b = operand(b, call->numerics.compute, tb ? k : n, !tb);
    p.a_step = m * k;
    p.b_step = k * n;
    p.y_step = m * n;
    p.out = (mz_matmul_epilogue){.y = y->data, .y_dtype = y->dtype, .via = MEZZO_F32, .ld = n};
    if (mz_present(mz_in(call, matmul, added))) {
        p.out.residual = address_of(mz_in(call, matmul, added)); // [batch, M, N]
        p.out.residual_dtype = mz_in(call, matmul, added)->dtype;
        p.out.factors = call->attrs.coefficients;
    }
    return p;
}

static mz_matmul_problem problem_of(const mz_call *call) {
    switch (call->op) {
    case MZ_OP_linear:
        return linear_problem(call);
    case MZ_OP_linear_dx:
        return linear_dx_problem(call);
    case MZ_OP_linear_dw:
        return linear_dw_problem(call);
    default:
        return matmul_problem(call);
    }
}

// Returns the threads for a product: one where the work costs less than waking the others. Rate: about 32 multiply-adds
// a nanosecond.
static int threads_for(const mezzo_device *device, const mz_matmul_problem *p) {
    return mz_cpu_threads(device, (double)p->m * (double)p->n * (double)p->k * (double)p->batches / 32);
}

// --- shared by all paths -------------------------------------------------------------------------------------------
static const char *refuse_formats(const mz_call *call) {
    if (call->numerics.accumulate != MEZZO_F32)
        return "sums are fp32 here";
    if (call->op == MZ_OP_linear_dw || call->op == MZ_OP_conv2d_dw) {
        if (call->attrs.accumulate && call->out[0].dtype != MEZZO_F32)
            return "only an fp32 gradient can be added to";
        if (mz_present(&call->out[1]) && call->out[1].dtype != MEZZO_F32)
            return "the bias gradient must be fp32";
    }
    const mz_tensor *dbias = mz_out(call, linear_dx, dbias);
    if (call->op == MZ_OP_linear_dx && mz_present(dbias) && dbias->dtype != MEZZO_F32)
        return "the columns' sums must be fp32";
    return NULL;
}

// Refuses other compute formats than FP32 and TF32. Under TF32, operands with more bits are multiplied unrounded, which
// is more exact than asked.
static const char *refuse_f32(const mz_call *call) {
    const mezzo_dtype compute = call->numerics.compute;
    const char *reason = refuse_formats(call);
    if (reason == NULL && compute != MEZZO_F32 && compute != MEZZO_BF16 && compute != MEZZO_F16 &&
        compute != MEZZO_TF32)
        reason = "computes in fp32, on fp32, bf16 or fp16 values";
    return reason;
}

#define REFUSE_OTHERS(name, dtype, multiplies)                                                                         \
    static const char *refuse_##name(const mz_call *call) {                                                            \
        const char *reason = refuse_formats(call);                                                                     \
        return reason != NULL || call->numerics.compute == MEZZO_##dtype ? reason : multiplies;                        \
    }
#if defined(__x86_64__) || defined(__aarch64__)
REFUSE_OTHERS(bf16, BF16, "multiplies bf16 values only")
#endif
#if defined(__x86_64__)
REFUSE_OTHERS(f16, F16, "multiplies fp16 values only")
REFUSE_OTHERS(tf32, TF32, "multiplies for tf32 only")
#endif

static size_t workspace_for(mz_matmul_path path, const mezzo_device *device, const mz_call *call) {
    mz_matmul_gather gathers[2];
    mz_matmul_problem p = mz_is_conv(call->op) ? mz_conv_problem(call, 0, gathers) : problem_of(call);
    return mz_matmul_workspace(path, &p, threads_for(device, &p));
}

static void make_bias_gradient(mz_matmul_path path, const mezzo_device *device, const mz_call *call) {
    if (call->op != MZ_OP_conv2d_dw || !mz_present(mz_out(call, conv2d_dw, db)))
        return;
    const mz_tensor *dy = mz_in(call, conv2d_dw, dy);
    const int64_t rows = mz_shape_rows(&dy->shape), n = dy->shape.dim[3];
    mz_matmul_column_sums(path, dy->data, dy->dtype, rows, n, mz_out(call, conv2d_dw, db)->data, call->attrs.accumulate,
                          mz_cpu_threads(device, (double)(rows * n) / 8));
}

// Runs one product for each group of channels.
static mezzo_status run_conv(mz_matmul_path path, const mezzo_device *device, const mz_call *call) {
    for (int group = 0; group < call->attrs.groups; group++) {
        mz_matmul_gather gathers[2];
        mz_matmul_problem p = mz_conv_problem(call, group, gathers);
        mz_matmul_run(path, &p, threads_for(device, &p), call->workspace);
    }
    make_bias_gradient(path, device, call);
    return MEZZO_OK;
}

static int threads_for_conv(const mezzo_device *device, const mz_call *call) {
    mz_matmul_gather gathers[2];
    const mz_matmul_problem p = mz_conv_problem(call, 0, gathers);
    return threads_for(device, &p);
}

static mezzo_status run_direct(mz_matmul_path path, const mezzo_device *device, const mz_call *call) {
    mz_conv_direct_run(path, call, threads_for_conv(device, call));
    make_bias_gradient(path, device, call);
    return MEZZO_OK;
}

static mezzo_status run(mz_matmul_path path, const mezzo_device *device, const mz_call *call) {
    if (mz_is_conv(call->op))
        return run_conv(path, device, call);
    mz_matmul_problem p = problem_of(call);
    int threads = threads_for(device, &p);
    mz_matmul_run(path, &p, threads, call->workspace);
    if (call->op == MZ_OP_linear_dw && mz_present(&call->out[1]))
        mz_matmul_column_sums(path, call->in[0].data, call->in[0].dtype, p.k, p.m, call->out[1].data,
                              call->attrs.accumulate, threads);
    if (call->op == MZ_OP_linear_dx && call->n_out > 1 && mz_present(&call->out[1]))
        mz_matmul_column_sums(path, call->out[0].data, call->out[0].dtype, p.m, p.n, call->out[1].data,
                              call->attrs.accumulate, threads);
    return MEZZO_OK;
}

// --- paths ---------------------------------------------------------------------------------------------------------
#define KERNEL(op, path, suffix)                                                                                       \
    { #op suffix, path##_prepare, path##_run }
// Defines a path: a microkernel with the instruction set that packs for it. Its kernels differ only in name.
#define PATH(path, microkernel, isa_of, can, why_not, suffix)                                                          \
    static const mz_matmul_path path##_path = {&microkernel, &isa_of};                                                 \
    static const char *path##_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {                   \
        const char *reason = why_not(device);                                                                          \
        if (reason == NULL)                                                                                            \
            reason = can(call);                                                                                        \
        if (reason == NULL)                                                                                            \
            out->workspace = workspace_for(path##_path, device, call);                                                 \
        return reason;                                                                                                 \
    }                                                                                                                  \
    static mezzo_status path##_run(mezzo_device *device, const mz_call *call) {                                        \
        return run(path##_path, device, call);                                                                         \
    }                                                                                                                  \
    static const mz_kernel path##_kernels[] = {                                                                        \
        KERNEL(linear, path, suffix),    KERNEL(matmul, path, suffix), KERNEL(linear_dx, path, suffix),                \
        KERNEL(linear_dw, path, suffix), KERNEL(conv2d, path, suffix), KERNEL(conv2d_dx, path, suffix),                \
        KERNEL(conv2d_dw, path, suffix),                                                                               \
    };

// Defines direct convolution by a path's arithmetic.
#define DIRECT(path, can, why_not, suffix)                                                                             \
    static const char *path##_direct_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {            \
        const char *reason = why_not(device);                                                                          \
        if (reason == NULL)                                                                                            \
            reason = can(call);                                                                                        \
        if (reason == NULL)                                                                                            \
            reason = mz_conv_direct_refuses(path##_path, call);                                                        \
        if (reason == NULL)                                                                                            \
            out->workspace = mz_conv_direct_workspace(path##_path, call, threads_for_conv(device, call));              \
        return reason;                                                                                                 \
    }                                                                                                                  \
    static mezzo_status path##_direct_run(mezzo_device *device, const mz_call *call) {                                 \
        return run_direct(path##_path, device, call);                                                                  \
    }                                                                                                                  \
    static const mz_kernel path##_direct[] = {{"conv2d_direct" suffix, path##_direct_prepare, path##_direct_run},      \
                                              {"conv2d_dx_direct" suffix, path##_direct_prepare, path##_direct_run},   \
                                              {"conv2d_dw_direct" suffix, path##_direct_prepare, path##_direct_run}};

// Prepares a few rows of a linear layer: the same arithmetic, FP32 on stored values, for every precision.
static const char *prepare_rows(const mz_call *call, mz_prepared *out) {
    const char *reason = refuse_formats(call);
    if (reason != NULL)
        return reason;
    const mezzo_dtype compute = call->numerics.compute, x = call->in[0].dtype, w = call->in[1].dtype;
    if (call->op != MZ_OP_linear || mz_shape_rows(&call->out[0].shape) > MZ_MATMUL_ROWS)
        return "serves a linear layer of up to four rows";
    if (compute != MEZZO_F32 && compute != MEZZO_TF32 && (compute != x || compute != w))
        return "multiplies values as they are stored";
    const mz_matmul_problem p = linear_problem(call);
    out->workspace = mz_matmul_rows_workspace(&p);
    return NULL;
}

// Runs them, at 2 bytes a weight and 16 bytes a nanosecond from memory.
static mezzo_status rows_run(const mz_matmul_isa *isa, const mezzo_device *device, const mz_call *call) {
    mz_matmul_problem p = linear_problem(call);
    mz_matmul_rows_run(isa, &p, mz_cpu_threads(device, (double)p.n * (double)p.k / 8), call->workspace);
    return MEZZO_OK;
}

#define ROWS(level, why_not)                                                                                           \
    static const char *rows_##level##_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {           \
        const char *reason = why_not(device);                                                                          \
        return reason != NULL ? reason : prepare_rows(call, out);                                                      \
    }                                                                                                                  \
    static mezzo_status rows_##level##_run(mezzo_device *device, const mz_call *call) {                                \
        return rows_run(&mz_matmul_isa__##level, device, call);                                                        \
    }                                                                                                                  \
    static const mz_kernel rows_##level = {"linear_rows__" #level, rows_##level##_prepare, rows_##level##_run};

static const char *always(const mezzo_device *device) {
    (void)device;
    return NULL;
}

PATH(portable, mz_matmul_isa__portable.f32, mz_matmul_isa__portable, refuse_f32, always, "_f32__portable_4x12")
DIRECT(portable, refuse_f32, always, "_f32__portable_4x12")
ROWS(portable, always)

#if defined(__x86_64__)
static const char *needs_avx2(const mezzo_device *device) {
    return mz_cpu(device)->isa.level >= MZ_LEVEL_AVX2 ? NULL : "needs AVX2 and FMA";
}

static const char *needs_avx512(const mezzo_device *device) {
    return mz_cpu(device)->isa.level >= MZ_LEVEL_AVX512 ? NULL : "needs AVX-512";
}

static const char *needs_bf16_dot(const mezzo_device *device) {
    const mz_isa *isa = &mz_cpu(device)->isa;
    if (!isa->bf16_dot)
        return "needs AVX512-BF16";
    return mz_isa_worth_it(isa, isa->bf16_dot_rate) ? NULL : "bf16 dot products are measured slower than fp32 here";
}

static const char *needs_amx(const mezzo_device *device) {
    const mz_isa *isa = &mz_cpu(device)->isa;
    if (isa->level < MZ_LEVEL_AMX || !isa->bf16_dot) // its epilogue converts with AVX512-BF16
        return "needs AMX tiles with BF16";
    return mz_isa_worth_it(isa, isa->amx_rate) ? NULL : "AMX is measured slower than fp32 here";
}

static const char *needs_amx_f16(const mezzo_device *device) {
    const char *reason = needs_amx(device);
    const mz_isa *isa = &mz_cpu(device)->isa;
    if (reason == NULL && !mz_isa_worth_it(isa, isa->amx_rate / MZ_CPU_F16_PRODUCTS))
        reason = "four AMX products are measured slower than fp32 here";
    return reason;
}

static const char *needs_amx_tf32(const mezzo_device *device) {
    const char *reason = needs_amx(device);
    const mz_isa *isa = &mz_cpu(device)->isa;
    if (reason == NULL && !mz_isa_worth_it(isa, isa->amx_rate / MZ_CPU_TF32_PRODUCTS))
        reason = "three AMX products are measured slower than fp32 here";
    return reason;
}

ROWS(avx2, needs_avx2)
ROWS(avx512, needs_avx512)
PATH(avx2, mz_matmul_isa__avx2.f32, mz_matmul_isa__avx2, refuse_f32, needs_avx2, "_f32__avx2_6x16")
DIRECT(avx2, refuse_f32, needs_avx2, "_f32__avx2_6x16")
PATH(avx512, mz_matmul_isa__avx512.f32, mz_matmul_isa__avx512, refuse_f32, needs_avx512, "_f32__avx512_14x32")
DIRECT(avx512, refuse_f32, needs_avx512, "_f32__avx512_8x32")
PATH(bf16_dot, mz_microkernel_avx512bf16, mz_matmul_isa__avx512, refuse_bf16, needs_bf16_dot,
     "_bf16_f32__avx512bf16_14x32")
DIRECT(bf16_dot, refuse_bf16, needs_bf16_dot, "_bf16_f32__avx512bf16_8x32")
PATH(amx, mz_microkernel_amx, mz_matmul_isa__avx512, refuse_bf16, needs_amx, "_bf16_f32__amx_2x1")
DIRECT(amx, refuse_bf16, needs_amx, "_bf16_f32__amx_2x1")
PATH(amx_f16, mz_microkernel_amx_f16, mz_matmul_isa__avx512, refuse_f16, needs_amx_f16, "_f16_f32__amx_2x1")
PATH(amx_tf32, mz_microkernel_amx_tf32, mz_matmul_isa__avx512, refuse_tf32, needs_amx_tf32, "_tf32_f32__amx_2x1")
#elif defined(__aarch64__)
static const char *needs_neon(const mezzo_device *device) {
    return mz_cpu(device)->isa.level >= MZ_LEVEL_NEON ? NULL : "needs NEON";
}

static const char *needs_bf16_dot(const mezzo_device *device) {
    const mz_isa *isa = &mz_cpu(device)->isa;
    if (!isa->bf16_dot)
        return "needs BF16 dot products (FEAT_BF16)";
    return mz_isa_worth_it(isa, isa->bf16_dot_rate) ? NULL : "bf16 dot products are measured slower than fp32 here";
}

ROWS(neon, needs_neon)
PATH(neon, mz_matmul_isa__neon.f32, mz_matmul_isa__neon, refuse_f32, needs_neon, "_f32__neon_8x12")
DIRECT(neon, refuse_f32, needs_neon, "_f32__neon_8x12")
PATH(bf16_dot, mz_microkernel_neonbf16, mz_matmul_isa__neon, refuse_bf16, needs_bf16_dot, "_bf16_f32__neonbf16_8x12")
#endif

// The best kernels come first; each path's prepare() says whether this device may run it.
#if defined(__x86_64__)
#define PRODUCTS(op)                                                                                                   \
    &amx_kernels[op], &amx_f16_kernels[op], &amx_tf32_kernels[op], &bf16_dot_kernels[op], &avx512_kernels[op],         \
        &avx2_kernels[op], &portable_kernels[op]
#define CONVOLUTIONS(op)                                                                                               \
    &amx_direct[op], &amx_kernels[4 + op], &amx_f16_kernels[4 + op], &amx_tf32_kernels[4 + op], &bf16_dot_direct[op],  \
        &bf16_dot_kernels[4 + op], &avx512_direct[op], &avx512_kernels[4 + op], &avx2_direct[op],                      \
        &avx2_kernels[4 + op], &portable_direct[op], &portable_kernels[4 + op]
#define ROWS_KERNELS &rows_avx512, &rows_avx2, &rows_portable
#elif defined(__aarch64__)
#define PRODUCTS(op) &bf16_dot_kernels[op], &neon_kernels[op], &portable_kernels[op]
#define CONVOLUTIONS(op)                                                                                               \
    &bf16_dot_kernels[4 + op], &neon_direct[op], &neon_kernels[4 + op], &portable_direct[op], &portable_kernels[4 + op]
#define ROWS_KERNELS &rows_neon, &rows_portable
#else
#define PRODUCTS(op)     &portable_kernels[op]
#define CONVOLUTIONS(op) &portable_direct[op], &portable_kernels[4 + op]
#define ROWS_KERNELS     &rows_portable
#endif

const mz_kernel *const *mz_cpu_matmul_kernels(const mz_cpu_device *device, mz_op op, size_t *n) {
    static const mz_kernel *const lists[MZ_OP_COUNT][16] = {
        [MZ_OP_linear] = {ROWS_KERNELS, PRODUCTS(0), &mz_cpu_linear_emulated},
        [MZ_OP_matmul] = {PRODUCTS(1)},
        [MZ_OP_linear_dx] = {PRODUCTS(2), &mz_cpu_linear_dx_emulated},
        [MZ_OP_linear_dw] = {PRODUCTS(3), &mz_cpu_linear_dw_emulated},
        [MZ_OP_conv2d] = {CONVOLUTIONS(0)},
        [MZ_OP_conv2d_dx] = {CONVOLUTIONS(1)},
        [MZ_OP_conv2d_dw] = {CONVOLUTIONS(2)},
    };
    (void)device;
    for (*n = 0; lists[op][*n] != NULL;)
        ++*n;
    return lists[op];
}
