#include "data/added.h"

#include <stdlib.h>

#include "data/normalize.h"
#include "io/quote.h"

void mz_added_free(mz_added *added) {
    for (size_t i = 0; i < added->n; i++)
        mz_free(added->items[i].text);
    MZ_FREE(added->items, added->nodes);
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

// --- the trie ------------------------------------------------------------------------------------------------------
static uint32_t find_child(const mz_added *added, uint32_t node, unsigned char byte) {
    uint32_t child = node == 0 ? added->first[byte] : added->nodes[node].child;
    while (node != 0 && child != 0 && added->nodes[child].byte != byte)
        child = added->nodes[child].sibling;
    return child;
}

static uint32_t get_child(mz_added *added, uint32_t node, unsigned char byte, uint32_t *n) {
    const uint32_t there = find_child(added, node, byte);
    if (there != 0)
        return there;
    mz_added_node *parent = &added->nodes[node];
    added->nodes[*n] = (mz_added_node){.sibling = parent->child, .item = -1, .byte = byte};
    parent->child = *n;
    if (node == 0)
        added->first[byte] = *n;
    return (*n)++;
}

// Returns the node after `byte`, which stands before the bytes that were read already.
static uint32_t step(const mz_added *added, uint32_t node, unsigned char byte) {
    for (;; node = added->nodes[node].fail) {
        const uint32_t child = find_child(added, node, byte);
        if (child != 0 || node == 0)
            return child;
    }
}

// Links nodes in the order of their depth, because a node's `fail` is less deep.
static void link_trie(mz_added *added, uint32_t *queue) {
    uint32_t done = 0, n = 1;
    queue[0] = 0;
    while (done < n) {
        const uint32_t node = queue[done++];
        for (uint32_t child = added->nodes[node].child; child != 0; child = added->nodes[child].sibling) {
            mz_added_node *c = &added->nodes[child];
            c->fail = node == 0 ? 0 : step(added, added->nodes[node].fail, c->byte);
            c->item = c->item >= 0 ? c->item : added->nodes[c->fail].item;
            queue[n++] = child;
        }
    }
}

static mezzo_status build_trie(const char *where, mz_added *added) {
    enum { MOST_BYTES = 4 << 20 };
    size_t bytes = 0;
    uint32_t n = 1;
    for (size_t i = 0; i < added->n; i++)
        bytes += added->items[i].n;
    if (bytes > MOST_BYTES)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'added_tokens': %zu bytes of texts; at most %d are supported", where,
                       bytes, MOST_BYTES);
    uint32_t *queue = mz_alloc(bytes + 1, sizeof *queue);
    added->nodes = mz_alloc(bytes + 1, sizeof *added->nodes);
    if (queue == NULL || added->nodes == NULL) {
        mz_free(queue);
        return MEZZO_ERR_MEMORY;
    }
    added->nodes[0].item = -1;
    for (size_t i = 0; i < added->n; i++) {
        uint32_t node = 0;
        for (size_t k = added->items[i].n; k > 0; k--)
            node = get_child(added, node, (unsigned char)added->items[i].text[k - 1], &n);
        added->nodes[node].item = (int32_t)i;
    }
    link_trie(added, queue);
    mz_free(queue);
    return MEZZO_OK;
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
        words |= a->single_word;
    }
    MEZZO_TRY(build_trie(where, added));
    return words ? mz_pattern_create(where, MZ_PATTERN_PCRE2, letter, sizeof letter - 1, &added->letter) : MEZZO_OK;
}

int32_t mz_added_find(const mz_added *added, const char *text, size_t n) {
    const mz_added_token key = {.text = (char *)(uintptr_t)text, .n = n};
    const mz_added_token *a =
        added->n > 0 ? bsearch(&key, added->items, added->n, sizeof *added->items, compare) : NULL;
    return a != NULL ? a->token : -1;
}

// Finds out whether a letter of a word stands directly before or after.
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

// Walks from the end of the text and notes the longest item at every place that has one.
mezzo_status mz_added_begin(const mz_added *added, mz_added_hits *hits, void *room, const char *text, size_t n,
                            mz_added_walk *out) {
    *out = (mz_added_walk){.added = added, .hits = hits, .room = room, .text = text, .n = n, .next = -1};
    hits->n = 0;
    uint32_t node = 0;
    for (size_t at = n; at > 0 && added->n > 0; at--) {
        node = step(added, node, (unsigned char)text[at - 1]);
        const int32_t item = added->nodes[node].item;
        if (item < 0)
            continue;
        MEZZO_TRY(MZ_RESERVE(hits->items, hits->cap, hits->n + 1));
        hits->items[hits->n++] = (mz_added_hit){at - 1, &added->items[item]};
    }
    return MEZZO_OK;
}

static size_t skip_white(mz_added_walk *w, size_t at) {
    if (at < w->white_from || at > w->white_to) {
        w->white_from = at;
        w->white_to = at + mz_white_until(w->text + at, w->n - at);
    }
    return w->white_to;
}

static mezzo_status find(mz_added_walk *w, size_t *from, size_t *to, int32_t *token) {
    *token = -1;
    while (w->hits->n > 0) {
        const mz_added_hit hit = w->hits->items[--w->hits->n];
        const mz_added_token *a = hit.item;
        if (hit.from < w->at)
            continue;
        *from = hit.from;
        *to = w->at = hit.from + a->n;
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
            *to = skip_white(w, *to);
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
