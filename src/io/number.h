// Reads and writes numbers as text, the same in every locale.
#ifndef MZ_IO_NUMBER_H
#define MZ_IO_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

#define MZ_NUMBER_MAX 32

// The shortest decimal that reads back as exactly x, always with a '.' so that every YAML and JSON reader takes it for
// a float ("0.0003", "1.0e-05", "65536.0"); "nan", "inf", "-inf" otherwise. Returns `out`.
const char *mz_number_format(double x, char out[MZ_NUMBER_MAX]);

// Decimal, whole text, no blanks. "nan", "inf" and YAML's ".nan", ".inf" in any case count; hexadecimal does not. A
// number too large for a double reads as infinity. False: not a number.
bool mz_number_parse(const char *text, double *out);

// An integer, or a decimal that is exactly one ("1e3", "2000.0"). False: not one, or not within int64_t.
bool mz_number_parse_int(const char *text, int64_t *out);

#endif
