// Handles buffers of bytes and the frames in them.
#define _GNU_SOURCE
#include "dist/wire.h"

#include <errno.h>
#include <sys/socket.h>

mezzo_status mz_wire_append(mz_wire_buffer *b, const void *data, size_t bytes) {
    MEZZO_TRY(MZ_RESERVE(b->data, b->cap, b->length + bytes));
    if (bytes > 0)
        memcpy(b->data + b->length, data, bytes);
    b->length += bytes;
    return MEZZO_OK;
}

void mz_wire_drop(mz_wire_buffer *b, size_t bytes) {
    memmove(b->data, b->data + bytes, b->length - bytes);
    b->length -= bytes;
}

void mz_wire_free(mz_wire_buffer *b) {
    mz_free(b->data);
    *b = (mz_wire_buffer){0};
}

bool mz_wire_front(const mz_wire_buffer *b, mz_wire_frame *out, bool *bad) {
    *bad = false;
    if (b->length < sizeof *out)
        return false;
    memcpy(out, b->data, sizeof *out);
    out->name[sizeof out->name - 1] = '\0';
    *bad = out->magic != MZ_WIRE_MAGIC || out->bytes > MZ_WIRE_MOST;
    return !*bad && b->length - sizeof *out >= out->bytes;
}

mz_wire_frame mz_wire_make(mz_wire_kind kind, int rank, const char *name, size_t bytes) {
    mz_wire_frame f;
    memset(&f, 0, sizeof f);
    f.magic = MZ_WIRE_MAGIC;
    f.kind = (uint16_t)kind;
    f.rank = (uint16_t)rank;
    f.bytes = bytes;
    snprintf(f.name, sizeof f.name, "%s", name);
    return f;
}

bool mz_wire_receive(int fd, mz_wire_buffer *b) {
    char piece[65536];
    ssize_t n;
    do
        n = recv(fd, piece, sizeof piece, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK;
    return n > 0 && mz_wire_append(b, piece, (size_t)n) == MEZZO_OK;
}

bool mz_wire_flush(int fd, mz_wire_buffer *b) {
    size_t sent = 0;
    bool fine = true;
    while (fine && sent < b->length) {
        ssize_t n = send(fd, b->data + sent, b->length - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        fine = n > 0;
        sent += n > 0 ? (size_t)n : 0;
    }
    if (sent > 0)
        mz_wire_drop(b, sent);
    return fine;
}
