// The two files that read tokenizer.json of the `tokenizers` library share this. tokenizer_json.c has the parts that
// say what happens to a text and to tokens, tokenizer_json_model.c the vocabulary, the merges and the file.
#ifndef MZ_DATA_TOKENIZER_JSON_H
#define MZ_DATA_TOKENIZER_JSON_H

#include "data/tokenizer_bpe.h"

typedef struct mz_json_reader {
    const char *where;
    mz_bpe_tokenizer *tok;
    const json_t *vocab;
    mz_text key; // of the vocabulary, to look up
    bool bytes;  // ByteLevel splits
    // decoding: each token, then all of them
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
// Keys that are not in `keys`, each between spaces, are refused.
mezzo_status mz_json_part_keys(const mz_json_part *p, const char *keys);
mezzo_status mz_json_copy_text(const char *text, size_t n, char **out);
mezzo_status mz_json_read_parts(mz_json_reader *r, const json_t *object); // normalizer to decoder
mezzo_status mz_json_show_tokens(mz_json_reader *r);                      // what tokens of characters stand for
// Patterns of spaces that sentencepiece removes: before a text, of several all but one, after it.
extern const char *const mz_json_extra_spaces[3];
// Finds a published pattern; *out NULL: GPT-2's, which ByteLevel has. INVALID: the name is unknown. NULL is "gpt2".
mezzo_status mz_json_pattern_named(const char *name, const char **out);

// --- writing (tokenizer_json_write.c); NULL: out of memory ---------------------------------------------------------
json_t *mz_json_byte_level(bool regex);                                       // with GPT-2's pattern, or none
json_t *mz_json_special(const char *text, size_t n, int32_t id);              // one of added_tokens
json_t *mz_json_own(const mezzo_tokenizer *tok);                              // {"kind": …, "vocab_size": …}
json_t *mz_json_frame(json_t *added, json_t *pre_tokenizer, json_t *decoder); // of BPE; takes over all three
// Writes into *object the frame with vocabulary, merges and "mezzo". Takes over these four.
mezzo_status mz_json_write(const mezzo_tokenizer *tok, json_t *frame, json_t *vocab, json_t *merges, json_t *mezzo,
                           json_t *object);

#endif
