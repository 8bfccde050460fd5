// Reads the bytes of a file from its beginning, in memory that does not grow with it. A gzip file (RFC 1952, recognized
// by its first bytes, not by its name) is decompressed, with all its members.
#ifndef MZ_IO_READER_H
#define MZ_IO_READER_H

#include "base/base.h"

typedef struct mz_reader mz_reader;

mezzo_status mz_reader_open(const char *path, mz_reader **out); // IO names the file; UNSUPPORTED: gzip without zlib
void mz_reader_close(mz_reader *reader);                        // NULL is allowed
// Reads up to n bytes; fewer only at the end. FORMAT: the compressed data are damaged or truncated.
mezzo_status mz_reader_read(mz_reader *reader, char *to, size_t n, size_t *got);
const char *mz_reader_where(const mz_reader *reader);

#endif
