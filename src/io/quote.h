// Prepares text of files and users for a one-line error message.
#ifndef MZ_IO_QUOTE_H
#define MZ_IO_QUOTE_H

#include <stddef.h>

// Long enough for usual key and tensor names; longer text ends with "…".
#define MZ_QUOTE_MAX 96
typedef struct mz_quoted {
    char text[MZ_QUOTE_MAX + 8];
} mz_quoted;

// Puts bytes in single quotes; control bytes, and bytes outside ASCII that are not whole UTF-8 sequences, become "?".
// It returns a value, so that one call can quote several names: mz_quote(a, n).text.
mz_quoted mz_quote_bytes(const char *bytes, size_t n);
mz_quoted mz_quote(const char *text); // for NUL-terminated text; NULL becomes ''

#endif
