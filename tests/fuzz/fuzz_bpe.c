// Any bytes as vocabulary, merges and text, divided by NULs (an empty vocabulary is none): refused with a message, or a
// tokenizer whose tokens of the text are the text again, cut into words by GPT-2's pattern or taken as one word.
#include "data/bpe.h"
#include "data/split.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static mz_bpe_text take(const uint8_t **data, size_t *size) {
    const uint8_t *end = memchr(*data, 0, *size);
    size_t n = end != NULL ? (size_t)(end - *data) : *size;
    mz_bpe_text part = {"input", (const char *)*data, n, NULL};
    *data += n + (end != NULL);
    *size -= n + (end != NULL);
    return part;
}

static void expect_back(const mz_bpe *bpe, mz_bpe_scratch *scratch, const char *word, size_t n) {
    int32_t *tokens = mz_alloc(n, sizeof *tokens);
    size_t count, at = 0;
    if (tokens == NULL || mz_bpe_encode_word(bpe, scratch, word, n, tokens, &count) != MEZZO_OK)
        __builtin_trap();
    for (size_t i = 0; i < count; i++) {
        size_t width;
        const char *bytes = mz_bpe_bytes(bpe, tokens[i], &width);
        if (width > n - at || memcmp(bytes, word + at, width) != 0)
            __builtin_trap();
        at += width;
    }
    if (at != n)
        __builtin_trap();
    mz_free(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static mz_splitter *splitter; // compiled once: for the whole process
    mz_bpe_text vocab = take(&data, &size), merges = take(&data, &size);
    mz_bpe bpe;
    mz_bpe_scratch scratch = {0};
    mz_split split;
    if (splitter == NULL && mz_splitter_create(&splitter) != MEZZO_OK)
        __builtin_trap();
    if (mz_bpe_read(vocab.n > 0 ? &vocab : NULL, &merges, &bpe) != MEZZO_OK) {
        if (mezzo_error_message()[0] == '\0' || strchr(mezzo_error_message(), '\n') || bpe.bytes != NULL)
            __builtin_trap();
        return 0;
    }
    const char *text = (const char *)data, *word;
    size_t n, at = 0;
    if (size > 0)
        expect_back(&bpe, &scratch, text, size);
    if (mz_split_begin(splitter, text, size, &split) != MEZZO_OK)
        __builtin_trap();
    for (; mz_split_next(&split, &word, &n) == MEZZO_OK && n > 0; at += n) {
        if (word != text + at)
            __builtin_trap();
        expect_back(&bpe, &scratch, word, n);
    }
    if (at != size)
        __builtin_trap();
    mz_split_end(&split);
    mz_bpe_scratch_free(&scratch);
    mz_bpe_free(&bpe);
    return 0;
}
