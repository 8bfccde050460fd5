#include "io/zip.h"

#include <limits.h>

#ifdef MEZZO_ZLIB
#include <zlib.h>
#endif

enum { END = 22, END_64 = 56, LOCATOR_64 = 20, CENTRAL = 46, LOCAL = 30, COMMENT_MOST = 65535, NAME_MOST = 512 };

static uint64_t number(const unsigned char *at, int bytes) {
    uint64_t n = 0;
    for (int i = bytes; i-- > 0;)
        n = n << 8 | at[i];
    return n;
}

// Finds the record at the end of an archive, after which a comment may stand; NULL: there is none.
static const unsigned char *find_end(const unsigned char *d, size_t size) {
    for (size_t back = END; back <= size && back <= END + COMMENT_MOST; back++)
        if (number(d + size - back, 4) == 0x06054b50 && number(d + size - back + 20, 2) == back - END)
            return d + size - back;
    return NULL;
}

// Finds the list of entries, its length and their number.
static mezzo_status find_list(const char *where, const mz_map *m, uint64_t *offset, uint64_t *bytes, uint64_t *count) {
    const unsigned char *end = find_end(m->data, m->size);
    if (end == NULL)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: not an archive of arrays (numpy.savez writes one), or cut off", where);
    *count = number(end + 10, 2);
    *bytes = number(end + 12, 4);
    *offset = number(end + 16, 4);
    const size_t before = (size_t)(end - m->data);
    if (before >= LOCATOR_64 && number(end - LOCATOR_64, 4) == 0x07064b50) {
        const uint64_t at = number(end - LOCATOR_64 + 8, 8);
        if (at > m->size || m->size - at < END_64 || number(m->data + at, 4) != 0x06064b50)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: the archive's 64-bit record is not where it should be", where);
        *count = number(m->data + at + 32, 8);
        *bytes = number(m->data + at + 40, 8);
        *offset = number(m->data + at + 48, 8);
    }
    if (*offset > m->size || *bytes > m->size - *offset || *count > *bytes / CENTRAL)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: the archive's list of entries is not inside the file", where);
    return MEZZO_OK;
}

// Reads from the extra field the sizes and the offset that do not fit into 32 bits, in this order.
static void widen(mz_zip_entry *e, const unsigned char *extra, size_t n) {
    uint64_t *const wide[] = {&e->size, &e->packed, &e->offset};
    while (n >= 4) {
        const size_t id = (size_t)number(extra, 2), bytes = (size_t)number(extra + 2, 2);
        if (bytes > n - 4)
            return;
        size_t at = 4;
        for (size_t i = 0; id == 1 && i < MZ_COUNT(wide); i++)
            if (*wide[i] == UINT32_MAX && at + 8 <= bytes + 4) {
                *wide[i] = number(extra + at, 8);
                at += 8;
            }
        extra += bytes + 4;
        n -= bytes + 4;
    }
}

static mezzo_status add_entry(const char *where, const unsigned char *at, size_t left, mz_zip *zip, size_t *used) {
    if (left < CENTRAL || number(at, 4) != 0x02014b50)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: entry %zu of the archive is damaged", where, zip->count);
    const size_t name = (size_t)number(at + 28, 2), extra = (size_t)number(at + 30, 2);
    const uint64_t method = number(at + 10, 2);
    *used = CENTRAL + name + extra + (size_t)number(at + 32, 2);
    if (*used > left || name == 0 || name > NAME_MOST || memchr(at + CENTRAL, '\0', name) != NULL)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: entry %zu of the archive has no name, or a damaged one", where,
                       zip->count);
    mz_zip_entry e = {.offset = number(at + 42, 4),
                      .packed = number(at + 20, 4),
                      .size = number(at + 24, 4),
                      .crc = (uint32_t)number(at + 16, 4),
                      .is_deflated = method == 8};
    widen(&e, at + CENTRAL + name, extra);
    if ((number(at + 8, 2) & 1) != 0 || (method != 0 && method != 8))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: entry '%.*s' is encrypted, or neither stored nor deflated", where,
                       (int)name, (const char *)at + CENTRAL);
    MEZZO_TRY(MZ_RESERVE(zip->entries, zip->cap, zip->count + 1));
    e.name = mz_format("%.*s", (int)name, (const char *)at + CENTRAL);
    if (e.name == NULL)
        return MEZZO_ERR_MEMORY;
    zip->entries[zip->count++] = e;
    return MEZZO_OK;
}

static mezzo_status list_entries(const char *where, mz_zip *zip) {
    uint64_t offset = 0, bytes = 0, count = 0;
    MEZZO_TRY(find_list(where, &zip->map, &offset, &bytes, &count));
    for (uint64_t i = 0; i < count; i++) {
        size_t used = 0;
        MEZZO_TRY(add_entry(where, zip->map.data + offset, (size_t)bytes, zip, &used));
        offset += used;
        bytes -= used;
    }
    return MEZZO_OK;
}

static void free_entries(mz_zip *zip) {
    for (size_t i = 0; i < zip->count; i++)
        mz_free(zip->entries[i].name);
    mz_free(zip->entries);
    zip->entries = NULL;
    zip->count = zip->cap = 0;
}

mezzo_status mz_zip_open(const char *path, mz_zip *out) {
    *out = (mz_zip){0};
    MEZZO_TRY(mz_map_open(path, &out->map));
    const mezzo_status status = list_entries(path, out);
    return status == MEZZO_OK ? status : mz_zip_end(out, status);
}

mezzo_status mz_zip_end(mz_zip *zip, mezzo_status status) {
    free_entries(zip);
    status = mz_map_end(&zip->map, status);
    *zip = (mz_zip){0};
    return status;
}

// --- bytes ---------------------------------------------------------------------------------------------------------
#ifdef MEZZO_ZLIB
static mezzo_status unpack(const char *where, const mz_zip_entry *e, const unsigned char *from, unsigned char *to) {
    z_stream s = {0};
    uint64_t in = e->packed, out = e->size;
    int code = inflateInit2(&s, -MAX_WBITS);
    if (code != Z_OK)
        return mz_fail(MEZZO_ERR_MEMORY, "%s: no memory to unpack '%s'", where, e->name);
    s.next_in = (unsigned char *)from; // zlib does not write to it
    s.next_out = to;
    while (code == Z_OK) {
        const uInt some_in = in > UINT_MAX ? UINT_MAX : (uInt)in, some_out = out > UINT_MAX ? UINT_MAX : (uInt)out;
        s.avail_in = some_in;
        s.avail_out = some_out;
        code = inflate(&s, Z_NO_FLUSH);
        in -= some_in - s.avail_in;
        out -= some_out - s.avail_out;
    }
    inflateEnd(&s);
    return code == Z_STREAM_END && out == 0 && in == 0
               ? MEZZO_OK
               : mz_fail(MEZZO_ERR_FORMAT, "%s: entry '%s' is damaged", where, e->name);
}

static uint32_t checksum(const unsigned char *bytes, uint64_t n) {
    return (uint32_t)crc32_z(0, bytes, (z_size_t)n);
}
#endif

static mezzo_status find_bytes(const mz_zip *zip, const char *where, const mz_zip_entry *e, const unsigned char **out) {
    const mz_map *m = &zip->map;
    if (e->offset > m->size || m->size - e->offset < LOCAL || number(m->data + e->offset, 4) != 0x04034b50)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: entry '%s' is not where the archive says", where, e->name);
    const unsigned char *local = m->data + e->offset;
    const uint64_t begin = e->offset + LOCAL + number(local + 26, 2) + number(local + 28, 2);
    if (begin > m->size || m->size - begin < e->packed || (!e->is_deflated && e->packed != e->size))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: entry '%s' is longer than the file", where, e->name);
    *out = m->data + begin;
    return MEZZO_OK;
}

mezzo_status mz_zip_read(const mz_zip *zip, const char *where, size_t index, const unsigned char **bytes,
                         void **owned) {
    const mz_zip_entry *e = &zip->entries[index];
    *owned = NULL;
    MEZZO_TRY(find_bytes(zip, where, e, bytes));
#ifdef MEZZO_ZLIB
    if (e->is_deflated) {
        if (e->size / 1032 > e->packed + 64) // deflate cannot compress that much
            return mz_fail(MEZZO_ERR_FORMAT, "%s: entry '%s' says that it unpacks to %llu bytes", where, e->name,
                           (unsigned long long)e->size);
        *owned = mz_alloc((size_t)e->size + 1, 1);
        mezzo_status status = *owned == NULL ? MEZZO_ERR_MEMORY : unpack(where, e, *bytes, *owned);
        if (status != MEZZO_OK) {
            mz_free(*owned);
            *owned = NULL;
            return status;
        }
        *bytes = *owned;
    }
    if (checksum(*bytes, e->size) == e->crc)
        return MEZZO_OK;
    mz_free(*owned);
    *owned = NULL;
    return mz_fail(MEZZO_ERR_FORMAT, "%s: entry '%s' does not have its checksum: the file is damaged", where, e->name);
#else
    return e->is_deflated ? mz_fail(MEZZO_ERR_UNSUPPORTED,
                                    "%s: entry '%s' is compressed, and this build has no zlib: use numpy.savez, or "
                                    "build with zlib1g-dev",
                                    where, e->name)
                          : MEZZO_OK;
#endif
}
