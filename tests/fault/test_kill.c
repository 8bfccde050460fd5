// A run that writes a checkpoint every step is killed with SIGKILL at 50 random moments (MEZZO_KILLS=2000: so many;
// MEZZO_KILLS_SEED=N: at others), one on pictures at 10 (MEZZO_KILLS_PICTURES). Every time the newest whole checkpoint
// is found, is not older than the one known before, and the next process goes on from it. Seen to fail where
// --resume auto did not start again after a kill inside the very first save.
#include "tools/radio/radio.h"
#include "tiny_run.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int started; // the pipe's end that the child writes to

static void tell_parent(void *user, const mezzo_progress *p) {
    (void)user;
    if (p->event == MEZZO_EVENT_STEP && write(started, "s", 1) < 0)
        _exit(3);
}

#define COMMON                                                                                                         \
    "--batch-size=2", "--device=cpu", "--threads=1", "--eval-every=3", "--eval-iters=1", "--log-every=1",              \
        "--sample-every=-1", "--steps=1000000", "--precision=fp16", "--keep-last=2", "--resume=auto",                  \
        "--checkpoint-every=1"

static const char *const of_text[] = {"--layers=1", "--heads=2", "--d-model=16", "--seq-len=8",
                                      TINY_DATA,    COMMON,      "--out=killed", NULL};
static const char *const of_pictures[] = {"--model=radio_unet-tiny", "--data=maps", COMMON, "--out=killed-pictures",
                                          NULL};

// The child: trains until it is killed. Leaves with 2 on an error.
static void train_for_ever(const char *const *args) {
    mezzo_config *config;
    const char *rest[32];
    int n, count = 0;
    const mezzo_hooks hooks = {.progress = tell_parent};
    while (args[count] != NULL)
        count++;
    if (mezzo_config_create(&config) == MEZZO_OK && mezzo_config_args(config, count, args, rest, &n) == MEZZO_OK)
        mezzo_run_train(config, &hooks, NULL);
    fprintf(stderr, "the run ended: %s\n", mezzo_error_message());
    _exit(2);
}

static void sleep_us(uint32_t us) {
    struct timespec t = {.tv_sec = 0, .tv_nsec = (long)us * 1000};
    nanosleep(&t, NULL);
}

static void kill_one(const char *const *args, uint32_t us) {
    int ends[2], status;
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(ends[0]);
        started = ends[1];
        train_for_ever(args);
    }
    close(ends[1]);
    ssize_t got = read(ends[0], &byte, 1); // its first step is done, so it went on
    sleep_us(us);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    close(ends[0]);
    if (got != 1 || WIFEXITED(status))
        fail_msg("the run did not go on (status %d)", status);
}

static uint64_t number_of(const char *variable, uint64_t otherwise) {
    const char *text = getenv(variable);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static void kill_often(const char *const *args, const char *checkpoints, uint64_t kills) {
    uint64_t i = 0;
    int64_t known = 0;
    uint32_t span = 20000; // µs in which a kill falls; widened on a slow disk until runs get as far as a checkpoint
    int without = 0, grew = 0;
    char path[4096];
    if (kills == 0)
        skip();
    for (; i < kills || (grew == 0 && i < kills + 40); i++) {
        uint32_t words[4];
        mezzo_checkpoint c = {0};
        mz_philox((mz_philox_key){number_of("MEZZO_KILLS_SEED", 20), 0, 0}, i, words);
        kill_one(args, words[0] % span);
        mezzo_status status = mezzo_checkpoint_find(checkpoints, false, path, sizeof path);
        if (status == MEZZO_OK)
            must(mezzo_checkpoint_describe(path, &c));
        if (c.step < known)
            fail_msg("kill %d: step %lld was whole before, now %lld is the newest: %s", (int)i, (long long)known,
                     (long long)c.step, mezzo_error_message());
        grew += c.step > known;
        without = c.step > known ? 0 : without + 1;
        known = c.step;
        if (without == 4 && span < 640000) {
            span *= 2;
            without = 0;
        }
    }
    print_message("step %lld after %d kills; %d runs got further\n", (long long)known, (int)i, grew);
    assert_true(grew > 0);
}

TEST(test_kills) {
    kill_often(of_text, "killed/checkpoints", number_of("MEZZO_KILLS", 50));
}

TEST(test_kills_of_a_run_on_pictures) {
    const mz_radio_options cities = {
        .maps = 4, .transmitters = 1, .size = 16, .extent = 64, .seed = 3, .threads = 1, .out = "maps"};
    mz_radio_written written;
    tiny_clean("maps");
    mezzo_status status = mz_radio_write(&cities, NULL, &written);
    if (status == MEZZO_ERR_UNSUPPORTED)
        skip();
    must(status);
    kill_often(of_pictures, "killed-pictures/checkpoints", number_of("MEZZO_KILLS_PICTURES", 10));
}

static int setup(void **state) {
    (void)state;
    tiny_text();
    tiny_clean("killed");
    tiny_clean("killed-pictures");
    return 0;
}

TEST_GROUP(setup, NULL)
