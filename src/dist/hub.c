// Runs the hub's loop: polls, reads, serves and checks the clock.
#define _GNU_SOURCE
#include "dist/hub.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/decimal.h"

enum { TICK_MS = 250, STRANGERS = 32 };
static const double BEAT_EVERY = 0.5, GREETING = 10, FAREWELL = 2;

typedef struct member { // a connection, which belongs to a rank once it has greeted
    int fd;             // -1: closed
    bool joined, left, arrived;
    double heard, since;
    mz_wire_buffer in, out, record; // record: its part of the present gather
    mz_wire_hello hello;
    mz_wire_beat beat;
} member;

struct mz_hub {
    pthread_t thread;
    mz_patience patience;
    int size, listen_fd;
    char secret[128];
    member *ranks;               // [size]
    member strangers[STRANGERS]; // connections that have not greeted yet
    struct pollfd *polls;        // [size + STRANGERS + 1]
    int joined, left, arrived;
    unsigned refused; // number of processes with another secret
    bool welcomed, failed;
    double began, looked, beaten, failed_at, left_at;
    double gather_since;
    int gather_first; // the rank that called first
    char gather_name[MZ_WIRE_NAME];
};

static double read_seconds(const char *name, double initial) {
    const char *text = getenv(name);
    double value = text != NULL ? mz_strtod(text, NULL) : 0;
    return value >= 0.1 && value <= 1e6 ? value : initial;
}

mz_patience mz_patience_read(void) {
    return (mz_patience){.join = read_seconds("MEZZO_JOIN_SECONDS", 60),
                         .silence = read_seconds("MEZZO_SILENCE_SECONDS", 8),
                         .meeting = read_seconds("MEZZO_PATIENCE_SECONDS", 1800)};
}

// --- sending -------------------------------------------------------------------------------------------------------
static void put(member *m, const mz_wire_frame *frame, const void *bytes) {
    if (m->fd < 0 || mz_wire_append(&m->out, frame, sizeof *frame) != MEZZO_OK ||
        mz_wire_append(&m->out, bytes, frame->bytes) != MEZZO_OK)
        return; // the connection has ended, or memory has: the rank's silence will show it
    (void)mz_wire_flush(m->fd, &m->out);
}

static void shut(member *m) {
    if (m->fd >= 0)
        close(m->fd);
    m->fd = -1;
    mz_wire_free(&m->in);
    mz_wire_free(&m->out);
    mz_wire_free(&m->record);
}

// --- failing -------------------------------------------------------------------------------------------------------
static void describe(const member *m, char *line, size_t size) {
    snprintf(line, size, "rank %d (process %lld on %s)", m->hello.rank, (long long)m->hello.process, m->hello.host);
}

// Appends ", in all-reduce 18 since 2.1 s (step 120)".
static void describe_doing(const member *m, double now, char *line, size_t size) {
    const mz_wire_beat *b = &m->beat;
    int n = 0;
    line[0] = '\0';
    if (b->doing[0] != '\0')
        n = snprintf(line, size, ", %s %s %llu since %.1f s", b->waits ? "in" : "after", b->doing,
                     (unsigned long long)b->number, b->since + (now - m->heard));
    if (b->place[0] != '\0' && n >= 0 && (size_t)n < size)
        snprintf(line + n, size - (size_t)n, "%s%s%s", n > 0 ? " (" : ", at ", b->place, n > 0 ? ")" : "");
}

static void fail(mz_hub *hub, const member *culprit, const char *line) {
    if (hub->failed)
        return;
    hub->failed = true;
    hub->failed_at = mz_seconds();
    int teller = -1;
    for (int r = 0; r < hub->size && teller < 0; r++)
        if (hub->ranks[r].joined && !hub->ranks[r].left && &hub->ranks[r] != culprit)
            teller = r;
    mz_wire_frame frame = mz_wire_make(MZ_WIRE_FAILED, teller < 0 ? 0 : teller, "", strlen(line));
    for (int r = 0; r < hub->size; r++)
        if (hub->ranks[r].joined)
            put(&hub->ranks[r], &frame, line);
}

static void fail_of(mz_hub *hub, const member *m, const char *what) {
    char who[160], doing[160], line[MZ_WIRE_LINE];
    describe(m, who, sizeof who);
    describe_doing(m, mz_seconds(), doing, sizeof doing);
    snprintf(line, sizeof line, "%s %s%s", who, what, doing);
    fail(hub, m, line);
}

// --- records -------------------------------------------------------------------------------------------------------
static void deliver(mz_hub *hub) {
    size_t bytes = 0;
    for (int r = 0; r < hub->size; r++)
        bytes += hub->ranks[r].record.length;
    const mz_wire_frame frame = mz_wire_make(MZ_WIRE_GATHERED, 0, hub->gather_name, bytes);
    for (int r = 0; r < hub->size; r++) {
        member *m = &hub->ranks[r];
        bool fine = mz_wire_append(&m->out, &frame, sizeof frame) == MEZZO_OK;
        for (int from = 0; from < hub->size && fine; from++)
            fine = mz_wire_append(&m->out, hub->ranks[from].record.data, hub->ranks[from].record.length) == MEZZO_OK;
        if (!fine) {
            fail(hub, NULL, "rank 0 has no memory for the ranks' records");
            return;
        }
    }
    for (int r = 0; r < hub->size; r++) {
        hub->ranks[r].arrived = false;
        hub->ranks[r].record.length = 0;
        (void)mz_wire_flush(hub->ranks[r].fd, &hub->ranks[r].out);
    }
    hub->arrived = 0;
}

static void serve_gather(mz_hub *hub, member *m, const mz_wire_frame *frame, const char *bytes) {
    char line[MZ_WIRE_LINE];
    if (hub->arrived == 0) {
        snprintf(hub->gather_name, sizeof hub->gather_name, "%s", frame->name);
        hub->gather_since = mz_seconds();
        hub->gather_first = m->hello.rank;
    } else if (strcmp(hub->gather_name, frame->name) != 0) {
        snprintf(line, sizeof line, "rank %d is in \"%s\" but rank %d is in \"%s\": all ranks must do the same",
                 m->hello.rank, frame->name, hub->gather_first, hub->gather_name);
        fail(hub, NULL, line);
        return;
    }
    if (m->arrived || mz_wire_append(&m->record, bytes, frame->bytes) != MEZZO_OK) {
        fail(hub, NULL, "rank 0 has no memory for the ranks' records");
        return;
    }
    m->arrived = true;
    if (++hub->arrived == hub->size)
        deliver(hub);
}

// --- coming in -----------------------------------------------------------------------------------------------------
static void refuse(member *m, const char *line) {
    mz_wire_frame frame = mz_wire_make(MZ_WIRE_REFUSED, 0, "", strlen(line));
    put(m, &frame, line);
    shut(m);
}

static bool same_secret(const char *a, const char *b) { // takes equally long wherever they differ
    unsigned char off = 0;
    for (size_t i = 0; i < sizeof((mz_wire_hello *)0)->secret; i++)
        off |= (unsigned char)(a[i] ^ b[i]);
    return off == 0;
}

static void welcome(mz_hub *hub) {
    mz_group_rank *table = mz_alloc((size_t)hub->size, sizeof *table);
    if (table == NULL) {
        fail(hub, NULL, "rank 0 has no memory for the table of ranks");
        return;
    }
    int hosts = 0;
    for (int r = 0; r < hub->size; r++) {
        const mz_wire_hello *h = &hub->ranks[r].hello;
        table[r] = (mz_group_rank){.rank = r, .local_rank = h->local_rank, .host = -1, .process = h->process};
        snprintf(table[r].host_name, sizeof table[r].host_name, "%s", h->host);
        for (int q = 0; q < r && table[r].host < 0; q++)
            if (strcmp(table[q].host_name, table[r].host_name) == 0)
                table[r].host = table[q].host;
        if (table[r].host < 0)
            table[r].host = hosts++;
    }
    const mz_wire_frame frame = mz_wire_make(MZ_WIRE_WELCOME, 0, "", (size_t)hub->size * sizeof *table);
    for (int r = 0; r < hub->size; r++)
        put(&hub->ranks[r], &frame, table);
    hub->welcomed = true;
    mz_free(table);
}

static void greet(mz_hub *hub, member *m, const char *bytes) {
    mz_wire_hello hello;
    char line[MZ_WIRE_LINE];
    memcpy(&hello, bytes, sizeof hello);
    hello.secret[sizeof hello.secret - 1] = hello.version[sizeof hello.version - 1] = '\0';
    hello.host[sizeof hello.host - 1] = '\0';
    if (!same_secret(hello.secret, hub->secret)) {
        hub->refused++;
        if ((hub->refused & (hub->refused - 1)) == 0) // only the 1st, 2nd, 4th, 8th … are reported
            mz_log("warn", "refused %u process%s with another secret that tried to join the job", hub->refused,
                   hub->refused == 1 ? "" : "es");
        refuse(m, "its secret differs from this rank's (MEZZO_JOB_SECRET)");
        return;
    }
    if (strcmp(hello.version, MEZZO_VERSION) != 0) {
        snprintf(line, sizeof line, "it runs mezzo %s, this rank %s: all ranks must run the same version",
                 MEZZO_VERSION, hello.version);
        refuse(m, line);
        return;
    }
    if (hello.size != hub->size || hello.rank < 0 || hello.rank >= hub->size) {
        snprintf(line, sizeof line, "it expects a job of %d ranks, this is rank %d of %d", hub->size, hello.rank,
                 hello.size);
        refuse(m, line);
        return;
    }
    member *rank = &hub->ranks[hello.rank];
    if (rank->joined) {
        char who[160];
        describe(rank, who, sizeof who);
        snprintf(line, sizeof line, "%s is there already", who);
        refuse(m, line);
        return;
    }
    if (rank != m) {
        *rank = *m;
        *m = (member){.fd = -1};
    }
    rank->hello = hello;
    rank->joined = true;
    rank->heard = mz_seconds();
    if (++hub->joined == hub->size)
        welcome(hub);
}

static void let_in(mz_hub *hub) {
    const int on = 1;
    int fd = accept4(hub->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    member *place = &hub->strangers[0];
    for (int i = 0; i < STRANGERS; i++)
        if (place->fd >= 0 && (hub->strangers[i].fd < 0 || hub->strangers[i].since < place->since))
            place = &hub->strangers[i];
    if (fd < 0)
        return;
    shut(place); // closes the connection that has waited longest without a greeting, since a rank greets at once
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    *place = (member){.fd = fd, .since = mz_seconds()};
}

static void say_goodbye(mz_hub *hub) {
    const mz_wire_frame frame = mz_wire_make(MZ_WIRE_BYE, 0, "", 0);
    hub->left_at = mz_seconds();
    for (int r = 0; r < hub->size; r++)
        put(&hub->ranks[r], &frame, NULL);
}

// --- reading -------------------------------------------------------------------------------------------------------
static void serve(mz_hub *hub, member *m, const mz_wire_frame *frame, const char *bytes) {
    char reason[MZ_WIRE_LINE];
    switch (frame->kind) {
    case MZ_WIRE_BEAT:
        if (frame->bytes == sizeof m->beat)
            memcpy(&m->beat, bytes, sizeof m->beat);
        m->beat.doing[sizeof m->beat.doing - 1] = m->beat.place[sizeof m->beat.place - 1] = '\0';
        break;
    case MZ_WIRE_GATHER:
        serve_gather(hub, m, frame, bytes);
        break;
    case MZ_WIRE_ABORT:
        snprintf(reason, sizeof reason, "gave up: %.*s", (int)(frame->bytes < 400 ? frame->bytes : 400), bytes);
        m->beat = (mz_wire_beat){0};
        fail_of(hub, m, reason);
        break;
    case MZ_WIRE_BYE:
        m->left = true;
        if (++hub->left == hub->size)
            say_goodbye(hub);
        break;
    default:
        break;
    }
}

static void read_member(mz_hub *hub, member *m) {
    mz_wire_frame frame;
    bool bad = false, open = mz_wire_receive(m->fd, &m->in);
    if (m->in.length > 0)
        m->heard = mz_seconds();
    while (m->fd >= 0 && mz_wire_front(&m->in, &frame, &bad)) {
        const char *bytes = m->in.data + sizeof frame;
        if (m->joined) {
            serve(hub, m, &frame, bytes);
        } else if (frame.kind == MZ_WIRE_HELLO && frame.bytes == sizeof(mz_wire_hello)) {
            mz_wire_hello hello;
            memcpy(&hello, bytes, sizeof hello);
            mz_wire_drop(&m->in, sizeof frame + (size_t)frame.bytes);
            greet(hub, m, (const char *)&hello);
            return; // m may belong to another rank now; the next round reads the rest
        } else {
            bad = true;
            break;
        }
        mz_wire_drop(&m->in, sizeof frame + (size_t)frame.bytes);
    }
    bool stranger = !m->joined && (bad || m->in.length > sizeof frame + sizeof(mz_wire_hello));
    if (m->fd >= 0 && (!open || bad || stranger)) {
        if (m->joined && !m->left)
            fail_of(hub, m, bad ? "sent an invalid message" : "was killed or crashed: its connection ended");
        shut(m);
    }
}

// --- the clock -----------------------------------------------------------------------------------------------------
static void look_at_join(mz_hub *hub, double now) {
    char line[MZ_WIRE_LINE];
    int n = 0;
    if (hub->welcomed || now - hub->began < hub->patience.join)
        return;
    n = snprintf(line, sizeof line, "%d of %d ranks have not come within %.0f s:", hub->size - hub->joined, hub->size,
                 hub->patience.join);
    for (int r = 0; r < hub->size && n < 300; r++)
        if (!hub->ranks[r].joined)
            n += snprintf(line + n, sizeof line - (size_t)n, " %d", r);
    fail(hub, NULL, line);
}

static void look_at_record(mz_hub *hub, double now) {
    char what[200];
    for (int r = 0; r < hub->size && hub->arrived > 0 && !hub->failed; r++) {
        const member *m = &hub->ranks[r];
        if (m->arrived)
            continue;
        if (m->left)
            snprintf(what, sizeof what, "has left the job, but rank %d waits for it in \"%s\"", hub->gather_first,
                     hub->gather_name);
        else if (now - hub->gather_since > hub->patience.meeting)
            snprintf(what, sizeof what, "has not reached \"%s\", where rank %d has been waiting for %.0f s",
                     hub->gather_name, hub->gather_first, now - hub->gather_since);
        else
            continue;
        fail_of(hub, m, what);
    }
}

// Checks a rank that waits in a collective of its device: for one that has left, or one that does not join.
static void look_at_waiting(mz_hub *hub, double now) {
    char what[200];
    const member *waits = NULL, *late = NULL;
    for (int r = 0; r < hub->size; r++) {
        const member *m = &hub->ranks[r];
        if (m->joined && !m->left && m->beat.waits && (waits == NULL || m->beat.since > waits->beat.since))
            waits = m;
    }
    double seconds = waits != NULL ? waits->beat.since + (now - waits->heard) : 0;
    for (int r = 0; r < hub->size && waits != NULL; r++) {
        const member *m = &hub->ranks[r];
        if (m != waits && (late == NULL || m->left || (!late->left && m->beat.number < late->beat.number)))
            late = m;
    }
    // Whoever has left may have ended the wait just before: time counts from then on.
    if (late != NULL && late->left && now - late->heard < seconds)
        seconds = now - late->heard;
    if (late == NULL || seconds < (late->left ? hub->patience.silence : hub->patience.meeting))
        return;
    snprintf(what, sizeof what, "%s, and rank %d waits for it in %s %llu since %.1f s",
             late->left ? "has left the job" : "does not come", waits->hello.rank, waits->beat.doing,
             (unsigned long long)waits->beat.number, seconds);
    fail_of(hub, late, what);
}

static void look_at_clock(mz_hub *hub) {
    double now = mz_seconds();
    if (now - hub->looked > hub->patience.silence / 2) // this process itself was stopped, so no rank is at fault
        for (int r = 0; r < hub->size; r++)
            hub->ranks[r].heard = now;
    hub->looked = now;
    look_at_join(hub, now);
    look_at_record(hub, now);
    if (!hub->failed)
        look_at_waiting(hub, now);
    for (int r = 0; r < hub->size && !hub->failed; r++) {
        member *m = &hub->ranks[r];
        char what[120];
        if (!m->joined || m->left || now - m->heard < hub->patience.silence)
            continue;
        snprintf(what, sizeof what, "hangs, or its host is lost: no message for %.1f s", now - m->heard);
        fail_of(hub, m, what);
    }
    for (int i = 0; i < STRANGERS; i++)
        if (hub->strangers[i].fd >= 0 && now - hub->strangers[i].since > GREETING)
            shut(&hub->strangers[i]);
    if (now - hub->beaten >= BEAT_EVERY) {
        const mz_wire_frame frame = mz_wire_make(MZ_WIRE_BEAT, 0, "", 0);
        hub->beaten = now;
        for (int r = 0; r < hub->size; r++)
            if (hub->ranks[r].joined && !hub->ranks[r].left)
                put(&hub->ranks[r], &frame, NULL);
    }
}

static bool done(const mz_hub *hub) {
    if (!hub->failed && hub->left < hub->size)
        return false;
    bool told = true;
    for (int r = 0; r < hub->size; r++)
        told = told && (hub->ranks[r].fd < 0 || !hub->ranks[r].joined);
    return told || mz_seconds() - (hub->failed ? hub->failed_at : hub->left_at) > FAREWELL;
}

static void watch(struct pollfd *p, const member *m) {
    *p = (struct pollfd){.fd = m->fd, .events = (short)(POLLIN | (m->out.length > 0 ? POLLOUT : 0))};
}

static void *run(void *user) {
    mz_hub *hub = user;
    const int n = hub->size + STRANGERS;
    while (!done(hub)) {
        for (int i = 0; i < n; i++)
            watch(&hub->polls[i], i < hub->size ? &hub->ranks[i] : &hub->strangers[i - hub->size]);
        hub->polls[n] = (struct pollfd){.fd = hub->listen_fd, .events = POLLIN};
        int ready = poll(hub->polls, (nfds_t)n + 1, TICK_MS);
        for (int i = 0; i < n && ready > 0; i++) {
            member *m = i < hub->size ? &hub->ranks[i] : &hub->strangers[i - hub->size];
            if (m->fd < 0 || m->fd != hub->polls[i].fd)
                continue;
            if (hub->polls[i].revents & POLLOUT)
                (void)mz_wire_flush(m->fd, &m->out);
            if (hub->polls[i].revents & (POLLIN | POLLHUP | POLLERR))
                read_member(hub, m);
        }
        if (ready > 0 && hub->polls[n].revents & POLLIN)
            let_in(hub);
        look_at_clock(hub);
    }
    return NULL;
}

// --- calls of rank 0's member ---------------------------------------------------------------------------------------
static void release(mz_hub *hub) {
    for (int r = 0; r < hub->size && hub->ranks != NULL; r++)
        shut(&hub->ranks[r]);
    for (int i = 0; i < STRANGERS; i++)
        shut(&hub->strangers[i]);
    if (hub->listen_fd >= 0)
        close(hub->listen_fd);
    MZ_FREE(hub->ranks, hub->polls, hub);
}

mezzo_status mz_hub_start(const mz_world *world, const char *secret, int listen_fd, int own_fd, mz_hub **out) {
    sigset_t all, before;
    *out = NULL;
    mz_hub *hub = mz_alloc(1, sizeof *hub);
    if (hub == NULL) {
        close(listen_fd);
        close(own_fd);
        return MEZZO_ERR_MEMORY;
    }
    hub->listen_fd = listen_fd;
    hub->size = world->size;
    hub->patience = mz_patience_read();
    hub->began = hub->looked = mz_seconds();
    snprintf(hub->secret, sizeof hub->secret, "%s", secret);
    hub->ranks = mz_alloc((size_t)world->size, sizeof *hub->ranks);
    hub->polls = mz_alloc((size_t)world->size + STRANGERS + 1, sizeof *hub->polls);
    for (int i = 0; i < STRANGERS; i++)
        hub->strangers[i].fd = -1;
    if (hub->ranks == NULL || hub->polls == NULL) {
        close(own_fd);
        release(hub);
        return MEZZO_ERR_MEMORY;
    }
    for (int r = 0; r < hub->size; r++)
        hub->ranks[r].fd = -1;
    hub->ranks[0].fd = own_fd;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&hub->thread, NULL, run, hub);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        release(hub);
        return mz_fail(MEZZO_ERR_MEMORY, "cannot create a thread for the ranks' meeting: %s", strerror(error));
    }
    *out = hub;
    return MEZZO_OK;
}

void mz_hub_join(mz_hub *hub) {
    if (hub == NULL)
        return;
    pthread_join(hub->thread, NULL);
    release(hub);
}
