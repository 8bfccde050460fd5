// GPT-2's byte alphabet writes bytes as printable characters. Those that are printable in Latin-1 stand for themselves,
// the other 68, in order, are U+0100 … U+0143.
#ifndef MZ_DATA_ALPHABET_H
#define MZ_DATA_ALPHABET_H

#include "base/base.h"

void mz_bytes_to_letters(const char *bytes, size_t n, mz_text *out);
// Letters to bytes, in `out` (room for n); SIZE_MAX where the text is not in the alphabet.
size_t mz_letters_to_bytes(const char *text, size_t n, char *out);
unsigned char mz_alphabet_byte(int i); // the i-th byte in the alphabet's order, which is GPT-2's of byte tokens

#endif
