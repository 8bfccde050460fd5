// Implements the tokenizer whose tokens are bytes.
#include "data/alphabet.h"
#include "data/tokenizer_json.h"
#include "io/json.h"

typedef struct byte_tokenizer {
    mezzo_tokenizer base;
    char bytes[256];
} byte_tokenizer;

mezzo_status mezzo_tokenizer_create_byte(mezzo_tokenizer **out) {
    MZ_REQUIRE(out);
    *out = NULL;
    byte_tokenizer *tok;
    MEZZO_TRY(MZ_NEW(tok, 1));
    tok->base = (mezzo_tokenizer){.kind = &mz_tokenizer_byte, .vocab = 256, .max_bytes = 1};
    for (int i = 0; i < 256; i++)
        tok->bytes[i] = (char)i;
    *out = &tok->base;
    return MEZZO_OK;
}

static void byte_destroy(mezzo_tokenizer *tok) {
    mz_free(tok);
}

static mezzo_status byte_encode(const mezzo_tokenizer *tok, const char *text, size_t n, uint64_t base, mz_place place,
                                mz_token_list *out) {
    (void)tok, (void)base, (void)place;
    MEZZO_TRY(MZ_RESERVE(out->tokens, out->cap, out->n + n));
    for (size_t i = 0; i < n; i++)
        out->tokens[out->n++] = (unsigned char)text[i];
    return MEZZO_OK;
}

static const char *byte_bytes(const mezzo_tokenizer *tok, int32_t token, size_t *n) {
    *n = 1;
    return ((const byte_tokenizer *)tok)->bytes + token;
}

static mezzo_status byte_save(const mezzo_tokenizer *tok, json_t *object) {
    json_t *vocab = json_object();
    mz_text letter = {0};
    bool full = vocab == NULL;
    for (int i = 0; i < 256 && !full; i++) {
        const char byte = (char)i;
        letter.len = 0;
        mz_bytes_to_letters(&byte, 1, &letter);
        full = letter.status != MEZZO_OK || json_object_set_new(vocab, letter.data, json_integer(i)) != 0;
    }
    mz_text_free(&letter);
    if (full) {
        json_decref(vocab);
        return mz_fail(MEZZO_ERR_MEMORY, "out of memory while making a tokenizer's JSON");
    }
    json_t *frame = mz_json_frame(json_array(), mz_json_byte_level(false), mz_json_byte_level(false));
    return mz_json_write(tok, frame, vocab, json_array(), mz_json_own(tok), object);
}

static mezzo_status byte_load(const char *where, const json_t *object, mezzo_tokenizer **out) {
    int64_t vocab;
    MEZZO_TRY(mz_json_get_int(where, object, "vocab_size", 256, 256, &vocab));
    return mezzo_tokenizer_create_byte(out);
}

static bool byte_same(const mezzo_tokenizer *a, const mezzo_tokenizer *b) {
    return a->kind == b->kind;
}

const mz_tokenizer_kind mz_tokenizer_byte = {"byte",    byte_destroy,     byte_encode, byte_bytes, byte_save,
                                             byte_load, mz_cut_character, byte_same,   NULL};
