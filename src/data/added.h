// Tokens that were added to a vocabulary are found in a text before it is split.
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

typedef struct mz_added_node { // of the trie of all texts, read from their ends (Aho and Corasick, 1975)
    uint32_t child, sibling;   // 0: none
    uint32_t fail;             // the node of the longest text that this one's ends with
    int32_t item;              // the longest item that this node's text, read forward, begins with; -1: none
    unsigned char byte;
} mz_added_node;

typedef struct mz_added {
    mz_added_token *items; // in the order of their bytes
    size_t n, cap;
    mz_added_node *nodes; // the first is the root
    uint32_t first[256];  // its children
    mz_pattern *letter;   // of words, where some item is a single word
} mz_added;
void mz_added_free(mz_added *added);
mezzo_status mz_added_push(mz_added *added, mz_added_token token); // takes over token.text, also where it fails
// Builds the trie after the last push. MEZZO_ERR_FORMAT: the same text twice, or too many bytes.
mezzo_status mz_added_finish(const char *where, mz_added *added);
int32_t mz_added_find(const mz_added *added, const char *text, size_t n); // the token of exactly this text, or -1

typedef struct mz_added_hit {
    size_t from;
    const mz_added_token *item; // the longest one there
} mz_added_hit;

typedef struct mz_added_hits { // of one walk at a time; zeroed, then freed
    mz_added_hit *items;       // the last one of the text first
    size_t n, cap;
} mz_added_hits;

// A walk over a text of valid UTF-8. Its time grows with the text, whatever the tokens are.
typedef struct mz_added_walk {
    const mz_added *added;
    mz_added_hits *hits;
    void *room; // of mz_match_room
    const char *text;
    size_t n, at, done;
    int32_t next; // a token that was found after the last piece; -1: none
    size_t next_end;
    size_t white_from, white_to; // the white space that was inspected last
} mz_added_walk;
mezzo_status mz_added_begin(const mz_added *added, mz_added_hits *hits, void *room, const char *text, size_t n,
                            mz_added_walk *out);
// Finds the next piece: [*from, *to) of the text, which is *token or, -1, between tokens; *to == *from at the end.
mezzo_status mz_added_next(mz_added_walk *w, size_t *from, size_t *to, int32_t *token);

#endif
