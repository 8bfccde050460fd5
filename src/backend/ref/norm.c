// Computes layer and RMS normalisation and softmax, over the last dimension.
#include <math.h>

#include "backend/ref/ref.h"

// The tensors of layernorm, or of rmsnorm, whose mean counts as 0.
typedef struct norm {
    const mz_tensor *x, *weight, *bias, *residual, *y, *mean, *rstd, *sum;
    bool centred;
} norm;
#define NORM(op)                                                                                                       \
    .x = mz_in(call, op, x), .weight = mz_in(call, op, weight), .residual = mz_in(call, op, residual),                 \
    .y = mz_out(call, op, y), .rstd = mz_out(call, op, rstd), .sum = mz_out(call, op, sum)

// Returns the normalized value's input: x + residual as `sum` stores it, so that backward, which reads `sum`, sees the
// same numbers.
static double input_at(const norm *n, int64_t i) {
    double s = mz_ref_get(n->x, i);
    if (mz_present(n->residual))
        s += mz_ref_get(n->residual, i);
    return mz_present(n->sum) ? mezzo_round_to(s, n->sum->dtype) : s;
}

// Returns a column's factor.
static double factor_of(const mz_call *call, const mz_tensor *weight, int64_t c) {
    return mz_present(weight) ? mz_ref_get(weight, c) + (double)call->attrs.offset : 1;
}

static void put(const mz_tensor *t, int64_t i, double x) {
    if (mz_present(t))
        mz_ref_put(t, i, x);
}

static void normalize(const mz_call *call, const norm *n) {
    const int64_t rows = mz_shape_rows(&n->y->shape), width = n->y->shape.dim[n->y->shape.rank - 1];
    for (int64_t r = 0; r < rows; r++) {
        int64_t start = r * width;
        double mean = 0, variance = 0;
        for (int64_t c = 0; n->centred && c < width; c++)
            mean += input_at(n, start + c);
        mean /= (double)width;
        for (int64_t c = 0; c < width; c++) {
            double centred = input_at(n, start + c) - mean;
            variance += centred * centred;
        }
        double rstd = 1 / sqrt(variance / (double)width + (double)call->attrs.eps);
        for (int64_t c = 0; c < width; c++) {
            double s = input_at(n, start + c), y = (s - mean) * rstd * factor_of(call, n->weight, c);
            put(n->sum, start + c, s);
            mz_ref_put(n->y, start + c, mz_present(n->bias) ? y + mz_ref_get(n->bias, c) : y);
        }
        put(n->mean, r, mean);
        put(n->rstd, r, rstd);
    }
}

void mz_ref_layernorm(const mz_call *call) {
    const norm n = {NORM(layernorm), .bias = mz_in(call, layernorm, bias), .mean = mz_out(call, layernorm, mean),
                    .centred = true};
    normalize(call, &n);
}

void mz_ref_rmsnorm(const mz_call *call) {
    const norm n = {NORM(rmsnorm), .bias = &mz_absent_slot, .mean = &mz_absent_slot};
    normalize(call, &n);
}

// --- gradients -----------------------------------------------------------------------------------------------------
typedef struct norm_bwd {
    const mz_tensor *dy, *x, *weight, *mean, *rstd, *dres, *dx, *dweight, *dbias, *low, *linear_dbias;
} norm_bwd;
#define NORM_BWD(op)                                                                                                   \
    .dy = mz_in(call, op, dy), .x = mz_in(call, op, x), .weight = mz_in(call, op, weight),                             \
    .rstd = mz_in(call, op, rstd), .dres = mz_in(call, op, dres), .dx = mz_out(call, op, dx),                          \
    .dweight = mz_out(call, op, dweight), .low = mz_out(call, op, low)

static void put_gradient(const mz_call *call, const mz_tensor *t, int64_t i, double x) {
    if (mz_present(t))
        mz_ref_put_gradient(call, (int)(t - call->out), i, x);
}

// Returns x - mean in row r, of element i; times rstd it is x̂.
static double centred_at(const norm_bwd *n, int64_t r, int64_t i) {
    return mz_ref_get(n->x, i) - (mz_present(n->mean) ? mz_ref_get(n->mean, r) : 0);
}

// Computes, with x̂ = (x - mean)·rstd and g = dy·weight: dx = rstd·(g - mean(g) - x̂·mean(g·x̂)) + dres, dweight = Σ_rows
// dy·x̂, dbias = Σ_rows dy; rmsnorm's mean(g) counts as 0.
static void differentiate(const mz_call *call, const norm_bwd *n) {
    const int64_t rows = mz_shape_rows(&n->dx->shape), width = n->dx->shape.dim[n->dx->shape.rank - 1];
    // Columns come first, because dx may overwrite dy.
    for (int64_t c = 0; c < width; c++) {
        double dweight = 0, dbias = 0;
        for (int64_t r = 0; r < rows; r++) {
            dweight += mz_ref_get(n->dy, r * width + c) * centred_at(n, r, r * width + c) * mz_ref_get(n->rstd, r);
            dbias += mz_ref_get(n->dy, r * width + c);
        }
        put_gradient(call, n->dweight, c, dweight);
        put_gradient(call, n->dbias, c, dbias);
    }
    for (int64_t r = 0; r < rows; r++) {
        double rstd = mz_ref_get(n->rstd, r), g_mean = 0, gx_mean = 0;
        for (int64_t i = r * width; i < (r + 1) * width; i++) {
            double g = mz_ref_get(n->dy, i) * factor_of(call, n->weight, i - r * width);
            g_mean += g;
            gx_mean += g * centred_at(n, r, i) * rstd;
        }
        g_mean = mz_present(n->mean) ? g_mean / (double)width : 0;
        gx_mean /= (double)width;
        for (int64_t i = r * width; i < (r + 1) * width; i++) {
            double g = mz_ref_get(n->dy, i) * factor_of(call, n->weight, i - r * width);
            double d = rstd * (g - g_mean - centred_at(n, r, i) * rstd * gx_mean);
            mz_ref_put(n->dx, i, mz_present(n->dres) ? d + mz_ref_get(n->dres, i) : d);
            put(n->low, i, mz_ref_get(n->dx, i));
        }
    }
    for (int64_t c = 0; mz_present(n->linear_dbias) && c < width; c++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += mz_ref_get(mz_present(n->low) ? n->low : n->dx, r * width + c);
        put_gradient(call, n->linear_dbias, c, sum);
    }
}

void mz_ref_layernorm_bwd(const mz_call *call) {
    const norm_bwd n = {NORM_BWD(layernorm_bwd), .mean = mz_in(call, layernorm_bwd, mean),
                        .dbias = mz_out(call, layernorm_bwd, dbias),
                        .linear_dbias = mz_out(call, layernorm_bwd, linear_dbias)};
    differentiate(call, &n);
}

void mz_ref_rmsnorm_bwd(const mz_call *call) {
    const norm_bwd n = {NORM_BWD(rmsnorm_bwd), .mean = &mz_absent_slot, .dbias = &mz_absent_slot,
                        .linear_dbias = &mz_absent_slot};
    differentiate(call, &n);
}

// --- softmax -------------------------------------------------------------------------------------------------------
void mz_ref_softmax(const mz_call *call) {
    const mz_tensor *x = mz_in(call, softmax, x), *y = mz_out(call, softmax, y);
    int64_t width = y->shape.dim[y->shape.rank - 1], rows = mz_shape_count(&y->shape) / width;
    for (int64_t r = 0; r < rows; r++) {
        double max = -INFINITY, sum = 0;
        for (int64_t c = 0; c < width; c++)
            max = fmax(max, mz_ref_get(x, r * width + c));
        for (int64_t c = 0; c < width; c++)
            sum += exp(mz_ref_get(x, r * width + c) - max);
        for (int64_t c = 0; c < width; c++)
            mz_ref_put(y, r * width + c, exp(mz_ref_get(x, r * width + c) - max) / sum);
    }
}

// Computes dx = y·(dy - Σ dy·y).
void mz_ref_softmax_dx(const mz_call *call) {
    const mz_tensor *dy = mz_in(call, softmax_dx, dy), *y = mz_in(call, softmax_dx, y),
                    *dx = mz_out(call, softmax_dx, dx);
    int64_t width = dx->shape.dim[dx->shape.rank - 1], rows = mz_shape_count(&dx->shape) / width;
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t c = 0; c < width; c++)
            sum += mz_ref_get(dy, r * width + c) * mz_ref_get(y, r * width + c);
        for (int64_t c = 0; c < width; c++) {
            int64_t i = r * width + c;
            mz_ref_put(dx, i, mz_ref_get(y, i) * (mz_ref_get(dy, i) - sum));
        }
    }
}
