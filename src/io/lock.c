// Implements the lock of file.h: one writer of a run folder.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/file.h"
#include "io/file_ops.h"
#include "io/quote.h"

enum { HOST_BYTES = 80, OWNER_BYTES = 160 };

static void name_host(char host[HOST_BYTES]) {
    memset(host, 0, HOST_BYTES);
    if (gethostname(host, HOST_BYTES - 1) != 0 || host[0] == '\0')
        snprintf(host, HOST_BYTES, "an unnamed host");
}

// Reads "process 123 on HOST", as the owner wrote it. Returns false where the owner has not written yet, or an earlier
// owner wrote the text.
static bool read_owner(int fd, char owner[OWNER_BYTES]) {
    char host[HOST_BYTES], here[OWNER_BYTES];
    ssize_t n = pread(fd, owner, OWNER_BYTES - 1, 0);
    owner[n > 0 ? n : 0] = '\0';
    size_t length = strcspn(owner, "\n");
    bool whole = owner[length] == '\n';
    owner[length] = '\0';
    long pid = strncmp(owner, "process ", 8) == 0 ? strtol(owner + 8, NULL, 10) : 0;
    name_host(host);
    snprintf(here, sizeof here, "process %ld on %s", pid, host);
    bool dead = pid > 0 && strcmp(owner, here) == 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
    return whole && !dead;
}

// Waits for the owner's name, which it writes directly after it has locked.
static void wait_for_owner(int fd, char owner[OWNER_BYTES]) {
    const struct timespec moment = {.tv_nsec = 1000000};
    for (int i = 0; i < 200; i++) {
        if (read_owner(fd, owner))
            return;
        nanosleep(&moment, NULL);
    }
    snprintf(owner, OWNER_BYTES, "an unidentified process");
}

static mezzo_status write_owner(int fd, const char *path) {
    char host[HOST_BYTES], owner[OWNER_BYTES];
    name_host(host);
    int n = snprintf(owner, sizeof owner, "process %ld on %s\n", (long)getpid(), host);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, owner, (size_t)n, 0) != n)
        return mz_io_fail("write", path);
    return MEZZO_OK;
}

// Locks the whole file. An open file description owns the lock, not the process: closing another descriptor of the file
// does not end it, and two runs in one process exclude each other. Returns 0, or -1 with errno.
static int lock_whole(int fd) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int locked;
    do
        locked = fcntl(fd, F_OFD_SETLK, &whole);
    while (locked != 0 && errno == EINTR);
    return locked;
}

static mz_lock lock_of(int fd, const char *folder) {
    struct stat info = {0};
    (void)stat(folder, &info);
    return (mz_lock){.fd = fd, .device = (uint64_t)info.st_dev, .inode = (uint64_t)info.st_ino};
}

static mezzo_status take(int fd, const char *folder, const char *path, mz_lock *out) {
    char owner[OWNER_BYTES];
    if (lock_whole(fd) == 0) {
        MEZZO_TRY(write_owner(fd, path));
        *out = lock_of(fd, folder);
        return MEZZO_OK;
    }
    if (errno == EAGAIN || errno == EACCES) {
        wait_for_owner(fd, owner);
        return mz_fail(MEZZO_ERR_INVALID, "%s is being written by %s: wait for it, stop it, or use another folder",
                       mz_quote(folder).text, mz_quote(owner).text);
    }
    if (errno != ENOLCK && errno != ENOTSUP && errno != ENOSYS && errno != EINVAL)
        return mz_io_fail("lock", path);
    mz_log("warn", "%s: this file system has no locks (%s): a second run could write there too", mz_quote(folder).text,
           strerror(errno));
    *out = lock_of(fd, folder);
    return MEZZO_OK;
}

mezzo_status mz_lock_take(const char *folder, mz_lock *out) {
    *out = (mz_lock){0};
    const mz_path path = mz_path_of("%s/" MZ_LOCK_FILE, folder);
    int fd = mz_sys_open(path.text, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK);
    mezzo_status status = fd < 0 ? mz_io_fail("open", path.text) : take(fd, folder, path.text, out);
    if (fd >= 0 && out->fd == 0)
        close(fd);
    return status;
}

void mz_lock_release(mz_lock *lock) {
    if (lock->fd > 0)
        close(lock->fd);
    *lock = (mz_lock){0};
}

static bool is_same(const mz_lock *lock, const char *path) {
    struct stat ours, there;
    return fstat(lock->fd, &ours) == 0 && stat(path, &there) == 0 && ours.st_dev == there.st_dev &&
           ours.st_ino == there.st_ino;
}

bool mz_folder_stays(const char *folder) {
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    return mz_path_exists(mz_path_of("%s/config.yaml", folder).text);
}

static mezzo_status renew(mz_lock *lock, const char *folder, const char *path) {
    struct stat there;
    mz_lock again;
    if (!mz_folder_stays(folder) || stat(folder, &there) != 0 || (uint64_t)there.st_dev != lock->device ||
        (uint64_t)there.st_ino != lock->inode)
        return mz_fail(MEZZO_ERR_IO,
                       "%s: the run folder was removed, renamed or replaced while the run was writing there",
                       mz_quote(folder).text);
    MEZZO_TRY(mz_lock_take(folder, &again)); // INVALID: another run has locked the folder since
    mz_lock_release(lock);
    *lock = again;
    mz_log("warn", "%s was removed while the run was writing there: it is created again", mz_quote(path).text);
    return MEZZO_OK;
}

mezzo_status mz_lock_renew(mz_lock *lock, const char *folder) {
    if (lock->fd == 0)
        return MEZZO_OK;
    const mz_path path = mz_path_of("%s/" MZ_LOCK_FILE, folder);
    return is_same(lock, path.text) ? MEZZO_OK : renew(lock, folder, path.text);
}
