// The first SIGINT or SIGTERM asks the work to stop, the second leaves at once.
#include <unistd.h>

#include "cli.h"

static volatile sig_atomic_t stop;

static void on_signal(int number) {
    if (stop)
        _exit(CLI_INTERRUPTED);
    stop = number;
}

const volatile sig_atomic_t *cli_interruptible(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    return &stop;
}
