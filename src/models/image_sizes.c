#include "models/image_sizes.h"

#include "models/keys.h"

int mz_image_widths(const mezzo_model_config *config, int widths[MZ_IMAGE_LEVELS]) {
    char digits[24];
    const int levels = snprintf(digits, sizeof digits, "%lld", (long long)config->multipliers);
    for (int i = 0; i < levels && i < MZ_IMAGE_LEVELS; i++)
        widths[i] = (int)config->d_model * (digits[i] - '0');
    return levels < MZ_IMAGE_LEVELS ? levels : MZ_IMAGE_LEVELS;
}

mezzo_status mz_image_check(const mezzo_model_config *config) {
    const mz_key_range ranges[] = {
        {"image_size", config->image_size, 1, 16384},
        {"channels", config->channels, 1, 1024},
        {"multipliers", config->multipliers, 1, 99999999},
        {"res_blocks", config->res_blocks, 1, 64},
        {"groups", config->groups, 1, 1024},
    };
    MEZZO_TRY(mz_key_ranges_check(ranges, MZ_COUNT(ranges)));
    int widths[MZ_IMAGE_LEVELS] = {0};
    const int levels = mz_image_widths(config, widths);
    for (int i = 0; i < levels; i++) {
        if (widths[i] <= 0 || widths[i] > 1 << 20)
            return mz_fail(MEZZO_ERR_INVALID, "model.multipliers is %lld: its digits must be 1 to 9",
                           (long long)config->multipliers);
        if (widths[i] % config->groups != 0)
            return mz_fail(MEZZO_ERR_INVALID, "model.groups (%lld) does not divide the %d channels of level %d",
                           (long long)config->groups, widths[i], i);
    }
    if (widths[levels - 1] % config->heads != 0)
        return mz_fail(MEZZO_ERR_INVALID, "model.heads (%lld) does not divide the %d channels of the last level",
                       (long long)config->heads, widths[levels - 1]);
    if (config->image_size % (INT64_C(1) << (levels - 1)) != 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "model.image_size is %lld: %d levels (model.multipliers) halve it %d times, so that it must be "
                       "a multiple of %lld",
                       (long long)config->image_size, levels, levels - 1, (long long)(INT64_C(1) << (levels - 1)));
    return MEZZO_OK;
}
