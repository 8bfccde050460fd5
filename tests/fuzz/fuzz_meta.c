// Any bytes as nanoGPT's meta.pkl: refused with a message, or a vocabulary above 0.
#include "data/shards.h"
#include "folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int64_t vocab = -1;
    fuzz_put("meta.pkl", data, size);
    if (mz_meta_vocab(fuzz_path("meta.pkl"), &vocab) != MEZZO_OK)
        fuzz_expect_message();
    else if (vocab < 1 || vocab > INT32_MAX)
        abort();
    return 0;
}
