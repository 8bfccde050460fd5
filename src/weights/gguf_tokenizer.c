// Reads and writes tokenizers in GGUF's keys, tokenizer.ggml.*, through tokenizer.json. GGUF's model "gpt2" is BPE of
// bytes with a named way to split a text; its model "llama" is sentencepiece's, which joins the neighbours whose piece
// has the best score.
#include <stdlib.h>

#include "data/alphabet.h"
#include "data/tokenizer_json.h"
#include "data/tokenizer_sentencepiece.h"
#include "io/json.h"
#include "io/quote.h"
#include "checkpoint/checkpoint.h"
#include "weights/gguf.h"

#define SPACE "\xE2\x96\x81" // U+2581, which sentencepiece writes for a space
#define MODEL "tokenizer.ggml.model"

// Ways to split that llama.cpp has a name for. An export writes the first row with the tokenizer's pattern.
static const struct splitter {
    const char *pre;
    const char *pattern; // as mz_json_pattern_named accepts it
    bool whole_first;    // a word that is a token is not split further (ignore_merges)
    bool digits;         // digits are separated one by one before the pattern
} splitters[] = {
    {"gpt-2", "gpt2", false, false},      {"phi-2", "gpt2", false, false},       {"olmo", "gpt2", false, false},
    {"mpt", "gpt2", false, false},        {"gigachat", "gpt2", false, false},    {"smollm", "gpt2", false, true},
    {"starcoder", "gpt2", false, true},   {"refact", "gpt2", false, true},       {"command-r", "gpt2", false, true},
    {"llama-bpe", "llama3", true, false}, {"llama3", "llama3", true, false},     {"llama-v3", "llama3", true, false},
    {"dbrx", "llama3", false, false},     {"smaug-bpe", "llama3", false, false}, {"glm4", "llama3", false, false},
    {"qwen2", "qwen2", false, false},     {"stablelm2", "qwen2", false, false},  {"gpt-4o", "gpt4o", false, false},
};

// --- reading -------------------------------------------------------------------------------------------------------
typedef struct source {
    const char *where;
    const mz_gguf *file;
    mz_piece *tokens; // without trailing unused ones
    size_t n;
} source;

static mezzo_status fail_memory(void) {
    return mz_fail(MEZZO_ERR_MEMORY, "out of memory while making a tokenizer's JSON");
}

// Appends the item, which the list takes over.
static mezzo_status append(json_t *list, json_t *item) {
    return json_array_append_new(list, item) == 0 ? MEZZO_OK : fail_memory();
}

// Finds a member by a key that does not end with NUL. Returns false when out of memory.
static bool find_member(const json_t *object, const char *key, size_t n, json_t **out) {
    char *copy = NULL;
    *out = NULL;
    if (mz_json_copy_text(key, n, &copy) != MEZZO_OK)
        return false;
    *out = json_object_get(object, copy);
    mz_free(copy);
    return true;
}

static bool set_member(json_t *object, const char *key, size_t n, json_t *value) {
    char *copy = NULL;
    const bool set = mz_json_copy_text(key, n, &copy) == MEZZO_OK && json_object_set(object, copy, value) == 0;
    mz_free(copy);
    json_decref(value);
    return set;
}

static mezzo_status read_tokens(source *s) {
    const mz_gguf_value *texts, *types = NULL, *scores = NULL;
    size_t at = 0;
    MEZZO_TRY(mz_gguf_get_list(s->file, "tokenizer.ggml.tokens", MZ_GGUF_TEXT, &texts));
    if (mz_gguf_find(s->file, "tokenizer.ggml.token_type") != NULL)
        MEZZO_TRY(mz_gguf_get_list(s->file, "tokenizer.ggml.token_type", MZ_GGUF_I32, &types));
    if (mz_gguf_find(s->file, "tokenizer.ggml.scores") != NULL)
        MEZZO_TRY(mz_gguf_get_list(s->file, "tokenizer.ggml.scores", MZ_GGUF_F32, &scores));
    if (texts->n < 1 || texts->n > MZ_BPE_MAX_VOCAB || (types != NULL && types->n != texts->n) ||
        (scores != NULL && scores->n != texts->n))
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: tokenizer.ggml has lists of tokens, types and scores that differ in length", s->where);
    MEZZO_TRY(MZ_NEW(s->tokens, texts->n));
    for (size_t i = 0; i < texts->n; i++) {
        mz_piece *p = &s->tokens[i];
        mz_gguf_next_text(texts, &at, &p->text, &p->n);
        p->type = types != NULL ? (uint64_t)(uint32_t)mz_gguf_int_at(types, i) : MZ_PIECE_NORMAL;
        p->score = scores != NULL ? mz_gguf_float_at(scores, i) : 0;
        if (p->type < MZ_PIECE_NORMAL || p->type > MZ_PIECE_BYTE || p->n == 0 ||
            mz_valid_until(p->text, 0, p->n) < p->n || memchr(p->text, '\0', p->n) != NULL || p->score != p->score)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: token %zu of tokenizer.ggml.tokens has no text, type or score",
                           s->where, i);
        s->n = p->type != MZ_PIECE_UNUSED ? i + 1 : s->n;
    }
    return MEZZO_OK;
}

static mezzo_status find_splitter(const source *s, const struct splitter **out) {
    const char *pre;
    size_t n;
    MEZZO_TRY(mz_gguf_get_text(s->file, "tokenizer.ggml.pre", &pre, &n));
    for (size_t i = 0; i < MZ_COUNT(splitters); i++)
        if (strlen(splitters[i].pre) == n && memcmp(splitters[i].pre, pre, n) == 0) {
            *out = &splitters[i];
            return MEZZO_OK;
        }
    return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'tokenizer.ggml.pre' is %s, a way to split texts that is not supported",
                   s->where, mz_quote_bytes(pre, n).text);
}

// Makes the part of a tokenizer.json that splits: ByteLevel's own pattern, or a Split before it.
static mezzo_status make_split(const struct splitter *how, json_t **out) {
    const char *pattern;
    json_t *list = json_array();
    *out = NULL;
    MEZZO_TRY(mz_json_pattern_named(how->pattern, &pattern));
    bool full = list == NULL;
    if (how->digits)
        full |= json_array_append_new(list, json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1)) != 0;
    if (pattern != NULL)
        full |= json_array_append_new(list, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                                                      pattern, "behavior", "Isolated", "invert", 0)) != 0;
    full |= json_array_append_new(list, mz_json_byte_level(pattern == NULL)) != 0;
    if (!full)
        *out = json_array_size(list) == 1 ? json_incref(json_array_get(list, 0))
                                          : json_pack("{s:s, s:O}", "type", "Sequence", "pretokenizers", list);
    json_decref(list);
    return *out != NULL ? MEZZO_OK : fail_memory();
}

static mezzo_status add_tokens(const source *s, json_t *vocab, json_t *added) {
    for (size_t i = 0; i < s->n; i++) {
        const mz_piece *p = &s->tokens[i];
        if (p->type == MZ_PIECE_NORMAL || p->type == MZ_PIECE_BYTE) {
            json_t *other;
            if (!find_member(vocab, p->text, p->n, &other))
                return fail_memory();
            if (other != NULL)
                return mz_fail(MEZZO_ERR_FORMAT, "%s: token %zu, %s, is there twice", s->where, i,
                               mz_quote_bytes(p->text, p->n).text);
            if (!set_member(vocab, p->text, p->n, json_integer((json_int_t)i)))
                return fail_memory();
            continue;
        }
        json_t *one = mz_json_special(p->text, p->n, (int32_t)i);
        if (one != NULL && p->type == MZ_PIECE_USER_DEFINED)
            (void)json_object_set_new(one, "special", json_false());
        MEZZO_TRY(append(added, one));
    }
    return MEZZO_OK;
}

static mezzo_status add_merges(const source *s, json_t *merges) {
    const mz_gguf_value *list;
    size_t at = 0, n;
    const char *text;
    MEZZO_TRY(mz_gguf_get_list(s->file, "tokenizer.ggml.merges", MZ_GGUF_TEXT, &list));
    for (uint64_t i = 0; i < list->n; i++) {
        mz_gguf_next_text(list, &at, &text, &n);
        const char *space = n > 1 ? memchr(text + 1, ' ', n - 1) : NULL;
        if (space == NULL || mz_valid_until(text, 0, n) < n)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: merge %llu of tokenizer.ggml.merges is not two tokens", s->where,
                           (unsigned long long)i);
        MEZZO_TRY(append(
            merges, json_pack("[s%, s%]", text, (size_t)(space - text), space + 1, (size_t)(text + n - space - 1))));
    }
    return MEZZO_OK;
}

static mezzo_status make_bytes(const source *s, json_t **out) {
    const struct splitter *how = NULL;
    MZ_SCOPED(mz_json_free_at)
    json_t *split = NULL, *added = json_array(), *vocab = json_object(), *merges = json_array();
    MEZZO_TRY(find_splitter(s, &how));
    MEZZO_TRY(make_split(how, &split));
    MEZZO_TRY(add_tokens(s, vocab, added));
    MEZZO_TRY(add_merges(s, merges));
    *out = mz_json_frame(json_incref(added), json_incref(split), mz_json_byte_level(true));
    json_t *model = json_object_get(*out, "model");
    if (json_object_set(model, "vocab", vocab) != 0 || json_object_set(model, "merges", merges) != 0 ||
        json_object_set_new(model, "ignore_merges", json_boolean(how->whole_first)) != 0)
        return fail_memory();
    return MEZZO_OK;
}

static mezzo_status get_flag(const source *s, const char *key, bool absent, bool *out) {
    *out = absent;
    return mz_gguf_find(s->file, key) != NULL ? mz_gguf_get_bool(s->file, key, out) : MEZZO_OK;
}

// Finds the text of the token that `key` names; *text NULL: none.
static mezzo_status get_special(const source *s, const char *key, json_t *ids, const char *id_key, char **text) {
    int64_t id;
    *text = NULL;
    if (mz_gguf_find(s->file, key) == NULL)
        return MEZZO_OK;
    MEZZO_TRY(mz_gguf_get_int(s->file, key, 0, UINT32_MAX, &id));
    if ((uint64_t)id >= s->n) // llama.cpp ignores such a number
        return MEZZO_OK;
    MEZZO_TRY(mz_json_copy_text(s->tokens[id].text, s->tokens[id].n, text));
    return mz_json_set(ids, id_key, json_integer(id));
}

// Adds a template with which the tokenizer library makes "bos A" of a text.
static mezzo_status add_beginning(json_t *frame, const char *bos, const json_t *id) {
    json_t *begin = json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", bos, "type_id", 0);
    json_t *text = json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0);
    json_t *second = json_pack("{s:{s:s, s:i}}", "Sequence", "id", "B", "type_id", 1);
    json_t *post =
        json_pack("{s:s, s:[O, O], s:[O, O, O], s:{s:{s:s, s:[O], s:[s]}}}", "type", "TemplateProcessing", "single",
                  begin, text, "pair", begin, text, second, "special_tokens", bos, "id", bos, "ids", id, "tokens", bos);
    json_decref(begin);
    json_decref(text);
    json_decref(second);
    return json_object_set_new(frame, "post_processor", post) == 0 ? MEZZO_OK : fail_memory();
}

static mezzo_status make_tokenizer(const source *s, json_t *frame, json_t *ids, bool sentences, mezzo_tokenizer **out) {
    mz_chat chat = {0};
    const char *text;
    size_t n;
    bool begins;
    mezzo_status status = MEZZO_OK;
    MEZZO_TRY_GOTO(status, get_special(s, "tokenizer.ggml.bos_token_id", ids, "bos_token_id", &chat.bos));
    MEZZO_TRY_GOTO(status, get_special(s, "tokenizer.ggml.eos_token_id", ids, "eos_token_id", &chat.eos));
    MEZZO_TRY_GOTO(status, get_flag(s, "tokenizer.ggml.add_bos_token", sentences, &begins));
    if (begins && chat.bos != NULL)
        MEZZO_TRY_GOTO(status, add_beginning(frame, chat.bos, json_object_get(ids, "bos_token_id")));
    if (mz_gguf_find(s->file, "tokenizer.chat_template") != NULL) {
        MEZZO_TRY_GOTO(status, mz_gguf_get_text(s->file, "tokenizer.chat_template", &text, &n));
        if (mz_valid_until(text, 0, n) < n || memchr(text, '\0', n) != NULL)
            MEZZO_TRY_GOTO(status, mz_fail(MEZZO_ERR_FORMAT, "%s: tokenizer.chat_template is no text", s->where));
        MEZZO_TRY_GOTO(status, mz_json_copy_text(text, n, &chat.source));
    }
    MEZZO_TRY_GOTO(status, mz_tokenizer_from_json(s->where, frame, false, out));
    const mz_chat none = (*out)->chat;
    (*out)->chat = chat;
    chat = none;
fail:
    mz_chat_free(&chat);
    return status;
}

mezzo_status mz_gguf_read_tokenizer(const char *where, const mz_gguf *file, mezzo_tokenizer **out, json_t *ids) {
    source s = {.where = where, .file = file};
    const char *kind;
    size_t n;
    json_t *frame = NULL;
    bool prefix;
    mezzo_status status = MEZZO_OK;
    *out = NULL;
    if (mz_gguf_find(file, MODEL) == NULL)
        return MEZZO_OK;
    MEZZO_TRY(mz_gguf_get_text(file, MODEL, &kind, &n));
    const bool sentences = n == 5 && memcmp(kind, "llama", n) == 0, bytes = n == 4 && memcmp(kind, "gpt2", n) == 0;
    if (n == 4 && memcmp(kind, "none", n) == 0)
        return MEZZO_OK;
    if (!sentences && !bytes)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key '" MODEL "' is %s; only gpt2 and llama are supported", where,
                       mz_quote_bytes(kind, n).text);
    mz_json_begin();
    MEZZO_TRY_GOTO(status, read_tokens(&s));
    MEZZO_TRY_GOTO(status, get_flag(&s, "tokenizer.ggml.add_space_prefix", sentences, &prefix));
    if (bytes && prefix)
        MEZZO_TRY_GOTO(status, mz_fail(MEZZO_ERR_FORMAT,
                                       "%s: key 'tokenizer.ggml.add_space_prefix' is true, which is "
                                       "not supported for tokens of bytes",
                                       where));
    MEZZO_TRY_GOTO(status,
                   bytes ? make_bytes(&s, &frame) : mz_sentencepiece_make(where, s.tokens, s.n, prefix, &frame));
    status = make_tokenizer(&s, frame, ids, sentences, out);
fail:
    json_decref(frame);
    mz_free(s.tokens);
    return status;
}

// --- writing -------------------------------------------------------------------------------------------------------
typedef struct token {
    const char *text; // NULL: the tokenizer has no such number
    size_t n;
    mz_piece_type type;
    float score;
} token;

typedef struct sink {
    const char *where;
    const mezzo_tokenizer *tok;
    const json_t *frame, *model, *vocab, *merges;
    token *tokens;
    int64_t n;
    mz_gguf_meta *meta;
} sink;

static mezzo_status refuse(const sink *s, const char *what) {
    return mz_fail(MEZZO_ERR_UNSUPPORTED,
                   "%s: llama.cpp has no tokenizer with %s: export without one, or train with another tokenizer",
                   s->where, what);
}

static const char *type_of(const json_t *part) {
    const char *type = json_string_value(json_object_get(part, "type"));
    return type != NULL ? type : "";
}

// Returns the items of a Sequence, or the only part as a list of one; empty where there is none.
static json_t *items_of(const json_t *part, const char *list) {
    const json_t *items = json_object_get(part, list);
    if (strcmp(type_of(part), "Sequence") == 0 && json_is_array(items))
        return json_copy((json_t *)(uintptr_t)items);
    return json_is_object(part) ? json_pack("[O]", part) : json_array();
}

static bool has_byte_level(const sink *s) {
    json_t *items = items_of(json_object_get(s->frame, "pre_tokenizer"), "pretokenizers"), *one;
    size_t i;
    bool found = false;
    json_array_foreach(items, i, one) found = found || strcmp(type_of(one), "ByteLevel") == 0;
    json_decref(items);
    return found;
}

static bool is_pattern(const json_t *split, const char **named) {
    static const char *const names[] = {"gpt2", "llama3", "qwen2", "gpt4o"};
    const char *text = json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex")), *known;
    const char *behaviour = json_string_value(json_object_get(split, "behavior"));
    if (text == NULL || behaviour == NULL || strcmp(behaviour, "Isolated") != 0 ||
        json_is_true(json_object_get(split, "invert")))
        return false;
    for (size_t i = 1; i < MZ_COUNT(names); i++)
        if (mz_json_pattern_named(names[i], &known) == MEZZO_OK && strcmp(known, text) == 0) {
            *named = names[i];
            return true;
        }
    return false;
}

// Recognizes Digits, if present, then Split and ByteLevel, or ByteLevel with its own pattern.
static mezzo_status find_pre(const sink *s, const char **pre) {
    json_t *items = items_of(json_object_get(s->frame, "pre_tokenizer"), "pretokenizers"), *one;
    const bool whole = json_is_true(json_object_get(s->model, "ignore_merges"));
    const char *pattern = NULL;
    bool digits = false, other = false, prefix = false;
    size_t i;
    json_array_foreach(items, i, one) {
        const char *type = type_of(one);
        const json_t *regex = json_object_get(one, "use_regex"), *space = json_object_get(one, "add_prefix_space");
        if (strcmp(type, "Digits") == 0 && i == 0 && json_is_true(json_object_get(one, "individual_digits"))) {
            digits = true;
        } else if (strcmp(type, "ByteLevel") == 0 && i + 1 == json_array_size(items)) {
            prefix = space == NULL || json_is_true(space);
            if (regex == NULL || json_is_true(regex))
                other = other || pattern != NULL, pattern = "gpt2";
        } else if (strcmp(type, "Split") != 0 || pattern != NULL || !is_pattern(one, &pattern)) {
            other = true;
        }
    }
    json_decref(items);
    if (json_array_size(s->merges) == 0 && !other && pattern == NULL)
        pattern = "gpt2"; // bytes without merges: any way to split has the same result
    if (prefix)
        return refuse(s, "a space before a text (add_prefix_space)");
    for (i = 0; i < MZ_COUNT(splitters) && !other && pattern != NULL; i++)
        if (strcmp(splitters[i].pattern, pattern) == 0 && splitters[i].digits == digits &&
            splitters[i].whole_first == whole) {
            *pre = splitters[i].pre;
            return MEZZO_OK;
        }
    return refuse(s, "this way to split texts");
}

static mezzo_status check_normalizer(const sink *s) {
    json_t *items = items_of(json_object_get(s->frame, "normalizer"), "normalizers"), *one;
    size_t i;
    bool other = false;
    json_array_foreach(items, i, one) other = other || strcmp(type_of(one), "NFC") != 0;
    if (json_array_size(items) > 0 && !other)
        mz_log("notice", "llama.cpp does not normalize texts to NFC, as the tokenizer does: other texts become other "
                         "tokens there");
    json_decref(items);
    return other ? refuse(s, "this normalizer") : MEZZO_OK;
}

static mezzo_status set_token(sink *s, int64_t id, const char *text, size_t n, mz_piece_type type) {
    if (id < 0 || id >= s->n)
        return mz_fail(MEZZO_ERR_INVALID, "%s: token %s has number %lld, the model has %lld tokens", s->where,
                       mz_quote_bytes(text, n).text, (long long)id, (long long)s->n);
    s->tokens[id] = (token){text, n, type, 0};
    return MEZZO_OK;
}

static mezzo_status set_added(sink *s) {
    const json_t *added = json_object_get(s->frame, "added_tokens"), *one;
    size_t i;
    json_array_foreach(added, i, one) {
        const json_t *text = json_object_get(one, "content");
        const bool special = json_is_true(json_object_get(one, "special"));
        MEZZO_TRY(set_token(s, json_integer_value(json_object_get(one, "id")), json_string_value(text),
                            json_string_length(text), special ? MZ_PIECE_CONTROL : MZ_PIECE_USER_DEFINED));
    }
    return MEZZO_OK;
}

static mezzo_status set_tokens(sink *s) {
    const char *text;
    json_t *id;
    json_object_foreach((json_t *)(uintptr_t)s->vocab, text, id)
        MEZZO_TRY(set_token(s, json_integer_value(id), text, strlen(text), MZ_PIECE_NORMAL));
    return set_added(s);
}

static void add_pair(mz_gguf_meta *meta, const char *left, size_t n, const char *right, size_t m) {
    mz_text both = {0};
    mz_text_add(&both, left, n);
    mz_text_add(&both, " ", 1);
    mz_text_add(&both, right, m);
    mz_gguf_add_text(meta, both.status == MEZZO_OK ? both.data : "", both.len);
    if (both.status != MEZZO_OK)
        meta->bytes.status = both.status;
    mz_text_free(&both);
}

// Finds the two tokens of a merge, which is a list or, in older files, "left right".
static void merge_parts(const json_t *merge, const char **left, size_t *n, const char **right, size_t *m) {
    const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
    if (a != NULL) {
        *left = json_string_value(a), *n = json_string_length(a);
        *right = json_string_value(b), *m = json_string_length(b);
        return;
    }
    const char *text = json_string_value(merge), *space = strchr(text, ' ');
    *left = text, *n = (size_t)(space - text);
    *right = space + 1, *m = strlen(space + 1);
}

static mezzo_status write_bytes(sink *s) {
    const char *pre = NULL, *left, *right;
    size_t i, n, m;
    json_t *merge;
    MEZZO_TRY(find_pre(s, &pre));
    MEZZO_TRY(check_normalizer(s));
    MEZZO_TRY(set_tokens(s));
    mz_gguf_put_text(s->meta, MODEL, "gpt2", 4);
    mz_gguf_put_text(s->meta, "tokenizer.ggml.pre", pre, strlen(pre));
    mz_gguf_put_list(s->meta, "tokenizer.ggml.merges", MZ_GGUF_TEXT, json_array_size(s->merges));
    json_array_foreach(s->merges, i, merge) {
        merge_parts(merge, &left, &n, &right, &m);
        add_pair(s->meta, left, n, right, m);
    }
    return s->meta->bytes.status;
}

// --- characters ----------------------------------------------------------------------------------------------------
// Writes tokens of single characters as BPE of their bytes; characters of several bytes are merged from the left.
static mezzo_status write_characters(sink *s, mz_text *letters) {
    size_t merges = 0, n;
    mz_gguf_put_text(s->meta, MODEL, "gpt2", 4);
    mz_gguf_put_text(s->meta, "tokenizer.ggml.pre", "gpt-2", 5);
    for (int32_t t = 0; t < s->tok->vocab; t++) {
        const char *bytes = s->tok->kind->bytes(s->tok, t, &n);
        merges += n - 1;
        mz_bytes_to_letters(bytes, n, letters);
        mz_text_add(letters, "", 1);
    }
    MEZZO_TRY(letters->status);
    mz_gguf_put_list(s->meta, "tokenizer.ggml.merges", MZ_GGUF_TEXT, merges);
    const char *text = letters->data;
    for (int32_t t = 0; t < s->tok->vocab; t++, text += strlen(text) + 1) {
        MEZZO_TRY(set_token(s, t, text, strlen(text), MZ_PIECE_NORMAL));
        (void)s->tok->kind->bytes(s->tok, t, &n);
        // The letter for a byte from 0x80 on takes two bytes of UTF-8.
        for (size_t k = 1; k < n; k++)
            add_pair(s->meta, text, 2 * k, text + 2 * k, 2);
    }
    return s->meta->bytes.status;
}

// --- sentencepiece -------------------------------------------------------------------------------------------------
static int64_t id_of(const sink *s, const char *text, size_t n) {
    json_t *id;
    return find_member(s->vocab, text, n, &id) && id != NULL ? json_integer_value(id) : -1;
}

// Marks the tokens of the pattern "A|B", which splits words at symbols of the user; they are tokens in llama.cpp, too.
// Returns false for another pattern.
static bool mark_symbols(sink *s, const char *pattern) {
    mz_text symbol = {0};
    bool known = true;
    for (const char *at = pattern; known; at++) {
        if (*at == '|' || *at == '\0') {
            const int64_t id = symbol.len > 0 ? id_of(s, symbol.data, symbol.len) : -1;
            known = id >= 0 && id < s->n && symbol.status == MEZZO_OK;
            if (known)
                s->tokens[id].type = MZ_PIECE_USER_DEFINED;
            symbol.len = 0;
            if (*at == '\0')
                break;
        } else {
            known = strchr("()[]{}.*+?^$", *at) == NULL;
            at += *at == '\\' && at[1] != '\0';
            mz_text_add(&symbol, at, 1);
        }
    }
    mz_text_free(&symbol);
    return known;
}

// Returns whether llama.cpp has this split of a text into words: none, at spaces, of which none is left, or at symbols
// that are tokens.
static bool is_known_split(sink *s, const json_t *split) {
    const json_t *pattern = json_object_get(split, "pattern");
    const char *text = json_string_value(json_object_get(pattern, "String"));
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *behaviour = json_string_value(json_object_get(split, "behavior"));
    if (strcmp(type_of(split), "Split") != 0 || (text == NULL && regex == NULL))
        return false;
    if (text != NULL)
        return strcmp(text, " ") == 0;
    return json_is_true(json_object_get(s->model, "ignore_merges")) && behaviour != NULL &&
           strcmp(behaviour, "Isolated") == 0 && mark_symbols(s, regex);
}

// Checks that the tokenizer treats spaces as llama.cpp does: they become U+2581, with one before a text (*prefix) or
// none.
static mezzo_status check_spaces(sink *s, bool *prefix) {
    json_t *before = items_of(json_object_get(s->frame, "normalizer"), "normalizers");
    json_t *splits = items_of(json_object_get(s->frame, "pre_tokenizer"), "pretokenizers"), *one;
    size_t i;
    bool other = false, spaces = false;
    *prefix = false;
    json_array_foreach(before, i, one) {
        const char *type = type_of(one),
                   *pattern = json_string_value(json_object_get(json_object_get(one, "pattern"), "String"));
        const char *prepend = json_string_value(json_object_get(one, "prepend")),
                   *content = json_string_value(json_object_get(one, "content"));
        const bool replaces = strcmp(type, "Replace") == 0 && pattern != NULL && strcmp(pattern, " ") == 0 &&
                              content != NULL && strcmp(content, SPACE) == 0;
        const bool prepends = strcmp(type, "Prepend") == 0 && prepend != NULL && strcmp(prepend, SPACE) == 0;
        spaces = spaces || replaces;
        *prefix = *prefix || prepends;
        other = other || (!replaces && !prepends);
    }
    json_array_foreach(splits, i, one) {
        const char *scheme = json_string_value(json_object_get(one, "prepend_scheme"));
        if (strcmp(type_of(one), "Metaspace") == 0 && !spaces) {
            spaces = true;
            *prefix = scheme == NULL || strcmp(scheme, "never") != 0;
        } else if (!spaces || !is_known_split(s, one)) {
            other = true;
        }
    }
    json_decref(before);
    json_decref(splits);
    return other || !spaces ? refuse(s, "these rules of normalization and splitting") : MEZZO_OK;
}

// Sets scores from merges. llama.cpp joins any two tokens that make a token, the highest score first. That equals the
// merges where they are all ways to divide a token into two, and those of one token follow each other.
static mezzo_status set_scores(sink *s) {
    const char *left, *right;
    json_t *merge;
    size_t i, n, m, ways = 0;
    int64_t last = -1;
    json_array_foreach(s->merges, i, merge) {
        char *both;
        merge_parts(merge, &left, &n, &right, &m);
        both = mz_format("%.*s%.*s", (int)n, left, (int)m, right);
        if (both == NULL)
            return MEZZO_ERR_MEMORY;
        const int64_t id = id_of(s, both, n + m);
        mz_free(both);
        if (id < 0 || id >= s->n || (id != last && s->tokens[id].score != 0))
            return refuse(s, "merges in this order");
        if (id != last)
            s->tokens[id].score = -(float)(i + 1);
        last = id;
    }
    for (int64_t t = 0; t < s->n; t++)
        for (size_t at = 1; s->tokens[t].type == MZ_PIECE_NORMAL && at < s->tokens[t].n; at++) {
            const token *p = &s->tokens[t];
            if (((unsigned char)p->text[at] & 0xC0) == 0x80)
                continue;
            const int64_t a = id_of(s, p->text, at), b = id_of(s, p->text + at, p->n - at);
            ways += a >= 0 && b >= 0 && s->tokens[a].type == MZ_PIECE_NORMAL && s->tokens[b].type == MZ_PIECE_NORMAL;
        }
    return ways == json_array_size(s->merges) ? MEZZO_OK : refuse(s, "merges of which some are missing");
}

static mezzo_status write_sentences(sink *s) {
    bool prefix;
    const char *unknown = json_string_value(json_object_get(s->model, "unk_token"));
    MEZZO_TRY(set_tokens(s));
    MEZZO_TRY(check_spaces(s, &prefix));
    if (!json_is_true(json_object_get(s->model, "byte_fallback")))
        return refuse(s, "characters that are no tokens (without byte_fallback)");
    for (int64_t t = 0; t < s->n; t++) {
        token *p = &s->tokens[t];
        const bool byte = p->text != NULL && p->n == 6 && memcmp(p->text, "<0x", 3) == 0 && p->text[5] == '>';
        if (p->type == MZ_PIECE_NORMAL && byte)
            p->type = MZ_PIECE_BYTE;
        if (unknown != NULL && p->text != NULL && strcmp(p->text, unknown) == 0) {
            p->type = MZ_PIECE_UNKNOWN;
            mz_gguf_put_int(s->meta, "tokenizer.ggml.unknown_token_id", (uint32_t)t);
        }
    }
    MEZZO_TRY(set_scores(s));
    mz_gguf_put_text(s->meta, MODEL, "llama", 5);
    mz_gguf_put_text(s->meta, "tokenizer.ggml.pre", "default", 7);
    mz_gguf_put_bool(s->meta, "tokenizer.ggml.add_space_prefix", prefix);
    mz_gguf_put_list(s->meta, "tokenizer.ggml.scores", MZ_GGUF_F32, (uint64_t)s->n);
    for (int64_t t = 0; t < s->n; t++)
        mz_gguf_add_float(s->meta, s->tokens[t].score);
    return s->meta->bytes.status;
}

// --- all kinds -----------------------------------------------------------------------------------------------------
static void put_tokens(const sink *s) {
    char text[40];
    mz_gguf_put_list(s->meta, "tokenizer.ggml.tokens", MZ_GGUF_TEXT, (uint64_t)s->n);
    for (int64_t t = 0; t < s->n; t++) {
        const token *p = &s->tokens[t];
        snprintf(text, sizeof text, "[PAD%lld]", (long long)t);
        mz_gguf_add_text(s->meta, p->text != NULL ? p->text : text, p->text != NULL ? p->n : strlen(text));
    }
    mz_gguf_put_list(s->meta, "tokenizer.ggml.token_type", MZ_GGUF_I32, (uint64_t)s->n);
    for (int64_t t = 0; t < s->n; t++)
        mz_gguf_add_int(s->meta, s->tokens[t].text != NULL ? (int32_t)s->tokens[t].type : MZ_PIECE_UNUSED);
}

static int64_t first_id(const json_t *ids, const char *key) {
    const json_t *id = json_object_get(ids, key);
    id = json_is_array(id) ? json_array_get(id, 0) : id;
    return json_is_integer(id) ? json_integer_value(id) : -1;
}

static bool begins_with_special(const json_t *frame) {
    json_t *items = items_of(json_object_get(frame, "post_processor"), "processors"), *one;
    size_t i;
    bool found = false;
    json_array_foreach(items, i, one) {
        const json_t *first = json_array_get(json_object_get(one, "single"), 0);
        found = found || json_object_get(first, "SpecialToken") != NULL;
    }
    json_decref(items);
    return found;
}

// Writes end tokens. Without one, llama.cpp takes token 11, or 2 for sentencepiece; a token that is no text, or the
// zero byte, prevents that.
static void put_ends(const sink *s, const json_t *ids) {
    const int64_t bos = first_id(ids, "bos_token_id");
    int64_t eos = first_id(ids, "eos_token_id");
    if (eos < 0)
        eos = mz_chat_end_id(s->tok);
    for (int64_t t = s->n; t-- > 0 && eos < 0;)
        if (s->tokens[t].text == NULL || (s->tok->kind == &mz_tokenizer_byte && t == 0))
            eos = t;
    if (eos >= 0 && eos < s->n)
        mz_gguf_put_int(s->meta, "tokenizer.ggml.eos_token_id", (uint32_t)eos);
    else
        mz_log("notice",
               "the tokenizer has no token that ends a text: llama.cpp takes its token %d for one and stops there",
               s->tok->kind == &mz_tokenizer_char || has_byte_level(s) ? 11 : 2);
    if (bos >= 0 && bos < s->n)
        mz_gguf_put_int(s->meta, "tokenizer.ggml.bos_token_id", (uint32_t)bos);
    mz_gguf_put_bool(s->meta, "tokenizer.ggml.add_bos_token", bos >= 0 && begins_with_special(s->frame));
    mz_gguf_put_bool(s->meta, "tokenizer.ggml.add_eos_token", false);
    if (s->tok->chat.source != NULL)
        mz_gguf_put_text(s->meta, "tokenizer.chat_template", s->tok->chat.source, strlen(s->tok->chat.source));
}

static mezzo_status write_kind(sink *s, mz_text *letters) {
    const bool characters = s->tok->kind == &mz_tokenizer_char;
    s->model = json_object_get(s->frame, "model");
    s->vocab = json_object_get(s->model, "vocab");
    s->merges = json_object_get(s->model, "merges");
    return characters ? write_characters(s, letters) : has_byte_level(s) ? write_bytes(s) : write_sentences(s);
}

mezzo_status mz_gguf_write_tokenizer(const char *where, const mezzo_tokenizer *tok, int64_t vocab, const json_t *ids,
                                     mz_gguf_meta *meta) {
    sink s = {.where = where, .tok = tok, .n = vocab, .meta = meta};
    json_t *frame = mz_json_new(), *own = NULL;
    mz_text letters = {0};
    mezzo_status status = MEZZO_OK;
    s.frame = frame;
    s.tokens = mz_alloc((size_t)vocab, sizeof *s.tokens);
    if (frame == NULL || s.tokens == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    status = tok->kind->save(tok, frame);
    if (status == MEZZO_OK)
        status = write_kind(&s, &letters);
    if (mz_json_ran_out()) // parts of the frame may be missing
        status = mz_fail(MEZZO_ERR_MEMORY, "%s: no memory for the tokenizer", where);
    MEZZO_TRY_GOTO(status, status);
    put_tokens(&s);
    MEZZO_TRY_GOTO(status, mz_chat_generation(tok, &own));
    put_ends(&s, json_object_get(ids, "eos_token_id") != NULL ? ids : own);
    status = meta->bytes.status;
fail:
    json_decref(own);
    json_decref(frame);
    mz_text_free(&letters);
    mz_free(s.tokens);
    return status;
}
