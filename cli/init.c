// train --init with somebody's folder as it was published: imported first, into the run folder.
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "train/folder.h"
#include "train/config.h"

static bool is_published(const char *folder) { // config.json and no checkpoints of a run
    char path[4200];
    struct stat info;
    snprintf(path, sizeof path, "%s/config.json", folder);
    bool there = stat(path, &info) == 0;
    snprintf(path, sizeof path, "%s/checkpoints", folder);
    return there && stat(path, &info) != 0;
}

static bool is_set(const mezzo_config *config, const char *key) {
    return strcmp(mz_config_origin(config->values, key), "default") != 0;
}

// An import that is there already, of a run that goes on, is taken as it is.
static mezzo_status describe_import(const mezzo_config *config, const char *init, const char *out,
                                    mezzo_checkpoint *c) {
    char folder[4200], path[4200];
    mezzo_import_options options = {.path = init, .out = out};
    if (is_set(config, "model.seq_len"))
        MEZZO_TRY(mz_config_get_int(config->values, "model.seq_len", &options.seq_len));
    snprintf(folder, sizeof folder, "%s/checkpoints", out);
    if (access(folder, R_OK) != 0) {
        mezzo_import_result r;
        MEZZO_TRY(mezzo_import(&options, &r));
    }
    MEZZO_TRY(mezzo_checkpoint_find(folder, false, path, sizeof path));
    return mezzo_checkpoint_describe(path, c);
}

// The model is the one that the weights are of, but for what was set; a model that was named is the caller's word.
static mezzo_status take_model(mezzo_config *config, const mezzo_model_config *model) {
    if (is_set(config, "model.name") || model->name[0] == '\0')
        return MEZZO_OK;
    MEZZO_TRY(mezzo_config_set(config, "model.name", model->name, "--init"));
    return mz_config_fill_model(config, model);
}

mezzo_status cli_import_init(mezzo_config *config) {
    const char *init = cli_key(config, "train.init");
    mezzo_checkpoint c = {0};
    char path[4200];
    if (init[0] == '\0')
        return MEZZO_OK;
    if (!is_published(init)) { // where there is no checkpoint, the run says so
        const bool there = mz_find_checkpoint(init, false, MZ_CHECKPOINT_WEIGHTS, path, sizeof path) == MEZZO_OK &&
                           mezzo_checkpoint_describe(path, &c) == MEZZO_OK;
        return there ? take_model(config, &c.model) : MEZZO_OK;
    }
    char *out = mz_format("%s/init", cli_key(config, "train.out"));
    if (out == NULL)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = describe_import(config, init, out, &c);
    if (status == MEZZO_OK)
        status = mezzo_config_set(config, "train.init", out, "--init");
    if (status == MEZZO_OK)
        status = take_model(config, &c.model);
    mz_free(out);
    return status;
}
