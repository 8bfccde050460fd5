// GPT-2's split pattern: where a text falls apart into words before byte-pair encoding.
#ifndef MZ_DATA_SPLIT_H
#define MZ_DATA_SPLIT_H

#include "base/base.h"

// The compiled pattern: immutable, for any number of threads.
typedef struct mz_splitter mz_splitter;
mezzo_status mz_splitter_create(mz_splitter **out);
void mz_splitter_free(mz_splitter *splitter); // NULL is fine

// One walk over a text. Words are contractions ('s 't 're 've 'm 'll 'd), runs of letters, of numbers, or of what is
// neither nor white space, each with one space before it, and runs of white space, whose last character belongs to a
// word that follows if it is a space. Bytes that are not UTF-8 are words too: each longest run of them is one, and the
// text before and after it is split as if it stood alone.
typedef struct mz_split {
    const mz_splitter *splitter;
    void *match; // of PCRE2
    const char *text;
    size_t n, at;
    size_t valid_end; // text[at … valid_end) is UTF-8
} mz_split;
mezzo_status mz_split_begin(const mz_splitter *splitter, const char *text, size_t n, mz_split *out);
void mz_split_end(mz_split *split);
// The next word, of *n ≥ 1 bytes, or *n = 0 at the end.
mezzo_status mz_split_next(mz_split *split, const char **word, size_t *n);

// The largest place in (from, to) where a word certainly begins, whatever stands around: white space after what is not.
// `to` where there is none.
size_t mz_split_cut(const char *text, size_t from, size_t to);

#endif
