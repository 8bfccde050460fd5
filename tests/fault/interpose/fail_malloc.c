// A library to preload: the N-th allocation that a process makes after main begins fails, in whatever library it is
// made.   FAIL_MALLOC=N    the N-th, from 1; 0 or unset: none   FAIL_MALLOC_ON=1 and all after it
// FAIL_MALLOC_COUNT=FILE   how many there were, written when the process ends
// FAIL_MALLOC_RANK=R       not of this process but of the one that it starts as this rank of a job
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *(*real_malloc)(size_t);
static void *(*real_calloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);
static void (*real_free)(void *);
static void *(*real_aligned_alloc)(size_t, size_t);
static int (*real_posix_memalign)(void **, size_t, size_t);

static atomic_llong made;
static long long fail_at;
static bool stay, counting, resolving;

// dlsym itself allocates before there is anything to allocate with.
static _Alignas(64) char early[65536];
static size_t early_used;

static void *early_alloc(size_t n) {
    size_t at = early_used;
    early_used += (n + 63) / 64 * 64;
    return early_used <= sizeof early ? early + at : NULL;
}

static bool is_early(const void *p) {
    return (const char *)p >= early && (const char *)p < early + sizeof early;
}

static void resolve(void) {
    if (real_malloc != NULL || resolving)
        return;
    resolving = true;
    *(void **)&real_calloc = dlsym(RTLD_NEXT, "calloc");
    *(void **)&real_realloc = dlsym(RTLD_NEXT, "realloc");
    *(void **)&real_free = dlsym(RTLD_NEXT, "free");
    *(void **)&real_aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
    *(void **)&real_posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    *(void **)&real_malloc = dlsym(RTLD_NEXT, "malloc");
    resolving = false;
}

static bool fails(void) {
    if (!counting)
        return false;
    long long n = atomic_fetch_add(&made, 1) + 1;
    if (fail_at == 0 || (n != fail_at && !(stay && n > fail_at)))
        return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n) {
    resolve();
    if (real_malloc == NULL)
        return early_alloc(n);
    return fails() ? NULL : real_malloc(n);
}

void *calloc(size_t count, size_t size) {
    resolve();
    if (real_malloc == NULL)
        return early_alloc(count * size);
    return fails() ? NULL : real_calloc(count, size);
}

void *realloc(void *p, size_t n) {
    resolve();
    if (is_early(p) || real_malloc == NULL) {
        void *moved = real_malloc != NULL ? real_malloc(n) : early_alloc(n);
        if (moved != NULL && p != NULL)
            memmove(moved, p, n < 4096 ? n : 4096);
        return moved;
    }
    return fails() ? NULL : real_realloc(p, n);
}

void free(void *p) {
    resolve();
    if (p != NULL && !is_early(p) && real_free != NULL)
        real_free(p);
}

void *aligned_alloc(size_t alignment, size_t n) {
    resolve();
    return fails() ? NULL : real_aligned_alloc(alignment, n);
}

int posix_memalign(void **out, size_t alignment, size_t n) {
    resolve();
    return fails() ? ENOMEM : real_posix_memalign(out, alignment, n);
}

static int (*real_main)(int, char **, char **);

static int counted_main(int argc, char **argv, char **envp) {
    const char *at = getenv("FAIL_MALLOC"), *on = getenv("FAIL_MALLOC_ON");
    const char *wanted = getenv("FAIL_MALLOC_RANK"), *rank = getenv("RANK");
    if (wanted != NULL && (rank == NULL || strcmp(wanted, rank) != 0))
        return real_main(argc, argv, envp);
    fail_at = at != NULL ? atoll(at) : 0;
    stay = on != NULL && *on == '1';
    unsetenv("LD_PRELOAD"); // of this process alone
    counting = true;
    return real_main(argc, argv, envp);
}

int __libc_start_main(int (*start)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end);
int __libc_start_main(int (*start)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end) {
    int (*next)(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    resolve();
    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = start;
    return next(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}

__attribute__((destructor)) static void write_count(void) {
    const char *path = counting ? getenv("FAIL_MALLOC_COUNT") : NULL;
    char text[32];
    counting = false;
    int fd = path != NULL ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;
    int n = snprintf(text, sizeof text, "%lld\n", atomic_load(&made));
    if (fd >= 0 && write(fd, text, (size_t)n) != n)
        _exit(98);
    if (fd >= 0)
        close(fd);
}
