// Declares what the two files that read tokenizer.json of the `tokenizers` library share. tokenizer_json.c has the
// parts that change texts and tokens, tokenizer_json_model.c the vocabulary, the merges and the file.
#ifndef MZ_DATA_TOKENIZER_JSON_H
#define MZ_DATA_TOKENIZER_JSON_H

#include "data/tokenizer_bpe.h"

typedef struct mz_json_reader {
    const char *where;
    mz_bpe_tokenizer *tok;
    const json_t *vocab;
    mz_text key; // memory for a key of the vocabulary to look up
    bool bytes;  // ByteLevel splits the text
    // For decoding: each token, and then all of them.
    mz_normals decoders;
    bool byte_fallback, fused;
} mz_json_reader;

typedef struct mz_json_part {
    mz_json_reader *r;
    const char *key, *type; // "normalizer", "NFC"
    const json_t *object;
} mz_json_part;

mezzo_status mz_json_refuse(const mz_json_part *p, const char *what);
mezzo_status mz_json_part_bool(const mz_json_part *p, const char *key, bool otherwise, bool *out);
// Refuses keys that are not in `keys`, each between spaces.
mezzo_status mz_json_part_keys(const mz_json_part *p, const char *keys);
mezzo_status mz_json_copy_text(const char *text, size_t n, char **out);
mezzo_status mz_json_read_parts(mz_json_reader *r, const json_t *object); // from normalizer to decoder
mezzo_status mz_json_show_tokens(mz_json_reader *r);                      // writes the texts of tokens that are
                                                                          // characters
// Patterns of spaces that sentencepiece removes: those before a text, all but one of several, and those after it.
extern const char *const mz_json_extra_spaces[3];
// Finds a published pattern; *out NULL: GPT-2's, which ByteLevel has. INVALID: the name is unknown. NULL means "gpt2".
mezzo_status mz_json_pattern_named(const char *name, const char **out);

// --- writing (tokenizer_json_write.c); NULL: out of memory ---------------------------------------------------------
json_t *mz_json_byte_level(bool regex);                                       // with GPT-2's pattern, or without one
json_t *mz_json_special(const char *text, size_t n, int32_t id);              // an element of added_tokens
json_t *mz_json_own(const mezzo_tokenizer *tok);                              // makes {"kind": …, "vocab_size": …}
json_t *mz_json_frame(json_t *added, json_t *pre_tokenizer, json_t *decoder); // for BPE; takes over all three
// Writes the frame with vocabulary, merges and "mezzo" into *object. Takes over these four.
mezzo_status mz_json_write(const mezzo_tokenizer *tok, json_t *frame, json_t *vocab, json_t *merges, json_t *mezzo,
                           json_t *object);

#endif
