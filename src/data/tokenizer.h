// Declares the table of functions that each kind of mezzo/data.h's tokenizers has.
#ifndef MZ_DATA_TOKENIZER_H
#define MZ_DATA_TOKENIZER_H

#include <jansson.h>

#include "base/scope.h"
#include "data/chat.h"
#include "data/words.h"
#include "mezzo/data.h"

// Holds the tokens of a text. Zeroed, then freed.
typedef struct mz_token_list {
    int32_t *tokens;
    size_t n, cap;
} mz_token_list;
void mz_token_list_free(mz_token_list *list);

// A kind of tokenizer. Objects embed mezzo_tokenizer as their first member.
typedef struct mz_tokenizer_kind {
    const char *name; // in tokenizer.json, and for --tokenizer
    void (*destroy)(mezzo_tokenizer *tok);
    // Encodes as mezzo_tokenizer_encode does, and appends to *out; `base` is added to byte offsets in errors (the text
    // may be a piece of a file).
    mezzo_status (*encode)(const mezzo_tokenizer *tok, const char *text, size_t n, uint64_t base, mz_place place,
                           mz_token_list *out);
    const char *(*bytes)(const mezzo_tokenizer *tok, int32_t token, size_t *n); // token is below the vocabulary
    mezzo_status (*save)(const mezzo_tokenizer *tok, json_t *object);           // writes all of tokenizer.json
    // Makes a tokenizer from the keys of Mezzo's own form, which "mezzo" in a model of Hugging Face's form has, too.
    mezzo_status (*load)(const char *where, const json_t *object, mezzo_tokenizer **out);
    // Returns the largest place in (from, to] where a text may be cut without changing a token; `to` may lie inside a
    // character.
    size_t (*cut)(const mezzo_tokenizer *tok, const char *text, size_t from, size_t to);
    // Returns whether both have the same tokens for every text; called where both are of this kind. NULL: never.
    bool (*same)(const mezzo_tokenizer *a, const mezzo_tokenizer *b);
    // Returns the token with exactly these bytes that encoding never makes, such as "<|im_end|>"; -1: none. NULL: the
    // kind has none.
    int32_t (*special)(const mezzo_tokenizer *tok, const char *text, size_t n);
} mz_tokenizer_kind;

struct mezzo_tokenizer {
    const mz_tokenizer_kind *kind;
    int32_t vocab;
    size_t max_bytes;
    size_t leading; // spaces that a text lacks where it begins, but its tokens may have
    mz_chat chat;
};

extern const mz_tokenizer_kind mz_tokenizer_byte, mz_tokenizer_char, mz_tokenizer_gpt2, mz_tokenizer_bpe;

// Opens a tokenizer that needs no text: "byte", "gpt2", or a path as mezzo_tokenizer_load accepts it.
mezzo_status mz_tokenizer_named(const char *name, mezzo_tokenizer **out);
// Makes a tokenizer as mezzo_tokenizer_create_bpe does, with tokens after the vocabulary's, {"token": number} (may be
// NULL).
mezzo_status mz_tokenizer_create_bpe(const char *vocab_path, const char *merges_path, const json_t *added,
                                     mezzo_tokenizer **out);
size_t mz_cut_character(const mezzo_tokenizer *tok, const char *text, size_t from,
                        size_t to); // a `cut` for tokens within characters

// Holds what may determine the tokenizer of a text or a model. Paths are those of mezzo_tokenizer_load; NULL and ""
// mean none.
typedef struct mz_tokenizer_sources {
    const char *own;     // the model's
    const char *weights; // the source of trained weights; NULL: weights are random, or there are none
    const char *data;    // the path for token shards
    const char *named;   // data.tokenizer; "auto" means none
} mz_tokenizer_sources;
// Chooses the tokenizer, and is the only place that does: the model's own, else the shards', else the named one; all
// that are given must be the same. MEZZO_ERR_INVALID names two that differ. *out NULL: none is given, or "char", which
// a text makes.
mezzo_status mz_tokenizer_choose(const mz_tokenizer_sources *from, mezzo_tokenizer **out);
// Chooses for a text, which has no tokens of its own: MEZZO_ERR_INVALID also where no source says which tokens trained
// weights know. *out NULL: the tokens of `what` are its characters.
mezzo_status mz_tokenizer_choose_for_text(const mz_tokenizer_sources *from, const char *what, mezzo_tokenizer **out);
bool mz_tokenizer_splits_as_gpt2(const mezzo_tokenizer *tok); // and does nothing else, so that GPT-2's two files
                                                              // describe it
bool mz_tokenizer_same(const mezzo_tokenizer *a, const mezzo_tokenizer *b);
bool mz_tokenizer_in_folder(const char *folder); // whether mezzo_tokenizer_load finds one, or refuses it

// Makes a tokenizer from the parsed content of tokenizer.json; `where` names it in errors.
mezzo_status mz_tokenizer_from_json(const char *where, const json_t *object, bool sealed, mezzo_tokenizer **out);
mezzo_status mz_tokenizer_encode_piece(const mezzo_tokenizer *tok, const char *text, size_t n, uint64_t base,
                                       mz_place place, mz_token_list *out);

// Collects the characters of texts for a char tokenizer: bit c of `seen` is code point c.
#define MZ_CODE_POINTS 0x110000u
typedef struct mz_char_set {
    uint64_t seen[MZ_CODE_POINTS / 64];
} mz_char_set;
// Adds a text. MEZZO_ERR_FORMAT, "WHERE: byte N: …", where it is not UTF-8.
mezzo_status mz_char_set_add(mz_char_set *set, const char *where, const char *text, size_t n);
mezzo_status mz_tokenizer_from_chars(const mz_char_set *set, mezzo_tokenizer **out);

MZ_FREE_AT(mz_tokenizer_free_at, mezzo_tokenizer, mezzo_tokenizer_free)

#endif
