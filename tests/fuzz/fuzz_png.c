// Any bytes as a PNG: refused with a message, or a picture every pixel of which can be read.
#include "io/png.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mz_picture picture;
    volatile uint64_t sum = 0;
    if (mz_png_parse("input", data, size, &picture) != MEZZO_OK) {
        if (picture.pixels != NULL || mezzo_error_message()[0] == '\0' || strchr(mezzo_error_message(), '\n') != NULL)
            __builtin_trap();
        return 0;
    }
    if (picture.channels != 1 || picture.height < 1 || picture.width < 1 || picture.height > MZ_PNG_SIDE ||
        picture.width > MZ_PNG_SIDE)
        __builtin_trap();
    for (int64_t i = 0; i < picture.height * picture.width; i++)
        sum = sum + picture.pixels[i];
    mz_picture_free(&picture);
    return 0;
}
