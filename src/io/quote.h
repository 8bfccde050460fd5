// Makes text from files and users fit for a one-line error message.
#ifndef MZ_IO_QUOTE_H
#define MZ_IO_QUOTE_H

#include <stddef.h>

// Long enough for any sane key or tensor name; what is longer is cut with "…".
#define MZ_QUOTE_MAX 96
typedef struct mz_quoted {
    char text[MZ_QUOTE_MAX + 8];
} mz_quoted;

// 'bytes' in single quotes, control bytes and bytes outside ASCII that are not whole UTF-8 sequences as "?".
// Returned by value so that one call can quote several names: mz_quote(a, n).text.
mz_quoted mz_quote_bytes(const char *bytes, size_t n);
mz_quoted mz_quote(const char *text); // NUL-terminated; NULL reads as ''

#endif
