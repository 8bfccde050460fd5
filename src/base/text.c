// Implements the growing text buffer, glob patterns, the search for the nearest known word, and the clock.
#define _GNU_SOURCE
#include <locale.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/base.h"
#include "base/decimal.h"

static locale_t c_locale;
static pthread_once_t c_locale_once = PTHREAD_ONCE_INIT;

static void c_locale_make(void) {
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

// Gives this thread the "C" locale; leave: the one that it had.
static locale_t c_locale_enter(void) {
    pthread_once(&c_locale_once, c_locale_make);
    return c_locale ? uselocale(c_locale) : (locale_t)0;
}

static void c_locale_leave(locale_t previous) {
    if (previous)
        uselocale(previous);
}

int mz_vsnprintf(char *out, size_t size, const char *fmt, va_list args) {
    locale_t previous = c_locale_enter();
    const int n = vsnprintf(out, size, fmt, args);
    c_locale_leave(previous);
    return n;
}

int mz_snprintf(char *out, size_t size, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    const int n = mz_vsnprintf(out, size, fmt, args);
    va_end(args);
    return n;
}

double mz_strtod(const char *text, char **end) {
    locale_t previous = c_locale_enter();
    const double value = strtod(text, end);
    c_locale_leave(previous);
    return value;
}

size_t mz_text_unshown(const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    if (*c < 0x20 || *c == 0x7F) // C0 or DEL
        return *c != '\0';
    if (c[0] == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0) // C1
        return 2;
    if (c[0] == 0xE2 &&
        ((c[1] == 0x80 && c[2] >= 0xA8 && c[2] <= 0xAE) || (c[1] == 0x81 && c[2] >= 0xA6 && c[2] <= 0xA9)))
        return 3;
    return c[0] == 0xF3 && c[1] == 0xA0 && (c[2] == 0x80 || c[2] == 0x81) ? 4 : 0; // U+E0000 to U+E007F
}

void mz_text_tame(char *text) {
    for (size_t n; *text != '\0'; text += n > 0 ? n : 1) {
        n = mz_text_unshown(text);
        memset(text, ' ', n);
    }
}

const char *mz_float_text(float x, char out[MZ_FLOAT_TEXT]) {
    locale_t previous = c_locale_enter();
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(out, MZ_FLOAT_TEXT, "%.*g", digits, (double)x);
        if (strtof(out, NULL) == x)
            break;
    }
    c_locale_leave(previous);
    return out;
}

void mz_text_add(mz_text *t, const char *bytes, size_t n) {
    if (t->status != MEZZO_OK)
        return;
    if (n > SIZE_MAX - t->len - 1) {
        t->status = mz_fail(MEZZO_ERR_MEMORY, "out of memory: a text of more than %zu bytes", t->len);
        return;
    }
    t->status = MZ_RESERVE(t->data, t->cap, t->len + n + 1);
    if (t->status != MEZZO_OK)
        return;
    if (n > 0)
        memcpy(t->data + t->len, bytes, n);
    t->len += n;
    t->data[t->len] = '\0';
}

void mz_text_addf(mz_text *t, const char *fmt, ...) {
    if (t->status != MEZZO_OK)
        return;
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = mz_vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0)
        t->status = mz_fail(MEZZO_ERR_INVALID, "could not format \"%s\"", fmt);
    else
        t->status = MZ_RESERVE(t->data, t->cap, t->len + (size_t)n + 1);
    if (t->status == MEZZO_OK) {
        mz_vsnprintf(t->data + t->len, (size_t)n + 1, fmt, again);
        t->len += (size_t)n;
    }
    va_end(again);
}

void mz_text_free(mz_text *t) {
    mz_free(t->data);
    *t = (mz_text){0};
}

bool mz_glob_match(const char *pattern, const char *text) {
    // After a mismatch only the last '*' needs another try: an earlier one gives no match that the last one does not.
    const char *star = NULL, *star_text = NULL;
    while (*text != '\0') {
        if (*pattern == '*') {
            star = pattern++;
            star_text = text;
        } else if (*pattern == '?' || *pattern == *text) {
            pattern++;
            text++;
        } else if (star != NULL) {
            pattern = star + 1;
            text = ++star_text;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}

bool mz_names_module(const char *pattern, const char *module) {
    char tail[300];
    snprintf(tail, sizeof tail, "*.%s", pattern);
    return mz_glob_match(pattern, module) || mz_glob_match(tail, module);
}

bool mz_next_pattern(const char **list, char pattern[256]) {
    size_t n = strcspn(*list, ",");
    if (**list == '\0')
        return false;
    snprintf(pattern, 256, "%.*s", (int)(n < 255 ? n : 255), *list);
    *list += n + ((*list)[n] == ',');
    return true;
}

enum { WORD_BYTES = 128 };

// Computes Levenshtein's distance, one row of the table at a time. Words of WORD_BYTES and more match nothing.
static size_t edit_distance(const char *a, const char *b) {
    size_t na = strlen(a), nb = strlen(b);
    size_t row[WORD_BYTES];
    if (na >= WORD_BYTES || nb >= WORD_BYTES)
        return SIZE_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[nb];
}

size_t mz_index(const void *list, size_t n, size_t stride, size_t offset, bool inside, const char *word) {
    for (size_t i = 0; i < n; i++) { // a list of none may be NULL
        const char *at = (const char *)list + i * stride + offset;
        if (strcmp(inside ? at : *(const char *const *)(const void *)at, word) == 0)
            return i;
    }
    return n;
}

void *mz_find(const void *list, size_t n, size_t stride, size_t offset, bool inside, const char *word) {
    const size_t i = mz_index(list, n, stride, offset, inside, word);
    return i < n ? (void *)((uintptr_t)list + i * stride) : NULL;
}

const char *mz_nearest(const char *word, const char *const *candidates, size_t n) {
    size_t limit = strlen(word) / 3 > 2 ? strlen(word) / 3 : 2;
    size_t best_distance = limit + 1;
    const char *best = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t distance = edit_distance(word, candidates[i]);
        if (distance < best_distance) {
            best_distance = distance;
            best = candidates[i];
        }
    }
    return best;
}

double mz_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double mz_cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void mz_star_numbers(const char *module, char *out, size_t size) {
    size_t n = 0;
    for (const char *p = module; *p != '\0' && n + 1 < size;) {
        size_t length = strcspn(p, "."), digits = strspn(p, "0123456789");
        if (length > 0 && digits == length)
            out[n++] = '*';
        else
            for (size_t i = 0; i < length && n + 1 < size; i++)
                out[n++] = p[i];
        p += length;
        if (*p == '.' && n + 1 < size) {
            out[n++] = '.';
            p++;
        }
    }
    out[n] = '\0';
}
