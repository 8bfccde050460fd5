// Runs a rank's connection: the member's thread reads, sends heartbeats and watches; the group's thread sends records
// and waits for their answers.
#define _GNU_SOURCE
#include "dist/member.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "dist/hub.h"

enum { TICK_MS = 250 };
static const double BEAT_EVERY = 0.5;

struct mz_member {
    int fd, rank, size;
    double silence;
    pthread_t thread;
    bool started;
    pthread_mutex_t sending; // held while a whole frame is sent
    pthread_mutex_t lock;    // protects all members below
    pthread_cond_t news;
    bool welcomed, refused, ended, leaving, all_left, stop;
    atomic_bool failed;
    char line[MZ_WIRE_LINE];
    mz_group_rank *ranks; // [size]
    mz_wire_buffer in;    // used by the thread alone
    mz_wire_buffer answer;
    bool answered;
    mz_wire_beat doing;
    double doing_since;
    pthread_mutex_t aborting; // protects the two members below
    void (*halt)(void *with);
    void *with;
};

static pthread_mutex_t listener_lock = PTHREAD_MUTEX_INITIALIZER;
static mz_group_failed_fn listener;
static void *listener_user;

void mz_group_on_failure(mz_group_failed_fn fn, void *user) {
    pthread_mutex_lock(&listener_lock);
    listener = fn;
    listener_user = user;
    pthread_mutex_unlock(&listener_lock);
}

// --- sending -------------------------------------------------------------------------------------------------------
static bool send_all(int fd, const void *data, size_t bytes) {
    for (size_t sent = 0; sent < bytes;) {
        ssize_t n = send(fd, (const char *)data + sent, bytes - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false; // the thread notices the connection's end, or its silence
        sent += (size_t)n;
    }
    return true;
}

static bool send_frame(mz_member *m, mz_wire_kind kind, const char *name, const void *bytes, size_t n) {
    const mz_wire_frame frame = mz_wire_make(kind, m->rank, name, n);
    pthread_mutex_lock(&m->sending);
    bool sent = send_all(m->fd, &frame, sizeof frame) && send_all(m->fd, bytes, n);
    pthread_mutex_unlock(&m->sending);
    return sent;
}

static void beat(mz_member *m) {
    pthread_mutex_lock(&m->lock);
    mz_wire_beat b = m->doing;
    b.since = b.doing[0] != '\0' ? mz_seconds() - m->doing_since : 0;
    pthread_mutex_unlock(&m->lock);
    send_frame(m, MZ_WIRE_BEAT, "", &b, sizeof b);
}

// --- the thread ----------------------------------------------------------------------------------------------------
static void fail(mz_member *m, const char *line, int teller) {
    pthread_mutex_lock(&m->lock);
    bool first = !atomic_load(&m->failed) && !m->leaving;
    if (first) {
        snprintf(m->line, sizeof m->line, "%s", line);
        mz_text_tame(m->line);
    }
    pthread_mutex_unlock(&m->lock);
    if (!first)
        return;
    pthread_mutex_lock(&listener_lock);
    mz_group_failed_fn fn = listener;
    void *user = listener_user;
    pthread_mutex_unlock(&listener_lock);
    if (fn != NULL)
        fn(user, m->line, teller == m->rank);
    pthread_mutex_lock(&m->lock);
    atomic_store(&m->failed, true);
    pthread_cond_broadcast(&m->news);
    pthread_mutex_unlock(&m->lock);
    pthread_mutex_lock(&m->aborting);
    if (m->halt != NULL)
        m->halt(m->with);
    pthread_mutex_unlock(&m->aborting);
}

// Fails because of the hub. Rank 0 cannot report what it was doing; this rank reports where it noticed.
static void fail_of_hub(mz_member *m, const char *what) {
    char line[MZ_WIRE_LINE];
    const mz_group_rank *zero = &m->ranks[0];
    pthread_mutex_lock(&m->lock);
    const mz_wire_beat b = m->doing;
    const double since = mz_seconds() - m->doing_since;
    pthread_mutex_unlock(&m->lock);
    int n =
        snprintf(line, sizeof line, "rank 0 (process %lld on %s) %s", (long long)zero->process, zero->host_name, what);
    if (b.doing[0] != '\0' && n > 0 && (size_t)n < sizeof line)
        snprintf(line + n, sizeof line - (size_t)n, "; rank %d was %s %s %llu since %.1f s%s%s%s", m->rank,
                 b.waits ? "in" : "after", b.doing, (unsigned long long)b.number, since, b.place[0] != '\0' ? " (" : "",
                 b.place, b.place[0] != '\0' ? ")" : "");
    fail(m, line, 1);
}

static void take(mz_member *m, const mz_wire_frame *frame, const char *bytes) {
    char line[MZ_WIRE_LINE];
    snprintf(line, sizeof line, "%.*s", (int)(frame->bytes < sizeof line ? frame->bytes : sizeof line - 1), bytes);
    if (frame->kind == MZ_WIRE_FAILED) {
        fail(m, line, frame->rank);
        return;
    }
    pthread_mutex_lock(&m->lock);
    if (frame->kind == MZ_WIRE_WELCOME && frame->bytes == (size_t)m->size * sizeof *m->ranks) {
        memcpy(m->ranks, bytes, frame->bytes);
        m->welcomed = true;
    } else if (frame->kind == MZ_WIRE_REFUSED) {
        m->refused = true;
        snprintf(m->line, sizeof m->line, "%s", line);
    } else if (frame->kind == MZ_WIRE_GATHERED) {
        m->answer.length = 0;
        m->answered = mz_wire_append(&m->answer, bytes, frame->bytes) == MEZZO_OK;
    } else if (frame->kind == MZ_WIRE_BYE) {
        m->all_left = true;
    }
    pthread_cond_broadcast(&m->news);
    pthread_mutex_unlock(&m->lock);
}

// Reads the frames that have arrived. Returns false where the connection has ended.
static bool read_frames(mz_member *m, bool *heard) {
    mz_wire_frame frame;
    bool bad, open = mz_wire_receive(m->fd, &m->in);
    *heard = m->in.length > 0;
    while (mz_wire_front(&m->in, &frame, &bad)) {
        take(m, &frame, m->in.data + sizeof frame);
        mz_wire_drop(&m->in, sizeof frame + (size_t)frame.bytes);
    }
    return open && !bad;
}

static bool told_to_stop(mz_member *m) {
    pthread_mutex_lock(&m->lock);
    bool stop = m->stop;
    pthread_mutex_unlock(&m->lock);
    return stop;
}

static void *run(void *user) {
    mz_member *m = user;
    double heard = mz_seconds(), beaten = 0, looked = heard;
    bool open = true;
    while (open && !told_to_stop(m)) {
        struct pollfd p = {.fd = m->fd, .events = POLLIN};
        bool something = false;
        if (poll(&p, 1, TICK_MS) > 0)
            open = read_frames(m, &something);
        double now = mz_seconds();
        if (something || now - looked > m->silence / 2) // or this process itself was stopped
            heard = now;
        looked = now;
        if (open && now - beaten >= BEAT_EVERY) {
            beaten = now;
            beat(m);
        }
        if (m->welcomed && now - heard > m->silence) {
            fail_of_hub(m, "hangs, or its host is lost: no message from it for some seconds");
            heard = now;
        }
    }
    if (!open && m->welcomed && !m->all_left)
        fail_of_hub(m, "was killed or crashed: its connection ended");
    pthread_mutex_lock(&m->lock);
    m->ended = true;
    pthread_cond_broadcast(&m->news);
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

// --- joining and leaving -------------------------------------------------------------------------------------------
static mezzo_status create(const mz_world *world, int fd, mz_member **out) {
    pthread_condattr_t attr;
    mz_member *m = mz_alloc(1, sizeof *m);
    mz_group_rank *ranks = mz_alloc((size_t)world->size, sizeof *ranks);
    if (m == NULL || ranks == NULL) {
        MZ_FREE(m, ranks);
        close(fd);
        return MEZZO_ERR_MEMORY;
    }
    *m = (mz_member){.fd = fd, .rank = world->rank, .size = world->size, .ranks = ranks};
    m->silence = mz_patience_read().silence;
    pthread_mutex_init(&m->sending, NULL);
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->aborting, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&m->news, &attr);
    pthread_condattr_destroy(&attr);
    const struct timeval patience = {.tv_sec = (time_t)m->silence + 1};
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    *out = m;
    return MEZZO_OK;
}

static mezzo_status start(mz_member *m) {
    sigset_t all, before;
    sigfillset(&all); // signals belong to the command's thread
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&m->thread, NULL, run, m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    m->started = error == 0;
    if (error != 0)
        return mz_fail(MEZZO_ERR_MEMORY, "cannot create a thread for this rank's heartbeat: %s", strerror(error));
    return MEZZO_OK;
}

static void greet(mz_member *m, const mz_world *world, const char *secret) {
    mz_wire_hello hello;
    memset(&hello, 0, sizeof hello);
    const char *host = getenv("MEZZO_HOST");
    snprintf(hello.secret, sizeof hello.secret, "%s", secret);
    snprintf(hello.version, sizeof hello.version, "%s", MEZZO_VERSION);
    if (host != NULL && *host != '\0')
        snprintf(hello.host, sizeof hello.host, "%s", host);
    else if (gethostname(hello.host, sizeof hello.host - 1) != 0 || hello.host[0] == '\0')
        snprintf(hello.host, sizeof hello.host, "an unnamed host");
    hello.rank = world->rank;
    hello.size = world->size;
    hello.local_rank = world->local_rank;
    hello.process = getpid();
    send_frame(m, MZ_WIRE_HELLO, "", &hello, sizeof hello);
}

// Waits under the lock for news, at most until `until`. Returns false after that time.
static bool wait_news(mz_member *m, double until) {
    struct timespec at = {.tv_sec = (time_t)until};
    at.tv_nsec = (long)((until - (double)at.tv_sec) * 1e9);
    return pthread_cond_timedwait(&m->news, &m->lock, &at) != ETIMEDOUT;
}

mezzo_status mz_member_join(const mz_world *world, const char *secret, int fd, double deadline, mz_member **out,
                            bool *refused) {
    mz_member *m = NULL;
    *out = NULL;
    *refused = false;
    MEZZO_TRY(create(world, fd, &m));
    greet(m, world, secret);
    mezzo_status status = start(m);
    pthread_mutex_lock(&m->lock);
    while (status == MEZZO_OK && !m->welcomed && !m->refused && !m->ended && !atomic_load(&m->failed))
        if (!wait_news(m, deadline + 5)) // rank 0's deadline comes first, and it reports which rank is missing
            status = mz_fail(MEZZO_ERR_IO, "rank 0 admitted this rank %d, but the others did not come", m->rank);
    if (status == MEZZO_OK && m->refused)
        status = mz_fail(MEZZO_ERR_IO, "rank 0 refused rank %d: %s", m->rank, m->line);
    else if (status == MEZZO_OK && atomic_load(&m->failed))
        status = mz_fail(MEZZO_ERR_IO, "%s", m->line);
    else if (status == MEZZO_OK && !m->welcomed)
        status = mz_fail(MEZZO_ERR_IO, "rank 0 ended before all ranks had joined");
    *refused = m->refused || (m->ended && !m->welcomed && !atomic_load(&m->failed));
    pthread_mutex_unlock(&m->lock);
    if (status != MEZZO_OK)
        mz_member_free(m);
    else
        *out = m;
    return status;
}

bool mz_member_goodbye(mz_member *m, bool wait) {
    if (atomic_load(&m->failed))
        return false;
    send_frame(m, MZ_WIRE_BYE, "", NULL, 0);
    pthread_mutex_lock(&m->lock);
    while (wait && !m->all_left && !m->ended && !atomic_load(&m->failed))
        pthread_cond_wait(&m->news, &m->lock);
    bool orderly = !atomic_load(&m->failed);
    m->leaving = true;
    pthread_mutex_unlock(&m->lock);
    return orderly;
}

void mz_member_free(mz_member *m) {
    if (m == NULL)
        return;
    pthread_mutex_lock(&m->lock);
    m->leaving = m->stop = true;
    pthread_mutex_unlock(&m->lock);
    (void)shutdown(m->fd, SHUT_RD); // wakes the thread; bytes already sent still arrive
    if (m->started)
        pthread_join(m->thread, NULL);
    close(m->fd);
    pthread_cond_destroy(&m->news);
    pthread_mutex_destroy(&m->lock);
    pthread_mutex_destroy(&m->aborting);
    pthread_mutex_destroy(&m->sending);
    mz_wire_free(&m->in);
    mz_wire_free(&m->answer);
    MZ_FREE(m->ranks, m);
}

void mz_member_abort(mz_member *m, const char *reason) {
    if (atomic_load(&m->failed))
        return;
    send_frame(m, MZ_WIRE_ABORT, "", reason, strlen(reason));
    pthread_mutex_lock(&m->lock);
    for (double until = mz_seconds() + 1; !atomic_load(&m->failed) && !m->ended;)
        if (!wait_news(m, until))
            break;
    pthread_mutex_unlock(&m->lock);
}

// --- records -------------------------------------------------------------------------------------------------------
mezzo_status mz_member_gather(mz_member *m, const char *name, const void *one, size_t bytes, void *all, size_t total) {
    mezzo_status status = MEZZO_OK;
    MEZZO_TRY(mz_member_check(m));
    pthread_mutex_lock(&m->lock);
    m->answered = false;
    pthread_mutex_unlock(&m->lock);
    mz_member_begin(m, name, true);
    send_frame(m, MZ_WIRE_GATHER, name, one, bytes);
    pthread_mutex_lock(&m->lock);
    while (!m->answered && !atomic_load(&m->failed) && !m->ended)
        pthread_cond_wait(&m->news, &m->lock);
    if (atomic_load(&m->failed))
        status = mz_fail(MEZZO_ERR_IO, "%s", m->line);
    else if (!m->answered)
        status = mz_fail(MEZZO_ERR_IO, "the connection to rank 0 ended");
    else if (m->answer.length != total)
        status = mz_fail(MEZZO_ERR_INVALID, "\"%s\": received %zu bytes from all ranks, expected %zu", name,
                         m->answer.length, total);
    else if (total > 0)
        memcpy(all, m->answer.data, total);
    pthread_mutex_unlock(&m->lock);
    mz_member_end(m);
    return status;
}

// --- state ---------------------------------------------------------------------------------------------------------
mz_group_rank *mz_member_table(mz_member *m) {
    return m->ranks;
}

bool mz_member_failed(const mz_member *m) {
    return atomic_load_explicit(&m->failed, memory_order_acquire);
}

mezzo_status mz_member_check(mz_member *m) {
    if (!mz_member_failed(m))
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_IO, "%s", m->line); // written once, before `failed` is set
}

void mz_member_begin(mz_member *m, const char *doing, bool waits) {
    pthread_mutex_lock(&m->lock);
    snprintf(m->doing.doing, sizeof m->doing.doing, "%s", doing);
    m->doing.number++;
    m->doing.waits = waits;
    m->doing_since = mz_seconds();
    pthread_mutex_unlock(&m->lock);
}

void mz_member_end(mz_member *m) {
    pthread_mutex_lock(&m->lock);
    m->doing.waits = 0;
    m->doing_since = mz_seconds();
    pthread_mutex_unlock(&m->lock);
}

void mz_member_at(mz_member *m, const char *place) {
    pthread_mutex_lock(&m->lock);
    snprintf(m->doing.place, sizeof m->doing.place, "%s", place);
    pthread_mutex_unlock(&m->lock);
}

void mz_member_on_abort(mz_member *m, void (*halt)(void *with), void *with) {
    pthread_mutex_lock(&m->aborting);
    m->halt = with != NULL ? halt : NULL;
    m->with = with;
    pthread_mutex_unlock(&m->aborting);
}
