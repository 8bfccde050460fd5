// A stranger's weights in several files: model.safetensors.index.json, a NUL, and the bytes of the file that holds all
// tensors but one, which has a file of its own.
#include "import.h"
#include "io/safetensors.h"

static const char config[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 8, \"n_positions\": 4, \"n_embd\": 4, \"n_layer\": 1, "
    "\"n_head\": 1, \"activation_function\": \"gelu_new\"}";
static const char header[] =
    "{\"transformer.ln_f.bias\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}    ";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint64_t n = sizeof header - 1;
    const uint8_t values[16] = {0};
    fuzz_make_folder("in");
    fuzz_put("in/config.json", (const uint8_t *)config, sizeof config - 1);
    fuzz_put("in/model-2.safetensors", (const uint8_t *)&n, sizeof n);
    fuzz_append("in/model-2.safetensors", (const uint8_t *)header, n);
    fuzz_append("in/model-2.safetensors", values, sizeof values);
    fuzz_put_both("in/model.safetensors.index.json", "in/model-1.safetensors", data, size);
    fuzz_import("in");
    return 0;
}
