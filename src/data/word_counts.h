// Counts how often each word of many texts occurs, for the training of byte-pair encoding.
#ifndef MZ_DATA_WORD_COUNTS_H
#define MZ_DATA_WORD_COUNTS_H

#include <signal.h>

#include "data/words.h"

typedef struct mz_word_count {
    uint64_t at; // index of its first byte in `bytes`
    uint64_t count;
    uint32_t n, hash;
} mz_word_count;

typedef struct mz_word_table { // with open addressing, at most half full
    char *bytes;
    size_t n_bytes, cap_bytes;
    mz_word_count *slots; // count 0: the slot is free
    size_t size, n;
} mz_word_table;
void mz_word_table_free(mz_word_table *table); // a zeroed one is allowed

enum { MZ_WORD_SHARDS = 64 };
typedef struct mz_word_counts {
    mz_word_table shards[MZ_WORD_SHARDS]; // a word belongs to the shard that its hash selects
    uint64_t bytes, texts;                // how many were read
} mz_word_counts;
void mz_word_counts_free(mz_word_counts *counts);

typedef struct mz_word_sources {
    const char *const
        *paths; // files, or folders with files at any depth; *.jsonl and *.json have records (record_forms.h)
    size_t n_paths;
    const mz_steps *steps; // how a text is split into words
    bool gpt2;             // the steps are GPT-2's
    int threads;
    const volatile sig_atomic_t *stop; // may be NULL
} mz_word_sources;
// Counts words. It needs memory for the distinct words and about 1 MiB a thread. A text is a file, or each text of a
// record. Errors name the file: IO, FORMAT (a record without a text), INVALID (no text at all), INTERRUPTED.
mezzo_status mz_words_count(const mz_word_sources *sources, mz_word_counts *out);

#endif
