// A run that writes a checkpoint every step is killed with SIGKILL at 50 random moments (MEZZO_KILLS=2000: so many).
// Every time the newest whole checkpoint is found, is not older than the one known before, and the next process goes on
// from it. Seen to fail where
// --resume auto did not start again after a kill inside the very first save.
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

// The child: trains until it is killed. Leaves with 2 on an error.
static void train_for_ever(void) {
    mezzo_config *config;
    const char *rest[32];
    int n;
    const char *const args[] = {"--layers=1",      "--heads=2",           "--d-model=16",  "--seq-len=8",
                                "--batch-size=2",  "--device=cpu",        "--threads=1",   TINY_DATA,
                                "--eval-every=3",  "--eval-iters=1",      "--log-every=1", "--sample-every=-1",
                                "--steps=1000000", "--precision=fp16",    "--out=killed",  "--keep-last=2",
                                "--resume=auto",   "--checkpoint-every=1"};
    const mezzo_hooks hooks = {.progress = tell_parent};
    if (mezzo_config_create(&config) == MEZZO_OK &&
        mezzo_config_args(config, (int)MZ_COUNT(args), args, rest, &n) == MEZZO_OK)
        mezzo_run_train(config, &hooks, NULL);
    fprintf(stderr, "the run ended: %s\n", mezzo_error_message());
    _exit(2);
}

static void sleep_us(uint32_t us) {
    struct timespec t = {.tv_sec = 0, .tv_nsec = (long)us * 1000};
    nanosleep(&t, NULL);
}

static void kill_one(uint32_t us) {
    int ends[2], status;
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(ends[0]);
        started = ends[1];
        train_for_ever();
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

static void test_kills(void **state) {
    (void)state;
    const char *asked = getenv("MEZZO_KILLS");
    const uint64_t kills = asked != NULL ? strtoull(asked, NULL, 10) : 50;
    int64_t known = 0;
    uint32_t span = 20000; // µs in which a kill falls; widened on a slow disk until runs get as far as a checkpoint
    int without = 0, grew = 0;
    char path[4096];
    for (uint64_t i = 0; i < kills; i++) {
        uint32_t words[4];
        mezzo_checkpoint c = {0};
        mz_philox((mz_philox_key){20, 0, 0}, i, words);
        kill_one(words[0] % span);
        mezzo_status status = mezzo_checkpoint_find("killed/checkpoints", false, path, sizeof path);
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
    print_message("step %lld after %d kills; %d runs got further\n", (long long)known, (int)kills, grew);
    assert_true(grew > 0);
}

static int setup(void **state) {
    (void)state;
    tiny_text();
    tiny_clean("killed");
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kills)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
