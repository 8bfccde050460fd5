// Finds tokens that were added to a vocabulary in a text, before it is split.
#ifndef MZ_DATA_ADDED_H
#define MZ_DATA_ADDED_H

#include "data/pattern.h"

typedef struct mz_added_token {
    char *text; // the text to search for; owned
    size_t n;
    int32_t token;
    bool special;                  // text never becomes this token
    bool single_word, left, right; // it is not found within a word; it takes the white space before or after it
} mz_added_token;

typedef struct mz_added_node { // of the trie of all texts, read from their ends (Aho and Corasick, 1975)
    uint32_t child, sibling;   // 0: none
    uint32_t fail;             // the node of the longest other text that ends this node's text
    int32_t item;              // the longest item with which this node's text, read forward, begins; -1: none
    unsigned char byte;
} mz_added_node;

typedef struct mz_added {
    mz_added_token *items; // in the order of their bytes
    size_t n, cap;
    mz_added_node *nodes; // the first is the root
    uint32_t first[256];  // the root's children
    mz_pattern *letter;   // the pattern of a word's letters, where some item is a single word
} mz_added;
void mz_added_free(mz_added *added);
mezzo_status mz_added_push(mz_added *added, mz_added_token token); // takes over token.text, after an error, too
// Builds the trie after the last push. MEZZO_ERR_FORMAT: a repeated text, or too many bytes.
mezzo_status mz_added_finish(const char *where, mz_added *added);
int32_t mz_added_find(const mz_added *added, const char *text, size_t n); // the token with exactly this text, or -1

typedef struct mz_added_hit {
    size_t from;
    const mz_added_token *item; // the longest item at this place
} mz_added_hit;

typedef struct mz_added_hits { // used by one walk at a time; zeroed, then freed
    mz_added_hit *items;       // from the end of the text to its beginning
    size_t n, cap;
} mz_added_hits;

// A walk over a text of valid UTF-8. Its time grows with the text, whatever the tokens are.
typedef struct mz_added_walk {
    const mz_added *added;
    mz_added_hits *hits;
    void *room; // from mz_match_room
    const char *text;
    size_t n, at, done;
    int32_t next; // a token that was found after the last piece; -1: none
    size_t next_end;
    size_t white_from, white_to; // the white space that was inspected last
} mz_added_walk;
mezzo_status mz_added_begin(const mz_added *added, mz_added_hits *hits, void *room, const char *text, size_t n,
                            mz_added_walk *out);
// Finds the next piece: [*from, *to) of the text, which is *token or, -1, lies between tokens; *to == *from at the end.
mezzo_status mz_added_next(mz_added_walk *w, size_t *from, size_t *to, int32_t *token);

#endif
