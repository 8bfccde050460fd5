// Implements the lines of file.h: it reads pieces of a megabyte, and moves the rest of a line to the next piece.
#include <errno.h>
#include <unistd.h>

#include "io/file.h"
#include "io/file_ops.h"

enum { PIECE = 1 << 20, LONGEST = 16 << 20 };

struct mz_lines {
    int fd;
    char *path, *buffer;
    size_t cap, begin, end; // the bytes that no line has used yet
    bool over;              // the file has no more
    bool passing;           // the present line is too long
    uint64_t first;         // the file's offset of the buffer's first byte
    uint64_t whole, passed;
};

mezzo_status mz_lines_open(const char *path, mz_lines **out) {
    size_t size;
    *out = NULL;
    mz_lines *lines;
    MEZZO_TRY(MZ_NEW(lines, 1));
    lines->fd = -1;
    lines->path = mz_strdup(path);
    mezzo_status status = lines->path == NULL ? MEZZO_ERR_MEMORY : mz_open_regular(path, &lines->fd, &size);
    if (status == MEZZO_OK)
        status = MZ_RESERVE(lines->buffer, lines->cap, PIECE);
    if (status != MEZZO_OK) {
        mz_lines_close(lines);
        return status;
    }
    *out = lines;
    return MEZZO_OK;
}

void mz_lines_close(mz_lines *lines) {
    if (lines == NULL)
        return;
    if (lines->fd >= 0)
        close(lines->fd);
    MZ_FREE(lines->buffer, lines->path, lines);
}

mezzo_status mz_lines_from(mz_lines *lines, uint64_t offset) {
    if (offset > INT64_MAX || lseek(lines->fd, (off_t)offset, SEEK_SET) < 0)
        return mz_io_fail("read", lines->path);
    lines->first = lines->whole = offset;
    return MEZZO_OK;
}

uint64_t mz_lines_end(const mz_lines *lines) {
    return lines->whole;
}

uint64_t mz_lines_passed(const mz_lines *lines) {
    return lines->passed;
}

mezzo_status mz_lines_peek(const mz_lines *lines, uint64_t offset, void *to, size_t n, size_t *got) {
    for (*got = 0; *got < n;) {
        const ssize_t done = pread(lines->fd, (char *)to + *got, n - *got, (off_t)(offset + *got));
        if (done == 0)
            return MEZZO_OK;
        if (done < 0 && errno != EINTR)
            return mz_io_fail("read", lines->path);
        *got += done > 0 ? (size_t)done : 0;
    }
    return MEZZO_OK;
}

// Reads more bytes after the unused ones, which move to the front.
static mezzo_status read_more(mz_lines *lines) {
    size_t left = lines->end - lines->begin, got;
    if (left >= LONGEST) {
        left = 0;
        lines->passing = true;
    }
    lines->first += lines->end - left;
    memmove(lines->buffer, lines->buffer + lines->begin, left);
    lines->begin = 0;
    lines->end = left;
    MEZZO_TRY(MZ_RESERVE(lines->buffer, lines->cap, left + PIECE));
    MEZZO_TRY(mz_read_piece(lines->fd, lines->path, lines->buffer + left, PIECE, &got));
    lines->end += got;
    lines->over = got < PIECE;
    return MEZZO_OK;
}

mezzo_status mz_lines_next(mz_lines *lines, const char **line, size_t *n) {
    *line = NULL;
    *n = 0;
    for (;;) {
        const char *from = lines->buffer + lines->begin, *newline = memchr(from, '\n', lines->end - lines->begin);
        if (newline == NULL && lines->over)
            return MEZZO_OK;
        if (newline == NULL) {
            MEZZO_TRY(read_more(lines));
            continue;
        }
        lines->begin = (size_t)(newline - lines->buffer) + 1;
        lines->whole = lines->first + lines->begin;
        if (!lines->passing) {
            *line = from;
            *n = (size_t)(newline - from);
            return MEZZO_OK;
        }
        lines->passing = false;
        lines->passed++;
    }
}
