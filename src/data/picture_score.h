// Compares predicted pictures with the true ones: scores of each and of all, and a sheet that shows them.
#ifndef MZ_DATA_PICTURE_SCORE_H
#define MZ_DATA_PICTURE_SCORE_H

#include "data/image_score.h"
#include "data/pictures.h"
#include "io/png.h"

// mz_free_space_brightness returns the brightness, from 0 to 1, of the loss in free space (for radio maps only);
// mz_picture_truth writes the true picture, [size, size].
float mz_free_space_brightness(const mz_pictures *p, int64_t dx, int64_t dy); // at this distance in pixels
void mz_picture_truth(const mz_pictures *p, int64_t example, float *out);

// Makes a sheet of `n` rows: what the picture is predicted from (buildings gray, the transmitter red), the truth, the
// prediction, and their difference, from black over red and yellow (a half) to white. Free with mz_picture_free.
mezzo_status mz_sheet_make(const mz_pictures *p, int64_t n, mz_picture *out); // MEMORY; INVALID where it is too large
void mz_sheet_add(const mz_pictures *p, int64_t row, int64_t example, const float *predicted, mz_picture *sheet);

// --- a whole set ---------------------------------------------------------------------------------
typedef struct mz_score_options {
    const char *truth;     // in the forms of mz_pictures_open
    const char *predicted; // a folder with NAME.png, "mean" or "free-space"
    double split;
    const char *csv, *sheet; // files to write: scores of each picture; the first `rows` as pictures. NULL: none
    int64_t rows;
} mz_score_options;
// Scores predictions. Those in a folder are compared wherever there is one; "mean" and "free-space" on the scenes that
// training does not use (with a split of 1, on all). Errors name the file.
mezzo_status mz_score_pictures(const mz_score_options *options, mz_image_total *out);

#endif
