#include "io/quote.h"

#include <stdbool.h>
#include <string.h>

#include "base/base.h"
#include "io/utf8.h"

mz_quoted mz_quote_bytes(const char *bytes, size_t n) {
    mz_quoted q;
    size_t at = 0, i = 0;
    q.text[at++] = '\'';
    while (i < n && at < MZ_QUOTE_MAX) {
        uint32_t code;
        size_t width = mz_utf8_decode(bytes + i, n - i, &code);
        const bool plain = width > 0 && code != 0 && mz_text_unshown(bytes + i) == 0;
        if (!plain) {
            q.text[at++] = '?';
            i += width > 0 ? width : 1;
            continue;
        }
        memcpy(q.text + at, bytes + i, width);
        at += width;
        i += width;
    }
    if (i < n) {
        memcpy(q.text + at, "…", 3);
        at += 3;
    }
    q.text[at++] = '\'';
    q.text[at] = '\0';
    return q;
}

mz_quoted mz_quote(const char *text) {
    return mz_quote_bytes(text ? text : "", text ? strlen(text) : 0);
}
