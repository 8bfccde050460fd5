// GPT-2's tokens of texts that are hard to split, as tiktoken has them (make/gpt2_tokens.py): many scripts, emoji,
// combining marks, control characters, every kind of white space, contractions, long runs, random characters. Text out
// of tokens is the text.
//
// To see it fail: \s for the pattern's spelled-out white space (U+180E), \s+ without its lookahead, no space before
// \p{N}, the rightmost pair first.
#include <stdlib.h>

#include "golden.h"
#include "mezzo/data.h"

static void check(const mezzo_tokenizer *tok, size_t index, const json_t *row) {
    const json_t *text = json_array_get(row, 0), *want = json_array_get(row, 1);
    size_t n = json_string_length(text), count = 0, back_size = 0;
    int32_t *tokens = calloc(n + 1, sizeof *tokens);
    must(mezzo_tokenizer_encode(tok, json_string_value(text), n, tokens, &count));
    for (size_t i = 0; i < count && i < json_array_size(want); i++)
        if (tokens[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("text %zu: token %zu is %d, tiktoken has %lld", index, i, (int)tokens[i],
                     (long long)json_integer_value(json_array_get(want, i)));
    assert_int_equal(count, json_array_size(want));
    char *back = calloc(count * mezzo_tokenizer_max_bytes(tok) + 1, 1);
    must(mezzo_tokenizer_decode(tok, tokens, count, back, &back_size));
    assert_int_equal(back_size, n);
    assert_memory_equal(back, json_string_value(text), n);
    free(back);
    free(tokens);
}

TEST(tokens_are_those_of_tiktoken) {
    mezzo_tokenizer *tok;
    must(mezzo_tokenizer_create_gpt2(&tok));
    assert_int_equal(mezzo_tokenizer_vocab(tok), 50257);
    json_t *root = golden_json("gpt2_tokens.json"), *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) > 100);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check(tok, i, json_array_get(cases, i));
    json_decref(root);
    mezzo_tokenizer_free(tok);
}
