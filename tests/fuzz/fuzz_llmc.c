// A stranger's model file of llm.c.
#include "import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_put("model.bin", data, size);
    fuzz_import("model.bin");
    return 0;
}
