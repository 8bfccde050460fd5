// Declares the members of the byte-pair tokenizer: GPT-2's, or one that a tokenizer.json of Hugging Face describes.
#ifndef MZ_DATA_TOKENIZER_BPE_H
#define MZ_DATA_TOKENIZER_BPE_H

#include "data/added.h"
#include "data/bpe.h"
#include "data/normalize.h"
#include "data/tokenizer.h"
#include "data/words.h"

typedef struct mz_bpe_tokenizer {
    mezzo_tokenizer base;
    mz_bpe bpe;
    mz_added added[2]; // those found in the original text, and those found in the normalized one
    mz_normals normals;
    mz_steps steps;
    bool letters; // words are written in GPT-2's alphabet
    bool cuts;    // a text may be cut before a space between two letters
    char *shown;  // the texts that tokens decode to, one after another; NULL: their bytes in bpe
    size_t *shown_ends;
    json_t *frame; // tokenizer.json without vocabulary and merges; NULL: GPT-2's form
} mz_bpe_tokenizer;

void mz_bpe_tokenizer_destroy(mezzo_tokenizer *tok);
// Reads tokenizer.json of the `tokenizers` library. MEZZO_ERR_FORMAT names what is wrong or not supported; UNSUPPORTED:
// a normalizer that this build cannot do.
mezzo_status mz_bpe_read_published(const char *where, const json_t *object, mezzo_tokenizer **out);
const mz_bpe_tokenizer *mz_bpe_published(const mezzo_tokenizer *tok); // NULL: the tokenizer has another form
// Writes a tokenizer of any form.
mezzo_status mz_bpe_write_published(const mz_bpe_tokenizer *tok, json_t *object);

#endif
