#include "io/number.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/decimal.h"

// Writes x with that many digits. Returns whether they read as x.
static bool writes_as(double x, int digits, char out[MZ_NUMBER_MAX]) {
    mz_snprintf(out, MZ_NUMBER_MAX, "%.*g", digits, x);
    return mz_strtod(out, NULL) == x;
}

// Returns how many digits of a decimal there are from the first to the last that is not 0.
static int significant_digits(const char *text) {
    int n = 0, last = 0;
    for (; *text != '\0' && *text != 'e' && *text != 'E'; text++) {
        n += *text >= '0' && *text <= '9' && (n > 0 || *text != '0');
        last = *text >= '1' && *text <= '9' ? n : last;
    }
    return last;
}

const char *mz_number_format(double x, char out[MZ_NUMBER_MAX]) {
    if (isnan(x))
        return strcpy(out, "nan");
    if (isinf(x))
        return strcpy(out, x > 0 ? "inf" : "-inf");
    // 17 digits always suffice for a double (IEEE 754-2019, 5.12.2). A decimal of at most 15 that reads as x is what 15
    // digits of x are, but for zeros; subnormal numbers have fewer.
    int digits = 1;
    if (fabs(x) >= DBL_MIN)
        digits = writes_as(x, DBL_DIG, out) ? significant_digits(out) : DBL_DIG + 1;
    while (!writes_as(x, digits, out))
        digits++;
    if (!strchr(out, '.')) {
        char *exponent = strchr(out, 'e');
        if (exponent) {
            memmove(exponent + 2, exponent, strlen(exponent) + 1);
            memcpy(exponent, ".0", 2);
        } else {
            strcat(out, ".0");
        }
    }
    return out;
}

static bool parse_name(const char *text, double *out) {
    bool negative = *text == '-';
    if (*text == '-' || *text == '+')
        text++;
    if (*text == '.')
        text++;
    if (strcasecmp(text, "nan") == 0)
        *out = (double)NAN;
    else if (strcasecmp(text, "inf") == 0 || strcasecmp(text, "infinity") == 0)
        *out = negative ? (double)-INFINITY : (double)INFINITY;
    else
        return false;
    return true;
}

bool mz_number_parse(const char *text, double *out) {
    if (text[strspn(text, "+-0123456789.eE")] != '\0' || !strpbrk(text, "0123456789"))
        return parse_name(text, out);
    char *end;
    *out = mz_strtod(text, &end);
    return *end == '\0';
}

bool mz_number_parse_int(const char *text, int64_t *out) {
    if (!strpbrk(text, "0123456789"))
        return false;
    if (text[strspn(text, "+-0123456789")] == '\0') {
        char *end;
        errno = 0;
        long long value = strtoll(text, &end, 10);
        *out = value;
        return *end == '\0' && errno == 0;
    }
    double value;
    // Above 2^53 a decimal no longer identifies one integer; a decimal like 1e-400 is 0 only as a double.
    if (!mz_number_parse(text, &value) || !(fabs(value) <= 9007199254740992.0) || value != floor(value) ||
        (value == 0 && significant_digits(text) > 0))
        return false;
    *out = (int64_t)value;
    return true;
}
