// Any bytes as a text to train a tokenizer on, the first two of which choose vocabulary, pattern and special tokens:
// the tokenizer has at most so many tokens, all of them different, and encodes the text so that it comes back.
#include "base/base.h"
#include "folder.h"
#include "mezzo/data.h"

static void expect_text_back(const mezzo_tokenizer *tok, const char *text, size_t n) {
    size_t count, size;
    int32_t *tokens = mz_alloc(n + 1, sizeof *tokens);
    char *back = mz_alloc(n + 1, 1);
    if (tokens == NULL || back == NULL || mezzo_tokenizer_encode(tok, text, n, tokens, &count) != MEZZO_OK ||
        mezzo_tokenizer_decode(tok, tokens, count, back, &size) != MEZZO_OK || size != n || memcmp(text, back, n) != 0)
        abort();
    mz_free(tokens);
    mz_free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const patterns[] = {"gpt2", "gpt4", "gpt4o", "qwen2"}, *const special[] = {"<|end|>", "the"};
    mezzo_tokenizer *tok;
    if (size < 3)
        return 0;
    fuzz_put("text", data + 2, size - 2);
    const char *path = fuzz_path("text");
    const mezzo_tokenizer_training options = {.paths = &path,
                                              .n_paths = 1,
                                              .vocab = 258 + data[0],
                                              .pattern = patterns[data[1] % 4],
                                              .special = special,
                                              .n_special = data[1] >> 7 ? 2 : 0,
                                              .threads = 1};
    if (mezzo_tokenizer_train(&options, &tok, NULL) != MEZZO_OK) {
        fuzz_expect_message();
        return 0;
    }
    if (mezzo_tokenizer_vocab(tok) > options.vocab)
        abort();
    expect_text_back(tok, (const char *)data + 2, size - 2);
    mezzo_tokenizer_free(tok);
    return 0;
}
