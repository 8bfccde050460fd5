#include "study/page/page_text.h"

#include <stdlib.h>

void mz_page_add_base64(mz_text *t, const unsigned char *bytes, size_t n) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const uint32_t second = i + 1 < n ? bytes[i + 1] : 0, third = i + 2 < n ? bytes[i + 2] : 0;
        const uint32_t word = (uint32_t)bytes[i] << 16 | second << 8 | third;
        const char four[] = {letters[word >> 18], letters[word >> 12 & 63], i + 1 < n ? letters[word >> 6 & 63] : '=',
                             i + 2 < n ? letters[word & 63] : '='};
        mz_text_add(t, four, sizeof four);
    }
}

void mz_page_add_escaped(mz_text *t, const char *title) {
    for (const char *p = title; *p != '\0'; p++)
        if (*p == '<' || *p == '&' || *p == '>' || *p == '"')
            mz_text_addf(t, "&#%d;", *p);
        else
            mz_text_add(t, p, 1);
}

void mz_page_add_hash(mz_text *t, const char *hex) {
    unsigned char bytes[32];
    for (size_t i = 0; i < sizeof bytes; i++) {
        const char pair[] = {hex[2 * i], hex[2 * i + 1], '\0'};
        bytes[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    mz_text_addf(t, "'sha256-");
    mz_page_add_base64(t, bytes, sizeof bytes);
    mz_text_addf(t, "'");
}
