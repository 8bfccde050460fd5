#include "data/alphabet.h"

#include "io/utf8.h"

enum { SHIFTED = 68, PRINTABLE = 256 - SHIFTED };

static bool is_printable(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

// Returns the i-th byte that is not printable: these are 0x00 … 0x20, 0x7F … 0xA0 and 0xAD.
static unsigned shifted_byte(unsigned i) {
    return i <= 0x20 ? i : i <= 0x42 ? i - 0x21 + 0x7F : 0xAD;
}

static uint32_t letter_of(unsigned byte) {
    if (is_printable(byte))
        return byte;
    return 256 + (byte <= 0x20 ? byte : byte <= 0xA0 ? byte - 0x7F + 0x21 : 0x43);
}

unsigned char mz_alphabet_byte(int i) {
    if (i >= PRINTABLE)
        return (unsigned char)shifted_byte((unsigned)(i - PRINTABLE));
    return (unsigned char)(i < 94 ? 0x21 + i : i < 94 + 12 ? 0xA1 + i - 94 : 0xAE + i - 94 - 12);
}

void mz_bytes_to_letters(const char *bytes, size_t n, mz_text *out) {
    for (size_t i = 0; i < n; i++) {
        char letter[4];
        mz_text_add(out, letter, mz_utf8_encode(letter_of((unsigned char)bytes[i]), letter));
    }
}

size_t mz_letters_to_bytes(const char *text, size_t n, char *out) {
    size_t made = 0;
    for (size_t i = 0; i < n;) {
        uint32_t code;
        size_t width = mz_utf8_decode(text + i, n - i, &code);
        if (width == 0 || code >= 256 + SHIFTED || (code < 256 && !is_printable(code)))
            return SIZE_MAX;
        out[made++] = (char)(code < 256 ? code : shifted_byte(code - 256));
        i += width;
    }
    return made;
}
