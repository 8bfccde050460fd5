#include "io/png.h"

#include "base/scope.h"
#include "io/file.h"

mezzo_status mz_picture_make(int64_t height, int64_t width, int64_t channels, mz_picture *out) {
    *out = (mz_picture){.height = height, .width = width, .channels = channels};
    out->pixels = mz_alloc((size_t)(height * width), (size_t)channels);
    return out->pixels != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

void mz_picture_free(mz_picture *picture) {
    mz_free(picture->pixels);
    *picture = (mz_picture){0};
}

#ifdef MEZZO_PNG
#include <png.h>
#include <setjmp.h>

// libpng returns by longjmp from `on_error`. Everything that must outlive the jump is in a `work`; the two functions
// that call setjmp have no variable that changes afterwards.
typedef struct work {
    char message[128];
    bool no_memory;
    const uint8_t *at, *end; // used to read
    size_t left;             // bytes of chunks that may still be read
    uint8_t *bytes;          // used to write
    size_t used, room;
    png_bytep row[MZ_PNG_SIDE];
} work;

static _Noreturn void on_error(png_structp png, png_const_charp message) {
    work *w = png_get_error_ptr(png);
    snprintf(w->message, sizeof w->message, "%s", message);
    mz_text_tame(w->message);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp message) {
    (void)png;
    (void)message;
}

static png_voidp take_memory(png_structp png, png_alloc_size_t n) {
    work *w = png_get_mem_ptr(png);
    void *memory = mz_alloc(n, 1);
    w->no_memory |= memory == NULL;
    return memory;
}

static void give_memory(png_structp png, png_voidp memory) {
    (void)png;
    mz_free(memory);
}

static void next_bytes(png_structp png, png_bytep out, size_t n) {
    work *w = png_get_io_ptr(png);
    if ((size_t)(w->end - w->at) < n)
        png_error(png, "the file is cut off");
    if ((png_get_io_state(png) & PNG_IO_CHUNK_DATA) != 0) {
        if (n > w->left)
            png_error(png, "more image data than its size needs");
        w->left -= n;
    }
    memcpy(out, w->at, n);
    w->at += n;
}

static void put_bytes(png_structp png, png_bytep from, size_t n) {
    work *w = png_get_io_ptr(png);
    if (MZ_RESERVE(w->bytes, w->room, w->used + n) != MEZZO_OK) {
        w->no_memory = true;
        png_error(png, "out of memory");
    }
    memcpy(w->bytes + w->used, from, n);
    w->used += n;
}

static void nothing_to_flush(png_structp png) {
    (void)png;
}

// --- reading -------------------------------------------------------------------------------------
// Refuses a small file that claims a huge picture before memory is allocated: deflate makes at most 1032 bytes of one.
static void check_claim(png_structp png, png_infop info, size_t n) {
    const uint64_t bits = (uint64_t)png_get_bit_depth(png, info) * png_get_channels(png, info);
    const uint64_t claimed = (bits * png_get_image_width(png, info) + 7) / 8 * png_get_image_height(png, info);
    if (claimed / 1032 > n)
        png_error(png, "the file is too short for its image");
}

// Ignores texts, which the reader does not need and which are slow to inflate, and color profiles, by which libpng
// would convert the same samples to other gray values.
static void ignore_metadata(png_structp png) {
    static const png_byte chunks[] = "tEXt\0zTXt\0iTXt\0cHRM\0gAMA\0iCCP\0sRGB\0cICP\0mDCV\0cLLI\0sBIT\0bKGD";
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, chunks, sizeof chunks / 5);
}

// Sets the conversions, and returns the number of passes over the rows.
static int ask_for(png_structp png, png_infop info, int channels) {
    const int type = png_get_color_type(png, info);
    png_set_scale_16(png);
    if (type == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(png);
    if (type == PNG_COLOR_TYPE_GRAY)
        png_set_expand_gray_1_2_4_to_8(png);
    if (channels == 3 && (type & PNG_COLOR_MASK_COLOR) == 0)
        png_set_gray_to_rgb(png);
    if (channels == 1 && (type & PNG_COLOR_MASK_COLOR) != 0)
        png_set_rgb_to_gray(png, PNG_ERROR_ACTION_NONE, PNG_RGB_TO_GRAY_DEFAULT, PNG_RGB_TO_GRAY_DEFAULT);
    png_set_strip_alpha(png);
    const int passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    return passes;
}

// Reads the rows. With the last row libpng inflates whatever follows, to the stream's end, so its input from there on
// is limited to what a row can need; otherwise a few megabytes after the image could become gigabytes. Deflate's stored
// blocks lengthen a row of `raw` bytes by far less than an eighth.
static void read_rows(png_structp png, work *w, const mz_picture *out, int passes, size_t raw) {
    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < out->height; y++) {
            if (pass == passes - 1 && y == out->height - 1)
                w->left = raw + raw / 8 + 1024;
            png_read_row(png, out->pixels + y * out->width * out->channels, NULL);
        }
    w->left = SIZE_MAX; // libpng inflates nothing after this
}

// Runs everything that may jump. Returns false where it failed; w->message has the reason.
static bool read_all(png_structp png, png_infop info, work *w, size_t n, int channels, mz_picture *out) {
    if (setjmp(png_jmpbuf(png)) != 0)
        return false;
    png_set_read_fn(png, w, next_bytes);
    png_set_user_limits(png, MZ_PNG_SIDE, MZ_PNG_SIDE);
    png_set_chunk_malloc_max(png, 1 << 20);
    png_set_crc_action(png, PNG_CRC_DEFAULT, PNG_CRC_DEFAULT);
    ignore_metadata(png);
    png_read_info(png, info);
    check_claim(png, info, n);
    const size_t raw = png_get_rowbytes(png, info);
    const int passes = ask_for(png, info, channels);
    if (png_get_rowbytes(png, info) != (size_t)channels * png_get_image_width(png, info))
        png_error(png, channels == 1 ? "its samples cannot be read as gray" : "its samples cannot be read as RGB");
    if (mz_picture_make(png_get_image_height(png, info), png_get_image_width(png, info), channels, out) != MEZZO_OK) {
        w->no_memory = true;
        png_error(png, "out of memory");
    }
    read_rows(png, w, out, passes, raw);
    png_read_end(png, NULL);
    return true;
}

static mezzo_status parse(const char *where, const void *bytes, size_t n, int channels, mz_picture *out) {
    *out = (mz_picture){0};
    if (n < 8 || png_sig_cmp(bytes, 0, 8) != 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: not a PNG file", where);
    work *w;
    MEZZO_TRY(MZ_NEW(w, 1));
    w->at = bytes;
    w->end = w->at + n;
    w->left = SIZE_MAX;
    bool done = false;
    png_structp png = NULL;
    png_infop info = NULL;
    png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, w, on_error, on_warning, w, take_memory, give_memory);
    if (png != NULL)
        info = png_create_info_struct(png);
    if (info != NULL)
        done = read_all(png, info, w, n, channels, out);
    png_destroy_read_struct(&png, &info, NULL);
    mezzo_status status = MEZZO_OK;
    if (!done) {
        mz_picture_free(out);
        status = info == NULL && png == NULL && w->message[0] == '\0' ? MEZZO_ERR_MEMORY : MEZZO_ERR_FORMAT;
        if (w->no_memory || status == MEZZO_ERR_MEMORY)
            status = mz_fail(MEZZO_ERR_MEMORY, "%s: out of memory while reading an image", where);
        else
            status = mz_fail(MEZZO_ERR_FORMAT, "%s: a broken PNG file: %s", where, w->message);
    }
    mz_free(w);
    return status;
}

// --- writing -------------------------------------------------------------------------------------
static bool write_all(png_structp png, png_infop info, work *w, const mz_picture *p, int level) {
    if (setjmp(png_jmpbuf(png)) != 0)
        return false;
    png_set_write_fn(png, w, put_bytes, nothing_to_flush);
    png_set_compression_level(png, level);
    png_set_filter(png, PNG_FILTER_TYPE_BASE, p->channels == 1 ? PNG_FILTER_SUB : PNG_FILTER_NONE);
    png_set_IHDR(png, info, (png_uint_32)p->width, (png_uint_32)p->height, 8,
                 p->channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    for (int64_t y = 0; y < p->height; y++)
        w->row[y] = p->pixels + y * p->width * p->channels;
    png_write_info(png, info);
    png_write_image(png, w->row);
    png_write_end(png, info);
    return true;
}

mezzo_status mz_png_encode(const mz_picture *p, int level, uint8_t **bytes, size_t *n) {
    *bytes = NULL;
    *n = 0;
    if (p->height < 1 || p->width < 1 || p->height > MZ_PNG_SIDE || p->width > MZ_PNG_SIDE ||
        (p->channels != 1 && p->channels != 3))
        return mz_fail(MEZZO_ERR_INVALID,
                       "an image of %lld x %lld pixels and %lld channels: use 1 to %d pixels per side, 1 or 3 channels",
                       (long long)p->height, (long long)p->width, (long long)p->channels, MZ_PNG_SIDE);
    work *w;
    MEZZO_TRY(MZ_NEW(w, 1));
    bool done = false;
    png_structp png = NULL;
    png_infop info = NULL;
    png = png_create_write_struct_2(PNG_LIBPNG_VER_STRING, w, on_error, on_warning, w, take_memory, give_memory);
    if (png != NULL)
        info = png_create_info_struct(png);
    if (info != NULL)
        done = write_all(png, info, w, p, level);
    png_destroy_write_struct(&png, &info);
    mezzo_status status = MEZZO_OK;
    if (done) {
        *bytes = w->bytes;
        *n = w->used;
    } else {
        mz_free(w->bytes);
        status = w->no_memory || w->message[0] == '\0'
                     ? mz_fail(MEZZO_ERR_MEMORY, "out of memory while writing an image")
                     : mz_fail(MEZZO_ERR_IO, "libpng cannot write the image: %s", w->message);
    }
    mz_free(w);
    return status;
}
#else
#define NO_PNG "this build has no libpng: install it (libpng-dev) and build again"

static mezzo_status parse(const char *where, const void *bytes, size_t n, int channels, mz_picture *out) {
    (void)bytes;
    (void)n;
    (void)channels;
    *out = (mz_picture){0};
    return mz_fail(MEZZO_ERR_UNSUPPORTED, "%s: " NO_PNG, where);
}

mezzo_status mz_png_encode(const mz_picture *p, int level, uint8_t **bytes, size_t *n) {
    (void)p;
    (void)level;
    *bytes = NULL;
    *n = 0;
    return mz_fail(MEZZO_ERR_UNSUPPORTED, "pictures are PNG files, and " NO_PNG);
}
#endif

mezzo_status mz_png_parse(const char *where, const void *bytes, size_t n, mz_picture *out) {
    return parse(where, bytes, n, 1, out);
}

mezzo_status mz_png_read(const char *path, mz_picture *out) {
    return mz_png_read_channels(path, 1, out);
}

mezzo_status mz_png_read_channels(const char *path, int channels, mz_picture *out) {
    mz_map map = {0};
    *out = (mz_picture){0};
    MEZZO_TRY(mz_map_open(path, &map));
    mezzo_status status = parse(path, map.data, map.size, channels, out);
    return mz_map_end(&map, status);
}

// Reads the header: 8 bytes of signature, length and name of the chunk IHDR, width, height, bits, and the type of
// colour.
mezzo_status mz_png_channels(const char *path, int *channels) {
    enum { TYPE = 25, HAS_COLOUR = 2 };
    mz_map map = {0};
    MEZZO_TRY(mz_map_open(path, &map));
    const bool fits = map.size > TYPE && memcmp(map.data, "\x89PNG\r\n\x1A\n", 8) == 0;
    *channels = fits && (map.data[TYPE] & HAS_COLOUR) != 0 ? 3 : 1;
    return mz_map_end(&map, fits ? MEZZO_OK : mz_fail(MEZZO_ERR_FORMAT, "%s: not a PNG file", path));
}

mezzo_status mz_png_write(const char *path, const mz_picture *picture) {
    MZ_SCOPED(mz_free_at) uint8_t *bytes = NULL;
    size_t n;
    MEZZO_TRY(mz_png_encode(picture, 6, &bytes, &n));
    return mz_file_write_atomic(path, bytes, n);
}
