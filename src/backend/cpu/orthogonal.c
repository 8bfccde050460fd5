// Runs the ops between the products that make a matrix orthogonal (optim/orthogonal.c).
#include <math.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/update.h"

// Work is divided into chunks within one matrix, so that the number of threads changes no sum.
enum { CHUNK = 4096 };

static void store(const mz_tensor *t, int64_t i, float x) {
    if (t->dtype == MEZZO_F32)
        ((float *)t->data)[i] = x;
    else
        ((uint16_t *)t->data)[i] = t->dtype == MEZZO_BF16 ? mezzo_f32_to_bf16(x) : mezzo_f32_to_f16(x);
}

static int64_t elements_of_matrix(const mz_shape *s) {
    return s->dim[s->rank - 2] * s->dim[s->rank - 1];
}

static int64_t chunks_of_matrix(const mz_shape *s) {
    return (elements_of_matrix(s) + CHUNK - 1) / CHUNK;
}

// --- matrix_normalize ------------------------------------------------------------------------------------------------
static const char *normalize_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device;
    const mz_shape *s = &mz_in(call, matrix_normalize, x)->shape;
    out->workspace = (size_t)(mz_shape_count(s) / elements_of_matrix(s) * chunks_of_matrix(s)) * sizeof(double);
    return mz_storages_refusal(call, "f", "a");
}

static double sum_chunk(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

static float factor_of(const mz_call *call, const double *sums, int64_t chunks) {
    double sum = 0;
    for (int64_t c = 0; c < chunks; c++)
        sum += sums[c];
    return (float)((double)call->attrs.alpha / fmax(sqrt(sum), (double)call->attrs.eps));
}

static mezzo_status normalize_run(mezzo_device *device, const mz_call *call) {
    const mz_shape *s = &mz_in(call, matrix_normalize, x)->shape;
    const float *x = mz_in(call, matrix_normalize, x)->data;
    const int64_t all = mz_shape_count(s), each = elements_of_matrix(s), chunks = chunks_of_matrix(s);
    const int64_t n = all / each * chunks; // chunk c of matrix m is number m·chunks + c
    double *sums = call->workspace;
#pragma omp parallel num_threads(mz_cpu_threads(device, 0.8 * (double)all))
    {
#pragma omp for schedule(static)
        for (int64_t k = 0; k < n; k++) {
            const int64_t first = k % chunks * CHUNK, left = each - first;
            sums[k] = sum_chunk(x + k / chunks * each + first, left < CHUNK ? left : CHUNK);
        }
#pragma omp for schedule(static)
        for (int64_t k = 0; k < n; k++) {
            const float factor = factor_of(call, sums + k / chunks * chunks, chunks);
            const int64_t first = k % chunks * CHUNK, end = first + CHUNK < each ? first + CHUNK : each;
            for (int64_t i = k / chunks * each + first; i < k / chunks * each + end; i++)
                store(mz_out(call, matrix_normalize, y), i, x[i] * factor);
        }
    }
    return MEZZO_OK;
}
const mz_kernel mz_matrix_normalize__portable = {"matrix_normalize__portable", normalize_prepare, normalize_run};

// --- matrix_scale_rows -----------------------------------------------------------------------------------------------
static const char *scale_rows_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device;
    out->workspace = (size_t)mz_shape_rows(&mz_in(call, matrix_scale_rows, x)->shape) * sizeof(double);
    return mz_storages_refusal(call, "fu", "f");
}

// Computes the factor of each row of a matrix, in place of the row's sum of squares. v: as it is kept.
static void factors_of_rows(const mz_attrs *attrs, float *v, double *sums, int64_t rows) {
    const double beta = (double)attrs->coefficients[0], columns = (double)attrs->coefficients[1];
    double all = 0;
    for (int64_t row = 0; row < rows; row++) {
        v[row] = (float)(beta * (double)v[row] + (1 - beta) * sums[row] / columns);
        const double root = sqrt((double)v[row]) + (double)attrs->eps;
        all += sums[row] / (root * root);
        sums[row] = 1 / root;
    }
    for (int64_t row = 0; row < rows; row++)
        sums[row] *= all > 0 ? (double)attrs->alpha / sqrt(all) : 0;
}

static mezzo_status scale_rows_run(mezzo_device *device, const mz_call *call) {
    const mz_shape *s = &mz_in(call, matrix_scale_rows, x)->shape;
    const int64_t width = s->dim[s->rank - 1], rows = s->dim[s->rank - 2], all = mz_shape_rows(s);
    const float *x = mz_in(call, matrix_scale_rows, x)->data;
    float *y = mz_out(call, matrix_scale_rows, y)->data, *v = mz_out(call, matrix_scale_rows, v)->data;
    double *sums = call->workspace;
    if (((const mz_opt_state *)mz_in(call, matrix_scale_rows, state)->data)->skip)
        return MEZZO_OK;
#pragma omp parallel num_threads(mz_cpu_threads(device, 2 * (double)(all * width)))
    {
#pragma omp for schedule(static)
        for (int64_t row = 0; row < all; row++)
            sums[row] = sum_chunk(x + row * width, width);
#pragma omp for schedule(static)
        for (int64_t first = 0; first < all; first += rows)
            factors_of_rows(&call->attrs, v + first, sums + first, rows);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < all; row++)
            for (int64_t i = row * width; i < (row + 1) * width; i++)
                y[i] = x[i] * (float)sums[row];
    }
    return MEZZO_OK;
}
const mz_kernel mz_matrix_scale_rows__portable = {"matrix_scale_rows__portable", scale_rows_prepare, scale_rows_run};
