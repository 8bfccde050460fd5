#include "data/corpus.h"

#include <glob.h>
#include <sys/stat.h>

#include "base/scope.h"
#include "base/stop.h"
#include "data/record_forms.h"
#include "data/tokenizer.h"
#include "io/quote.h"

void mz_segment_free(mz_segment *segment) {
    mz_shard_close(&segment->shard);
    MZ_FREE(segment->owned, segment->path);
    *segment = (mz_segment){0};
}

mezzo_status mz_stream_add(mz_stream *stream, mz_segment *segment) {
    mezzo_status status = MZ_RESERVE(stream->segments, stream->cap, stream->count + 1);
    if (status != MEZZO_OK) {
        mz_segment_free(segment);
        return status;
    }
    stream->segments[stream->count++] = *segment;
    stream->tokens += segment->tokens.count;
    return MEZZO_OK;
}

mezzo_status mz_segment_fail_token(const mz_segment *segment, uint64_t position, uint32_t vocab) {
    return mz_fail(MEZZO_ERR_INVALID,
                   "%s: token %u at position %llu is not below the vocabulary of %u; these are the tokens of another "
                   "tokenizer, or the file is damaged",
                   segment->path, mz_token_at(&segment->tokens, position), (unsigned long long)position, vocab);
}

mezzo_status mz_stream_check(const mz_stream *stream, uint32_t vocab) {
    for (size_t i = 0; i < stream->count; i++) {
        const mz_segment *segment = &stream->segments[i];
        uint64_t bad = mz_tokens_find_above(&segment->tokens, vocab);
        MEZZO_TRY(mz_map_check(segment->tokens.data));
        MEZZO_TRY(mz_stop_check(segment->path));
        if (bad < segment->tokens.count)
            return mz_segment_fail_token(segment, bad, vocab);
    }
    return MEZZO_OK;
}

// Returns the CRC32C of bytes [from, to) of the stream's tokens, as if its files were consecutive. `ahead`: it only
// asks the system to load them.
static uint32_t crc_of(const mz_stream *stream, uint64_t from, uint64_t to, bool ahead, uint32_t crc) {
    for (size_t i = 0; i < stream->count && to > 0; i++) {
        const mz_tokens *tokens = &stream->segments[i].tokens;
        const uint64_t bytes = tokens->count * tokens->width, end = to < bytes ? to : bytes;
        if (from < end && ahead)
            mz_map_expect(tokens->data + from, (size_t)(end - from));
        else if (from < end)
            crc = mz_crc32c(crc, tokens->data + from, (size_t)(end - from));
        from = from > bytes ? from - bytes : 0;
        to = to > bytes ? to - bytes : 0;
    }
    return crc;
}

mezzo_data_mark mz_stream_mark(const mz_stream *stream) {
    enum { PIECES = 1024, PIECE = 65536 };
    const uint64_t whole = (uint64_t)256 << 20;
    mezzo_data_mark mark = {0};
    bool mapped = false;
    for (size_t i = 0; i < stream->count; i++) { // windows do not cross from one file into the next, so lengths matter
        const mz_tokens *tokens = &stream->segments[i].tokens;
        mark.bytes += tokens->count * tokens->width;
        mark.crc32c = mz_crc32c(mark.crc32c, &tokens->count, sizeof tokens->count);
        mapped = mapped || stream->segments[i].owned == NULL;
    }
    if (!mapped || mark.bytes <= whole) {
        mark.crc32c = crc_of(stream, 0, mark.bytes, false, mark.crc32c);
        return mark;
    }
    for (uint64_t i = 0; i < 2 * PIECES; i++) { // a disk then has many requests at a time, and reads nothing else
        const uint64_t k = i % PIECES, from = (mark.bytes - PIECE) / (PIECES - 1) * k;
        mark.crc32c = crc_of(stream, from, k < PIECES - 1 ? from + PIECE : mark.bytes, i < PIECES, mark.crc32c);
    }
    return mark;
}

// --- shards --------------------------------------------------------------------------------------------------------
static mezzo_status add_shard(mz_stream *stream, const char *path) {
    mz_segment segment = {0};
    MEZZO_TRY(mz_shard_open(path, &segment.shard));
    segment.tokens = segment.shard.tokens;
    segment.path = mz_strdup(path);
    if (!segment.path) {
        mz_segment_free(&segment);
        return MEZZO_ERR_MEMORY;
    }
    return mz_stream_add(stream, &segment);
}

// Adds one path, or every file that a pattern names, sorted.
static mezzo_status add_pattern(mz_stream *stream, const char *pattern) {
    if (mz_path_exists(pattern) || !strpbrk(pattern, "*?["))
        return add_shard(stream, pattern);
    glob_t found;
    int result = glob(pattern, GLOB_ERR, NULL, &found); // it sorts by strcoll: by bytes in the "C" locale
    mezzo_status status = MEZZO_OK;
    if (result == GLOB_NOMATCH)
        return mz_fail(MEZZO_ERR_INVALID, "no file matches %s", mz_quote(pattern).text);
    if (result != 0)
        return mz_fail(MEZZO_ERR_IO, "cannot list the files of %s", mz_quote(pattern).text);
    for (size_t i = 0; status == MEZZO_OK && i < found.gl_pathc; i++)
        status = add_shard(stream, found.gl_pathv[i]);
    globfree(&found);
    return status;
}

// Adds "a.bin,b_*.bin"; a file whose own name has the comma is tried first.
static mezzo_status add_shards(mz_stream *stream, const char *source) {
    if (mz_path_exists(source))
        return add_shard(stream, source);
    for (const char *at = source; *at;) {
        size_t n = strcspn(at, ",");
        char *part;
        MEZZO_TRY(MZ_NEW(part, n + 1));
        memcpy(part, at, n);
        mezzo_status status = add_pattern(stream, part);
        mz_free(part);
        MEZZO_TRY(status);
        at += n + (at[n] == ',');
    }
    return MEZZO_OK;
}

// Adds files of a folder whose names match `pattern`, in name order.
static mezzo_status add_matches(mz_stream *stream, const char *folder, const char *pattern) {
    char **names;
    size_t count;
    MEZZO_TRY(mz_dir_list(folder, &names, &count));
    mezzo_status status = MEZZO_OK;
    for (size_t i = 0; status == MEZZO_OK && i < count; i++)
        if (mz_glob_match(pattern, names[i]))
            status = add_shard(stream, mz_path_of("%s/%s", folder, names[i]).text);
    mz_dir_list_free(names, count);
    return status;
}

static bool given(const char *source) {
    return source && *source;
}

static bool is_shards(const char *source) {
    return given(source) && mz_ends_with(source, ".bin");
}

// Returns a file's path in the folder of the first shard.
static mz_path beside_shards(const mezzo_corpus *corpus, const char *name) {
    return mz_path_beside(corpus->splits[MEZZO_TRAIN].segments[0].path, name);
}

// Loads the tokenizer; "char" does not apply to shards, because it makes tokens of a text.
static mezzo_status load_tokenizer(mezzo_corpus *corpus, const mezzo_corpus_options *options,
                                   const mz_tokenizer_sources *model) {
    mz_tokenizer_sources from = *model;
    const mz_path data = beside_shards(corpus, "tokenizer.json");
    from.data = mz_path_exists(data.text) ? data.text : NULL;
    from.named = given(options->tokenizer) && strcmp(options->tokenizer, "char") != 0 ? options->tokenizer : NULL;
    return mz_tokenizer_choose(&from, &corpus->tokenizer);
}

// Reads nanoGPT's description of its shards' tokens, which would mean something else in another vocabulary.
static mezzo_status read_meta(mezzo_corpus *corpus) {
    const mz_path path = beside_shards(corpus, "meta.pkl");
    const mezzo_tokenizer *tokenizer = corpus->tokenizer;
    MEZZO_TRY(mz_meta_vocab(path.text, &corpus->meta_vocab));
    if (corpus->meta_vocab <= 0 || tokenizer == NULL || tokenizer->vocab == corpus->meta_vocab)
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_INVALID,
                   "%s says that the tokens are of a vocabulary of %lld, and the %s tokenizer has %d tokens: they do "
                   "not belong together",
                   mz_quote(path.text).text, (long long)corpus->meta_vocab, mezzo_tokenizer_kind(tokenizer),
                   (int)tokenizer->vocab);
}

static mezzo_status open_shards(mezzo_corpus *corpus, const mezzo_corpus_options *options,
                                const mz_tokenizer_sources *model) {
    mz_stream *train = &corpus->splits[MEZZO_TRAIN], *validation = &corpus->splits[MEZZO_VALIDATION];
    corpus->from_shards = true;
    if (given(options->path) && mz_path_is_dir(options->path)) {
        MEZZO_TRY(add_matches(train, options->path, "*train*.bin"));
        MEZZO_TRY(add_matches(validation, options->path, "*val*.bin"));
        if (train->count == 0)
            return mz_fail(
                MEZZO_ERR_INVALID,
                "folder %s has no *train*.bin; make one with: mezzo data TEXT --out FOLDER, of several texts joined in "
                "one file (pictures are for models of images: cnn, kl_vae, radio_unet)",
                mz_quote(options->path).text);
    } else {
        MEZZO_TRY(add_shards(train, given(options->path) ? options->path : options->train));
        if (given(options->validation))
            MEZZO_TRY(add_shards(validation, options->validation));
    }
    MEZZO_TRY(load_tokenizer(corpus, options, model));
    return read_meta(corpus);
}

// --- opening -------------------------------------------------------------------------------------------------------
static mezzo_status check_options(const mezzo_corpus_options *o) {
    if (!given(o->path) && !given(o->train))
        return mz_fail(MEZZO_ERR_INVALID, "no data is named; give a text file, token shards or a folder with --data");
    if (given(o->path) && (given(o->train) || given(o->validation)))
        return mz_fail(MEZZO_ERR_INVALID,
                       "the data is named both as a whole (%s) and as training or validation data; give one of them",
                       mz_quote(o->path).text);
    if (given(o->train) && given(o->validation) && is_shards(o->train) != is_shards(o->validation))
        return mz_fail(MEZZO_ERR_INVALID, "%s and %s: one is a text and the other token shards (*.bin)",
                       mz_quote(o->train).text, mz_quote(o->validation).text);
    const mz_record_form *form; // of data without records, too: a wrong name is wrong there
    return mz_record_form_named(o->form, &form);
}

mezzo_status mezzo_corpus_open(const mezzo_corpus_options *options, mezzo_corpus **out) {
    MZ_REQUIRE(options, out);
    mz_stop *former = mz_stop_enter(options->stop);
    const mezzo_status status = mz_corpus_open(options, &(mz_tokenizer_sources){0}, out);
    mz_stop_leave(former);
    return status;
}

mezzo_status mz_corpus_open(const mezzo_corpus_options *options, const mz_tokenizer_sources *model,
                            mezzo_corpus **out) {
    *out = NULL;
    MEZZO_TRY(check_options(options));
    const char *source = given(options->path) ? options->path : options->train;
    if (mz_is_records(source))
        return mz_corpus_read_records(options, model, out);
    mezzo_corpus *corpus;
    MEZZO_TRY(MZ_NEW(corpus, 1));
    bool shards = is_shards(source) || (given(options->path) && mz_path_is_dir(options->path));
    mezzo_status status = shards ? open_shards(corpus, options, model) : mz_corpus_read_text(corpus, options, model);
    if (status != MEZZO_OK) {
        mezzo_corpus_free(corpus);
        return mz_trace(status, __FILE__, __LINE__, __func__);
    }
    *out = corpus;
    return MEZZO_OK;
}

void mezzo_corpus_free(mezzo_corpus *corpus) {
    if (!mz_free_once(corpus, "corpus"))
        return;
    for (size_t s = 0; s < MZ_COUNT(corpus->splits); s++) {
        for (size_t i = 0; i < corpus->splits[s].count; i++)
            mz_segment_free(&corpus->splits[s].segments[i]);
        mz_free(corpus->splits[s].segments);
    }
    mezzo_tokenizer_free(corpus->tokenizer);
    mz_free(corpus);
}

const mezzo_tokenizer *mezzo_corpus_tokenizer(const mezzo_corpus *corpus) {
    if (corpus == NULL)
        return NULL;
    return corpus->tokenizer;
}

uint64_t mezzo_corpus_tokens(const mezzo_corpus *corpus, mezzo_corpus_part split) {
    return corpus != NULL && (size_t)split < MZ_COUNT(corpus->splits) ? corpus->splits[split].tokens : 0;
}

mezzo_status mezzo_corpus_check(const mezzo_corpus *corpus, int32_t vocab) {
    MZ_REQUIRE(corpus);
    if (vocab < 1)
        return mz_fail(MEZZO_ERR_INVALID, "a vocabulary of %d tokens", (int)vocab);
    for (size_t s = 0; s < MZ_COUNT(corpus->splits); s++)
        MEZZO_TRY(mz_stream_check(&corpus->splits[s], (uint32_t)vocab));
    return MEZZO_OK;
}

// --- saving --------------------------------------------------------------------------------------------------------
// Saves one split, or removes its file where this corpus lacks the split, so that another text's does not replace it.
static mezzo_status save_split(const mz_stream *stream, const char *folder, const char *name, mezzo_shard_format format,
                               unsigned width) {
    const mz_path path = mz_path_of("%s/%s", folder, name);
    if (stream->tokens == 0)
        return mz_file_remove(path.text);
    MZ_SCOPED(mz_free_at) mz_tokens *pieces = NULL;
    MEZZO_TRY(MZ_NEW(pieces, stream->count + 1));
    for (size_t i = 0; i < stream->count; i++)
        pieces[i] = stream->segments[i].tokens;
    return mz_shard_write(path.text, format, width, pieces, stream->count);
}

// Returns whether every token fits in 16 bits: as the tokenizer says or, without one, by reading all.
static bool fits_16_bits(const mezzo_corpus *corpus) {
    if (corpus->tokenizer)
        return corpus->tokenizer->vocab <= 65536;
    for (size_t s = 0; s < MZ_COUNT(corpus->splits); s++)
        for (size_t i = 0; i < corpus->splits[s].count; i++) {
            const mz_tokens *tokens = &corpus->splits[s].segments[i].tokens;
            if (tokens->width != 2 && mz_tokens_find_above(tokens, 65536) < tokens->count)
                return false;
        }
    return true;
}

// Refuses a source that is one of the files to write, because its other half would be lost.
static mezzo_status check_sources(const mezzo_corpus *corpus, const char *folder) {
    static const char *const names[] = {"train.bin", "val.bin"};
    for (size_t i = 0; i < MZ_COUNT(names); i++) {
        struct stat target, source;
        const bool there = stat(mz_path_of("%s/%s", folder, names[i]).text, &target) == 0;
        for (size_t s = 0; s < MZ_COUNT(corpus->splits) && there; s++)
            for (size_t k = 0; k < corpus->splits[s].count; k++)
                if (stat(corpus->splits[s].segments[k].path, &source) == 0 && source.st_dev == target.st_dev &&
                    source.st_ino == target.st_ino)
                    return mz_fail(MEZZO_ERR_INVALID, "%s is both an input and an output: choose another folder",
                                   mz_quote(corpus->splits[s].segments[k].path).text);
    }
    return MEZZO_OK;
}

// Saves a corpus. train.bin exists only while the other files belong to it, so that a half-written folder is refused.
mezzo_status mezzo_corpus_save(const mezzo_corpus *corpus, const char *folder, mezzo_shard_format format) {
    MZ_REQUIRE(corpus, folder);
    if (format != MEZZO_SHARD_LLMC && format != MEZZO_SHARD_NANOGPT)
        return mz_fail(MEZZO_ERR_INVALID, "shards are MEZZO_SHARD_LLMC or MEZZO_SHARD_NANOGPT, not %d", (int)format);
    unsigned width = fits_16_bits(corpus) ? 2 : 4;
    MEZZO_TRY(check_sources(corpus, folder));
    MEZZO_TRY(mz_dir_create(folder));
    const mz_path path = mz_path_of("%s/tokenizer.json", folder);
    MEZZO_TRY(mz_file_remove(mz_path_of("%s/train.bin", folder).text));
    MEZZO_TRY(corpus->tokenizer ? mezzo_tokenizer_save(corpus->tokenizer, path.text) : mz_file_remove(path.text));
    MEZZO_TRY(save_split(&corpus->splits[MEZZO_VALIDATION], folder, "val.bin", format, width));
    return save_split(&corpus->splits[MEZZO_TRAIN], folder, "train.bin", format, width);
}
