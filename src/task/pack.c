#include "task/pack.h"

enum { EMPTY_BLOCKS = 64 }; // after this many empty blocks in a row, no more pieces are expected

// Says where piece i of the block lies; row -1: nowhere.
typedef struct place {
    int32_t row;
    int64_t column;
} place;

struct mz_packer {
    mz_piece_size *size;
    const void *user;
    uint64_t pieces;
    int64_t length;
    uint64_t *first, *used;          // by block: its first row; the positions of all earlier pieces
    size_t n, cap_first, cap_used;   // n: blocks whose end is known; first and used have n + 1 numbers
    uint64_t block;                  // the block in `places`; UINT64_MAX: none
    place places[MZ_PACK_BLOCK];     // of its pieces
    int64_t free[2 * MZ_PACK_BLOCK]; // a tree: node i has the larger of nodes 2i and 2i + 1, and leaves have the free
                                     // positions of rows
};

mezzo_status mz_packer_create(mz_piece_size *size, const void *user, uint64_t pieces, int64_t length, mz_packer **out) {
    mezzo_status status = MEZZO_ERR_MEMORY;
    mz_packer *p = *out = mz_alloc(1, sizeof *p);
    if (p == NULL)
        return MEZZO_ERR_MEMORY;
    p->size = size;
    p->user = user;
    p->pieces = pieces;
    p->length = length;
    p->block = UINT64_MAX;
    MEZZO_TRY_GOTO(status, MZ_RESERVE(p->first, p->cap_first, 1));
    MEZZO_TRY_GOTO(status, MZ_RESERVE(p->used, p->cap_used, 1));
    p->first[0] = p->used[0] = 0;
    return MEZZO_OK;
fail:
    mz_packer_free(p);
    *out = NULL;
    return status;
}

void mz_packer_free(mz_packer *p) {
    if (p == NULL)
        return;
    MZ_FREE(p->first, p->used, p);
}

// Puts a piece into the first row with enough free positions. A row without pieces has all positions free, so rows are
// opened in order.
static place put(mz_packer *p, int64_t size) {
    size_t node = 1;
    while (node < MZ_PACK_BLOCK)
        node = p->free[2 * node] >= size ? 2 * node : 2 * node + 1;
    const place at = {(int32_t)(node - MZ_PACK_BLOCK), p->length - p->free[node]};
    p->free[node] -= size;
    while ((node /= 2) > 0)
        p->free[node] = p->free[2 * node] > p->free[2 * node + 1] ? p->free[2 * node] : p->free[2 * node + 1];
    return at;
}

// Fills `places`; *rows and *positions belong to the block.
static void pack_block(mz_packer *p, uint64_t block, uint64_t *rows, uint64_t *positions) {
    *rows = *positions = 0;
    for (size_t i = 0; i < MZ_COUNT(p->free); i++)
        p->free[i] = p->length;
    for (uint64_t i = 0; i < MZ_PACK_BLOCK; i++) {
        const uint64_t piece = block * MZ_PACK_BLOCK + i;
        const int64_t size = piece < p->pieces ? p->size(p->user, piece) : 0;
        p->places[i] = size > 0 ? put(p, size) : (place){.row = -1};
        *positions += (uint64_t)size;
        if (p->places[i].row >= 0 && (uint64_t)p->places[i].row >= *rows)
            *rows = (uint64_t)p->places[i].row + 1;
    }
    p->block = block;
}

static uint64_t blocks_of(uint64_t pieces) {
    return pieces / MZ_PACK_BLOCK + (pieces % MZ_PACK_BLOCK != 0);
}

// Packs the next block and notes where it ends.
static mezzo_status learn_block(mz_packer *p) {
    uint64_t rows, positions;
    MEZZO_TRY(MZ_RESERVE(p->first, p->cap_first, p->n + 2));
    MEZZO_TRY(MZ_RESERVE(p->used, p->cap_used, p->n + 2));
    pack_block(p, p->n, &rows, &positions);
    p->first[p->n + 1] = p->first[p->n] + rows;
    p->used[p->n + 1] = p->used[p->n] + positions;
    p->n++;
    return MEZZO_OK;
}

mezzo_status mz_packer_row(mz_packer *p, uint64_t row, mz_packed *out, size_t *n) {
    *n = 0;
    while (p->first[p->n] <= row) {
        if (p->n >= blocks_of(p->pieces))
            return MEZZO_OK;
        MEZZO_TRY(learn_block(p));
        if (p->pieces == UINT64_MAX && p->n >= EMPTY_BLOCKS && p->first[p->n] == p->first[p->n - EMPTY_BLOCKS])
            return mz_fail(MEZZO_ERR_INVALID, "of %d records that were drawn none has a target",
                           EMPTY_BLOCKS * MZ_PACK_BLOCK);
    }
    size_t low = 0, high = p->n; // the last block that begins at or before the row
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        *(p->first[middle] <= row ? &low : &high) = middle;
    }
    uint64_t rows, positions;
    if (p->block != low)
        pack_block(p, low, &rows, &positions);
    const int32_t in_block = (int32_t)(row - p->first[low]);
    for (size_t i = 0; i < MZ_PACK_BLOCK; i++)
        if (p->places[i].row == in_block)
            out[(*n)++] = (mz_packed){low * MZ_PACK_BLOCK + i, p->places[i].column};
    return MEZZO_OK;
}

mezzo_status mz_packer_count(mz_packer *p, uint64_t pieces, uint64_t *rows, uint64_t *positions) {
    const uint64_t blocks = blocks_of(pieces < p->pieces ? pieces : p->pieces);
    while (p->n < blocks)
        MEZZO_TRY(learn_block(p));
    *rows = p->first[blocks];
    *positions = p->used[blocks];
    return MEZZO_OK;
}

void mz_mark_documents(int32_t end, int64_t rows, int64_t length, const int32_t *tokens, int32_t *targets,
                       int32_t *positions) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0, begin = 0; i < length; i++) {
            const int64_t at = r * length + i;
            positions[at] = (int32_t)(i - begin);
            if (tokens[at] == end) {
                targets[at] = -1;
                begin = i + 1;
            }
        }
}
