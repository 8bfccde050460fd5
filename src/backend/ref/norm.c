// Computes layer and RMS normalisation and softmax, over the last dimension.
#include <math.h>

#include "backend/ref/ref.h"

// Returns the normalized value's input: x + residual as `sum` stores it, so that backward, which reads `sum`, sees the
// same numbers.
static double layernorm_input(const mz_call *call, int64_t i) {
    double s = mz_ref_get(mz_in(call, layernorm, x), i);
    if (mz_present(mz_in(call, layernorm, residual)))
        s += mz_ref_get(mz_in(call, layernorm, residual), i);
    return mz_present(mz_out(call, layernorm, sum)) ? mezzo_round_to(s, mz_out(call, layernorm, sum)->dtype) : s;
}

void mz_ref_layernorm(const mz_call *call) {
    const mz_tensor *weight = mz_in(call, layernorm, weight), *bias = mz_in(call, layernorm, bias);
    const mz_shape *shape = &mz_out(call, layernorm, y)->shape;
    int64_t width = shape->dim[shape->rank - 1], rows = mz_shape_count(shape) / width;
    for (int64_t r = 0; r < rows; r++) {
        int64_t start = r * width;
        double mean = 0, variance = 0;
        for (int64_t c = 0; c < width; c++)
            mean += layernorm_input(call, start + c);
        mean /= (double)width;
        for (int64_t c = 0; c < width; c++) {
            double centred = layernorm_input(call, start + c) - mean;
            variance += centred * centred;
        }
        double rstd = 1 / sqrt(variance / (double)width + (double)call->attrs.eps);
        for (int64_t c = 0; c < width; c++) {
            double s = layernorm_input(call, start + c);
            double y = (s - mean) * rstd;
            y = mz_present(weight) ? y * mz_ref_get(weight, c) : y;
            y = mz_present(bias) ? y + mz_ref_get(bias, c) : y;
            if (mz_present(mz_out(call, layernorm, sum)))
                mz_ref_put(mz_out(call, layernorm, sum), start + c, s);
            mz_ref_put(mz_out(call, layernorm, y), start + c, y);
        }
        if (mz_present(mz_out(call, layernorm, mean)))
            mz_ref_put(mz_out(call, layernorm, mean), r, mean);
        if (mz_present(mz_out(call, layernorm, rstd)))
            mz_ref_put(mz_out(call, layernorm, rstd), r, rstd);
    }
}

// Computes, with x̂ = (x - mean)·rstd and g = dy·weight: dx = rstd·(g - mean(g) - x̂·mean(g·x̂)) + dres, dweight =
// Σ_rows dy·x̂, dbias = Σ_rows dy.
void mz_ref_layernorm_bwd(const mz_call *call) {
    const mz_tensor *dy = mz_in(call, layernorm_bwd, dy), *x = mz_in(call, layernorm_bwd, x),
                    *weight = mz_in(call, layernorm_bwd, weight), *dres = mz_in(call, layernorm_bwd, dres);
    const mz_tensor *dx = mz_out(call, layernorm_bwd, dx);
    const mz_shape *shape = &dx->shape;
    int64_t width = shape->dim[shape->rank - 1], rows = mz_shape_count(shape) / width;
    // Columns come first, because dx may overwrite dy.
    for (int64_t c = 0; c < width; c++) {
        double dweight = 0, dbias = 0;
        for (int64_t r = 0; r < rows; r++) {
            double mean = mz_ref_get(mz_in(call, layernorm_bwd, mean), r),
                   rstd = mz_ref_get(mz_in(call, layernorm_bwd, rstd), r);
            double g = mz_ref_get(dy, r * width + c);
            dweight += g * (mz_ref_get(x, r * width + c) - mean) * rstd;
            dbias += g;
        }
        if (mz_present(mz_out(call, layernorm_bwd, dweight)))
            mz_ref_put_gradient(call, 1, c, dweight);
        if (mz_present(mz_out(call, layernorm_bwd, dbias)))
            mz_ref_put_gradient(call, 2, c, dbias);
    }
    for (int64_t r = 0; r < rows; r++) {
        double mean = mz_ref_get(mz_in(call, layernorm_bwd, mean), r),
               rstd = mz_ref_get(mz_in(call, layernorm_bwd, rstd), r);
        double g_mean = 0, gx_mean = 0;
        for (int64_t c = 0; c < width; c++) {
            double g = mz_ref_get(dy, r * width + c) * (mz_present(weight) ? mz_ref_get(weight, c) : 1);
            g_mean += g;
            gx_mean += g * (mz_ref_get(x, r * width + c) - mean) * rstd;
        }
        g_mean /= (double)width;
        gx_mean /= (double)width;
        for (int64_t c = 0; c < width; c++) {
            int64_t i = r * width + c;
            double g = mz_ref_get(dy, i) * (mz_present(weight) ? mz_ref_get(weight, c) : 1);
            double normal = (mz_ref_get(x, i) - mean) * rstd;
            double d = rstd * (g - g_mean - normal * gx_mean);
            mz_ref_put(dx, i, mz_present(dres) ? d + mz_ref_get(dres, i) : d);
            if (mz_present(mz_out(call, layernorm_bwd, low)))
                mz_ref_put(mz_out(call, layernorm_bwd, low), i, mz_ref_get(dx, i));
        }
    }
    for (int64_t c = 0; mz_present(mz_out(call, layernorm_bwd, linear_dbias)) && c < width; c++) {
        double linear_dbias = 0;
        for (int64_t r = 0; r < rows; r++)
            linear_dbias += mz_ref_get(
                mz_present(mz_out(call, layernorm_bwd, low)) ? mz_out(call, layernorm_bwd, low) : dx, r * width + c);
        mz_ref_put_gradient(call, 4, c, linear_dbias);
    }
}

// Returns a column's factor.
static double rmsnorm_weight(const mz_call *call, const mz_tensor *weight, int64_t c) {
    return mz_present(weight) ? mz_ref_get(weight, c) + (double)call->attrs.offset : 1;
}

// Returns the normalized value's input, as layernorm_input does.
static double rmsnorm_input(const mz_call *call, int64_t i) {
    double s = mz_ref_get(mz_in(call, rmsnorm, x), i);
    if (mz_present(mz_in(call, rmsnorm, residual)))
        s += mz_ref_get(mz_in(call, rmsnorm, residual), i);
    return mz_present(mz_out(call, rmsnorm, sum)) ? mezzo_round_to(s, mz_out(call, rmsnorm, sum)->dtype) : s;
}

void mz_ref_rmsnorm(const mz_call *call) {
    const mz_tensor *weight = mz_in(call, rmsnorm, weight);
    const mz_shape *shape = &mz_out(call, rmsnorm, y)->shape;
    int64_t width = shape->dim[shape->rank - 1], rows = mz_shape_count(shape) / width;
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t c = 0; c < width; c++) {
            double s = rmsnorm_input(call, r * width + c);
            squares += s * s;
        }
        double rstd = 1 / sqrt(squares / (double)width + (double)call->attrs.eps);
        for (int64_t c = 0; c < width; c++) {
            double s = rmsnorm_input(call, r * width + c);
            if (mz_present(mz_out(call, rmsnorm, sum)))
                mz_ref_put(mz_out(call, rmsnorm, sum), r * width + c, s);
            mz_ref_put(mz_out(call, rmsnorm, y), r * width + c, s * rstd * rmsnorm_weight(call, weight, c));
        }
        if (mz_present(mz_out(call, rmsnorm, rstd)))
            mz_ref_put(mz_out(call, rmsnorm, rstd), r, rstd);
    }
}

// Computes, with x̂ = x·rstd and g = dy·(weight + offset): dx = rstd·(g - x̂·mean(g·x̂)) + dres, dweight = Σ_rows
// dy·x̂.
void mz_ref_rmsnorm_bwd(const mz_call *call) {
    const mz_tensor *dy = mz_in(call, rmsnorm_bwd, dy), *x = mz_in(call, rmsnorm_bwd, x),
                    *weight = mz_in(call, rmsnorm_bwd, weight), *rstds = mz_in(call, rmsnorm_bwd, rstd);
    const mz_tensor *dres = mz_in(call, rmsnorm_bwd, dres), *dx = mz_out(call, rmsnorm_bwd, dx);
    const mz_shape *shape = &dx->shape;
    int64_t width = shape->dim[shape->rank - 1], rows = mz_shape_count(shape) / width;
    for (int64_t c = 0; mz_present(mz_out(call, rmsnorm_bwd, dweight)) && c < width;
         c++) { // columns come first, because dx may overwrite dy
        double dweight = 0;
        for (int64_t r = 0; r < rows; r++)
            dweight += mz_ref_get(dy, r * width + c) * mz_ref_get(x, r * width + c) * mz_ref_get(rstds, r);
        mz_ref_put_gradient(call, 1, c, dweight);
    }
    for (int64_t r = 0; r < rows; r++) {
        double rstd = mz_ref_get(rstds, r), gx_mean = 0;
        for (int64_t c = 0; c < width; c++) {
            double g = mz_ref_get(dy, r * width + c) * rmsnorm_weight(call, weight, c);
            gx_mean += g * mz_ref_get(x, r * width + c) * rstd;
        }
        gx_mean /= (double)width;
        for (int64_t c = 0; c < width; c++) {
            int64_t i = r * width + c;
            double g = mz_ref_get(dy, i) * rmsnorm_weight(call, weight, c);
            double d = rstd * (g - mz_ref_get(x, i) * rstd * gx_mean);
            mz_ref_put(dx, i, mz_present(dres) ? d + mz_ref_get(dres, i) : d);
            if (mz_present(mz_out(call, rmsnorm_bwd, low)))
                mz_ref_put(mz_out(call, rmsnorm_bwd, low), i, mz_ref_get(dx, i));
        }
    }
}

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
