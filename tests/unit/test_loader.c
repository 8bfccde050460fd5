// Corpora split as nanoGPT splits, and batches that depend on nothing but their number.
#include <stdlib.h>
#include <unistd.h>

#include "data/shards.h"
#include "mezzo/data.h"
#include "test.h"

static void write_text(const char *path, const char *text) {
    assert_int_equal(mz_file_write_atomic(path, text, strlen(text)), MEZZO_OK);
}

// Tokens first, first + 1, … as an llm.c shard.
static void write_shard(const char *path, uint16_t first, size_t n) {
    uint16_t *tokens = calloc(n, sizeof *tokens);
    for (size_t i = 0; i < n; i++)
        tokens[i] = (uint16_t)(first + i);
    const mz_tokens piece = {(unsigned char *)tokens, 2, n};
    assert_int_equal(mz_shard_write(path, MEZZO_SHARD_LLMC, 2, &piece, 1), MEZZO_OK);
    free(tokens);
}

static mezzo_corpus *open_corpus(mezzo_corpus_options options) {
    mezzo_corpus *corpus;
    if (mezzo_corpus_open(&options, &corpus) != MEZZO_OK)
        fail_msg("%s", mezzo_error_message());
    return corpus;
}

static mezzo_loader *make_loader(const mezzo_corpus *corpus, mezzo_loader_options options) {
    mezzo_loader *loader;
    if (mezzo_loader_create(corpus, &options, &loader) != MEZZO_OK)
        fail_msg("%s", mezzo_error_message());
    return loader;
}

// nanoGPT: n = len(data); train_data = data[:int(n*0.9)]; val_data = data[int(n*0.9):] — in characters.
TEST(a_text_is_split_by_characters) {
    write_text("split.txt", "éé漢😀abcdefghijklm"); // 17 characters, 15 of them train
    mezzo_corpus *corpus = open_corpus((mezzo_corpus_options){.path = "split.txt"});
    assert_int_equal(mezzo_corpus_tokens(corpus, MEZZO_TRAIN), 15);
    assert_int_equal(mezzo_corpus_tokens(corpus, MEZZO_VALIDATION), 2);
    assert_int_equal(mezzo_tokenizer_vocab(mezzo_corpus_tokenizer(corpus)), 16);
    mezzo_corpus_free(corpus);

    // The same place in bytes: the validation text of every tokenizer is "lm".
    corpus = open_corpus((mezzo_corpus_options){.path = "split.txt", .tokenizer = "byte"});
    assert_int_equal(mezzo_corpus_tokens(corpus, MEZZO_VALIDATION), 2);
    assert_int_equal(mezzo_corpus_tokens(corpus, MEZZO_TRAIN), 22);
    mezzo_corpus_free(corpus);

    corpus = open_corpus((mezzo_corpus_options){.path = "split.txt", .train_fraction = 1});
    assert_int_equal(mezzo_corpus_tokens(corpus, MEZZO_TRAIN), 17);
    assert_int_equal(mezzo_corpus_tokens(corpus, MEZZO_VALIDATION), 0);
    mezzo_corpus_free(corpus);
}

// Longer than one piece of tokenizing, with a character across every cut.
TEST(a_long_text_is_tokenized_whole) {
    size_t n = 5000003;
    char *text = malloc(n);
    assert_non_null(text);
    text[0] = 'a';
    for (size_t i = 1; i + 1 < n; i += 2)
        memcpy(text + i, (i / 2) % 3 ? "é" : "ß", 2);
    assert_int_equal(mz_file_write_atomic("long.txt", text, n), MEZZO_OK);
    mezzo_corpus *corpus = open_corpus((mezzo_corpus_options){.path = "long.txt"});
    assert_int_equal(mezzo_corpus_tokens(corpus, MEZZO_TRAIN) + mezzo_corpus_tokens(corpus, MEZZO_VALIDATION),
                     1 + n / 2);
    mezzo_loader *loader =
        make_loader(corpus, (mezzo_loader_options){MEZZO_TRAIN, MEZZO_LOADER_SEQUENTIAL, 1, 100000, 0, 0, 0});
    int32_t *inputs = malloc(100000 * 4), *targets = malloc(100000 * 4);
    size_t at = 1;
    for (uint64_t k = 0; k < mezzo_loader_batches(loader); k++) {
        assert_int_equal(mezzo_loader_batch(loader, k, inputs, targets), MEZZO_OK);
        for (size_t t = 0; t < 100000 && targets[t] >= 0; t++, at++) {
            size_t width;
            const char *bytes = mezzo_tokenizer_bytes(mezzo_corpus_tokenizer(corpus), targets[t], &width);
            if (width != 2 || memcmp(bytes, text + 2 * at - 1, 2) != 0)
                fail_msg("character %zu differs", at);
        }
    }
    assert_int_equal(at, mezzo_corpus_tokens(corpus, MEZZO_TRAIN));
    free(inputs);
    free(targets);
    free(text);
    mezzo_loader_free(loader);
    mezzo_corpus_free(corpus);
    unlink("long.txt");
}

TEST(tokenizing_stops_when_asked) {
    volatile sig_atomic_t stop = 1;
    mezzo_corpus *corpus;
    write_text("stop.txt", "hello world");
    must_fail(
        mezzo_corpus_open(&(mezzo_corpus_options){.train = "stop.txt", .tokenizer = "byte", .stop = &stop}, &corpus),
        MEZZO_ERR_INTERRUPTED, "stop.txt: stopped");
    assert_null(corpus);
}

TEST(text_becomes_shards_and_is_the_same_corpus) {
    write_shard("a.bin", 1000, 50);
    write_text("origin.txt", "the quick brown fox jumps over the lazy dog, twice; the quick brown fox jumps again.");
    for (mezzo_shard_format format = MEZZO_SHARD_LLMC; format <= MEZZO_SHARD_NANOGPT; format++) {
        mezzo_corpus *text = open_corpus((mezzo_corpus_options){.path = "origin.txt"});
        assert_int_equal(mezzo_corpus_save(text, "shards", format), MEZZO_OK);
        mezzo_corpus *shards = open_corpus((mezzo_corpus_options){.path = "shards", .tokenizer = "char"});
        assert_int_equal(mezzo_tokenizer_vocab(mezzo_corpus_tokenizer(shards)),
                         mezzo_tokenizer_vocab(mezzo_corpus_tokenizer(text)));
        for (mezzo_corpus_part split = MEZZO_TRAIN; split <= MEZZO_VALIDATION; split++) {
            const mezzo_loader_options o = {split, MEZZO_LOADER_RANDOM, 3, 5, 0, 42, 0};
            mezzo_loader *a = make_loader(text, o), *b = make_loader(shards, o);
            int32_t ai[15], at[15], bi[15], bt[15];
            for (int k = 0; k < 20; k++) {
                assert_int_equal(mezzo_loader_next(a, ai, at), MEZZO_OK);
                assert_int_equal(mezzo_loader_next(b, bi, bt), MEZZO_OK);
                assert_memory_equal(ai, bi, sizeof ai);
                assert_memory_equal(at, bt, sizeof at);
            }
            mezzo_loader_free(a);
            mezzo_loader_free(b);
        }
        mezzo_corpus_free(text);
        mezzo_corpus_free(shards);
    }
    // A folder that is written again holds nothing of the corpus before.
    mezzo_corpus *whole = open_corpus((mezzo_corpus_options){.path = "origin.txt", .train_fraction = 1});
    assert_int_equal(mezzo_corpus_save(whole, "again", MEZZO_SHARD_LLMC), MEZZO_OK);
    mezzo_corpus_free(whole);
    whole = open_corpus((mezzo_corpus_options){.path = "origin.txt"});
    assert_int_equal(mezzo_corpus_save(whole, "again", MEZZO_SHARD_LLMC), MEZZO_OK);
    assert_true(mz_path_exists("again/val.bin"));
    mezzo_corpus_free(whole);
    whole = open_corpus((mezzo_corpus_options){.train = "a.bin"});
    assert_int_equal(mezzo_corpus_save(whole, "again", MEZZO_SHARD_LLMC), MEZZO_OK);
    assert_false(mz_path_exists("again/val.bin") || mz_path_exists("again/tokenizer.json"));
    mezzo_corpus_free(whole);
    // The saved tokenizer reads another text; a character it lacks is named with file and byte.
    mezzo_corpus *other;
    write_text("other.txt", "the fox");
    other = open_corpus((mezzo_corpus_options){.train = "other.txt", .tokenizer = "shards/tokenizer.json"});
    assert_int_equal(mezzo_corpus_tokens(other, MEZZO_TRAIN), 7);
    mezzo_corpus_free(other);
    write_text("other.txt", "the FOX");
    must_fail(
        mezzo_corpus_open(&(mezzo_corpus_options){.train = "other.txt", .tokenizer = "shards/tokenizer.json"}, &other),
        MEZZO_ERR_INVALID, "other.txt: character U+0046 at byte 4 is not among");
}

TEST(a_random_batch_is_a_function_of_its_number) {
    write_shard("a.bin", 1000, 50);
    write_shard("b.bin", 2000, 3); // shorter than a sequence: never drawn
    write_shard("c.bin", 3000, 9); // exactly one sequence
    mezzo_corpus *corpus = open_corpus((mezzo_corpus_options){.train = "a.bin,b.bin,c.bin"});
    mezzo_loader_options o = {MEZZO_TRAIN, MEZZO_LOADER_RANDOM, 4, 8, 50257, 7, 0};
    mezzo_loader *loader = make_loader(corpus, o);
    int32_t inputs[32], targets[32], again[32], other[32];
    int seen_first = 0, seen_last = 0, seen_c = 0;
    for (uint64_t k = 0; k < 500; k++) {
        assert_int_equal(mezzo_loader_position(loader), k);
        assert_int_equal(mezzo_loader_next(loader, inputs, targets), MEZZO_OK);
        for (int i = 0; i < 32; i++) {
            assert_int_equal(targets[i], inputs[i] + 1); // shifted by one, inside one file
            assert_true(i % 8 == 0 || inputs[i] == inputs[i - 1] + 1);
        }
        for (int r = 0; r < 4; r++) {
            seen_first += inputs[8 * r] == 1000;
            seen_last += targets[8 * r + 7] == 1049;
            seen_c += inputs[8 * r] == 3000;
        }
    }
    // 43 places, 2000 draws: 46.5 expected each, standard deviation 6.7; both ends are reached.
    assert_in_range(seen_first, 13, 80);
    assert_in_range(seen_last, 13, 80);
    assert_in_range(seen_c, 13, 80);

    // A resumed loader goes on where it was.
    mezzo_loader *resumed = make_loader(corpus, o);
    mezzo_loader_seek(resumed, 499);
    assert_int_equal(mezzo_loader_next(resumed, again, other), MEZZO_OK);
    assert_memory_equal(again, inputs, sizeof inputs);
    // Two micro batches of two are the batch of four.
    o.batch = 2;
    mezzo_loader *half = make_loader(corpus, o);
    assert_int_equal(mezzo_loader_batch(half, 998, again, other), MEZZO_OK);
    assert_int_equal(mezzo_loader_batch(half, 999, again + 16, other + 16), MEZZO_OK);
    assert_memory_equal(again, inputs, sizeof inputs);
    assert_memory_equal(other, targets, sizeof targets);
    // Seed and stream both matter.
    o.batch = 4;
    o.seed = 8;
    mezzo_loader *seeded = make_loader(corpus, o);
    assert_int_equal(mezzo_loader_batch(seeded, 499, again, other), MEZZO_OK);
    assert_memory_not_equal(again, inputs, sizeof inputs);
    o.seed = 7;
    o.stream = 1;
    mezzo_loader *streamed = make_loader(corpus, o);
    assert_int_equal(mezzo_loader_batch(streamed, 499, again, other), MEZZO_OK);
    assert_memory_not_equal(again, inputs, sizeof inputs);
    mezzo_loader_free(loader);
    mezzo_loader_free(resumed);
    mezzo_loader_free(half);
    mezzo_loader_free(seeded);
    mezzo_loader_free(streamed);
    mezzo_corpus_free(corpus);
}

TEST(sequential_batches_cover_every_target_once) {
    write_shard("val_1.bin", 1000, 50);
    write_shard("val_2.bin", 2000, 3);
    write_shard("val_3.bin", 3000, 1); // nothing to predict
    write_shard("val_4.bin", 4000, 9);
    mezzo_corpus *corpus = open_corpus((mezzo_corpus_options){.train = "a.bin", .validation = "val_?.bin"});
    mezzo_loader *loader =
        make_loader(corpus, (mezzo_loader_options){MEZZO_VALIDATION, MEZZO_LOADER_SEQUENTIAL, 4, 8, 50257, 0, 0});
    assert_int_equal(mezzo_loader_batches(loader), 3); // 7 + 1 + 0 + 1 windows
    int seen[5000] = {0}, total = 0, inputs[32], targets[32];
    for (uint64_t k = 0; k < 3; k++) {
        assert_int_equal(mezzo_loader_batch(loader, k, inputs, targets), MEZZO_OK);
        for (int i = 0; i < 32; i++) {
            if (targets[i] < 0) {
                assert_int_equal(targets[i], -1);
                assert_int_equal(inputs[i], 0);
                continue;
            }
            assert_int_equal(targets[i], inputs[i] + 1);
            seen[targets[i]]++;
            total++;
        }
    }
    for (int i = 1; i < 50; i++)
        assert_int_equal(seen[1000 + i], 1);
    for (int i = 1; i < 9; i++)
        assert_int_equal(seen[4000 + i], 1);
    assert_int_equal(total, 49 + 2 + 8);
    assert_int_equal(mezzo_loader_targets(loader), total);
    int first[32], first_targets[32];
    assert_int_equal(mezzo_loader_batch(loader, 0, first, first_targets), MEZZO_OK);
    assert_int_equal(mezzo_loader_batch(loader, 3, inputs, targets), MEZZO_OK);
    assert_memory_equal(inputs, first, sizeof first);
    mezzo_loader_free(loader);
    mezzo_corpus_free(corpus);
}

TEST(bad_data_is_named) {
    write_text("empty.txt", "");
    write_text("short.txt", "only forty characters, of which 36 train");
    write_text("latin.txt", "caf\xE9 au lait");
    write_text("odd.bin", "abc");
    static const struct {
        mezzo_corpus_options options;
        mezzo_status status;
        const char *says;
    } rows[] = {
        {{.path = "missing.txt"}, MEZZO_ERR_INVALID, "cannot read 'missing.txt': No such file"},
        {{.path = "empty.txt"}, MEZZO_ERR_FORMAT, "empty.txt: the file is empty"},
        {{.path = "latin.txt"}, MEZZO_ERR_FORMAT, "latin.txt: byte 3 (0xE9) is not UTF-8; convert the file, or use"},
        {{.path = "odd.bin"}, MEZZO_ERR_FORMAT, "odd.bin: 3 bytes without llm.c's header"},
        {{.path = NULL}, MEZZO_ERR_INVALID, "no data is named"},
        {{.path = "short.txt", .train = "short.txt"}, MEZZO_ERR_INVALID, "both as a whole"},
        {{.train = "short.txt", .validation = "a.bin"}, MEZZO_ERR_INVALID, "one is a text and the other"},
        {{.path = "none_*.bin"}, MEZZO_ERR_INVALID, "no file matches 'none_*.bin'"},
        {{.path = "no_shards"}, MEZZO_ERR_INVALID, "folder 'no_shards' has no *train*.bin"},
        {{.path = "short.txt", .tokenizer = "none.json"}, MEZZO_ERR_INVALID, "'none.json'"},
        {{.path = "short.txt", .train_fraction = 1.5}, MEZZO_ERR_INVALID, "train on is 1.5"},
        {{.path = "short.txt", .train_fraction = -1}, MEZZO_ERR_INVALID, "train on is -1"},
        {{.path = "/dev/zero"}, MEZZO_ERR_INVALID, "a device or pipe"},
    };
    assert_int_equal(mz_dir_create("no_shards"), MEZZO_OK);
    mezzo_corpus *corpus;
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        must_fail(mezzo_corpus_open(&rows[i].options, &corpus), rows[i].status, rows[i].says);
        assert_null(corpus);
    }
    corpus = open_corpus((mezzo_corpus_options){.path = "latin.txt", .tokenizer = "byte"});
    mezzo_corpus_free(corpus);

    mezzo_loader *loader;
    mezzo_loader_options o = {MEZZO_TRAIN, MEZZO_LOADER_RANDOM, 1, 36, 0, 1, 0};
    corpus = open_corpus((mezzo_corpus_options){.path = "short.txt"});
    must_fail(mezzo_loader_create(corpus, &o, &loader), MEZZO_ERR_INVALID,
              "short.txt: training part of 36 tokens is shorter than one sequence, which needs 37");
    o.length = 35;
    assert_int_equal(mezzo_loader_create(corpus, &o, &loader), MEZZO_OK);
    mezzo_loader_free(loader);
    o.vocab = 3;
    must_fail(mezzo_loader_create(corpus, &o, &loader), MEZZO_ERR_INVALID, "tokenizer has 18 tokens, the model 3");
    o.vocab = 0;
    o.batch = 0;
    must_fail(mezzo_loader_create(corpus, &o, &loader), MEZZO_ERR_INVALID, "a batch of 0 sequences");
    o.batch = INT64_MAX;
    must_fail(mezzo_loader_create(corpus, &o, &loader), MEZZO_ERR_INVALID, "sequences");
    mezzo_corpus_free(corpus);
    o.batch = 1;

    corpus = open_corpus((mezzo_corpus_options){.train = "short.txt"});
    o.split = MEZZO_VALIDATION;
    must_fail(mezzo_loader_create(corpus, &o, &loader), MEZZO_ERR_INVALID, "there are no validation tokens");
    mezzo_corpus_free(corpus);

    write_shard("beyond.bin", 50250, 40); // 50250 … 50289
    o = (mezzo_loader_options){MEZZO_TRAIN, MEZZO_LOADER_RANDOM, 1, 8, 50257, 1, 0};
    corpus = open_corpus((mezzo_corpus_options){.path = "beyond.bin"});
    must_fail(mezzo_loader_create(corpus, &o, &loader), MEZZO_ERR_INVALID,
              "beyond.bin: token 50257 at position 7 is not below the vocabulary of 50257");
    must_fail(mezzo_corpus_check(corpus, 50257), MEZZO_ERR_INVALID, "beyond.bin: token 50257 at position 7");
    o.vocab = 0;
    must_fail(mezzo_loader_create(corpus, &o, &loader), MEZZO_ERR_INVALID, "vocabulary is not known");
    o.vocab = 50290;
    assert_int_equal(mezzo_loader_create(corpus, &o, &loader), MEZZO_OK);
    mezzo_loader_free(loader);
    mezzo_corpus_free(corpus);
}

TEST(a_batch_allocates_nothing) {
    mezzo_corpus *corpus = open_corpus((mezzo_corpus_options){.path = "short.txt"});
    mezzo_loader *loader = make_loader(corpus, (mezzo_loader_options){MEZZO_TRAIN, MEZZO_LOADER_RANDOM, 2, 8, 0, 1, 0});
    int32_t inputs[16], targets[16];
    uint64_t before = mz_alloc_count();
    for (int i = 0; i < 10; i++)
        assert_int_equal(mezzo_loader_next(loader, inputs, targets), MEZZO_OK);
    assert_int_equal(mz_alloc_count(), before);
    mezzo_loader_free(loader);
    mezzo_corpus_free(corpus);
}

TEST(running_out_of_memory_is_an_error) {
    static const mezzo_corpus_options sources[] = {{.path = "short.txt"},
                                                   {.path = "short.txt", .tokenizer = "byte"},
                                                   {.path = "shards"},
                                                   {.train = "a.bin,val_*.bin"}};
    for (size_t i = 0; i < MZ_COUNT(sources); i++) {
        mezzo_status status = MEZZO_ERR_MEMORY;
        for (int64_t n = 0; status == MEZZO_ERR_MEMORY; n++) {
            mezzo_corpus *corpus;
            mezzo_loader *loader = NULL;
            mz_alloc_fail_after(n);
            status = mezzo_corpus_open(&sources[i], &corpus);
            if (status == MEZZO_OK)
                status = mezzo_loader_create(
                    corpus, &(mezzo_loader_options){MEZZO_TRAIN, MEZZO_LOADER_RANDOM, 1, 4, 60000, 1, 0}, &loader);
            if (status == MEZZO_OK)
                status = mezzo_corpus_save(corpus, "memory_shards", MEZZO_SHARD_LLMC);
            mezzo_loader_free(loader);
            mezzo_corpus_free(corpus);
        }
        mz_alloc_fail_after(-1);
        if (status != MEZZO_OK)
            fail_msg("%s", mezzo_error_message());
    }
}
