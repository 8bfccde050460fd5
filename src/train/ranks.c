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

// Finds the greatest of the ranks' bytes, and the first rank that has it.
static mezzo_status find_greatest(mz_training *run, const char *what, unsigned char *byte, int *rank) {
    unsigned char *all;
    MEZZO_TRY(settle(run));
    MEZZO_TRY(MZ_NEW(all, run->engine.size));
    const mezzo_status status = mz_group_gather(run->engine.group, what, byte, 1, all);
    *rank = 0;
    for (int r = 1; r < run->engine.size; r++)
        *rank = all[r] > all[*rank] ? r : *rank;
    *byte = all[*rank];
    mz_free(all);
    return status;
}

mezzo_status mz_run_any(mz_training *run, const char *what, bool mine, bool *any) {
    unsigned char byte = mine;
    int rank;
    *any = mine;
    if (run->engine.size > 1)
        MEZZO_TRY(find_greatest(run, what, &byte, &rank));
    *any = byte != 0;
    return MEZZO_OK;
}

mezzo_status mz_run_share_fault(mz_training *run, mz_knows knows, mz_fault *fault) {
    unsigned char byte = (unsigned char)knows;
    int first;
    if (run->engine.size == 1)
        return MEZZO_OK;
    MEZZO_TRY(find_greatest(run, "fault", &byte, &first));
    if (byte == MZ_KNOWS_NOTHING) // no rank has one: the common text holds
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
