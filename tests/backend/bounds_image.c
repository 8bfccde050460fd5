// Bounds of the ops on images, as bounds.c's.
#include <math.h>

#include "bounds.h"
#include "test.h"

static const double u32 = 0x1p-24;

static double magnitude(const trial_tensor *t, int64_t i, double absent) {
    return mz_present(&t->t) ? fabs(t->value[i]) : absent;
}

// TF32 operands may be cut off, as in bounds.c.
static double tf32_slack(const trial *t, double terms) {
    return t->numerics.compute == MEZZO_TF32 ? 2 * 0x1p-10 * terms : 0;
}

// --- convolution ---------------------------------------------------------------------------------------------------
// Adds |a·b| of every product to what it is summed into, and counts the longest sum.
typedef struct convolution {
    const mz_shape *x, *w, *y;
    const trial *t;
} convolution;

static void each_product(const convolution *v, const double *x, const double *w, const double *y, double *into,
                         double *length) {
    const int64_t taps = v->w->dim[1] * v->w->dim[2] * v->w->dim[3], channels = v->w->dim[0];
    const mz_attrs *a = &v->t->attrs;
    for (int64_t i = 0; i < mz_shape_count(v->y); i++) {
        const int64_t n = i % channels, q = i / channels % v->y->dim[2], p = i / channels / v->y->dim[2] % v->y->dim[1];
        const int64_t image = i / channels / v->y->dim[2] / v->y->dim[1], group = n / (channels / a->groups);
        for (int64_t tap = 0; tap < taps; tap++) {
            const int64_t d = tap % v->w->dim[3], s = tap / v->w->dim[3] % v->w->dim[2],
                          r = tap / v->w->dim[3] / v->w->dim[2];
            const int64_t h = p * a->stride - a->pad_before + r, column = q * a->stride - a->pad_before + s;
            if (h < 0 || h >= v->x->dim[1] || column < 0 || column >= v->x->dim[2])
                continue;
            const int64_t at =
                ((image * v->x->dim[1] + h) * v->x->dim[2] + column) * v->x->dim[3] + group * v->w->dim[3] + d;
            const int64_t to = y == NULL ? i : x == NULL ? at : n * taps + tap;
            const double product =
                (x != NULL ? x[at] : 1) * (w != NULL ? w[n * taps + tap] : 1) * (y != NULL ? y[i] : 1);
            into[to] += fabs(product);
            length[to]++;
        }
    }
}

// K products and their sum: (K + 2)·u·Σ|x·w|; then a bias, and a rounding to `via`.
void bound_conv2d(trial *t) {
    trial_tensor *y = &t->out[0];
    const int64_t n = trial_count(y), channels = t->in[1].t.shape.dim[0];
    double *terms = mz_alloc((size_t)n, sizeof *terms), *length = mz_alloc((size_t)n, sizeof *length);
    assert_true(terms != NULL && length != NULL);
    const convolution v = {&t->in[0].t.shape, &t->in[1].t.shape, &y->t.shape, t};
    each_product(&v, t->in[0].value, t->in[1].value, NULL, terms, length);
    const double u_via = t->attrs.via == MEZZO_F32 ? 0 : 2 * unit_roundoff(t->attrs.via);
    for (int64_t i = 0; i < n; i++) {
        const double all = terms[i] + magnitude(&t->in[2], i % channels, 0);
        y->bound[i] = (length[i] + 2) * u32 * all + tf32_slack(t, terms[i]) + u_via * fabs(y->value[i]);
    }
    mz_free(terms);
    mz_free(length);
}

static void conv_gradient(trial *t, const convolution *v, const double *x, const double *w) {
    trial_tensor *out = &t->out[0];
    const int64_t n = trial_count(out);
    double *terms = mz_alloc((size_t)n, sizeof *terms), *length = mz_alloc((size_t)n, sizeof *length);
    assert_true(terms != NULL && length != NULL);
    each_product(v, x, w, t->in[0].value, terms, length);
    for (int64_t i = 0; i < n; i++) {
        const double preset = t->attrs.accumulate ? fabs(out->value[i]) + terms[i] : 0;
        out->bound[i] = (length[i] + 1) * u32 * (terms[i] + preset) + tf32_slack(t, terms[i]);
    }
    mz_free(terms);
    mz_free(length);
}

void bound_conv2d_dx(trial *t) {
    const convolution v = {&t->out[0].t.shape, &t->in[1].t.shape, &t->in[0].t.shape, t};
    conv_gradient(t, &v, NULL, t->in[1].value);
}

void bound_conv2d_dw(trial *t) {
    const convolution v = {&t->in[1].t.shape, &t->out[0].t.shape, &t->in[0].t.shape, t};
    conv_gradient(t, &v, t->in[1].value, NULL);
    trial_tensor *db = &t->out[1];
    const int64_t channels = v.w->dim[0], rows = trial_count(&t->in[0]) / channels;
    for (int64_t n = 0; mz_present(&db->t) && n < channels; n++) {
        double terms = 0;
        for (int64_t row = 0; row < rows; row++)
            terms += fabs(t->in[0].value[row * channels + n]);
        const double preset = t->attrs.accumulate ? fabs(db->value[n]) + terms : 0;
        db->bound[n] = (double)(rows + 1) * u32 * (terms + preset);
    }
}

// --- group norm ----------------------------------------------------------------------------------------------------
typedef struct groups {
    int64_t b, pixels, c, groups, depth, n; // n: numbers of a group
} groups;

static groups groups_of(const trial *t, const mz_shape *x) {
    const int64_t b = x->dim[0], c = x->dim[x->rank - 1], pixels = mz_shape_count(x) / b / c;
    const int64_t depth = c / t->attrs.groups;
    return (groups){b, pixels, c, t->attrs.groups, depth, pixels * depth};
}

static int64_t element(const groups *v, int64_t row, int64_t i) {
    return (row / v->groups * v->pixels + i / v->depth) * v->c + row % v->groups * v->depth + i % v->depth;
}

// n in magnitude and its error, then n·(1 + scale) + shift: 4·u of its parts more. SiLU's derivative is at most 1.1 and
// its own error 8·u of its argument.
void bound_group_norm(trial *t) {
    const groups v = groups_of(t, &t->in[0].t.shape);
    const trial_tensor *weight = &t->in[1], *bias = &t->in[2], *film = &t->in[3];
    for (int64_t row = 0; row < v.b * v.groups; row++) {
        double mean = 0, size = 0, variance = 0;
        for (int64_t i = 0; i < v.n; i++) {
            const double x = t->in[0].value[element(&v, row, i)];
            mean += x / (double)v.n;
            size += fabs(x) / (double)v.n;
        }
        for (int64_t i = 0; i < v.n; i++) {
            const double d = t->in[0].value[element(&v, row, i)] - mean;
            variance += d * d / (double)v.n;
        }
        const double rstd = 1 / sqrt(variance + (double)t->attrs.eps), steps = (double)(v.n + 8);
        const double mean_error = steps * u32 * size;
        const double rstd_error = steps * u32 + mean_error * mean_error * rstd * rstd;
        for (int64_t i = 0; i < v.n; i++) {
            const int64_t at = element(&v, row, i), c = at % v.c, image = row / v.groups;
            const double x = t->in[0].value[at], d = fabs(x - mean);
            const double x_error = rstd * (mean_error + 2 * u32 * fabs(x)) + d * rstd * (rstd_error + 3 * u32);
            const double factor = 1 + magnitude(film, image * 2 * v.c + c, 0);
            const double shift = magnitude(film, image * 2 * v.c + v.c + c, 0), w = magnitude(weight, c, 1);
            const double z = (w * d * rstd + magnitude(bias, c, 0)) * factor + shift;
            const double error = w * x_error * factor + 6 * u32 * z;
            t->out[0].bound[at] = t->attrs.act == MZ_ACT_NONE ? error : 1.1 * error + 8 * u32 * z;
        }
        if (mz_present(&t->out[1].t))
            t->out[1].bound[row] = mean_error;
        if (mz_present(&t->out[2].t))
            t->out[2].bound[row] = rstd_error * rstd;
    }
}

// What is known of an element: x̂, n, z in magnitude, dz in magnitude and its error (SiLU's derivative is at most 1.1
// and its second derivative at most 0.5, so that z's error moves dz by half of it; the derivative's own error is 12·u
// of its parts).
typedef struct derivatives {
    double normal, n, s, dz, dz_error;
} derivatives;

static derivatives derivatives_at(const trial *t, const groups *v, int64_t at) {
    const int64_t c = at % v->c, image = at / v->c / v->pixels, row = image * v->groups + c / v->depth;
    const trial_tensor *film = &t->in[4];
    derivatives d;
    d.normal = (fabs(t->in[1].value[at]) + fabs(t->in[5].value[row])) * fabs(t->in[6].value[row]);
    d.n = d.normal * magnitude(&t->in[2], c, 1) + magnitude(&t->in[3], c, 0);
    d.s = 1 + magnitude(film, image * 2 * v->c + c, 0);
    const double z = d.n * d.s + magnitude(film, image * 2 * v->c + v->c + c, 0), dy = fabs(t->in[0].value[at]);
    const bool silu = t->attrs.act == MZ_ACT_SILU;
    d.dz = silu ? 1.1 * dy : dy;
    d.dz_error = silu ? dy * (0.5 * 8 * u32 * z + 12 * u32 * (1 + 0.25 * z)) : 0;
    return d;
}

// A sum of `terms` numbers, each off by `error` in all, whose magnitudes add up to `size`.
static double summed(double terms, double size, double error) {
    return (terms + 8) * u32 * size + error;
}

static void bound_group_dx(trial *t, const groups *v) {
    for (int64_t row = 0; row < v->b * v->groups; row++) {
        double g = 0, g_error = 0, gx = 0, gx_error = 0;
        for (int64_t i = 0; i < v->n; i++) {
            const int64_t at = element(v, row, i);
            const derivatives d = derivatives_at(t, v, at);
            const double factor = d.s * magnitude(&t->in[2], at % v->c, 1) / (double)v->n;
            g += factor * d.dz;
            g_error += factor * d.dz_error;
            gx += factor * d.dz * d.normal;
            gx_error += factor * d.dz_error * d.normal;
        }
        for (int64_t i = 0; i < v->n; i++) {
            const int64_t at = element(v, row, i);
            const derivatives d = derivatives_at(t, v, at);
            const double factor = d.s * magnitude(&t->in[2], at % v->c, 1);
            const double size = factor * d.dz + g + d.normal * gx;
            const double error = factor * d.dz_error + g_error + d.normal * gx_error;
            t->out[0].bound[at] = fabs(t->in[6].value[row]) * summed((double)v->n, size, error);
        }
    }
}

void bound_group_norm_bwd(trial *t) {
    const groups v = groups_of(t, &t->out[0].t.shape);
    bound_group_dx(t, &v);
    for (int64_t c = 0; c < v.c; c++) {
        double sums[2] = {0}, errors[2] = {0}; // dweight, dbias
        for (int64_t image = 0; image < v.b; image++) {
            double film[2] = {0}, film_errors[2] = {0}; // dscale, dshift
            for (int64_t pixel = 0; pixel < v.pixels; pixel++) {
                const derivatives d = derivatives_at(t, &v, (image * v.pixels + pixel) * v.c + c);
                const double factors[] = {d.n, 1, d.s * d.normal, d.s};
                for (int k = 0; k < 2; k++) {
                    film[k] += factors[k] * d.dz;
                    film_errors[k] += factors[k] * d.dz_error;
                    sums[k] += factors[2 + k] * d.dz;
                    errors[k] += factors[2 + k] * d.dz_error;
                }
            }
            for (int k = 0; mz_present(&t->out[1].t) && k < 2; k++)
                t->out[1].bound[image * 2 * v.c + k * v.c + c] = summed((double)v.pixels, film[k], film_errors[k]);
        }
        for (int k = 0; k < 2; k++) {
            if (!mz_present(&t->out[2 + k].t))
                continue;
            const double preset = t->attrs.accumulate ? fabs(t->out[2 + k].value[c]) + sums[k] : 0;
            t->out[2 + k].bound[c] = summed((double)(v.b * v.pixels), sums[k] + preset, errors[k]);
        }
    }
}

// --- the rest ------------------------------------------------------------------------------------------------------
// factor² numbers and a product.
void bound_pool(trial *t) {
    const mz_shape *x = &t->in[0].t.shape, *y = &t->out[0].t.shape;
    const int64_t f = t->attrs.factor, c = y->dim[3];
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        const int64_t w = i / c % y->dim[2] * f, h = i / c / y->dim[2] % y->dim[1] * f,
                      b = i / c / y->dim[2] / y->dim[1];
        double terms = 0;
        for (int64_t k = 0; k < f * f; k++)
            terms += fabs(t->in[0].value[((b * x->dim[1] + h + k / f) * x->dim[2] + w + k % f) * c + i % c]);
        t->out[0].bound[i] = (double)(f * f + 1) * u32 * fabs((double)t->attrs.alpha) * terms;
    }
}

// A sum of dy of at most as many windows as one has elements.
void bound_max_pool_dx(trial *t) {
    const mz_attrs *a = &t->attrs;
    const mz_shape *x = &t->out[0].t.shape, *y = &t->in[0].t.shape;
    int64_t inner = 1;
    for (int d = a->axis + 1; d < x->rank; d++)
        inner *= x->dim[d];
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        const int64_t axis = x->dim[a->axis], outer = i / inner / axis, n = y->dim[a->axis];
        double terms = 0;
        for (int64_t k = 0; k < a->factor; k++) {
            const int64_t from = i / inner % axis + a->pad_before - k * a->step;
            if (from >= 0 && from % a->stride == 0 && from / a->stride < n)
                terms += fabs(t->in[0].value[(outer * n + from / a->stride) * inner + i % inner]);
        }
        t->out[0].bound[i] = a->factor * u32 * terms;
    }
}

// The angle may be rounded to FP32 three times, and so may the frequency.
void bound_time_embedding(trial *t) {
    const int64_t dims = t->out[0].t.shape.dim[1], half = dims / 2;
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        const double angle = (double)t->attrs.alpha * t->in[0].value[i / dims] *
                             pow((double)t->attrs.theta, -(double)(i % dims % half) / (double)half);
        t->out[0].bound[i] = 8 * u32 * (1 + fabs(angle));
    }
}

// The radius and the angle's function: logarithm, root and cosine may be FP32.
void bound_normal(trial *t) {
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++)
        t->out[0].bound[i] = 64 * u32;
}

// n squares of differences: each is off by 3u of itself, their sum by n·u of it, all of one sign; then the division.
void bound_mse(trial *t) {
    t->out[0].bound[0] = (double)(trial_count(&t->in[0]) + 4) * u32 * t->out[0].value[0];
}

// The factor 2/n, its product with dloss, the difference and the product of both: four roundings.
void bound_mse_dx(trial *t) {
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++)
        t->out[0].bound[i] = 4 * 0x1p-24 * fabs(t->out[0].value[i]);
}
