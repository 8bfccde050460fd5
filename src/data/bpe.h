// Implements byte-pair encoding (Sennrich et al., 2016) over bytes, as GPT-2 does it, or over characters: a word's
// bytes or characters are its first tokens, and the pair of neighbours that comes first in the merge list is merged,
// the leftmost first, until no pair is in the list.
#ifndef MZ_DATA_BPE_H
#define MZ_DATA_BPE_H

#include <jansson.h>

#include "base/base.h"

typedef struct mz_bpe_merge {
    int32_t left, right, merged; // tokens
} mz_bpe_merge;

typedef struct mz_bpe_pair { // an entry of the hash table of merges
    int32_t left, right;     // left -1: the entry is free
    int32_t rank, merged;
} mz_bpe_pair;

typedef struct mz_bpe_word { // an entry of the hash table of tokens by their bytes
    uint32_t hash;
    int32_t token; // -1: the entry is free
} mz_bpe_word;

typedef struct mz_bpe {
    char *bytes;  // of all tokens, one after another
    size_t *ends; // [vocab]: token t is bytes[ends[t-1] … ends[t])
    int32_t vocab;
    size_t n_bytes, cap_bytes, cap_ends, max_bytes;
    int32_t byte_token[256];
    mz_bpe_merge *merges; // in order of rank
    size_t n_merges, cap_merges;
    mz_bpe_pair *pairs;
    size_t pair_mask;
    mz_bpe_word *words;
    size_t word_mask;
    // Bits of a token. 1: merging makes it (or it is a byte), so that a later merge may use it; 2: a word with exactly
    // these bytes becomes this token.
    unsigned char *made; // [vocab]
    bool characters;     // words are UTF-8 characters, and a token's bytes are its text
    bool whole_first;    // a word that is a token becomes it, whatever the merges are
    bool fuse_unknown;
    int32_t unknown;             // the token for characters in no token; -1: such a character is an error
    int32_t fallback_token[256]; // where words are characters: tokens for the bytes of a character that is no token;
                                 // -1: none
    uint64_t *joints; // where words are characters: whether two parts may merge, by hashes of the first one's last and
                      // the second one's first character
} mz_bpe;
enum { MZ_BPE_MADE = 1, MZ_BPE_WHOLE = 2, MZ_BPE_FALLBACK = 4 };
enum {
    MZ_BPE_ADDED = 8,
    MZ_BPE_PLAIN = 16
}; // it is not in the model's vocabulary; it has plain text instead of
   // letters of bytes

// The most tokens of a vocabulary, which limits the memory that a malicious file can make the library allocate.
#define MZ_BPE_MAX_VOCAB (1 << 24)

mz_bpe mz_bpe_of_bytes(void);  // an empty table
void mz_bpe_free(mz_bpe *bpe); // frees its contents; a zeroed one is allowed

static inline const char *mz_bpe_bytes(const mz_bpe *bpe, int32_t token, size_t *n) {
    size_t start = token > 0 ? bpe->ends[token - 1] : 0;
    *n = bpe->ends[token] - start;
    return bpe->bytes + start;
}
bool mz_bpe_same(const mz_bpe *a, const mz_bpe *b); // whether both have the same tokens and merges
uint64_t mz_bpe_hash(const char *bytes, size_t n);
int32_t mz_bpe_find(const mz_bpe *bpe, const char *bytes, size_t n); // the token with exactly these bytes, or -1

// --- reading (bpe_read.c) ------------------------------------------------------------------------------------------
// The vocabulary and merges as texts in the forms of GPT-2's files. `vocab` (may be NULL) is JSON, {"token": number},
// numbers 0 … n-1; `merges` has a line "left right" for each merge, after a first line "#version: …" that may be
// missing. Tokens are written in GPT-2's byte alphabet; a token that is not in the alphabet is its own UTF-8. Without
// `vocab` the vocabulary is GPT-2's: the bytes in the alphabet's order, each merge's result, "<|endoftext|>".
// MEZZO_ERR_FORMAT names file and line, or key: a line that is not two parts, a part that is neither a byte nor the
// result of an earlier line, a result that the vocabulary lacks, a repeated pair, a vocabulary with holes, a repeated
// number or no token for some byte.
typedef struct mz_bpe_text {
    const char *where; // its name in errors
    const char *text;
    size_t n;
    const json_t *added; // of a vocabulary: {"number": "token"}, tokens that follow its own; NULL: none
} mz_bpe_text;
mezzo_status mz_bpe_read(const mz_bpe_text *vocab, const mz_bpe_text *merges, mz_bpe *out);
// Read the same from "vocab" and "merges" of tokenizer.json, arrays of texts, and write them.
mezzo_status mz_bpe_from_json(const char *where, const json_t *object, mz_bpe *out);
mezzo_status mz_bpe_to_json(const mz_bpe *bpe, json_t *object);

// --- building (bpe.c): every token, then mz_bpe_index, then every merge, then mz_bpe_finish ------------------------
mezzo_status mz_bpe_add_token(mz_bpe *bpe, const char *bytes, size_t n);
// Allocates the tables for this many tokens and merges, and enters the tokens that exist. *twice is a token whose bytes
// another has, or -1. Tokens that are set in `aside` (NULL: none) are not entered, so that no word becomes one.
mezzo_status mz_bpe_index(mz_bpe *bpe, size_t tokens, size_t merges, const bool *aside, int32_t *twice);
mezzo_status mz_bpe_add_indexed(mz_bpe *bpe, const char *bytes, size_t n, int32_t *token); // adds a token after
                                                                                           // mz_bpe_index
// Adds a merge; *added is false where the pair has one already.
mezzo_status mz_bpe_add_merge(mz_bpe *bpe, mz_bpe_merge merge, bool *added);
mezzo_status mz_bpe_finish(mz_bpe *bpe);

// Returns whether a token may hold the end of one character's bytes followed by another's.
bool mz_bpe_joins(const mz_bpe *bpe, const char *left, size_t a, const char *right, size_t b);

// --- encoding ------------------------------------------------------------------------------------------------------
// Memory of one encoding; zeroed, then freed.
typedef struct mz_bpe_scratch {
    void *data;
    size_t bytes;
    struct mz_bpe_cached *cache; // words that are more than one token, by hash
} mz_bpe_scratch;
void mz_bpe_scratch_free(mz_bpe_scratch *scratch);
// Encodes one word of n ≥ 1 bytes, to tokens[] with space for n. MEZZO_ERR_MEMORY; MEZZO_ERR_INVALID names a character
// that is in no token.
mezzo_status mz_bpe_encode_word(const mz_bpe *bpe, mz_bpe_scratch *scratch, const char *word, size_t n, int32_t *tokens,
                                size_t *count);

#endif
