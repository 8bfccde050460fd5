// Instructions: which tokens are targets, and that a model learns the answers alone.
// Seen to fail with: targets of the prompt left in; the completion's first token left out.
#include "base/stop.h"
#include "tiny_run.h"

#include "task/instructions.h"

static const char records[] = "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n"
                              "\n"
                              "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, "
                              "{\"role\": \"assistant\", \"content\": \"yz\"}]}\n";

static mz_instructions *open(const char *text, const mezzo_tokenizer *t, mz_record_set *set) {
    mz_instructions *x;
    must(mz_file_write_atomic("some.jsonl", text, strlen(text)));
    must(mz_record_set_open("some.jsonl", NULL, t, set));
    must(mz_instructions_create(set, 0, 1, true, &x));
    return x;
}

// The bytes that are targets, '.' for one that is ignored.
static void targets_of(const int32_t *targets, size_t n, char *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = targets[i] < 0 ? '.' : targets[i] > 255 ? '#' : (char)targets[i];
    out[n] = '\0';
}

// Batch 0 of a pass in order.
static void first_batch(const mz_instructions *x, int64_t rows, int64_t length, int32_t *tokens, int32_t *targets) {
    const mz_instruction_order order = {.rows = rows, .length = length};
    mz_instruction_rows *made;
    must(mz_instruction_rows_create(x, &order, &made));
    must(mz_instruction_rows_batch(made, 0, tokens, targets, NULL));
    mz_instruction_rows_free(made);
}

TEST(test_answers_alone_count) {
    enum { LENGTH = 64 };
    mezzo_tokenizer *bytes, *gpt2;
    int32_t tokens[2 * LENGTH], targets[2 * LENGTH];
    char seen[LENGTH + 1];
    mz_record_set set;
    must(mezzo_tokenizer_create_byte(&bytes));
    must(mezzo_tokenizer_create_gpt2(&gpt2));
    mz_instructions *x = open(records, bytes, &set);
    assert_int_equal(mz_instructions_count(x), 2);
    first_batch(x, 2, LENGTH, tokens, targets);
    targets_of(targets, 8, seen);
    assert_string_equal(seen, ".cd....."); // after b comes c
    assert_int_equal(tokens[0], 'a');
    assert_int_equal(tokens[3], 'd');
    assert_int_equal(tokens[4], 0);
    // <|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\nyz<|im_end|>\n
    targets_of(targets + LENGTH, LENGTH, seen);
    size_t head = strlen("<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
    for (size_t i = 0; i + 1 < head; i++)
        assert_int_equal(seen[i], '.');
    assert_memory_equal(seen + head - 1, "yz<|im_end|>\n", 13);
    mz_instructions_free(x);
    mz_record_set_close(&set);
    x = open(records, gpt2, &set);
    first_batch(x, 2, LENGTH, tokens, targets);
    assert_true(targets[1] == 50256 || targets[2] == 50256); // the answer ends
    mz_instructions_free(x);
    mz_record_set_close(&set);
    mezzo_tokenizer_free(gpt2);
    mezzo_tokenizer_free(bytes);
}

TEST(test_what_is_refused) {
    static const struct {
        const char *text, *says;
    } wrong[] = {{"{\"prompt\": \"a\"}\n", "completion"},
                 {"\n[1]\n", "some.jsonl:2"},
                 {"{\"body\": \"a\"}\n", "messages"},
                 {"{\"messages\": [{\"role\": \"dog\", \"content\": \"\"}]}\n", "dog"},
                 {"{\"messages\": [1]}\n", "message"},
                 {"{\"prompt\": \n", "some.jsonl:1"},
                 {"\n", "no record"}};
    mezzo_tokenizer *bytes;
    must(mezzo_tokenizer_create_byte(&bytes));
    for (size_t i = 0; i < MZ_COUNT(wrong); i++) {
        mz_record_set set;
        must(mz_file_write_atomic("some.jsonl", wrong[i].text, strlen(wrong[i].text)));
        assert_true(mz_record_set_open("some.jsonl", NULL, bytes, &set) != MEZZO_OK);
        if (strstr(mezzo_error_message(), wrong[i].says) == NULL)
            fail_msg("\"%s\" does not say %s", mezzo_error_message(), wrong[i].says);
    }
    mezzo_tokenizer_free(bytes);
}

// A signal while records are read ends that, with the line it was at.
TEST(test_reading_can_be_stopped) {
    const volatile sig_atomic_t stop = 1;
    mezzo_tokenizer *bytes;
    mz_record_set set;
    must(mezzo_tokenizer_create_byte(&bytes));
    must(mz_file_write_atomic("some.jsonl", "\n{}\n", 4));
    mz_stop_enter(&stop);
    assert_int_equal(mz_record_set_open("some.jsonl", NULL, bytes, &set), MEZZO_ERR_INTERRUPTED);
    mz_stop_leave(NULL);
    if (strstr(mezzo_error_message(), "some.jsonl: stopped") == NULL)
        fail_msg("\"%s\"", mezzo_error_message());
    assert_null(set.records);
    mezzo_tokenizer_free(bytes);
}

// A file *.json is one list of records, or lines as in *.jsonl; the batches are the same.
TEST(test_json_files) {
    static const char *const files[][2] = {
        {"a.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"c\", \"completion\": \"d\"}\n"},
        {"b.json",
         "\xEF\xBB\xBF{\"prompt\": \"a\", \"completion\": \"b\"}\r\n{\"prompt\": \"c\", \"completion\": \"d\"}"},
        {"c.json",
         " [{\"prompt\": \"a\", \"completion\": \"b\"},\n\n{\"prompt\": \"c\",\n \"completion\": \"d\", \"x\": NaN}]"}};
    mezzo_tokenizer *bytes;
    mezzo_data_mark marks[MZ_COUNT(files)];
    must(mezzo_tokenizer_create_byte(&bytes));
    for (size_t i = 0; i < MZ_COUNT(files); i++) {
        mz_instructions *x;
        mz_record_set set;
        assert_true(mz_is_records(files[i][0]));
        must(mz_file_write_atomic(files[i][0], files[i][1], strlen(files[i][1])));
        must(mz_record_set_open(files[i][0], NULL, bytes, &set));
        must(mz_instructions_create(&set, 0, 1, true, &x));
        assert_int_equal(mz_instructions_count(x), 2);
        marks[i] = mz_instructions_mark(x);
        mz_instructions_free(x);
        mz_record_set_close(&set);
        assert_int_equal(marks[i].crc32c, marks[0].crc32c);
    }
    static const char *const wrong[][2] = {{"[{\"prompt\": \"a\"},\n 7]", "d.json:1: key 'completion'"},
                                           {"[7]", "d.json:1: not valid JSON"},
                                           {"[\n[]]", "d.json:2: no object"},
                                           {"[{}, {}", "d.json:1: the list has no end"},
                                           {"[{}\n {}]", "d.json:2: no comma between two records"},
                                           {"[{}, ]", "d.json:1: a comma with no record after it"},
                                           {"[{}]\n{}", "d.json:2: text after the list"},
                                           {"[{\"prompt\": NaN, \"completion\": \"\"}]", "expected a string, got NaN"},
                                           {"[{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}]",
                                            "half of a surrogate pair cannot be used"},
                                           {"{\n \"version\": 1\n}", "d.json:1: not valid JSON"},
                                           {"[]", "no record"}};
    for (size_t i = 0; i < MZ_COUNT(wrong); i++) {
        mz_record_set set;
        must(mz_file_write_atomic("d.json", wrong[i][0], strlen(wrong[i][0])));
        assert_true(mz_record_set_open("d.json", NULL, bytes, &set) != MEZZO_OK);
        if (strstr(mezzo_error_message(), wrong[i][1]) == NULL)
            fail_msg("\"%s\" does not say %s", mezzo_error_message(), wrong[i][1]);
    }
    assert_false(mz_is_records(".json") || mz_is_records("a.json/b") || mz_is_records("json"));
    mezzo_tokenizer_free(bytes);
}

static void write_letters(const char *path, char letter, int n) {
    mz_text t = {0};
    for (int i = 0; i < n; i++)
        mz_text_addf(&t, "{\"prompt\": \"%c\", \"completion\": \"!\"}\n", letter);
    must(mz_file_write_atomic(path, t.data, t.len));
    mz_text_free(&t);
}

// How many of 4,000 rows begin with `letter`.
static int count_rows(const mz_instructions *x, char letter) {
    enum { ROWS = 4000, LENGTH = 2 };
    static int32_t tokens[ROWS * LENGTH], targets[ROWS * LENGTH];
    int n = 0;
    mz_instruction_rows *made;
    must(mz_instruction_rows_create(
        x, &(mz_instruction_order){.random = true, .rows = ROWS, .length = LENGTH, .seed = 5}, &made));
    must(mz_instruction_rows_batch(made, 0, tokens, targets, NULL));
    mz_instruction_rows_free(made);
    for (int r = 0; r < ROWS; r++)
        n += tokens[r * LENGTH] == letter;
    return n;
}

// 30 records of weight 2 and 40 of 0.5 are drawn as 60 to 20: 3,000 of 4,000 rows, with a deviation of
// √(4000·0.75·0.25) = 27; four of them are a twentieth of the difference to what records without weights have, 1,714.
// Validation has none.
TEST(test_weights_draw_records) {
    mezzo_tokenizer *bytes;
    mz_record_set set;
    mz_instructions *train, *validation;
    must(mezzo_tokenizer_create_byte(&bytes));
    write_letters("a.jsonl", 'a', 30);
    write_letters("b.jsonl", 'b', 40);
    must(mz_record_set_open("a.jsonl:2,b.jsonl:0.5", NULL, bytes, &set));
    must(mz_instructions_create(&set, 0, 1, true, &train));
    must(mz_instructions_create(&set, 0, 1, false, &validation));
    assert_in_range(count_rows(train, 'a'), 3000 - 4 * 27, 3000 + 4 * 27);
    assert_in_range(count_rows(validation, 'a'), 1714 - 4 * 31, 1714 + 4 * 31); // √(4000·3/7·4/7) = 31
    assert_int_equal(mz_instructions_batches(train, 10), 8);
    assert_int_equal(mz_instructions_batches(validation, 10), 7);
    mz_instructions_free(train);
    mz_instructions_free(validation);
    mz_record_set_close(&set);
    mezzo_tokenizer_free(bytes);
}

// The same of documents, by positions.
TEST(test_weights_draw_documents) {
    enum { ROWS = 4000, LENGTH = 2 };
    static int32_t tokens[ROWS * LENGTH], targets[ROWS * LENGTH];
    mezzo_corpus *corpus;
    mezzo_loader *loader;
    int n = 0;
    must(mz_file_write_atomic("c.jsonl", "{\"text\": \"cccccccccccccccccccccccccccccccc\"}\n", 46));
    must(mz_file_write_atomic("d.jsonl", "{\"text\": \"dddddddddddddddddddddddddddddddd\"}\n", 46));
    must(mezzo_corpus_open(
        &(mezzo_corpus_options){.path = "c.jsonl:3,d.jsonl", .tokenizer = "byte", .train_fraction = 1}, &corpus));
    must(mezzo_loader_create(corpus, &(mezzo_loader_options){.batch = ROWS, .length = LENGTH, .seed = 5}, &loader));
    must(mezzo_loader_batch(loader, 0, tokens, targets));
    for (int r = 0; r < ROWS; r++)
        n += tokens[r * LENGTH] == 'c';
    assert_in_range(n, 3000 - 4 * 27, 3000 + 4 * 27);
    mezzo_loader_free(loader);
    mezzo_corpus_free(corpus);
}

// Prompts are noise, answers follow from their last letter: the loss of the answers falls far below what a model can
// reach on the prompts, which no mask would add to it.
TEST(test_learns_the_answers) {
    mz_text t = {0};
    for (unsigned i = 0; i < 400; i++) {
        unsigned x = i * 2654435761u;
        mz_text_addf(&t, "{\"prompt\": \"%c%c%c%c\", \"completion\": \"%s\"}\n", 'a' + x % 26, 'a' + (x >> 8) % 26,
                     'a' + (x >> 13) % 26, i % 2 ? '?' : '!', i % 2 ? "yes" : "no.");
    }
    must(mz_file_write_atomic("learn.jsonl", t.data, t.len));
    mz_text_free(&t);
    tiny_log log = {0};
    mezzo_train_result result;
    tiny_clean("learn");
    must(tiny_run("learn",
                  (const char *const[]){"--data=learn.jsonl", "--tokenizer=byte", "--steps=60", "--lr=1e-2",
                                        "--batch-size=16", "--eval-final=true", NULL},
                  &log, &result));
    if (!(result.val_loss < 0.6)) // the prompts alone have ln 26 = 3.26 nats a letter
        fail_msg("the answers have a loss of %g", result.val_loss);
    assert_int_equal(tiny_run("learn", (const char *const[]){"--data=learn.jsonl", NULL}, &log, &result),
                     MEZZO_ERR_INVALID); // a run is there
    tiny_clean("learn");
    must_fail(tiny_run("learn", (const char *const[]){"--data=learn.jsonl", NULL}, &log, &result), MEZZO_ERR_INVALID,
              "data.tokenizer");
}
