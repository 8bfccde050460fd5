#include "data/shards.h"

#include "io/quote.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token shards are little-endian and mapped as they are"
#endif

#define HEADER_INTS 256
#define HEADER_SIZE (HEADER_INTS * sizeof(int32_t))

static const struct {
    int32_t magic, version;
    unsigned width;
} forms[] = {{20240520, 1, 2}, {20240801, 7, 4}};

size_t mz_tokens_copy(const mz_tokens *tokens, uint64_t first, size_t n, uint32_t vocab, int32_t *out) {
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t token = mz_token_at(tokens, first + i);
        largest = token > largest ? token : largest;
        out[i] = (int32_t)token;
    }
    if (largest < vocab)
        return n;
    size_t bad = 0;
    while (mz_token_at(tokens, first + bad) < vocab)
        bad++;
    return bad;
}

// Blocks keep the inner loop free of exits, so that it vectorises.
uint64_t mz_tokens_find_above(const mz_tokens *tokens, uint32_t vocab) {
    enum { BLOCK = 4096 };
    for (uint64_t at = 0; at < tokens->count; at += BLOCK) {
        uint64_t end = at + BLOCK < tokens->count ? at + BLOCK : tokens->count;
        uint32_t largest = 0;
        for (uint64_t i = at; i < end; i++) {
            uint32_t token = mz_token_at(tokens, i);
            largest = token > largest ? token : largest;
        }
        for (uint64_t i = at; largest >= vocab && i < end; i++)
            if (mz_token_at(tokens, i) >= vocab)
                return i;
    }
    return tokens->count;
}

// --- reading -------------------------------------------------------------------------------------------------------
static mezzo_status parse_llmc(const char *where, const unsigned char *bytes, size_t n, size_t form, mz_tokens *out) {
    if (n < HEADER_SIZE)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: %zu bytes, but llm.c's header has %zu: the file is cut off", where, n,
                       HEADER_SIZE);
    int32_t header[3];
    memcpy(header, bytes, sizeof header);
    if (header[1] != forms[form].version)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: version %d of llm.c's token format; only version %d is supported", where,
                       header[1], forms[form].version);
    if (header[2] <= 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: its header says %d tokens", where, header[2]);
    size_t expected = HEADER_SIZE + (size_t)header[2] * forms[form].width;
    if (n != expected)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: its header says %d tokens (%zu bytes in all), the file has %zu: %s",
                       where, header[2], expected, n, n < expected ? "it is cut off" : "it is damaged");
    *out = (mz_tokens){bytes + HEADER_SIZE, forms[form].width, (uint64_t)header[2]};
    return MEZZO_OK;
}

mezzo_status mz_shard_parse(const char *where, const void *bytes, size_t n, mz_tokens *out) {
    *out = (mz_tokens){0};
    if (n == 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: the file is empty", where);
    int32_t magic = 0;
    if (n >= sizeof magic)
        memcpy(&magic, bytes, sizeof magic);
    for (size_t i = 0; i < MZ_COUNT(forms); i++)
        if (magic == forms[i].magic)
            return parse_llmc(where, bytes, n, i, out);
    if (n % 2 != 0)
        return mz_fail(
            MEZZO_ERR_FORMAT,
            "%s: %zu bytes without llm.c's header; nanoGPT's files are of uint16 and have an even size: it is "
            "cut off, or not a token file",
            where, n);
    *out = (mz_tokens){bytes, 2, n / 2};
    return MEZZO_OK;
}

mezzo_status mz_shard_open(const char *path, mz_shard *out) {
    *out = (mz_shard){0};
    MEZZO_TRY(mz_map_open(path, &out->map));
    mezzo_status status = mz_shard_parse(path, out->map.data, out->map.size, &out->tokens);
    if (status != MEZZO_OK)
        mz_shard_close(out);
    return status;
}

void mz_shard_close(mz_shard *shard) {
    mz_map_close(&shard->map);
    *shard = (mz_shard){0};
}

// --- writing -------------------------------------------------------------------------------------------------------
static mezzo_status write_header(mz_file *file, const char *path, unsigned width, uint64_t count) {
    size_t form = 0;
    while (forms[form].width != width)
        form++;
    if (count > INT32_MAX)
        return mz_fail(MEZZO_ERR_INVALID, "%s: %llu tokens; a file of llm.c holds at most %d: split the text",
                       mz_quote(path).text, (unsigned long long)count, INT32_MAX);
    int32_t header[HEADER_INTS] = {forms[form].magic, forms[form].version, (int32_t)count};
    return mz_file_write(file, header, sizeof header);
}

static mezzo_status write_piece(mz_file *file, const char *path, unsigned width, const mz_tokens *piece) {
    if (piece->width == width)
        return mz_file_write(file, piece->data, (size_t)(piece->count * width));
    enum { BLOCK = 16384 };
    unsigned char *block = mz_alloc(BLOCK, width);
    if (!block)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = MEZZO_OK;
    for (uint64_t at = 0; status == MEZZO_OK && at < piece->count; at += BLOCK) {
        size_t n = piece->count - at < BLOCK ? (size_t)(piece->count - at) : BLOCK;
        for (size_t i = 0; status == MEZZO_OK && i < n; i++) {
            uint32_t token = mz_token_at(piece, at + i);
            if (width == 2 && token > UINT16_MAX)
                status = mz_fail(MEZZO_ERR_INVALID, "%s: token %u at position %llu does not fit in 16 bits",
                                 mz_quote(path).text, token, (unsigned long long)(at + i));
            memcpy(block + i * width, &token, width); // little-endian: the low bytes come first
        }
        if (status == MEZZO_OK)
            status = mz_file_write(file, block, n * width);
    }
    mz_free(block);
    return status;
}

mezzo_status mz_shard_write(const char *path, mezzo_shard_format format, unsigned width, const mz_tokens *pieces,
                            size_t count) {
    mezzo_status status = MEZZO_OK;
    mz_file *file = NULL;
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += pieces[i].count;
    if (total == 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s: there are no tokens to write", mz_quote(path).text);
    if (format == MEZZO_SHARD_NANOGPT && width != 2)
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s: nanoGPT's format holds 16-bit tokens only; this vocabulary needs llm.c's format",
                       mz_quote(path).text);
    MEZZO_TRY_GOTO(status, mz_file_create(path, &file));
    if (format == MEZZO_SHARD_LLMC)
        MEZZO_TRY_GOTO(status, write_header(file, path, width, total));
    for (size_t i = 0; i < count; i++)
        MEZZO_TRY_GOTO(status, write_piece(file, path, width, &pieces[i]));
    return mz_file_commit(file);
fail:
    mz_file_discard(file);
    return status;
}
