// Any bytes as a model of sentencepiece: refused with a message, or a tokenizer that encodes texts or refuses them,
// gives tokens back as text, and is the same once it was written as tokenizer.json.
#include "base/base.h"
#include "data/tokenizer_bpe.h"
#include "data/tokenizer_sentencepiece.h"
#include "folder.h"
#include "io/json.h"

static void expect_texts(const mezzo_tokenizer *tok) {
    static const char *const texts[] = {"a", " ab  abé<x>\n\nA", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
                                        "\xFF a"};
    for (size_t i = 0; i < MZ_COUNT(texts); i++) {
        size_t n = strlen(texts[i]), count, size;
        if (mezzo_tokenizer_encode(tok, texts[i], n, NULL, &count) != MEZZO_OK) {
            fuzz_expect_message();
            continue;
        }
        int32_t *tokens = mz_alloc(count + 1, sizeof *tokens);
        char *text = mz_alloc(count * mezzo_tokenizer_max_bytes(tok) + 1, 1);
        if (tokens == NULL || text == NULL || mezzo_tokenizer_encode(tok, texts[i], n, tokens, &count) != MEZZO_OK ||
            mezzo_tokenizer_decode(tok, tokens, count, text, &size) != MEZZO_OK)
            abort();
        mz_free(tokens);
        mz_free(text);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *object, *written = mz_json_new();
    mezzo_tokenizer *tok = NULL, *again = NULL;
    mezzo_status status = mz_sentencepiece_read("input", (const char *)data, size, &object);
    if (status == MEZZO_OK)
        status = mz_tokenizer_from_json("input", object, true, &tok);
    json_decref(object);
    if (status != MEZZO_OK) {
        fuzz_expect_message();
    } else {
        expect_texts(tok);
        if (mz_bpe_write_published(mz_bpe_published(tok), written) != MEZZO_OK ||
            mz_tokenizer_from_json("again", written, true, &again) != MEZZO_OK || !mz_tokenizer_same(tok, again))
            abort();
    }
    mezzo_tokenizer_free(tok);
    mezzo_tokenizer_free(again);
    json_decref(written);
    return 0;
}
