#define _GNU_SOURCE
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file_ops.h"
#include "io/quote.h"

// --- counted system calls -----------------------------------------------------------------------------------------------
static atomic_uint_fast64_t op_calls[MZ_IO_OP_COUNT];
static atomic_int_fast64_t op_fail_in[MZ_IO_OP_COUNT] = {-1, -1, -1, -1};

void mz_io_fail_after(mz_io_op op, int64_t n) {
    atomic_store(&op_fail_in[op], n < 0 ? -1 : n);
}

uint64_t mz_io_count(mz_io_op op) {
    return atomic_load(&op_calls[op]);
}

// Counts one call; true when it is the one that must fail.
static bool op_fails(mz_io_op op) {
    atomic_fetch_add(&op_calls[op], 1);
    if (atomic_load(&op_fail_in[op]) < 0)
        return false;
    return atomic_fetch_sub(&op_fail_in[op], 1) == 0;
}

int mz_sys_open(const char *path, int flags) {
    if (op_fails(MZ_IO_OPEN)) {
        errno = EACCES;
        return -1;
    }
    return open(path, flags | O_CLOEXEC, 0666);
}

int mz_sys_fsync(int fd) {
    if (op_fails(MZ_IO_FSYNC)) {
        errno = EIO;
        return -1;
    }
    return fsync(fd);
}

int mz_sys_rename(const char *from, const char *to) {
    if (op_fails(MZ_IO_RENAME)) {
        errno = EIO;
        return -1;
    }
    return rename(from, to);
}

// All n bytes, or -1 with errno.
static int sys_write_all(int fd, const unsigned char *bytes, size_t n) {
    if (op_fails(MZ_IO_WRITE)) {
        errno = ENOSPC;
        return -1;
    }
    while (n > 0) {
        // Linux moves at most 0x7ffff000 bytes a call.
        ssize_t done = write(fd, bytes, n < ((size_t)1 << 30) ? n : (size_t)1 << 30);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -1;
        bytes += done;
        n -= (size_t)done;
    }
    return 0;
}

mezzo_status mz_io_fail(const char *doing, const char *path) {
    int error = errno;
    const char *advice = "";
    if (error == ENOSPC || error == EDQUOT)
        advice = "; free some space or write to another folder";
    else if (error == EACCES || error == EPERM || error == EROFS)
        advice = "; check its permissions or choose another folder";
    else if (error == ENOTDIR)
        advice = "; a part of this path is a file";
    return mz_fail(MEZZO_ERR_IO, "cannot %s %s: %s%s", doing, mz_quote(path).text, strerror(error), advice);
}

mezzo_status mz_sync_dir(const char *path) {
    int fd = mz_sys_open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return mz_io_fail("open folder", path);
    // Some file systems cannot flush a folder and say EINVAL; there is nothing more to be done there.
    if (mz_sys_fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP) {
        mezzo_status status = mz_io_fail("flush folder", path);
        close(fd);
        return status;
    }
    close(fd);
    return MEZZO_OK;
}

mezzo_status mz_sync_parent(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash)
        return mz_sync_dir(".");
    if (slash == path)
        return mz_sync_dir("/");
    char *parent = mz_strdup(path);
    if (!parent)
        return MEZZO_ERR_MEMORY;
    parent[slash - path] = '\0';
    mezzo_status status = mz_sync_dir(parent);
    mz_free(parent);
    return status;
}

// --- one file -------------------------------------------------------------------------------------------------------------
struct mz_file {
    int fd;
    off_t size; // of the file itself, where that is being written: what a failed write is cut back to
    uint32_t crc;
    char *path;
    char *staged; // NULL: `path` itself is being written
};

static mezzo_status file_open(const char *path, const char *suffix, int flags, mz_file **out) {
    *out = NULL;
    mz_file *file = mz_alloc(1, sizeof *file);
    if (!file)
        return MEZZO_ERR_MEMORY;
    file->fd = -1;
    file->path = mz_strdup(path);
    if (file->path && suffix)
        file->staged = mz_format("%s%s", path, suffix);
    mezzo_status status = MEZZO_OK;
    if (!file->path || (suffix && !file->staged)) {
        status = MEZZO_ERR_MEMORY;
    } else {
        file->fd = mz_sys_open(suffix ? file->staged : path, flags);
        if (file->fd < 0)
            status = mz_io_fail("write", path);
        struct stat info;
        if (file->fd >= 0 && fstat(file->fd, &info) == 0)
            file->size = info.st_size;
    }
    if (status != MEZZO_OK) {
        mz_free(file->path);
        mz_free(file->staged);
        mz_free(file);
        return status;
    }
    *out = file;
    return MEZZO_OK;
}

mezzo_status mz_file_create(const char *path, mz_file **out) {
    // Found now rather than after gigabytes were written: a rename onto a folder fails.
    if (mz_path_is_dir(path)) {
        *out = NULL;
        return mz_fail(MEZZO_ERR_IO, "cannot write %s: it is a folder", mz_quote(path).text);
    }
    return file_open(path, ".tmp", O_WRONLY | O_CREAT | O_TRUNC, out);
}

mezzo_status mz_file_append(const char *path, mz_file **out) {
    return file_open(path, NULL, O_WRONLY | O_CREAT | O_APPEND, out);
}

mezzo_status mz_file_create_new(const char *path, mz_file **out) {
    return file_open(path, NULL, O_WRONLY | O_CREAT | O_EXCL, out);
}

mezzo_status mz_file_write(mz_file *file, const void *bytes, size_t n) {
    if (n == 0)
        return MEZZO_OK;
    if (sys_write_all(file->fd, bytes, n) != 0) {
        mezzo_status status = mz_io_fail("write", file->path);
        // Half a record would spoil the next one. Where this fails too (a device), a reader drops the torn end.
        if (!file->staged && ftruncate(file->fd, file->size) != 0)
            mz_log("warn", "could not cut %s back after a failed write", mz_quote(file->path).text);
        return status;
    }
    file->size += (off_t)n;
    file->crc = mz_crc32c(file->crc, bytes, n);
    return MEZZO_OK;
}

mezzo_status mz_file_sync(mz_file *file) {
    return mz_sys_fsync(file->fd) == 0 ? MEZZO_OK : mz_io_fail("flush", file->path);
}

uint32_t mz_file_crc(const mz_file *file) {
    return file->crc;
}

// Closes the descriptor and frees the object; a staged file that was not renamed is removed.
static void file_free(mz_file *file, bool keep_staged) {
    if (file->fd >= 0)
        close(file->fd);
    if (file->staged && !keep_staged)
        unlink(file->staged);
    mz_free(file->staged);
    mz_free(file->path);
    mz_free(file);
}

mezzo_status mz_file_commit(mz_file *file) {
    mezzo_status status = MEZZO_OK;
    if (file->staged)
        MEZZO_TRY_GOTO(status, mz_file_sync(file));
    int closed = close(file->fd);
    file->fd = -1;
    // NFS and quotas report a full disk only here.
    if (closed != 0) {
        status = mz_io_fail("write", file->path);
        goto fail;
    }
    if (file->staged) {
        if (mz_sys_rename(file->staged, file->path) != 0) {
            status = mz_io_fail("rename the new file to", file->path);
            goto fail;
        }
        mz_free(file->staged);
        file->staged = NULL;
        MEZZO_TRY_GOTO(status, mz_sync_parent(file->path));
    }
fail:
    file_free(file, false);
    return status;
}

void mz_file_discard(mz_file *file) {
    if (file)
        file_free(file, false);
}

mezzo_status mz_file_write_atomic(const char *path, const void *bytes, size_t n) {
    mz_file *file;
    MEZZO_TRY(mz_file_create(path, &file));
    mezzo_status status = mz_file_write(file, bytes, n);
    if (status != MEZZO_OK) {
        mz_file_discard(file);
        return mz_trace(status, __FILE__, __LINE__, __func__);
    }
    MEZZO_TRY(mz_file_commit(file));
    return MEZZO_OK;
}

// --- reading --------------------------------------------------------------------------------------------------------------
// Opens a regular file for reading. A FIFO would block in open(), so the kind is asked for first.
static mezzo_status open_regular(const char *path, int *fd, size_t *size) {
    struct stat info;
    if (stat(path, &info) != 0)
        return mz_io_fail("read", path);
    if (!S_ISREG(info.st_mode))
        return mz_fail(MEZZO_ERR_IO, "cannot read %s: it is %s, not a file", mz_quote(path).text,
                       S_ISDIR(info.st_mode) ? "a folder" : "a device or pipe");
    *fd = mz_sys_open(path, O_RDONLY);
    if (*fd < 0)
        return mz_io_fail("read", path);
    if (fstat(*fd, &info) != 0) {
        mezzo_status status = mz_io_fail("read", path);
        close(*fd);
        return status;
    }
    *size = (size_t)info.st_size;
    return MEZZO_OK;
}

mezzo_status mz_map_open(const char *path, mz_map *out) {
    *out = (mz_map){0};
    int fd;
    size_t size;
    MEZZO_TRY(open_regular(path, &fd, &size));
    if (size == 0) { // mmap refuses length 0
        close(fd);
        out->data = (const unsigned char *)"";
        return MEZZO_OK;
    }
    void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        mezzo_status status = mz_io_fail("map", path);
        close(fd);
        return status;
    }
    close(fd);
    out->data = data;
    out->size = size;
    return MEZZO_OK;
}

void mz_map_close(mz_map *map) {
    if (map->size > 0)
        munmap((void *)(uintptr_t)map->data, map->size);
    *map = (mz_map){0};
}

mezzo_status mz_file_read(const char *path, size_t max_bytes, char **out, size_t *size) {
    *out = NULL;
    *size = 0;
    int fd;
    size_t expected;
    MEZZO_TRY(open_regular(path, &fd, &expected));
    mezzo_status status = MEZZO_OK;
    if (expected > max_bytes) {
        status = mz_fail(MEZZO_ERR_FORMAT, "%s has %zu bytes; at most %zu are read from a file of this kind",
                         mz_quote(path).text, expected, max_bytes);
        close(fd);
        return status;
    }
    char *data = mz_alloc(expected + 1, 1);
    size_t have = 0;
    if (!data)
        status = MEZZO_ERR_MEMORY;
    while (status == MEZZO_OK && have < expected) {
        ssize_t got = read(fd, data + have, expected - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            status = mz_io_fail("read", path);
        if (got <= 0) // shorter than a moment ago: what is there counts
            break;
        have += (size_t)got;
    }
    close(fd);
    if (status != MEZZO_OK) {
        mz_free(data);
        return status;
    }
    *out = data;
    *size = have;
    return MEZZO_OK;
}
