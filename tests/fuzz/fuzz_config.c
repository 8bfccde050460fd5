// A stranger's config.yaml, with the schema of the runs: refused with one line, or a configuration whose model, program
// and run are read, refused with one line, or within what they accept.
#include "folder.h"
#include "train/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mezzo_config *config;
    mezzo_model_config model;
    mz_run_config run;
    fuzz_put("config.yaml", data, size);
    if (mezzo_config_create(&config) != MEZZO_OK)
        abort();
    if (mezzo_config_load(config, fuzz_path("config.yaml")) != MEZZO_OK || mz_run_config_read(config, &run) != MEZZO_OK)
        fuzz_expect_message();
    else if (run.batch_size < 1 || run.grad_accum < 1 || run.threads < 0)
        abort();
    else if (mezzo_config_model(config, 256, &model) != MEZZO_OK)
        fuzz_expect_message();
    mezzo_config_free(config);
    return 0;
}
