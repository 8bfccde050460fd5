// Training byte-pair encoding: merges by hand, with ties and tokens that are made twice; what is counted does not
// depend on threads, pieces or files; errors and the stop flag.
//
// To see it fail: ties by the larger pair, counts that are not looked at again when a pair is taken, a piece that is
// cut within a word.
#include "fixture.h"
#include "data/tokenizer_bpe.h"
#include "io/file.h"

static void write_text(const char *path, const char *text) {
    must(mz_file_write_atomic(path, text, strlen(text)));
}

static mezzo_tokenizer *train(const char *path, int32_t vocab, int threads) {
    mezzo_tokenizer *tok;
    must(mezzo_tokenizer_train(
        &(mezzo_tokenizer_training){.paths = &path, .n_paths = 1, .vocab = vocab, .threads = threads}, &tok, NULL));
    return tok;
}

static void assert_tokens(const mezzo_tokenizer *tok, const char *const *learnt, int32_t n) {
    assert_int_equal(mezzo_tokenizer_vocab(tok), 256 + n);
    for (int32_t i = 0; i < n; i++) {
        size_t width;
        const char *bytes = mezzo_tokenizer_bytes(tok, 256 + i, &width);
        assert_int_equal(width, strlen(learnt[i]));
        assert_memory_equal(bytes, learnt[i], width);
    }
}

// "ab" 4 times, "bc" 3 times; of "ac" and "ad", once each, the one with the lower number.
TEST(the_most_frequent_pair_is_merged) {
    static const char *const learnt[] = {"ab", "bc", "ac", "ad"};
    write_text("pairs.txt", "ab\nab\nab\nab\nbc\nbc\nbc\nad\nac");
    mezzo_tokenizer *tok = train("pairs.txt", 260, 1);
    assert_tokens(tok, learnt, 4);
    mezzo_tokenizer_free(tok);
    tok = train("pairs.txt", 1000, 1); // there are no more
    assert_tokens(tok, learnt, 4);
    mezzo_tokenizer_free(tok);
}

// "aaaa": (a, a) three times, but two of them overlap; then "aa" "aa".
TEST(runs_are_merged_from_the_left) {
    static const char *const learnt[] = {"aa", "aaa", "aaaa"};
    write_text("runs.txt", "aaa\naaa\naaa\naaaa");
    mezzo_tokenizer *tok = train("runs.txt", 259, 1);
    assert_tokens(tok, learnt, 3);
    mezzo_tokenizer_free(tok);
}

// "abc" is made of "ab" "c", and again of "a" "bc": one token with two merges.
TEST(a_token_may_have_two_merges) {
    mezzo_tokenizer *tok;
    int32_t tokens[8];
    size_t n;
    write_text("twice.txt", "ab ab ab ab ab ab abc abc abc\nbcd bcd bcd bcd bcd bcd\nxbc xbc xbc\n");
    tok = train("twice.txt", 400, 1);
    const mz_bpe *bpe = &((const mz_bpe_tokenizer *)tok)->bpe;
    for (size_t i = 0; i < bpe->n_merges; i++)
        for (size_t k = 0; k < i; k++)
            assert_false(bpe->merges[i].left == bpe->merges[k].left && bpe->merges[i].right == bpe->merges[k].right);
    must(mezzo_tokenizer_encode(tok, " abc", 4, tokens, &n));
    assert_int_equal(n, 1);
    mezzo_tokenizer_free(tok);
}

// Three megabytes of text, so that it is cut, on one thread and on three, as one file and as files of a folder.
TEST(threads_and_pieces_change_nothing) {
    enum { WORDS = 500000 };
    mz_text text = {0};
    uint32_t seed = 7;
    for (int i = 0; i < WORDS; i++) {
        seed = seed * 1664525 + 1013904223;
        mz_text_addf(&text, "%s%u", i % 7 ? " " : "\n", seed >> 12 & 0xFFF);
    }
    must(mz_file_write_atomic("long.txt", text.data, text.len));
    mezzo_tokenizer *one = train("long.txt", 2000, 1), *three = train("long.txt", 2000, 3);
    assert_true(mz_tokenizer_same(one, three));
    mz_dir_remove("folder");
    must(mz_dir_create("folder/inner"));
    const char *middle = strchr(text.data + text.len / 2, ' ');
    must(mz_file_write_atomic("folder/a", text.data, (size_t)(middle - text.data)));
    must(mz_file_write_atomic("folder/inner/b", middle, text.len - (size_t)(middle - text.data)));
    mezzo_tokenizer *folder = train("folder", 2000, 2);
    assert_true(mz_tokenizer_same(one, folder));
    mezzo_tokenizer_free(one);
    mezzo_tokenizer_free(three);
    mezzo_tokenizer_free(folder);
    mz_text_free(&text);
}

TEST(texts_of_records_are_read) {
    mezzo_tokenizer_trained trained;
    mezzo_tokenizer *tok;
    const char *paths[] = {"records.jsonl"}, *special[] = {"<|end|>"};
    write_text("records.jsonl", "{\"text\": \"abab\"}\n{\"prompt\": \"ab\", \"completion\": \"xy\"}\n");
    const mezzo_tokenizer_training options = {
        .paths = paths, .n_paths = 1, .vocab = 258, .special = special, .n_special = 1};
    must(mezzo_tokenizer_train(&options, &tok, &trained));
    size_t n;
    assert_memory_equal(mezzo_tokenizer_bytes(tok, 0, &n), "<|end|>", 7);
    assert_memory_equal(mezzo_tokenizer_bytes(tok, 257, &n), "ab", 2);
    assert_int_equal(trained.texts, 3);
    assert_int_equal(trained.bytes, 8);
    assert_int_equal(trained.words, 3);
    must(mezzo_tokenizer_encode(tok, "<|end|>", 7, NULL, &n));
    assert_int_equal(n, 7); // no text becomes it
    mezzo_tokenizer_free(tok);
}

TEST(wrong_options_are_named) {
    const volatile sig_atomic_t stop = 1;
    const char *text[] = {"pairs.txt"}, *empty[] = {"empty.txt"}, *none[] = {"none.txt"}, *bad[] = {"bad.jsonl"};
    const char *twice[] = {"<|a|>", "<|a|>"}, *letter[] = {"a"};
    write_text("empty.txt", "");
    write_text("bad.jsonl", "{\"text\": \"a\"}\n{\"texts\": 1}\n");
    const struct {
        mezzo_tokenizer_training options;
        mezzo_status status;
        const char *says;
    } rows[] = {
        {{.paths = text, .n_paths = 1, .vocab = 255}, MEZZO_ERR_INVALID, "255 tokens"},
        {{.paths = text, .n_paths = 1, .vocab = 300, .pattern = "gpt5"}, MEZZO_ERR_INVALID, "'gpt5'"},
        {{.paths = text, .n_paths = 1, .vocab = 300, .special = twice, .n_special = 2}, MEZZO_ERR_INVALID, "twice"},
        {{.paths = text, .n_paths = 1, .vocab = 300, .special = letter, .n_special = 1}, MEZZO_ERR_INVALID, "'a'"},
        {{.paths = text, .n_paths = 0, .vocab = 300}, MEZZO_ERR_INVALID, "no text"},
        {{.paths = empty, .n_paths = 1, .vocab = 300}, MEZZO_ERR_INVALID, "empty.txt"},
        {{.paths = none, .n_paths = 1, .vocab = 300}, MEZZO_ERR_INVALID, "none.txt"},
        {{.paths = bad, .n_paths = 1, .vocab = 300}, MEZZO_ERR_FORMAT, "bad.jsonl:2"},
        {{.paths = text, .n_paths = 1, .vocab = 300, .stop = &stop}, MEZZO_ERR_INTERRUPTED, "stopped"},
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        mezzo_tokenizer *tok;
        assert_int_equal(mezzo_tokenizer_train(&rows[i].options, &tok, NULL), rows[i].status);
        assert_null(tok);
        if (strstr(mezzo_error_message(), rows[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", mezzo_error_message(), rows[i].says);
    }
}

TEST(running_out_of_memory_is_an_error) {
    const char *path = "pairs.txt";
    mezzo_status status = MEZZO_ERR_MEMORY;
    for (int64_t n = 0; status == MEZZO_ERR_MEMORY; n++) {
        mezzo_tokenizer *tok;
        mz_alloc_fail_after(n);
        status = mezzo_tokenizer_train(
            &(mezzo_tokenizer_training){.paths = &path, .n_paths = 1, .vocab = 260, .threads = 1}, &tok, NULL);
        mezzo_tokenizer_free(tok);
    }
    mz_alloc_fail_after(-1);
    must(status);
}
