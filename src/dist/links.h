// Measures the links of a job: how fast its ranks exchange data, and whether they agree on device, versions and time.
#ifndef MZ_DIST_LINKS_H
#define MZ_DIST_LINKS_H

#include "dist/group.h"

typedef struct mz_rank_report {
    int rank, host;
    int64_t process;
    char host_name[64], device[160], versions[160], transport[64];
    int threads;
    double clock_skew, round_trip; // seconds
    double bandwidth;              // bytes a second of the bus, as NCCL counts: 2 (n-1)/n · bytes / time
    int sums;                      // 1: an all-reduce had the right result
    char wrong[240];               // what is wrong; "": nothing
} mz_rank_report;

// Measures a group; every rank calls it, sums numbers with the others and is timed. all[size]: the reports of all
// ranks, judged against rank 0's.
mezzo_status mz_links_report(mz_group *group, mezzo_device *device, mz_rank_report *all);

#endif
