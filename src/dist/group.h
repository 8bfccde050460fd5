// A group is the processes of a job, one for each device. Below train: it knows devices and bytes, no models and no
// steps.
//
// A job of one process has a group of one without threads, sockets or memory of its own; every call returns at once and
// device->comm stays NULL. In a larger job each rank holds one TCP connection to rank 0, which carries small records
// and heartbeats; tensors go by the device's transport (NCCL) or, on CPUs, by MPI, opened at run time.
//
// Failure: when a rank dies, hangs, leaves or gives up, every rank's calls return MEZZO_ERR_IO within seconds, with the
// same one line: "rank 2 (process 4711 on host b) …, in all-reduce 18 since 0.4 s". It is final: the group only closes.
// Calls of a group come from one thread; mz_group_abort from any.
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
// Leaves. Rank 0, and where MPI moves data every rank, waits until all have left or the job has failed. NULL is fine.
void mz_group_close(mz_group *group);
// This rank gives up: all others' calls fail with a line that has this rank and the reason. For a rank that ends by an
// error of its own, before it closes. One line; NULL: mezzo_error_message().
void mz_group_abort(mz_group *group, const char *reason);

typedef struct mz_group_rank { // what each rank reported when it came
    int rank, local_rank;
    int host; // 0 for rank 0's host, then in order of first rank
    int64_t process;
    char host_name[64];
    double clock_skew; // seconds, this rank's wall clock minus rank 0's, about half a round trip exact
    double round_trip; // seconds, of a small record to rank 0 and back
} mz_group_rank;
// NULL: of a group of one, as everywhere below.
int mz_group_rank_of(const mz_group *group); // 0 … size-1
int mz_group_size(const mz_group *group);
int mz_group_host(const mz_group *group);
int mz_group_hosts(const mz_group *group);
// Returns the table of all ranks, in order; lives as long as the group. Of NULL: NULL.
const mz_group_rank *mz_group_ranks(const mz_group *group);
const char *mz_group_transport(const mz_group *group); // "NCCL 2.28.9", "Open MPI v4.1.4 …", "none"

// --- on the device -------------------------------------------------------------------------------------------------
// device->comm->run: what a kernel calls. In a group of one the same by a copy (nothing, in place).
mezzo_status mz_group_run(mz_group *group, mezzo_device *device, const mz_collective *what);

// --- on the host: small records ------------------------------------------------------------------------------------
// `name` is what every rank must be doing, at most 31 bytes: "step record". A rank that calls another name, order or
// size fails the job with a line that has both. Each waits for all ranks, as long as they live (MEZZO_PATIENCE_SECONDS,
// 1800: then a rank that has not come is named and the job fails).
// all[r·bytes …] = rank r's `one`. `all` holds size·bytes; it may hold `one` at its rank's place.
mezzo_status mz_group_gather(mz_group *group, const char *name, const void *one, size_t bytes, void *all);
// Root's bytes into everybody's `data`.
mezzo_status mz_group_broadcast(mz_group *group, const char *name, int root, void *data, size_t bytes);
mezzo_status mz_group_barrier(mz_group *group, const char *name);

// Says where this rank is, for the line about it: "step 120". Copied, at most 47 bytes; costs a few nanoseconds.
void mz_group_at(mz_group *group, const char *place);

// Called once by a thread of the library when a job of this process fails, with the line, before the group's calling
// thread sees the failure and collectives are aborted; it returns soon. `tells`: of all ranks, this one reports it to
// the user. A command sees to it from here that the process ends where that thread does not return (a collective that
// cannot be aborted, a long computation). NULL: no function.
typedef void (*mz_group_failed_fn)(void *user, const char *line, bool tells);
void mz_group_on_failure(mz_group_failed_fn fn, void *user);

#endif
