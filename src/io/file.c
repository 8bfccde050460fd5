#define _GNU_SOURCE
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/scope.h"
#include "base/stop.h"
#include "io/file_ops.h"
#include "io/quote.h"

// --- counted system calls ------------------------------------------------------------------------------------------
static atomic_uint_fast64_t op_calls[MZ_IO_OP_COUNT];
static atomic_int_fast64_t op_fail_in[MZ_IO_OP_COUNT] = {-1, -1, -1, -1};

void mz_io_fail_after(mz_io_op op, int64_t n) {
    atomic_store(&op_fail_in[op], n < 0 ? -1 : n);
}

uint64_t mz_io_count(mz_io_op op) {
    return atomic_load(&op_calls[op]);
}

// Counts one call; returns true when it is the one that must fail.
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

int mz_sys_exchange(const char *a, const char *b) {
    if (op_fails(MZ_IO_RENAME)) {
        errno = EIO;
        return -1;
    }
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

// Writes all n bytes; returns -1 with errno if it cannot.
static int sys_write_all(int fd, const unsigned char *bytes, size_t n) {
    if (op_fails(MZ_IO_WRITE)) {
        errno = ENOSPC;
        return -1;
    }
    while (n > 0) {
        // Linux writes at most 0x7ffff000 bytes a call.
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

mezzo_status mz_io_fail_input(const char *doing, const char *path) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    const mezzo_status status = mz_io_fail(doing, path);
    return missing ? MEZZO_ERR_INVALID : status;
}

mezzo_status mz_sync_dir(const char *path) {
    int fd = mz_sys_open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return mz_io_fail("open folder", path);
    // Some file systems cannot flush a folder and return EINVAL; no other way exists.
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
    MZ_SCOPED(mz_free_at) char *parent = mz_strdup(path);
    if (!parent)
        return MEZZO_ERR_MEMORY;
    parent[slash - path] = '\0';
    return mz_sync_dir(parent);
}

// --- one file ------------------------------------------------------------------------------------------------------
struct mz_file {
    int fd;
    off_t size; // of the file itself, where that is written directly: a failed write is truncated to it
    mz_written written;
    char *path;
    char *staged; // NULL: `path` itself is written
    bool stream;  // a pipe, a terminal or another device, which is neither flushed nor truncated
};

// Opens a staging file, which must be new and no link. A file that a killed process left under its name is removed; a
// link there is removed, never followed.
static int open_staged(const char *staged) {
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW;
    int fd = mz_sys_open(staged, flags);
    struct stat info;
    if (fd >= 0 || errno != EEXIST || lstat(staged, &info) != 0)
        return fd;
    if (!S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode)) {
        errno = EEXIST;
        return -1;
    }
    return unlink(staged) != 0 ? -1 : mz_sys_open(staged, flags);
}

static mezzo_status file_open(const char *path, int flags, bool staged, mz_file **out) {
    *out = NULL;
    mz_file *file;
    MEZZO_TRY(MZ_NEW(file, 1));
    file->fd = -1;
    file->path = mz_strdup(path);
    if (file->path && staged)
        file->staged = mz_format("%s.tmp", path);
    mezzo_status status = MEZZO_OK;
    struct stat info = {0};
    if (!file->path || (staged && !file->staged))
        status = MEZZO_ERR_MEMORY;
    else if ((file->fd = staged ? open_staged(file->staged) : mz_sys_open(path, flags)) < 0)
        status = mz_io_fail("write", staged && errno == EEXIST ? file->staged : path);
    else if (fstat(file->fd, &info) == 0)
        file->size = info.st_size;
    file->stream = file->fd >= 0 && !S_ISREG(info.st_mode);
    if (status != MEZZO_OK) {
        MZ_FREE(file->path, file->staged, file);
        return status;
    }
    *out = file;
    return MEZZO_OK;
}

// Returns the descriptor that "/dev/stdout" or "/dev/fd/3" names, so that writes share its offset; -1 for any other
// path.
static int descriptor_of(const char *path) {
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    if (strcmp(path, "/dev/stdout") == 0)
        return STDOUT_FILENO;
    if (strcmp(path, "/dev/stderr") == 0)
        return STDERR_FILENO;
    for (size_t i = 0; i < MZ_COUNT(folders); i++) {
        const char *digits = path + strlen(folders[i]);
        if (strncmp(path, folders[i], strlen(folders[i])) == 0 && *digits != '\0' && strlen(digits) < 8 &&
            strspn(digits, "0123456789") == strlen(digits))
            return atoi(digits);
    }
    return -1;
}

// Makes a file object, which takes over the descriptor.
static mezzo_status file_on(int fd, const char *path, mz_file **out) {
    mz_file *file = mz_alloc(1, sizeof *file);
    char *copy = mz_strdup(path);
    if (!file || !copy) {
        close(fd);
        MZ_FREE(file, copy);
        return MEZZO_ERR_MEMORY;
    }
    *file = (mz_file){.fd = fd, .path = copy, .stream = true};
    *out = file;
    return MEZZO_OK;
}

// Creates a file through the user's own link: the link's target is replaced, and the link stays.
static mezzo_status create_linked(const char *path, mz_file **out) {
    char *target = realpath(path, NULL);
    if (!target)
        return errno == ENOENT ? mz_fail(MEZZO_ERR_IO, "cannot write %s: it is a link to a file that does not exist",
                                         mz_quote(path).text)
                               : mz_io_fail("write", path);
    mezzo_status status = file_open(target, 0, true, out);
    free(target);
    return status;
}

mezzo_status mz_file_create(const char *path, mz_file **out) {
    struct stat info;
    *out = NULL;
    int fd = descriptor_of(path);
    if (fd >= 0) {
        fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        return fd < 0 ? mz_io_fail("write", path) : file_on(fd, path, out);
    }
    bool found = stat(path, &info) == 0;
    // It is refused here rather than after gigabytes were written, since a rename onto a folder fails.
    if (found && S_ISDIR(info.st_mode))
        return mz_fail(MEZZO_ERR_IO, "cannot write %s: it is a folder", mz_quote(path).text);
    if (found && S_ISBLK(info.st_mode))
        return mz_fail(MEZZO_ERR_IO, "cannot write %s: it is a disk, not a file", mz_quote(path).text);
    if (found && !S_ISREG(info.st_mode)) // a pipe or a terminal is written directly and never replaced
        return file_open(path, O_WRONLY | O_NOCTTY, false, out);
    if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode))
        return create_linked(path, out);
    return file_open(path, 0, true, out);
}

mezzo_status mz_file_append(const char *path, mz_file **out) {
    return file_open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY, false, out);
}

mezzo_status mz_file_append_own(const char *path, mz_file **out) {
    mezzo_status status = file_open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK, false, out);
    if (status != MEZZO_OK || !(*out)->stream)
        return status;
    mz_file_discard(*out);
    *out = NULL;
    return mz_fail(MEZZO_ERR_IO, "cannot write %s: it is a device or pipe, not a file", mz_quote(path).text);
}

mezzo_status mz_file_create_new(const char *path, mz_file **out) {
    return file_open(path, O_WRONLY | O_CREAT | O_EXCL, false, out);
}

mezzo_status mz_file_write(mz_file *file, const void *bytes, size_t n) {
    if (n == 0)
        return MEZZO_OK;
    if (sys_write_all(file->fd, bytes, n) != 0) {
        mezzo_status status = mz_io_fail("write", file->path);
        // Half a record would spoil the next one. Where truncation fails, too (a device), a reader drops the incomplete
        // end.
        if (!file->staged && !file->stream && ftruncate(file->fd, file->size) != 0)
            mz_log("warn", "could not cut %s back after a failed write", mz_quote(file->path).text);
        return status;
    }
    file->size += (off_t)n;
    file->written.bytes += n;
    file->written.crc = mz_crc32c(file->written.crc, bytes, n);
    return MEZZO_OK;
}

mezzo_status mz_file_sync(mz_file *file) {
    if (file->stream)
        return MEZZO_OK;
    return mz_sys_fsync(file->fd) == 0 ? MEZZO_OK : mz_io_fail("flush", file->path);
}

bool mz_file_moved(const mz_file *file) {
    struct stat ours, there;
    return !file->stream && !file->staged && fstat(file->fd, &ours) == 0 &&
           (stat(file->path, &there) != 0 ? errno == ENOENT
                                          : ours.st_dev != there.st_dev || ours.st_ino != there.st_ino);
}

mz_written mz_file_written(const mz_file *file) {
    return file->written;
}

// Closes the descriptor and frees the object; removes a staged file that was not renamed.
static void file_free(mz_file *file, bool keep_staged) {
    if (file->fd >= 0)
        close(file->fd);
    if (file->staged && !keep_staged)
        unlink(file->staged);
    MZ_FREE(file->staged, file->path, file);
}

mezzo_status mz_file_commit(mz_file *file) {
    mezzo_status status = MEZZO_OK;
    if (file->staged)
        MEZZO_TRY_GOTO(status, mz_file_sync(file));
    int closed = close(file->fd);
    file->fd = -1;
    // NFS and quotas report a full disk only when a file is closed.
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

mezzo_status mz_file_copy(const char *from, const char *to, size_t max_bytes) {
    MZ_SCOPED(mz_free_at) char *bytes = NULL;
    size_t n;
    if (!mz_path_exists(from))
        return MEZZO_OK;
    MEZZO_TRY(mz_file_read(from, max_bytes, &bytes, &n));
    return mz_file_write_atomic(to, bytes, n);
}

mezzo_status mz_text_save(mz_text *text, const char *path) {
    const mezzo_status status =
        text->status == MEZZO_OK ? mz_file_write_atomic(path, text->data, text->len) : text->status;
    mz_text_free(text);
    return status;
}

mezzo_status mz_file_cut(const char *path, size_t size) {
    int fd = mz_sys_open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return mz_io_fail("shorten", path);
    mezzo_status status =
        ftruncate(fd, (off_t)size) == 0 && mz_sys_fsync(fd) == 0 ? MEZZO_OK : mz_io_fail("shorten", path);
    close(fd);
    return status;
}

// --- reading -------------------------------------------------------------------------------------------------------
// Opens a regular file. open() would block on a FIFO, so stat() comes first.
mezzo_status mz_open_regular(const char *path, int *fd, size_t *size) {
    struct stat info;
    if (stat(path, &info) != 0)
        return mz_io_fail_input("read", path);
    if (!S_ISREG(info.st_mode))
        return mz_fail(MEZZO_ERR_INVALID, "cannot read %s: it is %s, not a file", mz_quote(path).text,
                       S_ISDIR(info.st_mode) ? "a folder" : "a device or pipe");
    *fd = mz_sys_open(path, O_RDONLY);
    if (*fd < 0)
        return mz_io_fail_input("read", path);
    if (fstat(*fd, &info) != 0) {
        mezzo_status status = mz_io_fail("read", path);
        close(*fd);
        return status;
    }
    *size = (size_t)info.st_size;
    return MEZZO_OK;
}

mezzo_status mz_read_piece(int fd, const char *path, char *to, size_t n, size_t *got) {
    for (*got = 0; *got < n;) {
        ssize_t done = read(fd, to + *got, n - *got);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return mz_io_fail("read", path);
        if (done == 0)
            return MEZZO_OK;
        *got += (size_t)done;
    }
    return MEZZO_OK;
}

mezzo_status mz_file_read_back(const char *path, mz_written written) {
    enum { PIECE = 1 << 20 };
    int fd;
    size_t listed, got = PIECE;
    mz_written now = {0};
    char *piece;
    MEZZO_TRY(MZ_NEW(piece, PIECE));
    mezzo_status status = mz_open_regular(path, &fd, &listed);
    if (status == MEZZO_OK) {
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); // where the system refuses this, the page cache is compared
        while (status == MEZZO_OK && got == PIECE) {
            status = mz_read_piece(fd, path, piece, PIECE, &got);
            now.crc = mz_crc32c(now.crc, piece, got);
            now.bytes += got;
        }
        close(fd);
    }
    mz_free(piece);
    if (status == MEZZO_OK && (now.bytes != written.bytes || now.crc != written.crc))
        status =
            mz_fail(MEZZO_ERR_IO,
                    "%s reads back differently from what was written (%llu of %llu bytes, checksum %08x, not %08x): "
                    "the disk or the memory is failing; write to another folder",
                    mz_quote(path).text, (unsigned long long)now.bytes, (unsigned long long)written.bytes, now.crc,
                    written.crc);
    return status;
}

mezzo_status mz_file_read(const char *path, size_t max_bytes, char **out, size_t *size) {
    enum { PIECE = 16 << 20 };
    *out = NULL;
    *size = 0;
    int fd;
    size_t expected;
    MEZZO_TRY(mz_open_regular(path, &fd, &expected));
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
        ssize_t got = read(fd, data + have, expected - have < PIECE ? expected - have : PIECE);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            status = mz_io_fail("read", path);
        if (got <= 0) // the file became shorter meanwhile: what exists counts
            break;
        have += (size_t)got;
        if (have < expected)
            status = mz_stop_check(path);
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

mezzo_status mz_file_read_text(const char *path, size_t max_bytes, char **out, size_t *size) {
    char *text;
    size_t n, begin = 0, end = 0;
    *out = NULL;
    *size = 0;
    MEZZO_TRY(mz_file_read(path, max_bytes, &text, &n));
    if (n >= 2 && (memcmp(text, "\xFF\xFE", 2) == 0 || memcmp(text, "\xFE\xFF", 2) == 0)) {
        mz_free(text);
        return mz_fail(MEZZO_ERR_FORMAT, "%s: its byte order mark says UTF-16 or UTF-32: save it as UTF-8",
                       mz_quote(path).text);
    }
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        begin = 3;
    for (size_t i = begin; i < n; i++)
        if (text[i] != '\r' || i + 1 == n || text[i + 1] != '\n')
            text[end++] = text[i];
    text[end] = '\0';
    *out = text;
    *size = end;
    return MEZZO_OK;
}
