// Runs ops on images [B, height, width, channels]: convolution, group norm, resampling; noise and the embedding of
// times.
#include <math.h>

#include "backend/ref/ref.h"

// --- convolution ---------------------------------------------------------------------------------------------------
// The sizes of a convolution: x [B, H, W, C], w [N, R, S, C/groups], y [B, P, Q, N].
typedef struct convolution {
    int64_t b, h, w, c, n, r, s, depth, p, q; // depth: channels of x in a group
    const mz_attrs *attrs;
} convolution;

static convolution convolution_of(const mz_call *call, const mz_shape *x, const mz_shape *w, const mz_shape *y) {
    return (convolution){.b = x->dim[0],
                         .h = x->dim[1],
                         .w = x->dim[2],
                         .c = x->dim[3],
                         .n = w->dim[0],
                         .r = w->dim[1],
                         .s = w->dim[2],
                         .depth = w->dim[3],
                         .p = y->dim[1],
                         .q = y->dim[2],
                         .attrs = &call->attrs};
}

// Returns the element of x that row p, column q of y multiplies at (r, s), for channel d of the group of channel n; -1:
// it is padding.
static int64_t met(const convolution *v, int64_t image, int64_t p, int64_t q, int64_t r, int64_t s, int64_t n,
                   int64_t d) {
    int64_t h = p * v->attrs->stride - v->attrs->pad_before + r, w = q * v->attrs->stride - v->attrs->pad_before + s;
    int64_t group = n / (v->n / v->attrs->groups);
    return h < 0 || h >= v->h || w < 0 || w >= v->w ? -1
                                                    : ((image * v->h + h) * v->w + w) * v->c + group * v->depth + d;
}

// Calls `term` for every pair of an element of x and one of w whose product an element of y sums.
typedef void term_fn(void *sums, const double *a, const double *b, int64_t x, int64_t w, int64_t y);
static void each_term(const convolution *v, term_fn *term, void *sums, const double *a, const double *b) {
    const int64_t taps = v->r * v->s * v->depth;
    for (int64_t y = 0; y < v->b * v->p * v->q * v->n; y++) {
        int64_t n = y % v->n, q = y / v->n % v->q, p = y / v->n / v->q % v->p, image = y / v->n / v->q / v->p;
        for (int64_t tap = 0; tap < taps; tap++) {
            int64_t x = met(v, image, p, q, tap / v->depth / v->s, tap / v->depth % v->s, n, tap % v->depth);
            if (x >= 0)
                term(sums, a, b, x, n * taps + tap, y);
        }
    }
}

static void forward_term(void *sums, const double *x, const double *w, int64_t i, int64_t j, int64_t y) {
    ((double *)sums)[y] += x[i] * w[j];
}
static void dx_term(void *sums, const double *dy, const double *w, int64_t i, int64_t j, int64_t y) {
    ((double *)sums)[i] += dy[y] * w[j];
}
static void dw_term(void *sums, const double *dy, const double *x, int64_t i, int64_t j, int64_t y) {
    ((double *)sums)[j] += dy[y] * x[i];
}

void mz_ref_conv2d(const mz_call *call) {
    const mz_tensor *y = mz_out(call, conv2d, y);
    const convolution v =
        convolution_of(call, &mz_in(call, conv2d, x)->shape, &mz_in(call, conv2d, w)->shape, &y->shape);
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *x = mz_ref_operand(&scratch, mz_in(call, conv2d, x), call->numerics.compute);
    const double *w = mz_ref_operand(&scratch, mz_in(call, conv2d, w), call->numerics.compute);
    double *sums = mz_ref_zeros(&scratch, mz_shape_count(&y->shape));
    each_term(&v, forward_term, sums, x, w);
    for (int64_t i = 0; i < mz_shape_count(&y->shape); i++) {
        double bias = mz_present(mz_in(call, conv2d, bias)) ? mz_ref_get(mz_in(call, conv2d, bias), i % v.n) : 0;
        mz_ref_put(y, i, mezzo_round_to(sums[i] + bias, call->attrs.via));
    }
}

void mz_ref_conv2d_dx(const mz_call *call) {
    const mz_tensor *dx = mz_out(call, conv2d_dx, dx);
    const convolution v =
        convolution_of(call, &dx->shape, &mz_in(call, conv2d_dx, w)->shape, &mz_in(call, conv2d_dx, dy)->shape);
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *dy = mz_ref_operand(&scratch, mz_in(call, conv2d_dx, dy), call->numerics.compute);
    const double *w = mz_ref_operand(&scratch, mz_in(call, conv2d_dx, w), call->numerics.compute);
    double *sums = mz_ref_zeros(&scratch, mz_shape_count(&dx->shape));
    each_term(&v, dx_term, sums, dy, w);
    for (int64_t i = 0; i < mz_shape_count(&dx->shape); i++)
        mz_ref_put(dx, i, sums[i]);
}

void mz_ref_conv2d_dw(const mz_call *call) {
    const mz_tensor *dw = mz_out(call, conv2d_dw, dw), *dy = mz_in(call, conv2d_dw, dy);
    const convolution v = convolution_of(call, &mz_in(call, conv2d_dw, x)->shape, &dw->shape, &dy->shape);
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *gradient = mz_ref_operand(&scratch, dy, call->numerics.compute);
    const double *x = mz_ref_operand(&scratch, mz_in(call, conv2d_dw, x), call->numerics.compute);
    double *sums = mz_ref_zeros(&scratch, mz_shape_count(&dw->shape));
    each_term(&v, dw_term, sums, gradient, x);
    for (int64_t i = 0; i < mz_shape_count(&dw->shape); i++)
        mz_ref_put_gradient(call, 0, i, sums[i]);
    for (int64_t n = 0; mz_present(mz_out(call, conv2d_dw, db)) && n < v.n; n++) {
        double sum = 0;
        for (int64_t row = 0; row < v.b * v.p * v.q; row++)
            sum += mz_ref_get(dy, row * v.n + n);
        mz_ref_put_gradient(call, 1, n, sum);
    }
}

// --- group norm ----------------------------------------------------------------------------------------------------
// The sizes of a norm: x [B, pixels, C] in groups of `depth` channels.
typedef struct groups {
    int64_t b, pixels, c, groups, depth;
} groups;

static groups groups_of(const mz_call *call, const mz_shape *x) {
    int64_t b = x->dim[0], c = x->dim[x->rank - 1];
    return (groups){b, mz_shape_count(x) / b / c, c, call->attrs.groups, c / call->attrs.groups};
}

static double or_else(const mz_tensor *t, int64_t i, double absent) {
    return mz_present(t) ? mz_ref_get(t, i) : absent;
}

void mz_ref_group_norm(const mz_call *call) {
    const mz_tensor *x = mz_in(call, group_norm, x), *film = mz_in(call, group_norm, film);
    const groups v = groups_of(call, &x->shape);
    for (int64_t row = 0; row < v.b * v.groups; row++) {
        const int64_t image = row / v.groups, first = row % v.groups * v.depth, n = v.pixels * v.depth;
        const int64_t base = image * v.pixels * v.c + first;
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < n; i++)
            mean += mz_ref_get(x, base + i / v.depth * v.c + i % v.depth);
        mean /= (double)n;
        for (int64_t i = 0; i < n; i++) {
            double d = mz_ref_get(x, base + i / v.depth * v.c + i % v.depth) - mean;
            variance += d * d;
        }
        const double rstd = 1 / sqrt(variance / (double)n + (double)call->attrs.eps);
        for (int64_t i = 0; i < n; i++) {
            const int64_t c = first + i % v.depth, at = base + i / v.depth * v.c + i % v.depth;
            double z = (mz_ref_get(x, at) - mean) * rstd * or_else(mz_in(call, group_norm, weight), c, 1) +
                       or_else(mz_in(call, group_norm, bias), c, 0);
            z = z * (1 + or_else(film, image * 2 * v.c + c, 0)) + or_else(film, image * 2 * v.c + v.c + c, 0);
            mz_ref_put(mz_out(call, group_norm, y), at, mz_ref_activation(call->attrs.act, z));
        }
        if (mz_present(mz_out(call, group_norm, mean)))
            mz_ref_put(mz_out(call, group_norm, mean), row, mean);
        if (mz_present(mz_out(call, group_norm, rstd)))
            mz_ref_put(mz_out(call, group_norm, rstd), row, rstd);
    }
}

// Holds derivatives. With x̂ = (x - mean)·rstd, n = x̂·weight + bias, s = 1 + scale, z = n·s + shift and dz =
// dy·act'(z): dshift = Σ dz, dscale = Σ dz·n over an image's pixels; dbias = Σ dz·s, dweight = Σ dz·s·x̂, both also
// over images; g = dz·s·weight, dx = rstd·(g - mean(g) - x̂·mean(g·x̂)) over the group.
typedef struct derivatives {
    double normal, n, s, dz, g;
} derivatives;

static derivatives derivatives_at(const mz_call *call, const groups *v, int64_t image, int64_t at) {
    const int64_t c = at % v->c, row = image * v->groups + c / v->depth;
    const mz_tensor *film = mz_in(call, group_norm_bwd, film);
    const double weight = or_else(mz_in(call, group_norm_bwd, weight), c, 1);
    derivatives d = {.normal = (mz_ref_get(mz_in(call, group_norm_bwd, x), at) -
                                mz_ref_get(mz_in(call, group_norm_bwd, mean), row)) *
                               mz_ref_get(mz_in(call, group_norm_bwd, rstd), row)};
    d.n = d.normal * weight + or_else(mz_in(call, group_norm_bwd, bias), c, 0);
    d.s = 1 + or_else(film, image * 2 * v->c + c, 0);
    const double z = d.n * d.s + or_else(film, image * 2 * v->c + v->c + c, 0);
    d.dz = mz_ref_activation_dx(call->attrs.act, mz_ref_get(mz_in(call, group_norm_bwd, dy), at), z);
    d.g = d.dz * d.s * weight;
    return d;
}

void mz_ref_group_norm_bwd(const mz_call *call) {
    const groups v = groups_of(call, &mz_out(call, group_norm_bwd, dx)->shape);
    const mz_tensor *dfilm = mz_out(call, group_norm_bwd, dfilm);
    for (int64_t c = 0; c < v.c; c++) {
        double dweight = 0, dbias = 0;
        for (int64_t image = 0; image < v.b; image++) {
            double dscale = 0, dshift = 0;
            for (int64_t pixel = 0; pixel < v.pixels; pixel++) {
                const derivatives d = derivatives_at(call, &v, image, (image * v.pixels + pixel) * v.c + c);
                dscale += d.dz * d.n;
                dshift += d.dz;
                dweight += d.dz * d.s * d.normal;
                dbias += d.dz * d.s;
            }
            if (mz_present(dfilm)) {
                mz_ref_put(dfilm, image * 2 * v.c + c, dscale);
                mz_ref_put(dfilm, image * 2 * v.c + v.c + c, dshift);
            }
        }
        if (mz_present(mz_out(call, group_norm_bwd, dweight)))
            mz_ref_put_gradient(call, 2, c, dweight);
        if (mz_present(mz_out(call, group_norm_bwd, dbias)))
            mz_ref_put_gradient(call, 3, c, dbias);
    }
    for (int64_t row = 0; row < v.b * v.groups; row++) {
        const int64_t image = row / v.groups, n = v.pixels * v.depth;
        const int64_t base = image * v.pixels * v.c + row % v.groups * v.depth;
        double mean = 0, mean_normal = 0;
        for (int64_t i = 0; i < n; i++) {
            const derivatives d = derivatives_at(call, &v, image, base + i / v.depth * v.c + i % v.depth);
            mean += d.g / (double)n;
            mean_normal += d.g * d.normal / (double)n;
        }
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = base + i / v.depth * v.c + i % v.depth;
            const derivatives d = derivatives_at(call, &v, image, at);
            mz_ref_put(mz_out(call, group_norm_bwd, dx), at,
                       mz_ref_get(mz_in(call, group_norm_bwd, rstd), row) * (d.g - mean - d.normal * mean_normal));
        }
    }
}

// --- resampling ----------------------------------------------------------------------------------------------------
void mz_ref_upsample(const mz_call *call) {
    const mz_shape *x = &mz_in(call, upsample, x)->shape, *y = &mz_out(call, upsample, y)->shape;
    const int64_t f = call->attrs.factor, c = y->dim[3];
    for (int64_t i = 0; i < mz_shape_count(y); i++) {
        const int64_t w = i / c % y->dim[2] / f, h = i / c / y->dim[2] % y->dim[1] / f,
                      b = i / c / y->dim[2] / y->dim[1];
        const double value = mz_ref_get(mz_in(call, upsample, x), ((b * x->dim[1] + h) * x->dim[2] + w) * c + i % c);
        mz_ref_put(mz_out(call, upsample, y), i, (double)call->attrs.alpha * value);
    }
}

void mz_ref_pool(const mz_call *call) {
    const mz_shape *x = &mz_in(call, pool, x)->shape, *y = &mz_out(call, pool, y)->shape;
    const int64_t f = call->attrs.factor, c = y->dim[3];
    for (int64_t i = 0; i < mz_shape_count(y); i++) {
        const int64_t w = i / c % y->dim[2] * f, h = i / c / y->dim[2] % y->dim[1] * f,
                      b = i / c / y->dim[2] / y->dim[1];
        double sum = 0;
        for (int64_t k = 0; k < f * f; k++)
            sum += mz_ref_get(mz_in(call, pool, x), ((b * x->dim[1] + h + k / f) * x->dim[2] + w + k % f) * c + i % c);
        mz_ref_put(mz_out(call, pool, y), i, (double)call->attrs.alpha * sum);
    }
}

// The place in x of the first largest element of window o, in x [outer, axis, inner]; -1: none is inside.
static int64_t first_largest(const mz_call *call, const mz_tensor *x, mz_ref_view v, int64_t outer, int64_t o,
                             int64_t inner) {
    int64_t first = -1;
    for (int64_t k = 0; k < call->attrs.factor; k++) {
        const int64_t a = o * call->attrs.stride + k * call->attrs.step - call->attrs.pad_before,
                      at = (outer * v.axis + a) * v.inner + inner;
        if (a < 0 || a >= v.axis)
            continue;
        if (first < 0 || (!isnan(mz_ref_get(x, first)) && !(mz_ref_get(x, at) <= mz_ref_get(x, first))))
            first = at;
    }
    return first;
}

void mz_ref_max_pool(const mz_call *call) {
    const mz_tensor *x = mz_in(call, max_pool, x), *y = mz_out(call, max_pool, y);
    const mz_ref_view v = mz_ref_view_along(&x->shape, call->attrs.axis);
    const int64_t n = y->shape.dim[call->attrs.axis];
    for (int64_t i = 0; i < mz_shape_count(&y->shape); i++) {
        const int64_t at = first_largest(call, x, v, i / v.inner / n, i / v.inner % n, i % v.inner);
        mz_ref_put(y, i, at < 0 ? -INFINITY : mz_ref_get(x, at));
    }
}

void mz_ref_max_pool_dx(const mz_call *call) {
    const mz_tensor *x = mz_in(call, max_pool_dx, x), *dy = mz_in(call, max_pool_dx, dy);
    const mz_ref_view v = mz_ref_view_along(&x->shape, call->attrs.axis);
    const int64_t n = dy->shape.dim[call->attrs.axis];
    for (int64_t i = 0; i < mz_shape_count(&x->shape); i++) {
        const int64_t outer = i / v.inner / v.axis;
        double sum = 0;
        for (int64_t o = 0; o < n; o++)
            if (first_largest(call, x, v, outer, o, i % v.inner) == i)
                sum += mz_ref_get(dy, (outer * n + o) * v.inner + i % v.inner);
        mz_ref_put(mz_out(call, max_pool_dx, dx), i, sum);
    }
}

// --- noise and times -----------------------------------------------------------------------------------------------
void mz_ref_normal(const mz_call *call) {
    const mz_shape *shape = &mz_out(call, normal, y)->shape;
    const int64_t row = mz_shape_count(shape) / shape->dim[0];
    for (int64_t i = 0; i < mz_shape_count(shape); i++) {
        uint32_t words[4];
        float numbers[4];
        const int32_t low = mz_ref_integer(mz_in(call, normal, keys), i / row * 2),
                      high = mz_ref_integer(mz_in(call, normal, keys), i / row * 2 + 1);
        mz_philox(mz_noise_key(low, high), (uint64_t)(i % row) >> 2, words);
        mz_normal4(words, numbers);
        mz_ref_put(mz_out(call, normal, y), i, (double)numbers[i % row & 3]);
    }
}

void mz_ref_time_embedding(const mz_call *call) {
    const int64_t dims = mz_out(call, time_embedding, y)->shape.dim[1], half = dims / 2;
    for (int64_t i = 0; i < mz_shape_count(&mz_out(call, time_embedding, y)->shape); i++) {
        const int64_t k = i % dims % half;
        const double angle = (double)call->attrs.alpha * mz_ref_get(mz_in(call, time_embedding, times), i / dims) *
                             pow((double)call->attrs.theta, -(double)k / (double)half);
        mz_ref_put(mz_out(call, time_embedding, y), i, i % dims < half ? cos(angle) : sin(angle));
    }
}
