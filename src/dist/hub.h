// Rank 0's hub is a thread that connects the ranks: it lets them in, carries their records, listens to their heartbeats
// and reports a rank that is gone. It learns everything through connections; rank 0's own member has one, too.
#ifndef MZ_DIST_HUB_H
#define MZ_DIST_HUB_H

#include "dist/group.h"
#include "dist/wire.h"

typedef struct mz_hub mz_hub;
typedef struct mz_patience { // in seconds
    double join;             // until all ranks have joined
    double silence;          // without a sign of a rank, until it counts as hung or lost
    double meeting;          // between the first and the last rank's call for a record
} mz_patience;
mz_patience mz_patience_read(void); // reads MEZZO_JOIN_SECONDS, MEZZO_SILENCE_SECONDS, MEZZO_PATIENCE_SECONDS

// Starts the hub, which takes over listen_fd; own_fd is the hub's end of rank 0's connection. All other connections
// must have the secret.
mezzo_status mz_hub_start(const mz_world *world, const char *secret, int listen_fd, int own_fd, mz_hub **out);
// Waits until all ranks have left, or the job has failed and every rank knows it.
void mz_hub_join(mz_hub *hub);

#endif
