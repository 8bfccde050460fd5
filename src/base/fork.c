// Lets a process fork that has run parallel regions: OpenMP's threads do not exist in the child, which would wait for
// them for ever. So GNU's threads are released before a fork, and both processes start their own when they need them.
// LLVM's runtime does so by itself, and holds its locks while handlers run.
#define _GNU_SOURCE
#include "base/base.h"

#ifdef __clang__
void mz_survive_fork(void) {}
#else
#include <omp.h>
#include <pthread.h>

static void before_fork(void) {
    (void)omp_pause_resource_all(omp_pause_hard);
}

static void install(void) {
    pthread_atfork(before_fork, NULL, NULL);
}

void mz_survive_fork(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}
#endif
