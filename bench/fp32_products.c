// bench/fp32_products: what products of FP32 numbers are off by, and how long they take, one CSV row a case.
//
//   bench_fp32_products [--device cuda] [--op linear|linear_dx|linear_dw] [--terms positive|normal] RxNxK...
//
// linear: y [R, N] = x [R, K]·wᵀ [N, K]; linear_dx: dx [R, K] = dy [R, N]·w; linear_dw: dw [N, K] = dyᵀ·x. Without --op
// or --terms all of them. "positive": operands in (0, 1], so that every term of a sum has one sign; "normal": N(0, 1).
// Errors are those of 4,096 elements against sums in FP64: root mean square over that of the elements, mean (the
// bias) over the elements' mean magnitude, and the largest over the same. MEZZO_CUDA_FP32=fma shows the library's FP32.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/calls.h"
#include "runtime/params.h"

enum { SAMPLES = 4096, RUNS = 10 };

typedef struct matrix {
    int64_t rows, cols;
    float *host;
    mz_tensor tensor;
} matrix;

typedef struct bench {
    mezzo_device *device;
    const char *name, *how;
} bench;

static mezzo_status make(bench *b, matrix *m, int64_t rows, int64_t cols, bool positive, uint32_t stream) {
    *m = (matrix){.rows = rows, .cols = cols};
    int64_t n = rows * cols;
    m->host = malloc((size_t)n * sizeof(float));
    if (m->host == NULL)
        return mz_fail(MEZZO_ERR_MEMORY, "no memory for %lld numbers", (long long)n);
    mz_philox_key key = {.seed = 1, .tensor = stream};
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t words[4];
        mz_philox(key, (uint64_t)(i / 4), words);
        float u[4];
        for (int k = 0; k < 4; k++)
            u[k] = 1 - mz_uniform(words[k]); // (0, 1]
        for (int k = 0; k < 4 && i + k < n; k++) {
            double r = sqrt(-2 * log((double)u[k / 2 * 2])), at = 6.283185307179586 * (double)u[k / 2 * 2 + 1];
            m->host[i + k] = positive ? u[k] : (float)(r * (k % 2 ? sin(at) : cos(at)));
        }
    }
    MEZZO_TRY(b->device->backend->alloc(b->device, (size_t)n * sizeof(float), &m->tensor.data));
    m->tensor.dtype = MEZZO_F32;
    m->tensor.shape = (mz_shape){.rank = 2, .dim = {rows, cols}};
    return b->device->backend->write(b->device, m->tensor.data, m->host, (size_t)n * sizeof(float));
}

static void drop(bench *b, matrix *m) {
    if (m->tensor.data != NULL)
        b->device->backend->release(b->device, m->tensor.data);
    free(m->host);
}

// Element (r, c) of the result in FP64.
static double exact(mz_op op, const matrix *a, const matrix *b, int64_t r, int64_t c) {
    double sum = 0;
    int64_t inner = op == MZ_OP_linear_dw ? a->rows : a->cols;
    for (int64_t l = 0; l < inner; l++) {
        double x = op == MZ_OP_linear_dw ? a->host[l * a->cols + r] : a->host[r * a->cols + l];
        sum += x * (op == MZ_OP_linear ? b->host[c * b->cols + l] : b->host[l * b->cols + c]);
    }
    return sum;
}

static void report(const bench *b, mz_op op, const char *terms, const int64_t size[3], const matrix *x, const matrix *y,
                   const matrix *out, double ms) {
    double squares = 0, of = 0, bias = 0, magnitude = 0, worst = 0;
    for (int i = 0; i < SAMPLES; i++) {
        int64_t r = (int64_t)i * 7919 % out->rows, c = (int64_t)i * 104729 % out->cols;
        double want = exact(op, x, y, r, c), error = (double)out->host[r * out->cols + c] - want;
        squares += error * error;
        of += want * want;
        bias += want < 0 ? -error : error;
        magnitude += fabs(want);
        worst = fabs(error) > worst ? fabs(error) : worst;
    }
    double flops = 2.0 * (double)size[0] * (double)size[1] * (double)size[2];
    printf("%s,%s,%lld,%lld,%lld,%s,%.3g,%.3g,%.3g,%.4f,%.1f,\"%s\",%s,\"bench_fp32_products %lldx%lldx%lld\"\n",
           b->how, mz_op_table[op].name, (long long)size[0], (long long)size[1], (long long)size[2], terms,
           sqrt(squares / of), bias / magnitude, worst / (magnitude / SAMPLES), ms, flops / ms * 1e-9, b->name,
           getenv("MEZZO_COMMIT") != NULL ? getenv("MEZZO_COMMIT") : "", (long long)size[0], (long long)size[1],
           (long long)size[2]);
    fflush(stdout);
}

static mezzo_status time_call(bench *b, const mz_prepared *prepared, mz_call *call, double *ms) {
    void *scratch = NULL;
    const mz_backend *be = b->device->backend;
    if (prepared->workspace > 0)
        MEZZO_TRY(be->alloc(b->device, prepared->workspace, &scratch));
    mezzo_status status = MEZZO_OK;
    *ms = INFINITY;
    for (int i = 0; i < RUNS && status == MEZZO_OK; i++) {
        double seconds = 0;
        status = mezzo_device_mark(b->device, 0);
        call->workspace = scratch;
        call->state = prepared->state;
        status = status == MEZZO_OK ? prepared->kernel->run(b->device, call) : status;
        if (status == MEZZO_OK)
            status = mezzo_device_mark(b->device, 1);
        if (status == MEZZO_OK)
            status = mezzo_device_elapsed(b->device, 0, 1, &seconds);
        *ms = seconds > 0 && seconds * 1e3 < *ms ? seconds * 1e3 : *ms;
    }
    be->release(b->device, scratch);
    return status;
}

static mezzo_status run_case(bench *b, mz_op op, bool positive, const int64_t size[3]) {
    int64_t rows = size[0], n = size[1], k = size[2];
    matrix x = {0}, y = {0}, out = {0};
    mz_prepared prepared = {0};
    double ms = 0;
    mezzo_status status = make(b, &x, rows, op == MZ_OP_linear ? k : n, positive, 1);
    if (status == MEZZO_OK)
        status = make(b, &y, op == MZ_OP_linear_dw ? rows : n, k, positive, 2);
    if (status == MEZZO_OK)
        status = make(b, &out, op == MZ_OP_linear_dw ? n : rows, op == MZ_OP_linear ? n : k, true, 3);
    if (status == MEZZO_OK) {
        mz_call call = {.op = op, .n_in = 2, .n_out = 1, .in = {x.tensor, y.tensor}, .out = {out.tensor}};
        for (int i = 2; i < MZ_MAX_IN; i++)
            call.in[i] = mz_tensor_absent();
        for (int i = 1; i < MZ_MAX_OUT; i++)
            call.out[i] = mz_tensor_absent();
        call.numerics = (mz_numerics){.compute = MEZZO_F32, .accumulate = MEZZO_F32, .reduce = MEZZO_F32};
        call.attrs.via = MEZZO_F32;
        status = mz_prepare(b->device, &call, &prepared);
        b->how = status == MEZZO_OK ? prepared.kernel->name : "";
        if (status == MEZZO_OK)
            status = time_call(b, &prepared, &call, &ms);
        if (status == MEZZO_OK)
            status = b->device->backend->read(b->device, out.host, out.tensor.data,
                                              (size_t)(out.rows * out.cols) * sizeof(float));
        if (status == MEZZO_OK)
            report(b, op, positive ? "positive" : "normal", size, &x, &y, &out, ms);
    }
    mz_prepared_free(&prepared);
    drop(b, &x), drop(b, &y), drop(b, &out);
    return status;
}

int main(int argc, char **argv) {
    const char *device = "cuda", *only = NULL, *terms = NULL;
    bench b = {0};
    mezzo_device_info info;
    int at = 1;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2)
        *(strcmp(argv[at], "--device") == 0 ? &device : strcmp(argv[at], "--op") == 0 ? &only : &terms) = argv[at + 1];
    mezzo_status status = mezzo_device_open(device, 0, &b.device);
    if (status == MEZZO_OK)
        status = mezzo_device_describe(b.device, &info);
    b.name = info.description;
    printf("kernel,op,rows,n,k,terms,rms_error,bias,worst,best_ms,tflops,device,commit,command\n");
    const mz_op ops[] = {MZ_OP_linear, MZ_OP_linear_dx, MZ_OP_linear_dw};
    for (; at < argc && status == MEZZO_OK; at++) {
        int64_t size[3] = {0};
        char *rest = argv[at];
        for (int i = 0; i < 3; i++)
            size[i] = strtoll(rest + (i > 0 && *rest == 'x'), &rest, 10);
        for (size_t o = 0; o < MZ_COUNT(ops); o++)
            for (int positive = 0; positive < 2 && status == MEZZO_OK; positive++)
                if ((only == NULL || strcmp(only, mz_op_table[ops[o]].name) == 0) &&
                    (terms == NULL || (strcmp(terms, "positive") == 0) == positive))
                    status = run_case(&b, ops[o], positive != 0, size);
    }
    if (status != MEZZO_OK)
        fprintf(stderr, "bench_fp32_products: %s\n", mezzo_error_message());
    mezzo_device_close(b.device);
    return status == MEZZO_OK ? 0 : 3;
}
