// A model of sentencepiece (sentencepiece_model.proto) of BPE kind as tokenizer.json of the `tokenizers` library.
#ifndef MZ_DATA_TOKENIZER_SENTENCEPIECE_H
#define MZ_DATA_TOKENIZER_SENTENCEPIECE_H

#include <jansson.h>

#include "base/base.h"

// The caller owns *out. MEZZO_ERR_FORMAT, naming `where`: the bytes are no such model, or what of it is not supported,
// such as a Unigram model.
mezzo_status mz_sentencepiece_read(const char *where, const char *bytes, size_t n, json_t **out);

#endif
