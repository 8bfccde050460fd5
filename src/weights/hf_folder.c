// Makes folders that appear whole or not at all.
#include "io/file.h"
#include "io/quote.h"
#include "weights/hf.h"

static mezzo_status check_free(const char *path, const char *key) {
    char **names;
    size_t n;
    if (path[0] == '\0')
        return mz_fail(MEZZO_ERR_INVALID, "%s is missing: the folder to write", key);
    if (!mz_path_exists(path))
        return MEZZO_OK;
    if (!mz_path_is_dir(path))
        return mz_fail(MEZZO_ERR_INVALID, "%s is a file: choose another folder with %s", mz_quote(path).text, key);
    MEZZO_TRY(mz_dir_list(path, &names, &n));
    mz_dir_list_free(names, n);
    return n == 0
               ? MEZZO_OK
               : mz_fail(MEZZO_ERR_INVALID, "folder %s is not empty: choose another with %s", mz_quote(path).text, key);
}

mezzo_status mz_new_folder_begin(const char *path, const char *key, mz_new_folder *out) {
    mezzo_status status = MEZZO_OK;
    *out = (mz_new_folder){0};
    MEZZO_TRY(check_free(path, key));
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    out->path = mz_format("%.*s", (int)n, path);
    out->staged = mz_format("%.*s.writing", (int)n, path);
    if (out->path == NULL || out->staged == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    MEZZO_TRY_GOTO(status, mz_dir_remove(out->staged)); // left by a call that was killed
    MEZZO_TRY_GOTO(status, mz_dir_create(out->staged));
    return MEZZO_OK;
fail:
    mz_new_folder_end(out); // the folder may exist although its entry could not be flushed
    return status;
}

mezzo_status mz_new_folder_commit(mz_new_folder *folder) {
    MEZZO_TRY(mz_dir_commit(folder->staged, folder->path));
    mz_free(folder->staged);
    folder->staged = NULL;
    return MEZZO_OK;
}

void mz_new_folder_end(mz_new_folder *folder) {
    if (folder->staged != NULL) {
        char *message = mz_strdup(mezzo_error_message());
        if (mz_dir_remove(folder->staged) != MEZZO_OK && message != NULL)
            mz_fail(MEZZO_ERR_IO, "%s", message); // restores the first error's message
        mz_free(message);
    }
    MZ_FREE(folder->path, folder->staged);
    *folder = (mz_new_folder){0};
}
