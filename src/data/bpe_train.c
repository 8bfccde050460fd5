// Learns merges. Every pair of tokens that has occurred has a count; a queue orders the pairs by count, each with the
// words in which it was found. A count in the queue may be stale: an entry whose count differs from its pair's goes
// back into the queue. The order of pairs, and the words of an entry, are those of the `tokenizers` library's trainer.
#include "data/bpe_train.h"

enum { NONE = UINT32_MAX };

typedef struct word {
    size_t begin; // index into `symbols`
    uint32_t n;
    int64_t count;
} word;

typedef struct pair {
    int32_t left, right;
    int64_t count;
    uint32_t list; // of the words in which the present merge made the pair; NONE: it made none
    int32_t merge; // the last merge of this pair; -1: none
} pair;

typedef struct node { // an element of a list of words
    uint32_t word, next;
} node;

typedef struct entry {
    int64_t count;
    uint32_t pair, list;
} entry;

typedef struct trainer {
    mz_bpe *bpe;
    int32_t *symbols;
    size_t n_symbols, cap_symbols;
    word *words;
    size_t n_words, cap_words;
    pair *pairs;
    size_t n_pairs, cap_pairs;
    uint32_t *index; // hash table of pairs; NONE: free
    size_t index_size;
    node *nodes;
    size_t n_nodes, cap_nodes;
    uint32_t free_node;
    entry *queue; // a heap
    size_t n_queue, cap_queue;
    uint32_t *made; // pairs with a list
    size_t n_made, cap_made;
    mz_bpe_merge *merges;
    uint32_t *merge_pair;
    size_t n_merges, cap_merges, cap_merge_pair;
    mz_text text;
} trainer;

static void end_trainer(trainer *t) {
    MZ_FREE(t->symbols, t->words, t->pairs, t->index, t->nodes, t->queue, t->made, t->merges, t->merge_pair);
    mz_text_free(&t->text);
}

// --- words ---------------------------------------------------------------------------------------------------------
// Adds a word; one of a single token has no pair.
static mezzo_status add_word(trainer *t, const char *bytes, uint32_t n, uint64_t count) {
    if (n < 2)
        return MEZZO_OK;
    if (t->n_words == NONE)
        return mz_fail(MEZZO_ERR_INVALID, "more than %u distinct words: train on a part of the texts", NONE);
    MEZZO_TRY(MZ_RESERVE(t->words, t->cap_words, t->n_words + 1));
    MEZZO_TRY(MZ_RESERVE(t->symbols, t->cap_symbols, t->n_symbols + n));
    t->words[t->n_words++] = (word){.begin = t->n_symbols, .n = n, .count = (int64_t)count};
    for (uint32_t i = 0; i < n; i++)
        t->symbols[t->n_symbols++] = t->bpe->byte_token[(unsigned char)bytes[i]];
    return MEZZO_OK;
}

// Takes the words into arrays of their final length, because growing them would double them.
static mezzo_status take_words(trainer *t, mz_word_counts *counts) {
    size_t words = 0, bytes = 0;
    for (size_t i = 0; i < MZ_WORD_SHARDS; i++) {
        words += counts->shards[i].n;
        bytes += counts->shards[i].n_bytes;
    }
    MEZZO_TRY(MZ_RESERVE(t->words, t->cap_words, words));
    MEZZO_TRY(MZ_RESERVE(t->symbols, t->cap_symbols, bytes));
    for (size_t i = 0; i < MZ_WORD_SHARDS; i++) {
        mz_word_table *table = &counts->shards[i];
        for (size_t k = 0; k < table->size; k++)
            if (table->slots[k].count > 0)
                MEZZO_TRY(add_word(t, table->bytes + table->slots[k].at, table->slots[k].n, table->slots[k].count));
        mz_word_table_free(table);
    }
    return MEZZO_OK;
}

// --- pairs ---------------------------------------------------------------------------------------------------------
static size_t find_index(const trainer *t, int32_t left, int32_t right) {
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (size_t at = mz_bpe_hash((const char *)&key, sizeof key) & (t->index_size - 1);;
         at = (at + 1) & (t->index_size - 1)) {
        const uint32_t p = t->index[at];
        if (p == NONE || (t->pairs[p].left == left && t->pairs[p].right == right))
            return at;
    }
}

static mezzo_status grow_index(trainer *t) {
    const size_t size = t->index_size > 0 ? 2 * t->index_size : 1 << 16;
    mz_free(t->index);
    t->index_size = 0;
    MEZZO_TRY(MZ_NEW(t->index, size));
    t->index_size = size;
    for (size_t i = 0; i < size; i++)
        t->index[i] = NONE;
    for (uint32_t i = 0; i < t->n_pairs; i++)
        t->index[find_index(t, t->pairs[i].left, t->pairs[i].right)] = i;
    return MEZZO_OK;
}

static mezzo_status get_pair(trainer *t, int32_t left, int32_t right, uint32_t *out) {
    if (2 * (t->n_pairs + 1) > t->index_size)
        MEZZO_TRY(grow_index(t));
    const size_t at = find_index(t, left, right);
    if (t->index[at] == NONE) {
        MEZZO_TRY(MZ_RESERVE(t->pairs, t->cap_pairs, t->n_pairs + 1));
        t->pairs[t->n_pairs] = (pair){.left = left, .right = right, .list = NONE, .merge = -1};
        t->index[at] = (uint32_t)t->n_pairs++;
    }
    *out = t->index[at];
    return MEZZO_OK;
}

static mezzo_status new_node(trainer *t, uint32_t *out) {
    *out = t->free_node;
    if (*out != NONE) {
        t->free_node = t->nodes[*out].next;
        return MEZZO_OK;
    }
    if (t->n_nodes == NONE)
        return mz_fail(MEZZO_ERR_INVALID, "more than %u places of pairs: train on a part of the texts", NONE);
    MEZZO_TRY(MZ_RESERVE(t->nodes, t->cap_nodes, t->n_nodes + 1));
    *out = (uint32_t)t->n_nodes++;
    return MEZZO_OK;
}

static void free_node(trainer *t, uint32_t i) {
    t->nodes[i].next = t->free_node;
    t->free_node = i;
}

// Records that the pair occurs once more or less often in a word; a pair whose count grows is found there by its next
// entry.
static mezzo_status change(trainer *t, int32_t left, int32_t right, int sign, uint32_t in) {
    uint32_t which = NONE, i = NONE;
    MEZZO_TRY(get_pair(t, left, right, &which));
    pair *p = &t->pairs[which];
    p->count += sign * t->words[in].count;
    if (sign < 0 || (p->list != NONE && t->nodes[p->list].word == in))
        return MEZZO_OK;
    if (p->list == NONE) {
        MEZZO_TRY(MZ_RESERVE(t->made, t->cap_made, t->n_made + 1));
        t->made[t->n_made++] = which;
    }
    MEZZO_TRY(new_node(t, &i));
    t->nodes[i] = (node){.word = in, .next = p->list};
    p->list = i;
    return MEZZO_OK;
}

// --- the queue -----------------------------------------------------------------------------------------------------
static bool is_before(const trainer *t, const entry *a, const entry *b) {
    if (a->count != b->count)
        return a->count > b->count;
    const pair *x = &t->pairs[a->pair], *y = &t->pairs[b->pair];
    return x->left != y->left ? x->left < y->left : x->right < y->right;
}

static mezzo_status push(trainer *t, entry e) {
    MEZZO_TRY(MZ_RESERVE(t->queue, t->cap_queue, t->n_queue + 1));
    size_t at = t->n_queue++;
    for (; at > 0 && is_before(t, &e, &t->queue[(at - 1) / 2]); at = (at - 1) / 2)
        t->queue[at] = t->queue[(at - 1) / 2];
    t->queue[at] = e;
    return MEZZO_OK;
}

static entry pop(trainer *t) {
    const entry first = t->queue[0], last = t->queue[--t->n_queue];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < t->n_queue; at = child) {
        child += child + 1 < t->n_queue && is_before(t, &t->queue[child + 1], &t->queue[child]);
        if (!is_before(t, &t->queue[child], &last))
            break;
        t->queue[at] = t->queue[child];
    }
    t->queue[at] = last;
    return first;
}

static mezzo_status push_made(trainer *t) {
    for (size_t i = 0; i < t->n_made; i++) {
        pair *p = &t->pairs[t->made[i]];
        const uint32_t list = p->list;
        p->list = NONE;
        if (p->count > 0)
            MEZZO_TRY(push(t, (entry){.count = p->count, .pair = t->made[i], .list = list}));
        for (uint32_t k = p->count > 0 ? NONE : list, next; k != NONE; k = next) {
            next = t->nodes[k].next;
            free_node(t, k);
        }
    }
    t->n_made = 0;
    return MEZZO_OK;
}

static mezzo_status count_pairs(trainer *t) {
    MEZZO_TRY(grow_index(t));
    MEZZO_TRY(MZ_RESERVE(t->nodes, t->cap_nodes, t->n_symbols));
    for (uint32_t w = 0; w < t->n_words; w++) {
        const int32_t *s = t->symbols + t->words[w].begin;
        for (uint32_t i = 0; i + 1 < t->words[w].n; i++)
            MEZZO_TRY(change(t, s[i], s[i + 1], 1, w));
    }
    return push_made(t);
}

// --- merging -------------------------------------------------------------------------------------------------------
// Merges the leftmost pair first: tokens before a pair are already merged, tokens after it are not.
static mezzo_status merge_word(trainer *t, const mz_bpe_merge *m, uint32_t in) {
    word *w = &t->words[in];
    int32_t *s = t->symbols + w->begin;
    uint32_t to = 0;
    for (uint32_t i = 0; i < w->n; i++, to++) {
        if (s[i] != m->left || i + 1 == w->n || s[i + 1] != m->right) {
            s[to] = s[i];
            continue;
        }
        if (to > 0) {
            MEZZO_TRY(change(t, s[to - 1], m->left, -1, in));
            MEZZO_TRY(change(t, s[to - 1], m->merged, 1, in));
        }
        i++;
        if (i + 1 < w->n) {
            MEZZO_TRY(change(t, m->right, s[i + 1], -1, in));
            MEZZO_TRY(change(t, m->merged, s[i + 1], 1, in));
        }
        s[to] = m->merged;
    }
    w->n = to;
    return MEZZO_OK;
}

// Finds the token with both parts' bytes, or makes it.
static mezzo_status merged_token(trainer *t, int32_t left, int32_t right, int32_t *out) {
    size_t a, b;
    const char *x = mz_bpe_bytes(t->bpe, left, &a), *y = mz_bpe_bytes(t->bpe, right, &b);
    t->text.len = 0;
    mz_text_add(&t->text, x, a);
    mz_text_add(&t->text, y, b);
    MEZZO_TRY(t->text.status);
    *out = mz_bpe_find(t->bpe, t->text.data, t->text.len);
    return *out >= 0 ? MEZZO_OK : mz_bpe_add_indexed(t->bpe, t->text.data, t->text.len, out);
}

static mezzo_status merge_pair(trainer *t, entry top) {
    mz_bpe_merge m = {.left = t->pairs[top.pair].left, .right = t->pairs[top.pair].right};
    MEZZO_TRY(merged_token(t, m.left, m.right, &m.merged));
    MEZZO_TRY(MZ_RESERVE(t->merges, t->cap_merges, t->n_merges + 1));
    MEZZO_TRY(MZ_RESERVE(t->merge_pair, t->cap_merge_pair, t->n_merges + 1));
    t->pairs[top.pair].merge = (int32_t)t->n_merges;
    t->merge_pair[t->n_merges] = top.pair;
    t->merges[t->n_merges++] = m;
    for (uint32_t i = top.list, next; i != NONE; i = next) {
        next = t->nodes[i].next;
        MEZZO_TRY(merge_word(t, &m, t->nodes[i].word));
        free_node(t, i);
    }
    return push_made(t);
}

static mezzo_status merge_all(trainer *t, int32_t vocab, const volatile sig_atomic_t *stop) {
    static const char what[] = "tokens learnt";
    while (t->bpe->vocab < vocab && t->n_queue > 0) {
        entry top = pop(t);
        const int64_t count = t->pairs[top.pair].count;
        if (top.count != count) {
            top.count = count;
            MEZZO_TRY(push(t, top));
            continue;
        }
        if (count < 1)
            break;
        if (stop != NULL && *stop != 0)
            return mz_fail(MEZZO_ERR_INTERRUPTED, "stopped after %d of %d tokens were learnt", (int)t->bpe->vocab,
                           (int)vocab);
        MEZZO_TRY(merge_pair(t, top));
        if (t->n_merges % 64 == 0)
            mz_work(what, t->bpe->vocab, (int64_t)vocab + 1);
    }
    mz_work(what, 1, 1);
    return MEZZO_OK;
}

// Writes the merges. A pair that was merged twice, because one of its tokens was made twice, counts as the last one.
static mezzo_status keep_merges(const trainer *t) {
    mz_bpe *bpe = t->bpe;
    MEZZO_TRY(MZ_RESERVE(bpe->merges, bpe->cap_merges, t->n_merges + 1));
    for (size_t i = 0; i < t->n_merges; i++)
        if (t->pairs[t->merge_pair[i]].merge == (int32_t)i)
            bpe->merges[bpe->n_merges++] = t->merges[i];
    return MEZZO_OK;
}

mezzo_status mz_bpe_train(mz_bpe *bpe, mz_word_counts *counts, int32_t vocab, const volatile sig_atomic_t *stop) {
    trainer t = {.bpe = bpe, .free_node = NONE};
    mezzo_status status = take_words(&t, counts);
    if (status == MEZZO_OK)
        status = count_pairs(&t);
    if (status == MEZZO_OK)
        status = merge_all(&t, vocab, stop);
    if (status == MEZZO_OK)
        status = keep_merges(&t);
    end_trainer(&t);
    return status;
}
