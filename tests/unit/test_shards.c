// Token shards of llm.c and nanoGPT: told apart, read as they are, and refused when they are not what they say.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "data/shards.h"

static void assert_error_has(mezzo_status got, mezzo_status expected, const char *part) {
    assert_int_equal(got, expected);
    if (!strstr(mezzo_error_message(), part))
        fail_msg("'%s' does not say '%s'", mezzo_error_message(), part);
    assert_null(strchr(mezzo_error_message(), '\n'));
}

static const uint16_t narrow[] = {0, 1, 50256, 65535};
static const uint32_t wide[] = {7, 128255, 65536};
#define NARROW ((mz_tokens){(const unsigned char *)narrow, 2, MZ_COUNT(narrow)})
#define WIDE   ((mz_tokens){(const unsigned char *)wide, 4, MZ_COUNT(wide)})

static void what_is_written_is_read_back(void **state) {
    (void)state;
    const mz_tokens twice[] = {NARROW, NARROW};
    mz_shard shard;
    for (mezzo_shard_format format = MEZZO_SHARD_LLMC; format <= MEZZO_SHARD_NANOGPT; format++) {
        assert_int_equal(mz_shard_write("narrow.bin", format, 2, twice, 2), MEZZO_OK);
        assert_int_equal(mz_shard_open("narrow.bin", &shard), MEZZO_OK);
        assert_int_equal(shard.tokens.count, 8);
        assert_int_equal(shard.tokens.width, 2);
        assert_int_equal(shard.map.size, (format == MEZZO_SHARD_LLMC ? 1024 : 0) + 16);
        for (uint64_t i = 0; i < 8; i++)
            assert_int_equal(mz_token_at(&shard.tokens, i), narrow[i % 4]);
        mz_shard_close(&shard);
    }
    const mz_tokens mixed[] = {WIDE, NARROW};
    assert_int_equal(mz_shard_write("wide.bin", MEZZO_SHARD_LLMC, 4, mixed, 2), MEZZO_OK);
    assert_int_equal(mz_shard_open("wide.bin", &shard), MEZZO_OK);
    int32_t out[7], expected[] = {7, 128255, 65536, 0, 1, 50256, 65535};
    assert_int_equal(mz_tokens_copy(&shard.tokens, 0, 7, 200000, out), 7);
    assert_memory_equal(out, expected, sizeof expected);
    assert_int_equal(mz_tokens_copy(&shard.tokens, 0, 7, 128255, out), 1); // the first that is too large
    assert_int_equal(mz_tokens_find_above(&shard.tokens, 128256), 7);
    assert_int_equal(mz_tokens_find_above(&shard.tokens, 128255), 1);
    mz_shard_close(&shard);

    // llm.c's header, word for word.
    char *bytes;
    size_t size;
    assert_int_equal(mz_file_read("wide.bin", 1 << 20, &bytes, &size), MEZZO_OK);
    const int32_t head[4] = {20240801, 7, 7, 0};
    assert_memory_equal(bytes, head, sizeof head);
    mz_free(bytes);
}

static void what_does_not_fit_is_not_written(void **state) {
    (void)state;
    const mz_tokens tokens = WIDE, none = {NULL, 2, 0};
    const mz_tokens many = {NULL, 2, (uint64_t)INT32_MAX + 1};
    assert_error_has(mz_shard_write("x.bin", MEZZO_SHARD_NANOGPT, 4, &tokens, 1), MEZZO_ERR_INVALID,
                     "16-bit tokens only");
    assert_error_has(mz_shard_write("x.bin", MEZZO_SHARD_LLMC, 2, &tokens, 1), MEZZO_ERR_INVALID,
                     "token 128255 at position 1 does not fit");
    assert_error_has(mz_shard_write("x.bin", MEZZO_SHARD_LLMC, 2, &none, 1), MEZZO_ERR_INVALID, "no tokens");
    assert_error_has(mz_shard_write("x.bin", MEZZO_SHARD_LLMC, 2, &many, 1), MEZZO_ERR_INVALID, "at most 2147483647");
    assert_false(mz_path_exists("x.bin") || mz_path_exists("x.bin.tmp"));
}

static void damaged_shards_are_refused(void **state) {
    (void)state;
    static const struct {
        int32_t header[3];
        size_t size;
        const char *says;
    } rows[] = {
        {{0}, 0, "x.bin: the file is empty"},
        {{0}, 7, "7 bytes without llm.c's header; nanoGPT's files are of uint16"},
        {{20240520, 1, 4}, 4, "the file is cut off"},
        {{20240520, 1, 4}, 1023, "the file is cut off"},
        {{20240520, 2, 4}, 1032, "version 2 of llm.c's token format; only version 1 is supported"},
        {{20240520, 7, 4}, 1040, "version 7"},
        {{20240801, 1, 4}, 1040, "version 1 of llm.c's token format; only version 7 is supported"},
        {{20240520, 1, 0}, 1024, "its header says 0 tokens"},
        {{20240520, 1, -4}, 1032, "its header says -4 tokens"},
        {{20240520, 1, 4}, 1031, "says 4 tokens (1032 bytes in all), the file has 1031: it is cut off"},
        {{20240520, 1, 4}, 1033, "the file has 1033: it is damaged"},
        {{20240801, 7, 4}, 1032, "says 4 tokens (1040 bytes in all)"},
        {{20240520, 1, INT32_MAX}, 1032, "says 2147483647 tokens (4294968318 bytes in all)"},
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        unsigned char *bytes = calloc(1, rows[i].size + (rows[i].size == 0));
        assert_non_null(bytes);
        memcpy(bytes, rows[i].header, rows[i].size < 12 ? rows[i].size : 12);
        mz_tokens tokens;
        assert_error_has(mz_shard_parse("x.bin", bytes, rows[i].size, &tokens), MEZZO_ERR_FORMAT, rows[i].says);
        assert_int_equal(tokens.count, 0);
        free(bytes);
    }
    mz_shard shard;
    assert_error_has(mz_shard_open("none.bin", &shard), MEZZO_ERR_IO, "'none.bin'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(what_does_not_fit_is_not_written),
        cmocka_unit_test(damaged_shards_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
