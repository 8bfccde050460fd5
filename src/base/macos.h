// Builds Linux calls that macOS lacks from macOS's own. The build includes this file before every source there; no
// other file depends on macOS. scripts/macos.sh checks its syntax; it has not been run.
#ifndef MZ_BASE_MACOS_H
#define MZ_BASE_MACOS_H

#include <errno.h>
#include <fcntl.h>
#include <mach/mach.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define st_mtim st_mtimespec // of struct stat

// --- sockets: flags of socket, socketpair and accept4
// -----------------------------------------------------------------
#define SOCK_CLOEXEC  0x10000000
#define SOCK_NONBLOCK 0x20000000

static inline int mz_macos_flags(int fd, int type) {
    if (fd >= 0 && (type & SOCK_CLOEXEC) != 0)
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (fd >= 0 && (type & SOCK_NONBLOCK) != 0)
        (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    return fd;
}

static inline int mz_macos_socket(int family, int type, int protocol) {
    return mz_macos_flags(socket(family, type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK), protocol), type);
}

static inline int mz_macos_socketpair(int family, int type, int protocol, int ends[2]) {
    int status = socketpair(family, type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK), protocol, ends);
    for (int i = 0; status == 0 && i < 2; i++)
        mz_macos_flags(ends[i], type);
    return status;
}

static inline int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
    return mz_macos_flags(accept(fd, address, length), flags);
}
#define socket     mz_macos_socket
#define socketpair mz_macos_socketpair

// --- files
// --------------------------------------------------------------------------------------------------------------
#define RENAME_EXCHANGE     RENAME_SWAP
#define POSIX_FADV_DONTNEED 4

static inline int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    return renameatx_np(from_folder, from, to_folder, to, flags);
}

// Turns off caching of later reads.
static inline int posix_fadvise(int fd, off_t offset, off_t length, int advice) {
    (void)offset, (void)length, (void)advice;
    return fcntl(fd, F_NOCACHE, 1) < 0 ? errno : 0;
}

// --- the rest
// -------------------------------------------------------------------------------------------------------------
static inline void *memrchr(const void *bytes, int byte, size_t n) {
    const unsigned char *p = (const unsigned char *)bytes;
    while (n-- > 0)
        if (p[n] == (unsigned char)byte)
            return (void *)(size_t)(p + n);
    return NULL;
}

static inline ssize_t getrandom(void *bytes, size_t n, unsigned flags) { // at most 256 bytes
    (void)flags;
    return getentropy(bytes, n) == 0 ? (ssize_t)n : -1;
}

// Waits until `at` of CLOCK_MONOTONIC, which condition variables cannot use on macOS.
static inline int pthread_condattr_setclock(pthread_condattr_t *attributes, clockid_t clock) {
    (void)attributes, (void)clock;
    return 0;
}

static inline int mz_macos_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock, const struct timespec *at) {
    struct timespec now, left;
    clock_gettime(CLOCK_MONOTONIC, &now);
    left.tv_sec = at->tv_sec - now.tv_sec;
    left.tv_nsec = at->tv_nsec - now.tv_nsec;
    if (left.tv_nsec < 0) {
        left.tv_sec--;
        left.tv_nsec += 1000000000;
    }
    return left.tv_sec < 0 ? ETIMEDOUT : pthread_cond_timedwait_relative_np(condition, lock, &left);
}
#define pthread_cond_timedwait mz_macos_timedwait

#define _SC_AVPHYS_PAGES (-1000)
static inline long mz_macos_sysconf(int name) {
    vm_statistics64_data_t pages;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    if (name != _SC_AVPHYS_PAGES)
        return sysconf(name);
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&pages, &count) != KERN_SUCCESS)
        return -1;
    return (long)pages.free_count + (long)pages.inactive_count;
}
#define sysconf mz_macos_sysconf

#endif
