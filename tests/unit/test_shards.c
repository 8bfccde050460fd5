// Token shards of llm.c and nanoGPT: told apart, read as they are, and refused when they are not what they say.
#include <stdlib.h>

#include "data/shards.h"
#include "test.h"

static const uint16_t narrow[] = {0, 1, 50256, 65535};
static const uint32_t wide[] = {7, 128255, 65536};
#define NARROW ((mz_tokens){(const unsigned char *)narrow, 2, MZ_COUNT(narrow)})
#define WIDE   ((mz_tokens){(const unsigned char *)wide, 4, MZ_COUNT(wide)})

TEST(what_is_written_is_read_back) {
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

TEST(what_does_not_fit_is_not_written) {
    const mz_tokens tokens = WIDE, none = {NULL, 2, 0};
    const mz_tokens many = {NULL, 2, (uint64_t)INT32_MAX + 1};
    must_fail(mz_shard_write("x.bin", MEZZO_SHARD_NANOGPT, 4, &tokens, 1), MEZZO_ERR_INVALID, "16-bit tokens only");
    must_fail(mz_shard_write("x.bin", MEZZO_SHARD_LLMC, 2, &tokens, 1), MEZZO_ERR_INVALID,
              "token 128255 at position 1 does not fit");
    must_fail(mz_shard_write("x.bin", MEZZO_SHARD_LLMC, 2, &none, 1), MEZZO_ERR_INVALID, "no tokens");
    must_fail(mz_shard_write("x.bin", MEZZO_SHARD_LLMC, 2, &many, 1), MEZZO_ERR_INVALID, "at most 2147483647");
    assert_false(mz_path_exists("x.bin") || mz_path_exists("x.bin.tmp"));
}

TEST(damaged_shards_are_refused) {
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
        {{20240801, 7, 4}, 1031, "says 4 tokens (1040 bytes in all)"},
        {{20240801, 7, 4}, 1032, "its tokens have 2 bytes, but its header, 20240801 version 7, is for tokens of 4"},
        {{20240520, 1, 4}, 1040, "its tokens have 4 bytes, but its header, 20240520 version 1, is for tokens of 2"},
        {{20240520, 1, 4}, 1056, "its tokens have 8 bytes"},
        {{20240520, 1, INT32_MAX}, 1032, "says 2147483647 tokens (4294968318 bytes in all)"},
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        unsigned char *bytes = calloc(1, rows[i].size + (rows[i].size == 0));
        assert_non_null(bytes);
        memcpy(bytes, rows[i].header, rows[i].size < 12 ? rows[i].size : 12);
        mz_tokens tokens;
        must_fail(mz_shard_parse("x.bin", bytes, rows[i].size, &tokens), MEZZO_ERR_FORMAT, rows[i].says);
        assert_int_equal(tokens.count, 0);
        free(bytes);
    }
    mz_shard shard;
    must_fail(mz_shard_open("none.bin", &shard), MEZZO_ERR_INVALID, "'none.bin'");
}

// `count` tokens of a random text, as `bits` bits each; at most `vocab` - 1.
static size_t put_tokens(unsigned char *bytes, size_t count, int bits, uint32_t vocab) {
    uint32_t state = 12345;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525 + 1013904223;
        const uint64_t token = (state >> 8) % vocab;
        memcpy(bytes + i * (size_t)bits / 8, &token, (size_t)bits / 8);
    }
    return count * (size_t)bits / 8;
}

TEST(bare_tokens_of_another_width_are_refused) {
    static unsigned char bytes[8 * 5000];
    static const struct {
        size_t count;
        int bits;
        uint32_t vocab;
        const char *says; // NULL: read
    } rows[] = {
        {4, 32, 65, "have 32 bits: every second number of 16 bits is 0"},
        {5000, 32, 50257, "have 32 bits: every second number of 16 bits is 0"},
        {5000, 32, 151936, "have 32 bits: every second number of 16 bits is small"},
        {4, 64, 65, "have 64 bits"},
        {5000, 64, 128256, "have 64 bits"},
        {5000, 16, 50257, NULL},
        {5000, 16, 65, NULL},
        {5000, 16, 4, NULL},
        {5000, 16, 2, NULL},
        {3, 16, 2, NULL},
    };
    mz_tokens tokens;
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        const size_t n = put_tokens(bytes, rows[i].count, rows[i].bits, rows[i].vocab);
        const mezzo_status status = mz_shard_parse("x.bin", bytes, n, &tokens);
        if (rows[i].says != NULL)
            must_fail(status, MEZZO_ERR_FORMAT, rows[i].says);
        else if (status != MEZZO_OK || tokens.count != rows[i].count)
            fail_msg("row %zu: %s", i, mezzo_error_message());
    }
    memset(bytes, 0, 64); // as good in any width
    assert_int_equal(mz_shard_parse("x.bin", bytes, 64, &tokens), MEZZO_OK);
    memcpy(bytes, "\x93NUMPY\1\0", 8);
    must_fail(mz_shard_parse("x.bin", bytes, 64, &tokens), MEZZO_ERR_FORMAT, "x.bin: a .npy array");
}

// pickle.dump({"vocab_size": N, "itos": {0: "\n", …}, "stoi": {…}}, file), as nanoGPT's prepare.py has it, by protocol
// 4 and 2; and what is no such file.
TEST(the_vocabulary_of_meta_pkl_is_read) {
#define P4(n)                                                                                                          \
    "\x80\4\x95\x20\0\0\0\0\0\0\0}\x94(\x8c\nvocab_size\x94" n "\x8c\4itos\x94}\x94(K\0\x8c\1\n\x94K\1\x8c\1a\x94uu."
#define P2(n) "\x80\2}q\0(X\n\0\0\0vocab_sizeq\1" n "X\4\0\0\0itosq\2}q\3K\0X\1\0\0\0\nq\4su."
    static const struct {
        const char *bytes;
        size_t n;
        int64_t vocab;
    } rows[] = {
        {P4("K\x41"), sizeof P4("K\x41") - 1, 65},
        {P4("M\x51\xC4"), sizeof P4("M\x51\xC4") - 1, 50257},
        {P4("J\x40\x0D\3\0"), sizeof P4("J\x40\x0D\3\0") - 1, 200000},
        {P2("K\x41"), sizeof P2("K\x41") - 1, 65},
        {P4("K\0"), sizeof P4("K\0") - 1, 0},
        {P4("N"), sizeof P4("N") - 1, 0},                          // None
        {"\x80\4c__builtin__\nprint\n", 21, 0},                    // a call
        {"\x80\4}\x94(\x8c\nvocab_siz", 14, 0},                    // cut off
        {"\x80\4}\x94(\x8c\nvocab_size\x94K", 18, 0},              // in its number
        {"\x80\4}\x94(X\xFF\xFF\xFF\xFFvocab_size\x94K\1", 23, 0}, // a text longer than the file
        {"", 0, 0},
    };
    int64_t vocab;
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        assert_int_equal(mz_file_write_atomic("meta.pkl", rows[i].bytes, rows[i].n), MEZZO_OK);
        const mezzo_status status = mz_meta_vocab("meta.pkl", &vocab);
        if (status != (rows[i].vocab > 0 ? MEZZO_OK : MEZZO_ERR_FORMAT) || vocab != rows[i].vocab)
            fail_msg("row %zu: %lld, %s", i, (long long)vocab, mezzo_error_message());
    }
    assert_non_null(strstr(mezzo_error_message(), "'meta.pkl': no vocab_size"));
    assert_int_equal(mz_meta_vocab("none.pkl", &vocab), MEZZO_OK);
    assert_int_equal(vocab, 0);
}
