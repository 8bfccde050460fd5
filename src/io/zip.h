// Maps ZIP archives, as numpy.savez writes them: files that are stored or deflated, of any size. PKWARE's APPNOTE.TXT
// 6.3 defines the format.
#ifndef MZ_IO_ZIP_H
#define MZ_IO_ZIP_H

#include "io/file.h"

typedef struct mz_zip_entry {
    char *name;
    uint64_t offset; // of its header
    uint64_t packed, size;
    uint32_t crc;
    bool is_deflated;
} mz_zip_entry;

typedef struct mz_zip {
    mz_map map;
    mz_zip_entry *entries;
    size_t count, cap;
} mz_zip;

// Opens an archive. FORMAT names the file and what is wrong: no archive, a damaged one, an entry that is encrypted or
// compressed otherwise. IO: it cannot be read.
mezzo_status mz_zip_open(const char *path, mz_zip *out);
// Returns the entries[index].size bytes of an entry: in the map, or unpacked into *owned, which the caller frees.
// FORMAT also where their checksum is wrong; UNSUPPORTED: this build has no zlib.
mezzo_status mz_zip_read(const mz_zip *zip, const char *where, size_t index, const unsigned char **bytes, void **owned);
mezzo_status mz_zip_end(mz_zip *zip, mezzo_status status); // closes it as mz_map_end does; a zeroed one is allowed

#endif
