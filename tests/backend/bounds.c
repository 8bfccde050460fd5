// What a right kernel may differ by. Each bound is a worst case, to first order in the unit roundoff u of FP32 (2^-24),
// of computing the op's formula with FP32 operations in any order: a sum of n terms is off by at most n·u·Σ|terms|
// (Higham, "Accuracy and Stability of Numerical Algorithms", §4.2), a product or quotient by u of itself, exp, erf,
// tanh and log by a few u. Factors that a backend may round to numerics.compute on their way into a second product
// (attention's probabilities) add that format's roundoff. docs/dev/NUMERICS.md lists them all. Storage's rounding is
// added where results are judged (compare.c).
#include <math.h>
#include <stdlib.h>

#include "bounds.h"
#include "test.h"

static const double u32 = 0x1p-24;
static const double function_ulps = 8; // exp, erf, tanh, log and the few operations around them, in u

double unit_roundoff(mezzo_dtype dtype) {
    switch (dtype) {
    case MEZZO_F64:
        return 0x1p-53;
    case MEZZO_F32:
        return 0x1p-24;
    case MEZZO_TF32:
    case MEZZO_F16:
        return 0x1p-11;
    case MEZZO_BF16:
        return 0x1p-8;
    case MEZZO_F8E4M3:
        return 0x1p-4;
    case MEZZO_F8E5M2:
        return 0x1p-3;
    default:
        return 0;
    }
}

static bool has(const trial_tensor *t) {
    return mz_present(&t->t);
}

static double magnitude(const trial_tensor *t, int64_t i) {
    return fabs(t->value[i]);
}

// The preset of an output that is added to; 0 otherwise. The reference's result has it inside: |result| + Σ|terms|
// covers it.
static double preset(const trial *t, int slot, int64_t i, double terms) {
    return t->attrs.accumulate ? fabs(t->out[slot].value[i]) + terms : 0;
}

static int64_t width_of(const trial_tensor *t) {
    return t->t.shape.dim[t->t.shape.rank - 1];
}

// The roundoff of a format that numbers pass through; 0 for FP64, which rounds nothing here, and for FP32 (counted in
// the sums).
static double through(mezzo_dtype dtype) {
    return dtype == MEZZO_F64 || dtype == MEZZO_F32 ? 0 : unit_roundoff(dtype);
}

// Column sums of another output. What is summed was rounded when it was stored; the reference's was not.
static void stored_sums(trial *t, const trial_tensor *summed, int slot) {
    int64_t width = width_of(summed), rows = trial_count(summed) / width;
    for (int64_t c = 0; has(&t->out[slot]) && c < width; c++) {
        double sum = 0, off = 0;
        for (int64_t r = 0; r < rows; r++) {
            sum += magnitude(summed, r * width + c);
            off += summed->bound[r * width + c] + unit_roundoff(summed->t.dtype) * magnitude(summed, r * width + c);
        }
        t->out[slot].bound[c] = off + (double)(rows + 1) * u32 * (sum + preset(t, slot, c, sum));
    }
}

// --- products ------------------------------------------------------------------------------------------------------
// Σ|a|·|b| of a dot product of two strided rows.
static double dot_magnitude(const double *a, int64_t a_step, const double *b, int64_t b_step, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += fabs(a[i * a_step] * b[i * b_step]);
    return sum;
}

// TF32 operands may be rounded to nearest, as here, or cut off, as tensor cores do with FP32 numbers handed to them: a
// unit of the last place, 2^-10, between the two for each operand.
static double tf32_slack(const trial *t, double terms) {
    return t->numerics.compute == MEZZO_TF32 ? 2 * 0x1p-10 * terms : 0;
}

// The largest derivative of an activation: ReLU 1, SiLU 1.0999, GELU 1.1290.
static const double steepest = 1.13;

// z = x·wᵀ + bias: (K + 2)·u·(Σ|x·w| + |bias|). Rounding to `via` moves both results by up to u_via·|z| each. act
// carries z's error on at most `steepest` times and adds its own, relative to |z| (GELU's 1 + tanh cancels); then
// rounded to `via` again; the residual sum adds u of its parts.
static void linear(trial *t) {
    int64_t n_out = t->in[1].t.shape.dim[0], n_in = t->in[1].t.shape.dim[1], rows = trial_count(&t->out[0]) / n_out;
    double u_via = fmax(unit_roundoff(t->attrs.via), u32);
    trial_tensor *y = &t->out[0], *preact = &t->out[1];
    for (int64_t m = 0; m < rows; m++)
        for (int64_t n = 0; n < n_out; n++) {
            const double *x = t->in[0].value + m * n_in, *w = t->in[1].value + n * n_in;
            double terms = dot_magnitude(x, 1, w, 1, n_in), z = 0;
            for (int64_t k = 0; k < n_in; k++)
                z += x[k] * w[k];
            if (has(&t->in[2])) {
                terms += magnitude(&t->in[2], n);
                z += t->in[2].value[n];
            }
            int64_t i = m * n_out + n;
            double error = (double)(n_in + 2) * u32 * terms + tf32_slack(t, terms);
            if (has(preact))
                preact->bound[i] = error + u_via * fabs(z);
            error += 2 * u_via * fabs(z);
            if (t->attrs.act != MZ_ACT_NONE)
                error = steepest * error + (function_ulps * u32 + 2 * u_via) * fabs(z);
            if (has(&t->in[3]))
                error += u32 * (fabs(z) + magnitude(&t->in[3], i));
            y->bound[i] = error;
        }
}

// Like linear, without the epilogue. With a matrix that is added, two products and a sum are rounded besides, and with
// the identity another sum.
static void matmul(trial *t) {
    const mz_shape *as = &t->in[0].t.shape, *ys = &t->out[0].t.shape;
    bool ta = t->attrs.transpose_a, tb = t->attrs.transpose_b;
    int64_t rows = ys->dim[ys->rank - 2], cols = ys->dim[ys->rank - 1], inner = as->dim[as->rank - (ta ? 2 : 1)];
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        int64_t batch = i / (rows * cols), m = i / cols % rows, n = i % cols;
        const double *a = t->in[0].value + batch * rows * inner + (ta ? m : m * inner);
        const double *b = t->in[1].value + batch * inner * cols + (tb ? n * inner : n);
        double terms = dot_magnitude(a, ta ? rows : 1, b, tb ? 1 : cols, inner);
        const bool adds = has(&t->in[2]);
        const double factor = adds ? fabs((double)t->attrs.coefficients[0]) : 1,
                     added = adds ? fabs((double)t->attrs.coefficients[1]) * magnitude(&t->in[2], i) : 0;
        const double one = adds && m == n ? fabs((double)t->attrs.coefficients[2]) : 0;
        const int roundings = one > 0 ? 3 : 2; // of what the product is added to, and of their sum
        t->out[0].bound[i] = factor * ((double)(inner + (adds ? roundings : 0)) * u32 * terms + tf32_slack(t, terms)) +
                             roundings * u32 * (added + one);
    }
}

// What act'(x) is made of, in magnitude: GELU's tanh form has the largest parts, 1/2 + |x|·0.4·(1 + 0.134·x²).
static double derivative_magnitude(double x) {
    return 1 + 0.5 * fabs(x) * (1 + 0.14 * x * x);
}

// Column sums of the first input, [rows, columns].
static void given_sums(trial *t, int slot, int64_t columns) {
    int64_t rows = trial_count(&t->in[0]) / columns;
    const double one = 1;
    for (int64_t n = 0; has(&t->out[slot]) && n < columns; n++) {
        double terms = dot_magnitude(t->in[0].value + n, columns, &one, 0, rows);
        t->out[slot].bound[n] = (double)(rows + 1) * u32 * (terms + preset(t, slot, n, terms));
    }
}

static void linear_dx(trial *t) {
    int64_t n_out = t->in[1].t.shape.dim[0], n_in = t->in[1].t.shape.dim[1];
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        int64_t m = i / n_in, k = i % n_in;
        double terms = dot_magnitude(t->in[0].value + m * n_out, 1, t->in[1].value + k, n_in, n_out);
        double error = (double)n_out * u32 * terms + tf32_slack(t, terms);
        if (has(&t->in[2])) // the product's error times the derivative, and the derivative's error times the product
            error = steepest * error + function_ulps * u32 * terms * derivative_magnitude(t->in[2].value[i]);
        t->out[0].bound[i] = error;
        if (has(&t->out[MZ_OUT(linear_dx, act_out)]))
            t->out[MZ_OUT(linear_dx, act_out)].bound[i] = function_ulps * u32 * magnitude(&t->in[2], i);
    }
    stored_sums(t, &t->out[0], MZ_OUT(linear_dx, dbias));
}

static void quantize(trial *t) {
    given_sums(t, MZ_OUT(quantize, dbias), width_of(&t->in[0]));
}

static void linear_dw(trial *t) {
    int64_t n_out = t->out[0].t.shape.dim[0], n_in = t->out[0].t.shape.dim[1];
    int64_t rows = trial_count(&t->in[0]) / n_out;
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        double terms = dot_magnitude(t->in[0].value + i / n_in, n_out, t->in[1].value + i % n_in, n_in, rows);
        t->out[0].bound[i] = (double)(rows + 1) * u32 * (terms + preset(t, 0, i, terms)) + tf32_slack(t, terms);
    }
    given_sums(t, 1, n_out);
}

// Like linear; an expert's rows are its products' length in dw.
static void grouped_linear(trial *t) {
    const mz_shape *w = &t->in[1].t.shape;
    const int32_t *offsets = (const int32_t *)(const void *)t->in[2].stored;
    bool dx = t->op == MZ_OP_grouped_linear_dx;
    int64_t n_out = w->dim[1], n_in = w->dim[2], columns = dx ? n_in : n_out, inner = dx ? n_out : n_in, e = 0;
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        int64_t r = i / columns, c = i % columns;
        while (offsets[e + 1] <= r)
            e++;
        const double *matrix = t->in[1].value + e * n_out * n_in;
        const double *column = dx ? matrix + c : matrix + c * n_in;
        double terms = dot_magnitude(t->in[0].value + r * inner, 1, column, dx ? n_in : 1, inner);
        t->out[0].bound[i] = (double)inner * u32 * terms + tf32_slack(t, terms);
    }
}

static void grouped_linear_dw(trial *t) {
    const mz_shape *w = &t->out[0].t.shape;
    const int32_t *offsets = (const int32_t *)(const void *)t->in[2].stored;
    int64_t n_out = w->dim[1], n_in = w->dim[2];
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        int64_t e = i / (n_out * n_in), first = offsets[e], rows = offsets[e + 1] - first;
        const double *dy = t->in[0].value + first * n_out + i / n_in % n_out;
        double terms = dot_magnitude(dy, n_out, t->in[1].value + first * n_in + i % n_in, n_in, rows);
        t->out[0].bound[i] = (double)(rows + 1) * u32 * (terms + preset(t, 0, i, terms)) + tf32_slack(t, terms);
    }
}

// --- mixture of experts --------------------------------------------------------------------------------------------
// A sigmoid each, their sum, a quotient and a factor.
// A score, and in *error how many roundings it is off by: a softmax's exponent has the error of x - max, and its sum
// one for each term.
static double expert_score(const trial *t, const trial_tensor *logits, int64_t experts, int64_t at, double *error) {
    const double *row = logits->value + at / experts * experts;
    double max = -INFINITY, sum = 0;
    *error = function_ulps;
    if (!t->attrs.softmax)
        return 1 / (1 + exp(-logits->value[at]));
    for (int64_t e = 0; e < experts; e++)
        max = fmax(max, row[e]);
    for (int64_t e = 0; e < experts; e++)
        sum += exp(row[e] - max);
    *error = 2 * function_ulps + (double)experts + 2 * (max - logits->value[at]) + 2;
    return exp(logits->value[at] - max) / sum;
}

static void route(trial *t) {
    const int64_t k = t->attrs.top_k, experts = trial_count(&t->in[0]) / (trial_count(&t->out[0]) / k);
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        double error;
        (void)expert_score(t, &t->in[0], experts, i / k * experts + (int64_t)t->out[1].value[i], &error);
        t->out[0].bound[i] = ((double)k + 2 * error + 4) * u32 * fabs(t->out[0].value[i]);
    }
}

// 1 - s is off by u of 1, so the bound has s where the result has s·(1 - s).
static void route_dx(trial *t) {
    int64_t k = t->attrs.top_k, tokens = trial_count(&t->in[0]) / k, experts = trial_count(&t->in[1]) / tokens;
    const int32_t *indices = (const int32_t *)(const void *)t->in[2].stored;
    const double alpha = fabs((double)t->attrs.alpha);
    for (int64_t m = 0; m < tokens; m++) {
        double sum = 0, mean = 0, error;
        for (int64_t i = m * k; i < (m + 1) * k; i++) {
            double s = expert_score(t, &t->in[1], experts, m * experts + indices[i], &error);
            sum += s;
            mean += magnitude(&t->in[0], i) * s;
        }
        const bool dense = t->attrs.softmax && !t->attrs.normalise;
        for (int64_t at = m * experts; dense && at < (m + 1) * experts; at++)
            t->out[0].bound[at] =
                expert_score(t, &t->in[1], experts, at, &error) * mean * alpha * u32 * ((double)k + 3 * error);
        for (int64_t i = m * k; i < (m + 1) * k; i++) {
            int64_t at = m * experts + indices[i];
            double s = expert_score(t, &t->in[1], experts, at, &error), d = magnitude(&t->in[0], i);
            d = t->attrs.normalise ? (d + mean / sum) / sum : dense ? d + mean : d;
            t->out[0].bound[at] = ((double)k + 3 * error) * u32 * alpha * d * s;
        }
    }
}

static void combine(trial *t) {
    int64_t width = width_of(&t->out[0]), k = t->attrs.top_k;
    const int32_t *place = (const int32_t *)(const void *)t->in[2].stored;
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        double terms = 0;
        for (int64_t j = i / width * k; j < (i / width + 1) * k; j++)
            terms +=
                magnitude(&t->in[0], place[j] * width + i % width) * (has(&t->in[3]) ? magnitude(&t->in[3], j) : 1);
        for (int slot = 4; slot < 6; slot++)
            terms += has(&t->in[slot]) ? magnitude(&t->in[slot], i) : 0;
        t->out[0].bound[i] = (double)(k + 1 + has(&t->in[4]) + has(&t->in[5])) * u32 * terms;
    }
}

static void combine_dw(trial *t) {
    int64_t width = width_of(&t->in[1]), k = t->attrs.top_k;
    const int32_t *place = (const int32_t *)(const void *)t->in[2].stored;
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++)
        t->out[0].bound[i] =
            (double)(width + 1) * u32 *
            dot_magnitude(t->in[0].value + i / k * width, 1, t->in[1].value + place[i] * width, 1, width);
}

// --- activations ---------------------------------------------------------------------------------------------------
// The function's error is relative to |x|, not to the result: GELU's tail is a difference of nearly equal numbers.
static void activation(trial *t) {
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++)
        t->out[0].bound[i] = function_ulps * u32 * magnitude(&t->in[0], i);
}

static void activation_dx(trial *t) {
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++)
        t->out[0].bound[i] = function_ulps * u32 * magnitude(&t->in[0], i) * derivative_magnitude(t->in[1].value[i]);
}

// --- norms and softmax ---------------------------------------------------------------------------------------------
// With n = width: mean is off by (n + 2)·u·mean|s|, which moves every centred value; the variance by (n + 4)·u of
// itself and by the square of the mean's error. Where `sum` is stored in a low format, a sum that lands between two
// values may be stored as either.
static void layernorm(trial *t) {
    int64_t width = width_of(&t->out[0]), rows = trial_count(&t->out[0]) / width;
    const trial_tensor *weight = &t->in[1], *bias = &t->in[2], *stored = &t->out[3];
    for (int64_t r = 0; r < rows; r++) {
        double mean = 0, size = 0, variance = 0;
        for (int64_t c = 0; c < width; c++) {
            double s = t->in[0].value[r * width + c] + (has(&t->in[3]) ? t->in[3].value[r * width + c] : 0);
            mean += s / (double)width;
            size += fabs(s) / (double)width;
        }
        for (int64_t c = 0; c < width; c++) {
            double s = t->in[0].value[r * width + c] + (has(&t->in[3]) ? t->in[3].value[r * width + c] : 0);
            variance += (s - mean) * (s - mean) / (double)width;
        }
        double flip = has(stored) ? 2 * through(stored->t.dtype) : 0;
        double rstd = 1 / sqrt(variance + (double)t->attrs.eps), steps = (double)(width + 8);
        double mean_error = (steps * u32 + flip) * size;
        double rstd_error = steps * u32 + mean_error * mean_error * rstd * rstd + flip * size * rstd;
        for (int64_t c = 0; c < width; c++) {
            int64_t i = r * width + c;
            double a = t->in[0].value[i], b = has(&t->in[3]) ? t->in[3].value[i] : 0, s = a + b;
            double x_error = rstd * (mean_error + (2 * u32 + flip) * fabs(s)) + fabs(s - mean) * rstd * rstd_error;
            double scale = has(weight) ? magnitude(weight, c) : 1;
            t->out[0].bound[i] =
                scale * (x_error + 3 * u32 * fabs(s - mean) * rstd) + (has(bias) ? 2 * u32 * magnitude(bias, c) : 0);
            if (has(stored))
                stored->bound[i] = u32 * fabs(s) + flip / 2 * fabs(s);
        }
        if (has(&t->out[1]))
            t->out[1].bound[r] = mean_error;
        if (has(&t->out[2]))
            t->out[2].bound[r] = rstd_error * rstd;
    }
}

static void layernorm_bwd(trial *t) {
    const trial_tensor *dy = &t->in[0], *x = &t->in[1], *weight = &t->in[2], *dres = &t->in[5];
    int64_t width = width_of(&t->out[0]), rows = trial_count(&t->out[0]) / width;
    for (int64_t r = 0; r < rows; r++) {
        double mean = magnitude(&t->in[3], r), rstd = magnitude(&t->in[4], r), g_size = 0, gx_size = 0;
        for (int64_t c = 0; c < width; c++) {
            double g = magnitude(dy, r * width + c) * (has(weight) ? magnitude(weight, c) : 1);
            g_size += g / (double)width;
            gx_size += g * (magnitude(x, r * width + c) + mean) * rstd / (double)width;
        }
        for (int64_t c = 0; c < width; c++) {
            int64_t i = r * width + c;
            double g = magnitude(dy, i) * (has(weight) ? magnitude(weight, c) : 1);
            double normal = (magnitude(x, i) + mean) * rstd;
            t->out[0].bound[i] = (double)(width + 8) * u32 * rstd * (g + g_size + normal * gx_size) +
                                 (has(dres) ? 2 * u32 * magnitude(dres, i) : 0);
            if (has(&t->out[3])) // rounded from the FP32 that dx was rounded to
                t->out[3].bound[i] = t->out[0].bound[i] * (1 + u32) + u32 * magnitude(&t->out[0], i);
        }
    }
    for (int64_t c = 0; c < width; c++) {
        double dweight = 0, dbias = 0;
        for (int64_t r = 0; r < rows; r++) {
            double normal = (magnitude(x, r * width + c) + magnitude(&t->in[3], r)) * magnitude(&t->in[4], r);
            dweight += magnitude(dy, r * width + c) * normal;
            dbias += magnitude(dy, r * width + c);
        }
        if (has(&t->out[1]))
            t->out[1].bound[c] = (double)(rows + 5) * u32 * (dweight + preset(t, 1, c, dweight));
        if (has(&t->out[2]))
            t->out[2].bound[c] = (double)(rows + 1) * u32 * (dbias + preset(t, 2, c, dbias));
    }
    stored_sums(t, has(&t->out[3]) ? &t->out[3] : &t->out[0], 4);
}

static double norm_weight(const trial *t, const trial_tensor *weight, int64_t c) {
    return has(weight) ? magnitude(weight, c) + fabs((double)t->attrs.offset) : 1;
}

// The mean of squares is a sum of terms of one sign: off by (n + 2)·u of itself, half of that in rstd. Storing `sum` as
// layernorm.
static void rmsnorm(trial *t) {
    int64_t width = width_of(&t->out[0]), rows = trial_count(&t->out[0]) / width;
    const trial_tensor *weight = &t->in[1], *residual = &t->in[2], *stored = &t->out[2];
    double flip = has(stored) ? 2 * through(stored->t.dtype) : 0;
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t c = 0; c < width; c++) {
            double s = t->in[0].value[r * width + c] + (has(residual) ? residual->value[r * width + c] : 0);
            squares += s * s / (double)width;
        }
        double rstd = 1 / sqrt(squares + (double)t->attrs.eps), rstd_error = (double)(width + 8) * u32 + flip;
        for (int64_t c = 0; c < width; c++) {
            int64_t i = r * width + c;
            double s = t->in[0].value[i] + (has(residual) ? residual->value[i] : 0);
            t->out[0].bound[i] = norm_weight(t, weight, c) * fabs(s) * rstd * (rstd_error + 5 * u32 + flip);
            if (has(stored))
                stored->bound[i] = u32 * fabs(s) + flip / 2 * fabs(s);
        }
        if (has(&t->out[1]))
            t->out[1].bound[r] = rstd_error * rstd;
    }
}

// As layernorm_bwd's, without the mean.
static void rmsnorm_bwd(trial *t) {
    const trial_tensor *dy = &t->in[0], *x = &t->in[1], *weight = &t->in[2], *dres = &t->in[4];
    int64_t width = width_of(&t->out[0]), rows = trial_count(&t->out[0]) / width;
    for (int64_t r = 0; r < rows; r++) {
        double rstd = magnitude(&t->in[3], r), gx_size = 0;
        for (int64_t c = 0; c < width; c++)
            gx_size += magnitude(dy, r * width + c) * norm_weight(t, weight, c) * magnitude(x, r * width + c) * rstd /
                       (double)width;
        for (int64_t c = 0; c < width; c++) {
            int64_t i = r * width + c;
            double g = magnitude(dy, i) * norm_weight(t, weight, c);
            t->out[0].bound[i] = (double)(width + 8) * u32 * rstd * (g + magnitude(x, i) * rstd * gx_size) +
                                 (has(dres) ? 2 * u32 * magnitude(dres, i) : 0);
            if (has(&t->out[2]))
                t->out[2].bound[i] = t->out[0].bound[i] * (1 + u32) + u32 * magnitude(&t->out[0], i);
        }
    }
    for (int64_t c = 0; has(&t->out[1]) && c < width; c++) {
        double dweight = 0;
        for (int64_t r = 0; r < rows; r++)
            dweight += magnitude(dy, r * width + c) * magnitude(x, r * width + c) * magnitude(&t->in[3], r);
        t->out[1].bound[c] = (double)(rows + 5) * u32 * (dweight + preset(t, 1, c, dweight));
    }
}

// An angle is a product of an integer and a frequency that took a power and a quotient: 3 roundings; its cosine changes
// by as much, and takes some u of 1 itself. A scaled frequency is at most the plain one, with 5 roundings more.
static void rope_table(trial *t) {
    int64_t dims = t->out[0].t.shape.dim[1];
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        const int64_t row = i / dims, pair = i % dims % (dims / 2);
        double position = has(&t->in[0]) ? magnitude(&t->in[0], row) : (double)row;
        double angle = position / pow((double)t->attrs.theta, 2 * (double)pair / (double)dims);
        const bool scaled = t->attrs.rope.divisor > 0;
        t->out[0].bound[i] = (scaled ? 9 * (double)t->attrs.rope.amplitude : 4) * u32 * (1 + angle);
    }
}

// Two products and a sum.
static void rope(trial *t) {
    const mz_shape *shape = &t->in[0].t.shape;
    int64_t dims = t->in[1].t.shape.dim[1], half = dims / 2, width = shape->dim[2] / t->attrs.heads;
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        int64_t h = i / width, d = i % width, row = h / t->attrs.heads % t->in[1].t.shape.dim[0];
        if (h % t->attrs.heads >= t->attrs.rotated || d >= dims)
            continue; // copied
        int64_t pair = t->attrs.interleaved ? d / 2 : d % half;
        int64_t other = i - d + (t->attrs.interleaved ? d ^ 1 : (d + half) % dims);
        double c = magnitude(&t->in[1], row * dims + pair), s = magnitude(&t->in[1], row * dims + half + pair);
        t->out[0].bound[i] = 2 * u32 * (magnitude(&t->in[0], i) * c + magnitude(&t->in[0], other) * s);
    }
}

static void swiglu(trial *t) {
    int64_t width = width_of(&t->out[0]);
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        int64_t gate = i / width * 2 * width + i % width;
        t->out[0].bound[i] = function_ulps * u32 * magnitude(&t->in[0], gate) * magnitude(&t->in[0], gate + width);
    }
}

static void swiglu_dx(trial *t) {
    int64_t width = width_of(&t->in[0]);
    for (int64_t i = 0; i < trial_count(&t->in[0]); i++) {
        int64_t gate = i / width * 2 * width + i % width;
        double dy = magnitude(&t->in[0], i), x = t->in[1].value[gate], up = magnitude(&t->in[1], gate + width);
        t->out[0].bound[gate] = function_ulps * u32 * dy * up * derivative_magnitude(x);
        t->out[0].bound[gate + width] = function_ulps * u32 * dy * fabs(x);
    }
}

// Of a row of exponents: the maximum, and the error of log Σ exp(x): the sum's n roundings, and each exp's own and its
// subtraction's.
static double exponents(const trial_tensor *x, int64_t start, int64_t width, double *max, double *lse) {
    double sum = 0, distance = 0;
    *max = -INFINITY;
    for (int64_t c = 0; c < width; c++)
        *max = fmax(*max, x->value[start + c]);
    for (int64_t c = 0; c < width; c++) {
        double e = exp(x->value[start + c] - *max);
        sum += e;
        distance += e * (*max - x->value[start + c]);
    }
    *lse = *max + log(sum);
    return ((double)width + function_ulps + distance / sum) * u32;
}

static void softmax(trial *t) {
    int64_t width = width_of(&t->out[0]);
    for (int64_t start = 0; start < trial_count(&t->out[0]); start += width) {
        double max, lse, error = exponents(&t->in[0], start, width, &max, &lse);
        for (int64_t i = start; i < start + width; i++)
            t->out[0].bound[i] = t->out[0].value[i] * (error + u32 * (max - t->in[0].value[i] + function_ulps));
    }
}

static void softmax_dx(trial *t) {
    int64_t width = width_of(&t->out[0]);
    for (int64_t start = 0; start < trial_count(&t->out[0]); start += width) {
        double terms = dot_magnitude(t->in[0].value + start, 1, t->in[1].value + start, 1, width);
        for (int64_t i = start; i < start + width; i++)
            t->out[0].bound[i] =
                (double)(width + 3) * u32 * magnitude(&t->in[1], i) * (magnitude(&t->in[0], i) + terms);
    }
}

// Of all targets, also those of rows that are not in the call.
static int64_t counted_targets(const trial *t, const trial_tensor *targets) {
    const int32_t *target = (const int32_t *)(const void *)targets->stored;
    int64_t n = 0;
    for (int64_t r = 0; r < trial_count(targets); r++)
        n += target[r] != t->attrs.ignore_index;
    return n;
}

// Logits as the loss has them; *error: what a cap adds to theirs. The caller frees value.
static trial_tensor capped_logits(const trial *t, const trial_tensor *x, double *error) {
    const double cap = (double)t->attrs.score_cap;
    trial_tensor y = *x;
    y.value = calloc((size_t)trial_count(x), sizeof *y.value);
    for (int64_t i = 0; i < trial_count(x); i++)
        y.value[i] = cap > 0 ? cap * tanh(x->value[i] / cap) : x->value[i];
    *error = cap > 0 ? (function_ulps + 3) * u32 * cap : 0;
    return y;
}

static void cross_entropy(trial *t) {
    int64_t width = width_of(&t->in[0]), rows = trial_count(&t->in[0]) / width;
    int64_t counted = counted_targets(t, &t->in[1]), summed = 0;
    const int32_t *targets = (const int32_t *)(const void *)t->in[1].stored + t->attrs.first_row;
    double error = 0, total = 0, cap_error;
    const trial_tensor logits = capped_logits(t, &t->in[0], &cap_error);
    for (int64_t r = 0; r < rows; r++) {
        double max, lse, lse_error = exponents(&logits, r * width, width, &max, &lse);
        lse_error += u32 * (fabs(max) + fabs(lse)) + cap_error;
        if (has(&t->out[1]))
            t->out[1].bound[r] = lse_error;
        if (targets[r] == t->attrs.ignore_index)
            continue;
        double x = logits.value[r * width + targets[r]];
        summed++;
        error += lse_error + cap_error + u32 * (fabs(lse) + fabs(x));
        total += fabs(lse - x);
    }
    free(logits.value);
    if (summed > 0)
        t->out[0].bound[0] = (error + (double)(rows + 2) * u32 * total) / (double)counted;
}

static void cross_entropy_dx(trial *t) {
    double cap_error;
    const trial_tensor x = capped_logits(t, &t->in[1], &cap_error), *lse = &t->in[3];
    int64_t width = width_of(&x), rows = trial_count(&x) / width, counted = counted_targets(t, &t->in[2]);
    const int32_t *targets = (const int32_t *)(const void *)t->in[2].stored + t->attrs.first_row;
    double factor = magnitude(&t->in[0], 0) / (double)(counted > 0 ? counted : 1);
    for (int64_t i = 0; i < rows * width; i++) {
        double distance = x.value[i] - lse->value[i / width], p = exp(distance);
        double hit = targets[i / width] == i % width ? 1 : 0;
        bool ignored = targets[i / width] == t->attrs.ignore_index;
        t->out[0].bound[i] = ignored ? 0 : factor * u32 * (p * (function_ulps + fabs(distance)) + 4 * (p + hit));
        if (cap_error > 0 && !ignored) // of x, and of the slope 1 - tanh², at most 1
            t->out[0].bound[i] += factor * (p * cap_error + (p + hit) * (2 * function_ulps + 8) * u32);
    }
    free(x.value);
}

// --- sums ----------------------------------------------------------------------------------------------------------
static void sums(trial *t) {
    const mz_shape *shape = &t->in[0].t.shape;
    int64_t inner = 1, axis = trial_count(&t->in[0]);
    if (t->attrs.axis >= 0) {
        axis = shape->dim[t->attrs.axis];
        for (int i = t->attrs.axis + 1; i < shape->rank; i++)
            inner *= shape->dim[i];
    }
    const double one = 1;
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        const double *x = t->in[0].value + i / inner * axis * inner + i % inner;
        double terms = dot_magnitude(x, inner, &one, 0, axis);
        terms /= t->op == MZ_OP_mean ? (double)axis : 1;
        t->out[0].bound[i] = (double)(axis + 1) * u32 * (terms + preset(t, 0, i, terms));
    }
}

// A product of n factors takes n roundings, and n more where a factor is divided out again.
static void prod(trial *t) {
    const int64_t n =
        trial_count(&t->in[t->op == MZ_OP_prod_dx]) / trial_count(t->op == MZ_OP_prod_dx ? &t->in[0] : &t->out[0]);
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++)
        t->out[0].bound[i] = (double)(2 * n + 2) * u32 * magnitude(&t->out[0], i);
}

static void cumsum(trial *t) {
    const mz_shape *shape = &t->in[0].t.shape;
    int64_t inner = 1, axis = shape->dim[t->attrs.axis];
    for (int i = t->attrs.axis + 1; i < shape->rank; i++)
        inner *= shape->dim[i];
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++) {
        const double one = 1, *column = t->in[0].value + i / inner / axis * axis * inner + i % inner;
        const int64_t at = i / inner % axis, n = t->attrs.reverse ? axis - at : at + 1;
        t->out[0].bound[i] =
            (double)n * u32 * dot_magnitude(column + (t->attrs.reverse ? at * inner : 0), inner, &one, 0, n);
    }
}

// Every sum is taken for one of all that is added in its column.
static void scatter_add(trial *t) {
    const trial_tensor *y = &t->out[0], *src = &t->in[2];
    int64_t inner = 1, axis = y->t.shape.dim[t->attrs.axis];
    for (int i = t->attrs.axis + 1; i < y->t.shape.rank; i++)
        inner *= y->t.shape.dim[i];
    const int64_t outer = trial_count(y) / axis / inner, n = trial_count(src) / outer / inner;
    for (int64_t i = 0; i < trial_count(y); i++) {
        const double one = 1;
        const double terms = dot_magnitude(src->value + i / inner / axis * n * inner + i % inner, inner, &one, 0, n);
        t->out[0].bound[i] = (double)(n + 1) * u32 * (terms + (has(&t->in[0]) ? magnitude(&t->in[0], i) : 0));
    }
}

static void embedding_bwd(trial *t) {
    int64_t width = width_of(&t->out[0]), vocabulary = trial_count(&t->out[0]) / width, n = trial_count(&t->in[1]);
    const int32_t *ids = (const int32_t *)(const void *)t->in[1].stored;
    double *terms = mz_alloc((size_t)trial_count(&t->out[0]), sizeof *terms);
    double *uses = mz_alloc((size_t)vocabulary, sizeof *uses);
    assert_true(terms != NULL && uses != NULL);
    for (int64_t r = 0; r < n; r++) {
        if (ids[r] < 0 || ids[r] >= vocabulary)
            continue;
        uses[ids[r]]++;
        for (int64_t c = 0; c < width; c++)
            terms[ids[r] * width + c] += magnitude(&t->in[0], r * width + c);
    }
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++)
        t->out[0].bound[i] = (uses[i / width] + 1) * u32 * (terms[i] + preset(t, 0, i, terms[i]));
    mz_free(terms);
    mz_free(uses);
}

// Contracting a product and a sum into one rounding is allowed: m, v and the master each take a handful of FP32
// operations on parts whose size is bounded by 1 here (the trials' presets and rates).
static void optimizer(trial *t) {
    for (int slot = 0; slot < t->n_out; slot++)
        for (int64_t i = 0; has(&t->out[slot]) && i < trial_count(&t->out[slot]); i++) {
            const double size = fabs(t->out[slot].value[i]);
            if (t->out[slot].t.dtype == MEZZO_F32)
                t->out[slot].bound[i] = function_ulps * u32 * (size + 1);
            // BF16 moments are rounded at random: by one number, and yet to either side of a result a rounding off.
            if (t->out[slot].t.dtype == MEZZO_BF16)
                t->out[slot].bound[i] = 2 * unit_roundoff(MEZZO_BF16) * size + u32;
        }
}

// The reference of an update op is rounded to storage too.
static double of_storage(const trial *t, int64_t i) {
    return unit_roundoff(t->out[0].t.dtype) * magnitude(&t->out[0], i);
}

// The sum of squares is FP64; the factor and the product are rounded to FP32 each.
static void matrix_normalize(trial *t) {
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++)
        t->out[0].bound[i] = 3 * u32 * magnitude(&t->out[0], i) + of_storage(t, i);
}

// Sums are FP64; an average, the row's factor and the product are rounded to FP32 each, and the factor has the root of
// an average that may be another by a rounding.
static void matrix_scale_rows(trial *t) {
    for (int64_t i = 0; i < trial_count(&t->out[0]); i++)
        t->out[0].bound[i] = 4 * u32 * fabs(t->out[0].value[i]);
    for (int64_t i = 0; i < trial_count(&t->out[1]); i++)
        t->out[1].bound[i] = 2 * u32 * fabs(t->out[1].value[i]);
}

static void one_rounding(trial *t, double u) {
    for (int slot = 0; slot < t->n_out; slot++)
        for (int64_t i = 0; has(&t->out[slot]) && i < trial_count(&t->out[slot]); i++)
            t->out[slot].bound[i] = u * fabs(t->out[slot].value[i]);
}

// element.def: a few ulp of the parts that the row names.
#define r fabs(of[0])
#define BOUND(name, first, second, third, parts)                                                                       \
    static double name##_parts(const mz_attrs *attrs, const double *of) {                                              \
        const double alpha = (double)attrs->alpha, first = of[1], second = of[2], third = of[3];                       \
        (void)alpha, (void)first, (void)second, (void)third;                                                           \
        return parts;                                                                                                  \
    }
#define UNARY(name, told, saved, class, tolerance, padding, domain, y, parts, dx, dx_parts)                            \
    BOUND(name, x, none, absent, parts)                                                                                \
    BOUND(name##_dx, dy, saved, absent, dx_parts)
#define UNARY_OWN(name, told, saved, class, tolerance, padding, domain, y, parts) BOUND(name, x, none, absent, parts)
#define UNARY_FLAT(...)
#define BINARY(name, class, tolerance, padding, domain, y, da, da_parts, db, db_parts)                                 \
    BOUND(name, a, b, absent, r *(1 + fabs(b)))                                                                        \
    BOUND(name##_da, dy, a, b, da_parts)                                                                               \
    BOUND(name##_db, dy, a, b, db_parts)
#define BINARY_OWN(...)
#define COMPARE(...)
#define TERNARY(...)
#include "graph/element.def"

typedef double parts_fn(const mz_attrs *attrs, const double *of);
static parts_fn *const element_parts[MZ_OP_COUNT] = {
#define UNARY(name, ...)     [MZ_OP_##name] = name##_parts, [MZ_OP_##name##_dx] = name##_dx_parts,
#define UNARY_OWN(name, ...) [MZ_OP_##name] = name##_parts,
#define UNARY_FLAT(...)
#define BINARY(name, ...)                                                                                              \
    [MZ_OP_##name] = name##_parts, [MZ_OP_##name##_da] = name##_da_parts, [MZ_OP_##name##_db] = name##_db_parts,
#define BINARY_OWN(...)
#define COMPARE(...)
#define TERNARY(...)
#include "graph/element.def"
};
#undef r

// Where a broadcast operand's element i is.
static int64_t element_index(const mz_shape *from, const mz_shape *y, int64_t i) {
    int64_t at = 0, stride = 1;
    for (int d = 1; d <= from->rank; stride *= from->dim[from->rank - d++]) {
        at += from->dim[from->rank - d] == 1 ? 0 : i % y->dim[y->rank - d] * stride;
        i /= y->dim[y->rank - d];
    }
    return at;
}

static void element_bounds(trial *t) {
    const trial_tensor *y = &t->out[0];
    for (int64_t i = 0; i < trial_count(y); i++) {
        double of[4] = {y->value[i]};
        for (int k = 0; k < t->n_in; k++)
            of[k + 1] = t->in[k].value[element_index(&t->in[k].t.shape, &y->t.shape, i)];
        y->bound[i] = function_ulps * u32 * element_parts[t->op](&t->attrs, of) + 0x1p-149;
    }
}

static void (*const bounds[MZ_OP_COUNT])(trial *t) = {[MZ_OP_linear] = linear,
                                                      [MZ_OP_matmul] = matmul,
                                                      [MZ_OP_linear_dx] = linear_dx,
                                                      [MZ_OP_linear_dw] = linear_dw,
                                                      [MZ_OP_quantize] = quantize,
                                                      [MZ_OP_gelu] = activation,
                                                      [MZ_OP_gelu_dx] = activation_dx,
                                                      [MZ_OP_layernorm] = layernorm,
                                                      [MZ_OP_layernorm_bwd] = layernorm_bwd,
                                                      [MZ_OP_grouped_linear] = grouped_linear,
                                                      [MZ_OP_grouped_linear_dx] = grouped_linear,
                                                      [MZ_OP_grouped_linear_dw] = grouped_linear_dw,
                                                      [MZ_OP_route] = route,
                                                      [MZ_OP_route_dx] = route_dx,
                                                      [MZ_OP_combine] = combine,
                                                      [MZ_OP_combine_dw] = combine_dw,
                                                      [MZ_OP_rmsnorm] = rmsnorm,
                                                      [MZ_OP_rmsnorm_bwd] = rmsnorm_bwd,
                                                      [MZ_OP_rope_table] = rope_table,
                                                      [MZ_OP_rope] = rope,
                                                      [MZ_OP_swiglu] = swiglu,
                                                      [MZ_OP_swiglu_dx] = swiglu_dx,
                                                      [MZ_OP_softmax] = softmax,
                                                      [MZ_OP_softmax_dx] = softmax_dx,
                                                      [MZ_OP_cross_entropy] = cross_entropy,
                                                      [MZ_OP_cross_entropy_dx] = cross_entropy_dx,
                                                      [MZ_OP_sum] = sums,
                                                      [MZ_OP_mean] = sums,
                                                      [MZ_OP_prod] = prod,
                                                      [MZ_OP_prod_dx] = prod,
                                                      [MZ_OP_cumsum] = cumsum,
                                                      [MZ_OP_scatter_add] = scatter_add,
                                                      [MZ_OP_embedding_bwd] = embedding_bwd,
                                                      [MZ_OP_matrix_normalize] = matrix_normalize,
                                                      [MZ_OP_matrix_scale_rows] = matrix_scale_rows,
                                                      MZ_ATTENTION_BOUNDS MZ_IMAGE_BOUNDS
#define KIND(name, ...) [MZ_OP_##name] = optimizer,
#include "mezzo/optimizers.def"
#undef KIND
};

void trial_bounds(trial *t) {
    mz_tolerance class = mz_op_table[t->op].tolerance;
    if (bounds[t->op] != NULL)
        bounds[t->op](t);
    else if (class == MZ_TOL_ELEMENT && element_parts[t->op] != NULL)
        element_bounds(t);
    else if (class == MZ_TOL_EXACT)
        one_rounding(t, 0); // storage's own rounding is all
    else if (class == MZ_TOL_ROUND)
        one_rounding(t, u32); // FP32 arithmetic before storage
    else if (mz_op_table[t->op].kind != MZ_KIND_STATE)
        fail_msg("%s: no error bound is derived for it", mz_op_table[t->op].name);
}
