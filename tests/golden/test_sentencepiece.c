// Models of sentencepiece of BPE kind give the tokens that the package gives (make/sentencepiece_models.py), as they
// are and as tokenizer.json; other kinds are refused by name.
//
// To see it fail: merges by the lower score, a dummy prefix after a user's symbol, spaces that stay, the first rule of
// normalization instead of the longest.
#include <stdlib.h>

#include "data/charsmap.h"
#include "data/tokenizer.h"
#include "golden.h"
#include "io/file.h"

static void check(const mezzo_tokenizer *tok, const char *name, size_t index, const json_t *row) {
    const json_t *text = json_array_get(row, 0), *want = json_array_get(row, 1);
    size_t count = 0;
    must(mezzo_tokenizer_encode(tok, json_string_value(text), json_string_length(text), NULL, &count));
    int32_t *tokens = calloc(count + 1, sizeof *tokens);
    must(mezzo_tokenizer_encode(tok, json_string_value(text), json_string_length(text), tokens, &count));
    for (size_t i = 0; i < count && i < json_array_size(want); i++)
        if (tokens[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("%s: text %zu: token %zu is %d, sentencepiece has %lld", name, index, i, (int)tokens[i],
                     (long long)json_integer_value(json_array_get(want, i)));
    if (count != json_array_size(want))
        fail_msg("%s: text %zu: %zu tokens, sentencepiece has %zu", name, index, count, json_array_size(want));
    free(tokens);
}

TEST(tokens_are_those_of_the_package) {
    json_t *root = golden_json("sentencepiece_models.json"), *entry, *row;
    size_t i, k;
    assert_int_equal(json_array_size(json_object_get(root, "cases")), 6);
    json_array_foreach(json_object_get(root, "cases"), i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        const json_t *model = json_object_get(entry, "model");
        mz_text bytes = {0};
        mezzo_tokenizer *tok, *again;
        assert_true(mz_base64_read(json_string_value(model), json_string_length(model), &bytes));
        must(mz_file_write_atomic("tokenizer.model", bytes.data, bytes.len));
        must(mezzo_tokenizer_load("tokenizer.model", &tok));
        must(mezzo_tokenizer_save(tok, "again.json"));
        must(mezzo_tokenizer_load("again.json", &again));
        json_array_foreach(json_object_get(entry, "texts"), k, row) {
            check(tok, name, k, row);
            check(again, name, k, row);
        }
        mezzo_tokenizer_free(again);
        mezzo_tokenizer_free(tok);
        mz_text_free(&bytes);
    }
    json_decref(root);
}

#define UNKNOWN "\x0A\x09\x0A\x05<unk>\x18\x02"
TEST(other_models_are_refused_by_name) {
    static const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } rows[] = {
#define MODEL(bytes, says) {bytes, sizeof(bytes) - 1, says}
        MODEL("", "not a model of sentencepiece"),
        MODEL("\x0A\x7F", "not a model of sentencepiece"),
        MODEL("{\"model\": 1}", "not a model of sentencepiece"),
        MODEL(UNKNOWN, "of kind Unigram; only BPE"),
        MODEL(UNKNOWN "\x12\x02\x18\x03", "of kind Word"),
        MODEL(UNKNOWN "\x12\x02\x18\x04", "of kind Char"),
        MODEL("\x0A\x03\x0A\x01x\x12\x02\x18\x02", "0 unknown pieces"),
        MODEL(UNKNOWN UNKNOWN "\x12\x02\x18\x02", "2 unknown pieces"),
        MODEL(UNKNOWN "\x12\x05\x18\x02\xC0\x01\x01", "treat_whitespace_as_suffix"),
        MODEL(UNKNOWN "\x12\x05\x18\x02\x98\x02\x01", "byte_fallback"),
        MODEL(UNKNOWN "\x12\x02\x18\x02\x1A\x02\x28\x00", "not escaped"),
        MODEL(UNKNOWN "\x0A\x05\x0A\x01x\x18\x05\x12\x02\x18\x02", "'x' is unused"),
        MODEL(UNKNOWN "\x0A\x03\x0A\x01x\x0A\x03\x0A\x01x\x12\x02\x18\x02", "'x' is there twice"),
        MODEL(UNKNOWN "\x12\x02\x18\x02\x1A\x03\x12\x01z", "precompiled_charsmap"),
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        mezzo_tokenizer *tok;
        must(mz_file_write_atomic("bad.model", rows[i].bytes, rows[i].n));
        must_fail(mezzo_tokenizer_load("bad.model", &tok), MEZZO_ERR_FORMAT, rows[i].says, "bad.model");
        assert_null(tok);
    }
}
