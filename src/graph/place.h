// Places bytes in memory and time, first fit: for lives that are placed, it finds the lowest offset for the next one
// without a comparison with each.
#ifndef MZ_PLACE_H
#define MZ_PLACE_H

#include "base/base.h"

typedef struct mz_life {
    int value;
    size_t bytes;
    int first, last; // nodes, inclusive
    size_t offset;
} mz_life;

typedef struct mz_taken mz_taken;
typedef struct mz_block mz_block;
enum { MZ_SPANS_OF_TIME = 64 };
typedef struct mz_places {
    mz_taken *list;
    int n, root;
    mz_block *blocks;
    size_t n_blocks, cap_blocks;
    int spare, always[MZ_SPANS_OF_TIME]; // blocks: the first unused one, and the first of those that are taken through
                                         // a span
    int times, width;                    // number of spans, and nodes of each
    size_t looks;                        // number of lives, blocks or whole groups of lives compared so far
} mz_places;

mezzo_status mz_places_open(mz_places *places, size_t most,
                            size_t times); // memory for this many lives; their last node is below `times`
void mz_places_close(mz_places *places);
void mz_places_clear(mz_places *places);
mezzo_status mz_places_take(mz_places *places, const mz_life *life); // adds a life at its own offset
// Returns the lowest offset at which `life` overlaps no life of the same time. A life without bytes is a wall: no other
// lies on both of its sides.
size_t mz_places_lowest(mz_places *places, const mz_life *life);

#endif
