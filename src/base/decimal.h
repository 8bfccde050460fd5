// Writes and reads decimals, the same in every locale.
#ifndef MZ_BASE_DECIMAL_H
#define MZ_BASE_DECIMAL_H

#include <stdarg.h>
#include <stddef.h>

// Like snprintf, vsnprintf and strtod, but in the "C" locale: a program that calls setlocale() must not turn 0.5 into
// "0,5" in Mezzo's files, nor read 0.5 as 0. mz_text_addf and mz_format write so, too.
int mz_snprintf(char *out, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int mz_vsnprintf(char *out, size_t size, const char *fmt, va_list args);
double mz_strtod(const char *text, char **end);

#endif
