#include "data/added.h"

#include <stdlib.h>

#include "data/normalize.h"
#include "io/quote.h"

void mz_added_free(mz_added *added) {
    for (size_t i = 0; i < added->n; i++)
        mz_free(added->items[i].text);
    mz_free(added->items);
    mz_pattern_free(added->letter);
    *added = (mz_added){0};
}

mezzo_status mz_added_push(mz_added *added, mz_added_token token) {
    mezzo_status status = MZ_RESERVE(added->items, added->cap, added->n + 1);
    if (status == MEZZO_OK)
        added->items[added->n++] = token;
    else
        mz_free(token.text);
    return status;
}

static int compare(const void *x, const void *y) {
    const mz_added_token *a = x, *b = y;
    const int order = memcmp(a->text, b->text, a->n < b->n ? a->n : b->n);
    return order != 0 ? order : (a->n > b->n) - (a->n < b->n);
}

mezzo_status mz_added_finish(const char *where, mz_added *added) {
    static const char letter[] = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]";
    bool words = false;
    if (added->n > 1)
        qsort(added->items, added->n, sizeof *added->items, compare);
    for (size_t i = 0; i < added->n; i++) {
        const mz_added_token *a = &added->items[i];
        if (i > 0 && compare(a - 1, a) == 0)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'added_tokens': %s is there twice", where,
                           mz_quote_bytes(a->text, a->n).text);
        added->begins[(unsigned char)a->text[0]] = true;
        words |= a->single_word;
    }
    return words ? mz_pattern_create(where, MZ_PATTERN_PCRE2, letter, sizeof letter - 1, &added->letter) : MEZZO_OK;
}

// Narrows items [*from, *to), whose first `depth` bytes are the same, to those whose next byte is `byte`.
static void narrow(const mz_added *added, size_t depth, unsigned char byte, size_t *from, size_t *to) {
    for (int side = 0; side < 2; side++) {
        size_t low = *from, high = *to;
        while (low < high) {
            const size_t middle = low + (high - low) / 2;
            const mz_added_token *a = &added->items[middle];
            const int there = a->n > depth ? (unsigned char)a->text[depth] : -1;
            if (there < byte + side)
                low = middle + 1;
            else
                high = middle;
        }
        *(side == 0 ? from : to) = low;
    }
}

// The longest item that the text begins with, or NULL.
static const mz_added_token *longest(const mz_added *added, const char *text, size_t n) {
    const mz_added_token *best = NULL;
    size_t from = 0, to = added->n;
    for (size_t depth = 0; depth < n && from < to; depth++) {
        narrow(added, depth, (unsigned char)text[depth], &from, &to);
        if (from < to && added->items[from].n == depth + 1)
            best = &added->items[from];
    }
    return best;
}

int32_t mz_added_find(const mz_added *added, const char *text, size_t n) {
    const mz_added_token key = {.text = (char *)(uintptr_t)text, .n = n};
    const mz_added_token *a =
        added->n > 0 ? bsearch(&key, added->items, added->n, sizeof *added->items, compare) : NULL;
    return a != NULL ? a->token : -1;
}

// Whether a letter of a word stands directly before or after.
static mezzo_status touches_word(const mz_added_walk *w, size_t from, size_t to, bool *out) {
    size_t before = from, after = to;
    while (before > 0 && from - before < 4) {
        before--;
        if (((unsigned char)w->text[before] & 0xC0) != 0x80)
            break;
    }
    while (after < w->n && after - to < 4) {
        after++;
        if (after == w->n || ((unsigned char)w->text[after] & 0xC0) != 0x80)
            break;
    }
    size_t a, b;
    mz_matches left = mz_matches_of(w->added->letter, w->room, w->text + before, from - before);
    mz_matches right = mz_matches_of(w->added->letter, w->room, w->text + to, after - to);
    MEZZO_TRY(mz_matches_next(&left, out, &a, &b));
    return *out ? MEZZO_OK : mz_matches_next(&right, out, &a, &b);
}

static mezzo_status find(mz_added_walk *w, size_t *from, size_t *to, int32_t *token) {
    *token = -1;
    while (w->at < w->n) {
        const mz_added_token *a =
            w->added->begins[(unsigned char)w->text[w->at]] ? longest(w->added, w->text + w->at, w->n - w->at) : NULL;
        if (a == NULL) {
            w->at++;
            continue;
        }
        *from = w->at;
        *to = w->at += a->n;
        bool within = false;
        if (a->single_word && !a->special)
            MEZZO_TRY(touches_word(w, *from, *to, &within));
        if (a->special || within)
            continue;
        if (a->left) {
            const size_t white = mz_white_from(w->text + w->done, *from > w->done ? *from - w->done : 0) + w->done;
            *from = white < *from ? white : *from;
        }
        if (a->right)
            *to += mz_white_until(w->text + *to, w->n - *to);
        *token = a->token;
        return MEZZO_OK;
    }
    return MEZZO_OK;
}

mezzo_status mz_added_next(mz_added_walk *w, size_t *from, size_t *to, int32_t *token) {
    size_t begin = w->n, end = w->n;
    *from = w->done;
    *token = w->next;
    if (w->next >= 0) {
        *to = w->done = w->next_end;
        w->next = -1;
        return MEZZO_OK;
    }
    if (w->added->n > 0)
        MEZZO_TRY(find(w, &begin, &end, &w->next));
    if (w->next < 0) {
        *to = w->done = w->n;
        return MEZZO_OK;
    }
    w->next_end = end;
    if (begin > w->done) {
        *to = w->done = begin;
        return MEZZO_OK;
    }
    *token = w->next;
    w->next = -1;
    *to = w->done = end;
    return MEZZO_OK;
}
