// Places bytes first fit in space and time: for the lives of those that are placed, it finds the lowest place for more
// without looking at each.
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
    int spare, always[MZ_SPANS_OF_TIME]; // blocks: the first of those not in use, and of those taken through a span
    int times, width;                    // of a span
    size_t looks;                        // at lives, blocks or whole groups of lives, so far
} mz_places;

mezzo_status mz_places_open(mz_places *places, size_t most,
                            size_t times); // room for so many; their last is below times
void mz_places_close(mz_places *places);
void mz_places_clear(mz_places *places);
mezzo_status mz_places_take(mz_places *places, const mz_life *life); // its offset is given
// The lowest offset at which `life` overlaps none that is taken and lives when it does. One without bytes in a place is
// a wall: no other lies on both of its sides.
size_t mz_places_lowest(mz_places *places, const mz_life *life);

#endif
