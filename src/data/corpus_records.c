// Makes corpora from documents: records {"text": …}, one after another, separated by the tokenizer's end token.
#include "data/corpus.h"
#include "data/tokenizer.h"
#include "io/quote.h"

static void pack(const mz_chat_tokens *all, uint64_t begin, uint64_t end, unsigned width, unsigned char *out) {
    for (uint64_t i = begin; i < end; i++) {
        const uint32_t token = (uint32_t)all->tokens[i];
        const uint16_t narrow = (uint16_t)token;
        memcpy(out + (i - begin) * width, width == 2 ? (const void *)&narrow : &token, width);
    }
}

// Adds records of one file, whose tokens are consecutive, as one segment.
static mezzo_status add_range(mz_stream *stream, const mz_record_set *set, const mz_record_file *file,
                              mz_record_range range, unsigned width) {
    if (range.begin == range.end)
        return MEZZO_OK;
    const uint64_t begin = set->records[range.begin].begin, end = set->records[range.end - 1].end;
    mz_segment segment = {.path = mz_strdup(file->path), .weight = file->weight};
    segment.owned = mz_alloc(end - begin + 1, width);
    segment.tokens = (mz_tokens){.data = segment.owned, .width = width, .count = end - begin};
    if (segment.path == NULL || segment.owned == NULL) {
        mz_segment_free(&segment);
        return MEZZO_ERR_MEMORY;
    }
    pack(&set->all, begin, end, width, segment.owned);
    return mz_stream_add(stream, &segment);
}

static mezzo_status add_part(mezzo_corpus *corpus, mezzo_corpus_part part, const mz_record_set *set, double from,
                             double to) {
    const unsigned width = corpus->tokenizer->vocab <= 65536 ? 2 : 4;
    for (size_t i = 0; i < set->n_files; i++)
        MEZZO_TRY(add_range(&corpus->splits[part], set, &set->files[i], mz_record_file_part(&set->files[i], from, to),
                            width));
    return MEZZO_OK;
}

mezzo_status mz_corpus_from_records(const mz_record_set *train, const mz_record_set *validation, double split,
                                    mezzo_tokenizer *tokenizer, mezzo_corpus **out) {
    *out = NULL;
    mezzo_corpus *corpus = mz_alloc(1, sizeof *corpus);
    if (corpus == NULL) {
        mezzo_tokenizer_free(tokenizer);
        return MEZZO_ERR_MEMORY;
    }
    corpus->tokenizer = tokenizer;
    mezzo_status status = add_part(corpus, MEZZO_TRAIN, train, 0, split);
    if (status == MEZZO_OK)
        status = validation != NULL ? add_part(corpus, MEZZO_VALIDATION, validation, 0, 1)
                                    : add_part(corpus, MEZZO_VALIDATION, train, split, 1);
    if (status == MEZZO_OK)
        *out = corpus;
    else
        mezzo_corpus_free(corpus);
    return status;
}

mezzo_status mz_records_tokenizer(const char *source, const mz_tokenizer_sources *model, mezzo_tokenizer **out) {
    MEZZO_TRY(mz_tokenizer_choose_for_text(model, source, out));
    if (*out != NULL)
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_INVALID,
                   "%s: records need an existing tokenizer: set data.tokenizer (--tokenizer) to gpt2, byte or the file "
                   "of a saved one",
                   mz_quote(source).text);
}

static mezzo_status open_documents(const char *source, const mezzo_corpus_options *o, const mezzo_tokenizer *tokenizer,
                                   mz_record_set *out) {
    MEZZO_TRY(mz_record_set_open(source, o->form, tokenizer, out));
    MEZZO_TRY(mz_record_set_log(out));
    if (out->documents == out->count)
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_INVALID,
                   "%s: %zu of its records are no documents, {\"text\": …}, but questions with answers: mezzo train "
                   "--data reads them as they are",
                   mz_quote(source).text, out->count - out->documents);
}

mezzo_status mz_corpus_read_records(const mezzo_corpus_options *options, const mz_tokenizer_sources *model,
                                    mezzo_corpus **out) {
    const bool whole = options->path != NULL && options->path[0] != '\0',
               validates = !whole && options->validation != NULL && options->validation[0] != '\0';
    const char *source = whole ? options->path : options->train;
    const double split = !whole ? 1 : options->train_fraction == 0 ? 0.9 : options->train_fraction;
    mz_tokenizer_sources from = *model;
    mz_record_set train = {0}, validation = {0};
    mezzo_tokenizer *tokenizer;
    from.named = options->tokenizer;
    *out = NULL;
    MEZZO_TRY(mz_records_tokenizer(source, &from, &tokenizer));
    mezzo_status status = open_documents(source, options, tokenizer, &train);
    if (status == MEZZO_OK && validates)
        status = open_documents(options->validation, options, tokenizer, &validation);
    if (status == MEZZO_OK)
        status = mz_corpus_from_records(&train, validates ? &validation : NULL, split, tokenizer, out);
    else
        mezzo_tokenizer_free(tokenizer);
    mz_record_set_close(&train);
    mz_record_set_close(&validation);
    return status;
}
