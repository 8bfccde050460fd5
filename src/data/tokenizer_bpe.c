// GPT-2's byte-pair encoding: its own vocabulary, which the library carries, or a user's.
#include "data/bpe.h"
#include "data/split.h"
#include "data/tokenizer.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"

extern const unsigned char mz_gpt2_merges[]; // data/tokenizers/gpt2/merges.txt
extern const size_t mz_gpt2_merges_size;

#define GPT2_VOCAB 50257
#define MAX_FILE   ((size_t)256 << 20)

typedef struct bpe_tokenizer {
    mezzo_tokenizer base;
    mz_bpe bpe;
    mz_splitter *splitter;
} bpe_tokenizer;

static void bpe_destroy(mezzo_tokenizer *base) {
    bpe_tokenizer *tok = (bpe_tokenizer *)base;
    mz_bpe_free(&tok->bpe);
    mz_splitter_free(tok->splitter);
    mz_free(tok);
}

// Takes over the contents of *bpe, also where it fails.
static mezzo_status create(mz_bpe *bpe, const mz_tokenizer_kind *kind, mezzo_tokenizer **out) {
    bpe_tokenizer *tok = mz_alloc(1, sizeof *tok);
    if (!tok) {
        mz_bpe_free(bpe);
        return MEZZO_ERR_MEMORY;
    }
    tok->base = (mezzo_tokenizer){.kind = kind, .vocab = bpe->vocab, .max_bytes = bpe->max_bytes};
    tok->bpe = *bpe;
    *bpe = (mz_bpe){0};
    mezzo_status status = mz_splitter_create(&tok->splitter);
    if (status != MEZZO_OK) {
        bpe_destroy(&tok->base);
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
    mz_free(vocab_bytes);
    mz_free(merges_bytes);
    return status;
}

static mezzo_status encode_words(const bpe_tokenizer *tok, mz_split *split, mz_bpe_scratch *scratch, int32_t *tokens,
                                 size_t *count) {
    for (;;) {
        const char *word;
        size_t n, made = 0;
        MEZZO_TRY(mz_split_next(split, &word, &n));
        if (n == 0)
            return MEZZO_OK;
        MEZZO_TRY(mz_bpe_encode_word(&tok->bpe, scratch, word, n, tokens + *count, &made));
        *count += made;
    }
}

static mezzo_status bpe_encode(const mezzo_tokenizer *base, const char *text, size_t n, uint64_t offset,
                               int32_t *tokens, size_t *count) {
    (void)offset; // any bytes can be encoded
    const bpe_tokenizer *tok = (const bpe_tokenizer *)base;
    mz_bpe_scratch scratch = {0};
    mz_split split;
    MEZZO_TRY(mz_split_begin(tok->splitter, text, n, &split));
    mezzo_status status = encode_words(tok, &split, &scratch, tokens, count);
    mz_bpe_scratch_free(&scratch);
    mz_split_end(&split);
    return status;
}

static const char *bpe_bytes(const mezzo_tokenizer *base, int32_t token, size_t *n) {
    return mz_bpe_bytes(&((const bpe_tokenizer *)base)->bpe, token, n);
}

static int32_t bpe_special(const mezzo_tokenizer *base, const char *text, size_t n) {
    const mz_bpe *bpe = &((const bpe_tokenizer *)base)->bpe;
    const int32_t token = mz_bpe_find(bpe, text, n);
    return token >= 0 && (bpe->made[token] & MZ_BPE_MADE) == 0 ? token : -1;
}

static mezzo_status bpe_save(const mezzo_tokenizer *base, json_t *object) {
    return mz_bpe_to_json(&((const bpe_tokenizer *)base)->bpe, object);
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

// --- GPT-2's two files ---------------------------------------------------------------------------------------------
static mezzo_status save_vocab(const json_t *texts, const char *folder) {
    mezzo_status status = MEZZO_OK;
    char *path = mz_format("%s/vocab.json", folder);
    json_t *vocab = mz_json_new();
    for (size_t i = 0; i < json_array_size(texts) && status == MEZZO_OK; i++)
        if (json_object_set_new(vocab, json_string_value(json_array_get(texts, i)), json_integer((json_int_t)i)) != 0)
            status = mz_fail(MEZZO_ERR_MEMORY, "out of memory while making vocab.json");
    if (status == MEZZO_OK)
        status = path ? mz_json_save(path, vocab) : MEZZO_ERR_MEMORY;
    json_decref(vocab);
    mz_free(path);
    return status;
}

static mezzo_status save_merges(const json_t *lines, const char *folder) {
    mz_text text = {0};
    char *path = mz_format("%s/merges.txt", folder);
    mz_text_addf(&text, "#version: 0.2\n");
    for (size_t i = 0; i < json_array_size(lines); i++)
        mz_text_addf(&text, "%s\n", json_string_value(json_array_get(lines, i)));
    mezzo_status status = path ? text.status : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK)
        status = mz_file_write_atomic(path, text.data, text.len);
    mz_text_free(&text);
    mz_free(path);
    return status;
}

mezzo_status mezzo_tokenizer_save_bpe(const mezzo_tokenizer *tok, const char *folder) {
    MZ_REQUIRE(tok, folder);
    if (tok->kind != &mz_tokenizer_bpe && tok->kind != &mz_tokenizer_gpt2)
        return mz_fail(MEZZO_ERR_INVALID, "a %s tokenizer has no merges to write to vocab.json and merges.txt",
                       tok->kind->name);
    json_t *object = json_object();
    mezzo_status status = object ? mz_bpe_to_json(&((const bpe_tokenizer *)tok)->bpe, object)
                                 : mz_fail(MEZZO_ERR_MEMORY, "out of memory while making vocab.json");
    if (status == MEZZO_OK)
        status = save_vocab(json_object_get(object, "vocab"), folder);
    if (status == MEZZO_OK)
        status = save_merges(json_object_get(object, "merges"), folder);
    json_decref(object);
    return status;
}

// The library carries the vocabulary: its name is all there is to keep.
static mezzo_status gpt2_save(const mezzo_tokenizer *base, json_t *object) {
    (void)base, (void)object;
    return MEZZO_OK;
}

static mezzo_status gpt2_load(const char *where, const json_t *object, mezzo_tokenizer **out) {
    int64_t vocab;
    *out = NULL;
    MEZZO_TRY(mz_json_get_int(where, object, "vocab_size", GPT2_VOCAB, GPT2_VOCAB, &vocab));
    return mezzo_tokenizer_create_gpt2(out);
}

static bool bpe_same(const mezzo_tokenizer *a, const mezzo_tokenizer *b) {
    return mz_bpe_same(&((const bpe_tokenizer *)a)->bpe, &((const bpe_tokenizer *)b)->bpe);
}

const mz_tokenizer_kind mz_tokenizer_bpe = {"bpe",    bpe_destroy,  bpe_encode, bpe_bytes,  bpe_save,
                                            bpe_load, mz_split_cut, bpe_same,   bpe_special};
const mz_tokenizer_kind mz_tokenizer_gpt2 = {"gpt2",    bpe_destroy,  bpe_encode, bpe_bytes,  gpt2_save,
                                             gpt2_load, mz_split_cut, bpe_same,   bpe_special};
