// Computes linear layers and matrix products, forward and backward.
#include "backend/ref/ref.h"

#include <math.h>

#include "base/blocks.h"
#include "backend/scales.h"

// Reads an operand [n, k], or [k, n] where the product sums over its first dimension, in blocks along k as attrs.blocks
// stores it. Its numbers have at most FP32's bits.
static const double *operand(mz_ref_scratch *scratch, const mz_call *call, int slot, int64_t k, bool first) {
    double *x = mz_ref_operand(scratch, &call->in[slot], call->numerics.compute);
    const int64_t count = mz_shape_count(&call->in[slot].shape), n = count / k, stride = first ? n : 1;
    if (call->attrs.blocks == MEZZO_BLOCKS_NONE)
        return x;
    const mz_blocks_how how = mz_blocks_of(call, slot);
    const int64_t before = call->attrs.first_row * call->in[slot].shape.dim[call->in[slot].shape.rank - 1];
    float *y = (float *)(void *)x; // in the same memory: number i is read before its place is written
    for (int64_t i = 0; i < count; i++) {
        const float one = (float)x[i];
        memcpy(&y[i], &one, sizeof one);
    }
    for (int64_t run = 0; run < n && how.hadamard; run++)
        mz_blocks_turn_run(how.format, how.signs, y + (first ? run : run * k), k, stride);
    const float tensor = mz_blocks_tensor_scale(how.format, mz_blocks_amax(y, count));
    for (int64_t run = 0; run < n; run++) {
        const int64_t at = first ? run : run * k;
        mz_blocks_round_run(&how, y + at, k, stride, tensor, before + at);
    }
    for (int64_t i = count - 1; i >= 0; i--) {
        float one;
        memcpy(&one, &y[i], sizeof one);
        const double wide = (double)one;
        memcpy(&x[i], &wide, sizeof wide);
    }
    return x;
}

void mz_ref_linear(const mz_call *call) {
    const mz_tensor *y = mz_out(call, linear, y), *preact = mz_out(call, linear, preact);
    mezzo_dtype via = call->attrs.via;
    int64_t n_out = mz_in(call, linear, w)->shape.dim[0], n_in = mz_in(call, linear, w)->shape.dim[1]; // w [N, K]
    int64_t rows = mz_shape_count(&y->shape) / n_out;
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *x = operand(&scratch, call, 0, n_in, false);                           // [M, K]
    const double *w = operand(&scratch, call, 1, n_in, false);                           // [N, K]
    const double *bias = mz_ref_operand(&scratch, mz_in(call, linear, bias), MEZZO_F64); // [N]
    for (int64_t m = 0; m < rows; m++)
        for (int64_t n = 0; n < n_out; n++) {
            double sum = 0;
            for (int64_t k = 0; k < n_in; k++)
                sum += x[m * n_in + k] * w[n * n_in + k];
            double z = mezzo_round_to(bias != NULL ? sum + bias[n] : sum, via);
            if (mz_present(preact))
                mz_ref_put(preact, m * n_out + n, z);
            double a = call->attrs.act == MZ_ACT_NONE ? z : mezzo_round_to(mz_ref_activation(call->attrs.act, z), via);
            if (mz_present(mz_in(call, linear, residual)))
                a += mz_ref_get(mz_in(call, linear, residual), m * n_out + n);
            mz_ref_put(y, m * n_out + n, a);
        }
}

void mz_ref_linear_dx(const mz_call *call) {
    const mz_tensor *preact = mz_in(call, linear_dx, preact), *dx = mz_out(call, linear_dx, dx);
    int64_t n_out = mz_in(call, linear_dx, w)->shape.dim[0], n_in = mz_in(call, linear_dx, w)->shape.dim[1]; // w [N, K]
    int64_t rows = mz_shape_count(&dx->shape) / n_in;
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *dy = operand(&scratch, call, 0, n_out, false); // [M, N]
    const double *w = operand(&scratch, call, 1, n_out, true);   // [N, K]
    for (int64_t m = 0; m < rows; m++)
        for (int64_t k = 0; k < n_in; k++) {
            double sum = 0;
            for (int64_t n = 0; n < n_out; n++)
                sum += dy[m * n_out + n] * w[n * n_in + k];
            if (mz_present(preact))
                sum = mz_ref_activation_dx(call->attrs.act, sum, mz_ref_get(preact, m * n_in + k));
            mz_ref_put(dx, m * n_in + k, sum);
            if (mz_present(mz_out(call, linear_dx, act_out)))
                mz_ref_put(mz_out(call, linear_dx, act_out), m * n_in + k,
                           mz_ref_activation(call->attrs.act, mz_ref_get(preact, m * n_in + k)));
        }
    for (int64_t k = 0; mz_present(mz_out(call, linear_dx, dbias)) && k < n_in; k++) {
        double sum = 0;
        for (int64_t m = 0; m < rows; m++)
            sum += mz_ref_get(dx, m * n_in + k);
        mz_ref_put_gradient(call, 1, k, sum);
    }
}

void mz_ref_linear_dw(const mz_call *call) {
    int64_t n_out = mz_out(call, linear_dw, dw)->shape.dim[0],
            n_in = mz_out(call, linear_dw, dw)->shape.dim[1]; // dw [N, K]
    int64_t rows = mz_shape_count(&mz_in(call, linear_dw, dy)->shape) / n_out;
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *dy = operand(&scratch, call, 0, rows, true); // [M, N]
    const double *x = operand(&scratch, call, 1, rows, true);  // [M, K]
    for (int64_t n = 0; n < n_out; n++) {
        for (int64_t k = 0; k < n_in; k++) {
            double sum = 0;
            for (int64_t m = 0; m < rows; m++)
                sum += dy[m * n_out + n] * x[m * n_in + k];
            mz_ref_put_gradient(call, 0, n * n_in + k, sum);
        }
        if (mz_present(mz_out(call, linear_dw, db))) {
            double sum = 0;
            for (int64_t m = 0; m < rows; m++)
                sum += mz_ref_get(mz_in(call, linear_dw, dy), m * n_out + n);
            mz_ref_put_gradient(call, 1, n, sum);
        }
    }
}

void mz_ref_matmul(const mz_call *call) {
    const mz_shape *as = &mz_in(call, matmul, a)->shape, *ys = &mz_out(call, matmul, y)->shape;
    const mz_tensor *added = mz_in(call, matmul, added);
    bool ta = call->attrs.transpose_a, tb = call->attrs.transpose_b;
    int64_t rows = ys->dim[ys->rank - 2], cols = ys->dim[ys->rank - 1];
    int64_t inner = as->dim[as->rank - (ta ? 2 : 1)];
    int64_t batches = mz_shape_count(ys) / (rows * cols);
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *a =
        mz_ref_operand(&scratch, mz_in(call, matmul, a), call->numerics.compute); // [batch, M, K] or [batch, K, M]
    const double *b =
        mz_ref_operand(&scratch, mz_in(call, matmul, b), call->numerics.compute); // [batch, K, N] or [batch, N, K]
    for (int64_t i = 0; i < batches; i++, a += rows * inner, b += inner * cols)
        for (int64_t m = 0; m < rows; m++)
            for (int64_t n = 0; n < cols; n++) {
                double sum = 0;
                for (int64_t k = 0; k < inner; k++)
                    sum += a[ta ? k * rows + m : m * inner + k] * b[tb ? n * inner + k : k * cols + n];
                if (mz_present(added))
                    sum = (double)call->attrs.coefficients[0] * sum +
                          (double)call->attrs.coefficients[1] * mz_ref_get(added, (i * rows + m) * cols + n) +
                          (m == n ? (double)call->attrs.coefficients[2] : 0);
                mz_ref_put(mz_out(call, matmul, y), (i * rows + m) * cols + n, sum);
            }
}
