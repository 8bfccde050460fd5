// A stranger's Hugging Face folder: config.json, a NUL, and the bytes of model.safetensors.
#include "import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_make_folder("in");
    fuzz_put_both("in/config.json", "in/model.safetensors", data, size);
    fuzz_import("in");
    return 0;
}
