// train --init with somebody's folder as it was published: imported first, into the run folder.
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "train/config.h"

static bool is_published(const char *folder) { // config.json and no checkpoints of a run
    char path[4200];
    struct stat info;
    snprintf(path, sizeof path, "%s/config.json", folder);
    bool there = stat(path, &info) == 0;
    snprintf(path, sizeof path, "%s/checkpoints", folder);
    return there && stat(path, &info) != 0;
}

static bool sizes_given(const cli_args *args) {
    for (int i = 0; i < args->n_given; i++)
        if (strncmp(args->given[i].name, "model.", 6) == 0)
            return true;
    return false;
}

// An import that is there already, of a run that goes on, is taken as it is.
static mezzo_status describe_import(const char *init, const char *out, mezzo_checkpoint *c) {
    char folder[4200], path[4200];
    snprintf(folder, sizeof folder, "%s/checkpoints", out);
    if (access(folder, R_OK) != 0) {
        mezzo_import_result r;
        const mezzo_import_options options = {.path = init, .out = out, .tokenizer = NULL};
        MEZZO_TRY(mezzo_import(&options, &r));
    }
    MEZZO_TRY(mezzo_checkpoint_find(folder, false, path, sizeof path));
    return mezzo_checkpoint_describe(path, c);
}

mezzo_status cli_import_init(const cli_args *args, mezzo_config *config) {
    const char *init = cli_key(config, "train.init");
    mezzo_checkpoint c = {0};
    if (init[0] == '\0' || !is_published(init))
        return MEZZO_OK;
    char *out = mz_format("%s/init", cli_key(config, "train.out"));
    if (out == NULL)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = describe_import(init, out, &c);
    if (status == MEZZO_OK)
        status = mezzo_config_set(config, "train.init", out, "--init");
    if (status == MEZZO_OK && !sizes_given(args))
        status = mezzo_config_set(config, "model.name", c.model.name, "--init");
    if (status == MEZZO_OK && !sizes_given(args))
        status = mz_config_set_model(config, &c.model);
    mz_free(out);
    return status;
}
