// This process may be a rank of a job: one rank reports the job's failure, and no rank keeps waiting.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli.h"
#include "dist/group.h"

enum { LEAVES_AFTER = 3 }; // seconds: a thread that waits for a dead rank's data may never come back

static atomic_bool failed;

static void leave(int number) {
    (void)number;
    _exit(CLI_FAILED);
}

static void on_failure(void *user, const char *line, bool tells) {
    (void)user;
    char text[600];
    const char *to = getenv("MEZZO_TELL_FD"); // mezzo launch reports it for all
    int n = snprintf(text, sizeof text, "%s%s\n", to != NULL ? "" : "mezzo: ", line);
    if ((to != NULL || tells) && n > 0 && write(to != NULL ? atoi(to) : STDERR_FILENO, text, (size_t)n) < 0)
        tells = false; // stderr has no reader
    atomic_store(&failed, true);
    signal(SIGALRM, leave);
    alarm(LEAVES_AFTER);
}

void cli_watch_job(void) {
    mz_group_on_failure(on_failure, NULL);
}

bool cli_job_failed(void) {
    return atomic_load(&failed);
}
