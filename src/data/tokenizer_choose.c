// Decides which tokenizer a text, token shards or weights have. No other file does.
#include "data/tokenizer.h"
#include "io/quote.h"

static bool given(const char *text) {
    return text != NULL && text[0] != '\0';
}

static bool names_one(const char *named) {
    return given(named) && strcmp(named, "auto") != 0;
}

bool mz_tokenizer_same(const mezzo_tokenizer *a, const mezzo_tokenizer *b) {
    return a->kind->same != NULL && a->kind->same == b->kind->same && a->kind->same(a, b);
}

static void describe(const mezzo_tokenizer *tok, char *out, size_t size) {
    snprintf(out, size, "%s, %d tokens", tok->kind->name, (int)tok->vocab);
}

// Checks that the shards' tokens are the model's; to another model they would be meaningless.
static mezzo_status compare_data(const mz_tokenizer_sources *from, const mezzo_tokenizer *own) {
    mezzo_tokenizer *data;
    MEZZO_TRY(mezzo_tokenizer_load(from->data, &data));
    char a[64], b[64];
    describe(data, a, sizeof a);
    describe(own, b, sizeof b);
    const bool same = mz_tokenizer_same(data, own);
    mezzo_tokenizer_free(data);
    if (same)
        return MEZZO_OK;
    return mz_fail(
        MEZZO_ERR_INVALID,
        "the token shards are those of %s (%s), the model's tokenizer is %s (%s): make shards with mezzo data "
        "--tokenizer and the model's",
        mz_quote(from->data).text, a, mz_quote(from->own).text, b);
}

static mezzo_status refuse_named(const mz_tokenizer_sources *from, const mezzo_tokenizer *own, const char *named) {
    char text[64];
    describe(own, text, sizeof text);
    if (given(from->own))
        return mz_fail(
            MEZZO_ERR_INVALID,
            "data.tokenizer (--tokenizer) is %s%s, but the model's own is %s (%s): name none (auto) and its own "
            "is used, or import the weights with --tokenizer none if they know no tokens yet",
            mz_quote(from->named).text, named, mz_quote(from->own).text, text);
    return mz_fail(
        MEZZO_ERR_INVALID,
        "data.tokenizer (--tokenizer) is %s%s, but the token shards are those of %s (%s): name none (auto), or "
        "make other shards",
        mz_quote(from->named).text, named, mz_quote(from->data).text, text);
}

// Compares with the named tokenizer. "char" here means any tokenizer of characters, because each text would make
// another one.
static mezzo_status compare_named(const mz_tokenizer_sources *from, const mezzo_tokenizer *own) {
    if (strcmp(from->named, "char") == 0)
        return own->kind == &mz_tokenizer_char ? MEZZO_OK : refuse_named(from, own, "");
    mezzo_tokenizer *named;
    char text[64], shown[80];
    MEZZO_TRY(mz_tokenizer_named(from->named, &named));
    describe(named, text, sizeof text);
    snprintf(shown, sizeof shown, " (%s)", text);
    const bool same = mz_tokenizer_same(named, own);
    mezzo_tokenizer_free(named);
    return same ? MEZZO_OK : refuse_named(from, own, shown);
}

static mezzo_status compare(const mz_tokenizer_sources *from, const mezzo_tokenizer *own) {
    if (given(from->own) && given(from->data))
        MEZZO_TRY(compare_data(from, own));
    return names_one(from->named) ? compare_named(from, own) : MEZZO_OK;
}

mezzo_status mz_tokenizer_choose(const mz_tokenizer_sources *from, mezzo_tokenizer **out) {
    const char *own = given(from->own) ? from->own : from->data;
    *out = NULL;
    if (!given(own))
        return names_one(from->named) && strcmp(from->named, "char") != 0 ? mz_tokenizer_named(from->named, out)
                                                                          : MEZZO_OK;
    MEZZO_TRY(mezzo_tokenizer_load(own, out));
    mezzo_status status = compare(from, *out);
    if (status != MEZZO_OK) {
        mezzo_tokenizer_free(*out);
        *out = NULL;
    }
    return status;
}

mezzo_status mz_tokenizer_choose_for_text(const mz_tokenizer_sources *from, const char *what, mezzo_tokenizer **out) {
    MEZZO_TRY(mz_tokenizer_choose(from, out));
    if (*out != NULL || !given(from->weights) || names_one(from->named))
        return MEZZO_OK;
    return mz_fail(MEZZO_ERR_INVALID,
                   "%s cannot be turned into tokens: the weights of %s came without a tokenizer; name theirs with "
                   "data.tokenizer (--tokenizer), or import them again with --tokenizer",
                   mz_quote(what).text, mz_quote(from->weights).text);
}
