// Makes tokens of a conversation's messages by a chat template, and marks those that are a model's answers.
#ifndef MZ_DATA_CHAT_H
#define MZ_DATA_CHAT_H

#include <jansson.h>

#include "base/base.h"
#include "data/words.h"
#include "mezzo/data.h"

typedef struct mz_chat { // the template of a tokenizer
    char *source;        // Jinja; NULL: ChatML
    char *bos, *eos;     // texts of tokens that a template may name; NULL: none
} mz_chat;
void mz_chat_free(mz_chat *chat);

// Reads chat_template.jinja of a folder as Hugging Face publishes it, else tokenizer_config.json's template; empty
// where there is none. *added (may be NULL): tokens that were added to the vocabulary, {"number": "token"}, or NULL.
mezzo_status mz_chat_read(const char *folder, mz_chat *out, json_t **added);
// Writes tokenizer_config.json, where it would not be empty, and generation_config.json, where that is missing: the
// tokens that begin a text and that end an answer, if the tokenizer has them. `reader`: the class of transformers that
// shall read the tokenizer; NULL: the one that it has for the model.
mezzo_status mz_chat_write(const mezzo_tokenizer *tok, const char *folder, const char *reader);
// Makes {"bos_token_id": …, "eos_token_id": …}: the token with which the template ends an answer, and the tokenizer's
// own; "stop_strings" instead where the template's end is no token.
mezzo_status mz_chat_generation(const mezzo_tokenizer *tok, json_t **out);
// Makes the template with which conversations were written the tokenizer's own: ChatML, where it has no template.
mezzo_status mz_chat_keep_default(mz_chat *chat);
// Write a chat into tokenizer.json, and read it.
mezzo_status mz_chat_to_json(const mz_chat *chat, json_t *object);
mezzo_status mz_chat_from_json(const char *where, const json_t *object, mz_chat *out);

typedef struct mz_chat_tokens {
    int32_t *tokens;
    unsigned char *counts; // per token: whether it belongs to an answer, so that the loss counts it as a target
    size_t n, cap_tokens, cap_counts;
} mz_chat_tokens;
void mz_chat_tokens_free(mz_chat_tokens *t);
mezzo_status mz_chat_tokens_add(mz_chat_tokens *t, const mezzo_tokenizer *tok, const char *text, size_t n,
                                mz_place place, bool counts);
mezzo_status mz_chat_end_token(mz_chat_tokens *t,
                               const mezzo_tokenizer *tok); // adds the end token after a completion or a document,
                                                            // where there is one
bool mz_chat_has_end(const mezzo_tokenizer *tok);           // whether there is one
int32_t mz_chat_end_id(const mezzo_tokenizer *tok);         // the end token, or -1

// Appends the tokens of [{"role": …, "content": …}]. An answer is what the template writes after its prompt: the
// assistant's content, and what ends it. A marker that the template writes, <|name|> or a special token of the
// vocabulary, is a piece of its own, and that token where it exists; no message can make one. `prompt`: with the
// beginning of the next answer. Errors name `where`: as mz_template_render; FORMAT: a message of another form; INVALID:
// an answer that the template writes otherwise once others follow it.
mezzo_status mz_chat_encode(const mezzo_tokenizer *tok, const char *where, const json_t *messages, bool prompt,
                            mz_chat_tokens *out);
// Finds the text that ends an answer, which the caller frees; "" where the template has none.
mezzo_status mz_chat_find_end(const mezzo_tokenizer *tok, char **end);

#endif
