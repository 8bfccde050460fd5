// The meeting of ranks, with others at its door: who floods it, who says nothing or a byte now and then, who has
// another secret. The ranks meet all the same.
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dist/hub.h"
#include "test.h"

static const char secret[] = "ofThisJob";
static struct sockaddr_in door;
static mz_hub *hub;
static int zero; // rank 0's end of its connection

static mz_wire_hello hello_of(int rank, const char *with) {
    mz_wire_hello h = {.rank = rank, .size = 2, .local_rank = rank, .process = 1};
    snprintf(h.secret, sizeof h.secret, "%s", with);
    snprintf(h.version, sizeof h.version, "%s", MEZZO_VERSION);
    snprintf(h.host, sizeof h.host, "here");
    return h;
}

static void greet(int fd, int rank, const char *with) {
    const mz_wire_hello h = hello_of(rank, with);
    const mz_wire_frame frame = mz_wire_make(MZ_WIRE_HELLO, rank, "", sizeof h);
    assert_int_equal(send(fd, &frame, sizeof frame, MSG_NOSIGNAL), sizeof frame);
    assert_int_equal(send(fd, &h, sizeof h, MSG_NOSIGNAL), sizeof h);
}

static int knock(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&door, sizeof door), 0);
    return fd;
}

// The kind of the first frame that comes within some seconds; 0: none, the connection has ended.
static int answer(int fd) {
    mz_wire_buffer in = {0};
    mz_wire_frame frame = {0};
    bool bad = false, open = true, whole = false;
    const double end = mz_seconds() + 5;
    while (open && !bad && !whole && mz_seconds() < end) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 100) > 0)
            open = mz_wire_receive(fd, &in);
        whole = mz_wire_front(&in, &frame, &bad);
    }
    mz_wire_free(&in);
    return whole ? frame.kind : 0;
}

static int open_hub(void **state) {
    (void)state;
    mz_world world = {.size = 2, .listen_fd = -1};
    socklen_t length = sizeof door;
    int ends[2], listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    door = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (listener < 0 || bind(listener, (struct sockaddr *)&door, sizeof door) != 0 || listen(listener, 64) != 0 ||
        getsockname(listener, (struct sockaddr *)&door, &length) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return -1;
    setenv("MEZZO_JOIN_SECONDS", "60", 1);
    zero = ends[1];
    return mz_hub_start(&world, secret, listener, ends[0], &hub) == MEZZO_OK ? 0 : -1;
}

static int close_hub(void **state) {
    (void)state;
    close(zero); // the hub says that rank 0 was lost, and ends
    mz_hub_join(hub);
    return 0;
}

static void ranks_meet(void) {
    int one = knock();
    greet(zero, 0, secret);
    greet(one, 1, secret);
    assert_int_equal(answer(one), MZ_WIRE_WELCOME);
    close(one);
}

TEST_WITH(another_secret_is_refused, open_hub, close_hub) {
    int fd = knock();
    greet(fd, 1, "of another");
    assert_int_equal(answer(fd), MZ_WIRE_REFUSED);
    close(fd);
    ranks_meet();
}

// Not more than a piece of what is there is read at a time, so that a sender without end cannot hold the hub.
TEST(a_flood_is_read_by_pieces) {
    static char piece[1 << 16];
    int ends[2];
    size_t sent = 0;
    mz_wire_buffer in = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    for (ssize_t n = 1; n > 0; sent += n > 0 ? (size_t)n : 0)
        n = send(ends[0], piece, sizeof piece, MSG_NOSIGNAL | MSG_DONTWAIT);
    assert_true(sent > sizeof piece);
    assert_true(mz_wire_receive(ends[1], &in));
    assert_true(in.length > 0 && in.length <= sizeof piece);
    mz_wire_free(&in);
    close(ends[0]);
    close(ends[1]);
}

// Its first bytes are no frame.
TEST_WITH(a_flood_is_cut_off, open_hub, close_hub) {
    enum { FLOOD = 64 << 20 };
    static char piece[1 << 16];
    int fd = knock();
    size_t sent = 0;
    for (ssize_t n = 1; n > 0 && sent<FLOOD; sent += n> 0 ? (size_t)n : 0)
        n = send(fd, piece, sizeof piece, MSG_NOSIGNAL);
    close(fd);
    assert_true(sent < FLOOD);
    ranks_meet();
}

TEST_WITH(who_says_nothing_makes_room, open_hub, close_hub) {
    enum { MANY = 40 };
    int fds[MANY];
    for (int i = 0; i < MANY; i++) {
        fds[i] = knock();
        (void)send(fds[i], "D", 1, MSG_NOSIGNAL);
    }
    poll(NULL, 0, 300); // all are let in
    ranks_meet();
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
}

static void say(int fd, mz_wire_kind kind, int rank, const void *bytes, size_t length) {
    const mz_wire_frame frame = mz_wire_make(kind, rank, "", length);
    assert_int_equal(send(fd, &frame, sizeof frame, MSG_NOSIGNAL), sizeof frame);
    assert_int_equal(send(fd, bytes, length, MSG_NOSIGNAL), length);
}

// The kind of the first frame within some seconds that says how the job ended; 0: none.
static int how_it_ended(int fd, double seconds) {
    mz_wire_buffer in = {0};
    mz_wire_frame frame = {0};
    bool bad = false, open = true;
    int kind = 0;
    const double end = mz_seconds() + seconds;
    while (open && !bad && kind == 0 && mz_seconds() < end) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 20) > 0)
            open = mz_wire_receive(fd, &in);
        while (kind == 0 && mz_wire_front(&in, &frame, &bad)) {
            kind = frame.kind == MZ_WIRE_FAILED || frame.kind == MZ_WIRE_BYE ? frame.kind : 0;
            mz_wire_drop(&in, sizeof frame + (size_t)frame.bytes);
        }
    }
    mz_wire_free(&in);
    return kind;
}

static int open_impatient_hub(void **state) {
    setenv("MEZZO_SILENCE_SECONDS", "2", 1);
    int code = open_hub(state);
    unsetenv("MEZZO_SILENCE_SECONDS");
    return code;
}

// Rank 1 has waited for long when rank 0 ends the wait and leaves, as after a long checkpoint.
static int meet_and_wait(void) {
    const mz_wire_beat beat = {.doing = "the checkpoint", .number = 7, .since = 60, .waits = 1};
    int one = knock();
    greet(zero, 0, secret);
    greet(one, 1, secret);
    assert_int_equal(answer(one), MZ_WIRE_WELCOME);
    say(one, MZ_WIRE_BEAT, 1, &beat, sizeof beat);
    say(zero, MZ_WIRE_BYE, 0, "", 0);
    return one;
}

TEST_WITH(who_has_waited_long_has_time_to_leave, open_impatient_hub, close_hub) {
    int one = meet_and_wait();
    assert_int_equal(how_it_ended(one, 0.7), 0);
    say(one, MZ_WIRE_BYE, 1, "", 0);
    assert_int_equal(how_it_ended(one, 5), MZ_WIRE_BYE);
    close(one);
}

TEST_WITH(who_waits_for_a_rank_that_has_left_is_told, open_impatient_hub, close_hub) {
    const mz_wire_beat beat = {.doing = "the checkpoint", .number = 7, .since = 60, .waits = 1};
    int one = meet_and_wait(), kind = 0;
    for (int i = 0; i < 20 && kind == 0; i++) {
        kind = how_it_ended(one, 0.25);
        if (kind == 0)
            say(one, MZ_WIRE_BEAT, 1, &beat, sizeof beat);
    }
    assert_int_equal(kind, MZ_WIRE_FAILED);
    close(one);
}

// A rendezvous file that is a pipe is none: to open it would wait for a writer.
TEST(a_pipe_is_no_meeting_point) {
    char address[256], with[128];
    int port;
    unlink("meeting");
    assert_int_equal(mkfifo("meeting", 0600), 0);
    alarm(20);
    assert_false(mz_wire_look_up("meeting", address, &port, with));
    unlink("meeting");
    assert_int_equal(mz_wire_publish("meeting", "127.0.0.1", 4000, secret), MEZZO_OK);
    assert_true(mz_wire_look_up("meeting", address, &port, with));
    assert_int_equal(port, 4000);
    alarm(0);
    unlink("meeting");
}
