// Declares what the models of images share: the levels that model.multipliers describes, and checks.
#ifndef MZ_IMAGE_SIZES_H
#define MZ_IMAGE_SIZES_H

#include "mezzo/model.h"

enum { MZ_IMAGE_LEVELS = 8 };

// Computes the channels of each level, d_model times a digit of model.multipliers; returns the number of levels.
int mz_image_widths(const mezzo_model_config *config, int widths[MZ_IMAGE_LEVELS]);
// Checks the keys that both families take. INVALID names the key.
mezzo_status mz_image_check(const mezzo_model_config *config);

#endif
