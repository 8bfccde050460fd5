// Reads and writes PNG pictures through libpng. A build without libpng has these calls, too: they return UNSUPPORTED
// with what to install.
#ifndef MZ_IO_PNG_H
#define MZ_IO_PNG_H

#include "base/base.h"

enum { MZ_PNG_SIDE = 8192 }; // the most pixels of a side, read and written

// Holds 8-bit samples, in rows from top to bottom.
typedef struct mz_picture {
    int64_t height, width, channels; // channels 1: gray, 3: RGB
    uint8_t *pixels;                 // [height, width, channels]; owned
} mz_picture;

// Reads any PNG as a gray picture: 16 bits become 8, colours their luminance; transparency is dropped. *out is zeroed
// on failure. FORMAT names `where` and what is wrong; MEMORY; UNSUPPORTED.
mezzo_status mz_png_parse(const char *where, const void *bytes, size_t n, mz_picture *out);
mezzo_status mz_png_read(const char *path, mz_picture *out); // reads a file likewise; IO names it
// Reads a file with `channels` 1 as above, or 3: RGB, in which gray samples are repeated three times.
mezzo_status mz_png_read_channels(const char *path, int channels, mz_picture *out);
// Reads from a file's header how many channels its picture has: 1 or 3. FORMAT: not a PNG file.
mezzo_status mz_png_channels(const char *path, int *channels);
// Encodes the whole file in memory; the caller frees it with mz_free. `level` is zlib's, 0 to 9.
mezzo_status mz_png_encode(const mz_picture *picture, int level, uint8_t **bytes, size_t *n);
// Writes a file atomically. IO names it.
mezzo_status mz_png_write(const char *path, const mz_picture *picture);
mezzo_status mz_picture_make(int64_t height, int64_t width, int64_t channels, mz_picture *out); // makes a black one
void mz_picture_free(mz_picture *picture); // a zeroed one is allowed

#endif
