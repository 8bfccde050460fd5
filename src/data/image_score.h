// These scores say how near a predicted picture is to the true one. Values are brightness from 0 to 1.
#ifndef MZ_DATA_IMAGE_SCORE_H
#define MZ_DATA_IMAGE_SCORE_H

#include "base/base.h"

typedef struct mz_image_score {
    double error, power; // sums of (predicted - true)² and of true²
    int64_t pixels;
    double nmse; // error / power; infinite where the truth is black and the prediction is not, 0 where both are
    double rmse;
    double psnr; // dB, of a range of 1; infinite where nothing differs
    double ssim; // Wang, Bovik, Sheikh, Simoncelli 2004; NaN where a side has fewer than 11 pixels
} mz_image_score;

// [height, width] each. SSIM: Gaussian windows of 11 x 11 with a deviation of 1.5 that lie inside the picture, K1 0.01,
// K2 0.03, weighted (not sample) covariances. MEMORY.
mezzo_status mz_image_compare(const float *predicted, const float *truth, int64_t height, int64_t width,
                              mz_image_score *out);

// Over pictures: NMSE and RMSE of all pixels together, PSNR and SSIM as means over the pictures (RadioUNet's and
// RadioDiff's way). Start from a zeroed total.
typedef struct mz_image_total {
    mz_image_score sum; // error, power, pixels; psnr and ssim summed
    int64_t n;
} mz_image_total;
void mz_image_add(mz_image_total *total, const mz_image_score *one);
mz_image_score mz_image_mean(const mz_image_total *total); // NaN of none

#endif
