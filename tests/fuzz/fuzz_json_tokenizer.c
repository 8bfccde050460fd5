// Any bytes as tokenizer.json: refused with a message, or a tokenizer whose every token is encoded as itself.
#include "base/base.h"
#include "data/tokenizer.h"
#include "io/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static mezzo_status load(const uint8_t *data, size_t size, mezzo_tokenizer **out) {
    json_t *object;
    *out = NULL;
    MEZZO_TRY(mz_json_parse("input", (const char *)data, size, MZ_JSON_DEPTH, &object));
    mezzo_status status = mz_tokenizer_from_json("input", object, out);
    json_decref(object);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mezzo_tokenizer *tok;
    if (load(data, size, &tok) != MEZZO_OK) {
        if (tok != NULL || mezzo_error_message()[0] == '\0' || strchr(mezzo_error_message(), '\n'))
            __builtin_trap();
        return 0;
    }
    for (int32_t token = 0; token < mezzo_tokenizer_vocab(tok); token++) {
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
