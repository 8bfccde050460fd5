#include "train/folder.h"

#include <errno.h>
#include <stdlib.h>

#include "io/file.h"
#include "io/metrics.h"

static mezzo_status find_below(const char *path, const char *below, bool best, int parts, char *out, size_t size,
                               bool *found) {
    const mz_path folder = mz_path_of("%s%s", path, below);
    *found = mz_path_is_dir(folder.text);
    return *found ? mz_checkpoint_find(folder.text, best, false, parts, out, size) : MEZZO_OK;
}

mezzo_status mz_find_checkpoint(const char *path, bool best, int parts, char *out, size_t size) {
    bool found = false;
    if (mz_path_exists(mz_path_of("%s/state.json", path).text)) {
        if ((size_t)snprintf(out, size, "%s", path) >= size)
            return mz_fail(MEZZO_ERR_INVALID, "%.200s…: the path is too long", path);
        return MEZZO_OK;
    }
    if (!mz_path_is_dir(path))
        return mz_fail(MEZZO_ERR_INVALID, "%s: %s: name a run folder or a checkpoint in one", path,
                       mz_path_exists(path) ? "not a folder" : "no such folder");
    MEZZO_TRY(find_below(path, "/checkpoints", best, parts, out, size, &found));
    return found ? MEZZO_OK : mz_checkpoint_find(path, best, false, parts, out, size);
}

mezzo_status mz_run_folder(const char *checkpoint, char *out, size_t size) {
    char *real = realpath(checkpoint, NULL);
    if (real == NULL && errno == ENOMEM)
        return mz_fail(MEZZO_ERR_MEMORY, "%s: out of memory", checkpoint);
    if (real == NULL)
        return mz_fail(MEZZO_ERR_IO, "%s: cannot be resolved to a folder", checkpoint);
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(real, '/');
        if (slash != NULL && slash != real)
            *slash = '\0';
    }
    int n = snprintf(out, size, "%s", real);
    free(real);
    return (size_t)n < size ? MEZZO_OK : mz_fail(MEZZO_ERR_INVALID, "%.200s…: the path is too long", checkpoint);
}

mezzo_status mz_run_folder_config(const char *folder, mezzo_config **out) {
    *out = NULL;
    MEZZO_TRY(mezzo_config_create(out));
    return mezzo_config_load(*out, mz_path_of("%s/config.yaml", folder).text);
}

mezzo_status mz_run_folder_check(const char *folder) {
    mz_written was;
    int64_t at = 0;
    MEZZO_TRY(mz_manifest_metrics(mz_path_of("%s/checkpoints", folder).text, -1, &was, &at));
    return mz_metrics_check(folder, was, at);
}
