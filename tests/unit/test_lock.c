// One writer of a run folder: a second one is refused and told who has it, and a dead one stands in nobody's way.
// Seen to fail with a lock of the process (F_SETLK for F_OFD_SETLK): two runs of one process shared it.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/file.h"
#include "test.h"

#ifdef __linux__
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

static void expect_refused(const char *folder, pid_t owner) {
    mz_lock second;
    char says[64];
    snprintf(says, sizeof says, "process %ld on ", (long)owner);
    must_fail(mz_lock_take(folder, &second), MEZZO_ERR_INVALID, says);
    assert_int_equal(second.fd, 0);
}

TEST(test_a_second_owner_is_refused) {
    mz_lock first, second;
    assert_int_equal(mz_dir_create("one"), MEZZO_OK);
    assert_int_equal(mz_lock_take("one", &first), MEZZO_OK);
    expect_refused("one", getpid());
    expect_refused("one", getpid()); // and again: the first try took nothing away
    mz_lock_release(&first);
    assert_int_equal(mz_lock_take("one", &second), MEZZO_OK);
    mz_lock_release(&second);
    mz_lock_release(&second);
}

TEST(test_a_killed_owner_is_none) {
    int ends[2], status;
    char byte;
    mz_lock ours;
    assert_int_equal(mz_dir_create("killed"), MEZZO_OK);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (mz_lock_take("killed", &ours) != MEZZO_OK || write(ends[1], "l", 1) != 1)
            _exit(1);
        pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    expect_refused("killed", child);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(mz_lock_take("killed", &ours), MEZZO_OK);
    mz_lock_release(&ours);
}

TEST(test_a_folder_that_is_gone) {
    mz_lock lock, none = {0};
    assert_int_equal(mz_dir_remove("gone"), MEZZO_OK);
    assert_int_equal(mz_dir_create("gone"), MEZZO_OK);
    assert_int_equal(mz_lock_take("gone", &lock), MEZZO_OK);
    assert_int_equal(mz_lock_renew(&lock, "gone"), MEZZO_OK);
    assert_int_equal(mz_file_write_atomic("gone/config.yaml", "", 0), MEZZO_OK);
    assert_int_equal(mz_file_remove("gone/.lock"), MEZZO_OK);
    assert_int_equal(mz_lock_renew(&lock, "gone"), MEZZO_OK); // the folder is there: the file is created again
    assert_true(mz_path_exists("gone/.lock"));
    expect_refused("gone", getpid());
    assert_int_equal(mz_file_remove("gone/.lock"), MEZZO_OK); // the first files of a folder that is removed
    assert_int_equal(mz_file_remove("gone/config.yaml"), MEZZO_OK);
    assert_int_equal(mz_lock_renew(&lock, "gone"), MEZZO_ERR_IO);
    assert_false(mz_path_exists("gone/.lock"));
    assert_int_equal(mz_dir_remove("gone"), MEZZO_OK);
    assert_int_equal(mz_lock_renew(&lock, "gone"), MEZZO_ERR_IO);
    assert_int_equal(mz_dir_create("gone"), MEZZO_OK); // another one of the same name
    assert_int_equal(mz_lock_renew(&lock, "gone"), MEZZO_ERR_IO);
    assert_int_equal(mz_lock_renew(&none, "gone"), MEZZO_OK); // a file system without locks: nothing is known
    mz_lock_release(&lock);
    assert_int_equal(mz_lock_take("no_such_folder", &lock), MEZZO_ERR_IO);
}

#ifdef __linux__
static void count_warning(void *user, const char *topic, const char *line) {
    *(int *)user += strcmp(topic, "warn") == 0 && strstr(line, "this file system has no locks") != NULL;
}

// As NFS without its lock daemon answers: locks are refused for want of them.
static int take_without_locks(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fcntl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 37, 0, 1), // F_OFD_SETLK
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOLCK),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {.len = MZ_COUNT(steps), .filter = steps};
    mz_lock lock;
    int warnings = 0;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0)
        return 77; // an emulator of another processor
    mezzo_log_set(count_warning, &warnings);
    return mz_lock_take("plain", &lock) == MEZZO_OK && warnings == 1 ? 0 : 1;
}

TEST(test_a_file_system_without_locks) {
    int status;
    assert_int_equal(mz_dir_create("plain"), MEZZO_OK);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(take_without_locks());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}
#endif

TEST(test_a_link_is_no_lock) {
    mz_lock lock;
    assert_int_equal(mz_dir_remove("linked"), MEZZO_OK);
    assert_int_equal(mz_dir_create("linked"), MEZZO_OK);
    assert_int_equal(mz_file_write_atomic("precious", "text", 4), MEZZO_OK);
    assert_int_equal(symlink("../precious", "linked/.lock"), 0);
    assert_int_equal(mz_lock_take("linked", &lock), MEZZO_ERR_IO);
    char *text;
    size_t n;
    assert_int_equal(mz_file_read("precious", 16, &text, &n), MEZZO_OK);
    assert_int_equal(n, 4);
    mz_free(text);
}
