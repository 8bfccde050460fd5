// Scores how near a predicted picture is to the true one. Values are brightness from 0 to 1.
#ifndef MZ_DATA_IMAGE_SCORE_H
#define MZ_DATA_IMAGE_SCORE_H

#include "base/base.h"

typedef struct mz_image_score {
    double error, power; // sums of (predicted - true)² and of true²
    int64_t pixels;
    double nmse; // error / power; infinite where the truth is black and the prediction is not, 0 where both are black
    double rmse;
    double psnr; // dB, for a range of 1; infinite where the pictures are equal
    double ssim; // by Wang, Bovik, Sheikh, Simoncelli 2004; NaN where a side has fewer than 11 pixels
} mz_image_score;

// Compares two pictures [height, width]. SSIM has Gaussian windows of 11 x 11 with a deviation of 1.5 that lie inside
// the picture, K1 0.01, K2 0.03, and weighted (not sample) covariances. MEMORY.
mezzo_status mz_image_compare(const float *predicted, const float *truth, int64_t height, int64_t width,
                              mz_image_score *out);

// Sums scores over pictures: NMSE and RMSE of all pixels together, PSNR and SSIM as means over the pictures, as
// RadioUNet and RadioDiff report them. It starts zeroed.
typedef struct mz_image_total {
    mz_image_score sum; // error, power and pixels; psnr and ssim are sums
    int64_t n;
} mz_image_total;
void mz_image_add(mz_image_total *total, const mz_image_score *one);
mz_image_score mz_image_mean(const mz_image_total *total); // NaN without pictures

#endif
