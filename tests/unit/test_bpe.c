// Byte-pair encoding: any bytes come back, merging is what GPT-2's own encoder does, a user's files give the user's
// numbers, and files that lie are refused with the line that does.
//
// To see it fail: pop the rightmost pair first, forget a candidate after a merge, take "#version" for a merge, cut a
// text before a letter.
#include "fixture.h"
#include "data/bpe.h"
#include "io/file.h"
#include "io/json.h"
#include "mezzo/data.h"

static mezzo_tokenizer *gpt2;

static int open_gpt2(void **state) {
    (void)state;
    return mezzo_tokenizer_create_gpt2(&gpt2) == MEZZO_OK ? 0 : -1;
}
static int close_gpt2(void **state) {
    (void)state;
    mezzo_tokenizer_free(gpt2);
    return 0;
}

static uint32_t random_number(uint32_t *seed) {
    return *seed = *seed * 1664525u + 1013904223u;
}

// --- any bytes -----------------------------------------------------------------------------------------------------
static size_t encode(const mezzo_tokenizer *tok, const char *text, size_t n, int32_t *tokens) {
    size_t count;
    must(mezzo_tokenizer_encode(tok, text, n, tokens, &count));
    assert_true(count <= n);
    return count;
}

TEST(any_bytes_come_back) {
    static char bytes[4096], back[4096 * 256];
    static int32_t tokens[4096];
    uint32_t seed = 7;
    for (int trial = 0; trial < 300; trial++) {
        size_t n = random_number(&seed) >> 16 & 4095, size;
        for (size_t i = 0; i < n; i++) // some of only bytes above 127, some mostly text
            bytes[i] = (char)(random_number(&seed) >> 24 | (trial % 3 == 0 ? 0x80 : 0));
        for (size_t i = 0; i < n && trial % 3 == 1; i++)
            bytes[i] = (char)((unsigned char)bytes[i] % 16 == 0 ? bytes[i] : "the \n\xC3\xA9 1'"[i % 9]);
        size_t count = encode(gpt2, bytes, n, tokens);
        must(mezzo_tokenizer_decode(gpt2, tokens, count, back, &size));
        assert_int_equal(size, n);
        assert_memory_equal(back, bytes, n);
    }
}

TEST(bytes_that_are_no_utf8_are_words_of_their_own) {
    static const char *const parts[] = {"ab c", "\xFF\xFE\x80", " cd\n ", "\xE2\x82", "x", "\xC0", "  "};
    int32_t whole[64], part[64];
    size_t at = 0;
    char text[64] = "";
    for (size_t i = 0; i < MZ_COUNT(parts); i++)
        strcat(text, parts[i]);
    size_t count = encode(gpt2, text, strlen(text), whole);
    for (size_t i = 0; i < MZ_COUNT(parts); i++) {
        size_t n = encode(gpt2, parts[i], strlen(parts[i]), part);
        assert_memory_equal(whole + at, part, n * sizeof *part);
        at += n;
    }
    assert_int_equal(at, count);
}

// --- merging -------------------------------------------------------------------------------------------------------
// As GPT-2's encoder.py: the best pair, everywhere from the left, again and again.
static size_t merge_plainly(const mz_bpe *bpe, const char *word, size_t n, int32_t *tokens) {
    for (size_t i = 0; i < n; i++)
        tokens[i] = bpe->byte_token[(unsigned char)word[i]];
    for (;;) {
        size_t best = bpe->n_merges;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t m = 0; m < best; m++)
                if (bpe->merges[m].left == tokens[i] && bpe->merges[m].right == tokens[i + 1])
                    best = m;
        if (best == bpe->n_merges)
            return n;
        size_t made = 0;
        for (size_t i = 0; i < n; i++) {
            bool here = i + 1 < n && tokens[i] == bpe->merges[best].left && tokens[i + 1] == bpe->merges[best].right;
            tokens[made++] = here ? bpe->merges[best].merged : tokens[i];
            i += here;
        }
        n = made;
    }
}

TEST(words_are_merged_as_by_the_plain_rule) {
    // Merges over a, b, c that overlap in many ways.
    const char *text =
        "#version: 0.2\na b\nb a\na a\nab a\nb b\naa aa\nab ab\nc c\ncc cc\ncccc cccc\nba ba\nabab a\nbb c\n";
    const mz_bpe_text merges = {"merges", text, strlen(text), NULL};
    mz_bpe bpe;
    mz_bpe_scratch scratch = {0};
    must(mz_bpe_read(NULL, &merges, &bpe));
    assert_int_equal(bpe.vocab, 256 + 13 + 1);
    uint32_t seed = 3;
    static char word[700];
    static int32_t got[700], want[700];
    for (int trial = 0; trial < 3000; trial++) {
        size_t n = 1 + (random_number(&seed) >> 16) % (trial % 10 == 0 ? sizeof word : 60), count;
        unsigned letters = 1 + (unsigned)trial % 3;
        for (size_t i = 0; i < n; i++)
            word[i] = (char)('a' + (random_number(&seed) >> 20) % letters);
        must(mz_bpe_encode_word(&bpe, &scratch, word, n, got, &count));
        assert_int_equal(count, merge_plainly(&bpe, word, n, want));
        assert_memory_equal(got, want, count * sizeof *got);
    }
    mz_bpe_scratch_free(&scratch);
    mz_bpe_free(&bpe);
}

// With a time that grows with the square, a word of four million letters would take hours.
TEST(a_very_long_word_is_encoded) {
    size_t n = 4 << 20, size;
    char *word = malloc(n), *back = malloc(n + 1);
    int32_t *tokens = malloc(n * sizeof *tokens);
    uint32_t seed = 1;
    for (size_t i = 0; i < n; i++)
        word[i] = (char)('a' + (random_number(&seed) >> 24) % 26);
    size_t count = encode(gpt2, word, n, tokens), bytes = 0;
    for (size_t i = 0; i < count; i++) {
        const char *text = mezzo_tokenizer_bytes(gpt2, tokens[i], &size);
        memcpy(back + bytes, text, size);
        bytes += size;
    }
    assert_int_equal(bytes, n);
    assert_memory_equal(back, word, n);
    free(word);
    free(back);
    free(tokens);
}

// --- texts in pieces -----------------------------------------------------------------------------------------------
TEST(a_corpus_has_the_tokens_of_its_text_as_a_whole) {
    size_t n = 5 << 19, count = 0; // two and a half pieces
    char *text = malloc(n);
    int32_t *tokens = malloc(n * sizeof *tokens), *inputs = malloc(n * sizeof *inputs),
            *targets = malloc(n * sizeof *targets);
    uint32_t seed = 5;
    for (size_t i = 0; i < n; i++) // no white space at all in one stretch that is longer than a piece
        text[i] = i > n / 4 && i < n / 4 + (3 << 19)
                      ? "0a1."[random_number(&seed) >> 30]
                      : "the quick  brown\n\n fox's 42 jumps. "[(random_number(&seed) >> 20) % 34];
    must(mz_file_write_atomic("pieces.txt", text, n));
    const mezzo_corpus_options options = {.path = "pieces.txt", .tokenizer = "gpt2", .train_fraction = 1};
    mezzo_corpus *corpus;
    mezzo_loader *loader;
    must(mezzo_corpus_open(&options, &corpus));
    count = encode(gpt2, text, n, tokens);
    assert_int_equal(mezzo_corpus_tokens(corpus, MEZZO_TRAIN), count);
    const mezzo_loader_options all = {
        .split = MEZZO_TRAIN, .order = MEZZO_LOADER_SEQUENTIAL, .batch = 1, .length = (int64_t)count - 1};
    must(mezzo_loader_create(corpus, &all, &loader));
    must(mezzo_loader_batch(loader, 0, inputs, targets));
    assert_memory_equal(inputs, tokens, (count - 1) * sizeof *tokens);
    mezzo_loader_free(loader);
    mezzo_corpus_free(corpus);
    free(text);
    free(tokens);
    free(inputs);
    free(targets);
}

// --- a user's vocabulary -------------------------------------------------------------------------------------------
static void write_text(const char *path, const char *text) {
    must(mz_file_write_atomic(path, text, strlen(text)));
}

// vocab.json of the merges' own vocabulary, with token t at number `last - t`; `skip` (or -1) is left out.
static void write_vocab(const char *path, const char *merges, int skip) {
    mezzo_tokenizer *tok;
    json_t *own, *vocab = json_object(), *number;
    const char *token;
    write_text("own.txt", merges);
    must(mezzo_tokenizer_create_bpe(NULL, "own.txt", &tok));
    must(mezzo_tokenizer_save(tok, "own.json"));
    must(mz_json_load("own.json", 1 << 20, &own));
    int n = mezzo_tokenizer_vocab(tok) - (skip >= 0);
    json_object_foreach(json_object_get(json_object_get(own, "model"), "vocab"), token, number) {
        if (json_integer_value(number) != skip)
            json_object_set_new(vocab, token, json_integer(--n));
    }
    must(mz_json_save(path, vocab));
    json_decref(vocab);
    json_decref(own);
    mezzo_tokenizer_free(tok);
}

TEST(own_files_give_own_numbers) {
    mz_dir_remove("own");
    must(mz_dir_create("own"));
    write_vocab("own/vocab.json", "h e\nl l\nhe ll\n", -1);
    write_text("own/merges.txt", "#version: 0.2\nh e\nl l\nhe ll\n");
    mezzo_tokenizer *tok, *again;
    must(mezzo_tokenizer_load("own", &tok));
    must(mezzo_tokenizer_save(tok, "saved.json"));
    must(mezzo_tokenizer_load("saved.json", &again));
    assert_string_equal(mezzo_tokenizer_kind(again), "bpe");
    int32_t tokens[16];
    for (int i = 0; i < 2; i++) {
        const mezzo_tokenizer *t = i == 0 ? tok : again;
        // 256 bytes, three merges, <|endoftext|>: 260, numbered from the end.
        assert_int_equal(mezzo_tokenizer_vocab(t), 260);
        assert_int_equal(encode(t, "hello", 5, tokens), 2);
        assert_int_equal(tokens[0], 259 - 258);         // "hell"
        assert_int_equal(tokens[1], 259 - ('o' - '!')); // GPT-2 numbers bytes from '!'
        assert_int_equal(encode(t, "<|endoftext|>", 13, tokens), 13);
        size_t n;
        assert_memory_equal(mezzo_tokenizer_bytes(t, 0, &n), "<|endoftext|>", 13);
        assert_int_equal(n, 13);
    }
    mezzo_tokenizer_free(tok);
    mezzo_tokenizer_free(again);
}

static void refuse(const char *vocab, const char *merges, mezzo_status expected, const char *part) {
    mezzo_tokenizer *tok;
    mezzo_status got = mezzo_tokenizer_create_bpe(vocab, merges, &tok);
    assert_null(tok);
    must_fail(got, expected, part);
}

TEST(broken_files_are_refused_by_line) {
    static const struct {
        const char *merges, *part;
    } merges[] = {
        {"#version: 0.2\na b\nab\n", "broken.txt: line 3: 'ab' is not two parts"},
        {"a b\nab c d\n", "line 2: 'ab c d' is not two parts"},
        {"a b\n\nb c\n", "line 2"},
        {"a  b\n", "line 1"},
        {" b\n", "line 1"},
        {"a \n", "line 1"},
        {"ab c\n", "line 1: part 'ab' is neither a byte nor the result"},
        {"a bc\nb c\n", "line 1: part 'bc'"},
        {"a b\nc d\na b\n", "line 3: the pair 'a b' occurs twice"},
        {"a \xE6\xBC\xA2\n", "byte alphabet"},
        {"a \xFF\n", "byte alphabet"},
    };
    for (size_t i = 0; i < MZ_COUNT(merges); i++) {
        write_text("broken.txt", merges[i].merges);
        refuse(NULL, "broken.txt", MEZZO_ERR_FORMAT, merges[i].part);
    }
    write_text("good.txt", "a b\r\nab c\r\n\r\n"); // Windows' line ends, and a blank line at the end
    mezzo_tokenizer *tok;
    must(mezzo_tokenizer_create_bpe(NULL, "good.txt", &tok));
    assert_int_equal(mezzo_tokenizer_vocab(tok), 259);
    mezzo_tokenizer_free(tok);

    write_vocab("vocab.json", "a b\n", 256);
    refuse("vocab.json", "good.txt", MEZZO_ERR_FORMAT, "good.txt: line 1: the vocabulary has no token");
    write_vocab("vocab.json", "a b\nab c\n", 'x' - '!');
    refuse("vocab.json", "good.txt", MEZZO_ERR_FORMAT, "vocab.json: no token for byte 0x78");
    static const struct {
        const char *vocab, *part;
    } vocabs[] = {
        {"{\"a\": 0, \"b\": 0}", "have the same number 0"},
        {"{\"a\": 0, \"b\": 2}", "'b'"},
        {"{\"a\": 0, \"b\": -1}", "'b'"},
        {"{\"a\": \"0\"}", "'a'"},
        {"{\"\": 0}", "empty"},
        {"[]", "object"},
        {"{\"a\": 0", "vocab.json"},
    };
    for (size_t i = 0; i < MZ_COUNT(vocabs); i++) {
        write_text("vocab.json", vocabs[i].vocab);
        refuse("vocab.json", "good.txt", MEZZO_ERR_FORMAT, vocabs[i].part);
    }
    refuse(NULL, "absent.txt", MEZZO_ERR_INVALID, "absent.txt");
    refuse("absent.json", "good.txt", MEZZO_ERR_INVALID, "absent.json");
}

TEST_GROUP(open_gpt2, close_gpt2)
