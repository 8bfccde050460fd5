// mezzo doctor --ranks: what each rank of the job has, how they reach each other, and what is wrong.
#include <math.h>

#include "cli.h"
#include "dist/group.h"

enum { PIECES = 4, TIMES = 5 };

typedef struct rank_report {
    int rank, host;
    int64_t process;
    char host_name[64], device[160], versions[160], transport[64];
    int threads;
    double clock_skew, round_trip; // seconds
    double bandwidth;              // bytes a second, of the bus as NCCL counts: 2 (n-1)/n · bytes / time
    int sums;                      // 1: an all-reduce gave the right numbers
    char wrong[240];               // "" = nothing
} rank_report;

typedef struct session {
    const cli_args *args;
    mz_world world;
    mezzo_device *device;
    mz_group *group;
    rank_report own, *all; // all: [size]
} session;

// --- measuring -----------------------------------------------------------------------------------------------------
static mezzo_status fill(session *s, float *host, void *data, size_t n) {
    for (size_t i = 0; i < n; i++)
        host[i] = (float)(mz_group_rank_of(s->group) + (int)(i % 7));
    return s->device->backend->write(s->device, data, host, n * sizeof *host);
}

static mezzo_status time_sums(session *s, float *host, void *data, size_t n) {
    const int size = mz_group_size(s->group);
    const mz_collective c = {MZ_ALL_REDUCE_SUM, data, data, n, MEZZO_F32, 0};
    MEZZO_TRY(fill(s, host, data, n));
    MEZZO_TRY(mz_group_run(s->group, s->device, &c));
    MEZZO_TRY(s->device->backend->read(s->device, host, data, n * sizeof *host));
    s->own.sums = 1;
    for (size_t i = 0; i < n; i++)
        s->own.sums = s->own.sums && host[i] == (float)(size * (size - 1) / 2 + size * (int)(i % 7));
    double seconds = INFINITY;
    for (int i = 0; i < TIMES; i++) { // of zeros: sums stay finite
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

static mezzo_status measure(session *s) {
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
static void judge(session *s) {
    const rank_report *zero = &s->all[0];
    for (int r = 0; r < mz_group_size(s->group); r++) {
        rank_report *one = &s->all[r];
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

static const char *judged(const void *row, char *buf, size_t size) {
    const rank_report *r = row;
    snprintf(buf, size, "%s", r->wrong[0] != '\0' ? r->wrong : "ok");
    return buf;
}

static const cli_field fields[] = {
    {CLI_FIELD(rank_report, rank), "rank", "rank", "%.0f"},
    {CLI_FIELD(rank_report, host), "host", "host", "%.0f"},
    {CLI_FIELD(rank_report, process), "process", "process", "%.0f"},
    {CLI_FIELD(rank_report, host_name), "host_name"},
    {CLI_FIELD(rank_report, threads), "threads"},
    {CLI_FIELD(rank_report, clock_skew), "clock_skew", "clock s", "%+.6f"},
    {CLI_FIELD(rank_report, round_trip), "round_trip", "trip s", "%.6f"},
    {CLI_FIELD(rank_report, bandwidth), "bandwidth", "bytes/s", "%.3g"},
    {CLI_FIELD(rank_report, device), "device"},
    {CLI_FIELD(rank_report, versions), "versions"},
    {CLI_FIELD(rank_report, transport), "transport"},
    {CLI_FIELD(rank_report, wrong), "wrong", "", .text = judged},
};

static int tell(session *s) {
    const int n = mz_group_size(s->group);
    int good = 0;
    for (int r = 0; r < n; r++)
        good += s->all[r].wrong[0] == '\0';
    if (mz_group_rank_of(s->group) > 0)
        return good == n ? CLI_DONE : CLI_CHECK_FAILED;
    if (cli_has(s->args, "json")) {
        int code = cli_json_print(s->args->command, json_pack("{so sb}", "ranks", CLI_LIST(fields, s->all, (size_t)n),
                                                              "passed", (int)(good == n)));
        return code != CLI_DONE ? code : good == n ? CLI_DONE : CLI_CHECK_FAILED;
    }
    printf("%d ranks on %d host%s by %s, each with %s\n\n", n, mz_group_hosts(s->group),
           mz_group_hosts(s->group) == 1 ? "" : "s", s->all[0].transport, s->all[0].device);
    CLI_TABLE(fields, s->all, (size_t)n);
    return good == n ? CLI_DONE : CLI_CHECK_FAILED;
}

// --- the command ---------------------------------------------------------------------------------------------------
static mezzo_status report_self(session *s) {
    mezzo_device_info info;
    MEZZO_TRY(mezzo_device_describe(s->device, &info));
    const int rank = mz_group_rank_of(s->group);
    const mz_group_rank *self = &mz_group_ranks(s->group)[rank];
    s->own = (rank_report){.rank = rank,
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

static mezzo_status examine(session *s, int threads) {
    char name[64];
    MEZZO_TRY(mz_world_read(&s->world));
    if (s->world.size == 1)
        return mz_fail(
            MEZZO_ERR_INVALID,
            "--ranks needs a job with ranks: mezzo launch -n 2 -- doctor --ranks, or use mpirun, srun, torchrun");
    s->all = mz_alloc((size_t)s->world.size, sizeof *s->all);
    if (s->all == NULL)
        return MEZZO_ERR_MEMORY;
    MEZZO_TRY(mz_world_device(&s->world, cli_text(s->args, "device", "auto"), mz_gpu_count(), name, sizeof name));
    MEZZO_TRY(mezzo_device_open(name, threads, &s->device));
    MEZZO_TRY(mz_group_open(&s->world, s->device, &s->group));
    MEZZO_TRY(report_self(s));
    judge(s);
    return MEZZO_OK;
}

int cli_doctor_ranks(const cli_args *args, int threads) {
    session s = {.args = args};
    mezzo_status status = examine(&s, threads);
    int code = CLI_DONE;
    if (status != MEZZO_OK) {
        code = cli_error(args->command, status);
        mz_group_abort(s.group, NULL);
    } else {
        code = tell(&s);
    }
    mz_group_close(s.group);
    mezzo_device_close(s.device);
    mz_free(s.all);
    return code;
}
