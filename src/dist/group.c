// Opens and closes a group: the rendezvous, MPI or the device's transport, and the table of ranks.
#define _GNU_SOURCE
#include "dist/group.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "dist/hub.h"
#include "dist/link.h"
#include "dist/member.h"

struct mz_group {
    mz_comm comm; // must be first: it is device->comm
    mz_world world;
    mezzo_device *device;
    mz_hub *hub; // of rank 0
    mz_member *member;
    const mz_link *link;           // MPI, once it is open; NULL: none
    const mz_transport *transport; // of the device; NULL: none
    void *channel;                 // of the transport
    bool gave_up;
    char version[MZ_LINK_TEXT];
};

// --- meeting -------------------------------------------------------------------------------------------------------
static mezzo_status open_mpi(mz_group *g) {
    int rank = 0, size = 0;
    char why[MZ_LINK_TEXT];
    const mz_link *link;
    MEZZO_TRY(mz_link_open(&link));
    if (link->open(&rank, &size, g->version, why) != 0)
        return mz_fail(MEZZO_ERR_DEVICE, "MPI does not start: %s", why);
    if (rank != g->world.rank || size != g->world.size)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s say rank %d of %d, MPI rank %d of %d: ranks on CPUs are started by mezzo launch or by "
                       "mpirun of the MPI that this mezzo was built with (%s)",
                       g->world.started, g->world.rank, g->world.size, rank, size, g->version);
    g->link = link;
    return MEZZO_OK;
}

typedef struct place { // where rank 0 listens
    char address[256], secret[128];
    int port;
} place;

static mezzo_status listen_and_tell(mz_group *g, place *at, int *fd) {
    MEZZO_TRY(mz_wire_listen(&g->world, fd, at->address, &at->port));
    if (g->world.secret[0] != '\0')
        memcpy(at->secret, g->world.secret, sizeof at->secret);
    else
        MEZZO_TRY(mz_wire_secret(at->secret));
    if (g->world.meeting == MZ_MEET_FILE)
        MEZZO_TRY(mz_wire_publish(g->world.file, at->address, at->port, at->secret));
    return MEZZO_OK;
}

static mezzo_status meet_as_first(mz_group *g, double deadline) {
    place at = {.port = 0};
    int fd = -1, ends[2];
    bool refused;
    char why[MZ_LINK_TEXT];
    mezzo_status status = listen_and_tell(g, &at, &fd);
    if (g->world.meeting == MZ_MEET_MPI) { // the other ranks wait for this record; port 0 means that there is none
        if (status != MEZZO_OK)
            at.port = 0;
        if (g->link->bytes(0, &at, sizeof at, why) != 0 && status == MEZZO_OK)
            status = mz_fail(MEZZO_ERR_IO, "MPI does not carry where the ranks meet: %s", why);
    }
    if (status == MEZZO_OK && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        status = mz_fail(MEZZO_ERR_IO, "no socket for rank 0's own records");
    if (status != MEZZO_OK) {
        if (fd >= 0)
            close(fd);
        return status;
    }
    status = mz_hub_start(&g->world, at.secret, fd, ends[0], &g->hub);
    if (status == MEZZO_OK)
        status = mz_member_join(&g->world, at.secret, ends[1], deadline, &g->member, &refused);
    else
        close(ends[1]);
    if (g->world.meeting == MZ_MEET_FILE)
        (void)unlink(g->world.file);
    return status;
}

static mezzo_status meet_at(mz_group *g, const place *at, double until, double deadline, bool *again) {
    int fd;
    *again = true;
    MEZZO_TRY(mz_wire_connect(&g->world, at->address, at->port, until, &fd));
    return mz_member_join(&g->world, at->secret, fd, deadline, &g->member, again);
}

// Meets the other ranks by the file, which may belong to an older job: where a rank does not answer or lets none in,
// this one asks again until the deadline.
static mezzo_status meet_by_file(mz_group *g, double deadline) {
    mezzo_status status = MEZZO_OK;
    bool found = false, again = true;
    while (again && mz_seconds() < deadline) {
        place at = {.port = 0};
        double until = mz_seconds() + 1 < deadline ? mz_seconds() + 1 : deadline;
        if (mz_wire_look_up(g->world.file, at.address, &at.port, at.secret)) {
            found = true;
            status = meet_at(g, &at, until, deadline, &again);
            if (status == MEZZO_OK)
                return status;
        }
        poll(NULL, 0, 50);
    }
    if (!found)
        return mz_fail(MEZZO_ERR_IO, "the rendezvous file %s did not appear: has rank 0 started, with the same path?",
                       g->world.file);
    return status;
}

static mezzo_status meet(mz_group *g) {
    double deadline = mz_seconds() + mz_patience_read().join;
    if (g->world.rank == 0)
        return meet_as_first(g, deadline);
    if (g->world.meeting == MZ_MEET_FILE)
        return meet_by_file(g, deadline);
    place at = {.port = g->world.port};
    bool again;
    char why[MZ_LINK_TEXT];
    memcpy(at.address, g->world.address, sizeof at.address);
    memcpy(at.secret, g->world.secret, sizeof at.secret);
    if (g->world.meeting == MZ_MEET_MPI && g->link->bytes(0, &at, sizeof at, why) != 0)
        return mz_fail(MEZZO_ERR_IO, "MPI does not carry where the ranks meet: %s", why);
    if (at.port == 0)
        return mz_fail(MEZZO_ERR_IO, "rank 0 is not listening; see its message");
    return meet_at(g, &at, deadline, deadline, &again);
}

// --- the device ----------------------------------------------------------------------------------------------------
static int link_asks(void *user) {
    return mz_member_failed(user);
}

static mezzo_status comm_check(mz_comm *comm) {
    return mz_member_check(((mz_group *)(void *)comm)->member);
}

static mezzo_status comm_run(mz_comm *comm, mezzo_device *device, const mz_collective *what) {
    mz_group *g = (mz_group *)(void *)comm;
    char why[MZ_LINK_TEXT] = "";
    MEZZO_TRY(mz_member_check(g->member));
    mz_member_begin(g->member, mz_collective_name(what->kind), g->transport == NULL);
    if (g->transport != NULL) {
        mezzo_status status = g->transport->run(device, g->channel, what);
        return mz_member_failed(g->member) ? mz_member_check(g->member) : status;
    }
    bool fine = true;
    for (int i = 0; i <= what->more && fine; i++)
        fine = g->link->run(&what[i], g->world.rank, link_asks, g->member, why) == 0;
    mz_member_end(g->member);
    if (fine)
        return MEZZO_OK;
    MEZZO_TRY(mz_member_check(g->member));
    return mz_fail(MEZZO_ERR_DEVICE, "%s of %zu %s: %s", mz_collective_name(what->kind), what->count,
                   mezzo_dtype_name(what->dtype), why);
}

static mezzo_status open_transport(mz_group *g) {
    unsigned char id[MZ_TRANSPORT_ID_BYTES] = {0};
    const mz_transport *t = g->device->backend->transport;
    mezzo_status status = g->world.rank == 0 ? t->make_id(g->device, id) : MEZZO_OK;
    if (status != MEZZO_OK)
        return status;
    MEZZO_TRY(mz_group_broadcast(g, "transport", 0, id, sizeof id));
    mz_member_begin(g->member, "meeting by", true);
    MEZZO_TRY(t->open(g->device, id, g->world.rank, g->world.size, &g->channel));
    mz_member_end(g->member);
    g->transport = t;
    mz_member_on_abort(g->member, t->abort, g->channel);
    return t->version(g->device, g->version, sizeof g->version);
}

static mezzo_status connect_device(mz_group *g) {
    if (g->device == NULL)
        return MEZZO_OK;
    if (g->device->backend->transport != NULL)
        MEZZO_TRY(open_transport(g));
    else if (g->link == NULL)
        MEZZO_TRY(open_mpi(g));
    g->device->comm = &g->comm;
    return mz_group_barrier(g, "connected");
}

// --- the clock -----------------------------------------------------------------------------------------------------
static double wall(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Compares clocks: each rank reads its own when the hub's answer arrives, so readings are within a round trip of each
// other.
static mezzo_status compare_clocks(mz_group *g) {
    mz_group_rank *table = mz_member_table(g->member);
    double *all = mz_alloc((size_t)g->world.size, 2 * sizeof *all);
    if (all == NULL)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = mz_group_barrier(g, "clock");
    double one[2] = {wall(), mz_seconds()};
    if (status == MEZZO_OK)
        status = mz_group_barrier(g, "clock");
    one[1] = mz_seconds() - one[1];
    if (status == MEZZO_OK)
        status = mz_group_gather(g, "clocks", one, sizeof one, all);
    for (int r = 0; r < g->world.size && status == MEZZO_OK; r++) {
        table[r].clock_skew = all[2 * r] - all[0];
        table[r].round_trip = all[2 * r + 1];
    }
    mz_free(all);
    return status;
}

// --- opening and closing -------------------------------------------------------------------------------------------
mezzo_status mz_group_open(const mz_world *world, mezzo_device *device, mz_group **out) {
    mezzo_status status;
    *out = NULL;
    if (world->size == 1)
        return MEZZO_OK;
    mz_group *g;
    MEZZO_TRY(MZ_NEW(g, 1));
    g->world = *world;
    g->device = device;
    g->comm = (mz_comm){.rank = world->rank, .size = world->size, .run = comm_run, .check = comm_check};
    snprintf(g->version, sizeof g->version, "none");
    if (world->meeting == MZ_MEET_MPI)
        MEZZO_TRY_GOTO(status, open_mpi(g));
    MEZZO_TRY_GOTO(status, meet(g));
    MEZZO_TRY_GOTO(status, connect_device(g));
    MEZZO_TRY_GOTO(status, compare_clocks(g));
    *out = g;
    return MEZZO_OK;
fail:
    if (g->member != NULL)
        mz_group_abort(g, NULL);
    g->gave_up = true;
    mz_group_close(g);
    return status;
}

void mz_group_close(mz_group *g) {
    if (g == NULL)
        return;
    bool failed = g->gave_up || g->member == NULL || mz_member_failed(g->member);
    if (g->device != NULL)
        g->device->comm = NULL;
    if (g->transport != NULL) {
        mz_member_on_abort(g->member, NULL, NULL);
        g->transport->close(g->device, g->channel);
    }
    if (!failed && mz_member_goodbye(g->member, g->link != NULL) && g->link != NULL)
        g->link->close();
    mz_member_free(g->member);
    mz_hub_join(g->hub);
    mz_free(g);
}

void mz_group_abort(mz_group *g, const char *reason) {
    char line[400]; // a copy, because the thread's message may change before it is sent
    if (g == NULL)
        return;
    snprintf(line, sizeof line, "%s", reason != NULL ? reason : mezzo_error_message());
    g->gave_up = true;
    mz_member_abort(g->member, line);
}

// --- queries -------------------------------------------------------------------------------------------------------
int mz_group_rank_of(const mz_group *g) {
    return g != NULL ? g->world.rank : 0;
}

int mz_group_size(const mz_group *g) {
    return g != NULL ? g->world.size : 1;
}

int mz_group_host(const mz_group *g) {
    return g != NULL ? mz_group_ranks(g)[g->world.rank].host : 0;
}

int mz_group_hosts(const mz_group *g) {
    int hosts = 1;
    for (int r = 0; r < mz_group_size(g) && g != NULL; r++)
        if (mz_group_ranks(g)[r].host >= hosts)
            hosts = mz_group_ranks(g)[r].host + 1;
    return hosts;
}

const mz_group_rank *mz_group_ranks(const mz_group *g) {
    return g != NULL ? mz_member_table(g->member) : NULL;
}

const char *mz_group_transport(const mz_group *g) {
    return g != NULL ? g->version : "none";
}

// --- operations ----------------------------------------------------------------------------------------------------
mezzo_status mz_group_run(mz_group *g, mezzo_device *device, const mz_collective *what) {
    if (g != NULL)
        return comm_run(&g->comm, device, what);
    if (what->send == what->recv)
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_INVALID,
                   "%s: a group of one has nothing to exchange, and copies nothing: send must be "
                   "recv",
                   mz_collective_name(what->kind));
}

mezzo_status mz_group_gather(mz_group *g, const char *name, const void *one, size_t bytes, void *all) {
    if (g != NULL)
        return mz_member_gather(g->member, name, one, bytes, all, bytes * (size_t)g->world.size);
    if (all != one && bytes > 0)
        memmove(all, one, bytes);
    return MEZZO_OK;
}

mezzo_status mz_group_broadcast(mz_group *g, const char *name, int root, void *data, size_t bytes) {
    if (g == NULL)
        return MEZZO_OK;
    return mz_member_gather(g->member, name, data, g->world.rank == root ? bytes : 0, data, bytes);
}

mezzo_status mz_group_barrier(mz_group *g, const char *name) {
    return g != NULL ? mz_member_gather(g->member, name, NULL, 0, NULL, 0) : MEZZO_OK;
}

void mz_group_at(mz_group *g, const char *where) {
    if (g != NULL)
        mz_member_at(g->member, where);
}
