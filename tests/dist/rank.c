// One rank of a job, for tests and for GPU machines:  dist_rank WHAT [DEVICE]
//   check     every collective, in and out of place, several sizes; the same captured, where the device captures
//   records   host records: gather, broadcast, barrier
//   loop      all-reduces until the job fails; prints "rank R is process P" first
//   reduce    the same with records alone
//   leave     rank 1 leaves, the others go on
//   differ    rank 1 calls another record than the others
//   give-up   rank 1 ends by an error of its own
//   speed     milliseconds and GB/s of bus for 16, 128 and 498 MiB
// Exit 0, or 3 after one line on stderr.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "dist/group.h"

static mz_group *group;
static mezzo_device *device;
static int rank, size;

#define TRY(expr)                                                                                                      \
    do {                                                                                                               \
        if ((expr) != MEZZO_OK)                                                                                        \
            return 1;                                                                                                  \
    } while (0)

static int wrong(const char *what, size_t count, size_t at, double got, double expected) {
    mz_fail(MEZZO_ERR_NUMERIC, "%s of %zu, element %zu: %g, not %g", what, count, at, got, expected);
    return 1;
}

static float value(int r, size_t i) { // sums of these are exact
    return (float)((int)(i % 97) - 40 + 3 * r);
}

typedef struct buffers {
    float *send, *recv; // device
    float *host;
    size_t bytes;
} buffers;

static int fill(const buffers *b, float *to, size_t n) {
    for (size_t i = 0; i < n; i++)
        b->host[i] = value(rank, i);
    TRY(device->backend->write(device, to, b->host, n * sizeof *b->host));
    return 0;
}

static float expected(const mz_collective *c, size_t i) {
    float sum = 0;
    const size_t n = c->count;
    switch (c->kind) {
    case MZ_ALL_REDUCE_SUM:
    case MZ_REDUCE_SCATTER_SUM:
        for (int r = 0; r < size; r++)
            sum += value(r, c->kind == MZ_ALL_REDUCE_SUM ? i : (size_t)rank * n + i);
        return sum;
    case MZ_ALL_GATHER:
        return value((int)(i / n), i % n);
    case MZ_ALL_TO_ALL:
        return value((int)(i / n), (size_t)rank * n + i % n);
    case MZ_SEND_RECEIVE:
        return value(c->from, i);
    default:
        return value(c->root, i);
    }
}

static int compare(const buffers *b, const mz_collective *c) {
    const size_t n = mz_collective_recv_count(c, size);
    TRY(device->backend->read(device, b->host, c->recv, n * sizeof *b->host));
    for (size_t i = 0; i < n; i++)
        if (b->host[i] != expected(c, i))
            return wrong(mz_collective_name(c->kind), c->count, i, b->host[i], expected(c, i));
    return 0;
}

static int run_one(const buffers *b, mz_collective c, float *from, bool capture) {
    const mz_backend *backend = device->backend;
    void *graph = NULL;
    if (fill(b, from, mz_collective_send_count(&c, size)) != 0)
        return 1;
    if (capture) {
        TRY(backend->capture_begin(device));
        mezzo_status status = device->comm->run(device->comm, device, &c);
        TRY(backend->capture_end(device, &graph));
        TRY(status);
        for (int i = 0; i < 3; i++) { // the same result again and again
            if (i > 0 && fill(b, from, mz_collective_send_count(&c, size)) != 0)
                return 1;
            TRY(backend->capture_launch(device, graph));
            if (compare(b, &c) != 0)
                return 1;
        }
        backend->capture_free(device, graph);
        return 0;
    }
    TRY(device->comm->run(device->comm, device, &c));
    return compare(b, &c);
}

static int check_count(const buffers *b, size_t count, bool capture) {
    for (int kind = 0; kind < MZ_COLLECTIVE_COUNT; kind++)
        for (int root = 0; root < (kind == MZ_BROADCAST ? size : 1); root++) {
            mz_collective c = {.kind = (mz_collective_kind)kind,
                               .send = b->send,
                               .recv = b->recv,
                               .count = count,
                               .dtype = MEZZO_F32,
                               .root = root};
            if (kind == MZ_SEND_RECEIVE) { // ranks send different numbers of elements, rank 0 none
                c.root = (rank + 1) % size;
                c.from = (rank + size - 1) % size;
                c.count = count * (size_t)rank;
                c.received = count * (size_t)c.from;
            }
            if (run_one(b, c, b->send, capture) != 0)
                return 1;
            float *from = b->recv; // in place
            if (kind == MZ_REDUCE_SCATTER_SUM)
                c.recv = b->recv + (size_t)rank * count;
            else if (kind == MZ_ALL_GATHER)
                from = b->recv + (size_t)rank * count;
            c.send = from;
            if (kind != MZ_ALL_TO_ALL && kind != MZ_SEND_RECEIVE && run_one(b, c, from, capture) != 0)
                return 1;
        }
    return 0;
}

// Broadcasts from all ranks, which run together: an all-gather.
static int check_together(const buffers *b, size_t count) {
    mz_collective all[64];
    if (size > (int)MZ_COUNT(all) || fill(b, b->send, count) != 0)
        return 1;
    for (int root = 0; root < size; root++)
        all[root] = (mz_collective){.kind = MZ_BROADCAST,
                                    .send = b->send,
                                    .recv = b->recv + (size_t)root * count,
                                    .count = count,
                                    .dtype = MEZZO_F32,
                                    .root = root,
                                    .more = root == 0 ? size - 1 : 0};
    TRY(device->comm->run(device->comm, device, all));
    return compare(b, &(mz_collective){.kind = MZ_ALL_GATHER, .recv = b->recv, .count = count});
}

// Sends that run together: different numbers to the next rank, none from rank 0, and the same number to the one before.
static int check_sent_together(const buffers *b, size_t count) {
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    mz_collective all[] = {{.kind = MZ_SEND_RECEIVE,
                            .send = b->send,
                            .recv = b->recv + count,
                            .count = count * (size_t)rank,
                            .dtype = MEZZO_F32,
                            .root = next,
                            .from = before,
                            .received = count * (size_t)before,
                            .more = 1},
                           {.kind = MZ_SEND_RECEIVE,
                            .send = b->send,
                            .recv = b->recv,
                            .count = count,
                            .dtype = MEZZO_F32,
                            .root = before,
                            .from = next,
                            .received = count}};
    if (fill(b, b->send, count * (size_t)size) != 0)
        return 1;
    TRY(device->comm->run(device->comm, device, all));
    return compare(b, &all[0]) || compare(b, &all[1]);
}

static int allocate(buffers *b, size_t elements) {
    void *send, *recv;
    b->bytes = elements * sizeof *b->host;
    TRY(device->backend->alloc(device, b->bytes, &send));
    TRY(device->backend->alloc(device, b->bytes, &recv));
    *b = (buffers){.send = send, .recv = recv, .host = mz_alloc(elements, sizeof *b->host), .bytes = b->bytes};
    return b->host == NULL;
}

static void release(buffers *b) {
    device->backend->release(device, b->send);
    device->backend->release(device, b->recv);
    mz_free(b->host);
}

static int check(void) {
    static const size_t counts[] = {1, 3, 1000, 100003};
    buffers b = {0};
    int bad = allocate(&b, counts[3] * (size_t)size);
    for (size_t i = 0; i < MZ_COUNT(counts) && !bad; i++) {
        bad = check_count(&b, counts[i], false) || check_together(&b, counts[i]) || check_sent_together(&b, counts[i]);
        if (!bad && device->backend->capture_begin != NULL)
            bad = check_count(&b, counts[i], true);
    }
    release(&b);
    return bad;
}

static int records(void) {
    int64_t one = 100 + rank, all[64], data[1000];
    for (int i = 0; i < 50; i++) {
        one += i;
        TRY(mz_group_gather(group, "numbers", &one, sizeof one, all));
        for (int r = 0; r < size; r++)
            if (all[r] != one - rank + r)
                return wrong("gather", 1, (size_t)r, (double)all[r], (double)(one - rank + r));
        for (int k = 0; k < 1000; k++)
            data[k] = rank == i % size ? i + k : -1;
        TRY(mz_group_broadcast(group, "data", i % size, data, sizeof data));
        for (int k = 0; k < 1000; k++)
            if (data[k] != i + k)
                return wrong("broadcast", 1000, (size_t)k, (double)data[k], i + k);
        TRY(mz_group_barrier(group, "end"));
    }
    return 0;
}

static int loop(bool tensors) {
    buffers b = {0};
    char where[48];
    printf("rank %d is process %ld\n", rank, (long)getpid());
    fflush(stdout);
    if (tensors && allocate(&b, 1 << 18) != 0)
        return 1;
    for (int step = 1;; step++) {
        snprintf(where, sizeof where, "step %d", step);
        mz_group_at(group, where);
        if (tensors) {
            const mz_collective c = {
                .kind = MZ_ALL_REDUCE_SUM, .send = b.send, .recv = b.recv, .count = 1 << 18, .dtype = MEZZO_F32};
            TRY(device->comm->run(device->comm, device, &c));
            TRY(device->backend->sync(device));
        } else {
            TRY(mz_group_barrier(group, "loop"));
        }
        usleep(2000);
    }
}

static int leave(bool abort) {
    if (rank == 1) {
        if (abort)
            mz_fail(MEZZO_ERR_MEMORY, "cuda: out of device memory (this is a test)");
        return abort;
    }
    TRY(mz_group_barrier(group, "never"));
    return 0;
}

static int differ(void) {
    TRY(mz_group_barrier(group, rank == 1 ? "one thing" : "another"));
    return 0;
}

static int time_one(const buffers *b, mz_collective_kind kind, size_t bytes) {
    const size_t whole = bytes / sizeof(float), piece = whole / (size_t)size;
    const mz_collective c = {.kind = kind,
                             .send = b->send,
                             .recv = b->recv,
                             .count = kind == MZ_ALL_REDUCE_SUM ? whole : piece,
                             .dtype = MEZZO_F32};
    const int times = 20;
    double seconds;
    for (int i = -5; i < times; i++) {
        if (i == 0)
            TRY(mezzo_device_mark(device, 0));
        TRY(device->comm->run(device->comm, device, &c));
    }
    TRY(mezzo_device_mark(device, 1));
    TRY(mezzo_device_elapsed(device, 0, 1, &seconds));
    seconds /= times;
    const double bus = (kind == MZ_ALL_REDUCE_SUM ? 2.0 : 1.0) * (size - 1) / size * (double)bytes / seconds;
    if (rank == 0)
        printf("%d ranks, %-14s %4zu MiB: %8.3f ms %7.1f GB/s of bus\n", size, mz_collective_name(kind), bytes >> 20,
               1e3 * seconds, 1e-9 * bus);
    return 0;
}

static int speed(void) {
    static const size_t mib[] = {1, 16, 128, 498};
    static const mz_collective_kind kinds[] = {MZ_ALL_REDUCE_SUM, MZ_REDUCE_SCATTER_SUM, MZ_ALL_GATHER, MZ_ALL_TO_ALL};
    buffers b = {0};
    int bad = allocate(&b, (size_t)498 << 18);
    for (size_t k = 0; k < MZ_COUNT(kinds) && !bad; k++)
        for (size_t i = 0; i < MZ_COUNT(mib) && !bad; i++)
            bad = time_one(&b, kinds[k], mib[i] << 20);
    release(&b);
    return bad;
}

static int act(const char *what) {
    if (strcmp(what, "check") == 0)
        return check();
    if (strcmp(what, "records") == 0)
        return records();
    if (strcmp(what, "loop") == 0 || strcmp(what, "reduce") == 0)
        return loop(what[0] == 'l');
    if (strcmp(what, "leave") == 0 || strcmp(what, "give-up") == 0)
        return leave(what[0] == 'g');
    if (strcmp(what, "differ") == 0)
        return differ();
    return speed();
}

static mezzo_status open_all(const char *name) {
    mz_world world;
    char here[32];
    MEZZO_TRY(mz_world_read(&world));
    if (name != NULL) {
        MEZZO_TRY(mz_world_device(&world, name, 8, here, sizeof here));
        MEZZO_TRY(mezzo_device_open(here, 1, &device));
    }
    MEZZO_TRY(mz_group_open(&world, device, &group));
    rank = mz_group_rank_of(group);
    size = mz_group_size(group);
    return MEZZO_OK;
}

static void end_now(int number) {
    (void)number;
    _exit(4);
}

// A rank whose thread waits for a dead one, and does not return.
static void on_failure(void *user, const char *line, bool tells) {
    const char *to = getenv("MEZZO_TELL_FD");
    (void)user, (void)tells;
    if (to != NULL && dprintf(atoi(to), "%s\n", line) < 0)
        fprintf(stderr, "nobody to tell\n");
    signal(SIGALRM, end_now);
    alarm(3);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "records";
    mz_group_on_failure(on_failure, NULL);
    int bad = open_all(argc > 2 ? argv[2] : NULL) != MEZZO_OK || act(what) != 0;
    if (bad) {
        fprintf(stderr, "rank %d: %s\n", rank, mezzo_error_message());
        mz_group_abort(group, NULL);
    } else {
        printf("rank %d of %d on host %d of %d: good, %s\n", rank, size, mz_group_host(group), mz_group_hosts(group),
               mz_group_transport(group));
    }
    mz_group_close(group);
    mezzo_device_close(device);
    return bad ? 3 : 0;
}
