// Writes tokenizer.json of the `tokenizers` library, for every kind of tokenizer. "mezzo" within its model, which the
// library ignores, has the chat template and, for Mezzo's own kinds, their contents.
#include "data/alphabet.h"
#include "data/tokenizer_json.h"
#include "io/json.h"
#include "io/quote.h"

static mezzo_status fail_memory(void) {
    return mz_fail(MEZZO_ERR_MEMORY, "out of memory while making a tokenizer's JSON");
}

json_t *mz_json_byte_level(bool regex) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex",
                     (int)regex);
}

json_t *mz_json_frame(json_t *added, json_t *pre_tokenizer, json_t *decoder) {
    return json_pack("{s:s, s:n, s:n, s:o, s:n, s:o?, s:n, s:o, s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b}}", "version",
                     "1.0", "truncation", "padding", "added_tokens", added, "normalizer", "pre_tokenizer",
                     pre_tokenizer, "post_processor", "decoder", decoder, "model", "type", "BPE", "dropout",
                     "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                     "ignore_merges", 0);
}

json_t *mz_json_special(const char *text, size_t n, int32_t id) {
    return json_pack("{s:i, s:s%, s:b, s:b, s:b, s:b, s:b}", "id", (int)id, "content", text, n, "single_word", 0,
                     "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
}

mezzo_status mz_json_write(const mezzo_tokenizer *tok, json_t *frame, json_t *vocab, json_t *merges, json_t *mezzo,
                           json_t *object) {
    json_t *model = json_copy(json_object_get(frame, "model"));
    bool full = json_object_set_new(model, "vocab", vocab) != 0;
    full |= json_object_set_new(model, "merges", merges) != 0;
    full |= json_object_set_new(model, "mezzo", mezzo) != 0;
    mezzo_status status = full ? fail_memory() : mz_chat_to_json(&tok->chat, mezzo);
    if (status == MEZZO_OK && (json_object_update(object, frame) != 0 || json_object_del(object, "model") != 0 ||
                               json_object_set(object, "model", model) != 0)) // last, because the checksum is there
        status = fail_memory();
    json_decref(model);
    json_decref(frame);
    return status;
}

json_t *mz_json_own(const mezzo_tokenizer *tok) {
    return json_pack("{s:s, s:i}", "kind", tok->kind->name, "vocab_size", (int)tok->vocab);
}

// --- byte-pair encoding --------------------------------------------------------------------------------------------
// Returns whether a token of GPT-2's two files is special: it is a text that encoding never makes.
static bool is_special(const mz_bpe_tokenizer *tok, int32_t token) {
    size_t n;
    const char *bytes = mz_bpe_bytes(&tok->bpe, token, &n);
    return tok->frame == NULL && !(tok->bpe.made[token] & MZ_BPE_MADE) && mz_valid_until(bytes, 0, n) == n &&
           memchr(bytes, 0, n) == NULL;
}

static void add_token_text(const mz_bpe_tokenizer *tok, int32_t token, mz_text *out) {
    size_t n;
    const char *bytes = mz_bpe_bytes(&tok->bpe, token, &n);
    out->len = 0;
    if (tok->bpe.characters || (tok->bpe.made[token] & MZ_BPE_PLAIN) || is_special(tok, token))
        mz_text_add(out, bytes, n);
    else
        mz_bytes_to_letters(bytes, n, out);
}

static mezzo_status write_vocab(const mz_bpe_tokenizer *tok, json_t *vocab, mz_text *text) {
    for (int32_t t = 0; t < tok->bpe.vocab; t++) {
        if (tok->bpe.made[t] & MZ_BPE_ADDED)
            continue;
        add_token_text(tok, t, text);
        MEZZO_TRY(text->status);
        if (json_object_get(vocab, text->data) != NULL)
            return mz_fail(MEZZO_ERR_INVALID, "tokenizer.json cannot tell token %d, %s, from another", (int)t,
                           mz_quote(text->data).text);
        if (json_object_set_new(vocab, text->data, json_integer(t)) != 0)
            return fail_memory();
    }
    return MEZZO_OK;
}

static mezzo_status write_merges(const mz_bpe_tokenizer *tok, json_t *merges, mz_text *text) {
    for (size_t i = 0; i < tok->bpe.n_merges; i++) {
        json_t *pair = json_array();
        const int32_t parts[2] = {tok->bpe.merges[i].left, tok->bpe.merges[i].right};
        bool full = json_array_append_new(merges, pair) != 0;
        for (int k = 0; k < 2 && !full; k++) {
            add_token_text(tok, parts[k], text);
            full = text->status != MEZZO_OK || json_array_append_new(pair, json_stringn(text->data, text->len)) != 0;
        }
        if (full)
            return fail_memory();
    }
    return MEZZO_OK;
}

// Makes GPT-2's frame, for which no file was read.
static json_t *gpt2_frame(const mz_bpe_tokenizer *tok) {
    json_t *added = json_array();
    for (int32_t t = 0; t < tok->bpe.vocab; t++) {
        size_t n;
        const char *text = mz_bpe_bytes(&tok->bpe, t, &n);
        if (is_special(tok, t) && json_array_append_new(added, mz_json_special(text, n, t)) != 0) {
            json_decref(added);
            return NULL;
        }
    }
    return mz_json_frame(added, mz_json_byte_level(true), mz_json_byte_level(true));
}

mezzo_status mz_bpe_write_published(const mz_bpe_tokenizer *tok, json_t *object) {
    json_t *frame = tok->frame != NULL ? json_incref(tok->frame) : gpt2_frame(tok);
    json_t *vocab = json_object(), *merges = json_array();
    mz_text text = {0};
    mezzo_status status = write_vocab(tok, vocab, &text);
    if (status == MEZZO_OK)
        status = write_merges(tok, merges, &text);
    mz_text_free(&text);
    if (status == MEZZO_OK)
        return mz_json_write(&tok->base, frame, vocab, merges, mz_json_own(&tok->base), object);
    json_decref(frame);
    json_decref(vocab);
    json_decref(merges);
    return status;
}
