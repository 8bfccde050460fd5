// Corpora from text: read, find or load the tokenizer, split, tokenize.

#include "data/corpus.h"
#include "data/tokenizer.h"

#define PIECE          ((size_t)1 << 20) // bytes tokenized at a time
#define TRAIN_FRACTION 0.9               // nanoGPT's

typedef struct text {
    const char *path; // borrowed
    mz_map map;
} text;

static mezzo_status open_text(const char *path, text *out) {
    out->path = path;
    MEZZO_TRY(mz_map_open(path, &out->map));
    if (out->map.size > 0)
        return MEZZO_OK;
    mz_map_close(&out->map);
    return mz_fail(MEZZO_ERR_FORMAT, "%s: the file is empty", path);
}

static bool is_continuation(unsigned char byte) {
    return (byte & 0xC0) == 0x80;
}

// The byte at which character number int(fraction × characters) starts. A character is what starts with a byte that is
// no UTF-8 continuation: exact for UTF-8, and defined for any bytes, so that every tokenizer splits a text at the same
// place.
static size_t split_byte(const text *t, double fraction) {
    uint64_t characters = 0;
    for (size_t i = 0; i < t->map.size; i++)
        characters += !is_continuation(t->map.data[i]);
    uint64_t wanted = (uint64_t)(fraction * (double)characters), seen = 0;
    for (size_t i = 0; i < t->map.size; i++) {
        if (is_continuation(t->map.data[i]))
            continue;
        if (seen == wanted)
            return i;
        seen++;
    }
    return t->map.size;
}

// The end of the piece that starts at `at`: PIECE bytes on or a little less, where the tokenizer allows a cut; more,
// twice as much at a time, where it allows none.
static size_t piece_end(const mezzo_tokenizer *tok, const char *data, size_t at, size_t n) {
    for (size_t size = PIECE; n - at > size; size *= 2) {
        size_t end = tok->kind->cut(tok, data, at, at + size);
        if (end < at + size || tok->kind->cut == mz_cut_character)
            return end;
    }
    return n;
}

// Tokens of 16 or 32 bits, by the vocabulary.
typedef struct packed {
    unsigned char *data;
    size_t n, cap; // bytes
    unsigned width;
} packed;

static mezzo_status pack(packed *out, const mz_token_list *tokens) {
    MEZZO_TRY(MZ_RESERVE(out->data, out->cap, out->n + tokens->n * out->width));
    if (out->width == 2)
        for (size_t i = 0; i < tokens->n; i++)
            ((uint16_t *)(void *)(out->data + out->n))[i] = (uint16_t)tokens->tokens[i];
    else if (tokens->n > 0)
        memcpy(out->data + out->n, tokens->tokens, 4 * tokens->n);
    out->n += tokens->n * out->width;
    return MEZZO_OK;
}

static mezzo_status encode_all(const mezzo_tokenizer *tok, const text *t, size_t from, size_t to, mz_token_list *piece,
                               packed *out) {
    const char *data = (const char *)t->map.data;
    for (size_t at = from; at < to;) {
        const size_t end = piece_end(tok, data, at, to);
        piece->n = 0;
        mezzo_status status = mz_tokenizer_encode_piece(tok, data + at, end - at, at,
                                                        at == 0 ? MZ_PLACE_BEGINS : MZ_PLACE_CONTINUES, piece);
        if (status != MEZZO_OK)
            return mz_context(status, "%s: ", t->path);
        MEZZO_TRY(pack(out, piece));
        at = end;
    }
    return MEZZO_OK;
}

// Tokenizes bytes [from, to) of a text into a segment at the end of the stream.
static mezzo_status add_text(mz_stream *stream, const mezzo_tokenizer *tok, const text *t, size_t from, size_t to) {
    mz_segment segment = {.tokens.width = tok->vocab <= 65536 ? 2 : 4};
    packed tokens = {.width = segment.tokens.width};
    mz_token_list piece = {0};
    segment.path = mz_strdup(t->path);
    mezzo_status status = segment.path != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK)
        status = encode_all(tok, t, from, to, &piece, &tokens);
    mz_token_list_free(&piece);
    segment.owned = tokens.data;
    segment.tokens.data = tokens.data;
    segment.tokens.count = tokens.n / tokens.width;
    if (status == MEZZO_OK)
        return mz_stream_add(stream, &segment);
    mz_segment_free(&segment);
    return status;
}

static mezzo_status collect_characters(const text *texts, size_t count, mezzo_tokenizer **out) {
    mz_char_set *set = mz_alloc(1, sizeof *set);
    if (!set)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = MEZZO_OK;
    for (size_t i = 0; status == MEZZO_OK && i < count; i++)
        status = mz_char_set_add(set, texts[i].path, (const char *)texts[i].map.data, texts[i].map.size);
    if (status == MEZZO_OK)
        status = mz_tokenizer_from_chars(set, out);
    mz_free(set);
    return status;
}

static mezzo_status make_tokenizer(const mz_tokenizer_sources *from, const text *texts, size_t count,
                                   mezzo_tokenizer **out) {
    MEZZO_TRY(mz_tokenizer_choose_for_text(from, texts[0].path, out));
    return *out != NULL ? MEZZO_OK : collect_characters(texts, count, out);
}

static bool given(const char *source) {
    return source && *source;
}

mezzo_status mz_corpus_read_text(mezzo_corpus *corpus, const mezzo_corpus_options *options,
                                 const mz_tokenizer_sources *model) {
    mezzo_status status = MEZZO_OK;
    mz_tokenizer_sources from = *model;
    from.named = options->tokenizer;
    text texts[2] = {0};
    size_t count = 0;
    double fraction = options->train_fraction == 0 ? TRAIN_FRACTION : options->train_fraction;
    if (!(fraction > 0 && fraction <= 1))
        return mz_fail(MEZZO_ERR_INVALID, "the part of the text to train on is %g; it must be above 0 and at most 1",
                       fraction);
    MEZZO_TRY_GOTO(status, open_text(given(options->path) ? options->path : options->train, &texts[count]));
    count++;
    if (!given(options->path) && given(options->validation)) {
        MEZZO_TRY_GOTO(status, open_text(options->validation, &texts[count]));
        count++;
    }
    MEZZO_TRY_GOTO(status, make_tokenizer(&from, texts, count, &corpus->tokenizer));

    size_t end = given(options->path) ? split_byte(&texts[0], fraction) : texts[0].map.size;
    if (end > 0)
        MEZZO_TRY_GOTO(status, add_text(&corpus->splits[MEZZO_TRAIN], corpus->tokenizer, &texts[0], 0, end));
    if (end < texts[0].map.size)
        MEZZO_TRY_GOTO(
            status, add_text(&corpus->splits[MEZZO_VALIDATION], corpus->tokenizer, &texts[0], end, texts[0].map.size));
    if (count == 2)
        MEZZO_TRY_GOTO(status,
                       add_text(&corpus->splits[MEZZO_VALIDATION], corpus->tokenizer, &texts[1], 0, texts[1].map.size));
fail:
    for (size_t i = 0; i < count; i++)
        mz_map_close(&texts[i].map);
    return status;
}
