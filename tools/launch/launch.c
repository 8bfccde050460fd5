// Runs mezzo launch: starts the ranks of a job on this host, waits for them, and ends all of them when one is lost.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/collective.h"
#include "cli.h"
#include "dist/link.h"
#include "dist/wire.h"

extern char **environ;

enum { MOST = 1024, TICK_MS = 50 };
static const double GRACE = 3, GRACE_INTERRUPTED = 60; // seconds for the others to end by themselves

typedef struct rank_process {
    pid_t pid; // 0: the rank has ended
    int status;
    bool ended_here; // by this command's SIGKILL
    char **variables;
} rank_process;

typedef struct job {
    int n, alive;
    rank_process *ranks;
    bool gpus;
    char devices[4096]; // names of the remaining devices as in CUDA_VISIBLE_DEVICES; "": all that this process sees
    const mz_launch_link *link; // for CPU ranks: the link that gives their MPI the ranks
    char name[64], secret[128];
    int listener, port, tell[2];
    int first_bad; // the rank that first ended with an error; -1
    double bad_at;
    char line[600]; // the report of the ranks
} job;

// --- signals -------------------------------------------------------------------------------------------------------
// Signals that are passed on to the ranks: the first ENDING ask for the end, unless `saves` has them, the others for a
// checkpoint; those from NAMED on only where `saves` has them.
enum { ENDING = 4, NAMED = 7 };
static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGPWR, SIGUSR1, SIGUSR2, SIGXCPU, SIGALRM, SIGCONT};
static sigset_t saves;                       // signals at which the ranks write a checkpoint: those of train's --signal
static atomic_int came[MZ_COUNT(passed_on)]; // how often; PMIx's threads may handle signals at the same time
static int passed[MZ_COUNT(passed_on)];      // how many of these the ranks have got

static void on_signal(int number) {
    for (size_t i = 0; i < MZ_COUNT(passed_on); i++)
        if (passed_on[i] == number)
            atomic_fetch_add(&came[i], 1);
}

static bool is_save(int number) {
    return sigismember(&saves, number) == 1;
}

// Returns whether a signal that asks for the end has come: `number`, or any with 0.
static bool asked_to_end(int number) {
    for (int i = 0; i < ENDING; i++)
        if (came[i] > 0 && !is_save(passed_on[i]) && (number == 0 || number == passed_on[i]))
            return true;
    return false;
}

// A hangup that this process ignores, as under nohup, is ignored by the ranks too, unless --signal names it.
static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < MZ_COUNT(passed_on); i++) {
        const int number = passed_on[i];
        if (is_save(number) || (i < NAMED && (number != SIGHUP || signal(SIGHUP, SIG_IGN) != SIG_IGN)))
            sigaction(number, &action, NULL);
    }
}

// Blocks the signals (SIG_BLOCK) or delivers them (SIG_UNBLOCK). A new rank must not receive one with this process's
// handler, which would lose it. The rank keeps those for a checkpoint blocked until `train` handles them: they would
// end it before.
static void hold_signals(int how, bool with_saves) {
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < MZ_COUNT(passed_on); i++)
        if (with_saves || !is_save(passed_on[i]))
            sigaddset(&set, passed_on[i]);
    sigprocmask(how, &set, NULL);
}

// PMIx's library expects every allocation to succeed: when memory is exhausted it crashes, or waits for itself. The
// ranks end with this process.
static const unsigned LIBRARY_SECONDS = 30;
static volatile sig_atomic_t ended_with = -1; // the job's code, once only the library's end remains

static void on_library(int number, siginfo_t *info, void *context) {
    static const char line[] =
        "mezzo launch: PMIx's library crashed or hangs, as it does when memory runs out; ending the ranks\n";
    (void)context;
    if (number == SIGALRM && info->si_code != SI_KERNEL) { // from another process, not from alarm
        on_signal(number);
        return;
    }
    if (ended_with >= 0 || write(STDERR_FILENO, line, sizeof line - 1) < 0)
        _exit(ended_with >= 0 ? ended_with : CLI_FAILED);
    _exit(CLI_FAILED);
}

static void send_all(const job *j, int number) {
    for (int r = 0; r < j->n; r++)
        if (j->ranks[r].pid > 0)
            kill(-j->ranks[r].pid, number); // each leads a group of the processes that it started
}

// --- the environment of a rank -------------------------------------------------------------------------------------
static void free_variables(rank_process *p) {
    for (char **v = p->variables; v != NULL && *v != NULL; v++)
        free(*v);
    free(p->variables);
    p->variables = NULL;
}

static bool ours(const char *variable) {
    return cli_begins(variable, "RANK= LOCAL_RANK= WORLD_SIZE= LOCAL_WORLD_SIZE= MASTER_ADDR= MASTER_PORT= "
                                "MEZZO_JOB_SECRET= MEZZO_LISTEN_FD= MEZZO_TELL_FD= MEZZO_RENDEZVOUS= MEZZO_PORT= "
                                "TORCHELASTIC_USE_AGENT_STORE= PMIX_ OMPI_COMM_WORLD_ JSM_");
}

typedef struct variables {
    char **list;   // ended by NULL
    size_t n, own; // those from `own` on were allocated for it
} variables;

static void drop(variables *v) {
    for (size_t i = v->own; i < v->n; i++)
        mz_free(v->list[i]);
    mz_free(v->list);
}

static bool put(variables *v, char *text) {
    if (text != NULL)
        v->list[v->n++] = text;
    return text != NULL;
}

static const char devices_are[] = "CUDA_VISIBLE_DEVICES=";
static const char threads_are[] = "OMP_NUM_THREADS";

static int cores(void) { // that this process may use
    cpu_set_t all;
    CPU_ZERO(&all);
    return sched_getaffinity(0, sizeof all, &all) == 0 ? CPU_COUNT(&all) : 1;
}

// Makes the rank's variables: this process's without those of an outer job, and the rank's own.
static mezzo_status make_variables(const job *j, int rank, variables *v) {
    size_t inherited = 0, more = 0;
    char **theirs = j->ranks[rank].variables;
    while (environ[inherited] != NULL)
        inherited++;
    while (theirs != NULL && theirs[more] != NULL)
        more++;
    *v = (variables){.list = mz_alloc(inherited + more + 16, sizeof *v->list)};
    if (v->list == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < inherited; i++)
        if (!ours(environ[i]) &&
            (j->devices[0] == '\0' || strncmp(environ[i], devices_are, sizeof devices_are - 1) != 0))
            v->list[v->n++] = environ[i];
    for (size_t i = 0; i < more; i++)
        v->list[v->n++] = theirs[i];
    v->own = v->n;
    bool fine = put(v, mz_format("RANK=%d", rank)) && put(v, mz_format("LOCAL_RANK=%d", rank)) &&
                put(v, mz_format("WORLD_SIZE=%d", j->n)) && put(v, mz_format("LOCAL_WORLD_SIZE=%d", j->n)) &&
                put(v, mz_strdup("MASTER_ADDR=127.0.0.1")) && put(v, mz_format("MASTER_PORT=%d", j->port)) &&
                put(v, mz_format("MEZZO_JOB_SECRET=%s", j->secret)) &&
                put(v, mz_format("MEZZO_TELL_FD=%d", j->tell[1])) &&
                (rank > 0 || put(v, mz_format("MEZZO_LISTEN_FD=%d", j->listener)));
    fine = fine && (j->devices[0] == '\0' || put(v, mz_format("%s%s", devices_are, j->devices)));
    // The CPU work of GPU ranks, such as drawing the first weights, shares the cores.
    if (j->gpus && getenv(threads_are) == NULL)
        fine = fine && put(v, mz_format("%s=%d", threads_are, cores() > j->n ? cores() / j->n : 1));
    // Open MPI 4 connects to a PMIx server of another launcher only if it knows that launcher.
    fine = fine && (j->link == NULL || put(v, mz_strdup("JSM_JSRUN_PORT=1")));
    // Open MPI's reads from a neighbour's memory print a line when the neighbour has just ended, so they are off.
    if (j->link != NULL && getenv("OMPI_MCA_btl_vader_single_copy_mechanism") == NULL)
        fine = fine && put(v, mz_strdup("OMPI_MCA_btl_vader_single_copy_mechanism=none"));
    if (!fine)
        drop(v);
    return fine ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

// Divides the cores that this process may use among CPU ranks: consecutive ones for each, or one core for several.
static void take_cores(const job *j, int rank) {
    cpu_set_t all, own;
    CPU_ZERO(&all);
    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    const int count = CPU_COUNT(&all);
    const int from = count >= j->n ? rank * count / j->n : rank % count;
    const int to = count >= j->n ? (rank + 1) * count / j->n : from + 1;
    int k = 0;
    for (size_t c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &all)) {
            if (k >= from && k < to)
                CPU_SET(c, &own);
            k++;
        }
    (void)sched_setaffinity(0, sizeof own, &own);
}

// Returns the program that the ranks run: this one; a build with tests takes another, to test its failures.
static const char *program(void) {
#ifdef MEZZO_INJECT
    const char *other = getenv("MEZZO_LAUNCH_PROGRAM");
    if (other != NULL)
        return other;
#endif
    return "/proc/self/exe";
}

// Runs between fork and exec: it neither allocates nor locks, because other threads do not exist.
_Noreturn static void become_rank(const job *j, int rank, pid_t launcher, char **words, char **environment) {
    const char *what = program();
    for (size_t i = 0; i < MZ_COUNT(passed_on); i++)
        if (signal(passed_on[i], SIG_DFL) == SIG_IGN)
            signal(passed_on[i], SIG_IGN);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    setpgid(0, 0);
    hold_signals(SIG_UNBLOCK, false);
    prctl(PR_SET_PDEATHSIG, SIGKILL); // the kernel kills the rank when the command ends, for any reason
    if (getppid() != launcher)
        _exit(CLI_FAILED);
    if (!j->gpus)
        take_cores(j, rank);
    int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    if (rank > 0)
        dup2(null, STDOUT_FILENO); // rank 0 prints the results
    if (null > STDERR_FILENO)
        close(null);
    fcntl(j->tell[1], F_SETFD, 0);
    if (rank == 0)
        fcntl(j->listener, F_SETFD, 0);
    execve(what, words, environment);
    static const char line[] = "mezzo launch: cannot start the ranks' program\n";
    if (write(STDERR_FILENO, line, sizeof line - 1) < 0)
        _exit(CLI_FAILED);
    _exit(CLI_FAILED);
}

static mezzo_status start_rank(job *j, int rank, char **words) {
    char why[MZ_LINK_TEXT] = "";
    rank_process *p = &j->ranks[rank];
    free_variables(p);
    alarm(j->link != NULL ? LIBRARY_SECONDS : 0);
    if (j->link != NULL && j->link->variables(j->name, rank, &p->variables, why) != 0)
        return mz_fail(MEZZO_ERR_DEVICE, "%s", why);
    variables v;
    MEZZO_TRY(make_variables(j, rank, &v));
    const pid_t launcher = getpid();
    hold_signals(SIG_BLOCK, true);
    p->pid = fork();
    if (p->pid == 0)
        become_rank(j, rank, launcher, words, v.list);
    if (p->pid > 0)
        setpgid(p->pid, p->pid); // in parent and child, because either may run first
    hold_signals(SIG_UNBLOCK, true);
    drop(&v);
    if (p->pid < 0) {
        p->pid = 0;
        return mz_fail(MEZZO_ERR_MEMORY, "cannot start rank %d: %s", rank, strerror(errno));
    }
    j->alive++;
    return MEZZO_OK;
}

// --- meeting -------------------------------------------------------------------------------------------------------
// Opens the socket at which rank 0 will listen, so that no other process can take the port in between.
static mezzo_status listen_for_rank0(job *j) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    j->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (j->listener < 0 || bind(j->listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(j->listener, 256) != 0 ||
        getsockname(j->listener, (struct sockaddr *)&at, &length) != 0)
        return mz_fail(MEZZO_ERR_IO, "no free port on 127.0.0.1 for the ranks to meet: %s", strerror(errno));
    j->port = ntohs(at.sin_port);
    return MEZZO_OK;
}

static mezzo_status open_job(job *j, int attempt) {
    char why[MZ_LINK_TEXT] = "";
    snprintf(j->name, sizeof j->name, "mezzo-%ld-%d", (long)getpid(), attempt);
    MEZZO_TRY(mz_wire_secret(j->secret));
    MEZZO_TRY(listen_for_rank0(j));
    if (pipe2(j->tell, O_CLOEXEC | O_NONBLOCK) != 0)
        return mz_fail(MEZZO_ERR_IO, "no pipe to the ranks: %s", strerror(errno));
    if (j->gpus)
        return MEZZO_OK;
    MEZZO_TRY(mz_launch_link_open(&j->link));
    static const int ends[] = {SIGSEGV, SIGABRT, SIGALRM}; // a thread of PMIx's runs from here on
    for (size_t i = 0; i < MZ_COUNT(ends); i++)
        sigaction(ends[i], &(struct sigaction){.sa_sigaction = on_library, .sa_flags = SA_SIGINFO | SA_RESTART}, NULL);
    alarm(LIBRARY_SECONDS);
    if (j->link->open(j->name, j->n, why) != 0)
        return mz_fail(MEZZO_ERR_DEVICE, "%s", why);
    return MEZZO_OK;
}

static void close_job(job *j) {
    for (int r = 0; r < j->n; r++)
        free_variables(&j->ranks[r]);
    if (j->link != NULL)
        j->link->close(j->name);
    if (j->listener >= 0)
        close(j->listener);
    if (j->tell[0] >= 0)
        close(j->tell[0]);
    if (j->tell[1] >= 0)
        close(j->tell[1]);
    j->link = NULL;
    j->listener = j->tell[0] = j->tell[1] = -1;
}

// --- waiting -------------------------------------------------------------------------------------------------------
// Returns whether a rank ended by a signal that asked for the end, before it handled it.
static bool was_asked(int status) {
    return WIFSIGNALED(status) && asked_to_end(WTERMSIG(status));
}

static int code_of(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : was_asked(status) ? CLI_INTERRUPTED : CLI_FAILED;
}

// Ends hanging ranks, which cannot end by themselves; the ranks that are told need not wait for them.
static void end_hanging(job *j) {
    int rank = -1;
    if (sscanf(j->line, "rank %d ", &rank) != 1 || rank < 0 || rank >= j->n || strstr(j->line, ") hangs") == NULL ||
        j->ranks[rank].pid <= 0)
        return;
    j->ranks[rank].ended_here = true;
    kill(-j->ranks[rank].pid, SIGKILL);
}

static void hear(job *j) {
    char text[sizeof j->line];
    ssize_t n = read(j->tell[0], text, sizeof text - 1);
    if (n <= 0 || j->line[0] != '\0')
        return; // the first one reports the end for all
    text[n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    snprintf(j->line, sizeof j->line, "%s", text);
    end_hanging(j);
}

static void reap(job *j) {
    for (int r = 0; r < j->n; r++) {
        rank_process *p = &j->ranks[r];
        if (p->pid <= 0 || waitpid(p->pid, &p->status, WNOHANG) != p->pid)
            continue;
        kill(-p->pid, SIGKILL); // kills processes that the rank left running
        p->pid = -p->pid;
        j->alive--;
        if (p->status != 0 && j->first_bad < 0) {
            j->first_bad = r;
            j->bad_at = mz_seconds();
        }
    }
}

static void wait_for_all(job *j) {
    while (j->alive > 0) {
        struct pollfd p = {.fd = j->tell[0], .events = POLLIN};
        if (poll(&p, 1, TICK_MS) > 0)
            hear(j);
        reap(j);
        for (size_t i = 0; i < MZ_COUNT(passed_on); i++) // also for those that came while the ranks were started
            for (; passed[i] != came[i]; passed[i]++)
                send_all(j, passed_on[i]);
        if (j->first_bad < 0)
            continue;
        const bool interrupted = code_of(j->ranks[j->first_bad].status) == CLI_INTERRUPTED;
        if (mz_seconds() - j->bad_at < (interrupted ? GRACE_INTERRUPTED : GRACE))
            continue;
        for (int r = 0; r < j->n; r++)
            j->ranks[r].ended_here = j->ranks[r].ended_here || j->ranks[r].pid > 0;
        send_all(j, SIGKILL);
    }
    hear(j);
}

// Returns the rank that a signal ended, unless this command sent it or passed it on to end the job; -1: none.
static int killed_rank(const job *j) {
    for (int r = 0; r < j->n; r++)
        if (WIFSIGNALED(j->ranks[r].status) && !j->ranks[r].ended_here && !was_asked(j->ranks[r].status))
            return r;
    return -1;
}

// Prints one line about the end, if no rank has reported it.
static void tell_end(const job *j) {
    const int killed = killed_rank(j);
    char by[120] = "";
    if (killed >= 0)
        snprintf(by, sizeof by, "%s%d %s signal %d (%s)", j->line[0] != '\0' ? "; rank " : "rank ", killed,
                 j->line[0] != '\0' ? "got" : "was killed or crashed:", WTERMSIG(j->ranks[killed].status),
                 strsignal(WTERMSIG(j->ranks[killed].status)));
    else if (j->line[0] == '\0' && code_of(j->ranks[j->first_bad].status) != CLI_INTERRUPTED)
        snprintf(by, sizeof by, "rank %d ended with code %d", j->first_bad, code_of(j->ranks[j->first_bad].status));
    if (j->line[0] != '\0' || by[0] != '\0')
        cli_wrong("%s%s", j->line, by);
}

static int run_job(job *j, char **words, int attempt) {
    int code = CLI_DONE;
    j->first_bad = -1;
    j->line[0] = '\0';
    j->alive = 0;
    memset(j->ranks, 0, (size_t)j->n * sizeof *j->ranks);
    mezzo_status status = open_job(j, attempt);
    for (int r = 0; r < j->n && status == MEZZO_OK; r++)
        status = start_rank(j, r, words);
    alarm(0);
    if (status != MEZZO_OK) {
        code = cli_error(status);
        for (int r = 0; r < j->n; r++)
            j->ranks[r].ended_here = true;
        send_all(j, SIGKILL);
    }
    wait_for_all(j);
    if (status == MEZZO_OK && j->first_bad >= 0) {
        code = code_of(j->ranks[j->first_bad].status);
        // A rank that refuses its arguments reports that also after it has joined.
        if (killed_rank(j) >= 0 || (j->line[0] != '\0' && code != CLI_USAGE))
            code = CLI_FAILED;
        tell_end(j);
    }
    ended_with = code;
    alarm(j->link != NULL ? LIBRARY_SECONDS / 3 : 0);
    close_job(j);
    alarm(0);
    ended_with = -1;
    return code;
}

// --- the command ---------------------------------------------------------------------------------------------------
// Returns the value of the last --NAME or --OTHER among the ranks' arguments; NULL: there is none.
static const char *ranks_option(const char *name, const char *other) {
    const char *value = NULL;
    for (int i = 0; i < cli_line.n_operands; i++) {
        const char *word = cli_line.operands[i];
        const size_t n = strncmp(word, "--", 2) == 0 ? strcspn(word + 2, "=") : 0;
        if ((n != strlen(name) || strncmp(word + 2, name, n) != 0) &&
            (n != strlen(other) || strncmp(word + 2, other, n) != 0))
            continue;
        if (word[2 + n] == '=')
            value = word + 2 + n + 1;
        else if (i + 1 < cli_line.n_operands)
            value = cli_line.operands[i + 1];
    }
    return value;
}

static int look_at_devices(job *j) {
    const char *named = ranks_option("device", "device.name"), *device = named != NULL ? named : "auto";
    const int gpus = mz_gpu_count();
    j->gpus = mz_device_name_is_gpu(device) || (strcmp(device, "auto") == 0 && gpus > 0);
    if (strncmp(device, "cuda:", 5) == 0 && j->n > 1)
        return cli_wrong("--device %s names one GPU for %d ranks: use --device cuda", device, j->n);
    if (j->gpus && j->n > gpus)
        return cli_wrong("-n %d: this machine has %d GPU%s, and each rank needs one; or use --device cpu", j->n, gpus,
                         gpus == 1 ? "" : "s");
    return CLI_DONE;
}

// Makes the ranks' arguments: the command, theirs, and after a restart `--resume auto`.
static char **make_words(bool again) {
    char **words = mz_alloc((size_t)cli_line.n_operands + 4, sizeof *words);
    int n = 0;
    if (words == NULL)
        return NULL;
    words[n++] = (char *)(uintptr_t)cli_line.program; // exec does not write to its arguments
    for (int i = 0; i < cli_line.n_operands; i++)
        words[n++] = (char *)(uintptr_t)cli_line.operands[i];
    if (again && strcmp(cli_line.operands[0], "train") == 0) {
        words[n++] = (char *)(uintptr_t) "--resume";
        words[n++] = (char *)(uintptr_t) "auto";
    }
    return words;
}

// Returns the rank that caused the end: the one that the report names, or the one that ended first.
static int failed_rank(const job *j) {
    int rank = -1;
    if (sscanf(j->line, "rank %d ", &rank) == 1 && rank >= 0 && rank < j->n)
        return rank;
    return killed_rank(j) >= 0 ? killed_rank(j) : j->first_bad;
}

// Leaves out the GPU of a rank. The names are numbers, or those of CUDA_VISIBLE_DEVICES.
static void leave_out_device(job *j, int rank) {
    const char *seen = j->devices[0] != '\0' ? j->devices : getenv("CUDA_VISIBLE_DEVICES");
    char before[sizeof j->devices] = "";
    size_t n = 0;
    for (int i = 0, count = mz_gpu_count(); seen == NULL && i < count; i++)
        n += (size_t)snprintf(before + n, sizeof before - n, "%s%d", i > 0 ? "," : "", i);
    if (seen != NULL)
        snprintf(before, sizeof before, "%s", seen);
    j->devices[0] = '\0';
    n = 0;
    int at = 0;
    for (char *rest = before, *one = strtok_r(before, ",", &rest); one != NULL; one = strtok_r(NULL, ",", &rest), at++)
        if (at != rank)
            n += (size_t)snprintf(j->devices + n, sizeof j->devices - n, "%s%s", n > 0 ? "," : "", one);
}

static int run_once(job *j, int attempt, bool again) {
    char **words = make_words(again);
    if (words == NULL)
        return cli_error(MEZZO_ERR_MEMORY);
    const int code = run_job(j, words, attempt);
    mz_free(words);
    return code;
}

// Runs the job and restarts it. least: the least number of ranks; 0: always all of them.
static int run_with_restarts(job *j, int restarts, int least) {
    int code = CLI_FAILED, attempt = 0;
    for (int failures = 0; failures <= restarts; failures++) {
        const int before = j->n;
        if (failures > 0 && least > 0 && j->n > least) {
            if (j->gpus)
                leave_out_device(j, failed_rank(j));
            j->n--;
        }
        if (failures > 0)
            cli_wrong("restart %d of %d, with %d rank%s", failures, restarts, j->n, j->n == 1 ? "" : "s");
        code = run_once(j, attempt++, failures > 0);
        while (code == CLI_USAGE && j->n < before && j->n > least) { // this number of ranks does not divide the batch
            j->n--;
            cli_wrong("the same with %d rank%s", j->n, j->n == 1 ? "" : "s");
            code = run_once(j, attempt++, true);
        }
        if (code != CLI_FAILED || asked_to_end(0))
            return code;
    }
    return code;
}

// Returns whether a step is equal with fewer ranks.
static int check_least(int64_t n, int64_t least) {
    bool batch = strcmp(cli_line.operands[0], "train") != 0;
    for (int i = 0; i < cli_line.n_operands; i++)
        batch = batch || strncmp(cli_line.operands[i], "--global-batch", 14) == 0;
    if (least > n)
        return cli_wrong("--min-ranks %lld of -n %lld: it is the smallest number of ranks to restart with",
                         (long long)least, (long long)n);
    if (least > 0 && !batch)
        return cli_wrong(
            "--min-ranks: give train --global-batch, so that the batch per step stays the same with fewer ranks");
    return CLI_DONE;
}

int cli_launch(void) {
    int64_t n, restarts, least;
    CLI_TRY(cli_integer("n", 1, MOST, 0, &n));
    CLI_TRY(cli_integer("restarts", 0, 1000, 0, &restarts));
    CLI_TRY(cli_integer("min-ranks", 1, MOST, 0, &least));
    if (n == 0 || cli_line.n_operands == 0)
        return cli_wrong("%s", cli_usage());
    CLI_TRY(check_least(n, least));
    sigemptyset(&saves);
    if (strcmp(cli_line.operands[0], "train") == 0)
        CLI_TRY(cli_save_signals(ranks_option("signal", "signal"), &saves));
    job j = {.n = (int)n, .listener = -1, .tell = {-1, -1}};
    CLI_TRY(look_at_devices(&j));
    CLI_DO(MZ_NEW(j.ranks, n));
    catch_signals();
    const int code = run_with_restarts(&j, (int)restarts, (int)least);
    mz_free(j.ranks);
    return code;
}
