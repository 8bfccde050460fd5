// Reads sentencepiece's precompiled rules of normalization: a trie of texts (Yata's darts-clone), each with its
// replacement.
#ifndef MZ_DATA_CHARSMAP_H
#define MZ_DATA_CHARSMAP_H

#include "base/base.h"

typedef struct mz_charsmap mz_charsmap; // immutable
// Makes a map, and copies the bytes. MEZZO_ERR_FORMAT, naming `where`: sizes that do not fit each other.
mezzo_status mz_charsmap_create(const char *where, const char *bytes, size_t n, mz_charsmap **out);
void mz_charsmap_free(mz_charsmap *map); // NULL is allowed
// Returns the length of the longest text of the rules with which `text` begins, and its replacement, which ends with a
// NUL; 0: no rule applies.
size_t mz_charsmap_find(const mz_charsmap *map, const char *text, size_t n, const char **becomes);
// Returns whether a space between ASCII letters or digits stays a space, and they stay letters or digits.
bool mz_charsmap_keeps_spaces(const mz_charsmap *map);

void mz_base64_add(mz_text *out, const char *bytes, size_t n); // RFC 4648
bool mz_base64_read(const char *text, size_t n, mz_text *out); // returns false for other text

#endif
