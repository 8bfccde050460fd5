#include "data/shards.h"

#include "base/stop.h"
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

// Searches block by block, so that the inner loop has no exits and is vectorized.
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
        if (mz_stop_check("tokens") != MEZZO_OK) // a caller that asked to stop does not use the result
            return tokens->count;
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
    for (unsigned width = 2; n != expected && width <= 8; width *= 2)
        if (n == HEADER_SIZE + (size_t)header[2] * width)
            return mz_fail(MEZZO_ERR_FORMAT,
                           "%s: its tokens have %u bytes, but its header, %d version %d, is for tokens of %u", where,
                           width, header[0], header[1], forms[form].width);
    if (n != expected)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: its header says %d tokens (%zu bytes in all), the file has %zu: %s",
                       where, header[2], expected, n, n < expected ? "it is cut off" : "it is damaged");
    *out = (mz_tokens){bytes + HEADER_SIZE, forms[form].width, (uint64_t)header[2]};
    return MEZZO_OK;
}

// Refuses tokens of 32 or 64 bits in a file without a header, which would be read as 16-bit ones: their high halves are
// at odd places, and are zeros or small numbers beside numbers of all sizes, most of which are not 0. In tokens of 16
// bits both places have similar numbers. It checks the first megabyte.
static mezzo_status check_bare_width(const char *where, const mz_tokens *tokens) {
    enum { MOST = 1 << 19, FEW = 1 << 10, HIGH = 16 };
    const uint64_t n = tokens->count < MOST ? tokens->count : MOST;
    uint32_t most[4] = {0}; // by position modulo 4
    uint64_t filled = 0;    // nonzero values at every fourth position, which are low halves for both widths
    for (uint64_t i = 0; i < n; i += 4)
        filled += mz_token_at(tokens, i) != 0;
    for (uint64_t i = 0; i < n; i++)
        most[i % 4] = mz_token_at(tokens, i) > most[i % 4] ? mz_token_at(tokens, i) : most[i % 4];
    const uint32_t low = most[0] > most[2] ? most[0] : most[2], high = most[1] > most[3] ? most[1] : most[3];
    const bool wide =
        n >= 4 && filled >= n / 8 && low > 0 && (high == 0 || (n >= FEW && high < HIGH && low >= 256 * HIGH));
    if (!wide)
        return MEZZO_OK;
    const bool wider = most[2] == 0 && most[3] == 0 && tokens->count % 4 == 0;
    return mz_fail(MEZZO_ERR_FORMAT,
                   "%s: its tokens have %d bits: every second number of 16 bits is %s; a file without llm.c's header "
                   "has tokens of 16 bits: save it as numpy.uint16, or write llm.c's format",
                   where, wider ? 64 : 32, high == 0 ? "0" : "small");
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
    if (n >= 6 && memcmp(bytes, "\x93NUMPY", 6) == 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: a .npy array, not a token file: array.astype(numpy.uint16).tofile(FILE)",
                       where);
    const mz_tokens tokens = {bytes, 2, n / 2};
    MEZZO_TRY(check_bare_width(where, &tokens));
    *out = tokens;
    return MEZZO_OK;
}

// --- nanoGPT's meta.pkl --------------------------------------------------------------------------------------------
// Opcodes of a pickle of dictionaries, numbers and texts, and how many bytes follow each. Others are refused, and none
// of these runs code.
static const struct opcode {
    unsigned char code, bytes;
    bool counted; // the bytes are the length of a text that follows
} opcodes[] = {{0x80, 1, false}, {0x95, 8, false}, {0x8C, 1, true}, {'X', 4, true},   {'K', 1, false},
               {'M', 2, false},  {'J', 4, false},  {'q', 1, false}, {'r', 4, false},  {'h', 1, false},
               {'j', 4, false},  {'}', 0, false},  {']', 0, false}, {0x94, 0, false}, {'(', 0, false},
               {'s', 0, false},  {'u', 0, false},  {'a', 0, false}, {'e', 0, false},  {'.', 0, false}};

static const struct opcode *find_opcode(unsigned char code) {
    for (size_t i = 0; i < MZ_COUNT(opcodes); i++)
        if (opcodes[i].code == code)
            return &opcodes[i];
    return NULL;
}

// Returns the number after the text "vocab_size"; 0: there is none, or another opcode comes before it.
static int64_t find_vocab(const unsigned char *p, size_t n) {
    static const char name[] = "vocab_size";
    bool named = false;
    for (size_t at = 0; at < n;) {
        const struct opcode *op = find_opcode(p[at++]);
        uint64_t value = 0;
        if (op == NULL || n - at < op->bytes)
            return 0;
        for (unsigned i = 0; i < op->bytes; i++)
            value |= (uint64_t)p[at + i] << (8 * i);
        at += op->bytes;
        if (named && (op->code == 'K' || op->code == 'M' || op->code == 'J'))
            return value <= INT32_MAX ? (int64_t)value : 0;
        if (op->counted && n - at < value)
            return 0;
        const bool memo = op->code == 0x94 || op->code == 'q' || op->code == 'r';
        if (!memo)
            named = op->counted && value == sizeof name - 1 && memcmp(p + at, name, sizeof name - 1) == 0;
        at += op->counted ? value : 0;
    }
    return 0;
}

mezzo_status mz_meta_vocab(const char *path, int64_t *vocab) {
    char *bytes;
    size_t n;
    *vocab = 0;
    if (!mz_path_exists(path))
        return MEZZO_OK;
    MEZZO_TRY(mz_file_read(path, (size_t)64 << 20, &bytes, &n));
    *vocab = find_vocab((const unsigned char *)bytes, n);
    mz_free(bytes);
    return *vocab > 0 ? MEZZO_OK
                      : mz_fail(MEZZO_ERR_FORMAT,
                                "%s: no vocab_size is found in it, as nanoGPT's meta.pkl has; if it does not belong to "
                                "the tokens, move it away and give the vocabulary with --vocab",
                                mz_quote(path).text);
}

mezzo_status mz_shard_open(const char *path, mz_shard *out) {
    *out = (mz_shard){0};
    MEZZO_TRY(mz_map_open(path, &out->map));
    mezzo_status status = mz_shard_parse(path, out->map.data, out->map.size, &out->tokens);
    if (status == MEZZO_OK)
        return MEZZO_OK;
    status = mz_map_end(&out->map, status);
    *out = (mz_shard){0};
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
    enum { BLOCK = 1 << 18 };
    const bool as_it_is = piece->width == width;
    unsigned char *block = mz_alloc(as_it_is ? 1 : BLOCK, width);
    if (!block)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = MEZZO_OK;
    for (uint64_t at = 0; status == MEZZO_OK && at < piece->count; at += BLOCK) {
        size_t n = piece->count - at < BLOCK ? (size_t)(piece->count - at) : BLOCK;
        for (size_t i = 0; status == MEZZO_OK && !as_it_is && i < n; i++) {
            uint32_t token = mz_token_at(piece, at + i);
            if (width == 2 && token > UINT16_MAX)
                status = mz_fail(MEZZO_ERR_INVALID, "%s: token %u at position %llu does not fit in 16 bits",
                                 mz_quote(path).text, token, (unsigned long long)(at + i));
            memcpy(block + i * width, &token, width); // little-endian: the low bytes come first
        }
        if (status == MEZZO_OK)
            status = mz_file_write(file, as_it_is ? piece->data + at * width : block, n * width);
        if (status == MEZZO_OK)
            status = mz_stop_check(path);
    }
    mz_free(block);
    return status == MEZZO_OK ? mz_map_check(piece->data) : status;
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
