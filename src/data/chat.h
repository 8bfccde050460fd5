// A chat template makes tokens of a conversation's messages, and marks those that are a model's answers.
#ifndef MZ_DATA_CHAT_H
#define MZ_DATA_CHAT_H

#include <jansson.h>

#include "base/base.h"
#include "data/words.h"
#include "mezzo/data.h"

typedef struct mz_chat { // of a tokenizer
    char *source;        // Jinja; NULL: ChatML
    char *bos, *eos;     // texts of tokens that a template may name; NULL: none
} mz_chat;
void mz_chat_free(mz_chat *chat);

// chat_template.jinja of a folder as Hugging Face publishes it, else tokenizer_config.json's; empty where there is
// none. *added (may be NULL): tokens that were added to the vocabulary, {"number": "token"}, or NULL.
mezzo_status mz_chat_read(const char *folder, mz_chat *out, json_t **added);
// tokenizer_config.json, where there is something to say; generation_config.json, where it is missing: the tokens that
// begin a text and that end an answer, if the tokenizer has them.
mezzo_status mz_chat_write(const mezzo_tokenizer *tok, const char *folder);
// {"bos_token_id": …, "eos_token_id": …}: the token that the template ends an answer with, and the tokenizer's own;
// "stop_strings" instead where the template's is no token.
mezzo_status mz_chat_generation(const mezzo_tokenizer *tok, json_t **out);
// The template that conversations were written by becomes the tokenizer's own: ChatML, where it has no template.
mezzo_status mz_chat_keep_default(mz_chat *chat);
// These write a chat into tokenizer.json and read it from there.
mezzo_status mz_chat_to_json(const mz_chat *chat, json_t *object);
mezzo_status mz_chat_from_json(const char *where, const json_t *object, mz_chat *out);

typedef struct mz_chat_tokens {
    int32_t *tokens;
    unsigned char *counts; // per token: of an answer, which the loss counts as a target
    size_t n, cap_tokens, cap_counts;
} mz_chat_tokens;
void mz_chat_tokens_free(mz_chat_tokens *t);
mezzo_status mz_chat_tokens_add(mz_chat_tokens *t, const mezzo_tokenizer *tok, const char *text, size_t n,
                                mz_place place, bool counts);
mezzo_status mz_chat_end_token(mz_chat_tokens *t,
                               const mezzo_tokenizer *tok); // after a completion or a document, where there is one
bool mz_chat_has_end(const mezzo_tokenizer *tok);           // whether there is one
int32_t mz_chat_end_id(const mezzo_tokenizer *tok);         // or -1

// Encodes the tokens of [{"role": …, "content": …}], appended. An answer is what the template writes after its prompt
// for one: the assistant's content, and what ends it. A marker that the template writes, <|name|> or a special token of
// the vocabulary, is a piece of its own, and that token where there is one; no message can make one. `prompt`: with the
// beginning of the next answer. Errors name `where`: as mz_template_render; FORMAT: a message of another form; INVALID:
// an answer that the template writes otherwise once others follow it.
mezzo_status mz_chat_encode(const mezzo_tokenizer *tok, const char *where, const json_t *messages, bool prompt,
                            mz_chat_tokens *out);
// The text that ends an answer, allocated, "" where the template has none.
mezzo_status mz_chat_find_end(const mezzo_tokenizer *tok, char **end);

#endif
