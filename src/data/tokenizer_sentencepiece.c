// Turns sentencepiece's BPE into merges. It joins neighbours while the text of both is a piece, the one with the
// highest score first: that equals a merge for each way to divide a piece into two, ordered by score. The pieces'
// numbers, whitespace and normalization stay sentencepiece's.
#include "data/tokenizer_sentencepiece.h"

#include <math.h>
#include <stdlib.h>

#include "data/bpe.h"
#include "data/charsmap.h"
#include "data/tokenizer_json.h"
#include "io/json.h"
#include "io/quote.h"
#include "io/utf8.h"

#define SPACE "\xE2\x96\x81" // U+2581, which stands for a space

enum { MOST_PIECE = 512 }; // bytes of a piece that merges make, at most

// --- protobuf ------------------------------------------------------------------------------------------------------
typedef struct message {
    const char *where;
    const char *at, *end;
} message;

typedef struct field {
    uint64_t number, value; // value: of a varint, or the bits of a float
    const char *bytes;      // NULL: the field is a number
    size_t n;
} field;

static mezzo_status fail_damaged(const char *where) {
    return mz_fail(MEZZO_ERR_FORMAT, "%s: not a model of sentencepiece, or it is damaged", where);
}

static bool read_varint(message *m, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 70 && m->at < m->end; shift += 7) {
        const unsigned char byte = (unsigned char)*m->at++;
        *out |= shift < 64 ? (uint64_t)(byte & 0x7F) << shift : 0;
        if (byte < 0x80)
            return true;
    }
    return false;
}

static bool read_fixed(message *m, size_t n, uint64_t *out) {
    *out = 0;
    if ((size_t)(m->end - m->at) < n)
        return false;
    for (size_t i = 0; i < n; i++)
        *out |= (uint64_t)(unsigned char)*m->at++ << 8 * i;
    return true;
}

static bool read_field(message *m, field *out) {
    uint64_t tag;
    *out = (field){0};
    if (!read_varint(m, &tag))
        return false;
    out->number = tag >> 3;
    switch (tag & 7) {
    case 0:
        return read_varint(m, &out->value);
    case 1:
        return read_fixed(m, 8, &out->value);
    case 2:
        if (!read_varint(m, &out->value) || out->value > (uint64_t)(m->end - m->at))
            return false;
        out->bytes = m->at;
        out->n = (size_t)out->value;
        m->at += out->n;
        return true;
    case 5:
        return read_fixed(m, 4, &out->value);
    default:
        return false;
    }
}

static message message_of(const char *where, const field *f) {
    return (message){where, f->bytes, f->bytes + f->n};
}

// --- the model -----------------------------------------------------------------------------------------------------
typedef struct join { // joins two pieces to one
    float score;
    int32_t made, left, right;
} join;

typedef struct model {
    const char *where;
    mz_piece *pieces;
    size_t n, cap;
    uint64_t kind; // 1 Unigram, 2 BPE, 3 Word, 4 Char
    bool byte_fallback, suffix;
    bool dummy_prefix, remove_extra, escape;
    const char *rules;
    size_t rules_n;
    bool denormalizes;
    mz_bpe texts; // the pieces' texts, to find them
    join *joins;
    size_t n_joins, cap_joins;
} model;

static mezzo_status read_piece(model *m, message in) {
    mz_piece p = {.type = MZ_PIECE_NORMAL};
    for (field f; in.at < in.end;) {
        if (!read_field(&in, &f) || (f.number == 1 && f.bytes == NULL))
            return fail_damaged(m->where);
        const uint32_t bits = (uint32_t)f.value;
        if (f.number == 1)
            p.text = f.bytes, p.n = f.n;
        else if (f.number == 2)
            memcpy(&p.score, &bits, sizeof bits);
        else if (f.number == 3)
            p.type = f.value;
    }
    if (p.n == 0 || p.type < MZ_PIECE_NORMAL || p.type > MZ_PIECE_BYTE || isnan(p.score) || m->n == MZ_BPE_MAX_VOCAB)
        return fail_damaged(m->where);
    MEZZO_TRY(MZ_RESERVE(m->pieces, m->cap, m->n + 1));
    m->pieces[m->n++] = p;
    return MEZZO_OK;
}

static mezzo_status read_trainer(model *m, message in) {
    for (field f; in.at < in.end;) {
        if (!read_field(&in, &f))
            return fail_damaged(m->where);
        if (f.number == 3)
            m->kind = f.value;
        else if (f.number == 24)
            m->suffix = f.value != 0;
        else if (f.number == 35)
            m->byte_fallback = f.value != 0;
    }
    return MEZZO_OK;
}

static mezzo_status read_normalizer(model *m, message in) {
    for (field f; in.at < in.end;) {
        if (!read_field(&in, &f) || (f.number == 2 && f.bytes == NULL))
            return fail_damaged(m->where);
        if (f.number == 2)
            m->rules = f.bytes, m->rules_n = f.n;
        else if (f.number == 3)
            m->dummy_prefix = f.value != 0;
        else if (f.number == 4)
            m->remove_extra = f.value != 0;
        else if (f.number == 5)
            m->escape = f.value != 0;
    }
    return MEZZO_OK;
}

static mezzo_status read_denormalizer(model *m, message in) {
    for (field f; in.at < in.end;) {
        if (!read_field(&in, &f))
            return fail_damaged(m->where);
        m->denormalizes |= f.number == 2 && f.n > 0;
    }
    return MEZZO_OK;
}

static mezzo_status read_model(model *m, message in) {
    for (field f; in.at < in.end;) {
        if (!read_field(&in, &f) || (f.number >= 1 && f.number <= 5 && f.bytes == NULL))
            return fail_damaged(m->where);
        if (f.number == 1)
            MEZZO_TRY(read_piece(m, message_of(m->where, &f)));
        else if (f.number == 2)
            MEZZO_TRY(read_trainer(m, message_of(m->where, &f)));
        else if (f.number == 3)
            MEZZO_TRY(read_normalizer(m, message_of(m->where, &f)));
        else if (f.number == 5)
            MEZZO_TRY(read_denormalizer(m, message_of(m->where, &f)));
    }
    return m->n > 0 ? MEZZO_OK : fail_damaged(m->where);
}

// --- supported models ----------------------------------------------------------------------------------------------
static mezzo_status refuse(const model *m, const char *what) {
    return mz_fail(MEZZO_ERR_FORMAT, "%s: a model of sentencepiece with %s, which is not supported", m->where, what);
}

static mezzo_status check_rules(const model *m) {
    static const char *const kinds[] = {"Unigram", "BPE", "Word", "Char"};
    if (m->kind < 1 || m->kind > 4)
        return fail_damaged(m->where);
    if (m->kind != 2)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: a model of sentencepiece of kind %s; only BPE is supported", m->where,
                       kinds[m->kind - 1]);
    if (m->suffix)
        return refuse(m, "treat_whitespace_as_suffix");
    if (!m->escape)
        return refuse(m, "spaces that are not escaped");
    return m->denormalizes ? refuse(m, "a denormalizer") : MEZZO_OK;
}

static mezzo_status check_piece(const model *m, const mz_piece *p) {
    const char *what = mz_valid_until(p->text, 0, p->n) < p->n || memchr(p->text, '\0', p->n) != NULL ? "is no text"
                       : memchr(p->text, ' ', p->n) != NULL                                           ? "has a space"
                       : p->type == MZ_PIECE_NORMAL && p->n > MOST_PIECE                              ? "is too long"
                       : p->type == MZ_PIECE_UNUSED                                                   ? "is unused"
                                                                                                      : NULL;
    return what == NULL ? MEZZO_OK
                        : mz_fail(MEZZO_ERR_FORMAT, "%s: piece %s %s, which is not supported", m->where,
                                  mz_quote_bytes(p->text, p->n).text, what);
}

// Checks that the rules do not change a user's symbol, which must stay as it is.
static mezzo_status check_symbol(const model *m, const mz_charsmap *rules, const mz_piece *p) {
    const char *becomes;
    for (size_t at = 0, width; at < p->n; at += width) {
        uint32_t code;
        if (mz_charsmap_find(rules, p->text + at, p->n - at, &becomes) > 0)
            return mz_fail(MEZZO_ERR_FORMAT,
                           "%s: the user-defined piece %s is changed by the model's own rules of "
                           "normalization, which is not supported",
                           m->where, mz_quote_bytes(p->text, p->n).text);
        width = mz_utf8_decode(p->text + at, p->n - at, &code);
    }
    return MEZZO_OK;
}

static mezzo_status check_symbols(const model *m) {
    mz_charsmap *rules;
    mezzo_status status = MEZZO_OK;
    if (m->rules_n == 0)
        return MEZZO_OK;
    MEZZO_TRY(mz_charsmap_create(m->where, m->rules, m->rules_n, &rules));
    for (size_t i = 0; i < m->n && status == MEZZO_OK; i++)
        if (m->pieces[i].type == MZ_PIECE_USER_DEFINED)
            status = check_symbol(m, rules, &m->pieces[i]);
    mz_charsmap_free(rules);
    return status;
}

static mezzo_status check_model(const model *m) {
    size_t unknown = 0, bytes = 0;
    MEZZO_TRY(check_rules(m));
    for (size_t i = 0; i < m->n; i++) {
        MEZZO_TRY(check_piece(m, &m->pieces[i]));
        unknown += m->pieces[i].type == MZ_PIECE_UNKNOWN;
        bytes += m->pieces[i].type == MZ_PIECE_BYTE;
    }
    if (unknown != 1)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: %zu unknown pieces; a model of sentencepiece has one", m->where, unknown);
    if (m->byte_fallback && bytes != 256)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: byte_fallback with pieces for %zu bytes, not 256", m->where, bytes);
    return check_symbols(m);
}

// --- merges --------------------------------------------------------------------------------------------------------
static mezzo_status index_pieces(model *m) {
    int32_t twice;
    m->texts = mz_bpe_of_bytes();
    for (size_t i = 0; i < m->n; i++)
        MEZZO_TRY(mz_bpe_add_token(&m->texts, m->pieces[i].text, m->pieces[i].n));
    MEZZO_TRY(mz_bpe_index(&m->texts, m->n, 0, NULL, &twice));
    return twice < 0 ? MEZZO_OK
                     : mz_fail(MEZZO_ERR_FORMAT, "%s: piece %s is there twice", m->where,
                               mz_quote_bytes(m->pieces[twice].text, m->pieces[twice].n).text);
}

static int32_t find_normal(const model *m, const char *text, size_t n) {
    const int32_t found = mz_bpe_find(&m->texts, text, n);
    return found >= 0 && m->pieces[found].type == MZ_PIECE_NORMAL ? found : -1;
}

static mezzo_status add_joins(model *m, int32_t made) {
    const mz_piece *p = &m->pieces[made];
    for (size_t at = 1; at < p->n && p->type == MZ_PIECE_NORMAL; at++) {
        if (((unsigned char)p->text[at] & 0xC0) == 0x80)
            continue;
        const int32_t left = find_normal(m, p->text, at), right = find_normal(m, p->text + at, p->n - at);
        if (left < 0 || right < 0)
            continue;
        MEZZO_TRY(MZ_RESERVE(m->joins, m->cap_joins, m->n_joins + 1));
        m->joins[m->n_joins++] = (join){p->score, made, left, right};
    }
    return MEZZO_OK;
}

static int compare_joins(const void *x, const void *y) {
    const join *a = x, *b = y;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    if (a->made != b->made)
        return a->made < b->made ? -1 : 1;
    return a->left != b->left ? (a->left > b->left) - (a->left < b->left)
                              : (a->right > b->right) - (a->right < b->right);
}

static mezzo_status find_joins(model *m) {
    MEZZO_TRY(index_pieces(m));
    for (size_t i = 0; i < m->n; i++)
        MEZZO_TRY(add_joins(m, (int32_t)i));
    if (m->n_joins > MZ_BPE_MAX_VOCAB)
        return refuse(m, "too many merges");
    if (m->n_joins > 1)
        qsort(m->joins, m->n_joins, sizeof *m->joins, compare_joins);
    return MEZZO_OK;
}

// --- tokenizer.json ------------------------------------------------------------------------------------------------
static mezzo_status fail_memory(void) {
    return mz_fail(MEZZO_ERR_MEMORY, "out of memory while making a tokenizer's JSON");
}

// Appends the item, which the list takes over.
static mezzo_status append(json_t *list, json_t *item) {
    return json_array_append_new(list, item) == 0 ? MEZZO_OK : fail_memory();
}

static json_t *replace(const char *kind, const char *pattern, const char *content) {
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", kind, pattern, "content", content);
}

static mezzo_status add_normalizers(const model *m, json_t *list) {
    static const char *const becomes[3] = {"", " ", ""};
    mz_text rules = {0};
    mz_base64_add(&rules, m->rules, m->rules_n);
    mezzo_status status = rules.status;
    if (status == MEZZO_OK && m->rules_n > 0)
        status = append(list, json_pack("{s:s, s:s}", "type", "Precompiled", "precompiled_charsmap", rules.data));
    mz_text_free(&rules);
    for (int i = 0; i < 3 && m->remove_extra && status == MEZZO_OK; i++)
        status = append(list, replace("Regex", mz_json_extra_spaces[i], becomes[i]));
    if (status == MEZZO_OK && m->dummy_prefix)
        status = append(list, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", SPACE));
    return status == MEZZO_OK ? append(list, replace("String", " ", SPACE)) : status;
}

static int compare_lengths(const void *x, const void *y) {
    const mz_piece *a = *(const mz_piece *const *)x, *b = *(const mz_piece *const *)y;
    return a->n != b->n ? (a->n < b->n) - (a->n > b->n) : memcmp(a->text, b->text, a->n);
}

// Writes "A|B": the user's symbols, the longest first.
static mezzo_status symbols_pattern(const model *m, mz_text *out) {
    const mz_piece **symbols = mz_alloc(m->n, sizeof *symbols);
    size_t n = 0;
    if (symbols == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < m->n; i++)
        if (m->pieces[i].type == MZ_PIECE_USER_DEFINED)
            symbols[n++] = &m->pieces[i];
    if (n > 1)
        qsort(symbols, n, sizeof *symbols, compare_lengths);
    for (size_t i = 0; i < n; i++) {
        mz_text_add(out, "|", i > 0);
        for (size_t k = 0; k < symbols[i]->n; k++) {
            const char c = symbols[i]->text[k];
            mz_text_add(out, "\\", strchr("\\|()[]{}.*+?^$-#&~", c) != NULL);
            mz_text_add(out, &c, 1);
        }
    }
    mz_free(symbols);
    return out->status;
}

// Adds a split between the user's symbols, which are words themselves; with ignore_merges a word that is a piece
// becomes that piece.
static mezzo_status add_split(const model *m, json_t *frame) {
    MZ_SCOPED(mz_text_free) mz_text pattern = {0};
    MEZZO_TRY(symbols_pattern(m, &pattern));
    if (pattern.len > 0) {
        json_t *split = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", pattern.data,
                                  "behavior", "Isolated", "invert", 0);
        if (json_object_set_new(frame, "pre_tokenizer", split) != 0 ||
            json_object_set_new(json_object_get(frame, "model"), "ignore_merges", json_true()) != 0)
            return fail_memory();
    }
    return MEZZO_OK;
}

static mezzo_status add_pieces(const model *m, json_t *vocab, json_t *added, json_t *rules) {
    for (size_t i = 0; i < m->n; i++) {
        const mz_piece *p = &m->pieces[i];
        char *key;
        MEZZO_TRY(MZ_NEW(key, p->n + 1));
        memcpy(key, p->text, p->n);
        bool full = json_object_set_new(vocab, key, json_integer((json_int_t)i)) != 0;
        if (p->type == MZ_PIECE_UNKNOWN)
            full |= json_object_set_new(rules, "unk_token", json_string(key)) != 0;
        mz_free(key);
        if (p->type == MZ_PIECE_UNKNOWN || p->type == MZ_PIECE_CONTROL)
            full |= json_array_append_new(added, mz_json_special(p->text, p->n, (int32_t)i)) != 0;
        if (full)
            return fail_memory();
    }
    return MEZZO_OK;
}

static mezzo_status add_merges(const model *m, json_t *merges) {
    MZ_SCOPED(mz_text_free) mz_text text = {0};
    for (size_t i = 0; i < m->n_joins; i++) {
        const mz_piece *left = &m->pieces[m->joins[i].left], *right = &m->pieces[m->joins[i].right];
        text.len = 0;
        mz_text_add(&text, left->text, left->n);
        mz_text_add(&text, " ", 1);
        mz_text_add(&text, right->text, right->n);
        MEZZO_TRY(text.status == MEZZO_OK ? append(merges, json_stringn(text.data, text.len)) : text.status);
    }
    return MEZZO_OK;
}

static json_t *make_decoder(const model *m) {
    json_t *list =
        json_pack("[o, {s:s}, {s:s}]", replace("String", SPACE, " "), "type", "ByteFallback", "type", "Fuse");
    if (m->dummy_prefix && append(list, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", 1,
                                                  "stop", 0)) != MEZZO_OK) {
        json_decref(list);
        return NULL;
    }
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", list);
}

static mezzo_status fill(const model *m, json_t *frame) {
    json_t *rules = json_object_get(frame, "model"), *vocab = json_object(), *merges = json_array(),
           *list = json_array();
    bool full = json_object_set_new(rules, "vocab", vocab) != 0;
    full |= json_object_set_new(rules, "merges", merges) != 0;
    full |= json_object_set_new(rules, "fuse_unk", json_true()) != 0;
    full |= json_object_set_new(rules, "byte_fallback", json_boolean(m->byte_fallback)) != 0;
    full |=
        json_object_set_new(frame, "normalizer", json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", list)) != 0;
    if (full)
        return fail_memory();
    MEZZO_TRY(add_normalizers(m, list));
    MEZZO_TRY(add_split(m, frame));
    MEZZO_TRY(add_pieces(m, vocab, json_object_get(frame, "added_tokens"), rules));
    return add_merges(m, merges);
}

// Makes tokenizer.json; the model's pieces stay the caller's.
static mezzo_status make(model *m, json_t **out) {
    json_t *frame = NULL;
    mz_json_begin();
    mezzo_status status = check_model(m);
    if (status == MEZZO_OK)
        status = find_joins(m);
    if (status == MEZZO_OK)
        frame = mz_json_frame(json_array(), NULL, make_decoder(m));
    if (status == MEZZO_OK)
        status = frame != NULL ? fill(m, frame) : fail_memory();
    mz_bpe_free(&m->texts);
    mz_free(m->joins);
    if (status == MEZZO_OK)
        *out = frame;
    else
        json_decref(frame);
    return status;
}

mezzo_status mz_sentencepiece_read(const char *where, const char *bytes, size_t n, json_t **out) {
    model m = {.where = where, .kind = 1, .dummy_prefix = true, .remove_extra = true, .escape = true};
    *out = NULL;
    mezzo_status status = read_model(&m, (message){where, bytes, bytes + n});
    if (status == MEZZO_OK)
        status = make(&m, out);
    mz_free(m.pieces);
    return status;
}

mezzo_status mz_sentencepiece_make(const char *where, mz_piece *pieces, size_t n, bool prefix, json_t **out) {
    model m = {.where = where, .kind = 2, .byte_fallback = true, .dummy_prefix = prefix, .escape = true};
    m.pieces = pieces;
    m.n = n;
    *out = NULL;
    return make(&m, out);
}
