// Exchanges small records between the ranks' hosts, so that all ranks decide alike. Every rank calls these functions at
// the same point of the run, because all decide from the same numbers.
#include "train/run.h"

bool mz_run_leads(const mz_training *run) {
    return run->engine.rank == 0;
}

bool mz_run_keeps(const mz_training *run) {
    return run->writes;
}

// Runs deferred collectives before this rank waits for another on the host, since that one may be waiting for them.
static mezzo_status settle(mz_training *run) {
    return mz_deferred_flush(run->engine.device);
}

mezzo_status mz_run_gather_weights(mz_training *run, bool keep) {
    return run->engine.session.ranks != NULL ? mz_ranks_gather_weights(run->engine.session.ranks, keep) : MEZZO_OK;
}

void mz_run_release_weights(mz_training *run) {
    mz_ranks_release_weights(run->engine.session.ranks);
}

mezzo_status mz_run_any(mz_training *run, const char *what, bool mine, bool *any) {
    const unsigned char one = mine;
    const int size = run->engine.size;
    *any = mine;
    if (size == 1)
        return MEZZO_OK;
    MEZZO_TRY(settle(run));
    unsigned char *all;
    MEZZO_TRY(MZ_NEW(all, size));
    mezzo_status status = mz_group_gather(run->engine.group, what, &one, 1, all);
    for (int r = 0; r < size && status == MEZZO_OK; r++)
        *any = *any || all[r] != 0;
    mz_free(all);
    return status;
}

mezzo_status mz_run_share_fault(mz_training *run, mz_knows knows, mz_fault *fault) {
    const int size = run->engine.size;
    int first = 0;
    if (size == 1)
        return MEZZO_OK;
    MEZZO_TRY(settle(run));
    unsigned char *all;
    MEZZO_TRY(MZ_NEW(all, size));
    const unsigned char one = (unsigned char)knows;
    mezzo_status status = mz_group_gather(run->engine.group, "fault", &one, 1, all);
    for (int r = 1; r < size; r++)
        first = all[r] > all[first] ? r : first;
    const bool any = all[first] != MZ_KNOWS_NOTHING;
    mz_free(all);
    MEZZO_TRY(status);
    if (!any) // no rank has one: the common text holds
        return MEZZO_OK;
    if (first == run->engine.rank) {
        char text[sizeof fault->text];
        snprintf(text, sizeof text, "rank %d: %.900s", first, fault->text);
        memcpy(fault->text, text, sizeof text);
    }
    return mz_group_broadcast(run->engine.group, "text of the fault", first, fault, sizeof *fault);
}

mezzo_status mz_run_follow(mz_training *run, const char *what, mezzo_status status) {
    struct {
        int32_t status;
        char message[512];
    } first = {.status = (int32_t)status};
    if (run->engine.size == 1)
        return status;
    if (status == MEZZO_OK)
        status = settle(run);
    if (status != MEZZO_OK)
        snprintf(first.message, sizeof first.message, "%s", mezzo_error_message());
    MEZZO_TRY(mz_group_broadcast(run->engine.group, what, 0, &first, sizeof first));
    if (first.status == MEZZO_OK || mz_run_leads(run))
        return status;
    memcpy(&status, &first.status, sizeof status);
    return mz_fail(status, "rank 0: %s", first.message);
}

mezzo_status mz_run_follow_text(mz_training *run, const char *what, char *text, size_t size) {
    if (run->engine.size == 1)
        return MEZZO_OK;
    MEZZO_TRY(settle(run));
    return mz_group_broadcast(run->engine.group, what, 0, text, size);
}
