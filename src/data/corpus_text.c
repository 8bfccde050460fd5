// Makes corpora from text: reads, finds or loads the tokenizer, splits, tokenizes.

#include <omp.h>

#include "base/scope.h"
#include "base/stop.h"
#include "data/corpus.h"
#include "data/tokenizer.h"
#include "io/utf8.h"

#define PIECE          ((size_t)1 << 20) // bytes that one thread tokenizes at a time
#define TRAIN_FRACTION 0.9               // nanoGPT's value

typedef struct text {
    const char *path; // borrowed
    mz_map map;
} text;

static mezzo_status open_text(const char *path, text *out) {
    out->path = path;
    MEZZO_TRY(mz_map_open(path, &out->map));
    const size_t size = out->map.size;
    const bool is_gzip = size >= 2 && memcmp(out->map.data, "\x1f\x8b", 2) == 0;
    if (size > 0 && !is_gzip)
        return MEZZO_OK;
    mz_map_close(&out->map);
    return is_gzip ? mz_fail(MEZZO_ERR_FORMAT, "%s: a text that gzip compressed: decompress it (gunzip)", path)
                   : mz_fail(MEZZO_ERR_FORMAT, "%s: the file is empty", path);
}

// Warns where the first piece of a text is not UTF-8, such as UTF-16, a PDF or an archive: a tokenizer that has all
// bytes takes it without an error, but for words it learns pieces of characters.
static void warn_of_bytes(const text *t, const mezzo_tokenizer *tok) {
    uint32_t code;
    const size_t n = t->map.size < PIECE ? t->map.size : PIECE;
    size_t at = 0, width = 1;
    while (at < n && (width = mz_utf8_decode((const char *)t->map.data + at, t->map.size - at, &code)) > 0)
        at += width;
    if (width == 0 && strcmp(tok->kind->name, "byte") != 0)
        mz_log("warn",
               "%s: byte %zu (0x%02X) is not UTF-8: if the file is a text, convert it; if it is none, use "
               "--tokenizer byte",
               t->path, at, (unsigned)t->map.data[at]);
}

static bool is_continuation(unsigned char byte) {
    return (byte & 0xC0) == 0x80;
}

// Finds the byte at which character number int(fraction × characters) starts. A character starts with a byte that is no
// UTF-8 continuation, which is exact for UTF-8 and defined for any bytes, so that every tokenizer splits a text at the
// same place.
static mezzo_status split_byte(const text *t, double fraction, size_t *out) {
    uint64_t characters = 0;
    *out = 0;
    for (size_t at = 0, end; at < t->map.size; at = end) {
        end = t->map.size - at > PIECE ? at + PIECE : t->map.size;
        for (size_t i = at; i < end; i++)
            characters += !is_continuation(t->map.data[i]);
        MEZZO_TRY(mz_stop_check(t->path));
    }
    for (uint64_t wanted = (uint64_t)(fraction * (double)characters) + 1; *out < t->map.size; ++*out) {
        wanted -= !is_continuation(t->map.data[*out]);
        if (wanted == 0)
            break;
        if (*out % PIECE == 0)
            MEZZO_TRY(mz_stop_check(t->path));
    }
    return MEZZO_OK;
}

// Returns the end of the piece that starts at `at`: after about PIECE bytes, where the tokenizer allows a cut; it
// doubles that while no cut is allowed.
static size_t piece_end(const mezzo_tokenizer *tok, const char *data, size_t at, size_t n) {
    for (size_t size = PIECE; n - at > size; size *= 2) {
        size_t end = tok->kind->cut(tok, data, at, at + size);
        if (end < at + size || tok->kind->cut == mz_cut_character)
            return end;
    }
    return n;
}

// Holds tokens of 16 or 32 bits, by the vocabulary.
typedef struct packed {
    unsigned char *data;
    size_t n, cap; // in bytes
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

typedef struct piece { // of a text, with the result of a thread
    size_t from, to;
    mz_token_list tokens;
    mezzo_status status;
    char *message; // of a failure, because messages belong to threads; NULL: memory ran out
} piece;

typedef struct encoding {
    const mezzo_tokenizer *tok;
    const text *text;
    size_t to;
    piece *pieces; // [threads]
    size_t threads;
} encoding;

static void encode_piece(const encoding *e, piece *p) {
    const char *data = (const char *)e->text->map.data;
    p->tokens.n = 0;
    p->status = mz_tokenizer_encode_piece(e->tok, data + p->from, p->to - p->from, p->from,
                                          p->from == 0 ? MZ_PLACE_BEGINS : MZ_PLACE_CONTINUES, &p->tokens);
    if (p->status != MEZZO_OK)
        p->message = mz_strdup(mezzo_error_message());
}

// Encodes the next pieces from *at on, one a thread, in parallel.
static mezzo_status encode_round(const encoding *e, size_t *at, packed *out) {
    size_t n = 0;
    for (; n < e->threads && *at < e->to; *at = e->pieces[n++].to) {
        e->pieces[n].from = *at;
        e->pieces[n].to = piece_end(e->tok, (const char *)e->text->map.data, *at, e->to);
    }
#pragma omp parallel for schedule(static, 1) num_threads((int)n) if (n > 1)
    for (size_t i = 0; i < n; i++)
        encode_piece(e, &e->pieces[i]);
    for (size_t i = 0; i < n; i++) {
        const piece *p = &e->pieces[i];
        if (p->status != MEZZO_OK)
            return mz_fail(p->status, "%s: %s", e->text->path, p->message != NULL ? p->message : "out of memory");
        MEZZO_TRY(pack(out, &p->tokens));
    }
    return MEZZO_OK;
}

static mezzo_status encode_rounds(const encoding *e, size_t from, packed *out) {
    static const char what[] = "KB of text tokenized";
    for (size_t at = from; at < e->to;) {
        mz_work(what, (int64_t)((at - from) / 1000), (int64_t)((e->to - from) / 1000));
        MEZZO_TRY(mz_stop_check(e->text->path));
        MEZZO_TRY(encode_round(e, &at, out));
    }
    mz_work(what, (int64_t)((e->to - from) / 1000), (int64_t)((e->to - from) / 1000));
    return MEZZO_OK;
}

static mezzo_status encode_all(const mezzo_tokenizer *tok, const text *t, size_t from, size_t to, packed *out) {
    mz_survive_fork();
    encoding e = {.tok = tok, .text = t, .to = to, .threads = (size_t)omp_get_max_threads()};
    MEZZO_TRY(MZ_NEW(e.pieces, e.threads));
    const mezzo_status status = encode_rounds(&e, from, out);
    for (size_t i = 0; i < e.threads; i++) {
        mz_token_list_free(&e.pieces[i].tokens);
        mz_free(e.pieces[i].message);
    }
    mz_free(e.pieces);
    return status;
}

// Tokenizes bytes [from, to) of a text into a segment at the end of the stream.
static mezzo_status add_text(mz_stream *stream, const mezzo_tokenizer *tok, const text *t, size_t from, size_t to) {
    mz_segment segment = {.tokens.width = tok->vocab <= 65536 ? 2 : 4};
    packed tokens = {.width = segment.tokens.width};
    segment.path = mz_strdup(t->path);
    mezzo_status status = segment.path != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK)
        status = encode_all(tok, t, from, to, &tokens);
    segment.owned = tokens.data;
    segment.tokens.data = tokens.data;
    segment.tokens.count = tokens.n / tokens.width;
    if (status == MEZZO_OK)
        return mz_stream_add(stream, &segment);
    mz_segment_free(&segment);
    return status;
}

static mezzo_status collect_characters(const text *texts, size_t count, mezzo_tokenizer **out) {
    MZ_SCOPED(mz_free_at) mz_char_set *set = NULL;
    MEZZO_TRY(MZ_NEW(set, 1));
    for (size_t i = 0; i < count; i++)
        MEZZO_TRY(mz_char_set_add(set, texts[i].path, (const char *)texts[i].map.data, texts[i].map.size));
    return mz_tokenizer_from_chars(set, out);
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

    for (size_t i = 0; i < count; i++)
        warn_of_bytes(&texts[i], corpus->tokenizer);
    mz_stream *train = &corpus->splits[MEZZO_TRAIN], *validation = &corpus->splits[MEZZO_VALIDATION];
    const size_t size = texts[0].map.size;
    size_t end = size;
    if (given(options->path))
        MEZZO_TRY_GOTO(status, split_byte(&texts[0], fraction, &end));
    if (end > 0)
        MEZZO_TRY_GOTO(status, add_text(train, corpus->tokenizer, &texts[0], 0, end));
    if (end < size)
        MEZZO_TRY_GOTO(status, add_text(validation, corpus->tokenizer, &texts[0], end, size));
    if (count == 2)
        MEZZO_TRY_GOTO(status, add_text(validation, corpus->tokenizer, &texts[1], 0, texts[1].map.size));
fail:
    for (size_t i = 0; i < count; i++)
        status = mz_map_end(&texts[i].map, status);
    return status;
}
