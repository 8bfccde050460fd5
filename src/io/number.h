// Reads and writes numbers as text, the same in every locale.
#ifndef MZ_IO_NUMBER_H
#define MZ_IO_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

#define MZ_NUMBER_MAX 32

// Writes the shortest decimal that reads back as exactly x, always with a '.' so that every YAML and JSON reader takes
// it for a float ("0.0003", "1.0e-05", "65536.0"); "nan", "inf", "-inf" for other numbers. Returns `out`.
const char *mz_number_format(double x, char out[MZ_NUMBER_MAX]);

// Parses a decimal, which must be the whole text, without blanks. "nan", "inf" and YAML's ".nan", ".inf" are allowed in
// any case; hexadecimal is not. A number too large for a double reads as infinity. Returns false for other text.
bool mz_number_parse(const char *text, double *out);

// Parses an integer, or a decimal that is exactly one ("1e3", "2000.0"). Returns false for other text, and outside
// int64_t.
bool mz_number_parse_int(const char *text, int64_t *out);

#endif
