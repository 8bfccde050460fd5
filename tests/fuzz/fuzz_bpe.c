// Any bytes as vocabulary, merges and text, divided by NULs (an empty vocabulary is none): refused with a message, or a
// tokenizer whose tokens of the text are the text again, cut into words by GPT-2's pattern or taken as one word.
#include "data/bpe.h"
#include "data/words.h"
#include "target.h"

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

typedef struct walk {
    const mz_bpe *bpe;
    mz_bpe_scratch scratch;
    const char *next;
} walk;

static mezzo_status expect_word(void *user, const char *word, size_t n) {
    walk *w = user;
    if (word != w->next || n == 0)
        __builtin_trap();
    w->next += n;
    expect_back(w->bpe, &w->scratch, word, n);
    return MEZZO_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static mz_steps steps; // compiled once: for the whole process
    mz_bpe_text vocab = take(&data, &size), merges = take(&data, &size);
    mz_bpe bpe;
    mz_word_room room = {0};
    if (steps.n == 0 && mz_steps_add_gpt2("GPT-2", &steps) != MEZZO_OK)
        __builtin_trap();
    if (mz_bpe_read(vocab.n > 0 ? &vocab : NULL, &merges, &bpe) != MEZZO_OK) {
        if (mezzo_error_message()[0] == '\0' || strchr(mezzo_error_message(), '\n') || bpe.bytes != NULL)
            __builtin_trap();
        return 0;
    }
    const char *text = (const char *)data;
    walk w = {.bpe = &bpe};
    if (size > 0)
        expect_back(&bpe, &w.scratch, text, size);
    for (size_t at = 0; at < size;) {
        const size_t end = mz_valid_until(text, at, size);
        w.next = text + at;
        if (mz_words(&steps, &room, text + at, end - at, MZ_PLACE_BEGINS, expect_word, &w) != MEZZO_OK ||
            w.next != text + end)
            __builtin_trap();
        at = mz_invalid_until(text, end, size);
    }
    mz_word_room_free(&room);
    mz_bpe_scratch_free(&w.scratch);
    mz_bpe_free(&bpe);
    return 0;
}
