// A rank's thread holds its connection to the hub: heartbeats, records, and the news that the job failed.
#ifndef MZ_DIST_MEMBER_H
#define MZ_DIST_MEMBER_H

#include "dist/group.h"
#include "dist/wire.h"

typedef struct mz_member mz_member;

// Takes fd, greets, and waits until all ranks are there. *refused: rank 0 did not let this rank in, or its connection
// ended before: what is at that address may be another job's.
mezzo_status mz_member_join(const mz_world *world, const char *secret, int fd, double deadline, mz_member **out,
                            bool *refused);
// Says that this rank sends no more records. wait: until all ranks have said so; false: the job has failed.
bool mz_member_goodbye(mz_member *m, bool wait);
void mz_member_free(mz_member *m);                      // closes the connection; NULL is fine
void mz_member_abort(mz_member *m, const char *reason); // returns when the job knows, or after a second

mz_group_rank *mz_member_table(mz_member *m); // to complete it

// Everybody's `one`, `bytes` each or as many as each sent, into `all`, which holds `total`.
mezzo_status mz_member_gather(mz_member *m, const char *name, const void *one, size_t bytes, void *all, size_t total);

bool mz_member_failed(const mz_member *m);
mezzo_status mz_member_check(mz_member *m);
// Sets and ends what heartbeats say of this rank's work; queues do not call it. end: it is done; not called for what a
// queue does.
void mz_member_begin(mz_member *m, const char *doing, bool waits);
void mz_member_end(mz_member *m);
void mz_member_at(mz_member *m, const char *place);
// Sets the function that aborts the device's collectives, from the member's thread; `with` NULL: nothing.
void mz_member_on_abort(mz_member *m, void (*halt)(void *with), void *with);

#endif
