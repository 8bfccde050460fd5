// Handles the early end of a process: by a signal, or as a rank of a job that failed.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/stop.h"
#include "cli.h"
#include "dist/group.h"

// --- signals -------------------------------------------------------------------------------------------------------
// The first signal to stop asks the work to stop, and the second leaves at once; in a command that leaves nothing
// incomplete the first one leaves at once.
static volatile sig_atomic_t stop;
static const char *note; // the text that the first signal writes to stderr; NULL: none

static void leave(int number) {
    _exit(number == SIGALRM ? CLI_FAILED : CLI_INTERRUPTED);
}

static void on_signal(int number) {
    if (stop)
        leave(number);
    stop = number;
    if (note != NULL && write(STDERR_FILENO, note, strlen(note)) < 0)
        return; // stderr has no reader
}

static void catch_signals(void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
#ifdef SIGPWR // on Linux: a battery runs out
    sigaction(SIGPWR, &action, NULL);
#endif
    if (signal(SIGHUP, SIG_IGN) != SIG_IGN) // under nohup it stays ignored
        sigaction(SIGHUP, &action, NULL);
}

void cli_leave_on_interrupt(void) {
    catch_signals(leave);
}

volatile sig_atomic_t *cli_interrupts(const char *says) {
    note = says;
    catch_signals(on_signal);
    cli_ignore_signals();
    (void)mz_stop_enter(&stop);
    return &stop;
}

int cli_save_signals(const char *list, sigset_t *out) {
    static const struct {
        const char *name;
        int number;
    } rows[] = {{"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"XCPU", SIGXCPU}, {"ALRM", SIGALRM},
                {"CONT", SIGCONT}, {"TERM", SIGTERM}, {"HUP", SIGHUP}};
    char word[64];
    sigemptyset(out);
    if (list == NULL)
        list = "USR1,USR2,XCPU";
    while (cli_next_word(&list, word, sizeof word)) {
        const char *name = strncmp(word, "SIG", 3) == 0 ? word + 3 : word;
        const size_t i = MZ_INDEX(rows, MZ_COUNT(rows), name, name);
        if (i == MZ_COUNT(rows))
            return cli_wrong("--signal: %s is none of USR1, USR2, XCPU, ALRM, CONT, TERM and HUP", word);
        sigaddset(out, rows[i].number);
    }
    return CLI_DONE;
}

void cli_ignore_signals(void) {
    signal(SIGPIPE, SIG_IGN); // a reader that goes away ("| head") makes the write fail, instead of ending the process
    signal(SIGXFSZ, SIG_IGN); // likewise for a file that may not grow further
}

// --- ranks ---------------------------------------------------------------------------------------------------------
// One rank reports the job's failure, and no rank keeps waiting.
enum { LEAVES_AFTER = 3 }; // in seconds: a thread that waits for a dead rank's data may never return

static atomic_bool failed;

static void on_failure(void *user, const char *line, bool tells) {
    (void)user;
    char text[600];
    const char *to = getenv("MEZZO_TELL_FD"); // mezzo launch reports it for all ranks
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
