// Implements the folders of file.h.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/scope.h"
#include "io/file.h"
#include "io/file_ops.h"
#include "io/quote.h"

// A checkpoint is one folder of files, and Mezzo writes no deeper trees than this.
#define MAX_DEPTH 8

mz_path mz_path_of(const char *fmt, ...) {
    mz_path path;
    va_list args;
    va_start(args, fmt);
    vsnprintf(path.text, sizeof path.text, fmt, args);
    va_end(args);
    return path;
}

mz_path mz_path_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? mz_path_of("%.*s", slash > path ? (int)(slash - path) : 1, path) : mz_path_of(".");
}

mz_path mz_path_beside(const char *path, const char *name) {
    const char *slash = strrchr(path, '/');
    return mz_path_of("%.*s%s", slash != NULL ? (int)(slash - path) + 1 : 0, path, name);
}

bool mz_path_exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 || errno == EACCES; // a folder that may not be entered counts: opening the file
                                                       // reports that
}

bool mz_path_is_dir(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool mz_ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

static mezzo_status make_one_dir(const char *path) {
    if (mkdir(path, 0777) == 0)
        return mz_sync_parent(path);
    if (errno == EEXIST && mz_path_is_dir(path))
        return MEZZO_OK;
    return mz_io_fail("make folder", path);
}

mezzo_status mz_dir_create(const char *path) {
    if (path[0] == '\0')
        return mz_fail(MEZZO_ERR_INVALID, "cannot make a folder: its name is empty");
    MZ_SCOPED(mz_free_at) char *work = mz_strdup(path);
    if (!work)
        return MEZZO_ERR_MEMORY;
    size_t n = strlen(work);
    while (n > 1 && work[n - 1] == '/')
        work[--n] = '\0';
    for (char *p = work + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        if (!mz_path_is_dir(work))
            MEZZO_TRY(make_one_dir(work));
        *p = '/';
    }
    return make_one_dir(work);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void mz_dir_list_free(char **names, size_t count) {
    for (size_t i = 0; i < count; i++)
        mz_free(names[i]);
    mz_free(names);
}

mezzo_status mz_dir_list(const char *path, char ***names, size_t *count) {
    *names = NULL;
    *count = 0;
    DIR *dir = opendir(path);
    if (!dir)
        return mz_io_fail_input("list folder", path);
    mezzo_status status = MEZZO_OK;
    char **list = NULL;
    size_t n = 0, cap = 0;
    for (struct dirent *entry; status == MEZZO_OK && (entry = readdir(dir)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        status = MZ_RESERVE(list, cap, n + 1);
        if (status != MEZZO_OK)
            break;
        list[n] = mz_strdup(entry->d_name);
        if (list[n])
            n++;
        else
            status = MEZZO_ERR_MEMORY;
    }
    closedir(dir);
    if (status != MEZZO_OK) {
        mz_dir_list_free(list, n);
        return mz_trace(status, __FILE__, __LINE__, __func__);
    }
    if (n > 1)
        qsort(list, n, sizeof *list, compare_names);
    *names = list;
    *count = n;
    return MEZZO_OK;
}

// Calls `visit` for every entry below `path`, files before the folder that holds them; links count as files.
typedef mezzo_status (*visit_fn)(const char *path, bool is_dir);
static mezzo_status walk(const char *path, int depth, visit_fn visit) {
    if (depth > MAX_DEPTH)
        return mz_fail(MEZZO_ERR_INVALID, "folder %s is nested too deep", mz_quote(path).text);
    char **names;
    size_t count;
    MEZZO_TRY(mz_dir_list(path, &names, &count));
    mezzo_status status = MEZZO_OK;
    for (size_t i = 0; status == MEZZO_OK && i < count; i++) {
        const mz_path entry = mz_path_of("%s/%s", path, names[i]);
        struct stat info;
        if (lstat(entry.text, &info) != 0)
            status = mz_io_fail("read", entry.text);
        else if (S_ISDIR(info.st_mode))
            status = walk(entry.text, depth + 1, visit);
        else
            status = visit(entry.text, false);
    }
    mz_dir_list_free(names, count);
    MEZZO_TRY(status);
    return visit(path, true);
}

static mezzo_status visit_sync(const char *path, bool is_dir) {
    if (is_dir)
        return mz_sync_dir(path);
    int fd = mz_sys_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno == ELOOP ? MEZZO_OK : mz_io_fail("flush", path); // a link: its folder's entry is flushed
    mezzo_status status = mz_sys_fsync(fd) == 0 ? MEZZO_OK : mz_io_fail("flush", path);
    close(fd);
    return status;
}

mezzo_status mz_dir_commit(const char *staged, const char *final) {
    MEZZO_TRY(walk(staged, 0, visit_sync));
    if (mz_sys_rename(staged, final) != 0) {
        if (errno == ENOTEMPTY || errno == EEXIST)
            return mz_fail(MEZZO_ERR_IO, "cannot rename the new folder to %s: it exists already; remove it first",
                           mz_quote(final).text);
        return mz_io_fail("rename the new folder to", final);
    }
    MEZZO_TRY(mz_sync_parent(final));
    return MEZZO_OK;
}

mezzo_status mz_dir_exchange(const char *staged, const char *final, bool *swapped) {
    *swapped = false;
    MEZZO_TRY(walk(staged, 0, visit_sync));
    if (mz_sys_exchange(staged, final) != 0)
        return errno == EINVAL || errno == ENOSYS || errno == ENOTSUP
                   ? MEZZO_OK
                   : mz_io_fail("exchange the new folder with", final);
    *swapped = true;
    return mz_sync_parent(final);
}

static mezzo_status visit_remove(const char *path, bool is_dir) {
    int failed = is_dir ? rmdir(path) : unlink(path);
    return failed && errno != ENOENT ? mz_io_fail("remove", path) : MEZZO_OK;
}

mezzo_status mz_file_remove(const char *path) {
    return visit_remove(path, false);
}

mezzo_status mz_dir_remove(const char *path) {
    struct stat info;
    if (lstat(path, &info) != 0)
        return errno == ENOENT ? MEZZO_OK : mz_io_fail("remove", path);
    if (!S_ISDIR(info.st_mode))
        return mz_fail(MEZZO_ERR_IO, "cannot remove %s: it is not a folder", mz_quote(path).text);
    return walk(path, 0, visit_remove);
}

mezzo_status mz_dir_drop(const char *path, const char *hidden) {
    if (mz_sys_rename(path, hidden) != 0)
        return errno == ENOENT ? MEZZO_OK : mz_io_fail("remove", path);
    return mz_dir_remove(hidden);
}
