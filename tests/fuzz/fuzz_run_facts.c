// Any JSON object as run.json, sealed here where it has no seal: refused with a message, or facts that can be saved
// again.
#include "checkpoint/checkpoint.h"
#include "folder.h"
#include "io/json.h"

static void put_sealed(const uint8_t *data, size_t size) {
    json_t *root = NULL;
    fuzz_put("run.json", data, size);
    if (mz_json_parse("input", (const char *)data, size, MZ_JSON_DEPTH, &root) == MEZZO_OK && json_is_object(root) &&
        json_object_get(root, "crc32c") == NULL)
        (void)mz_json_save_sealed(fuzz_path("run.json"), root, NULL);
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mz_checkpoint_run run;
    char path[128];
    put_sealed(data, size);
    snprintf(path, sizeof path, "%s", fuzz_path("run.json"));
    if (mz_run_load_facts(path, &run) != MEZZO_OK)
        fuzz_expect_message();
    else if (run.ranks < 1 || run.configuration == NULL || mz_run_save_facts(path, &run) != MEZZO_OK)
        abort();
    mz_free(run.configuration);
    return 0;
}
