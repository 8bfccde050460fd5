// sentencepiece's precompiled rules of normalization are a trie of texts (Yata's darts-clone), each with its
// replacement.
#ifndef MZ_DATA_CHARSMAP_H
#define MZ_DATA_CHARSMAP_H

#include "base/base.h"

typedef struct mz_charsmap mz_charsmap; // immutable
// Copies the bytes. MEZZO_ERR_FORMAT, naming `where`: sizes that do not fit each other.
mezzo_status mz_charsmap_create(const char *where, const char *bytes, size_t n, mz_charsmap **out);
void mz_charsmap_free(mz_charsmap *map); // NULL is fine
// The length of the longest text of the rules that `text` begins with, and what it becomes, which ends with a NUL; 0:
// no rule.
size_t mz_charsmap_find(const mz_charsmap *map, const char *text, size_t n, const char **becomes);
// Returns whether a space between letters or digits of ASCII stays one, and they stay some.
bool mz_charsmap_keeps_spaces(const mz_charsmap *map);

void mz_base64_add(mz_text *out, const char *bytes, size_t n); // RFC 4648
bool mz_base64_read(const char *text, size_t n, mz_text *out); // false: it is none

#endif
