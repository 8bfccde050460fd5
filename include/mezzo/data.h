// Text and tokens: tokenizers, corpora (the training and validation token streams of a text or of token shards) and
// loaders (which produce batches in a defined order). Everything here is in host memory or in mapped files, and is
// independent of devices and models.
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

// Identifies a set of examples by its number of bytes and their CRC32C. bytes 0: not known. A checkpoint keeps the
// marks of the data that it was trained and validated on.
typedef struct mezzo_data_mark {
    uint64_t bytes;
    uint32_t crc32c;
} mezzo_data_mark;

// --- tokenizers ----------------------------------------------------------------------------------------------------
// A tokenizer does not change once it is made, and several threads may use it at the same time. Tokens are 0 … vocab -
// 1.
typedef struct mezzo_tokenizer mezzo_tokenizer;

// Makes the tokenizer with 256 tokens, one for each byte value; any bytes can be encoded.
MEZZO_API mezzo_status mezzo_tokenizer_create_byte(mezzo_tokenizer **out); // the caller owns *out
// Makes a tokenizer with one token for each different Unicode character of `text` (n bytes of UTF-8), numbered in code
// point order, as nanoGPT's character-level data preparation does. MEZZO_ERR_FORMAT names the byte offset of bytes that
// are not UTF-8; MEZZO_ERR_INVALID: empty text.
MEZZO_API mezzo_status mezzo_tokenizer_create_char(const char *text, size_t n, mezzo_tokenizer **out);
// Makes GPT-2's byte-pair encoding with 50257 tokens; any bytes can be encoded. The library carries its merges.
// Encoding a text never gives "<|endoftext|>" (50256).
MEZZO_API mezzo_status mezzo_tokenizer_create_gpt2(mezzo_tokenizer **out);
// Makes a byte-pair encoding like GPT-2's with a vocabulary of your own, in files of GPT-2's form: vocab.json,
// {"token": number}, and merges.txt, "left right" on each line (docs/data.md). `vocab_path` NULL: the merges determine
// the vocabulary, as GPT-2's do. MEZZO_ERR_FORMAT names file and line or token.
MEZZO_API mezzo_status mezzo_tokenizer_create_bpe(const char *vocab_path, const char *merges_path,
                                                  mezzo_tokenizer **out);
// Loads tokenizer.json, Mezzo's or Hugging Face's (docs/data.md describes both), sentencepiece's *.model of BPE kind, a
// merges file *.txt or *.bpe, or a folder with tokenizer.json, or otherwise with merges.txt and vocab.json, or with
// tokenizer.model.
// MEZZO_ERR_IO or MEZZO_ERR_FORMAT names the file and the key or line, or the unsupported part of Hugging Face's form;
// MEZZO_ERR_UNSUPPORTED: it normalizes text, and this build has no utf8proc.
MEZZO_API mezzo_status mezzo_tokenizer_load(const char *path, mezzo_tokenizer **out);
// Writes the file atomically: after an error it is as before. MEZZO_ERR_IO names it.
MEZZO_API mezzo_status mezzo_tokenizer_save(const mezzo_tokenizer *tok, const char *path);
// Writes FOLDER/vocab.json and FOLDER/merges.txt, each atomically, as transformers' GPT2Tokenizer reads them. INVALID
// for "byte" and "char", and where GPT-2's two files cannot represent the tokenizer; IO names the file.
MEZZO_API mezzo_status mezzo_tokenizer_save_bpe(const mezzo_tokenizer *tok, const char *folder);
MEZZO_API void mezzo_tokenizer_free(mezzo_tokenizer *tok); // NULL is allowed

// Return "byte", "char", "gpt2" or "bpe", and the number of tokens.
MEZZO_API const char *mezzo_tokenizer_kind(const mezzo_tokenizer *tok);
MEZZO_API int32_t mezzo_tokenizer_vocab(const mezzo_tokenizer *tok);
// Writes the tokens of `text` (n bytes) to tokens[] and their number to *count; where `tokens` is NULL, it only counts
// them. An array of n elements is enough for "byte", "char" and "gpt2"; a tokenizer of Hugging Face's form may make
// more tokens, because it may put a space before a text or normalize it, so the caller counts first. MEZZO_ERR_INVALID
// names the byte offset of a character that the tokenizer does not have, MEZZO_ERR_FORMAT that of bytes that are not
// UTF-8 (char); *count is then the number of tokens before it. MEZZO_ERR_UNSUPPORTED: PCRE2 cannot match the split
// pattern within its limits.
MEZZO_API mezzo_status mezzo_tokenizer_encode(const mezzo_tokenizer *tok, const char *text, size_t n, int32_t *tokens,
                                              size_t *count);
// Returns the bytes that one token represents, owned by the tokenizer, not NUL-terminated; NULL and *n = 0 for a token
// out of range.
MEZZO_API const char *mezzo_tokenizer_bytes(const mezzo_tokenizer *tok, int32_t token, size_t *n);
// Returns the most bytes that one token represents.
MEZZO_API size_t mezzo_tokenizer_max_bytes(const mezzo_tokenizer *tok);
// Writes the text of tokens[] and a NUL to text[], whose capacity is count × max_bytes + 1 bytes; *n is its length
// without the NUL. MEZZO_ERR_INVALID names the position and value of a token out of range.
MEZZO_API mezzo_status mezzo_tokenizer_decode(const mezzo_tokenizer *tok, const int32_t *tokens, size_t count,
                                              char *text, size_t *n);

// Describes the training of a byte-level byte-pair encoding on texts. The vocabulary consists of the special tokens,
// 256 bytes, and one token for each merge. Merges are those of the `tokenizers` library's BpeTrainer on the same texts,
// ties included.
typedef struct mezzo_tokenizer_training {
    const char *const *paths; // texts, also compressed (.gz); files *.jsonl and *.json of records; folders of these
    size_t n_paths;
    int32_t vocab;              // number of tokens; fewer where the texts have no more pairs
    const char *pattern;        // "gpt2" (NULL), "gpt4", "llama3", "qwen2", "gpt4o": the pattern that splits a text
                                // into words
    const char *const *special; // tokens that encoding a text never gives, numbered from 0
    size_t n_special;
    int threads;                       // number of threads that count words; 0: every core
    const volatile sig_atomic_t *stop; // may be NULL
} mezzo_tokenizer_training;
typedef struct mezzo_tokenizer_trained {
    uint64_t bytes, texts, words; // filled: bytes and texts that were read, and the number of distinct words
} mezzo_tokenizer_trained;
// Trains a tokenizer. The caller owns *out; `trained` may be NULL. Memory grows with the distinct words, not with the
// texts. Errors: MEZZO_ERR_INVALID (an option, no text), IO, FORMAT (a record without a text), each naming the file;
// INTERRUPTED.
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
    // For texts: NULL, "auto" or "char" (the characters of the training and validation text), "byte", "gpt2", or a path
    // that mezzo_tokenizer_load takes. For shards: NULL, "auto" and "char" mean the one beside the first of them, if
    // there is one; another must be equal to it, or MEZZO_ERR_INVALID names both.
    const char *tokenizer;
    // The first int(train_fraction × n) characters of `path`'s text are for training and the others for validation. 0
    // means nanoGPT's 0.9; 1 leaves no validation text.
    double train_fraction;
    const char *form;                  // the form of records: NULL, "auto" (by their keys) or its name
    const volatile sig_atomic_t *stop; // may be NULL; not zero: tokenizing a text ends with MEZZO_ERR_INTERRUPTED
} mezzo_corpus_options;

typedef struct mezzo_corpus mezzo_corpus;
// Opens a corpus. Texts are read and tokenized on every core, shards are mapped. The caller owns *out. Errors, each
// naming the file: MEZZO_ERR_IO (unreadable), MEZZO_ERR_FORMAT (empty, truncated, not UTF-8 at a byte offset),
// MEZZO_ERR_INVALID (missing, an unusable combination of options, a character that the given tokenizer does not have).
MEZZO_API mezzo_status mezzo_corpus_open(const mezzo_corpus_options *options, mezzo_corpus **out);
MEZZO_API void mezzo_corpus_free(mezzo_corpus *corpus); // NULL is allowed; free its loaders first
// Returns the tokenizer, owned by the corpus; NULL where shards have none.
MEZZO_API const mezzo_tokenizer *mezzo_corpus_tokenizer(const mezzo_corpus *corpus);
// Returns the number of tokens of one part; 0 where the corpus does not have it.
MEZZO_API uint64_t mezzo_corpus_tokens(const mezzo_corpus *corpus, mezzo_corpus_part split);
// Reads every token of both splits: MEZZO_ERR_INVALID names file, position and value of a token that is not below
// `vocab`.
MEZZO_API mezzo_status mezzo_corpus_check(const mezzo_corpus *corpus, int32_t vocab);

typedef enum mezzo_shard_format { MEZZO_SHARD_LLMC, MEZZO_SHARD_NANOGPT } mezzo_shard_format;
// Writes `folder` (made if missing) with train.bin, val.bin and tokenizer.json, each atomically; those of them that the
// corpus does not have are removed from the folder. MEZZO_ERR_INVALID where one of them is a file from which the corpus
// is read. llm.c's format holds uint16 tokens, or uint32 above a vocabulary of 65536 (its Llama 3 form), and at most
// 2^31 - 1 of them; nanoGPT's holds uint16 only: MEZZO_ERR_INVALID where the corpus does not fit. MEZZO_ERR_IO names
// the file.
MEZZO_API mezzo_status mezzo_corpus_save(const mezzo_corpus *corpus, const char *folder, mezzo_shard_format format);

// --- loaders -------------------------------------------------------------------------------------------------------
typedef enum mezzo_loader_order {
    // Row r of batch k starts at a position drawn uniformly from all positions with length + 1 tokens after them in one
    // file, by Philox keyed with (seed, stream, k × batch + r). The only state is k, and two batches of 6 equal one
    // batch of 12.
    MEZZO_LOADER_RANDOM,
    // Rows are consecutive windows in file order: every token but the first of a file is a target exactly once. A
    // file's last window may be shorter than `length`: it is padded with inputs 0 and targets -1, which the loss
    // ignores.
    MEZZO_LOADER_SEQUENTIAL,
} mezzo_loader_order;

typedef struct mezzo_loader_options {
    mezzo_corpus_part split;
    mezzo_loader_order order;
    int64_t batch;   // B ≥ 1, number of sequences
    int64_t length;  // T ≥ 1, their tokens
    int32_t vocab;   // the model's vocabulary: every token must be below it; 0 = the tokenizer's
    uint64_t seed;   // used by RANDOM
    uint32_t stream; // used by RANDOM: loaders of one seed that must differ (training 0, validation 1, …) have
                     // different streams
} mezzo_loader_options;

typedef struct mezzo_loader mezzo_loader;
// Makes a loader, which borrows the corpus. MEZZO_ERR_INVALID: a split without tokens or, for RANDOM, shorter than one
// sequence (length + 1 tokens in one file), naming the file; batch, length or vocab out of range; a tokenizer with more
// tokens than `vocab`. This call checks shards of at most 256 MiB completely (as mezzo_corpus_check); larger ones are
// checked batch by batch.
MEZZO_API mezzo_status mezzo_loader_create(const mezzo_corpus *corpus, const mezzo_loader_options *options,
                                           mezzo_loader **out);
MEZZO_API void mezzo_loader_free(mezzo_loader *loader); // NULL is allowed
// Reads batch k: inputs [B, T] and targets [B, T] as int32; the targets are the inputs shifted by one token.
// SEQUENTIAL: after the last batch the first one follows (k modulo mezzo_loader_batches), and rows past the last window
// are padded, too. MEZZO_ERR_INVALID names file, position and value of a token ≥ vocab. Allocates nothing.
MEZZO_API mezzo_status mezzo_loader_batch(const mezzo_loader *loader, uint64_t k, int32_t *inputs, int32_t *targets);
// Reads the batch at the loader's position and advances that by one; where mezzo_loader_batch fails, the position
// stays. The position, counted in batches, is the loader's whole state, which a checkpoint keeps.
MEZZO_API mezzo_status mezzo_loader_next(mezzo_loader *loader, int32_t *inputs, int32_t *targets);
MEZZO_API uint64_t mezzo_loader_position(const mezzo_loader *loader);
MEZZO_API void mezzo_loader_seek(mezzo_loader *loader, uint64_t position);
// Returns the batches of one pass over the split: SEQUENTIAL: exactly; RANDOM: the number of batches that has as many
// tokens as the split, at least 1.
MEZZO_API uint64_t mezzo_loader_batches(const mezzo_loader *loader);
// Returns the number of targets that are not -1 in one pass (SEQUENTIAL).
MEZZO_API uint64_t mezzo_loader_targets(const mezzo_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
