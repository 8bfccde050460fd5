// A stranger's Hugging Face folder: config.json, a NUL, and the bytes of model.safetensors. Refused with one line and
// no folder made, or a run folder whose checkpoint is whole.
#include "checkpoint/checkpoint.h"
#include "folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *end = memchr(data, 0, size);
    size_t n = end != NULL ? (size_t)(end - data) : size;
    char in[80], out[80], checkpoints[96], path[256];
    mezzo_import_result result;
    snprintf(in, sizeof in, "%s/in", fuzz_folder());
    snprintf(out, sizeof out, "%s/out", fuzz_folder());
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", out);
    if (mz_dir_create(in) != MEZZO_OK || mz_dir_remove(out) != MEZZO_OK)
        abort();
    fuzz_put("in/config.json", data, n);
    fuzz_put("in/model.safetensors", data + n + (end != NULL), size - n - (end != NULL));
    const mezzo_import_options options = {.path = in, .out = out, .tokenizer = "none"};
    if (mezzo_import(&options, &result) == MEZZO_OK) {
        if (mezzo_checkpoint_find(checkpoints, false, path, sizeof path) != MEZZO_OK)
            abort();
    } else {
        fuzz_expect_message();
        if (mz_path_exists(out))
            abort();
    }
    return 0;
}
