// Implements the maps of file.h. To read a page that another program truncated from its file raises SIGBUS: a handler
// puts zeros in its place and marks the map, and mz_map_check reports it before a reader uses the result.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/file.h"
#include "io/file_ops.h"
#include "io/quote.h"

// Describes one mapped file. Entries are reused and never freed, because the handler walks their list without a lock.
typedef struct mapped {
    struct mapped *next;
    atomic_uintptr_t data; // 0: the entry is free
    atomic_size_t size;
    atomic_bool cut; // the handler found a page that the file no longer has
    char *path;
} mapped;

static _Atomic(mapped *) all;
static atomic_int cuts; // number of marked maps
static pthread_mutex_t writers = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before;

static mapped *find(uintptr_t at) {
    for (mapped *m = atomic_load(&all); m != NULL; m = m->next) {
        const uintptr_t data = atomic_load(&m->data);
        if (data != 0 && at >= data && at - data < atomic_load(&m->size))
            return m;
    }
    return NULL;
}

// Replaces everything from the page on by zeros, so that a long read faults once.
static bool put_zeros(mapped *m, uintptr_t at) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = at / page * page;
    const size_t rest = atomic_load(&m->data) + atomic_load(&m->size) - from;
    if (mmap((void *)from, rest, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        return false;
    if (!atomic_exchange(&m->cut, true))
        atomic_fetch_add(&cuts, 1);
    return true;
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    const int error = errno;
    mapped *m = find((uintptr_t)info->si_addr);
    if (m != NULL && put_zeros(m, (uintptr_t)info->si_addr)) {
        errno = error;
        return;
    }
    // No map caused the signal, so the earlier handler runs. By default the instruction faults again and ends the
    // process.
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);
    else
        signal(SIGBUS, SIG_DFL);
}

static void install(void) {
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &before);
}

static mapped *take_entry(void) {
    for (mapped *m = atomic_load(&all); m != NULL; m = m->next)
        if (atomic_load(&m->data) == 0)
            return m;
    mapped *m = calloc(1, sizeof *m); // it outlives every map and is never freed
    if (m != NULL) {
        m->next = atomic_load(&all);
        atomic_store(&all, m);
    }
    return m;
}

static mezzo_status enter(const char *path, void *data, size_t size) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
    char *copy = mz_strdup(path);
    pthread_mutex_lock(&writers);
    mapped *m = copy != NULL ? take_entry() : NULL;
    if (m != NULL) {
        m->path = copy;
        atomic_store(&m->cut, false);
        atomic_store(&m->size, size);
        atomic_store(&m->data, (uintptr_t)data);
    }
    pthread_mutex_unlock(&writers);
    if (m == NULL)
        mz_free(copy);
    return m != NULL ? MEZZO_OK : mz_fail(MEZZO_ERR_MEMORY, "no memory to map %s", mz_quote(path).text);
}

// Removes a map's entry. Returns false where no file is mapped there.
static bool leave(const void *data) {
    pthread_mutex_lock(&writers);
    mapped *m = find((uintptr_t)data);
    const bool there = m != NULL && atomic_load(&m->data) == (uintptr_t)data;
    if (there) {
        atomic_store(&m->data, 0);
        if (atomic_load(&m->cut))
            atomic_fetch_sub(&cuts, 1);
        mz_free(m->path);
        m->path = NULL;
    }
    pthread_mutex_unlock(&writers);
    return there;
}

mezzo_status mz_map_open(const char *path, mz_map *out) {
    *out = (mz_map){0};
    int fd;
    size_t size;
    MEZZO_TRY(mz_open_regular(path, &fd, &size));
    if (size == 0) { // mmap refuses a length of 0
        close(fd);
        out->data = (const unsigned char *)"";
        return MEZZO_OK;
    }
    void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    mezzo_status status = data == MAP_FAILED ? mz_io_fail("map", path) : enter(path, data, size);
    close(fd);
    if (status != MEZZO_OK) {
        if (data != MAP_FAILED)
            munmap(data, size);
        return status;
    }
    out->data = data;
    out->size = size;
    return MEZZO_OK;
}

void mz_map_close(mz_map *map) {
    if (map->size > 0 && leave(map->data))
        munmap((void *)(uintptr_t)map->data, map->size);
    *map = (mz_map){0};
}

mezzo_status mz_map_check(const void *bytes) {
    if (atomic_load(&cuts) == 0)
        return MEZZO_OK;
    mezzo_status status = MEZZO_OK;
    pthread_mutex_lock(&writers);
    const mapped *m = find((uintptr_t)bytes);
    if (m != NULL && atomic_load(&m->cut))
        status =
            mz_fail(MEZZO_ERR_IO, "%s: another program cut the file short while it was being read (it had %zu bytes)",
                    mz_quote(m->path).text, atomic_load(&m->size));
    pthread_mutex_unlock(&writers);
    return status;
}

mezzo_status mz_map_end(mz_map *map, mezzo_status status) {
    const mezzo_status cut = mz_map_check(map->data);
    mz_map_close(map);
    return cut != MEZZO_OK ? cut : status;
}

void mz_map_expect(const void *bytes, size_t n) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)bytes / page * page;
    (void)posix_madvise((void *)from, n + (size_t)((uintptr_t)bytes - from), POSIX_MADV_WILLNEED);
}
