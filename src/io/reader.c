#include "io/reader.h"

#include <unistd.h>

#include "base/stop.h"
#include "io/file.h"
#include "io/file_ops.h"

#ifdef MEZZO_ZLIB
#include <zlib.h>
#endif

enum { PIECE = 1 << 16 };

struct mz_reader {
    char *where;
    int fd;
    char *piece;          // [PIECE] bytes of the file as it is stored
    size_t begin, end;    // the part of the piece that is still unused
    bool over, is_packed; // the file has no more bytes; it is gzip
#ifdef MEZZO_ZLIB
    z_stream zip;
    bool zip_is_open, within; // within: the reader is inside a member of a gzip file
#endif
};

const char *mz_reader_where(const mz_reader *reader) {
    return reader->where;
}

// Reads the next piece as it is stored, where the last one is used up.
static mezzo_status fill(mz_reader *r) {
    if (r->begin < r->end || r->over)
        return MEZZO_OK;
    r->begin = r->end = 0;
    MEZZO_TRY(mz_read_piece(r->fd, r->where, r->piece, PIECE, &r->end));
    r->over = r->end < PIECE;
    return MEZZO_OK;
}

static mezzo_status read_plain(mz_reader *r, char *to, size_t n, size_t *got) {
    for (*got = 0; *got < n;) {
        MEZZO_TRY(fill(r));
        const size_t there = r->end - r->begin, some = there < n - *got ? there : n - *got;
        if (there == 0)
            return MEZZO_OK;
        memcpy(to + *got, r->piece + r->begin, some);
        r->begin += some;
        *got += some;
    }
    return MEZZO_OK;
}

#ifdef MEZZO_ZLIB
static voidpf take_memory(voidpf user, uInt count, uInt size) {
    (void)user;
    return mz_alloc(count, size);
}

static void give_memory(voidpf user, voidpf memory) {
    (void)user;
    mz_free(memory);
}

static mezzo_status open_packed(mz_reader *r) {
    enum { GZIP = 15 + 16 }; // for inflateInit2: the largest window, gzip format
    r->zip = (z_stream){.zalloc = take_memory, .zfree = give_memory};
    r->zip_is_open = inflateInit2(&r->zip, GZIP) == Z_OK;
    return r->zip_is_open ? MEZZO_OK : MEZZO_ERR_MEMORY;
}

static void close_packed(mz_reader *r) {
    if (r->zip_is_open)
        inflateEnd(&r->zip);
}

static mezzo_status read_packed(mz_reader *r, char *to, size_t n, size_t *got) {
    for (*got = 0; *got < n;) {
        MEZZO_TRY(fill(r));
        if (r->begin == r->end) // the file ends here
            return r->within ? mz_fail(MEZZO_ERR_FORMAT, "%s: the compressed data are cut off", r->where) : MEZZO_OK;
        const size_t room = n - *got < PIECE ? n - *got : PIECE;
        r->zip.next_in = (Bytef *)(r->piece + r->begin);
        r->zip.avail_in = (uInt)(r->end - r->begin);
        r->zip.next_out = (Bytef *)(to + *got);
        r->zip.avail_out = (uInt)room;
        r->within = true;
        const int code = inflate(&r->zip, Z_NO_FLUSH);
        r->begin = r->end - r->zip.avail_in;
        *got += room - r->zip.avail_out;
        if (code == Z_MEM_ERROR)
            return mz_fail(MEZZO_ERR_MEMORY, "%s: no memory to decompress it", r->where);
        if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: the compressed data are damaged (%s)", r->where,
                           r->zip.msg != NULL ? r->zip.msg : "not gzip");
        if (code == Z_STREAM_END) { // another member may follow
            r->within = false;
            inflateReset(&r->zip);
        }
    }
    return MEZZO_OK;
}
#else
static mezzo_status open_packed(mz_reader *r) {
    return mz_fail(MEZZO_ERR_UNSUPPORTED,
                   "%s is compressed, and this build has no zlib: decompress it, or build with zlib1g-dev", r->where);
}

static void close_packed(mz_reader *r) {
    (void)r;
}

static mezzo_status read_packed(mz_reader *r, char *to, size_t n, size_t *got) {
    (void)to;
    (void)n;
    *got = 0;
    return open_packed(r);
}
#endif

static mezzo_status start(const char *where, mz_reader *r) {
    r->where = mz_strdup(where);
    r->piece = mz_alloc(PIECE, 1);
    if (r->where == NULL || r->piece == NULL)
        return MEZZO_ERR_MEMORY;
    MEZZO_TRY(fill(r));
    r->is_packed = r->end >= 2 && memcmp(r->piece, "\x1F\x8B", 2) == 0;
    return r->is_packed ? open_packed(r) : MEZZO_OK;
}

mezzo_status mz_reader_open(const char *path, mz_reader **out) {
    size_t size;
    *out = NULL;
    mz_reader *r;
    MEZZO_TRY(MZ_NEW(r, 1));
    r->fd = -1;
    mezzo_status status = mz_open_regular(path, &r->fd, &size);
    if (status == MEZZO_OK)
        status = start(path, r);
    if (status == MEZZO_OK)
        *out = r;
    else
        mz_reader_close(r);
    return status;
}

void mz_reader_close(mz_reader *r) {
    if (r == NULL)
        return;
    close_packed(r);
    if (r->fd >= 0)
        close(r->fd);
    MZ_FREE(r->piece, r->where, r);
}

mezzo_status mz_reader_read(mz_reader *reader, char *to, size_t n, size_t *got) {
    MEZZO_TRY(mz_stop_check(reader->where));
    return (reader->is_packed ? read_packed : read_plain)(reader, to, n, got);
}
