// Rank 0 has a thread that connects the ranks: it lets them in, carries their records, listens to their heartbeats and
// reports one that is gone. Everything it knows comes through connections; rank 0's own member has one too.
#ifndef MZ_DIST_HUB_H
#define MZ_DIST_HUB_H

#include "dist/group.h"
#include "dist/wire.h"

typedef struct mz_hub mz_hub;
typedef struct mz_patience { // seconds
    double join;             // until all ranks are there
    double silence;          // of a rank, until it counts as hung or lost
    double meeting;          // between the first and the last rank's coming to a record
} mz_patience;
mz_patience mz_patience_read(void); // MEZZO_JOIN_SECONDS, MEZZO_SILENCE_SECONDS, MEZZO_PATIENCE_SECONDS

// Takes listen_fd; own_fd is rank 0's connection, to hub's end of it. The secret is checked of all others.
mezzo_status mz_hub_start(const mz_world *world, const char *secret, int listen_fd, int own_fd, mz_hub **out);
// Waits until all ranks have left, or the job has failed and every rank has the news.
void mz_hub_join(mz_hub *hub);

#endif
