// Converts a sentencepiece model (sentencepiece_model.proto) of BPE kind to tokenizer.json of the `tokenizers` library.
#ifndef MZ_DATA_TOKENIZER_SENTENCEPIECE_H
#define MZ_DATA_TOKENIZER_SENTENCEPIECE_H

#include <jansson.h>

#include "base/base.h"

// Reads a model; the caller owns *out. MEZZO_ERR_FORMAT, naming `where`: the bytes are no such model, or a part of it
// is not supported, such as a Unigram model.
mezzo_status mz_sentencepiece_read(const char *where, const char *bytes, size_t n, json_t **out);

typedef enum mz_piece_type { // with the numbers of its proto and of GGUF
    MZ_PIECE_NORMAL = 1,
    MZ_PIECE_UNKNOWN,
    MZ_PIECE_CONTROL,
    MZ_PIECE_USER_DEFINED,
    MZ_PIECE_UNUSED,
    MZ_PIECE_BYTE
} mz_piece_type;
typedef struct mz_piece {
    const char *text; // UTF-8, borrowed
    size_t n;
    float score;
    uint64_t type;
} mz_piece;
// Makes tokenizer.json from pieces, with a fallback to bytes and no normalization but, with `prefix`, a space before a
// text.
mezzo_status mz_sentencepiece_make(const char *where, mz_piece *pieces, size_t n, bool prefix, json_t **out);

#endif
