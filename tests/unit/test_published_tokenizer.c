// What of a tokenizer.json of the `tokenizers` library is not supported is refused by name, in a line; what stands
// there and changes no token is read over. Texts that are no UTF-8, and characters that no token stands for.
//
// To see it fail: a part_kind without its list of keys, a table without its row, an unknown character that is left out.
#include "fixture.h"
#include "data/pattern.h"
#include "data/tokenizer.h"
#include "io/json.h"

#define MODEL                                                                                                          \
    "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"<u>\": 3}, \"merges\": [[\"a\", "     \
    "\"b\"]]}"

static mezzo_status load(const char *text, mezzo_tokenizer **out) {
    json_t *object;
    *out = NULL;
    MEZZO_TRY(mz_json_parse("t.json", text, strlen(text), MZ_JSON_DEPTH, &object));
    mezzo_status status = mz_tokenizer_from_json("t.json", object, false, out);
    json_decref(object);
    return status;
}

static void refused(const char *text, mezzo_status expected, const char *part) {
    mezzo_tokenizer *tok;
    const mezzo_status status = load(text, &tok);
    if (status != expected || strstr(mezzo_error_message(), part) == NULL ||
        strstr(mezzo_error_message(), "t.json") == NULL || strchr(mezzo_error_message(), '\n') != NULL)
        fail_msg("%s: status %d, \"%s\" does not have \"%s\"", text, (int)status, mezzo_error_message(), part);
    assert_null(tok);
}

#define SPLIT(regex)                                                                                                   \
    "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex                                      \
    "\"}, \"behavior\": \"Isolated\"}, " MODEL "}"

TEST(what_is_not_supported_is_named) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}", "'Unigram'; only BPE"},
        {"{\"model\": {\"type\": \"WordPiece\", \"vocab\": {}}}", "'WordPiece'"},
        {"{\"model\": {\"type\": \"WordLevel\", \"vocab\": {}}}", "'WordLevel'"},
        {"{\"normalizer\": {\"type\": \"BertNormalizer\"}, " MODEL "}", "normalizer 'BertNormalizer'"},
        {"{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Precompiled\", "
         "\"precompiled_charsmap\": \"AAAA!\"}]}, " MODEL "}",
         "no base64"},
        {"{\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"BAAAAAAAAAA=\"}, " MODEL "}",
         "precompiled_charsmap is damaged"},
        {"{\"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}, " MODEL "}", "pre_tokenizer 'UnicodeScripts'"},
        {"{\"pre_tokenizer\": {\"type\": \"Digits\", \"individual\": true}, " MODEL "}", "key 'individual'"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a&&b]\"}, \"behavior\": "
         "\"Isolated\"}, " MODEL "}",
         "a class within a class"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?m)a\"}, \"behavior\": "
         "\"Isolated\"}, " MODEL "}",
         "a group"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\\\\1\"}, \"behavior\": "
         "\"Isolated\"}, " MODEL "}",
         "an escape"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": \"Kept\"}, " MODEL
         "}",
         "behavior"},
        {"{\"post_processor\": {\"type\": \"Other\"}, " MODEL "}", "post_processor 'Other'"},
        {"{\"decoder\": {\"type\": \"CTC\"}, " MODEL "}", "decoder 'CTC'"},
        {"{\"decoder\": {\"type\": \"ByteLevel\"}, " MODEL "}", "without the pre-tokenizer ByteLevel"},
        {"{\"decoder\": {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}, " MODEL "}",
         "decoder Strip"},
        {"{\"more\": 1, " MODEL "}", "key 'more'"},
        {"{\"model\": {\"type\": \"BPE\", \"dropout\": 0.1, \"vocab\": {\"a\": 0}, \"merges\": []}}", "dropout"},
        {"{\"model\": {\"type\": \"BPE\", \"dropout\": NaN, \"vocab\": {\"a\": 0}, \"merges\": []}}", "dropout"},
        {"{\"model\": {\"type\": \"BPE\", \"dropout\": \"0.1\", \"vocab\": {\"a\": 0}, \"merges\": []}}", "dropout"},
        {"{\"model\": {\"type\": \"BPE\", \"unk_token\": 0, \"vocab\": {\"a\": 0}, \"merges\": []}}", "unk_token"},
        {"{\"model\": {\"type\": \"BPE\", \"end_of_word_suffix\": \"</w>\", \"vocab\": {\"a\": 0}, \"merges\": []}}",
         "end_of_word_suffix"},
        {"{\"model\": {\"type\": \"BPE\", \"continuing_subword_prefix\": \"##\", \"vocab\": {\"a\": 0}, \"merges\": "
         "[]}}",
         "continuing_subword_prefix"},
        {"{\"model\": {\"type\": \"BPE\", \"continuing_subword_prefix\": 1, \"vocab\": {\"a\": 0}, \"merges\": []}}",
         "continuing_subword_prefix"},
        {SPLIT("[a-[b]]"), "a class within a class"},
        {SPLIT("[a[-z]]"), "a class within a class"},
        {SPLIT("[[a-]z]"), "a class within a class"},
        {SPLIT("[[a]-z]"), "a class within a class"},
    };
    for (size_t i = 0; i < MZ_COUNT(cases); i++)
        refused(cases[i].text, MEZZO_ERR_FORMAT, cases[i].part);
    refused("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a b\"]}}", MEZZO_ERR_FORMAT, "'ab'");
    refused("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}", MEZZO_ERR_FORMAT,
            "the same number 0");
    refused("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 16000000}, \"merges\": []}}", MEZZO_ERR_FORMAT,
            "holes");
    refused("{\"added_tokens\": [{\"id\": 9, \"content\": \"a\"}], " MODEL "}", MEZZO_ERR_FORMAT,
            "among the added tokens");
}

TEST(replacements_do_not_explode) {
    mz_text json = {0};
    mezzo_tokenizer *tok;
    size_t n;
    mz_text_addf(&json, "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [");
    for (int i = 0; i < 24; i++)
        mz_text_addf(&json, "%s{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"aa\"}",
                     i > 0 ? ", " : "");
    mz_text_addf(&json, "]}, " MODEL "}");
    assert_int_equal(json.status, MEZZO_OK);
    must(load(json.data, &tok));
    must_fail(mezzo_tokenizer_encode(tok, "a", 1, NULL, &n), MEZZO_ERR_UNSUPPORTED, "times as long");
    mezzo_tokenizer_free(tok);
    mz_text_free(&json);
}

TEST(unknown_characters_are_refused_or_unknown) {
    static const char fused[] =
        "{\"model\": {\"type\": \"BPE\", \"unk_token\": \"<u>\", \"fuse_unk\": true, \"vocab\": "
        "{\"a\": 0, \"<u>\": 1}, \"merges\": []}, \"truncation\": {\"max_length\": 1}}";
    mezzo_tokenizer *tok;
    int32_t tokens[8];
    size_t n;
    must(load("{" MODEL "}", &tok));
    must(mezzo_tokenizer_encode(tok, "abba", 4, tokens, &n));
    assert_int_equal(n, 3);
    assert_int_equal(tokens[0], 2);
    must_fail(mezzo_tokenizer_encode(tok, "ab\xC3\xA9", 4, tokens, &n), MEZZO_ERR_INVALID, "U+E9");
    must_fail(mezzo_tokenizer_encode(tok, "a\xFF", 2, tokens, &n), MEZZO_ERR_INVALID, "0xFF");
    mezzo_tokenizer_free(tok);
    must(load(fused, &tok));
    must(mezzo_tokenizer_encode(tok, "xyazz", 5, tokens, &n));
    assert_int_equal(n, 3);
    assert_int_equal(tokens[2], 1);
    mezzo_tokenizer_free(tok);
}

// GPT-2 as it is published: the same tokenizer as the one the library carries, also where it is named.
TEST(gpt2_in_that_form_is_gpt2) {
    mezzo_tokenizer *gpt2, *published;
    json_t *own, *object;
    bool sealed;
    must(mezzo_tokenizer_create_gpt2(&gpt2));
    must(mezzo_tokenizer_save_bpe(gpt2, "."));
    must(mezzo_tokenizer_create_bpe("vocab.json", "merges.txt", &published));
    must(mezzo_tokenizer_save(published, "own.json"));
    mezzo_tokenizer_free(published);
    must(mz_json_load_sealed("own.json", (size_t)64 << 20, &own, &sealed));
    json_t *model = json_object_get(own, "model");
    object = json_pack("{s:s, s:[{s:i, s:s, s:b}], s:{s:s, s:b}, s:{s:s}, s:{s:s, s:s, s:s, s:O, s:O}}", "version",
                       "1.0", "added_tokens", "id", 50256, "content", "<|endoftext|>", "special", 1, "pre_tokenizer",
                       "type", "ByteLevel", "add_prefix_space", 0, "decoder", "type", "ByteLevel", "model", "type",
                       "BPE", "unk_token", "", "end_of_word_suffix", "", "vocab", json_object_get(model, "vocab"),
                       "merges", json_object_get(model, "merges"));
    assert_non_null(object);
    must(mz_tokenizer_from_json("gpt2", object, false, &published));
    assert_true(mz_tokenizer_same(gpt2, published));
    must(mezzo_tokenizer_save(published, "tokenizer.json"));
    mezzo_tokenizer *chosen;
    must(mz_tokenizer_choose(&(mz_tokenizer_sources){.own = "tokenizer.json", .named = "gpt2"}, &chosen));
    mezzo_tokenizer_free(chosen);
    json_object_del(json_object_get(object, "pre_tokenizer"), "add_prefix_space"); // true, then
    mezzo_tokenizer_free(published);
    must(mz_tokenizer_from_json("gpt2", object, false, &published));
    assert_false(mz_tokenizer_same(gpt2, published));
    json_decref(object);
    json_decref(own);
    mezzo_tokenizer_free(published);
    mezzo_tokenizer_free(gpt2);
}

// Twice the text takes about twice the steps: a word that is a whole text, and a character with a million marks.
TEST(long_words_end) {
    static const char nfd[] =
        "{\"normalizer\": {\"type\": \"NFD\"}, \"model\": {\"type\": \"BPE\", \"unk_token\": \"<u>\", "
        "\"vocab\": {\"a\": 0, \"<u>\": 1, \"aa\": 2}, \"merges\": [[\"a\", \"a\"]]}}";
    enum { MARKS = 1000000 };
    mezzo_tokenizer *tok;
    size_t n;
    if (load(nfd, &tok) == MEZZO_ERR_UNSUPPORTED) // a build without utf8proc
        skip();
    char *text = calloc(2 * MARKS + 1, 1);
    for (size_t i = 0; i < MARKS; i++)
        memcpy(text + 2 * i, i % 2 ? "\xCC\xA3" : "\xCC\x81", 2);
    must(mezzo_tokenizer_encode(tok, text, 2 * MARKS, NULL, &n));
    assert_int_equal(n, MARKS);
    memset(text, 'a', 2 * MARKS);
    must(mezzo_tokenizer_encode(tok, text, 2 * MARKS, NULL, &n));
    assert_int_equal(n, MARKS);
    free(text);
    mezzo_tokenizer_free(tok);
}

// Twice the text takes about twice the steps: a text that is the beginning of a long added token everywhere, and one
// whose every token takes the white space after it.
TEST(long_added_tokens_end) {
    enum { LONG = 200000, TEXT = 400000 };
    mz_text json = {0};
    mezzo_tokenizer *tok;
    size_t n;
    char *text = calloc(TEXT + 1, 1);
    memset(text, 'a', TEXT);
    mz_text_addf(&json, "{\"added_tokens\": [{\"id\": 4, \"content\": \"%.*sb\"}, {\"id\": 5, \"content\": \"aa\"}, ",
                 (int)LONG, text);
    mz_text_addf(&json, "{\"id\": 6, \"content\": \" \", \"rstrip\": true}], " MODEL "}");
    assert_int_equal(json.status, MEZZO_OK);
    must(load(json.data, &tok));
    must(mezzo_tokenizer_encode(tok, text, TEXT, NULL, &n));
    assert_int_equal(n, TEXT / 2);
    text[LONG + 1] = 'b';
    must(mezzo_tokenizer_encode(tok, text, LONG + 2, NULL, &n)); // "aa" is the longest at the first place
    assert_int_equal(n, LONG / 2 + 1);
    must(mezzo_tokenizer_encode(tok, text + 1, LONG + 1, NULL, &n));
    assert_int_equal(n, 1);
    memset(text, ' ', TEXT);
    must(mezzo_tokenizer_encode(tok, text, TEXT, NULL, &n));
    assert_int_equal(n, TEXT);
    free(text);
    mz_text_free(&json);
    mezzo_tokenizer_free(tok);
}

// Checks that the pattern matches the first `n` bytes of the text; 0: nothing at its beginning.
static void matches(const char *source, const char *text, size_t n) {
    mz_pattern *pattern;
    void *room;
    bool found;
    size_t from = 0, to = 0;
    assert_int_equal(mz_pattern_create("t", MZ_PATTERN_ONIGURUMA, source, strlen(source), &pattern), MEZZO_OK);
    assert_int_equal(mz_match_room(&room), MEZZO_OK);
    mz_matches walk = mz_matches_of(pattern, room, text, strlen(text));
    assert_int_equal(mz_matches_next(&walk, &found, &from, &to), MEZZO_OK);
    if ((found && from == 0 ? to : 0) != n)
        fail_msg("%s in %s: %d, from %zu to %zu", source, text, (int)found, from, to);
    mz_match_room_free(room);
    mz_pattern_free(pattern);
}

// A script has its own characters, not those that it shares with others, and words have numbers that are letters,
// letters in circles and, outside of a class, fractions: each as the library's Split has it.
TEST(scripts_and_words_are_onigurumas) {
    matches("\\p{Han}+", "\u4e2d\u3002", 3);
    matches("\\p{Han}+", "\u3002\u4e2d", 0);
    matches("\\P{Han}+", "\u3002\u4e2d", 3);
    matches("\\p{^Han}+", "\u3002\u4e2d", 3);
    matches("[^\\p{Hiragana}a]+", "\u3001\u3042", 3);
    matches("\\p{Greek}+", "\u03b1\u0345", 2);
    matches("\\p{Latin}+", "a\u0363", 1);
    matches("\\p{Lu}\\p{^Lu}", "Ab", 2);
    matches("\\w+", "a\u2167\u24d0\u00bd.", 9);
    matches("[\\w]+", "a\u2167\u24d0\u00bd.", 7);
    matches("\\W+", "\u2167", 0);
    matches("a\\b", "a\u217b", 0);
    matches("a\\B", "a\u217b", 1);
}
