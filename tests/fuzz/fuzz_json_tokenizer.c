// Any bytes as tokenizer.json: refused with a message, or a tokenizer whose every token is encoded as itself or, where
// tokens merge, as tokens of the same bytes.
#include "base/base.h"
#include "data/tokenizer.h"
#include "io/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mezzo_tokenizer *tok;
    if (load(data, size, &tok) != MEZZO_OK) {
        if (tok != NULL || mezzo_error_message()[0] == '\0' || strchr(mezzo_error_message(), '\n'))
            __builtin_trap();
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
