// Implements byte-pair encoding with GPT-2's vocabulary, which the library has built in, or a user's.
#include "data/tokenizer_bpe.h"

#include "data/alphabet.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"

extern const unsigned char mz_gpt2_merges[]; // data/tokenizers/gpt2/merges.txt
extern const size_t mz_gpt2_merges_size;

#define GPT2_VOCAB 50257
#define MAX_FILE   ((size_t)256 << 20)

void mz_bpe_tokenizer_destroy(mezzo_tokenizer *base) {
    mz_bpe_tokenizer *tok = (mz_bpe_tokenizer *)base;
    mz_bpe_free(&tok->bpe);
    mz_added_free(&tok->added[0]);
    mz_added_free(&tok->added[1]);
    mz_normals_free(&tok->normals);
    mz_steps_free(&tok->steps);
    MZ_FREE(tok->shown, tok->shown_ends);
    json_decref(tok->frame);
    mz_free(tok);
}

// Makes a tokenizer, which takes over the contents of *bpe, after an error, too.
static mezzo_status create(mz_bpe *bpe, const mz_tokenizer_kind *kind, mezzo_tokenizer **out) {
    mz_bpe_tokenizer *tok = mz_alloc(1, sizeof *tok);
    if (!tok) {
        mz_bpe_free(bpe);
        return MEZZO_ERR_MEMORY;
    }
    tok->base = (mezzo_tokenizer){.kind = kind, .vocab = bpe->vocab, .max_bytes = bpe->max_bytes};
    tok->bpe = *bpe;
    tok->cuts = true;
    *bpe = (mz_bpe){0};
    mezzo_status status = mz_steps_add_gpt2("GPT-2's split pattern", &tok->steps);
    if (status != MEZZO_OK) {
        mz_bpe_tokenizer_destroy(&tok->base);
        return mz_trace(status, __FILE__, __LINE__, __func__);
    }
    *out = &tok->base;
    return MEZZO_OK;
}

mezzo_status mezzo_tokenizer_create_gpt2(mezzo_tokenizer **out) {
    MZ_REQUIRE(out);
    const mz_bpe_text merges = {"GPT-2's merges", (const char *)mz_gpt2_merges, mz_gpt2_merges_size, NULL};
    mz_bpe bpe;
    *out = NULL;
    MEZZO_TRY(mz_bpe_read(NULL, &merges, &bpe));
    return create(&bpe, &mz_tokenizer_gpt2, out);
}

mezzo_status mezzo_tokenizer_create_bpe(const char *vocab_path, const char *merges_path, mezzo_tokenizer **out) {
    MZ_REQUIRE(merges_path, out);
    return mz_tokenizer_create_bpe(vocab_path, merges_path, NULL, out);
}

mezzo_status mz_tokenizer_create_bpe(const char *vocab_path, const char *merges_path, const json_t *added,
                                     mezzo_tokenizer **out) {
    mezzo_status status = MEZZO_OK;
    mz_bpe bpe = {0};
    mz_bpe_text vocab = {.where = vocab_path, .added = added}, merges = {.where = merges_path};
    char *vocab_bytes = NULL, *merges_bytes = NULL;
    *out = NULL;
    MEZZO_TRY_GOTO(status, mz_file_read_text(merges_path, MAX_FILE, &merges_bytes, &merges.n));
    merges.text = merges_bytes;
    if (vocab_path) {
        MEZZO_TRY_GOTO(status, mz_file_read_text(vocab_path, MAX_FILE, &vocab_bytes, &vocab.n));
        vocab.text = vocab_bytes;
    }
    MEZZO_TRY_GOTO(status, mz_bpe_read(vocab_path ? &vocab : NULL, &merges, &bpe));
    status = create(&bpe, &mz_tokenizer_bpe, out);
fail:
    MZ_FREE(vocab_bytes, merges_bytes);
    return status;
}

// --- encoding ------------------------------------------------------------------------------------------------------
typedef struct encoder {
    const mz_bpe_tokenizer *tok;
    mz_token_list *out;
    mz_bpe_scratch scratch;
    mz_word_room words;
    mz_normal_room normal;
    char *bytes; // of a word that is written in letters
    size_t cap_bytes;
    void *match; // to find added tokens
    mz_added_hits hits[2];
} encoder;

static void end_encoder(encoder *e) {
    mz_bpe_scratch_free(&e->scratch);
    mz_word_room_free(&e->words);
    mz_normal_room_free(&e->normal);
    mz_match_room_free(e->match);
    MZ_FREE(e->bytes, e->hits[0].items, e->hits[1].items);
}

static mezzo_status add_bytes(encoder *e, const char *bytes, size_t n) {
    size_t made;
    if (e->out->cap - e->out->n < n)
        MEZZO_TRY(MZ_RESERVE(e->out->tokens, e->out->cap, e->out->n + n));
    MEZZO_TRY(mz_bpe_encode_word(&e->tok->bpe, &e->scratch, bytes, n, e->out->tokens + e->out->n, &made));
    e->out->n += made;
    return MEZZO_OK;
}

static mezzo_status add_word(void *user, const char *word, size_t n) {
    encoder *e = user;
    if (!e->tok->letters)
        return add_bytes(e, word, n);
    MEZZO_TRY(MZ_RESERVE(e->bytes, e->cap_bytes, n));
    return add_bytes(e, e->bytes, mz_letters_to_bytes(word, n, e->bytes));
}

static mezzo_status add_text(encoder *e, const char *text, size_t n, mz_place place);

// Encodes the text between tokens that were added to the vocabulary; `stage` 0 looks for those that are found before
// the text is normalized.
static mezzo_status add_stage(encoder *e, int stage, const char *text, size_t n, mz_place place) {
    const mz_added *added = &e->tok->added[stage];
    mz_added_walk w;
    if (added->n == 0)
        return stage == 0 ? add_text(e, text, n, place)
                          : mz_words(&e->tok->steps, &e->words, text, n, place, add_word, e);
    if (e->match == NULL)
        MEZZO_TRY(mz_match_room(&e->match));
    MEZZO_TRY(mz_added_begin(added, &e->hits[stage], e->match, text, n, &w));
    for (;;) {
        size_t from, to;
        int32_t token;
        MEZZO_TRY(mz_added_next(&w, &from, &to, &token));
        if (token >= 0) {
            MEZZO_TRY(MZ_RESERVE(e->out->tokens, e->out->cap, e->out->n + 1));
            e->out->tokens[e->out->n++] = token;
            place = MZ_PLACE_FOLLOWS;
            continue;
        }
        if (from == to)
            return MEZZO_OK;
        MEZZO_TRY(stage == 0 ? add_text(e, text + from, to - from, place)
                             : mz_words(&e->tok->steps, &e->words, text + from, to - from, place, add_word, e));
    }
}

static mezzo_status add_text(encoder *e, const char *text, size_t n, mz_place place) {
    const char *normal;
    size_t normal_n;
    MEZZO_TRY(mz_normalize(&e->tok->normals, &e->normal, text, n, place, &normal, &normal_n));
    return add_stage(e, 1, normal, normal_n, place);
}

// Encodes a text. Each longest run of bytes that are not UTF-8 is a word; the text after it continues the text before.
static mezzo_status bpe_encode(const mezzo_tokenizer *base, const char *text, size_t n, uint64_t offset, mz_place place,
                               mz_token_list *out) {
    encoder e = {.tok = (const mz_bpe_tokenizer *)base, .out = out};
    mezzo_status status = MZ_RESERVE(out->tokens, out->cap, out->n + n);
    size_t at = 0, end = 0;
    for (; at < n; at = end) {
        end = mz_valid_until(text, at, n);
        if (end > at) {
            status = add_stage(&e, 0, text + at, end - at, place);
        } else {
            end = mz_invalid_until(text, at, n);
            status = add_bytes(&e, text + at, end - at);
        }
        if (status != MEZZO_OK)
            break;
        place = MZ_PLACE_CONTINUES;
    }
    end_encoder(&e);
    return status == MEZZO_ERR_INVALID ? mz_context(status, "byte %llu and on", (unsigned long long)(offset + at))
                                       : status;
}

static const char *bpe_bytes(const mezzo_tokenizer *base, int32_t token, size_t *n) {
    const mz_bpe_tokenizer *tok = (const mz_bpe_tokenizer *)base;
    if (tok->shown == NULL)
        return mz_bpe_bytes(&tok->bpe, token, n);
    const size_t from = token > 0 ? tok->shown_ends[token - 1] : 0;
    *n = tok->shown_ends[token] - from;
    return tok->shown + from;
}

static int32_t bpe_special(const mezzo_tokenizer *base, const char *text, size_t n) {
    const mz_bpe_tokenizer *tok = (const mz_bpe_tokenizer *)base;
    for (int i = 0; i < 2; i++) {
        const int32_t added = mz_added_find(&tok->added[i], text, n);
        if (added >= 0)
            return added;
    }
    const int32_t token = mz_bpe_find(&tok->bpe, text, n);
    return tok->frame == NULL && token >= 0 && (tok->bpe.made[token] & MZ_BPE_MADE) == 0 ? token : -1;
}

static size_t bpe_cut(const mezzo_tokenizer *base, const char *text, size_t from, size_t to) {
    const mz_bpe_tokenizer *tok = (const mz_bpe_tokenizer *)base;
    return tok->cuts ? mz_word_cut(text, from, to, tok->frame == NULL) : to;
}

const mz_bpe_tokenizer *mz_bpe_published(const mezzo_tokenizer *base) {
    const bool bpe = base->kind == &mz_tokenizer_bpe || base->kind == &mz_tokenizer_gpt2;
    return bpe && ((const mz_bpe_tokenizer *)base)->frame != NULL ? (const mz_bpe_tokenizer *)base : NULL;
}

static mezzo_status bpe_save(const mezzo_tokenizer *base, json_t *object) {
    return mz_bpe_write_published((const mz_bpe_tokenizer *)base, object);
}

static mezzo_status bpe_load(const char *where, const json_t *object, mezzo_tokenizer **out) {
    int64_t vocab = 0;
    mz_bpe bpe;
    *out = NULL;
    MEZZO_TRY(mz_json_get_int(where, object, "vocab_size", 256, MZ_BPE_MAX_VOCAB, &vocab));
    MEZZO_TRY(mz_bpe_from_json(where, object, &bpe));
    if (bpe.vocab == vocab)
        return create(&bpe, &mz_tokenizer_bpe, out);
    int32_t got = bpe.vocab;
    mz_bpe_free(&bpe);
    return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'vocab_size' is %lld, but 'vocab' has %d", where, (long long)vocab,
                   (int)got);
}

// Returns whether only GPT-2's pattern turns a text into words.
static bool splits_as_gpt2(const mz_bpe_tokenizer *tok) {
    const mz_step *s = &tok->steps.items[0];
    bool plain = tok->normals.n == 0 && tok->steps.n == 1 && s->kind == MZ_STEP_SPLIT && s->gpt2 && !tok->letters;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < tok->added[k].n; i++)
            plain &= tok->added[k].items[i].special;
    return plain;
}

// --- GPT-2's two files ---------------------------------------------------------------------------------------------
static mezzo_status save_vocab(const json_t *texts, const char *folder) {
    mezzo_status status = MEZZO_OK;
    json_t *vocab = mz_json_new();
    for (size_t i = 0; i < json_array_size(texts) && status == MEZZO_OK; i++)
        if (json_object_set_new(vocab, json_string_value(json_array_get(texts, i)), json_integer((json_int_t)i)) != 0)
            status = mz_fail(MEZZO_ERR_MEMORY, "out of memory while making vocab.json");
    if (status == MEZZO_OK)
        status = mz_json_save(mz_path_of("%s/vocab.json", folder).text, vocab);
    json_decref(vocab);
    return status;
}

static mezzo_status save_merges(const json_t *lines, const char *folder) {
    mz_text text = {0};
    mz_text_addf(&text, "#version: 0.2\n");
    for (size_t i = 0; i < json_array_size(lines); i++)
        mz_text_addf(&text, "%s\n", json_string_value(json_array_get(lines, i)));
    return mz_text_save(&text, mz_path_of("%s/merges.txt", folder).text);
}

mezzo_status mezzo_tokenizer_save_bpe(const mezzo_tokenizer *tok, const char *folder) {
    MZ_REQUIRE(tok, folder);
    if (tok->kind != &mz_tokenizer_bpe && tok->kind != &mz_tokenizer_gpt2)
        return mz_fail(MEZZO_ERR_INVALID, "a %s tokenizer has no merges to write to vocab.json and merges.txt",
                       tok->kind->name);
    if (!splits_as_gpt2((const mz_bpe_tokenizer *)tok))
        return mz_fail(MEZZO_ERR_INVALID,
                       "vocab.json and merges.txt cannot say how a tokenizer.json of Hugging Face's form "
                       "splits: save that");
    MZ_SCOPED(mz_json_free_at) json_t *object = json_object();
    MEZZO_TRY(object ? mz_bpe_to_json(&((const mz_bpe_tokenizer *)tok)->bpe, object)
                     : mz_fail(MEZZO_ERR_MEMORY, "out of memory while making vocab.json"));
    MEZZO_TRY(save_vocab(json_object_get(object, "vocab"), folder));
    return save_merges(json_object_get(object, "merges"), folder);
}

static mezzo_status gpt2_load(const char *where, const json_t *object, mezzo_tokenizer **out) {
    int64_t vocab;
    *out = NULL;
    MEZZO_TRY(mz_json_get_int(where, object, "vocab_size", GPT2_VOCAB, GPT2_VOCAB, &vocab));
    return mezzo_tokenizer_create_gpt2(out);
}

static bool same_added(const mz_added *a, const mz_added *b) {
    bool same = a->n == b->n;
    for (size_t i = 0; i < a->n && same; i++) {
        const mz_added_token *x = &a->items[i], *y = &b->items[i];
        same = x->n == y->n && memcmp(x->text, y->text, x->n) == 0 && x->token == y->token &&
               x->special == y->special && x->single_word == y->single_word && x->left == y->left &&
               x->right == y->right;
    }
    return same;
}

bool mz_tokenizer_splits_as_gpt2(const mezzo_tokenizer *tok) {
    return (tok->kind == &mz_tokenizer_bpe || tok->kind == &mz_tokenizer_gpt2) &&
           splits_as_gpt2((const mz_bpe_tokenizer *)tok);
}

// Compares a key; a missing one is the same as null.
static bool same_key(const mz_bpe_tokenizer *a, const mz_bpe_tokenizer *b, const char *key) {
    const json_t *x = json_object_get(a->frame, key), *y = json_object_get(b->frame, key);
    return x == NULL || json_is_null(x) ? y == NULL || json_is_null(y) : json_equal(x, y);
}

static bool bpe_same(const mezzo_tokenizer *x, const mezzo_tokenizer *y) {
    const mz_bpe_tokenizer *a = (const mz_bpe_tokenizer *)x, *b = (const mz_bpe_tokenizer *)y;
    if (!mz_bpe_same(&a->bpe, &b->bpe))
        return false;
    if (splits_as_gpt2(a) && splits_as_gpt2(b))
        return true;
    return a->frame != NULL && b->frame != NULL && same_added(&a->added[0], &b->added[0]) &&
           same_added(&a->added[1], &b->added[1]) && same_key(a, b, "normalizer") && same_key(a, b, "pre_tokenizer");
}

const mz_tokenizer_kind mz_tokenizer_bpe = {
    "bpe", mz_bpe_tokenizer_destroy, bpe_encode, bpe_bytes, bpe_save, bpe_load, bpe_cut, bpe_same, bpe_special};
const mz_tokenizer_kind mz_tokenizer_gpt2 = {
    "gpt2", mz_bpe_tokenizer_destroy, bpe_encode, bpe_bytes, bpe_save, gpt2_load, bpe_cut, bpe_same, bpe_special};
