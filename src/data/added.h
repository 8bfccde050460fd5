// Tokens that were added to a vocabulary: found in a text as they are, before it is split.
#ifndef MZ_DATA_ADDED_H
#define MZ_DATA_ADDED_H

#include "data/pattern.h"

typedef struct mz_added_token {
    char *text; // owned; as it is searched for
    size_t n;
    int32_t token;
    bool special;                  // never made from text
    bool single_word, left, right; // not within a word; takes the white space before or after it
} mz_added_token;

typedef struct mz_added {
    mz_added_token *items; // in the order of their bytes
    size_t n, cap;
    bool begins[256];   // some item begins with the byte
    mz_pattern *letter; // of words, where some item is a single word
} mz_added;
void mz_added_free(mz_added *added);
mezzo_status mz_added_push(mz_added *added, mz_added_token token); // takes over token.text, also where it fails
// After the last one. MEZZO_ERR_FORMAT: the same text twice.
mezzo_status mz_added_finish(const char *where, mz_added *added);
int32_t mz_added_find(const mz_added *added, const char *text, size_t n); // the token of exactly this text, or -1

// A walk over a text of valid UTF-8.
typedef struct mz_added_walk {
    const mz_added *added;
    void *room; // of mz_match_room
    const char *text;
    size_t n, at, done;
    int32_t next; // a token that was found after the last piece; -1: none
    size_t next_end;
} mz_added_walk;
// The next piece: [*from, *to) of the text, which is *token or, -1, between tokens; *to == *from at the end.
mezzo_status mz_added_next(mz_added_walk *w, size_t *from, size_t *to, int32_t *token);

#endif
