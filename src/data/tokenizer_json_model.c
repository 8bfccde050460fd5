// Reads tokenizer.json of the `tokenizers` library: the vocabulary, the merges, the added tokens, and the file.
#include "data/alphabet.h"
#include "data/tokenizer_json.h"
#include "io/json.h"
#include "io/quote.h"

// Returns the number of a text in the model's vocabulary; -1: it has none.
static int32_t number_of(mz_json_reader *r, const char *text, size_t n) {
    r->key.len = 0;
    mz_text_add(&r->key, text, n);
    const bool usable = r->key.status == MEZZO_OK && memchr(text, 0, n) == NULL;
    const json_t *value = usable ? json_object_get(r->vocab, r->key.data) : NULL;
    return json_is_integer(value) ? (int32_t)json_integer_value(value) : -1;
}

// --- the model -----------------------------------------------------------------------------------------------------
typedef struct entry { // an entry of the vocabulary, whose index is its token's number
    const char *text;
    size_t n;
    bool added;
} entry;

static mezzo_status place_entry(const mz_json_reader *r, entry *entries, size_t size, const char *text, size_t n,
                                json_int_t id, bool added) {
    if (id < 0 || (uint64_t)id >= size)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: token %s: its number %lld leaves more holes than there are tokens",
                       r->where, mz_quote_bytes(text, n).text, (long long)id);
    if (entries[id].text != NULL)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: tokens %s and %s have the same number %lld", r->where,
                       mz_quote_bytes(entries[id].text, entries[id].n).text, mz_quote_bytes(text, n).text,
                       (long long)id);
    entries[id] = (entry){text, n, added};
    return MEZZO_OK;
}

static mezzo_status place_added(mz_json_reader *r, const json_t *added, entry *entries, size_t size) {
    const json_t *token;
    size_t i;
    json_array_foreach(added, i, token) {
        const json_t *text = json_object_get(token, "content");
        int64_t id;
        if (!json_is_string(text) || json_string_length(text) == 0)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'added_tokens': entry %zu has no content", r->where, i);
        MEZZO_TRY(mz_json_get_int(r->where, token, "id", 0, MZ_BPE_MAX_VOCAB, &id));
        const int32_t own = number_of(r, json_string_value(text), json_string_length(text));
        MEZZO_TRY(r->key.status);
        if (own >= 0 && own != id)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: token %s is %d in the vocabulary and %lld among the added tokens",
                           r->where, mz_quote(json_string_value(text)).text, (int)own, (long long)id);
        if (own < 0)
            MEZZO_TRY(place_entry(r, entries, size, json_string_value(text), json_string_length(text), id, true));
    }
    return MEZZO_OK;
}

// Adds tokens in the order of their numbers; no word becomes one of those that are set in `aside`.
static mezzo_status add_entries(mz_json_reader *r, const entry *entries, size_t n, bool *aside) {
    mz_bpe *bpe = &r->tok->bpe;
    MZ_SCOPED(mz_free_at) char *room = NULL;
    size_t cap = 0;
    for (size_t i = 0; i < n; i++) {
        const char *text = entries[i].text != NULL ? entries[i].text : "";
        size_t bytes = entries[i].n;
        aside[i] = entries[i].added || bytes == 0;
        if (r->bytes && !aside[i]) {
            MEZZO_TRY(MZ_RESERVE(room, cap, bytes));
            const size_t made = mz_letters_to_bytes(text, bytes, room);
            aside[i] = made == SIZE_MAX;
            text = aside[i] ? text : room;
            bytes = aside[i] ? bytes : made;
        }
        MEZZO_TRY(mz_bpe_add_token(bpe, text, bytes));
    }
    return MEZZO_OK;
}

static mezzo_status fill_vocab(mz_json_reader *r, const json_t *added, size_t merges, entry *entries, size_t size) {
    const char *key;
    json_t *value;
    size_t n = 0;
    int32_t twice;
    json_object_foreach((json_t *)(uintptr_t)r->vocab, key, value) {
        if (!json_is_integer(value))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: token %s has no number", r->where, mz_quote(key).text);
        MEZZO_TRY(place_entry(r, entries, size, key, strlen(key), json_integer_value(value), false));
    }
    MEZZO_TRY(place_added(r, added, entries, size));
    for (size_t i = 0; i < size; i++)
        n = entries[i].text != NULL ? i + 1 : n;
    MZ_SCOPED(mz_free_at) bool *aside = NULL;
    MEZZO_TRY(MZ_NEW(aside, n + 1));
    MEZZO_TRY(add_entries(r, entries, n, aside));
    MEZZO_TRY(mz_bpe_index(&r->tok->bpe, n, merges, aside, &twice));
    for (size_t i = 0; i < n; i++) // the order in which they are written again
        r->tok->bpe.made[i] |= (unsigned char)(entries[i].added || entries[i].n == 0 ? MZ_BPE_ADDED
                                               : aside[i]                            ? MZ_BPE_PLAIN
                                                                                     : 0);
    return MEZZO_OK;
}

static mezzo_status read_vocab(mz_json_reader *r, const json_t *model, const json_t *added, size_t merges) {
    r->vocab = json_object_get(model, "vocab");
    const size_t tokens = json_object_size(r->vocab) + json_array_size(added);
    if (!json_is_object(r->vocab) || tokens == 0 || tokens > MZ_BPE_MAX_VOCAB || merges > MZ_BPE_MAX_VOCAB)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: model BPE: key 'vocab': expected an object of at most %d tokens",
                       r->where, MZ_BPE_MAX_VOCAB);
    const size_t size = 2 * tokens + 4096;
    MZ_SCOPED(mz_free_at) entry *entries = NULL;
    MEZZO_TRY(MZ_NEW(entries, size));
    return fill_vocab(r, added, merges, entries, size);
}

// Splits a merge ["left", "right"] or, in old files, "left right".
static bool split_merge(const json_t *merge, const char *text[2], size_t n[2]) {
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++) {
            text[i] = json_string_value(json_array_get(merge, i));
            n[i] = json_string_length(json_array_get(merge, i));
        }
        return text[0] != NULL && text[1] != NULL && n[0] > 0 && n[1] > 0;
    }
    const char *both = json_string_value(merge);
    const size_t length = json_string_length(merge);
    const char *space = both != NULL ? memchr(both, ' ', length) : NULL;
    if (space == NULL)
        return false;
    text[0] = both;
    n[0] = (size_t)(space - both);
    text[1] = space + 1;
    n[1] = length - n[0] - 1;
    return n[0] > 0 && n[1] > 0 && memchr(text[1], ' ', n[1]) == NULL;
}

static mezzo_status add_merge(mz_json_reader *r, size_t i, const json_t *merge, mz_text *both) {
    const char *text[2];
    size_t n[2];
    bool added = false;
    if (!split_merge(merge, text, n))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: model BPE: merge %zu is not two parts", r->where, i);
    both->len = 0;
    mz_text_add(both, text[0], n[0]);
    mz_text_add(both, text[1], n[1]);
    MEZZO_TRY(both->status);
    const mz_bpe_merge m = {number_of(r, text[0], n[0]), number_of(r, text[1], n[1]),
                            number_of(r, both->data, both->len)};
    MEZZO_TRY(r->key.status);
    if (m.left < 0 || m.right < 0 || m.merged < 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: model BPE: merge %zu: the vocabulary does not have %s and its two parts",
                       r->where, i, mz_quote_bytes(both->data, both->len).text);
    MEZZO_TRY(mz_bpe_add_merge(&r->tok->bpe, m, &added));
    return added ? MEZZO_OK : mz_fail(MEZZO_ERR_FORMAT, "%s: model BPE: merge %zu is there twice", r->where, i);
}

static mezzo_status add_merges(mz_json_reader *r, const json_t *merges) {
    mz_text both = {0};
    mezzo_status status = MEZZO_OK;
    const json_t *merge;
    size_t i;
    json_array_foreach(merges, i, merge) if (status == MEZZO_OK) status = add_merge(r, i, merge, &both);
    mz_text_free(&both);
    return status;
}

static mezzo_status read_rules(const mz_json_part *p) {
    mz_bpe *bpe = &p->r->tok->bpe;
    const json_t *dropout = json_object_get(p->object, "dropout"), *unknown = json_object_get(p->object, "unk_token");
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    bool fallback;
    if (unknown != NULL && !json_is_null(unknown) && !json_is_string(unknown))
        return mz_json_refuse(p, "key 'unk_token': expected a text");
    if (dropout != NULL && !json_is_null(dropout) && (!json_is_number(dropout) || json_number_value(dropout) != 0.0))
        return mz_json_refuse(p, "its dropout draws tokens at random");
    for (size_t i = 0; i < MZ_COUNT(affixes); i++) {
        const json_t *affix = json_object_get(p->object, affixes[i]);
        if (affix != NULL && !json_is_null(affix) && (!json_is_string(affix) || json_string_length(affix) > 0))
            return mz_json_refuse(p, i == 0 ? "a continuing_subword_prefix" : "an end_of_word_suffix");
    }
    MEZZO_TRY(mz_json_part_bool(p, "byte_fallback", false, &fallback));
    MEZZO_TRY(mz_json_part_bool(p, "fuse_unk", false, &bpe->fuse_unknown));
    MEZZO_TRY(mz_json_part_bool(p, "ignore_merges", false, &bpe->whole_first));
    bpe->unknown =
        json_is_string(unknown) ? number_of(p->r, json_string_value(unknown), json_string_length(unknown)) : -1;
    for (int b = 0; b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
        bpe->fallback_token[b] = fallback && !p->r->bytes ? number_of(p->r, text, 6) : -1;
    }
    return MEZZO_OK;
}

static mezzo_status read_model(mz_json_reader *r, const json_t *model, const json_t *added) {
    static const char keys[] = " dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback "
                               "ignore_merges vocab merges mezzo crc32c ";
    const mz_json_part p = {.r = r, .key = "model", .type = "BPE", .object = model};
    const json_t *merges = json_object_get(model, "merges");
    MEZZO_TRY(mz_json_part_keys(&p, keys));
    if (!json_is_array(merges))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: model BPE: key 'merges': expected a list", r->where);
    r->tok->bpe.characters = !r->bytes;
    MEZZO_TRY(read_vocab(r, model, added, json_array_size(merges)));
    MEZZO_TRY(add_merges(r, merges));
    MEZZO_TRY(read_rules(&p));
    r->tok->base.vocab = r->tok->bpe.vocab;
    r->tok->base.max_bytes = r->tok->bpe.max_bytes;
    return mz_bpe_finish(&r->tok->bpe);
}

// --- added tokens --------------------------------------------------------------------------------------------------
static mezzo_status read_added_token(mz_json_reader *r, const json_t *token, mz_normal_room *room) {
    const mz_json_part p = {.r = r, .key = "added_tokens", .type = "token", .object = token};
    const char *text = json_string_value(json_object_get(token, "content"));
    size_t n = json_string_length(json_object_get(token, "content"));
    mz_added_token a = {.token = (int32_t)json_integer_value(json_object_get(token, "id"))};
    bool normalized;
    MEZZO_TRY(mz_json_part_keys(&p, " id content single_word lstrip rstrip normalized special "));
    MEZZO_TRY(mz_json_part_bool(&p, "special", false, &a.special));
    MEZZO_TRY(mz_json_part_bool(&p, "single_word", false, &a.single_word));
    MEZZO_TRY(mz_json_part_bool(&p, "lstrip", false, &a.left));
    MEZZO_TRY(mz_json_part_bool(&p, "rstrip", false, &a.right));
    MEZZO_TRY(mz_json_part_bool(&p, "normalized", true, &normalized));
    if (normalized)
        MEZZO_TRY(mz_normalize(&r->tok->normals, room, text, n, MZ_PLACE_BEGINS, &text, &n));
    if (n == 0) // nothing is left that a text could have
        return MEZZO_OK;
    MEZZO_TRY(mz_json_copy_text(text, n, &a.text));
    a.n = n;
    return mz_added_push(&r->tok->added[normalized], a);
}

static mezzo_status read_added(mz_json_reader *r, const json_t *added) {
    mz_normal_room room = {0};
    mezzo_status status = MEZZO_OK;
    const json_t *token;
    size_t i;
    json_array_foreach(added, i, token) if (status == MEZZO_OK) status = read_added_token(r, token, &room);
    mz_normal_room_free(&room);
    for (int k = 0; k < 2 && status == MEZZO_OK; k++)
        status = mz_added_finish(r->where, &r->tok->added[k]);
    return status;
}

// --- cutting texts --------------------------------------------------------------------------------------------------
static bool added_keep(const mz_added *added) {
    bool keep = true;
    for (size_t i = 0; i < added->n; i++) {
        const mz_added_token *a = &added->items[i];
        const size_t spaces = strspn(a->text, " ");
        keep &= !a->right && (spaces == a->n || memchr(a->text, ' ', a->n) == NULL);
    }
    return keep;
}

// Returns whether no merge crosses the place before a space, also where it is written as U+2581.
static bool merges_keep(const mz_bpe_tokenizer *tok) {
    static const char *const spaces[] = {" ", "\xE2\x96\x81"};
    bool keep = !tok->bpe.whole_first;
    for (size_t i = 0; i < tok->normals.n; i++) {
        const mz_normal *x = &tok->normals.items[i];
        keep &= x->kind != MZ_NORMAL_REPLACE || x->n == 0 || strcmp(x->text, spaces[0]) == 0 ||
                strcmp(x->text, spaces[1]) == 0;
    }
    for (size_t i = 0; i < tok->steps.n; i++)
        keep &= tok->steps.items[i].kind != MZ_STEP_SPACES || strcmp(tok->steps.items[i].text, spaces[1]) == 0;
    for (int c = '0'; c <= 'z' && keep; c++) {
        const char letter = (char)c;
        for (size_t i = 0; i < MZ_COUNT(spaces); i++)
            keep &= !mz_bpe_joins(&tok->bpe, &letter, 1, spaces[i], strlen(spaces[i]));
    }
    return keep;
}

// Returns whether a text may be cut before a space between two letters of ASCII: a word begins there, or no merge
// crosses it.
static bool may_cut(const mz_bpe_tokenizer *tok) {
    bool keeps = added_keep(&tok->added[0]) && added_keep(&tok->added[1]), splits = false;
    for (size_t i = 0; i < tok->normals.n; i++)
        keeps &= tok->normals.items[i].at_space != MZ_SPACE_UNKNOWN;
    for (size_t i = 0; i < tok->steps.n; i++) {
        keeps &= tok->steps.items[i].at_space != MZ_SPACE_UNKNOWN;
        splits |= tok->steps.items[i].at_space == MZ_SPACE_SPLITS;
    }
    return keeps && (splits || merges_keep(tok));
}

// --- the file ------------------------------------------------------------------------------------------------------
static mezzo_status read_parts(mz_json_reader *r, const json_t *object) {
    static const char keys[] =
        " version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder "
        "model ";
    const mz_json_part file = {.r = r, .key = "the file", .type = "itself", .object = object};
    const json_t *added = json_object_get(object, "added_tokens"), *model = json_object_get(object, "model");
    MEZZO_TRY(mz_json_part_keys(&file, keys));
    const char *type = json_string_value(json_object_get(model, "type"));
    // Files before 2020 have no type: BPE is the one with merges.
    if (type == NULL ? !json_is_array(json_object_get(model, "merges")) : strcmp(type, "BPE") != 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: its model is %s; only BPE is supported", r->where,
                       type != NULL ? mz_quote(type).text : "of a type that it does not say");
    if (added != NULL && !json_is_array(added))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'added_tokens': expected a list", r->where);
    MEZZO_TRY(mz_json_read_parts(r, object));
    MEZZO_TRY(read_model(r, model, added));
    MEZZO_TRY(read_added(r, added));
    if (!r->bytes)
        MEZZO_TRY(mz_json_show_tokens(r));
    r->tok->cuts = may_cut(r->tok);
    return MEZZO_OK;
}

// Keeps all but the vocabulary and the merges, which the tables have.
static mezzo_status keep_frame(mz_bpe_tokenizer *tok, const json_t *object) {
    json_t *model = json_copy(json_object_get(object, "model"));
    tok->frame = json_copy((json_t *)(uintptr_t)object);
    static const char *const own[] = {"vocab", "merges", "mezzo", "crc32c"};
    for (size_t i = 0; i < MZ_COUNT(own); i++)
        (void)json_object_del(model, own[i]);
    if (tok->frame == NULL || json_object_set_new(tok->frame, "model", model) != 0)
        return mz_fail(MEZZO_ERR_MEMORY, "no memory for a tokenizer");
    return MEZZO_OK;
}

mezzo_status mz_bpe_read_published(const char *where, const json_t *object, mezzo_tokenizer **out) {
    *out = NULL;
    mz_bpe_tokenizer *tok;
    MEZZO_TRY(MZ_NEW(tok, 1));
    tok->base.kind = &mz_tokenizer_bpe;
    tok->bpe = mz_bpe_of_bytes();
    mz_json_reader r = {.where = where, .tok = tok};
    mezzo_status status = read_parts(&r, object);
    if (status == MEZZO_OK)
        status = keep_frame(tok, object);
    mz_normals_free(&r.decoders);
    mz_text_free(&r.key);
    if (status == MEZZO_OK)
        *out = &tok->base;
    else
        mz_bpe_tokenizer_destroy(&tok->base);
    return status;
}
