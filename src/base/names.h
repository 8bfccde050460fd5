// Declares a hash table from names to numbers, beside the list that owns the names, for lists that grow with a model;
// and the search in a short list of words.
#ifndef MZ_NAMES_H
#define MZ_NAMES_H

#include "base/base.h"

typedef struct mz_names {
    struct mz_name_slot {
        uint32_t hash;
        int32_t number; // plus 1; 0: empty
    } * slots;
    size_t cap, n;
} mz_names;

typedef const char *mz_name_of(const void *list, int number);

uint32_t mz_name_hash(const char *name); // FNV-1a
// Returns the number added with that name; -1: none. `of` returns the names of the numbers that were added.
int mz_names_find(const mz_names *names, const char *name, mz_name_of *of, const void *list);
mezzo_status mz_names_add(mz_names *names, const char *name, int number);
void mz_names_free(mz_names *names);

// Returns the index of a word of n bytes in a list of words, which blanks, commas or bars separate; -1: it has none.
int mz_word_index(const char *list, const char *word, size_t n);
static inline bool mz_is_listed(const char *list, const char *word) {
    return mz_word_index(list, word, strlen(word)) >= 0;
}

#endif
