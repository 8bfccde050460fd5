// The models of images share this: the levels that model.multipliers describes, and checks.
#ifndef MZ_IMAGE_SIZES_H
#define MZ_IMAGE_SIZES_H

#include "mezzo/model.h"

enum { MZ_IMAGE_LEVELS = 8 };

// Channels of each level, d_model times a digit of model.multipliers; returns how many levels there are.
int mz_image_widths(const mezzo_model_config *config, int widths[MZ_IMAGE_LEVELS]);
// The keys that both families take. INVALID names the key.
mezzo_status mz_image_check(const mezzo_model_config *config);

#endif
