// Any bytes as tokenizer.json: refused with a message, or a tokenizer whose every token is encoded as itself or, where
// tokens merge, as tokens of the same bytes. One of Hugging Face's form normalizes and splits as it says: there, texts
// are encoded or refused, tokens are decoded, and as it is written it is the same tokenizer.
#include "base/base.h"
#include "data/tokenizer_bpe.h"
#include "io/json.h"
#include "target.h"

static mezzo_status load(const uint8_t *data, size_t size, mezzo_tokenizer **out) {
    json_t *object;
    *out = NULL;
    MEZZO_TRY(mz_json_parse("input", (const char *)data, size, MZ_JSON_DEPTH, &object));
    mezzo_status status = mz_tokenizer_from_json("input", object, true, out);
    json_decref(object);
    return status;
}

static void expect_bytes_back(const mezzo_tokenizer *tok, int32_t token) {
    size_t n, count, size;
    const char *bytes = mezzo_tokenizer_bytes(tok, token, &n);
    int32_t *back = mz_alloc(n, sizeof *back);
    char *text = mz_alloc(n * mezzo_tokenizer_max_bytes(tok) + 1, 1);
    if (n < 1 || n > mezzo_tokenizer_max_bytes(tok) || back == NULL || text == NULL ||
        mezzo_tokenizer_encode(tok, bytes, n, back, &count) != MEZZO_OK || count > n ||
        mezzo_tokenizer_decode(tok, back, count, text, &size) != MEZZO_OK || size != n || memcmp(text, bytes, n) != 0)
        __builtin_trap();
    mz_free(back);
    mz_free(text);
}

static void expect_texts(const mezzo_tokenizer *tok) {
    static const char *const texts[] = {"a", " ab  abc\n\t12 <x>", "\xC3\xA9\xCC\x81\xE2\x96\x81 \xEF\xB7\xBA \xC4\xB0",
                                        "a\xFF\xC3 b",
                                        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    for (size_t i = 0; i < MZ_COUNT(texts); i++) {
        size_t n = strlen(texts[i]), count, size;
        if (mezzo_tokenizer_encode(tok, texts[i], n, NULL, &count) != MEZZO_OK)
            continue;
        int32_t *tokens = mz_alloc(count + 1, sizeof *tokens);
        char *text = mz_alloc(count * mezzo_tokenizer_max_bytes(tok) + 1, 1);
        if (tokens == NULL || text == NULL || mezzo_tokenizer_encode(tok, texts[i], n, tokens, &count) != MEZZO_OK ||
            mezzo_tokenizer_decode(tok, tokens, count, text, &size) != MEZZO_OK)
            __builtin_trap();
        mz_free(tokens);
        mz_free(text);
    }
}

static void expect_again(const mezzo_tokenizer *tok) {
    json_t *object = mz_json_new();
    mezzo_tokenizer *again;
    if (object == NULL || mz_bpe_write_published(mz_bpe_published(tok), object) != MEZZO_OK ||
        mz_tokenizer_from_json("again", object, true, &again) != MEZZO_OK || !mz_tokenizer_same(tok, again))
        __builtin_trap();
    mezzo_tokenizer_free(again);
    json_decref(object);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mezzo_tokenizer *tok;
    if (load(data, size, &tok) != MEZZO_OK) {
        if (tok != NULL || mezzo_error_message()[0] == '\0' || strchr(mezzo_error_message(), '\n'))
            __builtin_trap();
        return 0;
    }
    if (mz_bpe_published(tok) != NULL) {
        expect_texts(tok);
        expect_again(tok);
        mezzo_tokenizer_free(tok);
        return 0;
    }
    bool merges = strcmp(mezzo_tokenizer_kind(tok), "gpt2") == 0 || strcmp(mezzo_tokenizer_kind(tok), "bpe") == 0;
    for (int32_t token = 0; merges && token < mezzo_tokenizer_vocab(tok) && token < 300; token++)
        expect_bytes_back(tok, token);
    for (int32_t token = 0; !merges && token < mezzo_tokenizer_vocab(tok); token++) {
        size_t n, count;
        int32_t back[4];
        const char *bytes = mezzo_tokenizer_bytes(tok, token, &n);
        if (n < 1 || n > mezzo_tokenizer_max_bytes(tok) ||
            mezzo_tokenizer_encode(tok, bytes, n, back, &count) != MEZZO_OK || count != 1 || back[0] != token)
            __builtin_trap();
    }
    mezzo_tokenizer_free(tok);
    return 0;
}
