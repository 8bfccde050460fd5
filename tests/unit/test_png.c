// Pictures: what is written is read back, whatever a PNG may hold becomes 8-bit gray, and a file that is not one is
// told of in a line that names it. Without libpng, that line says what to install. Seen to fail with: the claim not
// compared with the file's size; bits not made bytes; no_memory not kept; the last row's bytes not limited, or limited
// to a row's; texts read.
#include <stdlib.h>

#include "io/png.h"
#include "test.h"

static bool have_png(void) {
    mz_picture p = {0};
    return mz_png_parse("x", "", 0, &p) != MEZZO_ERR_UNSUPPORTED;
}

static mz_picture pattern(int64_t height, int64_t width, int64_t channels) {
    mz_picture p;
    assert_int_equal(mz_picture_make(height, width, channels, &p), MEZZO_OK);
    for (int64_t i = 0; i < height * width * channels; i++)
        p.pixels[i] = (uint8_t)(i * 37 % 251);
    return p;
}

TEST(test_round_trip) {
    if (!have_png())
        skip();
    mz_picture p = pattern(7, 5, 1), q;
    assert_int_equal(mz_png_write("gray.png", &p), MEZZO_OK);
    assert_int_equal(mz_png_read("gray.png", &q), MEZZO_OK);
    assert_true(q.height == 7 && q.width == 5 && q.channels == 1);
    assert_memory_equal(p.pixels, q.pixels, 35);
    mz_picture_free(&p);
    mz_picture_free(&q);
    // A colour's luminance is between its channels; gray stays gray.
    p = pattern(3, 4, 3);
    for (int i = 0; i < 3; i++)
        p.pixels[i] = 200;
    assert_int_equal(mz_png_write("rgb.png", &p), MEZZO_OK);
    assert_int_equal(mz_png_read("rgb.png", &q), MEZZO_OK);
    assert_true(q.height == 3 && q.width == 4 && q.channels == 1);
    assert_int_equal(q.pixels[0], 200);
    mz_picture_free(&p);
    mz_picture_free(&q);
}

static void refused(const void *bytes, size_t n, const char *words) {
    mz_picture q;
    must_fail(mz_png_parse("t.png", bytes, n, &q), MEZZO_ERR_FORMAT, words, "t.png");
    assert_null(q.pixels);
}

TEST(test_refuses) {
    if (!have_png())
        skip();
    mz_picture p = pattern(40, 40, 1);
    uint8_t *bytes;
    size_t n;
    assert_int_equal(mz_png_encode(&p, 6, &bytes, &n), MEZZO_OK);
    refused("not a picture", 13, "not a PNG");
    refused(bytes, 4, "not a PNG");
    refused(bytes, n / 2, "cut off");
    bytes[n / 2] ^= 0x40;
    refused(bytes, n, "broken PNG");
    bytes[n / 2] ^= 0x40;
    // 8,000 x 8,000 pixels in a file of hundreds of bytes: the header's checksum is right.
    static const uint8_t claim[] = {0x89, 'P',  'N',  'G',  13,   10, 26, 10,   0,    0,   0,   13,   'I',  'H',  'D',
                                    'R',  0,    0,    0x1F, 0x40, 0,  0,  0x1F, 0x40, 8,   0,   0,    0,    0,    0x23,
                                    0x9A, 0xF2, 0x28, 0,    0,    0,  0,  'I',  'D',  'A', 'T', 0x35, 0xAF, 0x06, 0x1E};
    refused(claim, sizeof claim, "too short for its image");
    mz_free(bytes);
    mz_picture_free(&p);
    assert_int_equal(mz_png_read("missing.png", &p), MEZZO_ERR_INVALID);
    p = (mz_picture){.height = 0, .width = 3, .channels = 1};
    assert_int_equal(mz_png_encode(&p, 6, &bytes, &n), MEZZO_ERR_INVALID);
}

// Every allocation, libpng's and zlib's too, fails in turn.
TEST(test_memory) {
    if (!have_png())
        skip();
    mz_picture p = pattern(30, 20, 1), q;
    uint8_t *bytes = NULL, *again;
    size_t n, m;
    assert_int_equal(mz_png_encode(&p, 6, &bytes, &n), MEZZO_OK);
    int failed = 0;
    for (int64_t i = 0;; i++) {
        mz_alloc_fail_after(i);
        const mezzo_status written = mz_png_encode(&p, 6, &again, &m);
        mz_alloc_fail_after(-1);
        if (written == MEZZO_OK) {
            assert_true(m == n && memcmp(bytes, again, n) == 0);
            mz_free(again);
            break;
        }
        assert_int_equal(written, MEZZO_ERR_MEMORY);
        assert_null(again);
        failed++;
    }
    for (int64_t i = 0;; i++) {
        mz_alloc_fail_after(i);
        const mezzo_status read = mz_png_parse("t.png", bytes, n, &q);
        mz_alloc_fail_after(-1);
        if (read == MEZZO_OK)
            break;
        assert_int_equal(read, MEZZO_ERR_MEMORY);
        assert_null(q.pixels);
        failed++;
    }
    assert_true(failed > 8);
    assert_memory_equal(p.pixels, q.pixels, 600);
    mz_picture_free(&p);
    mz_picture_free(&q);
    mz_free(bytes);
}

static mezzo_status read_seed(const char *name, mz_picture *out) {
    char path[1024];
    snprintf(path, sizeof path, "%s/fuzz/corpus/png/%s", getenv("MEZZO_TESTS"), name);
    return mz_png_read(path, out);
}

// Other kinds, of the fuzzer's seeds.
TEST(test_kinds) {
    static const struct {
        const char *name;
        int width, height;
        uint8_t pixels[18];
    } kinds[] = {
        {"deep", 2, 1, {1, 255}},
        {"bits", 9, 2, {255, 0, 255, 0, 0, 255, 0, 255, 255, 255, 0, 255, 0, 0, 255, 255, 0, 255}},
        {"adam7", 3, 3, {1, 5, 2, 7, 8, 9, 3, 6, 4}},
        {"palette", 2, 1, {54, 18}}, // luminance of red and blue: 0.2126 and 0.0722
    };
    if (!have_png() || getenv("MEZZO_TESTS") == NULL)
        skip();
    for (size_t i = 0; i < MZ_COUNT(kinds); i++) {
        mz_picture q;
        if (read_seed(kinds[i].name, &q) != MEZZO_OK)
            fail_msg("%s", mezzo_error_message());
        assert_true(q.width == kinds[i].width && q.height == kinds[i].height);
        for (int k = 0; k < q.width * q.height; k++)
            if (q.pixels[k] != kinds[i].pixels[k])
                fail_msg("%s: pixel %d is %d, not %d", kinds[i].name, k, q.pixels[k], kinds[i].pixels[k]);
        mz_picture_free(&q);
    }
}

// 16 MiB after a picture of a few pixels, in as many kilobytes: libpng would inflate all of it.
TEST(test_bombs) {
    if (!have_png() || getenv("MEZZO_TESTS") == NULL)
        skip();
    mz_picture q;
    for (int i = 0; i < 2; i++) {
        must_fail(read_seed(i == 0 ? "bomb" : "bomb7", &q), MEZZO_ERR_FORMAT, "more image data than its size needs");
    }
    // Compressed texts are not inflated: so many of them take no allocation more than a file without.
    int64_t allocations[2] = {0};
    for (int i = 0; i < 2; i++)
        for (;; allocations[i]++) {
            mz_alloc_fail_after(allocations[i]);
            const mezzo_status read = read_seed(i == 0 ? "gray" : "texts", &q);
            mz_alloc_fail_after(-1);
            if (read == MEZZO_OK) {
                mz_picture_free(&q);
                break;
            }
        }
    assert_int_equal(allocations[0], allocations[1]);
}

static void add(uint8_t **at, const void *bytes, size_t n) {
    memcpy(*at, bytes, n);
    *at += n;
}

static uint32_t crc(const uint8_t *bytes, size_t n) {
    uint32_t c = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        c ^= bytes[i];
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (c & 1 ? 0xEDB88320u : 0);
    }
    return ~c;
}

static void add_chunk(uint8_t **at, const char *type, const uint8_t *bytes, size_t n) {
    const uint8_t length[4] = {(uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n};
    add(at, length, 4);
    const uint8_t *from = *at;
    add(at, type, 4);
    if (n > 0)
        add(at, bytes, n);
    const uint32_t c = crc(from, n + 4);
    const uint8_t sum[4] = {(uint8_t)(c >> 24), (uint8_t)(c >> 16), (uint8_t)(c >> 8), (uint8_t)c};
    add(at, sum, 4);
}

// The most bytes that a row takes: not compressed, 16 bits a channel, a chunk for every byte.
TEST(test_stored) {
    if (!have_png())
        skip();
    enum { WIDTH = 2000, RAW = 1 + 8 * WIDTH };
    static uint8_t file[64 + 13 * (RAW + 32)], row[RAW], stream[RAW + 32];
    static const uint8_t head[] = {0, 0, WIDTH >> 8, WIDTH & 255, 0, 0, 0, 1, 16, 6, 0, 0, 0};
    uint8_t *at = file, *z = stream;
    uint32_t a = 1, b = 0;
    for (size_t i = 0; i < RAW; i++) {
        row[i] = i == 0 ? 0 : (uint8_t)(i * 37 % 251);
        a = (a + row[i]) % 65521;
        b = (b + a) % 65521;
    }
    const uint8_t begin[] = {0x78, 1, 1, RAW & 255, RAW >> 8, ~RAW & 255, ~RAW >> 8 & 255};
    const uint8_t sum[] = {(uint8_t)(b >> 8), (uint8_t)b, (uint8_t)(a >> 8), (uint8_t)a};
    add(&z, begin, sizeof begin);
    add(&z, row, RAW);
    add(&z, sum, sizeof sum);
    add(&at, "\x89PNG\r\n\x1a\n", 8);
    add_chunk(&at, "IHDR", head, sizeof head);
    for (const uint8_t *p = stream; p < z; p++)
        add_chunk(&at, "IDAT", p, 1);
    add_chunk(&at, "IEND", NULL, 0);
    mz_picture q;
    if (mz_png_parse("t.png", file, (size_t)(at - file), &q) != MEZZO_OK)
        fail_msg("%s", mezzo_error_message());
    assert_true(q.width == WIDTH && q.height == 1);
    mz_picture_free(&q);
}

// A chunk that describes colours changes no value: with sRGB or gAMA, libpng would make gray in linear light.
TEST(test_metadata) {
    if (!have_png())
        skip();
    static const struct {
        const char *type;
        size_t n;
        uint8_t bytes[32];
    } chunks[] = {{"tIME", 7, {7, 230, 1, 1, 0, 0, 0}},
                  {"sRGB", 1, {0}},
                  {"gAMA", 4, {0, 0, 0xB1, 0x8F}},
                  {"cHRM", 32, {0, 0, 0x7A, 0x26, 0, 0, 0x80, 0x84, 0, 1, 0x38, 0x80, 0, 0, 0x82, 0x35,
                                0, 0, 0x3A, 0x98, 0, 0, 0xEA, 0x60, 0, 0, 0x13, 0x88, 0, 0, 0x0B, 0xB8}},
                  {"cICP", 4, {9, 16, 0, 1}},
                  {"sBIT", 3, {5, 6, 5}}};
    mz_picture p, q;
    uint8_t *bytes, changed[256];
    size_t n;
    assert_int_equal(mz_picture_make(1, 3, 3, &p), MEZZO_OK);
    memset(p.pixels, 0, 9);
    p.pixels[0] = p.pixels[4] = p.pixels[8] = 255; // red, green, blue
    assert_int_equal(mz_png_encode(&p, 6, &bytes, &n), MEZZO_OK);
    mz_picture_free(&p);
    assert_true(n + 64 < sizeof changed);
    for (size_t i = 0; i < MZ_COUNT(chunks); i++) {
        enum { HEAD = 8 + 12 + 13 };
        uint8_t *at = changed;
        add(&at, bytes, HEAD);
        add_chunk(&at, chunks[i].type, chunks[i].bytes, chunks[i].n);
        add(&at, bytes + HEAD, n - HEAD);
        if (mz_png_parse("t.png", changed, (size_t)(at - changed), &q) != MEZZO_OK)
            fail_msg("%s: %s", chunks[i].type, mezzo_error_message());
        if (q.pixels[0] != 54 || q.pixels[1] != 182 || q.pixels[2] != 18)
            fail_msg("%s: %d %d %d", chunks[i].type, q.pixels[0], q.pixels[1], q.pixels[2]);
        mz_picture_free(&q);
    }
    mz_free(bytes);
}

TEST(test_without) {
    if (have_png())
        skip();
    mz_picture p = pattern(2, 2, 1);
    must_fail(mz_png_write("x.png", &p), MEZZO_ERR_UNSUPPORTED, "libpng-dev");
    mz_picture_free(&p);
}
