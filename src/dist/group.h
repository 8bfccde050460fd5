// A group is the processes of a job, one for each device. It is used below train and knows devices and bytes, no models
// and no steps.
//
// A job of one process has a group of one without threads, sockets or memory of its own; every call returns at once and
// device->comm stays NULL. In a larger job each rank holds one TCP connection to rank 0, which carries small records
// and heartbeats; tensors go by the device's transport (NCCL) or, on CPUs, by MPI, opened at run time.
//
// When a rank dies, hangs, leaves or gives up, every rank's calls return MEZZO_ERR_IO within seconds, with the same
// line: "rank 2 (process 4711 on host b) …, in all-reduce 18 since 0.4 s". A failure is final: the group can only be
// closed. Calls of a group come from one thread; mz_group_abort may come from any.
#ifndef MZ_DIST_GROUP_H
#define MZ_DIST_GROUP_H

#include "backend/backend.h"
#include "backend/collective.h"
#include "dist/world.h"

typedef struct mz_group mz_group;

// Meets the other ranks (a minute's patience: MEZZO_JOIN_SECONDS) and connects the device; sets device->comm. device
// NULL: records only. The caller owns *out and closes it before the device. On a GPU transport this is a collective.
// Errors: INVALID (ranks disagree about the job's size or their versions), IO (a rank is missing: the line names
// which; a port is taken; a wrong secret; a rank failed), UNSUPPORTED (no MPI in this build, no NCCL here), MEMORY.
mezzo_status mz_group_open(const mz_world *world, mezzo_device *device, mz_group **out);
// Leaves the group. Rank 0, and every rank where MPI moves data, waits until all have left or the job has failed. NULL
// is allowed.
void mz_group_close(mz_group *group);
// Gives up: all other ranks' calls fail with a line that names this rank and the reason. A rank that ends by an error
// of its own calls it before it closes. reason: one line; NULL: mezzo_error_message().
void mz_group_abort(mz_group *group, const char *reason);

typedef struct mz_group_rank { // what each rank reported when it joined
    int rank, local_rank;
    int host; // 0 for rank 0's host, then in the order of each host's first rank
    int64_t process;
    char host_name[64];
    double clock_skew; // seconds: this rank's wall clock minus rank 0's, to within about half a round trip
    double round_trip; // seconds from this rank to rank 0 and back, for a small record
} mz_group_rank;
// With NULL these functions describe a group of one.
int mz_group_rank_of(const mz_group *group); // 0 … size-1
int mz_group_size(const mz_group *group);
int mz_group_host(const mz_group *group);
int mz_group_hosts(const mz_group *group);
// Returns the table of all ranks, in order, which lives as long as the group; NULL for NULL.
const mz_group_rank *mz_group_ranks(const mz_group *group);
const char *mz_group_transport(const mz_group *group); // "NCCL 2.28.9", "Open MPI v4.1.4 …", "none"

// --- on the device -------------------------------------------------------------------------------------------------
// Runs a collective, as device->comm->run does for kernels. In a group of one it copies (in place it does nothing).
mezzo_status mz_group_run(mz_group *group, mezzo_device *device, const mz_collective *what);

// --- on the host: small records ------------------------------------------------------------------------------------
// Gathers small records: all[r·bytes …] = rank r's `one`. `all` holds size·bytes; it may hold `one` at its rank's
// place.
// `name` says what every rank must be doing, in at most 31 bytes: "step record". A rank that calls with another name,
// order or size fails the job with a line that has both. Each call waits for all ranks, as long as they live
// (MEZZO_PATIENCE_SECONDS, 1800: after that a rank that has not called is named, and the job fails).
mezzo_status mz_group_gather(mz_group *group, const char *name, const void *one, size_t bytes, void *all);
// Copies root's bytes into every rank's `data`.
mezzo_status mz_group_broadcast(mz_group *group, const char *name, int root, void *data, size_t bytes);
mezzo_status mz_group_barrier(mz_group *group, const char *name);

// Notes where this rank is, for the line about it: "step 120". It copies at most 47 bytes and costs a few nanoseconds.
void mz_group_at(mz_group *group, const char *place);

// Is called once by a thread of the library when a job of this process fails, with the line, before the group's calling
// thread sees the failure and collectives are aborted; it returns soon. `tells`: of all ranks, this one reports it to
// the user. The command then makes sure that the process ends where that thread does not return (a collective that
// cannot be aborted, a long computation). NULL: no function.
typedef void (*mz_group_failed_fn)(void *user, const char *line, bool tells);
void mz_group_on_failure(mz_group_failed_fn fn, void *user);

#endif
