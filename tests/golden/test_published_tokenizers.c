// Tokenizers in the form of Hugging Face's tokenizer.json give the tokens that the library `tokenizers` gives
// (make/published_tokenizers.py), and tokens give the text that it gives; as they are written again, too. Four
// published split patterns, Metaspace with byte fallback, every normalizer, behaviour and flag; many scripts, random
// characters.
//
// To see it fail: no whole_first, a split without its lookbehind, \s of PCRE2, marks in the order of the text, a space
// put before a text that follows an added token, the first of two added tokens instead of the longest.
#include <stdlib.h>

#include "data/tokenizer.h"
#include "golden.h"

static void check(const mezzo_tokenizer *tok, const char *name, size_t index, const json_t *row) {
    const json_t *text = json_array_get(row, 0), *want = json_array_get(row, 1), *shown = json_array_get(row, 2);
    const size_t n = json_string_length(text);
    size_t count = 0, again = 0, size = 0;
    must(mezzo_tokenizer_encode(tok, json_string_value(text), n, NULL, &count)); // NULL counts
    int32_t *tokens = calloc(count + 1, sizeof *tokens);
    must(mezzo_tokenizer_encode(tok, json_string_value(text), n, tokens, &again));
    assert_int_equal(count, again);
    for (size_t i = 0; i < count && i < json_array_size(want); i++)
        if (tokens[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("%s: text %zu: token %zu is %d, tokenizers has %lld", name, index, i, (int)tokens[i],
                     (long long)json_integer_value(json_array_get(want, i)));
    if (count != json_array_size(want))
        fail_msg("%s: text %zu: %zu tokens, tokenizers has %zu", name, index, count, json_array_size(want));
    char *back = calloc(count * mezzo_tokenizer_max_bytes(tok) + 1, 1);
    must(mezzo_tokenizer_decode(tok, tokens, count, back, &size));
    const char *bytes = back;
    while (size > json_string_length(shown) && *bytes == ' ') // the library's Metaspace takes all spaces there
        bytes++, size--;
    assert_int_equal(size, json_string_length(shown));
    assert_memory_equal(bytes, json_string_value(shown), size);
    free(back);
    free(tokens);
}

TEST(tokens_are_those_of_the_library) {
    json_t *root = golden_json("published_tokenizers.json"), *entry;
    size_t i, k;
    assert_int_equal(json_array_size(json_object_get(root, "cases")), 14);
    json_array_foreach(json_object_get(root, "cases"), i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        const json_t *texts = json_object_get(entry, "texts"), *row;
        mezzo_tokenizer *tok, *again;
        must(mz_tokenizer_from_json(name, json_object_get(entry, "tokenizer"), false, &tok));
        must(mezzo_tokenizer_save(tok, "again.json"));
        must(mezzo_tokenizer_load("again.json", &again));
        assert_true(mz_tokenizer_same(tok, again));
        assert_true(json_array_size(texts) > 40);
        json_array_foreach(texts, k, row) {
            check(tok, name, k, row);
            check(again, name, k, row);
        }
        mezzo_tokenizer_free(again);
        mezzo_tokenizer_free(tok);
    }
    json_decref(root);
}
