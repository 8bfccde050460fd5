// Allocates counted, zeroed, 64-byte aligned memory (a cache line, and a vector register of AVX-512), and fails when a
// test requests it.
#include <omp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/decimal.h"
#include "base/stop.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { ALIGNMENT = 64 };

// A block of at least LARGE bytes begins at a multiple of HUGE_PAGE and requests pages of that size: the rows that a
// matrix product reads are kilobytes apart, each on another page of 4 KiB, and misses of the TLB are expensive.
enum { HUGE_PAGE = 1 << 21, LARGE = 4 << 20 };

static _Atomic uint64_t calls;
static _Atomic int64_t calls_until_failure = -1;

static bool failure_is_due(void) {
    return atomic_load(&calls_until_failure) >= 0 && atomic_fetch_sub(&calls_until_failure, 1) == 0;
}

uint64_t mz_alloc_count(void) {
    return atomic_load(&calls);
}

void mz_alloc_fail_after(int64_t n) {
    atomic_store(&calls_until_failure, n < 0 ? -1 : n);
}

// A hash table keeps addresses of freed objects: a later one replaces an earlier one.
enum { GONE_BITS = 10 };
static _Atomic(const void *) gone[1 << GONE_BITS];

static _Atomic(const void *) *gone_at(const void *object) {
    return &gone[(uintptr_t)object * UINT64_C(0x9e3779b97f4a7c15) >> (64 - GONE_BITS)];
}

bool mz_free_once(const void *object, const char *what) {
    if (object == NULL)
        return false;
    if (atomic_exchange(gone_at(object), object) != object)
        return true;
    mz_fail(MEZZO_ERR_INVALID, "this %s was already freed: nothing is done", what);
    return false;
}

static size_t alignment_of(size_t bytes) {
    return bytes >= LARGE ? HUGE_PAGE : ALIGNMENT;
}

size_t mz_alloc_bytes(size_t bytes) {
    return mz_align_up(bytes > 0 ? bytes : ALIGNMENT, alignment_of(bytes));
}

// Allocates memory without zeroing it.
static void *allocate(size_t count, size_t size) {
    atomic_fetch_add(&calls, 1);
    if (size != 0 && count > (SIZE_MAX - HUGE_PAGE) / size) {
        mz_fail(MEZZO_ERR_MEMORY, "out of memory: %zu elements of %zu bytes are more than an address can reach", count,
                size);
        return NULL;
    }
    const size_t alignment = alignment_of(count * size), bytes = mz_alloc_bytes(count * size);
    void *ptr = failure_is_due() ? NULL : aligned_alloc(alignment, bytes);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (ptr != NULL && alignment == HUGE_PAGE)
        (void)madvise(ptr, bytes, MADV_HUGEPAGE); // only advice: the memory works without it
#endif
    if (ptr == NULL) {
        mz_fail(MEZZO_ERR_MEMORY, "out of memory: could not allocate %zu bytes", count * size);
        return NULL;
    }
    const void *gone_before = ptr;
    (void)atomic_compare_exchange_strong(gone_at(ptr), &gone_before, NULL);
    return ptr;
}

void *mz_alloc(size_t count, size_t size) {
    void *ptr = allocate(count, size);
    if (ptr != NULL)
        memset(ptr, 0, count * size);
    return ptr;
}

mezzo_status mz_alloc_or_stop(size_t bytes, void **out) {
    enum { PIECE = 64 << 20 };
    mezzo_status status = MEZZO_OK;
    char *ptr = allocate(bytes, 1);
    *out = NULL;
    if (ptr == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t at = 0, n; at < bytes && status == MEZZO_OK; at += n) {
        n = bytes - at < PIECE ? bytes - at : PIECE;
        status = bytes > PIECE ? mz_stop_check("memory") : MEZZO_OK;
        if (status == MEZZO_OK)
            memset(ptr + at, 0, n);
    }
    if (status == MEZZO_OK)
        *out = ptr;
    else
        mz_free(ptr);
    return status;
}

void *mz_grow(void *ptr, size_t old_count, size_t new_count, size_t size) {
    void *grown = allocate(new_count, size);
    if (grown == NULL)
        return NULL;
    size_t kept = (old_count < new_count ? old_count : new_count) * size;
    if (ptr != NULL && kept > 0)
        memcpy(grown, ptr, kept);
    else
        kept = 0;
    memset((char *)grown + kept, 0, new_count * size - kept);
    mz_free(ptr);
    return grown;
}

void mz_free(void *ptr) {
    free(ptr);
}

char *mz_strdup(const char *s) {
    size_t n = strlen(s) + 1;
    char *copy = allocate(n, 1);
    if (copy != NULL)
        memcpy(copy, s, n);
    return copy;
}

char *mz_format(const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = mz_vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *text = NULL;
    if (n < 0)
        mz_fail(MEZZO_ERR_INVALID, "could not format \"%s\"", fmt);
    else if ((text = allocate((size_t)n + 1, 1)) != NULL)
        mz_vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text;
}

void mz_free_all(void *const *blocks, size_t n) {
    for (size_t i = 0; i < n; i++)
        mz_free(blocks[i]);
}

mezzo_status mz_new(void **ptr, size_t count, size_t size) {
    *ptr = mz_alloc(count, size);
    return *ptr != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

mezzo_status mz_reserve(void **ptr, size_t *cap, size_t need, size_t size) {
    if (need <= *cap)
        return MEZZO_OK;
    size_t grown = *cap < 8 ? 8 : *cap > SIZE_MAX / 2 ? need : *cap * 2;
    if (grown < need)
        grown = need;
    void *bigger = mz_grow(*ptr, *cap, grown, size);
    if (bigger == NULL)
        return MEZZO_ERR_MEMORY;
    *ptr = bigger;
    *cap = grown;
    return MEZZO_OK;
}

void mz_copy(void *to, const void *from, size_t bytes) {
    enum { PIECE = 256 << 10, MOST_THREADS = 8 }; // they have a memory's rate, and a busy machine runs few at a time
    const int most = omp_get_max_threads(), threads = most < MOST_THREADS ? most : MOST_THREADS;
#pragma omp parallel for schedule(static) num_threads(threads) if (bytes >= 4 * PIECE)
    for (size_t at = 0; at < bytes; at += PIECE)
        memcpy((char *)to + at, (const char *)from + at, bytes - at < PIECE ? bytes - at : PIECE);
}
