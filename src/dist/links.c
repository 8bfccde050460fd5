#include "dist/links.h"

#include <math.h>

enum { PIECES = 4, TIMES = 5 };

typedef struct link_run {
    mezzo_device *device;
    mz_group *group;
    mz_rank_report own, *all; // all: [size]
} link_run;

// --- measuring -----------------------------------------------------------------------------------------------------
static mezzo_status fill(link_run *s, float *host, void *data, size_t n) {
    for (size_t i = 0; i < n; i++)
        host[i] = (float)(mz_group_rank_of(s->group) + (int)(i % 7));
    return s->device->backend->write(s->device, data, host, n * sizeof *host);
}

static mezzo_status time_sums(link_run *s, float *host, void *data, size_t n) {
    const int size = mz_group_size(s->group);
    const mz_collective c = {.kind = MZ_ALL_REDUCE_SUM, .send = data, .recv = data, .count = n, .dtype = MEZZO_F32};
    MEZZO_TRY(fill(s, host, data, n));
    MEZZO_TRY(mz_group_run(s->group, s->device, &c));
    MEZZO_TRY(s->device->backend->read(s->device, host, data, n * sizeof *host));
    s->own.sums = 1;
    for (size_t i = 0; i < n; i++)
        s->own.sums = s->own.sums && host[i] == (float)(size * (size - 1) / 2 + size * (int)(i % 7));
    double seconds = INFINITY;
    for (int i = 0; i < TIMES; i++) { // zeros, so that sums stay finite
        MEZZO_TRY(s->device->backend->zero(s->device, data, n * sizeof *host));
        MEZZO_TRY(mz_group_barrier(s->group, "bandwidth"));
        const double began = mz_seconds();
        for (int k = 0; k < PIECES; k++)
            MEZZO_TRY(mz_group_run(s->group, s->device, &c));
        MEZZO_TRY(mezzo_device_sync(s->device));
        seconds = fmin(seconds, (mz_seconds() - began) / PIECES);
    }
    s->own.bandwidth = 2.0 * (size - 1) / size * (double)(n * sizeof *host) / seconds;
    return MEZZO_OK;
}

static mezzo_status measure(link_run *s) {
    const size_t n = s->device->backend->transport != NULL ? (size_t)32 << 20 : (size_t)1 << 20; // 128 and 4 MiB
    float *host = mz_alloc(n, sizeof *host);
    void *data = NULL;
    mezzo_status status =
        host != NULL ? s->device->backend->alloc(s->device, n * sizeof *host, &data) : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK)
        status = time_sums(s, host, data, n);
    s->device->backend->release(s->device, data);
    mz_free(host);
    return status;
}

// --- judging -------------------------------------------------------------------------------------------------------
static void judge(link_run *s) {
    const mz_rank_report *zero = &s->all[0];
    for (int r = 0; r < mz_group_size(s->group); r++) {
        mz_rank_report *one = &s->all[r];
        if (!one->sums)
            snprintf(one->wrong, sizeof one->wrong, "an all-reduce returned wrong numbers");
        else if (strcmp(one->transport, zero->transport) != 0)
            snprintf(one->wrong, sizeof one->wrong, "%s, rank 0 has %s: install the same", one->transport,
                     zero->transport);
        else if (strcmp(one->versions, zero->versions) != 0)
            snprintf(one->wrong, sizeof one->wrong, "versions differ from rank 0's");
        else if (strcmp(one->device, zero->device) != 0)
            snprintf(one->wrong, sizeof one->wrong, "not the same device as rank 0's: steps wait for the slower one");
        else if (fabs(one->clock_skew) > 1 + one->round_trip)
            snprintf(one->wrong, sizeof one->wrong,
                     "its clock differs from rank 0's by %.1f s: file times will be confusing", one->clock_skew);
        else if (one->bandwidth < zero->bandwidth / 4)
            snprintf(one->wrong, sizeof one->wrong, "a quarter of rank 0's bandwidth: check its link");
    }
}

static mezzo_status report_self(link_run *s) {
    mezzo_device_info info;
    MEZZO_TRY(mezzo_device_describe(s->device, &info));
    const int rank = mz_group_rank_of(s->group);
    const mz_group_rank *self = &mz_group_ranks(s->group)[rank];
    s->own = (mz_rank_report){.rank = rank,
                              .host = self->host,
                              .process = self->process,
                              .threads = info.threads,
                              .clock_skew = self->clock_skew,
                              .round_trip = self->round_trip};
    snprintf(s->own.host_name, sizeof s->own.host_name, "%s", self->host_name);
    snprintf(s->own.device, sizeof s->own.device, "%s", info.description);
    snprintf(s->own.versions, sizeof s->own.versions, "%s", info.versions);
    snprintf(s->own.transport, sizeof s->own.transport, "%.63s", mz_group_transport(s->group));
    MEZZO_TRY(measure(s));
    return mz_group_gather(s->group, "report", &s->own, sizeof s->own, s->all);
}

mezzo_status mz_links_report(mz_group *group, mezzo_device *device, mz_rank_report *all) {
    link_run l = {.group = group, .device = device, .all = all};
    MEZZO_TRY(report_self(&l));
    judge(&l);
    return MEZZO_OK;
}
