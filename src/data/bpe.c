// Holds the tables of byte-pair encoding, and merges words.
#include "data/bpe.h"

#include "io/utf8.h"

mz_bpe mz_bpe_of_bytes(void) {
    mz_bpe bpe = {.unknown = -1};
    for (int i = 0; i < 256; i++)
        bpe.fallback_token[i] = -1;
    return bpe;
}

void mz_bpe_free(mz_bpe *bpe) {
    MZ_FREE(bpe->bytes, bpe->ends, bpe->merges, bpe->pairs, bpe->words, bpe->made, bpe->joints);
    *bpe = (mz_bpe){0};
}

// --- hash tables: open addressing, at most half full ---------------------------------------------------------------
static uint64_t mix(uint64_t h) { // the finisher of splitmix64
    h = (h ^ h >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    h = (h ^ h >> 27) * UINT64_C(0x94D049BB133111EB);
    return h ^ h >> 31;
}

uint64_t mz_bpe_hash(const char *bytes, size_t n) {
    uint64_t h = n * UINT64_C(0x9E3779B97F4A7C15);
    for (; n >= 8; bytes += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        h = mix(h ^ word);
    }
    uint64_t rest = 0;
    for (size_t i = 0; i < n; i++)
        rest |= (uint64_t)(unsigned char)bytes[i] << 8 * i;
    return mix(h ^ rest);
}

static uint64_t hash_pair(int32_t left, int32_t right) {
    return mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

static size_t table_size(size_t entries) {
    size_t size = 16;
    while (size < 2 * entries)
        size *= 2;
    return size;
}

// Returns the slot of these bytes, or the free one where they belong.
static size_t word_slot(const mz_bpe *bpe, const char *bytes, size_t n, uint64_t hash) {
    for (size_t at = hash & bpe->word_mask;; at = (at + 1) & bpe->word_mask) {
        const mz_bpe_word *w = &bpe->words[at];
        if (w->token < 0)
            return at;
        size_t width;
        if (w->hash != (uint32_t)(hash >> 32))
            continue;
        const char *there = mz_bpe_bytes(bpe, w->token, &width);
        if (width == n && memcmp(there, bytes, n) == 0)
            return at;
    }
}

int32_t mz_bpe_find(const mz_bpe *bpe, const char *bytes, size_t n) {
    return bpe->words[word_slot(bpe, bytes, n, mz_bpe_hash(bytes, n))].token;
}

static bool same_rules(const mz_bpe *a, const mz_bpe *b) {
    return a->characters == b->characters && a->whole_first == b->whole_first && a->fuse_unknown == b->fuse_unknown &&
           a->unknown == b->unknown && memcmp(a->fallback_token, b->fallback_token, sizeof a->fallback_token) == 0;
}

bool mz_bpe_same(const mz_bpe *a, const mz_bpe *b) {
    return same_rules(a, b) && a->vocab == b->vocab && a->n_bytes == b->n_bytes && a->n_merges == b->n_merges &&
           memcmp(a->ends, b->ends, (size_t)a->vocab * sizeof *a->ends) == 0 &&
           memcmp(a->bytes, b->bytes, a->n_bytes) == 0 &&
           (a->n_merges == 0 || memcmp(a->merges, b->merges, a->n_merges * sizeof *a->merges) == 0);
}

static mz_bpe_pair *pair_slot(const mz_bpe *bpe, int32_t left, int32_t right) {
    for (size_t at = hash_pair(left, right) & bpe->pair_mask;; at = (at + 1) & bpe->pair_mask) {
        mz_bpe_pair *p = &bpe->pairs[at];
        if (p->left < 0 || (p->left == left && p->right == right))
            return p;
    }
}

// --- building ------------------------------------------------------------------------------------------------------
mezzo_status mz_bpe_add_token(mz_bpe *bpe, const char *bytes, size_t n) {
    MEZZO_TRY(MZ_RESERVE(bpe->bytes, bpe->cap_bytes, bpe->n_bytes + n + 1));
    MEZZO_TRY(MZ_RESERVE(bpe->ends, bpe->cap_ends, (size_t)bpe->vocab + 1));
    memcpy(bpe->bytes + bpe->n_bytes, bytes, n);
    bpe->n_bytes += n;
    bpe->ends[bpe->vocab++] = bpe->n_bytes;
    if (n > bpe->max_bytes)
        bpe->max_bytes = n;
    return MEZZO_OK;
}

// Enters a token into the table of words; returns false where another token has its bytes.
static bool enter_word(mz_bpe *bpe, int32_t token) {
    size_t n;
    const char *bytes = mz_bpe_bytes(bpe, token, &n);
    uint64_t hash = mz_bpe_hash(bytes, n);
    mz_bpe_word *slot = &bpe->words[word_slot(bpe, bytes, n, hash)];
    if (slot->token >= 0)
        return false;
    *slot = (mz_bpe_word){(uint32_t)(hash >> 32), token};
    return true;
}

// Marks a token that is the first one of a word.
static void mark_first(mz_bpe *bpe, int32_t token) {
    size_t n;
    uint32_t code;
    const char *bytes = mz_bpe_bytes(bpe, token, &n);
    if (n == 1 || (bpe->characters && n > 0 && mz_utf8_decode(bytes, n, &code) == n))
        bpe->made[token] = MZ_BPE_MADE;
}

mezzo_status mz_bpe_index(mz_bpe *bpe, size_t tokens, size_t merges, const bool *aside, int32_t *twice) {
    size_t words = table_size(tokens), pairs = table_size(merges);
    *twice = -1;
    bpe->words = mz_alloc(words, sizeof *bpe->words);
    bpe->pairs = mz_alloc(pairs, sizeof *bpe->pairs);
    bpe->made = mz_alloc(tokens + 1, 1);
    if (!bpe->words || !bpe->pairs || !bpe->made)
        return MEZZO_ERR_MEMORY;
    bpe->word_mask = words - 1;
    bpe->pair_mask = pairs - 1;
    for (size_t i = 0; i < words; i++)
        bpe->words[i].token = -1;
    for (size_t i = 0; i < pairs; i++)
        bpe->pairs[i].left = -1;
    for (int32_t t = 0; t < bpe->vocab && *twice < 0; t++) {
        if (aside != NULL && aside[t])
            continue;
        if (!enter_word(bpe, t))
            *twice = t;
        mark_first(bpe, t);
    }
    for (int i = 0; i < 256; i++) {
        char byte = (char)i;
        bpe->byte_token[i] = mz_bpe_find(bpe, &byte, 1);
    }
    return MEZZO_OK;
}

mezzo_status mz_bpe_add_indexed(mz_bpe *bpe, const char *bytes, size_t n, int32_t *token) {
    *token = bpe->vocab;
    MEZZO_TRY(mz_bpe_add_token(bpe, bytes, n));
    enter_word(bpe, *token);
    return MEZZO_OK;
}

mezzo_status mz_bpe_add_merge(mz_bpe *bpe, mz_bpe_merge merge, bool *added) {
    mz_bpe_pair *slot = pair_slot(bpe, merge.left, merge.right);
    *added = slot->left < 0;
    if (!*added)
        return MEZZO_OK;
    MEZZO_TRY(MZ_RESERVE(bpe->merges, bpe->cap_merges, bpe->n_merges + 1));
    *slot = (mz_bpe_pair){merge.left, merge.right, (int32_t)bpe->n_merges, merge.merged};
    bpe->merges[bpe->n_merges++] = merge;
    bpe->made[merge.merged] = MZ_BPE_MADE;
    return MEZZO_OK;
}

// --- the first tokens of a word ------------------------------------------------------------------------------------
static mezzo_status fail_character(const char *word, size_t width) {
    uint32_t code = (unsigned char)word[0];
    const bool whole = mz_utf8_decode(word, width, &code) > 0;
    return mz_fail(MEZZO_ERR_INVALID, "%s %s%02X is not among the tokenizer's", whole ? "character" : "byte",
                   whole ? "U+" : "0x", (unsigned)code);
}

// Finds the tokens of a character's bytes; returns false where one has none.
static bool fall_back(const mz_bpe *bpe, const char *bytes, size_t n, int32_t *tokens) {
    for (size_t i = 0; i < n; i++) {
        tokens[i] = bpe->fallback_token[(unsigned char)bytes[i]];
        if (tokens[i] < 0)
            return false;
    }
    return true;
}

static mezzo_status first_characters(const mz_bpe *bpe, const char *word, size_t n, int32_t *tokens, size_t *count) {
    bool unknown = false; // the last character was unknown
    *count = 0;
    for (size_t at = 0, width; at < n; at += width) {
        uint32_t code;
        width = mz_utf8_decode(word + at, n - at, &code);
        width += width == 0; // a byte that is no UTF-8
        int32_t *token = tokens + *count;
        *token = bpe->words[word_slot(bpe, word + at, width, mz_bpe_hash(word + at, width))].token;
        const bool fused = *token < 0 && unknown && bpe->fuse_unknown;
        if (*token >= 0) {
            ++*count;
            unknown = false;
        } else if (fall_back(bpe, word + at, width, token)) {
            *count += width;
            unknown = false;
        } else if (bpe->unknown < 0) {
            return fail_character(word + at, width);
        } else if (!fused) {
            *token = bpe->unknown;
            ++*count;
            unknown = true;
        }
    }
    return MEZZO_OK;
}

static mezzo_status first_tokens(const mz_bpe *bpe, const char *word, size_t n, int32_t *tokens, size_t *count) {
    if (bpe->characters)
        return first_characters(bpe, word, n, tokens, count);
    bool missing = false, unknown = false;
    *count = n;
    for (size_t i = 0; i < n; i++) {
        tokens[i] = bpe->byte_token[(unsigned char)word[i]];
        missing |= tokens[i] < 0;
    }
    if (!missing)
        return MEZZO_OK;
    *count = 0;
    for (size_t i = 0; i < n; i++) {
        const int32_t token = tokens[i];
        if (token < 0 && bpe->unknown < 0)
            return fail_character(word + i, 1);
        if (token < 0 && unknown && bpe->fuse_unknown)
            continue;
        unknown = token < 0;
        tokens[(*count)++] = unknown ? bpe->unknown : token;
    }
    return MEZZO_OK;
}

// --- merging: short words ------------------------------------------------------------------------------------------
#define SHORT_WORD 96 // in tokens; longer words use the heap, whose time does not grow with the square

// Merges a short word: it keeps the ranks of all neighbours, and each round searches for the least, because words have
// few tokens.
static size_t merge_short(const mz_bpe *bpe, size_t n, int32_t *tokens) {
    int32_t ranks[SHORT_WORD], merged[SHORT_WORD]; // of the pair of tokens i and i + 1
    for (size_t i = 0; i + 1 < n; i++) {
        const mz_bpe_pair *p = pair_slot(bpe, tokens[i], tokens[i + 1]);
        ranks[i] = p->left < 0 ? INT32_MAX : p->rank;
        merged[i] = p->merged;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == INT32_MAX)
            break;
        tokens[best] = merged[best];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            tokens[i] = tokens[i + 1];
            ranks[i - 1] = ranks[i];
            merged[i - 1] = merged[i];
        }
        for (size_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const mz_bpe_pair *p = pair_slot(bpe, tokens[i], tokens[i + 1]);
            ranks[i] = p->left < 0 ? INT32_MAX : p->rank;
            merged[i] = p->merged;
        }
    }
    return n;
}

// --- merging: long words -------------------------------------------------------------------------------------------
// A long word is a linked list of tokens, and a heap has its mergeable neighbours by (rank, position). An entry becomes
// stale when one of its neighbours is merged away; its tokens show that.
typedef struct node {
    int32_t token;       // -1: it was merged into the token before
    uint32_t prev, next; // n: there is none
} node;
typedef struct candidate {
    int32_t rank;
    uint32_t at;
    int32_t left, right;
} candidate;
typedef struct heap {
    candidate *items;
    size_t n;
} heap;

static bool before(const candidate *a, const candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(heap *h, candidate c) {
    size_t at = h->n++;
    for (; at > 0 && before(&c, &h->items[(at - 1) / 2]); at = (at - 1) / 2)
        h->items[at] = h->items[(at - 1) / 2];
    h->items[at] = c;
}

static candidate pop(heap *h) {
    candidate least = h->items[0], moved = h->items[--h->n];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < h->n; at = child) {
        if (child + 1 < h->n && before(&h->items[child + 1], &h->items[child]))
            child++;
        if (!before(&h->items[child], &moved))
            break;
        h->items[at] = h->items[child];
    }
    h->items[at] = moved;
    return least;
}

static void propose(const mz_bpe *bpe, heap *h, const node *nodes, uint32_t left, uint32_t n) {
    if (left >= n || nodes[left].next >= n)
        return;
    int32_t a = nodes[left].token, b = nodes[nodes[left].next].token;
    const mz_bpe_pair *p = pair_slot(bpe, a, b);
    if (p->left >= 0)
        push(h, (candidate){p->rank, left, a, b});
}

static mezzo_status reserve_scratch(mz_bpe_scratch *scratch, size_t bytes) {
    if (bytes <= scratch->bytes)
        return MEZZO_OK;
    mz_free(scratch->data);
    scratch->bytes = 0;
    scratch->data = mz_alloc(bytes, 1);
    if (!scratch->data)
        return MEZZO_ERR_MEMORY;
    scratch->bytes = bytes;
    return MEZZO_OK;
}

static mezzo_status merge_long(const mz_bpe *bpe, mz_bpe_scratch *scratch, size_t first, int32_t *tokens,
                               size_t *count) {
    if (first > UINT32_MAX / 2)
        return mz_fail(MEZZO_ERR_INVALID, "a word of %zu bytes; at most %u can be encoded", first, UINT32_MAX / 2);
    uint32_t n = (uint32_t)first;
    // Each merge removes one candidate and adds at most two, so there are never more than 3 × n.
    size_t node_bytes = mz_align_up(first * sizeof(node), 64);
    MEZZO_TRY(reserve_scratch(scratch, node_bytes + 3 * first * sizeof(candidate)));
    node *nodes = scratch->data;
    heap h = {(candidate *)(void *)((char *)scratch->data + node_bytes), 0};
    for (uint32_t i = 0; i < n; i++)
        nodes[i] = (node){tokens[i], i > 0 ? i - 1 : n, i + 1};
    for (uint32_t i = 0; i + 1 < n; i++)
        propose(bpe, &h, nodes, i, n);
    while (h.n > 0) {
        candidate c = pop(&h);
        node *left = &nodes[c.at];
        if (left->token != c.left || left->next >= n || nodes[left->next].token != c.right)
            continue;
        uint32_t gone = left->next;
        left->token = pair_slot(bpe, c.left, c.right)->merged;
        left->next = nodes[gone].next;
        nodes[gone].token = -1;
        if (left->next < n)
            nodes[left->next].prev = c.at;
        propose(bpe, &h, nodes, left->prev, n);
        propose(bpe, &h, nodes, c.at, n);
    }
    *count = 0;
    for (uint32_t i = 0; i < n; i = nodes[i].next)
        tokens[(*count)++] = nodes[i].token;
    return MEZZO_OK;
}

// --- words ---------------------------------------------------------------------------------------------------------
// Names and rare words repeat: the cache keeps words of up to 24 bytes that are more than one token, the last one in
// each slot.
#define CACHE_SLOTS 8192
enum { CACHE_BYTES = 24, CACHE_TOKENS = 8 };
struct mz_bpe_cached {
    unsigned char n, count;
    char word[CACHE_BYTES];
    int32_t tokens[CACHE_TOKENS];
};

void mz_bpe_scratch_free(mz_bpe_scratch *scratch) {
    MZ_FREE(scratch->data, scratch->cache);
    *scratch = (mz_bpe_scratch){0};
}

static mezzo_status encode_cached(const mz_bpe *bpe, mz_bpe_scratch *scratch, const char *word, size_t n, uint64_t hash,
                                  int32_t *tokens, size_t *count) {
    if (!scratch->cache) {
        MEZZO_TRY(MZ_NEW(scratch->cache, CACHE_SLOTS));
    }
    struct mz_bpe_cached *c = &scratch->cache[(hash >> 16) % CACHE_SLOTS];
    if (c->n == n && memcmp(c->word, word, n) == 0) {
        memcpy(tokens, c->tokens, c->count * sizeof *tokens);
        *count = c->count;
        return MEZZO_OK;
    }
    size_t first;
    MEZZO_TRY(first_tokens(bpe, word, n, tokens, &first));
    *count = merge_short(bpe, first, tokens);
    if (*count <= CACHE_TOKENS) {
        c->n = (unsigned char)n;
        c->count = (unsigned char)*count;
        memcpy(c->word, word, n);
        memcpy(c->tokens, tokens, *count * sizeof *tokens);
    }
    return MEZZO_OK;
}

// Encodes a word that no merge divides further: its inside has no joint.
static mezzo_status encode_part(const mz_bpe *bpe, mz_bpe_scratch *scratch, const char *word, size_t n, int32_t *tokens,
                                size_t *count) {
    uint64_t hash = 0;
    if (n <= bpe->max_bytes || n <= CACHE_BYTES) {
        hash = mz_bpe_hash(word, n);
        int32_t whole = bpe->words[word_slot(bpe, word, n, hash)].token;
        if (whole >= 0 && (bpe->made[whole] & MZ_BPE_WHOLE)) {
            tokens[0] = whole;
            *count = 1;
            return MEZZO_OK;
        }
    }
    if (n <= CACHE_BYTES)
        return encode_cached(bpe, scratch, word, n, hash, tokens, count);
    size_t first;
    MEZZO_TRY(first_tokens(bpe, word, n, tokens, &first));
    if (first > SHORT_WORD)
        return merge_long(bpe, scratch, first, tokens, count);
    *count = merge_short(bpe, first, tokens);
    return MEZZO_OK;
}

// --- joints --------------------------------------------------------------------------------------------------------
// A joint is a place between two characters of which no merge ends with one and begins with the other, so that no token
// contains both. A long word is divided there, which limits the time and memory for words that are whole texts.
enum { HASH_BITS = 10, HASHES = 1 << HASH_BITS };

static unsigned hash_character(const char *text, size_t n) {
    uint32_t code = 0;
    if (mz_utf8_decode(text, n, &code) == 0)
        code = 0x110000u + (unsigned char)text[0];
    return code * UINT32_C(2654435761) >> (32 - HASH_BITS);
}

static const char *last_character(const char *text, size_t n) {
    const char *at = text + n - 1;
    while (at > text && text + n - at < 4 && ((unsigned char)*at & 0xC0) == 0x80)
        at--;
    return at;
}

static mezzo_status find_joints(mz_bpe *bpe) {
    const bool fuses = bpe->unknown >= 0 && bpe->fuse_unknown; // unknown characters fuse across joints
    bool bytes = true;
    for (int i = 0; i < 256; i++) {
        bytes &= bpe->fallback_token[i] >= 0;
        if (bpe->fallback_token[i] >= 0)
            bpe->made[bpe->fallback_token[i]] |= MZ_BPE_FALLBACK;
    }
    if (!bpe->characters || (fuses && !bytes))
        return MEZZO_OK;
    for (size_t i = 0; i < bpe->n_merges; i++) // the merge of a byte's token does not begin or end like its text
        if ((bpe->made[bpe->merges[i].left] | bpe->made[bpe->merges[i].right]) & MZ_BPE_FALLBACK)
            return MEZZO_OK;
    MEZZO_TRY(MZ_NEW(bpe->joints, (size_t)HASHES * HASHES / 64));
    for (size_t i = 0; i < bpe->n_merges; i++) {
        size_t a, b;
        const char *left = mz_bpe_bytes(bpe, bpe->merges[i].left, &a),
                   *right = mz_bpe_bytes(bpe, bpe->merges[i].right, &b);
        const char *last = last_character(left, a);
        const unsigned bit = hash_character(last, a - (size_t)(last - left)) << HASH_BITS | hash_character(right, b);
        bpe->joints[bit / 64] |= UINT64_C(1) << bit % 64;
    }
    return MEZZO_OK;
}

bool mz_bpe_joins(const mz_bpe *bpe, const char *left, size_t a, const char *right, size_t b) {
    const unsigned bit = hash_character(left, a) << HASH_BITS | hash_character(right, b);
    return bpe->joints == NULL || (bpe->joints[bit / 64] >> bit % 64 & 1);
}

static mezzo_status encode_joints(const mz_bpe *bpe, mz_bpe_scratch *scratch, const char *word, size_t n,
                                  int32_t *tokens, size_t *count) {
    size_t begun = 0, made;
    unsigned before = 0;
    *count = 0;
    for (size_t at = 0, width; at < n; at += width) {
        uint32_t code;
        width = mz_utf8_decode(word + at, n - at, &code);
        width += width == 0;
        const unsigned here = hash_character(word + at, width), bit = before << HASH_BITS | here;
        before = here;
        if (at == 0 || (bpe->joints[bit / 64] >> bit % 64 & 1))
            continue;
        MEZZO_TRY(encode_part(bpe, scratch, word + begun, at - begun, tokens + *count, &made));
        *count += made;
        begun = at;
    }
    MEZZO_TRY(encode_part(bpe, scratch, word + begun, n - begun, tokens + *count, &made));
    *count += made;
    return MEZZO_OK;
}

mezzo_status mz_bpe_encode_word(const mz_bpe *bpe, mz_bpe_scratch *scratch, const char *word, size_t n, int32_t *tokens,
                                size_t *count) {
    if (bpe->whole_first && n <= bpe->max_bytes) {
        const int32_t whole = mz_bpe_find(bpe, word, n);
        if (whole >= 0) {
            tokens[0] = whole;
            *count = 1;
            return MEZZO_OK;
        }
    }
    return bpe->joints != NULL && n > CACHE_BYTES ? encode_joints(bpe, scratch, word, n, tokens, count)
                                                  : encode_part(bpe, scratch, word, n, tokens, count);
}

// Prepares encoding. Most words of a text are one token, so the function finds here, once, which tokens merging
// reaches.
mezzo_status mz_bpe_finish(mz_bpe *bpe) {
    mezzo_status status = MEZZO_OK;
    mz_bpe_scratch scratch = {0};
    int32_t *tokens;
    MEZZO_TRY(MZ_NEW(tokens, bpe->max_bytes + 1));
    for (int32_t t = 0; t < bpe->vocab && status == MEZZO_OK; t++) {
        size_t n, first, count = 0;
        const char *bytes = mz_bpe_bytes(bpe, t, &n);
        if (!(bpe->made[t] & MZ_BPE_MADE) || first_tokens(bpe, bytes, n, tokens, &first) != MEZZO_OK)
            continue;
        if (first <= SHORT_WORD)
            count = merge_short(bpe, first, tokens);
        else
            status = merge_long(bpe, &scratch, first, tokens, &count);
        if (status == MEZZO_OK && count == 1 && tokens[0] == t)
            bpe->made[t] |= MZ_BPE_WHOLE;
    }
    mz_bpe_scratch_free(&scratch);
    mz_free(tokens);
    return status == MEZZO_OK ? find_joints(bpe) : status;
}
