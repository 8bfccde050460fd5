// GPT-2's byte alphabet writes bytes as printable characters. Bytes that are printable in Latin-1 stay themselves; the
// other 68, in order, become U+0100 … U+0143.
#ifndef MZ_DATA_ALPHABET_H
#define MZ_DATA_ALPHABET_H

#include "base/base.h"

void mz_bytes_to_letters(const char *bytes, size_t n, mz_text *out);
// Turns letters into bytes, in `out` (space for n); SIZE_MAX where the text is not in the alphabet.
size_t mz_letters_to_bytes(const char *text, size_t n, char *out);
unsigned char mz_alphabet_byte(int i); // the i-th byte in the alphabet's order, which is that of GPT-2's byte tokens

#endif
