#include "data/charsmap.h"

struct mz_charsmap {
    uint32_t *units; // of the trie
    size_t n_units;
    char *texts; // each ends with a NUL
    size_t n_texts;
};

void mz_charsmap_free(mz_charsmap *map) {
    if (map == NULL)
        return;
    MZ_FREE(map->units, map->texts, map);
}

// Creates it from the bytes: four with the trie's size, the trie, the texts.
mezzo_status mz_charsmap_create(const char *where, const char *bytes, size_t n, mz_charsmap **out) {
    uint32_t trie = 0;
    *out = NULL;
    if (n >= sizeof trie)
        memcpy(&trie, bytes, sizeof trie);
    if (n <= sizeof trie || trie == 0 || trie % 4 != 0 || trie >= n - sizeof trie || bytes[n - 1] != '\0')
        return mz_fail(MEZZO_ERR_FORMAT, "%s: its precompiled_charsmap is damaged", where);
    mz_charsmap *map;
    MEZZO_TRY(MZ_NEW(map, 1));
    map->n_units = trie / 4;
    map->n_texts = n - sizeof trie - trie;
    map->units = mz_alloc(map->n_units, 4);
    map->texts = mz_alloc(map->n_texts, 1);
    if (map->units == NULL || map->texts == NULL) {
        mz_charsmap_free(map);
        return MEZZO_ERR_MEMORY;
    }
    memcpy(map->units, bytes + sizeof trie, trie);
    memcpy(map->texts, bytes + sizeof trie + trie, map->n_texts);
    *out = map;
    return MEZZO_OK;
}

// Returns the next place by a unit: bits 0-7 are its label, bit 8 means that a value follows, bit 9 that its offset
// counts 256, bits 10-30 are the offset, bit 31 means that it is a value.
static size_t next_place(uint32_t unit) {
    return (size_t)(unit >> 10) << (unit & 1u << 9 ? 8 : 0);
}

size_t mz_charsmap_find(const mz_charsmap *map, const char *text, size_t n, const char **becomes) {
    size_t at = next_place(map->units[0]), longest = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        at ^= c;
        if (at >= map->n_units || (map->units[at] & (1u << 31 | 0xFF)) != c)
            break;
        const uint32_t unit = map->units[at];
        at ^= next_place(unit);
        if ((unit >> 8 & 1) == 0)
            continue;
        const size_t value = at < map->n_units ? map->units[at] & 0x7FFFFFFF : SIZE_MAX;
        if (value >= map->n_texts)
            break;
        *becomes = map->texts + value;
        longest = i + 1;
    }
    return longest;
}

static bool is_plain(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool mz_charsmap_keeps_spaces(const mz_charsmap *map) {
    const char *becomes;
    bool keeps = true;
    for (int i = '0'; i <= 'z'; i++) {
        const char text[] = {(char)i, ' ', (char)i};
        if (!is_plain(text[0]))
            continue;
        const size_t letter = mz_charsmap_find(map, text, 2, &becomes);
        keeps &= letter == 0 || (letter == 1 && is_plain(becomes[0]) && becomes[1] == '\0');
        keeps &= mz_charsmap_find(map, text + 1, 2, &becomes) == 0 || (strcmp(becomes, " ") == 0);
        keeps &= mz_charsmap_find(map, text + 1, 2, &becomes) < 2;
    }
    return keeps;
}

// --- base64 --------------------------------------------------------------------------------------------------------
static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void mz_base64_add(mz_text *out, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i += 3) {
        uint32_t three = 0;
        char four[4];
        for (size_t k = 0; k < 3; k++)
            three = three << 8 | (i + k < n ? (unsigned char)bytes[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            four[k] = i + k <= n ? digits[three >> (18 - 6 * k) & 63] : '=';
        mz_text_add(out, four, 4);
    }
}

bool mz_base64_read(const char *text, size_t n, mz_text *out) {
    for (int i = 0; i < 2 && n > 0 && text[n - 1] == '='; i++)
        n--;
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        const char *digit = text[i] != '\0' ? strchr(digits, text[i]) : NULL;
        if (digit == NULL)
            return false;
        bits = bits << 6 | (uint32_t)(digit - digits);
        const char byte = (char)(bits >> (6 - 2 * (i % 4)) & 0xFF);
        if (i % 4 > 0)
            mz_text_add(out, &byte, 1);
    }
    return n % 4 != 1;
}
