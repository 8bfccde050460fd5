// Text and tokens: tokenizers, corpora (the training and validation token streams of a text or of token shards) and
// loaders (which batch comes when). Everything here lives in host memory or in mapped files; nothing knows devices or
// models.
// Ownership, threads and errors that a comment does not name: mezzo.h.
#ifndef MEZZO_DATA_H
#define MEZZO_DATA_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#include "mezzo/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// Identifies a set of examples by its bytes and the CRC32C of what was read. bytes 0: not known. A checkpoint keeps
// those of what it was trained and validated on.
typedef struct mezzo_data_mark {
    uint64_t bytes;
    uint32_t crc32c;
} mezzo_data_mark;

// --- tokenizers ----------------------------------------------------------------------------------------------------
// Immutable once made; may be used by several threads at a time. Tokens are 0 … vocab - 1.
typedef struct mezzo_tokenizer mezzo_tokenizer;

// 256 tokens, one a byte value; any bytes can be encoded.
MEZZO_API mezzo_status mezzo_tokenizer_create_byte(mezzo_tokenizer **out); // the caller owns *out
// One token for each different Unicode character of `text` (n bytes of UTF-8), numbered in code point order, as
// nanoGPT's character-level data preparation does. MEZZO_ERR_FORMAT names the byte offset of what is not UTF-8;
// MEZZO_ERR_INVALID: empty text.
MEZZO_API mezzo_status mezzo_tokenizer_create_char(const char *text, size_t n, mezzo_tokenizer **out);
// GPT-2's byte-pair encoding, 50257 tokens; any bytes can be encoded. The library carries its merges. "<|endoftext|>"
// (50256) is never made from text.
MEZZO_API mezzo_status mezzo_tokenizer_create_gpt2(mezzo_tokenizer **out);
// The same with a vocabulary of your own, in files of GPT-2's form: vocab.json, {"token": number}, and merges.txt,
// "left right" a line (docs/data.md). `vocab_path` NULL: the merges make the vocabulary, as GPT-2's do.
// MEZZO_ERR_FORMAT names file and line or token.
MEZZO_API mezzo_status mezzo_tokenizer_create_bpe(const char *vocab_path, const char *merges_path,
                                                  mezzo_tokenizer **out);
// tokenizer.json, Mezzo's or Hugging Face's (docs/data.md has both), sentencepiece's *.model of BPE kind, a merges file
// *.txt or *.bpe, or a folder with tokenizer.json, or else with merges.txt and vocab.json, or with tokenizer.model.
// MEZZO_ERR_IO or MEZZO_ERR_FORMAT names the file and the key or line, or what of Hugging Face's form is not supported;
// MEZZO_ERR_UNSUPPORTED: it normalizes text, and this build has no utf8proc.
MEZZO_API mezzo_status mezzo_tokenizer_load(const char *path, mezzo_tokenizer **out);
// The file is written atomically: as it was, or whole. MEZZO_ERR_IO names it.
MEZZO_API mezzo_status mezzo_tokenizer_save(const mezzo_tokenizer *tok, const char *path);
// FOLDER/vocab.json and FOLDER/merges.txt, each atomically, as transformers' GPT2Tokenizer reads them. INVALID for
// "byte" and "char", and where GPT-2's two files cannot say what the tokenizer does; IO names the file.
MEZZO_API mezzo_status mezzo_tokenizer_save_bpe(const mezzo_tokenizer *tok, const char *folder);
MEZZO_API void mezzo_tokenizer_free(mezzo_tokenizer *tok); // NULL is fine

// "byte", "char", "gpt2", "bpe"; and how many tokens there are.
MEZZO_API const char *mezzo_tokenizer_kind(const mezzo_tokenizer *tok);
MEZZO_API int32_t mezzo_tokenizer_vocab(const mezzo_tokenizer *tok);
// Writes the tokens of `text` (n bytes) to tokens[] and their number to *count; NULL tokens are counted only. Room for
// n is enough for "byte", "char" and "gpt2"; a tokenizer of Hugging Face's form may make more, as it may put a space
// before a text or normalize it: there, room for as many as were counted. MEZZO_ERR_INVALID names the byte offset of a
// character that the tokenizer does not have, MEZZO_ERR_FORMAT that of bytes that are not UTF-8 (char); *count is then
// the number of tokens before it. MEZZO_ERR_UNSUPPORTED: a split pattern on which PCRE2 gives up.
MEZZO_API mezzo_status mezzo_tokenizer_encode(const mezzo_tokenizer *tok, const char *text, size_t n, int32_t *tokens,
                                              size_t *count);
// The bytes one token stands for, owned by the tokenizer, not NUL-terminated; NULL and *n = 0 for a token out of range.
MEZZO_API const char *mezzo_tokenizer_bytes(const mezzo_tokenizer *tok, int32_t token, size_t *n);
// The most bytes that one token stands for.
MEZZO_API size_t mezzo_tokenizer_max_bytes(const mezzo_tokenizer *tok);
// Writes the text of tokens[] and a NUL to text[], which has room for count × max_bytes + 1 bytes; *n is its length
// without the NUL. MEZZO_ERR_INVALID names the position and value of a token out of range.
MEZZO_API mezzo_status mezzo_tokenizer_decode(const mezzo_tokenizer *tok, const int32_t *tokens, size_t count,
                                              char *text, size_t *n);

// Byte-level byte-pair encoding from texts. The vocabulary: the special tokens, 256 bytes, and one token a merge.
// Merges are those of the `tokenizers` library's BpeTrainer on the same texts, ties included.
typedef struct mezzo_tokenizer_training {
    const char *const *paths; // texts, also compressed (.gz); files *.jsonl and *.json of records; folders of these
    size_t n_paths;
    int32_t vocab;              // tokens; fewer where the texts have no more pairs
    const char *pattern;        // "gpt2" (NULL), "gpt4", "llama3", "qwen2", "gpt4o": how a text is split into words
    const char *const *special; // tokens that no text becomes, numbered from 0
    size_t n_special;
    int threads;                       // that count words; 0: every core
    const volatile sig_atomic_t *stop; // may be NULL
} mezzo_tokenizer_training;
typedef struct mezzo_tokenizer_trained {
    uint64_t bytes, texts, words; // read; words are the distinct ones
} mezzo_tokenizer_trained;
// The caller owns *out; `trained` may be NULL. Memory grows with the distinct words, not with the texts. Errors:
// MEZZO_ERR_INVALID (an option, no text), IO, FORMAT (a record that says nothing), each naming the file; INTERRUPTED.
MEZZO_API mezzo_status mezzo_tokenizer_train(const mezzo_tokenizer_training *options, mezzo_tokenizer **out,
                                             mezzo_tokenizer_trained *trained);

// --- corpora -------------------------------------------------------------------------------------------------------
typedef enum mezzo_corpus_part { MEZZO_TRAIN, MEZZO_VALIDATION } mezzo_corpus_part;

// Says where the tokens come from: `path` alone, or `train` and (optionally) `validation`. A source is
//   a text file                  tokenized here; `path` is split by train_fraction
//   a file *.bin                 token shards of llm.c (a header that says so) or nanoGPT (bare uint16)
//   a list or pattern of *.bin   "a.bin,b.bin" or "shards/train_*.bin", in the order given, patterns sorted by name
//   a folder (`path` only)       its *train*.bin and *val*.bin, and its tokenizer.json if there is one
//   a file *.jsonl or *.json     records {"text": …}, also with .gz; a folder or list of them (docs/data.md):
//   documents,
//                                each with the tokenizer's end token after it
typedef struct mezzo_corpus_options {
    const char *path;       // NULL or "": none
    const char *train;      // NULL or "": none
    const char *validation; // NULL or "": none
    // For texts: NULL, "auto" or "char" (the characters of the training and validation text), "byte", "gpt2", or what
    // mezzo_tokenizer_load takes. Of shards: NULL, "auto" and "char" mean the one beside the first of them, if there is
    // one; another must be the same, or MEZZO_ERR_INVALID names both.
    const char *tokenizer;
    // The first int(train_fraction × n) characters of `path`'s text train and the rest validates. 0 means 0.9,
    // nanoGPT's; 1 leaves no validation text.
    double train_fraction;
    const char *form;                  // of records: NULL, "auto" (by their keys) or its name
    const volatile sig_atomic_t *stop; // may be NULL; not zero: tokenizing a text ends with MEZZO_ERR_INTERRUPTED
} mezzo_corpus_options;

typedef struct mezzo_corpus mezzo_corpus;
// Texts are read and tokenized on every core, shards are mapped. The caller owns *out. Errors, each naming the file:
// MEZZO_ERR_IO (unreadable), MEZZO_ERR_FORMAT (empty, cut off, not UTF-8 at a byte offset), MEZZO_ERR_INVALID (missing,
// a combination of options that says nothing, a character that the given tokenizer does not have).
MEZZO_API mezzo_status mezzo_corpus_open(const mezzo_corpus_options *options, mezzo_corpus **out);
MEZZO_API void mezzo_corpus_free(mezzo_corpus *corpus); // NULL is fine; after its loaders
// Owned by the corpus; NULL where shards came without one.
MEZZO_API const mezzo_tokenizer *mezzo_corpus_tokenizer(const mezzo_corpus *corpus);
// Tokens of one part; 0 where it has none.
MEZZO_API uint64_t mezzo_corpus_tokens(const mezzo_corpus *corpus, mezzo_corpus_part split);
// Reads every token of both splits: MEZZO_ERR_INVALID names file, position and value of one that is not below `vocab`.
MEZZO_API mezzo_status mezzo_corpus_check(const mezzo_corpus *corpus, int32_t vocab);

typedef enum mezzo_shard_format { MEZZO_SHARD_LLMC, MEZZO_SHARD_NANOGPT } mezzo_shard_format;
// Writes `folder` (made if missing) with train.bin, val.bin and tokenizer.json, each atomically; of these, what the
// corpus does not have is removed from the folder. MEZZO_ERR_INVALID where one of them is a file that the corpus is
// read from. llm.c's format holds uint16 tokens, or uint32 above a vocabulary of 65536 (its Llama 3 form), and at most
// 2^31 - 1 of them; nanoGPT's holds uint16 only: MEZZO_ERR_INVALID where the corpus does not fit. MEZZO_ERR_IO names
// the file.
MEZZO_API mezzo_status mezzo_corpus_save(const mezzo_corpus *corpus, const char *folder, mezzo_shard_format format);

// --- loaders -------------------------------------------------------------------------------------------------------
typedef enum mezzo_loader_order {
    // Row r of batch k starts at a place drawn uniformly from all places with length + 1 tokens after them in one file,
    // by
    // Philox keyed with (seed, stream, k × batch + r): no state but k, and two batches of 6 are one batch of 12.
    MEZZO_LOADER_RANDOM,
    // Consecutive windows in file order: every token but the first of a file is a target exactly once. A file's last
    // window
    // may be shorter than `length`: it is filled up with inputs 0 and targets -1, which the loss ignores.
    MEZZO_LOADER_SEQUENTIAL,
} mezzo_loader_order;

typedef struct mezzo_loader_options {
    mezzo_corpus_part split;
    mezzo_loader_order order;
    int64_t batch;  // B ≥ 1, sequences
    int64_t length; // T ≥ 1, tokens
    int32_t vocab;  // of the model: every token must be below it; 0 = the tokenizer's
    uint64_t seed;  // RANDOM
    uint32_t
        stream; // RANDOM: loaders of one seed that must differ (training 0, validation 1, …) have different streams
} mezzo_loader_options;

typedef struct mezzo_loader mezzo_loader;
// The corpus is borrowed. MEZZO_ERR_INVALID: a split without tokens or, for RANDOM, shorter than one sequence (length +
// 1 tokens in one file), naming the file; batch, length or vocab out of range; a tokenizer with more tokens than
// `vocab`. Shards of at most 256 MiB are read through here (see mezzo_corpus_check), larger ones are checked batch by
// batch.
MEZZO_API mezzo_status mezzo_loader_create(const mezzo_corpus *corpus, const mezzo_loader_options *options,
                                           mezzo_loader **out);
MEZZO_API void mezzo_loader_free(mezzo_loader *loader); // NULL is fine
// Batch k: inputs [B, T] and targets [B, T] as int32, targets being the inputs moved on by one token. SEQUENTIAL:
// batches past the last start again (k modulo mezzo_loader_batches), and rows past the last window are filled up too.
// MEZZO_ERR_INVALID names file, position and value of a token ≥ vocab. Allocates nothing.
MEZZO_API mezzo_status mezzo_loader_batch(const mezzo_loader *loader, uint64_t k, int32_t *inputs, int32_t *targets);
// The batch at the loader's position, which then moves on by one; it stays where mezzo_loader_batch fails. The position
// is the loader's whole state, counted in batches: a checkpoint keeps it.
MEZZO_API mezzo_status mezzo_loader_next(mezzo_loader *loader, int32_t *inputs, int32_t *targets);
MEZZO_API uint64_t mezzo_loader_position(const mezzo_loader *loader);
MEZZO_API void mezzo_loader_seek(mezzo_loader *loader, uint64_t position);
// Batches of one pass over the split: SEQUENTIAL, exactly; RANDOM, as many as hold its tokens once, at least 1.
MEZZO_API uint64_t mezzo_loader_batches(const mezzo_loader *loader);
// Targets that are not -1 in one pass (SEQUENTIAL).
MEZZO_API uint64_t mezzo_loader_targets(const mezzo_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
