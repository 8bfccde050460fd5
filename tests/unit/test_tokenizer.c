// Text → tokens → the same text; characters numbered as Python's sorted(set(text)); files that lie are refused.
#include <stdlib.h>

#include "base/base.h"
#include "data/tokenizer.h"
#include "io/file.h"
#include "io/json.h"
#include "io/utf8.h"
#include "mezzo/data.h"
#include "test.h"

static void assert_round_trip(const mezzo_tokenizer *tok, const char *text, size_t n, size_t expected_count) {
    int32_t *tokens = malloc((n + 1) * sizeof *tokens);
    size_t count, size;
    assert_int_equal(mezzo_tokenizer_encode(tok, text, n, tokens, &count), MEZZO_OK);
    assert_int_equal(count, expected_count);
    char *back = malloc(count * mezzo_tokenizer_max_bytes(tok) + 1);
    assert_int_equal(mezzo_tokenizer_decode(tok, tokens, count, back, &size), MEZZO_OK);
    assert_int_equal(size, n);
    assert_memory_equal(back, text, n);
    assert_int_equal(back[n], 0);
    free(back);
    free(tokens);
}

TEST(bytes_are_their_values) {
    mezzo_tokenizer *tok;
    assert_int_equal(mezzo_tokenizer_create_byte(&tok), MEZZO_OK);
    assert_int_equal(mezzo_tokenizer_vocab(tok), 256);
    char all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    assert_round_trip(tok, all, sizeof all, 256);
    int32_t tokens[2];
    size_t count;
    assert_int_equal(mezzo_tokenizer_encode(tok, "\xFF\x01", 2, tokens, &count), MEZZO_OK);
    assert_int_equal(tokens[0], 255);
    assert_int_equal(tokens[1], 1);
    mezzo_tokenizer_free(tok);
}

TEST(characters_are_numbered_in_code_point_order) {
    // sorted(set("zé a漢a\n😀")) == ['\n', ' ', 'a', 'z', 'é', '漢', '😀']
    const char *text = "zé a漢a\n😀";
    static const int32_t expected[] = {3, 4, 1, 2, 5, 2, 0, 6};
    mezzo_tokenizer *tok;
    assert_int_equal(mezzo_tokenizer_create_char(text, strlen(text), &tok), MEZZO_OK);
    assert_int_equal(mezzo_tokenizer_vocab(tok), 7);
    assert_string_equal(mezzo_tokenizer_kind(tok), "char");
    assert_int_equal(mezzo_tokenizer_max_bytes(tok), 4);
    int32_t tokens[32];
    size_t count, n;
    assert_int_equal(mezzo_tokenizer_encode(tok, text, strlen(text), tokens, &count), MEZZO_OK);
    assert_int_equal(count, MZ_COUNT(expected));
    assert_memory_equal(tokens, expected, sizeof expected);
    assert_round_trip(tok, text, strlen(text), 8);
    assert_memory_equal(mezzo_tokenizer_bytes(tok, 5, &n), "漢", 3);
    assert_int_equal(n, 3);
    assert_null(mezzo_tokenizer_bytes(tok, 7, &n));
    assert_null(mezzo_tokenizer_bytes(tok, -1, &n));

    must_fail(mezzo_tokenizer_encode(tok, "az b", 4, tokens, &count), MEZZO_ERR_INVALID,
              "character U+0062 at byte 3 is not among the tokenizer's 7");
    assert_int_equal(count, 3);
    must_fail(mezzo_tokenizer_encode(tok, "a\xE6\xBC", 3, tokens, &count), MEZZO_ERR_FORMAT,
              "byte 1 (0xE6) is not UTF-8");
    const int32_t outside[] = {0, 7};
    char out[16];
    must_fail(mezzo_tokenizer_decode(tok, outside, 2, out, &n), MEZZO_ERR_INVALID, "token 7 at position 1");
    mezzo_tokenizer_free(tok);
    must_fail(mezzo_tokenizer_create_char("", 0, &tok), MEZZO_ERR_INVALID, "empty");
    must_fail(mezzo_tokenizer_create_char("ab\x80", 3, &tok), MEZZO_ERR_FORMAT, "byte 2 (0x80) is not UTF-8");
}

// Every code point there is, and every malformed form of RFC 3629's table.
TEST(utf8_is_read_strictly) {
    for (uint32_t code = 0; code < 0x110000; code++) {
        char bytes[4];
        uint32_t back;
        size_t width = mz_utf8_encode(code, bytes);
        if (code >= 0xD800 && code < 0xE000) {
            assert_int_equal(mz_utf8_decode(bytes, width, &back), 0);
            continue;
        }
        assert_int_equal(mz_utf8_decode(bytes, width, &back), width);
        assert_int_equal(back, code);
        assert_true(width == 1 || mz_utf8_decode(bytes, width - 1, &back) == 0);
    }
    static const char *const bad[] = {"\x80",
                                      "\xBF",
                                      "\xC0\x80",
                                      "\xC1\xBF",
                                      "\xE0\x80\x80",
                                      "\xE0\x9F\xBF",
                                      "\xED\xA0\x80",
                                      "\xED\xBF\xBF",
                                      "\xF0\x80\x80\x80",
                                      "\xF0\x8F\xBF\xBF",
                                      "\xF4\x90\x80\x80",
                                      "\xF5\x80\x80\x80",
                                      "\xFE",
                                      "\xFF",
                                      "\xC3(",
                                      "\xE2\x28\xA1",
                                      "\xE2\x82("};
    for (size_t i = 0; i < MZ_COUNT(bad); i++) {
        uint32_t code;
        assert_int_equal(mz_utf8_decode(bad[i], strlen(bad[i]), &code), 0);
    }
}

// In the form of the `tokenizers` library; its vocabulary has the characters, but for U+0000.
TEST(a_saved_tokenizer_has_the_published_form) {
    mezzo_tokenizer *tok;
    json_t *object;
    assert_int_equal(mezzo_tokenizer_create_char("ba\0", 3, &tok), MEZZO_OK);
    assert_int_equal(mezzo_tokenizer_save(tok, "char.json"), MEZZO_OK);
    assert_int_equal(mz_json_load("char.json", 1 << 20, &object), MEZZO_OK);
    const json_t *model = json_object_get(object, "model"), *vocab = json_object_get(model, "vocab");
    assert_string_equal(json_string_value(json_object_get(model, "type")), "BPE");
    assert_int_equal(json_object_size(vocab), 2);
    assert_int_equal(json_integer_value(json_object_get(vocab, "b")), 2);
    json_decref(object);
    mezzo_tokenizer_free(tok);
}

TEST(a_saved_tokenizer_is_the_same) {
    const char text[] = "b\"a\\\n\0é\x01😀"; // a NUL is a character too
    mezzo_tokenizer *tok, *again;
    assert_int_equal(mezzo_tokenizer_create_char(text, sizeof text - 1, &tok), MEZZO_OK);
    assert_int_equal(mezzo_tokenizer_save(tok, "tokenizer.json"), MEZZO_OK);
    assert_int_equal(mezzo_tokenizer_load("tokenizer.json", &again), MEZZO_OK);
    assert_int_equal(mezzo_tokenizer_vocab(again), mezzo_tokenizer_vocab(tok));
    for (int32_t i = 0; i < mezzo_tokenizer_vocab(tok); i++) {
        size_t a, b;
        const char *x = mezzo_tokenizer_bytes(tok, i, &a), *y = mezzo_tokenizer_bytes(again, i, &b);
        assert_int_equal(a, b);
        assert_memory_equal(x, y, a);
    }
    mezzo_tokenizer_free(tok);
    mezzo_tokenizer_free(again);
    assert_int_equal(mezzo_tokenizer_create_byte(&tok), MEZZO_OK);
    assert_int_equal(mezzo_tokenizer_save(tok, "byte.json"), MEZZO_OK);
    assert_int_equal(mezzo_tokenizer_load("byte.json", &again), MEZZO_OK);
    assert_string_equal(mezzo_tokenizer_kind(again), "byte");
    mezzo_tokenizer_free(tok);
    mezzo_tokenizer_free(again);
}

#define HEAD "{\"format\": \"mezzo-tokenizer\", \"version\": 1, "
TEST(hostile_tokenizer_files_are_refused) {
    static const struct {
        const char *json, *says;
    } rows[] = {
        {"", "t.json: not valid JSON"},
        {"{\"format\": ", "t.json: not valid JSON"},
        {"[1]", "not an object"},
        {"{}", "key 'format': expected a string, got nothing"},
        {"{\"format\": \"tokenizers\"}", "format is 'tokenizers'"},
        {"{\"format\": \"mezzo-tokenizer\", \"version\": 2}", "its checksum is missing"},
        {"{\"format\": \"mezzo-tokenizer\", \"version\": 3}", "key 'version': 3 is not in 1 … 2"},
        {HEAD "\"kind\": \"word\"}", "kind 'word' is not one of byte, char, gpt2, bpe"},
        {HEAD "\"kind\": 7}", "key 'kind': expected a string, got an integer"},
        {HEAD "\"kind\": \"byte\", \"vocab_size\": 257}", "257 is not in 256 … 256"},
        {HEAD "\"kind\": \"gpt2\", \"vocab_size\": 50256}", "50256 is not in 50257 … 50257"},
        {HEAD "\"kind\": \"char\", \"vocab_size\": 2}", "key 'characters': expected a string"},
        {HEAD "\"kind\": \"char\", \"vocab_size\": 0, \"characters\": \"\"}", "0 is not in"},
        {HEAD "\"kind\": \"char\", \"vocab_size\": 99999999999, \"characters\": \"ab\"}", "is not in 1 …"},
        {HEAD "\"kind\": \"char\", \"vocab_size\": 3, \"characters\": \"ab\"}",
         "'vocab_size' is 3, but 'characters' has 2"},
        {HEAD "\"kind\": \"char\", \"vocab_size\": 2, \"characters\": \"ba\"}", "byte 1: not in rising"},
        {HEAD "\"kind\": \"char\", \"vocab_size\": 2, \"characters\": \"aa\"}", "byte 1: not in rising"},
        {HEAD "\"kind\": \"char\", \"kind\": \"byte\"}", "duplicate"},
        {HEAD "\"kind\": \"char\", \"vocab_size\": 1, \"characters\": \"\xFF\"}", "not valid JSON"},
        {HEAD "\"kind\": \"char\", \"vocab_size\": 1, \"characters\": \"\\ud800\"}",
         "key 'characters': expected a string"},
        {"{\"model\": {\"type\": \"BPE\", \"mezzo\": {\"kind\": \"word\"}}}", "kind 'word' is not one of byte"},
        {"{\"model\": {\"type\": \"BPE\", \"mezzo\": {\"kind\": \"byte\", \"vocab_size\": 7}}}", "7 is not in 256"},
        {"[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]", "nested deeper than 16"},
    };
    mezzo_tokenizer *tok;
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        assert_int_equal(mz_file_write_atomic("t.json", rows[i].json, strlen(rows[i].json)), MEZZO_OK);
        must_fail(mezzo_tokenizer_load("t.json", &tok), MEZZO_ERR_FORMAT, rows[i].says);
        assert_null(tok);
    }
    must_fail(mezzo_tokenizer_load("none.json", &tok), MEZZO_ERR_INVALID, "'none.json'");
}

// Files of the form before, which had no other; folders with one go on being read.
TEST(files_of_the_older_form_are_read) {
    static const struct {
        const char *json, *kind;
        int32_t vocab;
    } rows[] = {
        {HEAD "\"kind\": \"byte\", \"vocab_size\": 256}", "byte", 256},
        {HEAD "\"kind\": \"gpt2\", \"vocab_size\": 50257}", "gpt2", 50257},
        {HEAD "\"kind\": \"char\", \"vocab_size\": 3, \"characters\": \"\\u0000ab\"}", "char", 3},
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        mezzo_tokenizer *tok, *again;
        assert_int_equal(mz_file_write_atomic("old.json", rows[i].json, strlen(rows[i].json)), MEZZO_OK);
        assert_int_equal(mezzo_tokenizer_load("old.json", &tok), MEZZO_OK);
        assert_string_equal(mezzo_tokenizer_kind(tok), rows[i].kind);
        assert_int_equal(mezzo_tokenizer_vocab(tok), rows[i].vocab);
        assert_int_equal(mezzo_tokenizer_save(tok, "new.json"), MEZZO_OK);
        assert_int_equal(mezzo_tokenizer_load("new.json", &again), MEZZO_OK);
        assert_string_equal(mezzo_tokenizer_kind(again), rows[i].kind);
        assert_true(mz_tokenizer_same(tok, again));
        mezzo_tokenizer_free(again);
        mezzo_tokenizer_free(tok);
    }
}
