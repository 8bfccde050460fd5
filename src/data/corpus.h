// A corpus consists of two streams of files.
#ifndef MZ_DATA_CORPUS_H
#define MZ_DATA_CORPUS_H

#include "data/record_set.h"
#include "data/shards.h"
#include "data/tokenizer.h"
#include "mezzo/data.h"

// Holds one text or shard. Windows do not cross from one file into the next.
typedef struct mz_segment {
    char *path;
    mz_tokens tokens;
    mz_shard shard; // mapped; zero where the segment is a text
    void *owned;    // a text's tokens, which the segment owns
    double weight;  // how often training draws one of its windows, relative to one of weight 1; 0 means 1
} mz_segment;

typedef struct mz_stream {
    mz_segment *segments;
    size_t count, cap;
    uint64_t tokens;
} mz_stream;

struct mezzo_corpus {
    mz_stream splits[2]; // by mezzo_corpus_part
    mezzo_tokenizer *tokenizer;
    bool from_shards;
    int64_t meta_vocab; // the vocabulary that nanoGPT's meta.pkl beside the shards gives; 0: none
};

// Fails with "FILE: token V at position P is not below the vocabulary of N …".
mezzo_status mz_segment_fail_token(const mz_segment *segment, uint64_t position, uint32_t vocab);
// Checks one split as mezzo_corpus_check does.
mezzo_status mz_stream_check(const mz_stream *stream, uint32_t vocab);
// Computes the mark of the stream's tokens as they are in memory: of all, where they belong to a text or have at most
// 256 MiB; else of 1,024 pieces of 64 KiB at even distances, because larger shards are not read whole.
mezzo_data_mark mz_stream_mark(const mz_stream *stream);
// Appends *segment to the stream, which then owns it; an error frees it.
mezzo_status mz_stream_add(mz_stream *stream, mz_segment *segment);
void mz_segment_free(mz_segment *segment);

// Opens a corpus as mezzo_corpus_open does, for weights that may have a tokenizer of their own; it reads only own and
// weights of `model`.
mezzo_status mz_corpus_open(const mezzo_corpus_options *options, const mz_tokenizer_sources *model, mezzo_corpus **out);

// Reads text sources (corpus_text.c): fills the splits and makes or loads the tokenizer.
mezzo_status mz_corpus_read_text(mezzo_corpus *corpus, const mezzo_corpus_options *options,
                                 const mz_tokenizer_sources *model);

// Makes a corpus of documents, one segment a file (corpus_records.c): the first share of `split` trains and, where
// `validation` is NULL, the rest validates. Takes over the tokenizer, after an error, too.
mezzo_status mz_corpus_from_records(const mz_record_set *train, const mz_record_set *validation, double split,
                                    mezzo_tokenizer *tokenizer, mezzo_corpus **out);
// Makes it from options that name records. INVALID: some of them are no documents.
mezzo_status mz_corpus_read_records(const mezzo_corpus_options *options, const mz_tokenizer_sources *model,
                                    mezzo_corpus **out);
// Finds the tokenizer of records, which cannot make one as a text does. INVALID: no source names one.
mezzo_status mz_records_tokenizer(const char *source, const mz_tokenizer_sources *model, mezzo_tokenizer **out);

#endif
