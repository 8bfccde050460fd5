// A rank's member is a thread that holds its connection to the hub: heartbeats, records, and the news that the job has
// failed.
#ifndef MZ_DIST_MEMBER_H
#define MZ_DIST_MEMBER_H

#include "dist/group.h"
#include "dist/wire.h"

typedef struct mz_member mz_member;

// Takes over fd, greets, and waits until all ranks have joined. *refused: rank 0 did not let this rank in, or its
// connection ended before that, so the address may belong to another job.
mezzo_status mz_member_join(const mz_world *world, const char *secret, int fd, double deadline, mz_member **out,
                            bool *refused);
// Announces that this rank sends no more records. wait: until all ranks have announced it; false: the job has failed.
bool mz_member_goodbye(mz_member *m, bool wait);
void mz_member_free(mz_member *m);                      // closes the connection; NULL is allowed
void mz_member_abort(mz_member *m, const char *reason); // returns when the job knows, or after a second

mz_group_rank *mz_member_table(mz_member *m); // for the caller to complete

// Gathers every rank's `one`, `bytes` each or as many as each sent, into `all`, which holds `total`.
mezzo_status mz_member_gather(mz_member *m, const char *name, const void *one, size_t bytes, void *all, size_t total);

bool mz_member_failed(const mz_member *m);
mezzo_status mz_member_check(mz_member *m);
// Begin and end an activity that heartbeats report; for work of a queue they are not called.
void mz_member_begin(mz_member *m, const char *doing, bool waits);
void mz_member_end(mz_member *m);
void mz_member_at(mz_member *m, const char *place);
// Sets the function by which the member's thread aborts the device's collectives; `with` NULL: none.
void mz_member_on_abort(mz_member *m, void (*halt)(void *with), void *with);

#endif
