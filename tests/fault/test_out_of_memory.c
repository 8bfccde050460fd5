// Every allocation of the process fails in turn, in whatever library it is made: interpose/fail_malloc.c is preloaded.
// What is relied on, for each of the commands below: exit code 3 with a last line that says memory, or success with the
// very files and output of a run without a failure. Never a signal, never another code, never an older checkpoint.
//
// Output that depends on what the machine has (cores, gnuplot) is not compared.
//
// Ranks: allocations of the launcher, or of one rank, where MEZZO_OOM_TRIES asks for them. MPI's own libraries crash
// where they find no memory, or wait for ever; then the launcher's line names the rank, its code is 3, and what was
// saved before can be loaded.
//
// MEZZO_OOM_TRIES   how many places of a command, spread evenly [12]; 0 = all
// MEZZO_OOM_ONLY    one command, by its number from 1
// MEZZO_OOM_JOBS    how many are tried at a time [1], each in a folder of its own
// MEZZO_OOM_LOG     a file that gets a line a failure, "COMMAND ALLOCATIONS NUMBER OUTCOME"; those that it has already
//                   are passed over, so that a campaign can be stopped at any moment and taken up again
// MEZZO_OOM_STAYS=1 all allocations after the first failure fail too
#define _GNU_SOURCE
#include "mezzo/onnx.h"
#include "tools/radio/radio.h"
#include "tiny_run.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define TINY "--model", "gpt2", "--layers", "1", "--heads", "2", "--d-model", "16", "--seq-len", "16", "--device", "cpu"
#define TRAIN                                                                                                          \
    "train", TINY, "--batch-size", "2", "--warmup", "2", "--eval-iters", "2", "--sample-tokens", "4", "--log-every",   \
        "1", "--threads", "1", "--precision", "fp32", "--data", "text.txt"
#define PICTURES                                                                                                       \
    "--data", "maps", "--batch-size", "2", "--log-every", "1", "--eval-iters", "1", "--device", "cpu", "--threads",    \
        "1", "--precision", "fp32", "--warmup", "1", "--sample-every", "-1"
#define RANKS                                                                                                          \
    "launch", "-n", "2", "--", "train", "--config", "base/config.yaml", "--out", "t", "--resume", "auto", "--steps", "3"
#define OWN                                                                                                            \
    "train", "--model", "own_mlp.onnx", "--loss", "cross_entropy", "--data", "table.csv", "--batch-size", "2",         \
        "--eval-every", "0", "--device", "cpu", "--threads", "1", "--precision", "fp32", "--steps", "2"
#define RANKS_SAME "t/checkpoints/step-00000003/model.safetensors", "t/checkpoints/step-00000003/optimizer.safetensors"

typedef struct command {
    const char *args[48];
    const char *made;    // folder or file, removed before
    const char *copied;  // and made as a copy of this
    int lines;           // of stdout, at its beginning, that are always the same
    const char *same[4]; // files that are always the same
    int code;            // of the run without a failure
    const char *rank;    // of a job, whose allocations fail; NULL: the command's own
    const char *input;   // file that stdin reads; NULL: nothing
    bool pictures, onnx; // what this build has to read
} command;

static const command commands[] = {
    {.args = {TRAIN, "--steps", "2", "--out", "t"},
     .made = "t",
     .same = {"t/checkpoints/step-00000002/model.safetensors", "t/checkpoints/step-00000002/optimizer.safetensors",
              "t/tokenizer.json", "t/checkpoints/step-00000002/state.json"}},
    {.args = {"train", "--config", "base/config.yaml", "--out", "t", "--resume", "auto", "--steps", "3"},
     .made = "t",
     .copied = "base",
     .same = {"t/checkpoints/step-00000003/model.safetensors", "t/checkpoints/step-00000003/optimizer.safetensors",
              "t/tokenizer.json", "t/checkpoints/step-00000003/state.json"}},
    {.args = {"train", "--config", "base/config.yaml", "--resume", "auto", "--steps", "3", "--bisect-nan"}, .lines = 1},
    {.args = {TRAIN, "--steps", "1", "--out", "t", "--tokenizer", "byte", "--sample-every", "-1"},
     .made = "t",
     .same = {"t/checkpoints/step-00000001/model.safetensors", "t/tokenizer.json"}},
    {.args = {"eval", "base", "--threads", "1"}, .lines = 3},
    {.args = {"sample", "base", "--tokens", "12", "--threads", "1"}, .lines = 1},
    {.args = {"data", "text.txt", "--out", "shards"},
     .made = "shards",
     .same = {"shards/train.bin", "shards/tokenizer.json"}},
    {.args = {"export", "base", "--out", "hf"}, .made = "hf", .same = {"hf/model.safetensors", "hf/config.json"}},
    {.args = {"import", "exported", "--out", "i"},
     .made = "i",
     .same = {"i/checkpoints/step-00000000/model.safetensors", "i/config.yaml", "i/checkpoints/manifest.json"}},
    {.args = {"report", "base", "--out", "page.html"}, .made = "page.html", .same = {"page.html"}},
    {.args = {"report", "base", "base", "--compare", "--out", "page.html"}, .made = "page.html", .same = {"page.html"}},
    {.args = {"watch", "base", "--once"}, .lines = 100},
    {.args = {"explain", TINY, "--precision", "bf16"}, .lines = 100},
    {.args = {"explain", TINY, "--precision", "bf16", "--json"}, .lines = 1000},
    {.args = {"memory", TINY, "--batch-size", "2"}},
    {.args = {"lab", "formats"}, .lines = 100},
    {.args = {"lab", "overflow", "--json"}},
    {.args = {"--help"}, .lines = 100},
    {.args = {"train", "--help"}, .lines = 1000},
    {.args = {"doctor", "--config", "base/config.yaml"}, .lines = 2},
    {.args = {"analyze", "study.csv", "--out", "out"},
     .made = "out",
     .same = {"out/rules.json", "out/pairs_analysis.csv", "out/summary.json"}},
    {.args = {"advise", "--rules", "rules/rules.json", "--d-model", "128", "--batch-size", "4", "--seq-len", "128"},
     .lines = 3},
    {.args = {"data", "text.txt", "--out", "shards", "--tokenizer", "gpt2"}, .made = "shards"},
    {.pictures = true,
     .args = {"data", "radio", "--maps", "1", "--size", "32", "--extent", "128", "--threads", "1", "--out", "cities"},
     .made = "cities",
     .same = {"cities/gain/DPM/0_0.png", "cities/radio.json"}},
    {.pictures = true,
     .args = {"train", "--model", "radio_unet-tiny", PICTURES, "--steps", "1", "--out", "t"},
     .made = "t",
     .same = {"t/checkpoints/step-00000001/model.safetensors", "t/checkpoints/step-00000001/optimizer.safetensors",
              "t/checkpoints/step-00000001/state.json"}},
    {.pictures = true,
     .args = {"train", "--config", "unet/config.yaml", "--out", "t", "--resume", "auto", "--steps", "2"},
     .made = "t",
     .copied = "unet",
     .same = {"t/checkpoints/step-00000002/model.safetensors", "t/checkpoints/step-00000002/optimizer.safetensors",
              "t/checkpoints/step-00000002/state.json"}},
    {.pictures = true,
     .args = {"train", "--model", "kl_vae-tiny", PICTURES, "--steps", "1", "--out", "t"},
     .made = "t",
     .same = {"t/checkpoints/step-00000001/model.safetensors", "t/checkpoints/step-00000001/state.json"}},
    {.pictures = true, .args = {"eval", "unet", "--threads", "1"}, .lines = 2},
    {.pictures = true,
     .args = {"sample", "unet", "--out", "drawn", "--steps", "2", "--threads", "1"},
     .made = "drawn",
     .same = {"drawn/1_0.png", "drawn/sheet.png"}},
    {.pictures = true, .args = {"eval", "predicted", "--truth", "maps"}, .lines = 5},
    {.args = {RANKS}, .made = "t", .copied = "base", .same = {RANKS_SAME}},
    {.args = {RANKS}, .made = "t", .copied = "base", .same = {RANKS_SAME}, .rank = "0"},
    {.args = {RANKS}, .made = "t", .copied = "base", .same = {RANKS_SAME}, .rank = "1"},
    {.args = {TRAIN, "--steps", "2", "--replay", "1", "--replay-update", "--out", "t"},
     .made = "t",
     .same = {"t/checkpoints/step-00000002/model.safetensors", "t/checkpoints/step-00000002/optimizer.safetensors"}},
    {.args = {TRAIN, "--steps", "2", "--counterfactual", "fp8,mxfp8", "--counterfactual-every", "1", "--out", "t"},
     .made = "t",
     .same = {"t/checkpoints/step-00000002/model.safetensors", "t/counterfactual.jsonl"}},
    {.args = {TRAIN, "--steps", "2", "--optimizer", "muon", "--out", "t"},
     .made = "t",
     .same = {"t/checkpoints/step-00000002/model.safetensors", "t/checkpoints/step-00000002/optimizer.safetensors"}},
    {.args = {"audit", "base", "--intervals", "0", "--threads", "1", "--json"}, .lines = 1000},
    {.args = {"data", "text.txt", "--train-tokenizer", "300", "--threads", "1", "--out", "learned.json"},
     .made = "learned.json",
     .same = {"learned.json"}},
    {.args = {"chat", "talk", "--tokens", "2", "--threads", "1"}, .input = "question.txt", .lines = 100},
    {.args = {"import", "llama-hf", "--out", "i"},
     .made = "i",
     .same = {"i/checkpoints/step-00000000/model.safetensors", "i/config.yaml", "i/tokenizer.json"}},
    {.args = {"export", "llama", "--gguf", "q8_0", "--out", "again.gguf"},
     .made = "again.gguf",
     .same = {"again.gguf"}},
    {.args = {"import", "llama.gguf", "--out", "i"},
     .made = "i",
     .same = {"i/checkpoints/step-00000000/model.safetensors", "i/config.yaml", "i/tokenizer.json"}},
    {.args = {OWN, "--out", "t"},
     .made = "t",
     .same = {"t/checkpoints/step-00000002/model.safetensors", "t/checkpoints/step-00000002/optimizer.safetensors",
              "t/graph/model.onnx"},
     .onnx = true},
    {.args = {"eval", "own", "--threads", "1"}, .lines = 2, .onnx = true},
    {.args = {"export", "own", "--onnx", "again.onnx"}, .made = "again.onnx", .same = {"again.onnx"}, .onnx = true},
};

static bool pictures; // this build reads and writes them
static bool onnx;     // and reads models of ONNX
static bool ranks;    // and starts ranks on CPUs

static bool is_job(const command *c) {
    return strcmp(c->args[0], "launch") == 0;
}

typedef struct outcome {
    int status;        // of waitpid
    long long counted; // allocations
    char *out, *err;
} outcome;

static char *slurp(const char *path) {
    char *text;
    size_t n;
    if (mz_file_read(path, 1 << 26, &text, &n) != MEZZO_OK)
        return mz_strdup("");
    return text;
}

static void redirect(const char *path, int fd, int flags) {
    int file = open(path, flags, 0666);
    if (file < 0 || dup2(file, fd) < 0)
        _exit(97);
    close(file);
}

static int job; // which of those at work this process is

// On two processors at most: with more, OpenMP makes more allocations, and other ones each time.
static void use_two_processors(void) {
    cpu_set_t all, two;
    CPU_ZERO(&two);
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    const int cores = CPU_COUNT(&all);
    int k = 0;
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all)) {
            if (k == job % cores || k == (job + 1) % cores)
                CPU_SET(i, &two);
            k++;
        }
    sched_setaffinity(0, sizeof two, &two);
}

static void spawn(const command *c, long long fail_at, outcome *o) {
    char at[32], path[4096];
    const char *words[50] = {getenv("MEZZO")};
    for (int i = 0; c->args[i] != NULL; i++)
        words[i + 1] = c->args[i];
    snprintf(at, sizeof at, "%lld", fail_at);
    snprintf(path, sizeof path, "%s/tests/libfail_malloc.so", getenv("MEZZO_BUILD"));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        use_two_processors();
        setenv("LD_PRELOAD", path, 1);
        setenv("FAIL_MALLOC", at, 1);
        setenv("FAIL_MALLOC_ON", getenv("MEZZO_OOM_STAYS") != NULL ? "1" : "0", 1);
        setenv("FAIL_MALLOC_COUNT", "count", 1);
        if (c->rank != NULL)
            setenv("FAIL_MALLOC_RANK", c->rank, 1);
        setenv("ASAN_OPTIONS",
               is_job(c) ? "verify_asan_link_order=0:allocator_may_return_null=1:detect_leaks=0:exitcode=99" // MPI's
                         : "verify_asan_link_order=0:allocator_may_return_null=1:detect_leaks=1:exitcode=99",
               1);
        setenv("LSAN_OPTIONS", "exitcode=99", 1);
        redirect(c->input != NULL ? c->input : "/dev/null", 0, O_RDONLY);
        redirect("stdout", 1, O_WRONLY | O_CREAT | O_TRUNC);
        redirect("stderr", 2, O_WRONLY | O_CREAT | O_TRUNC);
        execv(words[0], (char *const *)(uintptr_t)words);
        _exit(96);
    }
    pid_t ended = 0;
    for (int ms = 0; ended == 0; ms++) { // MPI may wait for ever: that is signal 9, and wrong
        usleep(1000);
        ended = waitpid(child, &o->status, WNOHANG);
        if (ms == 200000)
            kill(child, SIGKILL);
    }
    assert_int_equal(ended, child);
    char *count = slurp("count");
    o->counted = atoll(count);
    mz_free(count);
    o->out = slurp("stdout");
    o->err = slurp("stderr");
}

static void outcome_free(outcome *o) {
    mz_free(o->out);
    mz_free(o->err);
}

static void prepare(const command *c) {
    char line[512];
    if (c->made == NULL)
        return;
    snprintf(line, sizeof line, "rm -rf %s", c->made);
    assert_int_equal(system(line), 0);
    if (c->copied == NULL)
        return;
    snprintf(line, sizeof line, "cp -a %s %s", c->copied, c->made);
    assert_int_equal(system(line), 0);
}

static size_t length_of_lines(const char *text, int n) {
    const char *p = text;
    for (; n > 0 && *p != '\0'; n--)
        p += strcspn(p, "\n") + (p[strcspn(p, "\n")] != '\0');
    return (size_t)(p - text);
}

// What is wrong with an outcome; NULL: nothing.
static const char *judge(const command *c, const outcome *ref, char *const *files, const outcome *o, char *why) {
    if (!WIFEXITED(o->status)) {
        snprintf(why, 128, "signal %d", WTERMSIG(o->status));
        return why;
    }
    int code = WEXITSTATUS(o->status);
    size_t end = strlen(o->err);
    while (end > 0 && o->err[end - 1] == '\n')
        end--;
    size_t begin = end;
    while (begin > 0 && o->err[begin - 1] != '\n')
        begin--;
    if (code == 3 && is_job(c)) {
        outcome after;
        const command eval = {.args = {"eval", "t", "--threads", "1"}};
        if (strstr(o->err, "mezzo launch: ") == NULL && strstr(o->err, "emory") == NULL)
            return "code 3, and no line of the launcher's";
        spawn(&eval, 0, &after);
        const bool loads = after.status == 0;
        outcome_free(&after);
        return loads ? NULL : "what was saved before cannot be loaded";
    }
    if (code == 3) {
        bool says =
            memmem(o->err + begin, end - begin, "emory", 5) != NULL ||
            memmem(o->err + begin, end - begin, "Cannot allocate", 15) != NULL ||
            strstr(o->err, "libgomp: Out of memory") != NULL ||
            strstr(o->err, "libgomp: Thread creation failed") != NULL || // glibc found none for its stack's table
            strstr(o->err, "threads cannot be started") != NULL;
        return says ? NULL : "code 3, and the last line does not say memory";
    }
    if (code != c->code) {
        snprintf(why, 128, "exit code %d", code);
        return why;
    }
    size_t n = length_of_lines(ref->out, c->lines);
    if (length_of_lines(o->out, c->lines) != n || memcmp(ref->out, o->out, n) != 0)
        return "another output";
    for (int i = 0; i < 4 && c->same[i] != NULL; i++) {
        char *text;
        size_t bytes, known;
        memcpy(&known, files[i], sizeof known);
        if (mz_file_read(c->same[i], 1 << 26, &text, &bytes) != MEZZO_OK)
            return "a file is missing";
        bool equal = bytes == known && memcmp(text, files[i] + sizeof known, bytes) == 0;
        mz_free(text);
        if (!equal)
            return c->same[i];
    }
    return NULL;
}

// Sizes, then bytes.
static void keep_files(const command *c, char **files) {
    for (int i = 0; i < 4 && c->same[i] != NULL; i++) {
        char *text;
        size_t n;
        must(mz_file_read(c->same[i], 1 << 26, &text, &n));
        files[i] = mz_alloc(n + sizeof n, 1);
        memcpy(files[i], &n, sizeof n);
        memcpy(files[i] + sizeof n, text, n);
        mz_free(text);
    }
}

static long long number_of(const char *variable, long long otherwise) {
    const char *text = getenv(variable);
    return text != NULL ? atoll(text) : otherwise;
}

// --- a command's failures, shared by jobs ----------------------------------------------------------------------------
typedef struct campaign {
    int number; // of the command, from 1
    const command *c;
    outcome ref;
    char *files[4];
    long long first, stride;
    unsigned char *known; // [allocations + 1]: a line of the log has it
    int log;              // descriptor; -1
    struct {
        atomic_llong next, tried, memory, bad;
    } * all; // shared by the jobs
} campaign;

// What the log has of this command, with as many allocations.
static void read_log(campaign *m) {
    const char *path = getenv("MEZZO_OOM_LOG");
    m->log = path != NULL ? open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    m->known = mz_alloc((size_t)m->ref.counted + 1, 1);
    assert_true((path == NULL || m->log >= 0) && m->known != NULL);
    FILE *f = path != NULL ? fopen(path, "r") : NULL;
    char line[512];
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        int number;
        long long counted, at;
        char how[16];
        if (sscanf(line, "%d %lld %lld %15s", &number, &counted, &at, how) == 4 && number == m->number &&
            counted == m->ref.counted && at > 0 && at <= counted && !m->known[at]) {
            m->known[at] = 1;
            m->all->tried++;
            m->all->memory += strcmp(how, "memory") == 0;
            m->all->bad += strcmp(how, "bad:") == 0;
        }
    }
    if (f != NULL)
        fclose(f);
}

static void try_one(campaign *m, long long at) {
    char why[128], line[256];
    outcome o;
    prepare(m->c);
    spawn(m->c, at, &o);
    const char *wrong = judge(m->c, &m->ref, m->files, &o, why);
    const bool memory = WIFEXITED(o.status) && WEXITSTATUS(o.status) == 3;
    m->all->tried++;
    m->all->memory += wrong == NULL && memory;
    if (wrong != NULL && ++m->all->bad <= 5)
        print_message("%s %s, allocation %lld of %lld: %s\n%s\n", m->c->args[0], m->c->args[1] ? m->c->args[1] : "", at,
                      m->ref.counted, wrong, o.err);
    int n = snprintf(line, sizeof line, "%d %lld %lld %s%s\n", m->number, m->ref.counted, at,
                     wrong != NULL ? "bad: "
                     : memory      ? "memory"
                                   : "done",
                     wrong != NULL ? wrong : "");
    if (m->log >= 0 && write(m->log, line, (size_t)n) != n)
        fail_msg("the log cannot be written");
    outcome_free(&o);
}

static void work(campaign *m) {
    char folder[32];
    snprintf(folder, sizeof folder, "job-%d", job);
    assert_true(job == 0 || chdir(folder) == 0);
    for (;;) {
        long long at = m->first + m->stride * m->all->next++;
        if (at > m->ref.counted)
            return;
        if (!m->known[at])
            try_one(m, at);
    }
}

static void share(campaign *m) {
    const int jobs = (int)number_of("MEZZO_OOM_JOBS", 1);
    pid_t child[256];
    assert_true(jobs >= 1 && jobs <= (int)MZ_COUNT(child));
    for (job = 1; job < jobs; job++) {
        child[job] = fork();
        assert_true(child[job] >= 0);
        if (child[job] == 0) {
            work(m); // what it asserts and does not hold ends this process by main, with a code
            fflush(NULL);
            _exit(0);
        }
    }
    job = 0;
    work(m);
    for (int i = 1; i < jobs; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
}

static long long try_command(int number, long long tries, long long *total) {
    campaign m = {.number = number + 1, .c = &commands[number]};
    m.all = mmap(NULL, sizeof *m.all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(m.all != MAP_FAILED);
    prepare(m.c);
    spawn(m.c, 0, &m.ref);
    if (!WIFEXITED(m.ref.status) || WEXITSTATUS(m.ref.status) != m.c->code)
        fail_msg("%s %s without a failure: status %d: %s", m.c->args[0], m.c->args[1], m.ref.status, m.ref.err);
    keep_files(m.c, m.files);
    m.stride = tries > 0 ? m.ref.counted / tries + 1 : 1;
    m.first = tries > 0 ? 1 + number % m.stride : 1;
    read_log(&m);
    share(&m);
    const long long bad = m.all->bad;
    print_message("%2d %s %s: %lld allocations, %lld made to fail: %lld ended with 3, %lld not well\n", m.number,
                  m.c->args[0], m.c->args[1] ? m.c->args[1] : "", m.ref.counted, (long long)m.all->tried,
                  (long long)m.all->memory, bad);
    *total += m.all->tried;
    for (int i = 0; i < 4; i++)
        mz_free(m.files[i]);
    mz_free(m.known);
    if (m.log >= 0)
        close(m.log);
    munmap(m.all, sizeof *m.all);
    outcome_free(&m.ref);
    return bad;
}

TEST(test_every_allocation_of_a_process) {
    const long long tries = number_of("MEZZO_OOM_TRIES", 12), only = number_of("MEZZO_OOM_ONLY", 0);
    long long total = 0, bad = 0;
    int n = 0;
    for (int i = 0; i < (int)MZ_COUNT(commands); i++)
        if ((only == 0 || only == i + 1) && (ranks || !is_job(&commands[i])) && (pictures || !commands[i].pictures) &&
            (onnx || !commands[i].onnx)) {
            bad += try_command(i, tries, &total);
            n++;
        }
    print_message("%lld failures in %d commands\n", total, n);
    assert_int_equal(bad, 0);
}

static void make(const char *const *args) {
    command c = {0};
    outcome o;
    for (int i = 0; args[i] != NULL; i++)
        c.args[i] = args[i];
    spawn(&c, 0, &o);
    if (o.status != 0)
        fail_msg("%s: %s", args[0], o.err);
    outcome_free(&o);
}

// A run of a model from an ONNX file, where this build reads them.
static void make_own(void) {
    char line[4096];
    mz_text table = {0};
    mezzo_onnx *model = NULL;
    snprintf(line, sizeof line, "cp '%s/golden/data/own_mlp.onnx' .", getenv("MEZZO_TESTS"));
    assert_int_equal(system(line), 0);
    mezzo_status status = mezzo_onnx_open("own_mlp.onnx", &model);
    mezzo_onnx_free(model);
    onnx = status != MEZZO_ERR_UNSUPPORTED;
    if (!onnx)
        return;
    must(status);
    mz_text_addf(&table, "a,b,c,d,e,f,g,label\n");
    for (int i = 0; i < 40; i++)
        mz_text_addf(&table, "%d,1,%d,0.5,2,3,4,%d\n", i, i % 5, i % 3);
    must(mz_file_write_atomic("table.csv", table.data, table.len));
    mz_text_free(&table);
    make((const char *const[]){OWN, "--out", "own", NULL});
}

static int setup(void **state) {
    (void)state;
    char plugin[4096];
    mz_text rows = {0};
    assert_int_equal(system("rm -rf base exported rules t i hf shards out page.html maps unet predicted cities drawn "
                            "llama llama-hf llama.gguf talk own own_mlp.onnx learned.json again.gguf again.onnx"),
                     0);
    tiny_text();
    make((const char *const[]){TRAIN, "--steps", "2", "--checkpoint-every", "1", "--keep-last", "0", "--out", "base",
                               NULL});
    make((const char *const[]){"export", "base", "--out", "exported", NULL});
    mz_text_addf(&rows, "layers,d_model,bs,seqlen,prec,tps,mem_gb\n");
    for (int layers = 2; layers <= 4; layers += 2)
        for (int d = 128; d <= 256; d += 128)
            for (int bs = 1; bs <= 4; bs *= 2)
                for (int t = 64; t <= 256; t *= 2) {
                    mz_text_addf(&rows, "%d,%d,%d,%d,fp32,1000,2.0\n", layers, d, bs, t);
                    mz_text_addf(&rows, "%d,%d,%d,%d,amp,%d,1.5\n", layers, d, bs, t, 700 + 2 * bs * t);
                }
    must(mz_file_write_atomic("study.csv", rows.data, rows.len));
    mz_text_free(&rows);
    make((const char *const[]){"analyze", "study.csv", "--out", "rules", NULL});
    make((const char *const[]){TRAIN, "--steps", "1", "--model", "llama", "--kv-heads", "1", "--tokenizer", "byte",
                               "--out", "llama", NULL});
    make((const char *const[]){"export", "llama", "--out", "llama-hf", NULL});
    make((const char *const[]){"export", "llama", "--gguf", "f32", "--out", "llama.gguf", NULL});
    make(
        (const char *const[]){TRAIN, "--steps", "1", "--seq-len", "256", "--tokenizer", "byte", "--out", "talk", NULL});
    must(mz_file_write_atomic("question.txt", "Hi\n", 3));
    make_own();
    const mz_radio_options cities = {
        .maps = 4, .transmitters = 1, .size = 16, .extent = 64, .seed = 3, .threads = 1, .out = "maps"};
    mz_radio_written written;
    mezzo_status status = mz_radio_write(&cities, NULL, &written);
    pictures = status != MEZZO_ERR_UNSUPPORTED;
    if (pictures) {
        must(status);
        make((const char *const[]){"train", "--model", "radio_unet-tiny", PICTURES, "--steps", "1", "--out", "unet",
                                   NULL});
        make((const char *const[]){"sample", "unet", "--out", "predicted", "--steps", "2", NULL});
    }
    snprintf(plugin, sizeof plugin, "%s/mezzo_pmix.so", getenv("MEZZO_BUILD"));
    ranks = access(plugin, R_OK) == 0 && getenv("MEZZO_OOM_TRIES") != NULL;
    for (int i = 1; i < number_of("MEZZO_OOM_JOBS", 1); i++) {
        char line[256];
        snprintf(line, sizeof line,
                 "rm -rf job-%d; mkdir job-%d && for x in base exported rules maps unet predicted text.txt study.csv "
                 "llama llama-hf llama.gguf talk question.txt own own_mlp.onnx table.csv; "
                 "do [ ! -e $x ] || cp -a $x job-%d; done",
                 i, i, i);
        assert_int_equal(system(line), 0);
    }
    return 0;
}

TEST_GROUP(setup, NULL)
