// Runs the ops between the products that make a matrix orthogonal (optim/orthogonal.c).
#include <math.h>

#include "backend/ref/ref.h"
#include "backend/update.h"

static int64_t elements_of_matrix(const mz_shape *s) {
    return s->dim[s->rank - 2] * s->dim[s->rank - 1];
}

void mz_ref_matrix_normalize(const mz_call *call) {
    const int64_t all = mz_shape_count(&mz_in(call, matrix_normalize, x)->shape),
                  n = elements_of_matrix(&mz_in(call, matrix_normalize, x)->shape);
    for (int64_t first = 0; first < all; first += n) {
        double sum = 0;
        for (int64_t i = first; i < first + n; i++) {
            const double x = mz_ref_get(mz_in(call, matrix_normalize, x), i);
            sum += x * x;
        }
        const double norm = fmax(sqrt(sum), (double)call->attrs.eps);
        for (int64_t i = first; i < first + n; i++)
            mz_ref_put(mz_out(call, matrix_normalize, y), i,
                       mz_ref_get(mz_in(call, matrix_normalize, x), i) * ((double)call->attrs.alpha / norm));
    }
}

void mz_ref_matrix_scale_rows(const mz_call *call) {
    const mz_shape *shape = &mz_in(call, matrix_scale_rows, x)->shape;
    const int64_t width = shape->dim[shape->rank - 1], n = elements_of_matrix(shape), rows = n / width;
    const double beta = (double)call->attrs.coefficients[0], columns = (double)call->attrs.coefficients[1];
    float *v = mz_out(call, matrix_scale_rows, v)->data;
    if (((const mz_opt_state *)mz_in(call, matrix_scale_rows, state)->data)->skip)
        return;
    for (int64_t first = 0; first < mz_shape_count(shape); first += n, v += rows) {
        double all = 0;
        for (int64_t row = 0; row < rows; row++) {
            double sum = 0;
            for (int64_t i = first + row * width; i < first + (row + 1) * width; i++)
                sum +=
                    mz_ref_get(mz_in(call, matrix_scale_rows, x), i) * mz_ref_get(mz_in(call, matrix_scale_rows, x), i);
            v[row] = (float)(beta * (double)v[row] + (1 - beta) * sum / columns);
            const double root = sqrt((double)v[row]) + (double)call->attrs.eps;
            all += sum / (root * root);
        }
        const double factor = all > 0 ? (double)call->attrs.alpha / sqrt(all) : 0;
        for (int64_t i = first; i < first + n; i++) {
            const double root = sqrt((double)v[(i - first) / width]) + (double)call->attrs.eps;
            mz_ref_put(mz_out(call, matrix_scale_rows, y), i,
                       mz_ref_get(mz_in(call, matrix_scale_rows, x), i) * (factor / root));
        }
    }
}
