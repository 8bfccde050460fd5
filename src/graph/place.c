#include "graph/place.h"

// Holds a treap ordered by offset. Each node knows, of its subtree, when lives begin and end, the bytes that it spans
// and its largest gap. If all lives of a subtree overlap the new one and it fits into no gap, the search treats the
// subtree as one block; if none overlap, it skips the subtree.
struct mz_taken {
    size_t offset, end;
    int first, last;
    int left, right; // -1: none
    uint32_t priority;
    int first_least, first_most, last_least, last_most;
    size_t lowest, highest, gap;
};

// A block of bytes that are taken from the first node of a span of time to its last, in order; neighbours are joined. A
// life that touches the span cannot lie there.
struct mz_block {
    size_t from, to;
    int next; // -1: none
};

mezzo_status mz_places_open(mz_places *places, size_t most, size_t times) {
    *places = (mz_places){.list = mz_alloc(most + 1, sizeof *places->list),
                          .times = (int)times,
                          .width = (int)(times / MZ_SPANS_OF_TIME + 1)};
    mz_places_clear(places);
    return places->list != NULL ? MEZZO_OK : mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
}

void mz_places_close(mz_places *places) {
    MZ_FREE(places->list, places->blocks);
    *places = (mz_places){0};
}

void mz_places_clear(mz_places *places) {
    places->n = 0;
    places->n_blocks = 0;
    places->root = places->spare = -1;
    for (int k = 0; k < MZ_SPANS_OF_TIME; ++k)
        places->always[k] = -1;
}

static size_t between(size_t from, size_t to) {
    return to > from ? to - from : 0;
}

static void widen(mz_taken *t, const mz_taken *part) {
    t->first_least = part->first_least < t->first_least ? part->first_least : t->first_least;
    t->first_most = part->first_most > t->first_most ? part->first_most : t->first_most;
    t->last_least = part->last_least < t->last_least ? part->last_least : t->last_least;
    t->last_most = part->last_most > t->last_most ? part->last_most : t->last_most;
    t->gap = part->gap > t->gap ? part->gap : t->gap;
    t->lowest = part->lowest < t->lowest ? part->lowest : t->lowest;
    t->highest = part->highest > t->highest ? part->highest : t->highest;
}

// Updates a node's summary of its subtree from its children.
static void sum_up(const mz_places *p, mz_taken *t) {
    const mz_taken *left = t->left >= 0 ? &p->list[t->left] : NULL, *right = t->right >= 0 ? &p->list[t->right] : NULL;
    t->first_least = t->first_most = t->first;
    t->last_least = t->last_most = t->last;
    t->lowest = t->offset;
    t->highest = t->end;
    t->gap = left != NULL ? between(left->highest, t->offset) : 0;
    if (left != NULL)
        widen(t, left);
    const size_t before = right != NULL ? between(t->highest, right->lowest) : 0;
    t->gap = before > t->gap ? before : t->gap;
    if (right != NULL)
        widen(t, right);
}

static bool is_before(const mz_taken *a, const mz_taken *b) {
    return a->offset != b->offset ? a->offset < b->offset : a->first < b->first;
}

static int insert(mz_places *p, int root, int added) {
    if (root < 0)
        return added;
    mz_taken *t = &p->list[root];
    const bool left = is_before(&p->list[added], t);
    const int below = insert(p, left ? t->left : t->right, added);
    mz_taken *child = &p->list[below];
    if (child->priority <= t->priority) {
        *(left ? &t->left : &t->right) = below;
        sum_up(p, t);
        return root;
    }
    if (left) { // the left child becomes the root
        t->left = child->right;
        child->right = root;
    } else {
        t->right = child->left;
        child->left = root;
    }
    sum_up(p, t);
    sum_up(p, child);
    return below;
}

static uint32_t mixed(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

// --- blocks ----------------------------------------------------------------------------------------------------------
static mezzo_status new_block(mz_places *p, mz_block block, int *out) {
    *out = p->spare;
    if (*out >= 0) {
        p->spare = p->blocks[*out].next;
    } else {
        MEZZO_TRY(MZ_RESERVE(p->blocks, p->cap_blocks, p->n_blocks + 1));
        *out = (int)p->n_blocks++;
    }
    p->blocks[*out] = block;
    return MEZZO_OK;
}

static mezzo_status add_block(mz_places *p, int *first, size_t from, size_t to) {
    int before = -1, at = *first;
    for (; at >= 0 && p->blocks[at].to < from; at = p->blocks[at].next) {
        before = at;
        p->looks++;
    }
    if (at < 0 || p->blocks[at].from > to) {
        int added;
        MEZZO_TRY(new_block(p, (mz_block){from, to, at}, &added));
        *(before >= 0 ? &p->blocks[before].next : first) = added;
        return MEZZO_OK;
    }
    mz_block *b = &p->blocks[at];
    b->from = from < b->from ? from : b->from;
    b->to = to > b->to ? to : b->to;
    for (int next = b->next; next >= 0 && p->blocks[next].from <= b->to; next = b->next) {
        b->to = p->blocks[next].to > b->to ? p->blocks[next].to : b->to;
        b->next = p->blocks[next].next;
        p->blocks[next].next = p->spare;
        p->spare = next;
    }
    return MEZZO_OK;
}

mezzo_status mz_places_take(mz_places *p, const mz_life *life) {
    mz_taken *t = &p->list[p->n];
    *t = (mz_taken){.offset = life->offset,
                    .end = life->offset + life->bytes,
                    .first = life->first,
                    .last = life->last,
                    .left = -1,
                    .right = -1,
                    .priority = mixed((uint32_t)p->n)};
    sum_up(p, t);
    p->root = insert(p, p->root, p->n++);
    for (int k = (t->first + p->width - 1) / p->width; life->bytes > 0 && k < MZ_SPANS_OF_TIME; ++k) {
        const int end = (k + 1) * p->width;
        if (k * p->width >= p->times || t->last < (end < p->times ? end : p->times) - 1)
            break;
        MEZZO_TRY(add_block(p, &p->always[k], t->offset, t->end));
    }
    return MEZZO_OK;
}

// --- the search ----------------------------------------------------------------------------------------------------
// The blocks at or above `at`, of the three spans in which x lives.
typedef struct search {
    mz_places *p;
    const mz_life *x;
    size_t at; // no lower offset is free
    int next[3];
} search;

// Moves `at` past the blocks of these spans.
static void pass_blocks(search *s) {
    const mz_block *blocks = s->p->blocks;
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t k = 0; k < MZ_COUNT(s->next); ++k) {
            int *next = &s->next[k];
            for (; *next >= 0 && blocks[*next].to <= s->at; *next = blocks[*next].next)
                s->p->looks++;
            if (*next >= 0 && blocks[*next].from < s->at + s->x->bytes) {
                s->at = blocks[*next].to;
                moved = true;
            }
        }
    }
}

static void move_past(search *s, size_t end) {
    if (end <= s->at)
        return;
    s->at = end;
    pass_blocks(s);
}

// Moves `at` past the part of the subtree that is in the way. Returns true where the gap before the next life is large
// enough.
static bool pass_by(search *s, int root) {
    const mz_life *x = s->x;
    if (root < 0)
        return false;
    const mz_taken *t = &s->p->list[root];
    s->p->looks++;
    if (t->first_least > x->last || x->first > t->last_most || t->highest <= s->at)
        return false;
    if (t->first_most <= x->last && x->first <= t->last_least) {
        if (t->lowest >= s->at + x->bytes)
            return true;
        if (t->gap < x->bytes) {
            move_past(s, t->highest);
            return false;
        }
    }
    if (pass_by(s, t->left))
        return true;
    if (t->first <= x->last && x->first <= t->last) {
        if (t->offset >= s->at + x->bytes)
            return true;
        move_past(s, t->end);
    }
    return pass_by(s, t->right);
}

size_t mz_places_lowest(mz_places *p, const mz_life *life) {
    const int begin = life->first / p->width, end = life->last / p->width;
    search s = {p, life, 0, {p->always[begin], p->always[end], p->always[begin + (end - begin) / 2]}};
    pass_blocks(&s);
    pass_by(&s, p->root);
    return s.at;
}
