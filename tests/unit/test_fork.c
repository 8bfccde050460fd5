// A process that trained with several threads forks, and the child trains with several, too.
#include <omp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

static int count_threads(void) {
    int n = 0;
#pragma omp parallel num_threads(2)
#pragma omp atomic
    n++;
    return n;
}

TEST(test_parallel_regions_after_a_fork) {
    int status = 0;
    mezzo_device *device;
    assert_int_equal(mezzo_device_open("cpu", 2, &device), MEZZO_OK);
    assert_int_equal(count_threads(), 2);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60); // ends a child that waits for threads that are not there
        _exit(count_threads());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 2);
    assert_int_equal(count_threads(), 2);
    mezzo_device_close(device);
}
