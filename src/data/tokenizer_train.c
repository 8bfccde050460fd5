// Trains a byte-level tokenizer: a tokenizer.json with bytes alone splits the texts, and is then made again with the
// learned merges.
#include <omp.h>

#include "data/alphabet.h"
#include "data/bpe_train.h"
#include "data/tokenizer_json.h"
#include "io/json.h"
#include "io/quote.h"

enum { MOST_SPECIAL = 1024 };

// --- tokenizer.json ------------------------------------------------------------------------------------------------
static json_t *make_frame(const mezzo_tokenizer_training *o, const char *pattern) {
    json_t *added = json_array(), *splits = mz_json_byte_level(pattern == NULL);
    if (pattern != NULL)
        splits = json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type",
                           "Split", "pattern", "Regex", pattern, "behavior", "Isolated", "invert", 0, splits);
    for (size_t i = 0; i < o->n_special; i++)
        json_array_append_new(added, mz_json_special(o->special[i], strlen(o->special[i]), (int32_t)i));
    return mz_json_frame(added, splits, mz_json_byte_level(true));
}

// Adds the special tokens, and then the bytes in the order of their letters' code points.
static mezzo_status add_first_tokens(const mezzo_tokenizer_training *o, json_t *vocab) {
    mz_text letters[256] = {0};
    bool full = false;
    for (size_t i = 0; i < o->n_special; i++)
        full |= json_object_set_new(vocab, o->special[i], json_integer((json_int_t)i)) != 0;
    for (int i = 0; i < 256; i++) {
        const char byte = (char)mz_alphabet_byte(i);
        mz_bytes_to_letters(&byte, 1, &letters[i]);
        full |= letters[i].status != MEZZO_OK;
    }
    for (size_t i = 0; i < 256 && !full; i++) // the alphabet has that order
        full |= json_object_set_new(vocab, letters[i].data, json_integer((json_int_t)(o->n_special + i))) != 0;
    for (int i = 0; i < 256; i++)
        mz_text_free(&letters[i]);
    return full ? mz_fail(MEZZO_ERR_MEMORY, "out of memory while making a tokenizer's JSON") : MEZZO_OK;
}

static mezzo_status make_first(const mezzo_tokenizer_training *o, const char *pattern, json_t **object,
                               mezzo_tokenizer **out) {
    mz_json_begin();
    json_t *frame = make_frame(o, pattern), *vocab = json_object();
    *object = frame;
    if (frame == NULL || json_object_set_new(json_object_get(frame, "model"), "vocab", vocab) != 0 ||
        json_object_set_new(json_object_get(frame, "model"), "merges", json_array()) != 0)
        return mz_fail(MEZZO_ERR_MEMORY, "out of memory while making a tokenizer's JSON");
    MEZZO_TRY(add_first_tokens(o, vocab));
    return mz_tokenizer_from_json("the tokenizer to train", frame, true, out);
}

// Copies the tables of `first`, with space for the learned tokens.
static mezzo_status copy_tables(const mz_bpe *first, int32_t vocab, mz_bpe *out) {
    mezzo_status status = MEZZO_OK;
    int32_t twice;
    bool *aside = mz_alloc((size_t)first->vocab, sizeof *aside);
    *out = mz_bpe_of_bytes();
    if (aside == NULL)
        return MEZZO_ERR_MEMORY;
    for (int32_t i = 0; i < first->vocab && status == MEZZO_OK; i++) {
        size_t n;
        const char *bytes = mz_bpe_bytes(first, i, &n);
        aside[i] = (first->made[i] & MZ_BPE_PLAIN) != 0;
        status = mz_bpe_add_token(out, bytes, n);
    }
    if (status == MEZZO_OK)
        status = mz_bpe_index(out, (size_t)vocab, 0, aside, &twice);
    mz_free(aside);
    return status;
}

// --- options -------------------------------------------------------------------------------------------------------
static mezzo_status check_special(const mezzo_tokenizer_training *o) {
    if (o->n_special > 0 && o->special == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "%zu special tokens, and none is named", o->n_special);
    if (o->n_special > MOST_SPECIAL)
        return mz_fail(MEZZO_ERR_INVALID, "%zu special tokens; there may be %d", o->n_special, MOST_SPECIAL);
    for (size_t i = 0; i < o->n_special; i++) {
        const size_t n = strlen(o->special[i]);
        if (mz_valid_until(o->special[i], 0, n) < n || n < 3)
            return mz_fail(MEZZO_ERR_INVALID,
                           "the special token %s is no UTF-8 or shorter than three bytes; a name like <|end|> is one "
                           "that no text has",
                           mz_quote(o->special[i]).text);
        for (size_t k = 0; k < i; k++)
            if (strcmp(o->special[i], o->special[k]) == 0)
                return mz_fail(MEZZO_ERR_INVALID, "the special token %s is given twice", mz_quote(o->special[i]).text);
    }
    return MEZZO_OK;
}

static mezzo_status check_options(const mezzo_tokenizer_training *o, const char **pattern) {
    MEZZO_TRY(mz_json_pattern_named(o->pattern, pattern));
    MEZZO_TRY(check_special(o));
    const int32_t least = 256 + (int32_t)o->n_special;
    if (o->vocab < least || o->vocab > MZ_BPE_MAX_VOCAB)
        return mz_fail(MEZZO_ERR_INVALID,
                       "a vocabulary of %d tokens: it has 256 bytes and %zu special tokens, so %d to %d", (int)o->vocab,
                       o->n_special, (int)least, MZ_BPE_MAX_VOCAB);
    bool named = o->n_paths > 0 && o->paths != NULL;
    for (size_t i = 0; named && i < o->n_paths; i++)
        named = o->paths[i] != NULL;
    return named ? MEZZO_OK : mz_fail(MEZZO_ERR_INVALID, "no text is named to train a tokenizer on");
}

static mezzo_status learn(const mezzo_tokenizer_training *o, const mz_bpe_tokenizer *first, bool gpt2, mz_bpe *bpe,
                          mezzo_tokenizer_trained *trained) {
    mz_word_counts counts;
    const mz_word_sources sources = {.paths = o->paths,
                                     .n_paths = o->n_paths,
                                     .steps = &first->steps,
                                     .gpt2 = gpt2,
                                     .threads = o->threads > 0 ? o->threads : omp_get_max_threads(),
                                     .stop = o->stop};
    MEZZO_TRY(mz_words_count(&sources, &counts));
    *trained = (mezzo_tokenizer_trained){.bytes = counts.bytes, .texts = counts.texts};
    for (size_t i = 0; i < MZ_WORD_SHARDS; i++)
        trained->words += counts.shards[i].n;
    mezzo_status status = copy_tables(&first->bpe, o->vocab, bpe);
    if (status == MEZZO_OK)
        status = mz_bpe_train(bpe, &counts, o->vocab, o->stop);
    mz_word_counts_free(&counts);
    return status;
}

// Makes the final tokenizer from the first one, with the tables of *bpe.
static mezzo_status make_last(const mezzo_tokenizer *first, json_t *frame, mz_bpe *bpe, mezzo_tokenizer **out) {
    mz_bpe_tokenizer made = *(const mz_bpe_tokenizer *)first;
    MZ_SCOPED(mz_json_free_at) json_t *object = json_object();
    made.bpe = *bpe;
    made.frame = frame;
    for (int32_t i = 0; i < ((const mz_bpe_tokenizer *)first)->bpe.vocab; i++)
        made.bpe.made[i] |= ((const mz_bpe_tokenizer *)first)->bpe.made[i] & MZ_BPE_PLAIN;
    MEZZO_TRY(mz_bpe_write_published(&made, object));
    return mz_tokenizer_from_json("the tokenizer that was trained", object, true, out);
}

mezzo_status mezzo_tokenizer_train(const mezzo_tokenizer_training *options, mezzo_tokenizer **out,
                                   mezzo_tokenizer_trained *trained) {
    MZ_REQUIRE(options, out);
    const char *pattern;
    json_t *frame = NULL;
    mezzo_tokenizer *first = NULL;
    mezzo_tokenizer_trained result = {0};
    mz_bpe bpe = {0};
    *out = NULL;
    MEZZO_TRY(check_options(options, &pattern));
    const bool gpt2 = pattern == NULL;
    mezzo_status status = make_first(options, pattern, &frame, &first);
    if (status == MEZZO_OK)
        status = learn(options, (const mz_bpe_tokenizer *)first, gpt2, &bpe, &result);
    if (status == MEZZO_OK)
        status = make_last(first, frame, &bpe, out);
    mz_bpe_free(&bpe);
    mezzo_tokenizer_free(first);
    json_decref(frame);
    if (status == MEZZO_OK && trained != NULL)
        *trained = result;
    return status;
}
