// Splits a text into the words on which byte-pair encoding works: a list of steps, each of which splits or rewrites the
// result of the one before. GPT-2 has one step.
#ifndef MZ_DATA_WORDS_H
#define MZ_DATA_WORDS_H

#include "data/pattern.h"

// Says where a piece stands, because spaces are put before texts that begin.
typedef enum mz_place {
    MZ_PLACE_BEGINS,    // it begins a text
    MZ_PLACE_FOLLOWS,   // it follows a token that was added to the vocabulary
    MZ_PLACE_CONTINUES, // it continues a text that was cut
} mz_place;

typedef enum mz_step_kind {
    MZ_STEP_SPLIT,   // splits at matches of a pattern
    MZ_STEP_SPACES,  // Metaspace: spaces become `text`, which is put before a text that does not begin with it
    MZ_STEP_PREFIX,  // puts a space before a text that does not begin with one
    MZ_STEP_LETTERS, // turns bytes into letters of GPT-2's alphabet, for the next steps
} mz_step_kind;

// Says what becomes of a match, in the words of `tokenizers`.
typedef enum mz_behaviour {
    MZ_REMOVED,
    MZ_ISOLATED,
    MZ_MERGED_WITH_PREVIOUS,
    MZ_MERGED_WITH_NEXT,
    MZ_CONTIGUOUS,
} mz_behaviour;

typedef enum mz_prepend { MZ_PREPEND_NEVER, MZ_PREPEND_FIRST, MZ_PREPEND_ALWAYS } mz_prepend;

// Says what a step does where an ASCII letter or digit, a space and an ASCII letter follow each other.
typedef enum mz_at_space {
    MZ_SPACE_UNKNOWN,
    MZ_SPACE_KEEPS,  // it does nothing, and its result elsewhere does not depend on the text across the space
    MZ_SPACE_SPLITS, // likewise, but a word begins at the space
} mz_at_space;

typedef struct mz_step {
    mz_step_kind kind;
    mz_pattern *pattern; // of SPLIT; owned
    mz_behaviour behaviour;
    bool invert;        // the text between matches is the match
    char text[5];       // of SPACES: one character
    mz_prepend prepend; // of SPACES
    mz_at_space at_space;
    bool gpt2; // of SPLIT, ISOLATED: it is GPT-2's pattern
} mz_step;

enum { MZ_MAX_STEPS = 32 };
typedef struct mz_steps {
    mz_step items[MZ_MAX_STEPS];
    size_t n;
} mz_steps;
void mz_steps_free(mz_steps *steps);
// Adds a step. MEZZO_ERR_FORMAT where there are too many; it then frees the step.
mezzo_status mz_steps_add(const char *where, mz_steps *steps, mz_step step);
mezzo_status mz_steps_add_gpt2(const char *where, mz_steps *steps); // adds GPT-2's pattern

// One thread owns this memory; zeroed, then freed.
typedef struct mz_word_room {
    void *match;
    mz_text text[MZ_MAX_STEPS]; // the result of each step
} mz_word_room;
void mz_word_room_free(mz_word_room *room);

typedef mezzo_status (*mz_word_fn)(void *user, const char *word, size_t n);
// Finds the words of a text of valid UTF-8, n ≥ 1 bytes each, in order.
mezzo_status mz_words(const mz_steps *steps, mz_word_room *room, const char *text, size_t n, mz_place place,
                      mz_word_fn each, void *user);

// Returns the largest place in (from, to) where a text may be cut if a word begins before each space between an ASCII
// letter or digit and a letter; `to` where there is none. GPT-2's words allow more: before all white space that follows
// another character.
size_t mz_word_cut(const char *text, size_t from, size_t to, bool gpt2);

// Return the ends of the UTF-8, and of the other bytes, that start at `at`.
size_t mz_valid_until(const char *text, size_t at, size_t n);
size_t mz_invalid_until(const char *text, size_t at, size_t n);

#endif
