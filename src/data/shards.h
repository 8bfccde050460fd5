// Reads and writes token shards: files of llm.c (a header of 256 int32 that starts with a magic number) or of nanoGPT
// (bare uint16 tokens).
#ifndef MZ_DATA_SHARDS_H
#define MZ_DATA_SHARDS_H

#include "base/base.h"
#include "io/file.h"
#include "mezzo/data.h"

// Tokens in memory or in a mapped file, little-endian.
typedef struct mz_tokens {
    const unsigned char *data;
    unsigned width; // bytes of a token: 2 or 4
    uint64_t count;
} mz_tokens;

static inline uint32_t mz_token_at(const mz_tokens *tokens, uint64_t i) {
    if (tokens->width == 2) {
        uint16_t token;
        memcpy(&token, tokens->data + 2 * i, 2);
        return token;
    }
    uint32_t token;
    memcpy(&token, tokens->data + 4 * i, 4);
    return token;
}

// Copies tokens first … first + n - 1 as int32. Returns the index of the first one that is not below `vocab`, or n.
size_t mz_tokens_copy(const mz_tokens *tokens, uint64_t first, size_t n, uint32_t vocab, int32_t *out);
// Returns the index of the first token that is not below `vocab`, or `count`.
uint64_t mz_tokens_find_above(const mz_tokens *tokens, uint32_t vocab);

typedef struct mz_shard {
    mz_map map;
    mz_tokens tokens;
} mz_shard;

// Maps a shard. A file that starts with one of llm.c's magic numbers belongs to llm.c: 20240520 version 1 (uint16,
// GPT-2) or 20240801 version 7 (uint32, Llama 3); any other belongs to nanoGPT. As uint16 tokens the magic numbers
// begin with 55432 and 55713, which GPT-2's vocabulary (50257) does not have. MEZZO_ERR_FORMAT names the file: empty,
// truncated, an unknown version, a count that does not fit the file, tokens of another width than the header's or,
// without one, than 16 bits. MEZZO_ERR_IO: it cannot be read.
mezzo_status mz_shard_open(const char *path, mz_shard *out);
void mz_shard_close(mz_shard *shard); // a zeroed one is allowed
// Makes the same checks on bytes in memory.
mezzo_status mz_shard_parse(const char *where, const void *bytes, size_t n, mz_tokens *out);

// Reads vocab_size from nanoGPT's meta.pkl, a pickled dictionary; 0 where there is no such file. FORMAT: the file lacks
// it.
mezzo_status mz_meta_vocab(const char *path, int64_t *vocab);

// Writes the pieces consecutively as one shard with tokens of `width` bytes, atomically. MEZZO_ERR_INVALID: nothing to
// write, more tokens than llm.c's count can hold, uint32 in nanoGPT's format, a token too large for `width`.
mezzo_status mz_shard_write(const char *path, mezzo_shard_format format, unsigned width, const mz_tokens *pieces,
                            size_t count);

#endif
