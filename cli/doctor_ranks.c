// mezzo doctor --ranks checks what each rank of a job has and how the ranks reach each other.
#include "cli.h"
#include "dist/links.h"

typedef struct session {
    mz_world world;
    mezzo_device *device;
    mz_group *group;
    mz_rank_report *all; // [size]
} session;

static const char *judged(const void *row, char *buf, size_t size) {
    const mz_rank_report *r = row;
    snprintf(buf, size, "%s", r->wrong[0] != '\0' ? r->wrong : "ok");
    return buf;
}

static const mz_row_field fields[] = {
    {MZ_FIELD(mz_rank_report, rank), "rank", "rank", "%.0f"},
    {MZ_FIELD(mz_rank_report, host), "host", "host", "%.0f"},
    {MZ_FIELD(mz_rank_report, process), "process", "process", "%.0f"},
    {MZ_FIELD(mz_rank_report, host_name), "host_name"},
    {MZ_FIELD(mz_rank_report, threads), "threads"},
    {MZ_FIELD(mz_rank_report, clock_skew), "clock_skew", "clock s", "%+.6f"},
    {MZ_FIELD(mz_rank_report, round_trip), "round_trip", "trip s", "%.6f"},
    {MZ_FIELD(mz_rank_report, bandwidth), "bandwidth", "bytes/s", "%.3g"},
    {MZ_FIELD(mz_rank_report, device), "device"},
    {MZ_FIELD(mz_rank_report, versions), "versions"},
    {MZ_FIELD(mz_rank_report, transport), "transport"},
    {MZ_FIELD(mz_rank_report, wrong), "wrong", "", .text = judged},
};

static int tell(session *s) {
    const int n = mz_group_size(s->group);
    int good = 0;
    for (int r = 0; r < n; r++)
        good += s->all[r].wrong[0] == '\0';
    if (mz_group_rank_of(s->group) == 0 && cli_has("json")) {
        CLI_TRY(cli_json_print(
            json_pack("{so sb}", "ranks", MZ_LIST(fields, s->all, (size_t)n), "passed", (int)(good == n))));
    } else if (mz_group_rank_of(s->group) == 0) {
        printf("%d ranks on %d host%s by %s, each with %s\n\n", n, mz_group_hosts(s->group),
               mz_group_hosts(s->group) == 1 ? "" : "s", s->all[0].transport, s->all[0].device);
        CLI_TABLE(fields, s->all, (size_t)n);
    }
    return good == n ? CLI_DONE : CLI_CHECK_FAILED;
}

// --- the command ---------------------------------------------------------------------------------------------------
static mezzo_status examine(session *s, int threads) {
    char name[64];
    MEZZO_TRY(mz_world_read(&s->world));
    if (s->world.size == 1)
        return mz_fail(
            MEZZO_ERR_INVALID,
            "--ranks needs a job with ranks: mezzo launch -n 2 -- doctor --ranks, or use mpirun, srun, torchrun");
    MEZZO_TRY(MZ_NEW(s->all, s->world.size));
    MEZZO_TRY(mz_world_device(&s->world, cli_text("device", "auto"), mz_gpu_count(), name, sizeof name));
    MEZZO_TRY(mezzo_device_open(name, threads, &s->device));
    MEZZO_TRY(mz_group_open(&s->world, s->device, &s->group));
    return mz_links_report(s->group, s->device, s->all);
}

static void close_session(session *s) {
    mz_group_close(s->group);
    mezzo_device_close(s->device);
    mz_free(s->all);
}

int cli_doctor_ranks(void) {
    MZ_SCOPED(close_session) session s = {0};
    int64_t threads;
    CLI_TRY(cli_integer("threads", 0, 4096, 0, &threads));
    const int code = cli_code(examine(&s, (int)threads));
    if (code == CLI_DONE)
        return tell(&s);
    mz_group_abort(s.group, NULL);
    return code;
}
