// Reads vocabularies and merge lists from files of GPT-2's form and from tokenizer.json.
#include "data/bpe.h"

#include "data/alphabet.h"
#include "io/json.h"
#include "io/quote.h"

// --- the work ------------------------------------------------------------------------------------------------------
typedef struct reader {
    const char *where; // names the merges in errors
    mz_bpe *bpe;
    bool derived; // there is no vocabulary, so the merges make it
    char *room;   // memory for the bytes of one token
    size_t cap_room;
} reader;

static mezzo_status add_text_token(reader *r, const char *text, size_t n) {
    MEZZO_TRY(MZ_RESERVE(r->room, r->cap_room, n + 1));
    size_t bytes = mz_letters_to_bytes(text, n, r->room);
    return bytes == SIZE_MAX ? mz_bpe_add_token(r->bpe, text, n) : mz_bpe_add_token(r->bpe, r->room, bytes);
}

static mezzo_status check_bytes(const char *where, const mz_bpe *bpe) {
    for (int b = 0; b < 256; b++)
        if (bpe->byte_token[b] < 0)
            return mz_fail(MEZZO_ERR_FORMAT,
                           "%s: no token for byte 0x%02X: a byte-level vocabulary has one for each of the 256", where,
                           b);
    return MEZZO_OK;
}

// Adds the merge of a line "LEFT RIGHT", without its line end; `line` is its number, for errors.
static mezzo_status add_merge_line(reader *r, const char *text, size_t n, size_t line) {
    mz_bpe *bpe = r->bpe;
    const char *space = memchr(text, ' ', n);
    size_t left = space ? (size_t)(space - text) : 0, right = space ? n - left - 1 : 0;
    if (left == 0 || right == 0 || memchr(space + 1, ' ', right))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: line %zu: %s is not two parts with a space between", r->where, line,
                       mz_quote_bytes(text, n).text);
    MEZZO_TRY(MZ_RESERVE(r->room, r->cap_room, n));
    size_t a = mz_letters_to_bytes(text, left, r->room);
    size_t b = a == SIZE_MAX ? a : mz_letters_to_bytes(space + 1, right, r->room + a);
    if (b == SIZE_MAX)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: line %zu: %s has a character that is not in GPT-2's byte alphabet",
                       r->where, line, mz_quote_bytes(text, n).text);
    mz_bpe_merge merge = {mz_bpe_find(bpe, r->room, a), mz_bpe_find(bpe, r->room + a, b),
                          mz_bpe_find(bpe, r->room, a + b)};
    bool left_made = merge.left >= 0 && bpe->made[merge.left];
    if (!left_made || merge.right < 0 || !bpe->made[merge.right])
        return mz_fail(MEZZO_ERR_FORMAT, "%s: line %zu: part %s is neither a byte nor the result of an earlier line",
                       r->where, line,
                       (left_made ? mz_quote_bytes(space + 1, right) : mz_quote_bytes(text, left)).text);
    if (merge.merged < 0 && r->derived)
        MEZZO_TRY(mz_bpe_add_indexed(bpe, r->room, a + b, &merge.merged));
    if (merge.merged < 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: line %zu: the vocabulary has no token for the two parts of %s together",
                       r->where, line, mz_quote_bytes(text, n).text);
    bool added;
    MEZZO_TRY(mz_bpe_add_merge(bpe, merge, &added));
    return added ? MEZZO_OK
                 : mz_fail(MEZZO_ERR_FORMAT, "%s: line %zu: the pair %s occurs twice", r->where, line,
                           mz_quote_bytes(text, n).text);
}

// --- files of GPT-2's form -----------------------------------------------------------------------------------------
static size_t line_count(const mz_bpe_text *merges) {
    size_t lines = 1;
    for (size_t i = 0; i < merges->n; i++)
        lines += merges->text[i] == '\n';
    return lines;
}

static mezzo_status read_merges(reader *r, const mz_bpe_text *merges) {
    static const char version[] = "#version";
    size_t line = 0;
    for (size_t at = 0; at < merges->n;) {
        const char *text = merges->text + at, *end = memchr(text, '\n', merges->n - at);
        size_t n = end ? (size_t)(end - text) : merges->n - at;
        at += n + 1;
        line++;
        if (n > 0 && text[n - 1] == '\r')
            n--;
        if (line == 1 && n >= sizeof version - 1 && memcmp(text, version, sizeof version - 1) == 0)
            continue;
        if (n == 0 && at >= merges->n) // blank lines at the end
            break;
        MEZZO_TRY(add_merge_line(r, text, n, line));
    }
    return MEZZO_OK;
}

// Lists the texts by number from {"token": number}. The caller frees the array; the texts belong to the JSON.
static mezzo_status order_vocab(const char *where, const json_t *object, const char ***texts, size_t **lengths) {
    size_t n = json_object_size(object);
    const char *key;
    json_t *value;
    MEZZO_TRY(MZ_NEW(*texts, n + 1));
    MEZZO_TRY(MZ_NEW(*lengths, n + 1));
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
        if (number < 0 || (size_t)number >= n)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: token %s: its number must be one of 0 … %zu, without gaps", where,
                           mz_quote(key).text, n - 1);
        if ((*texts)[number])
            return mz_fail(MEZZO_ERR_FORMAT, "%s: tokens %s and %s have the same number %lld", where,
                           mz_quote((*texts)[number]).text, mz_quote(key).text, (long long)number);
        if (*key == '\0')
            return mz_fail(MEZZO_ERR_FORMAT, "%s: token %lld is empty", where, (long long)number);
        (*texts)[number] = key;
        (*lengths)[number] = strlen(key);
    }
    return MEZZO_OK;
}

// Appends tokens that were added after a vocabulary, as long as their numbers have no holes.
static mezzo_status add_tokens(const mz_bpe_text *vocab, json_t *object) {
    for (;;) {
        char number[24];
        snprintf(number, sizeof number, "%zu", json_object_size(object));
        const char *token = json_string_value(json_object_get(vocab->added, number));
        if (token == NULL || json_object_get(object, token) != NULL)
            return MEZZO_OK;
        if (json_object_set_new(object, token, json_integer((json_int_t)json_object_size(object))) != 0)
            return mz_fail(MEZZO_ERR_MEMORY, "%s: out of memory", vocab->where);
    }
}

static mezzo_status read_vocab(reader *r, const mz_bpe_text *vocab) {
    mezzo_status status = MEZZO_OK;
    const char **texts = NULL;
    size_t *lengths = NULL;
    json_t *object = NULL;
    MEZZO_TRY(mz_json_parse(vocab->where, vocab->text, vocab->n, 1, &object));
    if (!json_is_object(object) || json_object_size(object) > MZ_BPE_MAX_VOCAB)
        status = mz_fail(MEZZO_ERR_FORMAT, "%s: a vocabulary is an object of at most %d tokens, {\"token\": number}",
                         vocab->where, MZ_BPE_MAX_VOCAB);
    if (status == MEZZO_OK)
        status = add_tokens(vocab, object);
    if (status == MEZZO_OK)
        status = order_vocab(vocab->where, object, &texts, &lengths);
    for (size_t i = 0; status == MEZZO_OK && i < json_object_size(object); i++)
        status = add_text_token(r, texts[i], lengths[i]);
    MZ_FREE(texts, lengths);
    json_decref(object);
    return status;
}

static mezzo_status index_vocab(reader *r, const char *where, size_t merges) {
    int32_t twice;
    MEZZO_TRY(mz_bpe_index(r->bpe, (size_t)r->bpe->vocab + (r->derived ? merges + 1 : 0), merges, NULL, &twice));
    if (twice >= 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: token %d stands for the same bytes as another", where, (int)twice);
    return check_bytes(where, r->bpe);
}

static mezzo_status read_both(reader *r, const mz_bpe_text *vocab, const mz_bpe_text *merges) {
    static const char end_of_text[] = "<|endoftext|>";
    size_t lines = line_count(merges);
    if (lines > MZ_BPE_MAX_VOCAB)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: more than %d merges", merges->where, MZ_BPE_MAX_VOCAB);
    if (vocab)
        MEZZO_TRY(read_vocab(r, vocab));
    for (int i = 0; i < 256 && r->derived; i++) {
        const char byte = (char)mz_alphabet_byte(i);
        MEZZO_TRY(mz_bpe_add_token(r->bpe, &byte, 1));
    }
    MEZZO_TRY(index_vocab(r, vocab ? vocab->where : merges->where, lines));
    MEZZO_TRY(read_merges(r, merges));
    int32_t token = r->derived ? mz_bpe_find(r->bpe, end_of_text, sizeof end_of_text - 1) : 0;
    if (token < 0)
        MEZZO_TRY(mz_bpe_add_indexed(r->bpe, end_of_text, sizeof end_of_text - 1, &token));
    return mz_bpe_finish(r->bpe);
}

mezzo_status mz_bpe_read(const mz_bpe_text *vocab, const mz_bpe_text *merges, mz_bpe *out) {
    *out = mz_bpe_of_bytes();
    reader r = {.where = merges->where, .bpe = out, .derived = vocab == NULL};
    mezzo_status status = read_both(&r, vocab, merges);
    mz_free(r.room);
    if (status != MEZZO_OK)
        mz_bpe_free(out);
    return status;
}

// --- tokenizer.json ------------------------------------------------------------------------------------------------
static mezzo_status get_text(const char *where, const char *key, const json_t *list, size_t i, const char **out,
                             size_t *n) {
    const json_t *text = json_array_get(list, i);
    if (!json_is_string(text) || json_string_length(text) == 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s': entry %zu is not a text", where, key, i);
    *out = json_string_value(text);
    *n = json_string_length(text);
    return MEZZO_OK;
}

static mezzo_status read_json(reader *r, const json_t *object) {
    json_t *vocab, *merges;
    const char *text;
    size_t n;
    MEZZO_TRY(mz_json_get_array(r->where, object, "vocab", &vocab));
    MEZZO_TRY(mz_json_get_array(r->where, object, "merges", &merges));
    if (json_array_size(vocab) > MZ_BPE_MAX_VOCAB || json_array_size(merges) > MZ_BPE_MAX_VOCAB)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: more than %d tokens or merges", r->where, MZ_BPE_MAX_VOCAB);
    for (size_t i = 0; i < json_array_size(vocab); i++) {
        MEZZO_TRY(get_text(r->where, "vocab", vocab, i, &text, &n));
        MEZZO_TRY(add_text_token(r, text, n));
    }
    MEZZO_TRY(index_vocab(r, r->where, json_array_size(merges)));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        MEZZO_TRY(get_text(r->where, "merges", merges, i, &text, &n));
        MEZZO_TRY(add_merge_line(r, text, n, i + 1));
    }
    return mz_bpe_finish(r->bpe);
}

mezzo_status mz_bpe_from_json(const char *where, const json_t *object, mz_bpe *out) {
    *out = mz_bpe_of_bytes();
    reader r = {.where = where, .bpe = out};
    mezzo_status status = read_json(&r, object);
    mz_free(r.room);
    if (status != MEZZO_OK)
        mz_bpe_free(out);
    return status;
}

static mezzo_status append_text(json_t *list, mz_text *text) {
    mezzo_status status = text->status;
    if (status == MEZZO_OK && json_array_append_new(list, json_stringn(text->data, text->len)) != 0)
        status = mz_fail(MEZZO_ERR_MEMORY, "out of memory while making a tokenizer's JSON");
    mz_text_free(text);
    return status;
}

static void add_token_text(const mz_bpe *bpe, int32_t token, mz_text *out) {
    size_t n;
    const char *bytes = mz_bpe_bytes(bpe, token, &n);
    mz_bytes_to_letters(bytes, n, out);
}

mezzo_status mz_bpe_to_json(const mz_bpe *bpe, json_t *object) {
    json_t *vocab = json_array(), *merges = json_array();
    mezzo_status status = MEZZO_OK;
    if (json_object_set_new(object, "vocab", vocab) != 0 || json_object_set_new(object, "merges", merges) != 0)
        return mz_fail(MEZZO_ERR_MEMORY, "out of memory while making a tokenizer's JSON");
    for (int32_t t = 0; t < bpe->vocab && status == MEZZO_OK; t++) {
        mz_text text = {0};
        add_token_text(bpe, t, &text);
        status = append_text(vocab, &text);
    }
    for (size_t i = 0; i < bpe->n_merges && status == MEZZO_OK; i++) {
        mz_text text = {0};
        add_token_text(bpe, bpe->merges[i].left, &text);
        mz_text_add(&text, " ", 1);
        add_token_text(bpe, bpe->merges[i].right, &text);
        status = append_text(merges, &text);
    }
    return status;
}
