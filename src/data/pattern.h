// Declares patterns that split and replace text: literal ones, Mezzo's, and those written for Oniguruma (the
// `tokenizers` library), which PCRE2 runs.
#ifndef MZ_DATA_PATTERN_H
#define MZ_DATA_PATTERN_H

#include "base/base.h"

// Unicode's White_Space within a class of PCRE2, whose own \s includes U+180E, which has not been white space since
// Unicode 6.3.
#define MZ_WHITE "\\x09-\\x0D\\x20\\x85\\xA0\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

// A pattern is immutable and may be used by any number of threads.
typedef struct mz_pattern mz_pattern;
typedef enum mz_pattern_syntax {
    MZ_PATTERN_LITERAL,
    MZ_PATTERN_PCRE2,
    MZ_PATTERN_ONIGURUMA, // is translated; MEZZO_ERR_FORMAT names what has no equivalent
} mz_pattern_syntax;
// Makes a pattern; `where` names it in errors. MEZZO_ERR_FORMAT: no pattern of that syntax, or an empty one.
mezzo_status mz_pattern_create(const char *where, mz_pattern_syntax syntax, const char *source, size_t n,
                               mz_pattern **out);
void mz_pattern_free(mz_pattern *pattern); // NULL is allowed

// A walk over a text of valid UTF-8, whose matches do not overlap. A match may be empty, but not directly after
// another.
typedef struct mz_matches {
    const mz_pattern *pattern;
    void *room; // from mz_match_room
    const char *text;
    size_t n, at;
    size_t last; // the end of the last match; SIZE_MAX: none yet
} mz_matches;
mezzo_status mz_match_room(void **out); // for one walk at a time
void mz_match_room_free(void *room);
static inline mz_matches mz_matches_of(const mz_pattern *pattern, void *room, const char *text, size_t n) {
    return (mz_matches){.pattern = pattern, .room = room, .text = text, .n = n, .last = SIZE_MAX};
}
// Finds the next match; *found false: there are no more. MEZZO_ERR_UNSUPPORTED: PCRE2 gives up, as on a pattern that
// backtracks without end.
mezzo_status mz_matches_next(mz_matches *m, bool *found, size_t *from, size_t *to);

#endif
