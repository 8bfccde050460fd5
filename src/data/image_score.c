#include "data/image_score.h"

#include <math.h>

enum { WINDOW = 11 };
#define DEVIATION 1.5
#define C1        (0.01 * 0.01)
#define C2        (0.03 * 0.03)

static void window_weights(double out[WINDOW]) {
    double sum = 0;
    for (int i = 0; i < WINDOW; i++) {
        const double d = (i - WINDOW / 2) / DEVIATION;
        out[i] = exp(-0.5 * d * d);
        sum += out[i];
    }
    for (int i = 0; i < WINDOW; i++)
        out[i] /= sum;
}

enum { MEAN_X, MEAN_Y, SQUARE_X, SQUARE_Y, PRODUCT, MOMENTS };

// Computes weighted moments along one row: out[MOMENTS][columns] of the windows that lie inside it.
static void row_moments(const float *x, const float *y, int64_t columns, const double weight[WINDOW], double *out) {
    for (int64_t c = 0; c < columns; c++) {
        double sum[MOMENTS] = {0};
        for (int k = 0; k < WINDOW; k++) {
            const double a = (double)x[c + k], b = (double)y[c + k];
            const double terms[MOMENTS] = {a, b, a * a, b * b, a * b};
            for (int m = 0; m < MOMENTS; m++)
                sum[m] += weight[k] * terms[m];
        }
        for (int m = 0; m < MOMENTS; m++)
            out[m * columns + c] = sum[m];
    }
}

static double similarity(const double m[MOMENTS]) {
    const double xx = m[SQUARE_X] - m[MEAN_X] * m[MEAN_X], yy = m[SQUARE_Y] - m[MEAN_Y] * m[MEAN_Y];
    const double xy = m[PRODUCT] - m[MEAN_X] * m[MEAN_Y];
    return (2 * m[MEAN_X] * m[MEAN_Y] + C1) * (2 * xy + C2) /
           ((m[MEAN_X] * m[MEAN_X] + m[MEAN_Y] * m[MEAN_Y] + C1) * (xx + yy + C2));
}

static mezzo_status structural_similarity(const float *x, const float *y, int64_t height, int64_t width, double *out) {
    const int64_t rows = height - WINDOW + 1, columns = width - WINDOW + 1, stride = MOMENTS * columns;
    double weight[WINDOW], total = 0;
    *out = (double)NAN;
    if (rows < 1 || columns < 1)
        return MEZZO_OK;
    double *line = mz_alloc((size_t)(height * stride), sizeof *line); // [height, MOMENTS, columns]
    if (line == NULL)
        return MEZZO_ERR_MEMORY;
    window_weights(weight);
    for (int64_t r = 0; r < height; r++)
        row_moments(x + r * width, y + r * width, columns, weight, line + r * stride);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            double m[MOMENTS] = {0};
            for (int k = 0; k < WINDOW; k++)
                for (int i = 0; i < MOMENTS; i++)
                    m[i] += weight[k] * line[(r + k) * stride + i * columns + c];
            total += similarity(m);
        }
    mz_free(line);
    *out = total / (double)(rows * columns);
    return MEZZO_OK;
}

static void finish(mz_image_score *s) {
    s->nmse = s->error == 0 ? 0 : s->error / s->power;
    s->rmse = sqrt(s->error / (double)s->pixels);
}

mezzo_status mz_image_compare(const float *predicted, const float *truth, int64_t height, int64_t width,
                              mz_image_score *out) {
    *out = (mz_image_score){.pixels = height * width};
    for (int64_t i = 0; i < height * width; i++) {
        const double d = (double)predicted[i] - (double)truth[i], t = (double)truth[i];
        out->error += d * d;
        out->power += t * t;
    }
    finish(out);
    out->psnr = -20 * log10(out->rmse);
    return structural_similarity(predicted, truth, height, width, &out->ssim);
}

void mz_image_add(mz_image_total *total, const mz_image_score *one) {
    total->n++;
    total->sum.error += one->error;
    total->sum.power += one->power;
    total->sum.pixels += one->pixels;
    total->sum.psnr += one->psnr;
    total->sum.ssim += one->ssim;
}

mz_image_score mz_image_mean(const mz_image_total *total) {
    mz_image_score s = total->sum;
    s.psnr /= (double)total->n;
    s.ssim /= (double)total->n;
    finish(&s);
    return s;
}
