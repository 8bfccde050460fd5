#include "weights/init.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "io/gguf.h"
#include "train/config.h"
#include "train/folder.h"

static bool is_gguf(const char *path) {
    char magic[4] = "";
    FILE *f = fopen(path, "rbe");
    const bool is = f != NULL && fread(magic, 1, sizeof magic, f) == sizeof magic && mz_is_gguf(magic, sizeof magic);
    if (f != NULL)
        fclose(f);
    return is;
}

static bool is_published(const char *folder) { // it has config.json and no checkpoints of a run, or it is a file
    char path[4200];
    struct stat info;
    if (is_gguf(folder))
        return true;
    snprintf(path, sizeof path, "%s/config.json", folder);
    bool there = stat(path, &info) == 0;
    snprintf(path, sizeof path, "%s/checkpoints", folder);
    return there && stat(path, &info) != 0;
}

static bool is_set(const mezzo_config *config, const char *key) {
    return strcmp(mz_config_origin(config->values, key), "default") != 0;
}

static void add_file(const char *path, const char *name, uint32_t *crc) {
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return;
    const int64_t facts[] = {info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
    *crc = mz_crc32c(*crc, name, strlen(name) + 1);
    *crc = mz_crc32c(*crc, facts, sizeof facts);
}

// Describes the source of an import in one line: the folder, the context length asked for, the names, sizes and times
// of its files.
static mezzo_status describe_source(const mezzo_import_options *options, char **line) {
    char **names = NULL, *where, path[4200];
    size_t count = 0;
    uint32_t crc = 0;
    if (mz_path_is_dir(options->path))
        MEZZO_TRY(mz_dir_list(options->path, &names, &count));
    else
        add_file(options->path, "", &crc);
    for (size_t i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", options->path, names[i]);
        add_file(path, names[i], &crc);
    }
    mz_dir_list_free(names, count);
    where = realpath(options->path, NULL);
    *line = mz_format("%s, context %lld, files %08x\n", where != NULL ? where : options->path,
                      (long long)options->seq_len, crc);
    free(where);
    return *line != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

// Imports unless that is done: a resumed run uses an import that exists, and a new run only one of this source.
static mezzo_status import_once(const mezzo_import_options *options) {
    const mz_path checkpoints = mz_path_of("%s/checkpoints", options->out),
                  run = mz_path_of("%s/../checkpoints", options->out),
                  source = mz_path_of("%s/source.txt", options->out);
    char *line = NULL, *theirs = NULL;
    size_t size;
    mezzo_import_result r;
    mezzo_status status = MEZZO_OK;
    if (mz_path_exists(checkpoints.text) && mz_path_exists(run.text))
        return MEZZO_OK;
    MEZZO_TRY_GOTO(status, describe_source(options, &line));
    if (!mz_path_exists(checkpoints.text)) {
        MEZZO_TRY_GOTO(status, mezzo_import(options, &r));
        status = mz_file_write_atomic(source.text, line, strlen(line));
    } else if (mz_file_read(source.text, 8192, &theirs, &size) != MEZZO_OK || strcmp(line, theirs) != 0) {
        status = mz_fail(MEZZO_ERR_INVALID,
                         "%s holds weights that an earlier command imported, not those of %s as they are now: "
                         "remove that folder, or choose another --out",
                         options->out, options->path);
    }
fail:
    MZ_FREE(line, theirs);
    return status;
}

// Imports on the ranks of a job one after another: the first rank does it, and the others find the result.
static mezzo_status describe_import(const mezzo_config *config, const char *init, const char *out,
                                    mezzo_checkpoint *c) {
    char path[4200];
    mezzo_import_options options = {.path = init, .out = out};
    if (is_set(config, "model.seq_len"))
        MEZZO_TRY(mz_config_get_int(config->values, "model.seq_len", &options.seq_len));
    int turn = open(init, O_RDONLY | O_CLOEXEC);
    if (turn >= 0)
        flock(turn, LOCK_EX);
    mezzo_status status = import_once(&options);
    if (turn >= 0)
        close(turn);
    MEZZO_TRY(status);
    MEZZO_TRY(mezzo_checkpoint_find(mz_path_of("%s/checkpoints", out).text, false, path, sizeof path));
    return mezzo_checkpoint_describe(path, c);
}

// Takes over the weights' model but for keys that were set; where the user named a model, that one is used.
static mezzo_status take_model(mezzo_config *config, const char *path, const mezzo_checkpoint *c) {
    mz_model model;
    if (is_set(config, "model.name") || c->model[0] == '\0')
        return MEZZO_OK;
    MEZZO_TRY(mz_description_read(path, c->model, &model));
    const char *graph = model.config.graph; // of an ONNX file
    MEZZO_TRY(mezzo_config_set(config, "model.name", graph[0] != '\0' ? graph : model.maker->name, "--init"));
    return mz_config_fill_model(config, &model.config);
}

mezzo_status mz_init_import(mezzo_config *config) {
    const char *init = mezzo_config_get(config, "train.init");
    mezzo_checkpoint c = {0};
    char path[4200];
    if (init == NULL || mezzo_config_get(config, "train.out") == NULL)
        return MEZZO_ERR_MEMORY;
    if (init[0] == '\0')
        return MEZZO_OK;
    if (!is_published(init)) { // where there is no checkpoint, the run reports that
        const bool there = mz_find_checkpoint(init, false, MZ_CHECKPOINT_WEIGHTS, path, sizeof path) == MEZZO_OK &&
                           mezzo_checkpoint_describe(path, &c) == MEZZO_OK;
        return there ? take_model(config, path, &c) : MEZZO_OK;
    }
    const mz_path out = mz_path_of("%s/init", mezzo_config_get(config, "train.out"));
    MEZZO_TRY(describe_import(config, init, out.text, &c));
    MEZZO_TRY(mezzo_config_set(config, "train.init", out.text, "--init"));
    return take_model(config, out.text, &c);
}
