// mezzo is one command with a subcommand for each task.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli.h"
#include "io/json.h"
#include "mezzo/version.h"

static const cli_command *commands; // the table
static size_t n_commands;

static void print_help(FILE *to) {
    fprintf(to, "mezzo: mixed-precision training of Transformers and image models\n\nusage: mezzo SUBCOMMAND [--option "
                "value …]\n");
    for (size_t i = 0; i < n_commands; i++) {
        if (commands[i].group != NULL)
            fprintf(to, "\n%s\n", commands[i].group);
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].summary);
    }
    fprintf(to, "\n  mezzo SUBCOMMAND --help   its options\n"
                "  mezzo help SUBCOMMAND     the same\n"
                "  mezzo help --man [SUBCOMMAND]\n"
                "                            a man page: mezzo help --man train | man -l -\n"
                "  mezzo help --completion bash|zsh|fish\n"
                "                            a completion script for that shell\n"
                "  mezzo --version           the version\n\n"
                "results go to stdout, progress and messages to stderr\n"
                "exit codes: 0 done, 1 a check failed, 2 usage or bad input, 3 runtime failure,\n"
                "130 interrupted\n"
                "MEZZO_VERBOSE=dispatch,trace prints the kernel chosen for each op, and where\n"
                "errors come from\n");
}

static int unknown(const char *name) {
    const char *names[64];
    for (size_t i = 0; i < n_commands && i < MZ_COUNT(names); i++)
        names[i] = commands[i].name;
    const char *nearest = mz_nearest(name, names, n_commands);
    return nearest != NULL ? cli_wrong("there is no subcommand \"%s\"; did you mean \"%s\"?", name, nearest)
                           : cli_wrong("there is no subcommand \"%s\"; mezzo --help lists them", name);
}

static const cli_command *command_of(const char *name) {
    return MZ_FIND(commands, n_commands, name, name);
}

// Prints the help on `words`, those after "help", at least one.
static int help_on(int n, char **words) {
    const bool man = strcmp(words[0], "--man") == 0, completion = strcmp(words[0], "--completion") == 0;
    const char *name = man || completion ? (n > 1 ? words[1] : NULL) : words[0];
    if (completion) {
        if (name != NULL && cli_completion(name))
            return cli_finish(CLI_DONE);
        return cli_wrong("help --completion: \"%s\" is not supported; use bash, zsh or fish", name != NULL ? name : "");
    }
    if (strcmp(words[0], "--words") == 0) { // for completion scripts
        cli_offer_words(n - 1, words + 1, commands, n_commands);
        return cli_finish(CLI_DONE);
    }
    const cli_command *command = name != NULL ? command_of(name) : NULL;
    if (name != NULL && command == NULL)
        return unknown(name);
    cli_line.command = command;
    if (man)
        cli_man(command, commands, n_commands);
    else
        cli_help(command);
    return cli_finish(CLI_DONE);
}

static int dispatch(const cli_command *command, int argc, char **argv) {
    cli_line.command = command;
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            cli_help(command);
            return cli_finish(CLI_DONE);
        }
    int code = cli_parse(command, argv[0], argc - 2, argv + 2);
    if (code == CLI_DONE && command->operand != NULL && cli_line.n_operands == 0)
        code = cli_wrong("%s is missing; %s", command->operand, cli_usage());
    if (code == CLI_DONE) {
        cli_progress_begin(cli_has("quiet"));
        cli_leave_on_interrupt();
        code = command->run();
    }
    return cli_finish(code);
}

// Opens standard streams that the caller closed, so that a file opened later never becomes one of them.
static bool open_closed_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd)
            return false;
    return true;
}

static int start(int argc, char **argv) {
    const mezzo_status status = cli_commands(&commands, &n_commands);
    if (status != MEZZO_OK)
        return cli_error(status);
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "help") == 0 && argc > 2)
        return help_on(argc - 2, argv + 2);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return cli_finish(CLI_DONE);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("mezzo %s\n", mezzo_version());
        return cli_finish(CLI_DONE);
    }
    const cli_command *command = command_of(argv[1]);
    return command != NULL ? dispatch(command, argc, argv) : unknown(argv[1]);
}

// --- small stacks --------------------------------------------------------------------------------
enum { STACK_BYTES = 8 << 20 };

typedef struct words {
    int argc, code;
    char **argv;
} words;

static void *start_thread(void *user) {
    words *w = user;
    mz_json_begin(); // this applies to the present thread
    w->code = start(w->argc, w->argv);
    return NULL;
}

// Starts the command, where `ulimit -s` is small, so that every thread, OpenMP's included, has a stack of the usual
// size that does not count against the limit.
static int start_on_large_stack(int argc, char **argv) {
    words w = {argc, CLI_FAILED, argv};
    pthread_attr_t attr;
    pthread_t thread;
    int error = pthread_attr_init(&attr);
    if (error == 0)
        error = pthread_attr_setstacksize(&attr, STACK_BYTES);
#ifndef __APPLE__ // there, threads of OpenMP have a size of their own
    if (error == 0)
        error = pthread_setattr_default_np(&attr);
#endif
    if (error == 0)
        error = pthread_create(&thread, &attr, start_thread, &w);
    if (error == 0)
        error = pthread_join(thread, NULL);
    if (error != 0)
        fprintf(stderr, "mezzo: cannot create a thread with a stack of %d MB (%s): raise ulimit -s or free memory\n",
                STACK_BYTES >> 20, strerror(error));
    return w.code;
}

// --- waiting threads -----------------------------------------------------------------------------
// A waiting thread of OpenMP spins before it sleeps, by default for milliseconds. On a shared core, the thread that it
// waits for may need that time. The limit here is about the cost of a sleep and a wake-up; the user's own setting takes
// precedence.
#ifdef __GLIBC__
static char **borrowed, *lent; // an entry of the environment, and its original value

// Sets the limit before libgomp reads its variables. It reads them when it is loaded, before main, when nothing can be
// added to the environment any more. So this function, which runs first, replaces another variable by the limit until
// main begins.
static void bound_spinning(int argc, char **argv, char **environment) {
    static char bound[] = "GOMP_SPINCOUNT=2000"; // in turns, which take 50 to 100 us
    static const char *const stay[] = {"OMP_",   "GOMP_", "KMP_",  "LD_",   "MALLOC_",
                                       "GLIBC_", "ASAN_", "LSAN_", "TSAN_", "UBSAN_"};
    (void)argc, (void)argv;
    for (char **e = environment; *e != NULL; e++) {
        bool free = true;
        if (strncmp(*e, "OMP_WAIT_POLICY=", 16) == 0 || strncmp(*e, bound, strcspn(bound, "=") + 1) == 0) {
            borrowed = NULL;
            return;
        }
        for (size_t i = 0; i < MZ_COUNT(stay); i++)
            free = free && strncmp(*e, stay[i], strlen(stay[i])) != 0;
        if (free)
            borrowed = e;
    }
    if (borrowed != NULL) {
        lent = *borrowed;
        *borrowed = bound;
    }
}
__attribute__((section(".preinit_array"), used)) static void (*const before_libraries)(int, char **,
                                                                                       char **) = bound_spinning;
#endif

static void give_back(void) {
#ifdef __GLIBC__
    if (borrowed != NULL)
        *borrowed = lent;
#endif
#ifdef __clang__ // its runtime reads the variable at the first parallel region
    if (getenv("OMP_WAIT_POLICY") == NULL)
        setenv("KMP_BLOCKTIME", "1", 0); // the unit is ms
#endif
}

int main(int argc, char **argv) {
    struct rlimit stack;
    give_back();
    if (!open_closed_streams() || !cli_guard_exit())
        return CLI_FAILED;
    cli_ignore_signals();
    cli_watch_job();
    mezzo_log_set(cli_log, NULL);
    mz_json_begin();
    bool small =
        getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur != RLIM_INFINITY && stack.rlim_cur < STACK_BYTES / 4;
    cli_leave(small ? start_on_large_stack(argc, argv) : start(argc, argv));
}
