// Lets ranks find each other: addresses, the rendezvous file, listening and connecting.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dist/wire.h"

// --- addresses -----------------------------------------------------------------------------------------------------
static mezzo_status resolve(const char *address, int port, struct addrinfo **out) {
    char service[16];
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    snprintf(service, sizeof service, "%d", port);
    int error = getaddrinfo(address, service, &hints, out);
    if (error != 0)
        return mz_fail(MEZZO_ERR_IO, "cannot resolve %s, where the ranks meet: %s", address, gai_strerror(error));
    return MEZZO_OK;
}

// Finds the address of this host for others: that of the named interface, or 127.0.0.1 where all ranks are on this
// host.
static mezzo_status find_own_address(const mz_world *world, char address[256]) {
    struct ifaddrs *list = NULL;
    char found[NI_MAXHOST] = "";
    snprintf(address, 256, "127.0.0.1");
    if (world->interface[0] == '\0' && world->local_size == world->size)
        return MEZZO_OK;
    if (getifaddrs(&list) != 0)
        return mz_fail(MEZZO_ERR_IO, "this host's network interfaces cannot be listed: %s", strerror(errno));
    const struct ifaddrs *one = NULL;
    int others = 0;
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_UP) == 0)
            continue;
        bool named = strcmp(i->ifa_name, world->interface) == 0;
        bool usable = world->interface[0] == '\0' && (i->ifa_flags & IFF_LOOPBACK) == 0;
        others += usable && one != NULL;
        one = (named || usable) && one == NULL ? i : one;
    }
    if (one != NULL)
        getnameinfo(one->ifa_addr, sizeof(struct sockaddr_in), found, sizeof found, NULL, 0, NI_NUMERICHOST);
    freeifaddrs(list);
    if (found[0] == '\0' && world->interface[0] != '\0')
        return mz_fail(MEZZO_ERR_INVALID,
                       "MEZZO_INTERFACE is %s: this host has no such interface that is up and has an IPv4 address",
                       world->interface);
    if (found[0] != '\0' && others > 0)
        return mz_fail(MEZZO_ERR_INVALID, "this host has several network interfaces: name the one that the ranks "
                                          "reach each other by in MEZZO_INTERFACE");
    if (found[0] != '\0')
        snprintf(address, 256, "%.255s", found);
    return MEZZO_OK;
}

// --- the file ------------------------------------------------------------------------------------------------------
mezzo_status mz_wire_secret(char secret[128]) {
    unsigned char bytes[24];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return mz_fail(MEZZO_ERR_IO, "the system has no random numbers for the job's secret: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(secret + 2 * i, 3, "%02x", bytes[i]);
    return MEZZO_OK;
}

mezzo_status mz_wire_publish(const char *path, const char *address, int port, const char *secret) {
    char *temporary = mz_format("%s.%ld", path, (long)getpid()), text[512];
    if (temporary == NULL)
        return MEZZO_ERR_MEMORY;
    int n = snprintf(text, sizeof text, "%s %d %s\n", address, port, secret);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    bool fine = fd >= 0 && write(fd, text, (size_t)n) == n && fsync(fd) == 0;
    fine = (fd < 0 || close(fd) == 0) && fine && rename(temporary, path) == 0;
    int error = errno;
    if (!fine && fd >= 0)
        unlink(temporary);
    mz_free(temporary);
    if (!fine)
        return mz_fail(MEZZO_ERR_IO, "%s, the rendezvous file, cannot be written: %s", path, strerror(error));
    return MEZZO_OK;
}

bool mz_wire_look_up(const char *path, char address[256], int *port, char secret[128]) {
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe would keep this rank waiting without end
    FILE *f = fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? fdopen(fd, "r") : NULL;
    if (f == NULL) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    int n = fscanf(f, "%255s %d %127s", address, port, secret);
    fclose(f);
    return n == 3;
}

// --- listening and connecting --------------------------------------------------------------------------------------
static mezzo_status bound(const char *address, int port, int error) {
    if (error == EADDRINUSE)
        return mz_fail(MEZZO_ERR_IO,
                       "port %d of %s, where the ranks meet, is taken: another job? Choose another "
                       "MASTER_PORT",
                       port, address);
    if (error == EADDRNOTAVAIL)
        return mz_fail(MEZZO_ERR_IO,
                       "%s, where the ranks meet, is not an address of this host, which runs rank 0: set MASTER_ADDR "
                       "to its address",
                       address);
    return mz_fail(MEZZO_ERR_IO, "rank 0 cannot listen at %s:%d: %s", address, port, strerror(error));
}

static int port_of(int fd) {
    struct sockaddr_storage there = {0};
    socklen_t length = sizeof there;
    if (getsockname(fd, (struct sockaddr *)&there, &length) != 0)
        return 0;
    if (there.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)&there)->sin6_port);
    return there.ss_family == AF_INET ? ntohs(((struct sockaddr_in *)&there)->sin_port) : 0;
}

mezzo_status mz_wire_listen(const mz_world *world, int *fd, char address[256], int *port) {
    struct addrinfo *list = NULL;
    const int on = 1;
    int error = 0;
    *fd = -1;
    *port = world->port;
    if (world->listen_fd >= 0) {
        *fd = world->listen_fd;
        *port = port_of(*fd);
        snprintf(address, 256, "%s", world->address);
        if (*port == 0)
            return mz_fail(MEZZO_ERR_INVALID, "MEZZO_LISTEN_FD is %d, which is not a listening socket", *fd);
        return MEZZO_OK;
    }
    if (world->meeting == MZ_MEET_TCP)
        snprintf(address, 256, "%s", world->address);
    else
        MEZZO_TRY(find_own_address(world, address));
    MEZZO_TRY(resolve(address, world->port, &list));
    for (const struct addrinfo *a = list; a != NULL && *fd < 0; a = a->ai_next) {
        int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (s >= 0 && setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
            bind(s, a->ai_addr, a->ai_addrlen) == 0 && listen(s, 256) == 0) {
            *fd = s;
            break;
        }
        error = errno;
        if (s >= 0)
            close(s);
    }
    freeaddrinfo(list);
    if (*fd < 0)
        return bound(address, world->port, error);
    *port = port_of(*fd);
    return MEZZO_OK;
}

static int connect_once(const struct addrinfo *a, int milliseconds) {
    int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    socklen_t length = sizeof error;
    if (s < 0)
        return -1;
    int result = connect(s, a->ai_addr, a->ai_addrlen);
    if (result != 0 && errno == EINPROGRESS) {
        struct pollfd p = {.fd = s, .events = POLLOUT};
        errno = ETIMEDOUT;
        if (poll(&p, 1, milliseconds) == 1 && getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length) == 0) {
            errno = error;
            result = error == 0 ? 0 : -1;
        }
    }
    if (result != 0) {
        error = errno;
        close(s);
        errno = error;
        return -1;
    }
    return s;
}

static int connect_any(const struct addrinfo *list) {
    int s = -1;
    for (const struct addrinfo *a = list; a != NULL && s < 0; a = a->ai_next)
        s = connect_once(a, 2000);
    return s;
}

mezzo_status mz_wire_connect(const mz_world *world, const char *address, int port, double deadline, int *fd) {
    struct addrinfo *list = NULL;
    const int on = 1;
    (void)world;
    *fd = -1;
    MEZZO_TRY(resolve(address, port, &list));
    int error = 0;
    do {
        *fd = connect_any(list);
        error = errno;
        if (*fd < 0)
            poll(NULL, 0, 100);
    } while (*fd < 0 && mz_seconds() < deadline);
    freeaddrinfo(list);
    if (*fd < 0)
        return mz_fail(MEZZO_ERR_IO, "cannot reach rank 0 at %s:%d: %s; has it started, and does a firewall block it?",
                       address, port, strerror(error));
    (void)setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return MEZZO_OK;
}
