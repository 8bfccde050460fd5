// bench/fp8_products: the rates of products of 8-bit operands beside BF16's, and of what makes them, one CSV row a
// call.
//
//   bench_fp8_products [--device cuda] RxNxK[xE]...
//
// linear: y [R, N] = x [R, K]·wᵀ [N, K]; linear_dx: dx [R, K] = dy [R, N]·w; linear_dw: dw [N, K] = dyᵀ·x. 8 bits: E4M3
// forward, E5M2 for dy, a scale each; a gradient's operands are turned. fp8-block: E4M3 with a scale for 128 terms.
// quantize: x [R, K] of BF16 to E4M3 in both layouts, a tensor's scale given; `tflops` is then TB/s of bytes read and
// written. With E the experts' products, grouped_linear and its gradients, R rows shared out evenly. Median of 20.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/calls.h"
#include "runtime/params.h"

enum { RUNS = 20, PATTERN = 65521 };

typedef enum way { BF16, FP8, FP8_BLOCK, WAYS } way;

typedef struct bench {
    mezzo_device *device;
    const char *name;
    void *memory[12];
    int n;
} bench;

static mezzo_status get(bench *b, size_t bytes, const void *fill, void **out) {
    MEZZO_TRY(b->device->backend->alloc(b->device, bytes, &b->memory[b->n]));
    *out = b->memory[b->n++];
    return fill != NULL ? b->device->backend->write(b->device, *out, fill, bytes) : MEZZO_OK;
}

static mezzo_status tensor(bench *b, mz_tensor *t, mezzo_dtype dtype, int64_t rows, int64_t cols) {
    size_t n = (size_t)(rows * cols), size = mezzo_dtype_size(dtype);
    *t = (mz_tensor){.dtype = dtype, .shape = {2, {rows, cols}}};
    float x[PATTERN];
    char *stored = malloc(n * size);
    mezzo_status status = stored != NULL ? MEZZO_OK : mz_fail(MEZZO_ERR_MEMORY, "no host memory");
    for (size_t i = 0; i < PATTERN; i++)
        x[i] = (float)(int)((i * 2654435761U >> 16 & 255) - 128) / 64;
    if (status == MEZZO_OK)
        status = mezzo_convert(x, MEZZO_F32, stored, dtype, n < PATTERN ? n : PATTERN);
    for (size_t i = PATTERN; i < n && status == MEZZO_OK;
         i += PATTERN) // converting all would take longer than the runs
        memcpy(stored + i * size, stored, (n - i < PATTERN ? n - i : PATTERN) * size);
    if (status == MEZZO_OK)
        status = get(b, n * size, stored, &t->data);
    free(stored);
    return status;
}

// An operand of 8 bits: one scale, or that of each block or tile.
static mezzo_status with_scales(bench *b, mz_tensor *t, mz_scaling scaling, bool columnwise) {
    t->scaling = scaling;
    t->columnwise = columnwise;
    const size_t n = (size_t)mz_scale_count(t);
    float *scales = malloc(n * sizeof *scales);
    void *at = NULL;
    mezzo_status status = scales != NULL ? MEZZO_OK : mz_fail(MEZZO_ERR_MEMORY, "no host memory");
    for (size_t i = 0; i < n && status == MEZZO_OK; i++)
        scales[i] = 0x1p-4F;
    if (status == MEZZO_OK)
        status = get(b, n * sizeof *scales, scales, &at);
    t->scale = at;
    free(scales);
    return status;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static mezzo_status time_call(bench *b, mz_call *call, const mz_prepared *prepared, double *ms) {
    double seconds[RUNS];
    call->state = prepared->state;
    MEZZO_TRY(get(b, prepared->workspace + 64, NULL, &call->workspace));
    for (int i = -3; i < RUNS; i++) {
        MEZZO_TRY(mezzo_device_mark(b->device, 0));
        MEZZO_TRY(prepared->kernel->run(b->device, call));
        MEZZO_TRY(mezzo_device_mark(b->device, 1));
        MEZZO_TRY(mezzo_device_elapsed(b->device, 0, 1, &seconds[i < 0 ? 0 : i]));
    }
    qsort(seconds, RUNS, sizeof *seconds, by_size);
    *ms = seconds[RUNS / 2] * 1e3;
    return MEZZO_OK;
}

static mezzo_status quantize_case(bench *b, mz_call *call, bool blocks, const int64_t s[3]) {
    const int scales = MZ_OUT(quantize, scales);
    call->n_in = 1;
    call->n_out = MZ_OUT(quantize, columnwise_scales) + blocks;
    MEZZO_TRY(tensor(b, &call->in[0], MEZZO_BF16, s[0], s[2]));
    for (int k = 0; k < 2; k++) {
        MEZZO_TRY(tensor(b, &call->out[k], MEZZO_F8E4M3, s[0], s[2]));
        MEZZO_TRY(with_scales(b, &call->out[k], blocks ? MZ_SCALING_BLOCK128 : MZ_SCALING_TENSOR, k == 1));
        if (blocks) {
            const mz_tensor *t = &call->out[k];
            call->out[scales + k] =
                (mz_tensor){.data = (void *)(uintptr_t)t->scale, .dtype = MEZZO_F32, .shape = {1, {mz_scale_count(t)}}};
        }
    }
    if (blocks)
        return MEZZO_OK;
    MEZZO_TRY(tensor(b, &call->out[scales], MEZZO_F32, 1, MZ_SCALE_WORDS));
    MEZZO_TRY(b->device->backend->write(b->device, call->out[scales].data, &(mz_scale_entry){.scale = 1},
                                        sizeof(mz_scale_entry)));
    call->out[0].scale = call->out[1].scale = call->out[scales].data;
    return MEZZO_OK;
}

static mezzo_status product_case(bench *b, mz_call *call, way w, const int64_t s[3]) {
    const mezzo_dtype forward = w == BF16 ? MEZZO_BF16 : MEZZO_F8E4M3;
    const mezzo_dtype back = w == FP8 ? MEZZO_F8E5M2 : forward;
    const bool y_first = call->op != MZ_OP_linear, dw = call->op == MZ_OP_linear_dw; // dy
    call->n_in = 2, call->n_out = 1;
    MEZZO_TRY(tensor(b, &call->in[0], y_first ? back : forward, s[0], y_first ? s[1] : s[2]));
    MEZZO_TRY(tensor(b, &call->in[1], forward, dw ? s[0] : s[1], s[2]));
    MEZZO_TRY(tensor(b, &call->out[0], dw ? MEZZO_F32 : MEZZO_BF16, dw ? s[1] : s[0],
                     call->op == MZ_OP_linear ? s[1] : s[2]));
    for (int i = 0; i < 2 && w != BF16; i++) {
        const mz_scaling blocks = i == 1 && !dw ? MZ_SCALING_TILE128 : MZ_SCALING_BLOCK128;
        MEZZO_TRY(with_scales(b, &call->in[i], w == FP8_BLOCK ? blocks : MZ_SCALING_TENSOR, dw || (i == 1 && y_first)));
    }
    return MEZZO_OK;
}

// y [R, N], x [R, K], w [E, N, K].
static mezzo_status grouped_case(bench *b, mz_call *call, way w, const int64_t s[4]) {
    const mezzo_dtype forward = w == BF16 ? MEZZO_BF16 : MEZZO_F8E4M3, back = w == BF16 ? MEZZO_BF16 : MEZZO_F8E5M2;
    const bool y = call->op == MZ_OP_grouped_linear, dw = call->op == MZ_OP_grouped_linear_dw;
    mz_tensor *matrix = dw ? &call->out[0] : &call->in[1], *offsets = &call->in[2];
    int32_t *first = malloc((size_t)(s[3] + 1) * sizeof *first);
    if (first == NULL)
        return mz_fail(MEZZO_ERR_MEMORY, "no host memory");
    for (int64_t e = 0; e <= s[3]; e++)
        first[e] = (int32_t)(s[0] * e / s[3]);
    *offsets = (mz_tensor){.dtype = MEZZO_I32, .shape = {1, {s[3] + 1}}};
    mezzo_status status = get(b, (size_t)(s[3] + 1) * sizeof *first, first, &offsets->data);
    free(first);
    MEZZO_TRY(status);
    call->n_in = 3, call->n_out = 1;
    MEZZO_TRY(tensor(b, &call->in[0], y ? forward : back, s[0], y ? s[2] : s[1]));
    if (dw)
        MEZZO_TRY(tensor(b, &call->in[1], forward, s[0], s[2]));
    else
        MEZZO_TRY(tensor(b, &call->out[0], MEZZO_BF16, s[0], y ? s[1] : s[2]));
    MEZZO_TRY(tensor(b, matrix, dw ? MEZZO_F32 : forward, s[3] * s[1], s[2]));
    matrix->shape = (mz_shape){3, {s[3], s[1], s[2]}};
    for (int i = 0; i < 2 && w != BF16; i++)
        MEZZO_TRY(with_scales(b, &call->in[i], MZ_SCALING_TENSOR, dw || (i == 1 && !y)));
    return MEZZO_OK;
}

static mezzo_status run_case(bench *b, mz_op op, way w, const int64_t s[4]) {
    static const char *const names[] = {"bf16", "fp8", "fp8-block"};
    mz_call call = {.op = op};
    mz_prepared prepared = {0};
    double ms = 0;
    for (int i = 0; i < MZ_MAX_IN; i++)
        call.in[i] = mz_tensor_absent();
    for (int i = 0; i < MZ_MAX_OUT; i++)
        call.out[i] = mz_tensor_absent();
    call.numerics.compute = w == BF16 ? MEZZO_BF16 : MEZZO_F8E4M3;
    call.numerics.accumulate = call.numerics.reduce = MEZZO_F32;
    call.attrs.via = MEZZO_BF16;
    MEZZO_TRY(op == MZ_OP_quantize ? quantize_case(b, &call, w == FP8_BLOCK, s)
              : s[3] > 0           ? grouped_case(b, &call, w, s)
                                   : product_case(b, &call, w, s));
    mezzo_status status = mz_prepare(b->device, &call, &prepared);
    if (status == MEZZO_OK)
        status = time_call(b, &call, &prepared, &ms);
    double work = op == MZ_OP_quantize ? 4.0 * (double)(s[0] * s[2]) : 2.0 * (double)s[0] * (double)s[1] * (double)s[2];
    if (status == MEZZO_OK)
        printf("%s,%s,%lld,%lld,%lld,%.4f,%.1f,\"%s\"\n", prepared.kernel->name, names[w], (long long)s[0],
               (long long)s[1], (long long)s[2], ms, work / ms * 1e-9, b->name);
    fflush(stdout);
    mz_prepared_free(&prepared);
    return status;
}

int main(int argc, char **argv) {
    static const mz_op dense[] = {MZ_OP_quantize, MZ_OP_linear, MZ_OP_linear_dx, MZ_OP_linear_dw};
    static const mz_op grouped[] = {MZ_OP_quantize, MZ_OP_grouped_linear, MZ_OP_grouped_linear_dx,
                                    MZ_OP_grouped_linear_dw};
    bench b = {0};
    mezzo_device_info info;
    int at = argc > 2 && strcmp(argv[1], "--device") == 0 ? 3 : 1;
    mezzo_status status = mezzo_device_open(at == 3 ? argv[2] : "cuda", 0, &b.device);
    if (status == MEZZO_OK)
        status = mezzo_device_describe(b.device, &info);
    b.name = info.description;
    printf("kernel,precision,rows,n,k,ms,tflops,device\n");
    for (; at < argc && status == MEZZO_OK; at++) {
        int64_t size[4] = {0};
        char *rest = argv[at];
        for (int i = 0; i < 4; i++)
            size[i] = strtoll(rest + (i > 0 && *rest == 'x'), &rest, 10);
        const mz_op *ops = size[3] > 0 ? grouped : dense;
        for (size_t o = 0; o < MZ_COUNT(dense); o++)
            for (int w = ops[o] == MZ_OP_quantize ? FP8 : BF16;
                 w < (size[3] > 0 ? FP8_BLOCK : WAYS) && status == MEZZO_OK; w++) {
                status = run_case(&b, ops[o], (way)w, size);
                while (b.n > 0)
                    b.device->backend->release(b.device, b.memory[--b.n]);
            }
    }
    if (status != MEZZO_OK)
        fprintf(stderr, "bench_fp8_products: %s\n", mezzo_error_message());
    mezzo_device_close(b.device);
    return status == MEZZO_OK ? 0 : 3;
}
