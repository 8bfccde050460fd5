// Normalizes a text before it is split, as the normalizers of `tokenizers` do.
#ifndef MZ_DATA_NORMALIZE_H
#define MZ_DATA_NORMALIZE_H

#include "data/charsmap.h"
#include "data/words.h"

typedef enum mz_normal_kind {
    MZ_NORMAL_NFC,
    MZ_NORMAL_NFD,
    MZ_NORMAL_NFKC,
    MZ_NORMAL_NFKD,
    MZ_NORMAL_LOWERCASE,
    MZ_NORMAL_REPLACE, // replaces matches; accents are removed with it, too
    MZ_NORMAL_PREPEND,
    MZ_NORMAL_STRIP, // removes white space
    MZ_NORMAL_RULES, // applies sentencepiece's rules: the longest one that matches, from the left
} mz_normal_kind;

typedef struct mz_normal {
    mz_normal_kind kind;
    mz_pattern *pattern; // REPLACE; owned
    char *text;          // REPLACE, PREPEND; owned
    size_t n;
    bool left, right; // STRIP: which side; REPLACE: left applies only where a text begins
    mz_charsmap *map; // RULES; owned
    mz_at_space at_space;
} mz_normal;

typedef struct mz_normals {
    mz_normal items[MZ_MAX_STEPS];
    size_t n;
} mz_normals;
void mz_normals_free(mz_normals *normals);
// Adds a normalizer. MEZZO_ERR_FORMAT: too many; UNSUPPORTED: one that needs utf8proc, which this build lacks. An error
// frees what the normalizer owns.
mezzo_status mz_normals_add(const char *where, mz_normals *normals, mz_normal normal);

// One thread owns this memory; zeroed, then freed.
typedef struct mz_normal_room {
    void *match;
    mz_text text[2];
    int32_t *codes;
    size_t cap_codes;
    size_t most; // the most bytes that replacements may make of the present text
} mz_normal_room;
void mz_normal_room_free(mz_normal_room *room);

// Normalizes a text of valid UTF-8; *out is the text itself, or lies in *room until the next call.
mezzo_status mz_normalize(const mz_normals *normals, mz_normal_room *room, const char *text, size_t n, mz_place place,
                          const char **out, size_t *out_n);

// Return how many bytes at the beginning are white space, and where the white space at the end begins.
size_t mz_white_until(const char *text, size_t n);
size_t mz_white_from(const char *text, size_t n);

#endif
