// Any bytes as a token shard: refused with a message, or every token can be read.
#include "base/base.h"
#include "data/shards.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mz_tokens tokens;
    if (mz_shard_parse("input", data, size, &tokens) != MEZZO_OK) {
        if (tokens.count != 0 || mezzo_error_message()[0] == '\0')
            __builtin_trap();
        return 0;
    }
    if (tokens.count == 0 || tokens.data < data || tokens.count * tokens.width != (size_t)(data + size - tokens.data))
        __builtin_trap();
    uint64_t bad = mz_tokens_find_above(&tokens, 50257);
    int32_t *out = mz_alloc((size_t)tokens.count, sizeof *out);
    if (out && mz_tokens_copy(&tokens, 0, (size_t)tokens.count, 50257, out) != bad)
        __builtin_trap();
    for (uint64_t i = 0; out && i < bad; i++)
        if (out[i] < 0 || out[i] >= 50257)
            __builtin_trap();
    mz_free(out);
    return 0;
}
