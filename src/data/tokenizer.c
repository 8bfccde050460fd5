#include "data/tokenizer_bpe.h"
#include "data/tokenizer_sentencepiece.h"

#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"

// The largest file: a character tokenizer of all of Unicode, with every character as a \uXXXX\uXXXX pair, is below 16
// MiB, and a vocabulary of a million tokens with its merges is below this limit.
#define MAX_FILE ((size_t)64 << 20)
#define FORMAT   "mezzo-tokenizer"
#define VERSION  2 // version 2 has a checksum

static const mz_tokenizer_kind *const kinds[] = {&mz_tokenizer_byte, &mz_tokenizer_char, &mz_tokenizer_gpt2,
                                                 &mz_tokenizer_bpe};

static mezzo_status load_kind(const mz_tokenizer_kind *kind, const char *where, const json_t *object,
                              mezzo_tokenizer **out) {
    MEZZO_TRY(kind->load(where, object, out));
    return mz_chat_from_json(where, object, &(*out)->chat);
}

// Returns whether the object has the form of the `tokenizers` library.
static bool is_published(const json_t *object) {
    return json_object_get(object, "format") == NULL && json_is_object(json_object_get(object, "model"));
}

static const mz_tokenizer_kind *find_kind(const char *name) {
    for (size_t i = 0; i < MZ_COUNT(kinds); i++)
        if (strcmp(kinds[i]->name, name) == 0)
            return kinds[i];
    return NULL;
}

// Loads a published form. In a file that Mezzo wrote, "mezzo" says which kind it is; a BPE file has all data in the
// published form.
static mezzo_status load_published(const char *where, const json_t *object, mezzo_tokenizer **out) {
    const json_t *own = json_object_get(json_object_get(object, "model"), "mezzo");
    const char *own_kind = json_string_value(json_object_get(own, "kind"));
    const mz_tokenizer_kind *kind = find_kind(own_kind != NULL ? own_kind : "bpe");
    mz_chat chat = {0};
    if (kind == NULL)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: tokenizer kind %s is not one of byte, char, gpt2, bpe", where,
                       mz_quote(own_kind).text);
    if (kind != &mz_tokenizer_bpe)
        return load_kind(kind, where, own, out);
    MEZZO_TRY(mz_bpe_read_published(where, object, out));
    mezzo_status status = own != NULL ? mz_chat_from_json(where, own, &chat) : MEZZO_OK;
    (*out)->chat = chat;
    return status;
}

// Reads the template beside a published file, unless the file itself has one.
static mezzo_status read_chat(const char *path, const json_t *object, mezzo_tokenizer *tok) {
    if (!is_published(object) || json_object_get(json_object_get(object, "model"), "mezzo") != NULL)
        return MEZZO_OK;
    return mz_chat_read(mz_path_folder(path).text, &tok->chat, NULL);
}

static mezzo_status read_object(const char *where, const json_t *object, bool sealed, mezzo_tokenizer **out) {
    const char *format = NULL, *kind = NULL;
    int64_t version = 0;
    if (!json_is_object(object))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: not a tokenizer: its JSON is not an object", where);
    if (is_published(object))
        return load_published(where, object, out);
    MEZZO_TRY(mz_json_get_string(where, object, "format", &format));
    if (strcmp(format, FORMAT) != 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: format is %s, not '" FORMAT "'", where, mz_quote(format).text);
    MEZZO_TRY(mz_json_get_int(where, object, "version", 1, VERSION, &version));
    if (version >= 2 && !sealed)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: its checksum is missing: the file was changed", where);
    MEZZO_TRY(mz_json_get_string(where, object, "kind", &kind));
    if (find_kind(kind) != NULL)
        return load_kind(find_kind(kind), where, object, out);
    return mz_fail(MEZZO_ERR_FORMAT, "%s: tokenizer kind %s is not one of byte, char, gpt2, bpe", where,
                   mz_quote(kind).text);
}

// Makes a tokenizer. An object made in memory lacks members where memory ran out.
mezzo_status mz_tokenizer_from_json(const char *where, const json_t *object, bool sealed, mezzo_tokenizer **out) {
    *out = NULL;
    mezzo_status status = read_object(where, object, sealed, out);
    if (mz_json_ran_out())
        status = mz_fail(MEZZO_ERR_MEMORY, "%s: out of memory for a tokenizer's JSON", where);
    if (status != MEZZO_OK) {
        mezzo_tokenizer_free(*out);
        *out = NULL;
    }
    return status;
}

// Finds the first of these names that the folder has; n: it has none.
static size_t find_name(const char *folder, const char *const *names, size_t n, mz_path *path) {
    for (size_t i = 0; i < n; i++) {
        *path = mz_path_of("%s/%s", folder, names[i]);
        if (mz_path_exists(path->text))
            return i;
    }
    return n;
}

// Loads GPT-2's two files, tokens that were added to them, and the chat template.
static mezzo_status load_bpe(const char *folder, const char *vocab, const char *merges, mezzo_tokenizer **out) {
    json_t *added = NULL;
    mz_chat chat;
    MEZZO_TRY(mz_chat_read(folder, &chat, &added));
    mezzo_status status = mz_tokenizer_create_bpe(vocab, merges, added, out);
    json_decref(added);
    if (status == MEZZO_OK)
        (*out)->chat = chat;
    else
        mz_chat_free(&chat);
    return status;
}

enum { JSON_FILE, MERGES_FILE, OPENAI_MERGES_FILE, FILES };
// The first of these files in a folder is its tokenizer; the last ones are sentencepiece's.
static const char *const files[] = {"tokenizer.json",  "merges.txt",   "vocab.bpe",
                                    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"};

bool mz_tokenizer_in_folder(const char *folder) {
    return find_name(folder, files, MZ_COUNT(files), &(mz_path){""}) < MZ_COUNT(files);
}

static mezzo_status load_folder(const char *folder, mezzo_tokenizer **out) {
    static const char *const vocabs[] = {"vocab.json", "encoder.json"};
    mz_path path, vocab;
    const size_t which = find_name(folder, files, MZ_COUNT(files), &path);
    if (which == MZ_COUNT(files))
        return mz_fail(MEZZO_ERR_INVALID, "folder %s has no tokenizer: neither tokenizer.json nor merges.txt",
                       mz_quote(folder).text);
    if (which == JSON_FILE || which >= FILES)
        return mezzo_tokenizer_load(path.text, out);
    const bool has = find_name(folder, vocabs, MZ_COUNT(vocabs), &vocab) < MZ_COUNT(vocabs);
    return load_bpe(folder, has ? vocab.text : NULL, path.text, out);
}

mezzo_status mz_tokenizer_named(const char *name, mezzo_tokenizer **out) {
    if (strcmp(name, "byte") == 0)
        return mezzo_tokenizer_create_byte(out);
    if (strcmp(name, "gpt2") == 0)
        return mezzo_tokenizer_create_gpt2(out);
    if (!mz_path_exists(name) && strpbrk(name, "/.") == NULL) { // it is a name, not a path
        static const char *const known[] = {"auto", "char", "byte", "gpt2"};
        const char *near = mz_nearest(name, known, MZ_COUNT(known));
        *out = NULL;
        return mz_fail(
            MEZZO_ERR_INVALID,
            "there is no tokenizer %s%s%s; use auto, char, byte, gpt2, a folder with tokenizer.json, or with "
            "vocab.json and merges.txt, or a tokenizer's file",
            mz_quote(name).text, near != NULL ? "; did you mean " : "", near != NULL ? near : "");
    }
    return mezzo_tokenizer_load(name, out);
}

size_t mz_cut_character(const mezzo_tokenizer *tok, const char *text, size_t from, size_t to) {
    (void)tok;
    size_t at = to;
    while (at > from + 1 && to - at < 3 && ((unsigned char)text[at] & 0xC0) == 0x80)
        at--;
    return at;
}

static mezzo_status read_sentencepiece(const char *path, json_t **out) {
    MZ_SCOPED(mz_free_at) char *bytes = NULL;
    size_t n;
    MEZZO_TRY(mz_file_read(path, MAX_FILE, &bytes, &n));
    return mz_sentencepiece_read(path, bytes, n, out);
}

mezzo_status mezzo_tokenizer_load(const char *path, mezzo_tokenizer **out) {
    MZ_REQUIRE(path, out);
    *out = NULL;
    if (mz_path_is_dir(path))
        return load_folder(path, out);
    if (mz_ends_with(path, ".txt") || mz_ends_with(path, ".bpe"))
        return mezzo_tokenizer_create_bpe(NULL, path, out);
    json_t *object;
    bool sealed = true;
    if (mz_ends_with(path, ".model"))
        MEZZO_TRY(read_sentencepiece(path, &object));
    else
        MEZZO_TRY(mz_json_load_sealed(path, MAX_FILE, &object, &sealed));
    mezzo_status status = mz_tokenizer_from_json(path, object, sealed, out);
    if (status == MEZZO_OK)
        status = read_chat(path, object, *out);
    if (status != MEZZO_OK) {
        mezzo_tokenizer_free(*out);
        *out = NULL;
    }
    json_decref(object);
    return status;
}

mezzo_status mezzo_tokenizer_save(const mezzo_tokenizer *tok, const char *path) {
    MZ_REQUIRE(tok, path);
    MZ_SCOPED(mz_json_free_at) json_t *object = mz_json_new();
    if (!object)
        return mz_fail(MEZZO_ERR_MEMORY, "cannot write %s: out of memory while making JSON", mz_quote(path).text);
    MEZZO_TRY(tok->kind->save(tok, object));
    return mz_json_save_sealed_within(path, object, NULL);
}

void mezzo_tokenizer_free(mezzo_tokenizer *tok) {
    if (!mz_free_once(tok, "tokenizer"))
        return;
    mz_chat_free(&tok->chat);
    tok->kind->destroy(tok);
}

const char *mezzo_tokenizer_kind(const mezzo_tokenizer *tok) {
    if (tok == NULL)
        return NULL;
    return tok->kind->name;
}

int32_t mezzo_tokenizer_vocab(const mezzo_tokenizer *tok) {
    if (tok == NULL)
        return 0;
    return tok->vocab;
}

size_t mezzo_tokenizer_max_bytes(const mezzo_tokenizer *tok) {
    if (tok == NULL)
        return 0;
    return tok->max_bytes;
}

void mz_token_list_free(mz_token_list *list) {
    mz_free(list->tokens);
    *list = (mz_token_list){0};
}

mezzo_status mz_tokenizer_encode_piece(const mezzo_tokenizer *tok, const char *text, size_t n, uint64_t base,
                                       mz_place place, mz_token_list *out) {
    return tok->kind->encode(tok, text, n, base, place, out);
}

mezzo_status mezzo_tokenizer_encode(const mezzo_tokenizer *tok, const char *text, size_t n, int32_t *tokens,
                                    size_t *count) {
    MZ_REQUIRE(tok, count);
    if (n > 0)
        MZ_REQUIRE(text);
    mz_token_list list = {0};
    mezzo_status status = n > 0 ? tok->kind->encode(tok, text, n, 0, MZ_PLACE_BEGINS, &list) : MEZZO_OK;
    *count = list.n;
    if (tokens != NULL && list.n > 0)
        memcpy(tokens, list.tokens, list.n * sizeof *tokens);
    mz_token_list_free(&list);
    return status;
}

const char *mezzo_tokenizer_bytes(const mezzo_tokenizer *tok, int32_t token, size_t *n) {
    if (n != NULL)
        *n = 0;
    return tok == NULL || n == NULL || token < 0 || token >= tok->vocab ? NULL : tok->kind->bytes(tok, token, n);
}

mezzo_status mezzo_tokenizer_decode(const mezzo_tokenizer *tok, const int32_t *tokens, size_t count, char *text,
                                    size_t *n) {
    MZ_REQUIRE(tok, text, n);
    if (count > 0)
        MZ_REQUIRE(tokens);
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        size_t width;
        const char *bytes = mezzo_tokenizer_bytes(tok, tokens[i], &width);
        if (!bytes) {
            text[at] = '\0';
            *n = at;
            return mz_fail(MEZZO_ERR_INVALID, "token %d at position %zu is not in 0 … %d", (int)tokens[i], i,
                           (int)tok->vocab - 1);
        }
        if (width > 0)
            memcpy(text + at, bytes, width);
        at += width;
    }
    size_t leading = 0;
    while (leading < tok->leading && leading < at && text[leading] == ' ')
        leading++;
    at -= leading;
    if (leading > 0)
        memmove(text, text + leading, at);
    text[at] = '\0';
    *n = at;
    return MEZZO_OK;
}
